/* The inside of a dimension table, shared by dim.c, dim_bounds.c and dim_text.c only. */
#ifndef LATHE_DIM_TABLE_H
#define LATHE_DIM_TABLE_H

#include "arena.h"
#include "dim.h"

/* Limits that keep every operation cheap whatever a model file says; beyond them a dim is unknown. */
enum { DIM_MAX_TERMS = 48, DIM_MAX_DEPTH = 24, DIM_MAX_EXPRS = 1 << 24 };

struct dim_term {
    int64_t factor;
    uint32_t n;
    uint32_t atoms[LATHE_DIM_MAX_FACTORS]; /* sorted; the unused rest is 0 */
    uint32_t zero;
};

struct dim_atom {
    enum lathe_dim_atom_kind kind;
    uint32_t symbol;
    lathe_dim a, b;
    uint32_t depth;
};

struct dim_expr {
    const struct dim_term *terms; /* in the order of monomials */
    uint32_t count, depth;
    lathe_dim resolved;
    uint32_t resolved_at, bounds_at; /* generations; 0: never */
    uint32_t bounds_depth;
    int64_t lower, upper;
};

struct dim_symbol {
    const char *name;
    int64_t min, max;
    lathe_dim self, with; /* with: what replaces it */
};

struct dim_slot {
    uint32_t hash, id_plus_1;
};
struct dim_index {
    struct dim_slot *slots;
    uint32_t size; /* a power of two */
};

struct lathe_dims {
    struct lathe_arena *arena;
    struct dim_expr *exprs;
    struct dim_atom *atoms;
    struct dim_symbol *symbols;
    uint32_t expr_count, expr_capacity, atom_count, atom_capacity, symbol_count, symbol_capacity;
    struct dim_index expr_index, atom_index, symbol_index;
    uint32_t generation; /* counts substitutions and changes of bounds */
    uint32_t bounds_depth;
};

/* A sum under construction, kept in the order of monomials. */
struct dim_sum {
    uint32_t count;
    struct dim_term terms[DIM_MAX_TERMS];
};

/* False when a factor overflows or there are too many terms. */
bool lathe_dim_sum_add(struct dim_sum *sum, const struct dim_term *term);
lathe_dim lathe_dim_intern(struct lathe_dims *t, const struct dim_sum *sum);
/* a + b * factor and a * b of operands that are resolved already. */
lathe_dim lathe_dim_add_resolved(struct lathe_dims *t, lathe_dim a, lathe_dim b, int64_t factor_b);
lathe_dim lathe_dim_mul_resolved(struct lathe_dims *t, lathe_dim a, lathe_dim b);
bool lathe_dim_divide_term(const struct dim_term *a, const struct dim_term *b, struct dim_term *out);
#endif
