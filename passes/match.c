#include "match.h"
#include "weight_reader.h"

#include <math.h>
#include <string.h>

/* ---- constants */

/* `value` rounded to a significand of `bits` bits, ties to even: f16 has 11, bf16 has 8. */
static double round_to_bits(double value, int bits) {
    int exponent;
    double fraction = frexp(value, &exponent);
    return ldexp(rint(ldexp(fraction, bits)), exponent - bits);
}

static double snap(double value) {
    static const double known[] = {
        1.41421356237309504880, /* sqrt 2 */
        0.70710678118654752440, /* 1 / sqrt 2 */
        0.79788456080286535588, /* sqrt(2 / pi) */
        1.59576912160573071176, /* 2 sqrt(2 / pi) */
        0.044715,               /* tanh GELU */
        0.03567740813636141,    /* 0.044715 sqrt(2 / pi) */
        0.07135481627272282,    /* twice that */
        1.702,                  /* quick GELU */
    };
    double magnitude = fabs(value);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (magnitude == round_to_bits(known[i], 11) || magnitude == round_to_bits(known[i], 8))
            return value < 0 ? -known[i] : known[i];
    return value;
}

bool lathe_match_number(const struct lathe_graph *g, lathe_value_id v, double *number) {
    double value;
    if (v == LATHE_NONE || !lathe_value_is_constant(g, v) || !lathe_constant_uniform(g, v, &value))
        return false;
    *number = snap(value);
    return true;
}

bool lathe_match_near(double found, double expected) {
    return fabs(found - expected) <= 1e-6 * fabs(expected);
}

/* ---- data flow */

lathe_value_id lathe_match_skip_casts(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n;
    while ((n = lathe_producer_of(g, v, LATHE_OP_CAST)) != LATHE_NONE && lathe_dtype_is_float(g->values[v].dtype) &&
           lathe_dtype_is_float(g->values[g->nodes[n].in[0]].dtype))
        v = g->nodes[n].in[0];
    return v;
}

bool lathe_match_is_matrix(const struct lathe_graph *g, lathe_value_id v) {
    return v != LATHE_NONE && (lathe_value_is_constant(g, v) || lathe_weight_is_matrix(g, v));
}

static bool reads_as_weight(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v, int depth) {
    const struct lathe_node *user = &g->nodes[n];
    struct lathe_attrs attrs = {user->attrs, user->n_attrs};
    if (user->op == LATHE_OP_TRANSPOSE || user->op == LATHE_OP_CONCAT) {
        const struct lathe_value *y = &g->values[user->out[0]];
        for (uint32_t i = 0; i < y->use_count; i++)
            if (depth == 0 || !reads_as_weight(g, y->uses[i], user->out[0], depth - 1))
                return false;
        return !y->is_output && y->use_count > 0;
    }
    if ((user->op != LATHE_OP_MATMUL && user->op != LATHE_OP_GEMM && user->op != LATHE_OP_LINEAR) || user->n_in < 2 ||
        user->in[1] != v || user->in[0] == v || (user->n_in > 2 && user->in[2] == v))
        return false;
    return g->values[user->in[0]].rank >= 2 && !lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0);
}

bool lathe_match_reads_as_weight(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v) {
    return reads_as_weight(g, n, v, 3);
}

bool lathe_match_is_large_matrix(const struct lathe_graph *g, lathe_value_id v) {
    return g->values[v].rank == 2 && lathe_value_count(g, v) > 2048;
}

lathe_value_id lathe_match_table_of(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id cast = lathe_producer_of(g, v, LATHE_OP_CAST);
    v = cast == LATHE_NONE ? v : g->nodes[cast].in[0];
    if (!lathe_value_is_constant(g, v))
        return LATHE_NONE;
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        const struct lathe_node *user = &g->nodes[g->values[v].uses[i]];
        for (uint32_t k = 2; user->op == LATHE_OP_EMBEDDING && k < user->n_in; k += 2)
            if (user->in[k] == v)
                return v;
    }
    return LATHE_NONE;
}

