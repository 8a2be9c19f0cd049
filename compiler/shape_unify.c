/* Dims that an operator needs to be equal or to broadcast: proof, unification of symbols, fixing of symbols. */
#include "ir_internal.h"
#include "shape_internal.h"

#include <inttypes.h>
#include <stdio.h>

uint32_t lathe_shape_plain_symbol(const struct lathe_graph *g, lathe_dim d) {
    struct lathe_dim_term term;
    if (lathe_dim_term_count(g->dims, d) != 1)
        return UINT32_MAX;
    lathe_dim_term_at(g->dims, d, 0, &term);
    if (term.factor != 1 || term.atom_count != 1 || term.atoms[0].kind != LATHE_ATOM_SYMBOL)
        return UINT32_MAX;
    return term.atoms[0].symbol;
}

/* The axis of a graph input that is this symbol alone; -1 when there is none. */
static int input_axis(const struct lathe_graph *g, uint32_t symbol) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *value = &g->values[g->inputs[i]];
        for (int axis = 0; axis < value->rank; axis++)
            if (lathe_shape_plain_symbol(g, value->dims[axis]) == symbol)
                return axis;
    }
    return -1;
}

enum lathe_status lathe_shape_bake(struct shape_ctx *c, uint32_t symbol, int64_t value, bool refuse, const char *text) {
    struct lathe_graph *g = c->g;
    void *baked = g->baked;
    if (!lathe_graph_grow(g, &baked, g->baked_count, &g->baked_capacity, sizeof *g->baked))
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "shape inference");
    g->baked = baked;
    const char *copy = lathe_arena_string(g->arena, text);
    g->baked[g->baked_count++] =
        (struct lathe_baked_dim){symbol, value, refuse, input_axis(g, symbol), g->nodes[c->n].name, copy ? copy : ""};
    lathe_graph_add_note(g, "BAKED_AXIS", g->nodes[c->n].name, text);
    lathe_graph_substitute(g, symbol, lathe_dim_const(g->dims, value));
    return LATHE_OK;
}

static enum lathe_status bake_beside_constant(struct shape_ctx *c, uint32_t symbol, int64_t value) {
    char text[512];
    snprintf(text, sizeof text, "dynamic axis '%s' meets the constant size %" PRId64 " here, so it is fixed to that",
             lathe_dims_symbol_name(c->g->dims, symbol), value);
    return lathe_shape_bake(c, symbol, value, false, text);
}

/* a - b = f*m*x - f*m*y with plain symbols x, y and one monomial m: they are equal when x = y. */
static bool differ_by_symbols(const struct lathe_graph *g, lathe_dim difference, uint32_t *x, uint32_t *y) {
    struct lathe_dim_term p, q;
    if (lathe_dim_term_count(g->dims, difference) != 2)
        return false;
    lathe_dim_term_at(g->dims, difference, 0, &p);
    lathe_dim_term_at(g->dims, difference, 1, &q);
    if (p.factor != -q.factor || p.atom_count != q.atom_count)
        return false;
    uint32_t differing = UINT32_MAX;
    for (uint32_t i = 0; i < p.atom_count; i++) {
        const struct lathe_dim_atom *a = &p.atoms[i], *b = &q.atoms[i];
        if (a->kind == b->kind && a->symbol == b->symbol && a->a == b->a && a->b == b->b)
            continue;
        if (differing != UINT32_MAX || a->kind != LATHE_ATOM_SYMBOL || b->kind != LATHE_ATOM_SYMBOL)
            return false;
        differing = i;
    }
    if (differing == UINT32_MAX)
        return false;
    *x = p.atoms[differing].symbol;
    *y = q.atoms[differing].symbol;
    return true;
}

/* `a` is the symbol of an input and b another one plus a positive number: a mask over tokens that the graph adds. */
static bool unify_with_sum(struct shape_ctx *c, lathe_dim a, lathe_dim b) {
    struct lathe_graph *g = c->g;
    struct lathe_dim_term first, second;
    uint32_t gone = lathe_shape_plain_symbol(g, a);
    if (gone == UINT32_MAX || input_axis(g, gone) < 0 || lathe_dim_term_count(g->dims, b) != 2)
        return false;
    lathe_dim_term_at(g->dims, b, 0, &first);
    lathe_dim_term_at(g->dims, b, 1, &second);
    if (first.factor != 1 || first.atom_count != 1 || first.atoms[0].kind != LATHE_ATOM_SYMBOL ||
        first.atoms[0].symbol == gone || input_axis(g, first.atoms[0].symbol) < 0 || second.atom_count ||
        second.factor < 1)
        return false;
    char text[512], sum[256];
    lathe_dim_print(g->dims, b, sum, sizeof sum);
    snprintf(text, sizeof text, "axis '%s' must equal %s at node '%s'", lathe_dims_symbol_name(g->dims, gone), sum,
             g->nodes[c->n].name);
    lathe_graph_add_note(g, NULL, g->nodes[c->n].name, text);
    lathe_graph_substitute(g, gone, b);
    return true;
}

