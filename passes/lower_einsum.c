/* Einsum of two operands as transposes, reshapes and one matmul: the one spelling of a product that the fusions know.
 * Keras, JAX and some PyTorch models write dense layers and attention so: "abc,cde->abde", "BTNH,BSNH->BNTS".
 *
 * Labels are those of batches (in both operands and the result), of rows (the left and the result), of columns (the
 * right and the result) and of the sum (both operands alone). Operands are put in this order; the left is the one whose
 * labels come first in the result. What has other labels (a diagonal, a sum over one operand, no row or column) or
 * sizes that broadcast stays an einsum. */
#include "match.h"

#include <string.h>

#define LETTERS 52
#define LABELS  (LETTERS + LATHE_MAX_RANK) /* letters, then the axes of "..." counted from the last */

struct term {
    int labels[LATHE_MAX_RANK];
    int count, dots; /* dots: where "..." stands among the letters, -1: nowhere */
};

static int letter_of(int64_t c) {
    return c >= 'a' && c <= 'z' ? (int)(c - 'a') : c >= 'A' && c <= 'Z' ? (int)(c - 'A') + 26 : -1;
}

/* The next term of the equation; false when it cannot be read. */
static bool read_term(const int64_t *text, uint32_t length, uint32_t *at, struct term *t) {
    *t = (struct term){.dots = -1};
    while (*at < length && text[*at] != ',' && text[*at] != '-') {
        if (text[*at] == '.') {
            if (*at + 2 >= length || text[*at + 1] != '.' || text[*at + 2] != '.' || t->dots >= 0)
                return false;
            t->dots = t->count;
            *at += 3;
            continue;
        }
        int letter = letter_of(text[(*at)++]);
        if (letter < 0 || t->count == LATHE_MAX_RANK)
            return false;
        t->labels[t->count++] = letter;
    }
    return true;
}

/* Labels for "..." in a tensor of that rank. */
static bool expand(struct term *t, int rank) {
    int labels[LATHE_MAX_RANK], extra = rank - t->count, at = 0;
    if (extra < 0 || (extra > 0 && t->dots < 0))
        return false;
    for (int i = 0; i <= t->count; i++) {
        for (int k = 0; i == t->dots && k < extra; k++)
            labels[at++] = LETTERS + extra - 1 - k;
        if (i < t->count)
            labels[at++] = t->labels[i];
    }
    memcpy(t->labels, labels, (size_t)rank * sizeof *labels);
    t->count = rank;
    return true;
}

static int position(const struct term *t, int label) {
    for (int i = 0; i < t->count; i++)
        if (t->labels[i] == label)
            return i;
    return -1;
}

static bool has_twice(const struct term *t) {
    for (int i = 0; i < t->count; i++)
        if (position(t, t->labels[i]) != i)
            return true;
    return false;
}

struct einsum {
    struct term in[2], out;
    lathe_dim size[LABELS];
    struct term batch, rows, columns, sum; /* rows are labels of in[0] */
};

/* Without an arrow: the axes of "...", then the letters that occur once, capitals first. */
static void implied_result(struct einsum *e) {
    int dots = 0;
    e->out = (struct term){.dots = -1};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < e->in[k].count; i++)
            if (e->in[k].labels[i] - LETTERS >= dots)
                dots = e->in[k].labels[i] - LETTERS + 1;
    for (int i = dots - 1; i >= 0 && e->out.count < LATHE_MAX_RANK; i--)
        e->out.labels[e->out.count++] = LETTERS + i;
    for (int i = 0; i < LETTERS; i++) {
        int label = (i + 26) % LETTERS;
        if ((position(&e->in[0], label) >= 0) != (position(&e->in[1], label) >= 0) && e->out.count < LATHE_MAX_RANK)
            e->out.labels[e->out.count++] = label;
    }
}

static bool read_equation(const struct lathe_graph *g, lathe_node_id n, struct einsum *e) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const struct lathe_node *node = &g->nodes[n];
    uint32_t length, at = 0;
    const int64_t *text = lathe_attr_ints(&attrs, LATHE_ATTR_EQUATION, &length);
    if (!text || node->n_in != 2 || node->out[0] == LATHE_NONE)
        return false;
    for (int k = 0; k < 2; k++) {
        if (!read_term(text, length, &at, &e->in[k]) || !expand(&e->in[k], g->values[node->in[k]].rank) ||
            has_twice(&e->in[k]))
            return false;
        if (k == 0 && (at >= length || text[at++] != ','))
            return false;
    }
    if (at == length) {
        implied_result(e);
    } else {
        if (at + 2 > length || text[at] != '-' || text[at + 1] != '>')
            return false;
        at += 2;
        if (!read_term(text, length, &at, &e->out) || at != length)
            return false;
        if (!expand(&e->out, g->values[node->out[0]].rank))
            return false;
    }
    return !has_twice(&e->out) && e->out.count == g->values[node->out[0]].rank;
}

