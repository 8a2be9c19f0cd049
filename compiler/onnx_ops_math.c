/* Elementwise operators, products, constants, casts. */
#include "onnx_import.h"

#include <string.h>

/* Operators that need nothing but their name. */
static enum lathe_op op_named(struct lathe_import *c) {
    static const struct {
        const char *onnx;
        enum lathe_op op;
    } names[] = {
        {"Abs", LATHE_OP_ABS},
        {"Acos", LATHE_OP_ACOS},
        {"Acosh", LATHE_OP_ACOSH},
        {"Add", LATHE_OP_ADD},
        {"And", LATHE_OP_AND},
        {"ArgMax", LATHE_OP_ARG_MAX},
        {"ArgMin", LATHE_OP_ARG_MIN},
        {"Asin", LATHE_OP_ASIN},
        {"Asinh", LATHE_OP_ASINH},
        {"Atan", LATHE_OP_ATAN},
        {"Atanh", LATHE_OP_ATANH},
        {"BitwiseAnd", LATHE_OP_BIT_AND},
        {"BitwiseNot", LATHE_OP_BIT_NOT},
        {"BitwiseOr", LATHE_OP_BIT_OR},
        {"BitwiseXor", LATHE_OP_BIT_XOR},
        {"Ceil", LATHE_OP_CEIL},
        {"Celu", LATHE_OP_CELU},
        {"Cos", LATHE_OP_COS},
        {"Cosh", LATHE_OP_COSH},
        {"Div", LATHE_OP_DIV},
        {"Elu", LATHE_OP_ELU},
        {"Equal", LATHE_OP_EQUAL},
        {"Erf", LATHE_OP_ERF},
        {"Exp", LATHE_OP_EXP},
        {"Floor", LATHE_OP_FLOOR},
        {"Greater", LATHE_OP_GREATER},
        {"GreaterOrEqual", LATHE_OP_GREATER_EQUAL},
        {"HardSigmoid", LATHE_OP_HARD_SIGMOID},
        {"HardSwish", LATHE_OP_HARD_SWISH},
        {"IsNaN", LATHE_OP_ISNAN},
        {"LeakyRelu", LATHE_OP_LEAKY_RELU},
        {"Less", LATHE_OP_LESS},
        {"LessOrEqual", LATHE_OP_LESS_EQUAL},
        {"Log", LATHE_OP_LOG},
        {"MatMul", LATHE_OP_MATMUL},
        {"Max", LATHE_OP_MAX},
        {"Mean", LATHE_OP_MEAN},
        {"Min", LATHE_OP_MIN},
        {"Mish", LATHE_OP_MISH},
        {"Mul", LATHE_OP_MUL},
        {"Neg", LATHE_OP_NEG},
        {"Not", LATHE_OP_NOT},
        {"Or", LATHE_OP_OR},
        {"PRelu", LATHE_OP_PRELU},
        {"Pow", LATHE_OP_POW},
        {"Reciprocal", LATHE_OP_RECIPROCAL},
        {"Relu", LATHE_OP_RELU},
        {"Round", LATHE_OP_ROUND},
        {"Selu", LATHE_OP_SELU},
        {"Sigmoid", LATHE_OP_SIGMOID},
        {"Sign", LATHE_OP_SIGN},
        {"Sin", LATHE_OP_SIN},
        {"Sinh", LATHE_OP_SINH},
        {"Softplus", LATHE_OP_SOFTPLUS},
        {"Softsign", LATHE_OP_SOFTSIGN},
        {"Sqrt", LATHE_OP_SQRT},
        {"Sub", LATHE_OP_SUB},
        {"Sum", LATHE_OP_SUM},
        {"Tan", LATHE_OP_TAN},
        {"Tanh", LATHE_OP_TANH},
        {"ThresholdedRelu", LATHE_OP_THRESHOLDED_RELU},
        {"Xor", LATHE_OP_XOR},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].onnx, c->node->op_type))
            return names[i].op;
    lathe_imp_node_fail(c, LATHE_MSG_BUG, "its row in onnx_ops.def has the wrong importer");
    return LATHE_OP_NEG;
}

