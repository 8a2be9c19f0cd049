#include "onnx_wire.h"

#include <stdlib.h>
#include <string.h>

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_GROUP = 3, WIRE_END = 4, WIRE_FIXED32 = 5 };

enum message {
    MODEL,
    GRAPH,
    NODE,
    ATTRIBUTE,
    TENSOR,
    SPARSE,
    VALUE_INFO,
    TYPE,
    TENSOR_TYPE,
    SHAPE,
    DIMENSION,
    OPSET,
    FUNCTION,
    ENTRY,
    LEAF,     /* no message: copied as it is */
    ELEMENTS, /* elements of a tensor: replaced by their place */
    MARK,     /* only that the field is there matters: copied as empty bytes */
};

static const char *const message_names[] = {
    "ModelProto",        "GraphProto",         "NodeProto",     "AttributeProto",        "TensorProto",
    "SparseTensorProto", "ValueInfoProto",     "TypeProto",     "TypeProto.Tensor",      "TensorShapeProto",
    "Dimension",         "OperatorSetIdProto", "FunctionProto", "StringStringEntryProto"};

/* The fields that are kept; `wire` is a set of allowed wire types. */
#define W(t)   (1u << (t))
#define PACKED (W(WIRE_VARINT) | W(WIRE_BYTES))
static const struct field {
    uint8_t in, number, content, wire;
} fields[] = {
    {MODEL, 1, LEAF, W(WIRE_VARINT)},
    {MODEL, 2, LEAF, W(WIRE_BYTES)},
    {MODEL, 3, LEAF, W(WIRE_BYTES)},
    {MODEL, 7, GRAPH, W(WIRE_BYTES)},
    {MODEL, 8, OPSET, W(WIRE_BYTES)},
    {MODEL, 25, FUNCTION, W(WIRE_BYTES)},
    {GRAPH, 1, NODE, W(WIRE_BYTES)},
    {GRAPH, 2, LEAF, W(WIRE_BYTES)},
    {GRAPH, 5, TENSOR, W(WIRE_BYTES)},
    {GRAPH, 11, VALUE_INFO, W(WIRE_BYTES)},
    {GRAPH, 12, VALUE_INFO, W(WIRE_BYTES)},
    {GRAPH, 15, SPARSE, W(WIRE_BYTES)},
    {NODE, 1, LEAF, W(WIRE_BYTES)},
    {NODE, 2, LEAF, W(WIRE_BYTES)},
    {NODE, 3, LEAF, W(WIRE_BYTES)},
    {NODE, 4, LEAF, W(WIRE_BYTES)},
    {NODE, 5, ATTRIBUTE, W(WIRE_BYTES)},
    {NODE, 7, LEAF, W(WIRE_BYTES)},
    {NODE, 8, LEAF, W(WIRE_BYTES)},
    {ATTRIBUTE, 1, LEAF, W(WIRE_BYTES)},
    {ATTRIBUTE, 2, LEAF, W(WIRE_FIXED32)},
    {ATTRIBUTE, 3, LEAF, W(WIRE_VARINT)},
    {ATTRIBUTE, 4, LEAF, W(WIRE_BYTES)},
    {ATTRIBUTE, 5, TENSOR, W(WIRE_BYTES)},
    {ATTRIBUTE, 6, GRAPH, W(WIRE_BYTES)},
    {ATTRIBUTE, 7, LEAF, W(WIRE_FIXED32) | W(WIRE_BYTES)},
    {ATTRIBUTE, 8, LEAF, PACKED},
    {ATTRIBUTE, 9, LEAF, W(WIRE_BYTES)},
    {ATTRIBUTE, 10, TENSOR, W(WIRE_BYTES)},
    {ATTRIBUTE, 11, GRAPH, W(WIRE_BYTES)},
    {ATTRIBUTE, 20, LEAF, W(WIRE_VARINT)},
    {ATTRIBUTE, 21, LEAF, W(WIRE_BYTES)},
    {ATTRIBUTE, 22, SPARSE, W(WIRE_BYTES)},
    {TENSOR, 1, LEAF, PACKED},
    {TENSOR, 2, LEAF, W(WIRE_VARINT)},
    {TENSOR, 4, ELEMENTS, W(WIRE_FIXED32) | W(WIRE_BYTES)},
    {TENSOR, 5, ELEMENTS, PACKED},
    {TENSOR, 7, ELEMENTS, PACKED},
    {TENSOR, 8, LEAF, W(WIRE_BYTES)},
    {TENSOR, 9, ELEMENTS, W(WIRE_BYTES)},
    {TENSOR, 10, ELEMENTS, W(WIRE_FIXED64) | W(WIRE_BYTES)},
    {TENSOR, 11, ELEMENTS, PACKED},
    {TENSOR, 13, ENTRY, W(WIRE_BYTES)},
    {TENSOR, 14, LEAF, W(WIRE_VARINT)},
    {SPARSE, 1, TENSOR, W(WIRE_BYTES)},
    {VALUE_INFO, 1, LEAF, W(WIRE_BYTES)},
    {VALUE_INFO, 2, TYPE, W(WIRE_BYTES)},
    {TYPE, 1, TENSOR_TYPE, W(WIRE_BYTES)},
    {TYPE, 4, MARK, W(WIRE_BYTES)},
    {TYPE, 5, MARK, W(WIRE_BYTES)},
    {TYPE, 7, MARK, W(WIRE_BYTES)},
    {TYPE, 8, MARK, W(WIRE_BYTES)},
    {TYPE, 9, MARK, W(WIRE_BYTES)},
    {TENSOR_TYPE, 1, LEAF, W(WIRE_VARINT)},
    {TENSOR_TYPE, 2, SHAPE, W(WIRE_BYTES)},
    {SHAPE, 1, DIMENSION, W(WIRE_BYTES)},
    {DIMENSION, 1, LEAF, W(WIRE_VARINT)},
    {DIMENSION, 2, LEAF, W(WIRE_BYTES)},
    {OPSET, 1, LEAF, W(WIRE_BYTES)},
    {OPSET, 2, LEAF, W(WIRE_VARINT)},
    {FUNCTION, 1, LEAF, W(WIRE_BYTES)},
    {FUNCTION, 4, LEAF, W(WIRE_BYTES)},
    {FUNCTION, 5, LEAF, W(WIRE_BYTES)},
    {FUNCTION, 6, LEAF, W(WIRE_BYTES)},
    {FUNCTION, 7, NODE, W(WIRE_BYTES)},
    {FUNCTION, 9, OPSET, W(WIRE_BYTES)},
    {FUNCTION, 10, LEAF, W(WIRE_BYTES)},
    {FUNCTION, 11, ATTRIBUTE, W(WIRE_BYTES)},
    {FUNCTION, 13, LEAF, W(WIRE_BYTES)},
    {ENTRY, 1, LEAF, W(WIRE_BYTES)},
    {ENTRY, 2, LEAF, W(WIRE_BYTES)},
};

