/* What the attention_q8 rows for AVX2, with AVX-VNNI and without, have in common. */
#ifndef LATHE_ATTENTION_Q8_AVX2_H
#define LATHE_ATTENTION_Q8_AVX2_H

#include "veci_avx2.h"

#include "attention_q8_scheme.h"

#define AQ8_TILE 4
#define AQ8_BY   0

static inline vi exp2_16(const int steep, vi y) {
    vi f = _mm256_slli_epi16(y, 16 - steep), n = _mm256_srli_epi16(y, steep), low = _mm256_set1_epi32(0xffff);
    vi slope = _mm256_sub_epi16(_mm256_set1_epi16((int16_t)LATHE_Q8_EXP2_1),
                                _mm256_mulhi_epu16(f, _mm256_set1_epi16(LATHE_Q8_EXP2_2)));
    vi e = _mm256_sub_epi16(_mm256_set1_epi16((int16_t)LATHE_Q8_WEIGHT), _mm256_mulhi_epu16(f, slope));
    vi even = _mm256_srlv_epi32(_mm256_and_si256(e, low), _mm256_and_si256(n, low));
    vi odd = _mm256_srlv_epi32(e, _mm256_srli_epi32(n, 16));
    return _mm256_blend_epi16(even, odd, 0xaa);
}
static inline void aq8_weigh(const bool fine, const vi y[4], vi e[2]) {
    const int steep = fine ? LATHE_Q8_FINE_STEEP : LATHE_Q8_STEEP;
    e[0] = exp2_16(steep, _mm256_packus_epi32(y[0], y[1]));
    e[1] = exp2_16(steep, _mm256_packus_epi32(y[2], y[3]));
}
static inline vi aq8_add16(vi a, vi b) {
    return _mm256_add_epi16(a, b);
}
static inline vi aq8_low(vi e) {
    return _mm256_and_si256(e, _mm256_set1_epi16(0xff));
}
#endif
