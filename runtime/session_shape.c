/* Sizes of a run: from the bound inputs to symbols, dims and tensors, and from them to the steps that one thread runs
 * alone and the places where the threads must meet. Allocates nothing (but for the one table of conflicts). */
#include "gemm_split.h"
#include "partition_steps.h"
#include "row_map.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

/* Below this many bytes moved, or multiply-adds, sharing a step costs more than it saves. */
#define SOLO_BYTES    16384
#define SOLO_PRODUCTS 65536
/* And below this much work in all (see step_work.c), waking the others costs more than they save: 200 us of one core.
 */
#define ALONE_WORK (200e3 * LATHE_WORK_PER_NS)

const char *lathe_session_dim_name(const struct lathe_session *s, uint32_t dim) {
    const struct lathe_fmt_dim *d = &s->plan->dims[dim];
    return d->op == LATHE_DIM_SYMBOL ? lathe_plan_string(s->plan, s->plan->symbols[d->a].name) : "size";
}

static void set_tensor(struct lathe_session *s, uint32_t v, bool clamp) {
    const struct lathe_fmt_value *f = &s->plan->values[v];
    struct lathe_tensor *t = &s->tensors[v];
    for (unsigned i = 0; i < f->rank; i++) {
        int64_t d = s->dims[f->dims[i]];
        t->dims[i] = clamp && d < 0 ? 0 : d;
    }
}

static bool value_needs_rows(const struct lathe_plan *p, const struct lathe_fmt_value *f) {
    for (unsigned i = 0; i < f->rank; i++)
        if (p->dim_needs_rows[f->dims[i]])
            return true;
    return false;
}

/* Tensors whose sizes (do not) depend on kept rows, each within the bytes that the plan set aside for it. */
static enum lathe_status set_tensors(struct lathe_session *s, bool rows, struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t v = 0; v < p->head->value_count; v++) {
        const struct lathe_fmt_value *f = &p->values[v];
        if (f->place == LATHE_PLACE_CONSTANT || value_needs_rows(p, f) != rows)
            continue;
        set_tensor(s, v, false);
        int64_t bytes = lathe_shape_bytes((enum lathe_dtype)f->dtype, f->rank, s->tensors[v].dims);
        if (bytes < 0 || (f->place == LATHE_PLACE_ARENA && (uint64_t)bytes > f->bytes))
            return lathe_fail(diag, LATHE_MSG_RUN_SHAPE,
                              "value '%s' would have %lld bytes at these sizes, %llu are planned",
                              lathe_plan_string(p, f->name), (long long)bytes, (unsigned long long)f->bytes);
    }
    return LATHE_OK;
}

/* Attributes that are dims get their values; the list of an attribute starts at the same place in `ints`. */
static enum lathe_status set_attrs(struct lathe_session *s, bool rows, struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t i = 0; i < p->head->attr_count; i++) {
        const struct lathe_fmt_attr *f = &p->attrs[i];
        if (f->type != LATHE_ATTR_DIMS)
            continue;
        for (uint32_t k = f->first; k < f->first + f->count; k++) {
            if (p->dim_needs_rows[p->ints[k]] != rows)
                continue;
            s->ints[k] = s->dims[p->ints[k]];
            if (s->ints[k] == INT64_MIN)
                return lathe_fail(diag, LATHE_MSG_RUN_SHAPE,
                                  "a size that a step needs cannot be computed for this run");
        }
    }
    return LATHE_OK;
}

/* ---- work */

static int64_t tensor_bytes(const struct lathe_tensor *t) {
    return t ? lathe_tensor_count(t) * (int64_t)lathe_dtype_bytes(t->dtype) : 0;
}

