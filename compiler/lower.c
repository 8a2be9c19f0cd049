/* The graph becomes a plan: a step for each node that does work, a place for each value. Views share the bytes of what
 * they view, results that may take their operand's place do so when it dies there, weights are read through what only
 * rearranges constants. Nodes that no output needs have no step. */
#include "lower.h"

#include "check_operators.h"

#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lowering {
    struct lathe_lowered *l;
    struct lathe_graph *g;
    uint8_t *needed;             /* a node: it has a step, or is looked through */
    uint8_t *early;              /* a node: of the prologue */
    struct lathe_weight *packed; /* a node: its weight, part_count 0: none */
    uint32_t *step_of;           /* a node */
    uint32_t *root_of;           /* plan value -> the plan value that owns the bytes */
    uint32_t root_capacity;
};

#define FAIL_MEMORY(w) lathe_fail((w)->l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory")

static const struct lathe_node *producer(const struct lathe_graph *g, lathe_value_id v) {
    if (v == LATHE_NONE || lathe_value_is_constant(g, v) || g->values[v].producer == LATHE_NONE)
        return NULL;
    return &g->nodes[g->values[v].producer];
}

/* ---- which nodes work */

static bool is_shape_value(const struct lathe_graph *g, lathe_value_id v) {
    const struct lathe_node *n = producer(g, v);
    return n && (lathe_op_info(n->op)->flags & LATHE_OPF_SHAPE_ONLY) && g->values[v].content;
}

static void need(struct lowering *w, lathe_value_id v, lathe_node_id *stack, uint32_t *depth) {
    if (!producer(w->g, v) || is_shape_value(w->g, v) || w->needed[w->g->values[v].producer])
        return;
    w->needed[w->g->values[v].producer] = 1;
    stack[(*depth)++] = w->g->values[v].producer;
}

static void mark_needed(struct lowering *w, lathe_node_id *stack) {
    uint32_t depth = 0;
    for (uint32_t i = 0; i < w->g->output_count; i++)
        need(w, w->g->outputs[i], stack, &depth);
    while (depth > 0) {
        lathe_node_id n = stack[--depth];
        const struct lathe_node *node = lathe_node_at(w->g, n);
        bool packs = node->op == LATHE_OP_CONV ? lathe_weight_widen(w->l, n, &w->packed[n])
                                               : lathe_weight_packing(node->op) != LATHE_PACKING_ROWS &&
                                                     lathe_weight_resolve(w->l, n, &w->packed[n]);
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!(packs && i == 1))
                need(w, node->in[i], stack, &depth);
    }
}

/* What row maps are made from goes first: the session must know their rows before it can size the rest. */
static void mark_early(struct lowering *w, lathe_node_id *stack) {
    uint32_t depth = 0;
    LATHE_FOR_NODES(w->g, n) {
        if (w->needed[n] && lathe_node_at(w->g, n)->op == LATHE_OP_ROW_MAP) {
            w->early[n] = 1;
            stack[depth++] = n;
        }
    }
    while (depth > 0) {
        const struct lathe_node *node = lathe_node_at(w->g, stack[--depth]);
        for (uint32_t i = 0; i < node->n_in; i++) {
            const struct lathe_node *p = producer(w->g, node->in[i]);
            if (!p || is_shape_value(w->g, node->in[i]))
                continue;
            lathe_node_id id = w->g->values[node->in[i]].producer;
            if (!w->early[id]) {
                w->early[id] = 1;
                stack[depth++] = id;
            }
        }
    }
}

/* ---- values */

static enum lathe_status new_value(struct lowering *w, struct lathe_fmt_value *v, int rank, const lathe_dim *dims,
                                   const char *name, uint32_t root, uint32_t *out) {
    struct lathe_lowered *l = w->l;
    if (rank < 0 || rank > LATHE_MAX_RANK || v->dtype == 0)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_OPERATOR, "value '%s': its type or rank is not known", name);
    v->rank = (uint8_t)rank;
    v->name = lathe_strings_add(&l->strings, name);
    for (int i = 0; i < rank; i++)
        LATHE_TRY(lathe_lower_dim(l, dims[i], name, &v->dims[i]));
    *out = lathe_table_add(&l->values, v, 1);
    if (*out == UINT32_MAX)
        return FAIL_MEMORY(w);
    if (*out >= w->root_capacity) {
        uint32_t capacity = w->root_capacity ? w->root_capacity * 2 : 1024;
        uint32_t *more = realloc(w->root_of, capacity * sizeof *more);
        if (!more)
            return FAIL_MEMORY(w);
        w->root_of = more;
        w->root_capacity = capacity;
    }
    w->root_of[*out] = root == UINT32_MAX ? *out : root;
    return LATHE_OK;
}

