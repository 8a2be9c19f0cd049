/* The operators around the float kernels against plain formulas: linear, matmul, gemm, norms, embedding, softmax,
 * packed rows; on one and several threads. */
#include "kernel_test.h"

#include "ops.h"
#include "row_map.h"

#include <math.h>

static struct lathe_kernels kernels;
static struct lathe_diag diag;

typedef enum lathe_status (*run_fn)(const struct lathe_op_call *);
typedef size_t (*scratch_fn)(const struct lathe_op_call *);

/* Every thread of a team in turn. Operators that wait for the team in the middle are run with one thread. */
static enum lathe_status run_op(run_fn run, scratch_fn scratch, const struct lathe_attr *attrs, uint32_t attr_count,
                                const struct lathe_tensor *const *in, unsigned n_in, struct lathe_tensor *const *out,
                                unsigned n_out, unsigned threads) {
    lathe_diag_reset(&diag);
    struct lathe_op_call call = {.attrs = {attrs, attr_count},
                                 .in = in,
                                 .out = out,
                                 .n_in = n_in,
                                 .n_out = n_out,
                                 .kernels = &kernels,
                                 .diag = &diag};
    size_t n = scratch ? scratch(&call) / sizeof(float) : 0;
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; i < threads; i++) {
        float *memory = guarded_floats(n);
        call.scratch = memory;
        call.team = (struct lathe_team){.index = i, .count = threads};
        enum lathe_status one = run(&call);
        status = one ? one : status;
        guarded_free(memory, n);
    }
    return status;
}

static unsigned threads(void) {
    return 1 + (unsigned)test_below(4);
}

#define IN(...)        ((const struct lathe_tensor *const[]){__VA_ARGS__})
#define OUT(...)       ((struct lathe_tensor *const[]){__VA_ARGS__})
#define F32(data, ...) ((struct lathe_tensor){data, LATHE_F32, sizeof((int64_t[]){__VA_ARGS__}) / 8, {__VA_ARGS__}})

static struct lathe_attr attr_i(enum lathe_attr_key key, int64_t value) {
    return (struct lathe_attr){.key = key, .type = LATHE_ATTR_INT, .i = value};
}
static struct lathe_attr attr_f(enum lathe_attr_key key, double value) {
    return (struct lathe_attr){.key = key, .type = LATHE_ATTR_FLOAT, .f = value};
}

static void linear(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        if (test_left_out(4))
            continue;
        int64_t b = 1 + (int64_t)test_below(3), s = 1 + (int64_t)test_below(20), k = 1 + (int64_t)test_below(70);
        int64_t n = 1 + (int64_t)test_below(70), m = b * s, panels = (n + 15) / 16;
        float *x = guarded_floats((size_t)(m * k)), *w = guarded_floats((size_t)(k * n)),
              *bias = guarded_floats((size_t)n);
        float *r = guarded_floats((size_t)(m * n)), *y = guarded_floats((size_t)(m * n));
        float *p = guarded_floats((size_t)(panels * 16 * k)), *z = guarded_floats((size_t)(m * n));
        bool transposed = test_below(2), with_bias = test_below(2), with_residual = test_below(2), gate = test_below(2);
        struct lathe_tensor tx = F32(x, b, s, k), tw = F32(w, k, n), tb = F32(bias, n), tr = F32(r, b, s, n);
        struct lathe_tensor ty = F32(y, b, s, n), tz = F32(z, b, s, n), tp = F32(p, k, n);
        if (transposed)
            tw = F32(w, n, k);
        lathe_pack_f32_n16(w, (size_t)k, (size_t)n, (size_t)(transposed ? k : n), transposed, 0, (size_t)panels, p);
        struct lathe_attr attrs[4] = {attr_i(LATHE_ATTR_ACTIVATION, (int64_t)test_below(2)),
                                      attr_i(LATHE_ATTR_TRANS_B, transposed), attr_i(LATHE_ATTR_GATE, gate)};
        assert_int_equal(run_op(lathe_run_linear, lathe_scratch_linear, attrs, 3,
                                IN(&tx, &tw, with_bias ? &tb : NULL, with_residual ? &tr : NULL), 4, OUT(&ty), 1,
                                threads()),
                         LATHE_OK);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = with_bias ? bias[j] : 0;
                for (int64_t t = 0; t < k; t++)
                    sum += (double)x[i * k + t] * (transposed ? w[j * k + t] : w[t * n + j]);
                sum = attrs[0].i && sum < 0 ? 0 : sum;
                sum = test_join(gate, sum, with_residual ? &r[i * n + j] : NULL);
                assert_true(fabs(y[i * n + j] - sum) < 1e-5);
            }
        attrs[3] = attr_i(LATHE_ATTR_PACKING, 1);
        assert_int_equal(run_op(lathe_run_linear, lathe_scratch_linear, attrs, 4,
                                IN(&tx, &tp, with_bias ? &tb : NULL, with_residual ? &tr : NULL), 4, OUT(&tz), 1,
                                threads()),
                         LATHE_OK);
        assert_memory_equal(y, z, (size_t)(m * n) * sizeof *y);
        guarded_free(x, (size_t)(m * k));
        guarded_free(w, (size_t)(k * n));
        guarded_free(bias, (size_t)n);
        guarded_free(r, (size_t)(m * n));
        guarded_free(y, (size_t)(m * n));
        guarded_free(z, (size_t)(m * n));
        guarded_free(p, (size_t)(panels * 16 * k));
    }
}

