/* Symbolic evaluation of small integral tensors. A float value has content too when its elements are whole numbers
 * (exporters pass shapes through Cast(float), Div, Floor, Cast). Booleans are 0 and 1. A result is known only when all
 * its elements are. */
#include "shape_internal.h"

#include <math.h>

bool lathe_shape_small(const struct shape_ctx *c, lathe_value_id v, int64_t *dims, int64_t *count) {
    const struct lathe_value *value = &c->g->values[v];
    if (value->rank < 0)
        return false;
    *count = lathe_value_count(c->g, v);
    if (*count < 0 || *count > LATHE_MAX_CONTENT)
        return false;
    for (int i = 0; i < value->rank; i++)
        lathe_dim_is_const(c->g->dims, value->dims[i], &dims[i]);
    return true;
}

bool lathe_shape_content(const struct shape_ctx *c, lathe_value_id v, lathe_dim *out, uint32_t *count) {
    if (v == LATHE_NONE)
        return false;
    const struct lathe_value *value = &c->g->values[v];
    if (value->content) {
        for (uint32_t i = 0; i < value->content_count; i++)
            out[i] = lathe_dim_resolve(c->g->dims, value->content[i]);
        *count = value->content_count;
        return true;
    }
    int64_t dims[LATHE_MAX_RANK], n;
    if (!value->data || !lathe_dtype_is_float(value->dtype) || !lathe_shape_small(c, v, dims, &n))
        return false;
    for (int64_t i = 0; i < n; i++) {
        double x = lathe_constant_f64(c->g, v, i);
        if (!(fabs(x) < 0x1p53) || x != floor(x) || (x == 0 && signbit(x)))
            return false;
        out[i] = lathe_shape_const(c, (int64_t)x);
    }
    *count = (uint32_t)n;
    return true;
}

bool lathe_shape_content_ints(const struct shape_ctx *c, lathe_value_id v, int64_t *out, uint32_t *count) {
    lathe_dim content[LATHE_MAX_CONTENT];
    if (!lathe_shape_content(c, v, content, count))
        return false;
    for (uint32_t i = 0; i < *count; i++)
        if (!lathe_dim_is_const(c->g->dims, content[i], &out[i]))
            return false;
    return true;
}

static lathe_value_id output_of(const struct shape_ctx *c) {
    const struct lathe_node *node = &c->g->nodes[c->n];
    return node->n_out ? node->out[0] : LATHE_NONE;
}

void lathe_shape_content_pick(struct shape_ctx *c, uint32_t k, const int64_t *from, uint32_t count) {
    lathe_dim content[LATHE_MAX_CONTENT], picked[LATHE_MAX_CONTENT];
    uint32_t n;
    lathe_value_id out = output_of(c);
    if (out == LATHE_NONE || count > LATHE_MAX_CONTENT || !lathe_shape_content(c, lathe_shape_in(c, k), content, &n))
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (from[i] < 0 || from[i] >= n)
            return;
        picked[i] = content[from[i]];
    }
    lathe_value_set_content(c->g, out, picked, count);
}

/* ---- one element */

static lathe_dim truth(const struct shape_ctx *c, bool known_true, bool known_false) {
    return known_true ? lathe_shape_const(c, 1) : known_false ? lathe_shape_const(c, 0) : LATHE_DIM_NONE;
}

/* Division as integers do it, toward zero. */
static lathe_dim divide_truncating(const struct shape_ctx *c, lathe_dim a, lathe_dim b) {
    struct lathe_dims *t = c->g->dims;
    int64_t va, vb;
    if (lathe_dim_is_const(t, a, &va) && lathe_dim_is_const(t, b, &vb))
        return !vb || (vb == -1 && va == INT64_MIN) ? LATHE_DIM_NONE : lathe_shape_const(c, va / vb);
    if (lathe_dim_lower(t, b) < 1)
        return LATHE_DIM_NONE;
    lathe_dim exact = lathe_dim_div_exact(t, a, b);
    if (exact != LATHE_DIM_NONE)
        return exact;
    if (lathe_dim_lower(t, a) >= 0)
        return lathe_dim_floordiv(t, a, b);
    if (lathe_dim_upper(t, a) <= 0)
        return lathe_dim_sub(t, lathe_shape_const(c, 0),
                             lathe_dim_floordiv(t, lathe_dim_sub(t, lathe_shape_const(c, 0), a), b));
    return LATHE_DIM_NONE;
}

