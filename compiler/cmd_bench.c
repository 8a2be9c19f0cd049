/* lathe bench: how long an artifact takes, on made-up inputs from a fixed random generator. */
#include "bench.h"
#include "cli.h"
#include "package.h"
#include "printable.h"
#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* When the instances, all opened and warm, start together; or that they need not, as one of them failed. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ready, failed;
    enum { GATE_SHUT, GATE_OPEN, GATE_OFF } state;
};

/* One copy of the model with its own session, made, driven and closed by its own thread, which alone its cores pin. */
struct instance {
    struct gate *gate;
    const struct lathe_bench_request *request;
    struct lathe_artifact *artifact;
    const struct lathe_feeds *feeds;
    struct lathe_session_options options;
    struct lathe_session *session;
    unsigned threads, kernel_count;
    const char *kernels[LATHE_MAX_FAMILIES];
    double end;
    struct lathe_bench_times times;
    struct lathe_bench_results steps; /* of --steps, nothing else in it */
    enum lathe_status status;
    struct lathe_diag diag;
    pthread_t thread;
};

double lathe_bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- measuring */

enum lathe_status lathe_bench_add(struct lathe_bench_times *t, double ms, struct lathe_diag *diag) {
    if (t->count == t->capacity) {
        size_t more = t->capacity ? t->capacity * 2 : 1024;
        double *at = realloc(t->ms, more * sizeof *at);
        if (!at)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the times");
        t->ms = at;
        t->capacity = more;
    }
    t->ms[t->count++] = ms;
    return LATHE_OK;
}

static void measure(struct instance *in) {
    double start = lathe_bench_now();
    do {
        double before = lathe_bench_now();
        in->status = lathe_session_run(in->session, &in->diag);
        if (in->status == LATHE_OK)
            in->status = lathe_bench_add(&in->times, (lathe_bench_now() - before) * 1e3, &in->diag);
    } while (in->status == LATHE_OK && lathe_bench_now() - start < in->request->seconds);
    in->end = lathe_bench_now();
}

static enum lathe_status warm_up(struct instance *in) {
    LATHE_TRY(lathe_session_new(in->artifact, &in->options, &in->session, &in->diag));
    in->threads = lathe_session_threads(in->session);
    in->kernel_count = in->session->kernels.name_count;
    memcpy(in->kernels, in->session->kernels.names, sizeof in->kernels);
    LATHE_TRY(lathe_feeds_bind(in->session, in->feeds, &in->diag));
    for (int i = 0; i < LATHE_BENCH_WARM_UP; i++)
        LATHE_TRY(lathe_session_run(in->session, &in->diag));
    if (in->request->steps && !lathe_session_time_steps(lathe_session_timed(in->session)))
        return lathe_fail(&in->diag, LATHE_MSG_NO_MEMORY, "no memory for the times of steps");
    return LATHE_OK;
}

