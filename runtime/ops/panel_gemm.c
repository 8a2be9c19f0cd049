#include "panel_gemm.h"

#define MAX_ROWS   32 /* of a tile, whatever the kernel could take: scratch is sized without knowing the CPU */
#define PANEL      16
#define PACK_EXTRA 16 /* floats that packing may write past the end */

size_t lathe_panel_gemm_scratch(int64_t k) {
    size_t floats;
    if (!lathe_mul_size((size_t)k, MAX_ROWS * sizeof(float), &floats) || floats > SIZE_MAX / 2)
        return 0;
    return (floats + PACK_EXTRA * sizeof(float) + 63) / 64 * 64;
}

/* One row against one panel, products in the order of k. */
static void plain_row(int64_t k, int64_t cols, const float *a, const float *b, const float *bias, float *c) {
    float sum[PANEL] = {0};
    for (int64_t t = 0; t < k; t++)
        for (int j = 0; j < PANEL; j++)
            sum[j] += a[t] * b[t * PANEL + j];
    for (int64_t j = 0; j < cols; j++)
        c[j] = bias ? sum[j] + bias[j] : sum[j];
}

void lathe_panel_gemm(const struct lathe_kernels *kernels, int64_t rows, int64_t cols, int64_t k, const float *a,
                      int64_t lda, const float *b, const float *bias, float *c, int64_t ldc, void *pack) {
    if (!kernels || !kernels->gemm_f32.fn || !kernels->gemm_f32.pack_a) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j += PANEL)
                plain_row(k, cols - j < PANEL ? cols - j : PANEL, a + r * lda, b + j * k, bias ? bias + j : NULL,
                          c + r * ldc + j);
        return;
    }
    int64_t step = kernels->gemm_f32.mr < MAX_ROWS ? kernels->gemm_f32.mr : MAX_ROWS;
    const struct lathe_gemm_epilogue epilogue = {.bias = bias, .scale = 1};
    for (int64_t r = 0; r < rows; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        kernels->gemm_f32.pack_a((size_t)n, (size_t)k, a + r * lda, (size_t)lda, pack);
        const struct lathe_gemm_f32_tile tile = {.rows = (size_t)n,
                                                 .cols = (size_t)cols,
                                                 .k = (size_t)k,
                                                 .a = pack,
                                                 .lda = (size_t)n,
                                                 .b = b,
                                                 .ldb = PANEL,
                                                 .panel_stride = (size_t)k * PANEL,
                                                 .c = c + r * ldc,
                                                 .ldc = (size_t)ldc,
                                                 .epilogue = bias ? &epilogue : NULL};
        kernels->gemm_f32.fn(&tile);
    }
}
