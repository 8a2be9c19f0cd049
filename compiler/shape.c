/* Shape and type inference: the table of shape functions, and the walk over the graph. */
#include "shape_internal.h"

static lathe_shape_fn shape_function(enum lathe_op op) {
    const struct lathe_op_info *info = lathe_op_info(op);
    switch (op) {
    case LATHE_OP_NOT:
        return lathe_shape_logical_not;
    case LATHE_OP_ISNAN:
    case LATHE_OP_ISINF:
        return lathe_shape_unary_bool;
    case LATHE_OP_CAST:
        return lathe_shape_cast;
    case LATHE_OP_POW:
        return lathe_shape_pow;
    case LATHE_OP_EQUAL:
    case LATHE_OP_LESS:
    case LATHE_OP_LESS_EQUAL:
    case LATHE_OP_GREATER:
    case LATHE_OP_GREATER_EQUAL:
        return lathe_shape_compare;
    case LATHE_OP_WHERE:
        return lathe_shape_where;
    case LATHE_OP_CLIP:
        return lathe_shape_clip;
    case LATHE_OP_SHAPE:
        return lathe_shape_shape;
    case LATHE_OP_SIZE:
        return lathe_shape_size;
    case LATHE_OP_RESHAPE:
        return lathe_shape_reshape;
    case LATHE_OP_TRANSPOSE:
        return lathe_shape_transpose;
    case LATHE_OP_CONCAT:
        return lathe_shape_concat;
    case LATHE_OP_SLICE:
        return lathe_shape_slice;
    case LATHE_OP_SPLIT:
        return lathe_shape_split;
    case LATHE_OP_GATHER:
        return lathe_shape_gather;
    case LATHE_OP_GATHER_ELEMENTS:
        return lathe_shape_gather_elements;
    case LATHE_OP_GATHER_ND:
        return lathe_shape_gather_nd;
    case LATHE_OP_EXPAND:
        return lathe_shape_expand;
    case LATHE_OP_TILE:
        return lathe_shape_tile;
    case LATHE_OP_PAD:
        return lathe_shape_pad;
    case LATHE_OP_RANGE:
        return lathe_shape_range;
    case LATHE_OP_FILL:
        return lathe_shape_fill;
    case LATHE_OP_DIMS_TENSOR:
        return lathe_shape_dims_tensor;
    case LATHE_OP_ONE_HOT:
        return lathe_shape_one_hot;
    case LATHE_OP_CUMSUM:
        return lathe_shape_cumsum;
    case LATHE_OP_TRILU:
        return lathe_shape_trilu;
    case LATHE_OP_EYE_LIKE:
        return lathe_shape_eye_like;
    case LATHE_OP_SCATTER_ELEMENTS:
    case LATHE_OP_SCATTER_ND:
        return lathe_shape_scatter;
    case LATHE_OP_DEPTH_TO_SPACE:
    case LATHE_OP_SPACE_TO_DEPTH:
        return lathe_shape_depth_space;
    case LATHE_OP_COMPRESS:
        return lathe_shape_compress;
    case LATHE_OP_REVERSE_SEQUENCE:
    case LATHE_OP_ROLL:
        return lathe_shape_same;
    case LATHE_OP_REDUCE_SUM:
    case LATHE_OP_REDUCE_MEAN:
    case LATHE_OP_REDUCE_MAX:
    case LATHE_OP_REDUCE_MIN:
    case LATHE_OP_REDUCE_PROD:
    case LATHE_OP_REDUCE_L1:
    case LATHE_OP_REDUCE_L2:
    case LATHE_OP_REDUCE_SUM_SQUARE:
    case LATHE_OP_REDUCE_LOG_SUM:
    case LATHE_OP_REDUCE_LOG_SUM_EXP:
        return lathe_shape_reduce;
    case LATHE_OP_ARG_MAX:
    case LATHE_OP_ARG_MIN:
        return lathe_shape_arg;
    case LATHE_OP_TOP_K:
        return lathe_shape_top_k;
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_LOG_SOFTMAX:
    case LATHE_OP_HARDMAX:
    case LATHE_OP_LP_NORMALIZE:
        return lathe_shape_softmax;
    case LATHE_OP_MATMUL:
    case LATHE_OP_MATMUL_INTEGER:
        return lathe_shape_matmul;
    case LATHE_OP_GEMM:
        return lathe_shape_gemm;
    case LATHE_OP_CONV:
        return lathe_shape_conv;
    case LATHE_OP_EINSUM:
        return lathe_shape_einsum;
    case LATHE_OP_MATMUL_NBITS:
        return lathe_shape_matmul_nbits;
    case LATHE_OP_AVERAGE_POOL:
    case LATHE_OP_MAX_POOL:
    case LATHE_OP_LP_POOL:
        return lathe_shape_pool;
    case LATHE_OP_GLOBAL_AVERAGE_POOL:
        return lathe_shape_global_pool;
    case LATHE_OP_LAYER_NORM:
        return lathe_shape_layer_norm;
    case LATHE_OP_RMS_NORM:
        return lathe_shape_rms_norm;
    case LATHE_OP_BATCH_NORM:
        return lathe_shape_batch_norm;
    case LATHE_OP_INSTANCE_NORM:
    case LATHE_OP_GROUP_NORM:
        return lathe_shape_channel_norm;
    case LATHE_OP_QUANTIZE_LINEAR:
        return lathe_shape_quantize;
    case LATHE_OP_DEQUANTIZE_LINEAR:
        return lathe_shape_dequantize;
    case LATHE_OP_DYNAMIC_QUANTIZE_LINEAR:
        return lathe_shape_dynamic_quantize;
    case LATHE_OP_GATHER_BLOCK_QUANTIZED:
        return lathe_shape_gather_block_quantized;
    case LATHE_OP_SDPA:
        return lathe_shape_sdpa;
    case LATHE_OP_ROTARY:
        return lathe_shape_rotary;
    case LATHE_OP_LINEAR:
        return lathe_shape_linear;
    case LATHE_OP_LINEAR_BF16:
        return lathe_shape_linear_bf16;
    case LATHE_OP_LINEAR_Q8:
        return lathe_shape_linear_q8;
    case LATHE_OP_SKIP_LAYER_NORM:
        return lathe_shape_skip_layer_norm;
    case LATHE_OP_EMBEDDING:
        return lathe_shape_embedding;
    case LATHE_OP_EMBEDDING_Q8:
        return lathe_shape_embedding_q8;
    case LATHE_OP_ATTENTION:
        return lathe_shape_attention;
    case LATHE_OP_ATTENTION_ROWS:
        return lathe_shape_attention_rows;
    case LATHE_OP_ROW_MAP:
        return lathe_shape_row_map;
    case LATHE_OP_PACK_ROWS:
        return lathe_shape_pack_rows;
    case LATHE_OP_UNPACK_ROWS:
        return lathe_shape_unpack_rows;
    case LATHE_OP_TAKE_ROWS:
    case LATHE_OP_MEAN_ROWS:
        return lathe_shape_per_sequence;
    default:
        if (info && info->flags & LATHE_OPF_ELEMENTWISE)
            return lathe_shape_unary;
        if (info && info->flags & LATHE_OPF_PAIRWISE)
            return lathe_shape_pairwise;
        return NULL;
    }
}

