/* 8-bit families for AVX-512 with VNNI: 14 rows x 32 columns, 28 sums in registers; fewer rows take more panels. */
#include "veci_avx512.h"

#include <string.h>

typedef __m512i vnni_a;
typedef __m512i vnni_b;
static inline vnni_a vnni_load_a(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline vnni_b vnni_load_b(const int8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi vnni_dot(vi acc, vnni_a a, vnni_b b) {
    return _mm512_dpbusd_epi32(acc, a, b);
}

#define Q8_MR      14
#define Q8_LATER   /* the epilogue beside the next products */
#define Q8_NAME(x) vnni_##x
#include "finish_avx512.h"
#include "gemm_q8_body.h"
#include "kernel_rows.h"

void lathe_gemm_u8s8_14x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
    case 0:
        if (tile->later)
            q8_finish_all_waiting(tile->later);
        return;
        Q8_CASE(vnni, 1, 4)
        Q8_CASE(vnni, 2, 4)
        Q8_CASE(vnni, 3, 4)
        Q8_CASE(vnni, 4, 4)
        Q8_CASE(vnni, 5, 4)
        Q8_CASE(vnni, 6, 4)
        Q8_CASE(vnni, 7, 3)
        Q8_CASE(vnni, 8, 3)
        Q8_CASE(vnni, 9, 3)
        Q8_CASE(vnni, 10, 2)
        Q8_CASE(vnni, 11, 2)
        Q8_CASE(vnni, 12, 2)
        Q8_CASE(vnni, 13, 2)
        Q8_CASE(vnni, 14, 2)
    default:
        return;
    }
}

void lathe_q8_finish__avx512vnni(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols, const int32_t *sums,
                                 size_t ld) {
    q8_finish(tile, column, cols, sums, ld);
}

static inline vnni_b vnni_low_b(const int8_t *p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15));
}
static inline vnni_b vnni_high_b(const int8_t *p) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15));
}

#define Q8B_MR     6
#define Q8B_WIDTH  2
#define Q8B_LONG   4
#define Q8B_HALVES 0
#include "gemm_q8_blocks_body.h"
#undef Q8B_HALVES
#define Q8B_HALVES 1
#include "gemm_q8_blocks_body.h"

void lathe_gemm_u8s8_blocks_6x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    if (tile->blocks->halves)
        vnni_halves_block_tile(tile);
    else
        vnni_bytes_block_tile(tile);
}

/* ---- the fast inner product: 10 rows x 32 columns. Zen 5 adds four vectors of bytes a cycle and multiplies two; dot
 * products a cycle, operands in the first cache, by plain ones 2.04:
 *   all in pairs           7 rows x 48 columns 2.62, 8 x 32 2.50
 *   two thirds in pairs    10 x 32, 9 x 32, 8 x 32, 7 x 32 2.94, 6 x 48 2.82, 4 x 64 2.83
 * 8 rows take 6 % longer with a line fetched for each that is read in place of a third of them. All four pipes being
 * busy, an epilogue beside the next products only breaks their loop: 9 rows x 32 columns, K = 768, cycles with it there
 * and at once 1317, 1245, with a residual 1341, 1285, with GELU 1518, 1315 (the least of plain products alone is 1728).
 */
typedef struct {
    __m512i x, x1, x2;
} fip_a;
typedef struct {
    __m512i w, w1, w2;
} fip_b;
static inline fip_a fip_load_a(const uint8_t *p) {
    return (fip_a){vnni_load_a(p), vnni_load_a(p + 4), vnni_load_a(p + 8)};
}
static inline fip_b fip_load_b(const int8_t *p) {
    return (fip_b){vnni_load_b(p), vnni_load_b(p + 64), vnni_load_b(p + 128)};
}
static inline vi fip_dot(vi acc, fip_a a, fip_b b) {
    acc = _mm512_dpbusd_epi32(acc, a.x, b.w);
    return _mm512_dpbusd_epi32(acc, _mm512_add_epi8(a.x1, b.w2), _mm512_add_epi8(a.x2, b.w1));
}
static inline vi fip_rest(vi acc, const uint8_t *a, const int8_t *b) {
    return _mm512_dpbusd_epi32(acc, vnni_load_a(a), vnni_load_b(b));
}
static inline vi fip_first(const struct lathe_gemm_q8_tile *tile, size_t r, size_t j) {
    return vi_add(vi_load(tile->w_pairs + j), vi_set1(tile->x_pairs[r]));
}
#undef Q8_MR
#undef Q8_NAME
#undef Q8_LINES
#define Q8_MR      12
#define Q8_LINES   3
#define Q8_NAME(x) fip_##x
#include "gemm_q8_body.h"

