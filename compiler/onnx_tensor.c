/* Tensors of the source become constants: borrowed from the mapped file wherever its bytes are as the graph wants them.
 */
#include "onnx_import.h"

#include "onnx_wire.h"
#include "ops/half.h"

#include <string.h>

enum { FIELD_FLOAT = 4, FIELD_INT32 = 5, FIELD_INT64 = 7, FIELD_RAW = 9, FIELD_DOUBLE = 10, FIELD_UINT64 = 11 };
enum { ONNX_STRING = 8, ONNX_UINT4 = 21, ONNX_INT4 = 22, ONNX_UINT2 = 25, ONNX_INT2 = 26 };

const char *lathe_onnx_type_name(int64_t type) {
    static const char *const names[] = {
        "undefined", "float",      "uint8",      "int8",         "uint16",         "int16",      "int32",
        "int64",     "string",     "bool",       "float16",      "double",         "uint32",     "uint64",
        "complex64", "complex128", "bfloat16",   "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
        "uint4",     "int4",       "float4e2m1", "float8e8m0",   "uint2",          "int2"};
    return type >= 0 && type < (int64_t)(sizeof names / sizeof *names) ? names[type] : "unknown";
}

enum lathe_dtype lathe_imp_element_type(struct lathe_import *c, int64_t type, const char *what, const char *name) {
    if (type > 0 && type < 32 && lathe_dtype_bytes((enum lathe_dtype)type))
        return (enum lathe_dtype)type;
    lathe_imp_fail(c, LATHE_MSG_TYPE_UNSUPPORTED,
                   "%s '%s' has element type %s (%lld); supported are float, double, float16, bfloat16, bool and the "
                   "integers of 8 to 64 bits",
                   what, name, lathe_onnx_type_name(type), (long long)type);
    return LATHE_NO_DTYPE;
}

/* What a tensor holds: elements, and bytes or bits an element. */
struct layout {
    int rank;
    int64_t count;
    unsigned bits; /* stored, an element; 0: a type whose size is not known here */
    uint64_t bytes;
};

static bool get_layout(struct lathe_import *c, const LatheOnnx__Tensor *t, const char *name, struct layout *out) {
    out->count = 1;
    bool empty = false;
    for (size_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] < 0) {
            lathe_imp_fail(c, LATHE_MSG_TENSOR_DATA, "tensor '%s': dimension %zu is %lld; it must not be negative",
                           name, i, (long long)t->dims[i]);
            return false;
        }
        empty |= t->dims[i] == 0;
        if (t->dims[i] > 0 && !lathe_mul_i64(out->count, t->dims[i], &out->count)) {
            lathe_imp_fail(c, LATHE_MSG_TENSOR_DATA, "tensor '%s': the product of its dimensions does not fit 63 bits",
                           name);
            return false;
        }
    }
    if (empty)
        out->count = 0;
    out->rank = t->n_dims > INT32_MAX ? INT32_MAX : (int)t->n_dims;
    int32_t type = t->has_data_type ? t->data_type : 0;
    size_t bytes = type > 0 && type < 32 ? lathe_dtype_bytes((enum lathe_dtype)type) : 0;
    out->bits = (unsigned)bytes * 8;
    if (type == ONNX_UINT4 || type == ONNX_INT4)
        out->bits = 4;
    if (type == ONNX_UINT2 || type == ONNX_INT2)
        out->bits = 2;
    int64_t bits;
    if (!lathe_mul_i64(out->count, out->bits, &bits)) {
        lathe_imp_fail(c, LATHE_MSG_TENSOR_DATA, "tensor '%s': its size in bits does not fit 63 bits", name);
        return false;
    }
    out->bytes = ((uint64_t)bits + 7) / 8;
    return true;
}

/* The field that holds elements of a type when raw_data does not. */
static uint32_t typed_field(int32_t type) {
    switch (type) {
    case LATHE_F32:
        return FIELD_FLOAT;
    case LATHE_F64:
        return FIELD_DOUBLE;
    case LATHE_I64:
        return FIELD_INT64;
    case LATHE_U32:
    case LATHE_U64:
        return FIELD_UINT64;
    default:
        return FIELD_INT32;
    }
}

static const char *external_entry(const LatheOnnx__Tensor *t, const char *key) {
    const char *found = NULL;
    for (size_t i = 0; i < t->n_external_data; i++)
        if (t->external_data[i]->key && !strcmp(t->external_data[i]->key, key))
            found = t->external_data[i]->value ? t->external_data[i]->value : "";
    return found;
}

