/* Sizes: which symbol is the batch, which a sequence, where the runtime finds each, how large each may be; and the
 * expressions over them as a table in evaluation order. */
#include "lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void find_inputs(struct lathe_lowered *l) {
    struct lathe_graph *g = l->graph;
    /* inputs that must be bound first: the ones with a default follow in a second round */
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < g->input_count; i++) {
            const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
            if ((l->inputs[i].default_kind != LATHE_DEFAULT_NONE) != (round == 1))
                continue;
            for (int axis = 0; axis < v->rank; axis++) {
                int64_t s = lathe_dim_plain_symbol(g->dims, lathe_dim_resolve(g->dims, v->dims[axis]));
                if (s < 0)
                    continue;
                struct lathe_symbol_facts *f = &l->symbol_facts[s];
                if (f->source == UINT32_MAX) {
                    f->source = LATHE_SYMBOL_INPUT;
                    f->index = i;
                    f->axis = (uint32_t)axis;
                }
                if (axis == 0 && f->role == LATHE_ROLE_NONE && v->rank > 1)
                    f->role = LATHE_ROLE_BATCH;
                else if (axis > 0 && f->role == LATHE_ROLE_NONE && axis == lathe_input_sequence_axis(g, g->inputs[i]))
                    f->role = LATHE_ROLE_SEQUENCE;
            }
        }
}

/* The symbol of a row map is the first size of what is packed with it. */
static void find_row_maps(struct lathe_lowered *l) {
    struct lathe_graph *g = l->graph;
    lathe_node_id only_map = LATHE_NONE;
    unsigned maps = 0;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = lathe_node_at(g, n);
        if (node->op == LATHE_OP_ROW_MAP) {
            only_map = n;
            maps++;
        }
        for (uint32_t i = 0; i < node->n_in; i++) {
            lathe_node_id map = lathe_producer_of(g, node->in[i], LATHE_OP_ROW_MAP);
            if (map == LATHE_NONE)
                continue;
            lathe_value_id packed =
                node->op == LATHE_OP_PACK_ROWS || node->op == LATHE_OP_ATTENTION_ROWS ? node->out[0] : node->in[0];
            if (packed == LATHE_NONE || lathe_value_at(g, packed)->rank < 1)
                continue;
            int64_t s = lathe_dim_plain_symbol(g->dims, lathe_value_dim(g, packed, 0));
            if (s >= 0 && l->symbol_facts[s].source == UINT32_MAX) {
                l->symbol_facts[s].source = LATHE_SYMBOL_ROWS;
                l->symbol_facts[s].row_map = map;
            }
        }
    }
    for (uint32_t i = 0; i < l->symbol_fact_count; i++) {
        struct lathe_symbol_facts *f = &l->symbol_facts[i];
        if (f->source == UINT32_MAX && maps == 1 && strcmp(lathe_dims_symbol_name(g->dims, i), "rows") == 0) {
            f->source = LATHE_SYMBOL_ROWS;
            f->row_map = only_map;
        }
        if (f->source == LATHE_SYMBOL_ROWS)
            f->role = LATHE_ROLE_ROWS;
    }
}

static int64_t first_positive(int64_t a, int64_t b, int64_t c) {
    return a > 0 ? a : b > 0 ? b : c;
}

