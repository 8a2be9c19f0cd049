/* c = a b for operators that make the panels of b themselves (convolution, n-bit weights): a plain row-major, b in
 * F32_N16 panels [cols / 16][k][16]. Uses the kernel table where it has a row, else plain C. */
#ifndef LATHE_PANEL_GEMM_H
#define LATHE_PANEL_GEMM_H

#include "kernel.h"

/* Bytes of the buffer for packed rows of a; a multiple of 64, 0 on overflow. */
size_t lathe_panel_gemm_scratch(int64_t k);
/* bias: one element a column, or NULL. `pack` has lathe_panel_gemm_scratch(k) bytes. */
void lathe_panel_gemm(const struct lathe_kernels *kernels, int64_t rows, int64_t cols, int64_t k, const float *a,
                      int64_t lda, const float *b, const float *bias, float *c, int64_t ldc, void *pack);
#endif
