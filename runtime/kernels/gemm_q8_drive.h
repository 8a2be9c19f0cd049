/* 8-bit products of any size: rows of x are quantized block by block into the caller's scratch and multiplied by the
 * tiles of a gemm_q8 row. A row of y has the same bits whatever the other rows, the blocks and the number of threads
 * are. */
#ifndef LATHE_GEMM_Q8_DRIVE_H
#define LATHE_GEMM_Q8_DRIVE_H

#include "kernel.h"

struct lathe_gemm_q8 {
    size_t m, n, k;
    const float *x; /* rows of k with stride ldx */
    size_t ldx;
    const float *x_scale; /* [k] or NULL */
    unsigned levels;      /* 255 or 127 */
    unsigned sums; /* how many aligned groups of 4 of K have products that fit 16 bits together (signed), those of the
                      first two k of each group apart from those of the last two, whatever bytes of 0 to `levels` come;
                      1 goes without saying when levels is 127. 0: not even those of one group */
    const struct lathe_gemm_q8_blocks *blocks; /* NULL, or what the weights have beside their numbers */
    /* NULL, or the order of the steps of K (struct lathe_fip_rows) and lathe_fip_column of the columns: K is a multiple
     * of 4, N of 16, levels 255, sums 0, no blocks */
    const uint8_t *order;
    const int32_t *w_pairs;
    /* w in packing S8_N16K4 (S4_N16K8 when blocks->halves), or NULL: then element (t, j) at w[t * ldw + j], transposed
     * w[j * ldw + t] */
    const int8_t *panels;
    const int8_t *w;
    size_t ldw;
    bool transposed;
    float *y; /* m x n with row stride ldy; no part of an operand */
    size_t ldy;
    unsigned turn, turns; /* turns > 1: so many threads multiply their own rows with these weights, this one is `turn`:
                             each begins with other columns, so that a column comes from memory once */
    void *prepared; /* NULL, or the rows of x as lathe_gemm_q8_prepare has left them; x and levels are not looked at */
    const struct lathe_head_columns *heads; /* NULL, or how the threads share the columns */
    struct lathe_gemm_q8_epilogue epilogue; /* of the whole product; scale and zero are set here */
};

/* `block` below: steps of k that share a scale, 0 when all of a column do. */
/* Bytes that each thread needs; SIZE_MAX when that does not fit. */
size_t lathe_gemm_q8_scratch(const struct lathe_kernels *kernels, size_t m, size_t n, size_t k, size_t block,
                             bool packed);
/* Quantized rows for all threads of a team: bytes for m rows of k (SIZE_MAX when that does not fit); the calling
 * thread's part of the rows of x, those of lathe_team_split(m, 1), into `prepared`, 64-byte aligned. */
size_t lathe_gemm_q8_rows_bytes(size_t m, size_t k, size_t block);
void lathe_gemm_q8_prepare(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *product,
                           const struct lathe_team *team, void *prepared);
/* The calling thread's part of the product; k <= LATHE_Q8_MAX_K. */
void lathe_gemm_q8_team(const struct lathe_kernels *kernels, const struct lathe_gemm_q8 *product,
                        const struct lathe_team *team, void *scratch);
#endif
