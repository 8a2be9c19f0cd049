/* bf16 products of any size: rows of x are rounded block by block into the caller's scratch and multiplied by the tiles
 * of the gemm_bf16 row. A row of y has the same bits whatever the other rows, the blocks and the number of threads
 * are. */
#ifndef LATHE_GEMM_BF16_DRIVE_H
#define LATHE_GEMM_BF16_DRIVE_H

#include "kernel.h"

struct lathe_gemm_bf16 {
    size_t m, n, k;
    const float *x; /* rows of k with stride ldx */
    size_t ldx;
    const uint16_t *panels; /* w in packing BF16_N16K2, or NULL: then element (t, j) at w[t * ldw + j], transposed
                               w[j * ldw + t], f32 or bf16 */
    const void *w;
    size_t ldw;
    enum lathe_dtype w_dtype;
    bool transposed;
    float *y; /* m x n with row stride ldy; no part of an operand */
    size_t ldy;
    struct lathe_gemm_epilogue epilogue; /* of the whole product */
};

/* Bytes that each thread needs; SIZE_MAX when that does not fit. */
size_t lathe_gemm_bf16_scratch(const struct lathe_kernels *kernels, size_t m, size_t n, size_t k, bool packed);
/* The calling thread's part of the product. */
void lathe_gemm_bf16_team(const struct lathe_kernels *kernels, const struct lathe_gemm_bf16 *product,
                          const struct lathe_team *team, void *scratch);
#endif