static lathe_dim power(const struct shape_ctx *c, lathe_dim base, lathe_dim exponent) {
    int64_t e;
    if (!lathe_dim_is_const(c->g->dims, exponent, &e) || e < 0 || e > LATHE_DIM_MAX_FACTORS)
        return LATHE_DIM_NONE;
    lathe_dim result = lathe_shape_const(c, 1);
    while (e--)
        result = lathe_dim_mul(c->g->dims, result, base);
    return result;
}

static lathe_dim pairwise_element(const struct shape_ctx *c, enum lathe_op op, bool is_float, bool fmod_sign,
                                  lathe_dim a, lathe_dim b) {
    struct lathe_dims *t = c->g->dims;
    int64_t va = 0, vb = 0;
    bool const_a = lathe_dim_is_const(t, a, &va), const_b = lathe_dim_is_const(t, b, &vb);
    switch (op) {
    case LATHE_OP_ADD:
    case LATHE_OP_SUM:
        return lathe_dim_add(t, a, b);
    case LATHE_OP_SUB:
        return lathe_dim_sub(t, a, b);
    case LATHE_OP_MUL:
        return lathe_dim_mul(t, a, b);
    case LATHE_OP_DIV:
        if (!is_float)
            return divide_truncating(c, a, b);
        return lathe_dim_lower(t, b) < 1 ? LATHE_DIM_NONE : lathe_dim_div_exact(t, a, b);
    case LATHE_OP_MOD:
        if (lathe_dim_lower(t, b) < 1 || (fmod_sign && lathe_dim_lower(t, a) < 0))
            return LATHE_DIM_NONE;
        return lathe_dim_mod(t, a, b);
    case LATHE_OP_MIN:
        return lathe_dim_min(t, a, b);
    case LATHE_OP_MAX:
        return lathe_dim_max(t, a, b);
    case LATHE_OP_POW:
        return power(c, a, b);
    case LATHE_OP_EQUAL:
        return truth(c, a == b, lathe_dim_proved_ne(t, a, b));
    case LATHE_OP_LESS:
        return truth(c, lathe_dim_proved_lt(t, a, b), lathe_dim_proved_le(t, b, a));
    case LATHE_OP_LESS_EQUAL:
        return truth(c, lathe_dim_proved_le(t, a, b), lathe_dim_proved_lt(t, b, a));
    case LATHE_OP_GREATER:
        return truth(c, lathe_dim_proved_lt(t, b, a), lathe_dim_proved_le(t, a, b));
    case LATHE_OP_GREATER_EQUAL:
        return truth(c, lathe_dim_proved_le(t, b, a), lathe_dim_proved_lt(t, a, b));
    case LATHE_OP_AND:
        return truth(c, const_a && const_b && va && vb, (const_a && !va) || (const_b && !vb));
    case LATHE_OP_OR:
        return truth(c, (const_a && va) || (const_b && vb), const_a && const_b && !va && !vb);
    case LATHE_OP_XOR:
        return truth(c, const_a && const_b && !va != !vb, const_a && const_b && !va == !vb);
    case LATHE_OP_BIT_AND:
        return const_a && const_b ? lathe_shape_const(c, va & vb) : LATHE_DIM_NONE;
    case LATHE_OP_BIT_OR:
        return const_a && const_b ? lathe_shape_const(c, va | vb) : LATHE_DIM_NONE;
    default:
        return LATHE_DIM_NONE;
    }
}

/* Element of the operand with shape `dims` that output element `flat` of shape `out` reads. */
static int64_t broadcast_source(const int64_t *out, int rank, int64_t flat, const int64_t *dims, int in_rank) {
    int64_t source = 0, stride = 1;
    for (int i = rank - 1, k = in_rank - 1; k >= 0 && i >= 0; i--, k--) {
        int64_t index = flat % out[i];
        flat /= out[i];
        if (dims[k] != 1)
            source += index * stride;
        stride *= dims[k];
    }
    return source;
}

