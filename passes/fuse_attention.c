/* Attention: softmax((Q K^T) scale + masks) V, or the `sdpa` operator, becomes one `attention` that reads q, k and v
 * token-major and never stores the scores.
 *
 * The match starts at a softmax over the last axis, goes forward to the product with V and back to the product of Q and
 * K, and asks at each step which element is meant, so that the order of transposes, reshapes, scales and masks does not
 * matter. What has other uses stays in the graph beside the fused operator. */
#include "attention_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_CHAIN 64
#define ROUNDED_WEIGHTS                                                                                                \
    "found softmax rounded by the source (quantize_linear) before the product with V, which stays as written but in "  \
    "int8"

/* A near miss: what was found against what was expected. */
static bool missed(struct lathe_attention_match *m, const char *text) {
    lathe_pass_missed(m->ctx, "attention", m->anchor, "%s", text);
    return false;
}

static const struct lathe_node *producer_node(struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n = v == LATHE_NONE ? LATHE_NONE : lathe_value_at(g, v)->producer;
    return n == LATHE_NONE ? NULL : lathe_node_at(g, n);
}

static int64_t node_int(const struct lathe_node *node, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    return lathe_attr_int(&attrs, key, absent);
}

/* ---- forward: the product with V */

/* where(isnan(p), 0, p) */
static bool is_nan_guard(struct lathe_graph *g, const struct lathe_node *node, lathe_value_id p) {
    double zero;
    if (node->op != LATHE_OP_WHERE || node->in[2] != p || !lathe_constant_uniform(g, node->in[1], &zero) || zero != 0)
        return false;
    const struct lathe_node *nan = producer_node(g, node->in[0]);
    return nan && nan->op == LATHE_OP_ISNAN && nan->in[0] == p;
}

/* where(masked, 0, p), where(allowed, p, 0) or p * mask: the weights of masked keys set to 0. */
static bool is_zeroed(struct lathe_graph *g, const struct lathe_node *node, lathe_value_id p, unsigned *mask) {
    double zero;
    if (node->op == LATHE_OP_WHERE && (node->in[1] == p) != (node->in[2] == p)) {
        *mask = 0;
        return lathe_constant_uniform(g, node->in[node->in[1] == p ? 2 : 1], &zero) && zero == 0;
    }
    if (node->op != LATHE_OP_MUL || (node->in[0] == p) == (node->in[1] == p))
        return false;
    *mask = node->in[0] == p ? 1 : 0;
    return !lathe_value_is_constant(g, node->in[*mask]);
}

/* The product that takes v, or what views and guards make of it, as its left operand. */
static lathe_node_id find_product(struct lathe_graph *g, lathe_value_id v, unsigned depth) {
    const struct lathe_value *value = lathe_value_at(g, v);
    for (uint32_t i = 0; depth < 10 && i < value->use_count; i++) {
        lathe_node_id user = value->uses[i], found = LATHE_NONE;
        unsigned mask;
        const struct lathe_node *node = lathe_node_at(g, user);
        if ((node->op == LATHE_OP_MATMUL || node->op == LATHE_OP_MATMUL_INTEGER || node->op == LATHE_OP_EINSUM) &&
            node->in[0] == v)
            return user;
        if (node->in[0] == v &&
            (node->op == LATHE_OP_RESHAPE || node->op == LATHE_OP_CAST || node->op == LATHE_OP_TRANSPOSE ||
             node->op == LATHE_OP_EXPAND || node->op == LATHE_OP_QUANTIZE_LINEAR ||
             node->op == LATHE_OP_DEQUANTIZE_LINEAR)) /* rounded weights: found, to say so */
            found = find_product(g, node->out[0], depth + 1);
        else if (is_nan_guard(g, node, v) || is_zeroed(g, node, v, &mask))
            found = find_product(g, node->out[0], depth + 1);
        if (found != LATHE_NONE)
            return found;
    }
    return LATHE_NONE;
}

