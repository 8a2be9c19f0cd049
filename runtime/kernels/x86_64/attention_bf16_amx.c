/* attention_bf16 with its products on tile registers (AMX): keys or columns of values by 32 queries, for heads that
 * tiles divide; others go by vectors. A tile adds 32 numbers in an order of its own (kernel_bf16.h), so the keys of a
 * block are always cut at the same places.
 *
 * Where VDPBF16PS takes two cycles, as on Intel's cores, vectors are half as fast in bf16 as in f32. */
#include "attention_bf16_product.h"
#include "kernel_rows.h"
#include "tile_registers.h"
#include "vec_avx512.h"

#define STEP ((size_t)16) /* words of a tile's row */
#define UNIT (2 * STEP)   /* keys */

/* Sums of two tiles of rows, or one, by 32 queries, to lines of AQ. */
static inline __attribute__((always_inline)) void block(const bool down, const struct product *p, size_t row,
                                                        float *c) {
    const word *a = p->a + row * p->lda, *b = p->b;
    const size_t lda = p->lda * sizeof *a, ldb = p->ldb * sizeof *b;
    _tile_zero(0);
    _tile_zero(1);
    if (down) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t t = 0; t < p->steps; t += STEP, a += STEP, b += STEP * p->ldb) {
        _tile_loadd(4, a, lda);
        _tile_loadd(6, b, ldb);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, ldb);
        _tile_dpbf16ps(1, 4, 7);
        if (down) {
            _tile_loadd(5, a + TILE_ROWS * p->lda, lda);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, AQ * sizeof *c);
    _tile_stored(1, c + 16, AQ * sizeof *c);
    if (down) {
        _tile_stored(2, c + TILE_ROWS * AQ, AQ * sizeof *c);
        _tile_stored(3, c + TILE_ROWS * AQ + 16, AQ * sizeof *c);
    }
    TILE_BARRIER();
}

static void multiply(const struct product *p) {
    float sums[2 * TILE_ROWS * AQ] __attribute__((aligned(64)));
    vf line[2] = {v_load(p->line), v_load(p->line + VN)};
    TILE_BARRIER();
    for (size_t row = 0; row < p->rows; row += 2 * TILE_ROWS) {
        size_t rows = p->rows - row < 2 * TILE_ROWS ? p->rows - row : 2 * TILE_ROWS;
        float *c = p->c + row * AQ, *to = p->finish == SHRINK ? sums : c;
        if (rows > TILE_ROWS)
            block(true, p, row, to);
        else
            block(false, p, row, to);
        for (size_t r = 0; r < rows && p->finish != KEEP; r++)
            for (size_t v = 0; v < 2; v++) {
                vf x = v_load(to + r * AQ + v * VN);
                if (p->finish == MAXIMUM)
                    line[v] = v_max(x, line[v]);
                else
                    v_store(c + r * AQ + v * VN, v_fma(v_load(c + r * AQ + v * VN), line[v], x));
            }
    }
    if (p->finish == MAXIMUM)
        for (size_t v = 0; v < 2; v++)
            v_store(p->line + v * VN, line[v]);
}

void lathe_attention_bf16__amx(const struct lathe_attention_f32_args *args) {
    if (args->d % UNIT || args->dv % TILE_ROWS) {
        lathe_attention_bf16__avx512bf16(args);
        return;
    }
    tile_begin(TILE_ROWS);
    lathe_attention_bf16_by(args, multiply, UNIT);
    _tile_release();
}
