/* Masks as conjunctions of facts; see mask_form.h. */
#include "mask_form.h"

#include <math.h>

#define MAX_DEPTH 40
#define MAX_TABLE 1048576 /* elements of a constant mask that is compared with a band */
/* A difference that no score outweighs: such a number masks. */
#define MASKING 1e4

static bool boolean(struct lathe_mask_reader *r, const struct lathe_element *start, bool positive, unsigned depth,
                    struct lathe_mask_formula *out);
static bool two_valued(struct lathe_mask_reader *r, const struct lathe_element *start, unsigned depth,
                       struct lathe_mask_number *out);

/* ---- formulas */

static void always(struct lathe_mask_formula *f) {
    *f = (struct lathe_mask_formula){0};
}

static void constant_truth(struct lathe_mask_formula *f, bool truth) {
    *f = (struct lathe_mask_formula){.never = !truth};
}

static bool same_fact(struct lathe_mask_reader *r, const struct lathe_mask_fact *a, const struct lathe_mask_fact *b) {
    if (a->kind != b->kind || a->negated != b->negated)
        return false;
    return a->kind == LATHE_MASK_INDEX ? lathe_index_equal(&r->view->space, &a->index, &b->index)
                                       : lathe_element_equal(r->view, &a->element, &b->element);
}

static bool has_fact(struct lathe_mask_reader *r, const struct lathe_mask_formula *f,
                     const struct lathe_mask_fact *fact) {
    for (unsigned i = 0; i < f->count; i++)
        if (same_fact(r, f->facts[i], fact))
            return true;
    return false;
}

bool lathe_mask_same(struct lathe_mask_reader *r, const struct lathe_mask_formula *a,
                     const struct lathe_mask_formula *b) {
    if (a->never || b->never)
        return a->never == b->never;
    if (a->count != b->count)
        return false;
    for (unsigned i = 0; i < a->count; i++)
        if (!has_fact(r, b, a->facts[i]))
            return false;
    return true;
}

bool lathe_mask_and(struct lathe_mask_reader *r, const struct lathe_mask_formula *a, const struct lathe_mask_formula *b,
                    struct lathe_mask_formula *out) {
    if (a->never || b->never) {
        constant_truth(out, false);
        return true;
    }
    struct lathe_mask_formula sum = *a;
    for (unsigned i = 0; i < b->count; i++) {
        if (has_fact(r, &sum, b->facts[i]))
            continue;
        if (sum.count == LATHE_MASK_MAX_FACTS)
            return false;
        sum.facts[sum.count++] = b->facts[i];
    }
    sum.coarse += b->coarse;
    *out = sum;
    return true;
}

static struct lathe_mask_fact *new_fact(struct lathe_mask_reader *r, struct lathe_mask_formula *out) {
    struct lathe_mask_fact *fact = lathe_arena_alloc(r->arena, sizeof *fact);
    always(out);
    if (fact) {
        out->count = 1;
        out->facts[0] = fact;
    }
    return fact;
}

/* index >= 0, or what the bounds of its variables tell about it */
static bool index_fact(struct lathe_mask_reader *r, const struct lathe_index *index, struct lathe_mask_formula *out) {
    if (lathe_index_proved_not_negative(&r->view->space, index)) {
        always(out);
        return true;
    }
    if (lathe_index_proved_below(&r->view->space, index, lathe_dim_const(r->view->graph->dims, 0))) {
        constant_truth(out, false);
        return true;
    }
    struct lathe_mask_fact *fact = new_fact(r, out);
    if (!fact)
        return false;
    fact->kind = LATHE_MASK_INDEX;
    fact->index = *index;
    return lathe_index_resolve(&r->view->space, &fact->index);
}

static bool is_logic(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_AND:
    case LATHE_OP_OR:
    case LATHE_OP_XOR:
    case LATHE_OP_NOT:
    case LATHE_OP_WHERE:
    case LATHE_OP_BIT_AND:
    case LATHE_OP_BIT_OR:
    case LATHE_OP_MUL:
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        return true;
    default:
        return false;
    }
}

