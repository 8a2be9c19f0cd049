/* What follows a linear layer and sees one element at a time moves into it: the bias, then an activation, then a
 * residual sum or a gate (a product with another value). Each step needs the value before it to have no other use.
 * Reshapes between that keep the last axis are looked through. A sum that a layer norm reads is left to
 * fuse_skip_layernorm, where it costs no pass over memory. */
#include "match.h"

#include "ops_enums.h"

#include <string.h>

/* The linear layer's result after reshapes that nothing else uses and that keep the columns. */
static lathe_value_id visible(const struct lathe_graph *g, lathe_value_id y) {
    for (;;) {
        lathe_node_id use = lathe_value_only_use(g, y);
        if (use == LATHE_NONE || g->nodes[use].op != LATHE_OP_RESHAPE ||
            !lathe_match_dim_equal(g, lathe_value_dim(g, y, -1), lathe_value_dim(g, g->nodes[use].out[0], -1)))
            return y;
        y = g->nodes[use].out[0];
    }
}

static enum lathe_activation activation_of(const struct lathe_graph *g, lathe_node_id n) {
    switch (g->nodes[n].op) {
    case LATHE_OP_RELU:
        return LATHE_ACT_RELU;
    case LATHE_OP_GELU:
        return LATHE_ACT_GELU;
    case LATHE_OP_GELU_TANH:
        return LATHE_ACT_GELU_TANH;
    case LATHE_OP_QUICK_GELU:
        return LATHE_ACT_QUICK_GELU;
    case LATHE_OP_SILU:
        return LATHE_ACT_SILU;
    case LATHE_OP_TANH:
        return LATHE_ACT_TANH;
    default:
        return LATHE_ACT_NONE;
    }
}

static void set_operand(struct lathe_graph *g, lathe_node_id linear, uint32_t index, lathe_value_id v) {
    lathe_value_id in[4] = {LATHE_NONE, LATHE_NONE, LATHE_NONE, LATHE_NONE};
    uint32_t n = g->nodes[linear].n_in;
    for (uint32_t i = 0; i < n && i < 4; i++)
        in[i] = g->nodes[linear].in[i];
    in[index] = v;
    lathe_node_set_inputs(g, linear, in, n > index + 1 ? n : index + 1);
}

static bool has_operand(const struct lathe_graph *g, lathe_node_id linear, uint32_t index) {
    return g->nodes[linear].n_in > index && g->nodes[linear].in[index] != LATHE_NONE;
}

/* Takes node `step` out: what used its result now uses `before`, the operand that the linear layer has taken over. */
static void take_out(struct lathe_pass_ctx *ctx, lathe_node_id step, lathe_value_id before) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id after = g->nodes[step].out[0], old[2] = {LATHE_NONE, LATHE_NONE};
    for (uint32_t i = 0; i < g->nodes[step].n_in && i < 2; i++)
        old[i] = g->nodes[step].in[i];
    lathe_graph_replace_uses(g, after, before);
    lathe_graph_remove_node(g, step);
    for (int i = 0; i < 2; i++)
        if (old[i] != before)
            lathe_match_drop_unused(g, old[i]);
    ctx->changes++;
}

static bool feeds_layer_norm(const struct lathe_graph *g, lathe_value_id v) {
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        lathe_node_id use = g->values[v].uses[i];
        struct lathe_attrs attrs = lathe_node_attrs(g, use);
        if (g->nodes[use].op == LATHE_OP_LAYER_NORM && g->nodes[use].in[0] == v &&
            lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1) == g->values[v].rank - 1)
            return true;
    }
    return false;
}

/* v, or the numbers of a vector that the source has in few bits; LATHE_NONE when it is neither. Folding leaves such a
 * vector alone, which may be large for it; beside the weights of its product it is small. */
static lathe_value_id constant_vector(struct lathe_pass_ctx *ctx, lathe_value_id v) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_DEQUANTIZE_LINEAR);
    if (lathe_value_is_constant(g, v))
        return v;
    if (n == LATHE_NONE || g->values[v].rank != 1 || g->values[v].dtype != LATHE_F32)
        return LATHE_NONE;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id q = node->in[0], scale = node->in[1], zero = node->n_in > 2 ? node->in[2] : LATHE_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t count = lathe_value_count(g, v), scales = lathe_value_count(g, scale), zeros = 1;
    if (!lathe_value_is_constant(g, q) || !lathe_value_is_constant(g, scale) || g->values[scale].dtype != LATHE_F32 ||
        (zero != LATHE_NONE && !lathe_value_is_constant(g, zero)) || lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0))
        return LATHE_NONE;
    zeros = zero == LATHE_NONE ? 1 : lathe_value_count(g, zero);
    if (count < 1 || (scales != 1 && scales != count) || (zeros != 1 && zeros != count))
        return LATHE_NONE;
    float *data = lathe_arena_alloc_array(g->arena, (size_t)count, sizeof *data);
    g->out_of_memory |= !data;
    for (int64_t i = 0; data && i < count; i++) {
        double less = zero == LATHE_NONE ? 0 : lathe_constant_f64(g, zero, zeros == 1 ? 0 : i);
        data[i] =
            (float)(lathe_constant_f64(g, q, i) - less) * (float)lathe_constant_f64(g, scale, scales == 1 ? 0 : i);
    }
    return data ? lathe_graph_add_constant(g, g->values[v].name, LATHE_F32, 1, &count, data) : LATHE_NONE;
}

