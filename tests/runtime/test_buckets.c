/* Static shapes: the same row has the same bits in every bucket, beside any rows, whatever its padding holds; requests
 * of every size meet the rule; nothing grows. On models of the zoo (arguments) and on small graphs made here. */
#include "bucket_choice.h"
#include "built_graph.h"
#include "lathe_compiler.h"
#include "session_buckets.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_PORTS 8
#define MAX_ROWS  7

static char **models;
static int model_count;
static struct lathe_diag why;

static uint32_t next(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

static struct lathe_artifact *compile(const char *model, const char *precision, const struct lathe_bucket *buckets,
                                      unsigned count) {
    char path[] = "/tmp/lathe-test-buckets-XXXXXX";
    int fd = mkstemp(path);
    struct lathe_report *report = lathe_report_new();
    struct lathe_artifact *a = NULL;
    struct lathe_compile_options o = {.model = model,
                                      .output = path,
                                      .precision = precision,
                                      .buckets = buckets,
                                      .bucket_count = count,
                                      .jobs = 1,
                                      .verify = LATHE_VERIFY_NEVER};
    assert_true(fd >= 0);
    close(fd);
    lathe_diag_reset(&why);
    if (lathe_compile(&o, report, &why) || lathe_artifact_open(path, NULL, &a, &why))
        fail_msg("%s: %s", model, why.text);
    unlink(path);
    lathe_report_free(&report);
    return a;
}

static struct lathe_session *session(struct lathe_artifact *a, struct lathe_session_options o) {
    struct lathe_session *s = NULL;
    lathe_diag_reset(&why);
    if (lathe_session_new(a, &o, &s, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    return s;
}

/* ---- requests */

struct request {
    int64_t rows, seq;
    void *data[MAX_PORTS];
    int64_t dims[MAX_PORTS][8];
};

static bool is_mask(const struct lathe_port *p) {
    return strstr(p->name, "mask") != NULL;
}

static int64_t row_elements(const struct lathe_port *p, const int64_t *dims) {
    int64_t n = 1;
    for (unsigned d = 1; d < p->rank; d++)
        n *= dims[d];
    return n;
}

/* Rows whose masks have holes, end early, start late, or hold nothing. */
static void make_request(const struct lathe_artifact *a, int64_t rows, int64_t seq, uint32_t *seed, struct request *r) {
    *r = (struct request){.rows = rows, .seq = seq};
    assert_true(lathe_artifact_input_count(a) <= MAX_PORTS);
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        const uint8_t *axes = a->buckets->ports[i].axes;
        for (unsigned d = 0; d < p->rank; d++)
            r->dims[i][d] = axes[d] == LATHE_AXIS_BATCH ? rows : axes[d] == LATHE_AXIS_SEQ ? seq : p->dims[d];
        int64_t each = row_elements(p, r->dims[i]), count = each * r->dims[i][0], bytes = count * 8;
        r->data[i] = calloc(1, (size_t)bytes + 8);
        assert_non_null(r->data[i]);
        for (int64_t row = 0; row < r->dims[i][0]; row++) {
            uint32_t kind = next(seed) % 6;
            int64_t real = 1 + next(seed) % (seq > 0 ? seq : 1), from = kind == 1 ? seq - real : 0;
            for (int64_t k = 0; k < each; k++) {
                int64_t value = next(seed) % (p->id_limit > 0 ? p->id_limit : 2), at = row * each + k;
                if (is_mask(p))
                    value = kind == 0                    ? 1
                            : kind == 1                  ? k % seq >= from
                            : kind == 2                  ? k % seq < real
                            : kind == 3                  ? (int64_t)(next(seed) % 2)
                            : row > 0 && row == rows - 1 ? 0
                                                         : 1; /* a row without any key */
                if (p->dtype == LATHE_F32)
                    ((float *)r->data[i])[at] = is_mask(p) ? (float)value : (float)(next(seed) % 2000) / 1000 - 1;
                else if (p->dtype == LATHE_BOOL)
                    ((uint8_t *)r->data[i])[at] = (uint8_t)value;
                else
                    ((int64_t *)r->data[i])[at] = value; /* i64 serves every integer input */
            }
        }
    }
}

static enum lathe_dtype fed_as(const struct lathe_port *p) {
    return p->dtype == LATHE_F32 || p->dtype == LATHE_BOOL ? p->dtype : LATHE_I64;
}

static void free_request(struct request *r) {
    for (unsigned i = 0; i < MAX_PORTS; i++)
        free(r->data[i]);
}

static bool started; /* the last try came as far as the run, which forgets the outputs before */

/* Rows [first, first + rows) of a request. */
static enum lathe_status try_run(struct lathe_session *s, const struct request *r, int64_t first, int64_t rows) {
    const struct lathe_artifact *a = s->artifact;
    lathe_session_clear_inputs(s);
    lathe_diag_reset(&why);
    started = false;
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        int64_t dims[8];
        memcpy(dims, r->dims[i], sizeof dims);
        size_t each = p->dtype == LATHE_F32 ? 4 : p->dtype == LATHE_BOOL ? 1 : 8, skip = 0;
        if (p->rank && dims[0] == r->rows && a->buckets->ports[i].axes[0] == LATHE_AXIS_BATCH) {
            skip = (size_t)(first * row_elements(p, dims)) * each;
            dims[0] = rows;
        }
        enum lathe_status status =
            lathe_session_set_input(s, i, fed_as(p), p->rank, dims, (const char *)r->data[i] + skip, &why);
        if (status != LATHE_OK)
            return status;
    }
    started = true;
    return lathe_session_run(s, &why);
}

static void run(struct lathe_session *s, const struct request *r, int64_t first, int64_t rows) {
    if (try_run(s, r, first, rows) != LATHE_OK)
        fail_msg("%s", why.text);
}

static void expect(struct lathe_session *s, const struct request *r, int64_t first, int64_t rows, const char *words) {
    assert_int_equal(try_run(s, r, first, rows), LATHE_INVALID);
    if (!strstr(why.text, words))
        fail_msg("'%s' does not contain '%s'", why.text, words);
    assert_true(!started || !lathe_session_output(s, 0));
}

/* Row `i` of the outputs, one after the other. */
static size_t take_row(struct lathe_session *s, int64_t i, char *to, size_t room) {
    size_t n = 0;
    for (unsigned k = 0; k < lathe_artifact_output_count(s->artifact); k++) {
        const struct lathe_tensor_view *v = lathe_session_output(s, k);
        assert_non_null(v);
        size_t bytes = v->dims[0] ? v->bytes / (size_t)v->dims[0] : 0;
        assert_true(n + bytes <= room);
        memcpy(to + n, (const char *)v->data + (size_t)i * bytes, bytes);
        n += bytes;
    }
    return n;
}

/* ---- bits */

static char want[1 << 20], got[1 << 20];

static void compare_rows(struct lathe_session *s, int64_t rows, const char *const *answers, const size_t *sizes,
                         const char *what) {
    for (int64_t i = 0; i < rows; i++) {
        size_t n = take_row(s, i, got, sizeof got);
        if (n != sizes[i] || memcmp(got, answers[i], n))
            fail_msg("%s: row %d differs", what, (int)i);
    }
}

/* Each row alone in the smallest bucket is the truth; together, split, in every other bucket and with poisoned padding
 * nothing may change. */
static void check_bits(struct lathe_artifact *a, struct lathe_session **variants, unsigned variant_count,
                       uint32_t *seed, const char *name) {
    const struct lathe_bucket_list *list = &a->buckets->list;
    int64_t longest = list->at[list->count - 1].seq;
    for (unsigned round = 0; round < 12; round++) {
        int64_t seq = longest ? 1 + next(seed) % longest : 0, rows = 1 + next(seed) % MAX_ROWS;
        if (round % 4 == 0 && longest)
            seq = list->at[next(seed) % list->count].seq;
        if (list->exact)
            seq = list->at[next(seed) % list->count].seq;
        struct request r;
        make_request(a, rows, seq, seed, &r);
        const char *answers[MAX_ROWS];
        size_t sizes[MAX_ROWS];
        for (int64_t i = 0; i < rows; i++) {
            run(variants[0], &r, i, 1);
            sizes[i] = take_row(variants[0], 0, want, sizeof want);
            char *copy = malloc(sizes[i]);
            assert_non_null(copy);
            memcpy(copy, want, sizes[i]);
            answers[i] = copy;
        }
        for (unsigned v = 0; v < variant_count; v++) {
            char what[160];
            snprintf(what, sizeof what, "%.60s: %d rows of %d tokens, variant %u", name, (int)rows, (int)seq, v);
            run(variants[v], &r, 0, rows);
            compare_rows(variants[v], rows, answers, sizes, what);
            for (unsigned k = 0; k < list->count; k++) {
                if (list->exact ? list->at[k].seq != seq : list->at[k].seq < seq)
                    continue;
                lathe_buckets_force(variants[v], (int)k);
                run(variants[v], &r, 0, rows);
                lathe_buckets_force(variants[v], -1);
                snprintf(what, sizeof what, "%.60s: %d rows of %d tokens, variant %u, bucket %u", name, (int)rows,
                         (int)seq, v, k);
                compare_rows(variants[v], rows, answers, sizes, what);
            }
        }
        for (int64_t i = 0; i < rows; i++)
            free((void *)(uintptr_t)answers[i]);
        free_request(&r);
    }
}

static void test_bits(void **state) {
    (void)state;
    static const struct lathe_bucket buckets[] = {{1, 8}, {1, 32}, {3, 32}, {2, 64}};
    static const char *const precisions[] = {"f32", "int8"};
    uint32_t seed = 5;
    for (int m = 0; m < model_count; m++)
        for (unsigned p = 0; p < 2; p++) {
            struct lathe_artifact *a = compile(models[m], precisions[p], buckets, 4);
            struct lathe_session *variants[] = {
                session(a, (struct lathe_session_options){.threads = 1}),
                session(a, (struct lathe_session_options){.threads = 1, .poison = 0xff, .poison_padding = true}),
                session(a,
                        (struct lathe_session_options){
                            .threads = 3, .poison = 0x5a, .poison_padding = true, .always_share = true}),
            };
            check_bits(a, variants, 3, &seed, models[m]);
            for (unsigned v = 0; v < 3; v++)
                lathe_session_close(&variants[v]);
            lathe_artifact_close(&a);
        }
}

/* ---- requests of every size, on the small encoder */

static void test_sizes(void **state) {
    (void)state;
    static const struct lathe_bucket sizes[] = {{1, 4}, {1, 8}};
    struct built b;
    build_buckets(&b, small_encoder, sizes, 2, NULL);
    struct lathe_artifact *a = b.artifact;
    assert_int_equal(lathe_artifact_bucket_count(a), 2);
    assert_int_equal(lathe_artifact_max_length(a), 8);
    assert_string_equal(lathe_artifact_input(a, 0)->dim_names[0], "batch");
    assert_string_equal(lathe_artifact_input(a, 0)->dim_names[1], "seq");
    struct lathe_session *s = session(a, (struct lathe_session_options){.threads = 1});
    uint32_t seed = 3;
    struct request r;
    make_request(a, 3, 0, &seed, &r); /* no token */
    expect(s, &r, 0, 3, "input 'input_ids': seq (axis 1) is 0, expected at least 1");
    free_request(&r);
    for (int64_t seq = 1; seq <= 8; seq++) { /* one token, exactly a bucket, one more, batch 3 over plans of 1 */
        make_request(a, 3, seq, &seed, &r);
        run(s, &r, 0, 3);
        const struct lathe_tensor_view *v = lathe_session_output(s, 0);
        assert_int_equal(v->dims[0], 3);
        assert_int_equal(v->dims[1], seq);
        assert_int_equal(v->bytes, 3 * seq * 20 * 4);
        assert_int_equal(lathe_session_output(s, 1)->bytes, 3 * 20 * 4);
        assert_memory_equal(lathe_session_output(s, 2)->data, r.data[1], (size_t)(3 * seq * 8));
        run(s, &r, 0, 0); /* no row */
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(lathe_session_output(s, k)->dims[0], 0);
            assert_int_equal(lathe_session_output(s, k)->bytes, 0);
        }
        assert_int_equal(lathe_session_output(s, 0)->dims[1], seq);
        free_request(&r);
    }
    make_request(a, 3, 9, &seed, &r); /* more than the largest bucket */
    expect(s, &r, 0, 3, "seq (axis 1) is 9, at most 8, the largest bucket");
    free_request(&r);
    make_request(a, 2, 5, &seed, &r);
    ((int64_t *)r.data[0])[7] = 6157; /* the place is that of the request */
    expect(s, &r, 0, 2, "input_ids[1][2]=6157, limit 7");
    ((int64_t *)r.data[0])[7] = -1;
    expect(s, &r, 0, 2, "negative ids are refused");
    ((int64_t *)r.data[0])[7] = 1;
    run(s, &r, 0, 2);
    r.dims[1][1] = 4;
    expect(s, &r, 0, 2, "input 'attention_mask': axis 1 is 4, expected 5 (seq of 'input_ids')");
    free_request(&r);
    lathe_session_close(&s);
    s = session(a, (struct lathe_session_options){.threads = 1, .max_batch = 2});
    make_request(a, 3, 5, &seed, &r);
    expect(s, &r, 0, 3, "batch (axis 0) is 3, at most 2");
    lathe_session_clear_inputs(s);
    lathe_diag_reset(&why);
    assert_int_equal(lathe_session_run(s, &why), LATHE_INVALID);
    assert_non_null(strstr(why.text, "input 'input_ids' is missing"));
    free_request(&r);
    lathe_session_close(&s);
    free_built(&b);
}

