/* Operators that read shapes or move elements: shape, size, transpose, concat, the gathers, expand, tile, pad. */
#include "shape_internal.h"

static lathe_value_id output0(const struct shape_ctx *c) {
    return c->g->nodes[c->n].out[0];
}

static enum lathe_status too_wide(struct shape_ctx *c, int rank) {
    return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "its result has rank %d; ranks up to %d are supported", rank,
                            LATHE_MAX_RANK);
}

enum lathe_status lathe_shape_shape(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    uint32_t count;
    const int64_t *list = lathe_shape_attr_ints(c, LATHE_ATTR_STARTS, &count);
    int64_t start = count ? list[0] : 0;
    list = lathe_shape_attr_ints(c, LATHE_ATTR_ENDS, &count);
    int64_t end = count ? list[0] : in.rank;
    start = start < 0 ? start + in.rank : start;
    end = end < 0 ? end + in.rank : end;
    start = start < 0 ? 0 : start > in.rank ? in.rank : start;
    end = end < start ? start : end > in.rank ? in.rank : end;
    struct shape_dims dims = {.rank = 1};
    dims.d[0] = lathe_shape_const(c, end - start);
    lathe_shape_set(c, 0, LATHE_I64, &dims);
    if (output0(c) != LATHE_NONE)
        lathe_value_set_content(c->g, output0(c), in.d + start, (uint32_t)(end - start));
    return LATHE_OK;
}

enum lathe_status lathe_shape_size(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), scalar = {.rank = 0};
    lathe_dim product = lathe_shape_const(c, 1);
    for (int i = 0; i < in.rank; i++)
        product = lathe_dim_mul(c->g->dims, product, in.d[i]);
    lathe_shape_set(c, 0, LATHE_I64, &scalar);
    if (output0(c) != LATHE_NONE)
        lathe_value_set_content(c->g, output0(c), &product, 1);
    return LATHE_OK;
}

enum lathe_status lathe_shape_transpose(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out = {.rank = in.rank};
    uint32_t count;
    const int64_t *perm = lathe_shape_attr_ints(c, LATHE_ATTR_PERM, &count);
    int64_t reversed[LATHE_MAX_RANK];
    bool seen[LATHE_MAX_RANK] = {false};
    if (!perm) {
        for (int i = 0; i < in.rank; i++)
            reversed[i] = in.rank - 1 - i;
        lathe_node_set_ints(c->g, c->n, LATHE_ATTR_PERM, reversed, (uint32_t)in.rank);
        perm = reversed;
        count = (uint32_t)in.rank;
    }
    if (count != (uint32_t)in.rank)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "perm has %u entries for rank %d", count, in.rank);
    for (int i = 0; i < in.rank; i++) {
        if (perm[i] < 0 || perm[i] >= in.rank || seen[perm[i]])
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "perm is no permutation of the axes");
        seen[perm[i]] = true;
        out.d[i] = in.d[perm[i]];
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    int64_t out_dims[LATHE_MAX_RANK], in_dims[LATHE_MAX_RANK], n, from[LATHE_MAX_CONTENT];
    if (output0(c) == LATHE_NONE || !lathe_shape_small(c, output0(c), out_dims, &n) ||
        !lathe_shape_small(c, lathe_shape_in(c, 0), in_dims, &n))
        return LATHE_OK;
    int64_t stride[LATHE_MAX_RANK], product = 1;
    for (int i = in.rank - 1; i >= 0; i--) {
        stride[i] = product;
        product *= in_dims[i];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        from[i] = 0;
        for (int axis = in.rank - 1; axis >= 0; axis--) {
            from[i] += rest % out_dims[axis] * stride[perm[axis]];
            rest /= out_dims[axis];
        }
    }
    lathe_shape_content_pick(c, 0, from, (uint32_t)n);
    return LATHE_OK;
}

