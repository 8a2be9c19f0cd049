/* Normalisation and the quantized forms of the source. */
#include "shape_internal.h"

static enum lathe_status need_float(struct shape_ctx *c, uint32_t k) {
    if (lathe_dtype_is_float(lathe_shape_value(c, k)->dtype))
        return LATHE_OK;
    return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operand %u is %s, it must be a float type", k,
                            lathe_dtype_name(lathe_shape_value(c, k)->dtype));
}

/* gamma or beta: broadcasts to the normalised axes [axis, rank) of x. */
static enum lathe_status check_affine(struct shape_ctx *c, uint32_t k, const struct shape_dims *x, int axis) {
    if (lathe_shape_in(c, k) == LATHE_NONE)
        return LATHE_OK;
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, k));
    if (in.rank > x->rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u has more axes than x", k);
    for (int i = 0; i < in.rank; i++) {
        int at = x->rank - in.rank + i;
        lathe_dim unused;
        int64_t one;
        if (lathe_dim_is_const(c->g->dims, in.d[i], &one) && one == 1)
            continue;
        if (at < axis)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "operand %u reaches outside the normalised axes", k);
        LATHE_TRY(lathe_shape_equal(c, in.d[i], x->d[at], &unused));
    }
    return LATHE_OK;
}

enum lathe_status lathe_shape_layer_norm(struct shape_ctx *c) {
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(need_float(c, 0));
    struct shape_dims x = lathe_shape_dims_of(c, lathe_shape_in(c, 0)), stat = x;
    LATHE_TRY(lathe_shape_axis(c, x.rank, false, -1, &axis));
    LATHE_TRY(check_affine(c, 1, &x, axis));
    LATHE_TRY(check_affine(c, 2, &x, axis));
    for (int i = axis; i < stat.rank; i++)
        stat.d[i] = lathe_shape_const(c, 1);
    for (int i = 0; i < axis; i++)
        stat.d[i] = lathe_dim_resolve(c->g->dims, stat.d[i]);
    enum lathe_dtype dtype = lathe_shape_value(c, 0)->dtype;
    lathe_shape_set_like(c, 0, dtype, lathe_shape_in(c, 0));
    lathe_shape_set(c, 1, dtype == LATHE_F64 ? LATHE_F64 : LATHE_F32, &stat);
    lathe_shape_set(c, 2, dtype == LATHE_F64 ? LATHE_F64 : LATHE_F32, &stat);
    return LATHE_OK;
}

enum lathe_status lathe_shape_rms_norm(struct shape_ctx *c) {
    int axis;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(need_float(c, 0));
    struct shape_dims x = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    LATHE_TRY(lathe_shape_axis(c, x.rank, false, -1, &axis));
    LATHE_TRY(check_affine(c, 1, &x, axis));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

static enum lathe_status check_channels(struct shape_ctx *c, uint32_t first, uint32_t last, bool groups_allowed) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, LATHE_MAX_RANK));
    LATHE_TRY(need_float(c, 0));
    for (uint32_t k = first; k <= last; k++) {
        lathe_dim unused;
        int64_t n, groups = lathe_shape_attr_int(c, LATHE_ATTR_GROUP, 1);
        LATHE_TRY(lathe_shape_need_rank(c, k, 1, 1));
        if (groups_allowed && lathe_value_dim_is(c->g, lathe_shape_in(c, k), 0, &n) && n == groups)
            continue;
        LATHE_TRY(lathe_shape_equal(c, lathe_value_dim(c->g, lathe_shape_in(c, k), 0),
                                    lathe_value_dim(c->g, lathe_shape_in(c, 0), 1), &unused));
    }
    return LATHE_OK;
}

