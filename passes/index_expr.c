/* Sums of index variables; see index_expr.h. */
#include "index_expr.h"

#include <string.h>

void lathe_index_space_init(struct lathe_index_space *space, struct lathe_dims *dims) {
    space->dims = dims;
    space->count = 0;
}

void lathe_index_const(struct lathe_index_space *space, lathe_dim value, struct lathe_index *out) {
    (void)space;
    out->constant = value;
    out->count = 0;
}

static bool is_const_value(const struct lathe_index_space *space, lathe_dim d, int64_t wanted) {
    int64_t value;
    return lathe_dim_is_const(space->dims, d, &value) && value == wanted;
}

static bool new_var_id(struct lathe_index_space *space, lathe_dim extent, uint32_t *id) {
    if (space->count == LATHE_INDEX_MAX_VARS || extent == LATHE_DIM_NONE)
        return false;
    *id = space->count++;
    space->vars[*id] = (struct lathe_index_var){.extent = extent};
    return true;
}

bool lathe_index_new_var(struct lathe_index_space *space, lathe_dim extent, struct lathe_index *out) {
    lathe_index_const(space, lathe_dim_const(space->dims, 0), out);
    if (extent == LATHE_DIM_NONE)
        return false;
    if (is_const_value(space, extent, 1))
        return true;
    uint32_t id;
    if (!new_var_id(space, extent, &id))
        return false;
    out->count = 1;
    out->terms[0] = (struct lathe_index_term){id, lathe_dim_const(space->dims, 1)};
    return true;
}

/* Adds factor * var, following splits. */
static bool accumulate(struct lathe_index_space *space, struct lathe_index *out, uint32_t var, lathe_dim factor) {
    const struct lathe_index_var *v = &space->vars[var];
    if (factor == LATHE_DIM_NONE)
        return false;
    if (v->is_split) {
        uint32_t low = v->low;
        lathe_dim high_factor = lathe_dim_mul(space->dims, factor, v->radix);
        return accumulate(space, out, v->high, high_factor) && accumulate(space, out, low, factor);
    }
    if (is_const_value(space, v->extent, 1) || is_const_value(space, factor, 0))
        return true;
    uint32_t at = 0;
    while (at < out->count && out->terms[at].var < var)
        at++;
    if (at < out->count && out->terms[at].var == var) {
        lathe_dim sum = lathe_dim_add(space->dims, out->terms[at].factor, factor);
        if (sum == LATHE_DIM_NONE)
            return false;
        if (is_const_value(space, sum, 0)) {
            memmove(&out->terms[at], &out->terms[at + 1], (out->count - at - 1) * sizeof out->terms[0]);
            out->count--;
        } else {
            out->terms[at].factor = sum;
        }
        return true;
    }
    if (out->count == LATHE_INDEX_MAX_TERMS)
        return false;
    memmove(&out->terms[at + 1], &out->terms[at], (out->count - at) * sizeof out->terms[0]);
    out->terms[at] = (struct lathe_index_term){var, factor};
    out->count++;
    return true;
}

bool lathe_index_add_scaled(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim factor,
                            const struct lathe_index *b, struct lathe_index *out) {
    struct lathe_index sum;
    lathe_dim shift = lathe_dim_mul(space->dims, factor, b->constant);
    if (a->constant == LATHE_DIM_NONE || shift == LATHE_DIM_NONE)
        return false;
    lathe_index_const(space, lathe_dim_add(space->dims, a->constant, shift), &sum);
    if (sum.constant == LATHE_DIM_NONE)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (!accumulate(space, &sum, a->terms[i].var, a->terms[i].factor))
            return false;
    for (uint32_t i = 0; i < b->count; i++)
        if (!accumulate(space, &sum, b->terms[i].var, lathe_dim_mul(space->dims, factor, b->terms[i].factor)))
            return false;
    *out = sum;
    return true;
}

bool lathe_index_resolve(struct lathe_index_space *space, struct lathe_index *a) {
    struct lathe_index zero;
    lathe_index_const(space, lathe_dim_const(space->dims, 0), &zero);
    return lathe_index_add_scaled(space, &zero, lathe_dim_const(space->dims, 1), a, a);
}

bool lathe_index_is_const(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim *value) {
    struct lathe_index r = *a;
    if (!lathe_index_resolve(space, &r) || r.count != 0)
        return false;
    *value = r.constant;
    return true;
}

bool lathe_index_equal(struct lathe_index_space *space, const struct lathe_index *a, const struct lathe_index *b) {
    struct lathe_index difference;
    lathe_dim value;
    return lathe_index_add_scaled(space, a, lathe_dim_const(space->dims, -1), b, &difference) &&
           lathe_index_is_const(space, &difference, &value) && is_const_value(space, value, 0);
}

/* The largest value of factor * var; false when the sign of the factor is not known. */
static bool term_bounds(struct lathe_index_space *space, const struct lathe_index_term *term, lathe_dim *low,
                        lathe_dim *high) {
    struct lathe_dims *t = space->dims;
    lathe_dim last = lathe_dim_sub(t, space->vars[term->var].extent, lathe_dim_const(t, 1));
    lathe_dim end = last == LATHE_DIM_NONE ? last : lathe_dim_mul(t, term->factor, last);
    lathe_dim zero = lathe_dim_const(t, 0);
    if (end == LATHE_DIM_NONE)
        return false;
    if (lathe_dim_lower(t, term->factor) >= 0) {
        *low = zero;
        *high = end;
    } else if (lathe_dim_upper(t, term->factor) <= 0) {
        *low = end;
        *high = zero;
    } else {
        return false;
    }
    return true;
}

