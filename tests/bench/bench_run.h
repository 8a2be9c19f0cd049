/* What the micro-benchmarks share: operands, timing, the pool. Whatever fails ends the program with a message. */
#ifndef LATHE_BENCH_RUN_H
#define LATHE_BENCH_RUN_H

#include "threads.h"

#include <stdbool.h>
#include <stddef.h>

/* Of all timings; set from the command line. */
struct bench_run {
    double seconds;   /* how long a timing repeats its call */
    unsigned threads; /* 0: as the pool likes */
    bool small_pages; /* memory in pages of 4 KB, as a mapped file has it */
};
extern struct bench_run bench_run;

double bench_now(void);
/* Random bytes and random floats in [-1, 1), aligned to 64 bytes, with a line to spare; to be freed. */
void *bench_memory(size_t bytes);
float *bench_floats(size_t n);
/* Best seconds of one call of fn. */
double bench_best(void (*fn)(void *), void *user);
/* Of bench_run.threads, which is set to their number, at most BENCH_THREADS; prints the CPU's name. */
#define BENCH_THREADS 64
struct lathe_pool *bench_pool(void);
#endif
