/* What only feeds discarded rows is not computed: a classifier reads one token of the last layer, so behind the keys
 * and values of the last attention only that token's row is needed.
 *
 * Works on the packed form. Backwards from take_rows: an operator that works row by row, and whose result only one
 * taken position reads, runs on one row a sequence instead. attention_rows then gets one query a sequence (attribute
 * `start`: its position, or operand 5: one of each sequence) with all keys; where Q, K and V are one product, the part
 * of Q leaves it. */
#include "match.h"
#include "report.h"

#include <string.h>

struct trimming {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    lathe_value_id map;
    lathe_dim rows, batch;
    int64_t position;     /* negative from the end; if `index` is absent */
    lathe_value_id index; /* the position of each sequence */
    uint32_t values, nodes;
    uint8_t *trimmed;      /* a node runs on one row a sequence */
    double row, pair;      /* multiply-adds saved for each other row, and for each pair of one and a key */
    lathe_value_id *taken; /* a value of all rows: its row at the position; LATHE_NONE: not made yet */
};

static bool has_rows(const struct trimming *t, lathe_value_id v) {
    return v != LATHE_NONE && t->g->values[v].rank >= 1 &&
           lathe_match_dim_equal(t->g, t->g->values[v].dims[0], t->rows);
}

static bool axes_behind_rows(const struct lathe_graph *g, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    uint32_t count;
    const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
    for (uint32_t i = 0; i < count; i++)
        if (axes[i] < 1)
            return false;
    return count > 0;
}

/* n gives row r of its outputs from row r of its operands that have rows (attention_rows: of its queries). */
static bool works_by_row(const struct trimming *t, lathe_node_id n) {
    const struct lathe_graph *g = t->g;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t tokens;
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && !has_rows(t, node->out[i]))
            return false;
    unsigned flags = lathe_op_info(node->op)->flags;
    if (flags & LATHE_OPF_ELEMENTWISE)
        return true;
    if (flags & LATHE_OPF_PAIRWISE) {
        for (uint32_t i = 0; i < node->n_in; i++)
            if (has_rows(t, node->in[i]) && g->values[node->in[i]].rank != g->values[node->out[0]].rank)
                return false;
        return true;
    }
    switch (node->op) {
    case LATHE_OP_LINEAR:
    case LATHE_OP_MATMUL_NBITS:
    case LATHE_OP_SKIP_LAYER_NORM:
        return g->values[node->in[0]].rank >= 2;
    case LATHE_OP_MATMUL:
        return g->values[node->in[0]].rank == 2 && has_rows(t, node->in[0]) && !has_rows(t, node->in[1]) &&
               !lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0);
    case LATHE_OP_LAYER_NORM:
    case LATHE_OP_RMS_NORM:
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_LOG_SOFTMAX:
    case LATHE_OP_CONCAT:
        return lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) >= 1;
    case LATHE_OP_SLICE:
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_L2:
        return axes_behind_rows(g, n);
    case LATHE_OP_ROTARY: /* as pack_rows makes it: a sequence of one token for each row */
        return has_rows(t, node->in[node->n_in > 3 ? 3 : 1]) && lathe_value_dim_is(g, node->out[0], 1, &tokens) &&
               tokens == 1;
    case LATHE_OP_RESHAPE:
        return has_rows(t, node->in[0]);
    case LATHE_OP_ATTENTION_ROWS:
        return lathe_attr_find(&attrs, LATHE_ATTR_START) == NULL && node->n_in < 6;
    default:
        return false;
    }
}

static bool is_take(const struct trimming *t, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(t->g, n);
    const struct lathe_node *node = &t->g->nodes[n];
    return node->op == LATHE_OP_TAKE_ROWS && node->in[1] == t->map &&
           (node->n_in > 2 ? node->in[2] : LATHE_NONE) == t->index &&
           lathe_attr_int(&attrs, LATHE_ATTR_START, 0) == t->position;
}

/* Operand i of n is one of those that n reads row by row. */
static bool reads_row(const struct trimming *t, lathe_node_id n, uint32_t i) {
    const struct lathe_node *node = &t->g->nodes[n];
    if (node->op == LATHE_OP_ATTENTION_ROWS)
        return i == 0;
    return has_rows(t, node->in[i]);
}

