/* Where the last attention has one query a sequence (trim_unused_rows), keys and values need not be projected: with
 * keys x_j Wk + bk and values x_j Wv + bv, for each head
 *   scale q . (x_j Wk + bk) = scale (q Wk^T) . x_j + what is the same for all j, which softmax does not see, and
 *   sum_j p_j (x_j Wv + bv) = (sum_j p_j x_j) Wv + bv, as the weights p_j sum to 1.
 * So a product of all rows by K and V becomes two of one row a sequence, and attention works on x itself, as one head
 * of keys that all queries share: linear of group h (q, Wk_h^T) -> attention_rows(.., x, x) -> linear of group h (..,
 * Wv_h) + bv
 *
 * Where the rule of masked rows gives zeros to a query without keys, no weights sum to 1: bv is then added where a
 * sequence has keys.
 *
 * distilbert, EPYC of the Zen 5 class, 2 threads, batch 1, at 8, 16, 64, 128, 512 tokens, time less in %:
 *   int8 0.4 1.5 2.3 2.2 2.8   bf16 0 0 0.2 2.5 2.9   f32 0.3 2.2 2.0 1.8 2.5
 * int8 of MiniLM-L6 with [CLS] as its output, 512 sentences: mean cosine with f32 0.999689 -> 0.999701. */
#include "match.h"
#include "report.h"
#include "weight_reader.h"

#include "ops_enums.h"

#include <math.h>
#include <string.h>

#define PANEL 16
/* What pays. A head then scores and sums K columns of each key instead of its own: with narrow heads that is as much
 * work as it saves, as the products saved may be in 8 bits and these are in f32. Small matrices take less time than the
 * two steps more that they cost. */
#define LEAST_HEAD   32
#define LEAST_MATRIX ((int64_t)1 << 15)
#define LEAST_LENGTH 8

/* Columns of a plain linear layer on all rows. */
struct projection {
    lathe_node_id linear;
    lathe_value_id x, bias; /* bias: of the layer, LATHE_NONE */
    int64_t k;              /* columns of x */
    int64_t first, count, head;
    struct lathe_weight_reader weights;
};

struct absorbing {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    lathe_node_id n;
    lathe_dim batch;
    int64_t heads;
    struct projection k, v;
};

static lathe_value_id operand(const struct lathe_graph *g, lathe_node_id n, uint32_t i) {
    return i < g->nodes[n].n_in ? g->nodes[n].in[i] : LATHE_NONE;
}

static int64_t attr(const struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, key, absent);
}

#define MISSED(a, ...) (lathe_pass_missed((a)->ctx, "absorbed", (a)->n, __VA_ARGS__), false)

static bool only_read_by(const struct lathe_graph *g, lathe_value_id v, lathe_node_id n) {
    for (uint32_t i = 0; i < g->values[v].use_count; i++)
        if (g->values[v].uses[i] != n)
            return false;
    return !g->values[v].is_output;
}

/* Heads of `head` columns from column `first` of operand `i`, of a layer that serves this attention alone. */
static bool find_projection(struct absorbing *a, uint32_t i, const char *what, int64_t first, int64_t head,
                            struct projection *out) {
    struct lathe_graph *g = a->g;
    lathe_value_id y = operand(g, a->n, i);
    lathe_node_id linear = lathe_producer_of(g, y, LATHE_OP_LINEAR);
    *out = (struct projection){.linear = linear, .first = first, .count = a->heads * head, .head = head};
    if (linear == LATHE_NONE)
        return MISSED(a, "found %s that %s makes, expected a linear layer", what,
                      g->values[y].producer == LATHE_NONE ? "no operator"
                                                          : lathe_op_info(g->nodes[g->values[y].producer].op)->name);
    if (!only_read_by(g, y, a->n))
        return MISSED(a, "found another reader of the %s, expected this attention alone", what);
    if (attr(g, linear, LATHE_ATTR_ACTIVATION, LATHE_ACT_NONE) || operand(g, linear, 3) != LATHE_NONE ||
        attr(g, linear, LATHE_ATTR_GROUP, 1) != 1)
        return MISSED(a, "found %s of a layer with an activation or residual, expected a plain product", what);
    out->x = operand(g, linear, 0);
    out->bias = operand(g, linear, 2);
    if (!lathe_weight_reader_open(g, linear, a->ctx->scratch, &out->weights) || g->values[out->x].rank != 2 ||
        out->weights.n < first + out->count)
        return MISSED(a, "found %s whose weights are computed, expected constants", what);
    for (uint32_t p = 0; p < out->weights.part_count; p++)
        if (out->weights.parts[p].scaled || !lathe_dtype_is_float(out->weights.parts[p].dtype))
            return MISSED(a, "found weights of %s that the source has in few bits: they stay as they are", what);
    out->k = out->weights.k;
    if (out->k % PANEL != 0)
        return MISSED(a, "found %s of rows of %lld columns, expected a multiple of %d", what, (long long)out->k, PANEL);
    return true;
}

