#include "bucket_graphs.h"

#include <stdlib.h>

int lathe_compare_buckets(const void *a, const void *b) {
    const struct lathe_bucket *x = a, *y = b;
    int64_t d = x->seq != y->seq ? x->seq - y->seq : x->batch - y->batch;
    return d < 0 ? -1 : d > 0;
}

static unsigned drop_lengths(struct lathe_bucket *sizes, unsigned count) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        sizes[i].seq = 0;
    qsort(sizes, count, sizeof *sizes, lathe_compare_buckets);
    for (unsigned i = 0; i < count; i++)
        if (!kept || lathe_compare_buckets(&sizes[kept - 1], &sizes[i]))
            sizes[kept++] = sizes[i];
    return kept;
}

enum lathe_status lathe_bucket_graphs_make(struct lathe_graph *g, const struct lathe_target *target,
                                           const struct lathe_pipeline_options *options, struct lathe_bucket *sizes,
                                           unsigned *count, struct lathe_graph **graphs, struct lathe_diag *diag) {
    struct lathe_pipeline_options each = *options;
    each.pass.exact_folds = true;
    each.after_pass = NULL;
    if (!g->interface->has_seq)
        *count = drop_lengths(sizes, *count);
    for (unsigned i = 0; i < *count; i++)
        graphs[i] = NULL;
    for (unsigned i = 0; i < *count; i++) {
        each.pass.buckets = &sizes[i];
        each.pass.bucket_count = 1;
        graphs[i] = lathe_graph_clone(g);
        if (!graphs[i])
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "buckets: out of memory");
        LATHE_TRY(lathe_pipeline_bucket(graphs[i], target, &each, diag));
    }
    return LATHE_OK;
}

bool lathe_graph_hides_rows(const struct lathe_graph *g) {
    LATHE_FOR_NODES(g, n)
    if (g->nodes[n].op == LATHE_OP_ATTENTION && g->nodes[n].n_in > 3 && g->nodes[n].in[3] != LATHE_NONE)
        return true;
    return false;
}
