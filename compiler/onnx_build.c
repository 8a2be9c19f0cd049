/* What the operator importers build the graph with. */
#include "onnx_import.h"

#include "ops/half.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fail_list(struct lathe_import *c, enum lathe_message message, const char *prefix, const char *format,
                      va_list list) {
    if (c->status != LATHE_OK)
        return;
    char text[LATHE_DIAG_TEXT];
    vsnprintf(text, sizeof text, format, list);
    c->status = lathe_fail(c->diag, message, "%s%s", prefix, text);
}

void lathe_imp_fail(struct lathe_import *c, enum lathe_message message, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fail_list(c, message, "", format, list);
    va_end(list);
}

void lathe_imp_node_fail(struct lathe_import *c, enum lathe_message message, const char *format, ...) {
    char prefix[512];
    snprintf(prefix, sizeof prefix, "node '%.300s' (%.150s): ", c->node_name ? c->node_name : "",
             c->origin ? c->origin : "");
    va_list list;
    va_start(list, format);
    fail_list(c, message, prefix, format, list);
    va_end(list);
}

/* ---- asking */
bool lathe_imp_has(const struct lathe_import *c, uint32_t operand) {
    return operand < c->n_in && c->in[operand] != LATHE_NONE;
}

lathe_value_id lathe_imp_in(const struct lathe_import *c, uint32_t operand) {
    return operand < c->n_in ? c->in[operand] : LATHE_NONE;
}

bool lathe_imp_wants(const struct lathe_import *c, uint32_t output) {
    return output < c->n_out && c->node->output[output] && *c->node->output[output];
}

static bool usable(struct lathe_import *c, lathe_value_id v) {
    return c->status == LATHE_OK && v != LATHE_NONE && lathe_value_at(c->g, v)->rank >= 0;
}

int lathe_imp_rank(struct lathe_import *c, lathe_value_id v) {
    return usable(c, v) ? lathe_value_at(c->g, v)->rank : 0;
}

enum lathe_dtype lathe_imp_dtype(struct lathe_import *c, lathe_value_id v) {
    return usable(c, v) ? lathe_value_at(c->g, v)->dtype : LATHE_F32;
}

lathe_dim lathe_imp_number(struct lathe_import *c, int64_t value) {
    return lathe_dim_const(c->g->dims, value);
}

lathe_dim lathe_imp_dim(struct lathe_import *c, lathe_value_id v, int axis) {
    if (!usable(c, v))
        return lathe_imp_number(c, 1);
    int rank = lathe_value_at(c->g, v)->rank;
    if (axis < -rank || axis >= rank) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "value '%s' has rank %d, too few for the operator",
                            lathe_value_at(c->g, v)->name, rank);
        return lathe_imp_number(c, 1);
    }
    return lathe_value_dim(c->g, v, axis);
}

int64_t lathe_imp_dim_const(struct lathe_import *c, lathe_value_id v, int axis, const char *what) {
    int64_t value = 1;
    lathe_dim d = lathe_imp_dim(c, v, axis);
    if (c->status == LATHE_OK && !lathe_dim_is_const(c->g->dims, d, &value)) {
        char text[256];
        lathe_dim_print(c->g->dims, d, text, sizeof text);
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "%s is %s; it must be a constant", what, text);
        return 1;
    }
    return value;
}

int lathe_imp_axis(struct lathe_import *c, int64_t axis, int rank) {
    if (c->status != LATHE_OK)
        return 0;
    if (axis < -(int64_t)rank || axis >= rank) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "axis %lld is outside -%d to %d", (long long)axis, rank, rank - 1);
        return 0;
    }
    return (int)(axis < 0 ? axis + rank : axis);
}

