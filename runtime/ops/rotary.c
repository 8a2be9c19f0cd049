/* Rotary position embedding: x [B,N,S,D], or [B,S,N*D] with `heads`; the first `rotary_dim` elements of each head turn
 * in pairs, (i, i + rotary_dim / 2) or, interleaved, (2i, 2i + 1). cos, sin: [positions, rotary_dim / 2] with positions
 * [B,S] or one offset; without positions [B,S, rotary_dim / 2]. */
#include "op_util.h"
#include "ops.h"

#include <string.h>

#define PAIRS 64 /* pairs that turn together */
#define BLOCK 16 /* of a loop of known length */

struct rotary {
    const struct lathe_tensor *x, *cos, *sin, *positions;
    struct lathe_tensor *y;
    int64_t batch, heads, seq, dim, half; /* half: pairs of a head */
    bool token_major, interleaved;
};

static bool rotary_init(struct rotary *r, const struct lathe_op_call *call) {
    r->x = call->in[0];
    r->cos = call->in[1];
    r->sin = call->in[2];
    r->positions = lathe_operand(call, 3);
    r->y = call->out[0];
    r->interleaved = lathe_attr_int(&call->attrs, LATHE_ATTR_INTERLEAVED, 0) != 0;
    r->token_major = r->x->rank == 3;
    if ((r->x->rank != 3 && r->x->rank != 4) || r->y->rank != r->x->rank || r->cos->rank < 2 ||
        lathe_tensor_count(r->y) != lathe_tensor_count(r->x) || r->cos->rank != r->sin->rank ||
        lathe_tensor_count(r->cos) != lathe_tensor_count(r->sin))
        return false;
    int64_t width = r->cos->dims[r->cos->rank - 1], heads = lathe_attr_int(&call->attrs, LATHE_ATTR_HEADS, 0);
    r->batch = r->x->dims[0];
    if (r->token_major) {
        r->seq = r->x->dims[1];
        int64_t hidden = r->x->dims[2];
        r->heads = heads > 0 ? heads : width > 0 ? hidden / (2 * width) : 0;
        if (r->heads < 1 || hidden % r->heads != 0)
            return false;
        r->dim = hidden / r->heads;
    } else {
        r->heads = r->x->dims[1];
        r->seq = r->x->dims[2];
        r->dim = r->x->dims[3];
    }
    int64_t rotary = lathe_attr_int(&call->attrs, LATHE_ATTR_ROTARY_DIM, 0);
    rotary = rotary > 0 ? rotary : r->dim;
    r->half = rotary / 2;
    if (rotary > r->dim || rotary % 2 != 0 || width != r->half)
        return false;
    if (!r->positions)
        return lathe_tensor_count(r->cos) == r->batch * r->seq * width ||
               (r->batch > 0 && lathe_tensor_count(r->cos) == r->seq * width);
    int64_t count = lathe_tensor_count(r->positions);
    return count == 1 || count == r->seq || count == r->batch * r->seq;
}

/* The row of cos and sin for token s of sequence b; false when the table has no such row. */
static bool table_row(const struct lathe_op_call *call, const struct rotary *r, int64_t b, int64_t s, int64_t *row) {
    int64_t rows = r->half ? lathe_tensor_count(r->cos) / r->half : 0, token = b * r->seq + s;
    if (!r->positions) {
        *row = rows == r->seq ? s : token;
        return true;
    }
    int64_t count = lathe_tensor_count(r->positions);
    bool offset = count == 1 && r->batch * r->seq != 1;
    int64_t at = lathe_read_i64(r->positions, offset ? 0 : count == r->seq && r->batch != 1 ? s : token), limit;
    if (!lathe_add_i64(at, offset ? s : 0, row) || *row < 0 || *row >= rows) {
        limit = rows - 1;
        lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE,
                   "position %lld of token %lld is outside the rotary table [0, %lld]", (long long)at, (long long)token,
                   (long long)limit);
        return false;
    }
    return true;
}

/* Pairs [0, n) at x and x2, to y and y2: loops of a known length, which compilers turn into vectors. */
static void turn_halves(const float *restrict x, const float *restrict x2, const float *restrict c,
                        const float *restrict s, float *restrict y, float *restrict y2, int64_t n) {
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (int k = 0; k < BLOCK; k++) {
            y[i + k] = c[i + k] * x[i + k] - s[i + k] * x2[i + k];
            y2[i + k] = s[i + k] * x[i + k] + c[i + k] * x2[i + k];
        }
    for (; i < n; i++) {
        y[i] = c[i] * x[i] - s[i] * x2[i];
        y2[i] = s[i] * x[i] + c[i] * x2[i];
    }
}

