#include "calibrate.h"
#include "calibration_data.h"
#include "stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows kept of each input: as many as rounding the weights by them takes this many multiply-adds, within limits. More
 * rows say more of other text: MiniLM-L6 in u8s7 by 192 rows has a mean cosine of 0.9988, by 663 of 0.9990. */
#define KEEP_WORK  1e10
#define LEAST_KEPT 128
#define MOST_KEPT  1024 /* both multiples of 2 */

/* ---- made-up inputs */

#define WORK       2.4e10 /* multiply-adds to spend */
#define LEAST_ROWS 64
#define MOST_ROWS  1024
#define MOST_RUNS  16

struct calibrating {
    struct lathe_graph *g;
    const struct lathe_calibrate_options *options;
    struct lathe_calibration *out;
    struct lathe_calibration_runs *runs;
    struct lathe_diag *diag;
    uint32_t own_outputs; /* of the graph */
    uint32_t *output_of;  /* an input of the calibration: which output of the artifact */
    bool *was_output;
    double work;  /* multiply-adds a row of all layers */
    int64_t keep; /* rows */
};

void lathe_calibration_free(struct lathe_calibration *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        free(c->at[i].absmax);
        free(c->at[i].sample);
    }
    free(c->at);
    *c = (struct lathe_calibration){0};
}

void lathe_calibration_runs_free(struct lathe_calibration_runs *runs) {
    for (unsigned i = 0; i < runs->count; i++) {
        lathe_feeds_free(&runs->feeds[i]);
        lathe_answers_free(&runs->answers[i]);
    }
    free(runs->feeds);
    free(runs->answers);
    *runs = (struct lathe_calibration_runs){0};
}

static enum lathe_status no_memory(struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "calibration: out of memory");
}

/* ---- the inputs of the linear layers become outputs */

static enum lathe_status find_inputs(struct calibrating *c) {
    struct lathe_graph *g = c->g;
    uint32_t layers = 0;
    LATHE_FOR_NODES(g, n)
    layers += g->nodes[n].op == LATHE_OP_LINEAR;
    c->out->at = calloc((size_t)layers + 1, sizeof *c->out->at);
    c->output_of = calloc((size_t)layers + 1, sizeof *c->output_of);
    c->was_output = calloc((size_t)layers + 1, sizeof *c->was_output);
    if (!c->out->at || !c->output_of || !c->was_output)
        return no_memory(c->diag);
    LATHE_FOR_NODES(g, n) {
        int64_t k, columns;
        lathe_value_id x = g->nodes[n].op == LATHE_OP_LINEAR ? g->nodes[n].in[0] : LATHE_NONE;
        if (x == LATHE_NONE || g->values[x].dtype != LATHE_F32 || lathe_value_is_constant(g, x) ||
            !lathe_value_dim_is(g, x, -1, &k) || !lathe_value_dim_is(g, g->nodes[n].out[0], -1, &columns))
            continue;
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        int64_t groups = lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1);
        c->work += (double)k * (double)columns / (double)(groups > 1 ? groups : 1);
        if (lathe_calibration_of(c->out, x))
            continue;
        struct lathe_calibration_input *in = &c->out->at[c->out->count];
        *in = (struct lathe_calibration_input){.value = x, .k = k, .stride = 1, .finite = true};
        in->absmax = calloc((size_t)k, sizeof *in->absmax);
        c->out->count++;
        if (!in->absmax)
            return no_memory(c->diag);
    }
    double keep = c->work > 0 ? KEEP_WORK / c->work : MOST_KEPT;
    c->keep = keep < LEAST_KEPT ? LEAST_KEPT : keep > MOST_KEPT ? MOST_KEPT : (int64_t)keep / 2 * 2;
    for (uint32_t i = 0; i < c->out->count; i++) {
        struct lathe_calibration_input *in = &c->out->at[i];
        in->sample = calloc((size_t)in->k * (size_t)c->keep + 1, sizeof *in->sample);
        if (!in->sample)
            return no_memory(c->diag);
    }
    return LATHE_OK;
}

static void add_outputs(struct calibrating *c) {
    struct lathe_graph *g = c->g;
    c->own_outputs = g->output_count;
    for (uint32_t i = 0; i < c->out->count; i++) {
        lathe_value_id v = c->out->at[i].value;
        char name[64];
        snprintf(name, sizeof name, "calibrate.%u", i);
        c->was_output[i] = g->values[v].is_output;
        c->output_of[i] = g->output_count;
        lathe_graph_add_output(g, v, name);
    }
}

static void remove_outputs(struct calibrating *c) {
    for (uint32_t i = 0; i < c->out->count; i++)
        c->g->values[c->out->at[i].value].is_output = c->was_output[i];
    c->g->output_count = c->own_outputs;
}

