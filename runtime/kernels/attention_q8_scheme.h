/* attention_q8: the scheme, and the numbers that all rows of the table share.
 *
 * One head of one sequence, with columns c of the head, keys j and queries i:
 *   keys     u[j][c] = round((k[j][c] - low[c]) / ks[c]), 0 to 254; low and ks = range / 254 are the column's over
 *            the keys that `keys` leaves. What low adds to the scores of a query is the same for all keys: softmax
 *            does not see it.
 *   queries  s[i][c] = round(q[i][c] ks[c] / qs[i]), -127 to 127; qs = the row's largest magnitude / 127
 *   scores   S[i][j] = sum over c of s u, exact in integers; a[i] = qs[i] scale log2(e);
 *            x = (S - largest S) a, or with a bias x = (S a + bias log2(e)) - the largest of these
 *   weights  p[i][j] = round(LATHE_Q8_TOP 2^x), 2^x by a cubic polynomial (relative error 7.5e-5);
 *            0 where a mask says so
 *   values   w[j][c] = round((v[j][c] - low[c]) / vs[c]) - 1023; vs = range / 2046 of the column
 *   outputs  (sum over j of p w / sum over j of p) vs[c] + (low[c] + 1023 vs[c])
 *
 * p has 13 bits and w 11, so that sums over LATHE_ATTENTION_KEYS keys fit 32 bits; those of the blocks are added in
 * f32. Weights of 8 bits would lose the many small ones: on texts of 512 tokens (minilm-l6) that costs 7e-4 of cosine,
 * as much as all linear layers in 8 bits; this scheme costs 8e-6.
 *
 * Every operation on floats is one IEEE operation, those of the polynomial are fused multiply-adds: all rows of the
 * table give the same bits. A NaN or an infinity in k makes all outputs NaN, in q those of its row, in v those of its
 * column. */
#ifndef LATHE_ATTENTION_Q8_SCHEME_H
#define LATHE_ATTENTION_Q8_SCHEME_H

#define LATHE_Q8_TOP   8190.0f
#define LATHE_Q8_KEY   254.0f /* largest key; even: the middle of a range is a level */
#define LATHE_Q8_VALUE 1023   /* largest magnitude of a value */

/* 2^r LATHE_Q8_TOP for |r| <= 1/2: our own minimax fit. r is x - round(x), which is exact. */
#define LATHE_Q8_EXP2_0 (0.99992807f * LATHE_Q8_TOP)
#define LATHE_Q8_EXP2_1 (0.69326099f * LATHE_Q8_TOP)
#define LATHE_Q8_EXP2_2 (0.24261123f * LATHE_Q8_TOP)
#define LATHE_Q8_EXP2_3 (0.05517171f * LATHE_Q8_TOP)

#define LATHE_Q8_LOG2_E 1.44269504f

/* Below this a range counts as none. */
#define LATHE_Q8_NO_RANGE 1e-30f
/* Scores are kept as floats 1.5 * 2^23 + S: as bits they are integers that a product in integers adds to. Exact for
 * |S| < 2^22, that is up to 128 columns. */
#define LATHE_Q8_BASE      12582912.0f
#define LATHE_Q8_BASE_BITS 0x4b400000

/* Levels, scale and its reciprocal of a column from its range; the scale is NaN when `bad` (0 or NaN) is or the range
 * overflows, 0 without a range. On the vector layer. */
static inline vf attention_q8_column(vf lo, vf hi, vf bad, float levels, vf *inverse) {
    vf range = (hi - lo) + bad, scale = range / v_set1(levels);
    vm some = v_lt(v_set1(LATHE_Q8_NO_RANGE), range), finite = v_lt(range, v_set1(__builtin_inff()));
    *inverse = v_select(some, v_select(finite, v_set1(1.0f) / scale, v_set1(0.0f)), v_set1(0.0f));
    scale = v_select(some, scale, v_set1(0.0f));
    return v_select(finite, scale, v_set1(__builtin_nanf("")));
}

struct attention_q8_row {
    float inverse; /* of the scale of s */
    float c;       /* never 0, so that -inf stays -inf */
    float factor;  /* NaN when the row has one, else 1 */
};
static inline struct attention_q8_row attention_q8_row(float largest, float bad, float scale) {
    struct attention_q8_row row = {.inverse = 0.0f, .c = 1.0f, .factor = 1.0f};
    largest = largest + bad;
    if (!(largest < __builtin_inff())) {
        row.factor = __builtin_nanf("");
    } else if (largest > LATHE_Q8_NO_RANGE) {
        float qs = largest / 127.0f;
        row.inverse = 1.0f / qs;
        row.c = qs * (scale * LATHE_Q8_LOG2_E);
        row.c = row.c > 1e-37f ? row.c : 1e-37f;
        row.c = row.c < 1e37f ? row.c : 1e37f;
    }
    return row;
}
#endif
