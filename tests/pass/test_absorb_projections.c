/* absorb_projections, behind pack_rows and trim_unused_rows: what the model gives is as before, by each rule of masked
 * rows, with sequences without keys among them, in f32, bf16 and 8 bits; and what stays as it was, with the reason. */
#include "calibration.h"
#include "graph_run.h"
#include "pass.h"
#include "report.h"
#include "text.h"

#include "ops_enums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 5, SEQ = 9, WO = 24 };

struct model {
    const char *name;
    int k, heads, d, dv, kv_heads;        /* d = 0: 64, dv = 0: d, kv_heads = 0: heads; k = 0: 256 */
    bool values_first, transposed, apart; /* apart: keys and values of layers of their own */
    bool whole;                           /* Q, K and V in one constant */
    bool no_bias, no_value_bias;
    bool bytes; /* large enough that the layers of one row a sequence go to 8 bits */
    int rule;
    const char *token;  /* read at: "first", "last", "index" */
    const char *mask;   /* operand 4 */
    const char *attrs;  /* more of the attention */
    const char *layer;  /* attributes of the layer of keys, when it is apart */
    const char *stored; /* type of the weights: "f32" (NULL) or "i8" */
    const char *missed; /* NULL: it is absorbed */
};

static const struct model models[] = {
    {"the last layer of a classifier", .k = 512, .heads = 4, .bytes = true},
    {"of another spelling, in 8 bits", .k = 512, .heads = 4, .bytes = true, .apart = true, .transposed = true,
     .rule = LATHE_MASKED_ZERO, .token = "index"},
    {"a few wide heads, in 8 bits", .k = 512, .heads = 2, .d = 128, .bytes = true, .values_first = true,
     .mask = "%slopes", .no_value_bias = true},
    {"values before keys", .heads = 4, .values_first = true},
    {"transposed weights", .heads = 4, .transposed = true},
    {"transposed weights, values before keys", .heads = 4, .transposed = true, .values_first = true},
    {"layers of their own", .heads = 4, .apart = true},
    {"layers of their own, transposed", .heads = 4, .apart = true, .transposed = true},
    {"no bias", .heads = 4, .no_bias = true},
    {"narrow heads, other widths of values", .k = 384, .heads = 3, .d = 40, .dv = 16},
    {"wide values", .k = 384, .heads = 3, .d = 32, .dv = 96},
    {"one head", .k = 400, .heads = 1, .d = 100, .dv = 16},
    {"the last token", .heads = 4, .token = "last"},
    {"a token at an index", .heads = 4, .token = "index"},
    {"zeros without keys", .heads = 4, .rule = LATHE_MASKED_ZERO},
    {"zeros without keys, at an index", .heads = 4, .rule = LATHE_MASKED_ZERO, .token = "index"},
    {"zeros without keys and no bias", .heads = 4, .rule = LATHE_MASKED_ZERO, .no_bias = true},
    {"zeros, and the row is told of", .heads = 4, .rule = LATHE_MASKED_FLAG},
    {"the softmax of all without keys", .heads = 4, .rule = LATHE_MASKED_SOFTMAX},
    {"a bias by position", .heads = 4, .mask = "%far"},
    {"a bias by head and position", .heads = 4, .mask = "%slopes"},
    {"a bias by position, zeros without keys, no bias of values", .heads = 4, .mask = "%far", .rule = LATHE_MASKED_ZERO,
     .no_value_bias = true},
    {"causal, the last token", .heads = 4, .token = "last", .attrs = ", causal=1"},
    {"a window", .heads = 4, .token = "index", .attrs = ", window=2"},
    {"a scale", .heads = 4, .attrs = ", scale=0.3"},
    /* not so */
    {"a soft cap", .heads = 4, .attrs = ", softcap=2.0", .missed = "soft cap"},
    {"shared keys", .heads = 8, .kv_heads = 2, .missed = "heads that share keys"},
    {"narrow heads", .heads = 8, .d = 16, .missed = "heads of 16 columns"},
    {"values that fill no panel", .heads = 4, .dv = 24, .missed = "a multiple of 16"},
    {"rows that fill no panel", .k = 200, .heads = 4, .missed = "rows of 200 columns"},
    {"a small matrix", .k = 64, .heads = 2, .missed = "a small matrix of keys, 64 x 128"},
    {"an activation", .heads = 4, .apart = true, .layer = "{activation=1}", .missed = "an activation or residual"},
    {"Q, K and V in one constant", .heads = 4, .whole = true, .missed = "queries among other columns"},
    {"a bias of values, a window and zeros", .heads = 4, .rule = LATHE_MASKED_ZERO, .attrs = ", window=2",
     .missed = "must not get"},
    {"a bias of values, a mask and zeros", .heads = 4, .rule = LATHE_MASKED_ZERO, .mask = "%hidden",
     .missed = "must not get"},
    {"weights in few bits", .heads = 4, .stored = "i8", .missed = "in few bits"},
};

