/* Drops padding: a batch is computed on the rows that its mask keeps.
 *
 * The region that row_region.c finds is rewritten in place: each value [B,S,..] becomes [rows,..], axes move up, and
 * attention becomes attention_rows. `rows` is a symbol that the session binds after row_map has run; its keys come from
 * the inputs alone. At the borders pack_rows and unpack_rows convert: an operator that the region does not know runs on
 * the padded form between them. A token that is read by position or by an index of each sequence is kept whatever its
 * mask says (attribute `values`, operands of row_map) and read by take_rows, the mean over the tokens is mean_rows.
 * Where the graph does not allow that, its token outputs still get zeros at masked tokens. */
#include "match.h"
#include "packed_values.h"

#include <string.h>

/* An operand that is the same for all tokens, without the token axes (of one entry) that the packed form has not. */
static lathe_value_id free_operand(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, int rank,
                                   struct lathe_row_layout layout) {
    struct lathe_graph *g = p->g;
    const struct lathe_value *value = &g->values[v];
    int missing = rank - value->rank, out = 0;
    lathe_dim dims[LATHE_MAX_RANK];
    for (int i = 0; i < value->rank; i++)
        if (!lathe_row_is_token_axis(layout, i + missing))
            dims[out++] = value->dims[i];
    return out == value->rank ? v : lathe_match_make_reshape(p->ctx, n, v, out, dims);
}

/* A packed operand with fewer axes than the packed result: rows stay first, ones follow. */
static lathe_value_id align(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, int rank) {
    struct lathe_graph *g = p->g;
    if (v == LATHE_NONE || g->values[v].rank >= rank)
        return v;
    struct lathe_value value = g->values[v];
    lathe_dim dims[LATHE_MAX_RANK];
    int missing = rank - value.rank;
    dims[0] = p->rows;
    for (int i = 1; i < rank; i++)
        dims[i] = i <= missing ? lathe_dim_const(g->dims, 1) : value.dims[i - missing];
    return lathe_match_make_reshape(p->ctx, n, v, rank, dims);
}

/* The axes in n's attributes, which are those of operand 0. */
static void move_axes(struct lathe_graph *g, lathe_node_id n, struct lathe_row_layout in, struct lathe_row_layout out) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_attr *axis = lathe_attr_find(&attrs, LATHE_ATTR_AXIS);
    uint32_t count;
    enum lathe_op op = g->nodes[n].op;
    if (axis && axis->type == LATHE_ATTR_INT && op != LATHE_OP_QUANTIZE_LINEAR && op != LATHE_OP_DEQUANTIZE_LINEAR)
        lathe_node_set_int(g, n, LATHE_ATTR_AXIS, lathe_packing_axis(in, (int)axis->i));
    attrs = lathe_node_attrs(g, n);
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    int64_t moved[LATHE_MAX_RANK];
    if (count && count <= LATHE_MAX_RANK) {
        for (uint32_t i = 0; i < count; i++)
            moved[i] = lathe_packing_axis(in, (int)axes[i]);
        lathe_node_set_ints(g, n, LATHE_ATTR_AXES, moved, count);
    }
    attrs = lathe_node_attrs(g, n);
    const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    if (op == LATHE_OP_TRANSPOSE && count <= LATHE_MAX_RANK) {
        uint32_t rank = 1;
        moved[0] = 0;
        for (uint32_t i = 0; i < count; i++)
            if (!lathe_row_is_token_axis(out, (int)i))
                moved[rank++] = lathe_packing_axis(in, (int)perm[i]);
        lathe_node_set_ints(g, n, LATHE_ATTR_PERM, moved, rank);
    }
}

/* ---- operators whose packed form is another one */

