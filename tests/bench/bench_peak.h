/* The multiply-add rate of one core. */
#ifndef LATHE_BENCH_PEAK_H
#define LATHE_BENCH_PEAK_H

#include <stdint.h>

/* Runs a few million independent multiply-adds in the widest registers that `bits` (lathe_cpu_bits) allow; returns how
 * many floating-point operations that were. */
double lathe_bench_peak(uint64_t bits);
#endif
