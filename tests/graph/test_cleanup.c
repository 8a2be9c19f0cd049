/* The clean-up passes, each on a graph in text form: what must be left, and that the graph stays in order. */
#include "graph_test.h"

#include "pass.h"

#include <stdio.h>
#include <stdlib.h>

struct row {
    const char *name, *passes, *graph, *expect; /* expect: "op=count ..." */
};

static unsigned count_op(struct lathe_graph *g, enum lathe_op op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n)
    count += g->nodes[n].op == op;
    return count;
}

static void run_passes(struct lathe_graph *g, const char *passes) {
    static struct lathe_diag diag;
    struct lathe_pass_options options = {0};
    char copy[256], *save = NULL;
    snprintf(copy, sizeof copy, "%s", passes);
    for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
        const struct lathe_pass *pass = lathe_pass_by_name(name);
        assert_non_null(pass);
        struct lathe_arena *scratch = lathe_arena_new();
        struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .scratch = scratch, .diag = &diag};
        lathe_diag_reset(&diag);
        if (pass->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
            fail_msg("%s: %s", name, diag.text);
        lathe_arena_free(&scratch);
    }
}

static void expect_ops(struct lathe_graph *g, const struct row *row) {
    char copy[256], *save = NULL;
    snprintf(copy, sizeof copy, "%s", row->expect);
    for (char *item = strtok_r(copy, " ", &save); item; item = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(item, '=');
        *equals = 0;
        unsigned found = 0, expected = (unsigned)atoi(equals + 1);
        if (!strcmp(item, "nodes")) {
            LATHE_FOR_NODES(g, n)
            found++;
        } else {
            found = count_op(g, lathe_op_by_name(item));
        }
        if (found != expected) {
            struct lathe_text text = {0};
            (void)!lathe_graph_print(g, &text);
            print_message("%s\n", text.data ? text.data : "");
            lathe_text_free(&text);
            fail_msg("%s: %u %s, not %u", row->name, found, item, expected);
        }
    }
}

static void run_rows(const struct row *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct lathe_graph *g = graph_from(rows[i].graph);
        run_passes(g, rows[i].passes);
        expect_ops(g, &rows[i]);
        lathe_graph_free(&g);
    }
}

#define IN  "input %x : f32[b, s, 8]\ninput %ids : i64[b, s]\ninput %m : bool[b, s]\n"
#define OUT "output %y as \"y\"\n"

