/* The cost model: what must hold of its estimates whatever the figures of a target are. How near they come to a clock
 * is for tests/bench/cost_model.py to say. */
#include "built_graph.h"
#include "cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void weight(struct lathe_text *out, const char *name, int k, int n) {
    lathe_text_append(out, "const %%%s : f32[%d, %d] = {1", name, k, n);
    for (int i = 1; i < k * n; i++)
        lathe_text_append(out, ",0");
    lathe_text_append(out, "}\n");
}

/* One encoder layer of width 64; the feed-forward part is `wide` columns. */
static char *layer(int wide) {
    struct lathe_text t = {0};
    lathe_text_append(&t, "input %%x : f32[batch, seq, 64]\n");
    weight(&t, "qkv", 64, 192);
    weight(&t, "o", 64, 64);
    weight(&t, "up", 64, wide);
    weight(&t, "down", wide, 64);
    lathe_text_append(&t,
                      "%%a : f32[batch, seq, 192] = linear(%%x, %%qkv)\n"
                      "%%b : f32[batch, seq, 64] = attention(%%a, %%a, %%a) {heads=4, head_dim=16, v_head_dim=16, "
                      "scale=0.25, q_offset=0, k_offset=64, v_offset=128, kv_heads=4}\n"
                      "%%c : f32[batch, seq, 64] = linear(%%b, %%o, _, %%x)\n"
                      "%%n : f32[batch, seq, 64] = layer_norm(%%c) {axis=2, epsilon=1e-5}\n"
                      "%%d : f32[batch, seq, %d] = linear(%%n, %%up) {activation=2}\n"
                      "%%e : f32[batch, seq, 64] = linear(%%d, %%down, _, %%n)\n"
                      "output %%e as \"y\"\n",
                      wide);
    assert_false(t.failed);
    return t.data;
}

static void build(struct built *b, int wide, const char *target, int64_t max_seq) {
    static struct lathe_target t;
    struct lathe_emit_options options = {.target = &t, .jobs = 1, .max_seq = max_seq, .max_batch = 4};
    assert_int_equal(lathe_target_load(target, &t, NULL), LATHE_OK);
    char *text = layer(wide);
    build_graph(b, text, &options);
    free(text);
}

static const struct lathe_fmt_step *step_of(const struct built *b, enum lathe_op op, unsigned nth) {
    const struct lathe_plan *p = &b->artifact->plan;
    for (uint32_t i = 0; i < p->head->step_count; i++)
        if (p->steps[i].op == op && nth-- == 0)
            return &p->steps[i];
    fail_msg("no step %u of operator %d", nth, op);
    return NULL;
}

/* Every step has a cost; a product's grows with its columns, attention's with the square of the length, others' with
 * the length; the batch counts for nothing. */
static void steps(void **state) {
    (void)state;
    struct built narrow, wide, longer;
    build(&narrow, 256, "haswell", 256);
    build(&wide, 512, "haswell", 256);
    build(&longer, 256, "haswell", 512);
    for (uint32_t i = 0; i < narrow.artifact->plan.head->step_count; i++)
        assert_true(narrow.artifact->plan.steps[i].cost > 0);
    double up = step_of(&wide, LATHE_OP_LINEAR, 2)->cost / (double)step_of(&narrow, LATHE_OP_LINEAR, 2)->cost;
    assert_true(up > 1.8 && up < 2.2);
    double square =
        step_of(&longer, LATHE_OP_ATTENTION, 0)->cost / (double)step_of(&narrow, LATHE_OP_ATTENTION, 0)->cost;
    assert_true(square > 3 && square < 4.2);
    double norm =
        step_of(&longer, LATHE_OP_LAYER_NORM, 0)->cost / (double)step_of(&narrow, LATHE_OP_LAYER_NORM, 0)->cost;
    assert_true(norm > 1.6 && norm < 2.5);
    assert_true(step_of(&narrow, LATHE_OP_LINEAR, 0)->cost > step_of(&narrow, LATHE_OP_LINEAR, 1)->cost);
    free_built(&narrow);
    free_built(&wide);
    free_built(&longer);
}

static void not_known(void **state) {
    (void)state;
    struct built b;
    struct lathe_cost_prediction all[LATHE_COST_PREDICTIONS];
    build_graph(&b, small_encoder, NULL); /* no target */
    for (uint32_t i = 0; i < b.artifact->plan.head->step_count; i++)
        assert_int_equal(b.artifact->plan.steps[i].cost, 0);
    assert_int_equal(lathe_cost_predict_all(&b.artifact->plan, NULL, 1, 512, all), 0);
    free_built(&b);
}

/* Predictions of each shipped target: one for each length and number of threads, longer takes longer, two threads never
 * longer than one, shares are shares. */