static void concat_content(struct shape_ctx *c, int axis) {
    int64_t out_dims[LATHE_MAX_RANK], dims[LATHE_MAX_RANK], total, n, done = 0, inner = 1;
    lathe_dim result[LATHE_MAX_CONTENT], content[LATHE_MAX_CONTENT];
    if (output0(c) == LATHE_NONE || !lathe_shape_small(c, output0(c), out_dims, &total))
        return;
    int rank = c->g->values[output0(c)].rank;
    for (int i = axis + 1; i < rank; i++)
        inner *= out_dims[i];
    for (uint32_t k = 0; k < c->g->nodes[c->n].n_in; k++) {
        uint32_t count;
        if (!lathe_shape_small(c, lathe_shape_in(c, k), dims, &n) ||
            !lathe_shape_content(c, lathe_shape_in(c, k), content, &count) || count != (uint32_t)n)
            return;
        for (int64_t i = 0; i < n; i++) {
            int64_t block = dims[axis] * inner;
            result[i / block * out_dims[axis] * inner + done * inner + i % block] = content[i];
        }
        done += dims[axis];
    }
    lathe_value_set_content(c->g, output0(c), result, (uint32_t)total);
}

enum lathe_status lathe_shape_concat(struct shape_ctx *c) {
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    LATHE_TRY(lathe_shape_axis(c, out.rank, false, 0, &axis));
    for (uint32_t k = 1; k < c->g->nodes[c->n].n_in; k++) {
        LATHE_TRY(lathe_shape_need_rank(c, k, out.rank, out.rank));
        if (lathe_shape_value(c, k)->dtype != lathe_shape_value(c, 0)->dtype)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operands differ in type");
        struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, k));
        for (int i = 0; i < out.rank; i++) {
            if (i == axis)
                out.d[i] = lathe_dim_add(c->g->dims, out.d[i], in.d[i]);
            else
                LATHE_TRY(lathe_shape_equal(c, out.d[i], in.d[i], &out.d[i]));
        }
    }
    for (int i = 0; i < out.rank; i++)
        out.d[i] = lathe_dim_resolve(c->g->dims, out.d[i]);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    concat_content(c, axis);
    return LATHE_OK;
}

static enum lathe_status check_indices(struct shape_ctx *c, uint32_t k, lathe_dim size, int64_t *index, uint32_t *count,
                                       bool *known) {
    int64_t limit;
    *known = lathe_shape_content_ints(c, lathe_shape_in(c, k), index, count);
    if (!*known || !lathe_dim_is_const(c->g->dims, size, &limit))
        return LATHE_OK;
    for (uint32_t i = 0; i < *count; i++) {
        if (index[i] < -limit || index[i] >= limit)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "index %lld is outside an axis of size %lld",
                                    (long long)index[i], (long long)limit);
    }
    return LATHE_OK;
}

enum lathe_status lathe_shape_gather(struct shape_ctx *c) {
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 0, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_index_type(c, 1));
    struct shape_dims data = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims index = lathe_shape_dims_of(c, lathe_shape_in(c, 1)), out;
    LATHE_TRY(lathe_shape_axis(c, data.rank, false, 0, &axis));
    out.rank = data.rank + index.rank - 1;
    if (out.rank > LATHE_MAX_RANK)
        return too_wide(c, out.rank);
    for (int i = 0; i < out.rank; i++)
        out.d[i] = i < axis ? data.d[i] : i < axis + index.rank ? index.d[i - axis] : data.d[i - index.rank + 1];
    int64_t ints[LATHE_MAX_CONTENT], dims[LATHE_MAX_RANK], n, from[LATHE_MAX_CONTENT], out_dims[LATHE_MAX_RANK], total;
    uint32_t count;
    bool known;
    LATHE_TRY(check_indices(c, 1, data.d[axis], ints, &count, &known));
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    if (!known || output0(c) == LATHE_NONE || !lathe_shape_small(c, lathe_shape_in(c, 0), dims, &n) ||
        !lathe_shape_small(c, output0(c), out_dims, &total) || !count)
        return LATHE_OK;
    int64_t inner = 1;
    for (int i = axis + 1; i < data.rank; i++)
        inner *= dims[i];
    for (int64_t i = 0; i < total; i++) {
        int64_t picked = ints[i / inner % count];
        picked = picked < 0 ? picked + dims[axis] : picked;
        from[i] = i / (inner * count) * dims[axis] * inner + picked * inner + i % inner;
    }
    lathe_shape_content_pick(c, 0, from, (uint32_t)total);
    return LATHE_OK;
}