static bool is_small(const struct lathe_step_state *st) {
    int64_t moved = 0, out = 0;
    for (unsigned i = 0; i < st->n_out; i++)
        out += tensor_bytes(st->out[i]);
    switch (st->op->op) {
    case LATHE_OP_GEMM:
        if (st->n_in > 2 && st->in[2]) /* it waits inside for the product, which parts must not */
            return true;
        /* fallthrough */
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_LINEAR_Q8:
    case LATHE_OP_MATMUL:
    case LATHE_OP_CONV:
    case LATHE_OP_MATMUL_INTEGER:
    case LATHE_OP_MATMUL_NBITS: {
        const struct lathe_tensor *x = st->in[0];
        int64_t k = x->rank ? x->dims[x->rank - 1] : 1, n = lathe_tensor_count(st->out[0]);
        return k == 0 || n < SOLO_PRODUCTS / (k + 1);
    }
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
    case LATHE_OP_SDPA:
    case LATHE_OP_EINSUM:
        return out < 1024;
    case LATHE_OP_ROW_MAP:
        return true;
    case LATHE_OP_GATHER:
    case LATHE_OP_EMBEDDING_Q8:
    case LATHE_OP_EMBEDDING: /* the table is not read whole */
    case LATHE_OP_GATHER_BLOCK_QUANTIZED:
        return 2 * out < SOLO_BYTES;
    default:
        for (unsigned i = 0; i < st->n_in; i++)
            moved += tensor_bytes(st->in[i]);
        return moved + out < SOLO_BYTES;
    }
}

/* Operands that a step working by rows touches by rows: bits of ins, then of outs. */
struct row_operands {
    unsigned in, out;
    unsigned own; /* see lathe_gemm_by_rows; 0: by the size of the weights */
};
static struct row_operands row_operands(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_LINEAR:
        return (struct row_operands){1u << 0 | 1u << 3, 1, LATHE_OWN_ROWS_F32};
    case LATHE_OP_LINEAR_BF16:
        return (struct row_operands){1u << 0 | 1u << 3, 1, LATHE_OWN_ROWS_BF16};
    case LATHE_OP_LINEAR_Q8:
        return (struct row_operands){1u << 0 | 1u << 5, 1, 0};
    case LATHE_OP_SKIP_LAYER_NORM:
        return (struct row_operands){1u << 0 | 1u << 1, 3, 1};
    default:
        return (struct row_operands){0, 0, 1};
    }
}

/* See struct lathe_step_state. */
static size_t rows_of_step(const struct lathe_session *s, const struct lathe_step_state *st) {
    const struct lathe_tensor *y = st->n_out ? st->out[0] : NULL;
    struct row_operands by_rows = row_operands(st->op->op);
    if (st->solo || !by_rows.out || !st->in[0] || st->in[0]->rank < 1 || !y || y->rank < 1 || y->dims[y->rank - 1] < 1)
        return 0;
    size_t rows = (size_t)(lathe_tensor_count(y) / y->dims[y->rank - 1]);
    const struct lathe_tensor *x = st->in[0];
    if (!by_rows.own)
        by_rows.own = lathe_own_rows_q8((size_t)x->dims[x->rank - 1], (size_t)y->dims[y->rank - 1]);
    return lathe_gemm_by_rows(rows, s->threads, by_rows.own) ? rows : 0;
}

/* Where threads meet: before a step that conflicts with one since the last barrier, unless one thread runs both. */
static void set_phases(struct lathe_session *s) {
    uint32_t prologue = s->plan->head->prologue_steps, count = s->plan->head->step_count, last = prologue;
    double work = 0;
    for (uint32_t i = prologue; i < count; i++)
        work += lathe_step_work(s->plan, i, s->dims);
    s->alone = s->threads < 2 || (work < ALONE_WORK && !s->always_share);
    s->phases[0] = prologue; /* its steps are run by the caller before the threads start */
    s->phase_count = 1;
    for (uint32_t i = 0; i < count; i++) {
        struct lathe_step_state *st = &s->steps[i];
        st->solo = s->alone || is_small(st);
        st->rows = rows_of_step(s, st);
        for (uint32_t c = 0; i >= prologue && c < st->conflict_count; c++) {
            uint32_t conflict = s->conflicts[st->first_conflict + c], other = conflict & ~LATHE_SAME_ROWS;
            if (other < last)
                break;
            bool by_rows = conflict & LATHE_SAME_ROWS && st->rows && st->rows == s->steps[other].rows;
            if (!(st->solo && s->steps[other].solo) && !by_rows) {
                s->phases[s->phase_count++] = last = i;
                break;
            }
        }
    }
    s->phases[s->phase_count] = count;
}

