/* Removes what changes nothing. A rule looks at one node and either names the value that its output equals, or rewrites
 * the node into a simpler one. Floating point keeps its meaning: x + 0 differs from x only in the sign of a zero. */
#include "pass.h"
#include "value_facts.h"

struct rule_ctx {
    struct lathe_pass_ctx *pass;
    struct lathe_graph *g;
    lathe_node_id n;
};

static lathe_value_id out0(const struct rule_ctx *r) {
    return r->g->nodes[r->n].out[0];
}
static lathe_value_id in_at(const struct rule_ctx *r, uint32_t k) {
    const struct lathe_node *node = &r->g->nodes[r->n];
    return k < node->n_in ? node->in[k] : LATHE_NONE;
}

static bool same_type_and_shape(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    return g->values[a].dtype == g->values[b].dtype && lathe_value_same_shape(g, a, b);
}

/* The output equals v. Outputs of the graph keep a value of their own where v is an input, a constant or an output. */
static bool becomes(struct rule_ctx *r, lathe_value_id v) {
    struct lathe_graph *g = r->g;
    lathe_value_id y = out0(r);
    const struct lathe_value *value = &g->values[v];
    if (!same_type_and_shape(g, y, v) ||
        (g->values[y].is_output && (value->is_input || value->data || value->is_output)))
        return false;
    lathe_graph_replace_uses(g, y, v);
    lathe_graph_remove_dead_from(g, r->n);
    return true;
}

/* The node becomes op(v) with no attributes; dims and type of the output stay. */
static bool turns_into(struct rule_ctx *r, enum lathe_op op, lathe_value_id v) {
    struct lathe_graph *g = r->g;
    lathe_value_id old[3];
    uint32_t n_old = g->nodes[r->n].n_in;
    for (uint32_t i = 0; i < n_old && i < 3; i++)
        old[i] = g->nodes[r->n].in[i];
    lathe_node_set_inputs(g, r->n, &v, 1);
    lathe_node_set_op(g, r->n, op);
    while (g->nodes[r->n].n_attrs)
        lathe_node_drop_attr(g, r->n, g->nodes[r->n].attrs[0].key);
    for (uint32_t i = 0; i < n_old && i < 3; i++)
        if (old[i] != LATHE_NONE && g->values[old[i]].producer != LATHE_NONE)
            lathe_graph_remove_dead_from(g, g->values[old[i]].producer);
    return true;
}

/* The output equals v, broadcast to the output's dims. */
static bool becomes_broadcast(struct rule_ctx *r, lathe_value_id v) {
    if (r->g->values[v].dtype != r->g->values[out0(r)].dtype)
        return false;
    if (lathe_value_same_shape(r->g, v, out0(r)))
        return becomes(r, v);
    return turns_into(r, LATHE_OP_EXPAND, v);
}

/* Every element of the output is this number. */
static bool becomes_uniform(struct rule_ctx *r, bool truth) {
    struct lathe_graph *g = r->g;
    unsigned char element = truth;
    lathe_value_id constant = lathe_graph_add_constant_copy(g, truth ? "true" : "false", LATHE_BOOL, 0, NULL, &element);
    if (constant == LATHE_NONE)
        return false;
    if (!turns_into(r, LATHE_OP_FILL, constant))
        return false;
    lathe_value_id in[2] = {LATHE_NONE, constant};
    lathe_node_set_inputs(g, r->n, in, 2);
    return true;
}

/* ---- views and movement */

static bool rule_reshape(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    lathe_node_id inner = lathe_producer_of(g, in_at(r, 0), LATHE_OP_RESHAPE);
    if (becomes(r, in_at(r, 0)))
        return true;
    if (inner == LATHE_NONE)
        return false;
    lathe_node_set_input(g, r->n, 0, g->nodes[inner].in[0]);
    lathe_graph_remove_dead_from(g, inner);
    return true;
}

/* Every value of the first type is a value of the second. */
static bool holds_exactly(enum lathe_dtype from, enum lathe_dtype to) {
    static const struct {
        enum lathe_dtype dtype;
        int integer_bits; /* of the integers that it holds without a gap */
        bool sign, real;
    } types[] = {{LATHE_U8, 8, false, false},   {LATHE_I8, 7, true, false},    {LATHE_U16, 16, false, false},
                 {LATHE_I16, 15, true, false},  {LATHE_U32, 32, false, false}, {LATHE_I32, 31, true, false},
                 {LATHE_U64, 64, false, false}, {LATHE_I64, 63, true, false},  {LATHE_F16, 11, true, true},
                 {LATHE_BF16, 8, true, true},   {LATHE_F32, 24, true, true},   {LATHE_F64, 53, true, true}};
    int a = -1, b = -1;
    if (from == LATHE_BOOL || from == to)
        return true;
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        a = types[i].dtype == from ? i : a;
        b = types[i].dtype == to ? i : b;
    }
    if (a < 0 || b < 0)
        return false;
    if (types[a].real)
        return (to == LATHE_F32 && from != LATHE_F64) || to == LATHE_F64;
    return types[b].integer_bits >= types[a].integer_bits && (types[b].sign || !types[a].sign);
}