static void no_ops(void **state) {
    static const struct row rows[] = {
        {"reshape to the same shape", "drop_no_ops",
         IN "%a : f32[b, s, 8] = reshape(%x)\n%y : f32[b, s, 8] = relu(%a)\n" OUT, "nodes=1"},
        {"an output keeps its own value", "drop_no_ops", IN "%y : f32[b, s, 8] = reshape(%x)\n" OUT, "nodes=1"},
        {"reshape of a reshape", "drop_no_ops",
         IN "%a : f32[b*s, 8] = reshape(%x)\n%c : f32[b, s, 2, 4] = reshape(%a)\n"
            "%y : f32[b, s, 2, 4] = relu(%c)\n" OUT,
         "reshape=1 nodes=2"},
        {"there and back", "drop_no_ops",
         IN "%a : f32[b*s, 8] = reshape(%x)\n%c : f32[b, s, 8] = reshape(%a)\n%y : f32[b, s, 8] = relu(%c)\n" OUT,
         "nodes=1"},
        {"double transpose", "drop_no_ops",
         IN "%a : f32[s, b, 8] = transpose(%x) {perm=[1, 0, 2]}\n%c : f32[b, s, 8] = transpose(%a) {perm=[1, 0, 2]}\n"
            "%y : f32[b, s, 8] = relu(%c)\n" OUT,
         "nodes=1"},
        {"transposes compose", "drop_no_ops",
         IN "%a : f32[s, b, 8] = transpose(%x) {perm=[1, 0, 2]}\n%c : f32[8, b, s] = transpose(%a) {perm=[2, 1, 0]}\n"
            "%y : f32[8, b, s] = relu(%c)\n" OUT,
         "transpose=1 nodes=2"},
        {"a transpose of axes of one element is a view", "drop_no_ops",
         "input %x : f32[b, 1, 8]\n%a : f32[1, b, 8] = transpose(%x) {perm=[1, 0, 2]}\n"
         "%y : f32[1, b, 8] = relu(%a)\n" OUT,
         "transpose=0 reshape=1"},
        {"a detour through a wider type", "drop_no_ops",
         IN "%a : i64[b, s] = cast(%m) {to=7}\n%c : bool[b, s] = cast(%a) {to=9}\n%y : bool[b, s] = not(%c)\n" OUT,
         "cast=0"},
        {"a detour through a narrower type stays", "drop_no_ops",
         IN "%a : i32[b, s] = cast(%ids) {to=6}\n%c : i64[b, s] = cast(%a) {to=7}\n%y : i64[b, s] = abs(%c)\n" OUT,
         "cast=2"},
        {"neutral elements", "drop_no_ops",
         IN "const %one : f32[] = {1}\nconst %zero : f32[1, 1] = {0}\n%a : f32[b, s, 8] = mul(%one, %x)\n"
            "%c : f32[b, s, 8] = add(%a, %zero)\n%d : f32[b, s, 8] = div(%c, %one)\n"
            "%e : f32[b, s, 8] = sub(%d, %zero)\n%y : f32[b, s, 8] = relu(%e)\n" OUT,
         "nodes=1"},
        {"0 - x and 1 / x are no neutral operations", "drop_no_ops",
         IN "const %one : f32[] = {1}\nconst %zero : f32[] = {0}\n%a : f32[b, s, 8] = sub(%zero, %x)\n"
            "%y : f32[b, s, 8] = div(%one, %a)\n" OUT,
         "sub=1 div=1"},
        {"a neutral element that widens the shape", "drop_no_ops",
         "input %x : f32[b, 1]\nconst %one : f32[3] = {1, 1, 1}\n%a : f32[b, 3] = mul(%x, %one)\n"
         "%y : f32[b, 3] = relu(%a)\n" OUT,
         "mul=0 expand=1"},
        {"an expand that broadcasting does anyway", "drop_no_ops",
         IN "input %v : f32[b, 1, 1]\n%a : f32[b, s, 8] = expand(%v)\n%y : f32[b, s, 8] = add(%x, %a)\n" OUT,
         "expand=0 add=1"},
        {"an expand that gives the result its shape stays", "drop_no_ops",
         IN "input %v : f32[b, 1, 1]\n%a : f32[b, s, 8] = expand(%v)\n%y : f32[b, s, 8] = add(%v, %a)\n" OUT,
         "expand=1"},
        {"the one element of an axis", "drop_no_ops",
         "input %x : f32[b, 1, 8]\nconst %i : i64[1, 1] = {-1}\n%a : f32[b, 1, 1, 8] = gather(%x, %i) {axis=1}\n"
         "%y : f32[b, 1, 1, 8] = neg(%a)\noutput %y as \"y\"\n",
         "gather=0 reshape=1"},
        {"the one element of an axis, several times", "drop_no_ops",
         "input %x : f32[b, 1, 8]\nconst %i : i64[2] = {0, 0}\n%a : f32[b, 2, 8] = gather(%x, %i) {axis=1}\n"
         "%y : f32[b, 2, 8] = neg(%a)\noutput %y as \"y\"\n",
         "gather=1"},
        {"a slice of everything", "drop_no_ops",
         IN "%a : f32[b, s, 8] = slice(%x) {axes=[1], starts=[0], ends=<s>, steps=[1]}\n"
            "%y : f32[b, s, 8] = relu(%a)\n" OUT,
         "slice=0"},
        {"a reversal stays", "drop_no_ops",
         IN "%a : f32[b, s, 8] = slice(%x) {axes=[2], starts=[7], ends=[-1], steps=[-1]}\n"
            "%y : f32[b, s, 8] = relu(%a)\n" OUT,
         "slice=1"},
        {"pads of nothing, and a shift", "drop_no_ops",
         "input %x : f32[b, 8]\n%a : f32[b, 8] = pad(%x) {pads=[0, 0, 0, 0]}\n"
         "%c : f32[b, 8] = pad(%a) {pads=[0, 1, 0, -1]}\n%y : f32[b, 8] = relu(%c)\n" OUT,
         "pad=1"},
        {"positions are never negative", "drop_no_ops drop_dead_nodes",
         IN "const %z : i64[] = {0}\n%r : i64[s] = range() {start=0, delta=1}\n%g : bool[s] = greater_equal(%r, %z)\n"
            "%y : bool[b, s] = and(%m, %g)\n" OUT,
         "greater_equal=0 range=0"},
        {"and with true", "drop_no_ops drop_dead_nodes",
         IN "const %z : i64[] = {0}\n%r : i64[s] = range() {start=0, delta=1}\n%g : bool[s] = greater_equal(%r, %z)\n"
            "%a : bool[b, s] = and(%m, %g)\n%y : bool[b, s] = not(%a)\n" OUT,
         "nodes=1"},
        {"a comparison that sizes decide", "drop_no_ops drop_dead_nodes",
         IN "const %n : i64[] = {600}\n%r : i64[s] = range() {start=0, delta=1}\n%l : bool[s] = less(%r, %n)\n"
            "%a : bool[b, s] = and(%m, %l)\n%y : bool[b, s] = not(%a)\n" OUT,
         "less=1 and=1"},
        {"where with a constant condition", "drop_no_ops",
         IN "const %t : bool[] = {1}\nconst %z : f32[] = {0}\n%a : f32[b, s, 8] = where(%t, %x, %z)\n"
            "%y : f32[b, s, 8] = relu(%a)\n" OUT,
         "where=0 expand=0 nodes=1"},
        {"concat of one, not of not, sum of one", "drop_no_ops",
         IN "%a : bool[b, s] = concat(%m) {axis=0}\n%c : bool[b, s] = not(%a)\n%d : bool[b, s] = not(%c)\n"
            "%e : bool[b, s] = and(%d, %d)\n%y : f32[b, s] = cast(%e) {to=1}\n" OUT,
         "nodes=1"},
        {"a mean over one element", "drop_no_ops",
         "input %x : f32[b, 1, 8]\n%a : f32[b, 8] = reduce_mean(%x) {axes=[1], keepdims=0}\n"
         "%y : f32[b, 8] = relu(%a)\n" OUT,
         "reduce_mean=0 reshape=1"},
    };
    run_rows(rows, sizeof rows / sizeof *rows);
}

