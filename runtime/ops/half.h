/* Conversions between f32 and the 16-bit floats, round to nearest even, written without branches on the common path so
 * that loops over them vectorise. */
#ifndef LATHE_HALF_H
#define LATHE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t lathe_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float lathe_f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float lathe_f32_from_bf16(uint16_t h) {
    return lathe_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t lathe_bf16_from_f32(float x) {
    uint32_t u = lathe_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) /* a NaN stays one when its low bits go */
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float lathe_f32_from_f16(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    /* The product moves the exponent from f16's bias to f32's and makes normal numbers of subnormal ones, exactly. */
    uint32_t u =
        magnitude >= 0x0f800000u ? magnitude + (224u << 23) : lathe_f32_bits(lathe_f32_from_bits(magnitude) * 0x1p112f);
    return lathe_f32_from_bits(u | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t lathe_f16_from_f32(float x) {
    uint32_t u = lathe_f32_bits(x);
    uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    uint32_t r;
    if (u >= 0x47800000u) /* 65536 and more, infinity, NaN */
        r = u > 0x7f800000u ? 0x7e00u | (u >> 13 & 0x3ffu) : 0x7c00u;
    else if (u < 0x38800000u) /* subnormal: an addition to 0.5 rounds at 2^-24 */
        r = lathe_f32_bits(lathe_f32_from_bits(u) + 0.5f) - 0x3f000000u;
    else
        r = (u - (112u << 23) + 0xfffu + (u >> 13 & 1u)) >> 13;
    return (uint16_t)(sign | r);
}

/* f64 to f32 with the last bit set when anything was lost: a later rounding to 16 bits is then the only one. */
static inline float lathe_f32_round_to_odd(double x) {
    float f = (float)x;
    double back = (double)f;
    uint32_t u = lathe_f32_bits(f);
    if (back == x || x != x || (u & 0x7fffffffu) == 0x7f800000u)
        return f;
    if ((u & 1u) == 0) /* even: the odd neighbour on the side of x */
        u = (back < x) == (u >> 31 == 0) ? u + 1 : u - 1;
    return lathe_f32_from_bits(u);
}
#endif
