/* Rotary embedding and the sines that it reads, against plain formulas in double. */
#include "op_run.h"

#include "ops.h"

#include <math.h>

static size_t no_scratch(const struct lathe_op_call *call) {
    (void)call;
    return 0;
}

/* Random sizes: widths around the blocks, heads in columns or apart, tables or a row a token, what does not turn. */
static void turns(void **state) {
    (void)state;
    for (int round = 0; round < 300; round++) {
        int64_t B = 1 + (int64_t)test_below(3), N = 1 + (int64_t)test_below(3), S = 1 + (int64_t)test_below(5),
                W = 1 + (int64_t)test_below(70), D = 2 * W + (round % 3 ? 0 : (int64_t)test_below(9));
        bool columns = test_below(2), neighbours = test_below(2), table = test_below(2);
        int64_t rows = table ? 7 : B * S, positions[15], total = B * N * S * D;
        float *x = guarded_floats((size_t)total), *y = guarded_floats((size_t)total),
              *c = guarded_floats((size_t)(rows * W)), *s = guarded_floats((size_t)(rows * W));
        for (int64_t i = 0; i < B * S; i++)
            positions[i] = (int64_t)test_below(7);
        struct lathe_tensor X = {.data = x, .dtype = LATHE_F32, .rank = 4, .dims = {B, N, S, D}}, Y,
                            C = {.data = c, .dtype = LATHE_F32, .rank = 2, .dims = {rows, W}},
                            P = {.data = positions, .dtype = LATHE_I64, .rank = 2, .dims = {B, S}};
        if (columns)
            X = (struct lathe_tensor){.data = x, .dtype = LATHE_F32, .rank = 3, .dims = {B, S, N * D}};
        if (!table)
            C = (struct lathe_tensor){.data = c, .dtype = LATHE_F32, .rank = 3, .dims = {B, S, W}};
        struct lathe_tensor Sine = C;
        Sine.data = s;
        Y = X;
        Y.data = y;
        const struct lathe_attr attrs[3] = {attr_i(LATHE_ATTR_INTERLEAVED, neighbours),
                                            attr_i(LATHE_ATTR_ROTARY_DIM, 2 * W), attr_i(LATHE_ATTR_HEADS, N)};
        const struct lathe_tensor *in[4] = {&X, &C, &Sine, &P};
        run_op(lathe_run_rotary, no_scratch, NULL, attrs, 3, in, table ? 4 : 3, &Y, 1 + (unsigned)test_below(3));
        for (int64_t i = 0; i < total; i++) {
            int64_t d = i % D, head = i / D, token = columns ? head / N : head / (N * S) * S + head % S,
                    row = table ? positions[token] : token, pair = neighbours ? d / 2 : d % W,
                    other = neighbours ? d ^ 1 : (d + W) % (2 * W);
            double want = x[i];
            if (d < 2 * W) {
                double turned = x[head * D + other], sine = s[row * W + pair];
                want = x[i] * (double)c[row * W + pair] +
                       (neighbours ? d % 2
                        : d >= W   ? 1
                                   : 0) *
                           sine * turned -
                       (neighbours ? d % 2 == 0 : d < W) * sine * turned;
            }
            if (!(fabs(y[i] - want) <= 1e-6))
                fail_msg("round %d: element %lld is %g, expected %g", round, (long long)i, (double)y[i], want);
        }
        guarded_free(x, (size_t)total);
        guarded_free(y, (size_t)total);
        guarded_free(c, (size_t)(rows * W));
        guarded_free(s, (size_t)(rows * W));
    }
}

/* Of any size, alone and beside others: the same bits, within half a unit in the last place of f32 or a little more. */
static void sines(void **state) {
    (void)state;
    enum { N = 4001 };
    float *x = guarded_floats(N), *y = guarded_floats(N), one;
    for (int round = 0; round < 2; round++) {
        enum lathe_status (*run)(const struct lathe_op_call *) = round ? lathe_run_cos : lathe_run_sin;
        for (int i = 0; i < N; i++)
            x[i] = test_float() * powf(10, (float)(i % 50) - 40) * 3;
        x[0] = NAN;
        x[1] = INFINITY;
        x[2] = -0.0f;
        x[3] = 99999.99f;
        x[4] = -1e5f;
        x[5] = 3e38f;
        struct lathe_tensor X = {.data = x, .dtype = LATHE_F32, .rank = 1, .dims = {N}}, Y = X;
        Y.data = y;
        const struct lathe_tensor *in[1] = {&X};
        run_op(run, no_scratch, NULL, NULL, 0, in, 1, &Y, 2);
        for (int i = 0; i < N; i++) {
            double want = round ? cos((double)x[i]) : sin((double)x[i]);
            if (isnan(want) ? !isnan(y[i]) : !(fabs(y[i] - want) <= 6.1e-8 * fabs(want)))
                fail_msg("%s(%.9g) is %.9g, expected %.9g", round ? "cos" : "sin", (double)x[i], (double)y[i], want);
            struct lathe_tensor a = {.data = &x[i], .dtype = LATHE_F32, .rank = 1, .dims = {1}}, b = a;
            b.data = &one;
            const struct lathe_tensor *alone[1] = {&a};
            run_op(run, no_scratch, NULL, NULL, 0, alone, 1, &b, 1);
            assert_memory_equal(&one, &y[i], sizeof one);
        }
        assert_true(round || signbit(y[2]));
    }
    guarded_free(x, N);
    guarded_free(y, N);
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns), cmocka_unit_test(sines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
