/* gemm_f32 on the vector layer, included by one file an instruction set. The including file defines
 *   GEMM_MR                    the most rows of a tile
 *   GEMM_MANY                  rows x panels from which on sums take a bias in the registers: code for the tiles that
 *                              are called most
 *   GEMM_AHEAD(rows, panels)   how many steps of k early lines of B are asked for
 * The sums stay in registers while k runs; each step loads one vector of every panel and broadcasts one element of A a
 * row. */
#ifndef LATHE_GEMM_BODY_H
#define LATHE_GEMM_BODY_H

#include "activate_body.h"
#include "kernel.h"
#include "unroll.h"

#include <string.h>

#define GEMM_VP (16 / VN) /* vectors a panel */
/* gemm_f32_fip reads three lines of a panel at a time: so many steps ahead, into the first cache. Distilbert and
 * minilm-l6, ms at 4, 8, 12 tokens by plain products, and with 40, 64, 100 steps:
 *   2.21 2.11 2.27    2.22 2.50 2.84   2.02 2.20 2.46   2.05 2.06 2.23
 *   0.42 0.49 0.60    0.44 0.53 0.72   0.40 0.49 0.62   0.36 0.46 0.55   (into the second, as far as plain ones: 3 to 6
 * % slower than these) */
#define GEMM_FIP_AHEAD   100
#define GEMM_MAX_VECTORS 8

/* c = epilogue(sums) for one activation; sums lie in lines of `ld`. */
static inline __attribute__((always_inline)) void gemm_finish_rows(enum lathe_activation activation, size_t rows,
                                                                   size_t cols, size_t column, const float *sums,
                                                                   size_t ld, float *c, size_t ldc,
                                                                   const struct lathe_gemm_epilogue *e) {
    bool scaled = e->scale != 1.0f || e->row_scale;
    for (size_t r = 0; r < rows; r++) {
        vf scale = v_set1(e->row_scale ? e->scale * e->row_scale[r] : e->scale);
        const float *residual = e->residual ? e->residual + r * e->ldr + column : NULL;
        for (size_t j = 0; j < cols; j += VN) {
            size_t n = cols - j < VN ? cols - j : VN;
            bool whole = n == VN;
            vf x = v_load(sums + r * ld + j);
            if (scaled)
                x = x * scale;
            if (e->bias)
                x = x + (whole ? v_load(e->bias + column + j) : v_load_n(e->bias + column + j, n));
            x = v_activate(activation, e->alpha, x);
            if (residual)
                x = v_join(e->gate, x, whole ? v_load(residual + j) : v_load_n(residual + j, n));
            if (whole)
                v_store(c + r * ldc + j, x);
            else
                v_store_n(c + r * ldc + j, x, n);
        }
    }
}

/* The same for GELU without residual, two vectors together: one alone leaves the multipliers idle between its
 * steps. A layer of distilbert is 1 % faster for it. */
static inline void gemm_finish_gelu(size_t rows, size_t cols, const float *bias, const float *row_scale,
                                    const float *sums, size_t ld, float *c, size_t ldc) {
    for (size_t r = 0; r < rows; r++) {
        vf scale = v_set1(row_scale ? row_scale[r] : 1.0f);
        for (size_t j = 0; j < cols; j += 2 * VN) {
            const float *at = sums + r * ld + j;
            vf x = v_gelu(v_load(at) * scale + v_load(bias + j));
            vf y = v_gelu(v_load(at + VN) * scale + v_load(bias + j + VN));
            v_store(c + r * ldc + j, x);
            v_store(c + r * ldc + j + VN, y);
        }
    }
}

static __attribute__((noinline)) void gemm_finish(size_t rows, size_t cols, size_t column, const float *sums, size_t ld,
                                                  float *c, size_t ldc, const struct lathe_gemm_epilogue *e) {
    switch (e->activation) {
    case LATHE_ACT_NONE:
        gemm_finish_rows(LATHE_ACT_NONE, rows, cols, column, sums, ld, c, ldc, e);
        break;
    case LATHE_ACT_GELU:
        if (e->bias && !e->residual && e->scale == 1 && cols % (2 * VN) == 0)
            gemm_finish_gelu(rows, cols, e->bias + column, e->row_scale, sums, ld, c, ldc);
        else
            gemm_finish_rows(LATHE_ACT_GELU, rows, cols, column, sums, ld, c, ldc, e);
        break;
    default:
        gemm_finish_rows(e->activation, rows, cols, column, sums, ld, c, ldc, e);
        break;
    }
}

