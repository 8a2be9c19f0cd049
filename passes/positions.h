/* What index tensors hold, as far as the graph alone tells: token positions, one number, or numbers up to a bound. */
#ifndef LATHE_POSITIONS_H
#define LATHE_POSITIONS_H

#include "ir.h"

/* v's element at place s of its last axis is *first + s, whatever the leading places are. */
bool lathe_positions_of(const struct lathe_graph *g, lathe_value_id v, int64_t *first);
/* Every element of the integer value v is *number. */
bool lathe_index_is_uniform(const struct lathe_graph *g, lathe_value_id v, int64_t *number);
/* The largest element that v can have, as an expression of the symbols; LATHE_DIM_NONE when the graph does not tell. */
lathe_dim lathe_index_upper(struct lathe_graph *g, lathe_value_id v);
/* The constant at place i of a list attribute (INTS, or DIMS that are constant). */
bool lathe_attr_constant_at(const struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, uint32_t i,
                            int64_t *value);
#endif
