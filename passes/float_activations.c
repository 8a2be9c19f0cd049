/* For --precision int8: how the source itself quantizes activations gives way to what linear_q8 does, a range for each
 * row instead of one for all; its quantized weights stay and are reused (reuse_weights.h).
 *   - dequantize(quantize(x)) of one scale and zero point is x; where the range has zero at one end, x clipped to it,
 *   - an integer product of quantized tensors, times their scales, is a matmul of the tensors, a constant one
 * dequantized,
 *   - matmul_nbits becomes a matmul on its dequantized weight.
 * In other precisions these forms keep their written meaning. Runs before folding, which would multiply scales out. */
#include "match.h"
#include "ops/nbits.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct counts {
    unsigned pairs, products, blocks;
};

static lathe_value_id operand(const struct lathe_graph *g, lathe_node_id n, uint32_t i) {
    return i < g->nodes[n].n_in ? g->nodes[n].in[i] : LATHE_NONE;
}

/* One value, or constants with equal elements (one element whatever its rank). */
static bool same_parameter(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    if (a == b)
        return true;
    if (a == LATHE_NONE || b == LATHE_NONE || !lathe_value_is_constant(g, a) || !lathe_value_is_constant(g, b) ||
        g->values[a].dtype != g->values[b].dtype)
        return false;
    int64_t bytes = lathe_value_bytes(g, a);
    return bytes > 0 && bytes == lathe_value_bytes(g, b) &&
           !memcmp(g->values[a].data, g->values[b].data, (size_t)bytes);
}

/* The same of zero points, where an absent one is 0. */
static bool same_zero(const struct lathe_graph *g, lathe_value_id a, lathe_value_id b) {
    double x = 0, y = 0;
    if (same_parameter(g, a, b))
        return true;
    return (a == LATHE_NONE || (lathe_value_is_constant(g, a) && lathe_constant_uniform(g, a, &x))) &&
           (b == LATHE_NONE || (lathe_value_is_constant(g, b) && lathe_constant_uniform(g, b, &y))) && x == y;
}

/* ---- quantize and dequantize */

#define MASK_SCALE 1e30

static bool integer_range(enum lathe_dtype dtype, double *low, double *high) {
    int bits = (int)lathe_dtype_bytes(dtype) * 8;
    if (!lathe_dtype_is_integer(dtype) || bits > 16)
        return false;
    bool is_signed = dtype == LATHE_I8 || dtype == LATHE_I16;
    *low = is_signed ? -ldexp(1, bits - 1) : 0;
    *high = *low + ldexp(1, bits) - 1;
    return true;
}

/* Bounds that hold whatever the inputs are. NaN is no number: what may be NaN has the bounds of its numbers. */
struct bounds {
    double low, high;
};

static struct bounds bounds_of(const struct lathe_graph *g, lathe_value_id v, int depth);

static struct bounds constant_bounds(const struct lathe_graph *g, lathe_value_id v) {
    struct bounds b = {INFINITY, -INFINITY};
    int64_t count = lathe_value_count(g, v);
    if (count < 1 || count > 65536)
        return (struct bounds){-INFINITY, INFINITY};
    for (int64_t i = 0; i < count; i++) {
        double x = lathe_constant_f64(g, v, i);
        b.low = x < b.low ? x : b.low;
        b.high = x > b.high ? x : b.high;
    }
    return b;
}

