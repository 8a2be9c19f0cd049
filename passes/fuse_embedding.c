/* The sum of embedding look-ups and the layer norm behind it become one operator.
 *
 * A summand is a row of a constant table by an index, a row by position (index 0, 1, 2, ... from some row on, or a
 * slice of the table), or one row for all tokens (an index that is one number, such as RoBERTa's token types, or a
 * plain constant). Any order and nesting of the sums; at most MAX_PAIRS tables, and at least one index of shape [B,S].
 */
#include "match.h"

#include "positions.h"
#include "stored_table.h"
#include "weight_reader.h"

#include <stdio.h>
#include <string.h>

#define MAX_PAIRS    4
#define MAX_SUMMANDS 8

struct pair {
    lathe_value_id table;    /* a constant or a stored table; its rows as [V,H] are made when all summands are known */
    int64_t rows, first;     /* V; the row of the constant that is row 0 */
    lathe_node_id looked_up; /* the dequantization behind a look-up in a table of integers; LATHE_NONE */
    lathe_value_id index;    /* LATHE_NONE: by position, or one row for all */
    int64_t offset;          /* -1: one row for all */
};

struct summands {
    struct pair pairs[MAX_PAIRS];
    uint32_t count;
    bool full_index; /* some index has the shape [B,S] */
    bool any_lookup;
    char why[160];
    lathe_node_id at; /* where it failed */
};

/* b is a, but for leading ones that one of them has more: both broadcast alike. */
static bool same_but_leading_ones(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    const struct lathe_value *p = &g->values[a], *q = &g->values[b];
    int64_t size;
    for (int i = 1; i <= p->rank || i <= q->rank; i++) {
        if (i <= p->rank && i <= q->rank) {
            if (!lathe_match_dim_equal(g, p->dims[p->rank - i], q->dims[q->rank - i]))
                return false;
        } else {
            const struct lathe_value *longer = i <= p->rank ? p : q;
            if (!lathe_dim_is_const(g->dims, longer->dims[longer->rank - i], &size) || size != 1)
                return false;
        }
    }
    return true;
}

static bool is_half(enum lathe_dtype dtype) {
    return dtype == LATHE_F16 || dtype == LATHE_BF16;
}

/* The rows of a constant [V,H] with leading ones. */
static bool is_table(const struct lathe_graph *g, lathe_value_id v, int64_t hidden, struct pair *out) {
    int64_t size;
    int rank = v == LATHE_NONE ? 0 : g->values[v].rank;
    bool stored = rank == 2 && lathe_table_is_stored(g, v);
    if (rank < 1 || (!stored && !lathe_value_is_constant(g, v)) || !lathe_value_dim_is(g, v, -1, &size) ||
        size != hidden)
        return false;
    out->rows = 1;
    if (rank >= 2 && !lathe_value_dim_is(g, v, -2, &out->rows))
        return false;
    for (int i = 0; i < rank - 2; i++)
        if (!lathe_value_dim_is(g, v, i, &size) || size != 1)
            return false;
    out->table = v;
    out->first = 0;
    out->looked_up = LATHE_NONE;
    out->index = LATHE_NONE;
    out->offset = 0;
    return out->rows >= 1;
}

/* A constant [B,S,H] that an exporter with fixed sizes made: the same rows for each sequence, or one for all tokens. */
static bool is_repeated(const struct lathe_graph *g, lathe_value_id v, int64_t hidden, struct pair *out) {
    const struct lathe_value *value = &g->values[v];
    int64_t count = lathe_value_count(g, v), rows;
    if (value->rank != 3 || count < 1 || !lathe_value_dim_is(g, v, -1, &rows) || rows != hidden ||
        !lathe_value_dim_is(g, v, -2, &rows))
        return false;
    const char *data = value->data;
    size_t row = (size_t)hidden * lathe_dtype_bytes(value->dtype), all = (size_t)(count / hidden) * row;
    if (all > row && memcmp(data, data + row, all - row) == 0)
        rows = 1;
    size_t period = (size_t)rows * row;
    if (all > period && memcmp(data, data + period, all - period) != 0)
        return false;
    *out = (struct pair){.table = v, .rows = rows, .looked_up = LATHE_NONE, .index = LATHE_NONE};
    return true;
}

static bool refuse(struct summands *s, lathe_node_id at, const char *why) {
    if (!s->why[0]) {
        snprintf(s->why, sizeof s->why, "%s", why);
        s->at = at;
    }
    return false;
}

static bool add_pair(struct summands *s, const struct pair *pair, lathe_node_id at) {
    if (s->count == MAX_PAIRS)
        return refuse(s, at, "more than 4 tables are summed");
    s->pairs[s->count++] = *pair;
    return true;
}