/* A longer row keeps its first tokens and the last one; it answers as the row that was cut by hand. */
static void test_truncate(void **state) {
    (void)state;
    enum { LONG = 11, S = 8 };
    static const struct lathe_bucket sizes[] = {{1, 4}, {2, S}};
    static const int64_t masks[4][LONG] = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},  /* cut */
                                           {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0},  /* only padding is lost */
                                           {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1},  /* so is it at the left */
                                           {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}}; /* nine tokens: cut */
    static const int kept[4][S] = {
        {0, 1, 2, 3, 4, 5, 6, 10}, {0, 1, 2, 3, 4, 5, 6, 7}, {3, 4, 5, 6, 7, 8, 9, 10}, {1, 2, 3, 4, 5, 6, 7, 9}};
    struct built b;
    build_buckets(&b, small_encoder, sizes, 2, NULL);
    struct lathe_session *s = session(b.artifact, (struct lathe_session_options){.threads = 1, .truncate = true});
    uint32_t seed = 9;
    struct request r, cut;
    make_request(b.artifact, 4, LONG, &seed, &r);
    make_request(b.artifact, 4, S, &seed, &cut);
    memcpy(r.data[1], masks, sizeof masks);
    for (int in = 0; in < 3; in++)
        for (int row = 0; row < 4; row++)
            for (int i = 0; i < S; i++)
                ((int64_t *)cut.data[in])[row * S + i] = ((int64_t *)r.data[in])[row * LONG + kept[row][i]];
    run(s, &cut, 0, 4);
    assert_int_equal(lathe_session_truncated_rows(s), 0);
    const char *answers[4];
    size_t bytes[4];
    for (int i = 0; i < 4; i++) {
        bytes[i] = take_row(s, i, want, sizeof want);
        char *copy = malloc(bytes[i]);
        assert_non_null(copy);
        memcpy(copy, want, bytes[i]);
        answers[i] = copy;
    }
    run(s, &r, 0, 4);
    assert_int_equal(lathe_session_truncated_rows(s), 2);
    assert_int_equal(lathe_session_output(s, 0)->dims[1], S);
    compare_rows(s, 4, answers, bytes, "truncated");
    /* a fleet does the same */
    for (int p = 0; p < 2; p++) {
        struct lathe_fleet *f = NULL;
        struct lathe_fleet_options o = {
            .placement = p ? LATHE_PLACEMENT_PIPELINE : LATHE_PLACEMENT_REPLICATE, .cores = 2, .truncate = true};
        assert_int_equal(lathe_fleet_new(b.artifact, &o, &f, NULL), LATHE_OK);
        struct lathe_request *q = lathe_fleet_take(f);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(lathe_request_set_input(q, i, LATHE_I64, 2, r.dims[i], r.data[i], NULL), LATHE_OK);
        assert_int_equal(lathe_request_run(q, NULL), LATHE_OK);
        assert_int_equal(lathe_request_truncated_rows(q), 2);
        for (unsigned k = 0; k < 3; k++) {
            const struct lathe_tensor_view *x = lathe_request_output(q, k), *y = lathe_session_output(s, k);
            assert_int_equal(x->bytes, y->bytes);
            assert_memory_equal(x->data, y->data, y->bytes);
        }
        lathe_request_release(&q);
        lathe_fleet_close(&f);
    }
    for (int i = 0; i < 4; i++)
        free((void *)(uintptr_t)answers[i]);
    free_request(&r);
    free_request(&cut);
    lathe_session_close(&s);
    free_built(&b);
}

