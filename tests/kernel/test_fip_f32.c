/* linear with w_pairs (gemm_f32_fip): near the product in doubles by its stated bound, whatever the sizes of rows and
 * weights are; a row has the same bits alone, in any batch, with any number of threads; rows of zeros give the bias,
 * infinities and NaN stay in their rows. Levels without the kernel take no notice of w_pairs. */
#include "kernel_test.h"

#include "kernel_rows.h"
#include "ops.h"
#include "trap_instructions.h"

#include <math.h>

struct layer {
    size_t m, n, k;
    float *x, *w, *p, *w_pairs, *bias, *residual;
    int exponent;
};

/* Rows and weights of the sizes 2^x_size and 2^w_size, of which some rows and elements are larger. */
static struct layer layer_new(size_t m, size_t n, size_t k, int x_size, int w_size) {
    struct layer l = {.m = m, .n = n, .k = k};
    double mean = 0;
    l.x = guarded_floats(m * k);
    l.w = guarded_floats(k * n);
    l.p = guarded_floats(k * n);
    l.w_pairs = guarded_floats(n);
    l.bias = guarded_floats(n);
    l.residual = guarded_floats(m * n);
    for (size_t i = 0; i < m; i++) {
        int size = x_size + (int)test_below(9) - 4;
        for (size_t t = 0; t < k; t++)
            l.x[i * k + t] = ldexpf(test_float(), size + (test_below(50) ? 0 : 4));
    }
    for (size_t i = 0; i < k * n; i++) {
        l.w[i] = ldexpf(test_float(), w_size);
        mean += (double)l.w[i] * (double)l.w[i] / (double)(k * n);
    }
    (void)frexp(mean, &l.exponent);
    l.exponent >>= 1;
    for (size_t j = 0; j < n; j++) {
        double sum = 0;
        for (size_t t = 1; t < k / 3 * 3; t += 3)
            sum += (double)l.w[t * n + j] * (double)l.w[(t + 1) * n + j];
        l.w_pairs[j] = (float)-sum;
    }
    lathe_pack_f32_n16(l.w, k, n, n, false, 0, n / 16, l.p);
    return l;
}

static void layer_free(struct layer *l) {
    guarded_free(l->x, l->m * l->k);
    guarded_free(l->w, l->k * l->n);
    guarded_free(l->p, l->k * l->n);
    guarded_free(l->w_pairs, l->n);
    guarded_free(l->bias, l->n);
    guarded_free(l->residual, l->m * l->n);
}

/* Rows [row, row + m), thread by thread. */
static void layer_run(const struct lathe_kernels *kernels, const struct layer *l, bool paired, int activation,
                      bool residual, size_t row, size_t m, unsigned threads, float *y) {
    int64_t k = (int64_t)l->k, n = (int64_t)l->n, count = (int64_t)m;
    struct lathe_tensor x = {l->x + row * l->k, LATHE_F32, 2, {count, k}}, out = {y, LATHE_F32, 2, {count, n}};
    struct lathe_tensor w = {l->p, LATHE_F32, 2, {k, n}}, bias = {l->bias, LATHE_F32, 1, {n}};
    struct lathe_tensor r = {l->residual + row * l->n, LATHE_F32, 2, {count, n}};
    struct lathe_tensor w_pairs = {l->w_pairs, LATHE_F32, 1, {n}};
    struct lathe_attr attrs[] = {{.key = LATHE_ATTR_ACTIVATION, .type = LATHE_ATTR_INT, .i = activation},
                                 {.key = LATHE_ATTR_PACKING, .type = LATHE_ATTR_INT, .i = 1},
                                 {.key = LATHE_ATTR_W_EXPONENT, .type = LATHE_ATTR_INT, .i = l->exponent}};
    const struct lathe_tensor *in[] = {&x, &w, &bias, residual ? &r : NULL, paired ? &w_pairs : NULL};
    struct lathe_tensor *outs[] = {&out};
    struct lathe_diag diag = {0};
    struct lathe_op_call call = {
        .attrs = {attrs, 3}, .in = in, .out = outs, .n_in = 5, .n_out = 1, .kernels = kernels, .diag = &diag};
    size_t scratch = (lathe_scratch_linear(&call) + 3) / 4;
    for (unsigned i = 0; i < threads; i++) {
        call.scratch = guarded_floats(scratch);
        call.team = (struct lathe_team){.index = i, .count = threads, .near = threads % 2 == 0};
        assert_int_equal(lathe_run_linear(&call), LATHE_OK);
        guarded_free(call.scratch, scratch);
    }
}

static uint64_t level(bool fast) {
    uint64_t bits = LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA) | LATHE_CPU_MASK(LATHE_CPU_AVX512);
    return fast ? bits | LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS) : bits;
}

/* Roundings of numbers of the size |x| |w|, as many as there are steps. */
static void check(const struct layer *l, const float *y, bool residual) {
    for (size_t i = 0; i < l->m; i++)
        for (size_t j = 0; j < l->n; j++) {
            double sum = 0, xx = 0, ww = 0;
            for (size_t t = 0; t < l->k; t++) {
                double a = (double)l->x[i * l->k + t], b = (double)l->w[t * l->n + j];
                sum += a * b;
                xx += a * a;
                ww += b * b;
            }
            double want = sum + l->bias[j] + (residual ? l->residual[i * l->n + j] : 0);
            double bound = ldexp(16 * sqrt(xx * ww) * (sqrt((double)l->k) + 8), -24) + ldexp(fabs(want) + 2, -22);
            if (!(fabs(y[i * l->n + j] - want) <= bound))
                fail_msg("m %zu n %zu k %zu: [%zu][%zu] is %.9g, not %.9g within %g", l->m, l->n, l->k, i, j,
                         (double)y[i * l->n + j], want, bound);
        }
}

