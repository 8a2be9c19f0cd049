/* Helpers that the fusions share: constants, data flow past nodes that change nothing, operands that only a row sees.
 *
 * Nothing here changes the graph but the functions named `make` and `drop`. Values may be LATHE_NONE where a text says
 * so. One thread at a time. */
#ifndef LATHE_MATCH_H
#define LATHE_MATCH_H

#include "pass.h"

/* ---- constants */
/* The value of a constant with one element or all elements equal. f16 and bf16 roundings of the constants that the
 * fusions know (sqrt 2, 0.044715, ...) are given as the exact number: the source meant it. */
bool lathe_match_number(const struct lathe_graph *g, lathe_value_id v, double *number);
/* |found - expected| <= 1e-6 |expected|: a few roundings of f32. */
bool lathe_match_near(double found, double expected);

/* ---- data flow */
/* v, or what a chain of casts between float types before it was made from. */
lathe_value_id lathe_match_skip_casts(const struct lathe_graph *g, lathe_value_id v);
/* A matrix that stays in the model as it is stored: a constant, or one behind a cast to f32 or a dequantization, which
 * packing reads through (weight_reader.h). */
bool lathe_match_is_matrix(const struct lathe_graph *g, lathe_value_id v);
/* Node n reads v only as the right operand of products (through transposes and concats of weights), which can pack it
 * from its stored form. */
bool lathe_match_reads_as_weight(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v);
/* Rank 2 and more than 4 KiB larger in f32 than in 16 bits: it stays as it is stored. */
bool lathe_match_is_large_matrix(const struct lathe_graph *g, lathe_value_id v);
/* The constant that embeddings look up and the weight v is too, as it is stored or cast; LATHE_NONE. */
lathe_value_id lathe_match_table_of(const struct lathe_graph *g, lathe_value_id v);
/* v, or what a chain of reshapes before it was made from. */
lathe_value_id lathe_match_skip_views(const struct lathe_graph *g, lathe_value_id v);
/* True when both are one value, or computed by equal expressions from equal values (casts between floats aside). */
bool lathe_match_same(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b);
/* For a node of two operands one of which is v: the other one. False when n has other arity or uses v twice. */
bool lathe_match_other(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v, lathe_value_id *other);
/* v is a slice of one axis of *x, from number *start on in steps of number *step. */
bool lathe_match_slice(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x, int64_t *axis, int64_t *start,
                       int64_t *step);
/* n multiplies or divides a value by a number: *x times *factor is its output. The shape of *x is that of the output.
 */
bool lathe_match_scaled(const struct lathe_graph *g, lathe_node_id n, lathe_value_id *x, double *factor);
/* v is the mean of *x over the axes [*axis, rank) with kept dims, as reduce_mean or as reduce_sum times 1/count. */
bool lathe_match_mean(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x, int *axis);
bool lathe_match_dim_equal(const struct lathe_graph *g, lathe_dim a, lathe_dim b);

/* ---- operands of a row: gamma, beta, bias */
/* True when v, broadcast against x, is the same for all leading positions: its last dims are x's from `axis` on (all
 * constant), leading ones may follow, its rank is not above x's; or v is a constant of one element. */
bool lathe_match_row_operand(const struct lathe_graph *g, lathe_value_id v, lathe_value_id x, int axis);
/* That operand with exactly the dims of x from `axis` on; a reshape is put before `before` where one is needed. */
lathe_value_id lathe_match_make_row_operand(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v,
                                            lathe_value_id x, int axis);
/* A reshape of v to these dims before `before`; v itself when it has them; a constant stays a constant. */
lathe_value_id lathe_match_make_reshape(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v, int rank,
                                        const lathe_dim *dims);

/* Columns [first, first + count) of the weight of a linear layer as a weight of their own that needs no copy, with the
 * layer's `trans_b`: all of them, or parts of a concat. LATHE_NONE when there is none. */
lathe_value_id lathe_match_weight_columns(struct lathe_graph *g, lathe_node_id linear, int64_t first, int64_t count);

/* ---- nodes */
/* The nodes of that operator at this moment, in order, in the pass's scratch arena: safe against removals if their op
 * is checked again. NULL and *count = 0 when there are none. */
lathe_node_id *lathe_match_nodes(struct lathe_pass_ctx *ctx, enum lathe_op op, uint32_t *count);
/* A node before `before`, named as it, whose one output has the type and shape of `like`. */
lathe_value_id lathe_match_make_like(struct lathe_graph *g, lathe_node_id before, enum lathe_op op,
                                     const lathe_value_id *in, uint32_t n_in, lathe_value_id like);
/* Removes the producer of v, and what only it used, when nothing uses v any more. v may be LATHE_NONE. */
void lathe_match_drop_unused(struct lathe_graph *g, lathe_value_id v);
/* Sets all attributes of `from` on `to`. */
void lathe_match_copy_attrs(struct lathe_graph *g, lathe_node_id from, lathe_node_id to);
/* True when v is computed before n runs (inputs and constants always are). */
bool lathe_match_before(const struct lathe_graph *g, lathe_value_id v, lathe_node_id n);
/* Turns n into another operator on these operands, drops all its attributes and what its old operands left unused. */
void lathe_match_make_into(struct lathe_graph *g, lathe_node_id n, enum lathe_op op, const lathe_value_id *in,
                           uint32_t n_in);
#endif
