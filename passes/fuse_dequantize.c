/* Weight-only quantization is often written out: Cast(q) * scale, (Cast(q) - zero) * scale, with a transpose between.
 * It becomes dequantize_linear, the one form that packing and quantization read their weights through. */
#include "match.h"

#include <math.h>
#include <string.h>

struct written {
    lathe_value_id q, scale, zero; /* zero LATHE_NONE: 0 */
    bool swapped;                  /* two axes, behind a transpose */
};

static bool is_stored(const struct lathe_graph *g, lathe_value_id v) {
    if (v == LATHE_NONE || !lathe_value_is_constant(g, v) || lathe_value_count(g, v) < 2)
        return false;
    switch (g->values[v].dtype) {
    case LATHE_I8:
    case LATHE_U8:
    case LATHE_I16:
    case LATHE_U16:
        return true;
    default:
        return false;
    }
}

static lathe_value_id skip_swaps(const struct lathe_graph *g, lathe_value_id v, bool *swapped) {
    lathe_node_id n;
    while ((n = lathe_producer_of(g, v, LATHE_OP_TRANSPOSE)) != LATHE_NONE && g->values[v].rank == 2) {
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        uint32_t count;
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        *swapped ^= !count || perm[0] == 1;
        v = g->nodes[n].in[0];
    }
    return v;
}

static bool is_numbers(const struct lathe_graph *g, lathe_value_id v) {
    return v != LATHE_NONE && lathe_value_is_constant(g, v) && g->values[v].dtype == LATHE_F32;
}

/* Which axis of `like` the elements of a constant belong to: -1 for one number, -2 for none. */
static int axis_of(const struct lathe_graph *g, lathe_value_id v, lathe_value_id like) {
    int64_t count = lathe_value_count(g, v), size;
    int rank = g->values[v].rank, shift = g->values[like].rank - rank;
    if (count == 1)
        return shift >= 0 ? -1 : -2;
    for (int i = 0; i < rank && shift >= 0; i++)
        if (lathe_value_dim_is(g, v, i, &size) && size == count && lathe_value_dim_is(g, like, i + shift, &size) &&
            size == count)
            return i + shift;
    return -2;
}

static bool take_apart(const struct lathe_graph *g, lathe_node_id n, uint32_t side, struct written *w) {
    lathe_value_id v = g->nodes[n].in[side];
    *w = (struct written){.scale = g->nodes[n].in[1 - side], .zero = LATHE_NONE};
    if (!is_numbers(g, w->scale))
        return false;
    v = skip_swaps(g, v, &w->swapped);
    lathe_node_id sub = lathe_producer_of(g, v, LATHE_OP_SUB);
    if (sub != LATHE_NONE) {
        if (w->swapped) /* the zero points would be those of other axes */
            return false;
        w->zero = g->nodes[sub].in[1];
        v = g->nodes[sub].in[0];
        if (!is_numbers(g, w->zero))
            return false;
        v = skip_swaps(g, v, &w->swapped);
    }
    lathe_node_id cast = lathe_producer_of(g, v, LATHE_OP_CAST);
    if (cast == LATHE_NONE || g->values[v].dtype != LATHE_F32 || !is_stored(g, g->nodes[cast].in[0]))
        return false;
    w->q = g->nodes[cast].in[0];
    return true;
}

/* Zero points as the operator wants them: of the type of q, one for each scale. LATHE_NONE when they are none. */
static lathe_value_id integer_zeros(struct lathe_graph *g, const struct written *w, int64_t count) {
    enum lathe_dtype dtype = g->values[w->q].dtype;
    size_t bytes = lathe_dtype_bytes(dtype);
    int64_t given = lathe_value_count(g, w->zero);
    bool is_signed = dtype == LATHE_I8 || dtype == LATHE_I16;
    double low = is_signed ? -ldexp(1, (int)bytes * 8 - 1) : 0, high = low + ldexp(1, (int)bytes * 8) - 1;
    char *data = lathe_arena_alloc_array(g->arena, (size_t)count, bytes);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (int64_t i = 0; i < count; i++) {
        double z = lathe_constant_f64(g, w->zero, given == 1 ? 0 : i);
        if (!(z >= low && z <= high) || z != rint(z))
            return LATHE_NONE;
        int32_t number = (int32_t)z; /* little-endian: the low bytes */
        memcpy(data + (size_t)i * bytes, &number, bytes);
    }
    return lathe_graph_add_constant(g, g->values[w->zero].name, dtype, 1, &count, data);
}

static bool fuse(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct written w;
    lathe_value_id y = g->nodes[n].out[0];
    if (g->values[y].dtype != LATHE_F32 || (!take_apart(g, n, 0, &w) && !take_apart(g, n, 1, &w)))
        return false;
    int64_t count = lathe_value_count(g, w.scale);
    int axis = axis_of(g, w.scale, y), zero_axis = w.zero == LATHE_NONE ? -1 : axis_of(g, w.zero, y);
    if (count < 1 || axis == -2 || (zero_axis != -1 && zero_axis != axis) || lathe_value_count(g, y) < 0 ||
        lathe_value_count(g, y) != lathe_value_count(g, w.q))
        return false;
    lathe_value_id zero = w.zero == LATHE_NONE ? LATHE_NONE : integer_zeros(g, &w, count);
    if (w.zero != LATHE_NONE && zero == LATHE_NONE)
        return false;
    lathe_value_id scale =
        lathe_graph_add_constant(g, g->values[w.scale].name, LATHE_F32, 1, &count, g->values[w.scale].data);
    lathe_value_id in[3] = {w.q, scale, zero};
    uint32_t n_in = zero == LATHE_NONE ? 2 : 3;
    axis = axis < 0 ? 0 : w.swapped ? 1 - axis : axis;
    if (scale == LATHE_NONE)
        return false;
    if (!w.swapped) {
        lathe_match_make_into(g, n, LATHE_OP_DEQUANTIZE_LINEAR, in, n_in);
        lathe_node_set_int(g, n, LATHE_ATTR_AXIS, axis);
        return true;
    }
    struct lathe_value q = g->values[w.q];
    static const int64_t swap[2] = {1, 0};
    lathe_value_id made = lathe_graph_emit(g, n, LATHE_OP_DEQUANTIZE_LINEAR, q.name, in, n_in, LATHE_F32, 2, q.dims);
    if (made == LATHE_NONE)
        return false;
    lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_AXIS, axis);
    lathe_match_make_into(g, n, LATHE_OP_TRANSPOSE, &made, 1);
    lathe_node_set_ints(g, n, LATHE_ATTR_PERM, swap, 2);
    return true;
}

enum lathe_status lathe_pass_fuse_dequantize(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_MUL, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        ctx->changes += fuse(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_dequantize: out of memory") : LATHE_OK;
}