static enum lathe_status check_scratch(struct lathe_session *s, bool rows, struct lathe_diag *diag) {
    for (uint32_t i = 0; i < s->plan->head->step_count; i++) {
        struct lathe_step_state *st = &s->steps[i];
        if (!st->op->scratch || st->needs_rows != rows)
            continue;
        struct lathe_op_call call = {.attrs = st->attrs,
                                     .in = st->in,
                                     .out = st->out,
                                     .n_in = st->n_in,
                                     .n_out = st->n_out,
                                     .team = {0, s->threads, NULL},
                                     .kernels = &s->kernels};
        size_t need = st->op->scratch(&call);
        if (need > s->scratch_bytes)
            return lathe_fail(diag, LATHE_MSG_BUG, "step '%s' (%s) needs %zu bytes of scratch, %zu are set aside",
                              lathe_plan_string(s->plan, s->plan->steps[i].name), st->op->name, need, s->scratch_bytes);
    }
    return LATHE_OK;
}

/* ---- entry points */

static const char *input_name(const struct lathe_session *s, uint32_t i) {
    return s->artifact->ports[i].name;
}

static enum lathe_status read_symbols(struct lathe_session *s, bool *empty, struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    *empty = false;
    for (uint32_t i = 0; i < p->head->symbol_count; i++) {
        const struct lathe_fmt_symbol *sym = &p->symbols[i];
        if (sym->source == LATHE_SYMBOL_ROWS) {
            s->symbols[i] = 0;
            continue;
        }
        const struct lathe_binding *b = &s->bindings[sym->index];
        if (!b->bound) /* its source is an input with a default that nobody gave; another input may still tell */
            return lathe_fail(diag, LATHE_MSG_INPUT_MISSING, "input '%s' is needed: it tells %s",
                              input_name(s, sym->index), lathe_plan_string(p, sym->name));
        int64_t v = b->dims[sym->axis];
        s->symbols[i] = v;
        const char *name = lathe_plan_string(p, sym->name);
        if (v == 0 && sym->role == LATHE_ROLE_BATCH)
            *empty = true;
        else if (v == 0)
            return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': %s (axis %u) is 0, expected at least %lld",
                              input_name(s, sym->index), name, sym->axis, (long long)(sym->min > 1 ? sym->min : 1));
        else if (v < sym->min)
            return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': %s (axis %u) is %lld, expected at least %lld",
                              input_name(s, sym->index), name, sym->axis, (long long)v, (long long)sym->min);
        if (v > s->symbol_max[i])
            return lathe_fail(diag, LATHE_MSG_SHAPE_LIMIT, "input '%s': %s (axis %u) is %lld, at most %lld%s",
                              input_name(s, sym->index), name, sym->axis, (long long)v, (long long)s->symbol_max[i],
                              s->symbol_max[i] < sym->max ? " in this session" : "");
    }
    return LATHE_OK;
}

static enum lathe_status check_agreement(const struct lathe_session *s, struct lathe_diag *diag) {
    const struct lathe_manifest *m = &s->artifact->manifest;
    for (uint32_t i = 0; i < m->head->input_count; i++) {
        const struct lathe_binding *b = &s->bindings[i];
        for (unsigned d = 0; b->bound && d < m->inputs[i].rank; d++) {
            uint32_t dim = m->inputs[i].dims[d];
            if (s->dims[dim] == b->dims[d])
                continue;
            const struct lathe_fmt_dim *f = &s->plan->dims[dim];
            const char *from = f->op == LATHE_DIM_SYMBOL ? input_name(s, s->plan->symbols[f->a].index) : NULL;
            return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': axis %u is %lld, expected %lld%s%s%s%s%s",
                              input_name(s, i), d, (long long)b->dims[d], (long long)s->dims[dim], from ? " (" : "",
                              from ? lathe_session_dim_name(s, dim) : "", from ? " of '" : "", from ? from : "",
                              from ? "')" : "");
        }
    }
    return LATHE_OK;
}

static void set_output_views(struct lathe_session *s, bool empty) {
    const struct lathe_manifest *m = &s->artifact->manifest;
    for (uint32_t i = 0; i < m->head->output_count; i++) {
        const struct lathe_tensor *t = &s->tensors[m->outputs[i].value];
        struct lathe_tensor_view *v = &s->outputs[i];
        *v = (struct lathe_tensor_view){.dtype = t->dtype, .rank = t->rank, .data = t->data};
        for (unsigned d = 0; d < t->rank; d++)
            v->dims[d] = t->dims[d];
        int64_t bytes = lathe_shape_bytes(t->dtype, t->rank, v->dims);
        v->bytes = empty || bytes < 0 ? 0 : (size_t)bytes;
    }
}

