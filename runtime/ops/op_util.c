#include "op_util.h"

#include <math.h>

enum lathe_kind lathe_kind_of(enum lathe_dtype dtype) {
    switch (dtype) {
    case LATHE_F32:
    case LATHE_F16:
    case LATHE_BF16:
        return LATHE_KIND_F32;
    case LATHE_F64:
        return LATHE_KIND_F64;
    case LATHE_U64:
        return LATHE_KIND_U64;
    default:
        return LATHE_KIND_I64;
    }
}

size_t lathe_kind_bytes(enum lathe_kind kind) {
    return kind == LATHE_KIND_F32 ? 4 : 8;
}

enum lathe_dtype lathe_kind_dtype(enum lathe_kind kind) {
    static const enum lathe_dtype of[] = {LATHE_F32, LATHE_F64, LATHE_I64, LATHE_U64};
    return of[kind];
}

int64_t lathe_i64_from_f64(double x) {
    if (x != x)
        return 0;
    if (x >= 0x1p63)
        return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

uint64_t lathe_u64_from_f64(double x) {
    if (!(x > 0)) /* NaN too */
        return 0;
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)x;
}

const void *lathe_load(const struct lathe_tensor *t, int64_t offset, int64_t n, union lathe_chunk *buffer) {
#define WIDEN(T, field, expr)                                                                                          \
    do {                                                                                                               \
        const T *src = (const T *)t->data + offset;                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T v = src[i];                                                                                        \
            buffer->field[i] = expr;                                                                                   \
        }                                                                                                              \
        return buffer;                                                                                                 \
    } while (0)
    switch (t->dtype) {
    case LATHE_F16:
        WIDEN(uint16_t, f32, lathe_f32_from_f16(v));
    case LATHE_BF16:
        WIDEN(uint16_t, f32, lathe_f32_from_bf16(v));
    case LATHE_I8:
        WIDEN(int8_t, i64, v);
    case LATHE_U8:
        WIDEN(uint8_t, i64, v);
    case LATHE_BOOL:
        WIDEN(uint8_t, i64, v != 0);
    case LATHE_I16:
        WIDEN(int16_t, i64, v);
    case LATHE_U16:
        WIDEN(uint16_t, i64, v);
    case LATHE_I32:
        WIDEN(int32_t, i64, v);
    case LATHE_U32:
        WIDEN(uint32_t, i64, v);
    case LATHE_F32:
        return (const float *)t->data + offset;
    default:
        return (const uint64_t *)t->data + offset; /* F64, I64, U64 */
    }
#undef WIDEN
}

static inline int64_t saturate(double x, int64_t low, int64_t high) {
    if (x != x)
        return 0;
    if (x <= (double)low)
        return low;
    return x >= (double)high ? high : (int64_t)x;
}

/* Floats to an integer of at most 32 bits saturate; integers wrap. */
#define NARROW(T, low, high)                                                                                           \
    do {                                                                                                               \
        T *dst = (T *)t->data + offset;                                                                                \
        if (kind == LATHE_KIND_F32)                                                                                    \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = (T)saturate((double)((const float *)src)[i], low, high);                                      \
        else if (kind == LATHE_KIND_F64)                                                                               \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = (T)saturate(((const double *)src)[i], low, high);                                             \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = (T)((const uint64_t *)src)[i];                                                                \
        return;                                                                                                        \
    } while (0)

#define STORE(T, from_f32, from_f64, from_i64, from_u64)                                                               \
    do {                                                                                                               \
        T *dst = (T *)t->data + offset;                                                                                \
        switch (kind) {                                                                                                \
        case LATHE_KIND_F32:                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const float v = ((const float *)src)[i];                                                               \
                dst[i] = (T)(from_f32);                                                                                \
            }                                                                                                          \
            return;                                                                                                    \
        case LATHE_KIND_F64:                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const double v = ((const double *)src)[i];                                                             \
                dst[i] = (T)(from_f64);                                                                                \
            }                                                                                                          \
            return;                                                                                                    \
        case LATHE_KIND_I64:                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const int64_t v = ((const int64_t *)src)[i];                                                           \
                dst[i] = (T)(from_i64);                                                                                \
            }                                                                                                          \
            return;                                                                                                    \
        default:                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const uint64_t v = ((const uint64_t *)src)[i];                                                         \
                dst[i] = (T)(from_u64);                                                                                \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

