/* What the attention_q8 rows for AVX2, with AVX-VNNI and without, have in common. */
#ifndef LATHE_ATTENTION_Q8_AVX2_H
#define LATHE_ATTENTION_Q8_AVX2_H

#include "veci_avx2.h"

#include "attention_q8_scheme.h"

static inline vi aq8_pack_words(const vf x[2]) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(vi_round(x[0]), vi_round(x[1])), 0xd8);
}
static inline vi aq8_pack_weights(vf a, vf b) {
    return aq8_pack_words((const vf[2]){a, b});
}
static inline vi aq8_pair(vi a, vi b) {
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}
static inline vf aq8_exp2(vf x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(-40.0f));
    vf n = v_round(x), r = x - n;
    vf p = v_fma(v_set1(LATHE_Q8_EXP2_3), r, v_set1(LATHE_Q8_EXP2_2));
    p = v_fma(p, r, v_set1(LATHE_Q8_EXP2_1));
    return v_scale1(v_fma(p, r, v_set1(LATHE_Q8_EXP2_0)), n);
}

#define AQ8_ROWS    6
#define AQ8_CASES   AQ8_CASE(2) AQ8_CASE(6)
#define AQ8_TILE(n) ((n) <= 2 ? 2 : 6)
#endif