/* A convolution whose kernel is one position: the rows are the positions of one sequence. */
static bool make_conv(struct lathe_packing *p, lathe_node_id n, lathe_value_id *in, uint32_t n_in) {
    struct lathe_graph *g = p->g;
    struct lathe_value y = *lathe_packing_old(p, g->nodes[n].out[0]), x = g->values[in[0]];
    const char *name = g->nodes[n].name;
    lathe_dim one = lathe_dim_const(g->dims, 1);
    lathe_dim columns[2] = {x.dims[1], p->rows}, whole[3] = {one, x.dims[1], p->rows};
    int64_t swap[2] = {1, 0};
    lathe_value_id t = lathe_graph_emit(g, n, LATHE_OP_TRANSPOSE, name, in, 1, x.dtype, 2, columns);
    if (t == LATHE_NONE)
        return false;
    lathe_node_set_ints(g, g->values[t].producer, LATHE_ATTR_PERM, swap, 2);
    in[0] = lathe_match_make_reshape(p->ctx, n, t, 3, whole);
    whole[1] = columns[0] = y.dims[1];
    lathe_value_id conv =
        in[0] == LATHE_NONE ? in[0] : lathe_graph_emit(g, n, LATHE_OP_CONV, name, in, n_in, y.dtype, 3, whole);
    if (conv == LATHE_NONE)
        return false;
    lathe_match_copy_attrs(g, n, g->values[conv].producer);
    lathe_value_id back = lathe_match_make_reshape(p->ctx, n, conv, 2, columns);
    if (back == LATHE_NONE)
        return false;
    lathe_match_make_into(g, n, LATHE_OP_TRANSPOSE, &back, 1);
    lathe_node_set_ints(g, n, LATHE_ATTR_PERM, swap, 2);
    return true;
}

/* Rotary embedding of a sequence of one token for each row, so that rows stay the first axis; a table needs their
 * positions. */
static bool make_rotary(struct lathe_packing *p, lathe_node_id n, const lathe_value_id *operands, uint32_t n_in) {
    struct lathe_graph *g = p->g;
    lathe_value_id in[4] = {operands[0], operands[1], operands[2], n_in > 3 ? operands[3] : LATHE_NONE};
    bool packed = p->region->operands[n][1].role == LATHE_ROW_ROWS; /* a row for each of x, no table by position */
    if (in[3] == LATHE_NONE && !packed)
        in[3] = lathe_packing_positions(p, n, 0);
    struct lathe_value x = g->values[in[0]];
    const char *name = g->nodes[n].name;
    lathe_dim dims[3] = {p->rows, lathe_dim_const(g->dims, 1), x.dims[1]};
    int64_t heads = 0;
    if (x.rank == 3) {
        if (!lathe_dim_is_const(g->dims, x.dims[1], &heads))
            return false;
        dims[2] = lathe_dim_mul(g->dims, x.dims[1], x.dims[2]);
    }
    lathe_dim hidden = dims[2];
    in[0] = lathe_match_make_reshape(p->ctx, n, in[0], 3, dims);
    bool table = in[3] != LATHE_NONE;
    for (uint32_t i = table ? 3 : 1; i < (table ? 4u : 3u) && in[0] != LATHE_NONE; i++) {
        int rank = g->values[in[i]].rank;
        dims[2] = rank > 1 ? g->values[in[i]].dims[1] : dims[1];
        in[i] = lathe_match_make_reshape(p->ctx, n, in[i], rank + 1, dims);
        if (in[i] == LATHE_NONE)
            return false;
    }
    dims[2] = hidden;
    lathe_value_id made = in[0] == LATHE_NONE
                              ? in[0]
                              : lathe_graph_emit(g, n, LATHE_OP_ROTARY, name, in, table ? 4 : 3, x.dtype, 3, dims);
    if (made == LATHE_NONE)
        return false;
    lathe_match_copy_attrs(g, n, g->values[made].producer);
    if (heads)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_HEADS, heads);
    lathe_match_make_into(g, n, LATHE_OP_RESHAPE, &made, 1);
    return true;
}

