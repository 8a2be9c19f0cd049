/* The epilogue of 8-bit products on the vector layer: from sums in a buffer to rows of c. */
#ifndef LATHE_GEMM_Q8_FINISH_BODY_H
#define LATHE_GEMM_Q8_FINISH_BODY_H

#include "activate_body.h"
#include "kernel_q8.h"
#include "unroll.h"

/* Rows [row, row + rows) of a tile; *e is to be their epilogue. */
static inline struct lathe_gemm_q8_tile q8_tile_rows(const struct lathe_gemm_q8_tile *tile, size_t row, size_t rows,
                                                     struct lathe_gemm_q8_epilogue *e) {
    struct lathe_gemm_q8_tile part = *tile;
    part.rows = rows;
    part.a += row * tile->lda;
    part.x_sum = tile->x_sum ? tile->x_sum + row * tile->ldx_sum : NULL;
    part.x_pairs = tile->x_pairs ? tile->x_pairs + row : NULL;
    if (!tile->epilogue) {
        part.sums += row * tile->ldc;
        return part;
    }
    part.c += row * tile->ldc;
    *e = *tile->epilogue;
    e->scale += row;
    e->zero += row;
    e->residual = e->residual ? e->residual + row * e->ldr : NULL;
    part.epilogue = e;
    return part;
}

/* `column`: of the tile, where the sums begin; c is the place of that column. */
static inline __attribute__((always_inline)) void q8_finish_rows(enum lathe_activation activation, size_t rows,
                                                                 size_t cols, size_t column, const int32_t *sums,
                                                                 size_t ld, float *c, size_t ldc,
                                                                 const struct lathe_gemm_q8_epilogue *e) {
    for (size_t j = 0; j < cols; j += VN) {
        size_t n = cols - j < VN ? cols - j : VN, at = column + j;
        bool whole = n == VN;
        vi w_sum = whole ? vi_load(e->w_sum + at) : vi_load_n(e->w_sum + at, n);
        vf w_scale = whole ? v_load(e->w_scale + at) : v_load_n(e->w_scale + at, n), bias = v_set1(0.0f);
        if (e->bias)
            bias = whole ? v_load(e->bias + at) : v_load_n(e->bias + at, n);
        for (size_t r = 0; r < rows; r++) {
            vi sum = vi_sub(vi_load(sums + r * ld + j), vi_mul(vi_set1(e->zero[r]), w_sum));
            vf x = v_from_i32(sum) * (v_set1(e->scale[r]) * w_scale);
            if (e->bias)
                x = x + bias;
            x = v_activate_q8(activation, e->alpha, x);
            if (e->residual) {
                const float *residual = e->residual + r * e->ldr + at;
                x = v_join(e->gate, x, whole ? v_load(residual) : v_load_n(residual, n));
            }
            if (whole)
                v_store(c + r * ldc + j, x);
            else
                v_store_n(c + r * ldc + j, x, n);
        }
    }
}

/* The same for whole vectors, `pair` of them side by side: all that is known beforehand is out of the loop over the
 * rows. c is the place of column `at` of the tile, sums too. AVX-512, EPYC of 2025: 13 rows x 32 columns in 15 ns, with
 * GELU in 53; by q8_finish_rows in 27 and 60. The products of such a tile take 293 ns at K = 384. */
static inline __attribute__((always_inline)) void
q8_finish_vectors(enum lathe_activation activation, bool with_residual, const size_t pair, size_t rows, size_t at,
                  const int32_t *sums, size_t ld, float *c, size_t ldc, const struct lathe_gemm_q8_epilogue *e) {
    const int32_t *zero = e->zero;
    const float *scale = e->scale, *residual = e->residual;
    size_t ldr = e->ldr;
    float alpha = e->alpha;
    const bool gate = e->gate;
    vi w_sum[2];
    vf w_scale[2], bias[2];
    LATHE_UNROLL
    for (size_t v = 0; v < pair; v++) {
        w_sum[v] = vi_load(e->w_sum + at + v * VN);
        w_scale[v] = v_load(e->w_scale + at + v * VN);
        bias[v] = v_load(e->bias + at + v * VN);
    }
    for (size_t r = 0; r < rows; r++) {
        vi z = vi_set1(zero[r]);
        vf s = v_set1(scale[r]);
        LATHE_UNROLL
        for (size_t v = 0; v < pair; v++) {
            vi sum = vi_sub(vi_load(sums + r * ld + v * VN), vi_mul(z, w_sum[v]));
            vf x = v_activate_q8(activation, alpha, v_from_i32(sum) * (s * w_scale[v]) + bias[v]);
            if (with_residual)
                x = v_join(gate, x, v_load(residual + r * ldr + at + v * VN));
            v_store(c + r * ldc + v * VN, x);
        }
    }
}

static inline __attribute__((always_inline)) void q8_finish_whole(enum lathe_activation activation, bool with_residual,
                                                                  size_t rows, size_t cols, size_t column,
                                                                  const int32_t *sums, size_t ld, float *c, size_t ldc,
                                                                  const struct lathe_gemm_q8_epilogue *e) {
    size_t j = 0;
    for (; j + 2 * VN <= cols; j += 2 * VN)
        q8_finish_vectors(activation, with_residual, 2, rows, column + j, sums + j, ld, c + j, ldc, e);
    if (j < cols)
        q8_finish_vectors(activation, with_residual, 1, rows, column + j, sums + j, ld, c + j, ldc, e);
}

/* Sums of `cols` columns that begin at `column` of the tile. The buffer holds whole panels. */
static __attribute__((noinline)) void q8_finish_any(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols,
                                                    const int32_t *sums, size_t ld) {
    const struct lathe_gemm_q8_epilogue *e = tile->epilogue;
    if (!e) {
        for (size_t r = 0; r < tile->rows; r++)
            for (size_t j = 0; j < cols; j += VN)
                vi_store_n(tile->sums + r * tile->ldc + column + j, vi_load(sums + r * ld + j),
                           cols - j < VN ? cols - j : VN);
        return;
    }
    float *c = tile->c + column;
#if VN > 1 && !defined(Q8_LATER) /* there these forms wait for the next tile */
    if (e->bias && cols % VN == 0) {
        if (e->activation == LATHE_ACT_NONE && !e->residual) {
            q8_finish_whole(LATHE_ACT_NONE, false, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
            return;
        }
        if (e->activation == LATHE_ACT_NONE) {
            q8_finish_whole(LATHE_ACT_NONE, true, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
            return;
        }
        if (e->activation == LATHE_ACT_GELU && !e->residual) {
            q8_finish_whole(LATHE_ACT_GELU, false, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
            return;
        }
    }
#endif
#if VN > 1
    switch (e->activation) {
    case LATHE_ACT_NONE:
        q8_finish_rows(LATHE_ACT_NONE, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
        return;
    case LATHE_ACT_GELU:
        q8_finish_rows(LATHE_ACT_GELU, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
        return;
    default:
        break;
    }
#endif
    q8_finish_rows(e->activation, tile->rows, cols, column, sums, ld, c, tile->ldc, e);
}

static inline void q8_finish(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols, const int32_t *sums,
                             size_t ld) {
    __asm__("" : "+r"(ld)); /* or the compiler makes a copy of it for each ld, 5 KB apiece */
    q8_finish_any(tile, column, cols, sums, ld);
}
#endif
