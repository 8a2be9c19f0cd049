/* Names, order and dispatch: a scope is the main graph, the body of a function or a branch of an If. */
#include "onnx_import.h"

#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum entry_kind { ENTRY_VALUE, ENTRY_TENSOR, ENTRY_SPARSE, ENTRY_NODE };

struct entry {
    const char *name; /* NULL: free slot */
    enum entry_kind kind;
    lathe_value_id value; /* LATHE_NONE until known */
    const LatheOnnx__Tensor *tensor;
    uint32_t node;
};

struct lathe_scope {
    struct lathe_scope_spec spec;
    struct entry *entries;
    size_t capacity, used; /* capacity is a power of two */
};

static uint64_t hash_name(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h ^ h >> 29;
}

static struct entry *find_slot(const struct lathe_scope *s, const char *name) {
    size_t i = (size_t)hash_name(name) & (s->capacity - 1);
    while (s->entries[i].name && strcmp(s->entries[i].name, name))
        i = (i + 1) & (s->capacity - 1);
    return &s->entries[i];
}

static struct entry *find_here(const struct lathe_scope *s, const char *name) {
    struct entry *e = find_slot(s, name);
    return e->name ? e : NULL;
}

static bool find_anywhere(const struct lathe_scope *s, const char *name) {
    for (; s; s = s->spec.parent)
        if (find_here(s, name))
            return true;
    return false;
}

/* A new entry, or NULL when the name is taken (*taken) or memory runs out. */
static struct entry *add_entry(struct lathe_import *c, struct lathe_scope *s, const char *name,
                               const struct entry **taken) {
    if (2 * (s->used + 1) > s->capacity) {
        struct entry *old = s->entries;
        size_t old_capacity = s->capacity;
        struct entry *grown = lathe_arena_alloc_array(c->scratch, old_capacity * 2, sizeof *grown);
        if (!grown) {
            lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the names of the model");
            return NULL;
        }
        s->entries = grown;
        s->capacity = old_capacity * 2;
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i].name)
                *find_slot(s, old[i].name) = old[i];
    }
    struct entry *e = find_slot(s, name);
    if (e->name) {
        *taken = e;
        return NULL;
    }
    s->used++;
    e->name = name;
    e->value = LATHE_NONE;
    return e;
}

static const char *text_of(const char *s) {
    return s ? s : "";
}

/* How messages call a node: its name, or its first output. */
static const char *node_label(const LatheOnnx__Node *n) {
    if (n->name && *n->name)
        return n->name;
    for (size_t i = 0; i < n->n_output; i++)
        if (n->output[i] && *n->output[i])
            return n->output[i];
    return text_of(n->op_type);
}

static const char *entry_origin(struct lathe_import *c, const struct lathe_scope *s, const struct entry *e) {
    const LatheOnnx__Node *n;
    const char *text;
    switch (e->kind) {
    case ENTRY_NODE:
        n = s->spec.nodes[e->node];
        text = lathe_arena_format(c->scratch, "node '%s' (%s)", node_label(n), text_of(n->op_type));
        return text ? text : "a node";
    case ENTRY_TENSOR:
    case ENTRY_SPARSE:
        return "an initializer";
    default:
        return "an input";
    }
}

