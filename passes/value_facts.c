#include "value_facts.h"

enum { MOST_STEPS = 64, MOST_DEPTH = 12 };

bool lathe_value_uniform(const struct lathe_graph *g, lathe_value_id v, double *number) {
    for (int step = 0; step < MOST_STEPS && v != LATHE_NONE; step++) {
        if (lathe_constant_uniform(g, v, number))
            return true;
        if (g->values[v].producer == LATHE_NONE)
            return false;
        const struct lathe_node *node = &g->nodes[g->values[v].producer];
        switch (node->op) {
        case LATHE_OP_FILL:
            if (node->n_in > 1 && node->in[1] != LATHE_NONE) {
                v = node->in[1];
                continue;
            }
            *number = 0;
            return true;
        case LATHE_OP_RESHAPE:
        case LATHE_OP_TRANSPOSE:
        case LATHE_OP_SLICE:
        case LATHE_OP_EXPAND:
        case LATHE_OP_TILE:
            v = node->in[0];
            continue;
        default:
            return false;
        }
    }
    return false;
}

static const struct lathe_value_range unknown = {LATHE_DIM_NONE, LATHE_DIM_NONE};

static lathe_dim attr_dim(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, key);
    if (attr && attr->type == LATHE_ATTR_DIMS && attr->count == 1)
        return lathe_dim_resolve(g->dims, (lathe_dim)attr->ints[0]);
    if (attr && attr->type != LATHE_ATTR_INT)
        return LATHE_DIM_NONE;
    return lathe_dim_const(g->dims, attr ? attr->i : absent);
}

