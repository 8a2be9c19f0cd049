/* Sessions: binding, refusals, shapes, defaults, determinism. */
#include "built_graph.h"

#include "plan.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct built encoder;

static int set_up(void **state) {
    (void)state;
    build_graph(&encoder, small_encoder, &(struct lathe_emit_options){.jobs = 1, .max_batch = 8, .max_seq = 32});
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free_built(&encoder);
    return 0;
}

static struct lathe_session *session(const struct lathe_session_options *options) {
    static _Thread_local struct lathe_diag why;
    lathe_diag_reset(&why);
    struct lathe_session *s = NULL;
    if (lathe_session_new(encoder.artifact, options, &s, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    return s;
}

static void set(struct lathe_session *s, const char *name, int64_t batch, int64_t seq, const int64_t *data) {
    static _Thread_local struct lathe_diag why;
    lathe_diag_reset(&why);
    int i = lathe_artifact_find_input(encoder.artifact, name);
    assert_true(i >= 0);
    if (lathe_session_set_input(s, (unsigned)i, LATHE_I64, 2, (int64_t[]){batch, seq}, data, &why) != LATHE_OK)
        fail_msg("%s", why.text);
}

static void run(struct lathe_session *s) {
    static _Thread_local struct lathe_diag why;
    lathe_diag_reset(&why);
    if (lathe_session_run(s, &why) != LATHE_OK)
        fail_msg("%s", why.text);
}

static void expect_refused(struct lathe_session *s, enum lathe_status status, const char *words) {
    static _Thread_local struct lathe_diag why;
    lathe_diag_reset(&why);
    assert_int_equal(lathe_session_run(s, &why), status);
    if (!strstr(why.text, words))
        fail_msg("'%s' does not contain '%s'", why.text, words);
    assert_null(lathe_session_output(s, 0));
}

static const float table[7][4] = {
    {0.1f, -0.2f, 0.3f, 0.4f},  {1, 2, -3, 4}, {0.5f, 0.25f, 0.125f, -1}, {2, 1, 0, -1}, {0.7f, 0.6f, 0.5f, 0.4f},
    {-0.1f, -0.2f, 0.9f, 1.1f}, {0, 0, 1, 0}};
static const float types[2][4] = {{0, 0, 0, 0}, {1, -1, 0.5f, 0.25f}};

static double weight(int k, int n) {
    return k == 0 ? n + 1 : k == 1 ? (n % 2 ? n + 1 : -(n + 1)) : k == 2 ? n % 2 == 0 : n % 2 == 1;
}

static double expected(int64_t id, int64_t type, int n) {
    double y = 0;
    for (int k = 0; k < 4; k++)
        y += tanh((double)table[id][k] + types[type][k]) * weight(k, n);
    double first = y + n;
    return (y > 0 ? y : 0) + first;
}

static void test_values(void **state) {
    (void)state;
    enum { B = 3, S = 5 };
    int64_t ids[B * S], mask[B * S], segments[B * S];
    for (int i = 0; i < B * S; i++) {
        ids[i] = i * 5 % 7;
        mask[i] = i % S < 1 + i / S;
        segments[i] = i % 2;
    }
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct lathe_session *s =
            session(&(struct lathe_session_options){.threads = threads, .poison = 0xa5, .always_share = true});
        assert_int_equal(lathe_session_threads(s), threads);
        set(s, "input_ids", B, S, ids);
        set(s, "attention_mask", B, S, mask);
        for (int with = 0; with < 2; with++) {
            if (with)
                set(s, "token_type_ids", B, S, segments);
            run(s);
            const struct lathe_tensor_view *y = lathe_session_output(s, 0), *p = lathe_session_output(s, 1);
            assert_int_equal(y->rank, 3);
            assert_int_equal(y->dims[2], 20);
            assert_int_equal(y->bytes, B * S * 20 * 4);
            for (int i = 0; i < B * S; i++)
                for (int n = 0; n < 20; n++)
                    assert_float_equal(((const float *)y->data)[i * 20 + n],
                                       expected(ids[i], with ? segments[i] : 0, n), 1e-4);
            for (int b = 0; b < B; b++)
                for (int n = 0; n < 20; n++) {
                    double sum = 0;
                    for (int t = 0; t < S; t++)
                        sum += mask[b * S + t] ? expected(ids[b * S + t], with ? segments[b * S + t] : 0, n) : 0;
                    assert_float_equal(((const float *)p->data)[b * 20 + n], sum, 1e-3);
                }
            assert_memory_equal(lathe_session_output(s, 2)->data, mask, sizeof mask);
            assert_ptr_not_equal(lathe_session_output(s, 2)->data, mask);
        }
        lathe_session_close(&s);
    }
}

static void test_ports(void **state) {
    (void)state;
    const struct lathe_artifact *a = encoder.artifact;
    assert_int_equal(lathe_artifact_input_count(a), 3);
    assert_int_equal(lathe_artifact_output_count(a), 3);
    const struct lathe_port *ids = lathe_artifact_input(a, 0);
    assert_string_equal(ids->name, "input_ids");
    assert_int_equal(ids->id_limit, 7);
    assert_false(ids->optional);
    assert_int_equal(ids->dims[1], -1);
    assert_string_equal(ids->dim_names[1], "seq");
    assert_true(lathe_artifact_input(a, 2)->optional);
    assert_int_equal(lathe_artifact_input(a, 2)->id_limit, 2);
    assert_int_equal(lathe_artifact_input(a, 1)->id_limit, 0);
    assert_true(lathe_artifact_output(a, 0)->per_token);
    assert_false(lathe_artifact_output(a, 1)->per_token);
    assert_int_equal(lathe_artifact_max_batch(a), 8);
    assert_int_equal(lathe_artifact_max_length(a), 32);
    assert_int_equal(lathe_artifact_find_output(a, "pooled"), 1);
    assert_int_equal(lathe_artifact_find_output(a, "nothing"), -1);
    assert_null(lathe_artifact_input(a, 3));
}

static void test_refusals(void **state) {
    (void)state;
    struct lathe_session *s = session(NULL);
    static _Thread_local struct lathe_diag why;
    int64_t ids[64] = {0}, mask[64];
    for (int i = 0; i < 64; i++)
        mask[i] = 1;
    set(s, "input_ids", 1, 4, ids);
    expect_refused(s, LATHE_INVALID, "'attention_mask' is missing");
    set(s, "attention_mask", 1, 5, mask);
    expect_refused(s, LATHE_INVALID, "'attention_mask': axis 1 is 5, expected 4");
    set(s, "attention_mask", 2, 4, mask);
    expect_refused(s, LATHE_INVALID, "'attention_mask': axis 0 is 2, expected 1");
    set(s, "attention_mask", 1, 4, mask);
    run(s);
    ids[2] = 7;
    expect_refused(s, LATHE_INVALID, "input_ids[0][2]=7, limit 7");
    ids[2] = -1;
    expect_refused(s, LATHE_INVALID, "input_ids[0][2]=-1, limit 7");
    ids[2] = INT64_C(1) << 40;
    expect_refused(s, LATHE_INVALID, "input_ids[0][2]=1099511627776, limit 7");
    ids[2] = 6;
    run(s);
    /* sequence 0 names the input */
    set(s, "input_ids", 1, 0, ids);
    set(s, "attention_mask", 1, 0, mask);
    expect_refused(s, LATHE_INVALID, "'input_ids': seq (axis 1) is 0");
    /* wrong rank, type, size, index */
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 1, (int64_t[]){4}, ids, &why), LATHE_INVALID);
    lathe_diag_reset(&why);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_F32, 2, (int64_t[]){1, 4}, ids, &why), LATHE_INVALID);
    assert_non_null(strstr(why.text, "is f32, expected i64"));
    lathe_diag_reset(&why);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){9, 4}, ids, &why), LATHE_INVALID);
    assert_non_null(strstr(why.text, "batch (axis 0) is 9, at most 8"));
    lathe_diag_reset(&why);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){1, 33}, ids, &why), LATHE_INVALID);
    assert_non_null(strstr(why.text, "seq (axis 1) is 33, at most 32"));
    assert_int_equal(lathe_session_set_input(s, 9, LATHE_I64, 2, (int64_t[]){1, 4}, ids, NULL), LATHE_USAGE);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){1, -4}, ids, NULL), LATHE_INVALID);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){1, 4}, NULL, NULL), LATHE_INVALID);
    lathe_session_clear_inputs(s);
    expect_refused(s, LATHE_INVALID, "'input_ids' is missing");
    lathe_session_close(&s);
    lathe_session_close(&s); /* NULL is allowed */
}

