/* SVG without a layout engine: one box a step from top to bottom; what the next step reads is a short arrow, what a
 * later one reads an arc on the right, wider the farther it goes. */
#include "plan_graph.h"
#include "plan_text.h"
#include "printable.h"
#include "write_file.h"

#include <stdlib.h>
#include <string.h>

#define BOX_WIDTH  430
#define BOX_HEIGHT 34
#define PITCH      52
#define MARGIN     20

static bool ends_with(const char *path, const char *ending) {
    size_t n = strlen(path), e = strlen(ending);
    return n > e && !strcmp(path + n - e, ending);
}

enum lathe_status lathe_plan_graph_check(const char *path, struct lathe_diag *diag) {
    if (!ends_with(path, ".svg") && !ends_with(path, ".dot"))
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--graph '%s': the name must end in .svg or .dot", path);
    return lathe_check_writable(path, diag);
}

static void escape(struct lathe_text *out, const char *text, bool dot) {
    struct lathe_text shown = {0};
    lathe_append_printable(&shown, text);
    for (const char *p = shown.data; p && *p; p++) {
        if (dot && (*p == '"' || *p == '\\'))
            lathe_text_append(out, "\\%c", *p);
        else if (!dot && strchr("&<>\"", *p))
            lathe_text_append(out, *p == '&' ? "&amp;" : *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : "&quot;");
        else
            lathe_text_append_bytes(out, p, 1);
    }
    out->failed |= shown.failed;
    lathe_text_free(&shown);
}

/* Calls `edge` for each (earlier step, step) pair, in order. */
static bool edges(const struct lathe_plan *plan, void (*edge)(struct lathe_text *, uint32_t from, uint32_t to),
                  struct lathe_text *out) {
    uint32_t count = plan->head->value_count;
    int32_t *writer = malloc((count ? count : 1) * sizeof *writer);
    if (!writer)
        return false;
    for (uint32_t i = 0; i < count; i++)
        writer[i] = -1;
    for (uint32_t i = 0; i < plan->head->step_count; i++) {
        const struct lathe_fmt_step *s = &plan->steps[i];
        const uint32_t *operands = plan->operands + s->first_operand;
        for (unsigned k = 0; k < s->n_in; k++)
            if (operands[k] != LATHE_FORMAT_ABSENT && writer[operands[k]] >= 0)
                edge(out, (uint32_t)writer[operands[k]], i);
        for (unsigned k = 0; k < s->n_out; k++)
            if (operands[s->n_in + k] != LATHE_FORMAT_ABSENT)
                writer[operands[s->n_in + k]] = (int32_t)i;
    }
    free(writer);
    return true;
}

static void dot_edge(struct lathe_text *out, uint32_t from, uint32_t to) {
    lathe_text_append(out, "  s%u -> s%u;\n", from, to);
}

static void svg_edge(struct lathe_text *out, uint32_t from, uint32_t to) {
    int x = MARGIN + BOX_WIDTH, y1 = MARGIN + (int)from * PITCH + BOX_HEIGHT / 2;
    int y2 = MARGIN + (int)to * PITCH + BOX_HEIGHT / 2;
    if (to == from + 1) {
        int middle = MARGIN + BOX_WIDTH / 2;
        lathe_text_append(out, "<path class=\"e\" d=\"M%d %dV%d\"/>\n", middle, y1 + BOX_HEIGHT / 2,
                          y2 - BOX_HEIGHT / 2 - 6);
        return;
    }
    int reach = 26 + 7 * (int)(to - from);
    reach = reach > 190 ? 190 : reach;
    lathe_text_append(out, "<path class=\"e\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", x, y1, x + reach, y1, x + reach, y2,
                      x + 6, y2);
}

/* The result's type and shape, "" for a step without one. */
static void result_text(const struct lathe_plan *plan, const struct lathe_fmt_step *s, char *buffer, size_t size) {
    buffer[0] = 0;
    uint32_t value = s->n_out ? plan->operands[s->first_operand + s->n_in] : LATHE_FORMAT_ABSENT;
    if (value != LATHE_FORMAT_ABSENT)
        lathe_plan_dims_text(plan, value, buffer, size);
}

