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

/* ---- weights with scales a block */

/* Number t of a column's block of 8 or 4 steps, which begins at b. */
static int32_t weight_at(const int8_t *b, size_t t, size_t j, bool halves) {
    if (!halves)
        return b[t / 4 * 64 + j * 4 + t % 4];
    uint8_t byte = (uint8_t)b[t / 8 * 64 + j * 4 + t % 4];
    return (byte >> (t % 8 / 4 * 4) & 15) - 8;
}

/* The f32 sum over the blocks of column j of the tile. */
static float sum_of_blocks(const struct lathe_gemm_q8_tile *tile, size_t row, size_t j) {
    const struct lathe_gemm_q8_blocks *w = tile->blocks;
    const uint8_t *a = tile->a + row * tile->lda;
    const int8_t *b = tile->b + j / 16 * tile->panel_stride;
    float sum = 0;
    for (size_t i = 0; i < w->count; i++) {
        size_t cell = (j / 16 * w->count + i) * 16 + j % 16, end = (i + 1) * w->block;
        int32_t shift = w->halves ? 8 : 0, zero = (w->zero ? w->zero[cell] : 0) + shift, acc = 0;
        for (size_t t = i * w->block; t < end && t < tile->k; t++)
            acc += a[t] * (weight_at(b, t, j % 16, w->halves) + shift);
        uint32_t pair = (uint32_t)tile->x_sum[row * tile->ldx_sum + i];
        acc += ((int16_t)(pair & 0xffff) + 128 * (int16_t)(pair >> 16)) * zero;
        sum = v_fma((float)acc, w->scale[cell], sum);
    }
    return sum;
}

void lathe_gemm_u8s8_blocks_4x16__c(const struct lathe_gemm_q8_tile *tile) {
    const struct lathe_gemm_q8_epilogue *e = tile->epilogue;
    for (size_t r = 0; r < tile->rows; r++)
        for (size_t j = 0; j < tile->cols; j++) {
            float x = v_fnma((float)e->zero[r], tile->blocks->w_sum[j], sum_of_blocks(tile, r, j));
            x = v_activate_coarse(e->activation, e->alpha, v_fma(x, e->scale[r], e->bias ? e->bias[j] : 0.0f));
            tile->c[r * tile->ldc + j] = e->residual ? v_join(e->gate, x, e->residual[r * e->ldr + j]) : x;
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
        struct row_range range = row_range(lo, hi, bad, rows->levels, rows->even);
        rows->scale[r] = range.scale;
        rows->zero[r] = range.zero;
        size_t padded = (rows->k + 3) / 4 * 4, i = 0;
        if (range.inverse != 0.0f)
            for (; i < rows->k; i++)
                q[i] = quantized(rows->x_scale ? x[i] * rows->x_scale[i] : x[i], &range, rows->levels);
        memset(q + i, 0, padded - i);
    }
}

void lathe_fip_rows__c(const struct lathe_fip_rows *rows) {
    for (size_t r = 0; r < rows->count; r++) {
        uint8_t *q = rows->q + r * rows->ldq, own[64] = {0};
        int32_t sum = 0;
        for (size_t t = 0; t < rows->k; t++) {
            if (t % 64 == 0)
                memcpy(own, q + t, rows->k - t < 64 ? rows->k - t : 64);
            q[t] = own[rows->order[t] & 63];
            if (lathe_fip_is_pair(t, rows->k))
                q[t] = (uint8_t)((q[t] + (q[t] >> 1 & 1)) >> 1);
        }
        for (size_t t = 0; rows->x_pairs && t < rows->k; t++)
            if (lathe_fip_is_pair(t, rows->k) && t % 12 < 8) {
                q[t] = (uint8_t)(q[t] + 64);
                q[t + 4] = (uint8_t)(q[t + 4] - 64);
                sum += q[t] * (int8_t)q[t + 4];
            }
        if (rows->x_pairs)
            rows->x_pairs[r] = -sum;
        rows->scale[r] *= 2;
        rows->zero[r] /= 2;
    }
}
