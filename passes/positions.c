#include "positions.h"

#define MAX_DEPTH 16

bool lathe_attr_constant_at(const struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, uint32_t i,
                            int64_t *value) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_attr *a = lathe_attr_find(&attrs, key);
    if (!a)
        return false;
    if (a->type == LATHE_ATTR_INT && i == 0) {
        *value = a->i;
        return true;
    }
    if ((a->type != LATHE_ATTR_INTS && a->type != LATHE_ATTR_DIMS) || i >= a->count)
        return false;
    if (a->type == LATHE_ATTR_DIMS)
        return lathe_dim_is_const(g->dims, (lathe_dim)a->ints[i], value);
    *value = a->ints[i];
    return true;
}

static bool is_one(const struct lathe_graph *g, lathe_dim d) {
    int64_t size;
    return lathe_dim_is_const(g->dims, d, &size) && size == 1;
}

static bool equal_dims(const struct lathe_graph *g, lathe_dim a, lathe_dim b) {
    return lathe_dim_resolve(g->dims, a) == lathe_dim_resolve(g->dims, b);
}

/* All dims but the last are 1. */
static bool is_row(const struct lathe_graph *g, lathe_value_id v) {
    for (int i = 0; i + 1 < g->values[v].rank; i++)
        if (!is_one(g, g->values[v].dims[i]))
            return false;
    return g->values[v].rank >= 1;
}

/* The start of a slice with step 1 along the last axis; other axes may only be cut where all rows are alike anyway. */
static bool last_axis_start(const struct lathe_graph *g, lathe_node_id n, int64_t *start) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    int rank = g->values[g->nodes[n].in[0]].rank;
    *start = 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t step;
        if (axes[i] != rank - 1)
            continue;
        if (!lathe_attr_constant_at(g, n, LATHE_ATTR_STEPS, i, &step) || step != 1 ||
            !lathe_attr_constant_at(g, n, LATHE_ATTR_STARTS, i, start))
            return false;
    }
    return true;
}

static bool constant_positions(const struct lathe_graph *g, lathe_value_id v, int64_t *first) {
    int64_t count = lathe_value_count(g, v), last;
    if (count < 1 || !lathe_value_dim_is(g, v, -1, &last) || last < 1 || !lathe_dtype_is_integer(g->values[v].dtype))
        return false;
    int64_t start = lathe_constant_i64(g, v, 0);
    for (int64_t i = 0; i < count; i++)
        if (lathe_constant_i64(g, v, i) != start + i % last)
            return false;
    *first = start;
    return true;
}

static bool positions(const struct lathe_graph *g, lathe_value_id v, int depth, int64_t *first) {
    if (v == LATHE_NONE || depth == 0 || g->values[v].rank < 1)
        return false;
    if (lathe_value_is_constant(g, v))
        return constant_positions(g, v, first);
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id x = node->n_in ? node->in[0] : LATHE_NONE;
    int64_t start, number;
    switch (node->op) {
    case LATHE_OP_CAST:
        return lathe_dtype_is_integer(g->values[v].dtype) && positions(g, x, depth - 1, first);
    case LATHE_OP_EXPAND:
        return equal_dims(g, lathe_value_dim(g, v, -1), lathe_value_dim(g, x, -1)) && positions(g, x, depth - 1, first);
    case LATHE_OP_RESHAPE:
        return is_row(g, v) && g->values[x].rank >= 1 && is_row(g, x) && positions(g, x, depth - 1, first);
    case LATHE_OP_SLICE:
        if (!last_axis_start(g, n, &start) || !positions(g, x, depth - 1, first))
            return false;
        return lathe_add_i64(*first, start, first);
    case LATHE_OP_RANGE:
        if (!lathe_attr_constant_at(g, n, LATHE_ATTR_START, 0, first) &&
            !(node->n_in > 0 && x != LATHE_NONE && lathe_value_is_constant(g, x) &&
              (*first = lathe_constant_i64(g, x, 0), true)))
            return false;
        if (!lathe_attr_constant_at(g, n, LATHE_ATTR_DELTA, 0, &number) &&
            !(node->n_in > 2 && node->in[2] != LATHE_NONE && lathe_value_is_constant(g, node->in[2]) &&
              (number = lathe_constant_i64(g, node->in[2], 0), true)))
            return false;
        return number == 1 && lathe_dtype_is_integer(g->values[v].dtype);
    case LATHE_OP_ADD:
        for (int side = 0; side < 2; side++)
            if (lathe_index_is_uniform(g, node->in[side], &number) &&
                equal_dims(g, lathe_value_dim(g, v, -1), lathe_value_dim(g, node->in[1 - side], -1)) &&
                positions(g, node->in[1 - side], depth - 1, first))
                return lathe_add_i64(*first, number, first);
        return false;
    case LATHE_OP_SUB:
        return lathe_index_is_uniform(g, node->in[1], &number) &&
               equal_dims(g, lathe_value_dim(g, v, -1), lathe_value_dim(g, x, -1)) &&
               positions(g, x, depth - 1, first) && !__builtin_sub_overflow(*first, number, first);
    default:
        return false;
    }
}

bool lathe_positions_of(const struct lathe_graph *g, lathe_value_id v, int64_t *first) {
    return positions(g, v, MAX_DEPTH, first);
}