/* matmul with every kind of batch, transposition and vector, in f32 and i32 (small whole numbers: exact in both). */
static void matmul(void **state) {
    (void)state;
    for (int round = 0; round < 600; round++) {
        if (test_left_out(16))
            continue;
        const uint64_t most = test_below(3) ? 30 : 1; /* of one of the sizes */
        int64_t size[3] = {1 + (int64_t)test_below(30), 1 + (int64_t)test_below(30), 1 + (int64_t)test_below(30)};
        size[test_below(3)] = 1 + (int64_t)test_below(most);
        int64_t m = size[0], n = size[1], k = size[2];
        int64_t ba[2] = {1 + (int64_t)test_below(3), 1 + (int64_t)test_below(3)}, bb[2] = {ba[0], ba[1]};
        bool ta = test_below(2), tb = test_below(2), vector = round % 10 == 9;
        if (test_below(2))
            bb[test_below(2)] = 1;
        if (test_below(3) == 0)
            ba[test_below(2)] = 1;
        if (vector) {
            m = 1;
            ta = false;
            ba[0] = ba[1] = 1;
        }
        int64_t by[2] = {ba[0] > bb[0] ? ba[0] : bb[0], ba[1] > bb[1] ? ba[1] : bb[1]};
        size_t na = (size_t)(ba[0] * ba[1] * m * k), nb = (size_t)(bb[0] * bb[1] * k * n);
        size_t ny = (size_t)(by[0] * by[1] * m * n);
        bool whole = test_below(2);
        float *a = guarded_floats(na), *b = guarded_floats(nb), *y = guarded_floats(ny);
        int32_t *ia = (int32_t *)a, *ib = (int32_t *)b, *iy = (int32_t *)y;
        for (size_t i = 0; i < na; i++) {
            int v = (int)test_below(9) - 4;
            if (whole)
                ia[i] = v;
            else
                a[i] = (float)v;
        }
        for (size_t i = 0; i < nb; i++) {
            int v = (int)test_below(9) - 4;
            if (whole)
                ib[i] = v;
            else
                b[i] = (float)v;
        }
        enum lathe_dtype dtype = whole ? LATHE_I32 : LATHE_F32;
        struct lathe_tensor A = {a, dtype, 4, {ba[0], ba[1], ta ? k : m, ta ? m : k}};
        struct lathe_tensor B = {b, dtype, 4, {bb[0], bb[1], tb ? n : k, tb ? k : n}};
        struct lathe_tensor Y = {y, dtype, 4, {by[0], by[1], m, n}};
        if (vector) {
            A = (struct lathe_tensor){a, dtype, 1, {k}};
            Y = (struct lathe_tensor){y, dtype, 3, {by[0], by[1], n}};
        }
        struct lathe_attr attrs[2] = {attr_i(LATHE_ATTR_TRANS_A, ta), attr_i(LATHE_ATTR_TRANS_B, tb)};
        assert_int_equal(run_op(lathe_run_matmul, lathe_scratch_matmul, attrs, 2, IN(&A, &B), 2, OUT(&Y), 1, threads()),
                         LATHE_OK);
        for (int64_t i = 0; i < (int64_t)ny; i++) {
            int64_t j = i % n, r = i / n % m, b1 = i / n / m % by[1], b0 = i / n / m / by[1];
            int64_t oa = ((ba[0] > 1 ? b0 : 0) * ba[1] + (ba[1] > 1 ? b1 : 0)) * m * k;
            int64_t ob = ((bb[0] > 1 ? b0 : 0) * bb[1] + (bb[1] > 1 ? b1 : 0)) * k * n;
            int64_t sum = 0;
            for (int64_t t = 0; t < k; t++) {
                int64_t pa = oa + (ta ? t * m + r : r * k + t), pb = ob + (tb ? j * k + t : t * n + j);
                sum += whole ? (int64_t)ia[pa] * ib[pb] : (int64_t)a[pa] * (int64_t)b[pb];
            }
            assert_int_equal(whole ? iy[i] : (int64_t)y[i], sum);
        }
        guarded_free(a, na);
        guarded_free(b, nb);
        guarded_free(y, ny);
    }
}

