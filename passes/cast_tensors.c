/* --cast all: every float tensor is one of bf16 numbers. Behind each node whose f32 result need not be one stands a
 * round_bf16; constants are rounded here. What an operator sums or normalises inside stays f32, as does all of this:
 * - constants of one element (epsilons, scales of scores) and masks (an element <= -1e4), whose value a formula needs;
 * - scales and zero points of quantized tensors, and the statistics that a norm gives out;
 * - arithmetic that ends in casts to integers: its results select rows.
 * Runs last, so that a tensor is what the plan stores between two steps. Does nothing for other policies. */
#include "kernel_bf16.h"
#include "match.h"
#include "report.h"

#include "ops_enums.h"

#include <math.h>

struct casts {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    uint32_t value_count;    /* before this pass */
    bool *exact;             /* [value_count] its elements are bf16 numbers */
    bool *selects;           /* [value_count] only integers are made of it */
    lathe_value_id *rounded; /* [value_count] the rounded form of a constant, LATHE_NONE: none yet */
    bool *is_weight;         /* [node_count] computes the packed weight of a product, from constants */
};

static enum lathe_status no_memory(struct lathe_pass_ctx *ctx) {
    return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "cast_tensors: out of memory");
}

static bool is_f32(const struct lathe_graph *g, lathe_value_id v) {
    return v != LATHE_NONE && g->values[v].dtype == LATHE_F32;
}

/* Operators whose operand 1 is read through what widens or rearranges constants. */
static bool reads_weight(enum lathe_op op) {
    return op == LATHE_OP_LINEAR || op == LATHE_OP_LINEAR_BF16 || op == LATHE_OP_CONV;
}

/* Results are elements of the operands, or exact in bf16. */
static bool moves_only(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_NEG:
    case LATHE_OP_ABS:
    case LATHE_OP_RELU:
    case LATHE_OP_MIN:
    case LATHE_OP_MAX:
    case LATHE_OP_WHERE:
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_CONCAT:
    case LATHE_OP_SLICE:
    case LATHE_OP_GATHER:
    case LATHE_OP_GATHER_ELEMENTS:
    case LATHE_OP_GATHER_ND:
    case LATHE_OP_EXPAND:
    case LATHE_OP_TILE:
    case LATHE_OP_TRILU:
    case LATHE_OP_DEPTH_TO_SPACE:
    case LATHE_OP_SPACE_TO_DEPTH:
    case LATHE_OP_REVERSE_SEQUENCE:
    case LATHE_OP_ROLL:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_TOP_K:
    case LATHE_OP_MAX_POOL:
    case LATHE_OP_PACK_ROWS:
    case LATHE_OP_UNPACK_ROWS:
    case LATHE_OP_TAKE_ROWS:
    case LATHE_OP_ROUND_BF16:
        return true;
    default:
        return false;
    }
}

static bool gives_exact(const struct casts *c, lathe_node_id n) {
    const struct lathe_node *node = &c->g->nodes[n];
    if (node->op == LATHE_OP_CAST) {
        enum lathe_dtype from = c->g->values[node->in[0]].dtype;
        return from == LATHE_BOOL || from == LATHE_BF16;
    }
    if (!moves_only(node->op) || (node->op == LATHE_OP_GATHER_ELEMENTS && node->n_in > 2)) /* a sum */
        return false;
    for (uint32_t i = 0; i < node->n_in; i++)
        if (is_f32(c->g, node->in[i]) && node->in[i] < c->value_count && !c->exact[node->in[i]])
            return false;
    return true;
}

/* A result that stays f32 whatever reads it. */
static bool stays_f32(enum lathe_op op, uint32_t output) {
    return op == LATHE_OP_DYNAMIC_QUANTIZE_LINEAR || (op == LATHE_OP_LAYER_NORM && output > 0);
}