static bool rule_cast(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    lathe_value_id x = in_at(r, 0);
    if (g->values[x].dtype == g->values[out0(r)].dtype)
        return becomes(r, x);
    /* cast(cast(x)): the inner one is a detour when it loses nothing. */
    lathe_node_id inner = lathe_producer_of(g, x, LATHE_OP_CAST);
    if (inner == LATHE_NONE)
        return false;
    lathe_value_id source = g->nodes[inner].in[0];
    enum lathe_dtype from = g->values[source].dtype, between = g->values[x].dtype, to = g->values[out0(r)].dtype;
    if (!holds_exactly(from, between))
        return false;
    if (from == to)
        return becomes(r, source);
    /* Between an integer and a float type, values that do not fit are treated differently. */
    if (from != LATHE_BOOL && to != LATHE_BOOL && !holds_exactly(from, to) &&
        lathe_dtype_is_float(between) != lathe_dtype_is_float(from))
        return false;
    lathe_node_set_input(g, r->n, 0, source);
    lathe_graph_remove_dead_from(g, inner);
    return true;
}

static const int64_t *perm_of(const struct lathe_graph *g, lathe_node_id n, int rank) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    return perm && count == (uint32_t)rank ? perm : NULL;
}

static bool rule_transpose(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    lathe_value_id x = in_at(r, 0);
    int rank = g->values[x].rank;
    const int64_t *perm = perm_of(g, r->n, rank);
    if (!perm)
        return false;
    bool identity = true, moves_only_ones = true;
    int64_t last = -1, one;
    for (int i = 0; i < rank; i++) {
        identity &= perm[i] == i;
        if (lathe_value_dim_is(g, x, (int)perm[i], &one) && one == 1)
            continue;
        moves_only_ones &= perm[i] > last;
        last = perm[i];
    }
    if (identity)
        return becomes(r, x);
    lathe_node_id inner = lathe_producer_of(g, x, LATHE_OP_TRANSPOSE);
    const int64_t *first = inner == LATHE_NONE ? NULL : perm_of(g, inner, rank);
    if (first) {
        int64_t both[LATHE_MAX_RANK];
        for (int i = 0; i < rank; i++)
            both[i] = first[perm[i]];
        lathe_node_set_input(g, r->n, 0, g->nodes[inner].in[0]);
        lathe_node_set_ints(g, r->n, LATHE_ATTR_PERM, both, (uint32_t)rank);
        lathe_graph_remove_dead_from(g, inner);
        return true;
    }
    return moves_only_ones && turns_into(r, LATHE_OP_RESHAPE, x);
}

/* Axis i of value v as broadcasting to `rank` axes sees it. */
static lathe_dim broadcast_dim(const struct lathe_graph *g, lathe_value_id v, int rank, int i) {
    int at = i - (rank - g->values[v].rank);
    return at < 0 ? lathe_dim_const(g->dims, 1) : lathe_value_dim(g, v, at);
}

/* An elementwise user need not read the expanded form when its result has the same dims without it. */
static bool expand_is_spare(const struct lathe_graph *g, lathe_node_id user, lathe_value_id expanded,
                            lathe_value_id source) {
    const struct lathe_node *node = &g->nodes[user];
    const struct lathe_op_info *info = lathe_op_info(node->op);
    if (!info || !(info->flags & LATHE_OPF_PAIRWISE) || node->op == LATHE_OP_CLIP || node->op == LATHE_OP_PRELU)
        return false;
    int rank = g->values[node->out[0]].rank;
    for (int i = 0; i < rank; i++) {
        lathe_dim want = lathe_value_dim(g, node->out[0], i);
        bool given = false;
        for (uint32_t k = 0; k < node->n_in && !given; k++) {
            lathe_value_id v = node->in[k] == expanded ? source : node->in[k];
            given = v != LATHE_NONE && g->values[v].rank <= rank && broadcast_dim(g, v, rank, i) == want;
        }
        if (!given)
            return false;
    }
    return true;
}

