/* Pooling over one to three spatial axes. The dims of the output settle ceil_mode; a window's part past the padding
 * does not count. */
#include "op_util.h"
#include "ops.h"
#include "window.h"

#include <math.h>

/* What a window holds: taps inside the input, and taps inside the padded input. */
struct taps {
    int64_t first[3], last[3]; /* taps inside the input: [first, last) by axis; they are one run, dilated or not */
    int64_t padded;
};

static void window_taps(const struct lathe_window *w, const int64_t place[3], struct taps *t) {
    t->padded = 1;
    for (int i = 0; i < 3; i++) {
        int64_t padded = 0;
        t->first[i] = w->kernel[i];
        t->last[i] = 0;
        for (int64_t k = 0; k < w->kernel[i]; k++) {
            int64_t at = lathe_window_at(w, i, place[i], k);
            padded += at >= -w->before[i] && at < w->in[i] + w->after[i];
            if (at < 0 || at >= w->in[i])
                continue;
            if (t->first[i] > k)
                t->first[i] = k;
            t->last[i] = k + 1;
        }
        t->padded *= padded;
    }
}

#define FOR_TAPS(w, t, place, at)                                                                                      \
    for (int64_t k0_ = (t).first[0]; k0_ < (t).last[0]; k0_++)                                                         \
        for (int64_t k1_ = (t).first[1]; k1_ < (t).last[1]; k1_++)                                                     \
            for (int64_t k2_ = (t).first[2],                                                                           \
                         row_ = (lathe_window_at(w, 0, (place)[0], k0_) * (w)->in[1] +                                 \
                                 lathe_window_at(w, 1, (place)[1], k1_)) *                                             \
                                (w)->in[2],                                                                            \
                         at = row_ + lathe_window_at(w, 2, (place)[2], k2_);                                           \
                 k2_ < (t).last[2]; k2_++, at += (w)->dilation[2])

enum pool { POOL_AVERAGE, POOL_LP };

static enum lathe_status run_pool(const struct lathe_op_call *call, const char *name, enum pool pool) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct lathe_window w;
    if (!lathe_dtype_is_float(x->dtype) || x->dtype != y->dtype)
        return lathe_no_dtype(call, name, x->dtype);
    if (!lathe_window_init(&w, call, x, y, NULL) || x->dims[0] != y->dims[0] || x->dims[1] != y->dims[1])
        return lathe_bad_shape(call, name);
    bool padding_counts = lathe_attr_int(&call->attrs, LATHE_ATTR_COUNT_INCLUDE_PAD, 0) != 0;
    double p = (double)lathe_attr_int(&call->attrs, LATHE_ATTR_K, 2);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t place[3], base = i / w.out_plane * w.in_plane, count = 0;
        struct taps t;
        lathe_window_place(&w, i % w.out_plane, place);
        window_taps(&w, place, &t);
        double sum = 0;
        FOR_TAPS(&w, t, place, at) {
            double v = lathe_read_f64(x, base + at);
            sum += pool == POOL_AVERAGE ? v : p == 1 ? fabs(v) : p == 2 ? v * v : pow(fabs(v), p);
            count++;
        }
        if (pool == POOL_AVERAGE)
            sum /= (double)(padding_counts ? t.padded : count);
        else
            sum = p == 1 ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
        lathe_store(y, i, 1, LATHE_KIND_F64, &sum);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_average_pool(const struct lathe_op_call *call) {
    return run_pool(call, "average_pool", POOL_AVERAGE);
}
enum lathe_status lathe_run_lp_pool(const struct lathe_op_call *call) {
    return run_pool(call, "lp_pool", POOL_LP);
}

/* Indices count through the whole input; storage_order 1 lets the first spatial axis run fastest. */
static int64_t max_pool_index(const struct lathe_window *w, int64_t plane, int64_t at, bool column_major) {
    if (column_major) {
        int64_t v = at % w->in[2], h = at / w->in[2] % w->in[1], d = at / w->in[2] / w->in[1];
        at = d + w->in[0] * (h + w->in[1] * v);
    }
    return plane * w->in_plane + at;
}

enum lathe_status lathe_run_max_pool(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = lathe_result(call, 0), *indices = lathe_result(call, 1);
    const struct lathe_tensor *shape = y ? y : indices;
    struct lathe_window w;
    if (!shape || !lathe_window_init(&w, call, x, shape, NULL) || x->dims[0] != shape->dims[0] ||
        x->dims[1] != shape->dims[1] || (y && y->dtype != x->dtype) || (indices && indices->dtype != LATHE_I64))
        return lathe_bad_shape(call, "max_pool");
    bool column_major = lathe_attr_int(&call->attrs, LATHE_ATTR_STORAGE_ORDER, 0) != 0;
    size_t bytes = lathe_dtype_bytes(x->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(shape), 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t place[3], plane = i / w.out_plane, best = -1;
        struct taps t;
        lathe_window_place(&w, i % w.out_plane, place);
        window_taps(&w, place, &t);
        double largest = 0;
        FOR_TAPS(&w, t, place, at) {
            double v = lathe_read_f64(x, plane * w.in_plane + at);
            if (best < 0 || v > largest || (v != v && largest == largest)) {
                best = at;
                largest = v;
            }
        }
        if (y && best >= 0)
            memcpy((uint8_t *)y->data + (size_t)i * bytes,
                   (const uint8_t *)x->data + (size_t)(plane * w.in_plane + best) * bytes, bytes);
        else if (y) { /* a window in the padding alone */
            double none = lathe_dtype_is_float(y->dtype) ? -INFINITY : y->dtype == LATHE_I8 ? -128 : 0;
            lathe_store(y, i, 1, LATHE_KIND_F64, &none);
        }
        if (indices)
            ((int64_t *)indices->data)[i] = best < 0 ? -1 : max_pool_index(&w, plane, best, column_major);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_global_average_pool(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    if (!lathe_dtype_is_float(x->dtype) || x->dtype != y->dtype)
        return lathe_no_dtype(call, "global_average_pool", x->dtype);
    if (x->rank < 2 || lathe_tensor_count(y) != x->dims[0] * x->dims[1])
        return lathe_bad_shape(call, "global_average_pool");
    int64_t plane = lathe_count_range(x, 2, x->rank), begin, end;
    lathe_team_split(&call->team, lathe_tensor_count(y), 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int64_t k = 0; k < plane; k++)
            sum += lathe_read_f64(x, i * plane + k);
        sum /= (double)plane;
        lathe_store(y, i, 1, LATHE_KIND_F64, &sum);
    }
    return LATHE_OK;
}
