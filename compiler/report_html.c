/* The report as one HTML page: no scripts, nothing fetched, light and dark by the reader's preference. */
#include "lathe.h"
#include "printable.h"
#include "report_data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char head[] = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                           "<meta name=\"color-scheme\" content=\"light dark\">\n";

static const char style[] =
    "<style>\n"
    ":root{--bg:#f7f8fa;--card:#fff;--ink:#1c2430;--soft:#5b6675;--line:#e1e5ea;--accent:#2563a8;--good:#1a7f4b;"
    "--bad:#b3261e;--warn:#8a5a00;--bar:#a9c7e8}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2028;--ink:#e4e9f0;--soft:#97a3b3;--line:#2c3541;"
    "--accent:#7db4ee;--good:#5cc98d;--bad:#ff8a80;--warn:#e8b84b;--bar:#2f5680}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}\n"
    "h1{font-size:26px;margin:0 0 2px;overflow-wrap:anywhere}\n"
    "h2{font-size:17px;margin:30px 0 8px}\n"
    ".sub{color:var(--soft);overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:20px 0 0}\n"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}\n"
    ".tile b{display:block;font-size:21px;font-variant-numeric:tabular-nums}\n"
    ".tile span{color:var(--soft);font-size:13px}\n"
    ".wrap{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px}\n"
    "th{text-align:left;color:var(--soft);font-weight:600;white-space:nowrap}\n"
    "th,td{padding:6px 14px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}\n"
    "tr:last-child td{border-bottom:0}\n"
    ".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".m{font-family:ui-monospace,monospace;font-size:13px}\n"
    ".k{white-space:nowrap}\n"
    ".w{min-width:160px;overflow-wrap:break-word}\n"
    "td.m{min-width:150px}\n"
    ".bar{min-width:120px;width:30%}\n"
    ".bar i{display:block;height:12px;margin-top:5px;border-radius:3px;background:var(--bar)}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.none{color:var(--soft);margin:0}\n"
    "</style>\n";

static void escaped(struct lathe_text *out, const char *text) {
    struct lathe_text shown = {0};
    lathe_append_printable(&shown, text);
    if (shown.failed)
        out->failed = true;
    for (const char *p = shown.data; p && *p; p++)
        switch (*p) {
        case '&':
            lathe_text_append(out, "&amp;");
            break;
        case '<':
            lathe_text_append(out, "&lt;");
            break;
        case '>':
            lathe_text_append(out, "&gt;");
            break;
        case '"':
            lathe_text_append(out, "&quot;");
            break;
        default:
            lathe_text_append_bytes(out, p, 1);
        }
    lathe_text_free(&shown);
}

static void cell(struct lathe_text *out, const char *kind, const char *text) {
    lathe_text_append(out, "<td class=\"%s\">", kind);
    escaped(out, text);
    lathe_text_append(out, "</td>");
}

static void count_cell(struct lathe_text *out, uint64_t n) {
    lathe_text_append(out, "<td class=\"n\">%llu</td>", (unsigned long long)n);
}

static void bar_cell(struct lathe_text *out, double share) {
    lathe_text_append(out, "<td class=\"bar\"><i style=\"width:%.1f%%\"></i></td>",
                      100 * (share < 0   ? 0
                             : share > 1 ? 1
                                         : share));
}

/* A section: heading, table and its header row from "Name|#Count|Bar" ('#': numbers, on the right). */
static void open_table(struct lathe_text *out, const char *title, const char *columns) {
    lathe_text_append(out, "<h2>%s</h2>\n<div class=\"wrap\"><table><thead><tr>", title);
    while (*columns) {
        size_t n = strcspn(columns, "|");
        bool number = *columns == '#';
        lathe_text_append(out, "<th%s>%.*s</th>", number ? " class=\"n\"" : "", (int)n - number, columns + number);
        columns += n + (columns[n] == '|');
        if (n && !*columns && columns[-1] == '|') /* a column without a heading */
            lathe_text_append(out, "<th></th>");
    }
    lathe_text_append(out, "</tr></thead><tbody>\n");
}
static void close_table(struct lathe_text *out) {
    lathe_text_append(out, "</tbody></table></div>\n");
}

static void none(struct lathe_text *out, const char *title, const char *text) {
    lathe_text_append(out, "<h2>%s</h2>\n<p class=\"none\">%s</p>\n", title, text);
}

static void tile(struct lathe_text *out, const char *value, const char *kind, const char *name) {
    lathe_text_append(out, "<div class=\"tile\"><b class=\"%s\">", kind);
    escaped(out, value);
    lathe_text_append(out, "</b><span>%s</span></div>\n", name);
}