/* The element that a batched product reads from an operand for an element of its result. */
static bool product_operand(struct lathe_attention_match *m, const struct lathe_element *out, lathe_value_id operand,
                            const struct lathe_index *row, const struct lathe_index *column, bool transposed,
                            struct lathe_element *e) {
    struct lathe_graph *g = m->view.graph;
    const struct lathe_value *v = lathe_value_at(g, operand), *result = lathe_value_at(g, out->value);
    e->value = operand;
    e->rank = v->rank;
    if (v->rank < 2 || out->rank < v->rank)
        return false;
    for (int i = 0; i < v->rank - 2; i++) {
        int axis = out->rank - v->rank + i;
        int64_t size;
        if (lathe_attention_same_dim(g, v->dims[i], result->dims[axis]))
            e->at[i] = out->at[axis];
        else if (lathe_dim_is_const(g->dims, v->dims[i], &size) && size == 1)
            lathe_index_const(&m->view.space, lathe_dim_const(g->dims, 0), &e->at[i]);
        else
            return false;
    }
    e->at[v->rank - 2] = transposed ? *column : *row;
    e->at[v->rank - 1] = transposed ? *row : *column;
    return true;
}

static void set_level(struct lathe_attention_match *m, struct lathe_attention_source *s,
                      const struct lathe_element *level) {
    const struct lathe_value *v = lathe_value_at(m->view.graph, level->value);
    memset(s, 0, sizeof *s);
    s->level.rank = level->rank;
    for (int i = 0; i < level->rank; i++) {
        s->level.dims[i] = v->dims[i];
        s->level.at[i] = level->at[i];
    }
}

static bool is_made_from(struct lathe_graph *g, lathe_value_id v, lathe_value_id target, unsigned depth) {
    if (v == target)
        return true;
    const struct lathe_node *node = depth < 8 ? producer_node(g, v) : NULL;
    for (uint32_t i = 0; node && i < node->n_in && i < 3; i++)
        if (node->in[i] != LATHE_NONE && is_made_from(g, node->in[i], target, depth + 1))
            return true;
    return false;
}

/* One step back over a guard or a mask of the weights, on the side that softmax made. */
static bool step_guard(struct lathe_attention_match *m, struct lathe_element *e, lathe_value_id target) {
    struct lathe_graph *g = m->view.graph;
    const struct lathe_node *node = producer_node(g, e->value);
    struct lathe_element inner;
    if (!node || (node->op != LATHE_OP_WHERE && node->op != LATHE_OP_MUL))
        return false;
    for (unsigned side = 0; side < node->n_in; side++) {
        lathe_value_id p = node->in[side];
        unsigned mask;
        bool guard = is_nan_guard(g, node, p);
        if (!guard && (m->has_zeroed || !is_zeroed(g, node, p, &mask)))
            continue;
        if (!lathe_element_broadcast(&m->view, e, p, &inner) || !is_made_from(g, p, target, 0))
            continue;
        if (guard) {
            m->guarded = true;
        } else {
            m->has_zeroed = true;
            set_level(m, &m->zeroed, e);
            m->zeroed.is_select = node->op == LATHE_OP_WHERE;
            m->zeroed.value = node->in[mask];
            m->zeroed.factor = 1;
            m->zeroed.allowed = side == 1;
        }
        *e = inner;
        return true;
    }
    return false;
}

/* From an element of what the product reads back to the softmax; guards on the way are noted. */
static bool back_to(struct lathe_attention_match *m, struct lathe_element *e, lathe_value_id target) {
    for (unsigned i = 0; i < MAX_CHAIN; i++) {
        if (e->value == target)
            return true;
        if (!lathe_element_step(&m->view, e) && !lathe_attention_step_float_cast(m, e) && !step_guard(m, e, target))
            return false;
    }
    return false;
}

/* ---- back: the chain of scores */

/* True when v is a product of two computed operands behind what the chain can take off. */
static bool leads_to_scores(struct lathe_graph *g, lathe_value_id v, unsigned depth) {
    const struct lathe_node *node = producer_node(g, v);
    double number;
    if (!node || depth > 16)
        return false;
    switch (node->op) {
    case LATHE_OP_MATMUL:
        return !lathe_value_is_constant(g, node->in[0]) && !lathe_value_is_constant(g, node->in[1]);
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_CAST:
    case LATHE_OP_TANH:
        return leads_to_scores(g, node->in[0], depth + 1);
    case LATHE_OP_MUL:
    case LATHE_OP_DIV:
    case LATHE_OP_MAX:
        if (node->n_in != 2)
            return false;
        return (lathe_constant_uniform(g, node->in[1], &number) && leads_to_scores(g, node->in[0], depth + 1)) ||
               (node->op != LATHE_OP_DIV && lathe_constant_uniform(g, node->in[0], &number) &&
                leads_to_scores(g, node->in[1], depth + 1));
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        return leads_to_scores(g, node->in[0], depth + 1) ||
               (node->op == LATHE_OP_ADD && leads_to_scores(g, node->in[1], depth + 1));
    case LATHE_OP_WHERE:
        return (lathe_constant_uniform(g, node->in[1], &number) && leads_to_scores(g, node->in[2], depth + 1)) ||
               (lathe_constant_uniform(g, node->in[2], &number) && leads_to_scores(g, node->in[1], depth + 1));
    default:
        return false;
    }
}

