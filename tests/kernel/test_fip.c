/* What gemm_fip multiplies: rows in the order of the steps, against their meaning; every row of the table equal to
 * plain C; the sums of the kernel; linear_q8 with an order: the same bits at each level, alone, in any batch, with any
 * number of threads, and near the product in real numbers. */
#include "q8_layer.h"

#include "kernel_rows.h"
#include "trap_instructions.h"

#include <math.h>

#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound) {#family, (void (*)(void))function, #function, bits},
static const struct row {
    const char *family;
    void (*fn)(void);
    const char *name;
    uint64_t bits;
} rows[] = {
#include "kernels.def"
};
#undef KERNEL_GEMM_F32
#undef KERNEL
static const struct gemm_row {
    const char *family, *name;
    lathe_gemm_q8_fn fn;
    uint64_t bits;
    unsigned mr;
} gemm_rows[] = {
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound)
#define KERNEL_GEMM_Q8(family, function, bits, mr, nr) {#family, #function, function, bits, mr},
#include "kernels.def"
};
#undef KERNEL_GEMM_F32
#undef KERNEL

/* An order of each 64 steps. */
static void fill_order(uint8_t *order, size_t k) {
    for (size_t first = 0; first < k; first += 64) {
        size_t count = k - first < 64 ? k - first : 64;
        for (size_t i = 0; i < count; i++)
            order[first + i] = (uint8_t)i;
        for (size_t i = count; i > 1; i--) {
            size_t other = test_below(i);
            uint8_t one = order[first + i - 1];
            order[first + i - 1] = order[first + other];
            order[first + other] = one;
        }
    }
}

static void fill_weights(int8_t *w, size_t k, size_t n) {
    for (size_t t = 0; t < k; t++)
        for (size_t j = 0; j < n; j++) {
            unsigned most = lathe_fip_is_pair(t, k) ? LATHE_FIP_MOST_WEIGHT : 127;
            w[t * n + j] = (int8_t)(test_below(4) ? (int)test_below(2 * most + 1) - (int)most
                                                  : (test_below(2) ? (int)most : -(int)most));
        }
}

static void fill_pairs(const int8_t *w, size_t k, size_t n, int32_t *w_pairs) {
    int8_t *column = calloc(k + 1, 1);
    for (size_t j = 0; j < n; j++) {
        for (size_t t = 0; t < k; t++)
            column[t] = w[t * n + j];
        w_pairs[j] = lathe_fip_column(column, k);
    }
    free(column);
}

/* ---- rows */

static void rows_in_order(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (strcmp(rows[r].family, "fip_rows") != 0 || !test_runs(rows[r].name, rows[r].bits))
            continue;
        lathe_fip_rows_fn fn = (lathe_fip_rows_fn)rows[r].fn;
        for (size_t k = 0; k < 700; k += k < 250 ? 4 : 52) {
            size_t count = 1 + test_below(3), ldq = k + test_below(70);
            uint8_t *q = guarded(count * ldq + 1), *order = guarded(k), *before = guarded(count * ldq + 1);
            float *scale = guarded_floats(count), *old_scale = guarded_floats(count);
            int32_t *zero = guarded(count * 4), *old_zero = guarded(count * 4), *x_pairs = guarded(count * 4);
            for (size_t i = 0; i < count * ldq; i++)
                q[i] = (uint8_t)(test_below(5) ? test_below(256) : 255 * test_below(2));
            fill_order(order, k);
            for (size_t i = 0; i < count; i++)
                zero[i] = (int32_t)test_below(128) * 2;
            memcpy(before, q, count * ldq + 1);
            memcpy(old_zero, zero, count * 4);
            memcpy(scale, old_scale, count * 4);
            bool shifted = test_below(2);
            fn(&(struct lathe_fip_rows){count, k, order, q, ldq, scale, zero, shifted ? x_pairs : NULL});
            for (size_t i = 0; i < count; i++) {
                int64_t sum = 0;
                const uint8_t *now = q + i * ldq, *old = before + i * ldq;
                assert_true(scale[i] == 2 * old_scale[i] && zero[i] == old_zero[i] / 2);
                for (size_t t = 0; t < k; t++) {
                    int want = old[t / 64 * 64 + order[t]];
                    bool pair = lathe_fip_is_pair(t, k), second = t % 12 >= 8;
                    if (pair)
                        want = (int)nearbyint(want * 0.5) + (!shifted ? 0 : second ? -64 : 64);
                    if (now[t] != (uint8_t)want)
                        fail_msg("%s k %zu: [%zu] is %d, not %d", rows[r].name, k, t, now[t], want);
                    if (pair && !second)
                        sum += now[t] * (int8_t)now[t + 4];
                }
                if (shifted)
                    assert_int_equal(x_pairs[i], -sum);
                assert_memory_equal(now + k, old + k, ldq - k);
            }
            unguard(q, count * ldq + 1);
            unguard(order, k);
            unguard(before, count * ldq + 1);
            guarded_free(scale, count);
            guarded_free(old_scale, count);
            unguard(zero, count * 4);
            unguard(old_zero, count * 4);
            unguard(x_pairs, count * 4);
        }
    }
}

