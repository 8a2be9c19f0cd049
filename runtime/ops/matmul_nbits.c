/* x [.., K] times weights of 2 to 8 bits: packed [N][blocks][block_size * bits / 8], scales [N * blocks], zero points
 * packed [N][bytes of blocks elements] or of the type of the scales [N][blocks] (absent: 2^(bits - 1)), g_idx [K]
 * (which block's scale element k takes), bias [N].
 *
 * A group of columns becomes f32 panels in scratch, once a call, then the f32 product takes them: the accuracy is that
 * of f32. Threads share the columns. */
#include "nbits.h"
#include "op_util.h"
#include "ops.h"
#include "panel_gemm.h"

#define COLUMNS 64 /* a group, a multiple of 16 */
#define ROWS    32 /* rows of x or y that pass through scratch when they are not f32 */

struct weights {
    int64_t n, k, block, blocks, rows;
    unsigned bits;
    int64_t blob; /* bytes of a block */
    const struct lathe_tensor *x, *packed, *scales, *zeros, *g_idx, *bias;
    struct lathe_tensor *y;
};

static bool weights_init(struct weights *w, const struct lathe_op_call *call) {
    w->x = call->in[0];
    w->packed = call->in[1];
    w->scales = call->in[2];
    w->zeros = lathe_operand(call, 3);
    w->g_idx = lathe_operand(call, 4);
    w->bias = lathe_operand(call, 5);
    w->y = call->out[0];
    int64_t bits = lathe_attr_int(&call->attrs, LATHE_ATTR_BITS, 4);
    w->block = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 32);
    if (w->x->rank < 1 || w->y->rank != w->x->rank || bits < 2 || bits > 8 || w->block < 1 || w->block > INT32_MAX)
        return false;
    w->bits = (unsigned)bits;
    w->k = w->x->dims[w->x->rank - 1];
    w->n = w->y->dims[w->y->rank - 1];
    w->rows = lathe_count_range(w->x, 0, w->x->rank - 1);
    w->blocks = (w->k + w->block - 1) / w->block;
    w->blob = lathe_nbits_bytes(w->block, w->bits);
    int64_t per_column, scales;
    if (!lathe_mul_i64(w->blocks, w->blob, &per_column) || !lathe_mul_i64(per_column, w->n, &per_column) ||
        !lathe_mul_i64(w->blocks, w->n, &scales))
        return false;
    if (w->packed->dtype != LATHE_U8 || lathe_tensor_count(w->packed) != per_column ||
        !lathe_dtype_is_float(w->scales->dtype) || lathe_tensor_count(w->scales) != scales ||
        lathe_tensor_count(w->y) != w->rows * w->n)
        return false;
    if (w->zeros && (w->zeros->dtype == LATHE_U8
                         ? lathe_tensor_count(w->zeros) != w->n * lathe_nbits_bytes(w->blocks, w->bits)
                         : !lathe_dtype_is_float(w->zeros->dtype) || lathe_tensor_count(w->zeros) != scales))
        return false;
    return (!w->g_idx || lathe_tensor_count(w->g_idx) >= w->k) && (!w->bias || lathe_tensor_count(w->bias) == w->n);
}

/* Parts of a thread's scratch; each a multiple of 64 bytes. */
struct parts {
    size_t panels, pack, x, y, total;
};

static bool parts_of(const struct weights *w, struct parts *s) {
    size_t pack = lathe_panel_gemm_scratch(w->k), x = 0;
    if (pack == 0 || !lathe_mul_size((size_t)w->k, COLUMNS * sizeof(float), &s->pack) ||
        (w->x->dtype != LATHE_F32 && !lathe_mul_size((size_t)w->k, ROWS * sizeof(float), &x)))
        return false;
    s->panels = 0;
    return lathe_add_size(s->pack, pack, &s->x) && lathe_add_size(s->x, x, &s->y) &&
           lathe_add_size(s->y, w->y->dtype != LATHE_F32 ? ROWS * COLUMNS * sizeof(float) : 0, &s->total);
}

size_t lathe_scratch_matmul_nbits(const struct lathe_op_call *call) {
    struct weights w;
    struct parts s;
    return weights_init(&w, call) && parts_of(&w, &s) ? s.total : 0;
}

static float zero_of(const struct weights *w, int64_t column, int64_t block) {
    if (!w->zeros)
        return (float)(1u << (w->bits - 1));
    if (w->zeros->dtype != LATHE_U8)
        return (float)lathe_read_f64(w->zeros, column * w->blocks + block);
    const uint8_t *line = (const uint8_t *)w->zeros->data + column * lathe_nbits_bytes(w->blocks, w->bits);
    return (float)lathe_nbits_at(line, block, w->bits);
}

static float scale_of(const struct weights *w, int64_t column, int64_t block) {
    return (float)lathe_read_f64(w->scales, column * w->blocks + block);
}

