/* Linear layers on constant weights become linear_q8: signed 8-bit weights with a scale for each output column, inputs
 * quantized row by row with a zero point while they run. Weights that the source has in 8 bits keep their integers and
 * scales. What is not worth it or loses too much stays in f32, and the report says which layer and why. Works only with
 * a calibration (--precision int8 or auto). */
#include "bound_sums.h"
#include "calibration.h"
#include "kernel_q8.h"
#include "match.h"
#include "products_kept.h"
#include "quantize_weights.h"
#include "report.h"
#include "reuse_weights.h"

#include "ops_enums.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_N 16 /* a panel: with fewer columns most of it is padding */
#define MIN_K 16
/* Sums of several groups of 4 in 16 bits bind the weights the more the longer they are (bound_sums.h). A layer whose
 * error is larger than the first takes shorter ones, if that takes the second share of its error away at least. All
 * products of MiniLM-L6 are below 0.02 with 4 groups, and its cosine with f32 as u8s7 has it. */
#define SUMS_ERROR 0.025
#define SUMS_GAIN  0.1
/* With inputs of 7 bits in pairs (u8s8_fip) a layer may have this error, about twice that of 8 bits; else it is u8s8.
 */
#define PAIRS_ERROR 0.02
/* On one row a sequence, smaller weights cost nothing that matters. A matrix of 768 x 768 does: short inputs wait for
 * memory, and the three of distilbert (layer 5, pre_classifier) in f32 were 11 % of the bytes of a run. */
#define ONCE_WEIGHTS  100000
#define MOST_ROWS     2048  /* of the groups of a layer */
#define LARGEST_RANGE 1e30f /* a constant of a mask, no activation */

/* Layers that share a weight share its 8-bit form. */
struct lathe_quantized_weight {
    lathe_value_id weight;
    bool transposed, done, reused;
    unsigned bits;        /* of the inputs */
    unsigned sums;        /* groups whose products fit 16 bits together, when that is of use */
    double longer;        /* the error with sums twice as long, which were given up; 0: none were */
    double paired;        /* the error with pairs, which were given up; 0: they were not */
    bool narrow;          /* no weight is beyond LATHE_Q8_NARROW, and that is of use */
    lathe_value_id table; /* the constant, when it is looked up as well; LATHE_NONE */
    char rounded[96];     /* why numbers in few bits were rounded anew; empty: they were not */
    struct lathe_calibration_input pooled;
    struct lathe_q8_layer layer;
    lathe_value_id w, w_scale, w_sum, w_zero, x_scale, order, w_pairs; /* of this run */
};

static bool is_transposed(const struct lathe_graph *g, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, LATHE_ATTR_TRANS_B, 0) != 0;
}

static int64_t groups_of(const struct lathe_graph *g, lathe_node_id n) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, LATHE_ATTR_GROUP, 1);
}

/* What was seen at the input of n, in rows of the weight's K: with groups each row of x is as many, of one weight for
 * all. Its range is that of all columns. False when nothing was, or memory runs out. */
static bool input_of(struct lathe_pass_ctx *ctx, lathe_node_id n, struct lathe_calibration_input *out) {
    int64_t groups = groups_of(ctx->graph, n);
    const struct lathe_calibration_input *seen =
        lathe_calibration_of(ctx->options->quantize->calibration, ctx->graph->nodes[n].in[0]);
    if (!seen)
        return false;
    *out = *seen;
    if (groups <= 1)
        return true;
    out->k /= groups;
    out->rows *= groups;
    out->seen *= groups;
    out->absmax = lathe_arena_alloc_array(ctx->graph->arena, (size_t)out->k, sizeof *out->absmax);
    if (out->rows > MOST_ROWS) { /* each group as often */
        out->sample = lathe_arena_alloc_array(ctx->scratch, MOST_ROWS, (size_t)out->k * sizeof *out->sample);
        for (int64_t i = 0; out->sample && i < MOST_ROWS; i++)
            memcpy(out->sample + i * out->k, seen->sample + i * seen->rows / MOST_ROWS * seen->k + i % groups * out->k,
                   (size_t)out->k * sizeof *out->sample);
        out->rows = MOST_ROWS;
    }
    ctx->graph->out_of_memory |= !out->absmax || !out->sample;
    for (int64_t i = 0; out->absmax && i < seen->k; i++) {
        float *most = &out->absmax[i % out->k];
        *most = i < out->k || seen->absmax[i] > *most ? seen->absmax[i] : *most;
    }
    return !ctx->graph->out_of_memory;
}