static struct bounds product_bounds(struct bounds a, struct bounds b) {
    const double ends[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    struct bounds p = {INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        double end = isnan(ends[i]) ? 0 : ends[i]; /* 0 * infinity: the bound is not reached */
        p.low = end < p.low ? end : p.low;
        p.high = end > p.high ? end : p.high;
    }
    return p;
}

static struct bounds bounds_of(const struct lathe_graph *g, lathe_value_id v, int depth) {
    const struct bounds any = {-INFINITY, INFINITY};
    if (v == LATHE_NONE || depth == 0)
        return any;
    if (lathe_value_is_constant(g, v))
        return constant_bounds(g, v);
    if (g->values[v].producer == LATHE_NONE)
        return any;
    const struct lathe_node *node = &g->nodes[g->values[v].producer];
    struct bounds a, b;
    switch (node->op) {
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_SIGMOID:
        return (struct bounds){0, 1};
    case LATHE_OP_ERF:
    case LATHE_OP_TANH:
    case LATHE_OP_COS:
    case LATHE_OP_SIN:
        return (struct bounds){-1, 1};
    case LATHE_OP_RELU:
    case LATHE_OP_ABS:
    case LATHE_OP_EXP:
    case LATHE_OP_SQRT:
        return (struct bounds){0, INFINITY};
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
    case LATHE_OP_EXPAND:
        return bounds_of(g, node->in[0], depth - 1);
    case LATHE_OP_DEQUANTIZE_LINEAR: {
        lathe_node_id q = lathe_producer_of(g, node->in[0], LATHE_OP_QUANTIZE_LINEAR);
        double scale, zero = 0;
        if (lathe_value_is_constant(g, node->in[0]) && lathe_constant_uniform(g, node->in[1], &scale) && scale > 0 &&
            (node->n_in < 3 || node->in[2] == LATHE_NONE || lathe_constant_uniform(g, node->in[2], &zero))) {
            a = constant_bounds(g, node->in[0]);
            return (struct bounds){(a.low - zero) * scale, (a.high - zero) * scale};
        }
        /* rounding moves a number by up to half a step, but not over zero */
        a = q == LATHE_NONE ? any : bounds_of(g, g->nodes[q].in[0], depth - 1);
        return (struct bounds){a.low >= 0 ? 0 : -INFINITY, a.high <= 0 ? 0 : INFINITY};
    }
    case LATHE_OP_WHERE:
        a = bounds_of(g, node->in[1], depth - 1);
        b = bounds_of(g, node->in[2], depth - 1);
        return (struct bounds){fmin(a.low, b.low), fmax(a.high, b.high)};
    case LATHE_OP_ADD:
        a = bounds_of(g, node->in[0], depth - 1);
        b = bounds_of(g, node->in[1], depth - 1);
        a = (struct bounds){a.low + b.low, a.high + b.high};
        return isnan(a.low) || isnan(a.high) ? any : a;
    case LATHE_OP_MUL:
        return product_bounds(bounds_of(g, node->in[0], depth - 1), bounds_of(g, node->in[1], depth - 1));
    default:
        return any;
    }
}

/* What the quantized tensor q, of this scale and zero point, stands for, just before `before`; LATHE_NONE when it is
 * made otherwise. What only arranges elements is done on the floats. */
static lathe_value_id float_source(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id q,
                                   lathe_value_id scale, lathe_value_id zero, int depth) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id n = q == LATHE_NONE ? LATHE_NONE : g->values[q].producer;
    double low, high, z = 0, s;
    if (n == LATHE_NONE || depth == 0)
        return LATHE_NONE;
    struct lathe_node node = g->nodes[n];
    switch (node.op) {
    case LATHE_OP_DYNAMIC_QUANTIZE_LINEAR:
        return node.out[0] == q && node.n_out > 2 && node.out[1] == scale && node.out[2] == zero ? node.in[0]
                                                                                                 : LATHE_NONE;
    case LATHE_OP_QUANTIZE_LINEAR: {
        lathe_value_id own = operand(g, n, 2);
        if (!same_parameter(g, node.in[1], scale) || !same_zero(g, own, zero) ||
            g->values[node.in[0]].dtype != LATHE_F32 || !integer_range(g->values[q].dtype, &low, &high) ||
            (own != LATHE_NONE && (!lathe_value_is_constant(g, own) || !lathe_constant_uniform(g, own, &z))))
            return LATHE_NONE;
        if (!lathe_value_is_constant(g, scale) || !lathe_constant_uniform(g, scale, &s))
            s = 0;
        /* A range that a mask of -3e38 gave rounds all scores to one number: the source means what it says. */
        if (!(fabs(s) < MASK_SCALE))
            return LATHE_NONE;
        if (z != low && z != high)
            return node.in[0];
        struct bounds inside = bounds_of(g, node.in[0], 8);
        double slack = 0.01 * s; /* a 1 in 8 bits may be a little less */
        if (z == low ? inside.low >= -slack : inside.high <= slack)
            return node.in[0];
        if (!lathe_value_is_constant(g, scale) || lathe_value_count(g, scale) != 1)
            return LATHE_NONE;
        /* Tools drop a ReLU whose work the range does: it is done by a clip. */
        lathe_value_id in[3] = {node.in[0], lathe_graph_add_scalar_f32(g, "low", (float)((low - z) * s)),
                                lathe_graph_add_scalar_f32(g, "high", (float)((high - z) * s))};
        return lathe_match_make_like(g, before, LATHE_OP_CLIP, in, 3, node.in[0]);
    }
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
    case LATHE_OP_EXPAND: {
        if (node.n_in != 1)
            return LATHE_NONE;
        lathe_value_id x = float_source(ctx, before, node.in[0], scale, zero, depth - 1);
        struct lathe_value like = g->values[q];
        lathe_value_id y =
            x == LATHE_NONE ? LATHE_NONE
                            : lathe_graph_emit(g, before, node.op, node.name, &x, 1, LATHE_F32, like.rank, like.dims);
        for (uint32_t i = 0; y != LATHE_NONE && i < node.n_attrs; i++) {
            lathe_node_id made = g->values[y].producer;
            const struct lathe_attr *a = &node.attrs[i];
            if (a->type == LATHE_ATTR_INT)
                lathe_node_set_int(g, made, a->key, a->i);
            else if (a->type == LATHE_ATTR_FLOAT)
                lathe_node_set_float(g, made, a->key, a->f);
            else if (a->type == LATHE_ATTR_INTS)
                lathe_node_set_ints(g, made, a->key, a->ints, a->count);
            else
                return LATHE_NONE;
        }
        return y;
    }
    default:
        return LATHE_NONE;
    }
}

