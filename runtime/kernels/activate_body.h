/* The activations of linear layers on the vector layer. */
#ifndef LATHE_ACTIVATE_BODY_H
#define LATHE_ACTIVATE_BODY_H

#include "math_body.h"
#include "ops_enums.h"

#include <stdbool.h>

static inline vf v_activate(enum lathe_activation activation, float alpha, vf x) {
    switch (activation) {
    case LATHE_ACT_RELU:
        return v_max(v_set1(0.0f), x);
    case LATHE_ACT_GELU:
        return v_gelu(x);
    case LATHE_ACT_GELU_TANH:
        return v_gelu_tanh(x);
    case LATHE_ACT_QUICK_GELU:
        return v_quick_gelu(x, v_set1(alpha));
    case LATHE_ACT_SILU:
        return v_silu(x);
    case LATHE_ACT_TANH:
        return v_tanh(x);
    case LATHE_ACT_NONE:
        break;
    }
    return x;
}

/* An epilogue's last step. */
static inline vf v_join(bool gate, vf x, vf residual) {
    return gate ? x * residual : x + residual;
}

/* x to a power of two is cheap: gelu(x) = max(x, 0) - |x| tail(|x|), and the eighth root of the tail is close to a
 * short polynomial (fits of our own, as in math_body.h). Absolute error at most 2e-6: far below the steps of 8-bit
 * products, whose epilogue a longer form would make 10 % slower. */
static inline vf v_bump(vf x, vf a, vf root) {
    vf second = root * root, fourth = second * second;
    return v_fnma(a, fourth * fourth, v_max(v_set1(0.0f), x));
}

static inline vf v_gelu_coarse(vf x) {
    vf a = v_min(v_set1(6.0f), v_abs(x)), r = v_set1(-1.909424501e-04f);
    r = v_fma(r, a, v_set1(1.939629535e-03f));
    r = v_fma(r, a, v_set1(-1.108128319e-03f));
    r = v_fma(r, a, v_set1(-3.172166080e-02f));
    r = v_fma(r, a, v_set1(-9.149097101e-02f));
    r = v_fma(r, a, v_set1(9.170034498e-01f));
    return v_bump(x, a, r);
}

static inline vf v_gelu_tanh_coarse(vf x) {
    vf a = v_min(v_set1(5.5f), v_abs(x)), r = v_set1(3.697378198e-05f);
    r = v_fma(r, a, v_set1(-4.675693400e-04f));
    r = v_fma(r, a, v_set1(2.442169092e-03f));
    r = v_fma(r, a, v_set1(-1.378803254e-03f));
    r = v_fma(r, a, v_set1(-3.160471041e-02f));
    r = v_fma(r, a, v_set1(-9.150497280e-02f));
    r = v_fma(r, a, v_set1(9.170038836e-01f));
    return v_bump(x, a, r);
}

static inline vf v_activate_coarse(enum lathe_activation activation, float alpha, vf x) {
    return activation == LATHE_ACT_GELU        ? v_gelu_coarse(x)
           : activation == LATHE_ACT_GELU_TANH ? v_gelu_tanh_coarse(x)
                                               : v_activate(activation, alpha, x);
}

#ifdef LATHE_VEC_AVX512_H
/* Beside 8-bit dot products multiplications are dear and look-ups cheap: the tail times |x| is 16 parabolas
 * (c2 |x| + c1) |x| + c0, of the |x| that round to 0, 1/4, 1/2, ... (minimax fits, the first one through 0 with slope
 * 1/2, the last one's end for all beyond). Absolute error at most 1.1e-4, at most 2.5e-4 |x|. Rows c0, c1, c2; then the
 * last |x|, just below 3.875, and 1.5 * 2^21, which leaves the number of the parabola in the last bits of a sum. */
static const float q8_tail_gelu[50] = {
    0.000000000e+00f,  6.366314483e-04f,  1.052259840e-02f,  4.655883461e-02f,  1.191796735e-01f,  2.205645293e-01f,
    3.252578080e-01f,  4.023756683e-01f,  4.307479858e-01f,  4.062899947e-01f,  3.427503109e-01f,  2.609564662e-01f,
    1.805779785e-01f,  1.141785458e-01f,  6.623870879e-02f,  -1.505108178e-01f, 5.000000000e-01f,  4.920991957e-01f,
    4.411861897e-01f,  3.268102407e-01f,  1.608540416e-01f,  -2.002447098e-02f, -1.732548326e-01f, -2.690887451e-01f,
    -3.000158370e-01f, -2.773605585e-01f, -2.239777893e-01f, -1.616257280e-01f, -1.056101173e-01f, -6.300774217e-02f,
    -3.451438248e-02f, 8.177299798e-02f,  -3.981647789e-01f, -3.734643459e-01f, -3.073959351e-01f, -2.163489908e-01f,
    -1.213772446e-01f, -4.062056914e-02f, 1.548331883e-02f,  4.526855797e-02f,  5.369613320e-02f,  4.844973609e-02f,
    3.723494336e-02f,  2.534988336e-02f,  1.558909286e-02f,  8.754721843e-03f,  4.520464223e-03f,  -1.107221749e-02f,
    3.8749997616f,     3145728.0f};
