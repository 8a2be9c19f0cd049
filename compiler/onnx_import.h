/* Inside the import: the state that the operator importers share, and what they build the graph with.
 *
 * An importer turns one source node into internal nodes. It is straight-line code: the first failure is kept in
 * `status`, and after it every function here does nothing and returns LATHE_NONE, 0 or NULL, so an importer need not
 * check each step; it must not loop without end on such values. Attributes that an importer never asked for are refused
 * afterwards, so nothing in a node is ignored in silence. One thread at a time. */
#ifndef LATHE_ONNX_IMPORT_H
#define LATHE_ONNX_IMPORT_H

#include "ir.h"
#include "model_file.h"
#include "onnx_subset.pb-c.h"
#include "report.h"

#define LATHE_ONNX_MIN_OPSET    7
#define LATHE_ONNX_MAX_OPSET    28 /* the newest that onnx 1.23 knows */
#define LATHE_ONNX_MIN_IR       3
#define LATHE_ONNX_MAX_IR       14
#define LATHE_ONNX_MAX_OPERANDS 4096
#define LATHE_ONNX_MAX_NODES    4000000u /* after functions are written out */

struct lathe_import;
struct lathe_scope;
typedef void (*lathe_onnx_importer)(struct lathe_import *c);

/* A row of onnx_ops.def: an operator of the source from its version `first` to `last` of the domain's opset. */
struct lathe_onnx_op {
    const char *domain; /* "" is ai.onnx */
    const char *name;
    int first, last;
    unsigned min_in, max_in, max_out;
    uint32_t types; /* bit d: the first operand may be of enum lathe_dtype d; see onnx_ops.def */
    lathe_onnx_importer run;
};
/* Rows in the order of the table; NULL past the end. For `lathe ops`. */
const struct lathe_onnx_op *lathe_onnx_op_at(unsigned index);
/* The row for an operator at an opset version, NULL when there is none. */
const struct lathe_onnx_op *lathe_onnx_op_find(const char *domain, const char *name, int64_t version);
/* Appends the names of a row's types: "f32 f64 f16 bf16". */
void lathe_onnx_types_text(uint32_t types, struct lathe_text *out);

struct lathe_import {
    struct lathe_graph *g;
    struct lathe_model_file *file;
    struct lathe_report *report; /* may be NULL */
    struct lathe_diag *diag;
    struct lathe_arena *scratch; /* of this import */
    const LatheOnnx__Model *model;
    enum lathe_status status;
    struct lathe_scope *scope; /* of the node that is imported */
    unsigned depth;            /* of functions and branches */
    unsigned nodes;            /* source nodes imported so far */

    /* the node that is imported */
    const LatheOnnx__Node *node;
    const char *node_name; /* made from the first output when the source gives none */
    const char *origin;    /* "MatMul", "com.microsoft.BiasGelu" */
    int version;           /* of the domain's opset */
    lathe_value_id *in;    /* LATHE_NONE: absent */
    uint32_t n_in;
    lathe_value_id *out; /* filled by the importer; one entry an output name */
    uint32_t n_out;
    uint64_t attributes_read; /* a bit an attribute of the node */
};

/* ---- failures: keep the first and return its status */
void lathe_imp_fail(struct lathe_import *c, enum lathe_message message, const char *format, ...) LATHE_PRINTF(3, 4);
/* The same with "node 'name' (Op): " in front. */
void lathe_imp_node_fail(struct lathe_import *c, enum lathe_message message, const char *format, ...)
    LATHE_PRINTF(3, 4);

/* ---- attributes of the node (onnx_attr.c); a reference inside a function is followed to the caller's value */
const LatheOnnx__Attribute *lathe_imp_attr(struct lathe_import *c, const char *name); /* NULL when absent */
bool lathe_imp_has_attr(struct lathe_import *c, const char *name);
int64_t lathe_imp_attr_int(struct lathe_import *c, const char *name, int64_t absent);
double lathe_imp_attr_float(struct lathe_import *c, const char *name, double absent);
/* The list, in scratch memory or borrowed; NULL and *count = 0 when absent. */
const int64_t *lathe_imp_attr_ints(struct lathe_import *c, const char *name, uint32_t *count);
/* A NUL-terminated copy in scratch memory; `absent` when absent. */
const char *lathe_imp_attr_string(struct lathe_import *c, const char *name, const char *absent);
/* For attributes without influence on the result. */
void lathe_imp_ignore_attr(struct lathe_import *c, const char *name);

