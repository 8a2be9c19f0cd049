/* The products of attention_bf16, which have a row on vectors and one on tile registers (AMX); all else is common. */
#ifndef LATHE_ATTENTION_BF16_PRODUCT_H
#define LATHE_ATTENTION_BF16_PRODUCT_H

#include "attention_shape.h"
#include "kernel.h"

#define AQ LATHE_ATTENTION_QUERIES

/* A pair of bf16 numbers. */
typedef uint32_t word;

/* What becomes of the sums of a tile. */
enum finish {
    KEEP,    /* c = sums */
    MAXIMUM, /* and their maximum goes into `line` */
    SHRINK   /* c = c * line + sums */
};

/* Sums of `steps` products of words for 32 queries. */
struct product {
    size_t rows, steps;
    const word *a; /* [rows][steps], row stride lda */
    size_t lda;
    const word *b; /* [steps][32], step stride ldb */
    size_t ldb;
    float *c; /* [rows][AQ] */
    enum finish finish;
    float *line; /* [AQ] */
};
typedef void (*multiply_fn)(const struct product *product);

/* attention_bf16 by these products. unit: 2, or a larger power of 2 that the numbers of keys are multiples of which
 * they are given, from the first key of a block on; what is no key has weight 0. Rows behind the last of a product of
 * keys may be written up to such a multiple. */
void lathe_attention_bf16_by(const struct lathe_attention_f32_args *args, multiply_fn multiply, size_t unit);
#endif