/* An output of the model keeps the range that the source gives it: callers may count on it. */
static bool is_answer(const struct lathe_graph *g, lathe_value_id v, int depth) {
    if (g->values[v].is_output)
        return true;
    for (uint32_t i = 0; depth > 0 && i < g->values[v].use_count; i++) {
        const struct lathe_node *user = &g->nodes[g->values[v].uses[i]];
        if ((user->op == LATHE_OP_RESHAPE || user->op == LATHE_OP_TRANSPOSE || user->op == LATHE_OP_SLICE) &&
            is_answer(g, user->out[0], depth - 1))
            return true;
    }
    return false;
}

static bool drop_pair(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id y = g->nodes[n].out[0];
    if (lathe_value_is_constant(g, g->nodes[n].in[0]) || g->values[y].dtype != LATHE_F32 || is_answer(g, y, 4))
        return false;
    lathe_value_id x = float_source(ctx, n, g->nodes[n].in[0], g->nodes[n].in[1], operand(g, n, 2), 8);
    if (x == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, y, x);
    lathe_match_drop_unused(g, y);
    return true;
}

/* ---- integer products */

/* a times b with scales on top: the node that gives the real numbers, and the two scales. */
struct product {
    lathe_node_id last;
    lathe_value_id scales[2];
    lathe_value_id addend; /* i32, added to the sums; LATHE_NONE */
};

/* The factors that `v` is made of, past casts that change nothing. */
static void collect(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *out, unsigned *count, int depth) {
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_MUL);
    if (n == LATHE_NONE || depth == 0 || *count > 2) {
        if (*count < 3)
            out[*count] = v;
        (*count)++;
        return;
    }
    collect(g, g->nodes[n].in[0], out, count, depth - 1);
    collect(g, g->nodes[n].in[1], out, count, depth - 1);
}

static bool find_product(const struct lathe_graph *g, lathe_node_id n, struct product *p) {
    lathe_node_id use = lathe_value_only_use(g, g->nodes[n].out[0]);
    lathe_value_id factors[3];
    unsigned count = 0;
    p->addend = LATHE_NONE;
    if (use != LATHE_NONE && g->nodes[use].op == LATHE_OP_ADD) {
        if (!lathe_match_other(g, use, g->nodes[n].out[0], &p->addend) || !lathe_value_is_constant(g, p->addend))
            return false;
        use = lathe_value_only_use(g, g->nodes[use].out[0]);
    }
    if (use == LATHE_NONE || g->nodes[use].op != LATHE_OP_CAST || g->values[g->nodes[use].out[0]].dtype != LATHE_F32)
        return false;
    while (count < 2) {
        lathe_value_id v = g->nodes[use].out[0], other;
        use = lathe_value_only_use(g, v);
        if (use == LATHE_NONE || g->nodes[use].op != LATHE_OP_MUL || !lathe_match_other(g, use, v, &other))
            return false;
        collect(g, other, factors, &count, 3);
    }
    p->last = use;
    memcpy(p->scales, factors, sizeof p->scales);
    return count == 2;
}

