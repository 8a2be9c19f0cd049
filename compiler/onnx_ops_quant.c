/* Quantized forms, in their written meaning. */
#include "onnx_import.h"

#include <string.h>

/* Refuses operands whose type has less than 8 bits where the range of the type matters. */
static void need_whole_bytes(struct lathe_import *c, uint32_t operand) {
    if (!lathe_imp_has(c, operand))
        return;
    int32_t type = lathe_scope_initializer_type(c->scope, c->node->input[operand]);
    if (type >= 21 && type <= 26)
        lathe_imp_node_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "operand %u has type %s; quantizing to it is not supported",
                            operand, lathe_onnx_type_name(type));
}

/* From opset 21 on an axis beyond a vector's is never looked at when the scale is one number. */
static int quantize_axis(struct lathe_import *c) {
    int rank = lathe_imp_rank(c, c->in[0]);
    int64_t axis = lathe_imp_attr_int(c, "axis", 1);
    bool per_tensor = c->status == LATHE_OK && lathe_value_count(c->g, c->in[1]) == 1;
    if (per_tensor && (axis < -(int64_t)rank || axis >= rank))
        return 0;
    return lathe_imp_axis(c, axis, rank);
}

LATHE_IMPORTER(quantize) {
    need_whole_bytes(c, 2);
    int axis = quantize_axis(c);
    int64_t block = lathe_imp_attr_int(c, "block_size", 0), to = lathe_imp_attr_int(c, "output_dtype", 0);
    lathe_imp_ignore_attr(c, "saturate"); /* of float8 only */
    if (lathe_imp_attr_int(c, "precision", 0) > 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "precision is not float");
    enum lathe_dtype dtype = lathe_imp_has(c, 2) ? lathe_imp_dtype(c, c->in[2]) : LATHE_U8;
    if (to)
        dtype = lathe_imp_element_type(c, to, "the result of node", c->node_name);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_QUANTIZE_LINEAR, c->in, c->n_in);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_int(c, n, LATHE_ATTR_TO, dtype);
    if (block)
        lathe_imp_int(c, n, LATHE_ATTR_BLOCK_SIZE, block);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(dequantize) {
    int axis = quantize_axis(c);
    int64_t block = lathe_imp_attr_int(c, "block_size", 0), to = lathe_imp_attr_int(c, "output_dtype", 0);
    enum lathe_dtype dtype = lathe_imp_dtype(c, c->in[1]);
    bool cast = to && (enum lathe_dtype)to != dtype;
    lathe_node_id n = cast ? lathe_imp_node(c, LATHE_OP_DEQUANTIZE_LINEAR, c->in, c->n_in)
                           : lathe_imp_result(c, 0, LATHE_OP_DEQUANTIZE_LINEAR, c->in, c->n_in);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    if (block)
        lathe_imp_int(c, n, LATHE_ATTR_BLOCK_SIZE, block);
    lathe_value_id y = lathe_imp_end(c, n);
    if (cast) {
        n = lathe_imp_result(c, 0, LATHE_OP_CAST, &y, 1);
        lathe_imp_int(c, n, LATHE_ATTR_TO, lathe_imp_element_type(c, to, "the result of node", c->node_name));
        lathe_imp_end(c, n);
    }
}

LATHE_IMPORTER(dynamic_quantize) {
    lathe_imp_end(c, lathe_imp_results(c, 3, LATHE_OP_DYNAMIC_QUANTIZE_LINEAR, c->in, 1));
}

LATHE_IMPORTER(matmul_integer) {
    for (uint32_t k = 2; k < 4; k++)
        if (lathe_imp_has(c, k) && lathe_imp_dtype(c, c->in[k]) != lathe_imp_dtype(c, c->in[k - 2])) {
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "zero point %u is %s, its matrix %s", k - 2,
                                lathe_dtype_name(lathe_imp_dtype(c, c->in[k])),
                                lathe_dtype_name(lathe_imp_dtype(c, c->in[k - 2])));
            return;
        }
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_MATMUL_INTEGER, c->in, c->n_in));
}

