/* quantize_linear and smooth_activations: a graph before and after on the plain C operators, the numbers in the 8-bit
 * operands, what is left in f32, and that nothing depends on threads. */
#include "calibration.h"
#include "graph_run.h"
#include "kernel_q8.h"
#include "pass.h"
#include "report.h"
#include "text.h"

#include "ops_enums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 32, N = 48, TOKENS = 40 };

static uint32_t state;
static float uniform(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}

static void add_constant(struct lathe_text *t, const char *name, int rows, int cols, float size) {
    lathe_text_append(t, cols ? "const %%%s : f32[%d, %d] = {" : "const %%%s : f32[%d] = {", name, rows, cols);
    for (int i = 0; i < rows * (cols ? cols : 1); i++)
        lathe_text_append(t, "%s%.6f", i ? ", " : "", (double)(uniform() * size));
    lathe_text_append(t, "}\n");
}

/* norm -> product with `act` -> product, the norm read by nothing else unless `residual`. */
static struct lathe_graph *make_graph(const char *act, bool residual) {
    struct lathe_text t = {0};
    struct lathe_graph *g = NULL;
    static struct lathe_diag diag;
    add_constant(&t, "gamma", K, 0, 3);
    add_constant(&t, "beta", K, 0, 1);
    add_constant(&t, "w1", K, N, 0.2f);
    add_constant(&t, "b1", N, 0, 0.5f);
    add_constant(&t, "w2", K, N, 0.2f); /* [K, N]: the second product has it transposed */
    add_constant(&t, "w3", K, 3, 0.2f);
    lathe_text_append(&t, "input %%x : f32[batch, seq, %d]\n", K);
    lathe_text_append(&t, "%%n : f32[batch, seq, %d] = layer_norm(%%x, %%gamma, %%beta) {axis=2, epsilon=1e-5}\n", K);
    lathe_text_append(&t, "%%h : f32[batch, seq, %d] = linear(%%n, %%w1, %%b1) {activation=%s} \"first\"\n", N, act);
    lathe_text_append(&t, "%%y : f32[batch, seq, %d] = linear(%%h, %%w2, _%s) {trans_b=1} \"second\"\n", K,
                      residual ? ", %n" : "");
    lathe_text_append(&t, "%%z : f32[batch, seq, 3] = linear(%%y, %%w3) \"head\"\n");
    lathe_text_append(&t, "output %%y as \"y\"\noutput %%z as \"z\"\n");
    assert_false(t.failed);
    if (lathe_graph_parse(t.data, &g, &diag) != LATHE_OK)
        fail_msg("%s\n%s", diag.text, t.data);
    lathe_text_free(&t);
    return g;
}