lathe_value_id lathe_match_skip_views(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n;
    while ((n = lathe_producer_of(g, v, LATHE_OP_RESHAPE)) != LATHE_NONE)
        v = g->nodes[n].in[0];
    return v;
}

static bool same_attrs(const struct lathe_node *a, const struct lathe_node *b) {
    if (a->n_attrs != b->n_attrs)
        return false;
    for (uint32_t i = 0; i < a->n_attrs; i++) {
        const struct lathe_attr *p = &a->attrs[i], *q = &b->attrs[i];
        if (p->key != q->key || p->type != q->type)
            return false;
        switch (p->type) {
        case LATHE_ATTR_INT:
            if (p->i != q->i)
                return false;
            break;
        case LATHE_ATTR_FLOAT:
            if (p->f != q->f)
                return false;
            break;
        case LATHE_ATTR_INTS:
        case LATHE_ATTR_DIMS:
            if (p->count != q->count || (p->count && memcmp(p->ints, q->ints, p->count * sizeof *p->ints)))
                return false;
            break;
        }
    }
    return true;
}

static bool same_constants(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    const struct lathe_value *p = &g->values[a], *q = &g->values[b];
    if (p->dtype != q->dtype || !lathe_value_same_shape(g, a, b))
        return false;
    int64_t bytes = lathe_value_bytes(g, a);
    return p->data == q->data || (bytes >= 0 && bytes <= 4096 && !memcmp(p->data, q->data, (size_t)bytes));
}

static bool same(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b, int depth) {
    if (a == LATHE_NONE || b == LATHE_NONE)
        return a == b;
    a = lathe_match_skip_casts(g, a);
    b = lathe_match_skip_casts(g, b);
    if (a == b)
        return true;
    if (lathe_value_is_constant(g, a) && lathe_value_is_constant(g, b))
        return same_constants(g, a, b);
    lathe_node_id na = g->values[a].producer, nb = g->values[b].producer;
    if (depth == 0 || na == LATHE_NONE || nb == LATHE_NONE || na == nb)
        return false;
    const struct lathe_node *p = &g->nodes[na], *q = &g->nodes[nb];
    if (p->op != q->op || p->n_in != q->n_in || g->values[a].producer_output != g->values[b].producer_output ||
        g->values[a].dtype != g->values[b].dtype || !lathe_value_same_shape(g, a, b) || !same_attrs(p, q))
        return false;
    bool equal = true;
    for (uint32_t i = 0; i < p->n_in && equal; i++)
        equal = same(g, p->in[i], q->in[i], depth - 1);
    if (!equal && p->n_in == 2 && (lathe_op_info(p->op)->flags & LATHE_OPF_COMMUTES))
        equal = same(g, p->in[0], q->in[1], depth - 1) && same(g, p->in[1], q->in[0], depth - 1);
    return equal;
}

bool lathe_match_same(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    return same(g, a, b, 4);
}

bool lathe_match_other(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v, lathe_value_id *other) {
    const struct lathe_node *node = &g->nodes[n];
    if (node->n_in != 2 || node->in[0] == node->in[1] || (node->in[0] != v && node->in[1] != v))
        return false;
    *other = node->in[node->in[0] == v];
    return *other != LATHE_NONE;
}

bool lathe_match_scaled(const struct lathe_graph *g, lathe_node_id n, lathe_value_id *x, double *factor) {
    const struct lathe_node *node = &g->nodes[n];
    double c;
    lathe_value_id other;
    if (node->op == LATHE_OP_NEG) {
        other = node->in[0];
        c = -1;
    } else if (node->op == LATHE_OP_MUL && lathe_match_number(g, node->in[1], &c)) {
        other = node->in[0];
    } else if (node->op == LATHE_OP_MUL && lathe_match_number(g, node->in[0], &c)) {
        other = node->in[1];
    } else if (node->op == LATHE_OP_DIV && lathe_match_number(g, node->in[1], &c) && c != 0) {
        other = node->in[0];
        c = 1 / c;
    } else {
        return false;
    }
    if (other == LATHE_NONE || !lathe_value_same_shape(g, other, node->out[0]))
        return false;
    *x = other;
    *factor = c;
    return true;
}

