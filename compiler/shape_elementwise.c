/* Elementwise operators, with and without broadcasting. */
#include "shape_internal.h"

enum lathe_status lathe_shape_unary(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    lathe_shape_content_unary(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_unary_bool(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    lathe_shape_set_like(c, 0, LATHE_BOOL, lathe_shape_in(c, 0));
    return LATHE_OK;
}

static enum lathe_status need_bool(struct shape_ctx *c, uint32_t k) {
    if (lathe_shape_value(c, k)->dtype == LATHE_BOOL)
        return LATHE_OK;
    return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operand %u is %s, it must be bool", k,
                            lathe_dtype_name(lathe_shape_value(c, k)->dtype));
}

enum lathe_status lathe_shape_logical_not(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    LATHE_TRY(need_bool(c, 0));
    return lathe_shape_unary(c);
}

enum lathe_status lathe_shape_cast(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    int64_t to = lathe_shape_attr_int(c, LATHE_ATTR_TO, 0);
    if (to < 0 || to > UINT16_MAX || !lathe_dtype_bytes((enum lathe_dtype)to))
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "cast to element type %lld, which is not supported",
                                (long long)to);
    lathe_shape_set_like(c, 0, (enum lathe_dtype)to, lathe_shape_in(c, 0));
    lathe_shape_content_unary(c);
    return LATHE_OK;
}

/* Broadcast of the operands from `first` on. */
static enum lathe_status broadcast_all(struct shape_ctx *c, uint32_t first, struct shape_dims *dims) {
    dims->rank = 0;
    for (uint32_t k = first; k < c->g->nodes[c->n].n_in; k++) {
        LATHE_TRY(lathe_shape_need_rank(c, k, 0, LATHE_MAX_RANK));
        struct shape_dims other = lathe_shape_dims_of(c, lathe_shape_in(c, k));
        LATHE_TRY(lathe_shape_broadcast(c, dims, &other));
    }
    return LATHE_OK;
}

static enum lathe_status same_types(struct shape_ctx *c, uint32_t first) {
    enum lathe_dtype dtype = lathe_shape_value(c, first)->dtype;
    for (uint32_t k = first + 1; k < c->g->nodes[c->n].n_in; k++)
        if (lathe_shape_in(c, k) != LATHE_NONE && lathe_shape_value(c, k)->dtype != dtype)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operands are %s and %s, they must be of one type",
                                    lathe_dtype_name(dtype), lathe_dtype_name(lathe_shape_value(c, k)->dtype));
    return LATHE_OK;
}

enum lathe_status lathe_shape_pairwise(struct shape_ctx *c) {
    struct shape_dims dims;
    LATHE_TRY(broadcast_all(c, 0, &dims));
    LATHE_TRY(same_types(c, 0));
    enum lathe_op op = c->g->nodes[c->n].op;
    if (op == LATHE_OP_AND || op == LATHE_OP_OR || op == LATHE_OP_XOR)
        LATHE_TRY(need_bool(c, 0));
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &dims);
    lathe_shape_content_pairwise(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_compare(struct shape_ctx *c) {
    struct shape_dims dims;
    LATHE_TRY(broadcast_all(c, 0, &dims));
    LATHE_TRY(same_types(c, 0));
    lathe_shape_set(c, 0, LATHE_BOOL, &dims);
    lathe_shape_content_pairwise(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_pow(struct shape_ctx *c) {
    struct shape_dims dims;
    LATHE_TRY(broadcast_all(c, 0, &dims));
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &dims);
    lathe_shape_content_pairwise(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_where(struct shape_ctx *c) {
    struct shape_dims dims;
    LATHE_TRY(broadcast_all(c, 0, &dims));
    LATHE_TRY(need_bool(c, 0));
    LATHE_TRY(same_types(c, 1));
    lathe_shape_set(c, 0, lathe_shape_value(c, 1)->dtype, &dims);
    lathe_shape_content_pairwise(c);
    return LATHE_OK;
}

enum lathe_status lathe_shape_clip(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    LATHE_TRY(same_types(c, 0));
    for (uint32_t k = 1; k < c->g->nodes[c->n].n_in; k++)
        if (lathe_shape_in(c, k) != LATHE_NONE && lathe_value_count(c->g, lathe_shape_in(c, k)) != 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "bound %u must have one element", k);
    lathe_shape_set_like(c, 0, lathe_shape_value(c, 0)->dtype, lathe_shape_in(c, 0));
    lathe_shape_content_pairwise(c);
    return LATHE_OK;
}
