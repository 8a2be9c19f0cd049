/* What the two ways of lathe bench share: sessions side by side (cmd_bench.c) and a fleet (bench_fleet.c). */
#ifndef LATHE_BENCH_H
#define LATHE_BENCH_H

#include "feeds.h"
#include "json_text.h"
#include "kernel.h"
#include "session_args.h"

#include "lathe.h"

#define LATHE_BENCH_MAX_LENGTHS 4096
#define LATHE_BENCH_MAX_CLIENTS 256
#define LATHE_BENCH_WARM_UP     3 /* runs of each session or client */

struct lathe_bench_request {
    struct lathe_words args;
    int64_t seq, batch, instances, requests, clients;
    bool has_seq, has_batch, has_instances, json, map_weights, steps;
    const char *lengths, *placement;
    double seconds;
    struct lathe_session_args session;

    int64_t length_list[LATHE_BENCH_MAX_LENGTHS];
    unsigned length_count;
};

/* Times of runs or requests in milliseconds; grows. */
struct lathe_bench_times {
    double *ms;
    size_t count, capacity;
};
LATHE_NODISCARD enum lathe_status lathe_bench_add(struct lathe_bench_times *t, double ms, struct lathe_diag *diag);
double lathe_bench_now(void); /* seconds */

struct lathe_bench_results {
    double p50, p90, p95, p99, p100, mean, per_second; /* ms; sequences a second */
    size_t runs;
    unsigned threads;
    const char *kernels[LATHE_MAX_FAMILIES];
    unsigned kernel_count;
    /* --steps: where the time of a run goes, the dearest first; steps NULL otherwise */
    struct lathe_bench_step {
        const char *op;
        int64_t rows, columns; /* of the result, rows of its last axis */
        unsigned count;        /* steps of a run that are alike */
        double ms;             /* together, mean of the runs and the threads */
    } * steps;                 /* to be freed */
    unsigned step_count;
    double waiting_ms; /* for other threads, and all else that is no step */
    /* of a fleet, cores NULL otherwise */
    enum lathe_placement placement;
    unsigned clients, core_count;
    uint64_t core_memory; /* on-chip bytes of one, 0: no limit */
    struct lathe_bench_core {
        struct lathe_fleet_core of; /* parts and busy_ns of the measurement alone */
        double busy;                /* share of the wall time */
        bool fits;
    } * cores;                             /* to be freed */
    double imbalance, predicted_imbalance; /* the dearest stage above the mean, by time and by cost */
};
/* Fills the times of *out: `lists` of times, put together; `wall` in seconds. */
LATHE_NODISCARD enum lathe_status lathe_bench_collect(struct lathe_bench_times *const *lists, unsigned count,
                                                      int64_t batch, double wall, struct lathe_bench_results *out,
                                                      struct lathe_diag *diag);

/* bench_steps.c: from a session whose steps were timed. */
struct lathe_session;
LATHE_NODISCARD enum lathe_status lathe_bench_steps(const struct lathe_session *session,
                                                    struct lathe_bench_results *out, struct lathe_diag *diag);
json_t *lathe_bench_steps_json(const struct lathe_bench_results *r);
void lathe_bench_steps_text(const struct lathe_bench_results *r, struct lathe_text *out);

/* bench_fleet.c: synchronous requests of many clients on a fleet; fills all of *out. */
LATHE_NODISCARD enum lathe_status lathe_bench_fleet(const struct lathe_bench_request *q, struct lathe_artifact *a,
                                                    const struct lathe_session_options *session,
                                                    const struct lathe_feeds *feeds, struct lathe_bench_results *out,
                                                    struct lathe_diag *diag);
#endif
