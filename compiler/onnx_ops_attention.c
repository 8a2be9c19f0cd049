/* Attention and rotary embedding of the standard, and the plain form that the attentions of com.microsoft become. */
#include "onnx_import.h"

#include <math.h>
#include <string.h>

static const int64_t heads_first[4] = {0, 2, 1, 3};

/* A 1-D value along axis `axis` of four. */
static lathe_value_id along(struct lathe_import *c, lathe_value_id v, int axis) {
    lathe_dim dims[4];
    for (int i = 0; i < 4; i++)
        dims[i] = i == axis ? lathe_imp_dim(c, v, 0) : lathe_imp_number(c, 1);
    return lathe_imp_view(c, v, 4, dims);
}

/* An expression as an i64 scalar. */
static lathe_value_id dim_value(struct lathe_import *c, lathe_dim d) {
    int64_t number;
    if (lathe_dim_is_const(c->g->dims, d, &number))
        return lathe_imp_const_i64(c, number);
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_DIMS_TENSOR, NULL, 0);
    if (n == LATHE_NONE)
        return LATHE_NONE;
    lathe_imp_set_dims(c, n, LATHE_ATTR_VALUES, &d, 1);
    struct lathe_value *out = lathe_value_at(c->g, lathe_node_at(c->g, n)->out[0]);
    out->dtype = LATHE_I64;
    out->rank = 1;
    out->dims[0] = lathe_imp_number(c, 1);
    return lathe_imp_end(c, n);
}

/* [B,S,N*D] -> [B,S,N,D] -> permuted. */
static lathe_value_id to_heads(struct lathe_import *c, lathe_value_id x, int64_t heads, const int64_t perm[4]) {
    int64_t width = lathe_imp_dim_const(c, x, 2, "the width of an operand");
    if (c->status == LATHE_OK && (heads < 1 || width % heads)) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "%lld heads do not divide a width of %lld", (long long)heads,
                            (long long)width);
        return LATHE_NONE;
    }
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const lathe_dim dims[4] = {lathe_imp_dim(c, x, 0), lathe_imp_dim(c, x, 1), lathe_imp_number(c, heads),
                               lathe_imp_number(c, width / heads)};
    return lathe_imp_transpose(c, lathe_imp_view(c, x, 4, dims), perm, 4);
}

static lathe_value_id softmax_last(struct lathe_import *c, lathe_value_id x) {
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_SOFTMAX, &x, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, lathe_imp_rank(c, x) - 1);
    return lathe_imp_end(c, n);
}

static lathe_value_id select_value(struct lathe_import *c, lathe_value_id condition, lathe_value_id yes,
                                   lathe_value_id no) {
    const lathe_value_id in[3] = {condition, yes, no};
    return lathe_imp_end(c, lathe_imp_node(c, LATHE_OP_WHERE, in, 3));
}

static double lowest_of(enum lathe_dtype dtype) {
    return dtype == LATHE_F16 ? -65504.0 : dtype == LATHE_BF16 ? -0x1.fep127 : -0x1.fffffep127;
}

/* ---- com.microsoft */

/* Which keys may be attended, as bool broadcastable to [B,N,S,T]. The mask has one of these forms: [B] lengths; [2*B]
 * ends, then starts; [B,T]; [B,S,T]. */
static lathe_value_id allowed_keys(struct lathe_import *c, lathe_value_id mask, lathe_dim batch, lathe_dim keys) {
    int rank = lathe_imp_rank(c, mask);
    lathe_dim one = lathe_imp_number(c, 1);
    if (rank == 1) {
        lathe_dim size = lathe_imp_dim(c, mask, 0), twice = lathe_dim_mul(c->g->dims, batch, lathe_imp_number(c, 2));
        lathe_value_id at = along(c, lathe_imp_count_up(c, keys), 3);
        at = lathe_imp_cast(c, at, lathe_imp_dtype(c, mask));
        if (size != twice)
            return lathe_imp_binary(c, LATHE_OP_LESS, at, along(c, mask, 0));
        lathe_value_id ends = lathe_imp_slice(c, mask, 0, lathe_imp_number(c, 0), batch);
        lathe_value_id starts = lathe_imp_slice(c, mask, 0, batch, twice);
        return lathe_imp_binary(c, LATHE_OP_AND, lathe_imp_binary(c, LATHE_OP_LESS, at, along(c, ends, 0)),
                                lathe_imp_binary(c, LATHE_OP_GREATER_EQUAL, at, along(c, starts, 0)));
    }
    if (rank != 2 && rank != 3) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its mask has rank %d; supported are 1 to 3", rank);
        return LATHE_NONE;
    }
    const lathe_dim dims[4] = {lathe_imp_dim(c, mask, 0), one, rank == 3 ? lathe_imp_dim(c, mask, 1) : one,
                               lathe_imp_dim(c, mask, -1)};
    return lathe_imp_view(c, lathe_imp_cast(c, mask, LATHE_BOOL), 4, dims);
}

