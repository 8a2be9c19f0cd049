/* attention_q8 for AVX2: everything in 16 bits, products in pairs. */
#include "attention_q8_avx2.h"

#define AQ8_NAME    lathe_attention_q8__avx2
#define AQ8_CPD     2
#define AQ8_OVERLAP 0

/* 16 bits do not bound what is no number: sums would leave the range of scores. */
static inline void aq8_store_key(int32_t *p, vf x) {
    vi key = vi_round(v_min(v_max(x, v_set1(0.0f)), v_set1(LATHE_Q8_KEY)));
    key = _mm256_permute4x64_epi64(_mm256_packs_epi32(key, key), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(key));
}
static inline vi aq8_join(const vi x[2]) {
    vi low = _mm256_set1_epi32(-128), high = _mm256_set1_epi32(127);
    vi a = _mm256_min_epi32(_mm256_max_epi32(x[0], low), high), b = _mm256_min_epi32(_mm256_max_epi32(x[1], low), high);
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}
/* Of a lane of 16 bytes, 4 words are of one key and 4 of the next. */
static inline vi pairs_in_order(vi x) {
    return _mm256_shuffle_epi8(x, _mm256_setr_epi32(0x09080100, 0x0b0a0302, 0x0d0c0504, 0x0f0e0706, 0x09080100,
                                                    0x0b0a0302, 0x0d0c0504, 0x0f0e0706));
}
static inline void aq8_words_high(const vi e[2], vi *words) {
    words[0] = pairs_in_order(_mm256_srli_epi16(e[0], 8));
    words[1] = pairs_in_order(_mm256_srli_epi16(e[1], 8));
}
static inline void aq8_words_whole(const vi e[2], vi *words) {
    const vi half = _mm256_set1_epi16(INT16_MIN);
    words[0] = pairs_in_order(_mm256_xor_si256(e[0], half));
    words[1] = pairs_in_order(_mm256_xor_si256(e[1], half));
}
static inline vi aq8_dot_value(vi acc, vi a, vi b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
static inline vi aq8_dot_key(vi acc, vi key, vi query) {
    return aq8_dot_value(acc, key, query);
}
#include "attention_q8_body.h"
