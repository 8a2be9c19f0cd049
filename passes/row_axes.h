/* Along which axes an operator keeps tokens apart. A node keeps an axis of an operand apart when each slice of its
 * output along some axis depends on the one slice of the operand with the same index alone; everything that pack_rows
 * knows about an operator is which axes those are. */
#ifndef LATHE_ROW_AXES_H
#define LATHE_ROW_AXES_H

#include "ir.h"

/* The axes of a value along which its sequences and its tokens lie; one axis of batch * seq entries when they are
 * equal; token < 0: none. */
struct lathe_row_layout {
    int8_t batch, token;
};

/* The sizes of those axes. */
struct lathe_row_sizes {
    lathe_dim batch, seq, tokens; /* tokens = batch * seq */
};

static inline bool lathe_row_layout_same(struct lathe_row_layout a, struct lathe_row_layout b) {
    return a.batch == b.batch && a.token == b.token;
}
static inline bool lathe_row_is_token_axis(struct lathe_row_layout l, int axis) {
    return axis == l.batch || axis == l.token;
}

/* The axis of n's first output along which slices depend on the slice of operand i along `axis` alone; -1 when n mixes
 * them or is not known to keep them apart. */
int lathe_row_axis(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i, int axis);
/* The layout of n's first output for one of operand i; false when n does not keep both axes apart. */
bool lathe_row_layout_behind(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i,
                             struct lathe_row_layout in, struct lathe_row_layout *out);
/* The layout of operand i for that of n's first output. */
bool lathe_row_layout_before(struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_node_id n, uint32_t i,
                             struct lathe_row_layout out, struct lathe_row_layout *in);
/* True when v has axes of these sizes there. */
bool lathe_row_layout_fits(const struct lathe_graph *g, const struct lathe_row_sizes *sizes, lathe_value_id v,
                           struct lathe_row_layout layout);
/* The axes of v that hold no tokens; returns how many. */
int lathe_row_other_axes(int rank, struct lathe_row_layout layout, int *axes);
#endif
