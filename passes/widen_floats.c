/* A graph in f16 or bf16 is computed in f32: its numbers are kept, its roundings between operators are not. Inputs and
 * outputs keep their types behind a cast. Types with fewer bits are the choice of a later pass, which then knows what
 * they cost. */
#include "pass.h"

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

static enum lathe_status widen_sources(struct lathe_pass_ctx *ctx, uint32_t value_count) {
    struct lathe_graph *g = ctx->graph;
    for (lathe_value_id v = 0; v < value_count; v++) {
        if (!is_half(g->values[v].dtype) || !g->values[v].use_count)
            continue;
        lathe_value_id wide = LATHE_NONE;
        if (lathe_value_is_constant(g, v)) {
            wide = f32_constant(ctx, v);
            if (wide == LATHE_NONE)
                return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "widening '%s'", g->values[v].name);
            while (g->values[v].use_count) {
                lathe_node_id user = g->values[v].uses[0];
                for (uint32_t k = 0; k < g->nodes[user].n_in; k++)
                    if (g->nodes[user].in[k] == v)
                        lathe_node_set_input(g, user, k, wide);
            }
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
    LATHE_TRY(widen_sources(ctx, value_count));
    LATHE_FOR_NODES(g, n) {
        for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
            lathe_value_id y = g->nodes[n].out[i];
            if (y == LATHE_NONE || !is_half(g->values[y].dtype))
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
