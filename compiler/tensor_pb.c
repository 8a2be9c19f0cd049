/* TensorProto is read field by field from the wire: nothing is allocated but the elements, whose size is known first.
 */
#include "tensor_pb.h"
#include "onnx_wire.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum field {
    FIELD_DIMS = 1,
    FIELD_TYPE = 2,
    FIELD_SEGMENT = 3,
    FIELD_FLOATS = 4,
    FIELD_INT32S = 5,
    FIELD_STRINGS = 6,
    FIELD_INT64S = 7,
    FIELD_NAME = 8,
    FIELD_RAW = 9,
    FIELD_DOUBLES = 10,
    FIELD_UINT64S = 11,
    FIELD_EXTERNAL = 13,
    FIELD_LOCATION = 14,
};
enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct piece {
    const uint8_t *at, *end;
};

struct reader {
    const char *path;
    struct lathe_diag *diag;
    enum lathe_dtype dtype;
    int64_t dims[LATHE_MAX_RANK];
    unsigned rank;
    struct piece name, raw;
    bool has_raw;
    unsigned char *out; /* elements, in the second walk */
    size_t capacity, filled, width;
};

static enum lathe_status bad(const struct reader *r, const char *why) {
    return lathe_fail(r->diag, LATHE_MSG_DATA_FILE, "%s: %s", r->path, why);
}