bool lathe_match_dim_equal(const struct lathe_graph *g, lathe_dim a, lathe_dim b) {
    return a != LATHE_DIM_NONE && b != LATHE_DIM_NONE && lathe_dim_resolve(g->dims, a) == lathe_dim_resolve(g->dims, b);
}

bool lathe_match_mean(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x, int *axis) {
    if (v == LATHE_NONE)
        return false;
    lathe_value_id m = lathe_match_skip_casts(g, lathe_match_skip_views(g, lathe_match_skip_casts(g, v)));
    lathe_node_id n = g->values[m].producer;
    double factor = 1;
    if (n != LATHE_NONE && (g->nodes[n].op == LATHE_OP_MUL || g->nodes[n].op == LATHE_OP_DIV)) {
        lathe_value_id sum;
        if (!lathe_match_scaled(g, n, &sum, &factor))
            return false;
        n = lathe_producer_of(g, lathe_match_skip_casts(g, sum), LATHE_OP_REDUCE_SUM);
    } else if (n != LATHE_NONE && g->nodes[n].op != LATHE_OP_REDUCE_MEAN) {
        return false;
    }
    if (n == LATHE_NONE)
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    lathe_value_id source = g->nodes[n].in[0];
    int rank = g->values[source].rank;
    if (!count || (int)count > rank || g->values[v].rank != rank)
        return false;
    int first = rank - (int)count;
    int64_t elements = 1, dim;
    for (uint32_t i = 0; i < count; i++)
        if (axes[i] != first + (int64_t)i || !lathe_value_dim_is(g, source, first + (int)i, &dim) ||
            !lathe_mul_i64(elements, dim, &elements))
            return false;
    if (g->nodes[n].op == LATHE_OP_REDUCE_SUM && !lathe_match_near(factor * (double)elements, 1))
        return false;
    /* v may stand behind a reshape that gives the dropped axes back: it must be as keepdims would have made it */
    for (int i = 0; i < rank; i++) {
        bool right = i < first ? lathe_match_dim_equal(g, g->values[v].dims[i], g->values[source].dims[i])
                               : lathe_value_dim_is(g, v, i, &dim) && dim == 1;
        if (!right)
            return false;
    }
    *x = source;
    *axis = first;
    return true;
}

/* ---- operands of a row */

bool lathe_match_row_operand(const struct lathe_graph *g, lathe_value_id v, lathe_value_id x, int axis) {
    if (v == LATHE_NONE)
        return false;
    const struct lathe_value *a = &g->values[v], *b = &g->values[x];
    if (a->rank < 0 || a->rank > b->rank || a->dtype != b->dtype)
        return false;
    if (lathe_value_is_constant(g, v) && lathe_value_count(g, v) == 1)
        return true;
    int row = b->rank - axis;
    if (a->rank < row)
        return false;
    int64_t dim;
    for (int i = 0; i < a->rank - row; i++)
        if (!lathe_value_dim_is(g, v, i, &dim) || dim != 1)
            return false;
    for (int i = 1; i <= row; i++)
        if (!lathe_value_dim_is(g, v, -i, &dim) ||
            !lathe_match_dim_equal(g, a->dims[a->rank - i], b->dims[b->rank - i]))
            return false;
    return true;
}

lathe_value_id lathe_match_make_reshape(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v, int rank,
                                        const lathe_dim *dims) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_value *value = &g->values[v];
    lathe_dim shape[LATHE_MAX_RANK]; /* `dims` may lie in the table of values, which moves when it grows */
    bool as_is = value->rank == rank;
    for (int i = 0; i < rank; i++) {
        shape[i] = dims[i];
        as_is = as_is && lathe_match_dim_equal(g, value->dims[i], dims[i]);
    }
    if (as_is)
        return v;
    if (lathe_value_is_constant(g, v)) {
        int64_t sizes[LATHE_MAX_RANK];
        bool known = true;
        for (int i = 0; known && i < rank; i++)
            known = lathe_dim_is_const(g->dims, shape[i], &sizes[i]);
        if (known)
            return lathe_graph_add_constant(g, value->name, value->dtype, rank, sizes, value->data);
    }
    const char *name = before != LATHE_NONE ? g->nodes[before].name : value->name;
    return lathe_graph_emit(g, before, LATHE_OP_RESHAPE, name, &v, 1, value->dtype, rank, shape);
}

