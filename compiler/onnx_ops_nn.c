/* Normalisation, convolution and pooling. */
#include "onnx_import.h"

#include <string.h>

/* ---- layer and RMS norm */

/* True when v has the elements of the last axes of x from `axis` on, perhaps behind leading ones. */
static bool has_normalized_shape(struct lathe_import *c, lathe_value_id v, lathe_value_id x, int axis) {
    int rank = lathe_imp_rank(c, v), tail = lathe_imp_rank(c, x) - axis;
    int64_t one;
    for (int i = 0; i < rank - tail; i++)
        if (!lathe_dim_is_const(c->g->dims, lathe_imp_dim(c, v, i), &one) || one != 1)
            return false;
    if (rank < tail)
        return false;
    for (int i = 1; i <= tail; i++)
        if (lathe_imp_dim(c, v, -i) != lathe_imp_dim(c, x, -i))
            return false;
    return true;
}

static lathe_value_id drop_leading_ones(struct lathe_import *c, lathe_value_id v, int tail) {
    lathe_dim dims[LATHE_MAX_RANK];
    if (lathe_imp_rank(c, v) == tail)
        return v;
    for (int i = 0; i < tail; i++)
        dims[i] = lathe_imp_dim(c, v, i - tail);
    return lathe_imp_view(c, v, tail, dims);
}

void lathe_imp_normalize(struct lathe_import *c, bool rms, lathe_value_id x, lathe_value_id gamma, lathe_value_id beta,
                         int axis, double epsilon, uint32_t count) {
    if (c->status != LATHE_OK)
        return;
    int tail = lathe_imp_rank(c, x) - axis;
    bool plain_gamma = gamma == LATHE_NONE || has_normalized_shape(c, gamma, x, axis);
    bool plain_beta = beta == LATHE_NONE || (plain_gamma && has_normalized_shape(c, beta, x, axis));
    /* The result has the type of x when gamma is wider, as exporters of mixed precision write it. */
    if (plain_gamma && gamma != LATHE_NONE && lathe_imp_dtype(c, gamma) != lathe_imp_dtype(c, x))
        plain_gamma = plain_beta = false;
    lathe_value_id in[3] = {x, LATHE_NONE, LATHE_NONE};
    if (plain_gamma && gamma != LATHE_NONE)
        in[1] = drop_leading_ones(c, gamma, tail);
    if (plain_beta && beta != LATHE_NONE)
        in[2] = drop_leading_ones(c, beta, tail);
    uint32_t n_in = in[2] != LATHE_NONE ? 3 : in[1] != LATHE_NONE ? 2 : 1;
    bool rest = (!plain_gamma && gamma != LATHE_NONE) || (!plain_beta && beta != LATHE_NONE);
    enum lathe_op op = rms ? LATHE_OP_RMS_NORM : LATHE_OP_LAYER_NORM;
    bool others = count > 1 && (lathe_imp_wants(c, 1) || lathe_imp_wants(c, 2));
    if (rest && others) {
        lathe_imp_node_fail(
            c, LATHE_MSG_OPERAND_UNSUPPORTED,
            "scale and bias have not the shape of the normalised axes, and mean or deviation are wanted");
        return;
    }
    lathe_node_id n = rest     ? lathe_imp_node(c, op, in, n_in)
                      : others ? lathe_imp_results(c, count, op, in, n_in)
                               : lathe_imp_result(c, 0, op, in, n_in);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_float(c, n, LATHE_ATTR_EPSILON, epsilon);
    lathe_value_id y = lathe_imp_end(c, n);
    if (!rest)
        return;
    if (!plain_gamma && gamma != LATHE_NONE) {
        y = lathe_imp_cast(c, y, lathe_imp_dtype(c, gamma));
        const lathe_value_id pair[2] = {y, gamma};
        y = lathe_imp_end(c, beta == LATHE_NONE ? lathe_imp_result(c, 0, LATHE_OP_MUL, pair, 2)
                                                : lathe_imp_node(c, LATHE_OP_MUL, pair, 2));
    }
    if (beta != LATHE_NONE) {
        const lathe_value_id pair[2] = {y, beta};
        lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_ADD, pair, 2));
    }
}

