/* Rotary position embedding written out becomes one operator.
 *
 * The form is x cos + turned(x) sin with turned(x) = (-x2, x1) for the halves x1, x2 of the last axis, or, interleaved,
 * (-x[1], x[0], -x[3], x[2], ...). x is [B,N,S,D] or [B,S,N,D], or its first columns where the others are concatenated
 * behind the sum. cos and sin are as wide as x there; the operator reads one of their equal halves. That they are equal
 * is proved by a walk back to where a half was written twice, or to a table that holds it twice; what is between is
 * made again on the half, so that half as many cosines are computed. */
#include "match.h"

#include <string.h>

#define DEPTH 16

struct rotation {
    lathe_node_id sum;      /* x cos + turned sin */
    lathe_value_id x;       /* what turns */
    lathe_value_id part[2]; /* cos and sin */
    bool interleaved;
    int64_t width; /* of x */
};

/* v = -*x */
static bool read_negated(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x) {
    lathe_node_id n = g->values[v].producer;
    double factor;
    if (n != LATHE_NONE && g->nodes[n].op == LATHE_OP_NEG) {
        *x = g->nodes[n].in[0];
        return true;
    }
    return n != LATHE_NONE && lathe_match_scaled(g, n, x, &factor) && factor == -1;
}

/* The two operands of a concat along the last axis; interleaved: of one whose last axis has two elements, flattened. */
static bool read_pair(const struct lathe_graph *g, lathe_value_id v, bool interleaved, lathe_value_id pair[2]) {
    int64_t size;
    int rank = g->values[v].rank;
    if (interleaved) {
        lathe_node_id view = lathe_producer_of(g, v, LATHE_OP_RESHAPE);
        if (view == LATHE_NONE)
            return false;
        v = g->nodes[view].in[0];
        if (g->values[v].rank != rank + 1 || !lathe_value_dim_is(g, v, -1, &size) || size != 2)
            return false;
        rank++;
    }
    lathe_node_id n = lathe_producer_of(g, v, LATHE_OP_CONCAT);
    if (n == LATHE_NONE || g->nodes[n].n_in != 2)
        return false;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != rank - 1)
        return false;
    for (int i = 0; i < 2; i++) {
        int64_t other;
        pair[i] = g->nodes[n].in[i];
        if (!lathe_value_dim_is(g, pair[i], -1, &size) || !lathe_value_dim_is(g, g->nodes[n].in[1 - i], -1, &other) ||
            size != other)
            return false;
    }
    return true;
}

/* turned(x): its x and its form; *why where it is nearly one. */
static bool read_turned(const struct lathe_graph *g, lathe_value_id v, struct rotation *r, const char **why) {
    lathe_value_id pair[2], from[2], x[2];
    int64_t axis[2], start[2], step[2], rank = g->values[v].rank;
    r->interleaved = !read_pair(g, v, false, pair);
    if ((r->interleaved && !read_pair(g, v, true, pair)) || !lathe_value_dim_is(g, v, -1, &r->width))
        return false;
    for (int i = 0; i < 2; i++)
        from[i] = r->interleaved ? lathe_match_skip_views(g, pair[i]) : pair[i];
    bool negated = read_negated(g, from[0], &from[0]), second = read_negated(g, from[1], &from[1]);
    for (int i = 0; i < 2; i++) {
        if (r->interleaved)
            from[i] = lathe_match_skip_views(g, from[i]);
        if (!lathe_match_slice(g, from[i], &x[i], &axis[i], &start[i], &step[i]))
            return false;
    }
    if ((!negated && !second) || x[0] != x[1] || axis[0] != rank - 1 || axis[1] != rank - 1 ||
        !lathe_value_same_shape(g, x[0], v))
        return false;
    int64_t far = r->interleaved ? 1 : r->width / 2, by = r->interleaved ? 2 : 1;
    bool order = start[0] == far && start[1] == 0;
    if (!negated || second || r->width % 2 != 0 || step[0] != by || step[1] != by || !order) {
        *why = order ? "the sign or the step of the turned halves is another, expected (-x2, x1)"
                     : "the turned halves are not the second and the first one, expected (-x2, x1)";
        return false;
    }
    r->x = x[0];
    return true;
}

/* The first half of each row of a constant equals the second one, or neighbours do. */
static bool constant_repeats(const struct lathe_graph *g, lathe_value_id v, bool interleaved, int64_t width) {
    int64_t count = lathe_value_count(g, v), half = width / 2;
    if (!lathe_dtype_is_float(g->values[v].dtype) || count < 0 || count % width != 0)
        return false;
    for (int64_t row = 0; row < count; row += width)
        for (int64_t i = 0; i < half; i++) {
            int64_t a = row + (interleaved ? 2 * i : i), b = interleaved ? a + 1 : a + half;
            if (lathe_constant_f64(g, v, a) != lathe_constant_f64(g, v, b))
                return false;
        }
    return true;
}

