/* Computes equal expressions once: nodes of one operator with equal operands and attributes, and constants with equal
 * elements (a tied weight that an exporter wrote twice, the same scalar in every layer). */
#include "pass.h"

#include <string.h>
#include <xxhash.h>

struct slot {
    uint64_t hash;
    uint32_t id_plus_1;
};

struct table {
    struct slot *slots;
    uint32_t mask;
};

static bool make_table(struct lathe_pass_ctx *ctx, uint32_t items, struct table *t) {
    uint32_t size = 64;
    while (size / 2 <= items && size < 1u << 30)
        size *= 2;
    t->slots = lathe_arena_alloc_array(ctx->scratch, size, sizeof *t->slots);
    t->mask = size - 1;
    return t->slots != NULL;
}

/* ---- constants */

static uint64_t hash_constant(const struct lathe_graph *g, lathe_value_id v, size_t bytes) {
    const struct lathe_value *value = &g->values[v];
    uint64_t hash = XXH3_64bits_withSeed(value->data, bytes, (XXH64_hash_t)value->dtype * 16 + (unsigned)value->rank);
    return hash ^ XXH3_64bits(value->dims, (size_t)value->rank * sizeof *value->dims);
}

static bool equal_constants(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b, size_t bytes) {
    return g->values[a].dtype == g->values[b].dtype && lathe_value_same_shape(g, a, b) &&
           (g->values[a].data == g->values[b].data || !memcmp(g->values[a].data, g->values[b].data, bytes));
}

static bool merge_constants(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    struct table t;
    if (!make_table(ctx, g->value_count, &t))
        return false;
    for (lathe_value_id v = 0; v < g->value_count; v++) {
        int64_t bytes;
        if (!lathe_value_is_constant(g, v) || !g->values[v].use_count || g->values[v].is_output ||
            g->values[v].is_input || (bytes = lathe_value_bytes(g, v)) < 0)
            continue;
        uint64_t hash = hash_constant(g, v, (size_t)bytes);
        uint32_t at = (uint32_t)hash & t.mask;
        for (; t.slots[at].id_plus_1; at = (at + 1) & t.mask)
            if (t.slots[at].hash == hash && equal_constants(g, t.slots[at].id_plus_1 - 1, v, (size_t)bytes))
                break;
        if (!t.slots[at].id_plus_1) {
            t.slots[at] = (struct slot){hash, v + 1};
            continue;
        }
        lathe_graph_replace_uses(g, v, t.slots[at].id_plus_1 - 1);
        ctx->changes++;
    }
    return true;
}

/* ---- nodes */

/* Operands in a fixed order where the order does not matter. */
static void ordered_pair(const struct lathe_graph *g, lathe_node_id n, lathe_value_id pair[2]) {
    const struct lathe_node *node = &g->nodes[n];
    const struct lathe_op_info *info = lathe_op_info(node->op);
    bool swap = info && info->flags & LATHE_OPF_COMMUTES && node->n_in >= 2 && node->in[1] < node->in[0];
    pair[0] = node->n_in > 0 ? node->in[swap ? 1 : 0] : LATHE_NONE;
    pair[1] = node->n_in > 1 ? node->in[swap ? 0 : 1] : LATHE_NONE;
}

static uint64_t mix(uint64_t hash, uint64_t x) {
    hash = (hash ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static uint64_t hash_node(const struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    lathe_value_id pair[2];
    ordered_pair(g, n, pair);
    uint64_t hash = mix(mix(mix((uint64_t)node->op, node->n_in), pair[0]), pair[1]);
    for (uint32_t i = 2; i < node->n_in; i++)
        hash = mix(hash, node->in[i]);
    for (uint32_t i = 0; i < node->n_attrs; i++) {
        const struct lathe_attr *attr = &node->attrs[i];
        hash = mix(mix(hash, (uint64_t)attr->key), (uint64_t)attr->i);
        for (uint32_t k = 0; k < attr->count; k++)
            hash = mix(hash, (uint64_t)attr->ints[k]);
    }
    return hash;
}

static bool equal_attrs(const struct lathe_node *a, const struct lathe_node *b) {
    if (a->n_attrs != b->n_attrs)
        return false;
    for (uint32_t i = 0; i < a->n_attrs; i++) {
        const struct lathe_attr *x = &a->attrs[i], *y = &b->attrs[i];
        if (x->key != y->key || x->type != y->type || x->i != y->i || memcmp(&x->f, &y->f, sizeof x->f) ||
            x->count != y->count || (x->count && memcmp(x->ints, y->ints, x->count * sizeof *x->ints)))
            return false;
    }
    return true;
}

/* b can be replaced by a: the same computation, and every output of b that is wanted exists in a. */
static bool equal_nodes(const struct lathe_graph *g, lathe_node_id na, lathe_node_id nb) {
    const struct lathe_node *a = &g->nodes[na], *b = &g->nodes[nb];
    lathe_value_id pa[2], pb[2];
    if (a->op != b->op || a->n_in != b->n_in || !equal_attrs(a, b))
        return false;
    ordered_pair(g, na, pa);
    ordered_pair(g, nb, pb);
    if (pa[0] != pb[0] || pa[1] != pb[1])
        return false;
    for (uint32_t i = 2; i < a->n_in; i++)
        if (a->in[i] != b->in[i])
            return false;
    for (uint32_t i = 0; i < b->n_out; i++) {
        if (b->out[i] == LATHE_NONE)
            continue;
        if (i >= a->n_out || a->out[i] == LATHE_NONE || g->values[a->out[i]].dtype != g->values[b->out[i]].dtype ||
            !lathe_value_same_shape(g, a->out[i], b->out[i]))
            return false;
        /* Two outputs of the graph keep two values. */
        if (g->values[a->out[i]].is_output && g->values[b->out[i]].is_output)
            return false;
    }
    return true;
}

static bool merge_nodes(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    struct table t;
    if (!make_table(ctx, g->node_count, &t))
        return false;
    LATHE_FOR_NODES_SAFE(g, n, following) {
        uint64_t hash = hash_node(g, n);
        uint32_t at = (uint32_t)hash & t.mask;
        for (; t.slots[at].id_plus_1; at = (at + 1) & t.mask)
            if (t.slots[at].hash == hash && equal_nodes(g, t.slots[at].id_plus_1 - 1, n))
                break;
        if (!t.slots[at].id_plus_1) {
            t.slots[at] = (struct slot){hash, n + 1};
            continue;
        }
        const struct lathe_node *kept = &g->nodes[t.slots[at].id_plus_1 - 1];
        for (uint32_t i = 0; i < g->nodes[n].n_out; i++)
            if (g->nodes[n].out[i] != LATHE_NONE)
                lathe_graph_replace_uses(g, g->nodes[n].out[i], kept->out[i]);
        lathe_graph_remove_node(g, n);
        ctx->changes++;
    }
    return true;
}

enum lathe_status lathe_pass_merge_equal_nodes(struct lathe_pass_ctx *ctx) {
    if (!merge_constants(ctx) || !merge_nodes(ctx))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "merging equal nodes");
    return LATHE_OK;
}
