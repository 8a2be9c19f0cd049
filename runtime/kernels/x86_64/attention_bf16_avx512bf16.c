/* attention_bf16 for AVX-512 with BF16, transposed as in attention_body.h.
 *
 * A word is a pair of bf16 numbers, what VDPBF16PS multiplies with another. Brought into words once a call or block:
 *   qt    [group][pair of columns][32 queries]
 *   k     [key][pair of columns]
 *   v     [column][pair of keys], rows of AK / 2 words
 * The scores of a block lie in the strip; softmax turns each pair of its lines into one line of words, in its place.
 *
 * One core of an EPYC of the Zen 5 class, us a head at 32, 128, 256, 384, 512 tokens (tests/bench/bench_kernels):
 *   heads of 64: f32 1.4 20.0 76.2 169 298; bf16 1.0 10.9 39.8 88.4 156 (125 at the products' peak)
 *   heads of 32: f32 0.8 11.0 42.3 94.7 167; bf16 0.6 6.2 23.2 52.1 90.2
 * distilbert at 64, 128, 256, 384, 512 tokens, 2 threads, with attention in f32 and in bf16, ms:
 *   5.48 10.64 22.1 34.5 48.9; 5.42 10.39 20.9 32.9 44.6 */
#include "vec_avx512.h"

#define ATTENTION_SHARED(name) lathe_##name##__avx512
#define ATTENTION_ELSEWHERE
#include "attention_bf16_product.h"
#include "attention_parts_body.h"
#include "kernel_rows.h"

#define MR    14
#define PAIRS (AK / 2)

static inline __attribute__((always_inline)) void tile(const struct product *p, const size_t rows, size_t row) {
    vf acc[MR][2];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = v_set1(0.0f);
    /* Three rows share a pointer, so that the addresses of all rows fit the registers. */
    const word *a[(MR + 2) / 3], *b = p->b;
    size_t lda = p->lda;
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3)
        a[r / 3] = p->a + (row + r) * lda;
    for (size_t t = 0; t < p->steps; t++, b += p->ldb) {
        __m512bh bv[2] = {(__m512bh)_mm512_loadu_si512(b), (__m512bh)_mm512_loadu_si512(b + 16)};
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            __m512bh av = (__m512bh)_mm512_set1_epi32((int)a[r / 3][r % 3 * lda]);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], av, bv[0]);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], av, bv[1]);
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r += 3) {
            a[r / 3]++;
            __asm__("" : "+r"(a[r / 3])); /* or the compiler makes a pointer of every row and spills them */
        }
    }
    LATHE_UNROLL
    for (size_t v = 0; v < 2; v++) {
        float *c = p->c + row * AQ + v * VN;
        vf line = v_load(p->line + v * VN);
        if (p->finish == SHRINK) {
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[r][v] = v_fma(v_load(c + r * AQ), line, acc[r][v]);
        }
        LATHE_UNROLL
        for (size_t r = 0; r < rows; r++)
            v_store(c + r * AQ, acc[r][v]);
        if (p->finish == MAXIMUM) {
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++)
                line = v_max(acc[r][v], line);
            v_store(p->line + v * VN, line);
        }
    }
}

static __attribute__((noinline)) void multiply(const struct product *p) {
    size_t row = 0;
    for (; row + 14 <= p->rows; row += 14)
        tile(p, 14, row);
    if (row + 8 <= p->rows) {
        tile(p, 8, row);
        row += 8;
    }
    if (row + 4 <= p->rows) {
        tile(p, 4, row);
        row += 4;
    }
    if (row + 2 <= p->rows) {
        tile(p, 2, row);
        row += 2;
    }
    if (row < p->rows)
        tile(p, 1, row);
}

/* ---- words */

static inline word *words(float *p) {
    return (word *)(void *)p;
}

/* 16 floats of p, zeros behind `n`. A load without lanes at an address that is not mapped costs a microsecond. */
static inline vf floats(const float *p, size_t n) {
    return n >= 16 ? v_load(p) : n > 0 ? v_load_n(p, n) : v_set1(0.0f);
}

/* Floats [at, at + 32) of n as words, zeros behind them. */
static inline __m512i row_words(const float *p, size_t at, size_t n) {
    size_t left = n - at;
    return (__m512i)_mm512_cvtne2ps_pbh(floats(p + at + 16, left > 16 ? left - 16 : 0), floats(p + at, left));
}

