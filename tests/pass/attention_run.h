/* Runs a graph of attention_cases.h on made-up inputs. */
#ifndef LATHE_TEST_ATTENTION_RUN_H
#define LATHE_TEST_ATTENTION_RUN_H

#include "graph_run.h"

#include <string.h>

enum { BATCH = 2, KEYS = 4, QUERIES = 3 }; /* B.., S, T */

/* Random floats; masks of 0 and 1 with at least one key a row, but none in the last sequence when `masked`. */
static inline void attention_fill(struct graph_run *run, bool masked) {
    struct lathe_graph *g = run->graph;
    uint32_t seed = 7;
    for (uint32_t i = 0; i < g->input_count; i++) {
        struct lathe_tensor *t = &run->tensors[g->inputs[i]];
        int64_t count = lathe_tensor_count(t);
        for (int64_t k = 0; k < count; k++) {
            seed = seed * 1664525u + 1013904223u;
            double random = (double)(seed >> 8) / 16777216.0;
            bool last = k >= count / BATCH * (BATCH - 1);
            bool one = (k % KEYS == 0 || random < 0.5) && !(masked && last);
            if (t->dtype == LATHE_F32)
                ((float *)t->data)[k] = (float)(2 * random - 1);
            else if (t->dtype == LATHE_BOOL)
                ((uint8_t *)t->data)[k] = one;
            else
                ((int64_t *)t->data)[k] = one;
        }
    }
}

/* The run is to be ended by the caller, also after an error. */
static inline enum lathe_status attention_run(struct graph_run *run, struct lathe_graph *g, bool masked,
                                              struct lathe_diag *diag) {
    int64_t symbols[32];
    for (uint32_t i = 0; i < lathe_dims_symbol_count(g->dims) && i < 32; i++) {
        const char *symbol = lathe_dims_symbol_name(g->dims, i);
        symbols[i] = *symbol == 'B' ? BATCH : *symbol == 'T' ? QUERIES : KEYS;
    }
    memset(run, 0, sizeof *run);
    run->graph = g;
    LATHE_TRY(graph_run_begin(run, g, symbols, diag));
    attention_fill(run, masked);
    return graph_run_nodes(run, diag);
}
#endif
