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
static inline vi vi_max_unsigned(vi a, vi b) {
    return _mm512_max_epu32(a, b);
}
static inline int32_t vi_hmax(vi x) {
    return _mm512_reduce_max_epi32(x);
}
static inline vi vi_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
/* Without sign; 0 from 32 on. */
static inline vi vi_shift(vi x, vi n) {
    return _mm512_srlv_epi32(x, n);
}
static inline vi vi_load_i8(const int8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/* z of 9 bits as halves (z, 128 z). */
static inline vi vi_zero_pairs(vi z) {
    return _mm512_or_si512(_mm512_and_si512(z, vi_set1(0xffff)), _mm512_slli_epi32(z, 23));
}
/* Of 16-bit halves: the sum of both products. */
static inline vi vi_dot_pairs(vi a, vi b) {
    return _mm512_madd_epi16(a, b);
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
