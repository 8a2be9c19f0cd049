/* The activations of linear layers on the vector layer. */
#ifndef LATHE_ACTIVATE_BODY_H
#define LATHE_ACTIVATE_BODY_H

#include "math_body.h"
#include "ops_enums.h"

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
#endif
