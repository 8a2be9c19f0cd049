/* Rows between a padded batch [B,S,..] and a packed one [R,..]; see row_map.h. */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"
#include "row_map.h"

#include <string.h>

struct row_map {
    int64_t batch, positions, rows; /* positions: per sequence; rows: kept ones that the packed tensor has */
    const struct lathe_row_sequence *sequences;
    const struct lathe_row_place *places;
};

/* `batch` comes from the padded side; the map's size gives the positions. */
static bool read_map(const struct lathe_tensor *map, int64_t batch, int64_t rows, struct row_map *out) {
    int64_t count = lathe_tensor_count(map);
    if (map->dtype != LATHE_I32 || batch < 0 || count < 4 * batch)
        return false;
    out->batch = batch;
    out->positions = batch ? (count - 4 * batch) / (2 * batch) : 0;
    out->rows = rows;
    out->sequences = lathe_row_map_sequences(map->data);
    out->places = lathe_row_map_places(map->data, batch);
    for (int64_t b = 0; b < batch; b++) {
        const struct lathe_row_sequence *s = &out->sequences[b];
        if (s->start < 0 || s->rows < 0 || s->keys < 0 || s->keys > s->rows || s->start > rows - s->rows ||
            s->rows > out->positions)
            return false;
    }
    return true;
}

static size_t row_bytes(const struct lathe_tensor *t, unsigned leading) {
    return (size_t)lathe_count_range(t, leading, t->rank) * lathe_dtype_bytes(t->dtype);
}

enum lathe_status lathe_run_pack_rows(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct row_map map;
    if (x->rank < 2 || y->rank < 1 || !read_map(call->in[1], x->dims[0], y->dims[0], &map) ||
        row_bytes(x, 2) != row_bytes(y, 1) || map.positions != x->dims[1])
        return lathe_bad_shape(call, "pack_rows");
    size_t bytes = row_bytes(y, 1);
    int64_t begin, end;
    lathe_team_split(&call->team, y->dims[0], 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const struct lathe_row_place *at = &map.places[r];
        if (at->batch < 0 || at->batch >= map.batch || at->position < 0 || at->position >= map.positions)
            return lathe_bad_shape(call, "pack_rows");
        memcpy((char *)y->data + (size_t)r * bytes,
               (const char *)x->data + (size_t)(at->batch * map.positions + at->position) * bytes, bytes);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_unpack_rows(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct row_map map;
    if (y->rank < 2 || x->rank < 1 || !read_map(call->in[1], y->dims[0], x->dims[0], &map) ||
        row_bytes(y, 2) != row_bytes(x, 1) || map.positions != y->dims[1])
        return lathe_bad_shape(call, "unpack_rows");
    size_t bytes = row_bytes(x, 1);
    int64_t begin, end;
    lathe_team_split(&call->team, map.batch * map.positions, 1, &begin, &end);
    bool kept = lathe_attr_int(&call->attrs, LATHE_ATTR_MODE, 0) != 0;
    char *out = y->data;
    memset(out + (size_t)begin * bytes, 0, (size_t)(end - begin) * bytes);
    for (int64_t b = 0; b < map.batch; b++) {
        if ((b + 1) * map.positions <= begin || b * map.positions >= end)
            continue;
        const struct lathe_row_sequence *s = &map.sequences[b];
        /* a masked row that is kept for take_rows still gives zeros, unless `mode` asks for all that are there */
        for (int64_t r = s->start; r < s->start + (kept ? s->rows : s->keys); r++) {
            int64_t at = b * map.positions + map.places[r].position;
            if (at >= begin && at < end)
                memcpy(out + (size_t)at * bytes, (const char *)x->data + (size_t)r * bytes, bytes);
        }
    }
    return LATHE_OK;
}

/* The row at position `start` of each sequence, or at its index in operand 2 (negative ones count from the end); zeros
 * where it was not kept. */
enum lathe_status lathe_run_take_rows(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t position = lathe_attr_int(&call->attrs, LATHE_ATTR_START, 0);
    struct row_map map;
    if (y->rank < 1 || x->rank < 1 || !read_map(call->in[1], y->dims[0], x->dims[0], &map) ||
        row_bytes(y, 1) != row_bytes(x, 1))
        return lathe_bad_shape(call, "take_rows");
    const struct lathe_tensor *index = lathe_operand(call, 2);
    if (index && lathe_tensor_count(index) != map.batch)
        return lathe_bad_shape(call, "take_rows");
    size_t bytes = row_bytes(x, 1);
    int64_t begin, end;
    lathe_team_split(&call->team, map.batch, 1, &begin, &end);
    for (int64_t b = begin; b < end; b++) {
        const struct lathe_row_sequence *s = &map.sequences[b];
        char *out = (char *)y->data + (size_t)b * bytes;
        int64_t found = -1, wanted = index ? lathe_read_i64(index, b) : position;
        wanted = wanted < 0 ? wanted + map.positions : wanted;
        if (index && (wanted < 0 || wanted >= map.positions))
            return lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE,
                              "token %lld of sequence %lld is outside its %lld tokens", (long long)wanted, (long long)b,
                              (long long)map.positions);
        for (int64_t r = s->start; r < s->start + s->rows && found < 0; r++)
            if (map.places[r].position == wanted)
                found = r;
        if (found >= 0)
            memcpy(out, (const char *)x->data + (size_t)found * bytes, bytes);
        else
            memset(out, 0, bytes);
    }
    return LATHE_OK;
}

/* The mean over the keys of each sequence; sums run in the order of the keys. */
enum lathe_status lathe_run_mean_rows(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct row_map map;
    if (y->rank < 1 || x->rank < 1 || !read_map(call->in[1], y->dims[0], x->dims[0], &map) ||
        row_bytes(y, 1) != row_bytes(x, 1))
        return lathe_bad_shape(call, "mean_rows");
    if (x->dtype != LATHE_F32 || y->dtype != LATHE_F32)
        return lathe_no_dtype(call, "mean_rows", x->dtype);
    float epsilon = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-9);
    int64_t h = lathe_count_range(x, 1, x->rank), begin, end;
    lathe_team_split(&call->team, map.batch * h, 64, &begin, &end);
    while (begin < end) {
        int64_t b = begin / h, from = begin % h, n = end - begin < h - from ? end - begin : h - from;
        const struct lathe_row_sequence *s = &map.sequences[b];
        float *out = (float *)y->data + begin, count = (float)s->keys;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t r = s->start; r < s->start + s->keys; r++)
            call->kernels->binary_f32((size_t)n, 0, out, (const float *)x->data + r * h + from, 1, out);
        count = count > epsilon ? count : epsilon;
        call->kernels->binary_f32((size_t)n, 3, out, &count, 0, out);
        begin += n;
    }
    return LATHE_OK;
}
