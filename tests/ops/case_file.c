#include "case_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void malformed(int line, const char *what) {
    fprintf(stderr, "cases file, line %d: %s\n", line, what);
    exit(2);
}

static enum lathe_dtype dtype_of(const char *name) {
    for (int i = 1; i < 32; i++)
        if (strcmp(lathe_dtype_name((enum lathe_dtype)i), name) == 0)
            return (enum lathe_dtype)i;
    return LATHE_NO_DTYPE;
}

static enum lathe_attr_key key_of(const char *name) {
#define ATTR(number, key, text)                                                                                        \
    if (strcmp(name, text) == 0)                                                                                       \
        return LATHE_ATTR_##key;
#include "attrs.def"
#undef ATTR
    return LATHE_ATTR_NONE;
}

static void put(struct lathe_tensor *t, int64_t i, const char *text) {
    void *at = (uint8_t *)t->data + (size_t)i * lathe_dtype_bytes(t->dtype);
    float f = strtof(text, NULL);
    double d = strtod(text, NULL);
    uint64_t u = text[0] == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 0);
    switch (t->dtype) {
    case LATHE_F32:
        memcpy(at, &f, 4);
        return;
    case LATHE_F64:
        memcpy(at, &d, 8);
        return;
    default:                                         /* f16 and bf16 stand as their bits */
        memcpy(at, &u, lathe_dtype_bytes(t->dtype)); /* little-endian */
        return;
    }
}

/* `rest`: "f32 2,3 1 2 3 ..." or "_". */
static bool read_tensor(char *rest, int line, struct lathe_tensor *t) {
    char *save = NULL, *word = strtok_r(rest, " \n", &save);
    memset(t, 0, sizeof *t);
    if (!word)
        malformed(line, "no tensor");
    if (strcmp(word, "_") == 0)
        return false;
    t->dtype = dtype_of(word);
    char *shape = strtok_r(NULL, " \n", &save), *axis_save = NULL;
    if (t->dtype == LATHE_NO_DTYPE || !shape)
        malformed(line, "element type or shape");
    for (char *d = strcmp(shape, "-") ? strtok_r(shape, ",", &axis_save) : NULL; d; d = strtok_r(NULL, ",", &axis_save))
        t->dims[t->rank++] = strtoll(d, NULL, 10);
    int64_t count = lathe_tensor_count(t), i = 0;
    t->data = malloc((size_t)count * lathe_dtype_bytes(t->dtype) + 1);
    for (char *v = strtok_r(NULL, " \n", &save); v && i < count; v = strtok_r(NULL, " \n", &save))
        put(t, i++, v);
    if (i != count)
        malformed(line, "too few elements");
    return true;
}

static void read_attr(char *rest, int line, int type, struct op_case *c) {
    char *save = NULL, *name = strtok_r(rest, " \n", &save);
    struct lathe_attr a = {0};
    int64_t *list = NULL;
    a.key = name ? key_of(name) : LATHE_ATTR_NONE;
    a.type = (enum lathe_attr_type)type;
    if (a.key == LATHE_ATTR_NONE || c->n_attrs == CASE_ATTRS)
        malformed(line, "attribute");
    for (char *v = strtok_r(NULL, " \n", &save); v; v = strtok_r(NULL, " \n", &save)) {
        a.i = strtoll(v, NULL, 10);
        a.f = strtod(v, NULL);
        list = realloc(list, (a.count + 1) * sizeof *list);
        list[a.count++] = a.i;
    }
    a.ints = list;
    c->attrs[c->n_attrs++] = a;
}

bool case_read(FILE *file, int *line, struct op_case *c) {
    char *text = NULL;
    size_t size = 0;
    bool open = false;
    memset(c, 0, sizeof *c);
    while (getline(&text, &size, file) >= 0) {
        ++*line;
        char word[16] = "";
        int used = 0;
        if (text[0] == '#' || sscanf(text, "%15s %n", word, &used) < 1)
            continue;
        char *rest = text + used;
        if (strcmp(word, "case") == 0) {
            open = true;
            c->line = *line;
            if (sscanf(rest, "%63s %lf", c->op, &c->tolerance) != 2)
                malformed(*line, "case");
        } else if (!open) {
            malformed(*line, "outside a case");
        } else if (strcmp(word, "in") == 0 && c->n_in < CASE_TENSORS) {
            c->absent[c->n_in] = !read_tensor(rest, *line, &c->in[c->n_in]);
            c->n_in++;
        } else if (strcmp(word, "out") == 0 && c->n_out < CASE_TENSORS) {
            read_tensor(rest, *line, &c->out[c->n_out++]);
        } else if (strcmp(word, "int") == 0) {
            read_attr(rest, *line, LATHE_ATTR_INT, c);
        } else if (strcmp(word, "float") == 0) {
            read_attr(rest, *line, LATHE_ATTR_FLOAT, c);
        } else if (strcmp(word, "ints") == 0) {
            read_attr(rest, *line, LATHE_ATTR_INTS, c);
        } else if (strcmp(word, "fails") == 0) {
            c->status = atoi(rest);
        } else if (strcmp(word, "end") == 0) {
            free(text);
            return true;
        } else {
            malformed(*line, word);
        }
    }
    free(text);
    return false;
}

void case_free(struct op_case *c) {
    for (unsigned i = 0; i < CASE_TENSORS; i++) {
        free(c->in[i].data);
        free(c->out[i].data);
    }
    for (unsigned i = 0; i < c->n_attrs; i++)
        free((void *)c->attrs[i].ints);
}

static double decode(unsigned bits, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned fraction = bits & ((1u << fraction_bits) - 1),
             exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1);
    double sign = bits >> (exponent_bits + fraction_bits) ? -1 : 1;
    if (exponent == (1u << exponent_bits) - 1)
        return fraction ? NAN : sign * INFINITY;
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias - fraction_bits)
                         : sign * ldexp(fraction + (1u << fraction_bits), (int)exponent - bias - fraction_bits);
}

double case_element(const struct lathe_tensor *t, int64_t i) {
    switch (t->dtype) {
    case LATHE_F32:
        return (double)((const float *)t->data)[i];
    case LATHE_F64:
        return ((const double *)t->data)[i];
    case LATHE_F16:
        return decode(((const uint16_t *)t->data)[i], 5, 10);
    case LATHE_BF16:
        return decode(((const uint16_t *)t->data)[i], 8, 7);
    case LATHE_I8:
        return ((const int8_t *)t->data)[i];
    case LATHE_I16:
        return ((const int16_t *)t->data)[i];
    case LATHE_I32:
        return ((const int32_t *)t->data)[i];
    case LATHE_I64:
        return (double)((const int64_t *)t->data)[i];
    case LATHE_U16:
        return ((const uint16_t *)t->data)[i];
    case LATHE_U32:
        return ((const uint32_t *)t->data)[i];
    case LATHE_U64:
        return (double)((const uint64_t *)t->data)[i];
    default:
        return ((const uint8_t *)t->data)[i];
    }
}
