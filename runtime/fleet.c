/* A fleet: one thread a core, a session a slot. Stage k of a pipeline has one queue and one core; replicate is a single
 * stage that all cores serve. A slot is in one place at a time (with its client, in one queue, or on one core), and the
 * locks of queues and slots order everything that is done with its session. */
#include "partition_steps.h"
#include "session_buckets.h"
#include "slot_queue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SLOTS   4096
#define STACK_BYTES ((size_t)1 << 20) /* as of a pool's worker */

struct lathe_request {
    struct lathe_fleet *fleet;
    struct lathe_session *session;
    uint32_t index;
    bool submitted, answered; /* seen by the client alone */
    pthread_mutex_t lock;
    pthread_cond_t finished;
    bool done;
    /* the cores' until it is done */
    bool begun, empty;
    struct lathe_session *plan; /* that runs now: the session, or that of the bucket of a chunk, ... */
    unsigned bucket;            /* ... and which of the plans it has */
    struct lathe_chunk chunk;
    int64_t rows_done;
    enum lathe_status status;
    struct lathe_diag diag;
};

struct core {
    struct lathe_fleet *fleet;
    unsigned stage;
    uint8_t *scratch;
    _Atomic uint64_t parts, busy_ns;
    pthread_t thread;
};

struct lathe_fleet {
    enum lathe_placement placement;
    unsigned core_count, stage_count, slot_count, started, inited;
    unsigned spins; /* of a core that waits */
    bool measure, pin_failed;
    struct lathe_slot_queue idle, *queues; /* free slots; one queue a stage */
    struct lathe_stage *stages;            /* [plan][stage_room], as many of them as stage_count in each */
    unsigned stage_room;
    unsigned plan_count; /* buckets, or 1 */
    struct core *cores;
    struct lathe_request *requests;
};

/* ---- the cores */

static uint64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void finish(struct lathe_request *r) {
    pthread_mutex_lock(&r->lock);
    r->done = true;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_signal(&r->finished); /* cores are joined before it ends, so it is there whatever the client does */
}

static struct lathe_stage *stages_of(const struct lathe_fleet *f, unsigned plan) {
    return f->stages + (size_t)plan * f->stage_room;
}

/* The next chunk of a request over buckets, ready for its first step; false: there is none, or r->status tells. */
static bool next_chunk(struct lathe_request *r) {
    if (!lathe_chunk_next(r->session, r->rows_done, &r->chunk))
        return false;
    bool empty;
    r->bucket = r->chunk.bucket;
    r->plan = lathe_buckets_session(r->session, r->bucket);
    r->status = lathe_chunk_bind(r->session, &r->chunk, &r->diag);
    if (r->status == LATHE_OK)
        r->status = lathe_session_begin(r->plan, &empty, &r->diag);
    return r->status == LATHE_OK;
}

static void begin(struct lathe_request *r) {
    r->begun = true;
    r->plan = r->session;
    r->bucket = 0;
    r->rows_done = 0;
    r->status = lathe_session_begin(r->session, &r->empty, &r->diag);
    if (r->status == LATHE_OK && !r->empty && r->session->buckets)
        next_chunk(r);
}

/* Its plan is through: another chunk, or the end. */
static bool goes_on(struct lathe_request *r) {
    if (r->session->buckets && !r->empty) {
        lathe_session_end(r->plan);
        lathe_chunk_take(r->session, &r->chunk);
        r->rows_done += r->chunk.rows;
        if (next_chunk(r))
            return true;
        if (r->status != LATHE_OK)
            return false;
    }
    lathe_session_end(r->session);
    return false;
}

/* The part of a request that belongs to one stage. The stage that has something to do next, -1: it is finished. */
static int run_stage(struct lathe_request *r, unsigned k, uint8_t *scratch) {
    const struct lathe_fleet *f = r->fleet;
    if (!r->begun)
        begin(r);
    if (r->status == LATHE_OK && !r->empty) {
        const struct lathe_stage *s = &stages_of(f, r->bucket)[k];
        r->status = lathe_session_steps(r->plan, s->first, s->end, scratch, &r->diag);
    }
    if (r->status != LATHE_OK)
        return -1;
    if (!r->empty && k + 1 < f->stage_count)
        return (int)k + 1;
    return goes_on(r) ? 0 : -1;
}

