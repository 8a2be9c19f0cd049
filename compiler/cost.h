/* The cost model: what a plan takes on a target, from the target's figures (targets/cost_keys.def), without running
 * anything. A step's time is that of its arithmetic or that of its bytes, whichever is longer, rounded where they are
 * near each other, and an overhead. Pure functions; no state. */
#ifndef LATHE_COST_H
#define LATHE_COST_H

#include "plan.h"
#include "target.h"

struct lathe_lowered;

enum lathe_cost_kind {
    LATHE_COST_LINEAR, /* products with weights */
    LATHE_COST_ATTENTION,
    LATHE_COST_NORM, /* layer norms, with the sum before them */
    LATHE_COST_EMBEDDING,
    LATHE_COST_OTHER,
    LATHE_COST_KINDS,
};
/* "linear", "attention", "norm", "embedding", "other" */
const char *lathe_cost_kind_name(enum lathe_cost_kind kind);

struct lathe_step_cost {
    enum lathe_cost_kind kind;
    double products; /* multiply-adds */
    double compute_ns, memory_ns, overhead_ns;
    double ns;
};

/* A plan at given sizes. */
struct lathe_cost_model {
    const struct lathe_plan *plan;
    const struct lathe_target *target;
    unsigned threads;
    int64_t batch, seq;  /* of this run */
    double weight_bytes; /* that a run reads: all constants but tables of which only some rows are read */
    const int64_t *dims; /* values of the plan's dims */
};

/* Sizes for `batch` sequences of `seq` tokens (0: the largest): symbols of role batch and sequence have these values,
 * within their bounds, others their largest, kept rows are batch * sequence. `max_seq` is the manifest's, for plans of
 * fixed length. `dims` gets dim_count entries and must outlive the model. */
void lathe_cost_sizes(struct lathe_cost_model *model, int64_t batch, int64_t seq, int64_t max_batch, int64_t max_seq,
                      int64_t *dims);
/* Time of one step; all zeros when the target has no figures or a size cannot be computed. */
void lathe_cost_step(const struct lathe_cost_model *model, uint32_t step, struct lathe_step_cost *out);
/* True when the target has the figures that a prediction needs. */
bool lathe_cost_known(const struct lathe_target *target);

/* A whole run. */
struct lathe_cost_prediction {
    int64_t batch, length; /* length 0: nothing in the plan has one */
    unsigned threads;
    double ms;
    double share[LATHE_COST_KINDS]; /* of ms; what is left is the run's own and the threads' meeting */
    enum lathe_cost_bound { LATHE_COST_COMPUTE, LATHE_COST_MEMORY, LATHE_COST_OVERHEAD } bound; /* what most of it is */
    double products;                                                                            /* multiply-adds */
};
const char *lathe_cost_bound_name(enum lathe_cost_bound bound); /* "compute", "memory", "overhead" */

/* The prediction at the sizes of the model. As a session does, small runs and small steps are left to one thread. */
void lathe_cost_predict(const struct lathe_cost_model *model, struct lathe_cost_prediction *out);
/* Predictions of a plan for batch 1 at each of the lengths 8, 16, 32, 64, 128, 256, 384, 512 up to its maximum (at the
 * maximum alone where that is fixed or less than 8), with 1 thread and 2 (a target with a number of cores: that many).
 * Writes at most LATHE_COST_PREDICTIONS entries; their number, 0 when the target has no figures or memory runs out. */
#define LATHE_COST_PREDICTIONS 32
unsigned lathe_cost_predict_all(const struct lathe_plan *plan, const struct lathe_target *target, int64_t max_batch,
                                int64_t max_seq, struct lathe_cost_prediction *out);

/* Work that is not done, as shares of the multiply-adds that would be. */
struct lathe_cost_savings {
    int64_t length;   /* tokens of the one sequence that it is told for; 0: the plan has none */
    double products;  /* multiply-adds that are left */
    double trimmed;   /* share that rows nobody reads would add (trim_unused_rows) */
    double absorbed;  /* share that keys and values of the last attention would add (absorb_projections) */
    bool packs;       /* padding costs nothing (pack_rows): */
    double packed[2]; /* share saved when 25 % of the places of a batch are padding, and when 50 % are */
};
/* What passes took off, in multiply-adds. */
struct lathe_work_saved {
    double row, pair;   /* trim_unused_rows: for each row of a sequence but one, and for each pair of one of these and a
                           key */
    double token, once; /* absorb_projections: for each token; what it put on instead, once a sequence */
};
/* False when memory runs out. */
bool lathe_cost_saved(const struct lathe_plan *plan, const struct lathe_work_saved *saved, int64_t max_batch,
                      int64_t max_seq, struct lathe_cost_savings *out);

/* Writes the field `cost` of every step. False when memory runs out. */
bool lathe_cost_steps(struct lathe_lowered *lowered);
#endif
