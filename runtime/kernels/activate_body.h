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
#endif