static void *core_main(void *user) {
    struct core *c = user;
    struct lathe_fleet *f = c->fleet;
    uint32_t slot;
    while (lathe_slot_queue_take(&f->queues[c->stage], f->spins, &slot)) {
        struct lathe_request *r = &f->requests[slot];
        uint64_t start = f->measure ? thread_ns() : 0;
        int next = run_stage(r, c->stage, c->scratch);
        while (next == 0 && f->stage_count == 1)
            next = run_stage(r, 0, c->scratch);
        if (f->measure)
            atomic_fetch_add_explicit(&c->busy_ns, thread_ns() - start, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->parts, 1, memory_order_relaxed);
        if (next >= 0)
            lathe_slot_queue_put(&f->queues[next], slot);
        else
            finish(r);
    }
    return NULL;
}

/* ---- making */

static enum lathe_status no_memory(const struct lathe_fleet *f, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "fleet: no memory for %u cores and %u slots", f->core_count,
                      f->slot_count);
}

static enum lathe_status choose(struct lathe_fleet *f, const struct lathe_artifact *a,
                                const struct lathe_fleet_options *o, struct lathe_diag *diag) {
    f->placement = o->placement ? o->placement : lathe_artifact_placement(a);
    if (f->placement != LATHE_PLACEMENT_REPLICATE && f->placement != LATHE_PLACEMENT_PIPELINE)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "placement %d: there is no such", (int)o->placement);
    f->core_count = o->cores ? o->cores : lathe_artifact_cores(a);
    if (!f->core_count)
        f->core_count = lathe_default_threads(NULL);
    if (f->core_count > LATHE_MAX_THREADS)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "cores: %u, supported are 1 to %d", f->core_count,
                          LATHE_MAX_THREADS);
    f->slot_count = o->slots                                    ? o->slots
                    : f->placement == LATHE_PLACEMENT_REPLICATE ? 2 * f->core_count
                                                                : f->core_count + 2;
    if (f->slot_count > MAX_SLOTS)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "slots: %u, supported are 1 to %d", f->slot_count, MAX_SLOTS);
    return LATHE_OK;
}

static enum lathe_status make_slots(struct lathe_fleet *f, struct lathe_artifact *a,
                                    const struct lathe_fleet_options *o, struct lathe_diag *diag) {
    const struct lathe_session_options each = {.threads = 1,
                                               .max_batch = o->max_batch,
                                               .max_seq = o->max_seq,
                                               .cpu_mask = o->cpu_mask,
                                               .plain_c = o->plain_c,
                                               .poison = o->poison,
                                               .truncate = o->truncate};
    f->requests = calloc(f->slot_count, sizeof *f->requests);
    if (!f->requests || !lathe_slot_queue_init(&f->idle, f->slot_count, true))
        return no_memory(f, diag);
    for (; f->inited < f->slot_count; f->inited++) {
        struct lathe_request *r = &f->requests[f->inited];
        r->fleet = f;
        r->index = f->inited;
        LATHE_TRY(lathe_session_new(a, &each, &r->session, diag));
        pthread_mutex_init(&r->lock, NULL);
        pthread_cond_init(&r->finished, NULL);
        lathe_slot_queue_put(&f->idle, r->index);
    }
    return LATHE_OK;
}

static enum lathe_status make_stages(struct lathe_fleet *f, struct lathe_diag *diag) {
    const struct lathe_session *s = f->requests[0].session;
    bool pipeline = f->placement == LATHE_PLACEMENT_PIPELINE;
    unsigned buckets = lathe_artifact_bucket_count(s->artifact);
    const struct lathe_plan *plans[LATHE_MAX_BUCKETS];
    const int64_t *symbols[LATHE_MAX_BUCKETS];
    f->plan_count = buckets ? buckets : 1;
    f->stage_room = pipeline ? f->core_count : 1;
    f->stages = calloc((size_t)f->stage_room * f->plan_count, sizeof *f->stages);
    if (!f->stages)
        return no_memory(f, diag);
    for (unsigned i = 0; i < f->plan_count; i++) {
        const struct lathe_session *plan = s->buckets ? lathe_buckets_session(s, i) : s;
        plans[i] = plan->plan;
        symbols[i] = plan->symbol_max;
    }
    LATHE_TRY(lathe_stages_make_all(plans, symbols, f->plan_count, f->stage_room, f->stages, &f->stage_count, diag));
    f->core_count = pipeline ? f->stage_count : f->core_count;
    f->queues = calloc(f->stage_count, sizeof *f->queues);
    if (!f->queues)
        return no_memory(f, diag);
    for (unsigned k = 0; k < f->stage_count; k++)
        if (!lathe_slot_queue_init(&f->queues[k], f->slot_count, false))
            return no_memory(f, diag);
    return LATHE_OK;
}