static enum lathe_status set_limit(struct lathe_lowered *l, uint32_t i) {
    struct lathe_graph *g = l->graph;
    struct lathe_symbol_facts *f = &l->symbol_facts[i];
    lathe_dim d = lathe_dims_symbol_at(g->dims, i);
    int64_t low = lathe_dim_lower(g->dims, d), high = lathe_dim_upper(g->dims, d);
    const char *name = lathe_dims_symbol_name(g->dims, i);
    bool batch = f->role == LATHE_ROLE_BATCH, seq = f->role == LATHE_ROLE_SEQUENCE;
    int64_t asked = batch ? l->options->max_batch : seq ? l->options->max_seq : 0;
    int64_t target = !l->options->target ? 0
                     : batch             ? l->options->target->max_batch
                     : seq               ? l->options->target->max_seq
                                         : 0;
    f->min = low > 0 ? low : 0;
    if (asked > 0 && (asked > high || asked < f->min))
        return lathe_fail(l->diag, LATHE_MSG_LIMIT_BELOW_SOURCE,
                          "%s: a maximum of %lld was asked for, the graph allows %lld to %lld", name, (long long)asked,
                          (long long)f->min, (long long)high);
    /* a bound of the graph such as a position table is a limit; one as wide as a number type is none */
    int64_t graph = high < (INT64_C(1) << 30) ? high : 0;
    struct lathe_default_limits *defaults = &l->defaults;
    f->max = first_positive(asked, target, graph);
    if (f->max == 0) {
        *(batch ? &defaults->used_batch : seq ? &defaults->used_seq : &defaults->used_other) = true;
        f->max = batch ? defaults->batch : seq ? defaults->seq : defaults->other;
    }
    if (f->max > high)
        f->max = high;
    if (f->max < f->min)
        f->max = f->min;
    return LATHE_OK;
}

static enum lathe_status set_rows_limit(struct lathe_lowered *l, struct lathe_symbol_facts *f) {
    struct lathe_graph *g = l->graph;
    const struct lathe_node *map = lathe_node_at(g, f->row_map);
    const struct lathe_value *keys = lathe_value_at(g, map->in[0]);
    int64_t rows = 1;
    for (int axis = 0; axis < keys->rank; axis++) {
        uint32_t dim;
        LATHE_TRY(lathe_lower_dim(l, keys->dims[axis], map->name, &dim));
        if (l->dim_high[dim] == INT64_MAX || l->dim_high[dim] < 0 || !lathe_mul_i64(rows, l->dim_high[dim], &rows))
            return lathe_fail(l->diag, LATHE_MSG_LOWER_LIMIT, "node '%s': the number of rows has no bound", map->name);
    }
    f->min = 0;
    f->max = rows;
    return LATHE_OK;
}

/* What the manifest states: the limit of the symbol, or the fixed size, of the first input that has such an axis. */
static void set_manifest_limits(struct lathe_lowered *l) {
    struct lathe_graph *g = l->graph;
    l->max_batch = l->max_seq = 0;
    for (uint32_t i = 0; i < l->symbol_fact_count; i++) {
        const struct lathe_symbol_facts *f = &l->symbol_facts[i];
        if (f->role == LATHE_ROLE_BATCH && f->source == LATHE_SYMBOL_INPUT && l->max_batch == 0)
            l->max_batch = f->max;
        if (f->role == LATHE_ROLE_SEQUENCE && f->source == LATHE_SYMBOL_INPUT && l->max_seq == 0)
            l->max_seq = f->max;
    }
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
        int64_t size;
        if (v->rank < 2 || v->rank > 3)
            continue;
        if (l->max_batch == 0 && lathe_value_dim_is(g, g->inputs[i], 0, &size))
            l->max_batch = size;
        if (l->max_seq == 0 && lathe_value_dim_is(g, g->inputs[i], 1, &size))
            l->max_seq = size;
    }
}

enum lathe_status lathe_lower_symbols(struct lathe_lowered *l) {
    struct lathe_graph *g = l->graph;
    l->symbol_fact_count = lathe_dims_symbol_count(g->dims);
    l->symbol_facts = lathe_arena_alloc_array(l->arena, (size_t)l->symbol_fact_count + 1, sizeof *l->symbol_facts);
    if (!l->symbol_facts)
        return lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
    for (uint32_t i = 0; i < l->symbol_fact_count; i++)
        l->symbol_facts[i] =
            (struct lathe_symbol_facts){.plan_index = UINT32_MAX, .source = UINT32_MAX, .row_map = LATHE_NONE};
    find_inputs(l);
    find_row_maps(l);
    for (uint32_t i = 0; i < l->symbol_fact_count; i++)
        if (l->symbol_facts[i].source == LATHE_SYMBOL_INPUT)
            LATHE_TRY(set_limit(l, i));
    for (uint32_t i = 0; i < l->symbol_fact_count; i++)
        if (l->symbol_facts[i].source == LATHE_SYMBOL_ROWS)
            LATHE_TRY(set_rows_limit(l, &l->symbol_facts[i]));
    set_manifest_limits(l);
    return LATHE_OK;
}