/* ---- looking at a run */

static void keep_row(struct lathe_calibration_input *in, const float *row, int64_t most) {
    if (in->seen++ % in->stride)
        return;
    if (in->rows == most) { /* every other row makes room */
        in->rows /= 2;
        for (int64_t r = 1; r < in->rows; r++)
            memcpy(in->sample + r * in->k, in->sample + 2 * r * in->k, (size_t)in->k * sizeof *in->sample);
        in->stride *= 2;
        if ((in->seen - 1) % in->stride)
            return;
    }
    memcpy(in->sample + in->rows++ * in->k, row, (size_t)in->k * sizeof *in->sample);
}

static void look_at_row(struct lathe_calibration_input *in, const float *row, int64_t most) {
    for (int64_t i = 0; i < in->k; i++) {
        float v = row[i], size = fabsf(v);
        if (!isfinite(v))
            in->finite = false;
        in->absmax[i] = size > in->absmax[i] ? size : in->absmax[i];
        in->low = v < in->low ? v : in->low;
        in->high = v > in->high ? v : in->high;
    }
    keep_row(in, row, most);
}

/* Rows at mask 0 are padding, where the tensor has a row for each place of the mask. */
static bool is_padding(const struct lathe_data_tensor *mask, int64_t rows, int64_t row) {
    if (!mask || !mask->data || mask->rank != 2 || mask->dims[0] * mask->dims[1] != rows)
        return false;
    return lathe_element_f64(mask->dtype, mask->data, (size_t)row) == 0;
}

static enum lathe_status look(struct calibrating *c, const struct lathe_artifact *a, const struct lathe_session *s,
                              const struct lathe_feeds *feeds, const char *sample) {
    int m = lathe_feeds_mask(a);
    for (uint32_t i = 0; i < c->out->count; i++) {
        struct lathe_calibration_input *in = &c->out->at[i];
        const struct lathe_tensor_view *v = lathe_session_output(s, c->output_of[i]);
        int64_t rows = (int64_t)(v->bytes / sizeof(float)) / in->k;
        for (int64_t r = 0; r < rows; r++)
            if (!is_padding(m >= 0 ? &feeds->at[m] : NULL, rows, r))
                look_at_row(in, (const float *)v->data + r * in->k, c->keep);
        if (!in->finite && c->options->data)
            return lathe_fail(c->diag, LATHE_MSG_CALIBRATION_VALUE, "%s: tensor '%s' has an infinity or NaN", sample,
                              c->g->values[in->value].name);
    }
    return LATHE_OK;
}

/* Takes the feeds over. */
static enum lathe_status run_sample(struct calibrating *c, const struct lathe_artifact *a, struct lathe_session *s,
                                    struct lathe_feeds *feeds, const char *sample) {
    struct lathe_calibration_runs *runs = c->runs;
    struct lathe_feeds *more_feeds = realloc(runs->feeds, (runs->count + 1) * sizeof *more_feeds);
    runs->feeds = more_feeds ? more_feeds : runs->feeds;
    struct lathe_answers *more = realloc(runs->answers, (runs->count + 1) * sizeof *more);
    runs->answers = more ? more : runs->answers;
    if (!more_feeds || !more) {
        lathe_feeds_free(feeds);
        return no_memory(c->diag);
    }
    runs->feeds[runs->count] = *feeds;
    runs->answers[runs->count++] = (struct lathe_answers){0};
    *feeds = (struct lathe_feeds){0};
    const struct lathe_feeds *own = &runs->feeds[runs->count - 1];
    LATHE_TRY(lathe_feeds_bind(s, own, c->diag));
    LATHE_TRY(lathe_session_run(s, c->diag));
    LATHE_TRY(look(c, a, s, own, sample));
    struct lathe_answers *answers = &runs->answers[runs->count - 1];
    LATHE_TRY(lathe_answers_copy(a, s, answers, c->diag));
    while (answers->count > c->own_outputs) /* what only the calibration wanted */
        lathe_data_tensor_free(&answers->at[--answers->count]);
    return LATHE_OK;
}

static int64_t rows_seen(const struct calibrating *c) {
    int64_t most = 0;
    for (uint32_t i = 0; i < c->out->count; i++)
        most = c->out->at[i].seen > most ? c->out->at[i].seen : most;
    return most;
}

/* The input of token ids: the one with the largest table; -1 when there is none. */
static int ids_of(const struct lathe_artifact *a) {
    int found = -1;
    int64_t limit = 0;
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        if (p->rank != 2 || !lathe_dtype_is_integer(p->dtype) || p->id_limit <= limit)
            continue;
        limit = p->id_limit;
        found = (int)i;
    }
    return found;
}

