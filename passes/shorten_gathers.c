/* gather_elements of biases by distance (disentangled attention) without the copies that sources write around it:
 *   indices that were expanded over heads and batch are read where they are (`mode` 1),
 *   a transpose behind it goes to its indices and to the product that it reads, which turns for nothing,
 *   a number that scales what was gathered or only moved goes into the constant that was multiplied before,
 *   a sum with what was gathered, and the masking of whole queries behind it, are part of the gather.
 * Late, so that the matchers of attention and rows see what the source wrote.
 *
 * DeBERTa v2 of 3 layers of 768, 384 tokens, int8, 2 threads of a Zen 5: 23.7 -> 19.2 ms, v1 36.0 -> 32.4;
 * the sums 16.4 -> 14.3 and 29.7 -> 28.8. */
#include "match.h"

#include "ops_enums.h"

#include <math.h>
#include <string.h>

#define MAX_MOVES 16
#define HOIST     4

/* ---- indices */

/* The indices of n come from `narrow`, expanded along axes that all of x has. */
static bool is_stretched(struct lathe_graph *g, lathe_node_id n, lathe_value_id narrow, int64_t axis) {
    lathe_value_id x = g->nodes[n].in[0], wide = g->nodes[n].in[1];
    int64_t one;
    if (g->values[narrow].rank != g->values[wide].rank)
        return false;
    for (int i = 0; i < g->values[wide].rank; i++) {
        lathe_dim size = lathe_value_dim(g, wide, i);
        bool stretches = i != axis && lathe_value_dim_is(g, narrow, i, &one) && one == 1;
        if (!lathe_match_dim_equal(g, size, stretches ? lathe_value_dim(g, x, i) : lathe_value_dim(g, narrow, i)))
            return false;
    }
    return true;
}

static bool narrow_indices(struct lathe_graph *g, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id wide = g->nodes[n].in[1];
    lathe_node_id expand = lathe_producer_of(g, wide, LATHE_OP_EXPAND);
    if (expand == LATHE_NONE || lathe_attr_int(&attrs, LATHE_ATTR_MODE, 0) != 0 ||
        !is_stretched(g, n, g->nodes[expand].in[0], lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0)))
        return false;
    lathe_node_set_input(g, n, 1, g->nodes[expand].in[0]);
    lathe_node_set_int(g, n, LATHE_ATTR_MODE, 1);
    lathe_match_drop_unused(g, wide);
    return true;
}

/* ---- transposes */

/* The last two axes change places, and no others. */
static bool swaps_last(const int64_t *perm, int rank) {
    for (int i = 0; i < rank - 2; i++)
        if (perm[i] != i)
            return false;
    return rank >= 2 && perm[rank - 1] == rank - 2 && perm[rank - 2] == rank - 1;
}

/* (a b)^T = b^T a^T, and products read either operand turned. */
static lathe_value_id turned_product(struct lathe_pass_ctx *ctx, lathe_node_id product) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, product);
    int64_t trans_a = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0);
    int64_t trans_b = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0);
    struct lathe_value y = g->values[g->nodes[product].out[0]];
    lathe_value_id in[2] = {g->nodes[product].in[1], g->nodes[product].in[0]};
    lathe_dim dims[LATHE_MAX_RANK];
    for (int k = 0; k < 2; k++) {
        /* a transpose of the last two axes is the flag alone */
        int64_t *flag = k ? &trans_a : &trans_b;
        lathe_node_id t = lathe_producer_of(g, in[k], LATHE_OP_TRANSPOSE);
        uint32_t count = 0;
        if (t == LATHE_NONE)
            continue;
        struct lathe_attrs own = lathe_node_attrs(g, t);
        const int64_t *perm = lathe_attr_ints(&own, LATHE_ATTR_PERM, &count);
        if (perm && swaps_last(perm, (int)count)) {
            in[k] = g->nodes[t].in[0];
            *flag = !*flag;
        }
    }
    memcpy(dims, y.dims, (size_t)y.rank * sizeof *dims);
    dims[y.rank - 1] = y.dims[y.rank - 2];
    dims[y.rank - 2] = y.dims[y.rank - 1];
    lathe_value_id out =
        lathe_graph_emit(g, product, LATHE_OP_MATMUL, g->nodes[product].name, in, 2, y.dtype, y.rank, dims);
    if (out == LATHE_NONE)
        return LATHE_NONE;
    if (!trans_b)
        lathe_node_set_int(g, g->values[out].producer, LATHE_ATTR_TRANS_A, 1);
    if (!trans_a)
        lathe_node_set_int(g, g->values[out].producer, LATHE_ATTR_TRANS_B, 1);
    return out;
}