static int norm_axis(struct lathe_import *c) {
    int64_t stash = lathe_imp_attr_int(c, "stash_type", 1);
    if (stash != LATHE_F32 && stash != LATHE_BF16 && stash != LATHE_F64 && stash != LATHE_F16)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "stash_type is %lld", (long long)stash);
    return lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", -1), lathe_imp_rank(c, c->in[0]));
}

LATHE_IMPORTER(layer_norm) {
    lathe_imp_normalize(c, false, c->in[0], lathe_imp_in(c, 1), lathe_imp_in(c, 2), norm_axis(c),
                        lathe_imp_attr_float(c, "epsilon", 1e-5f), 3);
}

LATHE_IMPORTER(rms_norm) {
    lathe_imp_normalize(c, true, c->in[0], c->in[1], LATHE_NONE, norm_axis(c),
                        lathe_imp_attr_float(c, "epsilon", 1e-5f), 1);
}

LATHE_IMPORTER(simplified_layer_norm) {
    lathe_imp_normalize(c, true, c->in[0], c->in[1], LATHE_NONE, norm_axis(c),
                        lathe_imp_attr_float(c, "epsilon", 1e-5f), 1);
}

/* ---- other norms */
LATHE_IMPORTER(batch_norm) {
    lathe_imp_ignore_attr(c, "momentum");
    if (lathe_imp_attr_int(c, "training_mode", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "training_mode is 1; only inference is supported");
    if (lathe_imp_attr_int(c, "spatial", 1) != 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "spatial is 0; only 1 is supported");
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_BATCH_NORM, c->in, 5);
    lathe_imp_float(c, n, LATHE_ATTR_EPSILON, lathe_imp_attr_float(c, "epsilon", 1e-5f));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(instance_norm) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_INSTANCE_NORM, c->in, 3);
    lathe_imp_float(c, n, LATHE_ATTR_EPSILON, lathe_imp_attr_float(c, "epsilon", 1e-5f));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(group_norm) {
    lathe_imp_ignore_attr(c, "stash_type");
    int64_t groups = lathe_imp_attr_int(c, "num_groups", 0);
    if (groups < 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "num_groups is %lld; it must be at least 1", (long long)groups);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_GROUP_NORM, c->in, 3);
    lathe_imp_int(c, n, LATHE_ATTR_GROUP, groups);
    lathe_imp_float(c, n, LATHE_ATTR_EPSILON, lathe_imp_attr_float(c, "epsilon", 1e-5f));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(lp_normalize) {
    int64_t p = lathe_imp_attr_int(c, "p", 2);
    if (p != 1 && p != 2)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "p is %lld; it may be 1 or 2", (long long)p);
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", -1), lathe_imp_rank(c, c->in[0]));
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_LP_NORMALIZE, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_int(c, n, LATHE_ATTR_K, p);
    lathe_imp_end(c, n);
}

static lathe_value_id mean_over(struct lathe_import *c, lathe_value_id x, const int64_t *axes, uint32_t count) {
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_REDUCE_MEAN, &x, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, axes, count);
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, 1);
    return lathe_imp_end(c, n);
}

/* (x - mean) / (deviation + 1e-9), as the function of the standard has it. */
LATHE_IMPORTER(mean_variance_norm) {
    static const int64_t usual[3] = {0, 2, 3};
    uint32_t count, n_list = 0;
    const int64_t *axes = lathe_imp_attr_ints(c, "axes", &count);
    bool marked[LATHE_MAX_RANK] = {false};
    int64_t list[LATHE_MAX_RANK];
    lathe_value_id x = c->in[0];
    int rank = lathe_imp_rank(c, x);
    if (!axes) {
        axes = usual;
        count = 3;
    }
    for (uint32_t i = 0; i < count; i++)
        marked[lathe_imp_axis(c, axes[i], rank)] = true;
    for (int i = 0; i < rank && c->status == LATHE_OK; i++)
        if (marked[i])
            list[n_list++] = i;
    lathe_value_id centred = lathe_imp_binary(c, LATHE_OP_SUB, x, mean_over(c, x, list, n_list));
    lathe_value_id square = lathe_imp_binary(c, LATHE_OP_MUL, centred, centred);
    lathe_value_id deviation = lathe_imp_unary(c, LATHE_OP_SQRT, mean_over(c, square, list, n_list));
    lathe_value_id divisor =
        lathe_imp_binary(c, LATHE_OP_ADD, deviation, lathe_imp_scalar(c, lathe_imp_dtype(c, x), 1e-9));
    const lathe_value_id in[2] = {centred, divisor};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_DIV, in, 2));
}

