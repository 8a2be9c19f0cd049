/* linear_bf16: act(x w + bias) + residual with x and w rounded to bf16 and sums in f32. */
#include "gemm_bf16_drive.h"
#include "op_util.h"
#include "ops.h"

enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

enum { X, W, BIAS, RESIDUAL, OPERANDS };

static bool has_count(const struct lathe_tensor *t, int64_t count) {
    return !t || lathe_tensor_count(t) == count;
}

/* Sizes and operands of the product, without the epilogue's attributes. */
static bool product_of(const struct lathe_op_call *call, struct lathe_gemm_bf16 *p) {
    const struct lathe_tensor *x = lathe_operand(call, X), *w = lathe_operand(call, W), *y = call->out[0];
    if (!x || !w || !y || x->rank < 1 || y->rank != x->rank)
        return false;
    int64_t k = x->dims[x->rank - 1], n = y->dims[y->rank - 1], m = lathe_count_range(y, 0, y->rank - 1);
    bool packed = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS) == PACKING_BF16_N16K2;
    const struct lathe_tensor *bias = lathe_operand(call, BIAS), *residual = lathe_operand(call, RESIDUAL);
    if (lathe_count_range(x, 0, x->rank - 1) != m || !has_count(packed ? NULL : w, k * n) || !has_count(bias, n) ||
        !has_count(residual, m * n))
        return false;
    *p = (struct lathe_gemm_bf16){.m = (size_t)m,
                                  .n = (size_t)n,
                                  .k = (size_t)k,
                                  .x = x->data,
                                  .ldx = (size_t)k,
                                  .panels = packed ? w->data : NULL,
                                  .w = packed ? NULL : w->data,
                                  .w_dtype = w->dtype,
                                  .transposed = lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_B, 0) != 0,
                                  .y = y->data,
                                  .ldy = (size_t)n,
                                  .epilogue = {.bias = bias ? bias->data : NULL,
                                               .residual = residual ? residual->data : NULL,
                                               .ldr = (size_t)n,
                                               .scale = 1.0f}};
    return true;
}

size_t lathe_scratch_linear_bf16(const struct lathe_op_call *call) {
    struct lathe_gemm_bf16 p;
    if (!product_of(call, &p) || p.m == 0 || p.n == 0)
        return 0;
    return lathe_gemm_bf16_scratch(call->kernels, p.m, p.n, p.k, p.panels != NULL || !p.w);
}

enum lathe_status lathe_run_linear_bf16(const struct lathe_op_call *call) {
    struct lathe_gemm_bf16 p;
    if (!product_of(call, &p))
        return lathe_bad_shape(call, "linear_bf16");
    int64_t packing = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS);
    for (unsigned i = 0; i < OPERANDS; i++) {
        const struct lathe_tensor *t = lathe_operand(call, i);
        bool bf16 = i == W && t && t->dtype == LATHE_BF16;
        if (t && !bf16 && (t->dtype != LATHE_F32 || (i == W && packing != PACKING_ROWS)))
            return lathe_no_dtype(call, "linear_bf16", t->dtype);
    }
    if (packing != PACKING_ROWS && packing != PACKING_BF16_N16K2)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE,
                          "linear_bf16: no implementation for weights of packing %lld", (long long)packing);
    p.epilogue.activation = (enum lathe_activation)lathe_attr_int(&call->attrs, LATHE_ATTR_ACTIVATION, 0);
    p.epilogue.alpha = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_ALPHA, 1.702);
    lathe_gemm_bf16_team(call->kernels, &p, &call->team, call->scratch);
    return LATHE_OK;
}
