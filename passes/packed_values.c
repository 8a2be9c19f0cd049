#include "packed_values.h"

#include "match.h"

#define MAX_STEPS 6 /* cheap steps on a mask that are made on the rows instead */

int lathe_packing_dims(const struct lathe_packing *p, const struct lathe_value *v, struct lathe_row_layout layout,
                       lathe_dim *dims) {
    int axes[LATHE_MAX_RANK], count = lathe_row_other_axes(v->rank, layout, axes);
    dims[0] = p->rows;
    for (int i = 0; i < count; i++)
        dims[i + 1] = v->dims[axes[i]];
    return count + 1;
}

int lathe_packing_axis(struct lathe_row_layout layout, int axis) {
    int before = (layout.token < axis) + (layout.batch < axis && layout.batch != layout.token);
    return axis - before + 1;
}

static lathe_value_id emit(struct lathe_packing *p, lathe_node_id n, enum lathe_op op, const lathe_value_id *in,
                           uint32_t n_in, enum lathe_dtype dtype, int rank, const lathe_dim *dims) {
    if (rank > LATHE_MAX_RANK)
        return LATHE_NONE;
    for (uint32_t i = 0; i < n_in; i++)
        if (in[i] == LATHE_NONE)
            return LATHE_NONE;
    return lathe_graph_emit(p->g, n, op, p->g->nodes[n].name, in, n_in, dtype, rank, dims);
}

/* ---- from the padded form */

/* [B,S, other axes] of a value with other token axes. */
static lathe_value_id tokens_first(struct lathe_packing *p, lathe_node_id n, lathe_value_id v,
                                   struct lathe_row_layout layout) {
    struct lathe_graph *g = p->g;
    struct lathe_value value = *lathe_packing_old(p, v);
    int axes[LATHE_MAX_RANK], count = lathe_row_other_axes(value.rank, layout, axes), rank = 0;
    int64_t perm[LATHE_MAX_RANK];
    bool merged = layout.batch == layout.token, moved = false;
    lathe_dim dims[LATHE_MAX_RANK + 1];
    perm[rank++] = layout.batch;
    if (!merged)
        perm[rank++] = layout.token;
    for (int i = 0; i < count; i++)
        perm[rank++] = axes[i];
    for (int i = 0; i < rank; i++) {
        dims[i] = value.dims[perm[i]];
        moved |= perm[i] != i;
    }
    if (moved) {
        v = emit(p, n, LATHE_OP_TRANSPOSE, &v, 1, value.dtype, rank, dims);
        if (v == LATHE_NONE)
            return v;
        lathe_node_set_ints(g, g->values[v].producer, LATHE_ATTR_PERM, perm, (uint32_t)rank);
    }
    if (!merged)
        return v;
    if (rank + 1 > LATHE_MAX_RANK)
        return LATHE_NONE;
    for (int i = rank; i > 1; i--)
        dims[i] = dims[i - 1];
    dims[0] = p->region->sizes.batch;
    dims[1] = p->region->sizes.seq;
    return lathe_match_make_reshape(p->ctx, n, v, rank + 1, dims);
}

