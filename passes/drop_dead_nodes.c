/* Removes what nothing uses: nodes without a used output, and single outputs that nobody wants. */
#include "pass.h"

enum lathe_status lathe_pass_drop_dead_nodes(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    /* From the end: the users of a node are gone before it is looked at. */
    for (lathe_node_id n = g->last, before; n != LATHE_NONE; n = before) {
        before = g->nodes[n].prev;
        bool used = false;
        for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
            lathe_value_id v = g->nodes[n].out[i];
            if (v == LATHE_NONE)
                continue;
            if (lathe_value_use_total(g, v)) {
                used = true;
            } else if (g->nodes[n].n_out > 1) {
                g->values[v].producer = LATHE_NONE;
                g->nodes[n].out[i] = LATHE_NONE;
                ctx->changes++;
            }
        }
        if (used)
            continue;
        lathe_graph_remove_node(g, n);
        ctx->changes++;
    }
    return LATHE_OK;
}
