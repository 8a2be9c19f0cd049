/* Drops padding: a batch is computed on the rows that its mask keeps.
 *
 * The region that row_region.c finds is rewritten in place: each value [B,S,..] becomes [rows,..], axes move up, and
 * attention becomes attention_rows. `rows` is a symbol that the session binds after row_map has run; its keys come from
 * the inputs alone. At the borders pack_rows and unpack_rows convert, a token that is read by position is kept whatever
 * its mask says (attribute `values` of row_map) and read by take_rows, the mean over the tokens is mean_rows.
 * Where the graph does not allow that, its token outputs still get zeros at masked tokens. */
#include "match.h"
#include "row_region.h"

#include <string.h>

struct packing {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    struct lathe_row_region *r;
    struct lathe_value *before; /* the values as they were, by id */
    lathe_value_id *packed;     /* of an unpacked value, by id: its packed form; LATHE_NONE: not made yet */
    lathe_value_id map;
    lathe_dim rows;
};

static const struct lathe_value *old(const struct packing *p, lathe_value_id v) {
    return v < p->r->values ? &p->before[v] : &p->g->values[v];
}

/* The dims of v without its first `lead` axes and with `first[0..n)` in front. */
static int with_lead(const struct lathe_value *v, int lead, const lathe_dim *first, int n, lathe_dim *out) {
    int rank = 0;
    for (int i = 0; i < n; i++)
        out[rank++] = first[i];
    for (int i = lead; i < v->rank; i++)
        out[rank++] = v->dims[i];
    return rank;
}

static bool in_region(const struct packing *p, lathe_value_id v) {
    return v < p->r->values && p->r->lead[v] && !p->r->entry[v];
}

/* The packed form of a value outside the region with these token axes, made before node `n`. */
static lathe_value_id pack(struct packing *p, lathe_node_id n, lathe_value_id v, int lead, int depth) {
    struct lathe_graph *g = p->g;
    if (v < p->r->values && p->packed[v] != LATHE_NONE)
        return p->packed[v];
    if (in_region(p, v))
        return v;
    struct lathe_value value = *old(p, v);
    lathe_dim dims[LATHE_MAX_RANK];
    lathe_value_id made = LATHE_NONE, in[2] = {v, p->map};
    int rank = with_lead(&value, lead, &p->rows, 1, dims);
    lathe_node_id from = value.producer;
    const char *name = g->nodes[n].name;
    if (from != LATHE_NONE && depth > 0 && g->nodes[from].n_in == 1 && g->nodes[from].n_out == 1) {
        enum lathe_op op = g->nodes[from].op;
        lathe_value_id source = g->nodes[from].in[0];
        bool view = op == LATHE_OP_RESHAPE || op == LATHE_OP_EXPAND;
        int source_lead = lathe_row_lead(p->r, source);
        /* cheap steps on a mask: on the rows, behind one pack_rows of the mask itself */
        if (!in_region(p, source) &&
            ((view && source_lead == 2 && lead == 2) ||
             ((op == LATHE_OP_CAST || op == LATHE_OP_NOT) && source_lead == lead)) &&
            (op != LATHE_OP_EXPAND || old(p, source)->rank == value.rank)) {
            lathe_value_id inner = pack(p, n, source, source_lead, depth - 1);
            if (inner == LATHE_NONE)
                return LATHE_NONE;
            made = lathe_graph_emit(g, n, op, name, &inner, 1, value.dtype, rank, dims);
            if (made == LATHE_NONE)
                return made;
            for (uint32_t i = 0; i < g->nodes[from].n_attrs; i++)
                if (g->nodes[from].attrs[i].type == LATHE_ATTR_INT)
                    lathe_node_set_int(g, g->values[made].producer, g->nodes[from].attrs[i].key,
                                       g->nodes[from].attrs[i].i);
        }
    }
    if (made == LATHE_NONE) {
        if (lead == 1) {
            lathe_dim first[2] = {p->r->batch, p->r->seq}, whole[LATHE_MAX_RANK];
            if (value.rank + 1 > LATHE_MAX_RANK)
                return LATHE_NONE;
            int whole_rank = with_lead(&value, 1, first, 2, whole);
            in[0] = lathe_match_make_reshape(p->ctx, n, v, whole_rank, whole);
        }
        made = lathe_graph_emit(g, n, LATHE_OP_PACK_ROWS, name, in, 2, value.dtype, rank, dims);
    }
    if (v < p->r->values)
        p->packed[v] = made;
    return made;
}

