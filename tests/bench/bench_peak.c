/* Multiply-add loops on 12 independent registers, whose results are used by nobody. */
#include "bench_peak.h"

#include "kernel_rows.h"
#include "target.h"

#define STEPS 400000

#if defined(__x86_64__)
#include <immintrin.h>

#define PEAK(name, isa, type, set1, fma)                                                                               \
    __attribute__((target(isa), noinline)) static void name(void) {                                                    \
        type a[12], x = set1(1.0f);                                                                                    \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = set1((float)i);                                   \
        for (int k = 0; k < STEPS; k++) {                                                                              \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = fma(x, x, a[i]);                              \
            __asm__ volatile("" ::"x"(a[0]), "x"(a[1]), "x"(a[2]), "x"(a[3]), "x"(a[4]), "x"(a[5]), "x"(a[6]),         \
                             "x"(a[7]), "x"(a[8]), "x"(a[9]), "x"(a[10]), "x"(a[11]));                                 \
        }                                                                                                              \
    }
PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
#endif

/* A product and a sum in 4 lanes. */
static void peak_plain(void) {
    typedef float four __attribute__((vector_size(16)));
    four a[12], x = {1, 1, 1, 1};
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        a[i] = x * (float)i;
    for (int k = 0; k < STEPS; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            four product = x * x;
            __asm__ volatile("" : "+x"(product));
            a[i] = a[i] + product;
            __asm__ volatile("" : "+x"(a[i]));
        }
}

double lathe_bench_peak(uint64_t bits) {
#if defined(__x86_64__)
    if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX512)) {
        peak_avx512();
        return 2.0 * 16 * 12 * STEPS;
    }
    if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX2)) {
        peak_avx2();
        return 2.0 * 8 * 12 * STEPS;
    }
#endif
    (void)bits;
    peak_plain();
    return 2.0 * 4 * 12 * STEPS;
}
