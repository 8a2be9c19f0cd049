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
    bool transposed, per_tensor;
    int block; /* of K, 0: none; zero points then differ by up to 2 unless they are the middle */
    enum lathe_int8_scheme scheme;
    const char *refused; /* what the report says; NULL: reused */
    bool odd_column;     /* one column of x is far larger than the others */
};

static const struct form forms[] = {
    {"i8 a column", "i8", -127, 127, 0, false, false, 0, LATHE_INT8_U8S8, NULL, false},
    {"i8 a row of a transposed one", "i8", -127, 127, 0, true, false, 0, LATHE_INT8_U8S8, NULL, false},
    {"i8 of a tensor", "i8", -127, 127, 0, false, true, 0, LATHE_INT8_U8S8, NULL, false},
    {"-128", "i8", -128, 127, 0, false, false, 0, LATHE_INT8_U8S8, NULL, false},
    {"-128 with 7 bits beside it", "i8", -128, 127, 0, false, false, 0, LATHE_INT8_U7S8, NULL, false},
    {"u8 about 128", "u8", 0, 255, 128, true, true, 0, LATHE_INT8_U8S8, NULL, false},
    {"a zero point of s8", "i8", -100, 100, 5, false, false, 0, LATHE_INT8_U8S8, NULL, false},
    {"a zero point that leaves s8 and stays beside", "u8", 0, 255, 117, false, true, 0, LATHE_INT8_U8S8, NULL, false},
    {"63 in pairs", "i8", -63, 64, 0, false, false, 0, LATHE_INT8_U7S7_PAIRS, NULL, false},
    {"127 in pairs", "i8", -127, 127, 0, false, false, 0, LATHE_INT8_U7S7_PAIRS, "beyond -64 to 64", false},
    {"4 bits a column", "i8", -8, 7, 0, true, false, 0, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, blocks", "i8", -8, 7, 0, true, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, blocks of a matrix by rows", "i8", -8, 7, 0, false, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"4 bits from 0, blocks", "u8", 0, 15, 8, true, false, 8, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, zero points", "u8", 0, 15, 5, true, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, zero points, a short last block", "u8", 0, 15, 5, false, false, 24, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, one block", "u8", 0, 15, 8, true, false, 32, LATHE_INT8_U8S8, NULL, false},
    {"4 bits, blocks, without VNNI", "u8", 0, 15, 5, true, false, 16, LATHE_INT8_U8S7, NULL, false},
    {"4 bits, blocks, 7 bits beside", "u8", 0, 15, 5, true, false, 16, LATHE_INT8_U7S8, NULL, false},
    {"4 bits, blocks, in pairs", "i8", -8, 7, 1, true, false, 16, LATHE_INT8_U7S7_PAIRS, NULL, false},
    {"6 bits, blocks, without VNNI", "i8", -32, 31, 3, true, false, 16, LATHE_INT8_U8S7, NULL, false},
    {"8 bits, blocks", "i8", -127, 127, 0, true, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"8 bits, blocks, without VNNI", "i8", -127, 127, 0, true, false, 16, LATHE_INT8_U8S7, NULL, false},
    {"8 bits about 128, blocks", "u8", 0, 255, 128, false, false, 8, LATHE_INT8_U8S8, NULL, false},
    {"8 bits, zero points, blocks", "u8", 0, 255, 117, true, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"8 bits, zero points at the end, blocks", "u8", 0, 255, 253, true, false, 16, LATHE_INT8_U8S8, NULL, false},
    {"8 bits, zero points, blocks, signed", "i8", -128, 127, 120, false, false, 24, LATHE_INT8_U8S8, NULL, false},
    {"8 bits, blocks, in pairs", "i8", -127, 127, 0, true, false, 16, LATHE_INT8_U7S7_PAIRS, "up to 127, beyond 64",
     false},
    {"blocks of 12", "i8", -8, 7, 0, true, false, 12, LATHE_INT8_U8S8, "blocks of 12 are no multiple of 8", false},
    {"4 bits, blocks, a large column", "i8", -8, 7, 0, true, false, 16, LATHE_INT8_U8S8, NULL, true},
    {"8 bits, zero points, a large column", "u8", 0, 255, 117, true, false, 8, LATHE_INT8_U8S8, NULL, true},
};

/* Integer i of a form; both ends of the range occur. */
static int number(const struct form *f, int i) {
    return i == 0 ? f->low : i == 1 ? f->high : f->low + (i * 7919) % (f->high - f->low + 1);
}

static int blocks_of(const struct form *f) {
    return f->block ? (K + f->block - 1) / f->block : 1;
}

/* As the graph has it: what nine digits say. */
static float scale_of(const struct form *f, int c, int k) {
    char text[32];
    double scale = f->per_tensor ? 0.01 : 0.01 + 0.001 * c + (f->block ? 0.015625 * (k / f->block) : 0);
    snprintf(text, sizeof text, "%.9g", scale);
    return strtof(text, NULL);
}

static int zero_of(const struct form *f, int c, int k) {
    bool middle = f->zero == (f->dtype[0] == 'i' ? 0 : f->high == 15 ? 8 : 128);
    return f->zero + (f->block && !middle ? (c + k / f->block) % 3 : 0);
}

static int at(const struct form *f, int k, int c) {
    return f->transposed ? c * K + k : k * N + c;
}

static struct lathe_graph *make_graph(const struct form *f) {
    struct lathe_text t = {0};
    struct lathe_graph *g = NULL;
    static struct lathe_diag diag;
    int rows = f->transposed ? N : K, cols = f->transposed ? K : N, cells = f->per_tensor ? 1 : N,
        blocks = blocks_of(f);
    char dims[32];
    lathe_text_append(&t, "input %%x : f32[batch, %d]\nconst %%q : %s[%d, %d] = {", K, f->dtype, rows, cols);
    for (int i = 0; i < K * N; i++)
        lathe_text_append(&t, "%s%d", i ? ", " : "", number(f, i));
    snprintf(dims, sizeof dims, f->block ? "[%d, %d]" : "[%d]",
             f->transposed ? cells
             : f->block    ? blocks
                           : cells,
             f->transposed ? blocks : cells);
    for (int what = 0; what < 2; what++) {
        lathe_text_append(&t, "}\nconst %%%s : %s%s = {", what ? "z" : "s", what ? f->dtype : "f32", dims);
        for (int i = 0; i < cells * blocks; i++) {
            int c = f->transposed ? i / blocks : i % cells, k = (f->transposed ? i % blocks : i / cells) * f->block;
            if (what)
                lathe_text_append(&t, "%s%d", i ? ", " : "", zero_of(f, c, k));
            else
                lathe_text_append(&t, "%s%.9g", i ? ", " : "", (double)scale_of(f, c, k));
        }
    }
    if (f->block)
        snprintf(dims, sizeof dims, ", block_size=%d", f->block);
    else
        dims[0] = 0;
    lathe_text_append(&t, "}\n%%w : f32[%d, %d] = dequantize_linear(%%q, %%s, %%z) {axis=%d%s}\n", rows, cols,
                      f->transposed == (f->block != 0), dims);
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
        most[i] = 30;
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

static const void *operand(const struct lathe_graph *g, const struct lathe_node *node, uint32_t i) {
    return i < node->n_in && node->in[i] != LATHE_NONE ? g->values[node->in[i]].data : NULL;
}

/* The numbers of the source, bit for bit; u8 shifted, zero points taken off. */
static void check_columns(const struct form *f, const struct lathe_graph *g, const struct lathe_node *node) {
    const int8_t *w = operand(g, node, 1);
    const float *scale = operand(g, node, 2);
    const int32_t *sum = operand(g, node, 3);
    assert_null(operand(g, node, 6));
    for (int c = 0; c < N; c++) {
        int32_t have = 0;
        assert_true(scale[c] == scale_of(f, c, 0));
        for (int k = 0; k < K; k++) {
            assert_int_equal(w[c * K + k], number(f, at(f, k, c)) - f->zero);
            have += w[c * K + k];
        }
        assert_int_equal(sum[c], have);
    }
}

/* With blocks: the same, zero points beside them or off; scales divided by the power of two that x is multiplied by. */
static void check_blocks(const struct form *f, const struct lathe_graph *g, const struct lathe_node *node,
                         int64_t block) {
    const int8_t *w = operand(g, node, 1), *zero = operand(g, node, 7);
    const float *scale = operand(g, node, 2), *sum = operand(g, node, 3), *x_scale = operand(g, node, 6);
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    int64_t blocks = (K + block - 1) / block;
    bool halves = f->high - f->low <= 15;
    assert_int_equal(block, f->block && f->block < K ? f->block : K);
    assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_W_BITS, 8), halves ? 4 : 8);
    assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_BITS, 0), f->high - f->low < 64          ? 8
                                                                 : f->scheme == LATHE_INT8_U8S7 ? 7
                                                                                                : 8);
    assert_true(!!x_scale == f->odd_column);
    for (int c = 0; c < N; c++) {
        double all = 0;
        for (int k = 0; k < K; k++) {
            int64_t cell = (c / 16 * blocks + k / block) * 16 + c % 16;
            int number_less_zero = w[c * K + k] - (zero ? zero[cell] : 0), exponent;
            assert_int_equal(number_less_zero, number(f, at(f, k, c)) - zero_of(f, c, k));
            assert_true(scale[cell] * (x_scale ? x_scale[k] : 1) == scale_of(f, c, k));
            assert_true(!x_scale || frexpf(x_scale[k], &exponent) == 0.5f);
            assert_true(!halves || (w[c * K + k] >= -8 && w[c * K + k] <= 7));
            all += number_less_zero * (double)scale[cell];
        }
        assert_true(fabs(sum[c] - all) <= 1e-6 * fabs(all));
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
        inputs[i] = ((float)(seed >> 8) / 8388608.0f - 1) * (f->odd_column && i % K == 3 ? 30 : 1);
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
        struct lathe_attrs attrs = {node->attrs, node->n_attrs};
        int64_t block = lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0);
        if (block)
            check_blocks(f, g, node, block);
        else
            check_columns(f, g, node);
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