static void run_graph(struct graph_run *run, struct lathe_graph *g) {
    static struct lathe_diag diag;
    const int64_t symbols[32] = {1, TOKENS};
    if (graph_run_begin(run, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    float *x = run->tensors[lathe_value_by_name(g, "x")].data;
    state = 77;
    for (int i = 0; i < TOKENS * K; i++)
        x[i] = uniform() * 2;
    if (graph_run_nodes(run, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
}

struct seen {
    struct lathe_calibration calibration;
    struct lathe_calibration_input at[8];
};

/* What the run before gave is the calibration. */
static void calibrate(struct seen *seen, struct lathe_graph *g, const struct graph_run *run) {
    seen->calibration = (struct lathe_calibration){.at = seen->at};
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op != LATHE_OP_LINEAR)
            continue;
        lathe_value_id v = g->nodes[n].in[0];
        struct lathe_calibration_input *in = &seen->at[seen->calibration.count++];
        *in = (struct lathe_calibration_input){.value = v, .rows = TOKENS, .seen = TOKENS, .stride = 1, .finite = true};
        assert_true(lathe_value_dim_is(g, v, -1, &in->k));
        in->sample = malloc((size_t)(TOKENS * in->k) * sizeof *in->sample);
        in->absmax = calloc((size_t)in->k, sizeof *in->absmax);
        memcpy(in->sample, run->tensors[v].data, (size_t)(TOKENS * in->k) * sizeof *in->sample);
        for (int64_t i = 0; i < TOKENS * in->k; i++) {
            in->absmax[i % in->k] = fmaxf(in->absmax[i % in->k], fabsf(in->sample[i]));
            in->low = fminf(in->low, in->sample[i]);
            in->high = fmaxf(in->high, in->sample[i]);
        }
    }
}

/* Runs the graph as it is and copies y. A run ends before the graph changes. */
static void answer(struct lathe_graph *g, float *y, struct seen *seen) {
    struct graph_run run;
    run_graph(&run, g);
    memcpy(y, run.tensors[lathe_value_by_name(g, "y")].data, TOKENS * K * sizeof *y);
    if (seen)
        calibrate(seen, g, &run);
    graph_run_end(&run);
}

static void forget(struct seen *seen) {
    for (uint32_t i = 0; i < seen->calibration.count; i++) {
        free(seen->at[i].sample);
        free(seen->at[i].absmax);
    }
}

struct setup {
    int jobs;
    double budget;
    enum lathe_int8_scheme scheme;
    bool smooth;
};

static void quantize(struct lathe_graph *g, const struct seen *seen, const struct setup *s, struct lathe_report *r) {
    static struct lathe_diag diag;
    struct lathe_quantize_log log = {0};
    struct lathe_quantize_options q = {
        .calibration = &seen->calibration, .budget = s->budget, .jobs = s->jobs, .log = &log};
    struct lathe_pass_options options = {.quantize = &q};
    struct lathe_target target = {.int8_scheme = s->scheme};
    struct lathe_pass_ctx ctx = {
        .graph = g, .target = &target, .options = &options, .report = r, .scratch = lathe_arena_new(), .diag = &diag};
    static const char *const names[] = {"quantize_linear", "smooth_activations"};
    for (int i = 0; i < (s->smooth ? 2 : 1); i++)
        if (lathe_pass_by_name(names[i])->run(&ctx) != LATHE_OK)
            fail_msg("%s", diag.text);
    if (lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    lathe_arena_free(&ctx.scratch);
}

static lathe_node_id node_named(const struct lathe_graph *g, const char *name) {
    LATHE_FOR_NODES(g, n) {
        if (!strcmp(g->nodes[n].name, name))
            return n;
    }
    fail_msg("no node %s", name);
    return LATHE_NONE;
}

static double cosine(const float *a, const float *b, size_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

/* The sums must be those of the weights, which must stay in their range. */
static void check_operands(const struct lathe_graph *g, lathe_node_id n, int limit) {
    const struct lathe_node *node = &g->nodes[n];
    const int8_t *w = g->values[node->in[1]].data;
    const int32_t *sum = g->values[node->in[3]].data;
    const uint8_t *order = node->n_in > 8 ? g->values[node->in[8]].data : NULL;
    int64_t rows, k;
    assert_int_equal(node->op, LATHE_OP_LINEAR_Q8);
    assert_true(lathe_value_dim_is(g, node->in[1], 0, &rows) && lathe_value_dim_is(g, node->in[1], 1, &k));
    for (int64_t c = 0; c < rows; c++) {
        int32_t have = 0;
        for (int64_t i = 0; i < k; i++) {
            bool pair = order && lathe_fip_is_pair((size_t)i, (size_t)k);
            int most = pair ? LATHE_FIP_MOST_WEIGHT : limit;
            assert_in_range(w[c * k + i] + most, 0, 2 * most);
            have += order && !pair ? 2 * w[c * k + i] : w[c * k + i];
        }
        assert_int_equal(have, sum[c]);
        if (order)
            assert_int_equal(lathe_fip_column(w + c * k, (size_t)k), ((const int32_t *)g->values[node->in[9]].data)[c]);
    }
    for (int64_t i = 0; order && i < k; i++) { /* each once */
        int times = 0;
        for (int64_t other = i / 64 * 64; other < k && other < i / 64 * 64 + 64; other++)
            times += order[other] == i % 64;
        assert_int_equal(times, 1);
    }
}

/* `sum16` may say no more than the weights keep, and has to say what the scheme is for. */
static void check_sums(const struct lathe_graph *g, lathe_node_id n, enum lathe_int8_scheme scheme) {
    static const int64_t wanted[] = {
        [LATHE_INT8_U7S7_PAIRS] = 2, [LATHE_INT8_U8S7] = 1, [LATHE_INT8_SUM1] = 1, [LATHE_INT8_SUM2] = 2,
        [LATHE_INT8_SUM4] = 2,       [LATHE_INT8_U7S8] = 1, [LATHE_INT8_U8S8] = 0};
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t said = lathe_attr_int(&attrs, LATHE_ATTR_SUM16, 0), k, rows;
    int limit = lathe_attr_int(&attrs, LATHE_ATTR_BITS, 8) == 8 ? 128 : 258;
    const int8_t *w = g->values[g->nodes[n].in[1]].data;
    assert_true(lathe_value_dim_is(g, g->nodes[n].in[1], 0, &rows) && lathe_value_dim_is(g, g->nodes[n].in[1], 1, &k));
    if (scheme == LATHE_INT8_U8S8 || scheme == LATHE_INT8_FIP ? said != 0 : said < wanted[scheme])
        fail_msg("scheme %d: sum16 is %d", (int)scheme, (int)said);
    for (int64_t c = 0; said && c < rows; c++)
        for (int64_t first = 0; first < k; first += 4 * said)
            for (int64_t half = 0; half < 2; half++) {
                int up = 0, down = 0;
                for (int64_t i = first; i < k && i < first + 4 * said; i++)
                    if (i % 4 / 2 == half) {
                        up += w[c * k + i] > 0 ? w[c * k + i] : 0;
                        down -= w[c * k + i] < 0 ? w[c * k + i] : 0;
                    }
                assert_true(up <= limit && down <= limit);
            }
}

static bool has_x_scale(const struct lathe_graph *g, const char *name) {
    const struct lathe_node *n = &g->nodes[node_named(g, name)];
    return n->n_in > 6 && n->in[6] != LATHE_NONE;
}

struct accuracy {
    const char *act;
    bool residual;
    enum lathe_int8_scheme scheme;
    double least;
    bool first_scaled, second_scaled; /* after smooth_activations */
};

/* ReLU lets the scales of the second product through, GELU does not; a residual keeps those of the first in place. */
static const struct accuracy accuracies[] = {
    {"1", false, LATHE_INT8_U8S8, 0.9998, false, false},   {"2", false, LATHE_INT8_U8S8, 0.9998, false, true},
    {"1", true, LATHE_INT8_U8S8, 0.9998, true, false},     {"2", false, LATHE_INT8_U7S8, 0.9995, false, true},
    {"2", true, LATHE_INT8_U7S7_PAIRS, 0.999, true, true}, {"2", false, LATHE_INT8_U8S7, 0.9995, false, true},
    {"1", false, LATHE_INT8_SUM1, 0.9998, false, false},   {"2", true, LATHE_INT8_SUM2, 0.9995, true, true},
    {"2", false, LATHE_INT8_SUM4, 0.9995, false, true},    {"2", true, LATHE_INT8_FIP, 0.9993, true, true},
};

static void test_accuracy(void **unused) {
    for (size_t i = 0; i < sizeof accuracies / sizeof *accuracies; i++) {
        const struct accuracy *c = &accuracies[i];
        state = 5 + (uint32_t)i;
        struct lathe_graph *g = make_graph(c->act, c->residual);
        static float before[TOKENS * K], after[TOKENS * K];
        struct seen seen;
        answer(g, before, &seen);
        quantize(g, &seen, &(struct setup){.scheme = c->scheme, .smooth = true}, NULL);
        answer(g, after, NULL);
        double found = cosine(before, after, TOKENS * K);
        if (found < c->least)
            fail_msg("case %zu: cosine %.6f, at least %g", i, found, c->least);
        int limit = c->scheme == LATHE_INT8_U7S7_PAIRS ? 63 : c->scheme == LATHE_INT8_U8S7 ? 64 : 127;
        struct lathe_attrs attrs = lathe_node_attrs(g, node_named(g, "first"));
        bool wide = c->scheme != LATHE_INT8_U7S8 && c->scheme != LATHE_INT8_U7S7_PAIRS;
        assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_BITS, 0), wide ? 8 : 7);
        assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_MAX, 127), c->scheme == LATHE_INT8_U8S7 ? 64 : 127);
        check_sums(g, node_named(g, "first"), c->scheme);
        check_sums(g, node_named(g, "second"), c->scheme);
        check_operands(g, node_named(g, "first"), limit);
        assert_int_equal(g->nodes[node_named(g, "first")].n_in > 8, c->scheme == LATHE_INT8_FIP);
        check_operands(g, node_named(g, "second"), limit);
        if (has_x_scale(g, "first") != c->first_scaled || has_x_scale(g, "second") != c->second_scaled)
            fail_msg("case %zu: scales at first %d, second %d", i, has_x_scale(g, "first"), has_x_scale(g, "second"));
        forget(&seen);
        lathe_graph_free(&g);
    }
}