static lathe_value_id causal_keys(struct lathe_import *c, lathe_dim queries, lathe_dim keys) {
    return lathe_imp_binary(c, LATHE_OP_LESS_EQUAL, along(c, lathe_imp_count_up(c, keys), 3),
                            along(c, lathe_imp_count_up(c, queries), 2));
}

void lathe_imp_plain_attention(struct lathe_import *c, const struct lathe_imp_attention *a) {
    static const int64_t transposed[4] = {0, 2, 3, 1}, swap[4] = {0, 1, 3, 2};
    lathe_dim batch = lathe_imp_dim(c, a->q, 0), queries = lathe_imp_dim(c, a->q, 1);
    lathe_value_id q = to_heads(c, a->q, a->heads, heads_first);
    lathe_value_id k = a->k_by_head ? lathe_imp_transpose(c, a->k, swap, 4) : to_heads(c, a->k, a->heads, transposed);
    lathe_value_id v = a->v_by_head ? a->v : to_heads(c, a->v, a->heads, heads_first);
    int64_t size = lathe_imp_dim_const(c, q, 3, "the size of a head");
    if (c->status != LATHE_OK)
        return;
    enum lathe_dtype dtype = lathe_imp_dtype(c, q);
    double scale = a->scale != 0 ? a->scale : 1 / sqrt((double)(size < 1 ? 1 : size));
    lathe_value_id scores = lathe_imp_binary(c, LATHE_OP_MATMUL, q, k);
    scores = lathe_imp_binary(c, LATHE_OP_MUL, scores, lathe_imp_scalar(c, dtype, scale));
    lathe_dim keys = lathe_imp_dim(c, scores, 3);
    lathe_value_id zero = lathe_imp_scalar(c, dtype, 0);
    if (a->mask_index != LATHE_NONE) {
        lathe_value_id allowed = allowed_keys(c, a->mask_index, batch, keys);
        lathe_value_id added = select_value(c, allowed, zero, lathe_imp_scalar(c, dtype, a->filter));
        scores = lathe_imp_binary(c, LATHE_OP_ADD, scores, added);
    }
    if (a->causal) {
        lathe_value_id added =
            select_value(c, causal_keys(c, queries, keys), zero, lathe_imp_scalar(c, dtype, lowest_of(dtype)));
        scores = lathe_imp_binary(c, LATHE_OP_ADD, scores, added);
    }
    if (a->bias != LATHE_NONE)
        scores = lathe_imp_binary(c, LATHE_OP_ADD, scores, a->bias);
    lathe_value_id y = lathe_imp_binary(c, LATHE_OP_MATMUL, softmax_last(c, scores), v);
    y = lathe_imp_transpose(c, y, heads_first, 4);
    lathe_dim width = lathe_dim_mul(c->g->dims, lathe_imp_dim(c, y, 2), lathe_imp_dim(c, y, 3));
    const lathe_dim dims[3] = {lathe_imp_dim(c, y, 0), lathe_imp_dim(c, y, 1), width};
    lathe_imp_result_view(c, 0, y, 3, dims);
}

/* ---- the standard's Attention */
struct standard {
    lathe_value_id q, k, v; /* [B,N,S,D] */
    lathe_value_id mask;    /* bool or float; LATHE_NONE */
    lathe_dim batch, heads, queries, keys;
    double scale, softcap;
    bool token_major; /* the result is [B,S,N*D] */
};

/* Keys for several heads are written once a head. */
static lathe_value_id repeat_heads(struct lathe_import *c, lathe_value_id x, int64_t heads) {
    int64_t own = lathe_imp_dim_const(c, x, 1, "the number of key heads");
    if (c->status != LATHE_OK || own == heads)
        return x;
    if (own < 1 || heads % own) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "%lld query heads are no multiple of %lld key heads",
                            (long long)heads, (long long)own);
        return LATHE_NONE;
    }
    lathe_dim b = lathe_imp_dim(c, x, 0), s = lathe_imp_dim(c, x, 2), d = lathe_imp_dim(c, x, 3);
    const lathe_dim five[5] = {b, lathe_imp_number(c, own), lathe_imp_number(c, 1), s, d};
    const lathe_dim more[5] = {b, lathe_imp_number(c, own), lathe_imp_number(c, heads / own), s, d};
    const lathe_dim four[4] = {b, lathe_imp_number(c, heads), s, d};
    lathe_value_id view = lathe_imp_view(c, x, 5, five);
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_EXPAND, &view, 1);
    if (n == LATHE_NONE)
        return LATHE_NONE;
    struct lathe_value *out = lathe_value_at(c->g, lathe_node_at(c->g, n)->out[0]);
    out->rank = 5;
    memcpy(out->dims, more, sizeof more);
    return lathe_imp_view(c, lathe_imp_end(c, n), 4, four);
}

