/* 8-bit products for AVX-512 without VNNI, in the two ways of q8_avx2.c on registers twice as long. */
#include "veci_avx512.h"

#include "kernel_rows.h"

#include <string.h>

static inline __m512i four_bytes(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

/* ---- 7 bits */
typedef __m512i pairs_a, pairs_b;
static inline pairs_a pairs_load_a(const uint8_t *p) {
    return four_bytes(p);
}
static inline pairs_b pairs_load_b(const int8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi pairs_dot(vi acc, pairs_a a, pairs_b b) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
}

/* ---- 8 bits */
typedef struct {
    __m512i even, odd;
} wide_a, wide_b;
static inline wide_a wide_load_a(const uint8_t *p) {
    __m512i four = four_bytes(p), low = _mm512_set1_epi16(255);
    return (wide_a){_mm512_and_si512(four, low), _mm512_srli_epi16(four, 8)};
}
static inline wide_b wide_load_b(const int8_t *p) {
    __m512i both = _mm512_loadu_si512(p);
    return (wide_b){_mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8), _mm512_srai_epi16(both, 8)};
}
static inline vi wide_dot(vi acc, wide_a a, wide_b b) {
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(a.even, b.even));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a.odd, b.odd));
}

#define Q8_MR 8

#define Q8_NAME(x) pairs_##x
#include "gemm_q8_body.h"
#undef Q8_NAME
#define Q8_NAME(x) wide_##x
#include "gemm_q8_body.h"

/* ---- 4 groups in 16 bits: 8 rows x 32 columns; few rows take more columns. One core of Zen 5, us and share of the
 * peak of the scheme (here 780 GOPS, of gemm_u7s8 520, on AVX2 400): 8 x 768 x 768   64 x 768 x 768   128 x 768 x 3072
 * 64 x 384 x 384   128 x 384 x 1536 gemm_u7s8               18.9   98 %     157   92 %       1240   93 %        40.5 91
 * %      314   92 % gemm_sum4               13.2   92 %     107   92 %        842   91 %        28.1   88 %      226 86
 * % gemm_sum4 by AVX2       25.9   96 %     212   96 %       1737   91 %        54.0   88 %      450   85 % */
typedef __m512i sums_a, sums_b;
static inline sums_a sums_load_a(const uint8_t *p) {
    return four_bytes(p);
}
static inline sums_b sums_load_b(const int8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi sums_product(sums_a a, sums_b b) {
    return _mm512_maddubs_epi16(a, b);
}
static inline vi sums_add(vi s, vi t) {
    return _mm512_add_epi16(s, t);
}
static inline vi sums_widen(vi acc, vi s) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(s, _mm512_set1_epi16(1)));
}
#define SUMS_MR            8
#define SUMS_REST          lathe_gemm_u7s8_8x32__avx512
#define SUMS_VECTORS(rows) ((rows) <= 2 ? 4 : 2)
#define SUMS               4
#define SUMS_NAME(x)       sum4_##x
#include "gemm_q8_sums_body.h"

void lathe_gemm_u7s8_8x32__avx512(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(pairs, 1, 4)
        Q8_CASE(pairs, 2, 4)
        Q8_CASE(pairs, 3, 2)
        Q8_CASE(pairs, 4, 2)
        Q8_CASE(pairs, 5, 2)
        Q8_CASE(pairs, 6, 2)
        Q8_CASE(pairs, 7, 2)
        Q8_CASE(pairs, 8, 2)
    default:
        return;
    }
}

void lathe_gemm_u8s8_8x32__avx512(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(wide, 1, 4)
        Q8_CASE(wide, 2, 4)
        Q8_CASE(wide, 3, 2)
        Q8_CASE(wide, 4, 2)
        Q8_CASE(wide, 5, 2)
        Q8_CASE(wide, 6, 2)
        Q8_CASE(wide, 7, 2)
        Q8_CASE(wide, 8, 2)
    default:
        return;
    }
}

void lathe_gemm_u8s8_sum4_8x32__avx512(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        SUMS_CASE(sum4, 1)
        SUMS_CASE(sum4, 2)
        SUMS_CASE(sum4, 3)
        SUMS_CASE(sum4, 4)
        SUMS_CASE(sum4, 5)
        SUMS_CASE(sum4, 6)
        SUMS_CASE(sum4, 7)
        SUMS_CASE(sum4, 8)
    default:
        return;
    }
}
