/* Operators of several operands with numpy broadcasting.
 *
 * The result is walked in runs along the innermost axis where each operand steps by 0 or 1; a loop of one of the four
 * kinds (op_util.h) does a run. More than two operands are taken two at a time, the result so far being the first. */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"

#include <math.h>

/* a[i * sa] op b[i * sb], with sa and sb 0 or 1. `y` may be `a`. */
typedef void (*loop_fn)(int64_t n, const void *a, int64_t sa, const void *b, int64_t sb, void *y);

struct pairwise {
    const char *name;
    loop_fn loops[4]; /* by kind; NULL: not defined */
    bool to_bool;     /* the result is bool whatever the kind */
    int kernel_op;    /* of binary_f32, -1 none */
};

#define LOOP(T, R, suffix, name, expr)                                                                                 \
    static void name##_##suffix(int64_t n, const void *pa, int64_t sa, const void *pb, int64_t sb, void *py) {         \
        const T *a_ = pa, *b_ = pb;                                                                                    \
        R *y_ = py;                                                                                                    \
        if (sa && sb) {                                                                                                \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const T a = a_[i], b = b_[i];                                                                          \
                y_[i] = (R)(expr);                                                                                     \
            }                                                                                                          \
        } else if (sa) {                                                                                               \
            const T b = *b_;                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const T a = a_[i];                                                                                     \
                y_[i] = (R)(expr);                                                                                     \
            }                                                                                                          \
        } else {                                                                                                       \
            const T a = *a_;                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const T b = b_[i * sb];                                                                                \
                y_[i] = (R)(expr);                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
#define FLOAT_LOOPS(name, expr)                                                                                        \
    LOOP(float, float, f32, name, expr)                                                                                \
    LOOP(double, double, f64, name, expr)
#define ALL_LOOPS(name, expr, i_expr)                                                                                  \
    FLOAT_LOOPS(name, expr)                                                                                            \
    LOOP(int64_t, int64_t, i64, name, i_expr)                                                                          \
    LOOP(uint64_t, uint64_t, u64, name, i_expr)
#define TEST_LOOPS(name, expr)                                                                                         \
    LOOP(float, uint8_t, f32, name, expr)                                                                              \
    LOOP(double, uint8_t, f64, name, expr)                                                                             \
    LOOP(int64_t, uint8_t, i64, name, expr)                                                                            \
    LOOP(uint64_t, uint8_t, u64, name, expr)
#define INT_LOOPS(name, expr)                                                                                          \
    LOOP(int64_t, int64_t, i64, name, expr)                                                                            \
    LOOP(uint64_t, uint64_t, u64, name, expr)
#define FOUR(name)                                                                                                     \
    { name##_f32, name##_f64, name##_i64, name##_u64 }
#define TWO_INTS(name)                                                                                                 \
    { NULL, NULL, name##_i64, name##_u64 }

static inline int64_t floor_mod(int64_t a, int64_t b) {
    if (b == 0 || b == -1)
        return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline double floor_mod_f64(double a, double b) {
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r == 0 ? copysign(0, b) : r;
}
/* By less than 0 or more than the width: only copies of the sign bit are left, to the left zeros. Narrow types come as
 * 64 bits, so the sign bit of their own is copied. */
static inline uint64_t shift_left(uint64_t a, uint64_t b) {
    return b > 63 ? 0 : a << b;
}
static inline int64_t shift_right(int64_t a, int64_t b) {
    return a >> (b < 0 || b > 63 ? 63 : b);
}

/* Unsigned arithmetic: integers wrap. A division by 0 gives 0. */
ALL_LOOPS(add, a + b, (uint64_t)a + (uint64_t)b)
ALL_LOOPS(sub, a - b, (uint64_t)a - (uint64_t)b)
ALL_LOOPS(mul, a *b, (uint64_t)a *(uint64_t)b)
FLOAT_LOOPS(div, a / b)
LOOP(int64_t, int64_t, i64, div, b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b)
LOOP(uint64_t, uint64_t, u64, div, b == 0 ? 0 : a / b)
ALL_LOOPS(min, a < b || a != a ? a : b, a < b ? a : b)
ALL_LOOPS(max, a > b || a != a ? a : b, a > b ? a : b)
LOOP(float, float, f32, mod, floor_mod_f64((double)a, (double)b))
LOOP(double, double, f64, mod, floor_mod_f64(a, b))
LOOP(int64_t, int64_t, i64, mod, floor_mod(a, b))
LOOP(uint64_t, uint64_t, u64, mod, b == 0 ? 0 : a % b)
LOOP(float, float, f32, fmod, fmodf(a, b))
LOOP(double, double, f64, fmod, fmod(a, b))
LOOP(int64_t, int64_t, i64, fmod, b == 0 || b == -1 ? 0 : a % b)
LOOP(uint64_t, uint64_t, u64, fmod, b == 0 ? 0 : a % b)
FLOAT_LOOPS(prelu, a < 0 ? a * b : a)
LOOP(int64_t, int64_t, i64, prelu, a < 0 ? (uint64_t)a * (uint64_t)b : (uint64_t)a)
LOOP(uint64_t, uint64_t, u64, prelu, b ? a : a)
TEST_LOOPS(equal, a == b)
TEST_LOOPS(less, a < b)
TEST_LOOPS(less_equal, a <= b)
TEST_LOOPS(greater, a > b)
TEST_LOOPS(greater_equal, a >= b)
INT_LOOPS(bit_and, a &b)
INT_LOOPS(bit_or, a | b)
INT_LOOPS(bit_xor, a ^ b)
INT_LOOPS(shift_left, shift_left((uint64_t)a, (uint64_t)b))
LOOP(int64_t, int64_t, i64, shift_right, shift_right(a, b))
LOOP(uint64_t, uint64_t, u64, shift_right, b > 63 ? 0 : a >> b)

/* bool and u8 in their own width: masks are large */
LOOP(uint8_t, uint8_t, bytes, and, (a != 0) & (b != 0))
LOOP(uint8_t, uint8_t, bytes, or, (a != 0) | (b != 0))
LOOP(uint8_t, uint8_t, bytes, xor, (a != 0) ^ (b != 0))
LOOP(uint8_t, uint8_t, bytes, equal, (a != 0) == (b != 0))
LOOP(int32_t, int32_t, words, add, (uint32_t)a + (uint32_t)b)
LOOP(int32_t, int32_t, words, sub, (uint32_t)a - (uint32_t)b)
LOOP(int32_t, int32_t, words, mul, (uint32_t)a *(uint32_t)b)

struct pair_run {
    const struct lathe_tensor *a, *b;
    struct lathe_tensor *y;
    loop_fn loop;
    enum lathe_kind kind;
    const struct lathe_broadcast *axes;
    size_t in_bytes, out_bytes; /* of elements used where they are; 0: through the buffers */
    lathe_binary_f32_fn kernel;
    unsigned kernel_op;
};

static void direct_run(void *user, int64_t at, int64_t n, const int64_t *offsets) {
    const struct pair_run *r = user;
    unsigned last = r->axes->rank - 1;
    int64_t sa = r->axes->strides[0][last], sb = r->axes->strides[1][last];
    const uint8_t *a = (const uint8_t *)r->a->data + (size_t)offsets[0] * r->in_bytes;
    const uint8_t *b = (const uint8_t *)r->b->data + (size_t)offsets[1] * r->in_bytes;
    uint8_t *y = (uint8_t *)r->y->data + (size_t)at * r->out_bytes;
    if (r->kernel && sa == 1)
        r->kernel((size_t)n, r->kernel_op, (const void *)a, (const void *)b, (size_t)sb, (void *)y);
    else
        r->loop(n, a, sa, b, sb, y);
}

static void buffered_run(void *user, int64_t at, int64_t n, const int64_t *offsets) {
    const struct pair_run *r = user;
    unsigned last = r->axes->rank - 1;
    int64_t sa = r->axes->strides[0][last], sb = r->axes->strides[1][last];
    union lathe_chunk a, b, y;
    const void *pa = lathe_load(r->a, offsets[0], sa ? n : 1, &a);
    const void *pb = lathe_load(r->b, offsets[1], sb ? n : 1, &b);
    if (r->out_bytes) { /* bool results */
        r->loop(n, pa, sa, pb, sb, (uint8_t *)r->y->data + at);
        return;
    }
    r->loop(n, pa, sa, pb, sb, &y);
    lathe_store(r->y, at, n, r->kind, &y);
}

static enum lathe_status run_pair(const struct lathe_op_call *call, const struct pairwise *op,
                                  const struct lathe_tensor *a, const struct lathe_tensor *b, struct lathe_tensor *y) {
    enum lathe_kind kind = lathe_kind_of(a->dtype);
    if (!op->loops[kind] || a->dtype != b->dtype || (op->to_bool ? y->dtype != LATHE_BOOL : y->dtype != a->dtype))
        return lathe_no_dtype(call, op->name, a->dtype);
    struct lathe_broadcast axes;
    const struct lathe_tensor *const operands[] = {a, b};
    if (!lathe_broadcast_init(&axes, y, operands, 2))
        return lathe_bad_shape(call, op->name);
    struct pair_run r = {.a = a, .b = b, .y = y, .loop = op->loops[kind], .kind = kind, .axes = &axes};
    bool direct = a->dtype == lathe_kind_dtype(kind);
    if (a->dtype == LATHE_I32) { /* positions and ids */
        loop_fn words = r.loop == add_i64   ? add_words
                        : r.loop == sub_i64 ? sub_words
                        : r.loop == mul_i64 ? mul_words
                                            : 0;
        direct = words != NULL;
        if (direct)
            r.loop = words;
    } else if (a->dtype == LATHE_BOOL && r.loop == equal_i64) {
        r.loop = equal_bytes;
        direct = true;
    }
    r.in_bytes = lathe_dtype_bytes(a->dtype);
    r.out_bytes = op->to_bool ? 1 : direct ? r.in_bytes : 0;
    if (a->dtype == LATHE_F32 && op->kernel_op >= 0 && call->kernels && call->kernels->binary_f32) {
        r.kernel = call->kernels->binary_f32;
        r.kernel_op = (unsigned)op->kernel_op;
    }
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    lathe_broadcast_run(&axes, begin, end, direct ? INT64_MAX : LATHE_CHUNK, direct ? direct_run : buffered_run, &r);
    return LATHE_OK;
}

/* One operand: a copy, broadcast to the result. */
static enum lathe_status run_copy(const struct lathe_op_call *call, const char *name) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct lathe_broadcast axes;
    if (x->dtype != y->dtype || !lathe_broadcast_init(&axes, y, &x, 1))
        return lathe_bad_shape(call, name);
    struct lathe_strided s = {.rank = axes.rank, .bytes = lathe_dtype_bytes(x->dtype), .in = x->data, .out = y->data};
    for (unsigned i = 0; i < axes.rank; i++) {
        s.dims[i] = axes.dims[i];
        s.strides[i] = axes.strides[0][i];
    }
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

static enum lathe_status run_many(const struct lathe_op_call *call, const struct pairwise *op) {
    if (call->n_in == 1)
        return run_copy(call, op->name);
    LATHE_TRY(run_pair(call, op, call->in[0], call->in[1], call->out[0]));
    for (unsigned i = 2; i < call->n_in; i++) /* a thread reads only what it has written itself */
        LATHE_TRY(run_pair(call, op, call->out[0], call->in[i], call->out[0]));
    return LATHE_OK;
}

#define BINARY(name, loops, to_bool, kernel)                                                                           \
    enum lathe_status lathe_run_##name(const struct lathe_op_call *call) {                                             \
        static const struct pairwise op = {#name, loops, to_bool, kernel};                                             \
        return run_pair(call, &op, call->in[0], call->in[1], call->out[0]);                                            \
    }
#define ROWS(...) __VA_ARGS__
BINARY(add, ROWS(FOUR(add)), false, 0)
BINARY(sub, ROWS(FOUR(sub)), false, 1)
BINARY(mul, ROWS(FOUR(mul)), false, 2)
BINARY(div, ROWS(FOUR(div)), false, 3)
BINARY(prelu, ROWS(FOUR(prelu)), false, -1)
BINARY(equal, ROWS(FOUR(equal)), true, -1)
BINARY(less, ROWS(FOUR(less)), true, -1)
BINARY(less_equal, ROWS(FOUR(less_equal)), true, -1)
BINARY(greater, ROWS(FOUR(greater)), true, -1)
BINARY(greater_equal, ROWS(FOUR(greater_equal)), true, -1)
BINARY(bit_and, ROWS(TWO_INTS(bit_and)), false, -1)
BINARY(bit_or, ROWS(TWO_INTS(bit_or)), false, -1)
BINARY(bit_xor, ROWS(TWO_INTS(bit_xor)), false, -1)

static const struct pairwise min_op = {"min", FOUR(min), false, -1};
static const struct pairwise max_op = {"max", FOUR(max), false, -1};
static const struct pairwise sum_op = {"sum", FOUR(add), false, 0};

enum lathe_status lathe_run_min(const struct lathe_op_call *call) {
    return run_many(call, &min_op);
}
enum lathe_status lathe_run_max(const struct lathe_op_call *call) {
    return run_many(call, &max_op);
}
enum lathe_status lathe_run_sum(const struct lathe_op_call *call) {
    return run_many(call, &sum_op);
}

enum lathe_status lathe_run_mean(const struct lathe_op_call *call) {
    LATHE_TRY(run_many(call, &sum_op));
    struct lathe_tensor *y = call->out[0];
    enum lathe_kind kind = lathe_kind_of(y->dtype);
    if (kind >= LATHE_KIND_I64)
        return lathe_no_dtype(call, "mean", y->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    for (int64_t i = begin; i < end; i += LATHE_CHUNK) {
        int64_t n = end - i < LATHE_CHUNK ? end - i : LATHE_CHUNK;
        union lathe_chunk in, out;
        const void *x = lathe_load(y, i, n, &in);
        float count = (float)call->n_in;
        double count_f64 = call->n_in;
        if (kind == LATHE_KIND_F32)
            div_f32(n, x, 1, &count, 0, &out);
        else
            div_f64(n, x, 1, &count_f64, 0, &out);
        lathe_store(y, i, n, kind, &out);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_mod(const struct lathe_op_call *call) {
    static const struct pairwise floored = {"mod", FOUR(mod), false, -1}, truncated = {"mod", FOUR(fmod), false, -1};
    return run_pair(call, lathe_attr_int(&call->attrs, LATHE_ATTR_FMOD, 0) ? &truncated : &floored, call->in[0],
                    call->in[1], call->out[0]);
}

enum lathe_status lathe_run_bit_shift(const struct lathe_op_call *call) {
    static const struct pairwise left = {"bit_shift", TWO_INTS(shift_left), false, -1},
                                 right = {"bit_shift", TWO_INTS(shift_right), false, -1};
    return run_pair(call, lathe_attr_int(&call->attrs, LATHE_ATTR_MODE, 0) ? &right : &left, call->in[0], call->in[1],
                    call->out[0]);
}

/* ---- logic on bytes */

static enum lathe_status run_logic(const struct lathe_op_call *call, const char *name, loop_fn loop) {
    const struct lathe_tensor *a = call->in[0], *b = call->in[1];
    struct lathe_tensor *y = call->out[0];
    struct lathe_broadcast axes;
    const struct lathe_tensor *const operands[] = {a, b};
    if (a->dtype != LATHE_BOOL || b->dtype != LATHE_BOOL || y->dtype != LATHE_BOOL)
        return lathe_no_dtype(call, name, a->dtype);
    if (!lathe_broadcast_init(&axes, y, operands, 2))
        return lathe_bad_shape(call, name);
    struct pair_run r = {.a = a, .b = b, .y = y, .loop = loop, .axes = &axes, .in_bytes = 1, .out_bytes = 1};
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    lathe_broadcast_run(&axes, begin, end, INT64_MAX, direct_run, &r);
    return LATHE_OK;
}

enum lathe_status lathe_run_and(const struct lathe_op_call *call) {
    return run_logic(call, "and", and_bytes);
}
enum lathe_status lathe_run_or(const struct lathe_op_call *call) {
    return run_logic(call, "or", or_bytes);
}
enum lathe_status lathe_run_xor(const struct lathe_op_call *call) {
    return run_logic(call, "xor", xor_bytes);
}

/* ---- pow: the exponent has a dtype of its own */

static int64_t power_i64(int64_t base, int64_t exponent) {
    if (exponent < 0) /* the reciprocal, truncated */
        return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    uint64_t r = 1, b = (uint64_t)base;
    for (uint64_t e = (uint64_t)exponent; e; e >>= 1, b *= b)
        if (e & 1)
            r *= b;
    return (int64_t)r;
}

static void pow_run(void *user, int64_t at, int64_t n, const int64_t *offsets) {
    const struct pair_run *r = user;
    unsigned last = r->axes->rank - 1;
    int64_t sa = r->axes->strides[0][last], sb = r->axes->strides[1][last];
    bool integers = lathe_kind_of(r->a->dtype) >= LATHE_KIND_I64 && lathe_kind_of(r->b->dtype) >= LATHE_KIND_I64;
    if (integers) {
        int64_t a[LATHE_CHUNK], b[LATHE_CHUNK];
        lathe_load_i64(r->a, offsets[0], sa ? n : 1, a);
        lathe_load_i64(r->b, offsets[1], sb ? n : 1, b);
        for (int64_t i = n; i-- > 0;)
            a[i] = power_i64(a[i * sa], b[i * sb]);
        lathe_store(r->y, at, n, LATHE_KIND_I64, a);
        return;
    }
    double b[LATHE_CHUNK];
    lathe_load_f64(r->b, offsets[1], sb ? n : 1, b);
    if (!sb && b[0] == 2 && r->kind == LATHE_KIND_F32) { /* layer norms written out */
        union lathe_chunk in, out;
        const float *x = lathe_load(r->a, offsets[0], sa ? n : 1, &in);
        bool direct = r->y->dtype == LATHE_F32;
        float *y = direct ? (float *)r->y->data + at : out.f32;
        mul_f32(n, x, sa, x, sa, y);
        if (!direct)
            lathe_store(r->y, at, n, LATHE_KIND_F32, y);
        return;
    }
    double a[LATHE_CHUNK];
    lathe_load_f64(r->a, offsets[0], sa ? n : 1, a);
    for (int64_t i = n; i-- > 0;) /* downwards: a[0] stays until all have read it */
        a[i] = b[i * sb] == 2 ? a[i * sa] * a[i * sa] : pow(a[i * sa], b[i * sb]);
    lathe_store(r->y, at, n, LATHE_KIND_F64, a);
}

enum lathe_status lathe_run_pow(const struct lathe_op_call *call) {
    struct lathe_broadcast axes;
    struct lathe_tensor *y = call->out[0];
    if (y->dtype != call->in[0]->dtype || y->dtype == LATHE_BOOL)
        return lathe_no_dtype(call, "pow", call->in[0]->dtype);
    if (!lathe_broadcast_init(&axes, y, call->in, 2))
        return lathe_bad_shape(call, "pow");
    struct pair_run r = {.a = call->in[0], .b = call->in[1], .y = y, .kind = lathe_kind_of(y->dtype), .axes = &axes};
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    lathe_broadcast_run(&axes, begin, end, LATHE_CHUNK, pow_run, &r);
    return LATHE_OK;
}

/* ---- where: by element size */

struct where_run {
    const uint8_t *condition, *a, *b;
    uint8_t *y;
    size_t bytes;
    int64_t sc, sa, sb;
};

static void where_run(void *user, int64_t at, int64_t n, const int64_t *offsets) {
    const struct where_run *r = user;
    const uint8_t *c = r->condition + offsets[0];
    int64_t sc = r->sc, sa = r->sa, sb = r->sb;
#define SELECT(T)                                                                                                      \
    do {                                                                                                               \
        const T *a = (const T *)(const void *)r->a + offsets[1], *b = (const T *)(const void *)r->b + offsets[2];      \
        T *y = (T *)(void *)r->y + at;                                                                                 \
        if (sc && sa && sb)                                                                                            \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = c[i] ? a[i] : b[i];                                                                             \
        else if (sc && sa) {                                                                                           \
            const T v = *b;                                                                                            \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = c[i] ? a[i] : v;                                                                                \
        } else if (sc && sb) {                                                                                         \
            const T v = *a;                                                                                            \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = c[i] ? v : b[i];                                                                                \
        } else                                                                                                         \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = c[i * sc] ? a[i * sa] : b[i * sb];                                                              \
    } while (0)
    switch (r->bytes) {
    case 1:
        SELECT(uint8_t);
        break;
    case 2:
        SELECT(uint16_t);
        break;
    case 4:
        SELECT(uint32_t);
        break;
    default:
        SELECT(uint64_t);
        break;
    }
#undef SELECT
}

enum lathe_status lathe_run_where(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    struct lathe_broadcast axes;
    if (call->in[0]->dtype != LATHE_BOOL || call->in[1]->dtype != y->dtype || call->in[2]->dtype != y->dtype)
        return lathe_no_dtype(call, "where", call->in[1]->dtype);
    if (!lathe_broadcast_init(&axes, y, call->in, 3))
        return lathe_bad_shape(call, "where");
    unsigned last = axes.rank - 1;
    struct where_run r = {
        call->in[0]->data,           call->in[1]->data,     call->in[2]->data,     y->data,
        lathe_dtype_bytes(y->dtype), axes.strides[0][last], axes.strides[1][last], axes.strides[2][last]};
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    lathe_broadcast_run(&axes, begin, end, INT64_MAX, where_run, &r);
    return LATHE_OK;
}

/* ---- clip: scalar bounds, each may be absent; min(max(x, low), high), NaN stays */

enum lathe_status lathe_run_clip(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *low = lathe_operand(call, 1), *high = lathe_operand(call, 2);
    struct lathe_tensor *y = call->out[0];
    if (x->dtype != y->dtype || (low && low->dtype != x->dtype) || (high && high->dtype != x->dtype))
        return lathe_no_dtype(call, "clip", x->dtype);
    if ((low && lathe_tensor_count(low) != 1) || (high && lathe_tensor_count(high) != 1))
        return lathe_bad_shape(call, "clip");
    enum lathe_kind kind = lathe_kind_of(x->dtype);
    union lathe_chunk low_buffer, high_buffer, in, out;
    const void *low_at = low ? lathe_load(low, 0, 1, &low_buffer) : NULL;
    const void *high_at = high ? lathe_load(high, 0, 1, &high_buffer) : NULL;
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    for (int64_t i = begin; i < end; i += LATHE_CHUNK) {
        int64_t n = end - i < LATHE_CHUNK ? end - i : LATHE_CHUNK;
        const void *v = lathe_load(x, i, n, &in);
        if (low_at) {
            max_op.loops[kind](n, v, 1, low_at, 0, &out);
            v = &out;
        }
        if (high_at) {
            min_op.loops[kind](n, v, 1, high_at, 0, &out);
            v = &out;
        }
        lathe_store(y, i, n, kind, v);
    }
    return LATHE_OK;
}
