/* Writes an artifact: the only writer of the format. Sections stand in the order manifest, plan, report, graph,
 * weights, known answer; nothing in them depends on the time, the host, a path or the number of jobs. */
#include "artifact_file.h"
#include "bucket_choice.h"
#include "cost.h"
#include "known_answer.h"
#include "lower.h"
#include "partition_steps.h"
#include "section_checksum.h"
#include "text.h"

#include "lathe.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define TEXT_LEVEL 9
#define MAX_LEVEL  22

struct emitter {
    struct lathe_graph *graph;     /* with its symbols */
    struct lathe_lowered *l;       /* the first plan */
    struct lathe_lowered *weights; /* the last one, which has the weights of all */
    unsigned plans;
    const struct lathe_emit_buckets *buckets; /* NULL: one plan of the graph itself */
    struct lathe_artifact_file file;
    struct lathe_fmt_prefix prefix;
    struct lathe_fmt_section sections[LATHE_SECTION_KINDS + LATHE_MAX_BUCKETS];
    uint32_t section_count;
    struct lathe_diag *diag;
    /* the section that is being streamed */
    struct lathe_checksum *sum;
    uint64_t stored;
    ZSTD_CCtx *zstd;
    void *zstd_out;
};

static enum lathe_status no_memory(struct emitter *e) {
    return lathe_fail(e->diag, LATHE_MSG_NO_MEMORY, "writing the artifact: out of memory");
}

/* ---- sections */

static enum lathe_status pad_to(struct emitter *e, uint64_t align) {
    static const uint8_t zeros[LATHE_FORMAT_PAGE];
    uint64_t n = (align - e->file.size % align) % align;
    return lathe_artifact_file_append(&e->file, zeros, (size_t)n, e->diag);
}

static struct lathe_fmt_section *begin_section(struct emitter *e, enum lathe_section_kind kind,
                                               enum lathe_section_codec codec, bool required) {
    struct lathe_fmt_section *s = &e->sections[e->section_count++];
    *s = (struct lathe_fmt_section){
        .kind = kind, .codec = codec, .flags = required ? LATHE_SECTION_REQUIRED : 0, .offset = e->file.size};
    return s;
}

static enum lathe_status add_raw(struct emitter *e, enum lathe_section_kind kind, const void *data, uint64_t size,
                                 bool required) {
    LATHE_TRY(pad_to(e, LATHE_FORMAT_ALIGN));
    struct lathe_fmt_section *s = begin_section(e, kind, LATHE_CODEC_RAW, required);
    s->stored_size = s->raw_size = size;
    s->checksum = lathe_section_checksum(data, size, 1);
    return lathe_artifact_file_append(&e->file, data, (size_t)size, e->diag);
}

static enum lathe_status add_text(struct emitter *e, enum lathe_section_kind kind, const char *text, size_t size) {
    LATHE_TRY(pad_to(e, LATHE_FORMAT_ALIGN));
    size_t bound = ZSTD_compressBound(size);
    void *packed = malloc(bound);
    if (!packed)
        return no_memory(e);
    size_t n = ZSTD_compress(packed, bound, text, size, TEXT_LEVEL);
    enum lathe_status status = LATHE_OK;
    if (ZSTD_isError(n)) {
        status = lathe_fail(e->diag, LATHE_MSG_BUG, "zstd: %s", ZSTD_getErrorName(n));
    } else {
        struct lathe_fmt_section *s = begin_section(e, kind, LATHE_CODEC_ZSTD, false);
        s->stored_size = n;
        s->raw_size = size;
        s->checksum = lathe_section_checksum(packed, n, 1);
        status = lathe_artifact_file_append(&e->file, packed, n, e->diag);
    }
    free(packed);
    return status;
}

/* ---- manifest and plan */

struct block {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
};

static void put(struct block *b, const void *data, size_t bytes) {
    if (b->failed || bytes == 0)
        return;
    if (bytes > b->capacity - b->size) {
        size_t capacity = b->capacity * 2 + bytes + 4096;
        uint8_t *more = realloc(b->data, capacity);
        if (!more) {
            b->failed = true;
            return;
        }
        b->data = more;
        b->capacity = capacity;
    }
    memcpy(b->data + b->size, data, bytes);
    b->size += bytes;
}

static void put_table(struct block *b, const struct lathe_table *t) {
    put(b, t->data, (size_t)t->count * t->each);
}

