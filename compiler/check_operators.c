#include "check_operators.h"

#include "lower.h"

#include <stdio.h>
#include <string.h>

bool lathe_target_runs(const struct lathe_target *target, enum lathe_op op) {
    return target->all_operators || op == LATHE_OP_RESHAPE ||
           ((unsigned)op < 8 * sizeof target->operators && target->operators[op / 8] & 1u << op % 8);
}

static const char *step_name(const struct lathe_lowered *l, const struct lathe_fmt_step *s) {
    return (const char *)l->strings.bytes.data + s->name;
}

/* The steps of one operator: a phrase of the message, a warning, lines of the report. */
static void tell(const struct lathe_lowered *l, enum lathe_op op, bool allow, struct lathe_report *report,
                 struct lathe_text *message) {
    const struct lathe_fmt_step *steps = l->steps.data;
    const char *name = lathe_op_info(op)->name, *first = NULL;
    unsigned count = 0;
    struct lathe_text nodes = {0};
    for (uint32_t i = 0; i < l->steps.count; i++) {
        if (steps[i].op != op)
            continue;
        const char *node = step_name(l, &steps[i]);
        first = first ? first : node;
        lathe_text_append(&nodes, "%s%s", count++ ? ", " : "", node);
        lathe_report_fallback(report, name, node);
    }
    if (count) {
        char text[160];
        snprintf(text, sizeof text, "%u %s %s not among the operators that target %.60s runs: on the host", count, name,
                 count == 1 ? "step is" : "steps are", l->options->target->name);
        if (allow)
            lathe_report_warning(report, "FALLBACK", first, text);
        lathe_text_append(message, "%s%u %s (%s)", message->length ? ", " : "", count, name,
                          nodes.data ? nodes.data : "");
    }
    lathe_text_free(&nodes);
}

static enum lathe_status check(const struct lathe_lowered *l, bool allow, struct lathe_report *report,
                               struct lathe_diag *diag) {
    const struct lathe_target *target = l->options->target;
    struct lathe_text message = {0};
    enum lathe_status status = LATHE_OK;
    lathe_report_fallback_of(report, l->steps.count, allow);
    for (unsigned op = 1; op < 512; op++)
        if (lathe_op_info(op) && !lathe_target_runs(target, op))
            tell(l, op, allow, report, &message);
    if (message.failed)
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the list of operators");
    else if (message.length && !allow)
        status = lathe_fail(diag, LATHE_MSG_TARGET_OPERATORS,
                            "target %s does not run these steps (--allow-fallback leaves them on the host): %s",
                            target->name, message.data);
    lathe_text_free(&message);
    return status;
}

enum lathe_status lathe_check_operators(struct lathe_graph *g, const struct lathe_emit_options *options, bool allow,
                                        struct lathe_report *report, struct lathe_diag *diag) {
    struct lathe_lowered lowered;
    if (options->target->all_operators)
        return LATHE_OK;
    LATHE_TRY(lathe_lower(g, options, NULL, NULL, &lowered, diag));
    enum lathe_status status = check(&lowered, allow, report, diag);
    lathe_lowered_free(&lowered);
    return status;
}
