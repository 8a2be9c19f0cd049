/* lathe inspect: what an artifact holds, and where it runs. */
#include "artifact_json.h"
#include "cli.h"
#include "known_answer.h"
#include "lathe_compiler.h"
#include "package.h"
#include "plan_graph.h"
#include "plan_text.h"
#include "printable.h"
#include "session_args.h"
#include "target.h"
#include "write_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct request {
    struct lathe_words args;
    const char *graph;
    bool json, plan, check;
    struct lathe_session_args session;
};

static void row(struct lathe_text *out, const char *key, const char *value) {
    lathe_text_append(out, "%-14s", key);
    lathe_append_printable(out, value);
    lathe_text_append(out, "\n");
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void port_rows(const struct lathe_artifact *a, bool input, struct lathe_text *out) {
    unsigned count = input ? lathe_artifact_input_count(a) : lathe_artifact_output_count(a);
    size_t width = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct lathe_port *p = input ? lathe_artifact_input(a, i) : lathe_artifact_output(a, i);
        size_t w = lathe_text_width(p->name);
        width = w > width && w <= 40 ? w : width;
    }
    for (unsigned i = 0; i < count; i++) {
        const struct lathe_port *p = input ? lathe_artifact_input(a, i) : lathe_artifact_output(a, i);
        lathe_text_append(out, "%-14s", i ? "" : input ? "inputs" : "outputs");
        lathe_append_column(out, p->name, width);
        lathe_text_append(out, "  %s[", lathe_dtype_name(p->dtype));
        for (unsigned d = 0; d < p->rank; d++) {
            lathe_text_append(out, d ? ", " : "");
            if (p->dims[d] >= 0)
                lathe_text_append(out, "%lld", (long long)p->dims[d]);
            else
                lathe_append_printable(out, p->dim_names[d] ? p->dim_names[d] : "?");
        }
        lathe_text_append(out, "]%s", p->optional ? "  has a default" : p->per_token ? "  a row a token" : "");
        if (p->id_limit > 0)
            lathe_text_append(out, "  below %lld", (long long)p->id_limit);
        lathe_text_append(out, "\n");
    }
}

/* "attention 6, gelu 6" from an object of counts. */
static void counts_row(struct lathe_text *out, const char *key, const json_t *counts) {
    const char *name;
    json_t *n;
    bool any = false;
    lathe_text_append(out, "%-14s", key);
    json_object_foreach((json_t *)(uintptr_t)counts, name, n) {
        if (!json_integer_value(n))
            continue;
        lathe_text_append(out, any ? ", " : "");
        lathe_append_printable(out, name);
        lathe_text_append(out, " %lld", (long long)json_integer_value(n));
        any = true;
    }
    lathe_text_append(out, any ? "\n" : "none\n");
}

static void fallback_row(struct lathe_text *out, const json_t *fallback) {
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(fallback, "operators"), i, o) {
        lathe_text_append(out, i ? ", " : "%-14s", "fallback");
        lathe_append_printable(out, text_of(o, "operator"));
        lathe_text_append(out, " %lld", (long long)json_integer_value(json_object_get(o, "count")));
    }
    if (json_is_object(fallback))
        lathe_text_append(out, i ? " on the host, of %lld steps\n" : "fallback      none, of %lld steps\n",
                          (long long)json_integer_value(json_object_get(fallback, "of")));
}

static void alert_rows(struct lathe_text *out, const char *title, const json_t *list, const char *kind,
                       const char *text) {
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o) {
        lathe_text_append(out, "%-14s", i ? "" : title);
        lathe_append_printable(out, text_of(o, kind));
        if (text_of(o, "node")[0]) {
            lathe_text_append(out, " at ");
            lathe_append_printable(out, text_of(o, "node"));
        }
        lathe_text_append(out, ": ");
        lathe_append_printable(out, text_of(o, text));
        lathe_text_append(out, "\n");
    }
}

