/* The table of dimension expressions: interning, the normal form and its arithmetic. Bounds are in dim_bounds.c, text
 * in dim_text.c. */
#include "dim_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- storage */

static uint32_t hash_words(const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Doubles an array when it is full. */
static bool grow(void **array, uint32_t count, uint32_t *capacity, size_t element) {
    if (count < *capacity)
        return true;
    uint32_t wanted = *capacity ? *capacity * 2 : 64;
    if (wanted < *capacity)
        return false;
    void *larger = realloc(*array, wanted * element);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

static bool index_grow(struct dim_index *ix, uint32_t count) {
    if (ix->size && count * 2 < ix->size)
        return true;
    uint32_t size = ix->size ? ix->size * 2 : 256;
    struct dim_slot *slots = calloc(size, sizeof *slots);
    if (!slots)
        return false;
    for (uint32_t i = 0; i < ix->size; i++) {
        if (!ix->slots[i].id_plus_1)
            continue;
        uint32_t at = ix->slots[i].hash & (size - 1);
        while (slots[at].id_plus_1)
            at = (at + 1) & (size - 1);
        slots[at] = ix->slots[i];
    }
    free(ix->slots);
    ix->slots = slots;
    ix->size = size;
    return true;
}

struct lathe_dims *lathe_dims_new(void) {
    struct lathe_dims *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->arena = lathe_arena_new();
    t->generation = 1;
    if (!t->arena || !index_grow(&t->expr_index, 0) || !index_grow(&t->atom_index, 0) ||
        !index_grow(&t->symbol_index, 0))
        lathe_dims_free(&t);
    return t;
}

void lathe_dims_free(struct lathe_dims **dims) {
    if (!dims || !*dims)
        return;
    struct lathe_dims *t = *dims;
    lathe_arena_free(&t->arena);
    free(t->exprs);
    free(t->atoms);
    free(t->symbols);
    free(t->expr_index.slots);
    free(t->atom_index.slots);
    free(t->symbol_index.slots);
    free(t);
    *dims = NULL;
}

static void *duplicate(const void *data, size_t count, size_t element, bool *failed) {
    void *copy = malloc((count + 1) * element);
    if (copy && count)
        memcpy(copy, data, count * element);
    *failed |= !copy;
    return copy;
}

struct lathe_dims *lathe_dims_clone(const struct lathe_dims *dims) {
    struct lathe_dims *t = malloc(sizeof *t);
    bool failed = false;
    if (!t)
        return NULL;
    *t = *dims; /* terms and names stay in the arena of the source, which never changes them */
    t->arena = lathe_arena_new();
    t->exprs = duplicate(dims->exprs, dims->expr_count, sizeof *t->exprs, &failed);
    t->atoms = duplicate(dims->atoms, dims->atom_count, sizeof *t->atoms, &failed);
    t->symbols = duplicate(dims->symbols, dims->symbol_count, sizeof *t->symbols, &failed);
    t->expr_capacity = t->expr_count;
    t->atom_capacity = t->atom_count;
    t->symbol_capacity = t->symbol_count;
    t->expr_index.slots = duplicate(dims->expr_index.slots, dims->expr_index.size, sizeof(struct dim_slot), &failed);
    t->atom_index.slots = duplicate(dims->atom_index.slots, dims->atom_index.size, sizeof(struct dim_slot), &failed);
    t->symbol_index.slots =
        duplicate(dims->symbol_index.slots, dims->symbol_index.size, sizeof(struct dim_slot), &failed);
    if (failed || !t->arena)
        lathe_dims_free(&t);
    return t;
}

/* ---- normal form */

/* Order of monomials: higher degree first, then by atoms; compatible with multiplication, so division terminates. */
static int compare_monomials(const struct dim_term *a, const struct dim_term *b) {
    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->atoms[i] != b->atoms[i])
            return a->atoms[i] < b->atoms[i] ? -1 : 1;
    return 0;
}

bool lathe_dim_sum_add(struct dim_sum *sum, const struct dim_term *term) {
    if (!term->factor)
        return true;
    uint32_t at = 0;
    while (at < sum->count) {
        int order = compare_monomials(&sum->terms[at], term);
        if (order > 0)
            break;
        if (order == 0) {
            int64_t factor;
            if (__builtin_add_overflow(sum->terms[at].factor, term->factor, &factor))
                return false;
            if (factor) {
                sum->terms[at].factor = factor;
            } else {
                sum->count--;
                memmove(&sum->terms[at], &sum->terms[at + 1], (sum->count - at) * sizeof *term);
            }
            return true;
        }
        at++;
    }
    if (sum->count == DIM_MAX_TERMS)
        return false;
    memmove(&sum->terms[at + 1], &sum->terms[at], (sum->count - at) * sizeof *term);
    sum->terms[at] = *term;
    sum->count++;
    return true;
}

lathe_dim lathe_dim_intern(struct lathe_dims *t, const struct dim_sum *sum) {
    /* Unused atom slots are zero in every term, so the bytes tell equality. */
    uint32_t hash = hash_words(sum->terms, sum->count * sizeof *sum->terms);
    struct dim_index *ix = &t->expr_index;
    uint32_t at = hash & (ix->size - 1);
    for (; ix->slots[at].id_plus_1; at = (at + 1) & (ix->size - 1)) {
        const struct dim_expr *e = &t->exprs[ix->slots[at].id_plus_1 - 1];
        if (ix->slots[at].hash == hash && e->count == sum->count &&
            !memcmp(e->terms, sum->terms, sum->count * sizeof *sum->terms))
            return ix->slots[at].id_plus_1 - 1;
    }
    void *exprs = t->exprs;
    if (t->expr_count == DIM_MAX_EXPRS || !grow(&exprs, t->expr_count, &t->expr_capacity, sizeof *t->exprs))
        return LATHE_DIM_NONE;
    t->exprs = exprs;
    const struct dim_term *terms = lathe_arena_copy(t->arena, sum->terms, sum->count * sizeof *sum->terms);
    if (!terms || !index_grow(ix, t->expr_count + 1))
        return LATHE_DIM_NONE;
    uint32_t depth = 0;
    for (uint32_t i = 0; i < sum->count; i++)
        for (uint32_t k = 0; k < terms[i].n; k++)
            if (t->atoms[terms[i].atoms[k]].depth > depth)
                depth = t->atoms[terms[i].atoms[k]].depth;
    lathe_dim id = t->expr_count++;
    t->exprs[id] = (struct dim_expr){
        .terms = terms, .count = sum->count, .depth = depth, .resolved = id, .resolved_at = t->generation};
    at = hash & (ix->size - 1);
    while (ix->slots[at].id_plus_1)
        at = (at + 1) & (ix->size - 1);
    ix->slots[at] = (struct dim_slot){hash, id + 1};
    return id;
}

/* The expression of one atom. */
static lathe_dim intern_atom(struct lathe_dims *t, enum lathe_dim_atom_kind kind, uint32_t symbol, lathe_dim a,
                             lathe_dim b) {
    uint32_t key[4] = {(uint32_t)kind, symbol, a, b};
    uint32_t hash = hash_words(key, sizeof key);
    struct dim_index *ix = &t->atom_index;
    uint32_t at = hash & (ix->size - 1), id = UINT32_MAX;
    for (; ix->slots[at].id_plus_1; at = (at + 1) & (ix->size - 1)) {
        const struct dim_atom *x = &t->atoms[ix->slots[at].id_plus_1 - 1];
        if (ix->slots[at].hash == hash && x->kind == kind && x->symbol == symbol && x->a == a && x->b == b) {
            id = ix->slots[at].id_plus_1 - 1;
            break;
        }
    }
    if (id == UINT32_MAX) {
        uint32_t depth = 0;
        if (kind != LATHE_ATOM_SYMBOL) {
            depth = 1 + (t->exprs[a].depth > t->exprs[b].depth ? t->exprs[a].depth : t->exprs[b].depth);
            if (depth > DIM_MAX_DEPTH)
                return LATHE_DIM_NONE;
        }
        void *atoms = t->atoms;
        if (!grow(&atoms, t->atom_count, &t->atom_capacity, sizeof *t->atoms))
            return LATHE_DIM_NONE;
        t->atoms = atoms;
        if (!index_grow(ix, t->atom_count + 1))
            return LATHE_DIM_NONE;
        id = t->atom_count++;
        t->atoms[id] = (struct dim_atom){kind, symbol, a, b, depth};
        at = hash & (ix->size - 1);
        while (ix->slots[at].id_plus_1)
            at = (at + 1) & (ix->size - 1);
        ix->slots[at] = (struct dim_slot){hash, id + 1};
    }
    struct dim_sum sum;
    sum.count = 1;
    sum.terms[0] = (struct dim_term){.factor = 1, .n = 1, .atoms = {id}};
    return lathe_dim_intern(t, &sum);
}

lathe_dim lathe_dim_const(struct lathe_dims *t, int64_t value) {
    struct dim_sum sum;
    sum.count = value != 0;
    sum.terms[0] = (struct dim_term){.factor = value};
    return lathe_dim_intern(t, &sum);
}

bool lathe_dim_is_const(const struct lathe_dims *t, lathe_dim d, int64_t *value) {
    d = lathe_dim_resolve(t, d);
    if (d == LATHE_DIM_NONE)
        return false;
    const struct dim_expr *e = &t->exprs[d];
    if (e->count > 1 || (e->count == 1 && e->terms[0].n))
        return false;
    if (value)
        *value = e->count ? e->terms[0].factor : 0;
    return true;
}

/* ---- symbols */

lathe_dim lathe_dim_symbol(struct lathe_dims *t, const char *name, int64_t min, int64_t max) {
    uint32_t hash = hash_words(name, strlen(name));
    struct dim_index *ix = &t->symbol_index;
    uint32_t at = hash & (ix->size - 1);
    for (; ix->slots[at].id_plus_1; at = (at + 1) & (ix->size - 1))
        if (ix->slots[at].hash == hash && !strcmp(t->symbols[ix->slots[at].id_plus_1 - 1].name, name))
            return lathe_dims_symbol_at(t, ix->slots[at].id_plus_1 - 1);
    void *symbols = t->symbols;
    if (!grow(&symbols, t->symbol_count, &t->symbol_capacity, sizeof *t->symbols))
        return LATHE_DIM_NONE;
    t->symbols = symbols;
    char *copy = lathe_arena_string(t->arena, name);
    if (!copy || !index_grow(ix, t->symbol_count + 1))
        return LATHE_DIM_NONE;
    uint32_t id = t->symbol_count++;
    t->symbols[id] = (struct dim_symbol){copy, min, max, LATHE_DIM_NONE, LATHE_DIM_NONE};
    at = hash & (ix->size - 1);
    while (ix->slots[at].id_plus_1)
        at = (at + 1) & (ix->size - 1);
    ix->slots[at] = (struct dim_slot){hash, id + 1};
    t->symbols[id].self = intern_atom(t, LATHE_ATOM_SYMBOL, id, 0, 0);
    return t->symbols[id].self;
}

uint32_t lathe_dims_symbol_count(const struct lathe_dims *t) {
    return t->symbol_count;
}

lathe_dim lathe_dims_symbol_at(const struct lathe_dims *t, uint32_t index) {
    return lathe_dim_resolve(t, t->symbols[index].self);
}

const char *lathe_dims_symbol_name(const struct lathe_dims *t, uint32_t index) {
    return t->symbols[index].name;
}

void lathe_dims_symbol_bound(struct lathe_dims *t, uint32_t index, int64_t min, int64_t max) {
    struct dim_symbol *s = &t->symbols[index];
    if (min <= s->min && max >= s->max)
        return;
    if (min > s->min)
        s->min = min;
    if (max < s->max)
        s->max = max;
    t->generation++; /* what was opaque may fold now */
}

bool lathe_dim_depends_on(const struct lathe_dims *t, lathe_dim d, uint32_t symbol) {
    const struct dim_expr *e = &t->exprs[d];
    for (uint32_t i = 0; i < e->count; i++)
        for (uint32_t k = 0; k < e->terms[i].n; k++) {
            const struct dim_atom *x = &t->atoms[e->terms[i].atoms[k]];
            if (x->kind == LATHE_ATOM_SYMBOL
                    ? x->symbol == symbol
                    : lathe_dim_depends_on(t, x->a, symbol) || lathe_dim_depends_on(t, x->b, symbol))
                return true;
        }
    return false;
}

void lathe_dims_substitute(struct lathe_dims *t, uint32_t symbol_index, lathe_dim with) {
    with = lathe_dim_resolve(t, with);
    struct dim_symbol *s = &t->symbols[symbol_index];
    if (with == LATHE_DIM_NONE || s->with != LATHE_DIM_NONE || lathe_dim_depends_on(t, with, symbol_index))
        return;
    const struct dim_expr *e = &t->exprs[with];
    if (e->count == 1 && e->terms[0].n == 1 && e->terms[0].factor == 1 &&
        t->atoms[e->terms[0].atoms[0]].kind == LATHE_ATOM_SYMBOL)
        lathe_dims_symbol_bound(t, t->atoms[e->terms[0].atoms[0]].symbol, s->min, s->max);
    s->with = with;
    t->generation++;
}

static lathe_dim rebuild(struct lathe_dims *t, lathe_dim d) {
    lathe_dim sum = lathe_dim_const(t, 0);
    for (uint32_t i = 0; i < t->exprs[d].count && sum != LATHE_DIM_NONE; i++) {
        struct dim_term term = t->exprs[d].terms[i];
        lathe_dim product = lathe_dim_const(t, term.factor);
        for (uint32_t k = 0; k < term.n && product != LATHE_DIM_NONE; k++) {
            struct dim_atom x = t->atoms[term.atoms[k]];
            lathe_dim value = LATHE_DIM_NONE;
            switch (x.kind) {
            case LATHE_ATOM_SYMBOL:
                value = t->symbols[x.symbol].with == LATHE_DIM_NONE ? t->symbols[x.symbol].self
                                                                    : lathe_dim_resolve(t, t->symbols[x.symbol].with);
                break;
            case LATHE_ATOM_FLOORDIV:
                value = lathe_dim_floordiv(t, x.a, x.b);
                break;
            case LATHE_ATOM_MOD:
                value = lathe_dim_mod(t, x.a, x.b);
                break;
            case LATHE_ATOM_MIN:
                value = lathe_dim_min(t, x.a, x.b);
                break;
            case LATHE_ATOM_MAX:
                value = lathe_dim_max(t, x.a, x.b);
                break;
            }
            product = lathe_dim_mul_resolved(t, product, value);
        }
        sum = lathe_dim_add_resolved(t, sum, product, 1);
    }
    return sum;
}

lathe_dim lathe_dim_resolve(const struct lathe_dims *table, lathe_dim d) {
    /* The table is a cache here: the value of an expression does not change, only what is known about it. */
    struct lathe_dims *t = (struct lathe_dims *)table;
    if (d >= t->expr_count)
        return LATHE_DIM_NONE;
    if (t->exprs[d].resolved_at == t->generation)
        return t->exprs[d].resolved;
    t->exprs[d].resolved_at = t->generation; /* a symbol that stands for itself ends here */
    t->exprs[d].resolved = d;
    lathe_dim result = rebuild(t, d);
    t->exprs[d].resolved = result;
    t->exprs[d].resolved_at = t->generation;
    return result;
}

/* ---- arithmetic on resolved operands */

lathe_dim lathe_dim_add_resolved(struct lathe_dims *t, lathe_dim a, lathe_dim b, int64_t factor_b) {
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return LATHE_DIM_NONE;
    struct dim_sum sum;
    sum.count = t->exprs[a].count;
    memcpy(sum.terms, t->exprs[a].terms, sum.count * sizeof *sum.terms);
    for (uint32_t i = 0; i < t->exprs[b].count; i++) {
        struct dim_term term = t->exprs[b].terms[i];
        if (__builtin_mul_overflow(term.factor, factor_b, &term.factor) || !lathe_dim_sum_add(&sum, &term))
            return LATHE_DIM_NONE;
    }
    return lathe_dim_intern(t, &sum);
}

static bool multiply_terms(const struct dim_term *a, const struct dim_term *b, struct dim_term *out) {
    *out = (struct dim_term){0};
    if (a->n + b->n > LATHE_DIM_MAX_FACTORS || __builtin_mul_overflow(a->factor, b->factor, &out->factor))
        return false;
    out->n = a->n + b->n;
    for (uint32_t i = 0, k = 0, at = 0; at < out->n; at++)
        out->atoms[at] = k == b->n || (i < a->n && a->atoms[i] <= b->atoms[k]) ? a->atoms[i++] : b->atoms[k++];
    return true;
}

lathe_dim lathe_dim_mul_resolved(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return LATHE_DIM_NONE;
    struct dim_sum sum = {.count = 0};
    for (uint32_t i = 0; i < t->exprs[a].count; i++)
        for (uint32_t k = 0; k < t->exprs[b].count; k++) {
            struct dim_term term;
            if (!multiply_terms(&t->exprs[a].terms[i], &t->exprs[b].terms[k], &term) || !lathe_dim_sum_add(&sum, &term))
                return LATHE_DIM_NONE;
        }
    return lathe_dim_intern(t, &sum);
}

bool lathe_dim_divide_term(const struct dim_term *a, const struct dim_term *b, struct dim_term *out) {
    *out = (struct dim_term){0};
    if (!b->factor || (a->factor == INT64_MIN && b->factor == -1) || a->factor % b->factor)
        return false;
    out->factor = a->factor / b->factor;
    uint32_t k = 0;
    for (uint32_t i = 0; i < a->n && i < LATHE_DIM_MAX_FACTORS; i++) { /* the second bound is for the compiler */
        if (k < b->n && a->atoms[i] == b->atoms[k])
            k++;
        else
            out->atoms[out->n++] = a->atoms[i];
    }
    return k == b->n;
}

/* Splits a = quotient * b + rest, taking whole terms of a that the leading term of b divides. */
static bool divide(struct lathe_dims *t, lathe_dim a, lathe_dim b, lathe_dim *quotient, lathe_dim *rest) {
    lathe_dim q = lathe_dim_const(t, 0), r = q;
    for (int steps = 0; a != LATHE_DIM_NONE && t->exprs[a].count; steps++) {
        if (steps > DIM_MAX_TERMS)
            return false;
        struct dim_sum one = {.count = 1};
        const struct dim_term lead = t->exprs[a].terms[0], by = t->exprs[b].terms[0];
        if (lathe_dim_divide_term(&lead, &by, &one.terms[0])) {
            lathe_dim part = lathe_dim_intern(t, &one);
            q = lathe_dim_add_resolved(t, q, part, 1);
            a = lathe_dim_add_resolved(t, a, lathe_dim_mul_resolved(t, part, b), -1);
        } else {
            one.terms[0] = lead;
            lathe_dim part = lathe_dim_intern(t, &one);
            r = lathe_dim_add_resolved(t, r, part, 1);
            a = lathe_dim_add_resolved(t, a, part, -1);
        }
    }
    *quotient = q;
    *rest = r;
    return a != LATHE_DIM_NONE && q != LATHE_DIM_NONE && r != LATHE_DIM_NONE;
}

/* A term without one of its atoms, with another factor. */
static lathe_dim term_without(struct lathe_dims *t, const struct dim_term *term, uint32_t atom, int64_t factor) {
    struct dim_sum rest = {.count = 1, .terms[0] = *term};
    rest.terms[0].factor = factor;
    rest.terms[0].n--;
    for (uint32_t i = atom; i < rest.terms[0].n; i++)
        rest.terms[0].atoms[i] = term->atoms[i + 1];
    return lathe_dim_intern(t, &rest);
}

static bool has_term(const struct lathe_dims *t, lathe_dim d, const struct dim_term *term) {
    for (uint32_t i = 0; i < t->exprs[d].count; i++)
        if (t->exprs[d].terms[i].factor == term->factor && !compare_monomials(&t->exprs[d].terms[i], term))
            return true;
    return false;
}

/* c * floordiv(x, c) + mod(x, c) is x: whole blocks and what is left over. */
static lathe_dim undo_rests(struct lathe_dims *t, lathe_dim d) {
    for (uint32_t i = 0; d != LATHE_DIM_NONE && i < t->exprs[d].count; i++) {
        struct dim_sum old = {.count = 1, .terms[0] = t->exprs[d].terms[i]};
        const struct dim_term term = old.terms[0];
        for (uint32_t k = 0; k < term.n; k++) {
            const struct dim_atom x = t->atoms[term.atoms[k]];
            if (x.kind != LATHE_ATOM_MOD)
                continue;
            lathe_dim rest = term_without(t, &term, k, term.factor), c = lathe_dim_resolve(t, x.b);
            lathe_dim blocks = lathe_dim_mul_resolved(t, lathe_dim_mul_resolved(t, rest, c),
                                                      intern_atom(t, LATHE_ATOM_FLOORDIV, 0, x.a, x.b));
            if (blocks == LATHE_DIM_NONE || t->exprs[blocks].count != 1 || !has_term(t, d, &t->exprs[blocks].terms[0]))
                continue;
            d = lathe_dim_add_resolved(t, lathe_dim_add_resolved(t, d, blocks, -1), lathe_dim_intern(t, &old), -1);
            return undo_rests(
                t, lathe_dim_add_resolved(t, d, lathe_dim_mul_resolved(t, rest, lathe_dim_resolve(t, x.a)), 1));
        }
    }
    return d;
}

lathe_dim lathe_dim_add(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    return undo_rests(t, lathe_dim_add_resolved(t, lathe_dim_resolve(t, a), lathe_dim_resolve(t, b), 1));
}

lathe_dim lathe_dim_sub(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    return undo_rests(t, lathe_dim_add_resolved(t, lathe_dim_resolve(t, a), lathe_dim_resolve(t, b), -1));
}

/* Is d a multiple of c, whatever its symbols are? A rest mod(x, m), m a multiple of c, leaves the same rest as x. */
static bool is_multiple(struct lathe_dims *t, lathe_dim d, int64_t c) {
    lathe_dim sum = lathe_dim_const(t, 0);
    for (uint32_t i = 0; sum != LATHE_DIM_NONE && i < t->exprs[d].count; i++) {
        struct dim_sum one = {.count = 1, .terms[0] = t->exprs[d].terms[i]};
        struct dim_atom x = one.terms[0].n == 1 ? t->atoms[one.terms[0].atoms[0]] : (struct dim_atom){0};
        int64_t m;
        if (one.terms[0].n == 1 && x.kind == LATHE_ATOM_MOD && lathe_dim_is_const(t, x.b, &m) && m % c == 0)
            sum = lathe_dim_add_resolved(t, sum, lathe_dim_resolve(t, x.a), one.terms[0].factor);
        else
            sum = lathe_dim_add_resolved(t, sum, lathe_dim_intern(t, &one), 1);
    }
    for (uint32_t i = 0; sum != LATHE_DIM_NONE && i < t->exprs[sum].count; i++)
        if (t->exprs[sum].terms[i].factor % c)
            return false;
    return sum != LATHE_DIM_NONE;
}

/* c * floordiv(x, c) is x where c divides x: blocks of a length that was padded to whole ones. */
static lathe_dim undo_divisions(struct lathe_dims *t, lathe_dim d) {
    for (uint32_t i = 0; d != LATHE_DIM_NONE && i < t->exprs[d].count; i++) {
        const struct dim_term term = t->exprs[d].terms[i];
        for (uint32_t k = 0; k < term.n; k++) {
            const struct dim_atom x = t->atoms[term.atoms[k]];
            int64_t c;
            if (x.kind != LATHE_ATOM_FLOORDIV || !lathe_dim_is_const(t, x.b, &c) || c < 2 || term.factor % c)
                continue;
            lathe_dim whole = lathe_dim_resolve(t, x.a);
            if (whole == LATHE_DIM_NONE || !is_multiple(t, whole, c))
                continue;
            struct dim_sum old = {.count = 1, .terms[0] = term};
            lathe_dim with = lathe_dim_mul_resolved(t, term_without(t, &term, k, term.factor / c), whole);
            d = lathe_dim_add_resolved(t, lathe_dim_add_resolved(t, d, lathe_dim_intern(t, &old), -1), with, 1);
            return undo_divisions(t, d);
        }
    }
    return d;
}

lathe_dim lathe_dim_mul(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    return undo_divisions(t, lathe_dim_mul_resolved(t, lathe_dim_resolve(t, a), lathe_dim_resolve(t, b)));
}

lathe_dim lathe_dim_div_exact(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    lathe_dim q, r;
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE || !t->exprs[b].count || !divide(t, a, b, &q, &r) ||
        t->exprs[r].count)
        return LATHE_DIM_NONE;
    return q;
}

