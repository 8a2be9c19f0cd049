#include "row_axes.h"

#include "match.h"

int lathe_row_other_axes(int rank, struct lathe_row_layout layout, int *axes) {
    int count = 0;
    for (int i = 0; i < rank; i++)
        if (!lathe_row_is_token_axis(layout, i))
            axes[count++] = i;
    return count;
}

bool lathe_row_layout_fits(const struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_value_id v,
                           struct lathe_row_layout layout) {
    const struct lathe_value *value = &g->values[v];
    if (layout.token < 0 || layout.batch < 0 || layout.token >= value->rank || layout.batch >= value->rank)
        return false;
    if (layout.batch == layout.token) /* split, it has an axis more */
        return value->rank < LATHE_MAX_RANK && lathe_match_dim_equal(g, value->dims[layout.token], sizes->tokens);
    return lathe_match_dim_equal(g, value->dims[layout.batch], sizes->batch) &&
           lathe_match_dim_equal(g, value->dims[layout.token], sizes->seq);
}

/* ---- reshape: an axis stays one when as many elements lie before it */

/* The elements before an axis, as a product of dims. */
static lathe_dim before_axis(struct lathe_graph *g, lathe_value_id v, int axis) {
    lathe_dim product = lathe_dim_const(g->dims, 1);
    for (int i = 0; i < axis && product != LATHE_DIM_NONE; i++)
        product = lathe_dim_mul(g->dims, product, g->values[v].dims[i]);
    return product;
}

/* The axis of v with that size and that many elements before it; -1: none. */
static int find_axis(struct lathe_graph *g, lathe_value_id v, lathe_dim before, lathe_dim size) {
    if (before == LATHE_DIM_NONE || size == LATHE_DIM_NONE)
        return -1;
    for (int i = 0; i < g->values[v].rank; i++) {
        lathe_dim own = before_axis(g, v, i);
        if (own != LATHE_DIM_NONE && lathe_match_dim_equal(g, own, before) &&
            lathe_match_dim_equal(g, g->values[v].dims[i], size))
            return i;
    }
    return -1;
}

/* The axis of `to` that holds what axis `a` of `from` holds; tokens may be merged with the batch or split from it. */
static int reshaped_axis(struct lathe_graph *g, const struct lathe_row_sizes *s, lathe_value_id from, lathe_value_id to,
                         int a) {
    lathe_dim size = g->values[from].dims[a], before = before_axis(g, from, a);
    int found = find_axis(g, to, before, size);
    if (found >= 0 || before == LATHE_DIM_NONE)
        return found;
    if (lathe_match_dim_equal(g, size, s->seq))
        return find_axis(g, to, lathe_dim_div_exact(g->dims, before, s->batch), s->tokens);
    if (lathe_match_dim_equal(g, size, s->tokens))
        return find_axis(g, to, lathe_dim_mul(g->dims, before, s->batch), s->seq);
    return -1;
}

static bool reshaped_layout(struct lathe_graph *g, const struct lathe_row_sizes *s, lathe_value_id from,
                            lathe_value_id to, struct lathe_row_layout in, struct lathe_row_layout *out) {
    int token = reshaped_axis(g, s, from, to, in.token);
    if (token < 0)
        return false;
    bool merged = in.batch == in.token;
    lathe_dim size = g->values[to].dims[token];
    if (lathe_match_dim_equal(g, size, s->tokens) && (merged || !lathe_match_dim_equal(g, size, s->seq))) {
        /* the batch lies right before the tokens */
        if (!merged) {
            lathe_dim before = before_axis(g, from, in.batch), own = before_axis(g, to, token);
            if (before == LATHE_DIM_NONE || own == LATHE_DIM_NONE || !lathe_match_dim_equal(g, before, own))
                return false;
        }
        *out = (struct lathe_row_layout){(int8_t)token, (int8_t)token};
        return true;
    }
    int batch =
        merged ? find_axis(g, to, before_axis(g, from, in.token), s->batch) : reshaped_axis(g, s, from, to, in.batch);
    *out = (struct lathe_row_layout){(int8_t)batch, (int8_t)token};
    return batch >= 0 && batch != token && lathe_match_dim_equal(g, g->values[to].dims[batch], s->batch) &&
           lathe_match_dim_equal(g, size, s->seq);
}

/* ---- the other operators */

static bool in_list(const int64_t *list, uint32_t count, int64_t axis) {
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == axis)
            return true;
    return false;
}

static int reduced_axis(const struct lathe_graph *g, const struct lathe_node *node, const int64_t *axes, uint32_t count,
                        int a) {
    if (in_list(axes, count, a))
        return -1;
    if (g->values[node->out[0]].rank == g->values[node->in[0]].rank)
        return a;
    int gone = 0;
    for (uint32_t i = 0; i < count; i++)
        gone += axes[i] < a;
    return a - gone;
}

