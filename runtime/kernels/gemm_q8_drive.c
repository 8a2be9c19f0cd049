/* Blocking of 8-bit products. A block of quantized rows stays in the second cache while all panels pass by; K is never
 * cut: a panel group is read line by line, each line once a tile, and the tiles of a block fetch the next group. */
#include "gemm_q8_drive.h"

#include "gemm_split.h"

#include <string.h>

#define A_BYTES   ((size_t)256 << 10) /* quantized rows of a block, and where the kernel takes as many at once: */
#define A_TILES   ((size_t)832 << 10) /* distilbert at 256 tokens, 2 threads, Xeon with AMX: 14.6 -> 13.9 ms */
#define LEAST     ((size_t)16)        /* rows of a block, at least: a tile on vectors has no more */
#define FIP_SMALL ((size_t)1 << 20)   /* weights that stay in the caches */
#define W_COLUMNS ((size_t)64)        /* packed on the way at a time */

static size_t minimum(size_t a, size_t b) {
    return a < b ? a : b;
}

/* An odd number of cache lines, so that the rows of a tile spread over the sets of the first cache. */
static size_t row_bytes(size_t k) {
    return ((k + 63) / 64 | 1) * 64;
}

static size_t block_rows(const struct lathe_kernels *kernels, size_t m, size_t k, bool blocks) {
    size_t rows = (kernels->gemm_u8s8.mr > 2 * LEAST && !blocks ? A_TILES : A_BYTES) / row_bytes(k);
    return minimum(m, rows < LEAST ? LEAST : rows);
}

size_t lathe_gemm_q8_scratch(const struct lathe_kernels *kernels, size_t m, size_t n, size_t k, size_t block,
                             bool packed) {
    if (k > LATHE_Q8_MAX_K)
        return SIZE_MAX;
    return lathe_gemm_q8_rows_bytes(block_rows(kernels, m, k, block > 0), k, block) +
           (packed ? 0 : minimum((n + 15) / 16 * 16, W_COLUMNS) * ((k + 3) / 4 * 4));
}

/* Rows of bytes, then their scales and zero points, then the sums of their blocks, or their sums for gemm_fip. */
struct rows {
    uint8_t *a;
    float *scale;
    int32_t *zero;
    int32_t *sums;
    size_t each; /* sums a row */
};

static size_t block_count(size_t k, size_t block) {
    return block ? (k + block - 1) / block : 0;
}

size_t lathe_gemm_q8_rows_bytes(size_t m, size_t k, size_t block) {
    size_t each = sizeof(float) + sizeof(int32_t) * (1 + (block ? block_count(k, block) : 1));
    if (k > LATHE_Q8_MAX_K || m > SIZE_MAX / 2 / (row_bytes(k) + each))
        return SIZE_MAX;
    return m * row_bytes(k) + (m * each + 63) / 64 * 64;
}

static struct rows rows_at(void *memory, size_t m, size_t k, const struct lathe_gemm_q8_blocks *blocks) {
    struct rows r = {.a = memory, .each = blocks ? blocks->count : 1};
    r.scale = (float *)(void *)(r.a + m * row_bytes(k));
    r.zero = (int32_t *)(void *)(r.scale + m);
    r.sums = r.zero + m;
    return r;
}

