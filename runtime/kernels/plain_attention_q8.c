/* attention_q8 in plain C: what every other row must equal bit for bit. */
#include "veci_plain.h"

#include "attention_q8_scheme.h"
#include "attention_shape.h"
#include "kernel_rows.h"
#include "quantize_body.h"

/* One rounding, where the plain architecture has no instruction for it: the sum in double, rounded to odd, keeps what
 * the second rounding needs to know. */
static inline float fused(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b, s = p + (double)c, back = s - p;
    double lost = (p - (s - back)) + ((double)c - back);
    uint64_t u;
    memcpy(&u, &s, 8);
    if (lost != 0.0 && !(u & 1u))
        u = (lost > 0.0) == (s > 0.0) ? u + 1 : u - 1;
    memcpy(&s, &u, 8);
    return (float)s;
#endif
}

/* 2^x for x <= 0: 1 for 0, next to nothing below -40. */
static inline float power(float x) {
    x = v_max(x, -40.0f);
    float n = v_round(x), r = x - n;
    float p = fused(fused(LATHE_Q8_POWER_3, r, LATHE_Q8_POWER_2), r, LATHE_Q8_POWER_1);
    return x < 0.0f ? v_scale1(fused(p, r, LATHE_Q8_POWER_0), n) : 1.0f;
}

/* The weight of a key at distance y from the largest score, in 16 bits. */
static inline uint32_t weight(uint32_t y, int32_t steep) {
    uint32_t shift = y >> steep, part = (y << (16 - steep)) % (1u << 16);
    return shift < 16 ? LATHE_Q8_POWER(part) >> shift : 0;
}

/* Nearest integer, half to even, for |x| < 2^31. */
static inline int32_t nearest_wide(float x) {
    float half = v_copysign(8388608.0f, x);
    return (int32_t)(v_abs(x) < 8388608.0f ? (x + half) - half : x);
}

struct head {
    const struct lathe_attention_f32_args *args;
    float *k_low, *k_scale, *k_inverse, *v_low, *v_scale, *v_inverse;
    size_t keys;       /* that take part */
    int32_t steep;     /* of so many */
    int32_t *index;    /* of these */
    uint8_t *k;        /* [keys][d] */
    int8_t *v;         /* [keys][dv] */
    int32_t *scores;   /* of a block */
    uint16_t *weights; /* the same */
    int8_t *q;         /* [d] */
    float *total;      /* [dv] */
    float factor;      /* NaN when a key has one, else 1 */
};

static void columns(const struct head *h, const float *x, size_t ldx, size_t n, float levels, float *low, float *scale,
                    float *inverse) {
    for (size_t c = 0; c < n; c++) {
        float lo = __builtin_inff(), hi = -__builtin_inff(), bad = 0.0f;
        for (size_t j = 0; j < h->keys; j++) {
            float v = x[(size_t)h->index[j] * ldx + c];
            lo = v_min(v, lo);
            hi = v_max(v, hi);
            bad += v * 0.0f;
        }
        low[c] = lo;
        scale[c] = attention_q8_column(lo, hi, bad, levels, &inverse[c]);
    }
}

static void quantize_head(struct head *h) {
    const struct lathe_attention_f32_args *args = h->args;
    h->keys = 0;
    for (size_t j = 0; j < args->nk; j++)
        if (!args->keys || args->keys[j])
            h->index[h->keys++] = (int32_t)j;
    h->steep = attention_q8_steep(h->keys <= LATHE_Q8_FINE);
    columns(h, args->k, args->ldk, args->d, LATHE_Q8_KEY, h->k_low, h->k_scale, h->k_inverse);
    columns(h, args->v, args->ldv, args->dv, LATHE_Q8_VALUE, h->v_low, h->v_scale, h->v_inverse);
    h->factor = 1.0f;
    for (size_t c = 0; c < args->d; c++)
        h->factor += h->k_scale[c] * 0.0f;
    for (size_t j = 0; j < h->keys; j++) {
        const float *k = args->k + (size_t)h->index[j] * args->ldk, *v = args->v + (size_t)h->index[j] * args->ldv;
        for (size_t c = 0; c < args->d; c++) {
            float t = (k[c] - h->k_low[c]) * h->k_inverse[c];
            h->k[j * args->d + c] = (uint8_t)nearest(v_max(v_min(t, LATHE_Q8_KEY), 0.0f));
        }
        for (size_t c = 0; c < args->dv; c++) {
            float t = (v[c] - h->v_low[c]) * h->v_inverse[c];
            h->v[j * args->dv + c] = (int8_t)(nearest(v_max(v_min(t, LATHE_Q8_VALUE), 0.0f)) - 128);
        }
    }
}

static bool allowed(const struct head *h, size_t i, size_t j) {
    const struct lathe_attention_f32_args *args = h->args;
    return (!args->allow || args->allow[i * args->ld_allow + j]) && (!args->first || (int64_t)j >= args->first[i]) &&
           (!args->last || (int64_t)j < args->last[i]);
}

static struct attention_q8_query quantize_query(const struct head *h, const float *q) {
    float largest = 0.0f, bad = 0.0f;
    for (size_t c = 0; c < h->args->d; c++) {
        float t = q[c] * h->k_scale[c];
        largest = v_max(v_abs(t), largest);
        bad += t * 0.0f;
    }
    struct attention_q8_query query = attention_q8_query(largest + bad, h->args->scale, h->steep);
    for (size_t c = 0; c < h->args->d; c++)
        h->q[c] = (int8_t)(query.inverse != 0.0f ? nearest(q[c] * h->k_scale[c] * query.inverse) : 0);
    return query;
}

/* Scores of a query for keys [from, to) into h->scores; the largest of them and `top`. A bias that is no number or +inf
 * makes the query `odd`: its outputs are NaN. */