enum lathe_status lathe_session_shape(struct lathe_session *s, bool *empty, struct lathe_diag *diag) {
    s->shape_known = false;
    s->rows_key = -1;
    LATHE_TRY(read_symbols(s, empty, diag));
    lathe_plan_eval(s->plan, s->symbols, false, s->dims);
    LATHE_TRY(check_agreement(s, diag));
    if (*empty) {
        const struct lathe_manifest *m = &s->artifact->manifest;
        for (uint32_t i = 0; i < m->head->output_count; i++)
            if (s->plan->values[m->outputs[i].value].place != LATHE_PLACE_CONSTANT)
                set_tensor(s, m->outputs[i].value, true);
        set_output_views(s, false);
        return LATHE_OK;
    }
    LATHE_TRY(set_tensors(s, false, diag));
    LATHE_TRY(set_attrs(s, false, diag));
    LATHE_TRY(check_scratch(s, false, diag));
    /* until the prologue tells, all rows are taken to be kept: an upper bound, so a shape that cannot be run is known
     * now */
    bool any_rows = false;
    for (uint32_t i = 0; i < s->plan->head->symbol_count; i++) {
        const struct lathe_fmt_symbol *sym = &s->plan->symbols[i];
        if (sym->source != LATHE_SYMBOL_ROWS)
            continue;
        int64_t all = lathe_tensor_count(s->steps[sym->index].in[0]);
        s->symbols[i] = all < s->symbol_max[i] ? all : s->symbol_max[i];
        any_rows = true;
    }
    if (any_rows) {
        lathe_plan_eval(s->plan, s->symbols, true, s->dims);
        LATHE_TRY(set_tensors(s, true, diag));
    }
    if (s->plan->head->prologue_steps == 0) {
        set_phases(s);
        set_output_views(s, false);
    }
    s->shape_known = true;
    return LATHE_OK;
}

enum lathe_status lathe_session_shape_rows(struct lathe_session *s, struct lathe_diag *diag) {
    const struct lathe_plan *p = s->plan;
    int64_t key = 0;
    for (uint32_t i = 0; i < p->head->symbol_count; i++) {
        const struct lathe_fmt_symbol *sym = &p->symbols[i];
        if (sym->source != LATHE_SYMBOL_ROWS)
            continue;
        const struct lathe_step_state *st = &s->steps[sym->index];
        int64_t batch = st->in[0]->rank ? st->in[0]->dims[0] : 0;
        const struct lathe_row_sequence *last = lathe_row_map_sequences(st->out[0]->data) + (batch - 1);
        int64_t rows = batch < 1 ? 0 : (int64_t)last->start + last->rows;
        if (rows > s->symbol_max[i])
            return lathe_fail(diag, LATHE_MSG_SHAPE_LIMIT, "%lld rows are kept, at most %lld", (long long)rows,
                              (long long)s->symbol_max[i]);
        s->symbols[i] = rows;
        key = key * 1000003 + rows; /* row counts are below 2^31: equal keys mean equal counts where one map is used */
    }
    bool one_map = true;
    for (uint32_t i = 0, seen = 0; i < p->head->symbol_count; i++)
        if (p->symbols[i].source == LATHE_SYMBOL_ROWS && seen++)
            one_map = false;
    if (one_map && key == s->rows_key)
        return LATHE_OK;
    s->rows_key = -1;
    lathe_plan_eval(p, s->symbols, true, s->dims);
    LATHE_TRY(set_tensors(s, true, diag));
    LATHE_TRY(set_attrs(s, true, diag));
    LATHE_TRY(check_scratch(s, true, diag));
    set_phases(s);
    set_output_views(s, false);
    s->rows_key = key;
    return LATHE_OK;
}

void lathe_session_shape_max(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t i = 0; i < p->head->symbol_count; i++)
        s->symbols[i] = s->symbol_max[i];
    lathe_plan_eval(p, s->symbols, false, s->dims);
    for (uint32_t v = 0; v < p->head->value_count; v++)
        set_tensor(s, v, true);
    for (uint32_t i = 0; i < p->head->attr_count; i++)
        if (p->attrs[i].type == LATHE_ATTR_DIMS)
            for (uint32_t k = p->attrs[i].first; k < p->attrs[i].first + p->attrs[i].count; k++)
                s->ints[k] = s->dims[p->ints[k]] == INT64_MIN ? 0 : s->dims[p->ints[k]];
}

/* ---- conflicts */

struct range {
    uint64_t begin, end;
    uint64_t row; /* bytes of a row where the step may work by rows, else 0 */
};