/* transpose(gather_elements(a b, indices)) gathers from b^T a^T along the axis that the transpose gives. Only with
 * indices of fewer elements: they are what is turned. */
static bool turn_gather(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
    lathe_value_id x = g->nodes[n].in[0], index = g->nodes[n].in[1];
    lathe_node_id transpose = lathe_value_only_use(g, g->nodes[n].out[0]);
    lathe_node_id product = lathe_producer_of(g, x, LATHE_OP_MATMUL);
    int rank = g->values[x].rank;
    if (transpose == LATHE_NONE || g->nodes[transpose].op != LATHE_OP_TRANSPOSE || product == LATHE_NONE ||
        lathe_attr_int(&attrs, LATHE_ATTR_MODE, 0) != 1 || lathe_value_only_use(g, x) != n ||
        g->values[g->nodes[product].in[0]].rank < 2 || g->values[g->nodes[product].in[1]].rank < 2)
        return false;
    struct lathe_attrs own = lathe_node_attrs(g, transpose);
    uint32_t count;
    const int64_t *perm = lathe_attr_ints(&own, LATHE_ATTR_PERM, &count);
    if (!perm || count != (uint32_t)rank || !swaps_last(perm, rank))
        return false;
    int64_t order[LATHE_MAX_RANK];
    lathe_dim dims[LATHE_MAX_RANK];
    struct lathe_value of_index = g->values[index];
    for (int i = 0; i < rank; i++) {
        order[i] = perm[i];
        dims[i] = of_index.dims[perm[i]];
    }
    lathe_value_id turned =
        lathe_graph_emit(g, n, LATHE_OP_TRANSPOSE, of_index.name, &index, 1, of_index.dtype, rank, dims);
    lathe_value_id from = turned == LATHE_NONE ? LATHE_NONE : turned_product(ctx, product);
    if (from == LATHE_NONE)
        return false;
    lathe_node_set_ints(g, g->values[turned].producer, LATHE_ATTR_PERM, order, (uint32_t)rank);
    lathe_value_id in[2] = {from, turned};
    lathe_value_id y = lathe_match_make_like(g, transpose, LATHE_OP_GATHER_ELEMENTS, in, 2, g->nodes[transpose].out[0]);
    if (y == LATHE_NONE)
        return false;
    lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_AXIS, order[axis]); /* a swap is its own inverse */
    lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_MODE, 1);
    lathe_graph_replace_uses(g, g->nodes[transpose].out[0], y);
    lathe_graph_remove_dead_from(g, transpose);
    return true;
}

/* It adds an operand too. */
static bool is_sum(const struct lathe_graph *g, lathe_node_id n) {
    return g->nodes[n].op == LATHE_OP_GATHER_ELEMENTS && g->nodes[n].n_in > 2;
}

/* ---- batch and heads in one axis */

/* A reshape behind a gather that cuts the first axis, along which the indices are the same, is one of what it reads: it
 * meets what is added in that shape. */
