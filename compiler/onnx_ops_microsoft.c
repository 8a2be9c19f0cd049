/* Operators of com.microsoft that hold several standard ones: written out again, so that our own passes find them. */
#include "onnx_import.h"

#include <string.h>

static lathe_value_id add_if(struct lathe_import *c, lathe_value_id a, lathe_value_id b) {
    return b == LATHE_NONE ? a : lathe_imp_binary(c, LATHE_OP_ADD, a, b);
}

LATHE_IMPORTER(ms_gelu) {
    const char *name = c->node->op_type;
    lathe_value_id x = add_if(c, c->in[0], lathe_imp_in(c, 1));
    bool quick = !strcmp(name, "QuickGelu");
    double alpha = quick ? lathe_imp_attr_float(c, "alpha", 1.702f) : 0;
    enum lathe_op op = !strcmp(name, "FastGelu") ? LATHE_OP_GELU_TANH
                       : !quick                  ? LATHE_OP_GELU
                       : alpha == 1              ? LATHE_OP_SILU /* as ONNX Runtime writes it */
                                                 : LATHE_OP_QUICK_GELU;
    lathe_node_id n = lathe_imp_result(c, 0, op, &x, 1);
    if (op == LATHE_OP_QUICK_GELU)
        lathe_imp_float(c, n, LATHE_ATTR_ALPHA, alpha);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(ms_bias_add) {
    lathe_value_id sum = lathe_imp_binary(c, LATHE_OP_ADD, c->in[0], c->in[1]);
    const lathe_value_id in[2] = {sum, c->in[2]};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_ADD, in, 2));
}

/* Softmax over all axes from `axis` on, after a bias. */
LATHE_IMPORTER(ms_bias_softmax) {
    int rank = lathe_imp_rank(c, c->in[0]);
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 1), rank);
    if (axis != rank - 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "axis %d is not the last", axis);
    lathe_imp_ignore_attr(c, "is_inner_broadcast"); /* the shapes say it too */
    lathe_value_id x = lathe_imp_binary(c, LATHE_OP_ADD, c->in[0], c->in[1]);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_SOFTMAX, &x, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_end(c, n);
}

/* (input + bias) + skip, normalised; output 3 is the sum. */
LATHE_IMPORTER(ms_skip_layer_norm) {
    bool rms = !strcmp(c->node->op_type, "SkipSimplifiedLayerNormalization");
    lathe_value_id beta = rms ? LATHE_NONE : lathe_imp_in(c, 3), bias = lathe_imp_in(c, rms ? 3 : 4);
    double epsilon = lathe_imp_attr_float(c, "epsilon", rms ? 1e-5f : 1e-12f);
    lathe_value_id sum = add_if(c, c->in[0], bias);
    const lathe_value_id in[2] = {sum, c->in[1]};
    lathe_node_id n =
        lathe_imp_wants(c, 3) ? lathe_imp_result(c, 3, LATHE_OP_ADD, in, 2) : lathe_imp_node(c, LATHE_OP_ADD, in, 2);
    sum = lathe_imp_end(c, n);
    lathe_imp_normalize(c, rms, sum, c->in[2], beta, lathe_imp_rank(c, sum) - 1, epsilon, rms ? 1 : 3);
}

static lathe_value_id look_up(struct lathe_import *c, lathe_value_id table, lathe_value_id index) {
    const lathe_value_id in[2] = {table, index};
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_GATHER, in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, 0);
    return lathe_imp_end(c, n);
}

/* Words, positions (given, or 0, 1, 2, ...) and segments, summed and normalised. Output 1 counts the ones of the mask,
 * output 2 is the sum. */