static lathe_value_id pack(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, struct lathe_row_layout layout,
                           int depth) {
    struct lathe_graph *g = p->g;
    if (v < p->region->values && p->packed[v] != LATHE_NONE)
        return p->packed[v];
    if (lathe_row_inside(p->region, v))
        return v;
    struct lathe_value value = *lathe_packing_old(p, v);
    lathe_dim dims[LATHE_MAX_RANK + 1];
    lathe_value_id made = LATHE_NONE;
    int rank = lathe_packing_dims(p, &value, layout, dims);
    lathe_node_id from = value.producer;
    if (from != LATHE_NONE && depth > 0 && g->nodes[from].n_in == 1 && g->nodes[from].n_out == 1) {
        enum lathe_op op = g->nodes[from].op;
        lathe_value_id source = g->nodes[from].in[0];
        struct lathe_row_layout inner;
        /* cheap steps on a mask: on the rows, behind one pack_rows of the mask itself */
        if ((op == LATHE_OP_RESHAPE || op == LATHE_OP_EXPAND || op == LATHE_OP_CAST || op == LATHE_OP_NOT) &&
            !lathe_row_inside(p->region, source) &&
            (op != LATHE_OP_EXPAND || lathe_packing_old(p, source)->rank == value.rank) &&
            lathe_row_layout_before(g, &p->region->sizes, from, 0, layout, &inner)) {
            lathe_value_id rows = pack(p, n, source, inner, depth - 1);
            made = emit(p, n, op, &rows, 1, value.dtype, rank, dims);
            if (made == LATHE_NONE)
                return made;
            for (uint32_t i = 0; i < g->nodes[from].n_attrs; i++)
                if (g->nodes[from].attrs[i].type == LATHE_ATTR_INT)
                    lathe_node_set_int(g, g->values[made].producer, g->nodes[from].attrs[i].key,
                                       g->nodes[from].attrs[i].i);
        }
    }
    if (made == LATHE_NONE) {
        lathe_value_id in[2] = {tokens_first(p, n, v, layout), p->map};
        made = emit(p, n, LATHE_OP_PACK_ROWS, in, 2, value.dtype, rank, dims);
    }
    if (v < p->region->values)
        p->packed[v] = made;
    return made;
}

lathe_value_id lathe_packing_pack(struct lathe_packing *p, lathe_node_id n, lathe_value_id v,
                                  struct lathe_row_layout layout) {
    return pack(p, n, v, layout, MAX_STEPS);
}

/* ---- the same for all sequences, or for all tokens of one */

/* The integers 0, 1, .. along an axis of [B,S], of the kept rows: their positions, or their sequences. */
static lathe_value_id counted(struct lathe_packing *p, lathe_node_id n, bool along_tokens) {
    struct lathe_graph *g = p->g;
    lathe_dim one = lathe_dim_const(g->dims, 1), tokens[2] = {p->region->sizes.batch, p->region->sizes.seq};
    lathe_dim size = tokens[along_tokens], line_dims[2] = {along_tokens ? one : size, along_tokens ? size : one};
    lathe_value_id line = emit(p, n, LATHE_OP_RANGE, NULL, 0, LATHE_I64, 1, &size);
    if (line == LATHE_NONE)
        return line;
    lathe_node_id range = g->values[line].producer;
    lathe_node_set_int(g, range, LATHE_ATTR_START, 0);
    lathe_node_set_int(g, range, LATHE_ATTR_DELTA, 1);
    line = lathe_match_make_reshape(p->ctx, n, line, 2, line_dims);
    lathe_value_id in[2] = {emit(p, n, LATHE_OP_EXPAND, &line, 1, LATHE_I64, 2, tokens), p->map};
    return emit(p, n, LATHE_OP_PACK_ROWS, in, 2, LATHE_I64, 1, &p->rows);
}

lathe_value_id lathe_packing_positions(struct lathe_packing *p, lathe_node_id n, int64_t offset) {
    struct lathe_graph *g = p->g;
    /* made once, before everything that reads it */
    if (p->places == LATHE_NONE)
        p->places = counted(p, g->nodes[g->values[p->map].producer].next, true);
    if (p->places == LATHE_NONE || offset == 0)
        return p->places;
    lathe_value_id in[2] = {p->places, lathe_graph_add_constant_copy(g, "first", LATHE_I64, 0, NULL, &offset)};
    return emit(p, n, LATHE_OP_ADD, in, 2, LATHE_I64, 1, &p->rows);
}

