/* 8-bit products on vectors, included by one file an instruction set, once for each way of multiplying. The including
 * file defines
 *   Q8_NAME(x)                      way_x: what the names of this way begin with
 *   Q8_NAME(a), Q8_NAME(load_a)(p)  4 bytes of A for all lanes
 *   Q8_NAME(b), Q8_NAME(load_b)(p)  4 bytes of each of VN columns
 *   Q8_NAME(dot)(acc, a, b)         acc plus their dot product in each lane
 *   Q8_MR                           the most rows of a tile
 *   Q8_LINES                        1, or how many times as much load_a and load_b load, lines of a panel; then also
 *   Q8_NAME(first)(tile, r, j)      what the sums of row r and VN columns from j on begin with
 *   Q8_NAME(rest)(acc, a, b)        acc plus the dot product of 4 steps, where fewer lines are left, a and b in memory
 * and, for vectors of 16 lanes, may define
 *   Q8_LATER                        the epilogue of a tile is done beside the products of the next: see there; not with
 *                                   several lines a step
 * The sums stay in registers while k runs, as in gemm_body.h. Q8_CASE(way, rows, width) then is a case of the switch
 * over the rows of a tile. */
#ifdef Q8_LATER
#include "gemm_q8_later_body.h"
#else
#include "gemm_q8_finish_body.h"
#endif
#include "unroll.h"

#ifndef Q8_LINES
#define Q8_LINES 1
#endif
#undef Q8_BESIDE
#if defined(Q8_LATER) && Q8_LINES == 1
#define Q8_BESIDE
#endif
#ifndef Q8_VP
#define Q8_VP          (16 / VN) /* vectors a panel */
#define Q8_MAX_VECTORS 8
#define Q8_CASE(way, rows, width)                                                                                      \
    case rows:                                                                                                         \
        way##_rows(rows, width, tile);                                                                                 \
        return;
#endif

static inline __attribute__((always_inline)) void Q8_NAME(panels)(const size_t rows, const size_t panels,
                                                                  const struct lathe_gemm_q8_tile *tile, size_t column,
                                                                  size_t cols) {
    const size_t vectors = panels * Q8_VP;
    vi acc[Q8_MR][Q8_MAX_VECTORS];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
#if Q8_LINES > 1
            acc[r][v] = Q8_NAME(first)(tile, r, column + v * VN);
#else
            acc[r][v] = vi_set1(0);
#endif
    }
    /* Three rows share a pointer, so that the addresses of all rows fit the registers. */
    size_t lda = tile->lda, stride = tile->panel_stride, steps = tile->k / (4 * Q8_LINES);
    const size_t bytes = 64 * Q8_LINES; /* of a panel, a step */
    const uint8_t *a[(Q8_MR + 2) / 3];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3)
        a[r / 3] = tile->a + r * lda;
    const int8_t *b = tile->b + column / 16 * stride;
    /* Lines of B are asked for early: those that the caller names, or this panel group's own `ahead` steps before their
     * turn and in the last steps those of the next group, if there is one: what is behind the last one is nothing that
     * this thread needs. (In the last group its own once more, which are at hand.) */
    size_t ahead = tile->ahead / (Q8_LINES * panels), turn = steps > ahead ? steps - ahead : 0, step = 64;
    const int8_t *fetch = b + ahead * bytes, *next_group = column + panels * 16 < tile->cols ? b + panels * stride : b;
    if (tile->fetch) {
        fetch = tile->fetch;
        step = tile->fetch_step;
        turn = steps;
    }
    step *= Q8_LINES;
    const size_t fetches = (step + 63) / 64, apart = step / (fetches ? fetches : 1);
    const int8_t *last = b + steps * bytes, *end = b + turn * bytes,
                 *stop = NULL; /* stop: a row that waits has its turn */
#ifdef Q8_BESIDE
    const bool beside = rows > 6 && panels > 1; /* fewer products wait for memory, and code has its price too */
    struct lathe_gemm_q8_later *later = tile->later;
    if (later && later->waiting && !(beside && later->cols == panels * 16))
        q8_finish_all_waiting(later);
    if (later && later->waiting) {
        later->every = (uint32_t)steps / (uint32_t)later->waiting * bytes;
        stop = b + later->every;
    }
