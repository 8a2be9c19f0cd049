/* Attention in the forms of the source, and the operators that passes make. */
#include "kernel_q8.h"
#include "shape_internal.h"

/* Scaled dot product attention: q [B,N,S,D], k [B,M,T,D], v [B,M,T,E], mask broadcastable to [B,N,S,T]. */
enum lathe_status lathe_shape_sdpa(struct shape_ctx *c) {
    for (uint32_t k = 0; k < 3; k++)
        LATHE_TRY(lathe_shape_need_rank(c, k, 4, 4));
    struct lathe_graph *g = c->g;
    lathe_value_id q = lathe_shape_in(c, 0), k = lathe_shape_in(c, 1), v = lathe_shape_in(c, 2);
    lathe_value_id mask = lathe_shape_in(c, 3);
    lathe_dim unused;
    int64_t heads, kv_heads;
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, q, 3), lathe_value_dim(g, k, 3), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, k, 2), lathe_value_dim(g, v, 2), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, k, 1), lathe_value_dim(g, v, 1), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, q, 0), lathe_value_dim(g, k, 0), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, q, 0), lathe_value_dim(g, v, 0), &unused));
    if (!lathe_value_dim_is(g, q, 1, &heads) || !lathe_value_dim_is(g, k, 1, &kv_heads) || kv_heads < 1 ||
        heads % kv_heads)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its query heads are no multiple of its key heads");
    struct shape_dims out = lathe_shape_dims_of(c, q);
    out.d[3] = lathe_value_dim(g, v, 3);
    if (mask != LATHE_NONE) {
        struct shape_dims scores = lathe_shape_dims_of(c, q), m = lathe_shape_dims_of(c, mask);
        scores.d[3] = lathe_value_dim(g, k, 2);
        if (m.rank > 4)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its mask has rank %d", m.rank);
        LATHE_TRY(lathe_shape_broadcast(c, &scores, &m));
    }
    lathe_shape_set(c, 0, g->values[q].dtype, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_rotary(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 3, 4));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 2, 3));
    LATHE_TRY(lathe_shape_need_rank(c, 2, 2, 3));
    if (lathe_shape_in(c, 3) != LATHE_NONE)
        LATHE_TRY(lathe_shape_need_index_type(c, 3));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

/* x [..,K], w [K,N] or [N,K], bias [N], residual [..,N]. */
/* Operand k, where it is there, is a vector of `size` elements. */
static enum lathe_status need_vector(struct shape_ctx *c, uint32_t k, lathe_dim size) {
    lathe_dim unused;
    if (lathe_shape_in(c, k) == LATHE_NONE)
        return LATHE_OK;
    LATHE_TRY(lathe_shape_need_rank(c, k, 1, 1));
    return lathe_shape_equal(c, lathe_value_dim(c->g, lathe_shape_in(c, k), 0), size, &unused);
}

/* x [..,K] times w [K,N], plus operand `bias` [N], plus operand `bias` + 1 [..,N]. With `group` x is [..,group * K]. */
static enum lathe_status shape_product_of_rows(struct shape_ctx *c, uint32_t bias) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 2, 2));
    struct lathe_graph *g = c->g;
    bool trans = lathe_shape_attr_int(c, LATHE_ATTR_TRANS_B, 0) != 0;
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    lathe_value_id w = lathe_shape_in(c, 1), residual = lathe_shape_in(c, bias + 1);
    lathe_dim unused, n = lathe_value_dim(g, w, trans ? 0 : 1), k = lathe_value_dim(g, w, trans ? 1 : 0);
    int64_t groups = lathe_shape_attr_int(c, LATHE_ATTR_GROUP, 1), columns;
    if (groups != 1 && (groups < 1 || !lathe_dim_is_const(g->dims, n, &columns) || columns % groups != 0 ||
                        lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 0)))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%lld groups do not divide the columns",
                                (long long)groups);
    if (groups != 1)
        k = lathe_dim_mul(g->dims, k, lathe_dim_const(g->dims, groups));
    LATHE_TRY(lathe_shape_equal(c, out.d[out.rank - 1], k, &unused));
    LATHE_TRY(need_vector(c, bias, n));
    out.d[out.rank - 1] = n;
    if (residual != LATHE_NONE) {
        LATHE_TRY(lathe_shape_need_rank(c, bias + 1, out.rank, out.rank));
        for (int i = 0; i < out.rank; i++)
            LATHE_TRY(lathe_shape_equal(c, out.d[i], lathe_value_dim(g, residual, i), &out.d[i]));
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_linear(struct shape_ctx *c) {
    LATHE_TRY(shape_product_of_rows(c, 2));
    bool trans = lathe_shape_attr_int(c, LATHE_ATTR_TRANS_B, 0) != 0;
    return need_vector(c, 4, lathe_value_dim(c->g, lathe_shape_in(c, 1), trans ? 0 : 1));
}

enum lathe_status lathe_shape_linear_bf16(struct shape_ctx *c) {
    enum lathe_dtype w = lathe_shape_value(c, 1)->dtype;
    if (w != LATHE_F32 && w != LATHE_F16 && w != LATHE_BF16)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "the weights are %s, not f32, f16 or bf16",
                                lathe_dtype_name(w));
    return shape_product_of_rows(c, 2);
}

