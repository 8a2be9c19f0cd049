/* choose_precision: which layers become bf16, what the report says of them, and how far the numbers move. */
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

#define K 19
#define N 21

/* The text with each "@" replaced by `count` numbers, the last of which is `last`. */
static char *filled(const char *text, int count, const char *last) {
    size_t size = strlen(text) + (size_t)count * 4 * 24 + 256, n = 0;
    char *out = malloc(size);
    unsigned seed = 1;
    assert_non_null(out);
    for (; *text; text++) {
        if (*text != '@') {
            out[n++] = *text;
            continue;
        }
        for (int i = 0; i < count; i++) {
            seed = seed * 1664525u + 1013904223u;
            n += (size_t)sprintf(out + n, "%s%.9g", i ? ", " : "", ((int)(seed >> 20) - 2048) / 3000.0);
        }
        n = (size_t)(strrchr(out, ',') + 1 - out);
        n += (size_t)sprintf(out + n, " %s", last);
    }
    out[n] = 0;
    return out;
}

struct precision_case {
    const char *name, *text, *last;
    unsigned bf16, f32; /* layers afterwards */
    const char *report; /* a word of it */
};

#define X      "input %x : f32[batch, seq, 19]\n"
#define W      "const %w : f32[19, 21] = {@}\n"
#define OUT    "output %y as \"y\"\n"
#define LINEAR "%y : f32[batch, seq, 21] = linear(%x, %w) \"layer\"\n"

static const struct precision_case cases[] = {
    {"a constant", X W LINEAR OUT, "1", 1, 0, "bf16 weights and inputs"},
    {"transposed, with all operands",
     X "const %w : f32[21, 19] = {@}\nconst %b : f32[21] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, "
       "18, 19, 20, 21}\ninput %r : f32[batch, seq, 21]\n"
       "%y : f32[batch, seq, 21] = linear(%x, %w, %b, %r) {trans_b=1, activation=2}\n" OUT,
     "1", 1, 0, "0 clamped"},
    {"a concat of constants, one of them bf16",
     X W "const %v : bf16[19, 21] = {@}\n%vf : f32[19, 21] = cast(%v) {to=1}\n"
         "%c : f32[19, 42] = concat(%w, %vf) {axis=1}\n%y : f32[batch, seq, 42] = linear(%x, %c)\n" OUT,
     "1", 1, 0, "bf16 weights"},
    {"two layers share a weight",
     X W "input %z : f32[batch, 19]\n" LINEAR "%y2 : f32[batch, 21] = linear(%z, %w)\n" OUT "output %y2 as \"y2\"\n",
     "1", 2, 0, "bf16 weights"},
    {"weights that are no constant", X "input %w : f32[19, 21]\n" LINEAR OUT, "1", 0, 1, "not constant"},
    {"few columns",
     "input %x : f32[batch, 133]\nconst %w : f32[133, 3] = {@}\n%y : f32[batch, 3] = linear(%x, %w)\n" OUT, "1", 0, 1,
     "small: 133 x 3"},
    {"beyond bf16", X W LINEAR OUT, "3.4028234e38", 1, 0, "WEIGHTS_CLAMPED"},
    {"beyond bf16, counted", X W LINEAR OUT, "-3.4028234e38", 1, 0, "1 clamped"},
    {"an infinity", X W LINEAR OUT, "inf", 0, 1, "infinity"},
    {"a product that is no layer", X W "%y : f32[batch, seq, 21] = matmul(%x, %w) \"layer\"\n" OUT, "1", 0, 0,
     "no linear layer"},
};

static void choose(struct lathe_graph *g, bool bf16, struct lathe_report *report) {
    static struct lathe_diag diag;
    struct lathe_arena *scratch = lathe_arena_new();
    struct lathe_pass_options options = {.bf16 = bf16};
    struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .report = report, .scratch = scratch, .diag = &diag};
    lathe_diag_reset(&diag);
    if (lathe_pass_choose_precision(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    lathe_arena_free(&scratch);
}

static struct lathe_graph *parsed(const struct precision_case *c) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    char *text = filled(c->text, K * N, c->last);
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    free(text);
    return g;
}

static void layers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct precision_case *c = &cases[i];
        struct lathe_graph *g = parsed(c);
        struct lathe_report *report = lathe_report_new();
        struct lathe_text json = {0};
        choose(g, false, NULL);
        assert_int_equal(graph_run_count(g, LATHE_OP_LINEAR_BF16), 0);
        choose(g, true, report);
        lathe_report_json(report, true, &json);
        if (graph_run_count(g, LATHE_OP_LINEAR_BF16) != c->bf16 || graph_run_count(g, LATHE_OP_LINEAR) != c->f32 ||
            !strstr(json.data, c->report))
            fail_msg("%s: %u bf16, %u f32, or no '%s' in\n%s", c->name, graph_run_count(g, LATHE_OP_LINEAR_BF16),
                     graph_run_count(g, LATHE_OP_LINEAR), c->report, json.data);
        lathe_text_free(&json);
        lathe_report_free(&report);
        lathe_graph_free(&g);
    }
}

static void numbers(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct lathe_graph *before = parsed(&cases[i]), *after = parsed(&cases[i]);
        static const int64_t symbols[32] = {2, 3};
        int64_t count, same;
        choose(after, true, NULL);
        float *want = graph_run_output(before, symbols, cases[i].name, &count);
        float *got = graph_run_output(after, symbols, cases[i].name, &same);
        double moved = 0;
        assert_int_equal(count, same);
        for (int64_t k = 0; k < count; k++) {
            double d = fabs((double)got[k] - want[k]);
            moved += d;
            /* K products of at most 2, both factors off by 2^-9 of themselves; GELU's slope is below 1.2 */
            if (!(d <= K * 2 * 1.2 * 0x1p-8))
                fail_msg("%s: %g became %g", cases[i].name, (double)want[k], (double)got[k]);
        }
        assert_true(moved > 0); /* or nothing was rounded */
        free(want);
        free(got);
        lathe_graph_free(&before);
        lathe_graph_free(&after);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers), cmocka_unit_test(numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
