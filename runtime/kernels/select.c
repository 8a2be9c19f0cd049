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

/* Lines of 8-bit weights that are asked for before their turn: as many as memory needs to keep up and the first cache
 * has room for. distilbert's weights by 2 threads, AMD Zen 5, 4096 / rows lines into the second cache -> 256 into the
 * first, ms at 1, 3, 6, 8 rows: 0.305 -> 0.266, 0.377 -> 0.272, 0.412 -> 0.294, 0.415 -> 0.383; 128 lines 0.282, 0.295,
 * 0.338, 0.414. Intel Xeon of the 5th generation, one core of 25 GB/s, 256 -> 128 lines, GB/s of 8 rows at 768 x 1536,
 * 3072 x 384, 768 x 384, of 1 at 768 x 1536: 23.6 -> 24.4, 23.3 -> 23.7, 21.9 -> 23.3, 22.9 -> 23.3; 64 are a little
 * worse. */
#define LINES_AHEAD_AMD 256
#define LINES_AHEAD     128

void lathe_kernels_select(uint64_t cpu_bits, struct lathe_kernels *out) {
    memset(out, 0, sizeof *out);
    out->cpu = cpu_bits;
    const unsigned ahead = has(cpu_bits, LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS)) ? LINES_AHEAD_AMD : LINES_AHEAD;
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
        out->row = (struct lathe_gemm_q8_kernel){function, rows, columns, ahead};
#define KERNEL_GEMM_Q8B(row, function, bits, rows, columns)                                                            \
    if (has(cpu_bits, bits))                                                                                           \
        out->row = (struct lathe_gemm_q8_kernel){function, rows, columns, ahead};
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
