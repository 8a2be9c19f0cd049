/* softmax and log_softmax along one axis. The last axis in f32 goes to the row kernel; the rest is computed in double.
 */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"

#include <math.h>
#include <string.h>

struct axis_shape {
    int64_t outer, n, inner;
};

static bool axis_shape(const struct lathe_op_call *call, struct axis_shape *s) {
    const struct lathe_tensor *x = call->in[0], *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)x->rank - 1);
    if (x->rank == 0) {
        *s = (struct axis_shape){1, 1, 1};
        return lathe_tensor_count(y) == 1;
    }
    if (axis < 0 || axis >= x->rank || lathe_tensor_count(x) != lathe_tensor_count(y))
        return false;
    s->outer = lathe_count_range(x, 0, (unsigned)axis);
    s->n = x->dims[axis];
    s->inner = lathe_count_range(x, (unsigned)axis + 1, x->rank);
    return true;
}

/* One line of n elements, `step` apart, from `at`; may be in place. */
static void line_in_double(const struct lathe_tensor *x, struct lathe_tensor *y, int64_t at, int64_t n, int64_t step,
                           bool logarithm) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = lathe_read_f64(x, at + i * step);
        max = v > max ? v : max;
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp(lathe_read_f64(x, at + i * step) - max);
    double log_sum = log(sum);
    for (int64_t i = 0; i < n; i++) {
        double v = lathe_read_f64(x, at + i * step) - max;
        v = logarithm ? v - log_sum : exp(v) / sum;
        lathe_store(y, at + i * step, 1, LATHE_KIND_F64, &v);
    }
}

static enum lathe_status run_softmax(const struct lathe_op_call *call, const char *op, bool logarithm) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct axis_shape s;
    if (!lathe_dtype_is_float(x->dtype) || y->dtype != x->dtype)
        return lathe_no_dtype(call, op, x->dtype);
    if (!axis_shape(call, &s))
        return lathe_bad_shape(call, op);
    int64_t begin, end;
    lathe_team_split(&call->team, s.outer * s.inner, 1, &begin, &end);
    if (begin >= end || s.n == 0)
        return LATHE_OK;
    /* a row without any key must not get a share of the bucket's padding */
    bool cuts = !logarithm && call->tokens > 0 && call->tokens < s.n && s.n == call->token_places &&
                lathe_attr_int(&call->attrs, LATHE_ATTR_TOKENS, 0);
    if (cuts) {
        size_t each = lathe_dtype_bytes(x->dtype);
        for (int64_t i = begin; i < end; i++) {
            int64_t at = i / s.inner * s.n * s.inner + i % s.inner;
            if (x->dtype == LATHE_F32 && s.inner == 1)
                call->kernels->softmax_f32(1, (size_t)call->tokens, (const float *)x->data + at, (float *)y->data + at);
            else
                line_in_double(x, y, at, call->tokens, s.inner, false);
            for (int64_t k = call->tokens; k < s.n; k++)
                memset((char *)y->data + (size_t)(at + k * s.inner) * each, 0, each);
        }
        return LATHE_OK;
    }
    if (x->dtype == LATHE_F32 && s.inner == 1 && !logarithm) {
        call->kernels->softmax_f32((size_t)(end - begin), (size_t)s.n, (const float *)x->data + begin * s.n,
                                   (float *)y->data + begin * s.n);
        return LATHE_OK;
    }
    for (int64_t i = begin; i < end; i++)
        line_in_double(x, y, i / s.inner * s.n * s.inner + i % s.inner, s.n, s.inner, logarithm);
    return LATHE_OK;
}

enum lathe_status lathe_run_softmax(const struct lathe_op_call *call) {
    return run_softmax(call, "softmax", false);
}

enum lathe_status lathe_run_log_softmax(const struct lathe_op_call *call) {
    return run_softmax(call, "log_softmax", true);
}