/* A constant's bytes are sized by its dims, which are constants. `index` holds the weight until offsets are known. */
static enum lathe_status constant_value(struct lowering *w, lathe_value_id v, uint32_t *out) {
    struct lathe_lowered *l = w->l;
    const struct lathe_value *value = lathe_value_at(w->g, v);
    int64_t bytes = lathe_value_bytes(w->g, v);
    if (bytes < 0)
        return lathe_fail(l->diag, LATHE_MSG_SIZE_OVERFLOW, "constant '%s': its size overflows", value->name);
    uint32_t weight = lathe_weight_add(l, &(struct lathe_weight){.data = value->data, .bytes = (uint64_t)bytes});
    if (weight == UINT32_MAX)
        return FAIL_MEMORY(w);
    struct lathe_fmt_value f = {
        .dtype = (uint8_t)value->dtype, .place = LATHE_PLACE_CONSTANT, .index = weight, .bytes = (uint64_t)bytes};
    return new_value(w, &f, value->rank, value->dims, value->name, UINT32_MAX, out);
}

static enum lathe_status arena_value(struct lowering *w, lathe_value_id v, uint32_t *out) {
    const struct lathe_value *value = lathe_value_at(w->g, v);
    struct lathe_fmt_value f = {.dtype = (uint8_t)value->dtype, .place = LATHE_PLACE_ARENA};
    LATHE_TRY(new_value(w, &f, value->rank, value->dims, value->name, UINT32_MAX, out));
    struct lathe_fmt_value *stored = (struct lathe_fmt_value *)w->l->values.data + *out;
    stored->bytes = lathe_lowered_bytes(w->l, stored);
    if (stored->bytes > (UINT64_C(1) << 44))
        return lathe_fail(
            w->l->diag, LATHE_MSG_LOWER_LIMIT,
            "value '%s' would need %s bytes at the maxima (batch %lld, sequence %lld): lower --max-batch or "
            "--max-seq",
            value->name, stored->bytes == UINT64_MAX ? "an unbounded number of" : "more than 2^44",
            (long long)w->l->max_batch, (long long)w->l->max_seq);
    return LATHE_OK;
}

static enum lathe_status add_step(struct lowering *w, enum lathe_op op, const char *name, const char *origin,
                                  const uint32_t *operands, uint32_t n_in, uint32_t n_out, uint32_t first_attr,
                                  uint32_t *out) {
    struct lathe_lowered *l = w->l;
    uint32_t first = lathe_table_add(&l->operands, operands, n_in + n_out);
    bool on_host = l->options->target && !lathe_target_runs(l->options->target, op);
    struct lathe_fmt_step step = {.op = (uint16_t)op,
                                  .flags = on_host ? LATHE_STEP_HOST : 0,
                                  .n_in = (uint16_t)n_in,
                                  .n_out = (uint16_t)n_out,
                                  .first_operand = first,
                                  .first_attr = first_attr,
                                  .n_attrs = l->attrs.count - first_attr,
                                  .name = lathe_strings_add(&l->strings, name),
                                  .origin = lathe_strings_add(&l->strings, origin)};
    *out = first == UINT32_MAX ? UINT32_MAX : lathe_table_add(&l->steps, &step, 1);
    return *out == UINT32_MAX ? FAIL_MEMORY(w) : LATHE_OK;
}

static enum lathe_status dims_attr(struct lowering *w, enum lathe_attr_key key, const lathe_dim *dims, uint32_t count,
                                   const char *what) {
    struct lathe_lowered *l = w->l;
    struct lathe_fmt_attr f = {.key = key, .type = LATHE_ATTR_DIMS, .first = l->ints.count, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t dim;
        LATHE_TRY(lathe_lower_dim(l, dims[i], what, &dim));
        if (lathe_table_add(&l->ints, &(int64_t){dim}, 1) == UINT32_MAX)
            return FAIL_MEMORY(w);
    }
    return lathe_table_add(&l->attrs, &f, 1) == UINT32_MAX ? FAIL_MEMORY(w) : LATHE_OK;
}

/* A shape that data flow still needs, whose elements are expressions: one dims_tensor. */
static enum lathe_status shape_value(struct lowering *w, lathe_value_id v, uint32_t *out) {
    const struct lathe_value *value = lathe_value_at(w->g, v);
    LATHE_TRY(arena_value(w, v, out));
    uint32_t first_attr = w->l->attrs.count, step;
    LATHE_TRY(dims_attr(w, LATHE_ATTR_VALUES, value->content, value->content_count, value->name));
    return add_step(w, LATHE_OP_DIMS_TENSOR, value->name, "Shape", out, 0, 1, first_attr, &step);
}

