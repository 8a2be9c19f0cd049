/* The graph: typed values in SSA form, nodes in execution order.
 *
 * Values and nodes are named by ids that stay valid for the life of the graph; removed nodes leave a hole
 * (op == LATHE_OP_NONE). Order is a linked list: `first`, then `next`. Use lists are kept by the functions below, which
 * are the only way to change a node's operands. Strings, operand arrays, attributes and small constants live in the
 * graph's arena; big constants are borrowed from the mapped model file, which must outlive the graph.
 * One thread at a time. Functions that need memory return LATHE_NONE or NULL when it runs out and set
 * `graph->out_of_memory`, which callers may check once at the end of a step. */
#ifndef LATHE_IR_H
#define LATHE_IR_H

#include "arena.h"
#include "dim.h"
#include "tensor.h"

typedef uint32_t lathe_value_id;
typedef uint32_t lathe_node_id;
#define LATHE_NONE UINT32_MAX

/* Integer tensors of up to this many elements are followed symbolically. */
#define LATHE_MAX_CONTENT 64

struct lathe_value {
    const char *name;       /* unique in the graph; of the source, or made from it */
    enum lathe_dtype dtype; /* LATHE_NO_DTYPE until inferred */
    int rank;               /* -1 until inferred */
    lathe_dim dims[LATHE_MAX_RANK];
    lathe_node_id producer;   /* LATHE_NONE for inputs and constants */
    uint32_t producer_output; /* which output of the producer */
    const void *data;         /* a constant's elements, row-major; NULL for others */
    const lathe_dim *content; /* elements of an integer tensor as expressions, count = product of dims; NULL: not known.
                                 Constants of at most LATHE_MAX_CONTENT elements and integer dtype always have it. */
    uint32_t content_count;
    bool is_input, is_output; /* of the graph */
    lathe_node_id *uses;      /* one entry an operand position; order of no meaning */
    uint32_t use_count, use_capacity;
};

struct lathe_node {
    enum lathe_op op;
    const char *name;   /* of the source node, or made from the first node it replaces; never NULL */
    const char *origin; /* source operator, such as "MatMul" or "com.microsoft.BiasGelu"; "" for our own */
    lathe_value_id *in; /* LATHE_NONE: absent */
    uint32_t n_in;
    lathe_value_id *out; /* LATHE_NONE: not wanted */
    uint32_t n_out;
    struct lathe_attr *attrs; /* sorted by key */
    uint32_t n_attrs;
    lathe_node_id prev, next;
};

/* Static shapes: what the sizes of the inputs and outputs were before they were pinned (static_shape). */
enum lathe_port_axis { LATHE_PORT_FIXED = 0, LATHE_PORT_BATCH = 1, LATHE_PORT_SEQ = 2 };
struct lathe_port_axes {
    uint8_t kind[LATHE_MAX_RANK];
    const char *name[LATHE_MAX_RANK]; /* of the axes that are not fixed */
};
struct lathe_interface {
    struct lathe_port_axes *ports; /* inputs, then outputs */
    bool has_batch, has_seq;       /* some input has such an axis; neither: the artifact takes one shape only */
    uint32_t mask;                 /* which input marks real tokens [batch, seq] and is used; LATHE_NONE */
    bool hides_padding;            /* the mask, or one of another form, does */
    bool whole;                    /* rows depend on each other: requests are neither split nor padded */
    uint64_t read_inputs;          /* bit i: the graph reads the numbers of input i, not only what they select */
    uint32_t ids;                  /* which input's pad id the graph tells; LATHE_NONE */
    int64_t pad_id;
};

struct lathe_graph {
    struct lathe_arena *arena;
    struct lathe_dims *dims;
    struct lathe_value *values;
    uint32_t value_count, value_capacity;
    struct lathe_node *nodes;
    uint32_t node_count, node_capacity; /* holes included */
    lathe_node_id first, last;
    lathe_value_id *inputs, *outputs; /* in the order of the source */
    uint32_t input_count, output_count;
    const char **output_names;      /* the names the outputs keep, whatever value serves them */
    struct lathe_names *names;      /* index of the value names; see lathe_value_by_name */
    struct lathe_graph_note *notes; /* what shape inference found, in order; the pipeline hands them to the report */
    uint32_t note_count, note_capacity;
    struct lathe_baked_dim *baked; /* constants that fit only one value of a symbol */
    uint32_t baked_count, baked_capacity;
    struct lathe_interface *interface; /* NULL until shapes are pinned; in the arena */
    bool out_of_memory;
};

/* A warning (code "BAKED_AXIS", ...) or, with code NULL, a fact for the report. Strings live in the graph's arena. */
struct lathe_graph_note {
    const char *code, *node, *text;
};
/* A constant shape in the graph works only when symbol == value; the symbol has been replaced by it. `refuse`: a
 * Reshape to the traced shape, which is right for this one shape alone: a bounded target refuses it, a static target
 * accepts a bucket of just this size. `text` is the whole message. */
