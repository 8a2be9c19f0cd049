/* Attributes of the node that is imported. */
#include "onnx_import.h"

#include <string.h>

enum onnx_attribute_type { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_STRING = 3, TYPE_FLOATS = 6, TYPE_INTS = 7 };

const LatheOnnx__Attribute *lathe_imp_attr(struct lathe_import *c, const char *name) {
    if (c->status != LATHE_OK)
        return NULL;
    const LatheOnnx__Node *n = c->node;
    for (size_t i = 0; i < n->n_attribute; i++) {
        const LatheOnnx__Attribute *a = n->attribute[i];
        if (!a->name || strcmp(a->name, name))
            continue;
        if (i < 64)
            c->attributes_read |= (uint64_t)1 << i;
        if (a->ref_attr_name && *a->ref_attr_name)
            return lathe_scope_attribute(c->scope, a->ref_attr_name);
        return a;
    }
    return NULL;
}

bool lathe_imp_has_attr(struct lathe_import *c, const char *name) {
    return lathe_imp_attr(c, name) != NULL;
}

void lathe_imp_ignore_attr(struct lathe_import *c, const char *name) {
    (void)lathe_imp_attr(c, name);
}

/* The type field is set since IR version 3; a file without it is read by what is there. */
static const LatheOnnx__Attribute *of_type(struct lathe_import *c, const char *name, int type, const char *what) {
    const LatheOnnx__Attribute *a = lathe_imp_attr(c, name);
    if (!a)
        return NULL;
    bool there = type == TYPE_FLOAT ? a->has_f : type == TYPE_INT ? a->has_i : type == TYPE_STRING ? a->has_s : true;
    if (a->has_type && a->type ? a->type == type : there)
        return a;
    lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "attribute '%s' is not %s", name, what);
    return NULL;
}

int64_t lathe_imp_attr_int(struct lathe_import *c, const char *name, int64_t absent) {
    const LatheOnnx__Attribute *a = of_type(c, name, TYPE_INT, "an integer");
    return a ? a->i : absent;
}

double lathe_imp_attr_float(struct lathe_import *c, const char *name, double absent) {
    const LatheOnnx__Attribute *a = of_type(c, name, TYPE_FLOAT, "a float");
    return a ? (double)a->f : absent;
}

const int64_t *lathe_imp_attr_ints(struct lathe_import *c, const char *name, uint32_t *count) {
    static const int64_t none;
    *count = 0;
    const LatheOnnx__Attribute *a = of_type(c, name, TYPE_INTS, "a list of integers");
    if (!a)
        return NULL;
    if (a->n_ints > LATHE_ONNX_MAX_OPERANDS) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "attribute '%s' has %zu entries; at most %d are read", name,
                            a->n_ints, LATHE_ONNX_MAX_OPERANDS);
        return NULL;
    }
    *count = (uint32_t)a->n_ints;
    return a->n_ints ? a->ints : &none;
}

const char *lathe_imp_attr_string(struct lathe_import *c, const char *name, const char *absent) {
    const LatheOnnx__Attribute *a = of_type(c, name, TYPE_STRING, "a string");
    if (!a)
        return absent;
    char *text = lathe_arena_alloc(c->scratch, a->s.len + 1);
    if (!text) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return absent;
    }
    if (a->s.len)
        memcpy(text, a->s.data, a->s.len);
    return text;
}
