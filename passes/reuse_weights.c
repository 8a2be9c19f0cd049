#include "reuse_weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The axis of the stored matrix that K runs along. */
static int k_axis(const struct lathe_weight_part *p) {
    return p->transposed ? 1 : 0;
}

static int number_at(const struct lathe_weight_part *p, int64_t i) {
    return p->dtype == LATHE_I8 ? ((const int8_t *)p->data)[i] : ((const uint8_t *)p->data)[i];
}

static bool is_bytes(const struct lathe_weight_part *p) {
    return p->scaled && (p->dtype == LATHE_I8 || p->dtype == LATHE_U8);
}

/* Columns of one part. False with *low and *high, the range of number - zero, when that does not fit. */
static bool take_part(const struct lathe_weight_reader *r, const struct lathe_weight_part *p, int most,
                      struct lathe_q8_layer *out, int *low, int *high) {
    const struct lathe_weight_grid *g = &p->grid;
    int axis = k_axis(p);
    *low = *high = 0;
    for (int64_t c = 0; c < p->columns; c++) {
        int64_t cell = axis ? lathe_weight_cell(g, c, 0) : lathe_weight_cell(g, 0, c);
        int zero = (int)lathe_weight_zero_at(g, cell);
        int8_t *to = out->w + (p->at + c) * r->k;
        int32_t sum = 0;
        for (int64_t k = 0; k < r->k; k++) {
            int v = number_at(p, axis ? c * r->k + k : k * p->columns + c) - zero;
            *low = v < *low ? v : *low;
            *high = v > *high ? v : *high;
            to[k] = (int8_t)v;
            sum += v;
        }
        out->w_scale[p->at + c] = lathe_weight_scale_at(g, cell);
        out->w_sum[p->at + c] = sum;
    }
    return *low >= -most && *high <= (most > 127 ? 127 : most);
}

enum lathe_reuse lathe_reuse_weights(const struct lathe_weight_reader *weights, int most, struct lathe_arena *arena,
                                     struct lathe_q8_layer *out, char *why, size_t size) {
    uint32_t bytes = 0;
    size_t n = (size_t)weights->n;
    *out = (struct lathe_q8_layer){0};
    for (uint32_t i = 0; i < weights->part_count; i++)
        bytes += is_bytes(&weights->parts[i]);
    if (bytes == 0)
        return LATHE_REUSE_NONE;
    if (bytes < weights->part_count) {
        snprintf(why, size, "only a part of the joined weight is in 8 bits");
        return LATHE_REUSE_REFUSED;
    }
    int64_t block = 0;
    for (uint32_t i = 0; i < weights->part_count; i++) {
        const struct lathe_weight_part *p = &weights->parts[i];
        int64_t own = p->grid.step[k_axis(p)] ? p->grid.block[k_axis(p)] : 0;
        if (own && block && own != block) {
            snprintf(why, size, "parts of the joined weight have blocks of %lld and of %lld", (long long)block,
                     (long long)own);
            return LATHE_REUSE_REFUSED;
        }
        block = own ? own : block;
    }
    bool halves = lathe_weights_fit_halves(weights);
    if (block || halves)
        return lathe_reuse_blocks(weights, block ? block : weights->k, halves, most, arena, out, why, size);
    out->w = lathe_arena_alloc_array(arena, n, (size_t)weights->k);
    out->w_scale = lathe_arena_alloc_array(arena, n, sizeof *out->w_scale);
    out->w_sum = lathe_arena_alloc_array(arena, n, sizeof *out->w_sum);
    out->shift = lathe_arena_alloc_array(arena, n, sizeof *out->shift);
    if (!out->w || !out->w_scale || !out->w_sum || !out->shift) {
        out->w = NULL;
        return LATHE_REUSE_WEIGHTS;
    }
    for (uint32_t i = 0; i < weights->part_count; i++) {
        int low, high;
        if (!take_part(weights, &weights->parts[i], most, out, &low, &high)) {
            if (most > 127) /* zero points beside the numbers, the column one block */
                return lathe_reuse_blocks(weights, weights->k, false, most, arena, out, why, size);
            snprintf(why, size, "less its zero points its integers are %d to %d, beyond %d to %d", low, high, -most,
                     most > 127 ? 127 : most);
            return LATHE_REUSE_REFUSED;
        }
    }
    for (size_t c = 0; c < n; c++)
        if (!isfinite(out->w_scale[c]) || out->w_scale[c] == 0) {
            snprintf(why, size, "a scale is %g", (double)out->w_scale[c]);
            return LATHE_REUSE_REFUSED;
        }
    return LATHE_REUSE_WEIGHTS;
}

bool lathe_round_weights(const struct lathe_weight_reader *weights, int most, struct lathe_arena *arena,
                         struct lathe_q8_layer *out, double *error) {
    size_t n = (size_t)weights->n, k = (size_t)weights->k;
    double lost = 0, all = 0;
    *out = (struct lathe_q8_layer){.w = lathe_arena_alloc_array(arena, n, k),
                                   .w_scale = lathe_arena_alloc_array(arena, n, sizeof(float)),
                                   .w_sum = lathe_arena_alloc_array(arena, n, sizeof(int32_t)),
                                   .shift = lathe_arena_alloc_array(arena, n, sizeof(float))};
    float *column = malloc(k * sizeof *column);
    bool done = out->w && out->w_scale && out->w_sum && out->shift && column;
    for (size_t c = 0; done && c < n; c++) {
        float top = 0;
        lathe_weight_reader_columns(weights, (int64_t)c, 1, column);
        for (size_t i = 0; i < k; i++) {
            top = fabsf(column[i]) > top ? fabsf(column[i]) : top;
            all += (double)column[i] * (double)column[i];
        }
        float scale = top < 1e-30f ? 1.0f : top / (float)most;
        for (size_t i = 0; i < k; i++) {
            float q = nearbyintf(column[i] / scale);
            q = q > (float)most ? (float)most : q < -(float)most ? -(float)most : q == q ? q : 0;
            double off = (double)column[i] - (double)q * (double)scale;
            out->w[c * k + i] = (int8_t)q;
            out->w_sum[c] += (int32_t)q;
            lost += off * off;
        }
        out->w_scale[c] = scale;
    }
    *error = !isfinite(lost) || !isfinite(all) ? INFINITY : all > 0 ? sqrt(lost / all) : 0;
    free(column);
    return done;
}
