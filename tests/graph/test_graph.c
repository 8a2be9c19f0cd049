/* Building, use lists, order, snapshots, the checker, and the text form. */
#include "graph_test.h"

#include <stdio.h>
#include <stdlib.h>

static const char small[] = "input %x : f32[batch, seq, 8]\n"
                            "const %w : f32[8] = {1, 2.5, -3, 0.1, 1e-7, inf, -inf, 8}\n"
                            "const %k : i64[2] = {-1, 9007199254740993}\n"
                            "%a : f32[batch, seq, 8] = mul(%x, %w) \"layer.0/Mul\"\n"
                            "%b : f32[batch, seq, 8] = add(%a, %x) \"Add\"\n"
                            "%c : f32[batch, seq, 8], _, _ = layer_norm(%b, _, %w) {axis=2, epsilon=1e-12} \"LN\"\n"
                            "output %c as \"result \\x22quoted\\x22\"\n"
                            "output %a as \"a\"\n"
                            "output %k as \"k\"\n";

static char *printed(struct lathe_graph *g) {
    struct lathe_text text = {0};
    assert_int_equal(lathe_graph_print(g, &text), LATHE_OK);
    return text.data;
}

/* What is printed reads back and prints the same. */
static void text_round_trip(void **state) {
    struct lathe_graph *g = graph_from(small);
    char *first = printed(g);
    struct lathe_graph *again = graph_from(first);
    char *second = printed(again);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "epsilon="));
    assert_non_null(strstr(first, "result \\x22quoted\\x22"));
    assert_true(lathe_constant_f64(again, value_of(again, "w"), 3) == (double)0.1f);
    assert_true(lathe_constant_i64(again, value_of(again, "k"), 0) == -1);
    free(first);
    free(second);
    lathe_graph_free(&g);
    lathe_graph_free(&again);
}

static void text_errors(void **state) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"input x : f32[1]\n", "line 1"},
        {"input %x : f33[1]\n", "element type"},
        {"input %x : f32[1\n", "']'"},
        {"input %x : f32[b]\n%y : f32[b] = nothing(%x)\n", "line 2: an unknown operator"},
        {"input %x : f32[b]\n%y : f32[b] = relu(%z)\n", "not defined"},
        {"input %x : f32[b]\ninput %x : f32[b]\n", "defined already"},
        {"input %x : f32[b]\n%y : f32[b] = relu(%x) {axis}\n", "'='"},
        {"input %x : f32[b]\n%y : f32[b] = relu(%x) {axle=1}\n", "unknown attribute"},
        {"const %x : f32[3] = {1, 2}\n", "too few"},
        {"const %x : f32[1] = {1, 2}\n", "too many"},
        {"const %x : i64[1] = {1.5}\n", "integer"},
        {"const %x : f32[1] = ...\n", "cannot be read back"},
        {"output %x as \"y\"\n", "not defined"},
        {"input %x : f32[b]\n%y : f32[b] = relu(%x) \"open\n", "without its end"},
        {"input %x : f32[b]\n%y : f32[b, 1] = relu(%x)\n", "another type or shape"},
        {"input %x : f32[b]\n%y : f32[b] = relu(%x, %x)\n", "2 operands"},
        {"input %x : f32[1, 1, 1, 1, 1, 1, 1, 1, 1]\n", "8 axes"},
        {"input %x : f32[b] trailing\n", "end of the line"},
    };
    static struct lathe_diag diag;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g = NULL;
        lathe_diag_reset(&diag);
        assert_int_not_equal(lathe_graph_parse(rows[i].text, &g, &diag), LATHE_OK);
        assert_null(g);
        if (!strstr(diag.text, rows[i].says))
            fail_msg("'%s' says '%s'", rows[i].text, diag.text);
    }
}

static void use_lists(void **state) {
    struct lathe_graph *g = graph_from(small);
    lathe_value_id x = value_of(g, "x"), a = value_of(g, "a"), b = value_of(g, "b"), w = value_of(g, "w");
    lathe_node_id add = g->values[b].producer;
    assert_int_equal(lathe_value_use_total(g, a), 2); /* the sum and the output */
    assert_int_equal(lathe_value_only_use(g, a), LATHE_NONE);
    assert_int_equal(lathe_value_only_use(g, b), g->values[value_of(g, "c")].producer);
    lathe_node_set_input(g, add, 0, x); /* x + x: two positions of one user */
    assert_int_equal(g->values[x].use_count, 3);
    assert_int_equal(lathe_value_only_use(g, x), LATHE_NONE);
    lathe_graph_replace_uses(g, x, a);
    assert_int_equal(g->values[x].use_count, 0);
    assert_int_equal(g->values[a].use_count, 3);
    lathe_graph_replace_uses(g, a, w); /* the output too */
    assert_int_equal(g->outputs[1], w);
    assert_true(g->values[w].is_output);
    assert_false(g->values[a].is_output);
    lathe_graph_free(&g);
}

