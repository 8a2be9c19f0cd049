/* 8-bit families on tile registers (AMX): 32 rows x 128 columns a call, as loading the configuration takes its time;
 * few rows fill no tile and are left to the row on vectors. The sums are exact either way. */
#include "finish_avx512.h"
#include "kernel_rows.h"

#define FEW               4
#define tile_dot(c, a, b) _tile_dpbusd(c, a, b)
#include "tiles_amx.h"

void lathe_gemm_u8s8_32x128__amx(const struct lathe_gemm_q8_tile *tile) {
    if (tile->rows <= FEW) {
        lathe_gemm_u8s8_14x32__avx512vnni(tile);
        return;
    }
    int32_t sums[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    tile_begin(tile->rows);
    for (size_t j = 0; j < tile->cols; j += TILE_COLUMNS) {
        size_t cols = tile->cols - j < TILE_COLUMNS ? tile->cols - j : TILE_COLUMNS, panel = j / 16;
        tile_sums(tile->rows, (cols + 15) / 16, (const char *)tile->a, tile->lda, tile->k,
                  (const char *)tile->b + panel * tile->panel_stride, tile->panel_stride,
                  tile->fetch ? (const char *)tile->fetch + panel * tile->panel_stride : NULL, tile->fetch_step, sums);
        lathe_q8_finish__avx512vnni(tile, j, cols, sums, TILE_COLUMNS);
    }
    tile_end();
}