/* One field: its number, wire type, and value: a number or a piece of bytes. */
static bool next_field(struct piece *p, uint32_t *number, unsigned *wire, uint64_t *value, struct piece *bytes) {
    uint64_t tag;
    if (!lathe_wire_varint(&p->at, p->end, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return false;
    *number = (uint32_t)(tag >> 3);
    *wire = tag & 7;
    size_t left = (size_t)(p->end - p->at), n;
    switch (*wire) {
    case WIRE_VARINT:
        return lathe_wire_varint(&p->at, p->end, value);
    case WIRE_64:
    case WIRE_32:
        n = *wire == WIRE_64 ? 8 : 4;
        break;
    case WIRE_BYTES:
        if (!lathe_wire_varint(&p->at, p->end, value) || *value > (uint64_t)(p->end - p->at))
            return false;
        left = (size_t)(p->end - p->at);
        n = (size_t)*value;
        break;
    default:
        return false;
    }
    if (n > left)
        return false;
    *bytes = (struct piece){p->at, p->at + n};
    p->at += n;
    return true;
}

/* The typed field that holds elements of this type. */
static uint32_t element_field(enum lathe_dtype dtype) {
    switch (dtype) {
    case LATHE_F32:
        return FIELD_FLOATS;
    case LATHE_F64:
        return FIELD_DOUBLES;
    case LATHE_I64:
        return FIELD_INT64S;
    case LATHE_U32:
    case LATHE_U64:
        return FIELD_UINT64S;
    default:
        return FIELD_INT32S;
    }
}

static bool store(struct reader *r, const void *element) {
    if (r->filled + r->width > r->capacity)
        return false;
    memcpy(r->out + r->filled, element, r->width);
    r->filled += r->width;
    return true;
}

/* A varint element: little-endian, so its low bytes are the narrow value (a half float is stored as its bits). */
static bool store_varint(struct reader *r, uint64_t value) {
    return store(r, &value);
}

/* Elements of a typed field, packed or one by one. */
static bool take_elements(struct reader *r, unsigned wire, uint64_t value, struct piece bytes) {
    bool fixed = r->dtype == LATHE_F32 || r->dtype == LATHE_F64;
    if (!fixed && wire == WIRE_VARINT)
        return store_varint(r, value);
    if (fixed && (wire == WIRE_32 || wire == WIRE_64))
        return (size_t)(bytes.end - bytes.at) == r->width && store(r, bytes.at);
    if (wire != WIRE_BYTES)
        return false;
    if (fixed) {
        size_t n = (size_t)(bytes.end - bytes.at);
        if (n % r->width || n > r->capacity - r->filled)
            return false;
        memcpy(r->out + r->filled, bytes.at, n);
        r->filled += n;
        return true;
    }
    while (bytes.at < bytes.end)
        if (!lathe_wire_varint(&bytes.at, bytes.end, &value) || !store_varint(r, value))
            return false;
    return true;
}

static enum lathe_status add_dim(struct reader *r, uint64_t value) {
    if (r->rank == LATHE_MAX_RANK)
        return lathe_fail(r->diag, LATHE_MSG_DATA_TYPE, "%s: more than %d dimensions", r->path, LATHE_MAX_RANK);
    if (value > INT64_MAX)
        return lathe_fail(r->diag, LATHE_MSG_DATA_FILE, "%s: dimension %u is %lld", r->path, r->rank, (long long)value);
    r->dims[r->rank++] = (int64_t)value;
    return LATHE_OK;
}

static enum lathe_status take_dims(struct reader *r, unsigned wire, uint64_t value, struct piece bytes) {
    if (wire == WIRE_VARINT)
        return add_dim(r, value);
    if (wire != WIRE_BYTES)
        return bad(r, "is no TensorProto: dims of a wrong kind");
    while (bytes.at < bytes.end) {
        if (!lathe_wire_varint(&bytes.at, bytes.end, &value))
            return bad(r, "is no TensorProto: a number is cut off");
        LATHE_TRY(add_dim(r, value));
    }
    return LATHE_OK;
}

/* First walk: type, shape, name, and what is refused. */
static enum lathe_status take_header(struct reader *r, uint32_t number, unsigned wire, uint64_t value,
                                     struct piece bytes) {
    switch (number) {
    case FIELD_DIMS:
        return take_dims(r, wire, value, bytes);
    case FIELD_TYPE:
        if (wire != WIRE_VARINT)
            return bad(r, "is no TensorProto: data_type of a wrong kind");
        if (value > 255 || !lathe_dtype_bytes((enum lathe_dtype)value))
            return lathe_fail(r->diag, LATHE_MSG_DATA_TYPE, "%s: element type %llu of ONNX is not supported", r->path,
                              (unsigned long long)value);
        r->dtype = (enum lathe_dtype)value;
        return LATHE_OK;
    case FIELD_NAME:
    case FIELD_RAW:
        if (wire != WIRE_BYTES)
            return bad(r, "is no TensorProto: a name or raw_data of a wrong kind");
        *(number == FIELD_NAME ? &r->name : &r->raw) = bytes;
        r->has_raw |= number == FIELD_RAW;
        return LATHE_OK;
    case FIELD_LOCATION:
        return value == 1 ? bad(r, "its elements are in another file, which data files may not be") : LATHE_OK;
    case FIELD_EXTERNAL:
        return bad(r, "its elements are in another file, which data files may not be");
    case FIELD_SEGMENT:
        return bad(r, "is a segment of a tensor, which is not supported");
    default:
        return LATHE_OK;
    }
}

static enum lathe_status walk(struct reader *r, struct piece file, bool elements) {
    uint32_t number;
    unsigned wire;
    uint64_t value = 0;
    struct piece bytes = {NULL, NULL};
    while (file.at < file.end) {
        if (!next_field(&file, &number, &wire, &value, &bytes))
            return bad(r, "is no TensorProto: a field is cut off or of an unknown kind");
        if (!elements)
            LATHE_TRY(take_header(r, number, wire, value, bytes));
        else if (number == element_field(r->dtype) && !take_elements(r, wire, value, bytes))
            return bad(r, "holds more elements than its shape, or of a wrong kind");
    }
    return LATHE_OK;
}

static enum lathe_status decode(struct reader *r, struct piece file, struct lathe_data_tensor *out) {
    LATHE_TRY(walk(r, file, false));
    if (!r->dtype)
        return bad(r, "is no TensorProto: no data_type");
    int64_t need = lathe_shape_bytes(r->dtype, r->rank, r->dims);
    /* A typed element takes at least a byte of the file, so a shape that the file cannot fill is refused before memory
     * is asked for it. */
    size_t file_bytes = (size_t)(file.end - file.at);
    if (need < 0 || (uint64_t)need / lathe_dtype_bytes(r->dtype) > file_bytes)
        return lathe_fail(r->diag, LATHE_MSG_DATA_FILE, "%s: its shape needs more elements than the file holds",
                          r->path);
    char *name = r->name.at ? strndup((const char *)r->name.at, (size_t)(r->name.end - r->name.at)) : strdup("");
    if (!name)
        return lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "%s: no memory", r->path);
    enum lathe_status status = lathe_data_tensor_make(out, name, r->dtype, r->rank, r->dims, r->path, r->diag);
    free(name);
    LATHE_TRY(status);
    r->out = out->data;
    r->capacity = out->bytes;
    r->width = lathe_dtype_bytes(r->dtype);
    if (r->has_raw) {
        r->filled = (size_t)(r->raw.end - r->raw.at);
        if (r->filled == out->bytes)
            memcpy(out->data, r->raw.at, r->filled);
    } else {
        LATHE_TRY(walk(r, file, true));
    }
    if (r->filled != out->bytes)
        return lathe_fail(r->diag, LATHE_MSG_DATA_FILE, "%s: %zu bytes of elements, its shape needs %zu", r->path,
                          r->filled, out->bytes);
    for (size_t i = 0; r->dtype == LATHE_BOOL && i < out->bytes; i++)
        if (r->out[i] > 1)
            return lathe_fail(r->diag, LATHE_MSG_DATA_FILE, "%s: element %zu is %u, a bool is 0 or 1", r->path, i,
                              r->out[i]);
    return LATHE_OK;
}

enum lathe_status lathe_tensor_pb_read(const char *path, struct lathe_data_tensor *out, struct lathe_diag *diag) {
    void *file;
    size_t size;
    *out = (struct lathe_data_tensor){0};
    LATHE_TRY(lathe_read_file(path, &file, &size, diag));
    struct reader r = {.path = path, .diag = diag};
    enum lathe_status status = decode(&r, (struct piece){file, (const uint8_t *)file + size}, out);
    if (status != LATHE_OK)
        lathe_data_tensor_free(out);
    free(file);
    return status;
}
