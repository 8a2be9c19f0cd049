/* What a pass is: one rewrite of the graph, one row of passes.def, one file passes/<name>.c.
 *
 * A pass matches by data flow, proves each constant and shape that it relies on, and leaves the graph in order, typed
 * and SSA. Where it almost matched it calls lathe_pass_missed with the node and the failed condition. It never aborts:
 * what it cannot prove stays as it was. */
#ifndef LATHE_PASS_H
#define LATHE_PASS_H

#include "ir.h"
#include "target.h"

struct lathe_report;
struct lathe_quantize_options; /* calibration.h */

struct lathe_pass_options {
    bool keep_padding;          /* compute rows at mask 0 as the source does */
    int64_t max_batch, max_seq; /* 0: from the graph and target */
    /* static shapes: the buckets that the graph is for, one once their plans are made apart; none: bounded */
    const struct lathe_bucket *buckets;
    unsigned bucket_count;
    bool exact_folds;    /* fold only what gives the same bits wherever it is computed: moves, integers, comparisons */
    bool bf16;           /* products with constant matrices in bf16 */
    bool bf16_attention; /* those of attention too, where that pays; goes with bf16 */
    bool cast_all;       /* every tensor too; goes with bf16 */
    bool int8;           /* products in 8 bits come later: the source's own quantization of activations need not stay */
    const struct lathe_quantize_options *quantize; /* NULL: products stay in f32 */
};

struct lathe_pass_ctx {
    struct lathe_graph *graph;
    const struct lathe_target *target;
    const struct lathe_pass_options *options;
    struct lathe_report *report; /* may be NULL */
    struct lathe_arena *scratch; /* reset after each pass */
    struct lathe_diag *diag;
    unsigned changes; /* out: rewrites made */
};

typedef enum lathe_status (*lathe_pass_fn)(struct lathe_pass_ctx *ctx);

struct lathe_pass {
    const char *name; /* "fuse_layernorm": --disable and --dump-after take it */
    const char *doc;  /* one line */
    lathe_pass_fn run;
};

#define PASS(name, doc) enum lathe_status lathe_pass_##name(struct lathe_pass_ctx *ctx);
#include "passes.def"
#undef PASS

extern const struct lathe_pass lathe_passes[];
extern const unsigned lathe_pass_count;
const struct lathe_pass *lathe_pass_by_name(const char *name);

/* Records a near miss: `pattern` is a name of the report's `fusions` ("attention"), `node` the node that the reader
 * knows best, the text "found X, expected Y". One miss a (pattern, node) is kept, the last one. */
void lathe_pass_missed(struct lathe_pass_ctx *ctx, const char *pattern, lathe_node_id node, const char *format, ...)
    LATHE_PRINTF(4, 5);
/* Records a warning with a stable code ("MASK_INF", "BAKED_AXIS"). */
void lathe_pass_warn(struct lathe_pass_ctx *ctx, const char *code, lathe_node_id node, const char *format, ...)
    LATHE_PRINTF(4, 5);
/* Records a fact for the report's `shapes` or `fusions` extras, such as ("packed_rows", "true"). */
void lathe_pass_note(struct lathe_pass_ctx *ctx, const char *key, const char *format, ...) LATHE_PRINTF(3, 4);
#endif
