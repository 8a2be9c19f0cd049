/* Questions about values: constants, uses, dims. */
#include "ir.h"

#include <math.h>
#include <string.h>

bool lathe_value_is_constant(const struct lathe_graph *g, lathe_value_id v) {
    return v != LATHE_NONE && g->values[v].data != NULL;
}

uint32_t lathe_value_use_total(const struct lathe_graph *g, lathe_value_id v) {
    return g->values[v].use_count + g->values[v].is_output;
}

lathe_node_id lathe_value_only_use(const struct lathe_graph *g, lathe_value_id v) {
    const struct lathe_value *value = &g->values[v];
    return value->use_count == 1 && !value->is_output ? value->uses[0] : LATHE_NONE;
}

lathe_node_id lathe_producer_of(const struct lathe_graph *g, lathe_value_id v, enum lathe_op op) {
    if (v == LATHE_NONE)
        return LATHE_NONE;
    lathe_node_id n = g->values[v].producer;
    return n != LATHE_NONE && g->nodes[n].op == op ? n : LATHE_NONE;
}

int64_t lathe_value_count(const struct lathe_graph *g, lathe_value_id v) {
    const struct lathe_value *value = &g->values[v];
    int64_t count = 1, dim;
    if (value->rank < 0)
        return -1;
    for (int i = 0; i < value->rank; i++)
        if (!lathe_dim_is_const(g->dims, value->dims[i], &dim) || dim < 0 || !lathe_mul_i64(count, dim, &count))
            return -1;
    return count;
}

int64_t lathe_value_bytes(const struct lathe_graph *g, lathe_value_id v) {
    int64_t count = lathe_value_count(g, v), bytes;
    if (count < 0 || !lathe_mul_i64(count, (int64_t)lathe_dtype_bytes(g->values[v].dtype), &bytes))
        return -1;
    return bytes;
}

static float f16_to_f32(uint16_t h) {
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    float value;
    if (exponent == 31)
        value = mantissa ? NAN : INFINITY;
    else if (exponent)
        value = ldexpf((float)(mantissa | 1024), (int)exponent - 25);
    else
        value = ldexpf((float)mantissa, -24);
    return h >> 15 ? -value : value;
}

double lathe_constant_f64(const struct lathe_graph *g, lathe_value_id v, int64_t i) {
    enum lathe_dtype dtype = g->values[v].dtype;
    const char *at = (const char *)g->values[v].data + (size_t)i * lathe_dtype_bytes(dtype);
    union {
        float f32;
        double f64;
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {.u64 = 0};
    memcpy(&x, at, lathe_dtype_bytes(dtype));
    switch (dtype) {
    case LATHE_F32:
        return x.f32;
    case LATHE_F64:
        return x.f64;
    case LATHE_U8:
        return x.u8;
    case LATHE_BOOL:
        return x.u8 != 0;
    case LATHE_I8:
        return x.i8;
    case LATHE_U16:
        return x.u16;
    case LATHE_I16:
        return x.i16;
    case LATHE_U32:
        return x.u32;
    case LATHE_I32:
        return x.i32;
    case LATHE_U64:
        return (double)x.u64;
    case LATHE_I64:
        return (double)x.i64;
    case LATHE_F16:
        return f16_to_f32(x.u16);
    case LATHE_BF16:
        x.u32 = (uint32_t)x.u16 << 16;
        return x.f32;
    default:
        return NAN;
    }
}

int64_t lathe_constant_i64(const struct lathe_graph *g, lathe_value_id v, int64_t i) {
    if (g->values[v].dtype == LATHE_I64 || g->values[v].dtype == LATHE_U64) {
        int64_t value;
        memcpy(&value, (const char *)g->values[v].data + (size_t)i * 8, 8);
        return value;
    }
    double value = lathe_constant_f64(g, v, i);
    if (!(value >= -0x1p63))
        return isnan(value) ? 0 : INT64_MIN;
    return value >= 0x1p63 ? INT64_MAX : (int64_t)value;
}

bool lathe_constant_uniform(const struct lathe_graph *g, lathe_value_id v, double *out) {
    if (!lathe_value_is_constant(g, v))
        return false;
    int64_t count = lathe_value_count(g, v);
    size_t element = lathe_dtype_bytes(g->values[v].dtype);
    if (count < 1 || !element)
        return false;
    const char *data = g->values[v].data;
    if (count > 1 && memcmp(data, data + element, (size_t)(count - 1) * element))
        return false;
    *out = lathe_constant_f64(g, v, 0);
    return true;
}

lathe_dim lathe_value_dim(const struct lathe_graph *g, lathe_value_id v, int axis) {
    const struct lathe_value *value = &g->values[v];
    if (axis < 0)
        axis += value->rank;
    return axis < 0 || axis >= value->rank ? LATHE_DIM_NONE : lathe_dim_resolve(g->dims, value->dims[axis]);
}

bool lathe_value_dim_is(const struct lathe_graph *g, lathe_value_id v, int axis, int64_t *value) {
    return lathe_dim_is_const(g->dims, lathe_value_dim(g, v, axis), value);
}

bool lathe_value_same_shape(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    if (g->values[a].rank < 0 || g->values[a].rank != g->values[b].rank)
        return false;
    for (int i = 0; i < g->values[a].rank; i++) {
        lathe_dim d = lathe_value_dim(g, a, i);
        if (d == LATHE_DIM_NONE || d != lathe_value_dim(g, b, i))
            return false;
    }
    return true;
}

int lathe_input_sequence_axis(const struct lathe_graph *g, lathe_value_id v) {
    const struct lathe_value *value = &g->values[v];
    if (value->rank < 2 || value->rank > 3)
        return -1;
    /* ids of several choices [batch, choices, sequence], but boxes [batch, sequence, 4] */
    bool choices = value->rank == 3 && !lathe_dtype_is_float(value->dtype) &&
                   lathe_dim_plain_symbol(g->dims, lathe_value_dim(g, v, 2)) >= 0;
    return choices ? 2 : 1;
}