/* ---- sums */

static void one_tile(const struct gemm_row *row, size_t m, size_t n, size_t k) {
    size_t panels = (n + 15) / 16, lda = k + test_below(9), ldc = n + test_below(5);
    uint8_t *a = guarded(m * lda + 1), *shifted = guarded(m * lda + 1), *order = guarded(k);
    int8_t *w = guarded(k * n + 1), *b = guarded(panels * 16 * k + 1);
    int32_t *sums = guarded(m * ldc * 4), *x_pairs = guarded(m * 4), *w_pairs = guarded(panels * 64),
            *zero = guarded(m * 4);
    float *scale = guarded_floats(m);
    for (size_t i = 0; i < m * lda; i++)
        a[i] = (uint8_t)(test_below(5) ? test_below(256) : 255 * test_below(2));
    memcpy(shifted, a, m * lda);
    fill_order(order, k);
    fill_weights(w, k, n);
    memset(w_pairs, 0, panels * 64);
    fill_pairs(w, k, n, w_pairs);
    memset(zero, 0, m * 4);
    lathe_fip_rows__c(&(struct lathe_fip_rows){m, k, order, a, lda, scale, zero, NULL});
    lathe_fip_rows__c(&(struct lathe_fip_rows){m, k, order, shifted, lda, scale, zero, x_pairs});
    lathe_pack_s8_n16k4(w, k, n, n, false, 0, panels, b);
    struct lathe_gemm_q8_tile tile = {.rows = m,
                                      .cols = n,
                                      .k = k,
                                      .a = shifted,
                                      .lda = lda,
                                      .b = b,
                                      .panel_stride = 16 * k,
                                      .sums = sums,
                                      .ldc = ldc,
                                      .x_pairs = x_pairs,
                                      .w_pairs = w_pairs};
    if (test_below(2)) {
        tile.fetch = b;
        tile.fetch_step = test_below(65);
    }
    row->fn(&tile);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            int64_t want = 0;
            for (size_t t = 0; t < k; t++)
                want += a[i * lda + t] * w[t * n + j];
            if (sums[i * ldc + j] != want)
                fail_msg("%s m %zu n %zu k %zu: [%zu][%zu] is %d, not %lld", row->name, m, n, k, i, j,
                         sums[i * ldc + j], (long long)want);
        }
    unguard(a, m * lda + 1);
    unguard(shifted, m * lda + 1);
    unguard(order, k);
    unguard(w, k * n + 1);
    unguard(b, panels * 16 * k + 1);
    unguard(sums, m * ldc * 4);
    unguard(x_pairs, m * 4);
    unguard(w_pairs, panels * 64);
    unguard(zero, m * 4);
    guarded_free(scale, m);
}

static void sums(void **state) {
    (void)state;
    static const size_t ks[] = {0, 4, 8, 12, 16, 60, 64, 132, 192, 260}, ns[] = {1, 16, 17, 31, 32, 33, 48, 64, 70};
    for (size_t r = 0; r < sizeof gemm_rows / sizeof *gemm_rows; r++) {
        if (strcmp(gemm_rows[r].family, "gemm_fip") != 0 || !test_runs(gemm_rows[r].name, gemm_rows[r].bits))
            continue;
        for (size_t m = 1; m <= gemm_rows[r].mr; m++)
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                    one_tile(&gemm_rows[r], m, ns[i], ks[j]);
    }
}

