/* embedding, embedding_q8: the sum of one row of each table, then layer norm. */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"

#include <string.h>

#define MAX_PAIRS   8
#define FETCH_AHEAD 3    /* output rows */
#define FETCH_BYTES 4096 /* of a table row, at most; of one in panels four times as much */
#define PANEL       16

enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

struct pair {
    const struct lathe_tensor *table, *index; /* index NULL: row offset + s, or row 0 when offset is -1 */
    const float *scale;                       /* of each row of a table of bytes */
    int64_t rows, offset;
    int64_t beside;   /* elements of a row side by side: 0 all of them; else in the panels of a product (FORMAT.md) */
    bool by_position; /* the index has one entry a position, for every sequence */
};

/* Row `at` of the output: which row of the table. */
static bool row_of(const struct lathe_op_call *call, const struct pair *p, int64_t at, int64_t positions,
                   int64_t *row) {
    int64_t s = at % positions;
    if (p->index)
        return lathe_index_at(call, p->index, p->by_position ? s : at, p->rows, row);
    *row = p->offset < 0 ? 0 : p->offset + s;
    if (*row < p->rows)
        return true;
    lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE,
               "embedding: position %lld is outside the table of %lld rows (first row used: %lld)", (long long)s,
               (long long)p->rows, (long long)p->offset);
    return false;
}

/* Which element of its panels element i of a row is. */
static int64_t panel_element(const struct pair *p, int64_t row, int64_t h, int64_t i) {
    int64_t s = p->beside, padded = (h + s - 1) / s * s;
    return row / PANEL * padded * PANEL + i / s * PANEL * s + row % PANEL * s + i % s;
}

/* Asks for the table rows of output row `at`: they lie anywhere in tables larger than the caches. */
static void fetch_rows(const struct lathe_op_call *call, const struct pair *pairs, unsigned count, int64_t at,
                       int64_t positions, int64_t h) {
    struct lathe_op_call quiet = *call; /* whose turn it is reports what is wrong */
    quiet.diag = NULL;
    for (unsigned i = 0; i < count; i++) {
        const struct pair *p = &pairs[i];
        int64_t row, each = (int64_t)lathe_dtype_bytes(p->table->dtype), bytes = h * each;
        if (!row_of(&quiet, p, at, positions, &row))
            continue;
        const char *from = (const char *)p->table->data + row * bytes;
        int64_t most = FETCH_BYTES;
        if (p->beside) {
            from = (const char *)p->table->data + panel_element(p, row, h, 0) * each;
            bytes *= PANEL;
            most *= 4;
        }
        for (int64_t b = 0; b < bytes && b < most; b += 64)
            __builtin_prefetch(from + b);
        if (p->scale)
            __builtin_prefetch(&p->scale[row]);
    }
}

/* Elements [i, i + n) of a row in panels, i and the panel's `beside` in step but for the last elements. */
static void read_panel(const struct pair *p, int64_t row, int64_t h, int64_t i, int64_t n, float *out) {
    size_t first = (size_t)panel_element(p, row, h, i), count = (size_t)n;
    if (p->beside == 1) {
        const float *from = (const float *)p->table->data + first;
        for (size_t c = 0; c < count; c++)
            out[c] = from[c * PANEL];
    } else if (p->beside == 2) {
        const uint16_t *from = (const uint16_t *)p->table->data + first;
        for (size_t c = 0; c < count; c++) {
            uint32_t bits = (uint32_t)from[c / 2 * 2 * PANEL + c % 2] << 16;
            memcpy(&out[c], &bits, sizeof bits);
        }
    } else {
        const int8_t *from = (const int8_t *)p->table->data + first;
        float scale = p->scale[row];
        size_t c = 0;
        for (; c + 4 <= count; c += 4, from += 4 * PANEL)
            for (int k = 0; k < 4; k++)
                out[c + k] = (float)from[k] * scale;
        for (int k = 0; c < count; c++, k++)
            out[c] = (float)from[k] * scale;
    }
}

/* n elements of a row from column i on, n at most LATHE_CHUNK. */
static void read_row(const struct pair *p, int64_t row, int64_t h, int64_t i, int64_t n, float *out) {
    if (p->beside) {
        read_panel(p, row, h, i, n, out);
        return;
    }
    if (!p->scale) {
        lathe_load_f32(p->table, row * h + i, n, out);
        return;
    }
    const int8_t *from = (const int8_t *)p->table->data + row * h + i;
    float scale = p->scale[row];
    for (int64_t c = 0; c < n; c++)
        out[c] = (float)from[c] * scale;
}

