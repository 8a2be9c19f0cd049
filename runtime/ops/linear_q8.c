/* linear_q8: act(x w + bias) + residual with the rows of x and the columns of w in 8 bits. */
#include "gemm_q8_drive.h"
#include "op_util.h"
#include "ops.h"

enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

enum { X, W, W_SCALE, W_SUM, BIAS, RESIDUAL, X_SCALE, W_ZERO, ORDER, W_PAIRS, OPERANDS };
static const enum lathe_dtype operand_type[OPERANDS] = {LATHE_F32, LATHE_I8,  LATHE_F32, LATHE_I32, LATHE_F32,
                                                        LATHE_F32, LATHE_F32, LATHE_I8,  LATHE_U8,  LATHE_I32};

struct product {
    struct lathe_gemm_q8 gemm; /* of all columns, at the first of x */
    struct lathe_gemm_q8_blocks blocks;
    int64_t groups;
    bool packed;
};

static bool has_count(const struct lathe_tensor *t, int64_t count, bool needed) {
    return t ? lathe_tensor_count(t) == count : !needed;
}

/* Scales and zero points of an attribute block_size. */
static bool blocks_of(const struct lathe_op_call *call, int64_t block, int64_t k, int64_t n, bool halves,
                      struct lathe_gemm_q8_blocks *out) {
    const struct lathe_tensor *zero = lathe_operand(call, W_ZERO);
    if (!lathe_q8_is_block(block))
        return false;
    int64_t count = k > 0 ? (k - 1) / block + 1 : 0, cells;
    if (!lathe_mul_i64(count * 16, (n + 15) / 16, &cells) || !has_count(lathe_operand(call, W_SCALE), cells, true) ||
        !has_count(zero, cells, false))
        return false;
    *out = (struct lathe_gemm_q8_blocks){.block = (size_t)block,
                                         .count = (size_t)count,
                                         .halves = halves,
                                         .scale = call->in[W_SCALE]->data,
                                         .zero = zero ? zero->data : NULL,
                                         .w_sum = call->in[W_SUM]->data};
    return true;
}

/* Sizes and operands of the product, without kernels and epilogue's attributes. */
static bool product_of(const struct lathe_op_call *call, struct product *out) {
    const struct lathe_tensor *x = lathe_operand(call, X), *w = lathe_operand(call, W), *y = call->out[0];
    if (!x || !w || !y || x->rank < 1 || y->rank != x->rank)
        return false;
    int64_t k = x->dims[x->rank - 1], n = y->dims[y->rank - 1], m = lathe_count_range(y, 0, y->rank - 1);
    int64_t packing = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS);
    int64_t block = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    bool packed = packing == PACKING_S8_N16K4 || packing == PACKING_S4_N16K8;
    const struct lathe_tensor *bias = lathe_operand(call, BIAS), *residual = lathe_operand(call, RESIDUAL);
    const struct lathe_tensor *x_scale = lathe_operand(call, X_SCALE);
    const struct lathe_tensor *order = lathe_operand(call, ORDER), *w_pairs = lathe_operand(call, W_PAIRS);
    bool transposed = lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    int64_t width = k, groups = lathe_linear_groups(call, width, n, packed);
    if (!groups || (groups > 1 && block))
        return false;
    k /= groups;
    if (lathe_count_range(x, 0, x->rank - 1) != m || !has_count(packed ? NULL : w, k * n, !packed) ||
        !has_count(lathe_operand(call, W_SUM), n, true) || !has_count(bias, n, false) ||
        !has_count(residual, m * n, false) || !has_count(x_scale, k, false) || !has_count(order, k, false) ||
        !has_count(w_pairs, n, order != NULL))
        return false;
    if (order && (k % 4 || n % 16 || groups > 1 || block))
        return false;
    *out = (struct product){.packed = packed, .groups = groups};
    if (block) {
        if (k > (int64_t)LATHE_Q8_MAX_K || !blocks_of(call, block, k, n, packing == PACKING_S4_N16K8, &out->blocks))
            return false;
    } else if (packing == PACKING_S4_N16K8 || lathe_operand(call, W_ZERO) ||
               !has_count(lathe_operand(call, W_SCALE), n, true)) {
        return false;
    }
    out->gemm = (struct lathe_gemm_q8){.m = (size_t)m,
                                       .n = (size_t)n,
                                       .k = (size_t)k,
                                       .x = x->data,
                                       .ldx = (size_t)width,
                                       .x_scale = x_scale ? x_scale->data : NULL,
                                       .blocks = block ? &out->blocks : NULL,
                                       .order = order ? order->data : NULL,
                                       .w_pairs = order ? w_pairs->data : NULL,
                                       .panels = packed ? w->data : NULL,
                                       .w = packed ? NULL : w->data,
                                       .transposed = transposed,
                                       .ldw = (size_t)(transposed ? k : n),
                                       .y = y->data,
                                       .heads = call->heads,
                                       .ldy = (size_t)n,
                                       .epilogue = {.w_scale = call->in[W_SCALE]->data,
                                                    .w_sum = call->in[W_SUM]->data,
                                                    .bias = bias ? bias->data : NULL,
                                                    .residual = residual ? residual->data : NULL,
                                                    .ldr = (size_t)n}};
    return true;
}

