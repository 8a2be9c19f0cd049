/* Access to operands, attributes and outputs, and the messages of shape inference. */
#include "shape_internal.h"
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

lathe_value_id lathe_shape_in(const struct shape_ctx *c, uint32_t k) {
    const struct lathe_node *node = &c->g->nodes[c->n];
    return k < node->n_in ? node->in[k] : LATHE_NONE;
}

struct lathe_value *lathe_shape_value(const struct shape_ctx *c, uint32_t k) {
    return &c->g->values[lathe_shape_in(c, k)];
}

struct shape_dims lathe_shape_dims_of(const struct shape_ctx *c, lathe_value_id v) {
    struct shape_dims result = {.rank = c->g->values[v].rank};
    for (int i = 0; i < result.rank; i++)
        result.d[i] = lathe_dim_resolve(c->g->dims, c->g->values[v].dims[i]);
    return result;
}

lathe_dim lathe_shape_const(const struct shape_ctx *c, int64_t value) {
    return lathe_dim_const(c->g->dims, value);
}

int64_t lathe_shape_attr_int(const struct shape_ctx *c, enum lathe_attr_key key, int64_t absent) {
    struct lathe_attrs attrs = lathe_node_attrs(c->g, c->n);
    return lathe_attr_int(&attrs, key, absent);
}

const int64_t *lathe_shape_attr_ints(const struct shape_ctx *c, enum lathe_attr_key key, uint32_t *count) {
    struct lathe_attrs attrs = lathe_node_attrs(c->g, c->n);
    const struct lathe_attr *attr = lathe_attr_find(&attrs, key);
    *count = 0;
    if (!attr)
        return NULL;
    if (attr->type == LATHE_ATTR_INT) {
        *count = 1;
        return &attr->i;
    }
    if (attr->type != LATHE_ATTR_INTS)
        return NULL;
    *count = attr->count;
    return attr->ints;
}

enum lathe_status lathe_shape_axis(struct shape_ctx *c, int rank, bool insert, int64_t absent, int *axis) {
    int64_t value = lathe_shape_attr_int(c, LATHE_ATTR_AXIS, absent), limit = rank + insert;
    int64_t found = value;
    if (value < 0)
        value += limit;
    if (value < 0 || value >= limit)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "axis is %lld, it must be in [%lld, %lld]",
                                (long long)found, (long long)-limit, (long long)limit - 1);
    lathe_node_set_int(c->g, c->n, LATHE_ATTR_AXIS, value);
    *axis = (int)value;
    return LATHE_OK;
}

void lathe_shape_set(struct shape_ctx *c, uint32_t k, enum lathe_dtype dtype, const struct shape_dims *dims) {
    const struct lathe_node *node = &c->g->nodes[c->n];
    if (k >= node->n_out || node->out[k] == LATHE_NONE)
        return;
    struct lathe_value *value = &c->g->values[node->out[k]];
    value->dtype = dtype;
    value->rank = dims->rank;
    for (int i = 0; i < dims->rank; i++)
        value->dims[i] = dims->d[i];
    value->content = NULL;
    value->content_count = 0;
}

void lathe_shape_set_like(struct shape_ctx *c, uint32_t k, enum lathe_dtype dtype, lathe_value_id like) {
    struct shape_dims dims = lathe_shape_dims_of(c, like);
    lathe_shape_set(c, k, dtype, &dims);
}

void lathe_shape_describe(const struct lathe_graph *g, lathe_value_id v, struct lathe_text *out) {
    const struct lathe_value *value = &g->values[v];
    lathe_text_append(out, "'%s' %s[", value->name, lathe_dtype_name(value->dtype));
    for (int i = 0; i < value->rank; i++) {
        char text[256];
        lathe_dim_print(g->dims, value->dims[i], text, sizeof text);
        lathe_text_append(out, i ? ",%s" : "%s", text);
    }
    lathe_text_append(out, value->rank < 0 ? "unknown rank]" : "]");
}

enum lathe_status lathe_shape_fail(struct shape_ctx *c, enum lathe_message message, const char *format, ...) {
    const struct lathe_node *node = &c->g->nodes[c->n];
    const struct lathe_op_info *info = lathe_op_info(node->op);
    char reason[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    struct lathe_text operands = {0};
    for (uint32_t i = 0; i < node->n_in && i < 8; i++) {
        lathe_text_append(&operands, i ? ", " : "; operands ");
        if (node->in[i] == LATHE_NONE)
            lathe_text_append(&operands, "(absent)");
        else
            lathe_shape_describe(c->g, node->in[i], &operands);
    }
    enum lathe_status status = lathe_fail(c->diag, message, "node '%s' (%s): %s%s", node->name,
                                          node->origin[0] ? node->origin : (info ? info->name : "?"), reason,
                                          operands.data ? operands.data : "");
    lathe_text_free(&operands);
    return status;
}

enum lathe_status lathe_shape_need_rank(struct shape_ctx *c, uint32_t k, int min, int max) {
    lathe_value_id v = lathe_shape_in(c, k);
    if (v == LATHE_NONE)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u is missing", k);
    int rank = c->g->values[v].rank;
    if (rank >= min && rank <= max)
        return LATHE_OK;
    if (max >= LATHE_MAX_RANK)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u has rank %d, it must be at least %d", k, rank,
                                min);
    return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u has rank %d, it must be %d to %d", k, rank, min,
                            max);
}

enum lathe_status lathe_shape_need_index_type(struct shape_ctx *c, uint32_t k) {
    enum lathe_dtype dtype = lathe_shape_value(c, k)->dtype;
    if (dtype == LATHE_I32 || dtype == LATHE_I64)
        return LATHE_OK;
    return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "indices are %s, they must be i32 or i64",
                            lathe_dtype_name(dtype));
}
