/* A matrix that the source stores twice, once transposed, is one: an exporter writes a decoder tied to the embedding as
 * a transposed copy of the table. The product reads the table with `trans_b`, so that packing stores one of them
 * (lower_weights.c) and the look-up reads that. Copies of one shape are merge_equal_nodes' work. */
#include "match.h"

#include "ops_enums.h"

#include <string.h>

#define TILE 64

/* The constant behind a weight that is used as it is stored, or cast; LATHE_NONE for others. */
static lathe_value_id constant_of(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id cast = lathe_producer_of(g, v, LATHE_OP_CAST);
    if (cast != LATHE_NONE && g->values[v].dtype == LATHE_F32)
        v = g->nodes[cast].in[0];
    return lathe_value_is_constant(g, v) && lathe_match_is_large_matrix(g, v) ? v : LATHE_NONE;
}

/* a [rows][cols] is b [cols][rows] turned over. Most pairs differ in their first elements. */
static bool is_turned(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    int64_t rows, cols, other_rows, other_cols;
    size_t each = lathe_dtype_bytes(g->values[a].dtype);
    if (g->values[a].dtype != g->values[b].dtype || !lathe_value_dim_is(g, a, 0, &rows) ||
        !lathe_value_dim_is(g, a, 1, &cols) || !lathe_value_dim_is(g, b, 0, &other_rows) ||
        !lathe_value_dim_is(g, b, 1, &other_cols) || rows != other_cols || cols != other_rows)
        return false;
    const char *x = g->values[a].data, *y = g->values[b].data;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < cols; c0 += TILE)
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++)
                for (int64_t c = c0; c < cols && c < c0 + TILE; c++)
                    if (memcmp(x + (size_t)(r * cols + c) * each, y + (size_t)(c * rows + r) * each, each))
                        return false;
    return true;
}

struct known {
    lathe_value_id *at;
    uint32_t count;
};

static void add(struct known *k, lathe_value_id v) {
    for (uint32_t i = 0; i < k->count; i++)
        if (k->at[i] == v)
            return;
    k->at[k->count++] = v;
}

/* v [..] as f32 just before `before`, if it is not that yet. */
static lathe_value_id as_f32(struct lathe_graph *g, lathe_node_id before, lathe_value_id v) {
    struct lathe_value of_v = g->values[v];
    if (of_v.dtype == LATHE_F32)
        return v;
    lathe_value_id y = lathe_graph_emit(g, before, LATHE_OP_CAST, of_v.name, &v, 1, LATHE_F32, 2, of_v.dims);
    if (y != LATHE_NONE)
        lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_TO, LATHE_F32);
    return y;
}

static bool share(struct lathe_graph *g, lathe_node_id n, lathe_value_id with) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0);
    lathe_value_id old = g->nodes[n].in[1], weight = as_f32(g, n, with);
    if (weight == LATHE_NONE)
        return false;
    lathe_node_set_input(g, n, 1, weight);
    lathe_node_set_int(g, n, LATHE_ATTR_TRANS_B, !transposed);
    lathe_match_drop_unused(g, old);
    return true;
}

enum lathe_status lathe_pass_share_weights(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t embeddings, count, room = 0;
    lathe_node_id *tables = lathe_match_nodes(ctx, LATHE_OP_EMBEDDING, &embeddings);
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    for (uint32_t i = 0; i < embeddings; i++)
        room += g->nodes[tables[i]].n_in;
    struct known known = {.at = lathe_arena_alloc_array(ctx->scratch, (size_t)room + count + 1, sizeof *known.at)};
    if (!known.at)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "share_weights: out of memory");
    for (uint32_t i = 0; i < embeddings; i++)
        for (uint32_t k = 2; k < g->nodes[tables[i]].n_in; k += 2)
            if (constant_of(g, g->nodes[tables[i]].in[k]) != LATHE_NONE)
                add(&known, g->nodes[tables[i]].in[k]);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++) {
        lathe_value_id v = constant_of(g, g->nodes[list[i]].in[1]);
        uint32_t same = 0;
        while (v != LATHE_NONE && same < known.count && known.at[same] != v && !is_turned(g, v, known.at[same]))
            same++;
        if (v == LATHE_NONE)
            continue;
        if (same == known.count)
            add(&known, v);
        else if (known.at[same] != v)
            ctx->changes += share(g, list[i], known.at[same]);
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "share_weights: out of memory") : LATHE_OK;
}
