/* The rows of a chunk: from the caller's inputs into the shape of a bucket, padded; from the bucket's outputs into
 * those of the request, cropped. Axis 0 is the batch where it is one, any other axis may be the sequence; the rest is
 * fixed. */
#include "session_buckets.h"

#include <string.h>

static int64_t product(const int64_t *dims, unsigned from, unsigned rank) {
    int64_t n = 1;
    for (unsigned d = from; d < rank; d++)
        n *= dims[d];
    return n;
}

static bool has_seq(const uint8_t *axes, unsigned from, unsigned rank) {
    for (unsigned d = from; d < rank; d++)
        if (axes[d] == LATHE_AXIS_SEQ)
            return true;
    return false;
}

/* Axis 0 counts the rows of the request: the batch, or the one size that it has everywhere. */
static bool has_rows(const struct lathe_session *s, uint32_t port) {
    const struct lathe_buckets *of = s->buckets->of;
    const struct lathe_port *p = &s->ports[port];
    return of->ports[port].axes[0] == LATHE_AXIS_BATCH ||
           (!of->has_batch && p->rank > 1 && p->dims[0] == of->sizes[0].batch);
}

/* ---- masks and cuts */

bool lathe_row_mask(const struct lathe_session *s, int64_t row, int64_t place) {
    const struct lathe_buckets *of = s->buckets->of;
    uint32_t mask = of->head->mask;
    if (mask == LATHE_FORMAT_ABSENT)
        return true;
    const struct lathe_binding *b = &s->bindings[mask];
    uint32_t ids = of->ports[mask].mask_of;
    bool given = b->bound;
    if (!given)
        b = &s->bindings[ids];
    int64_t i = has_rows(s, given ? mask : ids) ? row * s->buckets->seq + place : place;
    if (!given)
        return lathe_read_integer(b->dtype, b->data, i) != of->ports[ids].pad;
    if (lathe_dtype_is_float(b->dtype)) { /* a mask of floats: not 0, in any of its forms */
        size_t each = lathe_dtype_bytes(b->dtype);
        uint64_t bits = 0;
        memcpy(&bits, (const char *)b->data + (size_t)i * each, each);
        return bits << (64 - 8 * each + 1) != 0;
    }
    return lathe_read_integer(b->dtype, b->data, i) != 0;
}

struct lathe_row_cut lathe_row_cut(const struct lathe_session *s, int64_t row) {
    const struct lathe_session_buckets *b = s->buckets;
    int64_t first = 0, last = b->seq - 1;
    if (b->kept == b->seq)
        return (struct lathe_row_cut){0, last, false};
    while (last >= 0 && !lathe_row_mask(s, row, last))
        last--;
    while (first < last && !lathe_row_mask(s, row, first))
        first++;
    if (last < b->kept)
        return (struct lathe_row_cut){0, b->kept - 1, false};
    if (last - first < b->kept)
        return (struct lathe_row_cut){last - b->kept + 1, last, false};
    return (struct lathe_row_cut){first, last, true};
}

/* ---- inputs */

struct filling {
    const struct lathe_session_buckets *b;
    const uint8_t *axes;
    unsigned rank;
    const int64_t *from_dims, *to_dims;
    enum lathe_dtype from_dtype, to_dtype;
    struct lathe_row_cut cut;
    bool positions, wild; /* how padding looks */
    int64_t pad, limit;
};

static void put_integer(enum lathe_dtype dtype, char *at, int64_t value) {
    memcpy(at, &value, lathe_dtype_bytes(dtype)); /* in range: the low bytes are the number */
}

