/* The weight of a linear layer as columns of f32, read through what only rearranges constants (concat, transpose,
 * reshape, casts from f16 and bf16). */
#ifndef LATHE_WEIGHT_READER_H
#define LATHE_WEIGHT_READER_H

#include "ir.h"

#define LATHE_WEIGHT_MAX_PARTS 64

struct lathe_weight_reader {
    int64_t k, n;
    unsigned part_count;
    struct lathe_weight_piece {
        const void *data;
        enum lathe_dtype dtype;
        int64_t at, columns;
        bool transposed; /* stored [columns][k] */
    } parts[LATHE_WEIGHT_MAX_PARTS];
};

/* False when the operand is not made of constants alone, or of too many. */
bool lathe_weight_reader_open(const struct lathe_graph *g, lathe_node_id linear, struct lathe_weight_reader *out);
/* Columns [first, first + count) into out [count][k]. Any thread. */
void lathe_weight_reader_columns(const struct lathe_weight_reader *r, int64_t first, int64_t count, float *out);
#endif