static void add(struct term *t, int label) {
    t->labels[t->count++] = label;
}

/* Sorts the labels into their kinds; false when one is of no kind. */
static bool classify(const struct lathe_graph *g, lathe_node_id n, struct einsum *e) {
    for (int i = 0; i < LABELS; i++)
        e->size[i] = LATHE_DIM_NONE;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < e->in[k].count; i++) {
            lathe_dim d = g->values[g->nodes[n].in[k]].dims[i], *size = &e->size[e->in[k].labels[i]];
            if (*size != LATHE_DIM_NONE && !lathe_match_dim_equal(g, *size, d))
                return false;
            *size = d;
        }
    e->batch.count = e->rows.count = e->columns.count = e->sum.count = 0;
    for (int i = 0; i < e->out.count; i++) {
        int label = e->out.labels[i];
        bool left = position(&e->in[0], label) >= 0, right = position(&e->in[1], label) >= 0;
        if (!left && !right)
            return false;
        add(left && right ? &e->batch : left ? &e->rows : &e->columns, label);
    }
    for (int i = 0; i < e->in[0].count; i++)
        if (position(&e->out, e->in[0].labels[i]) < 0) {
            if (position(&e->in[1], e->in[0].labels[i]) < 0)
                return false;
            add(&e->sum, e->in[0].labels[i]);
        }
    for (int i = 0; i < e->in[1].count; i++)
        if (position(&e->out, e->in[1].labels[i]) < 0 && position(&e->in[0], e->in[1].labels[i]) < 0)
            return false;
    return e->rows.count && e->columns.count && e->sum.count;
}

static int concat(const struct term *const *parts, int count, struct term *out) {
    out->count = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < parts[i]->count; k++)
            add(out, parts[i]->labels[k]);
    return out->count;
}

static lathe_dim product_of(struct lathe_graph *g, const struct einsum *e, const struct term *t) {
    lathe_dim d = lathe_dim_const(g->dims, 1);
    for (int i = 0; i < t->count && d != LATHE_DIM_NONE; i++)
        d = lathe_dim_mul(g->dims, d, e->size[t->labels[i]]);
    return d;
}

/* perm for a transpose of `from` to `to`; false when nothing is to move. */
static bool order(const struct term *from, const struct term *to, int64_t *perm) {
    bool moves = false;
    for (int i = 0; i < to->count; i++) {
        perm[i] = position(from, to->labels[i]);
        moves |= perm[i] != i;
    }
    return moves;
}

/* The operand in the order batch, first, second; of both the labels are merged into one axis (first: if `merge`). */
static lathe_value_id arrange(struct lathe_graph *g, lathe_node_id before, const struct einsum *e, lathe_value_id x,
                              const struct term *labels, const struct term *first, const struct term *second,
                              bool merge_first, bool merge_second) {
    struct term wanted;
    const struct term *const parts[] = {&e->batch, first, second};
    int64_t perm[LATHE_MAX_RANK];
    lathe_dim dims[LATHE_MAX_RANK + 1];
    int rank = concat(parts, 3, &wanted);
    if (order(labels, &wanted, perm)) {
        for (int i = 0; i < rank; i++)
            dims[i] = e->size[wanted.labels[i]];
        x = lathe_graph_emit(g, before, LATHE_OP_TRANSPOSE, g->nodes[before].name, &x, 1, LATHE_F32, rank, dims);
        if (x == LATHE_NONE)
            return x;
        lathe_node_set_ints(g, g->values[x].producer, LATHE_ATTR_PERM, perm, (uint32_t)rank);
    }
    if ((!merge_first || first->count == 1) && (!merge_second || second->count == 1))
        return x;
    int at = 0;
    for (int i = 0; i < e->batch.count; i++)
        dims[at++] = e->size[e->batch.labels[i]];
    for (int k = 0; k < 2; k++) {
        const struct term *t = k ? second : first;
        if (k ? merge_second : merge_first)
            dims[at++] = product_of(g, e, t);
        else
            for (int i = 0; i < t->count; i++)
                dims[at++] = e->size[t->labels[i]];
    }
    for (int i = 0; i < at; i++)
        if (dims[i] == LATHE_DIM_NONE)
            return LATHE_NONE;
    return lathe_graph_emit(g, before, LATHE_OP_RESHAPE, g->nodes[before].name, &x, 1, LATHE_F32, at, dims);
}

