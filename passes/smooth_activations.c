/* linear_q8 scales the columns of its input before it quantizes a row (x_scale). Where the layer before can give the
 * input scaled already, it does, and the multiplication is gone:
 *   - a layer norm or RMS norm that only such products read: gamma and beta take the scales,
 *   - attention: its output is linear in V, so the columns of the product that makes V take them,
 *   - a product without activation or with ReLU that nothing else reads: ReLU(r y) = r ReLU(y), as r > 0.
 * Behind a norm that a residual sum reads as well, and behind GELU, the scales stay where they are; the scales of
 * weights that the source has in 8 bits stay what they are. */
#include "calibration.h"
#include "match.h"

#include "ops_enums.h"

#include <string.h>

enum { W = 1, W_SCALE = 2, BIAS = 4, RESIDUAL = 5, X_SCALE = 6 };

static lathe_value_id operand(const struct lathe_graph *g, lathe_node_id n, uint32_t i) {
    return i < g->nodes[n].n_in ? g->nodes[n].in[i] : LATHE_NONE;
}

static int64_t attr(const struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, key, absent);
}

static bool same_vector(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    if (a == b)
        return true;
    int64_t bytes = lathe_value_bytes(g, a);
    return bytes > 0 && lathe_value_same_shape(g, a, b) && !memcmp(g->values[a].data, g->values[b].data, (size_t)bytes);
}

/* The x_scale of everything that reads v, LATHE_NONE when something reads it otherwise. */
static lathe_value_id common_scale(const struct lathe_graph *g, lathe_value_id v) {
    lathe_value_id common = LATHE_NONE;
    if (v == LATHE_NONE || g->values[v].is_output || g->values[v].use_count == 0)
        return LATHE_NONE;
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        lathe_node_id n = g->values[v].uses[i];
        if (g->nodes[n].op != LATHE_OP_LINEAR_Q8 || operand(g, n, RESIDUAL) == v || attr(g, n, LATHE_ATTR_GROUP, 1) > 1)
            return LATHE_NONE; /* (a scale of all groups stays where it is) */
        lathe_value_id scale = operand(g, n, X_SCALE);
        if (scale == LATHE_NONE || (common != LATHE_NONE && !same_vector(g, common, scale)))
            return LATHE_NONE;
        common = scale;
    }
    return common;
}

static bool is_vector(const struct lathe_graph *g, lathe_value_id v, int64_t count) {
    return v != LATHE_NONE && lathe_value_is_constant(g, v) && g->values[v].dtype == LATHE_F32 &&
           lathe_value_count(g, v) == count;
}

/* The operand with elements [at, at + count) multiplied by r. The constant may have other users: they keep theirs. */
static void scale_operand(struct lathe_graph *g, lathe_node_id n, uint32_t i, int64_t at, const float *r,
                          int64_t count) {
    lathe_value_id old = g->nodes[n].in[i];
    int64_t size = lathe_value_count(g, old);
    float *data = lathe_arena_alloc_array(g->arena, (size_t)size, sizeof *data);
    if (!data) {
        g->out_of_memory = true;
        return;
    }
    memcpy(data, g->values[old].data, (size_t)size * sizeof *data);
    for (int64_t k = 0; k < count; k++)
        data[at + k] *= r[k];
    lathe_value_id made = lathe_graph_add_constant(g, g->values[old].name, LATHE_F32, 1, &size, data);
    if (made != LATHE_NONE)
        lathe_node_set_input(g, n, i, made);
}

/* gamma is operand `gamma`, beta the one behind it where the norm has one. */
static bool into_norm(struct lathe_graph *g, lathe_node_id n, uint32_t gamma, bool has_beta, const float *r,
                      int64_t count) {
    lathe_value_id beta = has_beta ? operand(g, n, gamma + 1) : LATHE_NONE;
    if (!is_vector(g, operand(g, n, gamma), count) || g->values[operand(g, n, gamma)].rank != 1 ||
        (beta != LATHE_NONE && (!is_vector(g, beta, count) || g->values[beta].rank != 1)))
        return false;
    scale_operand(g, n, gamma, 0, r, count);
    if (beta != LATHE_NONE)
        scale_operand(g, n, gamma + 1, 0, r, count);
    return true;
}

