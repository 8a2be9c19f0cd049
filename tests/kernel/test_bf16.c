/* The bf16 family: every row against its meaning; the blocked product and linear_bf16: a row has the same bits alone,
 * in any batch, and with any number of threads. */
#include "kernel_test.h"

#include "gemm_bf16_drive.h"
#include "ops.h"
#include "trap_instructions.h"

#include <math.h>

struct gemm_row {
    const char *name;
    lathe_gemm_bf16_fn fn;
    lathe_convert_bf16_fn convert;
    uint64_t bits;
    unsigned mr, nr, a_bytes;
};

#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound)
static const struct gemm_row rows[] = {
#define KERNEL_GEMM_BF16(function, convert, bits, mr, nr, a_bytes)                                                     \
    {#function, function, convert, bits, mr, nr, a_bytes},
#include "kernels.def"
};
#undef KERNEL_GEMM_F32
#undef KERNEL
#define ROWS (sizeof rows / sizeof *rows)

static bool on_tiles(const struct gemm_row *row) {
    return strstr(row->name, "__amx") != NULL;
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Rounding to bf16 by arithmetic: to a multiple of the last place, half to even. */
static float rounded(float x) {
    if (!isfinite(x) || x == 0)
        return x;
    int e;
    frexp((double)x, &e);
    double place = ldexp(1, (e < -125 ? -125 : e) - 8), r = nearbyint((double)x / place) * place;
    return fabs(r) >= 0x1p128 ? (float)copysign(INFINITY, r) : (float)r;
}

/* The sum of the header's comment, in its order; `tiles`: that of the row on tiles. */
static float sum_of(const float *x, const float *w, size_t ldw, size_t k, bool tiles) {
    volatile float s = 0;
    for (size_t from = 0; tiles && from < k; from += 32) {
        volatile float part[2] = {0, 0};
        for (size_t t = from; t < from + 32 && t < k; t++)
            part[t % 2] = fmaf(rounded(x[t]), rounded(w[t * ldw]), part[t % 2]);
        part[0] = part[0] + part[1];
        s = s + part[0];
    }
    if (tiles)
        return s;
    for (size_t t = 0; t < k; t += 2) {
        if (t + 1 < k)
            s = fmaf(rounded(x[t + 1]), rounded(w[(t + 1) * ldw]), s);
        s = fmaf(rounded(x[t]), rounded(w[t * ldw]), s);
    }
    return s;
}

static void convert(void **state) {
    (void)state;
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_runs(rows[r].name, rows[r].bits))
            continue;
        for (size_t k = 0; k < 100; k++)
            for (int kind = 0; kind < 5; kind++) {
                if (test_left_out(4))
                    continue;
                size_t count = 1 + test_below(3), ldx = k + test_below(5), even = k + k % 2;
                size_t used = even * rows[r].a_bytes, lda = used + 2 * test_below(9), bytes = (count * lda + 7) / 4 * 4;
                float *x = guarded_floats(count * ldx + 1), *a = guarded_floats(bytes / 4);
                char before[4096];
                memcpy(before, a, bytes);
                for (size_t i = 0; i < count * ldx; i++) {
                    if (kind == 1) /* ties */
                        x[i] = from_bits((test_random() & 0xbfff0000u) | 0x8000u);
                    else if (kind == 2)
                        x[i] = ldexpf(x[i], (int)test_below(250) - 120);
                    else if (kind == 3 && test_below(3) == 0) /* near and beyond the largest */
                        x[i] = test_below(2) ? from_bits(0x7f7f0000u + test_random() % 0x10000u) : -INFINITY;
                    else if (kind == 4 && test_below(5) == 0) /* a NaN whose upper half alone is an infinity */
                        x[i] = from_bits(0x7f800001u + test_random() % 0x7fffu);
                    if (fabsf(x[i]) < 0x1p-126f) /* denormal: the instruction takes it as zero */
                        x[i] = 0;
                }
                rows[r].convert(count, k, x, ldx, (char *)a, lda);
                for (size_t i = 0; i < count; i++) {
                    for (size_t t = 0; t < even; t++) {
                        const char *at = (const char *)a + i * lda + t * rows[r].a_bytes;
                        uint32_t bits = 0;
                        memcpy((char *)&bits + 4 - rows[r].a_bytes, at, rows[r].a_bytes);
                        float got = from_bits(bits), want = t < k ? rounded(x[i * ldx + t]) : 0;
                        if (isnan(want) ? !isnan(got) : memcmp(&got, &want, 4) != 0)
                            fail_msg("%s k %zu: %.9g became %.9g, not %.9g", rows[r].name, k, x[i * ldx + t], got,
                                     want);
                    }
                    assert_memory_equal((char *)a + i * lda + used, before + i * lda + used, lda - used);
                }
                guarded_free(x, count * ldx + 1);
                guarded_free(a, bytes / 4);
            }
    }
}

