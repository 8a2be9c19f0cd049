/* Attention whose two products run in fewer bits, where that pays: the attribute `bits`, nothing else of the graph
 * changes. The report has a line for each attention.
 *   quantize_attention  --precision int8 and auto: integers (runtime/kernels/attention_q8_scheme.h) on targets with
 *                       8-bit dot products, and with AVX2, where pairs of 16-bit numbers are multiplied (minilm-l6 on a
 *                       Zen 5 kept to AVX2: equal up to 64 tokens, 3 % of the whole at 128, 14 % at 512)
 *   round_attention     --precision bf16 without a cast policy: bf16 (runtime/kernels/kernel.h) on targets with dot
 *                       products of it
 * `--disable` of either keeps all of them in f32. */
#include "calibration.h"
#include "kernel.h"
#include "match.h"
#include "report.h"

#include "ops_enums.h"

#include <math.h>
#include <stdio.h>

#define MAX_DEPTH 16
#define MAX_SCALE 1e3 /* a larger one makes masks */
#define MIN_HEAD  8   /* with fewer columns a score costs more to exponentiate than to compute */

/* Does v depend on what the inputs hold, and not on their shapes alone? */
static bool reads_input(struct lathe_pass_ctx *ctx, lathe_value_id v) {
    struct lathe_graph *g = ctx->graph;
    uint8_t *seen = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *seen);
    lathe_value_id *next = lathe_arena_alloc_array(ctx->scratch, (size_t)g->value_count + 1, sizeof *next);
    uint32_t count = 0;
    g->out_of_memory |= !seen || !next;
    if (v == LATHE_NONE || g->out_of_memory)
        return false;
    next[count++] = v;
    while (count) {
        v = next[--count];
        lathe_node_id n = g->values[v].producer;
        if (lathe_value_is_constant(g, v))
            continue;
        if (n == LATHE_NONE)
            return true;
        for (uint32_t i = 0; i < g->nodes[n].n_in; i++) {
            lathe_value_id x = g->nodes[n].in[i];
            if (x != LATHE_NONE && !seen[x]) {
                seen[x] = 1;
                next[count++] = x;
            }
        }
    }
    return false;
}

/* One number for all keys of a query. */
static bool is_of_queries(const struct lathe_graph *g, lathe_value_id v) {
    int64_t size;
    return g->values[v].rank > 0 && lathe_value_dim_is(g, v, -1, &size) && size == 1;
}

/* Are these scores of products, in which no number stands for a masked key? Sums, scaled ones and moves of them are,
 * and a selection that is the same for all keys: it takes whole queries. `key`: the axis of keys of v, the last one,
 * has not moved. */
static bool is_of_products(struct lathe_graph *g, lathe_value_id v, bool key, int depth) {
    double number;
    int64_t size;
    lathe_value_id x;
    lathe_node_id n = v == LATHE_NONE ? LATHE_NONE : g->values[v].producer;
    if (n == LATHE_NONE || depth == 0)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    switch (node->op) {
    case LATHE_OP_MATMUL: /* (masks of queries and keys are multiplied over an axis of 1) */
        return lathe_value_dim_is(g, node->in[0], lathe_attr_int(&attrs, LATHE_ATTR_TRANS_A, 0) ? -2 : -1, &size) &&
               size >= MIN_HEAD;
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_Q8:
        return true;
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        return is_of_products(g, node->in[0], key, depth - 1) && is_of_products(g, node->in[1], key, depth - 1);
    case LATHE_OP_MUL:
    case LATHE_OP_DIV:
        return lathe_match_scaled(g, n, &x, &number) && fabs(number) <= MAX_SCALE &&
               is_of_products(g, x, key, depth - 1);
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
        return is_of_products(g, node->in[0], false, depth - 1);
    case LATHE_OP_RESHAPE:
        return is_of_products(
            g, node->in[0],
            key && lathe_match_dim_equal(g, lathe_value_dim(g, v, -1), lathe_value_dim(g, node->in[0], -1)), depth - 1);
    case LATHE_OP_GATHER_ELEMENTS: /* (what is added may be a selection of whole queries) */
        return is_of_products(g, node->in[0], false, depth - 1) &&
               (node->n_in < 3 || is_of_products(g, node->in[2], key, depth - 1) ||
                (key && is_of_queries(g, node->in[2])));
    case LATHE_OP_WHERE:
        return key && is_of_queries(g, node->in[0]) && lathe_match_number(g, node->in[2], &number) &&
               is_of_products(g, node->in[1], key, depth - 1);
    default:
        return false;
    }
}

