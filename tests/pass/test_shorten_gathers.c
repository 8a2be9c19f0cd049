/* shorten_gathers: which copies around gather_elements go, which must stay, and that the numbers are the same. */
#include "graph_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Distances of positions, 0 to 6, as indices [1, 1, s, s]; scores of positions [b, 2, s, 7] of x and a constant. */
#define INPUTS                                                                                                         \
    "input %x : f32[b, 2, s, 4]\n"                                                                                     \
    "const %three : i64[] = {3}\nconst %zero : i64[] = {0}\nconst %six : i64[] = {6}\n"                                \
    "const %table : f32[1, 2, 7, 4] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, " \
    "-9, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, -7, 2, 3, 4, 5}\n"                   \
    "%p : i64[s] = range() {start=0, delta=1}\n%r : i64[s, 1] = reshape(%p)\n%d : i64[s, s] = sub(%r, %p)\n"           \
    "%c : i64[s, s] = add(%d, %three)\n%l : i64[s, s] = clip(%c, %zero, %six)\n%i : i64[1, 1, s, s] = reshape(%l)\n"
#define WIDE   "%w : i64[b, 2, s, s] = expand(%i)\n"
#define SCORES "%t : f32[1, 2, 4, 7] = transpose(%table) {perm=[0, 1, 3, 2]}\n%m : f32[b, 2, s, 7] = matmul(%x, %t)\n"
#define PICKED "%g : f32[b, 2, s, s] = gather_elements(%m, %w) {axis=3}\n"
#define TURNED "%y : f32[b, 2, s, s] = transpose(%g) {perm=[0, 1, 3, 2]}\n"
#define MASK                                                                                                           \
    "input %a : i64[b, s]\n%e : i64[b, 1, s, 1] = reshape(%a)\n%k : bool[b, 1, s, 1] = cast(%e) {to=9}\n"              \
    "const %no : f32[] = {-inf}\n%q : f32[b, 2, s, 7] = neg(%m)\n"
#define EIGHT  "const %eight : f32[] = {8}\n"
#define OUT    "output %y as \"y\"\n"
#define EXPAND LATHE_OP_EXPAND
#define TURN   LATHE_OP_TRANSPOSE