/* What an activation may add to the rounding of its operand. */
#define ACTIVATION_BOUND 4e-6

static void one_tile(const struct gemm_row *row, size_t m, size_t n, size_t k) {
    size_t kp = k + k % 2, panels = (n + 15) / 16, lda = kp * row->a_bytes + 4 * test_below(9), ldc = n + test_below(5);
    size_t ldr = n + test_below(4), packed = panels * 16 * kp / 2;
    float *x = guarded_floats(m * k + 1), *w = guarded_floats(k * n + 1), *a = guarded_floats(m * lda / 4 + 1);
    float *b = guarded_floats(packed), *c = guarded_floats(m * ldc), *before = guarded_floats(m * ldc);
    float *bias = guarded_floats(n), *residual = guarded_floats(m * ldr);
    memcpy(before, c, m * ldc * sizeof *c);
    row->convert(m, k, x, k, (char *)a, lda);
    lathe_pack_bf16_n16k2(w, LATHE_F32, k, n, n, false, 0, panels, (uint16_t *)(void *)b);
    struct lathe_gemm_epilogue e = {.bias = test_below(3) ? bias : NULL,
                                    .residual = test_below(2) ? residual : NULL,
                                    .ldr = ldr,
                                    .gate = test_below(2),
                                    .activation = (enum lathe_activation)test_below(LATHE_ACT_TANH + 1),
                                    .alpha = 1.702f,
                                    .scale = test_below(4) ? 1.0f : 0.3f};
    struct lathe_gemm_bf16_tile tile = {.rows = m,
                                        .cols = n,
                                        .k = kp,
                                        .a = (char *)a,
                                        .lda = lda,
                                        .b = (uint16_t *)(void *)b,
                                        .panel_stride = 16 * kp,
                                        .c = c,
                                        .ldc = ldc,
                                        .epilogue = test_below(3) ? &e : NULL};
    if (test_below(2)) {
        tile.fetch = tile.b;
        tile.fetch_step = test_below(33);
    }
    row->fn(&tile);
    bool tiles = on_tiles(row);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            float got = c[i * ldc + j], sum = j < n ? sum_of(x + i * k, w + j, n, k, tiles) : before[i * ldc + j];
            if (j >= n || !tile.epilogue) {
                if (got != sum)
                    fail_msg("%s m %zu n %zu k %zu: [%zu][%zu] is %.9g, not %.9g", row->name, m, n, k, i, j, got, sum);
                continue;
            }
            double v = (double)sum * e.scale + (e.bias ? bias[j] : 0), size = fabs(v) > 1 ? fabs(v) : 1;
            double want =
                test_join(e.gate, test_activate(e.activation, e.alpha, v), e.residual ? &residual[i * ldr + j] : NULL);
            if (!(fabs(got - want) <= ACTIVATION_BOUND * size * fmax(1, fabs(residual[i * ldr + j]))))
                fail_msg("%s activation %d of %.9g: %.9g is not %.9g", row->name, e.activation, v, got, want);
        }
    guarded_free(x, m * k + 1);
    guarded_free(w, k * n + 1);
    guarded_free(a, m * lda / 4 + 1);
    guarded_free(b, packed);
    guarded_free(c, m * ldc);
    guarded_free(before, m * ldc);
    guarded_free(bias, n);
    guarded_free(residual, m * ldr);
}

