/* The pool: workers that wait for one function, run it with the caller, and wait again. Waiting is a short spin on one
 * word, then a futex; the word tells the generation, so a wake-up is never lost and none is needed while all spin.
 *
 * Measured with tests/bench/bench_threads.c (2 threads, EPYC with AVX-512, busy machine under SCHED_FIFO, 30 Nov 2026);
 * median / 99th percentile in microseconds. "steps" is the shape of a run at 8 tokens: 50 steps of 5 us a thread, 250
 * us of work, as one region with barriers here, as a region a step by the others (OpenMP with barriers in brackets).
 *                      empty region    steps                        steps after 2 ms of sleep
 *   this pool           0.11 / 0.21    268 / 300                    298 / 343
 *   libpthreadpool      0.76 / 1.31    292 / 361                    293 / 367
 *   GNU OpenMP          1.03 / 1.31    305 / 343 (280 / 313)        310 / 377 (283 / 317)
 * Both others spin for milliseconds before they sleep, so they were awake in the last column; ours may spin for 50 us,
 * slept, and paid 29 us for the wake-up. Hence our own pool: the least overhead a step, and an idle process is idle.
 *
 * Phases (the run of a session) cost the same as barriers on a quiet machine, and do not wait for a thread whose CPU
 * another process has taken: `lathe bench` with barriers -> with phases, medians in milliseconds:
 *                                            quiet            load of 8 to 12 on the 2 cores
 *   encoder of 4 layers of 128, 24 tokens    0.239 -> 0.236    6.3 -> 0.285
 *   distilbert f32, 8 tokens                 3.57 -> 3.57     36.1 -> 27.6
 *
 * A meeting of two threads at a phase takes 80 ns where their cores share a third cache, and 250 ns (337 while the word
 * that is claimed was the word that is watched) where they do not, as a virtual machine cannot know: minilm-l6 int8, 8
 * tokens, 0.2092 -> 0.2069 ms there. */
#include "threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NANOSECONDS 50000
#define PATIENCE_PART    25 /* of them: the time in which a thread that is awake takes its part */
#define STACK_BYTES      ((size_t)1 << 20)
#define LINE             64

/* A word that threads wait on until it changes. */
struct signal {
    _Alignas(LINE) atomic_uint value;
    atomic_uint sleepers;
};

struct lathe_barrier {
    struct signal generation;
    _Alignas(LINE) atomic_uint arrived;
    _Alignas(LINE) atomic_bool broken;
    unsigned count, spins;
};

/* How far the parts of one thread are, those of all phases in a row: the run in the upper half, parts in the lower.
 * `taken` counts those that somebody is at or has done: whoever sets it from n to n + 1 does part n. `done` counts
 * those that are done; the others watch it. They leave `taken` alone until they have waited a while, so that its owner,
 * who has it in its own cache, need not wait for it. */
struct progress {
    _Alignas(2 * LINE) _Atomic uint64_t done;
    atomic_uint sleepers;
    _Alignas(2 * LINE) _Atomic uint64_t taken;
};
#define NOTHING_TO_TAKE UINT32_MAX

struct lathe_pool {
    struct lathe_barrier barrier;
    struct signal work, done; /* generation of the last run started (odd: of phases), and finished */
    _Alignas(LINE) atomic_uint running;
    void (*fn)(void *user, const struct lathe_team *team);
    void *user;
    /* of a run of phases; read by workers that may be late, who do nothing with them unless they get a part */
    void (*_Atomic phase_fn)(void *user, const struct lathe_team *team, unsigned phase);
    void *_Atomic phase_user;
    atomic_uint phase_count, phase_turns;
    struct progress *progress; /* one a thread */
    unsigned patience;         /* pauses before the part of another is taken */
    atomic_bool stop;
    bool pin_failed, caller_pinned, near;
    unsigned count, started, spins;
    pthread_t caller;
    cpu_set_t caller_set;
    struct worker {
        struct lathe_pool *pool;
        unsigned index;
        pthread_t thread;
    } workers[];
};