LATHE_IMPORTER(unary) {
    lathe_imp_end(c, lathe_imp_result(c, 0, op_named(c), c->in, 1));
}

LATHE_IMPORTER(binary) {
    lathe_imp_end(c, lathe_imp_result(c, 0, op_named(c), c->in, 2));
}

LATHE_IMPORTER(variadic) {
    for (uint32_t i = 0; i < c->n_in; i++)
        if (!lathe_imp_has(c, i))
            lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand %u is absent", i);
    if (c->n_in == 1)
        lathe_imp_bind(c, 0, c->in[0]);
    else
        lathe_imp_end(c, lathe_imp_result(c, 0, op_named(c), c->in, c->n_in));
}

LATHE_IMPORTER(identity) {
    lathe_imp_bind(c, 0, c->in[0]);
}

/* Operators with alpha, beta or gamma; their defaults as f32, as the text of ONNX has them. */
LATHE_IMPORTER(activation) {
    enum lathe_op op = op_named(c);
    double alpha = 1, beta = 0;
    bool has_alpha = true, has_beta = false;
    switch (op) {
    case LATHE_OP_HARD_SIGMOID:
        alpha = 0.2f;
        beta = 0.5;
        has_beta = true;
        break;
    case LATHE_OP_LEAKY_RELU:
        alpha = 0.01f;
        break;
    case LATHE_OP_SELU:
        alpha = 1.67326319217681884765625;
        beta = lathe_imp_attr_float(c, "gamma", 1.05070102214813232421875);
        break;
    case LATHE_OP_HARD_SWISH:
    case LATHE_OP_MISH:
        has_alpha = false;
        break;
    default:
        break;
    }
    lathe_node_id n = lathe_imp_result(c, 0, op, c->in, 1);
    if (has_alpha)
        lathe_imp_float(c, n, LATHE_ATTR_ALPHA, lathe_imp_attr_float(c, "alpha", alpha));
    if (has_beta)
        beta = lathe_imp_attr_float(c, "beta", beta);
    if (has_beta || op == LATHE_OP_SELU)
        lathe_imp_float(c, n, LATHE_ATTR_BETA, beta);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(shrink) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_SHRINK, c->in, 1);
    lathe_imp_float(c, n, LATHE_ATTR_ALPHA, lathe_imp_attr_float(c, "lambd", 0.5));
    lathe_imp_float(c, n, LATHE_ATTR_BETA, lathe_imp_attr_float(c, "bias", 0));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(gelu) {
    const char *form = lathe_imp_attr_string(c, "approximate", "none");
    bool is_tanh = !strcmp(form, "tanh");
    if (!is_tanh && strcmp(form, "none"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "approximate is '%s'; it may be none or tanh", form);
    lathe_imp_end(c, lathe_imp_result(c, 0, is_tanh ? LATHE_OP_GELU_TANH : LATHE_OP_GELU, c->in, 1));
}

/* x * sigmoid(alpha x) */
static lathe_node_id swish_node(struct lathe_import *c, lathe_value_id x, double alpha, bool is_result) {
    enum lathe_op op = alpha == 1 ? LATHE_OP_SILU : LATHE_OP_QUICK_GELU;
    lathe_node_id n = is_result ? lathe_imp_result(c, 0, op, &x, 1) : lathe_imp_node(c, op, &x, 1);
    if (alpha != 1)
        lathe_imp_float(c, n, LATHE_ATTR_ALPHA, alpha);
    return n;
}

LATHE_IMPORTER(swish) {
    lathe_imp_end(c, swish_node(c, c->in[0], lathe_imp_attr_float(c, "alpha", 1), true));
}

LATHE_IMPORTER(swiglu) {
    lathe_value_id gate = lathe_imp_end(c, swish_node(c, c->in[0], lathe_imp_attr_float(c, "alpha", 1), false));
    const lathe_value_id in[2] = {gate, c->in[1]};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_MUL, in, 2));
}

