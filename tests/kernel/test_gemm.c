/* Every gemm_f32 row against sums in double, for all tile sizes, strides and epilogues; and the blocked product: a row
 * has the same bits alone, in any batch, and with any number of threads. */
#include "kernel_test.h"

#include "gemm_drive.h"

#include <math.h>

struct gemm_row {
    const char *name;
    lathe_gemm_f32_fn fn;
    lathe_gemm_f32_pack_a_fn pack_a;
    uint64_t bits;
    unsigned mr, nr;
};

static const struct gemm_row rows[] = {
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr) {#function, function, pack, bits, mr, nr},
#define KERNEL(family, type, function, bits, bound)
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
};
#define ROWS (sizeof rows / sizeof *rows)

static void one_tile(const struct gemm_row *row, size_t m, size_t n, size_t k) {
    size_t lda = k + test_below(5), panels = (n + 15) / 16, ldc = n + test_below(7), ldr = n + test_below(3);
    float *a = guarded_floats(m * lda + 1), *packed = guarded_floats(m * k + 16), *w = guarded_floats(k * n + 1);
    float *b = guarded_floats(panels * 16 * k + 1), *c = guarded_floats(m * ldc + 1),
          *before = guarded_floats(m * ldc + 1);
    float *bias = guarded_floats(n), *residual = guarded_floats(m * ldr + 1);
    memcpy(before, c, (m * ldc + 1) * sizeof *c);
    row->pack_a(m, k, a, lda, packed);
    lathe_pack_f32_n16(w, k, n, n, false, 0, panels, b);
    struct lathe_gemm_epilogue e = {.activation = (enum lathe_activation)test_below(7), .alpha = 1.702f, .scale = 1};
    bool with_epilogue = test_below(4) != 0, accumulate = test_below(2) != 0;
    if (test_below(2))
        e.bias = bias;
    if (test_below(2)) {
        e.residual = residual;
        e.ldr = ldr;
        e.gate = test_below(2);
    }
    if (test_below(2))
        e.scale = 0.125f;
    struct lathe_gemm_f32_tile tile = {m,      n, k,   packed, m, b,          16,
                                       16 * k, c, ldc, NULL,   0, accumulate, with_epilogue ? &e : NULL};
    row->fn(&tile);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            float got = c[i * ldc + j];
            if (j >= n) {
                assert_memory_equal(&got, &before[i * ldc + j], sizeof got);
                continue;
            }
            double sum = accumulate ? before[i * ldc + j] : 0, size = fabs(sum) + 1;
            for (size_t t = 0; t < k; t++) {
                double x = (double)a[i * lda + t] * w[t * n + j];
                sum += x;
                size += fabs(x);
            }
            if (with_epilogue) {
                sum = sum * e.scale + (e.bias ? bias[j] : 0);
                sum = test_join(e.gate, test_activate(e.activation, e.alpha, sum),
                                e.residual ? &residual[i * ldr + j] : NULL);
                size *= fmax(1, fabs(residual[i * ldr + j]));
            }
            if (!(fabs(got - sum) <= 1e-6 * size + 1e-6))
                fail_msg("%s m %zu n %zu k %zu: [%zu][%zu] is %.9g, not %.9g", row->name, m, n, k, i, j, got, sum);
        }
    guarded_free(a, m * lda + 1);
    guarded_free(packed, m * k + 16);
    guarded_free(w, k * n + 1);
    guarded_free(b, panels * 16 * k + 1);
    guarded_free(c, m * ldc + 1);
    free((char *)before - TEST_GUARD);
    guarded_free(bias, n);
    guarded_free(residual, m * ldr + 1);
}

static void tiles(void **state) {
    (void)state;
    static const size_t ks[] = {0, 1, 2, 7, 8, 15, 16, 17, 33, 64};
    static const size_t ns[] = {1, 2, 8, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 100};
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_can_run(rows[r].bits)) {
            print_message("skipped here: %s\n", rows[r].name);
            continue;
        }
        for (size_t m = 1; m <= rows[r].mr; m++)
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                    if (!test_left_out(8))
                        one_tile(&rows[r], m, ns[i], ks[j]);
    }
}

/* Small whole numbers: every row must give the exact product. */
static void exact(void **state) {
    (void)state;
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_can_run(rows[r].bits))
            continue;
        size_t m = rows[r].mr, n = 48, k = 50;
        float *a = guarded_floats(m * k), *packed = guarded_floats(m * k + 16), *w = guarded_floats(k * n);
        float *b = guarded_floats(k * n), *c = guarded_floats(m * n);
        for (size_t i = 0; i < m * k; i++)
            a[i] = (float)((int)test_below(17) - 8);
        for (size_t i = 0; i < k * n; i++)
            w[i] = (float)((int)test_below(17) - 8);
        rows[r].pack_a(m, k, a, k, packed);
        lathe_pack_f32_n16(w, k, n, n, false, 0, 3, b);
        struct lathe_gemm_f32_tile tile = {m, n, k, packed, m, b, 16, 16 * k, c, n, NULL, 0, false, NULL};
        rows[r].fn(&tile);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                float sum = 0;
                for (size_t t = 0; t < k; t++)
                    sum += a[i * k + t] * w[t * n + j];
                assert_true(c[i * n + j] == sum);
            }
        guarded_free(a, m * k);
        guarded_free(packed, m * k + 16);
        guarded_free(w, k * n);
        guarded_free(b, k * n);
        guarded_free(c, m * n);
    }
}

