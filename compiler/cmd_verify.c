/* lathe verify: an artifact against test data or its source model. */
#include "check_artifact.h"
#include "cli.h"
#include "known_answer.h"
#include "lathe_compiler.h"
#include "package.h"
#include "printable.h"
#include "quantize.h"
#include "reference.h"
#include "session_args.h"
#include "tensor_pb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    struct lathe_words args, test_data;
    const char *model, *external_dir;
    struct lathe_bounds bounds;
    bool has_atol, has_rtol, defaults, json, padded_rows;
    struct lathe_session_args session;

    struct lathe_checker checker;
    struct lathe_text text; /* a line an output */
    json_t *results;
    char *failure; /* the first failed comparison */
    unsigned sets, failed;
};

/* ---- results */

static void record(struct request *q, const char *set, const char *output, const struct lathe_comparison *c) {
    json_t *o = json_pack("{so, so, sb}", "data", lathe_json_string(set), "output", lathe_json_string(output), "passed",
                          c->passed);
    if (o) {
        json_object_set_new(o, "max_error", lathe_json_number(c->max_error));
        json_object_set_new(o, "cosine", lathe_json_number(c->cosine));
        json_object_set_new(o, "argmax_rows", json_integer(c->rows));
        json_object_set_new(o, "argmax_flips", json_integer(c->flips));
        json_object_set_new(o, "elements", json_integer(c->elements));
        json_object_set_new(o, "rows_left_out", json_integer(c->rows_left_out));
        json_object_set_new(o, "reason", c->passed ? json_null() : lathe_json_string(c->why));
        json_array_append_new(q->results, o);
    }
    lathe_text_append(&q->text, "%s  ", c->passed ? "ok    " : "FAILED");
    lathe_append_printable(&q->text, set);
    lathe_text_append(&q->text, "  ");
    lathe_append_printable(&q->text, output);
    lathe_text_append(&q->text, "  largest error %.3g, cosine %.6f", c->max_error, c->cosine);
    if (c->flips)
        lathe_text_append(&q->text, ", arg-max differs in %lld of %lld rows", (long long)c->flips, (long long)c->rows);
    if (c->rows_left_out)
        lathe_text_append(&q->text, ", %lld token rows at mask 0 left out", (long long)c->rows_left_out);
    lathe_text_append(&q->text, "\n");
    q->failed += !c->passed;
    if (!c->passed && !q->failure && asprintf(&q->failure, "%s: %s", set, c->why) < 0)
        q->failure = NULL;
}

static enum lathe_status compare_output(struct request *q, const struct lathe_feeds *feeds, const char *set,
                                        unsigned index, const struct lathe_data_tensor *want) {
    struct lathe_comparison c;
    lathe_checker_compare(&q->checker, feeds, index, want, &q->bounds, q->padded_rows, &c);
    record(q, set, lathe_artifact_output(q->checker.artifact, index)->name, &c);
    return LATHE_OK;
}

/* ---- against data sets */

static enum lathe_status compare_set(struct request *q, const struct lathe_data_set *set,
                                     const struct lathe_feeds *feeds, struct lathe_diag *diag) {
    const struct lathe_artifact *a = q->checker.artifact;
    unsigned count = lathe_artifact_output_count(a);
    bool *seen = calloc(count ? count : 1, sizeof *seen);
    enum lathe_status status = seen ? LATHE_OK : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", set->path);
    for (unsigned i = 0; status == LATHE_OK && i < set->output_count; i++) {
        const struct lathe_data_tensor *want = &set->outputs[i];
        int index = want->name[0] ? lathe_artifact_find_output(a, want->name) : i < count ? (int)i : -1;
        if (index < 0 || seen[index])
            status = lathe_fail(diag, LATHE_MSG_DATA_NAME, "%s: output '%s' %s", set->path, want->name,
                                index < 0 ? "is none of the model's" : "is given twice");
        else
            status = compare_output(q, feeds, set->path, (unsigned)index, want);
        if (status == LATHE_OK)
            seen[index] = true;
    }
    free(seen);
    return status;
}