/* One scale for a whole table of bytes. */
static bool is_of_tensor(const struct lathe_graph *g, lathe_node_id dequantize) {
    const struct lathe_node *node = &g->nodes[dequantize];
    for (uint32_t i = 1; i < node->n_in; i++)
        if (node->in[i] != LATHE_NONE &&
            (!lathe_value_is_constant(g, node->in[i]) || lathe_value_count(g, node->in[i]) != 1))
            return false;
    enum lathe_dtype dtype = g->values[node->in[0]].dtype;
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    return (dtype == LATHE_I8 || dtype == LATHE_U8) && g->values[node->out[0]].dtype == LATHE_F32 &&
           g->values[node->in[1]].dtype == LATHE_F32 && !lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0);
}

/* gather(table, index) along axis 0, maybe dequantized behind it */
static bool take_lookup(const struct lathe_graph *g, lathe_node_id n, lathe_node_id dequantize, lathe_value_id sum,
                        struct summands *s) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_value *whole = &g->values[sum];
    lathe_value_id index = g->nodes[n].in[1];
    int64_t hidden, number;
    struct pair pair;
    s->any_lookup = true;
    if (!lathe_value_dim_is(g, sum, -1, &hidden) || lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != 0 ||
        g->values[g->nodes[n].in[0]].rank != 2 || !is_table(g, g->nodes[n].in[0], hidden, &pair))
        return refuse(s, n, "the table is not a constant [V,H] looked up along axis 0");
    pair.looked_up = dequantize;
    enum lathe_dtype dtype = g->values[index].dtype;
    if (dtype != LATHE_I32 && dtype != LATHE_I64)
        return refuse(s, n, "the index is neither i32 nor i64");
    if (lathe_index_is_uniform(g, index, &number)) {
        number += number < 0 ? pair.rows : 0;
        if (number < 0 || number >= pair.rows)
            return refuse(s, n, "an index outside its table");
        pair.first = number;
        pair.rows = 1;
        pair.offset = -1;
        return add_pair(s, &pair, n);
    }
    int rank = g->values[index].rank;
    if (rank < 1 || rank > 2 || !lathe_match_dim_equal(g, lathe_value_dim(g, index, -1), lathe_value_dim(g, sum, -2)))
        return refuse(s, n, "the index has not one element a token");
    if (lathe_positions_of(g, index, &number) && number >= 0) {
        pair.offset = number;
        return add_pair(s, &pair, n);
    }
    bool full = rank == 2 && lathe_match_dim_equal(g, g->values[index].dims[0], whole->dims[0]);
    int64_t one;
    if (rank == 2 && !full && (!lathe_value_dim_is(g, index, 0, &one) || one != 1))
        return refuse(s, n, "the index is neither [B,S] nor [1,S]");
    s->full_index |= full;
    pair.index = index;
    return add_pair(s, &pair, n);
}

static bool take_summand(const struct lathe_graph *g, lathe_value_id v, lathe_value_id sum, struct summands *s) {
    int64_t hidden, start;
    struct pair pair;
    if (v == LATHE_NONE || !lathe_value_dim_is(g, sum, -1, &hidden))
        return false;
    lathe_dim seq = lathe_value_dim(g, sum, -2);
    if (lathe_value_is_constant(g, v)) {
        if (!is_table(g, v, hidden, &pair) && !is_repeated(g, v, hidden, &pair))
            return refuse(s, s->at, "a constant summand is neither a row nor [S,H]");
        if (pair.rows == 1)
            pair.offset = -1;
        else if (!lathe_match_dim_equal(g, lathe_value_dim(g, v, -2), seq))
            return refuse(s, s->at, "a constant summand has another length than the tokens");
        return add_pair(s, &pair, s->at);
    }
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE)
        return refuse(s, s->at, "a summand is an input, not a table look-up");
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    switch (node->op) {
    case LATHE_OP_GATHER:
        return take_lookup(g, n, LATHE_NONE, sum, s);
    case LATHE_OP_CAST: /* a table of 16 bits: rows are widened when they are read */
        if (g->values[v].dtype != LATHE_F32 || !is_half(g->values[node->in[0]].dtype))
            break;
        return take_summand(g, node->in[0], sum, s);
    case LATHE_OP_EXPAND: /* what broadcasting would do */
        return take_summand(g, node->in[0], sum, s);
    case LATHE_OP_RESHAPE:
        if (!same_but_leading_ones(g, node->in[0], v))
            break;
        return take_summand(g, node->in[0], sum, s);
    case LATHE_OP_SLICE: {
        uint32_t count;
        const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
        int64_t step;
        if (count != 1 || !is_table(g, node->in[0], hidden, &pair) || axes[0] != g->values[v].rank - 2 ||
            !lathe_match_dim_equal(g, lathe_value_dim(g, v, -2), seq) ||
            !lathe_attr_constant_at(g, n, LATHE_ATTR_STARTS, 0, &start) ||
            !lathe_attr_constant_at(g, n, LATHE_ATTR_STEPS, 0, &step) || step != 1 || start < 0)
            break;
        pair.offset = start;
        return add_pair(s, &pair, n);
    }
    case LATHE_OP_DEQUANTIZE_LINEAR: {
        lathe_node_id look_up = lathe_producer_of(g, node->in[0], LATHE_OP_GATHER);
        if (look_up != LATHE_NONE && is_of_tensor(g, n))
            return take_lookup(g, look_up, n, sum, s);
    }
        /* fallthrough */
    case LATHE_OP_GATHER_BLOCK_QUANTIZED:
        s->any_lookup |= node->op == LATHE_OP_GATHER_BLOCK_QUANTIZED ||
                         lathe_producer_of(g, node->in[0], LATHE_OP_GATHER) != LATHE_NONE;
        return refuse(s, n, "the table is quantized in blocks or columns, expected one scale a row or one in all");
    default:
        break;
    }
    return refuse(s, n, "a summand is no table look-up");
}

