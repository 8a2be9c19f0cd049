/* The linear layers that feed q, k and v of one attention from the same input become one product. Its weight is the
 * `concat` of theirs, which packing reads through; attention takes its columns from the wider rows, so no slice is left
 * unless something else reads one of the old results. */
#include "pass.h"

#include <stdio.h>
#include <string.h>

struct part {
    lathe_node_id linear;
    int64_t first, columns; /* in the merged rows */
};

static struct lathe_attrs attrs_of(struct lathe_graph *g, lathe_node_id n) {
    return lathe_node_attrs(g, n);
}

static lathe_value_id input_of(struct lathe_graph *g, lathe_node_id n, uint32_t index) {
    const struct lathe_node *node = lathe_node_at(g, n);
    return index < node->n_in ? node->in[index] : LATHE_NONE;
}

/* The plain linear layer whose rows an operand of attention is: its result or a reshape of it that keeps the rows. */
static lathe_node_id linear_of(struct lathe_graph *g, lathe_value_id v) {
    lathe_dim width = lathe_value_dim(g, v, -1);
    for (unsigned depth = 0; depth < 8; depth++) {
        lathe_node_id view = lathe_producer_of(g, v, LATHE_OP_RESHAPE);
        if (view == LATHE_NONE)
            break;
        v = lathe_node_at(g, view)->in[0];
    }
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_LINEAR);
    int64_t columns;
    if (n == LATHE_NONE || lathe_dim_resolve(g->dims, lathe_value_dim(g, v, -1)) != lathe_dim_resolve(g->dims, width) ||
        !lathe_value_dim_is(g, v, -1, &columns) || columns <= 0)
        return LATHE_NONE;
    lathe_value_id w = input_of(g, n, 1), bias = input_of(g, n, 2);
    struct lathe_attrs attrs = attrs_of(g, n);
    if (input_of(g, n, 3) != LATHE_NONE || lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, 0) != 0 ||
        !lathe_value_is_constant(g, w) || lathe_value_at(g, w)->rank != 2)
        return LATHE_NONE;
    if (bias != LATHE_NONE && (!lathe_value_is_constant(g, bias) || lathe_value_at(g, bias)->dtype != LATHE_F32 ||
                               lathe_value_count(g, bias) != columns))
        return LATHE_NONE;
    return n;
}

static bool are_alike(struct lathe_graph *g, lathe_node_id a, lathe_node_id b) {
    struct lathe_attrs x = attrs_of(g, a), y = attrs_of(g, b);
    return input_of(g, a, 0) == input_of(g, b, 0) &&
           lathe_value_at(g, input_of(g, a, 1))->dtype == lathe_value_at(g, input_of(g, b, 1))->dtype &&
           lathe_attr_int(&x, LATHE_ATTR_TRANS_B, 0) == lathe_attr_int(&y, LATHE_ATTR_TRANS_B, 0);
}

/* The biases one after the other, zeros for a missing one; LATHE_NONE when all are missing. */
static lathe_value_id merge_bias(struct lathe_pass_ctx *ctx, const struct part *parts, unsigned count,
                                 int64_t columns) {
    struct lathe_graph *g = ctx->graph;
    bool any = false;
    float *sum = lathe_arena_alloc_array(ctx->scratch, (size_t)columns, sizeof *sum);
    if (!sum) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (unsigned i = 0; i < count; i++) {
        lathe_value_id bias = input_of(g, parts[i].linear, 2);
        if (bias == LATHE_NONE)
            continue;
        any = true;
        memcpy(sum + parts[i].first, lathe_value_at(g, bias)->data, (size_t)parts[i].columns * sizeof *sum);
    }
    return any ? lathe_graph_add_constant_copy(g, "qkv_bias", LATHE_F32, 1, &columns, sum) : LATHE_NONE;
}

