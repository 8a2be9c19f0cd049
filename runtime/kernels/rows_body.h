/* The row kernels on the vector layer: layer norm, RMS norm, softmax, elementwise. The including file defines
 * ROWS_NAME(x), the name of kernel x for its instruction set. Sums run over four partial vectors in an order that
 * depends on the row's length alone. */
#ifndef LATHE_ROWS_BODY_H
#define LATHE_ROWS_BODY_H

#include "kernel_rows.h"
#include "math_body.h"
#include "unroll.h"

/* x = a (+ residual), stored to `out` when there is a residual; returns the sum of x. */
static inline float row_load_sum(size_t n, const float *a, const float *residual, float *out) {
    vf s[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
    size_t i = 0;
    if (residual) {
        for (; i + 4 * VN <= n; i += 4 * VN) {
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++) {
                vf x = v_load(a + i + u * VN) + v_load(residual + i + u * VN);
                v_store(out + i + u * VN, x);
                s[u] = s[u] + x;
            }
        }
        for (; i < n; i += VN) {
            size_t m = n - i < VN ? n - i : VN;
            vf x = v_load_n(a + i, m) + v_load_n(residual + i, m);
            v_store_n(out + i, x, m);
            s[0] = s[0] + x;
        }
    } else {
        for (; i + 4 * VN <= n; i += 4 * VN) {
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++)
                s[u] = s[u] + v_load(a + i + u * VN);
        }
        for (; i < n; i += VN)
            s[0] = s[0] + v_load_n(a + i, n - i < VN ? n - i : VN);
    }
    return v_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* Mean and inverse deviation of a row by two passes and a correction: with d = x - mean, the sum of d says how far the
 * rounded mean is off. A constant row then has differences of exactly 0. */
struct row_moments {
    float mean, scale;
};