static void size_tile(struct lathe_text *out, uint64_t bytes, const char *name) {
    struct lathe_text size = {0};
    lathe_append_bytes(&size, bytes);
    tile(out, size.data ? size.data : "", "", name);
    lathe_text_free(&size);
}

static void count_tile(struct lathe_text *out, unsigned count, const char *kind, const char *name) {
    char text[16];
    snprintf(text, sizeof text, "%u", count);
    tile(out, text, kind, name);
}

static void header(const struct lathe_report *r, struct lathe_text *out) {
    lathe_text_append(out, "%s<title>", head);
    escaped(out, r->source.name);
    lathe_text_append(out, " - lathe report</title>\n%s</head><body><main>\n<h1>", style);
    escaped(out, r->source.name);
    lathe_text_append(out, "</h1>\n<div class=\"sub\">compiled by lathe %s for ", LATHE_VERSION);
    escaped(out, r->target.name);
    lathe_text_append(out, ", %s", r->target.precision);
    if (r->target.features[0]) {
        lathe_text_append(out, " (");
        escaped(out, r->target.features);
        lathe_text_append(out, ")");
    }
    lathe_text_append(out, "</div>\n<div class=\"sub\">");
    escaped(out, r->source.opsets);
    lathe_text_append(out, ", IR %u", r->source.ir_version);
    if (r->source.producer[0]) {
        lathe_text_append(out, ", by ");
        escaped(out, r->source.producer);
    }
    lathe_text_append(out, "</div>\n<div class=\"sub m\">sha256 ");
    escaped(out, r->source.sha256);
    lathe_text_append(out, "</div>\n");
}

static void tiles(const struct lathe_report *r, struct lathe_text *out) {
    bool passed = true;
    for (unsigned i = 0; i < r->checks.count; i++)
        passed &= r->checks.at[i].c.passed;
    lathe_text_append(out, "<div class=\"tiles\">\n");
    tile(out,
         !r->checks.count ? "not run"
         : passed         ? "passed"
                          : "failed",
         !r->checks.count ? ""
         : passed         ? "good"
                          : "bad",
         "verification");
    count_tile(out, lathe_report_fusion_count(r, "attention"), "", "attentions");
    count_tile(out, lathe_report_fusion_count(r, "layernorm"), "", "layer norms");
    count_tile(out, r->missed.count, r->missed.count ? "warn" : "good", "near misses");
    count_tile(out, r->warnings.count, r->warnings.count ? "warn" : "good", "warnings");
    size_tile(out, r->memory.weights, "weights");
    size_tile(out, r->memory.arena, "arena at the maxima");
    if (r->memory.artifact)
        size_tile(out, r->memory.artifact, "artifact");
    lathe_text_append(out, "</div>\n");
}