/* One row a sequence: [batch, K], where batch is the first axis of the inputs. */
static bool runs_once(const struct lathe_graph *g, lathe_value_id x) {
    const struct lathe_value *v = &g->values[x];
    if (v->rank != 2 || g->input_count == 0 || g->values[g->inputs[0]].rank < 2)
        return false;
    return lathe_match_dim_equal(g, v->dims[0], g->values[g->inputs[0]].dims[0]);
}

/* The source has them in 8 bits or fewer: in f32 they would be four times as large. */
static bool are_bytes(const struct lathe_weight_reader *weights) {
    for (uint32_t i = 0; i < weights->part_count; i++)
        if (!weights->parts[i].scaled || lathe_dtype_bytes(weights->parts[i].dtype) > 1)
            return false;
    return true;
}

/* NULL when the layer can and should be in 8 bits, else why not. */
static const char *why_not(struct lathe_pass_ctx *ctx, lathe_node_id n, const struct lathe_weight_reader *weights,
                           char *buffer, size_t size) {
    const struct lathe_graph *g = ctx->graph;
    const struct lathe_calibration_input *seen =
        lathe_calibration_of(ctx->options->quantize->calibration, g->nodes[n].in[0]);
    if ((weights->n < MIN_N || weights->k < MIN_K) && !are_bytes(weights)) {
        snprintf(buffer, size, "small: %lld x %lld, 8 bits pay from %d x %d on", (long long)weights->k,
                 (long long)weights->n, MIN_K, MIN_N);
        return buffer;
    }
    if (weights->k > (int64_t)LATHE_Q8_MAX_K) {
        snprintf(buffer, size, "sums over %lld products could leave 32 bits (limit %d)", (long long)weights->k,
                 (int)LATHE_Q8_MAX_K);
        return buffer;
    }
    if (runs_once(g, g->nodes[n].in[0]) && !are_bytes(weights) && weights->k * weights->n < ONCE_WEIGHTS)
        return "runs on one row a sequence: little work, and close to the output";
    if (!seen || seen->rows < 1)
        return "the calibration has no row for it";
    if (!seen->finite)
        return "its input has an infinity or NaN";
    if (seen->high > LARGEST_RANGE || seen->low < -LARGEST_RANGE) {
        snprintf(buffer, size, "its input spans %g to %g: constants of a mask reach it", (double)seen->low,
                 (double)seen->high);
        return buffer;
    }
    return NULL;
}

/* ---- layers with one weight */

/* The samples of all layers with this weight as one. */
static bool pool_samples(struct lathe_pass_ctx *ctx, const lathe_node_id *list, uint32_t count,
                         struct lathe_quantized_weight *s) {
    const struct lathe_graph *g = ctx->graph;
    struct lathe_calibration_input seen, first = {.rows = 0};
    int64_t rows = 0;
    uint32_t users = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (g->nodes[list[i]].in[1] != s->weight || is_transposed(g, list[i]) != s->transposed)
            continue;
        if (!input_of(ctx, list[i], &seen) || !seen.finite || seen.rows < 1 || (users && seen.k != first.k))
            continue;
        first = users ? first : seen;
        rows += seen.rows;
        users++;
    }
    s->pooled = first;
    if (users < 2)
        return users > 0;
    int64_t k = first.k, at = 0, most = first.rows * 2;
    int64_t step = (rows + most - 1) / most;
    float *sample = lathe_arena_alloc_array(ctx->scratch, (size_t)rows, (size_t)k * sizeof *sample);
    float *absmax = lathe_arena_alloc_array(ctx->scratch, (size_t)k, sizeof *absmax);
    if (!sample || !absmax)
        return false;
    int64_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (g->nodes[list[i]].in[1] != s->weight || is_transposed(g, list[i]) != s->transposed)
            continue;
        if (!input_of(ctx, list[i], &seen) || !seen.finite || seen.rows < 1 || seen.k != k)
            continue;
        for (int64_t c = 0; c < k; c++)
            absmax[c] = seen.absmax[c] > absmax[c] ? seen.absmax[c] : absmax[c];
        for (int64_t r = 0; r < seen.rows; r++, row++)
            if (row % step == 0)
                memcpy(sample + at++ * k, seen.sample + r * k, (size_t)k * sizeof *sample);
    }
    s->pooled.sample = sample;
    s->pooled.absmax = absmax;
    s->pooled.rows = at;
    return true;
}