static struct lathe_attention_source *new_source(struct lathe_attention_match *m, const struct lathe_element *level) {
    if (m->source_count == LATHE_ATTENTION_MAX_MASKS)
        return NULL;
    struct lathe_attention_source *s = &m->sources[m->source_count++];
    set_level(m, s, level);
    return s;
}

/* x - max(x) over the keys, which softmax does not see. */
static bool is_shift(struct lathe_graph *g, const struct lathe_node *node) {
    const struct lathe_node *max = node->op == LATHE_OP_SUB ? producer_node(g, node->in[1]) : NULL;
    if (!max || max->op != LATHE_OP_REDUCE_MAX || max->in[0] != node->in[0])
        return false;
    struct lathe_attrs attrs = {max->attrs, max->n_attrs};
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    return count == 1 && axes[0] == lathe_value_at(g, node->in[0])->rank - 1 &&
           lathe_attr_int(&attrs, LATHE_ATTR_KEEPDIMS, 1) != 0;
}

/* c * tanh(x): softcap; the chain goes on at x. */
static bool take_softcap(struct lathe_attention_match *m, struct lathe_element *e, double *scale) {
    const struct lathe_node *node = producer_node(m->view.graph, e->value);
    struct lathe_element x;
    if (m->softcap != 0 || !(*scale > 0) || !lathe_element_broadcast(&m->view, e, node->in[0], &x))
        return false;
    m->softcap = *scale;
    *e = x;
    return true;
}

/* Takes scale, masks and views off the scores until *e is an element of the product of Q and K. */
static bool peel_scores(struct lathe_attention_match *m, struct lathe_element *e) {
    struct lathe_graph *g = m->view.graph;
    double scale = 1, number;
    for (unsigned turn = 0; turn < MAX_CHAIN; turn++) {
        const struct lathe_node *node = producer_node(g, e->value);
        struct lathe_attention_source *source;
        struct lathe_element x;
        if (!node)
            return missed(m, "found scores that no product computes, expected Q K^T");
        if (node->op == LATHE_OP_MATMUL) {
            m->scale = scale;
            return true;
        }
        if (lathe_element_step(&m->view, e) || lathe_attention_step_float_cast(m, e))
            continue;
        switch (node->op) {
        case LATHE_OP_MUL:
        case LATHE_OP_DIV: {
            int side = lathe_constant_uniform(g, node->in[1], &number) ? 1 : 0;
            if ((side == 0 && (node->op == LATHE_OP_DIV || !lathe_constant_uniform(g, node->in[0], &number))) ||
                number == 0 || !isfinite(number))
                return missed(m, "found scores scaled by a tensor, expected a constant");
            if (!lathe_element_broadcast(&m->view, e, node->in[1 - side], &x))
                return missed(m, "found a scale that broadcasts the scores, expected a scalar");
            scale = node->op == LATHE_OP_DIV ? scale / number : scale * number;
            *e = x;
            break;
        }
        case LATHE_OP_TANH:
            if (!take_softcap(m, e, &scale))
                return missed(m, "found a second tanh, or one scaled by a negative number, expected one soft cap");
            break;
        case LATHE_OP_MAX: /* max(scores, finfo.min) keeps all scores */
        case LATHE_OP_CLIP: {
            uint32_t low = node->op == LATHE_OP_CLIP ? 1 : node->n_in > 1 && lathe_value_is_constant(g, node->in[1]);
            uint32_t scores = node->op == LATHE_OP_CLIP ? 0 : 1 - low;
            bool ok = node->n_in > low && (node->op == LATHE_OP_CLIP || node->n_in == 2) &&
                      node->in[low] != LATHE_NONE && lathe_constant_uniform(g, node->in[low], &number) &&
                      number <= -1e30;
            if (node->op == LATHE_OP_CLIP && node->n_in > 2 && node->in[2] != LATHE_NONE)
                ok &= lathe_constant_uniform(g, node->in[2], &number) && number >= 1e30;
            if (!ok || node->n_in > 3 || !lathe_element_broadcast(&m->view, e, node->in[scores], &x))
                return missed(m, "found clipped scores, expected bounds beyond 1e30 only");
            *e = x;
            break;
        }
        case LATHE_OP_ADD:
        case LATHE_OP_SUB: {
            int side = leads_to_scores(g, node->in[0], 0) ? 0 : 1;
            if (is_shift(g, node)) {
                e->value = node->in[0];
                break;
            }
            if (side == 1 && (node->op == LATHE_OP_SUB || !leads_to_scores(g, node->in[1], 0)))
                return missed(m, "found a sum without a product of two computed operands, expected Q K^T + mask");
            if (node->op == LATHE_OP_SUB && leads_to_scores(g, node->in[1], 0))
                return missed(m, "found a difference of two products, expected Q K^T and a mask");
            if (m->softcap != 0)
                return missed(m, "found a mask inside the soft cap, expected it outside");
            if (!lathe_element_broadcast(&m->view, e, node->in[side], &x))
                return missed(m, "found a mask that is larger than the scores");
            if (!(source = new_source(m, e)))
                return missed(m, "found more masks than can be followed");
            source->value = node->in[1 - side];
            source->factor = node->op == LATHE_OP_SUB ? -scale : scale;
            *e = x;
            break;
        }
        case LATHE_OP_WHERE: {
            int side = lathe_constant_uniform(g, node->in[1], &number) ? 2 : 1;
            if (side == 1 && !lathe_constant_uniform(g, node->in[2], &number))
                return missed(m, "found scores selected against a tensor, expected a number where masked");
            if (m->softcap != 0)
                return missed(m, "found a mask inside the soft cap, expected it outside");
            if (!lathe_element_broadcast(&m->view, e, node->in[side], &x))
                return missed(m, "found a mask that is larger than the scores");
            if (!(source = new_source(m, e)))
                return missed(m, "found more masks than can be followed");
            source->is_select = true;
            source->value = node->in[0];
            source->allowed = side == 1;
            source->fill = number * scale;
            *e = x;
            break;
        }
        default: {
            char text[160];
            if (node->op == LATHE_OP_DEQUANTIZE_LINEAR)
                return missed(m, "found scores rounded by the source (quantize_linear), which stay as written but in "
                                 "int8 with a range of activations");
            snprintf(text, sizeof text, "found %s before softmax, expected the product of Q and K",
                     lathe_op_info(node->op)->name);
            return missed(m, text);
        }
        }
    }
    return missed(m, "found a chain of scores that is too long");
}

