#include "weight_reader.h"

#include "ops_enums.h"

#include <string.h>

#define MAX_DEPTH 16
#define MAX_PARTS 4096

struct resolver {
    const struct lathe_graph *g;
    struct lathe_weight_part *parts; /* NULL: they are only counted */
    uint32_t count;
    int64_t k, at;
};

static bool is_readable(enum lathe_dtype dtype) {
    switch (dtype) {
    case LATHE_F32:
    case LATHE_F16:
    case LATHE_BF16:
    case LATHE_I8:
    case LATHE_U8:
    case LATHE_I16:
    case LATHE_U16:
    case LATHE_I32:
        return true;
    default:
        return false;
    }
}

/* Rank 2 and more with ones before the last two axes: the matrix. */
static bool matrix_dims(const struct lathe_graph *g, lathe_value_id v, int64_t *rows, int64_t *cols) {
    int64_t one;
    if (v == LATHE_NONE || g->values[v].rank < 2 || !lathe_value_dim_is(g, v, -2, rows) ||
        !lathe_value_dim_is(g, v, -1, cols))
        return false;
    for (int i = 0; i < g->values[v].rank - 2; i++)
        if (!lathe_value_dim_is(g, v, i, &one) || one != 1)
            return false;
    return true;
}

/* ---- scales */

static lathe_value_id operand(const struct lathe_node *node, uint32_t i) {
    return i < node->n_in ? node->in[i] : LATHE_NONE;
}

/* The grid of a dequantize_linear of a constant seen as [rows][cols], where axes [0, row_axes) of it make the rows. */
static bool grid_of(const struct lathe_graph *g, const struct lathe_node *node, int row_axes,
                    struct lathe_weight_grid *out) {
    struct lathe_attrs attrs = {node->attrs, node->n_attrs};
    lathe_value_id x = node->in[0], scale = operand(node, 1), zero = operand(node, 2);
    int rank = g->values[x].rank;
    int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, rank > 1 ? 1 : 0), block, count, size, inner = 1, dim;
    block = lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    if (!lathe_value_is_constant(g, scale) || !lathe_dtype_is_float(g->values[scale].dtype) ||
        lathe_dtype_bytes(g->values[scale].dtype) > 4 || (count = lathe_value_count(g, scale)) < 1 ||
        (zero != LATHE_NONE && (!lathe_value_is_constant(g, zero) || lathe_value_count(g, zero) != count ||
                                g->values[zero].dtype != g->values[x].dtype)))
        return false;
    *out = (struct lathe_weight_grid){.scale = g->values[scale].data,
                                      .scale_dtype = g->values[scale].dtype,
                                      .zero = zero == LATHE_NONE ? NULL : g->values[zero].data,
                                      .zero_dtype = g->values[x].dtype,
                                      .block = {1, 1}};
    if (count == 1 && !block)
        return true;
    if (axis < 0 || axis >= rank || !lathe_value_dim_is(g, x, (int)axis, &size))
        return false;
    bool in_rows = axis < row_axes;
    for (int i = (int)axis + 1; i < (in_rows ? row_axes : rank); i++) {
        if (!lathe_value_dim_is(g, x, i, &dim) || dim < 1)
            return false;
        inner *= dim;
    }
    for (int i = in_rows ? 0 : row_axes; i < axis; i++) /* the axis repeats: no grid of one step */
        if (!lathe_value_dim_is(g, x, i, &dim) || dim != 1)
            return false;
    if (!block) {
        out->block[!in_rows] = inner;
        out->step[!in_rows] = 1;
        return count == size;
    }
    /* blocks along one of the two last axes: the scales are a matrix too */
    int64_t rows, cols;
    if (block < 1 || inner != 1 || g->values[scale].rank != rank || !matrix_dims(g, scale, &rows, &cols) ||
        rows * cols != count || row_axes != rank - 1)
        return false;
    out->block[!in_rows] = block;
    out->step[0] = cols;
    out->step[1] = 1;
    return true;
}

/* What v widens, as a matrix whose rows are its first `row_axes` axes. */
static bool stored_as(const struct lathe_graph *g, lathe_value_id v, int row_axes, int64_t rows, int64_t columns,
                      struct lathe_weight_part *out) {
    if (v == LATHE_NONE || lathe_value_is_constant(g, v) || g->values[v].producer == LATHE_NONE ||
        g->values[v].dtype != LATHE_F32 || rows < 1 || columns < 1)
        return false;
    const struct lathe_node *node = &g->nodes[g->values[v].producer];
    lathe_value_id x = operand(node, 0);
    if ((node->op != LATHE_OP_CAST && node->op != LATHE_OP_DEQUANTIZE_LINEAR) || !lathe_value_is_constant(g, x) ||
        !is_readable(g->values[x].dtype))
        return false;
    *out = (struct lathe_weight_part){.data = g->values[x].data,
                                      .dtype = g->values[x].dtype,
                                      .columns = columns,
                                      .scaled = node->op == LATHE_OP_DEQUANTIZE_LINEAR};
    return !out->scaled || grid_of(g, node, row_axes, &out->grid);
}

