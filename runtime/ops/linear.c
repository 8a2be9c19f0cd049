/* linear: act(x w + bias) + residual over the rows of x. */
#include "gemm_drive.h"
#include "op_util.h"
#include "ops.h"

enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

struct linear_shape {
    int64_t m, n, k; /* k: of a column, x has groups * k */
    int64_t groups;
    int64_t packing;
    bool transposed;
};

static bool linear_shape(const struct lathe_op_call *call, struct linear_shape *s) {
    const struct lathe_tensor *x = call->in[0], *w = call->in[1], *y = call->out[0];
    if (x->rank < 1 || y->rank != x->rank)
        return false;
    s->k = x->dims[x->rank - 1];
    s->n = y->dims[y->rank - 1];
    s->m = lathe_count_range(y, 0, y->rank - 1);
    s->packing = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS);
    s->transposed = lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    s->groups = lathe_linear_groups(call, s->k, s->n, s->packing != PACKING_ROWS);
    if (!s->groups)
        return false;
    s->k /= s->groups;
    const struct lathe_tensor *bias = lathe_operand(call, 2), *residual = lathe_operand(call, 3);
    const struct lathe_tensor *w_pairs = lathe_operand(call, 4);
    if (w_pairs && (lathe_tensor_count(w_pairs) != s->n || s->n % 16 || s->groups > 1))
        return false;
    return lathe_count_range(x, 0, x->rank - 1) == s->m &&
           (s->packing != PACKING_ROWS || lathe_tensor_count(w) == s->k * s->n) &&
           (!bias || lathe_tensor_count(bias) == s->n) && (!residual || lathe_tensor_count(residual) == s->m * s->n);
}

size_t lathe_scratch_linear(const struct lathe_op_call *call) {
    struct linear_shape s;
    if (!linear_shape(call, &s))
        return 0;
    return lathe_gemm_f32_scratch((size_t)s.m, (size_t)(s.n / s.groups), (size_t)s.k, s.packing == PACKING_F32_N16);
}

/* The groups, each a product of its own. `whole`: of all columns, at the first of x. */
static __attribute__((cold)) void run_groups(const struct lathe_op_call *call, const struct linear_shape *s,
                                             const struct lathe_gemm_f32 *whole) {
    struct lathe_gemm_f32 p = *whole;
    int64_t begin, end;
    p.n = whole->n / (size_t)s->groups;
    const struct lathe_team team = lathe_split_groups(&call->team, s->groups, &begin, &end);
    for (size_t g = (size_t)begin; g < (size_t)end; g++) {
        size_t at = g * p.n;
        p.a = whole->a + g * p.k;
        if (p.panels)
            p.panels = whole->panels + at * p.k;
        else
            p.b = whole->b + at * p.b_column;
        p.c = whole->c + at;
        p.epilogue.bias = whole->epilogue.bias ? whole->epilogue.bias + at : NULL;
        p.epilogue.residual = whole->epilogue.residual ? whole->epilogue.residual + at : NULL;
        lathe_gemm_f32_team(call->kernels, &p, &team, call->scratch);
    }
}

enum lathe_status lathe_run_linear(const struct lathe_op_call *call) {
    struct linear_shape s;
    if (!linear_shape(call, &s))
        return lathe_bad_shape(call, "linear");
    for (unsigned i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->dtype != LATHE_F32)
            return lathe_no_dtype(call, "linear", call->in[i]->dtype);
    if (s.packing != PACKING_ROWS && s.packing != PACKING_F32_N16)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE, "linear: no implementation for weights of packing %lld",
                          (long long)s.packing);
    const struct lathe_tensor *bias = lathe_operand(call, 2), *residual = lathe_operand(call, 3);
    const struct lathe_tensor *w_pairs = lathe_operand(call, 4);
    struct lathe_gemm_f32 product = {
        .m = (size_t)s.m,
        .n = (size_t)s.n,
        .k = (size_t)s.k,
        .a = call->in[0]->data,
        .a_row = (size_t)(s.k * s.groups),
        .a_column = 1,
        .c = call->out[0]->data,
        .ldc = (size_t)s.n,
        .epilogue = {.bias = bias ? bias->data : NULL,
                     .residual = residual ? residual->data : NULL,
                     .ldr = (size_t)s.n,
                     .gate = lathe_attr_int(&call->attrs, LATHE_ATTR_GATE, 0) != 0,
                     .activation = (enum lathe_activation)lathe_attr_int(&call->attrs, LATHE_ATTR_ACTIVATION, 0),
                     .alpha = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_ALPHA, 1.702),
                     .scale = 1.0f},
    };
    if (s.packing == PACKING_F32_N16) {
        product.panels = call->in[1]->data;
        product.w_pairs = w_pairs ? w_pairs->data : NULL;
        product.w_exponent = (int)lathe_attr_int(&call->attrs, LATHE_ATTR_W_EXPONENT, 0);
    } else {
        product.b = call->in[1]->data;
        product.b_row = s.transposed ? 1 : (size_t)s.n;
        product.b_column = s.transposed ? (size_t)s.k : 1;
    }
    if (s.groups > 1)
        run_groups(call, &s, &product);
    else
        lathe_gemm_f32_team(call->kernels, &product, &call->team, call->scratch);
    return LATHE_OK;
}
