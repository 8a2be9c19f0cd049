/* The header is a Python dictionary literal with exactly the keys descr, fortran_order and shape, in any order. */
#include "npy.h"
#include "plan.h"
#include "write_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

struct header {
    enum lathe_dtype dtype;
    bool swap, fortran;
    unsigned rank;
    int64_t dims[LATHE_MAX_RANK];
    unsigned seen; /* a bit a key */
};

/* What is left of the header text while it is parsed. */
struct cursor {
    const char *at, *end;
};

static void skip(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}
static bool take(struct cursor *c, char what) {
    skip(c);
    if (c->at == c->end || *c->at != what)
        return false;
    c->at++;
    return true;
}
static bool take_word(struct cursor *c, const char *word) {
    size_t n = strlen(word);
    skip(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n))
        return false;
    c->at += n;
    return true;
}
static bool take_string(struct cursor *c, char *buffer, size_t size) {
    skip(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at++;
    size_t n = 0;
    while (c->at < c->end && *c->at != quote) {
        if (n + 1 >= size || *c->at == '\\')
            return false;
        buffer[n++] = *c->at++;
    }
    buffer[n] = 0;
    return take(c, quote);
}

static bool parse_descr(const char *descr, struct header *h) {
    static const struct {
        const char *text; /* without byte order */
        enum lathe_dtype dtype;
    } types[] = {
#define DTYPE(number, name, text, bytes, numpy) {&numpy[1], LATHE_##name},
#include "dtypes.def"
#undef DTYPE
    };
    char order = descr[0];
    if (order != '<' && order != '>' && order != '=' && order != '|')
        return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(descr + 1, types[i].text)) {
            h->dtype = types[i].dtype;
            h->swap = order == '>' && lathe_dtype_bytes(h->dtype) > 1;
            return true;
        }
    return false;
}

/* 0: no tuple of plain numbers; 1: done; 2: too many dimensions. */
static int parse_shape(struct cursor *c, struct header *h) {
    if (!take(c, '('))
        return 0;
    while (!take(c, ')')) {
        int64_t n = 0;
        skip(c);
        if (c->at == c->end || !isdigit((unsigned char)*c->at))
            return 0;
        for (; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
            if (!lathe_mul_i64(n, 10, &n) || !lathe_add_i64(n, *c->at - '0', &n))
                return 0;
        if (h->rank == LATHE_MAX_RANK)
            return 2;
        h->dims[h->rank++] = n;
        if (!take(c, ',')) {
            if (!take(c, ')') || h->rank == 1) /* a tuple of one has a comma */
                return 0;
            break;
        }
    }
    return 1;
}

static enum lathe_status bad(const char *path, const char *why, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path, why);
}

static enum lathe_status parse_entry(const char *path, struct cursor *c, struct header *h, struct lathe_diag *diag) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[24], descr[32];
    unsigned k = 0;
    if (!take_string(c, key, sizeof key) || !take(c, ':'))
        return bad(path, "the .npy header is not the dictionary it must be", diag);
    while (k < 3 && strcmp(keys[k], key))
        k++;
    if (k == 3 || h->seen & 1u << k)
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: key '%s' of the .npy header is %s", path, key,
                          k == 3 ? "unknown" : "written twice");
    h->seen |= 1u << k;
    if (k == 0) {
        if (!take_string(c, descr, sizeof descr))
            return lathe_fail(diag, LATHE_MSG_DATA_TYPE, "%s: structured elements are not supported", path);
        if (!parse_descr(descr, h))
            return lathe_fail(diag, LATHE_MSG_DATA_TYPE,
                              "%s: element type '%s' is not supported (b1, i1 to i8, u1 to u8, f2, f4, f8, bf16 as V2)",
                              path, descr);
        return LATHE_OK;
    }
    if (k == 1) {
        h->fortran = take_word(c, "True");
        return h->fortran || take_word(c, "False") ? LATHE_OK : bad(path, "fortran_order is not True or False", diag);
    }
    int shape = parse_shape(c, h);
    if (shape == 2)
        return lathe_fail(diag, LATHE_MSG_DATA_TYPE, "%s: more than %d dimensions", path, LATHE_MAX_RANK);
    return shape ? LATHE_OK : bad(path, "the shape in the .npy header is no tuple of sizes", diag);
}

static enum lathe_status parse_header(const char *path, const char *text, size_t size, struct header *h,
                                      struct lathe_diag *diag) {
    struct cursor c = {text, text + size};
    if (!take(&c, '{'))
        return bad(path, "the .npy header is no dictionary", diag);
    while (!take(&c, '}')) {
        LATHE_TRY(parse_entry(path, &c, h, diag));
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return bad(path, "the .npy header is not the dictionary it must be", diag);
            break;
        }
    }
    skip(&c);
    if (h->seen != 7 || c.at != c.end)
        return bad(path, "the .npy header lacks one of descr, fortran_order and shape, or goes on after its end", diag);
    return LATHE_OK;
}