/* Pairs (2i, 2i + 1) for i of [0, n). */
static void turn_neighbours(const float *restrict x, const float *restrict c, const float *restrict s,
                            float *restrict y, int64_t n) {
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        float even[BLOCK], odd[BLOCK];
        for (int k = 0; k < BLOCK; k++) {
            even[k] = x[2 * (i + k)];
            odd[k] = x[2 * (i + k) + 1];
        }
        for (int k = 0; k < BLOCK; k++) {
            y[2 * (i + k)] = c[i + k] * even[k] - s[i + k] * odd[k];
            y[2 * (i + k) + 1] = s[i + k] * even[k] + c[i + k] * odd[k];
        }
    }
    for (; i < n; i++) {
        y[2 * i] = c[i] * x[2 * i] - s[i] * x[2 * i + 1];
        y[2 * i + 1] = s[i] * x[2 * i] + c[i] * x[2 * i + 1];
    }
}

/* Pairs [i, i + n) of the head at `base`. */
static void turn(const struct rotary *r, int64_t base, int64_t row, int64_t i, int64_t n) {
    float x[2 * PAIRS], y[2 * PAIRS], c[PAIRS], s[PAIRS];
    lathe_load_f32(r->cos, row * r->half + i, n, c);
    lathe_load_f32(r->sin, row * r->half + i, n, s);
    if (r->interleaved) {
        lathe_load_f32(r->x, base + 2 * i, 2 * n, x);
        turn_neighbours(x, c, s, y, n);
        lathe_store(r->y, base + 2 * i, 2 * n, LATHE_KIND_F32, y);
        return;
    }
    lathe_load_f32(r->x, base + i, n, x);
    lathe_load_f32(r->x, base + r->half + i, n, x + PAIRS);
    turn_halves(x, x + PAIRS, c, s, y, y + PAIRS, n);
    lathe_store(r->y, base + i, n, LATHE_KIND_F32, y);
    lathe_store(r->y, base + r->half + i, n, LATHE_KIND_F32, y + PAIRS);
}

/* A head of f32 in place: nothing is converted. */
static void turn_head_f32(const struct rotary *r, int64_t base, int64_t row) {
    const float *x = (const float *)r->x->data + base;
    const float *c = (const float *)r->cos->data + row * r->half, *s = (const float *)r->sin->data + row * r->half;
    float *y = (float *)r->y->data + base;
    int64_t turned = 2 * r->half;
    if (r->interleaved)
        turn_neighbours(x, c, s, y, r->half);
    else
        turn_halves(x, x + r->half, c, s, y, y + r->half, r->half);
    if (turned < r->dim)
        memcpy(y + turned, x + turned, (size_t)(r->dim - turned) * sizeof *y);
}

enum lathe_status lathe_run_rotary(const struct lathe_op_call *call) {
    struct rotary r;
    if (!rotary_init(&r, call))
        return lathe_bad_shape(call, "rotary");
    if (!lathe_dtype_is_float(r.x->dtype) || r.x->dtype == LATHE_F64 || r.y->dtype != r.x->dtype ||
        !lathe_dtype_is_float(r.cos->dtype))
        return lathe_no_dtype(call, "rotary", r.x->dtype);
    bool plain = r.x->dtype == LATHE_F32 && r.cos->dtype == LATHE_F32 && r.sin->dtype == LATHE_F32;
    int64_t begin, end;
    lathe_team_split(&call->team, r.batch * r.seq, 1, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        int64_t b = token / r.seq, s = token % r.seq, row;
        if (!table_row(call, &r, b, s, &row))
            return LATHE_INVALID;
        for (int64_t h = 0; h < r.heads; h++) {
            int64_t head = r.token_major ? token * r.heads + h : (b * r.heads + h) * r.seq + s, base = head * r.dim;
            if (plain) {
                turn_head_f32(&r, base, row);
                continue;
            }
            for (int64_t i = 0; i < r.half; i += PAIRS)
                turn(&r, base, row, i, r.half - i < PAIRS ? r.half - i : PAIRS);
            lathe_convert(r.x, r.y, base + 2 * r.half, r.dim - 2 * r.half);
        }
    }
    return LATHE_OK;
}
