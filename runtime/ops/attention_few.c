/* Attention for a few queries that share their keys, in f32: the heads of one token.
 *
 * attention_f32 lays keys out for 16 queries at least and multiplies with as many; the heads of one token are fewer,
 * and each key serves them once. Here keys and values are read as they lie: scores, a softmax of each row, sums. */
#include "attention_few.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define MOST  ((size_t)LATHE_ATTENTION_QUERIES) /* queries at a time: bounds the scratch */
#define BLOCK ((size_t)64)                      /* keys */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t lathe_attention_few_scratch(size_t nq, size_t nk) {
    size_t bytes;
    return lathe_mul_size(nk, least(nq, MOST) * sizeof(float), &bytes) ? bytes : SIZE_MAX;
}

/* Scores of query q: scale, bias and mask. Is there any key? */
static bool mask_scores(const struct lathe_attention_f32_args *args, size_t q, float *s) {
    const float *bias = args->bias ? args->bias + q * args->ldb : NULL;
    const uint8_t *allow = args->allow ? args->allow + q * args->ld_allow : NULL;
    int64_t first = args->first ? args->first[q] : 0, last = args->last ? args->last[q] : INT64_MAX;
    bool any = false;
    for (size_t j = 0; j < args->nk; j++) {
        float x = s[j] * args->scale + (bias ? bias[j] : 0.0f);
        s[j] = (allow && !allow[j]) || (int64_t)j < first || (int64_t)j >= last ? -INFINITY : x;
        any = any || s[j] != -INFINITY;
    }
    return any;
}

/* Scores of queries [q, q + n), the keys of a block after the others: it stays in the second cache. */
static void score(const struct lathe_kernels *kernels, const struct lathe_attention_f32_args *args, size_t q, size_t n,
                  float *s) {
    struct lathe_few_f32 p = {.k = args->d, .lda = args->ldq, .ldb = args->ldk, .turned = true, .ldc = args->nk};
    for (size_t j = 0; j < args->nk; j += BLOCK)
        for (size_t i = 0; i < n; i += LATHE_FEW_ROWS) {
            p.rows = least(n - i, LATHE_FEW_ROWS);
            p.cols = least(args->nk - j, BLOCK);
            p.a = args->q + (q + i) * args->ldq;
            p.b = args->k + j * args->ldk;
            p.c = s + i * args->nk + j;
            kernels->few_f32(&p);
        }
}

static void sum_up(const struct lathe_kernels *kernels, const struct lathe_attention_f32_args *args, size_t q, size_t n,
                   const float *s) {
    struct lathe_few_f32 p = {.cols = args->dv, .lda = args->nk, .ldb = args->ldv, .ldc = args->ldo};
    for (size_t j = 0; j < args->nk; j += BLOCK)
        for (size_t i = 0; i < n; i += LATHE_FEW_ROWS) {
            p.rows = least(n - i, LATHE_FEW_ROWS);
            p.k = least(args->nk - j, BLOCK);
            p.a = s + i * args->nk + j;
            p.b = args->v + j * args->ldv;
            p.accumulate = j > 0;
            p.c = args->out + (q + i) * args->ldo;
            kernels->few_f32(&p);
        }
}

void lathe_attention_few(const struct lathe_kernels *kernels, const struct lathe_attention_f32_args *args) {
    float *s = args->scratch;
    for (size_t q = 0; q < args->nq; q += MOST) {
        size_t n = least(args->nq - q, MOST);
        bool any[MOST];
        score(kernels, args, q, n, s);
        for (size_t i = 0; i < n; i++) {
            any[i] = mask_scores(args, q + i, s + i * args->nk);
            if (any[i])
                kernels->softmax_f32(1, args->nk, s + i * args->nk, s + i * args->nk);
        }
        sum_up(kernels, args, q, n, s);
        for (size_t i = 0; i < n; i++) {
            if (!any[i])
                memset(args->out + (q + i) * args->ldo, 0, args->dv * sizeof(float));
            if (args->no_key)
                args->no_key[q + i] = !any[i];
        }
    }
}