static void tiles(void **state) {
    (void)state;
    static const size_t ks[] = {0, 1, 2, 3, 4, 31, 64, 131};
    static const size_t ns[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100};
    for (size_t r = 0; r < ROWS; r++)
        for (size_t m = 1; (test_can_run(rows[r].bits) || test_traps(rows[r].bits)) && m <= rows[r].mr;
             m = test_more_rows(m, rows[r].mr, test_traps(rows[r].bits)))
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i += test_traps(rows[r].bits) ? 4 : 1)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                    if (!test_left_out(8))
                        one_tile(&rows[r], m, ns[i], ks[j]);
}

/* Packed weights have the bits of the source's bf16, and finite ones stay finite. */
static void packing(void **state) {
    (void)state;
    for (unsigned round = 0; round < 200; round++) {
        if (test_left_out(8))
            continue;
        size_t k = 1 + test_below(40), n = 1 + test_below(40), kp = k + k % 2, size = (n + 15) / 16 * 16 * kp;
        bool transposed = test_below(2), narrow = test_below(2);
        uint16_t *bits = malloc(k * n * 2), *out = malloc(size * 2);
        float *w = malloc(k * n * 4);
        assert_true(bits && out && w);
        for (size_t i = 0; i < k * n; i++) {
            bits[i] = (uint16_t)test_random(); /* infinities and NaN too */
            w[i] = from_bits(test_random() & 0xff7fffffu);
        }
        if (!narrow)
            w[0] = from_bits(0x7f7fffffu);
        lathe_pack_bf16_n16k2(narrow ? (void *)bits : w, narrow ? LATHE_BF16 : LATHE_F32, k, n, transposed ? k : n,
                              transposed, 0, (n + 15) / 16, out);
        for (size_t t = 0; t < kp; t++)
            for (size_t j = 0; j < (n + 15) / 16 * 16; j++) {
                uint16_t got = out[j / 16 * 16 * kp + t / 2 * 32 + j % 16 * 2 + t % 2], want = 0;
                size_t at = transposed ? j * k + t : t * n + j;
                if (t < k && j < n && narrow)
                    want = bits[at];
                else if (t < k && j < n) {
                    float x = rounded(w[at]);
                    uint32_t u;
                    x = isinf(x) ? copysignf(0x1.fep127f, x) : x;
                    memcpy(&u, &x, 4);
                    want = (uint16_t)(u >> 16);
                }
                assert_int_equal(got, want);
            }
        free(bits);
        free(out);
        free(w);
    }
}

/* ---- linear_bf16 */

struct layer {
    size_t m, n, k, packed;
    float *x, *w, *t, *p, *bias, *residual; /* w in rows, transposed, packed */
};

static struct layer layer_new(size_t m, size_t n, size_t k) {
    struct layer l = {.m = m, .n = n, .k = k, .packed = lathe_packed_bytes(2, k, n) / 4};
    l.x = guarded_floats(m * k);
    l.w = guarded_floats(k * n);
    l.t = guarded_floats(k * n);
    l.p = guarded_floats(l.packed);
    l.bias = guarded_floats(n);
    l.residual = guarded_floats(m * n);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++)
            l.t[j * k + i] = l.w[i * n + j];
    lathe_pack_bf16_n16k2(l.w, LATHE_F32, k, n, n, false, 0, (n + 15) / 16, (uint16_t *)(void *)l.p);
    return l;
}

