/* Where attention finds its operands: stops on the way back from a product, judged by the element that each holds.
 * See attention_parts.h. */
#include "attention_parts.h"

#include <stdio.h>
#include <string.h>

bool lathe_attention_same_dim(struct lathe_graph *g, lathe_dim a, lathe_dim b) {
    return a != LATHE_DIM_NONE && b != LATHE_DIM_NONE && lathe_dim_resolve(g->dims, a) == lathe_dim_resolve(g->dims, b);
}

/* ---- the way back */

bool lathe_attention_step_float_cast(struct lathe_attention_match *m, struct lathe_element *e) {
    struct lathe_graph *g = m->view.graph;
    lathe_node_id cast = lathe_producer_of(g, e->value, LATHE_OP_CAST);
    if (cast == LATHE_NONE)
        return false;
    lathe_value_id from = lathe_node_at(g, cast)->in[0];
    if (!lathe_dtype_is_float(lathe_value_at(g, from)->dtype) ||
        !lathe_dtype_is_float(lathe_value_at(g, e->value)->dtype))
        return false;
    e->value = from;
    return true;
}

static bool is_usable_type(enum lathe_dtype dtype) {
    return dtype == LATHE_F32 || dtype == LATHE_F16 || dtype == LATHE_BF16;
}

/* *e = factor * the same element of another value, when the producer multiplies or divides by a number. */
static bool unscale(struct lathe_attention_match *m, struct lathe_element *e, double *scale) {
    struct lathe_graph *g = m->view.graph;
    lathe_node_id producer = lathe_value_at(g, e->value)->producer;
    if (producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = lathe_node_at(g, producer);
    double number;
    struct lathe_element x;
    if (node->op != LATHE_OP_MUL && node->op != LATHE_OP_DIV)
        return false;
    for (int side = 1; side >= 0; side--) {
        if (side == 0 && node->op == LATHE_OP_DIV)
            break;
        if (!lathe_constant_uniform(g, node->in[side], &number))
            continue;
        if (!lathe_element_broadcast(&m->view, e, node->in[1 - side], &x))
            return false;
        if (node->op == LATHE_OP_DIV && number == 0)
            return false;
        *e = x;
        *scale = node->op == LATHE_OP_DIV ? *scale / number : *scale * number;
        return true;
    }
    return false;
}

void lathe_attention_follow(struct lathe_attention_match *m, const struct lathe_element *start, bool scales,
                            struct lathe_attention_trail *trail) {
    struct lathe_element e = *start;
    double scale = 1;
    trail->count = 0;
    for (;;) {
        /* a long trail keeps its newest stop: the deepest ones matter most */
        if (trail->count == LATHE_ATTENTION_MAX_TRAIL) {
            memmove(&trail->stops[1], &trail->stops[2], (trail->count - 2) * sizeof trail->stops[0]);
            trail->count--;
        }
        trail->stops[trail->count++] = (struct lathe_attention_stop){e, scale};
        if (!lathe_element_step(&m->view, &e) && !lathe_attention_step_float_cast(m, &e) &&
            !(scales && unscale(m, &e, &scale)))
            return;
    }
}

/* ---- judging a stop */

/* a - b * factor as an integer constant */
static bool constant_rest(struct lathe_attention_match *m, const struct lathe_index *a,
                          const struct lathe_index *column, const struct lathe_index *head, int64_t width,
                          int64_t *rest) {
    struct lathe_index_space *space = &m->view.space;
    struct lathe_dims *t = space->dims;
    struct lathe_index r;
    lathe_dim value;
    return lathe_index_add_scaled(space, a, lathe_dim_const(t, -1), column, &r) &&
           lathe_index_add_scaled(space, &r, lathe_dim_const(t, -width), head, &r) &&
           lathe_index_is_const(space, &r, &value) && lathe_dim_is_const(t, value, rest);
}

#define DIGITS 4 /* batch, row, head, column */

struct digits {
    struct lathe_index at[DIGITS];
    lathe_dim extent[DIGITS];
    bool is_one[DIGITS];
};

/* Finds the digits, high to low, that make up an axis. `order` gets them, the result is their number; -1: no way. */
static int axis_digits(struct lathe_attention_match *m, const struct digits *digits, unsigned used,
                       const struct lathe_index *at, lathe_dim extent, int order[DIGITS]) {
    struct lathe_index_space *space = &m->view.space;
    struct lathe_dims *t = space->dims;
    for (unsigned length = 1; length <= DIGITS; length++) {
        unsigned total = 1;
        for (unsigned i = 0; i < length; i++)
            total *= DIGITS;
        for (unsigned code = 0; code < total; code++) {
            unsigned seen = used, rest = code;
            bool usable = true;
            for (unsigned i = 0; i < length && usable; i++, rest /= DIGITS) {
                order[i] = (int)(rest % DIGITS);
                usable = !(seen & 1u << order[i]) && !digits->is_one[order[i]];
                seen |= 1u << order[i];
            }
            if (!usable)
                continue;
            lathe_dim product = lathe_dim_const(t, 1);
            struct lathe_index sum;
            lathe_index_const(space, lathe_dim_const(t, 0), &sum);
            for (unsigned i = length; i-- > 0 && usable;) {
                usable = product != LATHE_DIM_NONE &&
                         lathe_index_add_scaled(space, &sum, product, &digits->at[order[i]], &sum);
                product = usable ? lathe_dim_mul(t, product, digits->extent[order[i]]) : product;
            }
            if (usable && lathe_attention_same_dim(m->view.graph, product, extent) &&
                lathe_index_equal(space, &sum, at))
                return (int)length;
        }
    }
    return -1;
}

/* The stop holds each element once, in some order of its axes. */
static bool place_by_digits(struct lathe_attention_match *m, const struct lathe_element *e, const struct digits *digits,
                            struct lathe_attention_operand *out) {
    struct lathe_graph *g = m->view.graph;
    const struct lathe_value *v = lathe_value_at(g, e->value);
    unsigned used = 0;
    int found[DIGITS], count = 0;
    out->needs_split = false;
    for (int axis = 0; axis < e->rank; axis++) {
        int order[DIGITS];
        int64_t size;
        if (lathe_dim_is_const(g->dims, v->dims[axis], &size) && size == 1) {
            out->needs_split = true;
            continue;
        }
        int length = axis_digits(m, digits, used, &e->at[axis], v->dims[axis], order);
        if (length < 0)
            return false;
        for (int i = 0; i < length; i++) {
            used |= 1u << order[i];
            found[count++] = order[i];
        }
        if (length > 1)
            out->needs_split = true;
    }
    for (int i = 0; i < DIGITS; i++)
        if (!digits->is_one[i] && !(used & 1u << i))
            return false;
    out->rank = count;
    out->needs_transpose = false;
    for (int i = 0, place = 0; i < DIGITS; i++)
        for (int k = 0; k < count; k++)
            if (found[k] == i) {
                out->needs_transpose |= k != place;
                out->perm[place++] = k;
            }
    for (int k = 0; k < count; k++)
        out->split[k] = digits->extent[found[k]];
    out->from = e->value;
    out->offset = 0;
    out->is_in_place = false;
    return true;
}

bool lathe_attention_place(struct lathe_attention_match *m, const struct lathe_attention_trail *trail,
                           const struct lathe_index *row, lathe_dim rows, const struct lathe_index *head, int64_t heads,
                           const struct lathe_index *column, int64_t width, struct lathe_attention_operand *out) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    struct digits digits = {
        .at = {m->b, *row, *head, *column},
        .extent = {m->batch, rows, lathe_dim_const(g->dims, heads), lathe_dim_const(g->dims, width)}};
    for (int i = 0; i < DIGITS; i++) {
        int64_t size;
        digits.is_one[i] = lathe_dim_is_const(g->dims, digits.extent[i], &size) && size == 1;
    }
    for (unsigned i = trail->count; i-- > 0;) {
        const struct lathe_element *e = &trail->stops[i].element;
        const struct lathe_value *v = lathe_value_at(g, e->value);
        int64_t offset;
        if (e->rank == 3 && is_usable_type(v->dtype) && lathe_attention_same_dim(g, v->dims[0], m->batch) &&
            lathe_attention_same_dim(g, v->dims[1], rows) && lathe_index_equal(space, &e->at[0], &m->b) &&
            lathe_index_equal(space, &e->at[1], row) && constant_rest(m, &e->at[2], column, head, width, &offset) &&
            offset >= 0) {
            *out = (struct lathe_attention_operand){
                .from = e->value, .scale = trail->stops[i].scale, .offset = offset, .is_in_place = true};
            return true;
        }
    }
    /* Not beside each other anywhere: take a stop that a reshape, else one that a transpose puts right. */
    for (int transposed = 0; transposed < 2; transposed++)
        for (unsigned i = trail->count; i-- > 0;) {
            struct lathe_attention_operand operand;
            if (is_usable_type(lathe_value_at(g, trail->stops[i].element.value)->dtype) &&
                place_by_digits(m, &trail->stops[i].element, &digits, &operand) &&
                operand.needs_transpose == (transposed != 0)) {
                operand.scale = trail->stops[i].scale;
                *out = operand;
                return true;
            }
        }
    return false;
}

