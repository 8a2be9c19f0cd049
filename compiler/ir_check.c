/* The checker: what every stage may rely on. It runs after each pass in tests and with --check. */
#include "ir.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

struct check {
    struct lathe_graph *g;
    struct lathe_diag *diag;
    uint32_t *uses_seen; /* a value: operand positions that read it */
    bool *placed;        /* a value: defined before the node at hand */
};

static enum lathe_status bad_node(struct check *c, lathe_node_id n, const char *what) {
    return lathe_fail(c->diag, LATHE_MSG_GRAPH_CHECK, "node '%s': %s", c->g->nodes[n].name, what);
}

static enum lathe_status bad_value(struct check *c, lathe_value_id v, const char *what) {
    return lathe_fail(c->diag, LATHE_MSG_GRAPH_CHECK, "value '%s': %s", c->g->values[v].name, what);
}

static enum lathe_status check_value(struct check *c, lathe_value_id v) {
    const struct lathe_value *value = &c->g->values[v];
    if (!lathe_dtype_bytes(value->dtype))
        return bad_value(c, v, "it has no element type");
    if (value->rank < 0 || value->rank > LATHE_MAX_RANK)
        return bad_value(c, v, "it has no rank");
    for (int i = 0; i < value->rank; i++) {
        int64_t size;
        lathe_dim d = lathe_dim_resolve(c->g->dims, value->dims[i]);
        if (d == LATHE_DIM_NONE)
            return bad_value(c, v, "a size is unknown");
        if (lathe_dim_is_const(c->g->dims, d, &size) && size < 0)
            return bad_value(c, v, "a size is negative");
    }
    if (value->content && lathe_value_count(c->g, v) != value->content_count)
        return bad_value(c, v, "its content and its shape differ in size");
    return LATHE_OK;
}

static enum lathe_status check_node(struct check *c, lathe_node_id n) {
    struct lathe_graph *g = c->g;
    const struct lathe_node *node = &g->nodes[n];
    const struct lathe_op_info *info = lathe_op_info(node->op);
    if (!info)
        return bad_node(c, n, "its operator is unknown");
    if (node->n_in < info->min_in || node->n_in > info->max_in)
        return bad_node(c, n, "it has too few or too many operands");
    if (!node->n_out || node->n_out > info->n_out)
        return bad_node(c, n, "it has too few or too many outputs");
    for (uint32_t i = 0; i < node->n_in; i++) {
        lathe_value_id v = node->in[i];
        if (v == LATHE_NONE)
            continue;
        if (v >= g->value_count)
            return bad_node(c, n, "an operand does not exist");
        if (!c->placed[v])
            return bad_node(c, n, "it reads a value that is computed later, or not at all");
        c->uses_seen[v]++;
    }
    for (uint32_t i = 0; i < node->n_out; i++) {
        lathe_value_id v = node->out[i];
        if (v == LATHE_NONE)
            continue;
        if (v >= g->value_count || c->placed[v])
            return bad_node(c, n, "an output does not exist or has another source");
        if (g->values[v].producer != n || g->values[v].producer_output != i)
            return bad_node(c, n, "an output does not name it as its producer");
        c->placed[v] = true;
        LATHE_TRY(check_value(c, v));
    }
    for (uint32_t i = 1; i < node->n_attrs; i++)
        if (node->attrs[i - 1].key >= node->attrs[i].key)
            return bad_node(c, n, "its attributes are not sorted");
    return LATHE_OK;
}

