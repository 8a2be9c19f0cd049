/* --cast all: what is rounded and what is not, and the numbers, bit by bit, against an emulation that knows neither the
 * passes nor the operators: exact arithmetic in double, each tensor rounded to bf16 by its definition. */
#include "graph_run.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The bf16 number nearest to x, the even one of two; not beyond the largest finite one. */
static float nearest_bf16(double x) {
    int exponent;
    if (x == 0 || !isfinite(x))
        return (float)x;
    (void)frexp(x, &exponent);
    /* 8 significant bits, fewer below the smallest normal number */
    int last = exponent - 8 > -133 ? exponent - 8 : -133;
    double r = ldexp(rint(ldexp(x, -last)), last);
    double most = 0x1.fep127;
    return (float)(r > most ? most : r < -most ? -most : r);
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- the rounding: all upper halves, with lower halves around a tie */

static void rounding(void **state) {
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { COUNT = 65536 * 6 };
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    assert_true(x && y);
    for (uint32_t i = 0; i < COUNT; i++)
        x[i] = from_bits((i / 6) << 16 | low[i % 6]);
    struct lathe_tensor in = {.data = x, .dtype = LATHE_F32, .rank = 1, .dims = {COUNT}}, out = in;
    out.data = y;
    struct lathe_op_call call = {.in = (const struct lathe_tensor *[]){&in},
                                 .out = (struct lathe_tensor *[]){&out},
                                 .n_in = 1,
                                 .n_out = 1,
                                 .team = {0, 1, NULL}};
    assert_int_equal(lathe_op_info(LATHE_OP_ROUND_BF16)->run(&call), LATHE_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        float want = nearest_bf16(x[i]);
        if (isnan(x[i]) ? !isnan(y[i]) : memcmp(&want, &y[i], sizeof want) != 0)
            fail_msg("%a became %a, expected %a", (double)x[i], (double)y[i], (double)want);
    }
    free(x);
    free(y);
}

/* ---- the pass */

static void cast(struct lathe_graph *g, bool all, struct lathe_report *report) {
    static struct lathe_diag diag;
    struct lathe_arena *scratch = lathe_arena_new();
    struct lathe_pass_options options = {.bf16 = true, .cast_all = all};
    struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .report = report, .scratch = scratch, .diag = &diag};
    lathe_diag_reset(&diag);
    if (lathe_pass_choose_precision(&ctx) != LATHE_OK || lathe_pass_cast_tensors(&ctx) != LATHE_OK ||
        lathe_pass_drop_dead_nodes(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    lathe_arena_free(&scratch);
}

static struct lathe_graph *parsed(const char *text) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(text, &g, &diag) != LATHE_OK)
        fail_msg("%s\n%s", diag.text, text);
    return g;
}

static const struct {
    const char *name, *text;
    unsigned tensors;            /* rounded at run time */
    const char *report, *absent; /* words of the report's `casts`, or NULL */
} cases[] = {
    {"an input and a sum", "input %x : f32[batch, 3]\n%y : f32[batch, 3] = add(%x, %x)\noutput %y as \"y\"\n", 2,
     "\"tensors\":2", NULL},
    {"elements that only move",
     "input %x : f32[batch, 3]\n%a : f32[3, batch] = transpose(%x) {perm=[1, 0]}\n"
     "%y : f32[3, batch] = relu(%a)\noutput %y as \"y\"\n",
     1, "\"x\"", NULL},
    {"a constant of exact numbers",
     "input %x : f32[batch, 3]\nconst %c : f32[3] = {1, 2, 3}\n%y : f32[batch, 3] = add(%x, %c)\noutput %y as \"y\"\n",
     2, "\"constants\":0", NULL},
    {"a constant of others",
     "input %x : f32[batch, 3]\nconst %c : f32[3] = {1, 2, 0.3}\n%y : f32[batch, 3] = mul(%x, %c)\noutput %y as "
     "\"y\"\n",
     2, "\"constant\"", NULL},
    {"an epsilon",
     "input %x : f32[batch, 3]\nconst %e : f32[1] = {1e-12}\n%y : f32[batch, 3] = add(%x, %e)\n"
     "output %y as \"y\"\n",
     2, "\"constants\":0", "\"constant\""},
    {"a mask",
     "input %x : f32[batch, 3]\nconst %m : f32[3] = {0, -10001, 0}\n%y : f32[batch, 3] = add(%x, %m)\n"
     "output %y as \"y\"\n",
     2, "\"constants\":0", "\"constant\""},
    {"what selects rows",
     "input %i : i64[batch, 3]\n%f : f32[batch, 3] = cast(%i) {to=1}\n%g : f32[batch, 3] = sqrt(%f)\n"
     "%y : i64[batch, 3] = cast(%g) {to=7}\noutput %y as \"y\"\n",
     0, "\"tensors\":0", NULL},
    {"what selects rows and is read beside that",
     "input %i : i64[batch, 3]\n%f : f32[batch, 3] = cast(%i) {to=1}\n%g : f32[batch, 3] = sqrt(%f)\n"
     "%y : i64[batch, 3] = cast(%g) {to=7}\noutput %y as \"y\"\noutput %g as \"g\"\n",
     2, "\"sqrt\"", NULL},
    {"scales of quantized tensors",
     "input %x : f32[batch, 3]\nconst %s : f32[3] = {0.1, 0.2, 0.3}\nconst %z : i8[3] = {0, 0, 0}\n"
     "%q : i8[batch, 3] = quantize_linear(%x, %s, %z) {axis=1}\noutput %q as \"y\"\n",
     1, "\"constants\":0", NULL},
    {"integers", "input %x : i64[batch, 3]\n%y : i64[batch, 3] = add(%x, %x)\noutput %y as \"y\"\n", 0, "\"tensors\":0",
     NULL},
};