/* ---- expressions */

static int64_t saturate_add(int64_t a, int64_t b) {
    int64_t r;
    if (a == INT64_MAX || b == INT64_MAX)
        return INT64_MAX;
    if (a == INT64_MIN || b == INT64_MIN)
        return INT64_MIN;
    return __builtin_add_overflow(a, b, &r) ? (a > 0 ? INT64_MAX : INT64_MIN) : r;
}

static int64_t negate(int64_t a) {
    return a == INT64_MIN ? INT64_MAX : a == INT64_MAX ? INT64_MIN : -a;
}

static int64_t saturate_mul(int64_t a, int64_t b) {
    int64_t r;
    if (a == 0 || b == 0)
        return 0;
    bool infinite = a == INT64_MAX || b == INT64_MAX || a == INT64_MIN || b == INT64_MIN;
    return infinite || __builtin_mul_overflow(a, b, &r) ? ((a > 0) == (b > 0) ? INT64_MAX : INT64_MIN) : r;
}

static int64_t floor_div(int64_t a, int64_t b) {
    return a == INT64_MAX || a == INT64_MIN ? a : a / b - (a % b < 0);
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Bounds of a new entry from those of its operands. */
static void bounds(const struct lathe_lowered *l, const struct lathe_fmt_dim *d, int64_t *low, int64_t *high) {
    int64_t al = l->dim_low[d->a], ah = l->dim_high[d->a], bl = l->dim_low[d->b], bh = l->dim_high[d->b];
    switch (d->op) {
    case LATHE_DIM_ADD:
        *low = saturate_add(al, bl);
        *high = saturate_add(ah, bh);
        break;
    case LATHE_DIM_SUB:
        *low = saturate_add(al, negate(bh));
        *high = saturate_add(ah, negate(bl));
        break;
    case LATHE_DIM_MUL: {
        int64_t p[4] = {saturate_mul(al, bl), saturate_mul(al, bh), saturate_mul(ah, bl), saturate_mul(ah, bh)};
        *low = min64(min64(p[0], p[1]), min64(p[2], p[3]));
        *high = max64(max64(p[0], p[1]), max64(p[2], p[3]));
        break;
    }
    case LATHE_DIM_FLOORDIV: /* divisors are at least 1 in any run */
        bl = max64(bl, 1);
        bh = max64(bh, 1);
        *low = min64(floor_div(al, bl), bh == INT64_MAX ? min64(al, 0) : floor_div(al, bh));
        *high = max64(floor_div(ah, bl), bh == INT64_MAX ? max64(min64(ah, 0), 0) : floor_div(ah, bh));
        break;
    case LATHE_DIM_MOD:
        *low = 0;
        *high = bh == INT64_MAX ? INT64_MAX : max64(bh - 1, 0);
        if (al >= 0)
            *high = min64(*high, ah);
        break;
    case LATHE_DIM_MIN:
        *low = min64(al, bl);
        *high = min64(ah, bh);
        break;
    default:
        *low = max64(al, bl);
        *high = max64(ah, bh);
        break;
    }
}

static uint64_t hash_dim(const struct lathe_fmt_dim *d) {
    uint64_t h = d->op * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ d->a) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ d->b) * UINT64_C(0x94d049bb133111eb);
    h = (h ^ (uint64_t)d->constant) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* The entry equal to *d, made when there is none. */