static lathe_value_id both(struct lathe_import *c, lathe_value_id a, lathe_value_id b) {
    return a == LATHE_NONE ? b : b == LATHE_NONE ? a : lathe_imp_binary(c, LATHE_OP_AND, a, b);
}

/* The keys that position allows: causal, windows, and the count of real keys; LATHE_NONE when all. `offset` is the
 * position of query 0 among the keys, i64 [B,1,1,1] or a scalar; LATHE_NONE: 0. */
static lathe_value_id position_mask(struct lathe_import *c, const struct standard *s, bool causal, int64_t left,
                                    int64_t right, lathe_value_id offset, lathe_value_id real_keys) {
    lathe_value_id mask = LATHE_NONE;
    if (!causal && left < 0 && right < 0 && real_keys == LATHE_NONE)
        return mask;
    lathe_value_id key = along(c, lathe_imp_count_up(c, s->keys), 3);
    if (real_keys != LATHE_NONE)
        mask = lathe_imp_binary(c, LATHE_OP_LESS, key, real_keys);
    if (!causal && left < 0 && right < 0)
        return mask;
    lathe_value_id query = along(c, lathe_imp_count_up(c, s->queries), 2);
    if (offset != LATHE_NONE)
        query = lathe_imp_binary(c, LATHE_OP_ADD, query, offset);
    if (causal)
        mask = both(c, mask, lathe_imp_binary(c, LATHE_OP_LESS_EQUAL, key, query));
    if (right >= 0) {
        lathe_value_id last = lathe_imp_binary(c, LATHE_OP_ADD, query, lathe_imp_const_i64(c, right));
        mask = both(c, mask, lathe_imp_binary(c, LATHE_OP_LESS_EQUAL, key, last));
    }
    if (left >= 0) {
        lathe_value_id first = lathe_imp_binary(c, LATHE_OP_SUB, query, lathe_imp_const_i64(c, left));
        mask = both(c, mask, lathe_imp_binary(c, LATHE_OP_GREATER_EQUAL, key, first));
    }
    return mask;
}

/* A mask whose last axis is shorter than the keys: what it leaves out may not be attended. */
static lathe_value_id fill_up_mask(struct lathe_import *c, lathe_value_id mask, lathe_dim keys) {
    int rank = lathe_imp_rank(c, mask);
    lathe_dim have = rank ? lathe_imp_dim(c, mask, -1) : keys;
    int64_t one;
    if (have == keys || !lathe_dim_proved_lt(c->g->dims, have, keys) ||
        (lathe_dim_is_const(c->g->dims, have, &one) && one == 1))
        return mask;
    enum lathe_dtype dtype = lathe_imp_dtype(c, mask);
    lathe_value_id in[3] = {
        mask, LATHE_NONE, dtype == LATHE_BOOL ? lathe_imp_scalar(c, dtype, 0) : lathe_imp_scalar(c, dtype, -INFINITY)};
    lathe_dim pads[2 * LATHE_MAX_RANK];
    for (int i = 0; i < 2 * rank; i++)
        pads[i] = lathe_imp_number(c, 0);
    pads[2 * rank - 1] = lathe_dim_sub(c->g->dims, keys, have);
    const lathe_value_id two[2] = {in[0], in[2]};
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_PAD, two, 2);
    lathe_imp_set_dims(c, n, LATHE_ATTR_PADS, pads, 2 * (uint32_t)rank);
    lathe_imp_int(c, n, LATHE_ATTR_MODE, 0);
    return lathe_imp_end(c, n);
}

