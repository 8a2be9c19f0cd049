/* 8-bit families on tile registers (AMX): any number of rows up to 512 a call. Few rows fill no tile and are left to
 * the row on vectors. The sums are exact either way. */
#include "veci_avx512.h"

#include "finish_avx512.h"
#include "gemm_q8_finish_body.h"
#include "kernel_rows.h"

#define FEW       8 /* distilbert at 5, 8, 12 tokens, ms by tiles and so: 1.43 -> 1.28, 1.52 -> 1.44, 1.44 -> 1.59 */
#define TILE_SUMS (32 * 32)
#define PAIRS_K   32768 /* sums of a column are below 2^22 until here, and fit pairs of 16 bits */

/* The epilogue of a block goes beside the products of the next one, a few rows a step of K. */
struct tile_work {
    int32_t sums[TILE_SUMS] __attribute__((aligned(64)));
    const struct lathe_gemm_q8_tile *tile;
    void (*finish)(struct tile_work *work, size_t rows);
    size_t steps;               /* of K, at least 1 */
    size_t next, waiting, each; /* rows: the first that waits, how many do, and are finished a step */
    size_t cols;                /* the lines of sums have as many */
    float *c;                   /* these three of the next row; residual may be NULL */
    const float *residual, *scale;
    const int32_t *zero;
    const float *tail; /* of the activation */
    vi w_pairs[4];     /* minus the sums of the columns, in pairs of 16 bits */
    vf w_scale[4], bias[4];
};

/* The operations of q8_finish_vectors: what is taken from the sum is exact either way. Two vectors at a time, so that
 * their columns' numbers stay in registers: tiles take half of the loads there are. */
static inline __attribute__((always_inline)) void finish(struct tile_work *work, size_t rows, const bool tail,
                                                         const bool residual) {
    const struct lathe_gemm_q8_epilogue *e = work->tile->epilogue;
    const size_t ldc = work->tile->ldc, ldr = e->ldr, ld = work->cols;
    const float *scale = work->scale;
    const int32_t *zero = work->zero;
    for (size_t v = 0; v < ld / VN; v += 2) {
        const int32_t *sums = work->sums + work->next * ld + v * VN;
        const float *add = residual ? work->residual + v * VN : NULL;
        float *c = work->c + v * VN;
        vi p0 = work->w_pairs[v], p1 = work->w_pairs[v + 1];
        vf s0 = work->w_scale[v], s1 = work->w_scale[v + 1], b0 = work->bias[v], b1 = work->bias[v + 1];
        struct q8_tail t;
        if (tail)
            t = q8_load_tail(work->tail);
        for (size_t r = 0; r < rows; r++, sums += ld, c += ldc) {
            vi z = vi_set1((int32_t)((uint32_t)zero[r] | (uint32_t)zero[r] << 23));
            vf s = v_set1(scale[r]);
            vf x0 = v_from_i32(_mm512_dpwssd_epi32(vi_load(sums), z, p0)) * (s * s0) + b0;
            vf x1 = v_from_i32(_mm512_dpwssd_epi32(vi_load(sums + VN), z, p1)) * (s * s1) + b1;
            if (tail) {
                x0 = q8_less(x0, t);
                x1 = q8_less(x1, t);
            }
            if (residual) {
                x0 = v_join(e->gate, x0, v_load(add));
                x1 = v_join(e->gate, x1, v_load(add + VN));
                add += ldr;
            }
            v_store(c, x0);
            v_store(c + VN, x1);
        }
    }
    work->scale += rows;
    work->zero += rows;
    work->c += rows * ldc;
    if (residual)
        work->residual += rows * ldr;
    work->next += rows;
    work->waiting -= rows;
}
static void finish_plain(struct tile_work *work, size_t rows) {
    finish(work, rows, false, false);
}
static void finish_residual(struct tile_work *work, size_t rows) {
    finish(work, rows, false, true);
}
static void finish_tail(struct tile_work *work, size_t rows) {
    finish(work, rows, true, false);
}
static void finish_tail_residual(struct tile_work *work, size_t rows) {
    finish(work, rows, true, true);
}

#define tile_dot(c, a, b) _tile_dpbusd(c, a, b)

static inline void tile_beside(struct tile_work *work) {
    size_t rows = work->waiting < work->each ? work->waiting : work->each;
    if (rows > 0)
        work->finish(work, rows);
}

static inline int32_t *tile_sums(struct tile_work *work) {
    if (work->waiting > 0)
        work->finish(work, work->waiting);
    return work->sums;
}

/* Rare forms are done at once, by the row on vectors. */
static __attribute__((noinline)) void tile_done(struct tile_work *work, size_t row, size_t rows, size_t column,
                                                size_t cols, size_t ld) {
    const struct lathe_gemm_q8_epilogue *of = work->tile->epilogue;
    enum lathe_activation activation = of ? of->activation : LATHE_ACT_RELU;
    work->tail = activation == LATHE_ACT_GELU        ? q8_tail_gelu
                 : activation == LATHE_ACT_GELU_TANH ? q8_tail_gelu_tanh
                                                     : NULL;
    if (!(work->tail || activation == LATHE_ACT_NONE) || !of->bias || cols != ld || work->tile->k >= PAIRS_K) {
        struct lathe_gemm_q8_epilogue e;
        struct lathe_gemm_q8_tile part = q8_tile_rows(work->tile, row, rows, &e);
        lathe_q8_finish__avx512vnni(&part, column, cols, work->sums, ld);
        return;
    }
    for (size_t v = 0; v < ld / VN; v++) {
        vi sum = vi_load(of->w_sum + column + v * VN), low = _mm512_and_si512(sum, vi_set1(127));
        vi high = _mm512_srai_epi32(sum, 7);
        work->w_pairs[v] = _mm512_or_si512(_mm512_and_si512(vi_sub(vi_set1(0), low), vi_set1(0xffff)),
                                           _mm512_slli_epi32(vi_sub(vi_set1(0), high), 16));
        work->w_scale[v] = v_load(of->w_scale + column + v * VN);
        work->bias[v] = v_load(of->bias + column + v * VN);
    }
    work->next = 0;
    work->waiting = rows;
    work->each = (uint32_t)(rows + work->steps - 1) / (uint32_t)work->steps;
    work->cols = ld;
    work->c = work->tile->c + row * work->tile->ldc + column;
    work->residual = of->residual ? of->residual + row * of->ldr + column : NULL;
    work->scale = of->scale + row;
    work->zero = of->zero + row;
    work->finish = work->tail ? (of->residual ? finish_tail_residual : finish_tail)
                              : (of->residual ? finish_residual : finish_plain);
}
#include "tiles_amx.h"

void lathe_gemm_u8s8_512x64__amx(const struct lathe_gemm_q8_tile *tile) {
    if (tile->rows <= FEW) {
        lathe_gemm_u8s8_14x32__avx512vnni(tile);
        return;
    }
    struct tile_work work;
    work.tile = tile;
    work.waiting = work.each = 0;
    work.steps = tile->k < TILE_K ? 1 : tile->k / TILE_K;
    tile_products(&work, &(struct tile_product){.rows = tile->rows,
                                                .cols = tile->cols,
                                                .a = (const char *)tile->a,
                                                .lda = tile->lda,
                                                .bytes = tile->k,
                                                .b = (const char *)tile->b,
                                                .panel = tile->panel_stride,
                                                .next = (const char *)tile->fetch,
                                                .next_step = 16 * tile->fetch_step});
    (void)tile_sums(&work);
}
