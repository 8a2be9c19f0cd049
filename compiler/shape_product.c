/* Matrix products. */
#include "shape_internal.h"

static enum lathe_status same_type(struct shape_ctx *c, uint32_t a, uint32_t b) {
    if (lathe_shape_value(c, a)->dtype == lathe_shape_value(c, b)->dtype)
        return LATHE_OK;
    return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operands are %s and %s, they must be of one type",
                            lathe_dtype_name(lathe_shape_value(c, a)->dtype),
                            lathe_dtype_name(lathe_shape_value(c, b)->dtype));
}

static void swap_last(struct shape_dims *dims) {
    lathe_dim last = dims->d[dims->rank - 1];
    dims->d[dims->rank - 1] = dims->d[dims->rank - 2];
    dims->d[dims->rank - 2] = last;
}

/* numpy's rules: a vector on the left is a row, on the right a column, and its axis vanishes. */
enum lathe_status lathe_shape_matmul(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 1, LATHE_MAX_RANK));
    bool integer = c->g->nodes[c->n].op == LATHE_OP_MATMUL_INTEGER;
    if (!integer)
        LATHE_TRY(same_type(c, 0, 1));
    for (uint32_t k = 0; integer && k < 2; k++)
        if (lathe_shape_value(c, k)->dtype != LATHE_U8 && lathe_shape_value(c, k)->dtype != LATHE_I8)
            return lathe_shape_fail(c, LATHE_MSG_OPERAND_TYPE, "operand %u is %s, it must be u8 or i8", k,
                                    lathe_dtype_name(lathe_shape_value(c, k)->dtype));
    struct shape_dims a = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims b = lathe_shape_dims_of(c, lathe_shape_in(c, 1));
    bool row = a.rank == 1, column = b.rank == 1;
    if (row) {
        a.d[1] = a.d[0];
        a.d[0] = lathe_shape_const(c, 1);
        a.rank = 2;
    } else if (lathe_shape_attr_int(c, LATHE_ATTR_TRANS_A, 0)) {
        swap_last(&a);
    }
    if (column) {
        b.d[1] = lathe_shape_const(c, 1);
        b.rank = 2;
    } else if (lathe_shape_attr_int(c, LATHE_ATTR_TRANS_B, 0)) {
        swap_last(&b);
    }
    lathe_dim inner;
    LATHE_TRY(lathe_shape_equal(c, a.d[a.rank - 1], b.d[b.rank - 2], &inner));
    lathe_dim m = a.d[a.rank - 2], n = b.d[b.rank - 1];
    struct shape_dims out = {.rank = a.rank - 2}, other = {.rank = b.rank - 2};
    for (int i = 0; i < out.rank; i++)
        out.d[i] = a.d[i];
    for (int i = 0; i < other.rank; i++)
        other.d[i] = b.d[i];
    LATHE_TRY(lathe_shape_broadcast(c, &out, &other));
    if (!row)
        out.d[out.rank++] = lathe_dim_resolve(c->g->dims, m);
    if (!column)
        out.d[out.rank++] = lathe_dim_resolve(c->g->dims, n);
    lathe_shape_set(c, 0, integer ? LATHE_I32 : lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

enum lathe_status lathe_shape_gemm(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 2, 2));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 2, 2));
    LATHE_TRY(same_type(c, 0, 1));
    struct shape_dims a = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims b = lathe_shape_dims_of(c, lathe_shape_in(c, 1)), out = {.rank = 2};
    if (lathe_shape_attr_int(c, LATHE_ATTR_TRANS_A, 0))
        swap_last(&a);
    if (lathe_shape_attr_int(c, LATHE_ATTR_TRANS_B, 0))
        swap_last(&b);
    lathe_dim inner;
    LATHE_TRY(lathe_shape_equal(c, a.d[1], b.d[0], &inner));
    out.d[0] = lathe_dim_resolve(c->g->dims, a.d[0]);
    out.d[1] = lathe_dim_resolve(c->g->dims, b.d[1]);
    if (lathe_shape_in(c, 2) != LATHE_NONE) {
        LATHE_TRY(same_type(c, 0, 2));
        struct shape_dims bias = lathe_shape_dims_of(c, lathe_shape_in(c, 2)), wide = out;
        if (bias.rank > 2)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its addend has rank %d", bias.rank);
        LATHE_TRY(lathe_shape_broadcast(c, &wide, &bias));
        for (int i = 0; i < 2; i++) {
            out.d[i] = lathe_dim_resolve(c->g->dims, out.d[i]);
            if (wide.d[i] != out.d[i])
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "its addend does not broadcast to the product");
        }
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