static void gemm(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        if (test_left_out(4))
            continue;
        int64_t m = 1 + (int64_t)test_below(20), n = 1 + (int64_t)test_below(40), k = 1 + (int64_t)test_below(20);
        int64_t cm = test_below(2) ? m : 1, cn = test_below(2) ? n : 1;
        float *a = guarded_floats((size_t)(m * k)), *b = guarded_floats((size_t)(k * n)),
              *y = guarded_floats((size_t)(m * n));
        float *c = guarded_floats((size_t)(cm * cn));
        struct lathe_tensor A = F32(a, m, k), B = F32(b, n, k), C = F32(c, cm, cn), Y = F32(y, m, n);
        struct lathe_attr attrs[3] = {attr_f(LATHE_ATTR_ALPHA, 0.5), attr_f(LATHE_ATTR_BETA, 2),
                                      attr_i(LATHE_ATTR_TRANS_B, 1)};
        bool with_c = test_below(3) != 0;
        assert_int_equal(
            run_op(lathe_run_gemm, lathe_scratch_gemm, attrs, 3, IN(&A, &B, with_c ? &C : NULL), 3, OUT(&Y), 1, 1),
            LATHE_OK);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t t = 0; t < k; t++)
                    sum += (double)a[i * k + t] * b[j * k + t];
                sum = 0.5 * sum + (with_c ? 2.0 * c[(cm > 1 ? i : 0) * cn + (cn > 1 ? j : 0)] : 0);
                assert_true(fabs(y[i * n + j] - sum) < 1e-5);
            }
        guarded_free(a, (size_t)(m * k));
        guarded_free(b, (size_t)(k * n));
        guarded_free(c, (size_t)(cm * cn));
        guarded_free(y, (size_t)(m * n));
    }
}

static void norms(void **state) {
    (void)state;
    enum { B = 2, S = 5, H = 37 };
    float *x = guarded_floats(B * S * H), *r = guarded_floats(B * S * H), *y = guarded_floats(B * S * H);
    float *sum = guarded_floats(B * S * H), *g = guarded_floats(H), *b = guarded_floats(H), mean[B * S], inverse[B * S];
    struct lathe_tensor X = F32(x, B, S, H), R = F32(r, B, S, H), Y = F32(y, B, S, H), T = F32(sum, B, S, H);
    struct lathe_tensor G = F32(g, H), Be = F32(b, H), M = F32(mean, B, S, 1), I = F32(inverse, B, S, 1);
    struct lathe_attr attrs[2] = {attr_f(LATHE_ATTR_EPSILON, 1e-5), attr_i(LATHE_ATTR_AXIS, 2)};
    assert_int_equal(
        run_op(lathe_run_skip_layer_norm, NULL, attrs, 1, IN(&X, &R, &G, &Be), 4, OUT(&Y, &T), 2, threads()), LATHE_OK);
    /* layer_norm of the sum, with and without the statistics */
    float *z = guarded_floats(B * S * H);
    struct lathe_tensor Z = F32(z, B, S, H);
    for (int form = 0; form < 2; form++) {
        assert_int_equal(run_op(lathe_run_layer_norm, NULL, attrs, 2, IN(&T, &G, &Be), 3,
                                OUT(&Z, form ? &M : NULL, form ? &I : NULL), 3, threads()),
                         LATHE_OK);
        for (int i = 0; i < B * S * H; i++) {
            assert_true(sum[i] == x[i] + r[i]);
            assert_true(fabsf(z[i] - y[i]) < 1e-5f);
        }
    }
    for (int i = 0; i < B * S; i++) {
        double m = 0, v = 0;
        for (int j = 0; j < H; j++)
            m += sum[i * H + j];
        m /= H;
        for (int j = 0; j < H; j++)
            v += (sum[i * H + j] - m) * (sum[i * H + j] - m);
        assert_true(fabs(mean[i] - m) < 1e-6);
        assert_true(fabs(inverse[i] - 1 / sqrt(v / H + 1e-5)) < 1e-5);
        for (int j = 0; j < H; j++)
            assert_true(fabs(y[i * H + j] - ((sum[i * H + j] - m) * inverse[i] * g[j] + b[j])) < 1e-5);
    }
    guarded_free(x, B * S * H);
    guarded_free(r, B * S * H);
    guarded_free(y, B * S * H);
    guarded_free(z, B * S * H);
    guarded_free(sum, B * S * H);
    guarded_free(g, H);
    guarded_free(b, H);
}

