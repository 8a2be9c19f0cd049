/* attention_q8 on vectors, included by one file an instruction set. The scheme is attention_q8_scheme.h's. The
 * including file defines
 *   AQ8_NAME                       the function made here
 *   AQ8_CPD                        numbers of a 32-bit word: 4 bytes, or 2 of 16 bits
 *   AQ8_TILE                       keys, or columns of values, whose sums for two vectors of queries fit the registers;
 *                                  a divisor of VN
 *   AQ8_OVERLAP                    1: weights are made beside the products of the next block (with 16 registers that is
 *                                  no faster)
 *   aq8_store_key(p, x)            VN columns of a key, rounded half to even, from a vector of floats
 *   aq8_join(x)                    words of the AQ8_CPD vectors of integers x, signed, cut to what fits
 *   aq8_weigh(fine, y, e)          e of four keys from their distances y, integers: two vectors of 16 bits
 *   aq8_add16, aq8_low             sums of 16 bits; their low bytes
 *   aq8_words_high(e, words)       the high bytes of four keys as 4 / AQ8_CPD vectors of words; _low: the low ones
 *   aq8_words_whole(e, words)      with words of 16 bits: e - 32768
 *   aq8_dot_key(acc, key, query)   acc plus the AQ8_CPD products in each lane
 *   aq8_dot_value(acc, weights, values)   the same
 *   AQ8_BY                         1: there is lathe_attention_q8_by too, whose products are not done here
 *
 * Queries lie across the lanes, one or two vectors of them, so that softmax needs nothing of its neighbours: their
 * scores against a block of keys lie in a strip that the first cache holds and become weights, in the order in which
 * the product with the values takes them, while the scores of the next block, or of the next queries, take their place:
 * a difference, a shift, a table and rounding hardly need the units that multiply. Keys and values are brought into
 * words once a call, in the order of their rows:
 *
 *   keys    [key][word of AQ8_CPD columns]
 *   values  [word of AQ8_CPD keys][column], or as the products of others take them (attention_q8_product.h)
 *   queries [word of AQ8_CPD columns][vector][VN], for a tile
 *   strip   [key][vector][VN]
 *   weights [word of AQ8_CPD keys][vector][VN]
 *   total   [column][vector][VN]
 *
 * One core of an EPYC of the Zen 5 class, us a head at 8, 32, 64, 128, 256, 512 tokens (tests/bench/bench_kernels):
 *
 *   heads of 64: AVX-512 f32 0.4 1.5 5.7 20.6 77 305; VNNI 0.4 1.2 3.0 7.0 23.6 86
 *                AVX2 f32 0.5 2.8 10.0 38.5 150 595; AVX2 0.5 2.6 7.6 25.1 90 347; AVX-VNNI 0.5 2.1 6.0 14.4 49 177
 *   heads of 32: AVX-512 f32 0.2 0.8 3.1 11.5 43 168; VNNI 0.2 0.7 1.7 3.9 13.1 48
 *                AVX2 0.3 1.4 4.2 13.8 49.5 190; AVX-VNNI 0.3 1.2 3.3 8.3 28.1 104
 *
 * Products of heads of 32 for 512 tokens take 30.6 at their peak. With factors that are no powers of two (a product, a
 * conversion and two more products a weight) and weights after the scores it was, VNNI: 0.4 1.3 3.4 8.3 27 96 and 0.2
 * 0.7 1.9 4.7 15.4 55; AVX2 0.5 2.8 7.9 25.9 93 353. Blocks of 128 keys take 3 % longer than of 256. No faster: weights
 * in quarters between the steps of a tile (its sums no longer stay in registers), asking for the rows of the next head,
 * huge pages for the session's memory.
 * Of AVX-512's permutes one in four takes a multiplication's place, of those from two registers one in two. */
#ifndef LATHE_ATTENTION_Q8_BODY_H
#define LATHE_ATTENTION_Q8_BODY_H

#include "attention_q8_product.h"
#include "attention_q8_scheme.h"
#include "attention_shape.h"
#include "kernel_rows.h"
#include "unroll.h"

#include <string.h>

