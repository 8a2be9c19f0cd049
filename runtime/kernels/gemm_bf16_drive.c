/* Blocking of bf16 products, as of 8-bit ones: a block of rounded rows stays in the second cache while all panels pass
 * by; K is never cut; the tiles of a block fetch the next panel group. */
#include "gemm_bf16_drive.h"

#include "gemm_split.h"

#define A_BYTES   ((size_t)384 << 10) /* rounded rows of a block */
#define LEAST     ((size_t)16)        /* rows of a block, at least: a tile on vectors has no more */
#define W_COLUMNS ((size_t)64)        /* packed on the way at a time */

static size_t minimum(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t even(size_t k) {
    return k + k % 2;
}

/* An odd number of cache lines, so that the rows of a tile spread over the sets of the first cache. */
static size_t row_bytes(const struct lathe_gemm_bf16_kernel *kernel, size_t k) {
    return ((k * kernel->a_bytes + 67) / 64 | 1) * 64;
}

/* Of a block, at most. */
static size_t block_rows(const struct lathe_gemm_bf16_kernel *kernel, size_t m, size_t k) {
    size_t rows = A_BYTES / row_bytes(kernel, k);
    return minimum(m, rows < LEAST ? LEAST : rows);
}

size_t lathe_gemm_bf16_scratch(const struct lathe_kernels *kernels, size_t m, size_t n, size_t k, bool packed) {
    size_t a, b = 0;
    if (k > SIZE_MAX / 1024 ||
        !lathe_mul_size(block_rows(&kernels->gemm_bf16, m, k), row_bytes(&kernels->gemm_bf16, k), &a))
        return SIZE_MAX;
    if (!packed)
        b = minimum((n - 1) / 16 * 16 + 16, W_COLUMNS) * even(k) * sizeof(uint16_t);
    return lathe_add_size(a, b, &a) ? a : SIZE_MAX;
}

struct block {
    const struct lathe_gemm_bf16 *product;
    const struct lathe_gemm_bf16_kernel *kernel;
    size_t m0, m1;
    const char *a;
};

/* Columns [n0, n1) of a block; `panels` begins with column n0, `again` when another block follows that begins there. */
static void run_block(const struct block *block, size_t n0, size_t n1, const uint16_t *panels, bool again) {
    const struct lathe_gemm_bf16 *p = block->product;
    size_t rows = block->m1 - block->m0, tiles = (rows + block->kernel->mr - 1) / block->kernel->mr;
    size_t k = even(p->k), lda = row_bytes(block->kernel, p->k);
    struct lathe_gemm_epilogue e = p->epilogue;
    struct lathe_gemm_bf16_tile tile = {.k = k, .lda = lda, .panel_stride = 16 * k, .ldc = p->ldy, .epilogue = &e};
    size_t group = tiles == 1 ? n1 - n0 : block->kernel->nr;
    for (size_t j = n0; j < n1; j += group) {
        tile.cols = minimum(group, n1 - j);
        tile.b = panels + (j - n0) * k;
        e.bias = p->epilogue.bias ? p->epilogue.bias + j : NULL;
        for (size_t i = 0; i < tiles; i++) {
            size_t from = rows * i / tiles, to = rows * (i + 1) / tiles, row = block->m0 + from;
            tile.rows = to - from;
            tile.a = block->a + from * lda;
            tile.c = p->y + row * p->ldy + j;
            if (tiles > 1) {
                /* Each tile fetches its part of the next group. */
                const uint16_t *next = j + group < n1 ? tile.b + group * k : again ? panels : NULL;
                tile.fetch = next ? next + k * 16 / tiles * i / 32 * 32 : NULL;
                tile.fetch_step = 32 / tiles;
            }
            e.residual = p->epilogue.residual ? p->epilogue.residual + row * e.ldr + j : NULL;
            block->kernel->fn(&tile);
        }
    }
}

void lathe_gemm_bf16_team(const struct lathe_kernels *kernels, const struct lathe_gemm_bf16 *p,
                          const struct lathe_team *team, void *scratch) {
    struct block block = {.product = p, .kernel = &kernels->gemm_bf16, .a = scratch};
    struct lathe_gemm_split split = {p->m, p->n, block.kernel->nr / 16, 1, 8, LATHE_OWN_ROWS_BF16};
    struct lathe_gemm_part part = lathe_gemm_part_of(&split, team);
    if (part.m0 == part.m1 || part.n0 == part.n1)
        return;
    size_t most = block_rows(block.kernel, p->m, p->k), lda = row_bytes(block.kernel, p->k);
    /* Blocks of like size: a small one behind large ones would read all weights for a few rows. */
    size_t m = part.m1 - part.m0, count = (m + most - 1) / most, rows = (m + count - 1) / count;
    char *a = scratch;
    uint16_t *w = (uint16_t *)(void *)(a + most * lda);
    for (block.m0 = part.m0; block.m0 < part.m1; block.m0 = block.m1) {
        block.m1 = minimum(part.m1, block.m0 + rows);
        block.kernel->convert(block.m1 - block.m0, p->k, p->x + block.m0 * p->ldx, p->ldx, a, lda);
        if (p->panels) {
            run_block(&block, part.n0, part.n1, p->panels + part.n0 * even(p->k), block.m1 < part.m1);
            continue;
        }
        for (size_t j = part.n0; j < part.n1; j += W_COLUMNS) {
            size_t end = minimum(part.n1, j + W_COLUMNS);
            lathe_pack_bf16_n16k2(p->w, p->w_dtype, p->k, p->n, p->ldw, p->transposed, j / 16, (end + 15) / 16, w);
            run_block(&block, j, end, w, false);
        }
    }
}
