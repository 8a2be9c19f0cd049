/* QLinear operators (QOperator format of ONNX Runtime's static quantization): each is the plain operator between
 * DequantizeLinear of its operands and QuantizeLinear of its result, and is imported as a function of those nodes. So
 * it has their written meaning, and what takes quantized activations out for int8 knows it already. */
#include "onnx_import.h"

#include <string.h>

/* Where the operands lie: `first` quantized ones from `start` on, each followed by scale and zero point; scale and zero
 * point of the result are at `result`; one that is not quantized (the condition of Where) at `plain`. -1: none. */
struct row {
    const char *name, *op;
    int start, count, result, plain; /* count 0: as many as there are */
    const char *attributes[6];       /* of the plain operator; others are refused */
};
static const struct row rows[] = {
    {"QLinearAdd", "Add", 0, 2, 6, -1, {NULL}},
    {"QLinearAveragePool",
     "AveragePool",
     0,
     1,
     3,
     -1,
     {"auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"}},
    {"QLinearConcat", "Concat", 2, 0, 0, -1, {"axis"}},
    {"QLinearConv", "Conv", 0, 2, 6, -1, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}},
    {"QLinearGlobalAveragePool", "GlobalAveragePool", 0, 1, 3, -1, {NULL}},
    {"QLinearLeakyRelu", "LeakyRelu", 0, 1, 3, -1, {"alpha"}},
    {"QLinearMul", "Mul", 0, 2, 6, -1, {NULL}},
    {"QLinearSigmoid", "Sigmoid", 0, 1, 3, -1, {NULL}},
    {"QLinearSoftmax", "Softmax", 0, 1, 3, -1, {"axis"}},
    {"QLinearWhere", "Where", 1, 2, 7, 0, {NULL}},
};
#define INNER_OPSET 17

struct body {
    struct lathe_import *c;
    LatheOnnx__Node **nodes;
    size_t count;
    char **inputs; /* names of the operands: the source may name a tensor twice */
};