static int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static uint64_t magnitude(int64_t x) {
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

/* The largest constant that divides all factors of a and b. */
static int64_t common_factor(const struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    uint64_t g = 0;
    for (int which = 0; which < 2; which++) {
        const struct dim_expr *e = &t->exprs[which ? b : a];
        for (uint32_t i = 0; i < e->count; i++)
            for (uint64_t x = magnitude(e->terms[i].factor); x;) {
                uint64_t rest = g % x;
                g = x;
                x = rest;
            }
    }
    return g > INT64_MAX ? 1 : (int64_t)g;
}

/* a and b with common constant and atom factors taken out; the factor taken out is returned (1: nothing). Only factors
 * that are proved positive are taken. */
static lathe_dim reduce_fraction(struct lathe_dims *t, lathe_dim *a, lathe_dim *b) {
    struct dim_sum common = {.count = 1};
    common.terms[0] = (struct dim_term){.factor = common_factor(t, *a, *b)};
    const struct dim_term *first = &t->exprs[*b].terms[0];
    for (uint32_t k = 0; k < first->n; k++) {
        struct dim_sum with = common;
        with.terms[0].atoms[with.terms[0].n++] = first->atoms[k];
        bool all = true;
        for (int which = 0; which < 2 && all; which++) {
            const struct dim_expr *e = &t->exprs[which ? *b : *a];
            struct dim_term unused;
            for (uint32_t i = 0; i < e->count && all; i++)
                all = lathe_dim_divide_term(&e->terms[i], &with.terms[0], &unused);
        }
        if (all && lathe_dim_lower(t, lathe_dim_intern(t, &with)) >= 1)
            common = with;
        first = &t->exprs[*b].terms[0];
    }
    lathe_dim g = lathe_dim_intern(t, &common), qa, qb, ra, rb;
    if (g == LATHE_DIM_NONE || !divide(t, *a, g, &qa, &ra) || !divide(t, *b, g, &qb, &rb) || t->exprs[ra].count ||
        t->exprs[rb].count)
        return lathe_dim_const(t, 1);
    *a = qa;
    *b = qb;
    return g;
}

lathe_dim lathe_dim_floordiv(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    int64_t va = 0, vb = 0;
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE || !t->exprs[b].count)
        return LATHE_DIM_NONE;
    bool const_b = lathe_dim_is_const(t, b, &vb);
    if (const_b && lathe_dim_is_const(t, a, &va))
        return vb == -1 && va == INT64_MIN ? LATHE_DIM_NONE : lathe_dim_const(t, floor_div(va, vb));
    if (const_b && vb < 0)
        return vb == INT64_MIN
                   ? LATHE_DIM_NONE
                   : lathe_dim_floordiv(t, lathe_dim_sub(t, lathe_dim_const(t, 0), a), lathe_dim_const(t, -vb));
    lathe_dim q, r;
    if (!divide(t, a, b, &q, &r))
        return LATHE_DIM_NONE;
    if (!t->exprs[r].count)
        return q;
    bool positive = lathe_dim_lower(t, b) >= 1;
    if (positive && const_b) {
        /* Whole multiples of b inside a constant rest: (b*x + 7) / b with 7 >= b. */
        struct dim_sum multiples = {.count = 0};
        for (uint32_t i = 0; i < t->exprs[r].count; i++) {
            struct dim_term term = t->exprs[r].terms[i];
            term.factor = floor_div(term.factor, vb);
            if (!lathe_dim_sum_add(&multiples, &term))
                return LATHE_DIM_NONE;
        }
        lathe_dim m = lathe_dim_intern(t, &multiples);
        q = lathe_dim_add_resolved(t, q, m, 1);
        r = lathe_dim_add_resolved(t, r, m, -vb);
        if (q == LATHE_DIM_NONE || r == LATHE_DIM_NONE)
            return LATHE_DIM_NONE;
    }
    if (!t->exprs[r].count || (positive && lathe_dim_lower(t, r) >= 0 && lathe_dim_proved_lt(t, r, b)))
        return q;
    if (positive && lathe_dim_upper(t, r) < 0 && lathe_dim_lower(t, lathe_dim_add_resolved(t, r, b, 1)) >= 0)
        return lathe_dim_sub(t, q, lathe_dim_const(t, 1));
    if (positive)
        reduce_fraction(t, &r, &b);
    /* floor(floor(x / c) / b) = floor(x / (c * b)) */
    const struct dim_expr *e = &t->exprs[r];
    if (positive && e->count == 1 && e->terms[0].factor == 1 && e->terms[0].n == 1) {
        struct dim_atom x = t->atoms[e->terms[0].atoms[0]];
        if (x.kind == LATHE_ATOM_FLOORDIV && lathe_dim_lower(t, x.b) >= 1) {
            lathe_dim inner = lathe_dim_mul_resolved(t, x.b, b);
            if (inner != LATHE_DIM_NONE)
                return lathe_dim_add(t, q, lathe_dim_floordiv(t, x.a, inner));
        }
    }
    int64_t one;
    if (lathe_dim_is_const(t, b, &one) && one == 1)
        return lathe_dim_add_resolved(t, q, r, 1);
    return lathe_dim_add_resolved(t, q, intern_atom(t, LATHE_ATOM_FLOORDIV, 0, r, b), 1);
}

