/* attention_q8 on vectors, included by one file an instruction set. The scheme is attention_q8_scheme.h's. The
 * including file defines
 *   AQ8_NAME                       the function made here
 *   AQ8_CPD                        numbers of a 32-bit word: 4 bytes, or 2 of 16 bits
 *   AQ8_TILE                       keys, or columns of values, whose sums for two vectors of queries fit the registers;
 *                                  a divisor of VN
 *   aq8_store_key(p, x)            VN columns of a key, rounded half to even, from a vector of floats
 *   aq8_join(x)                    words of the AQ8_CPD vectors of integers x, signed, cut to what fits
 *   aq8_weigh(y, e)                e of four keys from their distances y: two vectors of 16 bits
 *   aq8_add16, aq8_low             sums of 16 bits; their low bytes
 *   aq8_words_high(e, words)       the high bytes of four keys as 4 / AQ8_CPD vectors of words; _low: the low ones
 *   aq8_words_whole(e, words)      with words of 16 bits: e - 32768
 *   aq8_dot_key(acc, key, query)   acc plus the AQ8_CPD products in each lane
 *   aq8_dot_value(acc, weights, values)   the same
 *
 * Queries lie across the lanes, one or two vectors of them, so that softmax needs nothing of its neighbours: their
 * scores against a block of keys lie in a strip that the first cache holds, become weights from the front of the strip
 * on, in the order in which the product with the values takes them, and are gone. Keys and values are brought into
 * words once a call, in the order of their rows:
 *
 *   keys    [key][word of AQ8_CPD columns]
 *   values  [word of AQ8_CPD keys][column]
 *   queries [word of AQ8_CPD columns][vector][VN], for a tile
 *   strip   [key][vector][VN], then weights [word of AQ8_CPD keys][vector][VN]
 *   total   [column][vector][VN]
 *
 * One core of an EPYC of the Zen 5 class, us a head at 8, 32, 64, 128, 256, 512 tokens (tests/bench/bench_kernels):
 *
 *   heads of 64: AVX-512 f32 0.4 1.5 5.7 20.6 77 305; VNNI 0.4 1.3 3.4 8.3 27 98
 *                AVX2 f32 0.5 2.8 10.0 38.5 150 595; AVX2 0.6 2.9 8.2 26.5 95 362; AVX-VNNI 0.5 2.3 6.3 15.4 52 193
 *   heads of 32: AVX-512 f32 0.2 0.8 3.1 11.5 43 168; VNNI 0.2 0.7 1.9 4.8 15.4 56
 *
 * Of 56 the products are 33, at their peak 30.6; weights 11; ranges, words, queries and outputs 11. With keys across
 * the lanes, weights of 13 and values of 11 bits it was 0.5 1.1 2.8 8.0 25 92. Weights made between the products of
 * the next block are no faster (57 to 63), blocks of 64 to 256 keys equal, nor do the next head's rows need asking for.
 * Steps of whole models on both cores, ms at 8, 32, 64, 128, 256, 512 tokens, from that scheme to this one:
 *
 *   minilm-l6  0.023 0.048 0.116 0.322 0.99 3.48 -> 0.014 0.034 0.084 0.198 0.615 2.10
 *   distilbert 0.025 0.060 0.150 0.427 1.36 4.93 -> 0.018 0.052 0.130 0.298 0.94 3.68 */
#ifndef LATHE_ATTENTION_Q8_BODY_H
#define LATHE_ATTENTION_Q8_BODY_H

#include "attention_q8_scheme.h"
#include "attention_shape.h"
#include "kernel_rows.h"
#include "unroll.h"

#include <string.h>

#define AQ8_VECTORS 2                    /* of queries in a tile, at most */
#define AQ8_GROUP   16                   /* keys are padded to whole groups */
#define AQ8_REST    (LATHE_Q8_BLOCK / 2) /* line of the strip where the low bytes of few keys begin */

