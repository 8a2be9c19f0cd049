/* Numpy broadcasting and strided copies over merged axes. */
#include "op_util.h"

bool lathe_broadcast_init(struct lathe_broadcast *b, const struct lathe_tensor *out,
                          const struct lathe_tensor *const *operands, unsigned count) {
    int64_t strides[LATHE_BROADCAST_OPERANDS][LATHE_MAX_RANK];
    for (unsigned k = 0; k < count; k++) {
        const struct lathe_tensor *t = operands[k];
        if (t->rank > out->rank)
            return false;
        unsigned lead = out->rank - t->rank;
        int64_t step = 1;
        for (unsigned i = out->rank; i-- > 0;) {
            int64_t dim = i < lead ? 1 : t->dims[i - lead];
            if (dim != 1 && dim != out->dims[i])
                return false;
            strides[k][i] = dim == 1 ? 0 : step;
            step *= dim;
        }
    }
    *b = (struct lathe_broadcast){.operands = count};
    unsigned r = 0; /* axes kept so far, outermost first */
    for (unsigned i = 0; i < out->rank; i++) {
        if (out->dims[i] == 1)
            continue;
        bool merge = r > 0;
        for (unsigned k = 0; k < count && merge; k++)
            merge = b->strides[k][r - 1] == strides[k][i] * out->dims[i];
        if (!merge)
            b->dims[r++] = 1;
        b->dims[r - 1] *= out->dims[i];
        for (unsigned k = 0; k < count; k++)
            b->strides[k][r - 1] = strides[k][i];
    }
    if (r == 0)
        b->dims[r++] = 1;
    b->rank = r;
    return true;
}

void lathe_broadcast_run(const struct lathe_broadcast *b, int64_t begin, int64_t end, int64_t limit, lathe_run_fn fn,
                         void *user) {
    if (begin >= end)
        return;
    unsigned last = b->rank - 1;
    int64_t index[LATHE_MAX_RANK], offsets[LATHE_BROADCAST_OPERANDS] = {0};
    int64_t rest = begin;
    for (unsigned i = b->rank; i-- > 0;) {
        index[i] = rest % b->dims[i];
        rest /= b->dims[i];
        for (unsigned k = 0; k < b->operands; k++)
            offsets[k] += index[i] * b->strides[k][i];
    }
    int64_t at = begin;
    for (;;) {
        int64_t n = b->dims[last] - index[last];
        if (n > end - at)
            n = end - at;
        if (n > limit)
            n = limit;
        fn(user, at, n, offsets);
        at += n;
        if (at >= end)
            return;
        index[last] += n;
        for (unsigned k = 0; k < b->operands; k++)
            offsets[k] += n * b->strides[k][last];
        for (unsigned i = last; i > 0 && index[i] == b->dims[i]; i--) {
            for (unsigned k = 0; k < b->operands; k++)
                offsets[k] += b->strides[k][i - 1] - b->dims[i] * b->strides[k][i];
            index[i] = 0;
            index[i - 1]++;
        }
    }
}

/* ---- strided copies */

static void merge_axes(struct lathe_strided *s) {
    unsigned r = 0;
    for (unsigned i = 0; i < s->rank; i++) {
        if (s->dims[i] == 1)
            continue;
        if (r > 0 && s->strides[r - 1] == s->strides[i] * s->dims[i]) {
            s->dims[r - 1] *= s->dims[i];
            s->strides[r - 1] = s->strides[i];
            continue;
        }
        s->dims[r] = s->dims[i];
        s->strides[r++] = s->strides[i];
    }
    if (r == 0) {
        s->dims[0] = 1;
        s->strides[0] = 1;
        r = 1;
    }
    s->rank = r;
}

static void copy_run(uint8_t *out, const uint8_t *in, int64_t n, int64_t stride, size_t bytes) {
    if (stride == 1) {
        memcpy(out, in, (size_t)n * bytes);
        return;
    }
    if (stride == 0) {
        lathe_fill(out, n, bytes, in);
        return;
    }
#define RUN(T)                                                                                                         \
    do {                                                                                                               \
        T *y = (T *)(void *)out;                                                                                       \
        const T *x = (const T *)(const void *)in;                                                                      \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = x[i * stride];                                                                                      \
    } while (0)
    switch (bytes) {
    case 1:
        RUN(uint8_t);
        break;
    case 2:
        RUN(uint16_t);
        break;
    case 4:
        RUN(uint32_t);
        break;
    default:
        RUN(uint64_t);
        break;
    }
#undef RUN
}

