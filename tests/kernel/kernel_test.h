/* What the kernel tests share: random numbers with a printed seed, guarded buffers, the rows this CPU can run. */
#ifndef LATHE_KERNEL_TEST_H
#define LATHE_KERNEL_TEST_H

#include "cpu.h"
#include "kernel_rows.h"
#include "target.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LATHE_BARE_TEST
#include "bare_cmocka.h"
#else
#include <cmocka.h>
#endif

static uint64_t test_seed;

/* Knuth's MMIX generator, upper bits. */
static inline uint32_t test_random(void) {
    test_seed = test_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(test_seed >> 32);
}

static inline size_t test_below(size_t n) {
    return test_random() % n;
}

/* Uniform in [-1, 1). */
static inline float test_float(void) {
    return (float)(int32_t)test_random() * 0x1p-31f;
}

/* With LATHE_TEST_QUICK each test takes a random part of its cases: for emulated CPUs, a thousand times slower. True
 * for a case to leave out, of which one of `of` stays. */
static bool test_quick;
static inline bool test_left_out(size_t of) {
    return test_quick && test_below(of) != 0;
}

/* Sets the seed from LATHE_TEST_SEED, or a fixed one, and prints it. */
static inline void test_seed_init(void) {
    test_quick = getenv("LATHE_TEST_QUICK") != NULL;
    const char *text = getenv("LATHE_TEST_SEED");
    test_seed = text ? strtoull(text, NULL, 0) : 20261130;
    print_message("seed %llu\n", (unsigned long long)test_seed);
}

/* How many rows to try after m of at most `most`: all numbers up to those of four tiles, then a few; `slow`: no more
 * than three tiles' worth. */
static inline size_t test_more_rows(size_t m, size_t most, bool slow) {
    if (slow && m >= 36)
        return most + 1;
    size_t next = m < 66 ? m + 1 : m * 2 + 1;
    return m < most && next > most ? most : next;
}

static inline bool test_can_run(uint64_t bits) {
    bits &= ~LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS); /* of speed alone */
    return (lathe_cpu_bits() & bits) == bits;
}

/* The statement that follows for each level of the float kernels that this CPU runs. */
#define EACH_LEVEL(kernels)                                                                                            \
    static const uint64_t levels_[] = {0, LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA),              \
                                       LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA) |                \
                                           LATHE_CPU_MASK(LATHE_CPU_AVX512)};                                          \
    struct lathe_kernels kernels;                                                                                      \
    for (size_t level_ = 0; level_ < 3; level_++)                                                                      \
        if (test_can_run(levels_[level_]) && (lathe_kernels_select(levels_[level_], &kernels), true))

/* What an activation means, exactly; alpha is that of quick_gelu. */
static inline double test_activate(enum lathe_activation activation, double alpha, double x) {
    switch (activation) {
    case LATHE_ACT_RELU:
        return x > 0 ? x : 0;
    case LATHE_ACT_GELU:
        return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case LATHE_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case LATHE_ACT_QUICK_GELU:
        return x / (1 + exp(-alpha * x));
    case LATHE_ACT_SILU:
        return x / (1 + exp(-x));
    case LATHE_ACT_TANH:
        return tanh(x);
    case LATHE_ACT_NONE:
        break;
    }
    return x;
}

/* n floats with a guard of bytes on both sides; guarded_free checks that they were left alone. */
#define TEST_GUARD 256
/* What an epilogue does last with its residual, NULL: nothing. */
static inline double test_join(bool gate, double x, const float *residual) {
    return !residual ? x : gate ? x * (double)*residual : x + (double)*residual;
}
static inline float *guarded_floats(size_t n) {
    unsigned char *p = malloc(n * sizeof(float) + 2 * TEST_GUARD);
    assert_non_null(p);
    memset(p, 0xa5, TEST_GUARD);
    memset(p + TEST_GUARD + n * sizeof(float), 0xa5, TEST_GUARD);
    float *f = (float *)(void *)(p + TEST_GUARD);
    for (size_t i = 0; i < n; i++)
        f[i] = test_float();
    return f;
}
static inline void guarded_free(float *f, size_t n) {
    unsigned char *p = (unsigned char *)f - TEST_GUARD;
    for (size_t i = 0; i < TEST_GUARD; i++) {
        assert_int_equal(p[i], 0xa5);
        assert_int_equal(p[TEST_GUARD + n * sizeof(float) + i], 0xa5);
    }
    free(p);
}
/* The same in bytes. */
static inline void *guarded(size_t bytes) {
    return guarded_floats((bytes + 3) / 4);
}
static inline void unguard(void *p, size_t bytes) {
    guarded_free(p, (bytes + 3) / 4);
}
#endif