static void futex_wait(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Waits until the word is not `old`. */
static void signal_wait(struct signal *s, unsigned old, unsigned spins, const atomic_bool *broken) {
    for (unsigned i = 0; i < spins; i++) {
        if (atomic_load_explicit(&s->value, memory_order_acquire) != old)
            return;
        if (broken && atomic_load_explicit(broken, memory_order_relaxed))
            return;
        lathe_pause();
    }
    /* The sleeper is counted before the word is read again, the waker changes the word before it reads the count: one
     * of the two sees the other. */
    atomic_fetch_add(&s->sleepers, 1);
    while (atomic_load(&s->value) == old && !(broken && atomic_load(broken)))
        futex_wait(&s->value, old);
    atomic_fetch_sub(&s->sleepers, 1);
}

static void signal_set(struct signal *s, unsigned value) {
    atomic_store(&s->value, value);
    if (atomic_load(&s->sleepers) > 0)
        futex_wake_all(&s->value);
}

void lathe_team_wait(const struct lathe_team *team) {
    struct lathe_barrier *b = team->barrier;
    if (!b || team->count < 2)
        return;
    unsigned generation = atomic_load_explicit(&b->generation.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) == b->count - 1) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        signal_set(&b->generation, generation + 1);
    } else {
        signal_wait(&b->generation, generation, b->spins, &b->broken);
    }
}

void lathe_team_break(const struct lathe_team *team) {
    struct lathe_barrier *b = team->barrier;
    if (!b || team->count < 2)
        return;
    /* Sleepers wait for the word to change, so it must. */
    atomic_store(&b->broken, true);
    signal_set(&b->generation, atomic_load(&b->generation.value) + 0x10000u);
}

/* ---- phases */

/* Wakes those who sleep until `done` changes; called soon after it has. Between the two its setter looks for what it
 * waits for itself: the new value is on its way meanwhile, and a meeting takes one way between two cores, not two. */
static void progress_tell(struct progress *p) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake_all((atomic_uint *)&p->done); /* the lower half: hosts are little-endian */
}

/* Sleeps until the word is not `done`. When the run is over meanwhile, the word changes again in the next at the
 * latest. */
static void progress_sleep(struct progress *p, uint64_t done) {
    atomic_fetch_add(&p->sleepers, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&p->done) == done)
        futex_wait((atomic_uint *)&p->done, (unsigned)done);
    atomic_fetch_sub(&p->sleepers, 1);
}

/* What a thread knows of the run that it walks. */
struct walker {
    struct lathe_pool *pool;
    unsigned thread;
    uint64_t run;
    unsigned turns;
};

/* Does that part of thread `owner`, if nobody has begun it. Who sleeps is to be told afterwards. */
static void phase_part(const struct walker *w, unsigned owner, unsigned part) {
    struct lathe_pool *pool = w->pool;
    struct progress *p = &pool->progress[owner];
    uint64_t at = w->run | part;
    if (!atomic_compare_exchange_strong(&p->taken, &at, at + 1))
        return;
    /* from here the run cannot end before we are done: what it is about stands still */
    struct lathe_team team = {.index = owner * w->turns + part % w->turns,
                              .count = pool->count * w->turns,
                              .near = pool->near,
                              .thread = w->thread,
                              .turns = w->turns};
    atomic_load_explicit(&pool->phase_fn, memory_order_relaxed)(
        atomic_load_explicit(&pool->phase_user, memory_order_relaxed), &team, part / w->turns);
    atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
}

/* Does one of the first `parts` of some thread that nobody has begun, the next of that thread. */
static bool take_any(const struct walker *w, unsigned parts) {
    for (unsigned i = 1; i < w->pool->count; i++) {
        unsigned owner = (w->thread + i) % w->pool->count;
        struct progress *p = &w->pool->progress[owner];
        uint64_t taken = atomic_load_explicit(&p->taken, memory_order_relaxed);
        if (taken >> 32 == w->run >> 32 && (uint32_t)taken < parts) {
            phase_part(w, owner, (uint32_t)taken);
            progress_tell(p);
            return true;
        }
    }
    return false;
}

