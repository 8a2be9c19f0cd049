/* gemm_bf16 for AVX-512 with BF16: 14 rows x 32 columns, 28 sums in registers; fewer rows take more panels. */
#include "vec_avx512.h"

#include <string.h>

#define BF16_HALVES 1
#define BF16_A_STEP 4
typedef __m512bh bf16_a;
typedef __m512bh bf16_b;
static inline bf16_a bf16_load_a(const char *p, int half) {
    int32_t pair;
    (void)half;
    memcpy(&pair, p, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}
static inline bf16_b bf16_load_b(const uint16_t *p, int half) {
    (void)half;
    return (__m512bh)_mm512_loadu_si512(p);
}
static inline vf bf16_dot(vf acc, bf16_a a, bf16_b b) {
    return _mm512_dpbf16_ps(acc, a, b);
}

#define BF16_MR                  14
#define BF16_REACH               512 /* lines of B in flight, times the rows that use them */
#define BF16_AHEAD(rows, panels) (BF16_REACH / ((rows) * (panels)) < 16 ? 16 : BF16_REACH / ((rows) * (panels)))
#include "finish_avx512.h"
#include "gemm_bf16_body.h"
#include "kernel_rows.h"

void lathe_gemm_bf16_14x32__avx512bf16(const struct lathe_gemm_bf16_tile *tile) {
    switch (tile->rows) {
        BF16_CASE(1, 4)
        BF16_CASE(2, 4)
        BF16_CASE(3, 4)
        BF16_CASE(4, 4)
        BF16_CASE(5, 4)
        BF16_CASE(6, 4)
        BF16_CASE(7, 3)
        BF16_CASE(8, 3)
        BF16_CASE(9, 3)
        BF16_CASE(10, 2)
        BF16_CASE(11, 2)
        BF16_CASE(12, 2)
        BF16_CASE(13, 2)
        BF16_CASE(14, 2)
    default:
        return;
    }
}

void lathe_bf16_finish__avx512bf16(const struct lathe_gemm_bf16_tile *tile, size_t column, size_t cols,
                                   const float *sums, size_t ld) {
    bf16_finish(tile, column, cols, sums, ld);
}

void lathe_convert_bf16__avx512bf16(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda) {
    size_t padded = k + k % 2;
    for (size_t r = 0; r < count; r++) {
        const float *from = x + r * ldx;
        char *out = a + r * lda;
        for (size_t i = 0; i < padded; i += VN) {
            size_t n = padded - i < VN ? padded - i : VN;
            __m512 v = _mm512_maskz_loadu_ps(v_first(k - i < VN ? k - i : VN), from + i);
            _mm256_mask_storeu_epi16(out + i * 2, v_first(n), (__m256i)_mm512_cvtneps_pbh(v));
        }
    }
}
