/* The row kernels against their formulas in double: error bounds of kernels.def, all lengths around a vector, guard
 * bytes, special values. */
#include "kernel_test.h"

#include <math.h>

struct unary_row {
    const char *name;
    lathe_unary_f32_fn fn;
    uint64_t bits;
};
static double exact_gelu(double x) {
    return x <= 0 ? 0.5 * x * erfc(-x * 0.70710678118654752440) : x - 0.5 * x * erfc(x * 0.70710678118654752440);
}
static double exact_gelu_tanh(double x) {
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
static double exact_silu(double x) {
    return x / (1 + exp(-x));
}
static double exact_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Bounds: error <= max(ulp of the result, absolute). */
struct bound {
    const char *family;
    double (*exact)(double);
    double ulp, absolute, from, to;
};
static const struct bound bounds[] = {
    {"gelu_f32", exact_gelu, 3, 1e-7, -12, 12},
    {"gelu_tanh_f32", exact_gelu_tanh, 4, 2e-7, -12, 12},
    {"silu_f32", exact_silu, 3, 1e-36, -100, 100},
    {"tanh_f32", tanh, 2, 0, -12, 12},
    {"exp_f32", exp, 2, 1e-44, -110, 88.7},
    {"erf_f32", erf, 2, 0, -6, 6},
    {"sigmoid_f32", exact_sigmoid, 3, 1e-37, -100, 100},
};

static const struct {
    const char *family;
    struct unary_row row;
} unary[] = {
#define IS_UNARY_lathe_unary_f32_fn(family, function, bits) {#family, {#function, function, bits}},
#define IS_UNARY_lathe_layer_norm_f32_fn(family, function, bits)
#define IS_UNARY_lathe_rms_norm_f32_fn(family, function, bits)
#define IS_UNARY_lathe_softmax_f32_fn(family, function, bits)
#define IS_UNARY_lathe_attention_f32_fn(family, function, bits)
#define IS_UNARY_lathe_binary_f32_fn(family, function, bits)
#define IS_UNARY_lathe_few_f32_fn(family, function, bits)
#define IS_UNARY_lathe_taps_f32_fn(family, function, bits)
#define IS_UNARY_lathe_fip_rows_fn(family, function, bits)
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound) IS_UNARY_##type(family, function, (bits))
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
};

static double ulp_of(double x) {
    float f = fabsf((float)x);
    return f < 0x1p-126f ? 0x1p-149 : (double)nextafterf(f, INFINITY) - f;
}

static void unary_errors(void **state) {
    (void)state;
    const size_t n = test_quick ? 10000 : 200000;
    float *x = guarded_floats(n), *y = guarded_floats(n);
    for (size_t u = 0; u < sizeof unary / sizeof *unary; u++) {
        if (!test_can_run(unary[u].row.bits))
            continue;
        const struct bound *b = NULL;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
            if (strcmp(bounds[i].family, unary[u].family) == 0)
                b = &bounds[i];
        assert_non_null(b);
        for (size_t i = 0; i < n; i++) {
            double t = (double)i / (double)(n - 1);
            x[i] = (float)(b->from + t * (b->to - b->from));
            if (i % 4 == 1) /* small ones, of all sizes */
                x[i] = ldexpf(test_float(), -(int)test_below(40));
        }
        unary[u].row.fn(n, x, y);
        double worst = 0, worst_absolute = 0;
        for (size_t i = 0; i < n; i++) {
            double want = b->exact(x[i]), error = fabs(y[i] - want), ulps = error / ulp_of(want);
            if (error > b->absolute && ulps > worst)
                worst = ulps;
            if (error > worst_absolute)
                worst_absolute = error;
            if (!(error <= b->absolute || ulps <= b->ulp))
                fail_msg("%s(%.9g) is %.9g, not %.9g: %.2f ulp", unary[u].row.name, x[i], y[i], want, ulps);
        }
        print_message("%-34s %.2f ulp where over %.0e; absolute %.1e\n", unary[u].row.name, worst, b->absolute,
                      worst_absolute);
    }
    guarded_free(x, n);
    guarded_free(y, n);
}

