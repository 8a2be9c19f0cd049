/* The vector layer for AVX2 with FMA: 8 lanes. Included only by files compiled with those flags. */
#ifndef LATHE_VEC_AVX2_H
#define LATHE_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VN 8
typedef __m256 vf;
typedef __m256 vm;

static inline vf v_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline __m256i v_first(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/* n lanes, zeros behind them; n of 0..VN. */
static inline vf v_load_n(const float *p, size_t n) {
    return _mm256_maskload_ps(p, v_first(n));
}
static inline void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
static inline void v_store_n(float *p, vf x, size_t n) {
    _mm256_maskstore_ps(p, v_first(n), x);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
/* b when either is NaN. */
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf v_abs(vf x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
static inline vf v_copysign(vf x, vf sign) {
    vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, x), _mm256_and_ps(bit, sign));
}
static inline vf v_sqrt(vf x) {
    return _mm256_sqrt_ps(x);
}
static inline vm v_lt(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static inline vm v_is_nan(vf a) {
    return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
static inline vf v_select(vm m, vf a, vf b) {
    return _mm256_blendv_ps(b, a, m);
}
static inline vf v_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^n for an integer n of [-252, 252], in two steps so that overflow gives infinity and underflow rounds. */
static inline vf v_scale2(vf x, vf n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
/* x * 2^n for an integer n of [-126, 127]. */
static inline vf v_scale1(vf x, vf n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
/* 2^n of n + 127 + 1.5 * 2^23, for an integer n of [-127, 127]; -127 gives 0. */
static inline vf v_power2(vf n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23));
}
/* Rounded to bf16; NaN stays NaN. */
static inline vf v_round_bf16(vf x) {
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
    vf rounded = _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32(-65536)));
    return _mm256_blendv_ps(rounded, _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000))), v_is_nan(x));
}
static inline float v_sum(vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* NaN in any lane gives NaN or the maximum of the others: callers that care sum up as well. */
static inline float v_hmax(vf x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
/* Lanes whose byte is not 0; reads VN bytes. */
static inline vm v_bytes_set(const uint8_t *p) {
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()));
}
/* 8 x 8 in registers. */
static inline void v_transpose(vf r[VN]) {
    vf t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
#endif
