/* The thread pool of a session: `count` threads, the caller being thread 0, which run one function together. Workers
 * wake once a run. A run is either one region, whose threads may meet at lathe_team_wait, or phases, which need no
 * thread but the caller (a session's run). Waiting spins for at most 50 us (not at all under a CPU quota), then sleeps;
 * an idle pool costs nothing. */
#ifndef LATHE_THREADS_H
#define LATHE_THREADS_H

#include "tensor.h"

#include <pthread.h>

struct lathe_pool;

struct lathe_pool_options {
    unsigned threads; /* 0: lathe_default_threads() */
    const int *cores; /* CPU numbers to pin thread i to, core_count of them; NULL: not pinned */
    unsigned core_count;
};

LATHE_NODISCARD enum lathe_status lathe_pool_new(const struct lathe_pool_options *options, struct lathe_pool **out,
                                                 struct lathe_diag *diag);
void lathe_pool_free(struct lathe_pool **pool);
unsigned lathe_pool_threads(const struct lathe_pool *pool);
/* Does a cache line pass from the caller to each other thread, one way, within so many nanoseconds? Measured when the
 * pool is made; false where threads do not spin, or one had no CPU just then. Steps are cut by it; results are not. */
#define LATHE_NEAR_NS 150
bool lathe_pool_near(const struct lathe_pool *pool);
/* Runs fn on every thread of the pool and returns when all are done. Not reentrant; one caller at a time. */
void lathe_pool_run(struct lathe_pool *pool, void (*fn)(void *user, const struct lathe_team *team), void *user);

/* Runs phases 0 to count - 1 in order, each as `turns` parts a thread: fn(user, team, phase) is called once for each
 * team->index of each phase, and a phase starts when all parts of the one before are done. Parts i * turns to
 * (i + 1) * turns - 1 belong to thread i, which takes them in order, but one that is late (asleep, or on a slower core,
 * or its CPU is taken by another process) is not waited for: whoever is done takes its next part. Calls with the same
 * team->thread never overlap in time. fn must not wait for other parts: team->barrier is NULL. */
void lathe_pool_run_phases(struct lathe_pool *pool,
                           void (*fn)(void *user, const struct lathe_team *team, unsigned phase), void *user,
                           unsigned count, unsigned turns);

#define LATHE_MAX_THREADS 256

/* A barrier that a thread has broken lets everybody through until lathe_pool_run returns: a step that fails on one
 * thread must not leave the others waiting inside it. */
void lathe_team_break(const struct lathe_team *team);
/* True when options asked for cores and a thread could not be pinned (it then runs unpinned). */
bool lathe_pool_pin_failed(const struct lathe_pool *pool);

/* ---- for all who wait or pin */
static inline void lathe_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
/* Pauses that fill 50 us, for one of that many busy threads; 0 under a quota, or where they have not a CPU each. */
unsigned lathe_wait_spins(unsigned threads);
/* False: that CPU is not there, or not allowed. */
bool lathe_pin_thread(pthread_t thread, int cpu);

/* What decides the number of threads. */
struct lathe_thread_budget {
    unsigned affinity; /* CPUs of the affinity mask */
    unsigned cores;    /* physical cores among them; 0 unknown */
    unsigned quota;    /* ceil(quota / period) of the control group; 0: no limit */
    unsigned threads;  /* the number chosen */
    char warning[192]; /* "" or one line about a quota that cannot be read */
};
/* The environment variable LATHE_CGROUP_ROOT names another folder than /sys/fs/cgroup. */
void lathe_thread_budget(struct lathe_thread_budget *out);

/* min(affinity count, ceil(quota / period), physical cores), at least 1; cgroup v1 and v2. *limited_by_quota may be
 * NULL. */
unsigned lathe_default_threads(bool *limited_by_quota);
#endif
