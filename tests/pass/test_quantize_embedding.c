/* quantize_embedding: which tables become bytes, and how near they stay. */
#include "calibration.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS    8192
#define COLUMNS 128

/* A graph whose constant %t is a large table. The text has it as an input. */
static struct lathe_graph *graph_with_table(const char *text, float *table) {
    struct lathe_graph *g = NULL;
    struct lathe_diag diag = {0};
    if (lathe_graph_parse(text, &g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    lathe_value_id constant =
        lathe_graph_add_constant(g, "table", LATHE_F32, 2, (const int64_t[]){ROWS, COLUMNS}, table);
    assert_true(constant != LATHE_NONE);
    for (uint32_t i = 0; i < g->input_count; i++)
        if (strcmp(g->values[g->inputs[i]].name, "t") == 0)
            lathe_graph_replace_uses(g, g->inputs[i], constant);
    return g;
}

static unsigned count_of(struct lathe_graph *g, enum lathe_op op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n)
    count += g->nodes[n].op == op;
    return count;
}

#define INPUTS    "input %t : f32[8192, 128]\ninput %ids : i64[batch, seq]\nconst %small : f32[2, 128] = {" TWO "}\n"
#define EIGHT     "1, 2, 3, 4, 5, 6, 7, 8"
#define SIXTYFOUR EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT
#define TWO       SIXTYFOUR ", " SIXTYFOUR ", " SIXTYFOUR ", " SIXTYFOUR
#define LOOKUP    "%e : f32[batch, seq, 128] = embedding(_, _, %t, %ids, %small, %ids) {offsets=[0, 0], epsilon=1e-12}\n"
#define OUT       "output %e as \"e\"\n"

struct table_case {
    const char *name, *text;
    unsigned bytes; /* operators afterwards that read bytes */
    double budget;
    float last; /* element of the table */
    const char *report;
};

static const struct table_case cases[] = {
    {"a large table, a small one stays", INPUTS LOOKUP OUT, 1, 0, 0.5f, "table of 8192 rows"},
    {"two operators share a table",
     INPUTS LOOKUP "%f : f32[batch, seq, 128] = embedding(_, _, %t, %ids) {offsets=[0], epsilon=1e-12}\n" OUT
                   "output %f as \"f\"\n",
     2, 0, 0.5f, "table of 8192 rows"},
    {"a table that is also the matrix of a product",
     INPUTS LOOKUP "%y : f32[batch, seq, 8192] = linear(%e, %t) {trans_b=1}\noutput %y as \"y\"\n", 0, 0, 0.5f, ""},
    {"over the budget", INPUTS LOOKUP OUT, 0, 1e-4, 0.5f, "over the budget of 0.0001"},
    {"an infinity", INPUTS LOOKUP OUT, 0, 0, INFINITY, "infinity or NaN"},
    {"a row of denormals and zeros", INPUTS LOOKUP OUT, 1, 0, 1e-40f, "table of 8192 rows"},
};

static void check_bytes(struct lathe_graph *g, const float *table) {
    lathe_value_id rows = LATHE_NONE;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        if (node->op != LATHE_OP_EMBEDDING_Q8)
            continue;
        const struct lathe_value *q = &g->values[node->in[2]], *scale = &g->values[node->in[3]];
        assert_true(rows == LATHE_NONE || rows == node->in[2]); /* stored once */
        rows = node->in[2];
        assert_int_equal(q->dtype, LATHE_I8);
        assert_int_equal(scale->dtype, LATHE_F32);
        if (node->n_in == 8) {
            assert_int_equal(g->values[node->in[5]].dtype, LATHE_F32);
            assert_true(node->in[6] == LATHE_NONE && node->in[7] == node->in[4]);
        }
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < COLUMNS; i++) {
                float s = ((const float *)scale->data)[r];
                int8_t b = ((const int8_t *)q->data)[r * COLUMNS + i];
                assert_true(b >= -127 && fabsf((float)b * s - table[r * COLUMNS + i]) <= 0.5001f * s);
                assert_true(s > 0 && s <= 1.0f);
            }
    }
}

static void run_case(void **state) {
    const struct table_case *c = *state;
    float *table = malloc((size_t)ROWS * COLUMNS * sizeof *table);
    assert_non_null(table);
    unsigned seed = 1;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        seed = seed * 1664525u + 1013904223u;
        table[i] = (float)(int)seed * 0x1p-31f * (i / COLUMNS % 100 ? 0.1f : 2.0f);
        if (i >= (ROWS - 1) * COLUMNS)
            table[i] = i == ROWS * COLUMNS - 1 ? c->last : 0.0f;
    }
    for (int with = 0; with < 2; with++) {
        struct lathe_graph *g = graph_with_table(c->text, table);
        struct lathe_quantize_log log = {0};
        struct lathe_quantize_options quantize = {.budget = c->budget, .log = &log};
        struct lathe_pass_options options = {.quantize = with ? &quantize : NULL};
        struct lathe_report *report = lathe_report_new();
        struct lathe_arena *scratch = lathe_arena_new();
        struct lathe_text json = {0};
        struct lathe_diag diag = {0};
        struct lathe_pass_ctx ctx = {
            .graph = g, .options = &options, .report = report, .scratch = scratch, .diag = &diag};
        if (lathe_pass_quantize_embedding(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
            fail_msg("%s: %s", c->name, diag.text);
        assert_int_equal(count_of(g, LATHE_OP_EMBEDDING_Q8), with ? c->bytes : 0);
        check_bytes(g, table);
        lathe_report_json(report, true, &json);
        if (with && !strstr(json.data, c->report))
            fail_msg("%s: '%s' is not in %s", c->name, c->report, json.data);
        lathe_text_free(&json);
        lathe_report_free(&report);
        lathe_arena_free(&scratch);
        lathe_graph_free(&g);
    }
    free(table);
}

int main(void) {
    struct CMUnitTest tests[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, (void *)&cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