enum lathe_status lathe_shape_batch_norm(struct shape_ctx *c) {
    LATHE_TRY(check_channels(c, 1, 4, false));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_channel_norm(struct shape_ctx *c) {
    bool group_norm = c->g->nodes[c->n].op == LATHE_OP_GROUP_NORM;
    LATHE_TRY(check_channels(c, 1, 2, group_norm));
    if (group_norm) {
        int64_t groups = lathe_shape_attr_int(c, LATHE_ATTR_GROUP, 1), channels;
        if (groups < 1 || (lathe_value_dim_is(c->g, lathe_shape_in(c, 0), 1, &channels) && channels % groups))
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "its channels are no multiple of %lld groups",
                                    (long long)groups);
    }
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

/* Scale (operand 1) and zero point (operand 2): one element, one an index of `axis`, or blocks along it. */
static enum lathe_status check_scale(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 0, LATHE_MAX_RANK));
    struct lathe_graph *g = c->g;
    lathe_value_id scale = lathe_shape_in(c, 1), zero = lathe_shape_in(c, 2);
    struct shape_dims x = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    if (zero != LATHE_NONE && !lathe_value_same_shape(g, scale, zero) &&
        !(lathe_value_count(g, scale) == 1 && lathe_value_count(g, zero) == 1))
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "scale and zero point differ in shape");
    int64_t block = lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 0);
    if (lathe_value_count(g, scale) == 1 && !block)
        return LATHE_OK;
    int axis;
    LATHE_TRY(lathe_shape_axis(c, x.rank, false, x.rank > 1 ? 1 : 0, &axis));
    struct shape_dims s = lathe_shape_dims_of(c, scale);
    lathe_dim unused;
    if (!block) {
        if (s.rank != 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its scale must have rank 0 or 1");
        return lathe_shape_equal(c, s.d[0], x.d[axis], &unused);
    }
    if (block < 0 || s.rank != x.rank)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "a blocked scale must have the rank of x");
    for (int i = 0; i < x.rank; i++) {
        lathe_dim want = x.d[i], size = lathe_shape_const(c, block);
        if (i == axis)
            want = lathe_dim_floordiv(g->dims, lathe_dim_add(g->dims, want, lathe_shape_const(c, block - 1)), size);
        LATHE_TRY(lathe_shape_equal(c, s.d[i], want, &unused));
    }
    return LATHE_OK;
}

enum lathe_status lathe_shape_quantize(struct shape_ctx *c) {
    LATHE_TRY(check_scale(c));
    lathe_value_id zero = lathe_shape_in(c, 2);
    int64_t to = lathe_shape_attr_int(c, LATHE_ATTR_TO, 0);
    enum lathe_dtype dtype = zero != LATHE_NONE ? c->g->values[zero].dtype : to ? (enum lathe_dtype)to : LATHE_U8;
    if (!lathe_dtype_is_integer(dtype))
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "its result cannot be %s", lathe_dtype_name(dtype));
    lathe_shape_set_like(c, 0, dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_dequantize(struct shape_ctx *c) {
    LATHE_TRY(check_scale(c));
    LATHE_TRY(need_float(c, 1));
    lathe_value_id zero = lathe_shape_in(c, 2);
    if (zero != LATHE_NONE && c->g->values[zero].dtype != lathe_shape_value(c, 0)->dtype)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "its zero point and x differ in type");
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 1)->dtype, lathe_shape_in(c, 0));
    return LATHE_OK;
}

enum lathe_status lathe_shape_dynamic_quantize(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    if (lathe_shape_value(c, 0)->dtype != LATHE_F32)
        return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "its operand must be f32");
    struct shape_dims scalar = {.rank = 0};
    lathe_shape_set_like(c, 0, LATHE_U8, lathe_shape_in(c, 0));
    lathe_shape_set(c, 1, LATHE_F32, &scalar);
    lathe_shape_set(c, 2, LATHE_U8, &scalar);
    return LATHE_OK;
}

/* data (packed along its last axis when it holds 8 / bits elements a byte), indices, scales, zeros. */
enum lathe_status lathe_shape_gather_block_quantized(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 0, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 2, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_index_type(c, 1));
    struct lathe_graph *g = c->g;
    struct shape_dims data = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims index = lathe_shape_dims_of(c, lathe_shape_in(c, 1)), out = {.rank = 0};
    struct shape_dims scales = lathe_shape_dims_of(c, lathe_shape_in(c, 2));
    int64_t bits = lathe_shape_attr_int(c, LATHE_ATTR_BITS, 4), packed;
    int64_t block = lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 128);
    if ((bits != 2 && bits != 4 && bits != 8) || block < 1 || data.rank - 1 + index.rank > LATHE_MAX_RANK)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "%lld bits in blocks of %lld", (long long)bits,
                                (long long)block);
    /* The scales tell how many elements the packed axis holds: one each block of it. */
    lathe_dim width = data.d[data.rank - 1];
    int64_t blocks;
    if (!lathe_dim_is_const(g->dims, width, &packed) || scales.rank != data.rank ||
        !lathe_dim_is_const(g->dims, scales.d[scales.rank - 1], &blocks) || packed > INT32_MAX)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its data and scales must be constants of one rank");
    int64_t elements = packed;
    if (lathe_shape_value(c, 0)->dtype == LATHE_U8 && (packed + block - 1) / block != blocks)
        elements = packed * (8 / bits);
    if ((elements + block - 1) / block != blocks)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "%lld scales for %lld packed columns in blocks of %lld",
                                (long long)blocks, (long long)packed, (long long)block);
    for (int i = 0; i < index.rank; i++)
        out.d[out.rank++] = index.d[i];
    for (int i = 1; i < data.rank; i++)
        out.d[out.rank++] = i + 1 < data.rank ? data.d[i] : lathe_shape_const(c, elements);
    lathe_shape_set(c, 0, lathe_shape_value(c, 2)->dtype, &out);
    return LATHE_OK;
}