enum lathe_status lathe_shape_gather_elements(struct shape_ctx *c) {
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    int rank = lathe_shape_value(c, 0)->rank;
    LATHE_TRY(lathe_shape_need_rank(c, 1, rank, rank));
    LATHE_TRY(lathe_shape_need_index_type(c, 1));
    LATHE_TRY(lathe_shape_axis(c, rank, false, 0, &axis));
    struct shape_dims data = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims index = lathe_shape_dims_of(c, lathe_shape_in(c, 1));
    for (int i = 0; i < rank; i++)
        if (i != axis && lathe_dim_proved_lt(c->g->dims, data.d[i], index.d[i]))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "the indices are larger than the data in axis %d", i);
    int64_t ints[LATHE_MAX_CONTENT];
    uint32_t count;
    bool known;
    LATHE_TRY(check_indices(c, 1, data.d[axis], ints, &count, &known));
    for (int i = 0; i < rank && lathe_shape_attr_int(c, LATHE_ATTR_MODE, 0) == 1; i++) {
        int64_t one;
        if (i != axis && lathe_dim_is_const(c->g->dims, index.d[i], &one) && one == 1)
            index.d[i] = data.d[i];
    }
    if (c->g->nodes[c->n].n_in > 2 && lathe_shape_in(c, 2) != LATHE_NONE) {
        struct shape_dims sum = index, added = lathe_shape_dims_of(c, lathe_shape_in(c, 2));
        if (lathe_shape_value(c, 0)->dtype != LATHE_F32 || lathe_shape_value(c, 2)->dtype != LATHE_F32)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "what is added must be f32, as the data");
        LATHE_TRY(lathe_shape_broadcast(c, &sum, &added));
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &index);
    return LATHE_OK;
}

enum lathe_status lathe_shape_gather_nd(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_index_type(c, 1));
    struct shape_dims data = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims index = lathe_shape_dims_of(c, lathe_shape_in(c, 1)), out = {.rank = 0};
    int64_t batch = lathe_shape_attr_int(c, LATHE_ATTR_BATCH_DIMS, 0), depth;
    if (!lathe_dim_is_const(c->g->dims, index.d[index.rank - 1], &depth))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "the last axis of its indices is not constant");
    if (batch < 0 || batch >= index.rank || depth < 1 || batch + depth > data.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "batch_dims %lld and index tuples of %lld for rank %d",
                                (long long)batch, (long long)depth, data.rank);
    if (index.rank - 1 + data.rank - (batch + depth) > LATHE_MAX_RANK)
        return too_wide(c, index.rank - 1 + data.rank - (int)(batch + depth));
    for (int i = 0; i < index.rank - 1; i++) {
        out.d[out.rank] = index.d[i];
        if (i < batch)
            LATHE_TRY(lathe_shape_equal(c, index.d[i], data.d[i], &out.d[out.rank]));
        out.rank++;
    }
    for (int i = (int)(batch + depth); i < data.rank; i++)
        out.d[out.rank++] = data.d[i];
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

/* Content of a result that repeats its operand along the axes: each output index modulo the operand's size. */
static void repeat_content(struct shape_ctx *c) {
    int64_t out_dims[LATHE_MAX_RANK], dims[LATHE_MAX_RANK], total, n, from[LATHE_MAX_CONTENT];
    if (output0(c) == LATHE_NONE || !lathe_shape_small(c, output0(c), out_dims, &total) ||
        !lathe_shape_small(c, lathe_shape_in(c, 0), dims, &n) || !n)
        return;
    int rank = c->g->values[output0(c)].rank, in_rank = lathe_shape_value(c, 0)->rank;
    for (int64_t i = 0; i < total; i++) {
        int64_t rest = i, stride = 1;
        from[i] = 0;
        for (int axis = rank - 1, k = in_rank - 1; k >= 0; axis--, k--) {
            from[i] += rest % out_dims[axis] % dims[k] * stride;
            rest /= out_dims[axis];
            stride *= dims[k];
        }
    }
    lathe_shape_content_pick(c, 0, from, (uint32_t)total);
}

