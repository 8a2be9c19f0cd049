/* Micro-benchmark of the kernel table: the multiply-add peak measured, then what share of it each row reaches.
 *
 *   bench_kernels [--threads N] [--seconds X] [--only FAMILY] [--level c|avx2|avx512]
 *
 * The peak is that of the widest registers the row's instruction set has, on one core, measured just before the row:
 * the best of several short runs, so that other work on the machine disturbs little. `linear` rows go through the
 * blocked product with the whole team; their weights rotate through 64 MB, so that small row counts read memory as a
 * model does.
 *
 * On an EPYC of the Zen 4 class (118 GFLOPS a core), share of the peak of 2 cores for 768 x 3072 with GELU, then 3072 x
 * 768, at 8, 16, 32, 64, 128, 512 rows: AVX-512 83 88 89 91 89 90, 73 85 90 93 95 94 %; AVX2 81 86 87 90 86 89, 82 89
 * 90 92 92 93 %. Below 8 rows memory sets the pace (35 to 90 GB/s there, from hour to hour). */
#include "bench_peak.h"
#include "bench_run.h"
#include "cpu.h"
#include "gemm_drive.h"
#include "kernel_rows.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *only, *level;

static bool wanted(const char *name) {
    return !only || strstr(name, only);
}

/* Can this CPU run a row of that name, and was its level asked for? */
static bool runs(const char *name, uint64_t bits) {
    const char *suffix = strstr(name, "__");
    return (lathe_cpu_bits() & bits) == bits && (!level || (suffix && strcmp(suffix + 2, level) == 0));
}

static double peak_of(uint64_t bits) {
    double best = 0, end = bench_now() + bench_run.seconds;
    do {
        double start = bench_now();
        double flops = lathe_bench_peak(bits);
        double rate = flops / (bench_now() - start);
        best = rate > best ? rate : best;
    } while (bench_now() < end);
    return best;
}

/* ---- gemm tiles, operands in the second cache */
struct tile_user {
    lathe_gemm_f32_fn fn;
    struct lathe_gemm_f32_tile tile;
};
static void run_tile(void *user) {
    struct tile_user *u = user;
    u->fn(&u->tile);
}

static void gemm_tiles(const char *name, lathe_gemm_f32_fn fn, uint64_t bits, unsigned mr, unsigned nr) {
    if (!runs(name, bits) || !wanted(name))
        return;
    double peak = peak_of(bits);
    printf("%-34s peak of one core %.1f GFLOPS\n", name, peak / 1e9);
    size_t k = 384;
    float *a = bench_floats(mr * k), *b = bench_floats(64 * k), *c = bench_floats(mr * 64);
    for (unsigned rows = 1; rows <= mr; rows++) {
        struct tile_user u = {
            fn,
            {rows, nr < 64 && rows * 2 > mr ? nr : 64, k, a, rows, b, 16, 16 * k, c, 64, NULL, 0, false, NULL, a, b}};
        double t = bench_best(run_tile, &u), rate = 2.0 * rows * (double)u.tile.cols * (double)k / t;
        printf("  tile %2u x %2zu x %zu %26.1f GFLOPS %5.1f %%\n", rows, u.tile.cols, k, rate / 1e9, 100 * rate / peak);
    }
    free(a);
    free(b);
    free(c);
}

/* ---- whole products over the team */
struct linear_user {
    struct lathe_pool *pool;
    struct lathe_kernels kernels;
    struct lathe_gemm_f32 product;
    const float *weights;
    size_t count, next, stride;
    void *scratch[BENCH_THREADS];
};
static void linear_part(void *user, const struct lathe_team *team) {
    struct linear_user *u = user;
    lathe_gemm_f32_team(&u->kernels, &u->product, team, u->scratch[team->index]);
}
static void run_linear(void *user) {
    struct linear_user *u = user;
    u->product.panels = u->weights + u->next * u->stride;
    u->next = (u->next + 1) % u->count;
    lathe_pool_run(u->pool, linear_part, u);
}