static void test_batch_zero(void **state) {
    (void)state;
    struct lathe_session *s = session(NULL);
    int64_t one = 0, mask = 1;
    set(s, "input_ids", 0, 4, &one);
    set(s, "attention_mask", 0, 4, &mask);
    run(s);
    const struct lathe_tensor_view *y = lathe_session_output(s, 0), *p = lathe_session_output(s, 1);
    assert_int_equal(y->dims[0], 0);
    assert_int_equal(y->dims[1], 4);
    assert_int_equal(y->dims[2], 20);
    assert_int_equal(y->bytes, 0);
    assert_int_equal(p->dims[0], 0);
    assert_int_equal(p->dims[1], 20);
    set(s, "input_ids", 1, 1, &one);
    set(s, "attention_mask", 1, 1, &mask);
    run(s);
    assert_int_equal(lathe_session_output(s, 0)->dims[0], 1);
    lathe_session_close(&s);
}

/* i32 ids are the same as i64 ids, and a default that was overwritten by a conversion comes back. */
static void test_narrow_ids(void **state) {
    (void)state;
    struct lathe_session *s = session(&(struct lathe_session_options){.threads = 1});
    int64_t ids[6] = {0, 1, 2, 3, 4, 5}, mask[6] = {1, 1, 1, 1, 1, 1};
    int32_t narrow[6] = {0, 1, 2, 3, 4, 5}, ones[6] = {1, 1, 1, 1, 1, 1};
    float first[120], second[120];
    set(s, "input_ids", 2, 3, ids);
    set(s, "attention_mask", 2, 3, mask);
    run(s);
    memcpy(first, lathe_session_output(s, 0)->data, sizeof first);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I32, 2, (int64_t[]){2, 3}, narrow, NULL), LATHE_OK);
    assert_int_equal(lathe_session_set_input(s, 2, LATHE_I32, 2, (int64_t[]){2, 3}, ones, NULL), LATHE_OK);
    run(s);
    assert_memory_not_equal(first, lathe_session_output(s, 0)->data, sizeof first);
    lathe_session_clear_inputs(s);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I32, 2, (int64_t[]){2, 3}, narrow, NULL), LATHE_OK);
    set(s, "attention_mask", 2, 3, mask);
    run(s);
    memcpy(second, lathe_session_output(s, 0)->data, sizeof second);
    assert_memory_equal(first, second, sizeof first);
    narrow[5] = 9;
    expect_refused(s, LATHE_INVALID, "input_ids[1][2]=9, limit 7");
    lathe_session_close(&s);
}

