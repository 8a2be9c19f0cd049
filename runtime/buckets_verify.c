/* Checks BUCKETS and the plans of an artifact with static shapes, once: each index and size in them can then be used as
 * it is. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BATCH ((int64_t)1 << 20)
#define MOST_SEQ   ((int64_t)1 << 24)

struct checker {
    struct lathe_artifact *a;
    struct lathe_buckets *b;
    uint32_t inputs, ports;
    const uint32_t *values; /* [bucket][port] */
    const char *what;
    struct lathe_diag *diag;
};

static enum lathe_status bad(const struct checker *c, const char *table, uint64_t index, const char *rule) {
    return lathe_fail(c->diag, LATHE_MSG_ARTIFACT_PLAN, "%s: %s %llu of BUCKETS: %s", c->what, table,
                      (unsigned long long)index, rule);
}

static enum lathe_status map_section(struct checker *c) {
    const struct lathe_fmt_section *s = c->a->by_kind[LATHE_SECTION_BUCKETS];
    const uint8_t *data = c->a->bytes + s->offset;
    struct lathe_buckets *b = c->b;
    if (s->raw_size < sizeof *b->head)
        return bad(c, "head", 0, "too short");
    const struct lathe_fmt_buckets *h = b->head = (const void *)data;
    if (h->count < 1 || h->count > LATHE_MAX_BUCKETS || h->count != c->a->plan_count)
        return bad(c, "head", 0, "as many buckets as PLAN sections, at most 48");
    bool whole = h->flags & LATHE_BUCKETS_WHOLE;
    if (h->flags & ~(LATHE_BUCKETS_PAD_LENGTH | LATHE_BUCKETS_ZERO_ROWS | LATHE_BUCKETS_WHOLE) ||
        (whole && h->flags & LATHE_BUCKETS_PAD_LENGTH) || h->reserved0 || h->reserved[0] || h->reserved[1])
        return bad(c, "head", 0, "flags or reserved bytes");
    uint64_t values = (uint64_t)h->count * c->ports;
    uint64_t need = sizeof *h + h->count * sizeof(struct lathe_fmt_bucket) +
                    c->ports * sizeof(struct lathe_fmt_bucket_port) + (values + (values & 1)) * sizeof(uint32_t);
    if (s->raw_size != need)
        return bad(c, "head", 0, "size");
    const struct lathe_fmt_bucket *at = (const void *)(h + 1);
    b->ports = (const void *)(at + h->count);
    c->values = (const void *)(b->ports + c->ports);
    if (values & 1 && c->values[values])
        return bad(c, "head", 0, "padding");
    b->sizes = calloc(h->count, sizeof *b->sizes);
    b->plans = calloc(h->count, sizeof *b->plans);
    if (!b->sizes || !b->plans)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    for (uint32_t i = 0; i < h->count; i++)
        b->sizes[i] = (struct lathe_bucket_size){at[i].batch, at[i].seq};
    b->whole = whole;
    b->list = (struct lathe_bucket_list){b->sizes, h->count, !(h->flags & LATHE_BUCKETS_PAD_LENGTH)};
    return LATHE_OK;
}

/* Axes of the ports first: they say what sizes the buckets may have. */
static enum lathe_status check_axes(const struct checker *c) {
    bool batch = false, seq = false;
    for (uint32_t i = 0; i < c->ports; i++) {
        const struct lathe_fmt_port *p = &c->a->manifest.inputs[i]; /* outputs follow */
        for (unsigned d = 0; d < 8; d++) {
            uint8_t axis = c->b->ports[i].axes[d];
            if (axis > LATHE_AXIS_SEQ || (axis && d >= p->rank) || (axis == LATHE_AXIS_BATCH && d > 0))
                return bad(c, "port", i, "axes");
            if (axis && (d >= 8 || !p->dim_names[d]))
                return bad(c, "port", i, "an axis that varies has no text");
            if (i < c->inputs) {
                batch |= axis == LATHE_AXIS_BATCH;
                seq |= axis == LATHE_AXIS_SEQ;
            } else if ((axis == LATHE_AXIS_BATCH && !batch) || (axis == LATHE_AXIS_SEQ && !seq)) {
                return bad(c, "port", i, "an output varies with what no input has");
            }
        }
    }
    c->b->has_batch = batch;
    c->b->has_seq = seq;
    return LATHE_OK;
}

