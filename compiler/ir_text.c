/* Prints the text form of a graph (IR.md). The parser is ir_parse.c. */
#include "ir.h"
#include "text.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Constants with more elements are printed as "...". */
enum { MOST_ELEMENTS = 64 };

static void print_quoted(const char *text, struct lathe_text *out) {
    lathe_text_append(out, "\"");
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 32)
            lathe_text_append(out, "\\x%02x", (unsigned char)*text);
        else
            lathe_text_append_bytes(out, text, 1);
    lathe_text_append(out, "\"");
}

static void print_name(const char *name, struct lathe_text *out) {
    bool plain = *name != 0;
    for (const char *p = name; *p; p++)
        plain &= isalnum((unsigned char)*p) || strchr("_./:-", *p) != NULL;
    lathe_text_append(out, "%%");
    if (plain)
        lathe_text_append(out, "%s", name);
    else
        print_quoted(name, out);
}

static void print_dim(const struct lathe_graph *g, lathe_dim d, struct lathe_text *out) {
    char small[128];
    int length = lathe_dim_print(g->dims, d, small, sizeof small);
    if (length < (int)sizeof small) {
        lathe_text_append(out, "%s", small);
        return;
    }
    char *large = lathe_arena_alloc(g->arena, (size_t)length + 1);
    if (!large) {
        out->failed = true;
        return;
    }
    lathe_dim_print(g->dims, d, large, length + 1);
    lathe_text_append(out, "%s", large);
}

static void print_type(const struct lathe_graph *g, lathe_value_id v, struct lathe_text *out) {
    const struct lathe_value *value = &g->values[v];
    lathe_text_append(out, " : %s", lathe_dtype_name(value->dtype));
    if (value->rank < 0) {
        lathe_text_append(out, "[?]");
        return;
    }
    lathe_text_append(out, "[");
    for (int i = 0; i < value->rank; i++) {
        if (i)
            lathe_text_append(out, ", ");
        print_dim(g, value->dims[i], out);
    }
    lathe_text_append(out, "]");
}

/* A number that reads back to the same bits of the type, and as a float where it is one. */
static void print_float(double x, int digits, struct lathe_text *out) {
    char number[40];
    if (isnan(x) || isinf(x)) {
        lathe_text_append(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    snprintf(number, sizeof number, "%.*g", digits, x);
    lathe_text_append(out, strpbrk(number, ".e") ? "%s" : "%s.0", number);
}

static void print_constant(const struct lathe_graph *g, lathe_value_id v, struct lathe_text *out) {
    const struct lathe_value *value = &g->values[v];
    int64_t count = lathe_value_count(g, v);
    lathe_text_append(out, "const ");
    print_name(value->name, out);
    print_type(g, v, out);
    if (count < 0 || count > MOST_ELEMENTS) {
        lathe_text_append(out, " = ...\n");
        return;
    }
    lathe_text_append(out, " = {");
    for (int64_t i = 0; i < count; i++) {
        if (i)
            lathe_text_append(out, ", ");
        if (lathe_dtype_is_float(value->dtype))
            print_float(lathe_constant_f64(g, v, i), value->dtype == LATHE_F64 ? 17 : 9, out);
        else
            lathe_text_append(out, "%" PRId64, lathe_constant_i64(g, v, i));
    }
    lathe_text_append(out, "}\n");
}

static void print_attr(const struct lathe_graph *g, const struct lathe_attr *attr, struct lathe_text *out) {
    static const char *const names[] = {
#define ATTR(number, name, text) [number] = text,
#include "attrs.def"
#undef ATTR
    };
    lathe_text_append(out, "%s=", names[attr->key]);
    switch (attr->type) {
    case LATHE_ATTR_INT:
        lathe_text_append(out, "%" PRId64, attr->i);
        break;
    case LATHE_ATTR_FLOAT:
        print_float(attr->f, 17, out);
        break;
    case LATHE_ATTR_INTS:
        lathe_text_append(out, "[");
        for (uint32_t i = 0; i < attr->count; i++)
            lathe_text_append(out, i ? ", %" PRId64 : "%" PRId64, attr->ints[i]);
        lathe_text_append(out, "]");
        break;
    case LATHE_ATTR_DIMS:
        lathe_text_append(out, "<");
        for (uint32_t i = 0; i < attr->count; i++) {
            if (i)
                lathe_text_append(out, ", ");
            print_dim(g, (lathe_dim)attr->ints[i], out);
        }
        lathe_text_append(out, ">");
        break;
    }
}

static void print_node(const struct lathe_graph *g, lathe_node_id n, struct lathe_text *out) {
    const struct lathe_node *node = &g->nodes[n];
    const struct lathe_op_info *info = lathe_op_info(node->op);
    for (uint32_t i = 0; i < node->n_out; i++) {
        if (i)
            lathe_text_append(out, ", ");
        if (node->out[i] == LATHE_NONE) {
            lathe_text_append(out, "_");
            continue;
        }
        print_name(g->values[node->out[i]].name, out);
        print_type(g, node->out[i], out);
    }
    lathe_text_append(out, " = %s(", info ? info->name : "?");
    for (uint32_t i = 0; i < node->n_in; i++) {
        if (i)
            lathe_text_append(out, ", ");
        if (node->in[i] == LATHE_NONE)
            lathe_text_append(out, "_");
        else
            print_name(g->values[node->in[i]].name, out);
    }
    lathe_text_append(out, ")");
    for (uint32_t i = 0; i < node->n_attrs; i++) {
        lathe_text_append(out, i ? ", " : " {");
        print_attr(g, &node->attrs[i], out);
    }
    lathe_text_append(out, node->n_attrs ? "} " : " ");
    print_quoted(node->name, out);
    lathe_text_append(out, "\n");
}

enum lathe_status lathe_graph_print(struct lathe_graph *g, struct lathe_text *out) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        lathe_text_append(out, "input ");
        print_name(g->values[g->inputs[i]].name, out);
        print_type(g, g->inputs[i], out);
        lathe_text_append(out, "\n");
    }
    for (lathe_value_id v = 0; v < g->value_count; v++)
        if (lathe_value_is_constant(g, v) && lathe_value_use_total(g, v))
            print_constant(g, v, out);
    LATHE_FOR_NODES(g, n)
    print_node(g, n, out);
    for (uint32_t i = 0; i < g->output_count; i++) {
        lathe_text_append(out, "output ");
        print_name(g->values[g->outputs[i]].name, out);
        lathe_text_append(out, " as ");
        print_quoted(g->output_names[i], out);
        lathe_text_append(out, "\n");
    }
    return out->failed ? LATHE_INTERNAL : LATHE_OK;
}
