/* The kernel table: for each family one row an instruction-set level, plain C first. The last row of kernels.def whose
 * bits the CPU has serves; lathe_kernels_select fills one struct of function pointers that every operator call carries.
 *
 * A kernel uses no globals, no libc but memcpy, allocates nothing, reads no byte past the operands named here unless it
 * says so, and gives a row the same bits whatever rows stand beside it. */
#ifndef LATHE_KERNEL_H
#define LATHE_KERNEL_H

#include "kernel_bf16.h"
#include "kernel_q8.h"
#include "ops_enums.h"
#include "tensor.h"

/* ---- gemm_f32: c[r][j] = epilogue(sum over t of a[t][r] * b[t][j]) for up to MR rows and any number of panels.
 * A lies packed by tile, [k][rows]: element (r, t) at a[t * lda + r]. B lies in panels of 16 columns: element (t, j) at
 * b[(j / 16) * panel_stride + t * ldb + j % 16]; packing F32_N16 has ldb 16 and panel_stride 16 k. Whole panels are
 * read, `cols` columns are stored. Each element of C has one accumulator that takes its products in the order of t with
 * one rounding each (plain C: two), so its bits depend on neither rows, panels, nor how t is cut into calls that
 * accumulate. */
struct lathe_gemm_epilogue {
    const float *bias;     /* [cols] or NULL */
    const float *residual; /* rows x cols with row stride ldr, or NULL; added after the activation */
    size_t ldr;
    bool gate; /* it multiplies instead */
    enum lathe_activation activation;
    float alpha;            /* of quick_gelu */
    float scale;            /* multiplies the product first; 1 for linear layers */
    const float *row_scale; /* [rows] or NULL: so does the row's own */
};
struct lathe_gemm_f32_tile {
    size_t rows, cols, k; /* rows <= MR */
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb, panel_stride;
    float *c;
    size_t ldc;
    const float
        *fetch; /* NULL, or where B's next panel group lies: fetched into cache, fetch_step floats a step of k */
    size_t fetch_step;
    bool accumulate; /* the sum starts with what c holds; else gemm_f32_fip's with row_first[r] + col_first[j] */
    const struct lathe_gemm_epilogue *epilogue; /* NULL: c gets the plain sum */
    const float *row_first, *col_first;         /* [rows], [cols] in whole panels */
};
typedef void (*lathe_gemm_f32_fn)(const struct lathe_gemm_f32_tile *tile);
/* The first row of tile i of those that `rows` rows make, i of 0 to lathe_gemm_tiles(rows, mr), which ends the last:
 * full tiles, and at the end one of at least half the rows, shorter ones being dear. On AVX2 (Zen 5) a step of k takes
 * tiles of 1 to 6 rows 2.4 3.1 3.1 4.5 5.5 6.2 cycles a group of columns; from tiles of like size to these, 64 and 128
 * rows of distilbert's products are 0.5 to 1 % faster. */
static inline size_t lathe_gemm_tiles(size_t rows, size_t mr) {
    return (rows + mr - 1) / mr;
}
static inline size_t lathe_gemm_tile_begin(size_t rows, size_t mr, size_t i) {
    size_t tiles = lathe_gemm_tiles(rows, mr), rest = rows - i * mr;
    if (i == tiles)
        return rows;
    return i > 0 && i + 1 == tiles && rest < mr / 2 ? rows - mr / 2 : i * mr;
}
/* A tile's rows for gemm_f32: out[t * rows + r] = a[r * lda + t]. Writes up to 16 floats past the end of `out`. */
typedef void (*lathe_gemm_f32_pack_a_fn)(size_t rows, size_t k, const float *a, size_t lda, float *out);

/* ---- gemm_f32_fip: gemm_f32 by the fast inner product (kernel_q8.h), where two additions a cycle go beside two
 * multiply-adds: of each three steps of k (all of them, from 0 on) the first is done as it is, the others, x1 and x2,
 * as (x1 + w2)(x2 + w1), from whose sum that of x1 x2 (of a row) and that of w1 w2 (of a column) are taken: the sums
 * start with minus both. Rows are scaled by a power of two, so that x is about as large as w: the roundings are then
 * those of numbers of the size |x| |w| of row and column, as those of the plain sums are, if no column is much smaller
 * than the others. Error against the exact result, rms of MiniLM-L6's layers: 3.3e-7 of the rms of the results by plain
 * sums, 3.3e-7 to 4.1e-7 so. A row's bits depend on it and the weights alone, as ever. */