/* The plan's value for an operand; its producer has been lowered before. */
static enum lathe_status value_of(struct lowering *w, lathe_value_id v, uint32_t *out) {
    struct lathe_lowered *l = w->l;
    if (v == LATHE_NONE) {
        *out = LATHE_FORMAT_ABSENT;
        return LATHE_OK;
    }
    if (l->value_of[v] == UINT32_MAX) {
        const struct lathe_value *value = lathe_value_at(w->g, v);
        if (lathe_value_is_constant(w->g, v))
            LATHE_TRY(constant_value(w, v, &l->value_of[v]));
        else if (is_shape_value(w->g, v))
            LATHE_TRY(shape_value(w, v, &l->value_of[v]));
        else
            return lathe_fail(l->diag, LATHE_MSG_BUG, "value '%s' is used before it is made", value->name);
    }
    *out = l->value_of[v];
    return LATHE_OK;
}

static enum lathe_status view(struct lowering *w, const struct lathe_node *node) {
    uint32_t from, to;
    LATHE_TRY(value_of(w, node->in[0], &from));
    if (from == LATHE_FORMAT_ABSENT || node->out[0] == LATHE_NONE)
        return lathe_fail(w->l->diag, LATHE_MSG_LOWER_OPERATOR, "node '%s' (%s) has no operand or no result",
                          node->name, lathe_op_info(node->op)->name);
    const struct lathe_value *value = lathe_value_at(w->g, node->out[0]);
    struct lathe_fmt_value f = ((struct lathe_fmt_value *)w->l->values.data)[from];
    memset(f.dims, 0, sizeof f.dims);
    if (f.dtype != value->dtype)
        return lathe_fail(w->l->diag, LATHE_MSG_LOWER_OPERATOR, "node '%s': a view cannot change the type", node->name);
    /* a constant seen under other sizes must stay constant in size; one that is not is a copy of its bytes */
    bool fixed = lathe_value_bytes(w->g, node->out[0]) >= 0;
    if (f.place == LATHE_PLACE_CONSTANT && !fixed) {
        LATHE_TRY(arena_value(w, node->out[0], &to));
        uint32_t operands[2] = {from, to}, step;
        LATHE_TRY(add_step(w, LATHE_OP_RESHAPE, node->name, node->origin, operands, 1, 1, w->l->attrs.count, &step));
    } else {
        LATHE_TRY(new_value(w, &f, value->rank, value->dims, value->name, w->root_of[from], &to));
    }
    w->l->value_of[node->out[0]] = to;
    return LATHE_OK;
}

/* ---- nodes */

/* The attribute that says how operands are packed: one number for a product, a list for the tables of an embedding. */
struct packing_attr {
    enum lathe_attr_key key;
    const int64_t *list;
    uint32_t count; /* 0: nothing is packed */
};

static enum lathe_status add_packing_attr(struct lowering *w, const struct packing_attr *packing) {
    struct lathe_lowered *l = w->l;
    bool one = packing->key == LATHE_ATTR_PACKING;
    struct lathe_fmt_attr f = {.key = packing->key, .type = one ? LATHE_ATTR_INT : LATHE_ATTR_INTS};
    if (one) {
        f.i = packing->list[0];
    } else {
        f.first = l->ints.count;
        f.count = packing->count;
        if (lathe_table_add(&l->ints, packing->list, packing->count) == UINT32_MAX)
            return FAIL_MEMORY(w);
    }
    return lathe_table_add(&l->attrs, &f, 1) == UINT32_MAX ? FAIL_MEMORY(w) : LATHE_OK;
}

static enum lathe_status lower_attrs(struct lowering *w, const struct lathe_node *node,
                                     const struct packing_attr *packing) {
    struct lathe_lowered *l = w->l;
    bool packed = packing->count > 0, packing_done = !packed;
    for (uint32_t i = 0; i <= node->n_attrs; i++) {
        const struct lathe_attr *a = i < node->n_attrs ? &node->attrs[i] : NULL;
        if (!packing_done && (!a || a->key >= packing->key)) {
            LATHE_TRY(add_packing_attr(w, packing));
            packing_done = true;
        }
        if (!a || (packed && (a->key == LATHE_ATTR_PACKING || a->key == LATHE_ATTR_TRANS_B)))
            continue;
        struct lathe_fmt_attr f = {.key = a->key, .type = a->type};
        switch (a->type) {
        case LATHE_ATTR_INT:
            f.i = a->i;
            break;
        case LATHE_ATTR_FLOAT:
            f.f = a->f;
            break;
        case LATHE_ATTR_INTS:
            f.first = l->ints.count;
            f.count = a->count;
            if (lathe_table_add(&l->ints, a->ints, a->count) == UINT32_MAX)
                return FAIL_MEMORY(w);
            break;
        default: {
            lathe_dim *dims = lathe_arena_alloc_array(l->arena, (size_t)a->count + 1, sizeof *dims);
            if (!dims)
                return FAIL_MEMORY(w);
            for (uint32_t k = 0; k < a->count; k++)
                dims[k] = (lathe_dim)a->ints[k];
            LATHE_TRY(dims_attr(w, a->key, dims, a->count, node->name));
            continue;
        }
        }
        if (lathe_table_add(&l->attrs, &f, 1) == UINT32_MAX)
            return FAIL_MEMORY(w);
    }
    return LATHE_OK;
}