/* A constant bias with the sign of the sum. */
static lathe_value_id signed_bias(struct lathe_pass_ctx *ctx, lathe_value_id bias, bool negative) {
    struct lathe_graph *g = ctx->graph;
    if (!negative)
        return bias;
    int64_t count = lathe_value_count(g, bias);
    float *data = lathe_arena_alloc_array(g->arena, (size_t)count, sizeof *data);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    memcpy(data, g->values[bias].data, (size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++)
        data[i] = -data[i];
    return lathe_graph_add_constant(g, g->values[bias].name, LATHE_F32, 1, &count, data);
}

/* Moves the linear layer, and the reshapes between it and v, to just before `step`. */
static void move_down(struct lathe_graph *g, lathe_node_id linear, lathe_value_id v, lathe_node_id step) {
    lathe_node_id chain[LATHE_MAX_RANK * 4];
    int count = 0;
    for (lathe_node_id n = g->values[v].producer; n != LATHE_NONE && count < LATHE_MAX_RANK * 4;
         n = g->values[g->nodes[n].in[0]].producer) {
        chain[count++] = n;
        if (n == linear)
            break;
    }
    while (count > 0)
        lathe_graph_move_node(g, chain[--count], step);
}

/* The other factor of a product with v, which a gate takes: of two linear layers the one without an activation is to
 * have it, as quantization can then move scales into its columns. */
static bool is_gate(const struct lathe_graph *g, lathe_node_id use, lathe_value_id v, lathe_value_id other,
                    bool active) {
    lathe_value_id from = other;
    for (lathe_node_id n; (n = lathe_producer_of(g, from, LATHE_OP_RESHAPE)) != LATHE_NONE;)
        from = g->nodes[n].in[0];
    lathe_node_id linear = lathe_producer_of(g, from, LATHE_OP_LINEAR);
    if (g->nodes[use].op != LATHE_OP_MUL || other == v)
        return false;
    if (!active || linear == LATHE_NONE || has_operand(g, linear, 3) || visible(g, from) != other ||
        lathe_value_only_use(g, other) != use)
        return true;
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    return lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, LATHE_ACT_NONE) != LATHE_ACT_NONE;
}

/* One step of the epilogue, or its gate; false when the next use does not fit. */
static bool absorb(struct lathe_pass_ctx *ctx, lathe_node_id linear, bool gates) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id y = g->nodes[linear].out[0], v = visible(g, y), other;
    lathe_node_id use = lathe_value_only_use(g, v);
    if (use == LATHE_NONE || has_operand(g, linear, 3))
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, linear), own = lathe_node_attrs(g, use);
    bool active = lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, LATHE_ACT_NONE) != LATHE_ACT_NONE;
    lathe_value_id after = g->nodes[use].out[0];
    enum lathe_op op = g->nodes[use].op;
    if (activation_of(g, use) != LATHE_ACT_NONE) {
        if (active)
            return false;
        lathe_node_set_int(g, linear, LATHE_ATTR_ACTIVATION, activation_of(g, use));
        if (op == LATHE_OP_QUICK_GELU)
            lathe_node_set_float(g, linear, LATHE_ATTR_ALPHA, lathe_attr_float(&own, LATHE_ATTR_ALPHA, 1.702));
        take_out(ctx, use, v);
        return true;
    }
    if (op != LATHE_OP_ADD && op != LATHE_OP_SUB && !(gates && op == LATHE_OP_MUL))
        return false;
    if (!lathe_match_other(g, use, v, &other) || !lathe_value_same_shape(g, v, after) ||
        g->values[other].dtype != LATHE_F32 || (op == LATHE_OP_SUB && g->nodes[use].in[0] != v))
        return false;
    int last = g->values[v].rank - 1;
    bool gate = is_gate(g, use, v, other, active);
    lathe_value_id vector =
        op == LATHE_OP_MUL || active || has_operand(g, linear, 2) ? LATHE_NONE : constant_vector(ctx, other);
    if (vector != LATHE_NONE && lathe_match_row_operand(g, vector, v, last)) {
        lathe_value_id bias = lathe_match_make_row_operand(ctx, linear, vector, v, last);
        bias = signed_bias(ctx, bias, op == LATHE_OP_SUB);
        if (g->out_of_memory)
            return false;
        set_operand(g, linear, 2, bias);
        take_out(ctx, use, v);
        return true;
    }
    if ((op != LATHE_OP_ADD && !gate) || lathe_value_is_constant(g, other) || !lathe_value_same_shape(g, other, v) ||
        (!gate && feeds_layer_norm(g, after)))
        return false;
    lathe_value_id residual = lathe_match_make_reshape(ctx, use, other, g->values[y].rank, g->values[y].dims);
    if (residual == LATHE_NONE)
        return false;
    move_down(g, linear, v, use);
    set_operand(g, linear, 3, residual);
    if (gate)
        lathe_node_set_int(g, linear, LATHE_ATTR_GATE, 1);
    take_out(ctx, use, v);
    return true;
}