static bool element_fact(struct lathe_mask_reader *r, const struct lathe_element *e, bool positive,
                         struct lathe_mask_formula *out) {
    struct lathe_mask_fact *fact = new_fact(r, out);
    if (!fact)
        return false;
    lathe_node_id producer = lathe_value_at(r->view->graph, e->value)->producer;
    fact->kind = LATHE_MASK_ELEMENT;
    fact->negated = !positive;
    fact->element = *e;
    out->coarse = producer != LATHE_NONE && is_logic(lathe_node_at(r->view->graph, producer)->op);
    return true;
}

static bool negate(struct lathe_mask_reader *r, const struct lathe_mask_formula *f, struct lathe_mask_formula *out) {
    if (f->never || f->count == 0) {
        constant_truth(out, f->never);
        return true;
    }
    if (f->count > 1)
        return false;
    const struct lathe_mask_fact *fact = f->facts[0];
    if (fact->kind == LATHE_MASK_ELEMENT)
        return element_fact(r, &fact->element, fact->negated, out);
    struct lathe_index minus_one;
    lathe_dim m1 = lathe_dim_const(r->view->graph->dims, -1);
    lathe_index_const(&r->view->space, m1, &minus_one);
    return lathe_index_add_scaled(&r->view->space, &minus_one, m1, &fact->index, &minus_one) &&
           index_fact(r, &minus_one, out);
}

/* ---- numbers of two values */

static void constant_number(struct lathe_mask_number *n, double value) {
    *n = (struct lathe_mask_number){.yes = value, .no = value};
}

static bool is_constant(const struct lathe_mask_number *n, double *value) {
    if (n->when.never)
        *value = n->no;
    else if (n->when.count == 0 || n->yes == n->no)
        *value = n->yes;
    else
        return false;
    return true;
}

bool lathe_mask_turn(struct lathe_mask_reader *r, struct lathe_mask_number *n) {
    struct lathe_mask_formula other;
    if (!negate(r, &n->when, &other))
        return false;
    double yes = n->yes;
    n->when = other;
    n->yes = n->no;
    n->no = yes;
    return true;
}

static double apply(enum lathe_op op, double a, double b) {
    switch (op) {
    case LATHE_OP_ADD:
        return a + b;
    case LATHE_OP_SUB:
        return a - b;
    case LATHE_OP_MUL:
        return a * b;
    case LATHE_OP_DIV:
        return a / b;
    case LATHE_OP_MIN:
        return a < b ? a : b;
    default:
        return a > b ? a : b; /* MAX */
    }
}

/* `yes` where attention is allowed, and `no` masks; the formula is turned round if that is what it takes. */
static bool orient_mask(struct lathe_mask_reader *r, struct lathe_mask_number *n) {
    if (n->yes - n->no >= MASKING)
        return true;
    return n->no - n->yes >= MASKING && lathe_mask_turn(r, n);
}

static bool combine(struct lathe_mask_reader *r, enum lathe_op op, const struct lathe_mask_number *a,
                    const struct lathe_mask_number *b, struct lathe_mask_number *out) {
    double ca = 0, cb = 0;
    struct lathe_mask_number n, x = *a, y = *b;
    bool a_const = is_constant(a, &ca), b_const = is_constant(b, &cb);
    if (a_const || b_const || lathe_mask_same(r, &a->when, &b->when)) {
        n.when = a_const ? b->when : a->when;
        n.yes = apply(op, a_const ? ca : a->yes, b_const ? cb : b->yes);
        n.no = apply(op, a_const ? ca : a->no, b_const ? cb : b->no);
    } else if (op == LATHE_OP_MUL && a->no == 0 && b->no == 0) {
        n.yes = a->yes * b->yes;
        n.no = 0;
        if (!lathe_mask_and(r, &a->when, &b->when, &n.when))
            return false;
    } else if ((op == LATHE_OP_ADD || op == LATHE_OP_MIN) && orient_mask(r, &x) && orient_mask(r, &y)) {
        /* Masks are combined by and; where both mask, the source's value is lower still, which changes nothing. */
        n.yes = apply(op, x.yes, y.yes);
        double one = apply(op, x.no, y.yes), other = apply(op, x.yes, y.no);
        n.no = one > other ? one : other;
        if (!lathe_mask_and(r, &x.when, &y.when, &n.when))
            return false;
    } else {
        return false;
    }
    n.is_input = false;
    if (isnan(n.yes) || isnan(n.no))
        return false;
    *out = n;
    return true;
}