static void read_sha256(const char *hex, uint8_t out[32]) {
    memset(out, 0, 32);
    if (!hex || strlen(hex) != 64 || strspn(hex, "0123456789abcdef") != 64)
        return;
    for (unsigned i = 0; i < 64; i++) {
        unsigned digit = hex[i] <= '9' ? (unsigned)(hex[i] - '0') : (unsigned)(hex[i] - 'a') + 10;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | digit);
    }
}

/* `axes`: static shapes, which of them vary; NULL: the dims tell. */
static enum lathe_status make_port(struct emitter *e, struct lathe_strings *strings, const char *name,
                                   const struct lathe_port_facts *facts, const struct lathe_port_axes *axes,
                                   lathe_value_id v, struct lathe_fmt_port *out) {
    struct lathe_graph *g = e->l->graph;
    const struct lathe_fmt_value *f = (struct lathe_fmt_value *)e->l->values.data + facts->value;
    const struct lathe_fmt_dim *dims = e->l->dims.data;
    if (!name || !*name)
        return lathe_fail(e->diag, LATHE_MSG_LOWER_OPERATOR, "an input or output has no name");
    *out = (struct lathe_fmt_port){.name = lathe_strings_add(strings, name),
                                   .value = facts->value,
                                   .dtype = f->dtype,
                                   .rank = f->rank,
                                   .flags = facts->flags,
                                   .default_kind = facts->default_kind,
                                   .id_limit = facts->id_limit};
    memcpy(out->dims, f->dims, sizeof out->dims);
    for (unsigned d = 0; d < f->rank; d++) {
        char text[256] = "";
        if (axes && axes->kind[d])
            out->dim_names[d] = lathe_strings_add(strings, axes->name[d]);
        if (dims[f->dims[d]].op == LATHE_DIM_CONST)
            continue;
        lathe_dim_print(g->dims, lathe_dim_resolve(g->dims, lathe_value_at(g, v)->dims[d]), text, (int)sizeof text);
        out->dim_names[d] = lathe_strings_add(strings, *text ? text : "size");
    }
    return LATHE_OK;
}

/* A session splits batches: the maximum is what bounded artifacts take by default, or a larger bucket. */
#define SPLIT_BATCH 256

static void set_bucket_limits(const struct emitter *e, struct lathe_fmt_manifest *head) {
    const struct lathe_interface *face = e->graph->interface;
    const struct lathe_emit_buckets *b = e->buckets;
    for (unsigned i = 0; face->has_batch && i < b->count; i++)
        head->max_batch = i == 0 || b->sizes[i].batch > head->max_batch ? b->sizes[i].batch : head->max_batch;
    if (face->has_batch && !face->whole && head->max_batch < SPLIT_BATCH)
        head->max_batch = SPLIT_BATCH;
    if (face->has_seq)
        head->max_seq = b->sizes[b->count - 1].seq;
}

/* One row a token: the first axes are those of the mask. */
static bool is_token_output(const struct lathe_graph *g, uint32_t output) {
    const struct lathe_interface *face = g->interface;
    const struct lathe_port_axes *axes = &face->ports[g->input_count + output];
    if (face->mask == LATHE_NONE)
        return axes->kind[0] == LATHE_PORT_BATCH && axes->kind[1] == LATHE_PORT_SEQ;
    return axes->kind[1] == LATHE_PORT_SEQ && axes->kind[0] == face->ports[face->mask].kind[0];
}