/* ---- what is known of a value */
bool lathe_imp_has(const struct lathe_import *c, uint32_t operand);          /* operand present */
lathe_value_id lathe_imp_in(const struct lathe_import *c, uint32_t operand); /* LATHE_NONE when absent */
bool lathe_imp_wants(const struct lathe_import *c, uint32_t output);         /* output has a name */
int lathe_imp_rank(struct lathe_import *c, lathe_value_id v);
enum lathe_dtype lathe_imp_dtype(struct lathe_import *c, lathe_value_id v);
lathe_dim lathe_imp_dim(struct lathe_import *c, lathe_value_id v, int axis); /* negative counts from the end */
/* The dim as a number; fails the node with `what` when it is not constant. */
int64_t lathe_imp_dim_const(struct lathe_import *c, lathe_value_id v, int axis, const char *what);
/* An axis made not negative; fails when it is outside -rank .. rank-1. */
int lathe_imp_axis(struct lathe_import *c, int64_t axis, int rank);
/* The elements of a constant integer value or of known content as numbers, in scratch memory; false without failing
 * when they are not known. */
bool lathe_imp_ints(struct lathe_import *c, lathe_value_id v, const int64_t **values, uint32_t *count);
/* The elements as expressions, in scratch memory; false when they are not known. */
bool lathe_imp_dims(struct lathe_import *c, lathe_value_id v, const lathe_dim **values, uint32_t *count);
/* One boolean or integer element, when it follows from constants and shapes. */
bool lathe_imp_scalar_known(struct lathe_import *c, lathe_value_id v, int64_t *value);

/* ---- building: begin a node, set attributes, end it (shapes are inferred there) */
/* With one new output of an inner name. */
lathe_node_id lathe_imp_node(struct lathe_import *c, enum lathe_op op, const lathe_value_id *in, uint32_t n_in);
/* With the output named as output `index` of the source node, which it becomes. */
lathe_node_id lathe_imp_result(struct lathe_import *c, uint32_t index, enum lathe_op op, const lathe_value_id *in,
                               uint32_t n_in);
/* With outputs 0 .. count-1 of the source node, those that are wanted. */
lathe_node_id lathe_imp_results(struct lathe_import *c, uint32_t count, enum lathe_op op, const lathe_value_id *in,
                                uint32_t n_in);
/* With `count` new inner outputs. */
lathe_node_id lathe_imp_node_outs(struct lathe_import *c, uint32_t count, enum lathe_op op, const lathe_value_id *in,
                                  uint32_t n_in);
void lathe_imp_int(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, int64_t value);
void lathe_imp_float(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, double value);
void lathe_imp_set_ints(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, const int64_t *values,
                        uint32_t count);
void lathe_imp_set_dims(struct lathe_import *c, lathe_node_id n, enum lathe_attr_key key, const lathe_dim *values,
                        uint32_t count);
lathe_value_id lathe_imp_end(struct lathe_import *c, lathe_node_id n); /* its output 0 */
lathe_value_id lathe_imp_out(struct lathe_import *c, lathe_node_id n, uint32_t index);
/* Output `index` of the source node is this value. */
void lathe_imp_bind(struct lathe_import *c, uint32_t index, lathe_value_id v);

/* Shorthands for nodes without attributes. */
lathe_value_id lathe_imp_unary(struct lathe_import *c, enum lathe_op op, lathe_value_id a);
lathe_value_id lathe_imp_binary(struct lathe_import *c, enum lathe_op op, lathe_value_id a, lathe_value_id b);
lathe_value_id lathe_imp_cast(struct lathe_import *c, lathe_value_id a, enum lathe_dtype to); /* a itself if it is */
lathe_value_id lathe_imp_transpose(struct lathe_import *c, lathe_value_id a, const int64_t *perm, uint32_t rank);
/* A view of `a` with these dims, whose product is that of its own. */
lathe_value_id lathe_imp_view(struct lathe_import *c, lathe_value_id a, int rank, const lathe_dim *dims);
/* The same as output `index` of the source node. */
void lathe_imp_result_view(struct lathe_import *c, uint32_t index, lathe_value_id a, int rank, const lathe_dim *dims);
/* Elements start .. end-1 along an axis. */
lathe_value_id lathe_imp_slice(struct lathe_import *c, lathe_value_id a, int axis, lathe_dim start, lathe_dim end);
/* 0, 1, 2, ... as i64 [length]. */
lathe_value_id lathe_imp_count_up(struct lathe_import *c, lathe_dim length);
/* Numbers as an i64 tensor of rank 1 (for shape operands). */
lathe_value_id lathe_imp_const_ints(struct lathe_import *c, const int64_t *values, uint32_t count);
lathe_value_id lathe_imp_const_i64(struct lathe_import *c, int64_t value); /* rank 0 */
/* A scalar constant of any numeric type; integers are truncated, f16 and bf16 rounded to even. */
lathe_value_id lathe_imp_scalar(struct lathe_import *c, enum lathe_dtype dtype, double value);
lathe_dim lathe_imp_number(struct lathe_import *c, int64_t value);

