/* The report as text: what a person wants to see after a compile. */
#include "printable.h"
#include "report_data.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LABEL 14 /* width of the left column */

static void label(struct lathe_text *out, const char *text) {
    lathe_append_column(out, text, LABEL);
    if (lathe_text_width(text) >= LABEL) /* a note with a longer key */
        lathe_text_append(out, "  ");
}

/* "label         value" with the value made printable. */
static void line(struct lathe_text *out, const char *name, const char *value) {
    label(out, name);
    lathe_append_printable(out, value);
    lathe_text_append(out, "\n");
}

static void source(const struct lathe_report *r, struct lathe_text *out) {
    label(out, "source");
    lathe_append_printable(out, r->source.name);
    lathe_text_append(out, ", ");
    lathe_append_bytes(out, r->source.bytes);
    if (r->source.sha256[0])
        lathe_text_append(out, ", sha256 %.16s", r->source.sha256);
    lathe_text_append(out, "\n");
    label(out, "");
    lathe_append_printable(out, r->source.opsets);
    lathe_text_append(out, ", IR %u", r->source.ir_version);
    if (r->source.producer[0]) {
        lathe_text_append(out, ", by ");
        lathe_append_printable(out, r->source.producer);
    }
    lathe_text_append(out, "\n");
}

static void target(const struct lathe_report *r, struct lathe_text *out) {
    label(out, "target");
    lathe_append_printable(out, r->target.name);
    lathe_text_append(out, ", %s", r->target.precision);
    if (r->target.features[0])
        lathe_text_append(out, ", %s", r->target.features);
    lathe_text_append(out, "\n");
}

static void shapes(const struct lathe_report *r, struct lathe_text *out) {
    size_t width = 0;
    for (unsigned i = 0; i < r->shapes.count; i++) {
        size_t w = lathe_text_width(r->shapes.at[i].name);
        width = w > width && w <= 40 ? w : width;
    }
    const char *before = "";
    for (unsigned i = 0; i < r->shapes.count; i++) {
        const struct lathe_report_port *p = &r->shapes.at[i];
        label(out, strcmp(p->role, before) ? p->role : "");
        before = p->role;
        lathe_append_column(out, p->name, width);
        lathe_text_append(out, "  ");
        bool port = p->dtype[0] != 0;
        lathe_append_printable(out, p->dtype);
        lathe_text_append(out, port ? "[" : "");
        lathe_append_printable(out, p->dims);
        lathe_text_append(out, port ? "]\n" : "\n");
    }
}

static void fusions(const struct lathe_report *r, struct lathe_text *out) {
    label(out, "fusions");
    unsigned shown = 0;
    for (unsigned i = 0; i < r->fusions.count; i++) {
        if (!r->fusions.at[i].count)
            continue;
        lathe_text_append(out, "%s%s %u", shown++ ? ", " : "", r->fusions.at[i].name, r->fusions.at[i].count);
    }
    lathe_text_append(out, shown ? "\n" : "none\n");
}

static void missed(const struct lathe_report *r, unsigned most, struct lathe_text *out) {
    for (unsigned i = 0; i < r->missed.count; i++) {
        if (i == most) {
            label(out, i ? "" : "near misses");
            lathe_text_append(out, "%u more (--explain lists them)\n", r->missed.count - i);
            return;
        }
        const struct lathe_report_miss *m = &r->missed.at[i];
        label(out, i ? "" : "near misses");
        lathe_append_printable(out, m->pattern);
        lathe_text_append(out, " at ");
        lathe_append_printable(out, m->node);
        lathe_text_append(out, ": ");
        lathe_append_printable(out, m->reason);
        lathe_text_append(out, "\n");
    }
}

static void warnings(const struct lathe_report *r, struct lathe_text *out) {
    for (unsigned i = 0; i < r->warnings.count; i++) {
        const struct lathe_report_alert *w = &r->warnings.at[i];
        label(out, i ? "" : "warnings");
        lathe_append_printable(out, w->code);
        if (w->node[0]) {
            lathe_text_append(out, " at ");
            lathe_append_printable(out, w->node);
        }
        lathe_text_append(out, ": ");
        lathe_append_printable(out, w->text);
        lathe_text_append(out, "\n");
    }
}

