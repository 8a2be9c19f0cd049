/* quantize_rows for AVX2. */
#include "veci_avx2.h"

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
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
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
        __m256i zero = _mm256_set1_epi16((short)range.zero), top = _mm256_set1_epi8((char)rows->levels);
        for (i = 0; i + 32 <= k; i += 32) {
            __m256i v[4];
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++)
                v[u] = _mm256_cvtps_epi32(values(x, x_scale, i + u * VN, VN) * inverse);
            __m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
            __m256i bytes = _mm256_packus_epi16(_mm256_add_epi16(a, zero), _mm256_add_epi16(b, zero));
            bytes = _mm256_permutevar8x32_epi32(_mm256_min_epu8(bytes, top), order);
            _mm256_storeu_si256((__m256i *)(void *)(q + i), bytes);
        }
        for (; i < k; i++)
            q[i] = quantized(x_scale ? x[i] * x_scale[i] : x[i], &range, rows->levels);
        for (; i < padded; i++)
            q[i] = 0;
    }
}

void lathe_quantize_rows_u8__avx2(const struct lathe_quantize_rows *rows) {
    if (rows->x_scale)
        quantize(rows, rows->x_scale);
    else
        quantize(rows, NULL);
}