static void *instance_main(void *user) {
    struct instance *in = user;
    struct gate *g = in->gate;
    in->status = warm_up(in);
    pthread_mutex_lock(&g->lock);
    g->ready++;
    g->failed += in->status != LATHE_OK;
    pthread_cond_broadcast(&g->changed);
    while (g->state == GATE_SHUT)
        pthread_cond_wait(&g->changed, &g->lock);
    bool go = g->state == GATE_OPEN;
    pthread_mutex_unlock(&g->lock);
    if (go)
        measure(in);
    if (go && in->status == LATHE_OK && in->request->steps)
        in->status = lathe_bench_steps(lathe_session_timed(in->session), &in->steps, &in->diag);
    lathe_session_close(&in->session);
    return NULL;
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Between the two runs beside that place in a straight line, as NumPy and most tools have it: of 90 runs the slowest
 * one alone is not the 99th percentile. */
static double percentile(const double *sorted, size_t count, double share) {
    double place = share * (double)(count - 1);
    size_t below = (size_t)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

enum lathe_status lathe_bench_collect(struct lathe_bench_times *const *lists, unsigned count, int64_t batch,
                                      double wall, struct lathe_bench_results *out, struct lathe_diag *diag) {
    struct lathe_bench_times all = {0};
    for (unsigned i = 0; i < count; i++)
        all.count += lists[i]->count;
    all.ms = malloc((all.count + 1) * sizeof *all.ms);
    if (!all.ms)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the times");
    double *at = all.ms, sum = 0;
    for (unsigned i = 0; i < count; i++) {
        if (lists[i]->count)
            memcpy(at, lists[i]->ms, lists[i]->count * sizeof *at);
        at += lists[i]->count;
    }
    for (size_t i = 0; i < all.count; i++)
        sum += all.ms[i];
    qsort(all.ms, all.count, sizeof *all.ms, by_time);
    out->p50 = percentile(all.ms, all.count, 0.50);
    out->p90 = percentile(all.ms, all.count, 0.90);
    out->p95 = percentile(all.ms, all.count, 0.95);
    out->p99 = percentile(all.ms, all.count, 0.99);
    out->p100 = all.ms[all.count - 1];
    out->mean = sum / (double)all.count;
    out->runs = all.count;
    out->per_second = (double)all.count * (double)batch / wall;
    free(all.ms);
    return LATHE_OK;
}

static enum lathe_status run_instances(struct instance *all, unsigned count, double *wall, struct lathe_diag *diag) {
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    unsigned started = 0;
    for (; started < count; started++) {
        all[started].gate = &gate;
        if (pthread_create(&all[started].thread, NULL, instance_main, &all[started]))
            break;
    }
    pthread_mutex_lock(&gate.lock);
    while (gate.ready < started)
        pthread_cond_wait(&gate.changed, &gate.lock);
    bool go = started == count && gate.failed == 0;
    if (go)
        lathe_cli_progress("lathe: measuring for %g s ...", all[0].request->seconds);
    gate.state = go ? GATE_OPEN : GATE_OFF;
    double start = lathe_bench_now(), end = start;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        end = all[i].end > end ? all[i].end : end;
    }
    *wall = end - start;
    if (started < count)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no thread for instance %u", started);
    for (unsigned i = 0; i < count; i++)
        if (all[i].status != LATHE_OK)
            return lathe_fail(diag, all[i].diag.message, "%s", all[i].diag.text);
    return LATHE_OK;
}

/* ---- preparing */

/* Threads of one instance: as asked, else the machine's shared by the instances. */
static enum lathe_status share_threads(const struct lathe_bench_request *q, struct lathe_session_options *options,
                                       struct lathe_diag *diag) {
    unsigned count = (unsigned)q->instances;
    if (!q->session.threads) {
        unsigned all = options->core_count ? options->core_count : lathe_default_threads(NULL);
        options->threads = all / count ? all / count : 1;
    }
    if (options->core_count && (uint64_t)options->threads * count > options->core_count)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS,
                          "lathe bench: %u instances of %u threads need %u cores, --cores has %u", count,
                          options->threads, options->threads * count, options->core_count);
    return LATHE_OK;
}

/* A size that the artifact fixes differently must not be benched in silence. */
static enum lathe_status check_sizes(struct lathe_bench_request *q, const struct lathe_artifact *a,
                                     const struct lathe_feeds *feeds, struct lathe_diag *diag) {
    int64_t most = lathe_artifact_max_length(a), largest = lathe_artifact_max_batch(a);
    bool cuts = q->session.truncate && lathe_artifact_bucket_count(a);
    if (q->has_seq && most > 0 && q->seq > most && !cuts)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "%s: %lld tokens, the artifact takes at most %lld",
                          q->length_count ? "--lengths" : "--seq", (long long)q->seq, (long long)most);
    if (q->has_batch && largest > 0 && q->batch > largest)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "%s: %lld rows, the artifact takes at most %lld",
                          q->length_count ? "--lengths" : "--batch", (long long)q->batch, (long long)largest);
    for (unsigned i = 0; i < feeds->count; i++) {
        const struct lathe_data_tensor *t = &feeds->at[i];
        if (t->rank < 2)
            continue;
        bool tokens = t->rank == 2 && lathe_dtype_is_integer(t->dtype);
        if ((q->has_batch && t->dims[0] != q->batch) || (q->has_seq && tokens && t->dims[1] != q->seq))
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "batch %lld, %lld tokens: input %s takes [%lld,%lld] only",
                              (long long)q->batch, (long long)q->seq, t->name, (long long)t->dims[0],
                              (long long)t->dims[1]);
        q->batch = t->dims[0];
        q->seq = tokens ? t->dims[1] : q->seq;
        break;
    }
    return LATHE_OK;
}

static enum lathe_status make_feeds(struct lathe_bench_request *q, const struct lathe_artifact *a,
                                    struct lathe_feeds *feeds, struct lathe_diag *diag) {
    if (q->length_count && lathe_feeds_mask(a) < 0)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "--lengths: the model has no mask input that could tell them");
    struct lathe_feed_spec spec = {.batch = q->batch,
                                   .seq = q->seq,
                                   .lengths = q->length_count ? q->length_list : NULL,
                                   .seed = 1,
                                   .longer = q->session.truncate && q->has_seq,
                                   .plain = true};
    return lathe_feeds_make(a, &spec, feeds, diag);
}

