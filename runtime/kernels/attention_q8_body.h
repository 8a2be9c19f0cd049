/* attention_q8 on vectors, included by one file an instruction set. The scheme is attention_q8_scheme.h's. The
 * including file defines AQ8_NAME                     the function made here AQ8_ROWS                     the most
 * queries of a tile AQ8_CPD                      columns of a 32-bit word of keys and queries: 4 bytes, or 2 words of
 * 16 bits aq8_pack_key(x), aq8_pack_query(x)  VN words from the AQ8_CPD vectors x of floats, rounded half to even
 *   aq8_dot_key(acc, keys, query)       acc plus the AQ8_CPD products in each lane
 *   aq8_dot_pair(acc, a, b)             acc plus two products of 16 bits in each lane
 *   aq8_pack_weights(a, b)              2 VN weights in order from two vectors of floats
 *   aq8_pair(a, b)                      the low halves of two vectors of integers beside each other in each lane
 *   aq8_exp2(x)                         2^x LATHE_Q8_TOP for x <= 0, anything below 1/2 for x < -40
 *
 * Queries go through in tiles of up to AQ8_ROWS rows: their scores against all keys, keys across the lanes, lie in a
 * strip that the first or second cache holds; softmax turns a row into weights in its own place; then the product with
 * the values, columns across the lanes, in blocks of keys. Keys and values are brought into panels once a call:
 *   keys    [panel of VN keys][word of AQ8_CPD columns][VN]
 *   values  [panel of VN columns][pair of keys][VN]; a word holds both values of a pair
 * Both are padded with zeros to whole groups of 2 VN keys.
 *
 * One core of an EPYC of the Zen 5 class, us a head at 32, 128, 256, 384, 512 tokens (tests/bench/bench_kernels):
 *   heads of 64: AVX-512 f32 1.5 19.9 75.7 170 294; VNNI 1.6 12.4 40.9 86 146
 *   heads of 32: AVX-512 f32 0.8 11.0 42.1 94.7 165; VNNI 1.1 8.2 26.0 53.8 90
 * of 146 the products' peak is 95 (32 scores, 63 outputs). */
#ifndef LATHE_ATTENTION_Q8_BODY_H
#define LATHE_ATTENTION_Q8_BODY_H

#include "attention_q8_scheme.h"
#include "attention_shape.h"
#include "kernel_rows.h"
#include "unroll.h"

#include <string.h>

#define AQ8_GROUP (2 * (size_t)VN)       /* keys of a group: two panels */
#define AQ8_CHUNK (AQ8_CPD * (size_t)VN) /* columns that are packed together */

struct aq8 {
    const struct lathe_attention_f32_args *args;
    size_t steps, ld_q;    /* words of a key; of a line of q */
    size_t columns;        /* dv padded to 2 VN */
    size_t keys, ld_strip; /* nk padded to AQ8_GROUP; floats of a strip line */
    float *k_low, *k_scale, *k_inverse, *v_low, *v_scale, *v_inverse, *v_middle;
    int32_t *k, *v, *q;   /* panels; q [row][steps] */
    float *strip, *total; /* [AQ8_ROWS][ld_strip], [AQ8_ROWS][columns] */
    size_t any_key;       /* a key that takes part, nk if none does */
    float factor;         /* NaN when a key has one, else 1 */
};

/* Row j of keys or values; of a key that is masked that of another: nothing is multiplied with it. */
static inline size_t aq8_row(const struct aq8 *s, size_t j) {
    return s->args->keys && !s->args->keys[j] ? s->any_key : j;
}

static inline vf aq8_load(const float *p, size_t n) {
    return n >= VN ? v_load(p) : v_load_n(p, n);
}

