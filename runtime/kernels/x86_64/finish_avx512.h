/* Epilogues of products in a buffer, by the AVX-512 rows, for the rows on tile registers, which have none of their own:
 * `cols` columns from `column` of the tile on, sums in lines of `ld`, whole panels. */
#ifndef LATHE_FINISH_AVX512_H
#define LATHE_FINISH_AVX512_H

#include "kernel.h"

void lathe_q8_finish__avx512vnni(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols, const int32_t *sums,
                                 size_t ld);
void lathe_bf16_finish__avx512bf16(const struct lathe_gemm_bf16_tile *tile, size_t column, size_t cols,
                                   const float *sums, size_t ld);
#endif