static void quantization(const struct lathe_report *r, struct lathe_text *out) {
    for (unsigned i = 0; i < r->quantization.count; i++) {
        const struct lathe_report_layer *q = &r->quantization.at[i];
        label(out, i ? "" : "layers");
        lathe_append_printable(out, q->layer);
        lathe_text_append(out, ": %s", q->scheme);
        if (isfinite(q->error))
            lathe_text_append(out, ", error %.3g", q->error);
        if (!q->kept)
            lathe_text_append(out, ", kept in higher precision");
        if (q->has_stored)
            lathe_text_append(out, ", %d to %d, %lld of %lld saturated", q->stored.min, q->stored.max,
                              (long long)q->stored.saturated, (long long)q->stored.count);
        if (q->why[0]) {
            lathe_text_append(out, " (");
            lathe_append_printable(out, q->why);
            lathe_text_append(out, ")");
        }
        lathe_text_append(out, "\n");
    }
}

static void casts(const struct lathe_report *r, struct lathe_text *out) {
    unsigned counts[3] = {0};
    if (!r->casts.count)
        return;
    for (unsigned i = 0; i < r->casts.count; i++)
        counts[*r->casts.at[i].kind == 'p' ? 0 : *r->casts.at[i].kind == 't' ? 1 : 2]++;
    label(out, "casts");
    lathe_text_append(out, "%s: %u products", r->cast_policy ? r->cast_policy : "none", counts[0]);
    if (counts[1] || counts[2])
        lathe_text_append(out, ", %u tensors and %u constants", counts[1], counts[2]);
    lathe_text_append(out, " in bf16\n");
}

static void fallback(const struct lathe_report *r, struct lathe_text *out) {
    unsigned count = r->fallback.at_host.count;
    if (!r->fallback.steps)
        return;
    label(out, "fallback");
    lathe_text_append(out,
                      count ? "%u of %u steps stay on the host: " : "none: all steps are of operators of the target\n",
                      count, r->fallback.steps);
    for (unsigned i = 0, same; i < count; i += same) {
        const struct lathe_report_host_step *s = &r->fallback.at_host.at[i];
        for (same = 1; i + same < count && !strcmp(s[same].op, s->op);)
            same++;
        lathe_text_append(out, "%s%u %s%s", i ? ", " : "", same, s->op, i + same < count ? "" : "\n");
    }
}

static void memory(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->memory.weights && !r->memory.arena)
        return;
    label(out, "memory");
    lathe_text_append(out, "weights ");
    lathe_append_bytes(out, r->memory.weights);
    lathe_text_append(out, ", arena at the maxima ");
    lathe_append_bytes(out, r->memory.arena);
    if (r->memory.alive)
        lathe_text_append(out, " (%.2f x the bytes alive at once)", (double)r->memory.arena / (double)r->memory.alive);
    if (r->memory.artifact) {
        lathe_text_append(out, ", artifact ");
        lathe_append_bytes(out, r->memory.artifact);
    }
    lathe_text_append(out, "\n");
}

static void steps(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->steps.count)
        return;
    unsigned total = 0;
    for (unsigned i = 0; i < r->steps.count; i++)
        total += r->steps.at[i].count;
    label(out, "steps");
    lathe_text_append(out, "%u: ", total);
    for (unsigned i = 0; i < r->steps.count; i++) {
        const struct lathe_report_op *s = &r->steps.at[i];
        lathe_text_append(out, "%s%u %s", i ? ", " : "", s->count, s->op);
        if (s->share >= 0.0005)
            lathe_text_append(out, " (%.1f %%)", 100 * s->share);
    }
    lathe_text_append(out, "\n");
}

/* A line for each number of threads: "2 threads: 8 tokens 0.512 ms, ... (estimated with the figures of znver5)" */
static void cost(const struct lathe_report *r, struct lathe_text *out) {
    unsigned threads = 0;
    for (unsigned i = 0; i < r->cost.count; i++) {
        const struct lathe_cost_prediction *p = &r->cost.at[i];
        if (p->threads != threads) {
            if (i)
                lathe_text_append(out, " ms\n");
            label(out, i ? "" : "predicted");
            lathe_text_append(out, "%u thread%s%s: ", p->threads, p->threads == 1 ? "" : "s",
                              p->length > 0 ? ", by tokens" : "");
        } else {
            lathe_text_append(out, ", ");
        }
        threads = p->threads;
        if (p->length > 0)
            lathe_text_append(out, "%lld: ", (long long)p->length);
        lathe_text_append(out, "%.3g", p->ms);
    }
    if (!r->cost.count)
        return;
    lathe_text_append(out, " ms\n");
    label(out, "");
    lathe_text_append(out, "estimated from the figures of ");
    lathe_append_printable(out, lathe_report_cost_from(r));
    lathe_text_append(out, ", batch %lld\n", (long long)r->cost.at[0].batch);
}

