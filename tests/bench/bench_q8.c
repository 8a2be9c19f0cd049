/* Micro-benchmark of the 8-bit rows of the kernel table: the peak of each row's scheme measured (how many 8-bit
 * multiply-adds its instructions do when nothing else stands in their way), then what share of it is reached.
 *
 *   bench_q8 [--threads N] [--seconds X] [--only WORD] [--layer MxKxN] [--tiles] [--small-pages]
 *
 * Peaks are those of one core, best of several short runs, times the threads, measured again before each layer, as the
 * clock changes. Layers go through the blocked product with the whole team: alone ("product": the rows are quantized,
 * scale and bias are the epilogue), and with the rows quantized on the way and the activation done, on weights that
 * stay the same ("warm") or rotate through 64 MB, so that small row counts read memory as a model does ("stream").
 * --layer: one of those. --small-pages: weights in pages of 4 KB, as a mapped file has them. */
#include "bench_run.h"
#include "cpu.h"
#include "gemm_q8_drive.h"
#include "kernel_rows.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *only, *only_layer;
static bool tiles;

/* ---- peaks: 12 sums, operands that stay in registers */
#define STEPS 20000
#define EACH  _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)

#if defined(__x86_64__)
#include <immintrin.h>

#define PEAK(name, isa, type, zero, setup, dot)                                                                        \
    __attribute__((target(isa), noinline)) static void name(void *user) {                                              \
        (void)user;                                                                                                    \
        type acc[12], a = zero, b = zero;                                                                              \
        EACH acc[i] = zero;                                                                                            \
        __asm__ volatile("" : "+x"(a), "+x"(b));                                                                       \
        setup;                                                                                                         \
        for (int k = 0; k < STEPS; k++) {                                                                              \
            EACH {                                                                                                     \
                acc[i] = dot;                                                                                          \
                __asm__ volatile("" : "+x"(a), "+x"(b)); /* nothing is computed once for all 12 */                     \
            }                                                                                                          \
            __asm__ volatile(""                                                                                        \
                             : "+x"(acc[0]), "+x"(acc[1]), "+x"(acc[2]), "+x"(acc[3]), "+x"(acc[4]), "+x"(acc[5]),     \
                               "+x"(acc[6]), "+x"(acc[7]), "+x"(acc[8]), "+x"(acc[9]), "+x"(acc[10]), "+x"(acc[11]));  \
        }                                                                                                              \
    }
PEAK(peak_vnni512, "avx512f,avx512bw,avx512vnni", __m512i, _mm512_setzero_si512(), , _mm512_dpbusd_epi32(acc[i], a, b))
PEAK(peak_vnni256, "avxvnni", __m256i, _mm256_setzero_si256(), , _mm256_dpbusd_avx_epi32(acc[i], a, b))
PEAK(peak_pairs512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), __m512i one = _mm512_set1_epi16(1),
     _mm512_add_epi32(acc[i], _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), one)))
PEAK(peak_pairs256, "avx2", __m256i, _mm256_setzero_si256(), __m256i one = _mm256_set1_epi16(1),
     _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one)))
/* the products of several groups added up in 16 bits: one step of the loop does as many */
#define PAIRS_SUM(p, a, b) _mm##p##_add_epi16(_mm##p##_maddubs_epi16(a, b), _mm##p##_maddubs_epi16(b, a))
PEAK(peak_sum2_512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), __m512i one = _mm512_set1_epi16(1),
     _mm512_add_epi32(acc[i], _mm512_madd_epi16(PAIRS_SUM(512, a, b), one)))
PEAK(peak_sum2_256, "avx2", __m256i, _mm256_setzero_si256(), __m256i one = _mm256_set1_epi16(1),
     _mm256_add_epi32(acc[i], _mm256_madd_epi16(PAIRS_SUM(256, a, b), one)))
/* a and b change roles and places, so that no product is taken for another */
PEAK(peak_sum4_512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), __m512i one = _mm512_set1_epi16(1),
     _mm512_add_epi32(acc[i], _mm512_madd_epi16(_mm512_add_epi16(PAIRS_SUM(512, a, b), PAIRS_SUM(512, one, b)), one)))
PEAK(peak_sum4_256, "avx2", __m256i, _mm256_setzero_si256(), __m256i one = _mm256_set1_epi16(1),
     _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_add_epi16(PAIRS_SUM(256, a, b), PAIRS_SUM(256, one, b)), one)))
