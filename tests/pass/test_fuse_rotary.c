/* fuse_rotary: the spellings of exporters fuse and keep their numbers; what is not that function stays and says why. */
#include "graph_run.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define F(out, dims, what) "%" out " : f32[" dims "] = " what "\n"
#define X                  "input %q : f32[batch, seq, 24]\n" F("v", "batch, seq, 3, 8", "reshape(%q)")
#define HEADS              X F("x", "batch, 3, seq, 8", "transpose(%v) {perm=[0, 2, 1, 3]}")
/* the angles [S,4], twice [S,8], and what is taken of them */
#define ANGLES                                                                                                         \
    "input %f : f32[seq, 4]\n" F("ff", "seq, 8", "concat(%f, %f) {axis=1}") F("c", "seq, 8", "cos(%ff)")               \
        F("s", "seq, 8", "sin(%ff)")
#define SLICE(out, from, first, last, step)                                                                            \
    F(out, "batch, 3, seq, 4", "slice(%" from ") {axes=[3], starts=[" first "], ends=[" last "], steps=[" step "]}")
#define PARTS(first, second) SLICE("x1", "x", "0", "4", "1") SLICE("x2", "x", "4", "8", "1") TURN(first, second)
#define TURN(first, second)                                                                                            \
    F("n", "batch, 3, seq, 4", "neg(%" first ")") F("t", "batch, 3, seq, 8", "concat(%n, %" second ") {axis=3}")
#define SUM                                                                                                            \
    F("xc", "batch, 3, seq, 8", "mul(%x, %c)")                                                                         \
    F("ts", "batch, 3, seq, 8", "mul(%t, %s)") F("y", "batch, 3, seq, 8", "add(%xc, %ts)")
#define OUT "output %y as \"y\"\n"

