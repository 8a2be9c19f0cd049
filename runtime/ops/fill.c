/* Operators that make tensors: ranges, constants, triangles, one-hot rows; and running sums. */
#include "op_util.h"
#include "ops.h"

/* A start or step of range: an operand, or an attribute once it is known. */
struct number {
    bool is_float;
    int64_t i;
    double f;
};

static struct number number_of(const struct lathe_op_call *call, unsigned operand, enum lathe_attr_key key,
                               int64_t absent) {
    const struct lathe_attr *a = lathe_attr_find(&call->attrs, key);
    const struct lathe_tensor *t = lathe_operand(call, operand);
    if (a && a->type == LATHE_ATTR_FLOAT)
        return (struct number){true, lathe_i64_from_f64(a->f), a->f};
    if (a) {
        int64_t i = lathe_attr_int(&call->attrs, key, absent);
        return (struct number){false, i, (double)i};
    }
    if (t && t->data && lathe_tensor_count(t) >= 1)
        return (struct number){lathe_dtype_is_float(t->dtype), lathe_read_i64(t, 0), lathe_read_f64(t, 0)};
    return (struct number){false, absent, (double)absent};
}

enum lathe_status lathe_run_range(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    struct number start = number_of(call, 0, LATHE_ATTR_START, 0), delta = number_of(call, 2, LATHE_ATTR_DELTA, 1);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    bool floats = lathe_dtype_is_float(y->dtype);
    union lathe_chunk out;
    for (int64_t i = begin; i < end; i += LATHE_CHUNK) {
        int64_t n = end - i < LATHE_CHUNK ? end - i : LATHE_CHUNK;
        for (int64_t j = 0; j < n; j++)
            if (floats)
                out.f64[j] = start.f + (double)(i + j) * delta.f;
            else
                out.u64[j] = (uint64_t)start.i + (uint64_t)(i + j) * (uint64_t)delta.i;
        lathe_store(y, i, n, floats ? LATHE_KIND_F64 : LATHE_KIND_I64, &out);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_fill(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    const struct lathe_tensor *value = lathe_operand(call, 1);
    size_t bytes = lathe_dtype_bytes(y->dtype);
    uint64_t element = 0;
    if (value && (value->dtype != y->dtype || lathe_tensor_count(value) != 1))
        return lathe_bad_shape(call, "fill");
    if (value)
        memcpy(&element, value->data, bytes);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    if (begin < end)
        lathe_fill((uint8_t *)y->data + (size_t)begin * bytes, end - begin, bytes, &element);
    return LATHE_OK;
}

enum lathe_status lathe_run_dims_tensor(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    uint32_t count;
    const int64_t *values = lathe_attr_ints(&call->attrs, LATHE_ATTR_VALUES, &count);
    if ((int64_t)count != lathe_tensor_count(y))
        return lathe_bad_shape(call, "dims_tensor");
    if (call->team.index == 0 && count)
        lathe_store(y, 0, count, LATHE_KIND_I64, values);
    return LATHE_OK;
}

/* y has the axis of the depth at `axis`; its length is the depth. values: [off, on]. */
enum lathe_status lathe_run_one_hot(const struct lathe_op_call *call) {
    const struct lathe_tensor *indices = call->in[0], *values = call->in[2];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)y->rank - 1);
    if (y->rank != indices->rank + 1 || axis < 0 || axis >= y->rank || values->dtype != y->dtype ||
        lathe_tensor_count(values) != 2)
        return lathe_bad_shape(call, "one_hot");
    size_t bytes = lathe_dtype_bytes(y->dtype);
    const uint8_t *off = values->data, *on = off + bytes;
    int64_t depth = y->dims[axis], inner = lathe_count_range(y, (unsigned)axis + 1, y->rank), begin, end;
    if (lathe_tensor_count(y) == 0)
        return LATHE_OK;
    if (lathe_tensor_count(y) != lathe_tensor_count(indices) * depth)
        return lathe_bad_shape(call, "one_hot");
    lathe_team_split(&call->team, lathe_count_range(y, 0, (unsigned)axis), 1, &begin, &end);
    for (int64_t o = begin; o < end; o++) {
        uint8_t *block = (uint8_t *)y->data + (size_t)(o * depth * inner) * bytes;
        lathe_fill(block, depth * inner, bytes, off);
        for (int64_t i = 0; i < inner; i++) {
            int64_t index = lathe_read_i64(indices, o * inner + i);
            if (index < -depth || index >= depth) /* a row of off values, as ONNX says */
                continue;
            memcpy(block + (size_t)((index < 0 ? index + depth : index) * inner + i) * bytes, on, bytes);
        }
    }
    return LATHE_OK;
}