static bool split_first_axis(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0), one;
    lathe_value_id in[2] = {g->nodes[n].in[0], g->nodes[n].in[1]};
    lathe_node_id view = lathe_value_only_use(g, g->nodes[n].out[0]);
    int rank = g->values[in[0]].rank;
    if (view == LATHE_NONE || g->nodes[view].op != LATHE_OP_RESHAPE || is_sum(g, n) || axis == 0 ||
        lathe_attr_int(&attrs, LATHE_ATTR_MODE, 0) != 1 || !lathe_value_dim_is(g, in[1], 0, &one) || one != 1)
        return false;
    struct lathe_value x = g->values[in[0]], index = g->values[in[1]], y = g->values[g->nodes[view].out[0]];
    if (y.rank != rank + 1 || y.rank > LATHE_MAX_RANK)
        return false;
    for (int i = 1; i < rank; i++)
        if (!lathe_match_dim_equal(g, y.dims[i + 1], g->values[g->nodes[n].out[0]].dims[i]))
            return false;
    for (int k = 0; k < 2; k++) {
        const lathe_dim *old = k ? index.dims : x.dims;
        lathe_dim dims[LATHE_MAX_RANK];
        for (int i = 0; i < y.rank; i++)
            dims[i] = i > 1 ? old[i - 1] : k ? lathe_dim_const(g->dims, 1) : y.dims[i];
        in[k] = lathe_match_make_reshape(ctx, n, in[k], y.rank, dims);
        if (in[k] == LATHE_NONE)
            return false;
    }
    lathe_value_id made = lathe_match_make_like(g, n, LATHE_OP_GATHER_ELEMENTS, in, 2, g->nodes[view].out[0]);
    if (made == LATHE_NONE)
        return false;
    lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_AXIS, axis + 1);
    lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_MODE, 1);
    lathe_graph_replace_uses(g, g->nodes[view].out[0], made);
    lathe_graph_remove_dead_from(g, view);
    return true;
}

/* ---- sums */

/* The gather that makes v, when it can add something to it. */
static lathe_node_id open_gather(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_GATHER_ELEMENTS);
    return n != LATHE_NONE && !is_sum(g, n) && g->values[v].dtype == LATHE_F32 && lathe_value_use_total(g, v) == 1
               ? n
               : LATHE_NONE;
}

/* A gather that also adds, before `before`. */
static lathe_value_id make_sum(struct lathe_graph *g, lathe_node_id before, lathe_node_id n, lathe_value_id added) {
    lathe_value_id in[3] = {g->nodes[n].in[0], g->nodes[n].in[1], added};
    lathe_value_id y = lathe_match_make_like(g, before, LATHE_OP_GATHER_ELEMENTS, in, 3, g->nodes[n].out[0]);
    if (y != LATHE_NONE)
        lathe_match_copy_attrs(g, n, g->values[y].producer);
    return y;
}

/* where(queries, v, -inf) of the sum with a gather: the gather adds 0 or -inf, and the whole needs no pass of its own.
 */
static lathe_node_id masking_reader(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n = lathe_value_only_use(g, v);
    int64_t one;
    double number;
    if (n == LATHE_NONE || g->nodes[n].op != LATHE_OP_WHERE || g->nodes[n].in[1] != v ||
        !lathe_value_same_shape(g, v, g->nodes[n].out[0]) || g->values[g->nodes[n].in[0]].rank < 1 ||
        !lathe_value_dim_is(g, g->nodes[n].in[0], -1, &one) || one != 1 ||
        !lathe_match_number(g, g->nodes[n].in[2], &number) || !(isinf(number) && number < 0))
        return LATHE_NONE;
    return n;
}

/* Has v made before n, what it is made of moved up with it. */
static bool hoist(struct lathe_graph *g, lathe_value_id v, lathe_node_id before, int depth) {
    if (lathe_match_before(g, v, before))
        return true;
    lathe_node_id n = g->values[v].producer;
    if (depth == 0)
        return false;
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++)
        if (g->nodes[n].in[i] != LATHE_NONE && !hoist(g, g->nodes[n].in[i], before, depth - 1))
            return false;
    lathe_graph_move_node(g, n, before);
    return true;
}