/* c ? x : y */
static bool choose(struct lathe_mask_reader *r, const struct lathe_mask_formula *c,
                   const struct lathe_mask_formula *not_c, const struct lathe_mask_number *x,
                   const struct lathe_mask_number *y, struct lathe_mask_number *out) {
    double cx, cy;
    struct lathe_mask_number n = {.is_input = false};
    bool x_const = is_constant(x, &cx), y_const = is_constant(y, &cy);
    if (x_const && y_const) {
        bool straight = c->coarse <= not_c->coarse;
        n.when = straight ? *c : *not_c;
        n.yes = straight ? cx : cy;
        n.no = straight ? cy : cx;
        *out = n;
        return true;
    }
    if (!x_const && !y_const)
        return false;
    if (y_const)
        return choose(r, not_c, c, y, x, out);
    /* c ? cx : (F ? y.yes : y.no) */
    struct lathe_mask_number other = *y;
    for (int turn = 0; turn < 2; turn++) {
        if (lathe_mask_same(r, &other.when, not_c)) {
            n.when = *not_c;
            n.yes = other.yes;
            n.no = cx;
        } else if (lathe_mask_same(r, &other.when, c)) {
            n.when = *c;
            n.yes = cx;
            n.no = other.no;
        } else if (cx == other.no) {
            n.yes = other.yes;
            n.no = cx;
            if (!lathe_mask_and(r, not_c, &other.when, &n.when))
                return false;
        } else {
            if (!lathe_mask_turn(r, &other))
                return false;
            continue;
        }
        *out = n;
        return true;
    }
    return false;
}

/* A constant of two values in bands along the diagonal of its last two axes longer than 1: causal masks and windows
 * that were stored. */
static bool constant_band(struct lathe_mask_reader *r, const struct lathe_element *e, struct lathe_mask_number *out) {
    struct lathe_graph *g = r->view->graph;
    const struct lathe_value *v = lathe_value_at(g, e->value);
    int64_t rows = 0, cols = 0, count = lathe_value_count(g, e->value);
    int row_axis = -1, col_axis = -1;
    if (count < 4 || count > MAX_TABLE)
        return false;
    for (int i = 0; i < e->rank; i++) {
        int64_t d;
        if (!lathe_dim_is_const(g->dims, v->dims[i], &d))
            return false;
        if (d == 1)
            continue;
        if (col_axis >= 0 && row_axis >= 0)
            return false;
        if (row_axis < 0) {
            row_axis = i;
            rows = d;
        } else {
            col_axis = i;
            cols = d;
        }
    }
    if (col_axis < 0)
        return false;
    /* The band holds the values equal to the diagonal's: low <= column - row <= high. */
    double inside = lathe_constant_f64(g, e->value, 0), outside = inside;
    int64_t low = -(rows - 1), high = cols - 1;
    for (int64_t i = 0; i < count; i++) {
        double x = lathe_constant_f64(g, e->value, i);
        int64_t difference = i % cols - i / cols;
        if (x == inside)
            continue;
        if (isnan(x) || isnan(inside) || (outside != inside && x != outside))
            return false;
        outside = x;
        if (difference == 0)
            return false;
        if (difference < 0 && difference >= low)
            low = difference + 1;
        if (difference > 0 && difference <= high)
            high = difference - 1;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t difference = i % cols - i / cols;
        bool in_band = difference >= low && difference <= high;
        if (in_band != (lathe_constant_f64(g, e->value, i) == inside))
            return false;
    }
    struct lathe_mask_formula f;
    struct lathe_index_space *space = &r->view->space;
    struct lathe_index difference, bound;
    always(&f);
    if (!lathe_index_add_scaled(space, &e->at[col_axis], lathe_dim_const(g->dims, -1), &e->at[row_axis], &difference))
        return false;
    for (int side = 0; side < 2; side++) {
        struct lathe_mask_formula part;
        if (side ? high == cols - 1 : low == -(rows - 1))
            continue;
        lathe_index_const(space, lathe_dim_const(g->dims, side ? high : -low), &bound);
        if (!lathe_index_add_scaled(space, &bound, lathe_dim_const(g->dims, side ? -1 : 1), &difference, &bound) ||
            !index_fact(r, &bound, &part) || !lathe_mask_and(r, &f, &part, &f))
            return false;
    }
    *out = (struct lathe_mask_number){.when = f, .yes = inside, .no = outside};
    return true;
}

