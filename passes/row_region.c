#include "row_region.h"

#include "match.h"

#include <stdio.h>
#include <string.h>

static bool is_one(const struct lathe_graph *g, lathe_dim d) {
    int64_t size;
    return lathe_dim_is_const(g->dims, d, &size) && size == 1;
}

int lathe_row_lead(const struct lathe_row_region *region, lathe_value_id v) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_value *value = &g->values[v];
    if (value->rank >= 2 && lathe_match_dim_equal(g, value->dims[0], region->batch) &&
        lathe_match_dim_equal(g, value->dims[1], region->seq))
        return 2;
    return value->rank >= 1 && lathe_match_dim_equal(g, value->dims[0], region->tokens) ? 1 : 0;
}

/* The role of an operand that broadcasts against the output `out`. */
static enum lathe_row_role broadcast_role(const struct lathe_row_region *region, lathe_value_id o, lathe_value_id out,
                                          int lead) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_value *operand = &g->values[o];
    int missing = g->values[out].rank - operand->rank;
    if (missing == 0 && lathe_row_lead(region, o) == lead)
        return LATHE_ROW_ROWS;
    for (int axis = missing > 0 ? missing : 0; axis < lead; axis++)
        if (!is_one(g, operand->dims[axis - missing]))
            return LATHE_ROW_SPREAD;
    return LATHE_ROW_FREE;
}

/* All entries of a list attribute are axes behind the token axes. */
static bool axes_behind(const struct lathe_graph *g, lathe_node_id n, int lead) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    for (uint32_t i = 0; i < count; i++)
        if (axes[i] < lead)
            return false;
    return count > 0;
}

static bool axis_behind(const struct lathe_graph *g, lathe_node_id n, int lead) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1) >= lead;
}

static bool only_first_output(const struct lathe_node *node) {
    for (uint32_t i = 1; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE)
            return false;
    return true;
}

static bool attention_rule(const struct lathe_row_region *region, lathe_node_id n, enum lathe_row_role *roles) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    for (int i = 0; i < 3; i++) {
        if (lathe_row_lead(region, node->in[i]) != 2)
            return false;
        roles[i] = LATHE_ROW_ROWS;
    }
    return node->n_in > 3 && node->in[3] != LATHE_NONE;
}

static bool embedding_rule(const struct lathe_row_region *region, lathe_node_id n, enum lathe_row_role *roles) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *offsets = lathe_attr_ints(&attrs, LATHE_ATTR_OFFSETS, &count);
    for (uint32_t i = 2; i + 1 < node->n_in; i += 2) {
        lathe_value_id index = node->in[i + 1];
        if (index == LATHE_NONE) {
            uint32_t pair = (i - 2) / 2;
            roles[i + 1] = pair < count && offsets[pair] >= 0 ? LATHE_ROW_POSITION : LATHE_ROW_ABSENT;
        } else {
            roles[i + 1] = lathe_row_lead(region, index) == 2 ? LATHE_ROW_ROWS : LATHE_ROW_SPREAD;
        }
    }
    return true;
}

/* Computed from constants alone: a weight that stays in its stored form. */
static bool known_weight(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (v == LATHE_NONE || lathe_value_is_constant(g, v))
        return true;
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE || depth == 0)
        return false;
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++)
        if (!known_weight(g, g->nodes[n].in[i], depth - 1))
            return false;
    return true;
}

