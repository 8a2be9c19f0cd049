/* Elements followed backwards through views; see element_view.h. */
#include "element_view.h"

#include <math.h>

#define MAX_STEPS 20000u
#define MAX_TABLE 1048576 /* elements of a constant that are compared with a sum of its indices */

static bool index_of(struct lathe_element_view *view, const struct lathe_element *e, unsigned depth,
                     struct lathe_index *out);

void lathe_element_view_init(struct lathe_element_view *view, struct lathe_graph *g) {
    view->graph = g;
    view->budget = MAX_STEPS;
    lathe_index_space_init(&view->space, g->dims);
}

bool lathe_element_fresh(struct lathe_element_view *view, lathe_value_id v, struct lathe_element *out) {
    const struct lathe_value *value = lathe_value_at(view->graph, v);
    out->value = v;
    out->rank = value->rank;
    if (value->rank < 0 || value->rank > LATHE_MAX_RANK)
        return false;
    for (int i = 0; i < value->rank; i++)
        if (!lathe_index_new_var(&view->space, value->dims[i], &out->at[i]))
            return false;
    return true;
}

static bool same_dim(struct lathe_element_view *view, lathe_dim a, lathe_dim b) {
    return a != LATHE_DIM_NONE && b != LATHE_DIM_NONE &&
           lathe_dim_resolve(view->graph->dims, a) == lathe_dim_resolve(view->graph->dims, b);
}

static bool dim_is(struct lathe_element_view *view, lathe_dim d, int64_t wanted) {
    int64_t value;
    return d != LATHE_DIM_NONE && lathe_dim_is_const(view->graph->dims, d, &value) && value == wanted;
}

static lathe_dim number(struct lathe_element_view *view, int64_t n) {
    return lathe_dim_const(view->graph->dims, n);
}

bool lathe_element_broadcast(struct lathe_element_view *view, const struct lathe_element *e, lathe_value_id v,
                             struct lathe_element *out) {
    if (v == LATHE_NONE)
        return false;
    const struct lathe_value *result = lathe_value_at(view->graph, e->value);
    const struct lathe_value *value = lathe_value_at(view->graph, v);
    struct lathe_element r = {.value = v, .rank = value->rank};
    if (value->rank < 0 || value->rank > e->rank)
        return false;
    for (int i = 0; i < r.rank; i++) {
        int axis = e->rank - r.rank + i;
        if (same_dim(view, value->dims[i], result->dims[axis]))
            r.at[i] = e->at[axis];
        else if (dim_is(view, value->dims[i], 1))
            lathe_index_const(&view->space, number(view, 0), &r.at[i]);
        else
            return false;
    }
    *out = r;
    return true;
}

/* ---- views */

static bool step_reshape(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_element *out) {
    struct lathe_index offset;
    const struct lathe_value *from = lathe_value_at(view->graph, out->value);
    const struct lathe_value *to = lathe_value_at(view->graph, e->value);
    return lathe_index_flatten(&view->space, e->rank, to->dims, e->at, &offset) &&
           lathe_index_unflatten(&view->space, &offset, from->rank, from->dims, out->at);
}

static bool step_transpose(const struct lathe_element *e, struct lathe_attrs attrs, struct lathe_element *out) {
    uint32_t count;
    const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    if (out->rank != e->rank || (perm && count != (uint32_t)e->rank))
        return false;
    for (int i = 0; i < e->rank; i++) {
        int64_t from = perm ? perm[i] : e->rank - 1 - i;
        if (from < 0 || from >= e->rank)
            return false;
        out->at[from] = e->at[i];
    }
    return true;
}

/* Element i of an INTS or DIMS attribute as a dimension expression. */
static lathe_dim attr_dim(struct lathe_element_view *view, const struct lathe_attr *a, uint32_t i) {
    if (!a || i >= a->count)
        return LATHE_DIM_NONE;
    if (a->type == LATHE_ATTR_DIMS)
        return (lathe_dim)a->ints[i];
    return a->type == LATHE_ATTR_INTS ? number(view, a->ints[i]) : LATHE_DIM_NONE;
}