lathe_value_id lathe_imp_integer_product(struct lathe_import *c, lathe_value_id a, lathe_value_id b,
                                         lathe_value_id a_zero, lathe_value_id b_zero, lathe_value_id a_scale,
                                         lathe_value_id b_scale) {
    const lathe_value_id in[4] = {a, b, a_zero, b_zero};
    uint32_t count = b_zero != LATHE_NONE ? 4 : a_zero != LATHE_NONE ? 3 : 2;
    lathe_value_id sums = lathe_imp_end(c, lathe_imp_node(c, LATHE_OP_MATMUL_INTEGER, in, count));
    lathe_value_id scale =
        lathe_imp_binary(c, LATHE_OP_MUL, lathe_imp_cast(c, a_scale, LATHE_F32), lathe_imp_cast(c, b_scale, LATHE_F32));
    return lathe_imp_binary(c, LATHE_OP_MUL, lathe_imp_cast(c, sums, LATHE_F32), scale);
}

static void finish_product(struct lathe_import *c, lathe_value_id y, lathe_value_id bias) {
    if (bias == LATHE_NONE) {
        lathe_imp_bind(c, 0, y);
        return;
    }
    const lathe_value_id in[2] = {y, bias};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_ADD, in, 2));
}

LATHE_IMPORTER(ms_matmul_integer_to_float) {
    lathe_value_id y =
        lathe_imp_integer_product(c, c->in[0], c->in[1], lathe_imp_in(c, 4), lathe_imp_in(c, 5), c->in[2], c->in[3]);
    finish_product(c, y, lathe_imp_in(c, 6));
}

LATHE_IMPORTER(ms_dynamic_quantize_matmul) {
    lathe_node_id n = lathe_imp_node_outs(c, 3, LATHE_OP_DYNAMIC_QUANTIZE_LINEAR, c->in, 1);
    lathe_imp_end(c, n);
    lathe_value_id y = lathe_imp_integer_product(c, lathe_imp_out(c, n, 0), c->in[1], lathe_imp_out(c, n, 2),
                                                 lathe_imp_in(c, 3), lathe_imp_out(c, n, 1), c->in[2]);
    finish_product(c, y, lathe_imp_in(c, 4));
}

/* Integer product, then the result quantized again. */
LATHE_IMPORTER(qlinear_matmul) {
    lathe_value_id y = lathe_imp_integer_product(c, c->in[0], c->in[3], c->in[2], c->in[5], c->in[1], c->in[4]);
    const lathe_value_id in[3] = {y, lathe_imp_cast(c, c->in[6], LATHE_F32), c->in[7]};
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_QUANTIZE_LINEAR, in, 3);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, 0);
    lathe_imp_int(c, n, LATHE_ATTR_TO, lathe_imp_dtype(c, c->in[7]));
    lathe_imp_end(c, n);
}

static lathe_value_id swap_axes(struct lathe_import *c, lathe_value_id x, bool wanted) {
    static const int64_t perm[2] = {1, 0};
    return wanted ? lathe_imp_transpose(c, x, perm, 2) : x;
}

