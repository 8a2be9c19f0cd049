/* Fleets: the answers are a session's bytes, errors are each request's own, and a soak of random requests from four
 * clients loses, doubles and mixes up nothing and takes no more memory.
 *
 *     test_fleet MODEL.onnx [REQUESTS]     of the soak, for each artifact and placement; default 3000 */
#include "built_graph.h"

#include "lathe_compiler.h"

#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENTS   4
#define CASES     48
#define MAX_BATCH 3
#define MAX_SEQ   32
#define MAX_PORTS 4

static const enum lathe_placement placements[] = {LATHE_PLACEMENT_REPLICATE, LATHE_PLACEMENT_PIPELINE};
static const char *model_path;
static long soak_requests = 3000;

/* ---- cases: inputs with the answer that a session gives */

struct answer {
    int64_t dims[8];
    void *data;
    size_t bytes;
};

struct test_case {
    int64_t batch, seq;
    int64_t *inputs[MAX_PORTS]; /* ids of 2 axes; NULL: an optional one that is left out */
    enum lathe_status status;
    char text[256]; /* of the refusal */
    struct answer answers[MAX_PORTS];
};

struct subject {
    struct lathe_artifact *artifact;
    struct test_case cases[CASES];
};

static uint32_t next(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

static void set_inputs(const struct subject *s, const struct test_case *c, struct lathe_session *session,
                       struct lathe_request *request) {
    for (unsigned i = 0; i < lathe_artifact_input_count(s->artifact); i++) {
        int64_t dims[2] = {c->batch, c->seq};
        if (!c->inputs[i])
            continue;
        enum lathe_status status = session
                                       ? lathe_session_set_input(session, i, LATHE_I64, 2, dims, c->inputs[i], NULL)
                                       : lathe_request_set_input(request, i, LATHE_I64, 2, dims, c->inputs[i], NULL);
        assert_int_equal(status, LATHE_OK);
    }
}

static void make_inputs(const struct subject *s, struct test_case *c, bool fixed, uint32_t *seed) {
    c->batch = fixed ? 1 : 1 + next(seed) % MAX_BATCH;
    c->seq = fixed ? 16 : 1 + next(seed) % MAX_SEQ;
    size_t count = (size_t)(c->batch * c->seq);
    for (unsigned i = 0; i < lathe_artifact_input_count(s->artifact); i++) {
        const struct lathe_port *p = lathe_artifact_input(s->artifact, i);
        bool mask = strstr(p->name, "mask") != NULL, types = strstr(p->name, "type") != NULL;
        if (types && p->optional && next(seed) % 2)
            continue;
        c->inputs[i] = calloc(count, sizeof *c->inputs[i]);
        assert_non_null(c->inputs[i]);
        int64_t limit = p->id_limit > 0 ? p->id_limit : 2, real = 1 + next(seed) % c->seq;
        for (size_t k = 0; k < count; k++)
            c->inputs[i][k] = mask ? (int64_t)k % c->seq < real : next(seed) % limit;
        if (!mask && !types && next(seed) % 12 == 0)
            c->inputs[i][count - 1] = limit + 5;
    }
}

static void make_subject(struct subject *s, struct lathe_artifact *artifact, bool fixed) {
    static struct lathe_diag why;
    uint32_t seed = 11;
    struct lathe_session *session = NULL;
    *s = (struct subject){.artifact = artifact};
    assert_true(lathe_artifact_input_count(artifact) <= MAX_PORTS &&
                lathe_artifact_output_count(artifact) <= MAX_PORTS);
    assert_int_equal(lathe_session_new(artifact, &(struct lathe_session_options){.threads = 1}, &session, NULL), 0);
    unsigned refused = 0;
    for (unsigned i = 0; i < CASES; i++) {
        struct test_case *c = &s->cases[i];
        make_inputs(s, c, fixed, &seed);
        lathe_session_clear_inputs(session);
        set_inputs(s, c, session, NULL);
        lathe_diag_reset(&why);
        c->status = lathe_session_run(session, &why);
        snprintf(c->text, sizeof c->text, "%.250s", why.text);
        refused += c->status != LATHE_OK;
        for (unsigned k = 0; c->status == LATHE_OK && k < lathe_artifact_output_count(artifact); k++) {
            const struct lathe_tensor_view *v = lathe_session_output(session, k);
            struct answer *a = &c->answers[k];
            memcpy(a->dims, v->dims, sizeof a->dims);
            a->bytes = v->bytes;
            a->data = malloc(v->bytes + 1);
            assert_non_null(a->data);
            memcpy(a->data, v->data, v->bytes);
        }
    }
    lathe_session_close(&session);
    assert_true(refused > 0 && refused < CASES / 4); /* both kinds are there */
}

static void free_cases(struct subject *s) {
    for (unsigned i = 0; i < CASES; i++)
        for (unsigned k = 0; k < MAX_PORTS; k++) {
            free(s->cases[i].inputs[k]);
            free(s->cases[i].answers[k].data);
        }
}

/* cmocka's assertions are for the main thread: clients count. */
static bool is_answer(const struct subject *s, const struct test_case *c, const struct lathe_request *r,
                      enum lathe_status status, const struct lathe_diag *why) {
    if (status != c->status)
        return false;
    if (status != LATHE_OK)
        return !strcmp(why->text, c->text) && !lathe_request_output(r, 0);
    for (unsigned k = 0; k < lathe_artifact_output_count(s->artifact); k++) {
        const struct lathe_tensor_view *v = lathe_request_output(r, k);
        if (!v || v->bytes != c->answers[k].bytes || memcmp(v->dims, c->answers[k].dims, sizeof v->dims) != 0 ||
            memcmp(v->data, c->answers[k].data, v->bytes) != 0)
            return false;
    }
    return true;
}

/* ---- soak */

struct soak {
    const struct subject *subject;
    struct lathe_fleet *fleet;
    atomic_long left;
    atomic_long answered, refused, wrong;
    atomic_uint seed;
    pthread_barrier_t start; /* all clients are there at once, so no later round has a new stack or malloc arena */
};

static void check(struct soak *k, const struct test_case *c, const struct lathe_request *r, enum lathe_status status,
                  const struct lathe_diag *why) {
    atomic_fetch_add(&k->answered, 1);
    atomic_fetch_add(&k->refused, c->status != LATHE_OK);
    atomic_fetch_add(&k->wrong, !is_answer(k->subject, c, r, status, why));
}

/* One request after the other, and now and then several at once, waited for from the last to the first. */
static void *client(void *user) {
    struct soak *k = user;
    uint32_t seed = atomic_fetch_add(&k->seed, 977);
    struct lathe_diag *why = malloc(sizeof *why);
    pthread_barrier_wait(&k->start);
    while (why && atomic_fetch_sub(&k->left, 1) > 0) {
        struct lathe_request *r[3] = {lathe_fleet_take(k->fleet), NULL, NULL};
        const struct test_case *c[3];
        unsigned n = 1;
        while (n < 3 && next(&seed) % 4 == 0 && (r[n] = lathe_fleet_try_take(k->fleet)))
            n++;
        for (unsigned i = 0; i < n; i++) {
            c[i] = &k->subject->cases[next(&seed) % CASES];
            if (i > 0)
                atomic_fetch_sub(&k->left, 1);
            set_inputs(k->subject, c[i], NULL, r[i]);
            lathe_request_submit(r[i]);
        }
        for (unsigned i = n; i-- > 0;) {
            lathe_diag_reset(why);
            enum lathe_status status = lathe_request_wait(r[i], why);
            check(k, c[i], r[i], status, why);
            lathe_request_release(&r[i]);
        }
    }
    free(why);
    return NULL;
}

static void run_clients(struct soak *k, long requests) {
    pthread_t threads[CLIENTS];
    atomic_store(&k->left, requests);
    assert_int_equal(pthread_barrier_init(&k->start, NULL, CLIENTS), 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, k), 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&k->start);
}