/* x [.., K], packed [N, blocks, block bytes], scales [N * blocks], zeros, g_idx, bias. N is the packed rows. */
enum lathe_status lathe_shape_matmul_nbits(struct shape_ctx *c) {
    LATHE_TRY(lathe_shape_need_rank(c, 0, 1, LATHE_MAX_RANK));
    LATHE_TRY(lathe_shape_need_rank(c, 1, 2, 3));
    LATHE_TRY(lathe_shape_need_rank(c, 2, 1, 3));
    struct shape_dims out = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    struct shape_dims packed = lathe_shape_dims_of(c, lathe_shape_in(c, 1));
    int64_t bits = lathe_shape_attr_int(c, LATHE_ATTR_BITS, 4);
    int64_t block = lathe_shape_attr_int(c, LATHE_ATTR_BLOCK_SIZE, 0);
    int64_t k = lathe_shape_attr_int(c, LATHE_ATTR_K, 0), n, blocks, blob;
    if ((bits != 2 && bits != 4 && bits != 8) || block < 16 || block > 1 << 20 || (block & (block - 1)) || k < 1)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "%lld bits in blocks of %lld for K=%lld", (long long)bits,
                                (long long)block, (long long)k);
    int64_t want_blocks = (k - 1) / block + 1, want_blob = block * bits / 8;
    bool known = lathe_dim_is_const(c->g->dims, packed.d[0], &n);
    if (packed.rank == 3)
        known = known && lathe_dim_is_const(c->g->dims, packed.d[1], &blocks) &&
                lathe_dim_is_const(c->g->dims, packed.d[2], &blob) && blocks == want_blocks && blob == want_blob;
    else
        known = known && lathe_dim_is_const(c->g->dims, packed.d[1], &blob) && blob == want_blocks * want_blob;
    int64_t scales = lathe_value_count(c->g, lathe_shape_in(c, 2));
    if (!known || lathe_shape_value(c, 1)->dtype != LATHE_U8 || scales != n * want_blocks)
        return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH,
                                "packed weights must be u8 [N,%lld,%lld] with %lld scales a row",
                                (long long)want_blocks, (long long)want_blob, (long long)want_blocks);
    lathe_dim inner;
    LATHE_TRY(lathe_shape_equal(c, out.d[out.rank - 1], lathe_shape_const(c, k), &inner));
    for (int i = 0; i < out.rank; i++)
        out.d[i] = lathe_dim_resolve(c->g->dims, out.d[i]);
    out.d[out.rank - 1] = packed.d[0];
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}

/* The equation is an INTS attribute of characters: "ab,bc->ac", with "..." allowed; it was checked for syntax here. */
enum { LETTERS = 52 };

static int letter_index(int64_t ch) {
    if (ch >= 'a' && ch <= 'z')
        return (int)(ch - 'a');
    return ch >= 'A' && ch <= 'Z' ? (int)(ch - 'A') + 26 : -1;
}

struct equation {
    const int64_t *text;
    uint32_t length, at;
};

static void skip_blanks(struct equation *e) {
    while (e->at < e->length && e->text[e->at] == ' ')
        e->at++;
}

static bool take_dots(struct equation *e) {
    if (e->at + 3 > e->length || e->text[e->at] != '.' || e->text[e->at + 1] != '.' || e->text[e->at + 2] != '.')
        return false;
    e->at += 3;
    return true;
}

