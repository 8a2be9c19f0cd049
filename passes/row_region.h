/* The part of a graph that can run on packed rows: every value there holds one row a token, computed token by token but
 * for attention, whose keys are the rows that the mask keeps. row_region.c finds it, row_rules.c says what an operator
 * needs of its operands, row_masked.c what masked tokens reach, pack_rows.c rewrites it.
 *
 * The tokens may lie along any two axes of a value ([B,S,H], [B,N,S,D], [B,H,S]) or one ([B*S,H]): its layout, found by
 * following the data, not by sizes. Packed, a value is [rows, its other axes in order]. */
#ifndef LATHE_ROW_REGION_H
#define LATHE_ROW_REGION_H

#include "pass.h"
#include "row_axes.h"

#define LATHE_ROW_MAX_OPERANDS  24
#define LATHE_ROW_MAX_POSITIONS 16
#define LATHE_ROW_MAX_PLACES    4

enum lathe_row_role {
    LATHE_ROW_FREE,     /* the same for every token: stays, without the token axes */
    LATHE_ROW_ROWS,     /* one row a token: packed */
    LATHE_ROW_SPREAD,   /* the same for all sequences or all tokens of one: read by position or by sequence */
    LATHE_ROW_POSITION, /* an absent index of `embedding`: made explicit */
    LATHE_ROW_ABSENT,
};

struct lathe_row_operand {
    uint8_t role;                   /* enum lathe_row_role */
    struct lathe_row_layout layout; /* LATHE_ROW_ROWS: its token axes */
};

/* A token that is read from outside, whatever its mask says. */
struct lathe_row_take {
    lathe_value_id x;     /* the rows it is read from */
    int64_t position;     /* the same in all sequences, negative from the end; if `index` is absent */
    lathe_value_id index; /* integers, one a sequence: its position; LATHE_NONE: `position` */
};

struct lathe_row_region {
    struct lathe_graph *graph;
    struct lathe_row_sizes sizes;
    lathe_value_id keys;   /* [B,S], not 0 = keep */
    lathe_value_id tokens; /* [B,S] of what is given out, where that is not the keys: kept too; LATHE_NONE: it is */
    int64_t masked_row;    /* LATHE_MASKED_UNIFORM if one of the attentions needs all rows of a sequence without keys */
    uint32_t values, nodes;              /* when the region was found; later ids are not in the arrays */
    struct lathe_row_layout *layout;     /* a value of the region: its token axes; token < 0: outside */
    uint8_t *entry;                      /* a value of the region that is made unpacked: pack_rows stands behind it */
    uint8_t *zero;                       /* a value whose rows at masked tokens are 0 */
    uint8_t *whole;                      /* a value that is needed at masked tokens as the source has it */
    uint8_t *member;                     /* a node of the region */
    struct lathe_row_operand **operands; /* of a member, as they were found */
    int64_t positions[LATHE_ROW_MAX_POSITIONS]; /* tokens that are read although they may be masked */
    uint32_t position_count;
    lathe_value_id places[LATHE_ROW_MAX_PLACES]; /* the same by an index of each sequence */
    uint32_t place_count;
    uint32_t attentions, left_out; /* in the region; not in it because something needs their masked rows */
    bool by_position;              /* some attention hides keys from single queries too */
    const char *none;              /* when there is nothing to pack: why */
    lathe_node_id reader;          /* the first that needs masked rows; LATHE_NONE: none does */
    char reason[160];              /* why it does */
    bool mixes;                    /* because it computes with them */
};

/* Finds the region. LATHE_OK with region->attentions = 0 when there is none: then `none` says why, and where there was
 * a mask but some use of the rows does not allow packing the near miss is recorded. The arrays are in the pass's
 * scratch arena. */
LATHE_NODISCARD enum lathe_status lathe_row_region_find(struct lathe_pass_ctx *ctx, struct lathe_row_region *region);

static inline bool lathe_row_inside(const struct lathe_row_region *region, lathe_value_id v) {
    return v < region->values && region->layout[v].token >= 0 && !region->entry[v];
}
/* The layout of a value outside by its sizes: [B,S,..] or [B*S,..]. False for another. */
bool lathe_row_plain_layout(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout);
/* keys is 0 exactly where the input that marks real tokens is 0 (or false). */
bool lathe_row_keys_are_mask(const struct lathe_graph *g, lathe_value_id keys);
/* That input where it is [B,S] and the keys are as many of the first tokens as it marks; LATHE_NONE when they are not.
 */
lathe_value_id lathe_row_token_mask(const struct lathe_row_region *region);
/* v is computed from inputs alone, by operators on small tensors, before the rows are known. */
bool lathe_row_known_before(const struct lathe_graph *g, lathe_value_id v);

/* ---- row_rules.c */
/* What n needs of its operands so that its outputs, of that layout, can be computed row by row on packed rows. False
 * when they cannot. */
bool lathe_row_rule(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout out,
                    struct lathe_row_operand *operands);
/* v is wide enough that computing it on packed rows is worth more than packing it. */
bool lathe_row_is_activation(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout layout);

/* ---- row_masked.c: where masked rows go */
/* Marks what must be whole: operands of operators outside the region that would see that masked rows are left out, with
 * all that they are computed from. *found tells whether there were any; the first of all is kept in the region. The
 * readers of single tokens are added to the region. */
LATHE_NODISCARD enum lathe_status lathe_row_find_whole(struct lathe_pass_ctx *ctx, struct lathe_row_region *region,
                                                       bool *found);

/* ---- row_zeros.c */
/* v [B,S,..], zeros where keys [B,S] is 0; at the end of the graph. LATHE_NONE when memory runs out. */
lathe_value_id lathe_row_zero_masked(struct lathe_graph *g, lathe_value_id keys, lathe_value_id v);
/* What is not packed: token outputs behind an attention with a mask get zeros at masked tokens too. False when memory
 * runs out. */
bool lathe_row_zero_outputs(struct lathe_pass_ctx *ctx, const struct lathe_row_region *region);

/* ---- row_readers.c: what may read rows from outside */
/* v is 0 exactly where the keys are 0 (1), is not 0 (true) there (2), or neither is known (0). *layout, which may be
 * NULL, tells along which axes. */
int lathe_row_mask_kind(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout);
/* v is a mask of kind 1, or a product of one: 0 at least where the keys are 0. */
bool lathe_row_is_masking(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout);
/* n is where(mask, x, number) or where(masked, number, x): the number stands at masked tokens. */
bool lathe_row_fills_masked(const struct lathe_row_region *region, lathe_node_id n, double *number,
                            struct lathe_row_layout *layout);
/* Node n reads one token of each sequence of the region's value take->x. */
bool lathe_row_is_take(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_take *take);
/* Node n (a division) is the mean of *x over the keys, with max(count, epsilon) below. */
bool lathe_row_is_mean(const struct lathe_row_region *region, lathe_node_id n, lathe_value_id *x, double *epsilon);
#endif
