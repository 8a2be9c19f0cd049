/* 8-bit products for AVX2. Activations of 7 bits: bytes multiplied and added in pairs of 16 bits, 127 * 127 * 2 fits.
 * Activations of 8 bits: both widened to 16 bits, so that nothing saturates. */
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
#define Q8_NAME(x) wide_##x /* of blocks, below */

/* ---- 8 bits: 6 rows x 8 columns, a panel in two turns. What is neither product nor sum costs as much as a product
 * here: the bytes of A are widened once a tile, those of B serve six rows, and a product leaves two sums a column,
 * which are added up at the end. One core of Zen 5, us of 64 x 768 x 768, 64 x 384 x 384, 128 x 384 x 1536 with GELU:
 * 444, 109, 891 by 4 rows x 16 columns that widen A and B as they multiply (72 % of the peak of two products and two
 * sums), 400, 99, 820 so (82 %). */
#define WIDE_MR   6
#define WIDE_COLS 32
#define WIDE_K    1024          /* steps that are widened at a time */
#define WIDE_LD   (WIDE_K + 32) /* not the same sets of the first cache for all rows */

/* Steps [t, t + n) of all rows of a tile. */
static __attribute__((noinline)) void wide_bytes(const struct lathe_gemm_q8_tile *tile, size_t t, size_t n,
                                                 int16_t *out) {
    for (size_t r = 0; r < tile->rows; r++, out += WIDE_LD) {
        const uint8_t *a = tile->a + r * tile->lda + t;
        size_t i = 0;
        LATHE_NO_UNROLL
        for (; i + 16 <= n; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(out + i),
                                _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(a + i))));
        for (; i < n; i += 4) /* n is a multiple of 4 */
            _mm_storel_epi64((__m128i *)(void *)(out + i),
                             _mm_cvtepu8_epi16(_mm256_castsi256_si128(four_bytes(a + i))));
    }
}

/* Sums of 8 columns over n steps of k, added to those that are there but for the first ones. */
static inline __attribute__((always_inline)) void wide_turn(const size_t rows, const int16_t *a, size_t n,
                                                            const int8_t *b, const int8_t *fetch, size_t step,
                                                            bool first, int32_t *sums) {
    vi acc[WIDE_MR][2];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = vi_set1(0);
    for (const int16_t *end = a + n; a < end; a += 4, b += 64, fetch += step) {
        __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)b));
        __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(b + 16)));
        __builtin_prefetch(fetch, 0, 3);
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            __m256i av = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(a + r * WIDE_LD)));
            acc[r][0] = vi_add(acc[r][0], _mm256_madd_epi16(av, low));
            acc[r][1] = vi_add(acc[r][1], _mm256_madd_epi16(av, high));
            /* row after row, or the compiler has no registers left for the sums */
            __asm__("" : "+r"(a), "+x"(acc[r][0]), "+x"(acc[r][1]));
        }
    }
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][0], acc[r][1]), 0xd8);
        vi_store(sums + r * WIDE_COLS, first ? sum : vi_add(sum, vi_load(sums + r * WIDE_COLS)));
    }
}

static inline __attribute__((always_inline)) void wide_rows(const size_t rows, const struct lathe_gemm_q8_tile *tile) {
    int16_t a[WIDE_MR * WIDE_LD] __attribute__((aligned(64)));
    int32_t sums[WIDE_MR * WIDE_COLS] __attribute__((aligned(64)));
    size_t stride = tile->panel_stride, step = tile->fetch ? tile->fetch_step : 64, held = SIZE_MAX;
    for (size_t j = 0; j < tile->cols; j += WIDE_COLS) {
        size_t left = tile->cols - j < WIDE_COLS ? tile->cols - j : WIDE_COLS;
        for (size_t t = 0; t < tile->k || t == 0; t += WIDE_K) {
            size_t n = tile->k - t < WIDE_K ? tile->k - t : WIDE_K;
            if (held != t)
                wide_bytes(tile, t, n, a);
            held = t;
            /* a turn over half a panel asks for half of the lines of the next */
            for (size_t i = 0; i < left; i += 8) {
                size_t panel = (j + i) / 16 * stride;
                const int8_t *b = tile->b + panel + t * 16 + i % 16 * 4;
                const int8_t *next_group = tile->b + panel + (j + WIDE_COLS < tile->cols ? WIDE_COLS / 16 * stride : 0);
                const int8_t *fetch = tile->fetch ? tile->fetch + panel : next_group;
                wide_turn(rows, a, n, b, fetch + (t + i % 16 * n / 16) / 4 * step, step / 2, t == 0, sums + i);
            }
        }
        q8_finish(tile, j, left, sums, WIDE_COLS);
    }
}
#define WIDE_CASE(rows)                                                                                                \
    case rows:                                                                                                         \
        wide_rows(rows, tile);                                                                                         \
        return;

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

void lathe_gemm_u8s8_6x32__avx2(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        WIDE_CASE(1)
        WIDE_CASE(2)
        WIDE_CASE(3)
        WIDE_CASE(4)
        WIDE_CASE(5)
        WIDE_CASE(6)
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
