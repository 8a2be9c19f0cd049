/* How fast threads start: an empty region, and the shape of a run at 8 tokens (50 short steps, one after the other), by
 * the pool of runtime/threads.c, GNU OpenMP and libpthreadpool. Prints the median and the 99th percentile in
 * microseconds, back to back and after a pause long enough for the threads to have gone to sleep.
 * On a busy machine run it under `chrt -f 50`. */
#include "threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_OPENMP
#include <omp.h>
#endif
#ifdef HAVE_PTHREADPOOL
#include <pthreadpool.h>
#endif

#define STEPS 50
#define RUNS  2000

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The share of one thread in one step: a dependent chain of about 5 us. */
static volatile double sink;
static int step_length;
static void work(void) {
    double x = 1.0;
    for (int i = 0; i < step_length; i++)
        x = x * 1.0000001 + 1e-9;
    sink = x;
}

static void calibrate(void) {
    step_length = 100000;
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        double a = now();
        work();
        double t = now() - a;
        best = t < best ? t : best;
    }
    step_length = (int)(step_length * 5.0 / best);
}

static unsigned threads;

/* ---- our pool: one region, barriers between the steps */
static struct lathe_pool *pool;
static void nothing(void *user, const struct lathe_team *team) {
    (void)user;
    (void)team;
}
static void steps_of_team(void *user, const struct lathe_team *team) {
    (void)user;
    for (int i = 0; i < STEPS; i++) {
        work();
        lathe_team_wait(team);
    }
}
static void ours_empty(void) {
    lathe_pool_run(pool, nothing, NULL);
}
static void ours_steps(void) {
    lathe_pool_run(pool, steps_of_team, NULL);
}

#ifdef HAVE_OPENMP
static void openmp_empty(void) {
#pragma omp parallel num_threads(threads)
    { __asm__ volatile("" ::: "memory"); }
}
static void openmp_steps(void) { /* a region a step, as operators that know nothing of each other do */
    for (int i = 0; i < STEPS; i++) {
#pragma omp parallel num_threads(threads)
        work();
    }
}
static void openmp_region(void) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < STEPS; i++) {
        work();
#pragma omp barrier
    }
}
#endif

#ifdef HAVE_PTHREADPOOL
static pthreadpool_t peer;
static void peer_nothing(void *user, size_t i) {
    (void)user;
    (void)i;
}
static void peer_work(void *user, size_t i) {
    (void)user;
    (void)i;
    work();
}
static void pthreadpool_empty(void) {
    pthreadpool_parallelize_1d(peer, peer_nothing, NULL, threads, 0);
}
static void pthreadpool_steps(void) {
    for (int i = 0; i < STEPS; i++)
        pthreadpool_parallelize_1d(peer, peer_work, NULL, threads, 0);
}
#endif

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const char *name, void (*run)(void), int runs, int pause_us) {
    double *times = malloc((size_t)runs * sizeof *times);
    if (!times)
        return;
    for (int i = 0; i < runs / 10 + 3; i++)
        run();
    for (int i = 0; i < runs; i++) {
        if (pause_us)
            usleep((useconds_t)pause_us);
        double a = now();
        run();
        times[i] = now() - a;
    }
    qsort(times, (size_t)runs, sizeof *times, by_value);
    printf("%-34s %9.2f %9.2f\n", name, times[runs / 2], times[runs * 99 / 100]);
    free(times);
}

int main(int argc, char **argv) {
    threads = argc > 1 ? (unsigned)atoi(argv[1]) : lathe_default_threads(NULL);
    if (threads < 1 || threads > LATHE_MAX_THREADS ||
        lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &pool, NULL) != LATHE_OK)
        return 2;
    calibrate();
    printf("%u threads, %d steps of 5 us; microseconds:   median       p99\n", threads, STEPS);
    measure("pool, empty", ours_empty, RUNS, 0);
    measure("pool, empty, after 2 ms", ours_empty, RUNS / 10, 2000);
    measure("pool, steps", ours_steps, RUNS, 0);
    measure("pool, steps, after 2 ms", ours_steps, RUNS / 10, 2000);
    lathe_pool_free(&pool);
#ifdef HAVE_PTHREADPOOL
    peer = pthreadpool_create(threads);
    measure("pthreadpool, empty", pthreadpool_empty, RUNS, 0);
    measure("pthreadpool, empty, after 2 ms", pthreadpool_empty, RUNS / 10, 2000);
    measure("pthreadpool, steps", pthreadpool_steps, RUNS, 0);
    measure("pthreadpool, steps, after 2 ms", pthreadpool_steps, RUNS / 10, 2000);
    pthreadpool_destroy(peer);
#endif
#ifdef HAVE_OPENMP
    measure("openmp, empty", openmp_empty, RUNS, 0);
    measure("openmp, empty, after 2 ms", openmp_empty, RUNS / 10, 2000);
    measure("openmp, a region a step", openmp_steps, RUNS, 0);
    measure("openmp, a region a step, after 2 ms", openmp_steps, RUNS / 10, 2000);
    measure("openmp, barriers", openmp_region, RUNS, 0);
    measure("openmp, barriers, after 2 ms", openmp_region, RUNS / 10, 2000);
#endif
    return 0;
}
