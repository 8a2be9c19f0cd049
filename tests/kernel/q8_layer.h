/* A layer of linear_q8 with made-up numbers, its weights in all the ways that they may lie. */
#ifndef LATHE_TEST_Q8_LAYER_H
#define LATHE_TEST_Q8_LAYER_H

#include "kernel_test.h"

#include "ops.h"

struct layer {
    size_t m, n, k, packed;
    float *x, *w_scale, *bias, *residual, *x_scale;
    int most, sums;    /* attributes `max` and `sum16` */
    int8_t *w, *t, *p; /* rows, transposed, packed */
    int32_t *w_sum;
    uint8_t *order; /* NULL, or the order of the steps, and */
    int32_t *w_pairs;
};

/* Without weights. */
static inline struct layer layer_alloc(size_t m, size_t n, size_t k) {
    struct layer l = {.m = m, .n = n, .k = k, .most = 127, .packed = lathe_packed_bytes(3, k, n)};
    l.x = guarded_floats(m * k);
    l.w_scale = guarded_floats(n);
    l.bias = guarded_floats(n);
    l.residual = guarded_floats(m * n);
    l.x_scale = guarded_floats(k);
    l.w = guarded(k * n);
    l.t = guarded(k * n);
    l.p = guarded(l.packed);
    l.w_sum = guarded(n * 4);
    return l;
}

/* What follows from the weights, in rows; with an order, steps that are no pairs count twice. */
static inline void layer_finish(struct layer *l) {
    for (size_t j = 0; j < l->n; j++) {
        l->w_sum[j] = 0;
        for (size_t i = 0; i < l->k; i++) {
            int w = l->w[i * l->n + j];
            l->t[j * l->k + i] = (int8_t)w;
            l->w_sum[j] += l->order && !lathe_fip_is_pair(i, l->k) ? 2 * w : w;
        }
        if (l->order)
            l->w_pairs[j] = lathe_fip_column(l->t + j * l->k, l->k);
    }
    lathe_pack_s8_n16k4(l->w, l->k, l->n, l->n, false, 0, (l->n + 15) / 16, l->p);
}

static inline void layer_free(struct layer *l) {
    guarded_free(l->x, l->m * l->k);
    guarded_free(l->w_scale, l->n);
    guarded_free(l->bias, l->n);
    guarded_free(l->residual, l->m * l->n);
    guarded_free(l->x_scale, l->k);
    unguard(l->w, l->k * l->n);
    unguard(l->t, l->k * l->n);
    unguard(l->p, l->packed);
    unguard(l->w_sum, l->n * 4);
    if (l->order) {
        unguard(l->order, l->k);
        unguard(l->w_pairs, l->n * 4);
    }
}

enum weights { PACKED, ROWS, TRANSPOSED };

/* Rows [row, row + m) of the layer, thread by thread. */
static inline void layer_run(const struct lathe_kernels *kernels, const struct layer *l, enum weights weights, int bits,
                             int activation, bool all, size_t row, size_t m, unsigned threads, float *y) {
    int64_t k = (int64_t)l->k, n = (int64_t)l->n, rows = (int64_t)m;
    void *w = weights == PACKED ? l->p : weights == ROWS ? l->w : l->t;
    struct lathe_tensor x = {l->x + row * l->k, LATHE_F32, 2, {rows, k}}, out = {y, LATHE_F32, 2, {rows, n}};
    struct lathe_tensor tw = {w, LATHE_I8, 2, {weights == TRANSPOSED ? n : k, weights == TRANSPOSED ? k : n}};
    struct lathe_tensor scale = {l->w_scale, LATHE_F32, 1, {n}}, sum = {l->w_sum, LATHE_I32, 1, {n}};
    struct lathe_tensor bias = {l->bias, LATHE_F32, 1, {n}}, x_scale = {l->x_scale, LATHE_F32, 1, {k}};
    struct lathe_tensor residual = {l->residual + row * l->n, LATHE_F32, 2, {rows, n}};
    struct lathe_attr attrs[] = {{.key = LATHE_ATTR_BITS, .type = LATHE_ATTR_INT, .i = bits},
                                 {.key = LATHE_ATTR_MAX, .type = LATHE_ATTR_INT, .i = l->most},
                                 {.key = LATHE_ATTR_SUM16, .type = LATHE_ATTR_INT, .i = l->sums},
                                 {.key = LATHE_ATTR_ACTIVATION, .type = LATHE_ATTR_INT, .i = activation},
                                 {.key = LATHE_ATTR_TRANS_B, .type = LATHE_ATTR_INT, .i = weights == TRANSPOSED},
                                 {.key = LATHE_ATTR_PACKING, .type = LATHE_ATTR_INT, .i = weights == PACKED ? 3 : 0}};
    struct lathe_tensor order = {l->order, LATHE_U8, 1, {k}}, w_pairs = {l->w_pairs, LATHE_I32, 1, {n}};
    const struct lathe_tensor *in[] = {&x,
                                       &tw,
                                       &scale,
                                       &sum,
                                       all ? &bias : NULL,
                                       all ? &residual : NULL,
                                       all ? &x_scale : NULL,
                                       NULL,
                                       l->order ? &order : NULL,
                                       l->order ? &w_pairs : NULL};
    struct lathe_tensor *outs[] = {&out};
    struct lathe_diag diag = {0};
    struct lathe_op_call call = {.attrs = {attrs, 6},
                                 .in = in,
                                 .out = outs,
                                 .n_in = l->order ? 10
                                         : all    ? 7
                                                  : 4,
                                 .n_out = 1,
                                 .kernels = kernels,
                                 .diag = &diag};
    size_t scratch = lathe_scratch_linear_q8(&call);
    memset(y, 0x7f, m * l->n * sizeof *y);
    for (unsigned i = 0; i < threads; i++) {
        call.scratch = guarded(scratch);
        call.team = (struct lathe_team){.index = i, .count = threads, .near = threads % 2 == 0};
        assert_int_equal(lathe_run_linear_q8(&call), LATHE_OK);
        unguard(call.scratch, scratch);
    }
}
#endif