static bool only_the_position_is_read(const struct trimming *t, lathe_node_id n) {
    const struct lathe_graph *g = t->g;
    uint32_t readers = 0;
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
        lathe_value_id v = g->nodes[n].out[i];
        if (v == LATHE_NONE)
            continue;
        if (g->values[v].is_output)
            return false;
        for (uint32_t k = 0; k < g->values[v].use_count; k++) {
            lathe_node_id use = g->values[v].uses[k];
            if (is_take(t, use)) {
                readers++;
                continue;
            }
            if (!t->trimmed[use])
                return false;
            /* as keys or values, all rows of it are read */
            for (uint32_t o = 0; o < g->nodes[use].n_in; o++)
                if (g->nodes[use].in[o] == v && !reads_row(t, use, o))
                    return false;
            readers++;
        }
    }
    return readers > 0;
}

/* The row at the position of a value of all rows, made before n. */
static lathe_value_id take(struct trimming *t, lathe_node_id n, lathe_value_id v) {
    struct lathe_graph *g = t->g;
    if (v < t->values && t->taken[v] != LATHE_NONE)
        return t->taken[v];
    struct lathe_value value = g->values[v];
    lathe_value_id in[3] = {v, t->map, t->index};
    value.dims[0] = t->batch;
    lathe_value_id made = lathe_graph_emit(g, n, LATHE_OP_TAKE_ROWS, g->nodes[n].name, in,
                                           t->index == LATHE_NONE ? 2 : 3, value.dtype, value.rank, value.dims);
    if (made == LATHE_NONE)
        return made;
    if (t->index == LATHE_NONE)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_START, t->position);
    if (v < t->values)
        t->taken[v] = made;
    return made;
}

/* A linear layer with some columns of another one, on x. */
static lathe_value_id linear_columns(struct trimming *t, lathe_node_id linear, lathe_value_id x, int64_t first,
                                     int64_t count) {
    struct lathe_graph *g = t->g;
    lathe_value_id w = lathe_match_weight_columns(g, linear, first, count);
    if (w == LATHE_NONE)
        return LATHE_NONE;
    lathe_value_id in[3] = {x, w, LATHE_NONE};
    uint32_t n_in = 2;
    if (g->nodes[linear].n_in > 2 && g->nodes[linear].in[2] != LATHE_NONE) {
        lathe_value_id bias = g->nodes[linear].in[2];
        if (!lathe_value_is_constant(g, bias))
            return LATHE_NONE;
        const char *data = g->values[bias].data;
        in[2] = lathe_graph_add_constant(g, g->values[bias].name, g->values[bias].dtype, 1, &count,
                                         data + (size_t)first * lathe_dtype_bytes(g->values[bias].dtype));
        n_in = 3;
    }
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    lathe_dim dims[2] = {g->values[x].dims[0], lathe_dim_const(g->dims, count)};
    lathe_value_id made =
        lathe_graph_emit(g, linear, LATHE_OP_LINEAR, g->nodes[linear].name, in, n_in, LATHE_F32, 2, dims);
    if (made != LATHE_NONE && transposed)
        lathe_node_set_int(g, g->values[made].producer, LATHE_ATTR_TRANS_B, 1);
    return made;
}

/* Q, K and V are columns of one product that nothing else reads: Q's columns for the taken rows alone, K's and V's for
 * all. False when the product is of another form; then Q is taken from it. */