struct aq8 {
    const struct lathe_attention_f32_args *args;
    const int32_t *index; /* of the keys that take part, NULL: all */
    size_t keys;          /* how many do */
    size_t steps;         /* words of a key; d is padded to VN */
    size_t columns;       /* dv padded to VN */
    float *k_low, *k_scale, *k_inverse, *v_low, *v_scale, *v_inverse, *v_middle;
    int32_t *k, *v, *q;
    int32_t *v_sum; /* of each column, where weights of 16 bits have 32768 taken off */
    float *lines;   /* [d padded to VN][VN] */
    float *strip, *total;
    float factor;   /* NaN when a key has one, else 1 */
    size_t vectors; /* of queries in this tile; kept here, so that functions are not compiled for each */
    bool fine;      /* at most LATHE_Q8_FINE keys: weights of 16 bits, their low bytes behind the strip's front */
    bool plain;     /* every query sees every key, and no bias */
};

/* A vector of queries. */
struct aq8_lanes {
    vf a, factor;
    vf top, sum; /* of the blocks so far; top as floats from the base without a bias */
    vf odd;      /* NaN when a bias is NaN or +inf, else 0 */
    vf shrink;   /* of the blocks before */
};

static inline size_t aq8_row(const struct aq8 *s, size_t j) {
    return s->index ? (size_t)s->index[j] : j;
}

/* Columns from c on of a row that has n; always masked, which costs nothing and halves the code. */
static inline vf aq8_load(const float *row, size_t c, size_t n) {
    return v_load_n(row + c, n - c < VN ? n - c : VN);
}

static inline size_t aq8_padded(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* ---- keys and values */

/* Range, scale and reciprocal of each column over the keys. Arrays are padded to VN. */
static __attribute__((noinline)) void aq8_columns(const struct aq8 *s, const float *x, size_t ldx, size_t n,
                                                  float levels, float *low, float *scale, float *inverse) {
    for (size_t c = 0; c < n; c += VN) {
        vf lo[4], hi[4], bad[4];
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++) {
            lo[u] = v_set1(__builtin_inff());
            hi[u] = v_set1(-__builtin_inff());
            bad[u] = v_set1(0.0f);
        }
        for (size_t j = 0; j < s->keys; j += 4) {
            LATHE_UNROLL
            for (size_t u = 0; u < 4; u++) {
                size_t at = aq8_row(s, j + u < s->keys ? j + u : j);
                vf v = aq8_load(x + at * ldx, c, n);
                lo[u] = v_min(v, lo[u]);
                hi[u] = v_max(v, hi[u]);
                bad[u] = v_fma(v, v_set1(0.0f), bad[u]);
            }
        }
        vf least = v_min(v_min(lo[0], lo[1]), v_min(lo[2], lo[3])), by;
        vf most = v_max(v_max(hi[0], hi[1]), v_max(hi[2], hi[3]));
        vf size = attention_q8_column(least, most, (bad[0] + bad[1]) + (bad[2] + bad[3]), levels, &by);
        v_store(low + c, least);
        v_store(scale + c, size);
        v_store(inverse + c, by);
    }
}

/* Behind the last key come copies of it: they do not change which score is the largest. */
static void aq8_pack_keys(const struct aq8 *s) {
    const struct lathe_attention_f32_args *args = s->args;
    for (size_t j = 0; j < s->keys; j++) {
        const float *row = args->k + aq8_row(s, j) * args->ldk;
        int32_t *out = s->k + j * s->steps;
        for (size_t c = 0; c < args->d; c += VN)
            aq8_store_key(out + c / AQ8_CPD,
                          (aq8_load(row, c, args->d) - v_load(s->k_low + c)) * v_load(s->k_inverse + c));
    }
    for (size_t j = s->keys; j < aq8_padded(s->keys, AQ8_GROUP); j++)
        memcpy(s->k + j * s->steps, s->k + (s->keys - 1) * s->steps, s->steps * sizeof *s->k);
}