static long resident_kib(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* A sanitizer has its own allocator and shadow memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MEMORY false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTS_MEMORY false
#endif
#endif
#ifndef COUNTS_MEMORY
#define COUNTS_MEMORY true
#endif

static void soak(const struct subject *s, enum lathe_placement placement, unsigned cores) {
    struct lathe_fleet *f = NULL;
    assert_int_equal(
        lathe_fleet_new(s->artifact, &(struct lathe_fleet_options){.placement = placement, .cores = cores}, &f, NULL),
        LATHE_OK);
    struct soak k = {.subject = s, .fleet = f};
    run_clients(&k, 1000);
    size_t before = mallinfo2().uordblks;
    long resident = resident_kib();
    run_clients(&k, soak_requests);
    if (COUNTS_MEMORY) {
        assert_int_equal(mallinfo2().uordblks, before);
        long more = resident_kib() - resident;
        if (more > resident / 100 + 64)
            fail_msg("%s on %u cores: %ld KiB more than the %ld after the first thousand",
                     lathe_placement_name(placement), cores, more, resident);
    }
    assert_int_equal(atomic_load(&k.wrong), 0);
    assert_true(atomic_load(&k.answered) >= 1000 + soak_requests && atomic_load(&k.refused) > 0);
    uint64_t first = 0, last = 0;
    struct lathe_fleet_core c;
    for (unsigned i = 0; lathe_fleet_core(f, i, &c); i++) {
        first += c.first_step == 0 ? c.parts : 0;
        last = c.first_step == 0 ? first : c.parts;
    }
    /* each was begun once, and the good ones ended once; a batch that buckets split passes a pipeline in chunks */
    bool chunks = lathe_artifact_bucket_count(s->artifact) > 1 && placement == LATHE_PLACEMENT_PIPELINE;
    if (chunks)
        assert_true(first > (uint64_t)atomic_load(&k.answered));
    else
        assert_int_equal(first, atomic_load(&k.answered));
    assert_int_equal(last, first - (placement == LATHE_PLACEMENT_PIPELINE && cores > 1 ? atomic_load(&k.refused) : 0));
    lathe_fleet_close(&f);
}

static void soak_both(struct subject *s) {
    for (unsigned p = 0; p < 2; p++)
        for (unsigned cores = 2; cores <= 3; cores++)
            soak(s, placements[p], cores);
}

static struct built encoder;

static int set_up(void **state) {
    (void)state;
    build_graph(&encoder, small_encoder, &(struct lathe_emit_options){.jobs = 1, .max_batch = 8, .max_seq = MAX_SEQ});
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free_built(&encoder);
    return 0;
}

static void test_soak_small(void **state) {
    (void)state;
    struct subject s;
    make_subject(&s, encoder.artifact, false);
    soak_both(&s);
    free_cases(&s);
}

/* Longer than any bucket: refused, or cut where the fleet may, as a session does it. */
static void cut_requests(struct lathe_artifact *a) {
    enum { LONG = 40 };
    int64_t ids[LONG], mask[LONG], dims[2] = {1, LONG};
    for (int i = 0; i < LONG; i++) {
        ids[i] = i % 50;
        mask[i] = 1;
    }
    struct lathe_session *session = NULL;
    assert_int_equal(
        lathe_session_new(a, &(struct lathe_session_options){.threads = 1, .truncate = true}, &session, NULL),
        LATHE_OK);
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++)
        assert_int_equal(lathe_session_set_input(session, i, LATHE_I64, 2, dims, i ? mask : ids, NULL), LATHE_OK);
    assert_int_equal(lathe_session_run(session, NULL), LATHE_OK);
    for (unsigned p = 0; p < 4; p++) {
        struct lathe_fleet *f = NULL;
        struct lathe_fleet_options o = {.placement = placements[p % 2], .cores = 2, .truncate = p < 2};
        assert_int_equal(lathe_fleet_new(a, &o, &f, NULL), LATHE_OK);
        struct lathe_request *r = lathe_fleet_take(f);
        enum lathe_status status = lathe_request_set_input(r, 0, LATHE_I64, 2, dims, ids, NULL);
        assert_int_equal(status, p < 2 ? LATHE_OK : LATHE_INVALID);
        if (p < 2) {
            for (unsigned i = 1; i < lathe_artifact_input_count(a); i++)
                assert_int_equal(lathe_request_set_input(r, i, LATHE_I64, 2, dims, mask, NULL), LATHE_OK);
            assert_int_equal(lathe_request_run(r, NULL), LATHE_OK);
            assert_int_equal(lathe_request_truncated_rows(r), 1);
            const struct lathe_tensor_view *got = lathe_request_output(r, 0), *want = lathe_session_output(session, 0);
            assert_int_equal(got->bytes, want->bytes);
            assert_memory_equal(got->data, want->data, want->bytes);
        }
        lathe_request_release(&r);
        lathe_fleet_close(&f);
    }
    lathe_session_close(&session);
}

