/* A session: everything a run needs, allocated once, and the public calls on it. */
#include "session.h"

#include "cpu.h"
#include "gemm_q8_drive.h"
#include "gemm_split.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_SESSION_BYTES ((size_t)1 << 46)

/* ---- making */

/* Cuts 64-byte aligned pieces from a size (first pass, base NULL) or from memory (second pass). */
struct cutter {
    uint8_t *base;
    size_t used;
    bool failed;
};

static void *cut(struct cutter *c, size_t count, size_t each) {
    size_t bytes, end;
    if (!lathe_mul_size(count, each, &bytes) || !lathe_add_size(c->used, bytes, &end) || end > MAX_SESSION_BYTES) {
        c->failed = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->used : NULL;
    c->used = (end + 63) / 64 * 64;
    return p;
}

static void cut_tables(struct lathe_session *s, struct cutter *c) {
    const struct lathe_fmt_plan *h = s->plan->head;
    const struct lathe_fmt_manifest *m = s->manifest->head;
    s->symbol_max = cut(c, h->symbol_count, sizeof *s->symbol_max);
    s->symbols = cut(c, h->symbol_count, sizeof *s->symbols);
    s->dims = cut(c, h->dim_count, sizeof *s->dims);
    s->bindings = cut(c, m->input_count, sizeof *s->bindings);
    s->tensors = cut(c, h->value_count, sizeof *s->tensors);
    s->input_values = cut(c, h->value_count, sizeof *s->input_values);
    s->steps = cut(c, h->step_count, sizeof *s->steps);
    s->phases = cut(c, 2 * (size_t)h->step_count + 1, sizeof *s->phases);
    s->attrs = cut(c, h->attr_count, sizeof *s->attrs);
    s->ints = cut(c, h->int_count, sizeof *s->ints);
    s->slots = cut(c, h->value_count, sizeof *s->slots);
    s->operands = cut(c, h->operand_count, sizeof *s->operands);
    s->outputs = cut(c, m->output_count, sizeof *s->outputs);
    s->diags = cut(c, s->threads, sizeof *s->diags);
}

static enum lathe_status make_tables(struct lathe_session *s, struct lathe_diag *diag) {
    struct cutter count = {0};
    cut_tables(s, &count);
    if (count.failed || !(s->tables = aligned_alloc(64, count.used ? count.used : 64)))
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: %zu bytes of tables", count.used);
    memset(s->tables, 0, count.used);
    struct cutter real = {.base = s->tables};
    cut_tables(s, &real);
    return LATHE_OK;
}

static void fill_attrs(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    memcpy(s->ints, p->ints, p->head->int_count * sizeof *s->ints);
    for (uint32_t i = 0; i < p->head->attr_count; i++) {
        const struct lathe_fmt_attr *f = &p->attrs[i];
        bool list = f->type == LATHE_ATTR_INTS || f->type == LATHE_ATTR_DIMS;
        s->attrs[i] = (struct lathe_attr){
            .key = (enum lathe_attr_key)f->key,
            /* operators never see dims: the session puts the values of the run into `ints` */
            .type = list ? LATHE_ATTR_INTS : (enum lathe_attr_type)f->type,
            .i = f->type == LATHE_ATTR_INT ? f->i : 0,
            .f = f->type == LATHE_ATTR_FLOAT ? f->f : 0.0,
            .ints = list ? s->ints + f->first : NULL,
            .count = f->count,
        };
    }
}

static bool step_needs_rows(const struct lathe_plan *p, const struct lathe_fmt_step *f) {
    for (uint32_t i = 0; i < (uint32_t)f->n_in + f->n_out; i++) {
        uint32_t v = p->operands[f->first_operand + i];
        for (unsigned d = 0; v != LATHE_FORMAT_ABSENT && d < p->values[v].rank; d++)
            if (p->dim_needs_rows[p->values[v].dims[d]])
                return true;
    }
    for (uint32_t i = 0; i < f->n_attrs; i++) {
        const struct lathe_fmt_attr *at = &p->attrs[f->first_attr + i];
        for (uint32_t k = 0; at->type == LATHE_ATTR_DIMS && k < at->count; k++)
            if (p->dim_needs_rows[p->ints[at->first + k]])
                return true;
    }
    return false;
}

static void fill_steps(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t i = 0; i < p->head->operand_count; i++)
        s->operands[i] = p->operands[i] == LATHE_FORMAT_ABSENT ? NULL : &s->tensors[p->operands[i]];
    for (uint32_t i = 0; i < p->head->step_count; i++) {
        const struct lathe_fmt_step *f = &p->steps[i];
        struct lathe_step_state *st = &s->steps[i];
        st->op = lathe_op_info(f->op);
        st->attrs = (struct lathe_attrs){s->attrs + f->first_attr, f->n_attrs};
        st->in = (const struct lathe_tensor *const *)(s->operands + f->first_operand);
        st->out = s->operands + f->first_operand + f->n_in;
        st->n_in = f->n_in;
        st->n_out = f->n_out;
        st->needs_rows = step_needs_rows(p, f);
        bool has_keys = f->op == LATHE_OP_ROW_MAP || (f->op == LATHE_OP_ATTENTION && f->n_in > 3 && st->in[3]);
        st->flags_rows =
            has_keys && lathe_attr_int(&st->attrs, LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM) == LATHE_MASKED_FLAG;
    }
}