static void structure(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lathe_graph *g = parsed(cases[i].text);
        struct lathe_report *report = lathe_report_new();
        struct lathe_text json = {0};
        cast(g, false, NULL);
        assert_int_equal(graph_run_count(g, LATHE_OP_ROUND_BF16), 0);
        cast(g, true, report);
        lathe_report_json(report, true, &json);
        const char *casts = strstr(json.data, "\"casts\"");
        assert_non_null(casts);
        if (graph_run_count(g, LATHE_OP_ROUND_BF16) != cases[i].tensors || !strstr(casts, cases[i].report) ||
            (cases[i].absent && strstr(casts, cases[i].absent)))
            fail_msg("%s: %u rounded, or the report is not as expected\n%s", cases[i].name,
                     graph_run_count(g, LATHE_OP_ROUND_BF16), casts);
        lathe_text_free(&json);
        lathe_report_free(&report);
        lathe_graph_free(&g);
    }
}

/* ---- numbers */

#define ROWS 6
#define K    19
#define N    5

/* Multiples of 1/32 below 16: 9 bits, so that bf16 takes some away; 19 products of two such numbers, rounded or not,
 * add up without rounding in f32. */
static float number(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)((int)(*seed >> 22) - 512) / 32;
}

static void fill(float *x, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        x[i] = number(&seed);
}

static size_t print_numbers(char *out, size_t size, const float *x, size_t count) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%.9g", i ? ", " : "", (double)x[i]);
    return n;
}

static struct graph_run ran;

