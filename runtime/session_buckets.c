/* Runs over an artifact with buckets: the request is cut into chunks, each padded to a bucket and run by the session of
 * its plan; the real rows come back. All memory is the owner's, made once: one arena, as large as the largest plan's,
 * and room for the inputs of a chunk and the outputs of max_batch rows. */
#include "session_buckets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_BATCH ((int64_t)1 << 20)
#define MOST_BYTES ((size_t)1 << 46)

/* ---- making */

static uint32_t port_count(const struct lathe_session *s) {
    return s->manifest->head->input_count + s->manifest->head->output_count;
}

static enum lathe_status no_memory(struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: out of memory");
}

static enum lathe_status set_limits(struct lathe_session *s, const struct lathe_session_options *o,
                                    struct lathe_diag *diag) {
    struct lathe_session_buckets *b = s->buckets;
    const struct lathe_bucket_list *list = &b->of->list;
    int64_t longest = list->at[list->count - 1].seq;
    if (o->max_batch < 0 || o->max_seq < 0)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "max_batch %lld, max_seq %lld: must not be negative",
                          (long long)o->max_batch, (long long)o->max_seq);
    if (o->max_batch > MOST_BATCH)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "max_batch %lld: at most %lld", (long long)o->max_batch,
                          (long long)MOST_BATCH);
    if (o->max_seq > longest)
        return lathe_fail(diag, LATHE_MSG_SESSION_OPTION, "max_seq %lld: the largest bucket has %lld",
                          (long long)o->max_seq, (long long)longest);
    b->max_batch = !b->of->has_batch ? list->at[0].batch : o->max_batch ? o->max_batch : s->manifest->head->max_batch;
    b->max_seq = o->max_seq ? o->max_seq : longest;
    return LATHE_OK;
}

static bool add(size_t *used, size_t bytes, size_t *at) {
    size_t end;
    *at = *used;
    if (!lathe_add_size(*used, bytes, &end) || end > MOST_BYTES)
        return false;
    *used = (end + 4095) / 4096 * 4096;
    return true;
}

/* Bytes of a port at the largest sizes; outputs hold all rows of a request. */
static int64_t port_bytes(const struct lathe_session *s, uint32_t port) {
    const struct lathe_session_buckets *b = s->buckets;
    const struct lathe_bucket_list *list = &b->of->list;
    const struct lathe_port *p = &s->ports[port];
    bool output = port >= s->manifest->head->input_count;
    int64_t most = 0;
    for (unsigned k = 0; k < list->count; k++) {
        int64_t dims[LATHE_MAX_RANK] = {0};
        for (unsigned d = 0; d < p->rank; d++) {
            uint8_t axis = b->of->ports[port].axes[d];
            dims[d] = axis == LATHE_AXIS_BATCH ? (output ? b->max_batch : list->at[k].batch)
                      : axis == LATHE_AXIS_SEQ ? list->at[k].seq
                                               : p->dims[d];
        }
        int64_t bytes = lathe_shape_bytes(p->dtype, p->rank, dims);
        if (bytes < 0)
            return -1;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static enum lathe_status make_memory(struct lathe_session *s, struct lathe_diag *diag) {
    struct lathe_session_buckets *b = s->buckets;
    uint32_t inputs = s->manifest->head->input_count;
    size_t used = 0, at, arena = 0, scratch = 0, prepared = 0, threads;
    for (unsigned k = 0; k < b->of->list.count; k++) {
        const struct lathe_session *p = b->plans[k];
        b->arena_bytes = p->plan->head->arena_bytes > b->arena_bytes ? p->plan->head->arena_bytes : b->arena_bytes;
        s->scratch_bytes = p->scratch_bytes > s->scratch_bytes ? p->scratch_bytes : s->scratch_bytes;
        s->prepared_bytes = p->prepared_bytes > s->prepared_bytes ? p->prepared_bytes : s->prepared_bytes;
    }
    for (int pass = 0; pass < 2; pass++) {
        used = 0;
        bool ok = add(&used, b->arena_bytes, &arena) && lathe_mul_size(s->scratch_bytes, s->threads, &threads) &&
                  add(&used, threads, &scratch) && add(&used, s->prepared_bytes, &prepared);
        for (uint32_t i = 0; ok && i < port_count(s); i++) {
            int64_t bytes = port_bytes(s, i);
            ok = bytes >= 0 && add(&used, (size_t)bytes, &at);
            if (ok && pass == 1)
                (i < inputs ? b->inputs + i : b->outputs + (i - inputs))[0] = s->memory + at;
        }
        if (!ok)
            return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW,
                              "session: inputs and outputs of %lld rows and %lld tokens are too large",
                              (long long)b->max_batch, (long long)b->max_seq);
        if (pass == 1)
            break;
        s->memory_bytes = used ? used : 4096;
        void *map =
            mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "session: %zu bytes cannot be reserved", used);
        s->memory = map;
    }
    s->arena = s->memory + arena;
    s->scratch = s->memory + scratch;
    s->prepared = s->memory + prepared;
    for (unsigned k = 0; k < b->of->list.count; k++)
        lathe_session_share(b->plans[k], s);
    return LATHE_OK;
}