static void fill_tensors(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t v = 0; v < p->head->value_count; v++) {
        const struct lathe_fmt_value *f = &p->values[v];
        struct lathe_tensor *t = &s->tensors[v];
        t->dtype = (enum lathe_dtype)f->dtype;
        t->rank = f->rank;
        if (f->place == LATHE_PLACE_CONSTANT) {
            t->data =
                (void *)(uintptr_t)(s->artifact->weights + f->offset); /* never written: results lie in the arena */
            for (unsigned i = 0; i < f->rank; i++)
                t->dims[i] = p->dims[f->dims[i]].constant;
        } else if (f->place == LATHE_PLACE_INPUT) {
            s->input_values[s->input_value_count++] = v;
        }
    }
}

static enum lathe_status set_limits(struct lathe_session *s, const struct lathe_session_options *options,
                                    struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    if (options->max_batch < 0 || options->max_seq < 0)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "max_batch %lld, max_seq %lld: must not be negative",
                          (long long)options->max_batch, (long long)options->max_seq);
    bool lowered = false;
    for (uint32_t i = 0; i < p->head->symbol_count; i++) {
        const struct lathe_fmt_symbol *sym = &p->symbols[i];
        s->symbol_max[i] = sym->max;
        int64_t asked = sym->role == LATHE_ROLE_BATCH      ? options->max_batch
                        : sym->role == LATHE_ROLE_SEQUENCE ? options->max_seq
                                                           : 0;
        if (asked > sym->max)
            return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "%s: at most %lld, the artifact has at most %lld",
                              lathe_plan_string(p, sym->name), (long long)asked, (long long)sym->max);
        if (asked > 0) {
            s->symbol_max[i] = asked;
            lowered = true;
        }
    }
    if (!lowered)
        return LATHE_OK;
    /* Rows are at most those of the mask. Its axes may be fixed, or more than two (choices of a question). */
    memcpy(s->symbols, s->symbol_max, p->head->symbol_count * sizeof *s->symbols);
    lathe_plan_eval(p, s->symbols, false, s->dims);
    for (uint32_t i = 0; i < p->head->symbol_count; i++) {
        if (p->symbols[i].source != LATHE_SYMBOL_ROWS)
            continue;
        const struct lathe_fmt_value *mask = &p->values[p->operands[p->steps[p->symbols[i].index].first_operand]];
        int64_t rows = 1;
        for (unsigned axis = 0; axis < mask->rank; axis++)
            if (s->dims[mask->dims[axis]] < 0 || !lathe_mul_i64(rows, s->dims[mask->dims[axis]], &rows))
                rows = INT64_MAX;
        s->symbol_max[i] = rows < s->symbol_max[i] ? rows : s->symbol_max[i];
    }
    return LATHE_OK;
}

