/* The back end's own structures: the plan while it is made (lower.c), laid out in memory (plan_memory.c), its weights
 * (pack_weights.c), written (emit.c). One thread at a time but inside pack_weights.c. */
#ifndef LATHE_LOWER_H
#define LATHE_LOWER_H

#include "arena.h"
#include "ir.h"
#include "lathe_format.h"
#include "stages.h"
#include "weight_reader.h"

/* A growing table of records of one size. */
struct lathe_table {
    void *data;
    uint32_t count, capacity;
    uint32_t each;
};
/* Appends `n` records (zeroed when `from` is NULL); the index of the first, UINT32_MAX when memory or 32 bits run out.
 */
uint32_t lathe_table_add(struct lathe_table *t, const void *from, uint32_t n);
void lathe_table_free(struct lathe_table *t);

/* Strings of a section: offset 0 is the empty string, equal strings are stored once. */
struct lathe_strings {
    struct lathe_table bytes;
    uint32_t *slots; /* hash table of offsets + 1 */
    uint32_t slot_count, used;
    bool failed;
};
uint32_t lathe_strings_add(struct lathe_strings *s, const char *text);
/* Ends the block: padding to a multiple of 8, at least one zero at the end. */
void lathe_strings_finish(struct lathe_strings *s);
void lathe_strings_free(struct lathe_strings *s);

enum lathe_packing {
#define PACKING(number, name, text) LATHE_PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

/* A constant to be stored: raw bytes, rows of f32 from a narrower form, or a matrix in a packing. */
struct lathe_weight {
    uint32_t packing;
    const void *data;                      /* packing 0 with part_count 0: the bytes themselves */
    const struct lathe_weight_part *parts; /* others; with packing 0 one part [k][n] */
    uint32_t part_count;
    int64_t k, n;
    uint64_t bytes, offset;
    uint64_t hash;
};

/* Memory of one tensor or of several that share bytes; alive from step `first` to step `last`, both included. */
struct lathe_buffer {
    uint64_t bytes, offset;
    uint32_t first, last;
};
#define LATHE_NO_BUFFER UINT32_MAX

struct lathe_plan;
struct lathe_lowered {
    struct lathe_graph *graph;
    struct lathe_arena *arena; /* of everything small below */
    const struct lathe_emit_options *options;
    struct lathe_report *report;
    struct lathe_diag *diag;
    bool out_of_memory;

    struct lathe_table symbols, dims, values, steps, attrs, ints, operands;
    struct lathe_strings strings; /* of the plan */
    int64_t *dim_low, *dim_high;  /* bounds of each dim at the limits; INT64_MIN / INT64_MAX: unknown */
    uint32_t dim_bound_capacity;
    uint32_t *dim_slots, dim_slot_count; /* hash table of equal dims */
    uint32_t prologue_steps;

    struct lathe_symbol_facts { /* one a symbol of the graph */
        uint32_t plan_index;    /* UINT32_MAX until used */
        enum lathe_symbol_role role;
        uint32_t source, index, axis; /* of the plan's symbol; source UINT32_MAX: none found */
        lathe_node_id row_map;        /* source ROWS: the node */
        int64_t min, max;
    } * symbol_facts;
    uint32_t symbol_fact_count;
    int64_t max_batch, max_seq; /* for the manifest */
    /* limits of sizes that nothing bounds, and whether one was needed */
    struct lathe_default_limits {
        int64_t batch, seq, other;
        bool used_batch, used_seq, used_other;
    } defaults;

    uint32_t *value_of;         /* graph value -> plan value, UINT32_MAX: none yet */
    uint32_t *weight_of;        /* plan value -> weight, UINT32_MAX */
    uint32_t *buffer_of;        /* plan value -> buffer, LATHE_NO_BUFFER */
    uint32_t value_slots;       /* capacity of the two above */
    struct lathe_table buffers; /* struct lathe_buffer */
    struct lathe_table weights; /* struct lathe_weight */

    struct lathe_port_facts {
        uint32_t value;
        uint16_t flags;
        uint32_t default_kind;
        int64_t id_limit;
    } * inputs, *outputs;

    uint64_t arena_bytes, alive_bytes, weight_bytes;
};

/* lower.c. `before`: the plan of the bucket before this one, whose table of weights moves on to this one; NULL: none.
 */
LATHE_NODISCARD enum lathe_status lathe_lower(struct lathe_graph *g, const struct lathe_emit_options *options,
                                              struct lathe_report *report, struct lathe_lowered *before,
                                              struct lathe_lowered *out, struct lathe_diag *diag);
/* Offsets of the weights in WEIGHTS, once all plans are there; the last one has the table. */
void lathe_lowered_place(struct lathe_lowered *plans, unsigned count);
void lathe_lowered_free(struct lathe_lowered *l);

/* lower_tables.c: the plan that the tables make so far, as an artifact's is read; it points into them. `head` and `out`
 * are the caller's. */
void lathe_lowered_plan(const struct lathe_lowered *l, struct lathe_fmt_plan *head, struct lathe_plan *out);

/* lower_dims.c: roles, limits and sources of the symbols; then dims of the graph as dims of the plan (UINT32_MAX and a
 * message on failure). */
LATHE_NODISCARD enum lathe_status lathe_lower_symbols(struct lathe_lowered *l);
LATHE_NODISCARD enum lathe_status lathe_lower_dim(struct lathe_lowered *l, lathe_dim d, const char *what,
                                                  uint32_t *out);
/* Largest bytes of a plan value within the limits; UINT64_MAX when there is no bound. */
uint64_t lathe_lowered_bytes(const struct lathe_lowered *l, const struct lathe_fmt_value *v);

/* lower_ports.c: limits of ids, defaults and flags of inputs and outputs. */
LATHE_NODISCARD enum lathe_status lathe_lower_ports(struct lathe_lowered *l);

/* lower_weights.c: how the weights of an operator are packed; LATHE_PACKING_ROWS: it packs none. */
enum lathe_packing lathe_weight_packing(enum lathe_op op);
/* The parts of a product's weight, through what rearranges or widens constants. False when the operand is not made of
 * constants. */
bool lathe_weight_resolve(struct lathe_lowered *l, lathe_node_id linear, struct lathe_weight *out);
/* The weight of a convolution, which takes f32 only, behind a cast or a dequantization: stored as rows of f32. */
bool lathe_weight_widen(struct lathe_lowered *l, lathe_node_id conv, struct lathe_weight *out);
/* The weight with these bytes, new or one that is there already. */
uint32_t lathe_weight_add(struct lathe_lowered *l, const struct lathe_weight *w);

/* plan_memory.c: offsets of the buffers; fills arena_bytes and alive_bytes. */
LATHE_NODISCARD enum lathe_status lathe_plan_memory(struct lathe_lowered *l);

/* pack_weights.c: assigns offsets, then streams the section. */
void lathe_weights_place(struct lathe_lowered *l);
struct lathe_weight_sink {
    void *user;
    enum lathe_status (*write)(void *user, const void *data, size_t bytes, struct lathe_diag *diag);
};
LATHE_NODISCARD enum lathe_status lathe_weights_write(struct lathe_lowered *l, int jobs,
                                                      const struct lathe_weight_sink *sink, struct lathe_diag *diag);
#endif