/* Rows alone, in a batch, after other shapes, with 1 to 3 threads, with differently poisoned arenas: the same bits. */
static void test_same_bits(void **state) {
    (void)state;
    float alone[4 * 20];
    int64_t ids[8 * 4], mask[8 * 4];
    for (int i = 0; i < 32; i++) {
        ids[i] = i * 3 % 7;
        mask[i] = 1;
    }
    for (unsigned threads = 1; threads <= 3; threads++)
        for (unsigned poison = 0; poison < 256; poison += 85) {
            struct lathe_session *s = session(&(struct lathe_session_options){
                .threads = threads, .poison = poison, .always_share = threads % 2 == 0});
            for (int64_t batch = 1; batch <= 8; batch += 3) {
                set(s, "input_ids", batch, 4, ids);
                set(s, "attention_mask", batch, 4, mask);
                run(s);
                const float *y = lathe_session_output(s, 0)->data;
                if (threads == 1 && poison == 0 && batch == 1)
                    memcpy(alone, y, sizeof alone);
                assert_memory_equal(alone, y, sizeof alone);
            }
            lathe_session_close(&s);
        }
}

static void *many_runs(void *arg) {
    struct lathe_session *s = session(&(struct lathe_session_options){.threads = 2, .always_share = true});
    int64_t ids[12], mask[12];
    float first[12 * 20];
    int seed = *(int *)arg;
    for (int i = 0; i < 12; i++) {
        ids[i] = (i * 3 + seed) % 7;
        mask[i] = 1;
    }
    set(s, "input_ids", 3, 4, ids);
    set(s, "attention_mask", 3, 4, mask);
    bool same = true;
    for (int i = 0; i < 500; i++) {
        run(s);
        if (i == 0)
            memcpy(first, lathe_session_output(s, 0)->data, sizeof first);
        same &= memcmp(first, lathe_session_output(s, 0)->data, sizeof first) == 0;
    }
    lathe_session_close(&s);
    return same ? arg : NULL;
}

static void test_two_sessions(void **state) {
    (void)state;
    pthread_t threads[2];
    int seeds[2] = {1, 2};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_runs, &seeds[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, &seeds[i]);
    }
}

static void test_options(void **state) {
    (void)state;
    struct lathe_session *s = NULL;
    assert_int_equal(lathe_session_new(encoder.artifact, &(struct lathe_session_options){.max_batch = 9}, &s, NULL),
                     LATHE_USAGE);
    assert_null(s);
    assert_int_equal(lathe_session_new(encoder.artifact, &(struct lathe_session_options){.threads = 100000}, &s, NULL),
                     LATHE_USAGE);
    s = session(&(struct lathe_session_options){.max_batch = 2, .max_seq = 4, .plain_c = true});
    int64_t ids[12] = {0};
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){3, 4}, ids, NULL), LATHE_INVALID);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){2, 4}, ids, NULL), LATHE_OK);
    lathe_session_close(&s);
}

static void test_layout(void **state) {
    (void)state;
    const struct lathe_plan *p = &encoder.artifact->plan;
    assert_true(p->head->arena_bytes * 10 <= p->head->alive_bytes * 11);
    /* w and w2 are equal and stored once; tanh takes the place of the sum, the second product cannot */
    const struct lathe_fmt_value *packed[2] = {NULL, NULL};
    unsigned n = 0;
    for (uint32_t v = 0; v < p->head->value_count; v++)
        if (p->values[v].packing == 1 && n < 2)
            packed[n++] = &p->values[v];
    assert_int_equal(n, 2);
    assert_int_equal(packed[0]->offset, packed[1]->offset);
    for (uint32_t i = 0; i < p->head->step_count; i++)
        if (p->steps[i].op == LATHE_OP_TANH) {
            const uint32_t *o = p->operands + p->steps[i].first_operand;
            assert_int_equal(p->values[o[0]].offset, p->values[o[1]].offset);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_ports),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_batch_zero),   cmocka_unit_test(test_narrow_ids), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_two_sessions), cmocka_unit_test(test_options),    cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