LATHE_IMPORTER(ms_embed_layer_norm) {
    for (uint32_t i = 2; i < 7; i++) {
        if (!lathe_imp_has(c, i) && i != 4) {
            lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand %u is absent, and the operator needs it", i);
            return;
        }
    }
    lathe_value_id ids = c->in[0], segments = lathe_imp_in(c, 1), positions = lathe_imp_in(c, 8);
    double epsilon = lathe_imp_attr_float(c, "epsilon", 1e-12f);
    lathe_imp_ignore_attr(c, "mask_index_type"); /* says the shape of output 1 only */
    lathe_value_id position;
    if (positions != LATHE_NONE) {
        position = look_up(c, c->in[3], positions);
    } else {
        lathe_dim tokens = lathe_imp_dim(c, ids, 1);
        const lathe_dim dims[2] = {lathe_imp_number(c, 1), tokens};
        position = look_up(c, c->in[3], lathe_imp_view(c, lathe_imp_count_up(c, tokens), 2, dims));
    }
    lathe_value_id sum = lathe_imp_binary(c, LATHE_OP_ADD, look_up(c, c->in[2], ids), position);
    if (lathe_imp_has(c, 4) && segments != LATHE_NONE)
        sum = lathe_imp_binary(c, LATHE_OP_ADD, sum, look_up(c, c->in[4], segments));
    lathe_imp_bind(c, 2, sum);
    lathe_imp_normalize(c, false, sum, c->in[5], c->in[6], 2, epsilon, 1);
    if (!lathe_imp_wants(c, 1))
        return;
    /* Without a mask the counts are zero, and attention then adds the same to every score. */
    static const int64_t tokens_axis = 1;
    lathe_value_id ones =
        lathe_imp_has(c, 7)
            ? lathe_imp_binary(c, LATHE_OP_EQUAL, c->in[7], lathe_imp_scalar(c, lathe_imp_dtype(c, c->in[7]), 1))
            : lathe_imp_unary(c, LATHE_OP_NOT, lathe_imp_binary(c, LATHE_OP_EQUAL, ids, ids));
    ones = lathe_imp_cast(c, ones, LATHE_I32);
    lathe_node_id n = lathe_imp_result(c, 1, LATHE_OP_REDUCE_SUM, &ones, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, &tokens_axis, 1);
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, 0);
    lathe_imp_end(c, n);
}

/* ---- products */

/* The first axis becomes the last of the batch axes. */
static lathe_value_id rotate_batch(struct lathe_import *c, lathe_value_id x) {
    int rank = lathe_imp_rank(c, x);
    int64_t perm[LATHE_MAX_RANK];
    if (rank < 3)
        return x;
    for (int i = 0; i < rank - 2; i++)
        perm[i] = i + 1;
    perm[rank - 2] = 0;
    perm[rank - 1] = rank - 1;
    return lathe_imp_transpose(c, x, perm, (uint32_t)rank);
}

LATHE_IMPORTER(ms_fused_matmul) {
    double alpha = lathe_imp_attr_float(c, "alpha", 1);
    lathe_value_id a = c->in[0], b = c->in[1];
    if (lathe_imp_attr_int(c, "transBatchA", 0))
        a = rotate_batch(c, a);
    if (lathe_imp_attr_int(c, "transBatchB", 0))
        b = rotate_batch(c, b);
    const lathe_value_id in[2] = {a, b};
    lathe_node_id n =
        alpha == 1 ? lathe_imp_result(c, 0, LATHE_OP_MATMUL, in, 2) : lathe_imp_node(c, LATHE_OP_MATMUL, in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_A, lathe_imp_attr_int(c, "transA", 0) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_B, lathe_imp_attr_int(c, "transB", 0) != 0);
    lathe_value_id y = lathe_imp_end(c, n);
    if (alpha != 1) {
        const lathe_value_id scaled[2] = {y, lathe_imp_scalar(c, lathe_imp_dtype(c, y), alpha)};
        lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_MUL, scaled, 2));
    }
}