bool lathe_imp_dims(struct lathe_import *c, lathe_value_id v, const lathe_dim **values, uint32_t *count) {
    *values = NULL;
    *count = 0;
    if (!usable(c, v))
        return false;
    const struct lathe_value *value = lathe_value_at(c->g, v);
    if (value->content) {
        *values = value->content;
        *count = value->content_count;
        return true;
    }
    int64_t n = lathe_value_count(c->g, v);
    if (!lathe_value_is_constant(c->g, v) || !lathe_dtype_is_integer(value->dtype) || n < 0 ||
        n > LATHE_ONNX_MAX_OPERANDS)
        return false;
    lathe_dim *list = lathe_arena_alloc_array(c->scratch, (size_t)n + 1, sizeof *list);
    if (!list) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return false;
    }
    for (int64_t i = 0; i < n; i++)
        list[i] = lathe_imp_number(c, lathe_constant_i64(c->g, v, i));
    *values = list;
    *count = (uint32_t)n;
    return true;
}

bool lathe_imp_ints(struct lathe_import *c, lathe_value_id v, const int64_t **values, uint32_t *count) {
    const lathe_dim *dims;
    if (!lathe_imp_dims(c, v, &dims, count))
        return false;
    int64_t *list = lathe_arena_alloc_array(c->scratch, (size_t)*count + 1, sizeof *list);
    if (!list) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return false;
    }
    for (uint32_t i = 0; i < *count; i++)
        if (!lathe_dim_is_const(c->g->dims, dims[i], &list[i]))
            return false;
    *values = list;
    return true;
}

/* Compares two scalar expressions of any sign: -1, 0, 1 when proved, 2 when they differ in an unknown way. */
static bool compare_known(struct lathe_import *c, enum lathe_op op, lathe_dim a, lathe_dim b, int64_t *value) {
    struct lathe_dims *t = c->g->dims;
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    if (op == LATHE_OP_GREATER || op == LATHE_OP_GREATER_EQUAL) {
        lathe_dim swap = a;
        a = b;
        b = swap;
        op = op == LATHE_OP_GREATER ? LATHE_OP_LESS : LATHE_OP_LESS_EQUAL;
    }
    bool yes, no;
    switch (op) {
    case LATHE_OP_EQUAL:
        yes = a == b;
        no = lathe_dim_proved_ne(t, a, b);
        break;
    case LATHE_OP_LESS:
        yes = lathe_dim_proved_lt(t, a, b);
        no = lathe_dim_proved_le(t, b, a);
        break;
    default:
        yes = lathe_dim_proved_le(t, a, b);
        no = lathe_dim_proved_lt(t, b, a);
        break;
    }
    *value = yes;
    return yes || no;
}

static bool scalar_known(struct lathe_import *c, lathe_value_id v, int64_t *value, int depth) {
    if (!usable(c, v) || depth > 16)
        return false;
    const struct lathe_value *x = lathe_value_at(c->g, v);
    if (lathe_value_is_constant(c->g, v) && lathe_value_count(c->g, v) == 1) {
        *value = x->dtype == LATHE_BOOL || lathe_dtype_is_integer(x->dtype) ? lathe_constant_i64(c->g, v, 0)
                                                                            : lathe_constant_f64(c->g, v, 0) != 0;
        return true;
    }
    if (x->content)
        return x->content_count == 1 && lathe_dim_is_const(c->g->dims, x->content[0], value);
    if (x->producer == LATHE_NONE)
        return false;
    const struct lathe_node *n = lathe_node_at(c->g, x->producer);
    int64_t a, b;
    switch (n->op) {
    case LATHE_OP_RESHAPE:
        return scalar_known(c, n->in[0], value, depth + 1);
    case LATHE_OP_CAST:
        if (!scalar_known(c, n->in[0], value, depth + 1))
            return false;
        if (x->dtype == LATHE_BOOL)
            *value = *value != 0;
        return true;
    case LATHE_OP_NOT:
        if (!scalar_known(c, n->in[0], &a, depth + 1))
            return false;
        *value = !a;
        return true;
    case LATHE_OP_AND:
    case LATHE_OP_OR:
    case LATHE_OP_XOR: {
        bool has_a = scalar_known(c, n->in[0], &a, depth + 1), has_b = scalar_known(c, n->in[1], &b, depth + 1);
        if (n->op != LATHE_OP_XOR) {
            int64_t decides = n->op == LATHE_OP_OR;
            if ((has_a && !!a == decides) || (has_b && !!b == decides)) {
                *value = decides;
                return true;
            }
        }
        if (!has_a || !has_b)
            return false;
        *value = n->op == LATHE_OP_AND ? a && b : n->op == LATHE_OP_OR ? a || b : !a != !b;
        return true;
    }
    case LATHE_OP_EQUAL:
    case LATHE_OP_LESS:
    case LATHE_OP_LESS_EQUAL:
    case LATHE_OP_GREATER:
    case LATHE_OP_GREATER_EQUAL: {
        const lathe_dim *x_dims, *y_dims;
        uint32_t x_count, y_count;
        enum lathe_op op = n->op;
        if (lathe_imp_dims(c, n->in[0], &x_dims, &x_count) && lathe_imp_dims(c, n->in[1], &y_dims, &y_count) &&
            x_count == 1 && y_count == 1)
            return compare_known(c, op, x_dims[0], y_dims[0], value);
        if (!scalar_known(c, n->in[0], &a, depth + 1) || !scalar_known(c, n->in[1], &b, depth + 1))
            return false;
        *value = op == LATHE_OP_EQUAL        ? a == b
                 : op == LATHE_OP_LESS       ? a < b
                 : op == LATHE_OP_LESS_EQUAL ? a <= b
                 : op == LATHE_OP_GREATER    ? a > b
                                             : a >= b;
        return lathe_dtype_is_integer(lathe_value_at(c->g, n->in[0])->dtype) ||
               lathe_value_at(c->g, n->in[0])->dtype == LATHE_BOOL;
    }
    default:
        return false;
    }
}