/* [1,S,..] or [B,1,..] against the output's token axes. */
static lathe_value_id spread(struct packing *p, lathe_node_id n, lathe_value_id v, int rank, int lead) {
    struct lathe_graph *g = p->g;
    struct lathe_value value = *old(p, v);
    lathe_dim dims[LATHE_MAX_RANK];
    int missing = rank - value.rank;
    lathe_dim token[2] = {lead == 2 ? p->r->batch : p->r->tokens, p->r->seq};
    for (int i = 0; i < rank; i++)
        dims[i] = i < lead ? token[i] : i < missing ? lathe_dim_const(g->dims, 1) : value.dims[i - missing];
    lathe_value_id wide = lathe_graph_emit(g, n, LATHE_OP_EXPAND, g->nodes[n].name, &v, 1, value.dtype, rank, dims);
    return wide == LATHE_NONE ? wide : pack(p, n, wide, lead, 0);
}

/* The positions of the kept rows from `offset` on. */
static lathe_value_id positions(struct packing *p, lathe_node_id n, int64_t offset) {
    struct lathe_graph *g = p->g;
    lathe_value_id line = lathe_graph_emit(g, n, LATHE_OP_RANGE, "positions", NULL, 0, LATHE_I64, 1, &p->r->seq);
    if (line == LATHE_NONE)
        return line;
    lathe_node_id range = g->values[line].producer;
    lathe_node_set_int(g, range, LATHE_ATTR_START, offset);
    lathe_node_set_int(g, range, LATHE_ATTR_DELTA, 1);
    lathe_dim dims[2] = {lathe_dim_const(g->dims, 1), p->r->seq};
    lathe_value_id row = lathe_match_make_reshape(p->ctx, n, line, 2, dims);
    return row == LATHE_NONE ? row : spread(p, n, row, 2, 2);
}

/* An operand that is the same for all tokens, without the leading ones that the packed rank has no room for. */
static lathe_value_id drop_leading(struct packing *p, lathe_node_id n, lathe_value_id v, int packed_rank) {
    const struct lathe_value *value = &p->g->values[v];
    int surplus = value->rank - packed_rank;
    if (surplus <= 0)
        return v;
    lathe_dim dims[LATHE_MAX_RANK];
    int rank = with_lead(value, surplus, NULL, 0, dims);
    return lathe_match_make_reshape(p->ctx, n, v, rank, dims);
}

static void shift_axes(struct lathe_graph *g, lathe_node_id n, int shift) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_attr *axis = lathe_attr_find(&attrs, LATHE_ATTR_AXIS);
    uint32_t count;
    if (shift == 0)
        return;
    if (axis && axis->type == LATHE_ATTR_INT && g->nodes[n].op != LATHE_OP_QUANTIZE_LINEAR &&
        g->nodes[n].op != LATHE_OP_DEQUANTIZE_LINEAR)
        lathe_node_set_int(g, n, LATHE_ATTR_AXIS, axis->i - shift);
    attrs = lathe_node_attrs(g, n);
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    int64_t moved[LATHE_MAX_RANK];
    if (count && count <= LATHE_MAX_RANK) {
        for (uint32_t i = 0; i < count; i++)
            moved[i] = axes[i] - shift;
        lathe_node_set_ints(g, n, LATHE_ATTR_AXES, moved, count);
    }
    attrs = lathe_node_attrs(g, n);
    const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    if (count > (uint32_t)shift && count <= LATHE_MAX_RANK) {
        for (uint32_t i = (uint32_t)shift; i < count; i++)
            moved[i - (uint32_t)shift] = perm[i] - shift;
        lathe_node_set_ints(g, n, LATHE_ATTR_PERM, moved, count - (uint32_t)shift);
    }
}