static bool constant_element(struct lathe_mask_reader *r, const struct lathe_element *e,
                             struct lathe_mask_number *out) {
    double value;
    if (lathe_constant_uniform(r->view->graph, e->value, &value)) {
        constant_number(out, value);
        return true;
    }
    return constant_band(r, e, out);
}

static bool operand(struct lathe_mask_reader *r, const struct lathe_element *e, lathe_value_id v, unsigned depth,
                    struct lathe_mask_number *out) {
    struct lathe_element x;
    return lathe_element_broadcast(r->view, e, v, &x) && two_valued(r, &x, depth + 1, out);
}

static bool trilu(struct lathe_mask_reader *r, const struct lathe_element *e, const struct lathe_node *node,
                  unsigned depth, struct lathe_mask_number *out) {
    struct lathe_graph *g = r->view->graph;
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    struct lathe_index_space *space = &r->view->space;
    int64_t k = lathe_attr_int(&attrs, LATHE_ATTR_K, 0), upper = lathe_attr_int(&attrs, LATHE_ATTR_UPPER, 1);
    struct lathe_mask_number x, zero;
    struct lathe_mask_formula inside, outside;
    struct lathe_index bound;
    if (node->n_in > 1 && node->in[1] != LATHE_NONE) {
        if (!lathe_value_is_constant(g, node->in[1]) || lathe_value_count(g, node->in[1]) != 1)
            return false;
        k = lathe_constant_i64(g, node->in[1], 0);
    }
    if (e->rank < 2 || k < -(INT64_C(1) << 40) || k > (INT64_C(1) << 40) || !operand(r, e, node->in[0], depth, &x))
        return false;
    /* upper: column - row - k >= 0; lower: row - column + k >= 0 */
    lathe_index_const(space, lathe_dim_const(g->dims, upper ? -k : k), &bound);
    if (!lathe_index_add_scaled(space, &bound, lathe_dim_const(g->dims, upper ? 1 : -1), &e->at[e->rank - 1], &bound) ||
        !lathe_index_add_scaled(space, &bound, lathe_dim_const(g->dims, upper ? -1 : 1), &e->at[e->rank - 2], &bound) ||
        !index_fact(r, &bound, &inside) || !negate(r, &inside, &outside))
        return false;
    constant_number(&zero, 0);
    return choose(r, &inside, &outside, &x, &zero, out);
}

static bool both_truths(struct lathe_mask_reader *r, const struct lathe_element *e, unsigned depth,
                        struct lathe_mask_formula *yes, struct lathe_mask_formula *no) {
    return boolean(r, e, true, depth + 1, yes) && boolean(r, e, false, depth + 1, no);
}

static bool clipped(struct lathe_mask_reader *r, const struct lathe_element *e, const struct lathe_node *node,
                    unsigned depth, struct lathe_mask_number *out) {
    if (!operand(r, e, node->in[0], depth, out))
        return false;
    for (uint32_t i = 1; i < node->n_in && i < 3; i++) {
        struct lathe_mask_number bound;
        double value;
        if (node->in[i] == LATHE_NONE)
            continue;
        if (!lathe_constant_uniform(r->view->graph, node->in[i], &value))
            return false;
        constant_number(&bound, value);
        if (!combine(r, i == 1 ? LATHE_OP_MAX : LATHE_OP_MIN, out, &bound, out))
            return false;
    }
    return true;
}

/* An input of integers, or of floats over batch and positions alone: a bias has more axes. */
static bool may_be_zero_or_one(struct lathe_mask_reader *r, const struct lathe_value *v) {
    int axes = 0;
    for (int i = 0; i < v->rank; i++) {
        int64_t size;
        axes += !lathe_dim_is_const(r->view->graph->dims, v->dims[i], &size) || size != 1;
    }
    return lathe_dtype_is_integer(v->dtype) || axes <= 2;
}

