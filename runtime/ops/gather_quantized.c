/* Rows of a table that is quantized in blocks: data, indices, scales, zero points -> floats.
 *
 * u8 data holds 8 / bits elements a byte along the last axis, lowest bits first; the quantized axis is `axis`. Blocks
 * of `block_size` elements along it share a scale and a zero point; absent zero points are 2^(bits - 1) for u8 data and
 * 0 for i8 data. The gather axis is 0. */
#include "nbits.h"
#include "op_util.h"
#include "ops.h"

struct table {
    const struct lathe_tensor *data, *indices, *scales, *zeros;
    struct lathe_tensor *y;
    unsigned bits;
    int64_t axis, block;
    int64_t dims[LATHE_MAX_RANK]; /* of the table in elements, not bytes */
    int64_t rows, inner;          /* inner: elements of a row */
};

static bool table_init(struct table *t, const struct lathe_op_call *call) {
    t->data = call->in[0];
    t->indices = call->in[1];
    t->scales = call->in[2];
    t->zeros = lathe_operand(call, 3);
    t->y = call->out[0];
    int64_t bits = lathe_attr_int(&call->attrs, LATHE_ATTR_BITS, 4);
    unsigned rank = t->data->rank;
    t->axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)rank - 1);
    t->block = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 128);
    if (rank < 1 || t->axis < 0 || t->axis >= rank || t->block < 1 || (bits != 2 && bits != 4 && bits != 8) ||
        (t->data->dtype != LATHE_U8 && t->data->dtype != LATHE_I8) || (bits != 8 && t->data->dtype != LATHE_U8) ||
        !lathe_dtype_is_float(t->scales->dtype) || !lathe_dtype_is_float(t->y->dtype) || t->scales->rank != rank ||
        (bits != 8 && rank < 2))
        return false;
    t->bits = (unsigned)bits;
    for (unsigned i = 0; i < rank; i++)
        t->dims[i] = t->data->dims[i];
    if (!lathe_mul_i64(t->dims[rank - 1], 8 / bits, &t->dims[rank - 1]))
        return false;
    t->rows = t->dims[0];
    t->inner = 1;
    for (unsigned i = 0; i < rank; i++) {
        if (i > 0 && !lathe_mul_i64(t->inner, t->dims[i], &t->inner))
            return false;
        int64_t expected = i == t->axis ? (t->dims[i] + t->block - 1) / t->block : t->dims[i];
        if (t->scales->dims[i] != expected)
            return false;
    }
    /* Zero points: packed like the data, or one an element. */
    if (t->zeros && (t->zeros->rank != rank || t->zeros->dtype != t->data->dtype))
        return false;
    for (unsigned i = 0; t->zeros && i < rank; i++) {
        int64_t packed = i == rank - 1 ? lathe_nbits_bytes(t->scales->dims[i], t->bits) : t->scales->dims[i];
        if (t->zeros->dims[i] != packed)
            return false;
    }
    return lathe_tensor_count(t->y) == lathe_tensor_count(t->indices) * t->inner;
}

static int stored(const struct lathe_tensor *t, int64_t row, int64_t width, int64_t i, unsigned bits) {
    if (t->dtype == LATHE_I8)
        return ((const int8_t *)t->data)[row * width + i];
    return (int)lathe_nbits_at((const uint8_t *)t->data + row * width, i, bits);
}

enum lathe_status lathe_run_gather_block_quantized(const struct lathe_op_call *call) {
    struct table t;
    if (!table_init(&t, call))
        return lathe_bad_shape(call, "gather_block_quantized");
    unsigned rank = t.data->rank, last = rank - 1;
    int64_t count = lathe_tensor_count(t.indices), begin, end;
    int64_t width = t.dims[last], lines = width ? t.inner / (rank > 1 ? width : 1) : 0, scale_strides[LATHE_MAX_RANK];
    if (lathe_tensor_count(t.y) == 0)
        return LATHE_OK;
    int missing = t.data->dtype == LATHE_U8 ? 1 << (t.bits - 1) : 0;
    lathe_strides_of(t.scales, scale_strides);
    if (rank == 1) {
        width = 1;
        lines = 1;
    }
    lathe_team_split(&call->team, count * lines, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t index, line = item % lines, rest = line, scale_at = 0;
        if (!lathe_index_at(call, t.indices, item / lines, t.rows, &index))
            return LATHE_INVALID;
        for (unsigned i = last; i-- > 1;) {
            int64_t at = rest % t.dims[i];
            rest /= t.dims[i];
            scale_at += (i == t.axis ? at / t.block : at) * scale_strides[i];
        }
        int64_t first = rank == 1 ? index : 0; /* a table of single elements */
        if (rank > 1)
            scale_at += (t.axis == 0 ? index / t.block : index) * scale_strides[0];
        int64_t data_row = rank == 1 ? 0 : index * lines + line, data_width = t.data->dims[last];
        for (int64_t i = 0, n; i < width; i += n) { /* runs of one scale */
            int64_t column = first + i, scale = scale_at + (t.axis == last ? column / t.block : column);
            n = t.axis == last ? t.block - column % t.block : 1;
            n = n > width - i ? width - i : n;
            n = n > LATHE_CHUNK ? LATHE_CHUNK : n;
            int64_t scale_row = scale / t.scales->dims[last], scale_column = scale % t.scales->dims[last];
            int zero = t.zeros ? stored(t.zeros, scale_row, t.zeros->dims[last], scale_column, t.bits) : missing;
            float factor = (float)lathe_read_f64(t.scales, scale), values[LATHE_CHUNK];
            for (int64_t k = 0; k < n; k++)
                values[k] = (float)(stored(t.data, data_row, data_width, column + k, t.bits) - zero) * factor;
            lathe_store(t.y, item * width + i, n, LATHE_KIND_F32, values);
        }
    }
    return LATHE_OK;
}