/* Bytes of the last axis when they are the same at all sizes. */
static uint64_t fixed_row(const struct lathe_plan *p, const struct lathe_fmt_value *v) {
    if (v->rank < 1)
        return 0;
    const struct lathe_fmt_dim *d = &p->dims[v->dims[v->rank - 1]];
    return d->op == LATHE_DIM_CONST ? (uint64_t)d->constant * lathe_dtype_bytes((enum lathe_dtype)v->dtype) : 0;
}

static unsigned step_ranges(const struct lathe_session *s, uint32_t step, bool writes, struct range *out,
                            unsigned room) {
    const struct lathe_plan *p = s->plan;
    const struct lathe_fmt_step *f = &p->steps[step];
    const uint32_t *operands = p->operands + f->first_operand + (writes ? f->n_in : 0);
    unsigned count = writes ? f->n_out : f->n_in, n = 0;
    struct row_operands by_rows = row_operands((enum lathe_op)f->op);
    unsigned rows = writes ? by_rows.out : by_rows.in;
    for (unsigned i = 0; i < count; i++) {
        if (operands[i] == LATHE_FORMAT_ABSENT || p->values[operands[i]].place != LATHE_PLACE_ARENA)
            continue;
        if (n == room)
            return UINT32_MAX;
        const struct lathe_fmt_value *v = &p->values[operands[i]];
        out[n++] = (struct range){v->offset, v->offset + v->bytes, i < 32 && rows >> i & 1 ? fixed_row(p, v) : 0};
    }
    return n;
}

#define MAX_RANGES 64
struct access {
    struct range reads[MAX_RANGES], writes[MAX_RANGES];
    unsigned n_reads, n_writes; /* UINT32_MAX: too many to list; conflicts with everything */
};

enum meeting { APART, IN_ROWS, ANYHOW };
static enum meeting meet(const struct range *a, unsigned n_a, const struct range *b, unsigned n_b) {
    if (n_a == UINT32_MAX || n_b == UINT32_MAX)
        return ANYHOW;
    enum meeting how = APART;
    for (unsigned i = 0; i < n_a; i++)
        for (unsigned k = 0; k < n_b; k++)
            if (a[i].begin < b[k].end && b[k].begin < a[i].end) {
                if (a[i].begin != b[k].begin || a[i].row != b[k].row || !a[i].row)
                    return ANYHOW;
                how = IN_ROWS;
            }
    return how;
}
static enum meeting worse(enum meeting a, enum meeting b) {
    return a > b ? a : b;
}

static void read_access(const struct lathe_session *s, uint32_t step, struct access *out) {
    out->n_reads = step_ranges(s, step, false, out->reads, MAX_RANGES);
    out->n_writes = step_ranges(s, step, true, out->writes, MAX_RANGES);
}

/* How far back a step looks; a conflict further away has a barrier between in any real plan, and if none is found by
 * then the oldest looked at is taken as one. */
#define WINDOW 64

bool lathe_session_conflicts(struct lathe_session *s) {
    uint32_t n = s->plan->head->step_count, used = 0, room = 0;
    struct access *ring = malloc(WINDOW * sizeof *ring), *now = malloc(sizeof *now);
    bool ok = ring && now;
    for (uint32_t i = 0; ok && i < n; i++) {
        read_access(s, i, now);
        s->steps[i].first_conflict = used;
        for (uint32_t back = 1; ok && back <= i && back <= WINDOW; back++) {
            const struct access *other = &ring[(i - back) % WINDOW];
            enum meeting how = back == WINDOW ? ANYHOW : meet(now->reads, now->n_reads, other->writes, other->n_writes);
            how = worse(how, meet(now->writes, now->n_writes, other->reads, other->n_reads));
            how = worse(how, meet(now->writes, now->n_writes, other->writes, other->n_writes));
            if (how == APART)
                continue;
            if (used == room) {
                room = room ? room * 2 : 256;
                uint32_t *more = realloc(s->conflicts, room * sizeof *more);
                ok = more != NULL;
                if (ok)
                    s->conflicts = more;
            }
            if (ok)
                s->conflicts[used++] = (i - back) | (how == IN_ROWS ? LATHE_SAME_ROWS : 0);
        }
        s->steps[i].conflict_count = used - s->steps[i].first_conflict;
        ring[i % WINDOW] = *now;
    }
    free(ring);
    free(now);
    return ok;
}