/* a + b, a gathered. The later one of two gathers adds, each where it stood: what the first one reads need not be kept
 * until the second one is there. */
static bool add_in_gather(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id y = g->nodes[n].out[0], a = g->nodes[n].in[0], b = g->nodes[n].in[1];
    lathe_node_id gather = open_gather(g, a), other = open_gather(g, b), mask = masking_reader(g, y), last = n;
    if (a == b || g->values[y].dtype != LATHE_F32)
        return false;
    if (gather == LATHE_NONE || !lathe_value_same_shape(g, a, y) ||
        (other != LATHE_NONE && lathe_value_same_shape(g, b, y) && lathe_match_before(g, a, other))) {
        lathe_value_id swap = a;
        lathe_node_id first = gather;
        a = b;
        b = swap;
        gather = other;
        other = first;
    }
    if (gather == LATHE_NONE || !lathe_value_same_shape(g, a, y))
        return false;
    if (mask != LATHE_NONE && other != LATHE_NONE && lathe_value_same_shape(g, b, y) &&
        hoist(g, g->nodes[mask].in[0], other, HOIST)) {
        lathe_value_id condition = g->nodes[mask].in[0];
        struct lathe_value rows = g->values[condition];
        lathe_value_id in[3] = {condition, lathe_graph_add_scalar_f32(g, "allowed", 0.0f), g->nodes[mask].in[2]};
        lathe_value_id row =
            lathe_graph_emit(g, other, LATHE_OP_WHERE, g->nodes[mask].name, in, 3, LATHE_F32, rows.rank, rows.dims);
        b = row == LATHE_NONE ? LATHE_NONE : make_sum(g, other, other, row);
        last = mask;
        if (b == LATHE_NONE)
            return false;
    }
    lathe_value_id sum = make_sum(g, lathe_match_before(g, b, gather) ? gather : n, gather, b);
    if (sum == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, g->nodes[last].out[0], sum);
    lathe_graph_remove_dead_from(g, last);
    return true;
}

/* ---- scales */

static bool only_moves(enum lathe_op op) {
    return op == LATHE_OP_GATHER_ELEMENTS || op == LATHE_OP_TRANSPOSE || op == LATHE_OP_RESHAPE ||
           op == LATHE_OP_SLICE || op == LATHE_OP_EXPAND || op == LATHE_OP_TILE;
}

/* The node behind v, past what only moves elements; `reader` becomes who reads its result. LATHE_NONE when anything
 * else uses them. */
static lathe_node_id mover_source(const struct lathe_graph *g, lathe_value_id v, lathe_node_id *reader,
                                  lathe_value_id *source) {
    for (unsigned i = 0; i < MAX_MOVES && lathe_value_use_total(g, v) == 1; i++) {
        lathe_node_id n = g->values[v].producer;
        *source = v;
        if (n == LATHE_NONE || !only_moves(g->nodes[n].op) || is_sum(g, n))
            return n;
        *reader = n;
        v = g->nodes[n].in[0];
    }
    *source = LATHE_NONE;
    return LATHE_NONE;
}

static bool is_own_constant(const struct lathe_graph *g, lathe_value_id v) {
    return v != LATHE_NONE && lathe_value_is_constant(g, v) && g->values[v].dtype == LATHE_F32 &&
           lathe_value_use_total(g, v) == 1 && !g->values[v].is_output;
}

