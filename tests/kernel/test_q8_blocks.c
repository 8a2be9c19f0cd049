/* 8-bit products on weights with scales a block: integer sums of every row of the table bit for bit, f32 sums within
 * the rounding that their order allows; linear_q8 in all its forms, and a row has the same bits alone, in any batch,
 * and with any number of threads. */
#include "kernel_test.h"

#include "gemm_q8_drive.h"
#include "ops.h"
#include "trap_instructions.h"

#include <math.h>

struct block_row {
    const char *family, *name;
    lathe_gemm_q8_fn fn;
    uint64_t bits;
    unsigned mr, nr;
};

#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound)
static const struct block_row rows[] = {
#define KERNEL_GEMM_Q8B(family, function, bits, mr, nr) {#family, #function, function, bits, mr, nr},
#include "kernels.def"
};
#undef KERNEL_GEMM_F32
#undef KERNEL
#define ROWS (sizeof rows / sizeof *rows)

static bool takes_seven(const struct block_row *row) {
    return strcmp(row->family, "gemm_u7s8_blocks") == 0;
}

/* ---- weights */

struct weights {
    size_t k, n, block, count, packed;
    bool halves;
    int low, high; /* of numbers */
    int8_t *w, *p; /* [k][n], packed */
    int8_t *zero;  /* cells; NULL */
    float *scale;  /* cells */
    float *w_sum;  /* [n] */
};

static size_t cells(const struct weights *w) {
    return (w->n + 15) / 16 * w->count * 16;
}

static size_t cell(const struct weights *w, size_t k, size_t j) {
    return (j / 16 * w->count + k / w->block) * 16 + j % 16;
}

/* `whole`: scales of 1, so that sums of integers below 2^24 are exact whatever their order is. */
static struct weights weights_new(size_t k, size_t n, size_t block, bool halves, int high, bool zeros, bool whole) {
    struct weights w = {.k = k, .n = n, .block = block, .count = (k + block - 1) / block, .halves = halves};
    w.low = halves ? -8 : high == 127 ? -128 : -high;
    w.high = halves ? 7 : high;
    w.packed = lathe_packed_bytes(halves ? 4 : 3, k, n);
    w.w = guarded(k * n);
    w.p = guarded(w.packed);
    w.scale = guarded_floats(cells(&w));
    w.zero = zeros ? guarded(cells(&w)) : NULL;
    w.w_sum = guarded_floats(n);
    bool extreme = test_below(3) == 0;
    for (size_t i = 0; i < k * n; i++)
        w.w[i] = (int8_t)(extreme ? (test_below(8) ? w.high : w.low)
                                  : w.low + (int)test_below((unsigned)(w.high - w.low) + 1));
    for (size_t i = 0; i < cells(&w); i++) {
        w.scale[i] = whole ? 1 : w.scale[i] / 64;
        if (zeros)
            w.zero[i] = (int8_t)(halves ? (int)test_below(16) - 8 : (int)test_below(256) - 128);
    }
    for (size_t j = 0; j < n; j++) {
        double sum = 0;
        for (size_t t = 0; t < k; t++)
            sum += (double)(w.w[t * n + j] - (zeros ? w.zero[cell(&w, t, j)] : 0)) * (double)w.scale[cell(&w, t, j)];
        w.w_sum[j] = (float)sum;
    }
    if (halves)
        lathe_pack_s4_n16k8(w.w, k, n, n, false, 0, (n + 15) / 16, w.p);
    else
        lathe_pack_s8_n16k4(w.w, k, n, n, false, 0, (n + 15) / 16, w.p);
    return w;
}

static void weights_free(struct weights *w) {
    unguard(w->w, w->k * w->n);
    unguard(w->p, w->packed);
    guarded_free(w->scale, cells(w));
    if (w->zero)
        unguard(w->zero, cells(w));
    guarded_free(w->w_sum, w->n);
}

static struct lathe_gemm_q8_blocks blocks_of(const struct weights *w) {
    return (struct lathe_gemm_q8_blocks){.block = w->block,
                                         .count = w->count,
                                         .halves = w->halves,
                                         .scale = w->scale,
                                         .zero = w->zero,
                                         .w_sum = w->w_sum};
}

/* ---- one tile */