/* alpha * a_scale * b_scale * ((a - a_zero)(b - b_zero) + c), quantized again when a scale for that is given. */
LATHE_IMPORTER(ms_qgemm) {
    lathe_value_id a = swap_axes(c, c->in[0], lathe_imp_attr_int(c, "transA", 0) != 0);
    lathe_value_id b = swap_axes(c, c->in[3], lathe_imp_attr_int(c, "transB", 0) != 0);
    const lathe_value_id in[4] = {a, b, c->in[2], c->in[5]};
    lathe_value_id sums = lathe_imp_end(c, lathe_imp_node(c, LATHE_OP_MATMUL_INTEGER, in, 4));
    if (lathe_imp_has(c, 6))
        sums = lathe_imp_binary(c, LATHE_OP_ADD, sums, c->in[6]);
    lathe_value_id scale = lathe_imp_binary(c, LATHE_OP_MUL, c->in[1], c->in[4]);
    double alpha = lathe_imp_attr_float(c, "alpha", 1);
    if (alpha != 1)
        scale = lathe_imp_binary(c, LATHE_OP_MUL, scale, lathe_imp_scalar(c, LATHE_F32, alpha));
    const lathe_value_id product[2] = {lathe_imp_cast(c, sums, LATHE_F32), scale};
    bool again = lathe_imp_has(c, 7);
    lathe_value_id y = lathe_imp_end(c, again ? lathe_imp_node(c, LATHE_OP_MUL, product, 2)
                                              : lathe_imp_result(c, 0, LATHE_OP_MUL, product, 2));
    if (!again)
        return;
    const lathe_value_id quantized[3] = {y, c->in[7], lathe_imp_in(c, 8)};
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_QUANTIZE_LINEAR, quantized, lathe_imp_has(c, 8) ? 3 : 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, 0);
    lathe_imp_int(c, n, LATHE_ATTR_TO, lathe_imp_has(c, 8) ? lathe_imp_dtype(c, c->in[8]) : LATHE_U8);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(ms_matmul_nbits) {
    int64_t k = lathe_imp_attr_int(c, "K", 0), n_columns = lathe_imp_attr_int(c, "N", 0);
    int64_t bits = lathe_imp_attr_int(c, "bits", 4), block = lathe_imp_attr_int(c, "block_size", 0);
    lathe_imp_ignore_attr(c, "accuracy_level"); /* products are f32 here, the most exact of its levels */
    if (lathe_imp_attr_int(c, "weight_prepacked", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "weight_prepacked is not supported");
    if (k < 1 || n_columns < 1 || block < 16 || (block & (block - 1)) || bits < 2 || bits > 8)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE,
                            "K %lld, N %lld, bits %lld, block_size %lld: sizes must be positive, bits 2 to 8, and the "
                            "block a power of two from 16 on",
                            (long long)k, (long long)n_columns, (long long)bits, (long long)block);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_MATMUL_NBITS, c->in, c->n_in);
    lathe_imp_int(c, n, LATHE_ATTR_K, k);
    lathe_imp_int(c, n, LATHE_ATTR_BITS, bits);
    lathe_imp_int(c, n, LATHE_ATTR_BLOCK_SIZE, block);
    lathe_value_id y = lathe_imp_end(c, n);
    int64_t found;
    if (c->status == LATHE_OK && lathe_value_dim_is(c->g, y, -1, &found) && found != n_columns)
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "N is %lld, but its weights have %lld columns", (long long)n_columns,
                            (long long)found);
}

LATHE_IMPORTER(ms_gather_block_quantized) {
    int32_t type = lathe_scope_initializer_type(c->scope, c->node->input[0]);
    int rank = lathe_imp_rank(c, c->in[0]);
    int64_t bits = lathe_imp_attr_int(c, "bits", 4), block = lathe_imp_attr_int(c, "block_size", 128);
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "quantize_axis", 1), rank);
    if (lathe_imp_axis(c, lathe_imp_attr_int(c, "gather_axis", 0), rank) != 0)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "gather_axis is not 0");
    if (block < 16 || (block & (block - 1)))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "block_size is %lld; it must be a power of two from 16 on",
                            (long long)block);
    lathe_value_id in[4] = {c->in[0], c->in[1], c->in[2], lathe_imp_in(c, 3)};
    bool whole = type == 21 || type == 22 || lathe_imp_dtype(c, in[0]) == LATHE_I8; /* 4-bit types were widened */
    if (whole && in[3] == LATHE_NONE && lathe_imp_dtype(c, in[0]) == LATHE_U8 && c->status == LATHE_OK) {
        /* uint4 without zero points has zero point 0; the internal form would take the middle of u8. */
        struct lathe_value *scales = lathe_value_at(c->g, in[2]);
        int64_t dims[LATHE_MAX_RANK], count = lathe_value_count(c->g, in[2]);
        for (int i = 0; i < scales->rank; i++)
            dims[i] = lathe_imp_dim_const(c, in[2], i, "a size of its scales");
        void *zeros = count >= 0 ? lathe_arena_alloc(c->g->arena, (size_t)count + 1) : NULL;
        if (c->status == LATHE_OK && zeros)
            in[3] = lathe_graph_add_constant(c->g, "zero_points", LATHE_U8, scales->rank, dims, zeros);
    }
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_GATHER_BLOCK_QUANTIZED, in, in[3] == LATHE_NONE ? 3 : 4);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_int(c, n, LATHE_ATTR_BITS, whole ? 8 : bits);
    lathe_imp_int(c, n, LATHE_ATTR_BLOCK_SIZE, block);
    lathe_imp_end(c, n);
}