static const struct {
    const char *name, *text;
    struct {
        enum lathe_op op;
        unsigned before, after;
    } counts[3];
} rows[] = {
    {"indices expanded over batch and heads",
     INPUTS WIDE SCORES "%y : f32[b, 2, s, s] = gather_elements(%m, %w) {axis=3}\n" OUT,
     {{EXPAND, 1, 0}}},
    {"for two gathers",
     INPUTS WIDE SCORES PICKED "%h : f32[b, 2, s, s] = gather_elements(%m, %w) {axis=3}\n"
                               "%y : f32[b, 2, s, s] = add(%g, %h)\n" OUT,
     {{EXPAND, 1, 0}}},
    {"indices expanded to less than what is gathered from stay",
     INPUTS "%w : i64[1, 2, s, s] = expand(%i)\ninput %z : f32[5, 2, s, 7]\n"
            "%y : f32[1, 2, s, s] = gather_elements(%z, %w) {axis=3}\n" OUT,
     {{EXPAND, 1, 1}}},
    {"so do those expanded along the axis of the gather",
     INPUTS "%n : i64[1, 1, s, 1] = reshape(%p)\nconst %one : i64[] = {1}\n%q : i64[1, 1, s, 1] = min(%n, %one)\n"
            "%w : i64[b, 2, s, 4] = expand(%q)\n%y : f32[b, 2, s, 4] = gather_elements(%x, %w) {axis=3}\n" OUT,
     {{EXPAND, 1, 1}}},
    {"a transpose behind it turns the product and the indices", /* the table's transpose is a flag of the product */
     INPUTS WIDE SCORES PICKED TURNED OUT,
     {{EXPAND, 1, 0}, {TURN, 2, 1}, {LATHE_OP_MATMUL, 1, 1}}},
    {"not when the gather has another reader",
     INPUTS WIDE SCORES PICKED "%u : f32[b, 2, s, s] = transpose(%g) {perm=[0, 1, 3, 2]}\n"
                               "%y : f32[b, 2, s, s] = add(%u, %g)\n" OUT,
     {{EXPAND, 1, 0}, {TURN, 2, 2}}},
    {"not when heads move too",
     INPUTS WIDE SCORES PICKED "%y : f32[b, s, 2, s] = transpose(%g) {perm=[0, 2, 1, 3]}\n" OUT,
     {{EXPAND, 1, 0}, {TURN, 2, 2}}},
    {"a scale behind gather and transpose goes into the table",
     INPUTS WIDE SCORES PICKED "%u : f32[b, 2, s, s] = transpose(%g) {perm=[0, 1, 3, 2]}\n" EIGHT
                               "%y : f32[b, 2, s, s] = div(%u, %eight)\noutput %y as \"raw\"\n"
                               "%v : f32[b, 2, s, s] = neg(%y)\noutput %v as \"y\"\n",
     {{LATHE_OP_DIV, 1, 1}, {TURN, 2, 1}}}, /* an output keeps its own value */
    {"and once more",
     INPUTS WIDE SCORES PICKED "%u : f32[b, 2, s, s] = transpose(%g) {perm=[0, 1, 3, 2]}\n" EIGHT
                               "%v : f32[b, 2, s, s] = div(%u, %eight)\n%y : f32[b, 2, s, s] = neg(%v)\n" OUT,
     {{LATHE_OP_DIV, 1, 0}, {TURN, 2, 1}}},
    {"a sum with what was gathered",
     INPUTS WIDE SCORES PICKED "input %o : f32[s]\n%y : f32[b, 2, s, s] = add(%o, %g)\n" OUT,
     {{LATHE_OP_ADD, 2, 1}}}, /* one adds distances */
    {"of two gathers, and the mask of whole queries",
     INPUTS WIDE SCORES PICKED MASK "%h : f32[b, 2, s, s] = gather_elements(%q, %w) {axis=3}\n"
                                    "%v : f32[b, 2, s, s] = add(%h, %g)\n"
                                    "%y : f32[b, 2, s, s] = where(%k, %v, %no)\n" OUT,
     {{LATHE_OP_ADD, 2, 1}, {LATHE_OP_WHERE, 1, 1}, {LATHE_OP_GATHER_ELEMENTS, 2, 2}}},
    {"a mask of keys stays",
     INPUTS WIDE SCORES PICKED MASK "%n : bool[b, 1, 1, s] = reshape(%k)\n"
                                    "%h : f32[b, 2, s, s] = gather_elements(%q, %w) {axis=3}\n"
                                    "%v : f32[b, 2, s, s] = add(%h, %g)\n"
                                    "%y : f32[b, 2, s, s] = where(%n, %v, %no)\n" OUT,
     {{LATHE_OP_ADD, 2, 1}, {LATHE_OP_WHERE, 1, 1}, {LATHE_OP_RESHAPE, 4, 4}}},
    {"batch and heads in one axis until then",
     INPUTS "%j : i64[1, s, s] = reshape(%l)\n%w : i64[2*b, s, s] = expand(%j)\n" SCORES MASK
            "%u : f32[2*b, s, 7] = reshape(%m)\n%g : f32[2*b, s, s] = gather_elements(%u, %w) {axis=2}\n"
            "%z : f32[2*b, s, 7] = reshape(%q)\n%h : f32[2*b, s, s] = gather_elements(%z, %w) {axis=2}\n"
            "%c1 : f32[b, 2, s, s] = reshape(%g)\n%c2 : f32[b, 2, s, s] = reshape(%h)\n"
            "%v : f32[b, 2, s, s] = add(%c1, %c2)\n%y : f32[b, 2, s, s] = where(%k, %v, %no)\n" OUT,
     {{LATHE_OP_ADD, 2, 1}, {LATHE_OP_WHERE, 1, 1}, {EXPAND, 1, 0}}},
    {"a gather that is read elsewhere adds nothing",
     INPUTS WIDE SCORES PICKED "%v : f32[b, 2, s, s] = neg(%g)\n%y : f32[b, 2, s, s] = add(%v, %g)\n" OUT,
     {{LATHE_OP_ADD, 2, 2}}},
    {"but not when the table is read elsewhere",
     INPUTS WIDE SCORES PICKED EIGHT "%v : f32[b, 2, s, s] = mul(%g, %eight)\n"
                                     "%k : f32[1, 2, 7, 4] = neg(%table)\noutput %k as \"k\"\n"
                                     "%y : f32[b, 2, s, s] = neg(%v)\n" OUT,
     {{LATHE_OP_MUL, 1, 1}}},
    {"a scale behind views of a linear layer goes into its weight and bias",
     "input %x : f32[b, s, 4]\nconst %w : f32[4, 6] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, "
     "4, 5, -6}\nconst %bias : f32[6] = {1, 2, 3, 4, 5, 6}\n%l : f32[b, s, 6] = linear(%x, %w, %bias)\n"
     "%r : f32[b, s, 2, 3] = reshape(%l)\n%t : f32[b, 2, s, 3] = transpose(%r) {perm=[0, 2, 1, 3]}\n"
     "const %f : f32[] = {0.3}\n%v : f32[b, 2, s, 3] = mul(%t, %f)\n%y : f32[b, 2, s, 3] = neg(%v)\n" OUT,
     {{LATHE_OP_MUL, 1, 0}}},
    {"not through an activation",
     "input %x : f32[b, s, 2]\nconst %w : f32[2, 2] = {1, 2, 3, 4}\n%l : f32[b, s, 2] = linear(%x, %w) {activation=1}\n"
     "const %f : f32[] = {0.3}\n%v : f32[b, s, 2] = mul(%l, %f)\n%y : f32[b, s, 2] = neg(%v)\n" OUT,
     {{LATHE_OP_MUL, 1, 1}}},
    {"not through a residual",
     "input %x : f32[b, s, 2]\nconst %w : f32[2, 2] = {1, 2, 3, 4}\n%l : f32[b, s, 2] = linear(%x, %w, _, %x)\n"
     "const %f : f32[] = {0.3}\n%v : f32[b, s, 2] = mul(%l, %f)\n%y : f32[b, s, 2] = neg(%v)\n" OUT,
     {{LATHE_OP_MUL, 1, 1}}},
};

static void copies(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g = graph_run_parse(rows[i].text, rows[i].name);
        struct lathe_graph *source = graph_run_parse(rows[i].text, rows[i].name);
        graph_run_pass(g, "shorten_gathers", rows[i].name);
        for (size_t k = 0; k < sizeof rows[i].counts / sizeof *rows[i].counts && rows[i].counts[k].before; k++) {
            enum lathe_op op = rows[i].counts[k].op;
            if (graph_run_count(source, op) != rows[i].counts[k].before ||
                graph_run_count(g, op) != rows[i].counts[k].after)
                fail_msg("%s: %s %u -> %u, expected %u -> %u", rows[i].name, lathe_op_info(op)->name,
                         graph_run_count(source, op), graph_run_count(g, op), rows[i].counts[k].before,
                         rows[i].counts[k].after);
        }
        static const int64_t symbols[32] = {2, 9};
        graph_run_same(source, g, symbols, rows[i].name, 2e-5f); /* scaled before the sums */
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
