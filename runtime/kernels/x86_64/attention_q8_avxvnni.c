/* attention_q8 for CPUs with AVX-VNNI and no AVX-512: 6 queries by 16 keys or columns, 12 sums in registers. */
#include "attention_q8_avx2.h"

#define AQ8_NAME lathe_attention_q8__avxvnni
#define AQ8_CPD  4
static inline vi words_in_order(vi x) {
    return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline vi aq8_pack_key(const vf x[4]) {
    vi a = _mm256_packs_epi32(vi_round(x[0]), vi_round(x[1])), b = _mm256_packs_epi32(vi_round(x[2]), vi_round(x[3]));
    return words_in_order(_mm256_packus_epi16(a, b));
}
static inline vi aq8_pack_query(const vf x[4]) {
    vi a = _mm256_packs_epi32(vi_round(x[0]), vi_round(x[1])), b = _mm256_packs_epi32(vi_round(x[2]), vi_round(x[3]));
    return words_in_order(_mm256_packs_epi16(a, b));
}
static inline vi aq8_dot_key(vi acc, vi keys, vi query) {
    return _mm256_dpbusd_avx_epi32(acc, keys, query);
}
static inline vi aq8_dot_pair(vi acc, vi a, vi b) {
    return _mm256_dpwssd_avx_epi32(acc, a, b);
}
#include "attention_q8_body.h"