static const struct {
    const char *name, *graph, *missed;               /* NULL: it is fused; "": it is not, and nothing is said */
    int64_t heads, width, interleaved, half_cosines; /* what the operator says; the elements of a row of its cosines */
    bool table;                                      /* of constants: slices take its half */
} rows[] = {
    {"halves", HEADS ANGLES PARTS("x2", "x1") SUM OUT, NULL, 3, 8, 0, 4},
    {"factors the other way round",
     HEADS ANGLES PARTS("x2", "x1") F("xc", "batch, 3, seq, 8", "mul(%c, %x)")
         F("ts", "batch, 3, seq, 8", "mul(%s, %t)") F("y", "batch, 3, seq, 8", "add(%ts, %xc)") OUT,
     NULL, 3, 8, 0, 4},
    {"cosines of two equal halves",
     HEADS "input %f : f32[seq, 4]\n" F("cf", "seq, 4", "cos(%f)") F("sf", "seq, 4", "sin(%f)")
         F("c", "seq, 8", "concat(%cf, %cf) {axis=1}") F("s", "seq, 8", "concat(%sf, %sf) {axis=1}") PARTS("x2", "x1")
             SUM OUT,
     NULL, 3, 8, 0, 4},
    {"scaled before, unsqueezed and scaled cosines",
     X "const %k : f32[] = {0.5}\n" F("x0", "batch, 3, seq, 8", "transpose(%v) {perm=[0, 2, 1, 3]}")
         F("x", "batch, 3, seq, 8", "mul(%x0, %k)") "input %f : f32[seq, 4]\n" F("ff", "seq, 8",
                                                                                 "concat(%f, %f) {axis=1}")
             F("c0", "seq, 8", "cos(%ff)") F("s0", "seq, 8", "sin(%ff)") F("c1", "1, 1, seq, 8", "reshape(%c0)")
                 F("s1", "1, 1, seq, 8", "reshape(%s0)") F("c", "1, 1, seq, 8", "mul(%c1, %k)")
                     F("s", "1, 1, seq, 8", "mul(%k, %s1)") PARTS("x2", "x1") SUM OUT,
     NULL, 3, 8, 0, 4},
    {"cosines of each sequence",
     HEADS "input %f : f32[batch, seq, 4]\n" F("ff", "batch, seq, 8", "concat(%f, %f) {axis=2}")
         F("c0", "batch, seq, 8", "cos(%ff)") F("s0", "batch, seq, 8", "sin(%ff)")
             F("c", "batch, 1, seq, 8", "reshape(%c0)") F("s", "batch, 1, seq, 8", "reshape(%s0)") PARTS("x2", "x1")
                 SUM OUT,
     NULL, 3, 8, 0, 4},
    {"heads behind the tokens",
     X "input %f : f32[seq, 4]\n" F("ff", "seq, 8", "concat(%f, %f) {axis=1}") F("c0", "seq, 8", "cos(%ff)")
         F("s0", "seq, 8", "sin(%ff)") F("c", "seq, 1, 8", "reshape(%c0)") F("s", "seq, 1, 8", "reshape(%s0)")
             F("x1", "batch, seq, 3, 4", "slice(%v) {axes=[3], starts=[0], ends=[4], steps=[1]}")
                 F("x2", "batch, seq, 3, 4", "slice(%v) {axes=[3], starts=[4], ends=[8], steps=[1]}")
                     F("n", "batch, seq, 3, 4", "neg(%x2)") F("t", "batch, seq, 3, 8", "concat(%n, %x1) {axis=3}")
                         F("xc", "batch, seq, 3, 8", "mul(%v, %c)") F("ts", "batch, seq, 3, 8", "mul(%t, %s)")
                             F("y", "batch, seq, 3, 8", "add(%xc, %ts)") OUT,
     NULL, 3, 8, 0, 4},
    {"heads that are no transpose", "input %x : f32[batch, 3, seq, 8]\n" ANGLES PARTS("x2", "x1") SUM OUT, NULL, 0, 8,
     0, 4},
    {"a table of constants, looked up by position",
     HEADS "const %table : f32[2, 8] = {1, 0.5, 0.25, 0.1, 1, 0.5, 0.25, 0.1, 0.9, 0.8, 0.7, 0.6, 0.9, 0.8, 0.7, 0.6}\n"
           "input %p : i64[seq]\n" F("c", "seq, 8", "gather(%table, %p) {axis=0}")
               F("s", "seq, 8", "gather(%table, %p) {axis=0}") PARTS("x2", "x1") SUM OUT,
     NULL, 3, 8, 0, 4, true},
    {"a table whose halves differ in one element",
     HEADS "const %table : f32[2, 8] = {1, 0.5, 0.25, 0.1, 1, 0.5, 0.25, 0.1, 0.9, 0.8, 0.7, 0.6, 0.9, 0.8, 0.7, 0.5}\n"
           "input %p : i64[seq]\n" F("c", "seq, 8", "gather(%table, %p) {axis=0}")
               F("s", "seq, 8", "gather(%table, %p) {axis=0}") PARTS("x2", "x1") SUM OUT,
     "are not known to be equal"},
    {"neighbours",
     HEADS "input %f : f32[seq, 4]\n" F("f1", "seq, 4, 1", "reshape(%f)")
         F("f2", "seq, 4, 2", "concat(%f1, %f1) {axis=2}") F("ff", "seq, 8", "reshape(%f2)")
             F("c", "seq, 8", "cos(%ff)") F("s", "seq, 8", "sin(%ff)") SLICE("x1", "x", "0", "8", "2")
                 SLICE("x2", "x", "1", "8", "2") F("n", "batch, 3, seq, 4", "neg(%x2)")
                     F("n1", "batch, 3, seq, 4, 1", "reshape(%n)") F("p1", "batch, 3, seq, 4, 1", "reshape(%x1)")
                         F("st", "batch, 3, seq, 4, 2", "concat(%n1, %p1) {axis=4}")
                             F("t", "batch, 3, seq, 8", "reshape(%st)") SUM OUT,
     NULL, 3, 8, 1, 4},
    {"the first columns of a head",
     HEADS "input %f : f32[seq, 2]\n" F("ff", "seq, 4", "concat(%f, %f) {axis=1}") F("c", "seq, 4", "cos(%ff)")
         F("s", "seq, 4", "sin(%ff)") SLICE("a", "x", "0", "4", "1") SLICE("rest", "x", "4", "8", "1")
             F("x1", "batch, 3, seq, 2", "slice(%a) {axes=[3], starts=[0], ends=[2], steps=[1]}")
                 F("x2", "batch, 3, seq, 2", "slice(%a) {axes=[3], starts=[2], ends=[4], steps=[1]}")
                     F("n", "batch, 3, seq, 2", "neg(%x2)") F("t", "batch, 3, seq, 4", "concat(%n, %x1) {axis=3}")
                         F("xc", "batch, 3, seq, 4", "mul(%a, %c)") F("ts", "batch, 3, seq, 4", "mul(%t, %s)")
                             F("z", "batch, 3, seq, 4", "add(%xc, %ts)")
                                 F("y", "batch, 3, seq, 8", "concat(%z, %rest) {axis=3}") OUT,
     NULL, 3, 4, 0, 2},

    {"the first half is negated", HEADS ANGLES PARTS("x1", "x2") SUM OUT, "not the second and the first one"},
    {"halves in order, the second one negated",
     HEADS ANGLES SLICE("x1", "x", "0", "4", "1") SLICE("x2", "x", "4", "8", "1") F("n", "batch, 3, seq, 4", "neg(%x1)")
         F("t", "batch, 3, seq, 8", "concat(%x2, %n) {axis=3}") SUM OUT,
     "the sign or the step"},
    {"halves that overlap",
     HEADS ANGLES SLICE("x1", "x", "0", "4", "1") SLICE("x2", "x", "3", "7", "1") TURN("x2", "x1") SUM OUT,
     "not the second and the first one"},
    {"nothing is negated",
     HEADS ANGLES SLICE("x1", "x", "0", "4", "1") SLICE("x2", "x", "4", "8", "1")
         F("t", "batch, 3, seq, 8", "concat(%x2, %x1) {axis=3}") SUM OUT,
     ""},
    {"two different halves of the angles",
     HEADS "input %f : f32[seq, 4]\ninput %g : f32[seq, 4]\n" F("ff", "seq, 8", "concat(%f, %g) {axis=1}")
         F("c", "seq, 8", "cos(%ff)") F("s", "seq, 8", "sin(%ff)") PARTS("x2", "x1") SUM OUT,
     "of the sine are not known to be equal"},
    {"halves of the angles for neighbours",
     HEADS ANGLES SLICE("x1", "x", "0", "8", "2") SLICE("x2", "x", "1", "8", "2") F("n", "batch, 3, seq, 4", "neg(%x2)")
         F("n1", "batch, 3, seq, 4, 1", "reshape(%n)") F("p1", "batch, 3, seq, 4, 1", "reshape(%x1)")
             F("st", "batch, 3, seq, 4, 2", "concat(%n1, %p1) {axis=4}") F("t", "batch, 3, seq, 8", "reshape(%st)")
                 SUM OUT,
     "are not known to be equal"},
    {"cosines that are an input", HEADS "input %c : f32[seq, 8]\ninput %s : f32[seq, 8]\n" PARTS("x2", "x1") SUM OUT,
     "are not known to be equal"},
    {"cosines that differ between the halves by a column's factor",
     HEADS "const %k : f32[8] = {1, 1, 1, 1, 1, 1, 1, 2}\n" ANGLES F("c8", "seq, 8", "mul(%c, %k)") PARTS("x2", "x1")
         F("xc", "batch, 3, seq, 8", "mul(%x, %c8)") F("ts", "batch, 3, seq, 8", "mul(%t, %s)")
             F("y", "batch, 3, seq, 8", "add(%xc, %ts)") OUT,
     "of the cosine are not known to be equal"},
    {"cosines of each head",
     HEADS "input %f : f32[3, 1, 4]\n" F("ff", "3, 1, 8", "concat(%f, %f) {axis=2}") F("c", "3, 1, 8", "cos(%ff)")
         F("s", "3, 1, 8", "sin(%ff)") PARTS("x2", "x1") SUM OUT,
     "the number of heads is not known"},
    {"another value is turned",
     HEADS "input %z : f32[batch, 3, seq, 8]\n" ANGLES PARTS("x2", "x1") F("xc", "batch, 3, seq, 8", "mul(%z, %c)")
         F("ts", "batch, 3, seq, 8", "mul(%t, %s)") F("y", "batch, 3, seq, 8", "add(%xc, %ts)") OUT,
     "is not what is turned"},
    {"turned along another axis",
     "input %x : f32[batch, 8, seq, 8]\n" ANGLES F("x1", "batch, 4, seq, 8",
                                                   "slice(%x) {axes=[1], starts=[0], ends=[4], steps=[1]}")
         F("x2", "batch, 4, seq, 8", "slice(%x) {axes=[1], starts=[4], ends=[8], steps=[1]}")
             F("n", "batch, 4, seq, 8", "neg(%x2)") F("t", "batch, 8, seq, 8", "concat(%n, %x1) {axis=1}")
                 F("xc", "batch, 8, seq, 8", "mul(%x, %c)") F("ts", "batch, 8, seq, 8", "mul(%t, %s)")
                     F("y", "batch, 8, seq, 8", "add(%xc, %ts)") OUT,
     ""},
};

