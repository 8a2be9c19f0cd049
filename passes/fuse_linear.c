/* A product with a constant matrix becomes a linear layer.
 *
 * matmul: x [.., K] times w [K, N]; the constant may stand behind a transpose, which becomes trans_b. gemm: the same on
 * rank 2; a factor of the product or of C stays an operator of its own, so no weight is rewritten. A product on rows
 * that a reshape has merged, [B,S,K] -> [B*S,K], is done on the token-major value and the reshape comes after it. */
#include "match.h"

/* The matrix [K, N], or [N, K] with *transposed, as a constant of rank 2; LATHE_NONE when w is none. */
static lathe_value_id constant_matrix(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id w, int x_rank,
                                      bool *transposed) {
    struct lathe_graph *g = ctx->graph;
    if (w == LATHE_NONE)
        return LATHE_NONE;
    lathe_node_id t = lathe_producer_of(g, w, LATHE_OP_TRANSPOSE);
    if (t != LATHE_NONE && g->values[w].rank == 2 && lathe_match_is_matrix(g, g->nodes[t].in[0])) {
        struct lathe_attrs attrs = lathe_node_attrs(g, t);
        uint32_t count;
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        if (!count || (count == 2 && perm[0] == 1 && perm[1] == 0)) {
            *transposed = !*transposed;
            w = g->nodes[t].in[0];
        }
    }
    int rank = g->values[w].rank;
    if (!lathe_match_is_matrix(g, w) || rank < 2 || rank > x_rank)
        return LATHE_NONE;
    int64_t dim;
    for (int i = 0; i < rank - 2; i++)
        if (!lathe_value_dim_is(g, w, i, &dim) || dim != 1)
            return LATHE_NONE;
    for (int i = 1; i <= 2; i++)
        if (!lathe_value_dim_is(g, w, -i, &dim) || dim < 1)
            return LATHE_NONE;
    lathe_dim dims[2] = {lathe_value_dim(g, w, -2), lathe_value_dim(g, w, -1)};
    return lathe_match_make_reshape(ctx, before, w, 2, dims);
}

/* x is [B,S,K] seen as [B*S,K]: the linear layer works on the former and the reshape follows it. */
static lathe_node_id lift_over_reshape(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id x = g->nodes[n].in[0], y = g->nodes[n].out[0];
    lathe_node_id view = lathe_producer_of(g, x, LATHE_OP_RESHAPE);
    if (view == LATHE_NONE || g->values[x].rank != 2)
        return n;
    lathe_value_id rows = g->nodes[view].in[0];
    int64_t k, last;
    if (g->values[rows].rank != 3 || !lathe_value_dim_is(g, x, -1, &k) || !lathe_value_dim_is(g, rows, -1, &last) ||
        k != last)
        return n;
    lathe_value_id in[4] = {LATHE_NONE, LATHE_NONE, LATHE_NONE, LATHE_NONE};
    uint32_t n_in = g->nodes[n].n_in;
    if (n_in > 3)
        return n;
    for (uint32_t i = 0; i < n_in; i++)
        in[i] = g->nodes[n].in[i];
    in[0] = rows;
    lathe_dim dims[3] = {g->values[rows].dims[0], g->values[rows].dims[1], lathe_value_dim(g, y, -1)};
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t trans_b = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0);
    lathe_value_id made =
        lathe_graph_emit(g, n, LATHE_OP_LINEAR, g->nodes[n].name, in, n_in, g->values[y].dtype, 3, dims);
    if (made == LATHE_NONE)
        return n;
    lathe_node_id linear = g->values[made].producer;
    if (trans_b)
        lathe_node_set_int(g, linear, LATHE_ATTR_TRANS_B, 1);
    lathe_match_make_into(g, n, LATHE_OP_RESHAPE, &made, 1);
    /* reshapes of the reshape start from the product itself */
    for (uint32_t i = g->values[y].use_count; i-- > 0;) {
        lathe_node_id use = g->values[y].uses[i];
        if (g->nodes[use].op != LATHE_OP_RESHAPE)
            continue;
        lathe_value_id after = g->nodes[use].out[0];
        if (lathe_value_same_shape(g, after, made)) {
            lathe_graph_replace_uses(g, after, made);
            lathe_graph_remove_node(g, use);
        } else {
            lathe_node_set_input(g, use, 0, made);
        }
    }
    lathe_match_drop_unused(g, y);
    return linear;
}