static void folding(void **state) {
    static const struct row rows[] = {
        {"arithmetic on constants", "fold_constants",
         IN "const %a : f32[2] = {1, 4}\n%c : f32[2] = sqrt(%a)\n%d : f32[2] = add(%c, %a)\n"
            "%e : f32[1] = reduce_sum(%d) {axes=[0], keepdims=1}\n%y : f32[b, s, 8] = mul(%x, %e)\n" OUT,
         "nodes=1"},
        {"shape arithmetic that only shapes need", "fold_constants drop_dead_nodes",
         IN "%sh : i64[3] = shape(%x)\n%t : i64[2] = slice(%sh) {axes=[0], starts=[0], ends=[2], steps=[1]}\n"
            "%f : f32[b, s] = fill(%t)\n%y : f32[b, s] = relu(%f)\n" OUT,
         "shape=0 slice=0 fill=1"},
        {"a size that data flow needs", "fold_constants drop_dead_nodes",
         IN "const %i : i64[] = {1}\n%sh : i64[3] = shape(%x)\n%n : i64[] = gather(%sh, %i) {axis=0}\n"
            "%y : i64[b, s] = mul(%ids, %n)\n" OUT,
         "dims_tensor=1 shape=0 gather=0 nodes=2"},
        {"a constant axis is a constant", "fold_constants drop_dead_nodes",
         IN "const %i : i64[] = {2}\n%sh : i64[3] = shape(%x)\n%n : i64[] = gather(%sh, %i) {axis=0}\n"
            "%f : f32[] = cast(%n) {to=1}\n%q : f32[] = sqrt(%f)\n%y : f32[b, s, 8] = div(%x, %q)\n" OUT,
         "nodes=1"},
        {"growth is refused", "fold_constants",
         IN "const %a : f32[1] = {1}\n%c : f32[4096] = expand(%a)\n%y : f32[4096] = relu(%c)\n" OUT, "expand=1 relu=1"},
        {"4 KiB of growth is not", "fold_constants",
         "input %x : f32[b, 1]\nconst %a : f32[1] = {1}\n%c : f32[1024] = expand(%a)\n%y : f32[b, 1024] = add(%c, "
         "%x)\n" OUT,
         "nodes=1"},
        {"a transposed weight waits for its product", "fold_constants",
         IN "const %w : f32[2, 8] = {1.5,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}\n%t : f32[8, 2] = transpose(%w) {perm=[1, 0]}\n"
            "%y : f32[b, s, 2] = matmul(%x, %t)\n" OUT,
         "transpose=1 matmul=1"},
        {"another transpose does not", "fold_constants",
         IN "const %w : f32[8, 1] = {1,2,3,4,5,6,7,8}\n%t : f32[1, 8] = transpose(%w) {perm=[1, 0]}\n"
            "%y : f32[b, s, 8] = add(%x, %t)\n" OUT,
         "nodes=1"},
        {"joined weights are read through the concat", "fold_constants",
         IN "const %w : f32[8, 1] = {1,2,3,4,5,6,7,8}\n%c : f32[8, 2] = concat(%w, %w) {axis=1}\n"
            "%y : f32[b, s, 2] = linear(%x, %c)\n" OUT,
         "concat=1 linear=1"},
    };
    run_rows(rows, sizeof rows / sizeof *rows);
}

static void folded_values(void **state) {
    struct lathe_graph *g = graph_from("input %x : f32[b, 2]\nconst %a : f32[2] = {1, 4}\n%c : f32[2] = sqrt(%a)\n"
                                       "%y : f32[b, 2] = mul(%x, %c)\noutput %y as \"y\"\n");
    run_passes(g, "fold_constants");
    assert_true(lathe_value_is_constant(g, value_of(g, "c")));
    assert_true(lathe_constant_f64(g, value_of(g, "c"), 1) == 2);
    lathe_graph_free(&g);
}

