/* Convolution of one to three spatial axes, in groups.
 *
 * f32: blocks of output positions become panels of 16 columns [taps x channels][16] (the positions beside each other as
 * the output has them), and the weights, row-major as they are, multiply them: no image of all windows is ever stored.
 * Other float types take the plain loops in double. */
#include "op_util.h"
#include "ops.h"
#include "panel_gemm.h"
#include "window.h"

#define BLOCK 64 /* output positions a block, a multiple of 16 */

struct conv {
    const struct lathe_tensor *x, *w, *bias;
    struct lathe_tensor *y;
    struct lathe_window window;
    int64_t groups, in_channels, out_channels, k; /* channels of a group; k = in_channels * taps */
};

static bool conv_init(struct conv *c, const struct lathe_op_call *call) {
    c->x = call->in[0];
    c->w = call->in[1];
    c->bias = lathe_operand(call, 2);
    c->y = call->out[0];
    c->groups = lathe_attr_int(&call->attrs, LATHE_ATTR_GROUP, 1);
    if (c->w->rank != c->x->rank || c->w->rank < 3 ||
        !lathe_window_init(&c->window, call, c->x, c->y, c->w->dims + 2) || c->groups < 1 ||
        c->w->dims[0] % c->groups != 0)
        return false;
    c->in_channels = c->w->dims[1];
    c->out_channels = c->w->dims[0] / c->groups;
    return c->x->dims[1] == c->in_channels * c->groups && c->y->dims[1] == c->w->dims[0] &&
           c->y->dims[0] == c->x->dims[0] && lathe_mul_i64(c->in_channels, c->window.taps, &c->k) &&
           (!c->bias || lathe_tensor_count(c->bias) == c->w->dims[0]);
}

size_t lathe_scratch_conv(const struct lathe_op_call *call) {
    struct conv c;
    size_t panels, pack;
    if (!conv_init(&c, call) || c.x->dtype != LATHE_F32)
        return 0;
    pack = lathe_panel_gemm_scratch(c.k);
    return pack && lathe_mul_size((size_t)c.k, BLOCK * sizeof(float), &panels) && lathe_add_size(panels, pack, &panels)
               ? panels
               : 0;
}

/* The windows of positions [first, first + n) as panels; positions past n are zero. */
static void fill_panels(const struct conv *c, const float *x, int64_t first, int64_t n, float *out) {
    const struct lathe_window *w = &c->window;
    int64_t padded = (n + 15) / 16 * 16;
    for (int64_t j = 0; j < padded; j++) {
        float *column = out + j / 16 * c->k * 16 + j % 16;
        if (j >= n) {
            for (int64_t t = 0; t < c->k; t++)
                column[t * 16] = 0;
            continue;
        }
        int64_t place[3];
        lathe_window_place(w, first + j, place);
        for (int64_t channel = 0; channel < c->in_channels; channel++) {
            const float *plane = x + channel * w->in_plane;
            for (int64_t a = 0; a < w->kernel[0]; a++) {
                int64_t d = lathe_window_at(w, 0, place[0], a);
                for (int64_t b = 0; b < w->kernel[1]; b++) {
                    int64_t h = lathe_window_at(w, 1, place[1], b);
                    bool inside = d >= 0 && d < w->in[0] && h >= 0 && h < w->in[1];
                    const float *line = inside ? plane + (d * w->in[1] + h) * w->in[2] : NULL;
                    for (int64_t e = 0; e < w->kernel[2]; e++, column += 16) {
                        int64_t v = lathe_window_at(w, 2, place[2], e);
                        *column = inside && v >= 0 && v < w->in[2] ? line[v] : 0;
                    }
                }
            }
        }
    }
}

static void run_f32(const struct lathe_op_call *call, const struct conv *c) {
    const struct lathe_window *w = &c->window;
    int64_t blocks = (w->out_plane + BLOCK - 1) / BLOCK, begin, end;
    float *panels = call->scratch;
    void *pack = (uint8_t *)call->scratch + (size_t)c->k * BLOCK * sizeof(float);
    const float *bias = c->bias ? c->bias->data : NULL;
    lathe_team_split(&call->team, c->x->dims[0] * c->groups * blocks, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t first = item % blocks * BLOCK, group = item / blocks % c->groups, n = w->out_plane - first;
        int64_t image = item / blocks; /* image and group together: both tensors have them in this order */
        if (n > BLOCK)
            n = BLOCK;
        fill_panels(c, (const float *)c->x->data + image * c->in_channels * w->in_plane, first, n, panels);
        float *y = (float *)c->y->data + image * c->out_channels * w->out_plane + first;
        lathe_panel_gemm(call->kernels, c->out_channels, n, c->k,
                         (const float *)c->w->data + group * c->out_channels * c->k, c->k, panels, NULL, y,
                         w->out_plane, pack);
        for (int64_t m = 0; bias && m < c->out_channels; m++)
            for (int64_t j = 0; j < n; j++)
                y[m * w->out_plane + j] += bias[group * c->out_channels + m];
    }
}

/* One output element in double. */
static double element(const struct conv *c, int64_t image, int64_t out_channel, int64_t p) {
    const struct lathe_window *w = &c->window;
    int64_t place[3], group = out_channel / c->out_channels;
    lathe_window_place(w, p, place);
    double sum = 0;
    int64_t weight = out_channel * c->k;
    for (int64_t channel = 0; channel < c->in_channels; channel++) {
        int64_t plane = ((image * c->groups + group) * c->in_channels + channel) * w->in_plane;
        for (int64_t a = 0; a < w->kernel[0]; a++)
            for (int64_t b = 0; b < w->kernel[1]; b++)
                for (int64_t e = 0; e < w->kernel[2]; e++, weight++) {
                    int64_t d = lathe_window_at(w, 0, place[0], a), h = lathe_window_at(w, 1, place[1], b);
                    int64_t v = lathe_window_at(w, 2, place[2], e);
                    if (d < 0 || d >= w->in[0] || h < 0 || h >= w->in[1] || v < 0 || v >= w->in[2])
                        continue;
                    sum +=
                        lathe_read_f64(c->x, plane + (d * w->in[1] + h) * w->in[2] + v) * lathe_read_f64(c->w, weight);
                }
    }
    return c->bias ? sum + lathe_read_f64(c->bias, out_channel) : sum;
}

enum lathe_status lathe_run_conv(const struct lathe_op_call *call) {
    struct conv c;
    if (!conv_init(&c, call))
        return lathe_bad_shape(call, "conv");
    if (!lathe_dtype_is_float(c.x->dtype) || c.w->dtype != c.x->dtype || c.y->dtype != c.x->dtype ||
        (c.bias && c.bias->dtype != c.x->dtype))
        return lathe_no_dtype(call, "conv", c.x->dtype);
    if (lathe_tensor_count(c.y) == 0)
        return LATHE_OK;
    if (c.x->dtype == LATHE_F32) {
        run_f32(call, &c);
        return LATHE_OK;
    }
    int64_t begin, end, channels = c.y->dims[1];
    lathe_team_split(&call->team, lathe_tensor_count(c.y), 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t p = i % c.window.out_plane, plane = i / c.window.out_plane;
        double v = element(&c, plane / channels, plane % channels, p);
        lathe_store(c.y, i, 1, LATHE_KIND_F64, &v);
    }
    return LATHE_OK;
}