#define AQ8_VECTORS 2                   /* of queries in a tile, at most */
#define AQ8_GROUP   16                  /* keys are padded to whole groups */
#define AQ8_REST    (LATHE_Q8_FINE / 4) /* line of the weights where the low bytes of few keys begin */

struct aq8 {
    const struct lathe_attention_f32_args *args;
    const struct lathe_q8_products *by; /* NULL: the products of this file */
    const int32_t *index;               /* of the keys that take part, NULL: the first */
    size_t keys;                        /* how many do */
    size_t steps;                       /* words of a key; d is padded to VN, or to what others take */
    size_t columns;                     /* dv padded to VN */
    float *k_low, *k_scale, *k_inverse, *v_low, *v_scale, *v_inverse, *v_middle;
    int32_t *k, *v, *q;
    int32_t *v_sum; /* of each column, where weights of 16 bits have 32768 taken off */
    float *lines;   /* [d padded to VN][VN] */
    float *total;
    int32_t *strip, *weights;
    float factor; /* NaN when a key has one, else 1 */
    bool fine;    /* at most LATHE_Q8_FINE keys: weights of 16 bits, their low bytes from line AQ8_REST on */
    int32_t steep;
    bool plain; /* every query sees every key, and no bias */
};

/* A vector of queries. */
struct aq8_lanes {
    vf a, factor;
    vf unit; /* of the scores in the strip, and how far their differences are shifted */
    vi shift;
    vi top; /* of the blocks so far */
    vf sum;
    vf odd;    /* NaN when a bias is NaN or +inf, else 0 */
    vf shrink; /* of the blocks before */
};

/* How far the weights of a vector of queries are. */
struct aq8_chain {
    vi lead;      /* the largest score and half a step */
    vi shift;     /* of differences */
    vi carry;     /* what is left over at the last two keys */
    vi sum, rest; /* of weights, or of their high and low bytes */
};

/* A tile of queries and a block of keys whose scores lie in the strip. */
struct aq8_item {
    size_t q0, count, vectors; /* queries */
    size_t from, n, done;      /* the first key, how many, and for how many there are weights */
    bool first, last;          /* block of the tile */
    struct aq8_lanes *lanes;
    struct aq8_chain chain[AQ8_VECTORS];
};

#define AQ8_INLINE static inline __attribute__((always_inline))

static inline size_t aq8_row(const struct aq8 *s, size_t j) {
    return s->index ? (size_t)s->index[j] : j;
}

/* Whose products; a constant where it is known. */
AQ8_INLINE const struct lathe_q8_products *aq8_by(const struct aq8 *s) {
    return AQ8_BY ? s->by : NULL;
}

/* Columns from c on of a row that has n; always masked, which costs nothing and halves the code. */
static inline vf aq8_load(const float *row, size_t c, size_t n) {
    return v_load_n(row + c, n - c < VN ? n - c : VN);
}

