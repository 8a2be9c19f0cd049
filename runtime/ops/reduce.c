/* Reductions over axes.
 *
 * Axes merge into groups that are kept or reduced. Each output element is computed by one thread, in one order: the
 * position order of what it reduces. Floats accumulate in double and are rounded once; integers wrap. Blocks of outputs
 * that lie beside each other are reduced together when the innermost axis is kept. */
#include "op_util.h"
#include "ops.h"

#include <math.h>

enum reduce_op { OP_SUM, OP_MEAN, OP_MAX, OP_MIN, OP_PROD, OP_L1, OP_L2, OP_SUM_SQUARE, OP_LOG_SUM, OP_LOG_SUM_EXP };

#define BLOCK 64 /* outputs that are reduced together */

struct reduction {
    enum reduce_op op;
    const struct lathe_tensor *x;
    struct lathe_tensor *y;
    unsigned kept, reduced; /* groups, outermost first */
    int64_t kept_dims[LATHE_MAX_RANK], kept_strides[LATHE_MAX_RANK];
    int64_t dims[LATHE_MAX_RANK], strides[LATHE_MAX_RANK];
    int64_t count; /* elements that one output reduces */
};

static bool reduction_init(struct reduction *r, const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    uint32_t n_axes;
    const int64_t *axes = lathe_attr_ints(&call->attrs, LATHE_ATTR_AXES, &n_axes);
    bool is_reduced[LATHE_MAX_RANK] = {false};
    for (uint32_t i = 0; i < n_axes; i++) {
        if (axes[i] < 0 || axes[i] >= x->rank)
            return false;
        is_reduced[axes[i]] = true;
    }
    int64_t strides[LATHE_MAX_RANK], outputs = 1;
    lathe_strides_of(x, strides);
    r->count = 1;
    int before = -1; /* group kind of the axis before: 0 kept, 1 reduced */
    for (unsigned i = 0; i < x->rank; i++) {
        if (x->dims[i] == 1)
            continue;
        unsigned *n = is_reduced[i] ? &r->reduced : &r->kept;
        int64_t *dims = is_reduced[i] ? r->dims : r->kept_dims, *steps = is_reduced[i] ? r->strides : r->kept_strides;
        if (before != (int)is_reduced[i])
            dims[(*n)++] = 1;
        before = is_reduced[i];
        dims[*n - 1] *= x->dims[i];
        steps[*n - 1] = strides[i];
        *(is_reduced[i] ? &r->count : &outputs) *= x->dims[i];
    }
    return lathe_tensor_count(r->y) == outputs;
}

/* The four kinds of loops over n elements that go into one accumulator. Eight lanes in a fixed order, so that the
 * compiler can use vectors; the lanes are added at the end of the run. */
#define LANES 8

#define SUM_RUN(T, A, name, expr)                                                                                      \
    static A name(const T *x, int64_t n, A shift) {                                                                    \
        (void)shift;                                                                                                   \
        A lanes[LANES] = {0};                                                                                          \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= n; i += LANES)                                                                             \
            for (int k = 0; k < LANES; k++) {                                                                          \
                const A v = (A)x[i + k];                                                                               \
                lanes[k] += expr;                                                                                      \
            }                                                                                                          \
        for (int k = 0; i < n; i++, k++) {                                                                             \
            const A v = (A)x[i];                                                                                       \
            lanes[k] += expr;                                                                                          \
        }                                                                                                              \
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));      \
    }
SUM_RUN(float, double, sum_run_f32, v)
SUM_RUN(double, double, sum_run_f64, v)
SUM_RUN(int64_t, uint64_t, sum_run_i64, v)
SUM_RUN(float, double, square_run_f32, v *v)
SUM_RUN(double, double, square_run_f64, v *v)
SUM_RUN(int64_t, uint64_t, square_run_i64, v *v)
SUM_RUN(float, double, abs_run_f32, fabs(v))
SUM_RUN(double, double, abs_run_f64, fabs(v))
SUM_RUN(int64_t, uint64_t, abs_run_i64, (int64_t)v < 0 ? 0 - v : v)
SUM_RUN(float, double, exp_run_f32, exp(v - shift))
SUM_RUN(double, double, exp_run_f64, exp(v - shift))

