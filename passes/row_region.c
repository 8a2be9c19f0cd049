#include "row_region.h"

#include "match.h"
#include "ops_enums.h"
#include "positions.h"

#include <string.h>

bool lathe_row_plain_layout(const struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout *layout) {
    struct lathe_row_layout split = {0, 1}, merged = {0, 0};
    *layout = lathe_row_layout_fits(region->graph, &region->sizes, v, split) ? split : merged;
    return layout->token == 1 || lathe_row_layout_fits(region->graph, &region->sizes, v, merged);
}

/* The input that says which tokens are real, as the users of an artifact find it (lathe_feeds_mask). */
static bool is_token_mask(const struct lathe_graph *g, lathe_value_id input) {
    lathe_value_id mask = LATHE_NONE;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (!strcmp(v->name, "attention_mask"))
            return g->inputs[i] == input;
        if (mask == LATHE_NONE && v->rank == 2 && strstr(v->name, "mask"))
            mask = g->inputs[i];
    }
    return input == mask;
}

bool lathe_row_keys_are_mask(const struct lathe_graph *g, lathe_value_id v) {
    bool kept = true; /* where v is not 0 */
    for (int depth = 0; depth < 12; depth++) {
        lathe_node_id n = g->values[v].producer;
        double number;
        int constant;
        if (g->values[v].is_input)
            return kept && is_token_mask(g, v);
        if (n == LATHE_NONE)
            return false;
        const lathe_value_id *in = g->nodes[n].in;
        switch (g->nodes[n].op) {
        case LATHE_OP_CAST:
        case LATHE_OP_RESHAPE:
            v = in[0];
            break;
        case LATHE_OP_NOT:
            kept = !kept;
            v = in[0];
            break;
        case LATHE_OP_EQUAL:
            constant = lathe_value_is_constant(g, in[1]);
            if (!lathe_match_number(g, in[constant], &number) || (number != 0 && number != 1))
                return false;
            kept = number == 1 ? kept : !kept;
            v = in[1 - constant];
            break;
        case LATHE_OP_GREATER:
            if (!lathe_match_number(g, in[1], &number) || number < 0 || number >= 1)
                return false;
            v = in[0];
            break;
        default:
            return false;
        }
    }
    return false;
}

static bool known_before(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (v == LATHE_NONE || lathe_value_is_constant(g, v) || g->values[v].is_input)
        return true;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE || depth == 0)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    switch (node->op) {
    case LATHE_OP_RESHAPE:
    case LATHE_OP_EXPAND:
    case LATHE_OP_SLICE:
    case LATHE_OP_RANGE:
    case LATHE_OP_FILL:
    case LATHE_OP_DIMS_TENSOR:
    case LATHE_OP_CUMSUM:
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_ARG_MAX:
    case LATHE_OP_ARG_MIN:
    case LATHE_OP_CONCAT:
    case LATHE_OP_PAD:
        break;
    default:
        if (!(lathe_op_info(node->op)->flags & (LATHE_OPF_ELEMENTWISE | LATHE_OPF_PAIRWISE)))
            return false;
    }
    for (uint32_t i = 0; i < node->n_in; i++)
        if (!known_before(g, node->in[i], depth - 1))
            return false;
    return true;
}

/* v, or what casts and reshapes before it were made from. */
static lathe_value_id skip_shape(const struct lathe_graph *g, lathe_value_id v) {
    lathe_node_id n = v == LATHE_NONE ? LATHE_NONE : g->values[v].producer;
    while (n != LATHE_NONE && (g->nodes[n].op == LATHE_OP_CAST || g->nodes[n].op == LATHE_OP_RESHAPE)) {
        v = g->nodes[n].in[0];
        n = g->values[v].producer;
    }
    return v;
}

/* The keys are the first tokens, as many as the mask marks: ONNX Runtime's mask_index. */
static bool keys_are_counted(const struct lathe_graph *g, lathe_value_id keys) {
    lathe_node_id less = lathe_producer_of(g, skip_shape(g, keys), LATHE_OP_LESS);
    int64_t first;
    uint32_t count;
    if (less == LATHE_NONE || !lathe_positions_of(g, g->nodes[less].in[0], &first) || first != 0)
        return false;
    lathe_node_id sum = lathe_producer_of(g, skip_shape(g, g->nodes[less].in[1]), LATHE_OP_REDUCE_SUM);
    struct lathe_attrs attrs = sum == LATHE_NONE ? (struct lathe_attrs){0} : lathe_node_attrs(g, sum);
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    return count == 1 && axes[0] == 1 && lathe_row_keys_are_mask(g, g->nodes[sum].in[0]);
}