/* The summands of `v`; sums inside have no other use. */
static bool take_sum(const struct lathe_graph *g, lathe_value_id v, lathe_value_id root, struct summands *s,
                     int depth) {
    lathe_node_id n = g->values[v].producer;
    bool is_sum = n != LATHE_NONE && (g->nodes[n].op == LATHE_OP_ADD || g->nodes[n].op == LATHE_OP_SUM);
    if (!is_sum || depth == 0 || (v != root && lathe_value_use_total(g, v) != 1)) {
        return take_summand(g, v, root, s);
    }
    s->at = n;
    for (uint32_t i = 0; i < g->nodes[n].n_in; i++)
        if (!take_sum(g, g->nodes[n].in[i], root, s, depth - 1))
            return false;
    return true;
}

/* The dequantization of a look-up, of the whole table: later passes find its bytes behind it. */
static lathe_value_id dequantized(struct lathe_graph *g, lathe_node_id before, const struct pair *pair) {
    const struct lathe_node *node = &g->nodes[pair->looked_up];
    struct lathe_value table = g->values[pair->table];
    lathe_value_id in[3] = {pair->table, node->in[1], node->n_in > 2 ? node->in[2] : LATHE_NONE};
    lathe_value_id y = lathe_graph_emit(g, before, LATHE_OP_DEQUANTIZE_LINEAR, table.name, in,
                                        in[2] == LATHE_NONE ? 2 : 3, LATHE_F32, 2, table.dims);
    if (y != LATHE_NONE)
        lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_AXIS, 0);
    return y;
}

static lathe_value_id make_table(struct lathe_graph *g, lathe_node_id before, const struct pair *pair,
                                 lathe_value_id sum) {
    int64_t dims[2] = {pair->rows, 0};
    if (!lathe_value_dim_is(g, sum, -1, &dims[1]))
        return LATHE_NONE;
    lathe_value_id table = pair->looked_up == LATHE_NONE ? pair->table : dequantized(g, before, pair);
    int64_t rows;
    if (table == LATHE_NONE ||
        (g->values[table].rank == 2 && lathe_value_dim_is(g, table, 0, &rows) && rows == pair->rows))
        return table;
    struct lathe_weight_part part;
    if (!lathe_weight_stored(g, table, &rows, &part)) {
        enum lathe_dtype dtype = g->values[table].dtype;
        const char *data =
            (const char *)g->values[table].data + (size_t)pair->first * (size_t)dims[1] * lathe_dtype_bytes(dtype);
        return lathe_graph_add_constant(g, g->values[table].name, dtype, 2, dims, data);
    }
    /* one row of many */
    float *row = lathe_arena_alloc_array(g->arena, (size_t)dims[1], sizeof *row);
    if (!row) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    lathe_weight_part_read(&part, part.columns, pair->first, 0, part.columns, row);
    const char *name = g->values[table].name;
    if (pair->looked_up != LATHE_NONE)
        lathe_match_drop_unused(g, table);
    return lathe_graph_add_constant(g, name, LATHE_F32, 2, dims, row);
}

static lathe_value_id ones(struct lathe_graph *g, lathe_value_id sum) {
    int64_t hidden;
    if (!lathe_value_dim_is(g, sum, -1, &hidden))
        return LATHE_NONE;
    float *data = lathe_arena_alloc_array(g->arena, (size_t)hidden, sizeof *data);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    for (int64_t i = 0; i < hidden; i++)
        data[i] = 1;
    return lathe_graph_add_constant(g, "gamma", LATHE_F32, 1, &hidden, data);
}