static bool step_slice(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_attrs attrs,
                       struct lathe_element *out) {
    const struct lathe_attr *axes = lathe_attr_find(&attrs, LATHE_ATTR_AXES);
    const struct lathe_attr *starts = lathe_attr_find(&attrs, LATHE_ATTR_STARTS);
    const struct lathe_attr *steps = lathe_attr_find(&attrs, LATHE_ATTR_STEPS);
    if (!axes || axes->type != LATHE_ATTR_INTS || !starts || out->rank != e->rank)
        return false;
    for (int i = 0; i < e->rank; i++)
        out->at[i] = e->at[i];
    for (uint32_t i = 0; i < axes->count; i++) {
        int64_t axis = axes->ints[i];
        lathe_dim start = attr_dim(view, starts, i), step = steps ? attr_dim(view, steps, i) : number(view, 1);
        struct lathe_index base;
        if (axis < 0 || axis >= e->rank || start == LATHE_DIM_NONE || step == LATHE_DIM_NONE)
            return false;
        lathe_index_const(&view->space, start, &base);
        if (!lathe_index_add_scaled(&view->space, &base, step, &e->at[axis], &out->at[axis]))
            return false;
    }
    return true;
}

static bool step_tile(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_element *out) {
    const struct lathe_value *from = lathe_value_at(view->graph, out->value);
    const struct lathe_value *to = lathe_value_at(view->graph, e->value);
    if (out->rank != e->rank)
        return false;
    for (int i = 0; i < e->rank; i++) {
        struct lathe_index turns;
        if (same_dim(view, from->dims[i], to->dims[i]))
            out->at[i] = e->at[i];
        else if (!lathe_index_divide(&view->space, &e->at[i], from->dims[i], &turns, &out->at[i]))
            return false;
    }
    return true;
}

static bool step_concat(struct lathe_element_view *view, const struct lathe_element *e, const struct lathe_node *node,
                        struct lathe_element *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
    lathe_dim begin = number(view, 0);
    if (axis < 0 || axis >= e->rank)
        return false;
    for (uint32_t i = 0; i < node->n_in; i++) {
        const struct lathe_value *part = lathe_value_at(view->graph, node->in[i]);
        struct lathe_index minus, inside;
        if (part->rank != e->rank || begin == LATHE_DIM_NONE)
            return false;
        lathe_index_const(&view->space, begin, &minus);
        if (!lathe_index_add_scaled(&view->space, &e->at[axis], number(view, -1), &minus, &inside))
            return false;
        if (lathe_index_proved_not_negative(&view->space, &inside) &&
            lathe_index_proved_below(&view->space, &inside, part->dims[axis])) {
            out->value = node->in[i];
            out->rank = e->rank;
            for (int k = 0; k < e->rank; k++)
                out->at[k] = e->at[k];
            out->at[axis] = inside;
            return true;
        }
        begin = lathe_dim_add(view->graph->dims, begin, part->dims[axis]);
    }
    return false;
}

/* An index that a gather reads: proved not negative, so that it counts from the front. */
static bool gathered_index(struct lathe_element_view *view, const struct lathe_element *e, unsigned depth,
                           struct lathe_index *out) {
    return index_of(view, e, depth + 1, out) && lathe_index_proved_not_negative(&view->space, out);
}

static bool step_gather(struct lathe_element_view *view, const struct lathe_element *e, const struct lathe_node *node,
                        unsigned depth, struct lathe_element *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
    struct lathe_element index = {.value = node->in[1], .rank = lathe_value_at(view->graph, node->in[1])->rank};
    if (axis < 0 || axis >= out->rank || index.rank < 0 || out->rank - 1 + index.rank != e->rank)
        return false;
    for (int i = 0; i < index.rank; i++)
        index.at[i] = e->at[axis + i];
    for (int i = 0; i < out->rank; i++)
        if (i != axis)
            out->at[i] = e->at[i < axis ? i : i - 1 + index.rank];
    return gathered_index(view, &index, depth, &out->at[axis]);
}

