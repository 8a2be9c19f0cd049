/* The 8-bit kernel families: rows of x as unsigned bytes with a scale and a zero point each, products with signed
 * weights, exact in 32 bits on every instruction set.
 *
 * A row x of k elements: lo = min(x, 0), hi = max(x, 0); scale = (hi - lo) / levels, levels = 255 or 127;
 * zero = round(-lo / scale), q = clamp(round(x / scale) + zero, 0, levels), x about (q - zero) * scale. Rounding goes
 * half to even; the quotients are products with the f32 reciprocal of scale, and every row of the table takes the same
 * f32 operations, so that q, scale and zero are equal bit for bit. A range of less than 1e-30 gives scale 1 and all
 * zeros; a row with an infinity or a NaN, or whose range overflows, gives scale NaN and all zeros: its products are
 * NaN.
 *
 * Weights w [k][n] lie in packing S8_N16K4: panels of 16 columns, [k/4][16][4], k padded with zeros to a multiple of 4
 * and n to 16. Values of -128 to 127. Sums fit 32 bits up to k = LATHE_Q8_MAX_K.
 *
 * Without 8-bit dot products a CPU adds products in 16 bits, signed, before it widens them: those of the first two k of
 * a group of 4 to one sum, those of the last two to another. A family says how far that must fit, for all inputs that
 * come. gemm_u8s8: not at all. gemm_u7s8: in each group, as it does when inputs have 7 bits, or weights are of 64 at
 * most. gemm_sum2, gemm_sum4: over 2, over 4 groups together, counted from k = 0; so it does when the weights of one
 * sign that go into a sum are 128 (inputs of 7 bits: 258) or less together.
 *
 * gemm_fip multiplies less, by the fast inner product (Winograd, IEEE Trans. Comput. C-17, 1968), on weights made for
 * it: (x1 + w2)(x2 + w1) = x1 w1 + x2 w2 + x1 x2 + w1 w2 is one product and two additions for two products; what x1 x2
 * sums up to is found once a row, what w1 w2 does once a column. Where four vectors are added a cycle and two
 * multiplied, it is best to do a third of the products as they are: of each 12 steps of k (all of them, from 0 on) the
 * first four are, and the others are pairs of t and t + 4; so are the steps behind the last 12 done as they are. Sums
 * of a byte of a row and a weight must fit a byte: weights of pairs are -63 to 63, and their inputs have one bit less
 * than those of other steps, which the columns of x with the greatest products take (`order`). What a row holds for it
 * is struct lathe_fip_rows. The sums are exact, and those that any family has of the same bytes.
 *
 * Weights with scales a block of `block` steps of k and column (struct lathe_gemm_q8_blocks) are the other kind: the
 * integer sums of a block are exact, those of the blocks are added in f32 from the first to the last. Numbers of 4 bits
 * lie two a byte, packing S4_N16K8: [k/8][16][4] bytes a panel, the first four steps of eight in the low halves, the
 * others in the high ones, as number + 8. */
#ifndef LATHE_KERNEL_Q8_H
#define LATHE_KERNEL_Q8_H

#include "ops_enums.h"
#include "tensor.h"

#define LATHE_Q8_MAX_K  ((size_t)65793)
#define LATHE_Q8_NARROW 64 /* weights of at most this magnitude are narrow: 255 * 64 * 2 fits 16 bits */

/* `count` rows of k floats with stride ldx (floats) to bytes with stride ldq; bytes from k to the next multiple of 4
 * are zero, nothing behind them is written. */
struct lathe_quantize_rows {
    size_t count, k;
    const float *x;
    size_t ldx;
    const float *x_scale; /* [k]: what is quantized is x[r][i] * x_scale[i]; NULL: x */
    unsigned levels;      /* 255 or 127 */
    bool even;            /* zero is: 2 round(-lo / scale / 2) */
    uint8_t *q;
    size_t ldq;
    float *scale;  /* [count] */
    int32_t *zero; /* [count] */
};
typedef void (*lathe_quantize_rows_fn)(const struct lathe_quantize_rows *rows);

