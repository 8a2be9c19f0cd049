/* attention_f32 on the vector layer. The including file defines ATTENTION_NAME, ATTENTION_GEMM, ATTENTION_PACK_A and
 * ATTENTION_MR of its gemm row.
 *
 * Everything is held transposed, queries across the lanes: S^T = K Q^T in a strip [keys][32 queries], softmax down the
 * keys, O^T = V^T P^T. A strip is then the B operand of the second product as it lies, V is its A operand as it lies,
 * and no step needs a sum or maximum across lanes. Keys come in blocks of LATHE_ATTENTION_KEYS with a running maximum
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax"); one block needs no rescaling. */
#ifndef LATHE_ATTENTION_BODY_H
#define LATHE_ATTENTION_BODY_H

#include "attention_shape.h"
#include "gemm_pack_a_body.h"
#include "kernel_rows.h"
#include "math_body.h"
#include "unroll.h"

#include <string.h>

#define AQ LATHE_ATTENTION_QUERIES
#define AK LATHE_ATTENTION_KEYS
#define AV (AQ / VN) /* vectors a strip line */

struct attention_state {
    const struct lathe_attention_f32_args *args;
    float *qt, *o, *max, *sum; /* of group g: qt + g AQ d, o + g AQ dv, max + g AQ, sum + g AQ */
    float *started;            /* of group g: not 0 once a block was taken in */
    float *k, *v, *strip;      /* of the block at hand */
};

/* strip[j][q] += bias[q][j] for keys [lo, hi), by VN x VN blocks turned in registers. */
static void attention_add_bias(const float *bias, size_t ldb, size_t nq, size_t lo, size_t hi, float *strip) {
    size_t j = lo;
#if VN > 1
    for (; j + VN <= hi; j += VN)
        for (size_t q = 0; q < nq; q += VN) {
            vf block[VN];
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++)
                block[i] = q + i < nq ? v_load(bias + (q + i) * ldb + j) : v_set1(0.0f);
            v_transpose(block);
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++) {
                float *s = strip + (j + i) * AQ + q;
                v_store(s, v_load(s) + block[i]);
            }
        }
#endif
    for (; j < hi; j++)
        for (size_t q = 0; q < nq; q++)
            strip[j * AQ + q] += bias[q * ldb + j];
}

/* The strip in place: s = softcap(s scale) + bias, -inf where a key is not allowed. Keys [lo, hi) of the block that
 * starts at key0. */
static void attention_mask(const struct attention_state *st, size_t q0, size_t nq, size_t key0, size_t lo, size_t hi) {
    const struct lathe_attention_f32_args *args = st->args;
    const vf scale = v_set1(args->scale), none = v_set1(-__builtin_inff());
    float *strip = st->strip;
    for (size_t j = lo; j < hi; j++)
        for (size_t v = 0; v < AV; v++)
            v_store(strip + j * AQ + v * VN, v_load(strip + j * AQ + v * VN) * scale);
    if (args->softcap != 0.0f) {
        const vf cap = v_set1(args->softcap);
        for (size_t j = lo; j < hi; j++)
            for (size_t v = 0; v < AV; v++) {
                float *s = strip + j * AQ + v * VN;
                v_store(s, cap * v_tanh(v_load(s) / cap));
            }
    }
    if (args->bias)
        attention_add_bias(args->bias + q0 * args->ldb + key0, args->ldb, nq, lo, hi, strip);
    if (args->allow)
        for (size_t q = 0; q < nq; q++) {
            const uint8_t *line = args->allow + (q0 + q) * args->ld_allow + key0;
            for (size_t j = lo; j < hi; j++)
                if (!line[j])
                    strip[j * AQ + q] = -__builtin_inff();
        }
    if (args->first || args->last) {
        float from[AQ], to[AQ]; /* relative to the block; exact: fewer than 2^24 keys apart */
        for (size_t q = 0; q < AQ; q++) {
            size_t i = q0 + (q < nq ? q : nq - 1);
            int64_t a = args->first ? args->first[i] - (int64_t)key0 : 0;
            int64_t b = args->last ? args->last[i] - (int64_t)key0 : AK;
            from[q] = (float)(a < 0 ? 0 : a > AK ? AK : a);
            to[q] = (float)(b < 0 ? 0 : b > AK ? AK : b);
        }
        for (size_t j = lo; j < hi; j++) {
            vf at = v_set1((float)j);
            for (size_t v = 0; v < AV; v++) {
                float *s = strip + j * AQ + v * VN;
                vf x = v_select(v_lt(at, v_load(from + v * VN)), none, v_load(s));
                v_store(s, v_select(v_lt(at, v_load(to + v * VN)), x, none));
            }
        }
    }
}