/* Room for the quantized rows of a product that is not cut by rows, see session_phases.c. */
static void reserve_rows(struct lathe_session *s, const struct lathe_step_state *st) {
    const struct lathe_tensor *x = st->in[0];
    int64_t k = x && x->rank ? x->dims[x->rank - 1] : 0, m = k > 0 ? lathe_tensor_count(x) / k : 0;
    int64_t most = (int64_t)LATHE_MOST_HEAD_ROWS * s->threads + (int64_t)s->threads;
    size_t block = (size_t)lathe_attr_int(&st->attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    size_t need =
        s->threads > 1 && m > 0 ? lathe_gemm_q8_rows_bytes((size_t)(m < most ? m : most), (size_t)k, block) : 0;
    if (need > s->prepared_bytes && need < MAX_SESSION_BYTES)
        s->prepared_bytes = need;
}

/* The most scratch that a step needs at the maxima. */
static enum lathe_status find_scratch(struct lathe_session *s, struct lathe_diag *diag) {
    for (uint32_t i = 0; i < s->plan->head->step_count; i++) {
        struct lathe_step_state *st = &s->steps[i];
        if (st->op->prepare)
            reserve_rows(s, st);
        if (!st->op->scratch)
            continue;
        struct lathe_op_call call = {.attrs = st->attrs,
                                     .in = st->in,
                                     .out = st->out,
                                     .n_in = st->n_in,
                                     .n_out = st->n_out,
                                     .team = {0, s->threads, NULL},
                                     .kernels = &s->kernels};
        size_t need = st->op->scratch(&call);
        s->scratch_bytes = need > s->scratch_bytes ? need : s->scratch_bytes;
    }
    s->block_bytes = s->threads > 1 ? lathe_session_block_bytes(s) : 0;
    if (s->scratch_bytes > MAX_SESSION_BYTES)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: %zu bytes of scratch", s->scratch_bytes);
    s->scratch_bytes = (s->scratch_bytes + 4095) / 4096 * 4096;
    return LATHE_OK;
}

static void place_values(struct lathe_session *s) {
    for (uint32_t v = 0; v < s->plan->head->value_count; v++)
        if (s->plan->values[v].place == LATHE_PLACE_ARENA)
            s->tensors[v].data = s->arena + s->plan->values[v].offset;
}

void lathe_session_share(struct lathe_session *s, const struct lathe_session *owner) {
    s->arena = owner->arena;
    s->scratch = owner->scratch;
    s->scratch_bytes = owner->scratch_bytes;
    s->prepared = owner->prepared;
    s->prepared_bytes = owner->prepared_bytes;
    place_values(s);
}

/* Arena, input buffers and scratch in one mapping, whose pages appear as they are touched. */
static enum lathe_status make_memory(struct lathe_session *s, struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    const struct lathe_manifest *m = s->manifest;
    for (int pass = 0; pass < 2; pass++) {
        struct cutter c = {.base = s->memory};
        s->arena = cut(&c, p->head->arena_bytes, 1);
        for (uint32_t i = 0; i < m->head->input_count; i++) {
            struct lathe_binding *b = &s->bindings[i];
            const struct lathe_tensor *t = &s->tensors[m->inputs[i].value];
            if (!lathe_dtype_is_integer(t->dtype))
                continue;
            int64_t bytes = lathe_shape_bytes(t->dtype, t->rank, t->dims);
            if (bytes < 0)
                return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW, "input '%s': its size at the maxima overflows",
                                  s->ports[i].name);
            b->buffer_bytes = (uint64_t)bytes;
            b->buffer = cut(&c, (size_t)bytes, 1);
        }
        c.used = (c.used + 4095) / 4096 * 4096;
        s->scratch = cut(&c, s->scratch_bytes, s->threads);
        s->prepared = cut(&c, s->prepared_bytes, 1);
        s->blocks = cut(&c, s->block_bytes, s->threads);
        if (pass == 0) {
            s->memory_bytes = c.used ? c.used : 4096;
            void *map = c.failed ? MAP_FAILED
                                 : mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (map == MAP_FAILED)
                return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: %zu bytes cannot be reserved", c.used);
            s->memory = map;
        }
    }
    place_values(s);
    return LATHE_OK;
}