/* Eight bytes at a time: up to 128 times two of them fit the 16 bits of each lane. */
static uint32_t sum_bytes(const uint8_t *p, size_t n) {
    const uint64_t even = UINT64_C(0x00ff00ff00ff00ff);
    uint32_t sum = 0;
    while (n >= 8) {
        size_t some = n / 8 < 128 ? n / 8 : 128;
        uint64_t lanes = 0, v;
        for (size_t i = 0; i < some; i++) {
            memcpy(&v, p + i * 8, 8);
            lanes += (v & even) + (v >> 8 & even);
        }
        lanes = (lanes & UINT64_C(0x0000ffff0000ffff)) + (lanes >> 16 & UINT64_C(0x0000ffff0000ffff));
        sum += (uint32_t)lanes + (uint32_t)(lanes >> 32);
        p += some * 8;
        n -= some * 8;
    }
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

static void sum_blocks(const struct rows *rows, size_t count, size_t k, size_t block) {
    for (size_t r = 0; r < count; r++) {
        uint8_t *a = rows->a + r * row_bytes(k);
        int32_t *sums = rows->sums + r * rows->each;
        for (size_t i = 0, at = 0; at < k; i++, at += block)
            sums[i] = lathe_q8_block_sum(sum_bytes(a + at, minimum(block, k - at)));
        memset(a + k, 0, (8 - k % 8) % 8); /* groups of eight steps are read */
    }
}

/* Few rows of large weights wait for memory, of which plain products read more lines at a time; 13 rows are one tile of
 * those and two of these. 2 threads, Zen 5, cores with a common cache, ms by plain products -> so:
 *   distilbert 8, 10, 13, 16, 32, 128 tokens   0.484 -> 0.505, 0.543 -> 0.500, 0.633 -> 0.691, 0.752 -> 0.704,
 *                                              1.351 -> 1.131, 5.09 -> 4.16
 *   minilm-l6 8, 12, 16, 32, 128 tokens        0.130 -> 0.120, 0.181 -> 0.164, 0.222 -> 0.198, 0.431 -> 0.381,
 *                                              1.660 -> 1.375 */
static bool by_fip(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *p) {
    size_t least = p->k * p->n < FIP_SMALL ? 8 : 10;
    return p->order && kernels->gemm_fip.fn && p->m >= least && p->m != 13;
}

/* Rows [m0, m1) of x into the first rows of `out`. */
static void quantize(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *p, size_t m0, size_t m1,
                     struct rows out) {
    struct lathe_quantize_rows rows = {.count = m1 - m0,
                                       .k = p->k,
                                       .x = p->x + m0 * p->ldx,
                                       .ldx = p->ldx,
                                       .x_scale = p->x_scale,
                                       .levels = p->levels,
                                       .even = p->order != NULL,
                                       .q = out.a,
                                       .ldq = row_bytes(p->k),
                                       .scale = out.scale,
                                       .zero = out.zero};
    kernels->quantize_rows(&rows);
    if (p->blocks)
        sum_blocks(&out, rows.count, p->k, p->blocks->block);
    if (p->order)
        kernels->fip_rows(&(struct lathe_fip_rows){.count = rows.count,
                                                   .k = p->k,
                                                   .order = p->order,
                                                   .q = out.a,
                                                   .ldq = rows.ldq,
                                                   .scale = out.scale,
                                                   .zero = out.zero,
                                                   .x_pairs = by_fip(kernels, p) ? out.sums : NULL});
}

static struct rows rows_from(struct rows r, size_t m0, size_t k) {
    return (struct rows){r.a + m0 * row_bytes(k), r.scale + m0, r.zero + m0, r.sums + m0 * r.each, r.each};
}

void lathe_gemm_q8_prepare(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *p,
                           const struct lathe_team *team, void *prepared) {
    int64_t m0, m1;
    lathe_team_split(team, (int64_t)p->m, 1, &m0, &m1);
    if (m0 < m1)
        quantize(kernels, p, (size_t)m0, (size_t)m1,
                 rows_from(rows_at(prepared, p->m, p->k, p->blocks), (size_t)m0, p->k));
}

/* What a thread does of a product. */
struct share {
    const struct lathe_gemm_q8_kernel *kernel;
    struct lathe_gemm_part part[3]; /* all of the same rows, none empty */
    unsigned count;
    unsigned turn, turns; /* threads that read the same panels begin at different ones: each comes from memory once */
};

static const struct lathe_gemm_q8_kernel *kernel_of(const struct lathe_kernels *kernels,
                                                    const struct lathe_gemm_q8 *p) {
    bool pairs_fit = p->sums || p->levels == 127;
    if (by_fip(kernels, p))
        return &kernels->gemm_fip;
    if (p->blocks)
        return pairs_fit ? &kernels->gemm_u7s8_blocks : &kernels->gemm_u8s8_blocks;
    if (p->sums >= 2)
        return p->sums >= 4 ? &kernels->gemm_sum4 : &kernels->gemm_sum2;
    return pairs_fit ? &kernels->gemm_u7s8 : &kernels->gemm_u8s8;
}

static struct share share_of(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *p,
                             const struct lathe_team *team) {
    struct share share = {.kernel = kernel_of(kernels, p)};
    unsigned own = lathe_own_rows_q8(p->k, p->n, team->near);
    struct lathe_gemm_split split = {p->m, p->n, share.kernel->nr / 16, 3, 8, own};
    if (p->heads) {
        int64_t h0, h1;
        lathe_team_split(team, p->heads->heads, 1, &h0, &h1);
        share.count = h0 < h1 ? p->heads->count : 0;
        for (unsigned i = 0; i < share.count; i++) {
            int64_t at = p->heads->part[i].at, width = p->heads->part[i].width;
            share.part[i] = (struct lathe_gemm_part){0, p->m, (size_t)(at + h0 * width), (size_t)(at + h1 * width)};
        }
        share.turns = 1;
        return share;
    }
    share.part[0] = lathe_gemm_part_of(&split, team);
    share.count = share.part[0].m0 < share.part[0].m1 && share.part[0].n0 < share.part[0].n1;
    bool by_rows = lathe_gemm_by_rows(p->m, lathe_team_threads(team), split.own);
    share.turns = p->turns > 1 ? p->turns : by_rows ? team->count : 1;
    share.turn = p->turns > 1 ? p->turn : by_rows ? team->index : 0;
    return share;
}

struct block {
    const struct lathe_gemm_q8 *product;
    const struct share *share;
    size_t m0, m1;
    struct rows rows;
};

/* A tile's epilogue beside the products of the next: not for few rows, whose columns threads share, so that stores wait
 * for lines that another had; with few steps of k it breaks up the products besides. 2 threads, Zen 5, ms without ->
 * with: minilm-l6 int8, 8, 16, 24, 32 tokens      0.191 -> 0.212, 0.236 -> 0.235, 0.341 -> 0.337, 0.457 -> 0.453
 *   distilbert int8, 8, 16, 24, 32 tokens     0.515 -> 0.522, 0.958 -> 0.959, 1.302 -> 1.259, 1.588 -> 1.569 */
static bool later_pays(const struct lathe_gemm_q8 *p) {
    return p->m * (p->turns > 1 ? p->turns : 1) >= 16;
}

static size_t panel_bytes(const struct lathe_gemm_q8 *p) {
    return p->blocks && p->blocks->halves ? (p->k + 7) / 8 * 64 : (p->k + 3) / 4 * 64;
}

/* Columns [n0, n1) of a block; `panels` begins with column n0. `next` is what the thread reads behind them, or NULL. */
static void run_block(const struct block *block, size_t n0, size_t n1, const int8_t *panels, const int8_t *next) {
    const struct lathe_gemm_q8 *p = block->product;
    const struct lathe_gemm_q8_kernel *kernel = block->share->kernel;
    const struct lathe_gemm_q8_blocks *w = p->blocks;
    struct lathe_gemm_q8_blocks cells = w ? *w : (struct lathe_gemm_q8_blocks){0};
    size_t rows = block->m1 - block->m0, tiles = (rows + kernel->mr - 1) / kernel->mr;
    size_t lda = row_bytes(p->k), panel = panel_bytes(p);
    struct lathe_gemm_q8_epilogue e = p->epilogue;
    struct lathe_gemm_q8_later later;
    later.waiting = 0; /* and its buffer as it is */
    struct lathe_gemm_q8_tile tile = {.k = panel / (cells.halves ? 8 : 16),
                                      .lda = lda,
                                      .panel_stride = panel,
                                      .ahead = kernel->ahead,
                                      .blocks = w ? &cells : NULL,
                                      .ldx_sum = cells.count,
                                      .ldc = p->ldy,
                                      .epilogue = &e,
                                      .later = !w && later_pays(p) ? &later : NULL};
    size_t group = tiles == 1 ? n1 - n0 : kernel->nr, groups = (n1 - n0 + group - 1) / group;
    for (size_t g = 0, at = groups * block->share->turn / block->share->turns; g < groups; g++) {
        size_t j = n0 + at * group;
        at = at + 1 < groups ? at + 1 : 0;
        tile.cols = minimum(group, n1 - j);
        tile.b = panels + (j - n0) / 16 * panel;
        e.bias = p->epilogue.bias ? p->epilogue.bias + j : NULL;
        if (w) {
            cells.scale = w->scale + j * w->count;
            cells.zero = w->zero ? w->zero + j * w->count : NULL;
            cells.w_sum = w->w_sum + j;
        } else {
            e.w_scale = p->epilogue.w_scale + j;
            e.w_sum = p->epilogue.w_sum + j;
            tile.w_pairs = p->w_pairs ? p->w_pairs + j : NULL;
        }
        for (size_t i = 0; i < tiles; i++) {
            /* Tiles of like size, but with blocks: there few numbers of rows have code of their own. */
            size_t from = w ? i * kernel->mr : rows * i / tiles, row = block->m0 + from;
            tile.rows = w ? minimum(kernel->mr, rows - from) : rows * (i + 1) / tiles - from;
            tile.a = block->rows.a + from * lda;
            tile.x_sum = tile.x_pairs = block->rows.sums + from * block->rows.each;
            tile.c = p->y + row * p->ldy + j;
            if (tiles > 1 && !w) {
                /* Each tile fetches its part of the next group, the last one what is left: distilbert int8 at 256
                 * tokens, where five tiles of a fifth of a line rounded down left one in 16 out, 10.93 -> 10.83 ms. */
                size_t step = 64 / tiles;
                const int8_t *from_next = g + 1 < groups ? panels + at * group / 16 * panel : next;
                tile.fetch = from_next ? from_next + panel / 64 * step * i : NULL;
                tile.fetch_step = i + 1 < tiles ? step : 64 - step * i;
            }
            e.scale = block->rows.scale + from;
            e.zero = block->rows.zero + from;
            e.residual = p->epilogue.residual ? p->epilogue.residual + row * e.ldr + j : NULL;
            kernel->fn(&tile);
        }
    }
    tile.rows = 0; /* what waits */
    if (tile.later)
        kernel->fn(&tile);
}

/* All columns of the thread's parts for a block of rows. */
static void run_parts(const struct block *block, int8_t *w) {
    const struct lathe_gemm_q8 *p = block->product;
    const struct share *share = block->share;
    for (unsigned i = 0; i < share->count; i++) {
        const struct lathe_gemm_part *part = &share->part[i];
        if (p->panels) {
            /* The heads of queries, keys and values lie apart: distilbert int8 at 24, 32, 64 tokens 1 % faster for it.
             */
            const struct lathe_gemm_part *next = i + 1 < share->count   ? &share->part[i + 1]
                                                 : block->m1 < part->m1 ? &share->part[0]
                                                                        : NULL;
            run_block(block, part->n0, part->n1, p->panels + part->n0 / 16 * panel_bytes(p),
                      next ? p->panels + next->n0 / 16 * panel_bytes(p) : NULL);
            continue;
        }
        for (size_t j = part->n0; j < part->n1; j += W_COLUMNS) {
            size_t end = minimum(part->n1, j + W_COLUMNS);
            lathe_pack_s8_n16k4(p->w, p->k, p->n, p->ldw, p->transposed, j / 16, (end + 15) / 16, w);
            run_block(block, j, end, w, w);
        }
    }
}

void lathe_gemm_q8_team(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *p,
                        const struct lathe_team *team, void *scratch) {
    struct share share = share_of(kernels, p, team);
    struct block block = {.product = p, .share = &share};
    if (!share.count)
        return;
    size_t most = block_rows(kernels, p->m, p->k, p->blocks), m1 = share.part[0].m1;
    struct rows own = rows_at(scratch, most, p->k, p->blocks), shared = {0};
    if (p->prepared)
        shared = rows_at(p->prepared, p->m, p->k, p->blocks);
    int8_t *w = (int8_t *)scratch + lathe_gemm_q8_rows_bytes(most, p->k, p->blocks ? p->blocks->block : 0);
    for (block.m0 = share.part[0].m0; block.m0 < m1; block.m0 = block.m1) {
        block.m1 = minimum(m1, block.m0 + most);
        block.rows = p->prepared ? rows_from(shared, block.m0, p->k) : own;
        if (!p->prepared)
            quantize(kernels, p, block.m0, block.m1, own);
        run_parts(&block, w);
    }
}