static void write_dot(const struct lathe_plan *plan, struct lathe_text *out) {
    lathe_text_append(out, "digraph plan {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n");
    for (uint32_t i = 0; i < plan->head->step_count; i++) {
        char dims[160];
        result_text(plan, &plan->steps[i], dims, sizeof dims);
        lathe_text_append(out, "  s%u [label=\"%u %s\\n", i, i, lathe_step_op(&plan->steps[i]));
        escape(out, lathe_plan_string(plan, plan->steps[i].name), true);
        lathe_text_append(out, "\\n[");
        escape(out, dims, true);
        lathe_text_append(out, "]\"];\n");
    }
    out->failed |= !edges(plan, dot_edge, out);
    lathe_text_append(out, "}\n");
}

static void write_svg(const struct lathe_plan *plan, struct lathe_text *out) {
    uint32_t count = plan->head->step_count;
    lathe_text_append(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%lld\" font-family=\"sans-serif\">\n"
        "<style>.b{fill:#fff;stroke:#8a97a8}.o{font-size:13px;font-weight:600;fill:#1c2430}"
        ".t{font-size:10px;fill:#5b6675}.e{fill:none;stroke:#2563a8;marker-end:url(#a)}"
        "svg{background:#f7f8fa}</style>\n"
        "<defs><marker id=\"a\" markerWidth=\"6\" markerHeight=\"6\" refX=\"1\" refY=\"3\" orient=\"auto\">"
        "<path d=\"M0 0L6 3L0 6z\" fill=\"#2563a8\"/></marker></defs>\n",
        BOX_WIDTH + 2 * MARGIN + 200, 2ll * MARGIN + (long long)count * PITCH);
    for (uint32_t i = 0; i < count; i++) {
        const struct lathe_fmt_step *s = &plan->steps[i];
        long long y = MARGIN + (long long)i * PITCH;
        char dims[160];
        result_text(plan, s, dims, sizeof dims);
        lathe_text_append(out, "<g><title>");
        escape(out, lathe_plan_string(plan, s->name), false);
        lathe_text_append(out,
                          "</title><rect class=\"b\" x=\"%d\" y=\"%lld\" width=\"%d\" height=\"%d\" rx=\"5\"/>"
                          "<text class=\"o\" x=\"%d\" y=\"%lld\">%u %s</text><text class=\"t\" x=\"%d\" y=\"%lld\">[",
                          MARGIN, y, BOX_WIDTH, BOX_HEIGHT, MARGIN + 10, y + 21, i, lathe_step_op(s), MARGIN + 210,
                          y + 15);
        escape(out, dims, false);
        lathe_text_append(out, "]</text><text class=\"t\" x=\"%d\" y=\"%lld\">", MARGIN + 210, y + 28);
        const char *name = lathe_plan_string(plan, s->name);
        size_t length = strlen(name);
        if (length > 38) {
            lathe_text_append(out, "...");
            name += length - 36;
            while (((unsigned char)*name & 0xc0) == 0x80)
                name++;
        }
        escape(out, name, false);
        lathe_text_append(out, "</text></g>\n");
    }
    out->failed |= !edges(plan, svg_edge, out);
    lathe_text_append(out, "</svg>\n");
}

enum lathe_status lathe_plan_graph_write(const struct lathe_plan *plan, const char *path, struct lathe_diag *diag) {
    struct lathe_text out = {0};
    if (ends_with(path, ".dot"))
        write_dot(plan, &out);
    else
        write_svg(plan, &out);
    const struct lathe_file_part part = {out.data, out.length};
    enum lathe_status status = out.failed ? lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to draw it", path)
                                          : lathe_write_file(path, &part, 1, diag);
    lathe_text_free(&out);
    return status;
}
