/* attention_q8 for AVX-512 with VNNI: 32 queries by 8 keys or columns, 16 sums in registers. */
#include "veci_avx512.h"

#include "attention_q8_scheme.h"

#define AQ8_NAME    lathe_attention_q8__avx512vnni
#define AQ8_CPD     4
#define AQ8_TILE    8
#define AQ8_OVERLAP 1
#define AQ8_BY      1

/* Bytes of a lane of 16 are 4 of each vector; put beside each other what belongs to a word. */
static inline vi words_in_order(vi x) {
    return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400));
}
static inline void aq8_store_key(int32_t *p, vf x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtusepi32_epi8(vi_round(x)));
}
static inline vi aq8_join(const vi x[4]) {
    return words_in_order(_mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3])));
}
/* One of 64, of y modulo 64. */
#define POWER(i)     LATHE_Q8_POWER((i) << (16 - LATHE_Q8_STEEP))
#define POWERS_4(i)  POWER(i), POWER(i + 1), POWER(i + 2), POWER(i + 3)
#define POWERS_16(i) POWERS_4(i), POWERS_4(i + 4), POWERS_4(i + 8), POWERS_4(i + 12)
static const uint16_t powers[64] = {POWERS_16(0), POWERS_16(16), POWERS_16(32), POWERS_16(48)};
static inline vi exp2_16(vi y) {
    vi e = _mm512_permutex2var_epi16(_mm512_loadu_si512(powers), y, _mm512_loadu_si512(powers + 32));
    return _mm512_srlv_epi16(e, _mm512_srli_epi16(y, LATHE_Q8_STEEP));
}
static inline vi exp2_fine(vi y) {
    vi f = _mm512_slli_epi16(y, 16 - LATHE_Q8_FINE_STEEP);
    vi slope = _mm512_sub_epi16(_mm512_set1_epi16((int16_t)LATHE_Q8_EXP2_1),
                                _mm512_mulhi_epu16(f, _mm512_set1_epi16(LATHE_Q8_EXP2_2)));
    vi e = _mm512_sub_epi16(_mm512_set1_epi16((int16_t)LATHE_Q8_WEIGHT), _mm512_mulhi_epu16(f, slope));
    return _mm512_srlv_epi16(e, _mm512_srli_epi16(y, LATHE_Q8_FINE_STEEP));
}
static inline void aq8_weigh(const bool fine, const vi y[4], vi e[2]) {
    vi a = _mm512_packus_epi32(y[0], y[1]), b = _mm512_packus_epi32(y[2], y[3]);
    e[0] = fine ? exp2_fine(a) : exp2_16(a);
    e[1] = fine ? exp2_fine(b) : exp2_16(b);
}
static inline vi aq8_add16(vi a, vi b) {
    return _mm512_add_epi16(a, b);
}
static inline vi aq8_low(vi e) {
    return _mm512_and_si512(e, _mm512_set1_epi16(0xff));
}
/* Of a lane of 16 bytes, pairs of bytes are of the first and third key, then of the second and fourth. */
static inline vi pairs_in_order(vi x) {
    return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0f070e06, 0x0d050c04, 0x0b030a02, 0x09010800));
}
static inline void aq8_words_high(const vi e[2], vi *words) {
    words[0] = _mm512_srli_epi16(e[0], 8);
    words[0] = pairs_in_order(_mm512_ternarylogic_epi32(words[0], e[1], _mm512_set1_epi16((int16_t)0xff00), 0xf8));
}
static inline void aq8_words_low(const vi e[2], vi *words) {
    words[0] = _mm512_slli_epi16(e[1], 8);
    words[0] = pairs_in_order(_mm512_ternarylogic_epi32(words[0], e[0], _mm512_set1_epi16(0xff), 0xf8));
}
static inline vi aq8_dot_key(vi acc, vi key, vi query) {
    return _mm512_dpbusd_epi32(acc, key, query);
}
static inline vi aq8_dot_value(vi acc, vi weights, vi values) {
    return _mm512_dpbusd_epi32(acc, weights, values);
}
#include "attention_q8_body.h"