static uint32_t seed;
static float uniform(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1;
}

static void numbers(struct lathe_text *t, int count, double size, bool whole) {
    lathe_text_append(t, "{");
    for (int i = 0; i < count; i++)
        lathe_text_append(t, whole ? "%s%.0f" : "%s%.3f", i ? ", " : "", (double)uniform() * size);
    lathe_text_append(t, "}\n");
}

/* %name [k, n], or [n, k] when the model's weights are transposed. */
static void weight(struct lathe_text *t, const struct model *m, const char *name, int k, int n) {
    int rows = m->transposed ? n : k, cols = m->transposed ? k : n;
    if (m->stored) {
        lathe_text_append(t, "const %%%s_q : i8[%d, %d] = ", name, rows, cols);
        numbers(t, k * n, 100, true);
        lathe_text_append(t, "%%%s : f32[%d, %d] = dequantize_linear(%%%s_q, %%step)\n", name, rows, cols, name);
        return;
    }
    lathe_text_append(t, "const %%%s : f32[%d, %d] = ", name, rows, cols);
    numbers(t, k * n, 1.5 / sqrt(k), false);
}

static void bias(struct lathe_text *t, const struct model *m, const char *name, int n, bool zero) {
    if (m->no_bias)
        return;
    lathe_text_append(t, "const %%%s : f32[%d] = ", name, n);
    numbers(t, n, zero ? 0 : 1, false);
}

static void token(struct lathe_text *t, const char *which, int width) {
    if (which && !strcmp(which, "last"))
        lathe_text_append(t,
                          "%%s : f32[batch, 1, %d] = slice(%%y) {axes=[1], starts=<seq-1>, ends=<seq>, steps=[1]}\n"
                          "%%c : f32[batch, %d] = reshape(%%s)\n",
                          width, width);
    else if (which && !strcmp(which, "index"))
        lathe_text_append(t,
                          "%%place : i64[batch] = arg_max(%%attention_mask) {axis=1, keepdims=0, select_last=0}\n"
                          "%%b0 : i64[batch] = range() {start=0, delta=1}\n%%len : i64[1] = dims_tensor() "
                          "{values=<seq>}\n%%base : i64[batch] = mul(%%b0, %%len)\n"
                          "%%at : i64[batch] = add(%%place, %%base)\n%%flat : f32[batch*seq, %d] = reshape(%%y)\n"
                          "%%c : f32[batch, %d] = gather(%%flat, %%at) {axis=0}\n",
                          width, width);
    else
        lathe_text_append(t, "const %%zero : i64[] = {0}\n%%c : f32[batch, %d] = gather(%%y, %%zero) {axis=1}\n",
                          width);
    lathe_text_append(t, "output %%c as \"c\"\n");
}

