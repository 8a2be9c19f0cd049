/* few_f32 on the vector layer; the including file defines FEW_NAME. Tiles of 3 rows by 4 columns, or 4 vectors of them:
 * 12 sums, 3 elements of a and one of b fill the 16 registers of AVX2. A tile at the border takes its last row or
 * column again, which gives the same bits and costs no code. */
#ifndef LATHE_FEW_BODY_H
#define LATHE_FEW_BODY_H

#include "kernel.h"
#include "unroll.h"

#define FEW_R LATHE_FEW_ROWS
#define FEW_C 4
#define FEW   (FEW_R * FEW_C)

static inline size_t few_least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* b [cols][k]: sums along the lanes. */
static void few_dots(const struct lathe_few_f32 *p, const float *const a[FEW_R], float *const c[FEW_R]) {
    LATHE_NO_UNROLL
    for (size_t col = 0; col < p->cols; col += FEW_C) {
        const float *b[FEW_C];
        vf acc[FEW], done[FEW];
        LATHE_UNROLL
        for (size_t j = 0; j < FEW_C; j++)
            b[j] = p->b + few_least(col + j, p->cols - 1) * p->ldb;
        LATHE_UNROLL
        for (size_t i = 0; i < FEW; i++)
            acc[i] = v_set1(0.0f);
        LATHE_NO_UNROLL
        for (size_t t = 0; t < p->k; t += VN) {
            size_t n = few_least(p->k - t, VN);
            vf x[FEW_R];
            LATHE_UNROLL
            for (size_t i = 0; i < FEW_R; i++)
                x[i] = v_load_n(a[i] + t, n);
            LATHE_UNROLL
            for (size_t j = 0; j < FEW_C; j++) {
                vf y = v_load_n(b[j] + t, n);
                LATHE_UNROLL
                for (size_t i = 0; i < FEW_R; i++)
                    acc[i * FEW_C + j] = v_fma(x[i], y, acc[i * FEW_C + j]);
            }
        }
        LATHE_UNROLL
        for (size_t i = 0; i < FEW; i++)
            done[i] = acc[i];
        LATHE_NO_UNROLL
        for (size_t i = 0; i < FEW; i++)
            c[i / FEW_C][few_least(col + i % FEW_C, p->cols - 1)] = v_sum(done[i]);
    }
}

/* b [k][cols]: columns along the lanes. */
static void few_sums(const struct lathe_few_f32 *p, const float *const a[FEW_R], float *const c[FEW_R]) {
    size_t whole = p->cols / VN * VN;
    LATHE_NO_UNROLL
    for (size_t col = 0; col < p->cols; col += col < whole ? few_least(FEW_C * VN, whole - col) : VN) {
        vf acc[FEW];
        size_t at[FEW_C], n = col < whole ? VN : p->cols - whole;
        LATHE_UNROLL
        for (size_t j = 0; j < FEW_C; j++)
            at[j] = col < whole ? few_least(col + j * VN, whole - VN) : col;
        LATHE_UNROLL
        for (size_t i = 0; i < FEW; i++)
            acc[i] = v_load_n(c[i / FEW_C] + at[i % FEW_C], p->accumulate ? n : 0);
        LATHE_NO_UNROLL
        for (size_t t = 0; t < p->k; t++) {
            const float *b = p->b + t * p->ldb;
            vf x[FEW_R];
            LATHE_UNROLL
            for (size_t i = 0; i < FEW_R; i++)
                x[i] = v_set1(a[i][t]);
            LATHE_UNROLL
            for (size_t j = 0; j < FEW_C; j++) {
                vf y = v_load_n(b + at[j], n);
                LATHE_UNROLL
                for (size_t i = 0; i < FEW_R; i++)
                    acc[i * FEW_C + j] = v_fma(x[i], y, acc[i * FEW_C + j]);
            }
        }
        LATHE_UNROLL
        for (size_t i = 0; i < FEW; i++)
            v_store_n(c[i / FEW_C] + at[i % FEW_C], acc[i], n);
    }
}

void FEW_NAME(const struct lathe_few_f32 *p) {
    const float *a[FEW_R];
    float *c[FEW_R];
    for (size_t i = 0; i < FEW_R; i++) {
        a[i] = p->a + few_least(i, p->rows - 1) * p->lda;
        c[i] = p->c + few_least(i, p->rows - 1) * p->ldc;
    }
    if (p->turned)
        few_dots(p, a, c);
    else
        few_sums(p, a, c);
}
#endif