/* Sum over the blocks of the products of row `a`; *size: of their magnitudes. */
static double exact_sum(const struct weights *w, const uint8_t *a, size_t j, double *size) {
    double sum = 0;
    *size = 0;
    for (size_t i = 0; i < w->count; i++) {
        int64_t block = 0;
        for (size_t t = i * w->block; t < w->k && t < (i + 1) * w->block; t++)
            block += a[t] * (w->w[t * w->n + j] - (w->zero ? w->zero[cell(w, t, j)] : 0));
        double term = (double)block * (double)w->scale[cell(w, i * w->block, j)];
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void one_tile(const struct block_row *row, size_t m, size_t n, size_t k, size_t block, unsigned form,
                     bool whole) {
    bool halves = form < 2, zeros = form % 2;
    bool narrow = takes_seven(row) && form >= 4;
    struct weights w = weights_new(k, n, block, halves, narrow ? LATHE_Q8_NARROW : 127, zeros, whole);
    size_t kp = halves ? (k + 7) / 8 * 8 : (k + 3) / 4 * 4, lda = kp + test_below(9), ldc = n + test_below(5);
    size_t ldr = n + test_below(3);
    unsigned top = takes_seven(row) && !halves && !narrow ? 127 : 255;
    uint8_t *a = guarded(m * lda + 8);
    float *c = guarded_floats(m * ldc), *before = guarded_floats(m * ldc), *scale = guarded_floats(m);
    float *bias = guarded_floats(n), *residual = guarded_floats(m * ldr);
    int32_t *zero = guarded(m * 4), *x_sum = guarded(m * w.count * 4);
    memcpy(before, c, m * ldc * sizeof *c);
    bool extreme = test_below(3) == 0;
    for (size_t i = 0; i < m * lda; i++)
        a[i] = (uint8_t)(extreme ? (test_below(8) ? top : 0) : test_below(top + 1));
    for (size_t i = 0; i < m; i++) {
        scale[i] = whole ? 1 : scale[i] / 16;
        zero[i] = whole ? 0 : (int32_t)test_below(256);
        for (size_t b = 0; b < w.count; b++) {
            uint32_t sum = 0;
            for (size_t t = b * block; t < k && t < (b + 1) * block; t++)
                sum += a[i * lda + t];
            x_sum[i * w.count + b] = lathe_q8_block_sum(sum);
        }
    }
    static const enum lathe_activation activations[] = {LATHE_ACT_NONE, LATHE_ACT_NONE, LATHE_ACT_GELU, LATHE_ACT_RELU};
    bool some = !whole && test_below(2);
    struct lathe_gemm_q8_epilogue e = {.scale = scale,
                                       .zero = zero,
                                       .bias = some ? bias : NULL,
                                       .residual = some ? residual : NULL,
                                       .ldr = ldr,
                                       .gate = test_below(2),
                                       .activation = whole ? LATHE_ACT_NONE : activations[test_below(4)]};
    struct lathe_gemm_q8_blocks blocks = blocks_of(&w);
    struct lathe_gemm_q8_tile tile = {.rows = m,
                                      .cols = n,
                                      .k = kp,
                                      .a = a,
                                      .lda = lda,
                                      .x_sum = x_sum,
                                      .ldx_sum = w.count,
                                      .b = w.p,
                                      .panel_stride = w.packed / ((n + 15) / 16),
                                      .blocks = &blocks,
                                      .c = c,
                                      .ldc = ldc,
                                      .epilogue = &e};
    row->fn(&tile);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            double got = (double)c[i * ldc + j], size, bound = 0, want;
            if (j >= n) {
                assert_true(c[i * ldc + j] == before[i * ldc + j]);
                continue;
            }
            want = exact_sum(&w, a + i * lda, j, &size);
            if (!whole) {
                double correction = (double)zero[i] * (double)w.w_sum[j];
                bound = (size + fabs(correction)) * fabs((double)scale[i]);
                want = (want - correction) * (double)scale[i] + (some ? (double)bias[j] : 0);
                bound = 0x1p-23 * (bound * (double)(w.count + 3) + fabs(want) + 4);
                if (e.activation == LATHE_ACT_GELU) {
                    bound = 1.2 * bound + 2e-6 * fmax(1, fabs(want));
                    want = 0.5 * want * (1 + erf(want * 0.70710678118654752440));
                } else if (e.activation == LATHE_ACT_RELU) {
                    want = fmax(want, 0);
                }
                want = test_join(e.gate, want, some ? &residual[i * ldr + j] : NULL);
                bound *= fmax(1, fabs((double)residual[i * ldr + j]));
            }
            if (!(fabs(got - want) <= bound))
                fail_msg("%s m %zu n %zu k %zu block %zu form %u: [%zu][%zu] is %.9g, not %.9g (+- %g)", row->name, m,
                         n, k, block, form, i, j, got, want, bound);
        }
    unguard(a, m * lda + 8);
    guarded_free(c, m * ldc);
    guarded_free(before, m * ldc);
    guarded_free(scale, m);
    guarded_free(bias, n);
    guarded_free(residual, m * ldr);
    unguard(zero, m * 4);
    unguard(x_sum, m * w.count * 4);
    weights_free(&w);
}

/* 500 x 255 x 128 is below 2^24: with scales of 1 every sum is exact. */
static void tiles(void **state) {
    (void)state;
    static const size_t ks[] = {1, 3, 8, 9, 31, 32, 33, 64, 100, 256};
    static const size_t ns[] = {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100};
    static const size_t blocks[] = {8, 16, 24, 32, 128, 512};
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_runs(rows[r].name, rows[r].bits))
            continue;
        size_t step = test_traps(rows[r].bits) ? 5 : 1;
        for (size_t m = 1; m <= rows[r].mr; m++)
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i += step)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                    for (unsigned form = takes_seven(&rows[r]) ? 0 : 2; form < 6; form++)
                        one_tile(&rows[r], m, ns[i], ks[j], blocks[test_below(6)], form, test_below(2));
    }
}

