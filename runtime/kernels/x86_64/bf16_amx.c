/* gemm_bf16 on tile registers (AMX): 32 rows x 128 columns a call, as loading the configuration takes its time. Few
 * rows go the same way: a tile adds in an order of its own, and a row's bits may not depend on how many there are. */
#include "finish_avx512.h"
#include "kernel_rows.h"

#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)
#include "tiles_amx.h"

void lathe_gemm_bf16_32x128__amx(const struct lathe_gemm_bf16_tile *tile) {
    float sums[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    tile_begin(tile->rows);
    for (size_t j = 0; j < tile->cols; j += TILE_COLUMNS) {
        size_t cols = tile->cols - j < TILE_COLUMNS ? tile->cols - j : TILE_COLUMNS, panel = j / 16;
        tile_sums(tile->rows, (cols + 15) / 16, tile->a, tile->lda, tile->k * 2,
                  (const char *)(tile->b + panel * tile->panel_stride), tile->panel_stride * 2,
                  tile->fetch ? (const char *)(tile->fetch + panel * tile->panel_stride) : NULL, tile->fetch_step * 2,
                  sums);
        lathe_bf16_finish__avx512bf16(tile, j, cols, sums, TILE_COLUMNS);
    }
    tile_end();
}