bool lathe_imp_scalar_known(struct lathe_import *c, lathe_value_id v, int64_t *value) {
    return scalar_known(c, v, value, 0);
}

/* ---- building */
static lathe_node_id begin(struct lathe_import *c, enum lathe_op op, const lathe_value_id *in, uint32_t n_in,
                           const char *const *names, uint32_t n_out) {
    lathe_value_id out[LATHE_ONNX_MAX_OPERANDS / 64];
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    if (n_out > sizeof out / sizeof *out) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "it has %u outputs; at most %zu are supported", n_out,
                            sizeof out / sizeof *out);
        return LATHE_NONE;
    }
    for (uint32_t i = 0; i < n_out; i++)
        out[i] = names[i] ? lathe_graph_add_value(c->g, names[i], LATHE_NO_DTYPE, -1, NULL) : LATHE_NONE;
    lathe_node_id n = lathe_graph_add_node(c->g, LATHE_NONE, op, c->node_name, c->origin, in, n_in, out, n_out);
    if (n == LATHE_NONE || c->g->out_of_memory) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
        return LATHE_NONE;
    }
    return n;
}

static const char *inner_name(struct lathe_import *c, enum lathe_op op) {
    const char *name = lathe_arena_format(c->scratch, "%s/%s", c->node_name, lathe_op_info(op)->name);
    if (!name)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
    return name;
}

static const char *output_name(struct lathe_import *c, uint32_t index) {

    const char *name = lathe_arena_format(c->scratch, "%s%s", lathe_scope_prefix(c->scope), c->node->output[index]);
    if (!name)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
    return name;
}

lathe_node_id lathe_imp_node(struct lathe_import *c, enum lathe_op op, const lathe_value_id *in, uint32_t n_in) {
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const char *name = inner_name(c, op);
    return begin(c, op, in, n_in, &name, 1);
}

lathe_node_id lathe_imp_node_outs(struct lathe_import *c, uint32_t count, enum lathe_op op, const lathe_value_id *in,
                                  uint32_t n_in) {
    const char *names[8];
    for (uint32_t i = 0; i < count && i < 8 && c->status == LATHE_OK; i++)
        names[i] = inner_name(c, op);
    return begin(c, op, in, n_in, names, count < 8 ? count : 8);
}