lathe_value_id lathe_match_make_row_operand(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v,
                                            lathe_value_id x, int axis) {
    struct lathe_graph *g = ctx->graph;
    lathe_dim dims[LATHE_MAX_RANK];
    int row = g->values[x].rank - axis;
    int64_t sizes[LATHE_MAX_RANK], count = 1;
    for (int i = 0; i < row; i++) {
        dims[i] = g->values[x].dims[axis + i];
        if (!lathe_dim_is_const(g->dims, dims[i], &sizes[i]) || !lathe_mul_i64(count, sizes[i], &count))
            return LATHE_NONE;
    }
    if (lathe_value_is_constant(g, v) && lathe_value_count(g, v) == 1 && count != 1) {
        enum lathe_dtype dtype = g->values[v].dtype;
        size_t bytes = lathe_dtype_bytes(dtype);
        char *data = lathe_arena_alloc_array(g->arena, (size_t)count, bytes);
        if (!data) {
            g->out_of_memory = true;
            return LATHE_NONE;
        }
        for (int64_t i = 0; i < count; i++)
            memcpy(data + (size_t)i * bytes, g->values[v].data, bytes);
        return lathe_graph_add_constant(g, g->values[v].name, dtype, row, sizes, data);
    }
    return lathe_match_make_reshape(ctx, before, v, row, dims);
}

/* ---- nodes */

lathe_value_id lathe_match_make_like(struct lathe_graph *g, lathe_node_id before, enum lathe_op op,
                                     const lathe_value_id *in, uint32_t n_in, lathe_value_id like) {
    struct lathe_value model = g->values[like]; /* a copy: the table of values moves when it grows */
    return lathe_graph_emit(g, before, op, g->nodes[before].name, in, n_in, model.dtype, model.rank, model.dims);
}

lathe_value_id lathe_match_weight_columns(struct lathe_graph *g, lathe_node_id linear, int64_t first, int64_t count) {
    lathe_node_id concat = lathe_producer_of(g, g->nodes[linear].in[1], LATHE_OP_CONCAT);
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    if (concat == LATHE_NONE) {
        int64_t columns = 0;
        bool all = first == 0 && lathe_value_dim_is(g, g->nodes[linear].out[0], -1, &columns) && columns == count;
        return all ? g->nodes[linear].in[1] : LATHE_NONE;
    }
    int axis = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) ? 0 : 1;
    struct lathe_attrs own = lathe_node_attrs(g, concat);
    if (lathe_attr_int(&own, LATHE_ATTR_AXIS, -1) != axis)
        return LATHE_NONE;
    lathe_value_id parts[8];
    uint32_t n_parts = 0;
    int64_t at = 0, size;
    for (uint32_t i = 0; i < g->nodes[concat].n_in; i++) {
        lathe_value_id part = g->nodes[concat].in[i];
        if (!lathe_value_dim_is(g, part, axis, &size))
            return LATHE_NONE;
        if (at >= first && at + size <= first + count) {
            if (n_parts == 8)
                return LATHE_NONE;
            parts[n_parts++] = part;
        } else if (at < first + count && at + size > first) {
            return LATHE_NONE; /* a part is cut */
        }
        at += size;
    }
    if (n_parts == 0)
        return LATHE_NONE;
    if (n_parts == 1)
        return parts[0];
    struct lathe_value value = g->values[parts[0]];
    value.dims[axis] = lathe_dim_const(g->dims, count);
    lathe_value_id made =
        lathe_graph_emit(g, linear, LATHE_OP_CONCAT, g->nodes[concat].name, parts, n_parts, value.dtype, 2, value.dims);
    if (made != LATHE_NONE)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_AXIS, axis);
    return made;
}

