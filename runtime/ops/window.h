/* The geometry of convolution and pooling: up to three spatial axes, leading ones of length 1 added for fewer. */
#ifndef LATHE_WINDOW_H
#define LATHE_WINDOW_H

#include "tensor.h"

struct lathe_window {
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3];
    int64_t before[3], after[3];       /* padding */
    int64_t in_plane, out_plane, taps; /* products of in, out and kernel */
};
/* From the attributes kernel_shape (or `kernel` dims when not NULL), strides, dilations and pads. False when they do
 * not fit the tensors. */
bool lathe_window_init(struct lathe_window *w, const struct lathe_op_call *call, const struct lathe_tensor *x,
                       const struct lathe_tensor *y, const int64_t *kernel);
/* Input position of tap `tap` for output position `out` along axis i; may lie outside [0, in). */
static inline int64_t lathe_window_at(const struct lathe_window *w, int i, int64_t out, int64_t tap) {
    return out * w->stride[i] + tap * w->dilation[i] - w->before[i];
}
/* Output position p of the plane as coordinates. */
static inline void lathe_window_place(const struct lathe_window *w, int64_t p, int64_t place[3]) {
    place[2] = p % w->out[2];
    p /= w->out[2];
    place[1] = p % w->out[1];
    place[0] = p / w->out[1];
}
#endif