/* Behind the last key come zeros, and weights of zero. */
static void aq8_pack_values(const struct aq8 *s) {
    const struct lathe_attention_f32_args *args = s->args;
    int32_t *out = s->v;
    for (size_t c = 0; c < s->columns; c += VN)
        vi_store(s->v_sum + c, vi_set1(0));
    for (size_t j = 0; j < aq8_padded(s->keys, 4); j += AQ8_CPD)
        for (size_t c = 0; c < s->columns; c += VN, out += VN) {
            vi x[AQ8_CPD];
            LATHE_UNROLL
            for (size_t u = 0; u < AQ8_CPD; u++) {
                x[u] = vi_set1(0);
                if (j + u < s->keys)
                    x[u] = vi_sub(vi_round((aq8_load(args->v + aq8_row(s, j + u) * args->ldv, c, args->dv) -
                                            v_load(s->v_low + c)) *
                                           v_load(s->v_inverse + c)),
                                  vi_set1(128));
            }
            vi_store(out, aq8_join(x));
            if (AQ8_CPD == 2 && s->fine)
                vi_store(s->v_sum + c, aq8_dot_value(vi_load(s->v_sum + c), vi_load(out), vi_set1(0x00010001)));
        }
}

/* Asks for the first rows at once: they often lie in another core's cache, and what follows takes them in small turns.
 */
static inline void aq8_fetch(const float *x, size_t ldx, size_t columns, size_t rows) {
    for (size_t j = 0; j < rows && j < 32; j++)
        for (size_t c = 0; c < columns; c += 16)
            __builtin_prefetch(x + j * ldx + c, 0, 3);
}

static void aq8_pack_head(struct aq8 *s) {
    const struct lathe_attention_f32_args *args = s->args;
    aq8_fetch(args->k, args->ldk, args->d, args->nk);
    aq8_fetch(args->v, args->ldv, args->dv, args->nk);
    aq8_fetch(args->q, args->ldq, args->d, args->nq);
    aq8_columns(s, args->k, args->ldk, args->d, LATHE_Q8_KEY, s->k_low, s->k_scale, s->k_inverse);
    aq8_columns(s, args->v, args->ldv, args->dv, LATHE_Q8_VALUE, s->v_low, s->v_scale, s->v_inverse);
    s->factor = 1.0f;
    for (size_t c = 0; c < args->d; c++)
        s->factor += s->k_scale[c] * 0.0f;
    for (size_t c = 0; c < s->columns; c += VN)
        v_store(s->v_middle + c, v_load(s->v_low + c) + v_load(s->v_scale + c) * v_set1(128.0f));
    aq8_pack_keys(s);
    aq8_pack_values(s);
}

/* ---- queries */

/* `count` queries from q0 on into vector g; lanes behind them repeat the last one. */
static __attribute__((noinline)) void aq8_pack_queries(const struct aq8 *s, size_t q0, size_t count, size_t g,
                                                       struct aq8_lanes *lanes) {
    const struct lathe_attention_f32_args *args = s->args;
    vi most[2] = {vi_set1(0),
                  vi_set1(0)}; /* magnitudes as integers: infinities and what is no number are the largest */
    const float *rows[VN];
    for (size_t r = 0; r < VN; r++)
        rows[r] = args->q + (q0 + (r < count ? r : count - 1)) * args->ldq;
    for (size_t c = 0; c < args->d; c += VN) {
        vf x[VN];
        LATHE_UNROLL
        for (size_t r = 0; r < VN; r++)
            x[r] = aq8_load(rows[r], c, args->d);
        v_transpose(x);
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++) {
            vf t = x[i] * v_set1(s->k_scale[c + i]);
            most[i & 1] = vi_max(vi_bits(v_abs(t)), most[i & 1]);
            v_store(s->lines + (c + i) * VN, t);
        }
    }
    struct attention_q8_query query = attention_q8_query(vi_as_float(vi_max(most[0], most[1])), args->scale);
    for (size_t t = 0; t < s->steps; t++) {
        vi x[AQ8_CPD];
        LATHE_UNROLL
        for (size_t u = 0; u < AQ8_CPD; u++)
            x[u] = vi_round(v_load(s->lines + (t * AQ8_CPD + u) * VN) * query.inverse);
        vi_store(s->q + (t * s->vectors + g) * VN, aq8_join(x));
    }
    lanes->a = query.a;
    lanes->factor = query.factor * v_set1(s->factor);
    lanes->top = v_set1(-__builtin_inff());
    lanes->sum = lanes->odd = lanes->shrink = v_set1(0.0f);
}

/* ---- products: `vectors` is a constant */
#define AQ8_INLINE static inline __attribute__((always_inline))

