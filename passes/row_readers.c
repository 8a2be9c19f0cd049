/* Readers of token rows: which values are masks, which nodes take one token or the mean over the tokens. */
#include "element_view.h"
#include "match.h"
#include "positions.h"
#include "row_region.h"

#define MAX_DEPTH 10

/* ---- masks */

static int mask_kind(const struct lathe_row_region *region, lathe_value_id v, int depth,
                     struct lathe_row_layout *layout) {
    struct lathe_graph *g = region->graph;
    if (v == LATHE_NONE || depth == 0)
        return 0;
    *layout = (struct lathe_row_layout){0, 1};
    if (v == region->keys || lathe_match_same(g, v, region->keys))
        return 1;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return 0;
    const struct lathe_node *node = &g->nodes[n];
    double number;
    int kind = 0;
    uint32_t operand = 0;
    switch (node->op) {
    case LATHE_OP_CAST:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_EXPAND:
        kind = mask_kind(region, node->in[0], depth - 1, layout);
        break;
    case LATHE_OP_NOT:
        kind = 3 - mask_kind(region, node->in[0], depth - 1, layout);
        break;
    case LATHE_OP_EQUAL:
        operand = lathe_match_number(g, node->in[0], &number) ? 1 : 0;
        if (lathe_match_number(g, node->in[1 - operand], &number) && number == 0)
            kind = mask_kind(region, node->in[operand], depth - 1, layout) == 1 ? 2 : 0;
        break;
    case LATHE_OP_GREATER:
        if (lathe_match_number(g, node->in[1], &number) && number == 0)
            kind = mask_kind(region, node->in[0], depth - 1, layout) == 1 ? 1 : 0;
        break;
    default:
        return 0;
    }
    struct lathe_row_layout inner = *layout;
    return kind > 0 && kind < 3 && lathe_row_layout_behind(g, &region->sizes, n, operand, inner, layout) ? kind : 0;
}

int lathe_row_mask_kind(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout) {
    struct lathe_row_layout found;
    int kind = mask_kind(region, v, MAX_DEPTH, &found);
    if (layout)
        *layout = found;
    return kind;
}

static bool masking(const struct lathe_row_region *region, lathe_value_id v, int depth,
                    struct lathe_row_layout *layout) {
    struct lathe_graph *g = region->graph;
    if (v == LATHE_NONE || depth == 0)
        return false;
    if (mask_kind(region, v, MAX_DEPTH, layout) == 1)
        return true;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    uint32_t operands = node->op == LATHE_OP_MUL ? 2
                        : node->op == LATHE_OP_CAST || node->op == LATHE_OP_RESHAPE || node->op == LATHE_OP_TRANSPOSE ||
                                node->op == LATHE_OP_EXPAND
                            ? 1
                            : 0;
    for (uint32_t i = 0; i < operands; i++) {
        struct lathe_row_layout inner;
        if (masking(region, node->in[i], depth - 1, &inner) &&
            lathe_row_layout_behind(g, &region->sizes, n, i, inner, layout))
            return true;
    }
    return false;
}

bool lathe_row_is_masking(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout) {
    struct lathe_row_layout found;
    return masking(region, v, MAX_DEPTH, layout ? layout : &found);
}

bool lathe_row_fills_masked(const struct lathe_row_region *region, lathe_node_id n, double *number,
                            struct lathe_row_layout *layout) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    if (node->op != LATHE_OP_WHERE)
        return false;
    int kind = lathe_row_mask_kind(region, node->in[0], layout);
    return kind && lathe_match_number(g, node->in[kind == 2 ? 1 : 2], number);
}

/* ---- one token of each sequence */

/* The operand that has one index a sequence when the integers v are index + S * sequence: rows of a merged axis. */
static lathe_value_id index_in_batch(const struct lathe_row_region *region, lathe_value_id v) {
    struct lathe_graph *g = region->graph;
    for (int depth = 0; depth < MAX_DEPTH && v != LATHE_NONE; depth++) {
        lathe_node_id n = g->values[v].producer;
        if (n == LATHE_NONE)
            return LATHE_NONE;
        const struct lathe_node *node = &g->nodes[n];
        if (node->op == LATHE_OP_CAST || node->op == LATHE_OP_RESHAPE || node->op == LATHE_OP_EXPAND) {
            v = node->in[0];
            continue;
        }
        if (node->op != LATHE_OP_ADD)
            return LATHE_NONE;
        for (int side = 0; side < 2; side++) {
            struct lathe_element_view view;
            struct lathe_element e;
            struct lathe_index index;
            lathe_element_view_init(&view, g);
            if (lathe_element_fresh(&view, node->in[side], &e) && lathe_element_index(&view, &e, &index) &&
                index.count == 1 && lathe_match_dim_equal(g, index.constant, lathe_dim_const(g->dims, 0)) &&
                lathe_match_dim_equal(g, index.terms[0].factor, region->sizes.seq) &&
                lathe_match_dim_equal(g, view.space.vars[index.terms[0].var].extent, region->sizes.batch))
                return node->in[1 - side];
        }
        return LATHE_NONE;
    }
    return LATHE_NONE;
}