static bool varies(const struct lathe_graph *g, lathe_value_id v) {
    int64_t size;
    return g->values[v].rank > 0 && !(lathe_value_dim_is(g, v, -1, &size) && size == 1);
}

/* One half of v's last axis, which has `width` elements, where both are proved equal; `make` has it made before
 * `before`, else v itself stands for it. LATHE_NONE: not proved. */
static lathe_value_id half_of(struct lathe_pass_ctx *ctx, lathe_node_id before, lathe_value_id v, bool interleaved,
                              int64_t width, bool make, int depth) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_value value = g->values[v];
    lathe_value_id pair[2], in[8];
    int64_t size;
    if (depth == 0 || value.rank < 1 || !lathe_value_dim_is(g, v, -1, &size) || size != width)
        return LATHE_NONE;
    value.dims[value.rank - 1] = lathe_dim_const(g->dims, width / 2);
    if (lathe_value_is_constant(g, v)) {
        if (!constant_repeats(g, v, interleaved, width))
            return LATHE_NONE;
        if (!make)
            return v;
        int64_t axis = value.rank - 1, start = 0, end = width, step = interleaved ? 2 : 1;
        end = interleaved ? end : width / 2;
        lathe_value_id made =
            lathe_graph_emit(g, before, LATHE_OP_SLICE, value.name, &v, 1, value.dtype, value.rank, value.dims);
        if (made == LATHE_NONE)
            return made;
        lathe_node_id slice = g->values[made].producer;
        lathe_node_set_ints(g, slice, LATHE_ATTR_AXES, &axis, 1);
        lathe_node_set_ints(g, slice, LATHE_ATTR_STARTS, &start, 1);
        lathe_node_set_ints(g, slice, LATHE_ATTR_ENDS, &end, 1);
        lathe_node_set_ints(g, slice, LATHE_ATTR_STEPS, &step, 1);
        return made;
    }
    if (value.producer == LATHE_NONE)
        return LATHE_NONE;
    if (read_pair(g, v, interleaved, pair) && lathe_match_same(g, pair[0], pair[1]))
        return make ? lathe_match_make_reshape(ctx, before, pair[0], value.rank, value.dims) : v;
    const struct lathe_node *node = &g->nodes[value.producer];
    struct lathe_attrs attrs = lathe_node_attrs(g, value.producer);
    if (node->n_in < 1 || node->n_in > 8 || node->n_out != 1)
        return LATHE_NONE;
    uint32_t count, halved = 0, n_in = node->n_in;
    switch (node->op) {
    case LATHE_OP_COS:
    case LATHE_OP_SIN:
    case LATHE_OP_CAST:
    case LATHE_OP_NEG:
        break;
    case LATHE_OP_MUL:
    case LATHE_OP_DIV:
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        /* by what does not vary along the last axis */
        halved = !varies(g, node->in[0]);
        if (varies(g, node->in[1 - halved]))
            return LATHE_NONE;
        break;
    case LATHE_OP_RESHAPE:
        if (!lathe_value_dim_is(g, node->in[0], -1, &size) || size != width)
            return LATHE_NONE;
        n_in = 1;
        break;
    case LATHE_OP_GATHER:
        if (lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0) != 0 || g->values[node->in[0]].rank < 2)
            return LATHE_NONE;
        break;
    case LATHE_OP_SLICE: {
        const int64_t *axes = lathe_attr_ints(&attrs, LATHE_ATTR_AXES, &count);
        for (uint32_t i = 0; i < count; i++)
            if (!axes || axes[i] == value.rank - 1)
                return LATHE_NONE;
        if (!axes || !count || n_in != 1)
            return LATHE_NONE;
        break;
    }
    default:
        return LATHE_NONE;
    }
    memcpy(in, node->in, n_in * sizeof *in);
    lathe_node_id original = value.producer;
    enum lathe_op op = node->op;
    in[halved] = half_of(ctx, before, in[halved], interleaved, width, make, depth - 1);
    if (in[halved] == LATHE_NONE || !make)
        return in[halved] == LATHE_NONE ? LATHE_NONE : v;
    if (op == LATHE_OP_RESHAPE)
        return lathe_match_make_reshape(ctx, before, in[0], value.rank, value.dims);
    lathe_value_id made =
        lathe_graph_emit(g, before, op, g->nodes[original].name, in, n_in, value.dtype, value.rank, value.dims);
    if (made != LATHE_NONE)
        lathe_match_copy_attrs(g, original, g->values[made].producer);
    return made;
}

