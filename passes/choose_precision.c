/* --precision bf16: linear layers on constant weights become linear_bf16. Their weights stay what they are in the graph
 * and are rounded when they are packed; attention is narrow_attention.c's; norms, softmax, residual sums and everything
 * else stay in f32. The report has a line for each layer. Does nothing for other precisions. */
#include "kernel_bf16.h"
#include "match.h"
#include "products_kept.h"
#include "report.h"
#include "weight_reader.h"

#include "ops_enums.h"

#include <math.h>
#include <stdio.h>

#define MIN_N   16 /* a panel: with fewer columns most of it is padding */
#define MIN_K   16
#define COLUMNS 16 /* read at a time */

struct rounding {
    double error; /* |rounded - w| / |w| over all weights */
    uint64_t clamped;
    bool finite;
};

/* What packing will do to the weights; false without memory. */
static bool round_weights(struct lathe_pass_ctx *ctx, const struct lathe_weight_reader *weights, struct rounding *out) {
    size_t k = (size_t)weights->k;
    float *columns = lathe_arena_alloc_array(ctx->scratch, k, COLUMNS * sizeof *columns);
    double lost = 0, all = 0;
    *out = (struct rounding){.finite = true};
    if (!columns)
        return false;
    for (int64_t first = 0; first < weights->n; first += COLUMNS) {
        int64_t count = weights->n - first < COLUMNS ? weights->n - first : COLUMNS;
        lathe_weight_reader_columns(weights, first, count, columns);
        for (size_t i = 0; i < k * (size_t)count; i++) {
            uint32_t bits = (uint32_t)lathe_bf16_weight(columns[i]) << 16;
            float rounded;
            memcpy(&rounded, &bits, sizeof rounded);
            double w = columns[i], d = (double)rounded - w;
            lost += d * d;
            all += w * w;
            /* 0x1.ffp127 is where rounding would go to infinity. */
            out->clamped += isfinite(columns[i]) && fabsf(columns[i]) >= 0x1.ffp127f;
        }
    }
    out->finite = isfinite(lost) && isfinite(all);
    out->error = all > 0 && out->finite ? sqrt(lost / all) : 0;
    return true;
}

static void tell(struct lathe_pass_ctx *ctx, lathe_node_id n, const char *scheme, double error, bool kept,
                 const char *why) {
    if (ctx->report)
        lathe_report_quantization(ctx->report, ctx->graph->nodes[n].name, scheme, error, kept, why);
}

static enum lathe_status choose(struct lathe_pass_ctx *ctx, lathe_node_id n, struct lathe_weight_reader *weights) {
    char why[160];
    struct rounding r;
    if (!lathe_weight_reader_open(ctx->graph, n, ctx->scratch, weights)) {
        tell(ctx, n, "f32", 0, false, "its weights are not constant");
        return LATHE_OK;
    }
    if ((weights->n < MIN_N || weights->k < MIN_K) && !ctx->options->cast_all) {
        snprintf(why, sizeof why, "small: %lld x %lld, bf16 pays from %d x %d on", (long long)weights->k,
                 (long long)weights->n, MIN_K, MIN_N);
        tell(ctx, n, "f32", 0, false, why);
        return LATHE_OK;
    }
    if (!round_weights(ctx, weights, &r))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "choose_precision: out of memory");
    if (!r.finite) {
        tell(ctx, n, "f32", 0, false, "its weights have an infinity or NaN");
        return LATHE_OK;
    }
    snprintf(why, sizeof why, "weights rounded, %llu clamped to the largest finite number",
             (unsigned long long)r.clamped);
    tell(ctx, n, "bf16 weights and inputs, f32 sums", r.error, true, why);
    if (r.clamped)
        lathe_pass_warn(ctx, "WEIGHTS_CLAMPED", n, "%llu weights are beyond bf16 and are its largest finite number",
                        (unsigned long long)r.clamped);
    if (ctx->report)
        lathe_report_cast(ctx->report, "product", ctx->graph->nodes[n].name, "linear_bf16");
    lathe_value_id table = lathe_match_table_of(ctx->graph, ctx->graph->nodes[n].in[1]);
    if (table != LATHE_NONE && ctx->report)
        lathe_report_quantization(ctx->report, ctx->graph->values[table].name, "bf16 rows", r.error, true,
                                  "shared with the product that has the table as its matrix");
    lathe_node_set_op(ctx->graph, n, LATHE_OP_LINEAR_BF16);
    ctx->changes++;
    return LATHE_OK;
}

enum lathe_status lathe_pass_choose_precision(struct lathe_pass_ctx *ctx) {
    uint32_t count;
    if (!ctx->options || !ctx->options->bf16)
        return LATHE_OK;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    struct lathe_weight_reader *weights = lathe_arena_alloc(ctx->scratch, sizeof *weights);
    if (!weights || (count && !list))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "choose_precision: out of memory");
    for (uint32_t i = 0; i < count; i++)
        LATHE_TRY(choose(ctx, list[i], weights));
    lathe_tell_products_kept(ctx);
    return LATHE_OK;
}
