/* What is known of a value's elements without running anything, for the clean-up passes. */
#ifndef LATHE_VALUE_FACTS_H
#define LATHE_VALUE_FACTS_H

#include "ir.h"

/* True and *number when every element of v is that number: a constant, a fill, or what only arranges such a value. */
bool lathe_value_uniform(const struct lathe_graph *g, lathe_value_id v, double *number);

/* Bounds of all elements of an integer value as expressions; LATHE_DIM_NONE where nothing is known. */
struct lathe_value_range {
    lathe_dim lower, upper;
};
struct lathe_value_range lathe_value_range(struct lathe_graph *g, lathe_value_id v);

/* Whether the comparison `op` of a and b gives one answer for all elements: 1 true, 0 false, -1 not known. */
int lathe_comparison_outcome(struct lathe_graph *g, enum lathe_op op, lathe_value_id a, lathe_value_id b);
#endif