static bool scale_constant(struct lathe_graph *g, lathe_node_id reader, lathe_value_id v, double factor) {
    int64_t dims[LATHE_MAX_RANK], count = lathe_value_count(g, v);
    int rank = g->values[v].rank;
    for (int i = 0; i < rank; i++)
        if (!lathe_value_dim_is(g, v, i, &dims[i]))
            return false;
    float *data = count < 0 ? NULL : lathe_arena_alloc_array(g->arena, (size_t)count + 1, sizeof *data);
    if (!data) {
        g->out_of_memory |= count >= 0;
        return false;
    }
    memcpy(data, g->values[v].data, (size_t)count * sizeof *data); /* unaligned in the source's file */
    for (int64_t i = 0; i < count; i++)
        data[i] = (float)(data[i] * factor);
    lathe_value_id scaled = lathe_graph_add_constant(g, g->values[v].name, LATHE_F32, rank, dims, data);
    if (scaled == LATHE_NONE)
        return false;
    for (uint32_t k = 0; k < g->nodes[reader].n_in; k++)
        if (g->nodes[reader].in[k] == v)
            lathe_node_set_input(g, reader, k, scaled);
    return true;
}

/* A product of which one operand is a constant, moved or not. */
static bool scale_product(struct lathe_graph *g, lathe_node_id product, double factor) {
    for (uint32_t k = 0; k < 2; k++) {
        lathe_node_id reader = product;
        lathe_value_id source;
        lathe_node_id made = mover_source(g, g->nodes[product].in[k], &reader, &source);
        if (made == LATHE_NONE && is_own_constant(g, source))
            return scale_constant(g, reader, source, factor);
    }
    return false;
}

static bool scale_linear(struct lathe_graph *g, lathe_node_id linear, double factor) {
    const struct lathe_node *node = &g->nodes[linear];
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    lathe_value_id weight = node->in[1], bias = node->n_in > 2 ? node->in[2] : LATHE_NONE;
    if (lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, 0) || (node->n_in > 3 && node->in[3] != LATHE_NONE) ||
        !is_own_constant(g, weight) || (bias != LATHE_NONE && !is_own_constant(g, bias)) || bias == weight)
        return false;
    return scale_constant(g, linear, weight, factor) && (bias == LATHE_NONE || scale_constant(g, linear, bias, factor));
}

static bool scale_source(struct lathe_graph *g, lathe_node_id n) {
    double factor;
    lathe_value_id x, y = g->nodes[n].out[0], source;
    lathe_node_id reader = n;
    if ((g->nodes[n].op != LATHE_OP_MUL && g->nodes[n].op != LATHE_OP_DIV) || g->values[y].dtype != LATHE_F32 ||
        g->values[y].is_output || !lathe_match_scaled(g, n, &x, &factor) || !isfinite(factor) || factor == 0)
        return false;
    lathe_node_id made = mover_source(g, x, &reader, &source);
    bool done = made != LATHE_NONE && g->nodes[made].op == LATHE_OP_MATMUL   ? scale_product(g, made, factor)
                : made != LATHE_NONE && g->nodes[made].op == LATHE_OP_LINEAR ? scale_linear(g, made, factor)
                                                                             : false;
    if (done) {
        lathe_graph_replace_uses(g, y, x);
        lathe_graph_remove_dead_from(g, n);
    }
    return done;
}

enum lathe_status lathe_pass_shorten_gathers(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_GATHER_ELEMENTS, &count);
    for (uint32_t i = 0; i < count; i++) {
        ctx->changes += narrow_indices(g, list[i]);
        ctx->changes += turn_gather(ctx, list[i]);
    }
    for (unsigned op = 0; op < 2; op++) {
        list = lathe_match_nodes(ctx, op ? LATHE_OP_DIV : LATHE_OP_MUL, &count);
        for (uint32_t i = 0; i < count; i++)
            ctx->changes += scale_source(g, list[i]);
    }
    list = lathe_match_nodes(ctx, LATHE_OP_GATHER_ELEMENTS, &count);
    for (uint32_t i = 0; i < count; i++)
        ctx->changes += split_first_axis(ctx, list[i]);
    list = lathe_match_nodes(ctx, LATHE_OP_ADD, &count);
    for (uint32_t i = 0; i < count; i++)
        ctx->changes += add_in_gather(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "shortening gathers") : LATHE_OK;
}
