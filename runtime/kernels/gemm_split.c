/* The grid of parts of a product, tm x tn = threads. */
#include "gemm_split.h"

static size_t minimum(size_t a, size_t b) {
    return a < b ? a : b;
}

#define SMALL_WEIGHTS ((size_t)1 << 20)
#define SMALL_OWN     8  /* rows a thread for them, and */
#define FAR_OWN       32 /* for larger ones where lines pass slowly */

unsigned lathe_own_rows_q8(size_t k, size_t n, bool near) {
    return k * n < SMALL_WEIGHTS ? SMALL_OWN : near ? LATHE_MOST_OWN_ROWS_Q8 : FAR_OWN;
}

bool lathe_gemm_by_rows(size_t m, unsigned threads, unsigned own) {
    return m / own >= threads;
}

struct lathe_gemm_part lathe_gemm_part_of(const struct lathe_gemm_split *s, const struct lathe_team *team) {
    if (lathe_gemm_by_rows(s->m, lathe_team_threads(team), s->own)) {
        int64_t m0, m1;
        lathe_team_split(team, (int64_t)s->m, 1, &m0, &m1);
        return (struct lathe_gemm_part){(size_t)m0, (size_t)m1, 0, s->n};
    }
    size_t panels = (s->n + 15) / 16;
    unsigned tm = 1;
    uint64_t least = UINT64_MAX;
    for (unsigned by = 1; by <= team->count; by++) {
        if (team->count % by != 0)
            continue;
        unsigned tn = team->count / by;
        uint64_t rows = (s->m + by - 1) / by, width = (panels + tn - 1) / tn;
        uint64_t cost = 2 * rows * width + s->row_cost * rows + s->panel_cost * width;
        if (cost < least) {
            least = cost;
            tm = by;
        }
    }
    unsigned tn = team->count / tm, im = team->index % tm, in = team->index / tm;
    /* Whole groups for each thread when there are many. */
    size_t unit = panels >= 16 * (size_t)tn ? s->group : 1, units = (panels + unit - 1) / unit;
    return (struct lathe_gemm_part){.m0 = s->m * im / tm,
                                    .m1 = s->m * (im + 1) / tm,
                                    .n0 = minimum(s->n, units * in / tn * unit * 16),
                                    .n1 = minimum(s->n, units * (in + 1) / tn * unit * 16)};
}
