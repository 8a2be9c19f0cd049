/* The reference execution: the source graph without rewrites, on the plain C operators. */
#ifndef LATHE_REFERENCE_H
#define LATHE_REFERENCE_H

#include "check_artifact.h"

struct lathe_reference {
    void *bytes; /* the artifact of the unfused graph */
    size_t size;
    struct lathe_artifact *artifact;
};

struct lathe_reference_options {
    const char *external_dir; /* may be NULL */
    bool float_activations;   /* without the source's own quantization of activations, as an int8 compile sees it */
};
/* Imports the model anew and prepares it. Peak memory is the model's pages plus one copy of
 * the weights, of which the copy stays until close. */
LATHE_NODISCARD enum lathe_status lathe_reference_open(const char *model, const struct lathe_reference_options *options,
                                                       struct lathe_reference *out, struct lathe_diag *diag);
void lathe_reference_close(struct lathe_reference *reference);
/* Runs it on feeds of any artifact of the same model. */
LATHE_NODISCARD enum lathe_status lathe_reference_run(const struct lathe_reference *reference,
                                                      const struct lathe_feeds *feeds, struct lathe_answers *out,
                                                      struct lathe_diag *diag);

/* A made-up batch to compare on. */
struct lathe_trial {
    int64_t batch, seq;
    int64_t lengths[4];
    char what[96]; /* "batch 3, 9 tokens, padded" */
};
#define LATHE_TRIAL_LENGTH 128 /* no trial is longer unless the shapes leave no choice */
/* The trials that suit an artifact: batch 1 and 3 with padding, as far as its shapes vary; with buckets enough more
 * that each serves one. Returns how many, at most `capacity`. */
unsigned lathe_trials(const struct lathe_artifact *a, struct lathe_trial *out, unsigned capacity);
LATHE_NODISCARD enum lathe_status lathe_trial_feeds(const struct lathe_artifact *a, const struct lathe_trial *trial,
                                                    struct lathe_feeds *out, struct lathe_diag *diag);
#endif