/* Output 3: the scores at one of four places. */
static void scores_output(struct lathe_import *c, const struct standard *s, int64_t mode) {
    static const int64_t swap[4] = {0, 1, 3, 2};
    enum lathe_dtype dtype = lathe_imp_dtype(c, s->q);
    lathe_value_id k = repeat_heads(c, s->k, lathe_imp_dim_const(c, s->q, 1, "the number of heads"));
    lathe_value_id x = lathe_imp_binary(c, LATHE_OP_MATMUL, s->q, lathe_imp_transpose(c, k, swap, 4));
    x = lathe_imp_binary(c, LATHE_OP_MUL, x, lathe_imp_scalar(c, dtype, s->scale));
    if (mode > 0 && s->softcap > 0) {
        lathe_value_id cap = lathe_imp_scalar(c, dtype, s->softcap);
        x = lathe_imp_unary(c, LATHE_OP_TANH, lathe_imp_binary(c, LATHE_OP_DIV, x, cap));
        x = lathe_imp_binary(c, LATHE_OP_MUL, x, cap);
    }
    if (mode > 1 && s->mask != LATHE_NONE) {
        lathe_value_id added = s->mask;
        if (lathe_imp_dtype(c, added) == LATHE_BOOL)
            added = select_value(c, added, lathe_imp_scalar(c, dtype, 0), lathe_imp_scalar(c, dtype, -INFINITY));
        x = lathe_imp_binary(c, LATHE_OP_ADD, x, added);
    }
    if (mode > 2) {
        x = softmax_last(c, x);
        x = select_value(c, lathe_imp_unary(c, LATHE_OP_ISNAN, x), lathe_imp_scalar(c, dtype, 0), x);
    }
    lathe_imp_bind(c, 3, x);
}

static lathe_value_id by_head(struct lathe_import *c, lathe_value_id x, const char *attribute) {
    if (lathe_imp_rank(c, x) == 4)
        return x;
    if (lathe_imp_rank(c, x) != 3) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "an operand has rank %d; it must be 3 or 4", lathe_imp_rank(c, x));
        return LATHE_NONE;
    }
    return to_heads(c, x, lathe_imp_attr_int(c, attribute, 0), heads_first);
}

static lathe_value_id with_past(struct lathe_import *c, uint32_t past, uint32_t present, lathe_value_id x) {
    if (lathe_imp_has(c, past)) {
        const lathe_value_id in[2] = {c->in[past], x};
        lathe_node_id n = lathe_imp_result(c, present, LATHE_OP_CONCAT, in, 2);
        lathe_imp_int(c, n, LATHE_ATTR_AXIS, 2);
        return lathe_imp_end(c, n);
    }
    lathe_imp_bind(c, present, x);
    return x;
}

/* sdpa computes in f32; other types are converted around it. */
static void emit_standard(struct lathe_import *c, const struct standard *s, bool causal) {
    enum lathe_dtype dtype = lathe_imp_dtype(c, s->q);
    lathe_value_id in[4] = {s->q, s->k, s->v, s->mask};
    uint32_t count = s->mask == LATHE_NONE ? 3 : 4;
    for (uint32_t i = 0; i < count; i++)
        if (lathe_imp_dtype(c, in[i]) != LATHE_BOOL)
            in[i] = lathe_imp_cast(c, in[i], LATHE_F32);
    bool last = !s->token_major && dtype == LATHE_F32;
    lathe_node_id n =
        last ? lathe_imp_result(c, 0, LATHE_OP_SDPA, in, count) : lathe_imp_node(c, LATHE_OP_SDPA, in, count);
    lathe_imp_float(c, n, LATHE_ATTR_SCALE, s->scale);
    lathe_imp_int(c, n, LATHE_ATTR_CAUSAL, causal);
    lathe_imp_float(c, n, LATHE_ATTR_SOFTCAP, s->softcap);
    lathe_value_id y = lathe_imp_end(c, n);
    if (last)
        return;
    y = lathe_imp_cast(c, y, dtype);
    if (!s->token_major) {
        lathe_imp_bind(c, 0, y);
        return;
    }
    y = lathe_imp_transpose(c, y, heads_first, 4);
    lathe_dim width = lathe_dim_mul(c->g->dims, lathe_imp_dim(c, y, 2), lathe_imp_dim(c, y, 3));
    const lathe_dim dims[3] = {lathe_imp_dim(c, y, 0), lathe_imp_dim(c, y, 1), width};
    lathe_imp_result_view(c, 0, y, 3, dims);
}