/* A mask with parts put before or behind it, all of them 0 or 1: tokens that the graph adds are always real. */
static bool is_extended_mask(struct lathe_mask_reader *r, lathe_value_id v, unsigned depth) {
    struct lathe_graph *g = r->view->graph;
    const struct lathe_value *value = lathe_value_at(g, v);
    double number;
    if (depth > 4 || !lathe_dtype_is_integer(value->dtype))
        return false;
    if (lathe_constant_uniform(g, v, &number))
        return number == 0 || number == 1;
    if (value->producer == LATHE_NONE)
        return value->is_input && value->rank <= 2;
    const struct lathe_node *node = lathe_node_at(g, value->producer);
    if (node->op == LATHE_OP_FILL)
        return node->n_in == 2 && node->in[1] != LATHE_NONE && is_extended_mask(r, node->in[1], depth + 1);
    if (node->op == LATHE_OP_CAST || node->op == LATHE_OP_EXPAND)
        return is_extended_mask(r, node->in[0], depth + 1);
    struct lathe_attrs attrs = lathe_node_attrs(g, value->producer);
    uint32_t operands = node->op == LATHE_OP_CONCAT                                                   ? node->n_in
                        : node->op == LATHE_OP_PAD && lathe_attr_int(&attrs, LATHE_ATTR_MODE, 0) == 0 ? node->n_in
                                                                                                      : 0;
    for (uint32_t i = 0; i < operands; i++)
        if (node->in[i] != LATHE_NONE && !is_extended_mask(r, node->in[i], depth + 1))
            return false;
    return operands > 0;
}

static bool two_valued(struct lathe_mask_reader *r, const struct lathe_element *start, unsigned depth,
                       struct lathe_mask_number *out) {
    struct lathe_graph *g = r->view->graph;
    struct lathe_element e = *start;
    if (depth > MAX_DEPTH || !r->view->budget)
        return false;
    lathe_element_origin(r->view, &e);
    const struct lathe_value *v = lathe_value_at(g, e.value);
    if (lathe_value_is_constant(g, e.value))
        return constant_element(r, &e, out);
    if (v->dtype == LATHE_BOOL) {
        struct lathe_mask_formula yes, no;
        struct lathe_mask_number one, zero;
        constant_number(&one, 1);
        constant_number(&zero, 0);
        return both_truths(r, &e, depth, &yes, &no) && choose(r, &yes, &no, &one, &zero, out);
    }
    if (v->producer == LATHE_NONE) {
        if (!v->is_input || !may_be_zero_or_one(r, v))
            return false;
        *out = (struct lathe_mask_number){.yes = 1, .no = 0, .is_input = true};
        return element_fact(r, &e, true, &out->when);
    }
    const struct lathe_node *node = lathe_node_at(g, v->producer);
    struct lathe_mask_number a, b;
    switch (node->op) {
    case LATHE_OP_CAST: {
        bool to_integer = !lathe_dtype_is_float(v->dtype);
        if (!operand(r, &e, node->in[0], depth, &a))
            return false;
        if (to_integer && (fabs(a.yes) > 9e15 || fabs(a.no) > 9e15))
            return false;
        *out = a;
        out->yes = to_integer ? trunc(a.yes) : a.yes;
        out->no = to_integer ? trunc(a.no) : a.no;
        return true;
    }
    case LATHE_OP_NEG:
        constant_number(&b, -1);
        return operand(r, &e, node->in[0], depth, &a) && combine(r, LATHE_OP_MUL, &a, &b, out);
    case LATHE_OP_SUB:
        constant_number(out, -1);
        return operand(r, &e, node->in[0], depth, &a) && operand(r, &e, node->in[1], depth, &b) &&
               combine(r, LATHE_OP_MUL, &b, out, &b) && combine(r, LATHE_OP_ADD, &a, &b, out);
    case LATHE_OP_DIV: {
        double divisor;
        return operand(r, &e, node->in[0], depth, &a) && operand(r, &e, node->in[1], depth, &b) &&
               is_constant(&b, &divisor) && divisor != 0 && combine(r, LATHE_OP_DIV, &a, &b, out);
    }
    case LATHE_OP_ADD:
    case LATHE_OP_MUL:
    case LATHE_OP_MIN:
    case LATHE_OP_MAX:
    case LATHE_OP_SUM: {
        enum lathe_op op = node->op == LATHE_OP_SUM ? LATHE_OP_ADD : node->op;
        if (!operand(r, &e, node->in[0], depth, &a))
            return false;
        for (uint32_t i = 1; i < node->n_in; i++)
            if (!operand(r, &e, node->in[i], depth, &b) || !combine(r, op, &a, &b, &a))
                return false;
        *out = a;
        return true;
    }
    case LATHE_OP_CLIP:
        return clipped(r, &e, node, depth, out);
    case LATHE_OP_TRILU:
        return trilu(r, &e, node, depth, out);
    case LATHE_OP_CONCAT:
    case LATHE_OP_PAD:
        if (!is_extended_mask(r, e.value, 0))
            return false;
        *out = (struct lathe_mask_number){.yes = 1, .no = 0, .is_input = true};
        return element_fact(r, &e, true, &out->when);
    case LATHE_OP_FILL: {
        double value;
        if (node->n_in == 2 && lathe_constant_uniform(g, node->in[1], &value)) {
            constant_number(out, value);
            return true;
        }
        return false;
    }
    case LATHE_OP_WHERE: {
        struct lathe_mask_formula yes, no;
        struct lathe_element c;
        return lathe_element_broadcast(r->view, &e, node->in[0], &c) && both_truths(r, &c, depth, &yes, &no) &&
               operand(r, &e, node->in[1], depth, &a) && operand(r, &e, node->in[2], depth, &b) &&
               choose(r, &yes, &no, &a, &b, out);
    }
    default:
        return false;
    }
}

