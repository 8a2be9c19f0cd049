/* Normalisations whose rows are not the last axis: batch, instance and group norm; Lp normalisation of an axis. Sums in
 * double whatever the storage; a plane or channel is computed by one thread. */
#include "op_util.h"
#include "ops.h"

#include <math.h>

/* y = x * scale + shift over n elements from `at`. */
static void affine(const struct lathe_tensor *x, struct lathe_tensor *y, int64_t at, int64_t n, double mean,
                   double scale, double shift) {
    double values[LATHE_CHUNK];
    for (int64_t i = 0; i < n; i += LATHE_CHUNK) {
        int64_t m = n - i < LATHE_CHUNK ? n - i : LATHE_CHUNK;
        lathe_load_f64(x, at + i, m, values);
        for (int64_t j = 0; j < m; j++)
            values[j] = (values[j] - mean) * scale + shift;
        lathe_store(y, at + i, m, LATHE_KIND_F64, values);
    }
}

/* Mean and variance (divided by n) of a run, two passes. */
static void moments(const struct lathe_tensor *x, int64_t at, int64_t n, double *mean, double *variance) {
    double values[LATHE_CHUNK], sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i += LATHE_CHUNK) {
        int64_t m = n - i < LATHE_CHUNK ? n - i : LATHE_CHUNK;
        lathe_load_f64(x, at + i, m, values);
        for (int64_t j = 0; j < m; j++)
            sum += values[j];
    }
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i += LATHE_CHUNK) {
        int64_t m = n - i < LATHE_CHUNK ? n - i : LATHE_CHUNK;
        lathe_load_f64(x, at + i, m, values);
        for (int64_t j = 0; j < m; j++)
            squares += (values[j] - *mean) * (values[j] - *mean);
    }
    *variance = squares / (double)n;
}

static bool float_shapes(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *y = call->out[0];
    return x->dtype == y->dtype && lathe_dtype_is_float(x->dtype) && x->rank >= 1 && x->rank == y->rank &&
           lathe_tensor_count(x) == lathe_tensor_count(y);
}

/* Operands [1, last) have one element a channel. */
static bool per_channel(const struct lathe_op_call *call, unsigned last, int64_t channels) {
    for (unsigned i = 1; i < last; i++)
        if (lathe_tensor_count(call->in[i]) != channels)
            return false;
    return true;
}

enum lathe_status lathe_run_batch_norm(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    double epsilon = lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-5);
    int64_t channels = x->rank > 1 ? x->dims[1] : 1, begin, end;
    if (!float_shapes(call) || !per_channel(call, 5, channels))
        return lathe_bad_shape(call, "batch_norm");
    int64_t inner = x->rank > 2 ? lathe_count_range(x, 2, x->rank) : 1;
    lathe_team_split(&call->team, x->dims[0] * channels, 1 + LATHE_GRAIN / (inner + 1), &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        int64_t c = p % channels;
        double scale = lathe_read_f64(call->in[1], c) / sqrt(lathe_read_f64(call->in[4], c) + epsilon);
        affine(x, y, p * inner, inner, lathe_read_f64(call->in[3], c), scale, lathe_read_f64(call->in[2], c));
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_instance_norm(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    double epsilon = lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-5);
    if (x->rank < 2 || !float_shapes(call) || !per_channel(call, 3, x->dims[1]))
        return lathe_bad_shape(call, "instance_norm");
    int64_t channels = x->dims[1], inner = lathe_count_range(x, 2, x->rank), begin, end;
    lathe_team_split(&call->team, x->dims[0] * channels, 1, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        double mean, variance;
        moments(x, p * inner, inner, &mean, &variance);
        affine(x, y, p * inner, inner, mean, lathe_read_f64(call->in[1], p % channels) / sqrt(variance + epsilon),
               lathe_read_f64(call->in[2], p % channels));
    }
    return LATHE_OK;
}

/* `group` groups of channels; scale and bias one a channel, or one a group (opset 18). */
enum lathe_status lathe_run_group_norm(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    double epsilon = lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-5);
    int64_t groups = lathe_attr_int(&call->attrs, LATHE_ATTR_GROUP, 1);
    if (x->rank < 2 || !float_shapes(call) || groups < 1 || x->dims[1] % groups != 0)
        return lathe_bad_shape(call, "group_norm");
    bool by_group = lathe_tensor_count(call->in[1]) == groups && groups != x->dims[1];
    if (!per_channel(call, 3, by_group ? groups : x->dims[1]))
        return lathe_bad_shape(call, "group_norm");
    int64_t channels = x->dims[1] / groups, inner = lathe_count_range(x, 2, x->rank), begin, end;
    lathe_team_split(&call->team, x->dims[0] * groups, 1, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        double mean, variance;
        moments(x, p * channels * inner, channels * inner, &mean, &variance);
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = by_group ? p % groups : p % groups * channels + c;
            affine(x, y, (p * channels + c) * inner, inner, mean,
                   lathe_read_f64(call->in[1], at) / sqrt(variance + epsilon), lathe_read_f64(call->in[2], at));
        }
    }
    return LATHE_OK;
}

/* x / its norm along `axis`; k: 1 or 2. A row of zeros stays zeros. */
enum lathe_status lathe_run_lp_normalize(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)x->rank - 1), begin, end;
    int64_t p = lathe_attr_int(&call->attrs, LATHE_ATTR_K, 2);
    if (!float_shapes(call) || axis < 0 || axis >= x->rank || (p != 1 && p != 2))
        return lathe_bad_shape(call, "lp_normalize");
    int64_t size = x->dims[axis], inner = lathe_count_range(x, (unsigned)axis + 1, x->rank);
    lathe_team_split(&call->team, lathe_count_range(x, 0, (unsigned)axis) * inner, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++) {
        int64_t base = line / inner * size * inner + line % inner;
        double norm = 0;
        for (int64_t i = 0; i < size; i++) {
            double v = lathe_read_f64(x, base + i * inner);
            norm += p == 1 ? fabs(v) : v * v;
        }
        norm = p == 1 ? norm : sqrt(norm);
        for (int64_t i = 0; i < size; i++) {
            double v = norm == 0 ? 0 : lathe_read_f64(x, base + i * inner) / norm;
            lathe_store(y, base + i * inner, 1, LATHE_KIND_F64, &v);
        }
    }
    return LATHE_OK;
}
