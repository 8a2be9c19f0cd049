/* Operators with one operand whose result has its shape.
 *
 * f32 and f64 functions are evaluated in double and rounded once: the constants that folding makes do not depend on the
 * host's f32 math library. Where a kernel of the table serves f32 it is used instead. */
#include "kernel.h"
#include "kernel_bf16.h"
#include "op_util.h"
#include "ops.h"

#include <math.h>

struct parameters {
    double alpha, beta;
};

typedef void (*float_fn)(int64_t n, const float *x, float *y, const struct parameters *p);
typedef void (*double_fn)(int64_t n, const double *x, double *y, const struct parameters *p);
typedef void (*int_fn)(int64_t n, const int64_t *x, int64_t *y, const struct parameters *p);

/* Any of them NULL: not defined for the kind. */
struct unary {
    const char *name;
    float_fn f32;
    double_fn f64;
    int_fn i64, u64; /* u64 on the same bits; NULL: as i64 */
};

static enum lathe_status run_unary(const struct lathe_op_call *call, const struct unary *op, lathe_unary_f32_fn kernel,
                                   const struct parameters *p) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    enum lathe_kind kind = lathe_kind_of(x->dtype);
    if ((kind == LATHE_KIND_F32 && !op->f32) || (kind == LATHE_KIND_F64 && !op->f64) ||
        (kind >= LATHE_KIND_I64 && !op->i64))
        return lathe_no_dtype(call, op->name, x->dtype);
    if (begin >= end)
        return LATHE_OK;
    if (kernel && x->dtype == LATHE_F32 && y->dtype == LATHE_F32) {
        kernel((size_t)(end - begin), (const float *)x->data + begin, (float *)y->data + begin);
        return LATHE_OK;
    }
    union lathe_chunk in, out;
    bool direct = y->dtype == x->dtype && y->dtype == lathe_kind_dtype(kind);
    size_t bytes = lathe_kind_bytes(kind);
    for (int64_t i = begin; i < end; i += LATHE_CHUNK) {
        int64_t n = end - i < LATHE_CHUNK ? end - i : LATHE_CHUNK;
        const void *src = lathe_load(x, i, n, &in);
        void *dst = direct ? (uint8_t *)y->data + (size_t)i * bytes : (void *)&out;
        switch (kind) {
        case LATHE_KIND_F32:
            op->f32(n, src, dst, p);
            break;
        case LATHE_KIND_F64:
            op->f64(n, src, dst, p);
            break;
        case LATHE_KIND_I64:
            op->i64(n, src, dst, p);
            break;
        case LATHE_KIND_U64:
            (op->u64 ? op->u64 : op->i64)(n, src, dst, p);
            break;
        }
        if (!direct)
            lathe_store(y, i, n, kind, dst);
    }
    return LATHE_OK;
}

#define LOOP(T, suffix, name, expr)                                                                                    \
    static void name##_##suffix(int64_t n, const T *in, T *out, const struct parameters *p) {                          \
        (void)p;                                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T x = in[i];                                                                                         \
            out[i] = (T)(expr);                                                                                        \
        }                                                                                                              \
    }
#define KERNEL_OF(field) (call->kernels ? call->kernels->field : NULL)

/* A float function in its own type (exact or a single rounding), one in double, and the operator. */
#define OPERATOR(name, kernel, f32, f64, i64, u64, ...)                                                                \
    enum lathe_status lathe_run_##name(const struct lathe_op_call *call) {                                             \
        static const struct unary op = {#name, f32, f64, i64, u64};                                                    \
        const struct parameters p = {__VA_ARGS__};                                                                     \
        return run_unary(call, &op, kernel, &p);                                                                       \
    }