static void warnings(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->warnings.count)
        return;
    open_table(out, "Warnings", "Code|Node|What");
    for (unsigned i = 0; i < r->warnings.count; i++) {
        const struct lathe_report_alert *w = &r->warnings.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "k warn", w->code);
        cell(out, "m", w->node);
        cell(out, "", w->text);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void fusions(const struct lathe_report *r, struct lathe_text *out) {
    unsigned most = 1;
    for (unsigned i = 0; i < r->fusions.count; i++)
        most = r->fusions.at[i].count > most ? r->fusions.at[i].count : most;
    open_table(out, "Fusions", "Pattern|#Count|");
    for (unsigned i = 0; i < r->fusions.count; i++) {
        const struct lathe_report_count *f = &r->fusions.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "k", f->name);
        count_cell(out, f->count);
        bar_cell(out, (double)f->count / most);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
    if (!r->missed.count) {
        none(out, "Near misses", "None: every pattern that was found was fused.");
        return;
    }
    open_table(out, "Near misses", "Pattern|Node|Why it stayed as it was");
    for (unsigned i = 0; i < r->missed.count; i++) {
        const struct lathe_report_miss *m = &r->missed.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "k", m->pattern);
        cell(out, "m", m->node);
        cell(out, "", m->reason);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void shapes(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->shapes.count)
        return;
    open_table(out, "Shapes and limits", "|Name|Type|Shape");
    for (unsigned i = 0; i < r->shapes.count; i++) {
        const struct lathe_report_port *p = &r->shapes.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "k", p->role);
        cell(out, "m", p->name);
        cell(out, "m", p->dtype);
        cell(out, "m", p->dims);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void steps(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->steps.count)
        return;
    open_table(out, "Steps of the plan", "Operator|#Steps|#Share of multiply-adds|");
    for (unsigned i = 0; i < r->steps.count; i++) {
        const struct lathe_report_op *s = &r->steps.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "m", s->op);
        count_cell(out, s->count);
        lathe_text_append(out, "<td class=\"n\">%.2f %%</td>", 100 * s->share);
        bar_cell(out, s->share);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void cost(const struct lathe_report *r, struct lathe_text *out) {
    double most = 1e-9;
    if (!r->cost.count)
        return;
    for (unsigned i = 0; i < r->cost.count; i++)
        most = r->cost.at[i].ms > most ? r->cost.at[i].ms : most;
    open_table(out, "Predicted time of a run", "#Tokens|#Batch|#Threads|#ms||Bound by|Most of it");
    for (unsigned i = 0; i < r->cost.count; i++) {
        const struct lathe_cost_prediction *p = &r->cost.at[i];
        unsigned first = 0;
        for (unsigned k = 1; k < LATHE_COST_KINDS; k++)
            first = p->share[k] > p->share[first] ? k : first;
        lathe_text_append(out, "<tr>");
        if (p->length > 0)
            count_cell(out, (uint64_t)p->length);
        else
            cell(out, "n", "fixed");
        count_cell(out, (uint64_t)p->batch);
        count_cell(out, p->threads);
        lathe_text_append(out, "<td class=\"n\">%.3g</td>", p->ms);
        bar_cell(out, p->ms / most);
        cell(out, "k", lathe_cost_bound_name(p->bound));
        lathe_text_append(out, "<td>%s %.0f %%</td></tr>\n", lathe_cost_kind_name((enum lathe_cost_kind)first),
                          100 * p->share[first]);
    }
    close_table(out);
    lathe_text_append(out, "<p class=\"none\">Estimated from the figures of ");
    escaped(out, lathe_report_cost_from(r));
    lathe_text_append(out, ", not measured.</p>\n");
}

static void placement(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->placement.count)
        return;
    lathe_text_append(out, "<h2>Cores</h2><p>%s on ", lathe_placement_name(r->placement.placement));
    if (r->placement.cores)
        lathe_text_append(out, "%u cores", r->placement.cores);
    else
        lathe_text_append(out, "all cores");
    lathe_text_append(out, "</p>\n");
    open_table(out, "What a core holds", "Core|#Steps|#Predicted ms|Weights|Activations|Fits");
    for (unsigned i = 0; i < r->placement.count; i++) {
        const struct lathe_stage *s = &r->placement.stages[i];
        struct lathe_text weights = {0}, activations = {0};
        char core[16] = "each";
        if (r->placement.placement == LATHE_PLACEMENT_PIPELINE)
            snprintf(core, sizeof core, "%u", i);
        lathe_append_bytes(&weights, s->weight_bytes);
        lathe_append_bytes(&activations, s->activation_bytes);
        lathe_text_append(out, "<tr>");
        cell(out, "m", core);
        count_cell(out, s->end - s->first);
        lathe_text_append(out, "<td class=\"n\">%.3g</td>", s->cost * 1e-6);
        cell(out, "n", weights.failed ? "" : weights.data);
        cell(out, "n", activations.failed ? "" : activations.data);
        cell(out, lathe_report_stage_fits(r, s) ? "k" : "k warn", lathe_report_stage_fits(r, s) ? "yes" : "no");
        lathe_text_append(out, "</tr>\n");
        lathe_text_free(&weights);
        lathe_text_free(&activations);
    }
    close_table(out);
}

static void savings(const struct lathe_report *r, struct lathe_text *out) {
    const struct lathe_cost_savings *s = &r->savings;
    if (!s->length)
        return;
    open_table(out, "Work not done, of the multiply-adds", "What|#Share|");
    lathe_text_append(out, "<tr><td>rows that nobody reads, at %lld tokens</td><td class=\"n\">%.1f %%</td>",
                      (long long)s->length, 100 * s->trimmed);
    bar_cell(out, s->trimmed);
    if (s->absorbed != 0) {
        lathe_text_append(
            out, "</tr>\n<tr><td>keys and values of one query, at %lld tokens</td><td class=\"n\">%.1f %%</td>",
            (long long)s->length, 100 * s->absorbed);
        bar_cell(out, s->absorbed);
    }
    for (int p = 0; s->packs && p < 2; p++) {
        lathe_text_append(out, "</tr>\n<tr><td>padding, %d %% of a batch</td><td class=\"n\">%.1f %%</td>",
                          25 * (p + 1), 100 * s->packed[p]);
        bar_cell(out, s->packed[p]);
    }
    lathe_text_append(out, "</tr>\n");
    close_table(out);
}