/* ---- making */

lathe_value_id lathe_attention_reshape(struct lathe_graph *g, lathe_node_id before, lathe_value_id v, int rank,
                                       const lathe_dim *dims) {
    const struct lathe_value *value = lathe_value_at(g, v);
    bool same = value->rank == rank;
    for (int i = 0; i < rank && same; i++)
        same = lathe_attention_same_dim(g, value->dims[i], dims[i]);
    if (same)
        return v;
    char name[256];
    snprintf(name, sizeof name, "%.200s/view", value->name);
    return lathe_graph_emit(g, before, LATHE_OP_RESHAPE, name, &v, 1, value->dtype, rank, dims);
}

static lathe_value_id transpose(struct lathe_graph *g, lathe_node_id before, lathe_value_id v, const int64_t *perm) {
    if (v == LATHE_NONE)
        return v;
    struct lathe_value value = *lathe_value_at(g, v);
    lathe_dim dims[LATHE_MAX_RANK];
    char name[256];
    for (int i = 0; i < value.rank; i++)
        dims[i] = value.dims[perm[i]];
    snprintf(name, sizeof name, "%.200s/transposed", value.name);
    lathe_value_id out = lathe_graph_emit(g, before, LATHE_OP_TRANSPOSE, name, &v, 1, value.dtype, value.rank, dims);
    if (out != LATHE_NONE)
        lathe_node_set_ints(g, lathe_value_at(g, out)->producer, LATHE_ATTR_PERM, perm, (uint32_t)value.rank);
    return out;
}