static struct lathe_graph *make(const struct model *m) {
    struct lathe_text t = {0};
    struct lathe_graph *g = NULL;
    static struct lathe_diag diag;
    int k = m->k ? m->k : 256, d = m->d ? m->d : 64, dv = m->dv ? m->dv : d;
    int kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    int wq = m->heads * d, wk = kv_heads * d, wv = kv_heads * dv, all = wq + wk + wv, out = m->heads * dv;
    const char *trans = m->transposed ? "trans_b=1" : "trans_b=0";
    seed = 5;
    lathe_text_append(&t, "input %%e : f32[batch, seq, %d]\ninput %%attention_mask : i64[batch, seq]\n", k);
    lathe_text_append(&t, "const %%step : f32[] = {0.001}\nconst %%slope : f32[%d, 1, 1] = ", m->heads);
    numbers(&t, m->heads, 0.5, false);
    lathe_text_append(&t, "%%p : i64[seq] = range() {start=0, delta=1}\n%%far : f32[seq] = cast(%%p) {to=1}\n"
                          "const %%four : i64[] = {4}\n%%hidden : bool[seq] = less(%%p, %%four)\n");
    lathe_text_append(&t, "%%slopes : f32[%d, 1, seq] = mul(%%slope, %%far)\n", m->heads);
    weight(&t, m, "wo", out, WO);
    if (m->whole) {
        weight(&t, m, "w", k, all);
    } else {
        weight(&t, m, "wq", k, wq);
        weight(&t, m, "wk", k, wk);
        weight(&t, m, "wv", k, wv);
    }
    bias(&t, m, "bq", wq, false);
    bias(&t, m, "bk", wk, false);
    bias(&t, m, "bv", wv, m->no_value_bias);
    const char *keys = "%qkv", *values = "%qkv", *queries = "%qkv";
    int k_at = wq + (m->values_first ? wv : 0), v_at = wq + (m->values_first ? 0 : wk);
    if (m->apart) {
        lathe_text_append(&t, "%%q : f32[batch, seq, %d] = linear(%%e, %%wq%s) {%s}\n", wq, m->no_bias ? "" : ", %bq",
                          trans);
        lathe_text_append(&t, "%%k : f32[batch, seq, %d] = linear(%%e, %%wk%s) ", wk, m->no_bias ? "" : ", %bk");
        lathe_text_append(&t, m->layer ? "%s\n" : "{%s}\n", m->layer ? m->layer : trans);
        lathe_text_append(&t, "%%v : f32[batch, seq, %d] = linear(%%e, %%wv%s) {%s}\n", wv, m->no_bias ? "" : ", %bv",
                          trans);
        queries = "%q";
        keys = "%k";
        values = "%v";
        k_at = v_at = 0;
    } else {
        if (!m->whole)
            lathe_text_append(&t, "%%w : f32[%d, %d] = concat(%%wq, %s) {axis=%d}\n", m->transposed ? all : k,
                              m->transposed ? k : all, m->values_first ? "%wv, %wk" : "%wk, %wv", !m->transposed);
        if (!m->no_bias) { /* one constant, as fuse_qkv makes it */
            lathe_text_append(&t, "const %%b : f32[%d] = ", all);
            seed = 99;
            lathe_text_append(&t, "{");
            for (int i = 0; i < all; i++) {
                bool of_values = i >= v_at && i < v_at + wv;
                double x = (double)uniform();
                lathe_text_append(&t, "%s%.4f", i ? ", " : "", of_values && m->no_value_bias ? 0 : x);
            }
            lathe_text_append(&t, "}\n");
        }
        lathe_text_append(&t, "%%qkv : f32[batch, seq, %d] = linear(%%e, %%w%s) {%s}\n", all, m->no_bias ? "" : ", %b",
                          trans);
    }
    lathe_text_append(&t, "%%h : f32[batch, seq, %d] = attention(%s, %s, %s, %%attention_mask%s%s) ", out, queries,
                      keys, values, m->mask ? ", " : "", m->mask ? m->mask : "");
    lathe_text_append(&t, "{heads=%d, head_dim=%d, v_head_dim=%d, kv_heads=%d, k_offset=%d, v_offset=%d, ", m->heads, d,
                      dv, kv_heads, k_at, v_at);
    lathe_text_append(&t, "masked_row=%d%s}\n", m->rule, m->attrs ? m->attrs : "");
    lathe_text_append(&t, "%%y : f32[batch, seq, %d] = linear(%%h, %%wo) {%s}\n", WO, trans);
    token(&t, m->token, WO);
    assert_false(t.failed);
    if (lathe_graph_parse(t.data, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", m->name, diag.text);
    lathe_text_free(&t);
    return g;
}

/* ---- running */

static void run_passes(struct lathe_pass_ctx *ctx, const char *name, const char *const *passes, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        ctx->changes = 0;
        if (lathe_pass_by_name(passes[i])->run(ctx) != LATHE_OK || lathe_graph_check(ctx->graph, ctx->diag) != LATHE_OK)
            fail_msg("%s: after %s: %s", name, passes[i], ctx->diag->text);
        lathe_arena_reset(ctx->scratch);
    }
}

/* What the graph gives, and what its linear layers saw. */
static float *run(struct lathe_graph *g, const char *name, struct lathe_calibration *seen) {
    static const int64_t symbols[32] = {BATCH, SEQ, 34};
    /* all keys, keys on the right, none, on the left, one */
    static const int64_t mask[BATCH][SEQ] = {{1, 1, 1, 1, 1, 1, 1, 1, 1},
                                             {0, 0, 0, 1, 1, 1, 0, 1, 1},
                                             {0},
                                             {1, 1, 1, 1, 1, 1, 0, 0, 0},
                                             {0, 0, 0, 0, 0, 0, 0, 0, 1}};
    struct graph_run run;
    static struct lathe_diag diag;
    int64_t symbol[32];
    memcpy(symbol, symbols, sizeof symbol);
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op != LATHE_OP_ROW_MAP)
            continue;
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        int64_t rule = lathe_attr_int(&attrs, LATHE_ATTR_MASKED_ROW, 0), kept = 0;
        bool whole = rule == LATHE_MASKED_UNIFORM || rule == LATHE_MASKED_SOFTMAX;
        uint32_t positions = 0;
        const int64_t *at = lathe_attr_ints(&attrs, LATHE_ATTR_VALUES, &positions);
        for (int b = 0; b < BATCH; b++) {
            int64_t keys = 0, stay = 0, first = 0;
            for (int s = 0; s < SEQ; s++)
                keys += mask[b][s];
            for (int s = SEQ; s-- > 0;)
                first = mask[b][s] ? s : first;
            for (uint32_t i = 0; i < positions; i++)
                stay += !mask[b][(at[i] + SEQ) % SEQ];
            stay += g->nodes[n].n_in > 1 && !mask[b][first];
            bool all = whole && (keys == 0 || (lathe_attr_int(&attrs, LATHE_ATTR_CAUSAL, 0) && stay));
            kept += all ? SEQ : keys + stay;
        }
        symbol[2] = kept;
    }
    if (graph_run_begin(&run, g, symbol, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    struct lathe_tensor *e = &run.tensors[g->inputs[0]];
    seed = 11;
    for (int64_t i = 0; i < lathe_tensor_count(e); i++)
        ((float *)e->data)[i] = uniform() * 2;
    memcpy(run.tensors[g->inputs[1]].data, mask, sizeof mask);
    if (graph_run_nodes(&run, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    LATHE_FOR_NODES(g, n) {
        lathe_value_id x = g->nodes[n].op == LATHE_OP_LINEAR ? g->nodes[n].in[0] : LATHE_NONE;
        if (!seen || x == LATHE_NONE || lathe_calibration_of(seen, x))
            continue;
        struct lathe_calibration_input *in = &seen->at[seen->count++];
        const struct lathe_tensor *t = &run.tensors[x];
        *in = (struct lathe_calibration_input){.value = x, .stride = 1, .finite = true, .k = t->dims[t->rank - 1]};
        in->rows = in->seen = lathe_tensor_count(t) / in->k;
        in->sample = malloc((size_t)lathe_tensor_count(t) * sizeof *in->sample);
        in->absmax = calloc((size_t)in->k, sizeof *in->absmax);
        memcpy(in->sample, t->data, (size_t)lathe_tensor_count(t) * sizeof *in->sample);
        for (int64_t i = 0; i < lathe_tensor_count(t); i++) {
            in->absmax[i % in->k] = fmaxf(in->absmax[i % in->k], fabsf(in->sample[i]));
            in->low = fminf(in->low, in->sample[i]);
            in->high = fmaxf(in->high, in->sample[i]);
        }
    }
    const struct lathe_tensor *y = &run.tensors[g->outputs[0]];
    assert_int_equal(lathe_tensor_count(y), BATCH * WO);
    float *copy = malloc(BATCH * WO * sizeof *copy);
    memcpy(copy, y->data, BATCH * WO * sizeof *copy);
    graph_run_end(&run);
    return copy;
}

/* |a - b| / |a| */
static double off(const float *a, const float *b) {
    double d = 0, all = 0;
    for (int i = 0; i < BATCH * WO; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)a[i] * a[i];
    }
    return sqrt(d / all);
}

static unsigned grouped(const struct lathe_graph *g, enum lathe_op op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n) {
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        count += g->nodes[n].op == op && lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1) > 1;
    }
    return count;
}

