/* The steps of a plan cut into consecutive stages, one a core, and what each stage costs and holds. The same functions
 * serve the compiler's report and the fleet. */
#ifndef LATHE_PARTITION_STEPS_H
#define LATHE_PARTITION_STEPS_H

#include "plan.h"

/* Cuts `count` items, in order, into `parts` pieces of at least one item each, 1 <= parts <= count: piece k is
 * [cuts[k], cuts[k + 1]), cuts[0] = 0, cuts[parts] = count. Exact: the largest sum of a piece is as small as can be,
 * and among such cuts the sum of squares. Time O(parts * count * items of the largest piece). False: no memory. */
bool lathe_partition(const uint64_t *costs, uint32_t count, unsigned parts, uint32_t *cuts);

struct lathe_stage {
    uint32_t first, end;       /* its steps */
    double cost;               /* nanoseconds on one core at the sizes asked about; a model, only ratios are reliable */
    uint64_t weight_bytes;     /* constants that its steps read, each counted once */
    uint64_t activation_bytes; /* of the arena that its steps touch */
};

/* Cuts the steps into at most `cores` stages, fewer where there are fewer steps, at least one; the prologue is one
 * piece. They are balanced for one sequence of the largest length. `symbols`: the maxima, one a symbol of the plan;
 * NULL: the plan's. `stages` has room for `cores`. */
LATHE_NODISCARD enum lathe_status lathe_stages_make(const struct lathe_plan *plan, const int64_t *symbols,
                                                    unsigned cores, struct lathe_stage *stages, unsigned *count,
                                                    struct lathe_diag *diag);
/* The same for several plans (buckets) on the same weights and arena, each in as many stages as the one that can be cut
 * into the fewest. The stages of plan i begin at stages[i * cores]; symbols[i] are its maxima, `symbols` may be NULL.
 * In the stages of the last plan the two sums are what a core holds for all of them: each byte of weights once, and the
 * most activations. */
LATHE_NODISCARD enum lathe_status lathe_stages_make_all(const struct lathe_plan *const *plans,
                                                        const int64_t *const *symbols, unsigned plan_count,
                                                        unsigned cores, struct lathe_stage *stages, unsigned *count,
                                                        struct lathe_diag *diag);
/* How far the dearest stage is above the mean: 0.1 for 10 %. */
double lathe_stages_imbalance(const struct lathe_stage *stages, unsigned count);

/* step_work.c: roughly what a step costs at these dims, in multiply-adds of f32; LATHE_WORK_PER_NS of them are taken as
 * a nanosecond of one core. */
double lathe_step_work(const struct lathe_plan *plan, uint32_t step, const int64_t *dims);
#define LATHE_WORK_PER_NS 55.0
#endif