/* Elements in their stored form, wherever they are. */
struct elements {
    const uint8_t *raw; /* NULL: the arrays of the tensor, or numbers of base 128 */
    const uint8_t *packed, *packed_end;
};

static bool wrong_size(struct lathe_import *c, const char *name, const char *field, uint64_t found, uint64_t need,
                       const char *unit) {
    lathe_imp_fail(c, LATHE_MSG_TENSOR_DATA, "tensor '%s': %s has %llu %s, but shape and type need %llu", name, field,
                   (unsigned long long)found, unit, (unsigned long long)need);
    return false;
}

static uint64_t count_packed(const uint8_t *p, const uint8_t *end) {
    uint64_t count = 0;
    for (; p < end; p++)
        count += !(*p & 0x80);
    return count;
}

static uint64_t typed_count(const LatheOnnx__Tensor *t, uint32_t field) {
    switch (field) {
    case FIELD_FLOAT:
        return t->n_float_data;
    case FIELD_DOUBLE:
        return t->n_double_data;
    case FIELD_INT64:
        return t->n_int64_data;
    case FIELD_UINT64:
        return t->n_uint64_data;
    default:
        return t->n_int32_data;
    }
}

static bool find_elements(struct lathe_import *c, const LatheOnnx__Tensor *t, const char *name,
                          const struct layout *layout, struct elements *out) {
    memset(out, 0, sizeof *out);
    if (t->data_location == 1) {
        const char *location = external_entry(t, "location");
        const void *data = NULL;
        c->status = lathe_model_file_external(c->file, name, location ? location : "", external_entry(t, "offset"),
                                              external_entry(t, "length"), layout->bytes, &data, c->diag);
        out->raw = data;
        return c->status == LATHE_OK;
    }
    uint32_t field = typed_field(t->data_type);
    /* Types of less than a byte are packed in int32_data as they are in raw_data: a byte an entry. */
    uint64_t entries = layout->bits < 8 ? layout->bytes : (uint64_t)layout->count;
    uint64_t size;
    const uint8_t *file = lathe_model_file_data(c->file, &size);
    if (!t->has_mapped_field) {
        uint64_t found = typed_count(t, field);
        return found == entries || wrong_size(c, name, "its data", found, entries, "elements");
    }
    const uint8_t *at = file + t->mapped_offset;
    if (t->mapped_field == FIELD_RAW) {
        if (t->mapped_length != layout->bytes)
            return wrong_size(c, name, "raw_data", t->mapped_length, layout->bytes, "bytes");
        out->raw = at;
        return true;
    }
    if (t->mapped_field != field)
        return wrong_size(c, name, "the data field of its type", 0, entries, "elements");
    if (field == FIELD_FLOAT || field == FIELD_DOUBLE) {
        if (t->mapped_length != layout->bytes)
            return wrong_size(c, name, "its data", t->mapped_length, layout->bytes, "bytes");
        out->raw = at;
        return true;
    }
    out->packed = at;
    out->packed_end = at + t->mapped_length;
    uint64_t found = count_packed(out->packed, out->packed_end);
    return found == entries || wrong_size(c, name, "its data", found, entries, "elements");
}

void lathe_imp_tensor_check(struct lathe_import *c, const LatheOnnx__Tensor *t, const char *name) {
    struct layout layout;
    struct elements elements;
    if (c->status == LATHE_OK && get_layout(c, t, name, &layout) && layout.bits)
        find_elements(c, t, name, &layout, &elements);
}

/* Entry i of a typed field as 64 bits; base-128 numbers are read in order. */
static uint64_t next_entry(const LatheOnnx__Tensor *t, uint32_t field, struct elements *e, int64_t i) {
    uint64_t value = 0;
    if (e->packed) {
        if (!lathe_wire_varint(&e->packed, e->packed_end, &value))
            return 0;
        return value;
    }
    switch (field) {
    case FIELD_INT64:
        return (uint64_t)t->int64_data[i];
    case FIELD_UINT64:
        return t->uint64_data[i];
    default:
        return (uint64_t)(int64_t)t->int32_data[i];
    }
}

/* Typed fields to the plain form, in the graph's arena. */
static const void *convert(struct lathe_import *c, const LatheOnnx__Tensor *t, const struct layout *layout,
                           struct elements *e) {
    uint32_t field = typed_field(t->data_type);
    if (field == FIELD_FLOAT)
        return lathe_arena_copy(c->g->arena, t->float_data, (size_t)layout->bytes);
    if (field == FIELD_DOUBLE)
        return lathe_arena_copy(c->g->arena, t->double_data, (size_t)layout->bytes);
    size_t width = layout->bits < 8 ? 1 : layout->bits / 8;
    uint8_t *out = lathe_arena_alloc(c->g->arena, (size_t)layout->bytes + 1);
    for (uint64_t i = 0; out && i < layout->bytes / width; i++) {
        uint64_t entry = next_entry(t, field, e, (int64_t)i);
        memcpy(out + i * width, &entry, width); /* the hosts and the format are little-endian */
    }
    return out;
}

