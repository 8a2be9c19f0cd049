/* gemm_bf16 for AVX-512 without BF16: 6 rows x 64 columns; B is widened by a shift or a mask, A lies widened. No target
 * is for it: artifacts of others may come, and more rows would be 18 KB of code. */
#include "vec_avx512.h"

#include <string.h>

#define BF16_HALVES 2
#define BF16_A_STEP 8
typedef __m512 bf16_a;
typedef __m512 bf16_b;
static inline bf16_a bf16_load_a(const char *p, int half) {
    float x;
    memcpy(&x, p + (half == 0 ? 4 : 0), 4);
    return _mm512_set1_ps(x);
}
static inline bf16_b bf16_load_b(const uint16_t *p, int half) {
    __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(half == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536))
                                         : _mm512_slli_epi32(pairs, 16));
}
static inline vf bf16_dot(vf acc, bf16_a a, bf16_b b) {
    return _mm512_fmadd_ps(a, b, acc);
}

#define BF16_MR                  6
#define BF16_REACH               512 /* lines of B in flight, times the rows that use them */
#define BF16_AHEAD(rows, panels) (BF16_REACH / ((rows) * (panels)) < 16 ? 16 : BF16_REACH / ((rows) * (panels)))
#include "gemm_bf16_body.h"
#include "kernel_rows.h"

void lathe_gemm_bf16_6x64__avx512(const struct lathe_gemm_bf16_tile *tile) {
    switch (tile->rows) {
        BF16_CASE(1, 4)
        BF16_CASE(2, 4)
        BF16_CASE(3, 4)
        BF16_CASE(4, 4)
        BF16_CASE(5, 4)
        BF16_CASE(6, 4)
    default:
        return;
    }
}

void lathe_convert_bf16__avx512(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda) {
    const __m512i upper = _mm512_set1_epi32(-65536), most = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    size_t padded = k + k % 2;
    for (size_t r = 0; r < count; r++) {
        const float *from = x + r * ldx;
        char *out = a + r * lda;
        for (size_t i = 0; i < padded; i += VN) {
            size_t n = padded - i < VN ? padded - i : VN;
            __m512 v = _mm512_maskz_loadu_ps(v_first(k - i < VN ? k - i : VN), from + i);
            __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
            __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(most, odd));
            rounded =
                _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
            _mm512_mask_storeu_epi32(out + i * 4, v_first(n), _mm512_and_si512(rounded, upper));
        }
    }
}