/* Any length, in place or not, gives each element the same bits; nothing behind the end is written. */
static void unary_lengths(void **state) {
    (void)state;
    for (size_t u = 0; u < sizeof unary / sizeof *unary; u++) {
        if (!test_can_run(unary[u].row.bits))
            continue;
        for (size_t n = 0; n <= 70; n++) {
            float *x = guarded_floats(n), *y = guarded_floats(n);
            unary[u].row.fn(n, x, y);
            for (size_t i = 0; i < n; i++) {
                float one;
                unary[u].row.fn(1, x + i, &one);
                assert_memory_equal(&one, y + i, sizeof one);
            }
            unary[u].row.fn(n, x, x);
            if (n)
                assert_memory_equal(x, y, n * sizeof *x);
            guarded_free(x, n);
            guarded_free(y, n);
        }
        float special[3] = {NAN, INFINITY, -INFINITY}, out[3];
        unary[u].row.fn(3, special, out);
        assert_true(isnan(out[0]));
        if (strncmp(unary[u].family, "gelu", 4) == 0 || strncmp(unary[u].family, "silu", 4) == 0)
            assert_true(out[1] == INFINITY);
        if (strcmp(unary[u].family, "exp_f32") == 0)
            assert_true(out[1] == INFINITY && out[2] == 0.0f);
        if (strcmp(unary[u].family, "tanh_f32") == 0 || strcmp(unary[u].family, "erf_f32") == 0)
            assert_true(out[1] == 1.0f && out[2] == -1.0f);
    }
}

static void layer_norm(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 768, 1000, 2049};
    EACH_LEVEL(kernels) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s], rows = 3;
            float *a = guarded_floats(rows * n), *r = guarded_floats(rows * n), *g = guarded_floats(n),
                  *b = guarded_floats(n);
            float *y = guarded_floats(rows * n), *sum = guarded_floats(rows * n), *z = guarded_floats(n);
            float offset = (float)test_below(20);
            for (size_t i = 0; i < rows * n; i++)
                a[i] += offset;
            for (unsigned form = 0; form < 8; form++) {
                if (test_left_out(3))
                    continue;
                const float *residual = form & 1 ? r : NULL, *gamma = form & 2 ? g : NULL, *beta = form & 2 ? b : NULL;
                kernels.layer_norm_f32(rows, n, a, residual, gamma, beta, 1e-12f, y, form & 4 ? sum : NULL);
                for (size_t i = 0; i < rows; i++) {
                    double mean = 0, var = 0;
                    for (size_t j = 0; j < n; j++)
                        mean += (double)a[i * n + j] + (residual ? r[i * n + j] : 0);
                    mean /= (double)n;
                    for (size_t j = 0; j < n; j++) {
                        double d = (double)a[i * n + j] + (residual ? r[i * n + j] : 0) - mean;
                        var += d * d;
                    }
                    var /= (double)n;
                    for (size_t j = 0; j < n; j++) {
                        float x = a[i * n + j] + (residual ? r[i * n + j] : 0);
                        double want = (x - mean) / sqrt(var + 1e-12) * (gamma ? g[j] : 1) + (beta ? b[j] : 0);
                        if (n > 2 && !(fabs(y[i * n + j] - want) <= 3e-5))
                            fail_msg("level %zu n %zu form %u: %.9g, not %.9g", level_, n, form, y[i * n + j], want);
                        if (form & 4)
                            assert_true(sum[i * n + j] == x);
                    }
                    /* alone and in place: the same bits */
                    float *alone = z;
                    memcpy(alone, a + i * n, n * sizeof *alone);
                    kernels.layer_norm_f32(1, n, alone, residual ? r + i * n : NULL, gamma, beta, 1e-12f, alone, NULL);
                    assert_memory_equal(alone, y + i * n, n * sizeof *alone);
                }
            }
            kernels.rms_norm_f32(rows, n, a, g, 1e-6f, y);
            for (size_t i = 0; i < rows; i++) {
                double square = 0;
                for (size_t j = 0; j < n; j++)
                    square += (double)a[i * n + j] * a[i * n + j];
                for (size_t j = 0; j < n; j++)
                    assert_true(fabs(y[i * n + j] - a[i * n + j] / sqrt(square / (double)n + 1e-6) * g[j]) <= 1e-5);
            }
            /* a constant row gives beta exactly */
            for (size_t i = 0; i < n; i++)
                a[i] = 0.1f + offset / 3;
            kernels.layer_norm_f32(1, n, a, NULL, g, b, 1e-12f, y, NULL);
            for (size_t i = 0; i < n; i++)
                assert_true(y[i] == b[i]);
            guarded_free(a, rows * n);
            guarded_free(r, rows * n);
            guarded_free(g, n);
            guarded_free(b, n);
            guarded_free(y, rows * n);
            guarded_free(sum, rows * n);
            guarded_free(z, n);
        }
    }
}

