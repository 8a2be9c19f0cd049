/* 8-bit products on weights with scales a block, on vectors: included by one file an instruction set after
 * gemm_q8_body.h, once for each way of multiplying and each form of weights. The including file defines Q8_NAME and the
 * functions of gemm_q8_body.h, and
 *   Q8B_MR                          the most rows that go through the registers together, 4 or more
 *   Q8B_WIDTH, Q8B_LONG             panels beside them; beside one or two rows
 *   Q8B_HALVES                      1: weights of 4 bits, else bytes; for the former
 *   Q8_NAME(low_b)(p), Q8_NAME(high_b)(p)   number + 8 in the low and high halves of the bytes that load_b would load
 * Integer sums of a block stay in registers, and so do the f32 sums over the blocks. way_bytes_block_tile or
 * way_halves_block_tile takes any number of rows. Few numbers of rows have code of their own: the library is small.
 *
 * AVX-512 VNNI, EPYC of 2025, one core, 64 rows x 384 x 384 with quantizing, 10^9 multiply-adds a second: 455 with a
 * scale a column; 4 bits in blocks of 32 333, with zero points 302, of 128 388; bytes in blocks of 32 347. All of a
 * block's work that is not products (12 sums to f32, times the scale, into the other sums) is a fifth at 32. Sums over
 * the blocks in memory, for tiles of 13 rows: 235 instead of 333. */
#ifndef Q8B_MAX_VECTORS
#define Q8B_MAX_VECTORS 8
#define Q8B_STREAMS     4 /* rows that read B faster than the first cache can wait for lines */

/* Cells of a block for 16 / VN vectors of one panel: zero points as pairs (z, 128 z), see lathe_q8_block_sum. */
static inline __attribute__((always_inline)) vi q8b_zero_pairs(const int8_t *zero, int32_t shift) {
    vi z = zero ? vi_add(vi_load_i8(zero), vi_set1(shift)) : vi_set1(shift);
    return vi_zero_pairs(z);
}

/* Columns [column, column + cols) of the tile from their f32 sums. */
static __attribute__((noinline)) void q8b_finish(const struct lathe_gemm_q8_tile *tile, size_t column, size_t cols,
                                                 const float *sums, size_t ld) {
    const struct lathe_gemm_q8_epilogue *e = tile->epilogue;
    for (size_t j = 0; j < cols; j += VN) {
        size_t n = cols - j < VN ? cols - j : VN, at = column + j;
        bool whole = n == VN;
        vf w_sum = whole ? v_load(tile->blocks->w_sum + at) : v_load_n(tile->blocks->w_sum + at, n),
           bias = v_set1(0.0f);
        if (e->bias)
            bias = whole ? v_load(e->bias + at) : v_load_n(e->bias + at, n);
        for (size_t r = 0; r < tile->rows; r++) {
            vf x = v_fnma(v_set1((float)e->zero[r]), w_sum, v_load(sums + r * ld + j));
            x = v_fma(x, v_set1(e->scale[r]), bias);
            x = v_activate_coarse(e->activation, e->alpha, x);
            if (e->residual) {
                const float *residual = e->residual + r * e->ldr + at;
                x = v_join(e->gate, x, whole ? v_load(residual) : v_load_n(residual, n));
            }
            float *c = tile->c + r * tile->ldc + at;
            if (whole)
                v_store(c, x);
            else
                v_store_n(c, x, n);
        }
    }
}
#endif

#undef Q8B_NAME
#if Q8B_HALVES
#define Q8B_NAME(x) Q8_NAME(halves_##x)
#else
#define Q8B_NAME(x) Q8_NAME(bytes_##x)
#endif

/* Steps of k that one line of a panel holds: acc gains the products of a by bv, of four steps or (halves) eight. */
static inline __attribute__((always_inline)) void Q8B_NAME(block_step)(const size_t rows, const size_t vectors,
                                                                       const uint8_t *a[], size_t lda,
                                                                       const Q8_NAME(b) bv[2][Q8B_MAX_VECTORS],
                                                                       vi acc[][Q8B_MAX_VECTORS]) {
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        Q8_NAME(a) av = Q8_NAME(load_a)(a[r / 3] + r % 3 * lda);
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            acc[r][v] = Q8_NAME(dot)(acc[r][v], av, bv[0][v]);
        if (Q8B_HALVES) {
            av = Q8_NAME(load_a)(a[r / 3] + r % 3 * lda + 4);
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                acc[r][v] = Q8_NAME(dot)(acc[r][v], av, bv[1][v]);
        }
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            __asm__("" : "+v"(acc[r][v])); /* or the compiler holds two copies of it */
    }
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3) {
        a[r / 3] += Q8B_HALVES ? 8 : 4;
        __asm__("" : "+r"(a[r / 3])); /* as in gemm_q8_body.h */
    }
}