/* Or GCC gives the sums other registers in every step. */
#define AQ8_KEEP(acc)                                                                                                  \
    LATHE_UNROLL                                                                                                       \
    for (size_t r = 0; r < AQ8_TILE; r++)                                                                              \
        LATHE_UNROLL                                                                                                   \
    for (size_t g = 0; g < vectors; g++)                                                                               \
        __asm__("" : "+v"(acc[r][g]));

/* Keys [from, to), whole tiles, into the strip from `from` on; tops[g] becomes the largest. */
AQ8_INLINE void aq8_scores(const size_t vectors, const struct aq8 *s, size_t from, size_t to, vi *tops) {
    int32_t *out = (int32_t *)(void *)s->strip;
    size_t steps = s->steps;
    const int32_t *k = s->k + from * steps;
    vi most[AQ8_VECTORS];
    LATHE_UNROLL
    for (size_t g = 0; g < vectors; g++)
        most[g] = vi_set1(0);
    for (size_t j = from; j < to; j += AQ8_TILE, k += AQ8_TILE * steps) {
        vi acc[AQ8_TILE][AQ8_VECTORS];
        const int32_t *q = s->q;
        LATHE_UNROLL
        for (size_t r = 0; r < AQ8_TILE; r++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++)
            acc[r][g] = vi_set1(LATHE_Q8_BASE_BITS);
        for (size_t t = 0; t < steps; t++, q += vectors * VN) {
            vi word[AQ8_VECTORS];
            LATHE_UNROLL
            for (size_t g = 0; g < vectors; g++)
                word[g] = vi_load(q + g * VN);
            LATHE_UNROLL
            for (size_t r = 0; r < AQ8_TILE; r++) {
                vi key = vi_set1(k[r * steps + t]);
                LATHE_UNROLL
                for (size_t g = 0; g < vectors; g++)
                    acc[r][g] = aq8_dot_key(acc[r][g], key, word[g]);
            }
            AQ8_KEEP(acc)
        }
        LATHE_UNROLL
        for (size_t r = 0; r < AQ8_TILE; r++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++, out += VN) {
            vi_store(out, acc[r][g]);
            most[g] = vi_max(acc[r][g], most[g]);
        }
    }
    LATHE_UNROLL
    for (size_t g = 0; g < vectors; g++)
        tops[g] = most[g];
}

/* Weights of keys [from, to), from the front of `weights`, times their values, added to the shrunk totals of what was
 * before. */
AQ8_INLINE void aq8_values(const size_t vectors, const struct aq8 *s, const float *weights, size_t from, size_t to,
                           bool first, const struct aq8_lanes *lanes) {
    size_t words = (to - from + 3) / 4 * (4 / AQ8_CPD), columns = s->columns;
    for (size_t c = 0; c < columns; c += AQ8_TILE) {
        vi acc[AQ8_TILE][AQ8_VECTORS];
        const int32_t *p = (const int32_t *)(const void *)weights, *v = s->v + from / AQ8_CPD * columns + c;
        LATHE_UNROLL
        for (size_t r = 0; r < AQ8_TILE; r++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++)
            acc[r][g] = vi_set1(0);
        for (size_t t = 0; t < words; t++, p += vectors * VN, v += columns) {
            vi word[AQ8_VECTORS];
            LATHE_UNROLL
            for (size_t g = 0; g < vectors; g++)
                word[g] = vi_load(p + g * VN);
            LATHE_UNROLL
            for (size_t r = 0; r < AQ8_TILE; r++) {
                vi values = vi_set1(v[r]);
                LATHE_UNROLL
                for (size_t g = 0; g < vectors; g++)
                    acc[r][g] = aq8_dot_value(acc[r][g], word[g], values);
            }
            AQ8_KEEP(acc)
        }
        float *total = s->total + c * vectors * VN;
        LATHE_UNROLL
        for (size_t r = 0; r < AQ8_TILE; r++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++, total += VN) {
            if (AQ8_CPD == 2 && s->fine)
                acc[r][g] = vi_sub(acc[r][g], vi_set1(-32768 * s->v_sum[c + r]));
            vf x = v_from_i32(acc[r][g]);
            v_store(total, first ? x : v_fma(v_load(total), lanes[g].shrink, x));
        }
    }
}