static bool step_gather_elements(struct lathe_element_view *view, const struct lathe_element *e,
                                 const struct lathe_node *node, unsigned depth, struct lathe_element *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
    struct lathe_element index = *e;
    if (axis < 0 || axis >= e->rank || out->rank != e->rank)
        return false;
    index.value = node->in[1];
    bool stretched = lathe_attr_int(&attrs, LATHE_ATTR_MODE, 0) == 1;
    if (node->n_in > 2)
        return false;
    for (int i = 0; i < e->rank; i++) {
        int64_t one;
        out->at[i] = e->at[i];
        if (stretched && i != axis && lathe_value_dim_is(view->graph, index.value, i, &one) && one == 1)
            lathe_index_const(&view->space, number(view, 0), &index.at[i]);
    }
    return lathe_value_at(view->graph, index.value)->rank == e->rank &&
           gathered_index(view, &index, depth, &out->at[axis]);
}

static bool step_gather_nd(struct lathe_element_view *view, const struct lathe_element *e,
                           const struct lathe_node *node, unsigned depth, struct lathe_element *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    int64_t batch = lathe_attr_int(&attrs, LATHE_ATTR_BATCH_DIMS, 0), width;
    const struct lathe_value *indices = lathe_value_at(view->graph, node->in[1]);
    int rank = indices->rank;
    if (rank < 1 || rank > LATHE_MAX_RANK || !lathe_value_dim_is(view->graph, node->in[1], -1, &width) || batch < 0 ||
        batch >= rank || width < 1 || batch + width > out->rank || rank - 1 + out->rank - batch - width != e->rank)
        return false;
    for (int i = 0; i < batch; i++)
        out->at[i] = e->at[i];
    for (int i = 0; i < width; i++) {
        struct lathe_element index = {.value = node->in[1], .rank = rank};
        for (int k = 0; k < rank - 1; k++)
            index.at[k] = e->at[k];
        lathe_index_const(&view->space, number(view, i), &index.at[rank - 1]);
        if (!gathered_index(view, &index, depth, &out->at[batch + i]))
            return false;
    }
    for (int i = (int)(batch + width); i < out->rank; i++)
        out->at[i] = e->at[rank - 1 + i - (batch + width)];
    return true;
}

static bool step(struct lathe_element_view *view, struct lathe_element *e, unsigned depth) {
    struct lathe_graph *g = view->graph;
    const struct lathe_value *value = lathe_value_at(g, e->value);
    if (value->producer == LATHE_NONE || value->producer_output != 0 || !view->budget)
        return false;
    const struct lathe_node *node = lathe_node_at(g, value->producer);
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    if (!node->n_in || node->in[0] == LATHE_NONE || (node->n_in > 1 && node->in[1] == LATHE_NONE))
        return false;
    struct lathe_element out = {.value = node->in[0], .rank = lathe_value_at(g, node->in[0])->rank};
    if (out.rank < 0 || out.rank > LATHE_MAX_RANK)
        return false;
    view->budget--;
    bool ok;
    switch (node->op) {
    case LATHE_OP_RESHAPE:
        ok = step_reshape(view, e, &out);
        break;
    case LATHE_OP_TRANSPOSE:
        ok = step_transpose(e, attrs, &out);
        break;
    case LATHE_OP_SLICE:
        ok = step_slice(view, e, attrs, &out);
        break;
    case LATHE_OP_EXPAND:
        ok = lathe_element_broadcast(view, e, node->in[0], &out);
        break;
    case LATHE_OP_TILE:
        ok = step_tile(view, e, &out);
        break;
    case LATHE_OP_CONCAT:
        ok = step_concat(view, e, node, &out);
        break;
    case LATHE_OP_GATHER:
        ok = step_gather(view, e, node, depth, &out);
        break;
    case LATHE_OP_GATHER_ELEMENTS:
        ok = step_gather_elements(view, e, node, depth, &out);
        break;
    case LATHE_OP_GATHER_ND:
        ok = step_gather_nd(view, e, node, depth, &out);
        break;
    case LATHE_OP_CAST:
        ok = lathe_value_at(g, node->in[0])->dtype == value->dtype;
        for (int i = 0; i < e->rank; i++)
            out.at[i] = e->at[i];
        break;
    default:
        ok = false;
    }
    if (ok)
        *e = out;
    return ok;
}

bool lathe_element_step(struct lathe_element_view *view, struct lathe_element *e) {
    return step(view, e, 0);
}

void lathe_element_origin(struct lathe_element_view *view, struct lathe_element *e) {
    while (lathe_element_step(view, e)) {
    }
}

