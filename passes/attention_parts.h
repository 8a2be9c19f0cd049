/* The parts of the attention fusion: fuse_attention.c follows the data flow from softmax to both products,
 * attention_layout.c proves where heads and columns of q, k, v and the output lie, attention_mask.c turns the masks
 * into operands and attributes. One match lives for one softmax (or sdpa) node. */
#ifndef LATHE_ATTENTION_PARTS_H
#define LATHE_ATTENTION_PARTS_H

#include "mask_form.h"
#include "ops_enums.h"
#include "pass.h"

#define LATHE_ATTENTION_MAX_MASKS 8
#define LATHE_ATTENTION_MAX_TRAIL 32

/* A place in the chain of scores: its shape and the element seen. */
struct lathe_attention_level {
    int rank;
    lathe_dim dims[LATHE_MAX_RANK];
    struct lathe_index at[LATHE_MAX_RANK];
};

/* Something that masks or biases the scores. */
struct lathe_attention_source {
    bool is_select; /* where(condition, scores, fill); else added to the scores */
    lathe_value_id value;
    double factor; /* added: factor * value */
    bool allowed;  /* select: the truth of `value` where the scores stay */
    double fill;   /* select: the number elsewhere */
    struct lathe_attention_level level;
};

/* An operand followed back through views and scales: each stop is a value that holds its elements. */
struct lathe_attention_stop {
    struct lathe_element element;
    double scale; /* operand element = scale * this element */
};

struct lathe_attention_trail {
    unsigned count;
    struct lathe_attention_stop stops[LATHE_ATTENTION_MAX_TRAIL];
};

/* Where an operand is read from: columns of a token-major value [B, S, W], made from `from` by the emitter. */
struct lathe_attention_operand {
    lathe_value_id from;
    double scale;
    int64_t offset;   /* column of head 0 */
    bool is_in_place; /* `from` is [B, S, W] already */
    int rank;         /* else: reshape to `split`, transpose by `perm`, reshape to [B, S, heads * width] */
    lathe_dim split[LATHE_MAX_RANK];
    int64_t perm[LATHE_MAX_RANK];
    bool needs_split, needs_transpose;
};

struct lathe_attention_match {
    struct lathe_pass_ctx *ctx;
    struct lathe_element_view view;
    lathe_node_id anchor;                /* softmax or sdpa: messages name it */
    lathe_node_id last;                  /* the product with V, or the sdpa node */
    lathe_value_id out;                  /* its output, [B, N, Sq, Dv], [B * N, Sq, Dv] or [Sq, Dv] */
    struct lathe_index b, n, q, k, d, e; /* e: column of a head of v */
    struct lathe_index head;             /* the key head of n */
    lathe_dim batch, sq, sk;
    int64_t heads, kv_heads, head_dim, v_head_dim;
    double scale, softcap;
    bool guarded; /* NaN rows become zeros */
    bool causal;
    bool has_zeroed; /* the weights are set to zero where `zeroed` masks, after softmax */
    struct lathe_attention_source zeroed;
    unsigned source_count;
    struct lathe_attention_source sources[LATHE_ATTENTION_MAX_MASKS];
    struct lathe_attention_operand q_from, k_from, v_from;
};

/* ---- attention_layout.c */
/* Follows an element back through views, and through scales if `scales`; the first stop is itself. */
void lathe_attention_follow(struct lathe_attention_match *m, const struct lathe_element *start, bool scales,
                            struct lathe_attention_trail *trail);
/* The best stop whose elements are those of rows `row` (of `rows`), head `head` (of `heads`), column `column` (of
 * `width`): read in place where that is possible. */
bool lathe_attention_place(struct lathe_attention_match *m, const struct lathe_attention_trail *trail,
                           const struct lathe_index *row, lathe_dim rows, const struct lathe_index *head, int64_t heads,
                           const struct lathe_index *column, int64_t width, struct lathe_attention_operand *out);
/* The value [B, rows, W] of a placed operand, made before `before`. LATHE_NONE when memory runs out. */
lathe_value_id lathe_attention_make_operand(struct lathe_attention_match *m, lathe_node_id before,
                                            const struct lathe_attention_operand *operand, lathe_dim rows,
                                            int64_t columns);
/* Puts `fused` [B, Sq, heads * v_head_dim] in the place of all uses of the match's output. */
void lathe_attention_replace_output(struct lathe_attention_match *m, lathe_value_id fused);
/* *e becomes the same element before a cast from one float type to another. */
bool lathe_attention_step_float_cast(struct lathe_attention_match *m, struct lathe_element *e);
/* v as that type, by a cast before `before` where one is needed; v may be LATHE_NONE. */
lathe_value_id lathe_attention_cast(struct lathe_graph *g, lathe_node_id before, lathe_value_id v,
                                    enum lathe_dtype dtype);
/* A value with these dims, by a reshape before `before` where one is needed. */
lathe_value_id lathe_attention_reshape(struct lathe_graph *g, lathe_node_id before, lathe_value_id v, int rank,
                                       const lathe_dim *dims);
bool lathe_attention_same_dim(struct lathe_graph *g, lathe_dim a, lathe_dim b);

/* ---- attention_mask.c */
struct lathe_attention_masks {
    lathe_value_id keys, mask; /* LATHE_NONE: none */
    bool causal;
    int64_t window; /* -1: none */
    enum lathe_masked_row masked_row;
    bool warn_infinite; /* a row without keys is NaN in the source */
};
/* Makes the operands before `before`. On false nothing was made and `why` tells what was found. */
bool lathe_attention_make_masks(struct lathe_attention_match *m, lathe_node_id before,
                                struct lathe_attention_masks *out, const char **why);
#endif
