/* Products of any size from the tiles of the gemm_f32 row: packs A (and B where it is not packed yet) block by block
 * into the caller's scratch, and splits the work over a team. A row of C has the same bits whatever the other rows, the
 * blocks and the number of threads are. */
#ifndef LATHE_GEMM_DRIVE_H
#define LATHE_GEMM_DRIVE_H

#include "kernel.h"

struct lathe_gemm_f32 {
    size_t m, n, k;
    const float *a; /* element (i, t) at a[i * a_row + t * a_column] */
    size_t a_row, a_column;
    const float *panels; /* B in packing F32_N16, or NULL: then element (t, j) at b[t * b_row + j * b_column] */
    const float *b;
    size_t b_row, b_column;
    float *c; /* m x n with row stride ldc; no part of an operand */
    size_t ldc;
    /* NULL, or for gemm_f32_fip, which then computes every row: minus the sums of w1 w2 of the columns, and the
     * exponent of the root of the mean square of all weights. Panels, a_column 1. */
    const float *w_pairs;
    int w_exponent;
    struct lathe_gemm_epilogue epilogue; /* bias [n], residual m x n; scale 1 with w_pairs */
};

/* Bytes that each thread needs; SIZE_MAX when that does not fit. */
size_t lathe_gemm_f32_scratch(size_t m, size_t n, size_t k, bool packed);
/* Rows [m0, m1) and columns [n0, n1) of the product, n0 a multiple of 16. */
void lathe_gemm_f32_part(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *product, size_t m0,
                         size_t m1, size_t n0, size_t n1, void *scratch);
/* The calling thread's part of the whole product. */
void lathe_gemm_f32_team(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *product,
                         const struct lathe_team *team, void *scratch);
#endif