static void size_rows(const struct lathe_artifact *a, const json_t *o, struct lathe_text *out) {
    lathe_text_append(out, "%-14sweights ", "memory");
    lathe_append_bytes(out, a->weight_bytes);
    lathe_text_append(out, ", arena at the maxima ");
    lathe_append_bytes(out, (uint64_t)json_integer_value(json_object_get(o, "arena_bytes")));
    lathe_text_append(out, ", file ");
    lathe_append_bytes(out, a->size);
    lathe_text_append(out, "\n");
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(o, "sections"), i, s) {
        lathe_text_append(out, "%-14s%-13s %-5s", i ? "" : "sections", text_of(s, "name"), text_of(s, "codec"));
        lathe_append_bytes(out, (uint64_t)json_integer_value(json_object_get(s, "bytes")));
        if (!strcmp(text_of(s, "codec"), "zstd")) {
            lathe_text_append(out, ", stored as ");
            lathe_append_bytes(out, (uint64_t)json_integer_value(json_object_get(s, "stored_bytes")));
        }
        lathe_text_append(out, "\n");
    }
}

/* "2 threads: 8 tokens 0.512 ms, ..." from the report's predictions. */
static void cost_rows(struct lathe_text *out, const json_t *cost) {
    size_t i;
    json_t *p;
    json_int_t threads = 0;
    json_array_foreach(json_object_get(cost, "predictions"), i, p) {
        json_int_t now = json_integer_value(json_object_get(p, "threads"));
        json_int_t length = json_integer_value(json_object_get(p, "length"));
        if (now != threads)
            lathe_text_append(out, "%s%-14s%lld thread%s%s: ", i ? " ms\n" : "", i ? "" : "predicted", (long long)now,
                              now == 1 ? "" : "s", length > 0 ? ", by tokens" : "");
        else
            lathe_text_append(out, ", ");
        threads = now;
        if (length > 0)
            lathe_text_append(out, "%lld: ", (long long)length);
        lathe_text_append(out, "%.3g", json_number_value(json_object_get(p, "ms")));
    }
    if (!threads)
        return;
    lathe_text_append(out, " ms\n%-14sestimated from the figures of ", "");
    lathe_append_printable(out, text_of(json_object_get(cost, "assumptions"), "figures_of"));
    lathe_text_append(out, "\n");
}

static void bucket_rows(const json_t *o, struct lathe_text *out) {
    size_t i;
    json_t *b;
    json_array_foreach(json_object_get(o, "buckets"), i, b) {
        lathe_text_append(out, "%-14s%lldx%lld, arena ", i ? "" : "buckets",
                          (long long)json_integer_value(json_object_get(b, "batch")),
                          (long long)json_integer_value(json_object_get(b, "seq")));
        lathe_append_bytes(out, (uint64_t)json_integer_value(json_object_get(b, "arena_bytes")));
        lathe_text_append(out, "\n");
    }
    if (i && json_is_true(json_object_get(o, "whole_requests")))
        lathe_text_append(out, "%-14sonly requests of these sizes: rows depend on each other\n", "");
    else if (i && json_is_false(json_object_get(o, "pads_length")))
        lathe_text_append(out, "%-14sonly requests of these lengths: nothing hides padding\n", "");
}

