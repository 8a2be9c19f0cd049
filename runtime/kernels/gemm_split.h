/* How the threads of a team share a product. */
#ifndef LATHE_GEMM_SPLIT_H
#define LATHE_GEMM_SPLIT_H

#include "tensor.h"

#include <stdbool.h>

struct lathe_gemm_split {
    size_t m, n;         /* of the product; panels have 16 columns */
    size_t group;        /* panels that are best kept together */
    unsigned row_cost;   /* what a row costs each thread that has it beside its products, and */
    unsigned panel_cost; /* what a panel costs, in halves of the product of a row by a panel */
    unsigned own;        /* rows of each thread from which on the product is cut by rows: see lathe_gemm_by_rows */
};
struct lathe_gemm_part {
    size_t m0, m1, n0, n1; /* n0 a multiple of 16; empty when m0 == m1 or n0 == n1 */
};
/* With many rows for each thread a product is cut into rows alone, at the places of lathe_team_split(rows, 1): the
 * layers of an encoder then pass from one to the next on the same thread, which meets the others only where attention
 * mixes rows or buffers share bytes, quantizes no row twice and finds its rows in its cache. Each thread reads all
 * weights then, which many rows make cheap: `own` a thread. Against cuts by columns, 2 threads, EPYC with AVX-512 VNNI,
 * medians in ms at 64, 128 and 512 tokens:
 *   distilbert  int8   3.56 -> 3.23   7.22 -> 6.60   32.5 -> 32.0
 *   minilm-l6   int8   1.30 -> 1.05   2.48 -> 2.27   13.7 -> 13.5
 *   distilbert  bf16   5.60 -> 5.52   11.5 -> 10.7   50.6 -> 50.5
 *   distilbert  f32    10.2 -> 10.4   21.0 -> 20.5   85.7 -> 85.2   (hence 64 rows)
 * Weights that stay in the caches pay earlier, the more so where the cores have no third cache in common and each line
 * that one wrote and the other wants costs 5 ns. Zen 5, cores with | without a common cache, from 16 rows a thread:
 *   minilm-l6 int8, 16, 24 tokens, 8 rows a thread     0.251 -> 0.232, 0.356 -> 0.344 | 0.338 -> 0.273, 0.466 -> 0.382
 *   minilm-l6 int8, 8, 12 tokens, 4 rows a thread      0.136 -> 0.154                 | 0.194 -> 0.177, 0.268 -> 0.220
 *   distilbert int8, 32, 48 tokens, from 32 to 12      1.52 -> 1.64, 2.16 -> 2.29     | 1.69 -> 1.65, 2.49 -> 2.38 */
enum { LATHE_OWN_ROWS_F32 = 64, LATHE_OWN_ROWS_BF16 = 32, LATHE_MOST_OWN_ROWS_Q8 = 128 };
/* Attention wants the keys and values of all rows of a sequence. With so many rows a thread, 8-bit products before it
 * are cut by heads all the same, as those of fewer rows are: its rows are quantized once, a quarter of the bytes that
 * keys and values of rows are, and what a thread has multiplied it also reads. By rows -> by heads, 2 threads, Zen 5,
 * least of medians in ms, cores with | without a common cache:
 *   minilm-l6 int8, 64 and 128 tokens     0.850 -> 0.835, 1.720 -> 1.706 | 1.004 -> 1.003, 2.108 -> 2.009
 *   minilm-l6 int8, 256 and 512 tokens    3.65 -> 3.63, 8.16 -> 8.20     | 4.26 -> 4.19, 8.78 -> 8.86
 *   minilm-l6 int8, 32 tokens             0.439 -> 0.434                 | 0.508 -> 0.526
 *   distilbert int8, 64 and 128 tokens    2.96 -> 2.92, 5.48 -> 5.42     | 3.21 -> 3.16, 6.06 -> 5.93 */
enum { LATHE_LEAST_HEAD_ROWS = 24, LATHE_MOST_HEAD_ROWS = 128 };
/* For 8-bit weights [k][n]; at most LATHE_MOST_OWN_ROWS_Q8. Where lines pass quickly between the threads (team->near),
 * cuts by columns serve longer: distilbert int8 at 32, 48, 64, 96, 128, 256 tokens on such cores, from 32 -> 128 rows a
 * thread, 1.412 -> 1.412, 2.10 -> 2.00, 2.75 -> 2.65, 3.83 -> 3.77, 5.15 -> 5.11, 10.35 -> 10.30 ms; where they do not,
 * 64 tokens take 3 % longer so. bf16 and f32 have no such gain. */
unsigned lathe_own_rows_q8(size_t k, size_t n, bool near);
bool lathe_gemm_by_rows(size_t m, unsigned threads, unsigned own);
/* The calling thread's part of a product by rows, else of the grid of parts whose largest costs least. */
struct lathe_gemm_part lathe_gemm_part_of(const struct lathe_gemm_split *split, const struct lathe_team *team);
#endif
