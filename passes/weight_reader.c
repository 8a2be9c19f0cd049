#include "weight_reader.h"

#include "ops_enums.h"

#include <string.h>

#define MAX_DEPTH 16

static bool add_piece(struct lathe_weight_reader *r, const struct lathe_value *v, int64_t rows, int64_t cols,
                      bool transposed, int64_t *at) {
    bool readable = v->dtype == LATHE_F32 || v->dtype == LATHE_F16 || v->dtype == LATHE_BF16;
    if (!readable || (transposed ? cols : rows) != r->k || r->part_count == LATHE_WEIGHT_MAX_PARTS)
        return false;
    r->parts[r->part_count++] =
        (struct lathe_weight_piece){v->data, v->dtype, *at, transposed ? rows : cols, transposed};
    *at += transposed ? rows : cols;
    return true;
}

static bool resolve(const struct lathe_graph *g, struct lathe_weight_reader *r, lathe_value_id v, bool transposed,
                    int64_t *at, unsigned depth) {
    int64_t rows, cols;
    if (v == LATHE_NONE || depth > MAX_DEPTH || g->values[v].rank != 2 || !lathe_value_dim_is(g, v, 0, &rows) ||
        !lathe_value_dim_is(g, v, 1, &cols))
        return false;
    if (lathe_value_is_constant(g, v))
        return add_piece(r, &g->values[v], rows, cols, transposed, at);
    if (g->values[v].producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[g->values[v].producer];
    struct lathe_attrs attrs = lathe_node_attrs(g, g->values[v].producer);
    switch (node->op) {
    case LATHE_OP_TRANSPOSE: {
        uint32_t count;
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        bool swaps = count == 0 || (count == 2 && perm[0] == 1 && perm[1] == 0);
        return resolve(g, r, node->in[0], swaps ? !transposed : transposed, at, depth + 1);
    }
    case LATHE_OP_CAST:
        return g->values[v].dtype == LATHE_F32 && resolve(g, r, node->in[0], transposed, at, depth + 1);
    case LATHE_OP_RESHAPE:
        if (lathe_value_is_constant(g, node->in[0]))
            return lathe_value_count(g, node->in[0]) == lathe_value_count(g, v) &&
                   add_piece(r, &g->values[node->in[0]], rows, cols, transposed, at);
        return lathe_value_same_shape(g, node->in[0], v) && resolve(g, r, node->in[0], transposed, at, depth + 1);
    case LATHE_OP_CONCAT:
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != (transposed ? 0 : 1))
            return false;
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!resolve(g, r, node->in[i], transposed, at, depth + 1))
                return false;
        return true;
    default:
        return false;
    }
}

bool lathe_weight_reader_open(const struct lathe_graph *g, lathe_node_id linear, struct lathe_weight_reader *out) {
    const struct lathe_node *node = &g->nodes[linear];
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    int64_t dims[2], at = 0;
    *out = (struct lathe_weight_reader){0};
    if (node->n_in < 2 || node->in[1] == LATHE_NONE || g->values[node->in[1]].rank != 2 ||
        !lathe_value_dim_is(g, node->in[1], 0, &dims[0]) || !lathe_value_dim_is(g, node->in[1], 1, &dims[1]))
        return false;
    out->k = dims[transposed ? 1 : 0];
    out->n = dims[transposed ? 0 : 1];
    return out->k > 0 && out->n > 0 && resolve(g, out, node->in[1], transposed, &at, 0) && at == out->n;
}

static float element(const struct lathe_weight_piece *p, int64_t i) {
    if (p->dtype == LATHE_F32) {
        float f;
        memcpy(&f, (const char *)p->data + i * 4, 4);
        return f;
    }
    uint16_t h;
    uint32_t bits;
    float f;
    memcpy(&h, (const char *)p->data + i * 2, 2);
    if (p->dtype == LATHE_BF16) {
        bits = (uint32_t)h << 16;
    } else {
        uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
        if (exponent == 0) { /* zero, or below 2^-14: exact in f32 */
            f = (float)fraction * 0x1p-24f;
            return sign ? -f : f;
        }
        bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
    }
    memcpy(&f, &bits, 4);
    return f;
}

void lathe_weight_reader_columns(const struct lathe_weight_reader *r, int64_t first, int64_t count, float *out) {
    for (unsigned i = 0; i < r->part_count; i++) {
        const struct lathe_weight_piece *p = &r->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + count < p->at + p->columns ? first + count : p->at + p->columns;
        if (begin >= end)
            continue;
        if (p->transposed) {
            for (int64_t c = begin; c < end; c++)
                for (int64_t k = 0; k < r->k; k++)
                    out[(c - first) * r->k + k] = element(p, (c - p->at) * r->k + k);
            continue;
        }
        for (int64_t k = 0; k < r->k; k++) /* a row of the source is read along */
            for (int64_t c = begin; c < end; c++)
                out[(c - first) * r->k + k] = element(p, k * p->columns + (c - p->at));
    }
}