/* One node of the region, on rows. */
static bool rewrite(struct lathe_packing *p, lathe_node_id n) {
    struct lathe_graph *g = p->g;
    lathe_value_id in[LATHE_ROW_MAX_OPERANDS];
    const struct lathe_row_operand *operands = p->region->operands[n];
    uint32_t n_in = g->nodes[n].n_in;
    enum lathe_op op = g->nodes[n].op;
    lathe_value_id y = g->nodes[n].out[0];
    struct lathe_row_layout layout = p->region->layout[y];
    bool pairwise = lathe_op_info(op)->flags & LATHE_OPF_PAIRWISE;
    lathe_dim dims[LATHE_MAX_RANK + 1];
    int rank = lathe_packing_old(p, y)->rank,
        packed_rank = lathe_packing_dims(p, lathe_packing_old(p, y), layout, dims);
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t offset_count;
    const int64_t *offsets = lathe_attr_ints(&attrs, LATHE_ATTR_OFFSETS, &offset_count);
    for (uint32_t i = 0; i < n_in; i++) {
        lathe_value_id o = in[i] = g->nodes[n].in[i];
        switch ((enum lathe_row_role)operands[i].role) {
        case LATHE_ROW_ROWS:
            in[i] = lathe_packing_pack(p, n, o, operands[i].layout);
            if (pairwise)
                in[i] = align(p, n, in[i], packed_rank);
            break;
        case LATHE_ROW_SPREAD:
            in[i] = lathe_packing_spread(p, n, o, op == LATHE_OP_EMBEDDING ? 2 : rank, layout);
            if (pairwise)
                in[i] = align(p, n, in[i], packed_rank);
            break;
        case LATHE_ROW_POSITION:
            in[i] = lathe_packing_positions(p, n, offsets[(i - 3) / 2]);
            break;
        case LATHE_ROW_FREE:
            if (pairwise)
                in[i] = free_operand(p, n, o, rank, layout);
            break;
        case LATHE_ROW_ABSENT:
            continue;
        }
        if (in[i] == LATHE_NONE)
            return false;
    }
    if (op == LATHE_OP_ATTENTION) {
        in[3] = p->map;
        lathe_node_set_op(g, n, LATHE_OP_ATTENTION_ROWS);
    }
    if (op == LATHE_OP_CONV ? !make_conv(p, n, in, n_in) : op == LATHE_OP_ROTARY ? !make_rotary(p, n, in, n_in) : false)
        return false;
    if (op != LATHE_OP_CONV && op != LATHE_OP_ROTARY) {
        lathe_node_set_inputs(g, n, in, n_in);
        if (operands[0].role == LATHE_ROW_ROWS && !pairwise)
            move_axes(g, n, operands[0].layout, layout);
    }
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
        lathe_value_id v = g->nodes[n].out[i];
        if (v == LATHE_NONE)
            continue;
        struct lathe_value *value = &g->values[v];
        packed_rank = lathe_packing_dims(p, lathe_packing_old(p, v), layout, dims);
        value->rank = packed_rank;
        for (int k = 0; k < LATHE_MAX_RANK; k++)
            value->dims[k] = k < packed_rank ? dims[k] : LATHE_DIM_NONE;
    }
    return !g->out_of_memory;
}

/* ---- readers */

/* Node n becomes a reader [B, other axes] of the rows of v, seen in n's own shape. */
static lathe_node_id make_reader(struct lathe_packing *p, lathe_node_id n, enum lathe_op op, lathe_value_id v,
                                 lathe_value_id index) {
    struct lathe_graph *g = p->g;
    lathe_value_id in[3] = {v, p->map, index}, y = g->nodes[n].out[0];
    uint32_t n_in = index == LATHE_NONE ? 2 : 3;
    lathe_dim dims[LATHE_MAX_RANK + 1];
    int rank = lathe_packing_dims(p, &p->before[v], p->region->layout[v], dims);
    dims[0] = p->region->sizes.batch;
    bool same = g->values[y].rank == rank;
    for (int i = 0; i < rank && same; i++)
        same = lathe_match_dim_equal(g, g->values[y].dims[i], dims[i]);
    if (same) {
        lathe_match_make_into(g, n, op, in, n_in);
        return n;
    }
    lathe_value_id made = lathe_graph_emit(g, n, op, g->nodes[n].name, in, n_in, g->values[y].dtype, rank, dims);
    if (made == LATHE_NONE)
        return LATHE_NONE;
    lathe_match_make_into(g, n, LATHE_OP_RESHAPE, &made, 1);
    return g->values[made].producer;
}

