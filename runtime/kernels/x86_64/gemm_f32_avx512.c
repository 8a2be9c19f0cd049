/* gemm_f32 for AVX-512: 14 rows x 32 columns, 28 sums in registers; small tiles take four panels at a time so that
 * enough sums are in flight. */
#include "vec_avx512.h"

#define GEMM_MR                  14
#define GEMM_MANY                28
#define GEMM_REACH               1024 /* lines of B in flight, times the rows that use them */
#define GEMM_AHEAD(rows, panels) (GEMM_REACH / ((rows) * (panels)) < 16 ? 16 : GEMM_REACH / ((rows) * (panels)))
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
    gemm_pack_a(rows, k, a, lda, out, rows);
}
