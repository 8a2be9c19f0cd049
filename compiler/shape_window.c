/* Convolution and pooling: x [B, C, one to three spatial axes]. `pads` is [before of each axis, after of each]. */
#include "shape_internal.h"

#include <inttypes.h>
#include <stdio.h>

#define MAX_SYMBOLS    16
#define LONGEST_WINDOW 65536 /* entries that are tried */

struct window {
    int axes;
    int64_t kernel[3], stride[3], dilation[3], before[3], after[3];
};

static enum lathe_status read_list(struct shape_ctx *c, enum lathe_attr_key key, int count, int64_t min, int64_t absent,
                                   int64_t *out) {
    uint32_t n;
    const int64_t *list = lathe_shape_attr_ints(c, key, &n);
    if (list && n != (uint32_t)count)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "an attribute has %u entries, it must have %d", n, count);
    for (int i = 0; i < count; i++) {
        out[i] = list ? list[i] : absent;
        if (out[i] < min || out[i] > INT32_MAX)
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "an attribute has the entry %lld", (long long)out[i]);
    }
    return LATHE_OK;
}

static enum lathe_status read_window(struct shape_ctx *c, struct window *w, const int64_t *kernel) {
    int64_t pads[6];
    w->axes = lathe_shape_value(c, 0)->rank - 2;
    if (kernel)
        for (int i = 0; i < w->axes; i++)
            w->kernel[i] = kernel[i];
    else
        LATHE_TRY(read_list(c, LATHE_ATTR_KERNEL_SHAPE, w->axes, 1, 0, w->kernel));
    LATHE_TRY(read_list(c, LATHE_ATTR_STRIDES, w->axes, 1, 1, w->stride));
    LATHE_TRY(read_list(c, LATHE_ATTR_DILATIONS, w->axes, 1, 1, w->dilation));
    LATHE_TRY(read_list(c, LATHE_ATTR_PADS, 2 * w->axes, 0, 0, pads));
    for (int i = 0; i < w->axes; i++) {
        w->before[i] = pads[i];
        w->after[i] = pads[i + w->axes];
    }
    return LATHE_OK;
}

/* Bounds the one symbol that `rest` follows from by the least value for which it is not negative: with fewer entries
 * the window does not fit, there is no output, and the source fails. */
static void bound_by_window(struct shape_ctx *c, lathe_dim rest) {
    struct lathe_dims *t = c->g->dims;
    const uint32_t count = lathe_dims_symbol_count(t);
    uint32_t symbol = UINT32_MAX;
    int64_t values[MAX_SYMBOLS], fits;
    if (count > MAX_SYMBOLS)
        return;
    for (uint32_t i = 0; i < count; i++) {
        values[i] = 1;
        if (!lathe_dim_depends_on(t, rest, i))
            continue;
        if (symbol != UINT32_MAX)
            return;
        symbol = i;
    }
    if (symbol == UINT32_MAX)
        return;
    lathe_dim d = lathe_dims_symbol_at(t, symbol);
    int64_t low = lathe_dim_lower(t, d), high = lathe_dim_upper(t, d);
    low = low < 1 ? 1 : low;
    high = high < LONGEST_WINDOW ? high : LONGEST_WINDOW;
    for (fits = low; fits <= high; fits++) {
        int64_t value;
        values[symbol] = fits;
        if (!lathe_dim_eval(t, rest, values, &value))
            return;
        if (value >= 0)
            break;
    }
    if (fits == low || fits > high) /* it fits nowhere: refused by its output's size */
        return;
    lathe_dims_symbol_bound(t, symbol, fits, lathe_dim_upper(t, d));
    char text[256];
    snprintf(text, sizeof text, "axis '%s' is at least %" PRId64 ", the window of node '%.100s'",
             lathe_dims_symbol_name(t, symbol), fits, c->g->nodes[c->n].name);
    lathe_graph_add_note(c->g, NULL, c->g->nodes[c->n].name, text);
}