struct operand {
    lathe_dim content[LATHE_MAX_CONTENT];
    int64_t dims[LATHE_MAX_RANK];
    uint32_t count;
    int rank;
};

static bool load_operand(const struct shape_ctx *c, lathe_value_id v, struct operand *x) {
    int64_t count;
    if (v == LATHE_NONE || !lathe_shape_small(c, v, x->dims, &count) ||
        !lathe_shape_content(c, v, x->content, &x->count))
        return false;
    x->rank = c->g->values[v].rank;
    return count == x->count;
}

static lathe_dim where_element(const struct shape_ctx *c, lathe_dim condition, lathe_dim a, lathe_dim b) {
    int64_t value;
    if (a == b)
        return a;
    if (!lathe_dim_is_const(c->g->dims, condition, &value))
        return LATHE_DIM_NONE;
    return value ? a : b;
}

static void content_where(struct shape_ctx *c, lathe_value_id out, const int64_t *dims, int rank, int64_t count) {
    struct operand x[3];
    lathe_dim result[LATHE_MAX_CONTENT];
    for (uint32_t k = 0; k < 3; k++)
        if (!load_operand(c, lathe_shape_in(c, k), &x[k]))
            return;
    for (int64_t i = 0; i < count; i++)
        result[i] = where_element(c, x[0].content[broadcast_source(dims, rank, i, x[0].dims, x[0].rank)],
                                  x[1].content[broadcast_source(dims, rank, i, x[1].dims, x[1].rank)],
                                  x[2].content[broadcast_source(dims, rank, i, x[2].dims, x[2].rank)]);
    lathe_value_set_content(c->g, out, result, (uint32_t)count);
}

static void content_pairwise(struct shape_ctx *c) {
    lathe_value_id out = output_of(c);
    int64_t dims[LATHE_MAX_RANK], count;
    if (out == LATHE_NONE || !lathe_shape_small(c, out, dims, &count))
        return;
    enum lathe_op op = c->g->nodes[c->n].op;
    int rank = c->g->values[out].rank;
    if (op == LATHE_OP_WHERE) {
        content_where(c, out, dims, rank, count);
        return;
    }
    struct operand x;
    lathe_dim result[LATHE_MAX_CONTENT];
    uint32_t n_in = c->g->nodes[c->n].n_in;
    bool is_float = lathe_dtype_is_float(lathe_shape_value(c, 0)->dtype);
    bool fmod_sign = lathe_shape_attr_int(c, LATHE_ATTR_FMOD, 0) != 0;
    for (uint32_t k = 0; k < n_in; k++) {
        lathe_value_id v = lathe_shape_in(c, k);
        if (op == LATHE_OP_CLIP && v == LATHE_NONE)
            continue;
        if (!load_operand(c, v, &x))
            return;
        enum lathe_op step = op != LATHE_OP_CLIP ? op : k == 1 ? LATHE_OP_MAX : LATHE_OP_MIN;
        for (int64_t i = 0; i < count; i++) {
            lathe_dim element = x.content[broadcast_source(dims, rank, i, x.dims, x.rank)];
            result[i] = k ? pairwise_element(c, step, is_float, fmod_sign, result[i], element) : element;
            if (result[i] == LATHE_DIM_NONE)
                return;
        }
    }
    if (n_in)
        lathe_value_set_content(c->g, out, result, (uint32_t)count);
}

/* ---- numbers */

/* As the type stores it. A result of 16 bits only when it is small and whole, which no rounding changes. */
static double rounded_to(enum lathe_dtype dtype, double x) {
    bool half = dtype == LATHE_F16 || dtype == LATHE_BF16;
    if (half)
        return x == floor(x) && fabs(x) <= 256 ? x : NAN;
    return dtype == LATHE_F32 ? (double)(float)x : x;
}

