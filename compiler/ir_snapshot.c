/* A copy of everything in a graph that passes change, so that a pass can be undone. Names, constants and dimension
 * expressions are never changed by a pass, only added to, and need no copy. */
#include "ir.h"

#include "ir_internal.h"

#include <stdlib.h>
#include <string.h>

struct lathe_graph_snapshot {
    struct lathe_arena *arena;
    struct lathe_value *values;
    struct lathe_node *nodes;
    lathe_value_id *outputs;
    uint32_t value_count, node_count, output_count;
    lathe_node_id first, last;
};

void lathe_graph_snapshot_free(struct lathe_graph_snapshot **snapshot) {
    if (!snapshot || !*snapshot)
        return;
    lathe_arena_free(&(*snapshot)->arena);
    free(*snapshot);
    *snapshot = NULL;
}

/* The array in `arena`, or NULL with *failed when memory runs out. */
static void *copy(struct lathe_arena *arena, const void *data, size_t count, size_t element, bool *failed) {
    void *result = lathe_arena_copy(arena, data, count * element);
    *failed |= result == NULL;
    return result;
}

/* Moves the arrays that nodes and values own into `arena`. */
static bool own_arrays(struct lathe_arena *arena, struct lathe_value *values, uint32_t value_count,
                       struct lathe_node *nodes, uint32_t node_count) {
    bool failed = false;
    for (uint32_t i = 0; i < value_count && !failed; i++) {
        values[i].uses = copy(arena, values[i].uses, values[i].use_count, sizeof *values[i].uses, &failed);
        values[i].use_capacity = values[i].use_count;
    }
    for (uint32_t i = 0; i < node_count && !failed; i++) {
        struct lathe_node *n = &nodes[i];
        n->in = copy(arena, n->in, n->n_in, sizeof *n->in, &failed);
        n->out = copy(arena, n->out, n->n_out, sizeof *n->out, &failed);
        n->attrs = copy(arena, n->attrs, n->n_attrs, sizeof *n->attrs, &failed);
    }
    return !failed;
}

struct lathe_graph_snapshot *lathe_graph_snapshot_take(const struct lathe_graph *g) {
    struct lathe_graph_snapshot *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    bool failed = false;
    s->arena = lathe_arena_new();
    if (s->arena) {
        s->values = copy(s->arena, g->values, g->value_count, sizeof *s->values, &failed);
        s->nodes = copy(s->arena, g->nodes, g->node_count, sizeof *s->nodes, &failed);
        s->outputs = copy(s->arena, g->outputs, g->output_count, sizeof *s->outputs, &failed);
    }
    s->value_count = g->value_count;
    s->node_count = g->node_count;
    s->output_count = g->output_count;
    s->first = g->first;
    s->last = g->last;
    if (!s->arena || failed || !own_arrays(s->arena, s->values, s->value_count, s->nodes, s->node_count))
        lathe_graph_snapshot_free(&s);
    return s;
}

bool lathe_graph_snapshot_restore(struct lathe_graph *g, const struct lathe_graph_snapshot *s) {
    memcpy(g->values, s->values, s->value_count * sizeof *s->values);
    memcpy(g->nodes, s->nodes, s->node_count * sizeof *s->nodes);
    memcpy(g->outputs, s->outputs, s->output_count * sizeof *s->outputs);
    g->output_count = s->output_count;
    g->first = s->first;
    g->last = s->last;
    /* What was added since then stays as values and nodes that nothing refers to. */
    for (lathe_value_id v = s->value_count; v < g->value_count; v++) {
        g->values[v].producer = LATHE_NONE;
        g->values[v].use_count = 0;
        g->values[v].is_output = false;
    }
    for (lathe_node_id n = s->node_count; n < g->node_count; n++) {
        g->nodes[n].op = LATHE_OP_NONE;
        g->nodes[n].n_in = g->nodes[n].n_out = g->nodes[n].n_attrs = 0;
    }
    if (!own_arrays(g->arena, g->values, s->value_count, g->nodes, s->node_count))
        return false;
    lathe_graph_resolve_dims(g);
    return true;
}

/* ---- clones */

static void *copy_list(const void *data, size_t count, size_t element, bool *failed) {
    void *list = malloc((count + 1) * element);
    if (list && count)
        memcpy(list, data, count * element);
    *failed |= !list;
    return list;
}

struct lathe_graph *lathe_graph_clone(const struct lathe_graph *g) {
    struct lathe_graph *c = lathe_graph_new();
    bool failed = false;
    if (!c)
        return NULL;
    lathe_dims_free(&c->dims);
    c->dims = lathe_dims_clone(g->dims);
    c->values = copy_list(g->values, g->value_count, sizeof *g->values, &failed);
    c->nodes = copy_list(g->nodes, g->node_count, sizeof *g->nodes, &failed);
    c->inputs = copy_list(g->inputs, g->input_count, sizeof *g->inputs, &failed);
    c->outputs = copy_list(g->outputs, g->output_count, sizeof *g->outputs, &failed);
    c->output_names = copy_list(g->output_names, g->output_count, sizeof *g->output_names, &failed);
    if (failed || !c->dims || !lathe_graph_copy_names(c, g) ||
        !own_arrays(c->arena, c->values, g->value_count, c->nodes, g->node_count)) {
        lathe_graph_free(&c);
        return NULL;
    }
    c->value_count = c->value_capacity = g->value_count;
    c->node_count = c->node_capacity = g->node_count;
    c->input_count = g->input_count;
    c->output_count = g->output_count;
    c->first = g->first;
    c->last = g->last;
    c->interface = g->interface;
    return c;
}