/* Scales and zero points [ceil(n / 16), ceil(k / block), 16]. */
static enum lathe_status need_blocks(struct shape_ctx *c, int64_t block, lathe_dim k, lathe_dim n) {
    int64_t steps, columns, cells[3];
    if (!lathe_dim_is_const(c->g->dims, k, &steps) || !lathe_dim_is_const(c->g->dims, n, &columns) || steps < 1 ||
        columns < 1)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "weights of unknown size in blocks");
    if (!lathe_q8_is_block(block))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "blocks of %lld are no multiple of %d up to %d",
                                (long long)block, LATHE_Q8_BLOCK_STEP, LATHE_Q8_MAX_BLOCK);
    const int64_t want[3] = {(columns - 1) / 16 + 1, (steps - 1) / block + 1, 16};
    for (uint32_t i = 2; i < 8; i += 5) {
        lathe_value_id v = lathe_shape_in(c, i);
        if (v == LATHE_NONE)
            continue;
        LATHE_TRY(lathe_shape_need_rank(c, i, 3, 3));
        for (int d = 0; d < 3; d++)
            if (!lathe_value_dim_is(c->g, v, d, &cells[d]) || cells[d] != want[d])
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u is not [%lld, %lld, 16]", i,
                                        (long long)want[0], (long long)want[1]);
    }
    return LATHE_OK;
}

enum lathe_status lathe_shape_linear_q8(struct shape_ctx *c) {
    LATHE_TRY(shape_product_of_rows(c, 4));
    bool trans = lathe_shape_attr_int(c, LATHE_ATTR_TRANS_B, 0) != 0;
    lathe_value_id w = lathe_shape_in(c, 1);
    lathe_dim k = lathe_value_dim(c->g, w, trans ? 1 : 0), n = lathe_value_dim(c->g, w, trans ? 0 : 1);
    if (c->g->values[w].dtype != LATHE_I8)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "the weights are not i8");
    if (lathe_shape_in(c, 2) == LATHE_NONE || lathe_shape_in(c, 3) == LATHE_NONE)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "the scales or sums of the weights are missing");
    int64_t block = lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 0);
    LATHE_TRY(need_vector(c, 3, n));
    LATHE_TRY(need_vector(c, 6, k));
    LATHE_TRY(need_vector(c, 8, k));
    LATHE_TRY(need_vector(c, 9, n));
    if (block)
        return need_blocks(c, block, k, n);
    if (lathe_shape_in(c, 7) != LATHE_NONE)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "zero points of weights without blocks");
    return need_vector(c, 2, n);
}

enum lathe_status lathe_shape_skip_layer_norm(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    struct lathe_graph *g = c->g;
    lathe_value_id x = lathe_shape_in(c, 0);
    int rank = g->values[x].rank;
    lathe_dim unused;
    LATHE_TRY(lathe_shape_need_rank(c, 1, rank, rank));
    for (int i = 0; i < rank; i++)
        LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, x, i), lathe_value_dim(g, lathe_shape_in(c, 1), i), &unused));
    for (uint32_t k = 2; k < 4; k++)
        if (lathe_shape_in(c, k) != LATHE_NONE) {
            LATHE_TRY(lathe_shape_need_rank(c, k, 1, 1));
            LATHE_TRY(
                lathe_shape_equal(c, lathe_value_dim(g, lathe_shape_in(c, k), 0), lathe_value_dim(g, x, -1), &unused));
        }
    lathe_shape_set_like(c, 0, g->values[x].dtype, x);
    lathe_shape_set_like(c, 1, g->values[x].dtype, x);
    return LATHE_OK;
}

