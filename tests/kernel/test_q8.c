/* The 8-bit families: every row against its meaning, integers and bytes bit for bit; the blocked product and linear_q8:
 * a row has the same bits alone, in any batch, and with any number of threads. */
#include "kernel_test.h"

#include "gemm_q8_drive.h"
#include "q8_layer.h"
#include "trap_instructions.h"

#include <math.h>

struct quantize_row {
    const char *name;
    lathe_quantize_rows_fn fn;
    uint64_t bits;
};
struct gemm_row {
    const char *family, *name;
    lathe_gemm_q8_fn fn;
    uint64_t bits;
    unsigned mr, nr;
};

#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound)
static const struct quantize_row quantize_rows[] = {
#define KERNEL_QUANTIZE(function, bits) {#function, function, bits},
#include "kernels.def"
};
static const struct gemm_row gemm_rows[] = {
#define KERNEL_GEMM_Q8(family, function, bits, mr, nr) {#family, #function, function, bits, mr, nr},
#include "kernels.def"
};
#undef KERNEL_GEMM_F32
#undef KERNEL
#define QUANTIZE_ROWS (sizeof quantize_rows / sizeof *quantize_rows)
#define GEMM_ROWS     (sizeof gemm_rows / sizeof *gemm_rows)

/* Groups of 4 of K whose products fit 16 bits together, as the family wants them; 0: it takes all. */
static unsigned sums_of(const struct gemm_row *row) {
    static const char *const families[] = {"gemm_u7s8", "gemm_sum2", "gemm_sum4"};
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(row->family, families[i]) == 0)
            return 1u << i;
    return 0;
}

/* Its operands are others: test_fip.c. */
static bool is_fip(const struct gemm_row *row) {
    return strcmp(row->family, "gemm_fip") == 0;
}

/* Weights [k][n] with sums of `groups` groups that fit when inputs go up to `top` (kernel_q8.h), many of them only
 * just; groups 0: any. */
static void fill_weights(int8_t *w, size_t k, size_t n, unsigned groups, unsigned top, bool extreme) {
    int limit = 32767 / (int)top;
    for (size_t j = 0; j < n; j++)
        for (size_t half = 0; half < 2; half++) {
            int room[2] = {limit, limit};
            for (size_t i = 0; i < k; i++) {
                if (i % 4 / 2 != half)
                    continue;
                if (groups && i % (4 * groups) == 2 * half)
                    room[0] = room[1] = limit;
                unsigned down = extreme ? (unsigned)(j % 2) : (unsigned)test_below(2);
                int most = !groups || room[down] > 127 + (int)down ? 127 + (int)down : room[down];
                int v = extreme && test_below(3) ? most : (int)test_below((unsigned)most + 1);
                room[down] -= v;
                w[i * n + j] = (int8_t)(down ? -v : v);
            }
        }
}

/* ---- quantize_rows */

