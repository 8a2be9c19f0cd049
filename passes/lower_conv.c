/* A convolution of one position, which is a product of each position's channels, becomes a linear layer (of groups) on
 * positions with their channels beside each other: conv(x) = T'(linear(T(x))), T [B,C,..] -> [B,..,C]. Weights are
 * packed then, and may be quantized, and attention and norms read tokens so anyway.
 *
 * So that the transposes meet and drop_no_ops can cancel them, elementwise operators behind T' move before it: operands
 * are T' of something, numbers, or constants with one number a channel. */
#include "match.h"

#include <string.h>

#define PANEL      16 /* columns of a panel of packed weights: a group has whole ones */
#define LEAST_ROWS 8  /* channels of a group: fewer are moved in less time than they are multiplied */

struct lowering {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
};

static lathe_value_id operand(const struct lathe_graph *g, lathe_node_id n, uint32_t i) {
    return i < g->nodes[n].n_in ? g->nodes[n].in[i] : LATHE_NONE;
}

/* Channels last; and back. */
static void channels_last(int rank, int64_t *perm) {
    for (int i = 0; i < rank; i++)
        perm[i] = i == 0 ? 0 : i + 1 < rank ? i + 1 : 1;
}
static void channels_second(int rank, int64_t *perm) {
    for (int i = 0; i < rank; i++)
        perm[i] = i == 0 ? 0 : i == 1 ? rank - 1 : i - 1;
}

/* v [B,C,..] as [B,..,C], before `before`: what T' was made from, or a transpose. */
static lathe_value_id make_channels_last(struct lowering *l, lathe_node_id before, lathe_value_id v) {
    struct lathe_graph *g = l->g;
    int rank = g->values[v].rank;
    int64_t perm[LATHE_MAX_RANK];
    lathe_dim dims[LATHE_MAX_RANK];
    channels_last(rank, perm);
    for (int i = 0; i < rank; i++)
        dims[i] = lathe_value_dim(g, v, (int)perm[i]);
    const char *name = g->nodes[before].name;
    lathe_value_id y = lathe_graph_emit(g, before, LATHE_OP_TRANSPOSE, name, &v, 1, g->values[v].dtype, rank, dims);
    if (y != LATHE_NONE)
        lathe_node_set_ints(g, g->values[y].producer, LATHE_ATTR_PERM, perm, (uint32_t)rank);
    return y;
}

/* n becomes T' of v. */
static void make_channels_second(struct lowering *l, lathe_node_id n, lathe_value_id v) {
    int64_t perm[LATHE_MAX_RANK];
    int rank = l->g->values[v].rank;
    channels_second(rank, perm);
    lathe_match_make_into(l->g, n, LATHE_OP_TRANSPOSE, &v, 1);
    lathe_node_set_ints(l->g, n, LATHE_ATTR_PERM, perm, (uint32_t)rank);
}

/* What v is T' of; LATHE_NONE. */
static lathe_value_id turned_from(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id t = lathe_producer_of(g, v, LATHE_OP_TRANSPOSE);
    if (t == LATHE_NONE)
        return LATHE_NONE;
    int rank = g->values[v].rank;
    int64_t perm[LATHE_MAX_RANK];
    uint32_t count;
    struct lathe_attrs attrs = lathe_node_attrs(g, t);
    const int64_t *found = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    channels_second(rank, perm);
    return found && count == (uint32_t)rank && !memcmp(found, perm, count * sizeof *perm) ? g->nodes[t].in[0]
                                                                                          : LATHE_NONE;
}

static bool all_are(const struct lathe_attrs *attrs, enum lathe_attr_key key, int64_t value) {
    uint32_t count;
    const int64_t *list = lathe_attr_ints(attrs, key, &count);
    for (uint32_t i = 0; list && i < count; i++)
        if (list[i] != value)
            return false;
    return true;
}

#define MISSED(l, n, ...) (lathe_pass_missed((l)->ctx, "linear", n, __VA_ARGS__), false)