enum lathe_status lathe_buckets_open(struct lathe_session *s, const struct lathe_session_options *options,
                                     struct lathe_diag *diag) {
    const struct lathe_buckets *of = s->artifact->buckets;
    const struct lathe_fmt_manifest *m = s->manifest->head;
    struct lathe_session_buckets *b = s->buckets = calloc(1, sizeof *b);
    if (!b)
        return no_memory(diag);
    unsigned groups = lathe_bucket_groups(&of->list);
    *b = (struct lathe_session_buckets){
        .of = of, .truncate = options->truncate, .poison = options->poison_padding, .forced = -1};
    s->bindings = calloc((size_t)m->input_count + 1, sizeof *s->bindings);
    s->outputs = calloc((size_t)m->output_count + 1, sizeof *s->outputs);
    b->inputs = calloc((size_t)m->input_count + 1, sizeof *b->inputs);
    b->outputs = calloc((size_t)m->output_count + 1, sizeof *b->outputs);
    b->plans = calloc(of->list.count, sizeof *b->plans);
    b->splits = calloc(groups, sizeof *b->splits);
    if (!s->bindings || !s->outputs || !b->inputs || !b->outputs || !b->plans || !b->splits)
        return no_memory(diag);
    LATHE_TRY(set_limits(s, options, diag));
    for (unsigned g = 0; g < groups; g++)
        lathe_bucket_split_make(&of->list, g, &b->splits[g]);
    for (unsigned k = 0; k < of->list.count; k++)
        LATHE_TRY(lathe_session_new_plan(s, k, &b->plans[k], diag));
    return make_memory(s, diag);
}

void lathe_buckets_close(struct lathe_session *s) {
    struct lathe_session_buckets *b = s->buckets;
    if (!b)
        return;
    for (unsigned k = 0; b->plans && k < b->of->list.count; k++)
        lathe_session_close(&b->plans[k]);
    free(b->plans);
    free(b->splits);
    free(b->inputs);
    free(b->outputs);
    free(s->bindings);
    free(s->outputs);
    free(b);
    s->buckets = NULL;
}

size_t lathe_buckets_arena_bytes(const struct lathe_session *s) {
    return s->buckets->arena_bytes;
}

unsigned lathe_buckets_truncated(const struct lathe_session *s) {
    return s->buckets->truncated;
}

struct lathe_session *lathe_buckets_session(const struct lathe_session *s, unsigned bucket) {
    return s->buckets->plans[bucket];
}

void lathe_buckets_force(struct lathe_session *s, int bucket) {
    s->buckets->forced = bucket;
}

/* ---- sizes of a request */

