/* What a report holds, for the files that fill and write it. Strings are owned by the report. */
#ifndef LATHE_REPORT_DATA_H
#define LATHE_REPORT_DATA_H

#include "arena.h"
#include "cost.h"
#include "partition_steps.h"
#include "report.h"

/* A growing list of records of one type. */
#define LATHE_REPORT_LIST(type)                                                                                        \
    struct {                                                                                                           \
        type *at;                                                                                                      \
        unsigned count, capacity;                                                                                      \
    }

struct lathe_report_pass_row {
    const char *name;
    unsigned before, after, changes;
    double ms;
};
struct lathe_report_count {
    const char *name;
    unsigned count;
};
struct lathe_report_miss {
    const char *pattern, *node, *reason;
};
struct lathe_report_alert {
    const char *code, *node, *text;
};
struct lathe_report_port {
    const char *role, *name, *dtype, *dims;
};
struct lathe_report_op {
    const char *op;
    unsigned count;
    double share;
};
struct lathe_report_fact {
    const char *key, *value;
};
struct lathe_report_layer {
    const char *layer, *scheme, *why;
    double error;
    bool kept, has_stored;
    struct lathe_report_stored stored;
};
struct lathe_report_cast {
    const char *kind, *name, *op;
};
struct lathe_report_host_step {
    const char *op, *node;
};
struct lathe_report_check {
    const char *what;
    struct lathe_report_compared c;
};

struct lathe_report {
    struct lathe_arena *arena;
    bool failed;
    struct {
        const char *name, *sha256, *producer, *opsets;
        uint32_t ir_version;
        uint64_t bytes;
    } source;
    struct {
        const char *name, *precision, *features;
    } target;
    struct {
        uint64_t weights, arena, alive, artifact;
    } memory;
    struct {
        struct lathe_target target; /* whose figures they are */
        struct lathe_cost_prediction at[LATHE_COST_PREDICTIONS];
        unsigned count; /* 0: nothing is predicted */
    } cost;
    struct {
        enum lathe_placement placement;
        unsigned cores, count;      /* count 0: not for several cores */
        uint64_t core_memory;       /* on-chip bytes of a core, 0: no limit */
        struct lathe_stage *stages; /* one a core of a pipeline; one that all cores run for replicate */
    } placement;
    struct lathe_work_saved saved;
    struct lathe_cost_savings savings;                         /* length 0: none */
    LATHE_REPORT_LIST(struct lathe_report_pass_row) passes;    /* in the order in which they ran */
    LATHE_REPORT_LIST(struct lathe_report_count) fusions;      /* sorted by name */
    LATHE_REPORT_LIST(struct lathe_report_miss) missed;        /* sorted by pattern, node */
    LATHE_REPORT_LIST(struct lathe_report_alert) warnings;     /* sorted by code, node, text */
    LATHE_REPORT_LIST(struct lathe_report_port) shapes;        /* in the order given */
    LATHE_REPORT_LIST(struct lathe_report_op) steps;           /* the largest share first, then by name */
    LATHE_REPORT_LIST(struct lathe_report_fact) notes;         /* sorted by key */
    LATHE_REPORT_LIST(struct lathe_report_layer) quantization; /* sorted by layer */
    struct {
        unsigned steps; /* of the plan, 0: the target lists no operators */
        bool allowed;
        LATHE_REPORT_LIST(struct lathe_report_host_step) at_host; /* sorted by operator, in the order of the plan */
    } fallback;
    const char *cast_policy;                             /* NULL: none */
    LATHE_REPORT_LIST(struct lathe_report_cast) casts;   /* sorted by kind, name */
    LATHE_REPORT_LIST(struct lathe_report_check) checks; /* in the order given */
    LATHE_REPORT_LIST(struct lathe_report_fact) skipped; /* what could not be compared, and why */
};

/* The target whose figures the prediction takes. */
const char *lathe_report_cost_from(const struct lathe_report *r);
/* Whether the stage's weights and activations fit the on-chip memory of a core. */
bool lathe_report_stage_fits(const struct lathe_report *r, const struct lathe_stage *stage);
/* The text form with at most `misses` near misses, the rest only counted. */
void lathe_report_summary(const struct lathe_report *r, unsigned misses, struct lathe_text *out);
/* True for a name of `fusions` that the passes can count, whether it is in this report or not. */
bool lathe_report_knows_fusion(const struct lathe_report *r, const char *name);
#endif