static void embedding(void **state) {
    (void)state;
    enum { B = 2, S = 4, H = 24, V = 9, P = 8 };
    float *words = guarded_floats(V * H), *places = guarded_floats(P * H), *types = guarded_floats(H);
    float *g = guarded_floats(H), *b = guarded_floats(H), *y = guarded_floats(B * S * H),
          *sum = guarded_floats(B * S * H);
    int64_t ids[B * S];
    for (int i = 0; i < B * S; i++)
        ids[i] = (int64_t)test_below(V);
    ids[3] = -1; /* the last row */
    struct lathe_tensor W = F32(words, V, H), Pl = F32(places, P, H), Ty = F32(types, 1, H), G = F32(g, H),
                        Be = F32(b, H);
    struct lathe_tensor Id = {ids, LATHE_I64, 2, {B, S}}, Y = F32(y, B, S, H), T = F32(sum, B, S, H);
    int64_t offsets[3] = {0, 2, -1};
    struct lathe_attr attrs[2] = {attr_f(LATHE_ATTR_EPSILON, 1e-12),
                                  {.key = LATHE_ATTR_OFFSETS, .type = LATHE_ATTR_INTS, .ints = offsets, .count = 3}};
    for (int form = 0; form < 2; form++) {
        assert_int_equal(run_op(lathe_run_embedding, NULL, attrs, 2, IN(&G, &Be, &W, &Id, &Pl, NULL, &Ty, NULL), 8,
                                OUT(&Y, form ? NULL : &T), 2, threads()),
                         LATHE_OK);
        for (int i = 0; i < B * S; i++) {
            double row[H], m = 0, v = 0;
            for (int j = 0; j < H; j++) {
                int64_t id = ids[i] < 0 ? ids[i] + V : ids[i];
                row[j] = words[id * H + j] + places[(i % S + 2) * H + j] + types[j];
                m += row[j] / H;
                assert_true(form || fabs(sum[i * H + j] - row[j]) < 1e-6);
            }
            for (int j = 0; j < H; j++)
                v += (row[j] - m) * (row[j] - m) / H;
            for (int j = 0; j < H; j++)
                assert_true(fabs(y[i * H + j] - ((row[j] - m) / sqrt(v + 1e-12) * g[j] + b[j])) < 1e-5);
        }
    }
    ids[5] = V;
    assert_int_equal(run_op(lathe_run_embedding, NULL, attrs, 2, IN(&G, &Be, &W, &Id), 4, OUT(&Y), 1, 1),
                     LATHE_INVALID);
    assert_non_null(strstr(diag.text, "9"));
    ids[5] = 0;
    offsets[1] = P - 1;
    assert_int_equal(run_op(lathe_run_embedding, NULL, attrs, 2, IN(&G, &Be, &W, &Id, &Pl, NULL), 6, OUT(&Y), 1, 1),
                     LATHE_INVALID);
    guarded_free(words, V * H);
    guarded_free(places, P * H);
    guarded_free(types, H);
    guarded_free(g, H);
    guarded_free(b, H);
    guarded_free(y, B * S * H);
    guarded_free(sum, B * S * H);
}