/* Reads the content of shape operand 1 and drops the operand. With no operand left, the output's dims stay. */
static enum lathe_status take_shape_operand(struct shape_ctx *c, struct shape_dims *out, bool *known_before) {
    lathe_dim list[LATHE_MAX_CONTENT];
    uint32_t count;
    lathe_value_id shape = lathe_shape_in(c, 1);
    *known_before = shape == LATHE_NONE;
    if (*known_before) {
        lathe_value_id y = output0(c);
        if (y == LATHE_NONE || c->g->values[y].rank < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "it has neither a shape operand nor a known shape");
        *out = lathe_shape_dims_of(c, y);
        return LATHE_OK;
    }
    if (!lathe_shape_content(c, shape, list, &count))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its shape operand '%s' depends on the data",
                                c->g->values[shape].name);
    if (count > LATHE_MAX_RANK || c->g->values[shape].rank != 1)
        return too_wide(c, (int)count);
    out->rank = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        out->d[i] = list[i];
        if (lathe_dim_lower(c->g->dims, list[i]) < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "element %u of its shape operand can be negative", i);
    }
    return LATHE_OK;
}

static void drop_shape_operand(struct shape_ctx *c) {
    lathe_value_id x = lathe_shape_in(c, 0);
    lathe_node_set_inputs(c->g, c->n, &x, 1);
}

enum lathe_status lathe_shape_expand(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims wanted, out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    bool known_before;
    LATHE_TRY(take_shape_operand(c, &wanted, &known_before));
    LATHE_TRY(lathe_shape_broadcast(c, &out, &wanted));
    drop_shape_operand(c);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    repeat_content(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_tile(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims out, in = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    bool known_before;
    LATHE_TRY(take_shape_operand(c, &out, &known_before));
    if (out.rank != in.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%d repeats for rank %d", out.rank, in.rank);
    for (int i = 0; i < in.rank && !known_before; i++)
        out.d[i] = lathe_dim_mul(c->g->dims, out.d[i], in.d[i]);
    drop_shape_operand(c);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    repeat_content(c);
    return LATHE_OK;
}

/* Operands of the import: x, pads, value, axes; afterwards x, value and the attribute `pads`. */
enum lathe_status lathe_shape_pad(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct lathe_attrs attrs = lathe_node_attrs(g, c->n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, LATHE_ATTR_PADS);
    lathe_dim pads[2 * LATHE_MAX_RANK], list[LATHE_MAX_CONTENT];
    int64_t axes[LATHE_MAX_CONTENT];
    uint32_t count = 0, n_axes = (uint32_t)out.rank;
    for (int i = 0; i < out.rank; i++)
        axes[i] = i;
    if (attr) {
        for (; count < attr->count && count < LATHE_MAX_CONTENT; count++)
            list[count] =
                attr->type == LATHE_ATTR_DIMS ? (lathe_dim)attr->ints[count] : lathe_shape_const(c, attr->ints[count]);
    } else if (!lathe_shape_content(c, lathe_shape_in(c, 1), list, &count)) {
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its pads depend on the data");
    }
    if (!attr && lathe_shape_in(c, 3) != LATHE_NONE &&
        !lathe_shape_content_ints(c, lathe_shape_in(c, 3), axes, &n_axes))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its axes depend on the data");
    if (count != 2 * n_axes || n_axes > (uint32_t)out.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%u pads for %u axes", count, n_axes);
    for (int i = 0; i < 2 * out.rank; i++)
        pads[i] = lathe_shape_const(c, 0);
    for (uint32_t i = 0; i < n_axes; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + out.rank : axes[i];
        if (axis < 0 || axis >= out.rank)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "axis %lld is out of range", (long long)axes[i]);
        pads[axis] = list[i];
        pads[axis + out.rank] = list[i + n_axes];
    }
    int64_t values[2 * LATHE_MAX_RANK];
    bool all_const = true;
    for (int i = 0; i < out.rank; i++) {
        out.d[i] = lathe_dim_add(g->dims, out.d[i], lathe_dim_add(g->dims, pads[i], pads[i + out.rank]));
        all_const &= lathe_dim_is_const(g->dims, pads[i], &values[i]);
        all_const &= lathe_dim_is_const(g->dims, pads[i + out.rank], &values[i + out.rank]);
        if (out.d[i] != LATHE_DIM_NONE && lathe_dim_upper(g->dims, out.d[i]) < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "negative pads cut axis %d below nothing", i);
    }
    if (!attr) {
        lathe_value_id in[2] = {lathe_shape_in(c, 0), lathe_shape_in(c, 2)};
        lathe_node_set_inputs(g, c->n, in, in[1] == LATHE_NONE ? 1 : 2);
    }
    if (all_const)
        lathe_node_set_ints(g, c->n, LATHE_ATTR_PADS, values, 2 * (uint32_t)out.rank);
    else
        lathe_node_set_dims(g, c->n, LATHE_ATTR_PADS, pads, 2 * (uint32_t)out.rank);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_same(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_scatter(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 2, 0, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_index_type(c, 1));
    struct shape_dims data = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims index = lathe_shape_dims_of(c, lathe_shape_in(c, 1));
    struct shape_dims updates = lathe_shape_dims_of(c, lathe_shape_in(c, 2)), expected = {.rank = 0};
    if (lathe_shape_value(c, 2)->dtype != lathe_shape_value(c, 0)->dtype)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "updates and data differ in type");
    if (c->g->nodes[c->n].op == LATHE_OP_SCATTER_ELEMENTS) {
        int axis;
        LATHE_TRY(lathe_shape_axis(c, data.rank, false, 0, &axis));
        if (index.rank != data.rank)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "indices and data differ in rank");
        expected = index;
    } else {
        int64_t depth;
        if (!lathe_dim_is_const(c->g->dims, index.d[index.rank - 1], &depth))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "the last axis of its indices is not constant");
        if (depth < 1 || depth > data.rank || index.rank - 1 + data.rank - depth > LATHE_MAX_RANK)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "index tuples of %lld for rank %d", (long long)depth,
                                    data.rank);
        for (int i = 0; i < index.rank - 1; i++)
            expected.d[expected.rank++] = index.d[i];
        for (int i = (int)depth; i < data.rank; i++)
            expected.d[expected.rank++] = data.d[i];
    }
    if (updates.rank != expected.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "updates have rank %d, it must be %d", updates.rank,
                                expected.rank);
    for (int i = 0; i < expected.rank; i++) {
        lathe_dim unused;
        LATHE_TRY(lathe_shape_equal(c, updates.d[i], expected.d[i], &unused));
    }
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_depth_space(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 4, 4));
    struct lathe_dims *t = c->g->dims;
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    int64_t block = lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 0);
    if (block < 1 || block > INT16_MAX)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "block size %lld is out of range", (long long)block);
    lathe_dim b = lathe_shape_const(c, block), square = lathe_shape_const(c, block * block);
    if (c->g->nodes[c->n].op == LATHE_OP_DEPTH_TO_SPACE) {
        out.d[1] = lathe_dim_div_exact(t, out.d[1], square);
        out.d[2] = lathe_dim_mul(t, out.d[2], b);
        out.d[3] = lathe_dim_mul(t, out.d[3], b);
    } else {
        out.d[1] = lathe_dim_mul(t, out.d[1], square);
        out.d[2] = lathe_dim_div_exact(t, out.d[2], b);
        out.d[3] = lathe_dim_div_exact(t, out.d[3], b);
    }
    for (int i = 1; i < 4; i++)
        if (out.d[i] == LATHE_DIM_NONE)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "axis %d is no multiple of block size %lld", i,
                                    (long long)block);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

