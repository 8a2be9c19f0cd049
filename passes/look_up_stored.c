/* Rows are looked up in a table as it is stored, and only those that were read are widened: gather(dequantize(table))
 * becomes dequantize(gather(table)), the same for a cast. What is widened for one reader is widened just before it, so
 * that a run never holds two weights in f32. */
#include "match.h"

static bool grows(const struct lathe_graph *g, lathe_value_id narrow, lathe_value_id wide) {
    int64_t from = lathe_value_bytes(g, narrow), to = lathe_value_bytes(g, wide);
    return from >= 0 && to >= 0 && to - from > 4096;
}

static lathe_value_id gather(struct lathe_graph *g, lathe_node_id before, lathe_value_id table, lathe_value_id index,
                             int64_t columns) {
    struct lathe_value of_index = g->values[index];
    lathe_dim dims[LATHE_MAX_RANK];
    for (int i = 0; i < of_index.rank; i++)
        dims[i] = of_index.dims[i];
    dims[of_index.rank] = lathe_dim_const(g->dims, columns);
    lathe_value_id in[2] = {table, index};
    lathe_value_id y = lathe_graph_emit(g, before, LATHE_OP_GATHER, g->nodes[before].name, in, 2,
                                        g->values[table].dtype, of_index.rank + 1, dims);
    if (y != LATHE_NONE)
        lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_AXIS, 0);
    return y;
}

static lathe_value_id cast(struct lathe_graph *g, lathe_node_id before, lathe_value_id v) {
    struct lathe_value of_v = g->values[v];
    lathe_value_id y =
        lathe_graph_emit(g, before, LATHE_OP_CAST, g->nodes[before].name, &v, 1, LATHE_F32, of_v.rank, of_v.dims);
    if (y != LATHE_NONE)
        lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_TO, LATHE_F32);
    return y;
}

/* A vector of one number a row of the table, as a matrix of one column, looked up: [index.., 1] in f32. */
static lathe_value_id per_row(struct lathe_graph *g, lathe_node_id before, lathe_value_id vector,
                              lathe_value_id index) {
    struct lathe_value of_vector = g->values[vector];
    const int64_t dims[2] = {lathe_value_count(g, vector), 1};
    lathe_value_id column = lathe_graph_add_constant(g, of_vector.name, of_vector.dtype, 2, dims, of_vector.data);
    lathe_value_id y = column == LATHE_NONE ? LATHE_NONE : gather(g, before, column, index, 1);
    return y == LATHE_NONE || of_vector.dtype == LATHE_F32 ? y : cast(g, before, y);
}

static bool look_up(struct lathe_graph *g, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id wide = g->nodes[n].in[0], index = g->nodes[n].in[1];
    lathe_node_id w = wide == LATHE_NONE ? LATHE_NONE : g->values[wide].producer;
    int64_t columns;
    if (w == LATHE_NONE || lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != 0 || g->values[wide].rank != 2 ||
        (g->nodes[w].op != LATHE_OP_CAST && g->nodes[w].op != LATHE_OP_DEQUANTIZE_LINEAR) ||
        g->values[wide].dtype != LATHE_F32 || g->values[index].rank + 1 > LATHE_MAX_RANK ||
        !lathe_value_is_constant(g, g->nodes[w].in[0]) || !lathe_value_dim_is(g, wide, 1, &columns) ||
        !grows(g, g->nodes[w].in[0], wide))
        return false;
    lathe_value_id table = g->nodes[w].in[0];
    if (g->nodes[w].op == LATHE_OP_CAST) {
        lathe_value_id rows = gather(g, n, table, index, columns);
        if (rows == LATHE_NONE)
            return false;
        lathe_match_make_into(g, n, LATHE_OP_CAST, &rows, 1);
        lathe_node_set_int(g, n, LATHE_ATTR_TO, LATHE_F32);
        return true;
    }
    struct lathe_attrs how = lathe_node_attrs(g, w);
    lathe_value_id scale = g->nodes[w].in[1], zero = g->nodes[w].n_in > 2 ? g->nodes[w].in[2] : LATHE_NONE;
    if (lathe_attr_int(&how, LATHE_ATTR_BLOCK_SIZE, 0) || !lathe_value_is_constant(g, scale) ||
        (zero != LATHE_NONE && !lathe_value_is_constant(g, zero)))
        return false;
    bool by_row = lathe_value_count(g, scale) > 1 && lathe_attr_int(&how, LATHE_ATTR_AXIS, 1) == 0;
    lathe_value_id rows = gather(g, n, table, index, columns);
    if (rows == LATHE_NONE)
        return false;
    if (!by_row) {
        lathe_value_id in[3] = {rows, scale, zero};
        int axis = lathe_value_count(g, scale) > 1 ? g->values[index].rank : 0;
        lathe_match_make_into(g, n, LATHE_OP_DEQUANTIZE_LINEAR, in, zero == LATHE_NONE ? 2 : 3);
        lathe_node_set_int(g, n, LATHE_ATTR_AXIS, axis);
        return true;
    }
    lathe_value_id numbers = cast(g, n, rows), scales = per_row(g, n, scale, index);
    if (numbers != LATHE_NONE && zero != LATHE_NONE) {
        lathe_value_id in[2] = {numbers, per_row(g, n, zero, index)};
        numbers = in[1] == LATHE_NONE ? LATHE_NONE : lathe_match_make_like(g, n, LATHE_OP_SUB, in, 2, numbers);
    }
    if (numbers == LATHE_NONE || scales == LATHE_NONE)
        return false;
    lathe_value_id in[2] = {numbers, scales};
    lathe_match_make_into(g, n, LATHE_OP_MUL, in, 2);
    return true;
}

static bool move_to_reader(struct lathe_graph *g, lathe_node_id n) {
    lathe_value_id y = g->nodes[n].n_out == 1 ? g->nodes[n].out[0] : LATHE_NONE;
    if (y == LATHE_NONE || !lathe_value_is_constant(g, g->nodes[n].in[0]) || !grows(g, g->nodes[n].in[0], y))
        return false;
    lathe_node_id reader = lathe_value_only_use(g, y);
    if (reader == LATHE_NONE || g->nodes[n].next == reader)
        return false;
    lathe_graph_move_node(g, n, reader);
    return true;
}

enum lathe_status lathe_pass_look_up_stored(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    static const enum lathe_op widening[] = {LATHE_OP_CAST, LATHE_OP_DEQUANTIZE_LINEAR};
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_GATHER, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        ctx->changes += look_up(g, list[i]);
    for (int k = 0; k < 2; k++) {
        list = lathe_match_nodes(ctx, widening[k], &count);
        for (uint32_t i = 0; i < count; i++)
            ctx->changes += g->nodes[list[i]].op == widening[k] && move_to_reader(g, list[i]);
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "look_up_stored: out of memory") : LATHE_OK;
}