/* ---- windows */
#define MAX_AXES (LATHE_MAX_RANK - 2)

struct window {
    int axes;
    int64_t kernel[MAX_AXES], strides[MAX_AXES], dilations[MAX_AXES], pads[2 * MAX_AXES];
};

static void read_list(struct lathe_import *c, const char *name, int count, int64_t *out, int64_t least) {
    uint32_t n;
    const int64_t *list = lathe_imp_attr_ints(c, name, &n);
    if (list && n != (uint32_t)count)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "%s has %u entries; it needs %d", name, n, count);
    for (int i = 0; list && i < count && c->status == LATHE_OK; i++) {
        out[i] = list[i];
        if (list[i] < least || list[i] > INT32_MAX)
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "%s holds %lld; supported are %lld to 2^31-1", name,
                                (long long)list[i], (long long)least);
    }
}

/* The padding that auto_pad means; it follows from the sizes. */
static void auto_padding(struct lathe_import *c, struct window *w, const char *mode) {
    bool upper = !strcmp(mode, "SAME_UPPER");
    if (!strcmp(mode, "VALID") || !strcmp(mode, "NOTSET"))
        return;
    if (!upper && strcmp(mode, "SAME_LOWER")) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "auto_pad is '%s'", mode);
        return;
    }
    for (int i = 0; i < w->axes; i++) {
        int64_t size = lathe_imp_dim_const(c, c->in[0], 2 + i, "a spatial size with auto_pad");
        int64_t out = (size + w->strides[i] - 1) / w->strides[i];
        int64_t total = (out - 1) * w->strides[i] + (w->kernel[i] - 1) * w->dilations[i] + 1 - size;
        if (total < 0)
            total = 0;
        w->pads[i] = upper ? total / 2 : total - total / 2;
        w->pads[w->axes + i] = total - w->pads[i];
    }
}

static bool read_window(struct lathe_import *c, struct window *w, lathe_value_id weight) {
    w->axes = lathe_imp_rank(c, c->in[0]) - 2;
    if (w->axes < 1 || w->axes > 3) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its operand has rank %d; supported are 3 to 5",
                            w->axes + 2);
        return false;
    }
    for (int i = 0; i < w->axes; i++) {
        w->strides[i] = w->dilations[i] = w->kernel[i] = 1;
        w->pads[i] = w->pads[w->axes + i] = 0;
        if (weight != LATHE_NONE)
            w->kernel[i] = lathe_imp_dim_const(c, weight, 2 + i, "a kernel size");
    }
    read_list(c, "kernel_shape", w->axes, w->kernel, 1);
    read_list(c, "strides", w->axes, w->strides, 1);
    read_list(c, "dilations", w->axes, w->dilations, 1);
    read_list(c, "pads", 2 * w->axes, w->pads, 0);
    const char *mode = lathe_imp_attr_string(c, "auto_pad", "NOTSET");
    if (c->status == LATHE_OK)
        auto_padding(c, w, mode);
    return c->status == LATHE_OK;
}

static void set_window(struct lathe_import *c, lathe_node_id n, const struct window *w) {
    uint32_t axes = (uint32_t)w->axes;
    lathe_imp_set_ints(c, n, LATHE_ATTR_KERNEL_SHAPE, w->kernel, axes);
    lathe_imp_set_ints(c, n, LATHE_ATTR_STRIDES, w->strides, axes);
    lathe_imp_set_ints(c, n, LATHE_ATTR_DILATIONS, w->dilations, axes);
    lathe_imp_set_ints(c, n, LATHE_ATTR_PADS, w->pads, 2 * axes);
}

