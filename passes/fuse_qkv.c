/* The linear layers that feed q, k and v of one attention from the same input become one product. Its weight is the
 * `concat` of theirs, which packing reads through; attention takes its columns from the wider rows, so no slice is left
 * unless something else reads one of the old results. */
#include "match.h"

#include <stdio.h>
#include <string.h>

struct part {
    lathe_node_id linear;
    lathe_node_id add;      /* of a bias that is not in the layer yet; LATHE_NONE */
    lathe_value_id bias;    /* LATHE_NONE */
    lathe_value_id result;  /* what attention reads, maybe behind a reshape */
    int64_t first, columns; /* in the merged rows */
};

/* Weights that were merged before: layers that share theirs (ALBERT) share the merged one too. */
struct merged {
    unsigned count;
    lathe_value_id weights[3], biases[3];
    lathe_value_id weight, bias;
    const struct merged *next;
};

static struct lathe_attrs attrs_of(struct lathe_graph *g, lathe_node_id n) {
    return lathe_node_attrs(g, n);
}

static lathe_value_id input_of(struct lathe_graph *g, lathe_node_id n, uint32_t index) {
    const struct lathe_node *node = lathe_node_at(g, n);
    return index < node->n_in ? node->in[index] : LATHE_NONE;
}

/* A constant with one number for each of `columns` columns, whatever its rank. */
static bool is_bias(struct lathe_graph *g, lathe_value_id v, int64_t columns) {
    int64_t last;
    return lathe_value_is_constant(g, v) && lathe_value_at(g, v)->dtype == LATHE_F32 &&
           lathe_value_count(g, v) == columns && lathe_value_dim_is(g, v, -1, &last) && last == columns;
}

/* The plain linear layer whose rows an operand of attention is: its result, with a bias added or not, or a reshape of
 * it that keeps the rows. */
static bool find_part(struct lathe_graph *g, lathe_value_id v, struct part *out) {
    lathe_dim width = lathe_value_dim(g, v, -1);
    for (unsigned depth = 0; depth < 8; depth++) {
        lathe_node_id view = lathe_producer_of(g, v, LATHE_OP_RESHAPE);
        if (view == LATHE_NONE)
            break;
        v = lathe_node_at(g, view)->in[0];
    }
    *out = (struct part){.add = lathe_producer_of(g, v, LATHE_OP_ADD), .bias = LATHE_NONE, .result = v};
    if (!lathe_value_dim_is(g, v, -1, &out->columns) || out->columns <= 0 ||
        lathe_dim_resolve(g->dims, lathe_value_dim(g, v, -1)) != lathe_dim_resolve(g->dims, width))
        return false;
    if (out->add != LATHE_NONE) {
        unsigned side = is_bias(g, input_of(g, out->add, 1), out->columns) ? 1 : 0;
        out->bias = input_of(g, out->add, side);
        v = input_of(g, out->add, 1 - side);
        if (!is_bias(g, out->bias, out->columns) ||
            lathe_value_at(g, v)->rank != lathe_value_at(g, out->result)->rank ||
            lathe_value_only_use(g, v) != out->add)
            return false;
    }
    lathe_node_id n = out->linear = lathe_producer_of(g, v, LATHE_OP_LINEAR);
    if (n == LATHE_NONE)
        return false;
    lathe_value_id w = input_of(g, n, 1), bias = input_of(g, n, 2);
    struct lathe_attrs attrs = attrs_of(g, n);
    if (input_of(g, n, 3) != LATHE_NONE || lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, 0) != 0 ||
        lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1) != 1 || !lathe_match_is_matrix(g, w) ||
        lathe_value_at(g, w)->rank != 2 || lathe_value_at(g, v)->dtype != LATHE_F32)
        return false;
    if (bias != LATHE_NONE) {
        if (out->add != LATHE_NONE || !is_bias(g, bias, out->columns))
            return false;
        out->bias = bias;
    }
    return true;
}