static void pad(const struct filling *f, char *to, int64_t count, int64_t before) {
    size_t each = lathe_dtype_bytes(f->to_dtype);
    if (!f->wild && !f->positions && f->pad == 0) {
        memset(to, 0, (size_t)count * each);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        char *at = to + (size_t)i * each;
        if (lathe_dtype_is_float(f->to_dtype)) {
            const float huge = i % 2 ? -1e15f : 1e15f;
            const double wide = (double)huge;
            memset(at, 0, each);
            if (f->to_dtype == LATHE_F32)
                memcpy(at, &huge, sizeof huge);
            else if (f->to_dtype == LATHE_F64)
                memcpy(at, &wide, sizeof wide);
            else
                at[each - 1] = 0x70; /* a large number in the 16-bit forms */
        } else if (f->wild && f->limit > 0) {
            put_integer(f->to_dtype, at,
                        (int64_t)((uint64_t)(i * 7919 + (before & 255) * 31 + 13) % (uint64_t)f->limit));
        } else if (f->positions) { /* they count on, as far as the table goes */
            int64_t next = before < INT64_MAX - count ? before + 1 + i : before;
            put_integer(f->to_dtype, at, f->limit > 0 && next >= f->limit ? f->limit - 1 : next);
        } else {
            put_integer(f->to_dtype, at, f->pad);
        }
    }
}

static void copy(const struct filling *f, const char *from, char *to, int64_t count) {
    if (f->from_dtype == f->to_dtype)
        memcpy(to, from, (size_t)count * lathe_dtype_bytes(f->to_dtype));
    else
        lathe_convert_integers(f->from_dtype, from, count, f->to_dtype, to);
}

/* Axes from `d` on. */
static void fill(const struct filling *f, unsigned d, const char *from, char *to) {
    if (!has_seq(f->axes, d, f->rank)) {
        copy(f, from, to, product(f->from_dims, d, f->rank));
        return;
    }
    size_t from_step = (size_t)product(f->from_dims, d + 1, f->rank) * lathe_dtype_bytes(f->from_dtype);
    size_t to_step = (size_t)product(f->to_dims, d + 1, f->rank) * lathe_dtype_bytes(f->to_dtype);
    if (f->axes[d] != LATHE_AXIS_SEQ) {
        for (int64_t i = 0; i < f->to_dims[d]; i++)
            fill(f, d + 1, from + (size_t)i * from_step, to + (size_t)i * to_step);
        return;
    }
    int64_t kept = f->b->kept;
    if (kept == f->b->seq && !has_seq(f->axes, d + 1, f->rank)) {
        copy(f, from, to, product(f->from_dims, d, f->rank));
    } else {
        for (int64_t i = 0; i < kept; i++) {
            int64_t place = kept == f->b->seq ? i : i + 1 == kept ? f->cut.last : f->cut.from + i;
            /* the last token stands at the next position, not at its own */
            if (f->positions && f->cut.cut)
                place = f->cut.from + i;
            fill(f, d + 1, from + (size_t)place * from_step, to + (size_t)i * to_step);
        }
    }
    int64_t before = 0;
    if (f->positions && kept > 0)
        before = lathe_read_integer(f->to_dtype, to + (size_t)(kept - 1) * to_step, 0);
    pad(f, to + (size_t)kept * to_step, (f->to_dims[d] - kept) * product(f->to_dims, d + 1, f->rank), before);
}

/* A row that nobody asked for: all padding, but with one token, so that it is no special case anywhere. */
static void fill_spare(const struct lathe_session *s, const struct filling *f, uint32_t input, char *to,
                       int64_t count) {
    const struct lathe_buckets *of = s->buckets->of;
    pad(f, to, count, -1);
    if (input != of->head->mask)
        return;
    const float one = 1;
    if (f->to_dtype == LATHE_F32)
        memcpy(to, &one, sizeof one);
    else if (!lathe_dtype_is_float(f->to_dtype))
        put_integer(f->to_dtype, to, 1);
}