/* Waits until `parts` of each thread are done, and takes those that nobody has begun. False: the run is over, and
 * another may be on. */
static bool phase_wait(const struct walker *w, unsigned parts) {
    struct lathe_pool *pool = w->pool;
    struct progress *own = &pool->progress[w->thread];
    const uint64_t run = w->run;
    bool told = false;
    for (unsigned index = 0; index < pool->count; index++) {
        struct progress *p = &pool->progress[index];
        for (unsigned i = 0, idle = 0;; i++) {
            uint64_t done = atomic_load_explicit(&p->done, memory_order_acquire);
            if (done >> 32 != run >> 32 || (uint32_t)done >= parts) {
                if (done >> 32 == run >> 32)
                    break;
                progress_tell(own);
                return false;
            }
            if (idle++ < pool->patience) {
                lathe_pause();
                continue;
            }
            /* that was a moment for its owner, who comes from the same wait as we do and has its data at hand */
            idle = 0;
            if (!told)
                progress_tell(own);
            told = true;
            if (!take_any(w, parts) && i >= pool->spins)
                progress_sleep(p, done);
        }
    }
    if (!told)
        progress_tell(own);
    return true;
}

static void walk_phases(const struct walker *w, unsigned count) {
    for (unsigned part = 0; part < count * w->turns; part++) {
        if (part > 0 && part % w->turns == 0 && !phase_wait(w, part))
            return;
        phase_part(w, w->thread, part);
    }
    if (w->thread == 0)
        phase_wait(w, count * w->turns);
    else
        progress_tell(&w->pool->progress[w->thread]);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct lathe_pool *pool = w->pool;
    unsigned seen = 0;
    for (;;) {
        signal_wait(&pool->work, seen, pool->spins, NULL);
        seen = atomic_load_explicit(&pool->work.value, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire))
            return NULL;
        if (seen % 2) {
            unsigned count = atomic_load_explicit(&pool->phase_count, memory_order_acquire);
            unsigned turns = atomic_load_explicit(&pool->phase_turns, memory_order_relaxed);
            walk_phases(&(struct walker){pool, w->index, (uint64_t)seen << 32, turns}, count);
            continue;
        }
        struct lathe_team team = {w->index, pool->count, &pool->barrier, pool->near, w->index, 1};
        pool->fn(pool->user, &team);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1)
            signal_set(&pool->done, seen);
    }
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Pauses in 50 us on this CPU; the fastest of a few short measurements, so that a preemption does not count. */
static unsigned spins_of_limit(void) {
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 5; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < 64; i++)
            lathe_pause();
        uint64_t ns = now_ns() - start;
        if (ns < best)
            best = ns;
    }
    if (best < 64) /* no pause instruction, or a coarse clock */
        best = 64;
    return (unsigned)(SPIN_NANOSECONDS * UINT64_C(64) / best);
}

/* Spinning helps only when each thread has a CPU for itself, and it eats into a quota. */
static unsigned spins_for(unsigned count, const struct lathe_thread_budget *budget) {
    bool crowded = budget->quota > 0 || count > budget->affinity;
    return crowded || count < 2 ? 0 : spins_of_limit();
}

unsigned lathe_wait_spins(unsigned threads) {
    struct lathe_thread_budget budget;
    lathe_thread_budget(&budget);
    return spins_for(threads, &budget);
}