static bool lower(struct lowering *l, lathe_node_id n) {
    struct lathe_graph *g = l->g;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id x = operand(g, n, 0), w = operand(g, n, 1), bias = operand(g, n, 2), y = g->nodes[n].out[0];
    int rank = g->values[x].rank;
    int64_t groups = lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1), one, columns, k;
    for (int i = 2; i < rank; i++)
        if (!lathe_value_dim_is(g, w, i, &one) || one != 1)
            return false; /* no candidate: positions meet */
    if (!all_are(&attrs, LATHE_ATTR_STRIDES, 1) || !all_are(&attrs, LATHE_ATTR_PADS, 0))
        return MISSED(l, n, "found a convolution of one position with strides or padding, expected each position once");
    if (g->values[x].dtype != LATHE_F32 || g->values[w].dtype != LATHE_F32 || !lathe_match_is_matrix(g, w) ||
        (bias != LATHE_NONE && !lathe_value_is_constant(g, bias)))
        return MISSED(l, n, "found a convolution of one position whose weights are computed, expected constants");
    if (!lathe_value_dim_is(g, w, 0, &columns) || !lathe_value_dim_is(g, w, 1, &k) || groups < 1)
        return false;
    if (k < LEAST_ROWS || columns / groups < PANEL || (groups > 1 && columns / groups % PANEL != 0))
        return MISSED(l, n, "found groups of %lld channels that give %lld, expected at least %d, and %d or a multiple",
                      (long long)k, (long long)(columns / groups), LEAST_ROWS, PANEL);
    const lathe_dim matrix[2] = {lathe_dim_const(g->dims, columns), lathe_dim_const(g->dims, k)};
    lathe_dim dims[LATHE_MAX_RANK];
    dims[0] = lathe_value_dim(g, y, 0);
    for (int i = 2; i < rank; i++)
        dims[i - 1] = lathe_value_dim(g, y, i);
    dims[rank - 1] = matrix[0];
    lathe_value_id in[3] = {make_channels_last(l, n, x), lathe_match_make_reshape(l->ctx, n, w, 2, matrix), bias};
    if (in[0] == LATHE_NONE || in[1] == LATHE_NONE)
        return false;
    lathe_value_id made = lathe_graph_emit(g, n, LATHE_OP_LINEAR, g->nodes[n].name, in, bias != LATHE_NONE ? 3 : 2,
                                           LATHE_F32, rank, dims);
    if (made == LATHE_NONE)
        return false;
    lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_TRANS_B, 1);
    if (groups > 1)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_GROUP, groups);
    make_channels_second(l, n, made);
    return true;
}

/* How operand v of an elementwise operator with result y looks before T'. */
enum side { SIDE_NONE, SIDE_TURNED, SIDE_NUMBER, SIDE_CHANNELS };

static enum side side_of(const struct lathe_graph *g, lathe_value_id v, lathe_value_id y) {
    int rank = g->values[y].rank, at = rank - g->values[v].rank;
    int64_t size;
    if (lathe_value_same_shape(g, v, y) && turned_from(g, v) != LATHE_NONE)
        return SIDE_TURNED;
    if (!lathe_value_is_constant(g, v) || at < 0)
        return SIDE_NONE;
    bool number = true;
    for (int i = 0; i < rank - at; i++) {
        if (!lathe_value_dim_is(g, v, i, &size))
            return SIDE_NONE;
        if (size != 1 && i + at != 1)
            return SIDE_NONE;
        number &= size == 1;
    }
    return number ? SIDE_NUMBER : SIDE_CHANNELS;
}

/* f(T'(a), ..) becomes T'(f(a, ..)). */
static bool move_before(struct lowering *l, lathe_node_id n) {
    struct lathe_graph *g = l->g;
    const struct lathe_op_info *info = lathe_op_info(g->nodes[n].op);
    uint32_t n_in = g->nodes[n].n_in;
    lathe_value_id y = g->nodes[n].out[0], in[3];
    if (!info || !(info->flags & (LATHE_OPF_PAIRWISE | LATHE_OPF_ELEMENTWISE)) || g->nodes[n].n_attrs > 0 || n_in < 1 ||
        n_in > 3)
        return false;
    int rank = g->values[y].rank;
    bool turned = false;
    for (uint32_t i = 0; i < n_in; i++) {
        enum side side = g->nodes[n].in[i] == LATHE_NONE ? SIDE_NONE : side_of(g, g->nodes[n].in[i], y);
        if (side == SIDE_NONE)
            return false;
        turned |= side == SIDE_TURNED;
    }
    if (!turned)
        return false;
    int64_t perm[LATHE_MAX_RANK];
    lathe_dim dims[LATHE_MAX_RANK];
    channels_last(rank, perm);
    for (int i = 0; i < rank; i++)
        dims[i] = lathe_value_dim(g, y, (int)perm[i]);
    for (uint32_t i = 0; i < n_in; i++) {
        lathe_value_id v = g->nodes[n].in[i];
        enum side side = side_of(g, v, y);
        in[i] = side == SIDE_TURNED     ? turned_from(g, v)
                : side == SIDE_CHANNELS ? lathe_match_make_reshape(l->ctx, n, v, 1, &dims[rank - 1])
                                        : v;
        if (in[i] == LATHE_NONE)
            return false;
    }
    lathe_value_id made =
        lathe_graph_emit(g, n, g->nodes[n].op, g->nodes[n].name, in, n_in, g->values[y].dtype, rank, dims);
    if (made == LATHE_NONE)
        return false;
    make_channels_second(l, n, made);
    return true;
}

enum lathe_status lathe_pass_lower_conv(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    struct lowering l = {.ctx = ctx, .g = g};
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_CONV, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        ctx->changes += lower(&l, list[i]);
    if (ctx->changes)
        LATHE_FOR_NODES_SAFE(g, n, follow)
    if (!g->out_of_memory && g->nodes[n].op != LATHE_OP_TRANSPOSE)
        ctx->changes += move_before(&l, n);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "lower_conv: out of memory") : LATHE_OK;
}