lathe_dim lathe_dim_mod(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    int64_t va = 0, vb = 0;
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE || !t->exprs[b].count)
        return LATHE_DIM_NONE;
    bool const_b = lathe_dim_is_const(t, b, &vb);
    if (const_b && (vb == 1 || vb == -1))
        return lathe_dim_const(t, 0);
    if (const_b && lathe_dim_is_const(t, a, &va)) {
        int64_t r = va % vb;
        return lathe_dim_const(t, r && (r < 0) != (vb < 0) ? r + vb : r);
    }
    if (const_b && vb < 0)
        return intern_atom(t, LATHE_ATOM_MOD, 0, a, b);
    lathe_dim q, r;
    if (!divide(t, a, b, &q, &r))
        return LATHE_DIM_NONE;
    if (const_b) {
        struct dim_sum rest = {.count = 0};
        for (uint32_t i = 0; i < t->exprs[r].count; i++) {
            struct dim_term term = t->exprs[r].terms[i];
            term.factor -= floor_div(term.factor, vb) * vb;
            if (!lathe_dim_sum_add(&rest, &term))
                return LATHE_DIM_NONE;
        }
        r = lathe_dim_intern(t, &rest);
        if (r == LATHE_DIM_NONE)
            return r;
    }
    if (!t->exprs[r].count)
        return r;
    if (lathe_dim_lower(t, b) < 1)
        return intern_atom(t, LATHE_ATOM_MOD, 0, r, b);
    if (lathe_dim_lower(t, r) >= 0 && lathe_dim_proved_lt(t, r, b))
        return r;
    if (lathe_dim_upper(t, r) < 0 && lathe_dim_lower(t, lathe_dim_add_resolved(t, r, b, 1)) >= 0)
        return lathe_dim_add_resolved(t, r, b, 1);
    lathe_dim scale = reduce_fraction(t, &r, &b);
    if (lathe_dim_is_const(t, b, &vb) && vb == 1)
        return lathe_dim_const(t, 0);
    return lathe_dim_mul_resolved(t, scale, intern_atom(t, LATHE_ATOM_MOD, 0, r, b));
}