static bool unify(struct shape_ctx *c, lathe_dim a, lathe_dim b) {
    struct lathe_graph *g = c->g;
    uint32_t x, y;
    if (unify_with_sum(c, a, b) || unify_with_sum(c, b, a))
        return true;
    if (!differ_by_symbols(g, lathe_dim_sub(g->dims, a, b), &x, &y) || input_axis(g, x) < 0 || input_axis(g, y) < 0)
        return false;
    /* The symbol made first stays: it is the name of the earlier input. */
    uint32_t keep = x < y ? x : y, gone = x < y ? y : x;
    char text[512];
    snprintf(text, sizeof text, "axis '%s' must equal axis '%s' at node '%s'", lathe_dims_symbol_name(g->dims, gone),
             lathe_dims_symbol_name(g->dims, keep), g->nodes[c->n].name);
    lathe_graph_add_note(g, NULL, g->nodes[c->n].name, text);
    lathe_graph_substitute(g, gone, lathe_dims_symbol_at(g->dims, keep));
    return true;
}

bool lathe_shape_same_batch(struct shape_ctx *c, lathe_dim a, lathe_dim b) {
    uint32_t x = lathe_shape_plain_symbol(c->g, a), y = lathe_shape_plain_symbol(c->g, b);
    return x != UINT32_MAX && y != UINT32_MAX && x != y && input_axis(c->g, x) == 0 && input_axis(c->g, y) == 0 &&
           unify(c, a, b);
}

/* A constant size beside f*symbol + k with a symbol of an input: the symbol can only be (value - k) / f. */
static bool solve_for_symbol(const struct shape_ctx *c, lathe_dim expression, int64_t value, uint32_t *symbol,
                             int64_t *solution) {
    struct lathe_graph *g = c->g;
    struct lathe_dim_term term;
    uint32_t count = lathe_dim_term_count(g->dims, expression);
    if (count < 1 || count > 2)
        return false;
    int64_t rest = value;
    if (count == 2) {
        lathe_dim_term_at(g->dims, expression, 1, &term);
        if (term.atom_count || __builtin_sub_overflow(value, term.factor, &rest))
            return false;
    }
    lathe_dim_term_at(g->dims, expression, 0, &term);
    if (term.atom_count != 1 || term.atoms[0].kind != LATHE_ATOM_SYMBOL || term.factor == -1 || rest % term.factor)
        return false;
    *symbol = term.atoms[0].symbol;
    *solution = rest / term.factor;
    lathe_dim self = lathe_dims_symbol_at(g->dims, *symbol);
    return input_axis(g, *symbol) >= 0 && *solution >= lathe_dim_lower(g->dims, self) &&
           *solution <= lathe_dim_upper(g->dims, self);
}

static enum lathe_status fail_unequal(struct shape_ctx *c, lathe_dim a, lathe_dim b, bool known) {
    char text_a[256], text_b[256];
    lathe_dim_print(c->g->dims, a, text_a, sizeof text_a);
    lathe_dim_print(c->g->dims, b, text_b, sizeof text_b);
    if (known)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "sizes %s and %s must be equal", text_a, text_b);
    return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "sizes %s and %s must be equal, which is not known", text_a,
                            text_b);
}

/* Tries to make a and b equal; *done tells whether they are now. */
static enum lathe_status make_equal(struct shape_ctx *c, lathe_dim a, lathe_dim b, bool *done) {
    struct lathe_dims *t = c->g->dims;
    int64_t value, solution;
    uint32_t symbol;
    *done = true;
    if (lathe_dim_proved_ne(t, a, b)) {
        *done = false;
        return LATHE_OK;
    }
    bool const_a = lathe_dim_is_const(t, a, &value), const_b = !const_a && lathe_dim_is_const(t, b, &value);
    if (const_a || const_b) {
        *done = solve_for_symbol(c, const_a ? b : a, value, &symbol, &solution);
        return *done ? bake_beside_constant(c, symbol, solution) : LATHE_OK;
    }
    *done = unify(c, a, b);
    return LATHE_OK;
}

enum lathe_status lathe_shape_equal(struct shape_ctx *c, lathe_dim a, lathe_dim b, lathe_dim *out) {
    struct lathe_dims *t = c->g->dims;
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    *out = a;
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "a size expression is too large to follow");
    if (a == b)
        return LATHE_OK;
    bool done;
    LATHE_TRY(make_equal(c, a, b, &done));
    if (!done)
        return fail_unequal(c, a, b, lathe_dim_proved_ne(t, a, b));
    *out = lathe_dim_resolve(t, a);
    return LATHE_OK;
}