/* ---- truth */

/* The truth of a comparison that comes out as `yes` or `no` by the formula of a number. */
static bool truth_of(struct lathe_mask_reader *r, const struct lathe_mask_formula *when, bool yes, bool no,
                     struct lathe_mask_formula *out) {
    if (yes == no)
        constant_truth(out, yes);
    else if (yes)
        *out = *when;
    else
        return negate(r, when, out);
    return true;
}

/* b - a - strict >= 0 */
static bool ordered(struct lathe_mask_reader *r, const struct lathe_index *a, const struct lathe_index *b, bool strict,
                    struct lathe_mask_formula *out) {
    struct lathe_index difference;
    struct lathe_dims *dims = r->view->graph->dims;
    if (!lathe_index_add_scaled(&r->view->space, b, lathe_dim_const(dims, -1), a, &difference))
        return false;
    if (strict)
        difference.constant = lathe_dim_sub(dims, difference.constant, lathe_dim_const(dims, 1));
    return difference.constant != LATHE_DIM_NONE && index_fact(r, &difference, out);
}

/* The operand of an absolute value behind views and casts. */
static bool absolute_of(struct lathe_mask_reader *r, struct lathe_element *e) {
    struct lathe_graph *g = r->view->graph;
    for (;;) {
        lathe_element_origin(r->view, e);
        lathe_node_id n = lathe_value_at(g, e->value)->producer;
        if (n == LATHE_NONE || (lathe_node_at(g, n)->op != LATHE_OP_ABS && lathe_node_at(g, n)->op != LATHE_OP_CAST) ||
            lathe_value_at(g, lathe_node_at(g, n)->in[0])->dtype == LATHE_BOOL)
            return false;
        e->value = lathe_node_at(g, n)->in[0];
        if (lathe_node_at(g, n)->op == LATHE_OP_ABS)
            return true;
    }
}

/* x <= y (x < y when strict) of index expressions, |x| <= y among them */
static bool ordered_elements(struct lathe_mask_reader *r, const struct lathe_element *x, const struct lathe_element *y,
                             bool strict, struct lathe_mask_formula *out) {
    struct lathe_index a, b, minus;
    struct lathe_element inner = *x;
    struct lathe_mask_formula low, high;
    if (!lathe_element_index(r->view, y, &b))
        return false;
    if (lathe_element_index(r->view, x, &a))
        return ordered(r, &a, &b, strict, out);
    lathe_index_const(&r->view->space, lathe_dim_const(r->view->graph->dims, 0), &minus);
    return absolute_of(r, &inner) && lathe_element_index(r->view, &inner, &a) &&
           lathe_index_add_scaled(&r->view->space, &minus, lathe_dim_const(r->view->graph->dims, -1), &a, &minus) &&
           ordered(r, &a, &b, strict, &low) && ordered(r, &minus, &b, strict, &high) &&
           lathe_mask_and(r, &low, &high, out);
}

