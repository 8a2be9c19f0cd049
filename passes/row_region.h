/* The part of a graph that can run on packed rows: every value [B,S,..] (or [B*S,..]) there is computed token by token,
 * but for attention, whose keys are the rows that the mask keeps. row_region.c finds it, pack_rows.c rewrites it. */
#ifndef LATHE_ROW_REGION_H
#define LATHE_ROW_REGION_H

#include "pass.h"

#define LATHE_ROW_MAX_OPERANDS  24
#define LATHE_ROW_MAX_POSITIONS 16

enum lathe_row_role {
    LATHE_ROW_FREE,     /* the same for every token: stays, without leading ones */
    LATHE_ROW_ROWS,     /* one row a token: packed */
    LATHE_ROW_SPREAD,   /* [1,S,..] or [B,1,..]: expanded, then packed */
    LATHE_ROW_POSITION, /* an absent index of `embedding`: made explicit */
    LATHE_ROW_ABSENT,
};

struct lathe_row_region {
    struct lathe_graph *graph;
    lathe_dim batch, seq, tokens; /* tokens = batch * seq */
    lathe_value_id keys;          /* [B,S], not 0 = keep */
    int64_t masked_row;
    uint32_t values, nodes; /* when the region was found; later ids are not in the arrays */
    uint8_t *lead;          /* a value: 0 outside, else its leading token axes: 2 [B,S,..], 1 [B*S,..] */
    uint8_t *entry;         /* a value in the region that is made unpacked: pack_rows stands behind it */
    uint8_t *zero;          /* a value whose rows at masked tokens are 0 */
    uint8_t *member;        /* a node of the region */
    uint8_t **roles;        /* a member: enum lathe_row_role of each operand, as they were found */
    int64_t positions[LATHE_ROW_MAX_POSITIONS]; /* tokens that are read although they may be masked */
    uint32_t position_count;
    uint32_t attentions;
    bool by_position; /* some attention hides keys from single queries too */
};

/* Finds the region. LATHE_OK with region->attentions = 0 when there is none; the near miss is recorded where there was
 * a mask but some use of the rows does not allow packing. The arrays are in the pass's scratch arena. */
LATHE_NODISCARD enum lathe_status lathe_row_region_find(struct lathe_pass_ctx *ctx, struct lathe_row_region *region);

/* Leading token axes of a value by its dims alone: 2, 1 or 0. */
int lathe_row_lead(const struct lathe_row_region *region, lathe_value_id v);
/* The roles of n's operands if n computes its outputs row by row; *lead is that of its outputs. */
bool lathe_row_rule(const struct lathe_row_region *region, lathe_node_id n, enum lathe_row_role *roles, int *lead);

/* keys is 0 exactly where the input that marks real tokens is 0 (or false). */
bool lathe_row_keys_are_mask(const struct lathe_graph *g, lathe_value_id keys);

/* ---- row_readers.c: what may read rows from outside */
/* v is 0 exactly where the keys are 0 (1), is not 0 (true) there (2), or neither is known (0). */
int lathe_row_mask_kind(const struct lathe_row_region *region, lathe_value_id v, int depth);
/* Node n reads token `position` of each sequence of x = its operand 0. */
bool lathe_row_is_take(const struct lathe_row_region *region, lathe_node_id n, int64_t *position);
/* Node n (a division) is the mean of *x over the keys, with max(count, epsilon) below. */
bool lathe_row_is_mean(const struct lathe_row_region *region, lathe_node_id n, lathe_value_id *x, double *epsilon);
#endif
