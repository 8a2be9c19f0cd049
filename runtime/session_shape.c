/* Sizes of a run: from the bound inputs to symbols, dims and tensors, and from them to the phases of the run
 * (session_phases.c). Allocates nothing. */
#include "row_map.h"
#include "session.h"

#include <string.h>

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
    return s->ports[i].name;
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
    const struct lathe_manifest *m = s->manifest;
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
    const struct lathe_manifest *m = s->manifest;
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
        const struct lathe_manifest *m = s->manifest;
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
        lathe_session_phases(s);
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
    lathe_session_phases(s);
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