/* Columns [at, at + count) of what n computes. */
static bool into_product(struct lathe_pass_ctx *ctx, lathe_node_id n, int64_t at, const float *r, int64_t count) {
    struct lathe_graph *g = ctx->graph;
    int64_t activation = attr(g, n, LATHE_ATTR_ACTIVATION, LATHE_ACT_NONE), columns;
    lathe_value_id bias = operand(g, n, BIAS);
    if (g->nodes[n].op != LATHE_OP_LINEAR_Q8 ||
        (operand(g, n, RESIDUAL) != LATHE_NONE && !attr(g, n, LATHE_ATTR_GATE, 0)) ||
        lathe_weight_is_reused(ctx->options, operand(g, n, W)) ||
        (activation != LATHE_ACT_NONE && activation != LATHE_ACT_RELU) ||
        !lathe_value_dim_is(g, g->nodes[n].out[0], -1, &columns) || at < 0 || at + count > columns ||
        !is_vector(g, operand(g, n, W_SCALE), columns) || (bias != LATHE_NONE && !is_vector(g, bias, columns)))
        return false;
    scale_operand(g, n, W_SCALE, at, r, count);
    if (bias != LATHE_NONE)
        scale_operand(g, n, BIAS, at, r, count);
    return true;
}

static bool apart(int64_t a, int64_t a_count, int64_t b, int64_t b_count) {
    return a + a_count <= b || b + b_count <= a;
}

static bool into_attention(struct lathe_pass_ctx *ctx, lathe_node_id n, const float *r, int64_t count) {
    struct lathe_graph *g = ctx->graph;
    int64_t heads = attr(g, n, LATHE_ATTR_HEADS, 0), d = attr(g, n, LATHE_ATTR_HEAD_DIM, 0);
    int64_t dv = attr(g, n, LATHE_ATTR_V_HEAD_DIM, d), kv_heads = attr(g, n, LATHE_ATTR_KV_HEADS, heads);
    int64_t v_at = attr(g, n, LATHE_ATTR_V_OFFSET, 0);
    lathe_value_id v = operand(g, n, 2);
    if (v == LATHE_NONE || kv_heads != heads || heads * dv != count || g->values[v].is_output)
        return false;
    lathe_node_id product = lathe_producer_of(g, v, LATHE_OP_LINEAR_Q8);
    for (uint32_t i = 0; i < g->values[v].use_count; i++)
        if (g->values[v].uses[i] != n)
            return false;
    /* the same product may make Q and K, in other columns */
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
        if (i == 2 || g->nodes[n].in[i] != v)
            continue;
        int64_t at = attr(g, n, i == 0 ? LATHE_ATTR_Q_OFFSET : LATHE_ATTR_K_OFFSET, 0);
        if (i > 1 || !apart(at, heads * d, v_at, count))
            return false;
    }
    return product != LATHE_NONE && into_product(ctx, product, v_at, r, count);
}

/* The producer of v gives it multiplied by r. */
static bool into_producer(struct lathe_pass_ctx *ctx, lathe_value_id v, const float *r, int64_t count) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE || g->nodes[n].out[0] != v)
        return false;
    switch (g->nodes[n].op) {
    case LATHE_OP_LAYER_NORM:
        return attr(g, n, LATHE_ATTR_AXIS, -1) == g->values[v].rank - 1 && into_norm(g, n, 1, true, r, count);
    case LATHE_OP_RMS_NORM:
        return attr(g, n, LATHE_ATTR_AXIS, -1) == g->values[v].rank - 1 && into_norm(g, n, 1, false, r, count);
    case LATHE_OP_SKIP_LAYER_NORM:
        return into_norm(g, n, 2, true, r, count);
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
        return into_attention(ctx, n, r, count);
    case LATHE_OP_LINEAR_Q8:
        return into_product(ctx, n, 0, r, count);
    default:
        return false;
    }
}

enum lathe_status lathe_pass_smooth_activations(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR_Q8, &count);
    for (uint32_t i = 0; i < count; i++) {
        lathe_value_id x = g->nodes[list[i]].in[0], scale = common_scale(g, x);
        if (scale == LATHE_NONE || !into_producer(ctx, x, g->values[scale].data, lathe_value_count(g, scale)))
            continue;
        for (uint32_t k = 0; k < g->values[x].use_count; k++)
            if (operand(g, g->values[x].uses[k], X_SCALE) != LATHE_NONE)
                lathe_node_set_input(g, g->values[x].uses[k], X_SCALE, LATHE_NONE);
        ctx->changes++;
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "smooth_activations: out of memory")
                            : LATHE_OK;
}
