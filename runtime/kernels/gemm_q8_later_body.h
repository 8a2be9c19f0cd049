/* The epilogue of a tile of 8-bit products beside the products of the next one, row by row: the sums of a tile go to a
 * buffer, and the loop over k of the next tile takes one row from there every few steps. The dot products fill two
 * pipes of four; what is not a multiplication runs on the others, and no tile waits for the last instructions of the
 * one before. For vectors of 16 lanes.
 *
 * Zen 5, one core, 64 rows, share of the peak that products and epilogue reach, at once -> beside the next products:
 *   768 x 3072   95 -> 96, with a residual 91 -> 96, with GELU 88 -> 95 %
 *   384 x 1536   93 -> 93, with a residual 88 -> 93, with GELU 84 -> 91 %
 * (GELU with its table of parabolas besides.) Whole layers, rows quantized, two threads that share no cache: 512 rows
 *   384 x 1536 with GELU 355 -> 329 us, 768 x 3072 with GELU 1308 -> 1250, 1536 x 384 326 -> 320, 768 x 768 317 -> 316
 * and models at 128 and 512 tokens: minilm-l6 1.86 -> 1.83 and 8.97 -> 8.82 ms, distilbert 5.80 -> 5.75 and 24.9
 * -> 24.7. Beside dot products a multiplication or FMA costs half a cycle there, a look-up in one register (vpermps) an
 * eighth, additions, minima, conversions, shifts, scaling by powers of two, loads and stores next to nothing.
 *
 * Where the rest goes: cycles beyond the peak of a tile of 13 rows x 32 columns, operands in the first cache. K = 384
 * has 1248 cycles of dot products, so that 94 to 95 % and with GELU 91 to 92 % is what these operations allow there.
 *   without an epilogue                     14   also when the loop is left for each row, to do nothing: 21
 *   with it                                 60   39 of them three multiplications an element
 *   with GELU                              115   26 of them two more, 10 its look-ups
 * Tried without gain: one vector at a time in place of a row; no vzeroupper; blocks of 64 to 128 rows in place of 256
 * KiB of them; lines of B asked for 16 to 128 steps ahead. Lost by it: least and greatest of each row kept here for the
 * quantization after it, which saves a pass of 1 % but costs 2 to 3 % in two more loads and stores a vector. A division
 * takes two multiplications' time. */
#ifndef LATHE_GEMM_Q8_LATER_BODY_H
#define LATHE_GEMM_Q8_LATER_BODY_H

#include "gemm_q8_finish_body.h"

/* Can the epilogue of these columns wait? Rare forms cannot, nor can columns beside panels. */
static inline bool q8_may_wait(const struct lathe_gemm_q8_tile *tile, size_t cols) {
    const struct lathe_gemm_q8_epilogue *e = tile->epilogue;
    return tile->later && e && e->bias && cols % VN == 0 &&
           (e->activation == LATHE_ACT_NONE || e->activation == LATHE_ACT_GELU || e->activation == LATHE_ACT_GELU_TANH);
}

/* q8_finish, now or later; `sums` is later->sums where there is one. */
static __attribute__((noinline)) void q8_finish_or_wait(const struct lathe_gemm_q8_tile *tile, size_t column,
                                                        size_t cols, const int32_t *sums, size_t ld) {
    if (!q8_may_wait(tile, cols)) {
        q8_finish(tile, column, cols, sums, ld);
        return;
    }
    struct lathe_gemm_q8_later *later = tile->later;
    const struct lathe_gemm_q8_epilogue *e = tile->epilogue;
    later->waiting = tile->rows;
    later->cols = cols;
    later->c = tile->c + column;
    later->ldc = tile->ldc;
    later->scale = e->scale;
    later->zero = e->zero;
    later->w_scale = e->w_scale + column;
    later->w_sum = e->w_sum + column;
    later->bias = e->bias + column;
    later->residual = e->residual ? e->residual + column : NULL;
    later->ldr = e->ldr;
    later->gate = e->gate;
    later->tail = e->activation == LATHE_ACT_GELU        ? q8_tail_gelu
                  : e->activation == LATHE_ACT_GELU_TANH ? q8_tail_gelu_tanh
                                                         : NULL;
}

/* The next row, from the last to the first, `cols` columns; the same operations as q8_finish_vectors. */
static inline __attribute__((always_inline)) void q8_finish_waiting(struct lathe_gemm_q8_later *later,
                                                                    const size_t cols) {
    /* Stores are few here: one that waits for its line holds up all behind it, and the queue is short. */
    size_t r = --later->waiting;
    const int32_t *sums = later->sums + r * cols, *w_sum = later->w_sum;
    const float *w_scale = later->w_scale, *bias = later->bias, *tail = later->tail, *residual = later->residual;
    float *c = later->c + r * later->ldc;
    const bool gate = later->gate;
    if (residual)
        residual += r * later->ldr;
    vi z = vi_set1(later->zero[r]);
    vf s = v_set1(later->scale[r]);
    _Pragma("GCC unroll 1") for (size_t j = 0; j < cols; j += VN) {
        vi sum = vi_sub(vi_load(sums + j), vi_mul(z, vi_load(w_sum + j)));
        vf x = v_from_i32(sum) * (s * v_load(w_scale + j)) + v_load(bias + j);
        /* Hidden from the compiler, which else keeps the table in registers that the sums need. */
        __asm__("" : "+r"(tail));
        if (tail)
            x = q8_less_tail(x, tail);
        if (residual)
            x = v_join(gate, x, v_load(residual + j));
        v_store(c + j, x);
    }
}

static __attribute__((noinline)) void q8_finish_all_waiting(struct lathe_gemm_q8_later *later) {
    while (later->waiting)
        q8_finish_waiting(later, later->cols);
}
#endif
