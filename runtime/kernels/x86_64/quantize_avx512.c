/* quantize_rows for AVX-512. */
#include "veci_avx512.h"

static inline void quantize_store(const __m512 v[4], int zero, unsigned top, unsigned char *out) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i offset = _mm512_set1_epi16((short)zero);
    __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(v[0]), _mm512_cvtps_epi32(v[1]));
    __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(v[2]), _mm512_cvtps_epi32(v[3]));
    __m512i bytes = _mm512_packus_epi16(_mm512_add_epi16(a, offset), _mm512_add_epi16(b, offset));
    bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8((char)top));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, bytes));
}

#include "kernel_rows.h"
#include "quantize_rows_body.h"

void lathe_quantize_rows_u8__avx512(const struct lathe_quantize_rows *rows) {
    quantize_rows(rows);
}