/* Aligned at the last axis. */
static int broadcast_axis(const struct lathe_graph *g, lathe_value_id in, lathe_value_id out, int a) {
    int axis = a + g->values[out].rank - g->values[in].rank;
    return axis >= 0 && lathe_match_dim_equal(g, g->values[in].dims[a], g->values[out].dims[axis]) ? axis : -1;
}

static int matmul_axis(const struct lathe_graph *g, const struct lathe_node *node, struct lathe_attrs attrs, uint32_t i,
                       int a) {
    if (i > 1)
        return -1;
    int rank = g->values[node->in[i]].rank, other = g->values[node->in[1 - i]].rank, out = g->values[node->out[0]].rank;
    bool swapped = lathe_attr_int(&attrs, i ? LATHE_ATTR_TRANS_B : LATHE_ATTR_TRANS_A, 0) != 0;
    if (rank < 2 || other < 2)
        return -1;
    int contracted = (i == 0) != swapped ? rank - 1 : rank - 2;
    if (a == contracted)
        return -1;
    if (a >= rank - 2)
        return i ? out - 1 : out - 2;
    int axis = out - rank + a;
    return lathe_match_dim_equal(g, g->values[node->in[i]].dims[a], g->values[node->out[0]].dims[axis]) ? axis : -1;
}

static int gather_axis(const struct lathe_graph *g, const struct lathe_node *node, struct lathe_attrs attrs, uint32_t i,
                       int a) {
    int axis = (int)lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0), indices = g->values[node->in[1]].rank;
    if (i == 1)
        return axis + a;
    return a < axis ? a : a > axis ? a + indices - 1 : -1;
}

static int gather_nd_axis(const struct lathe_graph *g, const struct lathe_node *node, struct lathe_attrs attrs,
                          uint32_t i, int a) {
    int batch = (int)lathe_attr_int(&attrs, LATHE_ATTR_BATCH_DIMS, 0), indices = g->values[node->in[1]].rank;
    int64_t width;
    if (i == 1)
        return a < indices - 1 ? a : -1;
    if (!lathe_value_dim_is(g, node->in[1], -1, &width))
        return -1;
    return a < batch ? a : a >= batch + width ? indices - 1 + a - batch - (int)width : -1;
}

/* A convolution that reads one position along that axis. */
static int conv_axis(const struct lathe_graph *g, const struct lathe_node *node, struct lathe_attrs attrs, uint32_t i,
                     int a) {
    uint32_t count;
    int64_t kernel;
    if (i != 0 || a == 1)
        return -1;
    if (a == 0)
        return 0;
    if (!lathe_value_dim_is(g, node->in[1], a, &kernel) || kernel != 1)
        return -1;
    const int64_t *strides = lathe_attr_ints(&attrs, LATHE_ATTR_STRIDES, &count);
    if ((uint32_t)a - 2 < count && strides[a - 2] != 1)
        return -1;
    return lathe_match_dim_equal(g, g->values[node->in[0]].dims[a], g->values[node->out[0]].dims[a]) ? a : -1;
}

static int attention_axis(const struct lathe_graph *g, const struct lathe_node *node, uint32_t i, int a) {
    if (i == 0)
        return a < 2 ? a : -1;
    if (i < 4)
        return a == 0 ? 0 : -1;
    int axis = a + 4 - g->values[node->in[i]].rank; /* of [B,N,Sq,Sk] */
    return axis == 0 ? 0 : axis == 2 ? 1 : -1;
}

static int rotary_axis(const struct lathe_graph *g, const struct lathe_node *node, uint32_t i, int a) {
    int rank = g->values[node->in[0]].rank;
    if (i == 0)
        return a < rank - 1 ? a : -1;
    if (i < 3 && node->n_in > 3 && node->in[3] != LATHE_NONE)
        return -1;                                                       /* rows of a table */
    int own = g->values[node->in[i]].rank - (i < 3), axis = a + 2 - own; /* of [B,S] */
    return a >= own || axis < 0 ? -1 : axis == 0 ? 0 : rank - 2;
}

