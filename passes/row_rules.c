/* What an operator of the region needs of its operands. */
#include "match.h"
#include "row_region.h"

static bool is_one(const struct lathe_graph *g, lathe_dim d) {
    int64_t size;
    return lathe_dim_is_const(g->dims, d, &size) && size == 1;
}

/* Operand i has a row a token. */
static bool needs_rows(const struct lathe_row_region *region, lathe_node_id n, uint32_t i, struct lathe_row_layout out,
                       struct lathe_row_operand *operands) {
    operands[i].role = LATHE_ROW_ROWS;
    return lathe_row_layout_before(region->graph, &region->sizes, n, i, out, &operands[i].layout);
}

/* Operand i broadcasts against an output of that layout. */
static bool broadcast_operand(const struct lathe_row_region *region, lathe_node_id n, uint32_t i,
                              struct lathe_row_layout out, struct lathe_row_operand *operands) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_value *operand = &g->values[g->nodes[n].in[i]];
    int missing = g->values[g->nodes[n].out[0]].rank - operand->rank, token = out.token - missing,
        batch = out.batch - missing;
    bool by_token = token >= 0 && !is_one(g, operand->dims[token]);
    bool by_batch = batch >= 0 && !is_one(g, operand->dims[batch]);
    if (!by_token && !by_batch) {
        operands[i].role = LATHE_ROW_FREE;
        return true;
    }
    if (needs_rows(region, n, i, out, operands))
        return true;
    operands[i].role = LATHE_ROW_SPREAD;
    return out.token != out.batch;
}

static bool pairwise_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                          struct lathe_row_operand *operands) {
    const struct lathe_node *node = &region->graph->nodes[n];
    bool by_row = false;
    for (uint32_t i = 0; i < node->n_in; i++) {
        if (node->in[i] == LATHE_NONE)
            continue;
        if (!broadcast_operand(region, n, i, out, operands))
            return false;
        by_row |= operands[i].role != LATHE_ROW_FREE;
    }
    return by_row;
}

static bool only_first_output(const struct lathe_node *node) {
    for (uint32_t i = 1; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE)
            return false;
    return true;
}

static bool embedding_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                           struct lathe_row_operand *operands) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    int64_t size;
    const int64_t *offsets = lathe_attr_ints(&attrs, LATHE_ATTR_OFFSETS, &count);
    if (out.batch != 0 || out.token != 1 || g->values[node->out[0]].rank != 3 ||
        !lathe_value_dim_is(g, node->out[0], -1, &size))
        return false;
    for (uint32_t i = 2; i + 1 < node->n_in; i += 2) {
        uint32_t pair = (i - 2) / 2;
        if (node->in[i + 1] == LATHE_NONE)
            operands[i + 1].role = pair < count && offsets[pair] >= 0 ? LATHE_ROW_POSITION : LATHE_ROW_ABSENT;
        else if (!needs_rows(region, n, i + 1, out, operands))
            operands[i + 1].role = LATHE_ROW_SPREAD;
    }
    return true;
}

/* Its attentions are those of the region's keys; others stay as they are. */
static bool attention_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                           struct lathe_row_operand *operands) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id keys = node->n_in > 3 ? node->in[3] : LATHE_NONE;
    if (out.batch != 0 || out.token != 1 || keys == LATHE_NONE || g->values[keys].rank != 2 ||
        (keys != region->keys && !lathe_match_same(g, keys, region->keys)))
        return false;
    for (int i = 0; i < 3; i++) {
        operands[i] = (struct lathe_row_operand){LATHE_ROW_ROWS, {0, 1}};
        if (!lathe_row_layout_fits(g, &region->sizes, node->in[i], operands[i].layout))
            return false;
    }
    return true;
}

static bool rotary_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                        struct lathe_row_operand *operands) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    bool table = node->n_in > 3 && node->in[3] != LATHE_NONE;
    uint32_t first = table ? 3 : 1, last = table ? 4 : 3;
    if (out.batch != 0 || out.token != g->values[node->out[0]].rank - 2 || !needs_rows(region, n, 0, out, operands))
        return false;
    if (!table && g->values[node->in[1]].rank == 2) { /* by position: its rows are a table */
        operands[1].role = operands[2].role = LATHE_ROW_FREE;
        return g->values[node->in[2]].rank == 2;
    }
    for (uint32_t i = first; i < last; i++)
        if (!needs_rows(region, n, i, out, operands))
            return false;
    return true;
}

/* Computed from constants alone: a weight that stays in its stored form. */
static bool known_weight(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (v == LATHE_NONE || lathe_value_is_constant(g, v))
        return true;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE || depth == 0)
        return false;
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++)
        if (!known_weight(g, g->nodes[n].in[i], depth - 1))
            return false;
    return true;
}