lathe_value_id lathe_row_token_mask(const struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_row_layout layout = {0, 1};
    if (!keys_are_counted(g, region->keys))
        return LATHE_NONE;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (v->rank == 2 && (lathe_dtype_is_integer(v->dtype) || v->dtype == LATHE_BOOL) &&
            is_token_mask(g, g->inputs[i]))
            return lathe_row_layout_fits(g, &region->sizes, g->inputs[i], layout) ? g->inputs[i] : LATHE_NONE;
    }
    return LATHE_NONE;
}

bool lathe_row_known_before(const struct lathe_graph *g, lathe_value_id v) {
    return known_before(g, v, 16);
}

/* The input that the keys come from; LATHE_NONE when there are several. */
static lathe_value_id root_input(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (v == LATHE_NONE || g->values[v].is_input)
        return v;
    lathe_node_id n = g->values[v].producer;
    lathe_value_id root = LATHE_NONE;
    for (uint32_t i = 0; n != LATHE_NONE && depth > 0 && i < g->nodes[n].n_in; i++) {
        lathe_value_id found = root_input(g, g->nodes[n].in[i], depth - 1);
        if (found != LATHE_NONE && root != LATHE_NONE && found != root)
            return LATHE_NONE;
        root = found != LATHE_NONE ? found : root;
    }
    return root;
}

/* The rows are tokens, which a mask of 0 makes padding: ids are looked up, or the mask is called what exporters call
 * it. A bare attention with a mask is a function of its own, whose masked queries have results like any other. */
static bool rows_are_tokens(const struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    lathe_value_id root = root_input(g, region->keys, 12);
    struct lathe_row_layout layout;
    if (root != LATHE_NONE && strstr(g->values[root].name, "attention_mask"))
        return true;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        uint32_t first = node->op == LATHE_OP_EMBEDDING ? 3 : node->op == LATHE_OP_GATHER ? 1 : UINT32_MAX;
        for (uint32_t i = first; i < node->n_in; i += 2)
            if (node->in[i] != LATHE_NONE && lathe_row_plain_layout(region, node->in[i], &layout) &&
                layout.token == 1 && root_input(g, node->in[i], 12) != LATHE_NONE)
                return true;
    }
    return false;
}

/* ---- the region */

static bool is_inside(const struct lathe_row_region *region, lathe_value_id v) {
    return region->layout[v].token >= 0;
}

/* Marks v, and backwards what it is computed from, as packed. False when a value is needed in two layouts. */
static bool need(struct lathe_row_region *region, lathe_value_id v, struct lathe_row_layout layout,
                 lathe_value_id *stack) {
    const struct lathe_graph *g = region->graph;
    uint32_t top = 0;
    if (is_inside(region, v))
        return lathe_row_layout_same(region->layout[v], layout);
    region->layout[v] = layout;
    stack[top++] = v;
    while (top) {
        v = stack[--top];
        lathe_node_id n = g->values[v].producer;
        struct lathe_row_operand operands[LATHE_ROW_MAX_OPERANDS];
        if (n == LATHE_NONE || region->whole[v] || !lathe_row_rule(region, n, region->layout[v], operands)) {
            region->entry[v] = 1;
            continue;
        }
        region->member[n] = 1;
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
            lathe_value_id o = g->nodes[n].in[i];
            if (operands[i].role != LATHE_ROW_ROWS || !lathe_row_is_activation(region, o, operands[i].layout))
                continue;
            if (is_inside(region, o)) {
                if (!lathe_row_layout_same(region->layout[o], operands[i].layout))
                    return false;
                continue;
            }
            region->layout[o] = operands[i].layout;
            stack[top++] = o;
        }
    }
    return true;
}