/* True when d is exactly one MIN or MAX atom of that kind that has `x` as operand. */
static bool is_extreme_with(const struct lathe_dims *t, lathe_dim d, enum lathe_dim_atom_kind kind, lathe_dim x) {
    const struct dim_expr *e = &t->exprs[d];
    if (e->count != 1 || e->terms[0].n != 1 || e->terms[0].factor != 1)
        return false;
    const struct dim_atom *atom = &t->atoms[e->terms[0].atoms[0]];
    return atom->kind == kind && (atom->a == x || atom->b == x);
}

static lathe_dim extreme(struct lathe_dims *t, enum lathe_dim_atom_kind kind, lathe_dim a, lathe_dim b) {
    a = lathe_dim_resolve(t, a);
    b = lathe_dim_resolve(t, b);
    if (a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return LATHE_DIM_NONE;
    if (a == b || is_extreme_with(t, a, kind, b))
        return a;
    if (is_extreme_with(t, b, kind, a))
        return b;
    bool min = kind == LATHE_ATOM_MIN;
    if (lathe_dim_proved_le(t, a, b))
        return min ? a : b;
    if (lathe_dim_proved_le(t, b, a))
        return min ? b : a;
    return a < b ? intern_atom(t, kind, 0, a, b) : intern_atom(t, kind, 0, b, a);
}

lathe_dim lathe_dim_min(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    return extreme(t, LATHE_ATOM_MIN, a, b);
}
lathe_dim lathe_dim_max(struct lathe_dims *t, lathe_dim a, lathe_dim b) {
    return extreme(t, LATHE_ATOM_MAX, a, b);
}

/* ---- structure */

uint32_t lathe_dim_term_count(const struct lathe_dims *t, lathe_dim d) {
    d = lathe_dim_resolve(t, d);
    return d == LATHE_DIM_NONE ? 0 : t->exprs[d].count;
}

void lathe_dim_term_at(const struct lathe_dims *t, lathe_dim d, uint32_t index, struct lathe_dim_term *out) {
    const struct dim_term *term = &t->exprs[lathe_dim_resolve(t, d)].terms[index];
    *out = (struct lathe_dim_term){.factor = term->factor, .atom_count = term->n};
    for (uint32_t i = 0; i < term->n; i++) {
        const struct dim_atom *x = &t->atoms[term->atoms[i]];
        out->atoms[i] = (struct lathe_dim_atom){x->kind, x->symbol, x->a, x->b};
    }
}

int64_t lathe_dim_plain_symbol(const struct lathe_dims *t, lathe_dim d) {
    struct lathe_dim_term term;
    if (d == LATHE_DIM_NONE || lathe_dim_term_count(t, d) != 1)
        return -1;
    lathe_dim_term_at(t, d, 0, &term);
    bool plain = term.factor == 1 && term.atom_count == 1 && term.atoms[0].kind == LATHE_ATOM_SYMBOL;
    return plain ? (int64_t)term.atoms[0].symbol : -1;
}

bool lathe_dim_eval(const struct lathe_dims *t, lathe_dim d, const int64_t *symbol_values, int64_t *out) {
    d = lathe_dim_resolve(t, d);
    if (d == LATHE_DIM_NONE)
        return false;
    int64_t sum = 0;
    for (uint32_t i = 0; i < t->exprs[d].count; i++) {
        const struct dim_term *term = &t->exprs[d].terms[i];
        int64_t product = term->factor;
        for (uint32_t k = 0; k < term->n; k++) {
            struct dim_atom x = t->atoms[term->atoms[k]];
            int64_t a = 0, b = 0, value;
            if (x.kind == LATHE_ATOM_SYMBOL) {
                value = symbol_values[x.symbol];
            } else {
                if (!lathe_dim_eval(t, x.a, symbol_values, &a) || !lathe_dim_eval(t, x.b, symbol_values, &b))
                    return false;
                bool divides = x.kind == LATHE_ATOM_FLOORDIV || x.kind == LATHE_ATOM_MOD;
                if (divides && (!b || (b == -1 && a == INT64_MIN)))
                    return false;
                value = x.kind == LATHE_ATOM_MIN ? (a < b ? a : b) : (a > b ? a : b);
                if (x.kind == LATHE_ATOM_FLOORDIV)
                    value = floor_div(a, b);
                if (x.kind == LATHE_ATOM_MOD)
                    value = a - floor_div(a, b) * b;
            }
            if (__builtin_mul_overflow(product, value, &product))
                return false;
        }
        if (__builtin_add_overflow(sum, product, &sum))
            return false;
    }
    *out = sum;
    return true;
}
