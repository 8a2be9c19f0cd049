/* What attention_f32 and attention_bf16 share on the vector layer: scratch, masks, the span of keys, the way back to
 * rows. Scores and outputs are held transposed, queries across the lanes: a strip [keys][32 queries] for a block of
 * keys, outputs [dv][32 queries]. */
#ifndef LATHE_ATTENTION_PARTS_BODY_H
#define LATHE_ATTENTION_PARTS_BODY_H

#include "attention_shape.h"
#include "kernel.h"
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

/* Masks and the way back to rows are large. Files of one instruction set share them: they define
 * ATTENTION_SHARED(name), all but one ATTENTION_ELSEWHERE too. */
#ifdef ATTENTION_SHARED
#define ATTENTION_PART
#define attention_mask   ATTENTION_SHARED(attention_mask)
#define attention_finish ATTENTION_SHARED(attention_finish)
void attention_mask(const struct attention_state *st, size_t q0, size_t nq, size_t key0, size_t lo, size_t hi);
void attention_finish(const struct attention_state *st, size_t g);
#else
#define ATTENTION_PART static
#endif
#ifndef ATTENTION_ELSEWHERE

/* strip[j][q] = strip[j][q] scale + bias[q][j] for keys [lo, hi), by VN x VN blocks turned in registers; both rounded.
 */
static void attention_add_bias(const float *bias, size_t ldb, size_t nq, size_t lo, size_t hi, float scale,
                               float *strip) {
    size_t j = lo;
#if VN > 1
    for (; j + VN <= hi; j += VN)
        for (size_t q = 0; q < nq; q += VN) {
            vf block[VN];
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++) {
                const float *row = bias + (q + (q + i < nq ? i : 0)) * ldb + j;
                block[i] = v_load(row);
                __builtin_prefetch(row + 64, 0, 3); /* of rows this far apart no hardware does */
            }
            v_transpose(block);
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++) {
                float *s = strip + (j + i) * AQ + q;
                v_store(s, v_load(s) * v_set1(scale) + block[i]);
            }
        }
#endif
    for (; j < hi; j++)
        for (size_t q = 0; q < nq; q++)
            strip[j * AQ + q] = strip[j * AQ + q] * scale + bias[q * ldb + j];
}

/* The strip in place: s = softcap(s scale) + bias, -inf where a key is not allowed. Keys [lo, hi) of the block that
 * starts at key0. */
ATTENTION_PART void attention_mask(const struct attention_state *st, size_t q0, size_t nq, size_t key0, size_t lo,
                                   size_t hi) {
    const struct lathe_attention_f32_args *args = st->args;
    const vf scale = v_set1(args->scale), none = v_set1(-__builtin_inff());
    float *strip = st->strip;
    const bool later = args->bias && args->softcap == 0.0f; /* scaled with the bias */
    for (size_t j = lo; !later && j < hi; j++)
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
        attention_add_bias(args->bias + q0 * args->ldb + key0, args->ldb, nq, lo, hi, later ? args->scale : 1.0f,
                           strip);
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

/* out = O / sum, back to one row a query. */
ATTENTION_PART void attention_finish(const struct attention_state *st, size_t g) {
    const struct lathe_attention_f32_args *args = st->args;
    size_t q0 = g * AQ, nq = args->nq - q0 < AQ ? args->nq - q0 : AQ;
    float *o = st->o + g * AQ * args->dv;
    for (size_t q = 0; q < nq; q += VN) {
        size_t lanes = nq - q < VN ? nq - q : VN;
        /* A sum is about 1 at least, NaN, or 0 without any key: what o holds then may be no number. */
        vf sum = v_load(st->sum + q0 + q), f = v_set1(1.0f) / sum;
        float factor[VN];
        v_store(factor, f);
        for (size_t i = 0; args->no_key && i < lanes; i++)
            args->no_key[q0 + q + i] = st->sum[q0 + q + i] == 0.0f;
        size_t c = 0;
#if VN > 1
        const vf zero = v_set1(0.0f);
        const vm none = v_lt(sum, v_set1(0.5f));
        for (; c + VN <= args->dv; c += VN) {
            vf block[VN];
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++)
                block[i] = v_select(none, zero, v_load(o + (c + i) * AQ + q) * f);
            v_transpose(block);
            LATHE_UNROLL
            for (size_t i = 0; i < VN; i++)
                if (i < lanes)
                    v_store(args->out + (q0 + q + i) * args->ldo + c, block[i]);
        }
#endif
        for (; c < args->dv; c++) {
            LATHE_NO_UNROLL
            for (size_t i = 0; i < lanes; i++) {
                float x = o[c * AQ + q + i] * factor[i];
                args->out[(q0 + q + i) * args->ldo + c] = st->sum[q0 + q + i] == 0.0f ? 0.0f : x;
            }
        }
    }
}
#endif

/* Parts of the scratch, with no block taken in. Returns whether scores need nothing but a positive scale. */
static bool attention_start(const struct lathe_attention_f32_args *args, struct attention_state *st) {
    size_t groups = (args->nq + AQ - 1) / AQ, d = args->d, dv = args->dv;
    st->args = args;
    st->qt = args->scratch;
    st->o = st->qt + groups * AQ * d;
    st->max = st->o + groups * AQ * dv;
    st->sum = st->max + groups * AQ;
    st->strip = st->sum + groups * AQ;
    st->k = st->strip + AK * AQ;
    st->v = st->k + AK * d + 16;
    st->started = st->v + AK * dv;
    memset(st->started, 0, groups * sizeof *st->started);
    for (size_t i = 0; i < groups * AQ; i++) {
        st->max[i] = -__builtin_inff();
        st->sum[i] = 0.0f;
    }
    return args->softcap == 0.0f && !args->bias && !args->allow && !args->first && !args->last && args->scale > 0;
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

#endif