struct lathe_baked_dim {
    uint32_t symbol;
    int64_t value;
    bool refuse;
    int input_axis; /* where an input had the symbol: 0 the batch, 1 the sequence; -1: nowhere */
    const char *node, *text;
};

struct lathe_graph *lathe_graph_new(void);
void lathe_graph_free(struct lathe_graph **graph);

static inline struct lathe_value *lathe_value_at(struct lathe_graph *g, lathe_value_id v) {
    return &g->values[v];
}
static inline struct lathe_node *lathe_node_at(struct lathe_graph *g, lathe_node_id n) {
    return &g->nodes[n];
}

/* ---- building. Names are copied; a name that is taken gets a suffix ".1", ".2", ... (see lathe_value_by_name). */
lathe_value_id lathe_graph_add_value(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                     const lathe_dim *dims);
/* A constant over borrowed elements (aligned for its dtype or not: read with memcpy). */
lathe_value_id lathe_graph_add_constant(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                        const int64_t *dims, const void *data);
/* The same with a copy of the elements in the arena. */
lathe_value_id lathe_graph_add_constant_copy(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                             const int64_t *dims, const void *data);
lathe_value_id lathe_graph_add_scalar_f32(struct lathe_graph *g, const char *name, float value);
void lathe_graph_add_input(struct lathe_graph *g, lathe_value_id v);
void lathe_graph_add_output(struct lathe_graph *g, lathe_value_id v, const char *name);
/* A node before `before` (LATHE_NONE: at the end). Operands and outputs are copied; outputs must have no producer. */
lathe_node_id lathe_graph_add_node(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, const char *name,
                                   const char *origin, const lathe_value_id *in, uint32_t n_in,
                                   const lathe_value_id *out, uint32_t n_out);
/* The same with one new output value of this type, returned. */
lathe_value_id lathe_graph_emit(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, const char *name,
                                const lathe_value_id *in, uint32_t n_in, enum lathe_dtype dtype, int rank,
                                const lathe_dim *dims);

/* ---- attributes: set replaces */
void lathe_node_set_int(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, int64_t value);
void lathe_node_set_float(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, double value);
void lathe_node_set_ints(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, const int64_t *values,
                         uint32_t count);
void lathe_node_set_dims(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, const lathe_dim *values,
                         uint32_t count);
void lathe_node_drop_attr(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key);
static inline struct lathe_attrs lathe_node_attrs(const struct lathe_graph *g, lathe_node_id n) {
    return (struct lathe_attrs){g->nodes[n].attrs, g->nodes[n].n_attrs};
}

/* ---- changing */
void lathe_node_set_input(struct lathe_graph *g, lathe_node_id n, uint32_t index, lathe_value_id v);
void lathe_node_set_inputs(struct lathe_graph *g, lathe_node_id n, const lathe_value_id *in, uint32_t n_in);
/* Changes the operator of a node in place; attributes stay. */
void lathe_node_set_op(struct lathe_graph *g, lathe_node_id n, enum lathe_op op);
/* All uses of `from`, as operand and as graph output, become uses of `to`. The caller sees to it that `to` comes before
 * every user. */
void lathe_graph_replace_uses(struct lathe_graph *g, lathe_value_id from, lathe_value_id to);
/* Takes the node out; its outputs must be unused. */
void lathe_graph_remove_node(struct lathe_graph *g, lathe_node_id n);
/* Removes `n` and, transitively, producers whose outputs have no use left. */
void lathe_graph_remove_dead_from(struct lathe_graph *g, lathe_node_id n);
/* Moves a node so that it stands just before `before`. */
void lathe_graph_move_node(struct lathe_graph *g, lathe_node_id n, lathe_node_id before);
/* Sorts topologically, stable: a node that need not move stays. LATHE_INVALID naming the nodes of a cycle. */
LATHE_NODISCARD enum lathe_status lathe_graph_sort(struct lathe_graph *g, struct lathe_diag *diag);
/* Makes a constant of a value that a node computes: takes it from its producer (whose output becomes LATHE_NONE). */
void lathe_value_make_constant(struct lathe_graph *g, lathe_value_id v, const void *data_in_arena);

void lathe_graph_add_note(struct lathe_graph *g, const char *code, const char *node, const char *text);
/* Replaces a symbol by an expression in the whole graph: the dims, contents and DIMS attributes of every value and node
 * are brought up to date, so that equal ids mean equal expressions again. */
void lathe_graph_substitute(struct lathe_graph *g, uint32_t symbol_index, lathe_dim with);
/* Only the second half, after a direct change to g->dims (lathe_dims_symbol_bound). */
void lathe_graph_resolve_dims(struct lathe_graph *g);
/* Sets the content of an integer value; copied. NULL or a count above LATHE_MAX_CONTENT: none. */
void lathe_value_set_content(struct lathe_graph *g, lathe_value_id v, const lathe_dim *content, uint32_t count);

