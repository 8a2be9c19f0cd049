/* How the weights are chosen.
 *
 * Smoothing: a column of x with large values widens the range of every row. Scaled by r[k], and row k of w by 1/r[k],
 * the product stays; r follows from how far the column of x and the row of w reach. Scale of an output column: the one
 * of a few below its largest magnitude that has the least error, weighted by how much the inputs use each weight.
 * Rounding: coordinate descent on |X (q - w)|^2 over the sample. The first sweep rounds one weight after the other, the
 * most used first, so that each takes up the error of those before it; further sweeps choose each anew against all
 * others. A ridge keeps q near w, as a sample says little of other text: the noise of the quantized inputs, and twice
 * the input's own energy. Rows count relative to their size: tokens with huge activations would drown the others. What
 * the mean error still is goes into the bias.
 *
 * Measured on MiniLM-L6 (cosine of 400 real sentences with f32, mean / min, same nearest neighbour; two calibrations):
 *   8-bit inputs: made-up ids 0.9994 / 0.9984 / 0.94, built-in sentences 0.9994 / 0.9986 / 0.96
 *   7-bit inputs: made-up ids 0.9985 / 0.9952 / 0.91, built-in sentences 0.9986 / 0.9966 / 0.93
 * Over 1000 sentences, built-in calibration, 663 rows: u8s8 0.9995 / 0.9983 / 0.94 (attention in 8 bits too), u8s7
 * 0.9990 / 0.9971 / 0.94, u8s8_sum4 0.9990 / 0.9970 / 0.94, u8s8_sum2 0.9993 / 0.9977 / 0.94, u7s8 0.9986 / 0.9947 /
 * 0.92. Of u8s8's error 0.0004 is the inputs'; 7-bit weights add 0.0006, and with any number of rows of real text to
 * round by still 0.0005. Searching the exponent for each layer, a small ridge or rows as they are lose accuracy on
 * other text than the sample: rows as they are with a small ridge on uniform ids gave 0.984.
 *
 * Every fourth row of the sample takes no part in these choices; the error that is reported is that on these rows. */
#include "quantize_weights.h"

#include "arena.h"
#include "bound_sums.h"
#include "kernel_q8.h"
#include "pair_steps.h"
#include "threads.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES      16
#define SWEEPS     1
#define RIDGE      2.0f
#define TRIAL_ROWS 64
#define WORSE      1.5 /* squared error of a sample with smoothing, relative: above this it is left out */
#define HOLD_OUT   4

/* 16 output columns side by side; the compiler has the widest registers of the plain architecture for them. */
typedef float quad __attribute__((vector_size(16)));
struct lanes {
    quad v[LANES / 4];
};

struct used {
    float energy;
    int32_t index;
};

/* What became of a column's weights. */
struct counts {
    int min, max;
    int64_t saturated, rounded;
};

struct rounding {
    const struct lathe_weight_reader *weights;
    const struct lathe_q8_settings *settings;
    struct lathe_q8_layer *out;
    int64_t k, n, rows, held, padded; /* rows to learn from, then `held` to judge by */
    const float *unscale;             /* [k] 1 / r */
    const bool *whole;                /* [k] with settings.pairs: columns of 8 bits; else NULL */
    float *x;                         /* [k][padded] scaled inputs, column by column */
    float *noise;                     /* [rows + held][k] quantized inputs less x */
    float *weight;                    /* [rows + held] what x and noise are multiplied by */
    float *energy, *ridge;            /* [k] of the rows to learn from */
    struct used *order;               /* [k] by falling energy */
    double *error, *size;             /* [n] sums of squares over the held rows */
    struct counts *counts;            /* [n] */
    float *scratch;                   /* of all threads */
    size_t scratch_floats;            /* of one */
};

/* Half to even, for |v| < 2^22. */
static inline float nearest(float v) {
    return (v + 12582912.0f) - 12582912.0f;
}

static inline float clamp(float v, float limit) {
    return v < -limit ? -limit : v > limit ? limit : v;
}

static inline struct lanes lanes_load(const float *p) {
    struct lanes l;
    memcpy(&l, p, sizeof l);
    return l;
}

static inline void lanes_store(float *p, struct lanes l) {
    memcpy(p, &l, sizeof l);
}