static lathe_value_id merge_weight(struct lathe_graph *g, lathe_node_id before, const struct part *parts,
                                   unsigned count, int64_t columns) {
    struct lathe_value first = *lathe_value_at(g, input_of(g, parts[0].linear, 1));
    struct lathe_attrs attrs = attrs_of(g, parts[0].linear);
    int axis = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) ? 0 : 1;
    lathe_value_id in[3];
    lathe_dim dims[2] = {first.dims[0], first.dims[1]};
    char name[256];
    for (unsigned i = 0; i < count; i++)
        in[i] = input_of(g, parts[i].linear, 1);
    dims[axis] = lathe_dim_const(g->dims, columns);
    snprintf(name, sizeof name, "%.200s/qkv", first.name);
    lathe_value_id w = lathe_graph_emit(g, before, LATHE_OP_CONCAT, name, in, count, first.dtype, 2, dims);
    if (w != LATHE_NONE)
        lathe_node_set_int(g, lathe_value_at(g, w)->producer, LATHE_ATTR_AXIS, axis);
    return w;
}

/* Columns [first, first + columns) of the merged rows, for what still reads them. */
static lathe_value_id slice_of(struct lathe_graph *g, lathe_node_id before, lathe_value_id merged, const char *base,
                               const struct part *part) {
    struct lathe_value v = *lathe_value_at(g, merged);
    int64_t axis = v.rank - 1, end = part->first + part->columns, step = 1;
    char name[256];
    v.dims[axis] = lathe_dim_const(g->dims, part->columns);
    snprintf(name, sizeof name, "%.200s/slice", base);
    lathe_value_id out = lathe_graph_emit(g, before, LATHE_OP_SLICE, name, &merged, 1, v.dtype, v.rank, v.dims);
    if (out != LATHE_NONE) {
        lathe_node_id n = lathe_value_at(g, out)->producer;
        lathe_node_set_ints(g, n, LATHE_ATTR_AXES, &axis, 1);
        lathe_node_set_ints(g, n, LATHE_ATTR_STARTS, &part->first, 1);
        lathe_node_set_ints(g, n, LATHE_ATTR_ENDS, &end, 1);
        lathe_node_set_ints(g, n, LATHE_ATTR_STEPS, &step, 1);
    }
    return out;
}

/* The node of the group that stands first in the order of the graph. */
static lathe_node_id first_in_order(struct lathe_graph *g, const struct part *parts, unsigned count) {
    LATHE_FOR_NODES(g, n)
    for (unsigned i = 0; i < count; i++)
        if (parts[i].linear == n)
            return n;
    return LATHE_NONE;
}

static bool has_shape(struct lathe_graph *g, lathe_value_id v, int rank, const lathe_dim *dims) {
    const struct lathe_value *value = lathe_value_at(g, v);
    bool same = value->rank == rank;
    for (int i = 0; i < rank && same; i++)
        same = lathe_dim_resolve(g->dims, value->dims[i]) == lathe_dim_resolve(g->dims, dims[i]);
    return same;
}