/* One step of a computation on f32 or f64 numbers. */
static bool number_step(enum lathe_op op, const double *x, uint32_t count, double *result) {
    double b = count > 1 ? x[1] : 0;
    switch (op) {
    case LATHE_OP_ADD:
        *result = x[0] + b;
        return count == 2;
    case LATHE_OP_SUB:
        *result = x[0] - b;
        return count == 2;
    case LATHE_OP_MUL:
        *result = x[0] * b;
        return count == 2;
    case LATHE_OP_DIV:
        *result = x[0] / b;
        return count == 2;
    case LATHE_OP_POW:
        *result = pow(x[0], b);
        return count == 2;
    case LATHE_OP_SQRT:
        *result = sqrt(x[0]);
        return count == 1;
    case LATHE_OP_RECIPROCAL:
        *result = 1 / x[0];
        return count == 1;
    case LATHE_OP_NEG:
        *result = -x[0];
        return count == 1;
    case LATHE_OP_ABS:
        *result = fabs(x[0]);
        return count == 1;
    case LATHE_OP_FLOOR:
        *result = floor(x[0]);
        return count == 1;
    case LATHE_OP_CEIL:
        *result = ceil(x[0]);
        return count == 1;
    case LATHE_OP_ROUND:
        *result = nearbyint(x[0]);
        return count == 1;
    default:
        return false;
    }
}

/* The one element of a value that is computed from numbers alone, fractions among them: the side of a grid of patches
 * is written as the root of their count. */
