/* Which columns of an input gemm_fip (kernel_q8.h) multiplies in pairs. */
#ifndef LATHE_PAIR_STEPS_H
#define LATHE_PAIR_STEPS_H

#include <stdbool.h>
#include <stdint.h>

/* order [k]: of the steps, as the kernel takes it; whole [k]: columns that keep 8 bits. In each 64 columns those do
 * whose products reach farthest: reach[i] * row_max[i], how far column i of the input and row i of the weights do. */
void lathe_pair_steps(const float *reach, const float *row_max, int64_t k, uint8_t *order, bool *whole);
#endif