#endif
    for (;;) {
        for (const int8_t *until = stop && stop < end ? stop : end; b < until;) {
            Q8_NAME(b) bv[Q8_MAX_VECTORS];
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                bv[v] = Q8_NAME(load_b)(b + v / Q8_VP * stride + v % Q8_VP * VN * 4);
            LATHE_UNROLL
            for (size_t p = 0; p < panels; p++)
                __builtin_prefetch(fetch + p * stride, 0, 3);
            for (size_t l = 1; Q8_LINES > 1 && l < fetches; l++) {
                LATHE_UNROLL
                for (size_t p = 0; p < panels; p++)
                    __builtin_prefetch(fetch + l * apart + p * stride, 0, 3);
            }
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++) {
                Q8_NAME(a) av = Q8_NAME(load_a)(a[r / 3] + r % 3 * lda);
                LATHE_UNROLL
                for (size_t v = 0; v < vectors; v++)
                    acc[r][v] = Q8_NAME(dot)(acc[r][v], av, bv[v]);
            }
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r += 3) {
                a[r / 3] += 4 * Q8_LINES;
                __asm__("" : "+r"(a[r / 3])); /* or the compiler makes a pointer of every row and spills them */
            }
            b += bytes;
            fetch += step;
            __asm__("" : "+r"(b), "+r"(fetch)); /* or it counts steps besides */
        }
#ifdef Q8_BESIDE
        if (beside && b == stop) {
            q8_finish_waiting(later, panels * 16);
            /* The lines of this tile's own row: another core may have them. */
            if (later->waiting < rows) {
                LATHE_UNROLL
                for (size_t p = 0; p < panels; p++)
                    __builtin_prefetch(tile->c + column + later->waiting * tile->ldc + p * 16, 1);
            }
            stop = later->waiting ? b + later->every : NULL;
            continue;
        }
#endif
        if (b == last)
            break;
        end = last;
        fetch = next_group;
    }
#if Q8_LINES > 1
    LATHE_NO_UNROLL
    for (size_t l = tile->k / 4 % Q8_LINES; l > 0; l--, b += 64) {
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                acc[r][v] =
                    Q8_NAME(rest)(acc[r][v], a[r / 3] + r % 3 * lda, b + v / Q8_VP * stride + v % Q8_VP * VN * 4);
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r += 3)
            a[r / 3] += 4;
    }
#endif
    /* Through a buffer: activations need registers, and lines of C far apart may share one set of the first cache. */
    int32_t own[Q8_MR * VN * Q8_MAX_VECTORS] __attribute__((aligned(64))), *sums = own;
#ifdef Q8_BESIDE
    if (later)
        sums = later->sums;
#endif
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            vi_store(sums + (r * vectors + v) * VN, acc[r][v]);
    }
#ifdef Q8_BESIDE
    q8_finish_or_wait(tile, column, cols, sums, panels * 16);
#else
    q8_finish(tile, column, cols, sums, panels * 16);
#endif
}

#if Q8_LINES > 1
/* Columns from `first` on, row by row: for what is rare, and little code. */
static __attribute__((noinline)) void Q8_NAME(one_by_one)(const struct lathe_gemm_q8_tile *tile, size_t first) {
    for (size_t r = 0; r < tile->rows; r++) {
        struct lathe_gemm_q8_epilogue e;
        struct lathe_gemm_q8_tile row = q8_tile_rows(tile, r, 1, &e);
        for (size_t j = first; j < tile->cols; j += 16)
            Q8_NAME(panels)(1, 1, &row, j, tile->cols - j < 16 ? tile->cols - j : 16);
    }
}
#endif

/* All panels of a tile of `rows` rows (a constant after inlining), `width` at a time, the rest one by one or by twos;
 * with several lines a step by one_by_one. */
static inline __attribute__((always_inline)) void Q8_NAME(rows)(const size_t rows, const size_t width,
                                                                const struct lathe_gemm_q8_tile *tile) {
    for (size_t j = 0; j < tile->cols;) {
        size_t left = tile->cols - j, panels = (left + 15) / 16;
        if (panels >= width) {
            Q8_NAME(panels)(rows, width, tile, j, left < width * 16 ? left : width * 16);
            j += width * 16;
#if Q8_LINES > 1
        } else {
            Q8_NAME(one_by_one)(tile, j);
            return;
        }
#else
        } else if (width > 2 && panels >= 2) {
            Q8_NAME(panels)(rows, 2, tile, j, left < 32 ? left : 32);
            j += 32;
        } else {
            Q8_NAME(panels)(rows, 1, tile, j, left < 16 ? left : 16);
            j += 16;
        }
#endif
    }
}