/* two products of 16 bits in place of one of 8; of (a, b) and (b, a) the compiler makes one */
PEAK(peak_wide512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), ,
     _mm512_add_epi32(_mm512_add_epi32(acc[i], _mm512_madd_epi16(a, b)), _mm512_madd_epi16(b, b)))
PEAK(peak_wide256, "avx2", __m256i, _mm256_setzero_si256(), ,
     _mm256_add_epi32(_mm256_add_epi32(acc[i], _mm256_madd_epi16(a, b)), _mm256_madd_epi16(b, b)))
/* four tiles of sums, as many multiply-adds each as 16 x 16 sums of 64 products */
__attribute__((target("amx-tile,amx-int8"), noinline)) static void peak_tiles(void *user) {
    uint8_t config[64] __attribute__((aligned(64))) = {1};
    (void)user;
    for (unsigned i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64;
        config[48 + i] = 16;
    }
    __asm__ volatile("" ::"r"(config) : "memory");
    _tile_loadconfig(config);
    for (int k = 0; k < STEPS; k++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_release();
}
#endif

static void peak_plain(void *user) {
    volatile int32_t *x = user;
    int32_t acc[12] = {0}, a = x[0], b = x[1];
    for (int k = 0; k < STEPS; k++)
        EACH {
            acc[i] += a * b;
            __asm__ volatile("" : "+r"(acc[i]));
        }
}

/* Groups of 4 of K that a family adds up in 16 bits; 0: it says nothing of them. */
static unsigned sums_of(const char *family) {
    return strcmp(family, "gemm_sum4") == 0 ? 4 : strcmp(family, "gemm_sum2") == 0 ? 2 : 0;
}

/* Multiply-adds a second of one core, in the scheme of a row; of gemm_fip those of plain dot products, which it may
 * surpass. */
static double peak_of(const char *family, uint64_t bits) {
    int32_t two[2] = {0, 0};
    double lanes = 1.0 / 4;
    void (*fn)(void *) = peak_plain;
#if defined(__x86_64__)
    bool seven = strncmp(family, "gemm_u7s8", 9) == 0;
    unsigned sums = sums_of(family);
    if (bits & LATHE_CPU_MASK(LATHE_CPU_AMX_INT8)) {
        fn = peak_tiles;
        lanes = 4.0 * 16 * 16 * 64 / (4 * 12);
    } else if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI)) {
        fn = peak_vnni512;
        lanes = 16;
    } else if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX512)) {
        fn = sums == 4 ? peak_sum4_512 : sums == 2 ? peak_sum2_512 : seven ? peak_pairs512 : peak_wide512;
        lanes = 16 * (sums ? sums : 1);
    } else if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI)) {
        fn = peak_vnni256;
        lanes = 8;
    } else if (bits & LATHE_CPU_MASK(LATHE_CPU_AVX2)) {
        fn = sums == 4 ? peak_sum4_256 : sums == 2 ? peak_sum2_256 : seven ? peak_pairs256 : peak_wide256;
        lanes = 8 * (sums ? sums : 1);
    }
#endif
    return lanes * 4 * 12 * STEPS / bench_best(fn, two);
}

/* ---- tiles, operands in the second cache */
struct tile_user {
    lathe_gemm_q8_fn fn;
    struct lathe_gemm_q8_tile tile;
};
static void run_tile(void *user) {
    struct tile_user *u = user;
    u->fn(&u->tile);
}

static void gemm_tiles(const char *family, lathe_gemm_q8_fn fn, uint64_t bits, unsigned mr, unsigned nr) {
    double peak = peak_of(family, bits);
    size_t k = 768, cols = 192;
    uint8_t *a = bench_memory(mr * k);
    int8_t *b = bench_memory((cols + 64) * k);
    float *c = bench_floats(mr * cols), *ones = bench_floats(cols);
    int32_t *zero = bench_memory(cols * 4);
    for (size_t i = 0; i < mr * k; i++)
        a[i] &= 127;
    struct lathe_gemm_q8_epilogue e = {.scale = ones, .zero = zero, .w_scale = ones, .w_sum = zero};
    for (unsigned rows = 1; rows <= mr; rows++) {
        struct tile_user u = {fn,
                              {.rows = rows,
                               .cols = cols,
                               .k = k,
                               .a = a,
                               .lda = k + 64,
                               .ahead = 128, /* lines, as on Intel */
                               .b = b,
                               .panel_stride = 16 * k,
                               .c = c,
                               .ldc = cols,
                               .epilogue = &e}};
        u.tile.lda = k;
        double t = bench_best(run_tile, &u), rate = (double)rows * (double)cols * (double)k / t;
        printf("  tile %2u x %2zu x %zu %26.1f GOPS %5.1f %%\n", rows, cols, k, 2 * rate / 1e9, 100 * rate / peak);
    }
    (void)nr;
    free(a);
    free(b);
    free(c);
    free(ones);
    free(zero);
}

