/* Quantized forms of the source graph, in their written meaning.
 *
 * scale and zero point: one element (per tensor), one an element of `axis`, or blocked: the rank of x with `axis`
 * divided by block_size. */
#include "op_util.h"
#include "ops.h"

#include <math.h>

struct parameter_map {
    int64_t size, inner;   /* of the axis, and behind it */
    int64_t block, blocks; /* block_size, blocks along the axis */
    int form;              /* 0 per tensor, 1 per axis, 2 blocked */
};

static bool map_init(struct parameter_map *m, const struct lathe_op_call *call, const struct lathe_tensor *x,
                     const struct lathe_tensor *scale) {
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, x->rank > 1 ? 1 : 0);
    int64_t block = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 0), count = lathe_tensor_count(scale);
    *m = (struct parameter_map){.size = 1, .inner = 1, .block = 1, .blocks = 1};
    if (block == 0 && count == 1)
        return true;
    if (axis < 0 || axis >= x->rank)
        return false;
    m->size = x->dims[axis];
    m->inner = lathe_count_range(x, (unsigned)axis + 1, x->rank);
    if (block == 0) {
        m->form = 1;
        return count == m->size;
    }
    m->form = 2;
    m->block = block;
    if (block < 0 || scale->rank != x->rank)
        return false;
    m->blocks = scale->dims[axis];
    for (unsigned i = 0; i < x->rank; i++)
        if (i != axis && scale->dims[i] != x->dims[i])
            return false;
    return m->size == 0 || (m->size + block - 1) / block == m->blocks;
}

/* The parameter's position for element i of x, and how many elements from i on share it. */
static int64_t parameter_at(const struct parameter_map *m, int64_t i, int64_t *run) {
    int64_t k = i / m->inner % m->size, rest = i % m->inner;
    switch (m->form) {
    case 0:
        *run = INT64_MAX;
        return 0;
    case 1:
        *run = m->inner - rest;
        return k;
    default:
        *run = m->inner == 1 ? (m->block - k % m->block < m->size - k ? m->block - k % m->block : m->size - k) : 1;
        return (i / m->inner / m->size * m->blocks + k / m->block) * m->inner + rest;
    }
}

static void integer_range(enum lathe_dtype dtype, double *low, double *high) {
    switch (dtype) {
    case LATHE_I8:
        *low = -128, *high = 127;
        return;
    case LATHE_U8:
        *low = 0, *high = 255;
        return;
    case LATHE_I16:
        *low = -32768, *high = 32767;
        return;
    case LATHE_U16:
        *low = 0, *high = 65535;
        return;
    default:
        *low = INT32_MIN, *high = INT32_MAX;
        return;
    }
}

