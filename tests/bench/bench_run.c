#include "bench_run.h"

#include "cpu.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct bench_run bench_run = {.seconds = 0.1};

double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void *bench_memory(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    if (bench_run.small_pages && bytes >= 4096)
        madvise((char *)p + (-(uintptr_t)p & 4095), bytes / 4096 * 4096 - 4096, MADV_NOHUGEPAGE);
    uint32_t seed = 1, *words = p;
    for (size_t i = 0; i < (bytes + 3) / 4; i++)
        words[i] = (seed = seed * 1664525u + 1013904223u);
    return p;
}

float *bench_floats(size_t n) {
    float *f = bench_memory(n * sizeof *f);
    for (size_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &f[i], 4);
        f[i] = (float)bits * 0x1p-31f;
    }
    return f;
}

double bench_best(void (*fn)(void *), void *user) {
    fn(user);
    double best = 1e30, end = bench_now() + bench_run.seconds;
    unsigned batch = 1;
    do {
        double start = bench_now();
        for (unsigned i = 0; i < batch; i++)
            fn(user);
        double took = (bench_now() - start) / batch;
        best = took < best ? took : best;
        if (took * batch < 20e-6)
            batch *= 2;
    } while (bench_now() < end);
    return best;
}

struct lathe_pool *bench_pool(void) {
    struct lathe_diag diag = {0};
    struct lathe_pool *pool = NULL;
    struct lathe_pool_options options = {.threads = bench_run.threads};
    if (lathe_pool_new(&options, &pool, &diag) != LATHE_OK) {
        fprintf(stderr, "%s\n", diag.text);
        exit(1);
    }
    bench_run.threads = lathe_pool_threads(pool);
    if (bench_run.threads > BENCH_THREADS) {
        fprintf(stderr, "at most %d threads\n", BENCH_THREADS);
        exit(1);
    }
    char brand[49];
    lathe_cpu_brand(brand);
    printf("%s\n", brand);
    return pool;
}