static bool split_product(struct trimming *t, lathe_node_id n) {
    struct lathe_graph *g = t->g;
    lathe_value_id qkv = g->nodes[n].in[0];
    lathe_node_id linear = lathe_producer_of(g, qkv, LATHE_OP_LINEAR);
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t heads = lathe_attr_int(&attrs, LATHE_ATTR_HEADS, 0), d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0);
    int64_t kv_heads = lathe_attr_int(&attrs, LATHE_ATTR_KV_HEADS, heads);
    int64_t dv = lathe_attr_int(&attrs, LATHE_ATTR_V_HEAD_DIM, d), columns, width, rest;
    int64_t q_at = lathe_attr_int(&attrs, LATHE_ATTR_Q_OFFSET, 0),
            k_at = lathe_attr_int(&attrs, LATHE_ATTR_K_OFFSET, 0);
    int64_t v_at = lathe_attr_int(&attrs, LATHE_ATTR_V_OFFSET, 0);
    if (linear == LATHE_NONE || g->nodes[n].in[1] != qkv || g->nodes[n].in[2] != qkv || g->values[qkv].rank != 2 ||
        g->values[qkv].is_output || !lathe_value_dim_is(g, qkv, 1, &columns) || !lathe_mul_i64(heads, d, &width))
        return false;
    for (uint32_t i = 0; i < g->values[qkv].use_count; i++)
        if (g->values[qkv].uses[i] != n)
            return false;
    struct lathe_attrs own = lathe_node_attrs(g, linear);
    rest = columns - width;
    if (q_at != 0 || k_at < width || v_at < width || rest <= 0 || k_at + kv_heads * d > columns ||
        v_at + kv_heads * dv > columns || lathe_attr_int(&own, LATHE_ATTR_ACTIVATION, 0) ||
        lathe_attr_int(&own, LATHE_ATTR_GROUP, 1) != 1 ||
        (g->nodes[linear].n_in > 3 && g->nodes[linear].in[3] != LATHE_NONE))
        return false;
    lathe_value_id x = g->nodes[linear].in[0];
    lathe_value_id kv = linear_columns(t, linear, x, width, rest);
    if (kv == LATHE_NONE)
        return false;
    lathe_value_id row = take(t, linear, x);
    lathe_value_id q = row == LATHE_NONE ? LATHE_NONE : linear_columns(t, linear, row, 0, width);
    if (q == LATHE_NONE)
        return false;
    int64_t k;
    if (lathe_value_dim_is(g, row, -1, &k))
        t->row += (double)k * (double)width;
    lathe_node_set_input(g, n, 0, q);
    lathe_node_set_input(g, n, 1, kv);
    lathe_node_set_input(g, n, 2, kv);
    lathe_node_set_int(g, n, LATHE_ATTR_K_OFFSET, k_at - width);
    lathe_node_set_int(g, n, LATHE_ATTR_V_OFFSET, v_at - width);
    lathe_match_drop_unused(g, qkv);
    return true;
}

/* What n costs for each row that it has no more. */
static void count_saved(struct trimming *t, lathe_node_id n) {
    struct lathe_graph *g = t->g;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t k, columns, d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0);
    switch (g->nodes[n].op) {
    case LATHE_OP_LINEAR:
    case LATHE_OP_MATMUL:
    case LATHE_OP_MATMUL_NBITS:
        if (lathe_value_dim_is(g, g->nodes[n].in[0], -1, &k) && lathe_value_dim_is(g, g->nodes[n].out[0], -1, &columns))
            t->row += (double)k * (double)columns;
        return;
    case LATHE_OP_ATTENTION_ROWS:
        t->pair += (double)lathe_attr_int(&attrs, LATHE_ATTR_HEADS, 0) *
                   (double)(d + lathe_attr_int(&attrs, LATHE_ATTR_V_HEAD_DIM, d));
        return;
    default:
        return;
    }
}

/* Tells attention n which token its one query a sequence is. */
static bool set_query(struct trimming *t, lathe_node_id n) {
    struct lathe_graph *g = t->g;
    if (t->index == LATHE_NONE && t->position >= 0) {
        lathe_node_set_int(g, n, LATHE_ATTR_START, t->position);
        return true;
    }
    lathe_value_id in[6] = {LATHE_NONE, LATHE_NONE, LATHE_NONE, LATHE_NONE, LATHE_NONE, t->index};
    for (uint32_t i = 0; i < g->nodes[n].n_in && i < 5; i++)
        in[i] = g->nodes[n].in[i];
    if (t->index == LATHE_NONE) {
        const int64_t one[1] = {1};
        lathe_value_id fill[2] = {LATHE_NONE,
                                  lathe_graph_add_constant_copy(g, "last", LATHE_I64, 1, one, &t->position)};
        in[5] = lathe_graph_emit(g, n, LATHE_OP_FILL, g->nodes[n].name, fill, 2, LATHE_I64, 1, &t->batch);
    }
    if (in[5] != LATHE_NONE)
        lathe_node_set_inputs(g, n, in, 6);
    return in[5] != LATHE_NONE;
}