LATHE_IMPORTER(is_inf) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_ISINF, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_DETECT_POSITIVE, lathe_imp_attr_int(c, "detect_positive", 1) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_DETECT_NEGATIVE, lathe_imp_attr_int(c, "detect_negative", 1) != 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(bit_shift) {
    const char *direction = lathe_imp_attr_string(c, "direction", "");
    bool right = !strcmp(direction, "RIGHT");
    if (!right && strcmp(direction, "LEFT"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "direction is '%s'; it must be LEFT or RIGHT", direction);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_BIT_SHIFT, c->in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_MODE, right);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(mod) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_MOD, c->in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_FMOD, lathe_imp_attr_int(c, "fmod", 0) != 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(where) {
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_WHERE, c->in, 3));
}

/* Up to opset 10 the bounds are attributes, and absent ones are the ends of f32. */
LATHE_IMPORTER(clip) {
    lathe_value_id in[3] = {c->in[0], LATHE_NONE, LATHE_NONE};
    if (c->version < 11) {
        if (c->n_in > 1)
            lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "before opset 11 it has one operand");
        enum lathe_dtype dtype = lathe_imp_dtype(c, in[0]);
        if (lathe_imp_has_attr(c, "min"))
            in[1] = lathe_imp_scalar(c, dtype, lathe_imp_attr_float(c, "min", 0));
        if (lathe_imp_has_attr(c, "max"))
            in[2] = lathe_imp_scalar(c, dtype, lathe_imp_attr_float(c, "max", 0));
    } else {
        in[1] = lathe_imp_in(c, 1);
        in[2] = lathe_imp_in(c, 2);
    }
    if (in[1] == LATHE_NONE && in[2] == LATHE_NONE) {
        lathe_imp_bind(c, 0, in[0]);
        return;
    }
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_CLIP, in, in[2] == LATHE_NONE ? 2 : 3));
}

/* Only types of at most 8 bits that this version does not have saturate or round in another way. */
static void import_cast(struct lathe_import *c, enum lathe_dtype to) {
    lathe_imp_ignore_attr(c, "saturate");
    lathe_imp_ignore_attr(c, "round_mode");
    if (c->status == LATHE_OK && lathe_imp_dtype(c, c->in[0]) == to) {
        lathe_imp_bind(c, 0, c->in[0]);
        return;
    }
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_CAST, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_TO, to);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(cast) {
    int64_t to = lathe_imp_attr_int(c, "to", 0);
    import_cast(c, lathe_imp_element_type(c, to, "the result of node", c->node_name));
}

LATHE_IMPORTER(cast_like) {
    import_cast(c, lathe_imp_dtype(c, c->in[1]));
}

/* Inference: the input goes through. The mask is all true. */
LATHE_IMPORTER(dropout) {
    int64_t training = 0;
    lathe_imp_ignore_attr(c, "ratio");
    lathe_imp_ignore_attr(c, "seed");
    if (lathe_imp_has(c, 2)) {
        double ratio = -1;
        if (!lathe_imp_scalar_known(c, c->in[2], &training))
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "training_mode depends on data");
        if (training && lathe_imp_has(c, 1) && lathe_constant_uniform(c->g, c->in[1], &ratio) && ratio == 0)
            training = 0;
        if (training)
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "training_mode is true; only inference is supported");
    }
    lathe_imp_bind(c, 0, c->in[0]);
    if (lathe_imp_wants(c, 1)) {
        const lathe_value_id in[2] = {lathe_imp_unary(c, LATHE_OP_SHAPE, c->in[0]), lathe_imp_scalar(c, LATHE_BOOL, 1)};
        lathe_imp_end(c, lathe_imp_result(c, 1, LATHE_OP_FILL, in, 2));
    }
}

