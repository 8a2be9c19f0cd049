#include "plan_text.h"
#include "printable.h"

#include <stdio.h>
#include <string.h>

struct buffer {
    char *at;
    size_t size, length;
};

static void append(struct buffer *b, const char *text) {
    size_t n = strlen(text);
    if (b->length + n + 4 > b->size) {
        if (b->length + 4 <= b->size && (b->length < 3 || strcmp(b->at + b->length - 3, "...")))
            memcpy(b->at + b->length, "...", 4);
        b->size = b->length; /* full: later pieces are dropped */
        return;
    }
    memcpy(b->at + b->length, text, n + 1);
    b->length += n;
}

/* Operands of a dim stand before it in the table, so this ends; the depth is bounded beside. */
static void dim_text(const struct lathe_plan *plan, uint32_t index, bool inner, unsigned depth, struct buffer *b) {
    static const char *const signs[] = {[LATHE_DIM_ADD] = "+",
                                        [LATHE_DIM_SUB] = "-",
                                        [LATHE_DIM_MUL] = "*",
                                        [LATHE_DIM_FLOORDIV] = "/",
                                        [LATHE_DIM_MOD] = "%"};
    const struct lathe_fmt_dim *d = &plan->dims[index];
    char number[32];
    if (b->length + 4 > b->size)
        return;
    if (depth > 16) {
        append(b, "...");
        return;
    }
    switch (d->op) {
    case LATHE_DIM_CONST:
        snprintf(number, sizeof number, "%lld", (long long)d->constant);
        append(b, number);
        return;
    case LATHE_DIM_SYMBOL:
        append(b, lathe_plan_string(plan, plan->symbols[d->a].name));
        return;
    case LATHE_DIM_MIN:
    case LATHE_DIM_MAX:
        append(b, d->op == LATHE_DIM_MIN ? "min(" : "max(");
        dim_text(plan, d->a, false, depth + 1, b);
        append(b, ", ");
        dim_text(plan, d->b, false, depth + 1, b);
        append(b, ")");
        return;
    default:
        append(b, inner ? "(" : "");
        dim_text(plan, d->a, true, depth + 1, b);
        append(b, d->op < sizeof signs / sizeof *signs && signs[d->op] ? signs[d->op] : "?");
        dim_text(plan, d->b, true, depth + 1, b);
        append(b, inner ? ")" : "");
    }
}

void lathe_plan_dims_text(const struct lathe_plan *plan, uint32_t value, char *buffer, size_t size) {
    const struct lathe_fmt_value *v = &plan->values[value];
    struct buffer b = {buffer, size, 0};
    buffer[0] = 0;
    for (unsigned i = 0; i < v->rank; i++) {
        append(&b, i ? ", " : "");
        dim_text(plan, v->dims[i], false, 0, &b);
    }
}

const char *lathe_step_op(const struct lathe_fmt_step *step) {
    const struct lathe_op_info *info = lathe_op_info(step->op);
    return info ? info->name : "?";
}

static void value_text(const struct lathe_plan *plan, uint32_t value, bool shape, struct lathe_text *out) {
    if (value == LATHE_FORMAT_ABSENT) {
        lathe_text_append(out, "_");
        return;
    }
    char dims[160];
    const struct lathe_fmt_value *v = &plan->values[value];
    lathe_text_append(out, v->place == LATHE_PLACE_CONSTANT ? "#" : "%%");
    lathe_append_printable(out, lathe_plan_string(plan, v->name));
    if (!shape)
        return;
    lathe_plan_dims_text(plan, value, dims, sizeof dims);
    lathe_text_append(out, " : %s[", lathe_dtype_name(v->dtype));
    lathe_append_printable(out, dims);
    lathe_text_append(out, "]");
}

void lathe_plan_text(const struct lathe_plan *plan, struct lathe_text *out) {
    for (uint32_t i = 0; i < plan->head->step_count; i++) {
        const struct lathe_fmt_step *s = &plan->steps[i];
        const uint32_t *operands = plan->operands + s->first_operand;
        lathe_text_append(out, "%4u  ", i);
        for (unsigned k = 0; k < s->n_out; k++) {
            lathe_text_append(out, k ? ", " : "");
            value_text(plan, operands[s->n_in + k], true, out);
        }
        lathe_text_append(out, " = %s(", lathe_step_op(s));
        for (unsigned k = 0; k < s->n_in; k++) {
            lathe_text_append(out, k ? ", " : "");
            value_text(plan, operands[k], false, out);
        }
        lathe_text_append(out, ")");
        if (s->flags & LATHE_STEP_HOST)
            lathe_text_append(out, "  on the host");
        if (s->cost)
            lathe_text_append(out, "  ~%.3g us", s->cost / 1e3);
        lathe_text_append(out, "\n");
    }
}
