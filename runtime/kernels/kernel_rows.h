/* Declarations of all rows of kernels.def; for kernel files, select.c, tests and the micro-benchmark. */
#ifndef LATHE_KERNEL_ROWS_H
#define LATHE_KERNEL_ROWS_H

#include "kernel.h"

#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)                                                                  \
    void function(const struct lathe_gemm_f32_tile *tile);                                                             \
    void pack(size_t rows, size_t k, const float *a, size_t lda, float *out);
#define KERNEL_GEMM_F32_FIP(function, pack, sums, bits, mr, nr, best)                                                  \
    void function(const struct lathe_gemm_f32_tile *tile);                                                             \
    void pack(size_t rows, size_t k, const float *a, size_t lda, const float *scale, float *out);                      \
    struct lathe_fip_sums sums(size_t k, const float *x);
#define KERNEL(family, type, function, bits, bound) extern __typeof__(*(type)0) function;
#define KERNEL_QUANTIZE(function, bits)             void function(const struct lathe_quantize_rows *rows);
#define KERNEL_GEMM_BF16(function, convert, bits, mr, nr, a_bytes)                                                     \
    void function(const struct lathe_gemm_bf16_tile *tile);                                                            \
    void convert(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda);
#define KERNEL_GEMM_Q8(family, function, bits, mr, nr)  void function(const struct lathe_gemm_q8_tile *tile);
#define KERNEL_GEMM_Q8B(family, function, bits, mr, nr) void function(const struct lathe_gemm_q8_tile *tile);
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
#endif