/* `count` rows of quantized bytes (levels 255, even) in the order of the steps: step t of k takes byte order[t] of its
 * own 64 (those of t / 64 * 64 on), and those of pairs (lathe_fip_is_pair) take half of it, half to even. A step of
 * scale is twice as much then: scale doubles, zero halves, and pairs mean (byte - zero) * scale as ever, other steps
 * (byte - 2 zero) * scale. For gemm_fip, where x_pairs is not NULL, bytes of pairs are x1 + 64 and x2 - 64 (x of 0 to
 * 128), so that x1 + 64 + w2 is 1 to 255 and x2 - 64 + w1 -127 to 127, and x_pairs takes minus the sum of their
 * products. */
struct lathe_fip_rows {
    size_t count, k;      /* k a multiple of 4 */
    const uint8_t *order; /* [k], the low six bits; below what is left of k, or any byte may be taken */
    uint8_t *q;
    size_t ldq;
    float *scale;
    int32_t *zero;
    int32_t *x_pairs; /* [count] */
};
typedef void (*lathe_fip_rows_fn)(const struct lathe_fip_rows *rows);
#define LATHE_FIP_MOST_WEIGHT 63
static inline bool lathe_fip_is_pair(size_t t, size_t k) {
    return t < k / 12 * 12 && t % 12 >= 4;
}
/* What the sums of a column w [k] begin with: minus the sum of w1 w2 + 64 (w1 - w2) over its pairs. */
static inline int32_t lathe_fip_column(const int8_t *w, size_t k) {
    int32_t sum = 0;
    for (size_t t = 0; t < k; t++)
        if (lathe_fip_is_pair(t, k) && t % 12 < 8)
            sum += w[t] * w[t + 4] + 64 * (w[t] - w[t + 4]);
    return -sum;
}

/* y = act((sum - zero[r] * w_sum[j]) * (scale[r] * w_scale[j]) + bias[j]) + residual[r][j], each operation rounded.
 * GELU in either form is within 2.1e-4 and within 4.7e-4 of the size of its argument: far below the steps of the 8-bit
 * products that read it. */
struct lathe_gemm_q8_epilogue {
    const float *scale;  /* [rows] */
    const int32_t *zero; /* [rows] */
    const float *w_scale;
    const int32_t *w_sum;
    const float *bias;     /* [cols] or NULL */
    const float *residual; /* rows x cols with row stride ldr, or NULL */
    size_t ldr;
    bool gate; /* it multiplies in place of being added */
    enum lathe_activation activation;
    float alpha; /* of quick_gelu */
};

/* Sums whose epilogue is still to be done, and how: kernels that can do it beside the products of the next tile leave
 * them here; what the pointers point to stays as it is meanwhile. The caller sets `waiting` to 0 before the first tile
 * and calls the kernel with a tile of 0 rows after the last one. */
#define LATHE_Q8_MAX_WAITING 28 /* vectors */
struct lathe_gemm_q8_later {
    int32_t sums[LATHE_Q8_MAX_WAITING * 16] __attribute__((aligned(64)));
    size_t waiting; /* rows, the first ones of the tile */
    size_t every;   /* bytes of a panel from one to the next: the kernel's own */
    size_t cols;    /* whole vectors: the sums have no others */
    float *c;       /* the place of the first sum; the pointers below are as in the epilogue */
    size_t ldc;
    const float *scale;
    const int32_t *zero;
    const float *w_scale;
    const int32_t *w_sum;
    const float *bias, *residual; /* residual may be NULL */
    size_t ldr;
    bool gate;
    const float *tail; /* NULL, or of the activation: the kernel's own */
};