bool lathe_row_rule(const struct lathe_row_region *region, lathe_node_id n, enum lathe_row_role *roles, int *lead) {
    const struct lathe_graph *g = region->graph;
    const struct lathe_node *node = &g->nodes[n];
    if (node->n_in == 0 || node->n_in > LATHE_ROW_MAX_OPERANDS || node->n_out == 0 || node->out[0] == LATHE_NONE)
        return false;
    lathe_value_id x = node->in[0], y = node->out[0];
    *lead = lathe_row_lead(region, y);
    if (*lead == 0)
        return false;
    for (uint32_t i = 0; i < node->n_in; i++)
        roles[i] = node->in[i] == LATHE_NONE ? LATHE_ROW_ABSENT : LATHE_ROW_FREE;
    const struct lathe_op_info *info = lathe_op_info(node->op);
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    int x_lead = x == LATHE_NONE ? 0 : lathe_row_lead(region, x);
    bool same_lead = x_lead == *lead;
    int64_t size;
    roles[0] = LATHE_ROW_ROWS;
    if (info->flags & LATHE_OPF_ELEMENTWISE)
        return same_lead;
    if (info->flags & LATHE_OPF_PAIRWISE) {
        for (uint32_t i = 0; i < node->n_in; i++)
            if (node->in[i] != LATHE_NONE)
                roles[i] = broadcast_role(region, node->in[i], y, *lead);
        return true;
    }
    switch (node->op) {
    case LATHE_OP_LAYER_NORM:
    case LATHE_OP_RMS_NORM:
        return same_lead && only_first_output(node) && axis_behind(g, n, *lead);
    case LATHE_OP_SKIP_LAYER_NORM:
        roles[1] = LATHE_ROW_ROWS;
        return same_lead && g->values[x].rank > *lead;
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_LOG_SOFTMAX:
    case LATHE_OP_HARDMAX:
    case LATHE_OP_LP_NORMALIZE:
    case LATHE_OP_ARG_MAX:
    case LATHE_OP_ARG_MIN:
        return same_lead && axis_behind(g, n, *lead);
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_REDUCE_PROD:
    case LATHE_OP_REDUCE_L1:
    case LATHE_OP_REDUCE_L2:
    case LATHE_OP_REDUCE_SUM_SQUARE:
    case LATHE_OP_REDUCE_LOG_SUM:
    case LATHE_OP_REDUCE_LOG_SUM_EXP:
    case LATHE_OP_SLICE:
        return same_lead && node->n_in == 1 && axes_behind(g, n, *lead);
    case LATHE_OP_CONCAT:
        for (uint32_t i = 0; i < node->n_in; i++) {
            if (lathe_row_lead(region, node->in[i]) != *lead)
                return false;
            roles[i] = LATHE_ROW_ROWS;
        }
        return axis_behind(g, n, *lead);
    case LATHE_OP_TRANSPOSE: {
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        for (int i = 0; i < *lead; i++)
            if ((int)count <= i || perm[i] != i)
                return false;
        return same_lead;
    }
    case LATHE_OP_GATHER:
        if (same_lead && axis_behind(g, n, *lead))
            return lathe_value_is_constant(g, node->in[1]);
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != 0 || !lathe_value_is_constant(g, x) ||
            lathe_row_lead(region, node->in[1]) != *lead)
            return false;
        roles[0] = LATHE_ROW_FREE;
        roles[1] = LATHE_ROW_ROWS;
        return true;
    case LATHE_OP_LINEAR:
        if (node->n_in > 3 && node->in[3] != LATHE_NONE)
            roles[3] = LATHE_ROW_ROWS;
        return same_lead && g->values[x].rank > *lead;
    case LATHE_OP_MATMUL:
        return same_lead && g->values[x].rank > *lead && g->values[node->in[1]].rank == 2 &&
               known_weight(g, node->in[1], 6) && !lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0);
    case LATHE_OP_MATMUL_NBITS:
        return same_lead && g->values[x].rank > *lead;
    case LATHE_OP_QUANTIZE_LINEAR:
    case LATHE_OP_DEQUANTIZE_LINEAR:
        for (uint32_t i = 1; i < node->n_in; i++)
            if (node->in[i] != LATHE_NONE &&
                (!lathe_value_is_constant(g, node->in[i]) || lathe_value_count(g, node->in[i]) != 1))
                return false;
        return same_lead && !lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    case LATHE_OP_RESHAPE:
        return x_lead != 0 && node->n_in == 1;
    case LATHE_OP_EXPAND:
        return same_lead && node->n_in == 1 && g->values[x].rank == g->values[y].rank;
    case LATHE_OP_EMBEDDING:
        roles[0] = node->in[0] == LATHE_NONE ? LATHE_ROW_ABSENT : LATHE_ROW_FREE;
        return *lead == 2 && g->values[y].rank == 3 && lathe_value_dim_is(g, y, -1, &size) &&
               embedding_rule(region, n, roles);
    case LATHE_OP_ATTENTION:
        return *lead == 2 && attention_rule(region, n, roles);
    default:
        return false;
    }
}

/* Wide enough that computing it on packed rows is worth more than packing it. */
static bool is_activation(const struct lathe_row_region *region, lathe_value_id v) {
    const struct lathe_value *value = &region->graph->values[v];
    int lead = lathe_row_lead(region, v);
    if (!lathe_dtype_is_float(value->dtype))
        return false;
    for (int i = lead; i < value->rank; i++)
        if (!is_one(region->graph, value->dims[i]))
            return true;
    return false;
}

/* Marks v, and backwards what it is computed from, as packed. */
static void need(struct lathe_row_region *region, lathe_value_id v, lathe_value_id *stack) {
    const struct lathe_graph *g = region->graph;
    uint32_t top = 0;
    if (!region->lead[v]) {
        region->lead[v] = (uint8_t)lathe_row_lead(region, v);
        stack[top++] = v;
    }
    while (top) {
        v = stack[--top];
        lathe_node_id n = g->values[v].producer;
        enum lathe_row_role roles[LATHE_ROW_MAX_OPERANDS];
        int lead;
        if (n == LATHE_NONE || !lathe_row_rule(region, n, roles, &lead)) {
            region->entry[v] = 1;
            continue;
        }
        region->member[n] = 1;
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
            lathe_value_id o = g->nodes[n].in[i];
            if (roles[i] == LATHE_ROW_ROWS && !region->lead[o] && is_activation(region, o)) {
                region->lead[o] = (uint8_t)lathe_row_lead(region, o);
                stack[top++] = o;
            }
        }
    }
}