static void make_means(struct lathe_packing *p) {
    struct lathe_graph *g = p->g;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(p->ctx, LATHE_OP_DIV, &count);
    for (uint32_t i = 0; i < count; i++) {
        lathe_value_id x;
        double epsilon;
        if (g->nodes[list[i]].op != LATHE_OP_DIV || p->region->member[list[i]] ||
            !lathe_row_is_mean(p->region, list[i], &x, &epsilon) || p->region->entry[x])
            continue;
        lathe_node_id mean = make_reader(p, list[i], LATHE_OP_MEAN_ROWS, x, LATHE_NONE);
        if (mean != LATHE_NONE)
            lathe_node_set_float(g, mean, LATHE_ATTR_EPSILON, epsilon);
    }
}

/* The index of each sequence in one axis. */
static lathe_value_id flat_index(struct lathe_packing *p, lathe_value_id index) {
    lathe_node_id map = p->g->values[p->map].producer;
    return lathe_match_make_reshape(p->ctx, map, index, 1, &p->region->sizes.batch);
}

static bool serve_reader(struct lathe_packing *p, lathe_node_id n, lathe_value_id v, lathe_value_id *kept) {
    struct lathe_graph *g = p->g;
    struct lathe_row_take take;
    if (lathe_row_is_take(p->region, n, &take) && take.x == v) {
        lathe_value_id index = take.index == LATHE_NONE ? LATHE_NONE : flat_index(p, take.index);
        lathe_node_id reader = make_reader(p, n, LATHE_OP_TAKE_ROWS, v, index);
        if (reader == LATHE_NONE)
            return false;
        if (take.index == LATHE_NONE)
            lathe_node_set_int(g, reader, LATHE_ATTR_START, take.position);
        return true;
    }
    if (*kept == LATHE_NONE)
        *kept = lathe_packing_unpack(p, v, true);
    for (uint32_t k = 0; k < g->nodes[n].n_in && *kept != LATHE_NONE; k++)
        if (g->nodes[n].in[k] == v)
            lathe_node_set_input(g, n, k, *kept);
    return *kept != LATHE_NONE;
}

/* Readers outside the region get what they read before. */
static bool serve_readers(struct lathe_packing *p) {
    struct lathe_graph *g = p->g;
    for (lathe_value_id v = 0; v < p->region->values; v++) {
        if (!lathe_row_inside(p->region, v) || g->values[v].producer == LATHE_NONE)
            continue;
        lathe_value_id kept = LATHE_NONE;
        for (uint32_t i = g->values[v].use_count; i-- > 0;) {
            lathe_node_id n = g->values[v].uses[i];
            if (n >= p->region->nodes || p->region->member[n] || g->nodes[n].op == LATHE_OP_MEAN_ROWS ||
                g->nodes[n].op == LATHE_OP_TAKE_ROWS)
                continue;
            if (!serve_reader(p, n, v, &kept))
                return false;
            i = g->values[v].use_count;
        }
        if (!g->values[v].is_output)
            continue;
        lathe_value_id mask = p->region->tokens, whole = lathe_packing_unpack(p, v, mask != LATHE_NONE);
        if (whole != LATHE_NONE && mask != LATHE_NONE && !p->region->zero[v])
            whole = lathe_row_zero_masked(g, mask, whole);
        if (whole == LATHE_NONE)
            return false;
        for (uint32_t i = 0; i < g->output_count; i++)
            if (g->outputs[i] == v)
                g->outputs[i] = whole;
        g->values[v].is_output = false;
        g->values[whole].is_output = true;
    }
    return true;
}

/* ---- the graph */

