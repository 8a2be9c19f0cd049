/* The graphs of attention_cases.h with small random changes: whatever fuse_attention makes of a mutant computes what
 * the mutant computed. Arguments: number of mutants, seed. */
#include "attention_cases.h"
#include "attention_run.h"
#include "pass.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 8192, TRIES = 200 };

static uint32_t state;
static uint32_t below(uint32_t n) {
    return ((state = state * 1664525u + 1013904223u) >> 8) % n;
}

static const char *const pairs[] = {"add", "sub", "mul", "div", "min", "max"};

static size_t name_length(const char *at) {
    size_t n = 1;
    while (isalnum((unsigned char)at[n]))
        n++;
    return n;
}

/* Puts `with` in the place of text[at, at + length). */
static void splice(char *text, size_t at, size_t length, const char *with, size_t with_length) {
    size_t n = strlen(text);
    if (n + with_length - length + 1 > LONGEST)
        return;
    memmove(text + at + with_length, text + at + length, n - at - length + 1);
    memcpy(text + at, with, with_length);
}

static bool is_operand(const char *text, size_t at) {
    return text[at] == '%' && at > 1 && (text[at - 1] == '(' || (text[at - 1] == ' ' && text[at - 2] == ','));
}

/* One change: a digit, an operand, a pairwise operator, or two operands exchanged. */
static void mutate(char *text) {
    size_t n = strlen(text);
    uint32_t kind = below(4);
    for (int i = 0; i < TRIES; i++) {
        size_t at = 2 + below((uint32_t)n - 4);
        if (kind == 0 && isdigit((unsigned char)text[at]) && strchr(" [={", text[at - 1]) &&
            !isdigit((unsigned char)text[at + 1])) {
            text[at] = (char)('0' + below(5));
            return;
        }
        if ((kind == 1 || kind == 3) && is_operand(text, at)) {
            size_t other = 2 + below((uint32_t)n - 4);
            const char *end = strchr(text + at, ')');
            if (kind == 3) /* the next operand of the same node */
                for (other = at + 1; end && other < (size_t)(end - text) && !is_operand(text, other);)
                    other++;
            if (!is_operand(text, other) || (kind == 3 && (!end || other >= (size_t)(end - text))))
                continue;
            char a[64], b[64];
            size_t la = name_length(text + at), lb = name_length(text + other);
            if (la >= sizeof a || lb >= sizeof b)
                continue;
            memcpy(a, text + at, la);
            memcpy(b, text + other, lb);
            if (kind == 3)
                splice(text, other, lb, a, la);
            splice(text, at, la, b, lb);
            return;
        }
        if (kind == 2 && text[at - 1] == ' ')
            for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
                if (!strncmp(text + at, pairs[p], 3) && text[at + 3] == '(') {
                    memcpy(text + at, pairs[below(sizeof pairs / sizeof *pairs)], 3);
                    return;
                }
    }
}

/* False when the fused graph fails to run or differs. */
static bool same_numbers(struct lathe_graph *plain, struct lathe_graph *fused, bool masked, double bound) {
    struct lathe_diag diag;
    struct graph_run before, after;
    bool same = true;
    lathe_diag_reset(&diag);
    if (attention_run(&before, plain, masked, &diag) != LATHE_OK) {
        graph_run_end(&before); /* an index out of range, say: nothing to compare */
        return true;
    }
    same = attention_run(&after, fused, masked, &diag) == LATHE_OK;
    for (uint32_t i = 0; i < plain->output_count && same; i++) {
        const struct lathe_tensor *x = &before.tensors[plain->outputs[i]], *y = &after.tensors[fused->outputs[i]];
        for (int64_t k = 0; x->dtype == LATHE_F32 && k < lathe_tensor_count(x) && same; k++) {
            double a = ((const float *)x->data)[k], b = ((const float *)y->data)[k];
            same = isnan(a) || a == b || fabs(a - b) <= bound * (1 + fabs(a));
        }
    }
    graph_run_end(&before);
    graph_run_end(&after);
    return same;
}

/* 1 when it was fused, 0 when not, -1 when something is wrong. */
static int try_mutant(const char *text) {
    struct lathe_graph *fused = NULL, *plain = NULL;
    struct lathe_diag diag;
    int result = 0, row = 0;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(text, &fused, &diag) != LATHE_OK || lathe_graph_check(fused, &diag) != LATHE_OK ||
        lathe_graph_parse(text, &plain, &diag) != LATHE_OK) {
        lathe_graph_free(&fused);
        lathe_graph_free(&plain);
        return 0;
    }
    struct lathe_pass_options options = {0};
    struct lathe_pass_ctx ctx = {.graph = fused, .options = &options, .scratch = lathe_arena_new(), .diag = &diag};
    if (lathe_pass_fuse_attention(&ctx) != LATHE_OK || lathe_graph_check(fused, &diag) != LATHE_OK) {
        printf("# %s\n", diag.text);
        result = -1;
    }
    LATHE_FOR_NODES(fused, n)
    if (lathe_node_at(fused, n)->op == LATHE_OP_ATTENTION) {
        struct lathe_attrs attrs = lathe_node_attrs(fused, n);
        row = (int)lathe_attr_int(&attrs, LATHE_ATTR_MASKED_ROW, 0);
        result = result < 0 ? result : 1;
    }
    /* -10000 on all keys rounds the scores to 2^-10 */
    double bound = row == LATHE_MASKED_SOFTMAX ? 5e-3 : 1e-4;
    if (result > 0 && (!same_numbers(plain, fused, false, bound) || !same_numbers(plain, fused, true, bound)))
        result = -1;
    lathe_arena_free(&ctx.scratch);
    lathe_graph_free(&fused);
    lathe_graph_free(&plain);
    return result;
}

int main(int argc, char **argv) {
    int mutants = argc > 1 ? atoi(argv[1]) : 2000, fused = 0, wrong = 0;
    state = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 6;
    printf("# seed %u\n", state);
    for (int i = 0; i < mutants && wrong < 5; i++) {
        static char text[LONGEST];
        snprintf(text, sizeof text, "%s", attention_cases[below(ATTENTION_CASES)].text);
        for (uint32_t changes = 1 + below(3); changes; changes--)
            mutate(text);
        int result = try_mutant(text);
        fused += result > 0;
        if (result < 0) {
            printf("# mutant %d is wrong:\n%s\n", i, text);
            wrong++;
        }
    }
    printf("# %d mutants, %d fused, %d wrong\n", mutants, fused, wrong);
    /* Mutants that never fuse would test nothing. */
    return wrong || fused < mutants / 20;
}
