/* The weight of a linear layer as f32, read from its stored form through what only rearranges or widens constants:
 * concat, transpose, reshape, casts (from f16, bf16 and integers) and dequantization. Nothing is copied: a weight of
 * 8 bits is never held in 32. Quantization passes and packing see the same numbers, those the operators would give. */
#ifndef LATHE_WEIGHT_READER_H
#define LATHE_WEIGHT_READER_H

#include "ir.h"

/* The scale and zero point of a stored element: (element - zero) * scale. The element at (row, column) of the stored
 * matrix has those number row / block[0] * step[0] + column / block[1] * step[1]. */
struct lathe_weight_grid {
    const void *scale, *zero; /* of constants; zero may be NULL: 0 */
    enum lathe_dtype scale_dtype, zero_dtype;
    int64_t block[2], step[2];
};

/* One piece of a weight: columns [at, at + columns) of w [K][N], stored as the matrix [K][columns], or [columns][K]
 * when `transposed`. */
struct lathe_weight_part {
    const void *data;
    enum lathe_dtype dtype; /* a float of at most 32 bits, or an integer of at most 32 */
    int64_t at, columns;
    bool transposed;
    bool scaled; /* `grid` says what an element means; else it is its number */
    struct lathe_weight_grid grid;
};

struct lathe_weight_reader {
    int64_t k, n;
    uint32_t part_count;
    const struct lathe_weight_part *parts; /* the arena's */
};

/* The right operand of `linear`. False when it is not made of constants alone, of too many, or memory runs out. */
bool lathe_weight_reader_open(const struct lathe_graph *g, lathe_node_id linear, struct lathe_arena *arena,
                              struct lathe_weight_reader *out);
/* Columns [first, first + count) into out [count][k]. Any thread. */
void lathe_weight_reader_columns(const struct lathe_weight_reader *r, int64_t first, int64_t count, float *out);
/* `count` elements of stored row `row` from its element `first` on; a stored row has `columns` elements, or k when
 * transposed (given as `width`). Any thread. */
void lathe_weight_part_read(const struct lathe_weight_part *p, int64_t width, int64_t row, int64_t first, int64_t count,
                            float *out);
/* One element of a scale or zero point. */
float lathe_weight_scale_at(const struct lathe_weight_grid *g, int64_t cell);
int64_t lathe_weight_zero_at(const struct lathe_weight_grid *g, int64_t cell);
static inline int64_t lathe_weight_cell(const struct lathe_weight_grid *g, int64_t row, int64_t column) {
    return row / g->block[0] * g->step[0] + column / g->block[1] * g->step[1];
}
/* A constant of any rank behind a cast to f32 or a dequantization, as the stored matrix [first dim][the rest] with its
 * columns in `out->columns`. False for anything else. */
bool lathe_weight_stored(const struct lathe_graph *g, lathe_value_id v, int64_t *rows, struct lathe_weight_part *out);
/* The same of a matrix, with ones before its two axes or not. */
bool lathe_weight_is_matrix(const struct lathe_graph *g, lathe_value_id v);
#endif