static __attribute__((noinline)) void gemm_copy(size_t rows, size_t cols, const float *from, size_t ld, float *to,
                                                size_t ldc) {
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * ldc, from + r * ld, cols * sizeof *to);
}

/* `k` steps of the sums. Lines from `fetch` on go to the first cache; against the second, 2 threads, Zen 5: distilbert
 * at 8, 12, 64 tokens 2.13 -> 2.05, 2.29 -> 2.28, 9.98 -> 9.96 ms, minilm-l6 0.53 -> 0.49, 0.61 -> 0.58, 2.97 -> 2.95,
 * on AVX2 0 to 3 %. */
static inline __attribute__((always_inline)) void gemm_steps(const size_t rows, const size_t panels, size_t k,
                                                             const float *a, size_t lda, const float *b, size_t ldb,
                                                             size_t stride, const float *fetch, size_t step,
                                                             vf acc[GEMM_MR][GEMM_MAX_VECTORS]) {
    const size_t vectors = panels * GEMM_VP;
    for (size_t t = 0; t < k; t++, a += lda, b += ldb, fetch += step) {
        vf bv[GEMM_MAX_VECTORS];
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            bv[v] = v_load(b + v / GEMM_VP * stride + v % GEMM_VP * VN);
        LATHE_UNROLL
        for (size_t p = 0; p < panels; p++)
            __builtin_prefetch(fetch + p * stride, 0, 3);
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            vf av = v_set1(a[r]);
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                acc[r][v] = v_fma(av, bv[v], acc[r][v]);
        }
    }
}

/* The same by the fast inner product, k / 3 times three steps. Of the lines of B three times as many are asked for a
 * turn, or as few as the bytes named by `step` have, apart: memory likes that better than all at once. */
static inline __attribute__((always_inline)) void gemm_fip_steps(const size_t rows, const size_t panels, size_t k,
                                                                 const float *a, size_t lda, const float *b,
                                                                 size_t stride, const float *fetch, size_t step,
                                                                 vf acc[GEMM_MR][GEMM_MAX_VECTORS]) {
    const size_t vectors = panels * GEMM_VP, fetches = (3 * step + 15) / 16, apart = 3 * step / (fetches ? fetches : 1);
    for (size_t t = 0; t + 3 <= k; t += 3, a += 3 * lda, b += 48, fetch += 3 * step) {
        const float *a1 = a + lda, *a2 = a1 + lda;
        __asm__("" : "+r"(a1), "+r"(a2)); /* or the compiler has a register for each row, and no room for them */
        vf bv[GEMM_MAX_VECTORS][3];
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            LATHE_UNROLL
            for (size_t i = 0; i < 3; i++)
                bv[v][i] = v_load(b + i * 16 + v / GEMM_VP * stride + v % GEMM_VP * VN);
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            LATHE_UNROLL
            for (size_t i = 0; i < 3; i++)
                if (i * rows / 3 == r && (i == 0 || i < fetches)) {
                    LATHE_UNROLL
                    for (size_t p = 0; p < panels; p++)
                        __builtin_prefetch(fetch + i * apart + p * stride, 0, 3);
                }
            vf x = v_set1(a[r]), x1 = v_set1(a1[r]), x2 = v_set1(a2[r]);
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++) {
                acc[r][v] = v_fma(x, bv[v][0], acc[r][v]);
                acc[r][v] = v_fma(x1 + bv[v][2], x2 + bv[v][1], acc[r][v]);
            }
        }
    }
}

/* What is left of k then, at most two steps. */
static __attribute__((noinline)) void gemm_fip_rest(size_t rows, size_t cols, size_t k, const float *a, size_t lda,
                                                    const float *b, size_t stride, float *sums) {
    for (size_t t = 0; t < k; t++, a += lda, b += 16)
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < cols; j += VN)
                v_store(sums + r * cols + j,
                        v_fma(v_set1(a[r]), v_load(b + j / 16 * stride + j % 16), v_load(sums + r * cols + j)));
}