/* Marks what is computed row by row from packed values. */
static void spread(struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        enum lathe_row_role roles[LATHE_ROW_MAX_OPERANDS];
        int lead;
        bool packed = region->member[n];
        if (!packed) {
            for (uint32_t i = 0; i < g->nodes[n].n_in && !packed; i++)
                packed = g->nodes[n].in[i] != LATHE_NONE && region->lead[g->nodes[n].in[i]];
            if (!packed || !lathe_row_rule(region, n, roles, &lead))
                continue;
            packed = false;
            for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
                lathe_value_id o = g->nodes[n].in[i];
                if (o != LATHE_NONE && region->lead[o]) {
                    /* a packed operand that every row would need whole */
                    if (roles[i] != LATHE_ROW_ROWS) {
                        packed = false;
                        break;
                    }
                    packed = true;
                }
            }
            if (!packed)
                continue;
            region->member[n] = 1;
        }
        for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
            lathe_value_id y = g->nodes[n].out[i];
            if (y != LATHE_NONE && !region->lead[y])
                region->lead[y] = (uint8_t)lathe_row_lead(region, y);
        }
    }
}

/* Follows which packed values are 0 at masked tokens. */
static void find_zeros(struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        lathe_value_id y = node->n_out ? node->out[0] : LATHE_NONE;
        if (!region->member[n] || y == LATHE_NONE)
            continue;
        bool zero = lathe_row_mask_kind(region, y, 8) == 1;
        double number;
        int kind;
        switch (node->op) {
        case LATHE_OP_MUL:
            for (int i = 0; i < 2; i++)
                zero |= region->zero[node->in[i]] || lathe_row_mask_kind(region, node->in[i], 8) == 1;
            break;
        case LATHE_OP_WHERE:
            kind = lathe_row_mask_kind(region, node->in[0], 8);
            zero |= kind && lathe_match_number(g, node->in[kind == 2 ? 1 : 2], &number) && number == 0;
            break;
        case LATHE_OP_RESHAPE:
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
        region->zero[y] = zero;
    }
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

/* v has a row a token in a way that its shape shows. */
static bool shows_tokens(const struct lathe_row_region *region, lathe_value_id v) {
    int64_t size;
    return region->lead[v] == 2 &&
           (region->graph->values[v].rank > 2 || !lathe_dim_is_const(region->graph->dims, region->seq, &size));
}

/* Rows at masked tokens are 0 in what is given out: only where the mask that a user sees says which those are, and the
 * value has a row a token as the mask has. */
static bool outputs_allow(struct lathe_pass_ctx *ctx, const struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    bool mask = lathe_row_keys_are_mask(g, region->keys);
    for (uint32_t i = 0; i < g->output_count; i++) {
        lathe_value_id v = g->outputs[i];
        if (v >= region->values || !region->lead[v] || region->entry[v] || region->zero[v] ||
            (mask && shows_tokens(region, v)))
            continue;
        lathe_pass_missed(ctx, "pack_rows", g->values[v].producer,
                          mask ? "output %s does not show its tokens as [batch, sequence, ..]"
                               : "output %s has rows of tokens that no attention_mask input marks",
                          g->values[v].name);
        return false;
    }
    return true;
}

/* Every reader outside must be one that masked rows cannot reach. */
static bool readers_allow(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    for (lathe_value_id v = 0; v < region->values; v++) {
        if (!region->lead[v] || region->entry[v])
            continue;
        for (uint32_t i = 0; i < g->values[v].use_count; i++) {
            lathe_node_id n = g->values[v].uses[i];
            int64_t position;
            if (region->member[n])
                continue;
            if (lathe_row_is_take(region, n, &position)) {
                if (!add_position(region, position)) {
                    lathe_pass_missed(ctx, "pack_rows", n, "more than %d positions are read", LATHE_ROW_MAX_POSITIONS);
                    return false;
                }
                continue;
            }
            if (region->zero[v])
                continue;
            lathe_pass_missed(ctx, "pack_rows", n, "%s reads rows of masked tokens, which packing leaves out",
                              lathe_op_info(g->nodes[n].op)->name);
            return false;
        }
    }
    return true;
}

/* Keys that only inputs decide, by operators on small tensors: they can be computed before the rows are known. */
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
    if (root != LATHE_NONE && strstr(g->values[root].name, "attention_mask"))
        return true;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        uint32_t first = node->op == LATHE_OP_EMBEDDING ? 3 : node->op == LATHE_OP_GATHER ? 1 : UINT32_MAX;
        for (uint32_t i = first; i < node->n_in; i += 2)
            if (node->in[i] != LATHE_NONE && lathe_row_lead(region, node->in[i]) == 2 &&
                root_input(g, node->in[i], 12) != LATHE_NONE)
                return true;
    }
    return false;
}

