/* --precision int8 and auto: attention whose products run in integers where that pays: on targets with 8-bit dot
 * products, and with AVX2, where pairs of 16-bit numbers are multiplied (minilm-l6 on a Zen 5 kept to AVX2: equal up to
 * 64 tokens, 3 % of the whole at 128, 14 % at 512). The scheme is runtime/kernels/attention_q8_scheme.h's; nothing but
 * the attribute `bits` changes in the graph. The report has a line for each attention. `--disable quantize_attention`
 * keeps all of them in f32. */
#include "calibration.h"
#include "kernel.h"
#include "match.h"
#include "report.h"

#include "ops_enums.h"

#include <math.h>
#include <stdio.h>

#define MIN_HEAD 8 /* with fewer columns a score costs more to exponentiate than to compute */

/* Does v depend on what the inputs hold, and not on their shapes alone? `todo` and `seen`: one entry a value, zeros. */
static bool reads_input(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *todo, uint8_t *seen) {
    uint32_t count = 0;
    if (v != LATHE_NONE)
        todo[count++] = v;
    while (count) {
        v = todo[--count];
        lathe_node_id n = g->values[v].producer;
        if (lathe_value_is_constant(g, v))
            continue;
        if (n == LATHE_NONE)
            return true;
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
            lathe_value_id x = g->nodes[n].in[i];
            if (x != LATHE_NONE && !seen[x]) {
                seen[x] = 1;
                todo[count++] = x;
            }
        }
    }
    return false;
}

/* NULL when it can and should be in integers, else why not. */
static const char *why_not(struct lathe_pass_ctx *ctx, lathe_node_id n, lathe_value_id *todo, uint8_t *seen,
                           char *buffer, size_t size) {
    const struct lathe_graph *g = ctx->graph;
    const uint64_t pays =
        LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI) | LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI) | LATHE_CPU_MASK(LATHE_CPU_AVX2);
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    int64_t d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0);
    lathe_value_id mask = node->n_in > 4 ? node->in[4] : LATHE_NONE;
    if (!(ctx->target->features & pays))
        return "integers pay with 8-bit dot products or AVX2, which the target lacks";
    if (ctx->options->quantize->attention_excluded)
        return ctx->options->quantize->attention_excluded;
    if (d < MIN_HEAD || d > LATHE_Q8_MAX_HEAD) {
        snprintf(buffer, size, "heads of %lld columns: integers serve %d to %d", (long long)d, MIN_HEAD,
                 LATHE_Q8_MAX_HEAD);
        return buffer;
    }
    if (lathe_attr_int(&attrs, LATHE_ATTR_START, -1) >= 0 || (node->n_in > 5 && node->in[5] != LATHE_NONE))
        return "one query a sequence: the products are less work than quantizing its keys";
    if (lathe_attr_float(&attrs, LATHE_ATTR_SOFTCAP, 0.0) != 0.0)
        return "its scores go through a soft cap";
    if (!(lathe_attr_float(&attrs, LATHE_ATTR_SCALE, 1.0) > 0.0))
        return "its scores are scaled by no positive number";
    if (reads_input(g, mask, todo, seen))
        return "its mask is computed from the inputs: masked keys would have a part in the ranges";
    return NULL;
}

static enum lathe_status choose(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    char buffer[160];
    uint8_t *seen = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *seen);
    lathe_value_id *todo = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *todo);
    if (!seen || !todo)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_attention: out of memory");
    const char *why = why_not(ctx, n, todo, seen, buffer, sizeof buffer);
    if (ctx->report)
        lathe_report_quantization(ctx->report, g->nodes[n].name,
                                  why ? "attention in f32"
                                      : "u8 keys a column, s8 queries a row, 8-bit weights, "
                                        "8-bit values a column",
                                  NAN, !why, why ? why : "scales of each sequence's own keys and values");
    if (why)
        return LATHE_OK;
    lathe_node_set_int(g, n, LATHE_ATTR_BITS, 8);
    ctx->changes++;
    return LATHE_OK;
}

enum lathe_status lathe_pass_quantize_attention(struct lathe_pass_ctx *ctx) {
    static const enum lathe_op ops[] = {LATHE_OP_ATTENTION, LATHE_OP_ATTENTION_ROWS};
    if (!ctx->options || !ctx->options->quantize)
        return LATHE_OK;
    for (unsigned k = 0; k < 2; k++) {
        uint32_t count;
        lathe_node_id *list = lathe_match_nodes(ctx, ops[k], &count);
        if (count && !list)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_attention: out of memory");
        for (uint32_t i = 0; i < count; i++)
            LATHE_TRY(choose(ctx, list[i]));
    }
    return LATHE_OK;
}