/* round(x / scale) + zero, saturated; x / scale in f32 unless x is f64. Half goes to even. */
enum lathe_status lathe_run_quantize_linear(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *scale = call->in[1], *zero = lathe_operand(call, 2);
    struct lathe_tensor *y = call->out[0];
    struct parameter_map map;
    if (!lathe_dtype_is_integer(y->dtype) || lathe_dtype_bytes(y->dtype) > 4 || y->dtype == LATHE_U32 ||
        (zero && zero->dtype != y->dtype))
        return lathe_no_dtype(call, "quantize_linear", y->dtype);
    if (lathe_tensor_count(x) != lathe_tensor_count(y) || !map_init(&map, call, x, scale) ||
        (zero && lathe_tensor_count(zero) != lathe_tensor_count(scale)))
        return lathe_bad_shape(call, "quantize_linear");
    double low, high, values[LATHE_CHUNK];
    integer_range(y->dtype, &low, &high);
    bool wide = x->dtype == LATHE_F64 || x->dtype == LATHE_I32;
    int64_t begin, end, n;
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    for (int64_t i = begin; i < end; i += n) {
        int64_t p = parameter_at(&map, i, &n);
        double s = lathe_read_f64(scale, p), z = zero ? (double)lathe_read_i64(zero, p) : 0;
        if (n > end - i)
            n = end - i;
        if (n > LATHE_CHUNK)
            n = LATHE_CHUNK;
        lathe_load_f64(x, i, n, values);
        for (int64_t j = 0; j < n; j++) {
            double q = wide ? values[j] / s : (double)((float)values[j] / (float)s);
            q = rint(q) + z;
            values[j] = q > high ? high : q >= low ? q : low; /* NaN: the least, as in ONNX Runtime */
        }
        lathe_store(y, i, n, LATHE_KIND_F64, values);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_dequantize_linear(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *scale = call->in[1], *zero = lathe_operand(call, 2);
    struct lathe_tensor *y = call->out[0];
    struct parameter_map map;
    if (!lathe_dtype_is_integer(x->dtype) || !lathe_dtype_is_float(y->dtype) || (zero && zero->dtype != x->dtype))
        return lathe_no_dtype(call, "dequantize_linear", x->dtype);
    if (lathe_tensor_count(x) != lathe_tensor_count(y) || !map_init(&map, call, x, scale) ||
        (zero && lathe_tensor_count(zero) != lathe_tensor_count(scale)))
        return lathe_bad_shape(call, "dequantize_linear");
    int64_t begin, end, n;
    int64_t values[LATHE_CHUNK];
    float out[LATHE_CHUNK];
    lathe_team_split(&call->team, lathe_tensor_count(y), LATHE_GRAIN, &begin, &end);
    for (int64_t i = begin; i < end; i += n) {
        int64_t p = parameter_at(&map, i, &n), z = zero ? lathe_read_i64(zero, p) : 0;
        float s = (float)lathe_read_f64(scale, p);
        if (n > end - i)
            n = end - i;
        if (n > LATHE_CHUNK)
            n = LATHE_CHUNK;
        lathe_load_i64(x, i, n, values);
        for (int64_t j = 0; j < n; j++)
            out[j] = (float)(int64_t)((uint64_t)values[j] - (uint64_t)z) * s;
        lathe_store(y, i, n, LATHE_KIND_F32, out);
    }
    return LATHE_OK;
}

/* x -> u8 with scale (max - min) / 255 of the whole tensor, zero included in its range; y, scale, zero point. Every
 * thread finds the range for itself, which saves a wait. */
enum lathe_status lathe_run_dynamic_quantize_linear(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = lathe_result(call, 0), *scale = lathe_result(call, 1), *zero = lathe_result(call, 2);
    if (x->dtype != LATHE_F32)
        return lathe_no_dtype(call, "dynamic_quantize_linear", x->dtype);
    if ((y && (y->dtype != LATHE_U8 || lathe_tensor_count(y) != lathe_tensor_count(x))) ||
        (scale && (scale->dtype != LATHE_F32 || lathe_tensor_count(scale) != 1)) ||
        (zero && (zero->dtype != LATHE_U8 || lathe_tensor_count(zero) != 1)))
        return lathe_bad_shape(call, "dynamic_quantize_linear");
    const float *in = x->data;
    int64_t count = lathe_tensor_count(x), begin, end, i = 0;
    float low[8] = {0}, high[8] = {0};
    for (; i + 8 <= count; i += 8)
        for (int k = 0; k < 8; k++) {
            low[k] = in[i + k] < low[k] ? in[i + k] : low[k];
            high[k] = in[i + k] > high[k] ? in[i + k] : high[k];
        }
    for (; i < count; i++) {
        low[0] = in[i] < low[0] ? in[i] : low[0];
        high[0] = in[i] > high[0] ? in[i] : high[0];
    }
    for (int k = 1; k < 8; k++) {
        low[0] = low[k] < low[0] ? low[k] : low[0];
        high[0] = high[k] > high[0] ? high[k] : high[0];
    }
    float s = (high[0] - low[0]) / 255;
    if (s == 0)
        s = 1;
    float z = rintf(0 - low[0] / s);
    z = z < 0 ? 0 : z > 255 ? 255 : z;
    if (call->team.index == 0 && scale)
        *(float *)scale->data = s;
    if (call->team.index == 0 && zero)
        *(uint8_t *)zero->data = (uint8_t)z;
    if (!y)
        return LATHE_OK;
    uint8_t *out = y->data;
    lathe_team_split(&call->team, count, LATHE_GRAIN, &begin, &end);
    for (i = begin; i < end; i++) {
        float q = rintf(in[i] / s) + z;
        out[i] = q > 255 ? 255 : q > 0 ? (uint8_t)q : 0; /* NaN gives 0 */
    }
    return LATHE_OK;
}