/* `fip`: with w_pairs, which the rows for the fast inner product take. */
static void linears(struct lathe_pool *pool, const char *name, uint64_t bits, bool fip) {
    static const size_t shapes[][2] = {{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {384, 384}};
    static const size_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    if (!runs(name, bits) || !wanted("linear"))
        return;
    struct linear_user u = {.pool = pool};
    lathe_kernels_select(bits, &u.kernels);
    double peak = peak_of(bits) * bench_run.threads;
    printf("linear through %s, %u threads, peak %.1f GFLOPS\n", name, bench_run.threads, peak / 1e9);
    size_t total = (size_t)64 << 20;
    float *weights = bench_floats(total), *bias = bench_floats(4096);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            size_t m = rows[r], k = shapes[s][0], n = shapes[s][1];
            float *a = bench_floats(m * k), *c = bench_floats(m * n);
            for (unsigned i = 0; i < bench_run.threads; i++)
                u.scratch[i] = bench_memory(lathe_gemm_f32_scratch(m, n, k, true));
            u.weights = weights;
            u.stride = k * n;
            u.count = total / 4 / u.stride;
            u.next = 0;
            u.product = (struct lathe_gemm_f32){
                .m = m,
                .n = n,
                .k = k,
                .a = a,
                .a_row = k,
                .a_column = 1,
                .c = c,
                .ldc = n,
                .w_pairs = fip ? bias : NULL,
                .epilogue = {.bias = bias, .scale = 1, .activation = n == 3072 ? LATHE_ACT_GELU : LATHE_ACT_NONE}};
            double t = bench_best(run_linear, &u), rate = 2.0 * (double)m * (double)n * (double)k / t;
            printf("  %4zu x %4zu x %4zu%s %9.1f us %8.1f GFLOPS %5.1f %% %6.1f GB/s of weights\n", m, k, n,
                   n == 3072 ? " gelu" : "     ", t * 1e6, rate / 1e9, 100 * rate / peak,
                   (double)(k * n * 4) / t / 1e9);
            for (unsigned i = 0; i < bench_run.threads; i++)
                free(u.scratch[i]);
            free(a);
            free(c);
        }
    free(weights);
    free(bias);
}

/* ---- rows on one core */
struct row_user {
    struct lathe_kernels kernels;
    lathe_unary_f32_fn unary;
    size_t n;
    float *x, *y, *g;
};
static void run_unary(void *user) {
    struct row_user *u = user;
    u->unary(u->n, u->x, u->y);
}
static void run_norm(void *user) {
    struct row_user *u = user;
    u->kernels.layer_norm_f32(u->n / 768, 768, u->x, u->x + u->n, u->g, u->g, 1e-12f, u->y, NULL);
}
static void run_softmax(void *user) {
    struct row_user *u = user;
    u->kernels.softmax_f32(u->n / 128, 128, u->x, u->y);
}

static void row_kernels(const char *name, uint64_t bits) {
    if (!runs(name, bits))
        return;
    name = strstr(name, "__") + 2;
    struct row_user u = {.n = 768 * 16};
    lathe_kernels_select(bits, &u.kernels);
    u.x = bench_floats(2 * u.n);
    u.y = bench_floats(u.n);
    u.g = bench_floats(768);
    const struct {
        const char *name;
        lathe_unary_f32_fn fn;
    } unary[] = {{"gelu_f32", u.kernels.gelu_f32},      {"gelu_tanh_f32", u.kernels.gelu_tanh_f32},
                 {"silu_f32", u.kernels.silu_f32},      {"tanh_f32", u.kernels.tanh_f32},
                 {"exp_f32", u.kernels.exp_f32},        {"erf_f32", u.kernels.erf_f32},
                 {"sigmoid_f32", u.kernels.sigmoid_f32}};
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++)
        if (wanted(unary[i].name)) {
            u.unary = unary[i].fn;
            printf("%-8s %-16s %6.3f ns an element\n", name, unary[i].name,
                   bench_best(run_unary, &u) / (double)u.n * 1e9);
        }
    if (wanted("layer_norm"))
        printf("%-8s %-16s %6.3f ns an element, with residual, rows of 768\n", name, "layer_norm_f32",
               bench_best(run_norm, &u) / (double)u.n * 1e9);
    if (wanted("softmax"))
        printf("%-8s %-16s %6.3f ns an element, rows of 128\n", name, "softmax_f32",
               bench_best(run_softmax, &u) / (double)u.n * 1e9);
    free(u.x);
    free(u.y);
    free(u.g);
}

