/* The vector layer in plain C: one lane. Bodies (*_body.h) are written once on this layer and compiled for each
 * instruction set; see vec_avx2.h and vec_avx512.h. The compiler vectorises the loops as it can. */
#ifndef LATHE_VEC_PLAIN_H
#define LATHE_VEC_PLAIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VN 1
typedef float vf;
typedef int vm; /* a comparison's result */

static inline vf v_set1(float x) {
    return x;
}
static inline vf v_load(const float *p) {
    return *p;
}
static inline vf v_load_n(const float *p, size_t n) {
    return n ? *p : 0.0f;
}
static inline void v_store(float *p, vf x) {
    *p = x;
}
static inline void v_store_n(float *p, vf x, size_t n) {
    if (n)
        *p = x;
}
static inline vf v_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return c - a * b;
}
/* b when either is NaN, as the instruction does. */
static inline vf v_max(vf a, vf b) {
    return a > b ? a : b;
}
static inline vf v_min(vf a, vf b) {
    return a < b ? a : b;
}
static inline uint32_t v_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float v_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline vf v_abs(vf x) {
    return v_from_bits(v_bits(x) & 0x7fffffffu);
}
static inline vf v_copysign(vf x, vf sign) {
    return v_from_bits((v_bits(x) & 0x7fffffffu) | (v_bits(sign) & 0x80000000u));
}
static inline vf v_sqrt(vf x) {
    return __builtin_sqrtf(x);
}
static inline vm v_lt(vf a, vf b) {
    return a < b;
}
static inline vm v_is_nan(vf a) {
    return a != a;
}
static inline vf v_select(vm m, vf a, vf b) {
    return m ? a : b;
}
/* Nearest integer, for |x| < 2^22 (no -ffast-math here: the sum is not folded away). */
static inline vf v_round(vf x) {
    return (x + 12582912.0f) - 12582912.0f;
}
/* A whole number of |n| < 2^22 as integer; anything for NaN. */
static inline int32_t v_int(vf n) {
    return (int32_t)(v_bits(n + 12582912.0f) - 0x4b400000u);
}
/* x * 2^n for an integer n of [-252, 252]; overflow gives infinity, underflow rounds. */
static inline vf v_scale2(vf x, vf n) {
    int32_t whole = v_int(n), half = whole / 2;
    return x * v_from_bits(((uint32_t)half + 127) << 23) * v_from_bits(((uint32_t)whole - (uint32_t)half + 127) << 23);
}
/* x * 2^n for an integer n of [-126, 127]. */
static inline vf v_scale1(vf x, vf n) {
    return x * v_from_bits(((uint32_t)v_int(n) + 127) << 23);
}
/* 2^n of n + 127 + 1.5 * 2^23, for an integer n of [-127, 127]; -127 gives 0. */
static inline vf v_power2(vf n) {
    return v_from_bits(v_bits(n) << 23);
}
/* Rounded to bf16; NaN stays NaN. */
static inline vf v_round_bf16(vf x) {
    uint32_t u = v_bits(x);
    return v_from_bits(x != x ? u | 0x400000u : (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u);
}
static inline float v_sum(vf x) {
    return x;
}
static inline float v_hmax(vf x) {
    return x;
}
/* 1.0 in lanes whose byte is not 0. */
static inline vm v_bytes_set(const uint8_t *p) {
    return *p != 0;
}
#endif