/* All attentions have one kind of keys and one rule for rows without any. */
static bool same_keys(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    const struct lathe_graph *g = region->graph;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = &g->nodes[n];
        if (node->op != LATHE_OP_ATTENTION)
            continue;
        lathe_value_id keys = node->n_in > 3 ? node->in[3] : LATHE_NONE;
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        int64_t rule = lathe_attr_int(&attrs, LATHE_ATTR_MASKED_ROW, 0);
        if (keys == LATHE_NONE || g->values[keys].rank != 2) {
            if (region->attentions)
                lathe_pass_missed(ctx, "pack_rows", n, "this attention has no keys mask, others have");
            return false;
        }
        if (!region->attentions) {
            region->keys = keys;
            region->masked_row = rule;
            region->batch = g->values[keys].dims[0];
            region->seq = g->values[keys].dims[1];
            region->tokens = lathe_dim_mul(g->dims, region->batch, region->seq);
        } else if (!lathe_match_same(g, keys, region->keys) || rule != region->masked_row) {
            lathe_pass_missed(ctx, "pack_rows", n, "the attentions have different keys or rules for rows without keys");
            return false;
        }
        if (!known_before(g, keys, 12)) {
            lathe_pass_missed(ctx, "pack_rows", n, "the keys are not computed from the inputs alone");
            return false;
        }
        for (int i = 0; i < 3; i++)
            if (lathe_row_lead(region, node->in[i]) != 2) {
                lathe_pass_missed(ctx, "pack_rows", n, "queries or keys are not the tokens of the mask");
                return false;
            }
        region->by_position |= lathe_attr_int(&attrs, LATHE_ATTR_CAUSAL, 0) ||
                               lathe_attr_int(&attrs, LATHE_ATTR_WINDOW, -1) >= 0 ||
                               (node->n_in > 4 && node->in[4] != LATHE_NONE);
        region->attentions++;
    }
    return region->attentions > 0;
}

enum lathe_status lathe_row_region_find(struct lathe_pass_ctx *ctx, struct lathe_row_region *region) {
    struct lathe_graph *g = ctx->graph;
    *region =
        (struct lathe_row_region){.graph = g, .keys = LATHE_NONE, .values = g->value_count, .nodes = g->node_count};
    bool same = same_keys(ctx, region);
    if (region->keys != LATHE_NONE && !rows_are_tokens(region))
        region->keys = LATHE_NONE;
    if (!same || region->keys == LATHE_NONE) {
        region->attentions = 0;
        return LATHE_OK;
    }
    region->lead = lathe_arena_alloc(ctx->scratch, region->values);
    region->entry = lathe_arena_alloc(ctx->scratch, region->values);
    region->zero = lathe_arena_alloc(ctx->scratch, region->values);
    region->member = lathe_arena_alloc(ctx->scratch, region->nodes);
    lathe_value_id *stack = lathe_arena_alloc_array(ctx->scratch, region->values, sizeof *stack);
    if (!region->lead || !region->entry || !region->zero || !region->member || !stack)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
    LATHE_FOR_NODES(g, n) if (g->nodes[n].op == LATHE_OP_ATTENTION) {
        for (int i = 0; i < 3; i++)
            need(region, g->nodes[n].in[i], stack);
        need(region, g->nodes[n].out[0], stack);
    }
    spread(region);
    find_zeros(region);
    if (!readers_allow(ctx, region) || !outputs_allow(ctx, region)) {
        region->attentions = 0;
        return LATHE_OK;
    }
    region->roles = lathe_arena_alloc_array(ctx->scratch, region->nodes, sizeof *region->roles);
    if (!region->roles)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
    LATHE_FOR_NODES(g, n) {
        enum lathe_row_role roles[LATHE_ROW_MAX_OPERANDS];
        int lead;
        if (!region->member[n])
            continue;
        uint8_t *list = lathe_arena_alloc(ctx->scratch, LATHE_ROW_MAX_OPERANDS);
        if (!list || !lathe_row_rule(region, n, roles, &lead))
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pack_rows: out of memory");
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++)
            list[i] = (uint8_t)roles[i];
        region->roles[n] = list;
    }
    return LATHE_OK;
}
