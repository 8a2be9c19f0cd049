/* Where masked rows go: which values outside the region differ from the source's at masked tokens, and which operators
 * would let that difference reach other tokens.
 *
 * What leaves the region has zeros at masked tokens. An operator that keeps the tokens of an axis apart passes the
 * difference on along that axis; a mask ends it, and so does an attention, whose masked keys have no weight. Anything
 * else needs its operand whole. */
#include "match.h"
#include "row_region.h"

#include <stdio.h>
#include <string.h>

struct masked {
    struct lathe_row_region *region;
    struct lathe_graph *g;
    uint16_t *axes; /* a value: bits of the axes along which masked tokens differ */
    lathe_value_id *stack;
    lathe_value_id tokens; /* the input that marks real tokens, where the keys are something else */
    bool found;
};

/* v and what it is computed from; behind an attention of these keys only its queries, since masked keys have no
 * weight. */
static void mark_whole(struct masked *m, lathe_value_id v) {
    struct lathe_row_region *r = m->region;
    const struct lathe_graph *g = m->g;
    uint32_t top = 0;
    m->found = true;
    if (r->whole[v])
        return;
    r->whole[v] = 1;
    m->stack[top++] = v;
    while (top) {
        lathe_node_id n = g->values[m->stack[--top]].producer;
        if (n == LATHE_NONE)
            continue;
        const struct lathe_node *node = &g->nodes[n];
        bool by_keys = node->op == LATHE_OP_ATTENTION && node->n_in > 3 && node->in[3] != LATHE_NONE &&
                       lathe_match_same(g, node->in[3], r->keys);
        for (uint32_t i = 0; i < node->n_in; i++) {
            lathe_value_id o = node->in[i];
            if (o == LATHE_NONE || r->whole[o] || lathe_value_is_constant(g, o) || (by_keys && (i == 1 || i == 2)))
                continue;
            r->whole[o] = 1;
            m->stack[top++] = o;
        }
    }
}

/* n reads masked rows of v in a way that shows. */
static void refuse(struct masked *m, lathe_node_id n, lathe_value_id v, const char *reason) {
    struct lathe_row_region *r = m->region;
    if (r->reader == LATHE_NONE) {
        r->reader = n;
        r->mixes = !reason && m->g->nodes[n].op != LATHE_OP_DYNAMIC_QUANTIZE_LINEAR;
        if (reason)
            snprintf(r->reason, sizeof r->reason, "%s", reason);
        else if (m->g->nodes[n].op == LATHE_OP_DYNAMIC_QUANTIZE_LINEAR)
            snprintf(r->reason, sizeof r->reason,
                     "dynamic_quantize_linear reads rows of masked tokens: its one range is that of all tokens");
        else if (m->g->nodes[n].op == LATHE_OP_CONV)
            snprintf(r->reason, sizeof r->reason,
                     "conv reads rows of masked tokens: those beside a token are part of its result");
        else
            snprintf(r->reason, sizeof r->reason, "%s reads rows of masked tokens, which packing leaves out",
                     lathe_op_info(m->g->nodes[n].op)->name);
    }
    mark_whole(m, v);
}

static uint16_t bit(int axis) {
    return (uint16_t)(1u << axis);
}

/* A product that sums over the tokens of operand i and a mask: masked ones have no part in it. */
static bool sums_with_mask(struct masked *m, lathe_node_id n, uint32_t i, int a) {
    const struct lathe_graph *g = m->g;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    if (node->op != LATHE_OP_MATMUL || i > 1)
        return false;
    lathe_value_id other = node->in[1 - i];
    bool own_swap = lathe_attr_int(&attrs, i ? LATHE_ATTR_TRANS_B : LATHE_ATTR_TRANS_A, 0) != 0;
    bool other_swap = lathe_attr_int(&attrs, i ? LATHE_ATTR_TRANS_A : LATHE_ATTR_TRANS_B, 0) != 0;
    int own = g->values[node->in[i]].rank - 1 - ((i == 1) != own_swap);
    int summed = g->values[other].rank - 1 - ((i == 0) != other_swap);
    struct lathe_row_layout layout;
    return a == own && lathe_row_is_masking(m->region, other, &layout) && layout.token == summed;
}

/* The axes of n's output for those of operand i; false when one of them is mixed. */
static bool axes_behind(struct masked *m, lathe_node_id n, uint32_t i, uint16_t *out) {
    const struct lathe_node *node = &m->g->nodes[n];
    uint16_t in = m->axes[node->in[i]], found = 0;
    const struct lathe_value *value = &m->g->values[node->in[i]];
    bool attention = node->op == LATHE_OP_ATTENTION && node->n_in > 3 && node->in[3] != LATHE_NONE &&
                     lathe_match_same(m->g, node->in[3], m->region->keys);
    for (int a = 0; a < value->rank; a++) {
        if (!(in & bit(a)))
            continue;
        /* rows of keys and values, and columns of a mask, whose weight is 0 */
        if (attention && ((a == 1 && (i == 1 || i == 2)) || (i == 4 && a == value->rank - 1)))
            continue;
        if (sums_with_mask(m, n, i, a))
            continue;
        int axis = lathe_row_axis(m->g, &m->region->sizes, n, i, a);
        if (axis < 0)
            return false;
        found |= bit(axis);
    }
    *out |= found;
    return true;
}