/* A NaN once met stays. */
#define EXTREME(T, name, test)                                                                                         \
    static T name(const T *x, int64_t n, T r) {                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                                \
            r = x[i] test r || x[i] != x[i] ? x[i] : r;                                                                \
        return r;                                                                                                      \
    }
EXTREME(float, max_f32, >)
EXTREME(float, min_f32, <)
EXTREME(double, max_f64, >)
EXTREME(double, min_f64, <)
EXTREME(int64_t, max_i64, >)
EXTREME(int64_t, min_i64, <)
EXTREME(uint64_t, max_u64, >)
EXTREME(uint64_t, min_u64, <)

union accumulator {
    double f;
    int64_t i;
    uint64_t u;
};

static union accumulator start_of(enum reduce_op op, enum lathe_kind kind) {
    union accumulator a = {.i = 0};
    bool floats = kind <= LATHE_KIND_F64;
    if (op == OP_PROD && floats)
        a.f = 1;
    else if (op == OP_PROD)
        a.i = 1;
    else if (op == OP_MAX && floats)
        a.f = -INFINITY;
    else if (op == OP_MIN && floats)
        a.f = INFINITY;
    else if (op == OP_MAX && kind == LATHE_KIND_I64)
        a.i = INT64_MIN;
    else if (op == OP_MIN && kind == LATHE_KIND_I64)
        a.i = INT64_MAX;
    else if (op == OP_MIN)
        a.u = UINT64_MAX;
    return a;
}

/* One run of n elements of the kind into an accumulator; `shift` is the maximum for log_sum_exp. */
static void accumulate(union accumulator *a, enum reduce_op op, enum lathe_kind kind, const void *x, int64_t n,
                       double shift) {
#define BY_KIND(f32, f64, i64)                                                                                         \
    do {                                                                                                               \
        if (kind == LATHE_KIND_F32)                                                                                    \
            a->f += f32(x, n, shift);                                                                                  \
        else if (kind == LATHE_KIND_F64)                                                                               \
            a->f += f64(x, n, shift);                                                                                  \
        else                                                                                                           \
            a->u += i64(x, n, 0);                                                                                      \
    } while (0)
    switch (op) {
    case OP_SUM:
    case OP_MEAN:
    case OP_LOG_SUM:
        BY_KIND(sum_run_f32, sum_run_f64, sum_run_i64);
        break;
    case OP_L1:
        if (kind == LATHE_KIND_U64)
            a->u += sum_run_i64(x, n, 0);
        else
            BY_KIND(abs_run_f32, abs_run_f64, abs_run_i64);
        break;
    case OP_L2:
    case OP_SUM_SQUARE:
        BY_KIND(square_run_f32, square_run_f64, square_run_i64);
        break;
    case OP_LOG_SUM_EXP:
        BY_KIND(exp_run_f32, exp_run_f64, sum_run_i64);
        break;
    case OP_MAX:
        if (kind == LATHE_KIND_F32)
            a->f = (double)max_f32(x, n, (float)a->f);
        else if (kind == LATHE_KIND_F64)
            a->f = max_f64(x, n, a->f);
        else if (kind == LATHE_KIND_I64)
            a->i = max_i64(x, n, a->i);
        else
            a->u = max_u64(x, n, a->u);
        break;
    case OP_MIN:
        if (kind == LATHE_KIND_F32)
            a->f = (double)min_f32(x, n, (float)a->f);
        else if (kind == LATHE_KIND_F64)
            a->f = min_f64(x, n, a->f);
        else if (kind == LATHE_KIND_I64)
            a->i = min_i64(x, n, a->i);
        else
            a->u = min_u64(x, n, a->u);
        break;
    case OP_PROD:
        for (int64_t i = 0; i < n; i++)
            if (kind == LATHE_KIND_F32)
                a->f *= (double)((const float *)x)[i];
            else if (kind == LATHE_KIND_F64)
                a->f *= ((const double *)x)[i];
            else
                a->u *= ((const uint64_t *)x)[i];
        break;
    }
}