/* The formula of kernel_q8.h, written once more; nearbyint rounds half to even. */
static void quantize_by_formula(size_t k, const float *x, const float *x_scale, unsigned levels, bool even, uint8_t *q,
                                float *scale, int32_t *zero) {
    float lo = 0, hi = 0;
    bool finite = true;
    for (size_t i = 0; i < k; i++) {
        volatile float v = x_scale ? x[i] * x_scale[i] : x[i];
        finite = finite && isfinite(v);
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    volatile float range = hi - lo;
    *scale = 1;
    *zero = 0;
    memset(q, 0, (k + 3) / 4 * 4);
    if (!finite || isinf(range)) {
        *scale = NAN;
        return;
    }
    if (range < 1e-30f)
        return;
    volatile float s = range / (float)levels, inverse = 1.0f / s, at = -lo * inverse;
    *scale = s;
    volatile float most = (float)(even ? levels / 2 * 2 : levels), bound = at < most ? at : most, half = bound * 0.5f;
    *zero = even ? 2 * (int32_t)nearbyintf(half) : (int32_t)nearbyintf(bound);
    for (size_t i = 0; i < k; i++) {
        volatile float v = x_scale ? x[i] * x_scale[i] : x[i], t = v * inverse;
        int32_t n = (int32_t)nearbyintf(t) + *zero;
        q[i] = (uint8_t)(n < 0 ? 0 : n > (int32_t)levels ? (int32_t)levels : n);
    }
}

static void fill_row(size_t k, float *x, unsigned kind) {
    float size = ldexpf(1, (int)test_below(40) - 20);
    for (size_t i = 0; i < k; i++) {
        float v = test_float();
        switch (kind) {
        case 0:
            x[i] = v * size;
            break;
        case 1: /* of one sign */
            x[i] = fabsf(v) * size;
            break;
        case 2:
            x[i] = -fabsf(v) * size;
            break;
        case 3: /* halves: ties of the rounding */
            x[i] = (float)((int)test_below(511) - 255) * 0.5f;
            break;
        case 4:
            x[i] = test_below(2) ? 0.0f : -0.0f;
            break;
        case 5: /* nothing but one large element */
            x[i] = i == k / 2 ? 1e5f : v * 1e-3f;
            break;
        case 6: /* ranges around the least, denormals */
            x[i] = v * 1e-30f;
            break;
        case 7: /* a range that overflows, or nearly */
            x[i] = v * 3.4e38f;
            break;
        case 8:
            x[i] = test_below(k) == 0 ? copysignf(NAN, v) : v;
            break;
        default:
            x[i] = test_below(k) == 0 ? (test_below(2) ? INFINITY : -INFINITY) : v;
            break;
        }
    }
}

static void quantize(void **state) {
    (void)state;
    for (size_t r = 0; r < QUANTIZE_ROWS; r++) {
        if (!test_runs(quantize_rows[r].name, quantize_rows[r].bits))
            continue;
        for (size_t k = 0; k < 200; k++)
            for (unsigned kind = 0; kind < 10; kind++) {
                if (test_left_out(4))
                    continue;
                size_t count = 1 + test_below(11), ldx = k + test_below(5), padded = (k + 3) / 4 * 4;
                size_t ldq = padded + test_below(9);
                float *x = guarded_floats(count * ldx + 1), *x_scale = guarded_floats(k);
                float *scale = guarded_floats(count), want_scale;
                int32_t *zero = guarded(count * sizeof *zero), want_zero;
                uint8_t *q = guarded(count * ldq + 1), before[4096], want[256];
                memcpy(before, q, count * ldq + 1);
                for (size_t i = 0; i < count; i++)
                    fill_row(k, x + i * ldx, i % 2 ? (unsigned)test_below(10) : kind);
                struct lathe_quantize_rows call = {.count = count,
                                                   .k = k,
                                                   .x = x,
                                                   .ldx = ldx,
                                                   .q = q,
                                                   .ldq = ldq,
                                                   .scale = scale,
                                                   .zero = zero,
                                                   .levels = test_below(2) ? 255 : 127,
                                                   .even = test_below(3) == 0,
                                                   .x_scale = test_below(3) ? NULL : x_scale};
                quantize_rows[r].fn(&call);
                for (size_t i = 0; i < count; i++) {
                    quantize_by_formula(k, x + i * ldx, call.x_scale, call.levels, call.even, want, &want_scale,
                                        &want_zero);
                    if (isnan(want_scale) ? !isnan(scale[i]) : memcmp(&want_scale, &scale[i], sizeof want_scale) != 0)
                        fail_msg("%s k %zu kind %u: scale %.9g, not %.9g", quantize_rows[r].name, k, kind, scale[i],
                                 want_scale);
                    assert_int_equal(zero[i], want_zero);
                    assert_memory_equal(q + i * ldq, want, padded);
                    assert_memory_equal(q + i * ldq + padded, before + i * ldq + padded, ldq - padded);
                }
                unguard(x, (count * ldx + 1) * 4);
                unguard(x_scale, k * 4);
                unguard(scale, count * 4);
                unguard(zero, count * 4);
                unguard(q, count * ldq + 1);
            }
    }
}

/* What comes back is within half a step, where clamping does not reach. */
static void quantize_error(void **state) {
    (void)state;
    for (size_t r = 0; r < QUANTIZE_ROWS; r++) {
        if (!test_can_run(quantize_rows[r].bits))
            continue;
        for (unsigned round = 0; round < 50; round++) {
            float x[100], scale;
            int32_t zero;
            uint8_t q[100];
            fill_row(100, x, round % 3);
            struct lathe_quantize_rows call = {.count = 1,
                                               .k = 100,
                                               .x = x,
                                               .ldx = 100,
                                               .q = q,
                                               .ldq = 100,
                                               .scale = &scale,
                                               .zero = &zero,
                                               .levels = round % 2 ? 255 : 127};
            quantize_rows[r].fn(&call);
            for (size_t i = 0; i < 100; i++)
                assert_true(fabs((double)(q[i] - zero) * scale - x[i]) <= 1.01 * scale);
        }
    }
}

/* ---- gemm_q8: sums */

/* gemm_u7s8 takes inputs of 7 bits with any weights. */
static void one_tile(const struct gemm_row *row, size_t m, size_t n, size_t k, bool extreme, bool seven) {
    size_t kp = (k + 3) / 4 * 4, panels = (n + 15) / 16, lda = kp + test_below(9), ldc = n + test_below(5);
    unsigned groups = sums_of(row), top = groups && seven ? 127 : 255;
    uint8_t *a = guarded(m * lda + 4);
    int8_t *w = guarded(k * n + 1), *b = guarded(panels * 16 * kp + 1);
    int32_t *sums = guarded((m * ldc + 1) * 4), *before = guarded((m * ldc + 1) * 4);
    for (size_t i = 0; i < m * lda; i++)
        a[i] = (uint8_t)(extreme ? (test_below(8) ? top : 0) : test_below(top + 1));
    fill_weights(w, k, n, groups, top, extreme);
    memcpy(before, sums, (m * ldc + 1) * 4);
    lathe_pack_s8_n16k4(w, k, n, n, false, 0, panels, b);
    struct lathe_gemm_q8_tile tile = {
        .rows = m, .cols = n, .k = kp, .a = a, .lda = lda, .b = b, .panel_stride = 16 * kp, .sums = sums, .ldc = ldc};
    if (test_below(2)) {
        tile.fetch = b;
        tile.fetch_step = test_below(65);
    } else {
        tile.ahead = (unsigned)test_below(300);
    }
    row->fn(&tile);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            int64_t want = 0;
            for (size_t t = 0; j < n && t < k; t++)
                want += a[i * lda + t] * w[t * n + j];
            if (j >= n)
                want = before[i * ldc + j];
            if (sums[i * ldc + j] != want)
                fail_msg("%s m %zu n %zu k %zu: [%zu][%zu] is %d, not %lld", row->name, m, n, k, i, j,
                         sums[i * ldc + j], (long long)want);
        }
    unguard(a, m * lda + 4);
    unguard(w, k * n + 1);
    unguard(b, panels * 16 * kp + 1);
    unguard(sums, (m * ldc + 1) * 4);
    unguard(before, (m * ldc + 1) * 4);
}

