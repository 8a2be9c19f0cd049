/* A table that is looked up by position bounds the length: its rows minus the offset of the first position. RoBERTa's
 * 514 rows from position 2 on serve 512 tokens. The bound of the symbol becomes the artifact's max_length, and a run
 * that asks for more is refused before it starts. (A slice [0, seq) of a table bounds it where shapes are derived
 * already: shape_unify.c.) */
#include "pass.h"

#include "positions.h"

/* d = constant + factor * symbol */
static bool one_symbol(const struct lathe_graph *g, lathe_dim d, int64_t *constant, int64_t *factor, uint32_t *symbol) {
    uint32_t terms = lathe_dim_term_count(g->dims, d), found = 0;
    *constant = 0;
    for (uint32_t i = 0; i < terms; i++) {
        struct lathe_dim_term term;
        lathe_dim_term_at(g->dims, d, i, &term);
        if (term.atom_count == 0) {
            *constant = term.factor;
        } else if (term.atom_count == 1 && term.atoms[0].kind == LATHE_ATOM_SYMBOL) {
            *factor = term.factor;
            *symbol = term.atoms[0].symbol;
            found++;
        } else {
            return false;
        }
    }
    return found == 1;
}

static bool narrow(struct lathe_pass_ctx *ctx, uint32_t symbol, int64_t most, lathe_node_id n, const char *why) {
    struct lathe_dims *t = ctx->graph->dims;
    lathe_dim d = lathe_dims_symbol_at(t, symbol);
    if (most < 1 || most < lathe_dim_lower(t, d) || lathe_dim_upper(t, d) <= most)
        return false;
    lathe_dims_symbol_bound(t, symbol, lathe_dim_lower(t, d), most);
    lathe_pass_note(ctx, "max_length", "%lld: %s at %s", (long long)most, why, ctx->graph->nodes[n].name);
    return true;
}

/* Positions as indices of a table. */
static bool bound_by_table(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t rows, constant, factor = 0;
    uint32_t symbol = 0;
    int axis = (int)lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
    if (axis < 0 || axis >= g->values[g->nodes[n].in[0]].rank || !lathe_value_dim_is(g, g->nodes[n].in[0], axis, &rows))
        return false;
    lathe_dim last = lathe_index_upper(g, g->nodes[n].in[1]);
    if (last == LATHE_DIM_NONE || lathe_dim_upper(g->dims, last) < rows ||
        !one_symbol(g, last, &constant, &factor, &symbol) || factor < 1)
        return false;
    int64_t room = rows - 1;
    if (__builtin_sub_overflow(room, constant, &room))
        return false;
    return room >= 0 && narrow(ctx, symbol, room / factor, n, "positions in a table of that many rows or a few more");
}

enum lathe_status lathe_pass_bound_positions(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op == LATHE_OP_GATHER)
            ctx->changes += bound_by_table(ctx, n);
    }
    return LATHE_OK;
}