static bool make_map(struct lathe_packing *p) {
    struct lathe_graph *g = p->g;
    struct lathe_row_region *r = p->region;
    struct lathe_dims *t = g->dims;
    int64_t batch = lathe_dim_upper(t, r->sizes.batch), seq = lathe_dim_upper(t, r->sizes.seq), most;
    if (batch == INT64_MAX || seq == INT64_MAX || !lathe_mul_i64(batch, seq, &most))
        most = INT64_MAX;
    p->rows = lathe_dim_symbol(t, "rows", 0, most);
    lathe_dim size = lathe_dim_add(t, lathe_dim_mul(t, lathe_dim_const(t, 4), r->sizes.batch),
                                   lathe_dim_mul(t, lathe_dim_const(t, 2), r->sizes.tokens));
    lathe_value_id in[2 + LATHE_ROW_MAX_PLACES] = {r->keys};
    uint32_t n_in = 1 + r->place_count;
    for (uint32_t i = 0; i < r->place_count; i++) {
        in[i + 1] = lathe_match_make_reshape(p->ctx, g->first, r->places[i], 1, &r->sizes.batch);
        if (in[i + 1] == LATHE_NONE)
            return false;
    }
    if (p->rows == LATHE_DIM_NONE || size == LATHE_DIM_NONE)
        return false;
    if (r->tokens != LATHE_NONE)
        in[n_in++] = r->tokens;
    p->map = lathe_graph_emit(g, g->first, LATHE_OP_ROW_MAP, "row_map", in, n_in, LATHE_I32, 1, &size);
    if (p->map == LATHE_NONE)
        return false;
    lathe_node_id n = g->values[p->map].producer;
    lathe_node_set_int(g, n, LATHE_ATTR_MASKED_ROW, r->masked_row);
    if (r->by_position)
        lathe_node_set_int(g, n, LATHE_ATTR_CAUSAL, 1);
    if (r->position_count)
        lathe_node_set_ints(g, n, LATHE_ATTR_VALUES, r->positions, r->position_count);
    return true;
}

static bool pack_graph(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_packing p = {.ctx = ctx, .g = g, .region = region, .places = LATHE_NONE};
    p.before = lathe_arena_alloc_array(ctx->scratch, region->values, sizeof *p.before);
    p.packed = lathe_arena_alloc_array(ctx->scratch, region->values, sizeof *p.packed);
    if (!p.before || !p.packed || !make_map(&p))
        return false;
    memcpy(p.before, g->values, region->values * sizeof *p.before);
    for (lathe_value_id v = 0; v < region->values; v++)
        p.packed[v] = LATHE_NONE;
    make_means(&p);
    if (!serve_readers(&p))
        return false;
    uint32_t count = 0;
    lathe_node_id *order = lathe_arena_alloc_array(ctx->scratch, region->nodes, sizeof *order);
    if (!order)
        return false;
    LATHE_FOR_NODES(g, n) if (n < region->nodes && region->member[n]) order[count++] = n;
    for (uint32_t i = 0; i < count; i++)
        if (!rewrite(&p, order[i]))
            return false;
    ctx->changes += count;
    if (region->left_out)
        lathe_pass_note(ctx, "packed_rows", "in part: %u of %u attentions; %s", region->attentions,
                        region->attentions + region->left_out,
                        region->reader != LATHE_NONE ? region->reason : "others have other keys");
    else
        lathe_pass_note(ctx, "packed_rows", "true");
    return true;
}

enum lathe_status lathe_pass_pack_rows(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    /* how many rows are kept depends on the data, which static shapes do not allow */
    if ((ctx->options && (ctx->options->keep_padding || ctx->options->bucket_count)) ||
        (ctx->target && ctx->target->shapes == LATHE_SHAPES_STATIC))
        return LATHE_OK;
    struct lathe_row_region region;
    LATHE_TRY(lathe_row_region_find(ctx, &region));
    if (!region.attentions && region.none)
        lathe_pass_note(ctx, "packed_rows", "false: %s", region.none);
    if (region.mixes)
        lathe_pass_warn(ctx, "PADDING_DEPENDENT", region.reader,
                        "%s; as in the source, a token's result may depend on the padding beside it", region.reason);
    if ((region.attentions && !pack_graph(ctx, &region)) || !lathe_row_zero_outputs(ctx, &region) || g->out_of_memory)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
    return ctx->changes ? lathe_graph_sort(g, ctx->diag) : LATHE_OK;
}
