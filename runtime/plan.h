/* The verified tables of an artifact, for the session, the known answer and `inspect --plan`. All pointers lead into
 * the mapped file; after lathe_artifact_open every index in them is in range. */
#ifndef LATHE_PLAN_H
#define LATHE_PLAN_H

#include "bucket_choice.h"
#include "lathe_format.h"
#include "tensor.h"

#include "lathe.h"

#include <stdlib.h>

struct lathe_plan {
    const struct lathe_fmt_plan *head;
    const struct lathe_fmt_symbol *symbols;
    const struct lathe_fmt_dim *dims;
    const struct lathe_fmt_value *values;
    const struct lathe_fmt_step *steps;
    const struct lathe_fmt_attr *attrs;
    const int64_t *ints;
    const uint32_t *operands;
    const char *strings;
    uint8_t *dim_needs_rows; /* one a dim: it depends on a symbol of source LATHE_SYMBOL_ROWS */
};

struct lathe_manifest {
    const struct lathe_fmt_manifest *head;
    const struct lathe_fmt_port *inputs, *outputs;
    const uint32_t *labels;
    const char *strings;
};

/* One plan of several, with the ports as that plan has them. */
struct lathe_bucket_plan {
    struct lathe_plan plan;
    struct lathe_manifest manifest; /* its inputs and outputs are `own` */
    struct lathe_port *ports;       /* every dim fixed */
    struct lathe_fmt_port *own;
};

struct lathe_buckets {
    const struct lathe_fmt_buckets *head;
    const struct lathe_fmt_bucket_port *ports; /* inputs, then outputs */
    struct lathe_bucket_size *sizes;
    struct lathe_bucket_list list; /* over `sizes` */
    struct lathe_bucket_plan *plans;
    bool has_batch, has_seq; /* some input has such an axis */
    bool whole;              /* requests are neither split nor padded */
};

struct lathe_artifact {
    const uint8_t *bytes;
    uint64_t size;
    bool mapped; /* bytes are our mapping */
    int fd;      /* of the file while it is being opened, else -1 */
    struct lathe_fmt_prefix prefix;
    struct lathe_fmt_section sections[LATHE_FORMAT_MAX_SECTIONS];
    const struct lathe_fmt_section *by_kind[LATHE_SECTION_KINDS]; /* NULL: not there */
    const struct lathe_fmt_section *plan_sections[LATHE_MAX_BUCKETS];
    unsigned plan_count;
    struct lathe_manifest manifest;
    struct lathe_plan plan;        /* the first */
    struct lathe_buckets *buckets; /* static shapes; NULL: one plan */
    const uint8_t *weights;
    uint64_t weight_bytes;
    void *weight_memory; /* our copy of the weights, read or decompressed (weight_memory.c); NULL: none */
    size_t weight_memory_bytes;
    struct lathe_port *ports; /* inputs, then outputs */
};

/* weight_memory.c: memory for a copy of weights, in pages as large as there are; NULL when there is none. For munmap.
 */
void *lathe_weight_memory(uint64_t bytes, size_t *mapped);
/* Whether a raw section of that size is better read into such memory than mapped. */
bool lathe_weights_worth_reading(uint64_t bytes);

/* artifact_verify.c: everything but the mapping. `a->bytes` and `a->size` are set; fills the rest. */
LATHE_NODISCARD enum lathe_status lathe_artifact_verify(struct lathe_artifact *a, const char *what,
                                                        const struct lathe_artifact_options *options,
                                                        struct lathe_diag *diag);
/* plan_verify.c. The tables of MANIFEST, but for what its ports say of a plan: */
LATHE_NODISCARD enum lathe_status lathe_manifest_map(const void *data, uint64_t size, struct lathe_manifest *out,
                                                     const char *what, struct lathe_diag *diag);
/* ... where the tables of PLAN lie; ... */
LATHE_NODISCARD enum lathe_status lathe_plan_map(const void *data, uint64_t size, struct lathe_plan *out,
                                                 const char *what, struct lathe_diag *diag);
/* ... and all of a mapped plan with the ports of `manifest`; *ports is what the interface shows of them. What it makes
 * belongs to the artifact's owner, also on failure: lathe_plan_free and free. */
LATHE_NODISCARD enum lathe_status lathe_plan_check(const struct lathe_artifact *a,
                                                   const struct lathe_manifest *manifest, struct lathe_plan *plan,
                                                   struct lathe_port **ports, const char *what,
                                                   struct lathe_diag *diag);
static inline void lathe_plan_free(struct lathe_plan *plan) {
    free(plan->dim_needs_rows);
    plan->dim_needs_rows = NULL;
}

/* buckets_verify.c: BUCKETS and its plans; `a->manifest` is mapped. Fills a->buckets, a->plan and a->ports. */
LATHE_NODISCARD enum lathe_status lathe_buckets_verify(struct lathe_artifact *a, const char *what,
                                                       struct lathe_diag *diag);
void lathe_buckets_free(struct lathe_buckets **buckets);

/* A section's bytes, decompressed into memory for free(); *data is NULL and LATHE_OK returned when it is not there.
 * Sections of text get a final zero that *size does not count. */
LATHE_NODISCARD enum lathe_status lathe_artifact_section(const struct lathe_artifact *a, enum lathe_section_kind kind,
                                                         void **data, uint64_t *size, struct lathe_diag *diag);

/* Evaluates dims for symbol values. Entries that overflow or divide by a number < 1 become INT64_MIN, as do those built
 * on them; the caller refuses negative sizes where it uses them. `only_rows`: just those that depend on kept rows. */
void lathe_plan_eval(const struct lathe_plan *plan, const int64_t *symbols, bool only_rows, int64_t *dims);

/* Bytes of a tensor, -1 when a dim is negative or the product overflows. */
int64_t lathe_shape_bytes(enum lathe_dtype dtype, unsigned rank, const int64_t *dims);

static inline const char *lathe_plan_string(const struct lathe_plan *plan, uint32_t at) {
    return plan->strings + at;
}
#endif