lathe_node_id *lathe_match_nodes(struct lathe_pass_ctx *ctx, enum lathe_op op, uint32_t *count) {
    struct lathe_graph *g = ctx->graph;
    uint32_t total = 0, filled = 0;
    LATHE_FOR_NODES(g, n) total += g->nodes[n].op == op;
    *count = 0;
    if (!total)
        return NULL;
    lathe_node_id *list = lathe_arena_alloc_array(ctx->scratch, total, sizeof *list);
    if (!list) {
        g->out_of_memory = true;
        return NULL;
    }
    LATHE_FOR_NODES(g, n) if (g->nodes[n].op == op) list[filled++] = n;
    *count = filled;
    return list;
}

void lathe_match_drop_unused(struct lathe_graph *g, lathe_value_id v) {
    if (v == LATHE_NONE || g->values[v].producer == LATHE_NONE)
        return;
    lathe_node_id n = g->values[v].producer;
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++)
        if (g->nodes[n].out[i] != LATHE_NONE && lathe_value_use_total(g, g->nodes[n].out[i]))
            return;
    lathe_graph_remove_dead_from(g, n);
}

bool lathe_match_before(const struct lathe_graph *g, lathe_value_id v, lathe_node_id n) {
    if (v == LATHE_NONE || g->values[v].producer == LATHE_NONE)
        return true;
    for (lathe_node_id p = g->nodes[n].prev; p != LATHE_NONE; p = g->nodes[p].prev)
        if (p == g->values[v].producer)
            return true;
    return false;
}

void lathe_match_make_into(struct lathe_graph *g, lathe_node_id n, enum lathe_op op, const lathe_value_id *in,
                           uint32_t n_in) {
    lathe_value_id old[8];
    uint32_t n_old = 0;
    for (uint32_t i = 0; i < g->nodes[n].n_in && n_old < 8; i++)
        old[n_old++] = g->nodes[n].in[i];
    while (g->nodes[n].n_attrs)
        lathe_node_drop_attr(g, n, g->nodes[n].attrs[0].key);
    lathe_node_set_op(g, n, op);
    lathe_node_set_inputs(g, n, in, n_in);
    for (uint32_t i = 0; i < n_old; i++)
        lathe_match_drop_unused(g, old[i]);
}

void lathe_match_copy_attrs(struct lathe_graph *g, lathe_node_id from, lathe_node_id to) {
    for (uint32_t i = 0; i < g->nodes[from].n_attrs; i++) {
        const struct lathe_attr a = g->nodes[from].attrs[i];
        if (a.type == LATHE_ATTR_INT)
            lathe_node_set_int(g, to, a.key, a.i);
        else if (a.type == LATHE_ATTR_FLOAT)
            lathe_node_set_float(g, to, a.key, a.f);
        else if (a.type == LATHE_ATTR_INTS)
            lathe_node_set_ints(g, to, a.key, a.ints, a.count);
        else if (a.type == LATHE_ATTR_DIMS && a.count <= LATHE_MAX_RANK) {
            lathe_dim dims[LATHE_MAX_RANK];
            for (uint32_t k = 0; k < a.count; k++)
                dims[k] = (lathe_dim)a.ints[k];
            lathe_node_set_dims(g, to, a.key, dims, a.count);
        }
    }
}

bool lathe_match_slice(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x, int64_t *axis, int64_t *start,
                       int64_t *step) {
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_SLICE);
    if (n == LATHE_NONE || g->nodes[n].n_in != 1)
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t n_axes, n_starts, n_steps;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &n_axes);
    const int64_t *starts = lathe_attr_ints(&attrs, LATHE_ATTR_STARTS, &n_starts);
    const int64_t *steps = lathe_attr_ints(&attrs, LATHE_ATTR_STEPS, &n_steps);
    if (!axes || !starts || n_axes != 1 || n_starts != 1 || (steps && n_steps != 1))
        return false;
    *x = g->nodes[n].in[0];
    *axis = axes[0];
    *start = starts[0];
    *step = steps ? steps[0] : 1;
    return true;
}
