/* Dimension expressions as text: "batch*seq+1", "floordiv(seq,4)", names with other characters in quotes. */
#include "dim_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct printer {
    char *buffer;
    int size, length;
};

static void put(struct printer *p, const char *text) {
    for (; *text; text++, p->length++)
        if (p->length + 1 < p->size)
            p->buffer[p->length] = *text;
}

static bool is_plain_name(const char *name) {
    if (!isalpha((unsigned char)*name) && *name != '_')
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_' && *name != '.')
            return false;
    return true;
}

static void put_name(struct printer *p, const char *name) {
    if (is_plain_name(name)) {
        put(p, name);
        return;
    }
    put(p, "\"");
    for (; *name; name++) {
        char escaped[5] = {*name, 0};
        if (*name == '"' || *name == '\\' || (unsigned char)*name < 32)
            snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)*name);
        put(p, escaped);
    }
    put(p, "\"");
}

static const char *const function_names[] = {
    [LATHE_ATOM_FLOORDIV] = "floordiv", [LATHE_ATOM_MOD] = "mod", [LATHE_ATOM_MIN] = "min", [LATHE_ATOM_MAX] = "max"};

static void put_dim(struct printer *p, const struct lathe_dims *t, lathe_dim d) {
    d = lathe_dim_resolve(t, d);
    if (d == LATHE_DIM_NONE) {
        put(p, "?");
        return;
    }
    const struct dim_expr *e = &t->exprs[d];
    if (!e->count)
        put(p, "0");
    for (uint32_t i = 0; i < e->count; i++) {
        struct dim_term term = t->exprs[d].terms[i];
        char number[32];
        bool unit = term.n && (term.factor == 1 || term.factor == -1);
        snprintf(number, sizeof number, "%" PRId64, term.factor);
        if (term.factor > 0 && i)
            put(p, "+");
        if (!unit)
            put(p, number);
        else if (term.factor < 0)
            put(p, "-");
        for (uint32_t k = 0; k < term.n; k++) {
            struct dim_atom x = t->atoms[term.atoms[k]];
            if (k || !unit)
                put(p, "*");
            if (x.kind == LATHE_ATOM_SYMBOL) {
                put_name(p, t->symbols[x.symbol].name);
                continue;
            }
            put(p, function_names[x.kind]);
            put(p, "(");
            put_dim(p, t, x.a);
            put(p, ",");
            put_dim(p, t, x.b);
            put(p, ")");
        }
    }
}

int lathe_dim_print(const struct lathe_dims *t, lathe_dim d, char *buffer, int size) {
    struct printer p = {buffer, size, 0};
    put_dim(&p, t, d);
    if (size > 0)
        buffer[p.length < size ? p.length : size - 1] = 0;
    return p.length;
}

/* ---- parsing by recursive descent; a syntax error makes LATHE_DIM_NONE and sticks */

struct parser {
    struct lathe_dims *t;
    const char *at;
    int depth;
};

static lathe_dim parse_sum(struct parser *p);

static void skip_space(struct parser *p) {
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static bool take(struct parser *p, char c) {
    skip_space(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static lathe_dim parse_quoted(struct parser *p) {
    const char *end = strchr(p->at, '"');
    if (!end)
        return LATHE_DIM_NONE;
    char *name = lathe_arena_alloc(p->t->arena, (size_t)(end - p->at) + 1), *to = name;
    if (!name)
        return LATHE_DIM_NONE;
    while (p->at < end) {
        unsigned code;
        if (p->at[0] == '\\' && p->at[1] == 'x' && sscanf(p->at + 2, "%2x", &code) == 1 && end - p->at >= 4 && code) {
            *to++ = (char)code;
            p->at += 4;
        } else {
            *to++ = *p->at++;
        }
    }
    p->at = end + 1;
    return lathe_dim_symbol(p->t, name, 0, INT64_MAX);
}

static lathe_dim parse_call(struct parser *p, const char *name, size_t length) {
    lathe_dim a = parse_sum(p);
    if (!take(p, ','))
        return LATHE_DIM_NONE;
    lathe_dim b = parse_sum(p);
    if (!take(p, ')') || a == LATHE_DIM_NONE || b == LATHE_DIM_NONE)
        return LATHE_DIM_NONE;
    for (enum lathe_dim_atom_kind kind = LATHE_ATOM_FLOORDIV; kind <= LATHE_ATOM_MAX; kind++) {
        if (strlen(function_names[kind]) != length || memcmp(function_names[kind], name, length))
            continue;
        switch (kind) {
        case LATHE_ATOM_FLOORDIV:
            return lathe_dim_floordiv(p->t, a, b);
        case LATHE_ATOM_MOD:
            return lathe_dim_mod(p->t, a, b);
        case LATHE_ATOM_MIN:
            return lathe_dim_min(p->t, a, b);
        default:
            return lathe_dim_max(p->t, a, b);
        }
    }
    return LATHE_DIM_NONE;
}

static lathe_dim parse_number(struct parser *p) {
    int64_t value = 0;
    while (isdigit((unsigned char)*p->at))
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p->at++ - '0', &value))
            return LATHE_DIM_NONE;
    return lathe_dim_const(p->t, value);
}

static lathe_dim parse_factor(struct parser *p) {
    lathe_dim result;
    skip_space(p);
    if (++p->depth > 2 * DIM_MAX_DEPTH)
        return LATHE_DIM_NONE;
    if (take(p, '(')) {
        result = parse_sum(p);
        if (!take(p, ')'))
            result = LATHE_DIM_NONE;
    } else if (take(p, '-')) {
        result = lathe_dim_mul(p->t, lathe_dim_const(p->t, -1), parse_factor(p));
    } else if (take(p, '"')) {
        result = parse_quoted(p);
    } else if (isdigit((unsigned char)*p->at)) {
        result = parse_number(p);
    } else {
        const char *name = p->at;
        while (isalnum((unsigned char)*p->at) || *p->at == '_' || *p->at == '.')
            p->at++;
        size_t length = (size_t)(p->at - name);
        if (!length)
            return LATHE_DIM_NONE;
        if (take(p, '(')) {
            result = parse_call(p, name, length);
        } else {
            char *copy = lathe_arena_copy(p->t->arena, name, length + 1);
            if (!copy)
                return LATHE_DIM_NONE;
            copy[length] = 0;
            result = lathe_dim_symbol(p->t, copy, 0, INT64_MAX);
        }
    }
    p->depth--;
    return result;
}

static lathe_dim parse_product(struct parser *p) {
    lathe_dim result = parse_factor(p);
    for (;;) {
        if (take(p, '*'))
            result = lathe_dim_mul(p->t, result, parse_factor(p));
        else if (take(p, '/'))
            result = lathe_dim_floordiv(p->t, result, parse_factor(p));
        else
            return result;
    }
}

static lathe_dim parse_sum(struct parser *p) {
    lathe_dim result = parse_product(p);
    for (;;) {
        if (take(p, '+'))
            result = lathe_dim_add(p->t, result, parse_product(p));
        else if (take(p, '-'))
            result = lathe_dim_sub(p->t, result, parse_product(p));
        else
            return result;
    }
}

lathe_dim lathe_dim_parse(struct lathe_dims *t, const char *text) {
    struct parser p = {t, text, 0};
    lathe_dim result = parse_sum(&p);
    skip_space(&p);
    return *p.at ? LATHE_DIM_NONE : result;
}
