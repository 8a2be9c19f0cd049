/* What all rows of quantize_rows share: the numbers of a row, and one element. See kernel_q8.h for the meaning. */
#ifndef LATHE_QUANTIZE_BODY_H
#define LATHE_QUANTIZE_BODY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct row_range {
    float scale, inverse; /* inverse 0: every q is 0 */
    int32_t zero;
};

/* Nearest integer, half to even, for |x| < 2^22. */
static inline int32_t nearest(float x) {
    return (int32_t)((x + 12582912.0f) - 12582912.0f);
}

/* lo <= 0 <= hi over the row's numbers; `bad` is NaN when one of them is not finite, else 0. */
static inline struct row_range row_range(float lo, float hi, float bad, unsigned levels, bool even) {
    float range = hi - lo + bad;
    if (!(range < INFINITY))
        return (struct row_range){.scale = NAN};
    if (range < 1e-30f)
        return (struct row_range){.scale = 1.0f};
    struct row_range r = {.scale = range / (float)levels};
    r.inverse = 1.0f / r.scale;
    float zero = (0.0f - lo) * r.inverse, most = (float)(even ? levels & ~1u : levels);
    zero = zero < most ? zero : most;
    r.zero = even ? 2 * nearest(zero * 0.5f) : nearest(zero);
    return r;
}

static inline uint8_t quantized(float x, const struct row_range *r, unsigned levels) {
    int32_t q = nearest(x * r->inverse) + r->zero;
    return (uint8_t)(q < 0 ? 0 : q > (int32_t)levels ? (int32_t)levels : q);
}
#endif