/* Where the graph tells the pad id, a mask that is not given follows from the ids, in every bucket. */
static void test_default_mask(void **state) {
    (void)state;
    static const struct lathe_bucket buckets[] = {{1, 8}, {2, 32}};
    unsigned tried = 0;
    for (int m = 0; m < model_count; m++) {
        struct lathe_artifact *a = compile(models[m], "f32", buckets, 2);
        uint32_t mask = a->buckets->head->mask,
                 ids = mask == LATHE_FORMAT_ABSENT ? mask : a->buckets->ports[mask].mask_of;
        if (ids != LATHE_FORMAT_ABSENT) {
            tried++;
            assert_true(lathe_artifact_input(a, mask)->optional);
            struct lathe_session *s = session(a, (struct lathe_session_options){.threads = 1, .poison_padding = true});
            uint32_t seed = 4;
            struct request r;
            make_request(a, 3, 13, &seed, &r);
            int64_t pad = a->buckets->ports[ids].pad;
            for (int i = 0; i < 3 * 13; i++) {
                int64_t *id = (int64_t *)r.data[ids] + i;
                *id = i % 13 > 4 + i / 13 * 4 ? pad : *id == pad ? pad + 1 : *id;
                ((int64_t *)r.data[mask])[i] = *id != pad;
            }
            run(s, &r, 0, 3);
            size_t n = take_row(s, 0, want, sizeof want);
            n += take_row(s, 2, want + n, sizeof want - n);
            s->bindings[mask].bound = false;
            lathe_diag_reset(&why);
            if (lathe_session_run(s, &why) != LATHE_OK)
                fail_msg("%s", why.text);
            size_t k = take_row(s, 0, got, sizeof got);
            k += take_row(s, 2, got + k, sizeof got - k);
            assert_true(k == n && !memcmp(got, want, n));
            free_request(&r);
            lathe_session_close(&s);
        }
        lathe_artifact_close(&a);
    }
    assert_true(tried > 0 || model_count < 3);
}

