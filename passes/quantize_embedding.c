/* Large tables of embeddings become rows of signed bytes with a scale each: they are most of a small model's size, and
 * of what a session reads before its first answer. With --precision int8 or auto; tables that the source has in 8 bits
 * stay so in every precision. */
#include "calibration.h"
#include "match.h"
#include "report.h"
#include "stored_table.h"
#include "weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIN_ELEMENTS 1000000 /* smaller ones cost nothing that matters */
#define MOST_TABLES  8

struct byte_table {
    lathe_value_id table, rows, scale;
};

static bool only_looked_up(const struct lathe_graph *g, lathe_value_id table) {
    const struct lathe_value *v = &g->values[table];
    for (uint32_t i = 0; i < v->use_count; i++) {
        const struct lathe_node *user = &g->nodes[v->uses[i]];
        if (user->op != LATHE_OP_EMBEDDING && user->op != LATHE_OP_EMBEDDING_Q8)
            return false;
    }
    return lathe_value_use_total(g, table) == v->use_count;
}

/* NULL when the table can and should be in 8 bits, else why not. */
static const char *why_not(struct lathe_graph *g, lathe_value_id table, int64_t *rows, int64_t *h) {
    if (!lathe_value_is_constant(g, table) || g->values[table].rank != 2 || !lathe_value_dim_is(g, table, 0, rows) ||
        !lathe_value_dim_is(g, table, 1, h))
        return "its table is not constant";
    if (!lathe_dtype_is_float(g->values[table].dtype) || lathe_dtype_bytes(g->values[table].dtype) > 4)
        return "its table is not of floats";
    if (*rows < 1 || *h < 1 || *rows < MIN_ELEMENTS / *h)
        return "its table is small";
    if (!only_looked_up(g, table))
        return "its table is also the matrix of a product";
    return NULL;
}

/* Rows of bytes and their scales; the error relative to the table, infinity when a number is not finite. `x` is room
 * for a row. */
static double quantize_table(const struct lathe_weight_part *table, int64_t rows, float *x, int8_t *q, float *scale) {
    double error = 0, size = 0;
    int64_t h = table->columns;
    for (int64_t r = 0; r < rows; r++, q += h) {
        float most = 0;
        lathe_weight_part_read(table, h, r, 0, h, x);
        for (int64_t i = 0; i < h; i++) {
            if (!isfinite(x[i]))
                return INFINITY;
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        scale[r] = most < 1e-30f ? 1.0f : most / 127.0f;
        for (int64_t i = 0; i < h; i++) {
            float n = nearbyintf(x[i] / scale[r]);
            q[i] = (int8_t)(n > 127 ? 127 : n < -127 ? -127 : n);
            double off = (double)x[i] - (double)q[i] * scale[r];
            error += off * off;
            size += (double)x[i] * x[i];
        }
    }
    return size > 0 ? sqrt(error / size) : 0;
}

static enum lathe_status table_in_bytes(struct lathe_pass_ctx *ctx, lathe_node_id n, struct byte_table *t, int64_t rows,
                                        int64_t h) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_value *v = &g->values[t->table];
    int8_t *q = lathe_arena_alloc_array(g->arena, (size_t)rows, (size_t)h);
    float *scale = lathe_arena_alloc_array(g->arena, (size_t)rows, sizeof *scale);
    float *row = lathe_arena_alloc_array(ctx->scratch, (size_t)h, sizeof *row);
    if (!q || !scale || !row)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_embedding: out of memory");
    const struct lathe_weight_part part = {.data = v->data, .dtype = v->dtype, .columns = h};
    double error = quantize_table(&part, rows, row, q, scale), budget = ctx->options->quantize->budget;
    const char *name = v->name ? v->name : g->nodes[n].name;
    char why[160];
    bool kept = isfinite(error) && !(budget > 0 && error > budget);
    if (kept)
        snprintf(why, sizeof why, "table of %lld rows", (long long)rows);
    else if (isfinite(error))
        snprintf(why, sizeof why, "in 8 bits its error would be over the budget of %g", budget);
    else
        snprintf(why, sizeof why, "its table has an infinity or NaN");
    if (ctx->report)
        lathe_report_quantization(ctx->report, name, kept ? "s8 rows with a scale each" : lathe_dtype_name(v->dtype),
                                  isfinite(error) ? error : 0, kept, why);
    if (!kept)
        return LATHE_OK;
    t->rows = lathe_graph_add_constant(g, name, LATHE_I8, 2, (const int64_t[]){rows, h}, q);
    t->scale = lathe_graph_add_constant(g, name, LATHE_F32, 1, &rows, scale);
    return t->scale == LATHE_NONE || g->out_of_memory
               ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_embedding: out of memory")
               : LATHE_OK;
}

/* Pairs of table and index become triples with the scales. */
static void convert(struct lathe_pass_ctx *ctx, lathe_node_id n, const struct byte_table *tables, uint32_t count) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id in[2 + 3 * MOST_TABLES], old[MOST_TABLES];
    memcpy(in, g->nodes[n].in, 2 * sizeof *in);
    for (uint32_t i = 0; i < count; i++) {
        bool bytes = tables[i].rows != LATHE_NONE;
        old[i] = g->nodes[n].in[2 + 2 * i];
        in[2 + 3 * i] = bytes ? tables[i].rows : old[i];
        in[3 + 3 * i] = bytes ? tables[i].scale : LATHE_NONE;
        in[4 + 3 * i] = g->nodes[n].in[3 + 2 * i];
    }
    lathe_node_set_op(g, n, LATHE_OP_EMBEDDING_Q8);
    lathe_node_set_inputs(g, n, in, 2 + 3 * count);
    for (uint32_t i = 0; i < count; i++)
        lathe_match_drop_unused(g, old[i]);
    ctx->changes++;
}