static void sums(void **state) {
    (void)state;
    static const size_t ks[] = {0, 1, 3, 4, 5, 8, 31, 64, 130};
    static const size_t ns[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100};
    for (size_t r = 0; r < GEMM_ROWS; r++) {
        if (is_fip(&gemm_rows[r]) || !test_runs(gemm_rows[r].name, gemm_rows[r].bits))
            continue;
        for (size_t m = 1; m <= gemm_rows[r].mr; m = test_more_rows(m, gemm_rows[r].mr, test_traps(gemm_rows[r].bits)))
            for (size_t i = 0; i < sizeof ns / sizeof *ns; i += test_traps(gemm_rows[r].bits) ? 4 : 1)
                for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                    if (!test_left_out(8))
                        one_tile(&gemm_rows[r], m, ns[i], ks[j], (m + i + j) % 2, (m + i + j) / 2 % 2);
        size_t few = gemm_rows[r].mr > 14 ? 9 : 1; /* tiles are not for fewer */
        one_tile(&gemm_rows[r], test_traps(gemm_rows[r].bits) ? few : gemm_rows[r].mr, 3, LATHE_Q8_MAX_K, true, true);
    }
}

/* ---- epilogue: bit for bit without an activation, within the stated bound with one */

/* What kernel_q8.h states. */
static double activation_bound(enum lathe_activation activation, double x) {
    double size = fabs(x), bound = 2e-6 * (size > 1 ? size : 1);
    if (activation == LATHE_ACT_GELU || activation == LATHE_ACT_GELU_TANH)
        bound += 4.7e-4 * size < 2.1e-4 ? 4.7e-4 * size : 2.1e-4;
    return bound;
}

