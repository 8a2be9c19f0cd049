/* A graph in f16 or bf16 is computed in f32: its numbers are kept, its roundings between operators are not. Inputs and
 * outputs keep their types behind a cast; so do large weights and tables, which are packed and looked up as they are
 * stored. Types with fewer bits are the choice of a later pass, which then knows what
 * they cost. */
#include "match.h"

#include <string.h>

static bool is_half(enum lathe_dtype dtype) {
    return dtype == LATHE_F16 || dtype == LATHE_BF16;
}

static lathe_value_id f32_constant(struct lathe_pass_ctx *ctx, lathe_value_id v) {
    struct lathe_graph *g = ctx->graph;
    int64_t count = lathe_value_count(g, v), dims[LATHE_MAX_RANK];
    size_t bytes;
    int rank = g->values[v].rank;
    if (count < 0 || !lathe_mul_size((size_t)count, sizeof(float), &bytes))
        return LATHE_NONE;
    for (int i = 0; i < rank; i++)
        lathe_value_dim_is(g, v, i, &dims[i]);
    float *data = lathe_arena_alloc(g->arena, bytes);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (int64_t i = 0; i < count; i++)
        data[i] = (float)lathe_constant_f64(g, v, i);
    return lathe_graph_add_constant(g, g->values[v].name, LATHE_F32, rank, dims, data);
}

/* A cast of v to `to` before `before`. */
static lathe_value_id add_cast(struct lathe_graph *g, lathe_node_id before, lathe_value_id v, enum lathe_dtype to) {
    lathe_value_id y = lathe_graph_add_value(g, g->values[v].name, to, g->values[v].rank, g->values[v].dims);
    lathe_node_id n = y == LATHE_NONE
                          ? LATHE_NONE
                          : lathe_graph_add_node(g, before, LATHE_OP_CAST, g->values[y].name, "", &v, 1, &y, 1);
    if (n == LATHE_NONE)
        return LATHE_NONE;
    lathe_node_set_int(g, n, LATHE_ATTR_TO, to);
    return y;
}

static bool is_lookup(const struct lathe_graph *g, lathe_node_id n, lathe_value_id table) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return g->nodes[n].op == LATHE_OP_GATHER && g->nodes[n].in[0] == table &&
           lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) == 0;
}

static bool reads_stored_table(const struct lathe_graph *g, lathe_node_id n) {
    lathe_value_id table = g->nodes[n].op == LATHE_OP_GATHER ? g->nodes[n].in[0] : LATHE_NONE;
    return lathe_value_is_constant(g, table) && is_half(g->values[table].dtype) && is_lookup(g, n, table);
}

/* A table of look-ups stays as it is stored: the rows that were read are widened. */
static bool widen_lookups(struct lathe_graph *g, lathe_value_id table) {
    bool done = true;
    for (uint32_t i = 0; i < g->values[table].use_count && done; i++) {
        lathe_node_id n = g->values[table].uses[i];
        lathe_value_id rows = is_lookup(g, n, table) ? g->nodes[n].out[0] : LATHE_NONE;
        if (rows == LATHE_NONE || g->values[rows].dtype == LATHE_F32)
            continue;
        bool output = g->values[rows].is_output;
        lathe_value_id wide = add_cast(g, g->nodes[n].next, rows, LATHE_F32);
        done = wide != LATHE_NONE;
        if (!done)
            break;
        lathe_node_id cast = g->values[wide].producer;
        g->values[rows].is_output = false;
        for (uint32_t k = 0; k < g->output_count && output; k++)
            if (g->outputs[k] == rows)
                g->outputs[k] = wide;
        g->values[wide].is_output = output;
        lathe_graph_replace_uses(g, rows, wide);
        lathe_node_set_input(g, cast, 0, rows);
    }
    return done;
}

/* Node n can do with the stored form of v: a look-up, or a cast. */
static bool reads_stored(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v) {
    return is_lookup(g, n, v) || (g->nodes[n].op == LATHE_OP_CAST && g->values[g->nodes[n].out[0]].dtype == LATHE_F32);
}

/* All that reads v are look-ups and products, which can do with its stored form. */
static bool stays_stored(const struct lathe_graph *g, lathe_value_id v) {
    bool stays = lathe_match_is_large_matrix(g, v);
    for (uint32_t i = 0; i < g->values[v].use_count && stays; i++) {
        lathe_node_id n = g->values[v].uses[i];
        stays = reads_stored(g, n, v) || lathe_match_reads_as_weight(g, n, v);
    }
    return stays;
}

/* More than a few numbers beside each other: no bias or scale, which are f32 from here on. */
static bool is_big(const struct lathe_graph *g, lathe_value_id v) {
    int64_t count = lathe_value_count(g, v), size;
    for (int i = 0; i < g->values[v].rank; i++)
        if (lathe_value_dim_is(g, v, i, &size) && size == count)
            return false;
    return count > 2048;
}