static enum lathe_status check_sizes(const struct checker *c) {
    const struct lathe_buckets *b = c->b;
    const struct lathe_fmt_manifest *m = c->a->manifest.head;
    for (unsigned i = 0; i < b->list.count; i++) {
        const struct lathe_bucket_size *s = &b->sizes[i], *last = i ? &b->sizes[i - 1] : NULL;
        if (s->batch < 1 || s->batch > MOST_BATCH || (b->has_seq ? s->seq < 1 || s->seq > MOST_SEQ : s->seq != 0))
            return bad(c, "bucket", i, "size");
        if (last && (s->seq < last->seq || (s->seq == last->seq && s->batch <= last->batch)))
            return bad(c, "bucket", i, "order");
        if (!b->has_batch && s->batch != b->sizes[0].batch)
            return bad(c, "bucket", i, "a batch that no input has");
    }
    if (b->has_seq && m->max_seq != b->sizes[b->list.count - 1].seq)
        return bad(c, "head", 0, "largest sequence of the manifest");
    if (b->has_batch && m->max_batch < 1)
        return bad(c, "head", 0, "largest batch of the manifest");
    return LATHE_OK;
}

/* The largest number of an integer type, as far as i64 reaches. */
static int64_t largest(enum lathe_dtype dtype) {
    unsigned bits = 8 * (unsigned)lathe_dtype_bytes(dtype);
    bool is_signed = dtype == LATHE_I8 || dtype == LATHE_I16 || dtype == LATHE_I32 || dtype == LATHE_I64;
    return bits == 64 ? INT64_MAX : (INT64_C(1) << (is_signed ? bits - 1 : bits)) - 1;
}

static bool marks_tokens(const struct checker *c, uint32_t input) {
    const struct lathe_fmt_port *p = &c->a->manifest.inputs[input];
    return p->rank == 2 && c->b->ports[input].axes[1] == LATHE_AXIS_SEQ;
}

static enum lathe_status check_padding(const struct checker *c) {
    uint32_t mask = c->b->head->mask;
    if (mask != LATHE_FORMAT_ABSENT && (mask >= c->inputs || !marks_tokens(c, mask)))
        return bad(c, "head", 0, "mask");
    for (uint32_t i = 0; i < c->ports; i++) {
        const struct lathe_fmt_port *p = &c->a->manifest.inputs[i];
        const struct lathe_fmt_bucket_port *b = &c->b->ports[i];
        enum lathe_dtype dtype = (enum lathe_dtype)p->dtype;
        bool integer = i < c->inputs && lathe_dtype_is_integer(dtype);
        if (b->reserved || b->pad_kind > LATHE_PAD_READ || (b->pad_kind && i >= c->inputs))
            return bad(c, "port", i, "reserved bytes or padding");
        if (b->pad_kind == LATHE_PAD_POSITIONS && (!integer || p->rank < 1 || b->axes[p->rank - 1] != LATHE_AXIS_SEQ))
            return bad(c, "port", i, "positions");
        if (integer ? b->pad < 0 || b->pad > largest(dtype) || (p->id_limit > 0 && b->pad >= p->id_limit) : b->pad != 0)
            return bad(c, "port", i, "pad value");
        if (b->mask_of == LATHE_FORMAT_ABSENT)
            continue;
        const struct lathe_fmt_port *ids = b->mask_of < c->inputs ? &c->a->manifest.inputs[b->mask_of] : NULL;
        if (i != mask || b->mask_of == i || !ids || ids->rank != 2 ||
            !lathe_dtype_is_integer((enum lathe_dtype)ids->dtype) || p->default_kind || ids->default_kind ||
            memcmp(b->axes, c->b->ports[b->mask_of].axes, sizeof b->axes) != 0)
            return bad(c, "port", i, "default");
    }
    return LATHE_OK;
}