#define LATHE_Q8_BLOCK_STEP 8 /* a block is a multiple of it, */
#define LATHE_Q8_MAX_BLOCK  16384
static inline bool lathe_q8_is_block(int64_t block) {
    return block >= LATHE_Q8_BLOCK_STEP && block <= LATHE_Q8_MAX_BLOCK && block % LATHE_Q8_BLOCK_STEP == 0;
}

/* Weights with blocks. Cells of a panel: [blocks][16], columns past n zero; panel after panel. */
struct lathe_gemm_q8_blocks {
    size_t block; /* lathe_q8_is_block; the last one of k may be shorter */
    size_t count; /* ceil(k / block) */
    bool halves;  /* packing S4_N16K8, else S8_N16K4 */
    const float *scale;
    const int8_t *zero; /* what is taken from a weight before it is multiplied; NULL: nothing */
    const float *w_sum; /* [n] sums over k of (w - zero) * scale */
};

/* c[r][j] = epilogue(sum over t of a[r][t] * w[t][j]) for up to MR rows and any number of panels. With blocks, of which
 * the families gemm_u8s8_blocks and gemm_u7s8_blocks take any number of rows:
 * c[r][j] = act((sum over blocks b of scale[b][j] * (sum over t in b of a[r][t] * (w[t][j] - zero[b][j])) -
 *                e.zero[r] * w_sum[j]) * e.scale[r] + bias[j]) + residual[r][j] */
struct lathe_gemm_q8_tile {
    size_t rows,
        cols;         /* rows <= MR, 0: only what waits is finished; whole panels are read, `cols` columns are stored */
    size_t k;         /* padded: a multiple of 4, of 8 with halves */
    const uint8_t *a; /* rows with stride lda */
    size_t lda;
    const int8_t *b; /* panel p at b + p * panel_stride; packing S8_N16K4 has panel_stride 16 * k */
    size_t panel_stride;
    const struct lathe_gemm_q8_blocks *blocks; /* NULL, or from the tile's first column on; then no fetch, sums, later,
                                                  and w_scale and w_sum of the epilogue are not used */
    const int32_t *x_sum; /* rows x blocks->count with row stride ldx_sum: lathe_q8_block_sum of the bytes of a block;
                             bytes of a past the true k meet weights of 0, whatever they are */
    size_t ldx_sum;
    const int32_t *x_pairs,
        *w_pairs;        /* gemm_fip: of the rows, and lathe_fip_column of the tile's columns, whole panels */
    const int8_t *fetch; /* NULL, or what to bring into cache meanwhile: fetch_step bytes for every 4 steps of k (less
                            than a line: spread evenly, which memory likes better than all at once), and as much one
                            panel_stride further for each panel that goes through the registers */
    size_t fetch_step;
    unsigned ahead; /* without `fetch`: so many lines of B are asked for before their turn */
    float *c;       /* row stride ldc */
    size_t ldc;
    int32_t *sums; /* when epilogue is NULL: the exact sums, row stride ldc, and c is not used */
    const struct lathe_gemm_q8_epilogue *epilogue;
    struct lathe_gemm_q8_later *later; /* NULL: the epilogue is done when the kernel returns */
};
typedef void (*lathe_gemm_q8_fn)(const struct lathe_gemm_q8_tile *tile);

/* Minus a sum of bytes (below 2^22), as two 16-bit halves that a pair (z, 128 z) multiplies: one instruction gives
 * -sum * z, exactly, for every z of 9 bits. */
static inline int32_t lathe_q8_block_sum(uint32_t sum) {
    return (int32_t)((0u - (sum & 127)) & 0xffff) | (int32_t)((0u - (sum >> 7)) << 16);
}

struct lathe_gemm_q8_kernel {
    lathe_gemm_q8_fn fn;
    unsigned mr, nr; /* as in struct lathe_gemm_f32_kernel */
    unsigned ahead;  /* of a tile: what the memory of this CPU wants */
};

#endif
