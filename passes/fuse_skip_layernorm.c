/* A residual sum and the layer norm that reads it become skip_layer_norm; the sum is its second output where something
 * else reads it too. */
#include "match.h"

static bool fuse(struct lathe_pass_ctx *ctx, lathe_node_id norm) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, norm);
    const struct lathe_node *node = &g->nodes[norm];
    lathe_value_id sum = node->in[0];
    double epsilon = lathe_attr_float(&attrs, LATHE_ATTR_EPSILON, 1e-5);
    lathe_node_id add = lathe_producer_of(g, sum, LATHE_OP_ADD);
    if (g->values[sum].dtype != LATHE_F32)
        return false;
    if (add == LATHE_NONE) {
        add = lathe_producer_of(g, sum, LATHE_OP_SUM);
        if (add == LATHE_NONE || g->nodes[add].n_in != 2)
            return false;
    }
    for (uint32_t i = 1; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE) {
            lathe_pass_missed(ctx, "skip_layernorm", norm, "the mean or deviation is an output too");
            return false;
        }
    lathe_value_id x = g->nodes[add].in[0], residual = g->nodes[add].in[1];
    if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1) != g->values[sum].rank - 1) {
        lathe_pass_missed(ctx, "skip_layernorm", norm, "the layer norm is over several axes, expected the last");
        return false;
    }
    if (!lathe_value_same_shape(g, x, sum) || !lathe_value_same_shape(g, residual, sum)) {
        if (!lathe_value_is_constant(g, x) && !lathe_value_is_constant(g, residual))
            lathe_pass_missed(ctx, "skip_layernorm", norm, "the summands have different shapes");
        return false;
    }
    if (lathe_producer_of(g, residual, LATHE_OP_LINEAR) != LATHE_NONE &&
        lathe_producer_of(g, x, LATHE_OP_LINEAR) == LATHE_NONE) {
        lathe_value_id swap = x;
        x = residual;
        residual = swap;
    }
    lathe_value_id in[4] = {x, residual, LATHE_NONE, LATHE_NONE};
    for (uint32_t i = 1; i < node->n_in && i < 3; i++)
        in[i + 1] = node->in[i];
    if (lathe_value_use_total(g, sum) == 1) {
        lathe_match_make_into(g, norm, LATHE_OP_SKIP_LAYER_NORM, in, 4);
        lathe_node_set_float(g, norm, LATHE_ATTR_EPSILON, epsilon);
        return true;
    }
    for (int i = 2; i < 4; i++)
        if (!lathe_match_before(g, in[i], add)) {
            lathe_pass_missed(ctx, "skip_layernorm", norm, "gamma or beta is computed after the sum is needed");
            return false;
        }
    lathe_value_id y = node->out[0];
    struct lathe_value norm_value = g->values[y], sum_value = g->values[sum];
    lathe_value_id out[2];
    out[0] = lathe_graph_add_value(g, norm_value.name, norm_value.dtype, norm_value.rank, norm_value.dims);
    out[1] = lathe_graph_add_value(g, sum_value.name, sum_value.dtype, sum_value.rank, sum_value.dims);
    if (out[0] == LATHE_NONE || out[1] == LATHE_NONE)
        return false;
    lathe_node_id made =
        lathe_graph_add_node(g, add, LATHE_OP_SKIP_LAYER_NORM, node->name, node->origin, in, 4, out, 2);
    if (made == LATHE_NONE)
        return false;
    lathe_node_set_float(g, made, LATHE_ATTR_EPSILON, epsilon);
    lathe_graph_replace_uses(g, y, out[0]);
    lathe_graph_remove_node(g, norm);
    lathe_graph_replace_uses(g, sum, out[1]);
    lathe_graph_remove_node(g, add);
    return true;
}

enum lathe_status lathe_pass_fuse_skip_layernorm(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LAYER_NORM, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        ctx->changes += fuse(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_skip_layernorm: out of memory")
                            : LATHE_OK;
}