static void names_are_unique(void **state) {
    struct lathe_graph *g = lathe_graph_new();
    for (int i = 0; i < 3000; i++)
        assert_int_not_equal(lathe_graph_add_value(g, "same", LATHE_F32, 0, NULL), LATHE_NONE);
    assert_string_equal(g->values[0].name, "same");
    assert_string_equal(g->values[1].name, "same.1");
    assert_string_equal(g->values[2999].name, "same.2999");
    assert_int_equal(lathe_value_by_name(g, "same.2999"), 2999);
    assert_int_equal(lathe_value_by_name(g, "other"), LATHE_NONE);
    lathe_graph_free(&g);
}

static void removal(void **state) {
    struct lathe_graph *g = graph_from(small);
    lathe_node_id ln = g->values[value_of(g, "c")].producer, mul = g->values[value_of(g, "a")].producer;
    lathe_graph_remove_dead_from(g, ln); /* its result is an output: it stays */
    assert_int_equal(g->nodes[ln].op, LATHE_OP_LAYER_NORM);
    lathe_graph_replace_uses(g, value_of(g, "c"), value_of(g, "x"));
    lathe_graph_remove_dead_from(g, ln);
    assert_int_equal(g->nodes[ln].op, LATHE_OP_NONE);
    assert_int_equal(g->first, mul); /* the sum went with it, the product is an output */
    assert_int_equal(g->last, mul);
    lathe_graph_free(&g);
}

/* ---- order */

static void sorting(void **state) {
    struct lathe_graph *g = graph_from(small);
    lathe_node_id mul = g->values[value_of(g, "a")].producer, add = g->values[value_of(g, "b")].producer;
    lathe_node_id ln = g->values[value_of(g, "c")].producer;
    static struct lathe_diag diag;
    lathe_diag_reset(&diag);
    lathe_graph_move_node(g, ln, mul);
    assert_int_equal(lathe_graph_check(g, &diag), LATHE_INTERNAL);
    assert_non_null(strstr(diag.text, "LN"));
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_graph_sort(g, &diag), LATHE_OK);
    assert_int_equal(g->first, mul);
    assert_int_equal(g->nodes[mul].next, add);
    assert_int_equal(g->last, ln);
    assert_int_equal(lathe_graph_check(g, &diag), LATHE_OK);
    lathe_node_set_input(g, mul, 0, value_of(g, "b")); /* a cycle of two */
    assert_int_equal(lathe_graph_sort(g, &diag), LATHE_INVALID);
    assert_non_null(strstr(diag.text, "layer.0/Mul"));
    assert_non_null(strstr(diag.text, "'Add'"));
    assert_null(strstr(diag.text, "'LN'"));
    lathe_graph_free(&g);
}

/* A chain as long as no stack would hold. */
static void long_chain(void **state) {
    enum { LENGTH = 200000 };
    struct lathe_graph *g = lathe_graph_new();
    lathe_dim one = lathe_dim_const(g->dims, 1);
    lathe_value_id v = lathe_graph_add_value(g, "x", LATHE_F32, 1, &one);
    lathe_graph_add_input(g, v);
    lathe_node_id previous = LATHE_NONE;
    for (int i = 0; i < LENGTH; i++) {
        lathe_value_id next = lathe_graph_add_value(g, "v", LATHE_F32, 1, &one);
        /* each before the one it reads */
        previous = lathe_graph_add_node(g, previous, LATHE_OP_RELU, "r", "", &v, 1, &next, 1);
        v = next;
    }
    static struct lathe_diag diag;
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_graph_sort(g, &diag), LATHE_OK);
    assert_int_equal(g->values[v].producer, g->last);
    lathe_graph_remove_dead_from(g, g->last);
    assert_int_equal(g->first, LATHE_NONE);
    lathe_graph_free(&g);
}

/* ---- the checker finds what a broken pass leaves */

static void expect_broken(struct lathe_graph *g, const char *says) {
    static struct lathe_diag diag;
    lathe_diag_reset(&diag);
    assert_int_not_equal(lathe_graph_check(g, &diag), LATHE_OK);
    if (!strstr(diag.text, says))
        fail_msg("says '%s', not '%s'", diag.text, says);
    lathe_graph_free(&g);
}