enum lathe_status lathe_shape_infer_node(struct lathe_graph *g, lathe_node_id n, struct lathe_diag *diag) {
    struct shape_ctx c = {g, n, diag};
    const struct lathe_op_info *info = lathe_op_info(g->nodes[n].op);
    lathe_shape_fn infer = shape_function(g->nodes[n].op);
    if (!info || !infer)
        return lathe_fail(diag, LATHE_MSG_BUG, "node '%s': operator %u has no shape function", g->nodes[n].name,
                          (unsigned)g->nodes[n].op);
    const struct lathe_node *node = &g->nodes[n];
    if (node->n_in < info->min_in || node->n_in > info->max_in || node->n_out < 1 || node->n_out > info->n_out)
        return lathe_shape_fail(&c, LATHE_MSG_SHAPE_MISMATCH, "it has %u operands and %u outputs", node->n_in,
                                node->n_out);
    for (uint32_t i = 0; i < node->n_in; i++) {
        if (node->in[i] == LATHE_NONE)
            continue;
        const struct lathe_value *value = &g->values[node->in[i]];
        if (value->rank < 0 || value->rank > LATHE_MAX_RANK || !lathe_dtype_bytes(value->dtype))
            return lathe_shape_fail(&c, LATHE_MSG_SHAPE_UNKNOWN, "the shape or type of operand %u is not known", i);
        for (int axis = 0; axis < value->rank; axis++)
            if (lathe_dim_resolve(g->dims, value->dims[axis]) == LATHE_DIM_NONE)
                return lathe_shape_fail(&c, LATHE_MSG_SHAPE_LIMITS, "the size of operand %u is too large to follow", i);
    }
    LATHE_TRY(infer(&c));
    if (g->nodes[n].op == LATHE_OP_NONE)
        return LATHE_OK; /* it was replaced */
    node = &g->nodes[n];
    for (uint32_t i = 0; i < node->n_out; i++) {
        if (node->out[i] == LATHE_NONE)
            continue;
        struct lathe_value *value = &g->values[node->out[i]];
        for (int axis = 0; axis < value->rank; axis++) {
            value->dims[axis] = lathe_dim_resolve(g->dims, value->dims[axis]);
            if (value->dims[axis] == LATHE_DIM_NONE)
                return lathe_shape_fail(&c, LATHE_MSG_SHAPE_LIMITS, "the size of its result is too large to follow");
        }
    }
    if (g->out_of_memory)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "shape inference at node '%s'", node->name);
    return LATHE_OK;
}

enum lathe_status lathe_shape_infer(struct lathe_graph *g, struct lathe_diag *diag) {
    LATHE_FOR_NODES_SAFE(g, n, following)
    LATHE_TRY(lathe_shape_infer_node(g, n, diag));
    return LATHE_OK;
}
