/* Compiles and runs many models in one process: fused as `lathe compile` would, and unfused on the plain C operators.
 *
 *     run_models < LIST
 *
 * Each line of LIST is "MODEL INPUTS... OUT [keep]": an ONNX file, bundles of inputs (one a run), the bundle to write,
 * and whether padding is kept. For each line one line is written: "ok MODEL kind=count ...", or "refused MODEL why" for
 * LATHE_UNSUPPORTED, or "fail MODEL stage: why". The bundle has for each run the fused outputs and then the unfused
 * ones.
 *
 * A bundle, all numbers little-endian: u32 tensors; for each u32 length of the name, name, u32 ONNX type, u32 flags (1:
 * one row a token), u32 rank, i64 dims, the elements. */
#include "reference.h"
#include "report.h"
#include "report_data.h"
#include "stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 8 };

static struct lathe_diag diag;

/* ---- bundles */

static uint32_t take_u32(const uint8_t **at) {
    uint32_t v;
    memcpy(&v, *at, 4);
    *at += 4;
    return v;
}

/* Written by the test itself, so sizes are not checked. */
static enum lathe_status read_feeds(const char *path, const struct lathe_artifact *a, struct lathe_feeds *feeds) {
    void *bytes;
    size_t size;
    LATHE_TRY(lathe_feeds_new(a, feeds, &diag));
    LATHE_TRY(lathe_read_file(path, &bytes, &size, &diag));
    const uint8_t *at = bytes;
    enum lathe_status status = LATHE_OK;
    for (uint32_t left = take_u32(&at); left && status == LATHE_OK; left--) {
        char name[256] = "";
        int64_t dims[LATHE_MAX_RANK];
        uint32_t length = take_u32(&at);
        memcpy(name, at, length);
        at += length;
        enum lathe_dtype dtype = (enum lathe_dtype)take_u32(&at);
        take_u32(&at);
        uint32_t rank = take_u32(&at);
        memcpy(dims, at, rank * sizeof *dims);
        at += rank * sizeof *dims;
        struct lathe_data_tensor t = {0};
        status = lathe_data_tensor_make(&t, name, dtype, rank, dims, path, &diag);
        if (status != LATHE_OK)
            break;
        memcpy(t.data, at, t.bytes);
        at += t.bytes;
        status = lathe_feeds_put(a, feeds, name, &t, path, &diag);
        lathe_data_tensor_free(&t);
    }
    free(bytes);
    return status;
}

static void put_u32(FILE *f, uint32_t v) {
    fwrite(&v, 4, 1, f);
}

static void write_answers(FILE *f, const struct lathe_artifact *a, const struct lathe_answers *answers) {
    put_u32(f, answers->count);
    for (unsigned i = 0; i < answers->count; i++) {
        const struct lathe_data_tensor *t = &answers->at[i];
        put_u32(f, (uint32_t)strlen(t->name));
        fwrite(t->name, 1, strlen(t->name), f);
        put_u32(f, (uint32_t)t->dtype);
        put_u32(f, lathe_artifact_output(a, i)->per_token);
        put_u32(f, t->rank);
        fwrite(t->dims, sizeof *t->dims, t->rank, f);
        fwrite(t->data, 1, t->bytes, f);
    }
}

/* ---- one model */

struct job {
    const char *model, *inputs[MOST_RUNS], *out;
    unsigned runs;
    bool keep_padding;
    unsigned threads;
    const char *stage; /* for the line of a failure */
    void *bytes;
    struct lathe_artifact *artifact;
    struct lathe_reference reference;
    struct lathe_report *report;
};

static enum lathe_status build(struct job *j) {
    struct lathe_target target;
    struct lathe_model_file *file = NULL;
    struct lathe_graph *graph = NULL;
    struct lathe_import_options import = {.report = j->report};
    struct lathe_pipeline_options pipeline = {.check = true, .pass = {.keep_padding = j->keep_padding}};
    struct lathe_emit_options emit = {.target = &target, .source_sha256 = ""};
    size_t size = 0;
    j->stage = "import";
    LATHE_TRY(lathe_target_load("native", &target, &diag));
    LATHE_TRY(lathe_import_onnx(j->model, &import, &file, &graph, &diag));
    j->stage = "passes";
    enum lathe_status status = lathe_pipeline_run(graph, &target, &pipeline, j->report, &diag);
    if (status == LATHE_OK) {
        j->stage = "emit";
        status = lathe_emit_memory(graph, &emit, &j->bytes, &size, j->report, &diag);
    }
    lathe_graph_free(&graph);
    lathe_model_file_close(&file);
    if (status == LATHE_OK)
        status = lathe_artifact_open_memory(j->bytes, size, NULL, &j->artifact, &diag);
    return status;
}