LATHE_IMPORTER(conv) {
    struct window w;
    if (!read_window(c, &w, c->in[1]))
        return;
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_CONV, c->in, c->n_in);
    set_window(c, n, &w);
    lathe_imp_int(c, n, LATHE_ATTR_GROUP, lathe_imp_attr_int(c, "group", 1));
    lathe_imp_end(c, n);
}

/* Sums of products of 8-bit integers are exact in f64. The padding is the zero point, which the subtraction makes 0. */
LATHE_IMPORTER(conv_integer) {
    struct window w;
    lathe_value_id in[2];
    if (!read_window(c, &w, c->in[1]))
        return;
    for (uint32_t k = 0; k < 2; k++) {
        in[k] = lathe_imp_cast(c, c->in[k], LATHE_F64);
        if (!lathe_imp_has(c, 2 + k))
            continue;
        lathe_value_id zero = lathe_imp_cast(c, lathe_imp_in(c, 2 + k), LATHE_F64);
        int rank = lathe_imp_rank(c, c->in[1]);
        if (k == 1 && lathe_imp_rank(c, zero) == 1) {
            /* one a filter */
            lathe_dim dims[LATHE_MAX_RANK] = {lathe_imp_dim(c, zero, 0)};
            for (int i = 1; i < rank; i++)
                dims[i] = lathe_imp_number(c, 1);
            zero = lathe_imp_view(c, zero, rank, dims);
        }
        in[k] = lathe_imp_binary(c, LATHE_OP_SUB, in[k], zero);
    }
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_CONV, in, 2);
    set_window(c, n, &w);
    lathe_imp_int(c, n, LATHE_ATTR_GROUP, lathe_imp_attr_int(c, "group", 1));
    lathe_imp_bind(c, 0, lathe_imp_cast(c, lathe_imp_end(c, n), LATHE_I32));
}

LATHE_IMPORTER(pool) {
    bool max = !strcmp(c->node->op_type, "MaxPool"), average = !strcmp(c->node->op_type, "AveragePool");
    struct window w;
    if (!lathe_imp_has_attr(c, "kernel_shape"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has no attribute 'kernel_shape'");
    if (!read_window(c, &w, LATHE_NONE))
        return;
    lathe_node_id n = max ? lathe_imp_results(c, 2, LATHE_OP_MAX_POOL, c->in, 1)
                          : lathe_imp_result(c, 0, average ? LATHE_OP_AVERAGE_POOL : LATHE_OP_LP_POOL, c->in, 1);
    set_window(c, n, &w);
    lathe_imp_int(c, n, LATHE_ATTR_ROUND, lathe_imp_attr_int(c, "ceil_mode", 0) != 0);
    if (max)
        lathe_imp_int(c, n, LATHE_ATTR_STORAGE_ORDER, lathe_imp_attr_int(c, "storage_order", 0) != 0);
    else if (average)
        lathe_imp_int(c, n, LATHE_ATTR_COUNT_INCLUDE_PAD, lathe_imp_attr_int(c, "count_include_pad", 0) != 0);
    else
        lathe_imp_int(c, n, LATHE_ATTR_K, lathe_imp_attr_int(c, "p", 2));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(global_pool) {
    bool max = !strcmp(c->node->op_type, "GlobalMaxPool");
    int rank = lathe_imp_rank(c, c->in[0]);
    int64_t axes[LATHE_MAX_RANK];
    if (rank < 3)
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "its operand has rank %d; it must be at least 3", rank);
    for (int i = 2; i < rank; i++)
        axes[i - 2] = i;
    lathe_node_id n = lathe_imp_result(c, 0, max ? LATHE_OP_REDUCE_MAX : LATHE_OP_REDUCE_MEAN, c->in, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, axes, rank < 3 ? 0 : (uint32_t)rank - 2);
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, 1);
    lathe_imp_end(c, n);
}