struct lathe_scope *lathe_scope_new(struct lathe_import *c, const struct lathe_scope_spec *spec) {
    if (c->status != LATHE_OK)
        return NULL;
    struct lathe_scope *s = lathe_arena_alloc(c->scratch, sizeof *s);
    struct entry *entries = lathe_arena_alloc_array(c->scratch, 64, sizeof *entries);
    if (!s || !entries) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the names of the model");
        return NULL;
    }
    s->spec = *spec;
    s->entries = entries;
    s->capacity = 64;
    const struct entry *taken = NULL;
    for (size_t i = 0; i < spec->initializer_count + spec->sparse_count; i++) {
        bool sparse = i >= spec->initializer_count;
        const LatheOnnx__Tensor *tensor =
            sparse ? spec->sparse[i - spec->initializer_count]->values : spec->initializers[i];
        const char *name = tensor ? text_of(tensor->name) : "";
        if (!*name) {
            lathe_imp_fail(c, LATHE_MSG_MODEL_STRUCTURE, "initializer %zu has no name", i);
            return NULL;
        }
        struct entry *e = add_entry(c, s, name, &taken);
        if (!e) {
            lathe_imp_fail(c, LATHE_MSG_DUPLICATE_NAME, "initializer '%s' is given twice", name);
            return NULL;
        }
        e->kind = sparse ? ENTRY_SPARSE : ENTRY_TENSOR;
        e->tensor = tensor;
        if (!sparse)
            lathe_imp_tensor_check(c, tensor, name);
    }
    for (size_t i = 0; i < spec->node_count; i++) {
        const LatheOnnx__Node *node = spec->nodes[i];
        for (size_t k = 0; k < node->n_output; k++) {
            const char *name = text_of(node->output[k]);
            if (!*name)
                continue;
            struct entry *e = add_entry(c, s, name, &taken);
            if (!e) {
                if (taken)
                    lathe_imp_fail(c, LATHE_MSG_DUPLICATE_NAME,
                                   "value '%s' is defined twice: by %s and by node '%s' (%s)", name,
                                   entry_origin(c, s, taken), node_label(node), text_of(node->op_type));
                return NULL;
            }
            e->kind = ENTRY_NODE;
            e->node = (uint32_t)i;
        }
    }
    return c->status == LATHE_OK ? s : NULL;
}

void lathe_scope_define(struct lathe_import *c, struct lathe_scope *s, const char *name, lathe_value_id v) {
    const struct entry *taken = NULL;
    struct entry *e = c->status == LATHE_OK ? add_entry(c, s, name, &taken) : NULL;
    if (e) {
        e->kind = ENTRY_VALUE;
        e->value = v;
    } else if (taken) {
        lathe_imp_fail(c, LATHE_MSG_DUPLICATE_NAME, "value '%s' is defined twice: as an input and by %s", name,
                       entry_origin(c, s, taken));
    }
}

const char *lathe_scope_prefix(const struct lathe_scope *s) {
    return s->spec.prefix;
}

bool lathe_scope_has_initializer(const struct lathe_scope *s, const char *name) {
    const struct entry *e = find_here(s, name);
    return e && (e->kind == ENTRY_TENSOR || e->kind == ENTRY_SPARSE);
}

int32_t lathe_scope_initializer_type(const struct lathe_scope *s, const char *name) {
    for (; s; s = s->spec.parent) {
        const struct entry *e = find_here(s, name);
        if (e)
            return e->kind == ENTRY_TENSOR ? e->tensor->data_type : 0;
    }
    return 0;
}

lathe_value_id lathe_scope_value(struct lathe_import *c, struct lathe_scope *s, const char *name) {
    for (; s; s = s->spec.parent) {
        struct entry *e = find_here(s, name);
        if (!e)
            continue;
        if (e->kind == ENTRY_SPARSE)
            lathe_imp_fail(c, LATHE_MSG_TYPE_UNSUPPORTED,
                           "initializer '%s' is a sparse tensor; only dense numeric tensors are supported", name);
        if (e->kind == ENTRY_TENSOR && e->value == LATHE_NONE)
            e->value = lathe_imp_tensor(c, e->tensor, name);
        return e->value;
    }
    return LATHE_NONE;
}

int64_t lathe_scope_opset(const struct lathe_scope *s, const char *domain) {
    for (; s; s = s->spec.parent) {
        for (size_t i = 0; i < s->spec.opset_count; i++) {
            const LatheOnnx__OperatorSetId *o = s->spec.opsets[i];
            const char *d = text_of(o->domain);
            if (!strcmp(d, "ai.onnx"))
                d = "";
            if (!strcmp(d, domain))
                return o->version;
        }
    }
    return 0;
}

const LatheOnnx__Attribute *lathe_scope_attribute(const struct lathe_scope *s, const char *name) {
    for (; s; s = s->spec.parent)
        for (size_t i = 0; i < s->spec.attribute_count; i++)
            if (!strcmp(s->spec.attributes[i].name, name))
                return s->spec.attributes[i].attribute;
    return NULL;
}

/* ---- dispatch */
static const char *node_domain(const LatheOnnx__Node *n) {
    const char *d = text_of(n->domain);
    return strcmp(d, "ai.onnx") ? d : "";
}

