/* Helpers for the tests of the graph core: one include, cmocka with its prerequisites. */
#ifndef LATHE_GRAPH_TEST_H
#define LATHE_GRAPH_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ir.h"
#include "text.h"

/* A graph from its text form; fails the test with the message when it cannot be read. */
static inline struct lathe_graph *graph_from(const char *text) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(text, &g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    return g;
}

static inline lathe_value_id value_of(struct lathe_graph *g, const char *name) {
    lathe_value_id v = lathe_value_by_name(g, name);
    if (v == LATHE_NONE)
        fail_msg("no value %s", name);
    return v;
}
#endif