static void passes(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->passes.count)
        return;
    double most = 1e-9;
    for (unsigned i = 0; i < r->passes.count; i++)
        most = r->passes.at[i].ms > most ? r->passes.at[i].ms : most;
    open_table(out, "Passes, in order", "Pass|#Changes|#Nodes before|#after|#ms|");
    for (unsigned i = 0; i < r->passes.count; i++) {
        const struct lathe_report_pass_row *p = &r->passes.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "m", p->name);
        count_cell(out, p->changes);
        count_cell(out, p->before);
        count_cell(out, p->after);
        lathe_text_append(out, "<td class=\"n\">%.2f</td>", p->ms);
        bar_cell(out, p->ms / most);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void quantization(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->quantization.count)
        return;
    open_table(out, "Precision of the layers", "Layer|Scheme|#Error|Kept|#Stored|#Saturated|Why");
    for (unsigned i = 0; i < r->quantization.count; i++) {
        const struct lathe_report_layer *q = &r->quantization.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "m", q->layer);
        cell(out, "w", q->scheme);
        if (isfinite(q->error))
            lathe_text_append(out, "<td class=\"n\">%.3g</td>", q->error);
        else
            lathe_text_append(out, "<td class=\"n\"></td>");
        cell(out, q->kept ? "k good" : "k warn", q->kept ? "yes" : "no");
        if (q->has_stored)
            lathe_text_append(out, "<td class=\"n\">%d to %d</td><td class=\"n\">%lld</td>", q->stored.min,
                              q->stored.max, (long long)q->stored.saturated);
        else
            lathe_text_append(out, "<td></td><td></td>");
        cell(out, "w", q->why);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void casts(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->casts.count)
        return;
    open_table(out, "Casts to bf16", "What|Name|Operator");
    for (unsigned i = 0; i < r->casts.count; i++) {
        const struct lathe_report_cast *c = &r->casts.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "k", c->kind);
        cell(out, "m", c->name);
        cell(out, "k", c->op);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void fallback(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->fallback.at_host.count)
        return;
    open_table(out, "Steps that stay on the host", "Operator|Node");
    for (unsigned i = 0; i < r->fallback.at_host.count; i++) {
        lathe_text_append(out, "<tr>");
        cell(out, "k warn", r->fallback.at_host.at[i].op);
        cell(out, "m", r->fallback.at_host.at[i].node);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void checks(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->checks.count && !r->skipped.count) {
        none(out, "Verification", "Not run.");
        return;
    }
    open_table(out, "Verification", "Compared|#Largest error|#Bound|Result");
    for (unsigned i = 0; i < r->checks.count; i++) {
        const struct lathe_report_check *c = &r->checks.at[i];
        lathe_text_append(out, "<tr>");
        cell(out, "", c->what);
        lathe_text_append(out, "<td class=\"n\">%.3g</td><td class=\"n\">%.3g</td>", c->c.max_error, c->c.bound);
        cell(out, c->c.passed ? "k good" : "k bad", c->c.passed ? "passed" : "failed");
        lathe_text_append(out, "</tr>\n");
    }
    for (unsigned i = 0; i < r->skipped.count; i++) {
        lathe_text_append(out, "<tr>");
        cell(out, "", r->skipped.at[i].key);
        cell(out, "", "");
        cell(out, "", r->skipped.at[i].value);
        cell(out, "k warn", "not compared");
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

static void notes(const struct lathe_report *r, struct lathe_text *out) {
    if (!r->notes.count)
        return;
    open_table(out, "Notes", "Key|Value");
    for (unsigned i = 0; i < r->notes.count; i++) {
        lathe_text_append(out, "<tr>");
        cell(out, "k", r->notes.at[i].key);
        cell(out, "", r->notes.at[i].value);
        lathe_text_append(out, "</tr>\n");
    }
    close_table(out);
}

void lathe_report_html(const struct lathe_report *r, struct lathe_text *out) {
    header(r, out);
    tiles(r, out);
    warnings(r, out);
    fusions(r, out);
    quantization(r, out);
    casts(r, out);
    fallback(r, out);
    checks(r, out);
    shapes(r, out);
    steps(r, out);
    savings(r, out);
    cost(r, out);
    placement(r, out);
    passes(r, out);
    notes(r, out);
    lathe_text_append(out, "</main></body></html>\n");
    if (r->failed)
        out->failed = true;
}
