/* Symbolic element indices: which element of a tensor is meant, as a sum of index variables times dimension
 * expressions.
 *
 * An index variable runs from 0 to its extent - 1, the extent being a dimension expression. Reshapes are followed by
 * mixed-radix arithmetic: where a variable spans two axes it is split into a high and a low digit, so that every index
 * stays a plain sum. Splits are remembered by the space; `lathe_index_resolve` brings older indices up to date, and all
 * functions here do so for their arguments. Functions return false when something is not proved; their results are
 * then unspecified. One thread at a time. */
#ifndef LATHE_INDEX_EXPR_H
#define LATHE_INDEX_EXPR_H

#include "ir.h"

#define LATHE_INDEX_MAX_TERMS 8
#define LATHE_INDEX_MAX_VARS  64

struct lathe_index_term {
    uint32_t var;
    lathe_dim factor; /* not 0 */
};

/* constant + sum of factor * var; terms sorted by variable */
struct lathe_index {
    lathe_dim constant;
    uint32_t count;
    struct lathe_index_term terms[LATHE_INDEX_MAX_TERMS];
};

struct lathe_index_var {
    lathe_dim extent;
    bool is_split; /* = high * radix + low */
    uint32_t high, low;
    lathe_dim radix;
};

struct lathe_index_space {
    struct lathe_dims *dims;
    uint32_t count;
    struct lathe_index_var vars[LATHE_INDEX_MAX_VARS];
};

void lathe_index_space_init(struct lathe_index_space *space, struct lathe_dims *dims);
/* A new variable of that extent as an index; an extent of 1 gives the constant 0. */
bool lathe_index_new_var(struct lathe_index_space *space, lathe_dim extent, struct lathe_index *out);
void lathe_index_const(struct lathe_index_space *space, lathe_dim value, struct lathe_index *out);
bool lathe_index_resolve(struct lathe_index_space *space, struct lathe_index *a);
/* *out = a + factor * b; `out` may be `a` or `b` */
bool lathe_index_add_scaled(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim factor,
                            const struct lathe_index *b, struct lathe_index *out);
bool lathe_index_equal(struct lathe_index_space *space, const struct lathe_index *a, const struct lathe_index *b);
bool lathe_index_is_const(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim *value);
/* a = quotient * divisor + remainder with 0 <= remainder < divisor, splitting variables where that is needed. */
bool lathe_index_divide(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim divisor,
                        struct lathe_index *quotient, struct lathe_index *remainder);
/* True when a >= 0 for all values of its variables; when a < limit. */
bool lathe_index_proved_not_negative(struct lathe_index_space *space, const struct lathe_index *a);
bool lathe_index_proved_below(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim limit);
/* The row-major offset of `at` in a shape, and back. */
bool lathe_index_flatten(struct lathe_index_space *space, int rank, const lathe_dim *dims, const struct lathe_index *at,
                         struct lathe_index *offset);
bool lathe_index_unflatten(struct lathe_index_space *space, const struct lathe_index *offset, int rank,
                           const lathe_dim *dims, struct lathe_index *at);
#endif
