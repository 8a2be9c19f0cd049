/* gemm_bf16 on the vector layer, included by one file an instruction set. The including file defines
 *   BF16_HALVES             1: one step multiplies a pair of k; 2: the second of the pair, then the first
 *   bf16_a, bf16_load_a(p, half)  an element of A (HALVES 1: a pair) for all lanes
 *   bf16_b, bf16_load_b(p, half)  the same of VN columns of B
 *   bf16_dot(acc, a, b)
 *   BF16_A_STEP             bytes of a pair in A
 *   BF16_MR                 the most rows of a tile
 *   BF16_AHEAD(rows, panels)  how many pairs of k ahead lines of B are asked for
 * The sums stay in registers while k runs, as in gemm_body.h. BF16_CASE(rows, width) is a case of the switch over the
 * rows of a tile. */
#ifndef LATHE_GEMM_BF16_BODY_H
#define LATHE_GEMM_BF16_BODY_H

#include "activate_body.h"
#include "kernel.h"
#include "unroll.h"

#define BF16_VP          (16 / VN) /* vectors a panel */
#define BF16_MAX_VECTORS 8
#define BF16_CASE(rows, width)                                                                                         \
    case rows:                                                                                                         \
        bf16_rows(rows, width, tile);                                                                                  \
        return;

/* c = epilogue(sums) for one activation; sums lie in lines of `ld` and begin with `column` of the tile. */
static inline __attribute__((always_inline)) void bf16_finish_rows(enum lathe_activation activation, size_t cols,
                                                                   size_t column, const float *sums, size_t ld,
                                                                   const struct lathe_gemm_bf16_tile *tile) {
    const struct lathe_gemm_epilogue *e = tile->epilogue;
    for (size_t j = 0; j < cols; j += VN) {
        size_t n = cols - j < VN ? cols - j : VN, at = column + j;
        bool whole = n == VN;
        vf scale = v_set1(e->scale), bias = v_set1(0.0f);
        if (e->bias)
            bias = whole ? v_load(e->bias + at) : v_load_n(e->bias + at, n);
        for (size_t r = 0; r < tile->rows; r++) {
            vf x = v_load(sums + r * ld + j);
            if (e->scale != 1.0f)
                x = x * scale;
            if (e->bias)
                x = x + bias;
            x = v_activate_coarse(activation, e->alpha, x);
            if (e->residual) {
                const float *residual = e->residual + r * e->ldr + at;
                x = v_join(e->gate, x, whole ? v_load(residual) : v_load_n(residual, n));
            }
            if (whole)
                v_store(tile->c + r * tile->ldc + at, x);
            else
                v_store_n(tile->c + r * tile->ldc + at, x, n);
        }
    }
}

static __attribute__((noinline)) void bf16_finish(const struct lathe_gemm_bf16_tile *tile, size_t column, size_t cols,
                                                  const float *sums, size_t ld) {
    if (!tile->epilogue) {
        for (size_t r = 0; r < tile->rows; r++)
            for (size_t j = 0; j < cols; j += VN)
                v_store_n(tile->c + r * tile->ldc + column + j, v_load(sums + r * ld + j),
                          cols - j < VN ? cols - j : VN);
        return;
    }
    switch (tile->epilogue->activation) {
    case LATHE_ACT_NONE:
        bf16_finish_rows(LATHE_ACT_NONE, cols, column, sums, ld, tile);
        break;
    case LATHE_ACT_GELU:
        bf16_finish_rows(LATHE_ACT_GELU, cols, column, sums, ld, tile);
        break;
    default:
        bf16_finish_rows(tile->epilogue->activation, cols, column, sums, ld, tile);
        break;
    }
}

#ifdef BF16_HALVES
static inline __attribute__((always_inline)) void bf16_panels(const size_t rows, const size_t panels,
                                                              const struct lathe_gemm_bf16_tile *tile, size_t column,
                                                              size_t cols) {
    const size_t vectors = panels * BF16_VP;
    vf acc[BF16_MR][BF16_MAX_VECTORS];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            acc[r][v] = v_set1(0.0f);
    }
    /* Three rows share a pointer, so that the addresses of all rows fit the registers. */
    size_t lda = tile->lda, stride = tile->panel_stride, steps = tile->k / 2;
    const char *a[(BF16_MR + 2) / 3];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3)
        a[r / 3] = tile->a + r * lda;
    const uint16_t *b = tile->b + column / 16 * stride;
    size_t ahead = BF16_AHEAD(rows, panels), turn = steps > ahead ? steps - ahead : 0, step = 32;
    const uint16_t *fetch = b + ahead * 32, *next_group = column + panels * 16 < tile->cols ? b + panels * stride : b;
    if (tile->fetch) {
        fetch = tile->fetch;
        step = tile->fetch_step;
        turn = steps;
    }
    for (size_t t = 0, end = turn; t < steps; end = steps, fetch = next_group)
        for (; t < end; t++, b += 32, fetch += step) {
            LATHE_UNROLL
            for (int half = 0; half < BF16_HALVES; half++) {
                bf16_b bv[BF16_MAX_VECTORS];
                LATHE_UNROLL
                for (size_t v = 0; v < vectors; v++)
                    bv[v] = bf16_load_b(b + v / BF16_VP * stride + v % BF16_VP * VN * 2, half);
                if (half == 0) {
                    LATHE_UNROLL
                    for (size_t p = 0; p < panels; p++)
                        __builtin_prefetch(fetch + p * stride, 0, 2);
                }
                LATHE_UNROLL
                for (size_t r = 0; r < rows; r++) {
                    bf16_a av = bf16_load_a(a[r / 3] + r % 3 * lda, half);
                    LATHE_UNROLL
                    for (size_t v = 0; v < vectors; v++)
                        acc[r][v] = bf16_dot(acc[r][v], av, bv[v]);
                }
            }
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r += 3) {
                a[r / 3] += BF16_A_STEP;
                __asm__("" : "+r"(a[r / 3])); /* or the compiler makes a pointer of every row and spills them */
            }
        }
    /* Through a buffer: activations need registers, and lines of C far apart may share one set of the first cache. */
    float sums[BF16_MR * VN * BF16_MAX_VECTORS] __attribute__((aligned(64)));
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            v_store(sums + (r * vectors + v) * VN, acc[r][v]);
    }
    bf16_finish(tile, column, cols, sums, panels * 16);
}

/* All panels of a tile of `rows` rows (a constant after inlining), `width` at a time, the rest one by one, or by twos
 * where the CPU has such products: elsewhere columns that are no multiple of a tile's are not worth the code. */
static inline __attribute__((always_inline)) void bf16_rows(const size_t rows, const size_t width,
                                                            const struct lathe_gemm_bf16_tile *tile) {
    for (size_t j = 0; j < tile->cols;) {
        size_t left = tile->cols - j, panels = (left + 15) / 16;
        if (panels >= width) {
            bf16_panels(rows, width, tile, j, left < width * 16 ? left : width * 16);
            j += width * 16;
        } else if (width > 2 && BF16_HALVES == 1 && panels >= 2) {
            bf16_panels(rows, 2, tile, j, left < 32 ? left : 32);
            j += 32;
        } else {
            bf16_panels(rows, 1, tile, j, left < 16 ? left : 16);
            j += 16;
        }
    }
}
#endif
#endif
