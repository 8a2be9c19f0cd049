#include "reference.h"
#include "plan.h"
#include "stages.h"

#include <stdio.h>
#include <stdlib.h>

void lathe_reference_close(struct lathe_reference *reference) {
    lathe_artifact_close(&reference->artifact);
    free(reference->bytes);
    *reference = (struct lathe_reference){0};
}

static enum lathe_status prepare(struct lathe_graph *graph, const struct lathe_reference_options *options,
                                 struct lathe_reference *out, struct lathe_diag *diag) {
    struct lathe_target target;
    LATHE_TRY(lathe_target_load("generic", &target, diag));
    struct lathe_pipeline_options pipeline = {.reference = true,
                                              .pass = {.keep_padding = true, .int8 = options->float_activations}};
    LATHE_TRY(lathe_pipeline_run(graph, &target, &pipeline, NULL, diag));
    struct lathe_emit_options emit = {.target = &target, .source_sha256 = ""};
    return lathe_emit_memory(graph, &emit, &out->bytes, &out->size, NULL, diag);
}

enum lathe_status lathe_reference_open(const char *model, const struct lathe_reference_options *options,
                                       struct lathe_reference *out, struct lathe_diag *diag) {
    struct lathe_import_options import = {.external_dir = options->external_dir};
    struct lathe_model_file *file = NULL;
    struct lathe_graph *graph = NULL;
    *out = (struct lathe_reference){0};
    LATHE_TRY(lathe_import_onnx(model, &import, &file, &graph, diag));
    enum lathe_status status = prepare(graph, options, out, diag);
    lathe_graph_free(&graph);
    lathe_model_file_close(&file);
    struct lathe_artifact_options trusted = {.skip_weight_checksum = true}; /* written a moment ago */
    if (status == LATHE_OK)
        status = lathe_artifact_open_memory(out->bytes, out->size, &trusted, &out->artifact, diag);
    if (status != LATHE_OK)
        lathe_reference_close(out);
    return status;
}

/* Binds feeds by position: both artifacts have the inputs of the source in its order. */
enum lathe_status lathe_reference_run(const struct lathe_reference *reference, const struct lathe_feeds *feeds,
                                      struct lathe_answers *out, struct lathe_diag *diag) {
    struct lathe_session_options options = {.plain_c = true};
    struct lathe_session *session = NULL;
    LATHE_TRY(lathe_session_new(reference->artifact, &options, &session, diag));
    enum lathe_status status = lathe_feeds_bind(session, feeds, diag);
    if (status == LATHE_OK)
        status = lathe_session_run(session, diag);
    if (status == LATHE_OK)
        status = lathe_answers_copy(reference->artifact, session, out, diag);
    lathe_session_close(&session);
    return status;
}

/* Every bucket is reached by a trial: one that fits into it padded, or one of its own length. The largest one is also
 * run in full, unless that takes long. */
static unsigned bucket_trials(const struct lathe_artifact *a, struct lathe_trial *out, unsigned count,
                              unsigned capacity) {
    const struct lathe_buckets *b = a->buckets;
    if (b->list.exact)
        count = 0; /* no length but the buckets' own */
    for (unsigned k = 0; k < b->list.count && (b->has_seq || b->whole); k++) {
        int64_t seq = b->sizes[k].seq;
        bool full = k + 1 == b->list.count && seq <= LATHE_TRIAL_LENGTH, served = false;
        for (unsigned i = 0; i < count; i++)
            served |= b->whole ? out[i].seq == seq && out[i].batch == b->sizes[k].batch
                               : out[i].seq == seq || (!full && !b->list.exact && out[i].seq < seq);
        if (served || count == capacity)
            continue;
        struct lathe_trial *t = &out[count++];
        *t = (struct lathe_trial){.batch = full && b->has_batch && seq <= 32 ? 3 : 1, .seq = seq};
        if (!b->has_batch || b->whole)
            t->batch = b->sizes[k].batch;
        for (unsigned r = 0; r < sizeof t->lengths / sizeof *t->lengths; r++)
            t->lengths[r] = seq;
        snprintf(t->what, sizeof t->what, "batch %lld, %lld tokens", (long long)t->batch, (long long)seq);
    }
    return count;
}

/* What every length is at least: a window of the graph may ask for it. */
static int64_t least_length(const struct lathe_artifact *a) {
    int64_t least = 1;
    for (uint32_t i = 0; i < a->plan.head->symbol_count; i++) {
        const struct lathe_fmt_symbol *s = &a->plan.symbols[i];
        if (s->source != LATHE_SYMBOL_ROWS && s->axis && s->min > least)
            least = s->min;
    }
    return least;
}

unsigned lathe_trials(const struct lathe_artifact *a, struct lathe_trial *out, unsigned capacity) {
    static const struct lathe_trial all[] = {
        {1, 7, {7}, "batch 1, 7 tokens"},
        {3, 9, {9, 5, 1}, "batch 3, 9 tokens, padded"},
    };
    int64_t longest = lathe_artifact_max_length(a), largest = lathe_artifact_max_batch(a), least = least_length(a);
    unsigned count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && count < capacity; i++) {
        struct lathe_trial t = all[i];
        if (t.batch > 1 && (!lathe_feeds_batch_varies(a) || (largest > 0 && largest < t.batch)))
            continue;
        t.seq = longest > 0 && longest < t.seq ? longest : t.seq;
        for (int64_t b = 0; b < t.batch; b++)
            t.lengths[b] = t.lengths[b] < t.seq ? t.lengths[b] : t.seq;
        if (t.seq < least) {
            t.lengths[0] = t.seq = least;
            snprintf(t.what, sizeof t.what, "batch %lld, %lld tokens%s", (long long)t.batch, (long long)t.seq,
                     t.batch > 1 ? ", padded" : "");
        }
        out[count++] = t;
    }
    return a->buckets ? bucket_trials(a, out, count, capacity) : count;
}

enum lathe_status lathe_trial_feeds(const struct lathe_artifact *a, const struct lathe_trial *trial,
                                    struct lathe_feeds *out, struct lathe_diag *diag) {
    struct lathe_feed_spec spec = {.batch = trial->batch, .seq = trial->seq, .seed = (uint64_t)trial->batch};
    if (trial->batch <= (int64_t)(sizeof trial->lengths / sizeof *trial->lengths))
        spec.lengths = trial->lengths;
    return lathe_feeds_make(a, &spec, out, diag);
}