LATHE_IMPORTER(gemm) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_GEMM, c->in, c->n_in);
    lathe_imp_float(c, n, LATHE_ATTR_ALPHA, lathe_imp_attr_float(c, "alpha", 1));
    lathe_imp_float(c, n, LATHE_ATTR_BETA, lathe_imp_attr_float(c, "beta", 1));
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_A, lathe_imp_attr_int(c, "transA", 0) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_TRANS_B, lathe_imp_attr_int(c, "transB", 0) != 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(einsum) {
    const char *equation = lathe_imp_attr_string(c, "equation", "");
    int64_t characters[256];
    uint32_t count = 0;
    for (const char *p = equation; *p; p++) {
        if (*p == ' ')
            continue;
        if (count == 256) {
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "its equation is longer than 256 characters");
            return;
        }
        characters[count++] = (uint8_t)*p;
    }
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_EINSUM, c->in, c->n_in);
    lathe_imp_set_ints(c, n, LATHE_ATTR_EQUATION, characters, count);
    lathe_imp_end(c, n);
}

/* ---- constants */
static lathe_value_id list_constant(struct lathe_import *c, enum lathe_dtype dtype, int rank, size_t count,
                                    const void *data) {
    const int64_t dims = (int64_t)count;
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const char *name = lathe_arena_format(c->scratch, "%s%s", lathe_scope_prefix(c->scope),
                                          lathe_imp_wants(c, 0) ? c->node->output[0] : "");
    lathe_value_id v =
        name ? lathe_graph_add_constant_copy(c->g, name, dtype, rank, rank ? &dims : NULL, data ? data : "")
             : LATHE_NONE;
    if (v == LATHE_NONE)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
    return v;
}

LATHE_IMPORTER(constant) {
    static const char *const keys[] = {"value",      "value_float",  "value_floats",  "value_int",
                                       "value_ints", "value_string", "value_strings", "sparse_value"};
    const LatheOnnx__Attribute *a = NULL;
    int which = -1, found = 0;
    for (int i = 0; i < 8; i++) {
        const LatheOnnx__Attribute *one = lathe_imp_attr(c, keys[i]);
        if (one) {
            a = one;
            which = i;
            found++;
        }
    }
    if (found != 1) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it needs one of value, value_float(s), value_int(s), and has %d",
                            found);
        return;
    }
    lathe_value_id v = LATHE_NONE;
    switch (which) {
    case 0:
        if (!a->t) {
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "attribute 'value' is not a tensor");
            return;
        }
        v = lathe_imp_tensor(c, a->t, c->n_out && lathe_imp_wants(c, 0) ? c->node->output[0] : c->node_name);
        break;
    case 1:
        v = list_constant(c, LATHE_F32, 0, 1, &a->f);
        break;
    case 2:
        v = list_constant(c, LATHE_F32, 1, a->n_floats, a->floats);
        break;
    case 3:
        v = list_constant(c, LATHE_I64, 0, 1, &a->i);
        break;
    case 4:
        v = list_constant(c, LATHE_I64, 1, a->n_ints, a->ints);
        break;
    case 7:
        lathe_imp_node_fail(c, LATHE_MSG_TYPE_UNSUPPORTED,
                            "its value is a sparse tensor; only dense ones are supported");
        break;
    default:
        lathe_imp_node_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "its value is a string; only numeric tensors are supported");
        break;
    }
    lathe_imp_bind(c, 0, v);
}

LATHE_IMPORTER(constant_of_shape) {
    const LatheOnnx__Attribute *a = lathe_imp_attr(c, "value");
    lathe_value_id value;
    if (a && a->t) {
        value = lathe_imp_tensor(c, a->t, lathe_arena_format(c->scratch, "%s/value", c->node_name));
        if (c->status == LATHE_OK && lathe_value_count(c->g, value) != 1)
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "attribute 'value' has %lld elements; it must have one",
                                (long long)lathe_value_count(c->g, value));
    } else {
        value = lathe_imp_scalar(c, LATHE_F32, 0);
    }
    const lathe_value_id in[2] = {c->in[0], value};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_FILL, in, 2));
}

LATHE_IMPORTER(eye_like) {
    int64_t dtype = lathe_imp_attr_int(c, "dtype", 0);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_EYE_LIKE, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_TO,
                  dtype ? (int64_t)lathe_imp_element_type(c, dtype, "the result of node", c->node_name)
                        : (int64_t)lathe_imp_dtype(c, c->in[0]));
    lathe_imp_int(c, n, LATHE_ATTR_K, lathe_imp_attr_int(c, "k", 0));
    lathe_imp_end(c, n);
}
