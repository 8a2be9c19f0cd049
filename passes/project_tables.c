/* A linear layer of rows that were sliced from a constant table is a slice of the layer of the whole table, which is a
 * constant then (fold_constants computes it) in the place of the layer's weight. Disentangled attention projects its
 * positions so, in each layer and each run: DeBERTa of 3 layers of 768, 2 threads of a Zen 5, 128
 * tokens, f32: 16.6 -> 13.2 ms, 384 tokens: 60.9 -> 52.2, 2 % more bytes. Not where the weight would be stored in fewer
 * bits: the table would not be (int8: 5.2 -> 4.5 and 28.2 -> 27.7 ms, but 40 % more bytes). */
#include "match.h"

#include "ops_enums.h"

#define MAX_TABLE 2 /* rows of the table for each row of the weight: what the artifact may grow by */

/* The slice of rows behind v, seen past views that keep the last axis. LATHE_NONE when it is none of a constant. */
static lathe_node_id row_slice(const struct lathe_graph *g, lathe_value_id v) {
    lathe_value_id source = lathe_match_skip_views(g, v);
    lathe_node_id n = lathe_producer_of(g, source, LATHE_OP_SLICE);
    if (n == LATHE_NONE || g->nodes[n].n_in != 1)
        return LATHE_NONE;
    lathe_value_id table = g->nodes[n].in[0];
    if (!lathe_value_is_constant(g, table) || g->values[table].dtype != LATHE_F32 || g->values[table].rank != 2 ||
        !lathe_match_dim_equal(g, lathe_value_dim(g, table, 1), lathe_value_dim(g, source, 1)) ||
        !lathe_match_dim_equal(g, lathe_value_dim(g, v, -1), lathe_value_dim(g, source, 1)))
        return LATHE_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    return axes && count == 1 && axes[0] == 0 ? n : LATHE_NONE;
}

static bool is_plain(const struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id weight = node->in[1], bias = node->n_in > 2 ? node->in[2] : LATHE_NONE;
    return lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, 0) == 0 && lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1) == 1 &&
           (node->n_in < 4 || node->in[3] == LATHE_NONE) && lathe_value_is_constant(g, weight) &&
           g->values[weight].dtype == LATHE_F32 && (bias == LATHE_NONE || lathe_value_is_constant(g, bias)) &&
           lathe_value_use_total(g, weight) == 1;
}

static bool project(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id slice = row_slice(g, g->nodes[n].in[0]);
    int64_t rows, depth, columns;
    if (slice == LATHE_NONE || !is_plain(g, n))
        return false;
    struct lathe_value y = g->values[g->nodes[n].out[0]];
    lathe_value_id table = g->nodes[slice].in[0], some = g->nodes[slice].out[0];
    if (!lathe_value_dim_is(g, table, 0, &rows) || !lathe_value_dim_is(g, table, 1, &depth) ||
        !lathe_value_dim_is(g, g->nodes[n].out[0], -1, &columns) || rows > MAX_TABLE * depth ||
        (double)rows * (double)columns > ((double)rows + (double)columns) * (double)depth)
        return false;
    lathe_value_id in[3] = {table, g->nodes[n].in[1], g->nodes[n].n_in > 2 ? g->nodes[n].in[2] : LATHE_NONE};
    lathe_dim width = lathe_dim_const(g->dims, columns);
    lathe_dim whole[2] = {lathe_value_dim(g, table, 0), width}, part[2] = {lathe_value_dim(g, some, 0), width};
    const char *name = g->nodes[n].name;
    lathe_value_id all =
        lathe_graph_emit(g, n, LATHE_OP_LINEAR, name, in, in[2] == LATHE_NONE ? 2 : 3, LATHE_F32, 2, whole);
    if (all == LATHE_NONE)
        return false;
    lathe_match_copy_attrs(g, n, g->values[all].producer);
    lathe_value_id taken = lathe_graph_emit(g, n, LATHE_OP_SLICE, name, &all, 1, LATHE_F32, 2, part);
    if (taken == LATHE_NONE)
        return false;
    lathe_match_copy_attrs(g, slice, g->values[taken].producer);
    taken = lathe_match_make_reshape(ctx, n, taken, y.rank, y.dims);
    if (taken == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, g->nodes[n].out[0], taken);
    lathe_graph_remove_dead_from(g, n);
    return true;
}

enum lathe_status lathe_pass_project_tables(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    if (ctx->options && (ctx->options->int8 || ctx->options->bf16))
        return LATHE_OK;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    for (uint32_t i = 0; i < count; i++)
        ctx->changes += project(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "projecting tables") : LATHE_OK;
}