static bool other_operands_are_constant(const struct lathe_graph *g, lathe_node_id n) {
    for (uint32_t i = 1; i < g->nodes[n].n_in; i++)
        if (g->nodes[n].in[i] != LATHE_NONE && !lathe_value_is_constant(g, g->nodes[n].in[i]))
            return false;
    return true;
}

bool lathe_row_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                    struct lathe_row_operand *operands) {
    struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    if (node->n_in == 0 || node->n_in > LATHE_ROW_MAX_OPERANDS || node->n_out == 0 || node->out[0] == LATHE_NONE ||
        !lathe_row_layout_fits(g, &region->sizes, node->out[0], out))
        return false;
    for (uint32_t i = 0; i < node->n_in; i++)
        operands[i] =
            (struct lathe_row_operand){node->in[i] == LATHE_NONE ? LATHE_ROW_ABSENT : LATHE_ROW_FREE, {-1, -1}};
    unsigned flags = lathe_op_info(node->op)->flags;
    lathe_value_id x = node->in[0];
    if (flags & LATHE_OPF_PAIRWISE)
        return pairwise_rule(region, n, out, operands);
    if (node->op == LATHE_OP_EMBEDDING)
        return embedding_rule(region, n, out, operands);
    if (node->op == LATHE_OP_ATTENTION)
        return attention_rule(region, n, out, operands);
    if (node->op == LATHE_OP_ROTARY)
        return rotary_rule(region, n, out, operands);
    if (node->op == LATHE_OP_CONCAT) {
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!needs_rows(region, n, i, out, operands))
                return false;
        return true;
    }
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    if (node->op == LATHE_OP_GATHER && lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) == 0 && lathe_value_is_constant(g, x))
        return needs_rows(region, n, 1, out, operands);
    if (x == LATHE_NONE || !needs_rows(region, n, 0, out, operands))
        return false;
    int rank = g->values[x].rank, other[LATHE_MAX_RANK];
    bool wide = lathe_row_other_axes(rank, operands[0].layout, other) > 0;
    if (flags & LATHE_OPF_ELEMENTWISE)
        return true;
    switch (node->op) {
    case LATHE_OP_LAYER_NORM:
    case LATHE_OP_RMS_NORM:
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_LOG_SOFTMAX:
    case LATHE_OP_HARDMAX:
    case LATHE_OP_LP_NORMALIZE:
    case LATHE_OP_ARG_MAX:
    case LATHE_OP_ARG_MIN:
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_REDUCE_PROD:
    case LATHE_OP_REDUCE_L1:
    case LATHE_OP_REDUCE_L2:
    case LATHE_OP_REDUCE_SUM_SQUARE:
    case LATHE_OP_REDUCE_LOG_SUM:
    case LATHE_OP_REDUCE_LOG_SUM_EXP:
    case LATHE_OP_SLICE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_RESHAPE:
        return only_first_output(node);
    case LATHE_OP_SKIP_LAYER_NORM:
        return wide && needs_rows(region, n, 1, out, operands);
    case LATHE_OP_GATHER:
        return other_operands_are_constant(g, n);
    case LATHE_OP_LINEAR:
        return wide && (node->n_in < 4 || node->in[3] == LATHE_NONE || needs_rows(region, n, 3, out, operands));
    case LATHE_OP_MATMUL:
        return wide && g->values[node->in[1]].rank == 2 && known_weight(g, node->in[1], 6) &&
               !lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0);
    case LATHE_OP_MATMUL_NBITS:
        return wide;
    case LATHE_OP_CONV:
        /* a kernel of one position: a linear layer on columns */
        return rank == 3 && out.batch == 0 && out.token == 2 && other_operands_are_constant(g, n);
    case LATHE_OP_QUANTIZE_LINEAR:
    case LATHE_OP_DEQUANTIZE_LINEAR:
        for (uint32_t i = 1; i < node->n_in; i++)
            if (node->in[i] != LATHE_NONE && lathe_value_count(g, node->in[i]) != 1)
                return false;
        return other_operands_are_constant(g, n);
    case LATHE_OP_EXPAND:
        return rank == g->values[node->out[0]].rank;
    default:
        return false;
    }
}

bool lathe_row_is_activation(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout layout) {
    const struct lathe_value *value = &region->graph->values[v];
    if (!lathe_dtype_is_float(value->dtype))
        return false;
    for (int i = 0; i < value->rank; i++)
        if (!lathe_row_is_token_axis(layout, i) && !is_one(region->graph, value->dims[i]))
            return true;
    return false;
}
