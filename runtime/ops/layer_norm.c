/* layer_norm, rms_norm and skip_layer_norm. f32 goes to the row kernels; other float types and the seldom wanted mean
 * and inverse deviation are computed in double. */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"

#include <math.h>

static bool f32_or_absent(const struct lathe_tensor *t, int64_t count) {
    return !t || (t->dtype == LATHE_F32 && lathe_tensor_count(t) == count);
}

static const float *f32_of(const struct lathe_tensor *t, int64_t offset) {
    return t ? (const float *)t->data + offset : NULL;
}

/* One row in double; `mean` of RMS norm is 0. Returns mean and inverse deviation. */
static void norm_row(const struct lathe_tensor *x, struct lathe_tensor *y, const struct lathe_tensor *gamma,
                     const struct lathe_tensor *beta, int64_t at, int64_t n, bool centred, double epsilon, double *mean,
                     double *inverse) {
    double values[LATHE_CHUNK], sum = 0, squares = 0;
    for (int64_t i = 0; centred && i < n; i += LATHE_CHUNK) {
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
    *inverse = 1.0 / sqrt(squares / (double)n + epsilon);
    for (int64_t i = 0; i < n; i += LATHE_CHUNK) {
        int64_t m = n - i < LATHE_CHUNK ? n - i : LATHE_CHUNK;
        double factor[LATHE_CHUNK];
        lathe_load_f64(x, at + i, m, values);
        for (int64_t j = 0; j < m; j++)
            values[j] = (values[j] - *mean) * *inverse;
        if (gamma) {
            lathe_load_f64(gamma, i, m, factor);
            for (int64_t j = 0; j < m; j++)
                values[j] *= factor[j];
        }
        if (beta) {
            lathe_load_f64(beta, i, m, factor);
            for (int64_t j = 0; j < m; j++)
                values[j] += factor[j];
        }
        lathe_store(y, at + i, m, LATHE_KIND_F64, values);
    }
}

static enum lathe_status run_norm(const struct lathe_op_call *call, const char *op, bool centred) {
    const struct lathe_tensor *x = call->in[0], *gamma = lathe_operand(call, 1);
    const struct lathe_tensor *beta = centred ? lathe_operand(call, 2) : NULL;
    struct lathe_tensor *y = lathe_result(call, 0), *mean = lathe_result(call, 1), *inverse = lathe_result(call, 2);
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)x->rank - 1);
    double epsilon = lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-5);
    if (axis < 0 || axis > x->rank || !y || lathe_tensor_count(y) != lathe_tensor_count(x))
        return lathe_bad_shape(call, op);
    int64_t rows = lathe_count_range(x, 0, (unsigned)axis), n = lathe_count_range(x, (unsigned)axis, x->rank);
    if ((gamma && lathe_tensor_count(gamma) != n) || (beta && lathe_tensor_count(beta) != n) ||
        (mean && lathe_tensor_count(mean) != rows) || (inverse && lathe_tensor_count(inverse) != rows))
        return lathe_bad_shape(call, op);
    if (!lathe_dtype_is_float(x->dtype))
        return lathe_no_dtype(call, op, x->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, rows, 1, &begin, &end);
    if (begin >= end || n == 0)
        return LATHE_OK;
    if (x->dtype == LATHE_F32 && y->dtype == LATHE_F32 && f32_or_absent(gamma, n) && f32_or_absent(beta, n) && !mean &&
        !inverse) {
        size_t count = (size_t)(end - begin);
        float *out = (float *)y->data + begin * n;
        if (centred)
            call->kernels->layer_norm_f32(count, (size_t)n, f32_of(x, begin * n), NULL, f32_of(gamma, 0),
                                          f32_of(beta, 0), (float)epsilon, out, NULL);
        else
            call->kernels->rms_norm_f32(count, (size_t)n, f32_of(x, begin * n), f32_of(gamma, 0), (float)epsilon, out);
        return LATHE_OK;
    }
    for (int64_t row = begin; row < end; row++) {
        double m, inv;
        norm_row(x, y, gamma, beta, row * n, n, centred, epsilon, &m, &inv);
        if (mean)
            lathe_store(mean, row, 1, LATHE_KIND_F64, &m);
        if (inverse)
            lathe_store(inverse, row, 1, LATHE_KIND_F64, &inv);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_layer_norm(const struct lathe_op_call *call) {
    return run_norm(call, "layer_norm", true);
}

enum lathe_status lathe_run_rms_norm(const struct lathe_op_call *call) {
    return run_norm(call, "rms_norm", false);
}

enum lathe_status lathe_run_skip_layer_norm(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *residual = call->in[1];
    const struct lathe_tensor *gamma = lathe_operand(call, 2), *beta = lathe_operand(call, 3);
    struct lathe_tensor *y = call->out[0], *sum = lathe_result(call, 1);
    int64_t total = lathe_tensor_count(x);
    if (x->rank < 1 || lathe_tensor_count(residual) != total || !y || lathe_tensor_count(y) != total ||
        (sum && lathe_tensor_count(sum) != total))
        return lathe_bad_shape(call, "skip_layer_norm");
    int64_t n = x->dims[x->rank - 1], begin, end;
    if (x->dtype != LATHE_F32 || residual->dtype != LATHE_F32 || y->dtype != LATHE_F32)
        return lathe_no_dtype(call, "skip_layer_norm", x->dtype);
    if (!f32_or_absent(gamma, n) || !f32_or_absent(beta, n))
        return lathe_bad_shape(call, "skip_layer_norm");
    lathe_team_split(&call->team, n ? total / n : 0, 1, &begin, &end);
    if (begin < end)
        call->kernels->layer_norm_f32((size_t)(end - begin), (size_t)n, f32_of(x, begin * n),
                                      f32_of(residual, begin * n), f32_of(gamma, 0), f32_of(beta, 0),
                                      (float)lathe_attr_float(&call->attrs, LATHE_ATTR_EPSILON, 1e-5),
                                      (float *)y->data + begin * n, sum ? (float *)sum->data + begin * n : NULL);
    return LATHE_OK;
}
