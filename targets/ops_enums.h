/* Values of enum-like attributes, shared by compiler and runtime; numbers stand in artifacts and never change. */
#ifndef LATHE_OPS_ENUMS_H
#define LATHE_OPS_ENUMS_H

/* `activation` of linear. GELU is the erf form, x * 0.5 * (1 + erf(x / sqrt 2)). */
enum lathe_activation {
    LATHE_ACT_NONE = 0,
    LATHE_ACT_RELU = 1,
    LATHE_ACT_GELU = 2,
    LATHE_ACT_GELU_TANH = 3,
    LATHE_ACT_QUICK_GELU = 4,
    LATHE_ACT_SILU = 5,
    LATHE_ACT_TANH = 6,
};

/* `masked_row` of attention: what a query gets whose keys are all masked out. It follows the source. */
enum lathe_masked_row {
    LATHE_MASKED_UNIFORM = 0, /* a finite mask constant that swallows the scores: 1/S for each key, masked or not */
    LATHE_MASKED_ZERO = 1,    /* an IsNaN/Where guard, or Attention of opset 23 */
    LATHE_MASKED_FLAG = 2,    /* an unguarded -inf: the source gives NaN; zeros, and the row is flagged */
    LATHE_MASKED_SOFTMAX = 3, /* a small constant such as -10000: the softmax of the scores as if nothing were masked */
};
#endif