LATHE_IMPORTER(ms_fused_gemm) {
    static const struct {
        const char *name;
        enum lathe_op op;
        double alpha, beta;
        bool has_alpha, has_beta;
    } activations[] = {
        {"Relu", LATHE_OP_RELU, 0, 0, false, false},
        {"Tanh", LATHE_OP_TANH, 0, 0, false, false},
        {"Sigmoid", LATHE_OP_SIGMOID, 0, 0, false, false},
        {"LeakyRelu", LATHE_OP_LEAKY_RELU, 0.01f, 0, true, false},
        {"Elu", LATHE_OP_ELU, 1, 0, true, false},
        {"ThresholdedRelu", LATHE_OP_THRESHOLDED_RELU, 1, 0, true, false},
        {"HardSigmoid", LATHE_OP_HARD_SIGMOID, 0.2f, 0.5, true, true},
        {"Softplus", LATHE_OP_SOFTPLUS, 0, 0, false, false},
        {"Softsign", LATHE_OP_SOFTSIGN, 0, 0, false, false},
    };
    const char *name = lathe_imp_attr_string(c, "activation", "");
    size_t i = 0, count = sizeof activations / sizeof *activations;
    while (i < count && strcmp(name, activations[i].name))
        i++;
    if (i == count && *name)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "activation '%s' is not supported", name);
    lathe_imp_ignore_attr(c, "activation_gamma");
    lathe_node_id n = *name ? lathe_imp_node(c, LATHE_OP_GEMM, c->in, c->n_in)
                            : lathe_imp_result(c, 0, LATHE_OP_GEMM, c->in, c->n_in);
    lathe_imp_float(c, n, LATHE_ATTR_ALPHA, lathe_imp_attr_float(c, "alpha", 1));
    lathe_imp_float(c, n, LATHE_ATTR_BETA, lathe_imp_attr_float(c, "beta", 1));
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_A, lathe_imp_attr_int(c, "transA", 0) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_B, lathe_imp_attr_int(c, "transB", 0) != 0);
    lathe_value_id y = lathe_imp_end(c, n);
    double alpha = lathe_imp_attr_float(c, "activation_alpha", i < count ? activations[i].alpha : 0);
    double beta = lathe_imp_attr_float(c, "activation_beta", i < count ? activations[i].beta : 0);
    if (i == count)
        return;
    n = lathe_imp_result(c, 0, activations[i].op, &y, 1);
    if (activations[i].has_alpha)
        lathe_imp_float(c, n, LATHE_ATTR_ALPHA, alpha);
    if (activations[i].has_beta)
        lathe_imp_float(c, n, LATHE_ATTR_BETA, beta);
    lathe_imp_end(c, n);
}

/* ---- attention */

/* The three column ranges of a packed projection. */
static void split_projection(struct lathe_import *c, lathe_value_id packed, struct lathe_imp_attention *a) {
    uint32_t count;
    const int64_t *sizes = lathe_imp_attr_ints(c, "qkv_hidden_sizes", &count);
    int64_t width = lathe_imp_dim_const(c, packed, 2, "the width of its weights"), parts[3];
    if (c->status != LATHE_OK)
        return;
    for (int i = 0; i < 3; i++)
        parts[i] = count == 3 ? sizes[i] : width / 3;
    int64_t sum = 0;
    bool fits = (!count || count == 3) && parts[0] > 0 && parts[1] > 0 && parts[2] > 0;
    for (int i = 0; fits && i < 3; i++)
        fits = lathe_add_i64(sum, parts[i], &sum);
    if (!fits || sum != width) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE,
                            "its weights have %lld columns, which query, key and value do not share", (long long)width);
        return;
    }
    lathe_value_id *const out[3] = {&a->q, &a->k, &a->v};
    int64_t at = 0;
    for (int i = 0; i < 3; i++, at += parts[i - 1])
        *out[i] = lathe_imp_slice(c, packed, 2, lathe_imp_number(c, at), lathe_imp_number(c, at + parts[i]));
}