static enum lathe_status verify_set(struct request *q, const char *folder, struct lathe_diag *diag) {
    struct lathe_data_set set;
    struct lathe_feeds feeds = {0};
    LATHE_TRY(lathe_data_set_read(folder, &set, diag));
    enum lathe_status status = lathe_feeds_new(q->checker.artifact, &feeds, diag);
    for (unsigned i = 0; status == LATHE_OK && i < set.input_count; i++)
        status = lathe_feeds_put_nth(q->checker.artifact, &feeds, i, &set.inputs[i], folder, diag);
    if (status == LATHE_OK)
        status = lathe_checker_run(&q->checker, &feeds, diag);
    if (status == LATHE_OK)
        status = compare_set(q, &set, &feeds, diag);
    q->sets++;
    lathe_feeds_free(&feeds);
    lathe_data_set_free(&set);
    return status;
}

static enum lathe_status verify_folder(struct request *q, const char *folder, struct lathe_diag *diag) {
    char **paths;
    unsigned count;
    LATHE_TRY(lathe_data_set_list(folder, &paths, &count, diag));
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < count; i++)
        status = verify_set(q, paths[i], diag);
    lathe_data_set_list_free(paths, count);
    return status;
}

/* ---- against the source model */

static enum lathe_status verify_trial(struct request *q, const struct lathe_reference *reference,
                                      const struct lathe_trial *trial, struct lathe_diag *diag) {
    const struct lathe_artifact *a = q->checker.artifact;
    struct lathe_feeds feeds = {0};
    struct lathe_answers want = {0};
    enum lathe_status status = lathe_trial_feeds(a, trial, &feeds, diag);
    if (status == LATHE_OK)
        status = lathe_reference_run(reference, &feeds, &want, diag);
    if (status == LATHE_OK)
        status = lathe_checker_run(&q->checker, &feeds, diag);
    for (unsigned i = 0; status == LATHE_OK && i < want.count; i++) {
        int index = lathe_artifact_find_output(a, want.at[i].name);
        if (index < 0)
            status = lathe_fail(diag, LATHE_MSG_DATA_NAME, "%s: output '%s' is none of the artifact's", q->model,
                                want.at[i].name);
        else
            status = compare_output(q, &feeds, trial->what, (unsigned)index, &want.at[i]);
    }
    q->sets++;
    lathe_feeds_free(&feeds);
    lathe_answers_free(&want);
    return status;
}

static enum lathe_status verify_model(struct request *q, struct lathe_diag *diag) {
    struct lathe_reference reference;
    struct lathe_trial trials[4];
    lathe_cli_progress("lathe: preparing the reference ...");
    LATHE_TRY(lathe_reference_open(q->model, &(struct lathe_reference_options){.external_dir = q->external_dir},
                                   &reference, diag));
    unsigned count = lathe_trials(q->checker.artifact, trials, 4);
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < count; i++)
        status = verify_trial(q, &reference, &trials[i], diag);
    lathe_reference_close(&reference);
    return status;
}

/* ---- the command */

static void bounds_text(const struct request *q, char *buffer, size_t size) {
    size_t n = 0;
    const struct lathe_bounds *b = &q->bounds;
    buffer[0] = 0;
    const char *source = q->defaults ? "default of --model" : "as given";
    if (b->has_tolerance)
        n += (size_t)snprintf(buffer, size, "atol %g + rtol %g", b->atol, b->rtol);
    if (b->has_cosine && n < size)
        n += (size_t)snprintf(buffer + n, size - n, "%scosine at least %g", n ? ", " : "", b->min_cosine);
    if (n < size)
        snprintf(buffer + n, size - n, n ? " (%s)" : "none given: only shapes, types and finiteness", source);
}

static enum lathe_status finish(struct request *q, struct lathe_diag *diag) {
    char bounds[160];
    bounds_text(q, bounds, sizeof bounds);
    enum lathe_status status;
    if (q->json) {
        json_t *o = json_pack("{sb, ss, si, sO}", "passed", q->failed == 0, "bounds", bounds, "data_sets", (int)q->sets,
                              "results", q->results);
        status = lathe_cli_print_json(o, diag);
    } else {
        lathe_text_append(&q->text, "%u data sets, %u failed comparisons; bounds: %s\n", q->sets, q->failed, bounds);
        status = lathe_cli_print(&q->text, diag);
    }
    if (status == LATHE_OK && q->failed)
        status = lathe_fail(diag, LATHE_MSG_VERIFY_FAILED, "%s", q->failure ? q->failure : "an output differs");
    return status;
}

