/* gemm_bf16 for AVX2 with FMA: 6 rows x 16 columns; B is widened by a shift or a mask, A lies widened. */
#include "vec_avx2.h"

#include <string.h>

#define BF16_HALVES 2
#define BF16_A_STEP 8
typedef __m256 bf16_a;
typedef __m256 bf16_b;
static inline bf16_a bf16_load_a(const char *p, int half) {
    float x;
    memcpy(&x, p + (half == 0 ? 4 : 0), 4);
    return _mm256_set1_ps(x);
}
static inline bf16_b bf16_load_b(const uint16_t *p, int half) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_castsi256_ps(half == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(-65536))
                                         : _mm256_slli_epi32(pairs, 16));
}
static inline vf bf16_dot(vf acc, bf16_a a, bf16_b b) {
    return _mm256_fmadd_ps(a, b, acc);
}

#define BF16_MR                  6
#define BF16_REACH               512 /* lines of B in flight, times the rows that use them */
#define BF16_AHEAD(rows, panels) (BF16_REACH / ((rows) * (panels)) < 16 ? 16 : BF16_REACH / ((rows) * (panels)))
#include "gemm_bf16_body.h"
#include "kernel_rows.h"

void lathe_gemm_bf16_6x16__avx2(const struct lathe_gemm_bf16_tile *tile) {
    switch (tile->rows) {
        BF16_CASE(1, 4)
        BF16_CASE(2, 2)
        BF16_CASE(3, 2)
        BF16_CASE(4, 1)
        BF16_CASE(5, 1)
        BF16_CASE(6, 1)
    default:
        return;
    }
}

void lathe_convert_bf16__avx2(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda) {
    const __m256i upper = _mm256_set1_epi32(-65536), most = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    for (size_t r = 0; r < count; r++) {
        const float *from = x + r * ldx;
        char *out = a + r * lda;
        size_t i = 0;
        for (; i + VN <= k; i += VN) {
            __m256 v = _mm256_loadu_ps(from + i);
            __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
            __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(most, odd));
            __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
            rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
            _mm256_storeu_si256((__m256i *)(void *)(out + i * 4), _mm256_and_si256(rounded, upper));
        }
        for (; i < k; i++) {
            uint32_t bits = lathe_bf16_round(from[i]);
            memcpy(out + i * 4, &bits, 4);
        }
        memset(out + k * 4, 0, k % 2 * 4);
    }
}