/* The model compiled with kept rows that only the prologue knows, and for one bucket. */
static void soak_model(const struct lathe_bucket *buckets, unsigned bucket_count) {
    static struct lathe_diag why;
    char path[] = "test-fleet-XXXXXX";
    int fd = mkstemp(path);
    struct lathe_report *report = lathe_report_new();
    struct lathe_artifact *a = NULL;
    struct subject s;
    struct lathe_compile_options o = {.model = model_path,
                                      .output = path,
                                      .target = "generic",
                                      .buckets = buckets,
                                      .bucket_count = bucket_count,
                                      .jobs = 1,
                                      .verify = LATHE_VERIFY_NEVER};
    assert_true(fd >= 0);
    close(fd);
    lathe_diag_reset(&why);
    if (lathe_compile(&o, report, &why) || lathe_artifact_open(path, NULL, &a, &why))
        fail_msg("%s", why.text);
    unlink(path);
    lathe_report_free(&report);
    make_subject(&s, a, bucket_count == 1);
    soak_both(&s);
    free_cases(&s);
    if (bucket_count)
        cut_requests(a);
    lathe_artifact_close(&a);
}

static void test_soak_packed(void **state) {
    (void)state;
    soak_model(NULL, 0);
}

static void test_soak_bucket(void **state) {
    (void)state;
    soak_model((struct lathe_bucket[]){{1, 16}}, 1);
}