/* Runs g on x [ROWS / 3, 3, ...]; the first output's elements, valid until graph_run_end(&ran). */
static const float *run_graph(struct lathe_graph *g, const float *x, size_t count) {
    static struct lathe_diag diag;
    const int64_t symbols[32] = {ROWS / 3, 3};
    lathe_diag_reset(&diag);
    if (graph_run_begin(&ran, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    memcpy(ran.tensors[g->inputs[0]].data, x, count * sizeof *x);
    if (graph_run_nodes(&ran, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    return ran.tensors[g->outputs[0]].data;
}

/* A table is rounded and stored in bf16; one that is the matrix of a product too stays that one constant, which is
 * rounded when it is packed. */
static void tables(void **state) {
    (void)state;
    enum { V = 20, H = 16 };
    static float t[V * H];
    static char text[16384];
    fill(t, V * H, 5);
    for (int tied = 0; tied < 2; tied++) {
        size_t n = (size_t)snprintf(text, sizeof text, "input %%ids : i64[batch, seq]\nconst %%t : f32[20, 16] = {");
        n += print_numbers(text + n, sizeof text - n, t, V * H);
        snprintf(text + n, sizeof text - n,
                 "}\n%%e : f32[batch, seq, 16], _ = embedding(_, _, %%t, %%ids) {offsets=[0]}\n%s",
                 tied ? "%y : f32[batch, seq, 20] = linear(%e, %t) {trans_b=1}\noutput %y as \"y\"\n"
                      : "output %e as \"e\"\n");
        struct lathe_graph *g = parsed(text);
        cast(g, true, NULL);
        lathe_value_id table = LATHE_NONE, matrix = LATHE_NONE;
        LATHE_FOR_NODES(g, k) {
            table = g->nodes[k].op == LATHE_OP_EMBEDDING ? g->nodes[k].in[2] : table;
            matrix = g->nodes[k].op == LATHE_OP_LINEAR_BF16 ? g->nodes[k].in[1] : matrix;
        }
        if (tied)
            assert_int_equal(table, matrix);
        assert_int_equal(g->values[table].dtype, tied ? LATHE_F32 : LATHE_BF16);
        for (int64_t i = 0; i < V * H; i++)
            assert_true(lathe_constant_f64(g, table, i) == (double)(tied ? t[i] : nearest_bf16(t[i])));
        lathe_graph_free(&g);
    }
}

/* y = relu(x w + b) * c + x2, each tensor rounded; w narrower than what pays elsewhere. */
static void exact_chain(void **state) {
    (void)state;
    static float x[ROWS * K], w[K * N], b[N], c[N];
    static char text[65536];
    fill(x, ROWS * K, 1);
    fill(w, K * N, 2);
    fill(b, N, 3);
    fill(c, N, 4);
    size_t n = 0;
    const struct {
        const char *before;
        const float *at;
        size_t count;
    } constants[] = {{"input %x : f32[batch, seq, 19]\nconst %w : f32[19, 5] = {", w, K * N},
                     {"}\nconst %b : f32[5] = {", b, N},
                     {"}\nconst %c : f32[5] = {", c, N}};
    for (size_t i = 0; i < 3; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", constants[i].before);
        n += print_numbers(text + n, sizeof text - n, constants[i].at, constants[i].count);
    }
    snprintf(text + n, sizeof text - n,
             "}\n%%h : f32[batch, seq, 5] = linear(%%x, %%w, %%b)\n%%r : f32[batch, seq, 5] = relu(%%h)\n"
             "%%m : f32[batch, seq, 5] = mul(%%r, %%c)\n"
             "%%s : f32[batch, seq, 5] = slice(%%x) {axes=[2], starts=[0], ends=[5], steps=[1]}\n"
             "%%y : f32[batch, seq, 5] = add(%%m, %%s)\noutput %%y as \"y\"\n");
    struct lathe_graph *g = parsed(text);
    cast(g, true, NULL);
    assert_int_equal(graph_run_count(g, LATHE_OP_LINEAR_BF16), 1);
    assert_int_equal(graph_run_count(g, LATHE_OP_ROUND_BF16), 4); /* x, h, m, y */
    const float *y = run_graph(g, x, ROWS * K);
    unsigned moved = 0;
    for (size_t row = 0; row < ROWS; row++)
        for (size_t j = 0; j < N; j++) {
            double h = nearest_bf16(b[j]), plain = b[j];
            for (size_t k = 0; k < K; k++) {
                h += (double)nearest_bf16(x[row * K + k]) * nearest_bf16(w[k * N + j]);
                plain += (double)x[row * K + k] * w[k * N + j];
            }
            double m = nearest_bf16((double)nearest_bf16(h > 0 ? h : 0) * nearest_bf16(c[j]));
            float want = nearest_bf16(m + nearest_bf16(x[row * K + j]));
            double unrounded = (plain > 0 ? plain : 0) * c[j] + x[row * K + j];
            if (memcmp(&want, &y[row * N + j], sizeof want) != 0)
                fail_msg("row %zu, column %zu: %a, expected %a", row, j, (double)y[row * N + j], (double)want);
            moved += (double)want != unrounded;
        }
    assert_true(moved > ROWS * N / 2); /* or the emulation says nothing */
    graph_run_end(&ran);
    lathe_graph_free(&g);
}

/* Norm and softmax: the sums inside stay f32, so that a result is the rounded exact one, or its neighbour where that
 * lies within an f32's error of a tie. */
static void exact_inside(void **state) {
    (void)state;
    static const char *const graphs[] = {
        "input %x : f32[batch, seq, 19]\n%y : f32[batch, seq, 19] = softmax(%x) {axis=2}\noutput %y as \"y\"\n",
        "input %x : f32[batch, seq, 19]\n"
        "%y : f32[batch, seq, 19], %m : f32[batch, seq, 1], _ = layer_norm(%x, _, _) {axis=2, epsilon=0.5}\n"
        "output %y as \"y\"\noutput %m as \"m\"\n"};
    static float x[ROWS * K];
    fill(x, ROWS * K, 7);
    for (size_t i = 0; i < 2; i++) {
        struct lathe_graph *g = parsed(graphs[i]);
        cast(g, true, NULL);
        assert_int_equal(graph_run_count(g, LATHE_OP_ROUND_BF16), 2); /* x and y, not the mean */
        const float *y = run_graph(g, x, ROWS * K);
        unsigned exact = 0;
        for (size_t row = 0; row < ROWS; row++) {
            double most = -1e9, sum = 0, mean = 0, variance = 0;
            for (size_t k = 0; k < K; k++) {
                double v = nearest_bf16(x[row * K + k]);
                most = v > most ? v : most;
                mean += v / K;
            }
            for (size_t k = 0; k < K; k++) {
                double v = nearest_bf16(x[row * K + k]);
                sum += exp(v - most);
                variance += (v - mean) * (v - mean) / K;
            }
            for (size_t k = 0; k < K; k++) {
                double v = nearest_bf16(x[row * K + k]);
                double want = i == 0 ? exp(v - most) / sum : (v - mean) / sqrt(variance + 0.5);
                float got = y[row * K + k];
                exact += got == nearest_bf16(want);
                if (got != nearest_bf16(want * (1 + 1e-5)) && got != nearest_bf16(want * (1 - 1e-5)))
                    fail_msg("graph %zu, row %zu, column %zu: %a, expected %a", i, row, k, (double)got, want);
            }
        }
        assert_true(exact > ROWS * K * 9 / 10);
        graph_run_end(&ran);
        lathe_graph_free(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding), cmocka_unit_test(structure),
                                       cmocka_unit_test(tables), cmocka_unit_test(exact_chain),
                                       cmocka_unit_test(exact_inside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
