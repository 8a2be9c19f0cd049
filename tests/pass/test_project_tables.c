/* project_tables: which linear layers of sliced rows become slices of a layer of the table, and that the numbers are
 * the same. */
#include "graph_run.h"
#include "pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TABLE                                                                                                          \
    "input %x : f32[b, s, 2]\nconst %t : f32[6, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, "     \
    "18}\n"                                                                                                            \
    "const %w : f32[3, 2] = {1, 2, 3, 4, -5, 6}\nconst %bias : f32[2] = {7, 8}\n"
#define ROWS "%r : f32[s, 3] = slice(%t) {axes=[0], starts=<3 + -1*s>, ends=<3>, steps=[1]}\n"
#define ADD  "%y : f32[b, s, 2] = add(%x, %l)\noutput %y as \"y\"\n"

static const struct {
    const char *name, *text;
    bool whole; /* the slice is one of the layer then */
} rows[] = {
    {"rows by length", TABLE ROWS "%l : f32[s, 2] = linear(%r, %w, %bias)\n" ADD, true},
    {"behind a view, the weight turned",
     TABLE "const %v : f32[2, 3] = {1, 2, 3, 4, -5, 6}\n" ROWS "%u : f32[1, s, 3] = reshape(%r)\n"
           "%l : f32[1, s, 2] = linear(%u, %v) {trans_b=1}\n" ADD,
     true},
    {"an activation is computed in each run", TABLE ROWS "%l : f32[s, 2] = linear(%r, %w, %bias) {activation=1}\n" ADD,
     false},
    {"a weight that is read elsewhere stays",
     TABLE ROWS "%l : f32[s, 2] = linear(%r, %w, %bias)\n%z : f32[3, 2] = neg(%w)\noutput %z as \"z\"\n" ADD, false},
    {"columns of a table",
     TABLE "%r : f32[6, s] = slice(%t) {axes=[1], starts=[0], ends=<s>, steps=[1]}\n"
           "%q : f32[s, 6] = transpose(%r) {perm=[1, 0]}\n"
           "const %v : f32[6, 2] = {1, 2, 3, 4, -5, 6, 1, 2, 3, 4, 5, 6}\n%l : f32[s, 2] = linear(%q, %v)\n" ADD,
     false},
    {"a table of more rows than the weight is worth",
     TABLE "const %m : f32[9, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}\n"
           "%r : f32[s, 3] = slice(%m) {axes=[0], starts=[0], ends=<s>, steps=[1]}\n"
           "%l : f32[s, 2] = linear(%r, %w)\n" ADD,
     false},
};

static struct lathe_graph *graph_of(size_t i) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(rows[i].text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s\n%s", rows[i].name, diag.text, rows[i].text);
    return g;
}

static unsigned count_of(const struct lathe_graph *g, enum lathe_op op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n)
    count += g->nodes[n].op == op;
    return count;
}

static void tables(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct lathe_diag diag;
        struct lathe_graph *g = graph_of(i), *source = graph_of(i);
        struct lathe_pass_options options = {0};
        struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .scratch = lathe_arena_new(), .diag = &diag};
        lathe_diag_reset(&diag);
        assert_int_equal(lathe_pass_by_name("project_tables")->run(&ctx), LATHE_OK);
        if (lathe_graph_check(g, &diag) != LATHE_OK)
            fail_msg("%s: %s", rows[i].name, diag.text);
        lathe_node_id slice = LATHE_NONE;
        LATHE_FOR_NODES(g, n)
        slice = g->nodes[n].op == LATHE_OP_SLICE ? n : slice;
        lathe_node_id made = slice == LATHE_NONE ? LATHE_NONE : g->values[g->nodes[slice].in[0]].producer;
        if (count_of(g, LATHE_OP_LINEAR) != count_of(source, LATHE_OP_LINEAR) || (made != LATHE_NONE) != rows[i].whole)
            fail_msg("%s: the layer is %sof the whole table", rows[i].name, made == LATHE_NONE ? "not " : "");
        static const int64_t symbols[32] = {2, 3};
        int64_t count, same;
        float *want = graph_run_output(source, symbols, rows[i].name, &count);
        float *got = graph_run_output(g, symbols, rows[i].name, &same);
        assert_int_equal(count, same);
        for (int64_t k = 0; k < count; k++)
            if (!(want[k] == got[k] || fabsf(want[k] - got[k]) < 2e-5f))
                fail_msg("%s: %g instead of %g", rows[i].name, (double)got[k], (double)want[k]);
        free(want);
        free(got);
        lathe_arena_free(&ctx.scratch);
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