/* e^(s scale - maximum) in base 2. The difference comes first: a mask constant such as -3.4e38 may be the maximum, and
 * times log2(e) it would be -inf. */
static inline vf attention_weight(const float *s, vf scale, vf minus_top) {
    return v_exp2(v_fma(v_load(s), scale, minus_top) * v_set1(1.44269504f));
}

/* One vector of queries of the strip: the running maximum and sum move on, the strip becomes e^(s scale - maximum), and
 * the outputs so far are rescaled. Key j adds to partial sum j % 2 whatever lo is. */
static inline void attention_softmax(float *strip, size_t lo, size_t hi, vf scale, bool first, float *max, float *sum,
                                     float *o, size_t dv) {
    vf before = v_load(max), top = v_set1(-__builtin_inff());
    for (size_t j = lo; j < hi; j++)
        top = v_max(v_load(strip + j * AQ), top);
    top = v_max(top * scale, before);
    v_store(max, top);
    /* Without any key so far every exponent is -inf - 0. */
    top = v_select(v_lt(v_set1(-__builtin_inff()), top), top, v_set1(0.0f));
    vf minus_top = v_set1(0.0f) - top;
    vf total[2] = {v_set1(0.0f), v_set1(0.0f)};
    size_t j = lo;
    if (j % 2 != 0 && j < hi) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top);
        v_store(strip + j * AQ, e);
        total[1] = e;
        j++;
    }
    for (; j + 2 <= hi; j += 2) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top);
        vf f = attention_weight(strip + (j + 1) * AQ, scale, minus_top);
        v_store(strip + j * AQ, e);
        v_store(strip + (j + 1) * AQ, f);
        total[0] = total[0] + e;
        total[1] = total[1] + f;
    }
    if (j < hi) {
        vf e = attention_weight(strip + j * AQ, scale, minus_top);
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

/* Group g against keys [lo, hi) of the block that starts at key0. */
static void attention_block(const struct attention_state *st, size_t g, size_t key0, size_t lo, size_t hi,
                            size_t block_keys, bool first, bool plain, const float *v, size_t ldv) {
    const struct lathe_attention_f32_args *args = st->args;
    size_t q0 = g * AQ, nq = args->nq - q0 < AQ ? args->nq - q0 : AQ;
    size_t panels = (nq + 15) / 16, tiles = (block_keys + ATTENTION_MR - 1) / ATTENTION_MR;
    float *strip = st->strip;
    struct lathe_gemm_f32_tile tile = {.cols = panels * 16,
                                       .k = args->d,
                                       .b = st->qt + g * AQ * args->d,
                                       .ldb = 16,
                                       .panel_stride = 16 * args->d,
                                       .ldc = AQ};
    for (size_t i = 0; i < tiles; i++) {
        size_t from = block_keys * i / tiles, to = block_keys * (i + 1) / tiles;
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
        attention_softmax(strip + q, lo, hi, scale, first, st->max + q0 + q, st->sum + q0 + q, o + q, args->dv);
    size_t parts = (args->dv + ATTENTION_MR - 1) / ATTENTION_MR;
    for (size_t i = 0; i < parts; i++) {
        size_t from = args->dv * i / parts, to = args->dv * (i + 1) / parts;
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

/* out = O / sum, back to one row a query. */
static void attention_finish(const struct attention_state *st, size_t g) {
    const struct lathe_attention_f32_args *args = st->args;
    size_t q0 = g * AQ, nq = args->nq - q0 < AQ ? args->nq - q0 : AQ;
    float *o = st->o + g * AQ * args->dv;
    for (size_t q = 0; q < nq; q += VN) {
        size_t lanes = nq - q < VN ? nq - q : VN;
        float factor[VN];
        for (size_t i = 0; i < lanes; i++) {
            float sum = st->sum[q0 + q + i];
            bool any = sum != 0.0f; /* also when it is NaN */
            factor[i] = any ? 1.0f / sum : 0.0f;
            if (args->no_key)
                args->no_key[q0 + q + i] = !any;
            if (!any) /* what lies there may be no number */
                for (size_t c = 0; c < args->dv; c++)
                    o[c * AQ + q + i] = 0.0f;
        }
        for (size_t i = lanes; i < VN; i++)
            factor[i] = 0.0f;
        size_t c = 0;
#if VN > 1
        vf f = v_load(factor);
        for (; c + VN <= args->dv; c += VN) {
            vf block[VN];
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++)
                block[i] = v_load(o + (c + i) * AQ + q) * f;
            v_transpose(block);
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++)
                if (i < lanes)
                    v_store(args->out + (q0 + q + i) * args->ldo + c, block[i]);
        }
#endif
        for (; c < args->dv; c++)
            for (size_t i = 0; i < lanes; i++)
                args->out[(q0 + q + i) * args->ldo + c] = o[c * AQ + q + i] * factor[i];
    }
}

/* The keys of the block that some query of the group may see. */
static void attention_span(const struct lathe_attention_f32_args *args, size_t q0, size_t nq, size_t key0, size_t keys,
                           size_t *lo, size_t *hi) {
    *lo = 0;
    *hi = keys;
    if (args->first) {
        int64_t least = INT64_MAX;
        for (size_t q = 0; q < nq; q++)
            least = args->first[q0 + q] < least ? args->first[q0 + q] : least;
        least -= (int64_t)key0;
        *lo = least <= 0 ? 0 : least >= (int64_t)keys ? keys : (size_t)least;
    }
    if (args->last) {
        int64_t most = 0;
        for (size_t q = 0; q < nq; q++)
            most = args->last[q0 + q] > most ? args->last[q0 + q] : most;
        most -= (int64_t)key0;
        *hi = most <= 0 ? 0 : most >= (int64_t)keys ? keys : (size_t)most;
    }
}

void ATTENTION_NAME(const struct lathe_attention_f32_args *args) {
    size_t groups = (args->nq + AQ - 1) / AQ, d = args->d, dv = args->dv;
    struct attention_state st = {.args = args};
    st.qt = args->scratch;
    st.o = st.qt + groups * AQ * d;
    st.max = st.o + groups * AQ * dv;
    st.sum = st.max + groups * AQ;
    st.strip = st.sum + groups * AQ;
    st.k = st.strip + AK * AQ;
    st.v = st.k + AK * d + 16;
    st.started = st.v + AK * dv;
    bool plain = args->softcap == 0.0f && !args->bias && !args->allow && !args->first && !args->last && args->scale > 0;

    for (size_t q = 0; q < groups * AQ; q += 16) {
        float *panel = st.qt + q * d;
        size_t n = q >= args->nq ? 0 : args->nq - q < 16 ? args->nq - q : 16;
        if (n < 16)
            memset(panel, 0, 16 * d * sizeof *panel);
        for (size_t i = 0; i < n; i += VN)
            gemm_pack_a(n - i < VN ? n - i : VN, d, args->q + (q + i) * args->ldq, args->ldq, panel + i, 16);
    }
    memset(st.started, 0, groups * sizeof *st.started);
    for (size_t i = 0; i < groups * AQ; i++) {
        st.max[i] = -__builtin_inff();
        st.sum[i] = 0.0f;
    }
    for (size_t key0 = 0; key0 < args->nk; key0 += AK) {
        size_t keys = args->nk - key0 < AK ? args->nk - key0 : AK;
        size_t tiles = (keys + ATTENTION_MR - 1) / ATTENTION_MR;
        for (size_t i = 0; i < tiles; i++) {
            size_t from = keys * i / tiles, to = keys * (i + 1) / tiles;
            ATTENTION_PACK_A(to - from, d, args->k + (key0 + from) * args->ldk, args->ldk, st.k + from * d);
        }
        const float *v = args->v + key0 * args->ldv;
        size_t ldv = args->ldv;
        if (groups > 1) {
            for (size_t j = 0; j < keys; j++)
                memcpy(st.v + j * dv, v + j * ldv, dv * sizeof *v);
            v = st.v;
            ldv = dv;
        }
        for (size_t g = 0; g < groups; g++) {
            size_t lo, hi, nq = args->nq - g * AQ < AQ ? args->nq - g * AQ : AQ;
            attention_span(args, g * AQ, nq, key0, keys, &lo, &hi);
            if (lo >= hi)
                continue;
            attention_block(&st, g, key0, lo, hi, keys, st.started[g] == 0.0f, plain, v, ldv);
            st.started[g] = 1.0f;
        }
    }
    for (size_t g = 0; g < groups; g++)
        attention_finish(&st, g);
}
#endif