/* (size + pads - span) / stride + 1, rounded up with `ceil` as long as the last window starts inside. */
static lathe_dim output_size(struct shape_ctx *c, lathe_dim size, const struct window *w, int i, bool ceil) {
    struct lathe_dims *t = c->g->dims;
    int64_t span, free_size;
    if (!lathe_mul_i64(w->kernel[i] - 1, w->dilation[i], &span))
        return LATHE_DIM_NONE;
    if (w->stride[i] == 1 && w->before[i] + w->after[i] == span)
        return size; /* no entry included: a batch without rows */
    lathe_dim rest = lathe_dim_add(t, size, lathe_shape_const(c, w->before[i] + w->after[i] - span - 1));
    if (lathe_dim_lower(t, rest) < 0)
        bound_by_window(c, rest);
    if (lathe_dim_lower(t, rest) < 0 && !lathe_dim_is_const(t, rest, &free_size))
        rest = lathe_dim_max(t, rest, lathe_shape_const(c, 0));
    lathe_dim stride = lathe_shape_const(c, w->stride[i]);
    if (!ceil)
        return lathe_dim_add(t, lathe_dim_floordiv(t, rest, stride), lathe_shape_const(c, 1));
    lathe_dim up =
        lathe_dim_add(t, lathe_dim_floordiv(t, lathe_dim_add(t, rest, lathe_shape_const(c, w->stride[i] - 1)), stride),
                      lathe_shape_const(c, 1));
    /* The last window must not start in the padding behind. */
    lathe_dim most =
        lathe_dim_add(t, lathe_dim_floordiv(t, lathe_dim_add(t, size, lathe_shape_const(c, w->before[i] - 1)), stride),
                      lathe_shape_const(c, 1));
    return lathe_dim_min(t, up, most);
}

static enum lathe_status set_output(struct shape_ctx *c, const struct window *w, lathe_dim channels, bool ceil) {
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    out.d[1] = channels;
    for (int i = 0; i < w->axes; i++) {
        out.d[i + 2] = output_size(c, out.d[i + 2], w, i, ceil);
        if (out.d[i + 2] == LATHE_DIM_NONE || lathe_dim_upper(c->g->dims, out.d[i + 2]) < 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its window is larger than axis %d", i + 2);
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    lathe_shape_set(c, 1, LATHE_I64, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_conv(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 3, 5));
    int rank = lathe_shape_value(c, 0)->rank;
    LATHE_TRY(lathe_shape_need_rank(c, 1, rank, rank));
    struct lathe_graph *g = c->g;
    lathe_value_id x = lathe_shape_in(c, 0), w = lathe_shape_in(c, 1), bias = lathe_shape_in(c, 2);
    struct window window;
    int64_t kernel[3], groups = lathe_shape_attr_int(c, LATHE_ATTR_GROUP, 1), filters;
    lathe_dim unused;
    if (g->values[x].dtype != g->values[w].dtype)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "x and its weights differ in type");
    for (int i = 0; i < rank - 2; i++)
        if (!lathe_value_dim_is(g, w, i + 2, &kernel[i]) || kernel[i] < 1 || kernel[i] > INT32_MAX)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "the size of its window is not constant");
    if (groups < 1 || groups > INT32_MAX || !lathe_value_dim_is(g, w, 0, &filters) || filters % groups)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its filters are no multiple of %lld groups",
                                (long long)groups);
    LATHE_TRY(read_window(c, &window, kernel));
    lathe_dim channels = lathe_dim_mul(g->dims, lathe_value_dim(g, w, 1), lathe_shape_const(c, groups));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, x, 1), channels, &unused));
    if (bias != LATHE_NONE) {
        LATHE_TRY(lathe_shape_need_rank(c, 2, 1, 1));
        LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, bias, 0), lathe_shape_const(c, filters), &unused));
    }
    return set_output(c, &window, lathe_shape_const(c, filters), false);
}

enum lathe_status lathe_shape_pool(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 3, 5));
    struct window window;
    LATHE_TRY(read_window(c, &window, NULL));
    return set_output(c, &window, lathe_value_dim(c->g, lathe_shape_in(c, 0), 1),
                      lathe_shape_attr_int(c, LATHE_ATTR_ROUND, 0) != 0);
}

enum lathe_status lathe_shape_global_pool(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, LATHE_MAX_RANK));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    for (int i = 2; i < out.rank; i++)
        out.d[i] = lathe_shape_const(c, 1);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}
