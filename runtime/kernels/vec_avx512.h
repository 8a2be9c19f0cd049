/* The vector layer for AVX-512 (F, BW, CD, DQ, VL): 16 lanes. Included only by files compiled with those flags. */
#ifndef LATHE_VEC_AVX512_H
#define LATHE_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VN 16
typedef __m512 vf;
typedef __mmask16 vm;

static inline vf v_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline __mmask16 v_first(size_t n) {
    return (__mmask16)((1u << n) - 1u);
}
/* n lanes, zeros behind them; n of 0..VN. */
static inline vf v_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
static inline void v_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
static inline void v_store_n(float *p, vf x, size_t n) {
    _mm512_mask_storeu_ps(p, v_first(n), x);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
/* b when either is NaN. */
static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf v_abs(vf x) {
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
static inline vf v_copysign(vf x, vf sign) {
    vf bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, x), _mm512_and_ps(bit, sign));
}
static inline vf v_sqrt(vf x) {
    return _mm512_sqrt_ps(x);
}
static inline vm v_lt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vm v_is_nan(vf a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
static inline vf v_select(vm m, vf a, vf b) {
    return _mm512_mask_blend_ps(m, b, a);
}
static inline vf v_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^n; overflow gives infinity, underflow rounds. */
static inline vf v_scale2(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}
static inline vf v_scale1(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}
/* 2^n of n + 127 + 1.5 * 2^23, for an integer n of [-127, 127]; -127 gives 0. */
static inline vf v_power2(vf n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(n), 23));
}
/* Rounded to bf16; NaN stays NaN. */
static inline vf v_round_bf16(vf x) {
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    r = _mm512_and_si512(r, _mm512_set1_epi32(-65536));
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(r, v_is_nan(x), u, _mm512_set1_epi32(0x400000)));
}
static inline float v_sum(vf x) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* NaN in any lane gives NaN or the maximum of the others: callers that care sum up as well. */
static inline float v_hmax(vf x) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
/* Lanes whose byte is not 0; reads VN bytes. */
static inline vm v_bytes_set(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(bytes, bytes);
}
/* 16 x 16 in registers. */
static inline void v_transpose(vf r[VN]) {
    vf t[16], u[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        vf a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
        vf c = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd), d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[4 + i] = _mm512_shuffle_f32x4(c, d, 0x88);
        r[12 + i] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}
#endif