void lathe_gemm_fip_12x32__avx512vnni(const struct lathe_gemm_q8_tile *tile) {
    switch (tile->rows) {
        Q8_CASE(fip, 5, 2)
        Q8_CASE(fip, 6, 2)
        Q8_CASE(fip, 7, 2)
        Q8_CASE(fip, 8, 2)
        Q8_CASE(fip, 9, 2)
        Q8_CASE(fip, 10, 2)
        Q8_CASE(fip, 11, 2)
        Q8_CASE(fip, 12, 2)
    default:
        fip_one_by_one(tile, 0);
        return;
    }
}

/* 4 bytes are a lane; of each three lanes one is multiplied as it is, the others are x1 and x2. */
static const __mmask16 third[3] = {0111111, 022222, 044444}; /* lanes 0, 3, ..; 1, 4, ..; 2, 5, .. */
struct fip_lanes {
    __mmask16 first, second; /* x1, x2 */
    __mmask64 halved;        /* bytes of both */
    __m512i shift;
};
/* Of the vector whose first lane is lane t of the row, where so many lanes are in pairs. */
static inline struct fip_lanes fip_lanes(size_t t, size_t paired) {
    struct fip_lanes l;
    __mmask16 pairs = v_first(t >= paired ? 0 : paired - t < 16 ? paired - t : 16);
    l.first = third[(4 - t / 16 % 3) % 3] & pairs;
    l.second = third[(5 - t / 16 % 3) % 3] & pairs;
    l.halved = _mm512_movepi8_mask(_mm512_movm_epi32(l.first | l.second));
    l.shift = _mm512_mask_set1_epi32(_mm512_maskz_set1_epi32(l.first, 0x40404040), l.second, -0x3f3f3f40);
    return l;
}

/* Bytes in order and halved. */
static inline __attribute__((target("avx512vbmi"), always_inline)) __m512i fip_bytes(__m512i q, __m512i order,
                                                                                     const struct fip_lanes *l) {
    const __m512i one = _mm512_set1_epi8(1);
    __m512i x = _mm512_permutexvar_epi8(order, q);
    /* half to even: (x + 1) / 2, less 1 where x is odd and the half below is even */
    __m512i up = _mm512_ternarylogic_epi32(_mm512_srli_epi16(x, 1), x, one, 0x08);
    return _mm512_mask_sub_epi8(x, l->halved, _mm512_avg_epu8(x, _mm512_setzero_si512()), up);
}

/* Three vectors at a time, which hold whole turns, then what is left with one lane behind it that is none. */
__attribute__((target("avx512vbmi"))) void lathe_fip_rows__avx512vbmi(const struct lathe_fip_rows *rows) {
    const size_t lanes = rows->k / 4, paired = rows->k / 12 * 3, whole = paired / 48 * 48;
    const bool shifted = rows->x_pairs != NULL;
    struct fip_lanes l[3];
    for (size_t i = 0; i < 3; i++)
        l[i] = fip_lanes(i * 16, 48);
    for (size_t r = 0; r < rows->count; r++) {
        uint8_t *q = rows->q + r * rows->ldq;
        const uint8_t *order = rows->order;
        vi sum = _mm512_setzero_si512();
        for (size_t t = 0; t < whole; t += 48) {
            __m512i x[4];
            x[3] = _mm512_setzero_si512();
            LATHE_UNROLL
            for (size_t i = 0; i < 3; i++) {
                size_t at = t * 4 + i * 64;
                x[i] = fip_bytes(_mm512_loadu_si512(q + at), _mm512_loadu_si512(order + at), &l[i]);
                x[i] = shifted ? _mm512_add_epi8(x[i], l[i].shift) : x[i];
                _mm512_storeu_si512(q + at, x[i]);
            }
            LATHE_UNROLL
            for (size_t i = 0; i < 3; i++)
                sum = _mm512_mask_dpbusd_epi32(sum, l[i].first, x[i], _mm512_alignr_epi32(x[i + 1], x[i], 1));
        }
        __m512i before = _mm512_setzero_si512();
        __mmask16 first = 0;
        for (size_t t = whole; t < lanes; t += 16) {
            struct fip_lanes own = fip_lanes(t, paired);
            __mmask16 in = v_first(lanes - t < 16 ? lanes - t : 16);
            __m512i x =
                fip_bytes(_mm512_maskz_loadu_epi32(in, q + t * 4), _mm512_maskz_loadu_epi32(in, order + t * 4), &own);
            x = shifted ? _mm512_add_epi8(x, own.shift) : x;
            _mm512_mask_storeu_epi32(q + t * 4, in, x);
            sum = _mm512_mask_dpbusd_epi32(sum, first, before, _mm512_alignr_epi32(x, before, 1));
            before = x;
            first = own.first;
        }
        sum = _mm512_mask_dpbusd_epi32(sum, first, before, _mm512_alignr_epi32(_mm512_setzero_si512(), before, 1));
        if (shifted)
            rows->x_pairs[r] = -_mm512_reduce_add_epi32(sum);
        rows->scale[r] *= 2;
        rows->zero[r] /= 2;
    }
}