static enum lathe_status widened_value(struct lowering *w, const struct lathe_value *value,
                                       const struct lathe_weight *weight, uint32_t *out) {
    uint32_t index = lathe_weight_add(w->l, weight);
    if (index == UINT32_MAX)
        return FAIL_MEMORY(w);
    struct lathe_fmt_value f = {
        .dtype = LATHE_F32, .place = LATHE_PLACE_CONSTANT, .index = index, .bytes = weight->bytes};
    return new_value(w, &f, value->rank, value->dims, value->name, UINT32_MAX, out);
}

static enum lathe_status packed_value(struct lowering *w, lathe_node_id n, uint32_t *out) {
    struct lathe_lowered *l = w->l;
    const struct lathe_node *node = lathe_node_at(w->g, n);
    struct lathe_weight *weight = &w->packed[n];
    if (!weight->packing)
        return widened_value(w, lathe_value_at(w->g, node->in[1]), weight, out);
    uint64_t panels = (uint64_t)(weight->n - 1) / 16 + 1;
    if ((uint64_t)weight->k > (UINT64_C(1) << 40) / 64 / panels)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_LIMIT, "node '%s': a weight of %lld x %lld is too large", node->name,
                          (long long)weight->k, (long long)weight->n);
    weight->bytes = lathe_packed_bytes(weight->packing, (size_t)weight->k, (size_t)weight->n);
    uint32_t index = lathe_weight_add(l, weight);
    if (index == UINT32_MAX)
        return FAIL_MEMORY(w);
    struct lathe_fmt_value f = {.dtype = lathe_packed_dtype(weight->packing),
                                .place = LATHE_PLACE_CONSTANT,
                                .packing = (uint8_t)weight->packing,
                                .index = index,
                                .bytes = weight->bytes};
    lathe_dim dims[2] = {lathe_dim_const(w->g->dims, weight->k), lathe_dim_const(w->g->dims, weight->n)};
    return new_value(w, &f, 2, dims, lathe_value_at(w->g, node->in[1])->name, UINT32_MAX, out);
}

/* The product whose weight is the table that operand i of an embedding looks up; LATHE_NONE when there is none. */
static lathe_node_id product_of_table(const struct lowering *w, const struct lathe_node *node, uint32_t i) {
    uint32_t each = node->op == LATHE_OP_EMBEDDING ? 2 : node->op == LATHE_OP_EMBEDDING_Q8 ? 3 : 0;
    if (!each || i < 2 || (i - 2) % each || !lathe_value_is_constant(w->g, node->in[i]))
        return LATHE_NONE;
    const struct lathe_value *table = lathe_value_at(w->g, node->in[i]);
    int64_t rows, h;
    if (table->rank != 2 || !lathe_value_dim_is(w->g, node->in[i], 0, &rows) ||
        !lathe_value_dim_is(w->g, node->in[i], 1, &h))
        return LATHE_NONE;
    LATHE_FOR_NODES(w->g, n) {
        const struct lathe_weight *p = &w->packed[n];
        if (p->part_count == 1 && p->packing && p->parts[0].transposed && !p->parts[0].scaled &&
            p->parts[0].data == table->data && p->parts[0].dtype == table->dtype && p->k == h && p->n == rows)
            return n;
    }
    return LATHE_NONE;
}