bool lathe_weight_stored(const struct lathe_graph *g, lathe_value_id v, int64_t *rows, struct lathe_weight_part *out) {
    int64_t count = v == LATHE_NONE || g->values[v].rank < 1 ? -1 : lathe_value_count(g, v);
    return count > 0 && lathe_value_dim_is(g, v, 0, rows) && stored_as(g, v, 1, *rows, count / *rows, out);
}

bool lathe_weight_is_matrix(const struct lathe_graph *g, lathe_value_id v) {
    struct lathe_weight_part part;
    int64_t rows, columns;
    return matrix_dims(g, v, &rows, &columns) && stored_as(g, v, g->values[v].rank - 1, rows, columns, &part);
}

/* ---- resolving */

static bool add_part(struct resolver *r, const struct lathe_value *v, const struct lathe_weight_grid *grid,
                     int64_t rows, int64_t cols, bool transposed) {
    if (!is_readable(v->dtype) || (transposed ? cols : rows) != r->k || r->count == MAX_PARTS)
        return false;
    int64_t columns = transposed ? rows : cols;
    if (r->parts)
        r->parts[r->count] = (struct lathe_weight_part){.data = v->data,
                                                        .dtype = v->dtype,
                                                        .at = r->at,
                                                        .columns = columns,
                                                        .transposed = transposed,
                                                        .scaled = grid != NULL,
                                                        .grid = grid ? *grid : (struct lathe_weight_grid){0}};
    r->count++;
    r->at += columns;
    return true;
}

static bool resolve(struct resolver *r, lathe_value_id v, bool transposed, unsigned depth) {
    const struct lathe_graph *g = r->g;
    int64_t rows, cols, from_rows, from_cols;
    if (depth > MAX_DEPTH || !matrix_dims(g, v, &rows, &cols))
        return false;
    if (lathe_value_is_constant(g, v))
        return add_part(r, &g->values[v], NULL, rows, cols, transposed);
    if (g->values[v].producer == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[g->values[v].producer];
    struct lathe_attrs attrs = lathe_node_attrs(g, g->values[v].producer);
    switch (node->op) {
    case LATHE_OP_TRANSPOSE: {
        uint32_t count, rank = (uint32_t)g->values[v].rank;
        const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
        bool swaps = count == 0 ? rank == 2 : count == rank && perm[rank - 2] == rank - 1 && perm[rank - 1] == rank - 2;
        bool stays = count == rank && perm[rank - 2] == rank - 2 && perm[rank - 1] == rank - 1;
        return (swaps || stays) && resolve(r, node->in[0], swaps ? !transposed : transposed, depth + 1);
    }
    case LATHE_OP_CAST: {
        enum lathe_dtype from = g->values[node->in[0]].dtype;
        if (g->values[v].dtype != LATHE_F32)
            return false;
        if (lathe_dtype_is_float(from))
            return resolve(r, node->in[0], transposed, depth + 1);
        return lathe_value_is_constant(g, node->in[0]) &&
               add_part(r, &g->values[node->in[0]], NULL, rows, cols, transposed);
    }
    case LATHE_OP_DEQUANTIZE_LINEAR: {
        struct lathe_weight_grid grid;
        return g->values[v].dtype == LATHE_F32 && lathe_value_is_constant(g, node->in[0]) &&
               grid_of(g, node, g->values[v].rank - 1, &grid) &&
               add_part(r, &g->values[node->in[0]], &grid, rows, cols, transposed);
    }
    case LATHE_OP_RESHAPE:
        if (lathe_value_is_constant(g, node->in[0]))
            return lathe_value_count(g, node->in[0]) == lathe_value_count(g, v) &&
                   add_part(r, &g->values[node->in[0]], NULL, rows, cols, transposed);
        return matrix_dims(g, node->in[0], &from_rows, &from_cols) && from_rows == rows && from_cols == cols &&
               resolve(r, node->in[0], transposed, depth + 1);
    case LATHE_OP_CONCAT:
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != g->values[v].rank - (transposed ? 2 : 1))
            return false;
        for (uint32_t i = 0; i < node->n_in; i++)
            if (!resolve(r, node->in[i], transposed, depth + 1))
                return false;
        return true;
    default:
        return false;
    }
}

