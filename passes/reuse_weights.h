/* Weights that the source has in 8 bits, for linear_q8 as they are: the same integers and scales, none is rounded
 * again. */
#ifndef LATHE_REUSE_WEIGHTS_H
#define LATHE_REUSE_WEIGHTS_H

#include "quantize_weights.h"

enum lathe_reuse {
    LATHE_REUSE_NONE,    /* they are no integers */
    LATHE_REUSE_WEIGHTS, /* out->w, w_scale, w_sum and shift (zeros), or what blocks have, are filled, in `arena` */
    LATHE_REUSE_REFUSED, /* integers, but not as linear_q8 wants them: `why` says what is different */
};

/* `most` is the largest magnitude that the product takes, 128 or 64. With scales along a column, or numbers of 4 bits,
 * `out` has blocks. Without memory: LATHE_REUSE_WEIGHTS with out->w
 * NULL. */
enum lathe_reuse lathe_reuse_weights(const struct lathe_weight_reader *weights, int most, struct lathe_arena *arena,
                                     struct lathe_q8_layer *out, char *why, size_t size);
/* The same with a scale for each `block` steps of K and column, `block` at least K when there is one a column.
 * `halves`: the numbers fit 4 bits (lathe_weights_fit_halves) and are to be stored so. */
enum lathe_reuse lathe_reuse_blocks(const struct lathe_weight_reader *weights, int64_t block, bool halves, int most,
                                    struct lathe_arena *arena, struct lathe_q8_layer *out, char *why, size_t size);
/* smooth_blocks.c: chooses a power of two for each block of x, out->x_scale, or none, and divides the scales by it.
 * False without memory. */
bool lathe_smooth_blocks(const struct lathe_weight_reader *weights, const struct lathe_calibration_input *input,
                         struct lathe_arena *arena, struct lathe_q8_layer *out);
/* Divides the scales of each block by its factor; false, and nothing is done, where that would not be exact. */
bool lathe_scale_blocks(const struct lathe_weight_reader *weights, const float *factor, struct lathe_q8_layer *out);
bool lathe_weights_fit_halves(const struct lathe_weight_reader *weights);
/* Each column to the nearest of [-most, most] with its own scale, for weights that are looked up as well and need low
 * error in themselves; *error is that, relative, and infinite when a number is not finite. False without memory. */
bool lathe_round_weights(const struct lathe_weight_reader *weights, int most, struct lathe_arena *arena,
                         struct lathe_q8_layer *out, double *error);
#endif