/* ---- layers over the team */
struct layer_user {
    struct lathe_pool *pool;
    struct lathe_kernels kernels;
    struct lathe_gemm_q8 product;
    const int8_t *weights;
    size_t count, next, stride;
    void *scratch[BENCH_THREADS];
};
static void layer_part(void *user, const struct lathe_team *team) {
    struct layer_user *u = user;
    lathe_gemm_q8_team(&u->kernels, &u->product, team, u->scratch[team->index]);
}
static void run_layer(void *user) {
    struct layer_user *u = user;
    u->product.panels = u->weights + u->next * u->stride;
    u->next = (u->next + 1) % u->count;
    lathe_pool_run(u->pool, layer_part, u);
}

/* `blocks`: NULL, or the form of weights with scales a block. */
static void layers(struct lathe_pool *pool, const char *family, const char *name, uint64_t bits,
                   const struct lathe_gemm_q8_blocks *form) {
    static const size_t shapes[][2] = {{768, 768}, {768, 3072}, {3072, 768}, {384, 384}, {384, 1536}, {1536, 384}};
    static const size_t rows[] = {1, 8, 16, 32, 64, 128, 512};
    printf("%s by %s, %u threads, peak %.0f GOPS\n", family, name, bench_run.threads,
           2 * peak_of(family, bits) * bench_run.threads / 1e9);
    if (form)
        printf("  %s in blocks of %zu%s\n", form->halves ? "4 bits" : "8 bits", form->block,
               form->zero ? ", with zero points" : "");
    struct layer_user u = {.pool = pool};
    lathe_kernels_select(bits, &u.kernels);
    size_t total = (size_t)64 << 20;
    int8_t *weights = bench_memory(total);
    float *w_scale = bench_floats(4096), *bias = bench_floats(4096);
    int32_t *w_sum = bench_memory(4096 * 4);
    uint8_t *order = bench_memory(4096);
    bool fip = strcmp(family, "gemm_fip") == 0;
    for (size_t i = 0; i < total; i++)
        weights[i] = fip ? weights[i] % (LATHE_FIP_MOST_WEIGHT + 1) : weights[i] == -128 ? 0 : weights[i];
    for (size_t i = 0; i < 4096; i++)
        order[i] = i % 64;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            size_t m = rows[r], k = shapes[s][0], n = shapes[s][1];
            char layer[80];
            snprintf(layer, sizeof layer, "%zux%zux%zu", m, k, n);
            if (only_layer && strcmp(layer, only_layer) != 0)
                continue;
            float *x = bench_floats(m * k), *y = bench_floats(m * n);
            struct lathe_gemm_q8_blocks blocks = form ? *form : (struct lathe_gemm_q8_blocks){0};
            float *cells = form ? bench_floats(k * n / form->block) : NULL;
            if (form) {
                blocks.count = k / form->block;
                blocks.scale = blocks.w_sum = cells;
                blocks.zero = form->zero ? weights : NULL;
            }
            for (unsigned i = 0; i < bench_run.threads; i++)
                u.scratch[i] = bench_memory(lathe_gemm_q8_scratch(&u.kernels, m, n, k, blocks.block, true));
            u.weights = weights;
            u.stride = blocks.halves ? k * n / 2 : k * n;
            u.next = 0;
            u.product =
                (struct lathe_gemm_q8){.m = m,
                                       .n = n,
                                       .k = k,
                                       .x = x,
                                       .ldx = k,
                                       .blocks = form ? &blocks : NULL,
                                       .order = fip ? order : NULL,
                                       .w_pairs = w_sum,
                                       .sums = blocks.halves ? 1 : sums_of(family),
                                       .y = y,
                                       .ldy = n,
                                       .levels = strncmp(family, "gemm_u7s8", 9) == 0 && !blocks.halves ? 127 : 255,
                                       .epilogue = {.w_scale = w_scale,
                                                    .w_sum = w_sum,
                                                    .bias = bias,
                                                    .activation = n > k ? LATHE_ACT_GELU : LATHE_ACT_NONE}};
            double work = (double)m * (double)n * (double)k, peak = peak_of(family, bits) * bench_run.threads;
            void *prepared = bench_memory(lathe_gemm_q8_rows_bytes(m, k, blocks.block));
            lathe_gemm_q8_prepare(&u.kernels, &u.product, &(struct lathe_team){.count = 1}, prepared);
            const enum lathe_activation activation = u.product.epilogue.activation;
            u.count = 1;
            u.product.prepared = prepared;
            u.product.epilogue.activation = LATHE_ACT_NONE;
            double alone = bench_best(run_layer, &u);
            u.product.prepared = NULL;
            u.product.epilogue.activation = activation;
            double warm = bench_best(run_layer, &u);
            u.count = total / u.stride;
            double t = bench_best(run_layer, &u);
            printf("  %4zu x %4zu x %4zu  product %8.1f us %5.1f %%   quantized%s, warm %8.1f us %5.1f %%   stream "
                   "%8.1f us "
                   "%5.1f %% %7.0f GOPS %6.1f GB/s of weights\n",
                   m, k, n, alone * 1e6, 100 * work / alone / peak, n > k ? ", gelu" : "", warm * 1e6,
                   100 * work / warm / peak, t * 1e6, 100 * work / t / peak, 2 * work / t / 1e9,
                   (double)(k * n) / t / 1e9);
            free(prepared);
            for (unsigned i = 0; i < bench_run.threads; i++)
                free(u.scratch[i]);
            free(x);
            free(y);
            free(cells);
        }
    free(weights);
    free(order);
    free(w_scale);
    free(bias);
    free(w_sum);
}

