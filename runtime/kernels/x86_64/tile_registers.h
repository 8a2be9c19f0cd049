/* How the rows on tile registers (AMX) use them. The intrinsics are assembly that does not say which memory it reads:
 * hence the barriers. */
#ifndef LATHE_TILE_REGISTERS_H
#define LATHE_TILE_REGISTERS_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TILE_ROWS      ((size_t)16)
#define TILE_B         ((size_t)1024) /* bytes of a tile of B */
#define TILE_BARRIER() __asm__ volatile("" ::: "memory")

/* Registers: sums 0 to 3, of two tiles of rows 0 and 1, 2 and 3, or of one; A 4, the second tile 5; B 6 and 7. */
static inline void tile_begin(size_t height) {
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (unsigned i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i < 6 ? height : 16);
    }
    TILE_BARRIER();
    _tile_loadconfig(&config);
}
#endif
