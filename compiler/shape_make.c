/* Operators that make tensors: range, fill, dims_tensor, one-hot, cumulative sum, triangles. */
#include "shape_internal.h"

#include <math.h>

static lathe_value_id output0(const struct shape_ctx *c) {
    return c->g->nodes[c->n].out[0];
}

static enum lathe_status set_length(struct shape_ctx *c, enum lathe_dtype dtype, lathe_dim length) {
    struct shape_dims dims = {.rank = 1, .d = {length}};
    lathe_shape_set(c, 0, dtype, &dims);
    return LATHE_OK;
}

static void store_one(struct shape_ctx *c, enum lathe_attr_key key, lathe_dim value) {
    int64_t number;
    if (lathe_dim_is_const(c->g->dims, value, &number))
        lathe_node_set_int(c->g, c->n, key, number);
    else
        lathe_node_set_dims(c->g, c->n, key, &value, 1);
}

static void range_content(struct shape_ctx *c, lathe_dim start, lathe_dim delta, lathe_dim length) {
    int64_t n;
    lathe_dim content[LATHE_MAX_CONTENT];
    if (output0(c) == LATHE_NONE || !lathe_dim_is_const(c->g->dims, length, &n) || n > LATHE_MAX_CONTENT)
        return;
    for (int64_t i = 0; i < n; i++, start = lathe_dim_add(c->g->dims, start, delta))
        content[i] = start;
    lathe_value_set_content(c->g, output0(c), content, (uint32_t)n);
}

static lathe_dim attr_dim(const struct shape_ctx *c, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = lathe_node_attrs(c->g, c->n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, key);
    if (attr && attr->type == LATHE_ATTR_DIMS && attr->count == 1)
        return lathe_dim_resolve(c->g->dims, (lathe_dim)attr->ints[0]);
    return lathe_shape_const(c, attr && attr->type == LATHE_ATTR_INT ? attr->i : absent);
}

/* Its bounds are not all whole: the start may be a fraction, as in the middles of patches, 0.5, 1.5, ... */
static enum lathe_status fractional_range(struct shape_ctx *c, enum lathe_dtype dtype) {
    struct lathe_dims *t = c->g->dims;
    double x[3];
    lathe_dim limit[LATHE_MAX_CONTENT];
    uint32_t count;
    if (!lathe_shape_number(c, lathe_shape_in(c, 0), &x[0]) || !lathe_shape_number(c, lathe_shape_in(c, 2), &x[2]))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its length depends on the data");
    if (lathe_shape_number(c, lathe_shape_in(c, 1), &x[1])) {
        double length = ceil((x[1] - x[0]) / x[2]);
        if (!(length <= 0x1p40))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its length is %g", length);
        return set_length(c, dtype, lathe_shape_const(c, length > 0 ? (int64_t)length : 0));
    }
    /* ceil(limit - start) = limit - floor(start) for a whole limit */
    if (x[2] != 1 || !(fabs(x[0]) < 0x1p40) || !lathe_shape_content(c, lathe_shape_in(c, 1), limit, &count) ||
        count != 1)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its length depends on the data");
    lathe_dim length = lathe_dim_sub(t, limit[0], lathe_shape_const(c, (int64_t)floor(x[0])));
    return set_length(c, dtype, lathe_dim_max(t, length, lathe_shape_const(c, 0)));
}