/* ---- softmax */

/* What the mask operands add to the scores of VN keys from j on, -inf where they forbid: [key][query]. */
static __attribute__((noinline)) void aq8_turn(const struct aq8 *s, size_t q0, size_t count, size_t j, float *out) {
    const struct lathe_attention_f32_args *args = s->args;
    vf x[VN];
    size_t n = s->keys - j < VN ? s->keys - j : VN;
    for (size_t r = 0; r < VN; r++) {
        size_t i = q0 + (r < count ? r : count - 1);
        const float *bias = args->bias ? args->bias + i * args->ldb : NULL;
        const uint8_t *allow = args->allow ? args->allow + i * args->ld_allow : NULL;
        float line[VN] = {0};
        uint8_t bytes[VN] = {0};
        for (size_t u = 0; u < n; u++) {
            size_t at = aq8_row(s, j + u);
            if (bias)
                line[u] = bias[at];
            bytes[u] = !allow || allow[at];
        }
        v_store(out + r * VN, v_select(v_bytes_set(bytes), v_load(line), v_set1(-__builtin_inff())));
    }
    LATHE_UNROLL
    for (size_t r = 0; r < VN; r++)
        x[r] = v_load(out + r * VN);
    v_transpose(x);
    LATHE_UNROLL
    for (size_t r = 0; r < VN; r++)
        v_store(out + r * VN, x[r]);
}

/* Scores of keys [from, to) for the queries of vector g: -inf where a mask says so; with a bias they become scores in
 * base 2. Returns the largest of them and of those before. */
static __attribute__((noinline, cold)) vf aq8_mask(const struct aq8 *s, size_t q0, size_t count, size_t g, size_t from,
                                                   size_t to, struct aq8_lanes *lanes) {
    const struct lathe_attention_f32_args *args = s->args;
    float bounds[2][VN], added[VN * VN];
    vf none = v_set1(-__builtin_inff()), top = lanes->top;
    for (size_t r = 0; r < VN; r++) {
        size_t i = q0 + (r < count ? r : count - 1);
        bounds[0][r] = args->first ? (float)args->first[i] : 0.0f;
        bounds[1][r] = args->last ? (float)args->last[i] : (float)args->nk;
    }
    vf low = v_load(bounds[0]), high = v_load(bounds[1]);
    for (size_t j = from; j < to; j++) {
        float *at = s->strip + ((j - from) * s->vectors + g) * VN, *add = added + (j - from) % VN * VN;
        vf x = v_load(at), key = v_set1((float)aq8_row(s, j));
        if (add == added && (args->bias || args->allow))
            aq8_turn(s, q0, count, j, added);
        if (args->bias)
            x = (x - v_set1(LATHE_Q8_BASE)) * lanes->a + v_load(add) * v_set1(LATHE_Q8_LOG2_E);
        else if (args->allow)
            x = x + v_load(add);
        x = v_select(v_lt(key, low), none, v_select(v_lt(key, high), x, none));
        v_store(at, x);
        top = v_max(x, top);
        lanes->odd = v_select(v_lt(x, v_set1(__builtin_inff())), lanes->odd, v_set1(__builtin_nanf("")));
    }
    return top;
}

/* 2^x for x <= 0: 1 for 0, next to nothing below -40. */
static inline vf aq8_power(vf x) {
    x = v_max(x, v_set1(-40.0f));
    vf n = v_round(x), r = x - n;
    vf p = v_fma(v_set1(LATHE_Q8_POWER_3), r, v_set1(LATHE_Q8_POWER_2));
    p = v_fma(p, r, v_set1(LATHE_Q8_POWER_1));
    return v_select(v_lt(x, v_set1(0.0f)), v_scale1(v_fma(p, r, v_set1(LATHE_Q8_POWER_0)), n), v_set1(1.0f));
}

struct aq8_chain {
    vi carry;     /* what is left over at the last two keys */
    vi sum, rest; /* of weights, or of their high and low bytes */
};