static void load_row(const struct pair *p, int64_t row, int64_t h, float *out) {
    if (p->table->dtype == LATHE_F32 && !p->beside) {
        memcpy(out, (const float *)p->table->data + row * h, (size_t)h * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < h; i += LATHE_CHUNK)
        read_row(p, row, h, i, h - i < LATHE_CHUNK ? h - i : LATHE_CHUNK, out + i);
}

static void add_row(const struct lathe_kernels *kernels, const struct pair *p, int64_t row, int64_t h, float *sum) {
    if (p->table->dtype == LATHE_F32 && !p->beside) {
        kernels->binary_f32((size_t)h, 0, sum, (const float *)p->table->data + row * h, 1, sum);
        return;
    }
    float values[LATHE_CHUNK];
    for (int64_t i = 0; i < h; i += LATHE_CHUNK) {
        int64_t n = h - i < LATHE_CHUNK ? h - i : LATHE_CHUNK;
        read_row(p, row, h, i, n, values);
        kernels->binary_f32((size_t)n, 0, sum + i, values, 1, sum + i);
    }
}

/* How the table lies; in panels its dims are [H, V], and its type is theirs. */
static bool set_packing(struct pair *p, int64_t packing, int64_t h) {
    const struct lathe_tensor *t = p->table;
    static const struct {
        int64_t beside;
        enum lathe_dtype dtype;
    } packings[] = {
        [PACKING_F32_N16] = {1, LATHE_F32}, [PACKING_BF16_N16K2] = {2, LATHE_BF16}, [PACKING_S8_N16K4] = {4, LATHE_I8}};
    if (!t || t->rank != 2 || packing < 0 || packing >= (int64_t)(sizeof packings / sizeof *packings))
        return false;
    p->beside = packings[packing].beside;
    p->rows = t->dims[p->beside ? 1 : 0];
    return t->dims[p->beside ? 0 : 1] == h && (!p->beside || t->dtype == packings[packing].dtype);
}

/* `each`: operands of a table, 3 with the row scales. */
static enum lathe_status run(const struct lathe_op_call *call, unsigned each, const char *name) {
    const struct lathe_tensor *gamma = call->in[0], *beta = call->in[1];
    struct lathe_tensor *y = call->out[0], *sum = lathe_result(call, 1);
    if (!y)
        y = sum;
    if (!y || y->rank < 2 || (call->n_in - 2) % each != 0 || call->n_in > 2 + each * MAX_PAIRS)
        return lathe_bad_shape(call, name);
    if (y->dtype != LATHE_F32)
        return lathe_no_dtype(call, name, y->dtype);
    int64_t h = y->dims[y->rank - 1], positions = y->dims[y->rank - 2], rows = lathe_count_range(y, 0, y->rank - 1);
    uint32_t offset_count;
    const int64_t *offsets = lathe_attr_ints(&call->attrs, LATHE_ATTR_OFFSETS, &offset_count);
    uint32_t packing_count;
    const int64_t *packings = lathe_attr_ints(&call->attrs, LATHE_ATTR_PACKINGS, &packing_count);
    struct pair pairs[MAX_PAIRS];
    unsigned count = (call->n_in - 2) / each;
    for (unsigned i = 0; i < count; i++) {
        struct pair *p = &pairs[i];
        const struct lathe_tensor *const *in = call->in + 2 + each * i, *scale = each == 3 ? in[1] : NULL;
        p->table = in[0];
        p->index = in[each - 1];
        p->scale = scale ? scale->data : NULL;
        if (!set_packing(p, i < packing_count ? packings[i] : PACKING_ROWS, h))
            return lathe_bad_shape(call, name);
        if (scale && (scale->dtype != LATHE_F32 || lathe_tensor_count(scale) != p->rows))
            return lathe_bad_shape(call, name);
        if (scale ? p->table->dtype != LATHE_I8 : !lathe_dtype_is_float(p->table->dtype))
            return lathe_no_dtype(call, name, p->table->dtype);
        p->offset = i < offset_count ? offsets[i] : 0;
        int64_t n = p->index ? lathe_tensor_count(p->index) : rows;
        p->by_position = n != rows;
        if (n != rows && n != positions)
            return lathe_bad_shape(call, name);
    }
    if ((gamma && (gamma->dtype != LATHE_F32 || lathe_tensor_count(gamma) != h)) ||
        (beta && (beta->dtype != LATHE_F32 || lathe_tensor_count(beta) != h)) || (sum && sum->dtype != LATHE_F32))
        return lathe_bad_shape(call, name);
    float epsilon = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-12);
    int64_t begin, end;
    lathe_team_split(&call->team, rows, 1, &begin, &end);
    for (int64_t at = begin; at < end && at < begin + FETCH_AHEAD; at++)
        fetch_rows(call, pairs, count, at, positions, h);
    for (int64_t at = begin; at < end; at++) {
        if (at + FETCH_AHEAD < end)
            fetch_rows(call, pairs, count, at + FETCH_AHEAD, positions, h);
        /* Without `sum` the row is built where its normalised form goes: layer norm works in place. */
        float *x = (float *)(sum ? sum : y)->data + at * h;
        for (unsigned i = 0; i < count; i++) {
            int64_t row;
            if (!row_of(call, &pairs[i], at, positions, &row))
                return LATHE_INVALID;
            if (i == 0)
                load_row(&pairs[i], row, h, x);
            else
                add_row(call->kernels, &pairs[i], row, h, x);
        }
        if (call->out[0])
            call->kernels->layer_norm_f32(1, (size_t)h, x, NULL, gamma ? gamma->data : NULL, beta ? beta->data : NULL,
                                          epsilon, (float *)y->data + at * h, NULL);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_embedding(const struct lathe_op_call *call) {
    return run(call, 2, "embedding");
}

enum lathe_status lathe_run_embedding_q8(const struct lathe_op_call *call) {
    return run(call, 3, "embedding_q8");
}
