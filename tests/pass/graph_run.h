/* Runs a graph node by node on the operators of runtime/ops: what a pass must not change. For small test graphs. */
#ifndef LATHE_TEST_GRAPH_RUN_H
#define LATHE_TEST_GRAPH_RUN_H

#include "ir.h"

struct graph_run {
    struct lathe_graph *graph;
    struct lathe_tensor *tensors; /* one a value; data NULL: not computed */
    int64_t symbols[32];          /* the values of the symbols, in their order */
};

/* Shapes of all values for the given symbol values; inputs get memory. */
enum lathe_status graph_run_begin(struct graph_run *run, struct lathe_graph *g, const int64_t *symbols,
                                  struct lathe_diag *diag);
/* Runs all nodes; inputs were filled by the caller. */
enum lathe_status graph_run_nodes(struct graph_run *run, struct lathe_diag *diag);
void graph_run_end(struct graph_run *run);

/* The last output's elements, which are f32, of one run with made-up inputs: floats of [-2, 2), integers (keys of a
 * mask) 1 but for each last seven of 37. The same numbers for each graph with the same inputs. `name` is told when it
 * fails. To be freed. */
float *graph_run_output(struct lathe_graph *g, const int64_t *symbols, const char *name, int64_t *count);
/* What tests of one pass do around it; they fail with `name`. */
struct lathe_graph *graph_run_parse(const char *text, const char *name);
/* Runs a pass without options, and checks the graph. */
void graph_run_pass(struct lathe_graph *g, const char *pass, const char *name);
unsigned graph_run_count(const struct lathe_graph *g, enum lathe_op op);
/* graph_run_output of both is equal, or less than `bound` apart. */
void graph_run_same(struct lathe_graph *before, struct lathe_graph *after, const int64_t *symbols, const char *name,
                    float bound);
#endif
