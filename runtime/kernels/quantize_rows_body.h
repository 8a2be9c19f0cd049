/* quantize_rows on vectors, included by one file an instruction set. The including file defines
 *   quantize_store(v, zero, top, out)  4 VN bytes from 4 vectors of products with the reciprocal: each rounded, zero
 *                                      added, clamped to 0..top
 * Several rows at a time: the way from the last element to the range, with its divisions, is long, and the ranges of
 * the others are found meanwhile. */
#ifndef LATHE_QUANTIZE_ROWS_BODY_H
#define LATHE_QUANTIZE_ROWS_BODY_H

#include "kernel_q8.h"
#include "quantize_body.h"
#include "unroll.h"

#include <string.h>

#define QUANTIZE_ROWS 4

/* Elements [i, i + n) of a row times their column scales. */
static inline vf quantize_load(const float *x, const float *x_scale, size_t i, size_t n) {
    vf v = n == VN ? v_load(x + i) : v_load_n(x + i, n);
    if (x_scale)
        v = v * (n == VN ? v_load(x_scale + i) : v_load_n(x_scale + i, n));
    return v;
}

static inline struct row_range quantize_range(const float *x, const float *x_scale, size_t k, unsigned levels) {
    vf lo[2] = {v_set1(0), v_set1(0)}, hi[2] = {v_set1(0), v_set1(0)}, bad[2] = {v_set1(0), v_set1(0)};
    size_t i = 0;
    for (; i + 2 * VN <= k; i += 2 * VN) {
        LATHE_UNROLL
        for (size_t u = 0; u < 2; u++) {
            vf v = quantize_load(x, x_scale, i + u * VN, VN);
            lo[u] = v_min(v, lo[u]);
            hi[u] = v_max(v, hi[u]);
            bad[u] = v_fma(v, v_set1(0), bad[u]);
        }
    }
    for (; i < k; i += VN) {
        vf v = quantize_load(x, x_scale, i, k - i < VN ? k - i : VN);
        lo[0] = v_min(v, lo[0]);
        hi[0] = v_max(v, hi[0]);
        bad[0] = v_fma(v, v_set1(0), bad[0]);
    }
    float low = 0.0f - v_hmax(v_set1(0) - v_min(lo[0], lo[1]));
    return row_range(low, v_hmax(v_max(hi[0], hi[1])), v_sum(bad[0] + bad[1]), levels);
}

static inline void quantize_write(const float *x, const float *x_scale, size_t k, const struct row_range *range,
                                  unsigned levels, uint8_t *q) {
    size_t padded = (k + 3) / 4 * 4, i = 0;
    if (range->inverse == 0.0f) {
        memset(q, 0, padded);
        return;
    }
    vf inverse = v_set1(range->inverse), v[4];
    for (; i + 4 * VN <= k; i += 4 * VN) {
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++)
            v[u] = quantize_load(x, x_scale, i + u * VN, VN) * inverse;
        quantize_store(v, range->zero, levels, q + i);
    }
    if (i == padded)
        return;
    uint8_t last[4 * VN];
    LATHE_UNROLL
    for (size_t u = 0; u < 4; u++) {
        size_t at = i + u * VN, left = at >= k ? 0 : k - at < VN ? k - at : VN;
        v[u] = v_set1(0);
        if (left)
            v[u] = quantize_load(x, x_scale, at, left) * inverse;
    }
    quantize_store(v, range->zero, levels, last);
    memset(last + (k - i), 0, padded - k);
    memcpy(q + i, last, padded - i);
}

static inline __attribute__((always_inline)) void quantize_rows_of(const struct lathe_quantize_rows *rows,
                                                                   const float *x_scale) {
    for (size_t first = 0; first < rows->count; first += QUANTIZE_ROWS) {
        size_t count = rows->count - first < QUANTIZE_ROWS ? rows->count - first : QUANTIZE_ROWS;
        struct row_range range[QUANTIZE_ROWS];
        const float *x = rows->x + first * rows->ldx;
        for (size_t r = 0; r < count; r++) {
            range[r] = quantize_range(x + r * rows->ldx, x_scale, rows->k, rows->levels);
            rows->scale[first + r] = range[r].scale;
            rows->zero[first + r] = range[r].zero;
        }
        for (size_t r = 0; r < count; r++)
            quantize_write(x + r * rows->ldx, x_scale, rows->k, &range[r], rows->levels,
                           rows->q + (first + r) * rows->ldq);
    }
}

static inline void quantize_rows(const struct lathe_quantize_rows *rows) {
    if (rows->x_scale)
        quantize_rows_of(rows, rows->x_scale);
    else
        quantize_rows_of(rows, NULL);
}
#endif
