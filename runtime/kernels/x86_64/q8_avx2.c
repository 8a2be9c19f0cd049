/* 8-bit products for AVX2. Activations of 7 bits: bytes multiplied and added in pairs of 16 bits, 127 * 127 * 2 fits.
 * Activations of 8 bits: even and odd bytes widened to 16 bits, so that nothing saturates. */
#include "veci_avx2.h"

#include "kernel_rows.h"

#include <string.h>

static inline __m256i four_bytes(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
static inline __m256i bytes(const int8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* ---- 7 bits: 4 rows x 16 columns */
typedef __m256i pairs_a, pairs_b;
static inline pairs_a pairs_load_a(const uint8_t *p) {
    return four_bytes(p);
}
static inline pairs_b pairs_load_b(const int8_t *p) {
    return bytes(p);
}
static inline vi pairs_dot(vi acc, pairs_a a, pairs_b b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}

/* ---- 8 bits: 4 rows x 16 columns */
typedef struct {
    __m256i even, odd;
} wide_a, wide_b;
static inline wide_a wide_load_a(const uint8_t *p) {
    __m256i four = four_bytes(p), low = _mm256_set1_epi16(255);
    return (wide_a){_mm256_and_si256(four, low), _mm256_srli_epi16(four, 8)};
}
static inline wide_b wide_load_b(const int8_t *p) {
    __m256i both = bytes(p);
    return (wide_b){_mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8), _mm256_srai_epi16(both, 8)};
}
static inline vi wide_dot(vi acc, wide_a a, wide_b b) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a.even, b.even));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a.odd, b.odd));
}

#define Q8_MR 4

#define Q8_NAME(x) pairs_##x
#include "gemm_q8_body.h"
#undef Q8_NAME
#define Q8_NAME(x) wide_##x
#include "gemm_q8_body.h"

/* ---- several groups in 16 bits: 8 rows x 8 columns, a panel in two turns; few rows take more columns */
typedef __m256i sums_a, sums_b;
static inline sums_a sums_load_a(const uint8_t *p) {
    return four_bytes(p);
}
static inline sums_b sums_load_b(const int8_t *p) {
    return bytes(p);
}
static inline vi sums_product(sums_a a, sums_b b) {
    return _mm256_maddubs_epi16(a, b);
}
static inline vi sums_add(vi s, vi t) {
    return _mm256_add_epi16(s, t);
}
static inline vi sums_widen(vi acc, vi s) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
}
#define SUMS_MR            8
#define SUMS_REST          lathe_gemm_u7s8_4x16__avx2
#define SUMS_VECTORS(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define SUMS               2
#define SUMS_NAME(x)       sum2_##x
#include "gemm_q8_sums_body.h"
#undef SUMS
#undef SUMS_NAME
#define SUMS         4
#define SUMS_NAME(x) sum4_##x
#include "gemm_q8_sums_body.h"

void lathe_gemm_u7s8_4x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(pairs, 1, 4)
        Q8_CASE(pairs, 2, 2)
        Q8_CASE(pairs, 3, 1)
        Q8_CASE(pairs, 4, 1)
    default:
        return;
    }
}

void lathe_gemm_u8s8_4x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(wide, 1, 1)
        Q8_CASE(wide, 2, 1)
        Q8_CASE(wide, 3, 1)
        Q8_CASE(wide, 4, 1)
    default:
        return;
    }
}

#define ALL_ROWS(way)                                                                                                  \
    switch (tile->rows) {                                                                                              \
        SUMS_CASE(way, 1)                                                                                              \
        SUMS_CASE(way, 2)                                                                                              \
        SUMS_CASE(way, 3)                                                                                              \
        SUMS_CASE(way, 4)                                                                                              \
        SUMS_CASE(way, 5)                                                                                              \
        SUMS_CASE(way, 6)                                                                                              \
        SUMS_CASE(way, 7)                                                                                              \
        SUMS_CASE(way, 8)                                                                                              \
    default:                                                                                                           \
        return;                                                                                                        \
    }
void lathe_gemm_u8s8_sum2_8x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    ALL_ROWS(sum2)
}
void lathe_gemm_u8s8_sum4_8x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    ALL_ROWS(sum4)
}

static inline pairs_b pairs_low_b(const int8_t *p) {
    return _mm256_and_si256(pairs_load_b(p), _mm256_set1_epi8(15));
}
static inline pairs_b pairs_high_b(const int8_t *p) {
    return _mm256_and_si256(_mm256_srli_epi16(pairs_load_b(p), 4), _mm256_set1_epi8(15));
}

#define Q8B_MR     4
#define Q8B_WIDTH  1
#define Q8B_LONG   1
#define Q8B_HALVES 0
#include "gemm_q8_blocks_body.h"
#undef Q8_NAME
#define Q8_NAME(x) pairs_##x
#include "gemm_q8_blocks_body.h"
#undef Q8B_HALVES
#define Q8B_HALVES 1
#include "gemm_q8_blocks_body.h"

void lathe_gemm_u7s8_blocks_4x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    if (tile->blocks->halves)
        pairs_halves_block_tile(tile);
    else
        pairs_bytes_block_tile(tile);
}

void lathe_gemm_u8s8_blocks_4x16__avx2(const struct lathe_gemm_q8_tile *tile) {
    wide_bytes_block_tile(tile);
}