/* 16 x 16 words turned: line i of `out` is column i, for i < n. */
static __attribute__((noinline)) void turn(const word lines[16][16], size_t n, word *out, size_t ld) {
    vf block[16];
    LATHE_UNROLL
    for (size_t i = 0; i < 16; i++)
        block[i] = _mm512_loadu_ps(lines[i]);
    v_transpose(block);
    LATHE_UNROLL
    for (size_t i = 0; i < 16; i++)
        if (i < n)
            _mm512_storeu_ps(out + i * ld, block[i]);
}

static void pack_queries(const struct lathe_attention_f32_args *args, word *qt) {
    size_t pairs = (args->d + 1) / 2, padded = (args->nq + AQ - 1) / AQ * AQ;
    word lines[16][16] __attribute__((aligned(64)));
    for (size_t q = 0; q < padded; q += 16)
        for (size_t t = 0; t < pairs; t += 16) {
            for (size_t i = 0; i < 16; i++)
                _mm512_store_si512(lines[i], q + i < args->nq ? row_words(args->q + (q + i) * args->ldq, 2 * t, args->d)
                                                              : _mm512_setzero_si512());
            turn(lines, pairs - t, qt + q / AQ * AQ * pairs + t * AQ + q % AQ, AQ);
        }
}

/* `keys` rows from key0 on. */
static void pack_keys(const struct lathe_attention_f32_args *args, size_t key0, size_t keys, word *out) {
    size_t pairs = (args->d + 1) / 2;
    for (size_t j = 0; j < keys; j++, out += pairs) {
        const float *k = args->k + (key0 + j) * args->ldk;
        for (size_t t = 0; t < pairs; t += 16)
            _mm512_mask_storeu_epi32(out + t, v_first(pairs - t < 16 ? pairs - t : 16), row_words(k, 2 * t, args->d));
    }
}

