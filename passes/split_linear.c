/* A linear layer of which only column parts are read, as the two halves of a gated feed-forward layer are, becomes one
 * layer for each part: no slice copies what the product has just written, and an activation or a gate behind a part can
 * move into its product. Attention takes its columns from the wide rows, so this comes behind fuse_attention. */
#include "match.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PARTS 8
#define WHOLE      16 /* columns: a panel of packed weights */

struct column_part {
    lathe_node_id slice;
    int64_t first, count;
};

/* The slice reads whole panels of `columns`, and all of the other axes. */
static bool read_part(const struct lathe_graph *g, lathe_node_id n, int64_t columns, struct column_part *out) {
    lathe_value_id y = g->nodes[n].out[0], x;
    int64_t axis, step;
    out->slice = n;
    return g->nodes[n].op == LATHE_OP_SLICE && !g->values[y].is_output &&
           lathe_match_slice(g, y, &x, &axis, &out->first, &step) && step == 1 && axis == g->values[x].rank - 1 &&
           lathe_value_dim_is(g, y, -1, &out->count) && out->first >= 0 && out->count >= WHOLE &&
           out->count % WHOLE == 0 && out->first + out->count <= columns;
}

static int by_column(const void *a, const void *b) {
    const struct column_part *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* The parts that are read, in order; 0 when something reads more or the same twice. */
static unsigned find_parts(const struct lathe_graph *g, lathe_node_id linear, struct column_part parts[MOST_PARTS]) {
    lathe_value_id y = g->nodes[linear].out[0];
    const struct lathe_value *v = &g->values[y];
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    int64_t columns;
    if (v->is_output || v->use_count < 2 || v->use_count > MOST_PARTS || g->nodes[linear].n_in > 3 ||
        lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1) != 1 || !lathe_value_dim_is(g, y, -1, &columns) ||
        !lathe_value_is_constant(g, g->nodes[linear].in[1]) || g->values[g->nodes[linear].in[1]].rank != 2)
        return 0;
    for (uint32_t i = 0; i < v->use_count; i++)
        if (!read_part(g, v->uses[i], columns, &parts[i]))
            return 0;
    qsort(parts, v->use_count, sizeof *parts, by_column);
    for (uint32_t i = 1; i < v->use_count; i++)
        if (parts[i].first < parts[i - 1].first + parts[i - 1].count)
            return 0;
    return v->use_count;
}

/* Columns of a constant [rows][columns] of any type: beside each other in memory when there is one row. */
static lathe_value_id columns_of(struct lathe_graph *g, lathe_value_id v, int64_t rows, int64_t columns, int64_t first,
                                 int64_t count, int rank, const int64_t *dims) {
    size_t bytes = lathe_dtype_bytes(g->values[v].dtype), line = (size_t)count * bytes;
    const char *from = (const char *)g->values[v].data + (size_t)first * bytes;
    if (rows == 1)
        return lathe_graph_add_constant(g, g->values[v].name, g->values[v].dtype, rank, dims, from);
    char *data = lathe_arena_alloc_array(g->arena, (size_t)rows, line);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(data + (size_t)r * line, from + (size_t)(r * columns) * bytes, line);
    return lathe_graph_add_constant(g, g->values[v].name, g->values[v].dtype, rank, dims, data);
}

static bool split(struct lathe_pass_ctx *ctx, lathe_node_id linear) {
    struct lathe_graph *g = ctx->graph;
    struct column_part parts[MOST_PARTS];
    unsigned count = find_parts(g, linear, parts);
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    const struct lathe_node node = g->nodes[linear];
    lathe_value_id w = node.in[1], bias = node.n_in > 2 ? node.in[2] : LATHE_NONE;
    if (count < 2 || (bias != LATHE_NONE && !lathe_value_is_constant(g, bias)))
        return false;
    int64_t k, n;
    if (!lathe_value_dim_is(g, w, transposed ? 1 : 0, &k) || !lathe_value_dim_is(g, w, transposed ? 0 : 1, &n))
        return false;
    for (unsigned i = 0; i < count; i++) {
        const struct column_part *p = &parts[i];
        const int64_t dims[2] = {transposed ? p->count : k, transposed ? k : p->count};
        lathe_value_id in[3] = {node.in[0], LATHE_NONE, LATHE_NONE}, y = g->nodes[p->slice].out[0];
        in[1] = transposed ? columns_of(g, w, 1, n * k, p->first * k, p->count * k, 2, dims)
                           : columns_of(g, w, k, n, p->first, p->count, 2, dims);
        if (bias != LATHE_NONE)
            in[2] = columns_of(g, bias, 1, n, p->first, p->count, 1, &p->count);
        lathe_value_id made = lathe_graph_emit(g, linear, LATHE_OP_LINEAR, node.name, in, bias == LATHE_NONE ? 2 : 3,
                                               LATHE_F32, g->values[y].rank, g->values[y].dims);
        if (made == LATHE_NONE || g->out_of_memory)
            return false;
        lathe_match_copy_attrs(g, linear, g->values[made].producer);
        lathe_graph_replace_uses(g, y, made);
        lathe_graph_remove_node(g, p->slice);
    }
    lathe_match_drop_unused(g, node.out[0]);
    ctx->changes++;
    return true;
}

enum lathe_status lathe_pass_split_linear(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        split(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "split_linear: out of memory") : LATHE_OK;
}
