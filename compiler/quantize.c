#include "quantize.h"
#include "calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quantizing {
    struct lathe_graph *g;
    const struct lathe_quantize_request *request;
    struct lathe_report *report;
    struct lathe_diag *diag;
    struct lathe_pipeline_options pipeline;
    struct lathe_quantize_options options;
    struct lathe_quantize_log log;
    struct lathe_calibration calibration;
    struct lathe_calibration_runs runs;
    struct lathe_argmax argmax; /* of the last comparison */
};

static enum lathe_status cosine_now(struct quantizing *q, double *cosine) {
    return lathe_calibration_cosine(q->g, q->request->target, &q->runs, cosine, &q->argmax, q->diag);
}

static void report_cosine(struct quantizing *q, double cosine, double bound) {
    char text[320];
    snprintf(text, sizeof text,
             "cosine with f32 over the calibration (%.150s): %.6f, at least %g; arg-max differs in %lld of %lld rows",
             q->calibration.source, cosine, bound, (long long)q->argmax.flips, (long long)q->argmax.rows);
    if (q->report)
        lathe_report_note(q->report, "quantization", text);
}

/* ---- int8: what can be in 8 bits is */

static enum lathe_status quantize_all(struct quantizing *q) {
    double cosine;
    LATHE_TRY(lathe_pipeline_quantize(q->g, q->request->target, &q->pipeline, q->report, q->diag));
    if (q->request->min_cosine <= 0)
        return LATHE_OK;
    LATHE_TRY(cosine_now(q, &cosine));
    report_cosine(q, cosine, q->request->min_cosine);
    if (cosine >= q->request->min_cosine)
        return LATHE_OK;
    return lathe_fail(q->diag, LATHE_MSG_VERIFY_FAILED,
                      "int8: cosine %.6f with f32 over the calibration (%s), at least %g asked (--precision auto keeps "
                      "the worst layers in f32)",
                      cosine, q->calibration.source, q->request->min_cosine);
}

/* ---- auto: as many as the accuracy allows */

static int by_error(const void *a, const void *b) {
    const struct lathe_quantized_layer *x = *(struct lathe_quantized_layer *const *)a;
    const struct lathe_quantized_layer *y = *(struct lathe_quantized_layer *const *)b;
    if (x->error != y->error)
        return x->error > y->error ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

/* The `count` worst layers stay in f32, and so does attention, whose error no layer tells. */
static enum lathe_status exclude_worst(struct quantizing *q, struct lathe_quantized_layer **sorted, uint32_t count,
                                       double cosine) {
    char *why = lathe_arena_format(q->g->arena, "among the worst layers: with all in 8 bits the model's cosine is %.6f",
                                   cosine);
    if (!why)
        return lathe_fail(q->diag, LATHE_MSG_NO_MEMORY, "quantizing: out of memory");
    for (uint32_t i = 0; i < count; i++)
        sorted[i]->excluded = why;
    q->options.attention_excluded = why;
    return LATHE_OK;
}

/* Tries with no layer left out, then an eighth of the candidates, two eighths, a half, and all. */
static enum lathe_status choose(struct quantizing *q, const struct lathe_graph_snapshot *before, double bound) {
    static const unsigned eighths[] = {0, 1, 2, 4, 8};
    struct lathe_quantized_layer **sorted = NULL;
    uint32_t candidates = 0;
    double cosine = 1, all = 1;
    enum lathe_status status = LATHE_OK;
    for (size_t t = 0; status == LATHE_OK && t < sizeof eighths / sizeof *eighths; t++) {
        if (t > 0) {
            uint32_t count = (candidates * eighths[t] + 7) / 8;
            status = lathe_graph_snapshot_restore(q->g, before)
                         ? exclude_worst(q, sorted, count, all)
                         : lathe_fail(q->diag, LATHE_MSG_NO_MEMORY, "quantizing: out of memory");
        }
        if (status == LATHE_OK)
            status = lathe_pipeline_quantize(q->g, q->request->target, &q->pipeline, NULL, q->diag);
        if (t == 0 && status == LATHE_OK) {
            sorted = calloc((size_t)q->log.layer_count + 1, sizeof(struct lathe_quantized_layer *));
            for (uint32_t i = 0; sorted && i < q->log.layer_count; i++)
                if (q->log.layers[i].candidate)
                    sorted[candidates++] = &q->log.layers[i];
            if (sorted)
                qsort(sorted, candidates, sizeof *sorted, by_error);
            else
                status = lathe_fail(q->diag, LATHE_MSG_NO_MEMORY, "quantizing: out of memory");
        }
        if (status == LATHE_OK)
            status = cosine_now(q, &cosine);
        all = t == 0 ? cosine : all;
        if (cosine >= bound)
            break;
    }
    free(sorted);
    if (status == LATHE_OK)
        report_cosine(q, cosine, bound);
    return status;
}

static enum lathe_status quantize_some(struct quantizing *q) {
    double bound = q->request->min_cosine > 0 ? q->request->min_cosine : LATHE_AUTO_MIN_COSINE;
    struct lathe_graph_snapshot *before = lathe_graph_snapshot_take(q->g);
    if (!before)
        return lathe_fail(q->diag, LATHE_MSG_NO_MEMORY, "quantizing: out of memory");
    enum lathe_status status = choose(q, before, bound);
    if (status == LATHE_OK && !lathe_graph_snapshot_restore(q->g, before))
        status = lathe_fail(q->diag, LATHE_MSG_NO_MEMORY, "quantizing: out of memory");
    lathe_graph_snapshot_free(&before);
    if (status == LATHE_OK) /* once more, for the report */
        status = lathe_pipeline_quantize(q->g, q->request->target, &q->pipeline, q->report, q->diag);
    return status;
}

enum lathe_status lathe_quantize(struct lathe_graph *g, const struct lathe_quantize_request *request,
                                 struct lathe_report *report, struct lathe_diag *diag) {
    struct quantizing q = {.g = g, .request = request, .report = report, .diag = diag, .pipeline = *request->pipeline};
    struct lathe_calibrate_options calibrate = {
        .target = request->target, .data = request->calibrate, .jobs = request->jobs};
    q.options = (struct lathe_quantize_options){.calibration = &q.calibration,
                                                .budget = request->automatic ? LATHE_AUTO_ERROR_BUDGET : 0,
                                                .jobs = request->jobs,
                                                .log = &q.log};
    q.pipeline.pass.quantize = &q.options;
    enum lathe_status status = lathe_calibrate(g, &calibrate, &q.calibration, &q.runs, diag);
    if (status == LATHE_OK && report)
        lathe_report_note(report, "calibration", q.calibration.source);
    if (status == LATHE_OK)
        status = request->automatic ? quantize_some(&q) : quantize_all(&q);
    lathe_calibration_free(&q.calibration);
    lathe_calibration_runs_free(&q.runs);
    return status;
}