bool lathe_pin_thread(pthread_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return false;
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

/* ---- how far the threads are from each other */

/* A word for each way between the caller and one worker, who answers what it is sent. */
#define BALLS      8 /* timed together, */
#define BALL_TESTS 12
struct ball {
    _Alignas(2 * LINE) atomic_uint there;
    _Alignas(2 * LINE) atomic_uint back;
};
struct game {
    struct ball ball;
    unsigned patience; /* looks at a word before its other end is given up */
    uint64_t ns;       /* of a round trip, the longest among the workers; UINT64_MAX: given up */
    atomic_bool over;
};

static bool ball_comes(const struct game *game, const atomic_uint *word, unsigned number) {
    for (unsigned i = 0; i < game->patience; i++)
        if (atomic_load_explicit(word, memory_order_acquire) == number)
            return true;
        else if (atomic_load_explicit(&game->over, memory_order_relaxed))
            return false;
    return false;
}

static void play(void *user, const struct lathe_team *team) {
    struct game *game = user;
    unsigned each = BALLS * BALL_TESTS;
    if (team->index > 0) {
        for (unsigned i = 1; i <= each; i++) {
            if (!ball_comes(game, &game->ball.there, (team->index - 1) * each + i))
                return;
            atomic_store_explicit(&game->ball.back, (team->index - 1) * each + i, memory_order_release);
        }
        return;
    }
    for (unsigned worker = 1, number = 0; worker < team->count && game->ns != UINT64_MAX; worker++) {
        uint64_t best = UINT64_MAX;
        for (unsigned test = 0; test < BALL_TESTS && number != UINT32_MAX; test++) {
            uint64_t start = now_ns();
            for (unsigned i = 0; i < BALLS && number != UINT32_MAX; i++) {
                atomic_store_explicit(&game->ball.there, ++number, memory_order_release);
                number = ball_comes(game, &game->ball.back, number) ? number : UINT32_MAX;
            }
            uint64_t ns = (now_ns() - start) / BALLS;
            best = ns < best ? ns : best;
        }
        game->ns = number == UINT32_MAX ? UINT64_MAX : best > game->ns ? best : game->ns;
    }
    atomic_store(&game->over, true);
}

static bool threads_are_near(struct lathe_pool *pool) {
    struct game game = {.patience = pool->spins * 200}; /* a millisecond or more: the workers have just been started */
    if (pool->spins == 0)
        return false;
    lathe_pool_run(pool, play, &game);
    return game.ns <= 2 * LATHE_NEAR_NS;
}

bool lathe_pool_near(const struct lathe_pool *pool) {
    return pool->near;
}

enum lathe_status lathe_pool_new(const struct lathe_pool_options *options, struct lathe_pool **out,
                                 struct lathe_diag *diag) {
    static const struct lathe_pool_options none;
    if (!options)
        options = &none;
    *out = NULL;
    struct lathe_thread_budget budget;
    lathe_thread_budget(&budget);
    unsigned count = options->threads ? options->threads : budget.threads;
    if (count > LATHE_MAX_THREADS)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "threads: %u, supported are 1 to %d", count,
                          LATHE_MAX_THREADS);
    if (options->core_count > 0 && options->core_count < count)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "cores: %u given for %u threads", options->core_count, count);
    size_t size = sizeof(struct lathe_pool) + count * sizeof(struct worker);
    struct lathe_pool *pool = aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
    if (!pool)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "thread pool: %zu bytes", size);
    *pool = (struct lathe_pool){.count = count, .caller = pthread_self()};
    pool->progress = aligned_alloc(LINE, count * sizeof *pool->progress);
    if (!pool->progress) {
        free(pool);
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "thread pool: %u threads", count);
    }
    memset(pool->progress, 0, count * sizeof *pool->progress);
    pool->spins = spins_for(count, &budget);
    pool->barrier.count = count;
    pool->barrier.spins = pool->spins;
    pool->patience = pool->spins / PATIENCE_PART;
    if (options->cores && options->core_count) {
        pool->caller_pinned = pthread_getaffinity_np(pool->caller, sizeof pool->caller_set, &pool->caller_set) == 0;
        pool->pin_failed = !lathe_pin_thread(pool->caller, options->cores[0]);
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 1; i < count && status == LATHE_OK; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        int error = pthread_create(&pool->workers[i].thread, &attr, worker_main, &pool->workers[i]);
        if (error)
            status =
                lathe_fail(diag, LATHE_MSG_THREADS, "thread %u of %u cannot be started (error %d)", i, count, error);
        else
            pool->started++;
        if (!error && options->cores && options->core_count)
            pool->pin_failed |= !lathe_pin_thread(pool->workers[i].thread, options->cores[i]);
    }
    pthread_attr_destroy(&attr);
    if (status == LATHE_OK)
        pool->near = threads_are_near(pool);
    else
        lathe_pool_free(&pool);
    *out = pool;
    return status;
}