/* The layout of n's outputs, computed row by row from packed operands; false when they are not. */
static bool joins(struct lathe_row_region *region, lathe_node_id n, struct lathe_row_layout *layout) {
    struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_row_operand operands[LATHE_ROW_MAX_OPERANDS];
    double number;
    bool found = false;
    if (node->n_out == 0 || node->out[0] == LATHE_NONE || (node->op == LATHE_OP_ATTENTION && !region->member[n]))
        return false;
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && region->whole[node->out[i]])
            return false;
    for (uint32_t i = 0; i < node->n_in && !found; i++)
        found = node->in[i] != LATHE_NONE && is_inside(region, node->in[i]) &&
                lathe_row_layout_behind(g, &region->sizes, n, i, region->layout[node->in[i]], layout);
    /* a number other than 0 at masked tokens is for a reader outside, which unpacking would give 0 */
    if (!found || !lathe_row_rule(region, n, *layout, operands) ||
        (lathe_row_fills_masked(region, n, &number, NULL) && number != 0))
        return false;
    for (uint32_t i = 0; i < node->n_in; i++) {
        lathe_value_id o = node->in[i];
        if (o != LATHE_NONE && is_inside(region, o) &&
            (operands[i].role != LATHE_ROW_ROWS || !lathe_row_layout_same(operands[i].layout, region->layout[o])))
            return false; /* a packed operand that every row would need whole */
    }
    return true;
}

/* Marks what is computed row by row from packed values. */
static void spread(struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        struct lathe_row_layout layout;
        const struct lathe_node *node = &g->nodes[n];
        if (region->member[n])
            layout = region->layout[node->out[0]];
        else if (joins(region, n, &layout))
            region->member[n] = 1;
        else
            continue;
        for (uint32_t i = 0; i < node->n_out; i++)
            if (node->out[i] != LATHE_NONE && !is_inside(region, node->out[i]))
                region->layout[node->out[i]] = layout;
    }
}

/* Follows which packed values are 0 at masked tokens. */
static void find_zeros(struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        double number;
        if (!region->member[n])
            continue;
        bool zero = lathe_row_mask_kind(region, node->out[0], NULL) == 1;
        switch (node->op) {
        case LATHE_OP_MUL:
            for (int i = 0; i < 2; i++)
                zero |= region->zero[node->in[i]] || lathe_row_is_masking(region, node->in[i], NULL);
            break;
        case LATHE_OP_WHERE:
            zero |= lathe_row_fills_masked(region, n, &number, NULL) && number == 0;
            break;
        case LATHE_OP_RESHAPE:
        case LATHE_OP_TRANSPOSE:
        case LATHE_OP_CAST:
        case LATHE_OP_SLICE:
        case LATHE_OP_NEG:
        case LATHE_OP_EXPAND:
        case LATHE_OP_REDUCE_SUM:
            zero |= region->zero[node->in[0]] != 0;
            break;
        default:
            break;
        }
        region->zero[node->out[0]] = zero;
    }
}

/* ---- attentions */

static lathe_value_id keys_of(const struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id keys = node->op == LATHE_OP_ATTENTION && node->n_in > 3 ? node->in[3] : LATHE_NONE;
    return keys != LATHE_NONE && g->values[keys].rank == 2 ? keys : LATHE_NONE;
}

static void set_keys(struct lathe_row_region *region, lathe_value_id keys) {
    const struct lathe_value *value = &region->graph->values[keys];
    region->keys = keys;
    region->sizes.batch = value->dims[0];
    region->sizes.seq = value->dims[1];
    region->sizes.tokens = lathe_dim_mul(region->graph->dims, region->sizes.batch, region->sizes.seq);
}

/* Where no attention was fused: the input that marks real tokens, for the zeros of what is given out. */
static void find_mask(struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (strcmp(v->name, "attention_mask") || v->rank != 2)
            continue;
        set_keys(region, g->inputs[i]);
        if (!rows_are_tokens(region))
            region->keys = LATHE_NONE;
    }
}

/* The keys of the first attention that has any, and what they say of the others. */
static bool find_keys(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    struct lathe_graph *g = region->graph;
    uint32_t attentions = 0;
    LATHE_FOR_NODES(g, n) {
        lathe_value_id keys = keys_of(g, n);
        attentions += g->nodes[n].op == LATHE_OP_ATTENTION || g->nodes[n].op == LATHE_OP_SDPA;
        if (keys == LATHE_NONE || region->keys != LATHE_NONE)
            continue;
        set_keys(region, keys);
        if (!known_before(g, keys, 16)) {
            lathe_pass_missed(ctx, "pack_rows", n, "the keys are not computed from the inputs alone");
            region->none = "the mask of the keys is not computed from the inputs alone";
            return false;
        }
    }
    if (region->keys == LATHE_NONE) {
        region->none = attentions ? "no attention has a mask of its keys, so that there is no padding to leave out"
                                  : "no attention was recognised";
        if (!attentions)
            find_mask(region);
        return false;
    }
    bool first = true;
    LATHE_FOR_NODES(g, n) {
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        int64_t rule = lathe_attr_int(&attrs, LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM);
        if (keys_of(g, n) == LATHE_NONE)
            continue;
        if (first || rule == LATHE_MASKED_UNIFORM || rule == LATHE_MASKED_SOFTMAX)
            region->masked_row = rule;
        first = false;
    }
    if (!rows_are_tokens(region)) {
        region->keys = LATHE_NONE;
        region->none = "the mask marks no tokens: no ids are looked up";
        return false;
    }
    return true;
}

