/* gemm_f32 in plain C: 4 rows x 16 columns, arrays that the compiler keeps in what vector registers it has. */
#include "vec_plain.h"

#define GEMM_MR                  4
#define GEMM_MANY                4
#define GEMM_AHEAD(rows, panels) 16
#include "gemm_body.h"
#include "kernel_rows.h"

static inline __attribute__((always_inline)) void plain_panel(const size_t rows, const struct lathe_gemm_f32_tile *tile,
                                                              const float *b, float *c, size_t column, size_t cols) {
    float acc[GEMM_MR][16] = {{0}};
    if (tile->accumulate)
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < cols; j++)
                acc[r][j] = c[r * tile->ldc + j];
    const float *a = tile->a;
    for (size_t t = 0; t < tile->k; t++, a += tile->lda, b += tile->ldb) {
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < 16; j++)
                acc[r][j] += a[r] * b[j];
    }
    if (tile->epilogue)
        gemm_finish(rows, cols, column, acc[0], 16, c, tile->ldc, tile->epilogue);
    else
        for (size_t r = 0; r < rows; r++)
            memcpy(c + r * tile->ldc, acc[r], cols * sizeof *c);
}

void lathe_gemm_f32_4x16__c(const struct lathe_gemm_f32_tile *tile) {
    for (size_t j = 0; j < tile->cols; j += 16) {
        const float *b = tile->b + j / 16 * tile->panel_stride;
        float *c = tile->c + j;
        size_t cols = tile->cols - j < 16 ? tile->cols - j : 16;
        if (tile->rows == 4)
            plain_panel(4, tile, b, c, j, cols);
        else
            for (size_t r = 0; r < tile->rows; r++) {
                struct lathe_gemm_f32_tile one = *tile;
                struct lathe_gemm_epilogue epilogue;
                one.a += r;
                if (tile->epilogue) {
                    epilogue = *tile->epilogue;
                    epilogue.residual = epilogue.residual ? epilogue.residual + r * epilogue.ldr : NULL;
                    one.epilogue = &epilogue;
                }
                plain_panel(1, &one, b, c + r * tile->ldc, j, cols);
            }
    }
}

void lathe_gemm_f32_pack_a__c(size_t rows, size_t k, const float *a, size_t lda, float *out) {
    for (size_t t = 0; t < k; t++)
        for (size_t r = 0; r < rows; r++)
            out[t * rows + r] = a[r * lda + t];
}
