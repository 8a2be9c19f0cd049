/* quantize_rows for AVX-512. */
#include "veci_avx512.h"

#include "kernel_rows.h"
#include "quantize_body.h"
#include "unroll.h"

#include <string.h>

/* Elements [i, i + n) of a row times their column scales. */
static inline vf values(const float *x, const float *x_scale, size_t i, size_t n) {
    vf v = n == VN ? v_load(x + i) : v_load_n(x + i, n);
    if (x_scale)
        v = v * (n == VN ? v_load(x_scale + i) : v_load_n(x_scale + i, n));
    return v;
}

static inline __attribute__((always_inline)) void quantize(const struct lathe_quantize_rows *rows,
                                                           const float *x_scale) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    size_t k = rows->k, padded = (k + 3) / 4 * 4;
    for (size_t r = 0; r < rows->count; r++) {
        const float *x = rows->x + r * rows->ldx;
        uint8_t *q = rows->q + r * rows->ldq;
        vf lo[2] = {v_set1(0), v_set1(0)}, hi[2] = {v_set1(0), v_set1(0)}, bad[2] = {v_set1(0), v_set1(0)};
        size_t i = 0;
        for (; i + 2 * VN <= k; i += 2 * VN) {
            LATHE_UNROLL
            for (size_t u = 0; u < 2; u++) {
                vf v = values(x, x_scale, i + u * VN, VN);
                lo[u] = v_min(v, lo[u]);
                hi[u] = v_max(v, hi[u]);
                bad[u] = v_fma(v, v_set1(0), bad[u]);
            }
        }
        for (; i < k; i += VN) {
            vf v = values(x, x_scale, i, k - i < VN ? k - i : VN);
            lo[0] = v_min(v, lo[0]);
            hi[0] = v_max(v, hi[0]);
            bad[0] = v_fma(v, v_set1(0), bad[0]);
        }
        struct row_range range = row_range(0.0f - v_hmax(v_set1(0) - v_min(lo[0], lo[1])), v_hmax(v_max(hi[0], hi[1])),
                                           v_sum(bad[0] + bad[1]), rows->levels);
        rows->scale[r] = range.scale;
        rows->zero[r] = range.zero;
        if (range.inverse == 0.0f) {
            memset(q, 0, padded);
            continue;
        }
        vf inverse = v_set1(range.inverse);
        __m512i zero = _mm512_set1_epi16((short)range.zero), top = _mm512_set1_epi8((char)rows->levels);
        for (i = 0; i + 64 <= k; i += 64) {
            __m512i v[4];
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++)
                v[u] = _mm512_cvtps_epi32(values(x, x_scale, i + u * VN, VN) * inverse);
            __m512i a = _mm512_packs_epi32(v[0], v[1]), b = _mm512_packs_epi32(v[2], v[3]);
            __m512i bytes = _mm512_packus_epi16(_mm512_add_epi16(a, zero), _mm512_add_epi16(b, zero));
            _mm512_storeu_si512(q + i, _mm512_permutexvar_epi32(order, _mm512_min_epu8(bytes, top)));
        }
        for (; i < padded; i += 16) {
            size_t left = k - i < 16 ? k - i : 16, whole = padded - i < 16 ? padded - i : 16;
            __m512i v = _mm512_cvtps_epi32(values(x, x_scale, i, left) * inverse);
            v = _mm512_add_epi32(v, _mm512_set1_epi32(range.zero));
            v = _mm512_max_epi32(v, _mm512_setzero_si512());
            v = _mm512_min_epi32(v, _mm512_set1_epi32((int)rows->levels));
            v = _mm512_maskz_mov_epi32(v_first(left), v);
            _mm_mask_storeu_epi8(q + i, v_first(whole), _mm512_cvtepi32_epi8(v));
        }
    }
}

void lathe_quantize_rows_u8__avx512(const struct lathe_quantize_rows *rows) {
    if (rows->x_scale)
        quantize(rows, rows->x_scale);
    else
        quantize(rows, NULL);
}
