#include "pass_test.h"

#include "cost.h"
#include "report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned count_nodes(struct lathe_graph *g, const char *op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n) count += !strcmp(lathe_op_info(g->nodes[n].op)->name, op);
    return count;
}

/* One line of expectations. */
static bool holds(const char *line, size_t length, struct lathe_graph *g, const char *graph, const char *report) {
    char text[512];
    if (length >= sizeof text)
        return false;
    memcpy(text, line, length);
    text[length] = 0;
    if (!strncmp(text, "missed:", 7))
        return strstr(report, text + 7) != NULL;
    if (!strncmp(text, "text:", 5))
        return strstr(graph, text + 5) != NULL;
    if (!strncmp(text, "no text:", 8))
        return strstr(graph, text + 8) == NULL;
    bool good = true;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        if (!equals || lathe_op_by_name((*equals = 0, word)) == LATHE_OP_NONE)
            return false;
        good &= count_nodes(g, word) == (unsigned)atoi(equals + 1);
    }
    return good;
}

/* The text of a graph with its numbers written out, to be freed. */
static char *with_numbers(const char *text) {
    size_t capacity = strlen(text) + 1, n = 0;
    for (const char *p = text; (p = strpbrk(p, "#@")); p++) {
        const char *by = strchr(p, 'x');
        capacity += 4 * (size_t)atoi(p + 1) * (*p == '@' && by ? (size_t)atoi(by + 1) : 1);
    }
    char *out = malloc(capacity);
    if (!out)
        abort();
    while (*text) {
        if (*text != '#' && *text != '@') {
            out[n++] = *text++;
            continue;
        }
        bool turned = *text == '@';
        int count = (int)strtol(text + 1, (char **)(uintptr_t)&text, 10), cols = 1;
        if (turned)
            cols = (int)strtol(text + 1, (char **)(uintptr_t)&text, 10);
        for (int i = 0; i < count * cols; i++)
            n += (size_t)sprintf(out + n, "%s%d", i ? ", " : "", (turned ? i % count * cols + i / count : i) % 7);
    }
    out[n] = 0;
    return out;
}

/* Fails with the printed graph when something is not as expected. */
static void run_case(void **state) {
    const struct pass_case *c = *state;
    struct lathe_graph *g = NULL;
    struct lathe_diag diag = {0};
    struct lathe_report *report = lathe_report_new();
    struct lathe_arena *scratch = lathe_arena_new();
    struct lathe_pass_options options = {.int8 = c->int8};
    struct lathe_text text = {0}, json = {0};
    char names[256];
    bool failed = false;
    char *whole = with_numbers(c->graph);
    if (lathe_graph_parse(whole, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    free(whole);
    snprintf(names, sizeof names, "%s", c->passes);
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
        const struct lathe_pass *pass = lathe_pass_by_name(name);
        if (!pass)
            fail_msg("%s: no pass %s", c->name, name);
        struct lathe_pass_ctx ctx = {
            .graph = g, .options = &options, .report = report, .scratch = scratch, .diag = &diag};
        if (pass->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK) {
            lathe_graph_print(g, &text);
            fail_msg("%s: after %s: %s\n%s", c->name, name, diag.text, text.data ? text.data : "");
        }
        lathe_arena_reset(scratch);
    }
    lathe_graph_print(g, &text);
    lathe_report_json(report, true, &json);
    for (const char *line = c->expect; *line;) {
        size_t length = strcspn(line, "\n");
        if (!strncmp(line, "trimmed:", 8)) {
            char found[64];
            const struct lathe_work_saved *saved = lathe_report_work_saved(report);
            snprintf(found, sizeof found, "trimmed:%g+%g", saved->row, saved->pair);
            if (strlen(found) != length || strncmp(found, line, length)) {
                print_error("%s: not %.*s but %s\n", c->name, (int)length, line, found);
                failed = true;
            }
        } else if (!holds(line, length, g, text.data ? text.data : "", json.data ? json.data : "")) {
            print_error("%s: not so: %.*s\n%s\n%s\n", c->name, (int)length, line, text.data, json.data);
            failed = true;
        }
        line += length + (line[length] == '\n');
    }
    lathe_text_free(&text);
    lathe_text_free(&json);
    lathe_report_free(&report);
    lathe_arena_free(&scratch);
    lathe_graph_free(&g);
    if (failed)
        fail_msg("%s", c->name);
}

int pass_cases_main(const char *group, const struct pass_case *cases, unsigned count) {
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (!tests)
        return 1;
    for (unsigned i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, (void *)&cases[i]};
    int result = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return result;
}