static enum lathe_status start_cores(struct lathe_fleet *f, const int *list, struct lathe_diag *diag) {
    size_t scratch = f->requests[0].session->scratch_bytes;
    enum lathe_status status = LATHE_OK;
    pthread_attr_t attr;
    f->cores = calloc(f->core_count, sizeof *f->cores);
    if (!f->cores)
        return no_memory(f, diag);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (unsigned i = 0; i < f->core_count && status == LATHE_OK; i++) {
        struct core *c = &f->cores[i];
        c->fleet = f;
        c->stage = f->placement == LATHE_PLACEMENT_PIPELINE ? i : 0;
        if (scratch && !(c->scratch = aligned_alloc(64, (scratch + 63) / 64 * 64))) {
            status = no_memory(f, diag);
            break;
        }
        int error = pthread_create(&c->thread, &attr, core_main, c);
        if (error) {
            status = lathe_fail(diag, LATHE_MSG_THREADS, "core %u of %u cannot be started (error %d)", i, f->core_count,
                                error);
            break;
        }
        f->started++;
        if (list && !lathe_pin_thread(c->thread, list[i]))
            f->pin_failed = true;
    }
    pthread_attr_destroy(&attr);
    return status;
}

enum lathe_status lathe_fleet_new(struct lathe_artifact *artifact, const struct lathe_fleet_options *options,
                                  struct lathe_fleet **out, struct lathe_diag *diag) {
    static const struct lathe_fleet_options none;
    if (!options)
        options = &none;
    *out = NULL;
    struct lathe_fleet *f = calloc(1, sizeof *f);
    if (!f)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "fleet: out of memory");
    f->measure = options->measure;
    enum lathe_status status = choose(f, artifact, options, diag);
    if (status == LATHE_OK)
        status = make_slots(f, artifact, options, diag);
    if (status == LATHE_OK)
        status = make_stages(f, diag);
    if (status == LATHE_OK) {
        f->spins = lathe_wait_spins(f->core_count + 1); /* a client must have a CPU too */
        status = start_cores(f, options->core_list, diag);
    }
    if (status != LATHE_OK)
        lathe_fleet_close(&f);
    *out = f;
    return status;
}

void lathe_fleet_close(struct lathe_fleet **pointer) {
    struct lathe_fleet *f = *pointer;
    *pointer = NULL;
    if (!f)
        return;
    for (unsigned k = 0; f->queues && k < f->stage_count; k++)
        if (f->queues[k].slots)
            lathe_slot_queue_close(&f->queues[k]);
    for (unsigned i = 0; i < f->started; i++)
        pthread_join(f->cores[i].thread, NULL);
    for (unsigned i = 0; f->cores && i < f->core_count; i++)
        free(f->cores[i].scratch);
    for (unsigned k = 0; f->queues && k < f->stage_count; k++)
        lathe_slot_queue_end(&f->queues[k]);
    for (unsigned i = 0; i < f->inited; i++) {
        pthread_cond_destroy(&f->requests[i].finished);
        pthread_mutex_destroy(&f->requests[i].lock);
        lathe_session_close(&f->requests[i].session);
    }
    lathe_slot_queue_end(&f->idle);
    free(f->cores);
    free(f->queues);
    free(f->stages);
    free(f->requests);
    free(f);
}

/* ---- what it is */

const char *lathe_placement_name(enum lathe_placement placement) {
    switch (placement) {
#define PLACEMENT(number, name, text, doc)                                                                             \
    case LATHE_PLACEMENT_##name:                                                                                       \
        return text;
#include "placements.def"
#undef PLACEMENT
    default:
        return "default";
    }
}

