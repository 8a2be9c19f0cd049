/* Weights with scales a block of K, as linear_q8 takes them with block_size. */
#include "reuse_weights.h"

#include "kernel_q8.h"

#include <math.h>
#include <stdio.h>

enum { PANEL = 16 }; /* columns */

/* The axis of the stored matrix that K runs along. */
static int k_axis(const struct lathe_weight_part *p) {
    return p->transposed ? 1 : 0;
}

static int64_t cell_of(const struct lathe_weight_part *p, int64_t k, int64_t column) {
    return k_axis(p) ? lathe_weight_cell(&p->grid, column, k) : lathe_weight_cell(&p->grid, k, column);
}

static int number_at(const struct lathe_weight_part *p, int64_t k, int64_t column, int64_t size) {
    int64_t i = k_axis(p) ? column * size + k : k * p->columns + column;
    return p->dtype == LATHE_I8 ? ((const int8_t *)p->data)[i] : ((const uint8_t *)p->data)[i];
}

bool lathe_weights_fit_halves(const struct lathe_weight_reader *r) {
    for (uint32_t i = 0; i < r->part_count; i++) {
        const struct lathe_weight_part *p = &r->parts[i];
        int low = p->dtype == LATHE_I8 ? -8 : 0;
        for (int64_t c = 0; c < p->columns; c++)
            for (int64_t k = 0; k < r->k; k++) {
                int v = number_at(p, k, c, r->k);
                if (v < low || v > low + 15)
                    return false;
            }
    }
    return true;
}

/* How the integers go into the product. */
struct form {
    bool halves;  /* from -8 to 7 */
    bool zeros;   /* zero points stay beside the numbers; else they have been taken off */
    int high;     /* largest magnitude that is multiplied */
    int low, top; /* range of number less zero point */
};

/* What is taken off a stored number first, so that 4 bits are -8 to 7 and bytes are signed; zero points too. */
static int middle(const struct lathe_weight_part *p, const struct form *form) {
    return p->dtype == LATHE_I8 ? 0 : form->halves ? 8 : form->zeros ? 128 : 0;
}

/* `halves`: all numbers are of 4 bits. Then zero points stay beside them unless all are the middle; bytes lose theirs
 * where the difference fits a byte. */
static struct form form_of(const struct lathe_weight_reader *r, int64_t block, bool halves) {
    struct form form = {.halves = halves};
    bool in_middle = true, fits = true;
    int raw = 0;
    for (uint32_t i = 0; i < r->part_count; i++) {
        const struct lathe_weight_part *p = &r->parts[i];
        int half = p->dtype == LATHE_I8 ? 0 : 8, byte = p->dtype == LATHE_I8 ? 0 : 128;
        for (int64_t c = 0; c < p->columns; c++)
            for (int64_t k = 0, zero = 0; k < r->k; k++) {
                if (k % block == 0) {
                    zero = lathe_weight_zero_at(&p->grid, cell_of(p, k, c));
                    in_middle &= zero == half;
                    fits &= zero - half <= 127;
                }
                int v = number_at(p, k, c, r->k), off = v - (int)zero, magnitude = v < byte ? byte - v : v - byte;
                form.low = off < form.low ? off : form.low;
                form.top = off > form.top ? off : form.top;
                raw = magnitude > raw ? magnitude : raw;
            }
    }
    form.halves = halves && fits;
    bool bytes = form.low >= -128 && form.top <= 127;
    form.zeros = form.halves ? !in_middle : !bytes;
    form.high = form.halves ? 15 : !bytes ? raw : -form.low > form.top ? -form.low : form.top;
    return form;
}

static void take_columns(const struct lathe_weight_reader *r, const struct lathe_weight_part *p, int64_t block,
                         const struct form *form, struct lathe_q8_layer *out) {
    int64_t blocks = out->blocks;
    int shift = middle(p, form);
    for (int64_t c = 0; c < p->columns; c++) {
        int64_t column = p->at + c, cell0 = column / PANEL * blocks * PANEL + column % PANEL;
        int8_t *to = out->w + column * r->k;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t cell = cell_of(p, b * block, c), end = (b + 1) * block < r->k ? (b + 1) * block : r->k;
            int zero = (int)lathe_weight_zero_at(&p->grid, cell), taken = form->halves || form->zeros ? shift : zero;
            float scale = lathe_weight_scale_at(&p->grid, cell);
            for (int64_t k = b * block; k < end; k++) {
                to[k] = (int8_t)(number_at(p, k, c, r->k) - taken);
                out->min = to[k] < out->min ? to[k] : out->min;
                out->max = to[k] > out->max ? to[k] : out->max;
            }
            out->cell_scale[cell0 + b * PANEL] = scale;
            if (out->cell_zero)
                out->cell_zero[cell0 + b * PANEL] = (int8_t)(zero - shift);
        }
    }
}