bool lathe_weight_reader_open(const struct lathe_graph *g, lathe_node_id linear, struct lathe_arena *arena,
                              struct lathe_weight_reader *out) {
    const struct lathe_node *node = &g->nodes[linear];
    struct lathe_attrs attrs = lathe_node_attrs(g, linear);
    bool transposed = lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
    int64_t dims[2];
    *out = (struct lathe_weight_reader){0};
    if (node->n_in < 2 || node->in[1] == LATHE_NONE || g->values[node->in[1]].rank != 2 ||
        !lathe_value_dim_is(g, node->in[1], 0, &dims[0]) || !lathe_value_dim_is(g, node->in[1], 1, &dims[1]))
        return false;
    out->k = dims[transposed ? 1 : 0];
    out->n = dims[transposed ? 0 : 1];
    struct resolver r = {.g = g, .k = out->k};
    if (out->k < 1 || out->n < 1 || !resolve(&r, node->in[1], transposed, 0) || r.at != out->n)
        return false;
    r.parts = lathe_arena_alloc_array(arena, r.count, sizeof *r.parts);
    r.count = 0;
    r.at = 0;
    if (!r.parts || !resolve(&r, node->in[1], transposed, 0))
        return false;
    out->parts = r.parts;
    out->part_count = r.count;
    return true;
}

/* ---- reading */

static float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | fraction << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else { /* zero or a number below 2^-14: exact in f32 */
        float small = (float)fraction * 0x1p-24f;
        memcpy(&bits, &small, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float half_at(const void *data, enum lathe_dtype dtype, int64_t i) {
    uint16_t h;
    memcpy(&h, (const char *)data + i * 2, 2);
    if (dtype == LATHE_F16)
        return from_half(h);
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static int64_t integer_at(const void *data, enum lathe_dtype dtype, int64_t i) {
    const char *p = data;
    int16_t s;
    uint16_t u;
    int32_t w;
    switch (dtype) {
    case LATHE_I8:
        return ((const int8_t *)data)[i];
    case LATHE_U8:
        return ((const uint8_t *)data)[i];
    case LATHE_I16:
        memcpy(&s, p + i * 2, 2);
        return s;
    case LATHE_U16:
        memcpy(&u, p + i * 2, 2);
        return u;
    default:
        memcpy(&w, p + i * 4, 4);
        return w;
    }
}

float lathe_weight_scale_at(const struct lathe_weight_grid *g, int64_t cell) {
    float f;
    if (g->scale_dtype != LATHE_F32)
        return half_at(g->scale, g->scale_dtype, cell);
    memcpy(&f, (const char *)g->scale + cell * 4, 4);
    return f;
}

int64_t lathe_weight_zero_at(const struct lathe_weight_grid *g, int64_t cell) {
    return g->zero ? integer_at(g->zero, g->zero_dtype, cell) : 0;
}

static void read_scaled(const struct lathe_weight_part *p, int64_t at, int64_t row, int64_t first, int64_t count,
                        float *out) {
    const struct lathe_weight_grid *g = &p->grid;
    int64_t cell = -1, zero = 0;
    float scale = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = lathe_weight_cell(g, row, first + i);
        if (c != cell) {
            cell = c;
            scale = lathe_weight_scale_at(g, c);
            zero = lathe_weight_zero_at(g, c);
        }
        out[i] = (float)(integer_at(p->data, p->dtype, at + i) - zero) * scale;
    }
}

void lathe_weight_part_read(const struct lathe_weight_part *p, int64_t width, int64_t row, int64_t first, int64_t count,
                            float *out) {
    int64_t at = row * width + first;
    if (p->scaled) {
        read_scaled(p, at, row, first, count, out);
    } else if (p->dtype == LATHE_F32) { /* the source may be unaligned */
        memcpy(out, (const char *)p->data + at * 4, (size_t)count * 4);
    } else if (lathe_dtype_is_float(p->dtype)) {
        for (int64_t i = 0; i < count; i++)
            out[i] = half_at(p->data, p->dtype, at + i);
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = (float)integer_at(p->data, p->dtype, at + i);
    }
}

void lathe_weight_reader_columns(const struct lathe_weight_reader *r, int64_t first, int64_t count, float *out) {
    enum { RUN = 64 };
    for (uint32_t i = 0; i < r->part_count; i++) {
        const struct lathe_weight_part *p = &r->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + count < p->at + p->columns ? first + count : p->at + p->columns;
        if (begin >= end)
            continue;
        if (p->transposed) {
            for (int64_t c = begin; c < end; c++)
                lathe_weight_part_read(p, r->k, c - p->at, 0, r->k, out + (c - first) * r->k);
            continue;
        }
        for (int64_t k = 0; k < r->k; k++) /* a row of the source is read along */
            for (int64_t c = begin; c < end; c += RUN) {
                float run[RUN];
                int64_t n = end - c < RUN ? end - c : RUN;
                lathe_weight_part_read(p, p->columns, k, c - p->at, n, run);
                for (int64_t t = 0; t < n; t++)
                    out[(c + t - first) * r->k + k] = run[t];
            }
    }
}