/* gamma [H], beta [H], then tables [V,H], each with `each` operands: itself, its row scales [V] when each is 3, and its
 * index [B,S] or [1,S]. The output dims cannot always be told from the operands (an absent index stands for positions),
 * so those that are there must agree with the present dims. */
static enum lathe_status shape_tables(struct shape_ctx *c, uint32_t each) {
    struct lathe_graph *g = c->g;
    lathe_value_id y = LATHE_NONE;
    const struct lathe_node *node = &g->nodes[c->n];
    for (uint32_t i = 0; i < node->n_out; i++)
        if (y == LATHE_NONE)
            y = node->out[i];
    if (node->n_in < 2 + each || (node->n_in - 2) % each)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%u operands are not %u for each table", node->n_in, each);
    if (y == LATHE_NONE || g->values[y].rank < 1)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its shape was not set");
    struct shape_dims out = lathe_shape_dims_of(c, y);
    lathe_dim h = out.d[out.rank - 1], unused;
    for (uint32_t k = 0; k < 2; k++)
        LATHE_TRY(need_vector(c, k, h));
    for (uint32_t k = 2; k < g->nodes[c->n].n_in; k += each) {
        lathe_value_id table = lathe_shape_in(c, k);
        if (table == LATHE_NONE)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "table %u is missing", (k - 2) / each);
        LATHE_TRY(lathe_shape_need_rank(c, k, 2, 2));
        LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, table, 1), h, &unused));
        if (each == 3) {
            bool scaled = lathe_shape_in(c, k + 1) != LATHE_NONE;
            if (scaled != (g->values[table].dtype == LATHE_I8))
                return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "table %u has type %s and %s scales", (k - 2) / each,
                                        lathe_dtype_name(g->values[table].dtype), scaled ? "row" : "no");
            LATHE_TRY(need_vector(c, k + 1, lathe_value_dim(g, table, 0)));
        }
        if (lathe_shape_in(c, k + each - 1) != LATHE_NONE) {
            LATHE_TRY(lathe_shape_need_rank(c, k + each - 1, 1, out.rank - 1));
            LATHE_TRY(lathe_shape_need_index_type(c, k + each - 1));
        }
    }
    /* f32 whatever the tables are stored in */
    lathe_shape_set(c, 0, LATHE_F32, &out);
    lathe_shape_set(c, 1, LATHE_F32, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_embedding(struct shape_ctx *c) {
    return shape_tables(c, 2);
}

enum lathe_status lathe_shape_embedding_q8(struct shape_ctx *c) {
    return shape_tables(c, 3);
}

/* The last head's columns must lie inside the operand. */
static enum lathe_status check_columns(struct shape_ctx *c, uint32_t k, int64_t offset, int64_t heads, int64_t width) {
    int64_t columns, used;
    if (offset < 0 || heads < 1 || width < 1 || !lathe_mul_i64(heads, width, &used) ||
        !lathe_add_i64(used, offset, &used) || !lathe_value_dim_is(c->g, lathe_shape_in(c, k), -1, &columns) ||
        used > columns)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH,
                                "%lld heads of %lld columns from column %lld do not lie in operand %u",
                                (long long)heads, (long long)width, (long long)offset, k);
    return LATHE_OK;
}

static enum lathe_status check_heads(struct shape_ctx *c, int64_t *width_out) {
    int64_t heads = lathe_shape_attr_int(c, LATHE_ATTR_HEADS, 0), d = lathe_shape_attr_int(c, LATHE_ATTR_HEAD_DIM, 0);
    int64_t dv = lathe_shape_attr_int(c, LATHE_ATTR_V_HEAD_DIM, d);
    int64_t kv = lathe_shape_attr_int(c, LATHE_ATTR_KV_HEADS, heads);
    LATHE_TRY(check_columns(c, 0, lathe_shape_attr_int(c, LATHE_ATTR_Q_OFFSET, 0), heads, d));
    LATHE_TRY(check_columns(c, 1, lathe_shape_attr_int(c, LATHE_ATTR_K_OFFSET, 0), kv, d));
    LATHE_TRY(check_columns(c, 2, lathe_shape_attr_int(c, LATHE_ATTR_V_OFFSET, 0), kv, dv));
    if (heads % kv || !lathe_mul_i64(heads, dv, width_out))
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "%lld heads are no multiple of %lld key heads",
                                (long long)heads, (long long)kv);
    return LATHE_OK;
}

