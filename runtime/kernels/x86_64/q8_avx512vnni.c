/* 8-bit families for AVX-512 with VNNI: 14 rows x 32 columns, 28 sums in registers; fewer rows take more panels. */
#include "veci_avx512.h"

#include <string.h>

typedef __m512i q8_a;
typedef __m512i q8_b;
static inline q8_a q8_load_a(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline q8_b q8_load_b(const int8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi q8_dot(vi acc, q8_a a, q8_b b) {
    return _mm512_dpbusd_epi32(acc, a, b);
}

#define Q8_MR                  14
#define Q8_REACH               512 /* lines of B in flight, times the rows that use them */
#define Q8_AHEAD(rows, panels) (Q8_REACH / ((rows) * (panels)) < 16 ? 16 : Q8_REACH / ((rows) * (panels)))
#include "gemm_q8_body.h"
#include "kernel_rows.h"

void lathe_gemm_u8s8_14x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(1, 4)
        Q8_CASE(2, 4)
        Q8_CASE(3, 4)
        Q8_CASE(4, 4)
        Q8_CASE(5, 4)
        Q8_CASE(6, 4)
        Q8_CASE(7, 3)
        Q8_CASE(8, 3)
        Q8_CASE(9, 3)
        Q8_CASE(10, 2)
        Q8_CASE(11, 2)
        Q8_CASE(12, 2)
        Q8_CASE(13, 2)
        Q8_CASE(14, 2)
    default:
        return;
    }
}