/* ---- pieces that several importers share (onnx_ops_nn.c, onnx_ops_quant.c, onnx_ops_attention.c) */
/* Layer norm, or RMS norm without beta, over the last axes from `axis` on. gamma and beta may be absent or broadcast.
 * Binds outputs 0 .. count-1 of the source node. */
void lathe_imp_normalize(struct lathe_import *c, bool rms, lathe_value_id x, lathe_value_id gamma, lathe_value_id beta,
                         int axis, double epsilon, uint32_t count);
/* a and b as 8-bit integers -> f32: (a - a_zero)(b - b_zero) a_scale b_scale. Zero points may be absent. */
lathe_value_id lathe_imp_integer_product(struct lathe_import *c, lathe_value_id a, lathe_value_id b,
                                         lathe_value_id a_zero, lathe_value_id b_zero, lathe_value_id a_scale,
                                         lathe_value_id b_scale);
struct lathe_imp_attention {
    lathe_value_id q, k, v;    /* [B,S,N*D] */
    lathe_value_id mask_index; /* any of the forms of com.microsoft; may be absent */
    lathe_value_id bias;       /* added to the scores; may be absent */
    int64_t heads;
    double scale;  /* 0: 1 / sqrt(D) */
    double filter; /* added where the mask is 0 */
    bool causal;
    bool k_by_head, v_by_head; /* k and v are [B,N,S,D] */
};
/* Attention of com.microsoft in plain operators; binds output 0. */
void lathe_imp_plain_attention(struct lathe_import *c, const struct lathe_imp_attention *a);

/* ---- tensors (onnx_tensor.c) */
/* The constant of a tensor; `name` is for messages and the value. int4 and uint4 become i8 and u8. */
lathe_value_id lathe_imp_tensor(struct lathe_import *c, const LatheOnnx__Tensor *tensor, const char *name);
/* Checks dims, type and byte count without making a constant. */
void lathe_imp_tensor_check(struct lathe_import *c, const LatheOnnx__Tensor *tensor, const char *name);
/* LATHE_NO_DTYPE and a failure for types that tensors of the graph cannot have; `what` names the value. */
enum lathe_dtype lathe_imp_element_type(struct lathe_import *c, int64_t onnx_type, const char *what, const char *name);
const char *lathe_onnx_type_name(int64_t onnx_type); /* "float8e4m3fn"; "unknown" */

/* ---- scopes (onnx_scope.c) */
struct lathe_scope_spec {
    struct lathe_scope *parent; /* NULL: nothing outside is seen */
    const char *prefix;         /* of node and value names; "" for the main graph */
    LatheOnnx__OperatorSetId *const *opsets;
    size_t opset_count;
    LatheOnnx__Node *const *nodes;
    size_t node_count;
    LatheOnnx__Tensor *const *initializers;
    size_t initializer_count;
    LatheOnnx__SparseTensor *const *sparse;
    size_t sparse_count;
    const struct lathe_binding *attributes; /* of the function call */
    size_t attribute_count;
};
struct lathe_binding {
    const char *name;
    const LatheOnnx__Attribute *attribute;
};
/* NULL after a failure. Registers initializers and node outputs; a name that is defined twice fails. */
struct lathe_scope *lathe_scope_new(struct lathe_import *c, const struct lathe_scope_spec *spec);
/* Gives a name a value: graph inputs, operands of a function. */
void lathe_scope_define(struct lathe_import *c, struct lathe_scope *s, const char *name, lathe_value_id v);
bool lathe_scope_has_initializer(const struct lathe_scope *s, const char *name);
/* The element type, as ONNX counts them, of the initializer of that name; 0 when it is none. */
int32_t lathe_scope_initializer_type(const struct lathe_scope *s, const char *name);
/* The value of a name whose node was imported; LATHE_NONE when nothing defines it (no failure). */
lathe_value_id lathe_scope_value(struct lathe_import *c, struct lathe_scope *s, const char *name);
const char *lathe_scope_prefix(const struct lathe_scope *s);
/* Sorts and imports the nodes that `outputs` need. */
void lathe_scope_run(struct lathe_import *c, struct lathe_scope *s, const char *const *outputs, size_t count);
int64_t lathe_scope_opset(const struct lathe_scope *s, const char *domain); /* 0: not imported */
const LatheOnnx__Attribute *lathe_scope_attribute(const struct lathe_scope *s, const char *name);
const LatheOnnx__Function *lathe_onnx_function(const struct lathe_import *c, const char *domain, const char *name,
                                               const char *overload);
/* Writes a call of a function out (onnx_function.c). */
void lathe_imp_call(struct lathe_import *c, const LatheOnnx__Function *function);

#define LATHE_IMPORTER(name) void lathe_onnx_##name(struct lathe_import *c)

/* the importers that the rows name */
#define ONNX_OP(domain, name, first, last, min_in, max_in, max_out, types, importer) LATHE_IMPORTER(importer);
#include "onnx_ops.def"
#undef ONNX_OP
#endif
