/* Blocking of float products around the tiles of the gemm_f32 row.
 *
 * A block of A, packed by tiles, stays in the second cache while all panels of B pass by; a panel group (nr columns) by
 * the K block lies in the first or second cache while the tiles of the block pass by. Cutting K changes no bit: the
 * sums go on from what C holds.
 *
 * Blocks of like size, each of which fetches the first panels of the one behind it, against full blocks and a rest:
 * distilbert f32 at 256 and 384 tokens, 2 threads of an EPYC of the Zen 5 class, 44.4 -> 43.7 and 67.3 -> 66.6 ms.
 * Blocks of whole tiles and at most 320 KB against 384 KB, products of distilbert at 256, 384 and 512 tokens, there:
 * AVX2 0, 0.3 and 1.1 % faster, AVX-512 0.3, 0.4 and 0.5 %. */
#include "gemm_drive.h"

#include "gemm_split.h"

#include <string.h>

#define A_FLOATS  ((size_t)81920) /* packed block of A: 320 KB */
#define K_BLOCK   ((size_t)1024)  /* shorter ones cost up to 10 %: C is read and written again for each */
#define B_COLUMNS ((size_t)128)   /* of a block of B that is packed on the way */
#define SLACK     ((size_t)32)    /* packing writes whole vectors */

size_t lathe_gemm_f32_scratch(size_t m, size_t n, size_t k, bool packed) {
    size_t a, b = 0;
    if (!lathe_mul_size(m, k, &a) || a > A_FLOATS)
        a = A_FLOATS;
    if (!packed) {
        size_t columns = n < B_COLUMNS ? (n + 15) / 16 * 16 : B_COLUMNS, rows = k < K_BLOCK ? k : K_BLOCK;
        /* A single tile takes K whole when its A fits. */
        if (k > K_BLOCK && k <= A_FLOATS)
            rows = k * columns <= A_FLOATS ? k : K_BLOCK;
        b = rows * columns;
    }
    return (a + b + 2 * SLACK) * sizeof(float);
}

