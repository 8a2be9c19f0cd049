/* Computes at compile time what does not depend on the inputs, with the operators of the runtime, so that a folded node
 * has the meaning of the one that would run. A result may exceed its operands by 4 KiB at most: a graph of some bytes
 * must not become an artifact of megabytes. Weights in narrow types stay what they are behind their cast or
 * dequantization: packing reads them through it (weight_reader.h).
 *
 * Shape arithmetic is known since shape inference: it becomes constants, or one dims_tensor where data flow needs a
 * value that depends on the sizes of a run. */
#include "match.h"

#include "kernel.h"

#include <stdlib.h>
#include <string.h>

enum { GROWTH = 4096, MOST_OPERANDS = 64, MOST_OUTPUTS = 32, ALIGNMENT = 64 };

/* ---- content */

static void store_integer(void *at, enum lathe_dtype dtype, int64_t value) {
    switch (dtype) {
    case LATHE_F32: {
        float x = (float)value;
        memcpy(at, &x, sizeof x);
        break;
    }
    case LATHE_F64: {
        double x = (double)value;
        memcpy(at, &x, sizeof x);
        break;
    }
    default: /* little-endian integers: the low bytes */
        for (size_t i = 0; i < lathe_dtype_bytes(dtype); i++)
            ((unsigned char *)at)[i] = (unsigned char)((uint64_t)value >> (8 * i));
    }
}

/* The operators that only arrange or look up integers that are known. */
static bool content_serves(const struct lathe_graph *g, lathe_value_id v) {
    enum lathe_dtype dtype = g->values[v].dtype;
    return g->values[v].content &&
           (lathe_dtype_is_integer(dtype) || dtype == LATHE_BOOL || dtype == LATHE_F32 || dtype == LATHE_F64);
}

static bool constant_from_content(struct lathe_pass_ctx *ctx, lathe_value_id v) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_value *value = &g->values[v];
    size_t bytes = lathe_dtype_bytes(value->dtype);
    int64_t x[LATHE_MAX_CONTENT];
    for (uint32_t i = 0; i < value->content_count; i++)
        if (!lathe_dim_is_const(g->dims, value->content[i], &x[i]))
            return false;
    char *data = lathe_arena_alloc(g->arena, bytes * value->content_count);
    if (!data) {
        g->out_of_memory = true;
        return false;
    }
    for (uint32_t i = 0; i < value->content_count; i++)
        store_integer(data + i * bytes, value->dtype, x[i]);
    lathe_value_make_constant(g, v, data);
    return true;
}

/* Some user needs the elements at run time: its own result is not known. */
static bool data_flow_needs(const struct lathe_graph *g, lathe_value_id v) {
    if (g->values[v].is_output)
        return true;
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        const struct lathe_node *user = &g->nodes[g->values[v].uses[i]];
        if (user->n_out != 1 || user->out[0] == LATHE_NONE || !g->values[user->out[0]].content)
            return true;
    }
    return false;
}

static bool all_constant(const struct lathe_graph *g, const struct lathe_node *node) {
    for (uint32_t i = 0; i < node->n_in; i++)
        if (node->in[i] != LATHE_NONE && !lathe_value_is_constant(g, node->in[i]))
            return false;
    return true;
}

static bool fold_content(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    struct lathe_node *node = &g->nodes[n];
    if (node->n_out != 1 || node->out[0] == LATHE_NONE || !content_serves(g, node->out[0]))
        return false;
    lathe_value_id v = node->out[0];
    /* Floats of constants are no shape arithmetic: fold_node has the rules for weights. */
    if (lathe_dtype_is_float(g->values[v].dtype) && all_constant(g, node))
        return false;
    if (!g->values[v].is_output && constant_from_content(ctx, v)) {
        lathe_graph_remove_dead_from(g, n);
        ctx->changes++;
        return true;
    }
    bool integer = g->values[v].dtype == LATHE_I64 || g->values[v].dtype == LATHE_I32;
    if (node->op == LATHE_OP_DIMS_TENSOR || !integer || !data_flow_needs(g, v))
        return false;
    lathe_value_id old[MOST_OPERANDS];
    uint32_t n_old = node->n_in;
    if (n_old > MOST_OPERANDS)
        return false;
    for (uint32_t i = 0; i < n_old; i++)
        old[i] = node->in[i];
    lathe_dim content[LATHE_MAX_CONTENT];
    uint32_t count = g->values[v].content_count;
    memcpy(content, g->values[v].content, count * sizeof *content);
    lathe_node_set_inputs(g, n, NULL, 0);
    while (g->nodes[n].n_attrs)
        lathe_node_drop_attr(g, n, g->nodes[n].attrs[0].key);
    lathe_node_set_op(g, n, LATHE_OP_DIMS_TENSOR);
    lathe_node_set_dims(g, n, LATHE_ATTR_VALUES, content, count);
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i] != LATHE_NONE && g->values[old[i]].producer != LATHE_NONE)
            lathe_graph_remove_dead_from(g, g->values[old[i]].producer);
    ctx->changes++;
    return true;
}