/* ---- rows on one core */
static lathe_quantize_rows_fn quantize_fn;
static void run_quantize(void *user) {
    quantize_fn(user);
}
static void quantizes(const char *name, lathe_quantize_rows_fn fn) {
    float *x = bench_floats(16 * 3072), scale[16];
    int32_t zero[16];
    uint8_t *q = bench_memory(16 * 3072);
    quantize_fn = fn;
    printf("%-34s", name);
    for (size_t k = 384; k <= 3072; k *= 2) {
        struct lathe_quantize_rows rows = {16, k, x, k, NULL, 255, false, q, k, scale, zero};
        printf("%6.3f ns an element, rows of %zu", bench_best(run_quantize, &rows) / (16 * (double)k) * 1e9, k);
    }
    putchar('\n');
    free(x);
    free(q);
}

/* `--only` is looked for in "family/name". */
static bool wanted(const char *family, const char *name, uint64_t bits) {
    char both[160];
    snprintf(both, sizeof both, "%s/%s", family, name);
    return (lathe_cpu_bits() & bits) == bits && (!only || strstr(both, only));
}

static void one_row(struct lathe_pool *pool, const char *family, const char *name, lathe_gemm_q8_fn fn, uint64_t bits,
                    unsigned mr, unsigned nr) {
    if (!wanted(family, name, bits))
        return;
    layers(pool, family, name, bits, NULL);
    if (tiles)
        gemm_tiles(family, fn, bits, mr, nr);
}

/* Weights with scales a block in their forms: 4 bits about 8, with other zero points, 8 bits. */
static void one_block_row(struct lathe_pool *pool, const char *family, const char *name, uint64_t bits) {
    static const int8_t some[1];
    static const struct lathe_gemm_q8_blocks forms[] = {
        {.block = 32, .halves = true},  {.block = 32, .halves = true, .zero = some},
        {.block = 128, .halves = true}, {.block = 32},
        {.block = 32, .zero = some},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (wanted(family, name, bits) && (strcmp(family, "gemm_u7s8_blocks") == 0 || !forms[i].halves))
            layers(pool, family, name, bits, &forms[i]);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiles") == 0)
            tiles = true;
        else if (strcmp(argv[i], "--small-pages") == 0)
            bench_run.small_pages = true;
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            bench_run.threads = (unsigned)atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
            bench_run.seconds = atof(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
            only = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--layer") == 0)
            only_layer = argv[++i];
    }
    struct lathe_pool *pool = bench_pool();
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound)
#define KERNEL_QUANTIZE(function, bits)                                                                                \
    if (wanted("quantize_rows", #function, bits))                                                                      \
        quantizes(#function, function);
#define KERNEL_GEMM_Q8(family, function, bits, mr, nr)  one_row(pool, #family, #function, function, bits, mr, nr);
#define KERNEL_GEMM_Q8B(family, function, bits, mr, nr) one_block_row(pool, #family, #function, bits);
#include "kernels.def"
    lathe_pool_free(&pool);
    return 0;
}