/* Range, scale and reciprocal of each column over the keys. Arrays are padded to VN. */
static __attribute__((noinline)) void aq8_columns(const struct aq8 *s, const float *x, size_t ldx, size_t n,
                                                  float levels, float *low, float *scale, float *inverse) {
    for (size_t c = 0; c < n; c += VN) {
        vf lo[2], hi[2], bad[2];
        LATHE_UNROLL
        for (size_t u = 0; u < 2; u++) {
            lo[u] = v_set1(__builtin_inff());
            hi[u] = v_set1(-__builtin_inff());
            bad[u] = v_set1(0.0f);
        }
        for (size_t j = 0; s->any_key < s->args->nk && j < s->args->nk; j += 2) {
            LATHE_UNROLL
            for (size_t u = 0; u < 2; u++) {
                size_t at = aq8_row(s, j + u < s->args->nk ? j + u : j);
                vf v = aq8_load(x + at * ldx + c, n - c);
                lo[u] = v_min(v, lo[u]);
                hi[u] = v_max(v, hi[u]);
                bad[u] = v_fma(v, v_set1(0.0f), bad[u]);
            }
        }
        vf least = v_min(lo[0], lo[1]), by;
        vf size = attention_q8_column(least, v_max(hi[0], hi[1]), bad[0] + bad[1], levels, &by);
        v_store(low + c, least);
        v_store(scale + c, size);
        v_store(inverse + c, by);
    }
}

/* VN keys from key j0 on. */
static __attribute__((noinline)) void aq8_pack_keys(const struct aq8 *s, size_t j0, int32_t *panel) {
    const struct lathe_attention_f32_args *args = s->args;
    size_t count = args->nk - j0 < VN ? args->nk - j0 : VN;
    for (size_t c0 = 0; c0 < args->d; c0 += AQ8_CHUNK) {
        float lines[VN * VN]; /* not unrolled, for the size of the code */
        vf words[VN];
        size_t chunk = args->d - c0 < AQ8_CHUNK ? args->d - c0 : AQ8_CHUNK;
        for (size_t i = 0; i < count; i++) {
            const float *row = args->k + aq8_row(s, j0 + i) * args->ldk + c0;
            vf x[AQ8_CPD];
            LATHE_UNROLL
            for (size_t u = 0; u < AQ8_CPD; u++) {
                size_t c = u * VN;
                x[u] = v_set1(0.0f);
                if (c < chunk)
                    x[u] = (aq8_load(row + c, chunk - c) - v_load(s->k_low + c0 + c)) * v_load(s->k_inverse + c0 + c);
            }
            v_store(lines + i * VN, vi_as_float(aq8_pack_key(x)));
        }
        memset(lines + count * VN, 0, (VN - count) * VN * sizeof *lines);
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++)
            words[i] = v_load(lines + i * VN);
        v_transpose(words);
        LATHE_UNROLL
        for (size_t i = 0; i < VN; i++)
            v_store(lines + i * VN, words[i]);
        size_t t0 = c0 / AQ8_CPD, steps = s->steps - t0 < VN ? s->steps - t0 : VN;
        memcpy(panel + t0 * VN, lines, steps * VN * sizeof *panel);
    }
}

static inline vi aq8_value(const struct aq8 *s, size_t j, size_t c) {
    const struct lathe_attention_f32_args *args = s->args;
    if (j >= args->nk)
        return vi_set1(0);
    vf x = (aq8_load(args->v + aq8_row(s, j) * args->ldv + c, args->dv - c) - v_load(s->v_low + c)) *
           v_load(s->v_inverse + c);
    return vi_sub(vi_round(x), vi_set1(LATHE_Q8_VALUE));
}