static void absorb(void **state) {
    const struct model *m = *state;
    static const char *const before[] = {"pack_rows", "drop_no_ops", "merge_equal_nodes", "trim_unused_rows",
                                         "drop_dead_nodes"};
    static const char *const after[] = {"absorb_projections", "drop_dead_nodes"};
    static const char *const in_bf16[] = {"choose_precision", "drop_dead_nodes"};
    static const char *const in_bytes[] = {"quantize_linear", "smooth_activations", "drop_dead_nodes"};
    static struct lathe_diag diag;
    struct lathe_report *report = lathe_report_new();
    struct lathe_target target = {.int8_scheme = LATHE_INT8_U8S8};
    struct lathe_calibration_input at[16];
    struct lathe_calibration seen = {.at = at};
    struct lathe_quantize_log log = {0};
    struct lathe_quantize_options quantize = {.calibration = &seen, .jobs = 1, .log = &log};
    struct lathe_text json = {0};
    unsigned groups = m->missed ? 0 : 2;
    for (int precision = 0; precision < (m->missed ? 1 : m->bytes ? 3 : 2); precision++) {
        struct lathe_pass_options options = {.bf16 = precision == 1};
        struct lathe_pass_ctx ctx = {.graph = make(m),
                                     .target = &target,
                                     .options = &options,
                                     .report = report,
                                     .scratch = lathe_arena_new(),
                                     .diag = &diag};
        lathe_diag_reset(&diag);
        run_passes(&ctx, m->name, before, 5);
        float *want = run(ctx.graph, m->name, NULL);
        run_passes(&ctx, m->name, after, 2);
        /* one head is a group of its own: no attribute changes what it does */
        assert_int_equal(grouped(ctx.graph, LATHE_OP_LINEAR), m->heads > 1 ? groups : 0);
        seen.count = 0;
        float *got = run(ctx.graph, m->name, &seen);
        if (!(off(want, got) < 2e-6))
            fail_msg("%s: off by %g", m->name, off(want, got));
        free(got);
        options.quantize = precision == 2 ? &quantize : NULL;
        if (precision > 0) {
            run_passes(&ctx, m->name, precision == 1 ? in_bf16 : in_bytes, precision == 1 ? 2 : 3);
            enum lathe_op op = precision == 1 ? LATHE_OP_LINEAR_BF16 : LATHE_OP_LINEAR_Q8;
            assert_int_equal(grouped(ctx.graph, op), m->heads > 1 ? 2 : 0);
            got = run(ctx.graph, m->name, NULL);
            if (!(off(want, got) < (precision == 1 ? 0.01 : 0.03)))
                fail_msg("%s, precision %d: off by %g", m->name, precision, off(want, got));
            free(got);
        }
        for (uint32_t i = 0; i < seen.count; i++) {
            free(at[i].sample);
            free(at[i].absmax);
        }
        free(want);
        lathe_arena_free(&ctx.scratch);
        lathe_graph_free(&ctx.graph);
    }
    lathe_report_json(report, true, &json);
    if (m->missed && !strstr(json.data, m->missed))
        fail_msg("%s: no \"%s\" in %s", m->name, m->missed, json.data);
    if (!m->missed && !strstr(json.data, "absorbed_projections"))
        fail_msg("%s: the report does not tell: %s", m->name, json.data);
    lathe_text_free(&json);
    lathe_report_free(&report);
}

int main(void) {
    enum { COUNT = sizeof models / sizeof *models };
    struct CMUnitTest tests[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        tests[i] =
            (struct CMUnitTest){.name = models[i].name, .test_func = absorb, .initial_state = (void *)&models[i]};
    return cmocka_run_group_tests_name("absorb_projections", tests, NULL, NULL);
}