/* An import of com.microsoft may be missing (its optimizer writes such graphs in memory); it has one version only. */
static int64_t node_version(const struct lathe_scope *s, const LatheOnnx__Node *n) {
    int64_t version = lathe_scope_opset(s, node_domain(n));
    return !version && !strcmp(node_domain(n), "com.microsoft") ? 1 : version;
}

struct missing {
    const char *domain, *op;
    int64_t version;
    unsigned count;
};

struct survey {
    struct missing *list;
    size_t count, capacity;
    const LatheOnnx__Function **seen;
    size_t seen_count, seen_capacity;
};

static void *grown_array(struct lathe_import *c, void *list, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity)
        return list;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *grown = lathe_arena_alloc_array(c->scratch, wanted, size);
    if (!grown) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return NULL;
    }
    if (count)
        memcpy(grown, list, count * size);
    *capacity = wanted;
    return grown;
}

static void survey_function(struct lathe_import *c, struct survey *v, const LatheOnnx__Function *f, unsigned depth);

static void survey_node(struct lathe_import *c, struct survey *v, const LatheOnnx__Node *n, int64_t version,
                        unsigned depth) {
    const char *domain = node_domain(n), *op = text_of(n->op_type);
    const LatheOnnx__Function *f = lathe_onnx_function(c, domain, op, text_of(n->overload));
    if (f) {
        survey_function(c, v, f, depth + 1);
        return;
    }
    if (lathe_onnx_op_find(domain, op, version))
        return;
    if (!version && !*domain) {
        lathe_imp_fail(c, LATHE_MSG_NO_OPSET,
                       "the model imports no opset for domain ai.onnx, which node '%s' (%s) needs; supported are "
                       "ai.onnx %d to %d",
                       node_label(n), op, LATHE_ONNX_MIN_OPSET, LATHE_ONNX_MAX_OPSET);
        return;
    }
    for (size_t i = 0; i < v->count; i++) {
        if (v->list[i].version == version && !strcmp(v->list[i].op, op) && !strcmp(v->list[i].domain, domain)) {
            v->list[i].count++;
            return;
        }
    }
    struct missing *list = grown_array(c, v->list, &v->capacity, v->count, sizeof *list);
    if (!list)
        return;
    v->list = list;
    v->list[v->count++] = (struct missing){domain, op, version, 1};
}

static void survey_function(struct lathe_import *c, struct survey *v, const LatheOnnx__Function *f, unsigned depth) {
    if (depth > 64 || c->status != LATHE_OK)
        return; /* the call itself finds a recursion and names it */
    for (size_t i = 0; i < v->seen_count; i++)
        if (v->seen[i] == f)
            return;
    const LatheOnnx__Function **seen =
        grown_array(c, (void *)v->seen, &v->seen_capacity, v->seen_count, sizeof(const LatheOnnx__Function *));
    if (!seen)
        return;
    v->seen = seen;
    v->seen[v->seen_count++] = f;
    struct lathe_scope body = {.spec = {.opsets = f->opset_import, .opset_count = f->n_opset_import}};
    for (size_t i = 0; i < f->n_node && c->status == LATHE_OK; i++)
        survey_node(c, v, f->node[i], node_version(&body, f->node[i]), depth);
}

static int by_operator(const void *a, const void *b) {
    const struct missing *x = a, *y = b;
    int order = strcmp(x->domain, y->domain);
    if (!order)
        order = strcmp(x->op, y->op);
    return order ? order : (x->version > y->version) - (x->version < y->version);
}

/* What a user can do about an operator; NULL when that is not known. */
static const char *advice_for(const struct missing *m) {
    static const char *const of_data[] = {"NonZero", "NonMaxSuppression", "Unique"};
    if (!strncmp(m->domain, "com.microsoft.nchwc", 19))
        return "com.microsoft.nchwc is the layout of one CPU: save the model at ORT_ENABLE_EXTENDED or below";
    for (size_t i = 0; !*m->domain && i < sizeof of_data / sizeof *of_data; i++)
        if (!strcmp(m->op, of_data[i]))
            return "how much it finds depends on the data, and the sizes of a plan on those of the inputs alone: "
                   "export "
                   "it with a mask in place of a selection";
    return NULL;
}

