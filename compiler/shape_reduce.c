/* Reductions, arg operators, top-k, softmax. */
#include "shape_internal.h"

/* The reduced axes: operand 1, the attribute, or all; stored sorted and not negative. */
static enum lathe_status reduced_axes(struct shape_ctx *c, int rank, bool *reduced) {
    struct lathe_graph *g = c->g;
    int64_t list[LATHE_MAX_CONTENT], sorted[LATHE_MAX_RANK];
    uint32_t count = 0;
    for (int i = 0; i < rank; i++)
        reduced[i] = false;
    if (lathe_shape_in(c, 1) != LATHE_NONE) {
        if (!lathe_shape_content_ints(c, lathe_shape_in(c, 1), list, &count))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its axes depend on the data");
    } else {
        const int64_t *ints = lathe_shape_attr_ints(c, LATHE_ATTR_AXES, &count);
        if (count > LATHE_MAX_RANK)
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "%u axes for rank %d", count, rank);
        for (uint32_t i = 0; i < count; i++)
            list[i] = ints[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis = list[i] < 0 ? list[i] + rank : list[i];
        if (axis < 0 || axis >= rank || reduced[axis])
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "axis %lld is out of range or given twice for rank %d",
                                    (long long)list[i], rank);
        reduced[axis] = true;
    }
    uint32_t n = 0;
    for (int i = 0; i < rank; i++) {
        if (!count)
            reduced[i] = true;
        if (reduced[i])
            sorted[n++] = i;
    }
    lathe_value_id x = lathe_shape_in(c, 0);
    lathe_node_set_inputs(g, c->n, &x, 1);
    lathe_node_set_ints(g, c->n, LATHE_ATTR_AXES, sorted, n);
    return LATHE_OK;
}

enum lathe_status lathe_shape_reduce(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out = {.rank = 0};
    bool reduced[LATHE_MAX_RANK];
    LATHE_TRY(reduced_axes(c, in.rank, reduced));
    bool keep = lathe_shape_attr_int(c, LATHE_ATTR_KEEPDIMS, 1) != 0;
    lathe_node_set_int(c->g, c->n, LATHE_ATTR_KEEPDIMS, keep);
    for (int i = 0; i < in.rank; i++)
        if (!reduced[i])
            out.d[out.rank++] = in.d[i];
        else if (keep)
            out.d[out.rank++] = lathe_shape_const(c, 1);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    lathe_shape_content_reduce(c, reduced);
    return LATHE_OK;
}

enum lathe_status lathe_shape_arg(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out = {.rank = 0};
    int axis;
    LATHE_TRY(lathe_shape_axis(c, in.rank, false, 0, &axis));
    bool keep = lathe_shape_attr_int(c, LATHE_ATTR_KEEPDIMS, 1) != 0;
    for (int i = 0; i < in.rank; i++)
        if (i != axis)
            out.d[out.rank++] = in.d[i];
        else if (keep)
            out.d[out.rank++] = lathe_shape_const(c, 1);
    lathe_shape_set(c, 0, LATHE_I64, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_top_k(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    int axis;
    LATHE_TRY(lathe_shape_axis(c, out.rank, false, -1, &axis));
    lathe_dim k[LATHE_MAX_CONTENT];
    uint32_t count;
    if (lathe_shape_in(c, 1) != LATHE_NONE) {
        if (!lathe_shape_content(c, lathe_shape_in(c, 1), k, &count) || count != 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its k depends on the data");
    } else if (lathe_shape_attr_int(c, LATHE_ATTR_K, -1) >= 0) {
        k[0] = lathe_shape_const(c, lathe_shape_attr_int(c, LATHE_ATTR_K, 0));
    } else {
        /* k is the size of the output. */
        lathe_value_id y = c->g->nodes[c->n].out[0];
        k[0] = y == LATHE_NONE ? LATHE_DIM_NONE : lathe_value_dim(c->g, y, axis);
        if (k[0] == LATHE_DIM_NONE)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its k is not known");
    }
    if (lathe_dim_lower(c->g->dims, k[0]) < 0 || lathe_dim_proved_lt(c->g->dims, out.d[axis], k[0]))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "k is not within the size of axis %d", axis);
    out.d[axis] = k[0];
    lathe_value_id x = lathe_shape_in(c, 0);
    lathe_node_set_inputs(c->g, c->n, &x, 1);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    lathe_shape_set(c, 1, LATHE_I64, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_softmax(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    int axis, rank = lathe_shape_value(c, 0)->rank;
    LATHE_TRY(lathe_shape_axis(c, rank ? rank : 1, false, -1, &axis));
    if (!lathe_dtype_is_float(lathe_shape_value(c, 0)->dtype))
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "its operand is %s, it must be a float type",
                                lathe_dtype_name(lathe_shape_value(c, 0)->dtype));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}