/* What a mask in n ends: the axis of its output along which masked tokens are a number. */
static uint16_t cleared_axes(struct masked *m, lathe_node_id n) {
    const struct lathe_node *node = &m->g->nodes[n];
    struct lathe_row_layout layout;
    double number;
    int rank = m->g->values[node->out[0]].rank;
    lathe_value_id mask = LATHE_NONE;
    if (node->op == LATHE_OP_WHERE && lathe_row_fills_masked(m->region, n, &number, &layout))
        mask = node->in[0];
    for (int i = 0; node->op == LATHE_OP_MUL && mask == LATHE_NONE && i < 2; i++)
        if (lathe_row_is_masking(m->region, node->in[i], &layout))
            mask = node->in[i];
    if (mask == LATHE_NONE)
        return 0;
    int missing = rank - m->g->values[mask].rank;
    layout.batch = (int8_t)(layout.batch + missing);
    layout.token = (int8_t)(layout.token + missing);
    return lathe_row_layout_fits(m->g, &m->region->sizes, node->out[0], layout) ? bit(layout.token) : 0;
}

static bool add_position(struct lathe_row_region *region, int64_t position) {
    for (uint32_t i = 0; i < region->position_count; i++)
        if (region->positions[i] == position)
            return true;
    if (region->position_count == LATHE_ROW_MAX_POSITIONS)
        return false;
    region->positions[region->position_count++] = position;
    return true;
}

static bool add_place(struct lathe_row_region *region, lathe_value_id index) {
    for (uint32_t i = 0; i < region->place_count; i++)
        if (region->places[i] == index)
            return true;
    if (region->place_count == LATHE_ROW_MAX_PLACES)
        return false;
    region->places[region->place_count++] = index;
    return true;
}

static void read_outside(struct masked *m, lathe_node_id n) {
    struct lathe_graph *g = m->g;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_row_take take;
    uint16_t axes = 0;
    bool reads = false;
    for (uint32_t i = 0; i < node->n_in; i++)
        reads |= node->in[i] != LATHE_NONE && m->axes[node->in[i]];
    if (!reads)
        return;
    if (lathe_row_is_take(m->region, n, &take)) {
        if (!(take.index == LATHE_NONE ? add_position(m->region, take.position) : add_place(m->region, take.index)))
            refuse(m, n, take.x, "too many different tokens are read");
        return;
    }
    for (uint32_t i = 0; i < node->n_in; i++)
        if (node->in[i] != LATHE_NONE && m->axes[node->in[i]] && !axes_behind(m, n, i, &axes))
            refuse(m, n, node->in[i], NULL);
    axes &= (uint16_t)~cleared_axes(m, n);
    for (uint32_t i = 0; i < node->n_out; i++) {
        lathe_value_id y = node->out[i];
        if (y == LATHE_NONE || !axes)
            continue;
        if (g->values[y].is_output || g->values[y].rank != g->values[node->out[0]].rank)
            refuse(m, n, y, "an output is computed from rows of masked tokens in a way that packing does not follow");
        m->axes[y] = axes;
    }
}

/* A member reads its rows packed; what it reads whole must be the source's. */
static void read_inside(struct masked *m, lathe_node_id n) {
    const struct lathe_node *node = &m->g->nodes[n];
    const struct lathe_row_operand *operands = m->region->operands[n];
    for (uint32_t i = 0; i < node->n_in; i++) {
        lathe_value_id o = node->in[i];
        if (o == LATHE_NONE || lathe_row_inside(m->region, o) || !m->axes[o] ||
            (i == 4 && node->op == LATHE_OP_ATTENTION)) /* read at kept positions alone */
            continue;
        if (operands[i].role != LATHE_ROW_ROWS || m->axes[o] & ~bit(operands[i].layout.token))
            refuse(m, n, o, NULL);
    }
}

/* Given out, v must have a row a token in a way that its shape shows, and the mask that a user sees must say which rows
 * are 0. */
static void give_out(struct masked *m, lathe_value_id v, bool mask) {
    const struct lathe_graph *g = m->g;
    struct lathe_row_layout layout = m->region->layout[v];
    int64_t size;
    bool shows = layout.batch == 0 && layout.token == 1 &&
                 (g->values[v].rank > 2 || !lathe_dim_is_const(g->dims, m->region->sizes.seq, &size));
    if (m->region->zero[v] || (mask && shows))
        return;
    if (shows && m->tokens != LATHE_NONE) {
        m->region->tokens = m->tokens;
        return;
    }
    char text[160];
    snprintf(text, sizeof text,
             mask ? "output %.80s does not show its tokens as [batch, sequence, ..]"
                  : "output %.80s has rows of tokens that no attention_mask input marks",
             g->values[v].name);
    refuse(m, g->values[v].producer, v, text);
}

enum lathe_status lathe_row_find_whole(struct lathe_pass_ctx *ctx, struct lathe_row_region *region, bool *found) {
    struct lathe_graph *g = region->graph;
    struct masked m = {.region = region, .g = g};
    m.axes = lathe_arena_alloc_array(ctx->scratch, region->values, sizeof *m.axes);
    m.stack = lathe_arena_alloc_array(ctx->scratch, region->values, sizeof *m.stack);
    if (!m.axes || !m.stack)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
    memset(m.axes, 0, region->values * sizeof *m.axes);
    region->position_count = region->place_count = 0;
    for (lathe_value_id v = 0; v < region->values; v++)
        if (lathe_row_inside(region, v) && !region->zero[v])
            m.axes[v] = bit(region->layout[v].token);
    bool mask = lathe_row_keys_are_mask(g, region->keys);
    m.tokens = mask ? LATHE_NONE : lathe_row_token_mask(region);
    region->tokens = LATHE_NONE;
    LATHE_FOR_NODES(g, n) {
        if (region->member[n])
            read_inside(&m, n);
        else
            read_outside(&m, n);
    }
    for (uint32_t i = 0; i < g->output_count; i++)
        if (lathe_row_inside(region, g->outputs[i]))
            give_out(&m, g->outputs[i], mask);
    *found = m.found;
    return LATHE_OK;
}