/* An operand that is a parameter of a quantized tensor. */
static bool is_parameter(enum lathe_op op, uint32_t operand) {
    switch (op) {
    case LATHE_OP_QUANTIZE_LINEAR:
    case LATHE_OP_DEQUANTIZE_LINEAR:
        return operand >= 1;
    case LATHE_OP_MATMUL_NBITS:
    case LATHE_OP_GATHER_BLOCK_QUANTIZED:
        return operand == 2;
    case LATHE_OP_EMBEDDING_Q8:
        return operand > 2 && operand % 3 == 0; /* the scales of (table, scales, index) */
    default:
        return false;
    }
}

/* ---- what only selects rows */

static bool is_integer_cast(const struct lathe_graph *g, lathe_node_id n) {
    return g->nodes[n].op == LATHE_OP_CAST && lathe_dtype_is_integer(g->values[g->nodes[n].out[0]].dtype);
}

static bool computes_elements(enum lathe_op op) {
    return (lathe_op_info(op)->flags & (LATHE_OPF_ELEMENTWISE | LATHE_OPF_PAIRWISE)) || moves_only(op);
}

static bool only_selects(const struct casts *c, lathe_value_id v) {
    const struct lathe_value *value = &c->g->values[v];
    if (value->is_output || !value->use_count)
        return false;
    for (uint32_t i = 0; i < value->use_count; i++) {
        const struct lathe_node *user = &c->g->nodes[value->uses[i]];
        if (is_integer_cast(c->g, value->uses[i]))
            continue;
        if (!computes_elements(user->op) || !is_f32(c->g, user->out[0]) || !c->selects[user->out[0]])
            return false;
    }
    return true;
}

static void mark_selecting(struct casts *c) {
    for (lathe_node_id n = c->g->last; n != LATHE_NONE; n = c->g->nodes[n].prev)
        for (uint32_t i = 0; i < c->g->nodes[n].n_out; i++)
            if (is_f32(c->g, c->g->nodes[n].out[i]))
                c->selects[c->g->nodes[n].out[i]] = only_selects(c, c->g->nodes[n].out[i]);
}

/* ---- weights of products: packing reads them through what only rearranges constants */

static bool mark_weight(struct casts *c, lathe_value_id v, unsigned depth) {
    if (lathe_value_is_constant(c->g, v))
        return true;
    lathe_node_id n = v == LATHE_NONE ? LATHE_NONE : c->g->values[v].producer;
    enum lathe_op op = n == LATHE_NONE ? LATHE_OP_NONE : c->g->nodes[n].op;
    if (depth > 8 || !(moves_only(op) || op == LATHE_OP_CAST || op == LATHE_OP_DEQUANTIZE_LINEAR))
        return false;
    for (uint32_t i = 0; i < c->g->nodes[n].n_in; i++)
        if (!mark_weight(c, c->g->nodes[n].in[i], depth + 1))
            return false;
    c->is_weight[n] = true;
    return true;
}

static void mark_weights(struct casts *c) {
    LATHE_FOR_NODES(c->g, n) {
        if (reads_weight(c->g->nodes[n].op))
            (void)mark_weight(c, c->g->nodes[n].in[1], 0);
    }
}

/* ---- rounding */

static void tell(struct casts *c, const char *kind, const char *name, enum lathe_op op) {
    if (c->ctx->report)
        lathe_report_cast(c->ctx->report, kind, name, op == LATHE_OP_NONE ? "" : lathe_op_info(op)->name);
}

/* A round_bf16 of v before `before`; all that read v read it. */
static bool round_value(struct casts *c, lathe_value_id v, lathe_node_id before, enum lathe_op op) {
    struct lathe_graph *g = c->g;
    lathe_value_id y = lathe_graph_add_value(g, g->values[v].name, LATHE_F32, g->values[v].rank, g->values[v].dims);
    if (y == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, v, y);
    lathe_node_id n = lathe_graph_add_node(g, before, LATHE_OP_ROUND_BF16, g->values[v].name, "Cast", &v, 1, &y, 1);
    if (n == LATHE_NONE)
        return false;
    tell(c, "tensor", g->values[v].name, op);
    c->ctx->changes++;
    return true;
}

