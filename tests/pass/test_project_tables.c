/* project_tables: which linear layers of sliced rows become slices of a layer of the table, and that the numbers are
 * the same. */
#include "graph_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

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

static void tables(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g = graph_run_parse(rows[i].text, rows[i].name);
        struct lathe_graph *source = graph_run_parse(rows[i].text, rows[i].name);
        graph_run_pass(g, "project_tables", rows[i].name);
        lathe_node_id slice = LATHE_NONE;
        LATHE_FOR_NODES(g, n)
        slice = g->nodes[n].op == LATHE_OP_SLICE ? n : slice;
        lathe_node_id made = slice == LATHE_NONE ? LATHE_NONE : g->values[g->nodes[slice].in[0]].producer;
        if (graph_run_count(g, LATHE_OP_LINEAR) != graph_run_count(source, LATHE_OP_LINEAR) ||
            (made != LATHE_NONE) != rows[i].whole)
            fail_msg("%s: the layer is %sof the whole table", rows[i].name, made == LATHE_NONE ? "not " : "");
        static const int64_t symbols[32] = {2, 3};
        graph_run_same(source, g, symbols, rows[i].name, 2e-5f);
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