static void layer_free(struct layer *l) {
    guarded_free(l->x, l->m * l->k);
    guarded_free(l->w, l->k * l->n);
    guarded_free(l->t, l->k * l->n);
    guarded_free(l->p, l->packed);
    guarded_free(l->bias, l->n);
    guarded_free(l->residual, l->m * l->n);
}

enum weights { PACKED, PLAIN, TRANSPOSED };

/* Rows [row, row + m) of the layer, thread by thread. */
static void layer_run(const struct lathe_kernels *kernels, const struct layer *l, enum weights weights, int activation,
                      bool all, size_t row, size_t m, unsigned threads, float *y) {
    int64_t k = (int64_t)l->k, n = (int64_t)l->n, count = (int64_t)m;
    void *w = weights == PACKED ? l->p : weights == PLAIN ? l->w : l->t;
    struct lathe_tensor x = {l->x + row * l->k, LATHE_F32, 2, {count, k}}, out = {y, LATHE_F32, 2, {count, n}};
    struct lathe_tensor tw = {w, weights == PACKED ? LATHE_BF16 : LATHE_F32, 2, {k, n}};
    if (weights == TRANSPOSED)
        tw.dims[0] = n, tw.dims[1] = k;
    struct lathe_tensor bias = {l->bias, LATHE_F32, 1, {n}};
    struct lathe_tensor residual = {l->residual + row * l->n, LATHE_F32, 2, {count, n}};
    struct lathe_attr attrs[] = {{.key = LATHE_ATTR_ACTIVATION, .type = LATHE_ATTR_INT, .i = activation},
                                 {.key = LATHE_ATTR_TRANS_B, .type = LATHE_ATTR_INT, .i = weights == TRANSPOSED},
                                 {.key = LATHE_ATTR_PACKING, .type = LATHE_ATTR_INT, .i = weights == PACKED ? 2 : 0}};
    const struct lathe_tensor *in[] = {&x, &tw, &bias, &residual};
    struct lathe_tensor *outs[] = {&out};
    struct lathe_diag diag = {0};
    struct lathe_op_call call = {
        .attrs = {attrs, 3}, .in = in, .out = outs, .n_in = all ? 4 : 2, .n_out = 1, .kernels = kernels, .diag = &diag};
    size_t scratch = (lathe_scratch_linear_bf16(&call) + 3) / 4;
    memset(y, 0x7f, m * l->n * sizeof *y);
    for (unsigned i = 0; i < threads; i++) {
        call.scratch = guarded_floats(scratch);
        call.team = (struct lathe_team){.index = i, .count = threads};
        assert_int_equal(lathe_run_linear_bf16(&call), LATHE_OK);
        guarded_free(call.scratch, scratch);
    }
}

