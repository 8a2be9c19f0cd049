/* Weights of products: seen through concat, transposition, casts and reshapes of constants, so that packing reads the
 * mapped model directly and nothing is stored twice. */
#include "lower.h"

#include "section_checksum.h"

#include <string.h>

#define MAX_DEPTH 16
#define MAX_PARTS 4096
#define SAMPLE    512

struct resolver {
    struct lathe_lowered *l;
    struct lathe_table parts;
    int64_t k;
    bool bytes; /* weights in 8 bits */
};

static bool add_part(struct resolver *r, const void *data, enum lathe_dtype dtype, int64_t rows, int64_t cols,
                     bool transposed, int64_t *at) {
    bool readable = r->bytes ? dtype == LATHE_I8 : dtype == LATHE_F32 || dtype == LATHE_F16 || dtype == LATHE_BF16;
    if (!readable || (transposed ? cols : rows) != r->k || r->parts.count == MAX_PARTS)
        return false;
    struct lathe_weight_part part = {data, dtype, *at, transposed ? rows : cols, transposed};
    *at += part.columns;
    return lathe_table_add(&r->parts, &part, 1) != UINT32_MAX;
}

static bool resolve(struct resolver *r, lathe_value_id v, bool transposed, int64_t *at, unsigned depth) {
    struct lathe_graph *g = r->l->graph;
    if (v == LATHE_NONE || depth > MAX_DEPTH)
        return false;
    const struct lathe_value *value = lathe_value_at(g, v);
    int64_t rows, cols;
    if (value->rank != 2 || !lathe_value_dim_is(g, v, 0, &rows) || !lathe_value_dim_is(g, v, 1, &cols))
        return false;
    if (lathe_value_is_constant(g, v))
        return add_part(r, value->data, value->dtype, rows, cols, transposed, at);
    if (value->producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = lathe_node_at(g, value->producer);
    struct lathe_attrs attrs = lathe_node_attrs(g, value->producer);
    switch (node->op) {
    case LATHE_OP_TRANSPOSE: {
        uint32_t count;
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        bool swaps = count == 0 || (count == 2 && perm[0] == 1 && perm[1] == 0);
        return resolve(r, node->in[0], swaps ? !transposed : transposed, at, depth + 1);
    }
    case LATHE_OP_CAST:
        return value->dtype == LATHE_F32 && !r->bytes && resolve(r, node->in[0], transposed, at, depth + 1);
    case LATHE_OP_RESHAPE:
        if (lathe_value_is_constant(g, node->in[0])) {
            const struct lathe_value *from = lathe_value_at(g, node->in[0]);
            return lathe_value_count(g, node->in[0]) == lathe_value_count(g, v) &&
                   add_part(r, from->data, from->dtype, rows, cols, transposed, at);
        }
        return lathe_value_same_shape(g, node->in[0], v) && resolve(r, node->in[0], transposed, at, depth + 1);
    case LATHE_OP_CONCAT:
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != (transposed ? 0 : 1))
            return false;
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!resolve(r, node->in[i], transposed, at, depth + 1))
                return false;
        return true;
    default:
        return false;
    }
}

enum lathe_packing lathe_weight_packing(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_LINEAR:
        return LATHE_PACKING_F32_N16;
    case LATHE_OP_LINEAR_BF16:
        return LATHE_PACKING_BF16_N16K2;
    case LATHE_OP_LINEAR_Q8:
        return LATHE_PACKING_S8_N16K4;
    default:
        return LATHE_PACKING_ROWS;
    }
}