LATHE_IMPORTER(attention23) {
    struct standard s = {.mask = lathe_imp_in(c, 3), .token_major = lathe_imp_rank(c, c->in[0]) == 3};
    bool causal = lathe_imp_attr_int(c, "is_causal", 0) != 0;
    int64_t left = lathe_imp_attr_int(c, "left_window_size", -1),
            right = lathe_imp_attr_int(c, "right_window_size", -1);
    int64_t mode = lathe_imp_attr_int(c, "qk_matmul_output_mode", 0);
    lathe_imp_ignore_attr(c, "softmax_precision"); /* f32 whatever the storage, the most exact that can be asked for */
    lathe_imp_ignore_attr(c, "q_num_heads");
    lathe_imp_ignore_attr(c, "kv_num_heads");
    s.q = by_head(c, c->in[0], "q_num_heads");
    s.k = with_past(c, 4, 1, by_head(c, c->in[1], "kv_num_heads"));
    s.v = with_past(c, 5, 2, by_head(c, c->in[2], "kv_num_heads"));
    int64_t size = lathe_imp_dim_const(c, s.q, 3, "the size of a head");
    s.scale = lathe_imp_attr_float(c, "scale", 0);
    s.softcap = lathe_imp_attr_float(c, "softcap", 0);
    if (c->status != LATHE_OK)
        return;
    if (!lathe_imp_has_attr(c, "scale"))
        s.scale = 1 / sqrt((double)(size < 1 ? 1 : size));
    s.batch = lathe_imp_dim(c, s.q, 0);
    s.queries = lathe_imp_dim(c, s.q, 2);
    s.keys = lathe_imp_dim(c, s.k, 2);
    lathe_value_id offset = LATHE_NONE, real_keys = LATHE_NONE;
    if (lathe_imp_has(c, 4)) {
        offset = dim_value(c, lathe_imp_dim(c, c->in[4], 2));
    } else if (lathe_imp_has(c, 6)) {
        real_keys = along(c, lathe_imp_cast(c, c->in[6], LATHE_I64), 0);
        offset = lathe_imp_binary(c, LATHE_OP_SUB, real_keys, dim_value(c, s.queries));
    }
    /* The plain triangle stays an attribute: the runtime then skips what it forbids. */
    bool plain = causal && left < 0 && right < 0 && offset == LATHE_NONE && real_keys == LATHE_NONE &&
                 s.queries == s.keys && !lathe_imp_wants(c, 3);
    lathe_value_id position = plain ? LATHE_NONE : position_mask(c, &s, causal, left, right, offset, real_keys);
    if (s.mask != LATHE_NONE)
        s.mask = fill_up_mask(c, s.mask, s.keys);
    if (s.mask != LATHE_NONE && position != LATHE_NONE) {
        enum lathe_dtype dtype = lathe_imp_dtype(c, s.mask);
        s.mask = dtype == LATHE_BOOL ? both(c, s.mask, position)
                                     : select_value(c, position, s.mask, lathe_imp_scalar(c, dtype, -INFINITY));
    } else if (position != LATHE_NONE) {
        s.mask = position;
    }
    emit_standard(c, &s, plain);
    if (lathe_imp_wants(c, 3))
        scores_output(c, &s, mode);
}

/* ---- rotary embedding */
static void emit_rotary(struct lathe_import *c, const lathe_value_id in[4], int64_t heads) {
    int64_t dim = lathe_imp_attr_int(c, "rotary_embedding_dim", 0);
    int rank = lathe_imp_rank(c, in[0]);
    if (rank != 3 && rank != 4)
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "its operand has rank %d; it must be 3 or 4", rank);
    if (c->status == LATHE_OK && rank == 3 && heads < 1) {
        /* The width of the tables says how wide a head is. */
        int64_t width = lathe_imp_dim_const(c, in[0], 2, "the width of its operand");
        int64_t half = lathe_imp_dim_const(c, in[1], -1, "the width of its tables");
        if (c->status == LATHE_OK && (half < 1 || dim > 0 || width % (2 * half)))
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "num_heads is missing for an operand of width %lld",
                                (long long)width);
        heads = half < 1 ? 1 : width / (2 * half);
    }
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_ROTARY, in, in[3] == LATHE_NONE ? 3 : 4);
    lathe_imp_int(c, n, LATHE_ATTR_INTERLEAVED, lathe_imp_attr_int(c, "interleaved", 0) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_ROTARY_DIM, dim);
    if (rank == 3)
        lathe_imp_int(c, n, LATHE_ATTR_HEADS, heads);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(rotary23) {
    const lathe_value_id in[4] = {c->in[0], c->in[1], c->in[2], lathe_imp_in(c, 3)};
    emit_rotary(c, in, lathe_imp_attr_int(c, "num_heads", 0));
}

LATHE_IMPORTER(ms_rotary) {
    const lathe_value_id in[4] = {c->in[0], c->in[2], c->in[3], c->in[1]};
    if (lathe_imp_attr_int(c, "is_packed_batching", 0))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "is_packed_batching is not supported");
    if (lathe_imp_attr_float(c, "scale", 1) != 1)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED, "scale is not 1");
    emit_rotary(c, in, lathe_imp_attr_int(c, "num_heads", 0));
}