static void test_soak_buckets(void **state) {
    (void)state;
    soak_model((struct lathe_bucket[]){{1, 8}, {1, 32}, {2, 32}}, 3);
}

/* ---- the interface */

static void test_answers(void **state) {
    (void)state;
    static struct lathe_diag why;
    struct subject s;
    make_subject(&s, encoder.artifact, false);
    for (unsigned cores = 1; cores <= 64; cores *= 4)
        for (unsigned p = 0; p < 2; p++) {
            struct lathe_fleet *f = NULL;
            struct lathe_fleet_options o = {.placement = placements[p], .cores = cores, .slots = 2, .poison = 0xa5};
            assert_int_equal(lathe_fleet_new(s.artifact, &o, &f, NULL), LATHE_OK);
            assert_int_equal(lathe_fleet_placement(f), placements[p]);
            assert_int_equal(lathe_fleet_slots(f), 2);
            assert_true(lathe_fleet_cores(f) <= cores && lathe_fleet_cores(f) >= (cores > 4 ? 5u : cores));
            assert_true(lathe_fleet_pinned(f));
            for (unsigned i = 0; i < CASES; i++) {
                struct lathe_request *r = lathe_fleet_take(f);
                set_inputs(&s, &s.cases[i], NULL, r);
                for (int twice = 0; twice < 2; twice++) {
                    lathe_diag_reset(&why);
                    enum lathe_status status = lathe_request_run(r, &why);
                    assert_true(is_answer(&s, &s.cases[i], r, status, &why));
                }
                lathe_request_release(&r);
                assert_null(r);
            }
            lathe_fleet_close(&f);
            assert_null(f);
        }
    free_cases(&s);
}