#define F16_OF(x)  lathe_f16_from_f32(lathe_f32_round_to_odd(x))
#define BF16_OF(x) lathe_bf16_from_f32(lathe_f32_round_to_odd(x))

void lathe_store(struct lathe_tensor *t, int64_t offset, int64_t n, enum lathe_kind kind, const void *src) {
    if (n <= 0)
        return;
    if (lathe_kind_dtype(kind) == t->dtype) {
        size_t bytes = lathe_kind_bytes(kind);
        uint8_t *dst = (uint8_t *)t->data + (size_t)offset * bytes;
        if (dst != src)
            memmove(dst, src, (size_t)n * bytes);
        return;
    }
    switch (t->dtype) {
    case LATHE_I8:
        NARROW(int8_t, INT8_MIN, INT8_MAX);
    case LATHE_U8:
        NARROW(uint8_t, 0, UINT8_MAX);
    case LATHE_I16:
        NARROW(int16_t, INT16_MIN, INT16_MAX);
    case LATHE_U16:
        NARROW(uint16_t, 0, UINT16_MAX);
    case LATHE_I32:
        NARROW(int32_t, INT32_MIN, INT32_MAX);
    case LATHE_U32:
        NARROW(uint32_t, 0, UINT32_MAX);
    case LATHE_BOOL:
        STORE(uint8_t, v != 0, v != 0, v != 0, v != 0);
    case LATHE_F16:
        STORE(uint16_t, lathe_f16_from_f32(v), F16_OF(v), F16_OF((double)v), F16_OF((double)v));
    case LATHE_BF16:
        STORE(uint16_t, lathe_bf16_from_f32(v), BF16_OF(v), BF16_OF((double)v), BF16_OF((double)v));
    case LATHE_F32:
        STORE(float, v, v, v, v);
    case LATHE_F64:
        STORE(double, v, v, v, v);
    case LATHE_I64:
        STORE(int64_t, lathe_i64_from_f64((double)v), lathe_i64_from_f64(v), v, v);
    case LATHE_U64:
        STORE(uint64_t, lathe_u64_from_f64((double)v), lathe_u64_from_f64(v), v, v);
    default:
        return;
    }
}