static enum lathe_status add_manifest(struct emitter *e) {
    struct lathe_lowered *l = e->l;
    struct lathe_graph *g = l->graph;
    const struct lathe_emit_options *o = l->options;
    struct lathe_strings strings = {0};
    struct lathe_fmt_manifest head = {.input_count = g->input_count,
                                      .output_count = g->output_count,
                                      .label_count = o->label_count,
                                      .max_batch = l->max_batch,
                                      .max_seq = l->max_seq};
    if (e->buckets)
        set_bucket_limits(e, &head);
    head.target_name = lathe_strings_add(&strings, o->target ? o->target->name : "");
    head.writer = lathe_strings_add(&strings, "lathe " LATHE_VERSION);
    head.target_features = o->target ? o->target->features : 0;
    head.placement = o->target ? o->target->placement : LATHE_PLACEMENT_DEFAULT;
    head.cores = o->target ? o->target->cores : 0;
    head.core_memory = o->target ? o->target->core_memory_bytes : 0;
    read_sha256(o->source_sha256, head.source_sha256);
    uint32_t ports = g->input_count + g->output_count, labels = o->label_count + (o->label_count & 1);
    struct lathe_fmt_port *port = calloc((size_t)ports + 1, sizeof *port);
    uint32_t *label = calloc((size_t)labels + 1, sizeof *label);
    struct block b = {0};
    enum lathe_status status = port && label ? LATHE_OK : no_memory(e);
    for (uint32_t i = 0; status == LATHE_OK && i < ports; i++) {
        bool in = i < g->input_count;
        uint32_t k = in ? i : i - g->input_count;
        lathe_value_id v = in ? g->inputs[k] : g->outputs[k];
        if (e->buckets && !in) {
            uint16_t token = is_token_output(e->graph, k) ? LATHE_PORT_PER_TOKEN : 0;
            l->outputs[k].flags = (uint16_t)((l->outputs[k].flags & ~LATHE_PORT_PER_TOKEN) | token);
        }
        status = make_port(e, &strings, in ? lathe_value_at(g, v)->name : g->output_names[k],
                           in ? &l->inputs[k] : &l->outputs[k], e->buckets ? &e->graph->interface->ports[i] : NULL, v,
                           &port[i]);
    }
    for (unsigned i = 0; status == LATHE_OK && i < o->label_count; i++)
        label[i] = lathe_strings_add(&strings, o->labels[i]);
    lathe_strings_finish(&strings);
    head.string_bytes = strings.bytes.count;
    if (status == LATHE_OK) {
        put(&b, &head, sizeof head);
        put(&b, port, (size_t)ports * sizeof *port);
        put(&b, label, (size_t)labels * sizeof *label);
        put_table(&b, &strings.bytes);
        status = b.failed || strings.failed ? no_memory(e) : add_raw(e, LATHE_SECTION_MANIFEST, b.data, b.size, true);
    }
    free(b.data);
    free(port);
    free(label);
    lathe_strings_free(&strings);
    return status;
}

static enum lathe_status add_plan(struct emitter *e, const struct lathe_lowered *l) {
    struct lathe_fmt_plan head;
    struct lathe_plan plan;
    lathe_lowered_plan(l, &head, &plan);
    struct block b = {0};
    put(&b, &head, sizeof head);
    put_table(&b, &l->symbols);
    put_table(&b, &l->dims);
    put_table(&b, &l->values);
    put_table(&b, &l->steps);
    put_table(&b, &l->attrs);
    put_table(&b, &l->ints);
    put_table(&b, &l->operands);
    if (l->operands.count & 1)
        put(&b, &(uint32_t){0}, sizeof(uint32_t));
    put_table(&b, &l->strings.bytes);
    enum lathe_status status = b.failed ? no_memory(e) : add_raw(e, LATHE_SECTION_PLAN, b.data, b.size, true);
    free(b.data);
    return status;
}

/* ---- buckets */

static void fill_bucket_port(const struct emitter *e, uint32_t port, struct lathe_fmt_bucket_port *out) {
    const struct lathe_graph *g = e->graph;
    const struct lathe_interface *face = g->interface;
    *out = (struct lathe_fmt_bucket_port){.mask_of = LATHE_FORMAT_ABSENT};
    for (unsigned d = 0; d < LATHE_MAX_RANK; d++)
        out->axes[d] = face->ports[port].kind[d];
    if (port >= g->input_count)
        return;
    const struct lathe_value *v = &g->values[g->inputs[port]];
    const struct lathe_port_facts *facts = &e->l->inputs[port];
    bool read = port < 64 && face->read_inputs >> port & 1 && lathe_dtype_is_integer(v->dtype);
    out->pad_kind = read ? LATHE_PAD_READ : LATHE_PAD_VALUE;
    if (lathe_dtype_is_integer(v->dtype) && strstr(v->name, "position") && v->rank > 0 &&
        face->ports[port].kind[v->rank - 1] == LATHE_PORT_SEQ)
        out->pad_kind = LATHE_PAD_POSITIONS;
    else if (face->ids == port && lathe_dtype_is_integer(v->dtype) &&
             (facts->id_limit == 0 || face->pad_id < facts->id_limit))
        out->pad = face->pad_id;
    /* a mask that is not given follows from the ids, where the graph tells which of them is padding */
    if (port == face->mask && lathe_dtype_is_integer(v->dtype) && face->ids != LATHE_NONE && face->ids != port &&
        !facts->default_kind && !e->l->inputs[face->ids].default_kind &&
        !memcmp(face->ports[face->ids].kind, face->ports[port].kind, sizeof face->ports[port].kind))
        out->mask_of = face->ids;
}

