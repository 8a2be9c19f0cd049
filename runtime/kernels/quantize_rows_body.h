/* quantize_rows on vectors, included by one file an instruction set. The including file defines
 *   quantize_store(v, zero, top, out)  4 VN bytes from 4 vectors of products with the reciprocal: each rounded, zero
 *                                      added, clamped to 0..top
 * Rows of less than 4 VN elements are plain C's.
 * Several rows at a time: the way from the last element to the range, with its divisions, is long, and the ranges of
 * the others are found meanwhile. ns an element of rows of 384, 768, 3072, Zen 5:
 *   AVX2     4 rows 0.074, 0.066, 0.060   8 rows 0.066, 0.062, 0.057
 *   AVX-512  4 rows 0.054, 0.046, 0.042   8 rows 0.045, 0.040, 0.041 */
#ifndef LATHE_QUANTIZE_ROWS_BODY_H
#define LATHE_QUANTIZE_ROWS_BODY_H

#include "kernel_rows.h"
#include "unroll.h"

#include <math.h>
#include <string.h>

#define QUANTIZE_ROWS 8

/* 4 VN elements from the i-th on, or the last ones of k: what is seen twice changes nothing. */
static inline void quantize_load(vf v[4], const float *x, const float *x_scale, size_t i, size_t k) {
    size_t at = i + 4 * VN <= k ? i : k - 4 * VN;
    LATHE_UNROLL
    for (size_t u = 0; u < 4; u++) {
        v[u] = v_load(x + at + u * VN);
        if (x_scale)
            v[u] = v[u] * v_load(x_scale + at + u * VN);
    }
}

/* The greatest value of a row and the distance of the least from 0, as bits; the second is below 0 where no value is.
 * As signed integers the bits of floats are greatest for the greatest value, as unsigned ones for the least of the
 * negative values; NaN and infinities are beyond all others of their sign, so that one of the two is no number then.
 * One instruction each, where floats would want a third for NaN. */
static inline void quantize_ends(const float *x, const float *x_scale, size_t k, int32_t *above, int32_t *below) {
    vi most[4], least[4];
    LATHE_UNROLL
    for (size_t u = 0; u < 4; u++)
        most[u] = least[u] = vi_set1(0);
    LATHE_NO_UNROLL
    for (size_t i = 0; i < k; i += 4 * VN) {
        vf v[4];
        quantize_load(v, x, x_scale, i, k);
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++) {
            most[u] = vi_max(vi_bits(v[u]), most[u]);
            least[u] = vi_max_unsigned(vi_bits(v[u]), least[u]);
        }
    }
    LATHE_UNROLL
    for (size_t u = 1; u < 4; u++) {
        most[0] = vi_max(most[0], most[u]);
        least[0] = vi_max_unsigned(least[0], least[u]);
    }
    *above = vi_hmax(most[0]);
    *below = vi_hmax(vi_add(least[0], vi_set1(INT32_MIN))); /* unsigned order as signed order, the sign taken off */
}

/* quantize_ends of QUANTIZE_ROWS rows, then what quantize_write needs; VN lanes are looked at. */
struct quantize_ranges {
    int32_t above[VN], below[VN];
    float inverse[VN];
    int32_t zero[VN];
};

/* row_range of the first `count` rows, all at once. */
static __attribute__((noinline)) void quantize_ranges(struct quantize_ranges *r, size_t count, unsigned levels,
                                                      bool even, float *scale, int32_t *zero) {
    const vf none = v_set1(0.0f), most = v_set1((float)levels);
    const vf last = v_set1((float)(even ? levels & ~1u : levels));
    vf below = vi_as_float(vi_max(vi_load(r->below), vi_set1(0)));
    vf range = vi_as_float(vi_load(r->above)) + below;
    vm is_number = v_lt(range, v_set1(INFINITY)), is_small = v_lt(range, v_set1(1e-30f));
    vf s = range / most, inverse = v_select(is_small, none, v_select(is_number, v_set1(1.0f) / s, none));
    vf at = v_select(is_number, v_min(below * inverse, last), none);
    vi z = vi_round(at);
    if (even) {
        z = vi_round(at * v_set1(0.5f));
        z = vi_add(z, z);
    }
    v_store(r->inverse, inverse);
    vi_store(r->zero, z);
    v_store_n(scale, v_select(is_small, v_set1(1.0f), v_select(is_number, s, v_set1(NAN))), count);
    vi_store_n(zero, z, count);
}

static inline void quantize_write(const float *x, const float *x_scale, size_t k, float inverse, int32_t zero,
                                  unsigned levels, uint8_t *q) {
    if (inverse == 0.0f) {
        memset(q, 0, (k + 3) / 4 * 4);
        return;
    }
    LATHE_NO_UNROLL
    for (size_t i = 0; i < k; i += 4 * VN) {
        vf v[4];
        quantize_load(v, x, x_scale, i, k);
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++)
            v[u] = v[u] * v_set1(inverse);
        quantize_store(v, zero, levels, q + (i + 4 * VN <= k ? i : k - 4 * VN));
    }
    for (size_t i = k; i % 4; i++)
        q[i] = 0;
}

static inline __attribute__((always_inline)) void quantize_rows_of(const struct lathe_quantize_rows *rows,
                                                                   const float *x_scale) {
    struct quantize_ranges ranges = {0};
    for (size_t first = 0; first < rows->count; first += QUANTIZE_ROWS) {
        size_t count = rows->count - first < QUANTIZE_ROWS ? rows->count - first : QUANTIZE_ROWS;
        const float *x = rows->x + first * rows->ldx;
        LATHE_NO_UNROLL
        for (size_t r = 0; r < count; r++)
            quantize_ends(x + r * rows->ldx, x_scale, rows->k, &ranges.above[r], &ranges.below[r]);
        quantize_ranges(&ranges, count, rows->levels, rows->even, rows->scale + first, rows->zero + first);
        LATHE_NO_UNROLL
        for (size_t r = 0; r < count; r++)
            quantize_write(x + r * rows->ldx, x_scale, rows->k, ranges.inverse[r], ranges.zero[r], rows->levels,
                           rows->q + (first + r) * rows->ldq);
    }
}

static inline void quantize_rows(const struct lathe_quantize_rows *rows) {
    if (rows->k < 4 * VN)
        lathe_quantize_rows_u8__c(rows);
    else if (rows->x_scale)
        quantize_rows_of(rows, rows->x_scale);
    else
        quantize_rows_of(rows, NULL);
}
#endif
