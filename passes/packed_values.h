/* Values between the padded and the packed form, made while pack_rows rewrites its region. */
#ifndef LATHE_PACKED_VALUES_H
#define LATHE_PACKED_VALUES_H

#include "row_region.h"

struct lathe_packing {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    struct lathe_row_region *region;
    struct lathe_value *before; /* the values as they were, by id */
    lathe_value_id *packed;     /* of a value outside the region, by id: its packed form; LATHE_NONE: not made yet */
    lathe_value_id map;
    lathe_value_id places; /* positions of the kept rows, i64 [rows]; LATHE_NONE: not made yet */
    lathe_dim rows;
};

static inline const struct lathe_value *lathe_packing_old(const struct lathe_packing *p, lathe_value_id v) {
    return v < p->region->values ? &p->before[v] : &p->g->values[v];
}
/* The dims of the packed form of a value with these token axes: rows, then its other axes; the rank. */
int lathe_packing_dims(const struct lathe_packing *p, const struct lathe_value *v, struct lathe_row_layout layout,
                       lathe_dim *dims);
/* The axis of the packed form for an axis that holds no tokens. */
int lathe_packing_axis(struct lathe_row_layout layout, int axis);

/* All of these make nodes before `n` and return LATHE_NONE when memory runs out or a rank is too large. */
/* The packed form of v: v itself when it is in the region. */
lathe_value_id lathe_packing_pack(struct lathe_packing *p, lathe_node_id n, lathe_value_id v,
                                  struct lathe_row_layout layout);
/* v broadcasts against a value of rank `rank` and that layout, the same for all sequences or for all tokens of one:
 * [rows, its other axes]. */
lathe_value_id lathe_packing_spread(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, int rank,
                                    struct lathe_row_layout layout);
/* The positions of the kept rows, counted from `offset`, i64 [rows]. */
lathe_value_id lathe_packing_positions(struct lathe_packing *p, lathe_node_id n, int64_t offset);
/* v, of the region, as it was; rows at masked tokens are zeros, but with `kept` for those that the map keeps. Right
 * behind its producer. */
lathe_value_id lathe_packing_unpack(struct lathe_packing *p, lathe_value_id v, bool kept);
#endif
