/* An output against what it should be. */
#ifndef LATHE_COMPARE_H
#define LATHE_COMPARE_H

#include "data_tensor.h"

/* Only the bounds that are given count. |got - want| <= atol + rtol |want| for every element; the cosine is that of the
 * whole output, and an output whose elements are all within `near` passes whatever its cosine: the direction of numbers
 * close to zero says nothing. */
struct lathe_bounds {
    bool has_tolerance, has_cosine;
    double atol, rtol, min_cosine, near;
};

struct lathe_comparison {
    bool passed;
    double max_error;      /* largest |got - want| of what was compared; infinity when one of them is not finite */
    double cosine;         /* 1 when both are zero */
    int64_t rows_left_out; /* token rows at mask 0 */
    int64_t elements;      /* compared */
    /* Of float outputs with a last axis of at least 2: rows compared along it, and those whose largest element (the
     * first of equal ones) is another one than it should be: a class or token that would be answered differently. */
    int64_t rows, flips;
    char why[768]; /* the failed test: "logits[0,1] is 0.5, expected 0.25 (off by 0.25, atol 0.0001)" */
};

/* `mask` (may be NULL) is [B,S] of any integer or bool type; with it, rows [b,s,..] of outputs [B,S,..] at mask 0 are
 * left out. Type and shape must be equal and every element of `got` finite, unless `want` has the same value there. */
void lathe_compare(const char *name, const struct lathe_tensor_view *got, const struct lathe_data_tensor *want,
                   const struct lathe_data_tensor *mask, const struct lathe_bounds *bounds,
                   struct lathe_comparison *out);
#endif
