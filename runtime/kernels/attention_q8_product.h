/* The products of attention_q8 where other registers than the vectors of its body do them: tiles (AMX). What they are
 * products of, and which numbers of a word are signed, is attention_q8_scheme.h's; sums are exact, so that the bits are
 * the same. A word is 4 bytes of one key, query or value; a vector is of 16 queries. */
#ifndef LATHE_ATTENTION_Q8_PRODUCT_H
#define LATHE_ATTENTION_Q8_PRODUCT_H

#include "kernel.h"

/* Keys of a group of values, and columns that heads are padded to with zeros: the bytes of a tile's row. */
#define LATHE_Q8_GROUP ((size_t)64)

struct lathe_q8_scores {
    const int32_t *keys;    /* [count][steps] */
    size_t count, steps;    /* multiples of 16 */
    const int32_t *queries; /* [steps][vectors][16] */
    size_t vectors;         /* 1 or 2 */
    int32_t *strip;         /* [count][vectors][16] */
    int32_t *tops;          /* [vectors][16]: becomes the largest score of each query */
    /* NULL, or what is to be done beside, before the scores of each 16 keys are stored where it reads others. */
    void (*beside)(void *of);
    void *of;
};

struct lathe_q8_values {
    const int32_t *values;  /* [groups][columns][16 words] */
    size_t groups, columns; /* columns: a multiple of 16 */
    const int32_t *weights; /* [groups][16 words][vectors][16] */
    size_t vectors;
    float *total;        /* [columns][vectors][16]: becomes itself times `shrink` plus the sums */
    const float *shrink; /* [vectors][16]; NULL: there is no total yet, it becomes the sums */
};

struct lathe_q8_products {
    void (*scores)(const struct lathe_q8_scores *scores);
    void (*values)(const struct lathe_q8_values *values);
};

/* attention_q8 by these products. */
void lathe_attention_q8_by(const struct lathe_attention_f32_args *args, const struct lathe_q8_products *products);
#endif