static void aq8_pack_head(struct aq8 *s) {
    const struct lathe_attention_f32_args *args = s->args;
    s->any_key = 0;
    while (args->keys && s->any_key < args->nk && !args->keys[s->any_key])
        s->any_key++;
    aq8_columns(s, args->k, args->ldk, args->d, LATHE_Q8_KEY, s->k_low, s->k_scale, s->k_inverse);
    aq8_columns(s, args->v, args->ldv, args->dv, 2.0f * LATHE_Q8_VALUE, s->v_low, s->v_scale, s->v_inverse);
    s->factor = 1.0f;
    for (size_t c = 0; c < args->d; c++)
        s->factor += s->k_scale[c] * 0.0f;
    for (size_t c = 0; c < s->columns; c += VN)
        v_store(s->v_middle + c, v_load(s->v_low + c) + v_load(s->v_scale + c) * v_set1((float)LATHE_Q8_VALUE));
    if (s->any_key >= args->nk)
        return;
    for (size_t j = 0; j < s->keys; j += VN) {
        int32_t *panel = s->k + j * s->steps;
        if (j < args->nk)
            aq8_pack_keys(s, j, panel);
        else
            memset(panel, 0, s->steps * VN * sizeof *panel);
    }
    for (size_t c = 0; c < s->columns; c += VN) {
        int32_t *panel = s->v + c * (s->keys / 2);
        for (size_t j = 0; j < s->keys; j += 2)
            vi_store(panel + j / 2 * VN, aq8_pair(aq8_value(s, j, c), aq8_value(s, j + 1, c)));
    }
}

/* ---- queries */

static __attribute__((noinline)) struct attention_q8_row aq8_pack_row(const struct aq8 *s, const float *q,
                                                                      int32_t *out) {
    size_t d = s->args->d;
    vf most = v_set1(0.0f), bad = v_set1(0.0f);
    for (size_t c = 0; c < d; c += VN) {
        vf t = aq8_load(q + c, d - c) * v_load(s->k_scale + c);
        most = v_max(v_abs(t), most);
        bad = v_fma(t, v_set1(0.0f), bad);
    }
    struct attention_q8_row row = attention_q8_row(v_hmax(most), v_sum(bad), s->args->scale);
    if (row.inverse == 0.0f) {
        memset(out, 0, s->steps * sizeof *out);
        return row;
    }
    for (size_t c0 = 0; c0 < d; c0 += AQ8_CHUNK) {
        vf x[AQ8_CPD];
        LATHE_UNROLL
        for (size_t u = 0; u < AQ8_CPD; u++) {
            size_t c = c0 + u * VN;
            x[u] = v_set1(0.0f);
            if (c < d)
                x[u] = aq8_load(q + c, d - c) * v_load(s->k_scale + c) * v_set1(row.inverse);
        }
        vi_store(out + c0 / AQ8_CPD, aq8_pack_query(x)); /* lines are padded to whole chunks */
    }
    return row;
}

/* ---- products: `rows` is one of AQ8_CASES; surplus ones are of whatever lies there and not used */

/* A group of keys against all rows. */
static inline __attribute__((always_inline)) void aq8_scores_of(const size_t rows, const int32_t *k, size_t steps,
                                                                const int32_t *q, size_t ldq, int32_t *out,
                                                                size_t lds) {
    vi acc[AQ8_ROWS][2];
    const int32_t *next = k + steps * VN;
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = vi_set1(LATHE_Q8_BASE_BITS);
    for (size_t t = 0; t < steps; t++, k += VN, next += VN, q++) {
        vi k0 = vi_load(k), k1 = vi_load(next);
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            vi word = vi_set1(q[r * ldq]);
            acc[r][0] = aq8_dot_key(acc[r][0], k0, word);
            acc[r][1] = aq8_dot_key(acc[r][1], k1, word);
        }
    }
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi_store(out + r * lds, acc[r][0]);
        vi_store(out + r * lds + VN, acc[r][1]);
    }
}