/* ---- graphs that padding or splitting would change */

static const char unmasked[] = "input %input_ids : i64[batch, seq]\n"
                               "const %table : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
                               "%words : f32[batch, seq, 2] = gather(%table, %input_ids) {axis=0}\n"
                               "%mean : f32[batch, 2] = reduce_mean(%words) {axes=[1], keepdims=0}\n"
                               "output %mean as \"mean\"\n";

static void test_no_mask(void **state) {
    (void)state;
    static const struct lathe_bucket sizes[] = {{1, 3}, {2, 6}};
    struct built b;
    build_buckets(&b, unmasked, sizes, 2, NULL);
    struct lathe_session *s = session(b.artifact, (struct lathe_session_options){.threads = 1, .truncate = true});
    uint32_t seed = 1;
    for (int64_t seq = 1; seq <= 8; seq++) {
        struct request r;
        make_request(b.artifact, 3, seq, &seed, &r);
        if (seq != 3 && seq < 6)
            expect(s, &r, 0, 3, "a request must have the length of a bucket: 3, 6");
        else
            run(s, &r, 0, 3); /* longer ones are cut to 6 */
        assert_int_equal(lathe_session_truncated_rows(s), seq > 6 ? 3 : 0);
        for (int row = 0; (seq == 3 || seq >= 6) && row < 3; row++) {
            double sum = 0;
            for (int i = 0; i < (seq < 6 ? seq : 6); i++)
                sum += 2 * (double)((int64_t *)r.data[0])[row * seq + (i == 5 && seq > 6 ? seq - 1 : i)] + 1;
            const float *y = lathe_session_output(s, 0)->data;
            assert_float_equal(y[row * 2], sum / (double)(seq < 6 ? seq : 6), 1e-5);
        }
        free_request(&r);
    }
    lathe_session_close(&s);
    free_built(&b);
}