/* `fip`: by the fast inner product, on panels whose lines follow each other. */
static inline __attribute__((always_inline)) void gemm_panels(const bool fip, const size_t rows, const size_t panels,
                                                              const struct lathe_gemm_f32_tile *tile, const float *b,
                                                              float *c, size_t cols) {
    const size_t vectors = panels * GEMM_VP;
    vf acc[GEMM_MR][GEMM_MAX_VECTORS];
    size_t ldc = tile->ldc;
    bool whole = cols == panels * 16;
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            acc[r][v] = v_set1(0.0f);
            if (fip && !tile->accumulate)
                acc[r][v] = v_set1(tile->row_first[r]) + v_load(tile->col_first + (c - tile->c) + v * VN);
        }
    }
    /* Through a buffer where columns are missing, and for epilogues: lines of C far apart may share one set of the
     * first cache. */
    float sums[GEMM_MR * 16 * GEMM_MAX_VECTORS / GEMM_VP] __attribute__((aligned(64)));
    if (tile->accumulate) {
        const float *from = c;
        size_t ld = ldc;
        if (!whole) {
            gemm_copy(rows, cols, c, ldc, sums, panels * 16);
            from = sums;
            ld = panels * 16;
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                acc[r][v] = v_load(from + r * ld + v * VN);
        }
    }
    /* Lines of B are asked for early: those that the caller names; else this group's own, `ahead` steps before their
     * turn, and in the last steps those of the next group, or of the last one once more: what is behind it is nothing
     * that this thread needs. */
    size_t k = tile->k, stride = tile->panel_stride, ahead = fip ? GEMM_FIP_AHEAD : GEMM_AHEAD(rows, panels);
    size_t turn = tile->fetch ? k : k > ahead ? k - ahead : 0, step = tile->fetch ? tile->fetch_step : tile->ldb;
    const bool last_group = (size_t)(c - tile->c) + panels * 16 >= tile->cols;
    const float *fetch = tile->fetch ? tile->fetch : b + ahead * tile->ldb, *a = tile->a,
                *next_group = last_group ? b : b + panels * stride;
    turn -= fip && turn < k ? turn % 3 : 0;
    for (size_t t = 0, end = turn; t < k; t = end, end = k, fetch = next_group) {
        if (fip)
            gemm_fip_steps(rows, panels, end - t, a, tile->lda, b, stride, fetch, step, acc);
        else
            gemm_steps(rows, panels, end - t, a, tile->lda, b, tile->ldb, stride, fetch, step, acc);
        a += (end - t) * tile->lda;
        b += (end - t) * tile->ldb;
    }
    /* The sums of large tiles take a bias, or what changes nothing, on their way to C: 1 % of such a layer. */
    const struct lathe_gemm_epilogue *e = tile->epilogue;
    size_t column = (size_t)(c - tile->c);
    bool simple = rows * panels >= GEMM_MANY && e && e->activation == LATHE_ACT_NONE && !e->residual && e->scale == 1 &&
                  !e->row_scale;
    bool direct = whole && (!e || simple);
    float *to = direct ? c : sums;
    size_t ld = direct ? ldc : panels * 16;
    LATHE_UNROLL
    for (size_t v = 0; v < vectors; v++) {
        vf bias = v_set1(-0.0f);
        if (direct && simple && e->bias)
            bias = v_load(e->bias + column + v * VN);
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            vf x = acc[r][v];
            if (rows * panels >= GEMM_MANY)
                x = x + bias;
            v_store(to + r * ld + v * VN, x);
        }
    }
    if (fip && k % 3) /* then it is the last of the blocks of k, with an epilogue */
        gemm_fip_rest(rows, panels * 16, k % 3, a - k % 3 * tile->lda, tile->lda, b - k % 3 * 16, stride, sums);
    if (direct)
        return;
    if (e)
        gemm_finish(rows, cols, column, sums, panels * 16, c, ldc, e);
    else
        gemm_copy(rows, cols, sums, panels * 16, c, ldc);
}

/* All panels of a tile of `rows` rows (a constant after inlining), `width` at a time. */
static inline __attribute__((always_inline)) void gemm_rows(const size_t rows, const size_t width,
                                                            const struct lathe_gemm_f32_tile *tile) {
    size_t panels = (tile->cols + 15) / 16;
    for (size_t p = 0; p < panels;) {
        size_t n = panels - p >= width ? width : 1;
        const float *b = tile->b + p * tile->panel_stride;
        float *c = tile->c + p * 16;
        size_t cols = tile->cols - p * 16 < n * 16 ? tile->cols - p * 16 : n * 16;
        if (n == width)
            gemm_panels(false, rows, width, tile, b, c, cols);
        else
            gemm_panels(false, rows, 1, tile, b, c, cols);
        p += n;
    }
}
#endif
