/* Symbolic dimensions: integer expressions over named symbols with bounds.
 *
 * A `lathe_dim` is an index into the table of its graph. Expressions are kept in one normal form (a sum of products of
 * atoms with integer factors; an atom is a symbol or an opaque floor quotient, remainder, minimum or maximum), so two
 * expressions are equal when their ids are. Everything that a symbol can be is >= its `min`; a result that leaves
 * 63 bits makes LATHE_DIM_NONE. */
#ifndef LATHE_DIM_H
#define LATHE_DIM_H

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t lathe_dim;
#define LATHE_DIM_NONE UINT32_MAX /* unknown */

struct lathe_dims; /* the table; owned by its graph, one thread at a time */

struct lathe_dims *lathe_dims_new(void); /* NULL when memory runs out */
void lathe_dims_free(struct lathe_dims **dims);
/* A copy with the same ids, which goes its own way from here; the source must outlive it. NULL when memory runs out. */
struct lathe_dims *lathe_dims_clone(const struct lathe_dims *dims);

lathe_dim lathe_dim_const(struct lathe_dims *t, int64_t value);
/* The symbol of that name, made with these bounds when it is new. `max` may be INT64_MAX. */
lathe_dim lathe_dim_symbol(struct lathe_dims *t, const char *name, int64_t min, int64_t max);
lathe_dim lathe_dim_add(struct lathe_dims *t, lathe_dim a, lathe_dim b);
lathe_dim lathe_dim_sub(struct lathe_dims *t, lathe_dim a, lathe_dim b);
lathe_dim lathe_dim_mul(struct lathe_dims *t, lathe_dim a, lathe_dim b);
lathe_dim lathe_dim_floordiv(struct lathe_dims *t, lathe_dim a, lathe_dim b); /* exact where the division is */
lathe_dim lathe_dim_mod(struct lathe_dims *t, lathe_dim a, lathe_dim b);
lathe_dim lathe_dim_min(struct lathe_dims *t, lathe_dim a, lathe_dim b); /* folded where one is proved smaller */
lathe_dim lathe_dim_max(struct lathe_dims *t, lathe_dim a, lathe_dim b);
/* a / b when b divides every term of a, else LATHE_DIM_NONE. */
lathe_dim lathe_dim_div_exact(struct lathe_dims *t, lathe_dim a, lathe_dim b);

bool lathe_dim_is_const(const struct lathe_dims *t, lathe_dim d, int64_t *value);
/* The index of the symbol that d is and nothing else, -1 when it is none. d may be LATHE_DIM_NONE. */
int64_t lathe_dim_plain_symbol(const struct lathe_dims *t, lathe_dim d);
/* Bounds of the value over all values of the symbols; INT64_MIN / INT64_MAX when unbounded. */
int64_t lathe_dim_lower(const struct lathe_dims *t, lathe_dim d);
int64_t lathe_dim_upper(const struct lathe_dims *t, lathe_dim d);
bool lathe_dim_proved_le(struct lathe_dims *t, lathe_dim a, lathe_dim b);
bool lathe_dim_proved_lt(struct lathe_dims *t, lathe_dim a, lathe_dim b);
bool lathe_dim_proved_ne(struct lathe_dims *t, lathe_dim a, lathe_dim b);

/* Symbols, in the order in which they were made. */
uint32_t lathe_dims_symbol_count(const struct lathe_dims *t);
lathe_dim lathe_dims_symbol_at(const struct lathe_dims *t, uint32_t index);
const char *lathe_dims_symbol_name(const struct lathe_dims *t, uint32_t index);
/* Narrows the bounds of a symbol (limits from the target, the options or a position table). */
void lathe_dims_symbol_bound(struct lathe_dims *t, uint32_t index, int64_t min, int64_t max);
/* Does the value of d follow from that symbol, alone or among others? */
bool lathe_dim_depends_on(const struct lathe_dims *t, lathe_dim d, uint32_t symbol);
/* Replaces symbol by expression everywhere: unification of inputs, static shapes. Ids handed out before stay valid and
 * follow: resolve them with lathe_dim_resolve, which every function here does for its arguments. */
void lathe_dims_substitute(struct lathe_dims *t, uint32_t symbol_index, lathe_dim with);
lathe_dim lathe_dim_resolve(const struct lathe_dims *t, lathe_dim d);

/* The structure of a normal form, for lowering: a sum of `term_count` products. */
uint32_t lathe_dim_term_count(const struct lathe_dims *t, lathe_dim d);
enum lathe_dim_atom_kind { LATHE_ATOM_SYMBOL, LATHE_ATOM_FLOORDIV, LATHE_ATOM_MOD, LATHE_ATOM_MIN, LATHE_ATOM_MAX };
struct lathe_dim_atom {
    enum lathe_dim_atom_kind kind;
    uint32_t symbol; /* LATHE_ATOM_SYMBOL: its index */
    lathe_dim a, b;  /* the others: their operands */
};
#define LATHE_DIM_MAX_FACTORS 8
struct lathe_dim_term {
    int64_t factor;
    uint32_t atom_count;
    struct lathe_dim_atom atoms[LATHE_DIM_MAX_FACTORS]; /* with repetition for powers */
};
void lathe_dim_term_at(const struct lathe_dims *t, lathe_dim d, uint32_t index, struct lathe_dim_term *out);

/* The value for given symbol values (one a symbol, in order); false when it overflows or divides by zero. */
bool lathe_dim_eval(const struct lathe_dims *t, lathe_dim d, const int64_t *symbol_values, int64_t *out);
/* Text such as "batch*(seq+1)" or "12"; parse is its inverse (LATHE_DIM_NONE on a syntax error; new names become
 * symbols with bounds 0..INT64_MAX). Returns the length like snprintf. */
int lathe_dim_print(const struct lathe_dims *t, lathe_dim d, char *buffer, int size);
lathe_dim lathe_dim_parse(struct lathe_dims *t, const char *text);
#endif
