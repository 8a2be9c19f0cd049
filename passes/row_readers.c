/* Readers of token rows: which values are masks, which nodes take one token or the mean over the tokens. */
#include "match.h"
#include "positions.h"
#include "row_region.h"

int lathe_row_mask_kind(const struct lathe_row_region *region, lathe_value_id v, int depth) {
    const struct lathe_graph *g = region->graph;
    if (v == LATHE_NONE || depth == 0)
        return 0;
    if (v == region->keys || lathe_match_same(g, v, region->keys))
        return 1;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return 0;
    const struct lathe_node *node = &g->nodes[n];
    double number;
    int kind;
    switch (node->op) {
    case LATHE_OP_CAST:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_EXPAND:
        /* a view may only add or drop axes of size 1: the first token axis keeps its place */
        if (node->op != LATHE_OP_CAST && lathe_row_lead(region, v) != lathe_row_lead(region, node->in[0]))
            return 0;
        return lathe_row_mask_kind(region, node->in[0], depth - 1);
    case LATHE_OP_NOT:
        kind = lathe_row_mask_kind(region, node->in[0], depth - 1);
        return kind ? 3 - kind : 0;
    case LATHE_OP_EQUAL:
        for (int side = 0; side < 2; side++)
            if (lathe_match_number(g, node->in[side], &number) && number == 0)
                return lathe_row_mask_kind(region, node->in[1 - side], depth - 1) == 1 ? 2 : 0;
        return 0;
    case LATHE_OP_GREATER:
        return lathe_match_number(g, node->in[1], &number) && number == 0 &&
                       lathe_row_mask_kind(region, node->in[0], depth - 1) == 1
                   ? 1
                   : 0;
    default:
        return 0;
    }
}

bool lathe_row_is_take(const struct lathe_row_region *region, lathe_node_id n, int64_t *position) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id x = node->n_in ? node->in[0] : LATHE_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    double number;
    int64_t size, step;
    if (x == LATHE_NONE || x >= region->values || region->lead[x] != 2 || g->values[x].rank != 3)
        return false;
    if (node->op == LATHE_OP_GATHER) {
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != 1 || lathe_value_count(g, node->in[1]) != 1 ||
            !lathe_match_number(g, node->in[1], &number))
            return false;
        *position = (int64_t)number;
    } else if (node->op == LATHE_OP_SLICE) {
        uint32_t count;
        const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
        if (count != 1 || axes[0] != 1 || !lathe_value_dim_is(g, node->out[0], 1, &size) || size != 1 ||
            !lathe_attr_constant_at(g, n, LATHE_ATTR_STARTS, 0, position) ||
            !lathe_attr_constant_at(g, n, LATHE_ATTR_STEPS, 0, &step) || step != 1)
            return false;
    } else {
        return false;
    }
    return *position >= 0;
}

/* The operand of a sum over the tokens. */
static bool is_token_sum(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x) {
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_REDUCE_SUM);
    if (n == LATHE_NONE)
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    *x = g->nodes[n].in[0];
    return count == 1 && axes[0] == 1;
}

/* Casts, reshapes and expands of a count a sequence. */
static lathe_value_id skip_shape(const struct lathe_graph *g, lathe_value_id v) {
    for (int i = 0; i < 8 && v != LATHE_NONE; i++) {
        lathe_node_id n = g->values[v].producer;
        if (n == LATHE_NONE || (g->nodes[n].op != LATHE_OP_CAST && g->nodes[n].op != LATHE_OP_RESHAPE &&
                                g->nodes[n].op != LATHE_OP_EXPAND))
            break;
        v = g->nodes[n].in[0];
    }
    return v;
}

/* The x of x * mask, or of where(masked, 0, x). */
static lathe_value_id masked_operand(const struct lathe_row_region *region, lathe_value_id v) {
    const struct lathe_graph *g = region->graph;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return LATHE_NONE;
    const struct lathe_node *node = &g->nodes[n];
    double number;
    if (node->op == LATHE_OP_MUL) {
        for (int side = 0; side < 2; side++)
            if (lathe_row_mask_kind(region, node->in[side], 8) == 1)
                return node->in[1 - side];
    } else if (node->op == LATHE_OP_WHERE) {
        int kind = lathe_row_mask_kind(region, node->in[0], 8);
        if (kind && lathe_match_number(g, node->in[kind == 2 ? 1 : 2], &number) && number == 0)
            return node->in[kind == 2 ? 2 : 1];
    }
    return LATHE_NONE;
}

bool lathe_row_is_mean(const struct lathe_row_region *region, lathe_node_id n, lathe_value_id *x, double *epsilon) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id masked, mask;
    if (node->op != LATHE_OP_DIV || !lathe_value_same_shape(g, node->in[0], node->out[0]) ||
        !is_token_sum(g, node->in[0], &masked) || g->values[masked].rank != 3)
        return false;
    *x = masked_operand(region, masked);
    if (*x == LATHE_NONE || *x >= region->values || region->lead[*x] != 2 || !lathe_value_same_shape(g, *x, masked) ||
        g->values[*x].dtype != LATHE_F32)
        return false;
    lathe_value_id counted = skip_shape(g, node->in[1]);
    lathe_node_id limit = counted == LATHE_NONE ? LATHE_NONE : g->values[counted].producer;
    if (limit == LATHE_NONE)
        return false;
    const struct lathe_node *clip = &g->nodes[limit];
    *epsilon = 1e-9; /* without a limit the source divides 0 by 0 for a sequence without tokens: zeros here */
    if (clip->op == LATHE_OP_CLIP) {
        if (clip->n_in < 2 || !lathe_match_number(g, clip->in[1], epsilon) ||
            (clip->n_in > 2 && clip->in[2] != LATHE_NONE))
            return false;
        counted = clip->in[0];
    } else if (clip->op == LATHE_OP_MAX && clip->n_in == 2) {
        int side = lathe_match_number(g, clip->in[0], epsilon) ? 1 : 0;
        if (!lathe_match_number(g, clip->in[1 - side], epsilon))
            return false;
        counted = clip->in[side];
    }
    return *epsilon > 0 && *epsilon <= 1 && is_token_sum(g, skip_shape(g, counted), &mask) &&
           lathe_row_mask_kind(region, mask, 8) == 1;
}
