/* Weights that the source has in 8 bits reach linear_q8 with the same integers and scales, in every form that they come
 * in; what cannot is rounded anew, and the report says why. */
#include "calibration.h"
#include "graph_run.h"
#include "pass.h"
#include "report.h"
#include "text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 32, N = 20, TOKENS = 24 };

struct form {
    const char *name;
    const char *dtype;
    int low, high; /* of the integers */
    int zero;
    bool transposed, per_tensor, blocks;
    enum lathe_int8_scheme scheme;
    const char *refused; /* what the report says; NULL: reused */
};

static const struct form forms[] = {
    {"i8 a column", "i8", -127, 127, 0, false, false, false, LATHE_INT8_U8S8, NULL},
    {"i8 a row of a transposed one", "i8", -127, 127, 0, true, false, false, LATHE_INT8_U8S8, NULL},
    {"i8 of a tensor", "i8", -127, 127, 0, false, true, false, LATHE_INT8_U8S8, NULL},
    {"-128", "i8", -128, 127, 0, false, false, false, LATHE_INT8_U8S8, NULL},
    {"-128 with 7 bits beside it", "i8", -128, 127, 0, false, false, false, LATHE_INT8_U7S8, NULL},
    {"u8 about 128", "u8", 0, 255, 128, true, true, false, LATHE_INT8_U8S8, NULL},
    {"a zero point that leaves s8", "i8", -100, 100, 5, false, false, false, LATHE_INT8_U8S8, NULL},
    {"one that does not", "u8", 0, 255, 117, false, true, false, LATHE_INT8_U8S8,
     "are -117 to 138, beyond -128 to 127"},
    {"63 in pairs", "i8", -63, 64, 0, false, false, false, LATHE_INT8_U7S7_PAIRS, NULL},
    {"127 in pairs", "i8", -127, 127, 0, false, false, false, LATHE_INT8_U7S7_PAIRS, "beyond -64 to 64"},
    {"blocks along K", "i8", -8, 7, 0, true, false, true, LATHE_INT8_U8S8, "differ along a column (blocks of 16)"},
};

/* Integer i of a form; both ends of the range occur. */
static int number(const struct form *f, int i) {
    return i == 0 ? f->low : i == 1 ? f->high : f->low + (i * 7919) % (f->high - f->low + 1);
}

static double scale_of(const struct form *f, int c, int k) {
    return f->per_tensor ? 0.01 : 0.01 + 0.001 * c + (f->blocks && k >= 16 ? 0.015625 : 0);
}

static int at(const struct form *f, int k, int c) {
    return f->transposed ? c * K + k : k * N + c;
}

static struct lathe_graph *make_graph(const struct form *f) {
    struct lathe_text t = {0};
    struct lathe_graph *g = NULL;
    static struct lathe_diag diag;
    int rows = f->transposed ? N : K, cols = f->transposed ? K : N, cells = f->per_tensor ? 1 : N;
    lathe_text_append(&t, "input %%x : f32[batch, %d]\nconst %%q : %s[%d, %d] = {", K, f->dtype, rows, cols);
    for (int i = 0; i < K * N; i++)
        lathe_text_append(&t, "%s%d", i ? ", " : "", number(f, i));
    lathe_text_append(&t, f->blocks ? "}\nconst %%s : f32[%d, 2] = {" : "}\nconst %%s : f32[%d] = {", cells);
    for (int i = 0; i < cells * (f->blocks ? 2 : 1); i++)
        lathe_text_append(&t, "%s%.9g", i ? ", " : "", f->blocks ? scale_of(f, i / 2, i % 2 * 16) : scale_of(f, i, 0));
    lathe_text_append(&t, f->blocks ? "}\nconst %%z : %s[%d, 2] = {" : "}\nconst %%z : %s[%d] = {", f->dtype, cells);
    for (int i = 0; i < cells * (f->blocks ? 2 : 1); i++)
        lathe_text_append(&t, "%s%d", i ? ", " : "", f->zero);
    lathe_text_append(&t, "}\n%%w : f32[%d, %d] = dequantize_linear(%%q, %%s, %%z) {axis=%d%s}\n", rows, cols,
                      f->blocks       ? 1
                      : f->transposed ? 0
                                      : 1,
                      f->blocks ? ", block_size=16" : "");
    lathe_text_append(&t, "%%y : f32[batch, %d] = linear(%%x, %%w) {trans_b=%d} \"layer\"\noutput %%y as \"y\"\n", N,
                      f->transposed);
    if (t.failed || lathe_graph_parse(t.data, &g, &diag) != LATHE_OK)
        fail_msg("%s\n%s", diag.text, t.data);
    lathe_text_free(&t);
    return g;
}

static float inputs[TOKENS * K];