bool lathe_element_equal(struct lathe_element_view *view, const struct lathe_element *a,
                         const struct lathe_element *b) {
    if (a->value != b->value || a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!lathe_index_equal(&view->space, &a->at[i], &b->at[i]))
            return false;
    return true;
}

/* ---- integer tensors */

/* Element i of a numeric constant when it is a whole number that its type holds exactly. */
static bool integer_element(struct lathe_graph *g, lathe_value_id v, bool is_float, int64_t i, int64_t *out) {
    if (!is_float) {
        *out = lathe_constant_i64(g, v, i);
        return true;
    }
    double d = lathe_constant_f64(g, v, i);
    if (!(fabs(d) < 16777216.0) || d != floor(d))
        return false;
    *out = (int64_t)d;
    return true;
}

/* A constant whose elements are c + sum of step[axis] * index[axis]: a scalar, a filled tensor, position ids. Axes at a
 * known place are taken there: a table of (batch, position) pairs is two such tensors. */
static bool constant_index(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_index *out) {
    struct lathe_graph *g = view->graph;
    const struct lathe_value *v = lathe_value_at(g, e->value);
    bool is_float = lathe_dtype_is_float(v->dtype);
    int64_t count = lathe_value_count(g, e->value), base = 0, first;
    int64_t dims[LATHE_MAX_RANK], strides[LATHE_MAX_RANK], steps[LATHE_MAX_RANK] = {0}, at[LATHE_MAX_RANK] = {0};
    if (count < 1 || count > MAX_TABLE)
        return false;
    int64_t stride = count;
    for (int k = 0; k < e->rank; k++) {
        lathe_dim place;
        int64_t fixed;
        if (!lathe_dim_is_const(g->dims, v->dims[k], &dims[k]) || dims[k] < 1)
            return false;
        strides[k] = stride /= dims[k];
        if (lathe_index_is_const(&view->space, &e->at[k], &place) && lathe_dim_is_const(g->dims, place, &fixed)) {
            if (fixed < 0 || fixed >= dims[k])
                return false;
            base += fixed * stride;
            count /= dims[k];
            dims[k] = 1;
        }
    }
    if (!integer_element(g, e->value, is_float, base, &first))
        return false;
    for (int k = 0; k < e->rank; k++) {
        int64_t next;
        if (dims[k] > 1 && (!integer_element(g, e->value, is_float, base + strides[k], &next) ||
                            __builtin_sub_overflow(next, first, &steps[k])))
            return false;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t expected = first, place = base, found;
        for (int k = 0; k < e->rank; k++) {
            int64_t part;
            if (!lathe_mul_i64(steps[k], at[k], &part) || !lathe_add_i64(expected, part, &expected))
                return false;
            place += at[k] * strides[k];
        }
        if (!integer_element(g, e->value, is_float, place, &found) || found != expected)
            return false;
        for (int k = e->rank - 1; k >= 0 && ++at[k] == dims[k]; k--)
            at[k] = 0;
    }
    lathe_index_const(&view->space, number(view, first), out);
    for (int k = 0; k < e->rank; k++)
        if (steps[k] && !lathe_index_add_scaled(&view->space, out, number(view, steps[k]), &e->at[k], out))
            return false;
    return true;
}

static bool index_of_operand(struct lathe_element_view *view, const struct lathe_element *e, lathe_value_id operand,
                             unsigned depth, struct lathe_index *out) {
    struct lathe_element x;
    return lathe_element_broadcast(view, e, operand, &x) && index_of(view, &x, depth + 1, out);
}