/* Sums of keys [from, to) for two panels of columns from c on, [rows][2 VN]. */
static inline __attribute__((always_inline)) void aq8_values_of(const size_t rows, const struct aq8 *s, size_t from,
                                                                size_t to, size_t c, int32_t *sums) {
    vi acc[AQ8_ROWS][2];
    size_t stride = s->keys / 2 * VN, lds = s->ld_strip;
    const int32_t *v = s->v + c * (s->keys / 2) + from / 2 * VN;
    const int32_t *p = (const int32_t *)(const void *)s->strip + from / 2;
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = vi_set1(0);
    for (size_t t = from; t < to; t += 2, v += VN, p++) {
        vi v0 = vi_load(v), v1 = vi_load(v + stride);
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            vi pair = vi_set1(p[r * lds]);
            acc[r][0] = aq8_dot_pair(acc[r][0], pair, v0);
            acc[r][1] = aq8_dot_pair(acc[r][1], pair, v1);
        }
    }
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi_store(sums + r * 2 * VN, acc[r][0]);
        vi_store(sums + (r * 2 + 1) * VN, acc[r][1]);
    }
}

#define AQ8_CASE(rows)                                                                                                 \
    case rows:                                                                                                         \
        for (size_t j = from; j < to; j += AQ8_GROUP)                                                                  \
            aq8_scores_of(rows, s->k + j * s->steps, s->steps, s->q, s->ld_q, strip + j, s->ld_strip);                 \
        return;
static __attribute__((noinline)) void aq8_scores(size_t rows, const struct aq8 *s, size_t from, size_t to) {
    int32_t *strip = (int32_t *)(void *)s->strip;
    switch (rows) {
        AQ8_CASES
    default:
        return;
    }
}
#undef AQ8_CASE
#define AQ8_CASE(rows)                                                                                                 \
    case rows:                                                                                                         \
        aq8_values_of(rows, s, from, to, c, sums);                                                                     \
        return;
static __attribute__((noinline)) void aq8_values(size_t rows, const struct aq8 *s, size_t from, size_t to, size_t c,
                                                 int32_t *sums) {
    switch (rows) {
        AQ8_CASES
    default:
        return;
    }
}
#undef AQ8_CASE

/* Columns from c on: sums of a block of keys to those before, and after the last block to outputs. */
static __attribute__((noinline)) void aq8_finish(size_t rows, const struct aq8 *s, size_t q0, size_t c, bool first,
                                                 bool last, const int32_t *sums, const float *inverse) {
    const struct lathe_attention_f32_args *args = s->args;
    for (size_t r = 0; r < rows; r++)
        for (size_t u = 0; u < 2; u++) {
            size_t at = c + u * VN;
            vf x = v_from_i32(vi_load(sums + (r * 2 + u) * VN));
            if (!first)
                x = v_load(s->total + r * s->columns + at) + x;
            if (!last) {
                v_store(s->total + r * s->columns + at, x);
                continue;
            }
            x = x * v_set1(inverse[r]) * v_load(s->v_scale + at) + v_load(s->v_middle + at);
            float *out = args->out + (q0 + r) * args->ldo + at;
            if (at + VN <= args->dv)
                v_store(out, x);
            else if (at < args->dv)
                v_store_n(out, x, args->dv - at);
        }
}

/* ---- softmax */

/* -inf where a mask says so; with a bias the line becomes scores in base 2. True when a bias is NaN or +inf. */
static __attribute__((noinline)) bool aq8_mask(const struct aq8 *s, size_t i, float *line, size_t from, size_t to,
                                               float c) {
    const struct lathe_attention_f32_args *args = s->args;
    if (args->bias) {
        const float *bias = args->bias + i * args->ldb;
        for (size_t j = from; j < to; j += VN) {
            vf b = j < args->nk ? aq8_load(bias + j, args->nk - j) : v_set1(0.0f);
            v_store(line + j, (v_load(line + j) - v_set1(LATHE_Q8_BASE)) * v_set1(c) + b * v_set1(LATHE_Q8_LOG2_E));
        }
    }
    if (args->allow || args->keys) {
        const uint8_t *allow = args->allow ? args->allow + i * args->ld_allow : NULL;
        for (size_t j = from; j < to && j < args->nk; j++)
            if ((allow && !allow[j]) || (args->keys && !args->keys[j]))
                line[j] = -__builtin_inff();
    }
    int64_t lo = args->first ? args->first[i] : 0, hi = args->last ? args->last[i] : (int64_t)args->nk;
    for (size_t j = from; j < to && (int64_t)j < lo; j++)
        line[j] = -__builtin_inff();
    hi = hi < (int64_t)args->nk ? hi : (int64_t)args->nk;
    for (size_t j = hi < (int64_t)from ? from : (size_t)hi; j < to; j++)
        line[j] = -__builtin_inff();
    bool odd = false;
    for (size_t j = from; args->bias && j < to; j++)
        odd |= !(line[j] < __builtin_inff());
    return odd;
}