/* ---- results */

static json_t *stages_json(const struct lathe_bench_results *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->core_count; i++) {
        const struct lathe_bench_core *c = &r->cores[i];
        double each = c->of.parts ? (double)c->of.busy_ns / (double)c->of.parts * 1e-6 : 0;
        json_array_append_new(list,
                              json_pack("{si, si, si, sf, sI, sf, sf, sI, sI, sb}", "core", (int)i, "first_step",
                                        (int)c->of.first_step, "end_step", (int)c->of.end_step, "share", c->of.share,
                                        "requests", (json_int_t)c->of.parts, "busy_ms", each, "busy", c->busy,
                                        "weight_bytes", (json_int_t)c->of.weight_bytes, "activation_bytes",
                                        (json_int_t)c->of.activation_bytes, "fits", (int)c->fits));
    }
    return list;
}

static enum lathe_status print_json(const struct lathe_bench_request *q, const struct lathe_bench_results *r,
                                    struct lathe_diag *diag) {
    json_t *o = json_pack("{sf, sf, sf, sf, sf, sf, sI, sI, sf, sf}", "p50_ms", r->p50, "p90_ms", r->p90, "p95_ms",
                          r->p95, "p99_ms", r->p99, "p100_ms", r->p100, "mean_ms", r->mean, "runs", (json_int_t)r->runs,
                          "requests", (json_int_t)r->runs, "throughput", r->per_second / (double)q->batch,
                          "sequences_per_second", r->per_second);
    json_t *kernels = json_array();
    for (unsigned i = 0; i < r->kernel_count; i++)
        json_array_append_new(kernels, json_string(r->kernels[i]));
    json_object_set_new(o, "batch", json_integer(q->batch));
    json_object_set_new(o, "seq", json_integer(q->seq));
    json_object_set_new(o, "threads", json_integer(r->threads));
    json_object_set_new(o, "instances", json_integer(q->instances));
    json_object_set_new(o, "kernels", kernels);
    if (r->steps) {
        json_object_set_new(o, "steps", lathe_bench_steps_json(r));
        json_object_set_new(o, "waiting_ms", json_real(r->waiting_ms));
    }
    if (r->cores) {
        json_object_set_new(o, "placement", json_string(lathe_placement_name(r->placement)));
        json_object_set_new(o, "cores", json_integer(r->core_count));
        json_object_set_new(o, "clients", json_integer(r->clients));
        json_object_set_new(o, "stages", stages_json(r));
        json_object_set_new(o, "imbalance", json_real(r->imbalance));
        json_object_set_new(o, "predicted_imbalance", json_real(r->predicted_imbalance));
        json_object_set_new(o, "core_memory", json_integer((json_int_t)r->core_memory));
    }
    return lathe_cli_print_json(o, diag);
}

static void stages_text(const struct lathe_bench_results *r, struct lathe_text *out) {
    for (unsigned i = 0; i < r->core_count; i++) {
        const struct lathe_bench_core *c = &r->cores[i];
        double each = c->of.parts ? (double)c->of.busy_ns / (double)c->of.parts * 1e-6 : 0;
        lathe_text_append(out, "core %u: steps %u to %u, %.3f ms a request, busy %.0f %%, weights ", i,
                          c->of.first_step, c->of.end_step, each, 100 * c->busy);
        lathe_append_bytes(out, c->of.weight_bytes);
        lathe_text_append(out, ", activations ");
        lathe_append_bytes(out, c->of.activation_bytes);
        if (!c->fits) {
            lathe_text_append(out, ": does not fit the core's ");
            lathe_append_bytes(out, r->core_memory);
        }
        lathe_text_append(out, "\n");
    }
    if (r->placement == LATHE_PLACEMENT_PIPELINE)
        lathe_text_append(out, "slowest stage over the mean: %.1f %%, predicted %.1f %%\n", 100 * r->imbalance,
                          100 * r->predicted_imbalance);
}

