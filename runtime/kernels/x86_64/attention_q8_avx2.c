/* attention_q8 for AVX2: keys and queries in 16 bits too, products in pairs. */
#include "attention_q8_avx2.h"

#define AQ8_NAME lathe_attention_q8__avx2
#define AQ8_CPD  2
static inline vi aq8_pack_key(const vf x[2]) {
    return aq8_pack_words(x);
}
static inline vi aq8_pack_query(const vf x[2]) {
    return aq8_pack_words(x);
}
static inline vi aq8_dot_pair(vi acc, vi a, vi b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
static inline vi aq8_dot_key(vi acc, vi keys, vi query) {
    return aq8_dot_pair(acc, keys, query);
}
#include "attention_q8_body.h"
