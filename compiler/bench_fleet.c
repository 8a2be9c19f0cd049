/* lathe bench --placement: as many clients as fill the cores send requests and wait for each answer. */
#include "bench.h"
#include "cli.h"
#include "cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STATE_WARM 0u
#define STATE_GO   1u
#define STATE_OFF  2u

struct test {
    struct lathe_fleet *fleet;
    const struct lathe_feeds *feeds;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ready, state;
    double until;         /* when to stop, where no number of requests is given */
    _Atomic int64_t left; /* requests to be sent; without a number, too many to be reached */
};

struct client {
    struct test *test;
    struct lathe_bench_times times;
    double end;
    enum lathe_status status;
    struct lathe_diag diag;
    pthread_t thread;
};

static enum lathe_status one_request(struct client *c) {
    const struct lathe_feeds *feeds = c->test->feeds;
    struct lathe_request *r = lathe_fleet_take(c->test->fleet);
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < feeds->count; i++) {
        const struct lathe_data_tensor *t = &feeds->at[i];
        if (t->data)
            status = lathe_request_set_input(r, i, t->dtype, t->rank, t->dims, t->data, &c->diag);
    }
    if (status == LATHE_OK)
        status = lathe_request_run(r, &c->diag);
    lathe_request_release(&r);
    return status;
}

static enum lathe_status measure(struct client *c) {
    struct test *t = c->test;
    while (atomic_fetch_sub_explicit(&t->left, 1, memory_order_relaxed) > 0) {
        double start = lathe_bench_now();
        if (start >= t->until && c->times.count)
            break;
        LATHE_TRY(one_request(c));
        LATHE_TRY(lathe_bench_add(&c->times, (lathe_bench_now() - start) * 1e3, &c->diag));
    }
    return LATHE_OK;
}

static void *client_main(void *user) {
    struct client *c = user;
    struct test *t = c->test;
    for (int i = 0; c->status == LATHE_OK && i < LATHE_BENCH_WARM_UP; i++)
        c->status = one_request(c);
    pthread_mutex_lock(&t->lock);
    t->ready++;
    pthread_cond_broadcast(&t->changed);
    while (t->state == STATE_WARM)
        pthread_cond_wait(&t->changed, &t->lock);
    bool go = t->state == STATE_GO;
    pthread_mutex_unlock(&t->lock);
    if (go && c->status == LATHE_OK)
        c->status = measure(c);
    c->end = lathe_bench_now();
    return NULL;
}

static void read_cores(const struct lathe_fleet *f, struct lathe_fleet_core *out) {
    for (unsigned i = 0; i < lathe_fleet_cores(f); i++)
        lathe_fleet_core(f, i, &out[i]);
}

static enum lathe_status run_clients(const struct lathe_bench_request *q, struct test *t, struct client *all,
                                     unsigned count, struct lathe_fleet_core *before, double *wall,
                                     struct lathe_diag *diag) {
    unsigned started = 0;
    lathe_cli_progress("lathe: warming up ...");
    for (; started < count; started++) {
        all[started].test = t;
        if (pthread_create(&all[started].thread, NULL, client_main, &all[started]))
            break;
    }
    pthread_mutex_lock(&t->lock);
    while (t->ready < started)
        pthread_cond_wait(&t->changed, &t->lock);
    if (q->requests)
        lathe_cli_progress("lathe: %lld requests ...", (long long)q->requests);
    else
        lathe_cli_progress("lathe: measuring for %g s ...", q->seconds);
    read_cores(t->fleet, before);
    t->state = started == count ? STATE_GO : STATE_OFF;
    double start = lathe_bench_now(), end = start;
    atomic_store(&t->left, q->requests ? q->requests : INT64_MAX / 2);
    t->until = q->requests ? start + 1e9 : start + q->seconds;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        end = all[i].end > end ? all[i].end : end;
    }
    *wall = end - start;
    if (started < count)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no thread for client %u", started);
    for (unsigned i = 0; i < count; i++)
        if (all[i].status != LATHE_OK)
            return lathe_fail(diag, all[i].diag.message, "%s", all[i].diag.text);
    return LATHE_OK;
}

/* The dearest above the mean: of time a part, and of predicted cost. */
static void set_imbalance(struct lathe_bench_results *out) {
    double time = 0, most = 0, share = 0, most_share = 0;
    for (unsigned i = 0; i < out->core_count; i++) {
        const struct lathe_fleet_core *c = &out->cores[i].of;
        double each = c->parts ? (double)c->busy_ns / (double)c->parts : 0;
        time += each;
        most = each > most ? each : most;
        share += c->share;
        most_share = c->share > most_share ? c->share : most_share;
    }
    out->imbalance = time > 0 ? most * out->core_count / time - 1 : 0;
    out->predicted_imbalance = share > 0 ? most_share * out->core_count / share - 1 : 0;
}

