/* An artifact run twice over differently poisoned memory and compared with what its outputs should be. */
#ifndef LATHE_CHECK_ARTIFACT_H
#define LATHE_CHECK_ARTIFACT_H

#include "compare.h"
#include "feeds.h"

struct lathe_answers {
    struct lathe_data_tensor *at; /* one an output of the artifact, named */
    unsigned count;
};
void lathe_answers_free(struct lathe_answers *answers);
/* Copies the outputs of the last run. */
LATHE_NODISCARD enum lathe_status lathe_answers_copy(const struct lathe_artifact *a, const struct lathe_session *s,
                                                     struct lathe_answers *out, struct lathe_diag *diag);

struct lathe_checker {
    struct lathe_artifact *artifact; /* borrowed */
    struct lathe_session *sessions[2];
};
/* `options` as for a session; its `poison`, and the padding of buckets in one of them, are set here. */
LATHE_NODISCARD enum lathe_status lathe_checker_open(struct lathe_artifact *a,
                                                     const struct lathe_session_options *options,
                                                     struct lathe_checker *out, struct lathe_diag *diag);
void lathe_checker_close(struct lathe_checker *checker);
/* Both sessions take this bucket for all they run, which must be large enough; -1: the best again. */
void lathe_checker_force(struct lathe_checker *checker, int bucket);
/* Runs both sessions; LATHE_CHECK_FAILED when their outputs differ in a bit. The outputs are those of sessions[0]. */
LATHE_NODISCARD enum lathe_status lathe_checker_run(struct lathe_checker *checker, const struct lathe_feeds *feeds,
                                                    struct lathe_diag *diag);
/* Compares output `index` with `want`. Token rows at mask 0 are left out unless `padded_rows`. */
void lathe_checker_compare(const struct lathe_checker *checker, const struct lathe_feeds *feeds, unsigned index,
                           const struct lathe_data_tensor *want, const struct lathe_bounds *bounds, bool padded_rows,
                           struct lathe_comparison *out);
#endif