static void summary(const struct lathe_artifact *a, const json_t *o, struct lathe_text *out) {
    char features[512], limit[64];
    lathe_target_features_text(a->manifest.head->target_features, features, sizeof features);
    row(out, "artifact", text_of(o, "path"));
    lathe_text_append(out, "%-14s%s, written by ", "format", text_of(o, "format"));
    lathe_append_printable(out, text_of(o, "writer"));
    lathe_text_append(out, "\n");
    row(out, "source", text_of(json_object_get(o, "source"), "sha256"));
    lathe_text_append(out, "%-14s", "target");
    lathe_append_printable(out, text_of(o, "target"));
    lathe_text_append(out, ", %s%s%s\n", text_of(o, "precision"), features[0] ? ", " : "", features);
    row(out, "runs on", text_of(o, "runs_on"));
    if (lathe_artifact_cores(a)) {
        char cores[64];
        snprintf(cores, sizeof cores, "%u, %s", lathe_artifact_cores(a),
                 lathe_placement_name(lathe_artifact_placement(a)));
        row(out, "cores", cores);
    }
    snprintf(limit, sizeof limit, "%lld", (long long)lathe_artifact_max_batch(a));
    row(out, "max batch", limit);
    snprintf(limit, sizeof limit, "%lld", (long long)lathe_artifact_max_length(a));
    row(out, "max length", limit);
    bucket_rows(o, out);
    port_rows(a, true, out);
    port_rows(a, false, out);
    for (unsigned i = 0; i < lathe_artifact_label_count(a); i++) {
        if (i == 20) {
            lathe_text_append(out, "%-14s... %u in all\n", "", lathe_artifact_label_count(a));
            break;
        }
        lathe_text_append(out, "%-14s%u ", i ? "" : "labels", i);
        lathe_append_printable(out, lathe_artifact_label(a, i));
        lathe_text_append(out, "\n");
    }
    if (json_object_get(o, "fusions"))
        counts_row(out, "fusions", json_object_get(o, "fusions"));
    counts_row(out, "steps", json_object_get(o, "steps"));
    fallback_row(out, json_object_get(o, "fallback"));
    alert_rows(out, "near misses", json_object_get(o, "missed"), "pattern", "reason");
    alert_rows(out, "warnings", json_object_get(o, "warnings"), "code", "text");
    size_rows(a, o, out);
    cost_rows(out, json_object_get(o, "cost"));
}

static enum lathe_status replay(struct lathe_artifact *a, const struct lathe_session_options *options, double bound,
                                struct lathe_known_answer_result *r, struct lathe_diag *diag) {
    LATHE_TRY(lathe_known_answer_replay(a, options, r, diag));
    bool rounds = bound > LATHE_VERIFY_ATOL;
    double error = rounds && !isnan(r->max_error) ? r->distance : r->max_error;
    if (r->present && !(error <= bound))
        return lathe_fail(diag, LATHE_MSG_NOT_REPLAYED, "the known answer is not reproduced%s: %s %g, bound %g%s",
                          options->plain_c ? " in plain C" : "", rounds ? "relative distance" : "largest error", error,
                          bound, rounds ? "" : " (of values over 1: relative)");
    return LATHE_OK;
}

/* Where the machine's own kernels may be a step of rounding off, plain C must still give what is stored. */
static enum lathe_status check(struct request *q, struct lathe_artifact *a, json_t *o, struct lathe_text *out,
                               struct lathe_diag *diag) {
    struct lathe_session_options options;
    struct lathe_known_answer_result r, plain = {0};
    double bound = lathe_known_answer_bound(a);
    LATHE_TRY(lathe_session_args_apply(&q->session, &options, diag));
    LATHE_TRY(replay(a, &options, bound, &r, diag));
    options.plain_c = true;
    if (r.present && bound > LATHE_VERIFY_ATOL)
        LATHE_TRY(replay(a, &options, LATHE_VERIFY_ATOL, &plain, diag));
    json_object_set_new(o, "check",
                        r.present ? json_pack("{sb, sf, sf, sf}", "passed", 1, "max_error", r.max_error, "distance",
                                              r.distance, "bound", bound)
                                  : json_null());
    if (plain.present)
        json_object_set_new(json_object_get(o, "check"), "max_error_plain_c", json_real(plain.max_error));
    if (r.present)
        lathe_text_append(out, "%-14sthe known answer is reproduced, %s %.3g, bound %g", "check",
                          bound > LATHE_VERIFY_ATOL ? "relative distance" : "largest error",
                          bound > LATHE_VERIFY_ATOL ? r.distance : r.max_error, bound);
    else
        lathe_text_append(out, "%-14sthe artifact holds no known answer; checksums and tables are right", "check");
    if (plain.present)
        lathe_text_append(out, "; in plain C %.3g, bound %g", plain.max_error, LATHE_VERIFY_ATOL);
    lathe_text_append(out, "\n");
    return LATHE_OK;
}