/* What gemm_fip wants besides. */
static bool make_pairs(struct lathe_graph *g, const struct lathe_weight_reader *weights, const char *name,
                       struct lathe_quantized_weight *s) {
    int32_t *pairs = lathe_arena_alloc_array(g->arena, (size_t)weights->n, sizeof *pairs);
    for (int64_t i = 0; pairs && i < weights->n; i++)
        pairs[i] = lathe_fip_column(s->layer.w + i * weights->k, (size_t)weights->k);
    if (pairs) {
        s->order = lathe_graph_add_constant(g, name, LATHE_U8, 1, &weights->k, s->layer.order);
        s->w_pairs = lathe_graph_add_constant(g, name, LATHE_I32, 1, &weights->n, pairs);
    }
    return pairs && s->order != LATHE_NONE && s->w_pairs != LATHE_NONE;
}

static bool make_constants(struct lathe_graph *g, const struct lathe_weight_reader *weights, const char *name,
                           struct lathe_quantized_weight *s) {
    const int64_t matrix[2] = {weights->n, weights->k};
    const struct lathe_q8_layer *l = &s->layer;
    const int64_t cells[3] = {(weights->n + 15) / 16, l->blocks, 16};
    s->w = lathe_graph_add_constant(g, name, LATHE_I8, 2, matrix, l->w);
    s->w_zero = LATHE_NONE;
    if (l->block) {
        s->w_scale = lathe_graph_add_constant(g, name, LATHE_F32, 3, cells, l->cell_scale);
        s->w_sum = lathe_graph_add_constant(g, name, LATHE_F32, 1, &weights->n, l->scaled_sum);
        if (l->cell_zero)
            s->w_zero = lathe_graph_add_constant(g, name, LATHE_I8, 3, cells, l->cell_zero);
    } else {
        s->w_scale = lathe_graph_add_constant(g, name, LATHE_F32, 1, &weights->n, l->w_scale);
        s->w_sum = lathe_graph_add_constant(g, name, LATHE_I32, 1, &weights->n, l->w_sum);
    }
    s->order = s->w_pairs = LATHE_NONE;
    if (l->order && !make_pairs(g, weights, name, s))
        return false;
    s->x_scale =
        s->layer.x_scale ? lathe_graph_add_constant(g, name, LATHE_F32, 1, &weights->k, s->layer.x_scale) : LATHE_NONE;
    return s->w != LATHE_NONE && s->w_scale != LATHE_NONE && s->w_sum != LATHE_NONE && !g->out_of_memory;
}