enum lathe_status lathe_shape_range(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    struct lathe_dims *t = g->dims;
    lathe_value_id y = output0(c);
    if (!g->nodes[c->n].n_in) {
        /* Start and delta are attributes, the length is the output's dim. */
        if (y == LATHE_NONE || g->values[y].rank != 1 || !g->values[y].dtype)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "it has neither operands nor a known length");
        lathe_dim length = lathe_value_dim(g, y, 0);
        LATHE_TRY(set_length(c, g->values[y].dtype, length));
        range_content(c, attr_dim(c, LATHE_ATTR_START, 0), attr_dim(c, LATHE_ATTR_DELTA, 1), length);
        return LATHE_OK;
    }
    lathe_dim bounds[3][LATHE_MAX_CONTENT];
    bool known = true;
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t count;
        LATHE_TRY(lathe_shape_need_rank(c, k, 0, 1));
        if (lathe_shape_value(c, k)->dtype != lathe_shape_value(c, 0)->dtype)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "start, limit and delta differ in type");
        known = known && lathe_shape_content(c, lathe_shape_in(c, k), bounds[k], &count) && count == 1;
    }
    enum lathe_dtype dtype = lathe_shape_value(c, 0)->dtype;
    if (!known)
        return fractional_range(c, dtype);
    lathe_dim start = bounds[0][0], limit = bounds[1][0], delta = bounds[2][0], zero = lathe_shape_const(c, 0), length;
    if (lathe_dim_lower(t, delta) >= 1)
        length = lathe_dim_floordiv(
            t, lathe_dim_sub(t, lathe_dim_add(t, lathe_dim_sub(t, limit, start), delta), lathe_shape_const(c, 1)),
            delta);
    else if (lathe_dim_upper(t, delta) <= -1)
        length = lathe_dim_floordiv(
            t, lathe_dim_sub(t, lathe_dim_sub(t, lathe_dim_sub(t, start, limit), delta), lathe_shape_const(c, 1)),
            lathe_dim_sub(t, zero, delta));
    else
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "the sign of its step is not known");
    length = lathe_dim_max(t, length, zero);
    store_one(c, LATHE_ATTR_START, start);
    store_one(c, LATHE_ATTR_DELTA, delta);
    lathe_node_set_inputs(g, c->n, NULL, 0);
    LATHE_TRY(set_length(c, dtype, length));
    range_content(c, start, delta, length);
    return LATHE_OK;
}

/* Operands: the shape until it is known (then absent), the value of one element (absent: f32 zero). */
enum lathe_status lathe_shape_fill(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    lathe_value_id shape = lathe_shape_in(c, 0), value = lathe_shape_in(c, 1), y = output0(c);
    struct shape_dims out;
    if (value != LATHE_NONE && lathe_value_count(g, value) != 1)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its value must have one element");
    if (shape == LATHE_NONE) {
        if (y == LATHE_NONE || g->values[y].rank < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "it has neither a shape operand nor a known shape");
        out = lathe_shape_dims_of(c, y);
    } else {
        lathe_dim list[LATHE_MAX_CONTENT];
        uint32_t count;
        if (!lathe_shape_content(c, shape, list, &count))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its shape operand '%s' depends on the data",
                                    g->values[shape].name);
        if (count > LATHE_MAX_RANK)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "rank %u; ranks up to %d are supported", count,
                                    LATHE_MAX_RANK);
        out.rank = (int)count;
        for (uint32_t i = 0; i < count; i++) {
            out.d[i] = list[i];
            if (lathe_dim_lower(g->dims, list[i]) < 0)
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "element %u of its shape can be negative", i);
        }
        lathe_node_set_input(g, c->n, 0, LATHE_NONE);
    }
    lathe_shape_set(c, 0, value == LATHE_NONE ? LATHE_F32 : g->values[value].dtype, &out);
    int64_t dims[LATHE_MAX_RANK], n;
    lathe_dim element[LATHE_MAX_CONTENT], content[LATHE_MAX_CONTENT];
    uint32_t count = 1;
    element[0] = lathe_shape_const(c, 0);
    if (y == LATHE_NONE || !lathe_shape_small(c, y, dims, &n) ||
        (value != LATHE_NONE && !lathe_shape_content(c, value, element, &count)))
        return LATHE_OK;
    for (int64_t i = 0; i < n; i++)
        content[i] = element[0];
    lathe_value_set_content(g, y, content, (uint32_t)n);
    return LATHE_OK;
}

/* The elements stand in `values`; type and dims of the output were set by its maker. */
enum lathe_status lathe_shape_dims_tensor(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    lathe_value_id y = output0(c);
    struct lathe_attrs attrs = lathe_node_attrs(g, c->n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, LATHE_ATTR_VALUES);
    lathe_dim content[LATHE_MAX_CONTENT];
    if (!attr || (attr->type != LATHE_ATTR_DIMS && attr->type != LATHE_ATTR_INTS) || attr->count > LATHE_MAX_CONTENT ||
        y == LATHE_NONE || lathe_value_count(g, y) != attr->count)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "`values` and the size of its output do not agree");
    for (uint32_t i = 0; i < attr->count; i++)
        content[i] = attr->type == LATHE_ATTR_DIMS ? lathe_dim_resolve(g->dims, (lathe_dim)attr->ints[i])
                                                   : lathe_shape_const(c, attr->ints[i]);
    lathe_value_set_content(g, y, content, attr->count);
    return LATHE_OK;
}