static bool all_zero(const struct lathe_graph *g, lathe_value_id v, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (lathe_constant_f64(g, v, first + i) != 0)
            return false;
    return true;
}

/* Does a query without keys get zeros, where bv would have to be left out? */
static bool gives_zeros(const struct absorbing *a) {
    int64_t rule = attr(a->g, a->n, LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM);
    return rule == LATHE_MASKED_ZERO || rule == LATHE_MASKED_FLAG;
}

static bool matches(struct absorbing *a) {
    struct lathe_graph *g = a->g;
    lathe_node_id n = a->n;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0), dv = lathe_attr_int(&attrs, LATHE_ATTR_V_HEAD_DIM, d);
    int64_t k_at = lathe_attr_int(&attrs, LATHE_ATTR_K_OFFSET, 0), width;
    int64_t v_at = lathe_attr_int(&attrs, LATHE_ATTR_V_OFFSET, 0);
    lathe_value_id q = operand(g, n, 0), y = g->nodes[n].out[0];
    a->heads = lathe_attr_int(&attrs, LATHE_ATTR_HEADS, 0);
    if (lathe_attr_find(&attrs, LATHE_ATTR_START) == NULL && operand(g, n, 5) == LATHE_NONE)
        return false; /* no candidate: all rows are queries */
    if (a->heads < 1 || d < 1 || dv < 1 || g->values[y].is_output)
        return false;
    if (lathe_attr_int(&attrs, LATHE_ATTR_KV_HEADS, a->heads) != a->heads)
        return MISSED(a, "found heads that share keys, expected keys of each head's own");
    if (lathe_attr_float(&attrs, LATHE_ATTR_SOFTCAP, 0.0) != 0.0)
        return MISSED(a, "found a soft cap, which sees what is the same for all keys");
    if (lathe_attr_int(&attrs, LATHE_ATTR_Q_OFFSET, 0) != 0 || !lathe_value_dim_is(g, q, -1, &width) ||
        width != a->heads * d)
        return MISSED(a, "found queries among other columns, expected rows of them alone");
    if (d < LEAST_HEAD || dv % PANEL != 0)
        return MISSED(a, "found heads of %lld columns, expected at least %d, a multiple of %d",
                      (long long)(d < dv ? d : dv), LEAST_HEAD, PANEL);
    if (a->ctx->options && a->ctx->options->max_seq > 0 && a->ctx->options->max_seq < LEAST_LENGTH)
        return MISSED(a, "found sequences of at most %lld tokens: it pays from %d on",
                      (long long)a->ctx->options->max_seq, LEAST_LENGTH);
    if (!find_projection(a, 1, "keys", k_at, d, &a->k) || !find_projection(a, 2, "values", v_at, dv, &a->v))
        return false;
    if (a->k.k * a->k.count < LEAST_MATRIX)
        return MISSED(a, "found a small matrix of keys, %lld x %lld: it pays from %lld numbers on", (long long)a->k.k,
                      (long long)a->k.count, (long long)LEAST_MATRIX);
    lathe_value_id bias = a->v.bias;
    if (bias != LATHE_NONE && (!lathe_value_is_constant(g, bias) || g->values[bias].dtype != LATHE_F32))
        return MISSED(a, "found a bias of the values that is computed, expected a constant");
    if (bias != LATHE_NONE && all_zero(g, bias, v_at, a->v.count))
        a->v.bias = LATHE_NONE;
    if (a->v.bias != LATHE_NONE && gives_zeros(a) &&
        (operand(g, n, 4) != LATHE_NONE || lathe_attr_int(&attrs, LATHE_ATTR_CAUSAL, 0) ||
         lathe_attr_int(&attrs, LATHE_ATTR_WINDOW, -1) >= 0))
        return MISSED(a, "found a bias of the values that a query without keys must not get, and keys that are masked "
                         "for single queries");
    return true;
}

/* [head, heads * k]: in each row the heads beside each other, column t of head h of the keys' matrix as row t. */
static lathe_value_id transposed_heads(struct absorbing *a) {
    struct lathe_graph *g = a->g;
    const struct projection *p = &a->k;
    int64_t width, dims[2] = {p->head, 0};
    size_t count;
    if (!lathe_mul_i64(a->heads, p->k, &width) || !lathe_mul_size((size_t)width, (size_t)p->head, &count))
        return LATHE_NONE;
    dims[1] = width;
    float *data = lathe_arena_alloc_array(g->arena, count, sizeof *data);
    float *columns = lathe_arena_alloc_array(a->ctx->scratch, (size_t)p->head, (size_t)p->k * sizeof *columns);
    if (!data || !columns) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (int64_t h = 0; h < a->heads; h++) {
        lathe_weight_reader_columns(&p->weights, p->first + h * p->head, p->head, columns);
        for (int64_t t = 0; t < p->head; t++)
            memcpy(data + t * width + h * p->k, columns + t * p->k, (size_t)p->k * sizeof *data);
    }
    return lathe_graph_add_constant(g, g->values[g->nodes[p->linear].in[1]].name, LATHE_F32, 2, dims, data);
}

