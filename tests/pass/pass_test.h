/* A pass test: a graph as text, the passes to run, and what the graph must hold afterwards. */
#ifndef LATHE_PASS_TEST_H
#define LATHE_PASS_TEST_H

#include "ir.h"
#include "pass.h"

struct pass_case {
    const char *name;
    const char *passes; /* names, separated by blanks, run in this order */
    const char *graph;  /* text form; "#N" stands for N numbers, "@RxC" for the transpose of [R, C] that "#" gives */
    const char *expect; /* "layer_norm=1 sub=0": nodes of an operator; "missed:text", "text:..." one a line;
                           "trimmed:6+2": multiply-adds that the report says were taken off a row, and a pair of rows */
    bool int8;          /* as for --precision int8 */
};

/* Runs the cases as one group of tests; the exit status. */
int pass_cases_main(const char *group, const struct pass_case *cases, unsigned count);
#endif