/* The tile's epilogue may wait for another tile, and is the same then. `tile` has been calculated at once. */
static void epilogue_waits(const struct gemm_row *row, const struct lathe_gemm_q8_tile *tile) {
    struct lathe_gemm_q8_later later;
    later.waiting = 0;
    size_t ldc = tile->ldc, size[3];
    float *c[3];
    struct lathe_gemm_q8_tile next = *tile;
    next.later = &later;
    for (size_t i = 0; i < 3; i++) {
        next.rows = 1 + test_below(tile->rows);
        next.cols = 1 + test_below(tile->cols);
        next.cols = test_below(2) ? next.cols : next.cols < 16 ? tile->cols : next.cols / 16 * 16;
        size[i] = next.rows * ldc;
        c[i] = next.c = guarded_floats(size[i]);
        for (size_t j = 0; j < size[i]; j++)
            if (j % ldc >= next.cols)
                next.c[j] = tile->c[j];
        row->fn(&next);
    }
    next.rows = 0;
    row->fn(&next);
    assert_int_equal(later.waiting, 0);
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < size[i]; j++)
            if (memcmp(&c[i][j], &tile->c[j], sizeof *c[i]) != 0)
                fail_msg("%s activation %d tile %zu of 3: [%zu][%zu] waited and is %.9g, not %.9g", row->name,
                         tile->epilogue->activation, i, j / ldc, j % ldc, c[i][j], tile->c[j]);
        guarded_free(c[i], size[i]);
    }
}

static void epilogue(void **state) {
    (void)state;
    for (size_t r = 0; r < GEMM_ROWS; r++)
        for (unsigned round = 0; round < 300; round++) {
            if (is_fip(&gemm_rows[r]) || (!test_can_run(gemm_rows[r].bits) && !test_traps(gemm_rows[r].bits)))
                break;
            if (test_left_out(8))
                continue;
            size_t most = gemm_rows[r].mr < 70 ? gemm_rows[r].mr : test_traps(gemm_rows[r].bits) ? 36 : 70;
            size_t m = 1 + test_below(most), n = 1 + test_below(70), k = 1 + test_below(most > 36 ? 400 : 130);
            size_t kp = (k + 3) / 4 * 4, panels = (n + 15) / 16, ldc = n + test_below(4), ldr = n + test_below(3);
            uint8_t *a = guarded(m * kp);
            int8_t *w = guarded(k * n), *b = guarded(panels * 16 * kp);
            float *c = guarded_floats(m * ldc), *before = guarded_floats(m * ldc), *bias = guarded_floats(n);
            float *residual = guarded_floats(m * ldr), *scale = guarded_floats(m), *w_scale = guarded_floats(n);
            int32_t *zero = guarded(m * 4), *w_sum = guarded(n * 4);
            memcpy(before, c, m * ldc * 4);
            for (size_t i = 0; i < m * kp; i++)
                a[i] = (uint8_t)test_below(128);
            fill_weights(w, k, n, sums_of(&gemm_rows[r]), 127, round % 2);
            for (size_t j = 0; j < n; j++) {
                w_sum[j] = 0;
                w_scale[j] = fabsf(w_scale[j]) * (round % 3 ? 0.02f : 1.0f);
                for (size_t t = 0; t < k; t++)
                    w_sum[j] += w[t * n + j];
            }
            for (size_t i = 0; i < m; i++) {
                scale[i] = fabsf(scale[i]) * 0.02f;
                zero[i] = (int32_t)test_below(128);
            }
            lathe_pack_s8_n16k4(w, k, n, n, false, 0, panels, b);
            struct lathe_gemm_q8_epilogue e = {.scale = scale,
                                               .zero = zero,
                                               .w_scale = w_scale,
                                               .w_sum = w_sum,
                                               .bias = test_below(3) ? bias : NULL,
                                               .ldr = ldr,
                                               .alpha = 1.702f,
                                               .gate = test_below(2),
                                               .residual = test_below(2) ? residual : NULL,
                                               .activation = (enum lathe_activation)test_below(7)};
            struct lathe_gemm_q8_tile tile = {.rows = m,
                                              .cols = n,
                                              .k = kp,
                                              .a = a,
                                              .lda = kp,
                                              .b = b,
                                              .panel_stride = 16 * kp,
                                              .c = c,
                                              .ldc = ldc,
                                              .epilogue = &e};
            gemm_rows[r].fn(&tile);
            for (size_t i = 0; i < m; i++)
                for (size_t j = 0; j < ldc; j++) {
                    if (j >= n) {
                        assert_memory_equal(&c[i * ldc + j], &before[i * ldc + j], 4);
                        continue;
                    }
                    int32_t sum = 0;
                    for (size_t t = 0; t < k; t++)
                        sum += a[i * kp + t] * w[t * n + j];
                    volatile float both = scale[i] * w_scale[j], x = (float)(sum - zero[i] * w_sum[j]) * both;
                    if (e.bias)
                        x = x + bias[j];
                    if (e.activation <= LATHE_ACT_RELU) {
                        x = e.activation == LATHE_ACT_RELU && x <= 0 ? 0 : x;
                        if (e.residual)
                            x = e.gate ? x * residual[i * ldr + j] : x + residual[i * ldr + j];
                        if (c[i * ldc + j] != x)
                            fail_msg("%s: %.9g is not %.9g", gemm_rows[r].name, c[i * ldc + j], x);
                        continue;
                    }
                    double want = test_join(e.gate, test_activate(e.activation, e.alpha, x),
                                            e.residual ? &residual[i * ldr + j] : NULL);
                    double size = fmax(1, fabs(residual[i * ldr + j]));
                    if (!(fabs(c[i * ldc + j] - want) <= activation_bound(e.activation, x) * size))
                        fail_msg("%s activation %d of %.9g: %.9g is not %.9g", gemm_rows[r].name, e.activation, x,
                                 c[i * ldc + j], want);
                }
            epilogue_waits(&gemm_rows[r], &tile);
            unguard(a, m * kp);
            unguard(w, k * n);
            unguard(b, panels * 16 * kp);
            guarded_free(c, m * ldc);
            guarded_free(before, m * ldc);
            guarded_free(bias, n);
            guarded_free(residual, m * ldr);
            guarded_free(scale, m);
            guarded_free(w_scale, n);
            unguard(zero, m * 4);
            unguard(w_sum, n * 4);
        }
}

