/* The operators of the source, from onnx_ops.def. */
#include "onnx_import.h"

#include <string.h>

static const struct lathe_onnx_op table[] = {
#define ONNX_OP(domain, name, first, last, min_in, max_in, max_out, importer)                                          \
    {domain, name, first, last, min_in, max_in, max_out, lathe_onnx_##importer},
#include "onnx_ops.def"
#undef ONNX_OP
};

enum { COUNT = sizeof table / sizeof *table };

const struct lathe_onnx_op *lathe_onnx_op_at(unsigned index) {
    return index < COUNT ? &table[index] : NULL;
}

const struct lathe_onnx_op *lathe_onnx_op_find(const char *domain, const char *name, int64_t version) {
    for (unsigned i = 0; i < COUNT; i++)
        if (table[i].name[0] == name[0] && !strcmp(table[i].name, name) && !strcmp(table[i].domain, domain) &&
            version >= table[i].first && version <= table[i].last)
            return &table[i];
    return NULL;
}