/* All operators that are missing, in one message. */
static void check_supported(struct lathe_import *c, struct lathe_scope *s, const uint32_t *order, size_t count) {
    struct survey v = {0};
    for (size_t i = 0; i < count && c->status == LATHE_OK; i++) {
        const LatheOnnx__Node *n = s->spec.nodes[order[i]];
        survey_node(c, &v, n, node_version(s, n), c->depth);
    }
    if (!v.count || c->status != LATHE_OK)
        return;
    qsort(v.list, v.count, sizeof *v.list, by_operator);
    struct lathe_text text = {0};
    unsigned total = 0;
    for (size_t i = 0; i < v.count; i++) {
        lathe_text_append(&text, "%s%s.%s version %lld (%u node%s)", i ? ", " : "",
                          *v.list[i].domain ? v.list[i].domain : "ai.onnx", v.list[i].op, (long long)v.list[i].version,
                          v.list[i].count, v.list[i].count == 1 ? "" : "s");
        total += v.list[i].count;
    }
    const char *last = NULL;
    for (size_t i = 0; i < v.count; i++) {
        const char *advice = advice_for(&v.list[i]);
        if (advice && advice != last)
            lathe_text_append(&text, " (%s)", advice);
        last = advice ? advice : last;
    }
    lathe_imp_fail(
        c, LATHE_MSG_OPERATORS, "%u node%s of %zu operator%s %s not supported: %s; `lathe ops` lists what is", total,
        total == 1 ? "" : "s", v.count, v.count == 1 ? "" : "s", total == 1 ? "is" : "are", text.data ? text.data : "");
    lathe_text_free(&text);
}

static void bind_operands(struct lathe_import *c, struct lathe_scope *s, const LatheOnnx__Node *n) {
    c->n_in = (uint32_t)n->n_input;
    c->n_out = (uint32_t)n->n_output;
    c->in = lathe_arena_alloc_array(c->scratch, n->n_input + 1, sizeof *c->in);
    c->out = lathe_arena_alloc_array(c->scratch, n->n_output + 1, sizeof *c->out);
    if (!c->in || !c->out) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return;
    }
    for (size_t i = 0; i < n->n_input; i++) {
        const char *name = text_of(n->input[i]);
        c->in[i] = *name ? lathe_scope_value(c, s, name) : LATHE_NONE;
    }
    for (size_t i = 0; i < n->n_output; i++)
        c->out[i] = LATHE_NONE;
    /* Trailing absent operands are the same as none. */
    while (c->n_in && c->in[c->n_in - 1] == LATHE_NONE)
        c->n_in--;
}

/* The element type of the operand that decides. */
static void check_type(struct lathe_import *c, const struct lathe_onnx_op *row) {
    uint32_t at = strcmp(row->name, "Where") ? 0 : 1;
    if (!strcmp(row->name, "ConstantOfShape") || c->n_in <= at || c->in[at] == LATHE_NONE)
        return;
    enum lathe_dtype dtype = lathe_value_at(c->g, c->in[at])->dtype;
    if (dtype == LATHE_NO_DTYPE || row->types & 1u << dtype)
        return;
    struct lathe_text text = {0};
    lathe_onnx_types_text(row->types, &text);
    lathe_imp_node_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "operand %u ('%s') is %s; supported are %s", at,
                        text_of(c->node->input[at]), lathe_dtype_name(dtype), text.data ? text.data : "");
    lathe_text_free(&text);
}

static void run_row(struct lathe_import *c, const struct lathe_onnx_op *row, const LatheOnnx__Node *n) {
    if (c->n_in < row->min_in || n->n_input > row->max_in) {
        char most[32] = "";
        if (row->max_in > LATHE_ONNX_MAX_OPERANDS)
            snprintf(most, sizeof most, " or more");
        else if (row->max_in > row->min_in)
            snprintf(most, sizeof most, " to %u", row->max_in);
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "it has %zu operand%s and needs %u%s", n->n_input,
                            n->n_input == 1 ? "" : "s", row->min_in, most);
        return;
    }
    for (uint32_t i = 0; i < row->min_in; i++) {
        if (c->in[i] == LATHE_NONE) {
            lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand %u is absent, and the operator needs it", i);
            return;
        }
    }
    if (n->n_output > row->max_out) {
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "it has %zu outputs, and may have %u", n->n_output,
                            row->max_out);
        return;
    }
    check_type(c, row);
    if (c->status == LATHE_OK)
        row->run(c);
    for (size_t i = 0; i < n->n_attribute && i < 64 && c->status == LATHE_OK; i++)
        if (!(c->attributes_read & (uint64_t)1 << i))
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "attribute '%s' is not supported at version %d",
                                text_of(n->attribute[i]->name), c->version);
    if (n->n_attribute > 64)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has %zu attributes; at most 64 are read", n->n_attribute);
}