/* ---- linear_q8 */

/* `bits` of the inputs and `sums` bind the weights, or `most` does. */
static struct layer layer_new(size_t m, size_t n, size_t k, int most, int bits, int sums) {
    struct layer l = layer_alloc(m, n, k);
    l.most = most;
    l.sums = sums;
    fill_weights(l.w, k, n, (unsigned)sums, (1u << bits) - 1, true);
    for (size_t i = 0; !sums && i < k * n; i++)
        l.w[i] = (int8_t)((int)test_below(2 * (unsigned)most + 1) - most);
    layer_finish(&l);
    return l;
}

static void layers(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{0, 5, 5},     {1, 1, 1},    {1, 70, 1000}, {3, 33, 385},   {8, 260, 67},
                                       {15, 48, 600}, {29, 65, 40}, {90, 300, 20}, {33, 40, 3072}, {200, 17, 3001},
                                       {5, 40, 0},    {2, 0, 9},    {14, 530, 64}, {66, 344, 3072}};
    static const struct {
        int bits, most, sums;
    } forms[] = {{7, 127, 0}, {8, 127, 0}, {8, LATHE_Q8_NARROW, 0}, {8, 127, 1}, {8, 127, 2}, {8, 127, 4}, {7, 127, 4}};
    uint64_t levels[GEMM_ROWS];
    size_t count = 0;
    for (size_t r = 0; r < GEMM_ROWS; r++) {
        bool again = false;
        for (size_t i = 0; i < count; i++)
            again = again || levels[i] == gemm_rows[r].bits;
        bool tiles = gemm_rows[r].mr > 14 && test_traps(gemm_rows[r].bits);
        if (!again && (test_can_run(gemm_rows[r].bits) || tiles))
            levels[count++] = gemm_rows[r].bits;
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
            bool large = shapes[s][1] * shapes[s][2] > 1 << 20; /* cut otherwise where threads are near; slow */
            if (test_left_out(3) || (large && form != 1))
                continue;
            int bits = forms[form].bits;
            struct layer l =
                layer_new(shapes[s][0], shapes[s][1], shapes[s][2], forms[form].most, bits, forms[form].sums);
            size_t size = l.m * l.n;
            float *first = guarded_floats(size), *y = guarded_floats(size), *gelu = guarded_floats(size);
            for (size_t r = 0; r < count; r++) {
                struct lathe_kernels kernels;
                lathe_kernels_select(levels[r], &kernels);
                for (unsigned all = 0; all < 2; all++) {
                    layer_run(&kernels, &l, ROWS, bits, all ? LATHE_ACT_RELU : LATHE_ACT_NONE, all, 0, l.m, 1, y);
                    /* the same bits at each level; the plain one is checked against the formula by epilogue() */
                    if (r == 0 && all)
                        memcpy(first, y, size * sizeof *y);
                    else if (all)
                        assert_memory_equal(first, y, size * sizeof *y);
                }
                layer_run(&kernels, &l, TRANSPOSED, bits, LATHE_ACT_RELU, true, 0, l.m, 2, y);
                assert_memory_equal(first, y, size * sizeof *y);
                for (unsigned threads = 1; threads <= 6; threads++) {
                    layer_run(&kernels, &l, PACKED, bits, LATHE_ACT_RELU, true, 0, l.m, threads, y);
                    assert_memory_equal(first, y, size * sizeof *y);
                }
                /* with an activation: the same for any number of threads and each row alone */
                layer_run(&kernels, &l, PACKED, bits, LATHE_ACT_GELU, true, 0, l.m, 1, gelu);
                for (size_t i = 0; i < l.m; i += 1 + test_below(5)) {
                    size_t some = 1 + test_below(l.m - i < 20 ? l.m - i : 20);
                    layer_run(&kernels, &l, PACKED, bits, LATHE_ACT_GELU, true, i, some, 1 + (unsigned)test_below(3),
                              y);
                    assert_memory_equal(y, gelu + i * l.n, some * l.n * sizeof *y);
                }
            }
            guarded_free(first, size);
            guarded_free(y, size);
            guarded_free(gelu, size);
            layer_free(&l);
        }
}

