/* Products on tile registers (AMX), for the rows of 8-bit and bf16 products. The including file defines
 *   struct tile_work                what the three below need
 *   tile_dot(c, a, b)               tile c (numbers of registers) plus the products of tiles a and b
 *   tile_beside(work)               a part of what else is to be done, once a step of K
 *   tile_sums(work)                 where the sums of the block go: TILE_SUMS numbers, free again
 *   tile_done(work, row, rows, column, cols, ld)   there are sums of such rows and columns, in lines of ld
 *
 * A tile of A is up to 16 rows of 64 bytes, one of B 64 bytes of a panel for each of 16 groups of K (4 steps of bytes,
 * 2 of bf16): the packed layouts have them as they are. A block of sums is two tiles of rows by two panels, so that
 * each tile that is loaded is used twice; or one by four, as the registers' latency takes four sums to hide. All tiles
 * of a product have as many rows, so that the configuration, which takes its time, is loaded once; the last one begins
 * with rows that the one before ends with where they do not divide.
 *
 * The registers are not renamed: a tile is loaded when the products that read it are done, and what does not come from
 * the first cache is waited for. Four of products take 64 cycles at least, four of loads 32, and instructions behind
 * them wait for what a load waits for: hence what goes beside stands behind the first product, where 64 multiply-adds
 * of vectors a step take no time of their own (behind the last one 13 cycles). Xeon of the 5th generation (Emerald
 * Rapids), a core to itself, share of the peak that 32 rows x 32 columns reach without an epilogue: 84 % from the first
 * cache, 75 % from the second, which gives 51 bytes a cycle. Lines asked for into the first cache a step ahead cost 4
 * %. Where another thread keeps the core's other half busy, as on shared hosts, each tile instruction takes 36 cycles,
 * loads too: the peak is 44 % then and this loop reaches half of that. */
#ifndef LATHE_TILES_AMX_H
#define LATHE_TILES_AMX_H

#include "tile_registers.h"

#define TILE_K     ((size_t)64) /* bytes of a row of A, beside TILE_B of a panel */
#define TILE_AHEAD ((size_t)8)  /* steps that lines of B are asked for early where nothing else reads them before */

struct tile_product {
    size_t rows, cols; /* at least 1; whole panels are read */
    size_t height;     /* rows of a tile; set here */
    const char *a;
    size_t lda, bytes; /* of a row of A */
    const char *b;
    size_t panel; /* bytes from one to the next */
    /* NULL, or what is brought into the second cache beside the last columns: next_step bytes a step and panel. */
    const char *next;
    size_t next_step;
};

struct tile_operands {
    const char *a, *below; /* tiles of A */
    size_t lda;
    const char *b;
    size_t panel;
};

/* Which lines of B are brought into the second cache beside a block: `lines` a step and panel from `at` on, the next
 * step's `apart` bytes further; in the last `ahead` steps from `then` on. */
struct tile_fetch {
    const char *at;
    size_t lines, apart, ahead;
    const char *then;
};

/* What else is to be done comes behind the first product: instructions wait there for no register of the tiles. */
static inline __attribute__((always_inline)) void tile_step(const bool down, const struct tile_operands *o,
                                                            struct tile_work *work, struct tile_fetch fetch) {
    _tile_loadd(4, o->a, o->lda);
    _tile_loadd(6, o->b, 64);
    tile_dot(0, 4, 6);
    for (size_t l = 0; l < fetch.lines; l++) {
        const char *line = fetch.at + l * 64;
        _mm_prefetch(line, _MM_HINT_T1);
        _mm_prefetch(line + o->panel, _MM_HINT_T1);
        if (!down) {
            _mm_prefetch(line + 2 * o->panel, _MM_HINT_T1);
            _mm_prefetch(line + 3 * o->panel, _MM_HINT_T1);
        }
    }
    tile_beside(work);
    _tile_loadd(7, o->b + o->panel, 64);
    tile_dot(1, 4, 7);
    if (down) {
        _tile_loadd(5, o->below, o->lda);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
    } else {
        _tile_loadd(6, o->b + 2 * o->panel, 64);
        tile_dot(2, 4, 6);
        _tile_loadd(7, o->b + 3 * o->panel, 64);
        tile_dot(3, 4, 7);
    }
}