/* Text opens and closes with tokens that drive some columns far out: those of the common tokenizers take turns at the
 * ends. For other vocabularies they are tokens like any. */
static void close_as_text(const struct lathe_artifact *a, struct lathe_feeds *feeds, unsigned turn) {
    static const int ends[][2] = {{101, 102}, {0, 2}, {101, 102}, {1, 2}, {0, 2}, {101, 102}, {2, 3}, {101, 102}};
    const int *pair = ends[turn % (sizeof ends / sizeof *ends)];
    int at = ids_of(a);
    int64_t limit = at < 0 ? 0 : lathe_artifact_input(a, (unsigned)at)->id_limit;
    if (limit < 1000 || feeds->at[at].dims[1] < 2)
        return;
    struct lathe_data_tensor *ids = &feeds->at[at];
    for (int64_t b = 0; b < ids->dims[0]; b++) {
        lathe_element_set(ids->dtype, ids->data, (size_t)(b * ids->dims[1]), pair[0]);
        lathe_element_set(ids->dtype, ids->data, (size_t)((b + 1) * ids->dims[1] - 1), pair[1]);
    }
}

#define SENTENCE(...) {(const uint16_t[]){__VA_ARGS__}, sizeof((const uint16_t[]){__VA_ARGS__}) / sizeof(uint16_t)},
static const struct {
    const uint16_t *ids;
    size_t count;
} sentences[] = {
#include "calibration_text.def"
};
#undef SENTENCE
#define SENTENCES  (sizeof sentences / sizeof *sentences)
#define BERT_TABLE 30522

/* Sentence `turn` instead of made-up ids, as many of its tokens as there is room for. */
static void put_sentence(struct lathe_data_tensor *ids, unsigned turn) {
    size_t columns = (size_t)ids->dims[1], rows = (size_t)ids->dims[0];
    for (size_t i = 0; i < rows * columns; i++) {
        size_t t = (turn + i / columns) % SENTENCES, at = i % columns, count = sentences[t].count;
        /* a fixed length that is longer is filled by the sentence again, without its first token */
        lathe_element_set(ids->dtype, ids->data, i, sentences[t].ids[at < count ? at : 1 + (at - 1) % (count - 1)]);
    }
}

static enum lathe_status run_made_up(struct calibrating *c, struct lathe_artifact *a, struct lathe_session *s) {
    static const int64_t lengths[] = {24, 64, 8, 96, 40, 128, 16, 56};
    double affordable = c->work > 0 ? WORK / c->work : MOST_ROWS;
    int64_t wanted = affordable < LEAST_ROWS ? LEAST_ROWS : affordable > MOST_ROWS ? MOST_ROWS : (int64_t)affordable;
    int64_t longest = lathe_artifact_max_length(a);
    int ids = ids_of(a);
    bool text = ids >= 0 && lathe_artifact_input(a, (unsigned)ids)->id_limit == BERT_TABLE;
    unsigned i = 0, most = text ? SENTENCES : MOST_RUNS;
    for (; i < most && (i == 0 || rows_seen(c) < wanted); i++) {
        int64_t seq = text ? (int64_t)sentences[i].count : lengths[i % (sizeof lengths / sizeof *lengths)];
        seq = longest > 0 && seq > longest ? longest : seq;
        struct lathe_feed_spec spec = {
            .batch = 1, .seq = seq, .seed = 1000 + i, .frequent = i % 4 == 3 ? 5 : 1000, .plain = true};
        struct lathe_feeds feeds = {0};
        LATHE_TRY(lathe_feeds_make(a, &spec, &feeds, c->diag));
        if (text)
            put_sentence(&feeds.at[ids], i);
        else
            close_as_text(a, &feeds, i);
        LATHE_TRY(run_sample(c, a, s, &feeds, "made-up inputs"));
    }
    snprintf(c->out->source, sizeof c->out->source, "%u %s, %lld rows", i,
             text ? "sentences in the vocabulary of BERT uncased" : "runs on made-up inputs", (long long)rows_seen(c));
    return LATHE_OK;
}

/* What went wrong begins with the sample that it went wrong with. */
static void name_sample(struct calibrating *c, const char *path) {
    char text[sizeof c->diag->text];
    if (!c->diag || strstr(c->diag->text, path))
        return;
    enum lathe_message message = c->diag->message;
    snprintf(text, sizeof text, "%s", c->diag->text);
    lathe_diag_reset(c->diag);
    lathe_fail(c->diag, message, "%s: %s", path, text);
}