/* Attributes that all attentions of the domain share. */
static void read_attention(struct lathe_import *c, struct lathe_imp_attention *a) {
    a->heads = lathe_imp_attr_int(c, "num_heads", 0);
    a->scale = lathe_imp_attr_float(c, "scale", 0);
    a->filter = lathe_imp_attr_float(c, "mask_filter_value", -10000);
    a->causal = lathe_imp_attr_int(c, "unidirectional", 0) != 0;
    if (lathe_imp_attr_int(c, "do_rotary", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "do_rotary is not supported");
    lathe_imp_ignore_attr(c, "rotary_embedding_dim");
    if (lathe_imp_attr_int(c, "past_present_share_buffer", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "past_present_share_buffer is not supported");
    if (a->heads < 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "num_heads is %lld; it must be at least 1", (long long)a->heads);
}

static void refuse_operand(struct lathe_import *c, uint32_t operand, const char *what) {
    if (lathe_imp_has(c, operand))
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "operand %u (%s) is not supported", operand, what);
}

LATHE_IMPORTER(ms_attention) {
    struct lathe_imp_attention a = {.mask_index = lathe_imp_in(c, 3), .bias = lathe_imp_in(c, 5)};
    read_attention(c, &a);
    refuse_operand(c, 4, "past");
    refuse_operand(c, 6, "past_sequence_length");
    lathe_value_id packed = lathe_imp_binary(c, LATHE_OP_MATMUL, c->in[0], c->in[1]);
    split_projection(c, add_if(c, packed, lathe_imp_in(c, 2)), &a);
    lathe_imp_plain_attention(c, &a);
}

LATHE_IMPORTER(ms_qattention) {
    struct lathe_imp_attention a = {.mask_index = lathe_imp_in(c, 5), .bias = LATHE_NONE};
    read_attention(c, &a);
    refuse_operand(c, 8, "past");
    lathe_value_id packed =
        lathe_imp_integer_product(c, c->in[0], c->in[1], lathe_imp_in(c, 6), lathe_imp_in(c, 7), c->in[3], c->in[4]);
    split_projection(c, add_if(c, packed, c->in[2]), &a);
    lathe_imp_plain_attention(c, &a);
}

/* A part of [B,S,N,P,D] as [B,S,N*D]. */
static lathe_value_id packed_part(struct lathe_import *c, lathe_value_id x, int part) {
    lathe_value_id v = lathe_imp_slice(c, x, 3, lathe_imp_number(c, part), lathe_imp_number(c, part + 1));
    lathe_dim width = lathe_dim_mul(c->g->dims, lathe_imp_dim(c, x, 2), lathe_imp_dim(c, x, 4));
    const lathe_dim dims[3] = {lathe_imp_dim(c, x, 0), lathe_imp_dim(c, x, 1), width};
    return lathe_imp_view(c, v, 3, dims);
}

static lathe_value_id add_bias_part(struct lathe_import *c, lathe_value_id x, int64_t *at) {
    int64_t width = lathe_imp_dim_const(c, x, 2, "the width of an operand");
    if (!lathe_imp_has(c, 3) || c->status != LATHE_OK)
        return x;
    lathe_value_id part = lathe_imp_slice(c, c->in[3], 0, lathe_imp_number(c, *at), lathe_imp_number(c, *at + width));
    *at += width;
    return lathe_imp_binary(c, LATHE_OP_ADD, x, part);
}

LATHE_IMPORTER(ms_multi_head_attention) {
    struct lathe_imp_attention a = {.mask_index = lathe_imp_in(c, 4), .bias = lathe_imp_in(c, 5)};
    read_attention(c, &a);
    for (uint32_t i = 6; i < 10; i++)
        refuse_operand(c, i, "past state");
    if (c->status != LATHE_OK)
        return;
    a.q = c->in[0];
    a.k = lathe_imp_in(c, 1);
    a.v = lathe_imp_in(c, 2);
    if (lathe_imp_rank(c, a.q) == 5) {
        a.k = packed_part(c, c->in[0], 1);
        a.v = packed_part(c, c->in[0], 2);
        a.q = packed_part(c, c->in[0], 0);
    } else if (a.k != LATHE_NONE && lathe_imp_rank(c, a.k) == 5) {
        a.v = packed_part(c, c->in[1], 1);
        a.k = packed_part(c, c->in[1], 0);
    }
    if (a.k == LATHE_NONE || a.v == LATHE_NONE) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "key or value is absent");
        return;
    }
    a.k_by_head = lathe_imp_rank(c, a.k) == 4;
    a.v_by_head = lathe_imp_rank(c, a.v) == 4;
    int64_t at = 0;
    a.q = add_bias_part(c, a.q, &at);
    if (!a.k_by_head)
        a.k = add_bias_part(c, a.k, &at);
    if (!a.v_by_head)
        a.v = add_bias_part(c, a.v, &at);
    lathe_imp_plain_attention(c, &a);
}
