/* gemm_bf16 in plain C: the meaning of kernel_bf16.h word for word. */
#include "vec_plain.h"

#include "gemm_bf16_body.h"
#include "kernel_rows.h"

#define MR 4

static void sums_of_panel(const struct lathe_gemm_bf16_tile *tile, size_t row, const uint16_t *b, float *sums) {
    float acc[16] = {0};
    const char *a = tile->a + row * tile->lda;
    for (size_t t = 0; t < tile->k; t += 2, b += 32) {
        float pair[2];
        memcpy(pair, a + t * sizeof *pair, sizeof pair);
        for (size_t j = 0; j < 16; j++)
            acc[j] += pair[1] * v_from_bits((uint32_t)b[2 * j + 1] << 16);
        for (size_t j = 0; j < 16; j++)
            acc[j] += pair[0] * v_from_bits((uint32_t)b[2 * j] << 16);
    }
    memcpy(sums, acc, sizeof acc);
}

void lathe_gemm_bf16_4x16__c(const struct lathe_gemm_bf16_tile *tile) {
    for (size_t j = 0; j < tile->cols; j += 16) {
        float sums[MR * 16];
        for (size_t r = 0; r < tile->rows; r++)
            sums_of_panel(tile, r, tile->b + j / 16 * tile->panel_stride, sums + r * 16);
        bf16_finish(tile, j, tile->cols - j < 16 ? tile->cols - j : 16, sums, 16);
    }
}

void lathe_convert_bf16__c(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda) {
    for (size_t r = 0; r < count; r++) {
        char *out = a + r * lda;
        for (size_t i = 0; i < k; i++) {
            uint32_t bits = lathe_bf16_round(x[r * ldx + i]);
            memcpy(out + i * 4, &bits, 4);
        }
        memset(out + k * 4, 0, k % 2 * 4);
    }
}