/* Keeps the elements with column - row >= k (upper) or <= k (lower). */
enum lathe_status lathe_run_trilu(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *k_operand = lathe_operand(call, 1);
    struct lathe_tensor *y = call->out[0];
    if (x->rank < 2 || x->rank != y->rank || x->dtype != y->dtype || lathe_tensor_count(x) != lathe_tensor_count(y))
        return lathe_bad_shape(call, "trilu");
    int64_t k = k_operand && lathe_tensor_count(k_operand) == 1 ? lathe_read_i64(k_operand, 0)
                                                                : lathe_attr_int(&call->attrs, LATHE_ATTR_K, 0);
    bool upper = lathe_attr_int(&call->attrs, LATHE_ATTR_UPPER, 1) != 0;
    int64_t rows = x->dims[x->rank - 2], cols = x->dims[x->rank - 1], begin, end;
    size_t bytes = lathe_dtype_bytes(x->dtype);
    if (cols == 0)
        return LATHE_OK;
    lathe_team_split(&call->team, lathe_count_range(x, 0, x->rank - 1), 1 + LATHE_GRAIN / cols, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        /* upper keeps [edge, cols), lower [0, edge) */
        int64_t row = r % rows, edge;
        if (!lathe_add_i64(row, k, &edge) || (!upper && !lathe_add_i64(edge, 1, &edge)))
            edge = k < 0 ? 0 : cols;
        edge = edge < 0 ? 0 : edge > cols ? cols : edge;
        uint8_t *out = (uint8_t *)y->data + (size_t)(r * cols) * bytes;
        const uint8_t *in = (const uint8_t *)x->data + (size_t)(r * cols) * bytes;
        size_t split = (size_t)edge * bytes, all = (size_t)cols * bytes;
        memset(out + (upper ? 0 : split), 0, upper ? split : all - split);
        memcpy(out + (upper ? split : 0), in + (upper ? split : 0), upper ? all - split : split);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_eye_like(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    if (y->rank != 2)
        return lathe_bad_shape(call, "eye_like");
    int64_t k = lathe_attr_int(&call->attrs, LATHE_ATTR_K, 0), rows = y->dims[0], cols = y->dims[1], begin, end;
    size_t bytes = lathe_dtype_bytes(y->dtype);
    lathe_team_split(&call->team, rows, 1, &begin, &end);
    if (begin < end && cols > 0)
        memset((uint8_t *)y->data + (size_t)(begin * cols) * bytes, 0, (size_t)((end - begin) * cols) * bytes);
    const int64_t one = 1;
    for (int64_t r = begin; r < end; r++) {
        int64_t c;
        if (lathe_add_i64(r, k, &c) && c >= 0 && c < cols)
            lathe_store(y, r * cols + c, 1, LATHE_KIND_I64, &one);
    }
    return LATHE_OK;
}

/* Running sums along an axis; f32, f16 and bf16 sum in double, integers wrap. */
enum lathe_status lathe_run_cumsum(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0);
    bool exclusive = lathe_attr_int(&call->attrs, LATHE_ATTR_EXCLUSIVE, 0) != 0;
    bool reverse = lathe_attr_int(&call->attrs, LATHE_ATTR_REVERSE, 0) != 0;
    if (x->rank != y->rank || x->dtype != y->dtype || axis < 0 || axis >= x->rank ||
        lathe_tensor_count(x) != lathe_tensor_count(y))
        return lathe_bad_shape(call, "cumsum");
    int64_t size = x->dims[axis], inner = lathe_count_range(x, (unsigned)axis + 1, x->rank), begin, end;
    bool floats = lathe_dtype_is_float(x->dtype);
    lathe_team_split(&call->team, lathe_count_range(x, 0, (unsigned)axis) * inner, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++) {
        int64_t base = line / inner * size * inner + line % inner;
        double sum = 0;
        uint64_t total = 0;
        for (int64_t i = 0; i < size; i++) {
            int64_t at = base + (reverse ? size - 1 - i : i) * inner;
            if (floats) {
                double v = lathe_read_f64(x, at), before = sum;
                sum += v;
                lathe_store(y, at, 1, LATHE_KIND_F64, exclusive ? &before : &sum);
            } else {
                uint64_t before = total;
                total += (uint64_t)lathe_read_i64(x, at);
                lathe_store(y, at, 1, LATHE_KIND_U64, exclusive ? &before : &total);
            }
        }
    }
    return LATHE_OK;
}
