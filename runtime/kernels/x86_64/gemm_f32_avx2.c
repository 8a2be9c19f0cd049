/* gemm_f32 for AVX2 with FMA: 6 rows x 16 columns, 12 sums in registers; small tiles take two or four panels at a time
 * so that enough sums are in flight. */
#include "vec_avx2.h"

#define GEMM_MR                  6
#define GEMM_MANY                6
#define GEMM_REACH               512 /* lines of B in flight, times the rows that use them */
#define GEMM_AHEAD(rows, panels) (GEMM_REACH / ((rows) * (panels)) < 16 ? 16 : GEMM_REACH / ((rows) * (panels)))
#include "gemm_body.h"
#include "gemm_pack_a_body.h"
#include "kernel_rows.h"

#define CASE(rows, width)                                                                                              \
    case rows:                                                                                                         \
        gemm_rows(rows, width, tile);                                                                                  \
        return;

void lathe_gemm_f32_6x16__avx2(const struct lathe_gemm_f32_tile *tile) {
    switch (tile->rows) {
        CASE(1, 4)
        CASE(2, 2)
        CASE(3, 2)
        CASE(4, 1)
        CASE(5, 1)
        CASE(6, 1)
    default:
        return;
    }
}

void lathe_gemm_f32_pack_a__avx2(size_t rows, size_t k, const float *a, size_t lda, float *out) {
    gemm_pack_a(rows, k, a, lda, NULL, out, rows);
}