/* Weights of which few are large let 4 groups into 16 bits; large ones of one sign in each sum lose too much
 * by it, and the sums are shorter. */
static void test_long_sums_where_they_cost_little(void **unused) {
    for (int peaked = 0; peaked < 2; peaked++) {
        static float y[TOKENS * K];
        state = 31;
        struct lathe_graph *g = make_graph("2", false);
        float *w = (float *)(uintptr_t)g->values[g->nodes[node_named(g, "first")].in[1]].data;
        for (int i = 0; i < K * N; i++)
            w[i] = peaked ? w[i] * w[i] * w[i] * 25 : i / N / 2 % 2 ? fabsf(w[i]) : -fabsf(w[i]);
        struct seen seen;
        answer(g, y, &seen);
        quantize(g, &seen, &(struct setup){.scheme = LATHE_INT8_SUM4}, NULL);
        struct lathe_attrs attrs = lathe_node_attrs(g, node_named(g, "first"));
        assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_SUM16, 0), peaked ? 4 : 2);
        check_sums(g, node_named(g, "first"), LATHE_INT8_SUM4);
        forget(&seen);
        lathe_graph_free(&g);
    }
}

/* Moving scales changes roundings of f32 alone. */
static void test_smoothing_is_exact(void **unused) {
    static float before[TOKENS * K], answers[2][TOKENS * K];
    for (int smooth = 0; smooth < 2; smooth++) {
        state = 9;
        struct lathe_graph *g = make_graph("1", false);
        struct seen seen;
        answer(g, before, &seen);
        quantize(g, &seen, &(struct setup){.smooth = smooth}, NULL);
        answer(g, answers[smooth], NULL);
        forget(&seen);
        lathe_graph_free(&g);
    }
    assert_true(cosine(answers[0], answers[1], TOKENS * K) > 0.99999);
}