/* The columns of the values as a matrix of their own, and whether it is transposed. */
static lathe_value_id value_columns(struct absorbing *a, bool *transposed) {
    struct lathe_graph *g = a->g;
    const struct projection *p = &a->v;
    *transposed = attr(g, p->linear, LATHE_ATTR_TRANS_B, 0) != 0;
    lathe_value_id part = lathe_match_weight_columns(g, p->linear, p->first, p->count);
    if (part != LATHE_NONE || g->out_of_memory)
        return part;
    float *data = lathe_arena_alloc_array(g->arena, (size_t)p->count, (size_t)p->k * sizeof *data);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    *transposed = true;
    lathe_weight_reader_columns(&p->weights, p->first, p->count, data);
    const int64_t dims[2] = {p->count, p->k};
    return lathe_graph_add_constant(g, g->values[g->nodes[p->linear].in[1]].name, LATHE_F32, 2, dims, data);
}

static lathe_value_id bias_of_values(struct absorbing *a) {
    struct lathe_graph *g = a->g;
    const struct projection *p = &a->v;
    if (p->bias == LATHE_NONE)
        return LATHE_NONE;
    const char *data = g->values[p->bias].data;
    return lathe_graph_add_constant(g, g->values[p->bias].name, LATHE_F32, 1, &p->count,
                                    data + (size_t)p->first * sizeof(float));
}

/* bias [columns] in each row of a sequence that has keys, 0 in the others. */
static lathe_value_id bias_with_keys(struct absorbing *a, lathe_value_id bias) {
    struct lathe_graph *g = a->g;
    const char *name = g->nodes[a->n].name;
    lathe_node_id map = lathe_producer_of(g, operand(g, a->n, 3), LATHE_OP_ROW_MAP);
    lathe_value_id keys = operand(g, map, 0);
    lathe_dim dims[2] = {g->values[keys].dims[0], g->values[keys].dims[1]};
    const int64_t axis = 1;
    lathe_value_id set = lathe_graph_emit(g, a->n, LATHE_OP_CAST, name, &keys, 1, LATHE_BOOL, 2, dims);
    if (set == LATHE_NONE)
        return set;
    lathe_node_set_int(g, g->values[set].producer, LATHE_ATTR_TO, LATHE_BOOL);
    lathe_value_id number = lathe_graph_emit(g, a->n, LATHE_OP_CAST, name, &set, 1, LATHE_F32, 2, dims);
    if (number == LATHE_NONE)
        return number;
    lathe_node_set_int(g, g->values[number].producer, LATHE_ATTR_TO, LATHE_F32);
    dims[1] = lathe_dim_const(g->dims, 1);
    lathe_value_id any = lathe_graph_emit(g, a->n, LATHE_OP_REDUCE_MAX, name, &number, 1, LATHE_F32, 2, dims);
    if (any == LATHE_NONE)
        return any;
    lathe_node_set_ints(g, g->values[any].producer, LATHE_ATTR_AXES, &axis, 1);
    lathe_node_set_int(g, g->values[any].producer, LATHE_ATTR_KEEPDIMS, 1);
    dims[0] = a->batch;
    dims[1] = lathe_dim_const(g->dims, a->v.count);
    const lathe_value_id in[2] = {any, bias};
    return lathe_graph_emit(g, a->n, LATHE_OP_MUL, name, in, 2, LATHE_F32, 2, dims);
}

/* A linear layer of as many groups as there are heads, before the attention. */
static lathe_value_id grouped(struct absorbing *a, const struct projection *p, const lathe_value_id in[4],
                              bool transposed, int64_t columns) {
    struct lathe_graph *g = a->g;
    uint32_t n_in = in[3] != LATHE_NONE ? 4 : in[2] != LATHE_NONE ? 3 : 2;
    const lathe_dim dims[2] = {a->batch, lathe_dim_const(g->dims, columns)};
    lathe_value_id y =
        lathe_graph_emit(g, a->n, LATHE_OP_LINEAR, g->nodes[p->linear].name, in, n_in, LATHE_F32, 2, dims);
    if (y == LATHE_NONE)
        return y;
    lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_GROUP, a->heads);
    if (transposed)
        lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_TRANS_B, 1);
    return y;
}