static struct lathe_value_range range_of_constant(struct lathe_graph *g, lathe_value_id v) {
    int64_t count = lathe_value_count(g, v);
    if (count < 1 || count > 1 << 16)
        return unknown;
    int64_t low = lathe_constant_i64(g, v, 0), high = low;
    for (int64_t i = 1; i < count; i++) {
        int64_t x = lathe_constant_i64(g, v, i);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    return (struct lathe_value_range){lathe_dim_const(g->dims, low), lathe_dim_const(g->dims, high)};
}

static struct lathe_value_range range_of_content(struct lathe_graph *g, lathe_value_id v) {
    const struct lathe_value *value = &g->values[v];
    struct lathe_value_range r = {value->content[0], value->content[0]};
    for (uint32_t i = 1; i < value->content_count; i++) {
        r.lower = lathe_dim_min(g->dims, r.lower, value->content[i]);
        r.upper = lathe_dim_max(g->dims, r.upper, value->content[i]);
    }
    return r;
}

static struct lathe_value_range range_of(struct lathe_graph *g, lathe_value_id v, int depth);

static struct lathe_value_range range_of_range(struct lathe_graph *g, lathe_node_id n) {
    struct lathe_dims *t = g->dims;
    lathe_dim start = attr_dim(g, n, LATHE_ATTR_START, 0), delta = attr_dim(g, n, LATHE_ATTR_DELTA, 1);
    if (g->nodes[n].n_in || start == LATHE_DIM_NONE || delta == LATHE_DIM_NONE)
        return unknown;
    lathe_dim length = lathe_value_dim(g, g->nodes[n].out[0], 0);
    lathe_dim last = lathe_dim_add(t, start, lathe_dim_mul(t, delta, lathe_dim_sub(t, length, lathe_dim_const(t, 1))));
    if (lathe_dim_lower(t, delta) >= 0)
        return (struct lathe_value_range){start, last};
    if (lathe_dim_upper(t, delta) <= 0)
        return (struct lathe_value_range){last, start};
    return unknown;
}

static struct lathe_value_range range_of_node(struct lathe_graph *g, lathe_node_id n, int depth) {
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_dims *t = g->dims;
    struct lathe_value_range a, b;
    enum lathe_dtype from = node->n_in && node->in[0] != LATHE_NONE ? g->values[node->in[0]].dtype : LATHE_NO_DTYPE;
    switch (node->op) {
    case LATHE_OP_RANGE:
        return range_of_range(g, n);
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
    case LATHE_OP_EXPAND:
    case LATHE_OP_TILE:
    case LATHE_OP_GATHER:
    case LATHE_OP_GATHER_ELEMENTS:
    case LATHE_OP_GATHER_ND:
        return range_of(g, node->in[0], depth);
    case LATHE_OP_CAST:
        if (from == LATHE_BOOL)
            return (struct lathe_value_range){lathe_dim_const(t, 0), lathe_dim_const(t, 1)};
        return lathe_dtype_is_integer(from) ? range_of(g, node->in[0], depth) : unknown;
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
    case LATHE_OP_MIN:
    case LATHE_OP_MAX:
        if (node->n_in != 2)
            return unknown;
        a = range_of(g, node->in[0], depth);
        b = range_of(g, node->in[1], depth);
        if (node->op == LATHE_OP_ADD)
            return (struct lathe_value_range){lathe_dim_add(t, a.lower, b.lower), lathe_dim_add(t, a.upper, b.upper)};
        if (node->op == LATHE_OP_SUB)
            return (struct lathe_value_range){lathe_dim_sub(t, a.lower, b.upper), lathe_dim_sub(t, a.upper, b.lower)};
        if (node->op == LATHE_OP_MIN)
            return (struct lathe_value_range){lathe_dim_min(t, a.lower, b.lower), lathe_dim_min(t, a.upper, b.upper)};
        return (struct lathe_value_range){lathe_dim_max(t, a.lower, b.lower), lathe_dim_max(t, a.upper, b.upper)};
    case LATHE_OP_ABS:
        a = range_of(g, node->in[0], depth);
        b.lower = lathe_dim_const(t, 0);
        b.upper = lathe_dim_max(t, a.upper, lathe_dim_sub(t, b.lower, a.lower));
        return b;
    case LATHE_OP_NEG:
        a = range_of(g, node->in[0], depth);
        b.lower = lathe_dim_const(t, 0);
        return (struct lathe_value_range){lathe_dim_sub(t, b.lower, a.upper), lathe_dim_sub(t, b.lower, a.lower)};
    default:
        return unknown;
    }
}

static struct lathe_value_range range_of(struct lathe_graph *g, lathe_value_id v, int depth) {
    const struct lathe_value *value = &g->values[v];
    if (depth >= MOST_DEPTH || !lathe_dtype_is_integer(value->dtype))
        return unknown;
    if (value->content && value->content_count)
        return range_of_content(g, v);
    if (value->data)
        return range_of_constant(g, v);
    return value->producer == LATHE_NONE ? unknown : range_of_node(g, value->producer, depth + 1);
}

struct lathe_value_range lathe_value_range(struct lathe_graph *g, lathe_value_id v) {
    return range_of(g, v, 0);
}

int lathe_comparison_outcome(struct lathe_graph *g, enum lathe_op op, lathe_value_id a, lathe_value_id b) {
    struct lathe_dims *t = g->dims;
    if (op == LATHE_OP_GREATER || op == LATHE_OP_GREATER_EQUAL) {
        lathe_value_id swap = a;
        a = b;
        b = swap;
        op = op == LATHE_OP_GREATER ? LATHE_OP_LESS : LATHE_OP_LESS_EQUAL;
    }
    struct lathe_value_range x = lathe_value_range(g, a), y = lathe_value_range(g, b);
    switch (op) {
    case LATHE_OP_LESS:
        return lathe_dim_proved_lt(t, x.upper, y.lower) ? 1 : lathe_dim_proved_le(t, y.upper, x.lower) ? 0 : -1;
    case LATHE_OP_LESS_EQUAL:
        return lathe_dim_proved_le(t, x.upper, y.lower) ? 1 : lathe_dim_proved_lt(t, y.upper, x.lower) ? 0 : -1;
    case LATHE_OP_EQUAL:
        return lathe_dim_proved_lt(t, x.upper, y.lower) || lathe_dim_proved_lt(t, y.upper, x.lower) ? 0 : -1;
    default:
        return -1;
    }
}