/* The last bytes of K come from copies padded with zeros: neither operand may be read past its end. */
struct tile_copies {
    char a[2 * TILE_ROWS * TILE_K] __attribute__((aligned(64))), b[4 * TILE_B] __attribute__((aligned(64)));
};
static __attribute__((noinline)) void tile_copy_last(struct tile_copies *to, const struct tile_operands *o,
                                                     size_t height, size_t bytes, size_t panels) {
    memset(to, 0, sizeof *to);
    for (size_t r = 0; r < height; r++) {
        memcpy(to->a + r * TILE_K, o->a + r * o->lda, bytes);
        memcpy(to->a + (TILE_ROWS + r) * TILE_K, o->below + r * o->lda, bytes);
    }
    for (size_t p = 0; p < panels; p++)
        memcpy(to->b + p * TILE_B, o->b + p * o->panel, bytes * 16);
}

/* Sums of the rows from `row` on by four panels from b on, or down: and those from row + second on, by two. */
static inline __attribute__((always_inline)) void tile_block(const bool down, struct tile_work *work,
                                                             const struct tile_product *p, size_t row, size_t second,
                                                             const char *b, size_t panel, struct tile_fetch fetch) {
    struct tile_operands o = {p->a + row * p->lda, p->a + (row + second) * p->lda, p->lda, b, panel};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    struct tile_copies copies;
    for (size_t left = (p->bytes + TILE_K - 1) / TILE_K; left > 0; left--) {
        if (left == fetch.ahead)
            fetch.at = fetch.then;
        if (left == 1 && p->bytes % TILE_K) {
            tile_copy_last(&copies, &o, p->height, p->bytes % TILE_K, down ? 2 : 4);
            fetch.lines = 0;
            o = (struct tile_operands){copies.a, copies.a + TILE_ROWS * TILE_K, TILE_K, copies.b, TILE_B};
            TILE_BARRIER();
        }
        tile_step(down, &o, work, fetch);
        fetch.at += fetch.apart;
        o.a += TILE_K;
        o.below += TILE_K;
        o.b += TILE_B;
    }
    char *to = (char *)tile_sums(work);
    const size_t ld = down ? 128 : 256;
    TILE_BARRIER();
    _tile_stored(0, to, ld);
    _tile_stored(1, to + 64, ld);
    _tile_stored(2, down ? to + second * ld : to + 128, ld);
    _tile_stored(3, down ? to + second * ld + 64 : to + 192, ld);
    TILE_BARRIER();
}

/* All of a product: a group of columns at a time, which stays in the caches while the rows pass by. */
static inline void tile_products(struct tile_work *work, struct tile_product *p) {
    const size_t tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS, height = (p->rows + tiles - 1) / tiles;
    const size_t blocks = (tiles + 1) / 2, group = tiles % 2 ? 64 : 32;
    p->height = height;
    tile_begin(height);
    for (size_t j = 0; j < p->cols; j += group) {
        size_t end = p->cols - j < group ? p->cols : j + group;
        const bool last = end == p->cols;
        const char *next = last ? p->next : p->b + end / 16 * p->panel;
        const size_t apart = last ? p->next_step : TILE_B, lines = apart / 64;
        for (size_t i = 0; i < blocks; i++) {
            size_t row = 2 * i * height, second = p->rows - row < 2 * height ? p->rows - row - height : height;
            struct tile_fetch fetch = {.at = p->b};
            if (blocks > 1 && next) {
                size_t from = lines * i / blocks;
                fetch = (struct tile_fetch){next + from * 64, lines * (i + 1) / blocks - from, .apart = apart};
            }
            const bool down = 2 * i + 1 < tiles;
            const size_t width = down ? 32 : 64;
            if (!down)
                row = p->rows - height;
            for (size_t c = j; c < end;) {
                /* Columns that do not fill a block: panel by panel, each taken for its neighbours too. */
                const size_t left = end - c, step = left + 16 > width ? width : 16, cols = left < step ? left : step;
                const size_t panel = step == width ? p->panel : 0;
                const char *b = p->b + c / 16 * p->panel;
                if (blocks == 1) {
                    const char *then = c + step < p->cols ? b + step / 16 * p->panel : b;
                    const char *at = p->bytes > TILE_AHEAD * TILE_K ? b + TILE_AHEAD * TILE_B : then;
                    fetch = (struct tile_fetch){at, TILE_B / 64, TILE_B, TILE_AHEAD, then};
                }
                if (down)
                    tile_block(true, work, p, row, second, b, panel, fetch);
                else
                    tile_block(false, work, p, row, 0, b, panel, fetch);
                tile_done(work, row, down ? second + height : height, c, cols, width);
                fetch.at += step / 16 * p->panel;
                c += cols;
            }
        }
    }
    _tile_release();
}
#endif