static void predictions(void **state) {
    (void)state;
    struct built b;
    struct lathe_cost_prediction all[LATHE_COST_PREDICTIONS];
    build(&b, 256, "haswell", 300);
    for (unsigned i = 0; i < lathe_target_builtin_count(); i++) {
        struct lathe_target t;
        assert_int_equal(lathe_target_load(lathe_target_builtin_name(i), &t, NULL), LATHE_OK);
        unsigned n = lathe_cost_predict_all(&b.artifact->plan, &t, 4, 300, all);
        assert_int_equal(n, 2 * 6); /* 8 to 256 */
        for (unsigned k = 0; k < n; k++) {
            double shares = 0;
            for (unsigned s = 0; s < LATHE_COST_KINDS; s++) {
                assert_true(all[k].share[s] >= 0);
                shares += all[k].share[s];
            }
            assert_true(shares > 0 && shares <= 1.000001);
            assert_int_equal(all[k].batch, 1);
            assert_int_equal(all[k].threads, k < 6 ? 1 : t.cores > 1 ? t.cores : 2);
            assert_true(all[k].ms > 0 && all[k].products > 0);
            if (k > 0 && k < 6) /* two threads may share a run that the shorter one leaves to one */
                assert_true(all[k].length > all[k - 1].length && all[k].ms > all[k - 1].ms);
            if (k >= 6)
                assert_true(all[k].ms <= all[k - 6].ms);
        }
    }
    free_built(&b);
}

/* More of a figure never makes a run slower where it is a rate, nor faster where it is a time. */
static void figures(void **state) {
    (void)state;
    struct built b;
    struct lathe_cost_prediction before[LATHE_COST_PREDICTIONS], after[LATHE_COST_PREDICTIONS];
    struct lathe_target t;
    static const struct {
        size_t at;
        bool rate, matters; /* this plan's weights lie in the second cache */
    } keys[] = {
#define KEY(name, rate, matters) {offsetof(struct lathe_target, name), rate, matters}
        KEY(ghz, true, true),
        KEY(memory_gbps, true, false),
        KEY(cost.f32, true, true),
        KEY(cost.efficiency, true, true),
        KEY(cost.attention, true, true),
        KEY(cost.core_gbps, true, false),
        KEY(cost.l3_gbps, true, false),
        KEY(cost.l2_gbps, true, true),
        KEY(cost.exp, false, true),
        KEY(cost.gelu, false, true),
        KEY(cost.element, false, true),
        KEY(cost.ramp_rows, false, true),
        KEY(cost.step_us, false, true),
        KEY(cost.phase_us, false, true),
        KEY(cost.run_us, false, true),
#undef KEY
    };
    build(&b, 256, "haswell", 512);
    assert_int_equal(lathe_target_load("haswell", &t, NULL), LATHE_OK);
    unsigned n = lathe_cost_predict_all(&b.artifact->plan, &t, 4, 512, before);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct lathe_target changed = t;
        double *figure = (double *)(void *)((char *)&changed + keys[i].at);
        bool any = false;
        *figure *= 1.3;
        assert_int_equal(lathe_cost_predict_all(&b.artifact->plan, &changed, 4, 512, after), n);
        for (unsigned k = 0; k < n; k++) {
            /* a slower machine may pass the bound from which on threads share a run */
            if (before[k].threads == 1 && (keys[i].rate ? after[k].ms > before[k].ms : after[k].ms < before[k].ms))
                fail_msg("figure %zu, length %lld: %g after %g ms", i, (long long)after[k].length, after[k].ms,
                         before[k].ms);
            any |= after[k].ms != before[k].ms;
        }
        assert_true(any || !keys[i].matters);
    }
    free_built(&b);
}

/* What is trimmed counts for all rows but one, what is absorbed for all and is paid for once; a plan that packs no rows
 * saves nothing on padding. */
static void saved(void **state) {
    (void)state;
    struct built b;
    struct lathe_cost_savings none, some;
    build(&b, 256, "haswell", 512);
    assert_true(lathe_cost_saved(&b.artifact->plan, &(struct lathe_work_saved){0}, 4, 512, &none));
    assert_int_equal(none.length, 128);
    /* per token: 64 x (192 + 64) + 2 x 64 x 256 of the products, 128 keys x 4 heads x 32 of the attention */
    assert_true(none.products == 128.0 * (64 * 256 + 2 * 64 * 256 + 128 * 4 * 32));
    assert_true(none.trimmed == 0 && !none.packs);
    struct lathe_work_saved saved = {.row = 1000, .pair = 10};
    assert_true(lathe_cost_saved(&b.artifact->plan, &saved, 4, 512, &some));
    double taken = 127.0 * (1000 + 128 * 10);
    assert_true(fabs(some.trimmed - taken / (none.products + taken)) < 1e-12 && some.absorbed == 0);
    saved.token = 2000;
    saved.once = 500;
    assert_true(lathe_cost_saved(&b.artifact->plan, &saved, 4, 512, &some));
    double absorbed = 128.0 * 2000 - 500;
    assert_true(fabs(some.absorbed - absorbed / (none.products + taken + absorbed)) < 1e-12);
    assert_true(fabs(some.trimmed - taken / (none.products + taken + absorbed)) < 1e-12);
    free_built(&b);
}

/* A machine at hand is described by a shipped target, the same each time. */
static void native(void **state) {
    (void)state;
    struct lathe_target a, b, from;
    assert_int_equal(lathe_target_load("native", &a, NULL), LATHE_OK);
    assert_int_equal(lathe_target_load("native", &b, NULL), LATHE_OK);
    assert_true(lathe_cost_known(&a));
    assert_string_equal(a.cost_from, b.cost_from);
    assert_int_equal(lathe_target_load(a.cost_from, &from, NULL), LATHE_OK);
    assert_memory_equal(&a.cost, &from.cost, sizeof a.cost);
    assert_true((from.features & ~a.features) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps),   cmocka_unit_test(not_known), cmocka_unit_test(predictions),
        cmocka_unit_test(figures), cmocka_unit_test(native),    cmocka_unit_test(saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
