/* attention_q8 for CPUs with AVX-VNNI and no AVX-512: 16 queries by 4 keys or columns, 8 sums in registers. */
#include "attention_q8_avx2.h"

#define AQ8_NAME    lathe_attention_q8__avxvnni
#define AQ8_CPD     4
#define AQ8_OVERLAP 0

/* Bytes of a lane of 16 are 4 of each vector; put beside each other what belongs to a word. */
static inline vi words_in_order(vi x) {
    return _mm256_shuffle_epi8(x, _mm256_setr_epi32(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703, 0x0c080400,
                                                    0x0d090501, 0x0e0a0602, 0x0f0b0703));
}
static inline void aq8_store_key(int32_t *p, vf x) {
    vi key = vi_round(v_max(x, v_set1(0.0f)));
    key = _mm256_permute4x64_epi64(_mm256_packs_epi32(key, key), 0xd8);
    key = _mm256_packus_epi16(key, key);
    _mm_storel_epi64((__m128i *)(void *)p, _mm256_castsi256_si128(key));
}
static inline vi aq8_join(const vi x[4]) {
    return words_in_order(_mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3])));
}
/* Of a lane of 16 bytes, pairs of bytes are of the first and third key, then of the second and fourth. */
static inline vi pairs_in_order(vi x) {
    return _mm256_shuffle_epi8(x, _mm256_setr_epi32(0x09010800, 0x0b030a02, 0x0d050c04, 0x0f070e06, 0x09010800,
                                                    0x0b030a02, 0x0d050c04, 0x0f070e06));
}
static inline void aq8_words_high(const vi e[2], vi *words) {
    vi high = _mm256_andnot_si256(_mm256_set1_epi16(0xff), e[1]);
    words[0] = pairs_in_order(_mm256_or_si256(_mm256_srli_epi16(e[0], 8), high));
}
static inline void aq8_words_low(const vi e[2], vi *words) {
    words[0] = pairs_in_order(_mm256_or_si256(_mm256_slli_epi16(e[1], 8), aq8_low(e[0])));
}
static inline vi aq8_dot_key(vi acc, vi key, vi query) {
    return _mm256_dpbusd_avx_epi32(acc, key, query);
}
static inline vi aq8_dot_value(vi acc, vi weights, vi values) {
    return _mm256_dpbusd_avx_epi32(acc, weights, values);
}
#include "attention_q8_body.h"