static bool bounds(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim *low, lathe_dim *high) {
    struct lathe_index r = *a;
    if (!lathe_index_resolve(space, &r))
        return false;
    *low = *high = r.constant;
    for (uint32_t i = 0; i < r.count; i++) {
        lathe_dim l, h;
        if (!term_bounds(space, &r.terms[i], &l, &h))
            return false;
        *low = lathe_dim_add(space->dims, *low, l);
        *high = lathe_dim_add(space->dims, *high, h);
        if (*low == LATHE_DIM_NONE || *high == LATHE_DIM_NONE)
            return false;
    }
    return true;
}

bool lathe_index_proved_not_negative(struct lathe_index_space *space, const struct lathe_index *a) {
    lathe_dim low, high;
    return bounds(space, a, &low, &high) && lathe_dim_proved_le(space->dims, lathe_dim_const(space->dims, 0), low);
}

bool lathe_index_proved_below(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim limit) {
    lathe_dim low, high;
    return bounds(space, a, &low, &high) && lathe_dim_proved_lt(space->dims, high, limit);
}

/* Splits one variable of `a` so that division by `divisor` can go on: factor * var with var = high * (divisor / factor)
 * + low. False when no variable divides that way. */
static bool split_for(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim divisor) {
    struct lathe_dims *t = space->dims;
    for (uint32_t i = 0; i < a->count; i++) {
        uint32_t var = a->terms[i].var;
        lathe_dim radix = lathe_dim_div_exact(t, divisor, a->terms[i].factor);
        if (radix == LATHE_DIM_NONE || is_const_value(space, radix, 1) || lathe_dim_lower(t, radix) < 1)
            continue;
        lathe_dim count = lathe_dim_div_exact(t, space->vars[var].extent, radix);
        uint32_t high, low;
        if (count == LATHE_DIM_NONE || is_const_value(space, count, 1))
            continue;
        if (!new_var_id(space, count, &high) || !new_var_id(space, radix, &low))
            return false;
        struct lathe_index_var *v = &space->vars[var];
        v->is_split = true;
        v->high = high;
        v->low = low;
        v->radix = radix;
        return true;
    }
    return false;
}

/* The constant part: whole multiples of the divisor go to the quotient. */
static bool divide_constant(struct lathe_index_space *space, lathe_dim value, lathe_dim divisor, lathe_dim *quotient,
                            lathe_dim *remainder) {
    struct lathe_dims *t = space->dims;
    int64_t v, d;
    lathe_dim zero = lathe_dim_const(t, 0), exact;
    *quotient = zero;
    *remainder = value;
    if (lathe_dim_is_const(t, value, &v) && lathe_dim_is_const(t, divisor, &d)) {
        if (d <= 0)
            return false;
        int64_t r = v % d;
        r = r < 0 ? r + d : r;
        *quotient = lathe_dim_const(t, (v - r) / d);
        *remainder = lathe_dim_const(t, r);
    } else if ((exact = lathe_dim_div_exact(t, value, divisor)) != LATHE_DIM_NONE) {
        *quotient = exact;
        *remainder = zero;
    }
    return true;
}

bool lathe_index_divide(struct lathe_index_space *space, const struct lathe_index *a, lathe_dim divisor,
                        struct lathe_index *quotient, struct lathe_index *remainder) {
    struct lathe_dims *t = space->dims;
    struct lathe_index whole = *a;
    if (divisor == LATHE_DIM_NONE || is_const_value(space, divisor, 0))
        return false;
    for (;;) {
        struct lathe_index q, r;
        if (!lathe_index_resolve(space, &whole) ||
            !divide_constant(space, whole.constant, divisor, &q.constant, &r.constant))
            return false;
        q.count = r.count = 0;
        for (uint32_t i = 0; i < whole.count; i++) {
            lathe_dim part = lathe_dim_div_exact(t, whole.terms[i].factor, divisor);
            if (part != LATHE_DIM_NONE) {
                if (!accumulate(space, &q, whole.terms[i].var, part))
                    return false;
            } else if (!accumulate(space, &r, whole.terms[i].var, whole.terms[i].factor)) {
                return false;
            }
        }
        if (lathe_index_proved_not_negative(space, &r) && lathe_index_proved_below(space, &r, divisor)) {
            *quotient = q;
            *remainder = r;
            return true;
        }
        if (!split_for(space, &r, divisor))
            return false;
    }
}

bool lathe_index_flatten(struct lathe_index_space *space, int rank, const lathe_dim *dims, const struct lathe_index *at,
                         struct lathe_index *offset) {
    struct lathe_dims *t = space->dims;
    struct lathe_index sum;
    lathe_dim stride = lathe_dim_const(t, 1);
    lathe_index_const(space, lathe_dim_const(t, 0), &sum);
    for (int i = rank - 1; i >= 0; i--) {
        if (stride == LATHE_DIM_NONE || !lathe_index_add_scaled(space, &sum, stride, &at[i], &sum))
            return false;
        stride = dims[i] == LATHE_DIM_NONE ? LATHE_DIM_NONE : lathe_dim_mul(t, stride, dims[i]);
    }
    *offset = sum;
    return true;
}

bool lathe_index_unflatten(struct lathe_index_space *space, const struct lathe_index *offset, int rank,
                           const lathe_dim *dims, struct lathe_index *at) {
    struct lathe_index rest = *offset;
    if (rank == 0)
        return true;
    for (int i = rank - 1; i > 0; i--)
        if (!lathe_index_divide(space, &rest, dims[i], &rest, &at[i]))
            return false;
    at[0] = rest;
    return true;
}