#define LOAD_AS(T, from_float, from_int)                                                                               \
    do {                                                                                                               \
        union lathe_chunk buffer;                                                                                      \
        const void *src = lathe_load(t, offset, n, &buffer);                                                           \
        switch (lathe_kind_of(t->dtype)) {                                                                             \
        case LATHE_KIND_F32:                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                out[i] = from_float(((const float *)src)[i]);                                                          \
            return;                                                                                                    \
        case LATHE_KIND_F64:                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                out[i] = from_float(((const double *)src)[i]);                                                         \
            return;                                                                                                    \
        case LATHE_KIND_I64:                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                out[i] = from_int(((const int64_t *)src)[i]);                                                          \
            return;                                                                                                    \
        default:                                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                            \
                out[i] = from_int(((const uint64_t *)src)[i]);                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

void lathe_load_f64(const struct lathe_tensor *t, int64_t offset, int64_t n, double *out) {
    LOAD_AS(double, (double), (double));
}
void lathe_load_f32(const struct lathe_tensor *t, int64_t offset, int64_t n, float *out) {
    LOAD_AS(float, (float), (float));
}
void lathe_load_i64(const struct lathe_tensor *t, int64_t offset, int64_t n, int64_t *out) {
    LOAD_AS(int64_t, lathe_i64_from_f64, (int64_t));
}

double lathe_read_f64(const struct lathe_tensor *t, int64_t i) {
    if (t->dtype == LATHE_F32)
        return (double)((const float *)t->data)[i];
    double v;
    lathe_load_f64(t, i, 1, &v);
    return v;
}

int64_t lathe_read_i64(const struct lathe_tensor *t, int64_t i) {
    if (t->dtype == LATHE_I64)
        return ((const int64_t *)t->data)[i];
    int64_t v;
    lathe_load_i64(t, i, 1, &v);
    return v;
}

void lathe_convert(const struct lathe_tensor *from, struct lathe_tensor *to, int64_t offset, int64_t n) {
    if (n <= 0)
        return;
    if (from->dtype == to->dtype) {
        size_t bytes = lathe_dtype_bytes(to->dtype), at = (size_t)offset * bytes;
        memmove((uint8_t *)to->data + at, (const uint8_t *)from->data + at, (size_t)n * bytes);
        return;
    }
    union lathe_chunk buffer;
    enum lathe_kind kind = lathe_kind_of(from->dtype);
    for (int64_t i = 0; i < n; i += LATHE_CHUNK) {
        int64_t m = n - i < LATHE_CHUNK ? n - i : LATHE_CHUNK;
        lathe_store(to, offset + i, m, kind, lathe_load(from, offset + i, m, &buffer));
    }
}

void lathe_strides_of(const struct lathe_tensor *t, int64_t *strides) {
    int64_t step = 1;
    for (unsigned i = t->rank; i-- > 0;) {
        strides[i] = step;
        step *= t->dims[i];
    }
}

int64_t lathe_count_range(const struct lathe_tensor *t, unsigned from, unsigned to) {
    int64_t n = 1;
    for (unsigned i = from; i < to; i++)
        n *= t->dims[i];
    return n;
}

bool lathe_next_index(unsigned rank, const int64_t *dims, int64_t *index) {
    for (unsigned i = rank; i-- > 0;) {
        if (++index[i] < dims[i])
            return true;
        index[i] = 0;
    }
    return false;
}

void lathe_fill(void *out, int64_t n, size_t bytes, const void *value) {
#define FILL(T)                                                                                                        \
    do {                                                                                                               \
        T v;                                                                                                           \
        memcpy(&v, value, sizeof v);                                                                                   \
        T *dst = out;                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            dst[i] = v;                                                                                                \
        return;                                                                                                        \
    } while (0)
    switch (bytes) {
    case 1:
        FILL(uint8_t);
    case 2:
        FILL(uint16_t);
    case 4:
        FILL(uint32_t);
    default:
        FILL(uint64_t);
    }
#undef FILL
}

bool lathe_index_at(const struct lathe_op_call *call, const struct lathe_tensor *indices, int64_t i, int64_t size,
                    int64_t *out) {
    int64_t index = lathe_read_i64(indices, i);
    if (index < -size || index >= size) {
        lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE, "index %lld at position %lld is outside [%lld, %lld]",
                   (long long)index, (long long)i, (long long)-size, (long long)size - 1);
        return false;
    }
    *out = index < 0 ? index + size : index;
    return true;
}

bool lathe_indices_at(const struct lathe_op_call *call, const struct lathe_tensor *indices, int64_t first, int64_t n,
                      int64_t size, int64_t *out) {
    const int64_t *in = out;
    uint64_t outside = 0;
    if (indices->dtype == LATHE_I64)
        in = (const int64_t *)indices->data + first;
    else
        lathe_load_i64(indices, first, n, out);
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = (uint64_t)in[i] + (in[i] < 0 ? (uint64_t)size : 0);
        outside |= index | ((uint64_t)size - 1 - index); /* the sign of either */
        out[i] = (int64_t)index;
    }
    if (!(outside >> 63))
        return true;
    for (int64_t i = 0; i < n; i++) /* which one */
        if (!lathe_index_at(call, indices, first + i, size, &out[i]))
            return false;
    return true;
}

struct lathe_team lathe_split_groups(const struct lathe_team *team, int64_t groups, int64_t *begin, int64_t *end) {
    if (groups % team->count == 0 || groups / 4 >= team->count) {
        lathe_team_split(team, groups, 1, begin, end);
        return (struct lathe_team){.count = 1};
    }
    *begin = 0;
    *end = groups;
    return *team;
}

int64_t lathe_linear_groups(const struct lathe_op_call *call, int64_t width, int64_t n, bool packed) {
    int64_t groups = lathe_attr_int(&call->attrs, LATHE_ATTR_GROUP, 1), unit = packed ? 16 : 1;
    if (groups == 1)
        return 1;
    return groups > 1 && width % groups == 0 && n % groups == 0 && n / groups % unit == 0 ? groups : 0;
}

enum lathe_status lathe_no_dtype(const struct lathe_op_call *call, const char *op, enum lathe_dtype dtype) {
    return lathe_fail(call->diag, LATHE_MSG_OP_DTYPE, "%s: no implementation for element type %s", op,
                      lathe_dtype_name(dtype));
}

enum lathe_status lathe_bad_shape(const struct lathe_op_call *call, const char *op) {
    return lathe_fail(call->diag, LATHE_MSG_OP_SHAPE,
                      "%s: the shapes of its operands and results do not fit each other", op);
}