/* The layer is near the product in real numbers: within the steps that both roundings allow. */
static void layer_meaning(void **state) {
    (void)state;
    struct lathe_kernels kernels;
    lathe_kernels_select(lathe_cpu_bits(), &kernels);
    for (int bits = 7; bits <= 8; bits++) {
        struct layer l = layer_new(20, 30, 100, 127, 8, 0);
        float *y = guarded_floats(l.m * l.n);
        layer_run(&kernels, &l, PACKED, bits, LATHE_ACT_NONE, true, 0, l.m, 1, y);
        for (size_t i = 0; i < l.m; i++)
            for (size_t j = 0; j < l.n; j++) {
                double want = 0, slack = 0, lo = 0, hi = 0;
                for (size_t t = 0; t < l.k; t++) {
                    double v = (double)l.x[i * l.k + t] * l.x_scale[t];
                    lo = v < lo ? v : lo;
                    hi = v > hi ? v : hi;
                    want += v * l.w[t * l.n + j] * l.w_scale[j];
                    slack += fabs(l.w[t * l.n + j] * (double)l.w_scale[j]);
                }
                want += l.bias[j] + l.residual[i * l.n + j];
                slack *= 1.01 * (hi - lo) / (bits == 8 ? 255 : 127);
                assert_true(fabs(y[i * l.n + j] - want) <= slack + 1e-3);
            }
        guarded_free(y, l.m * l.n);
        layer_free(&l);
    }
}

/* A NaN or an infinity in a row makes that row NaN, and no other. */
static void layer_not_finite(void **state) {
    (void)state;
    for (size_t r = 0; r < GEMM_ROWS; r++) {
        if (!test_can_run(gemm_rows[r].bits))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(gemm_rows[r].bits, &kernels);
        struct layer l = layer_new(5, 20, 70, 127, 8, 0);
        float *y = guarded_floats(l.m * l.n), *z = guarded_floats(l.m * l.n);
        layer_run(&kernels, &l, PACKED, 8, LATHE_ACT_NONE, true, 0, l.m, 1, y);
        l.x[1 * l.k + 69] = NAN;
        l.x[3 * l.k + 2] = -INFINITY;
        layer_run(&kernels, &l, PACKED, 8, LATHE_ACT_NONE, true, 0, l.m, 1, z);
        for (size_t i = 0; i < l.m; i++)
            for (size_t j = 0; j < l.n; j++)
                assert_true(i % 2 ? isnan(z[i * l.n + j]) : z[i * l.n + j] == y[i * l.n + j]);
        guarded_free(y, l.m * l.n);
        guarded_free(z, l.m * l.n);
        layer_free(&l);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize),         cmocka_unit_test(quantize_error), cmocka_unit_test(sums),
        cmocka_unit_test(epilogue),         cmocka_unit_test(layers),         cmocka_unit_test(layer_meaning),
        cmocka_unit_test(layer_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
