/* The known answer inside an artifact, replayed on this machine. */
#ifndef LATHE_REPLAY_ANSWER_H
#define LATHE_REPLAY_ANSWER_H

#include "compare.h"

/* Runs the stored inputs and compares with the stored outputs, which are those of the plain C kernels. *present is
 * false when the artifact has no answer; *max_error is the largest difference. LATHE_CHECK_FAILED beyond the bounds. */
LATHE_NODISCARD enum lathe_status lathe_replay_answer(struct lathe_artifact *a,
                                                      const struct lathe_session_options *options, bool *present,
                                                      double *max_error, struct lathe_diag *diag);
#endif