static void swap_bytes(struct lathe_data_tensor *t) {
    size_t width = lathe_dtype_bytes(t->dtype);
    unsigned char *p = t->data;
    for (size_t i = 0; i < t->bytes; i += width)
        for (size_t j = 0; j < width / 2; j++) {
            unsigned char c = p[i + j];
            p[i + j] = p[i + width - 1 - j];
            p[i + width - 1 - j] = c;
        }
}

/* From column-major elements at `from` to row-major ones in t. */
static void reorder(struct lathe_data_tensor *t, const unsigned char *from) {
    size_t width = lathe_dtype_bytes(t->dtype), count = t->bytes / width;
    int64_t index[LATHE_MAX_RANK] = {0};
    for (size_t i = 0; i < count; i++) {
        size_t row_major = 0;
        for (unsigned a = 0; a < t->rank; a++)
            row_major = row_major * (size_t)t->dims[a] + (size_t)index[a];
        memcpy((unsigned char *)t->data + row_major * width, from + i * width, width);
        for (unsigned a = 0; a < t->rank && ++index[a] == t->dims[a]; a++)
            index[a] = 0;
    }
}

static enum lathe_status check_bools(const char *path, const struct lathe_data_tensor *t, struct lathe_diag *diag) {
    for (size_t i = 0; t->dtype == LATHE_BOOL && i < t->bytes; i++)
        if (((const unsigned char *)t->data)[i] > 1)
            return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: element %zu is %u, a bool is 0 or 1", path, i,
                              ((const unsigned char *)t->data)[i]);
    return LATHE_OK;
}

static enum lathe_status decode(const char *path, const unsigned char *file, size_t size, struct lathe_data_tensor *out,
                                struct lathe_diag *diag) {
    if (size < 10 || memcmp(file, magic, sizeof magic))
        return bad(path, "is no .npy file", diag);
    if (file[6] < 1 || file[6] > 3)
        return lathe_fail(diag, LATHE_MSG_DATA_TYPE, "%s: .npy version %u, supported 1 to 3", path, file[6]);
    size_t start = file[6] == 1 ? 10 : 12;
    size_t length = file[8] | (size_t)file[9] << 8;
    if (start == 12) {
        if (size < 12)
            return bad(path, "the .npy header is cut off", diag);
        length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
    }
    if (length > size - start)
        return bad(path, "the .npy header is cut off", diag);
    struct header h = {0};
    LATHE_TRY(parse_header(path, (const char *)file + start, length, &h, diag));
    const unsigned char *elements = file + start + length;
    size_t have = size - start - length;
    /* Compared before the allocation: a header may claim anything. */
    int64_t need = lathe_shape_bytes(h.dtype, h.rank, h.dims);
    if (need < 0 || (uint64_t)need != have)
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %zu bytes of elements, its shape needs %lld%s", path, have,
                          (long long)need, need < 0 ? " (more than 63 bits)" : "");
    LATHE_TRY(lathe_data_tensor_make(out, "", h.dtype, h.rank, h.dims, path, diag));
    if (h.fortran && h.rank > 1)
        reorder(out, elements);
    else
        memcpy(out->data, elements, out->bytes);
    if (h.swap)
        swap_bytes(out);
    return check_bools(path, out, diag);
}

enum lathe_status lathe_npy_read(const char *path, struct lathe_data_tensor *out, struct lathe_diag *diag) {
    void *file;
    size_t size;
    *out = (struct lathe_data_tensor){0};
    LATHE_TRY(lathe_read_file(path, &file, &size, diag));
    enum lathe_status status = decode(path, file, size, out, diag);
    if (status != LATHE_OK)
        lathe_data_tensor_free(out);
    free(file);
    return status;
}

static const char *descr_of(enum lathe_dtype dtype) {
    switch ((unsigned)dtype) {
#define DTYPE(number, name, text, bytes, numpy)                                                                        \
    case number:                                                                                                       \
        return numpy;
#include "dtypes.def"
#undef DTYPE
    default:
        return NULL;
    }
}

enum lathe_status lathe_npy_write(const char *path, enum lathe_dtype dtype, unsigned rank, const int64_t *dims,
                                  const void *data, size_t bytes, struct lathe_diag *diag) {
    char header[512];
    size_t n = 10;
    const char *descr = descr_of(dtype);
    if (!descr)
        return lathe_fail(diag, LATHE_MSG_BUG, "%s: element type %d has no numpy name", path, (int)dtype);
    n += (size_t)snprintf(header + n, sizeof header - n, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (unsigned i = 0; i < rank; i++)
        n += (size_t)snprintf(header + n, sizeof header - n, "%s%lld%s", i ? " " : "", (long long)dims[i],
                              rank == 1 || i + 1 < rank ? "," : "");
    n += (size_t)snprintf(header + n, sizeof header - n, "), }");
    while ((n + 1) % 64)
        header[n++] = ' ';
    header[n++] = '\n';
    memcpy(header, magic, sizeof magic);
    header[6] = 1;
    header[7] = 0;
    header[8] = (char)((n - 10) & 255);
    header[9] = (char)((n - 10) >> 8);
    const struct lathe_file_part parts[] = {{header, n}, {data, bytes}};
    return lathe_write_file(path, parts, 2, diag);
}
