/* The operators of the source, from onnx_ops.def. */
#include "onnx_import.h"

#include <string.h>

static const struct lathe_onnx_op table[] = {
#define ONNX_OP(domain, name, first, last, min_in, max_in, max_out, types, importer)                                   \
    {domain, name, first, last, min_in, max_in, max_out, types, lathe_onnx_##importer},
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

void lathe_onnx_types_text(uint32_t types, struct lathe_text *out) {
    /* floats by size of use, then integers, in the order of readers and not of ONNX's numbers */
    static const enum lathe_dtype order[] = {LATHE_F32, LATHE_F16, LATHE_BF16, LATHE_F64, LATHE_I64,
                                             LATHE_I32, LATHE_I16, LATHE_I8,   LATHE_U64, LATHE_U32,
                                             LATHE_U16, LATHE_U8,  LATHE_BOOL};
    bool first = true;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (types & 1u << order[i]) {
            lathe_text_append(out, "%s%s", first ? "" : " ", lathe_dtype_name(order[i]));
            first = false;
        }
}