/* acc += a * b */
static inline void lanes_add(struct lanes *acc, float a, struct lanes b) {
    for (int i = 0; i < LANES / 4; i++)
        acc->v[i] += a * b.v[i];
}

/* What a row of x becomes whose columns have two precisions (struct lathe_fip_rows). */
static void quantize_pairs(const float *x, const bool *whole, int64_t k, float *out) {
    float low = 0, high = 0;
    for (int64_t i = 0; i < k; i++) {
        float v = whole[i] ? x[i] * 0.5f : x[i];
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    float scale = (high - low) / 255;
    scale = scale > 0 ? scale : 1;
    float inverse = 1 / scale, zero = -low * inverse;
    zero = 2 * nearest((zero < 254 ? zero : 254) * 0.5f);
    for (int64_t i = 0; i < k; i++) {
        float q = nearest((whole[i] ? x[i] * 0.5f : x[i]) * inverse) + zero;
        q = q < 0 ? 0 : q > 255 ? 255 : q;
        out[i] = 2 * scale * (whole[i] ? q - zero : nearest(q * 0.5f) - zero * 0.5f);
    }
}

/* What a row of x becomes: its nearest representable values (runtime operator linear_q8). `whole` may be NULL. */
static void quantize_row(const float *x, const bool *whole, int64_t k, unsigned bits, float *out) {
    if (whole) {
        quantize_pairs(x, whole, k, out);
        return;
    }
    float low = 0, high = 0, levels = (float)((1u << bits) - 1);
    for (int64_t i = 0; i < k; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float scale = (high - low) / levels;
    scale = scale > 0 ? scale : 1;
    float inverse = 1 / scale, zero = nearest(-low * inverse);
    for (int64_t i = 0; i < k; i++) {
        float q = nearest(x[i] * inverse) + zero;
        q = q < 0 ? 0 : q > levels ? levels : q;
        out[i] = (q - zero) * scale;
    }
}

/* The largest magnitude of weight i. */
static float limit_of(const struct lathe_q8_settings *settings, const bool *whole, int64_t i) {
    return whole && !whole[i] ? LATHE_FIP_MOST_WEIGHT : (float)settings->weight_max;
}

/* ---- a block of output columns */

/* Columns [first, first + 16) as w[k][16] with rows multiplied by 1 / r; `columns` is scratch of 16 k floats. */
static void read_block(const struct lathe_weight_reader *weights, int64_t first, const float *unscale, float *columns,
                       float *w) {
    int64_t count = weights->n - first < LANES ? weights->n - first : LANES, k = weights->k;
    memset(w, 0, (size_t)k * LANES * sizeof *w);
    lathe_weight_reader_columns(weights, first, count, columns);
    for (int64_t c = 0; c < count; c++)
        for (int64_t i = 0; i < k; i++)
            w[i * LANES + c] = columns[c * k + i] * (unscale ? unscale[i] : 1);
}

/* Of each column the scale with which no weight is beyond its limit. Where sums are bound that is half the range. */
static void least_scales(const float *w, int64_t k, const struct lathe_q8_settings *settings, const bool *whole,
                         float out[LANES]) {
    memset(out, 0, LANES * sizeof *out);
    for (int64_t i = 0; i < k; i++) {
        float limit = settings->sums ? LATHE_Q8_NARROW : limit_of(settings, whole, i);
        for (int c = 0; c < LANES; c++) {
            float scale = fabsf(w[i * LANES + c]) / limit;
            out[c] = scale > out[c] ? scale : out[c];
        }
    }
}

/* Where sums are bound, a scale may be so large that few weights are beyond half the range, or so small that many are
 * cut: the trials begin at the largest weight at LATHE_Q8_NARROW. */

/* The scale of each column of the block; `trial` is scratch of 16 k floats. */
static void choose_scales(const struct rounding *j, const float *w, float *trial, float scale[LANES]) {
    static const float of_one[] = {1.0f, 0.96f, 0.92f, 0.88f, 0.84f, 0.8f, 0.75f, 0.7f, 0};
    static const float of_sums[] = {2.0f,  1.8f,  1.6f,  1.45f, 1.3f, 1.2f, 1.1f, 1.0f,
                                    0.92f, 0.84f, 0.76f, 0.7f,  0.6f, 0.5f, 0};
    const float *shares = j->settings->sums ? of_sums : of_one;
    float top[LANES], best[LANES] = {0}, most = (float)lathe_sum16_limit(j->settings->bits);
    least_scales(w, j->k, j->settings, j->whole, top);
    for (size_t t = 0; shares[t] > 0; t++) {
        float s[LANES], inverse[LANES], error[LANES] = {0};
        for (int c = 0; c < LANES; c++) {
            s[c] = top[c] > 0 ? top[c] * shares[t] : 1;
            inverse[c] = 1 / s[c];
        }
        for (int64_t i = 0; i < j->k; i++)
            for (int c = 0; c < LANES; c++)
                trial[i * LANES + c] = w[i * LANES + c] * inverse[c];
        if (j->settings->sums)
            lathe_sum16_project(trial, j->k, j->settings->sums, most, trial, NULL);
        for (int64_t i = 0; i < j->k; i++) {
            float limit = limit_of(j->settings, j->whole, i);
            for (int c = 0; c < LANES; c++) {
                float v = w[i * LANES + c], d = clamp(nearest(trial[i * LANES + c]), limit) * s[c] - v;
                error[c] += (j->energy[i] + j->ridge[i]) * (d * d);
            }
        }
        for (int c = 0; c < LANES; c++)
            if (t == 0 || error[c] < best[c]) {
                best[c] = error[c];
                scale[c] = s[c];
            }
    }
}

static void given_scales(const struct rounding *j, int64_t first, float scale[LANES]) {
    for (int64_t c = 0; c < LANES; c++)
        scale[c] = first + c < j->n ? j->out->w_scale[first + c] : 1;
}

/* Weight i of the columns goes from `before` to `now`. */
static void add_to_errors(const struct rounding *j, int64_t i, const float *before, const float *now, float *e) {
    const float *x = j->x + i * j->padded;
    struct lanes steps;
    for (int c = 0; c < LANES; c++)
        steps.v[c / 4][c % 4] = now[c] - before[c];
    for (int64_t r = 0; r < j->rows; r++) {
        struct lanes l = lanes_load(e + r * LANES);
        lanes_add(&l, x[r], steps);
        lanes_store(e + r * LANES, l);
    }
}

/* How far up and down weight i of each column may go, the other weights of its sum being what they are now. */
static void room_in_sums(const struct rounding *j, int64_t i, const float *sums, const float *q, float up[LANES],
                         float down[LANES]) {
    unsigned groups = j->settings->sums;
    float limit = (float)j->settings->weight_max, most = (float)lathe_sum16_limit(j->settings->bits);
    const float *plus = sums + lathe_sum16_of(i, groups) * LANES;
    const float *minus = plus + lathe_sum16_count(j->k, groups) * LANES;
    for (int c = 0; c < LANES; c++) {
        float now = q[i * LANES + c];
        /* a bit more than there is: the sums are of floats, and whole numbers in the end */
        float above = floorf(most - plus[c] + (now > 0 ? now : 0) + 1e-3f);
        float below = floorf(most - minus[c] + (now < 0 ? -now : 0) + 1e-3f);
        up[c] = above < 0 ? 0 : above > limit ? limit : above;
        down[c] = below < 0 ? 0 : below > limit ? limit : below;
    }
}

static void move_in_sums(const struct rounding *j, int64_t i, float *sums, int c, float before, float now) {
    unsigned groups = j->settings->sums;
    float *plus = sums + lathe_sum16_of(i, groups) * LANES + c;
    float *minus = plus + lathe_sum16_count(j->k, groups) * LANES;
    *plus += (now > 0 ? now : 0) - (before > 0 ? before : 0);
    *minus += (now < 0 ? -now : 0) - (before < 0 ? -before : 0);
}

/* Rounds w (in units of its scale) to q; e[rows][16] becomes X (q - w). `sums` is scratch of lathe_sum16_project. */
static void round_block(const struct rounding *j, const float *w, float *q, float *e, float *sums) {
    float up[LANES], down[LANES];
    memset(e, 0, (size_t)j->rows * LANES * sizeof *e);
    if (j->settings->sums) {
        lathe_sum16_project(w, j->k, j->settings->sums, (float)lathe_sum16_limit(j->settings->bits), q, sums);
        for (int64_t i = 0; i < j->k; i++)
            if (memcmp(q + i * LANES, w + i * LANES, LANES * sizeof *q) != 0)
                add_to_errors(j, i, w + i * LANES, q + i * LANES, e);
    } else {
        memcpy(q, w, (size_t)j->k * LANES * sizeof *q);
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int64_t t = 0; t < j->k; t++) {
            int64_t i = j->order[t].index;
            const float *x = j->x + i * j->padded;
            float limit = limit_of(j->settings, j->whole, i);
            float energy = j->energy[i], inverse = energy > 0 ? 1 / (energy + j->ridge[i]) : 0, next[LANES];
            struct lanes sum = {0};
            for (int64_t r = 0; energy > 0 && r < j->rows; r++)
                lanes_add(&sum, x[r], lanes_load(e + r * LANES));
            for (int c = 0; c < LANES; c++)
                up[c] = down[c] = limit;
            if (j->settings->sums)
                room_in_sums(j, i, sums, q, up, down);
            for (int c = 0; c < LANES; c++) {
                float before = q[i * LANES + c], own = w[i * LANES + c];
                float others = sum.v[c / 4][c % 4] - energy * (before - own);
                float now = nearest(clamp(own - others * inverse, 2 * limit));
                next[c] = now > up[c] ? up[c] : now < -down[c] ? -down[c] : now;
                if (j->settings->sums)
                    move_in_sums(j, i, sums, c, before, next[c]);
            }
            if (energy > 0)
                add_to_errors(j, i, q + i * LANES, next, e);
            memcpy(q + i * LANES, next, sizeof next);
        }
    }
}

/* The mean error over the rows to learn from, and the sums over the held rows. */
static void judge_block(const struct rounding *j, int64_t first, const float *w, const float *q, const float *e,
                        const float scale[LANES]) {
    int64_t count = j->n - first < LANES ? j->n - first : LANES;
    struct lanes mean = {0};
    float weights = 0;
    for (int64_t r = 0; r < j->rows; r++) {
        lanes_add(&mean, j->weight[r], lanes_load(e + r * LANES));
        weights += j->weight[r] * j->weight[r];
    }
    for (int c = 0; c < LANES / 4; c++)
        mean.v[c] /= weights > 0 ? weights : 1;
    double error[LANES] = {0}, size[LANES] = {0};
    for (int64_t r = 0; r < j->held; r++) {
        struct lanes off = {0}, y = {0};
        for (int64_t i = 0; i < j->k; i++) {
            float x = j->x[i * j->padded + j->rows + r];
            struct lanes wi = lanes_load(w + i * LANES), qi = lanes_load(q + i * LANES);
            lanes_add(&y, x, wi);
            for (int c = 0; c < LANES / 4; c++)
                wi.v[c] = qi.v[c] - wi.v[c];
            lanes_add(&off, x, wi);
            lanes_add(&off, j->noise[(j->rows + r) * j->k + i], qi);
        }
        for (int c = 0; c < LANES; c++) {
            double d = (off.v[c / 4][c % 4] - j->weight[j->rows + r] * mean.v[c / 4][c % 4]) * (double)scale[c];
            double v = y.v[c / 4][c % 4] * (double)scale[c];
            error[c] += d * d;
            size[c] += v * v;
        }
    }
    for (int64_t c = 0; c < count; c++) {
        j->error[first + c] = error[c];
        j->size[first + c] = size[c];
        j->out->shift[first + c] = -mean.v[c / 4][c % 4] * scale[c];
    }
}

static void store_block(const struct rounding *j, int64_t first, const float *q, const float scale[LANES]) {
    int64_t count = j->n - first < LANES ? j->n - first : LANES;
    for (int64_t c = 0; c < count; c++) {
        int8_t *to = j->out->w + (first + c) * j->k;
        const uint8_t *order = j->out->order;
        int32_t sum = 0;
        for (int64_t i = 0; i < j->k; i++) {
            int64_t from = order ? i / 64 * 64 + order[i] : i;
            int v = (int)q[from * LANES + c];
            to[i] = (int8_t)v;
            sum += j->whole && j->whole[from] ? 2 * v : v;
        }
        j->out->w_scale[first + c] = scale[c];
        j->out->w_sum[first + c] = sum;
    }
}

static void count_block(const struct rounding *j, int64_t first, const float *w, const float *q) {
    int64_t count = j->n - first < LANES ? j->n - first : LANES;
    for (int64_t c = 0; c < count; c++) {
        struct counts *n = &j->counts[first + c];
        for (int64_t i = 0; i < j->k; i++) {
            float want = w[i * LANES + c];
            int v = (int)nearest(q[i * LANES + c]);
            n->min = i == 0 || v < n->min ? v : n->min;
            n->max = i == 0 || v > n->max ? v : n->max;
            bool beyond = !j->settings->given && fabsf(want) > limit_of(j->settings, j->whole, i) + 0.5f;
            n->saturated += beyond;
            n->rounded += !beyond && fabsf(want - nearest(want)) > 1e-3f;
        }
    }
}

static void round_blocks(void *user, const struct lathe_team *team) {
    const struct rounding *j = user;
    int64_t begin, end;
    lathe_team_split(team, (j->n + LANES - 1) / LANES, 1, &begin, &end);
    float *w = j->scratch + team->index * j->scratch_floats, *q = w + j->k * LANES, *e = q + j->k * LANES;
    float *sums = e + j->rows * LANES;
    for (int64_t b = begin; b < end; b++) {
        float scale[LANES];
        read_block(j->weights, b * LANES, j->unscale, q, w);
        if (j->settings->given)
            given_scales(j, b * LANES, scale);
        else
            choose_scales(j, w, q, scale);
        for (int64_t i = 0; i < j->k; i++)
            for (int c = 0; c < LANES; c++)
                w[i * LANES + c] *= 1 / scale[c];
        if (j->settings->given) {
            memset(e, 0, (size_t)j->rows * LANES * sizeof *e);
            memcpy(q, w, (size_t)j->k * LANES * sizeof *q);
        } else {
            round_block(j, w, q, e, sums);
        }
        judge_block(j, b * LANES, w, q, e, scale);
        if (!j->out->block)
            count_block(j, b * LANES, w, q);
        if (!j->settings->given)
            store_block(j, b * LANES, q, scale);
    }
}

/* ---- smoothing */

/* Largest magnitude in each row of w; false when there is an infinity or NaN. */
static bool row_maxima(const struct lathe_weight_reader *weights, float *columns, float *out) {
    bool finite = true;
    for (int64_t first = 0; first < weights->n; first += LANES) {
        int64_t count = weights->n - first < LANES ? weights->n - first : LANES;
        lathe_weight_reader_columns(weights, first, count, columns);
        for (int64_t c = 0; c < count; c++)
            for (int64_t i = 0; i < weights->k; i++) {
                float v = fabsf(columns[c * weights->k + i]);
                finite &= v <= FLT_MAX;
                out[i] = v > out[i] ? v : out[i];
            }
    }
    return finite;
}

/* How far a column of x reaches, each row taken relative to its size: between the root mean square and the maximum, so
 * that it neither hangs on one odd row nor forgets rare large values. */
static void column_reach(const struct lathe_calibration_input *input, float *out) {
    for (int64_t row = 0; row < input->rows; row++) {
        const float *x = input->sample + row * input->k;
        double size = 0;
        for (int64_t i = 0; i < input->k; i++)
            size += (double)x[i] * (double)x[i];
        if (!(size > 0))
            continue;
        float inverse = (float)((double)input->k / size);
        for (int64_t i = 0; i < input->k; i++) {
            float square = x[i] * x[i] * inverse;
            out[i] += square * square;
        }
    }
    for (int64_t i = 0; i < input->k; i++)
        out[i] = sqrtf(sqrtf(out[i] / (float)input->rows));
}

/* r of each column. Columns or rows of nothing keep away from the ends. */
static void smoothing(const float *reach, const float *row_max, int64_t k, double alpha, float *r) {
    float top_x = 0, top_w = 0;
    for (int64_t i = 0; i < k; i++) {
        top_x = reach[i] > top_x ? reach[i] : top_x;
        top_w = row_max[i] > top_w ? row_max[i] : top_w;
    }
    for (int64_t i = 0; i < k; i++) {
        double x = fmax(top_x > 0 ? reach[i] / (double)top_x : 1, 1e-4);
        double w = fmax(top_w > 0 ? row_max[i] / (double)top_w : 1, 1e-4);
        /* a power of two and a few bits: scaling by it loses nothing that matters, and is the same everywhere */
        double exact = pow(w, 1 - alpha) / pow(x, alpha);
        int exponent;
        double mantissa = frexp(exact, &exponent);
        r[i] = (float)ldexp(rint(mantissa * 256) / 256, exponent);
    }
}

struct trial {
    const struct lathe_weight_reader *weights;
    const struct lathe_calibration_input *input;
    const struct lathe_q8_settings *settings;
    const bool *whole;
    float *columns, *w, *q, *x, *noise; /* scratch: 16 k each, x and noise k */
    int64_t rows;
};

/* Error of some output columns with smoothing r (NULL: none) and rounding to the nearest. */
static double try_smoothing(const struct trial *t, const float *r, float *unscale) {
    int64_t k = t->weights->k, blocks = (t->weights->n + LANES - 1) / LANES, tried = blocks < 6 ? blocks : 6;
    double total = 0;
    for (int64_t i = 0; r && i < k; i++)
        unscale[i] = 1 / r[i];
    for (int64_t b = 0; b < tried; b++) {
        int64_t first = (tried > 1 ? b * (blocks - 1) / (tried - 1) : 0) * LANES;
        float top[LANES];
        read_block(t->weights, first, r ? unscale : NULL, t->columns, t->w);
        least_scales(t->w, k, t->settings, t->whole, top);
        for (int c = 0; c < LANES; c++)
            top[c] = top[c] > 0 ? top[c] : 1;
        for (int64_t i = 0; i < k; i++)
            for (int c = 0; c < LANES; c++)
                t->q[i * LANES + c] = nearest(t->w[i * LANES + c] / top[c]) * top[c];
        double error[LANES] = {0}, size[LANES] = {0};
        for (int64_t row = 0; row < t->rows; row++) {
            const float *x = t->input->sample + row * t->input->rows / t->rows * k;
            struct lanes off = {0}, y = {0};
            double norm = 0;
            for (int64_t i = 0; i < k; i++) {
                t->x[i] = x[i] * (r ? r[i] : 1);
                norm += (double)x[i] * (double)x[i];
            }
            quantize_row(t->x, t->whole, k, t->settings->bits, t->noise);
            for (int64_t i = 0; i < k; i++) {
                lanes_add(&off, t->noise[i], lanes_load(t->q + i * LANES));
                lanes_add(&off, -t->x[i], lanes_load(t->w + i * LANES));
                lanes_add(&y, t->x[i], lanes_load(t->w + i * LANES));
            }
            for (int c = 0; c < LANES && norm > 0; c++) {
                error[c] += (double)off.v[c / 4][c % 4] * (double)off.v[c / 4][c % 4] / norm;
                size[c] += (double)y.v[c / 4][c % 4] * (double)y.v[c / 4][c % 4] / norm;
            }
        }
        for (int c = 0; c < LANES; c++)
            total += size[c] > 0 ? error[c] / size[c] : 0;
    }
    return total;
}

/* Whether the columns are scaled: nearly always it pays, most where a few columns are large. How much is not searched
 * for: the error of one layer on a sample does not tell exponents apart that the whole model does. */
static bool choose_smoothing(struct trial *t, const float *reach, const float *row_max, float *r, float *unscale,
                             double *alpha) {
    /* Weights are rounded for low error, inputs are not: the more of the load goes to the weights, unless they have 7
     * bits. u8s8 with 0.5, 0.6, 0.7 on 1000 sentences that are no calibration: mean 0.99943, 0.99950, 0.99941, minimum
     * 0.9976, 0.9982, 0.9958. */
    bool narrow = t->settings->pairs || t->settings->weight_max <= LATHE_Q8_NARROW;
    double exponent = narrow ? 0.5 : 0.6, plain = try_smoothing(t, NULL, unscale);
    smoothing(reach, row_max, t->weights->k, exponent, r);
    double smoothed = try_smoothing(t, r, unscale);
    *alpha = smoothed < WORSE * plain ? exponent : 0;
    return *alpha > 0;
}

/* ---- a layer */

static int by_energy(const void *a, const void *b) {
    const struct used *x = a, *y = b;
    if (x->energy != y->energy)
        return x->energy > y->energy ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Row r of the sample in the order of use: those to learn from, then the held ones, which are all where there are few.
 */
static int64_t sample_row(int64_t rows, int64_t held, int64_t r) {
    if (held == rows)
        return r % rows;
    return r < rows ? r / (HOLD_OUT - 1) * HOLD_OUT + r % (HOLD_OUT - 1) : (r - rows) * HOLD_OUT + HOLD_OUT - 1;
}

static void fill_inputs(struct rounding *j, const struct lathe_calibration_input *input, const float *r, float *row) {
    double noise = 0;
    for (int64_t t = 0; t < j->rows + j->held; t++) {
        const float *x = input->sample + sample_row(j->rows, j->held, t) * j->k;
        float *out = j->noise + t * j->k;
        for (int64_t i = 0; i < j->k; i++)
            row[i] = x[i] * (r ? r[i] : 1);
        quantize_row(row, j->whole, j->k, j->settings->bits, out);
        float size = 0;
        for (int64_t i = 0; i < j->k; i++)
            size += row[i] * row[i];
        float weight = size > 0 ? 1 / sqrtf(size / (float)j->k) : 0;
        j->weight[t] = weight;
        for (int64_t i = 0; i < j->k; i++) {
            out[i] = (out[i] - row[i]) * weight;
            row[i] *= weight;
            j->x[i * j->padded + t] = row[i];
            noise += t < j->rows ? (double)out[i] * (double)out[i] : 0;
        }
    }
    for (int64_t i = 0; i < j->k; i++) {
        float sum = 0;
        for (int64_t t = 0; t < j->rows; t++)
            sum += j->x[i * j->padded + t] * j->x[i * j->padded + t];
        j->energy[i] = sum;
        j->ridge[i] = RIDGE * sum + (float)(noise / (double)j->k);
        j->order[i] = (struct used){sum, (int32_t)i};
    }
}

static enum lathe_status run(struct rounding *j, struct lathe_diag *diag) {
    struct lathe_pool *pool = NULL;
    unsigned jobs = j->settings->jobs < 1 ? 0 : (unsigned)j->settings->jobs;
    jobs = jobs > LATHE_MAX_THREADS ? LATHE_MAX_THREADS : jobs;
    LATHE_TRY(lathe_pool_new(&(struct lathe_pool_options){.threads = jobs}, &pool, diag));
    j->scratch_floats = (size_t)j->k * LANES * 2 + (size_t)j->rows * LANES;
    if (j->settings->sums)
        j->scratch_floats += (size_t)lathe_sum16_count(j->k, j->settings->sums) * 2 * LANES;
    j->scratch = calloc(lathe_pool_threads(pool) * j->scratch_floats + 1, sizeof *j->scratch);
    enum lathe_status status = LATHE_OK;
    if (j->scratch)
        lathe_pool_run(pool, round_blocks, j);
    else
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "quantizing weights: out of memory");
    free(j->scratch);
    lathe_pool_free(&pool);
    return status;
}

static void sum_up(const struct rounding *j) {
    double error = 0, size = 0;
    struct lathe_q8_layer *out = j->out;
    if (!out->block)
        out->min = out->max = 0;
    out->saturated = out->rounded = 0;
    for (int64_t c = 0; c < j->n; c++) {
        error += j->error[c];
        size += j->size[c];
        if (out->block)
            continue;
        const struct counts *n = &j->counts[c];
        out->min = c == 0 || n->min < out->min ? n->min : out->min;
        out->max = c == 0 || n->max > out->max ? n->max : out->max;
        out->saturated += n->saturated;
        out->rounded += n->rounded;
    }
    out->error = size > 0 ? sqrt(error / size) : error > 0 ? 1 : 0;
    out->sums = j->settings->pairs ? 0 : lathe_sum16_groups(out->w, j->n, j->k, j->settings->bits);
}

enum lathe_status lathe_quantize_weights(const struct lathe_weight_reader *weights,
                                         const struct lathe_calibration_input *input,
                                         const struct lathe_q8_settings *settings, struct lathe_arena *arena,
                                         struct lathe_q8_layer *out, struct lathe_diag *diag) {
    int64_t k = weights->k, n = weights->n;
    size_t columns = (size_t)n;
    if (!settings->given)
        *out = (struct lathe_q8_layer){0};
    struct rounding j = {.weights = weights, .settings = settings, .out = out, .k = k, .n = n};
    j.held = input->rows >= 4 * HOLD_OUT ? input->rows / HOLD_OUT : input->rows;
    j.rows = j.held < input->rows ? j.held * (HOLD_OUT - 1) : input->rows;
    j.padded = j.rows + j.held;
    if (!settings->given) {
        out->w = lathe_arena_alloc_array(arena, columns, (size_t)k);
        out->w_scale = lathe_arena_alloc_array(arena, columns, sizeof *out->w_scale);
        out->w_sum = lathe_arena_alloc_array(arena, columns, sizeof *out->w_sum);
        out->shift = lathe_arena_alloc_array(arena, columns, sizeof *out->shift);
        out->order = settings->pairs ? lathe_arena_alloc_array(arena, (size_t)k, sizeof *out->order) : NULL;
    }
    float *r = lathe_arena_alloc_array(arena, (size_t)k, sizeof *r);
    struct lathe_arena *own = lathe_arena_new();
    if (!own)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "quantizing weights: out of memory");
    float *unscale = lathe_arena_alloc_array(own, (size_t)k, sizeof *unscale);
    float *row_max = lathe_arena_alloc_array(own, (size_t)k, sizeof *row_max);
    float *reach = lathe_arena_alloc_array(own, (size_t)k, sizeof *reach);
    bool *whole = lathe_arena_alloc_array(own, (size_t)k, sizeof *whole);
    float *scratch = lathe_arena_alloc_array(own, (size_t)k, (3 * LANES + 2) * sizeof *scratch);
    j.x = lathe_arena_alloc_array(own, (size_t)k, (size_t)j.padded * sizeof *j.x);
    j.noise = lathe_arena_alloc_array(own, (size_t)k, (size_t)j.padded * sizeof *j.noise);
    j.weight = lathe_arena_alloc_array(own, (size_t)j.padded, sizeof *j.weight);
    j.energy = lathe_arena_alloc_array(own, (size_t)k, sizeof *j.energy);
    j.ridge = lathe_arena_alloc_array(own, (size_t)k, sizeof *j.ridge);
    j.order = lathe_arena_alloc_array(own, (size_t)k, sizeof *j.order);
    j.error = lathe_arena_alloc_array(own, columns, sizeof *j.error);
    j.size = lathe_arena_alloc_array(own, columns, sizeof *j.size);
    j.counts = lathe_arena_alloc_array(own, columns, sizeof *j.counts);
    enum lathe_status status = LATHE_OK;
    if (!out->w || !out->w_scale || !out->w_sum || !out->shift || !r || !unscale || !row_max || !reach || !whole ||
        (settings->pairs && !out->order) || !scratch || !j.x || !j.noise || !j.weight || !j.energy || !j.ridge ||
        !j.order || !j.error || !j.size || !j.counts) {
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "quantizing weights: out of memory");
    } else {
        float *w = scratch + k * LANES, *q = w + k * LANES, *x = q + k * LANES;
        if (!row_maxima(weights, scratch, row_max)) {
            out->error = NAN;
            goto done;
        }
        column_reach(input, reach);
        if (settings->pairs) {
            lathe_pair_steps(reach, row_max, k, out->order, whole);
            j.whole = whole;
        }
        struct trial t = {weights, input, settings, j.whole, scratch,
                          w,       q,     x,        x + k,   input->rows < TRIAL_ROWS ? input->rows : TRIAL_ROWS};
        if (!settings->given && choose_smoothing(&t, reach, row_max, r, unscale, &out->alpha)) {
            out->x_scale = r;
            for (int64_t i = 0; i < k; i++)
                unscale[i] = 1 / r[i];
            j.unscale = unscale;
        }
        for (int64_t i = 0; settings->given && out->x_scale && i < k; i++)
            unscale[i] = 1 / out->x_scale[i];
        if (settings->given && out->x_scale)
            j.unscale = unscale;
        fill_inputs(&j, input, out->x_scale, x);
        qsort(j.order, (size_t)k, sizeof *j.order, by_energy);
        status = run(&j, diag);
        sum_up(&j);
        /* Columns of 8 bits come as half of what they mean. */
        for (int64_t i = 0; settings->pairs && i < k; i++)
            r[i] = (out->x_scale ? r[i] : 1) * (whole[i] ? 0.5f : 1);
        out->x_scale = settings->pairs ? r : out->x_scale;
    }
done:
    lathe_arena_free(&own);
    return status;
}
