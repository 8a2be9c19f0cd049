/* round_attention: which attention runs in bf16, what the report says of the rest, and how far the numbers move when it
 * does. */
#include "graph_run.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BF16 (LATHE_CPU_MASK(LATHE_CPU_AVX512) | LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16))

struct attention_case {
    const char *name, *text;
    uint64_t features;
    unsigned rounded;   /* attentions afterwards that have `bits` */
    const char *report; /* a word of it */
};

#define X      "input %x : f32[batch, seq, 96]\n"
#define OUT    "output %y as \"y\"\n"
#define HEADS  "{heads=2, head_dim=16, k_offset=32, v_offset=64"
#define RESULT "%y : f32[batch, seq, 32] = attention"

static const struct attention_case cases[] = {
    {"plain", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, BF16, 1, "bf16 queries, keys"},
    {"a target without dot products", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, LATHE_CPU_MASK(LATHE_CPU_AVX512), 0,
     "which the target lacks"},
    {"keys, causal and a window",
     X "input %keys : i64[batch, seq]\n" RESULT "(%x, %x, %x, %keys) " HEADS ", causal=1, window=5}\n" OUT, BF16, 1,
     "bf16 queries, keys"},
    {"a mask that is data", X "input %m : f32[batch, 1, seq, seq]\n" RESULT "(%x, %x, %x, _, %m) " HEADS "}\n" OUT,
     BF16, 1, "bf16 queries, keys"},
    {"a soft cap", X RESULT "(%x, %x, %x) " HEADS ", softcap=30.0}\n" OUT, BF16, 1, "bf16 queries, keys"},
    {"a negative scale", X RESULT "(%x, %x, %x) " HEADS ", scale=-1.0}\n" OUT, BF16, 1, "bf16 queries, keys"},
    {"small heads",
     "input %x : f32[batch, seq, 12]\n%y : f32[batch, seq, 4] = attention(%x, %x, %x) {heads=1, head_dim=4, "
     "k_offset=4, "
     "v_offset=8}\n" OUT,
     BF16, 0, "heads of 4 columns"},
    {"large heads",
     "input %x : f32[batch, seq, 160]\n%y : f32[batch, seq, 160] = attention(%x, %x, %x) {heads=1, head_dim=160}\n" OUT,
     BF16, 1, "bf16 queries, keys"},
};

static struct lathe_graph *parsed(const struct attention_case *c) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(c->text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    return g;
}

/* Outputs of one run on the same numbers. */
static float *outputs(const struct attention_case *c, struct lathe_graph *g, int64_t *count) {
    const int64_t symbols[32] = {2, 37};
    struct graph_run run;
    struct lathe_diag diag = {0};
    unsigned seed = 7;
    if (graph_run_begin(&run, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    for (uint32_t i = 0; i < g->input_count; i++) {
        struct lathe_tensor *t = &run.tensors[g->inputs[i]];
        for (int64_t k = 0; k < lathe_tensor_count(t); k++) {
            seed = seed * 1664525u + 1013904223u;
            if (t->dtype == LATHE_F32)
                ((float *)t->data)[k] = (float)(int)seed * 0x1p-30f;
            else
                ((int64_t *)t->data)[k] = k % 37 < 30;
        }
    }
    if (graph_run_nodes(&run, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    const struct lathe_tensor *y = &run.tensors[g->outputs[0]];
    *count = lathe_tensor_count(y);
    float *copy = malloc((size_t)*count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, y->data, (size_t)*count * sizeof *copy);
    graph_run_end(&run);
    return copy;
}

static void run_case(void **state) {
    const struct attention_case *c = *state;
    struct lathe_graph *g = parsed(c);
    struct lathe_target target = {.features = c->features};
    struct lathe_pass_options options = {0};
    struct lathe_report *report = lathe_report_new();
    struct lathe_arena *scratch = lathe_arena_new();
    struct lathe_text json = {0};
    struct lathe_diag diag = {0};
    struct lathe_pass_ctx ctx = {
        .graph = g, .target = &target, .options = &options, .report = report, .scratch = scratch, .diag = &diag};
    int64_t count, again;
    float *before = outputs(c, g, &count);
    assert_int_equal(lathe_pass_round_attention(&ctx), LATHE_OK);
    assert_int_equal(ctx.changes, 0); /* only with that precision */
    options.bf16 = options.bf16_attention = true;
    if (lathe_pass_round_attention(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    assert_int_equal(ctx.changes, c->rounded);
    lathe_report_json(report, true, &json);
    if (!strstr(json.data, c->report))
        fail_msg("%s: no \"%s\" in %s", c->name, c->report, json.data);
    float *after = outputs(c, g, &again);
    assert_int_equal(count, again);
    double off = 0;
    for (int64_t i = 0; i < count; i++)
        off = fmax(off, fabs((double)before[i] - after[i]));
    /* Numbers of [-2, 2): something moves, and not far. */
    if (c->rounded ? !(off > 0 && off < 0.03) : off != 0)
        fail_msg("%s: moved by %g", c->name, off);
    free(before);
    free(after);
    lathe_text_free(&json);
    lathe_report_free(&report);
    lathe_arena_free(&scratch);
    lathe_graph_free(&g);
}

int main(void) {
    struct CMUnitTest tests[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tests[i] =
            (struct CMUnitTest){.name = cases[i].name, .test_func = run_case, .initial_state = (void *)&cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
