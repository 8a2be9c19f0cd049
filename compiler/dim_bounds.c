/* Bounds of dimension expressions by interval arithmetic, sharpened where a sum has a common factor (b*s - s =
 * s*(b-1)), or holds a minimum or maximum, which equals one of its operands, or two quotients by one number. INT64_MIN
 * and INT64_MAX stand for no bound. */
#include "dim_table.h"

#include <string.h>

enum { MAX_SHARPEN_DEPTH = 4 };

struct interval {
    int64_t lower, upper;
};

static bool is_infinite(int64_t x) {
    return x == INT64_MIN || x == INT64_MAX;
}

static int64_t add_bound(int64_t a, int64_t b) {
    int64_t sum;
    if (is_infinite(a))
        return a;
    if (is_infinite(b))
        return b;
    if (__builtin_add_overflow(a, b, &sum))
        return a < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

static int64_t mul_bound(int64_t a, int64_t b) {
    int64_t product;
    if (!a || !b)
        return 0;
    if (is_infinite(a) || is_infinite(b) || __builtin_mul_overflow(a, b, &product))
        return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
    return product;
}

static struct interval mul_interval(struct interval a, struct interval b) {
    int64_t p[4] = {mul_bound(a.lower, b.lower), mul_bound(a.lower, b.upper), mul_bound(a.upper, b.lower),
                    mul_bound(a.upper, b.upper)};
    struct interval result = {p[0], p[0]};
    for (int i = 1; i < 4; i++) {
        if (p[i] < result.lower)
            result.lower = p[i];
        if (p[i] > result.upper)
            result.upper = p[i];
    }
    return result;
}

static int64_t floor_bound(int64_t a, int64_t b) {
    if (is_infinite(a))
        return a;
    if (b == INT64_MAX)
        return a < 0 ? -1 : 0;
    return a / b - (a % b != 0 && a < 0);
}

static struct interval bounds(struct lathe_dims *t, lathe_dim d);

static struct interval atom_bounds(struct lathe_dims *t, struct dim_atom x) {
    struct interval none = {INT64_MIN, INT64_MAX};
    if (x.kind == LATHE_ATOM_SYMBOL)
        return (struct interval){t->symbols[x.symbol].min, t->symbols[x.symbol].max};
    struct interval a = bounds(t, x.a), b = bounds(t, x.b);
    switch (x.kind) {
    case LATHE_ATOM_FLOORDIV:
        if (b.lower < 1)
            return none;
        return (struct interval){floor_bound(a.lower, a.lower >= 0 ? b.upper : b.lower),
                                 floor_bound(a.upper, a.upper >= 0 ? b.lower : b.upper)};
    case LATHE_ATOM_MOD:
        if (b.lower < 1)
            return none;
        none = (struct interval){0, b.upper == INT64_MAX ? INT64_MAX : b.upper - 1};
        if (a.lower >= 0 && a.upper < none.upper)
            none.upper = a.upper;
        return none;
    case LATHE_ATOM_MIN:
        return (struct interval){a.lower < b.lower ? a.lower : b.lower, a.upper < b.upper ? a.upper : b.upper};
    case LATHE_ATOM_MAX:
        return (struct interval){a.lower > b.lower ? a.lower : b.lower, a.upper > b.upper ? a.upper : b.upper};
    default:
        return none;
    }
}

/* d with the atom at (term, position) replaced by an expression. */
static lathe_dim replace_atom(struct lathe_dims *t, lathe_dim d, uint32_t term, uint32_t position, lathe_dim with) {
    struct dim_sum others = {.count = 0}, factor = {.count = 1};
    for (uint32_t i = 0; i < t->exprs[d].count; i++)
        if (i != term)
            others.terms[others.count++] = t->exprs[d].terms[i];
    const struct dim_term *old = &t->exprs[d].terms[term];
    factor.terms[0] = (struct dim_term){.factor = old->factor};
    for (uint32_t k = 0; k < old->n; k++)
        if (k != position)
            factor.terms[0].atoms[factor.terms[0].n++] = old->atoms[k];
    lathe_dim rest = lathe_dim_intern(t, &others);
    return lathe_dim_add_resolved(t, rest, lathe_dim_mul_resolved(t, lathe_dim_intern(t, &factor), with), 1);
}

static void tighten(struct interval *result, struct interval other) {
    if (other.lower > result->lower)
        result->lower = other.lower;
    if (other.upper < result->upper)
        result->upper = other.upper;
}

static void sharpen_by_extreme(struct lathe_dims *t, lathe_dim d, struct interval *result) {
    for (uint32_t i = 0; i < t->exprs[d].count; i++) {
        struct dim_term term = t->exprs[d].terms[i];
        for (uint32_t k = 0; k < term.n; k++) {
            struct dim_atom x = t->atoms[term.atoms[k]];
            if (x.kind != LATHE_ATOM_MIN && x.kind != LATHE_ATOM_MAX)
                continue;
            bool others_positive = true;
            for (uint32_t m = 0; m < term.n; m++)
                if (m != k && atom_bounds(t, t->atoms[term.atoms[m]]).lower < 0)
                    others_positive = false;
            lathe_dim with_a = replace_atom(t, d, i, k, lathe_dim_resolve(t, x.a));
            lathe_dim with_b = replace_atom(t, d, i, k, lathe_dim_resolve(t, x.b));
            if (with_a == LATHE_DIM_NONE || with_b == LATHE_DIM_NONE)
                continue;
            struct interval a = bounds(t, with_a), b = bounds(t, with_b);
            struct interval both = {a.lower < b.lower ? a.lower : b.lower, a.upper > b.upper ? a.upper : b.upper};
            if (others_positive) {
                /* The value is the larger (or smaller) of the two. */
                bool larger = (x.kind == LATHE_ATOM_MAX) == (term.factor > 0);
                if (larger)
                    both.lower = a.lower > b.lower ? a.lower : b.lower;
                else
                    both.upper = a.upper < b.upper ? a.upper : b.upper;
            }
            tighten(result, both);
            return;
        }
    }
}

static void sharpen_by_factor(struct lathe_dims *t, lathe_dim d, struct interval *result) {
    const struct dim_expr *e = &t->exprs[d];
    for (uint32_t k = 0; k < e->terms[0].n; k++) {
        struct dim_term by = {.factor = 1, .n = 1, .atoms = {e->terms[0].atoms[k]}};
        struct dim_sum rest = {.count = 0};
        bool all = true;
        for (uint32_t i = 0; i < e->count && all; i++) {
            struct dim_term quotient;
            all = lathe_dim_divide_term(&e->terms[i], &by, &quotient) && lathe_dim_sum_add(&rest, &quotient);
        }
        if (!all)
            continue;
        lathe_dim inner = lathe_dim_intern(t, &rest);
        if (inner != LATHE_DIM_NONE)
            tighten(result, mul_interval(atom_bounds(t, t->atoms[by.atoms[0]]), bounds(t, inner)));
        return;
    }
}

/* f (p / c) - f (q / c) + rest with one c: the quotients differ by (p - q) / c, rounded down or up. */
static void sharpen_by_quotients(struct lathe_dims *t, lathe_dim d, struct interval *result) {
    const struct dim_expr *e = &t->exprs[d];
    for (uint32_t i = 0; i < e->count; i++)
        for (uint32_t k = 0; k < e->count; k++) {
            const struct dim_term *p = &e->terms[i], *q = &e->terms[k];
            int64_t c;
            if (p->factor < 1 || q->factor != -p->factor || p->n != 1 || q->n != 1)
                continue;
            struct dim_atom x = t->atoms[p->atoms[0]], y = t->atoms[q->atoms[0]];
            if (x.kind != LATHE_ATOM_FLOORDIV || y.kind != LATHE_ATOM_FLOORDIV || !lathe_dim_is_const(t, x.b, &c) ||
                c < 1 || lathe_dim_resolve(t, x.b) != lathe_dim_resolve(t, y.b))
                continue;
            int64_t factor = p->factor;
            struct dim_sum others = {.count = 0};
            for (uint32_t m = 0; m < e->count; m++)
                if (m != i && m != k)
                    others.terms[others.count++] = e->terms[m];
            lathe_dim rest = lathe_dim_intern(t, &others), difference = lathe_dim_sub(t, x.a, y.a);
            if (rest == LATHE_DIM_NONE || difference == LATHE_DIM_NONE)
                return;
            struct interval of = bounds(t, difference), more = bounds(t, rest);
            int64_t least = is_infinite(of.lower) ? INT64_MIN : floor_bound(of.lower, c);
            int64_t most = is_infinite(of.upper) ? INT64_MAX : floor_bound(of.upper, c) + (of.upper % c != 0);
            struct interval sum = {INT64_MIN, INT64_MAX};
            if (least != INT64_MIN && more.lower != INT64_MIN)
                sum.lower = add_bound(mul_bound(least, factor), more.lower);
            if (most != INT64_MAX && more.upper != INT64_MAX)
                sum.upper = add_bound(mul_bound(most, factor), more.upper);
            tighten(result, sum);
            return;
        }
}

static struct interval bounds(struct lathe_dims *t, lathe_dim d) {
    d = lathe_dim_resolve(t, d);
    if (d == LATHE_DIM_NONE)
        return (struct interval){INT64_MIN, INT64_MAX};
    /* A result found deep inside another search was sharpened less: it serves only searches as deep as that one. */
    if (t->exprs[d].bounds_at == t->generation && t->exprs[d].bounds_depth <= t->bounds_depth)
        return (struct interval){t->exprs[d].lower, t->exprs[d].upper};
    struct interval sum = {0, 0};
    for (uint32_t i = 0; i < t->exprs[d].count; i++) {
        struct dim_term term = t->exprs[d].terms[i];
        struct interval product = {term.factor, term.factor};
        for (uint32_t k = 0; k < term.n; k++)
            product = mul_interval(product, atom_bounds(t, t->atoms[term.atoms[k]]));
        sum.lower =
            sum.lower == INT64_MIN || product.lower == INT64_MIN ? INT64_MIN : add_bound(sum.lower, product.lower);
        sum.upper =
            sum.upper == INT64_MAX || product.upper == INT64_MAX ? INT64_MAX : add_bound(sum.upper, product.upper);
    }
    if (t->exprs[d].count && t->bounds_depth < MAX_SHARPEN_DEPTH) {
        t->bounds_depth++;
        if (t->exprs[d].count > 1) {
            sharpen_by_factor(t, d, &sum);
            sharpen_by_quotients(t, d, &sum);
        }
        sharpen_by_extreme(t, d, &sum);
        t->bounds_depth--;
    }
    t->exprs[d].lower = sum.lower;
    t->exprs[d].upper = sum.upper;
    t->exprs[d].bounds_at = t->generation;
    t->exprs[d].bounds_depth = t->bounds_depth;
    return sum;
}

int64_t lathe_dim_lower(const struct lathe_dims *t, lathe_dim d) {
    return bounds((struct lathe_dims *)t, d).lower;
}
int64_t lathe_dim_upper(const struct lathe_dims *t, lathe_dim d) {
    return bounds((struct lathe_dims *)t, d).upper;
}

bool lathe_dim_proved_le(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    lathe_dim difference = lathe_dim_sub(t, b, a);
    return difference != LATHE_DIM_NONE && lathe_dim_lower(t, difference) >= 0;
}

bool lathe_dim_proved_lt(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    lathe_dim difference = lathe_dim_sub(t, b, a);
    return difference != LATHE_DIM_NONE && lathe_dim_lower(t, difference) >= 1;
}

bool lathe_dim_proved_ne(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    lathe_dim difference = lathe_dim_sub(t, b, a);
    return difference != LATHE_DIM_NONE &&
           (lathe_dim_lower(t, difference) >= 1 || lathe_dim_upper(t, difference) <= -1);
}
