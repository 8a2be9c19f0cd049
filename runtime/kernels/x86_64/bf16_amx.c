/* gemm_bf16 on tile registers (AMX), any number of rows up to 512 a call. Few rows go the same way: a tile adds in an
 * order of its own, and a row's bits may not depend on how many there are. */
#include "finish_avx512.h"
#include "kernel_rows.h"

struct tile_work {
    const struct lathe_gemm_bf16_tile *tile;
    float sums[32 * 32] __attribute__((aligned(64)));
};
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)
static inline void tile_beside(struct tile_work *work) {
    (void)work;
}
static inline float *tile_sums(struct tile_work *work) {
    return work->sums;
}
static __attribute__((noinline)) void tile_done(struct tile_work *work, size_t row, size_t rows, size_t column,
                                                size_t cols, size_t ld) {
    struct lathe_gemm_bf16_tile part = *work->tile;
    struct lathe_gemm_epilogue e;
    part.rows = rows;
    part.c += row * part.ldc;
    if (part.epilogue) {
        e = *part.epilogue;
        e.residual = e.residual ? e.residual + row * e.ldr : NULL;
        part.epilogue = &e;
    }
    lathe_bf16_finish__avx512bf16(&part, column, cols, work->sums, ld);
}
#include "tiles_amx.h"

void lathe_gemm_bf16_512x64__amx(const struct lathe_gemm_bf16_tile *tile) {
    struct tile_work work;
    work.tile = tile;
    tile_products(&work, &(struct tile_product){.rows = tile->rows,
                                                .cols = tile->cols,
                                                .a = tile->a,
                                                .lda = tile->lda,
                                                .bytes = tile->k * 2,
                                                .b = (const char *)tile->b,
                                                .panel = tile->panel_stride * 2,
                                                .next = (const char *)tile->fetch,
                                                .next_step = 32 * tile->fetch_step});
}