static bool fuse(struct lathe_pass_ctx *ctx, lathe_node_id norm) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, norm);
    const struct lathe_node *node = &g->nodes[norm];
    lathe_value_id sum = node->in[0];
    struct summands s = {.at = norm};
    if (g->values[sum].rank != 3 || g->values[sum].dtype != LATHE_F32 ||
        lathe_attr_int(&attrs, LATHE_ATTR_AXIS, -1) != 2)
        return false;
    bool complete = take_sum(g, sum, sum, &s, MAX_SUMMANDS);
    if (!s.any_lookup)
        return false;
    if (complete && !s.full_index)
        complete = refuse(&s, norm, "no index has the shape [B,S]");
    lathe_value_id gamma = node->n_in > 1 ? node->in[1] : LATHE_NONE;
    lathe_value_id beta = node->n_in > 2 ? node->in[2] : LATHE_NONE;
    for (uint32_t i = 1; i < node->n_out && complete; i++)
        if (node->out[i] != LATHE_NONE)
            complete = refuse(&s, norm, "the mean or deviation is an output too");
    for (uint32_t i = 0; i < s.count && complete; i++)
        if (s.pairs[i].looked_up == LATHE_NONE && g->values[s.pairs[i].table].dtype != g->values[sum].dtype &&
            !is_half(g->values[s.pairs[i].table].dtype))
            complete = refuse(&s, norm, "a table has another type than the sum");
    lathe_node_id root = g->values[sum].producer;
    bool keep_sum = lathe_value_use_total(g, sum) != 1 || root == LATHE_NONE;
    if (complete && keep_sum &&
        ((gamma != LATHE_NONE && !lathe_match_before(g, gamma, root)) ||
         (beta != LATHE_NONE && !lathe_match_before(g, beta, root))))
        complete = refuse(&s, norm, "gamma or beta is computed after the sum is needed");
    if (!complete) {
        lathe_pass_missed(ctx, "embedding", s.at, "%s", s.why[0] ? s.why : "the sum is too deep");
        return false;
    }
    double epsilon = lathe_attr_float(&attrs, LATHE_ATTR_EPSILON, 1e-5);
    if (gamma == LATHE_NONE) /* an embedding without gamma has no norm */
        gamma = ones(g, sum);
    lathe_value_id in[2 + 2 * MAX_PAIRS] = {gamma, beta};
    int64_t offsets[MAX_PAIRS];
    uint32_t n_in = 2;
    lathe_node_id place = keep_sum ? root : norm;
    for (uint32_t i = 0; i < s.count; i++) {
        lathe_value_id index = s.pairs[i].index;
        if (index != LATHE_NONE && g->values[index].rank == 1) {
            lathe_dim dims[2] = {lathe_dim_const(g->dims, 1), g->values[index].dims[0]};
            index = lathe_match_make_reshape(ctx, place, index, 2, dims);
        }
        in[n_in++] = make_table(g, place, &s.pairs[i], sum);
        in[n_in++] = index;
        offsets[i] = s.pairs[i].offset;
    }
    if (g->out_of_memory)
        return false;
    lathe_node_id made = norm;
    if (!keep_sum) {
        lathe_match_make_into(g, norm, LATHE_OP_EMBEDDING, in, n_in);
    } else {
        struct lathe_value of_norm = g->values[g->nodes[norm].out[0]], of_sum = g->values[sum];
        lathe_value_id y = g->nodes[norm].out[0], out[2];
        out[0] = lathe_graph_add_value(g, of_norm.name, of_norm.dtype, of_norm.rank, of_norm.dims);
        out[1] = lathe_graph_add_value(g, of_sum.name, of_sum.dtype, of_sum.rank, of_sum.dims);
        const char *name = g->nodes[norm].name;
        if (out[0] == LATHE_NONE || out[1] == LATHE_NONE ||
            (made = lathe_graph_add_node(g, place, LATHE_OP_EMBEDDING, name, "", in, n_in, out, 2)) == LATHE_NONE)
            return false;
        lathe_graph_replace_uses(g, y, out[0]);
        lathe_graph_remove_node(g, norm);
        lathe_graph_replace_uses(g, sum, out[1]);
        lathe_match_drop_unused(g, sum);
    }
    lathe_node_set_float(g, made, LATHE_ATTR_EPSILON, epsilon);
    lathe_node_set_ints(g, made, LATHE_ATTR_OFFSETS, offsets, s.count);
    return true;
}

enum lathe_status lathe_pass_fuse_embedding(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LAYER_NORM, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        if (g->nodes[list[i]].op == LATHE_OP_LAYER_NORM)
            ctx->changes += fuse(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_embedding: out of memory") : LATHE_OK;
}
