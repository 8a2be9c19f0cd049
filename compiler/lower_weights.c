/* Weights of products: seen through what rearranges or widens constants (weight_reader.h), so that packing reads the
 * mapped model directly and nothing is stored twice. */
#include "lower.h"

#include "section_checksum.h"

#include <string.h>

#define SAMPLE 512

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
    struct lathe_weight_reader reader;
    *out = (struct lathe_weight){0};
    if (node->n_in < 2 || node->in[0] == LATHE_NONE || node->in[1] == LATHE_NONE || node->out[0] == LATHE_NONE ||
        lathe_value_at(g, node->in[0])->dtype != LATHE_F32 || lathe_value_at(g, node->out[0])->dtype != LATHE_F32 ||
        !lathe_weight_reader_open(g, linear, l->arena, &reader))
        return false;
    enum lathe_packing packing = lathe_weight_packing(node->op);
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    for (uint32_t i = 0; i < reader.part_count && packing == LATHE_PACKING_S8_N16K4; i++)
        if (reader.parts[i].dtype != LATHE_I8 || reader.parts[i].scaled)
            return false;
    if (packing == LATHE_PACKING_S8_N16K4 && lathe_attr_int(&attrs, LATHE_ATTR_W_BITS, 8) == 4)
        packing = LATHE_PACKING_S4_N16K8;
    *out = (struct lathe_weight){
        .packing = packing, .parts = reader.parts, .part_count = reader.part_count, .k = reader.k, .n = reader.n};
    return true;
}

bool lathe_weight_widen(struct lathe_lowered *l, lathe_node_id conv, struct lathe_weight *out) {
    const struct lathe_node *node = lathe_node_at(l->graph, conv);
    struct lathe_weight_part *part = lathe_arena_alloc(l->arena, sizeof *part);
    int64_t rows;
    *out = (struct lathe_weight){0};
    if (!part || node->n_in < 2 || !lathe_weight_stored(l->graph, node->in[1], &rows, part) ||
        part->columns > INT64_MAX / 4 / rows)
        return false;
    *out = (struct lathe_weight){.packing = LATHE_PACKING_ROWS,
                                 .parts = part,
                                 .part_count = 1,
                                 .k = rows,
                                 .n = part->columns,
                                 .bytes = (uint64_t)rows * (uint64_t)part->columns * 4};
    return true;
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
    if (w->part_count == 0)
        return sample(w->data, w->bytes, 0);
    uint64_t h = w->packing + (uint64_t)w->k * 31 + (uint64_t)w->n * 1009;
    for (uint32_t i = 0; i < w->part_count; i++)
        h = sample(w->parts[i].data, part_bytes(w, &w->parts[i]), h + w->parts[i].transposed);
    return h;
}

static bool equal_bytes(const void *a, const void *b, uint64_t n) {
    return a == b || n == 0 || memcmp(a, b, (size_t)n) == 0;
}

/* The same scales and zero points, both of matrices [rows][cols]. */
static bool equal_grid(const struct lathe_weight_part *p, const struct lathe_weight_part *q, int64_t rows,
                       int64_t cols) {
    const struct lathe_weight_grid *a = &p->grid, *b = &q->grid;
    if (p->scaled != q->scaled || !p->scaled)
        return p->scaled == q->scaled;
    int64_t cells = lathe_weight_cell(a, rows - 1, cols - 1) + 1;
    return a->scale_dtype == b->scale_dtype && !a->zero == !b->zero && a->zero_dtype == b->zero_dtype &&
           !memcmp(a->block, b->block, sizeof a->block) && !memcmp(a->step, b->step, sizeof a->step) &&
           equal_bytes(a->scale, b->scale, (uint64_t)cells * lathe_dtype_bytes(a->scale_dtype)) &&
           (!a->zero || equal_bytes(a->zero, b->zero, (uint64_t)cells * lathe_dtype_bytes(a->zero_dtype)));
}

static bool equal_weight(const struct lathe_weight *a, const struct lathe_weight *b) {
    if (a->hash != b->hash || a->packing != b->packing || a->bytes != b->bytes || a->k != b->k || a->n != b->n ||
        a->part_count != b->part_count)
        return false;
    if (a->part_count == 0)
        return equal_bytes(a->data, b->data, a->bytes);
    for (uint32_t i = 0; i < a->part_count; i++) {
        const struct lathe_weight_part *p = &a->parts[i], *q = &b->parts[i];
        if (p->dtype != q->dtype || p->columns != q->columns || p->transposed != q->transposed ||
            !equal_grid(p, q, p->transposed ? p->columns : a->k, p->transposed ? a->k : p->columns) ||
            !equal_bytes(p->data, q->data, part_bytes(a, p)))
            return false;
    }
    return true;
}

#define LEAST_SHARED 1024 /* bytes; below, alignment eats what sharing saves */

/* Of plans for several lengths: a constant that begins as another one, as slices of one table do, lies in its bytes. */
static uint32_t share_beginning(struct lathe_lowered *l, const struct lathe_weight *w) {
    struct lathe_weight *all = l->weights.data;
    for (uint32_t i = 0; w->packing == 0 && w->bytes >= LEAST_SHARED && i < l->weights.count; i++) {
        uint64_t both = all[i].bytes < w->bytes ? all[i].bytes : w->bytes;
        if (all[i].packing != 0 || both < LEAST_SHARED || !equal_bytes(all[i].data, w->data, both))
            continue;
        if (all[i].bytes < w->bytes)
            all[i] = *w;
        return i;
    }
    return UINT32_MAX;
}

uint32_t lathe_weight_add(struct lathe_lowered *l, const struct lathe_weight *w) {
    struct lathe_weight add = *w;
    add.hash = hash_weight(w);
    const struct lathe_weight *all = l->weights.data;
    for (uint32_t i = 0; i < l->weights.count; i++)
        if (equal_weight(&all[i], &add))
            return i;
    uint32_t shared = l->options->buckets ? share_beginning(l, &add) : UINT32_MAX;
    return shared != UINT32_MAX ? shared : lathe_table_add(&l->weights, &add, 1);
}