struct walk {
    const uint8_t *start, *end; /* of the file */
    const char *name;
    uint8_t *out;
    size_t used, capacity;
    unsigned long messages;
    const struct field *table[ENTRY + 1][32];
    struct lathe_diag *diag;
};

bool lathe_wire_varint(const uint8_t **p, const uint8_t *end, uint64_t *value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70 && *p < end; shift += 7) {
        uint8_t byte = *(*p)++;
        if (shift == 63 && byte > 1)
            return false;
        result |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value = result;
            return true;
        }
    }
    return false;
}

static enum lathe_status fault(struct walk *w, const uint8_t *at, enum message in, const char *what) {
    return lathe_fail(w->diag, LATHE_MSG_NOT_ONNX,
                      "%s is not an ONNX model or is damaged: %s at byte %llu of %llu (in %s)", w->name, what,
                      (unsigned long long)(at - w->start), (unsigned long long)(w->end - w->start), message_names[in]);
}

static enum lathe_status put(struct walk *w, const void *bytes, size_t count) {
    if (count > w->capacity - w->used) {
        size_t capacity = w->capacity ? w->capacity : 1 << 16;
        while (capacity - w->used < count) {
            if (capacity > SIZE_MAX / 2)
                return lathe_fail(w->diag, LATHE_MSG_NO_MEMORY, "no memory to read %s", w->name);
            capacity *= 2;
        }
        uint8_t *grown = realloc(w->out, capacity);
        if (!grown)
            return lathe_fail(w->diag, LATHE_MSG_NO_MEMORY, "no memory to read %s", w->name);
        w->out = grown;
        w->capacity = capacity;
    }
    if (count)
        memcpy(w->out + w->used, bytes, count);
    w->used += count;
    return LATHE_OK;
}

static enum lathe_status put_varint(struct walk *w, uint64_t value) {
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
    return put(w, bytes, n);
}

static enum lathe_status put_place(struct walk *w, uint32_t field, const uint8_t *at, uint64_t length) {
    const uint64_t values[3] = {(uint64_t)(at - w->start), length, field};
    for (uint32_t i = 0; i < 3; i++) {
        LATHE_TRY(put_varint(w, (uint64_t)(1000 + i) << 3 | WIRE_VARINT));
        LATHE_TRY(put_varint(w, values[i]));
    }
    return LATHE_OK;
}

/* One field: its key, and *p after it. `at` .. *p are the content: for BYTES without the length. */
struct item {
    uint64_t number;
    unsigned wire;
    const uint8_t *key, *at;
    uint64_t length;
};