/* Every pair of types, zero points of all forms, sizes on both sides of what goes through panels. */
static void matmul_integer(void **state) {
    (void)state;
    for (int round = 0; round < 120; round++) {
        if (test_left_out(4))
            continue;
        const int64_t batch = 1 + (int64_t)test_below(3), m = 1 + (int64_t)test_below(40);
        const int64_t k = 1 + (int64_t)test_below(90), n = 1 + (int64_t)test_below(150);
        bool a_signed = test_below(2), b_signed = test_below(2), shared = test_below(2);
        unsigned a_zeros = test_below(3), b_zeros = test_below(3); /* none, one, one a line */
        size_t a_count = (size_t)(batch * m * k), b_count = (size_t)((shared ? 1 : batch) * k * n);
        uint8_t *a = malloc(a_count), *b = malloc(b_count), *az = malloc((size_t)m), *bz = malloc((size_t)n);
        int32_t *y = (int32_t *)(void *)guarded_floats((size_t)(batch * m * n));
        for (size_t i = 0; i < a_count; i++)
            a[i] = (uint8_t)(test_below(4) ? test_below(256) : 255);
        for (size_t i = 0; i < b_count; i++)
            b[i] = (uint8_t)(test_below(4) ? test_below(256) : 128);
        for (int64_t i = 0; i < m; i++)
            az[i] = (uint8_t)test_below(256);
        for (int64_t i = 0; i < n; i++)
            bz[i] = (uint8_t)test_below(256);
        enum lathe_dtype ta = a_signed ? LATHE_I8 : LATHE_U8, tb = b_signed ? LATHE_I8 : LATHE_U8;
        struct lathe_tensor A = {a, ta, 3, {batch, m, k}}, Bs = {b, tb, 2, {k, n}}, Bb = {b, tb, 3, {batch, k, n}};
        struct lathe_tensor Az = {az, ta, a_zeros > 1, {m}}, Bz = {bz, tb, b_zeros > 1, {n}};
        struct lathe_tensor Y = {y, LATHE_I32, 3, {batch, m, n}};
        assert_int_equal(run_op(lathe_run_matmul_integer, lathe_scratch_matmul_integer, NULL, 0,
                                IN(&A, shared ? &Bs : &Bb, a_zeros ? &Az : NULL, b_zeros ? &Bz : NULL), 4, OUT(&Y), 1,
                                threads()),
                         LATHE_OK);
        for (int64_t g = 0; g < batch; g++)
            for (int64_t r = 0; r < m; r++)
                for (int64_t j = 0; j < n; j++) {
                    int64_t want = 0, i = a_zeros > 1 ? r : 0, c = b_zeros > 1 ? j : 0;
                    int za = !a_zeros ? 0 : a_signed ? (int8_t)az[i] : az[i];
                    int zb = !b_zeros ? 0 : b_signed ? (int8_t)bz[c] : bz[c];
                    for (int64_t t = 0; t < k; t++) {
                        uint8_t x = a[(g * m + r) * k + t], w = b[((shared ? 0 : g) * k + t) * n + j];
                        want += ((a_signed ? (int8_t)x : x) - za) * ((b_signed ? (int8_t)w : w) - zb);
                    }
                    assert_int_equal(y[(g * m + r) * n + j], want);
                }
        guarded_free((float *)(void *)y, (size_t)(batch * m * n));
        free(a);
        free(b);
        free(az);
        free(bz);
    }
}

/* A table read from the panels of a product gives the bits of the table in rows. */
static void embedding_in_panels(void **state) {
    (void)state;
    enum { B = 2, S = 5, V = 37 };
    for (int round = 0; round < 30; round++) {
        if (test_left_out(4))
            continue;
        const int64_t h = 1 + (int64_t)test_below(300), panels = (V + 15) / 16, padded = (h + 3) / 4 * 4;
        size_t count = (size_t)(V * h), room = (size_t)(panels * 16 * padded), out = (size_t)(B * S * h);
        float *f = guarded_floats(count), *fp = guarded_floats(room), *g = guarded_floats((size_t)h);
        float *scale = guarded_floats(V), *y = guarded_floats(out), *z = guarded_floats(out);
        uint16_t *half = malloc(count * 2), *halfp = malloc(room * 2);
        int8_t *bytes = malloc(count), *bytesp = malloc(room);
        int64_t ids[B * S];
        for (int i = 0; i < B * S; i++)
            ids[i] = (int64_t)test_below(V);
        for (size_t i = 0; i < count; i++) {
            half[i] = lathe_bf16_weight(f[i]);
            bytes[i] = (int8_t)test_below(256);
        }
        lathe_pack_f32_n16(f, (size_t)h, V, (size_t)h, true, 0, (size_t)panels, fp);
        lathe_pack_bf16_n16k2(half, LATHE_BF16, (size_t)h, V, (size_t)h, true, 0, (size_t)panels, halfp);
        lathe_pack_s8_n16k4(bytes, (size_t)h, V, (size_t)h, true, 0, (size_t)panels, bytesp);
        const struct lathe_tensor rows[] = {
            {f, LATHE_F32, 2, {V, h}}, {half, LATHE_BF16, 2, {V, h}}, {bytes, LATHE_I8, 2, {V, h}}};
        const struct lathe_tensor packed[] = {
            {fp, LATHE_F32, 2, {h, V}}, {halfp, LATHE_BF16, 2, {h, V}}, {bytesp, LATHE_I8, 2, {h, V}}};
        struct lathe_tensor G = F32(g, h), Sc = F32(scale, V), Id = {ids, LATHE_I64, 2, {B, S}};
        struct lathe_tensor Y = F32(y, B, S, h), Z = F32(z, B, S, h);
        for (int k = 0; k < 3; k++) {
            const int64_t packing = k + 1;
            run_fn run = k == 2 ? lathe_run_embedding_q8 : lathe_run_embedding;
            const struct lathe_tensor *in[] = {&G, NULL, &rows[k], k == 2 ? &Sc : &Id, &Id};
            const struct lathe_attr attr = {
                .key = LATHE_ATTR_PACKINGS, .type = LATHE_ATTR_INTS, .ints = &packing, .count = 1};
            unsigned n_in = k == 2 ? 5 : 4;
            assert_int_equal(run_op(run, NULL, &attr, 0, in, n_in, OUT(&Y), 1, threads()), LATHE_OK);
            in[2] = &packed[k];
            assert_int_equal(run_op(run, NULL, &attr, 1, in, n_in, OUT(&Z), 1, threads()), LATHE_OK);
            assert_memory_equal(y, z, out * sizeof *y);
            /* the same bytes called another packing */
            const int64_t wrong = packing % 3 + 1;
            const struct lathe_attr other = {
                .key = LATHE_ATTR_PACKINGS, .type = LATHE_ATTR_INTS, .ints = &wrong, .count = 1};
            assert_int_not_equal(run_op(run, NULL, &other, 1, in, n_in, OUT(&Z), 1, 1), LATHE_OK);
        }
        guarded_free(f, count);
        guarded_free(fp, room);
        guarded_free(g, (size_t)h);
        guarded_free(scale, V);
        guarded_free(y, out);
        guarded_free(z, out);
        free(half);
        free(halfp);
        free(bytes);
        free(bytesp);
    }
}