/* A parameter of a matrix: one number or one a column, as a vector of what the operator takes. */
static bool is_of_columns(const struct lathe_graph *g, lathe_value_id v, int64_t columns) {
    if (v == LATHE_NONE || !lathe_value_is_constant(g, v))
        return false;
    int64_t count = lathe_value_count(g, v), last;
    return count == 1 || (count == columns && lathe_value_dim_is(g, v, -1, &last) && last == columns);
}

static lathe_value_id as_vector(struct lathe_graph *g, lathe_value_id v, int64_t count) {
    struct lathe_value old = g->values[v];
    size_t bytes = lathe_dtype_bytes(old.dtype);
    if (lathe_value_count(g, v) == count)
        return lathe_graph_add_constant(g, old.name, old.dtype, 1, &count, old.data);
    char *data = lathe_arena_alloc_array(g->arena, (size_t)count, bytes);
    for (int64_t i = 0; data && i < count; i++)
        memcpy(data + (size_t)i * bytes, old.data, bytes);
    g->out_of_memory |= !data;
    return data ? lathe_graph_add_constant(g, old.name, old.dtype, 1, &count, data) : LATHE_NONE;
}

/* A constant matrix of integers, maybe behind a transpose, as floats. */
static lathe_value_id weight_of(struct lathe_graph *g, lathe_node_id before, lathe_value_id w, lathe_value_id scale,
                                lathe_value_id zero) {
    lathe_node_id t = lathe_producer_of(g, w, LATHE_OP_TRANSPOSE);
    lathe_value_id stored = t == LATHE_NONE ? w : g->nodes[t].in[0];
    int64_t columns;
    if (stored == LATHE_NONE || !lathe_value_is_constant(g, stored) || g->values[stored].rank != 2 ||
        g->values[w].rank != 2 || !lathe_value_dim_is(g, w, 1, &columns) || !is_of_columns(g, scale, columns) ||
        g->values[scale].dtype != LATHE_F32 || (zero != LATHE_NONE && !is_of_columns(g, zero, columns)))
        return LATHE_NONE;
    struct lathe_value of_w = g->values[w], of_stored = g->values[stored];
    int64_t count = lathe_value_count(g, scale);
    if (zero != LATHE_NONE && lathe_value_count(g, zero) > count)
        count = lathe_value_count(g, zero);
    lathe_value_id in[3] = {stored, as_vector(g, scale, count), zero == LATHE_NONE ? zero : as_vector(g, zero, count)};
    lathe_value_id y = lathe_graph_emit(g, before, LATHE_OP_DEQUANTIZE_LINEAR, of_stored.name, in,
                                        zero == LATHE_NONE ? 2 : 3, LATHE_F32, 2, of_stored.dims);
    if (y == LATHE_NONE || g->out_of_memory)
        return LATHE_NONE;
    lathe_node_set_int(g, g->values[y].producer, LATHE_ATTR_AXIS, t == LATHE_NONE ? 1 : 0);
    if (t == LATHE_NONE)
        return y;
    static const int64_t swap[2] = {1, 0};
    y = lathe_graph_emit(g, before, LATHE_OP_TRANSPOSE, of_stored.name, &y, 1, LATHE_F32, 2, of_w.dims);
    if (y != LATHE_NONE)
        lathe_node_set_ints(g, g->values[y].producer, LATHE_ATTR_PERM, swap, 2);
    return y;
}

/* The addend times the scales of both, in f32: a bias. */
static lathe_value_id bias_of(struct lathe_graph *g, const struct product *p) {
    double scale;
    int64_t count = lathe_value_count(g, p->addend), other = lathe_value_count(g, p->scales[1]);
    if (!lathe_value_is_constant(g, p->scales[0]) || !lathe_value_is_constant(g, p->scales[1]) ||
        !lathe_constant_uniform(g, p->scales[0], &scale) || count < 1 || (other != 1 && other != count))
        return LATHE_NONE;
    float *data = lathe_arena_alloc_array(g->arena, (size_t)count, sizeof *data);
    for (int64_t i = 0; data && i < count; i++)
        data[i] = (float)(lathe_constant_f64(g, p->addend, i) * scale *
                          lathe_constant_f64(g, p->scales[1], other == 1 ? 0 : i));
    g->out_of_memory |= !data;
    return data ? lathe_graph_add_constant(g, "bias", LATHE_F32, 1, &count, data) : LATHE_NONE;
}