lathe_value_id lathe_attention_cast(struct lathe_graph *g, lathe_node_id before, lathe_value_id v,
                                    enum lathe_dtype dtype) {
    if (v == LATHE_NONE || lathe_value_at(g, v)->dtype == dtype)
        return v;
    struct lathe_value value = *lathe_value_at(g, v);
    char name[256];
    snprintf(name, sizeof name, "%.200s/%s", value.name, lathe_dtype_name(dtype));
    lathe_value_id out = lathe_graph_emit(g, before, LATHE_OP_CAST, name, &v, 1, dtype, value.rank, value.dims);
    if (out != LATHE_NONE)
        lathe_node_set_int(g, lathe_value_at(g, out)->producer, LATHE_ATTR_TO, dtype);
    return out;
}

lathe_value_id lathe_attention_make_operand(struct lathe_attention_match *m, lathe_node_id before,
                                            const struct lathe_attention_operand *operand, lathe_dim rows,
                                            int64_t columns) {
    struct lathe_graph *g = m->view.graph;
    lathe_value_id v = operand->from;
    if (!operand->is_in_place) {
        lathe_dim final[3] = {m->batch, rows, lathe_dim_const(g->dims, columns)};
        if (operand->needs_transpose) {
            v = lathe_attention_reshape(g, before, v, operand->rank, operand->split);
            v = transpose(g, before, v, operand->perm);
        }
        if (v != LATHE_NONE)
            v = lathe_attention_reshape(g, before, v, 3, final);
    }
    return lathe_attention_cast(g, before, v, LATHE_F32);
}

/* ---- the output */

/* The element of the match's output that its roots name. */
static bool output_element(struct lathe_attention_match *m, struct lathe_element *e) {
    struct lathe_index_space *space = &m->view.space;
    const struct lathe_value *v = lathe_value_at(m->view.graph, m->out);
    e->value = m->out;
    e->rank = v->rank;
    e->at[v->rank - 1] = m->e;
    e->at[v->rank - 2] = m->q;
    if (v->rank == 4) {
        e->at[0] = m->b;
        e->at[1] = m->n;
    } else if (v->rank == 3) {
        return lathe_index_add_scaled(space, &m->n, lathe_dim_const(space->dims, m->heads), &m->b, &e->at[0]);
    }
    return true;
}