static enum lathe_status fill_results(const struct lathe_bench_request *q, const struct lathe_fleet *f,
                                      struct client *all, unsigned count, const struct lathe_fleet_core *before,
                                      double wall, struct lathe_bench_results *out, struct lathe_diag *diag) {
    struct lathe_bench_times *lists[LATHE_BENCH_MAX_CLIENTS];
    for (unsigned i = 0; i < count; i++)
        lists[i] = &all[i].times;
    LATHE_TRY(lathe_bench_collect(lists, count, q->batch, wall, out, diag));
    for (unsigned i = 0; i < out->core_count; i++) {
        struct lathe_bench_core *c = &out->cores[i];
        lathe_fleet_core(f, i, &c->of);
        c->of.parts -= before[i].parts;
        c->of.busy_ns -= before[i].busy_ns;
        c->busy = wall > 0 ? (double)c->of.busy_ns / wall * 1e-9 : 0;
        c->fits = !out->core_memory || c->of.weight_bytes + c->of.activation_bytes <= out->core_memory;
    }
    set_imbalance(out);
    return LATHE_OK;
}

static void warn_cores(const struct lathe_fleet *f) {
    struct lathe_thread_budget budget;
    lathe_thread_budget(&budget);
    unsigned have = budget.quota && budget.quota < budget.affinity ? budget.quota : budget.affinity;
    if (lathe_fleet_cores(f) > have)
        lathe_cli_warn("%u cores are asked for, this process may use %u CPUs: they share", lathe_fleet_cores(f), have);
    if (!lathe_fleet_pinned(f))
        lathe_cli_warn("--cores: a core could not be pinned to its CPU, it runs where the system puts it");
}

static enum lathe_status on_fleet(const struct lathe_bench_request *q, struct lathe_fleet *f,
                                  const struct lathe_feeds *feeds, struct lathe_bench_results *out,
                                  struct lathe_diag *diag) {
    struct test t = {
        .fleet = f, .feeds = feeds, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct client *all = calloc(out->clients, sizeof *all);
    struct lathe_fleet_core *before = calloc(out->core_count, sizeof *before);
    double wall = 0;
    out->cores = calloc(out->core_count, sizeof *out->cores);
    enum lathe_status status =
        all && before && out->cores ? LATHE_OK : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the clients");
    if (status == LATHE_OK)
        status = run_clients(q, &t, all, out->clients, before, &wall, diag);
    if (status == LATHE_OK)
        status = fill_results(q, f, all, out->clients, before, wall, out, diag);
    for (unsigned i = 0; all && i < out->clients; i++)
        free(all[i].times.ms);
    free(all);
    free(before);
    return status;
}

/* One client a core keeps the cores of replicate busy; a pipeline needs one more, on its way from end to start. */
static unsigned client_count(const struct lathe_bench_request *q, const struct lathe_fleet *f) {
    unsigned cores = lathe_fleet_cores(f);
    return q->clients ? (unsigned)q->clients
                      : cores + (lathe_fleet_placement(f) == LATHE_PLACEMENT_PIPELINE && cores > 1);
}

enum lathe_status lathe_bench_fleet(const struct lathe_bench_request *q, struct lathe_artifact *a,
                                    const struct lathe_session_options *session, const struct lathe_feeds *feeds,
                                    struct lathe_bench_results *out, struct lathe_diag *diag) {
    struct lathe_fleet *f = NULL;
    struct lathe_kernels kernels;
    struct lathe_fleet_options options = {.placement = lathe_placement_of(q->placement),
                                          .cores = session->threads,
                                          .core_list = session->cores,
                                          .slots = (unsigned)q->clients,
                                          .max_batch = q->batch <= lathe_artifact_max_batch(a) ? q->batch : 0,
                                          .max_seq = q->seq <= lathe_artifact_max_length(a) ? q->seq : 0,
                                          .cpu_mask = session->cpu_mask,
                                          .plain_c = session->plain_c,
                                          .truncate = session->truncate,
                                          .measure = true};
    LATHE_TRY(lathe_fleet_new(a, &options, &f, diag));
    warn_cores(f);
    out->placement = lathe_fleet_placement(f);
    out->core_memory = lathe_artifact_core_memory(a);
    out->core_count = out->threads = lathe_fleet_cores(f);
    out->clients = client_count(q, f);
    lathe_kernels_select(lathe_cpu_bits() & (options.plain_c    ? 0
                                             : options.cpu_mask ? options.cpu_mask
                                                                : UINT64_MAX),
                         &kernels);
    out->kernel_count = kernels.name_count;
    memcpy(out->kernels, kernels.names, sizeof out->kernels);
    enum lathe_status status = on_fleet(q, f, feeds, out, diag);
    lathe_fleet_close(&f);
    return status;
}
