/* Rows to columns on the vector layer: out[t * stride + r] = a[r * lda + t], times scale[r] unless that is NULL. */
#ifndef LATHE_GEMM_PACK_A_BODY_H
#define LATHE_GEMM_PACK_A_BODY_H

#include "unroll.h"

#if VN == 1
static inline void gemm_pack_a(size_t rows, size_t k, const float *a, size_t lda, const float *scale, float *out,
                               size_t stride) {
    for (size_t t = 0; t < k; t++)
        for (size_t r = 0; r < rows; r++)
            out[t * stride + r] = scale ? a[r * lda + t] * scale[r] : a[r * lda + t];
}
#else
/* rows <= VN, rows <= stride. Transposes VN x VN blocks in registers; whole vectors are stored in ascending order, each
 * over the surplus of the one before, so up to VN floats past the last element are written. */
static inline void gemm_pack_a(size_t rows, size_t k, const float *a, size_t lda, const float *scale, float *out,
                               size_t stride) {
    size_t t = 0;
    for (; t + VN <= k; t += VN) {
        vf block[VN];
        LATHE_UNROLL
        for (size_t r = 0; r < VN; r++) {
            block[r] = r < rows ? v_load(a + r * lda + t) : v_set1(0.0f);
            if (scale && r < rows)
                block[r] = block[r] * v_set1(scale[r]);
        }
        v_transpose(block);
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++)
            v_store(out + (t + i) * stride, block[i]);
    }
    for (; t < k; t++)
        for (size_t r = 0; r < rows; r++)
            out[t * stride + r] = scale ? a[r * lda + t] * scale[r] : a[r * lda + t];
}
#endif
#endif