/* The second of two columns [sequence, index], the first of which counts the sequences. */
static lathe_value_id index_of_pairs(const struct lathe_row_region *region, lathe_value_id v) {
    struct lathe_graph *g = region->graph;
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_CONCAT);
    struct lathe_attrs attrs = n == LATHE_NONE ? (struct lathe_attrs){0} : lathe_node_attrs(g, n);
    struct lathe_element_view view;
    struct lathe_element e;
    struct lathe_index index;
    if (n == LATHE_NONE || g->nodes[n].n_in != 2 ||
        lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1) != g->values[v].rank - 1)
        return LATHE_NONE;
    lathe_element_view_init(&view, g);
    if (!lathe_element_fresh(&view, g->nodes[n].in[0], &e) || !lathe_element_index(&view, &e, &index) ||
        index.count != 1 || !lathe_match_dim_equal(g, index.constant, lathe_dim_const(g->dims, 0)) ||
        !lathe_match_dim_equal(g, index.terms[0].factor, lathe_dim_const(g->dims, 1)) ||
        !lathe_match_dim_equal(g, view.space.vars[index.terms[0].var].extent, region->sizes.batch))
        return LATHE_NONE;
    return g->nodes[n].in[1];
}

/* v has one integer a sequence, known before the rows are. */
static bool is_place(const struct lathe_row_region *region, lathe_value_id v) {
    struct lathe_graph *g = region->graph;
    lathe_dim count = lathe_dim_const(g->dims, 1);
    if (v == LATHE_NONE || (g->values[v].dtype != LATHE_I32 && g->values[v].dtype != LATHE_I64))
        return false;
    for (int i = 0; i < g->values[v].rank && count != LATHE_DIM_NONE; i++)
        count = lathe_dim_mul(g->dims, count, g->values[v].dims[i]);
    return count != LATHE_DIM_NONE && lathe_match_dim_equal(g, count, region->sizes.batch) &&
           lathe_row_known_before(g, v);
}

/* The index of each sequence in integers [B,1,..], the same along all further axes. */
static lathe_value_id index_repeated(const struct lathe_row_region *region, lathe_value_id v) {
    const struct lathe_graph *g = region->graph;
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        if (g->values[v].rank < 1 || !lathe_match_dim_equal(g, g->values[v].dims[0], region->sizes.batch))
            return LATHE_NONE;
        if (is_place(region, v))
            return v;
        lathe_node_id n = g->values[v].producer;
        if (n == LATHE_NONE || (g->nodes[n].op != LATHE_OP_EXPAND && g->nodes[n].op != LATHE_OP_TILE) ||
            g->values[g->nodes[n].in[0]].rank != g->values[v].rank)
            return LATHE_NONE;
        v = g->nodes[n].in[0];
    }
    return LATHE_NONE;
}

/* A gather with an index for each sequence, in the form that exporters give to x[arange(B), index] or x.gather(1, i).
 */
static bool is_indexed_take(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_take *take) {
    struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id x = node->in[0];
    struct lathe_row_layout layout = region->layout[x];
    int64_t width;
    if (node->op == LATHE_OP_GATHER && lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) == 0 && layout.token == 0)
        take->index = index_in_batch(region, node->in[1]);
    else if (node->op == LATHE_OP_GATHER_ND && lathe_attr_int(&attrs, LATHE_ATTR_BATCH_DIMS, 0) == 0 &&
             layout.batch == 0 && layout.token == 1 && lathe_value_dim_is(g, node->in[1], -1, &width) && width == 2)
        take->index = index_of_pairs(region, node->in[1]);
    else if (node->op == LATHE_OP_GATHER_ELEMENTS && layout.batch == 0 && layout.token == 1 &&
             lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) == 1 && lathe_value_dim_is(g, node->out[0], 1, &width) &&
             width == 1)
        take->index = index_repeated(region, node->in[1]);
    else
        return false;
    return is_place(region, take->index);
}

/* The position of a slice of one token, from the end when it is counted from there. */
static bool sliced_position(const struct lathe_row_region *region, lathe_node_id n, int axis, int64_t *position) {
    struct lathe_graph *g = region->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    int64_t size, step;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    if (count != 1 || axes[0] != axis || !lathe_value_dim_is(g, g->nodes[n].out[0], axis, &size) || size != 1 ||
        !lathe_attr_constant_at(g, n, LATHE_ATTR_STEPS, 0, &step) || step != 1)
        return false;
    if (lathe_attr_constant_at(g, n, LATHE_ATTR_STARTS, 0, position))
        return *position >= 0;
    const struct lathe_attr *starts = lathe_attr_find(&attrs, LATHE_ATTR_STARTS);
    *position = -1;
    return starts && starts->type == LATHE_ATTR_DIMS &&
           lathe_match_dim_equal(g, (lathe_dim)starts->ints[0],
                                 lathe_dim_sub(g->dims, region->sizes.seq, lathe_dim_const(g->dims, 1)));
}

