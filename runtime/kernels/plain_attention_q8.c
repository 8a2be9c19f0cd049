/* attention_q8 in plain C: what every other row must equal bit for bit. */
#include "vec_plain.h"

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

/* round(LATHE_Q8_TOP 2^x) for x <= 0. */
static inline int32_t weight(float x) {
    if (!(x > -40.0f))
        return 0;
    float n = v_round(x), r = x - n;
    float p = fused(fused(fused(LATHE_Q8_EXP2_3, r, LATHE_Q8_EXP2_2), r, LATHE_Q8_EXP2_1), r, LATHE_Q8_EXP2_0);
    return nearest(v_scale1(p, n));
}

struct head {
    const struct lathe_attention_f32_args *args;
    float *k_low, *k_scale, *k_inverse, *v_low, *v_scale, *v_inverse;
    uint8_t *k; /* [nk][d] */
    int16_t *v; /* [nk][dv] */
    float *scores;
    float factor; /* NaN when a key has one, else 1 */
};

static bool takes_part(const struct head *h, size_t j) {
    return !h->args->keys || h->args->keys[j];
}

static void columns(const struct head *h, const float *x, size_t ldx, size_t n, float levels, float *low, float *scale,
                    float *inverse) {
    for (size_t c = 0; c < n; c++) {
        float lo = __builtin_inff(), hi = -__builtin_inff(), bad = 0.0f;
        for (size_t j = 0; j < h->args->nk; j++)
            if (takes_part(h, j)) {
                float v = x[j * ldx + c];
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
    columns(h, args->k, args->ldk, args->d, LATHE_Q8_KEY, h->k_low, h->k_scale, h->k_inverse);
    columns(h, args->v, args->ldv, args->dv, 2.0f * LATHE_Q8_VALUE, h->v_low, h->v_scale, h->v_inverse);
    h->factor = 1.0f;
    for (size_t c = 0; c < args->d; c++)
        h->factor += h->k_scale[c] * 0.0f;
    for (size_t j = 0; j < args->nk; j++) {
        bool part = takes_part(h, j);
        for (size_t c = 0; c < args->d; c++) {
            float t = (args->k[j * args->ldk + c] - h->k_low[c]) * h->k_inverse[c];
            h->k[j * args->d + c] = (uint8_t)(part ? nearest(v_max(v_min(t, LATHE_Q8_KEY), 0.0f)) : 0);
        }
        for (size_t c = 0; c < args->dv; c++) {
            float t = (args->v[j * args->ldv + c] - h->v_low[c]) * h->v_inverse[c];
            t = v_max(v_min(t, 2.0f * LATHE_Q8_VALUE), 0.0f);
            h->v[j * args->dv + c] = (int16_t)(part ? nearest(t) - LATHE_Q8_VALUE : 0);
        }
    }
}

static bool allowed(const struct head *h, size_t i, size_t j) {
    const struct lathe_attention_f32_args *args = h->args;
    return takes_part(h, j) && (!args->allow || args->allow[i * args->ld_allow + j]) &&
           (!args->first || (int64_t)j >= args->first[i]) && (!args->last || (int64_t)j < args->last[i]);
}

/* Scores of a query into h->scores, with -inf for keys that are masked; their largest. A bias that is no number or +inf
 * makes the query `odd`: its outputs are NaN. */
static float score_query(const struct head *h, size_t i, struct attention_q8_row *row, bool *odd) {
    const struct lathe_attention_f32_args *args = h->args;
    const float *q = args->q + i * args->ldq;
    float largest = 0.0f, bad = 0.0f, top = -__builtin_inff();
    for (size_t c = 0; c < args->d; c++) {
        float t = q[c] * h->k_scale[c];
        largest = v_max(v_abs(t), largest);
        bad += t * 0.0f;
    }
    *row = attention_q8_row(largest, bad, args->scale);
    for (size_t j = 0; j < args->nk; j++) {
        int32_t sum = 0;
        for (size_t c = 0; row->inverse != 0.0f && c < args->d; c++)
            sum += nearest(q[c] * h->k_scale[c] * row->inverse) * h->k[j * args->d + c];
        float s = (float)sum;
        if (args->bias) {
            s = s * row->c + args->bias[i * args->ldb + j] * LATHE_Q8_LOG2_E;
            *odd = *odd || (allowed(h, i, j) && !(s < __builtin_inff()));
        }
        s = allowed(h, i, j) ? s : -__builtin_inff();
        h->scores[j] = s;
        top = v_max(s, top);
    }
    return top;
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
    h.scores = h.v_inverse + dv;
    h.v = (int16_t *)(void *)(h.scores + nk);
    h.k = (uint8_t *)(h.v + nk * dv);
    quantize_head(&h);
    for (size_t i = 0; i < args->nq; i++) {
        struct attention_q8_row row;
        bool odd = false;
        float top = score_query(&h, i, &row, &odd), *out = args->out + i * args->ldo, by = args->bias ? 1.0f : row.c;
        bool any = odd || top > -__builtin_inff();
        int64_t sum = 0;
        if (args->no_key)
            args->no_key[i] = !any;
        for (size_t j = 0; any && j < nk; j++) {
            int32_t p = odd ? 0 : weight((h.scores[j] - top) * by);
            sum += p;
            memcpy(&h.scores[j], &p, sizeof p);
        }
        float inverse = odd ? __builtin_nanf("") : 1.0f / (float)sum * (row.factor * h.factor);
        for (size_t c = 0; c < dv; c++) {
            float total = 0.0f;
            for (size_t j0 = 0; any && j0 < nk; j0 += LATHE_ATTENTION_KEYS) {
                int32_t acc = 0;
                for (size_t j = j0; j < nk && j < j0 + LATHE_ATTENTION_KEYS; j++) {
                    int32_t p;
                    memcpy(&p, &h.scores[j], sizeof p);
                    acc += p * h.v[j * dv + c];
                }
                total = total + (float)acc;
            }
            out[c] = any ? total * inverse * h.v_scale[c] + (h.v_low[c] + h.v_scale[c] * (float)LATHE_Q8_VALUE) : 0.0f;
        }
    }
}

size_t lathe_attention_q8_scratch(size_t nq, size_t nk, size_t d, size_t dv) {
    const size_t limit = (size_t)1 << 24; /* no product below leaves 63 bits */
    (void)nq;                             /* a few queries at a time */
    if (nk > limit || d > limit || dv > limit)
        return SIZE_MAX;
    uint64_t keys = ((uint64_t)nk + 31) / 32 * 32, dp = ((uint64_t)d + 63) / 64 * 64,
             dvp = ((uint64_t)dv + 31) / 32 * 32;
    uint64_t floats = 3 * (dp + dvp) + LATHE_ATTENTION_Q8_ROWS * (keys + 16 + dvp);
    uint64_t bytes = floats * 4 + keys * 2 * (dp + dvp) + LATHE_ATTENTION_Q8_ROWS * 2 * dp + 64 * 16;
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}
