/* The record of one compile: filled by the stages, written as text, JSON or HTML (report_json.c, report_text.c,
 * report_html.c). It holds no time of day and no machine path, so the same compile gives the same record but for the
 * milliseconds, which the copy inside an artifact leaves out. Lists are sorted where their order could depend on
 * chance. One thread at a time. Adders copy their strings; they set `failed` when memory runs out. */
#ifndef LATHE_REPORT_H
#define LATHE_REPORT_H

#include "lathe_status.h"
#include "text.h"

#include <stdbool.h>
#include <stdint.h>

struct lathe_report; /* report.c */

struct lathe_report *lathe_report_new(void);
void lathe_report_free(struct lathe_report **report);

/* source: file name without folder, sha256, producer, "ai.onnx 17, com.microsoft 1" */
void lathe_report_source(struct lathe_report *r, const char *name, const char *sha256, const char *producer,
                         const char *opsets, uint32_t ir_version, uint64_t bytes);
void lathe_report_target(struct lathe_report *r, const char *name, const char *precision, const char *features);
void lathe_report_pass(struct lathe_report *r, const char *name, unsigned nodes_before, unsigned nodes_after,
                       unsigned changes, double ms);
/* Sets a count of `fusions`. */
void lathe_report_fusion(struct lathe_report *r, const char *name, unsigned count);
unsigned lathe_report_fusion_count(const struct lathe_report *r, const char *name); /* 0 when absent */
/* A near miss; the last for a (pattern, node) stays, and lathe_report_drop_missed forgets those of nodes fused later.
 */
void lathe_report_missed(struct lathe_report *r, const char *pattern, const char *node, const char *reason);
void lathe_report_drop_missed(struct lathe_report *r, const char *pattern, const char *node);
void lathe_report_warning(struct lathe_report *r, const char *code, const char *node, const char *text);
/* memory: bytes of weights, arena at the maxima, largest set alive at one step at the maxima, artifact */
void lathe_report_memory(struct lathe_report *r, uint64_t weights, uint64_t arena, uint64_t alive, uint64_t artifact);
/* shapes: a named input or output, its type and dims as text; or a limit such as ("max_length", "512") */
void lathe_report_shape(struct lathe_report *r, const char *role, const char *name, const char *dtype,
                        const char *dims);
/* steps of the plan by operator, and the share of multiply-adds each has */
void lathe_report_step(struct lathe_report *r, const char *op, unsigned count, double share_of_flops);
void lathe_report_note(struct lathe_report *r, const char *key, const char *value);
/* What the weights of a layer in `quantization` became: smallest and largest number stored, how many of `count` lay
 * beyond the range and were cut to its end (saturated), how many of the others are no multiple of their scale
 * (rounded), and the range that the inputs had in the calibration. */
struct lathe_report_stored {
    int min, max;
    int64_t count, saturated, rounded;
    double input_low, input_high;
};
void lathe_report_quantized(struct lathe_report *r, const char *layer, const struct lathe_report_stored *stored);
/* error: relative, NaN when it was not measured */
void lathe_report_quantization(struct lathe_report *r, const char *layer, const char *scheme, double error, bool kept,
                               const char *why);
/* fallback: the steps of the plan, whether some may stay on the host, and each that does: its operator and node. Never
 * told: the target runs everything. */
void lathe_report_fallback_of(struct lathe_report *r, unsigned steps, bool allowed);
void lathe_report_fallback(struct lathe_report *r, const char *op, const char *node);
/* casts to bf16: the policy ("none", "matmul", "all"), and each thing that is rounded: kind "product", "tensor" (what a
 * node gives out, or an input) or "constant"; the operator that makes or computes it, "" for inputs and constants. */
void lathe_report_cast_policy(struct lathe_report *r, const char *policy);
void lathe_report_cast(struct lathe_report *r, const char *kind, const char *name, const char *op);
/* verification: what was compared, and what came out */
struct lathe_report_compared {
    double max_error, bound; /* absolute */
    double cosine;
    int64_t rows, flips; /* rows whose largest element was compared, and where it is another one */
    bool passed;
};
void lathe_report_verification(struct lathe_report *r, const char *what, const struct lathe_report_compared *compared);
/* A comparison that could not be made, and why. */
void lathe_report_unverified(struct lathe_report *r, const char *what, const char *why);
/* What runs are predicted to take on the target (cost.h), and the figures that say so; the last call stays. */
struct lathe_cost_prediction;
struct lathe_target;
/* What trim_unused_rows and absorb_projections took off (cost.h, struct lathe_work_saved), and the shares that follow;
 * the last call stays, but what is absorbed adds up. */
struct lathe_cost_savings;
struct lathe_work_saved;
void lathe_report_trimmed(struct lathe_report *r, double row, double pair);
void lathe_report_absorbed(struct lathe_report *r, double token, double once);
const struct lathe_work_saved *lathe_report_work_saved(const struct lathe_report *r);
void lathe_report_savings(struct lathe_report *r, const struct lathe_cost_savings *savings);
void lathe_report_cost(struct lathe_report *r, const struct lathe_target *target,
                       const struct lathe_cost_prediction *predictions, unsigned count);
/* How the plan lies on the target's cores, and what a core holds (partition_steps.h); what does not fit its memory
 * becomes a warning. */
struct lathe_stage;
void lathe_report_placement(struct lathe_report *r, const struct lathe_target *target, const struct lathe_stage *stages,
                            unsigned count);
bool lathe_report_failed(const struct lathe_report *r);
/* What was recorded of the source: 64 hex digits, "" when nothing was. Borrowed. */
const char *lathe_report_sha256(const struct lathe_report *r);

/* One --expect condition: "fuse.attention>=12", "gelu==6", "missed==0"; operators == != >= <= > <. LATHE_OK when it
 * holds, LATHE_USAGE when it cannot be parsed, LATHE_EXPECT_FAILED naming the condition, the count found and the near
 * misses of that pattern. */
LATHE_NODISCARD enum lathe_status lathe_report_expect(const struct lathe_report *r, const char *condition,
                                                      struct lathe_diag *diag);

/* Only the syntax, so that a mistyped condition fails before the work starts. */
LATHE_NODISCARD enum lathe_status lathe_report_expect_syntax(const char *condition, struct lathe_diag *diag);

/* Appends the report in a form; `stable` leaves out milliseconds and the passes that did nothing (the artifact's copy).
 */
void lathe_report_json(const struct lathe_report *r, bool stable, struct lathe_text *out);
void lathe_report_text(const struct lathe_report *r, struct lathe_text *out);
void lathe_report_html(const struct lathe_report *r, struct lathe_text *out);
#endif