enum lathe_status lathe_buckets_check_dim(const struct lathe_session *s, unsigned input, unsigned axis, int64_t size,
                                          struct lathe_diag *diag) {
    const struct lathe_session_buckets *b = s->buckets;
    const struct lathe_port *port = &s->ports[input];
    bool batch = b->of->ports[input].axes[axis] == LATHE_AXIS_BATCH;
    int64_t most = batch ? b->max_batch : b->max_seq;
    if (size < 0)
        return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': axis %u is %lld, expected 0 or more", port->name,
                          axis, (long long)size);
    if (size > most && (batch || !b->truncate))
        return lathe_fail(diag, LATHE_MSG_SHAPE_LIMIT, "input '%s': %s (axis %u) is %lld, at most %lld%s", port->name,
                          port->dim_names[axis], axis, (long long)size, (long long)most,
                          batch ? " in this session" : ", the largest bucket (option truncate cuts longer rows)");
    return LATHE_OK;
}

/* The size that all axes of this kind have, from the inputs that are bound. */
static enum lathe_status read_size(const struct lathe_session *s, enum lathe_axis kind, int64_t *out,
                                   struct lathe_diag *diag) {
    const struct lathe_buckets *of = s->buckets->of;
    uint32_t from = UINT32_MAX, unbound = 0;
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++) {
        const struct lathe_port *port = &s->ports[i];
        const struct lathe_binding *b = &s->bindings[i];
        for (unsigned d = 0; d < port->rank; d++) {
            if (of->ports[i].axes[d] != kind)
                continue;
            if (!b->bound) {
                unbound = i;
            } else if (from == UINT32_MAX) {
                from = i;
                *out = b->dims[d];
                if (*out == 0 && kind == LATHE_AXIS_SEQ)
                    return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE, "input '%s': %s (axis %u) is 0, expected at least 1",
                                      port->name, port->dim_names[d], d);
            } else if (b->dims[d] != *out) {
                return lathe_fail(diag, LATHE_MSG_INPUT_SHAPE,
                                  "input '%s': axis %u is %lld, expected %lld (%s of '%s')", port->name, d,
                                  (long long)b->dims[d], (long long)*out, port->dim_names[d], s->ports[from].name);
            }
        }
    }
    if (from == UINT32_MAX)
        return lathe_fail(diag, LATHE_MSG_INPUT_MISSING, "input '%s' is needed: it tells %s", s->ports[unbound].name,
                          kind == LATHE_AXIS_BATCH ? "the batch" : "the length");
    return LATHE_OK;
}

/* Sizes that only padding or splitting could bring into a bucket, where neither can be hidden. */
static enum lathe_status refuse_sizes(const struct lathe_session *s, struct lathe_diag *diag) {
    const struct lathe_session_buckets *b = s->buckets;
    const struct lathe_bucket_list *list = &b->of->list;
    char known[256] = "";
    size_t n = 0;
    for (unsigned i = 0; i < list->count && n < sizeof known - 48; i++)
        if (b->of->whole)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%lldx%lld", n ? ", " : "",
                                  (long long)list->at[i].batch, (long long)list->at[i].seq);
        else if (i == 0 || list->at[i].seq != list->at[i - 1].seq)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%lld", n ? ", " : "", (long long)list->at[i].seq);
    if (b->of->whole)
        return lathe_fail(diag, LATHE_MSG_BUCKET_LENGTH,
                          "batch %lld, length %lld: in this graph rows depend on each other, so a request must have "
                          "the sizes of a bucket: %s",
                          (long long)b->rows, (long long)b->kept, known);
    return lathe_fail(
        diag, LATHE_MSG_BUCKET_LENGTH,
        "length %lld: no mask of this graph hides padding, so a request must have the length of a bucket: "
        "%s",
        (long long)b->kept, known);
}

/* The bucket of a request that is neither split nor padded, -1: none. */
static int whole_bucket(const struct lathe_session_buckets *b) {
    for (unsigned i = 0; i < b->of->list.count; i++)
        if (b->of->sizes[i].batch == b->rows && b->of->sizes[i].seq == b->kept)
            return (int)i;
    return -1;
}

