/* The registry of passes and what they say to the report. */
#include "pass.h"

#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct lathe_pass lathe_passes[] = {
#define PASS(name, doc) {#name, doc, lathe_pass_##name},
#include "passes.def"
#undef PASS
};
const unsigned lathe_pass_count = sizeof lathe_passes / sizeof *lathe_passes;

const struct lathe_pass *lathe_pass_by_name(const char *name) {
    for (unsigned i = 0; i < lathe_pass_count; i++)
        if (!strcmp(lathe_passes[i].name, name))
            return &lathe_passes[i];
    return NULL;
}

enum { LONGEST_TEXT = 1024 };

/* Formats and hands on, when somebody keeps a report. */
#define FORMAT_TEXT(text, format)                                                                                      \
    char text[LONGEST_TEXT];                                                                                           \
    va_list args_;                                                                                                     \
    va_start(args_, format);                                                                                           \
    vsnprintf(text, sizeof text, format, args_);                                                                       \
    va_end(args_)

void lathe_pass_missed(struct lathe_pass_ctx *ctx, const char *pattern, lathe_node_id node, const char *format, ...) {
    FORMAT_TEXT(text, format);
    if (ctx->report)
        lathe_report_missed(ctx->report, pattern, ctx->graph->nodes[node].name, text);
}

void lathe_pass_warn(struct lathe_pass_ctx *ctx, const char *code, lathe_node_id node, const char *format, ...) {
    FORMAT_TEXT(text, format);
    if (ctx->report)
        lathe_report_warning(ctx->report, code, node == LATHE_NONE ? "" : ctx->graph->nodes[node].name, text);
}

void lathe_pass_note(struct lathe_pass_ctx *ctx, const char *key, const char *format, ...) {
    FORMAT_TEXT(text, format);
    if (ctx->report)
        lathe_report_note(ctx->report, key, text);
}
