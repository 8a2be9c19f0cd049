/* fuse_qkv: which layers are merged, what attention reads, and that the numbers stay. */
#include "graph_run.h"
#include "pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define WEIGHTS                                                                                                        \
    "const %wq : f32[3, 2] = {1, 2, 3, 4, 5, 6}\n"                                                                     \
    "const %wk : f32[3, 2] = {-1, 0.5, 2, 1, 0, 3}\n"                                                                  \
    "const %wv : f32[3, 2] = {0, 1, -2, 2, 1, 1}\n"                                                                    \
    "const %bq : f32[2] = {0.5, -0.25}\n"                                                                              \
    "const %bv : f32[2] = {1, 2}\n"
#define ATTENTION "{heads=2, kv_heads=2, head_dim=1, v_head_dim=1, scale=0.125}\n"
#define Y         "output %y as \"y\"\n"

struct qkv_case {
    const char *name, *text;
    int merged;         /* attention nodes whose layers were merged */
    int linear, slices; /* nodes left */
    int q, k, v;        /* offsets of the last attention */
};

static const struct qkv_case cases[] = {
    {"three layers, one without bias",
     "input %x : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%v : f32[B, S, 2] = linear(%x, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 1, 0, 0, 2, 4},
    {"biases that are still sums",
     "input %x : f32[B, S, 3]\n" WEIGHTS "%q0 : f32[B, S, 2] = linear(%x, %wq)\n"
     "%q : f32[B, S, 2] = add(%bq, %q0)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%v0 : f32[B, S, 2] = linear(%x, %wv)\n"
     "%v : f32[B, S, 2] = add(%v0, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 1, 0, 0, 2, 4},
    {"rows flat, views to attention",
     "input %x : f32[B*S, 3]\n" WEIGHTS "%q2 : f32[B*S, 2] = linear(%x, %wq, %bq)\n"
     "%q : f32[B, S, 2] = reshape(%q2)\n"
     "%k2 : f32[B*S, 2] = linear(%x, %wk)\n"
     "%k : f32[B, S, 2] = reshape(%k2)\n"
     "%v2 : f32[B*S, 2] = linear(%x, %wv, %bv)\n"
     "%v : f32[B, S, 2] = reshape(%v2)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 1, 0, 0, 2, 4},
    {"a layer with another use keeps a slice",
     "input %x : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%v : f32[B, S, 2] = linear(%x, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y "output %k as \"keys\"\n",
     1, 1, 1, 0, 2, 4},
    {"cross attention: keys and values",
     "input %x : f32[B, S, 3]\ninput %z : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%z, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%v : f32[B, S, 2] = linear(%x, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 2, 0, 0, 0, 2},
    {"keys that are the values, too",
     "input %x : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %k) " ATTENTION Y,
     1, 1, 0, 0, 2, 2},
    {"an activation stays apart",
     "input %x : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%x, %wq, %bq) {activation=1}\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%v : f32[B, S, 2] = linear(%x, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 2, 0, 0, 0, 2},
    {"another layout of the weight stays apart",
     "input %x : f32[B, S, 3]\n" WEIGHTS "const %wt : f32[2, 3] = {1, 2, 3, 4, 5, 6}\n"
     "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wt) {trans_b=1}\n"
     "%v : f32[B, S, 2] = linear(%x, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     1, 2, 0, 0, 0, 2},
    {"transposed weights",
     "input %x : f32[B, S, 3]\nconst %wt : f32[2, 3] = {1, 2, 3, 4, 5, 6}\n"
     "const %wu : f32[2, 3] = {1, -2, 3, -4, 5, 0}\n"
     "%q : f32[B, S, 2] = linear(%x, %wt) {trans_b=1}\n"
     "%k : f32[B, S, 2] = linear(%x, %wu) {trans_b=1}\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %k) " ATTENTION Y,
     1, 1, 0, 0, 2, 2},
    {"shared weights are merged once",
     "input %x : f32[B, S, 3]\ninput %z : f32[B, S, 3]\n" WEIGHTS "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%x, %wk)\n"
     "%y1 : f32[B, S, 2] = attention(%q, %k, %k) " ATTENTION "%q2 : f32[B, S, 2] = linear(%z, %wq, %bq)\n"
     "%k2 : f32[B, S, 2] = linear(%z, %wk)\n"
     "%y2 : f32[B, S, 2] = attention(%q2, %k2, %k2) " ATTENTION "%y : f32[B, S, 2] = add(%y1, %y2)\n" Y,
     2, 2, 0, 0, 2, 2},
    {"different inputs",
     "input %x : f32[B, S, 3]\ninput %z : f32[B, S, 3]\ninput %u : f32[B, S, 3]\n" WEIGHTS
     "%q : f32[B, S, 2] = linear(%x, %wq, %bq)\n"
     "%k : f32[B, S, 2] = linear(%z, %wk)\n"
     "%v : f32[B, S, 2] = linear(%u, %wv, %bv)\n"
     "%y : f32[B, S, 2] = attention(%q, %k, %v) " ATTENTION Y,
     0, 3, 0, 0, 0, 0},
};

static int count_nodes(struct lathe_graph *g, enum lathe_op op) {
    int count = 0;
    LATHE_FOR_NODES(g, n)
    count += lathe_node_at(g, n)->op == op;
    return count;
}

static void run_graph(struct lathe_graph *g, const char *name, struct graph_run *run) {
    struct lathe_diag diag;
    int64_t symbols[32];
    uint32_t seed = 3;
    lathe_diag_reset(&diag);
    for (uint32_t i = 0; i < lathe_dims_symbol_count(g->dims) && i < 32; i++)
        symbols[i] = *lathe_dims_symbol_name(g->dims, i) == 'B' ? 2 : 5;
    if (graph_run_begin(run, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    for (uint32_t i = 0; i < g->input_count; i++) {
        struct lathe_tensor *t = &run->tensors[g->inputs[i]];
        for (int64_t k = 0; k < lathe_tensor_count(t); k++)
            ((float *)t->data)[k] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
    }
    if (graph_run_nodes(run, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
}

static void test_case(void **state) {
    const struct qkv_case *c = *state;
    struct lathe_graph *g = NULL, *plain = NULL;
    struct lathe_diag diag;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(c->text, &g, &diag) != LATHE_OK || lathe_graph_parse(c->text, &plain, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    struct lathe_pass_options options = {0};
    struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .scratch = lathe_arena_new(), .diag = &diag};
    if (lathe_pass_fuse_qkv(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    assert_int_equal(ctx.changes, c->merged);
    assert_int_equal(count_nodes(g, LATHE_OP_LINEAR), c->linear);
    assert_int_equal(count_nodes(g, LATHE_OP_SLICE), c->slices);
    assert_int_equal(count_nodes(g, LATHE_OP_CONCAT), c->merged > 0);
    /* sums of biases are gone; one case adds its two results */
    assert_int_equal(count_nodes(g, LATHE_OP_ADD), c->merged == 2);
    LATHE_FOR_NODES(g, n) {
        if (lathe_node_at(g, n)->op != LATHE_OP_ATTENTION)
            continue;
        struct lathe_attrs a = lathe_node_attrs(g, n);
        assert_int_equal(lathe_attr_int(&a, LATHE_ATTR_Q_OFFSET, 0), c->q);
        assert_int_equal(lathe_attr_int(&a, LATHE_ATTR_K_OFFSET, 0), c->k);
        assert_int_equal(lathe_attr_int(&a, LATHE_ATTR_V_OFFSET, 0), c->v);
    }
    struct graph_run before, after;
    run_graph(plain, c->name, &before);
    run_graph(g, c->name, &after);
    for (uint32_t i = 0; i < g->output_count; i++) {
        const struct lathe_tensor *x = &before.tensors[plain->outputs[i]], *y = &after.tensors[g->outputs[i]];
        assert_int_equal(lathe_tensor_count(x), lathe_tensor_count(y));
        for (int64_t k = 0; k < lathe_tensor_count(x); k++)
            if (!(fabsf(((const float *)x->data)[k] - ((const float *)y->data)[k]) <= 1e-6f))
                fail_msg("%s: output %u differs at %lld", c->name, i, (long long)k);
    }
    graph_run_end(&before);
    graph_run_end(&after);
    lathe_arena_free(&ctx.scratch);
    lathe_graph_free(&g);
    lathe_graph_free(&plain);
}

int main(void) {
    enum { COUNT = sizeof cases / sizeof *cases };
    static struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, test_case, NULL, NULL, (void *)&cases[i]};
    return _cmocka_run_group_tests("fuse_qkv", tests, COUNT, NULL, NULL);
}
