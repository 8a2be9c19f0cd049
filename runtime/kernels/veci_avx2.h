/* 32-bit integers beside vec_avx2.h: 8 lanes. */
#ifndef LATHE_VECI_AVX2_H
#define LATHE_VECI_AVX2_H

#include "vec_avx2.h"

typedef __m256i vi;

static inline vi vi_set1(int32_t x) {
    return _mm256_set1_epi32(x);
}
static inline vi vi_load(const int32_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline vi vi_load_n(const int32_t *p, size_t n) {
    return _mm256_maskload_epi32(p, v_first(n));
}
static inline void vi_store(int32_t *p, vi x) {
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}
static inline void vi_store_n(int32_t *p, vi x, size_t n) {
    _mm256_maskstore_epi32(p, v_first(n), x);
}
static inline vi vi_sub(vi a, vi b) {
    return _mm256_sub_epi32(a, b);
}
static inline vi vi_mul(vi a, vi b) {
    return _mm256_mullo_epi32(a, b);
}
static inline vi vi_max(vi a, vi b) {
    return _mm256_max_epi32(a, b);
}
static inline vi vi_max_unsigned(vi a, vi b) {
    return _mm256_max_epu32(a, b);
}
static inline int32_t vi_hmax(vi x) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline vi vi_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
/* Without sign; 0 from 32 on. */
static inline vi vi_shift(vi x, vi n) {
    return _mm256_srlv_epi32(x, n);
}
static inline vi vi_load_i8(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
/* z of 9 bits as halves (z, 128 z). */
static inline vi vi_zero_pairs(vi z) {
    return _mm256_or_si256(_mm256_and_si256(z, vi_set1(0xffff)), _mm256_slli_epi32(z, 23));
}
/* Of 16-bit halves: the sum of both products. */
static inline vi vi_dot_pairs(vi a, vi b) {
    return _mm256_madd_epi16(a, b);
}
static inline vf v_from_i32(vi x) {
    return _mm256_cvtepi32_ps(x);
}
/* Half to even. */
static inline vi vi_round(vf x) {
    return _mm256_cvtps_epi32(x);
}
static inline vi vi_bits(vf x) {
    return _mm256_castps_si256(x);
}
static inline vf vi_as_float(vi x) {
    return _mm256_castsi256_ps(x);
}
static inline int32_t vi_sum(vi x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
#endif
