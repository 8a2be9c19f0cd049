/* --precision bf16 without a cast policy: attention whose products run in bf16 where that pays: on targets with bf16
 * dot products. Queries, keys, values and the weights of softmax are rounded; scores and sums stay in f32
 * (runtime/kernels/kernel.h). Nothing but the attribute `bits` changes in the graph. The report has a line for each
 * attention. `--disable round_attention` keeps all of them in f32. */
#include "match.h"
#include "report.h"

#include "ops_enums.h"

#include <math.h>
#include <stdio.h>

#define MIN_HEAD 8 /* with fewer columns a score costs more to exponentiate than to compute */

/* NULL when it should be in bf16, else why not. */
static const char *why_not(const struct lathe_pass_ctx *ctx, lathe_node_id n, char *buffer, size_t size) {
    const struct lathe_node *node = &ctx->graph->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(ctx->graph, n);
    int64_t d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0);
    if (!(ctx->target->features & LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16)))
        return "bf16 pays with dot products of it, which the target lacks";
    if (d < MIN_HEAD) {
        snprintf(buffer, size, "heads of %lld columns: bf16 pays from %d on", (long long)d, MIN_HEAD);
        return buffer;
    }
    if (lathe_attr_int(&attrs, LATHE_ATTR_START, -1) >= 0 || (node->n_in > 5 && node->in[5] != LATHE_NONE))
        return "one query a sequence: the products are less work than rounding its keys";
    return NULL;
}

enum lathe_status lathe_pass_round_attention(struct lathe_pass_ctx *ctx) {
    static const enum lathe_op ops[] = {LATHE_OP_ATTENTION, LATHE_OP_ATTENTION_ROWS};
    if (!ctx->options || !ctx->options->bf16_attention)
        return LATHE_OK;
    for (unsigned k = 0; k < 2; k++) {
        uint32_t count;
        lathe_node_id *list = lathe_match_nodes(ctx, ops[k], &count);
        if (count && !list)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "round_attention: out of memory");
        for (uint32_t i = 0; i < count; i++) {
            char buffer[160];
            const char *why = why_not(ctx, list[i], buffer, sizeof buffer), *name = ctx->graph->nodes[list[i]].name;
            if (ctx->report)
                lathe_report_quantization(ctx->report, name,
                                          why ? "attention in f32"
                                              : "bf16 queries, keys, values and weights, f32 scores and sums",
                                          NAN, !why, why ? why : "its products");
            if (why)
                continue;
            if (ctx->report)
                lathe_report_cast(ctx->report, "product", name, k == 0 ? "attention" : "attention_rows");
            lathe_node_set_int(ctx->graph, list[i], LATHE_ATTR_BITS, 16);
            ctx->changes++;
        }
    }
    return LATHE_OK;
}