static void import_node(struct lathe_import *c, struct lathe_scope *s, const LatheOnnx__Node *n) {
    struct lathe_import outer = *c; /* functions and branches come back here */
    const char *domain = node_domain(n);
    c->scope = s;
    c->node = n;
    c->node_name = lathe_arena_format(c->scratch, "%s%s", s->spec.prefix, node_label(n));
    c->origin = *domain ? lathe_arena_format(c->scratch, "%s.%s", domain, text_of(n->op_type)) : text_of(n->op_type);
    c->version = (int)node_version(s, n);
    c->attributes_read = 0;
    if (!c->node_name || !c->origin)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
    else if (n->n_input > LATHE_ONNX_MAX_OPERANDS || n->n_output > LATHE_ONNX_MAX_OPERANDS)
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "it has more than %d operands or outputs",
                            LATHE_ONNX_MAX_OPERANDS);
    else if (++c->nodes > LATHE_ONNX_MAX_NODES)
        lathe_imp_fail(c, LATHE_MSG_NESTING, "the model has more than %u nodes when its functions are written out",
                       LATHE_ONNX_MAX_NODES);
    else
        bind_operands(c, s, n);
    if (c->status == LATHE_OK) {
        const LatheOnnx__Function *f = lathe_onnx_function(c, domain, text_of(n->op_type), text_of(n->overload));
        const struct lathe_onnx_op *row = f ? NULL : lathe_onnx_op_find(domain, text_of(n->op_type), c->version);
        if (f)
            lathe_imp_call(c, f);
        else if (row)
            run_row(c, row, n);
        else
            lathe_imp_node_fail(c, LATHE_MSG_OPERATORS, "it is not supported");
    }
    for (size_t i = 0; i < n->n_output && c->status == LATHE_OK; i++) {
        const char *name = text_of(n->output[i]);
        if (!*name)
            continue;
        if (c->out[i] == LATHE_NONE)
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "output %zu ('%s') is not supported", i, name);
        else
            find_here(s, name)->value = c->out[i];
    }
    outer.status = c->status;
    outer.nodes = c->nodes;
    *c = outer;
}

/* ---- order */
struct frame {
    uint32_t node;
    uint32_t next, count;
    uint32_t *needs; /* nodes of this scope */
};

struct order {
    uint8_t *state; /* 0 new, 1 on the stack, 2 done */
    struct frame *stack;
    size_t depth;
    uint32_t *list;
    size_t count;
};

struct names {
    uint32_t *list;
    size_t count, capacity;
};

static void need_name(struct lathe_import *c, const struct lathe_scope *s, const char *name, struct names *needs) {
    const struct entry *e = name && *name ? find_here(s, name) : NULL;
    if (!e || e->kind != ENTRY_NODE)
        return;
    uint32_t *list = grown_array(c, needs->list, &needs->capacity, needs->count, sizeof *list);
    if (!list)
        return;
    needs->list = list;
    needs->list[needs->count++] = e->node;
}

/* Bodies of a node's attributes read values of this scope by name. Nesting is limited by the wire walk. */
static void need_body(struct lathe_import *c, const struct lathe_scope *s, const LatheOnnx__Graph *g,
                      struct names *needs) {
    for (size_t i = 0; i < g->n_node; i++) {
        const LatheOnnx__Node *n = g->node[i];
        for (size_t k = 0; k < n->n_input; k++)
            need_name(c, s, n->input[k], needs);
        for (size_t k = 0; k < n->n_attribute; k++)
            if (n->attribute[k]->g)
                need_body(c, s, n->attribute[k]->g, needs);
    }
    for (size_t i = 0; i < g->n_output; i++)
        need_name(c, s, g->output[i]->name, needs);
}