static enum lathe_status add_buckets(struct emitter *e) {
    _Static_assert((int)LATHE_PORT_BATCH == (int)LATHE_AXIS_BATCH && (int)LATHE_PORT_SEQ == (int)LATHE_AXIS_SEQ,
                   "the format numbers axes as the graph does");
    const struct lathe_graph *g = e->graph;
    const struct lathe_interface *face = g->interface;
    uint32_t ports = g->input_count + g->output_count;
    struct lathe_fmt_buckets head = {.count = e->plans,
                                     .mask = face->mask == LATHE_NONE ? LATHE_FORMAT_ABSENT : face->mask};
    head.flags = (face->whole ? LATHE_BUCKETS_WHOLE : 0) | (face->hides_padding ? LATHE_BUCKETS_PAD_LENGTH : 0) |
                 (e->buckets->zero_rows && face->mask != LATHE_NONE ? LATHE_BUCKETS_ZERO_ROWS : 0);
    struct block b = {0};
    put(&b, &head, sizeof head);
    for (unsigned i = 0; i < e->plans; i++)
        put(&b, &(struct lathe_fmt_bucket){e->buckets->sizes[i].batch, face->has_seq ? e->buckets->sizes[i].seq : 0},
            sizeof(struct lathe_fmt_bucket));
    for (uint32_t i = 0; i < ports; i++) {
        struct lathe_fmt_bucket_port port;
        fill_bucket_port(e, i, &port);
        put(&b, &port, sizeof port);
    }
    for (unsigned i = 0; i < e->plans; i++)
        for (uint32_t k = 0; k < ports; k++)
            put(&b, k < g->input_count ? &e->l[i].inputs[k].value : &e->l[i].outputs[k - g->input_count].value,
                sizeof(uint32_t));
    if (e->plans * (uint64_t)ports & 1)
        put(&b, &(uint32_t){0}, sizeof(uint32_t));
    enum lathe_status status = b.failed ? no_memory(e) : add_raw(e, LATHE_SECTION_BUCKETS, b.data, b.size, true);
    free(b.data);
    return status;
}

static enum lathe_status add_report(struct emitter *e) {
    const struct lathe_emit_options *o = e->l->options;
    if (o->report_json)
        return add_text(e, LATHE_SECTION_REPORT, o->report_json, strlen(o->report_json));
    if (!e->l->report)
        return LATHE_OK;
    struct lathe_text text = {0};
    lathe_report_json(e->l->report, true, &text);
    enum lathe_status status =
        text.failed ? no_memory(e) : add_text(e, LATHE_SECTION_REPORT, text.data ? text.data : "", text.length);
    lathe_text_free(&text);
    return status;
}

static enum lathe_status add_graph(struct emitter *e) {
    struct lathe_text text = {0};
    enum lathe_status status = lathe_graph_print(e->graph, &text);
    if (status == LATHE_OK)
        status = text.failed ? no_memory(e) : add_text(e, LATHE_SECTION_GRAPH, text.data ? text.data : "", text.length);
    lathe_text_free(&text);
    return status;
}

/* ---- weights */

static enum lathe_status store(struct emitter *e, const void *data, size_t bytes) {
    lathe_checksum_update(e->sum, data, bytes);
    e->stored += bytes;
    return lathe_artifact_file_append(&e->file, data, bytes, e->diag);
}

static enum lathe_status store_weights(void *user, const void *data, size_t bytes, struct lathe_diag *diag) {
    struct emitter *e = user;
    if (!e->zstd)
        return store(e, data, bytes);
    ZSTD_inBuffer in = {data, bytes, 0};
    while (in.pos < in.size) {
        ZSTD_outBuffer out = {e->zstd_out, ZSTD_CStreamOutSize(), 0};
        size_t left = ZSTD_compressStream2(e->zstd, &out, &in, ZSTD_e_continue);
        if (ZSTD_isError(left))
            return lathe_fail(diag, LATHE_MSG_BUG, "zstd: %s", ZSTD_getErrorName(left));
        LATHE_TRY(store(e, e->zstd_out, out.pos));
    }
    return LATHE_OK;
}