static bool range_index(struct lathe_element_view *view, const struct lathe_element *e, const struct lathe_node *node,
                        unsigned depth, struct lathe_index *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    struct lathe_index start, delta;
    lathe_dim step;
    for (int i = 0; i < 2; i++) {
        struct lathe_index *part = i ? &delta : &start;
        const struct lathe_attr *a = lathe_attr_find(&attrs, i ? LATHE_ATTR_DELTA : LATHE_ATTR_START);
        lathe_value_id operand = i ? 2 : 0;
        if (a && a->type == LATHE_ATTR_INT) {
            lathe_index_const(&view->space, number(view, a->i), part);
        } else if (a && a->type == LATHE_ATTR_FLOAT && a->f == floor(a->f) && fabs(a->f) < 16777216.0) {
            lathe_index_const(&view->space, number(view, (int64_t)a->f), part);
        } else if (a && a->type == LATHE_ATTR_DIMS && a->count == 1) {
            lathe_index_const(&view->space, (lathe_dim)a->ints[0], part);
        } else if (a && a->type == LATHE_ATTR_INTS && a->count == 1) {
            lathe_index_const(&view->space, number(view, a->ints[0]), part);
        } else if (!a && operand < node->n_in && node->in[operand] != LATHE_NONE) {
            struct lathe_element x = {.value = node->in[operand], .rank = 0};
            if (lathe_value_at(view->graph, x.value)->rank != 0 || !index_of(view, &x, depth + 1, part))
                return false;
        } else if (a || node->n_in) {
            return false;
        } else {
            lathe_index_const(&view->space, number(view, i), part);
        }
    }
    return e->rank == 1 && lathe_index_is_const(&view->space, &delta, &step) &&
           lathe_index_add_scaled(&view->space, &start, step, &e->at[0], out);
}

static bool index_of(struct lathe_element_view *view, const struct lathe_element *start, unsigned depth,
                     struct lathe_index *out) {
    struct lathe_graph *g = view->graph;
    struct lathe_element e = *start;
    if (depth > 48 || !view->budget)
        return false;
    view->budget--;
    while (step(view, &e, depth)) {
    }
    const struct lathe_value *v = lathe_value_at(g, e.value);
    if (lathe_value_is_constant(g, e.value))
        return v->dtype != LATHE_BOOL && constant_index(view, &e, out);
    if (v->content) {
        /* known elements: one, or the one that constant indices name */
        struct lathe_index offset;
        lathe_dim place;
        int64_t i;
        if (lathe_index_flatten(&view->space, e.rank, v->dims, e.at, &offset) &&
            lathe_index_is_const(&view->space, &offset, &place) && lathe_dim_is_const(g->dims, place, &i) && i >= 0 &&
            i < v->content_count && v->content[i] != LATHE_DIM_NONE) {
            lathe_index_const(&view->space, v->content[i], out);
            return true;
        }
    }
    if (v->producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = lathe_node_at(g, v->producer);
    struct lathe_index a, b;
    lathe_dim factor;
    switch (node->op) {
    case LATHE_OP_RANGE:
        return range_index(view, &e, node, depth, out);
    case LATHE_OP_FILL:
        if (node->n_in == 2 && node->in[1] != LATHE_NONE && lathe_value_count(g, node->in[1]) == 1) {
            struct lathe_element x = {.value = node->in[1], .rank = lathe_value_at(g, node->in[1])->rank};
            for (int i = 0; i < x.rank; i++)
                lathe_index_const(&view->space, number(view, 0), &x.at[i]);
            return index_of(view, &x, depth + 1, out);
        }
        return false;
    case LATHE_OP_CAST: {
        const struct lathe_value *from = lathe_value_at(g, node->in[0]);
        return from->dtype != LATHE_BOOL && v->dtype != LATHE_BOOL &&
               index_of_operand(view, &e, node->in[0], depth, out);
    }
    case LATHE_OP_NEG:
        lathe_index_const(&view->space, number(view, 0), &b);
        return index_of_operand(view, &e, node->in[0], depth, &a) &&
               lathe_index_add_scaled(&view->space, &b, number(view, -1), &a, out);
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        return index_of_operand(view, &e, node->in[0], depth, &a) &&
               index_of_operand(view, &e, node->in[1], depth, &b) &&
               lathe_index_add_scaled(&view->space, &a, number(view, node->op == LATHE_OP_ADD ? 1 : -1), &b, out);
    case LATHE_OP_MUL:
        if (!index_of_operand(view, &e, node->in[0], depth, &a) || !index_of_operand(view, &e, node->in[1], depth, &b))
            return false;
        if (lathe_index_is_const(&view->space, &a, &factor)) {
            a = b;
        } else if (!lathe_index_is_const(&view->space, &b, &factor)) {
            return false;
        }
        lathe_index_const(&view->space, number(view, 0), &b);
        return lathe_index_add_scaled(&view->space, &b, factor, &a, out);
    default:
        return false;
    }
}

bool lathe_element_index(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_index *out) {
    return index_of(view, e, 0, out);
}