/* Four keys at a time, `lines` from keys j0 to j1. `clamp`: some distances may be too large for an integer. */
AQ8_INLINE void aq8_weigh_keys(const bool clamp, const bool bias, const bool fine, float *line, size_t stride,
                               size_t j0, size_t j1, vf step, vf top, struct aq8_chain *chain) {
    const float *in = line + j0 * stride;
    int32_t *out = (int32_t *)(void *)line + j0 / AQ8_CPD * stride;
    const vi one = vi_set1(AQ8_CPD == 4 ? 0x01010101 : 0x00010001);
    for (size_t j = j0; j < j1; j += 4, in += 4 * stride) {
        vf y[4];
        vi e[2], words[4 / AQ8_CPD];
        LATHE_UNROLL
        for (size_t u = 0; u < 4; u++) {
            vf x = v_load(in + u * stride);
            if (bias)
                y[u] = (top - x) * v_set1(LATHE_Q8_DISTANCE);
            else
                y[u] = v_fnma(x, step, top);
            if (clamp)
                y[u] = v_min(y[u], v_set1(LATHE_Q8_FAR));
        }
        aq8_weigh(y, e);
#if AQ8_CPD == 2
        if (fine) {
            aq8_words_whole(e, words);
            LATHE_UNROLL
            for (size_t u = 0; u < 2; u++, out += stride) {
                vi_store(out, words[u]);
                chain->sum = aq8_dot_value(chain->sum, words[u], one);
            }
            continue;
        }
#else
        if (fine) {
            aq8_words_low(e, words);
            LATHE_UNROLL
            for (size_t u = 0; u < 4 / AQ8_CPD; u++) {
                vi_store(out + (AQ8_REST + u) * stride, words[u]);
                chain->rest = aq8_dot_value(chain->rest, words[u], one);
            }
        }
#endif
        if (!fine) {
            e[0] = aq8_add16(e[0], chain->carry);
            e[1] = aq8_add16(e[1], aq8_low(e[0]));
            chain->carry = aq8_low(e[1]);
        }
        aq8_words_high(e, words);
        LATHE_UNROLL
        for (size_t u = 0; u < 4 / AQ8_CPD; u++, out += stride) {
            vi_store(out, words[u]);
            chain->sum = aq8_dot_value(chain->sum, words[u], one);
        }
    }
}

/* The strip's scores of `n` keys for the queries of vector g become weights; adds them to the lanes' sums. */
static __attribute__((noinline)) void aq8_softmax(const struct aq8 *s, size_t g, size_t n, struct aq8_lanes *lanes) {
    size_t stride = s->vectors * VN, whole = s->plain ? n / 4 * 4 : 0, padded = aq8_padded(n, 4);
    float *line = s->strip + g * VN;
    vf step = lanes->a * v_set1(LATHE_Q8_DISTANCE), top = lanes->top;
    vm some = v_lt(v_set1(-__builtin_inff()), top);
    struct aq8_chain chain = {.carry = vi_set1(0x00800080), .sum = vi_set1(0), .rest = vi_set1(0)};
    if (!s->args->bias)
        top = top * step;
    top = v_select(some, top, v_set1(__builtin_inff()));
    for (size_t j = n; j < padded; j++)
        v_store(line + j * stride, v_set1(-__builtin_inff()));
    if (s->fine)
        aq8_weigh_keys(false, false, true, line, stride, 0, whole, step, top, &chain);
    else
        aq8_weigh_keys(false, false, false, line, stride, 0, whole, step, top, &chain);
    if (whole < padded)
        aq8_weigh_keys(true, s->args->bias, s->fine, line, stride, whole, padded, step, top, &chain);
    if (AQ8_CPD == 2 && s->fine) {
        lanes->sum = v_from_i32(vi_sub(chain.sum, vi_set1(-32768 * (int32_t)padded)));
        return;
    }
    vf sum = v_from_i32(chain.sum);
    lanes->sum = s->fine ? v_fma(sum, v_set1(256.0f), v_from_i32(chain.rest)) : v_fma(lanes->sum, lanes->shrink, sum);
}

/* ---- a tile */