static enum lathe_status finish_zstd(struct emitter *e) {
    for (size_t left = 1; left > 0;) {
        ZSTD_inBuffer in = {NULL, 0, 0};
        ZSTD_outBuffer out = {e->zstd_out, ZSTD_CStreamOutSize(), 0};
        left = ZSTD_compressStream2(e->zstd, &out, &in, ZSTD_e_end);
        if (ZSTD_isError(left))
            return lathe_fail(e->diag, LATHE_MSG_BUG, "zstd: %s", ZSTD_getErrorName(left));
        LATHE_TRY(store(e, e->zstd_out, out.pos));
    }
    return LATHE_OK;
}

static enum lathe_status add_weights(struct emitter *e) {
    int level = e->l->options->compress_level > MAX_LEVEL ? MAX_LEVEL : e->l->options->compress_level;
    bool packed = level > 0;
    LATHE_TRY(pad_to(e, packed ? LATHE_FORMAT_ALIGN : LATHE_FORMAT_PAGE));
    /* in memory, growing step by step would hold the weights twice */
    if (!packed)
        LATHE_TRY(lathe_artifact_file_reserve(&e->file, e->weights->weight_bytes + LATHE_FORMAT_PAGE, e->diag));
    struct lathe_fmt_section *s =
        begin_section(e, LATHE_SECTION_WEIGHTS, packed ? LATHE_CODEC_ZSTD : LATHE_CODEC_RAW, true);
    e->sum = lathe_checksum_new();
    if (packed) {
        e->zstd = ZSTD_createCCtx();
        e->zstd_out = malloc(ZSTD_CStreamOutSize());
    }
    enum lathe_status status = e->sum && (!packed || (e->zstd && e->zstd_out)) ? LATHE_OK : no_memory(e);
    if (status == LATHE_OK && packed) {
        ZSTD_CCtx_setParameter(e->zstd, ZSTD_c_compressionLevel, level);
        ZSTD_CCtx_setPledgedSrcSize(e->zstd, e->weights->weight_bytes); /* states the size in the frame */
    }
    if (status == LATHE_OK)
        status = lathe_weights_write(e->weights, e->l->options->jobs, &(struct lathe_weight_sink){e, store_weights},
                                     e->diag);
    if (status == LATHE_OK && packed)
        status = finish_zstd(e);
    ZSTD_freeCCtx(e->zstd);
    e->zstd = NULL;
    free(e->zstd_out);
    e->zstd_out = NULL;
    s->stored_size = e->stored;
    s->raw_size = e->weights->weight_bytes;
    if (lathe_checksum_finish(&e->sum, &s->checksum) != 0 && status == LATHE_OK)
        status = no_memory(e);
    return status;
}

/* ---- header */

static enum lathe_status write_header(struct emitter *e) {
    uint8_t header[sizeof e->prefix + sizeof e->sections] = {0};
    struct lathe_fmt_prefix *p = &e->prefix;
    size_t table = e->section_count * sizeof *e->sections;
    p->file_size = e->file.size;
    p->checksum = 0;
    memcpy(header, p, sizeof *p);
    memcpy(header + sizeof *p, e->sections, table);
    p->checksum = lathe_xxh3(header, p->header_size);
    memcpy(header, p, sizeof *p);
    return lathe_artifact_file_patch(&e->file, 0, header, p->header_size, e->diag);
}

static uint32_t packings_used(const struct lathe_lowered *l) {
    const struct lathe_weight *w = l->weights.data;
    uint32_t used = 0;
    for (uint32_t i = 0; i < l->weights.count; i++)
        used |= 1u << w[i].packing;
    return used;
}

