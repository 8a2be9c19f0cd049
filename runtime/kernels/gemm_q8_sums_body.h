/* 8-bit products whose weights let several groups of 4 steps be added up in 16 bits (struct lathe_gemm_q8, sums): one
 * instruction less a group than products that become 32 bits wide at once. Included by one file an instruction set,
 * once for each number of groups. The including file defines SUMS_NAME(x)           way_x: what the names of this way
 * begin with SUMS                   groups that are added up, 2 or 4 SUMS_MR                the most rows of a tile
 *   SUMS_VECTORS(rows)     vectors of columns that go through the registers together, a divisor of those of a panel or
 * a multiple of it sums_a, sums_load_a(p)            4 bytes of A for all lanes sums_b, sums_load_b(p)            4
 * bytes of each of VN columns sums_product(a, b), sums_add(s, t), sums_widen(acc, s)   in 16 bits; added to the sums of
 * 32 bits The vectors of SUMS groups of B stay in registers while the rows pass by, so a tile has few columns and many
 * rows, and a panel is read in several turns, all but the first from the first cache. */
#include "gemm_q8_finish_body.h"
#include "unroll.h"

#ifndef SUMS_VP
#define SUMS_VP   (16 / VN) /* vectors a panel */
#define SUMS_MOST 4         /* vectors of columns at a time */
#define SUMS_NEAR 16384     /* bytes of a panel that the first cache has room for beside the one at work */
#define SUMS_CASE(way, rows)                                                                                           \
    case rows:                                                                                                         \
        way##_rows(rows, tile);                                                                                        \
        return;
#endif

/* Sums of `vectors` vectors of columns, the first of them at b, for all of k; `step` bytes of a cache line's neighbours
 * are asked for at `fetch` for each group. */
static inline __attribute__((always_inline)) void SUMS_NAME(turn)(const size_t rows, const size_t vectors,
                                                                  const struct lathe_gemm_q8_tile *tile,
                                                                  const int8_t *b, const int8_t *fetch, size_t step,
                                                                  int32_t *sums, size_t ld) {
    const size_t panels = (vectors + SUMS_VP - 1) / SUMS_VP, lines = SUMS * vectors / (panels * SUMS_VP);
    vi acc[SUMS_MR][SUMS_MOST];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            acc[r][v] = vi_set1(0);
    }
    /* Three rows share a pointer, so that the addresses of all rows fit the registers. */
    size_t lda = tile->lda, stride = tile->panel_stride, groups = tile->k / 4;
    const uint8_t *a[(SUMS_MR + 2) / 3];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3)
        a[r / 3] = tile->a + r * lda;
    for (size_t t = 0; t + SUMS <= groups; t += SUMS, b += SUMS * 64) {
        sums_b bv[SUMS][SUMS_MOST];
        LATHE_UNROLL
        for (size_t s = 0; s < SUMS; s++) {
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                bv[s][v] = sums_load_b(b + s * 64 + v / SUMS_VP * stride + v % SUMS_VP * VN * 4);
        }
        /* a turn over a part of a panel asks for the same part of the lines of the next */
        LATHE_UNROLL
        for (size_t s = 0; s < lines; s++) {
            LATHE_UNROLL
            for (size_t p = 0; p < panels; p++)
                __builtin_prefetch(fetch + s * step + p * stride, 0, 3);
        }
        fetch += lines * step;
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            vi sum[SUMS_MOST];
            LATHE_UNROLL
            for (size_t s = 0; s < SUMS; s++) {
                sums_a av = sums_load_a(a[r / 3] + r % 3 * lda + s * 4);
                LATHE_UNROLL
                for (size_t v = 0; v < vectors; v++)
                    sum[v] = s ? sums_add(sum[v], sums_product(av, bv[s][v])) : sums_product(av, bv[s][v]);
            }
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++) {
                acc[r][v] = sums_widen(acc[r][v], sum[v]);
#if VN == 8
                /* Or the compiler copies each to another register and back; us of 64 x 768 x 768, Zen 5, with copies
                 * and without: sum2 on AVX2 248, 223, sum4 201, 200; sum4 on AVX-512 98, 99. */
                __asm__("" : "+x"(acc[r][v]));
#endif
            }
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r += 3) {
            a[r / 3] += 4 * SUMS;
            __asm__("" : "+r"(a[r / 3])); /* or the compiler makes a pointer of every row and spills them */
        }
    }
    LATHE_NO_UNROLL
    for (size_t t = groups % SUMS; t > 0; t--, b += 64) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            sums_b one = sums_load_b(b + v / SUMS_VP * stride + v % SUMS_VP * VN * 4);
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[r][v] = sums_widen(acc[r][v], sums_product(sums_load_a(a[r / 3] + r % 3 * lda), one));
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r += 3)
            a[r / 3] += 4;
    }
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            vi_store(sums + r * ld + v * VN, acc[r][v]);
    }
}

/* Fewer columns than go through the registers together: another way with the columns from j on, and less code. */
static __attribute__((noinline)) void SUMS_NAME(rest)(const struct lathe_gemm_q8_tile *tile, size_t j) {
    struct lathe_gemm_q8_tile part = *tile;
    struct lathe_gemm_q8_epilogue e;
    part.cols -= j;
    part.b += j / 16 * tile->panel_stride;
    part.fetch = tile->fetch ? tile->fetch + j / 16 * tile->panel_stride : NULL;
    if (tile->epilogue) {
        e = *tile->epilogue;
        e.w_scale += j;
        e.w_sum += j;
        e.bias = e.bias ? e.bias + j : NULL;
        e.residual = e.residual ? e.residual + j : NULL;
        part.epilogue = &e;
        part.c += j;
    } else {
        part.sums += j;
    }
    SUMS_REST(&part);
}

/* All panels of a tile of `rows` rows, a constant after inlining. */
static inline __attribute__((always_inline)) void SUMS_NAME(rows)(const size_t rows,
                                                                  const struct lathe_gemm_q8_tile *tile) {
    const size_t vectors = SUMS_VECTORS(rows), cols = vectors > SUMS_VP ? vectors * VN : 16;
    const size_t stride = tile->panel_stride, step = tile->fetch ? tile->fetch_step : 64;
    int32_t sums[SUMS_MR * (SUMS_MOST > SUMS_VP ? SUMS_MOST * VN : 16)] __attribute__((aligned(64)));
    for (size_t j = 0; j < tile->cols; j += cols) {
        size_t left = tile->cols - j < cols ? tile->cols - j : cols;
        if (left + 16 <= cols) {
            SUMS_NAME(rest)(tile, j);
            return;
        }
        const int8_t *b = tile->b + j / 16 * stride;
        const int8_t *next_group = j + cols < tile->cols ? b + cols / 16 * stride : b;
        const int8_t *fetch = tile->fetch ? tile->fetch + j / 16 * stride : next_group;
        for (size_t v = 0; v * VN < left; v += vectors, fetch += tile->k / 4 * vectors / SUMS_VP * step)
            SUMS_NAME(turn)(rows, vectors, tile, b + v * VN * 4, fetch, step, sums + v * VN, cols);
        q8_finish(tile, j, left, sums, cols);
    }
}