enum constant_kind { CONSTANT_EXACT, CONSTANT_KEPT, CONSTANT_ROUNDED };

/* What rounding does to a constant. */
static enum constant_kind constant_kind(const struct lathe_graph *g, lathe_value_id v) {
    int64_t count = lathe_value_count(g, v);
    bool exact = true;
    for (int64_t i = 0; i < count; i++) {
        float x = (float)lathe_constant_f64(g, v, i);
        uint32_t u;
        memcpy(&u, &x, sizeof u);
        exact &= !(u & 0xffff) || x != x;
        if (x <= -1e4f)
            return CONSTANT_KEPT;
    }
    return exact ? CONSTANT_EXACT : count > 1 ? CONSTANT_ROUNDED : CONSTANT_KEPT;
}

/* The rounded form of constant v: as bf16 where the reader takes it, else f32 elements. */
static lathe_value_id round_constant(struct casts *c, lathe_value_id v, bool narrow) {
    struct lathe_graph *g = c->g;
    int64_t count = lathe_value_count(g, v), dims[LATHE_MAX_RANK];
    int rank = g->values[v].rank;
    size_t bytes;
    for (int i = 0; i < rank; i++)
        lathe_value_dim_is(g, v, i, &dims[i]);
    if (!lathe_mul_size((size_t)count, narrow ? sizeof(uint16_t) : sizeof(float), &bytes))
        return LATHE_NONE;
    void *data = lathe_arena_alloc(g->arena, bytes);
    uint64_t clamped = 0;
    if (!data)
        return LATHE_NONE;
    for (int64_t i = 0; i < count; i++) {
        float x = (float)lathe_constant_f64(g, v, i);
        uint16_t half = lathe_bf16_weight(x);
        uint32_t wide = (uint32_t)half << 16;
        clamped += isfinite(x) && fabsf(x) >= 0x1.ffp127f;
        if (narrow)
            ((uint16_t *)data)[i] = half;
        else
            memcpy((float *)data + i, &wide, sizeof wide);
    }
    if (clamped)
        lathe_pass_warn(c->ctx, "WEIGHTS_CLAMPED", LATHE_NONE,
                        "%llu elements of '%s' are beyond bf16 and are its largest finite number",
                        (unsigned long long)clamped, g->values[v].name);
    tell(c, "constant", g->values[v].name, LATHE_OP_NONE);
    c->ctx->changes++;
    return lathe_graph_add_constant(g, g->values[v].name, narrow ? LATHE_BF16 : LATHE_F32, rank, dims, data);
}

/* A table that embeddings look rows up in, and nothing else but products reads: they take it in bf16. */
static bool is_table(const struct casts *c, lathe_value_id v) {
    const struct lathe_value *value = &c->g->values[v];
    bool looked_up = false;
    for (uint32_t i = 0; i < value->use_count; i++) {
        const struct lathe_node *user = &c->g->nodes[value->uses[i]];
        if (user->op == LATHE_OP_EMBEDDING && user->in[0] != v && user->in[1] != v)
            looked_up = true;
        else if (!c->is_weight[value->uses[i]] && !(user->op == LATHE_OP_LINEAR_BF16 && user->in[1] == v))
            return false;
    }
    return looked_up && value->rank == 2;
}

static bool is_tied_product(const struct lathe_graph *g, lathe_node_id n, lathe_value_id v) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return g->nodes[n].op == LATHE_OP_LINEAR_BF16 && g->nodes[n].in[1] == v &&
           lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0);
}

