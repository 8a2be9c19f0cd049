/* What the shape functions share. A shape function reads the operands of one node, sets type, dims and content of its
 * outputs, and turns shape operands into attributes (IR.md). */
#ifndef LATHE_SHAPE_INTERNAL_H
#define LATHE_SHAPE_INTERNAL_H

#include "ir.h"

struct lathe_text;

struct shape_ctx {
    struct lathe_graph *g;
    lathe_node_id n;
    struct lathe_diag *diag;
};

typedef enum lathe_status (*lathe_shape_fn)(struct shape_ctx *c);

/* A shape under construction. */
struct shape_dims {
    int rank;
    lathe_dim d[LATHE_MAX_RANK];
};

/* ---- shape_util.c */
/* Operand k, LATHE_NONE when absent. */
lathe_value_id lathe_shape_in(const struct shape_ctx *c, uint32_t k);
struct lathe_value *lathe_shape_value(const struct shape_ctx *c, uint32_t k); /* of an operand that is present */
struct shape_dims lathe_shape_dims_of(const struct shape_ctx *c, lathe_value_id v);
lathe_dim lathe_shape_const(const struct shape_ctx *c, int64_t value);
int64_t lathe_shape_attr_int(const struct shape_ctx *c, enum lathe_attr_key key, int64_t absent);
/* An INTS attribute or an INT as a list of one; NULL and 0 when absent. */
const int64_t *lathe_shape_attr_ints(const struct shape_ctx *c, enum lathe_attr_key key, uint32_t *count);
/* The axis attribute brought into 0 <= axis < rank (+1 when `insert`) and stored back. */
LATHE_NODISCARD enum lathe_status lathe_shape_axis(struct shape_ctx *c, int rank, bool insert, int64_t absent,
                                                   int *axis);
/* Sets output k, when it is wanted; clears its content. */
void lathe_shape_set(struct shape_ctx *c, uint32_t k, enum lathe_dtype dtype, const struct shape_dims *dims);
void lathe_shape_set_like(struct shape_ctx *c, uint32_t k, enum lathe_dtype dtype, lathe_value_id like);
/* "'x' f32[batch,seq,8]" appended. */
void lathe_shape_describe(const struct lathe_graph *g, lathe_value_id v, struct lathe_text *out);
/* "node 'n' (Op): <reason>; operands ..." */
LATHE_NODISCARD enum lathe_status lathe_shape_fail(struct shape_ctx *c, enum lathe_message message, const char *format,
                                                   ...) LATHE_PRINTF(3, 4);
/* The operand must be there, and have a rank in [min, max]. */
LATHE_NODISCARD enum lathe_status lathe_shape_need_rank(struct shape_ctx *c, uint32_t k, int min, int max);
LATHE_NODISCARD enum lathe_status lathe_shape_need_index_type(struct shape_ctx *c, uint32_t k);

/* ---- shape_unify.c */
/* Two dims that must be equal: symbols of inputs are unified, a symbol beside a constant is fixed to it (warning
 * BAKED_AXIS); LATHE_INVALID when they cannot be, LATHE_UNSUPPORTED when that is not known. */
LATHE_NODISCARD enum lathe_status lathe_shape_equal(struct shape_ctx *c, lathe_dim a, lathe_dim b, lathe_dim *out);
/* The same for broadcasting: 1 goes with anything; what is not known becomes max(a, b). */
LATHE_NODISCARD enum lathe_status lathe_shape_broadcast_dim(struct shape_ctx *c, lathe_dim a, lathe_dim b,
                                                            lathe_dim *out);
/* acc = broadcast of acc and b. */
LATHE_NODISCARD enum lathe_status lathe_shape_broadcast(struct shape_ctx *c, struct shape_dims *acc,
                                                        const struct shape_dims *b);
/* Fixes a symbol to a value because a constant in the graph wants it: substitution, note, and an entry in g->baked. */
LATHE_NODISCARD enum lathe_status lathe_shape_bake(struct shape_ctx *c, uint32_t symbol, int64_t value, bool refuse,
                                                   const char *text);
/* Makes the first axes of two inputs one symbol, where a reshape of one input is told the batch of the other; false
 * when a and b are not such symbols. */
bool lathe_shape_same_batch(struct shape_ctx *c, lathe_dim a, lathe_dim b);
/* Bounds a plain symbol, because a table of the graph has no more positions, with a note; false when d is none, or
 * where fewer than two positions would be left. */
bool lathe_shape_at_most(struct shape_ctx *c, lathe_dim d, int64_t limit);
/* The index of the symbol that d is, alone; UINT32_MAX when it is none. */
uint32_t lathe_shape_plain_symbol(const struct lathe_graph *g, lathe_dim d);

/* ---- shape_content.c */
/* The elements of a small integral value; false when they are not known. Room for LATHE_MAX_CONTENT. */
/* The one number that a value of one element holds, where it is known; a fraction too. */
bool lathe_shape_number(const struct shape_ctx *c, lathe_value_id v, double *number);
bool lathe_shape_content(const struct shape_ctx *c, lathe_value_id v, lathe_dim *out, uint32_t *count);
/* All of them constants. */
bool lathe_shape_content_ints(const struct shape_ctx *c, lathe_value_id v, int64_t *out, uint32_t *count);
void lathe_shape_content_unary(struct shape_ctx *c);
void lathe_shape_content_pairwise(struct shape_ctx *c);
void lathe_shape_content_reduce(struct shape_ctx *c, const bool *reduced);
/* The constant dims of v; false when one is symbolic or the count exceeds LATHE_MAX_CONTENT. */
bool lathe_shape_small(const struct shape_ctx *c, lathe_value_id v, int64_t *dims, int64_t *count);
/* Content of output 0 picked from operand k: `from[i]` is the element of the operand that element i takes. */
void lathe_shape_content_pick(struct shape_ctx *c, uint32_t k, const int64_t *from, uint32_t count);

/* ---- the functions; one a row of ir_ops.def or a group of rows */
#define SHAPE_FUNCTION(name) enum lathe_status lathe_shape_##name(struct shape_ctx *c);
#include "shape_functions.def"
#undef SHAPE_FUNCTION
#endif