static void merging(void **state) {
    static const struct row rows[] = {
        {"equal nodes, operands swapped", "merge_equal_nodes",
         IN "const %p : f32[] = {2}\nconst %q : f32[] = {2}\n%a : f32[b, s, 8] = add(%x, %p)\n"
            "%c : f32[b, s, 8] = add(%q, %x)\n%y : f32[b, s, 8] = mul(%a, %c)\n" OUT,
         "add=1 mul=1"},
        {"the order of a difference matters", "merge_equal_nodes",
         IN "const %p : f32[] = {2}\n%a : f32[b, s, 8] = sub(%x, %p)\n%c : f32[b, s, 8] = sub(%p, %x)\n"
            "%y : f32[b, s, 8] = mul(%a, %c)\n" OUT,
         "sub=2"},
        {"attributes matter", "merge_equal_nodes",
         IN "%a : f32[b, s, 8] = softmax(%x) {axis=1}\n%c : f32[b, s, 8] = softmax(%x) {axis=2}\n"
            "%y : f32[b, s, 8] = mul(%a, %c)\n" OUT,
         "softmax=2"},
        {"the type and shape of constants matter", "merge_equal_nodes",
         "input %x : f32[b, 1]\nconst %p : f32[1] = {0}\nconst %q : f32[1, 1] = {0}\n%a : f32[b, 1] = add(%x, %p)\n"
         "%c : f32[b, 1] = add(%x, %q)\n%y : f32[b, 1] = mul(%a, %c)\n" OUT,
         "add=2"},
        {"shapes of views matter", "merge_equal_nodes",
         IN "%a : f32[b*s, 8] = reshape(%x)\n%c : f32[b, s*8] = reshape(%x)\n%d : f32[b*s, 8] = reshape(%x)\n"
            "%e : f32[b*s, 8] = mul(%a, %d)\n%f : f32[b, s*8] = relu(%c)\n%y : f32[b*s, 8] = relu(%e)\n" OUT
            "output %f as \"f\"\n",
         "reshape=2"},
        {"two outputs keep two values", "merge_equal_nodes",
         IN "%y : f32[b, s, 8] = relu(%x)\n%z : f32[b, s, 8] = relu(%x)\n" OUT "output %z as \"z\"\n", "relu=2"},
        {"chains", "merge_equal_nodes",
         IN "%a : f32[b, s, 8] = relu(%x)\n%c : f32[b, s, 8] = relu(%x)\n%d : f32[b, s, 8] = tanh(%a)\n"
            "%e : f32[b, s, 8] = tanh(%c)\n%y : f32[b, s, 8] = add(%d, %e)\n" OUT,
         "relu=1 tanh=1 add=1"},
    };
    run_rows(rows, sizeof rows / sizeof *rows);
}

static void dead_nodes(void **state) {
    static const struct row rows[] = {
        {"what nothing reads", "drop_dead_nodes",
         IN "%a : f32[b, s, 8] = relu(%x)\n%c : f32[b, s, 8] = tanh(%a)\n%y : f32[b, s, 8] = relu(%x)\n" OUT,
         "nodes=1"},
        {"outputs that nobody wants", "drop_dead_nodes",
         IN "%y : f32[b, s, 8], %mean : f32[b, s, 1], %d : f32[b, s, 1] = layer_norm(%x) {axis=2}\n" OUT
            "output %d as \"d\"\n",
         "nodes=1"},
    };
    run_rows(rows, sizeof rows / sizeof *rows);
}

static void widening(void **state) {
    struct lathe_graph *g = graph_from("input %x : f16[b, 2]\nconst %a : f16[2] = {0.5, -65504}\n"
                                       "%c : f16[b, 2] = add(%x, %a)\n%d : f32[b, 2] = cast(%c) {to=1}\n"
                                       "%e : f16[b, 2] = cast(%d) {to=10}\n%y : f16[b, 2] = relu(%e)\n"
                                       "output %y as \"y\"\n");
    run_passes(g, "widen_floats drop_no_ops fold_constants drop_dead_nodes");
    assert_int_equal(g->values[g->inputs[0]].dtype, LATHE_F16);
    assert_int_equal(g->values[g->outputs[0]].dtype, LATHE_F16);
    assert_int_equal(g->values[value_of(g, "c")].dtype, LATHE_F32);
    assert_int_equal(count_op(g, LATHE_OP_CAST), 2);
    lathe_graph_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_ops),  cmocka_unit_test(folding),    cmocka_unit_test(folded_values),
        cmocka_unit_test(merging), cmocka_unit_test(dead_nodes), cmocka_unit_test(widening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