/* The keys that some query of the tile may see, from a whole group on. */
static void aq8_span(const struct aq8 *s, size_t q0, size_t count, size_t *from, size_t *to) {
    const struct lathe_attention_f32_args *args = s->args;
    int64_t lo = 0, hi = (int64_t)s->keys;
    if (AQ8_CPD == 2 && s->fine) { /* v_sum is of all keys */
        *from = 0;
        *to = s->keys;
        return;
    }
    if (args->first && !s->index) {
        lo = hi;
        for (size_t r = 0; r < count; r++)
            lo = args->first[q0 + r] < lo ? args->first[q0 + r] : lo;
    }
    if (args->last && !s->index) {
        int64_t most = 0;
        for (size_t r = 0; r < count; r++)
            most = args->last[q0 + r] > most ? args->last[q0 + r] : most;
        hi = most < hi ? most : hi;
    }
    lo = lo < 0 ? 0 : lo;
    *from = (size_t)lo / AQ8_GROUP * AQ8_GROUP;
    *to = hi <= lo ? *from : (size_t)hi;
}

static __attribute__((noinline)) void aq8_put(const struct aq8 *s, size_t q0, size_t count, size_t g,
                                              const struct aq8_lanes *lanes) {
    const struct lathe_attention_f32_args *args = s->args;
    vf inverse = v_set1(1.0f) / lanes->sum * lanes->factor + lanes->odd;
    for (size_t c = 0; c < args->dv; c += VN) {
        vf x[VN];
        size_t n = args->dv - c < VN ? args->dv - c : VN;
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++)
            x[i] = v_fma(v_load(s->total + ((c + i) * s->vectors + g) * VN) * inverse, v_set1(s->v_scale[c + i]),
                         v_set1(s->v_middle[c + i]));
        v_transpose(x);
        float *out = args->out + q0 * args->ldo + c;
        LATHE_UNROLL
        for (size_t r = 0; r < VN; r++, out += args->ldo) {
            if (r >= count)
                continue;
            if (n == VN)
                v_store(out, x[r]);
            else
                v_store_n(out, x[r], n);
        }
    }
    if (s->plain && !args->no_key)
        return;
    float top[VN], odd[VN];
    v_store(top, lanes->top);
    v_store(odd, lanes->odd);
    for (size_t r = 0; r < count; r++) {
        bool any = top[r] > -__builtin_inff() || odd[r] != 0.0f;
        if (args->no_key)
            args->no_key[q0 + r] = !any;
        if (!any)
            memset(args->out + (q0 + r) * args->ldo, 0, args->dv * sizeof(float));
    }
}

/* `count` queries from q0 on, at most `vectors` vectors. */
AQ8_INLINE void aq8_tile(const size_t vectors, const struct aq8 *s, size_t q0, size_t count) {
    struct aq8_lanes lanes[AQ8_VECTORS];
    size_t from, to, counts[AQ8_VECTORS];
    aq8_span(s, q0, count, &from, &to);
    for (size_t g = 0; g < vectors; g++) {
        counts[g] = count - g * VN < VN ? count - g * VN : VN;
        aq8_pack_queries(s, q0 + g * VN, counts[g], g, &lanes[g]);
    }
    for (size_t b = from; b < to;) {
        size_t end = (b / LATHE_Q8_BLOCK + 1) * LATHE_Q8_BLOCK;
        vi tops[AQ8_VECTORS];
        end = end < to ? end : to;
        aq8_scores(vectors, s, b, b + aq8_padded(end - b, AQ8_TILE), tops);
        for (size_t g = 0; g < vectors; g++) {
            vf before = lanes[g].top;
            lanes[g].top = s->plain ? v_max(vi_as_float(tops[g]), before)
                                    : aq8_mask(s, q0 + g * VN, counts[g], g, b, end, &lanes[g]);
            vf x = before - lanes[g].top;
            if (!s->args->bias)
                x = x * lanes[g].a;
            lanes[g].shrink = v_select(v_lt(v_set1(-__builtin_inff()), before), aq8_power(x), v_set1(0.0f));
            aq8_softmax(s, g, end - b, &lanes[g]);
        }
        aq8_values(vectors, s, s->strip, b, end, b == from, lanes);
        if (AQ8_CPD == 4 && s->fine) {
            for (size_t g = 0; g < vectors; g++)
                lanes[g].shrink = v_set1(256.0f);
            aq8_values(vectors, s, s->strip + AQ8_REST * vectors * VN, b, end, false, lanes);
        }
        b = end;
    }
    for (size_t g = 0; g < vectors; g++)
        aq8_put(s, q0 + g * VN, counts[g], g, &lanes[g]);
}
static __attribute__((noinline)) void aq8_tile_1(const struct aq8 *s, size_t q0, size_t count) {
    aq8_tile(1, s, q0, count);
}
static __attribute__((noinline)) void aq8_tile_2(const struct aq8 *s, size_t q0, size_t count) {
    aq8_tile(2, s, q0, count);
}