static lathe_node_id find(const struct lathe_graph *g, enum lathe_op op, unsigned *count) {
    lathe_node_id found = LATHE_NONE;
    *count = 0;
    LATHE_FOR_NODES(g, n)
    if (g->nodes[n].op == op) {
        found = n;
        ++*count;
    }
    return found;
}

static void check_operator(const struct lathe_graph *g, size_t i) {
    unsigned count, others = 0, left;
    lathe_node_id n = find(g, LATHE_OP_ROTARY, &count);
    assert_int_equal(count, 1);
    find(g, LATHE_OP_NEG, &left);
    others += left;
    find(g, LATHE_OP_ADD, &left);
    others += left;
    find(g, LATHE_OP_SLICE, &left);
    if (others || (left > 0) != rows[i].table)
        fail_msg("%s: %u negations and sums, %u slices are left", rows[i].name, others, left);
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t size = 0;
    if (lathe_attr_int(&attrs, LATHE_ATTR_HEADS, 0) != rows[i].heads ||
        lathe_attr_int(&attrs, LATHE_ATTR_ROTARY_DIM, 0) != rows[i].width ||
        lathe_attr_int(&attrs, LATHE_ATTR_INTERLEAVED, 0) != rows[i].interleaved)
        fail_msg("%s: the operator is another one", rows[i].name);
    for (int k = 1; k < 3; k++)
        if (!lathe_value_dim_is(g, g->nodes[n].in[k], -1, &size) || size != rows[i].half_cosines)
            fail_msg("%s: %lld cosines a row", rows[i].name, (long long)size);
}