static inline struct row_moments row_moments(size_t n, const float *x, float mean, float epsilon) {
    float inverse_n = 1.0f / (float)n;
    vf m = v_set1(mean);
    vf d1[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
    vf d2[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
    size_t i = 0;
    for (; i + 4 * VN <= n; i += 4 * VN) {
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++) {
            vf d = v_load(x + i + u * VN) - m;
            d1[u] = d1[u] + d;
            d2[u] = v_fma(d, d, d2[u]);
        }
    }
    for (; i + VN <= n; i += VN) {
        vf d = v_load(x + i) - m;
        d1[0] = d1[0] + d;
        d2[0] = v_fma(d, d, d2[0]);
    }
    float off = v_sum((d1[0] + d1[1]) + (d1[2] + d1[3])), square = v_sum((d2[0] + d2[1]) + (d2[2] + d2[3]));
    for (; i < n; i++) {
        float d = x[i] - mean;
        off += d;
        square += d * d;
    }
    off *= inverse_n;
    float variance = square * inverse_n - off * off;
    variance = variance < 0.0f ? 0.0f : variance;
    return (struct row_moments){mean + off, 1.0f / __builtin_sqrtf(variance + epsilon)};
}

static inline void row_normalize(size_t n, const float *x, struct row_moments moments, const float *gamma,
                                 const float *beta, float *y) {
    vf m = v_set1(moments.mean), s = v_set1(moments.scale);
    size_t i = 0, most = VN > 1 && gamma && beta ? n : 0; /* others are rare */
    for (; i + 2 * VN <= most; i += 2 * VN) {
        LATHE_UNROLL
        for (size_t u = 0; u < 2; u++) {
            size_t at = i + u * VN;
            v_store(y + at, (v_load(x + at) - m) * s * v_load(gamma + at) + v_load(beta + at));
        }
    }
    LATHE_NO_UNROLL
    for (; i < n; i += VN) {
        size_t left = n - i < VN ? n - i : VN;
        vf v = (v_load_n(x + i, left) - m) * s;
        if (gamma)
            v = v * v_load_n(gamma + i, left);
        if (beta)
            v = v + v_load_n(beta + i, left);
        v_store_n(y + i, v, left);
    }
}

/* Several rows at a time: the way from the last element to the mean, and to the deviation, is long, and the elements of
 * the next row are added up meanwhile; the last pass without questions about tail, gamma and beta inside its loop. Zen
 * 5, AVX-512, cycles a row, one at a time -> four -> and so written, rows of 384 and 768:
 *   in the first cache     180 -> 116 -> 104, 274 -> 208 -> 176; with a residual 190 -> 133 -> 118, 306 -> 240 -> 205
 *   64 rows in the second  180 -> 127 -> 118, 309 -> 236 -> 214; with a residual 211 -> 173 -> 156, 400 -> 344 -> 318
 * A residual comes from further away in a model, as weights have passed since it was written, and so do the lines that
 * are stored: they are asked for while the rows before are at work. 64 rows, all layer norms of a run, one thread, us:
 *   minilm-l6 int8 46 -> 40, distilbert int8 82 -> 78
 * Longer rows would push each other out of the first cache: 64 of 1024 in the second cache 480 -> 570 cycles a row. */
#define NORM_ROWS    ((size_t)4)
#define NORM_FETCHED ((size_t)768)

void ROWS_NAME(layer_norm_f32)(size_t count, size_t n, const float *a, const float *residual, const float *gamma,
                               const float *beta, float epsilon, float *y, float *sum) {
    float inverse_n = 1.0f / (float)n;
    for (size_t at = 0, some; at < count; at += some, a += some * n, y += some * n) {
        some = count - at < NORM_ROWS ? count - at : NORM_ROWS;
        float *stored = sum ? sum : y;
        const float *x = residual ? stored : a;
        struct row_moments row[NORM_ROWS];
        for (size_t r = 0; r < some; r++)
            row[r].mean = row_load_sum(n, a + r * n, residual ? residual + r * n : NULL, stored + r * n) * inverse_n;
        for (size_t r = 0; r < some; r++) {
            if (residual && n <= NORM_FETCHED && at + some + r < count)
                for (size_t i = (some + r) * n; i < (some + r + 1) * n; i += 16) {
                    __builtin_prefetch(residual + i);
                    __builtin_prefetch(stored + i, 1);
                }
            row[r] = row_moments(n, x + r * n, row[r].mean, epsilon);
        }
        if (sum && !residual)
            memcpy(sum, a, some * n * sizeof *a);
        for (size_t r = 0; r < some; r++)
            row_normalize(n, x + r * n, row[r], gamma, beta, y + r * n);
        if (residual)
            residual += some * n;
        if (sum)
            sum += some * n;
    }
}

void ROWS_NAME(rms_norm_f32)(size_t count, size_t n, const float *a, const float *gamma, float epsilon, float *y) {
    float inverse_n = 1.0f / (float)n;
    for (size_t row = 0; row < count; row++, a += n, y += n) {
        vf s[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
        size_t i = 0;
        for (; i + 4 * VN <= n; i += 4 * VN) {
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++) {
                vf x = v_load(a + i + u * VN);
                s[u] = v_fma(x, x, s[u]);
            }
        }
        for (; i < n; i += VN) {
            vf x = v_load_n(a + i, n - i < VN ? n - i : VN);
            s[0] = v_fma(x, x, s[0]);
        }
        float square = v_sum((s[0] + s[1]) + (s[2] + s[3])) * inverse_n;
        vf scale = v_set1(1.0f / __builtin_sqrtf(square + epsilon));
        for (i = 0; i < n; i += VN) {
            size_t left = n - i < VN ? n - i : VN;
            vf v = v_load_n(a + i, left) * scale;
            if (gamma)
                v = v * v_load_n(gamma + i, left);
            v_store_n(y + i, v, left);
        }
    }
}

void ROWS_NAME(softmax_f32)(size_t count, size_t n, const float *x, float *y) {
    for (size_t row = 0; row < count; row++, x += n, y += n) {
        vf top = v_set1(-__builtin_inff());
        size_t i = 0;
        for (; i + VN <= n; i += VN)
            top = v_max(top, v_load(x + i));
        float max = v_hmax(top);
        for (size_t j = i; j < n; j++)
            max = max > x[j] ? max : x[j];
        vf m = v_set1(max), s = v_set1(0.0f), t = s;
        for (i = 0; i + 2 * VN <= n; i += 2 * VN) {
            vf e = v_exp(v_load(x + i) - m), f = v_exp(v_load(x + i + VN) - m);
            s = s + e;
            t = t + f;
            v_store(y + i, e);
            v_store(y + i + VN, f);
        }
        for (; i < n; i += VN) {
            size_t left = n - i < VN ? n - i : VN;
            v_store_n(y + i, v_exp(v_load_n(x + i, left) - m), left);
            s = s + v_load_n(y + i, left); /* zeros behind the end */
        }
        vf scale = v_set1(1.0f / v_sum(s + t));
        for (i = 0; i < n; i += VN) {
            size_t left = n - i < VN ? n - i : VN;
            v_store_n(y + i, v_load_n(y + i, left) * scale, left);
        }
    }
}

#define ROWS_UNARY(name, f)                                                                                            \
    void ROWS_NAME(name)(size_t n, const float *x, float *y) {                                                         \
        size_t i = 0;                                                                                                  \
        for (; i + VN <= n; i += VN)                                                                                   \
            v_store(y + i, f(v_load(x + i)));                                                                          \
        if (i < n)                                                                                                     \
            v_store_n(y + i, f(v_load_n(x + i, n - i)), n - i);                                                        \
    }
ROWS_UNARY(gelu_f32, v_gelu)
ROWS_UNARY(gelu_tanh_f32, v_gelu_tanh)
ROWS_UNARY(silu_f32, v_silu)
ROWS_UNARY(tanh_f32, v_tanh)
ROWS_UNARY(exp_f32, v_exp)
ROWS_UNARY(erf_f32, v_erf)
ROWS_UNARY(sigmoid_f32, v_sigmoid)

#define ROWS_BINARY(expression)                                                                                        \
    for (; i < n; i += VN) {                                                                                           \
        size_t m = n - i < VN ? n - i : VN;                                                                            \
        vf x = m == VN ? v_load(a + i) : v_load_n(a + i, m), z = one;                                                  \
        if (stride_b)                                                                                                  \
            z = m == VN ? v_load(b + i) : v_load_n(b + i, m);                                                          \
        vf r = expression;                                                                                             \
        if (m == VN)                                                                                                   \
            v_store(y + i, r);                                                                                         \
        else                                                                                                           \
            v_store_n(y + i, r, m);                                                                                    \
    }                                                                                                                  \
    break

void ROWS_NAME(binary_f32)(size_t n, unsigned op, const float *a, const float *b, size_t stride_b, float *y) {
    if (n == 0)
        return;
    vf one = v_set1(b[0]);
    size_t i = 0;
    switch (op) {
    case 0:
        ROWS_BINARY(x + z);
    case 1:
        ROWS_BINARY(x - z);
    case 2:
        ROWS_BINARY(x * z);
    case 3:
        ROWS_BINARY(x / z);
    default:
        break;
    }
}

/* Eight vectors of y at a time: so many sums hide the latency of a multiplication, and a weight is read once for all of
 * them. Each element takes its products in the order of lines and taps, wherever it stands in its run. */
#define TAPS_VECTORS 8

void ROWS_NAME(taps_f32)(const struct lathe_taps_f32 *p) {
    size_t j = 0;
    for (; j + TAPS_VECTORS * VN <= p->n; j += TAPS_VECTORS * VN) {
        vf s[TAPS_VECTORS];
        LATHE_UNROLL
        for (size_t u = 0; u < TAPS_VECTORS; u++)
            s[u] = v_set1(p->bias);
        for (size_t l = 0; l < p->lines; l++) {
            const float *x = p->x + p->x_at[l] + j, *w = p->w + p->w_at[l];
            for (size_t t = 0; t < p->taps; t++, x += p->step) {
                vf weight = v_set1(w[t]);
                LATHE_UNROLL
                for (size_t u = 0; u < TAPS_VECTORS; u++)
                    s[u] = v_fma(v_load(x + u * VN), weight, s[u]);
            }
        }
        LATHE_UNROLL
        for (size_t u = 0; u < TAPS_VECTORS; u++)
            v_store(p->y + j + u * VN, s[u]);
    }
    for (; j < p->n; j += 2 * VN) {
        size_t left = p->n - j, m = left < VN ? left : VN, rest = left - m < VN ? left - m : VN;
        vf s = v_set1(p->bias), s1 = s;
        for (size_t l = 0; l < p->lines; l++) {
            const float *x = p->x + p->x_at[l] + j, *w = p->w + p->w_at[l];
            for (size_t t = 0; t < p->taps; t++, x += p->step) {
                vf weight = v_set1(w[t]);
                s = v_fma(v_load_n(x, m), weight, s);
                s1 = v_fma(v_load_n(x + m, rest), weight, s1);
            }
        }
        v_store_n(p->y + j, s, m);
        v_store_n(p->y + j + m, s1, rest);
    }
}
#endif