static bool number_within(const struct shape_ctx *c, lathe_value_id v, int depth, double *number) {
    const struct lathe_graph *g = c->g;
    lathe_dim content[LATHE_MAX_CONTENT];
    uint32_t count;
    int64_t whole;
    if (v == LATHE_NONE || depth > 12 || lathe_value_count(g, v) != 1)
        return false;
    const struct lathe_value *value = &g->values[v];
    if (lathe_shape_content(c, v, content, &count)) {
        *number = count == 1 && lathe_dim_is_const(g->dims, content[0], &whole) ? (double)whole : NAN;
        return isfinite(*number) && fabs(*number) < 0x1p53;
    }
    bool is_float = lathe_dtype_is_float(value->dtype);
    if (is_float && lathe_constant_uniform(g, v, number))
        return true;
    if (value->producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[value->producer];
    double x[2] = {0};
    if (node->n_in < 1 || node->n_in > 2)
        return false;
    for (uint32_t i = 0; i < node->n_in; i++)
        if (!number_within(c, node->in[i], depth + 1, &x[i]))
            return false;
    if (node->op == LATHE_OP_CAST && (value->dtype == LATHE_I64 || value->dtype == LATHE_I32)) {
        *number = trunc(x[0]);
        return fabs(*number) < (value->dtype == LATHE_I32 ? 0x1p31 : 0x1p53);
    }
    if (!is_float)
        return false;
    if (node->op == LATHE_OP_CAST || node->op == LATHE_OP_RESHAPE)
        *number = x[0];
    else if (!number_step(node->op, x, node->n_in, number))
        return false;
    *number = rounded_to(value->dtype, *number);
    return isfinite(*number);
}

bool lathe_shape_number(const struct shape_ctx *c, lathe_value_id v, double *number) {
    return number_within(c, v, 0, number);
}

/* What the expressions do not tell: a result that is whole although its operands are fractions. */
static void content_number(struct shape_ctx *c) {
    lathe_value_id out = output_of(c);
    double number;
    if (out == LATHE_NONE || c->g->values[out].content || !lathe_shape_number(c, out, &number) ||
        number != floor(number) || !(fabs(number) < 0x1p53) || (number == 0 && signbit(number)))
        return;
    lathe_dim whole = lathe_shape_const(c, (int64_t)number);
    lathe_value_set_content(c->g, out, &whole, 1);
}

void lathe_shape_content_pairwise(struct shape_ctx *c) {
    content_pairwise(c);
    content_number(c);
}

/* floor or ceil of a float quotient whose operands are known: x is the output of a Div, or of a Mul by 1/k. */
static bool rounded_quotient(const struct shape_ctx *c, lathe_value_id x, bool up, lathe_dim *result, uint32_t *count) {
    struct lathe_graph *g = c->g;
    lathe_node_id producer = g->values[x].producer;
    if (producer == LATHE_NONE || (g->nodes[producer].op != LATHE_OP_DIV && g->nodes[producer].op != LATHE_OP_MUL))
        return false;
    const struct lathe_node *node = &g->nodes[producer];
    lathe_dim a[LATHE_MAX_CONTENT], b[LATHE_MAX_CONTENT];
    uint32_t n_a, n_b;
    if (node->op == LATHE_OP_MUL) {
        double factor;
        bool second = lathe_constant_uniform(g, node->in[1], &factor);
        if (!second && !lathe_constant_uniform(g, node->in[0], &factor))
            return false;
        double inverse = 1 / factor;
        /* Only powers of two: any other reciprocal is rounded. */
        int exponent;
        if (!(inverse >= 1) || inverse > 1 << 20 || frexp(inverse, &exponent) != 0.5)
            return false;
        b[0] = lathe_shape_const(c, (int64_t)inverse);
        n_b = 1;
        if (!lathe_shape_content(c, node->in[second ? 0 : 1], a, &n_a))
            return false;
    } else if (!lathe_shape_content(c, node->in[0], a, &n_a) || !lathe_shape_content(c, node->in[1], b, &n_b)) {
        return false;
    }
    if (n_b != 1 && n_b != n_a)
        return false;
    for (uint32_t i = 0; i < n_a; i++) {
        lathe_dim divisor = b[n_b == 1 ? 0 : i], minus_one = lathe_shape_const(c, -1);
        if (lathe_dim_lower(g->dims, divisor) < 1)
            return false;
        if (up)
            result[i] = lathe_dim_mul(g->dims, minus_one,
                                      lathe_dim_floordiv(g->dims, lathe_dim_mul(g->dims, minus_one, a[i]), divisor));
        else
            result[i] = lathe_dim_floordiv(g->dims, a[i], divisor);
        if (result[i] == LATHE_DIM_NONE)
            return false;
    }
    *count = n_a;
    return true;
}

static lathe_dim cast_element(const struct shape_ctx *c, enum lathe_dtype to, lathe_dim x) {
    struct lathe_dims *t = c->g->dims;
    int64_t value;
    bool is_const = lathe_dim_is_const(t, x, &value);
    int64_t zero_based;
    switch (to) {
    case LATHE_BOOL:
        return truth(c, lathe_dim_proved_ne(t, x, lathe_shape_const(c, 0)), is_const && !value);
    case LATHE_I64:
    case LATHE_F64:
        return x;
    case LATHE_I32:
        return is_const && value != (int32_t)value ? LATHE_DIM_NONE : x;
    case LATHE_F32:
        return is_const && (value > 1 << 24 || value < -(1 << 24)) ? LATHE_DIM_NONE : x;
    case LATHE_F16:
    case LATHE_BF16:
        return is_const && value >= -256 && value <= 256 ? x : LATHE_DIM_NONE;
    default:
        zero_based = lathe_dtype_bytes(to) == 8 ? INT64_MAX : (INT64_C(1) << (8 * lathe_dtype_bytes(to) - 1)) - 1;
        return is_const && value >= 0 && value <= zero_based ? x : LATHE_DIM_NONE;
    }
}

static lathe_dim unary_element(const struct shape_ctx *c, enum lathe_op op, enum lathe_dtype to, lathe_dim x) {
    struct lathe_dims *t = c->g->dims;
    lathe_dim zero = lathe_shape_const(c, 0);
    int64_t value;
    switch (op) {
    case LATHE_OP_CAST:
        return cast_element(c, to, x);
    case LATHE_OP_NEG:
        return lathe_dim_sub(t, zero, x);
    case LATHE_OP_ABS:
        if (lathe_dim_lower(t, x) >= 0)
            return x;
        return lathe_dim_upper(t, x) <= 0 ? lathe_dim_sub(t, zero, x) : LATHE_DIM_NONE;
    case LATHE_OP_RELU:
        return lathe_dim_max(t, x, zero);
    case LATHE_OP_NOT:
        return lathe_dim_is_const(t, x, &value) ? lathe_shape_const(c, !value) : LATHE_DIM_NONE;
    case LATHE_OP_FLOOR:
    case LATHE_OP_CEIL:
    case LATHE_OP_ROUND:
        return x;
    case LATHE_OP_SIGN:
        if (lathe_dim_lower(t, x) >= 1)
            return lathe_shape_const(c, 1);
        return lathe_dim_is_const(t, x, &value) ? lathe_shape_const(c, value < 0 ? -1 : 0) : LATHE_DIM_NONE;
    default:
        return LATHE_DIM_NONE;
    }
}

static void content_unary(struct shape_ctx *c) {
    lathe_value_id out = output_of(c), in = lathe_shape_in(c, 0);
    int64_t dims[LATHE_MAX_RANK], n;
    if (out == LATHE_NONE || !lathe_shape_small(c, out, dims, &n))
        return;
    enum lathe_op op = c->g->nodes[c->n].op;
    enum lathe_dtype to = c->g->values[out].dtype;
    lathe_dim content[LATHE_MAX_CONTENT];
    uint32_t count;
    if (!lathe_shape_content(c, in, content, &count)) {
        bool to_integer = op == LATHE_OP_CAST && (to == LATHE_I64 || to == LATHE_I32);
        if (!to_integer && op != LATHE_OP_FLOOR && op != LATHE_OP_CEIL)
            return;
        if (!lathe_dtype_is_float(c->g->values[in].dtype) ||
            !rounded_quotient(c, in, op == LATHE_OP_CEIL, content, &count))
            return;
        /* A cast truncates: the same as floor for what is not negative. */
        for (uint32_t i = 0; to_integer && i < count; i++)
            if (lathe_dim_lower(c->g->dims, content[i]) < 0)
                return;
    }
    if (count != (uint32_t)n)
        return;
    for (uint32_t i = 0; i < count; i++) {
        content[i] = unary_element(c, op, to, content[i]);
        if (content[i] == LATHE_DIM_NONE)
            return;
    }
    lathe_value_set_content(c->g, out, content, count);
}

void lathe_shape_content_unary(struct shape_ctx *c) {
    content_unary(c);
    content_number(c);
}

void lathe_shape_content_reduce(struct shape_ctx *c, const bool *reduced) {
    lathe_value_id out = output_of(c), in = lathe_shape_in(c, 0);
    struct operand x;
    int64_t out_dims[LATHE_MAX_RANK], out_count;
    enum lathe_op op = c->g->nodes[c->n].op, step;
    switch (op) {
    case LATHE_OP_REDUCE_SUM:
        step = LATHE_OP_ADD;
        break;
    case LATHE_OP_REDUCE_PROD:
        step = LATHE_OP_MUL;
        break;
    case LATHE_OP_REDUCE_MAX:
        step = LATHE_OP_MAX;
        break;
    case LATHE_OP_REDUCE_MIN:
        step = LATHE_OP_MIN;
        break;
    default:
        return;
    }
    if (out == LATHE_NONE || !lathe_shape_small(c, out, out_dims, &out_count) || !load_operand(c, in, &x) || !x.count)
        return;
    lathe_dim result[LATHE_MAX_CONTENT];
    for (int64_t i = 0; i < out_count; i++)
        result[i] = LATHE_DIM_NONE;
    for (uint32_t i = 0; i < x.count; i++) {
        /* The output element: the index of i without the reduced axes. */
        int64_t rest = i, to = 0, stride = 1;
        for (int axis = x.rank - 1; axis >= 0; axis--) {
            int64_t index = rest % x.dims[axis];
            rest /= x.dims[axis];
            if (!reduced[axis]) {
                to += index * stride;
                stride *= x.dims[axis];
            }
        }
        result[to] = result[to] == LATHE_DIM_NONE ? x.content[i]
                                                  : pairwise_element(c, step, false, false, result[to], x.content[i]);
        if (result[to] == LATHE_DIM_NONE)
            return;
    }
    lathe_value_set_content(c->g, out, result, (uint32_t)out_count);
}