static void push(struct lathe_import *c, const struct lathe_scope *s, struct order *o, uint32_t node) {
    const LatheOnnx__Node *n = s->spec.nodes[node];
    struct names needs = {0};
    for (size_t i = 0; i < n->n_input; i++)
        need_name(c, s, n->input[i], &needs);
    for (size_t i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->g)
            need_body(c, s, n->attribute[i]->g, &needs);
    o->state[node] = 1;
    o->stack[o->depth++] = (struct frame){.node = node, .count = (uint32_t)needs.count, .needs = needs.list};
}

static void report_cycle(struct lathe_import *c, const struct lathe_scope *s, const struct order *o, uint32_t node) {
    struct lathe_text text = {0};
    size_t first = o->depth;
    while (first && o->stack[first - 1].node != node)
        first--;
    for (size_t i = first ? first - 1 : 0; i < o->depth; i++)
        lathe_text_append(&text, "'%s' (%s), ", node_label(s->spec.nodes[o->stack[i].node]),
                          text_of(s->spec.nodes[o->stack[i].node]->op_type));
    lathe_imp_fail(c, LATHE_MSG_CYCLE,
                   "the graph has a cycle; each of these nodes needs the next: %sand the first again",
                   text.data ? text.data : "");
    lathe_text_free(&text);
}

/* Depth first from a node, without recursion. The order follows from the data flow alone, so shuffled files import the
 * same. */
static void visit(struct lathe_import *c, const struct lathe_scope *s, struct order *o, uint32_t root) {
    if (o->state[root])
        return;
    push(c, s, o, root);
    while (o->depth && c->status == LATHE_OK) {
        struct frame *top = &o->stack[o->depth - 1];
        if (top->next == top->count) {
            o->state[top->node] = 2;
            o->list[o->count++] = top->node;
            o->depth--;
            continue;
        }
        uint32_t need = top->needs[top->next++];
        if (o->state[need] == 1)
            report_cycle(c, s, o, need);
        else if (!o->state[need])
            push(c, s, o, need);
    }
}

static void check_defined(struct lathe_import *c, const struct lathe_scope *s) {
    for (size_t i = 0; i < s->spec.node_count && c->status == LATHE_OK; i++) {
        const LatheOnnx__Node *n = s->spec.nodes[i];
        for (size_t k = 0; k < n->n_input; k++)
            if (n->input[k] && *n->input[k] && !find_anywhere(s, n->input[k]))
                lathe_imp_fail(
                    c, LATHE_MSG_UNDEFINED_VALUE,
                    "node '%s' (%s): operand %zu, '%s', is neither an input, an initializer nor the output of "
                    "a node",
                    node_label(n), text_of(n->op_type), k, n->input[k]);
    }
}

void lathe_scope_run(struct lathe_import *c, struct lathe_scope *s, const char *const *outputs, size_t count) {
    if (c->status != LATHE_OK)
        return;
    check_defined(c, s);
    size_t n = s->spec.node_count;
    struct order o = {
        .state = lathe_arena_alloc_array(c->scratch, n + 1, sizeof *o.state),
        .stack = lathe_arena_alloc_array(c->scratch, n + 1, sizeof *o.stack),
        .list = lathe_arena_alloc_array(c->scratch, n + 1, sizeof *o.list),
    };
    if (!o.state || !o.stack || !o.list) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to sort %zu nodes", n);
        return;
    }
    for (size_t i = 0; i < count && c->status == LATHE_OK; i++) {
        const struct entry *e = find_here(s, outputs[i]);
        if (!e && !find_anywhere(s, outputs[i]))
            lathe_imp_fail(c, LATHE_MSG_UNDEFINED_VALUE,
                           "output '%s' is neither an input, an initializer nor the output of a node", outputs[i]);
        else if (e && e->kind == ENTRY_NODE)
            visit(c, s, &o, e->node);
    }
    size_t live = o.count;
    for (size_t i = 0; i < n && c->status == LATHE_OK; i++)
        visit(c, s, &o, (uint32_t)i); /* finds cycles among nodes that nothing needs */
    if (c->status != LATHE_OK)
        return;
    check_supported(c, s, o.list, live);
    for (size_t i = 0; i < live && c->status == LATHE_OK; i++)
        import_node(c, s, s->spec.nodes[o.list[i]]);
}