/* A table that is the matrix of a bf16 product too: lowering stores it once, packed and rounded. */
static bool is_tied(const struct lathe_graph *g, lathe_value_id v) {
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        lathe_node_id user = g->values[v].uses[i];
        lathe_value_id wide = g->nodes[user].op == LATHE_OP_CAST ? g->nodes[user].out[0] : LATHE_NONE;
        if (is_tied_product(g, user, v))
            return true;
        for (uint32_t k = 0; wide != LATHE_NONE && k < g->values[wide].use_count; k++)
            if (is_tied_product(g, g->values[wide].uses[k], wide))
                return true;
    }
    return false;
}

static enum lathe_status round_constants_of(struct casts *c, lathe_node_id n) {
    struct lathe_graph *g = c->g;
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
        lathe_value_id v = g->nodes[n].in[i];
        enum lathe_op op = g->nodes[n].op;
        if (v == LATHE_NONE || v >= c->value_count || !lathe_value_is_constant(g, v) || is_parameter(op, i) ||
            (op == LATHE_OP_LINEAR_BF16 && i == 1))
            continue;
        if (!is_f32(g, v) && !(g->values[v].dtype == LATHE_F16 && is_table(c, v)))
            continue;
        if (op == LATHE_OP_EMBEDDING && i >= 2 && is_tied(g, v))
            continue;
        if (c->rounded[v] == LATHE_NONE) {
            enum constant_kind kind = constant_kind(g, v);
            c->exact[v] = kind != CONSTANT_KEPT;
            c->rounded[v] = kind == CONSTANT_ROUNDED ? round_constant(c, v, is_table(c, v)) : v;
            if (c->rounded[v] == LATHE_NONE)
                return no_memory(c->ctx);
        }
        if (c->rounded[v] != v)
            lathe_node_set_input(g, n, i, c->rounded[v]);
    }
    return LATHE_OK;
}

static enum lathe_status round_results_of(struct casts *c, lathe_node_id n, lathe_node_id before) {
    bool exact = gives_exact(c, n);
    for (uint32_t i = 0; i < c->g->nodes[n].n_out; i++) {
        lathe_value_id v = c->g->nodes[n].out[i];
        enum lathe_op op = c->g->nodes[n].op;
        if (!is_f32(c->g, v) || stays_f32(op, i) || c->selects[v])
            continue;
        if (!exact && !round_value(c, v, before, op))
            return no_memory(c->ctx);
        c->exact[v] = true;
    }
    return LATHE_OK;
}

static enum lathe_status round_inputs(struct casts *c) {
    for (uint32_t i = 0; i < c->g->input_count; i++) {
        lathe_value_id v = c->g->inputs[i];
        if (!is_f32(c->g, v) || !lathe_value_use_total(c->g, v))
            continue;
        if (!only_selects(c, v) && !round_value(c, v, c->g->first, LATHE_OP_NONE))
            return no_memory(c->ctx);
        c->exact[v] = true;
    }
    return LATHE_OK;
}

enum lathe_status lathe_pass_cast_tensors(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    if (!ctx->options || !ctx->options->cast_all)
        return LATHE_OK;
    struct casts c = {.ctx = ctx, .g = g, .value_count = g->value_count};
    c.exact = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *c.exact);
    c.selects = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *c.selects);
    c.rounded = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *c.rounded);
    c.is_weight = lathe_arena_alloc_array(ctx->scratch, (size_t)g->node_count + 1, sizeof *c.is_weight);
    if (!c.exact || !c.selects || !c.rounded || !c.is_weight)
        return no_memory(ctx);
    for (uint32_t v = 0; v < c.value_count; v++)
        c.rounded[v] = LATHE_NONE;
    mark_selecting(&c);
    mark_weights(&c);
    lathe_node_id first = g->first;
    LATHE_TRY(round_inputs(&c));
    for (lathe_node_id n = first; n != LATHE_NONE;) {
        lathe_node_id follow = g->nodes[n].next;
        if (!c.is_weight[n]) {
            LATHE_TRY(round_constants_of(&c, n));
            LATHE_TRY(round_results_of(&c, n, follow));
        }
        n = follow;
    }
    return g->out_of_memory ? no_memory(ctx) : LATHE_OK;
}
