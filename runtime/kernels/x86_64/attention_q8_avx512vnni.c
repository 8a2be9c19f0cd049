/* attention_q8 for AVX-512 with VNNI: 14 queries by 32 keys or columns, 28 sums in registers. */
#include "veci_avx512.h"

#include "attention_q8_scheme.h"

static inline vi aq8_pack_words(const vf x[2]) {
    const vi order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(order, _mm512_packs_epi32(vi_round(x[0]), vi_round(x[1])));
}
static inline vi aq8_pack_weights(vf a, vf b) {
    return aq8_pack_words((const vf[2]){a, b});
}
static inline vi aq8_pair(vi a, vi b) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
}
static inline vf aq8_exp2(vf x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-40.0f));
    vf n = v_round(x), r = x - n;
    vf p = v_fma(v_set1(LATHE_Q8_EXP2_3), r, v_set1(LATHE_Q8_EXP2_2));
    p = v_fma(p, r, v_set1(LATHE_Q8_EXP2_1));
    return _mm512_scalef_ps(v_fma(p, r, v_set1(LATHE_Q8_EXP2_0)), n);
}

#define AQ8_ROWS    14
#define AQ8_CASES   AQ8_CASE(2) AQ8_CASE(4) AQ8_CASE(8) AQ8_CASE(14)
#define AQ8_TILE(n) ((n) <= 2 ? 2 : (n) <= 4 ? 4 : (n) <= 8 ? 8 : 14)

#define AQ8_NAME lathe_attention_q8__avx512vnni
#define AQ8_CPD  4
/* Bytes of a lane of 16 are 4 of each vector; words of 4 columns are put in order. */
static inline vi words_in_order(vi x) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}
static inline vi aq8_pack_key(const vf x[4]) {
    vi a = _mm512_packs_epi32(vi_round(x[0]), vi_round(x[1])), b = _mm512_packs_epi32(vi_round(x[2]), vi_round(x[3]));
    return words_in_order(_mm512_packus_epi16(a, b));
}
static inline vi aq8_pack_query(const vf x[4]) {
    vi a = _mm512_packs_epi32(vi_round(x[0]), vi_round(x[1])), b = _mm512_packs_epi32(vi_round(x[2]), vi_round(x[3]));
    return words_in_order(_mm512_packs_epi16(a, b));
}
static inline vi aq8_dot_key(vi acc, vi keys, vi query) {
    return _mm512_dpbusd_epi32(acc, keys, query);
}
static inline vi aq8_dot_pair(vi acc, vi a, vi b) {
    return _mm512_dpwssd_epi32(acc, a, b);
}
#include "attention_q8_body.h"