static bool from_matmul(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id x = g->nodes[n].in[0];
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    if (lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0) || g->values[x].dtype != LATHE_F32 || g->values[x].rank < 2)
        return false;
    lathe_value_id w = constant_matrix(ctx, n, g->nodes[n].in[1], g->values[x].rank, &transposed);
    if (w == LATHE_NONE || g->values[w].dtype != LATHE_F32)
        return false;
    lathe_value_id in[2] = {x, w};
    lathe_match_make_into(g, n, LATHE_OP_LINEAR, in, 2);
    if (transposed)
        lathe_node_set_int(g, n, LATHE_ATTR_TRANS_B, 1);
    lift_over_reshape(ctx, n);
    return true;
}

static lathe_value_id scaled(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v, double factor) {
    struct lathe_graph *g = ctx->graph;
    if (factor == 1)
        return v;
    lathe_value_id in[2] = {v, lathe_graph_add_scalar_f32(g, "factor", (float)factor)};
    return lathe_match_make_like(g, before, LATHE_OP_MUL, in, 2, v);
}

static bool from_gemm(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    double alpha = lathe_attr_float(&attrs, LATHE_ATTR_ALPHA, 1), beta = lathe_attr_float(&attrs, LATHE_ATTR_BETA, 1);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    lathe_value_id x = g->nodes[n].in[0], y = g->nodes[n].out[0];
    lathe_value_id c = g->nodes[n].n_in > 2 ? g->nodes[n].in[2] : LATHE_NONE;
    if (lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0) || g->values[x].dtype != LATHE_F32)
        return false;
    lathe_value_id w = constant_matrix(ctx, n, g->nodes[n].in[1], 2, &transposed);
    if (w == LATHE_NONE || g->values[w].dtype != LATHE_F32)
        return false;
    if (beta == 0)
        c = LATHE_NONE;
    bool as_bias = c != LATHE_NONE && alpha == 1 && beta == 1 && lathe_value_is_constant(g, c) &&
                   lathe_match_row_operand(g, c, y, 1);
    lathe_value_id in[3] = {x, w, as_bias ? lathe_match_make_row_operand(ctx, n, c, y, 1) : LATHE_NONE};
    lathe_node_id linear = n;
    if (as_bias || (c == LATHE_NONE && alpha == 1)) {
        lathe_match_make_into(g, n, LATHE_OP_LINEAR, in, as_bias ? 3 : 2);
    } else {
        lathe_value_id made = lathe_match_make_like(g, n, LATHE_OP_LINEAR, in, 2, y);
        if (made == LATHE_NONE)
            return false;
        linear = g->values[made].producer;
        if (c == LATHE_NONE) {
            lathe_value_id pair[2] = {made, lathe_graph_add_scalar_f32(g, "alpha", (float)alpha)};
            lathe_match_make_into(g, n, LATHE_OP_MUL, pair, 2);
        } else {
            lathe_value_id pair[2] = {scaled(ctx, n, made, alpha), scaled(ctx, n, c, beta)};
            lathe_match_make_into(g, n, LATHE_OP_ADD, pair, 2);
        }
    }
    if (transposed)
        lathe_node_set_int(g, linear, LATHE_ATTR_TRANS_B, 1);
    lift_over_reshape(ctx, linear);
    return true;
}

enum lathe_status lathe_pass_fuse_linear(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    static const enum lathe_op anchors[] = {LATHE_OP_MATMUL, LATHE_OP_GEMM};
    for (int k = 0; k < 2; k++) {
        uint32_t count;
        lathe_node_id *list = lathe_match_nodes(ctx, anchors[k], &count);
        for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
            if (g->nodes[list[i]].op == anchors[k])
                ctx->changes += k == 0 ? from_matmul(ctx, list[i]) : from_gemm(ctx, list[i]);
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_linear: out of memory") : LATHE_OK;
}