void lathe_pool_free(struct lathe_pool **pool_pointer) {
    struct lathe_pool *pool = *pool_pointer;
    *pool_pointer = NULL;
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    signal_set(&pool->work, atomic_load(&pool->work.value) + 1);
    for (unsigned i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    if (pool->caller_pinned && pthread_equal(pool->caller, pthread_self()))
        pthread_setaffinity_np(pool->caller, sizeof pool->caller_set, &pool->caller_set);
    free(pool->progress);
    free(pool);
}

unsigned lathe_pool_threads(const struct lathe_pool *pool) {
    return pool->count;
}

bool lathe_pool_pin_failed(const struct lathe_pool *pool) {
    return pool->pin_failed;
}

void lathe_pool_run(struct lathe_pool *pool, void (*fn)(void *user, const struct lathe_team *team), void *user) {
    struct lathe_team team = {0, pool->count, pool->count > 1 ? &pool->barrier : NULL, pool->near, 0, 1};
    if (pool->count < 2) {
        fn(user, &team);
        return;
    }
    struct lathe_barrier *b = &pool->barrier;
    if (atomic_load_explicit(&b->broken, memory_order_relaxed)) {
        atomic_store(&b->broken, false);
        atomic_store(&b->arrived, 0);
    }
    pool->fn = fn;
    pool->user = user;
    unsigned generation = (atomic_load_explicit(&pool->work.value, memory_order_relaxed) | 1) + 1;
    unsigned finished = atomic_load_explicit(&pool->done.value, memory_order_relaxed);
    atomic_store_explicit(&pool->running, pool->count - 1, memory_order_relaxed);
    signal_set(&pool->work, generation);
    fn(user, &team);
    signal_wait(&pool->done, finished, pool->spins, NULL);
}

void lathe_pool_run_phases(struct lathe_pool *pool,
                           void (*fn)(void *user, const struct lathe_team *team, unsigned phase), void *user,
                           unsigned count, unsigned turns) {
    if (pool->count < 2) {
        for (unsigned part = 0; part < count * turns; part++)
            fn(user, &(struct lathe_team){.index = part % turns, .count = turns, .turns = turns}, part / turns);
        return;
    }
    if (!count)
        return;
    unsigned generation = (atomic_load_explicit(&pool->work.value, memory_order_relaxed) + 1) | 1;
    uint64_t run = (uint64_t)generation << 32;
    /* A worker may still be walking the last run. It reads the count, then wants a part: with the new count it must
     * find that its run is over. */
    for (unsigned i = 0; i < pool->count; i++)
        atomic_store(&pool->progress[i].taken, run | NOTHING_TO_TAKE);
    atomic_store_explicit(&pool->phase_fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->phase_user, user, memory_order_relaxed);
    atomic_store_explicit(&pool->phase_turns, turns, memory_order_relaxed);
    atomic_store_explicit(&pool->phase_count, count, memory_order_release);
    for (unsigned i = 0; i < pool->count; i++) {
        atomic_store_explicit(&pool->progress[i].done, run, memory_order_release);
        atomic_store_explicit(&pool->progress[i].taken, run, memory_order_release);
    }
    signal_set(&pool->work, generation);
    for (unsigned i = 0; i < pool->count; i++)
        progress_tell(&pool->progress[i]);
    walk_phases(&(struct walker){pool, 0, run, turns}, count);
}