static void test_threads_change_nothing(void **unused) {
    int8_t *weights[2];
    for (int i = 0; i < 2; i++) {
        state = 11;
        struct lathe_graph *g = make_graph("2", false);
        static float before[TOKENS * K];
        struct seen seen;
        answer(g, before, &seen);
        quantize(g, &seen, &(struct setup){.jobs = i ? 3 : 1}, NULL);
        weights[i] = malloc(K * N);
        memcpy(weights[i], g->values[g->nodes[node_named(g, "first")].in[1]].data, K * N);
        forget(&seen);
        lathe_graph_free(&g);
    }
    assert_memory_equal(weights[0], weights[1], K * N);
    free(weights[0]);
    free(weights[1]);
}

static void expect_row(const struct lathe_report *r, const char *needle, bool wanted) {
    struct lathe_text t = {0};
    lathe_report_json(r, true, &t);
    assert_false(t.failed);
    if ((strstr(t.data, needle) != NULL) != wanted)
        fail_msg("'%s' is %s in %s", needle, wanted ? "not" : "still", t.data);
    lathe_text_free(&t);
}

/* Small layers, layers over the budget and those whose input is not finite stay in f32, each with its reason. */
static void test_what_stays(void **unused) {
    for (int i = 0; i < 3; i++) {
        state = 21;
        struct lathe_graph *g = make_graph("2", false);
        struct lathe_report *r = lathe_report_new();
        static float before[TOKENS * K];
        struct seen seen;
        answer(g, before, &seen);
        seen.at[1].finite = i != 1;
        seen.at[0].high = i == 2 ? 1e36f : seen.at[0].high;
        quantize(g, &seen, &(struct setup){.budget = i == 0 ? 1e-6 : 0}, r);
        assert_int_equal(g->nodes[node_named(g, "head")].op, LATHE_OP_LINEAR);
        expect_row(r, "small: 32 x 3", true);
        expect_row(r, "over the budget", i == 0);
        expect_row(r, "an infinity or NaN", i == 1);
        expect_row(r, "constants of a mask", i == 2);
        enum lathe_op first = g->nodes[node_named(g, "first")].op, second = g->nodes[node_named(g, "second")].op;
        assert_int_equal(first, i == 1 ? LATHE_OP_LINEAR_Q8 : LATHE_OP_LINEAR);
        assert_int_equal(second, i == 2 ? LATHE_OP_LINEAR_Q8 : LATHE_OP_LINEAR);
        forget(&seen);
        lathe_report_free(&r);
        lathe_graph_free(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),           cmocka_unit_test(test_long_sums_where_they_cost_little),
        cmocka_unit_test(test_smoothing_is_exact), cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_what_stays),
    };
    return cmocka_run_group_tests_name("quantize_linear", tests, NULL, NULL);
}