static void answer(struct lathe_graph *g, float *y) {
    static struct lathe_diag diag;
    const int64_t symbols[32] = {TOKENS};
    struct graph_run run;
    if (graph_run_begin(&run, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    memcpy(run.tensors[lathe_value_by_name(g, "x")].data, inputs, sizeof inputs);
    if (graph_run_nodes(&run, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    memcpy(y, run.tensors[g->outputs[0]].data, TOKENS * N * sizeof *y);
    graph_run_end(&run);
}

static void quantize(struct lathe_graph *g, enum lathe_int8_scheme scheme, struct lathe_report *report) {
    static struct lathe_diag diag;
    float most[K];
    for (int i = 0; i < K; i++)
        most[i] = 1;
    struct lathe_calibration_input in = {.value = lathe_value_by_name(g, "x"),
                                         .k = K,
                                         .seen = TOKENS,
                                         .rows = TOKENS,
                                         .absmax = most,
                                         .low = -1,
                                         .high = 1,
                                         .sample = inputs,
                                         .stride = 1,
                                         .finite = true};
    struct lathe_calibration seen = {.at = &in, .count = 1};
    struct lathe_quantize_log log = {0};
    struct lathe_quantize_options q = {.calibration = &seen, .jobs = 1, .log = &log};
    struct lathe_pass_options options = {.quantize = &q};
    struct lathe_target target = {.int8_scheme = scheme};
    struct lathe_pass_ctx ctx = {.graph = g,
                                 .target = &target,
                                 .options = &options,
                                 .report = report,
                                 .scratch = lathe_arena_new(),
                                 .diag = &diag};
    static const char *const names[] = {"quantize_linear", "smooth_activations", "drop_dead_nodes"};
    for (int i = 0; i < 3; i++)
        if (lathe_pass_by_name(names[i])->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
            fail_msg("%s", diag.text);
    lathe_arena_free(&ctx.scratch);
}

static void expect_text(const struct lathe_report *r, const char *needle) {
    struct lathe_text t = {0};
    lathe_report_json(r, true, &t);
    if (t.failed || !strstr(t.data, needle))
        fail_msg("no '%s' in %s", needle, t.data);
    lathe_text_free(&t);
}

/* The numbers of the source, bit for bit; u8 shifted, zero points taken off. */
static void check_reused(const struct form *f, const struct lathe_graph *g, const struct lathe_node *node) {
    const int8_t *w = g->values[node->in[1]].data;
    const float *scale = g->values[node->in[2]].data;
    const int32_t *sum = g->values[node->in[3]].data;
    assert_true(node->n_in < 7 || node->in[6] == LATHE_NONE);
    assert_true(node->n_in < 5 || node->in[4] == LATHE_NONE);
    for (int c = 0; c < N; c++) {
        int32_t have = 0;
        char text[32];
        snprintf(text, sizeof text, "%.9g", scale_of(f, c, 0));
        assert_true(scale[c] == strtof(text, NULL));
        for (int k = 0; k < K; k++) {
            assert_int_equal(w[c * K + k], number(f, at(f, k, c)) - f->zero);
            have += w[c * K + k];
        }
        assert_int_equal(sum[c], have);
    }
}

static void test_form(void **state) {
    const struct form *f = *state;
    static float before[TOKENS * N], after[TOKENS * N];
    struct lathe_graph *g = make_graph(f);
    struct lathe_report *report = lathe_report_new();
    uint32_t seed = 17;
    for (int i = 0; i < TOKENS * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        inputs[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
    answer(g, before);
    quantize(g, f->scheme, report);
    answer(g, after);
    const struct lathe_node *node = &g->nodes[g->values[g->outputs[0]].producer];
    assert_int_equal(node->op, LATHE_OP_LINEAR_Q8);
    if (f->refused) {
        expect_text(report, "rounded anew");
        expect_text(report, f->refused);
    } else {
        expect_text(report, "weights reused");
        check_reused(f, g, node);
    }
    double error = 0, size = 0;
    for (int i = 0; i < TOKENS * N; i++) {
        error += ((double)after[i] - (double)before[i]) * ((double)after[i] - (double)before[i]);
        size += (double)before[i] * (double)before[i];
    }
    if (!(sqrt(error / size) < (f->refused ? 0.03 : 0.015)))
        fail_msg("%s: error %g", f->name, sqrt(error / size));
    lathe_report_free(&report);
    lathe_graph_free(&g);
}

int main(void) {
    enum { COUNT = sizeof forms / sizeof *forms };
    static struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){forms[i].name, test_form, NULL, NULL, (void *)(uintptr_t)&forms[i]};
    return _cmocka_run_group_tests("reuse_weights", tests, COUNT, NULL, NULL);
}
