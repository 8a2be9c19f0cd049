/* Which sums of products a CPU without 8-bit dot products may keep in 16 bits.
 *
 * Such a CPU multiplies 4 consecutive k at a time: the first two products of a group of 4 go into one sum of 16 bits,
 * the last two into another. Inputs of 0 to 255 (or 127) reach no more than that times the weights of one sign, so a
 * sum fits when its positive weights add up to at most 128 (or 258), and its negative ones too. That is far more than
 * the largest weight allows: of 8 weights that lie as those of a model do, all near the end is next to never. When the
 * weights of `groups` successive groups fit together, from each multiple of `groups` groups on, they are added up
 * before anything becomes 32 bits wide. */
#ifndef LATHE_BOUND_SUMS_H
#define LATHE_BOUND_SUMS_H

#include <stddef.h>
#include <stdint.h>

#define LATHE_SUM16_MOST  4 /* groups: 1, 2 or 4 */
#define LATHE_SUM16_LANES 16

/* What the weights of one sign may add up to, with inputs of `bits` bits. */
static inline int lathe_sum16_limit(unsigned bits) {
    return 32767 / ((1 << bits) - 1);
}

/* The sum that weight k of a column goes into, 0 to lathe_sum16_count - 1. */
static inline int64_t lathe_sum16_of(int64_t k, unsigned groups) {
    return k / (4 * (int64_t)groups) * 2 + k % 4 / 2;
}
static inline int64_t lathe_sum16_count(int64_t k, unsigned groups) {
    return (k + 4 * (int64_t)groups - 1) / (4 * (int64_t)groups) * 2;
}

/* The most groups, 4, 2, 1 or 0, whose sums fit in every column of w [n][k]. */
unsigned lathe_sum16_groups(const int8_t *w, int64_t n, int64_t k, unsigned bits);

/* 16 columns w [k][16] in units of their scales: the nearest numbers whose sums fit, into q (may be w). What each sum
 * has of positive and of negative weights then goes to sums [2][count][16], unless that is NULL. */
void lathe_sum16_project(const float *w, int64_t k, unsigned groups, float limit, float *q, float *sums);
#endif