/* ---- linear_q8 */

static void layer_run(const struct lathe_kernels *kernels, const struct weights *w, bool packed, int bits, bool all,
                      const float *x, const float *bias, const float *residual, size_t m, unsigned threads,
                      void *prepared, float *y) {
    int64_t k = (int64_t)w->k, n = (int64_t)w->n, rows_of_x = (int64_t)m;
    int64_t panels = (n + 15) / 16, count = (int64_t)w->count;
    struct lathe_tensor tx = {(void *)(uintptr_t)x, LATHE_F32, 2, {rows_of_x, k}};
    struct lathe_tensor out = {y, LATHE_F32, 2, {rows_of_x, n}};
    struct lathe_tensor tw = {packed ? w->p : w->w, LATHE_I8, 2, {k, n}};
    struct lathe_tensor scale = {w->scale, LATHE_F32, 3, {panels, count, 16}};
    struct lathe_tensor zero = {w->zero, LATHE_I8, 3, {panels, count, 16}}, sum = {w->w_sum, LATHE_F32, 1, {n}};
    struct lathe_tensor tb = {(void *)(uintptr_t)bias, LATHE_F32, 1, {n}};
    struct lathe_tensor tr = {(void *)(uintptr_t)residual, LATHE_F32, 2, {rows_of_x, n}};
    int64_t packing = !packed ? 0 : w->halves ? 4 : 3;
    struct lathe_attr attrs[] = {{.key = LATHE_ATTR_BITS, .type = LATHE_ATTR_INT, .i = bits},
                                 {.key = LATHE_ATTR_BLOCK_SIZE, .type = LATHE_ATTR_INT, .i = (int64_t)w->block},
                                 {.key = LATHE_ATTR_PACKING, .type = LATHE_ATTR_INT, .i = packing}};
    const struct lathe_tensor *in[] = {
        &tx, &tw, &scale, &sum, all ? &tb : NULL, all ? &tr : NULL, NULL, w->zero ? &zero : NULL};
    struct lathe_tensor *outs[] = {&out};
    struct lathe_diag diag = {0};
    struct lathe_op_call call = {.attrs = {attrs, 3},
                                 .in = in,
                                 .out = outs,
                                 .n_in = 8,
                                 .n_out = 1,
                                 .kernels = kernels,
                                 .diag = &diag,
                                 .prepared = prepared};
    size_t scratch = lathe_scratch_linear_q8(&call);
    memset(y, 0x7f, m * w->n * sizeof *y);
    for (unsigned i = 0; i < threads && prepared; i++) {
        call.team = (struct lathe_team){.index = i, .count = threads};
        lathe_prepare_linear_q8(&call);
    }
    for (unsigned i = 0; i < threads; i++) {
        call.scratch = guarded(scratch);
        call.team = (struct lathe_team){.index = i, .count = threads};
        if (lathe_run_linear_q8(&call) != LATHE_OK)
            fail_msg("%s", diag.text);
        unguard(call.scratch, scratch);
    }
}