static bool rule_expand(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    lathe_value_id x = in_at(r, 0), y = out0(r);
    if (becomes(r, x))
        return true;
    lathe_node_id inner = lathe_producer_of(g, x, LATHE_OP_EXPAND);
    if (inner != LATHE_NONE) {
        lathe_node_set_input(g, r->n, 0, g->nodes[inner].in[0]);
        lathe_graph_remove_dead_from(g, inner);
        return true;
    }
    bool changed = false;
    for (uint32_t i = g->values[y].use_count; i-- > 0;) {
        if (i >= g->values[y].use_count)
            continue;
        lathe_node_id user = g->values[y].uses[i];
        if (!expand_is_spare(g, user, y, x))
            continue;
        for (uint32_t k = 0; k < g->nodes[user].n_in; k++)
            if (g->nodes[user].in[k] == y)
                lathe_node_set_input(g, user, k, x);
        changed = true;
    }
    if (changed)
        lathe_graph_remove_dead_from(g, r->n);
    return changed;
}

/* The one element of an axis of length 1, as an unfolded window of one position takes it. */
static bool rule_gather(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    lathe_value_id x = in_at(r, 0), index = in_at(r, 1);
    struct lathe_attrs attrs = lathe_node_attrs(g, r->n);
    int64_t size;
    if (!lathe_value_is_constant(g, index) || lathe_value_count(g, index) != 1 ||
        !lathe_value_dim_is(g, x, (int)lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0), &size) || size != 1 ||
        (lathe_constant_i64(g, index, 0) != 0 && lathe_constant_i64(g, index, 0) != -1))
        return false;
    return turns_into(r, LATHE_OP_RESHAPE, x);
}

static bool rule_slice(struct rule_ctx *r) {
    struct lathe_attrs attrs = lathe_node_attrs(r->g, r->n);
    uint32_t count;
    const int64_t *steps = lathe_attr_ints(&attrs, LATHE_ATTR_STEPS, &count);
    for (uint32_t i = 0; i < count; i++)
        if (steps[i] < 0)
            return false; /* as many elements, but reversed */
    return becomes(r, in_at(r, 0));
}

static bool rule_tile(struct rule_ctx *r) {
    return becomes(r, in_at(r, 0));
}

static bool rule_pad(struct rule_ctx *r) {
    struct lathe_attrs attrs = lathe_node_attrs(r->g, r->n);
    uint32_t count;
    const int64_t *pads = lathe_attr_ints(&attrs, LATHE_ATTR_PADS, &count);
    for (uint32_t i = 0; i < count; i++)
        if (pads[i])
            return false;
    return count && becomes(r, in_at(r, 0));
}

static bool rule_single_operand(struct rule_ctx *r) {
    return r->g->nodes[r->n].n_in == 1 && becomes(r, in_at(r, 0));
}

