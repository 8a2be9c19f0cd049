/* Sums of products on tile registers (AMX), for the 8-bit and the bf16 rows. The including file defines
 *   tile_dot(c, a, b)  tile c (numbers of registers) plus the products of tiles a and b
 *
 * A tile of A is 16 rows of 64 bytes, one of B 64 bytes of a panel for each of 16 groups of K (4 steps of bytes, 2 of
 * bf16): the packed layouts have them as they are. 32 rows x 32 columns, four tiles of sums, go through the registers
 * together, with two of A and two of B: each that is loaded is used twice. Rows behind the last are in no tile. What K
 * has beyond whole tiles comes from copies padded with zeros: neither operand may be read past its end.
 *
 * The intrinsics are assembly that does not say which memory it reads: hence the barriers. */
#ifndef LATHE_TILES_AMX_H
#define LATHE_TILES_AMX_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TILE_ROWS      ((size_t)32)
#define TILE_COLUMNS   ((size_t)32)
#define TILE_K         ((size_t)64)   /* bytes of a row of A */
#define TILE_B         ((size_t)1024) /* and of a panel beside them */
#define TILE_BARRIER() __asm__ volatile("" ::: "memory")

/* Registers: sums 0 and 1 of the first 16 rows, 2 and 3 of the others; A 4 and 5; B 6 and 7. */
static inline void tile_begin(size_t rows) {
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (unsigned i = 0; i < 8; i++) {
        bool second = i == 2 || i == 3 || i == 5;
        size_t height = i >= 6 ? 16 : second ? rows - 16 : rows < 16 ? rows : 16;
        if (second && rows <= 16)
            continue;
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)height;
    }
    TILE_BARRIER();
    _tile_loadconfig(&config);
}

static inline void tile_end(void) {
    _tile_release();
}

struct tile_operands {
    const char *a;
    size_t lda; /* bytes */
    const char *b, *b_right;
    bool below, right; /* more than 16 rows, columns */
};

/* 64 bytes of K. */
static inline __attribute__((always_inline)) void tile_step(const struct tile_operands *o) {
    _tile_loadd(4, o->a, o->lda);
    _tile_loadd(6, o->b, 64);
    tile_dot(0, 4, 6);
    if (o->right) {
        _tile_loadd(7, o->b_right, 64);
        tile_dot(1, 4, 7);
    }
    if (o->below) {
        _tile_loadd(5, o->a + 16 * o->lda, o->lda);
        tile_dot(2, 5, 6);
        if (o->right)
            tile_dot(3, 5, 7);
    }
}

/* The sums of `rows` rows of A (row stride lda bytes, `bytes` of each) by one or two panels (the second `panel` bytes
 * behind the first), to lines of TILE_COLUMNS. fetch: NULL, or lines to bring into the second cache meanwhile,
 * fetch_step bytes for every group of K, in each panel. */
static inline void tile_sums(size_t rows, size_t panels, const char *a, size_t lda, size_t bytes, const char *b,
                             size_t panel, const char *fetch, size_t fetch_step, void *sums) {
    struct tile_operands o = {a, lda, b, b + panel, rows > 16, panels > 1};
    _tile_zero(0);
    if (o.right)
        _tile_zero(1);
    if (o.below)
        _tile_zero(2);
    if (o.below && o.right)
        _tile_zero(3);
    size_t at = 0;
    for (; at + TILE_K <= bytes; at += TILE_K) {
        for (size_t line = 0; fetch && line < 16 * fetch_step; line += 64)
            for (size_t p = 0; p < panels; p++)
                _mm_prefetch(fetch + p * panel + line, _MM_HINT_T1);
        fetch = fetch ? fetch + 16 * fetch_step : NULL;
        tile_step(&o);
        o.a += TILE_K;
        o.b += TILE_B;
        o.b_right += TILE_B;
    }
    if (at < bytes) {
        char last_a[TILE_ROWS * TILE_K] __attribute__((aligned(64))), last_b[2 * TILE_B] __attribute__((aligned(64)));
        memset(last_a, 0, sizeof last_a);
        memset(last_b, 0, sizeof last_b);
        for (size_t r = 0; r < rows; r++)
            memcpy(last_a + r * TILE_K, o.a + r * lda, bytes - at);
        memcpy(last_b, o.b, (bytes - at) * 16);
        if (o.right)
            memcpy(last_b + TILE_B, o.b_right, (bytes - at) * 16);
        TILE_BARRIER();
        o = (struct tile_operands){last_a, TILE_K, last_b, last_b + TILE_B, o.below, o.right};
        tile_step(&o);
    }
    char *to = sums;
    _tile_stored(0, to, TILE_COLUMNS * 4);
    if (o.right)
        _tile_stored(1, to + 64, TILE_COLUMNS * 4);
    if (o.below)
        _tile_stored(2, to + 16 * TILE_COLUMNS * 4, TILE_COLUMNS * 4);
    if (o.below && o.right)
        _tile_stored(3, to + 16 * TILE_COLUMNS * 4 + 64, TILE_COLUMNS * 4);
    TILE_BARRIER();
}
#endif