static bool widen_constant(struct lathe_pass_ctx *ctx, lathe_value_id v) {
    struct lathe_graph *g = ctx->graph;
    bool stored = stays_stored(g, v), any = false;
    uint32_t kept = 0; /* uses before this one stay */
    lathe_value_id wide = LATHE_NONE;
    if (stored && !widen_lookups(g, v))
        return false;
    for (uint32_t i = 0; i < g->values[v].use_count; i++)
        any |= !stored || !reads_stored(g, g->values[v].uses[i], v);
    /* just before its reader, so that the reference execution, which casts in earnest, holds one weight at a time */
    lathe_node_id place = g->values[v].use_count == 1 ? g->values[v].uses[0] : g->first;
    if (any)
        wide = stored || is_big(g, v) ? add_cast(g, place, v, LATHE_F32) : f32_constant(ctx, v);
    if (!any)
        return true;
    if (wide == LATHE_NONE)
        return false;
    while (kept < g->values[v].use_count) {
        lathe_node_id user = g->values[v].uses[kept];
        if (user == g->values[wide].producer || (stored && reads_stored(g, user, v))) {
            kept++;
            continue;
        }
        for (uint32_t k = 0; k < g->nodes[user].n_in; k++)
            if (g->nodes[user].in[k] == v)
                lathe_node_set_input(g, user, k, wide);
        kept = 0; /* the order of the uses has changed */
    }
    return true;
}

/* The same for casts that the source has itself: look-ups read the table as it is stored, and a weight is cast just
 * before its product. */
static bool use_stored_forms(struct lathe_graph *g) {
    LATHE_FOR_NODES_SAFE(g, n, follow) {
        lathe_value_id wide = g->nodes[n].op == LATHE_OP_CAST ? g->nodes[n].out[0] : LATHE_NONE;
        if (wide == LATHE_NONE || !lathe_match_is_matrix(g, wide) || !lathe_match_is_large_matrix(g, wide))
            continue;
        lathe_value_id stored = g->nodes[n].in[0];
        for (uint32_t i = 0; i < g->values[wide].use_count;) {
            lathe_node_id user = g->values[wide].uses[i];
            if (!is_lookup(g, user, wide)) {
                i++;
                continue;
            }
            lathe_node_set_input(g, user, 0, stored);
            g->values[g->nodes[user].out[0]].dtype = g->values[stored].dtype;
            i = 0; /* the order of the uses has changed */
        }
        if (!widen_lookups(g, stored))
            return false;
        if (!lathe_value_use_total(g, wide))
            lathe_graph_remove_node(g, n);
        else if (g->values[wide].use_count == 1 && !g->values[wide].is_output)
            lathe_graph_move_node(g, n, g->values[wide].uses[0]);
    }
    return true;
}

static enum lathe_status widen_sources(struct lathe_pass_ctx *ctx, uint32_t value_count) {
    struct lathe_graph *g = ctx->graph;
    for (lathe_value_id v = 0; v < value_count; v++) {
        if (!is_half(g->values[v].dtype) || !g->values[v].use_count)
            continue;
        lathe_value_id wide = LATHE_NONE;
        if (lathe_value_is_constant(g, v)) {
            if (!widen_constant(ctx, v))
                return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening '%s'", g->values[v].name);
            ctx->changes++;
        } else if (g->values[v].is_input) {
            bool output = g->values[v].is_output;
            wide = add_cast(g, g->first, v, LATHE_F32);
            if (wide == LATHE_NONE)
                return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening '%s'", g->values[v].name);
            lathe_node_id cast = g->values[wide].producer;
            g->values[v].is_output = false;
            lathe_graph_replace_uses(g, v, wide);
            lathe_node_set_input(g, cast, 0, v);
            g->values[v].is_output = output;
        }
        ctx->changes += wide != LATHE_NONE;
    }
    return LATHE_OK;
}

enum lathe_status lathe_pass_widen_floats(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t value_count = g->value_count, computed = 0;
    enum lathe_dtype *output_types = lathe_arena_alloc_array(ctx->scratch, g->output_count, sizeof *output_types);
    if (!output_types)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening");
    for (uint32_t i = 0; i < g->output_count; i++)
        output_types[i] = g->values[g->outputs[i]].dtype;
    if (!use_stored_forms(g))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening");
    LATHE_TRY(widen_sources(ctx, value_count));
    LATHE_FOR_NODES(g, n) {
        for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
            lathe_value_id y = g->nodes[n].out[i];
            if (y == LATHE_NONE || !is_half(g->values[y].dtype))
                continue;
            if (reads_stored_table(g, n))
                continue;
            g->values[y].dtype = LATHE_F32;
            computed++;
        }
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        if (is_half((enum lathe_dtype)lathe_attr_int(&attrs, LATHE_ATTR_TO, 0)))
            lathe_node_set_int(g, n, LATHE_ATTR_TO, LATHE_F32);
    }
    if (!computed && !ctx->changes)
        return LATHE_OK;
    ctx->changes += computed;
    LATHE_TRY(lathe_shape_infer(g, ctx->diag));
    for (uint32_t i = 0; i < g->output_count; i++) {
        lathe_value_id v = g->outputs[i];
        if (!is_half(output_types[i]) || g->values[v].dtype == output_types[i])
            continue;
        lathe_value_id narrow = add_cast(g, LATHE_NONE, v, output_types[i]);
        if (narrow == LATHE_NONE)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening");
        g->outputs[i] = narrow;
        g->values[narrow].is_output = true;
        bool still = false;
        for (uint32_t k = 0; k < g->output_count; k++)
            still |= g->outputs[k] == v;
        g->values[v].is_output = still;
    }
    lathe_pass_note(ctx, "half_precision_source", "%u values of the source are f16 or bf16; they are computed in f32",
                    computed);
    return LATHE_OK;
}