/* Tables of bytes give the bits of the tables of floats that they stand for. */
static void embedding_q8(void **state) {
    (void)state;
    enum { B = 2, S = 4, H = 300, V = 9, P = 8 };
    float *words = guarded_floats(V * H), *places = guarded_floats(P * H), *types = guarded_floats(H);
    float *word_scale = guarded_floats(V), *place_scale = guarded_floats(P), *g = guarded_floats(H);
    float *y = guarded_floats(B * S * H), *sum = guarded_floats(B * S * H), *y8 = guarded_floats(B * S * H);
    float *sum8 = guarded_floats(B * S * H);
    int8_t *words8 = (int8_t *)guarded_floats(V * H / 4), *places8 = (int8_t *)guarded_floats(P * H / 4);
    for (int i = 0; i < V * H; i++)
        words[i] = (float)words8[i] * word_scale[i / H];
    for (int i = 0; i < P * H; i++)
        places[i] = (float)places8[i] * place_scale[i / H];
    int64_t ids[B * S], offsets[3] = {0, 2, -1};
    for (int i = 0; i < B * S; i++)
        ids[i] = (int64_t)test_below(V);
    struct lathe_tensor W = F32(words, V, H), Pl = F32(places, P, H), Ty = F32(types, 1, H), G = F32(g, H);
    struct lathe_tensor W8 = {words8, LATHE_I8, 2, {V, H}}, Pl8 = {places8, LATHE_I8, 2, {P, H}};
    struct lathe_tensor Ws = F32(word_scale, V), Ps = F32(place_scale, P), Id = {ids, LATHE_I64, 2, {B, S}};
    struct lathe_tensor Y = F32(y, B, S, H), T = F32(sum, B, S, H), Y8 = F32(y8, B, S, H), T8 = F32(sum8, B, S, H);
    struct lathe_attr attrs[2] = {attr_f(LATHE_ATTR_EPSILON, 1e-12),
                                  {.key = LATHE_ATTR_OFFSETS, .type = LATHE_ATTR_INTS, .ints = offsets, .count = 3}};
    assert_int_equal(run_op(lathe_run_embedding, NULL, attrs, 2, IN(&G, NULL, &W, &Id, &Pl, NULL, &Ty, NULL), 8,
                            OUT(&Y, &T), 2, threads()),
                     LATHE_OK);
    assert_int_equal(run_op(lathe_run_embedding_q8, NULL, attrs, 2,
                            IN(&G, NULL, &W8, &Ws, &Id, &Pl8, &Ps, NULL, &Ty, NULL, NULL), 11, OUT(&Y8, &T8), 2,
                            threads()),
                     LATHE_OK);
    assert_memory_equal(y, y8, B * S * H * sizeof *y);
    assert_memory_equal(sum, sum8, B * S * H * sizeof *y);
    /* bytes without scales, floats with scales, scales of another table */
    const struct lathe_tensor *wrong[][2] = {{&W8, NULL}, {&W, &Ws}, {&W8, &Ps}};
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(run_op(lathe_run_embedding_q8, NULL, attrs, 2, IN(&G, NULL, wrong[i][0], wrong[i][1], &Id),
                                    5, OUT(&Y8), 1, 1),
                             LATHE_OK);
    guarded_free(words, V * H);
    guarded_free(places, P * H);
    guarded_free(types, H);
    guarded_free(word_scale, V);
    guarded_free(place_scale, P);
    guarded_free(g, H);
    guarded_free(y, B * S * H);
    guarded_free(sum, B * S * H);
    guarded_free(y8, B * S * H);
    guarded_free(sum8, B * S * H);
    guarded_free((float *)(void *)words8, V * H / 4);
    guarded_free((float *)(void *)places8, P * H / 4);
}