static inline __attribute__((always_inline)) void Q8B_NAME(block_panels)(const size_t rows, const size_t panels,
                                                                         const struct lathe_gemm_q8_tile *tile,
                                                                         size_t column, size_t cols) {
    const size_t vectors = panels * Q8_VP;
    size_t lda = tile->lda, stride = tile->panel_stride, count = tile->blocks->count, block = tile->blocks->block;
    size_t cell = column / 16 * count * 16;
    const float *scale = tile->blocks->scale + cell;
    const int8_t *zero = tile->blocks->zero ? tile->blocks->zero + cell : NULL;
    const int8_t *b = tile->b + column / 16 * stride;
    const uint8_t *a[(Q8B_MR + 2) / 3];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r += 3)
        a[r / 3] = tile->a + r * lda;
    vf sum[Q8B_MR][Q8B_MAX_VECTORS];
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            sum[r][v] = v_set1(0.0f);
    }
    /* Lines of B are asked for that many bytes before their turn. */
    size_t ahead = tile->ahead / panels * 64;
    for (size_t i = 0; i < count; i++) {
        vi acc[Q8B_MR][Q8B_MAX_VECTORS];
        if (Q8B_HALVES || zero) {
            vi pairs[Q8B_MAX_VECTORS];
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++)
                pairs[v] = q8b_zero_pairs(zero ? zero + (v / Q8_VP * count + i) * 16 + v % Q8_VP * VN : NULL,
                                          Q8B_HALVES ? 8 : 0);
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++) {
                vi x = vi_set1(tile->x_sum[r * tile->ldx_sum + i]);
                LATHE_UNROLL
                for (size_t v = 0; v < vectors; v++)
                    acc[r][v] = vi_dot_pairs(x, pairs[v]);
            }
        } else {
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++) {
                LATHE_UNROLL
                for (size_t v = 0; v < vectors; v++)
                    acc[r][v] = vi_set1(0);
            }
        }
        size_t left = tile->k - i * block, steps = (left < block ? left : block) / (Q8B_HALVES ? 8 : 4);
        for (size_t t = 0; t < steps; t++, b += 64) {
            Q8_NAME(b) bv[2][Q8B_MAX_VECTORS];
            if (rows <= Q8B_STREAMS) {
                LATHE_UNROLL
                for (size_t p = 0; p < panels; p++)
                    __builtin_prefetch(b + ahead + p * stride, 0, 2);
            }
            LATHE_UNROLL
            for (size_t v = 0; v < vectors; v++) {
                const int8_t *from = b + v / Q8_VP * stride + v % Q8_VP * VN * 4;
#if Q8B_HALVES
                bv[0][v] = Q8_NAME(low_b)(from);
                bv[1][v] = Q8_NAME(high_b)(from);
#else
                bv[0][v] = Q8_NAME(load_b)(from);
#endif
            }
            Q8B_NAME(block_step)(rows, vectors, a, lda, (const Q8_NAME(b)(*)[Q8B_MAX_VECTORS])bv, acc);
        }
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            vf s = v_load(scale + (v / Q8_VP * count + i) * 16 + v % Q8_VP * VN);
            LATHE_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r][v] = v_fma(v_from_i32(acc[r][v]), s, sum[r][v]);
        }
    }
    float sums[Q8B_MR * VN * Q8B_MAX_VECTORS] __attribute__((aligned(64)));
    LATHE_UNROLL
    for (size_t r = 0; r < rows; r++) {
        LATHE_UNROLL
        for (size_t v = 0; v < vectors; v++)
            v_store(sums + (r * vectors + v) * VN, sum[r][v]);
    }
    q8b_finish(tile, column, cols, sums, panels * 16);
}

/* The rest of the columns, one panel and two rows at a time: less code. */
static __attribute__((noinline)) void Q8B_NAME(block_rest)(const struct lathe_gemm_q8_tile *tile, size_t column) {
    for (size_t r = 0; r < tile->rows; r += 2) {
        struct lathe_gemm_q8_epilogue e;
        struct lathe_gemm_q8_tile part = q8_tile_rows(tile, r, tile->rows - r < 2 ? 1 : 2, &e);
        for (size_t j = column; j < tile->cols; j += 16) {
            size_t cols = tile->cols - j < 16 ? tile->cols - j : 16;
            if (part.rows == 2)
                Q8B_NAME(block_panels)(2, 1, &part, j, cols);
            else
                Q8B_NAME(block_panels)(1, 1, &part, j, cols);
        }
    }
}

static void Q8B_NAME(block_tile)(const struct lathe_gemm_q8_tile *tile) {
    for (size_t r = 0, rows = 0; r < tile->rows; r += rows) {
        struct lathe_gemm_q8_epilogue e;
        size_t left = tile->rows - r, j = 0;
        rows = left >= Q8B_MR ? Q8B_MR : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        struct lathe_gemm_q8_tile part = q8_tile_rows(tile, r, rows, &e);
        for (size_t width = rows > 2 ? Q8B_WIDTH : Q8B_LONG; j + width * 16 - 16 < tile->cols; j += width * 16) {
            size_t cols = tile->cols - j < width * 16 ? tile->cols - j : width * 16;
            if (rows == Q8B_MR)
                Q8B_NAME(block_panels)(Q8B_MR, Q8B_WIDTH, &part, j, cols);
            else if (Q8B_MR > 4 && rows == 4)
                Q8B_NAME(block_panels)(4, Q8B_WIDTH, &part, j, cols);
            else if (rows == 2)
                Q8B_NAME(block_panels)(2, Q8B_LONG, &part, j, cols);
            else
                Q8B_NAME(block_panels)(1, Q8B_LONG, &part, j, cols);
        }
        if (j < tile->cols)
            Q8B_NAME(block_rest)(&part, j);
    }
}