#define TILE 16
/* out[i][j] = in[i + j * stride] for a tile: rows of the input are columns of the output. */
#define TRANSPOSE_TILE(T)                                                                                              \
    static void transpose_tile_##T(T *out, int64_t ldo, const T *in, int64_t ldi, int64_t rows, int64_t cols) {        \
        if (rows == TILE && cols == TILE) {                                                                            \
            for (int i = 0; i < TILE; i++)                                                                             \
                for (int j = 0; j < TILE; j++)                                                                         \
                    out[i * ldo + j] = in[i + j * ldi];                                                                \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < rows; i++)                                                                             \
            for (int64_t j = 0; j < cols; j++)                                                                         \
                out[i * ldo + j] = in[i + j * ldi];                                                                    \
    }
TRANSPOSE_TILE(uint8_t)
TRANSPOSE_TILE(uint16_t)
TRANSPOSE_TILE(uint32_t)
TRANSPOSE_TILE(uint64_t)

static void transpose_tile(uint8_t *out, int64_t ldo, const uint8_t *in, int64_t ldi, int64_t rows, int64_t cols,
                           size_t bytes) {
    switch (bytes) {
    case 1:
        transpose_tile_uint8_t(out, ldo, in, ldi, rows, cols);
        return;
    case 2:
        transpose_tile_uint16_t((void *)out, ldo, (const void *)in, ldi, rows, cols);
        return;
    case 4:
        transpose_tile_uint32_t((void *)out, ldo, (const void *)in, ldi, rows, cols);
        return;
    default:
        transpose_tile_uint64_t((void *)out, ldo, (const void *)in, ldi, rows, cols);
        return;
    }
}

/* The innermost output axis walks the input in steps, another axis `p` walks it element by element: tiles of both keep
 * the cache lines of both sides. Work items are tiles rows of (all other axes) x (TILE of p). */
static void copy_transposed(const struct lathe_strided *s, unsigned p, const struct lathe_team *team) {
    unsigned last = s->rank - 1;
    int64_t out_strides[LATHE_STRIDED_RANK], step = 1;
    for (unsigned i = s->rank; i-- > 0;) {
        out_strides[i] = step;
        step *= s->dims[i];
    }
    int64_t blocks = (s->dims[p] + TILE - 1) / TILE, items = blocks;
    for (unsigned i = 0; i < last; i++)
        if (i != p)
            items *= s->dims[i];
    int64_t begin, end;
    lathe_team_split(team, items, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item % blocks, rest = item / blocks, in = 0, out = 0;
        for (unsigned i = last; i-- > 0;) {
            if (i == p)
                continue;
            int64_t x = rest % s->dims[i];
            rest /= s->dims[i];
            in += x * s->strides[i];
            out += x * out_strides[i];
        }
        int64_t first = block * TILE, rows = s->dims[p] - first < TILE ? s->dims[p] - first : TILE;
        in += first;
        out += first * out_strides[p];
        for (int64_t j = 0; j < s->dims[last]; j += TILE) {
            int64_t cols = s->dims[last] - j < TILE ? s->dims[last] - j : TILE;
            transpose_tile(s->out + (size_t)(out + j) * s->bytes, out_strides[p],
                           s->in + (in + j * s->strides[last]) * (int64_t)s->bytes, s->strides[last], rows, cols,
                           s->bytes);
        }
    }
}

void lathe_strided_copy(struct lathe_strided *s, const struct lathe_team *team) {
    int64_t total = 1;
    for (unsigned i = 0; i < s->rank; i++)
        total *= s->dims[i];
    if (total == 0)
        return;
    merge_axes(s);
    unsigned last = s->rank - 1;
    if (s->strides[last] != 1 && s->strides[last] != 0 && s->dims[last] >= 4)
        for (unsigned i = 0; i < last; i++)
            if (s->strides[i] == 1 && s->dims[i] >= 4) {
                copy_transposed(s, i, team);
                return;
            }
    int64_t begin, end;
    lathe_team_split(team, total, LATHE_GRAIN, &begin, &end);
    if (begin >= end)
        return;
    int64_t index[LATHE_STRIDED_RANK], in = 0, rest = begin;
    for (unsigned i = s->rank; i-- > 0;) {
        index[i] = rest % s->dims[i];
        rest /= s->dims[i];
        in += index[i] * s->strides[i];
    }
    for (int64_t at = begin;;) {
        int64_t n = s->dims[last] - index[last];
        if (n > end - at)
            n = end - at;
        copy_run(s->out + (size_t)at * s->bytes, s->in + in * (int64_t)s->bytes, n, s->strides[last], s->bytes);
        at += n;
        if (at >= end)
            return;
        index[last] += n;
        in += n * s->strides[last];
        for (unsigned i = last; i > 0 && index[i] == s->dims[i]; i--) {
            in += s->strides[i - 1] - s->dims[i] * s->strides[i];
            index[i] = 0;
            index[i - 1]++;
        }
    }
}