static inline size_t aq8_padded(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Of `count` queries those of vector g. */
static inline size_t aq8_count(size_t count, size_t g) {
    return count - g * VN < VN ? count - g * VN : VN;
}

#include "attention_q8_pack_body.h"

/* ---- queries */

/* `count` queries from q0 on into vector g; lanes behind them repeat the last one. */
static __attribute__((noinline)) void aq8_pack_queries(const struct aq8 *s, size_t q0, size_t count, size_t g,
                                                       size_t vectors, struct aq8_lanes *lanes) {
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
    struct attention_q8_query query = attention_q8_query(vi_as_float(vi_max(most[0], most[1])), args->scale, s->steep);
    const size_t steps = aq8_padded(args->d, VN) / AQ8_CPD;
    for (size_t t = steps; aq8_by(s) && t < s->steps; t++)
        vi_store(s->q + (t * vectors + g) * VN, vi_set1(0));
    for (size_t t = 0; t < steps; t++) {
        vi x[AQ8_CPD];
        LATHE_UNROLL
        for (size_t u = 0; u < AQ8_CPD; u++)
            x[u] = vi_round(v_load(s->lines + (t * AQ8_CPD + u) * VN) * query.inverse);
        vi_store(s->q + (t * vectors + g) * VN, aq8_join(x));
    }
    lanes->a = query.a;
    lanes->factor = query.factor * v_set1(s->factor);
    lanes->unit = args->bias ? v_set1(1.0f / (float)(1 << (s->steep + LATHE_Q8_BIAS))) : query.a;
    lanes->shift = args->bias ? vi_set1(LATHE_Q8_BIAS) : query.shift;
    lanes->top = vi_set1(LATHE_Q8_NONE);
    lanes->sum = lanes->odd = v_set1(0.0f);
}

/* ---- weights */

/* 2^x for x <= 0: 1 for 0, next to nothing below -40. */
static inline vf aq8_power(vf x) {
    x = v_max(x, v_set1(-40.0f));
    vf n = v_round(x), r = x - n;
    vf p = v_fma(v_set1(LATHE_Q8_POWER_3), r, v_set1(LATHE_Q8_POWER_2));
    p = v_fma(p, r, v_set1(LATHE_Q8_POWER_1));
    return v_select(v_lt(x, v_set1(0.0f)), v_scale1(v_fma(p, r, v_set1(LATHE_Q8_POWER_0)), n), v_set1(1.0f));
}

/* Scores of four keys, a stride apart, to weights. */
AQ8_INLINE void aq8_weigh_keys(const bool fine, const int32_t *in, int32_t *out, size_t stride,
                               struct aq8_chain *chain) {
    const vi one = vi_set1(AQ8_CPD == 4 ? 0x01010101 : 0x00010001);
    vi y[4], e[2], words[4 / AQ8_CPD];
    LATHE_UNROLL
    for (size_t u = 0; u < 4; u++)
        y[u] = vi_shift(vi_sub(chain->lead, vi_load(in + u * stride)), chain->shift);
    aq8_weigh(fine, y, e);
#if AQ8_CPD == 2
    if (fine) {
        aq8_words_whole(e, words);
        LATHE_UNROLL
        for (size_t u = 0; u < 2; u++, out += stride) {
            vi_store(out, words[u]);
            chain->sum = aq8_dot_value(chain->sum, words[u], one);
        }
        return;
    }
#else
    if (fine) {
        aq8_words_low(e, words);
        vi_store(out + AQ8_REST * stride, words[0]);
        chain->rest = aq8_dot_value(chain->rest, words[0], one);
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

/* The largest scores are known: weights can be made, for whole tiles. */
static void aq8_begin_weights(const struct aq8 *s, struct aq8_item *item) {
    size_t stride = item->vectors * VN, padded = aq8_padded(item->n, AQ8_TILE);
    item->done = 0;
    for (size_t at = item->n * stride; at < padded * stride; at += VN)
        vi_store(s->strip + at, vi_set1(LATHE_Q8_NONE));
    for (size_t g = 0; g < item->vectors; g++) {
        const struct aq8_lanes *lanes = &item->lanes[g];
        vi half = vi_shift(vi_set1(1 << 16), vi_sub(vi_set1(17), lanes->shift));
        item->chain[g] =
            (struct aq8_chain){vi_add(lanes->top, half), lanes->shift, vi_set1(0x00800080), vi_set1(0), vi_set1(0)};
    }
}

/* Makes what weights are missing and adds their sums to those of the lanes. */
static __attribute__((noinline)) void aq8_end_weights(const struct aq8 *s, struct aq8_item *item) {
    size_t padded = aq8_padded(item->n, AQ8_TILE), stride = item->vectors * VN;
    for (size_t g = 0; g < item->vectors; g++) {
        struct aq8_lanes *lanes = &item->lanes[g];
        struct aq8_chain chain = item->chain[g];
        const int32_t *in = s->strip + item->done * stride + g * VN;
        int32_t *out = s->weights + item->done / AQ8_CPD * stride + g * VN;
        for (size_t j = padded; aq8_by(s) && j % LATHE_Q8_GROUP; j += AQ8_CPD)
            for (int low = 0; low <= s->fine; low++)
                vi_store(s->weights + (j / AQ8_CPD + (low ? AQ8_REST : 0)) * stride + g * VN, vi_set1(0));
        if (s->fine)
            for (size_t j = item->done; j < padded; j += 4, in += 4 * stride, out += 4 / AQ8_CPD * stride)
                aq8_weigh_keys(true, in, out, stride, &chain);
        else
            LATHE_NO_UNROLL
        for (size_t j = item->done; j < padded; j += 4, in += 4 * stride, out += 4 / AQ8_CPD * stride)
            aq8_weigh_keys(false, in, out, stride, &chain);
        vf sum = v_from_i32(chain.sum);
        if (AQ8_CPD == 2 && s->fine)
            lanes->sum = v_from_i32(vi_sub(chain.sum, vi_set1(-32768 * (int32_t)padded)));
        else
            lanes->sum =
                s->fine ? v_fma(sum, v_set1(256.0f), v_from_i32(chain.rest)) : v_fma(lanes->sum, lanes->shrink, sum);
    }
}

/* ---- products: `vectors` is a constant */
/* Or GCC gives the sums other registers in every step. */
#define AQ8_KEEP(acc)                                                                                                  \
    LATHE_UNROLL                                                                                                       \
    for (size_t r = 0; r < AQ8_TILE; r++)                                                                              \
        LATHE_UNROLL                                                                                                   \
    for (size_t g = 0; g < vectors; g++)                                                                               \
        __asm__("" : "+v"(acc[r][g]));

/* Keys [from, to), whole tiles, into the strip; tops[g] becomes the largest. Before a tile takes the place of scores of
 * `before`, these become weights: that hardly needs the units that multiply. */
AQ8_INLINE void aq8_scores(const size_t vectors, const struct aq8 *s, size_t from, size_t to, vi *tops,
                           struct aq8_item *before) {
    const bool weigh = AQ8_OVERLAP && vectors == AQ8_VECTORS;
    int32_t *out = s->strip;
    size_t steps = s->steps, done = before->done, whole = aq8_padded(before->n, AQ8_TILE);
    const int32_t *k = s->k + from * steps, *in = s->strip + done * vectors * VN;
    int32_t *weights = s->weights + done / AQ8_CPD * vectors * VN;
    vi most[AQ8_VECTORS];
    struct aq8_chain chain[AQ8_VECTORS];
    LATHE_UNROLL
    for (size_t g = 0; g < vectors; g++) {
        most[g] = vi_set1(LATHE_Q8_NONE);
        if (weigh)
            chain[g] = before->chain[g];
    }
    for (size_t j = from; j < to; j += AQ8_TILE, k += AQ8_TILE * steps) {
        vi acc[AQ8_TILE][AQ8_VECTORS];
        const int32_t *q = s->q;
        if (weigh && done < whole) {
            LATHE_UNROLL
            for (size_t u = 0; u < AQ8_TILE; u += 4)
                LATHE_UNROLL
            for (size_t g = 0; g < vectors; g++)
                aq8_weigh_keys(false, in + (u * vectors + g) * VN, weights + (u / AQ8_CPD * vectors + g) * VN,
                               vectors * VN, &chain[g]);
            done += AQ8_TILE;
            in += AQ8_TILE * vectors * VN;
            weights += AQ8_TILE / AQ8_CPD * vectors * VN;
        }
        LATHE_UNROLL
        for (size_t r = 0; r < AQ8_TILE; r++)
            LATHE_UNROLL
        for (size_t g = 0; g < vectors; g++)
            acc[r][g] = vi_set1(0);
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
    for (size_t g = 0; g < vectors; g++) {
        tops[g] = most[g];
        if (weigh)
            before->chain[g] = chain[g];
    }
    if (weigh)
        before->done = done;
}
static __attribute__((noinline)) void aq8_scores_1(const struct aq8 *s, size_t from, size_t to, vi *tops,
                                                   struct aq8_item *before) {
    aq8_scores(1, s, from, to, tops, before);
}
static __attribute__((noinline)) void aq8_scores_2(const struct aq8 *s, size_t from, size_t to, vi *tops,
                                                   struct aq8_item *before) {
    aq8_scores(2, s, from, to, tops, before);
}

/* The item's weights, or their low bytes, times their values, added to the shrunk totals of what was before. */
AQ8_INLINE void aq8_values(const size_t vectors, const struct aq8 *s, const struct aq8_item *item,
                           const int32_t *weights, bool first) {
    size_t words = (item->n + 3) / 4 * (4 / AQ8_CPD), columns = s->columns;
    const struct aq8_lanes *lanes = item->lanes;
    for (size_t c = 0; c < columns; c += AQ8_TILE) {
        vi acc[AQ8_TILE][AQ8_VECTORS];
        const int32_t *p = weights, *v = s->v + item->from / AQ8_CPD * columns + c;
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
            for (size_t g = 0; g < vectors; g++)
                __asm__("" : "+v"(word[g]));
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

static __attribute__((noinline)) void aq8_values_1(const struct aq8 *s, const struct aq8_item *item,
                                                   const int32_t *weights, bool first) {
    aq8_values(1, s, item, weights, first);
}
static __attribute__((noinline)) void aq8_values_2(const struct aq8 *s, const struct aq8_item *item,
                                                   const int32_t *weights, bool first) {
    aq8_values(2, s, item, weights, first);
}

/* The same by others, who call this for every group of keys. */
struct aq8_beside {
    const struct aq8 *s;
    struct aq8_item *before;
};
static void aq8_weigh_group(void *of) {
    const struct aq8_beside *beside = of;
    struct aq8_item *item = beside->before;
    const size_t stride = AQ8_VECTORS * VN;
    const int32_t *in = beside->s->strip + item->done * stride;
    int32_t *out = beside->s->weights + item->done / AQ8_CPD * stride;
    struct aq8_chain chain[AQ8_VECTORS];
    if (item->done >= item->n)
        return;
    LATHE_UNROLL
    for (size_t g = 0; g < AQ8_VECTORS; g++)
        chain[g] = item->chain[g];
    size_t keys = aq8_padded(item->n - item->done, AQ8_TILE);
    keys = keys < AQ8_GROUP ? keys : AQ8_GROUP;
    for (size_t u = 0; u < keys; u += 4) {
        LATHE_UNROLL
        for (size_t g = 0; g < AQ8_VECTORS; g++)
            aq8_weigh_keys(false, in + (u * AQ8_VECTORS + g) * VN, out + (u / AQ8_CPD * AQ8_VECTORS + g) * VN, stride,
                           &chain[g]);
    }
    item->done += keys;
    LATHE_UNROLL
    for (size_t g = 0; g < AQ8_VECTORS; g++)
        item->chain[g] = chain[g];
}
static void aq8_scores_by(const struct aq8 *s, const struct aq8_item *item, vi *tops, struct aq8_item *before) {
    int32_t most[AQ8_VECTORS * VN];
    s->by->scores(&(struct lathe_q8_scores){.keys = s->k + item->from * s->steps,
                                            .count = aq8_padded(item->n, AQ8_GROUP),
                                            .steps = s->steps,
                                            .queries = s->q,
                                            .vectors = item->vectors,
                                            .strip = s->strip,
                                            .tops = most,
                                            .beside = before->vectors ? aq8_weigh_group : NULL,
                                            .of = &(struct aq8_beside){s, before}});
    for (size_t g = 0; g < item->vectors; g++)
        tops[g] = vi_load(most + g * VN);
}
static void aq8_values_by(const struct aq8 *s, const struct aq8_item *item, const int32_t *weights, bool first) {
    float shrink[AQ8_VECTORS * VN];
    for (size_t g = 0; g < item->vectors; g++)
        v_store(shrink + g * VN, item->lanes[g].shrink);
    s->by->values(&(struct lathe_q8_values){.values = s->v + item->from / LATHE_Q8_GROUP * s->columns * 16,
                                            .groups = (item->n + LATHE_Q8_GROUP - 1) / LATHE_Q8_GROUP,
                                            .columns = s->columns,
                                            .weights = weights,
                                            .vectors = item->vectors,
                                            .total = s->total,
                                            .shrink = first ? NULL : shrink});
}

#include "attention_q8_masks_body.h"

/* ---- tiles */

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
    const size_t group = aq8_by(s) ? LATHE_Q8_GROUP : AQ8_GROUP;
    *from = (size_t)lo / group * group;
    *to = hi <= lo ? *from : (size_t)hi;
}

static __attribute__((noinline)) void aq8_put(const struct aq8 *s, const struct aq8_item *item, size_t g) {
    const struct lathe_attention_f32_args *args = s->args;
    const struct aq8_lanes *lanes = &item->lanes[g];
    size_t q0 = item->q0 + g * VN, count = aq8_count(item->count, g), vectors = item->vectors;
    vf inverse = v_set1(1.0f) / lanes->sum * lanes->factor + lanes->odd;
    for (size_t c = 0; c < args->dv; c += VN) {
        vf x[VN];
        size_t n = args->dv - c < VN ? args->dv - c : VN;
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++)
            x[i] = v_fma(v_load(s->total + ((c + i) * vectors + g) * VN) * inverse, v_set1(s->v_scale[c + i]),
                         v_set1(s->v_middle[c + i]));
        v_transpose(x);
        float *out = args->out + q0 * args->ldo + c;
        float rows[VN * VN];
        LATHE_UNROLL
        for (size_t r = 0; r < VN; r++)
            v_store(rows + r * VN, x[r]);
        LATHE_NO_UNROLL
        for (size_t r = 0; r < count; r++, out += args->ldo)
            v_store_n(out, v_load(rows + r * VN), n);
    }
    if (s->plain && !args->no_key)
        return;
    int32_t top[VN];
    float odd[VN];
    vi_store(top, lanes->top);
    v_store(odd, lanes->odd);
    for (size_t r = 0; r < count; r++) {
        bool any = top[r] > LATHE_Q8_NONE || odd[r] != 0.0f;
        if (args->no_key)
            args->no_key[q0 + r] = !any;
        if (!any)
            memset(args->out + (q0 + r) * args->ldo, 0, args->dv * sizeof(float));
    }
}

/* What is to be done with an item after its scores. */
static void aq8_finish(const struct aq8 *s, struct aq8_item *item) {
    size_t vectors = item->vectors;
    if (item->n) {
        aq8_end_weights(s, item);
        for (int low = 0; low <= (AQ8_CPD == 4 && s->fine); low++) {
            const int32_t *weights = s->weights + (low ? AQ8_REST * vectors * VN : 0);
            for (size_t g = 0; low && g < vectors; g++)
                item->lanes[g].shrink = v_set1(1.0f);
            for (size_t g = 0; AQ8_CPD == 4 && s->fine && g < vectors; g++)
                item->lanes[g].shrink = v_set1(256.0f);
            if (aq8_by(s))
                aq8_values_by(s, item, weights, item->first && !low);
            else if (vectors == 2)
                aq8_values_2(s, item, weights, item->first && !low);
            else
                aq8_values_1(s, item, weights, item->first && !low);
        }
    }
    for (size_t g = 0; item->last && g < vectors; g++)
        aq8_put(s, item, g);
    item->vectors = 0;
}

/* The scores of an item and where they stand to those before, while `before`, if it has vectors, is brought to its end.
 */
static void aq8_start(const struct aq8 *s, struct aq8_item *item, struct aq8_item *before) {
    vi tops[AQ8_VECTORS];
    size_t to = item->from + aq8_padded(item->n, AQ8_TILE);
    if (!AQ8_OVERLAP || item->vectors < AQ8_VECTORS || before->vectors != item->vectors || s->fine) {
        if (before->vectors)
            aq8_finish(s, before);
        before->n = 0;
    }
    if (aq8_by(s))
        aq8_scores_by(s, item, tops, before);
    else if (item->vectors == 2)
        aq8_scores_2(s, item->from, to, tops, before);
    else
        aq8_scores_1(s, item->from, to, tops, before);
    if (before->vectors)
        aq8_finish(s, before);
    const bool dense = s->args->bias && !s->index && !s->args->first && !s->args->last;
    if (!s->plain)
        for (size_t g = 0; g < item->vectors; g++)
            tops[g] = dense ? aq8_bias(s, item, g) : aq8_mask(s, item, g);
    for (size_t g = 0; g < item->vectors; g++) {
        struct aq8_lanes *lanes = &item->lanes[g];
        vi old = lanes->top;
        lanes->top = vi_max(tops[g], old);
        vm some = v_lt(v_set1(-2 * LATHE_Q8_FARTHEST), v_from_i32(old));
        vf x = v_from_i32(vi_sub(old, lanes->top)) * lanes->unit;
        lanes->shrink = v_select(some, aq8_power(x), v_set1(0.0f));
    }
    aq8_begin_weights(s, item);
}

static void aq8_queries(const struct aq8 *s) {
    struct aq8_lanes lanes[2][AQ8_VECTORS]; /* of this tile and of the one before */
    struct aq8_item items[2];
    size_t turn = 0, tile = 0;
    items[1].vectors = items[1].n = items[1].done = 0;
    for (size_t q0 = 0, count; q0 < s->args->nq; q0 += count, tile ^= 1) {
        size_t left = s->args->nq - q0, from, to;
        count = left < AQ8_VECTORS * VN ? left : AQ8_VECTORS * VN;
        const size_t vectors = count > VN ? 2 : 1;
#ifdef __PRFCHW__
        /* Another core has read these lines since they were last written, and stores wait for them. Zen 5, 2 cores
         * without a common cache, int8 at 16, 32, 64 tokens: minilm-l6 0.263 -> 0.258, 0.490 -> 0.481, 0.934 -> 0.929,
         * distilbert 0.843 -> 0.840, 1.550 -> 1.540, 2.888 -> 2.866 ms; with one no difference. */
        for (size_t r = 0; r < count; r++)
            for (size_t c = 0; c < s->args->dv; c += VN)
                __builtin_prefetch(s->args->out + (q0 + r) * s->args->ldo + c, 1);
#endif
        aq8_span(s, q0, count, &from, &to);
        for (size_t g = 0; g < vectors; g++)
            aq8_pack_queries(s, q0 + g * VN, aq8_count(count, g), g, vectors, &lanes[tile][g]);
        for (size_t at = from; at == from || at < to; at += items[turn].n, turn ^= 1) {
            struct aq8_item *item = &items[turn];
            size_t end = (at / LATHE_Q8_BLOCK + 1) * LATHE_Q8_BLOCK;
            end = end < to ? end : to;
            item->q0 = q0;
            item->count = count;
            item->vectors = vectors;
            item->from = at;
            item->n = end - at;
            item->first = at == from;
            item->last = end == to;
            item->lanes = lanes[tile];
            aq8_start(s, item, &items[turn ^ 1]);
            if (!item->n) {
                turn ^= 1;
                break;
            }
        }
    }
    aq8_finish(s, &items[turn ^ 1]);
}

static inline void *aq8_take(char **at, size_t bytes) {
    char *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

static void aq8_head(const struct lathe_attention_f32_args *args, const struct lathe_q8_products *by) {
    struct aq8 s = {.args = args, .by = by, .keys = args->nk};
    size_t d = aq8_padded(args->d, aq8_by(&s) ? LATHE_Q8_GROUP : VN),
           rows = aq8_padded(args->nk, aq8_by(&s) ? LATHE_Q8_GROUP : AQ8_GROUP);
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
    s.strip = aq8_take(&at, LATHE_Q8_BLOCK * AQ8_VECTORS * VN * sizeof *s.strip);
    s.weights = aq8_take(&at, LATHE_Q8_BLOCK / AQ8_CPD * AQ8_VECTORS * VN * sizeof *s.weights);
    s.k = aq8_take(&at, rows * s.steps * sizeof *s.k);
    s.v = aq8_take(&at, rows / AQ8_CPD * s.columns * sizeof *s.v);
    if (args->keys) {
        int32_t *index = aq8_take(&at, rows * sizeof *index);
        size_t n = 0;
        for (size_t j = 0; j < args->nk; j++)
            if (args->keys[j])
                index[n++] = (int32_t)j;
        s.index = n && (size_t)index[n - 1] != n - 1 ? index : NULL; /* rows padded behind need none */
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
    s.steep = attention_q8_steep(s.fine);
    aq8_pack_head(&s);
    /* bytes that are those of the keys, the same for all queries, say nothing new */
    s.plain =
        !args->bias && (!args->allow || (args->allow == args->keys && !args->ld_allow)) && !args->first && !args->last;
    aq8_queries(&s);
}

void AQ8_NAME(const struct lathe_attention_f32_args *args) {
    aq8_head(args, NULL);
}

#if AQ8_BY
void lathe_attention_q8_by(const struct lathe_attention_f32_args *args, const struct lathe_q8_products *products) {
    aq8_head(args, products);
}
#endif
#endif
