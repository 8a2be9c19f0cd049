/* attention_q8 with its products on tile registers (AMX): tiles of 16 keys, or columns of values, by 16 queries; what
 * lies in memory for vectors are tiles as it is, but for the values. Weights are made beside the scores, on vectors.
 *
 * Xeon of the 5th generation (Emerald Rapids), a core that shares its units with another thread at times, us a head at
 * 128, 256, 512 tokens by vectors -> by tiles: heads of 64 18.9 59.5 209 -> 16.0 43.3 141; heads of 32, which fill half
 * a tile, 11.0 34.2 121 -> 11.7 31.8 107. With weights after the scores 17.3 49.1 162, 12.0 33.0 112. */
#include "attention_q8_product.h"
#include "kernel_rows.h"
#include "tile_registers.h"
#include "unroll.h"
#include "veci_avx512.h"

/* Where tiles pay: so many numbers in the keys, and queries for two vectors. */
#define LEAST_NUMBERS ((size_t)128 * 64)

/* Sums of two tiles of rows of A, or one (down), and of two vectors of queries, or one (right). */
struct tiles {
    const int32_t *a, *b;
    size_t lda, down; /* words from row to row, and to the second tile */
    size_t step;      /* words to the next tile of A */
    size_t steps;
    int32_t *c;
};

/* Bytes of keys without sign by those of queries with one, or of values with one by those of weights without. (Numbers
 * of registers are part of the instructions' text.) */
#define DOT(c, a, b)                                                                                                   \
    do {                                                                                                               \
        if (keys)                                                                                                      \
            _tile_dpbusd(c, a, b);                                                                                     \
        else                                                                                                           \
            _tile_dpbsud(c, a, b);                                                                                     \
    } while (0)

static inline __attribute__((always_inline)) void multiply(const struct tiles *t, const bool down, const bool right,
                                                           const bool keys) {
    const int32_t *a = t->a, *b = t->b;
    const size_t lda = t->lda * sizeof *a, ld = right ? 128 : 64;
    _tile_zero(0);
    if (right)
        _tile_zero(1);
    if (down)
        _tile_zero(2);
    if (down && right)
        _tile_zero(3);
    for (size_t s = 0; s < t->steps; s++, a += t->step, b += ld * 16 / sizeof *b) {
        _tile_loadd(4, a, lda);
        _tile_loadd(6, b, ld);
        DOT(0, 4, 6);
        if (right) {
            _tile_loadd(7, b + 16, ld);
            DOT(1, 4, 7);
        }
        if (down) {
            _tile_loadd(5, a + t->down, lda);
            DOT(2, 5, 6);
        }
        if (down && right)
            DOT(3, 5, 7);
    }
    _tile_stored(0, t->c, ld);
    if (right)
        _tile_stored(1, t->c + 16, ld);
    if (down)
        _tile_stored(2, t->c + 4 * ld, ld);
    if (down && right)
        _tile_stored(3, t->c + 4 * ld + 16, ld);
    TILE_BARRIER();
}

static inline __attribute__((always_inline)) void multiply_by(const struct tiles *t, bool down, bool right,
                                                              const bool keys) {
    if (right && down)
        multiply(t, true, true, keys);
    else if (right)
        multiply(t, false, true, keys);
    else if (down)
        multiply(t, true, false, keys);
    else
        multiply(t, false, false, keys);
}

/* The largest of `count` lines of scores. */
static inline __attribute__((always_inline)) void largest(const size_t vectors, const int32_t *lines, size_t count,
                                                          vi most[2][2]) {
    for (size_t j = 0; j < count; j += 2, lines += 2 * vectors * VN) {
        LATHE_UNROLL
        for (size_t u = 0; u < 2; u++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++)
            most[u][g] = vi_max(vi_load(lines + (u * vectors + g) * VN), most[u][g]);
    }
}

/* Products of a tile of keys, in register a, with the queries in 6 and 7, into the sums c and c + 1; and these stored.
 */
#define KEY_TILE(a, c, d, keys)                                                                                        \
    do {                                                                                                               \
        _tile_loadd(a, keys, 64);                                                                                      \
        _tile_zero(c);                                                                                                 \
        _tile_dpbusd(c, a, 6);                                                                                         \
        if (right) {                                                                                                   \
            _tile_zero(d);                                                                                             \
            _tile_dpbusd(d, a, 7);                                                                                     \
        }                                                                                                              \
    } while (0)
#define STORE_TILE(c, d, to)                                                                                           \
    do {                                                                                                               \
        _tile_stored(c, to, ld);                                                                                       \
        if (right)                                                                                                     \
            _tile_stored(d, to + VN, ld);                                                                              \
        TILE_BARRIER();                                                                                                \
    } while (0)