static void test_refused_graphs(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } refused[] = {
        {"input %ids : i64[batch, seq]\n%y : i64[batch*seq] = reshape(%ids)\noutput %y as \"flat\"\n",
         "output 'flat' [batch*seq]"},
        {"input %x : f32[batch, seq]\n%y : f32[] = reduce_sum(%x) {axes=[0, 1], keepdims=0}\noutput %y as \"sum\"\n",
         "output 'sum' []"},
        {"input %x : f32[batch, seq]\n%y : f32[seq, batch] = transpose(%x) {perm=[1, 0]}\noutput %y as \"turned\"\n",
         "output 'turned' [seq, batch]"},
        {"input %x : f32[batch, seq]\ninput %m : f32[batch, seq+1]\n%y : f32[batch, seq] = neg(%x)\n"
         "%z : f32[batch, seq+1] = neg(%m)\noutput %y as \"y\"\noutput %z as \"z\"\n",
         "input 'm' [batch, seq+1]"},
        {"input %x : f32[batch, height, width, 3]\n%y : f32[batch, height, width, 3] = neg(%x)\noutput %y as \"y\"\n",
         "'x'"},
        {"input %ids : i64[2, seq]\n%y : i64[2, seq] = neg(%ids)\noutput %y as \"y\"\n", "fixed batch of 2"},
    };
    static const struct lathe_bucket two[] = {{1, 3}, {2, 6}}, one[] = {{2, 6}};
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct built b;
        assert_int_equal(build_buckets(&b, refused[i].text, two, 2, &why), LATHE_UNSUPPORTED);
        if (!strstr(why.text, refused[i].words))
            fail_msg("'%s' does not contain '%s'", why.text, refused[i].words);
        free_built(&b);
    }
    /* with one bucket, requests that fit it exactly run: there is nothing to choose */
    struct lathe_bucket only = one[0];
    struct built b;
    assert_int_equal(
        build_buckets(&b, "input %ids : i64[2, 6]\n%y : i64[2, 6] = neg(%ids)\noutput %y as \"y\"\n", &only, 1, &why),
        LATHE_OK);
    free_built(&b);
}