static bool are_alike(struct lathe_graph *g, const struct part *a, const struct part *b) {
    struct lathe_attrs x = attrs_of(g, a->linear), y = attrs_of(g, b->linear);
    return input_of(g, a->linear, 0) == input_of(g, b->linear, 0) &&
           lathe_value_at(g, input_of(g, a->linear, 1))->dtype == lathe_value_at(g, input_of(g, b->linear, 1))->dtype &&
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
        if (parts[i].bias == LATHE_NONE)
            continue;
        any = true;
        memcpy(sum + parts[i].first, lathe_value_at(g, parts[i].bias)->data, (size_t)parts[i].columns * sizeof *sum);
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

/* Weight and bias of the merged layer, made or found among those made before. */
static bool merge_constants(struct lathe_pass_ctx *ctx, const struct merged **known, lathe_node_id before,
                            const struct part *parts, unsigned count, int64_t columns, lathe_value_id *weight,
                            lathe_value_id *bias) {
    struct lathe_graph *g = ctx->graph;
    for (const struct merged *m = *known; m; m = m->next) {
        bool same = m->count == count;
        for (unsigned i = 0; i < count && same; i++)
            same = m->weights[i] == input_of(g, parts[i].linear, 1) && m->biases[i] == parts[i].bias;
        if (same) {
            *weight = m->weight;
            *bias = m->bias;
            return true;
        }
    }
    struct merged *m = lathe_arena_alloc(ctx->scratch, sizeof *m);
    if (!m)
        return false;
    m->count = count;
    for (unsigned i = 0; i < count; i++) {
        m->weights[i] = input_of(g, parts[i].linear, 1);
        m->biases[i] = parts[i].bias;
    }
    *weight = m->weight = merge_weight(g, before, parts, count, columns);
    *bias = m->bias = merge_bias(ctx, parts, count, columns);
    m->next = *known;
    *known = m;
    return m->weight != LATHE_NONE && !g->out_of_memory;
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
static bool merge(struct lathe_pass_ctx *ctx, const struct merged **known, lathe_node_id attention, struct part *parts,
                  unsigned count, const unsigned of[3]) {
    static const enum lathe_attr_key offset_keys[3] = {LATHE_ATTR_Q_OFFSET, LATHE_ATTR_K_OFFSET, LATHE_ATTR_V_OFFSET};
    struct lathe_graph *g = ctx->graph;
    int64_t columns = 0;
    for (unsigned i = 0; i < count; i++) {
        parts[i].first = columns;
        if (!lathe_add_i64(columns, parts[i].columns, &columns))
            return true;
    }
    lathe_node_id before = first_in_order(g, parts, count), head = parts[0].linear;
    struct lathe_value row = *lathe_value_at(g, lathe_node_at(g, head)->out[0]);
    lathe_value_id w, bias;
    if (!merge_constants(ctx, known, before, parts, count, columns, &w, &bias))
        return false;
    char name[256];
    snprintf(name, sizeof name, "%.200s/qkv", row.name);
    row.dims[row.rank - 1] = lathe_dim_const(g->dims, columns);
    lathe_value_id in[3] = {input_of(g, head, 0), w, bias};
    lathe_value_id merged = lathe_graph_add_value(g, name, row.dtype, row.rank, row.dims);
    if (merged == LATHE_NONE)
        return false;
    lathe_node_id node =
        lathe_graph_add_node(g, before, LATHE_OP_LINEAR, lathe_node_at(g, head)->name, lathe_node_at(g, head)->origin,
                             in, bias == LATHE_NONE ? 2 : 3, &merged, 1);
    if (node == LATHE_NONE)
        return false;
    struct lathe_attrs attrs = attrs_of(g, head);
    if (lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0))
        lathe_node_set_int(g, node, LATHE_ATTR_TRANS_B, 1);

    /* attention reads the wide rows */
    lathe_value_id rows = merged;
    for (unsigned i = 0; i < 3; i++) {
        if (of[i] == count)
            continue;
        struct lathe_value shape = *lathe_value_at(g, input_of(g, attention, i));
        shape.dims[shape.rank - 1] = lathe_dim_const(g->dims, columns);
        if (!has_shape(g, rows, shape.rank, shape.dims)) {
            snprintf(name, sizeof name, "%.200s/qkv_rows", row.name);
            rows =
                lathe_graph_emit(g, attention, LATHE_OP_RESHAPE, name, &merged, 1, shape.dtype, shape.rank, shape.dims);
            if (rows == LATHE_NONE)
                return false;
        }
        attrs = attrs_of(g, attention);
        int64_t offset = lathe_attr_int(&attrs, offset_keys[i], 0) + parts[of[i]].first;
        lathe_node_id view = lathe_producer_of(g, input_of(g, attention, i), LATHE_OP_RESHAPE);
        lathe_node_set_int(g, attention, offset_keys[i], offset);
        lathe_node_set_input(g, attention, i, rows);
        /* views of the old rows go, the layers themselves below */
        while (view != LATHE_NONE && !lathe_value_use_total(g, lathe_node_at(g, view)->out[0])) {
            lathe_node_id next = lathe_producer_of(g, input_of(g, view, 0), LATHE_OP_RESHAPE);
            lathe_graph_remove_node(g, view);
            view = next;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (lathe_value_use_total(g, parts[i].result)) {
            lathe_value_id slice =
                slice_of(g, lathe_node_at(g, node)->next, merged, lathe_value_at(g, parts[i].result)->name, &parts[i]);
            if (slice == LATHE_NONE)
                return false;
            lathe_graph_replace_uses(g, parts[i].result, slice);
        }
        if (parts[i].add != LATHE_NONE)
            lathe_graph_remove_node(g, parts[i].add);
        lathe_graph_remove_node(g, parts[i].linear);
    }
    ctx->changes++;
    return true;
}

static bool try_attention(struct lathe_pass_ctx *ctx, const struct merged **known, lathe_node_id attention) {
    struct lathe_graph *g = ctx->graph;
    struct part found[3];
    bool is_part[3];
    for (unsigned i = 0; i < 3; i++)
        is_part[i] = find_part(g, input_of(g, attention, i), &found[i]);
    /* q, k and v of one input, or two of them: in cross attention k and v */
    for (unsigned start = 0; start < 2; start++) {
        struct part parts[3];
        unsigned of[3], count = 0;
        if (!is_part[start])
            continue;
        for (unsigned i = 0; i < 3; i++) {
            of[i] = 3;
            if (i < start || !is_part[i] || !are_alike(g, &found[start], &found[i]))
                continue;
            unsigned k = 0;
            while (k < count && parts[k].linear != found[i].linear)
                k++;
            if (k == count)
                parts[count++] = found[i];
            of[i] = k;
        }
        if (count < 2)
            continue;
        for (unsigned i = 0; i < 3; i++)
            if (of[i] == 3)
                of[i] = count;
        return merge(ctx, known, attention, parts, count, of);
    }
    return true;
}

enum lathe_status lathe_pass_fuse_qkv(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    const struct merged *known = NULL;
    bool ok = true;
    for (lathe_node_id n = g->first; n != LATHE_NONE && ok; n = lathe_node_at(g, n)->next)
        if (lathe_node_at(g, n)->op == LATHE_OP_ATTENTION)
            ok = try_attention(ctx, &known, n);
    if (!ok || g->out_of_memory)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_qkv: out of memory");
    /* casts of the joined weights may stand just before the products they were of */
    return ctx->changes ? lathe_graph_sort(g, ctx->diag) : LATHE_OK;
}