/* The layer's bias with the mean error taken out. */
static lathe_value_id shifted_bias(struct lathe_graph *g, lathe_node_id n, int64_t count, const float *shift) {
    lathe_value_id bias = g->nodes[n].n_in > 2 ? g->nodes[n].in[2] : LATHE_NONE;
    if (bias != LATHE_NONE && (!lathe_value_is_constant(g, bias) || g->values[bias].dtype != LATHE_F32))
        return bias;
    float *data = lathe_arena_alloc_array(g->arena, (size_t)count, sizeof *data);
    if (!data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    if (bias != LATHE_NONE)
        memcpy(data, g->values[bias].data, (size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++)
        data[i] += shift[i];
    return lathe_graph_add_constant(g, g->nodes[n].name, LATHE_F32, 1, &count, data);
}

static void convert(struct lathe_pass_ctx *ctx, lathe_node_id n, const struct lathe_quantized_weight *s,
                    int64_t columns) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id old = g->nodes[n].in[1];
    lathe_value_id residual = g->nodes[n].n_in > 3 ? g->nodes[n].in[3] : LATHE_NONE;
    lathe_value_id bias = g->nodes[n].n_in > 2 ? g->nodes[n].in[2] : LATHE_NONE;
    lathe_value_id in[10] = {g->nodes[n].in[0],
                             s->w,
                             s->w_scale,
                             s->w_sum,
                             s->reused || s->table != LATHE_NONE ? bias : shifted_bias(g, n, columns, s->layer.shift),
                             residual,
                             s->x_scale,
                             s->w_zero,
                             s->order,
                             s->w_pairs};
    uint32_t n_in = s->order != LATHE_NONE     ? 10
                    : s->w_zero != LATHE_NONE  ? 8
                    : s->x_scale != LATHE_NONE ? 7
                    : residual != LATHE_NONE   ? 6
                                               : 5;
    lathe_node_set_op(g, n, LATHE_OP_LINEAR_Q8);
    lathe_node_set_inputs(g, n, in, n_in);
    lathe_node_set_int(g, n, LATHE_ATTR_TRANS_B, 1);
    lathe_node_set_int(g, n, LATHE_ATTR_BITS, s->bits);
    if (s->narrow)
        lathe_node_set_int(g, n, LATHE_ATTR_MAX, LATHE_Q8_NARROW);
    if (s->sums)
        lathe_node_set_int(g, n, LATHE_ATTR_SUM16, s->sums);
    if (s->layer.block)
        lathe_node_set_int(g, n, LATHE_ATTR_BLOCK_SIZE, s->layer.block);
    if (s->layer.halves)
        lathe_node_set_int(g, n, LATHE_ATTR_W_BITS, 4);
    lathe_match_drop_unused(g, old);
    ctx->changes++;
}

/* ---- report */

static void tell(struct lathe_pass_ctx *ctx, lathe_node_id n, const char *scheme, double error, bool kept,
                 const char *why) {
    if (ctx->report)
        lathe_report_quantization(ctx->report, ctx->graph->nodes[n].name, scheme, error, kept, why);
}

static void tell_quantized(struct lathe_pass_ctx *ctx, lathe_node_id n, const struct lathe_quantized_weight *s) {
    const struct lathe_calibration_input *seen =
        lathe_calibration_of(ctx->options->quantize->calibration, ctx->graph->nodes[n].in[0]);
    char scheme[96], why[640], smoothing[48] = "", weights[256], sums[96] = "";
    if (s->layer.block)
        snprintf(scheme, sizeof scheme, "%s weights a column and block of %lld, u%u inputs a row",
                 s->layer.halves ? "4-bit" : "s8", (long long)s->layer.block, s->bits);
    else if (s->layer.order)
        snprintf(scheme, sizeof scheme, "s8 weights a column, u8 inputs a row, s7 and u7 in pairs");
    else
        snprintf(scheme, sizeof scheme, "s%u weights a column, u%u inputs a row", s->narrow ? 7 : 8, s->bits);
    if (s->sums && s->longer > 0)
        snprintf(sums, sizeof sums, ", products of %u x 4 in 16 bits (error of %u x 4: %.4f)", s->sums, 2 * s->sums,
                 s->longer);
    else if (s->paired > 0)
        snprintf(sums, sizeof sums, ", no pairs of 7 bits (their error: %.4f)", s->paired);
    else if (s->sums)
        snprintf(sums, sizeof sums, ", products of %u x 4 in 16 bits", s->sums);
    if (s->layer.x_scale && s->layer.block)
        snprintf(smoothing, sizeof smoothing, ", smoothed by a power of two a block");
    else if (s->layer.x_scale)
        snprintf(smoothing, sizeof smoothing, ", smoothed with alpha %g", s->layer.alpha);
    if (s->reused)
        snprintf(weights, sizeof weights, "weights reused: integers and scales of the source");
    else if (s->table != LATHE_NONE)
        snprintf(weights, sizeof weights, "weights rounded to the nearest: they are a table of look-ups too");
    else
        snprintf(weights, sizeof weights, "rounded for low error%s%s",
                 s->rounded[0] ? ", the source's own rounded anew: " : "", s->rounded);
    snprintf(why, sizeof why, "input %.4g to %.4g over %lld rows%s, %s%s", (double)seen->low, (double)seen->high,
             (long long)seen->seen, smoothing, weights, sums);
    tell(ctx, n, scheme, s->layer.error, true, why);
    const struct lathe_report_stored stored = {.min = s->layer.min,
                                               .max = s->layer.max,
                                               .count = lathe_value_count(ctx->graph, s->weight),
                                               .saturated = s->layer.saturated,
                                               .rounded = s->layer.rounded,
                                               .input_low = (double)seen->low,
                                               .input_high = (double)seen->high};
    if (ctx->report)
        lathe_report_quantized(ctx->report, ctx->graph->nodes[n].name, &stored);
}

/* ---- the pass */

static const struct lathe_q8_settings scheme_settings[] = {
    [LATHE_INT8_U8S8] = {.bits = 8, .weight_max = 127},
    [LATHE_INT8_U8S7] = {.bits = 8, .weight_max = LATHE_Q8_NARROW},
    [LATHE_INT8_U7S8] = {.bits = 7, .weight_max = 127},
    [LATHE_INT8_U7S7_PAIRS] = {.bits = 7, .weight_max = 63},
    [LATHE_INT8_SUM1] = {.bits = 8, .weight_max = 127, .sums = 1},
    [LATHE_INT8_SUM2] = {.bits = 8, .weight_max = 127, .sums = 2},
    [LATHE_INT8_SUM4] = {.bits = 8, .weight_max = 127, .sums = 4},
    [LATHE_INT8_FIP] = {.bits = 8, .weight_max = 127, .pairs = true},
};

/* Does the target multiply bytes as they are, whatever they are? */
static bool has_dot_products(enum lathe_int8_scheme scheme) {
    return scheme == LATHE_INT8_U8S8 || scheme == LATHE_INT8_FIP;
}

static enum lathe_status quantize(struct lathe_pass_ctx *ctx, struct lathe_quantized_layer *layer,
                                  const lathe_node_id *list, uint32_t count, struct lathe_quantized_weight *s,
                                  const struct lathe_weight_reader *weights) {
    lathe_node_id n = layer->node;
    struct lathe_graph *g = ctx->graph;
    enum lathe_int8_scheme scheme = ctx->target->int8_scheme;
    bool narrow = scheme == LATHE_INT8_U7S7_PAIRS;
    struct lathe_q8_settings settings = scheme_settings[scheme];
    settings.jobs = ctx->options->quantize->jobs;
    settings.pairs &= weights->k % 4 == 0 && weights->n % 16 == 0 && groups_of(g, n) == 1 &&
                      !runs_once(g, g->nodes[n].in[0]); /* few rows go through plain products */
    if (!s->done) {
        if (!pool_samples(ctx, list, count, s))
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
        enum lathe_reuse reuse =
            lathe_reuse_weights(weights, narrow ? 64 : 128, g->arena, &s->layer, s->rounded, sizeof s->rounded);
        s->reused = reuse == LATHE_REUSE_WEIGHTS;
        s->table = s->reused || !s->transposed ? LATHE_NONE : lathe_match_table_of(g, s->weight);
        double rounding = 0;
        if (s->table != LATHE_NONE && !lathe_round_weights(weights, narrow ? 63 : 127, g->arena, &s->layer, &rounding))
            s->layer.w = NULL;
        if (!isfinite(rounding))
            s->table = LATHE_NONE;
        settings.given = s->reused || s->table != LATHE_NONE;
        if (settings.given && !s->layer.w)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
        settings.pairs &= !settings.given;
        if (settings.given && !has_dot_products(scheme) &&
            (s->layer.block ? s->layer.high > LATHE_Q8_NARROW
                            : !lathe_sum16_groups(s->layer.w, weights->n, weights->k, settings.bits)))
            settings.bits = 7; /* numbers of the source or of a table: the inputs give way */
        if (s->reused && s->layer.block && s->layer.high <= LATHE_Q8_NARROW)
            settings.bits = 8; /* pairs of products fit 16 bits whatever the scheme */
        if (s->reused && s->layer.block && !lathe_smooth_blocks(weights, &s->pooled, g->arena, &s->layer))
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
        s->bits = settings.bits;
        s->narrow =
            settings.bits == 8 && (scheme == LATHE_INT8_U8S7 || (s->layer.block && s->layer.high <= LATHE_Q8_NARROW));
        LATHE_TRY(lathe_quantize_weights(weights, &s->pooled, &settings, g->arena, &s->layer, ctx->diag));
        while (!settings.given && settings.sums > 1 && s->layer.error > SUMS_ERROR) {
            struct lathe_q8_layer shorter;
            settings.sums /= 2;
            LATHE_TRY(lathe_quantize_weights(weights, &s->pooled, &settings, g->arena, &shorter, ctx->diag));
            if (shorter.error > (1 - SUMS_GAIN) * s->layer.error)
                break;
            s->longer = s->layer.error;
            s->layer = shorter;
        }
        if (settings.pairs && s->layer.error > PAIRS_ERROR) {
            s->paired = s->layer.error;
            settings.pairs = false;
            LATHE_TRY(lathe_quantize_weights(weights, &s->pooled, &settings, g->arena, &s->layer, ctx->diag));
        }
        s->sums = !has_dot_products(scheme) && !s->layer.block ? s->layer.sums : 0;
        s->done = true;
    }
    double budget = ctx->options->quantize->budget;
    char why[160];
    if (!isfinite(s->layer.error)) {
        tell(ctx, n, "f32", 0, false, "its weights or outputs have an infinity or NaN");
        return LATHE_OK;
    }
    if (budget > 0 && s->layer.error > budget) {
        snprintf(why, sizeof why, "in 8 bits its error would be over the budget of %g", budget);
        tell(ctx, n, "f32", s->layer.error, false, why);
        return LATHE_OK;
    }
    layer->candidate = true;
    layer->error = s->layer.error;
    if (layer->excluded) {
        tell(ctx, n, "f32", s->layer.error, false, layer->excluded);
        return LATHE_OK;
    }
    if (s->w == LATHE_NONE && !make_constants(g, weights, g->values[s->weight].name, s))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
    tell_quantized(ctx, n, s);
    convert(ctx, n, s, weights->n);
    return LATHE_OK;
}

/* Room for the records of all layers; those of an earlier run on the same graph stay. */
static bool open_log(struct lathe_pass_ctx *ctx, struct lathe_quantize_log *log, const lathe_node_id *list,
                     uint32_t count) {
    struct lathe_arena *arena = ctx->graph->arena;
    if (!log->weights) {
        log->weights = lathe_arena_alloc_array(arena, (size_t)count + 1, sizeof *log->weights);
        log->layers = lathe_arena_alloc_array(arena, (size_t)count + 1, sizeof *log->layers);
        log->layer_count = count;
        for (uint32_t i = 0; log->layers && i < count; i++)
            log->layers[i].node = list[i];
    }
    for (uint32_t i = 0; log->weights && i < log->weight_count; i++)
        log->weights[i].w = LATHE_NONE;
    return log->weights && log->layers && log->layer_count == count;
}

static struct lathe_quantized_weight *weight_of(struct lathe_quantize_log *log, lathe_value_id weight,
                                                bool transposed) {
    for (uint32_t i = 0; i < log->weight_count; i++)
        if (log->weights[i].weight == weight && log->weights[i].transposed == transposed)
            return &log->weights[i];
    log->weights[log->weight_count] = (struct lathe_quantized_weight){
        .weight = weight, .transposed = transposed, .table = LATHE_NONE, .w = LATHE_NONE, .w_zero = LATHE_NONE};
    return &log->weights[log->weight_count++];
}

bool lathe_weight_is_reused(const struct lathe_pass_options *options, lathe_value_id w) {
    const struct lathe_quantize_log *log = options && options->quantize ? options->quantize->log : NULL;
    for (uint32_t i = 0; log && i < log->weight_count; i++)
        if (log->weights[i].w == w && (log->weights[i].reused || log->weights[i].table != LATHE_NONE))
            return true;
    return false;
}

bool lathe_table_is_weight(const struct lathe_pass_options *options, lathe_value_id table, lathe_value_id *rows,
                           lathe_value_id *scale) {
    const struct lathe_quantize_log *log = options && options->quantize ? options->quantize->log : NULL;
    for (uint32_t i = 0; log && i < log->weight_count; i++)
        if (log->weights[i].table == table && log->weights[i].w != LATHE_NONE) {
            *rows = log->weights[i].w;
            *scale = log->weights[i].w_scale;
            return true;
        }
    return false;
}

enum lathe_status lathe_pass_quantize_linear(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    uint32_t count;
    if (!ctx->options || !ctx->options->quantize)
        return LATHE_OK;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_LINEAR, &count);
    struct lathe_quantize_log *log = ctx->options->quantize->log;
    struct lathe_weight_reader *weights = lathe_arena_alloc(ctx->scratch, sizeof *weights);
    if (!weights || !open_log(ctx, log, list, count))
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
    for (uint32_t i = 0; i < count; i++) {
        lathe_node_id n = list[i];
        char why[160];
        if (!lathe_weight_reader_open(g, n, ctx->scratch, weights)) {
            tell(ctx, n, "f32", 0, false, "its weights are not constant");
            continue;
        }
        const char *reason = why_not(ctx, n, weights, why, sizeof why);
        if (reason) {
            tell(ctx, n, "f32", 0, false, reason);
            continue;
        }
        struct lathe_quantized_weight *s = weight_of(log, g->nodes[n].in[1], is_transposed(g, n));
        LATHE_TRY(quantize(ctx, &log->layers[i], list, count, s, weights));
        if (g->out_of_memory)
            return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_linear: out of memory");
    }
    lathe_tell_products_kept(ctx);
    return LATHE_OK;
}
