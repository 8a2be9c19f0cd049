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

#include <float.h>
#include <math.h>
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
    /* (rows of gemm_f32_fip) */
    size_t rows = packed && m < SIZE_MAX / (6 * sizeof(float)) ? 3 * m : 0;
    return (a + b + rows + 2 * SLACK) * sizeof(float);
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

/* Rows for gemm_f32_fip: what x is multiplied by, what the sums are, and what they start with. */
struct fip_rows {
    float *scale, *unscale, *first;
};

struct blocks {
    const struct lathe_gemm_f32_kernel *kernel;
    const struct lathe_gemm_f32 *product;
    bool plain; /* no epilogue */
    float *a;
    const struct lathe_gemm_fip_kernel *fip; /* NULL: by plain products */
    struct fip_rows rows;                    /* from row m0 on */
    size_t m0;
};

/* As frexp has it, for numbers that are not denormal. */
static int exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1022;
}

static float power_of_2(int exponent) {
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale makes a row about as large as the weights: a power of two, 0 for a row of zeros. A row with an infinity or
 * NaN, of which gemm_f32_fip would make nothing but NaN, has an unscale of NaN: it is for plain products. */
static void fip_row(const struct lathe_gemm_fip_kernel *fip, const struct lathe_gemm_f32 *p, size_t row, float *scale,
                    float *unscale, float *first) {
    const float *x = p->a + row * p->a_row;
    struct lathe_fip_sums sums = fip->sums(p->k, x);
    double squares = (double)sums.squares, pairs = (double)sums.pairs;
    if (!(sums.squares > 1e-30f && sums.squares < FLT_MAX)) {
        squares = pairs = 0;
        for (size_t t = 0; t < p->k; t++)
            squares += (double)x[t] * (double)x[t];
        for (size_t t = 1; t + 1 < p->k / 3 * 3; t += 3)
            pairs += (double)x[t] * (double)x[t + 1];
    }
    *scale = *first = 0;
    *unscale = isfinite(squares) ? 0 : NAN;
    if (isfinite(squares) && squares > 0) {
        /* by the bits of exponents: library calls took as long as the sums */
        int shift = p->w_exponent - (exponent_of(squares / (double)p->k) >> 1);
        shift = shift < -120 ? -120 : shift > 120 ? 120 : shift;
        *scale = power_of_2(shift);
        *unscale = power_of_2(-shift);
        *first = (float)(-pairs * (double)*scale * (double)*scale);
    }
}

/* Tiles of gemm_f32_fip are of like size: 8 and 8 rows of 16 take less than 10 and 6. */
static size_t tiles_of(const struct lathe_gemm_fip_kernel *fip, size_t rows, size_t mr) {
    return lathe_gemm_tiles(rows, fip && rows > fip->mr ? fip->best : mr);
}
static size_t tile_begin(const struct lathe_gemm_fip_kernel *fip, size_t rows, size_t mr, size_t i) {
    return fip ? rows * i / tiles_of(fip, rows, mr) : lathe_gemm_tile_begin(rows, mr, i);
}

/* Rows [m0, m1) by columns [n0, n1), K from k0 for kc; `panels` is B of column n0 at k0, `next` that of the block that
 * follows, or NULL. */
static void run_block(const struct blocks *blocks, size_t m0, size_t m1, size_t n0, size_t n1, size_t k0, size_t kc,
                      const float *panels, size_t panel_stride, const float *next) {
    const struct lathe_gemm_f32 *p = blocks->product;
    const struct lathe_gemm_f32_kernel *kernel = blocks->kernel;
    const struct lathe_gemm_fip_kernel *fip = blocks->fip;
    const struct fip_rows *own = &blocks->rows;
    size_t rows = m1 - m0, mr = fip ? fip->mr : kernel->mr, tiles = tiles_of(fip, rows, mr);
    for (size_t i = 0; i < tiles; i++) {
        size_t from = tile_begin(fip, rows, mr, i), to = tile_begin(fip, rows, mr, i + 1);
        size_t row = m0 + from;
        if (fip)
            fip->pack_a(to - from, kc, p->a + row * p->a_row + k0, p->a_row, own->scale + (row - blocks->m0),
                        blocks->a + from * kc);
        else
            pack_a(kernel, p, row, to - from, k0, kc, blocks->a + from * kc);
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
            size_t from = tile_begin(fip, rows, mr, i), to = tile_begin(fip, rows, mr, i + 1);
            size_t row = m0 + from;
            tile.rows = tile.lda = to - from;
            tile.a = blocks->a + from * kc;
            tile.c = p->c + row * p->ldc + j;
            if (tiles > 1) {
                /* Each tile fetches its part of the next group, so that reading memory and multiplying overlap. */
                const float *from_next = j + group < n1 ? tile.b + group / 16 * panel_stride : next;
                tile.fetch = from_next ? from_next + kc * 16 * i / tiles : NULL;
                tile.fetch_step = (16 + tiles - 1) / tiles;
            }
            epilogue.residual = p->epilogue.residual ? p->epilogue.residual + row * p->epilogue.ldr + j : NULL;
            if (fip) {
                tile.row_first = own->first + (row - blocks->m0);
                tile.col_first = p->w_pairs + j;
                epilogue.row_scale = own->unscale + (row - blocks->m0);
                fip->fn(&tile);
            } else {
                kernel->fn(&tile);
            }
        }
    }
}