bool lathe_row_is_take(const struct lathe_row_region *region, lathe_node_id n, struct lathe_row_take *take) {
    struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id x = node->n_in ? node->in[0] : LATHE_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    double number;
    if (x == LATHE_NONE || !lathe_row_inside(region, x) || region->layout[x].batch != 0 || g->values[x].rank < 2)
        return false;
    *take = (struct lathe_row_take){.x = x, .index = LATHE_NONE};
    int axis = region->layout[x].token;
    if (is_indexed_take(region, n, take))
        return true;
    take->index = LATHE_NONE;
    if (axis == 0)
        return false;
    if (node->op == LATHE_OP_GATHER) {
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != axis || lathe_value_count(g, node->in[1]) != 1 ||
            !lathe_match_number(g, node->in[1], &number))
            return false;
        take->position = (int64_t)number;
        return true;
    }
    return node->op == LATHE_OP_SLICE && sliced_position(region, n, axis, &take->position);
}

/* ---- the mean over the tokens */

/* The operand of a sum over the tokens. */
static bool is_token_sum(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x) {
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_REDUCE_SUM);
    if (n == LATHE_NONE)
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    *x = g->nodes[n].in[0];
    return count == 1 && axes[0] == 1;
}

/* Casts, reshapes and expands of a count a sequence. */
static lathe_value_id skip_shape(const struct lathe_graph *g, lathe_value_id v) {
    for (int i = 0; i < 8 && v != LATHE_NONE; i++) {
        lathe_node_id n = g->values[v].producer;
        if (n == LATHE_NONE || (g->nodes[n].op != LATHE_OP_CAST && g->nodes[n].op != LATHE_OP_RESHAPE &&
                                g->nodes[n].op != LATHE_OP_EXPAND))
            break;
        v = g->nodes[n].in[0];
    }
    return v;
}

/* The x of x * mask, or of where(masked, 0, x). */
static lathe_value_id masked_operand(const struct lathe_row_region *region, lathe_value_id v) {
    const struct lathe_graph *g = region->graph;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return LATHE_NONE;
    const struct lathe_node *node = &g->nodes[n];
    double number;
    if (node->op == LATHE_OP_MUL) {
        for (int side = 0; side < 2; side++)
            if (lathe_row_mask_kind(region, node->in[side], NULL) == 1)
                return node->in[1 - side];
    } else if (lathe_row_fills_masked(region, n, &number, NULL) && number == 0) {
        return node->in[lathe_row_mask_kind(region, node->in[0], NULL) == 2 ? 2 : 1];
    }
    return LATHE_NONE;
}

bool lathe_row_is_mean(const struct lathe_row_region *region, lathe_node_id n, lathe_value_id *x, double *epsilon) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id masked, mask;
    if (node->op != LATHE_OP_DIV || !lathe_value_same_shape(g, node->in[0], node->out[0]) ||
        !is_token_sum(g, node->in[0], &masked) || g->values[masked].rank != 3)
        return false;
    *x = masked_operand(region, masked);
    if (*x == LATHE_NONE || *x >= region->values || region->layout[*x].batch != 0 || region->layout[*x].token != 1 ||
        !lathe_value_same_shape(g, *x, masked) || g->values[*x].dtype != LATHE_F32)
        return false;
    lathe_value_id counted = skip_shape(g, node->in[1]);
    lathe_node_id limit = counted == LATHE_NONE ? LATHE_NONE : g->values[counted].producer;
    if (limit == LATHE_NONE)
        return false;
    const struct lathe_node *clip = &g->nodes[limit];
    *epsilon = 1e-9; /* without a limit the source divides 0 by 0 for a sequence without tokens: zeros here */
    if (clip->op == LATHE_OP_CLIP) {
        if (clip->n_in < 2 || !lathe_match_number(g, clip->in[1], epsilon) ||
            (clip->n_in > 2 && clip->in[2] != LATHE_NONE))
            return false;
        counted = clip->in[0];
    } else if (clip->op == LATHE_OP_MAX && clip->n_in == 2) {
        int side = lathe_match_number(g, clip->in[0], epsilon) ? 1 : 0;
        if (!lathe_match_number(g, clip->in[1 - side], epsilon))
            return false;
        counted = clip->in[side];
    }
    return *epsilon > 0 && *epsilon <= 1 && is_token_sum(g, skip_shape(g, counted), &mask) &&
           lathe_row_mask_kind(region, mask, NULL) == 1;
}