enum lathe_placement lathe_fleet_placement(const struct lathe_fleet *f) {
    return f->placement;
}

unsigned lathe_fleet_slots(const struct lathe_fleet *f) {
    return f->slot_count;
}

unsigned lathe_fleet_cores(const struct lathe_fleet *f) {
    return f->core_count;
}

bool lathe_fleet_pinned(const struct lathe_fleet *f) {
    return !f->pin_failed;
}

bool lathe_fleet_core(const struct lathe_fleet *f, unsigned core, struct lathe_fleet_core *out) {
    *out = (struct lathe_fleet_core){0};
    if (core >= f->core_count)
        return false;
    const struct core *c = &f->cores[core];
    const struct lathe_stage *all = stages_of(f, f->plan_count - 1), *s = &all[c->stage]; /* of the largest bucket */
    double total = 0;
    for (unsigned k = 0; k < f->stage_count; k++)
        total += all[k].cost;
    *out = (struct lathe_fleet_core){.first_step = s->first,
                                     .end_step = s->end,
                                     .share = total > 0 ? s->cost / total : 1,
                                     .weight_bytes = s->weight_bytes,
                                     .activation_bytes = s->activation_bytes,
                                     .parts = atomic_load_explicit(&c->parts, memory_order_relaxed),
                                     .busy_ns = atomic_load_explicit(&c->busy_ns, memory_order_relaxed)};
    return true;
}

/* ---- requests */

static struct lathe_request *fresh(struct lathe_fleet *f, uint32_t slot) {
    struct lathe_request *r = &f->requests[slot];
    r->status = LATHE_OK;
    r->answered = false;
    return r;
}

struct lathe_request *lathe_fleet_take(struct lathe_fleet *f) {
    uint32_t slot;
    return lathe_slot_queue_take(&f->idle, 0, &slot) ? fresh(f, slot) : NULL;
}

struct lathe_request *lathe_fleet_try_take(struct lathe_fleet *f) {
    uint32_t slot;
    return lathe_slot_queue_try_take(&f->idle, &slot) ? fresh(f, slot) : NULL;
}

enum lathe_status lathe_request_set_input(struct lathe_request *r, unsigned index, enum lathe_dtype dtype,
                                          unsigned rank, const int64_t *dims, const void *data,
                                          struct lathe_diag *diag) {
    return lathe_session_set_input(r->session, index, dtype, rank, dims, data, diag);
}

void lathe_request_submit(struct lathe_request *r) {
    r->done = r->answered = false;
    r->submitted = true;
    r->begun = false;
    lathe_diag_reset(&r->diag);
    lathe_slot_queue_put(&r->fleet->queues[0], r->index);
}

enum lathe_status lathe_request_wait(struct lathe_request *r, struct lathe_diag *diag) {
    if (r->submitted) {
        pthread_mutex_lock(&r->lock);
        while (!r->done)
            pthread_cond_wait(&r->finished, &r->lock);
        pthread_mutex_unlock(&r->lock);
        r->submitted = false;
        r->answered = r->status == LATHE_OK;
    }
    return r->status == LATHE_OK ? LATHE_OK : lathe_fail(diag, r->diag.message, "%s", r->diag.text);
}

enum lathe_status lathe_request_run(struct lathe_request *r, struct lathe_diag *diag) {
    lathe_request_submit(r);
    return lathe_request_wait(r, diag);
}

const struct lathe_tensor_view *lathe_request_output(const struct lathe_request *r, unsigned index) {
    return r->answered ? lathe_session_output(r->session, index) : NULL;
}

unsigned lathe_request_truncated_rows(const struct lathe_request *r) {
    return r->answered ? lathe_session_truncated_rows(r->session) : 0;
}

unsigned lathe_request_flagged_rows(const struct lathe_request *r) {
    return r->answered ? lathe_session_flagged_rows(r->session) : 0;
}

void lathe_request_release(struct lathe_request **pointer) {
    struct lathe_request *r = *pointer;
    *pointer = NULL;
    if (!r)
        return;
    (void)!lathe_request_wait(r, NULL);
    lathe_session_clear_inputs(r->session);
    lathe_slot_queue_put(&r->fleet->idle, r->index);
}
