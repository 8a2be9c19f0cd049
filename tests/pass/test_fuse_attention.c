/* fuse_attention on graphs in text form: spellings that must fuse, with the attributes and operands they must give, and
 * look-alikes that must not. */
#include "attention_cases.h"
#include "attention_run.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_numbers(const struct expected *c, struct lathe_graph *fused, bool masked);

static void check_case(const struct expected *c) {
    struct lathe_graph *g = NULL;
    struct lathe_diag diag;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(c->text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    struct lathe_report *report = lathe_report_new();
    struct lathe_pass_options options = {0};
    struct lathe_pass_ctx ctx = {
        .graph = g, .options = &options, .report = report, .scratch = lathe_arena_new(), .diag = &diag};
    if (lathe_pass_fuse_attention(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    struct lathe_text text = {0}, json = {0};
    assert_int_equal(lathe_graph_print(g, &text), LATHE_OK);
    lathe_report_json(report, true, &json);
    int count = 0, products = 0;
    lathe_node_id node = LATHE_NONE;
    LATHE_FOR_NODES(g, n) {
        if (lathe_node_at(g, n)->op == LATHE_OP_ATTENTION && count++ == 0)
            node = n;
        products += lathe_node_at(g, n)->op == LATHE_OP_MATMUL && lathe_node_at(g, n)->op != LATHE_OP_NONE;
    }
    if (count != c->count)
        fail_msg("%s: %d attentions, expected %d\n%s\n%s", c->name, count, c->count, text.data, json.data);
    if (c->missed && !strstr(json.data, c->missed))
        fail_msg("%s: no near miss '%s' in %s", c->name, c->missed, json.data);
    if (c->warning ? !strstr(json.data, c->warning) : strstr(json.data, "MASK_INF") != NULL)
        fail_msg("%s: warnings differ: %s", c->name, json.data);
    if (count) {
        struct lathe_attrs a = lathe_node_attrs(g, node);
        const struct lathe_node *at = lathe_node_at(g, node);
#define SAME(key, want)                                                                                                \
    if (lathe_attr_int(&a, LATHE_ATTR_##key, -99) != (want))                                                           \
    fail_msg("%s: " #key " is %lld, expected %lld\n%s", c->name, (long long)lathe_attr_int(&a, LATHE_ATTR_##key, -99), \
             (long long)(want), text.data)
        SAME(HEADS, c->heads);
        SAME(KV_HEADS, c->kv_heads);
        SAME(HEAD_DIM, c->head_dim);
        SAME(V_HEAD_DIM, c->v_head_dim);
        SAME(CAUSAL, c->causal);
        SAME(WINDOW, c->window);
        SAME(MASKED_ROW, c->masked_row);
        SAME(Q_OFFSET, c->q_offset);
        SAME(K_OFFSET, c->k_offset);
        SAME(V_OFFSET, c->v_offset);
#undef SAME
        double scale = lathe_attr_float(&a, LATHE_ATTR_SCALE, -1);
        if (fabs(scale - c->scale) > 1e-7)
            fail_msg("%s: scale %g, expected %g", c->name, scale, c->scale);
        const char *wanted[5] = {c->q, c->k, c->v, c->keys, c->mask};
        for (unsigned i = 0; i < 5; i++) {
            lathe_value_id v = i < at->n_in ? at->in[i] : LATHE_NONE;
            if (i >= 3 && !wanted[i] && v != LATHE_NONE)
                fail_msg("%s: operand %u is %%%s, expected none\n%s", c->name, i, lathe_value_at(g, v)->name,
                         text.data);
            if (!wanted[i] || !*wanted[i]) {
                if (i >= 3 && wanted[i] && v == LATHE_NONE)
                    fail_msg("%s: operand %u is missing\n%s", c->name, i, text.data);
                continue;
            }
            if (v == LATHE_NONE || strcmp(lathe_value_at(g, v)->name, wanted[i]))
                fail_msg("%s: operand %u is %%%s, expected %%%s\n%s", c->name, i,
                         v == LATHE_NONE ? "_" : lathe_value_at(g, v)->name, wanted[i], text.data);
        }
        if (!strstr(c->text, "as \"p\"") && products)
            fail_msg("%s: %d products are left\n%s", c->name, products, text.data);
    }
    if (count) {
        check_numbers(c, g, false);
        check_numbers(c, g, true);
    }
    lathe_text_free(&text);
    lathe_text_free(&json);
    lathe_arena_free(&ctx.scratch);
    lathe_report_free(&report);
    lathe_graph_free(&g);
}

/* ---- the same numbers before and after */

static void check_numbers(const struct expected *c, struct lathe_graph *fused, bool masked) {
    struct lathe_graph *plain = NULL;
    struct lathe_diag diag;
    struct graph_run before, after;
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_graph_parse(c->text, &plain, &diag), LATHE_OK);
    if (attention_run(&before, plain, masked, &diag) != LATHE_OK ||
        attention_run(&after, fused, masked, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    assert_int_equal(plain->output_count, fused->output_count);
    /* -10000 is added to the scores in f32, which rounds them to 2^-10 */
    double bound = masked && c->masked_row == LATHE_MASKED_SOFTMAX ? 1e-3 : 2e-6;
    for (uint32_t i = 0; i < plain->output_count; i++) {
        const struct lathe_tensor *x = &before.tensors[plain->outputs[i]], *y = &after.tensors[fused->outputs[i]];
        assert_int_equal(x->rank, y->rank);
        for (unsigned k = 0; k < x->rank; k++)
            assert_int_equal(x->dims[k], y->dims[k]);
        for (int64_t k = 0; k < lathe_tensor_count(x); k++) {
            double a = ((const float *)x->data)[k], b = ((const float *)y->data)[k];
            if (isnan(a) && c->masked_row == LATHE_MASKED_FLAG)
                a = 0;
            if (!(fabs(a - b) <= bound))
                fail_msg("%s%s: output %u differs at %lld: %.9g, was %.9g", c->name, masked ? ", masked" : "", i,
                         (long long)k, b, a);
        }
    }
    graph_run_end(&before);
    graph_run_end(&after);
    lathe_graph_free(&plain);
}

static void test_case(void **state) {
    check_case(*state);
}

int main(void) {
    static struct CMUnitTest tests[ATTENTION_CASES];
    for (size_t i = 0; i < ATTENTION_CASES; i++)
        tests[i] = (struct CMUnitTest){attention_cases[i].name, test_case, NULL, NULL, (void *)&attention_cases[i]};
    return _cmocka_run_group_tests("fuse_attention", tests, ATTENTION_CASES, NULL, NULL);
}
