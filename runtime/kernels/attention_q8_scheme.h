/* attention_q8: the scheme, and the numbers that all rows of the table share.
 *
 * One head of one sequence, with columns c of the head, keys j and queries i; keys that `keys` masks are left out, the
 * others are numbered without gaps:
 *   keys     u[j][c] = round((k[j][c] - low[c]) / ks[c]), 0 to 254; low and ks = range / 254 are the column's over
 *            the keys. What low adds to the scores of a query is the same for all keys: softmax does not see it.
 *   queries  s[i][c] = round(q[i][c] ks[c] / qs[i]), -127 to 127; a[i] = qs[i] scale log2(e), what a step of the
 *            scores weighs, is a power of two: the least with which the row's largest magnitude fits, 2^-steep at most
 *            (from there on qs = the magnitude / 127) and 2^-(steep + LATHE_Q8_FLAT) at least
 *   scores   S[i][j] = sum over c of s u, exact in integers; with a bias round((S a + bias log2(e)) / b) in steps of
 *            b = 2^-(steep + LATHE_Q8_BIAS)
 *   weights  of LATHE_Q8_BLOCK keys: y = (T - S) a 2^steep, half rounded up, 0 to 65535, T the largest S of this block
 *            and those before: a difference and a shift;
 *            e = LATHE_Q8_WEIGHT 2^-(y / 2^steep), an integer of 16 bits: one of 2^steep, from a polynomial of second
 *            degree (relative error 1.7e-3), shifted; 0 where a mask says so
 *            p[i][j] = e with up to LATHE_Q8_FINE keys; with more the high byte of e + r, r the low byte that was left
 *            over at key j - 2, half a step at first. So what rounding takes from one key is given to the next but one,
 *            and no sum is lost.
 *            steep = LATHE_Q8_FINE_STEEP with up to LATHE_Q8_FINE keys, else LATHE_Q8_STEEP
 *   values   w[j][c] = round((v[j][c] - low[c]) / vs[c]) - 128; vs = range / 255 of the column
 *   outputs  (sum over j of p w / sum over j of p) vs[c] + (low[c] + 128 vs[c]); sums of a block are exact, those of
 *            the blocks before are scaled in f32 whenever T grows
 *
 * Weights of 8 bits each rounded for itself would lose the many small ones: on texts of 512 tokens (minilm-l6) that
 * costs 7e-4 of cosine, as much as all linear layers in 8 bits; with what is left over handed on it costs 6e-5.
 *
 * Every operation on floats is one IEEE operation, where FMA is written a fused one: all rows of the table give the
 * same bits. A NaN or an infinity in k makes all outputs NaN, in q those of its row, in v those of its column. */
#ifndef LATHE_ATTENTION_Q8_SCHEME_H
#define LATHE_ATTENTION_Q8_SCHEME_H

#include "attention_shape.h"

#include <stdbool.h>

#define LATHE_Q8_KEY   254.0f /* largest key; even: the middle of a range is a level */
#define LATHE_Q8_VALUE 255.0f /* largest value before 128 is taken off */
/* What steps of y are of a factor of two, and more than which softmax has one weight; the weights before they are
 * shifted are a table of 64 for many keys. */
#define LATHE_Q8_STEEP      6
#define LATHE_Q8_FINE_STEEP 9
#define LATHE_Q8_FLAT       16 /* a softmax so flat knows no difference */
#define LATHE_Q8_BIAS       4
/* The score of a key that is masked: below all others by more than any weight reaches, and no difference overflows. */
#define LATHE_Q8_NONE     (-(1 << 30))
#define LATHE_Q8_FARTHEST 536870912.0f /* 2^29, of scores with a bias */

/* 2^-f LATHE_Q8_WEIGHT = WEIGHT - f (EXP2_1 - f EXP2_2), f of 16 bits, products cut to their high 16: our own fit,
 * never above WEIGHT. WEIGHT + 255 fits 16 bits. */
#define LATHE_Q8_WEIGHT 65280
#define LATHE_Q8_EXP2_1 43554
#define LATHE_Q8_EXP2_2 11028

/* 2^r for |r| <= 1/2, for sums of blocks: our own minimax fit, relative error 7.5e-5. */
#define LATHE_Q8_POWER_0 0.99992807f
#define LATHE_Q8_POWER_1 0.69326099f
#define LATHE_Q8_POWER_2 0.24261123f
#define LATHE_Q8_POWER_3 0.05517171f

#define LATHE_Q8_LOG2_E 1.44269504f

/* Below this a range counts as none. */
#define LATHE_Q8_NO_RANGE 1e-30f
/* Levels, scale and its reciprocal of a column from its range; the scale is NaN when `bad` (0 or NaN) is or the range
 * overflows, 0 without a range. On the vector layer. */
static inline vf attention_q8_column(vf lo, vf hi, vf bad, float levels, vf *inverse) {
    vf range = (hi - lo) + bad, scale = range / v_set1(levels);
    vm some = v_lt(v_set1(LATHE_Q8_NO_RANGE), range), finite = v_lt(range, v_set1(__builtin_inff()));
    *inverse = v_select(some, v_select(finite, v_set1(1.0f) / scale, v_set1(0.0f)), v_set1(0.0f));
    scale = v_select(some, scale, v_set1(0.0f));
    return v_select(finite, scale, v_set1(__builtin_nanf("")));
}

/* Queries, one a lane, from their largest magnitude after ks; it is no finite number when one of the row's is not. */
struct attention_q8_query {
    vf inverse; /* of the scale of s; 0 for a row that is no number */
    vf a;
    vi shift;  /* a = 2^-(steep + shift) */
    vf factor; /* NaN when the row has one, else 1 */
};
static inline struct attention_q8_query attention_q8_query(vf largest, float scale, int32_t steep) {
    struct attention_q8_query query;
    vf log2 = v_set1(scale * LATHE_Q8_LOG2_E), none = v_set1(0.0f), zero = v_set1(12582912.0f + 127.0f);
    vm finite = v_lt(largest, v_set1(__builtin_inff()));
    vf a = v_select(finite, largest, none) / v_set1(127.0f) * log2;
    /* the exponent of the next power of two */
    vi up = vi_shift(vi_add(vi_bits(a), vi_set1(0x7fffff)), vi_set1(23));
    vi shift = vi_sub(vi_set1(127 - steep), vi_max(up, vi_set1(127 - LATHE_Q8_FLAT - steep)));
    query.shift = vi_max(shift, vi_set1(0));
    vf bits = v_from_i32(query.shift) + v_set1((float)steep);
    query.a = v_power2(zero - bits);
    query.inverse = v_min(log2 * v_power2(zero + bits), v_set1(127.0f) / largest);
    query.inverse = v_select(finite, query.inverse, none);
    query.factor = v_select(finite, v_set1(1.0f), v_set1(__builtin_nanf("")));
    return query;
}

/* What of e is not shifted, for part f / 2^16 of a factor of two. */
#define LATHE_Q8_POWER(f)                                                                                              \
    (LATHE_Q8_WEIGHT - ((uint32_t)(f) * (LATHE_Q8_EXP2_1 - ((uint32_t)(f)*LATHE_Q8_EXP2_2 >> 16)) >> 16))

static inline int32_t attention_q8_steep(bool fine) {
    return fine ? LATHE_Q8_FINE_STEEP : LATHE_Q8_STEEP;
}
#endif