/* Merges the parts, which operands `of[0..3)` of the attention read (count: not one of them). */
static void merge(struct lathe_pass_ctx *ctx, lathe_node_id attention, struct part *parts, unsigned count,
                  const unsigned of[3]) {
    static const enum lathe_attr_key offset_keys[3] = {LATHE_ATTR_Q_OFFSET, LATHE_ATTR_K_OFFSET, LATHE_ATTR_V_OFFSET};
    struct lathe_graph *g = ctx->graph;
    int64_t columns = 0;
    for (unsigned i = 0; i < count; i++) {
        parts[i].first = columns;
        if (!lathe_value_dim_is(g, lathe_node_at(g, parts[i].linear)->out[0], -1, &parts[i].columns) ||
            !lathe_add_i64(columns, parts[i].columns, &columns))
            return;
    }
    lathe_node_id before = first_in_order(g, parts, count), head = parts[0].linear;
    struct lathe_value row = *lathe_value_at(g, lathe_node_at(g, head)->out[0]);
    lathe_value_id w = merge_weight(g, before, parts, count, columns);
    lathe_value_id bias = merge_bias(ctx, parts, count, columns);
    if (w == LATHE_NONE || g->out_of_memory)
        return;
    char name[256];
    snprintf(name, sizeof name, "%.200s/qkv", row.name);
    row.dims[row.rank - 1] = lathe_dim_const(g->dims, columns);
    lathe_value_id in[3] = {input_of(g, head, 0), w, bias};
    lathe_value_id merged = lathe_graph_add_value(g, name, row.dtype, row.rank, row.dims);
    lathe_node_id node =
        merged == LATHE_NONE
            ? LATHE_NONE
            : lathe_graph_add_node(g, before, LATHE_OP_LINEAR, lathe_node_at(g, head)->name,
                                   lathe_node_at(g, head)->origin, in, bias == LATHE_NONE ? 2 : 3, &merged, 1);
    if (node == LATHE_NONE)
        return;
    struct lathe_attrs attrs = attrs_of(g, head);
    if (lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0))
        lathe_node_set_int(g, node, LATHE_ATTR_TRANS_B, 1);

    /* attention reads the wide rows */
    lathe_value_id rows = merged;
    for (unsigned i = 0; i < 3; i++) {
        if (of[i] == count)
            continue;
        lathe_value_id old = input_of(g, attention, i);
        struct lathe_value shape = *lathe_value_at(g, old);
        shape.dims[shape.rank - 1] = lathe_dim_const(g->dims, columns);
        if (!has_shape(g, rows, shape.rank, shape.dims)) {
            snprintf(name, sizeof name, "%.200s/qkv_rows", row.name);
            rows =
                lathe_graph_emit(g, attention, LATHE_OP_RESHAPE, name, &merged, 1, shape.dtype, shape.rank, shape.dims);
            if (rows == LATHE_NONE)
                return;
        }
        attrs = attrs_of(g, attention);
        int64_t offset = lathe_attr_int(&attrs, offset_keys[i], 0) + parts[of[i]].first;
        lathe_node_id producer = lathe_value_at(g, old)->producer;
        lathe_node_set_int(g, attention, offset_keys[i], offset);
        lathe_node_set_input(g, attention, i, rows);
        if (producer != LATHE_NONE && lathe_node_at(g, producer)->op == LATHE_OP_RESHAPE &&
            !lathe_value_use_total(g, old))
            lathe_graph_remove_dead_from(g, producer);
    }
    for (unsigned i = 0; i < count; i++) {
        lathe_node_id old = parts[i].linear;
        if (lathe_node_at(g, old)->op == LATHE_OP_NONE)
            continue; /* went with its reshape */
        lathe_value_id result = lathe_node_at(g, old)->out[0];
        if (lathe_value_use_total(g, result)) {
            lathe_value_id slice =
                slice_of(g, lathe_node_at(g, node)->next, merged, lathe_value_at(g, result)->name, &parts[i]);
            if (slice == LATHE_NONE)
                return;
            lathe_graph_replace_uses(g, result, slice);
        }
        lathe_graph_remove_node(g, old);
    }
    ctx->changes++;
}

static void try_attention(struct lathe_pass_ctx *ctx, lathe_node_id attention) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id linear[3];
    for (unsigned i = 0; i < 3; i++)
        linear[i] = linear_of(g, input_of(g, attention, i));
    /* q, k and v of one input, else k and v, else whichever two are alike */
    for (unsigned start = 0; start < 2; start++) {
        struct part parts[3];
        unsigned of[3], count = 0;
        if (linear[start] == LATHE_NONE)
            continue;
        for (unsigned i = 0; i < 3; i++) {
            of[i] = 3;
            if (i < start || linear[i] == LATHE_NONE || !are_alike(g, linear[start], linear[i]))
                continue;
            unsigned k = 0;
            while (k < count && parts[k].linear != linear[i])
                k++;
            if (k == count)
                parts[count++] = (struct part){.linear = linear[i]};
            of[i] = k;
        }
        if (count < 2)
            continue;
        for (unsigned i = 0; i < 3; i++)
            if (of[i] == 3)
                of[i] = count;
        merge(ctx, attention, parts, count, of);
        return;
    }
}

enum lathe_status lathe_pass_fuse_qkv(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    LATHE_FOR_NODES(g, n)
    if (lathe_node_at(g, n)->op == LATHE_OP_ATTENTION)
        try_attention(ctx, n);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_qkv: out of memory") : LATHE_OK;
}