/* The ports as a plan has them: its own values, all dims fixed. */
static enum lathe_status check_plan(const struct checker *c, uint32_t index) {
    const struct lathe_fmt_section *s = c->a->plan_sections[index];
    const struct lathe_manifest *m = &c->a->manifest;
    const struct lathe_bucket_size *size = &c->b->sizes[index];
    struct lathe_bucket_plan *b = &c->b->plans[index];
    struct lathe_plan *p = &b->plan;
    LATHE_TRY(lathe_plan_map(c->a->bytes + s->offset, s->raw_size, p, c->what, c->diag));
    if (p->head->symbol_count || p->head->prologue_steps)
        return bad(c, "bucket", index, "its plan has symbols");
    for (uint32_t i = 0; i < p->head->dim_count; i++)
        if (p->dims[i].op != LATHE_DIM_CONST)
            return bad(c, "bucket", index, "its plan has a dim that is no constant");
    b->own = calloc((size_t)c->ports + 1, sizeof *b->own);
    if (!b->own)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    memcpy(b->own, m->inputs, c->ports * sizeof *b->own);
    for (uint32_t i = 0; i < c->ports; i++) {
        struct lathe_fmt_port *own = &b->own[i];
        own->value = c->values[index * (size_t)c->ports + i];
        if (own->value >= p->head->value_count || (index == 0 && own->value != m->inputs[i].value))
            return bad(c, "bucket", index, "value of a port");
        if (index > 0) /* the dims are the plan's, which lathe_plan_check looks at */
            memcpy(own->dims, p->values[own->value].dims, sizeof own->dims);
    }
    b->manifest = *m;
    b->manifest.inputs = b->own;
    b->manifest.outputs = b->own + c->inputs;
    LATHE_TRY(lathe_plan_check(c->a, &b->manifest, p, &b->ports, c->what, c->diag));
    for (uint32_t i = 0; i < c->ports; i++)
        for (unsigned d = 0; d < m->inputs[i].rank; d++) {
            uint8_t axis = c->b->ports[i].axes[d];
            int64_t want = axis == LATHE_AXIS_BATCH ? size->batch
                           : axis == LATHE_AXIS_SEQ ? size->seq
                                                    : c->b->plans[0].ports[i].dims[d];
            if (b->ports[i].dims[d] != want)
                return bad(c, "bucket", index, "the size of a port");
        }
    return LATHE_OK;
}

/* What the interface shows: as the first plan has it, with names for the axes that vary. */
static enum lathe_status make_ports(const struct checker *c) {
    const struct lathe_manifest *m = &c->a->manifest;
    struct lathe_port *ports = c->a->ports = calloc((size_t)c->ports + 1, sizeof *ports);
    if (!ports)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    memcpy(ports, c->b->plans[0].ports, c->ports * sizeof *ports);
    for (uint32_t i = 0; i < c->ports; i++) {
        ports[i].optional |= i < c->inputs && c->b->ports[i].mask_of != LATHE_FORMAT_ABSENT;
        for (unsigned d = 0; d < ports[i].rank; d++)
            if (c->b->ports[i].axes[d]) {
                ports[i].dims[d] = -1;
                ports[i].dim_names[d] = m->strings + m->inputs[i].dim_names[d];
            }
    }
    return LATHE_OK;
}

enum lathe_status lathe_buckets_verify(struct lathe_artifact *a, const char *what, struct lathe_diag *diag) {
    struct checker c = {.a = a, .what = what, .diag = diag};
    c.inputs = a->manifest.head->input_count;
    c.ports = c.inputs + a->manifest.head->output_count;
    c.b = a->buckets = calloc(1, sizeof *a->buckets);
    if (!c.b)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", what);
    LATHE_TRY(map_section(&c));
    /* the rank of a port is looked at with its plan; until then it must only not lead out of its own tables */
    for (uint32_t i = 0; i < c.ports; i++)
        if (a->manifest.inputs[i].rank > LATHE_MAX_RANK)
            return bad(&c, "port", i, "rank");
    LATHE_TRY(check_axes(&c));
    LATHE_TRY(check_sizes(&c));
    LATHE_TRY(check_padding(&c));
    for (uint32_t i = 0; i < c.b->list.count; i++)
        LATHE_TRY(check_plan(&c, i));
    a->plan = c.b->plans[0].plan;
    return make_ports(&c);
}

void lathe_buckets_free(struct lathe_buckets **pointer) {
    struct lathe_buckets *b = *pointer;
    *pointer = NULL;
    if (!b)
        return;
    for (unsigned i = 0; b->plans && i < b->list.count; i++) {
        lathe_plan_free(&b->plans[i].plan);
        free(b->plans[i].ports);
        free(b->plans[i].own);
    }
    free(b->plans);
    free(b->sizes);
    free(b);
}