void lathe_gemm_f32_part(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *p, size_t m0, size_t m1,
                         size_t n0, size_t n1, void *scratch) {
    if (m0 >= m1 || n0 >= n1)
        return;
    const struct lathe_gemm_fip_kernel *fip = p->w_pairs && kernels->gemm_f32_fip.fn ? &kernels->gemm_f32_fip : NULL;
    const struct lathe_gemm_f32_kernel *kernel = &kernels->gemm_f32;
    const struct lathe_gemm_epilogue *e = &p->epilogue;
    struct blocks blocks = {.kernel = kernel, .product = p, .a = scratch, .fip = fip, .m0 = m0};
    if (fip) {
        float *rows = blocks.a + (p->m > A_FLOATS / (p->k ? p->k : 1) ? A_FLOATS : p->m * p->k) + 2 * SLACK;
        blocks.rows = (struct fip_rows){rows, rows + p->m, rows + 2 * p->m};
        for (size_t i = 0; i < m1 - m0; i++)
            fip_row(fip, p, m0 + i, rows + i, rows + p->m + i, rows + 2 * p->m + i);
    }
    blocks.plain = !fip && !e->bias && !e->residual && e->activation == LATHE_ACT_NONE && e->scale == 1.0f;
    float *b = blocks.a + A_FLOATS + SLACK; /* used only when B is packed on the way */
    size_t m = m1 - m0, kc = p->k;
    const size_t mr = fip ? fip->mr : kernel->mr;
    bool single = m <= mr && (p->k == 0 || m <= A_FLOATS / p->k);
    size_t columns = n1 - n0;
    if (!p->panels) {
        b = blocks.a + (p->m > A_FLOATS / (p->k ? p->k : 1) ? A_FLOATS : p->m * p->k) + SLACK;
        columns = B_COLUMNS;
        size_t whole = minimum(B_COLUMNS, (p->n + 15) / 16 * 16);
        single = single && p->k <= A_FLOATS && p->k * whole <= A_FLOATS;
    }
    if (!single && kc > K_BLOCK) {
        size_t count = (kc + K_BLOCK - 1) / K_BLOCK;
        size_t unit = fip ? 48 : 16; /* (threes of steps are not cut) */
        kc = ((kc + count - 1) / count + unit - 1) / unit * unit;
    }
    /* Blocks of like size: a small one behind large ones would read all of B for a few rows. */
    size_t most = single ? m : A_FLOATS / (kc ? kc : 1), count = (m + most - 1) / most;
    size_t rows = (m + count - 1) / count, whole = lathe_gemm_tiles(rows, mr) * mr;
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
    for (size_t i = 0; fip && i < m1 - m0; i++)
        if (isnan(blocks.rows.unscale[i])) {
            struct lathe_gemm_f32 plain = *p;
            plain.w_pairs = NULL;
            lathe_gemm_f32_part(kernels, &plain, m0 + i, m0 + i + 1, n0, n1, scratch);
        }
}

void lathe_gemm_f32_team(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *p,
                         const struct lathe_team *team, void *scratch) {
    struct lathe_gemm_split split = {p->m, p->n, kernels->gemm_f32.nr / 16, 1, 8, LATHE_OWN_ROWS_F32};
    struct lathe_gemm_part part = lathe_gemm_part_of(&split, team);
    lathe_gemm_f32_part(kernels, p, part.m0, part.m1, part.n0, part.n1, scratch);
}
