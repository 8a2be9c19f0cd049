/* 32-bit integers beside vec_plain.h: one lane. */
#ifndef LATHE_VECI_PLAIN_H
#define LATHE_VECI_PLAIN_H

#include "vec_plain.h"

typedef int32_t vi;

static inline vi vi_set1(int32_t x) {
    return x;
}
static inline vi vi_load(const int32_t *p) {
    return *p;
}
static inline vi vi_load_n(const int32_t *p, size_t n) {
    return n ? *p : 0;
}
static inline void vi_store(int32_t *p, vi x) {
    *p = x;
}
static inline void vi_store_n(int32_t *p, vi x, size_t n) {
    if (n)
        *p = x;
}
static inline vi vi_sub(vi a, vi b) {
    return (int32_t)((uint32_t)a - (uint32_t)b);
}
static inline vi vi_mul(vi a, vi b) {
    return (int32_t)((uint32_t)a * (uint32_t)b);
}
static inline vi vi_add(vi a, vi b) {
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
static inline vi vi_max(vi a, vi b) {
    return a > b ? a : b;
}
/* Without sign. */
static inline vi vi_shift(vi x, vi n) {
    return (int32_t)((uint32_t)x >> n);
}
static inline vf v_from_i32(vi x) {
    return (float)x;
}
static inline vi vi_bits(vf x) {
    return (int32_t)v_bits(x);
}
#endif
