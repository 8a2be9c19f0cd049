/* The stages of a compile, in order; each is one call, one file, and hands its result to the next. compile.c is the
 * list. */
#ifndef LATHE_STAGES_H
#define LATHE_STAGES_H

#include "ir.h"
#include "pass.h"
#include "report.h"
#include "target.h"

/* ---- onnx_import.c: a model file becomes a graph in internal form (IR.md), shapes inferred, nothing else changed. */
struct lathe_import_options {
    const char *external_dir;    /* --external-dir: another folder that external data may lie in; NULL: none */
    struct lathe_report *report; /* source facts and warnings; may be NULL */
};
struct lathe_model_file; /* the mapped model and its external data */
/* On success *graph and *file are the caller's; the file must live as long as the graph. */
LATHE_NODISCARD enum lathe_status lathe_import_onnx(const char *path, const struct lathe_import_options *options,
                                                    struct lathe_model_file **file, struct lathe_graph **graph,
                                                    struct lathe_diag *diag);
void lathe_model_file_close(struct lathe_model_file **file);
/* Bytes of model and external data. */
uint64_t lathe_model_file_bytes(const struct lathe_model_file *file);

/* ---- pipeline.c: runs the ordered passes for a target; checks the graph after each when `check` is set. */
struct lathe_pipeline_options {
    struct lathe_pass_options pass;
    const char *const *disabled; /* names of passes to leave out */
    unsigned disabled_count;
    bool check;
    bool reference; /* only what execution needs: no rewrite (the reference execution of verify) */
    void (*after_pass)(void *user, const char *pass, struct lathe_graph *g); /* --dump-after; may be NULL */
    void *user;
};
LATHE_NODISCARD enum lathe_status lathe_pipeline_run(struct lathe_graph *g, const struct lathe_target *target,
                                                     const struct lathe_pipeline_options *options,
                                                     struct lathe_report *report, struct lathe_diag *diag);

/* The passes that choose number formats, on a graph that lathe_pipeline_run has left; options->pass.quantize says how.
 * The counts of fusions in the report stay those of the f32 graph: quantizing takes none away. */
LATHE_NODISCARD enum lathe_status lathe_pipeline_quantize(struct lathe_graph *g, const struct lathe_target *target,
                                                          const struct lathe_pipeline_options *options,
                                                          struct lathe_report *report, struct lathe_diag *diag);

/* Pins a clone of the final graph to the one bucket in `options`; nothing of it is reported. */
LATHE_NODISCARD enum lathe_status lathe_pipeline_bucket(struct lathe_graph *g, const struct lathe_target *target,
                                                        const struct lathe_pipeline_options *options,
                                                        struct lathe_diag *diag);

/* ---- lower.c, plan_memory.c, pack_weights.c, emit.c: the graph becomes an artifact in a file or in memory. */
struct lathe_emit_buckets {
    const struct lathe_bucket *sizes;  /* in the order of seq, then batch; seq 0 where the graph has none */
    struct lathe_graph *const *graphs; /* pinned clones, one a bucket */
    unsigned count;
    bool zero_rows; /* rows of token outputs at mask 0 become zeros */
};
struct lathe_emit_options {
    const struct lathe_emit_buckets *buckets; /* static shapes: their plans instead of the graph's own; may be NULL */
    const struct lathe_target *target;
    int compress_level; /* zstd for weights too; 0: weights stay raw and mappable */
    int jobs;
    int64_t max_batch, max_seq; /* the limits that stand in the manifest; 0: from the bounds of the symbols */
    const char *report_json;    /* the report section; may be NULL */
    const char *const *labels;  /* class names; may be NULL */
    unsigned label_count;
    const char *source_sha256; /* hex, of the model file and its external data */
    bool known_answer;         /* run once and store the answer for inspect --check */
};
/* Writes `path` atomically: a temporary name beside it, fsync, rename; on failure nothing is left. */
LATHE_NODISCARD enum lathe_status lathe_emit_file(struct lathe_graph *g, const struct lathe_emit_options *options,
                                                  const char *path, struct lathe_report *report,
                                                  struct lathe_diag *diag);
/* The same into memory, to be freed with free(): reference execution and tests. */
LATHE_NODISCARD enum lathe_status lathe_emit_memory(struct lathe_graph *g, const struct lathe_emit_options *options,
                                                    void **bytes, size_t *size, struct lathe_report *report,
                                                    struct lathe_diag *diag);
#endif