static void *get(struct body *b, size_t count, size_t bytes) {
    void *p = lathe_arena_alloc_array(b->c->scratch, count ? count : 1, bytes);
    if (!p)
        lathe_imp_fail(b->c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
    return p;
}

static char *copy(struct body *b, const char *text) {
    char *s = lathe_arena_format(b->c->scratch, "%s", text);
    if (!s)
        lathe_imp_fail(b->c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
    return s;
}

/* The name of operand i in the body; "" when the node has none there. */
static const char *operand(struct body *b, int i) {
    return i >= 0 && lathe_imp_has(b->c, (uint32_t)i) ? b->inputs[i] : "";
}

static LatheOnnx__Node *add_node(struct body *b, const char *op, const char *const *in, size_t n_in, const char *out) {
    LatheOnnx__Node *n = get(b, 1, sizeof *n);
    char **names = get(b, n_in, sizeof *names), **outs = get(b, 1, sizeof *outs);
    if (!n || !names || !outs)
        return NULL;
    lathe_onnx__node__init(n);
    for (size_t i = 0; i < n_in; i++)
        names[i] = copy(b, in[i]);
    outs[0] = copy(b, out);
    n->op_type = copy(b, op);
    n->name = outs[0];
    n->input = names;
    n->n_input = n_in;
    n->output = outs;
    n->n_output = 1;
    b->nodes[b->count++] = n;
    return n;
}

/* Attributes of the source node, referred to from the body. */
static void pass_attributes(struct body *b, LatheOnnx__Node *n, LatheOnnx__Function *f, const struct row *row) {
    size_t count = 0;
    f->attribute = get(b, 6, sizeof *f->attribute);
    n->attribute = get(b, 6, sizeof *n->attribute);
    for (int i = 0; f->attribute && n->attribute && i < 6 && row->attributes[i]; i++) {
        const LatheOnnx__Attribute *given = lathe_imp_attr(b->c, row->attributes[i]);
        LatheOnnx__Attribute *a = given ? get(b, 1, sizeof *a) : NULL;
        if (!a)
            continue;
        lathe_onnx__attribute__init(a);
        a->name = a->ref_attr_name = f->attribute[count] = copy(b, row->attributes[i]);
        a->has_type = given->has_type;
        a->type = given->type;
        n->attribute[count++] = a;
    }
    f->n_attribute = n->n_attribute = count;
}

static bool add_axis(struct body *b, LatheOnnx__Node *n, int64_t axis) {
    LatheOnnx__Attribute *a = get(b, 1, sizeof *a), **list = get(b, 1, sizeof *list);
    if (!n || !a || !list)
        return false;
    lathe_onnx__attribute__init(a);
    a->name = copy(b, "axis");
    a->has_type = a->has_i = true;
    a->type = 2; /* INT */
    a->i = axis;
    list[0] = a;
    n->attribute = list;
    n->n_attribute = 1;
    return true;
}

/* Bias of a convolution: i32 with the scale of both operands. */
static const char *add_bias(struct body *b) {
    const char *scales[2] = {operand(b, 1), operand(b, 4)};
    if (!*operand(b, 8))
        return NULL;
    add_node(b, "Mul", scales, 2, "bias scale");
    const char *in[2] = {operand(b, 8), "bias scale"};
    return add_axis(b, add_node(b, "DequantizeLinear", in, 2, "bias"), 0) ? "bias" : NULL;
}

LATHE_IMPORTER(qlinear) {
    const struct row *row = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, c->node->op_type))
            row = &rows[i];
    if (!row)
        return;
    int count = row->count ? row->count : ((int)c->n_in - row->start) / 3;
    if (count < 1 || (row->start + 3 * count > (int)c->n_in && row->result < row->start)) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "it has %u operands, expected three for each tensor", c->n_in);
        return;
    }
    struct body b = {.c = c};
    LatheOnnx__Function *f = get(&b, 1, sizeof *f);
    LatheOnnx__OperatorSetId *opset = get(&b, 1, sizeof *opset);
    const char **in = get(&b, (size_t)count + 2, sizeof *in);
    b.nodes = get(&b, (size_t)count + 5, sizeof *b.nodes);
    b.inputs = get(&b, c->n_in, sizeof *b.inputs);
    if (!f || !opset || !in || !b.nodes || !b.inputs)
        return;
    for (uint32_t i = 0; i < c->n_in; i++)
        if (!(b.inputs[i] = lathe_arena_format(c->scratch, "input %u", i))) {
            lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
            return;
        }
    lathe_onnx__function__init(f);
    lathe_onnx__operator_set_id__init(opset);
    opset->domain = copy(&b, "");
    opset->has_version = true;
    opset->version = INNER_OPSET;
    if (!strcmp(row->op, "Softmax"))
        opset->version = lathe_imp_attr_int(c, "opset", INNER_OPSET);
    if (opset->version < 10 || opset->version > LATHE_ONNX_MAX_OPSET) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "opset is %lld", (long long)opset->version);
        return;
    }
    if (lathe_imp_attr_int(c, "channels_last", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "channels_last is not supported");
    size_t n_in = 0;
    if (row->plain >= 0)
        in[n_in++] = operand(&b, row->plain);
    for (int i = 0; i < count; i++) {
        int at = row->start + 3 * i;
        const char *triple[3] = {operand(&b, at), operand(&b, at + 1), operand(&b, at + 2)};
        const char *name = lathe_arena_format(c->scratch, "operand %d", i);
        LatheOnnx__Node *n = name ? add_node(&b, "DequantizeLinear", triple, *triple[2] ? 3 : 2, name) : NULL;
        if (!n || !add_axis(&b, n, 0)) /* of weights: a scale an output channel */
            return;
        in[n_in++] = name;
    }
    if (!strcmp(row->op, "Conv") && (in[n_in] = add_bias(&b)))
        n_in++;
    LatheOnnx__Node *plain = add_node(&b, row->op, in, n_in, "result");
    if (!plain)
        return;
    pass_attributes(&b, plain, f, row);
    const char *again[3] = {"result", operand(&b, row->result), operand(&b, row->result + 1)};
    if (!add_axis(&b, add_node(&b, "QuantizeLinear", again, *again[2] ? 3 : 2, "quantized"), 0))
        return;
    char *out = copy(&b, "quantized"), **outs = get(&b, 1, sizeof *outs);
    if (!outs)
        return;
    outs[0] = out;
    f->name = c->node->op_type;
    f->input = b.inputs;
    f->n_input = c->n_in;
    f->output = outs;
    f->n_output = 1;
    f->node = b.nodes;
    f->n_node = b.count;
    f->opset_import = get(&b, 1, sizeof *f->opset_import);
    if (!f->opset_import)
        return;
    f->opset_import[0] = opset;
    f->n_opset_import = 1;
    if (c->status == LATHE_OK)
        lathe_imp_call(c, f);
}