static enum lathe_status lower_node(struct lowering *w, lathe_node_id n) {
    struct lathe_lowered *l = w->l;
    const struct lathe_node *node = lathe_node_at(w->g, n);
    const struct lathe_op_info *op = lathe_op_info(node->op);
    if (!op || op->flags & LATHE_OPF_SHAPE_ONLY)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_OPERATOR,
                          "node '%s' (%s): its result depends on more than shapes, or is not known", node->name,
                          op ? op->name : "?");
    if (op->flags & LATHE_OPF_VIEW)
        return view(w, node);
    if (!op->run)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_OPERATOR, "node '%s': the runtime has no operator %s", node->name,
                          op->name);
    if (node->n_in > UINT16_MAX || node->n_out > UINT16_MAX)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_LIMIT, "node '%s' (%s): %u operands", node->name, op->name,
                          node->n_in);
    uint32_t *operands = malloc(((size_t)node->n_in + node->n_out + 1) * sizeof *operands);
    if (!operands)
        return FAIL_MEMORY(w);
    enum { MOST_TABLES = 16 };
    int64_t packings[MOST_TABLES] = {w->packed[n].packing};
    struct packing_attr packing = {.key = LATHE_ATTR_PACKING, .list = packings, .count = packings[0] != 0};
    uint32_t each = node->op == LATHE_OP_EMBEDDING ? 2 : 3;
    enum lathe_status status = LATHE_OK;
    for (uint32_t i = 0; status == LATHE_OK && i < node->n_in; i++) {
        bool packed = i == 1 && w->packed[n].part_count > 0;
        lathe_node_id product = i < 2 + each * MOST_TABLES ? product_of_table(w, node, i) : LATHE_NONE;
        status = packed                  ? packed_value(w, n, &operands[1])
                 : product != LATHE_NONE ? packed_value(w, product, &operands[i])
                                         : value_of(w, node->in[i], &operands[i]);
        if (product != LATHE_NONE) {
            packing.key = LATHE_ATTR_PACKINGS;
            packing.count = (node->n_in - 2) / each;
            packings[(i - 2) / each] = w->packed[product].packing;
        }
    }
    for (uint32_t i = 0; status == LATHE_OK && i < node->n_out; i++) {
        operands[node->n_in + i] = LATHE_FORMAT_ABSENT;
        if (node->out[i] != LATHE_NONE) {
            status = arena_value(w, node->out[i], &operands[node->n_in + i]);
            if (status == LATHE_OK)
                l->value_of[node->out[i]] = operands[node->n_in + i];
        }
    }
    uint32_t first_attr = l->attrs.count;
    if (status == LATHE_OK)
        status = lower_attrs(w, node, &packing);
    if (status == LATHE_OK)
        status = add_step(w, node->op, node->name, node->origin, operands, node->n_in, node->n_out, first_attr,
                          &w->step_of[n]);
    free(operands);
    return status;
}

/* ---- outputs, symbols */

/* An output that is an input, seen through views or not, is copied: the caller's memory ends with the run. */
static enum lathe_status lower_outputs(struct lowering *w) {
    struct lathe_lowered *l = w->l;
    for (uint32_t i = 0; i < w->g->output_count; i++) {
        uint32_t v;
        LATHE_TRY(value_of(w, w->g->outputs[i], &v));
        if (((struct lathe_fmt_value *)l->values.data)[v].place == LATHE_PLACE_INPUT) {
            uint32_t operands[2] = {v, 0}, step;
            LATHE_TRY(arena_value(w, w->g->outputs[i], &operands[1]));
            LATHE_TRY(add_step(w, LATHE_OP_RESHAPE, w->g->output_names[i], "Identity", operands, 1, 1, l->attrs.count,
                               &step));
            v = operands[1];
        }
        l->outputs[i].value = v;
    }
    return LATHE_OK;
}

static void finish_symbols(struct lowering *w) {
    struct lathe_fmt_symbol *symbols = w->l->symbols.data;
    for (uint32_t i = 0; i < w->l->symbol_fact_count; i++) {
        const struct lathe_symbol_facts *f = &w->l->symbol_facts[i];
        if (f->plan_index != UINT32_MAX && f->source == LATHE_SYMBOL_ROWS)
            symbols[f->plan_index].index = w->step_of[f->row_map];
    }
}

/* ---- memory */

/* Of the columns of a linear layer. */
static double groups_of(const struct lathe_lowered *l, const struct lathe_fmt_step *s) {
    const struct lathe_fmt_attr *attrs = (const struct lathe_fmt_attr *)l->attrs.data + s->first_attr;
    for (uint32_t i = 0; i < s->n_attrs; i++)
        if (attrs[i].key == LATHE_ATTR_GROUP && attrs[i].i > 1 && s->op != LATHE_OP_CONV)
            return (double)attrs[i].i;
    return 1;
}

/* Result 0 may take the place of operand 0 when nobody reads that later. */
static bool takes_place(const struct lowering *w, uint32_t step, const uint32_t *last) {
    const struct lathe_fmt_step *s = (struct lathe_fmt_step *)w->l->steps.data + step;
    const uint32_t *o = (uint32_t *)w->l->operands.data + s->first_operand;
    const struct lathe_fmt_value *values = w->l->values.data;
    if (!(lathe_op_info(s->op)->flags & LATHE_OPF_IN_PLACE) || s->n_in < 1 || o[0] == LATHE_FORMAT_ABSENT ||
        o[s->n_in] == LATHE_FORMAT_ABSENT)
        return false;
    const struct lathe_fmt_value *in = &values[o[0]], *out = &values[o[s->n_in]];
    if (in->place != LATHE_PLACE_ARENA || last[w->root_of[o[0]]] != step ||
        lathe_dtype_bytes((enum lathe_dtype)in->dtype) != lathe_dtype_bytes((enum lathe_dtype)out->dtype) ||
        in->rank != out->rank || memcmp(in->dims, out->dims, sizeof in->dims) != 0)
        return false;
    for (uint32_t i = 1; i < s->n_in; i++)
        if (o[i] != LATHE_FORMAT_ABSENT && w->root_of[o[i]] == w->root_of[o[0]])
            return false;
    return true;
}

