/* Running the optimised f32 graph to see what reaches its linear layers. */
#ifndef LATHE_CALIBRATE_H
#define LATHE_CALIBRATE_H

#include "calibration.h"
#include "check_artifact.h"
#include "target.h"

struct lathe_calibrate_options {
    const struct lathe_target *target;
    const char *data; /* a folder of data sets (input_N.pb) or of <input>.npy files; NULL: made-up inputs */
    int jobs;
};

/* What was run and what f32 answered, for the comparison of whole models. */
struct lathe_calibration_runs {
    struct lathe_feeds *feeds;
    struct lathe_answers *answers; /* the outputs of the model */
    unsigned count;
};

/* *out and *runs are the caller's on success and failure alike. The graph is as before. LATHE_INVALID: the data do not
 * fit the model, or an infinity or NaN appears (with the sample and the tensor); with made-up inputs that is no failure
 * but recorded at the layer. The sums do not depend on threads or the CPU. Peak memory: a copy of the weights. */
LATHE_NODISCARD enum lathe_status lathe_calibrate(struct lathe_graph *g, const struct lathe_calibrate_options *options,
                                                  struct lathe_calibration *out, struct lathe_calibration_runs *runs,
                                                  struct lathe_diag *diag);
void lathe_calibration_free(struct lathe_calibration *c);
void lathe_calibration_runs_free(struct lathe_calibration_runs *runs);

/* Rows of all outputs whose largest element was compared, and those where it is another one than in f32. */
struct lathe_argmax {
    int64_t rows, flips;
};

/* The smallest cosine of an output of the graph, as it is now, with f32's answer over all runs (plain C operators, so
 * that the same choice follows on every machine). */
LATHE_NODISCARD enum lathe_status lathe_calibration_cosine(struct lathe_graph *g, const struct lathe_target *target,
                                                           const struct lathe_calibration_runs *runs, double *cosine,
                                                           struct lathe_argmax *argmax, struct lathe_diag *diag);
#endif