/* What was written must be what a reader accepts: opened once, and run once for the known answer. */
static enum lathe_status check_and_answer(struct emitter *e) {
    const void *bytes = NULL;
    struct lathe_artifact *a = NULL;
    struct lathe_diag *why = calloc(1, sizeof *why);
    void *answer = NULL;
    size_t answer_size = 0;
    if (!why)
        return no_memory(e);
    enum lathe_status status = lathe_artifact_file_view(&e->file, &bytes, e->diag);
    if (status == LATHE_OK &&
        lathe_artifact_open_memory(bytes, (size_t)e->file.size,
                                   &(struct lathe_artifact_options){.skip_weight_checksum = true}, &a, why) != LATHE_OK)
        status = lathe_fail(e->diag, LATHE_MSG_BUG, "the artifact cannot be read back: %s", why->text);
    if (status == LATHE_OK && e->l->options->known_answer)
        status = lathe_known_answer_make(a, &answer, &answer_size, e->diag);
    lathe_artifact_close(&a);
    lathe_artifact_file_unview(&e->file, bytes);
    free(why);
    if (status == LATHE_OK && answer) {
        struct lathe_fmt_section *s = &e->sections[e->section_count - 1];
        s->stored_size = s->raw_size = answer_size;
        s->checksum = lathe_section_checksum(answer, answer_size, 1);
        status = lathe_artifact_file_append(&e->file, answer, answer_size, e->diag);
        if (status == LATHE_OK)
            status = write_header(e);
    }
    free(answer);
    return status;
}

static enum lathe_status emit_sections(struct emitter *e) {
    const struct lathe_emit_options *o = e->l->options;
    uint32_t count = 3 + e->plans + (e->buckets != NULL) + (o->report_json || e->l->report) + (o->known_answer != 0);
    memcpy(e->prefix.magic, LATHE_FORMAT_MAGIC, sizeof e->prefix.magic);
    e->prefix.major = LATHE_FORMAT_MAJOR;
    e->prefix.minor = LATHE_FORMAT_MINOR;
    e->prefix.section_count = count;
    e->prefix.header_size = (uint32_t)(sizeof e->prefix + count * sizeof *e->sections);
    e->prefix.packings = packings_used(e->weights);
    uint8_t blank[sizeof e->prefix + sizeof e->sections] = {0};
    LATHE_TRY(lathe_artifact_file_append(&e->file, blank, e->prefix.header_size, e->diag));
    LATHE_TRY(add_manifest(e));
    for (unsigned i = 0; i < e->plans; i++)
        LATHE_TRY(add_plan(e, &e->l[i]));
    if (e->buckets)
        LATHE_TRY(add_buckets(e));
    LATHE_TRY(add_report(e));
    LATHE_TRY(add_graph(e));
    LATHE_TRY(add_weights(e));
    if (o->known_answer) /* empty until the rest can be run */
        LATHE_TRY(add_raw(e, LATHE_SECTION_KNOWN_ANSWER, "", 0, false));
    LATHE_TRY(write_header(e));
    return check_and_answer(e);
}

/* How the plan lies on the cores of a target that has a number of them, or memory on them. */
static enum lathe_status report_placement(struct emitter *e, struct lathe_report *report) {
    const struct lathe_target *t = e->l->options->target;
    if (!t || (t->cores < 2 && !t->core_memory_bytes))
        return LATHE_OK;
    unsigned cores = t->placement == LATHE_PLACEMENT_PIPELINE && t->cores ? t->cores : 1, count = 0;
    struct lathe_stage *stages = malloc((size_t)e->plans * cores * sizeof *stages);
    struct lathe_fmt_plan *heads = malloc(e->plans * sizeof *heads);
    struct lathe_plan *plans = malloc(e->plans * sizeof *plans);
    const struct lathe_plan **list = malloc(e->plans * sizeof *list);
    enum lathe_status status = stages && heads && plans && list ? LATHE_OK : no_memory(e);
    for (unsigned i = 0; status == LATHE_OK && i < e->plans; i++) {
        lathe_lowered_plan(&e->l[i], &heads[i], &plans[i]);
        list[i] = &plans[i];
    }
    if (status == LATHE_OK)
        status = lathe_stages_make_all(list, NULL, e->plans, cores, stages, &count, e->diag);
    if (status == LATHE_OK) /* the last plan has the largest bucket, and what is held for all */
        lathe_report_placement(report, t, stages + (size_t)(e->plans - 1) * cores, count);
    free(stages);
    free(heads);
    free(plans);
    free(list);
    return status;
}