static void checker(void **state) {
    struct lathe_graph *g = graph_from(small);
    g->values[value_of(g, "b")].dims[2] = lathe_dim_const(g->dims, 9);
    expect_broken(g, "Add");
    g = graph_from(small);
    g->values[value_of(g, "b")].dtype = LATHE_F64;
    expect_broken(g, "Add");
    g = graph_from(small);
    g->values[value_of(g, "a")].use_count--;
    expect_broken(g, "use list");
    g = graph_from(small);
    g->nodes[g->first].in[0] = value_of(g, "c");
    expect_broken(g, "computed later");
    g = graph_from(small);
    lathe_graph_remove_node(g, g->values[value_of(g, "a")].producer);
    expect_broken(g, "not at all");
    g = graph_from(small);
    g->nodes[g->last].n_in = 9;
    expect_broken(g, "LN");
    g = graph_from(small);
    g->nodes[g->first].next = g->first;
    expect_broken(g, "order");
    g = graph_from(small);
    g->values[value_of(g, "b")].dims[1] = LATHE_DIM_NONE;
    expect_broken(g, "size is unknown");
}

static void snapshot(void **state) {
    struct lathe_graph *g = graph_from(small);
    char *before = printed(g);
    struct lathe_graph_snapshot *s = lathe_graph_snapshot_take(g);
    assert_non_null(s);
    lathe_value_id x = value_of(g, "x"), a = value_of(g, "a");
    lathe_value_id extra =
        lathe_graph_emit(g, g->first, LATHE_OP_RELU, "extra", &x, 1, LATHE_F32, 3, g->values[x].dims);
    lathe_graph_replace_uses(g, a, extra);
    lathe_node_set_int(g, g->last, LATHE_ATTR_AXIS, 1);
    lathe_graph_remove_dead_from(g, g->values[a].producer);
    assert_true(lathe_graph_snapshot_restore(g, s));
    lathe_graph_snapshot_free(&s);
    static struct lathe_diag diag;
    lathe_diag_reset(&diag);
    if (lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    char *after = printed(g);
    assert_string_equal(before, after);
    free(before);
    free(after);
    lathe_graph_free(&g);
}

static void attributes(void **state) {
    struct lathe_graph *g = graph_from(small);
    lathe_node_id n = g->first;
    const int64_t list[2] = {4, 5};
    lathe_node_set_int(g, n, LATHE_ATTR_K, 7);
    lathe_node_set_ints(g, n, LATHE_ATTR_AXES, list, 2);
    lathe_node_set_float(g, n, LATHE_ATTR_ALPHA, 0.5);
    lathe_node_set_int(g, n, LATHE_ATTR_K, 8);
    assert_int_equal(g->nodes[n].n_attrs, 3);
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    assert_int_equal(lathe_attr_int(&attrs, LATHE_ATTR_K, 0), 8);
    uint32_t count;
    assert_int_equal(lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count)[1], 5);
    lathe_node_drop_attr(g, n, LATHE_ATTR_AXES);
    attrs = lathe_node_attrs(g, n);
    assert_null(lathe_attr_find(&attrs, LATHE_ATTR_AXES));
    assert_true(lathe_attr_float(&attrs, LATHE_ATTR_ALPHA, 0) == 0.5);
    lathe_graph_free(&g);
}

static void uniform_constants(void **state) {
    struct lathe_graph *g = graph_from("const %h : f16[3] = {0.5, 0.5, 0.5}\n"
                                       "const %b : bf16[1] = {-3}\n"
                                       "const %m : f16[2] = {65504, 6e-8}\n"
                                       "const %n : i8[2] = {-7, -7}\n");
    double x;
    assert_true(lathe_constant_uniform(g, value_of(g, "h"), &x) && x == 0.5);
    assert_true(lathe_constant_uniform(g, value_of(g, "b"), &x) && x == -3);
    assert_false(lathe_constant_uniform(g, value_of(g, "m"), &x));
    assert_true(lathe_constant_f64(g, value_of(g, "m"), 0) == 65504);
    assert_true(lathe_constant_f64(g, value_of(g, "m"), 1) == 0x1p-24);
    assert_true(lathe_constant_uniform(g, value_of(g, "n"), &x) && x == -7);
    assert_false(lathe_constant_uniform(g, LATHE_NONE, &x));
    lathe_graph_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_round_trip),  cmocka_unit_test(text_errors),       cmocka_unit_test(use_lists),
        cmocka_unit_test(names_are_unique), cmocka_unit_test(removal),           cmocka_unit_test(sorting),
        cmocka_unit_test(long_chain),       cmocka_unit_test(checker),           cmocka_unit_test(snapshot),
        cmocka_unit_test(attributes),       cmocka_unit_test(uniform_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