static enum lathe_status check_arguments(struct request *q, struct lathe_diag *diag) {
    if (!q->model == !q->test_data.count)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe verify: give either --test-data DIR or --model MODEL.onnx");
    q->bounds.has_tolerance = q->has_atol || q->has_rtol;
    return LATHE_OK;
}

/* Against the source model without bounds: what compile asks of such an artifact. */
static void default_bounds(struct request *q, const struct lathe_artifact *a) {
    static const double least[] = {[LATHE_ROUNDS_PRODUCTS_TO_BF16] = LATHE_BF16_MIN_COSINE,
                                   [LATHE_ROUNDS_ALL_TO_BF16] = LATHE_CAST_MIN_COSINE,
                                   [LATHE_ROUNDS_TO_8_BITS] = LATHE_INT8_MIN_COSINE};
    enum lathe_rounding rounding = lathe_artifact_rounding(a);
    if (!q->model || q->bounds.has_tolerance || q->bounds.has_cosine)
        return;
    q->defaults = true;
    if (rounding == LATHE_ROUNDS_NOTHING) {
        q->bounds.has_tolerance = true;
        q->bounds.atol = LATHE_VERIFY_ATOL;
        q->bounds.rtol = LATHE_VERIFY_RTOL;
    } else {
        q->bounds.has_cosine = true;
        q->bounds.min_cosine = least[rounding];
    }
}

static enum lathe_status verify(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    struct lathe_session_options options;
    struct lathe_model model;
    LATHE_TRY(check_arguments(q, diag));
    LATHE_TRY(lathe_session_args_apply(&q->session, &options, diag));
    LATHE_TRY(lathe_model_open(q->args.at[0], NULL, &model, diag));
    struct lathe_artifact *a = model.artifact;
    default_bounds(q, a);
    enum lathe_status status = lathe_checker_open(a, &options, &q->checker, diag);
    if (status == LATHE_OK && q->model)
        status = verify_model(q, diag);
    for (unsigned i = 0; status == LATHE_OK && i < q->test_data.count; i++)
        status = verify_folder(q, q->test_data.at[i], diag);
    if (status == LATHE_OK)
        status = finish(q, diag);
    lathe_checker_close(&q->checker);
    lathe_model_close(&model);
    return status;
}

int lathe_cmd_verify(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "test-data",
         .kind = LATHE_OPTION_WORDS,
         .into = &q.test_data,
         .value = "DIR",
         .help = "a data set (input_N.pb, output_N.pb) or a folder of them; repeatable"},
        {.name = "model",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.model,
         .value = "MODEL.onnx",
         .help = "the source, run without rewrites on made-up inputs"},
        {.name = "atol",
         .kind = LATHE_OPTION_REAL,
         .into = &q.bounds.atol,
         .value = "A",
         .given = &q.has_atol,
         .help = "bound: |got - expected| <= atol + rtol |expected|"},
        {.name = "rtol",
         .kind = LATHE_OPTION_REAL,
         .into = &q.bounds.rtol,
         .value = "R",
         .given = &q.has_rtol,
         .help = "the other part of that bound; one that is missing is 0"},
        {.name = "min-cosine",
         .kind = LATHE_OPTION_REAL,
         .into = &q.bounds.min_cosine,
         .value = "C",
         .given = &q.bounds.has_cosine,
         .help = "bound: cosine of each whole output"},
        {.name = "padded-rows",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.padded_rows,
         .help = "compare token rows at mask 0 too (for artifacts compiled with --keep-padding)"},
        {.name = "external-dir",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.external_dir,
         .value = "DIR",
         .help = "another folder that external data of --model may lie in"},
        LATHE_THREADS_OPTION(q.session),
        LATHE_CPUMASK_OPTION(q.session),
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {
        .command = "verify",
        .arguments = "MODEL.lathe --test-data DIR... | --model MODEL.onnx [options]",
        .summary = "an artifact against test data or its source model",
        .details =
            "Each output must have the expected shape and type, be finite, and keep the bounds that are given (with\n"
            "--model by default those of compile: 1e-4, or the least cosine of a rounded precision). "
            "Every set is\n"
            "run twice over differently filled memory; the two must agree in every bit.\n",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .min_args = 1,
        .max_args = 1};
    q.results = json_array();
    int exit = lathe_cli_run(&syntax, argc, argv, &q.args, verify, &q);
    json_decref(q.results);
    free(q.failure);
    lathe_text_free(&q.text);
    return exit;
}