enum lathe_status lathe_shape_attention(struct shape_ctx *c) {
    for (uint32_t k = 0; k < 3; k++)
        LATHE_TRY(lathe_shape_need_rank(c, k, 3, 3));
    struct lathe_graph *g = c->g;
    lathe_value_id q = lathe_shape_in(c, 0), k = lathe_shape_in(c, 1), v = lathe_shape_in(c, 2);
    lathe_value_id keys = lathe_shape_in(c, 3), mask = lathe_shape_in(c, 4);
    int64_t width;
    lathe_dim unused;
    LATHE_TRY(check_heads(c, &width));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, k, 1), lathe_value_dim(g, v, 1), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, q, 0), lathe_value_dim(g, k, 0), &unused));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, q, 0), lathe_value_dim(g, v, 0), &unused));
    if (keys != LATHE_NONE) {
        LATHE_TRY(lathe_shape_need_rank(c, 3, 2, 2));
        LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(g, keys, 1), lathe_value_dim(g, k, 1), &unused));
    }
    if (mask != LATHE_NONE) {
        struct shape_dims scores = {.rank = 4}, m = lathe_shape_dims_of(c, mask);
        scores.d[0] = lathe_value_dim(g, q, 0);
        scores.d[1] = lathe_shape_const(c, lathe_shape_attr_int(c, LATHE_ATTR_HEADS, 0));
        scores.d[2] = lathe_value_dim(g, q, 1);
        scores.d[3] = lathe_value_dim(g, k, 1);
        if (m.rank > 4)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its mask has rank %d", m.rank);
        LATHE_TRY(lathe_shape_broadcast(c, &scores, &m));
    }
    struct shape_dims out = lathe_shape_dims_of(c, q);
    out.d[2] = lathe_shape_const(c, width);
    lathe_shape_set(c, 0, g->values[q].dtype, &out);
    return LATHE_OK;
}

/* q, k, v [R,W], row map; the rest as attention. */
enum lathe_status lathe_shape_attention_rows(struct shape_ctx *c) {
    for (uint32_t k = 0; k < 3; k++)
        LATHE_TRY(lathe_shape_need_rank(c, k, 2, 2));
    int64_t width;
    lathe_dim unused;
    LATHE_TRY(check_heads(c, &width));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(c->g, lathe_shape_in(c, 1), 0),
                                lathe_value_dim(c->g, lathe_shape_in(c, 2), 0), &unused));
    out.d[1] = lathe_shape_const(c, width);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

/* keys [B,S] -> i32 [4*B + 2*B*S] */
enum lathe_status lathe_shape_row_map(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, 2));
    struct lathe_dims *t = c->g->dims;
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out = {.rank = 1};
    lathe_dim places = lathe_dim_mul(t, lathe_shape_const(c, 2), lathe_dim_mul(t, in.d[0], in.d[1]));
    out.d[0] = lathe_dim_add(t, places, lathe_dim_mul(t, lathe_shape_const(c, 4), in.d[0]));
    lathe_shape_set(c, 0, LATHE_I32, &out);
    return LATHE_OK;
}

/* The sizes that the map decides (kept rows, or batch and sequence) stand in the output's dims. */
static enum lathe_status keep_leading(struct shape_ctx *c, int in_leading, int out_leading) {
    struct lathe_graph *g = c->g;
    lathe_value_id y = g->nodes[c->n].out[0];
    LATHE_TRY(lathe_shape_need_rank(c, 0, in_leading, LATHE_MAX_RANK));
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), out;
    if (y == LATHE_NONE || g->values[y].rank != in.rank - in_leading + out_leading)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its shape was not set");
    out = lathe_shape_dims_of(c, y);
    for (int i = 0; i < in.rank - in_leading; i++)
        out.d[out_leading + i] = in.d[in_leading + i];
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_pack_rows(struct shape_ctx *c) {
    return keep_leading(c, 2, 1);
}
enum lathe_status lathe_shape_unpack_rows(struct shape_ctx *c) {
    return keep_leading(c, 1, 2);
}
enum lathe_status lathe_shape_per_sequence(struct shape_ctx *c) {
    return keep_leading(c, 1, 1);
}