/* A reduction over axes of one element. */
static bool rule_reduce(struct rule_ctx *r) {
    struct lathe_graph *g = r->g;
    struct lathe_attrs attrs = lathe_node_attrs(g, r->n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    for (uint32_t i = 0; i < count; i++) {
        int64_t size;
        if (!lathe_value_dim_is(g, in_at(r, 0), (int)axes[i], &size) || size != 1)
            return false;
    }
    return becomes(r, in_at(r, 0)) || turns_into(r, LATHE_OP_RESHAPE, in_at(r, 0));
}

/* ---- arithmetic */

/* One operand is the neutral element `neutral`; only the second may be when the order matters. */
static bool neutral_operand(struct rule_ctx *r, double neutral, bool either) {
    double number;
    lathe_value_id a = in_at(r, 0), b = in_at(r, 1);
    if (r->g->nodes[r->n].n_in != 2)
        return false;
    if (lathe_value_uniform(r->g, b, &number) && number == neutral)
        return becomes_broadcast(r, a);
    return either && lathe_value_uniform(r->g, a, &number) && number == neutral && becomes_broadcast(r, b);
}

static bool rule_add(struct rule_ctx *r) {
    return neutral_operand(r, 0, true);
}
static bool rule_sub(struct rule_ctx *r) {
    return neutral_operand(r, 0, false);
}
static bool rule_mul(struct rule_ctx *r) {
    return neutral_operand(r, 1, true);
}
static bool rule_div(struct rule_ctx *r) {
    return neutral_operand(r, 1, false);
}
static bool rule_pow(struct rule_ctx *r) {
    return neutral_operand(r, 1, false);
}

static bool rule_neg(struct rule_ctx *r) {
    lathe_node_id inner = lathe_producer_of(r->g, in_at(r, 0), LATHE_OP_NEG);
    return inner != LATHE_NONE && becomes(r, r->g->nodes[inner].in[0]);
}

static bool rule_clip(struct rule_ctx *r) {
    return in_at(r, 1) == LATHE_NONE && in_at(r, 2) == LATHE_NONE && becomes(r, in_at(r, 0));
}

/* ---- logic */

static bool rule_not(struct rule_ctx *r) {
    double number;
    lathe_node_id inner = lathe_producer_of(r->g, in_at(r, 0), LATHE_OP_NOT);
    if (inner != LATHE_NONE)
        return becomes(r, r->g->nodes[inner].in[0]);
    return lathe_value_uniform(r->g, in_at(r, 0), &number) && becomes_uniform(r, number == 0);
}

static bool rule_and_or(struct rule_ctx *r) {
    bool is_and = r->g->nodes[r->n].op == LATHE_OP_AND;
    lathe_value_id a = in_at(r, 0), b = in_at(r, 1);
    double number;
    if (a == b)
        return becomes_broadcast(r, a);
    for (int k = 0; k < 2; k++)
        if (lathe_value_uniform(r->g, k ? b : a, &number))
            return (number != 0) == is_and ? becomes_broadcast(r, k ? a : b) : becomes_uniform(r, !is_and);
    return false;
}

static bool rule_compare(struct rule_ctx *r) {
    int outcome = lathe_comparison_outcome(r->g, r->g->nodes[r->n].op, in_at(r, 0), in_at(r, 1));
    return outcome >= 0 && becomes_uniform(r, outcome == 1);
}

static bool rule_where(struct rule_ctx *r) {
    double number;
    if (in_at(r, 1) == in_at(r, 2))
        return becomes_broadcast(r, in_at(r, 1));
    if (!lathe_value_uniform(r->g, in_at(r, 0), &number))
        return false;
    return becomes_broadcast(r, in_at(r, number != 0 ? 1 : 2));
}

static bool apply_rule(struct rule_ctx *r) {
    switch (r->g->nodes[r->n].op) {
    case LATHE_OP_RESHAPE:
        return rule_reshape(r);
    case LATHE_OP_CAST:
        return rule_cast(r);
    case LATHE_OP_TRANSPOSE:
        return rule_transpose(r);
    case LATHE_OP_EXPAND:
        return rule_expand(r);
    case LATHE_OP_SLICE:
        return rule_slice(r);
    case LATHE_OP_GATHER:
        return rule_gather(r);
    case LATHE_OP_TILE:
        return rule_tile(r);
    case LATHE_OP_PAD:
        return rule_pad(r);
    case LATHE_OP_CONCAT:
    case LATHE_OP_MAX:
    case LATHE_OP_MIN:
    case LATHE_OP_SUM:
    case LATHE_OP_MEAN:
        return rule_single_operand(r);
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_REDUCE_PROD:
        return rule_reduce(r);
    case LATHE_OP_ADD:
        return rule_add(r);
    case LATHE_OP_SUB:
        return rule_sub(r);
    case LATHE_OP_MUL:
        return rule_mul(r);
    case LATHE_OP_DIV:
        return rule_div(r);
    case LATHE_OP_POW:
        return rule_pow(r);
    case LATHE_OP_NEG:
        return rule_neg(r);
    case LATHE_OP_CLIP:
        return rule_clip(r);
    case LATHE_OP_NOT:
        return rule_not(r);
    case LATHE_OP_AND:
    case LATHE_OP_OR:
        return rule_and_or(r);
    case LATHE_OP_EQUAL:
    case LATHE_OP_LESS:
    case LATHE_OP_LESS_EQUAL:
    case LATHE_OP_GREATER:
    case LATHE_OP_GREATER_EQUAL:
        return rule_compare(r);
    case LATHE_OP_WHERE:
        return rule_where(r);
    default:
        return false;
    }
}

enum lathe_status lathe_pass_drop_no_ops(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    /* In order, each node sees its operands simplified already; a rewritten node is looked at again. */
    LATHE_FOR_NODES_SAFE(g, n, following) {
        struct rule_ctx r = {ctx, g, n};
        for (int again = 0; again < 8 && g->nodes[n].op != LATHE_OP_NONE && out0(&r) != LATHE_NONE; again++) {
            if (!apply_rule(&r))
                break;
            ctx->changes++;
        }
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "dropping no-ops") : LATHE_OK;
}
