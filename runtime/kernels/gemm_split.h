/* How the threads of a team share a product. */
#ifndef LATHE_GEMM_SPLIT_H
#define LATHE_GEMM_SPLIT_H

#include "tensor.h"

struct lathe_gemm_split {
    size_t m, n;         /* of the product; panels have 16 columns */
    size_t group;        /* panels that are best kept together */
    unsigned row_cost;   /* what a row costs each thread that has it beside its products, and */
    unsigned panel_cost; /* what a panel costs, in halves of the product of a row by a panel */
};
struct lathe_gemm_part {
    size_t m0, m1, n0, n1; /* n0 a multiple of 16; empty when m0 == m1 or n0 == n1 */
};
/* The grid of parts whose largest costs least; the calling thread's part of it. */
struct lathe_gemm_part lathe_gemm_part_of(const struct lathe_gemm_split *split, const struct lathe_team *team);
#endif
