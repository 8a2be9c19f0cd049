/* Slice and Split: bounds resolved against the size of the axis. */
#include "shape_internal.h"

#include <stdlib.h>

/* The list of attribute `key`, or of operand k, as expressions. */
static bool slice_list(const struct shape_ctx *c, uint32_t k, enum lathe_attr_key key, lathe_dim *out,
                       uint32_t *count) {
    struct lathe_attrs attrs = lathe_node_attrs(c->g, c->n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, key);
    if (lathe_shape_in(c, k) != LATHE_NONE)
        return lathe_shape_content(c, lathe_shape_in(c, k), out, count);
    *count = 0;
    if (!attr || attr->count > LATHE_MAX_CONTENT)
        return !attr;
    for (uint32_t i = 0; i < attr->count; i++)
        out[i] = attr->type == LATHE_ATTR_DIMS ? (lathe_dim)attr->ints[i] : lathe_shape_const(c, attr->ints[i]);
    *count = attr->count;
    return true;
}

/* The start n - seq of what a constant table has around its row n: past that row it would count from the table's end,
 * which nobody means. So it bounds the length, as a table of positions does. */
static void bound_by_middle(struct shape_ctx *c, lathe_dim start, lathe_dim size) {
    struct lathe_dims *t = c->g->dims;
    struct lathe_dim_term term;
    int64_t rows, middle = INT64_MIN;
    lathe_dim symbol = LATHE_DIM_NONE;
    if (lathe_dim_lower(t, start) >= 0 || lathe_dim_upper(t, start) < 0 || !lathe_dim_is_const(t, size, &rows) ||
        lathe_dim_term_count(t, start) != 2 || !lathe_value_is_constant(c->g, lathe_shape_in(c, 0)))
        return;
    for (uint32_t i = 0; i < 2; i++) {
        lathe_dim_term_at(t, start, i, &term);
        if (!term.atom_count)
            middle = term.factor;
        else if (term.factor == -1 && term.atom_count == 1 && term.atoms[0].kind == LATHE_ATOM_SYMBOL)
            symbol = lathe_dims_symbol_at(t, term.atoms[0].symbol);
    }
    if (middle > 0 && middle < rows && symbol != LATHE_DIM_NONE)
        (void)lathe_shape_at_most(c, symbol, middle);
}

/* A bound clamped into [low, high] after counting from the end when it is negative. False when its sign is unknown. */
static bool resolve_bound(const struct shape_ctx *c, lathe_dim bound, lathe_dim size, lathe_dim low, lathe_dim high,
                          lathe_dim *out) {
    struct lathe_dims *t = c->g->dims;
    int64_t value;
    if (lathe_dim_is_const(t, bound, &value) && (value >= INT32_MAX || value <= -(int64_t)INT32_MAX)) {
        *out = value > 0 ? high : low; /* "to the end", as exporters write it */
        return true;
    }
    if (lathe_dim_upper(t, bound) < 0)
        bound = lathe_dim_add(t, bound, size);
    else if (lathe_dim_lower(t, bound) < 0)
        return false;
    *out = lathe_dim_max(t, lathe_dim_min(t, bound, high), low);
    return *out != LATHE_DIM_NONE;
}

static void store_list(struct shape_ctx *c, enum lathe_attr_key key, const lathe_dim *list, uint32_t count) {
    int64_t values[LATHE_MAX_RANK];
    bool all_const = true;
    for (uint32_t i = 0; i < count; i++)
        all_const &= lathe_dim_is_const(c->g->dims, list[i], &values[i]);
    if (all_const)
        lathe_node_set_ints(c->g, c->n, key, values, count);
    else
        lathe_node_set_dims(c->g, c->n, key, list, count);
}

static void slice_content(struct shape_ctx *c, const lathe_dim *start_of, const int64_t *step_of) {
    lathe_value_id out = c->g->nodes[c->n].out[0];
    int64_t out_dims[LATHE_MAX_RANK], in_dims[LATHE_MAX_RANK], out_count, in_count, start[LATHE_MAX_RANK];
    int64_t from[LATHE_MAX_CONTENT];
    if (out == LATHE_NONE || !lathe_shape_small(c, out, out_dims, &out_count) ||
        !lathe_shape_small(c, lathe_shape_in(c, 0), in_dims, &in_count))
        return;
    int rank = c->g->values[out].rank;
    for (int i = 0; i < rank; i++)
        if (!lathe_dim_is_const(c->g->dims, start_of[i], &start[i]))
            return;
    for (int64_t i = 0; i < out_count; i++) {
        int64_t rest = i, stride = 1;
        from[i] = 0;
        for (int axis = rank - 1; axis >= 0; axis--) {
            from[i] += (start[axis] + rest % out_dims[axis] * step_of[axis]) * stride;
            rest /= out_dims[axis];
            stride *= in_dims[axis];
        }
    }
    lathe_shape_content_pick(c, 0, from, (uint32_t)out_count);
}