int lathe_row_axis(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i, int a) {
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id in = node->in[i], out = node->out[0];
    uint32_t count;
    if (in == LATHE_NONE || out == LATHE_NONE || a < 0 || a >= g->values[in].rank)
        return -1;
    unsigned flags = lathe_op_info(node->op)->flags;
    if (flags & LATHE_OPF_ELEMENTWISE)
        return a;
    if (flags & LATHE_OPF_PAIRWISE)
        return broadcast_axis(g, in, out, a);
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1);
    switch (node->op) {
    case LATHE_OP_LAYER_NORM:
    case LATHE_OP_RMS_NORM:
        return i == 0 && a < axis ? a : -1;
    case LATHE_OP_SKIP_LAYER_NORM:
        return i < 2 && a < g->values[in].rank - 1 ? a : -1;
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_LOG_SOFTMAX:
    case LATHE_OP_HARDMAX:
    case LATHE_OP_LP_NORMALIZE:
        return axis >= 0 && a != axis ? a : -1;
    case LATHE_OP_CONCAT:
        return axis >= 0 && a != axis ? a : -1;
    case LATHE_OP_ARG_MAX:
    case LATHE_OP_ARG_MIN:
        return axis >= 0 ? reduced_axis(g, node, &axis, 1, a) : -1;
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_REDUCE_PROD:
    case LATHE_OP_REDUCE_L1:
    case LATHE_OP_REDUCE_L2:
    case LATHE_OP_REDUCE_SUM_SQUARE:
    case LATHE_OP_REDUCE_LOG_SUM:
    case LATHE_OP_REDUCE_LOG_SUM_EXP: {
        const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
        return node->n_in == 1 && count > 0 ? reduced_axis(g, node, axes, count, a) : -1;
    }
    case LATHE_OP_SLICE: {
        const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
        return node->n_in == 1 && count > 0 && !in_list(axes, count, a) ? a : -1;
    }
    case LATHE_OP_TRANSPOSE: {
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        for (uint32_t k = 0; k < count; k++)
            if (perm[k] == a)
                return (int)k;
        return -1;
    }
    case LATHE_OP_EXPAND:
    case LATHE_OP_TILE:
        return i == 0 ? broadcast_axis(g, in, out, a) : -1;
    case LATHE_OP_RESHAPE:
        return i == 0 ? reshaped_axis(g, sizes, in, out, a) : -1;
    case LATHE_OP_GATHER:
        return gather_axis(g, node, attrs, i, a);
    case LATHE_OP_GATHER_ELEMENTS:
        return i == 0 && (a == axis || axis < 0) ? -1 : broadcast_axis(g, in, out, a);
    case LATHE_OP_GATHER_ND:
        return gather_nd_axis(g, node, attrs, i, a);
    case LATHE_OP_MATMUL:
        return matmul_axis(g, node, attrs, i, a);
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_MATMUL_NBITS:
        return (i == 0 || (i == 3 && node->op != LATHE_OP_MATMUL_NBITS)) && a < g->values[in].rank - 1 ? a : -1;
    case LATHE_OP_CONV:
        return conv_axis(g, node, attrs, i, a);
    case LATHE_OP_QUANTIZE_LINEAR:
    case LATHE_OP_DEQUANTIZE_LINEAR:
        return i == 0 && lathe_value_count(g, node->in[1]) == 1 && !lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0)
                   ? a
                   : -1;
    case LATHE_OP_EMBEDDING:
        return i >= 3 && i % 2 == 1 && g->values[in].rank == 2 ? a : -1;
    case LATHE_OP_ATTENTION:
        return attention_axis(g, node, i, a);
    case LATHE_OP_ROTARY:
        return rotary_axis(g, node, i, a);
    default:
        return -1;
    }
}

bool lathe_row_layout_behind(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i,
                             struct lathe_row_layout in, struct lathe_row_layout *out) {
    const struct lathe_node *node = &g->nodes[n];
    if (node->out[0] == LATHE_NONE || node->in[i] == LATHE_NONE || in.token < 0)
        return false;
    if (node->op == LATHE_OP_RESHAPE)
        return reshaped_layout(g, sizes, node->in[0], node->out[0], in, out);
    int batch = lathe_row_axis(g, sizes, n, i, in.batch), token = lathe_row_axis(g, sizes, n, i, in.token);
    *out = (struct lathe_row_layout){(int8_t)batch, (int8_t)token};
    return batch >= 0 && token >= 0 && lathe_row_layout_fits(g, sizes, node->out[0], *out);
}

bool lathe_row_layout_before(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i,
                             struct lathe_row_layout out, struct lathe_row_layout *in) {
    const struct lathe_node *node = &g->nodes[n];
    if (node->in[i] == LATHE_NONE || out.token < 0)
        return false;
    if (node->op == LATHE_OP_RESHAPE)
        return i == 0 && reshaped_layout(g, sizes, node->out[0], node->in[0], out, in);
    *in = (struct lathe_row_layout){-1, -1};
    for (int a = 0; a < g->values[node->in[i]].rank; a++) {
        int axis = lathe_row_axis(g, sizes, n, i, a);
        if (axis >= 0 && axis == out.batch)
            in->batch = (int8_t)a;
        if (axis >= 0 && axis == out.token)
            in->token = (int8_t)a;
    }
    return in->batch >= 0 && in->token >= 0 && lathe_row_layout_fits(g, sizes, node->in[i], *in);
}