/* One block of a column into its lane of a panel: (q - zero) * scale. Up to 4 bits by a table of all values. */
static void unpack_block(const uint8_t *blob, int64_t n, unsigned bits, float scale, float zero, float *out) {
    float table[16];
    if (bits > 4) {
        for (int64_t i = 0; i < n; i++)
            out[i * 16] = ((float)(bits == 8 ? blob[i] : lathe_nbits_at(blob, i, bits)) - zero) * scale;
        return;
    }
    for (int q = 0; q < 16; q++)
        table[q] = ((float)q - zero) * scale;
    if (bits != 4) {
        for (int64_t i = 0; i < n; i++)
            out[i * 16] = table[lathe_nbits_at(blob, i, bits)];
        return;
    }
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { /* four bytes at a time: lowest bits first */
        uint32_t v = (uint32_t)blob[i / 2] | (uint32_t)blob[i / 2 + 1] << 8 | (uint32_t)blob[i / 2 + 2] << 16 |
                     (uint32_t)blob[i / 2 + 3] << 24;
        for (int k = 0; k < 8; k++)
            out[(i + k) * 16] = table[v >> 4 * k & 15];
    }
    for (; i < n; i++)
        out[i * 16] = table[blob[i / 2] >> 4 * (i & 1) & 15];
}

static bool unpack_column(const struct lathe_op_call *call, const struct weights *w, int64_t column, float *out) {
    const uint8_t *packed = (const uint8_t *)w->packed->data + column * w->blocks * w->blob;
    if (!w->g_idx) {
        for (int64_t b = 0; b < w->blocks; b++) {
            int64_t n = w->k - b * w->block < w->block ? w->k - b * w->block : w->block;
            unpack_block(packed + b * w->blob, n, w->bits, scale_of(w, column, b), zero_of(w, column, b),
                         out + b * w->block * 16);
        }
        return true;
    }
    for (int64_t i = 0; i < w->k; i++) {
        int64_t group;
        if (!lathe_index_at(call, w->g_idx, i, w->blocks, &group))
            return false;
        float q = (float)lathe_nbits_at(packed + i / w->block * w->blob, i % w->block, w->bits);
        out[i * 16] = (q - zero_of(w, column, group)) * scale_of(w, column, group);
    }
    return true;
}

/* Columns [first, first + n) of y from their panels. */
static void multiply(const struct lathe_op_call *call, const struct weights *w, const struct parts *s, int64_t first,
                     int64_t n) {
    uint8_t *scratch = call->scratch;
    const float *panels = (const float *)(const void *)scratch;
    float bias[COLUMNS];
    if (w->bias)
        lathe_load_f32(w->bias, first, n, bias);
    const float *bias_at = w->bias ? bias : NULL;
    bool plain_x = w->x->dtype == LATHE_F32, plain_y = w->y->dtype == LATHE_F32;
    if (plain_x && plain_y) {
        lathe_panel_gemm(call->kernels, w->rows, n, w->k, w->x->data, w->k, panels, bias_at,
                         (float *)w->y->data + first, w->n, scratch + s->pack);
        return;
    }
    float *x = (float *)(void *)(scratch + s->x), *y = (float *)(void *)(scratch + s->y);
    for (int64_t r = 0; r < w->rows; r += ROWS) {
        int64_t rows = w->rows - r < ROWS ? w->rows - r : ROWS, count = rows * w->k;
        for (int64_t i = 0; i < count && !plain_x; i += LATHE_CHUNK)
            lathe_load_f32(w->x, r * w->k + i, count - i < LATHE_CHUNK ? count - i : LATHE_CHUNK, x + i);
        lathe_panel_gemm(call->kernels, rows, n, w->k, plain_x ? (const float *)w->x->data + r * w->k : x, w->k, panels,
                         bias_at, plain_y ? (float *)w->y->data + r * w->n + first : y, plain_y ? w->n : COLUMNS,
                         scratch + s->pack);
        for (int64_t i = 0; i < rows && !plain_y; i++)
            lathe_store(w->y, (r + i) * w->n + first, n, LATHE_KIND_F32, y + i * COLUMNS);
    }
}

enum lathe_status lathe_run_matmul_nbits(const struct lathe_op_call *call) {
    struct weights w;
    struct parts s;
    if (!weights_init(&w, call) || !parts_of(&w, &s))
        return lathe_bad_shape(call, "matmul_nbits");
    if (w.x->dtype == LATHE_F64 || !lathe_dtype_is_float(w.x->dtype) || w.y->dtype != w.x->dtype)
        return lathe_no_dtype(call, "matmul_nbits", w.x->dtype);
    if (lathe_tensor_count(w.y) == 0)
        return LATHE_OK;
    float *panels = call->scratch;
    int64_t begin, end;
    lathe_team_split(&call->team, w.n, 16, &begin, &end);
    for (int64_t first = begin; first < end; first += COLUMNS) {
        int64_t n = end - first < COLUMNS ? end - first : COLUMNS, padded = (n + 15) / 16 * 16;
        for (int64_t c = 0; c < padded; c++) {
            float *lane = panels + c / 16 * w.k * 16 + c % 16;
            if (c >= n)
                for (int64_t t = 0; t < w.k; t++)
                    lane[t * 16] = 0;
            else if (!unpack_column(call, &w, first + c, lane))
                return LATHE_INVALID;
        }
        multiply(call, &w, &s, first, n);
    }
    return LATHE_OK;
}