static uint32_t intern(struct lathe_lowered *l, const struct lathe_fmt_dim *d, int64_t low, int64_t high) {
    const struct lathe_fmt_dim *all = l->dims.data;
    if (l->dims.count * 2 >= l->dim_slot_count) {
        uint32_t count = l->dim_slot_count ? l->dim_slot_count * 2 : 256;
        uint32_t *slots = calloc(count, sizeof *slots);
        if (!slots)
            return UINT32_MAX;
        for (uint32_t i = 0; i < l->dims.count; i++) {
            uint64_t at = hash_dim(&all[i]) & (count - 1);
            while (slots[at])
                at = (at + 1) & (count - 1);
            slots[at] = i + 1;
        }
        free(l->dim_slots);
        l->dim_slots = slots;
        l->dim_slot_count = count;
    }
    uint64_t at = hash_dim(d) & (l->dim_slot_count - 1);
    for (; l->dim_slots[at]; at = (at + 1) & (l->dim_slot_count - 1))
        if (memcmp(&all[l->dim_slots[at] - 1], d, sizeof *d) == 0)
            return l->dim_slots[at] - 1;
    uint32_t index = lathe_table_add(&l->dims, d, 1);
    if (index == UINT32_MAX)
        return UINT32_MAX;
    if (index >= l->dim_bound_capacity) {
        uint32_t capacity = l->dim_bound_capacity ? l->dim_bound_capacity * 2 : 256;
        int64_t *lows = realloc(l->dim_low, capacity * sizeof *lows);
        if (lows)
            l->dim_low = lows;
        int64_t *highs = realloc(l->dim_high, capacity * sizeof *highs);
        if (highs)
            l->dim_high = highs;
        if (!lows || !highs)
            return UINT32_MAX;
        l->dim_bound_capacity = capacity;
    }
    l->dim_slots[at] = index + 1;
    l->dim_low[index] = low;
    l->dim_high[index] = high;
    return index;
}

static uint32_t add_const(struct lathe_lowered *l, int64_t value) {
    return intern(l, &(struct lathe_fmt_dim){.op = LATHE_DIM_CONST, .constant = value}, value, value);
}

static uint32_t add_op(struct lathe_lowered *l, enum lathe_dim_op op, uint32_t a, uint32_t b) {
    if (a == UINT32_MAX || b == UINT32_MAX)
        return UINT32_MAX;
    struct lathe_fmt_dim d = {.op = op, .a = a, .b = b};
    int64_t low, high;
    bounds(l, &d, &low, &high);
    return intern(l, &d, low, high);
}

static enum lathe_status add_symbol(struct lathe_lowered *l, uint32_t s, const char *what, uint32_t *out) {
    struct lathe_symbol_facts *f = &l->symbol_facts[s];
    const char *name = lathe_dims_symbol_name(l->graph->dims, s);
    if (f->source == UINT32_MAX)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_SYMBOL,
                          "'%s': size %s stands alone in no input, so a run could not know it", what, name);
    if (f->plan_index == UINT32_MAX) {
        f->plan_index =
            lathe_table_add(&l->symbols,
                            &(struct lathe_fmt_symbol){.name = lathe_strings_add(&l->strings, *name ? name : "size"),
                                                       .source = f->source,
                                                       .index = f->index,
                                                       .axis = f->axis,
                                                       .min = f->min,
                                                       .max = f->max,
                                                       .role = f->role},
                            1);
    }
    *out = f->plan_index == UINT32_MAX
               ? UINT32_MAX
               : intern(l, &(struct lathe_fmt_dim){.op = LATHE_DIM_SYMBOL, .a = f->plan_index}, f->min, f->max);
    if (*out == UINT32_MAX)
        return lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
    return LATHE_OK;
}

static enum lathe_status lower_dim(struct lathe_lowered *l, lathe_dim d, const char *what, unsigned depth,
                                   uint32_t *out);