/* Heads of one tile's width: the queries stay in their registers, and while a tile of keys is multiplied the sums of
 * the one before are stored and those before that are compared. */
static inline __attribute__((always_inline)) void narrow_scores(const bool right, const struct lathe_q8_scores *p,
                                                                vi most[2][2]) {
    const size_t vectors = right ? 2 : 1, tiles = p->count / TILE_ROWS, sums = TILE_ROWS * vectors * VN;
    const size_t ld = vectors * 64;
    _tile_loadd(6, p->queries, ld);
    if (right)
        _tile_loadd(7, p->queries + VN, ld);
    for (size_t t = 0; t < tiles + 2; t++) {
        if (t < tiles) {
            if (t % 2)
                KEY_TILE(5, 2, 3, p->keys + t * TILE_ROWS * 16);
            else
                KEY_TILE(4, 0, 1, p->keys + t * TILE_ROWS * 16);
            if (p->beside)
                p->beside(p->of);
        }
        if (t > 0 && t <= tiles) {
            if (t % 2)
                STORE_TILE(0, 1, p->strip + (t - 1) * sums);
            else
                STORE_TILE(2, 3, p->strip + (t - 1) * sums);
        }
        if (t > 1)
            largest(vectors, p->strip + (t - 2) * sums, TILE_ROWS, most);
    }
}

static void scores(const struct lathe_q8_scores *p) {
    const size_t line = p->vectors * VN;
    vi most[2][2];
    for (size_t i = 0; i < 4; i++)
        most[i / 2][i % 2] = vi_set1(INT32_MIN);
    TILE_BARRIER();
    if (p->steps == 16) {
        if (p->vectors == 2)
            narrow_scores(true, p, most);
        else
            narrow_scores(false, p, most);
    } else {
        for (size_t j = 0; j < p->count; j += 2 * TILE_ROWS) {
            struct tiles tiles = {.a = p->keys + j * p->steps,
                                  .lda = p->steps,
                                  .down = TILE_ROWS * p->steps,
                                  .b = p->queries,
                                  .step = 16,
                                  .steps = p->steps / 16,
                                  .c = p->strip + j * line};
            for (int i = 0; p->beside && i < 2; i++)
                p->beside(p->of);
            multiply_by(&tiles, p->count - j > TILE_ROWS, p->vectors == 2, true);
        }
        if (p->vectors == 2)
            largest(2, p->strip, p->count, most);
        else
            largest(1, p->strip, p->count, most);
    }
    for (size_t g = 0; g < p->vectors; g++)
        vi_store(p->tops + g * VN, vi_max(most[0][g], most[1][g]));
}

/* Sums to totals. */
static inline void add(const struct lathe_q8_values *p, size_t column, size_t columns, const int32_t *sums) {
    const size_t line = p->vectors * VN;
    float *total = p->total + column * line;
    vf shrink[2] = {v_set1(0.0f), v_set1(0.0f)};
    for (size_t g = 0; p->shrink && g < p->vectors; g++)
        shrink[g] = v_load(p->shrink + g * VN);
    for (size_t c = 0; c < columns; c++)
        for (size_t g = 0; g < p->vectors; g++, sums += VN, total += VN) {
            vf x = v_from_i32(vi_load(sums));
            v_store(total, p->shrink ? v_fma(v_load(total), shrink[g], x) : x);
        }
}

static void values(const struct lathe_q8_values *p) {
    int32_t sums[2][2 * TILE_ROWS * 2 * VN] __attribute__((aligned(64))); /* of this block and the one before */
    size_t turn = 0, before = 0;
    TILE_BARRIER();
    for (size_t c = 0; c < p->columns; c += before, turn ^= 1) {
        struct tiles tiles = {.a = p->values + c * 16,
                              .lda = 16,
                              .down = TILE_ROWS * 16,
                              .b = p->weights,
                              .step = p->columns * 16,
                              .steps = p->groups,
                              .c = sums[turn]};
        bool down = p->columns - c > TILE_ROWS;
        multiply_by(&tiles, down, p->vectors == 2, false);
        if (before)
            add(p, c - before, before, sums[turn ^ 1]);
        before = down ? 2 * TILE_ROWS : TILE_ROWS;
    }
    add(p, p->columns - before, before, sums[turn ^ 1]);
}

void lathe_attention_q8__amx(const struct lathe_attention_f32_args *args) {
    if (args->nk * args->d < LEAST_NUMBERS || args->nq <= VN) {
        lathe_attention_q8__avx512vnni(args);
        return;
    }
    tile_begin(TILE_ROWS);
    lathe_attention_q8_by(args, &(struct lathe_q8_products){scores, values});
    _tile_release();
}