/* ---- roots: which index is batch, head, query, key */

static void set_index(struct lathe_attention_match *m, struct lathe_index *index, uint32_t var) {
    struct lathe_dims *t = m->view.graph->dims;
    *index =
        (struct lathe_index){.constant = lathe_dim_const(t, 0), .count = 1, .terms = {{var, lathe_dim_const(t, 1)}}};
}

/* The `choice`-th reading of the leading axes of the output as batch and heads; a folded axis tells its heads by how
 * the views split it, else it is the batch, or the heads of batch 1. False when there is no such reading. */
static bool choose_heads(struct lathe_attention_match *m, const struct lathe_element *out, unsigned choice) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    const struct lathe_value *v = lathe_value_at(g, m->out);
    const struct lathe_index_var *var = NULL;
    lathe_dim zero = lathe_dim_const(g->dims, 0);
    m->heads = 1;
    m->batch = lathe_dim_const(g->dims, 1);
    lathe_index_const(space, zero, &m->b);
    lathe_index_const(space, zero, &m->n);
    if (out->rank == 2)
        return choice == 0;
    if (out->rank == 4) {
        m->b = out->at[0];
        m->n = out->at[1];
        m->batch = v->dims[0];
        return choice == 0 && lathe_dim_is_const(g->dims, v->dims[1], &m->heads) && m->heads > 0;
    }
    if (out->at[0].count == 1)
        var = &space->vars[out->at[0].terms[0].var];
    if (choice == 0) {
        if (!var || !var->is_split || !lathe_dim_is_const(g->dims, var->radix, &m->heads))
            return false;
        m->batch = space->vars[var->high].extent;
        set_index(m, &m->n, var->low);
        set_index(m, &m->b, var->high);
        return true;
    }
    if (choice == 1) {
        m->b = out->at[0];
        m->batch = v->dims[0];
        return true;
    }
    m->n = out->at[0];
    return choice == 2 && lathe_dim_is_const(g->dims, v->dims[0], &m->heads) && m->heads > 0;
}