/* Which axis of x, of four, has the tokens, where `part` does not vary along the heads: 2 or 1; -1. The rank of the
 * operator's operand, [S,W] or [B,S,W], is in *rank. */
static int token_axis(const struct lathe_graph *g, lathe_value_id x, lathe_value_id part, int *rank) {
    const struct lathe_value *v = &g->values[part], *whole = &g->values[x];
    int64_t size;
    if (whole->rank != 4 || v->rank < 2 || v->rank > 4)
        return -1;
    bool one[4], equal[4];
    for (int i = 0; i < 4; i++) {
        int own = i - (4 - v->rank);
        one[i] = own < 0 || (lathe_dim_is_const(g->dims, v->dims[own], &size) && size == 1);
        equal[i] = own >= 0 && lathe_match_dim_equal(g, v->dims[own], whole->dims[i]);
    }
    *rank = one[0] ? 2 : 3;
    if (!equal[3] || (!one[0] && !equal[0]))
        return -1;
    return equal[2] && one[1] ? 2 : equal[1] && one[2] ? 1 : -1;
}

/* The slice of r->x and the concat behind the sum are the whole head. *root is what the operator takes the place of. */
static bool widen_to_head(const struct lathe_graph *g, const struct rotation *r, lathe_value_id *x,
                          lathe_node_id *root) {
    lathe_value_id rest_of, y = g->nodes[r->sum].out[0];
    int64_t axis, start, step;
    lathe_node_id n = lathe_value_only_use(g, y);
    if (!lathe_match_slice(g, r->x, x, &axis, &start, &step) || axis != 3 || start != 0 || step != 1 ||
        n == LATHE_NONE || g->nodes[n].op != LATHE_OP_CONCAT || g->nodes[n].n_in != 2 || g->nodes[n].in[0] != y ||
        !lathe_match_slice(g, g->nodes[n].in[1], &rest_of, &axis, &start, &step) || axis != 3 || start != r->width ||
        step != 1 || rest_of != *x || !lathe_value_same_shape(g, g->nodes[n].out[0], *x))
        return false;
    *root = n;
    return true;
}

/* x, or what it is a transpose of, [B,S,N,D]; a number that scales it is left for behind the operator. */
static lathe_value_id token_major(const struct lathe_graph *g, lathe_value_id x, int axis, lathe_node_id *scale,
                                  lathe_node_id *swap) {
    lathe_node_id n = g->values[x].producer;
    lathe_value_id scaled;
    double factor;
    uint32_t count;
    *scale = *swap = LATHE_NONE;
    if (n != LATHE_NONE && lathe_match_scaled(g, n, &scaled, &factor)) {
        *scale = n;
        x = scaled;
    }
    if (axis == 1)
        return x;
    n = lathe_producer_of(g, x, LATHE_OP_TRANSPOSE);
    if (n == LATHE_NONE)
        return LATHE_NONE;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const int64_t *perm = lathe_attr_ints(&attrs, LATHE_ATTR_PERM, &count);
    if (!perm || count != 4 || perm[0] != 0 || perm[1] != 2 || perm[2] != 1 || perm[3] != 3)
        return LATHE_NONE;
    *swap = n;
    return g->nodes[n].in[0];
}

/* cos or sin as the operator reads it. */
static lathe_value_id make_part(struct lathe_pass_ctx *ctx, const struct rotation *r, int i, lathe_node_id before,
                                int rank, int axis) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_value whole = g->values[r->x];
    lathe_dim dims[3] = {whole.dims[0], whole.dims[axis], lathe_dim_const(g->dims, r->width / 2)};
    lathe_value_id half = half_of(ctx, before, r->part[i], r->interleaved, r->width, true, DEPTH);
    return half == LATHE_NONE ? half : lathe_match_make_reshape(ctx, before, half, rank, dims + 3 - rank);
}