/* Tables, sizes at the maxima and scratch of a session whose plan, pool and kernels are set. */
static enum lathe_status prepare_plan(struct lathe_session *s, const struct lathe_session_options *options,
                                      struct lathe_diag *diag) {
    s->rows_key = -1;
    LATHE_TRY(make_tables(s, diag));
    fill_attrs(s);
    fill_steps(s);
    fill_tensors(s);
    LATHE_TRY(set_limits(s, options, diag));
    lathe_session_shape_max(s);
    LATHE_TRY(find_scratch(s, diag));
    if (!lathe_session_conflicts(s))
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: out of memory");
    return LATHE_OK;
}

enum lathe_status lathe_session_new_plan(struct lathe_session *owner, unsigned bucket, struct lathe_session **out,
                                         struct lathe_diag *diag) {
    static const struct lathe_session_options none;
    const struct lathe_bucket_plan *b = &owner->artifact->buckets->plans[bucket];
    struct lathe_session *s = *out = calloc(1, sizeof *s);
    if (!s)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: out of memory");
    s->owned = true;
    s->artifact = owner->artifact;
    s->plan = &b->plan;
    s->manifest = &b->manifest;
    s->ports = b->ports;
    s->pool = owner->pool;
    s->threads = owner->threads;
    s->kernels = owner->kernels;
    s->poison = owner->poison;
    s->always_share = owner->always_share;
    return prepare_plan(s, &none, diag);
}

enum lathe_status lathe_session_new(struct lathe_artifact *artifact, const struct lathe_session_options *options,
                                    struct lathe_session **out, struct lathe_diag *diag) {
    static const struct lathe_session_options none;
    if (!options)
        options = &none;
    *out = NULL;
    struct lathe_session *s = calloc(1, sizeof *s);
    if (!s)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: out of memory");
    s->artifact = artifact;
    s->plan = &artifact->plan;
    s->manifest = &artifact->manifest;
    s->ports = artifact->ports;
    s->poison = options->poison;
    s->always_share = options->always_share;
    uint64_t mask = options->plain_c ? 0 : options->cpu_mask ? options->cpu_mask : UINT64_MAX;
    lathe_kernels_select(lathe_cpu_bits() & mask, &s->kernels);
    enum lathe_status status = lathe_pool_new(
        &(struct lathe_pool_options){options->threads, options->cores, options->core_count}, &s->pool, diag);
    if (status == LATHE_OK)
        s->threads = lathe_pool_threads(s->pool);
    if (status == LATHE_OK && artifact->buckets)
        status = lathe_buckets_open(s, options, diag);
    else if (status == LATHE_OK && (status = prepare_plan(s, options, diag)) == LATHE_OK)
        status = make_memory(s, diag);
    if (status != LATHE_OK)
        lathe_session_close(&s);
    *out = s;
    return status;
}

void lathe_session_close(struct lathe_session **pointer) {
    struct lathe_session *s = *pointer;
    *pointer = NULL;
    if (!s)
        return;
    lathe_buckets_close(s);
    if (!s->owned)
        lathe_pool_free(&s->pool);
    if (s->memory)
        munmap(s->memory, s->memory_bytes);
    free(s->step_ns);
    free(s->conflicts);
    free(s->tables);
    free(s);
}

unsigned lathe_session_threads(const struct lathe_session *s) {
    return s->threads;
}

size_t lathe_session_arena_bytes(const struct lathe_session *s) {
    return s->buckets ? lathe_buckets_arena_bytes(s) : s->plan->head->arena_bytes;
}

/* ---- binding */

