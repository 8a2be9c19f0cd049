/* Static shapes: the final graph, with what still varies as symbols, becomes one pinned clone a bucket. */
#ifndef LATHE_BUCKET_GRAPHS_H
#define LATHE_BUCKET_GRAPHS_H

#include "stages.h"

/* `options` are those that made `g`; `sizes` its buckets, sorted. In a graph without a length buckets differ in their
 * batch only: then the lengths become 0 and equal sizes one, *count says how many are left. `graphs` has room for
 * *count; what was made is the caller's to free, also on failure, before `g`. */
LATHE_NODISCARD enum lathe_status lathe_bucket_graphs_make(struct lathe_graph *g, const struct lathe_target *target,
                                                           const struct lathe_pipeline_options *options,
                                                           struct lathe_bucket *sizes, unsigned *count,
                                                           struct lathe_graph **graphs, struct lathe_diag *diag);
/* Some attention hides masked tokens: their rows mean nothing and become zeros, as on bounded targets. */
bool lathe_graph_hides_rows(const struct lathe_graph *g);
/* For qsort: by length, then by batch. */
int lathe_compare_buckets(const void *a, const void *b);
#endif
