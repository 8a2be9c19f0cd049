#include "window.h"

#define LIMIT (INT64_C(1) << 31) /* of every length, so that no index can overflow */

bool lathe_window_init(struct lathe_window *w, const struct lathe_op_call *call, const struct lathe_tensor *x,
                       const struct lathe_tensor *y, const int64_t *kernel) {
    uint32_t n_kernel, n_strides, n_dilations, n_pads;
    const int64_t *shape = lathe_attr_ints(&call->attrs, LATHE_ATTR_KERNEL_SHAPE, &n_kernel);
    const int64_t *strides = lathe_attr_ints(&call->attrs, LATHE_ATTR_STRIDES, &n_strides);
    const int64_t *dilations = lathe_attr_ints(&call->attrs, LATHE_ATTR_DILATIONS, &n_dilations);
    const int64_t *pads = lathe_attr_ints(&call->attrs, LATHE_ATTR_PADS, &n_pads);
    if (x->rank < 3 || x->rank > 5 || y->rank != x->rank)
        return false;
    unsigned axes = x->rank - 2;
    if ((!kernel && n_kernel != axes) || (strides && n_strides != axes) || (dilations && n_dilations != axes) ||
        (pads && n_pads != 2 * axes))
        return false;
    w->in_plane = w->out_plane = w->taps = 1;
    for (unsigned i = 0; i < 3; i++) {
        bool real = i + axes >= 3;
        unsigned k = i + axes - 3; /* the axis in the attributes */
        w->in[i] = real ? x->dims[2 + k] : 1;
        w->out[i] = real ? y->dims[2 + k] : 1;
        w->kernel[i] = !real ? 1 : kernel ? kernel[k] : shape[k];
        w->stride[i] = real && strides ? strides[k] : 1;
        w->dilation[i] = real && dilations ? dilations[k] : 1;
        w->before[i] = real && pads ? pads[k] : 0;
        w->after[i] = real && pads ? pads[k + axes] : 0;
        if (w->kernel[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->in[i] >= LIMIT || w->out[i] >= LIMIT ||
            w->kernel[i] >= LIMIT || w->stride[i] >= LIMIT / 2 || w->dilation[i] >= LIMIT / 2 ||
            w->before[i] >= LIMIT || w->before[i] <= -LIMIT || !lathe_mul_i64(w->taps, w->kernel[i], &w->taps))
            return false;
        w->in_plane *= w->in[i];
        w->out_plane *= w->out[i];
    }
    return true;
}