static enum lathe_status run_fused(struct job *j, const struct lathe_feeds *feeds, FILE *f) {
    const struct lathe_session_options options = {.threads = j->threads, .always_share = true};
    struct lathe_checker checker;
    struct lathe_answers answers = {0};
    LATHE_TRY(lathe_checker_open(j->artifact, &options, &checker, &diag));
    enum lathe_status status = lathe_checker_run(&checker, feeds, &diag);
    if (status == LATHE_OK)
        status = lathe_answers_copy(j->artifact, checker.sessions[0], &answers, &diag);
    if (status == LATHE_OK)
        write_answers(f, j->artifact, &answers);
    lathe_answers_free(&answers);
    lathe_checker_close(&checker);
    return status;
}

static enum lathe_status run_all(struct job *j, FILE *f) {
    for (unsigned i = 0; i < j->runs; i++) {
        struct lathe_feeds feeds = {0};
        struct lathe_answers answers = {0};
        j->stage = "inputs";
        enum lathe_status status = read_feeds(j->inputs[i], j->artifact, &feeds);
        if (status == LATHE_OK) {
            j->stage = "fused run";
            status = run_fused(j, &feeds, f);
        }
        if (status == LATHE_OK) {
            j->stage = "unfused run";
            status = lathe_reference_run(&j->reference, &feeds, &answers, &diag);
        }
        if (status == LATHE_OK)
            write_answers(f, j->reference.artifact, &answers);
        lathe_answers_free(&answers);
        lathe_feeds_free(&feeds);
        LATHE_TRY(status);
    }
    return LATHE_OK;
}

static void finish(struct job *j, enum lathe_status status) {
    printf("%s %s", status == LATHE_OK ? "ok" : status == LATHE_UNSUPPORTED ? "refused" : "fail", j->model);
    if (status != LATHE_OK)
        printf(" %s: %s", j->stage, diag.text);
    for (unsigned i = 0; status == LATHE_OK && i < j->report->fusions.count; i++)
        printf(" %s=%u", j->report->fusions.at[i].name, j->report->fusions.at[i].count);
    for (unsigned i = 0; status == LATHE_OK && i < j->report->warnings.count; i++)
        printf(" warning:%s=1", j->report->warnings.at[i].code);
    printf("\n");
    fflush(stdout);
}

static void run_job(struct job *j) {
    lathe_diag_reset(&diag);
    j->report = lathe_report_new();
    enum lathe_status status = build(j);
    if (status == LATHE_OK) {
        j->stage = "unfused graph";
        status = lathe_reference_open(j->model, &(struct lathe_reference_options){0}, &j->reference, &diag);
    }
    if (status == LATHE_OK) {
        FILE *f = fopen(j->out, "wb");
        status = f ? run_all(j, f) : lathe_fail(&diag, LATHE_MSG_OUTPUT_FILE, "%s: cannot be written", j->out);
        if (f)
            fclose(f);
    }
    finish(j, status);
    lathe_reference_close(&j->reference);
    lathe_artifact_close(&j->artifact);
    free(j->bytes);
    lathe_report_free(&j->report);
}

int main(void) {
    static char line[16384];
    unsigned lines = 0;
    while (fgets(line, sizeof line, stdin)) {
        struct job j = {.threads = ++lines % 4 ? 1 : 2};
        char *words[MOST_RUNS + 3], *rest = NULL;
        unsigned count = 0;
        for (char *w = strtok_r(line, " \n", &rest); w && count < MOST_RUNS + 3; w = strtok_r(NULL, " \n", &rest))
            words[count++] = w;
        if (count && !strcmp(words[count - 1], "keep")) {
            j.keep_padding = true;
            count--;
        }
        if (count < 3)
            return 2;
        j.model = words[0];
        j.out = words[count - 1];
        for (unsigned i = 1; i + 1 < count; i++)
            j.inputs[j.runs++] = words[i];
        run_job(&j);
    }
    return 0;
}