/* True when the elements of y lie in the order [B, Sq, heads, columns]. */
static bool is_token_major(struct lathe_attention_match *m, lathe_value_id y) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    const struct lathe_value *v = lathe_value_at(g, y);
    lathe_dim dims[4] = {m->batch, m->sq, lathe_dim_const(g->dims, m->heads), lathe_dim_const(g->dims, m->v_head_dim)};
    struct lathe_index at[4] = {m->b, m->q, m->n, m->e}, offset;
    struct lathe_element e = {.value = y, .rank = v->rank}, wanted;
    if (v->rank < 1 || v->rank > LATHE_MAX_RANK || !lathe_index_flatten(space, 4, dims, at, &offset) ||
        !lathe_index_unflatten(space, &offset, v->rank, v->dims, e.at))
        return false;
    while (e.value != m->out)
        if (!lathe_element_step(&m->view, &e))
            return false;
    return output_element(m, &wanted) && lathe_element_equal(&m->view, &e, &wanted);
}

/* The node before which the next one of the output is made: behind the last one made. */
static lathe_node_id behind(struct lathe_attention_match *m) {
    return lathe_node_at(m->view.graph, m->last)->next;
}

static void replace_below(struct lathe_attention_match *m, lathe_value_id v, lathe_value_id fused, unsigned depth) {
    struct lathe_graph *g = m->view.graph;
    uint32_t count = lathe_value_at(g, v)->use_count;
    lathe_node_id *users = lathe_arena_alloc_array(m->ctx->scratch, count ? count : 1, sizeof *users);
    if (!users || !count || depth > 8)
        return;
    memcpy(users, lathe_value_at(g, v)->uses, count * sizeof *users);
    for (uint32_t i = 0; i < count; i++) {
        lathe_node_id user = users[i];
        const struct lathe_node *node = lathe_node_at(g, user);
        if ((node->op != LATHE_OP_RESHAPE && node->op != LATHE_OP_TRANSPOSE && node->op != LATHE_OP_CAST) ||
            node->in[0] != v || node->out[0] == LATHE_NONE)
            continue;
        lathe_value_id y = node->out[0];
        struct lathe_value value = *lathe_value_at(g, y);
        if (value.dtype != lathe_value_at(g, m->out)->dtype)
            continue;
        if (is_token_major(m, y)) {
            lathe_value_id same = lathe_attention_reshape(g, behind(m), fused, value.rank, value.dims);
            if (same != LATHE_NONE) {
                if (same != fused)
                    m->last = lathe_value_at(g, same)->producer;
                lathe_graph_replace_uses(g, y, same);
            }
        } else {
            replace_below(m, y, fused, depth + 1);
        }
        if (lathe_node_at(g, user)->op != LATHE_OP_NONE && !lathe_value_use_total(g, y))
            lathe_graph_remove_node(g, user);
    }
}

void lathe_attention_replace_output(struct lathe_attention_match *m, lathe_value_id fused) {
    struct lathe_graph *g = m->view.graph;
    fused = lathe_attention_cast(g, behind(m), fused, lathe_value_at(g, m->out)->dtype);
    if (fused == LATHE_NONE)
        return;
    m->last = lathe_value_at(g, fused)->producer;
    replace_below(m, m->out, fused, 0);
    if (lathe_value_use_total(g, m->out)) {
        /* Somebody wants the heads apart. */
        static const int64_t perm[4] = {0, 2, 1, 3};
        struct lathe_value value = *lathe_value_at(g, m->out);
        lathe_dim dims[4] = {m->batch, m->sq, lathe_dim_const(g->dims, m->heads),
                             lathe_dim_const(g->dims, m->v_head_dim)};
        lathe_node_id before = behind(m);
        lathe_value_id v = fused;
        if (m->heads > 1)
            v = transpose(g, before, lathe_attention_reshape(g, before, v, 4, dims), perm);
        if (v != LATHE_NONE)
            v = lathe_attention_reshape(g, before, v, value.rank, value.dims);
        if (v != LATHE_NONE)
            lathe_graph_replace_uses(g, m->out, v);
    }
}