enum lathe_status lathe_shape_slice(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    struct lathe_dims *t = g->dims;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    lathe_dim starts[LATHE_MAX_CONTENT], ends[LATHE_MAX_CONTENT], axes[LATHE_MAX_CONTENT], steps[LATHE_MAX_CONTENT];
    uint32_t n_starts, n_ends, n_axes, n_steps;
    if (!slice_list(c, 1, LATHE_ATTR_STARTS, starts, &n_starts) || !slice_list(c, 2, LATHE_ATTR_ENDS, ends, &n_ends) ||
        !slice_list(c, 3, LATHE_ATTR_AXES, axes, &n_axes) || !slice_list(c, 4, LATHE_ATTR_STEPS, steps, &n_steps))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its bounds depend on the data");
    struct shape_dims dims = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    if (n_starts != n_ends || (n_axes && n_axes != n_starts) || (n_steps && n_steps != n_starts) ||
        n_starts > (uint32_t)dims.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%u starts, %u ends, %u axes and %u steps for rank %d",
                                n_starts, n_ends, n_axes, n_steps, dims.rank);
    lathe_dim start_of[LATHE_MAX_RANK], zero = lathe_shape_const(c, 0), one = lathe_shape_const(c, 1);
    int64_t step_of[LATHE_MAX_RANK], axis_list[LATHE_MAX_RANK];
    bool seen[LATHE_MAX_RANK] = {false};
    for (int i = 0; i < dims.rank; i++) {
        start_of[i] = zero;
        step_of[i] = 1;
    }
    for (uint32_t i = 0; i < n_starts; i++) {
        int64_t axis = i, step = 1;
        if (n_axes && !lathe_dim_is_const(t, axes[i], &axis))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its axes are not constant");
        if (n_steps && !lathe_dim_is_const(t, steps[i], &step))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its steps are not constant");
        if (axis < 0)
            axis += dims.rank;
        if (axis < 0 || axis >= dims.rank || seen[axis])
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "axis %u is out of range or given twice", i);
        if (step == 0 || step < -(int64_t)INT32_MAX)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "step %lld is out of range", (long long)step);
        seen[axis] = true;
        axis_list[i] = axis;
        lathe_dim size = dims.d[axis], low = step > 0 ? zero : lathe_shape_const(c, -1);
        lathe_dim high = step > 0 ? size : lathe_dim_sub(t, size, one), length;
        int64_t stored;
        /* Bounds stored by an earlier call: -1 as the end of a negative step means "before the first". */
        bool resolved =
            lathe_shape_in(c, 1) == LATHE_NONE && step < 0 && lathe_dim_is_const(t, ends[i], &stored) && stored == -1;
        bound_by_middle(c, starts[i], size);
        if (!resolve_bound(c, starts[i], size, step > 0 ? zero : zero, high, &starts[i]) ||
            (!resolved && !resolve_bound(c, ends[i], size, low, high, &ends[i])))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "a bound of axis %lld can be negative or not",
                                    (long long)axis);
        if (step > 0)
            length = lathe_dim_floordiv(
                t, lathe_dim_add(t, lathe_dim_sub(t, ends[i], starts[i]), lathe_shape_const(c, step - 1)),
                lathe_shape_const(c, step));
        else
            length = lathe_dim_floordiv(
                t, lathe_dim_add(t, lathe_dim_sub(t, starts[i], ends[i]), lathe_shape_const(c, -step - 1)),
                lathe_shape_const(c, -step));
        dims.d[axis] = lathe_dim_max(t, length, zero);
        start_of[axis] = starts[i];
        step_of[axis] = step;
        steps[i] = lathe_shape_const(c, step);
    }
    lathe_value_id x = lathe_shape_in(c, 0);
    lathe_node_set_inputs(g, c->n, &x, 1);
    lathe_node_set_ints(g, c->n, LATHE_ATTR_AXES, axis_list, n_starts);
    store_list(c, LATHE_ATTR_STARTS, starts, n_starts);
    store_list(c, LATHE_ATTR_ENDS, ends, n_starts);
    store_list(c, LATHE_ATTR_STEPS, steps, n_starts);
    lathe_shape_set(c, 0, g->values[x].dtype, &dims);
    slice_content(c, start_of, step_of);
    return LATHE_OK;
}