lathe_node_id lathe_imp_result(struct lathe_import *c, uint32_t index, enum lathe_op op, const lathe_value_id *in,
                               uint32_t n_in) {
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const char *name = lathe_imp_wants(c, index) ? output_name(c, index) : inner_name(c, op);
    lathe_node_id n = begin(c, op, in, n_in, &name, 1);
    if (n != LATHE_NONE && index < c->n_out)
        c->out[index] = lathe_node_at(c->g, n)->out[0];
    return n;
}

lathe_node_id lathe_imp_results(struct lathe_import *c, uint32_t count, enum lathe_op op, const lathe_value_id *in,
                                uint32_t n_in) {
    const char *names[8] = {0};
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    if (count > 8)
        count = 8;
    for (uint32_t i = 0; i < count; i++)
        if (lathe_imp_wants(c, i))
            names[i] = output_name(c, i);
    while (count > 1 && !names[count - 1])
        count--;
    lathe_node_id n = begin(c, op, in, n_in, names, count);
    for (uint32_t i = 0; n != LATHE_NONE && i < count; i++)
        if (names[i])
            c->out[i] = lathe_node_at(c->g, n)->out[i];
    return n;
}

void lathe_imp_int(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, int64_t value) {
    if (n != LATHE_NONE)
        lathe_node_set_int(c->g, n, key, value);
}

void lathe_imp_float(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, double value) {
    if (n != LATHE_NONE)
        lathe_node_set_float(c->g, n, key, value);
}

void lathe_imp_set_ints(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, const int64_t *values,
                        uint32_t count) {
    if (n != LATHE_NONE)
        lathe_node_set_ints(c->g, n, key, values, count);
}

void lathe_imp_set_dims(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, const lathe_dim *values,
                        uint32_t count) {
    int64_t numbers[LATHE_MAX_RANK * 2];
    bool constant = count <= LATHE_MAX_RANK * 2;
    for (uint32_t i = 0; constant && i < count; i++)
        constant = lathe_dim_is_const(c->g->dims, values[i], &numbers[i]);
    if (n == LATHE_NONE)
        return;
    if (constant)
        lathe_node_set_ints(c->g, n, key, numbers, count);
    else
        lathe_node_set_dims(c->g, n, key, values, count);
}

lathe_value_id lathe_imp_end(struct lathe_import *c, lathe_node_id n) {
    if (c->status != LATHE_OK || n == LATHE_NONE)
        return LATHE_NONE;
    if (c->g->out_of_memory) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
        return LATHE_NONE;
    }
    c->status = lathe_shape_infer_node(c->g, n, c->diag);
    return c->status == LATHE_OK ? lathe_node_at(c->g, n)->out[0] : LATHE_NONE;
}

lathe_value_id lathe_imp_out(struct lathe_import *c, lathe_node_id n, uint32_t index) {
    if (c->status != LATHE_OK || n == LATHE_NONE || index >= lathe_node_at(c->g, n)->n_out)
        return LATHE_NONE;
    return lathe_node_at(c->g, n)->out[index];
}

void lathe_imp_bind(struct lathe_import *c, uint32_t index, lathe_value_id v) {
    if (index < c->n_out)
        c->out[index] = v;
}

lathe_value_id lathe_imp_unary(struct lathe_import *c, enum lathe_op op, lathe_value_id a) {
    return lathe_imp_end(c, lathe_imp_node(c, op, &a, 1));
}

lathe_value_id lathe_imp_binary(struct lathe_import *c, enum lathe_op op, lathe_value_id a, lathe_value_id b) {
    lathe_value_id in[2] = {a, b};
    return lathe_imp_end(c, lathe_imp_node(c, op, in, 2));
}

lathe_value_id lathe_imp_cast(struct lathe_import *c, lathe_value_id a, enum lathe_dtype to) {
    if (lathe_imp_dtype(c, a) == to)
        return a;
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_CAST, &a, 1);
    lathe_imp_int(c, n, LATHE_ATTR_TO, to);
    return lathe_imp_end(c, n);
}

lathe_value_id lathe_imp_transpose(struct lathe_import *c, lathe_value_id a, const int64_t *perm, uint32_t rank) {
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_TRANSPOSE, &a, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_PERM, perm, rank);
    return lathe_imp_end(c, n);
}