static inline void *aq8_take(char **at, size_t bytes) {
    char *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

void AQ8_NAME(const struct lathe_attention_f32_args *args) {
    struct aq8 s = {.args = args, .keys = args->nk};
    size_t d = aq8_padded(args->d, VN), rows = aq8_padded(args->nk, AQ8_GROUP);
    s.steps = d / AQ8_CPD;
    s.columns = aq8_padded(args->dv, VN);
    char *at = args->scratch;
    at += (64 - (size_t)at % 64) % 64;
    s.k_low = aq8_take(&at, d * sizeof(float));
    s.k_scale = aq8_take(&at, d * sizeof(float));
    s.k_inverse = aq8_take(&at, d * sizeof(float));
    s.v_low = aq8_take(&at, s.columns * sizeof(float));
    s.v_scale = aq8_take(&at, s.columns * sizeof(float));
    s.v_inverse = aq8_take(&at, s.columns * sizeof(float));
    s.v_middle = aq8_take(&at, s.columns * sizeof(float));
    s.v_sum = aq8_take(&at, s.columns * sizeof *s.v_sum);
    s.lines = aq8_take(&at, d * VN * sizeof(float));
    s.q = aq8_take(&at, s.steps * AQ8_VECTORS * VN * sizeof *s.q);
    s.total = aq8_take(&at, s.columns * AQ8_VECTORS * VN * sizeof(float));
    s.strip = aq8_take(&at, LATHE_Q8_BLOCK * AQ8_VECTORS * VN * sizeof(float));
    s.k = aq8_take(&at, rows * s.steps * sizeof *s.k);
    s.v = aq8_take(&at, rows / AQ8_CPD * s.columns * sizeof *s.v);
    if (args->keys) {
        int32_t *index = aq8_take(&at, rows * sizeof *index);
        size_t n = 0;
        for (size_t j = 0; j < args->nk; j++)
            if (args->keys[j])
                index[n++] = (int32_t)j;
        s.index = n < args->nk ? index : NULL;
        s.keys = n;
    }
    if (!s.keys) {
        for (size_t i = 0; i < args->nq; i++) {
            memset(args->out + i * args->ldo, 0, args->dv * sizeof(float));
            if (args->no_key)
                args->no_key[i] = 1;
        }
        return;
    }
    s.fine = s.keys <= LATHE_Q8_FINE;
    aq8_pack_head(&s);
    /* bytes that are those of the keys, the same for all queries, say nothing new */
    s.plain =
        !args->bias && (!args->allow || (args->allow == args->keys && !args->ld_allow)) && !args->first && !args->last;
    for (size_t q0 = 0, count; q0 < args->nq; q0 += count) {
        size_t left = args->nq - q0;
        count = left < AQ8_VECTORS * VN ? left : AQ8_VECTORS * VN;
#ifdef __PRFCHW__
        /* Another core has read these lines since they were last written, and stores wait for them. Zen 5, 2 cores
         * without a common cache, int8 at 16, 32, 64 tokens: minilm-l6 0.263 -> 0.258, 0.490 -> 0.481, 0.934 -> 0.929,
         * distilbert 0.843 -> 0.840, 1.550 -> 1.540, 2.888 -> 2.866 ms; with one no difference. */
        for (size_t r = 0; r < count; r++)
            for (size_t c = 0; c < args->dv; c += VN)
                __builtin_prefetch(args->out + (q0 + r) * args->ldo + c, 1);
#endif
        s.vectors = count > VN ? 2 : 1;
        if (count > VN)
            aq8_tile_2(&s, q0, count);
        else
            aq8_tile_1(&s, q0, count);
    }
}
#endif
