/* A graph in text form, lowered, emitted into memory and opened. */
#ifndef LATHE_TEST_BUILT_GRAPH_H
#define LATHE_TEST_BUILT_GRAPH_H

#include "ir.h"
#include "lathe.h"
#include "stages.h"

struct built {
    struct lathe_graph *graph;
    void *bytes;
    size_t size;
    struct lathe_artifact *artifact;
};
/* Fails the running test with the message when a stage fails. */
void build_graph(struct built *out, const char *text, const struct lathe_emit_options *options);
/* With all passes, static shapes and these buckets, which must be sorted; NULL `diag`: a failure fails the test. */
enum lathe_status build_buckets(struct built *out, const char *text, const struct lathe_bucket *sizes, unsigned count,
                                struct lathe_diag *diag);
/* Only the status, for graphs that must be refused; `diag` tells why. */
enum lathe_status try_build(const char *text, const struct lathe_emit_options *options, struct lathe_diag *diag);
void free_built(struct built *b);

/* The graph that most tests use: a small encoder on two mask forms, with an optional input and an id limit. */
extern const char *const small_encoder;
#endif