static void softmax(void **state) {
    (void)state;
    for (int64_t axis = 0; axis < 3; axis++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            enum { A = 3, B = 5, C = 18 };
            int64_t dims[3] = {A, B, C}, inner = axis == 0 ? B * C : axis == 1 ? C : 1, n = dims[axis];
            float *x = guarded_floats(A * B * C), *y = guarded_floats(A * B * C);
            struct lathe_tensor X = F32(x, A, B, C), Y = F32(y, A, B, C);
            struct lathe_attr attr = attr_i(LATHE_ATTR_AXIS, axis);
            run_fn run = logarithm ? lathe_run_log_softmax : lathe_run_softmax;
            assert_int_equal(run_op(run, NULL, &attr, 1, IN(&X), 1, OUT(&Y), 1, threads()), LATHE_OK);
            for (int64_t i = 0; i < A * B * C; i++) {
                int64_t first = i / (n * inner) * n * inner + i % inner;
                double sum = 0;
                for (int64_t t = 0; t < n; t++)
                    sum += exp(x[first + t * inner]);
                double want = logarithm ? x[i] - log(sum) : exp(x[i]) / sum;
                assert_true(fabs(y[i] - want) < 1e-6);
            }
            assert_int_equal(run_op(run, NULL, &attr, 1, IN(&X), 1, OUT(&X), 1, 1), LATHE_OK);
            assert_memory_equal(x, y, A * B * C * sizeof *x);
            guarded_free(x, A * B * C);
            guarded_free(y, A * B * C);
        }
}