/* int4, uint4, int2, uint2: the first element in the lowest bits. */
static const void *widen(struct lathe_import *c, const uint8_t *packed, const struct layout *layout, bool is_signed) {
    uint8_t *out = lathe_arena_alloc(c->g->arena, (size_t)layout->count + 1);
    unsigned bits = layout->bits, per_byte = 8 / bits;
    for (int64_t i = 0; out && i < layout->count; i++) {
        unsigned v = packed[i / per_byte] >> (bits * (unsigned)(i % per_byte)) & ((1u << bits) - 1);
        if (is_signed && v >> (bits - 1))
            v |= 0xffu << bits;
        out[i] = (uint8_t)v;
    }
    return out;
}

static int64_t first_nan(enum lathe_dtype dtype, const uint8_t *data, int64_t count) {
    enum { BLOCK = 4096 };
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t end = count - at < BLOCK ? count : at + BLOCK;
        unsigned found = 0;
        switch (dtype) {
        case LATHE_F32:
            for (int64_t i = at; i < end; i++) {
                uint32_t u;
                memcpy(&u, data + 4 * i, 4);
                found |= (u & 0x7fffffffu) > 0x7f800000u;
            }
            break;
        case LATHE_F64:
            for (int64_t i = at; i < end; i++) {
                uint64_t u;
                memcpy(&u, data + 8 * i, 8);
                found |= (u & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
            }
            break;
        case LATHE_F16:
        case LATHE_BF16:
            for (int64_t i = at; i < end; i++) {
                uint16_t u;
                memcpy(&u, data + 2 * i, 2);
                found |= (u & 0x7fffu) > (dtype == LATHE_F16 ? 0x7c00u : 0x7f80u);
            }
            break;
        default:
            return -1;
        }
        if (found)
            return at;
    }
    return -1;
}

static const uint8_t *plain_bools(struct lathe_import *c, const uint8_t *data, int64_t count) {
    int64_t i = 0;
    while (i < count && data[i] <= 1)
        i++;
    if (i == count)
        return data;
    uint8_t *out = lathe_arena_alloc(c->g->arena, (size_t)count);
    for (i = 0; out && i < count; i++)
        out[i] = data[i] != 0;
    return out;
}

lathe_value_id lathe_imp_tensor(struct lathe_import *c, const LatheOnnx__Tensor *t, const char *name) {
    struct layout layout;
    struct elements e;
    if (c->status != LATHE_OK || !get_layout(c, t, name, &layout))
        return LATHE_NONE;
    int32_t type = t->has_data_type ? t->data_type : 0;
    enum lathe_dtype dtype = type == ONNX_UINT4 || type == ONNX_UINT2 ? LATHE_U8
                             : type == ONNX_INT4 || type == ONNX_INT2 ? LATHE_I8
                                                                      : lathe_imp_element_type(c, type, "tensor", name);
    if (layout.rank > LATHE_MAX_RANK)
        lathe_imp_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "tensor '%s' has rank %d; at most %d is supported", name,
                       layout.rank, LATHE_MAX_RANK);
    if (c->status != LATHE_OK || !find_elements(c, t, name, &layout, &e))
        return LATHE_NONE;
    const void *data = e.raw ? e.raw : convert(c, t, &layout, &e);
    if (data && layout.bits < 8)
        data = widen(c, data, &layout, dtype == LATHE_I8);
    if (data && dtype == LATHE_BOOL)
        data = plain_bools(c, data, layout.count);
    if (!layout.count)
        data = "";
    if (!data) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for tensor '%s'", name);
        return LATHE_NONE;
    }
    if (layout.count > 1 && first_nan(dtype, data, layout.count) >= 0) {
        lathe_imp_fail(c, LATHE_MSG_TENSOR_DATA,
                       "tensor '%s' holds NaN from about element %lld on; weights must be numbers", name,
                       (long long)first_nan(dtype, data, layout.count));
        return LATHE_NONE;
    }
    lathe_value_id v = lathe_graph_add_constant(c->g, name, dtype, layout.rank, t->dims, data);
    if (v == LATHE_NONE)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for tensor '%s'", name);
    return v;
}
