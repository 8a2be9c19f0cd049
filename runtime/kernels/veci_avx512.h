/* 32-bit integers beside vec_avx512.h: 16 lanes. */
#ifndef LATHE_VECI_AVX512_H
#define LATHE_VECI_AVX512_H

#include "vec_avx512.h"

typedef __m512i vi;

static inline vi vi_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
static inline vi vi_load(const int32_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi vi_load_n(const int32_t *p, size_t n) {
    return _mm512_maskz_loadu_epi32(v_first(n), p);
}
static inline void vi_store(int32_t *p, vi x) {
    _mm512_storeu_si512(p, x);
}
static inline void vi_store_n(int32_t *p, vi x, size_t n) {
    _mm512_mask_storeu_epi32(p, v_first(n), x);
}
static inline vi vi_sub(vi a, vi b) {
    return _mm512_sub_epi32(a, b);
}
static inline vi vi_mul(vi a, vi b) {
    return _mm512_mullo_epi32(a, b);
}
static inline vi vi_max(vi a, vi b) {
    return _mm512_max_epi32(a, b);
}
static inline vf v_from_i32(vi x) {
    return _mm512_cvtepi32_ps(x);
}
/* Half to even. */
static inline vi vi_round(vf x) {
    return _mm512_cvtps_epi32(x);
}
static inline vi vi_bits(vf x) {
    return _mm512_castps_si512(x);
}
static inline vf vi_as_float(vi x) {
    return _mm512_castsi512_ps(x);
}
static inline int32_t vi_sum(vi x) {
    return _mm512_reduce_add_epi32(x);
}
#endif