/* k and v have one head for a group of query heads when their views split n. */
static bool place_keys(struct lathe_attention_match *m, const struct lathe_attention_trail *k,
                       const struct lathe_attention_trail *v) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    struct lathe_index heads[3];
    int64_t counts[3];
    unsigned choices = 0;
    /* the fewest first: they fit only when the operands do not depend on the rest of the head index */
    if (m->heads > 1) {
        lathe_index_const(space, lathe_dim_const(g->dims, 0), &heads[choices]);
        counts[choices++] = 1;
    }
    if (m->n.count == 1 && space->vars[m->n.terms[0].var].is_split) {
        uint32_t high = space->vars[m->n.terms[0].var].high;
        int64_t count;
        if (lathe_dim_is_const(g->dims, space->vars[high].extent, &count)) {
            set_index(m, &heads[choices], high);
            counts[choices++] = count;
        }
    }
    heads[choices] = m->n;
    counts[choices++] = m->heads;
    for (unsigned i = 0; i < choices; i++)
        if (lathe_attention_place(m, k, &m->k, m->sk, &heads[i], counts[i], &m->d, m->head_dim, &m->k_from) &&
            lathe_attention_place(m, v, &m->k, m->sk, &heads[i], counts[i], &m->e, m->v_head_dim, &m->v_from)) {
            m->kv_heads = counts[i];
            m->head = heads[i];
            return true;
        }
    return false;
}

/* q, k and v elements are known: finds their places. */
static bool place_operands(struct lathe_attention_match *m, const struct lathe_element *out,
                           const struct lathe_element *q, const struct lathe_element *k,
                           const struct lathe_element *v) {
    struct lathe_attention_trail *trails = lathe_arena_alloc_array(m->ctx->scratch, 3, sizeof *trails);
    const char *found = "found heads that depend on the input, expected a constant number";
    if (!trails)
        return false;
    lathe_attention_follow(m, q, true, &trails[0]);
    lathe_attention_follow(m, k, true, &trails[1]);
    lathe_attention_follow(m, v, false, &trails[2]);
    /* A reading by which all three lie in place comes first. */
    for (unsigned turn = 0; turn < 6; turn++) {
        if (!choose_heads(m, out, turn % 3))
            continue;
        if (!lathe_attention_place(m, &trails[0], &m->q, m->sq, &m->n, m->heads, &m->d, m->head_dim, &m->q_from))
            found = "found queries that are no view of [batch, query, head, column]";
        else if (!place_keys(m, &trails[1], &trails[2]))
            found = "found keys and values that are no views of [batch, key, head, column] with the heads of the "
                    "queries";
        else if (turn >= 3 || (m->q_from.is_in_place && m->k_from.is_in_place && m->v_from.is_in_place))
            return true;
    }
    return missed(m, found);
}

static bool constant_dim(struct lathe_graph *g, lathe_value_id v, int axis, int64_t *out) {
    return lathe_value_dim_is(g, v, axis, out) && *out > 0;
}

/* ---- the rewrite */

/* Weights that stay in the graph beside the fused operator, as an output say: their rows without keys, NaN in the
 * source, follow the rule of the operator. True when there are such weights. */
static bool zero_masked_weights(struct lathe_attention_match *m) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_node softmax = *lathe_node_at(g, m->anchor);
    if (softmax.op != LATHE_OP_SOFTMAX || lathe_value_at(g, softmax.out[0])->dtype != LATHE_F32)
        return false;
    lathe_value_id p = softmax.out[0], scores = softmax.in[0];
    if (!lathe_value_use_total(g, p))
        return false;
    struct lathe_value value = *lathe_value_at(g, p);
    lathe_node_id next = softmax.next;
    const char *name = softmax.name;
    lathe_dim dims[LATHE_MAX_RANK];
    memcpy(dims, value.dims, sizeof dims);
    dims[value.rank - 1] = lathe_dim_const(g->dims, 1);
    lathe_value_id most = lathe_graph_emit(g, next, LATHE_OP_REDUCE_MAX, name, &scores, 1, LATHE_F32, value.rank, dims);
    if (most == LATHE_NONE)
        return false;
    int64_t axis = value.rank - 1;
    lathe_node_set_ints(g, lathe_value_at(g, most)->producer, LATHE_ATTR_AXES, &axis, 1);
    lathe_node_set_int(g, lathe_value_at(g, most)->producer, LATHE_ATTR_KEEPDIMS, 1);
    lathe_value_id pair[2] = {most, lathe_graph_add_scalar_f32(g, "minus_infinity", -INFINITY)};
    lathe_value_id none = lathe_graph_emit(g, next, LATHE_OP_EQUAL, name, pair, 2, LATHE_BOOL, value.rank, dims);
    lathe_value_id in[3] = {none, lathe_graph_add_scalar_f32(g, "zero", 0), p};
    lathe_value_id kept = lathe_graph_emit(g, next, LATHE_OP_WHERE, name, in, 3, LATHE_F32, value.rank, value.dims);
    if (pair[1] == LATHE_NONE || none == LATHE_NONE || in[1] == LATHE_NONE || kept == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, p, kept);
    lathe_node_set_input(g, lathe_value_at(g, kept)->producer, 2, p);
    return true;
}

