/* Which steps of the plan a target's device runs: those of the operators that its file lists. */
#ifndef LATHE_CHECK_OPERATORS_H
#define LATHE_CHECK_OPERATORS_H

#include "stages.h"

/* True when the target's list has the operator. A copy runs everywhere. */
bool lathe_target_runs(const struct lathe_target *target, enum lathe_op op);

/* Lowers the graph as emit will, and looks at each step. `allow`: what the device does not run stays on the host; the
 * report counts it under `fallback` and has a warning FALLBACK for each operator. Else LATHE_UNSUPPORTED with every
 * such operator, its count and its nodes. */
LATHE_NODISCARD enum lathe_status lathe_check_operators(struct lathe_graph *g, const struct lathe_emit_options *options,
                                                        bool allow, struct lathe_report *report,
                                                        struct lathe_diag *diag);
#endif