/* ---- computing */

/* Aligned copies of operands that lie unaligned in the model file. */
struct call_memory {
    void *owned[MOST_OPERANDS + MOST_OUTPUTS + 1];
    unsigned count;
};

static void *take(struct call_memory *m, size_t bytes) {
    void *p = aligned_alloc(ALIGNMENT, (bytes + 2 * ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (p)
        m->owned[m->count++] = p;
    return p;
}

static bool describe(const struct lathe_graph *g, lathe_value_id v, struct lathe_tensor *t) {
    const struct lathe_value *value = &g->values[v];
    *t = (struct lathe_tensor){.dtype = value->dtype, .rank = (unsigned)value->rank};
    for (int i = 0; i < value->rank; i++)
        if (!lathe_dim_is_const(g->dims, value->dims[i], &t->dims[i]))
            return false;
    return true;
}

static bool size_allows(const struct lathe_graph *g, const struct lathe_node *node) {
    int64_t in = GROWTH, out = 0, bytes;
    for (uint32_t i = 0; i < node->n_in; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again |= node->in[k] == node->in[i];
        if (node->in[i] == LATHE_NONE || again)
            continue;
        if ((bytes = lathe_value_bytes(g, node->in[i])) < 0 || !lathe_add_i64(in, bytes, &in))
            return false;
    }
    for (uint32_t i = 0; i < node->n_out; i++) {
        if (node->out[i] == LATHE_NONE)
            continue;
        if ((bytes = lathe_value_bytes(g, node->out[i])) < 0 || !lathe_add_i64(out, bytes, &out))
            return false;
    }
    return out <= in;
}

/* A transposed weight that only products read stays as it is: fuse_linear turns the transpose into trans_b, and the
 * weight is not stored twice. */
static bool serves_products(const struct lathe_graph *g, const struct lathe_node *node) {
    lathe_value_id v = node->out[0];
    if (node->op != LATHE_OP_TRANSPOSE || g->values[node->in[0]].rank != 2 || g->values[v].is_output ||
        !g->values[v].use_count)
        return false;
    for (uint32_t i = 0; i < g->values[v].use_count; i++) {
        const struct lathe_node *user = &g->nodes[g->values[v].uses[i]];
        if ((user->op != LATHE_OP_MATMUL && user->op != LATHE_OP_GEMM) || user->in[1] != v || user->in[0] == v)
            return false;
    }
    return true;
}

/* The joined weight of several products: packing reads its parts through the concat, so a copy would serve nothing. */
static bool serves_packing(const struct lathe_graph *g, const struct lathe_node *node) {
    if (node->op != LATHE_OP_CONCAT)
        return false;
    const struct lathe_value *value = &g->values[node->out[0]];
    for (uint32_t i = 0; i < value->use_count; i++)
        if (g->nodes[value->uses[i]].op == LATHE_OP_LINEAR && g->nodes[value->uses[i]].in[1] == node->out[0])
            return true;
    return false;
}

static bool foldable(const struct lathe_graph *g, const struct lathe_node *node, const struct lathe_op_info *info) {
    if (!info || node->n_in > MOST_OPERANDS || node->n_out > MOST_OUTPUTS ||
        (!info->run && node->op != LATHE_OP_RESHAPE))
        return false;
    if (!all_constant(g, node))
        return false;
    for (uint32_t i = 0; i < node->n_attrs; i++)
        if (node->attrs[i].type == LATHE_ATTR_DIMS)
            return false;
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && g->values[node->out[i]].is_output)
            return false;
    return !serves_products(g, node) && !serves_packing(g, node) && size_allows(g, node);
}

/* Runs the operator; the outputs' elements lie in the graph's arena afterwards. */
static enum lathe_status compute(struct lathe_pass_ctx *ctx, lathe_node_id n, const struct lathe_op_info *info,
                                 void **results, struct call_memory *m) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_tensor in[MOST_OPERANDS], out[MOST_OUTPUTS];
    const struct lathe_tensor *in_list[MOST_OPERANDS] = {NULL};
    struct lathe_tensor *out_list[MOST_OUTPUTS] = {NULL};
    struct lathe_kernels kernels;
    lathe_kernels_select(0, &kernels);
    for (uint32_t i = 0; i < node->n_in; i++) {
        lathe_value_id v = node->in[i];
        if (v == LATHE_NONE)
            continue;
        if (!describe(g, v, &in[i]))
            return LATHE_UNSUPPORTED;
        in[i].data = (void *)(uintptr_t)g->values[v].data;
        if ((uintptr_t)in[i].data % ALIGNMENT) {
            size_t bytes = (size_t)lathe_value_bytes(g, v);
            in[i].data = take(m, bytes);
            if (!in[i].data)
                return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "folding node '%s'", node->name);
            memcpy(in[i].data, g->values[v].data, bytes);
        }
        in_list[i] = &in[i];
    }
    for (uint32_t i = 0; i < node->n_out; i++) {
        results[i] = NULL;
        if (node->out[i] == LATHE_NONE)
            continue;
        if (!describe(g, node->out[i], &out[i]))
            return LATHE_UNSUPPORTED;
        size_t bytes = (size_t)lathe_value_bytes(g, node->out[i]);
        out[i].data = take(m, bytes);
        results[i] = lathe_arena_alloc(g->arena, bytes);
        if (!out[i].data || !results[i])
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "folding node '%s'", node->name);
        out_list[i] = &out[i];
    }
    struct lathe_op_call call = {.attrs = lathe_node_attrs(g, n),
                                 .in = in_list,
                                 .out = out_list,
                                 .n_in = node->n_in,
                                 .n_out = node->n_out,
                                 .team = {0, 1, NULL},
                                 .kernels = &kernels};
    size_t scratch = info->scratch ? info->scratch(&call) : 0;
    call.scratch = take(m, scratch);
    if (!call.scratch)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "folding node '%s'", node->name);
    LATHE_TRY(info->run(&call));
    for (uint32_t i = 0; i < node->n_out; i++)
        if (results[i])
            memcpy(results[i], out[i].data, (size_t)lathe_value_bytes(g, node->out[i]));
    return LATHE_OK;
}

