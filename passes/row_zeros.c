/* Zeros at masked tokens, where packing does not make them. */
#include "match.h"
#include "row_region.h"

lathe_value_id lathe_row_zero_masked(struct lathe_graph *g, lathe_value_id keys, lathe_value_id v) {
    struct lathe_value value = g->values[v], mask = g->values[keys];
    lathe_value_id keep = keys;
    lathe_dim dims[LATHE_MAX_RANK];
    char zeros[16] = {0};
    if (mask.dtype != LATHE_BOOL) {
        keep = lathe_graph_emit(g, LATHE_NONE, LATHE_OP_CAST, "keep", &keys, 1, LATHE_BOOL, 2, mask.dims);
        if (keep == LATHE_NONE)
            return keep;
        lathe_node_set_int(g, g->values[keep].producer, LATHE_ATTR_TO, LATHE_BOOL);
    }
    for (int k = 0; k < value.rank; k++)
        dims[k] = k < 2 ? value.dims[k] : lathe_dim_const(g->dims, 1);
    if (value.rank > 2)
        keep = lathe_graph_emit(g, LATHE_NONE, LATHE_OP_RESHAPE, "keep", &keep, 1, LATHE_BOOL, value.rank, dims);
    lathe_value_id in[3] = {keep, v, lathe_graph_add_constant_copy(g, "zero", value.dtype, 0, NULL, zeros)};
    if (keep == LATHE_NONE || in[2] == LATHE_NONE)
        return LATHE_NONE;
    return lathe_graph_emit(g, LATHE_NONE, LATHE_OP_WHERE, value.name, in, 3, value.dtype, value.rank, value.dims);
}

/* What is not packed: token outputs behind an attention with a mask are still 0 at masked tokens. */
bool lathe_row_zero_outputs(struct lathe_pass_ctx *ctx, const struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    int64_t batch, seq;
    if (region->keys == LATHE_NONE || !lathe_row_keys_are_mask(g, region->keys) ||
        (lathe_dim_is_const(g->dims, region->sizes.batch, &batch) &&
         lathe_dim_is_const(g->dims, region->sizes.seq, &seq)))
        return true;
    uint32_t count = g->value_count;
    uint8_t *behind = lathe_arena_alloc(ctx->scratch, count);
    if (!behind)
        return false;
    enum { BY_MASK = 1, BEHIND = 2 }; /* computed from the keys; behind an attention that they mask */
    behind[region->keys] = BY_MASK;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        bool attention = node->op == LATHE_OP_ATTENTION && node->n_in > 3 && node->in[3] != LATHE_NONE &&
                         lathe_match_same(g, node->in[3], region->keys);
        uint8_t reached = attention ? BEHIND : 0;
        for (uint32_t i = 0; i < node->n_in; i++)
            reached |= node->in[i] == LATHE_NONE ? 0 : behind[node->in[i]];
        if (node->op == LATHE_OP_SOFTMAX && reached & BY_MASK)
            reached |= BEHIND;
        for (uint32_t i = 0; i < node->n_out && reached; i++)
            if (node->out[i] != LATHE_NONE)
                behind[node->out[i]] = reached;
    }
    for (uint32_t i = 0; i < g->output_count; i++) {
        lathe_value_id v = g->outputs[i];
        int64_t size;
        struct lathe_row_layout layout;
        if (v >= count || !(behind[v] & BEHIND) || lathe_producer_of(g, v, LATHE_OP_UNPACK_ROWS) != LATHE_NONE ||
            !lathe_row_plain_layout(region, v, &layout) || layout.token != 1 ||
            (g->values[v].rank == 2 && lathe_dim_is_const(g->dims, region->sizes.seq, &size)))
            continue;
        lathe_value_id made = lathe_row_zero_masked(g, region->keys, v);
        if (made == LATHE_NONE)
            return false;
        g->outputs[i] = made;
        g->values[made].is_output = true;
        bool still = false;
        for (uint32_t k = 0; k < g->output_count; k++)
            still |= g->outputs[k] == v;
        g->values[v].is_output = still;
        ctx->changes++;
    }
    return true;
}