static int32_t score_block(const struct head *h, size_t i, size_t from, size_t to, float a, int32_t top, bool *odd) {
    const struct lathe_attention_f32_args *args = h->args;
    for (size_t j = from; j < to; j++) {
        size_t key = (size_t)h->index[j];
        int32_t sum = 0;
        for (size_t c = 0; c < args->d; c++)
            sum += h->q[c] * h->k[j * args->d + c];
        if (!allowed(h, i, key)) {
            sum = LATHE_Q8_NONE;
        } else if (args->bias) {
            float s = (float)sum * a + args->bias[i * args->ldb + key] * LATHE_Q8_LOG2_E;
            *odd = *odd || !(s < __builtin_inff());
            float z = v_min(v_max(s * (float)(1 << (h->steep + LATHE_Q8_BIAS)), -LATHE_Q8_FARTHEST), LATHE_Q8_FARTHEST);
            sum = s > -__builtin_inff() ? nearest_wide(z) : LATHE_Q8_NONE;
        }
        h->scores[j - from] = sum;
        top = sum > top ? sum : top;
    }
    return top;
}

/* Scores become weights; returns their sum. */
static float weigh_block(const struct head *h, size_t count, int32_t shift, int32_t top) {
    uint32_t carry[2] = {128, 128};
    int32_t sum = 0, half = (1 << shift) >> 1;
    for (size_t j = 0; j < count; j++) {
        uint32_t y = (uint32_t)(top + half - h->scores[j]) >> shift, e = weight(y < 65535 ? y : 65535, h->steep);
        if (h->keys > LATHE_Q8_FINE) {
            e += carry[j & 1];
            carry[j & 1] = e & 0xffu;
            e >>= 8;
        }
        h->weights[j] = (uint16_t)e;
        sum += (int32_t)e;
    }
    return (float)sum;
}

static void put_query(const struct head *h, size_t i) {
    const struct lathe_attention_f32_args *args = h->args;
    struct attention_q8_query query = quantize_query(h, args->q + i * args->ldq);
    float sum = 0.0f, unit = args->bias ? 1.0f / (float)(1 << (h->steep + LATHE_Q8_BIAS)) : query.a;
    float *out = args->out + i * args->ldo;
    int32_t top = LATHE_Q8_NONE, shift = args->bias ? LATHE_Q8_BIAS : query.shift;
    bool odd = false;
    for (size_t b = 0; b < h->keys; b += LATHE_Q8_BLOCK) {
        size_t end = h->keys - b < LATHE_Q8_BLOCK ? h->keys : b + LATHE_Q8_BLOCK;
        int32_t before = top;
        top = score_block(h, i, b, end, query.a, before, &odd);
        float shrink = before > LATHE_Q8_NONE ? power((float)(before - top) * unit) : 0.0f;
        sum = fused(sum, shrink, weigh_block(h, end - b, shift, top));
        for (size_t c = 0; c < args->dv; c++) {
            int32_t acc = 0;
            for (size_t j = b; j < end; j++)
                acc += h->weights[j - b] * h->v[j * args->dv + c];
            h->total[c] = b ? fused(h->total[c], shrink, (float)acc) : (float)acc;
        }
    }
    bool any = odd || top > LATHE_Q8_NONE;
    if (args->no_key)
        args->no_key[i] = !any;
    float inverse = odd ? __builtin_nanf("") : 1.0f / sum * (query.factor * h->factor);
    for (size_t c = 0; c < args->dv; c++)
        out[c] = any ? fused(h->total[c] * inverse, h->v_scale[c], h->v_low[c] + h->v_scale[c] * 128.0f) : 0.0f;
}

void lathe_attention_q8__c(const struct lathe_attention_f32_args *args) {
    struct head h = {.args = args};
    size_t d = args->d, dv = args->dv, nk = args->nk;
    h.k_low = args->scratch;
    h.k_scale = h.k_low + d;
    h.k_inverse = h.k_scale + d;
    h.v_low = h.k_inverse + d;
    h.v_scale = h.v_low + dv;
    h.v_inverse = h.v_scale + dv;
    h.total = h.v_inverse + dv;
    h.scores = (int32_t *)(void *)(h.total + dv);
    h.index = h.scores + LATHE_Q8_BLOCK;
    h.weights = (uint16_t *)(void *)(h.index + nk);
    h.q = (int8_t *)(h.weights + LATHE_Q8_BLOCK);
    h.k = (uint8_t *)(h.q + d);
    h.v = (int8_t *)(h.k + nk * d);
    quantize_head(&h);
    for (size_t i = 0; i < args->nq; i++)
        put_query(&h, i);
}

size_t lathe_attention_q8_scratch(size_t nq, size_t nk, size_t d, size_t dv) {
    const size_t limit = (size_t)1 << 24; /* no product below leaves 63 bits */
    (void)nq;                             /* a few queries at a time */
    if (nk > limit || d > limit || dv > limit)
        return SIZE_MAX;
    uint64_t keys = ((uint64_t)nk + 63) / 64 * 64, dp = ((uint64_t)d + 63) / 64 * 64,
             dvp = ((uint64_t)dv + 15) / 16 * 16; /* as attention_q8_product.h wants them */
    /* columns; lines and words of queries; totals, the strip and weights; keys and values of up to 16 bits; index */
    uint64_t bytes = (3 * dp + 5 * dvp) * 4 + (16 + LATHE_Q8_QUERIES / 4) * dp * 4 +
                     LATHE_Q8_QUERIES * (dvp * 4 + LATHE_Q8_BLOCK * 6) + keys * 2 * (dp + dvp) + keys * 4 + 64 * 16;
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}