/* The result has the same bits from every kernel: one bucket may compute what another one folds. */
static bool is_exact(const struct lathe_graph *g, const struct lathe_node *node) {
    switch (node->op) {
    case LATHE_OP_RESHAPE:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
    case LATHE_OP_CONCAT:
    case LATHE_OP_EXPAND:
    case LATHE_OP_TILE:
    case LATHE_OP_GATHER:
    case LATHE_OP_CAST:
    case LATHE_OP_WHERE:
    case LATHE_OP_PAD:
    case LATHE_OP_FILL:
        return true;
    default:
        break;
    }
    for (uint32_t i = 0; i < node->n_in; i++)
        if (node->in[i] != LATHE_NONE && lathe_dtype_is_float(g->values[node->in[i]].dtype))
            return false;
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && lathe_dtype_is_float(g->values[node->out[i]].dtype))
            return false;
    return true;
}

static enum lathe_status fold_node(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_op_info *info = lathe_op_info(g->nodes[n].op);
    void *results[MOST_OUTPUTS];
    if (!foldable(g, &g->nodes[n], info) || (ctx->options && ctx->options->exact_folds && !is_exact(g, &g->nodes[n])))
        return LATHE_OK;
    if (g->nodes[n].op == LATHE_OP_RESHAPE) {
        results[0] = (void *)(uintptr_t)g->values[g->nodes[n].in[0]].data; /* the same elements */
    } else {
        struct call_memory m = {.count = 0};
        enum lathe_status status = compute(ctx, n, info, results, &m);
        while (m.count)
            free(m.owned[--m.count]);
        if (status == LATHE_INTERNAL && ctx->diag && ctx->diag->message == LATHE_MSG_NO_MEMORY)
            return status;
        if (status != LATHE_OK) /* what cannot be computed now says so when it runs */
            return LATHE_OK;
    }
    for (uint32_t i = 0; i < g->nodes[n].n_out; i++)
        if (g->nodes[n].out[i] != LATHE_NONE)
            lathe_value_make_constant(g, g->nodes[n].out[i], results[i]);
    lathe_graph_remove_node(g, n);
    ctx->changes++;
    return LATHE_OK;
}

enum lathe_status lathe_pass_fold_constants(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    /* Removing a node here may remove producers before it, never nodes behind it. */
    LATHE_FOR_NODES_SAFE(g, n, following) {
        if (!fold_content(ctx, n))
            LATHE_TRY(fold_node(ctx, n));
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "folding constants") : LATHE_OK;
}