enum lathe_status lathe_shape_einsum(struct shape_ctx *c) {
    struct equation e = {.at = 0};
    e.text = lathe_shape_attr_ints(c, LATHE_ATTR_EQUATION, &e.length);
    lathe_dim size[LETTERS];
    int seen[LETTERS] = {0};
    struct shape_dims dots = {.rank = 0}, out = {.rank = 0};
    bool has_dots = false;
    for (int i = 0; i < LETTERS; i++)
        size[i] = LATHE_DIM_NONE;
    uint32_t n_in = c->g->nodes[c->n].n_in;
    for (uint32_t k = 0; k < n_in; k++) {
        LATHE_TRY(lathe_shape_need_rank(c, k, 0, LATHE_MAX_RANK));
        LATHE_TRY(same_type(c, 0, k));
        struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, k));
        /* The dots take what the letters of this term leave. */
        int letters = 0, axis = 0;
        for (uint32_t i = e.at; i < e.length && e.text[i] != ',' && e.text[i] != '-'; i++)
            letters += letter_index(e.text[i]) >= 0;
        for (skip_blanks(&e); e.at < e.length && e.text[e.at] != ',' && e.text[e.at] != '-'; skip_blanks(&e)) {
            if (take_dots(&e)) {
                struct shape_dims part = {.rank = in.rank - letters};
                if (part.rank < 0 || axis + part.rank > in.rank)
                    return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "term %u has more letters than axes", k);
                for (int i = 0; i < part.rank; i++)
                    part.d[i] = in.d[axis++];
                LATHE_TRY(lathe_shape_broadcast(c, &dots, &part));
                has_dots = true;
                continue;
            }
            int letter = letter_index(e.text[e.at++]);
            if (letter < 0 || axis >= in.rank)
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "term %u does not fit its operand", k);
            if (size[letter] == LATHE_DIM_NONE)
                size[letter] = in.d[axis];
            else
                LATHE_TRY(lathe_shape_broadcast_dim(c, size[letter], in.d[axis], &size[letter]));
            seen[letter]++;
            axis++;
        }
        if (axis != in.rank)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "term %u does not name every axis", k);
        if (k + 1 < n_in && (e.at >= e.length || e.text[e.at++] != ','))
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "the equation has fewer terms than operands");
    }
    skip_blanks(&e);
    bool explicit_form = e.at + 1 < e.length && e.text[e.at] == '-' && e.text[e.at + 1] == '>';
    if (e.at < e.length && !explicit_form)
        return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "the equation has more terms than operands");
    e.at += 2;
    bool put_dots = false;
    if (!explicit_form) {
        /* Implicit: the dots, then the letters that occur once, in alphabetical order (capitals first). */
        out = dots;
        for (int i = 0; i < LETTERS; i++) {
            int letter = (i + 26) % LETTERS;
            if (seen[letter] == 1) {
                if (out.rank == LATHE_MAX_RANK)
                    return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "ranks up to %d are supported", LATHE_MAX_RANK);
                out.d[out.rank++] = size[letter];
            }
        }
    }
    for (skip_blanks(&e); explicit_form && e.at < e.length; skip_blanks(&e)) {
        if (take_dots(&e)) {
            if (!has_dots || put_dots || out.rank + dots.rank > LATHE_MAX_RANK)
                return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "the dots of the result fit no term");
            for (int i = 0; i < dots.rank; i++)
                out.d[out.rank++] = dots.d[i];
            put_dots = true;
            continue;
        }
        int letter = letter_index(e.text[e.at++]);
        if (letter < 0 || size[letter] == LATHE_DIM_NONE || out.rank == LATHE_MAX_RANK)
            return lathe_shape_fail(c, LATHE_MSG_NODE_ATTRIBUTE, "a letter of the result stands in no term");
        out.d[out.rank++] = size[letter];
    }
    for (int i = 0; i < out.rank; i++)
        out.d[i] = lathe_dim_resolve(c->g->dims, out.d[i]);
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    return LATHE_OK;
}
