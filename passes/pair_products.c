/* What the fast inner product wants of f32 layers (gemm_f32_fip in kernels/kernel.h): for each column of the weights
 * minus the sum of its w1 w2, and how large the weights are. For targets that add beside multiplying; others ignore it.
 * Weights of which a column is much smaller than the others stay as they are: its results would carry the roundings of
 * theirs.
 *
 * Distilbert f32, 2 threads, Zen 5, without and with it, ms at 1, 8, 12, 64 tokens: 2.06 2.13 2.29 9.98, 2.20 2.07 2.23
 * 8.16; at 256 in another run 40.7, 32.3. (Of few rows memory sets the pace, and all numbers of rows have the same
 * bits.) Error against the source, largest and rms of the output's: minilm-l6 2.9e-6, 1.3e-6 and 4.6e-6, 1.7e-6. */
#include "match.h"
#include "target.h"
#include "weight_reader.h"

#include "ops_enums.h"

#include <math.h>

#define COLUMNS  16     /* read at a time; a panel */
#define SMALLEST 0.0625 /* root of the mean square of a column, against that of all weights */

/* False when the weights do not suit. */
static bool sum_pairs(const struct lathe_weight_reader *weights, float *columns, float *w_pairs, double *mean) {
    double all = 0, least = INFINITY;
    for (int64_t first = 0; first < weights->n; first += COLUMNS) {
        lathe_weight_reader_columns(weights, first, COLUMNS, columns);
        for (int64_t c = 0; c < COLUMNS; c++) {
            const float *w = columns + c * weights->k;
            double squares = 0, pairs = 0;
            for (int64_t t = 0; t < weights->k; t++)
                squares += (double)w[t] * (double)w[t];
            for (int64_t t = 1; t < weights->k / 3 * 3; t += 3)
                pairs += (double)w[t] * (double)w[t + 1];
            w_pairs[first + c] = (float)-pairs;
            all += squares;
            least = squares < least ? squares : least;
        }
    }
    double own = least / (double)weights->k;
    *mean = all / (double)(weights->k * weights->n);
    return isfinite(all) && *mean > 1e-30 && own >= SMALLEST * SMALLEST * *mean;
}

enum lathe_status lathe_pass_pair_products(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    const struct lathe_pass_options *options = ctx->options;
    if (options && options->int8 && !options->quantize)
        return LATHE_OK; /* they may become others */
    if (!ctx->target || !(ctx->target->features & LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS)))
        return LATHE_OK;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    struct lathe_weight_reader *weights = lathe_arena_alloc(ctx->scratch, sizeof *weights);
    for (uint32_t i = 0; weights && i < count && !g->out_of_memory; i++) {
        lathe_node_id n = list[i];
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        if (g->nodes[n].n_in > 4 || lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1) > 1 ||
            !lathe_weight_reader_open(g, n, ctx->scratch, weights) || weights->n % COLUMNS || weights->k < 3)
            continue;
        float *columns = lathe_arena_alloc_array(ctx->scratch, (size_t)weights->k, COLUMNS * sizeof *columns);
        float *w_pairs = lathe_arena_alloc_array(g->arena, (size_t)weights->n, sizeof *w_pairs);
        double mean;
        g->out_of_memory |= !columns || !w_pairs;
        if (g->out_of_memory || !sum_pairs(weights, columns, w_pairs, &mean))
            continue;
        int size;
        (void)frexp(mean, &size);
        lathe_value_id in[5] = {g->nodes[n].in[0], g->nodes[n].in[1], LATHE_NONE, LATHE_NONE, LATHE_NONE};
        for (uint32_t k = 2; k < g->nodes[n].n_in; k++)
            in[k] = g->nodes[n].in[k];
        in[4] = lathe_graph_add_constant(g, g->nodes[n].name, LATHE_F32, 1, &weights->n, w_pairs);
        if (in[4] == LATHE_NONE)
            continue;
        lathe_node_set_inputs(g, n, in, 5);
        lathe_node_set_int(g, n, LATHE_ATTR_W_EXPONENT, size >> 1);
        ctx->changes++;
    }
    return weights && !g->out_of_memory ? LATHE_OK
                                        : lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "pair_products: out of memory");
}