static enum lathe_status next_item(struct walk *w, enum message in, const uint8_t **p, const uint8_t *end,
                                   struct item *item) {
    uint64_t key, value;
    item->key = *p;
    if (!lathe_wire_varint(p, end, &key) || key > UINT32_MAX || key >> 3 == 0)
        return fault(w, item->key, in, "no valid field");
    item->number = key >> 3;
    item->wire = key & 7;
    item->at = *p;
    switch (item->wire) {
    case WIRE_VARINT:
        if (!lathe_wire_varint(p, end, &value))
            return fault(w, item->at, in, "a number is cut off or too long");
        item->length = (uint64_t)(*p - item->at);
        return LATHE_OK;
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        item->length = item->wire == WIRE_FIXED64 ? 8 : 4;
        break;
    case WIRE_BYTES:
        if (!lathe_wire_varint(p, end, &value))
            return fault(w, item->at, in, "a length is cut off or too long");
        item->at = *p;
        item->length = value;
        break;
    default:
        return fault(w, item->key, in, "a field of an unknown wire type");
    }
    if (item->length > (uint64_t)(end - *p))
        return fault(w, item->key, in, "a field runs past the end");
    *p += item->length;
    return LATHE_OK;
}

/* Elements can stay in the file when one field holds them all in one piece; the rare rest is copied and unpacked. */
static enum lathe_status find_elements(struct walk *w, const uint8_t *p, const uint8_t *end, struct item *one,
                                       bool *mapped) {
    unsigned found = 0;
    while (p < end) {
        struct item item;
        LATHE_TRY(next_item(w, TENSOR, &p, end, &item));
        const struct field *f = item.number < 32 ? w->table[TENSOR][item.number] : NULL;
        if (f && f->content == ELEMENTS && (item.length || item.number == 9)) {
            *one = item;
            found++;
        }
    }
    *mapped = found == 1 && one->wire == WIRE_BYTES;
    return LATHE_OK;
}

static enum lathe_status walk_message(struct walk *w, enum message in, const uint8_t *p, const uint8_t *end,
                                      unsigned depth) {
    if (depth > LATHE_ONNX_MAX_NESTING)
        return lathe_fail(w->diag, LATHE_MSG_NESTING, "%s: messages are nested deeper than %d at byte %llu", w->name,
                          LATHE_ONNX_MAX_NESTING, (unsigned long long)(p - w->start));
    if (++w->messages > LATHE_ONNX_MAX_MESSAGES)
        return lathe_fail(w->diag, LATHE_MSG_NESTING, "%s: more than %lu messages", w->name, LATHE_ONNX_MAX_MESSAGES);
    struct item elements = {0};
    bool mapped = false;
    if (in == TENSOR) {
        LATHE_TRY(find_elements(w, p, end, &elements, &mapped));
        if (mapped)
            LATHE_TRY(put_place(w, (uint32_t)elements.number, elements.at, elements.length));
    }
    while (p < end) {
        struct item item;
        LATHE_TRY(next_item(w, in, &p, end, &item));
        const struct field *f = item.number < 32 ? w->table[in][item.number] : NULL;
        if (!f || (f->content == ELEMENTS && mapped))
            continue;
        if (!(f->wire & W(item.wire)))
            return fault(w, item.key, in, "a field of the wrong wire type");
        if (f->content == ELEMENTS && item.number == 9)
            return fault(w, item.key, in, "raw_data beside other elements of the same tensor");
        LATHE_TRY(put_varint(w, item.number << 3 | item.wire));
        if (f->content < LEAF) {
            /* The length is known afterwards: five bytes with continuation bits hold any 32-bit length. */
            static const uint8_t blank[5];
            size_t at = w->used;
            LATHE_TRY(put(w, blank, sizeof blank));
            LATHE_TRY(walk_message(w, (enum message)f->content, item.at, item.at + item.length, depth + 1));
            uint64_t length = w->used - at - sizeof blank;
            if (length > INT32_MAX)
                return lathe_fail(w->diag, LATHE_MSG_NOT_ONNX, "%s: its graph without weights is larger than 2 GiB",
                                  w->name);
            for (int i = 0; i < 5; i++)
                w->out[at + i] = (uint8_t)(((length >> (7 * i)) & 0x7f) | (i < 4 ? 0x80 : 0));
        } else {
            uint64_t length = f->content == MARK ? 0 : item.length;
            if (item.wire == WIRE_BYTES)
                LATHE_TRY(put_varint(w, length));
            LATHE_TRY(put(w, item.at, length));
        }
    }
    return LATHE_OK;
}

enum lathe_status lathe_onnx_skeleton(const uint8_t *data, uint64_t size, const char *name, uint8_t **skeleton,
                                      size_t *skeleton_size, struct lathe_diag *diag) {
    struct walk w = {.start = data, .end = data + size, .name = name, .diag = diag};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        w.table[fields[i].in][fields[i].number] = &fields[i];
    enum lathe_status status = walk_message(&w, MODEL, data, data + size, 0);
    if (status != LATHE_OK) {
        free(w.out);
        return status;
    }
    *skeleton = w.out;
    *skeleton_size = w.used;
    return LATHE_OK;
}