static const size_t shapes[][3] = {{1, 64, 100},   {2, 16, 3},     {3, 80, 4},     {5, 48, 768},  {9, 96, 50},
                                   {12, 64, 3073}, {27, 64, 3072}, {40, 32, 1030}, {97, 48, 200}, {130, 32, 47}};

static void product(void **state) {
    (void)state;
    if (!test_can_run(level(true)))
        return;
    struct lathe_kernels kernels;
    lathe_kernels_select(level(true), &kernels);
    assert_non_null(kernels.gemm_f32_fip.fn);
    printf("run: lathe_gemm_f32_fip_12x32__avx512\n");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int sizes = 0; sizes < 3; sizes++) {
            struct layer l = layer_new(shapes[s][0], shapes[s][1], shapes[s][2],
                                       sizes == 1   ? 30
                                       : sizes == 2 ? -50
                                                    : 0,
                                       sizes == 1   ? -30
                                       : sizes == 2 ? 60
                                                    : -3);
            size_t size = l.m * l.n;
            float *first = guarded_floats(size), *y = guarded_floats(size);
            for (int form = 0; form < 2; form++) {
                int activation = form ? LATHE_ACT_GELU : LATHE_ACT_NONE;
                layer_run(&kernels, &l, true, activation, !form, 0, l.m, 1, first);
                if (!form)
                    check(&l, first, true);
                for (unsigned threads = 2; threads <= 4; threads++) {
                    layer_run(&kernels, &l, true, activation, !form, 0, l.m, threads, y);
                    assert_memory_equal(first, y, size * sizeof *y);
                }
                for (size_t i = 0; i < l.m; i += 1 + test_below(7)) {
                    size_t some = 1 + test_below(l.m - i < 30 ? l.m - i : 30);
                    layer_run(&kernels, &l, true, activation, !form, i, some, 1 + (unsigned)test_below(2), y);
                    assert_memory_equal(y, first + i * l.n, some * l.n * sizeof *y);
                }
            }
            guarded_free(first, size);
            guarded_free(y, size);
            layer_free(&l);
        }
}

/* Rows that have no size, or no number. */
static void odd_rows(void **state) {
    (void)state;
    if (!test_can_run(level(true)))
        return;
    struct lathe_kernels kernels;
    lathe_kernels_select(level(true), &kernels);
    struct layer l = layer_new(20, 64, 300, 0, -2);
    size_t size = l.m * l.n;
    float *before = guarded_floats(size), *y = guarded_floats(size);
    layer_run(&kernels, &l, true, LATHE_ACT_NONE, false, 0, l.m, 1, before);
    memset(l.x + 3 * l.k, 0, l.k * sizeof *l.x);
    l.x[5 * l.k + 7] = NAN;
    l.x[11 * l.k] = INFINITY;
    for (size_t t = 0; t < l.k; t++) {
        l.x[8 * l.k + t] *= 1e30f; /* squares leave the range of f32 */
        l.x[9 * l.k + t] *= 1e-30f;
    }
    layer_run(&kernels, &l, true, LATHE_ACT_NONE, false, 0, l.m, 2, y);
    for (size_t i = 0; i < l.m; i++)
        for (size_t j = 0; j < l.n; j++) {
            float now = y[i * l.n + j], w = l.w[j], is = before[i * l.n + j];
            if (i == 3)
                assert_true(now == l.bias[j]);
            else if (i == 5)
                assert_true(isnan(now));
            else if (i == 11)
                assert_true(w == 0 ? isnan(now) : now == copysignf(INFINITY, w));
            else if (i == 8)
                assert_true(fabs((double)now / 1e30 - ((double)is - l.bias[j])) < 1e-4);
            else if (i == 9)
                assert_true(fabs((double)now - l.bias[j]) < 1e-25 + ldexp(fabs(l.bias[j]), -23));
            else
                assert_memory_equal(&now, &is, sizeof now);
        }
    guarded_free(before, size);
    guarded_free(y, size);
    layer_free(&l);
}

/* Where the kernel is not, the same bits as without w_pairs. */
static void other_levels(void **state) {
    (void)state;
    const uint64_t levels[] = {0, level(false) & ~LATHE_CPU_MASK(LATHE_CPU_AVX512), level(false)};
    for (size_t i = 0; i < 3; i++) {
        struct lathe_kernels kernels;
        if (!test_can_run(levels[i]))
            continue;
        lathe_kernels_select(levels[i], &kernels);
        struct layer l = layer_new(13, 48, 100, 0, -2);
        float *with = guarded_floats(l.m * l.n), *without = guarded_floats(l.m * l.n);
        layer_run(&kernels, &l, true, LATHE_ACT_NONE, true, 0, l.m, 1, with);
        layer_run(&kernels, &l, false, LATHE_ACT_NONE, true, 0, l.m, 1, without);
        assert_memory_equal(with, without, l.m * l.n * sizeof *with);
        guarded_free(with, l.m * l.n);
        guarded_free(without, l.m * l.n);
        layer_free(&l);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(product), cmocka_unit_test(odd_rows),
                                       cmocka_unit_test(other_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
