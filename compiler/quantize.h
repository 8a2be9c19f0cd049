/* The optimised f32 graph becomes one with 8-bit products: calibration, choice of layers, rewriting. */
#ifndef LATHE_QUANTIZE_H
#define LATHE_QUANTIZE_H

#include "stages.h"

#define LATHE_AUTO_ERROR_BUDGET 0.1   /* --precision auto: largest relative error of a layer's output */
#define LATHE_AUTO_MIN_COSINE   0.995 /* of the model's outputs, where --min-cosine says nothing */
#define LATHE_INT8_MIN_COSINE   0.99  /* of the verification, where --min-cosine says nothing */

struct lathe_quantize_request {
    const struct lathe_target *target;
    const struct lathe_pipeline_options *pipeline; /* its pass.quantize is ignored */
    const char *calibrate;                         /* a folder of data; NULL: made-up inputs */
    bool automatic;    /* layers over the budget, and as many more as min_cosine needs, stay in f32 */
    double min_cosine; /* with f32 over the calibration; 0: not compared */
    int jobs;
};
/* LATHE_CHECK_FAILED when the cosine is not reached: with `automatic` never. Deterministic for a graph, a target and
 * the data. Peak memory: a copy of the weights in f32 during the calibration, then one in 8 bits, which stays in the
 * graph. */
LATHE_NODISCARD enum lathe_status lathe_quantize(struct lathe_graph *g, const struct lathe_quantize_request *request,
                                                 struct lathe_report *report, struct lathe_diag *diag);
#endif