static lathe_node_id finish_view(struct lathe_import *c, lathe_node_id n, int rank, const lathe_dim *dims) {
    if (n == LATHE_NONE)
        return n;
    if (rank > LATHE_MAX_RANK) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its result has rank %d; at most %d is supported", rank,
                            LATHE_MAX_RANK);
        return LATHE_NONE;
    }
    struct lathe_value *out = lathe_value_at(c->g, lathe_node_at(c->g, n)->out[0]);
    out->rank = rank;
    if (rank)
        memcpy(out->dims, dims, (size_t)rank * sizeof *dims);
    return n;
}

lathe_value_id lathe_imp_view(struct lathe_import *c, lathe_value_id a, int rank, const lathe_dim *dims) {
    return lathe_imp_end(c, finish_view(c, lathe_imp_node(c, LATHE_OP_RESHAPE, &a, 1), rank, dims));
}

void lathe_imp_result_view(struct lathe_import *c, uint32_t index, lathe_value_id a, int rank, const lathe_dim *dims) {
    lathe_imp_end(c, finish_view(c, lathe_imp_result(c, index, LATHE_OP_RESHAPE, &a, 1), rank, dims));
}

lathe_value_id lathe_imp_slice(struct lathe_import *c, lathe_value_id a, int axis, lathe_dim start, lathe_dim end) {
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_SLICE, &a, 1);
    const int64_t axes = axis, step = 1;
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, &axes, 1);
    lathe_imp_set_dims(c, n, LATHE_ATTR_STARTS, &start, 1);
    lathe_imp_set_dims(c, n, LATHE_ATTR_ENDS, &end, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_STEPS, &step, 1);
    return lathe_imp_end(c, n);
}

lathe_value_id lathe_imp_count_up(struct lathe_import *c, lathe_dim length) {
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_RANGE, NULL, 0);
    if (n == LATHE_NONE)
        return LATHE_NONE;
    struct lathe_value *out = lathe_value_at(c->g, lathe_node_at(c->g, n)->out[0]);
    out->dtype = LATHE_I64;
    out->rank = 1;
    out->dims[0] = length;
    lathe_imp_int(c, n, LATHE_ATTR_START, 0);
    lathe_imp_int(c, n, LATHE_ATTR_DELTA, 1);
    return lathe_imp_end(c, n);
}

static lathe_value_id add_constant(struct lathe_import *c, enum lathe_dtype dtype, int rank, const int64_t *dims,
                                   const void *data) {
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const char *name = lathe_arena_format(c->scratch, "%s/const", c->node_name);
    lathe_value_id v = name ? lathe_graph_add_constant_copy(c->g, name, dtype, rank, dims, data) : LATHE_NONE;
    if (v == LATHE_NONE)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
    return v;
}

lathe_value_id lathe_imp_const_ints(struct lathe_import *c, const int64_t *values, uint32_t count) {
    const int64_t dims = count;
    return add_constant(c, LATHE_I64, 1, &dims, values);
}

lathe_value_id lathe_imp_const_i64(struct lathe_import *c, int64_t value) {
    return add_constant(c, LATHE_I64, 0, NULL, &value);
}

lathe_value_id lathe_imp_scalar(struct lathe_import *c, enum lathe_dtype dtype, double value) {
    union {
        float f32;
        double f64;
        uint16_t u16;
        int64_t i64;
        uint8_t bytes[8];
    } x = {.i64 = 0};
    switch (dtype) {
    case LATHE_F32:
        x.f32 = (float)value;
        break;
    case LATHE_F64:
        x.f64 = value;
        break;
    case LATHE_F16:
        x.u16 = lathe_f16_from_f32((float)value);
        break;
    case LATHE_BF16:
        x.u16 = lathe_bf16_from_f32((float)value);
        break;
    default:
        x.i64 = (int64_t)value; /* little-endian: narrower integers are its first bytes */
        break;
    }
    return add_constant(c, dtype, 0, NULL, x.bytes);
}