/* A bias [N,D] behind the reshape of the columns to heads, as dense layers written with einsum have it. */
static bool absorb_bias_of_heads(struct lathe_pass_ctx *ctx, lathe_node_id linear) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id y = g->nodes[linear].out[0], other;
    lathe_node_id view = lathe_value_only_use(g, visible(g, y));
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    int64_t columns, size, product = 1;
    if (view == LATHE_NONE || g->nodes[view].op != LATHE_OP_RESHAPE || has_operand(g, linear, 2) ||
        has_operand(g, linear, 3) || lathe_attr_int(&attrs, LATHE_ATTR_ACTIVATION, LATHE_ACT_NONE) != LATHE_ACT_NONE ||
        !lathe_value_dim_is(g, y, -1, &columns))
        return false;
    lathe_value_id heads = g->nodes[view].out[0];
    lathe_node_id sum = lathe_value_only_use(g, heads);
    int axis = g->values[heads].rank;
    while (axis > 0 && product < columns && lathe_value_dim_is(g, heads, axis - 1, &size) && size > 0) {
        product *= size;
        axis--;
    }
    if (sum == LATHE_NONE || g->nodes[sum].op != LATHE_OP_ADD || product != columns ||
        !lathe_match_other(g, sum, heads, &other) || !lathe_value_is_constant(g, other) ||
        !lathe_value_same_shape(g, heads, g->nodes[sum].out[0]) || lathe_value_count(g, other) != columns ||
        !lathe_match_row_operand(g, other, heads, axis))
        return false;
    lathe_value_id bias =
        lathe_graph_add_constant(g, g->values[other].name, LATHE_F32, 1, &columns, g->values[other].data);
    if (bias == LATHE_NONE)
        return false;
    set_operand(g, linear, 2, bias);
    take_out(ctx, sum, heads);
    return true;
}

/* A product with block-quantized weights takes its bias as operand 5. */
static bool absorb_nbits_bias(struct lathe_pass_ctx *ctx, lathe_node_id product) {
    struct lathe_graph *g = ctx->graph;
    enum { BIAS = 5 };
    lathe_value_id y = g->nodes[product].out[0], other, in[BIAS + 1];
    lathe_node_id use = lathe_value_only_use(g, y);
    if (use == LATHE_NONE || g->nodes[use].op != LATHE_OP_ADD || has_operand(g, product, BIAS) ||
        !lathe_match_other(g, use, y, &other) || !lathe_value_is_constant(g, other) ||
        !lathe_value_same_shape(g, y, g->nodes[use].out[0]) ||
        !lathe_match_row_operand(g, other, y, g->values[y].rank - 1))
        return false;
    for (uint32_t i = 0; i < BIAS; i++)
        in[i] = i < g->nodes[product].n_in ? g->nodes[product].in[i] : LATHE_NONE;
    in[BIAS] = lathe_match_make_row_operand(ctx, product, other, y, g->values[y].rank - 1);
    if (in[BIAS] == LATHE_NONE)
        return false;
    lathe_node_set_inputs(g, product, in, BIAS + 1);
    take_out(ctx, use, y);
    return true;
}

enum lathe_status lathe_pass_fuse_epilogue(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    /* gates last: which of two layers has one depends on their activations */
    for (int gates = 0; gates < 2; gates++)
        for (uint32_t i = 0; i < count; i++)
            while (g->nodes[list[i]].op == LATHE_OP_LINEAR && !g->out_of_memory &&
                   (absorb(ctx, list[i], gates) || absorb_bias_of_heads(ctx, list[i])))
                continue;
    list = lathe_match_nodes(ctx, LATHE_OP_MATMUL_NBITS, &count);
    for (uint32_t i = 0; i < count; i++)
        absorb_nbits_bias(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_epilogue: out of memory") : LATHE_OK;
}