static bool compare_numbers(enum lathe_op op, double a, double b) {
    switch (op) {
    case LATHE_OP_EQUAL:
        return a == b;
    case LATHE_OP_LESS:
        return a < b;
    case LATHE_OP_LESS_EQUAL:
        return a <= b;
    case LATHE_OP_GREATER:
        return a > b;
    default:
        return a >= b;
    }
}

/* False when the comparison is not understood; the caller then takes its result as it is. */
static bool comparison(struct lathe_mask_reader *r, const struct lathe_element *e, const struct lathe_node *node,
                       bool positive, unsigned depth, struct lathe_mask_formula *out) {
    struct lathe_element x, y;
    struct lathe_mask_number a, b;
    double ca = 0, cb = 0;
    if (!lathe_element_broadcast(r->view, e, node->in[0], &x) || !lathe_element_broadcast(r->view, e, node->in[1], &y))
        return false;
    if (node->op == LATHE_OP_EQUAL) {
        struct lathe_index i, j;
        struct lathe_mask_formula le, ge;
        if (lathe_element_index(r->view, &x, &i) && lathe_element_index(r->view, &y, &j)) {
            if (!ordered(r, &i, &j, false, &le) || !ordered(r, &j, &i, false, &ge) || !lathe_mask_and(r, &le, &ge, &le))
                return false;
            *out = le;
            return positive || negate(r, &le, out);
        }
    } else {
        bool swapped = node->op == LATHE_OP_GREATER || node->op == LATHE_OP_GREATER_EQUAL;
        bool strict = node->op == LATHE_OP_LESS || node->op == LATHE_OP_GREATER;
        /* not (x <= y) is y < x */
        if (ordered_elements(r, swapped == positive ? &y : &x, swapped == positive ? &x : &y,
                             positive ? strict : !strict, out))
            return true;
    }
    if (!two_valued(r, &x, depth + 1, &a) || !two_valued(r, &y, depth + 1, &b))
        return false;
    bool a_const = is_constant(&a, &ca), b_const = is_constant(&b, &cb);
    if (!a_const && !b_const)
        return false;
    /* An input may hold any number here; only "equal to 0" is a fact about it being 0. */
    if ((a.is_input || b.is_input) && (node->op != LATHE_OP_EQUAL || (a_const ? ca : cb) != 0))
        return false;
    bool yes = compare_numbers(node->op, a_const ? ca : a.yes, b_const ? cb : b.yes);
    bool no = compare_numbers(node->op, a_const ? ca : a.no, b_const ? cb : b.no);
    const struct lathe_mask_formula *when = a_const ? &b.when : &a.when;
    return truth_of(r, when, yes == positive, no == positive, out);
}

/* x and y, or x or y, under a sign; false when the result is no conjunction. */
static bool junction(struct lathe_mask_reader *r, const struct lathe_element *e, const struct lathe_node *node,
                     bool is_and, bool positive, unsigned depth, struct lathe_mask_formula *out) {
    struct lathe_element x, y;
    struct lathe_mask_formula a, b;
    if (!lathe_element_broadcast(r->view, e, node->in[0], &x) ||
        !lathe_element_broadcast(r->view, e, node->in[1], &y) || !boolean(r, &x, positive, depth + 1, &a) ||
        !boolean(r, &y, positive, depth + 1, &b))
        return false;
    if (is_and == positive)
        return lathe_mask_and(r, &a, &b, out);
    /* a or b */
    if (a.never || lathe_mask_same(r, &a, &b))
        *out = b;
    else if (b.never)
        *out = a;
    else if (a.count == 0 || b.count == 0)
        always(out);
    else
        return false;
    return true;
}