/* ---- linear_q8 */

static struct layer layer_new(size_t m, size_t n, size_t k) {
    struct layer l = layer_alloc(m, n, k);
    l.order = guarded(k);
    l.w_pairs = guarded(n * 4);
    fill_order(l.order, k);
    fill_weights(l.w, k, n);
    layer_finish(&l);
    return l;
}

/* Within what the roundings of inputs allow: half a step of 8 bits, of which columns of x that have 7 add as much. */
static void near_the_product(const struct layer *l, const float *y) {
    for (size_t i = 0; i < l->m; i++)
        for (size_t j = 0; j < l->n; j++) {
            double want = 0, slack = 0, low = 0, high = 0;
            for (size_t t = 0; t < l->k; t++) {
                size_t from = t / 64 * 64 + l->order[t];
                double v = (double)l->x[i * l->k + from] * l->x_scale[from];
                low = v < low ? v : low;
                high = v > high ? v : high;
                double w = l->w[t * l->n + j] * (double)l->w_scale[j];
                want += (lathe_fip_is_pair(t, l->k) ? 1 : 2) * v * w;
                slack += fabs(w);
            }
            want += l->bias[j] + l->residual[i * l->n + j];
            slack *= 2.02 * 1.5 * (high - low) / 255;
            if (!(fabs(y[i * l->n + j] - want) <= slack + 1e-3))
                fail_msg("m %zu n %zu k %zu: [%zu][%zu] is %g, not %g within %g", l->m, l->n, l->k, i, j,
                         y[i * l->n + j], want, slack);
        }
}

static void layers(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 16, 12},   {7, 32, 64},    {8, 48, 60},    {12, 64, 768}, {13, 32, 200},
                                       {30, 96, 384}, {90, 80, 3076}, {33, 272, 132}, {0, 16, 16},   {3, 32, 0}};
    static const uint64_t vbmi = LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA) |
                                 LATHE_CPU_MASK(LATHE_CPU_AVX512) | LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI) |
                                 LATHE_CPU_MASK(LATHE_CPU_AVX512_VBMI);
    const uint64_t levels[] = {0, LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA), vbmi,
                               vbmi | LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS)};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct layer l = layer_new(shapes[s][0], shapes[s][1], shapes[s][2]);
        size_t size = l.m * l.n;
        float *first = guarded_floats(size), *gelu = guarded_floats(size), *y = guarded_floats(size);
        for (size_t level = 0; level < sizeof levels / sizeof *levels; level++) {
            struct lathe_kernels kernels;
            if (!test_can_run(levels[level]))
                continue;
            lathe_kernels_select(levels[level], &kernels);
            assert_true((kernels.gemm_fip.fn != NULL) == (level == 3));
            layer_run(&kernels, &l, ROWS, 8, LATHE_ACT_NONE, true, 0, l.m, 1, y);
            if (level == 0) {
                near_the_product(&l, y);
                memcpy(first, y, size * sizeof *y);
            }
            assert_memory_equal(first, y, size * sizeof *y);
            for (unsigned threads = 1; threads <= 5; threads++) {
                layer_run(&kernels, &l, PACKED, 8, LATHE_ACT_NONE, true, 0, l.m, threads, y);
                assert_memory_equal(first, y, size * sizeof *y);
            }
            layer_run(&kernels, &l, PACKED, 8, LATHE_ACT_GELU, true, 0, l.m, 1, gelu);
            for (size_t i = 0; i < l.m; i += 1 + test_below(5)) {
                size_t some = 1 + test_below(l.m - i < 40 ? l.m - i : 40);
                layer_run(&kernels, &l, PACKED, 8, LATHE_ACT_GELU, true, i, some, 1 + (unsigned)test_below(3), y);
                assert_memory_equal(y, gelu + i * l.n, some * l.n * sizeof *y);
            }
        }
        guarded_free(first, size);
        guarded_free(gelu, size);
        guarded_free(y, size);
        layer_free(&l);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_in_order), cmocka_unit_test(sums),
                                       cmocka_unit_test(layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