static const float q8_tail_gelu_tanh[50] = {
    0.000000000e+00f,  6.393456133e-04f,  1.055068057e-02f,  4.657120258e-02f,  1.188955009e-01f,  2.196034193e-01f,
    3.237776756e-01f,  4.015407562e-01f,  4.319860339e-01f,  4.105236530e-01f,  3.485576212e-01f,  2.658427656e-01f,
    1.824549437e-01f,  1.125810891e-01f,  6.228012964e-02f,  -8.244436234e-02f, 5.000000000e-01f,  4.920650125e-01f,
    4.410155118e-01f,  3.266767859e-01f,  1.613846719e-01f,  -1.829035766e-02f, -1.707489491e-01f, -2.673559189e-01f,
    -3.004937172e-01f, -2.806767523e-01f, -2.286360264e-01f, -1.655961424e-01f, -1.074915603e-01f, -6.266184896e-02f,
    -3.276269510e-02f, 4.510675371e-02f,  -3.981609643e-01f, -3.733514249e-01f, -3.070979416e-01f, -2.160703987e-01f,
    -1.214709282e-01f, -4.124968126e-02f, 1.456726808e-02f,  4.458399117e-02f,  5.360113829e-02f,  4.902734235e-02f,
    3.809868917e-02f,  2.608524263e-02f,  1.596187614e-02f,  8.770493791e-03f,  4.326967057e-03f,  -6.145692896e-03f,
    3.8749997616f,     3145728.0f};

struct q8_tail {
    vf c0, c1, c2, last, round;
};
static inline struct q8_tail q8_load_tail(const float *tail) {
    return (struct q8_tail){v_load(tail), v_load(tail + 16), v_load(tail + 32), v_set1(tail[48]), v_set1(tail[49])};
}
static inline vf q8_less(vf x, struct q8_tail t) {
    vf a = v_min(t.last, v_abs(x));
    __m512i which = _mm512_castps_si512(a + t.round);
    vf c0 = _mm512_permutexvar_ps(which, t.c0), c1 = _mm512_permutexvar_ps(which, t.c1);
    vf c2 = _mm512_permutexvar_ps(which, t.c2);
    return v_max(v_set1(0.0f), x) - v_fma(v_fma(c2, a, c1), a, c0);
}
static inline vf q8_less_tail(vf x, const float *tail) {
    return q8_less(x, q8_load_tail(tail));
}

static inline vf v_activate_q8(enum lathe_activation activation, float alpha, vf x) {
    return activation == LATHE_ACT_GELU        ? q8_less_tail(x, q8_tail_gelu)
           : activation == LATHE_ACT_GELU_TANH ? q8_less_tail(x, q8_tail_gelu_tanh)
                                               : v_activate(activation, alpha, x);
}
#else
/* As v_bump, of a square root and with less care: absolute error at most 2.1e-4, at most 4.7e-4 |x|. Two
 * multiplications fewer: the product of 64 rows by 384 x 1536 on AVX2, one core of Zen 5, takes 1.5 % less. */
static inline vf q8_less_square(vf x, vf a, vf root) {
    return v_fnma(a, root * root, v_max(v_set1(0.0f), x));
}

static inline vf v_gelu_q8(vf x) {
    vf a = v_min(v_set1(3.8f), v_abs(x)), r = v_set1(3.147159622e-04f);
    r = v_fma(r, a, v_set1(-8.618938667e-03f));
    r = v_fma(r, a, v_set1(5.593920802e-02f));
    r = v_fma(r, a, v_set1(-8.155198139e-02f));
    r = v_fma(r, a, v_set1(-2.747398409e-01f));
    r = v_fma(r, a, v_set1(7.067772627e-01f));
    return q8_less_square(x, a, r);
}

static inline vf v_gelu_tanh_q8(vf x) {
    vf a = v_min(v_set1(3.75f), v_abs(x)), r = v_set1(2.888171425e-04f);
    r = v_fma(r, a, v_set1(-8.236598284e-03f));
    r = v_fma(r, a, v_set1(5.420092983e-02f));
    r = v_fma(r, a, v_set1(-7.894717281e-02f));
    r = v_fma(r, a, v_set1(-2.757721112e-01f));
    r = v_fma(r, a, v_set1(7.068346114e-01f));
    return q8_less_square(x, a, r);
}

static inline vf v_activate_q8(enum lathe_activation activation, float alpha, vf x) {
    return activation == LATHE_ACT_GELU        ? v_gelu_q8(x)
           : activation == LATHE_ACT_GELU_TANH ? v_gelu_tanh_q8(x)
                                               : v_activate(activation, alpha, x);
}
#endif
#endif