/* The attention on x, before the old one. */
static lathe_value_id attend(struct absorbing *a, lathe_value_id q) {
    struct lathe_graph *g = a->g;
    const struct lathe_node *old = &g->nodes[a->n];
    lathe_value_id in[6];
    uint32_t n_in = old->n_in;
    for (uint32_t i = 0; i < n_in && i < 6; i++)
        in[i] = old->in[i];
    in[0] = q;
    in[1] = a->k.x;
    in[2] = a->v.x;
    const lathe_dim dims[2] = {a->batch, lathe_dim_const(g->dims, a->heads * a->v.k)};
    lathe_value_id y = lathe_graph_emit(g, a->n, LATHE_OP_ATTENTION_ROWS, old->name, in, n_in, LATHE_F32, 2, dims);
    if (y == LATHE_NONE)
        return y;
    lathe_node_id made = g->values[y].producer;
    struct lathe_attrs attrs = lathe_node_attrs(g, a->n);
    double scale = lathe_attr_float(&attrs, LATHE_ATTR_SCALE, 1.0 / sqrt((double)a->k.head));
    static const enum lathe_attr_key kept[] = {LATHE_ATTR_CAUSAL, LATHE_ATTR_WINDOW, LATHE_ATTR_MASKED_ROW,
                                               LATHE_ATTR_START};
    for (unsigned i = 0; i < sizeof kept / sizeof *kept; i++)
        if (lathe_attr_find(&attrs, kept[i]))
            lathe_node_set_int(g, made, kept[i], lathe_attr_int(&attrs, kept[i], 0));
    lathe_node_set_int(g, made, LATHE_ATTR_HEADS, a->heads);
    lathe_node_set_int(g, made, LATHE_ATTR_KV_HEADS, 1);
    lathe_node_set_int(g, made, LATHE_ATTR_HEAD_DIM, a->k.k);
    lathe_node_set_int(g, made, LATHE_ATTR_V_HEAD_DIM, a->v.k);
    lathe_node_set_float(g, made, LATHE_ATTR_SCALE, scale);
    return y;
}

static bool rewrite(struct absorbing *a) {
    struct lathe_graph *g = a->g;
    bool transposed;
    a->batch = g->values[g->nodes[a->n].out[0]].dims[0];
    lathe_value_id keys = operand(g, a->n, 1), values = operand(g, a->n, 2), y = g->nodes[a->n].out[0];
    lathe_value_id in[4] = {operand(g, a->n, 0), transposed_heads(a), LATHE_NONE, LATHE_NONE};
    if (in[1] == LATHE_NONE)
        return false;
    in[0] = grouped(a, &a->k, in, false, a->heads * a->k.k);
    in[0] = in[0] == LATHE_NONE ? LATHE_NONE : attend(a, in[0]);
    in[1] = value_columns(a, &transposed);
    in[2] = bias_of_values(a);
    if (in[2] != LATHE_NONE && gives_zeros(a)) {
        in[3] = bias_with_keys(a, in[2]);
        in[2] = LATHE_NONE;
        if (in[3] == LATHE_NONE)
            return false;
    }
    if (in[0] == LATHE_NONE || in[1] == LATHE_NONE || g->out_of_memory)
        return false;
    lathe_value_id made = grouped(a, &a->v, in, transposed, a->v.count);
    if (made == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, y, made);
    lathe_graph_remove_node(g, a->n);
    lathe_match_drop_unused(g, keys);
    lathe_match_drop_unused(g, values);
    /* what is not computed for each token, and what is instead, for it and once */
    double heads = (double)a->heads, k = (double)a->k.k, v = (double)a->v.k;
    double matrices = k * (double)a->k.count + v * (double)a->v.count;
    double wider = heads * (k - (double)a->k.head + v - (double)a->v.head);
    if (a->ctx->report)
        lathe_report_absorbed(a->ctx->report, matrices - wider, matrices);
    a->ctx->changes++;
    return !g->out_of_memory;
}

enum lathe_status lathe_pass_absorb_projections(struct lathe_pass_ctx *ctx) {
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_ATTENTION_ROWS, &count);
    for (uint32_t i = 0; i < count; i++) {
        struct absorbing a = {.ctx = ctx, .g = ctx->graph, .n = list[i]};
        if (matches(&a) && !rewrite(&a))
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "absorb_projections: out of memory");
    }
    if (ctx->changes)
        lathe_pass_note(ctx, "absorbed_projections",
                        "keys and values of %u attention are not projected: its one query a sequence is taken to the "
                        "rows, and what it finds to the values",
                        ctx->changes);
    return ctx->graph->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "absorb_projections: out of memory")
                                     : LATHE_OK;
}
