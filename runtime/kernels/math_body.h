/* Elementary functions on the vector layer, the same polynomials for every instruction set. Error bounds are those of
 * kernels.def and tests/kernel/test_rows.c measures them. Polynomials are our own minimax fits (weighted least squares,
 * iterated), in Horner form; NaN stays NaN. */
#ifndef LATHE_MATH_BODY_H
#define LATHE_MATH_BODY_H

/* e^x: 2^n e^r with |r| <= ln 2 / 2. Infinity above 88.73; 0 below -104, denormals between. */
static inline vf v_exp(vf x) {
    /* The constant first: min and max give their second operand for NaN. */
    x = v_max(v_set1(-105.0f), v_min(v_set1(89.0f), x));
    vf n = v_round(x * v_set1(1.44269504f));
    vf r = v_fnma(n, v_set1(0.693359375f), x); /* ln 2 in two parts, the first exact in few bits */
    r = v_fnma(n, v_set1(-2.12194440e-4f), r);
    vf p = v_set1(1.381314460e-03f);
    p = v_fma(p, r, v_set1(8.369418934e-03f));
    p = v_fma(p, r, v_set1(4.166845679e-02f));
    p = v_fma(p, r, v_set1(1.666651479e-01f));
    p = v_fma(p, r, v_set1(4.999999305e-01f));
    p = v_fma(p * r, r, r) + v_set1(1.0f);
    return v_scale2(p, n);
}

/* t = n + r with a whole n >= -127; the sum with 1.5 * 2^23 + 127 rounds and is what v_power2 takes. */
static inline vf v_split2(vf t, vf *r) {
    vf bounded = v_max(v_set1(-127.0f), t), shifted = bounded + v_set1(0x1.8p23f + 127.0f);
    *r = bounded - (shifted - v_set1(0x1.8p23f + 127.0f));
    return v_power2(shifted);
}

/* 2^t for t <= 126, 0 below -126.5: hardly any denormals, which would be slow. Relative error 2e-7; for the weights of
 * softmax. */
static inline vf v_exp2(vf t) {
    vf r, power = v_split2(t, &r), p = v_set1(1.326472726e-03f);
    p = v_fma(p, r, v_set1(9.671512700e-03f));
    p = v_fma(p, r, v_set1(5.550733744e-02f));
    p = v_fma(p, r, v_set1(2.402224208e-01f));
    p = v_fma(p, r, v_set1(6.931469776e-01f));
    p = v_fma(p, r, v_set1(1.0f));
    return p * power;
}

/* The same with relative error 8e-5: for what is rounded to bf16. */
static inline vf v_exp2_coarse(vf t) {
    vf r, power = v_split2(t, &r), p = v_set1(5.517166876e-02f);
    p = v_fma(p, r, v_set1(2.426111328e-01f));
    p = v_fma(p, r, v_set1(6.932609864e-01f));
    p = v_fma(p, r, v_set1(9.999280729e-01f));
    return p * power;
}

/* gelu(x) = max(x, 0) - |x| tail(|x|) with the upper tail of the normal distribution: no cancellation on either side.
 * The fourth root of the tail is a polynomial on [0, 5.8], beyond which |x| tail is below 2e-8. */
static inline vf v_gelu(vf x) {
    vf a = v_min(v_set1(5.8f), v_abs(x)), r = v_set1(4.932306652e-08f);
    r = v_fma(r, a, v_set1(-8.592039649e-07f));
    r = v_fma(r, a, v_set1(2.641757192e-06f));
    r = v_fma(r, a, v_set1(3.650548751e-05f));
    r = v_fma(r, a, v_set1(-2.646115026e-04f));
    r = v_fma(r, a, v_set1(-7.556655328e-05f));
    r = v_fma(r, a, v_set1(3.800806822e-03f));
    r = v_fma(r, a, v_set1(4.671465140e-03f));
    r = v_fma(r, a, v_set1(-5.021427199e-02f));
    r = v_fma(r, a, v_set1(-1.677298695e-01f));
    r = v_fma(r, a, v_set1(8.408961296e-01f));
    r = r * r;
    return v_fnma(a, r * r, v_max(v_set1(0.0f), x));
}

static inline vf v_sigmoid(vf x) {
    return v_set1(1.0f) / (v_set1(1.0f) + v_exp(v_set1(0.0f) - x));
}

static inline vf v_silu(vf x) {
    return x / (v_set1(1.0f) + v_exp(v_set1(0.0f) - x));
}

static inline vf v_quick_gelu(vf x, vf alpha) {
    return x / (v_set1(1.0f) + v_exp(v_set1(0.0f) - alpha * x));
}

/* 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
static inline vf v_gelu_tanh(vf x) {
    vf bounded = v_max(v_set1(-30.0f), v_min(v_set1(30.0f), x)); /* the cube must not overflow */
    vf u = v_fma(bounded * bounded * bounded, v_set1(0.044715f), bounded);
    return x / (v_set1(1.0f) + v_exp(u * v_set1(-1.59576912f)));
}

/* Odd polynomial up to 0.625, 1 - 2 / (e^2|x| + 1) beyond. */
static inline vf v_tanh(vf x) {
    vf a = v_abs(x), u = x * x;
    vf p = v_set1(-5.659980715e-03f);
    p = v_fma(p, u, v_set1(2.059097977e-02f));
    p = v_fma(p, u, v_set1(-5.372106481e-02f));
    p = v_fma(p, u, v_set1(1.333112748e-01f));
    p = v_fma(p, u, v_set1(-3.333326052e-01f));
    vf small = v_fma(x * u, p, x);
    vf large = v_set1(1.0f) - v_set1(2.0f) / (v_exp(a + a) + v_set1(1.0f));
    return v_select(v_lt(a, v_set1(0.625f)), small, v_copysign(large, x));
}

/* Odd polynomial up to 1, 1 - e^(-x^2) R(|x|) beyond. */
static inline vf v_erf(vf x) {
    vf u = x * x;
    vf p = v_set1(7.853859333e-05f);
    p = v_fma(p, u, v_set1(-8.010193073e-04f));
    p = v_fma(p, u, v_set1(5.188327630e-03f));
    p = v_fma(p, u, v_set1(-2.685381191e-02f));
    p = v_fma(p, u, v_set1(1.128358515e-01f));
    p = v_fma(p, u, v_set1(-3.761262582e-01f));
    p = v_fma(p, u, v_set1(1.283791658e-01f)); /* 2 / sqrt(pi) - 1: x itself is added exactly */
    vf small = v_fma(x, p, x);
    vf a = v_min(v_set1(4.0f), v_abs(x));
    vf r = v_set1(-3.888846128e-04f);
    r = v_fma(r, a, v_set1(6.005131400e-03f));
    r = v_fma(r, a, v_set1(-4.099819179e-02f));
    r = v_fma(r, a, v_set1(1.641336910e-01f));
    r = v_fma(r, a, v_set1(-4.316796449e-01f));
    r = v_fma(r, a, v_set1(7.925947867e-01f));
    r = v_fma(r, a, v_set1(-1.048210603e+00f));
    r = v_fma(r, a, v_set1(9.861272548e-01f));
    vf large = v_fnma(v_exp(v_set1(0.0f) - a * a), r, v_set1(1.0f));
    return v_select(v_lt(v_abs(x), v_set1(1.0f)), small, v_copysign(large, x));
}
#endif
