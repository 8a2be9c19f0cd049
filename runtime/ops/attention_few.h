/* Attention for a few queries that share their keys: see attention_few.c. */
#ifndef LATHE_ATTENTION_FEW_H
#define LATHE_ATTENTION_FEW_H

#include "attention_shape.h"
#include "kernel.h"

/* Bytes for args->scratch; SIZE_MAX when that does not fit. */
size_t lathe_attention_few_scratch(size_t nq, size_t nk);
/* What attention_f32 gives, but for softcap, which must be 0, and for the order of sums: a query's depends neither on
 * nq nor on the other queries, as there. */
void lathe_attention_few(const struct lathe_kernels *kernels, const struct lathe_attention_f32_args *args);
#endif