struct lathe_fip_sums {
    float squares, pairs; /* of x: over all k; of x1 x2. Not finite, or denormal: to be found in doubles */
};
typedef struct lathe_fip_sums (*lathe_fip_sums_fn)(size_t k, const float *x);
/* As gemm_f32's, each row multiplied by its scale. */
typedef void (*lathe_fip_pack_a_fn)(size_t rows, size_t k, const float *a, size_t lda, const float *scale, float *out);
struct lathe_gemm_fip_kernel {
    lathe_gemm_f32_fn fn; /* NULL: it does not pay, or is not there */
    lathe_fip_pack_a_fn pack_a;
    lathe_fip_sums_fn sums;
    unsigned mr, nr, best; /* best: of several tiles, at most so many rows each */
};

/* ---- rows: y[i] for `count` rows of `n` elements */
/* y = (x - mean) / sqrt(var + epsilon) * gamma + beta; x = a + residual when residual is not NULL, stored to `sum` when
 * that is not NULL. gamma, beta may be NULL. All stats in f32 (two passes). A constant row gives beta exactly. */
typedef void (*lathe_layer_norm_f32_fn)(size_t count, size_t n, const float *a, const float *residual,
                                        const float *gamma, const float *beta, float epsilon, float *y, float *sum);
typedef void (*lathe_rms_norm_f32_fn)(size_t count, size_t n, const float *a, const float *gamma, float epsilon,
                                      float *y);
/* y[i] = f(x[i]); may be in place. Stated error bounds in kernels.def. */
typedef void (*lathe_unary_f32_fn)(size_t n, const float *x, float *y);
/* softmax of each row of x, in place allowed; -inf is weight 0; a row of only -inf gives NaN as the formula does. */
typedef void (*lathe_softmax_f32_fn)(size_t count, size_t n, const float *x, float *y);
/* y[i] = a[i] op b[i]; op 0 add, 1 sub, 2 mul, 3 div; stride_b 0: b[0] for all. */
typedef void (*lathe_binary_f32_fn)(size_t n, unsigned op, const float *a, const float *b, size_t stride_b, float *y);

/* ---- taps_f32: a run of a convolution, y[j] = bias + sum over l, t of w[w_at[l] + t] * x[x_at[l] + t * step + j]; j <
 * n, l < lines, t < taps. A sum starts with bias and takes its products in the order of l, then t, one rounding each
 * (plain C: two); its bits depend on neither n nor j. */
struct lathe_taps_f32 {
    size_t n, lines, taps;
    const float *x, *w;
    const int64_t *x_at, *w_at; /* [lines] */
    int64_t step;
    float bias;
    float *y; /* no part of an operand */
};
typedef void (*lathe_taps_f32_fn)(const struct lathe_taps_f32 *run);

/* ---- attention_f32: one head of one sequence for a block of queries.
 * q: nq rows of d, stride ldq; k: nk rows, stride ldk; v: nk rows of dv, stride ldv; out: nq rows of dv, stride ldo.
 * scale multiplies q k^T; bias (NULL or nq x nk with stride ldb) is added; allow (NULL or nq x nk bytes with stride
 * lda_) 0 masks a key out; first[i], last[i] (NULL: 0, nk) bound the keys of query i. A query without any key gets
 * zeros. scratch: at least lathe_attention_f32_scratch(nq, nk, d, dv) bytes. The keys are taken in fixed blocks from
 * key 0, so the bits do not depend on nq or on the other queries. */
struct lathe_attention_f32_args {
    size_t nq, nk, d, dv;
    const float *q, *k, *v;
    float *out;
    size_t ldq, ldk, ldv, ldo;
    float scale;
    float softcap; /* 0: none; else s = softcap * tanh(s / softcap) before bias and mask */
    const float *bias;
    size_t ldb;
    const uint8_t *allow;
    size_t ld_allow;
    const int32_t *first, *last; /* per query, may be NULL */
    const uint8_t *keys; /* NULL or [nk]: 0 for keys that no query may see, for attention_q8, which takes no range
                            from them; attention_f32 does not look at it */
    uint8_t *no_key;     /* NULL or [nq]: set to 1 for a query without any key, else 0 */
    void *scratch;
};
typedef void (*lathe_attention_f32_fn)(const struct lathe_attention_f32_args *args);
size_t lathe_attention_f32_scratch(size_t nq, size_t nk, size_t d, size_t dv);

/* ---- few_f32: products of up to LATHE_FEW_ROWS rows with a matrix as it lies, c[i][j] = sum over t of a[i][t] *
 * b[t][j], `turned`: b[j][t]; i < rows, j < cols, t < k, each with a row stride. The order of a sum depends on k alone.
 * No row of the table without vectors: NULL. */
#define LATHE_FEW_ROWS 3
struct lathe_few_f32 {
    size_t rows, cols, k; /* at least 1 */
    const float *a, *b;
    size_t lda, ldb;
    bool turned;
    bool accumulate; /* not turned: the sum starts with what c holds */
    float *c;        /* no part of an operand */
    size_t ldc;
};
typedef void (*lathe_few_f32_fn)(const struct lathe_few_f32 *product);