/* The same formula in f32's and f64's own arithmetic. */
#define PLAIN(name, expr)                                                                                              \
    LOOP(float, f32, name, expr)                                                                                       \
    LOOP(double, f64, name, expr)                                                                                      \
    OPERATOR(name, NULL, name##_f32, name##_f64, NULL, NULL, 0, 0)
/* In double, rounded once for f32. */
#define BY_DOUBLE(name, kernel, expr, ...)                                                                             \
    static inline double name##_of(double x, const struct parameters *p) {                                             \
        (void)p;                                                                                                       \
        return expr;                                                                                                   \
    }                                                                                                                  \
    LOOP(float, f32, name, name##_of((double)x, p))                                                                    \
    LOOP(double, f64, name, name##_of(x, p))                                                                           \
    OPERATOR(name, kernel, name##_f32, name##_f64, NULL, NULL, __VA_ARGS__)
#define ATTR(key, absent) lathe_attr_float(&call->attrs, LATHE_ATTR_##key, absent)

/* ---- arithmetic that integers have too */
LOOP(float, f32, neg, -x)
LOOP(double, f64, neg, -x)
LOOP(int64_t, i64, neg, 0 - (uint64_t)x)
OPERATOR(neg, NULL, neg_f32, neg_f64, neg_i64, NULL, 0, 0)

LOOP(float, f32, abs, fabsf(x))
LOOP(double, f64, abs, fabs(x))
LOOP(int64_t, i64, abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
LOOP(int64_t, u64, abs, x)
OPERATOR(abs, NULL, abs_f32, abs_f64, abs_i64, abs_u64, 0, 0)

LOOP(float, f32, sign, x != x ? x : (float)((x > 0) - (x < 0)))
LOOP(double, f64, sign, x != x ? x : (double)((x > 0) - (x < 0)))
LOOP(int64_t, i64, sign, (x > 0) - (x < 0))
LOOP(int64_t, u64, sign, x != 0)
OPERATOR(sign, NULL, sign_f32, sign_f64, sign_i64, sign_u64, 0, 0)

LOOP(float, f32, relu, x < 0 ? 0 : x)
LOOP(double, f64, relu, x < 0 ? 0 : x)
LOOP(int64_t, i64, relu, x < 0 ? 0 : x)
LOOP(int64_t, u64, relu, x)
OPERATOR(relu, NULL, relu_f32, relu_f64, relu_i64, relu_u64, 0, 0)

LOOP(int64_t, i64, not, x == 0)
OPERATOR(not, NULL, NULL, NULL, not_i64, NULL, 0, 0)
LOOP(int64_t, i64, bit_not, ~x)
OPERATOR(bit_not, NULL, NULL, NULL, bit_not_i64, NULL, 0, 0)

/* A tensor of bf16 numbers in f32 (--cast all). Whether infinity, or a number that rounds to it, is kept apart by bits,
 * so that the loop is one of integers. */
static inline float rounded_bf16(float x) {
    uint32_t u, r = lathe_bf16_round(x);
    memcpy(&u, &x, sizeof u);
    r -= (r & 0x7fffffffu) == 0x7f800000u && (u & 0x7fffffffu) != 0x7f800000u ? 0x10000u : 0;
    memcpy(&x, &r, sizeof x);
    return x;
}
LOOP(float, f32, round_bf16, rounded_bf16(x))
OPERATOR(round_bf16, NULL, round_bf16_f32, NULL, NULL, NULL, 0, 0)

/* ---- one rounding or none in the type itself */
PLAIN(reciprocal, 1 / x)
PLAIN(softsign, x / (1 + (x < 0 ? -x : x)))
LOOP(float, f32, sqrt, sqrtf(x))
LOOP(double, f64, sqrt, sqrt(x))
OPERATOR(sqrt, NULL, sqrt_f32, sqrt_f64, NULL, NULL, 0, 0)
LOOP(float, f32, floor, floorf(x))
LOOP(double, f64, floor, floor(x))
OPERATOR(floor, NULL, floor_f32, floor_f64, NULL, NULL, 0, 0)
LOOP(float, f32, ceil, ceilf(x))
LOOP(double, f64, ceil, ceil(x))
OPERATOR(ceil, NULL, ceil_f32, ceil_f64, NULL, NULL, 0, 0)
LOOP(float, f32, round, rintf(x)) /* half to even in the default rounding mode */
LOOP(double, f64, round, rint(x))
OPERATOR(round, NULL, round_f32, round_f64, NULL, NULL, 0, 0)
LOOP(float, f32, leaky_relu, x < 0 ? x * (float)p->alpha : x)
LOOP(double, f64, leaky_relu, x < 0 ? x * p->alpha : x)
OPERATOR(leaky_relu, NULL, leaky_relu_f32, leaky_relu_f64, NULL, NULL, ATTR(ALPHA, 0.01), 0)
LOOP(float, f32, thresholded_relu, x > (float)p->alpha ? x : 0)
LOOP(double, f64, thresholded_relu, x > p->alpha ? x : 0)
OPERATOR(thresholded_relu, NULL, thresholded_relu_f32, thresholded_relu_f64, NULL, NULL, ATTR(ALPHA, 1), 0)
LOOP(float, f32, hard_sigmoid, fmaxf(0, fminf(1, x *(float)p->alpha + (float)p->beta)))
LOOP(double, f64, hard_sigmoid, fmax(0, fmin(1, x * p->alpha + p->beta)))
OPERATOR(hard_sigmoid, NULL, hard_sigmoid_f32, hard_sigmoid_f64, NULL, NULL, ATTR(ALPHA, 0.2), ATTR(BETA, 0.5))
LOOP(float, f32, hard_swish, x *fmaxf(0, fminf(1, x / 6 + 0.5f)))
LOOP(double, f64, hard_swish, x *fmax(0, fmin(1, x / 6 + 0.5)))
OPERATOR(hard_swish, NULL, hard_swish_f32, hard_swish_f64, NULL, NULL, 0, 0)
/* alpha is ONNX's lambd, beta its bias. */
LOOP(float, f32, shrink, x<-(float)p->alpha ? x + (float)p->beta : x>(float) p->alpha ? x - (float)p->beta : 0)
LOOP(double, f64, shrink, x<-p->alpha ? x + p->beta : x> p->alpha ? x - p->beta : 0)
LOOP(int64_t, i64, shrink, (double)x<-p->alpha ? (double)x + p->beta : (double)x> p->alpha ? (double)x - p->beta : 0)
OPERATOR(shrink, NULL, shrink_f32, shrink_f64, shrink_i64, NULL, ATTR(ALPHA, 0.5), ATTR(BETA, 0))

/* ---- transcendental functions */
BY_DOUBLE(exp, KERNEL_OF(exp_f32), exp(x), 0, 0)
BY_DOUBLE(log, NULL, log(x), 0, 0)
BY_DOUBLE(erf, KERNEL_OF(erf_f32), erf(x), 0, 0)
BY_DOUBLE(tanh, KERNEL_OF(tanh_f32), tanh(x), 0, 0)
static inline double logistic(double x) {
    /* exp of a number that is not positive: no overflow on either side */
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}
BY_DOUBLE(sigmoid, KERNEL_OF(sigmoid_f32), logistic(x), 0, 0)
BY_DOUBLE(gelu, KERNEL_OF(gelu_f32), x * 0.5 * (1 + erf(x * 0.70710678118654752440)), 0, 0)
BY_DOUBLE(gelu_tanh, KERNEL_OF(gelu_tanh_f32),
          x * 0.5 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))), 0, 0)
BY_DOUBLE(quick_gelu, NULL, x *logistic(p->alpha *x), ATTR(ALPHA, 1.702), 0)
BY_DOUBLE(silu, KERNEL_OF(silu_f32), x *logistic(x), 0, 0)
/* sin(x + quarters pi / 2) for |x| below MOST_TURNS, in steps that compilers turn into vectors: the nearest multiple of
 * pi / 2 is taken off in two parts, the first of 33 bits, so that its product with the count is exact. Polynomials of
 * our own: (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4 in r^2, interpolated at the Chebyshev points of |r| <= pi
 * / 4, relative error 2e-17. In all within 3e-16, so that the rounding to f32 is libm's but for ties. */
#define MOST_TURNS 1e5
#define TO_INTEGER 6755399441055744.0 /* 1.5 * 2^52: adding it leaves an integer in the low bits */
static inline double sine_of(double x, uint64_t quarters) {
    double shifted = x * 0.63661977236758134308 + TO_INTEGER, count = shifted - TO_INTEGER;
    uint64_t n, s_bits, c_bits;
    memcpy(&n, &shifted, sizeof n);
    n += quarters;
    double r = x - count * 1.57079632673412561417 - count * 6.07710050650619224932e-11, z = r * r;
    double s = -0.16666666666666666 +
               z * (0.008333333333330948 +
                    z * (-0.00019841269836758528 +
                         z * (2.7557316102528646e-06 + z * (-2.5051131840044124e-08 + z * 1.5918128937554457e-10))));
    double c = 0.041666666666666664 +
               z * (-0.0013888888888887398 +
                    z * (2.480158729876566e-05 +
                         z * (-2.7557317271714906e-07 + z * (2.0876146265300598e-09 + z * -1.138263220199036e-11))));
    s = r + r * z * s;
    c = 1 - 0.5 * z + z * z * c;
    memcpy(&s_bits, &s, sizeof s_bits);
    memcpy(&c_bits, &c, sizeof c_bits);
    uint64_t odd = 0 - (n & 1), bits = ((c_bits & odd) | (s_bits & ~odd)) ^ (n >> 1 & 1) << 63;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* (what the steps do not serve, infinities, NaN and -0 too, one by one: no element depends on those beside it) */
#define SINE(name, quarters)                                                                                           \
    static void name##_f32(int64_t n, const float *in, float *out, const struct parameters *p) {                       \
        (void)p;                                                                                                       \
        for (int64_t i = 0; i < n; i += 16) {                                                                          \
            float x[16] = {0}, y[16];                                                                                  \
            int64_t count = n - i < 16 ? n - i : 16;                                                                   \
            memcpy(x, in + i, (size_t)count * sizeof *x);                                                              \
            for (int k = 0; k < 16; k++)                                                                               \
                y[k] = (float)sine_of((double)x[k], quarters);                                                         \
            for (int k = 0; k < 16; k++)                                                                               \
                if (!(fabsf(x[k]) < (float)MOST_TURNS) || x[k] == 0)                                                   \
                    y[k] = (float)name((double)x[k]);                                                                  \
            memcpy(out + i, y, (size_t)count * sizeof *y);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    LOOP(double, f64, name, name(x))                                                                                   \
    OPERATOR(name, NULL, name##_f32, name##_f64, NULL, NULL, 0, 0)
SINE(sin, 0)
SINE(cos, 1)
BY_DOUBLE(tan, NULL, tan(x), 0, 0)
BY_DOUBLE(sinh, NULL, sinh(x), 0, 0)
BY_DOUBLE(cosh, NULL, cosh(x), 0, 0)
BY_DOUBLE(asin, NULL, asin(x), 0, 0)
BY_DOUBLE(acos, NULL, acos(x), 0, 0)
BY_DOUBLE(atan, NULL, atan(x), 0, 0)
BY_DOUBLE(asinh, NULL, asinh(x), 0, 0)
BY_DOUBLE(acosh, NULL, acosh(x), 0, 0)
BY_DOUBLE(atanh, NULL, atanh(x), 0, 0)
static inline double log_1_exp(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
BY_DOUBLE(softplus, NULL, x != x ? x : log_1_exp(x), 0, 0)
BY_DOUBLE(elu, NULL, x < 0 ? p->alpha * expm1(x) : x, ATTR(ALPHA, 1), 0)
/* beta is ONNX's gamma. */
BY_DOUBLE(selu, NULL, p->beta *(x < 0 ? p->alpha * expm1(x) : x), ATTR(ALPHA, 1.67326319217681884765625),
          ATTR(BETA, 1.05070102214813232421875))
BY_DOUBLE(celu, NULL, x < 0 ? p->alpha * expm1(x / p->alpha) : x, ATTR(ALPHA, 1), 0)
BY_DOUBLE(mish, NULL, x *tanh(log_1_exp(x)), 0, 0)

/* ---- tests of floats: the result is bool */

static enum lathe_status run_test(const struct lathe_op_call *call, const char *name, bool nan, bool positive,
                                  bool negative) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    if (!lathe_dtype_is_float(x->dtype) || y->dtype != LATHE_BOOL)
        return lathe_no_dtype(call, name, x->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    double values[LATHE_CHUNK];
    uint8_t *out = y->data;
    if (nan && x->dtype == LATHE_F32) { /* the guard behind a softmax */
        for (int64_t i = begin; i < end; i++)
            out[i] = ((const float *)x->data)[i] != ((const float *)x->data)[i];
        return LATHE_OK;
    }
    for (int64_t i = begin; i < end; i += LATHE_CHUNK) {
        int64_t n = end - i < LATHE_CHUNK ? end - i : LATHE_CHUNK;
        lathe_load_f64(x, i, n, values);
        for (int64_t j = 0; j < n; j++)
            out[i + j] = nan ? isnan(values[j]) != 0 : isinf(values[j]) && (values[j] > 0 ? positive : negative);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_isnan(const struct lathe_op_call *call) {
    return run_test(call, "isnan", true, false, false);
}

enum lathe_status lathe_run_isinf(const struct lathe_op_call *call) {
    return run_test(call, "isinf", false, lathe_attr_int(&call->attrs, LATHE_ATTR_DETECT_POSITIVE, 1) != 0,
                    lathe_attr_int(&call->attrs, LATHE_ATTR_DETECT_NEGATIVE, 1) != 0);
}

enum lathe_status lathe_run_cast(const struct lathe_op_call *call) {
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(call->out[0]), LATHE_GRAIN, &begin, &end);
    if (lathe_dtype_bytes(call->in[0]->dtype) == 0 || lathe_dtype_bytes(call->out[0]->dtype) == 0)
        return lathe_no_dtype(call, "cast", call->in[0]->dtype);
    lathe_convert(call->in[0], call->out[0], begin, end - begin);
    return LATHE_OK;
}