size_t lathe_scratch_linear_q8(const struct lathe_op_call *call) {
    struct product p;
    if (!product_of(call, &p) || p.gemm.k > LATHE_Q8_MAX_K)
        return 0;
    return lathe_gemm_q8_scratch(call->kernels, p.gemm.m, p.gemm.n / (size_t)p.groups, p.gemm.k, p.blocks.block,
                                 p.packed);
}

void lathe_prepare_linear_q8(const struct lathe_op_call *call) {
    struct product p;
    if (!product_of(call, &p) || call->in[X]->dtype != LATHE_F32 || p.gemm.k > LATHE_Q8_MAX_K || p.groups > 1)
        return; /* run says what is wrong */
    p.gemm.levels = lathe_attr_int(&call->attrs, LATHE_ATTR_BITS, 8) == 8 ? 255 : 127;
    lathe_gemm_q8_prepare(call->kernels, &p.gemm, &call->team, call->prepared);
}

/* The groups, each a product of its own. */
static __attribute__((cold)) void run_groups(const struct lathe_op_call *call, int64_t groups,
                                             const struct lathe_gemm_q8 *whole) {
    struct lathe_gemm_q8 p = *whole;
    int64_t begin, end;
    p.n = whole->n / (size_t)groups;
    p.prepared = NULL;
    p.heads = NULL;
    p.turn = p.turns = 0;
    const struct lathe_team team = lathe_split_groups(&call->team, groups, &begin, &end);
    for (size_t g = (size_t)begin; g < (size_t)end; g++) {
        size_t at = g * p.n;
        p.x = whole->x + g * p.k;
        if (p.panels)
            p.panels = whole->panels + at * ((p.k + 3) / 4 * 4);
        else
            p.w = whole->w + at * (p.transposed ? p.ldw : 1);
        p.y = whole->y + at;
        p.epilogue.w_scale = whole->epilogue.w_scale + at;
        p.epilogue.w_sum = whole->epilogue.w_sum + at;
        p.epilogue.bias = whole->epilogue.bias ? whole->epilogue.bias + at : NULL;
        p.epilogue.residual = whole->epilogue.residual ? whole->epilogue.residual + at : NULL;
        lathe_gemm_q8_team(call->kernels, &p, &team, call->scratch);
    }
}

enum lathe_status lathe_run_linear_q8(const struct lathe_op_call *call) {
    struct product product;
    if (!product_of(call, &product))
        return lathe_bad_shape(call, "linear_q8");
    struct lathe_gemm_q8 *p = &product.gemm;
    for (unsigned i = 0; i < OPERANDS; i++) {
        const struct lathe_tensor *t = lathe_operand(call, i);
        if (t && t->dtype != (i == W_SUM && p->blocks ? LATHE_F32 : operand_type[i]))
            return lathe_no_dtype(call, "linear_q8", t->dtype);
    }
    int64_t packing = lathe_attr_int(&call->attrs, LATHE_ATTR_PACKING, PACKING_ROWS);
    if (packing != PACKING_ROWS && !product.packed)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE,
                          "linear_q8: no implementation for weights of packing %lld", (long long)packing);
    int64_t bits = lathe_attr_int(&call->attrs, LATHE_ATTR_BITS, 8);
    if (bits != 8 && bits != 7)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE, "linear_q8: bits is %lld, not 8 or 7", (long long)bits);
    if (p->k > LATHE_Q8_MAX_K)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE,
                          "linear_q8: sums of %zu products may not fit 32 bits, at most "
                          "%zu",
                          p->k, LATHE_Q8_MAX_K);
    p->levels = bits == 8 ? 255 : 127;
    p->prepared = call->prepared;
    int64_t sums = lathe_attr_int(&call->attrs, LATHE_ATTR_SUM16, 0);
    bool narrow = product.blocks.halves || lathe_attr_int(&call->attrs, LATHE_ATTR_MAX, 127) <= LATHE_Q8_NARROW;
    p->sums = sums >= 4 ? 4 : sums >= 2 ? 2 : sums == 1 || narrow ? 1 : 0;
    p->turn = call->beside.index;
    p->turns = call->beside.count;
    p->epilogue.activation = (enum lathe_activation)lathe_attr_int(&call->attrs, LATHE_ATTR_ACTIVATION, 0);
    p->epilogue.gate = lathe_attr_int(&call->attrs, LATHE_ATTR_GATE, 0) != 0;
    p->epilogue.alpha = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_ALPHA, 1.702);
    if (product.groups > 1)
        run_groups(call, product.groups, p);
    else
        lathe_gemm_q8_team(call->kernels, p, &call->team, call->scratch);
    return LATHE_OK;
}
