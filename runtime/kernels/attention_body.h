/* attention_f32 on the vector layer. The including file defines ATTENTION_NAME, ATTENTION_GEMM, ATTENTION_PACK_A and
 * ATTENTION_MR of its gemm row, and ATTENTION_BF16_NAME for attention_bf16, which rounds queries, keys, values and
 * weights and is the same otherwise.
 *
 * Everything is held transposed, queries across the lanes: S^T = K Q^T in a strip [keys][32 queries], softmax down the
 * keys, O^T = V^T P^T. A strip is then the B operand of the second product as it lies, V is its A operand as it lies,
 * and no step needs a sum or maximum across lanes. Keys come in blocks of LATHE_ATTENTION_KEYS with a running maximum
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax"); one block needs no rescaling. */
#ifndef LATHE_ATTENTION_BODY_H
#define LATHE_ATTENTION_BODY_H

#include "attention_parts_body.h"
#include "gemm_pack_a_body.h"
#include "kernel_rows.h"

/* Rounds in place. `n` floats, behind which up to VN - 1 more may be written. */
static void attention_round(float *x, size_t n) {
    for (size_t i = 0; i < n; i += VN)
        v_store(x + i, v_round_bf16(v_load(x + i)));
}

/* e^(s scale - maximum) in base 2. The difference comes first: a mask constant such as -3.4e38 may be the maximum, and
 * times log2(e) it would be -inf. */
static inline vf attention_weight(const float *s, vf scale, vf minus_top, bool rounds) {
    vf weight = v_exp2(v_fma(v_load(s), scale, minus_top) * v_set1(1.44269504f));
    if (rounds)
        weight = v_round_bf16(weight);
    return weight;
}

/* One vector of queries of the strip: the running maximum and sum move on, the strip becomes e^(s scale - maximum), and
 * the outputs so far are rescaled. Key j adds to partial sum j % 2 whatever lo is. */
static inline __attribute__((always_inline)) void attention_softmax(float *strip, size_t lo, size_t hi, vf scale,
                                                                    bool first, const bool rounds, float *max,
                                                                    float *sum, float *o, size_t dv) {
    /* Four maxima: one alone waits for itself. */
    vf before = v_load(max), top = v_set1(-__builtin_inff()), tops[4] = {top, top, top, top};
    size_t k = lo;
    for (; k + 4 <= hi; k += 4) {
        LATHE_UNROLL
        for (size_t i = 0; i < 4; i++)
            tops[i] = v_max(v_load(strip + (k + i) * AQ), tops[i]);
    }
    LATHE_NO_UNROLL
    for (; k < hi; k++)
        tops[0] = v_max(v_load(strip + k * AQ), tops[0]);
    top = v_max(v_max(tops[0], tops[1]), v_max(tops[2], tops[3]));
    top = v_max(top * scale, before);
    v_store(max, top);
    /* Without any key so far every exponent is -inf - 0. */
    top = v_select(v_lt(v_set1(-__builtin_inff()), top), top, v_set1(0.0f));
    vf minus_top = v_set1(0.0f) - top;
    vf total[2] = {v_set1(0.0f), v_set1(0.0f)};
    size_t j = lo;
    if (j % 2 != 0 && j < hi) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top, rounds);
        v_store(strip + j * AQ, e);
        total[1] = e;
        j++;
    }
    for (; j + 2 <= hi; j += 2) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top, rounds);
        vf f = attention_weight(strip + (j + 1) * AQ, scale, minus_top, rounds);
        v_store(strip + j * AQ, e);
        v_store(strip + (j + 1) * AQ, f);
        total[0] = total[0] + e;
        total[1] = total[1] + f;
    }
    if (j < hi) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top, rounds);
        v_store(strip + j * AQ, e);
        total[0] = total[0] + e;
    }
    vf all = total[0] + total[1];
    if (!first) {
        vf shrink = v_exp2((before - top) * v_set1(1.44269504f));
        all = v_fma(v_load(sum), shrink, all);
        for (size_t i = 0; i < dv; i++)
            v_store(o + i * AQ, v_load(o + i * AQ) * shrink);
    }
    v_store(sum, all);
}

/* Functions of their own: inlined into the loop over queries each is there several times. */
static __attribute__((noinline)) void attention_weights(float *strip, size_t lo, size_t hi, vf scale, bool first,
                                                        float *max, float *sum, float *o, size_t dv) {
    attention_softmax(strip, lo, hi, scale, first, false, max, sum, o, dv);
}

static __attribute__((noinline)) void attention_rounded_weights(float *strip, size_t lo, size_t hi, vf scale,
                                                                bool first, float *max, float *sum, float *o,
                                                                size_t dv) {
    attention_softmax(strip, lo, hi, scale, first, true, max, sum, o, dv);
}