static bool float_product(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct product p;
    if (!find_product(g, n, &p))
        return false;
    lathe_value_id a = LATHE_NONE, b = LATHE_NONE, bias = LATHE_NONE;
    lathe_value_id a_zero = operand(g, n, 2), b_zero = operand(g, n, 3);
    for (int turn = 0; turn < 2 && (a == LATHE_NONE || b == LATHE_NONE); turn++) {
        lathe_value_id swap = p.scales[0];
        if (turn) {
            p.scales[0] = p.scales[1];
            p.scales[1] = swap;
        }
        a = float_source(ctx, p.last, g->nodes[n].in[0], p.scales[0], a_zero, 8);
        b = a == LATHE_NONE ? a : weight_of(g, p.last, g->nodes[n].in[1], p.scales[1], b_zero);
        if (a != LATHE_NONE && b == LATHE_NONE)
            b = float_source(ctx, p.last, g->nodes[n].in[1], p.scales[1], b_zero, 8);
    }
    if (a == LATHE_NONE || b == LATHE_NONE)
        return false;
    if (p.addend != LATHE_NONE && (bias = bias_of(g, &p)) == LATHE_NONE)
        return false;
    lathe_value_id in[2] = {a, b};
    if (bias == LATHE_NONE) {
        lathe_match_make_into(g, p.last, LATHE_OP_MATMUL, in, 2);
        return true;
    }
    lathe_value_id sum[2] = {lathe_match_make_like(g, p.last, LATHE_OP_MATMUL, in, 2, g->nodes[p.last].out[0]), bias};
    lathe_match_make_into(g, p.last, LATHE_OP_ADD, sum, 2);
    return true;
}

/* ---- weights of 2 to 8 bits in blocks */

/* `count` runs of `length` elements, each from its own byte on, less `middle`. */
static int8_t *unpack(struct lathe_graph *g, const uint8_t *from, int64_t count, int64_t length, int64_t run_bytes,
                      int64_t kept, unsigned bits) {
    int8_t *out = lathe_arena_alloc_array(g->arena, (size_t)count, (size_t)kept);
    int middle = 1 << (bits - 1);
    for (int64_t r = 0; out && r < count; r++)
        for (int64_t i = 0; i < kept && i < length; i++)
            out[r * kept + i] = (int8_t)((int)lathe_nbits_at(from + r * run_bytes, i, bits) - middle);
    g->out_of_memory |= !out;
    return out;
}