static void package_rows(struct lathe_text *out, const json_t *manifest) {
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(manifest, "files"), i, f) {
        lathe_text_append(out, "%-14s", i ? "" : "package");
        lathe_append_column(out, text_of(f, "name"), 14);
        lathe_text_append(out, "  ");
        lathe_append_bytes(out, (uint64_t)json_integer_value(json_object_get(f, "bytes")));
        lathe_text_append(out, ", sha256 %.16s\n", text_of(f, "sha256"));
    }
}

/* Every plan; those of buckets say that no symbol is left in them. */
static void plans_text(const struct lathe_artifact *a, struct lathe_text *out) {
    if (!a->buckets) {
        lathe_plan_text(&a->plan, out);
        return;
    }
    for (unsigned i = 0; i < a->buckets->list.count; i++) {
        const struct lathe_plan *p = &a->buckets->plans[i].plan;
        lathe_text_append(out, "bucket %lldx%lld: %u symbols, %u dims, all constant\n",
                          (long long)a->buckets->sizes[i].batch, (long long)a->buckets->sizes[i].seq,
                          p->head->symbol_count, p->head->dim_count);
        lathe_plan_text(p, out);
    }
}

static enum lathe_status inspect_artifact(struct request *q, const struct lathe_model *model, struct lathe_diag *diag) {
    struct lathe_artifact *a = model->artifact;
    json_t *o;
    struct lathe_text out = {0};
    LATHE_TRY(lathe_artifact_json(a, q->args.at[0], &o, diag));
    if (model->manifest)
        json_object_set(o, "package", model->manifest);
    summary(a, o, &out);
    package_rows(&out, model->manifest);
    enum lathe_status status = q->check ? check(q, a, o, &out, diag) : LATHE_OK;
    if (status == LATHE_OK && q->graph)
        status = lathe_plan_graph_write(&a->plan, q->graph, diag);
    if (q->plan && q->json) {
        struct lathe_text plan = {0};
        plans_text(a, &plan);
        json_object_set_new(o, "plan", lathe_json_string(plan.data ? plan.data : ""));
        lathe_text_free(&plan);
    } else if (q->plan) {
        lathe_text_append(&out, "plan\n");
        plans_text(a, &out);
    }
    if (status == LATHE_OK)
        status = q->json ? lathe_cli_print_json(json_incref(o), diag) : lathe_cli_print(&out, diag);
    json_decref(o);
    lathe_text_free(&out);
    return status;
}

static enum lathe_status inspect(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    struct lathe_model model;
    if (q->graph)
        LATHE_TRY(lathe_plan_graph_check(q->graph, diag));
    struct lathe_artifact_options in_place = {.map_weights = true}; /* they are checked, not used */
    LATHE_TRY(lathe_model_open(q->args.at[0], &in_place, &model, diag));
    enum lathe_status status = inspect_artifact(q, &model, diag);
    lathe_model_close(&model);
    return status;
}

int lathe_cmd_inspect(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
        {.name = "plan", .kind = LATHE_OPTION_FLAG, .into = &q.plan, .help = "also the steps, one a line"},
        {.name = "graph",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.graph,
         .value = "FILE.svg|.dot",
         .help = "draw the steps into a file"},
        {.name = "check",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.check,
         .help = "replay the known answer from compile time on this machine"},
        LATHE_CPUMASK_OPTION(q.session),
    };
    const struct lathe_syntax syntax = {.command = "inspect",
                                        .arguments = "MODEL.lathe [options]",
                                        .summary = "what an artifact holds, and where it runs",
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options,
                                        .min_args = 1,
                                        .max_args = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, inspect, &q);
}