/* Group g against keys [lo, hi) of the block that starts at key0. */
static void attention_block(const struct attention_state *st, size_t g, size_t key0, size_t lo, size_t hi,
                            size_t block_keys, bool first, bool plain, bool rounds, const float *v, size_t ldv) {
    const struct lathe_attention_f32_args *args = st->args;
    size_t q0 = g * AQ, nq = args->nq - q0 < AQ ? args->nq - q0 : AQ;
    size_t panels = (nq + 15) / 16, tiles = lathe_gemm_tiles(block_keys, ATTENTION_MR);
    float *strip = st->strip;
    struct lathe_gemm_f32_tile tile = {.cols = panels * 16,
                                       .k = args->d,
                                       .b = st->qt + g * AQ * args->d,
                                       .ldb = 16,
                                       .panel_stride = 16 * args->d,
                                       .ldc = AQ};
    for (size_t i = 0; i < tiles; i++) {
        size_t from = lathe_gemm_tile_begin(block_keys, ATTENTION_MR, i);
        size_t to = lathe_gemm_tile_begin(block_keys, ATTENTION_MR, i + 1);
        if (to <= lo || from >= hi)
            continue;
        tile.rows = to - from;
        tile.lda = to - from;
        tile.a = st->k + from * args->d;
        tile.c = strip + from * AQ;
        ATTENTION_GEMM(&tile);
    }
    vf scale = v_set1(args->scale);
    if (!plain) {
        attention_mask(st, q0, nq, key0, lo, hi);
        scale = v_set1(1.0f);
    }
    float *o = st->o + g * AQ * args->dv;
    for (size_t q = 0; q < panels * 16; q += VN)
        (rounds ? attention_rounded_weights : attention_weights)(strip + q, lo, hi, scale, first, st->max + q0 + q,
                                                                 st->sum + q0 + q, o + q, args->dv);
    size_t dv = args->dv, parts = lathe_gemm_tiles(dv, ATTENTION_MR);
    for (size_t i = 0; i < parts; i++) {
        size_t from = lathe_gemm_tile_begin(dv, ATTENTION_MR, i);
        size_t to = lathe_gemm_tile_begin(dv, ATTENTION_MR, i + 1);
        struct lathe_gemm_f32_tile product = {.rows = to - from,
                                              .cols = panels * 16,
                                              .k = hi - lo,
                                              .a = v + lo * ldv + from,
                                              .lda = ldv,
                                              .b = strip + lo * AQ,
                                              .ldb = AQ,
                                              .panel_stride = 16,
                                              .c = o + from * AQ,
                                              .ldc = AQ,
                                              .accumulate = !first};
        ATTENTION_GEMM(&product);
    }
}

static __attribute__((noinline)) void attention_run(const struct lathe_attention_f32_args *args, bool rounds) {
    size_t groups = (args->nq + AQ - 1) / AQ, d = args->d, dv = args->dv;
    struct attention_state st;
    bool plain = attention_start(args, &st);

    for (size_t q = 0; q < groups * AQ; q += 16) {
        float *panel = st.qt + q * d;
        size_t n = q >= args->nq ? 0 : args->nq - q < 16 ? args->nq - q : 16;
        if (n < 16)
            memset(panel, 0, 16 * d * sizeof *panel);
        for (size_t i = 0; i < n; i += VN)
            gemm_pack_a(n - i < VN ? n - i : VN, d, args->q + (q + i) * args->ldq, args->ldq, NULL, panel + i, 16);
    }
    if (rounds)
        attention_round(st.qt, groups * AQ * d);
    for (size_t key0 = 0; key0 < args->nk; key0 += AK) {
        size_t keys = args->nk - key0 < AK ? args->nk - key0 : AK;
        size_t tiles = lathe_gemm_tiles(keys, ATTENTION_MR);
        for (size_t i = 0; i < tiles; i++) {
            size_t from = lathe_gemm_tile_begin(keys, ATTENTION_MR, i);
            size_t to = lathe_gemm_tile_begin(keys, ATTENTION_MR, i + 1);
            ATTENTION_PACK_A(to - from, d, args->k + (key0 + from) * args->ldk, args->ldk, st.k + from * d);
        }
        if (rounds)
            attention_round(st.k, keys * d);
        const float *v = args->v + key0 * args->ldv;
        size_t ldv = args->ldv;
        if (groups > 1 || rounds) {
            for (size_t j = 0; j < keys; j++)
                memcpy(st.v + j * dv, v + j * ldv, dv * sizeof *v);
            if (rounds)
                attention_round(st.v, keys * dv);
            v = st.v;
            ldv = dv;
        }
        for (size_t g = 0; g < groups; g++) {
            size_t lo, hi, nq = args->nq - g * AQ < AQ ? args->nq - g * AQ : AQ;
            attention_span(args, g * AQ, nq, key0, keys, &lo, &hi);
            if (lo >= hi)
                continue;
            attention_block(&st, g, key0, lo, hi, keys, st.started[g] == 0.0f, plain, rounds, v, ldv);
            st.started[g] = 1.0f;
        }
    }
    for (size_t g = 0; g < groups; g++)
        attention_finish(&st, g);
}

void ATTENTION_NAME(const struct lathe_attention_f32_args *args) {
    attention_run(args, false);
}

void ATTENTION_BF16_NAME(const struct lathe_attention_f32_args *args) {
    attention_run(args, true);
}
#endif