static bool rewrite(struct trimming *t, lathe_node_id n) {
    struct lathe_graph *g = t->g;
    bool attention = g->nodes[n].op == LATHE_OP_ATTENTION_ROWS;
    count_saved(t, n);
    if (!attention || !has_rows(t, g->nodes[n].in[0]) || !split_product(t, n))
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
            if (!reads_row(t, n, i) || !has_rows(t, g->nodes[n].in[i]))
                continue;
            lathe_value_id row = take(t, n, g->nodes[n].in[i]);
            if (row == LATHE_NONE)
                return false;
            lathe_node_set_input(g, n, i, row);
        }
    if (attention && !set_query(t, n))
        return false;
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++) {
        lathe_value_id v = g->nodes[n].out[i];
        if (v == LATHE_NONE)
            continue;
        g->values[v].dims[0] = t->batch;
        for (uint32_t k = g->values[v].use_count; k-- > 0;) {
            lathe_node_id use = g->values[v].uses[k];
            if (!is_take(t, use))
                continue;
            lathe_graph_replace_uses(g, g->nodes[use].out[0], v);
            lathe_graph_remove_node(g, use);
            k = g->values[v].use_count;
        }
    }
    return !g->out_of_memory;
}

/* Everything behind the taken position of one map. */
static bool trim(struct lathe_pass_ctx *ctx, lathe_node_id first_take) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, first_take);
    struct trimming t = {.ctx = ctx, .g = g, .values = g->value_count, .nodes = g->node_count};
    t.map = g->nodes[first_take].in[1];
    t.rows = g->values[g->nodes[first_take].in[0]].dims[0];
    t.batch = g->values[g->nodes[first_take].out[0]].dims[0];
    t.position = lathe_attr_int(&attrs, LATHE_ATTR_START, 0);
    t.index = g->nodes[first_take].n_in > 2 ? g->nodes[first_take].in[2] : LATHE_NONE;
    t.trimmed = lathe_arena_alloc(ctx->scratch, t.nodes);
    t.taken = lathe_arena_alloc_array(ctx->scratch, t.values, sizeof *t.taken);
    lathe_node_id *order = lathe_arena_alloc_array(ctx->scratch, t.nodes, sizeof *order);
    if (!t.trimmed || !t.taken || !order)
        return false;
    for (uint32_t i = 0; i < t.values; i++)
        t.taken[i] = LATHE_NONE;
    uint32_t count = 0, products = 0;
    for (lathe_node_id n = g->last; n != LATHE_NONE; n = g->nodes[n].prev)
        if (works_by_row(&t, n) && only_the_position_is_read(&t, n)) {
            t.trimmed[n] = 1;
            order[count++] = n;
            products += g->nodes[n].op == LATHE_OP_LINEAR || g->nodes[n].op == LATHE_OP_ATTENTION_ROWS ||
                        g->nodes[n].op == LATHE_OP_MATMUL || g->nodes[n].op == LATHE_OP_MATMUL_NBITS;
        }
    while (count > 0)
        if (!rewrite(&t, order[--count]))
            return false;
    ctx->changes += products;
    if (products && ctx->report)
        lathe_report_trimmed(ctx->report, t.row, t.pair);
    if (products)
        lathe_pass_note(ctx, "trimmed_rows", "%u products run on the one token a sequence that an output reads",
                        products);
    return true;
}

enum lathe_status lathe_pass_trim_unused_rows(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op != LATHE_OP_TAKE_ROWS)
            continue;
        if (!trim(ctx, n) || g->out_of_memory)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "trim_unused_rows: out of memory");
        break;
    }
    return ctx->changes ? lathe_graph_sort(g, ctx->diag) : LATHE_OK;
}