static int64_t aq8_sum_of_many(vi x) {
    int32_t lanes[VN];
    int64_t sum = 0;
    vi_store(lanes, x);
    for (size_t i = 0; i < VN; i++)
        sum += lanes[i];
    return sum;
}

/* Scores of keys [from, to) become weights, from the front of the line; returns their sum, 0 without any key. */
static __attribute__((noinline)) int64_t aq8_softmax(float *line, size_t from, size_t to, float by) {
    vf a = v_set1(-__builtin_inff()), b = a;
    for (size_t j = from; j < to; j += AQ8_GROUP) {
        a = v_max(v_load(line + j), a);
        b = v_max(v_load(line + j + VN), b);
    }
    float most = v_hmax(v_max(a, b));
    if (!(most > -__builtin_inff()))
        return 0;
    vf top = v_set1(most), c = v_set1(by);
    vi sum = vi_set1(0);
    for (size_t j = from; j < to; j += AQ8_GROUP) {
        vf x = (v_load(line + j) - top) * c, y = (v_load(line + j + VN) - top) * c;
        vi pair = aq8_pack_weights(aq8_exp2(x), aq8_exp2(y));
        vi_store((int32_t *)(void *)line + j / 2, pair);
        sum = aq8_dot_pair(sum, pair, vi_set1(0x00010001));
    }
    return to <= 1 << 17 ? vi_sum(sum) : aq8_sum_of_many(sum);
}

/* ---- a tile */

/* The groups of keys that some query of the tile may see. */
static void aq8_span(const struct aq8 *s, size_t q0, size_t rows, size_t *from, size_t *to) {
    const struct lathe_attention_f32_args *args = s->args;
    int64_t lo = 0, hi = (int64_t)args->nk;
    if (args->first) {
        lo = hi;
        for (size_t r = 0; r < rows; r++)
            lo = args->first[q0 + r] < lo ? args->first[q0 + r] : lo;
    }
    if (args->last) {
        int64_t most = 0;
        for (size_t r = 0; r < rows; r++)
            most = args->last[q0 + r] > most ? args->last[q0 + r] : most;
        hi = most < hi ? most : hi;
    }
    lo = lo < 0 ? 0 : lo;
    *from = (size_t)lo / AQ8_GROUP * AQ8_GROUP;
    *to = hi <= lo ? *from : ((size_t)hi + AQ8_GROUP - 1) / AQ8_GROUP * AQ8_GROUP;
}