bool lathe_weight_resolve(struct lathe_lowered *l, lathe_node_id linear, struct lathe_weight *out) {
    struct lathe_graph *g = l->graph;
    const struct lathe_node *node = lathe_node_at(g, linear);
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    int64_t dims[2];
    *out = (struct lathe_weight){0};
    if (node->n_in < 2 || node->in[0] == LATHE_NONE || node->in[1] == LATHE_NONE || node->out[0] == LATHE_NONE ||
        lathe_value_at(g, node->in[0])->dtype != LATHE_F32 || lathe_value_at(g, node->out[0])->dtype != LATHE_F32 ||
        lathe_value_at(g, node->in[1])->rank != 2 || !lathe_value_dim_is(g, node->in[1], 0, &dims[0]) ||
        !lathe_value_dim_is(g, node->in[1], 1, &dims[1]))
        return false;
    struct resolver r = {.l = l, .parts = {.each = sizeof(struct lathe_weight_part)}, .k = dims[transposed ? 1 : 0]};
    enum lathe_packing packing = lathe_weight_packing(node->op);
    r.bytes = packing == LATHE_PACKING_S8_N16K4;
    int64_t at = 0, n = dims[transposed ? 0 : 1];
    bool ok = resolve(&r, node->in[1], transposed, &at, 0) && at == n && r.k > 0 && n > 0;
    if (ok) {
        out->packing = packing;
        out->parts = lathe_arena_copy(l->arena, r.parts.data, r.parts.count * sizeof *out->parts);
        out->part_count = r.parts.count;
        out->k = r.k;
        out->n = n;
        ok = out->parts != NULL;
    }
    lathe_table_free(&r.parts);
    return ok;
}

/* ---- equal weights are stored once */

static uint64_t part_bytes(const struct lathe_weight *w, const struct lathe_weight_part *p) {
    return (uint64_t)w->k * (uint64_t)p->columns * lathe_dtype_bytes(p->dtype);
}

/* Of both ends only: it decides which weights are compared byte by byte. */
static uint64_t sample(const void *data, uint64_t bytes, uint64_t seed) {
    uint64_t n = bytes < SAMPLE ? bytes : SAMPLE;
    uint64_t h = n ? lathe_xxh3(data, (size_t)n) : 0;
    uint64_t e = n ? lathe_xxh3((const char *)data + (bytes - n), (size_t)n) : 0;
    return (seed ^ h) * UINT64_C(0x9e3779b97f4a7c15) + (e ^ bytes) * UINT64_C(0xbf58476d1ce4e5b9);
}

static uint64_t hash_weight(const struct lathe_weight *w) {
    if (w->packing == 0)
        return sample(w->data, w->bytes, 0);
    uint64_t h = w->packing + (uint64_t)w->k * 31 + (uint64_t)w->n * 1009;
    for (uint32_t i = 0; i < w->part_count; i++)
        h = sample(w->parts[i].data, part_bytes(w, &w->parts[i]), h + w->parts[i].transposed);
    return h;
}

static bool equal_bytes(const void *a, const void *b, uint64_t n) {
    return a == b || n == 0 || memcmp(a, b, (size_t)n) == 0;
}

static bool equal_weight(const struct lathe_weight *a, const struct lathe_weight *b) {
    if (a->hash != b->hash || a->packing != b->packing || a->bytes != b->bytes || a->k != b->k || a->n != b->n ||
        a->part_count != b->part_count)
        return false;
    if (a->packing == 0)
        return equal_bytes(a->data, b->data, a->bytes);
    for (uint32_t i = 0; i < a->part_count; i++) {
        const struct lathe_weight_part *p = &a->parts[i], *q = &b->parts[i];
        if (p->dtype != q->dtype || p->columns != q->columns || p->transposed != q->transposed ||
            !equal_bytes(p->data, q->data, part_bytes(a, p)))
            return false;
    }
    return true;
}

uint32_t lathe_weight_add(struct lathe_lowered *l, const struct lathe_weight *w) {
    struct lathe_weight add = *w;
    add.hash = hash_weight(w);
    const struct lathe_weight *all = l->weights.data;
    for (uint32_t i = 0; i < l->weights.count; i++)
        if (equal_weight(&all[i], &add))
            return i;
    return lathe_table_add(&l->weights, &add, 1);
}