/* The shape function must come to the types and dims that stand there. */
static enum lathe_status check_shapes(struct check *c, lathe_node_id n) {
    struct lathe_graph *g = c->g;
    enum { MOST = 32 };
    struct lathe_value before[MOST];
    uint32_t n_out = g->nodes[n].n_out;
    if (g->nodes[n].op == LATHE_OP_SPLIT || n_out > MOST)
        return LATHE_OK;
    for (uint32_t i = 0; i < n_out; i++)
        if (g->nodes[n].out[i] != LATHE_NONE)
            before[i] = g->values[g->nodes[n].out[i]];
    struct lathe_diag *diag = malloc(sizeof *diag);
    if (!diag)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "checking the graph");
    lathe_diag_reset(diag);
    enum lathe_status status = lathe_shape_infer_node(g, n, diag);
    if (status != LATHE_OK) {
        status = lathe_fail(c->diag, LATHE_MSG_GRAPH_CHECK, "%s", diag->text);
        free(diag);
        return status;
    }
    free(diag);
    for (uint32_t i = 0; i < n_out; i++) {
        lathe_value_id v = g->nodes[n].out[i];
        if (v == LATHE_NONE)
            continue;
        struct lathe_value now = g->values[v];
        bool same = now.dtype == before[i].dtype && now.rank == before[i].rank;
        for (int k = 0; same && k < now.rank; k++)
            same = lathe_dim_resolve(g->dims, now.dims[k]) == lathe_dim_resolve(g->dims, before[i].dims[k]);
        if (!same) {
            g->values[v] = before[i];
            return bad_node(c, n, "the shape or type of its output is not what its operator gives");
        }
        if (before[i].content && !now.content)
            g->values[v] = before[i];
    }
    return LATHE_OK;
}

static enum lathe_status run_checks(struct check *c) {
    struct lathe_graph *g = c->g;
    if (g->out_of_memory)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "the graph is incomplete");
    for (lathe_value_id v = 0; v < g->value_count; v++) {
        c->placed[v] = g->values[v].is_input || g->values[v].data;
        if (c->placed[v] && g->values[v].producer != LATHE_NONE)
            return bad_value(c, v, "an input or constant has a producer");
        if (c->placed[v])
            LATHE_TRY(check_value(c, v));
        if (g->values[v].data && lathe_value_bytes(g, v) < 0)
            return bad_value(c, v, "a constant has a symbolic shape");
    }
    lathe_node_id prev = LATHE_NONE;
    uint32_t linked = 0, alive = 0;
    for (lathe_node_id n = 0; n < g->node_count; n++)
        alive += g->nodes[n].op != LATHE_OP_NONE;
    for (lathe_node_id n = g->first; n != LATHE_NONE; prev = n, n = g->nodes[n].next) {
        if (n >= g->node_count || g->nodes[n].prev != prev || ++linked > alive)
            return lathe_fail(c->diag, LATHE_MSG_GRAPH_CHECK, "the order of the nodes is broken");
        LATHE_TRY(check_node(c, n));
    }
    if (g->last != prev || linked != alive)
        return lathe_fail(c->diag, LATHE_MSG_GRAPH_CHECK, "the order of the nodes is broken");
    for (lathe_value_id v = 0; v < g->value_count; v++) {
        if (g->values[v].use_count != c->uses_seen[v])
            return bad_value(c, v, "its use list is wrong");
    }
    for (uint32_t i = 0; i < g->output_count; i++) {
        if (!c->placed[g->outputs[i]])
            return bad_value(c, g->outputs[i], "an output of the graph is not computed");
        if (!g->values[g->outputs[i]].is_output)
            return bad_value(c, g->outputs[i], "an output of the graph is not marked as one");
    }
    LATHE_FOR_NODES(g, n)
    LATHE_TRY(check_shapes(c, n));
    return LATHE_OK;
}

enum lathe_status lathe_graph_check(struct lathe_graph *g, struct lathe_diag *diag) {
    struct check c = {g, diag, calloc((size_t)g->value_count + 1, sizeof(uint32_t)),
                      calloc((size_t)g->value_count + 1, sizeof(bool))};
    enum lathe_status status =
        c.uses_seen && c.placed ? run_checks(&c) : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "checking the graph");
    free(c.uses_seen);
    free(c.placed);
    return status;
}