/* `rows` queries from q0 on, in products of `compiled` rows. */
static void aq8_tile(size_t rows, size_t compiled, const struct aq8 *s, size_t q0, bool plain) {
    const struct lathe_attention_f32_args *args = s->args;
    size_t from, to;
    struct attention_q8_row row[AQ8_ROWS];
    float inverse[AQ8_ROWS];
    bool some[AQ8_ROWS];
    int32_t sums[AQ8_ROWS * 2 * VN] __attribute__((aligned(64)));
    aq8_span(s, q0, rows, &from, &to);
    to = s->any_key < args->nk ? to : from;
    for (size_t r = 0; r < rows; r++)
        row[r] = aq8_pack_row(s, args->q + (q0 + r) * args->ldq, s->q + r * s->ld_q);
    aq8_scores(compiled, s, from, to);
    for (size_t r = 0; r < rows; r++) {
        float *line = s->strip + r * s->ld_strip;
        bool odd = false;
        if (!plain)
            odd = aq8_mask(s, q0 + r, line, from, to, row[r].c);
        else
            for (size_t j = args->nk; j < to; j++)
                line[j] = -__builtin_inff();
        int64_t sum = 0;
        if (odd)
            memset(line + from / 2, 0, (to - from) / 2 * sizeof *line);
        else
            sum = aq8_softmax(line, from, to, args->bias ? 1.0f : row[r].c);
        if (!odd && sum == 0)
            memset(line + from / 2, 0, (to - from) / 2 * sizeof *line);
        some[r] = odd || sum != 0;
        inverse[r] = odd ? __builtin_nanf("") : 1.0f / (float)sum * (row[r].factor * s->factor);
        if (args->no_key)
            args->no_key[q0 + r] = !some[r];
    }
    for (size_t b = from; b < to;) {
        size_t end = (b / LATHE_ATTENTION_KEYS + 1) * LATHE_ATTENTION_KEYS;
        end = end < to ? end : to;
        for (size_t c = 0; c < s->columns; c += 2 * VN) {
            aq8_values(compiled, s, b, end, c, sums);
            aq8_finish(rows, s, q0, c, b == from, end == to, sums, inverse);
        }
        b = end;
    }
    for (size_t r = 0; r < rows; r++)
        if (!some[r])
            memset(args->out + (q0 + r) * args->ldo, 0, args->dv * sizeof(float));
}

static inline void *aq8_take(char **at, size_t bytes) {
    char *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

void AQ8_NAME(const struct lathe_attention_f32_args *args) {
    struct aq8 s = {.args = args};
    size_t d = (args->d + AQ8_CHUNK - 1) / AQ8_CHUNK * AQ8_CHUNK;
    s.steps = (args->d + AQ8_CPD - 1) / AQ8_CPD;
    s.ld_q = d / AQ8_CPD;
    s.columns = (args->dv + 2 * VN - 1) / (2 * VN) * (2 * VN);
    s.keys = (args->nk + AQ8_GROUP - 1) / AQ8_GROUP * AQ8_GROUP;
    s.ld_strip = s.keys + 16;
    char *at = args->scratch;
    at += (64 - (size_t)at % 64) % 64;
    s.k_low = aq8_take(&at, d * sizeof(float));
    s.k_scale = aq8_take(&at, d * sizeof(float));
    s.k_inverse = aq8_take(&at, d * sizeof(float));
    s.v_low = aq8_take(&at, s.columns * sizeof(float));
    s.v_scale = aq8_take(&at, s.columns * sizeof(float));
    s.v_inverse = aq8_take(&at, s.columns * sizeof(float));
    s.v_middle = aq8_take(&at, s.columns * sizeof(float));
    s.q = aq8_take(&at, AQ8_ROWS * d / AQ8_CPD * sizeof *s.q);
    s.total = aq8_take(&at, AQ8_ROWS * s.columns * sizeof(float));
    s.strip = aq8_take(&at, AQ8_ROWS * s.ld_strip * sizeof(float));
    s.k = aq8_take(&at, s.keys * s.steps * sizeof *s.k);
    s.v = aq8_take(&at, s.keys / 2 * s.columns * sizeof *s.v);
    aq8_pack_head(&s);
    bool plain = !args->bias && !args->allow && !args->keys && !args->first && !args->last;
    for (size_t q0 = 0, rows; q0 < args->nq; q0 += rows) {
        size_t left = args->nq - q0, compiled = AQ8_TILE(left);
        rows = left < compiled ? left : compiled;
        aq8_tile(rows, compiled, &s, q0, plain);
    }
}
#endif
