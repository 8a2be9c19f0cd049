/* Which element of which tensor: a symbolic element of a value is followed backwards through the nodes that only move
 * data (reshape, transpose, slice, expand, tile, concat, gathers with known indices), so that two spellings of one
 * access give one answer whatever an exporter wrote. Integer tensors made of ranges, constants and sums give index
 * expressions. Nothing here changes the graph. Functions return false when something is not proved. */
#ifndef LATHE_ELEMENT_VIEW_H
#define LATHE_ELEMENT_VIEW_H

#include "index_expr.h"

/* Element at[0..rank) of a value; rank is that of the value. */
struct lathe_element {
    lathe_value_id value;
    int rank;
    struct lathe_index at[LATHE_MAX_RANK];
};

struct lathe_element_view {
    struct lathe_graph *graph;
    struct lathe_index_space space;
    unsigned budget; /* steps left: a bound for graphs made to be slow */
};

void lathe_element_view_init(struct lathe_element_view *view, struct lathe_graph *g);
/* The element of `v` with a fresh variable for each axis. */
bool lathe_element_fresh(struct lathe_element_view *view, lathe_value_id v, struct lathe_element *out);
/* The element of operand `v` that a broadcasting operator reads for the element `e` of its result. */
bool lathe_element_broadcast(struct lathe_element_view *view, const struct lathe_element *e, lathe_value_id v,
                             struct lathe_element *out);
/* One step back: *e becomes the same element in an operand of its producer. False when the producer computes something,
 * there is none, or the access is not proved. Casts are followed when they keep the type. */
bool lathe_element_step(struct lathe_element_view *view, struct lathe_element *e);
/* As many steps as there are. */
void lathe_element_origin(struct lathe_element_view *view, struct lathe_element *e);
/* The value of an element of an integer tensor (or of one cast to floats, while below 2^24) as an index expression. */
bool lathe_element_index(struct lathe_element_view *view, const struct lathe_element *e, struct lathe_index *out);
bool lathe_element_equal(struct lathe_element_view *view, const struct lathe_element *a, const struct lathe_element *b);
#endif