/* Packed or not, prepared or not, by one thread or several, in the batch or alone: the same bits. Plain C differs by
 * the rounding of a product in each step. */
static void layers(void **state) {
    (void)state;
    static const size_t shapes[][4] = {{1, 1, 1, 8},        {1, 70, 1000, 32},   {3, 33, 385, 64},
                                       {8, 260, 67, 16},    {29, 65, 40, 8},     {90, 300, 20, 32},
                                       {33, 40, 2048, 128}, {100, 17, 1000, 48}, {14, 530, 64, 4096}};
    uint64_t levels[ROWS];
    size_t level_count = 0;
    for (size_t r = 0; r < ROWS; r++) {
        bool again = false;
        for (size_t i = 0; i < level_count; i++)
            again = again || levels[i] == rows[r].bits;
        if (!again && test_can_run(rows[r].bits))
            levels[level_count++] = rows[r].bits;
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (unsigned form = 0; form < 4; form++) {
            size_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], size = m * n;
            struct weights w = weights_new(k, n, shapes[s][3], form < 2, 127, form % 2, false);
            float *x = guarded_floats(m * k), *bias = guarded_floats(n), *residual = guarded_floats(size);
            float *plain = guarded_floats(size), *first = guarded_floats(size), *y = guarded_floats(size);
            size_t bytes = lathe_gemm_q8_rows_bytes(m, k, w.block);
            void *prepared = guarded(bytes);
            for (size_t l = 0; l < level_count; l++) {
                struct lathe_kernels kernels;
                int bits = form >= 2 && s % 2 ? 7 : 8;
                lathe_kernels_select(levels[l], &kernels);
                layer_run(&kernels, &w, true, bits, true, x, bias, residual, m, 1, NULL, first);
                for (unsigned threads = 1; threads < 6; threads += 2) {
                    layer_run(&kernels, &w, threads == 3, bits, true, x, bias, residual, m, threads, NULL, y);
                    assert_memory_equal(first, y, size * sizeof *y);
                }
                layer_run(&kernels, &w, true, bits, true, x, bias, residual, m, 3, prepared, y);
                assert_memory_equal(first, y, size * sizeof *y);
                size_t row = test_below(m);
                layer_run(&kernels, &w, true, bits, true, x + row * k, bias, residual + row * n, 1, 2, NULL, y);
                assert_memory_equal(first + row * n, y, n * sizeof *y);
                if (l == 0)
                    memcpy(plain, first, size * sizeof *plain);
                for (size_t i = 0; i < size; i++) /* x below 1, weights below 256 / 64 */
                    assert_true(fabs((double)first[i] - (double)plain[i]) <=
                                0x1p-23 * (double)(w.count + 3) * 8 * (double)k);
            }
            unguard(prepared, bytes);
            guarded_free(x, m * k);
            guarded_free(bias, n);
            guarded_free(residual, size);
            guarded_free(plain, size);
            guarded_free(first, size);
            guarded_free(y, size);
            weights_free(&w);
        }
}

/* A row that is not finite, or too large, is NaN; its neighbours do not notice. */
static void not_finite(void **state) {
    (void)state;
    struct weights w = weights_new(40, 20, 16, true, 7, true, false);
    struct lathe_kernels kernels;
    lathe_kernels_select(lathe_cpu_bits(), &kernels);
    float *x = guarded_floats(3 * 40), *y = guarded_floats(3 * 20), *z = guarded_floats(3 * 20);
    layer_run(&kernels, &w, true, 8, false, x, NULL, NULL, 3, 1, NULL, z);
    x[45] = INFINITY;
    layer_run(&kernels, &w, true, 8, false, x, NULL, NULL, 3, 1, NULL, y);
    for (size_t j = 0; j < 20; j++) {
        assert_true(isnan(y[20 + j]));
        assert_true(y[j] == z[j] && y[40 + j] == z[40 + j]);
    }
    guarded_free(x, 3 * 40);
    guarded_free(y, 3 * 20);
    guarded_free(z, 3 * 20);
    weights_free(&w);
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles),
        cmocka_unit_test(layers),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
