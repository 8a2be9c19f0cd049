/* A drawing of the plan: the steps in order, with what flows between them. */
#ifndef LATHE_PLAN_GRAPH_H
#define LATHE_PLAN_GRAPH_H

#include "plan.h"

/* LATHE_USAGE unless the name ends in .svg or .dot, LATHE_IO unless it can be written. */
LATHE_NODISCARD enum lathe_status lathe_plan_graph_check(const char *path, struct lathe_diag *diag);
LATHE_NODISCARD enum lathe_status lathe_plan_graph_write(const struct lathe_plan *plan, const char *path,
                                                         struct lathe_diag *diag);
#endif