static size_t minimum(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Panels of B [k0, k0 + kc) x [n0, n1) from strided elements. */
static void pack_b(const struct lathe_gemm_f32 *p, size_t k0, size_t kc, size_t n0, size_t n1, float *out) {
    for (size_t j0 = n0; j0 < n1; j0 += 16, out += kc * 16) {
        size_t columns = minimum(16, n1 - j0);
        const float *from = p->b + k0 * p->b_row + j0 * p->b_column;
        if (p->b_column == 1 && columns == 16) {
            for (size_t t = 0; t < kc; t++)
                memcpy(out + t * 16, from + t * p->b_row, 16 * sizeof *out);
            continue;
        }
        for (size_t t = 0; t < kc; t++)
            for (size_t j = 0; j < 16; j++)
                out[t * 16 + j] = j < columns ? from[t * p->b_row + j * p->b_column] : 0.0f;
    }
}

static void pack_a(const struct lathe_gemm_f32_kernel *kernel, const struct lathe_gemm_f32 *p, size_t row, size_t rows,
                   size_t k0, size_t kc, float *out) {
    const float *from = p->a + row * p->a_row + k0 * p->a_column;
    if (p->a_column == 1) {
        kernel->pack_a(rows, kc, from, p->a_row, out);
        return;
    }
    for (size_t t = 0; t < kc; t++)
        for (size_t r = 0; r < rows; r++)
            out[t * rows + r] = from[r * p->a_row + t * p->a_column];
}

struct blocks {
    const struct lathe_gemm_f32_kernel *kernel;
    const struct lathe_gemm_f32 *product;
    bool plain; /* no epilogue */
    float *a;
};

/* Rows [m0, m1) by columns [n0, n1), K from k0 for kc; `panels` is B of column n0 at k0, `next` that of the block that
 * follows, or NULL. */
static void run_block(const struct blocks *blocks, size_t m0, size_t m1, size_t n0, size_t n1, size_t k0, size_t kc,
                      const float *panels, size_t panel_stride, const float *next) {
    const struct lathe_gemm_f32 *p = blocks->product;
    const struct lathe_gemm_f32_kernel *kernel = blocks->kernel;
    size_t rows = m1 - m0, mr = kernel->mr, tiles = lathe_gemm_tiles(rows, mr);
    for (size_t i = 0; i < tiles; i++) {
        size_t from = lathe_gemm_tile_begin(rows, mr, i), to = lathe_gemm_tile_begin(rows, mr, i + 1);
        pack_a(kernel, p, m0 + from, to - from, k0, kc, blocks->a + from * kc);
    }
    struct lathe_gemm_epilogue epilogue = p->epilogue;
    bool last = k0 + kc == p->k && !blocks->plain;
    struct lathe_gemm_f32_tile tile = {.k = kc,
                                       .ldb = 16,
                                       .panel_stride = panel_stride,
                                       .ldc = p->ldc,
                                       .accumulate = k0 != 0,
                                       .epilogue = last ? &epilogue : NULL};
    size_t group = tiles == 1 ? n1 - n0 : kernel->nr;
    for (size_t j = n0; j < n1; j += group) {
        tile.cols = minimum(group, n1 - j);
        tile.b = panels + (j - n0) / 16 * panel_stride;
        epilogue.bias = p->epilogue.bias ? p->epilogue.bias + j : NULL;
        for (size_t i = 0; i < tiles; i++) {
            size_t from = lathe_gemm_tile_begin(rows, mr, i), to = lathe_gemm_tile_begin(rows, mr, i + 1);
            size_t row = m0 + from;
            tile.rows = tile.lda = to - from;
            tile.a = blocks->a + from * kc;
            tile.c = p->c + row * p->ldc + j;
            if (tiles > 1) {
                /* Each tile fetches its part of the next group, so that reading memory and multiplying overlap. */
                bool leaves = next && j + group >= n1;
                tile.fetch = (leaves ? next : tile.b + group / 16 * panel_stride) + kc * 16 * i / tiles;
                tile.fetch_step = (16 + tiles - 1) / tiles;
            }
            epilogue.residual = p->epilogue.residual ? p->epilogue.residual + row * p->epilogue.ldr + j : NULL;
            kernel->fn(&tile);
        }
    }
}

void lathe_gemm_f32_part(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *p, size_t m0, size_t m1,
                         size_t n0, size_t n1, void *scratch) {
    if (m0 >= m1 || n0 >= n1)
        return;
    const struct lathe_gemm_f32_kernel *kernel = &kernels->gemm_f32;
    const struct lathe_gemm_epilogue *e = &p->epilogue;
    struct blocks blocks = {.kernel = kernel, .product = p, .a = scratch};
    blocks.plain = !e->bias && !e->residual && e->activation == LATHE_ACT_NONE && e->scale == 1.0f;
    float *b = blocks.a + A_FLOATS + SLACK; /* used only when B is packed on the way */
    size_t m = m1 - m0, kc = p->k;
    bool single = m <= kernel->mr && (p->k == 0 || m <= A_FLOATS / p->k);
    size_t columns = n1 - n0;
    if (!p->panels) {
        b = blocks.a + (p->m > A_FLOATS / (p->k ? p->k : 1) ? A_FLOATS : p->m * p->k) + SLACK;
        columns = B_COLUMNS;
        size_t whole = minimum(B_COLUMNS, (p->n + 15) / 16 * 16);
        single = single && p->k <= A_FLOATS && p->k * whole <= A_FLOATS;
    }
    if (!single && kc > K_BLOCK) {
        size_t count = (kc + K_BLOCK - 1) / K_BLOCK;
        kc = ((kc + count - 1) / count + 15) / 16 * 16;
    }
    /* Blocks of like size: a small one behind large ones would read all of B for a few rows. */
    size_t most = single ? m : A_FLOATS / (kc ? kc : 1), count = (m + most - 1) / most;
    size_t rows = (m + count - 1) / count, whole = lathe_gemm_tiles(rows, kernel->mr) * kernel->mr;
    rows = whole <= most ? whole : rows;
    for (size_t j = n0; j < n1; j += columns) {
        size_t j1 = minimum(n1, j + columns);
        size_t k0 = 0;
        do {
            size_t steps = minimum(kc, p->k - k0);
            const float *panels = b;
            size_t stride = steps * 16;
            if (p->panels) {
                panels = p->panels + j / 16 * p->k * 16 + k0 * 16;
                stride = p->k * 16;
            } else {
                pack_b(p, k0, steps, j, j1, b);
            }
            const float *next = p->panels && k0 + steps < p->k ? panels + steps * 16 : NULL;
            for (size_t i = m0; i < m1; i += rows)
                run_block(&blocks, i, minimum(m1, i + rows), j, j1, k0, steps, panels, stride,
                          i + rows < m1 ? panels : next);
            k0 += kc;
        } while (k0 < p->k);
    }
}

void lathe_gemm_f32_team(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *p,
                         const struct lathe_team *team, void *scratch) {
    struct lathe_gemm_split split = {p->m, p->n, kernels->gemm_f32.nr / 16, 1, 8, LATHE_OWN_ROWS_F32};
    struct lathe_gemm_part part = lathe_gemm_part_of(&split, team);
    lathe_gemm_f32_part(kernels, p, part.m0, part.m1, part.n0, part.n1, scratch);
}