bool lathe_shape_at_most(struct shape_ctx *c, lathe_dim d, int64_t limit) {
    struct lathe_dims *t = c->g->dims;
    uint32_t symbol = lathe_shape_plain_symbol(c->g, d);
    if (symbol == UINT32_MAX || limit < 2 || limit < lathe_dim_lower(t, d))
        return false;
    lathe_dims_symbol_bound(t, symbol, lathe_dim_lower(t, d), limit);
    char text[512];
    snprintf(text, sizeof text, "axis '%s' is at most %" PRId64 ", the positions at node '%s'",
             lathe_dims_symbol_name(t, symbol), limit, c->g->nodes[c->n].name);
    lathe_graph_add_note(c->g, NULL, c->g->nodes[c->n].name, text);
    return true;
}

/* a = min(s, limit) beside b = s, a plain symbol: the two only broadcast while s <= limit. It is so where a slice [0,
 * seq) of a table of positions, or of constant position ids, is added to something of length seq. */
static bool bound_by_cut(struct shape_ctx *c, lathe_dim a, lathe_dim b) {
    struct lathe_dims *t = c->g->dims;
    struct lathe_dim_term term;
    uint32_t symbol = lathe_shape_plain_symbol(c->g, b);
    int64_t limit;
    if (symbol == UINT32_MAX || lathe_dim_term_count(t, a) != 1)
        return false;
    lathe_dim_term_at(t, a, 0, &term);
    if (term.factor != 1 || term.atom_count != 1 || term.atoms[0].kind != LATHE_ATOM_MIN)
        return false;
    lathe_dim x = lathe_dim_resolve(t, term.atoms[0].a), y = lathe_dim_resolve(t, term.atoms[0].b);
    if (!(x == b && lathe_dim_is_const(t, y, &limit)) && !(y == b && lathe_dim_is_const(t, x, &limit)))
        return false;
    return lathe_shape_at_most(c, b, limit);
}

enum lathe_status lathe_shape_broadcast_dim(struct shape_ctx *c, lathe_dim a, lathe_dim b, lathe_dim *out) {
    struct lathe_dims *t = c->g->dims;
    int64_t value_a, value_b;
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "a size expression is too large to follow");
    bool const_a = lathe_dim_is_const(t, a, &value_a), const_b = lathe_dim_is_const(t, b, &value_b);
    *out = a;
    if (a == b || (const_b && value_b == 1))
        return LATHE_OK;
    if (const_a && value_a == 1) {
        *out = b;
        return LATHE_OK;
    }
    if ((const_a && const_b) ||
        (lathe_dim_lower(t, a) > 1 && lathe_dim_lower(t, b) > 1 && lathe_dim_proved_ne(t, a, b)))
        return fail_unequal(c, a, b, true);
    if (bound_by_cut(c, a, b) || bound_by_cut(c, b, a)) {
        *out = lathe_dim_resolve(t, a);
        return LATHE_OK;
    }
    /* n and n + 1: a size of 1 might broadcast, but no source means that; a mask is for other tokens than the ids */
    lathe_dim difference = lathe_dim_sub(t, a, b);
    if (!const_a && !const_b && difference != LATHE_DIM_NONE && lathe_dim_is_const(t, difference, &value_a))
        return fail_unequal(c, a, b, true);
    bool done;
    LATHE_TRY(make_equal(c, a, b, &done));
    *out = done ? lathe_dim_resolve(t, a) : lathe_dim_max(t, a, b);
    return LATHE_OK;
}

enum lathe_status lathe_shape_broadcast(struct shape_ctx *c, struct shape_dims *acc, const struct shape_dims *b) {
    struct shape_dims wide = {.rank = acc->rank > b->rank ? acc->rank : b->rank};
    for (int i = 0; i < wide.rank; i++) {
        int ia = i - (wide.rank - acc->rank), ib = i - (wide.rank - b->rank);
        if (ia < 0)
            wide.d[i] = b->d[ib];
        else if (ib < 0)
            wide.d[i] = acc->d[ia];
        else
            LATHE_TRY(lathe_shape_broadcast_dim(c, acc->d[ia], b->d[ib], &wide.d[i]));
    }
    /* A symbol that was replaced on the way stands in dims taken before. */
    for (int i = 0; i < wide.rank; i++)
        wide.d[i] = lathe_dim_resolve(c->g->dims, wide.d[i]);
    *acc = wide;
    return LATHE_OK;
}