/* One node of the region, on rows. */
static bool rewrite(struct packing *p, lathe_node_id n) {
    struct lathe_graph *g = p->g;
    lathe_value_id in[LATHE_ROW_MAX_OPERANDS];
    const uint8_t *roles = p->r->roles[n];
    uint32_t n_in = g->nodes[n].n_in;
    enum lathe_op op = g->nodes[n].op;
    lathe_value_id y = g->nodes[n].out[0];
    int lead = p->r->lead[y], packed_rank = old(p, y)->rank - lead + 1;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t offset_count;
    const int64_t *offsets = lathe_attr_ints(&attrs, LATHE_ATTR_OFFSETS, &offset_count);
    for (uint32_t i = 0; i < n_in; i++) {
        lathe_value_id o = in[i] = g->nodes[n].in[i];
        switch ((enum lathe_row_role)roles[i]) {
        case LATHE_ROW_ROWS:
            in[i] = pack(p, n, o, lathe_row_lead(p->r, o), 6);
            break;
        case LATHE_ROW_SPREAD:
            in[i] = spread(p, n, o, op == LATHE_OP_EMBEDDING ? 2 : old(p, y)->rank, lead);
            break;
        case LATHE_ROW_POSITION:
            in[i] = positions(p, n, offsets[(i - 3) / 2]);
            break;
        case LATHE_ROW_FREE:
            if (lathe_op_info(op)->flags & LATHE_OPF_PAIRWISE)
                in[i] = drop_leading(p, n, o, packed_rank);
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
    lathe_node_set_inputs(g, n, in, n_in);
    if (op != LATHE_OP_GATHER || roles[0] == LATHE_ROW_ROWS)
        shift_axes(g, n, lead - 1);
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
        lathe_value_id v = g->nodes[n].out[i];
        if (v == LATHE_NONE)
            continue;
        struct lathe_value *value = &g->values[v];
        lathe_dim dims[LATHE_MAX_RANK];
        int rank = with_lead(old(p, v), p->r->lead[v], &p->rows, 1, dims);
        value->rank = rank;
        for (int k = 0; k < LATHE_MAX_RANK; k++)
            value->dims[k] = k < rank ? dims[k] : LATHE_DIM_NONE;
    }
    return !g->out_of_memory;
}

/* Node n becomes a reader [B,H] of the rows of v, seen in n's own shape. */
static lathe_node_id make_reader(struct packing *p, lathe_node_id n, enum lathe_op op, lathe_value_id v) {
    struct lathe_graph *g = p->g;
    lathe_value_id in[2] = {v, p->map}, y = g->nodes[n].out[0];
    lathe_dim dims[2] = {p->r->batch, p->before[v].dims[2]};
    if (g->values[y].rank == 2) {
        lathe_match_make_into(g, n, op, in, 2);
        return n;
    }
    lathe_value_id made = lathe_graph_emit(g, n, op, g->nodes[n].name, in, 2, g->values[y].dtype, 2, dims);
    if (made == LATHE_NONE)
        return LATHE_NONE;
    lathe_match_make_into(g, n, LATHE_OP_RESHAPE, &made, 1);
    return g->values[made].producer;
}

/* v as it was, zeros where the mask is 0; right behind its producer. */
static lathe_value_id unpack(struct packing *p, lathe_value_id v) {
    struct lathe_graph *g = p->g;
    struct lathe_value value = p->before[v];
    lathe_node_id next = g->nodes[value.producer].next;
    lathe_value_id in[2] = {v, p->map};
    lathe_dim first[2] = {p->r->batch, p->r->seq}, dims[LATHE_MAX_RANK];
    if (value.rank - p->r->lead[v] + 2 > LATHE_MAX_RANK)
        return LATHE_NONE;
    int rank = with_lead(&value, p->r->lead[v], first, 2, dims);
    lathe_value_id made =
        lathe_graph_emit(g, next, LATHE_OP_UNPACK_ROWS, g->nodes[value.producer].name, in, 2, value.dtype, rank, dims);
    if (made == LATHE_NONE || p->r->lead[v] == 2)
        return made;
    return lathe_graph_emit(g, next, LATHE_OP_RESHAPE, g->nodes[value.producer].name, &made, 1, value.dtype, value.rank,
                            value.dims);
}

static void make_means(struct packing *p) {
    struct lathe_graph *g = p->g;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(p->ctx, LATHE_OP_DIV, &count);
    for (uint32_t i = 0; i < count; i++) {
        lathe_value_id x;
        double epsilon;
        if (g->nodes[list[i]].op != LATHE_OP_DIV || p->r->member[list[i]] ||
            !lathe_row_is_mean(p->r, list[i], &x, &epsilon) || p->r->entry[x])
            continue;
        lathe_node_id mean = make_reader(p, list[i], LATHE_OP_MEAN_ROWS, x);
        if (mean != LATHE_NONE)
            lathe_node_set_float(g, mean, LATHE_ATTR_EPSILON, epsilon);
    }
}

/* Readers outside the region get what they read before. */
static bool serve_readers(struct packing *p) {
    struct lathe_graph *g = p->g;
    for (lathe_value_id v = 0; v < p->r->values; v++) {
        if (!in_region(p, v) || g->values[v].producer == LATHE_NONE)
            continue;
        lathe_value_id whole = LATHE_NONE;
        for (uint32_t i = g->values[v].use_count; i-- > 0;) {
            lathe_node_id n = g->values[v].uses[i];
            int64_t position;
            if (n >= p->r->nodes || p->r->member[n] || g->nodes[n].op == LATHE_OP_MEAN_ROWS ||
                g->nodes[n].op == LATHE_OP_TAKE_ROWS)
                continue;
            if (lathe_row_is_take(p->r, n, &position)) {
                lathe_node_id take = make_reader(p, n, LATHE_OP_TAKE_ROWS, v);
                if (take == LATHE_NONE)
                    return false;
                lathe_node_set_int(g, take, LATHE_ATTR_START, position);
                i = g->values[v].use_count;
                continue;
            }
            if (whole == LATHE_NONE)
                whole = unpack(p, v);
            if (whole == LATHE_NONE)
                return false;
            for (uint32_t k = 0; k < g->nodes[n].n_in; k++)
                if (g->nodes[n].in[k] == v)
                    lathe_node_set_input(g, n, k, whole);
            i = g->values[v].use_count;
        }
        if (!g->values[v].is_output)
            continue;
        if (whole == LATHE_NONE)
            whole = unpack(p, v);
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

static bool make_map(struct packing *p) {
    struct lathe_graph *g = p->g;
    struct lathe_dims *t = g->dims;
    int64_t batch = lathe_dim_upper(t, p->r->batch), seq = lathe_dim_upper(t, p->r->seq), most;
    if (batch == INT64_MAX || seq == INT64_MAX || !lathe_mul_i64(batch, seq, &most))
        most = INT64_MAX;
    p->rows = lathe_dim_symbol(t, "rows", 0, most);
    lathe_dim size = lathe_dim_add(t, lathe_dim_mul(t, lathe_dim_const(t, 4), p->r->batch),
                                   lathe_dim_mul(t, lathe_dim_const(t, 2), p->r->tokens));
    if (p->rows == LATHE_DIM_NONE || size == LATHE_DIM_NONE)
        return false;
    p->map = lathe_graph_emit(g, g->first, LATHE_OP_ROW_MAP, "row_map", &p->r->keys, 1, LATHE_I32, 1, &size);
    if (p->map == LATHE_NONE)
        return false;
    lathe_node_id n = g->values[p->map].producer;
    lathe_node_set_int(g, n, LATHE_ATTR_MASKED_ROW, p->r->masked_row);
    if (p->r->by_position)
        lathe_node_set_int(g, n, LATHE_ATTR_CAUSAL, 1);
    if (p->r->position_count)
        lathe_node_set_ints(g, n, LATHE_ATTR_VALUES, p->r->positions, p->r->position_count);
    return true;
}

static bool pack_graph(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    struct packing p = {.ctx = ctx, .g = g, .r = region};
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
    lathe_pass_note(ctx, "packed_rows", "true");
    return true;
}

/* Not packed: token outputs behind an attention with a mask are still 0 at masked tokens. */
static bool zero_outputs(struct lathe_pass_ctx *ctx, const struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    int64_t batch, seq;
    if (region->keys == LATHE_NONE || !lathe_row_keys_are_mask(g, region->keys) ||
        (lathe_dim_is_const(g->dims, region->batch, &batch) && lathe_dim_is_const(g->dims, region->seq, &seq)))
        return true;
    uint32_t count = g->value_count;
    uint8_t *behind = lathe_arena_alloc(ctx->scratch, count);
    if (!behind)
        return false;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        bool reached = node->op == LATHE_OP_ATTENTION && node->n_in > 3 && node->in[3] != LATHE_NONE &&
                       lathe_match_same(g, node->in[3], region->keys);
        for (uint32_t i = 0; i < node->n_in; i++)
            reached |= node->in[i] != LATHE_NONE && behind[node->in[i]];
        for (uint32_t i = 0; i < node->n_out && reached; i++)
            if (node->out[i] != LATHE_NONE)
                behind[node->out[i]] = 1;
    }
    lathe_value_id keep = LATHE_NONE;
    for (uint32_t i = 0; i < g->output_count; i++) {
        lathe_value_id v = g->outputs[i];
        int64_t size;
        if (v >= count || !behind[v] || lathe_row_lead(region, v) != 2 ||
            (g->values[v].rank == 2 && lathe_dim_is_const(g->dims, region->seq, &size)))
            continue;
        struct lathe_value value = g->values[v], keys = g->values[region->keys];
        lathe_dim dims[LATHE_MAX_RANK];
        if (keep == LATHE_NONE && keys.dtype != LATHE_BOOL) {
            keep = lathe_graph_emit(g, LATHE_NONE, LATHE_OP_CAST, "keep", &region->keys, 1, LATHE_BOOL, 2, keys.dims);
            if (keep == LATHE_NONE)
                return false;
            lathe_node_set_int(g, g->values[keep].producer, LATHE_ATTR_TO, LATHE_BOOL);
        } else if (keep == LATHE_NONE) {
            keep = region->keys;
        }
        for (int k = 0; k < value.rank; k++)
            dims[k] = k < 2 ? value.dims[k] : lathe_dim_const(g->dims, 1);
        lathe_value_id mask = keep;
        if (value.rank > 2)
            mask = lathe_graph_emit(g, LATHE_NONE, LATHE_OP_RESHAPE, "keep", &keep, 1, LATHE_BOOL, value.rank, dims);
        char zeros[16] = {0};
        lathe_value_id zero = lathe_graph_add_constant_copy(g, "zero", value.dtype, 0, NULL, zeros);
        lathe_value_id in[3] = {mask, v, zero};
        lathe_value_id made =
            lathe_graph_emit(g, LATHE_NONE, LATHE_OP_WHERE, value.name, in, 3, value.dtype, value.rank, value.dims);
        if (mask == LATHE_NONE || zero == LATHE_NONE || made == LATHE_NONE)
            return false;
        g->outputs[i] = made;
        g->values[made].is_output = true;
        bool still = false;
        for (uint32_t k = 0; k < g->output_count; k++)
            still |= g->outputs[k] == v;
        g->values[v].is_output = still;
        ctx->changes++;
    }
    return true;
}

enum lathe_status lathe_pass_pack_rows(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    if ((ctx->options && ctx->options->keep_padding) || (ctx->target && ctx->target->shapes == LATHE_SHAPES_STATIC))
        return LATHE_OK;
    struct lathe_row_region region;
    LATHE_TRY(lathe_row_region_find(ctx, &region));
    if (!(region.attentions ? pack_graph(ctx, &region) : zero_outputs(ctx, &region)) || g->out_of_memory)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
    return ctx->changes ? lathe_graph_sort(g, ctx->diag) : LATHE_OK;
}