static void packing(void **state) {
    (void)state;
    assert_int_equal(lathe_packed_bytes(1, 3, 17), 2 * 16 * 3 * 4);
    assert_int_equal(lathe_packed_bytes(2, 3, 17), 32 * 4 * 2);
    assert_int_equal(lathe_packed_bytes(3, 5, 1), 16 * 8);
    assert_int_equal(lathe_packed_bytes(1, SIZE_MAX / 8, 17), 0);
    assert_int_equal(lathe_packed_bytes(99, 1, 1), 0);
    for (int round = 0; round < 20; round++) {
        size_t k = 1 + test_below(40), n = 1 + test_below(40), panels = (n + 15) / 16;
        float *w = guarded_floats(k * n), *t = guarded_floats(k * n), *p = guarded_floats(panels * 16 * k);
        float *q = guarded_floats(panels * 16 * k);
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < n; j++)
                t[j * k + i] = w[i * n + j];
        lathe_pack_f32_n16(w, k, n, n, false, 0, panels, p);
        lathe_pack_f32_n16(t, k, n, k, true, 0, panels, q);
        assert_memory_equal(p, q, panels * 16 * k * sizeof *p);
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < panels * 16; j++)
                assert_true(p[j / 16 * 16 * k + i * 16 + j % 16] == (j < n ? w[i * n + j] : 0.0f));
        guarded_free(w, k * n);
        guarded_free(t, k * n);
        guarded_free(p, panels * 16 * k);
        guarded_free(q, panels * 16 * k);
    }
}

static void run_team(const struct lathe_kernels *kernels, const struct lathe_gemm_f32 *p, unsigned threads) {
    size_t bytes = lathe_gemm_f32_scratch(p->m, p->n, p->k, p->panels != NULL), n = bytes / sizeof(float);
    for (unsigned i = 0; i < threads; i++) {
        float *scratch = guarded_floats(n);
        struct lathe_team team = {.index = i, .count = threads};
        lathe_gemm_f32_team(kernels, p, &team, scratch);
        guarded_free(scratch, n);
    }
}

static void products(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},    {1, 70, 1000},  {3, 33, 385},   {14, 48, 6000}, {15, 48, 6000},
                                       {29, 65, 40}, {200, 32, 400}, {97, 300, 769}, {5, 40, 0},     {400, 17, 390}};
    uint64_t levels[ROWS];
    for (size_t r = 0; r < ROWS; r++)
        levels[r] = rows[r].bits;
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_can_run(levels[r]))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(levels[r], &kernels);
        assert_ptr_equal(kernels.gemm_f32.fn, rows[r].fn);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (test_left_out(3))
                continue;
            size_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], panels = (n + 15) / 16;
            float *a = guarded_floats(m * k + 1), *w = guarded_floats(k * n + 1),
                  *b = guarded_floats(panels * 16 * k + 1);
            float *bias = guarded_floats(n), *c = guarded_floats(m * n), *d = guarded_floats(m * n);
            lathe_pack_f32_n16(w, k, n, n, false, 0, panels, b);
            struct lathe_gemm_f32 p = {.m = m,
                                       .n = n,
                                       .k = k,
                                       .a = a,
                                       .a_row = k,
                                       .a_column = 1,
                                       .panels = b,
                                       .c = c,
                                       .ldc = n,
                                       .epilogue = {.bias = bias, .activation = LATHE_ACT_GELU, .scale = 1}};
            run_team(&kernels, &p, 1);
            for (size_t i = 0; i < m; i += 1 + m / 7)
                for (size_t j = 0; j < n; j += 1 + n / 9) {
                    double sum = 0, size = 0; /* rounding grows with the size of the summands */
                    for (size_t t = 0; t < k; t++) {
                        sum += (double)a[i * k + t] * w[t * n + j];
                        size += fabs((double)a[i * k + t] * w[t * n + j]);
                    }
                    sum = test_activate(LATHE_ACT_GELU, 0, sum + bias[j]);
                    assert_true(fabs(c[i * n + j] - sum) <= 2e-6 * (1 + fabs(sum)) + 2e-7 * size);
                }
            /* more threads, B packed on the way, B transposed: the same bits */
            p.c = d;
            for (unsigned threads = 2; threads <= 6; threads++) {
                memset(d, 0x7f, m * n * sizeof *d);
                run_team(&kernels, &p, threads);
                assert_memory_equal(c, d, m * n * sizeof *c);
            }
            p.panels = NULL;
            p.b = w;
            p.b_row = n;
            p.b_column = 1;
            memset(d, 0x7f, m * n * sizeof *d);
            run_team(&kernels, &p, 2);
            assert_memory_equal(c, d, m * n * sizeof *c);
            float *t = guarded_floats(k * n + 1);
            for (size_t i = 0; i < k; i++)
                for (size_t j = 0; j < n; j++)
                    t[j * k + i] = w[i * n + j];
            p.b = t;
            p.b_row = 1;
            p.b_column = k;
            memset(d, 0x7f, m * n * sizeof *d);
            run_team(&kernels, &p, 1);
            assert_memory_equal(c, d, m * n * sizeof *c);
            /* each row alone */
            p.panels = b;
            for (size_t i = 0; i < m; i += 1 + test_below(3)) {
                p.m = 1;
                p.a = a + i * k;
                p.c = d + i * n;
                memset(p.c, 0x7f, n * sizeof *d);
                run_team(&kernels, &p, 1 + (unsigned)test_below(2));
                assert_memory_equal(p.c, c + i * n, n * sizeof *c);
            }
            guarded_free(a, m * k + 1);
            guarded_free(w, k * n + 1);
            guarded_free(t, k * n + 1);
            guarded_free(b, panels * 16 * k + 1);
            guarded_free(bias, n);
            guarded_free(c, m * n);
            guarded_free(d, m * n);
        }
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles),
        cmocka_unit_test(exact),
        cmocka_unit_test(packing),
        cmocka_unit_test(products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
