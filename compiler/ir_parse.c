/* Parses the text form of a graph (IR.md). One pass over the lines; errors name the line. */
#include "ir.h"
#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    struct lathe_graph *g;
    struct lathe_diag *diag;
    const char *at;
    unsigned line;
    struct lathe_arena *scratch;
};

enum { MOST_OPERANDS = 4096, MOST_OUTPUTS = 32 };

static enum lathe_status fail(const struct parser *p, const char *what) {
    char near[24];
    size_t n = strcspn(p->at, "\n");
    snprintf(near, sizeof near, "%.*s", (int)(n < sizeof near - 1 ? n : sizeof near - 1), p->at);
    return lathe_fail(p->diag, LATHE_MSG_GRAPH_TEXT, "line %u: %s at '%s'", p->line, what, near);
}

static void skip_blanks(struct parser *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')
        p->at++;
    if (*p->at == '#')
        p->at += strcspn(p->at, "\n");
}

static bool take(struct parser *p, char c) {
    skip_blanks(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(struct parser *p, const char *word) {
    size_t n = strlen(word);
    skip_blanks(p);
    if (strncmp(p->at, word, n) || isalnum((unsigned char)p->at[n]) || p->at[n] == '_')
        return false;
    p->at += n;
    return true;
}

static char *quoted(struct parser *p) {
    const char *end = p->at;
    while (*end && *end != '"' && *end != '\n')
        end++;
    char *text = *end == '"' ? lathe_arena_alloc(p->scratch, (size_t)(end - p->at) + 1) : NULL, *to = text;
    if (!text)
        return NULL;
    while (p->at < end) {
        unsigned code;
        if (end - p->at >= 4 && p->at[0] == '\\' && p->at[1] == 'x' && sscanf(p->at + 2, "%2x", &code) == 1 && code) {
            *to++ = (char)code;
            p->at += 4;
        } else {
            *to++ = *p->at++;
        }
    }
    p->at++;
    return text;
}

/* An identifier of letters, digits and the characters of `more`. */
static char *word(struct parser *p, const char *more) {
    const char *start = p->at;
    while (isalnum((unsigned char)*p->at) || (*p->at && strchr(more, *p->at)))
        p->at++;
    if (p->at == start)
        return NULL;
    char *text = lathe_arena_alloc(p->scratch, (size_t)(p->at - start) + 1);
    if (text)
        memcpy(text, start, (size_t)(p->at - start));
    return text;
}

/* %name or %"any name"; NULL when there is none. */
static char *value_name(struct parser *p) {
    if (!take(p, '%'))
        return NULL;
    if (*p->at == '"') {
        p->at++;
        return quoted(p);
    }
    return word(p, "_./:-");
}

/* A dimension expression up to one of the characters of `stop` outside parentheses and quotes. */
static enum lathe_status dim(struct parser *p, const char *stop, lathe_dim *out) {
    const char *start = p->at;
    int depth = 0;
    bool in_quotes = false;
    for (; *p->at && *p->at != '\n'; p->at++) {
        if (*p->at == '"')
            in_quotes = !in_quotes;
        if (in_quotes)
            continue;
        if (depth == 0 && strchr(stop, *p->at))
            break;
        depth += (*p->at == '(') - (*p->at == ')');
    }
    char *text = lathe_arena_alloc(p->scratch, (size_t)(p->at - start) + 1);
    if (!text)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    memcpy(text, start, (size_t)(p->at - start));
    *out = lathe_dim_parse(p->g->dims, text);
    return *out == LATHE_DIM_NONE ? fail(p, "a dimension expression that cannot be read") : LATHE_OK;
}

/* : f32[a, b] */
static enum lathe_status type(struct parser *p, enum lathe_dtype *dtype, int *rank, lathe_dim *dims) {
    if (!take(p, ':'))
        return fail(p, "expected ':' and a type");
    skip_blanks(p);
    char *name = word(p, "");
    *dtype = LATHE_NO_DTYPE;
#define DTYPE(number, row, text, bytes, numpy)                                                                         \
    if (name && !strcmp(name, text))                                                                                   \
        *dtype = LATHE_##row;
#include "dtypes.def"
#undef DTYPE
    if (!*dtype)
        return fail(p, "an unknown element type");
    if (!take(p, '['))
        return fail(p, "expected '['");
    *rank = 0;
    if (take(p, ']'))
        return LATHE_OK;
    do {
        if (*rank == LATHE_MAX_RANK)
            return fail(p, "more than 8 axes");
        skip_blanks(p);
        LATHE_TRY(dim(p, ",]", &dims[(*rank)++]));
    } while (take(p, ','));
    return take(p, ']') ? LATHE_OK : fail(p, "expected ']'");
}

static enum lathe_status new_value(struct parser *p, const char *name, lathe_value_id *v) {
    enum lathe_dtype dtype;
    int rank;
    lathe_dim dims[LATHE_MAX_RANK];
    if (!name)
        return fail(p, "expected %name");
    if (lathe_value_by_name(p->g, name) != LATHE_NONE)
        return fail(p, "a name that is defined already");
    LATHE_TRY(type(p, &dtype, &rank, dims));
    *v = lathe_graph_add_value(p->g, name, dtype, rank, dims);
    return *v == LATHE_NONE ? lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph") : LATHE_OK;
}

/* ---- constants */

static uint16_t f16_bits(double x) {
    /* Every f16 is an f64; the text has such a value, so a search by value needs no rounding. */
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (isnan(x))
        return 0x7e00;
    if (x >= 65520)
        return sign | 0x7c00;
    int exponent;
    frexp(x, &exponent);
    if (x < 0x1p-14)
        return sign | (uint16_t)lrint(x * 0x1p24);
    long bits = lrint(ldexp(x, 11 - exponent)); /* 1024 .. 2048 */
    return (uint16_t)(sign | (uint16_t)(((exponent + 14) << 10) + (bits - 1024)));
}

static void store(void *at, enum lathe_dtype dtype, double x, long long integer) {
    float f = (float)x;
    uint32_t word32;
    uint16_t half;
    switch (dtype) {
    case LATHE_F32:
        memcpy(at, &f, 4);
        break;
    case LATHE_F64:
        memcpy(at, &x, 8);
        break;
    case LATHE_F16:
        half = f16_bits(x);
        memcpy(at, &half, 2);
        break;
    case LATHE_BF16:
        memcpy(&word32, &f, 4);
        half = (uint16_t)((word32 + 0x7fff + (word32 >> 16 & 1)) >> 16);
        memcpy(at, &half, 2);
        break;
    default:
        for (size_t i = 0; i < lathe_dtype_bytes(dtype); i++)
            ((unsigned char *)at)[i] = (unsigned char)((unsigned long long)integer >> (8 * i));
    }
}

static enum lathe_status constant(struct parser *p) {
    enum lathe_dtype dtype;
    int rank;
    lathe_dim dims[LATHE_MAX_RANK];
    int64_t sizes[LATHE_MAX_RANK], count = 1;
    char *name = value_name(p);
    if (!name)
        return fail(p, "expected %name");
    if (lathe_value_by_name(p->g, name) != LATHE_NONE)
        return fail(p, "a name that is defined already");
    LATHE_TRY(type(p, &dtype, &rank, dims));
    for (int i = 0; i < rank; i++)
        if (!lathe_dim_is_const(p->g->dims, dims[i], &sizes[i]) || sizes[i] < 0 ||
            !lathe_mul_i64(count, sizes[i], &count))
            return fail(p, "a constant needs constant sizes");
    if (!take(p, '='))
        return fail(p, "expected '='");
    if (!take(p, '{'))
        return fail(p, "expected '{': constants printed as '...' cannot be read back");
    if (count > 1 << 24)
        return fail(p, "a constant of too many elements");
    size_t bytes = lathe_dtype_bytes(dtype);
    char *data = lathe_arena_alloc(p->g->arena, bytes * (size_t)count);
    if (!data)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    for (int64_t i = 0; i < count; i++) {
        char *end;
        if (i && !take(p, ','))
            return fail(p, "too few elements");
        skip_blanks(p);
        errno = 0;
        double x = strtod(p->at, &end);
        long long integer = strtoll(p->at, NULL, 10);
        if (end == p->at)
            return fail(p, "expected a number");
        if (!lathe_dtype_is_float(dtype) && strcspn(p->at, ".einf") < (size_t)(end - p->at))
            return fail(p, "expected an integer");
        p->at = end;
        store(data + (size_t)i * bytes, dtype, x, integer);
    }
    if (!take(p, '}'))
        return fail(p, "too many elements");
    if (lathe_graph_add_constant(p->g, name, dtype, rank, sizes, data) == LATHE_NONE)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    return LATHE_OK;
}

/* ---- nodes */

static enum lathe_attr_key attr_by_name(const char *name) {
#define ATTR(number, row, text)                                                                                        \
    if (!strcmp(name, text))                                                                                           \
        return LATHE_ATTR_##row;
#include "attrs.def"
#undef ATTR
    return LATHE_ATTR_NONE;
}

static enum lathe_status attr_list(struct parser *p, lathe_node_id n, enum lathe_attr_key key) {
    int64_t *ints = NULL;
    uint32_t count = 0, capacity = 0;
    if (!take(p, ']')) {
        do {
            char *end;
            skip_blanks(p);
            long long x = strtoll(p->at, &end, 10);
            if (end == p->at)
                return fail(p, "expected an integer");
            p->at = end;
            if (count == capacity) {
                uint32_t larger = capacity ? capacity * 2 : 16;
                int64_t *list = lathe_arena_alloc_array(p->scratch, larger, sizeof *list);
                if (!list)
                    return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
                if (count)
                    memcpy(list, ints, count * sizeof *list);
                ints = list;
                capacity = larger;
            }
            ints[count++] = x;
        } while (take(p, ','));
        if (!take(p, ']'))
            return fail(p, "expected ']'");
    }
    lathe_node_set_ints(p->g, n, key, ints, count);
    return LATHE_OK;
}

static enum lathe_status attr_dims(struct parser *p, lathe_node_id n, enum lathe_attr_key key) {
    lathe_dim dims[LATHE_MAX_CONTENT];
    uint32_t count = 0;
    if (!take(p, '>')) {
        do {
            if (count == LATHE_MAX_CONTENT)
                return fail(p, "more than 64 expressions");
            skip_blanks(p);
            LATHE_TRY(dim(p, ",>", &dims[count++]));
        } while (take(p, ','));
        if (!take(p, '>'))
            return fail(p, "expected '>'");
    }
    lathe_node_set_dims(p->g, n, key, dims, count);
    return LATHE_OK;
}

static enum lathe_status attrs(struct parser *p, lathe_node_id n) {
    do {
        skip_blanks(p);
        char *name = word(p, "_"), *end;
        enum lathe_attr_key key = name ? attr_by_name(name) : LATHE_ATTR_NONE;
        if (key == LATHE_ATTR_NONE)
            return fail(p, "an unknown attribute");
        if (!take(p, '='))
            return fail(p, "expected '='");
        if (take(p, '[')) {
            LATHE_TRY(attr_list(p, n, key));
        } else if (take(p, '<')) {
            LATHE_TRY(attr_dims(p, n, key));
        } else {
            skip_blanks(p);
            double x = strtod(p->at, &end);
            if (end == p->at)
                return fail(p, "expected a number");
            if (strcspn(p->at, ".einf") < (size_t)(end - p->at))
                lathe_node_set_float(p->g, n, key, x);
            else
                lathe_node_set_int(p->g, n, key, strtoll(p->at, NULL, 10));
            p->at = end;
        }
    } while (take(p, ','));
    return take(p, '}') ? LATHE_OK : fail(p, "expected '}'");
}

static enum lathe_status node(struct parser *p) {
    struct lathe_graph *g = p->g;
    lathe_value_id out[MOST_OUTPUTS], *in = lathe_arena_alloc_array(p->scratch, MOST_OPERANDS, sizeof *in);
    uint32_t n_out = 0, n_in = 0;
    if (!in)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    do {
        if (n_out == MOST_OUTPUTS)
            return fail(p, "too many outputs");
        if (take(p, '_'))
            out[n_out++] = LATHE_NONE;
        else
            LATHE_TRY(new_value(p, value_name(p), &out[n_out++]));
    } while (take(p, ','));
    if (!take(p, '='))
        return fail(p, "expected '='");
    skip_blanks(p);
    char *op_name = word(p, "_");
    enum lathe_op op = op_name ? lathe_op_by_name(op_name) : LATHE_OP_NONE;
    if (op == LATHE_OP_NONE)
        return fail(p, "an unknown operator before");
    if (!take(p, '('))
        return fail(p, "expected '('");
    if (!take(p, ')')) {
        do {
            if (n_in == MOST_OPERANDS)
                return fail(p, "too many operands");
            if (take(p, '_')) {
                in[n_in++] = LATHE_NONE;
                continue;
            }
            char *name = value_name(p);
            in[n_in] = name ? lathe_value_by_name(g, name) : LATHE_NONE;
            if (in[n_in++] == LATHE_NONE)
                return fail(p, "an operand that is not defined before");
        } while (take(p, ','));
        if (!take(p, ')'))
            return fail(p, "expected ')'");
    }
    const char *name = "";
    for (uint32_t i = 0; i < n_out && !*name; i++)
        name = out[i] == LATHE_NONE ? "" : g->values[out[i]].name;
    lathe_node_id n = lathe_graph_add_node(g, LATHE_NONE, op, name, "", in, n_in, out, n_out);
    if (n == LATHE_NONE)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    if (take(p, '{') && !take(p, '}'))
        LATHE_TRY(attrs(p, n));
    if (take(p, '"')) {
        char *text = quoted(p);
        if (!text)
            return fail(p, "a name without its end");
        g->nodes[n].name = lathe_arena_string(g->arena, text);
        if (!g->nodes[n].name) {
            g->nodes[n].name = "";
            return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
        }
    }
    return LATHE_OK;
}

/* ---- statements */

static enum lathe_status input(struct parser *p) {
    lathe_value_id v;
    LATHE_TRY(new_value(p, value_name(p), &v));
    lathe_graph_add_input(p->g, v);
    return LATHE_OK;
}

static enum lathe_status output(struct parser *p) {
    char *name = value_name(p), *as = name;
    lathe_value_id v = name ? lathe_value_by_name(p->g, name) : LATHE_NONE;
    if (v == LATHE_NONE)
        return fail(p, "an output that is not defined before");
    if (take_word(p, "as")) {
        as = take(p, '"') ? quoted(p) : NULL;
        if (!as)
            return fail(p, "expected a name in quotes");
    }
    lathe_graph_add_output(p->g, v, as);
    return LATHE_OK;
}

static enum lathe_status statement(struct parser *p) {
    if (take_word(p, "input"))
        return input(p);
    if (take_word(p, "const"))
        return constant(p);
    if (take_word(p, "output"))
        return output(p);
    return node(p);
}

/* Inference adds the contents; the types and shapes that are written must be those that it finds. */
static enum lathe_status infer_and_compare(struct parser *p) {
    struct lathe_graph *g = p->g;
    uint32_t count = g->value_count;
    struct lathe_value *written = lathe_arena_copy(p->scratch, g->values, count * sizeof *written);
    if (!written)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    LATHE_TRY(lathe_shape_infer(g, p->diag));
    for (lathe_value_id v = 0; v < count; v++) {
        bool same = g->values[v].dtype == written[v].dtype && g->values[v].rank == written[v].rank;
        for (int i = 0; same && i < written[v].rank; i++)
            same = lathe_value_dim(g, v, i) == lathe_dim_resolve(g->dims, written[v].dims[i]);
        if (!same)
            return lathe_fail(p->diag, LATHE_MSG_GRAPH_TEXT,
                              "value '%s' is written with another type or shape than its "
                              "operator gives",
                              g->values[v].name);
    }
    return LATHE_OK;
}

static enum lathe_status parse(struct parser *p) {
    for (p->line = 1; *p->at; p->line++) {
        skip_blanks(p);
        if (*p->at && *p->at != '\n') {
            LATHE_TRY(statement(p));
            skip_blanks(p);
            if (*p->at && *p->at != '\n')
                return fail(p, "expected the end of the line");
        }
        if (*p->at == '\n')
            p->at++;
    }
    if (p->g->out_of_memory)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    /* Sizes of inputs are at least 1, as the import has them. */
    for (uint32_t i = 0; i < lathe_dims_symbol_count(p->g->dims); i++)
        lathe_dims_symbol_bound(p->g->dims, i, 1, INT64_MAX);
    lathe_graph_resolve_dims(p->g);
    return infer_and_compare(p);
}

enum lathe_status lathe_graph_parse(const char *text, struct lathe_graph **out, struct lathe_diag *diag) {
    struct parser p = {lathe_graph_new(), diag, text, 1, lathe_arena_new()};
    enum lathe_status status = p.g && p.scratch ? parse(&p) : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "parsing a graph");
    lathe_arena_free(&p.scratch);
    if (status != LATHE_OK)
        lathe_graph_free(&p.g);
    *out = p.g;
    return status;
}