static bool selection(struct lathe_mask_reader *r, const struct lathe_element *e, const struct lathe_node *node,
                      bool positive, unsigned depth, struct lathe_mask_formula *out) {
    struct lathe_element c, x, y;
    struct lathe_mask_formula cond, not_cond, a, b;
    if (!lathe_element_broadcast(r->view, e, node->in[0], &c) ||
        !lathe_element_broadcast(r->view, e, node->in[1], &x) ||
        !lathe_element_broadcast(r->view, e, node->in[2], &y) || !both_truths(r, &c, depth, &cond, &not_cond) ||
        !boolean(r, &x, positive, depth + 1, &a) || !boolean(r, &y, positive, depth + 1, &b))
        return false;
    if (b.never)
        return lathe_mask_and(r, &cond, &a, out);
    if (a.never)
        return lathe_mask_and(r, &not_cond, &b, out);
    if (!lathe_mask_same(r, &a, &b))
        return false;
    *out = a;
    return true;
}

static bool boolean(struct lathe_mask_reader *r, const struct lathe_element *start, bool positive, unsigned depth,
                    struct lathe_mask_formula *out) {
    struct lathe_graph *g = r->view->graph;
    struct lathe_element e = *start;
    struct lathe_mask_number n;
    lathe_node_id producer;
    for (;;) {
        lathe_element_origin(r->view, &e);
        producer = lathe_value_at(g, e.value)->producer;
        if (producer == LATHE_NONE || lathe_node_at(g, producer)->op != LATHE_OP_CAST)
            break;
        lathe_value_id from = lathe_node_at(g, producer)->in[0];
        enum lathe_dtype to_type = lathe_value_at(g, e.value)->dtype;
        /* A cast from float to integer makes zeros of fractions. */
        if (lathe_dtype_is_float(lathe_value_at(g, from)->dtype) && lathe_dtype_is_integer(to_type))
            break;
        e.value = from;
    }
    if (depth > MAX_DEPTH || !r->view->budget)
        return element_fact(r, &e, positive, out);
    r->view->budget--;
    if (lathe_value_is_constant(g, e.value)) {
        if (constant_element(r, &e, &n) && truth_of(r, &n.when, (n.yes != 0) == positive, (n.no != 0) == positive, out))
            return true;
        return element_fact(r, &e, positive, out);
    }
    if (producer != LATHE_NONE) {
        const struct lathe_node *node = lathe_node_at(g, producer);
        struct lathe_element x;
        bool ok = false;
        switch (node->op) {
        case LATHE_OP_NOT:
            ok = lathe_element_broadcast(r->view, &e, node->in[0], &x) && boolean(r, &x, !positive, depth + 1, out);
            break;
        case LATHE_OP_AND:
        case LATHE_OP_OR:
            ok = junction(r, &e, node, node->op == LATHE_OP_AND, positive, depth, out);
            break;
        case LATHE_OP_EQUAL:
        case LATHE_OP_LESS:
        case LATHE_OP_LESS_EQUAL:
        case LATHE_OP_GREATER:
        case LATHE_OP_GREATER_EQUAL:
            ok = comparison(r, &e, node, positive, depth, out);
            break;
        case LATHE_OP_WHERE:
            ok = lathe_value_at(g, e.value)->dtype == LATHE_BOOL && selection(r, &e, node, positive, depth, out);
            break;
        case LATHE_OP_TRILU:
            ok = lathe_value_at(g, e.value)->dtype == LATHE_BOOL && trilu(r, &e, node, depth, &n) &&
                 truth_of(r, &n.when, (n.yes != 0) == positive, (n.no != 0) == positive, out);
            break;
        case LATHE_OP_FILL: {
            double value;
            if (node->n_in == 2 && lathe_constant_uniform(g, node->in[1], &value)) {
                constant_truth(out, (value != 0) == positive);
                ok = true;
            }
            break;
        }
        default:
            break;
        }
        if (ok)
            return true;
        if (lathe_value_at(g, e.value)->dtype != LATHE_BOOL && two_valued(r, &e, depth + 1, &n) &&
            truth_of(r, &n.when, (n.yes != 0) == positive, (n.no != 0) == positive, out))
            return true;
    }
    return element_fact(r, &e, positive, out);
}

bool lathe_mask_boolean(struct lathe_mask_reader *r, const struct lathe_element *e, bool positive,
                        struct lathe_mask_formula *out) {
    return boolean(r, e, positive, 0, out);
}

bool lathe_mask_number(struct lathe_mask_reader *r, const struct lathe_element *e, struct lathe_mask_number *out) {
    return two_valued(r, e, 0, out);
}