static enum lathe_status lower_atom(struct lathe_lowered *l, const struct lathe_dim_atom *atom, const char *what,
                                    unsigned depth, uint32_t *out) {
    if (atom->kind == LATHE_ATOM_SYMBOL)
        return add_symbol(l, atom->symbol, what, out);
    uint32_t a, b;
    LATHE_TRY(lower_dim(l, atom->a, what, depth + 1, &a));
    LATHE_TRY(lower_dim(l, atom->b, what, depth + 1, &b));
    enum lathe_dim_op op = atom->kind == LATHE_ATOM_FLOORDIV ? LATHE_DIM_FLOORDIV
                           : atom->kind == LATHE_ATOM_MOD    ? LATHE_DIM_MOD
                           : atom->kind == LATHE_ATOM_MIN    ? LATHE_DIM_MIN
                                                             : LATHE_DIM_MAX;
    *out = add_op(l, op, a, b);
    return LATHE_OK;
}

static enum lathe_status lower_dim(struct lathe_lowered *l, lathe_dim d, const char *what, unsigned depth,
                                   uint32_t *out) {
    const struct lathe_dims *t = l->graph->dims;
    int64_t value;
    if (d == LATHE_DIM_NONE || depth > 64)
        return lathe_fail(l->diag, LATHE_MSG_LOWER_OPERATOR, "'%s': a size is %s", what,
                          depth > 64 ? "too deeply nested" : "not known");
    d = lathe_dim_resolve(t, d);
    if (lathe_dim_is_const(t, d, &value)) {
        *out = add_const(l, value);
    } else {
        uint32_t sum = UINT32_MAX, terms = lathe_dim_term_count(t, d);
        /* terms that add come first, so that partial sums stay as small as they can */
        for (int sign = 1; sign >= -1; sign -= 2)
            for (uint32_t i = 0; i < terms; i++) {
                struct lathe_dim_term term;
                lathe_dim_term_at(t, d, i, &term);
                if ((term.factor < 0) != (sign < 0) || term.factor == 0 || term.factor == INT64_MIN)
                    continue;
                int64_t factor = sign < 0 ? -term.factor : term.factor;
                uint32_t product = factor != 1 || term.atom_count == 0 ? add_const(l, factor) : UINT32_MAX;
                bool have = factor != 1 || term.atom_count == 0;
                for (uint32_t k = 0; k < term.atom_count; k++) {
                    uint32_t atom;
                    LATHE_TRY(lower_atom(l, &term.atoms[k], what, depth, &atom));
                    product = have ? add_op(l, LATHE_DIM_MUL, product, atom) : atom;
                    have = true;
                }
                if (sum == UINT32_MAX && sign < 0)
                    sum = add_const(l, 0);
                sum = sum == UINT32_MAX ? product : add_op(l, sign < 0 ? LATHE_DIM_SUB : LATHE_DIM_ADD, sum, product);
                if (sum == UINT32_MAX)
                    return lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
            }
        *out = sum == UINT32_MAX ? add_const(l, 0) : sum;
    }
    if (*out == UINT32_MAX)
        return lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
    return LATHE_OK;
}

enum lathe_status lathe_lower_dim(struct lathe_lowered *l, lathe_dim d, const char *what, uint32_t *out) {
    return lower_dim(l, d, what, 0, out);
}

uint64_t lathe_lowered_bytes(const struct lathe_lowered *l, const struct lathe_fmt_value *v) {
    int64_t n = (int64_t)lathe_dtype_bytes((enum lathe_dtype)v->dtype);
    for (unsigned i = 0; i < v->rank; i++) {
        int64_t high = l->dim_high[v->dims[i]];
        if (high <= 0)
            return 0;
        if (high == INT64_MAX || !lathe_mul_i64(n, high, &n))
            return UINT64_MAX;
    }
    return (uint64_t)n;
}