static const char *not_in_integers(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    const struct lathe_node *node = &ctx->graph->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(ctx->graph, n);
    if (ctx->options->quantize->attention_excluded)
        return ctx->options->quantize->attention_excluded;
    if (lathe_attr_float(&attrs, LATHE_ATTR_SOFTCAP, 0.0) != 0.0)
        return "its scores go through a soft cap";
    if (!(lathe_attr_float(&attrs, LATHE_ATTR_SCALE, 1.0) > 0.0))
        return "its scores are scaled by no positive number";
    lathe_value_id mask = node->n_in > 4 ? node->in[4] : LATHE_NONE;
    if (reads_input(ctx, mask) && !is_of_products(ctx->graph, mask, true, MAX_DEPTH))
        return "its mask is computed from the inputs: masked keys would have a part in the ranges";
    return NULL;
}

struct form {
    const char *pass;
    int64_t bits, max_head;
    uint64_t pays; /* with one of these features */
    const char *lacks, *scheme, *scales;
    const char *(*why_not)(struct lathe_pass_ctx *ctx, lathe_node_id n); /* more conditions; NULL: none */
};
static const struct form integers = {"quantize_attention",
                                     8,
                                     LATHE_Q8_MAX_HEAD,
                                     LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI) | LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI) |
                                         LATHE_CPU_MASK(LATHE_CPU_AVX2),
                                     "integers pay with 8-bit dot products or AVX2, which the target lacks",
                                     "u8 keys a column, s8 queries a row, 8-bit weights, 8-bit values a column",
                                     "scales of each sequence's own keys and values",
                                     not_in_integers};
static const struct form bf16 = {"round_attention",
                                 16,
                                 INT32_MAX,
                                 LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16),
                                 "bf16 pays with dot products of it, which the target lacks",
                                 "bf16 queries, keys, values and weights, f32 scores and sums",
                                 "its products",
                                 NULL};

/* NULL when its products should be in that form, else why not. */
static const char *why_not(struct lathe_pass_ctx *ctx, const struct form *form, lathe_node_id n, char *buffer,
                           size_t size) {
    const struct lathe_node *node = &ctx->graph->nodes[n];
    struct lathe_attrs attrs = lathe_node_attrs(ctx->graph, n);
    int64_t d = lathe_attr_int(&attrs, LATHE_ATTR_HEAD_DIM, 0);
    if (!(ctx->target->features & form->pays))
        return form->lacks;
    if (d < MIN_HEAD || d > form->max_head) {
        snprintf(buffer, size, "heads of %lld columns: fewer bits pay from %d on, and %d bits serve up to %lld",
                 (long long)d, MIN_HEAD, (int)form->bits, (long long)form->max_head);
        return buffer;
    }
    if (lathe_attr_int(&attrs, LATHE_ATTR_START, -1) >= 0 || (node->n_in > 5 && node->in[5] != LATHE_NONE))
        return "one query a sequence: the products are less work than rounding its keys";
    return form->why_not ? form->why_not(ctx, n) : NULL;
}

static enum lathe_status narrow(struct lathe_pass_ctx *ctx, const struct form *form) {
    struct lathe_graph *g = ctx->graph;
    LATHE_FOR_NODES(g, n) {
        enum lathe_op op = g->nodes[n].op;
        if (op != LATHE_OP_ATTENTION && op != LATHE_OP_ATTENTION_ROWS)
            continue;
        char buffer[160];
        const char *why = why_not(ctx, form, n, buffer, sizeof buffer), *name = g->nodes[n].name;
        if (ctx->report)
            lathe_report_quantization(ctx->report, name, why ? "attention in f32" : form->scheme, NAN, !why,
                                      why ? why : form->scales);
        if (why || g->out_of_memory)
            continue;
        if (ctx->report && form->bits == 16)
            lathe_report_cast(ctx->report, "product", name, lathe_op_info(op)->name);
        lathe_node_set_int(g, n, LATHE_ATTR_BITS, form->bits);
        ctx->changes++;
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", form->pass) : LATHE_OK;
}

enum lathe_status lathe_pass_quantize_attention(struct lathe_pass_ctx *ctx) {
    return ctx->options && ctx->options->quantize ? narrow(ctx, &integers) : LATHE_OK;
}

enum lathe_status lathe_pass_round_attention(struct lathe_pass_ctx *ctx) {
    return ctx->options && ctx->options->bf16_attention ? narrow(ctx, &bf16) : LATHE_OK;
}