/* ---- attention: one head */
struct attention_user {
    lathe_attention_f32_fn fn;
    struct lathe_attention_f32_args args;
};
static void run_attention(void *user) {
    struct attention_user *u = user;
    u->fn(&u->args);
}

static void attention_of(const char *family, const char *name, void (*any)(void), uint64_t bits) {
    static const size_t lengths[] = {8, 16, 32, 64, 128, 256, 384, 512}, sizes[] = {64, 32};
    if (strncmp(family, "attention_", 10) != 0 || !runs(name, bits) || !wanted(family))
        return;
    lathe_attention_f32_fn fn = (lathe_attention_f32_fn)any;
    double peak = peak_of(bits);
    for (size_t d = 0; d < 3; d++) /* the last time with a bias for each query and key */
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            size_t s = lengths[i], w = 2304, h = sizes[d % 2], need = lathe_attention_f32_scratch(s, s, h, h),
                   q8 = lathe_attention_q8_scratch(s, s, h, h);
            float *qkv = bench_floats(s * w), *out = bench_floats(s * 768), *bias = bench_floats(s * s);
            struct attention_user u = {.fn = fn,
                                       .args = {.nq = s,
                                                .nk = s,
                                                .d = h,
                                                .dv = h,
                                                .q = qkv,
                                                .k = qkv + 768,
                                                .v = qkv + 1536,
                                                .out = out,
                                                .ldq = w,
                                                .ldk = w,
                                                .ldv = w,
                                                .ldo = 768,
                                                .bias = d == 2 ? bias : NULL,
                                                .ldb = s,
                                                .scale = 0.125f,
                                                .scratch = bench_memory(need > q8 ? need : q8)}};
            double t = bench_best(run_attention, &u), flops = 4.0 * (double)(s * s * h);
            printf("%-34s head of %zu%s, %3zu tokens %8.1f us %6.1f GFLOPS, %5.1f %% of the f32 peak\n", name, h,
                   d == 2 ? ", bias" : "", s, t * 1e6, flops / t / 1e9, 100 * flops / t / peak);
            free(bias);
            free(u.args.scratch);
            free(qkv);
            free(out);
        }
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            bench_run.threads = (unsigned)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0)
            bench_run.seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--level") == 0)
            level = argv[i + 1];
    }
    struct lathe_pool *pool = bench_pool();
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)                 gemm_tiles(#function, function, bits, mr, nr);
#define KERNEL_GEMM_F32_FIP(function, pack, sums, bits, mr, nr, best) gemm_tiles(#function, function, bits, mr, nr);
#define KERNEL(family, type, function, bits, bound)
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)                 linears(pool, #function, bits, false);
#define KERNEL_GEMM_F32_FIP(function, pack, sums, bits, mr, nr, best) linears(pool, #function, bits, true);
#define KERNEL(family, type, function, bits, bound)
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr) row_kernels(#function, bits);
#define KERNEL(family, type, function, bits, bound)
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
#define KERNEL_GEMM_F32(function, pack, bits, mr, nr)
#define KERNEL(family, type, function, bits, bound) attention_of(#family, #function, (void (*)(void))function, bits);
#include "kernels.def"
#undef KERNEL_GEMM_F32
#undef KERNEL
    lathe_pool_free(&pool);
    return 0;
}