static void fill_default(const struct lathe_session *s, const struct lathe_chunk *chunk, uint32_t input,
                         const struct filling *f, char *to) {
    const struct lathe_session_buckets *b = s->buckets;
    int64_t count = product(f->to_dims, 0, f->rank), last = f->rank ? f->to_dims[f->rank - 1] : 1;
    size_t each = lathe_dtype_bytes(f->to_dtype);
    bool mask = b->of->ports[input].mask_of != LATHE_FORMAT_ABSENT;
    bool counts = s->manifest->inputs[input].default_kind == LATHE_DEFAULT_POSITIONS;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / last, place = i % last, value = counts ? place : 0;
        if (mask && row >= chunk->rows) {
            value = place == 0;
        } else if (mask) {
            struct lathe_row_cut cut = lathe_row_cut(s, chunk->first + row);
            value = place < b->kept &&
                    lathe_row_mask(s, chunk->first + row, place + 1 == b->kept ? cut.last : cut.from + place);
        }
        put_integer(f->to_dtype, to + (size_t)i * each, value);
    }
}

/* The caller's memory has the form that the bucket wants. */
static bool is_direct(const struct lathe_session *s, const struct lathe_chunk *chunk, uint32_t input,
                      const struct lathe_port *port) {
    const struct lathe_session_buckets *b = s->buckets;
    const struct lathe_binding *bound = &s->bindings[input];
    const uint8_t *axes = b->of->ports[input].axes;
    const struct lathe_bucket_size *size = &b->of->sizes[chunk->bucket];
    return bound->dtype == port->dtype && (uintptr_t)bound->data % lathe_dtype_bytes(port->dtype) == 0 &&
           (axes[0] != LATHE_AXIS_BATCH || chunk->rows == size->batch) &&
           (!has_seq(axes, 0, port->rank) || (b->seq == size->seq && b->kept == b->seq));
}

enum lathe_status lathe_chunk_bind(struct lathe_session *s, const struct lathe_chunk *chunk, struct lathe_diag *diag) {
    const struct lathe_session_buckets *b = s->buckets;
    struct lathe_session *plan = b->plans[chunk->bucket];
    plan->tokens = b->kept;
    plan->token_places = b->of->sizes[chunk->bucket].seq;
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++) {
        const struct lathe_port *port = &plan->ports[i];
        const struct lathe_binding *bound = &s->bindings[i];
        const struct lathe_fmt_bucket_port *p = &b->of->ports[i];
        bool batched = has_rows(s, i), mask = i == b->of->head->mask;
        bool integer = lathe_dtype_is_integer(port->dtype);
        struct filling f = {.b = b,
                            .axes = p->axes,
                            .rank = port->rank,
                            .from_dims = bound->dims,
                            .to_dims = port->dims,
                            .from_dtype = bound->dtype,
                            .to_dtype = port->dtype,
                            .positions = p->pad_kind == LATHE_PAD_POSITIONS,
                            .wild = b->poison && !mask && p->pad_kind != LATHE_PAD_READ &&
                                    (integer || lathe_dtype_is_float(port->dtype)) && !strstr(port->name, "mask"),
                            .pad = mask ? 0 : p->pad,
                            .limit = port->id_limit};
        char *staged = (char *)b->inputs[i];
        const void *data = staged;
        int64_t row = product(port->dims, batched, port->rank); /* elements of a row of the bucket */
        if (!bound->bound) {
            fill_default(s, chunk, i, &f, staged);
        } else if (is_direct(s, chunk, i, port)) {
            data =
                (const char *)bound->data + (size_t)(batched ? chunk->first * row : 0) * lathe_dtype_bytes(port->dtype);
        } else {
            size_t from_row = (size_t)product(bound->dims, batched, port->rank) * lathe_dtype_bytes(bound->dtype);
            size_t to_row = (size_t)row * lathe_dtype_bytes(port->dtype);
            int64_t rows = batched ? chunk->rows : 1;
            for (int64_t r = 0; r < rows; r++) {
                f.cut = lathe_row_cut(s, batched ? chunk->first + r : 0);
                fill(&f, batched, (const char *)bound->data + (size_t)(batched ? chunk->first + r : 0) * from_row,
                     staged + (size_t)r * to_row);
            }
            for (int64_t r = rows; batched && r < port->dims[0]; r++)
                fill_spare(s, &f, i, staged + (size_t)r * to_row, row);
        }
        LATHE_TRY(lathe_session_set_input(plan, i, port->dtype, port->rank, port->dims, data, diag));
    }
    return LATHE_OK;
}

