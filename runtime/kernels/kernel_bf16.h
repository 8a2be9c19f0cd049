/* Products in bf16: elements of x and w rounded to bf16 (half to even), products exact in f32, sums in f32.
 *
 * For each element of the result: s = 0; then for each pair t = 0, 2, 4, ... of k (k padded to even with zeros)
 *   s = round(s + x[t + 1] * w[t + 1]);  s = round(s + x[t] * w[t]),
 * which is what VDPBF16PS does. A product of two bf16 numbers fits f32, so a fused and a separate multiplication give
 * the same bits, and all other rows of the table agree bit for bit where no number is denormal. The instruction takes
 * denormal operands and results as zero, the other rows compute with them: each operation may differ by 2^-126 there.
 *
 * The row on tiles (AMX) adds in the order of TDPBF16PS instead, its denormals zero too: for each 32 of k,
 *   even = odd = 0; for each pair  even = round(even + x[t] * w[t]), odd = round(odd + x[t + 1] * w[t + 1]);
 *   s = round(s + round(even + odd)).
 *
 * Weights w [k][n] lie in packing BF16_N16K2: panels of 16 columns, [k/2][16][2], k padded to even and n to 16 with
 * zeros. Weights that would round to infinity are the largest finite number. */
#ifndef LATHE_KERNEL_BF16_H
#define LATHE_KERNEL_BF16_H

#include "ops_enums.h"
#include "tensor.h"

#include <string.h>

struct lathe_gemm_epilogue;

/* c[r][j] = epilogue(sum over t of a[r][t] * w[t][j]) for up to MR rows and any number of panels. */
struct lathe_gemm_bf16_tile {
    size_t rows, cols; /* rows <= MR; whole panels are read, `cols` columns are stored */
    size_t k;          /* padded: even */
    const char *a;     /* rows as the kernel's `convert` writes them, with a stride of lda bytes */
    size_t lda;
    const uint16_t *b; /* panel p at b + p * panel_stride; packing BF16_N16K2 has panel_stride 16 * k */
    size_t panel_stride;
    const uint16_t *fetch; /* NULL, or what to bring into cache meanwhile: fetch_step elements for every pair of k, and
                              the same panel_stride further for each panel that goes through the registers */
    size_t fetch_step;
    float *c; /* row stride ldc */
    size_t ldc;
    const struct lathe_gemm_epilogue *epilogue; /* NULL: the plain sums. GELU within 2e-6 absolute */
};
typedef void (*lathe_gemm_bf16_fn)(const struct lathe_gemm_bf16_tile *tile);

/* `count` rows of k floats with stride ldx, rounded to bf16 and stored as the row of the table reads them: a_bytes an
 * element, row stride lda bytes; an odd k is padded with a zero. Writes nothing behind that. */
typedef void (*lathe_convert_bf16_fn)(size_t count, size_t k, const float *x, size_t ldx, char *a, size_t lda);

struct lathe_gemm_bf16_kernel {
    lathe_gemm_bf16_fn fn;
    lathe_convert_bf16_fn convert;
    unsigned mr, nr;  /* as in struct lathe_gemm_f32_kernel */
    unsigned a_bytes; /* 2: bf16; 4: f32 with the bits of a bf16 number, where bf16 would have to be widened */
};

/* The bits of x rounded to bf16, as the upper half of a word; NaN stays NaN. */
static inline uint32_t lathe_bf16_round(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u | 0x400000u) & 0xffff0000u;
    return (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
}
/* A weight: finite numbers stay finite. */
static inline uint16_t lathe_bf16_weight(float x) {
    uint32_t u, r = lathe_bf16_round(x);
    memcpy(&u, &x, 4);
    if ((r & 0x7fffffffu) == 0x7f800000u && (u & 0x7fffffffu) < 0x7f800000u)
        r -= 0x10000u;
    return (uint16_t)(r >> 16);
}
#endif