static bool rewrite(struct lathe_attention_match *m) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_attention_masks masks;
    const char *why = "found masks that cannot be followed";
    if (!lathe_attention_make_masks(m, m->last, &masks, &why))
        return missed(m, why);
    double scale = m->scale * m->q_from.scale * m->k_from.scale;
    if (!isfinite(scale))
        return missed(m, "found a scale that is not finite");
    lathe_value_id in[5] = {
        lathe_attention_make_operand(m, m->last, &m->q_from, m->sq, m->heads * m->head_dim),
        lathe_attention_make_operand(m, m->last, &m->k_from, m->sk, m->kv_heads * m->head_dim),
        lathe_attention_make_operand(m, m->last, &m->v_from, m->sk, m->kv_heads * m->v_head_dim),
        masks.keys,
        masks.mask,
    };
    uint32_t n_in = masks.mask != LATHE_NONE ? 5 : masks.keys != LATHE_NONE ? 4 : 3;
    lathe_dim dims[3] = {m->batch, m->sq, lathe_dim_const(g->dims, m->heads * m->v_head_dim)};
    char name[256];
    if (in[0] == LATHE_NONE || in[1] == LATHE_NONE || in[2] == LATHE_NONE || dims[2] == LATHE_DIM_NONE)
        return false;
    snprintf(name, sizeof name, "%.200s/attention", lathe_value_at(g, m->out)->name);
    lathe_value_id fused = lathe_graph_add_value(g, name, LATHE_F32, 3, dims);
    lathe_node_id node = lathe_graph_add_node(g, lathe_node_at(g, m->last)->next, LATHE_OP_ATTENTION,
                                              lathe_node_at(g, m->anchor)->name, "", in, n_in, &fused, 1);
    if (fused == LATHE_NONE || node == LATHE_NONE)
        return false;
    lathe_node_set_int(g, node, LATHE_ATTR_HEADS, m->heads);
    lathe_node_set_int(g, node, LATHE_ATTR_KV_HEADS, m->kv_heads);
    lathe_node_set_int(g, node, LATHE_ATTR_HEAD_DIM, m->head_dim);
    lathe_node_set_int(g, node, LATHE_ATTR_V_HEAD_DIM, m->v_head_dim);
    lathe_node_set_float(g, node, LATHE_ATTR_SCALE, scale);
    lathe_node_set_int(g, node, LATHE_ATTR_Q_OFFSET, m->q_from.offset);
    lathe_node_set_int(g, node, LATHE_ATTR_K_OFFSET, m->k_from.offset);
    lathe_node_set_int(g, node, LATHE_ATTR_V_OFFSET, m->v_from.offset);
    lathe_node_set_int(g, node, LATHE_ATTR_CAUSAL, masks.causal);
    lathe_node_set_int(g, node, LATHE_ATTR_WINDOW, masks.window);
    lathe_node_set_int(g, node, LATHE_ATTR_MASKED_ROW, masks.masked_row);
    if (m->softcap != 0)
        lathe_node_set_float(g, node, LATHE_ATTR_SOFTCAP, m->softcap);
    /* The new node is in order: it comes right after the product that it replaces. */
    lathe_node_id last = m->last;
    m->last = node;
    lathe_attention_replace_output(m, fused);
    lathe_graph_remove_dead_from(g, last);
    bool infinite = n_in > 3 && (masks.masked_row == LATHE_MASKED_FLAG || masks.masked_row == LATHE_MASKED_ZERO);
    if ((infinite && zero_masked_weights(m)) || masks.warn_infinite)
        lathe_pass_warn(m->ctx, "MASK_INF", m->anchor,
                        "a query whose keys are all masked is NaN in the source (-inf without a guard): the row is "
                        "zeros and flagged");
    m->ctx->changes++;
    return true;
}