static void swap_operands(struct einsum *e, lathe_value_id in[2]) {
    struct term t = e->in[0];
    lathe_value_id v = in[0];
    e->in[0] = e->in[1];
    e->in[1] = t;
    in[0] = in[1];
    in[1] = v;
}

static bool lower(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct einsum e = {0};
    if (g->nodes[n].n_in != 2 || g->nodes[n].out[0] == LATHE_NONE)
        return false;
    lathe_value_id in[2] = {g->nodes[n].in[0], g->nodes[n].in[1]}, y = g->nodes[n].out[0];
    if (g->values[y].dtype != LATHE_F32 || !read_equation(g, n, &e) || !classify(g, n, &e))
        return false;
    if (position(&e.out, e.columns.labels[0]) < position(&e.out, e.rows.labels[0])) {
        swap_operands(&e, in);
        struct term t = e.rows;
        e.rows = e.columns;
        e.columns = t;
    }
    bool merge_rows = e.batch.count > 0; /* a matrix on the right takes any number of axes on the left */
    int middle_rank = e.batch.count + (merge_rows ? 1 : e.rows.count) + 1;
    lathe_dim middle[LATHE_MAX_RANK + 1], rows = product_of(g, &e, &e.rows), columns = product_of(g, &e, &e.columns);
    if (middle_rank > LATHE_MAX_RANK || rows == LATHE_DIM_NONE || columns == LATHE_DIM_NONE)
        return false;
    lathe_value_id left = arrange(g, n, &e, in[0], &e.in[0], &e.rows, &e.sum, merge_rows, true);
    lathe_value_id right = arrange(g, n, &e, in[1], &e.in[1], &e.sum, &e.columns, true, true);
    if (left == LATHE_NONE || right == LATHE_NONE)
        return false;
    int at = 0;
    for (int i = 0; i < e.batch.count; i++)
        middle[at++] = e.size[e.batch.labels[i]];
    for (int i = 0; !merge_rows && i < e.rows.count; i++)
        middle[at++] = e.size[e.rows.labels[i]];
    if (merge_rows)
        middle[at++] = rows;
    middle[at++] = columns;
    /* back to the axes of the result */
    struct term made;
    const struct term *const parts[] = {&e.batch, &e.rows, &e.columns};
    int64_t perm[LATHE_MAX_RANK];
    lathe_dim apart[LATHE_MAX_RANK];
    int rank = concat(parts, 3, &made);
    bool split = rank != middle_rank, turn = order(&made, &e.out, perm);
    for (int i = 0; i < rank; i++)
        apart[i] = e.size[made.labels[i]];
    lathe_value_id pair[2] = {left, right}, v;
    ctx->changes++;
    if (!split && !turn) {
        lathe_match_make_into(g, n, LATHE_OP_MATMUL, pair, 2);
        return true;
    }
    v = lathe_graph_emit(g, n, LATHE_OP_MATMUL, g->nodes[n].name, pair, 2, LATHE_F32, middle_rank, middle);
    if (v != LATHE_NONE && split && turn)
        v = lathe_graph_emit(g, n, LATHE_OP_RESHAPE, g->nodes[n].name, &v, 1, LATHE_F32, rank, apart);
    if (v == LATHE_NONE)
        return false;
    lathe_match_make_into(g, n, turn ? LATHE_OP_TRANSPOSE : LATHE_OP_RESHAPE, &v, 1);
    if (turn)
        lathe_node_set_ints(g, n, LATHE_ATTR_PERM, perm, (uint32_t)rank);
    return true;
}

enum lathe_status lathe_pass_lower_einsum(struct lathe_pass_ctx *ctx) {
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_EINSUM, &count);
    for (uint32_t i = 0; i < count && !ctx->graph->out_of_memory; i++)
        lower(ctx, list[i]);
    return ctx->graph->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "lower_einsum: out of memory")
                                     : LATHE_OK;
}