/* A thread goes on with its groups, or with the heads before them, while others read theirs: what these steps read is
 * not written over before they have ended. */
static void keep_groups(const struct lowering *w, uint32_t *last) {
    const struct lathe_lowered *l = w->l;
    const struct lathe_fmt_step *steps = l->steps.data;
    for (uint32_t s = 1; s < l->steps.count; s++) {
        if (groups_of(l, &steps[s]) == 1)
            continue;
        uint32_t until = s + 2 < l->steps.count ? s + 2 : l->steps.count - 1;
        for (uint32_t k = s - 1; k <= s; k++)
            for (uint32_t i = 0; i < steps[k].n_in; i++) {
                uint32_t v = ((const uint32_t *)l->operands.data)[steps[k].first_operand + i];
                if (v != LATHE_FORMAT_ABSENT && last[w->root_of[v]] < until)
                    last[w->root_of[v]] = until;
            }
    }
}

static enum lathe_status make_buffers(struct lowering *w) {
    struct lathe_lowered *l = w->l;
    uint32_t n = l->values.count;
    struct lathe_fmt_value *values = l->values.data;
    const struct lathe_fmt_step *steps = l->steps.data;
    const uint32_t *operands = l->operands.data;
    uint32_t *last = lathe_arena_alloc_array(l->arena, (size_t)n + 1, sizeof *last);
    l->buffer_of = lathe_arena_alloc_array(l->arena, (size_t)n + 1, sizeof *l->buffer_of);
    l->buffers.each = sizeof(struct lathe_buffer);
    if (!last || !l->buffer_of)
        return FAIL_MEMORY(w);
    for (uint32_t s = 0; s < l->steps.count; s++)
        for (uint32_t i = 0; i < (uint32_t)steps[s].n_in + steps[s].n_out; i++)
            if (operands[steps[s].first_operand + i] != LATHE_FORMAT_ABSENT)
                last[w->root_of[operands[steps[s].first_operand + i]]] = s;
    keep_groups(w, last);
    for (uint32_t i = 0; i < w->g->output_count; i++) /* outputs stay valid after the last step */
        last[w->root_of[l->outputs[i].value]] = l->steps.count;
    for (uint32_t v = 0; v < n; v++)
        l->buffer_of[v] = LATHE_NO_BUFFER;
    for (uint32_t s = 0; s < l->steps.count; s++) {
        const uint32_t *o = operands + steps[s].first_operand;
        for (uint32_t i = 0; i < steps[s].n_out; i++) {
            uint32_t v = o[steps[s].n_in + i];
            if (v == LATHE_FORMAT_ABSENT)
                continue;
            if (i == 0 && takes_place(w, s, last)) {
                uint32_t shared = l->buffer_of[w->root_of[o[0]]];
                struct lathe_buffer *b = (struct lathe_buffer *)l->buffers.data + shared;
                b->last = last[v];
                l->buffer_of[v] = shared;
                continue;
            }
            struct lathe_buffer b = {.bytes = values[v].bytes, .first = s, .last = last[v]};
            l->buffer_of[v] = lathe_table_add(&l->buffers, &b, 1);
            if (l->buffer_of[v] == UINT32_MAX)
                return FAIL_MEMORY(w);
        }
    }
    LATHE_TRY(lathe_plan_memory(l));
    if (l->arena_bytes > (UINT64_C(1) << 45))
        return lathe_fail(l->diag, LATHE_MSG_LOWER_LIMIT,
                          "the run would need %llu bytes at the maxima (batch %lld, "
                          "sequence %lld)",
                          (unsigned long long)l->arena_bytes, (long long)l->max_batch, (long long)l->max_seq);
    const struct lathe_buffer *buffers = l->buffers.data;
    for (uint32_t v = 0; v < n; v++) {
        if (values[v].place != LATHE_PLACE_ARENA)
            continue;
        uint32_t b = l->buffer_of[w->root_of[v]];
        if (b == LATHE_NO_BUFFER)
            return lathe_fail(l->diag, LATHE_MSG_BUG, "value %u has no memory", v);
        values[v].offset = buffers[b].offset;
        values[v].bytes = buffers[b].bytes;
    }
    return LATHE_OK;
}

void lathe_lowered_place(struct lathe_lowered *plans, unsigned count) {
    struct lathe_lowered *last = &plans[count - 1];
    lathe_weights_place(last);
    const struct lathe_weight *weights = last->weights.data;
    for (unsigned i = 0; i < count; i++) {
        struct lathe_fmt_value *values = plans[i].values.data;
        for (uint32_t v = 0; v < plans[i].values.count; v++)
            if (values[v].place == LATHE_PLACE_CONSTANT) {
                values[v].offset = weights[values[v].index].offset;
                values[v].index = 0;
            }
    }
}