static enum lathe_status read_sizes(struct lathe_session *s, struct lathe_diag *diag) {
    struct lathe_session_buckets *b = s->buckets;
    b->rows = b->of->list.at[0].batch;
    b->seq = 0;
    if (b->of->has_batch)
        LATHE_TRY(read_size(s, LATHE_AXIS_BATCH, &b->rows, diag));
    if (b->of->has_seq)
        LATHE_TRY(read_size(s, LATHE_AXIS_SEQ, &b->seq, diag));
    b->kept = b->seq > b->max_seq ? b->max_seq : b->seq;
    if (b->rows > 0 && b->forced < 0 &&
        (b->of->whole ? whole_bucket(b) : lathe_bucket_group(&b->of->list, b->kept)) < 0)
        return refuse_sizes(s, diag);
    return LATHE_OK;
}

static void set_output_views(struct lathe_session *s) {
    const struct lathe_session_buckets *b = s->buckets;
    uint32_t inputs = s->manifest->head->input_count;
    for (uint32_t i = 0; i < s->manifest->head->output_count; i++) {
        const struct lathe_port *p = &s->ports[inputs + i];
        struct lathe_tensor_view *v = &s->outputs[i];
        *v = (struct lathe_tensor_view){.dtype = p->dtype, .rank = p->rank, .data = b->outputs[i]};
        for (unsigned d = 0; d < p->rank; d++) {
            uint8_t axis = b->of->ports[inputs + i].axes[d];
            v->dims[d] = axis == LATHE_AXIS_BATCH ? b->rows : axis == LATHE_AXIS_SEQ ? b->kept : p->dims[d];
        }
        int64_t bytes = lathe_shape_bytes(v->dtype, v->rank, v->dims);
        v->bytes = bytes < 0 || b->rows == 0 ? 0 : (size_t)bytes;
    }
}

/* Rows that are cut, and whether any token is masked. */
static void look_at_rows(struct lathe_session *s) {
    struct lathe_session_buckets *b = s->buckets;
    uint32_t mask = b->of->head->mask;
    bool zeroes = b->of->head->flags & LATHE_BUCKETS_ZERO_ROWS && mask != LATHE_FORMAT_ABSENT;
    b->truncated = 0;
    b->zeroes = false;
    for (int64_t r = 0; b->kept < b->seq && r < b->rows; r++)
        b->truncated += lathe_row_cut(s, r).cut;
    for (int64_t r = 0; zeroes && !b->zeroes && r < b->rows; r++)
        for (int64_t i = 0; !b->zeroes && i < b->seq; i++)
            b->zeroes = !lathe_row_mask(s, r, i);
}

/* ---- the run */

enum lathe_status lathe_buckets_begin(struct lathe_session *s, bool *empty, struct lathe_diag *diag) {
    struct lathe_session_buckets *b = s->buckets;
    LATHE_TRY(read_sizes(s, diag));
    s->flagged = 0;
    b->truncated = 0;
    b->whole = -1;
    set_output_views(s);
    *empty = b->rows == 0;
    if (*empty)
        return LATHE_OK;
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++)
        if (s->bindings[i].bound)
            LATHE_TRY(lathe_session_check_values(s, i, diag));
    look_at_rows(s);
    b->group = lathe_bucket_group(&b->of->list, b->kept);
    b->whole = b->forced >= 0 ? b->forced : b->of->whole ? whole_bucket(b) : -1;
    return LATHE_OK;
}

bool lathe_chunk_next(const struct lathe_session *s, int64_t done, struct lathe_chunk *out) {
    const struct lathe_session_buckets *b = s->buckets;
    int64_t left = b->rows - done;
    if (left <= 0)
        return false;
    unsigned k = b->whole >= 0 ? (unsigned)b->whole : lathe_bucket_next(&b->splits[b->group], left);
    int64_t batch = b->of->sizes[k].batch;
    *out = (struct lathe_chunk){k, done, left < batch ? left : batch};
    return true;
}

enum lathe_status lathe_buckets_exec(struct lathe_session *s, struct lathe_diag *diag) {
    struct lathe_chunk chunk;
    for (int64_t done = 0; lathe_chunk_next(s, done, &chunk); done += chunk.rows) {
        LATHE_TRY(lathe_chunk_bind(s, &chunk, diag));
        LATHE_TRY(lathe_session_run(s->buckets->plans[chunk.bucket], diag));
        lathe_chunk_take(s, &chunk);
    }
    return LATHE_OK;
}