/* ---- asking */
lathe_value_id lathe_value_by_name(const struct lathe_graph *g, const char *name); /* LATHE_NONE when there is none */
bool lathe_value_is_constant(const struct lathe_graph *g, lathe_value_id v);       /* v may be LATHE_NONE: false */
/* Uses as operands plus 1 if it is a graph output. */
uint32_t lathe_value_use_total(const struct lathe_graph *g, lathe_value_id v);
/* The only node that uses v as operand, LATHE_NONE when there are several uses or it is an output. */
lathe_node_id lathe_value_only_use(const struct lathe_graph *g, lathe_value_id v);
/* The producer if it is of that op, else LATHE_NONE. v may be LATHE_NONE. */
lathe_node_id lathe_producer_of(const struct lathe_graph *g, lathe_value_id v, enum lathe_op op);
/* Elements and bytes of a value with constant dims; -1 when a dim is symbolic or the product overflows. */
int64_t lathe_value_count(const struct lathe_graph *g, lathe_value_id v);
int64_t lathe_value_bytes(const struct lathe_graph *g, lathe_value_id v);
/* True and *out when v is a constant of any numeric dtype with one element, or all elements equal (a filled tensor). */
bool lathe_constant_uniform(const struct lathe_graph *g, lathe_value_id v, double *out);
/* Element i of a constant as double or int64 (converted from its dtype). */
double lathe_constant_f64(const struct lathe_graph *g, lathe_value_id v, int64_t i);
int64_t lathe_constant_i64(const struct lathe_graph *g, lathe_value_id v, int64_t i);
/* The dim, counted from the end when negative: dim_of(g, v, -1) is the last. */
lathe_dim lathe_value_dim(const struct lathe_graph *g, lathe_value_id v, int axis);
bool lathe_value_dim_is(const struct lathe_graph *g, lathe_value_id v, int axis, int64_t *value);
/* Which axis of an input runs along the tokens: -1 for ranks that have none, as images and rows of one number. */
int lathe_input_sequence_axis(const struct lathe_graph *g, lathe_value_id v);
/* True when both have the same rank and equal dims. */
bool lathe_value_same_shape(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b);

/* ---- iteration in order; `n` may be removed in the body when `lathe_next` was taken before */
#define LATHE_FOR_NODES(g, n) for (lathe_node_id n = (g)->first; n != LATHE_NONE; n = (g)->nodes[n].next)
#define LATHE_FOR_NODES_SAFE(g, n, follow)                                                                             \
    for (lathe_node_id n = (g)->first, follow = n == LATHE_NONE ? n : (g)->nodes[n].next; n != LATHE_NONE;             \
         n = follow, follow = n == LATHE_NONE ? n : (g)->nodes[n].next)

/* ---- ir_snapshot.c: what a pass can be undone with. NULL or false when memory runs out. Restoring does not use it up.
 * Symbols that were unified or bounded in between stay so. */
struct lathe_graph_snapshot;
struct lathe_graph_snapshot *lathe_graph_snapshot_take(const struct lathe_graph *g);
bool lathe_graph_snapshot_restore(struct lathe_graph *g, const struct lathe_graph_snapshot *snapshot);
void lathe_graph_snapshot_free(struct lathe_graph_snapshot **snapshot);

/* A graph of its own with the same ids, which only borrows names, constants and expressions: `g` must outlive it. NULL
 * when memory runs out. */
struct lathe_graph *lathe_graph_clone(const struct lathe_graph *g);

/* ---- ir_check.c: SSA, order, types, use lists, shapes that agree with the shape function; LATHE_INTERNAL with the
 * node */
LATHE_NODISCARD enum lathe_status lathe_graph_check(struct lathe_graph *g, struct lathe_diag *diag);

/* ---- shape.c: infers dtype, rank, dims and content of every output of a node, in order; called by the import for each
 * node and by passes after a change. Shape operands whose content is known are turned into attributes or dropped (see
 * IR.md). A split becomes slices: the node is gone after the call. LATHE_UNSUPPORTED / LATHE_INVALID name the node, its
 * operator, its inputs and their known dims. */
LATHE_NODISCARD enum lathe_status lathe_shape_infer_node(struct lathe_graph *g, lathe_node_id n,
                                                         struct lathe_diag *diag);
LATHE_NODISCARD enum lathe_status lathe_shape_infer(struct lathe_graph *g, struct lathe_diag *diag);

/* ---- ir_text.c: the text form of IR.md. Print appends to a growing string; parse makes a new graph (constants written
 * as value lists; "..." for big ones cannot be parsed back). */
struct lathe_text; /* text.h */
enum lathe_status lathe_graph_print(struct lathe_graph *g, struct lathe_text *out);
LATHE_NODISCARD enum lathe_status lathe_graph_parse(const char *text, struct lathe_graph **out,
                                                    struct lathe_diag *diag);
#endif