/* attention_bf16: the same with q, k, v and the weights of softmax (at most 1, before their sum divides; the sum is
 * that of the rounded ones) rounded to bf16; scores, maxima and sums in f32. The rows of the table differ in the order
 * of sums and in e^x, which is within 8e-5 of itself, and weights may therefore round to neighbours. Scratch as of
 * attention_f32. */

/* attention_q8: the same in integers (attention_q8_scheme.h), for d <= LATHE_Q8_MAX_HEAD, nk <= LATHE_Q8_MAX_KEYS,
 * scale > 0 and no softcap. All rows of the table give the same bits; a query's bits depend on its own row, on all keys
 * and values that `keys` leaves, and on nothing else. */
#define LATHE_Q8_MAX_HEAD 128
#define LATHE_Q8_MAX_KEYS (1 << 20)
size_t lathe_attention_q8_scratch(size_t nq, size_t nk, size_t d, size_t dv);

struct lathe_gemm_f32_kernel {
    lathe_gemm_f32_fn fn;
    lathe_gemm_f32_pack_a_fn pack_a;
    unsigned mr, nr; /* largest tile: mr rows; nr columns (a multiple of 16) go through the registers together */
};

#define LATHE_MAX_FAMILIES 28

struct lathe_kernels {
    uint64_t cpu; /* bits after the mask: LATHE_CPU_MASK(...) */
    struct lathe_gemm_f32_kernel gemm_f32;
    struct lathe_gemm_fip_kernel gemm_f32_fip;
    lathe_layer_norm_f32_fn layer_norm_f32;
    lathe_rms_norm_f32_fn rms_norm_f32;
    lathe_softmax_f32_fn softmax_f32;
    lathe_attention_f32_fn attention_f32, attention_bf16, attention_q8;
    lathe_few_f32_fn few_f32;
    lathe_unary_f32_fn gelu_f32, gelu_tanh_f32, silu_f32, tanh_f32, exp_f32, erf_f32, sigmoid_f32;
    lathe_binary_f32_fn binary_f32;
    lathe_taps_f32_fn taps_f32;
    struct lathe_gemm_bf16_kernel gemm_bf16;
    lathe_quantize_rows_fn quantize_rows;
    struct lathe_gemm_q8_kernel gemm_u8s8; /* any bytes in A */
    /* the products of so many groups of 4 of K fit 16 bits together: kernel_q8.h */
    struct lathe_gemm_q8_kernel gemm_u7s8, gemm_sum2, gemm_sum4;
    struct lathe_gemm_q8_kernel gemm_fip;                           /* fn NULL: it does not pay, or is not there */
    lathe_fip_rows_fn fip_rows;                                     /* always there */
    struct lathe_gemm_q8_kernel gemm_u8s8_blocks, gemm_u7s8_blocks; /* weights with scales a block */
    /* sizes for tile choice; from CPUID */
    size_t l1_bytes, l2_bytes;
    const char
        *names[LATHE_MAX_FAMILIES]; /* of the chosen rows, in the order of the families above, for logs and bench */
    unsigned name_count;
};

/* Fills *out for the CPU bits given (lathe_cpu_bits() for this machine, lowered by a mask or not). Static data only. */
void lathe_kernels_select(uint64_t cpu_bits, struct lathe_kernels *out);

/* ---- packing, plain C, used by the compiler (and by tests) */
/* Bytes of w [k][n] in a packing; 0 on overflow or an unknown packing. */
size_t lathe_packed_bytes(unsigned packing, size_t k, size_t n);
/* Element type of a packing; LATHE_NO_DTYPE for rows, which have any, and unknown ones. */
enum lathe_dtype lathe_packed_dtype(unsigned packing);
/* Panels [first, last) of w (row-major [k][n], or [n][k] when `transposed`) into `out` = start of panel `first`. */
void lathe_pack_f32_n16(const float *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                        size_t last_panel, float *out);
/* The same for bf16, from f32 (rounded by lathe_bf16_weight) or bf16; k is padded with zeros to a multiple of 2. */
void lathe_pack_bf16_n16k2(const void *w, enum lathe_dtype dtype, size_t k, size_t n, size_t ldw, bool transposed,
                           size_t first_panel, size_t last_panel, uint16_t *out);
/* The same for s8; k is padded with zeros to a multiple of 4. */
void lathe_pack_s8_n16k4(const int8_t *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                         size_t last_panel, int8_t *out);
/* The same of numbers from -8 to 7, two a byte; k is padded to a multiple of 8, and padding is 0 as a byte, -8 as a
 * number. */
void lathe_pack_s4_n16k8(const int8_t *w, size_t k, size_t n, size_t ldw, bool transposed, size_t first_panel,
                         size_t last_panel, int8_t *out);
#endif