/* Where it is a list of sizes: how often each axis is repeated, as PyTorch's repeat_interleave is exported. */
static void content_one_hot(struct shape_ctx *c, int64_t depth) {
    int64_t indices[LATHE_MAX_CONTENT];
    lathe_dim values[LATHE_MAX_CONTENT], content[LATHE_MAX_CONTENT];
    uint32_t count, two;
    if (!lathe_shape_content_ints(c, lathe_shape_in(c, 0), indices, &count) ||
        !lathe_shape_content(c, lathe_shape_in(c, 2), values, &two) || two != 2 || depth < 1 ||
        (uint64_t)depth > LATHE_MAX_CONTENT / (count ? count : 1))
        return;
    for (uint32_t i = 0; i < count; i++)
        for (int64_t k = 0; k < depth; k++)
            content[i * depth + k] = values[k == indices[i] || k == indices[i] + depth];
    lathe_value_set_content(c->g, output0(c), content, count * (uint32_t)depth);
}

enum lathe_status lathe_shape_one_hot(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK - 1));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 0, 1));
    LATHE_TRY(lathe_shape_need_rank(c, 2, 1, 1));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out = {.rank = in.rank + 1};
    int axis;
    LATHE_TRY(lathe_shape_axis(c, in.rank, true, -1, &axis));
    lathe_dim depth[LATHE_MAX_CONTENT];
    uint32_t count;
    if (!lathe_shape_content(c, lathe_shape_in(c, 1), depth, &count) || count != 1)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its depth depends on the data");
    if (lathe_value_count(c->g, lathe_shape_in(c, 2)) != 2)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "`values` must have two elements");
    for (int i = 0; i < out.rank; i++)
        out.d[i] = i < axis ? in.d[i] : i == axis ? depth[0] : in.d[i - 1];
    if (lathe_dim_lower(c->g->dims, depth[0]) < 0)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its depth can be negative");
    lathe_shape_set(c, 0, lathe_shape_value(c, 2)->dtype, &out);
    int64_t constant;
    if (axis == in.rank && lathe_dim_is_const(c->g->dims, depth[0], &constant))
        content_one_hot(c, constant);
    return LATHE_OK;
}

enum lathe_status lathe_shape_cumsum(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    int axis;
    int64_t value[LATHE_MAX_CONTENT];
    uint32_t count;
    if (lathe_shape_in(c, 1) != LATHE_NONE) {
        if (!lathe_shape_content_ints(c, lathe_shape_in(c, 1), value, &count) || count != 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its axis depends on the data");
        lathe_node_set_int(c->g, c->n, LATHE_ATTR_AXIS, value[0]);
        lathe_value_id x = lathe_shape_in(c, 0);
        lathe_node_set_inputs(c->g, c->n, &x, 1);
    }
    LATHE_TRY(lathe_shape_axis(c, lathe_shape_value(c, 0)->rank, false, 0, &axis));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_trilu(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, LATHE_MAX_RANK));
    int64_t value[LATHE_MAX_CONTENT];
    uint32_t count;
    if (lathe_shape_in(c, 1) != LATHE_NONE) {
        /* A constant distance becomes an attribute; one that is a size stays an operand. */
        if (lathe_shape_value(c, 1)->dtype != LATHE_I64 || lathe_value_count(c->g, lathe_shape_in(c, 1)) != 1)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "k must be one i64");
        if (lathe_shape_content_ints(c, lathe_shape_in(c, 1), value, &count) && count == 1) {
            lathe_node_set_int(c->g, c->n, LATHE_ATTR_K, value[0]);
            lathe_value_id x = lathe_shape_in(c, 0);
            lathe_node_set_inputs(c->g, c->n, &x, 1);
        }
    }
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_eye_like(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, 2));
    int64_t to = lathe_shape_attr_int(c, LATHE_ATTR_TO, (int64_t)lathe_shape_value(c, 0)->dtype);
    if (to < 0 || to > UINT16_MAX || !lathe_dtype_bytes((enum lathe_dtype)to))
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "element type %lld is not supported", (long long)to);
    lathe_shape_set_like(c, 0, (enum lathe_dtype)to, lathe_shape_in(c, 0));
    return LATHE_OK;
}