static bool uniform(const struct lathe_graph *g, lathe_value_id v, int depth, int64_t *number) {
    if (v == LATHE_NONE || depth == 0)
        return false;
    enum lathe_dtype dtype = g->values[v].dtype;
    if (!lathe_dtype_is_integer(dtype) && dtype != LATHE_BOOL)
        return false;
    double value;
    if (lathe_value_is_constant(g, v)) {
        if (!lathe_constant_uniform(g, v, &value) || lathe_value_count(g, v) < 1)
            return false;
        *number = lathe_constant_i64(g, v, 0);
        return true;
    }
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    switch (node->op) {
    case LATHE_OP_CAST:
    case LATHE_OP_EXPAND:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_TILE:
    case LATHE_OP_SLICE:
    case LATHE_OP_GATHER: /* of a tensor filled with one number, whatever the index */
    case LATHE_OP_GATHER_ELEMENTS:
    case LATHE_OP_GATHER_ND:
        if (node->n_in > 2) /* what is added */
            return false;
        return uniform(g, node->in[0], depth - 1, number);
    case LATHE_OP_FILL:
        if (node->n_in < 2 || node->in[1] == LATHE_NONE) {
            *number = 0;
            return true;
        }
        return uniform(g, node->in[1], depth - 1, number);
    case LATHE_OP_MUL: {
        int64_t a, b;
        bool first = uniform(g, node->in[0], depth - 1, &a), second = uniform(g, node->in[1], depth - 1, &b);
        if ((first && a == 0) || (second && b == 0)) {
            *number = 0;
            return true;
        }
        return first && second && lathe_mul_i64(a, b, number);
    }
    default:
        return false;
    }
}

bool lathe_index_is_uniform(const struct lathe_graph *g, lathe_value_id v, int64_t *number) {
    return uniform(g, v, MAX_DEPTH, number);
}

/* Every element is 0 or 1. */
static bool is_flag(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (v == LATHE_NONE || depth == 0)
        return false;
    if (g->values[v].dtype == LATHE_BOOL)
        return true;
    int64_t number;
    if (lathe_index_is_uniform(g, v, &number))
        return number == 0 || number == 1;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    switch (node->op) {
    case LATHE_OP_CAST:
    case LATHE_OP_EXPAND:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_SLICE:
        return is_flag(g, node->in[0], depth - 1);
    case LATHE_OP_MUL:
    case LATHE_OP_MIN:
    case LATHE_OP_MAX:
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!is_flag(g, node->in[i], depth - 1))
                return false;
        return true;
    default:
        return false;
    }
}

static lathe_dim upper(struct lathe_graph *g, lathe_value_id v, int depth) {
    int64_t number, count;
    if (v == LATHE_NONE || depth == 0)
        return LATHE_DIM_NONE;
    struct lathe_dims *t = g->dims;
    if (lathe_positions_of(g, v, &number))
        return lathe_dim_add(t, lathe_value_dim(g, v, -1), lathe_dim_const(t, number - 1));
    if (lathe_value_is_constant(g, v)) {
        if (!lathe_dtype_is_integer(g->values[v].dtype) || (count = lathe_value_count(g, v)) < 1)
            return LATHE_DIM_NONE;
        number = lathe_constant_i64(g, v, 0);
        for (int64_t i = 1; i < count; i++)
            if (lathe_constant_i64(g, v, i) > number)
                number = lathe_constant_i64(g, v, i);
        return lathe_dim_const(t, number);
    }
    if (is_flag(g, v, MAX_DEPTH))
        return lathe_dim_const(t, 1);
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return LATHE_DIM_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id x = node->n_in ? node->in[0] : LATHE_NONE;
    lathe_dim a, b;
    switch (node->op) {
    case LATHE_OP_CAST:
        return lathe_dtype_is_integer(g->values[x].dtype) ? upper(g, x, depth - 1) : LATHE_DIM_NONE;
    case LATHE_OP_EXPAND:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_SLICE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_GATHER:
    case LATHE_OP_GATHER_ELEMENTS:
        return upper(g, x, depth - 1);
    case LATHE_OP_CUMSUM: {
        int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
        if (!is_flag(g, x, MAX_DEPTH) || axis < 0 || axis >= g->values[x].rank)
            return LATHE_DIM_NONE;
        return lathe_value_dim(g, x, (int)axis);
    }
    case LATHE_OP_ADD:
        a = upper(g, node->in[0], depth - 1);
        b = upper(g, node->in[1], depth - 1);
        return a == LATHE_DIM_NONE || b == LATHE_DIM_NONE ? LATHE_DIM_NONE : lathe_dim_add(t, a, b);
    case LATHE_OP_SUB:
        a = upper(g, x, depth - 1);
        if (a == LATHE_DIM_NONE || !lathe_index_is_uniform(g, node->in[1], &number))
            return LATHE_DIM_NONE;
        return lathe_dim_sub(t, a, lathe_dim_const(t, number));
    case LATHE_OP_MUL: /* by a flag: the other bound stays, and 0 may come in */
        for (int side = 0; side < 2; side++)
            if (is_flag(g, node->in[side], MAX_DEPTH)) {
                a = upper(g, node->in[1 - side], depth - 1);
                return a == LATHE_DIM_NONE ? a : lathe_dim_max(t, a, lathe_dim_const(t, 0));
            }
        return LATHE_DIM_NONE;
    case LATHE_OP_WHERE:
        a = upper(g, node->in[1], depth - 1);
        b = upper(g, node->in[2], depth - 1);
        return a == LATHE_DIM_NONE || b == LATHE_DIM_NONE ? LATHE_DIM_NONE : lathe_dim_max(t, a, b);
    default:
        return LATHE_DIM_NONE;
    }
}

lathe_dim lathe_index_upper(struct lathe_graph *g, lathe_value_id v) {
    return upper(g, v, MAX_DEPTH);
}
