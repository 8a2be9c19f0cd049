/* 8-bit products for CPUs with AVX-VNNI and no AVX-512: 6 rows x 16 columns, 12 sums in registers. Share of the peak
 * (540 GOPS a core of Zen 5): 64 rows and more 87 to 90 % (K = 384 with GELU 84 %), 8 rows 83 %; tiles of 4, 5, 6 rows
 * 86, 88, 94 %. */
#include "veci_avx2.h"

#include <string.h>

typedef __m256i vnni_a, vnni_b;
static inline vnni_a vnni_load_a(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
static inline vnni_b vnni_load_b(const int8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline vi vnni_dot(vi acc, vnni_a a, vnni_b b) {
    return _mm256_dpbusd_avx_epi32(acc, a, b);
}

#define Q8_MR      6
#define Q8_NAME(x) vnni_##x
#include "gemm_q8_body.h"
#include "kernel_rows.h"

void lathe_gemm_u8s8_6x16__avxvnni(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(vnni, 1, 4)
        Q8_CASE(vnni, 2, 2)
        Q8_CASE(vnni, 3, 2)
        Q8_CASE(vnni, 4, 1)
        Q8_CASE(vnni, 5, 1)
        Q8_CASE(vnni, 6, 1)
    default:
        return;
    }
}

static inline vnni_b vnni_low_b(const int8_t *p) {
    return _mm256_and_si256(vnni_load_b(p), _mm256_set1_epi8(15));
}
static inline vnni_b vnni_high_b(const int8_t *p) {
    return _mm256_and_si256(_mm256_srli_epi16(vnni_load_b(p), 4), _mm256_set1_epi8(15));
}

#define Q8B_MR     4
#define Q8B_WIDTH  1
#define Q8B_LONG   1
#define Q8B_HALVES 0
#include "gemm_q8_blocks_body.h"
#undef Q8B_HALVES
#define Q8B_HALVES 1
#include "gemm_q8_blocks_body.h"

void lathe_gemm_u8s8_blocks_4x16__avxvnni(const struct lathe_gemm_q8_tile *tile) {
    if (tile->blocks->halves)
        vnni_halves_block_tile(tile);
    else
        vnni_bytes_block_tile(tile);
}