static enum lathe_status print_text(const struct lathe_bench_request *q, const struct lathe_bench_results *r,
                                    struct lathe_diag *diag) {
    struct lathe_text out = {0};
    struct lathe_thread_budget budget;
    char quota[16] = "none";
    lathe_thread_budget(&budget);
    if (budget.quota)
        snprintf(quota, sizeof quota, "%u", budget.quota);
    lathe_text_append(&out, "batch %lld, %lld tokens%s, ", (long long)q->batch, (long long)q->seq,
                      q->length_count ? " (padded)" : "");
    if (r->cores)
        lathe_text_append(&out, "%s on %u cores, %u clients\n", lathe_placement_name(r->placement), r->core_count,
                          r->clients);
    else
        lathe_text_append(&out, "%lld instances\n", (long long)q->instances);
    lathe_text_append(&out, "threads: affinity %u, quota %s, chosen %u\n", budget.affinity, quota, r->threads);
    lathe_text_append(&out,
                      "p50 %.3f ms, p90 %.3f ms, p95 %.3f ms, p99 %.3f ms, longest %.3f ms, mean %.3f ms over %zu %s\n",
                      r->p50, r->p90, r->p95, r->p99, r->p100, r->mean, r->runs, r->cores ? "requests" : "runs");
    lathe_text_append(&out, "%.1f sequences/s\n", r->per_second);
    stages_text(r, &out);
    if (r->steps)
        lathe_bench_steps_text(r, &out);
    return lathe_cli_print(&out, diag);
}

/* ---- the command */

static enum lathe_status bench_instances(struct lathe_bench_request *q, struct lathe_artifact *a, struct instance *all,
                                         const struct lathe_session_options *options, const struct lathe_feeds *feeds,
                                         struct lathe_diag *diag) {
    unsigned count = (unsigned)q->instances;
    struct lathe_bench_times *lists[LATHE_BENCH_MAX_CLIENTS];
    struct lathe_bench_results r = {0};
    double wall;
    lathe_cli_progress("lathe: warming up ...");
    for (unsigned i = 0; i < count; i++) {
        all[i].request = q;
        all[i].artifact = a;
        all[i].feeds = feeds;
        all[i].options = *options;
        if (options->cores) { /* each instance takes its share of the list */
            all[i].options.core_count = options->threads;
            all[i].options.cores = options->cores + i * options->threads;
        }
    }
    LATHE_TRY(run_instances(all, count, &wall, diag));
    for (unsigned i = 0; i < count; i++)
        lists[i] = &all[i].times;
    LATHE_TRY(lathe_bench_collect(lists, count, q->batch, wall, &r, diag));
    r.threads = all[0].threads;
    r.kernel_count = all[0].kernel_count;
    memcpy(r.kernels, all[0].kernels, sizeof r.kernels);
    r.steps = all[0].steps.steps;
    r.step_count = all[0].steps.step_count;
    r.waiting_ms = all[0].steps.waiting_ms;
    return q->json ? print_json(q, &r, diag) : print_text(q, &r, diag);
}

static enum lathe_status bench_sessions(struct lathe_bench_request *q, struct lathe_artifact *a,
                                        struct lathe_session_options *options, const struct lathe_feeds *feeds,
                                        struct lathe_diag *diag) {
    LATHE_TRY(share_threads(q, options, diag));
    struct instance *all = calloc((size_t)q->instances, sizeof *all);
    if (!all)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the instances");
    enum lathe_status status = bench_instances(q, a, all, options, feeds, diag);
    for (int64_t i = 0; i < q->instances; i++) {
        free(all[i].times.ms);
        free(all[i].steps.steps);
    }
    free(all);
    return status;
}

static enum lathe_status bench_fleet(const struct lathe_bench_request *q, struct lathe_artifact *a,
                                     const struct lathe_session_options *options, const struct lathe_feeds *feeds,
                                     struct lathe_diag *diag) {
    struct lathe_bench_results r = {0};
    enum lathe_status status = lathe_bench_fleet(q, a, options, feeds, &r, diag);
    if (status == LATHE_OK)
        status = q->json ? print_json(q, &r, diag) : print_text(q, &r, diag);
    free(r.cores);
    return status;
}

static enum lathe_status bench_artifact(struct lathe_bench_request *q, struct lathe_artifact *a,
                                        struct lathe_diag *diag) {
    struct lathe_session_options options;
    struct lathe_feeds feeds = {0};
    LATHE_TRY(lathe_session_args_apply(&q->session, &options, diag));
    LATHE_TRY(make_feeds(q, a, &feeds, diag));
    enum lathe_status status = check_sizes(q, a, &feeds, diag);
    if (status == LATHE_OK)
        status = q->placement || q->requests || q->clients ? bench_fleet(q, a, &options, &feeds, diag)
                                                           : bench_sessions(q, a, &options, &feeds, diag);
    lathe_feeds_free(&feeds);
    return status;
}