static void sum_columns(const struct lathe_weight_reader *r, struct lathe_q8_layer *out) {
    for (int64_t c = 0; c < r->n; c++) {
        double all = 0;
        for (int64_t b = 0; b < out->blocks; b++) {
            int64_t cell = (c / PANEL * out->blocks + b) * PANEL + c % PANEL, sum = 0;
            int64_t end = (b + 1) * out->block < r->k ? (b + 1) * out->block : r->k;
            for (int64_t k = b * out->block; k < end; k++)
                sum += out->w[c * r->k + k] - (out->cell_zero ? out->cell_zero[cell] : 0);
            all += (double)sum * (double)out->cell_scale[cell];
        }
        out->scaled_sum[c] = (float)all;
    }
}

bool lathe_scale_blocks(const struct lathe_weight_reader *weights, const float *factor, struct lathe_q8_layer *out) {
    int64_t cells = (weights->n + PANEL - 1) / PANEL * out->blocks * PANEL;
    for (int64_t c = 0; c < cells; c++) {
        float scale = out->cell_scale[c], scaled = scale / factor[c / PANEL % out->blocks];
        if (!isfinite(scaled) || scaled * factor[c / PANEL % out->blocks] != scale)
            return false;
    }
    for (int64_t c = 0; c < cells; c++)
        out->cell_scale[c] /= factor[c / PANEL % out->blocks];
    sum_columns(weights, out);
    return true;
}

enum lathe_reuse lathe_reuse_blocks(const struct lathe_weight_reader *weights, int64_t block, bool halves, int most,
                                    struct lathe_arena *arena, struct lathe_q8_layer *out, char *why, size_t size) {
    if (block >= weights->k)
        block = (weights->k + LATHE_Q8_BLOCK_STEP - 1) / LATHE_Q8_BLOCK_STEP * LATHE_Q8_BLOCK_STEP;
    if (!lathe_q8_is_block(block)) {
        snprintf(why, size, "blocks of %lld are no multiple of %d up to %d", (long long)block, LATHE_Q8_BLOCK_STEP,
                 LATHE_Q8_MAX_BLOCK);
        return LATHE_REUSE_REFUSED;
    }
    struct form form = form_of(weights, block, halves);
    if (form.high > most) {
        snprintf(why, size, "its integers are up to %d, beyond %d", form.high, most);
        return LATHE_REUSE_REFUSED;
    }
    int64_t panels = (weights->n + PANEL - 1) / PANEL;
    out->block = block;
    out->blocks = (weights->k - 1) / block + 1;
    out->halves = form.halves;
    out->high = form.high;
    size_t cells = (size_t)(panels * out->blocks) * PANEL, n = (size_t)weights->n;
    out->w = lathe_arena_alloc_array(arena, n, (size_t)weights->k);
    out->cell_scale = lathe_arena_alloc_array(arena, cells, sizeof *out->cell_scale);
    out->cell_zero = form.zeros ? lathe_arena_alloc_array(arena, cells, 1) : NULL;
    out->scaled_sum = lathe_arena_alloc_array(arena, n, sizeof *out->scaled_sum);
    out->w_scale = lathe_arena_alloc_array(arena, n, sizeof *out->w_scale);
    out->w_sum = lathe_arena_alloc_array(arena, n, sizeof *out->w_sum);
    out->shift = lathe_arena_alloc_array(arena, n, sizeof *out->shift);
    if (!out->w || !out->cell_scale || (form.zeros && !out->cell_zero) || !out->scaled_sum || !out->w_scale ||
        !out->w_sum || !out->shift) {
        out->w = NULL;
        return LATHE_REUSE_WEIGHTS;
    }
    for (uint32_t i = 0; i < weights->part_count; i++)
        take_columns(weights, &weights->parts[i], block, &form, out);
    for (size_t c = 0; c < n; c++)
        out->w_scale[c] = 1; /* blocks have theirs */
    for (size_t c = 0; c < cells; c++)
        if (!isfinite(out->cell_scale[c])) {
            snprintf(why, size, "a scale is %g", (double)out->cell_scale[c]);
            return LATHE_REUSE_REFUSED;
        }
    sum_columns(weights, out);
    return LATHE_REUSE_WEIGHTS;
}