/* ---- outputs */

struct cropping {
    const uint8_t *axes;
    unsigned rank;
    const int64_t *from_dims, *to_dims;
    size_t each;
};

static void crop(const struct cropping *c, unsigned d, const char *from, char *to) {
    if (!has_seq(c->axes, d, c->rank)) {
        memcpy(to, from, (size_t)product(c->to_dims, d, c->rank) * c->each);
        return;
    }
    size_t from_step = (size_t)product(c->from_dims, d + 1, c->rank) * c->each;
    size_t to_step = (size_t)product(c->to_dims, d + 1, c->rank) * c->each;
    if (!has_seq(c->axes, d + 1, c->rank)) {
        memcpy(to, from, (size_t)c->to_dims[d] * to_step);
        return;
    }
    for (int64_t i = 0; i < c->to_dims[d]; i++)
        crop(c, d + 1, from + (size_t)i * from_step, to + (size_t)i * to_step);
}

/* The output of the request is what the plan left in the arena. */
static bool output_is_direct(const struct lathe_session *s, const struct lathe_chunk *chunk, unsigned output) {
    const struct lathe_session_buckets *b = s->buckets;
    const struct lathe_port *port = &s->ports[s->manifest->head->input_count + output];
    const uint8_t *axes = b->of->ports[s->manifest->head->input_count + output].axes;
    const struct lathe_bucket_size *size = &b->of->sizes[chunk->bucket];
    return (axes[0] != LATHE_AXIS_BATCH || (b->rows == chunk->rows && chunk->rows == size->batch)) &&
           (!has_seq(axes, 0, port->rank) || b->kept == size->seq) && !(port->per_token && b->zeroes);
}

static void take_output(struct lathe_session *s, const struct lathe_chunk *chunk, unsigned output) {
    const struct lathe_session_buckets *b = s->buckets;
    uint32_t port_index = s->manifest->head->input_count + output;
    const struct lathe_port *port = &s->ports[port_index];
    const struct lathe_tensor_view *from = lathe_session_output(b->plans[chunk->bucket], output);
    struct lathe_tensor_view *to = &s->outputs[output];
    const uint8_t *axes = b->of->ports[port_index].axes;
    if (output_is_direct(s, chunk, output)) {
        to->data = from->data;
        return;
    }
    bool batched = has_rows(s, port_index);
    if (!batched && chunk->first > 0)
        return; /* the same in every chunk */
    struct cropping c = {axes, port->rank, from->dims, to->dims, lathe_dtype_bytes(port->dtype)};
    size_t from_row = (size_t)product(from->dims, batched, port->rank) * c.each;
    size_t to_row = (size_t)product(to->dims, batched, port->rank) * c.each;
    char *out = (char *)b->outputs[output] + (size_t)chunk->first * (batched ? to_row : 0);
    for (int64_t r = 0; r < (batched ? chunk->rows : 1); r++)
        crop(&c, batched, (const char *)from->data + (size_t)r * from_row, out + (size_t)r * to_row);
    if (!port->per_token || !b->zeroes)
        return;
    size_t token = (size_t)product(to->dims, 2, port->rank) * c.each;
    for (int64_t r = 0; r < (batched ? chunk->rows : 1); r++) {
        struct lathe_row_cut cut = lathe_row_cut(s, chunk->first + r);
        for (int64_t i = 0; i < b->kept; i++)
            if (!lathe_row_mask(s, chunk->first + r, i + 1 == b->kept ? cut.last : cut.from + i))
                memset(out + (size_t)r * to_row + (size_t)i * token, 0, token);
    }
}

void lathe_chunk_take(struct lathe_session *s, const struct lathe_chunk *chunk) {
    s->flagged += s->buckets->plans[chunk->bucket]->flagged;
    for (uint32_t i = 0; i < s->manifest->head->output_count; i++)
        take_output(s, chunk, i);
}