static void softmax(void **state) {
    (void)state;
    EACH_LEVEL(kernels) {
        for (size_t n = 1; n < 80; n += 1 + test_below(2)) {
            float *x = guarded_floats(2 * n), *y = guarded_floats(2 * n);
            for (size_t i = 0; i < 2 * n; i++)
                x[i] *= 30;
            if (n > 1)
                x[test_below(n)] = -INFINITY;
            kernels.softmax_f32(2, n, x, y);
            for (size_t i = 0; i < 2; i++) {
                double max = -INFINITY, sum = 0;
                for (size_t j = 0; j < n; j++)
                    max = x[i * n + j] > max ? x[i * n + j] : max;
                for (size_t j = 0; j < n; j++)
                    sum += exp(x[i * n + j] - max);
                for (size_t j = 0; j < n; j++)
                    assert_true(fabs(y[i * n + j] - exp(x[i * n + j] - max) / sum) <= 5e-7);
            }
            kernels.softmax_f32(2, n, x, x);
            assert_memory_equal(x, y, 2 * n * sizeof *x);
            for (size_t i = 0; i < n; i++)
                x[i] = -INFINITY;
            kernels.softmax_f32(1, n, x, y);
            assert_true(isnan(y[0]));
            guarded_free(x, 2 * n);
            guarded_free(y, 2 * n);
        }
    }
}

static void binary(void **state) {
    (void)state;
    EACH_LEVEL(kernels) {
        for (size_t n = 0; n < 70; n++)
            for (unsigned op = 0; op < 4; op++)
                for (size_t stride = 0; stride < 2; stride++) {
                    float *a = guarded_floats(n), *b = guarded_floats(n + 1), *y = guarded_floats(n);
                    kernels.binary_f32(n, op, a, b, stride, y);
                    for (size_t i = 0; i < n; i++) {
                        float p = a[i], q = b[stride ? i : 0];
                        float want = op == 0 ? p + q : op == 1 ? p - q : op == 2 ? p * q : p / q;
                        assert_memory_equal(&y[i], &want, sizeof want);
                    }
                    guarded_free(a, n);
                    guarded_free(b, n + 1);
                    guarded_free(y, n);
                }
    }
}

/* Against sums in double, and each element alone has the bits that it has in its run. */
static void taps(void **state) {
    (void)state;
    EACH_LEVEL(kernels) {
        for (size_t n = 0; n < 300; n += n < 70 ? 1 : 23) {
            const size_t lines = test_below(4), taps = test_below(6), step = test_below(5), gap = test_below(3);
            const size_t line = n + taps * step, nx = lines * (line + gap), nw = lines * (taps + gap);
            float *x = guarded_floats(nx), *w = guarded_floats(nw), *y = guarded_floats(n);
            int64_t x_at[4], w_at[4];
            for (size_t l = 0; l < lines; l++) { /* the lines of x backwards: any order is allowed */
                x_at[l] = (int64_t)((lines - 1 - l) * (line + gap));
                w_at[l] = (int64_t)(l * (taps + gap));
            }
            struct lathe_taps_f32 run = {.n = n, .lines = lines, .taps = taps, .x = x, .w = w, .x_at = x_at};
            run.w_at = w_at;
            run.step = (int64_t)step;
            run.bias = test_float();
            run.y = y;
            kernels.taps_f32(&run);
            for (size_t j = 0; j < n; j++) {
                double sum = run.bias, size = fabs(sum);
                for (size_t l = 0; l < lines; l++)
                    for (size_t t = 0; t < taps; t++) {
                        double product = (double)w[w_at[l] + (int64_t)t] * x[x_at[l] + (int64_t)(t * step + j)];
                        sum += product;
                        size += fabs(product);
                    }
                assert_true(fabs(y[j] - sum) <= 0x1p-23 * size * (double)(lines * taps + 1));
                float alone;
                struct lathe_taps_f32 one = run;
                one.n = 1;
                one.x = x + j;
                one.y = &alone;
                kernels.taps_f32(&one);
                assert_memory_equal(&alone, &y[j], sizeof alone);
            }
            guarded_free(x, nx);
            guarded_free(w, nw);
            guarded_free(y, n);
        }
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_errors), cmocka_unit_test(unary_lengths), cmocka_unit_test(layer_norm),
        cmocka_unit_test(softmax),      cmocka_unit_test(binary),        cmocka_unit_test(taps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