/* ---- tables that are stored in 8 bits */

static lathe_value_id row_of(struct lathe_graph *g, lathe_value_id y, float value) {
    int64_t dims[2] = {1, 0};
    if (!lathe_value_dim_is(g, y, -1, &dims[1]))
        return LATHE_NONE;
    float *row = lathe_arena_alloc_array(g->arena, (size_t)dims[1], sizeof *row);
    for (int64_t i = 0; row && i < dims[1]; i++)
        row[i] = value;
    g->out_of_memory |= !row;
    return row ? lathe_graph_add_constant(g, "zero_points", LATHE_F32, 2, dims, row) : LATHE_NONE;
}

/* The dequantization of whole tables goes; what their zero points leave becomes a row that is added to every token. */
static void reuse_tables(struct lathe_pass_ctx *ctx, lathe_node_id n) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id in[2 + 3 * MOST_TABLES], old[MOST_TABLES];
    int64_t offsets[MOST_TABLES] = {0};
    uint32_t tables = (g->nodes[n].n_in - 2) / 2, found = 0, count;
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    const int64_t *given = lathe_attr_ints(&attrs, LATHE_ATTR_OFFSETS, &count);
    float shift = 0;
    if (tables >= MOST_TABLES)
        return;
    for (uint32_t i = 0; i < tables && i < count; i++)
        offsets[i] = given[i];
    memcpy(in, g->nodes[n].in, 2 * sizeof *in);
    for (uint32_t i = 0; i < tables; i++) {
        struct lathe_stored_table t;
        old[i] = g->nodes[n].in[2 + 2 * i];
        bool stored = lathe_table_make_bytes(g, old[i], &t);
        in[2 + 3 * i] = stored ? t.rows : old[i];
        in[3 + 3 * i] = stored ? t.scale : LATHE_NONE;
        in[4 + 3 * i] = g->nodes[n].in[3 + 2 * i];
        if (!stored)
            continue;
        shift += t.shift;
        found++;
        if (ctx->report)
            lathe_report_quantization(ctx->report, g->values[t.rows].name, "s8 rows with a scale each", 0, true,
                                      "reused: the table as the source has it");
    }
    if (!found)
        return;
    if (shift != 0) {
        lathe_value_id *last = &in[2 + 3 * tables];
        last[0] = row_of(g, g->nodes[n].out[0] != LATHE_NONE ? g->nodes[n].out[0] : g->nodes[n].out[1], shift);
        last[1] = last[2] = LATHE_NONE;
        offsets[tables++] = -1;
        lathe_node_set_ints(g, n, LATHE_ATTR_OFFSETS, offsets, tables);
    }
    lathe_node_set_op(g, n, LATHE_OP_EMBEDDING_Q8);
    lathe_node_set_inputs(g, n, in, 2 + 3 * tables);
    for (uint32_t i = 0; i < tables - (shift != 0); i++)
        lathe_match_drop_unused(g, old[i]);
    ctx->changes++;
}

static void tell_shared(struct lathe_pass_ctx *ctx, lathe_value_id rows) {
    if (ctx->report)
        lathe_report_quantization(ctx->report, ctx->graph->values[rows].name, "s8 rows with a scale each", 0, true,
                                  "shared with the product that has the table as its matrix");
}

enum lathe_status lathe_pass_quantize_embedding(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    struct byte_table known[MOST_TABLES]; /* one that two operators use is stored once */
    uint32_t count, known_count = 0;
    lathe_node_id *list = lathe_match_nodes(ctx, LATHE_OP_EMBEDDING, &count);
    for (uint32_t i = 0; i < count; i++)
        reuse_tables(ctx, list[i]);
    if (g->out_of_memory)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "quantize_embedding: out of memory");
    if (!ctx->options || !ctx->options->quantize)
        return LATHE_OK;
    list = lathe_match_nodes(ctx, LATHE_OP_EMBEDDING, &count);
    for (uint32_t i = 0; i < count; i++) {
        lathe_node_id n = list[i];
        uint32_t tables = (g->nodes[n].n_in - 2) / 2, found = 0;
        struct byte_table in_bytes[MOST_TABLES];
        for (uint32_t t = 0; tables <= MOST_TABLES && t < tables; t++) {
            struct byte_table *b = &in_bytes[t];
            *b = (struct byte_table){g->nodes[n].in[2 + 2 * t], LATHE_NONE, LATHE_NONE};
            int64_t rows, h;
            if (lathe_table_is_weight(ctx->options, b->table, &b->rows, &b->scale)) {
                tell_shared(ctx, b->rows);
                found++;
                continue;
            }
            if (why_not(g, b->table, &rows, &h))
                continue;
            for (uint32_t k = 0; k < known_count; k++)
                if (known[k].table == b->table)
                    *b = known[k];
            if (b->rows == LATHE_NONE)
                LATHE_TRY(table_in_bytes(ctx, n, b, rows, h));
            if (b->rows != LATHE_NONE && known_count < MOST_TABLES)
                known[known_count++] = *b;
            found += b->rows != LATHE_NONE;
        }
        if (found)
            convert(ctx, n, in_bytes, tables);
    }
    return LATHE_OK;
}
