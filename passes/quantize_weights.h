/* Weights of one linear layer in 8 bits, rounded for low error of the layer's output. Plain arithmetic of a fixed
 * order: the same bytes on every machine and for every number of threads. */
#ifndef LATHE_QUANTIZE_WEIGHTS_H
#define LATHE_QUANTIZE_WEIGHTS_H

#include "calibration.h"
#include "weight_reader.h"

struct lathe_q8_settings {
    unsigned bits;  /* of the activations: 8 or 7 */
    int weight_max; /* 127, 64 or 63 */
    unsigned sums;  /* groups of 4 k whose products shall fit 16 bits together (bound_sums.h); 0: no matter */
    bool pairs;     /* for gemm_fip (kernel_q8.h): most steps have one bit less; bits 8, sums 0 */
    int jobs;
    bool given; /* the layer has its numbers (reuse_weights.h): only its error is found */
};

/* Everything is the caller's arena's. */
struct lathe_q8_layer {
    int8_t *w;      /* [n][k] */
    float *w_scale; /* [n] */
    int32_t *w_sum; /* [n] with an order: other steps than pairs count twice */
    float *shift;   /* [n] to be added to the bias: the mean error seen, with its sign turned */
    float *x_scale; /* [k], NULL: columns are left as they are */
    uint8_t *order; /* [k] with settings.pairs: w has its steps in this order, x_scale is there; else NULL */
    double error;   /* |y8 - y| / |y| over the sample */
    double alpha;   /* of the smoothing, 0: none */
    int min, max;   /* of w */
    unsigned sums;  /* groups whose products do fit, 4, 2, 1 or 0 */
    /* Weights of the source with scales a block (reuse_weights.h): block 0 when there are none. w_scale is 1 then; w is
     * what linear_q8 has as w, -8 to 7 with `halves`. Cells: [ceil(n / 16)][blocks][16]. */
    int64_t block, blocks;
    bool halves;
    int high;          /* largest magnitude that is multiplied */
    float *cell_scale; /* past n: 0 */
    int8_t *cell_zero; /* NULL: all 0 */
    float *scaled_sum; /* [n] sums of (w - zero) * scale */
    /* weights beyond the range, cut to its end; of the others those that are no multiple of their scale */
    int64_t saturated, rounded;
};

/* `out` arrays are allocated in `arena`, unless they are given. LATHE_INTERNAL with LATHE_MSG_NO_MEMORY when memory
 * runs out. */
LATHE_NODISCARD enum lathe_status lathe_quantize_weights(const struct lathe_weight_reader *weights,
                                                         const struct lathe_calibration_input *input,
                                                         const struct lathe_q8_settings *settings,
                                                         struct lathe_arena *arena, struct lathe_q8_layer *out,
                                                         struct lathe_diag *diag);
#endif