static void forms(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct lathe_diag diag;
        struct lathe_graph *g = graph_run_parse(rows[i].graph, rows[i].name);
        struct lathe_graph *source = graph_run_parse(rows[i].graph, rows[i].name);
        struct lathe_pass_options options = {0};
        struct lathe_report *report = lathe_report_new();
        struct lathe_pass_ctx ctx = {
            .graph = g, .options = &options, .report = report, .scratch = lathe_arena_new(), .diag = &diag};
        lathe_diag_reset(&diag);
        assert_non_null(report);
        assert_int_equal(lathe_pass_by_name("fuse_rotary")->run(&ctx), LATHE_OK);
        if (lathe_graph_check(g, &diag) != LATHE_OK)
            fail_msg("%s: %s", rows[i].name, diag.text);
        if (ctx.changes != !rows[i].missed)
            fail_msg("%s: %u rewrites", rows[i].name, ctx.changes);
        struct lathe_text told = {0};
        lathe_report_text(report, &told);
        if (rows[i].missed && *rows[i].missed ? !strstr(told.data, rows[i].missed) : !!strstr(told.data, "rotary"))
            fail_msg("%s: %s", rows[i].name, told.data);
        lathe_text_free(&told);
        if (!rows[i].missed)
            check_operator(g, i);
        static const int64_t symbols[32] = {2, 5};
        graph_run_same(source, g, symbols, rows[i].name, 1e-6f);
        lathe_report_free(&report);
        lathe_arena_free(&ctx.scratch);
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