static bool rewrite(struct lathe_pass_ctx *ctx, const struct rotation *r, int axis, const int rank[2]) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id x = r->x, back = LATHE_NONE;
    lathe_node_id root = r->sum, scale = LATHE_NONE, swap = LATHE_NONE;
    if (!widen_to_head(g, r, &x, &root)) {
        x = r->x;
        root = r->sum;
    }
    lathe_value_id major = token_major(g, x, axis, &scale, &swap);
    int64_t heads = 0, dim;
    if (major == LATHE_NONE) {
        scale = LATHE_NONE;
        major = x;
    } else if (!lathe_value_dim_is(g, major, 2, &heads) || !lathe_value_dim_is(g, major, 3, &dim)) {
        return false;
    }
    struct lathe_value wide = g->values[major];
    lathe_value_id in[3] = {major, make_part(ctx, r, 0, root, rank[0], axis),
                            make_part(ctx, r, 1, root, rank[1], axis)};
    if (in[1] == LATHE_NONE || in[2] == LATHE_NONE)
        return false;
    if (heads) {
        lathe_dim dims[3] = {wide.dims[0], wide.dims[1], lathe_dim_mul(g->dims, wide.dims[2], wide.dims[3])};
        in[0] = lathe_match_make_reshape(ctx, root, major, 3, dims);
        if (in[0] == LATHE_NONE)
            return false;
    }
    struct lathe_value turned = g->values[in[0]];
    lathe_value_id y =
        lathe_graph_emit(g, root, LATHE_OP_ROTARY, g->nodes[r->sum].name, in, 3, wide.dtype, turned.rank, turned.dims);
    if (y == LATHE_NONE)
        return false;
    lathe_node_id made = g->values[y].producer;
    lathe_node_set_int(g, made, LATHE_ATTR_INTERLEAVED, r->interleaved);
    lathe_node_set_int(g, made, LATHE_ATTR_ROTARY_DIM, r->width);
    if (heads) {
        lathe_node_set_int(g, made, LATHE_ATTR_HEADS, heads);
        y = lathe_match_make_reshape(ctx, root, y, 4, wide.dims);
    }
    if (y != LATHE_NONE && swap != LATHE_NONE) {
        static const int64_t perm[4] = {0, 2, 1, 3};
        back = g->nodes[swap].out[0];
        y = lathe_match_make_like(g, root, LATHE_OP_TRANSPOSE, &y, 1, back);
        if (y != LATHE_NONE)
            lathe_node_set_ints(g, g->values[y].producer, LATHE_ATTR_PERM, perm, 4);
    }
    if (y != LATHE_NONE && scale != LATHE_NONE) {
        lathe_value_id operands[2] = {g->nodes[scale].in[0], g->nodes[scale].in[1]};
        operands[operands[1] == back || operands[1] == major] = y;
        y = lathe_match_make_like(g, root, g->nodes[scale].op, operands, 2, g->nodes[scale].out[0]);
    }
    if (y == LATHE_NONE)
        return false;
    lathe_graph_replace_uses(g, g->nodes[root].out[0], y);
    lathe_graph_remove_dead_from(g, root);
    return true;
}

static bool fuse(struct lathe_pass_ctx *ctx, lathe_node_id sum) {
    struct lathe_graph *g = ctx->graph;
    const char *why = NULL;
    lathe_node_id product[2];
    for (int i = 0; i < 2; i++) {
        product[i] = lathe_producer_of(g, g->nodes[sum].in[i], LATHE_OP_MUL);
        if (product[i] == LATHE_NONE)
            return false;
    }
    if (g->values[g->nodes[sum].out[0]].dtype != LATHE_F32)
        return false;
    /* which of the four factors is turned(x) */
    for (int k = 0; k < 4; k++) {
        struct rotation r = {.sum = sum};
        lathe_node_id turned = product[k / 2], straight = product[1 - k / 2];
        if (!read_turned(g, g->nodes[turned].in[k % 2], &r, &why))
            continue;
        r.part[1] = g->nodes[turned].in[1 - k % 2];
        if (!lathe_match_other(g, straight, r.x, &r.part[0])) {
            why = "what is multiplied by the cosine is not what is turned";
            continue;
        }
        int rank[2], axis = token_axis(g, r.x, r.part[0], &rank[0]);
        if (axis < 0 || token_axis(g, r.x, r.part[1], &rank[1]) != axis || rank[0] != rank[1]) {
            why = "cosine and sine are not [tokens, columns of a head] for heads of [B,N,S,D] or [B,S,N,D]";
            continue;
        }
        for (int i = 0; i < 2; i++)
            if (half_of(ctx, sum, r.part[i], r.interleaved, r.width, false, DEPTH) == LATHE_NONE)
                why = i ? "the halves of the sine are not known to be equal"
                        : "the halves of the cosine are not known to be equal";
        if (why)
            continue;
        if (rewrite(ctx, &r, axis, rank))
            return true;
        why = "the number of heads is not known";
    }
    if (why)
        lathe_pass_missed(ctx, "rotary", sum, "%s", why);
    return false;
}

enum lathe_status lathe_pass_fuse_rotary(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_ADD, &count);
    for (uint32_t i = 0; i < count && !g->out_of_memory; i++)
        ctx->changes += g->nodes[list[i]].op == LATHE_OP_ADD && fuse(ctx, list[i]);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_rotary: out of memory") : LATHE_OK;
}