/* ---- report */

/* Multiply-adds of a step at the maxima, or 0 for what is no product. */
static double products(const struct lathe_lowered *l, const struct lathe_fmt_step *s) {
    const struct lathe_fmt_value *values = l->values.data;
    const uint32_t *o = (uint32_t *)l->operands.data + s->first_operand;
    double out = 1, k = 1;
    if (o[0] == LATHE_FORMAT_ABSENT || o[s->n_in] == LATHE_FORMAT_ABSENT)
        return 0;
    const struct lathe_fmt_value *x = &values[o[0]], *y = &values[o[s->n_in]];
    for (unsigned i = 0; i < y->rank; i++)
        out *= (double)l->dim_high[y->dims[i]];
    switch (s->op) {
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_LINEAR_Q8:
    case LATHE_OP_MATMUL:
    case LATHE_OP_GEMM:
    case LATHE_OP_MATMUL_INTEGER:
    case LATHE_OP_MATMUL_NBITS:
        k = x->rank ? (double)l->dim_high[x->dims[x->rank - 1]] : 1;
        return out * k / groups_of(l, s);
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
        return out * 2 * (double)(l->max_seq > 0 ? l->max_seq : 1);
    default:
        return 0;
    }
}

static void report_steps(const struct lathe_lowered *l) {
    if (!l->report)
        return;
    unsigned counts[512] = {0};
    double work[512] = {0}, all = 0;
    const struct lathe_fmt_step *steps = l->steps.data;
    for (uint32_t s = 0; s < l->steps.count; s++) {
        double p = steps[s].n_in && steps[s].op < 512 ? products(l, &steps[s]) : 0;
        if (steps[s].op < 512) {
            counts[steps[s].op]++;
            work[steps[s].op] += p;
            all += p;
        }
    }
    for (unsigned op = 0; op < 512; op++)
        if (counts[op])
            lathe_report_step(l->report, op == LATHE_OP_RESHAPE ? "copy" : lathe_op_info(op)->name, counts[op],
                              all > 0 ? work[op] / all : 0);
}

/* ---- entry */

static enum lathe_status lower_graph(struct lowering *w) {
    struct lathe_lowered *l = w->l;
    struct lathe_graph *g = w->g;
    lathe_node_id *stack = lathe_arena_alloc_array(l->arena, (size_t)g->node_count + 1, sizeof *stack);
    w->needed = lathe_arena_alloc(l->arena, (size_t)g->node_count + 1);
    w->early = lathe_arena_alloc(l->arena, (size_t)g->node_count + 1);
    w->packed = lathe_arena_alloc_array(l->arena, (size_t)g->node_count + 1, sizeof *w->packed);
    w->step_of = lathe_arena_alloc_array(l->arena, (size_t)g->node_count + 1, sizeof *w->step_of);
    l->value_of = lathe_arena_alloc_array(l->arena, (size_t)g->value_count + 1, sizeof *l->value_of);
    if (!stack || !w->needed || !w->early || !w->packed || !w->step_of || !l->value_of)
        return FAIL_MEMORY(w);
    memset(l->value_of, 0xff, (size_t)g->value_count * sizeof *l->value_of);
    LATHE_TRY(lathe_lower_ports(l));
    LATHE_TRY(lathe_lower_symbols(l));
    mark_needed(w, stack);
    mark_early(w, stack);
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
        struct lathe_fmt_value f = {.dtype = (uint8_t)v->dtype, .place = LATHE_PLACE_INPUT, .index = i};
        LATHE_TRY(new_value(w, &f, v->rank, v->dims, v->name, UINT32_MAX, &l->value_of[g->inputs[i]]));
        l->inputs[i].value = l->value_of[g->inputs[i]];
    }
    for (int early = 1; early >= 0; early--) {
        LATHE_FOR_NODES(g, n) {
            if (w->needed[n] && w->early[n] == early)
                LATHE_TRY(lower_node(w, n));
        }
        if (early)
            l->prologue_steps = l->steps.count;
    }
    LATHE_TRY(lower_outputs(w));
    finish_symbols(w);
    LATHE_TRY(make_buffers(w));
    lathe_strings_finish(&l->strings);
    if (l->strings.failed || g->out_of_memory)
        return FAIL_MEMORY(w);
    return LATHE_OK;
}