static void packed_rows(void **state) {
    (void)state;
    enum { B = 3, S = 6, H = 10 };
    static const int64_t keys[B][S] = {{0, 1, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}};
    int32_t map[4 * B + 2 * B * S];
    struct lathe_tensor K = {(void *)keys, LATHE_I64, 2, {B, S}}, M = {map, LATHE_I32, 1, {4 * B + 2 * B * S}};
    int64_t kept = 0;
    struct lathe_attr attrs[2] = {{.key = LATHE_ATTR_VALUES, .type = LATHE_ATTR_INTS, .ints = &kept, .count = 1},
                                  attr_i(LATHE_ATTR_MASKED_ROW, LATHE_MASKED_ZERO)};
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs, 2, IN(&K), 1, OUT(&M), 1, 1), LATHE_OK);
    /* A masked query that stays and may have no key: its rule needs all rows. */
    struct lathe_attr by_position[3] = {attrs[0], attr_i(LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM),
                                        attr_i(LATHE_ATTR_CAUSAL, 1)};
    for (uint32_t with = 2; with <= 3; with++) {
        static const int32_t rows[2][B] = {{4, 6, 6}, {6, 6, 6}};
        assert_int_equal(run_op(lathe_run_row_map, NULL, by_position, with, IN(&K), 1, OUT(&M), 1, 1), LATHE_OK);
        for (int b = 0; b < B; b++)
            assert_int_equal(lathe_row_map_sequences(map)[b].rows, rows[with - 2][b]);
        assert_int_equal(lathe_row_map_sequences(map)[0].keys, 3);
    }
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs, 2, IN(&K), 1, OUT(&M), 1, 1), LATHE_OK);
    enum { R = 11 }; /* 3 keys and position 0; 6; position 0 */
    float *x = guarded_floats(B * S * H), *p = guarded_floats(R * H), *y = guarded_floats(B * S * H),
          *t = guarded_floats(B * H);
    struct lathe_tensor X = F32(x, B, S, H), P = F32(p, R, H), Y = F32(y, B, S, H), T = F32(t, B, H);
    assert_int_equal(run_op(lathe_run_pack_rows, NULL, NULL, 0, IN(&X, &M), 2, OUT(&P), 1, threads()), LATHE_OK);
    assert_int_equal(run_op(lathe_run_unpack_rows, NULL, NULL, 0, IN(&P, &M), 2, OUT(&Y), 1, threads()), LATHE_OK);
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int h = 0; h < H; h++) {
                int i = (b * S + s) * H + h;
                assert_true(y[i] == (keys[b][s] ? x[i] : 0.0f)); /* also where a masked row is kept */
            }
    assert_int_equal(run_op(lathe_run_take_rows, NULL, NULL, 0, IN(&P, &M), 2, OUT(&T), 1, threads()), LATHE_OK);
    for (int b = 0; b < B; b++)
        assert_memory_equal(t + b * H, x + b * S * H, H * sizeof *t);
    /* a position of each sequence, masked or not, from the end too; it stays, and `mode` shows what stays */
    static const int64_t index[B] = {3, -1, 2}, outside[B] = {0, S, 0};
    struct lathe_tensor I = {(void *)index, LATHE_I64, 1, {B}}, O = {(void *)outside, LATHE_I64, 1, {B}};
    struct lathe_attr mode = attr_i(LATHE_ATTR_MODE, 1);
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs + 1, 1, IN(&K, &I), 2, OUT(&M), 1, 1), LATHE_OK);
    assert_int_equal(run_op(lathe_run_pack_rows, NULL, NULL, 0, IN(&X, &M), 2, OUT(&P), 1, threads()), LATHE_OK);
    assert_int_equal(run_op(lathe_run_take_rows, NULL, NULL, 0, IN(&P, &M, &I), 3, OUT(&T), 1, threads()), LATHE_OK);
    for (int b = 0; b < B; b++)
        assert_memory_equal(t + b * H, x + (b * S + (index[b] + S) % S) * H, H * sizeof *t);
    assert_int_equal(run_op(lathe_run_unpack_rows, NULL, &mode, 1, IN(&P, &M), 2, OUT(&Y), 1, threads()), LATHE_OK);
    for (int i = 0; i < B * S * H; i++) {
        int b = i / H / S, s = i / H % S;
        assert_true(y[i] == (keys[b][s] || s == (index[b] + S) % S ? x[i] : 0.0f));
    }
    assert_int_equal(run_op(lathe_run_take_rows, NULL, NULL, 0, IN(&P, &M, &O), 3, OUT(&T), 1, 1), LATHE_INVALID);
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs + 1, 1, IN(&K, &X), 2, OUT(&M), 1, 1), LATHE_INVALID);
    /* a mask of tokens that stay, beside an index */
    static const uint8_t also[B][S] = {{1, 1, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 0}};
    struct lathe_tensor A = {(void *)also, LATHE_BOOL, 2, {B, S}};
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs + 1, 1, IN(&K, &I, &A), 3, OUT(&M), 1, 1), LATHE_OK);
    static const int32_t with_also[B] = {5, 6, 2};
    for (int b = 0; b < B; b++)
        assert_int_equal(lathe_row_map_sequences(map)[b].rows, with_also[b]);
    assert_int_equal(run_op(lathe_run_row_map, NULL, attrs, 2, IN(&K), 1, OUT(&M), 1, 1), LATHE_OK);
    assert_int_equal(run_op(lathe_run_pack_rows, NULL, NULL, 0, IN(&X, &M), 2, OUT(&P), 1, threads()), LATHE_OK);
    assert_int_equal(run_op(lathe_run_mean_rows, NULL, NULL, 0, IN(&P, &M), 2, OUT(&T), 1, threads()), LATHE_OK);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            double sum = 0, count = 0;
            for (int s = 0; s < S; s++) {
                sum += keys[b][s] ? x[(b * S + s) * H + h] : 0;
                count += keys[b][s] != 0;
            }
            assert_true(fabs(t[b * H + h] - (count > 0 ? sum / count : 0)) < 1e-6);
        }
    guarded_free(x, B * S * H);
    guarded_free(p, R * H);
    guarded_free(y, B * S * H);
    guarded_free(t, B * H);
}

int main(void) {
    test_seed_init();
    lathe_kernels_select(lathe_cpu_bits(), &kernels);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),
        cmocka_unit_test(matmul),
        cmocka_unit_test(gemm),
        cmocka_unit_test(norms),
        cmocka_unit_test(embedding),
        cmocka_unit_test(embedding_q8),
        cmocka_unit_test(embedding_in_panels),
        cmocka_unit_test(matmul_integer),
        cmocka_unit_test(softmax),
        cmocka_unit_test(packed_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