static bool float_nbits(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    lathe_value_id x = g->nodes[n].in[0], packed = operand(g, n, 1), scales = operand(g, n, 2);
    lathe_value_id zeros = operand(g, n, 3), bias = operand(g, n, 5), y = g->nodes[n].out[0];
    int64_t k = lathe_attr_int(&attrs, LATHE_ATTR_K, 0), block = lathe_attr_int(&attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    unsigned bits = (unsigned)lathe_attr_int(&attrs, LATHE_ATTR_BITS, 4);
    int64_t columns, known;
    if (operand(g, n, 4) != LATHE_NONE || !lathe_value_is_constant(g, packed) || !lathe_value_is_constant(g, scales) ||
        g->values[scales].dtype != LATHE_F32 || g->values[x].dtype != LATHE_F32 || g->values[y].dtype != LATHE_F32 ||
        (zeros != LATHE_NONE && (!lathe_value_is_constant(g, zeros) || g->values[zeros].dtype != LATHE_U8)) || k < 1 ||
        block < 1 || bits < 2 || bits > 8 || !lathe_value_dim_is(g, y, -1, &columns) ||
        !lathe_value_dim_is(g, x, -1, &known) || known != k)
        return false;
    int64_t blocks = (k + block - 1) / block, blob = lathe_nbits_bytes(block, bits);
    int64_t zero_bytes = lathe_nbits_bytes(blocks, bits);
    if (lathe_value_bytes(g, packed) != columns * blocks * blob || lathe_value_count(g, scales) != columns * blocks ||
        (zeros != LATHE_NONE && lathe_value_bytes(g, zeros) != columns * zero_bytes))
        return false;
    int8_t *q = lathe_arena_alloc_array(g->arena, (size_t)columns, (size_t)k), *z = NULL;
    const uint8_t *from = g->values[packed].data;
    int middle = 1 << (bits - 1);
    for (int64_t i = 0; q && i < columns * k; i++) {
        int64_t c = i / k, at = i % k;
        q[i] = (int8_t)((int)lathe_nbits_at(from + (c * blocks + at / block) * blob, at % block, bits) - middle);
    }
    if (zeros != LATHE_NONE)
        z = unpack(g, g->values[zeros].data, columns, blocks, zero_bytes, blocks, bits);
    g->out_of_memory |= !q;
    if (g->out_of_memory)
        return false;
    const int64_t matrix[2] = {columns, k}, grid[2] = {columns, blocks};
    const char *name = g->values[packed].name;
    lathe_value_id in[3] = {lathe_graph_add_constant(g, name, LATHE_I8, 2, matrix, q),
                            lathe_graph_add_constant(g, g->values[scales].name, LATHE_F32, blocks > 1 ? 2 : 1, grid,
                                                     g->values[scales].data),
                            z ? lathe_graph_add_constant(g, name, LATHE_I8, blocks > 1 ? 2 : 1, grid, z) : LATHE_NONE};
    if (in[0] == LATHE_NONE || in[1] == LATHE_NONE || (z && in[2] == LATHE_NONE))
        return false;
    lathe_value_id w = lathe_graph_emit(g, n, LATHE_OP_DEQUANTIZE_LINEAR, name, in, z ? 3 : 2, LATHE_F32, 2,
                                        (lathe_dim[2]){lathe_dim_const(g->dims, columns), lathe_dim_const(g->dims, k)});
    if (w == LATHE_NONE)
        return false;
    lathe_node_set_int(g, g->values[w].producer, LATHE_ATTR_AXIS, blocks > 1 ? 1 : 0);
    if (blocks > 1)
        lathe_node_set_int(g, g->values[w].producer, LATHE_ATTR_BLOCK_SIZE, block);
    lathe_value_id pair[2] = {x, w};
    lathe_node_id product = n;
    if (bias == LATHE_NONE) {
        lathe_match_make_into(g, n, LATHE_OP_MATMUL, pair, 2);
    } else {
        lathe_value_id sum[2] = {lathe_match_make_like(g, n, LATHE_OP_MATMUL, pair, 2, y), bias};
        product = sum[0] == LATHE_NONE ? n : g->values[sum[0]].producer;
        lathe_match_make_into(g, n, LATHE_OP_ADD, sum, 2);
    }
    lathe_node_set_int(g, product, LATHE_ATTR_TRANS_B, 1);
    return true;
}

/* ---- the pass */

static unsigned each(struct lathe_pass_ctx *ctx, enum lathe_op op,
                     bool (*rewrite)(struct lathe_pass_ctx *, lathe_node_id)) {
    uint32_t count;
    unsigned done = 0;
    lathe_node_id *list = lathe_match_nodes(ctx, op, &count);
    for (uint32_t i = 0; i < count && !ctx->graph->out_of_memory; i++)
        if (ctx->graph->nodes[list[i]].op == op)
            done += rewrite(ctx, list[i]);
    return done;
}

enum lathe_status lathe_pass_float_activations(struct lathe_pass_ctx *ctx) {
    if (!ctx->options || !ctx->options->int8)
        return LATHE_OK;
    struct counts c = {0};
    c.products = each(ctx, LATHE_OP_MATMUL_INTEGER, float_product);
    c.pairs = each(ctx, LATHE_OP_DEQUANTIZE_LINEAR, drop_pair);
    c.blocks = each(ctx, LATHE_OP_MATMUL_NBITS, float_nbits);
    ctx->changes += c.products + c.pairs + c.blocks;
    if (ctx->graph->out_of_memory)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "float_activations: out of memory");
    if (c.pairs || c.products)
        lathe_pass_note(ctx, "source_quantization",
                        "%u integer products and %u quantized activations of the source: activations get a range for "
                        "each row instead, weights are reused",
                        c.products, c.pairs);
    return LATHE_OK;
}