lathe_value_id lathe_packing_spread(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, int rank,
                                    struct lathe_row_layout layout) {
    struct lathe_graph *g = p->g;
    struct lathe_value value = *lathe_packing_old(p, v);
    int missing = rank - value.rank, token = layout.token - missing, batch = layout.batch - missing;
    int64_t size;
    bool by_token = token >= 0 && !(lathe_dim_is_const(g->dims, value.dims[token], &size) && size == 1);
    int axis = by_token ? token : batch, out = 1;
    lathe_dim dims[LATHE_MAX_RANK + 1], flat[LATHE_MAX_RANK];
    int64_t perm[LATHE_MAX_RANK];
    bool moved = axis != 0;
    /* the axis that is read goes first; the other token axis has one entry */
    perm[0] = axis;
    for (int i = 0, k = 1; i < value.rank; i++)
        if (i != axis)
            perm[k++] = i;
    for (int i = 0; i < value.rank; i++)
        flat[i] = value.dims[perm[i]];
    if (moved) {
        v = emit(p, n, LATHE_OP_TRANSPOSE, &v, 1, value.dtype, value.rank, flat);
        if (v == LATHE_NONE)
            return v;
        lathe_node_set_ints(g, g->values[v].producer, LATHE_ATTR_PERM, perm, (uint32_t)value.rank);
    }
    dims[0] = value.dims[axis];
    for (int i = 0; i < value.rank; i++)
        if (i != token && i != batch)
            dims[out++] = value.dims[i];
    lathe_value_id table = lathe_match_make_reshape(p->ctx, n, v, out, dims);
    lathe_value_id in[2] = {table, by_token ? lathe_packing_positions(p, n, 0) : counted(p, n, false)};
    dims[0] = p->rows;
    lathe_value_id made = emit(p, n, LATHE_OP_GATHER, in, 2, value.dtype, out, dims);
    if (made != LATHE_NONE)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_AXIS, 0);
    return made;
}

/* ---- to the padded form */

lathe_value_id lathe_packing_unpack(struct lathe_packing *p, lathe_value_id v, bool kept) {
    struct lathe_graph *g = p->g;
    struct lathe_value value = p->before[v];
    struct lathe_row_layout layout = p->region->layout[v];
    lathe_node_id next = g->nodes[value.producer].next;
    int axes[LATHE_MAX_RANK], count = lathe_row_other_axes(value.rank, layout, axes);
    lathe_value_id in[2] = {v, p->map};
    lathe_dim dims[LATHE_MAX_RANK + 2] = {p->region->sizes.batch, p->region->sizes.seq};
    for (int i = 0; i < count; i++)
        dims[i + 2] = value.dims[axes[i]];
    if (count + 2 > LATHE_MAX_RANK)
        return LATHE_NONE;
    const char *name = g->nodes[value.producer].name;
    lathe_value_id made = lathe_graph_emit(g, next, LATHE_OP_UNPACK_ROWS, name, in, 2, value.dtype, count + 2, dims);
    if (made == LATHE_NONE)
        return made;
    if (kept)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_MODE, 1);
    bool merged = layout.batch == layout.token;
    int64_t perm[LATHE_MAX_RANK];
    bool moved = false;
    int at = 0;
    if (merged) {
        dims[0] = p->region->sizes.tokens;
        for (int i = 0; i < count; i++)
            dims[i + 1] = value.dims[axes[i]];
        made = lathe_graph_emit(g, next, LATHE_OP_RESHAPE, name, &made, 1, value.dtype, count + 1, dims);
        if (made == LATHE_NONE)
            return made;
    }
    for (int i = 0; i < value.rank; i++) {
        perm[i] = i == layout.batch ? 0 : i == layout.token ? 1 : (merged ? 1 : 2) + at++;
        moved |= perm[i] != i;
    }
    if (!moved)
        return made;
    made = lathe_graph_emit(g, next, LATHE_OP_TRANSPOSE, name, &made, 1, value.dtype, value.rank, value.dims);
    if (made != LATHE_NONE)
        lathe_node_set_ints(g, g->values[made].producer, LATHE_ATTR_PERM, perm, (uint32_t)value.rank);
    return made;
}