static void predict(const struct lathe_lowered *l, struct lathe_report *report) {
    struct lathe_fmt_plan head;
    struct lathe_plan plan;
    struct lathe_cost_prediction all[LATHE_COST_PREDICTIONS];
    lathe_lowered_plan(l, &head, &plan);
    unsigned count = lathe_cost_predict_all(&plan, l->options->target, l->max_batch, l->max_seq, all);
    lathe_report_cost(report, l->options->target, all, count);
    struct lathe_cost_savings savings;
    if (lathe_cost_saved(&plan, lathe_report_work_saved(report), l->max_batch, l->max_seq, &savings))
        lathe_report_savings(report, &savings);
}

static void report_memory(const struct emitter *e, struct lathe_report *report, uint64_t file) {
    const struct lathe_lowered *most = e->l;
    for (unsigned i = 1; i < e->plans; i++)
        most = e->l[i].arena_bytes > most->arena_bytes ? &e->l[i] : most;
    lathe_report_memory(report, e->weights->weight_bytes, most->arena_bytes, most->alive_bytes, file);
    struct lathe_text text = {0};
    for (unsigned i = 0; e->buckets && i < e->plans; i++)
        lathe_text_append(&text, "%s%lldx%lld: %llu bytes", i ? ", " : "", (long long)e->buckets->sizes[i].batch,
                          (long long)e->buckets->sizes[i].seq, (unsigned long long)e->l[i].arena_bytes);
    if (text.data && !text.failed)
        lathe_report_note(report, "bucket_arenas", text.data);
    lathe_text_free(&text);
}

/* The plans, each with the weights of those before it. The last one, the largest, stands in the report. */
static enum lathe_status lower_all(struct emitter *e, const struct lathe_emit_options *options,
                                   struct lathe_report *report, unsigned *made) {
    for (unsigned i = 0; i < e->plans; i++) {
        struct lathe_graph *g = e->buckets ? e->buckets->graphs[i] : e->graph;
        bool last = i + 1 == e->plans;
        LATHE_TRY(lathe_lower(g, options, last ? report : NULL, i ? &e->l[i - 1] : NULL, &e->l[i], e->diag));
        (*made)++;
    }
    e->l->report = report;
    e->weights = &e->l[e->plans - 1];
    lathe_lowered_place(e->l, e->plans);
    return LATHE_OK;
}

static enum lathe_status emit(struct lathe_graph *g, const struct lathe_emit_options *options, const char *path,
                              void **bytes, size_t *size, struct lathe_report *report, struct lathe_diag *diag) {
    struct emitter e = {.graph = g, .buckets = options->buckets, .diag = diag};
    unsigned made = 0;
    e.plans = e.buckets ? e.buckets->count : 1;
    e.l = calloc(e.plans, sizeof *e.l);
    if (!e.l)
        return no_memory(&e);
    enum lathe_status status = lower_all(&e, options, report, &made);
    for (unsigned i = 0; status == LATHE_OK && i < e.plans; i++)
        status = lathe_cost_steps(&e.l[i]) ? LATHE_OK : no_memory(&e);
    if (status == LATHE_OK && report) {
        report_memory(&e, report, 0);
        predict(e.weights, report); /* the last plan has the largest bucket */
    }
    if (status == LATHE_OK && report)
        status = report_placement(&e, report);
    bool begun = status == LATHE_OK;
    if (begun)
        status = lathe_artifact_file_begin(&e.file, path, diag);
    if (status == LATHE_OK)
        status = emit_sections(&e);
    if (status == LATHE_OK)
        status = lathe_artifact_file_commit(&e.file, diag);
    if (status == LATHE_OK && report)
        report_memory(&e, report, e.file.size);
    if (status == LATHE_OK && !path) {
        *bytes = e.file.memory;
        *size = (size_t)e.file.size;
        e.file.memory = NULL;
    }
    if (begun)
        lathe_artifact_file_end(&e.file);
    while (made)
        lathe_lowered_free(&e.l[--made]);
    free(e.l);
    return status;
}

enum lathe_status lathe_emit_file(struct lathe_graph *g, const struct lathe_emit_options *options, const char *path,
                                  struct lathe_report *report, struct lathe_diag *diag) {
    return emit(g, options, path, NULL, NULL, report, diag);
}

enum lathe_status lathe_emit_memory(struct lathe_graph *g, const struct lathe_emit_options *options, void **bytes,
                                    size_t *size, struct lathe_report *report, struct lathe_diag *diag) {
    *bytes = NULL;
    *size = 0;
    return emit(g, options, NULL, bytes, size, report, diag);
}
