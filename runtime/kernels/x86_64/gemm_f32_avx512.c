/* gemm_f32 for AVX-512: 14 rows x 32 columns, 28 sums in registers; small tiles take four panels at a time so that
 * enough sums are in flight.
 *
 * Tried on tiles (AMX): each f32 as three numbers of bf16, six products for one, tiles of B made on the way; as exact
 * as these. Emerald Rapids, 768 x 768, 10^9 multiply-adds a second at 8, 64 and 128 rows: 40, 108, 134 against 63, 82,
 * 79 here; with the core's other half busy 16, 51, 52 against 50, 65, 61. All numbers of rows must have the same bits,
 * so that few rows would be slower everywhere. With two numbers each, three products, the error of a layer is 10 times
 * that of these. */
#include "vec_avx512.h"

#define GEMM_MR    14
#define GEMM_MANY  28
#define GEMM_REACH 1024 /* lines of B in flight, times the rows that use them */
/* And steps ahead: 8 and 12 rows of minilm-l6 with 64 and 42 took 0.53 and 0.69 ms, with 100 0.45 and 0.57. */
#define GEMM_LEAST 100
#define GEMM_AHEAD(rows, panels)                                                                                       \
    (GEMM_REACH / ((rows) * (panels)) < GEMM_LEAST ? GEMM_LEAST : GEMM_REACH / ((rows) * (panels)))
#include "gemm_body.h"
#include "gemm_pack_a_body.h"
#include "kernel_rows.h"

#define CASE(rows, width)                                                                                              \
    case rows:                                                                                                         \
        gemm_rows(rows, width, tile);                                                                                  \
        return;

void lathe_gemm_f32_14x32__avx512(const struct lathe_gemm_f32_tile *tile) {
    switch (tile->rows) {
        CASE(1, 4)
        CASE(2, 4)
        CASE(3, 4)
        CASE(4, 4)
        CASE(5, 4)
        CASE(6, 4)
        CASE(7, 2)
        CASE(8, 2)
        CASE(9, 2)
        CASE(10, 2)
        CASE(11, 2)
        CASE(12, 2)
        CASE(13, 2)
        CASE(14, 2)
    default:
        return;
    }
}

void lathe_gemm_f32_pack_a__avx512(size_t rows, size_t k, const float *a, size_t lda, float *out) {
    gemm_pack_a(rows, k, a, lda, NULL, out, rows);
}

/* ---- the fast inner product: 12 rows x 32 columns, of which 10 go best, as 12 want more registers than there are. Zen
 * 5, multiply-adds a cycle, operands in the first cache: 2.97 by 10 rows, 2.99 by 8, 2.85 by 12; plain products 2.05.
 */
/* What is left of the panels, row by row and one by one: that is rare, and code has its price. */
static __attribute__((noinline)) void fip_rest(const struct lathe_gemm_f32_tile *tile, size_t first) {
    for (size_t r = 0; r < tile->rows; r++) {
        struct lathe_gemm_f32_tile row = *tile;
        struct lathe_gemm_epilogue e;
        row.a += r;
        row.c += r * tile->ldc;
        row.row_first += r;
        if (tile->epilogue) {
            e = *tile->epilogue;
            e.row_scale += r;
            e.residual = e.residual ? e.residual + r * e.ldr : NULL;
            row.epilogue = &e;
        }
        for (size_t j = first; j < tile->cols; j += 16)
            gemm_panels(true, 1, 1, &row, tile->b + j / 16 * tile->panel_stride, row.c + j, 16);
    }
}

/* Columns are whole panels. */
static inline __attribute__((always_inline)) void fip_rows(const size_t rows, const size_t width,
                                                           const struct lathe_gemm_f32_tile *tile) {
    size_t j = 0;
    for (; j + width * 16 <= tile->cols; j += width * 16)
        gemm_panels(true, rows, width, tile, tile->b + j / 16 * tile->panel_stride, tile->c + j, width * 16);
    if (j < tile->cols)
        fip_rest(tile, j);
}

#define FIP_CASE(rows, width)                                                                                          \
    case rows:                                                                                                         \
        fip_rows(rows, width, tile);                                                                                   \
        return;

void lathe_gemm_f32_fip_12x32__avx512(const struct lathe_gemm_f32_tile *tile) {
    switch (tile->rows) {
        FIP_CASE(1, 4)
        FIP_CASE(2, 4)
        FIP_CASE(3, 2)
        FIP_CASE(4, 2)
        FIP_CASE(5, 2)
        FIP_CASE(6, 2)
        FIP_CASE(7, 2)
        FIP_CASE(8, 2)
        FIP_CASE(9, 2)
        FIP_CASE(10, 2)
        FIP_CASE(11, 2)
        FIP_CASE(12, 2)
    default:
        return;
    }
}

void lathe_fip_pack_a__avx512(size_t rows, size_t k, const float *a, size_t lda, const float *scale, float *out) {
    gemm_pack_a(rows, k, a, lda, scale, out, rows);
}

/* Three vectors hold whole threes; x1 are their lanes 1, 4, ..; 0, 3, ..; 2, 5, .. */
struct lathe_fip_sums lathe_fip_sums__avx512(size_t k, const float *x) {
    static const __mmask16 first[3] = {022222, 0111111, 044444};
    vf squares[3], pairs[3];
    for (size_t i = 0; i < 3; i++)
        squares[i] = pairs[i] = v_set1(0.0f);
    for (size_t t = 0; t < k; t += 48) {
        size_t left = k - t, threes = left / 3 * 3;
        vf v[4];
        v[3] = v_set1(0.0f);
        LATHE_UNROLL
        for (size_t i = 0; i < 3; i++) {
            size_t n = left < i * 16 ? 0 : left - i * 16;
            v[i] = n >= 16 ? v_load(x + t + i * 16) : v_load_n(x + t + i * 16, n);
        }
        LATHE_UNROLL
        for (size_t i = 0; i < 3; i++) {
            size_t n = threes < i * 16 ? 0 : threes - i * 16;
            __mmask16 pair = first[i] & (n >= 16 ? (__mmask16)-1 : v_first(n));
            vf next =
                _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(v[i + 1]), _mm512_castps_si512(v[i]), 1));
            squares[i] = v_fma(v[i], v[i], squares[i]);
            pairs[i] = _mm512_mask3_fmadd_ps(v[i], next, pairs[i], pair);
        }
    }
    return (struct lathe_fip_sums){_mm512_reduce_add_ps(squares[0] + squares[1] + squares[2]),
                                   _mm512_reduce_add_ps(pairs[0] + pairs[1] + pairs[2])};
}
