/* oneDNN's f32 matmul beside our product, on the same shapes and threads: says whether a row of oneDNN's would pay.
 *
 *   bench_onednn [--threads N] [--seconds X]
 *
 * The two take turns, best of many runs each; oneDNN packs its weights once, in the layout it asks for.
 *
 * Why no row of kernels.def is oneDNN's: on an EPYC of the Zen 4 class, 2 threads, peak 236 GFLOPS, 2.6.3 against ours
 * (AVX-512) gave for 768 x 3072 at 1, 8, 16, 64, 128 and 512 rows 37 : 49, 152 : 214, 198 : 209, 219 : 223, 222 : 220,
 * 212 : 218 GFLOPS, and for 384 x 384 21 : 52, 83 : 209, 96 : 207, 143 : 206, 180 : 194, 220 : 218. */
#include "cpu.h"
#include "gemm_drive.h"
#include "threads.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != dnnl_success) {                                                                                  \
            fprintf(stderr, "oneDNN refuses: %s\n", #call);                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *memory(size_t floats) {
    float *p = aligned_alloc(64, (floats * 4 + 63) / 64 * 64 + 64);
    if (!p)
        exit(1);
    uint32_t seed = 1;
    for (size_t i = 0; i < floats; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed * 0x1p-33f;
    }
    return p;
}

struct theirs {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_memory_t memories[4];
    dnnl_exec_arg_t args[4];
};

/* With bias; the weights are reordered into the layout that oneDNN prefers. */
static void theirs_make(struct theirs *t, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float *a, float *w, float *bias,
                        float *c) {
    dnnl_memory_desc_t src, weights, any, b, dst;
    dnnl_dims_t ds = {m, k}, dw = {k, n}, db = {1, n}, dd = {m, n};
    TRY(dnnl_engine_create(&t->engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&t->stream, t->engine, dnnl_stream_default_flags));
    TRY(dnnl_memory_desc_init_by_tag(&src, 2, ds, dnnl_f32, dnnl_ab));
    TRY(dnnl_memory_desc_init_by_tag(&weights, 2, dw, dnnl_f32, dnnl_ab));
    TRY(dnnl_memory_desc_init_by_tag(&any, 2, dw, dnnl_f32, dnnl_format_tag_any));
    TRY(dnnl_memory_desc_init_by_tag(&b, 2, db, dnnl_f32, dnnl_ab));
    TRY(dnnl_memory_desc_init_by_tag(&dst, 2, dd, dnnl_f32, dnnl_ab));
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    TRY(dnnl_matmul_desc_init(&desc, &src, &any, &b, &dst));
    TRY(dnnl_primitive_desc_create(&pd, &desc, NULL, t->engine, NULL));
    TRY(dnnl_primitive_create(&t->matmul, pd));
    const dnnl_memory_desc_t *wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_t plain;
    TRY(dnnl_memory_create(&plain, &weights, t->engine, w));
    TRY(dnnl_memory_create(&t->memories[0], &src, t->engine, a));
    TRY(dnnl_memory_create(&t->memories[1], wanted, t->engine, DNNL_MEMORY_ALLOCATE));
    TRY(dnnl_memory_create(&t->memories[2], &b, t->engine, bias));
    TRY(dnnl_memory_create(&t->memories[3], &dst, t->engine, c));
    dnnl_primitive_desc_t reorder_pd;
    dnnl_primitive_t reorder;
    TRY(dnnl_reorder_primitive_desc_create(&reorder_pd, &weights, t->engine, wanted, t->engine, NULL));
    TRY(dnnl_primitive_create(&reorder, reorder_pd));
    dnnl_exec_arg_t move[2] = {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, t->memories[1]}};
    TRY(dnnl_primitive_execute(reorder, t->stream, 2, move));
    TRY(dnnl_stream_wait(t->stream));
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(reorder_pd);
    dnnl_memory_destroy(plain);
    dnnl_primitive_desc_destroy(pd);
    static const int names[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
    for (int i = 0; i < 4; i++)
        t->args[i] = (dnnl_exec_arg_t){names[i], t->memories[i]};
}

static void theirs_free(struct theirs *t) {
    dnnl_primitive_destroy(t->matmul);
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(t->memories[i]);
    dnnl_stream_destroy(t->stream);
    dnnl_engine_destroy(t->engine);
}

struct ours {
    struct lathe_kernels kernels;
    struct lathe_gemm_f32 product;
    void *scratch[64];
};

static void ours_part(void *user, const struct lathe_team *team) {
    struct ours *o = user;
    lathe_gemm_f32_team(&o->kernels, &o->product, team, o->scratch[team->index]);
}

int main(int argc, char **argv) {
    static const size_t shapes[][2] = {{768, 768}, {768, 3072}, {3072, 768}, {384, 384}};
    static const size_t rows[] = {1, 8, 16, 64, 128, 512};
    struct lathe_pool_options options = {0};
    double seconds = 0.1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            options.threads = (unsigned)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
    }
    struct lathe_pool *pool;
    struct lathe_diag diag = {0};
    if (lathe_pool_new(&options, &pool, &diag) != LATHE_OK || lathe_pool_threads(pool) > 64)
        return 1;
    unsigned threads = lathe_pool_threads(pool);
    char text[16];
    snprintf(text, sizeof text, "%u", threads);
    setenv("OMP_NUM_THREADS", text, 1);
    const dnnl_version_t *version = dnnl_version();
    printf("oneDNN %d.%d.%d, %u threads; GFLOPS\n%-22s %8s %8s\n", version->major, version->minor, version->patch,
           threads, "rows x k x n", "oneDNN", "ours");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            size_t m = rows[r], k = shapes[s][0], n = shapes[s][1];
            float *a = memory(m * k), *w = memory(k * n), *p = memory(k * n), *bias = memory(n), *c = memory(m * n);
            lathe_pack_f32_n16(w, k, n, n, false, 0, n / 16, p);
            struct theirs t;
            theirs_make(&t, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, a, w, bias, c);
            struct ours o;
            lathe_kernels_select(lathe_cpu_bits(), &o.kernels);
            o.product = (struct lathe_gemm_f32){.m = m,
                                                .n = n,
                                                .k = k,
                                                .a = a,
                                                .a_row = k,
                                                .a_column = 1,
                                                .panels = p,
                                                .c = c,
                                                .ldc = n,
                                                .epilogue = {.bias = bias, .scale = 1}};
            for (unsigned i = 0; i < threads; i++)
                o.scratch[i] = memory(lathe_gemm_f32_scratch(m, n, k, true) / 4);
            double best[2] = {1e9, 1e9}, end = now() + 2 * seconds;
            do {
                for (int who = 0; who < 2; who++) {
                    double start = now();
                    if (who == 0) {
                        TRY(dnnl_primitive_execute(t.matmul, t.stream, 4, t.args));
                        TRY(dnnl_stream_wait(t.stream));
                    } else {
                        lathe_pool_run(pool, ours_part, &o);
                    }
                    double took = now() - start;
                    best[who] = took < best[who] ? took : best[who];
                }
            } while (now() < end);
            double work = 2e-9 * (double)(m * n * k);
            printf("%4zu x %4zu x %4zu %12.1f %8.1f\n", m, k, n, work / best[0], work / best[1]);
            for (unsigned i = 0; i < threads; i++)
                free(o.scratch[i]);
            theirs_free(&t);
            free(a);
            free(w);
            free(p);
            free(bias);
            free(c);
        }
    lathe_pool_free(&pool);
    return 0;
}