/* ---- memory */

static long resident_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_memory(void **state) {
    (void)state;
    static const struct lathe_bucket buckets[] = {{1, 8}, {1, 32}, {2, 64}};
    struct lathe_artifact *a = compile(models[0], "f32", buckets, 3);
    struct lathe_session *s = session(a, (struct lathe_session_options){.threads = 2, .always_share = true});
    uint32_t seed = 7;
    struct request r[64];
    for (int i = 0; i < 64; i++)
        make_request(a, 4, i + 1, &seed, &r[i]);
    for (int k = 0; k < 3; k++)
        run(s, &r[buckets[k].seq - 1], 0, 4);
    size_t before = mallinfo2().uordblks;
    long resident = resident_kib();
    for (int i = 0; i < 10000; i++)
        run(s, &r[next(&seed) % 64], 0, 1 + next(&seed) % 4);
    assert_int_equal(mallinfo2().uordblks, before);
    long more = resident_kib() - resident;
    if (more > resident / 100 + 64) /* and what the C library touches once */
        fail_msg("%ld KiB more than the %ld after one pass", more, resident);
    for (int i = 0; i < 64; i++)
        free_request(&r[i]);
    lathe_session_close(&s);
    lathe_artifact_close(&a);
}

int main(int argc, char **argv) {
    models = argv + 1;
    model_count = argc - 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_truncate), cmocka_unit_test(test_no_mask),
        cmocka_unit_test(test_refused_graphs), cmocka_unit_test(test_memory),   cmocka_unit_test(test_default_mask),
        cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
