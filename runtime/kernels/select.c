/* Chooses one row of each family of kernels.def for a set of CPU bits. */
#include "kernel_rows.h"
#include "target.h"

#include <string.h>

static bool has(uint64_t bits, uint64_t wanted) {
    return (bits & wanted) == wanted;
}

/* The row of its family that was taken last. Out of line: it is called for each row of the table. */
static __attribute__((noinline)) void note_name(struct lathe_kernels *out, const char **family_of, const char *family,
                                                const char *function) {
    unsigned at = 0;
    while (at < out->name_count && strcmp(family_of[at], family) != 0)
        at++;
    if (at == LATHE_MAX_FAMILIES)
        return;
    family_of[at] = family;
    out->names[at] = function;
    out->name_count += at == out->name_count;
}

void lathe_kernels_select(uint64_t cpu_bits, struct lathe_kernels *out) {
    memset(out, 0, sizeof *out);
    out->cpu = cpu_bits;
    const char *gemm = "";
#define KERNEL_GEMM_F32(function, pack, bits, rows, columns)                                                           \
    if (has(cpu_bits, bits)) {                                                                                         \
        out->gemm_f32 = (struct lathe_gemm_f32_kernel){function, pack, rows, columns};                                 \
        gemm = #function;                                                                                              \
    }
#define KERNEL_GEMM_F32_FIP(function, pack, sums, bits, rows, columns, best)                                           \
    if (has(cpu_bits, bits))                                                                                           \
        out->gemm_f32_fip = (struct lathe_gemm_fip_kernel){function, pack, sums, rows, columns, best};
#define KERNEL(family, type, function, bits, bound)                                                                    \
    if (has(cpu_bits, bits))                                                                                           \
        out->family = function;
#define KERNEL_QUANTIZE(function, bits) KERNEL(quantize_rows, , function, bits, )
#define KERNEL_GEMM_BF16(function, convert, bits, rows, columns, a_bytes)                                              \
    if (has(cpu_bits, bits))                                                                                           \
        out->gemm_bf16 = (struct lathe_gemm_bf16_kernel){function, convert, rows, columns, a_bytes};
#define KERNEL_GEMM_Q8(row, function, bits, rows, columns)                                                             \
    if (has(cpu_bits, bits))                                                                                           \
        out->row = (struct lathe_gemm_q8_kernel){function, rows, columns};
#define KERNEL_GEMM_Q8B(row, function, bits, rows, columns)                                                            \
    if (has(cpu_bits, bits))                                                                                           \
        out->row = (struct lathe_gemm_q8_kernel){function, rows, columns};
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
    /* Names: the last row of a family in the table that fits is the one that was taken above. */
    out->names[0] = gemm;
    out->name_count = 1;
    const char *family_of[LATHE_MAX_FAMILIES] = {"gemm_f32"};
#define KERNEL_GEMM_F32(function, pack, bits, rows, columns)
#define KERNEL(family, type, function, bits, bound)                                                                    \
    if (has(cpu_bits, bits))                                                                                           \
        note_name(out, family_of, #family, #function);
#define KERNEL_GEMM_F32_FIP(function, pack, sums, bits, rows, columns, best) KERNEL(gemm_f32_fip, , function, bits, )
#define KERNEL_GEMM_BF16(function, convert, bits, rows, columns, a_bytes)    KERNEL(gemm_bf16, , function, bits, )
#define KERNEL_QUANTIZE(function, bits)                                      KERNEL(quantize_rows, , function, bits, )
#define KERNEL_GEMM_Q8(row, function, bits, rows, columns)                   KERNEL(row, , function, bits, )
#define KERNEL_GEMM_Q8B(row, function, bits, rows, columns)                  KERNEL(row, , function, bits, )
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
}