static void test_slots(void **state) {
    (void)state;
    struct lathe_fleet *f = NULL;
    struct lathe_request *r[3];
    int64_t ids[2] = {1, 2}, mask[2] = {1, 1}, dims[2] = {1, 2}, none[2] = {0, 2};
    struct lathe_fleet_options o = {.placement = LATHE_PLACEMENT_PIPELINE, .cores = 2, .slots = 3, .measure = true};
    assert_int_equal(lathe_fleet_new(encoder.artifact, &o, &f, NULL), LATHE_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_non_null(r[i] = lathe_fleet_try_take(f));
    assert_null(lathe_fleet_try_take(f));
    /* nothing was run, nothing is bound */
    assert_null(lathe_request_output(r[0], 0));
    assert_int_equal(lathe_request_wait(r[0], NULL), LATHE_OK);
    assert_int_equal(lathe_request_run(r[0], NULL), LATHE_INVALID);
    assert_int_equal(lathe_request_wait(r[0], NULL), LATHE_INVALID);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(lathe_request_set_input(r[i], 0, LATHE_I64, 2, i == 2 ? none : dims, ids, NULL), LATHE_OK);
        assert_int_equal(lathe_request_set_input(r[i], 1, LATHE_I64, 2, i == 2 ? none : dims, mask, NULL), LATHE_OK);
        lathe_request_submit(r[i]);
    }
    assert_int_equal(lathe_request_wait(r[2], NULL), LATHE_OK);
    assert_int_equal(lathe_request_output(r[2], 0)->dims[0], 0); /* a batch of 0 */
    assert_int_equal(lathe_request_output(r[2], 0)->bytes, 0);
    assert_int_equal(lathe_request_wait(r[0], NULL), LATHE_OK);
    assert_int_equal(lathe_request_output(r[0], 0)->dims[1], 2);
    /* released without a wait: the next to take it has nothing of it */
    lathe_request_release(&r[1]);
    assert_non_null(r[1] = lathe_fleet_try_take(f));
    assert_null(lathe_request_output(r[1], 0));
    assert_int_equal(lathe_request_run(r[1], NULL), LATHE_INVALID);
    for (unsigned i = 0; i < 3; i++)
        lathe_request_release(&r[i]);
    lathe_request_release(&r[0]);
    struct lathe_fleet_core c[2], none_such;
    assert_true(lathe_fleet_core(f, 0, &c[0]) && lathe_fleet_core(f, 1, &c[1]));
    assert_false(lathe_fleet_core(f, 2, &none_such));
    assert_int_equal(c[0].first_step, 0);
    assert_int_equal(c[0].end_step, c[1].first_step);
    assert_true(c[0].busy_ns > 0 && c[0].parts == 5 && c[1].parts == 2);
    assert_float_equal(c[0].share + c[1].share, 1, 1e-6);
    lathe_fleet_close(&f);
    lathe_fleet_close(&f);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct lathe_fleet_options wrong[] = {{.cores = 100000},
                                                       {.slots = 1000000},
                                                       {.placement = (enum lathe_placement)7},
                                                       {.max_batch = 9},
                                                       {.max_seq = -1}};
    struct lathe_fleet *f = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(lathe_fleet_new(encoder.artifact, &wrong[i], &f, NULL), LATHE_USAGE);
        assert_null(f);
    }
    /* a CPU that is not there: it runs, and says so */
    struct lathe_fleet_options o = {.cores = 1, .core_list = (const int[]){100000}};
    assert_int_equal(lathe_fleet_new(encoder.artifact, &o, &f, NULL), LATHE_OK);
    assert_false(lathe_fleet_pinned(f));
    lathe_fleet_close(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),      cmocka_unit_test(test_slots),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_soak_small),   cmocka_unit_test(test_soak_packed), cmocka_unit_test(test_soak_bucket),
        cmocka_unit_test(test_soak_buckets),
    };
    if (argc < 2)
        return 2;
    model_path = argv[1];
    if (argc > 2)
        soak_requests = atol(argv[2]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
