/* The plan of an artifact as text, for inspect and diff. */
#ifndef LATHE_PLAN_TEXT_H
#define LATHE_PLAN_TEXT_H

#include "plan.h"
#include "text.h"

/* "rows, 768" for value `index` of the plan; long expressions are cut with "...". */
void lathe_plan_dims_text(const struct lathe_plan *plan, uint32_t value, char *buffer, size_t size);
/* A line a step: number, operator, result with shape, operands. */
void lathe_plan_text(const struct lathe_plan *plan, struct lathe_text *out);
/* The name of a step's operator. */
const char *lathe_step_op(const struct lathe_fmt_step *step);
#endif