/* Starts at the attentions whose rows are not needed whole. False when the layouts contradict each other. */
static bool seed(struct lathe_row_region *region, lathe_value_id *stack) {
    struct lathe_graph *g = region->graph;
    struct lathe_row_layout layout = {0, 1};
    struct lathe_row_operand operands[LATHE_ROW_MAX_OPERANDS];
    region->attentions = region->left_out = 0;
    region->by_position = false;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        if (node->op != LATHE_OP_ATTENTION && node->op != LATHE_OP_SDPA)
            continue;
        if (node->op == LATHE_OP_SDPA || region->whole[node->out[0]] || !lathe_row_rule(region, n, layout, operands)) {
            region->left_out++;
            continue;
        }
        for (int i = 0; i < 3; i++)
            if (!need(region, node->in[i], layout, stack))
                return false;
        if (!need(region, node->out[0], layout, stack))
            return false;
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        region->by_position |= lathe_attr_int(&attrs, LATHE_ATTR_CAUSAL, 0) ||
                               lathe_attr_int(&attrs, LATHE_ATTR_WINDOW, -1) >= 0 ||
                               (node->n_in > 4 && node->in[4] != LATHE_NONE);
        region->attentions++;
    }
    return true;
}

static bool keep_operands(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        if (!region->member[n])
            continue;
        struct lathe_row_operand *list = lathe_arena_alloc_array(ctx->scratch, LATHE_ROW_MAX_OPERANDS, sizeof *list);
        if (!list || !lathe_row_rule(region, n, region->layout[g->nodes[n].out[0]], list))
            return false;
        region->operands[n] = list;
    }
    return true;
}

static enum lathe_status no_memory(struct lathe_pass_ctx *ctx) {
    return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
}

enum lathe_status lathe_row_region_find(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    *region = (struct lathe_row_region){
        .graph = g, .keys = LATHE_NONE, .values = g->value_count, .nodes = g->node_count, .reader = LATHE_NONE};
    if (!find_keys(ctx, region))
        return LATHE_OK;
    uint32_t values = region->values, nodes = region->nodes;
    region->layout = lathe_arena_alloc_array(ctx->scratch, values, sizeof *region->layout);
    region->entry = lathe_arena_alloc(ctx->scratch, values);
    region->zero = lathe_arena_alloc(ctx->scratch, values);
    region->whole = lathe_arena_alloc(ctx->scratch, values);
    region->member = lathe_arena_alloc(ctx->scratch, nodes);
    region->operands = lathe_arena_alloc_array(ctx->scratch, nodes, sizeof *region->operands);
    lathe_value_id *stack = lathe_arena_alloc_array(ctx->scratch, values, sizeof *stack);
    if (!region->layout || !region->entry || !region->zero || !region->whole || !region->member || !region->operands ||
        !stack)
        return no_memory(ctx);
    memset(region->whole, 0, values);
    /* What is needed whole leaves the region, and a smaller region has other readers outside: until nothing changes. */
    for (bool found = true; found;) {
        for (lathe_value_id v = 0; v < values; v++)
            region->layout[v] = (struct lathe_row_layout){-1, -1};
        memset(region->entry, 0, values);
        memset(region->zero, 0, values);
        memset(region->member, 0, nodes);
        if (!seed(region, stack)) {
            region->attentions = 0;
            region->none = "a value is read with its tokens along two different axes";
            return LATHE_OK;
        }
        if (region->attentions == 0)
            break;
        spread(region);
        find_zeros(region);
        if (!keep_operands(ctx, region))
            return no_memory(ctx);
        LATHE_TRY(lathe_row_find_whole(ctx, region, &found));
    }
    if (region->reader != LATHE_NONE && region->left_out)
        lathe_pass_missed(ctx, "pack_rows", region->reader, "%s", region->reason);
    if (region->attentions == 0)
        region->none = region->reader != LATHE_NONE ? region->reason : "no attention is over the tokens of the mask";
    return LATHE_OK;
}
