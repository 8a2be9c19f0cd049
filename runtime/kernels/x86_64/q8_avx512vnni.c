/* 8-bit families for AVX-512 with VNNI: 14 rows x 32 columns, 28 sums in registers; fewer rows take more panels. */
#include "veci_avx512.h"

#include <string.h>

typedef __m512i vnni_a;
typedef __m512i vnni_b;
static inline vnni_a vnni_load_a(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline vnni_b vnni_load_b(const int8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi vnni_dot(vi acc, vnni_a a, vnni_b b) {
    return _mm512_dpbusd_epi32(acc, a, b);
}

#define Q8_MR      14
#define Q8_LATER   /* the epilogue beside the next products */
#define Q8_NAME(x) vnni_##x
#include "finish_avx512.h"
#include "gemm_q8_body.h"
#include "kernel_rows.h"

void lathe_gemm_u8s8_14x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
    case 0:
        if (tile->later)
            q8_finish_all_waiting(tile->later);
        return;
        Q8_CASE(vnni, 1, 4)
        Q8_CASE(vnni, 2, 4)
        Q8_CASE(vnni, 3, 4)
        Q8_CASE(vnni, 4, 4)
        Q8_CASE(vnni, 5, 4)
        Q8_CASE(vnni, 6, 4)
        Q8_CASE(vnni, 7, 3)
        Q8_CASE(vnni, 8, 3)
        Q8_CASE(vnni, 9, 3)
        Q8_CASE(vnni, 10, 2)
        Q8_CASE(vnni, 11, 2)
        Q8_CASE(vnni, 12, 2)
        Q8_CASE(vnni, 13, 2)
        Q8_CASE(vnni, 14, 2)
    default:
        return;
    }
}

void lathe_q8_finish__avx512vnni(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols, const int32_t *sums,
                                 size_t ld) {
    q8_finish(tile, column, cols, sums, ld);
}

static inline vnni_b vnni_low_b(const int8_t *p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15));
}
static inline vnni_b vnni_high_b(const int8_t *p) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15));
}

#define Q8B_MR     6
#define Q8B_WIDTH  2
#define Q8B_LONG   4
#define Q8B_HALVES 0
#include "gemm_q8_blocks_body.h"
#undef Q8B_HALVES
#define Q8B_HALVES 1
#include "gemm_q8_blocks_body.h"

void lathe_gemm_u8s8_blocks_6x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    if (tile->blocks->halves)
        vnni_halves_block_tile(tile);
    else
        vnni_bytes_block_tile(tile);
}
