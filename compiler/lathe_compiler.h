/* The compiler as one call: a model file becomes an artifact and a report. */
#ifndef LATHE_COMPILER_H
#define LATHE_COMPILER_H

#include "lathe_status.h"
#include "report.h"
#include "target.h"

#include <stdbool.h>
#include <stdint.h>

enum lathe_verify_mode {
    LATHE_VERIFY_AUTO, /* models whose weights are at most LATHE_VERIFY_AUTO_BYTES */
    LATHE_VERIFY_ALWAYS,
    LATHE_VERIFY_NEVER,
};
#define LATHE_VERIFY_AUTO_BYTES (UINT64_C(1) << 30)
#define LATHE_VERIFY_ATOL       1e-4   /* f32 against the unfused graph on plain C operators (DESIGN.md "Numbers") */
#define LATHE_VERIFY_RTOL       1e-4   /* for outputs far from 1 */
#define LATHE_VERIFY_TOL_F16    4e-3   /* both, when the source has f16 values: 4 units of their last place at 1 */
#define LATHE_VERIFY_TOL_BF16   3.2e-2 /* the same for bf16 */
#define LATHE_BF16_MIN_COSINE   0.999  /* of each output, for --precision bf16, where --min-cosine says nothing, ... */
#define LATHE_BF16_NEAR         4e-3   /* ... or every element within half a last place of bf16 at 1 */
#define LATHE_CAST_MIN_COSINE   0.995  /* the same for --cast all, where every tensor is rounded, ... */
#define LATHE_CAST_NEAR         1.6e-2 /* ... or two last places at 1 */
/* How far apart two kernels may take a whole known answer, relative, where a last bit of f32 decides a rounding and
 * that one the next: at most the rounding's own error, measured as 0.03 for 8 bits and 0.004 for bf16 on minilm-l6. */
#define LATHE_Q8_REPLAY               1e-1
#define LATHE_BF16_REPLAY             3.2e-2
#define LATHE_CAST_REPLAY             6.25e-2 /* with --cast all */
#define LATHE_VERIFY_QUANTIZED_COSINE 0.995   /* of each output, when the source quantizes activations */

struct lathe_compile_options {
    const char *model, *output;
    const char *target;             /* a name or a file; NULL: "native" */
    const char *precision;          /* "f32", "bf16", "int8", "auto"; NULL: "f32" */
    const char *cast;               /* "none", "matmul", "all"; NULL: as precision and target say */
    const char *calibrate;          /* int8, auto: a folder of data; NULL: made-up inputs */
    double min_cosine;              /* 0: not given; else the least cosine of each output with the source's */
    enum lathe_placement placement; /* default: the target's */
    unsigned cores;                 /* 0: the target's */
    int64_t max_seq, max_batch;     /* 0: from the graph and the target */
    /* Static shapes, a plan for each of these; none: those of a target that takes only static shapes, else bounded. */
    const struct lathe_bucket *buckets;
    unsigned bucket_count;
    const char *external_dir;    /* NULL: none */
    const char *const *disabled; /* names of passes */
    unsigned disabled_count;
    const char *const *expect; /* conditions, see lathe_report_expect */
    unsigned expect_count;
    const char *const *labels; /* class names; NULL: none */
    unsigned label_count;
    int compress_level; /* 0: weights stay raw and mappable */
    int jobs;           /* 0: as many as cores */
    bool keep_padding;
    bool allow_fallback; /* steps that the target's operators leave out stay on the host */
    bool check;          /* the graph after every pass */
    enum lathe_verify_mode verify;
    /* Called after the pass named `dump_after`, after each for "all", with the graph as text; "import" stands for the
     * graph as it was read. NULL: no dump. */
    const char *dump_after;
    void (*dump)(void *user, const char *pass, const char *text);
    /* Called before each stage: "import", "passes", "quantize", "emit", "verify"; may be NULL. */
    void (*stage)(void *user, const char *stage);
    /* Called once the model is read, before the work: bytes of its weights and of memory that the compile will need. */
    void (*sizes)(void *user, uint64_t weights, uint64_t memory);
    void *user;
};

/* Compiles. `report` is the caller's and is filled as far as the compile came, also on failure. On failure no artifact
 * is left, and one that was there before stays as it was. */
LATHE_NODISCARD enum lathe_status lathe_compile(const struct lathe_compile_options *options,
                                                struct lathe_report *report, struct lathe_diag *diag);
#endif