enum lathe_status lathe_session_set_input(struct lathe_session *s, unsigned index, enum lathe_dtype dtype,
                                          unsigned rank, const int64_t *dims, const void *data,
                                          struct lathe_diag *diag) {
    if (index >= s->manifest->head->input_count)
        return lathe_fail(diag, LATHE_MSG_INPUT_INDEX, "input %u: the artifact has %u", index,
                          s->manifest->head->input_count);
    const struct lathe_port *port = &s->ports[index];
    struct lathe_binding *b = &s->bindings[index];
    bool wide = lathe_dtype_is_integer(port->dtype) && (dtype == LATHE_I32 || dtype == LATHE_I64);
    if (dtype != port->dtype && !wide)
        return lathe_fail(diag, LATHE_MSG_INPUT_DTYPE, "input '%s' is %s, expected %s%s", port->name,
                          lathe_dtype_name(dtype), lathe_dtype_name(port->dtype),
                          port->dtype == LATHE_I32              ? " or i64"
                          : port->dtype == LATHE_I64            ? " or i32"
                          : lathe_dtype_is_integer(port->dtype) ? ", i32 or i64"
                                                                : "");
    if (rank != port->rank)
        return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s' has rank %u, expected %u", port->name, rank,
                          port->rank);
    for (unsigned d = 0; d < rank; d++) {
        if (port->dims[d] >= 0 ? dims[d] != port->dims[d] : dims[d] < 0)
            return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': axis %u is %lld, expected %lld", port->name, d,
                              (long long)dims[d], (long long)(port->dims[d] >= 0 ? port->dims[d] : 0));
        if (s->buckets && port->dims[d] < 0) {
            LATHE_TRY(lathe_buckets_check_dim(s, index, d, dims[d], diag));
            continue;
        }
        uint32_t dim = s->manifest->inputs[index].dims[d];
        const struct lathe_fmt_dim *f = &s->plan->dims[dim];
        if (f->op == LATHE_DIM_SYMBOL && dims[d] > s->symbol_max[f->a])
            return lathe_fail(diag, LATHE_MSG_SHAPE_LIMIT, "input '%s': %s (axis %u) is %lld, at most %lld", port->name,
                              lathe_session_dim_name(s, dim), d, (long long)dims[d], (long long)s->symbol_max[f->a]);
    }
    int64_t bytes = lathe_shape_bytes(dtype, rank, dims);
    if (bytes < 0 || (!data && bytes > 0))
        return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': %s", port->name,
                          data ? "its size overflows" : "no data");
    if (!b->bound || (rank && memcmp(b->dims, dims, rank * sizeof *dims) != 0))
        s->shape_known = false;
    b->bound = true;
    b->dtype = dtype;
    b->data = data;
    if (rank)
        memcpy(b->dims, dims, rank * sizeof *dims);
    return LATHE_OK;
}

void lathe_session_clear_inputs(struct lathe_session *s) {
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++)
        s->bindings[i].bound = false;
    s->shape_known = false;
}

/* ---- running */

static enum lathe_status check_bound(const struct lathe_session *s, struct lathe_diag *diag) {
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++)
        if (!s->bindings[i].bound && !s->ports[i].optional)
            return lathe_fail(diag, LATHE_MSG_INPUT_MISSING, "input '%s' is missing", s->ports[i].name);
    return LATHE_OK;
}

enum lathe_status lathe_session_begin(struct lathe_session *s, bool *empty, struct lathe_diag *diag) {
    s->has_output = false;
    *empty = false;
    LATHE_TRY(check_bound(s, diag));
    if (s->buckets)
        return lathe_buckets_begin(s, empty, diag);
    if (!s->shape_known || s->poison)
        LATHE_TRY(lathe_session_shape(s, empty, diag));
    if (!*empty)
        LATHE_TRY(lathe_session_inputs(s, diag));
    lathe_session_restart(s);
    return LATHE_OK;
}

void lathe_session_end(struct lathe_session *s) {
    s->has_output = true;
}

enum lathe_status lathe_session_run(struct lathe_session *s, struct lathe_diag *diag) {
    bool empty;
    LATHE_TRY(lathe_session_begin(s, &empty, diag));
    uint64_t start = s->step_ns ? lathe_now_ns() : 0;
    if (!empty)
        LATHE_TRY(s->buckets ? lathe_buckets_exec(s, diag) : lathe_session_exec(s, diag));
    if (s->step_ns) {
        s->run_ns += lathe_now_ns() - start;
        s->runs_timed++;
    }
    lathe_session_end(s);
    return LATHE_OK;
}

const struct lathe_tensor_view *lathe_session_output(const struct lathe_session *s, unsigned index) {
    return s->has_output && index < s->manifest->head->output_count ? &s->outputs[index] : NULL;
}

unsigned lathe_session_truncated_rows(const struct lathe_session *s) {
    return s->buckets ? lathe_buckets_truncated(s) : 0;
}

unsigned lathe_session_flagged_rows(const struct lathe_session *s) {
    return s->flagged;
}