/* The condition must be a constant: the length of the result depends on it. */
enum lathe_status lathe_shape_compress(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 1, 1));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    lathe_value_id condition = lathe_shape_in(c, 1);
    struct lathe_attrs attrs = lathe_node_attrs(c->g, c->n);
    if (!lathe_value_is_constant(c->g, condition) || c->g->values[condition].dtype != LATHE_BOOL)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its result's size depends on the data");
    int64_t kept = 0, n = lathe_value_count(c->g, condition), limit;
    for (int64_t i = 0; i < n; i++)
        kept += lathe_constant_i64(c->g, condition, i) != 0;
    if (lathe_attr_find(&attrs, LATHE_ATTR_AXIS)) {
        int axis;
        LATHE_TRY(lathe_shape_axis(c, out.rank, false, 0, &axis));
        limit = lathe_dim_lower(c->g->dims, out.d[axis]);
        out.d[axis] = lathe_shape_const(c, kept);
    } else {
        limit = 1;
        for (int i = 0; i < out.rank; i++)
            if (!lathe_mul_i64(limit, lathe_dim_lower(c->g->dims, out.d[i]), &limit))
                limit = INT64_MAX;
        out.rank = 1;
        out.d[0] = lathe_shape_const(c, kept);
    }
    if (n > limit)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%lld conditions for %lld elements", (long long)n,
                                (long long)limit);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}