static void placement(const struct lathe_report *r, struct lathe_text *out) {
    bool pipeline = r->placement.placement == LATHE_PLACEMENT_PIPELINE;
    if (!r->placement.count)
        return;
    label(out, "placement");
    lathe_text_append(out, "%s on ", lathe_placement_name(r->placement.placement));
    if (r->placement.cores)
        lathe_text_append(out, "%u core%s", r->placement.cores, r->placement.cores == 1 ? "" : "s");
    else
        lathe_text_append(out, "all cores");
    if (pipeline)
        lathe_text_append(out, ", slowest stage %.1f %% over the mean",
                          100 * lathe_stages_imbalance(r->placement.stages, r->placement.count));
    lathe_text_append(out, "\n");
    for (unsigned i = 0; i < r->placement.count; i++) {
        const struct lathe_stage *s = &r->placement.stages[i];
        label(out, "");
        if (pipeline)
            lathe_text_append(out, "core %u: steps %u to %u, ", i, s->first, s->end);
        else
            lathe_text_append(out, "each: ");
        lathe_text_append(out, "weights ");
        lathe_append_bytes(out, s->weight_bytes);
        lathe_text_append(out, ", activations ");
        lathe_append_bytes(out, s->activation_bytes);
        if (!lathe_report_stage_fits(r, s)) {
            lathe_text_append(out, ": does not fit the core's ");
            lathe_append_bytes(out, r->placement.core_memory);
        }
        lathe_text_append(out, "\n");
    }
}

static void savings(const struct lathe_report *r, struct lathe_text *out) {
    const struct lathe_cost_savings *s = &r->savings;
    if (!s->length)
        return;
    label(out, "not computed");
    lathe_text_append(out, "of the multiply-adds at %lld tokens: %.1f %% for rows nobody reads", (long long)s->length,
                      100 * s->trimmed);
    if (s->absorbed != 0)
        lathe_text_append(out, ", %.1f %% for keys and values of one query", 100 * s->absorbed);
    lathe_text_append(out, "; ");
    if (s->packs)
        lathe_text_append(out, "in a batch with 25 %% padding %.1f %%, with 50 %% %.1f %%\n", 100 * s->packed[0],
                          100 * s->packed[1]);
    else
        lathe_text_append(out, "padding is computed\n");
}

/* Passes that changed something, and the time of all. */
static void passes(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->passes.count)
        return;
    double ms = 0;
    unsigned shown = 0;
    label(out, "passes");
    for (unsigned i = 0; i < r->passes.count; i++) {
        const struct lathe_report_pass_row *p = &r->passes.at[i];
        ms += p->ms;
        if (p->changes)
            lathe_text_append(out, "%s%s %u", shown++ ? ", " : "", p->name, p->changes);
    }
    lathe_text_append(out, "%snodes %u -> %u in %.0f ms\n", shown ? "; " : "", r->passes.at[0].before,
                      r->passes.at[r->passes.count - 1].after, ms);
}

static void checks(const struct lathe_report *r, struct lathe_text *out) {
    for (unsigned i = 0; i < r->checks.count; i++) {
        const struct lathe_report_check *c = &r->checks.at[i];
        label(out, i ? "" : "verification");
        lathe_text_append(out, "%s: ", c->c.passed ? "passed" : "FAILED");
        lathe_append_printable(out, c->what);
        lathe_text_append(out, ", largest error %.3g, bound %.3g\n", c->c.max_error, c->c.bound);
    }
    for (unsigned i = 0; i < r->skipped.count; i++) {
        label(out, i || r->checks.count ? "" : "verification");
        lathe_text_append(out, "not compared: ");
        lathe_append_printable(out, r->skipped.at[i].key);
        lathe_text_append(out, ": ");
        lathe_append_printable(out, r->skipped.at[i].value);
        lathe_text_append(out, "\n");
    }
}

void lathe_report_text(const struct lathe_report *r, struct lathe_text *out) {
    lathe_report_summary(r, UINT32_MAX, out);
}

void lathe_report_summary(const struct lathe_report *r, unsigned misses, struct lathe_text *out) {
    source(r, out);
    target(r, out);
    shapes(r, out);
    fusions(r, out);
    missed(r, misses, out);
    warnings(r, out);
    quantization(r, out);
    casts(r, out);
    fallback(r, out);
    passes(r, out);
    steps(r, out);
    memory(r, out);
    savings(r, out);
    cost(r, out);
    placement(r, out);
    checks(r, out);
    for (unsigned i = 0; i < r->notes.count; i++)
        line(out, r->notes.at[i].key, r->notes.at[i].value);
    if (r->failed)
        out->failed = true;
}