static enum lathe_status parse_lengths(struct lathe_bench_request *q, struct lathe_diag *diag) {
    if (!q->lengths)
        return LATHE_OK;
    if (q->has_seq || q->has_batch)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS,
                          "lathe bench: --lengths gives batch and length; --seq and --batch "
                          "cannot stand beside it");
    q->length_count = lathe_parse_counts(q->lengths, 1, 1 << 20, q->length_list, LATHE_BENCH_MAX_LENGTHS);
    if (!q->length_count)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE,
                          "--lengths: expected token counts such as 12,31,7 (at most %d of them)",
                          LATHE_BENCH_MAX_LENGTHS);
    q->batch = q->length_count;
    q->seq = 0;
    for (unsigned i = 0; i < q->length_count; i++)
        q->seq = q->length_list[i] > q->seq ? q->length_list[i] : q->seq;
    q->has_seq = q->has_batch = true;
    return LATHE_OK;
}

static enum lathe_status bench(void *request, struct lathe_diag *diag) {
    struct lathe_bench_request *q = request;
    struct lathe_model model;
    struct lathe_thread_budget budget;
    LATHE_TRY(parse_lengths(q, diag));
    if ((q->placement || q->requests || q->clients) && (q->has_instances || q->session.threads))
        return lathe_fail(
            diag, LATHE_MSG_ARGUMENTS,
            "lathe bench: a placement runs one thread a core (--cores N); --instances and --threads cannot "
            "stand beside it");
    if (q->steps && (q->placement || q->requests || q->clients))
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe bench: --steps times a session, not a placement");
    lathe_thread_budget(&budget);
    if (budget.warning[0])
        lathe_cli_warn("%s", budget.warning);
    struct lathe_artifact_options options = {.map_weights = q->map_weights};
    LATHE_TRY(lathe_model_open(q->args.at[0], &options, &model, diag));
    struct lathe_artifact *a = model.artifact;
    enum lathe_status status = bench_artifact(q, a, diag);
    lathe_model_close(&model);
    return status;
}

int lathe_cmd_bench(int argc, char **argv) {
    static struct lathe_bench_request q = {.seq = 128, .batch = 1, .instances = 1, .seconds = 1};
    const struct lathe_option options[] = {
        {.name = "seq",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.seq,
         .value = "S",
         .min = 1,
         .max = 1 << 20,
         .given = &q.has_seq,
         .help = "tokens of each row (default 128, or what the artifact takes)"},
        {.name = "batch",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.batch,
         .value = "B",
         .min = 1,
         .max = 1 << 16,
         .given = &q.has_batch,
         .help = "rows (default 1)"},
        {.name = "lengths",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.lengths,
         .value = "L1,L2,...",
         .help = "a padded batch with these token counts, instead of --seq and --batch"},
        LATHE_THREADS_OPTION(q.session),
        {.name = "instances",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.instances,
         .value = "N",
         .min = 1,
         .max = LATHE_BENCH_MAX_CLIENTS,
         .given = &q.has_instances,
         .help = "sessions that run side by side, sharing the weights (default 1)"},
        LATHE_PLACEMENT_OPTION(q.placement, "measure requests of many clients on cores that each run a whole one, or a "
                                            "part of each"),
        {.name = "requests",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.requests,
         .value = "N",
         .min = 1,
         .max = INT64_C(1) << 40,
         .help = "as --placement, that many requests (default: as many as fit --seconds)"},
        {.name = "clients",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.clients,
         .value = "K",
         .min = 1,
         .max = LATHE_BENCH_MAX_CLIENTS,
         .help = "as --placement, clients that wait for each answer (default: replicate as many as cores, pipeline one "
                 "more)"},
        LATHE_CORES_OPTION(q.session),
        LATHE_CPUMASK_OPTION(q.session),
        LATHE_TRUNCATE_OPTION(q.session),
        {.name = "seconds",
         .kind = LATHE_OPTION_REAL,
         .into = &q.seconds,
         .value = "X",
         .help = "how long to measure (default 1)"},
        {.name = "map-weights",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.map_weights,
         .help = "leave the weights in the pages of the file, as processes that share them do"},
        {.name = "steps",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.steps,
         .help = "where the time of a run goes: operators by what they take together (of the first instance)"},
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {
        .command = "bench",
        .arguments = "MODEL.lathe [options]",
        .summary = "how long an artifact takes",
        .details = "Ids are random within their limits, masks 1 for real tokens, token types 0. Three runs warm up.\n"
                   "With --placement, --requests or --clients the cores are a fleet: without --placement and --cores "
                   "placement\nand number are those of the artifact. Stages of a pipeline are cut by the steps' "
                   "predicted cost.\n",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .min_args = 1,
        .max_args = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, bench, &q);
}