static void layers(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{0, 5, 5},     {1, 1, 1},    {1, 70, 1000}, {3, 33, 385},   {8, 260, 67},
                                       {15, 48, 600}, {29, 65, 40}, {90, 300, 20}, {33, 40, 3072}, {200, 17, 3001},
                                       {5, 40, 0},    {2, 0, 9},    {14, 530, 64}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        if (test_left_out(3))
            continue;
        struct layer l = layer_new(shapes[s][0], shapes[s][1], shapes[s][2]);
        size_t size = l.m * l.n;
        float *first = guarded_floats(size), *y = guarded_floats(size), *gelu = guarded_floats(size);
        for (size_t r = 0; r < ROWS; r++) {
            struct lathe_kernels kernels;
            if (!test_can_run(rows[r].bits) && !test_traps(rows[r].bits))
                continue;
            lathe_kernels_select(rows[r].bits, &kernels);
            assert_ptr_equal(kernels.gemm_bf16.fn, rows[r].fn);
            layer_run(&kernels, &l, PLAIN, LATHE_ACT_RELU, true, 0, l.m, 1, y);
            if (r == 0 || on_tiles(&rows[r]))
                memcpy(first, y, size * sizeof *y);
            else /* the same bits at each level; the plain one is checked against the formula by tiles() */
                assert_memory_equal(first, y, size * sizeof *y);
            layer_run(&kernels, &l, TRANSPOSED, LATHE_ACT_RELU, true, 0, l.m, 2, y);
            assert_memory_equal(first, y, size * sizeof *y);
            for (unsigned threads = 1; threads <= 6; threads++) {
                layer_run(&kernels, &l, PACKED, LATHE_ACT_RELU, true, 0, l.m, threads, y);
                assert_memory_equal(first, y, size * sizeof *y);
            }
            /* with an activation: the same for any number of threads and each row alone */
            layer_run(&kernels, &l, PACKED, LATHE_ACT_GELU, false, 0, l.m, 1, gelu);
            for (size_t i = 0; i < l.m; i += 1 + test_below(5)) {
                size_t some = 1 + test_below(l.m - i < 20 ? l.m - i : 20);
                layer_run(&kernels, &l, PACKED, LATHE_ACT_GELU, false, i, some, 1 + (unsigned)test_below(3), y);
                assert_memory_equal(y, gelu + i * l.n, some * l.n * sizeof *y);
            }
        }
        guarded_free(first, size);
        guarded_free(y, size);
        guarded_free(gelu, size);
        layer_free(&l);
    }
}

/* Numbers whose products or sums are denormal: within 2^-126 an operation of the exact ones. */
static void denormals(void **state) {
    (void)state;
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_can_run(rows[r].bits))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(rows[r].bits, &kernels);
        struct layer l = layer_new(6, 20, 40);
        float *y = guarded_floats(l.m * l.n);
        for (size_t i = 0; i < l.m * l.k; i++)
            l.x[i] = ldexpf(l.x[i], -118 - (int)test_below(16));
        layer_run(&kernels, &l, PACKED, LATHE_ACT_NONE, false, 0, l.m, 1, y);
        for (size_t i = 0; i < l.m; i++)
            for (size_t j = 0; j < l.n; j++) {
                double exact = 0, size = 0;
                for (size_t t = 0; t < l.k; t++) {
                    double v = (double)l.x[i * l.k + t] * l.w[t * l.n + j];
                    exact += v;
                    size += fabs(v);
                }
                /* both operands off by half a last place, operands and each of two operations by 2^-126 */
                assert_true(fabs(y[i * l.n + j] - exact) <= size * 0x1.1p-8 + (double)l.k * 3 * 0x1p-126);
            }
        guarded_free(y, l.m * l.n);
        layer_free(&l);
    }
}

/* A NaN or an infinity in a row reaches that row, and no other. */
static void not_finite(void **state) {
    (void)state;
    for (size_t r = 0; r < ROWS; r++) {
        if (!test_can_run(rows[r].bits))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(rows[r].bits, &kernels);
        struct layer l = layer_new(5, 20, 69);
        float *y = guarded_floats(l.m * l.n), *z = guarded_floats(l.m * l.n);
        layer_run(&kernels, &l, PACKED, LATHE_ACT_NONE, true, 0, l.m, 1, y);
        l.x[1 * l.k + 68] = NAN;
        l.x[3 * l.k + 2] = -INFINITY;
        layer_run(&kernels, &l, PACKED, LATHE_ACT_NONE, true, 0, l.m, 1, z);
        for (size_t i = 0; i < l.m; i++)
            for (size_t j = 0; j < l.n; j++)
                assert_true(i % 2 ? !isfinite(z[i * l.n + j]) : z[i * l.n + j] == y[i * l.n + j]);
        guarded_free(y, l.m * l.n);
        guarded_free(z, l.m * l.n);
        layer_free(&l);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convert), cmocka_unit_test(packing),   cmocka_unit_test(tiles),
        cmocka_unit_test(layers),  cmocka_unit_test(denormals), cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