static enum lathe_status run_data(struct calibrating *c, struct lathe_artifact *a, struct lathe_session *s) {
    struct lathe_calibration_data data;
    LATHE_TRY(lathe_calibration_data_open(c->options->data, &data, c->diag));
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < data.count; i++) {
        struct lathe_feeds feeds = {0};
        status = lathe_calibration_data_read(&data, i, a, &feeds, c->diag);
        if (status == LATHE_OK)
            status = run_sample(c, a, s, &feeds, data.paths[i]);
        if (status != LATHE_OK)
            name_sample(c, data.paths[i]);
        lathe_feeds_free(&feeds);
    }
    if (status == LATHE_OK && rows_seen(c) == 0 && c->out->count > 0)
        status = lathe_fail(c->diag, LATHE_MSG_CALIBRATION_VALUE, "%s: holds no token that is not padding",
                            c->options->data);
    snprintf(c->out->source, sizeof c->out->source, "%u data sets, %lld rows", data.count, (long long)rows_seen(c));
    lathe_calibration_data_close(&data);
    return status;
}

/* ---- whole */

/* The plan of the graph as it is now, in memory. */
struct trial_artifact {
    void *bytes;
    struct lathe_artifact *artifact;
    struct lathe_session *session;
};

static void close_trial(struct trial_artifact *t) {
    lathe_session_close(&t->session);
    lathe_artifact_close(&t->artifact);
    free(t->bytes);
}

/* Plain C operators: they round the same way on every machine. */
static enum lathe_status open_trial(struct lathe_graph *g, const struct lathe_target *target, struct trial_artifact *t,
                                    struct lathe_diag *diag) {
    struct lathe_emit_options emit = {.target = target, .source_sha256 = "", .jobs = 0};
    size_t size;
    *t = (struct trial_artifact){0};
    LATHE_TRY(lathe_emit_memory(g, &emit, &t->bytes, &size, NULL, diag));
    struct lathe_artifact_options trusted = {.skip_weight_checksum = true}; /* written a moment ago */
    enum lathe_status status = lathe_artifact_open_memory(t->bytes, size, &trusted, &t->artifact, diag);
    struct lathe_session_options session = {.plain_c = true};
    if (status == LATHE_OK)
        status = lathe_session_new(t->artifact, &session, &t->session, diag);
    if (status != LATHE_OK)
        close_trial(t);
    return status;
}

enum lathe_status lathe_calibrate(struct lathe_graph *g, const struct lathe_calibrate_options *options,
                                  struct lathe_calibration *out, struct lathe_calibration_runs *runs,
                                  struct lathe_diag *diag) {
    struct calibrating c = {.g = g, .options = options, .out = out, .runs = runs, .diag = diag};
    struct trial_artifact t = {0};
    *out = (struct lathe_calibration){0};
    *runs = (struct lathe_calibration_runs){0};
    enum lathe_status status = find_inputs(&c);
    if (status == LATHE_OK) {
        add_outputs(&c);
        status = g->out_of_memory ? no_memory(diag) : open_trial(g, options->target, &t, diag);
        remove_outputs(&c);
    }
    if (status == LATHE_OK)
        status = options->data ? run_data(&c, t.artifact, t.session) : run_made_up(&c, t.artifact, t.session);
    close_trial(&t);
    free(c.output_of);
    free(c.was_output);
    return status;
}

/* ---- comparing */

enum lathe_status lathe_calibration_cosine(struct lathe_graph *g, const struct lathe_target *target,
                                           const struct lathe_calibration_runs *runs, double *cosine,
                                           struct lathe_argmax *argmax, struct lathe_diag *diag) {
    static const struct lathe_bounds bounds = {.has_cosine = true, .min_cosine = -1};
    struct trial_artifact t;
    *cosine = 1;
    *argmax = (struct lathe_argmax){0};
    LATHE_TRY(open_trial(g, target, &t, diag));
    enum lathe_status status = LATHE_OK;
    int m = lathe_feeds_mask(t.artifact);
    for (unsigned i = 0; status == LATHE_OK && i < runs->count; i++) {
        status = lathe_feeds_bind(t.session, &runs->feeds[i], diag);
        if (status == LATHE_OK)
            status = lathe_session_run(t.session, diag);
        for (unsigned k = 0; status == LATHE_OK && k < runs->answers[i].count; k++) {
            const struct lathe_port *port = lathe_artifact_output(t.artifact, k);
            struct lathe_comparison compared;
            lathe_compare(port->name, lathe_session_output(t.session, k), &runs->answers[i].at[k],
                          m >= 0 && port->per_token ? &runs->feeds[i].at[m] : NULL, &bounds, &compared);
            argmax->rows += compared.rows;
            argmax->flips += compared.flips;
            double found = compared.passed ? compared.cosine : -1;
            *cosine = found < *cosine ? found : *cosine;
        }
    }
    close_trial(&t);
    return status;
}
