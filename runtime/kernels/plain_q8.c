/* The 8-bit families in plain C: what every other row must equal, integers bit for bit. */
#include "veci_plain.h"

#include "gemm_q8_finish_body.h"
#include "kernel_rows.h"
#include "quantize_body.h"

static void sums_of_panel(const struct lathe_gemm_q8_tile *tile, size_t row, const int8_t *b, int32_t *sums) {
    int32_t acc[16] = {0};
    const uint8_t *a = tile->a + row * tile->lda;
    for (size_t t = 0; t < tile->k; t += 4, b += 64)
        for (size_t j = 0; j < 16; j++)
            for (size_t i = 0; i < 4; i++)
                acc[j] += a[t + i] * b[j * 4 + i];
    memcpy(sums, acc, sizeof acc);
}

void lathe_gemm_u8s8_4x16__c(const struct lathe_gemm_q8_tile *tile) {
    for (size_t j = 0; j < tile->cols; j += 16) {
        int32_t sums[4 * 16];
        for (size_t r = 0; r < tile->rows; r++)
            sums_of_panel(tile, r, tile->b + j / 16 * tile->panel_stride, sums + r * 16);
        q8_finish(tile, j, tile->cols - j < 16 ? tile->cols - j : 16, sums, 16);
    }
}

void lathe_quantize_rows_u8__c(const struct lathe_quantize_rows *rows) {
    for (size_t r = 0; r < rows->count; r++) {
        const float *x = rows->x + r * rows->ldx;
        uint8_t *q = rows->q + r * rows->ldq;
        float lo = 0, hi = 0, bad = 0;
        for (size_t i = 0; i < rows->k; i++) {
            float v = rows->x_scale ? x[i] * rows->x_scale[i] : x[i];
            lo = v_min(v, lo);
            hi = v_max(v, hi);
            bad += v * 0.0f;
        }
        struct row_range range = row_range(lo, hi, bad, rows->levels);
        rows->scale[r] = range.scale;
        rows->zero[r] = range.zero;
        size_t padded = (rows->k + 3) / 4 * 4, i = 0;
        if (range.inverse != 0.0f)
            for (; i < rows->k; i++)
                q[i] = quantized(rows->x_scale ? x[i] * rows->x_scale[i] : x[i], &range, rows->levels);
        memset(q + i, 0, padded - i);
    }
}
