/* Thread counts from control-group trees, and the pool: every thread once, barriers that hold, a broken barrier. */
#include "threads.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "lathe-cgroup-XXXXXX";

static void put_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void drop_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    unlink(path);
}

static void expect_quota(const char *what, unsigned quota, bool warns) {
    struct lathe_thread_budget b;
    lathe_thread_budget(&b);
    if (b.quota != quota || (b.warning[0] != '\0') != warns)
        fail_msg("%s: quota %u, warning '%s'", what, b.quota, b.warning);
    unsigned most = b.cores && b.cores < b.affinity ? b.cores : b.affinity;
    unsigned want = quota && quota < most ? quota : most;
    assert_int_equal(b.threads, want);
    bool limited;
    assert_int_equal(lathe_default_threads(&limited), want);
    assert_int_equal(limited, quota > 0);
}

static void test_quota(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned quota;
        bool warns;
    } v2[] = {
        {"200000 100000\n", 2, false},
        {"150000 100000\n", 2, false},
        {"50000 100000\n", 1, false},
        {"max 100000\n", 0, false},
        {"", 0, true},
        {"many per day\n", 0, true},
        {"100000 0\n", 0, true},
        {"-5 100000\n", 0, true},
        {"99999999999999999999 100000\n", 0, true},
        {"200000 100000 7\n", 0, true},
        {"200000\n", 0, true},
        {"0 100000\n", 0, true},
        {"max\n", 0, true},
        {"1 100000", 1, false},
        {"300001 100000\n", 4, false},
    };
    assert_non_null(mkdtemp(root));
    setenv("LATHE_CGROUP_ROOT", root, 1);
    expect_quota("no files", 0, false);
    for (size_t i = 0; i < sizeof v2 / sizeof *v2; i++) {
        put_file("cpu.max", v2[i].text);
        expect_quota(v2[i].text, v2[i].quota, v2[i].warns);
    }
    drop_file("cpu.max");
    char folder[64];
    snprintf(folder, sizeof folder, "%s/cpu", root);
    assert_int_equal(mkdir(folder, 0700), 0);
    put_file("cpu/cpu.cfs_period_us", "100000\n");
    put_file("cpu/cpu.cfs_quota_us", "-1\n");
    expect_quota("v1 unlimited", 0, false);
    put_file("cpu/cpu.cfs_quota_us", "300000\n");
    expect_quota("v1 3", 3, false);
    put_file("cpu/cpu.cfs_quota_us", "lots\n");
    expect_quota("v1 garbage", 0, true);
    put_file("cpu/cpu.cfs_quota_us", "300000\n");
    put_file("cpu/cpu.cfs_period_us", "0\n");
    expect_quota("v1 zero period", 0, true);
    drop_file("cpu/cpu.cfs_quota_us");
    drop_file("cpu/cpu.cfs_period_us");
    rmdir(folder);
    rmdir(root);
    unsetenv("LATHE_CGROUP_ROOT");
}

static void test_affinity(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct lathe_thread_budget b;
    lathe_thread_budget(&b);
    sched_setaffinity(0, sizeof all, &all);
    assert_int_equal(b.affinity, 1);
    assert_int_equal(b.threads, 1);
}

struct job {
    atomic_uint seen[LATHE_MAX_THREADS];
    atomic_uint phase_count[64];
    atomic_bool wrong;
};

static void phases(void *user, const struct lathe_team *team) {
    struct job *j = user;
    atomic_fetch_add(&j->seen[team->index], 1);
    for (int phase = 0; phase < 64; phase++) {
        atomic_fetch_add(&j->phase_count[phase], 1);
        lathe_team_wait(team);
        if (atomic_load(&j->phase_count[phase]) != team->count)
            atomic_store(&j->wrong, true);
        if (phase % 7 == 0 && team->index == 1) /* long enough for the others to fall asleep */
            nanosleep(&(struct timespec){0, 200000}, NULL);
        lathe_team_wait(team);
    }
}

static void test_pool(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 5; threads++) {
        struct lathe_pool *pool = NULL;
        assert_int_equal(lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &pool, NULL), LATHE_OK);
        assert_int_equal(lathe_pool_threads(pool), threads);
        for (int round = 0; round < 20; round++) {
            struct job *j = calloc(1, sizeof *j);
            assert_non_null(j);
            lathe_pool_run(pool, phases, j);
            assert_false(atomic_load(&j->wrong));
            for (unsigned i = 0; i < LATHE_MAX_THREADS; i++)
                assert_int_equal(atomic_load(&j->seen[i]), i < threads);
            free(j);
        }
        lathe_pool_free(&pool);
        assert_null(pool);
    }
}

static void breaks(void *user, const struct lathe_team *team) {
    atomic_fetch_add((atomic_uint *)user, 1);
    if (team->index == team->count - 1) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        lathe_team_break(team);
        return;
    }
    lathe_team_wait(team);
    lathe_team_wait(team);
}

static void test_broken_barrier(void **state) {
    (void)state;
    struct lathe_pool *pool = NULL;
    assert_int_equal(lathe_pool_new(&(struct lathe_pool_options){.threads = 4}, &pool, NULL), LATHE_OK);
    for (int round = 0; round < 10; round++) {
        atomic_uint entered = 0;
        lathe_pool_run(pool, breaks, &entered); /* returns */
        assert_int_equal(atomic_load(&entered), 4);
        struct job *j = calloc(1, sizeof *j); /* and the pool is whole again */
        assert_non_null(j);
        lathe_pool_run(pool, phases, j);
        assert_false(atomic_load(&j->wrong));
        free(j);
    }
    lathe_pool_free(&pool);
}

/* ---- phases */

