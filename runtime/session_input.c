/* Values of the inputs: ids are checked while wide, then narrowed; types that differ are converted into the session's
 * buffer; absent inputs with a default get it. */
#include "session.h"

#include <stdio.h>
#include <string.h>

int64_t lathe_read_integer(enum lathe_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case LATHE_I64:
    case LATHE_U64: {
        int64_t v;
        memcpy(&v, (const char *)data + i * 8, 8);
        return v;
    }
    case LATHE_I32: {
        int32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return v;
    }
    case LATHE_U32: {
        uint32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        return v;
    }
    case LATHE_I16: {
        int16_t v;
        memcpy(&v, (const char *)data + i * 2, 2);
        return v;
    }
    case LATHE_U16: {
        uint16_t v;
        memcpy(&v, (const char *)data + i * 2, 2);
        return v;
    }
    case LATHE_I8:
        return ((const int8_t *)data)[i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

/* The values that an integer type can hold; those of u64 past 2^63 are not told apart here. */
static void integer_bounds(enum lathe_dtype dtype, int64_t *low, int64_t *high) {
    unsigned bits = 8 * (unsigned)lathe_dtype_bytes(dtype);
    bool is_signed = dtype == LATHE_I8 || dtype == LATHE_I16 || dtype == LATHE_I32 || dtype == LATHE_I64;
    if (bits == 64) {
        *low = is_signed ? INT64_MIN : 0;
        *high = INT64_MAX;
    } else if (is_signed) {
        *high = (INT64_C(1) << (bits - 1)) - 1;
        *low = -*high - 1;
    } else {
        *low = 0;
        *high = (INT64_C(1) << bits) - 1;
    }
}

/* "input_ids[0][17]=6157, limit 6148" */
static enum lathe_status out_of_range(const struct lathe_session *s, uint32_t input, int64_t index, int64_t value,
                                      int64_t low, int64_t high, struct lathe_diag *diag) {
    const struct lathe_port *port = &s->ports[input];
    const struct lathe_binding *b = &s->bindings[input];
    char where[LATHE_MAX_RANK * 24] = "";
    for (unsigned d = port->rank; d > 0; d--) { /* from the last axis to the first, each put before what is there */
        char rest[sizeof where];
        memcpy(rest, where, sizeof rest);
        int64_t size = b->dims[d - 1] > 0 ? b->dims[d - 1] : 1;
        snprintf(where, sizeof where, "[%lld]%.150s", (long long)(index % size), rest);
        index /= size;
    }
    if (port->id_limit > 0)
        return lathe_fail(diag, LATHE_MSG_INPUT_RANGE, "%s%s=%lld, limit %lld%s", port->name, where, (long long)value,
                          (long long)port->id_limit, value < 0 ? " (negative ids are refused)" : "");
    return lathe_fail(diag, LATHE_MSG_INPUT_RANGE, "%s%s=%lld, %s holds %lld to %lld", port->name, where,
                      (long long)value, lathe_dtype_name(port->dtype), (long long)low, (long long)high);
}

/* Index of the first element outside [low, high], -1 when there is none. */
static int64_t first_outside(enum lathe_dtype dtype, const void *data, int64_t count, int64_t low, int64_t high) {
    if (dtype == LATHE_I64 && (uintptr_t)data % 8 == 0) {
        const int64_t *p = data;
        bool any = false;
        for (int64_t i = 0; i < count; i++)
            any |= p[i] < low || p[i] > high;
        if (!any)
            return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t v = lathe_read_integer(dtype, data, i);
        if (v < low || v > high)
            return i;
    }
    return -1;
}

void lathe_convert_integers(enum lathe_dtype from, const void *data, int64_t count, enum lathe_dtype to, void *out) {
    size_t bytes = lathe_dtype_bytes(to);
    for (int64_t i = 0; i < count; i++) { /* in range: the low bytes are the number in any integer type */
        int64_t v = lathe_read_integer(from, data, i);
        memcpy((char *)out + (size_t)i * bytes, &v, bytes);
    }
}

enum lathe_status lathe_session_check_values(const struct lathe_session *s, uint32_t i, struct lathe_diag *diag) {
    const struct lathe_port *port = &s->ports[i];
    const struct lathe_binding *b = &s->bindings[i];
    int64_t low, high, bytes = lathe_shape_bytes(b->dtype, port->rank, b->dims);
    if (!lathe_dtype_is_integer(port->dtype))
        return LATHE_OK;
    integer_bounds(port->dtype, &low, &high);
    if (port->id_limit > 0) {
        low = 0;
        high = port->id_limit - 1 < high ? port->id_limit - 1 : high;
    }
    if (port->id_limit == 0 && b->dtype == port->dtype)
        return LATHE_OK;
    int64_t at = first_outside(b->dtype, b->data, bytes / (int64_t)lathe_dtype_bytes(b->dtype), low, high);
    return at < 0 ? LATHE_OK : out_of_range(s, i, at, lathe_read_integer(b->dtype, b->data, at), low, high, diag);
}

static enum lathe_status bound_input(struct lathe_session *s, uint32_t i, const void **data, struct lathe_diag *diag) {
    const struct lathe_port *port = &s->ports[i];
    struct lathe_binding *b = &s->bindings[i];
    *data = b->data;
    if (!lathe_dtype_is_integer(port->dtype))
        return LATHE_OK;
    LATHE_TRY(lathe_session_check_values(s, i, diag));
    int64_t bytes = lathe_shape_bytes(b->dtype, port->rank, b->dims);
    int64_t count = bytes / (int64_t)lathe_dtype_bytes(b->dtype);
    if (b->dtype == port->dtype && (uintptr_t)b->data % lathe_dtype_bytes(port->dtype) == 0)
        return LATHE_OK;
    int64_t need = lathe_shape_bytes(port->dtype, port->rank, b->dims);
    if (need < 0 || (uint64_t)need > b->buffer_bytes)
        return lathe_fail(diag, LATHE_MSG_BUG, "input '%s': %lld bytes, the session has %llu", port->name,
                          (long long)need, (unsigned long long)b->buffer_bytes);
    lathe_convert_integers(b->dtype, b->data, count, port->dtype, b->buffer);
    b->state = LATHE_BUFFER_COPY;
    *data = b->buffer;
    return LATHE_OK;
}

static enum lathe_status default_input(struct lathe_session *s, uint32_t i, const void **data,
                                       struct lathe_diag *diag) {
    const struct lathe_port *port = &s->ports[i];
    const struct lathe_fmt_port *f = &s->manifest->inputs[i];
    const struct lathe_tensor *t = &s->tensors[f->value];
    struct lathe_binding *b = &s->bindings[i];
    int64_t bytes = lathe_shape_bytes(port->dtype, t->rank, t->dims), count = lathe_tensor_count(t);
    if (bytes < 0 || (uint64_t)bytes > b->buffer_bytes)
        return lathe_fail(diag, LATHE_MSG_BUG, "input '%s': %lld bytes, the session has %llu", port->name,
                          (long long)bytes, (unsigned long long)b->buffer_bytes);
    if (f->default_kind == LATHE_DEFAULT_ZEROS) {
        if (b->state != LATHE_BUFFER_ZEROS)
            memset(b->buffer, 0, (size_t)b->buffer_bytes);
        b->state = LATHE_BUFFER_ZEROS;
    } else {
        int64_t axis = t->dims[t->rank - 1];
        if (b->state != LATHE_BUFFER_POSITIONS || b->axis != axis || b->filled < count) {
            size_t each = lathe_dtype_bytes(port->dtype);
            for (int64_t k = 0; k < count; k++) {
                int64_t position = k % axis;
                memcpy(b->buffer + (size_t)k * each, &position, each);
            }
            b->state = LATHE_BUFFER_POSITIONS;
            b->axis = axis;
            b->filled = count;
        }
    }
    *data = b->buffer;
    return LATHE_OK;
}

enum lathe_status lathe_session_inputs(struct lathe_session *s, struct lathe_diag *diag) {
    for (uint32_t i = 0; i < s->manifest->head->input_count; i++) {
        const void *data = NULL;
        LATHE_TRY(s->bindings[i].bound ? bound_input(s, i, &data, diag) : default_input(s, i, &data, diag));
        for (uint32_t k = 0; k < s->input_value_count; k++) {
            uint32_t v = s->input_values[k];
            if (s->plan->values[v].index == i)
                s->tensors[v].data = (void *)(uintptr_t)data;
        }
    }
    return LATHE_OK;
}