/* Two vectors of 16 numbers as 16 words. */
static inline __m512i beside(vf first, vf second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

static void pack_values(const struct lathe_attention_f32_args *args, size_t key0, size_t keys, word *out) {
    word lines[16][16] __attribute__((aligned(64)));
    for (size_t c = 0; c < args->dv; c += 16)
        for (size_t t = 0; 2 * t < keys; t += 16) {
            for (size_t i = 0; i < 16; i++) {
                size_t j = 2 * (t + i);
                const float *v = args->v + (key0 + j) * args->ldv + c;
                vf first = floats(v, j < keys ? args->dv - c : 0);
                vf second = floats(v + args->ldv, j + 1 < keys ? args->dv - c : 0);
                _mm512_store_si512(lines[i], beside(first, second));
            }
            turn(lines, args->dv - c, out + c * PAIRS + t, PAIRS);
        }
}

/* ---- softmax */

/* Exponents in base 2 of a line of 16 scores: s * scale + minus_top, which `plain` has in base 2 already. Otherwise the
 * difference comes first: a mask constant such as -3.4e38 may be the maximum. */
static inline vf exponent(const float *s, vf scale, vf minus_top, bool plain) {
    vf t = v_fma(v_load(s), scale, minus_top);
    if (!plain)
        t = t * v_set1(1.44269504f);
    return t;
}

/* 16 queries of the strip for the pairs of keys [lo, hi). `top` is the maximum of the block. Writes the factor of all
 * that came before to *shrink. */
static inline __attribute__((always_inline)) void soften(float *strip, size_t lo, size_t hi, vf scale, vf top,
                                                         bool plain, float *max, float *sum, float *shrink) {
    vf before = v_load(max);
    top = v_max(top * scale, before);
    v_store(max, top);
    /* Without any key so far every exponent is -inf - 0. */
    top = v_select(v_lt(v_set1(-__builtin_inff()), top), top, v_set1(0.0f));
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    vf minus_top = v_set1(0.0f) - top, all = v_set1(0.0f);
    for (size_t t = lo; t < hi; t++) {
        float *s = strip + 2 * t * AQ;
        vf e = v_exp2_coarse(exponent(s, scale, minus_top, plain));
        vf f = v_exp2_coarse(exponent(s + AQ, scale, minus_top, plain));
        __m512i both = beside(e, f);
        all = _mm512_dpbf16_ps(all, (__m512bh)both, ones);
        _mm512_storeu_si512(s, both);
    }
    vf past = (before - top) * v_set1(plain ? 1.0f : 1.44269504f);
    vf factor = v_exp2(past);
    v_store(shrink, factor);
    v_store(sum, v_fma(v_load(sum), factor, all));
}

/* ---- blocks */

/* Group g against keys [lo, hi) of the block that starts at key0; lo is a multiple of `unit`. */
static void group_block(const struct attention_state *st, multiply_fn by, size_t unit, size_t g, size_t key0, size_t lo,
                        size_t hi, bool plain) {
    const struct lathe_attention_f32_args *args = st->args;
    size_t q0 = g * AQ, nq = args->nq - q0 < AQ ? args->nq - q0 : AQ, pairs = (args->d + 1) / 2;
    size_t end = (hi + 1) / 2 * 2, whole = (hi + unit - 1) / unit * unit;
    float tops[AQ], shrink[AQ], *strip = st->strip;
    for (size_t q = 0; q < AQ; q += VN)
        v_store(tops + q, v_set1(-__builtin_inff()));
    struct product product = {.rows = hi - lo,
                              .steps = pairs,
                              .a = words(st->k) + lo * pairs,
                              .lda = pairs,
                              .b = words(st->qt) + g * AQ * pairs,
                              .ldb = AQ,
                              .c = strip + lo * AQ,
                              .finish = plain ? MAXIMUM : KEEP,
                              .line = tops};
    by(&product);
    vf scale = v_set1(args->scale * 1.44269504f);
    if (!plain) {
        attention_mask(st, q0, nq, key0, lo, hi);
        scale = v_set1(1.0f);
        for (size_t q = 0; q < AQ; q += VN) {
            vf top = v_set1(-__builtin_inff());
            for (size_t j = lo; j < hi; j++)
                top = v_max(v_load(strip + j * AQ + q), top);
            v_store(tops + q, top);
        }
    }
    /* A key behind the last that shares its pair. */
    for (size_t q = 0; hi % 2 && q < AQ; q += VN)
        v_store(strip + hi * AQ + q, v_set1(-__builtin_inff()));
    for (size_t q = 0; q < AQ; q += VN) {
        vf top = v_load(tops + q);
        if (plain)
            soften(strip + q, lo / 2, end / 2, scale, top, true, st->max + q0 + q, st->sum + q0 + q, shrink + q);
        else
            soften(strip + q, lo / 2, end / 2, scale, top, false, st->max + q0 + q, st->sum + q0 + q, shrink + q);
    }
    for (size_t t = end / 2; t < whole / 2; t++)
        memset(strip + 2 * t * AQ, 0, AQ * sizeof(word));
    product = (struct product){.rows = args->dv,
                               .steps = whole / 2 - lo / 2,
                               .a = words(st->v) + lo / 2,
                               .lda = PAIRS,
                               .b = words(strip) + lo / 2 * 2 * AQ,
                               .ldb = 2 * AQ,
                               .c = st->o + g * AQ * args->dv,
                               .finish = st->started[g] == 0.0f ? KEEP : SHRINK,
                               .line = shrink};
    by(&product);
    st->started[g] = 1.0f;
}

void lathe_attention_bf16_by(const struct lathe_attention_f32_args *args, multiply_fn by, size_t unit) {
    size_t groups = (args->nq + AQ - 1) / AQ;
    struct attention_state st;
    bool plain = attention_start(args, &st);
    pack_queries(args, words(st.qt));
    for (size_t key0 = 0; key0 < args->nk; key0 += AK) {
        size_t keys = args->nk - key0 < AK ? args->nk - key0 : AK;
        pack_keys(args, key0, keys, words(st.k));
        pack_values(args, key0, keys, words(st.v));
        for (size_t g = 0; g < groups; g++) {
            size_t lo, hi, nq = args->nq - g * AQ < AQ ? args->nq - g * AQ : AQ;
            attention_span(args, g * AQ, nq, key0, keys, &lo, &hi);
            if (lo < hi) {
                /* Keys beside the span are masked. */
                hi = (hi + unit - 1) / unit * unit;
                group_block(&st, by, unit, g, key0, lo / unit * unit, hi < keys ? hi : keys, plain);
            }
        }
    }
    for (size_t g = 0; g < groups; g++)
        attention_finish(&st, g);
}

void lathe_attention_bf16__avx512bf16(const struct lathe_attention_f32_args *args) {
    lathe_attention_bf16_by(args, multiply, 2);
}