static enum lathe_status lower_once(struct lathe_graph *g, const struct lathe_emit_options *options,
                                    struct lathe_report *report, const struct lathe_default_limits *defaults,
                                    struct lathe_lowered *before, struct lathe_lowered *out, struct lathe_diag *diag) {
    *out = (struct lathe_lowered){
        .graph = g,
        .arena = lathe_arena_new(),
        .options = options,
        .report = report,
        .diag = diag,
        .defaults = *defaults,
        .symbols.each = sizeof(struct lathe_fmt_symbol),
        .dims.each = sizeof(struct lathe_fmt_dim),
        .values.each = sizeof(struct lathe_fmt_value),
        .steps.each = sizeof(struct lathe_fmt_step),
        .attrs.each = sizeof(struct lathe_fmt_attr),
        .ints.each = sizeof(int64_t),
        .operands.each = sizeof(uint32_t),
        .weights.each = sizeof(struct lathe_weight),
    };
    if (before) {
        out->weights = before->weights;
        before->weights = (struct lathe_table){.each = sizeof(struct lathe_weight)};
    }
    struct lowering w = {.l = out, .g = g};
    enum lathe_status status = out->arena ? lower_graph(&w) : FAIL_MEMORY(&w);
    free(w.root_of);
    return status;
}

/* Memory is only reserved, so a limit that nobody set may be generous; but not absurd. */
#define ARENA_BUDGET (UINT64_C(4) << 30)
#define FREE_BATCH   65536 /* rows of what has no sequence */
#define TOKEN_BATCH  256
#define TOKEN_SEQ    4096
#define LEAST_BATCH  32
#define LEAST_SEQ    1024
#define LEAST_OTHER  512

/* Halves the default limit that can best be spared. `must`: the graph does not fit at all. */
static bool lower_defaults(struct lathe_default_limits *now, const struct lathe_default_limits *used, bool must) {
    if (used->used_batch && now->batch > LEAST_BATCH)
        now->batch /= 2;
    else if (used->used_other && now->other > LEAST_OTHER)
        now->other /= 2;
    else if (used->used_seq && now->seq > LEAST_SEQ)
        now->seq /= 2;
    else if (must && used->used_batch && now->batch > 1)
        now->batch /= 2;
    else if (must && used->used_other && now->other > 1)
        now->other /= 2;
    else if (must && used->used_seq && now->seq > 1)
        now->seq /= 2;
    else
        return false;
    return true;
}

static bool has_sequence(const struct lathe_graph *g) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (v->rank == 2 && lathe_dtype_is_integer(v->dtype))
            return true;
        if (v->rank > 2)
            return true;
    }
    return false;
}

static void note_defaults(const struct lathe_lowered *l) {
    const struct lathe_default_limits *d = &l->defaults;
    char text[160] = "";
    size_t n = 0;
    if (!l->report || !(d->used_batch || d->used_seq || d->used_other))
        return;
    if (d->used_batch)
        n += (size_t)snprintf(text + n, sizeof text - n, "batch %lld, ", (long long)d->batch);
    if (d->used_seq)
        n += (size_t)snprintf(text + n, sizeof text - n, "sequence %lld, ", (long long)d->seq);
    if (d->used_other)
        n += (size_t)snprintf(text + n, sizeof text - n, "others %lld, ", (long long)d->other);
    snprintf(text + n, sizeof text - n, "as neither graph, target nor options state a limit");
    lathe_report_note(l->report, "default_limits", text);
}

enum lathe_status lathe_lower(struct lathe_graph *g, const struct lathe_emit_options *options,
                              struct lathe_report *report, struct lathe_lowered *before, struct lathe_lowered *out,
                              struct lathe_diag *diag) {
    struct lathe_default_limits limits = {
        .batch = has_sequence(g) ? TOKEN_BATCH : FREE_BATCH, .seq = TOKEN_SEQ, .other = FREE_BATCH};
    struct lathe_diag *why = calloc(1, sizeof *why);
    enum lathe_status status;
    if (!why)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
    for (;;) {
        lathe_diag_reset(why);
        status = lower_once(g, options, report, &limits, before, out, why);
        bool must = status != LATHE_OK && why->message == LATHE_MSG_LOWER_LIMIT;
        bool over = must || (status == LATHE_OK && out->arena_bytes > ARENA_BUDGET);
        struct lathe_default_limits used = out->defaults;
        if (!over || before || !lower_defaults(&limits, &used, must)) /* a bucket has no limit that could give way */
            break;
        lathe_lowered_free(out);
    }
    if (status != LATHE_OK) {
        lathe_lowered_free(out);
        lathe_fail(diag, why->message, "%s", why->text);
    } else {
        out->diag = diag;
        report_steps(out);
        note_defaults(out);
    }
    free(why);
    return status;
}

void lathe_lowered_free(struct lathe_lowered *l) {
    struct lathe_table *tables[] = {&l->symbols, &l->dims,     &l->values,  &l->steps,  &l->attrs,
                                    &l->ints,    &l->operands, &l->buffers, &l->weights};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        lathe_table_free(tables[i]);
    lathe_strings_free(&l->strings);
    free(l->dim_low);
    free(l->dim_high);
    free(l->dim_slots);
    l->dim_low = l->dim_high = NULL;
    l->dim_slots = NULL;
    lathe_arena_free(&l->arena);
}
