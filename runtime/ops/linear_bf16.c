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

/* Sizes and operands of the product, of all columns at the first of x, without the epilogue's attributes; how many
 * groups it has, 0 when it is none. */
static int64_t product_of(const struct lathe_op_call *call, struct lathe_gemm_bf16 *p) {
    const struct lathe_tensor *x = lathe_operand(call, X), *w = lathe_operand(call, W), *y = call->out[0];
    if (!x || !w || !y || x->rank < 1 || y->rank != x->rank)
        return 0;
    int64_t k = x->dims[x->rank - 1], n = y->dims[y->rank - 1], m = lathe_count_range(y, 0, y->rank - 1);
    bool transposed = lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    bool packed = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS) == PACKING_BF16_N16K2;
    const struct lathe_tensor *bias = lathe_operand(call, BIAS), *residual = lathe_operand(call, RESIDUAL);
    int64_t width = k, groups = lathe_linear_groups(call, width, n, packed);
    k /= groups ? groups : 1;
    if (!groups || lathe_count_range(x, 0, x->rank - 1) != m || !has_count(packed ? NULL : w, k * n) ||
        !has_count(bias, n) || !has_count(residual, m * n))
        return 0;
    *p = (struct lathe_gemm_bf16){.m = (size_t)m,
                                  .n = (size_t)n,
                                  .k = (size_t)k,
                                  .x = x->data,
                                  .ldx = (size_t)width,
                                  .panels = packed ? w->data : NULL,
                                  .w = packed ? NULL : w->data,
                                  .w_dtype = w->dtype,
                                  .transposed = transposed,
                                  .ldw = (size_t)(transposed ? k : n),
                                  .y = y->data,
                                  .ldy = (size_t)n,
                                  .epilogue = {.bias = bias ? bias->data : NULL,
                                               .residual = residual ? residual->data : NULL,
                                               .ldr = (size_t)n,
                                               .gate = lathe_attr_int(&call->attrs, LATHE_ATTR_GATE, 0) != 0,
                                               .scale = 1.0f}};
    return groups;
}

size_t lathe_scratch_linear_bf16(const struct lathe_op_call *call) {
    struct lathe_gemm_bf16 p;
    int64_t groups = product_of(call, &p);
    if (!groups || p.m == 0 || p.n == 0)
        return 0;
    return lathe_gemm_bf16_scratch(call->kernels, p.m, p.n / (size_t)groups, p.k, p.panels != NULL || !p.w);
}

/* The groups, each a product of its own. */
static __attribute__((cold)) void run_groups(const struct lathe_op_call *call, int64_t groups,
                                             const struct lathe_gemm_bf16 *whole) {
    struct lathe_gemm_bf16 p = *whole;
    int64_t begin, end;
    p.n = whole->n / (size_t)groups;
    const struct lathe_team team = lathe_split_groups(&call->team, groups, &begin, &end);
    for (size_t g = (size_t)begin; g < (size_t)end; g++) {
        size_t at = g * p.n;
        p.x = whole->x + g * p.k;
        if (p.panels)
            p.panels = whole->panels + at * ((p.k + 1) / 2 * 2);
        else
            p.w = (const char *)whole->w + at * (p.transposed ? p.ldw : 1) * lathe_dtype_bytes(p.w_dtype);
        p.y = whole->y + at;
        p.epilogue.bias = whole->epilogue.bias ? whole->epilogue.bias + at : NULL;
        p.epilogue.residual = whole->epilogue.residual ? whole->epilogue.residual + at : NULL;
        lathe_gemm_bf16_team(call->kernels, &p, &team, call->scratch);
    }
}

enum lathe_status lathe_run_linear_bf16(const struct lathe_op_call *call) {
    struct lathe_gemm_bf16 p;
    int64_t groups = product_of(call, &p);
    if (!groups)
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
    if (groups > 1)
        run_groups(call, groups, &p);
    else
        lathe_gemm_bf16_team(call->kernels, &p, &call->team, call->scratch);
    return LATHE_OK;
}