static void begin(struct lathe_attention_match *m, struct lathe_pass_ctx *ctx, lathe_node_id anchor) {
    memset(m, 0, sizeof *m);
    m->ctx = ctx;
    m->anchor = anchor;
    m->scale = 1;
    lathe_element_view_init(&m->view, ctx->graph);
}

static bool match_softmax(struct lathe_attention_match *m) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_node softmax = *lathe_node_at(g, m->anchor);
    lathe_value_id p = softmax.out[0];
    if (p == LATHE_NONE)
        return false;
    m->last = find_product(g, p, 0);
    if (m->last == LATHE_NONE)
        return false; /* a softmax of something else */
    if (node_int(&softmax, LATHE_ATTR_AXIS, -1) != lathe_value_at(g, p)->rank - 1)
        return missed(m, "found softmax over another axis, expected the last");
    struct lathe_node product = *lathe_node_at(g, m->last);
    if (product.op == LATHE_OP_MATMUL_INTEGER)
        return missed(m, ROUNDED_WEIGHTS);
    if (product.op == LATHE_OP_EINSUM)
        return missed(m, "found einsum as the product with V, expected a product of two matrices");
    m->out = product.out[0];
    struct lathe_element out, weights, values, scores, q, k;
    if (!lathe_element_fresh(&m->view, m->out, &out) || out.rank < 2 || out.rank > 4)
        return missed(m, "found a product with V of another rank, expected 2 to 4");
    bool trans_p = node_int(&product, LATHE_ATTR_TRANS_A, 0) != 0;
    lathe_dim sk = lathe_value_dim(g, product.in[0], trans_p ? -2 : -1);
    if (!lathe_index_new_var(&m->view.space, sk, &m->k))
        return false;
    m->q = out.at[out.rank - 2];
    m->e = out.at[out.rank - 1];
    m->sq = lathe_value_dim(g, m->out, -2);
    m->sk = sk;
    if (!product_operand(m, &out, product.in[0], &m->q, &m->k, trans_p, &weights) ||
        !product_operand(m, &out, product.in[1], &m->k, &m->e, node_int(&product, LATHE_ATTR_TRANS_B, 0) != 0, &values))
        return missed(m, "found a product with V whose operands broadcast");
    if (!back_to(m, &weights, p))
        return lathe_producer_of(g, weights.value, LATHE_OP_DEQUANTIZE_LINEAR) != LATHE_NONE
                   ? missed(m, ROUNDED_WEIGHTS)
                   : missed(m, "found weights that are not softmax's rows, expected a view of them");
    if (!lathe_index_equal(&m->view.space, &weights.at[weights.rank - 1], &m->k))
        return missed(m, "found V multiplied along another axis than softmax's, expected the last");
    if (!constant_dim(g, m->out, -1, &m->v_head_dim))
        return missed(m, "found values of a width that depends on the input, expected a constant");

    scores = weights;
    scores.value = softmax.in[0];
    if (!peel_scores(m, &scores))
        return false;
    struct lathe_node qk = *lathe_node_at(g, lathe_value_at(g, scores.value)->producer);
    bool trans_a = node_int(&qk, LATHE_ATTR_TRANS_A, 0) != 0, trans_b = node_int(&qk, LATHE_ATTR_TRANS_B, 0) != 0;
    if (scores.rank < 2 || !constant_dim(g, qk.in[0], trans_a ? -2 : -1, &m->head_dim))
        return missed(m, "found heads of a size that depends on the input, expected a constant");
    if (!lathe_index_new_var(&m->view.space, lathe_dim_const(g->dims, m->head_dim), &m->d))
        return false;
    const struct lathe_index *row = &scores.at[scores.rank - 2], *column = &scores.at[scores.rank - 1];
    struct lathe_element left, right;
    if (!product_operand(m, &scores, qk.in[0], row, &m->d, trans_a, &left) ||
        !product_operand(m, &scores, qk.in[1], &m->d, column, trans_b, &right))
        return missed(m, "found a product of Q and K whose operands broadcast");
    if (lathe_index_equal(&m->view.space, row, &m->q) && lathe_index_equal(&m->view.space, column, &m->k)) {
        q = left;
        k = right;
    } else if (lathe_index_equal(&m->view.space, row, &m->k) && lathe_index_equal(&m->view.space, column, &m->q)) {
        q = right;
        k = left;
    } else {
        return missed(m, "found scores whose rows are not queries by keys, expected softmax over the keys");
    }
    return place_operands(m, &out, &q, &k, &values) && rewrite(m);
}