/* n accumulators, one element each: the innermost axis is kept. */
static void accumulate_across(union accumulator *a, enum reduce_op op, enum lathe_kind kind, const void *x, int64_t n,
                              const double *shifts) {
    if ((op == OP_SUM || op == OP_MEAN) && kind == LATHE_KIND_F32) {
        for (int64_t i = 0; i < n; i++)
            a[i].f += (double)((const float *)x)[i];
        return;
    }
    if (op == OP_MAX && kind == LATHE_KIND_F32) {
        for (int64_t i = 0; i < n; i++) {
            double v = (double)((const float *)x)[i];
            a[i].f = v > a[i].f || v != v ? v : a[i].f;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++)
        accumulate(&a[i], op, kind, (const uint8_t *)x + (size_t)i * lathe_kind_bytes(kind), 1, shifts ? shifts[i] : 0);
}

/* Integers take roots, logarithms and means as doubles, truncated into their type. */
static void finish(const struct reduction *r, int64_t at, int64_t n, union accumulator *a, const double *shifts) {
    enum lathe_kind kind = lathe_kind_of(r->x->dtype);
    bool floats = kind <= LATHE_KIND_F64;
    enum lathe_kind out = floats ? LATHE_KIND_F64 : kind;
    for (int64_t i = 0; i < n; i++) {
        double v = floats ? a[i].f : kind == LATHE_KIND_U64 ? (double)a[i].u : (double)a[i].i;
        switch (r->op) {
        case OP_MEAN:
            if (!floats) {
                if (r->count == 0)
                    a[i].i = 0;
                else if (kind == LATHE_KIND_U64)
                    a[i].u /= (uint64_t)r->count;
                else
                    a[i].i /= r->count;
                continue;
            }
            v /= (double)r->count;
            break;
        case OP_L2:
            v = sqrt(v);
            break;
        case OP_LOG_SUM:
            v = log(v);
            break;
        case OP_LOG_SUM_EXP:
            v = log(v) + (shifts ? shifts[i] : 0);
            break;
        default:
            continue;
        }
        a[i].f = v;
        if (!floats && kind == LATHE_KIND_U64)
            a[i].u = lathe_u64_from_f64(v);
        else if (!floats)
            a[i].i = lathe_i64_from_f64(v);
    }
    if (!floats && r->count == 0 && (r->op == OP_MAX || r->op == OP_MIN)) {
        /* the least or largest number of the type itself */
        size_t bits = lathe_dtype_bytes(r->y->dtype) * 8;
        bool is_signed = r->y->dtype == LATHE_I8 || r->y->dtype == LATHE_I16 || r->y->dtype == LATHE_I32;
        if (is_signed)
            for (int64_t i = 0; i < n; i++)
                a[i].i = r->op == OP_MAX ? -(INT64_C(1) << (bits - 1)) : (INT64_C(1) << (bits - 1)) - 1;
        else if (r->op == OP_MAX && kind == LATHE_KIND_I64 && bits < 64)
            for (int64_t i = 0; i < n; i++)
                a[i].i = 0;
    }
    lathe_store(r->y, at, n, out, a);
}

/* Walks all that outputs [at, at + n) reduce; `base` is the first element of the first. */
static void walk(const struct reduction *r, int64_t base, int64_t n, enum reduce_op op, union accumulator *a,
                 const double *shifts) {
    enum lathe_kind kind = lathe_kind_of(r->x->dtype);
    union lathe_chunk buffer;
    int64_t index[LATHE_MAX_RANK] = {0};
    bool inner = r->reduced > 0 && r->strides[r->reduced - 1] == 1; /* the innermost axis is reduced: n is 1 */
    unsigned outer = inner ? r->reduced - 1 : r->reduced;
    bool direct = r->x->dtype == lathe_kind_dtype(kind);
    if (r->count == 0)
        return;
    do {
        int64_t at = base;
        for (unsigned i = 0; i < outer; i++)
            at += index[i] * r->strides[i];
        if (!inner) {
            accumulate_across(a, op, kind, lathe_load(r->x, at, n, &buffer), n, shifts);
            continue;
        }
        int64_t size = r->dims[r->reduced - 1], step = direct ? size : LATHE_CHUNK;
        for (int64_t i = 0; i < size; i += step) {
            int64_t m = size - i < step ? size - i : step;
            accumulate(a, op, kind, lathe_load(r->x, at + i, m, &buffer), m, shifts ? shifts[0] : 0);
        }
    } while (lathe_next_index(outer, r->dims, index));
}

static void reduce_block(const struct reduction *r, int64_t at, int64_t base, int64_t n) {
    enum lathe_kind kind = lathe_kind_of(r->x->dtype);
    union accumulator a[BLOCK];
    double shifts[BLOCK];
    bool shifted = r->op == OP_LOG_SUM_EXP && kind <= LATHE_KIND_F64;
    if (shifted) {
        for (int64_t i = 0; i < n; i++)
            a[i] = start_of(OP_MAX, kind);
        walk(r, base, n, OP_MAX, a, NULL);
        for (int64_t i = 0; i < n; i++)
            shifts[i] = isfinite(a[i].f) ? a[i].f : 0;
    }
    for (int64_t i = 0; i < n; i++)
        a[i] = start_of(r->op, kind);
    walk(r, base, n, r->op, a, shifted ? shifts : NULL);
    finish(r, at, n, a, shifted ? shifts : NULL);
}

static enum lathe_status run_reduce(const struct lathe_op_call *call, const char *name, enum reduce_op op) {
    struct reduction r = {.op = op, .x = call->in[0], .y = call->out[0]};
    if (r.x->dtype != r.y->dtype)
        return lathe_no_dtype(call, name, r.x->dtype);
    enum lathe_kind kind = lathe_kind_of(r.x->dtype);
    if (op == OP_LOG_SUM_EXP && kind >= LATHE_KIND_I64)
        return lathe_no_dtype(call, name, r.x->dtype);
    if (!reduction_init(&r, call))
        return lathe_bad_shape(call, name);
    int64_t inner = r.kept > 0 && r.kept_strides[r.kept - 1] == 1 ? r.kept_dims[r.kept - 1] : 1;
    int64_t total = lathe_tensor_count(r.y), begin, end;
    int64_t grain = r.count > LATHE_GRAIN ? 1 : 1 + LATHE_GRAIN / (r.count + 1);
    lathe_team_split(&call->team, total, inner > 1 && grain < 16 ? 16 : grain, &begin, &end);
    for (int64_t at = begin; at < end;) {
        int64_t rest = at, base = 0, in_row = at % inner;
        for (unsigned i = r.kept; i-- > 0;) {
            base += rest % r.kept_dims[i] * r.kept_strides[i];
            rest /= r.kept_dims[i];
        }
        int64_t n = inner - in_row;
        if (n > end - at)
            n = end - at;
        if (n > BLOCK)
            n = BLOCK;
        reduce_block(&r, at, base, n);
        at += n;
    }
    return LATHE_OK;
}

#define REDUCE(name, op)                                                                                               \
    enum lathe_status lathe_run_reduce_##name(const struct lathe_op_call *call) {                                      \
        return run_reduce(call, "reduce_" #name, op);                                                                  \
    }
REDUCE(sum, OP_SUM)
REDUCE(mean, OP_MEAN)
REDUCE(max, OP_MAX)
REDUCE(min, OP_MIN)
REDUCE(prod, OP_PROD)
REDUCE(l1, OP_L1)
REDUCE(l2, OP_L2)
REDUCE(sum_square, OP_SUM_SQUARE)
REDUCE(log_sum, OP_LOG_SUM)
REDUCE(log_sum_exp, OP_LOG_SUM_EXP)