/* The sizes of the parts: operand 1, an INTS attribute `values`, or equal parts (the last one smaller). */
static enum lathe_status split_sizes(struct shape_ctx *c, lathe_dim size, lathe_dim *sizes, uint32_t n_out) {
    struct lathe_dims *t = c->g->dims;
    uint32_t count;
    lathe_dim content[LATHE_MAX_CONTENT];
    lathe_value_id operand = lathe_shape_in(c, 1);
    const int64_t *list = lathe_shape_attr_ints(c, LATHE_ATTR_VALUES, &count);
    if (operand != LATHE_NONE) {
        if (!lathe_shape_content(c, operand, content, &count))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "the sizes of its parts depend on the data");
    } else if (list) {
        for (uint32_t i = 0; i < count && i < LATHE_MAX_CONTENT; i++)
            content[i] = lathe_shape_const(c, list[i]);
    } else {
        lathe_dim parts = lathe_shape_const(c, n_out);
        lathe_dim part = lathe_dim_floordiv(t, lathe_dim_add(t, size, lathe_shape_const(c, n_out - 1)), parts);
        lathe_dim last = lathe_dim_sub(t, size, lathe_dim_mul(t, part, lathe_shape_const(c, n_out - 1)));
        if (lathe_dim_upper(t, last) < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%u parts of an axis that is too short", n_out);
        for (uint32_t i = 0; i < n_out; i++)
            sizes[i] = i + 1 < n_out ? part : last;
        return LATHE_OK;
    }
    if (count != n_out || count > LATHE_MAX_CONTENT)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%u sizes for %u outputs", count, n_out);
    lathe_dim sum = lathe_shape_const(c, 0);
    for (uint32_t i = 0; i < n_out; i++) {
        sizes[i] = content[i];
        sum = lathe_dim_add(t, sum, content[i]);
        if (lathe_dim_lower(t, content[i]) < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "part %u could have a negative size", i);
    }
    return lathe_shape_equal(c, sum, size, &sum);
}

enum lathe_status lathe_shape_split(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    lathe_value_id x = lathe_shape_in(c, 0);
    LATHE_TRY(lathe_shape_axis(c, g->values[x].rank, false, 0, &axis));
    uint32_t n_out = g->nodes[c->n].n_out;
    lathe_dim sizes[LATHE_MAX_CONTENT];
    if (n_out < 1 || n_out > LATHE_MAX_CONTENT)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "%u outputs; up to %d are supported", n_out,
                                LATHE_MAX_CONTENT);
    LATHE_TRY(split_sizes(c, lathe_value_dim(g, x, axis), sizes, n_out));
    lathe_dim start = lathe_shape_const(c, 0);
    lathe_value_id outs[LATHE_MAX_CONTENT];
    for (uint32_t i = 0; i < n_out; i++) {
        outs[i] = g->nodes[c->n].out[i];
        g->nodes[c->n].out[i] = LATHE_NONE; /* the value passes on to its slice */
    }
    for (uint32_t i = 0; i < n_out; i++) {
        lathe_dim end = lathe_dim_add(g->dims, start, sizes[i]);
        if (outs[i] != LATHE_NONE) {
            lathe_node_id slice = lathe_graph_add_node(g, c->n, LATHE_OP_SLICE, g->nodes[c->n].name,
                                                       g->nodes[c->n].origin, &x, 1, &outs[i], 1);
            if (slice == LATHE_NONE)
                return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "splitting");
            int64_t axis_value = axis;
            lathe_node_set_ints(g, slice, LATHE_ATTR_AXES, &axis_value, 1);
            lathe_node_set_dims(g, slice, LATHE_ATTR_STARTS, &start, 1);
            lathe_node_set_dims(g, slice, LATHE_ATTR_ENDS, &end, 1);
            LATHE_TRY(lathe_shape_infer_node(g, slice, c->diag));
        }
        start = end;
    }
    lathe_graph_remove_node(g, c->n);
    return LATHE_OK;
}