static bool match_sdpa(struct lathe_attention_match *m) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_node node = *lathe_node_at(g, m->anchor);
    struct lathe_attrs attrs = {node.attrs, node.n_attrs};
    struct lathe_element out, q, k, v;
    m->last = m->anchor;
    m->out = node.out[0];
    m->guarded = true; /* rows without keys are zeros */
    int64_t kv_heads;
    if (m->out == LATHE_NONE || !lathe_element_fresh(&m->view, m->out, &out) || out.rank != 4 ||
        lathe_value_at(g, node.in[0])->rank != 4 || lathe_value_at(g, node.in[1])->rank != 4 ||
        lathe_value_at(g, node.in[2])->rank != 4)
        return missed(m, "found operands of another rank, expected 4");
    m->q = out.at[2];
    m->e = out.at[3];
    m->sq = lathe_value_dim(g, m->out, 2);
    m->sk = lathe_value_dim(g, node.in[1], 2);
    if (!constant_dim(g, m->out, 1, &m->heads) || !constant_dim(g, node.in[0], 3, &m->head_dim) ||
        !constant_dim(g, m->out, 3, &m->v_head_dim) || !constant_dim(g, node.in[1], 1, &kv_heads) ||
        m->heads % kv_heads)
        return missed(m, "found heads or widths that depend on the input, expected constants");
    if (!lathe_index_new_var(&m->view.space, m->sk, &m->k) ||
        !lathe_index_new_var(&m->view.space, lathe_dim_const(g->dims, m->head_dim), &m->d))
        return false;
    struct lathe_index group, kv_head;
    if (!lathe_index_divide(&m->view.space, &out.at[1], lathe_dim_const(g->dims, m->heads / kv_heads), &kv_head,
                            &group))
        return false;
    q = (struct lathe_element){.value = node.in[0], .rank = 4, .at = {out.at[0], out.at[1], m->q, m->d}};
    k = (struct lathe_element){.value = node.in[1], .rank = 4, .at = {out.at[0], kv_head, m->k, m->d}};
    v = (struct lathe_element){.value = node.in[2], .rank = 4, .at = {out.at[0], kv_head, m->k, m->e}};
    m->scale = lathe_attr_float(&attrs, LATHE_ATTR_SCALE, 1 / sqrt((double)m->head_dim));
    m->softcap = lathe_attr_float(&attrs, LATHE_ATTR_SOFTCAP, 0);
    m->causal = lathe_attr_int(&attrs, LATHE_ATTR_CAUSAL, 0) != 0;
    if (node.n_in > 3 && node.in[3] != LATHE_NONE) {
        struct lathe_attention_source *s = &m->sources[m->source_count++];
        s->value = node.in[3];
        s->is_select = lathe_value_at(g, node.in[3])->dtype == LATHE_BOOL;
        s->factor = 1;
        s->allowed = true;
        s->fill = -INFINITY;
        s->level = (struct lathe_attention_level){
            .rank = 4,
            .dims = {lathe_value_at(g, m->out)->dims[0], lathe_value_at(g, m->out)->dims[1], m->sq, m->sk},
            .at = {out.at[0], out.at[1], m->q, m->k}};
    }
    return place_operands(m, &out, &q, &k, &v) && rewrite(m);
}

enum lathe_status lathe_pass_fuse_attention(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attention_match *m = lathe_arena_alloc(ctx->scratch, sizeof *m);
    if (!m)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_attention: out of memory");
    uint32_t count = 0, at = 0;
    LATHE_FOR_NODES(g, n)
    count += lathe_node_at(g, n)->op == LATHE_OP_SOFTMAX || lathe_node_at(g, n)->op == LATHE_OP_SDPA;
    lathe_node_id *anchors = lathe_arena_alloc_array(ctx->scratch, count ? count : 1, sizeof *anchors);
    if (!anchors)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_attention: out of memory");
    LATHE_FOR_NODES(g, n)
    if (lathe_node_at(g, n)->op == LATHE_OP_SOFTMAX || lathe_node_at(g, n)->op == LATHE_OP_SDPA)
        anchors[at++] = n;
    for (uint32_t i = 0; i < count; i++) {
        enum lathe_op op = lathe_node_at(g, anchors[i])->op;
        begin(m, ctx, anchors[i]);
        if (op == LATHE_OP_SOFTMAX)
            match_softmax(m);
        else if (op == LATHE_OP_SDPA)
            match_sdpa(m);
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_attention: out of memory") : LATHE_OK;
}
