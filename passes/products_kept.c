#include "products_kept.h"

#include "report.h"

static const char *why_kept(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_MATMUL_NBITS:
        return "reused: n-bit weights as the source has them, sums in f32";
    case LATHE_OP_MATMUL_INTEGER:
        return "reused: an integer product as the source has it";
    case LATHE_OP_MATMUL:
    case LATHE_OP_GEMM:
        return "no linear layer: the near misses tell why";
    case LATHE_OP_CONV:
        return "a convolution";
    default:
        return NULL;
    }
}

void lathe_tell_products_kept(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    if (!ctx->report)
        return;
    LATHE_FOR_NODES(g, n) {
        const struct lathe_node *node = lathe_node_at(g, n);
        const char *why = why_kept(node->op);
        if (why && node->n_in > 1 && lathe_value_is_constant(g, node->in[1]))
            lathe_report_quantization(ctx->report, node->name, "as it was", 0, false, why);
    }
}
