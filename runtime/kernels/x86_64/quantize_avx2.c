/* quantize_rows for AVX2. */
#include "veci_avx2.h"

static inline void quantize_store(const __m256 v[4], int zero, unsigned top, unsigned char *out) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i offset = _mm256_set1_epi16((short)zero);
    __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
    __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(v[2]), _mm256_cvtps_epi32(v[3]));
    __m256i bytes = _mm256_packus_epi16(_mm256_add_epi16(a, offset), _mm256_add_epi16(b, offset));
    bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8((char)top));
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permutevar8x32_epi32(bytes, order));
}

#include "kernel_rows.h"
#include "quantize_rows_body.h"

void lathe_quantize_rows_u8__avx2(const struct lathe_quantize_rows *rows) {
    quantize_rows(rows);
}