#define PARTS  8 /* threads */
#define TURNS  4
#define PHASES 40

struct walk {
    unsigned run, threads, turns;
    unsigned at[PARTS * TURNS]; /* phases done of each part; plain, as there is a meeting between two of one index */
    unsigned busy[PARTS];       /* plain, as calls of one thread never overlap */
    atomic_uint sum, taken;     /* `taken`: parts that another thread than their own has done */
    atomic_bool wrong;
};

/* Each part is called once a phase, and no part of a phase before all of the one before are done. */
static void walk_part(void *user, const struct lathe_team *team, unsigned phase) {
    struct walk *w = user;
    unsigned parts = w->threads * w->turns;
    if (team->count != parts || team->index >= parts || team->thread >= w->threads || team->turns != w->turns ||
        w->at[team->index]++ != phase || w->busy[team->thread]++)
        atomic_store(&w->wrong, true);
    if (atomic_load(&w->sum) < phase * parts)
        atomic_store(&w->wrong, true);
    if ((phase + w->run) % 13 == 0 && team->index == w->run % parts) /* long enough for the others to sleep */
        nanosleep(&(struct timespec){0, 100000}, NULL);
    if (team->index)
        lathe_team_wait(team); /* does nothing */
    if (team->index / w->turns != team->thread)
        atomic_fetch_add(&w->taken, 1);
    w->busy[team->thread]--;
    atomic_fetch_add(&w->sum, 1);
}

static void test_phases(void **state) {
    (void)state;
    bool helped = false; /* a thread that slept in one of its turns did not have to do the rest of them */
    for (unsigned threads = 1; threads <= PARTS; threads++) {
        struct lathe_pool *pool = NULL;
        assert_int_equal(lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &pool, NULL), LATHE_OK);
        for (unsigned run = 0; run < 300; run++) {
            unsigned count = run % PHASES;
            struct walk *w = calloc(1, sizeof *w); /* freed at once: a late worker must not touch it */
            assert_non_null(w);
            w->run = run;
            w->threads = threads;
            w->turns = run % 3 ? 1 : 1 + run % TURNS;
            lathe_pool_run_phases(pool, walk_part, w, count, w->turns);
            assert_false(atomic_load(&w->wrong));
            assert_int_equal(atomic_load(&w->sum), count * threads * w->turns);
            for (unsigned i = 0; i < threads * w->turns; i++)
                assert_int_equal(w->at[i], count);
            helped |= w->turns > 1 && atomic_load(&w->taken) > 0;
            free(w);
            if (run % 50 == 7) { /* the other kind of run in between */
                struct job *j = calloc(1, sizeof *j);
                assert_non_null(j);
                lathe_pool_run(pool, phases, j);
                assert_false(atomic_load(&j->wrong));
                free(j);
            }
        }
        lathe_pool_free(&pool);
    }
    assert_true(helped);
}

static void nothing(void *user, const struct lathe_team *team, unsigned phase) {
    (void)team;
    (void)phase;
    atomic_fetch_add((atomic_uint *)user, 1);
}

static void empty_region(void *user, const struct lathe_team *team) {
    (void)team;
    (void)user;
}

/* Workers that get no CPU are not waited for: here all share one CPU with the caller, which does not sleep. */
static void test_late_workers(void **state) {
    (void)state;
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
    struct lathe_pool *pool = NULL;
    assert_int_equal(lathe_pool_new(&(struct lathe_pool_options){.threads = 4}, &pool, NULL), LATHE_OK);
    lathe_pool_run(pool, empty_region, NULL);
    struct timespec a, b;
    atomic_uint calls = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int run = 0; run < 1000; run++)
        lathe_pool_run_phases(pool, nothing, &calls, 50, 1);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_int_equal(atomic_load(&calls), 1000 * 50 * 4);
    double used = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    assert_true(used < 1.0); /* 200000 parts: no waiting by spinning */
    lathe_pool_free(&pool);
    sched_setaffinity(0, sizeof before, &before);
}

/* A pool that waits uses no CPU time. */
static void test_idle(void **state) {
    (void)state;
    struct lathe_pool *pool = NULL;
    assert_int_equal(lathe_pool_new(&(struct lathe_pool_options){.threads = 3}, &pool, NULL), LATHE_OK);
    struct job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    lathe_pool_run(pool, phases, j);
    free(j);
    atomic_uint calls = 0;
    lathe_pool_run_phases(pool, nothing, &calls, 10, 1);
    assert_int_equal(atomic_load(&calls), 30);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    assert_true(used < 0.005 * 0.3 + 0.0005);
    lathe_pool_free(&pool);
}

static void test_pinning(void **state) {
    (void)state;
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    int cores[2] = {0, 1 << 20}; /* the second does not exist: one thread stays unpinned, nothing fails */
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before)) {
            cores[0] = i;
            break;
        }
    struct lathe_pool *pool = NULL;
    assert_int_equal(
        lathe_pool_new(&(struct lathe_pool_options){.threads = 2, .cores = cores, .core_count = 2}, &pool, NULL),
        LATHE_OK);
    assert_true(lathe_pool_pin_failed(pool));
    sched_getaffinity(0, sizeof after, &after);
    assert_int_equal(CPU_COUNT(&after), 1);
    lathe_pool_free(&pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    assert_int_equal(
        lathe_pool_new(&(struct lathe_pool_options){.threads = 3, .cores = cores, .core_count = 2}, &pool, NULL),
        LATHE_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),          cmocka_unit_test(test_affinity), cmocka_unit_test(test_pool),
        cmocka_unit_test(test_broken_barrier), cmocka_unit_test(test_idle),     cmocka_unit_test(test_phases),
        cmocka_unit_test(test_late_workers),   cmocka_unit_test(test_pinning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
