#include "data_tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void lathe_data_tensor_free(struct lathe_data_tensor *tensor) {
    free(tensor->name);
    free(tensor->data);
    *tensor = (struct lathe_data_tensor){0};
}

enum lathe_status lathe_data_tensor_make(struct lathe_data_tensor *tensor, const char *name, enum lathe_dtype dtype,
                                         unsigned rank, const int64_t *dims, const char *what,
                                         struct lathe_diag *diag) {
    *tensor = (struct lathe_data_tensor){.dtype = dtype, .rank = rank};
    size_t bytes = lathe_dtype_bytes(dtype);
    if (!bytes)
        return lathe_fail(diag, LATHE_MSG_DATA_TYPE, "%s: element type %d is not supported", what, (int)dtype);
    if (rank > LATHE_MAX_RANK)
        return lathe_fail(diag, LATHE_MSG_DATA_TYPE, "%s: rank %u, at most %d", what, rank, LATHE_MAX_RANK);
    bool fits = true, empty = false;
    for (unsigned i = 0; i < rank; i++) {
        tensor->dims[i] = dims[i];
        if (dims[i] < 0)
            return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: dimension %u is %lld", what, i, (long long)dims[i]);
        empty |= dims[i] == 0;
    }
    for (unsigned i = 0; i < rank && !empty; i++)
        fits = fits && lathe_mul_size(bytes, (size_t)dims[i], &bytes) && bytes <= PTRDIFF_MAX;
    if (!fits)
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: the product of its dimensions does not fit 63 bits", what);
    tensor->bytes = empty ? 0 : bytes;
    tensor->name = strdup(name);
    tensor->data = calloc(1, tensor->bytes ? tensor->bytes : 1);
    if (tensor->name && tensor->data)
        return LATHE_OK;
    lathe_data_tensor_free(tensor);
    return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory for %zu bytes", what, bytes);
}

void lathe_shape_text(enum lathe_dtype dtype, unsigned rank, const int64_t *dims, char *buffer, size_t size) {
    size_t n = (size_t)snprintf(buffer, size, "%s[", lathe_dtype_name(dtype));
    for (unsigned i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(buffer + n, size - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    if (n < size)
        snprintf(buffer + n, size - n, "]");
}

static double f16_value(uint16_t bits) {
    unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31)
        return fraction ? __builtin_nan("") : sign * __builtin_inf();
    if (!exponent)
        return sign * __builtin_ldexp(fraction, -24);
    return sign * __builtin_ldexp(1024 + fraction, (int)exponent - 25);
}

static double bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#define LOAD(type)                                                                                                     \
    do {                                                                                                               \
        type value;                                                                                                    \
        memcpy(&value, (const char *)data + i * sizeof value, sizeof value);                                           \
        return (double)value;                                                                                          \
    } while (0)

double lathe_element_f64(enum lathe_dtype dtype, const void *data, size_t i) {
    uint16_t half;
    switch (dtype) {
    case LATHE_F32:
        LOAD(float);
    case LATHE_F64:
        LOAD(double);
    case LATHE_U8:
    case LATHE_BOOL:
        LOAD(uint8_t);
    case LATHE_I8:
        LOAD(int8_t);
    case LATHE_U16:
        LOAD(uint16_t);
    case LATHE_I16:
        LOAD(int16_t);
    case LATHE_U32:
        LOAD(uint32_t);
    case LATHE_I32:
        LOAD(int32_t);
    case LATHE_U64:
        LOAD(uint64_t);
    case LATHE_I64:
        LOAD(int64_t);
    case LATHE_F16:
        memcpy(&half, (const char *)data + i * 2, 2);
        return f16_value(half);
    case LATHE_BF16:
        memcpy(&half, (const char *)data + i * 2, 2);
        return bf16_value(half);
    default:
        return 0;
    }
}

/* The upper half of the f32 nearest to the value, to nearest even. */
static uint16_t bf16_bits(double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* For generated inputs in (-65504, 65504): truncated to 11 significant bits, small values become zero. */
static uint16_t f16_bits(double value) {
    int exponent;
    double fraction = __builtin_frexp(value < 0 ? -value : value, &exponent);
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (fraction == 0 || exponent < -13)
        return sign;
    if (exponent > 15)
        return sign | 0x7bff;
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((unsigned)(fraction * 2048) & 1023));
}

#define STORE(type)                                                                                                    \
    do {                                                                                                               \
        type stored = (type)value;                                                                                     \
        memcpy((char *)data + i * sizeof stored, &stored, sizeof stored);                                              \
    } while (0)

void lathe_element_set(enum lathe_dtype dtype, void *data, size_t i, double value) {
    uint16_t half;
    switch (dtype) {
    case LATHE_F32:
        STORE(float);
        break;
    case LATHE_F64:
        STORE(double);
        break;
    case LATHE_BOOL:
        ((uint8_t *)data)[i] = value != 0;
        break;
    case LATHE_U8:
        STORE(uint8_t);
        break;
    case LATHE_I8:
        STORE(int8_t);
        break;
    case LATHE_U16:
        STORE(uint16_t);
        break;
    case LATHE_I16:
        STORE(int16_t);
        break;
    case LATHE_U32:
        STORE(uint32_t);
        break;
    case LATHE_I32:
        STORE(int32_t);
        break;
    case LATHE_U64:
        STORE(uint64_t);
        break;
    case LATHE_I64:
        STORE(int64_t);
        break;
    case LATHE_F16:
    case LATHE_BF16:
        half = dtype == LATHE_F16 ? f16_bits(value) : bf16_bits(value);
        memcpy((char *)data + i * 2, &half, 2);
        break;
    default:
        break;
    }
}

enum lathe_status lathe_read_file(const char *path, void **data, size_t *size, struct lathe_diag *diag) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not wait */
    if (fd < 0)
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: is no regular file", path);
    }
    size_t total = (size_t)st.st_size, have = 0;
    char *bytes = malloc(total ? total : 1);
    ssize_t n = 1;
    while (bytes && have < total && (n = read(fd, bytes + have, total - have)) != 0) {
        if (n > 0)
            have += (size_t)n;
        else if (errno != EINTR)
            break;
    }
    int error = errno;
    close(fd);
    if (!bytes)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory for %zu bytes", path, total);
    if (have < total) {
        free(bytes);
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path,
                          n < 0 ? strerror(error) : "changed while it was read");
    }
    *data = bytes;
    *size = total;
    return LATHE_OK;
}
