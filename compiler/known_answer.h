/* The known answer of an artifact (FORMAT.md, section 7): made at compile time with the plain C kernels, replayed by
 * `inspect --check`. */
#ifndef LATHE_KNOWN_ANSWER_H
#define LATHE_KNOWN_ANSWER_H

#include "lathe.h"

/* Runs a verified artifact once on small made-up inputs; the section's bytes are for free(). LATHE_OK with *bytes NULL
 * when these inputs cannot be run (the graph wants others). */
LATHE_NODISCARD enum lathe_status lathe_known_answer_make(struct lathe_artifact *artifact, void **bytes, size_t *size,
                                                          struct lathe_diag *diag);

struct lathe_known_answer_result {
    bool present;      /* the artifact has one */
    double max_error;  /* largest |got - want| over max(1, |want|); NaN where only one of them is */
    double distance;   /* of a whole output, the largest: |got - want| / |want| as vectors, of finite elements */
    uint64_t compared; /* elements */
};
/* One output's elements, in order, into *out, which only grows. Elements of f16 or bf16 that are one step of their type
 * apart are no difference: a sum just beside a tie is rounded up on one machine and down on another. */
void lathe_known_answer_compare(enum lathe_dtype dtype, const uint8_t *want, const uint8_t *got, uint64_t bytes,
                                struct lathe_known_answer_result *out);
/* The coarsest rounding among the steps of a plan. */
enum lathe_rounding {
    LATHE_ROUNDS_NOTHING,
    LATHE_ROUNDS_PRODUCTS_TO_BF16,
    LATHE_ROUNDS_ALL_TO_BF16,
    LATHE_ROUNDS_TO_8_BITS,
};
enum lathe_rounding lathe_artifact_rounding(const struct lathe_artifact *artifact);
/* What is right: the largest max_error, LATHE_VERIFY_ATOL, as between kernels the last bits of f32 differ. Where the
 * plan rounds what it computes with, such a bit can move a number by a whole step of bf16 or of 8 bits, and those add
 * up in single elements: it is the largest distance then. The plain C kernels, which made the answer, reproduce it
 * within LATHE_VERIFY_ATOL in every plan. */
double lathe_known_answer_bound(const struct lathe_artifact *artifact);
/* Replays it with the kernels of this machine (or those of the options). LATHE_INVALID when the section is damaged. */
LATHE_NODISCARD enum lathe_status lathe_known_answer_replay(struct lathe_artifact *artifact,
                                                            const struct lathe_session_options *options,
                                                            struct lathe_known_answer_result *out,
                                                            struct lathe_diag *diag);
#endif
