/* What is written: the same bytes whatever the number of jobs, all of it or nothing, weights as FORMAT.md lays them
 * out, memory plans near the least possible. */
#include "built_graph.h"

#include "known_answer.h"
#include "lower.h"
#include "plan.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "lathe-emit-XXXXXX";

static struct lathe_graph *parsed(const char *text) {
    static struct lathe_diag why;
    lathe_diag_reset(&why);
    struct lathe_graph *g = NULL;
    if (lathe_graph_parse(text, &g, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    return g;
}

static unsigned entries_in(const char *path) {
    DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void test_same_bytes(void **state) {
    (void)state;
    void *first = NULL;
    size_t first_size = 0;
    for (int jobs = 0; jobs < 5; jobs++) {
        struct lathe_graph *g = parsed(small_encoder);
        void *bytes;
        size_t size;
        struct lathe_emit_options options = {.jobs = jobs, .known_answer = true};
        assert_int_equal(lathe_emit_memory(g, &options, &bytes, &size, NULL, NULL), LATHE_OK);
        if (!first) {
            first = bytes;
            first_size = size;
        } else {
            assert_int_equal(size, first_size);
            assert_memory_equal(bytes, first, size);
            free(bytes);
        }
        lathe_graph_free(&g);
    }
    free(first);
}

static void test_compressed_weights(void **state) {
    (void)state;
    struct built raw, packed;
    build_graph(&raw, small_encoder, &(struct lathe_emit_options){.jobs = 1, .known_answer = true});
    build_graph(&packed, small_encoder,
                &(struct lathe_emit_options){.jobs = 1, .compress_level = 19, .known_answer = true});
    assert_int_equal(packed.artifact->by_kind[LATHE_SECTION_WEIGHTS]->codec, LATHE_CODEC_ZSTD);
    assert_int_equal(raw.artifact->by_kind[LATHE_SECTION_WEIGHTS]->offset % LATHE_FORMAT_PAGE, 0);
    assert_int_equal(raw.artifact->weight_bytes, packed.artifact->weight_bytes);
    assert_memory_equal(raw.artifact->weights, packed.artifact->weights, raw.artifact->weight_bytes);
    struct built *both[2] = {&raw, &packed};
    for (int i = 0; i < 2; i++) {
        struct lathe_known_answer_result r;
        assert_int_equal(lathe_known_answer_replay(both[i]->artifact, NULL, &r, NULL), LATHE_OK);
        assert_true(r.present && r.compared > 100 && r.max_error < 1e-4);
        assert_int_equal(
            lathe_known_answer_replay(both[i]->artifact, &(struct lathe_session_options){.plain_c = true}, &r, NULL),
            LATHE_OK);
        assert_true(r.max_error == 0);
        free_built(both[i]);
    }
}

static double error_between(enum lathe_dtype dtype, uint16_t want, uint16_t got) {
    struct lathe_known_answer_result r = {0};
    lathe_known_answer_compare(dtype, (const uint8_t *)&want, (const uint8_t *)&got, 2, &r);
    return r.max_error;
}

/* Elements of 16 bits count by their value, and one step of their type is none. */
static void test_narrow_answers(void **state) {
    (void)state;
    static const enum lathe_dtype types[] = {LATHE_F16, LATHE_BF16};
    for (int i = 0; i < 2; i++) {
        enum lathe_dtype t = types[i];
        uint16_t one = t == LATHE_F16 ? 0x3c00 : 0x3f80, infinite = t == LATHE_F16 ? 0x7c00 : 0x7f80;
        double step = t == LATHE_F16 ? 0x1p-10 : 0x1p-7;
        assert_true(error_between(t, one, one) == 0);
        assert_true(error_between(t, one, (uint16_t)(one + 1)) == 0);
        assert_true(error_between(t, (uint16_t)(one + 1), one) == 0);
        assert_true(error_between(t, one | 0x8000, (uint16_t)(one + 1) | 0x8000) == 0);
        assert_true(error_between(t, 0, 0x8000) == 0);
        assert_true(error_between(t, 1, 0x8000) == 0);
        assert_true(error_between(t, one, (uint16_t)(one + 2)) == 2 * step);
        assert_true(error_between(t, one, one | 0x8000) == 2);
        assert_true(error_between(t, infinite, infinite) == 0);
        assert_true(isinf(error_between(t, one, infinite)));
        assert_true(isnan(error_between(t, infinite + 1, one)));
    }
}

/* Element (k, n) of a packed weight, from concat, transposed and half-precision parts whose widths are no multiples. */
static void test_packed_weight(void **state) {
    (void)state;
    struct built b;
    build_graph(
        &b,
        "input %x : f32[batch, 2]\n"
        "const %a : f32[3, 2] = {1, 2, 3, 4, 5, 6}\n" /* [n][k] */
        "const %c : f16[2, 2] = {0.5, -2, 65504, 0.000000059604644775390625}\n"
        "const %d : bf16[13, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, "
        "23, 24, 25, 26}\n"
        "%ct : f16[2, 2] = transpose(%c) {perm=[1, 0]}\n"
        "%cf : f32[2, 2] = cast(%ct) {to=1}\n"
        "%df : f32[13, 2] = cast(%d) {to=1}\n"
        "%w : f32[18, 2] = concat(%a, %cf, %df) {axis=0}\n"
        "%y : f32[batch, 18] = linear(%x, %w) {trans_b=1}\n"
        "output %y as \"y\"\n",
        NULL);
    const struct lathe_plan *p = &b.artifact->plan;
    assert_int_equal(p->head->step_count, 1); /* nothing but the product is computed */
    const struct lathe_fmt_value *w = &p->values[p->operands[p->steps[0].first_operand + 1]];
    assert_int_equal(w->packing, 1);
    assert_int_equal(w->bytes, 2 * 2 * 16 * 4);
    const float *data = (const float *)(b.artifact->weights + w->offset);
    for (int n = 0; n < 32; n++)
        for (int k = 0; k < 2; k++) {
            float want = n < 3    ? (float)(n * 2 + k + 1)
                         : n == 3 ? (k ? 65504.0f : 0.5f)
                         : n == 4 ? (k ? 0x1p-24f : -2.0f)
                         : n < 18 ? (float)((n - 5) * 2 + k + 1)
                                  : 0.0f;
            float got = data[n / 16 * 2 * 16 + k * 16 + n % 16];
            if (got != want)
                fail_msg("(%d, %d) is %g, expected %g", k, n, (double)got, (double)want);
        }
    free_built(&b);
}

/* The same for bf16: f32 is rounded half to even and stays finite, bf16 keeps its bits, odd k is padded. */
static void test_packed_bf16(void **state) {
    (void)state;
    struct built b;
    build_graph(&b,
                "input %x : f32[batch, 3]\n"
                "const %a : f32[2, 3] = {1.00390625, 1.01171875, 1.005, -3.4028234e38, 0.1, 3}\n" /* [n][k] */
                "const %c : f16[3, 1] = {0.5, 0.0999755859375, 65504}\n"                          /* [k][n] */
                "const %d : bf16[14, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, "
                "22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42}\n"
                "%ct : f16[1, 3] = transpose(%c) {perm=[1, 0]}\n"
                "%cf : f32[1, 3] = cast(%ct) {to=1}\n"
                "%df : f32[14, 3] = cast(%d) {to=1}\n"
                "%w : f32[17, 3] = concat(%a, %cf, %df) {axis=0}\n"
                "%y : f32[batch, 17] = linear_bf16(%x, %w) {trans_b=1}\n"
                "output %y as \"y\"\n",
                NULL);
    static const float first[3][3] = {
        {1.0f, 1.015625f, 1.0078125f}, {-0x1.fep127f, 0x1.9ap-4f, 3}, {0.5f, 0x1.9ap-4f, 65536}};
    const struct lathe_plan *p = &b.artifact->plan;
    assert_int_equal(p->head->step_count, 1);
    const struct lathe_fmt_value *w = &p->values[p->operands[p->steps[0].first_operand + 1]];
    assert_int_equal(w->packing, 2);
    assert_int_equal(w->dtype, LATHE_BF16);
    assert_int_equal(w->bytes, 2 * 4 * 16 * 2);
    const uint16_t *data = (const uint16_t *)(const void *)(b.artifact->weights + w->offset);
    for (int n = 0; n < 32; n++)
        for (int k = 0; k < 4; k++) {
            float want = k == 3 || n >= 17 ? 0 : n < 3 ? first[n][k] : (float)((n - 3) * 3 + k + 1), got;
            uint32_t bits = (uint32_t)data[n / 16 * 64 + k / 2 * 32 + n % 16 * 2 + k % 2] << 16;
            memcpy(&got, &bits, sizeof got);
            if (got != want)
                fail_msg("(%d, %d) is %g, expected %g", k, n, (double)got, (double)want);
        }
    free_built(&b);
}

static void test_all_or_nothing(void **state) {
    (void)state;
    static struct lathe_diag why;
    struct lathe_emit_options options = {.jobs = 1, .known_answer = true};
    char path[256];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.lathe", folder);
    struct lathe_graph *g = parsed(small_encoder);
    assert_int_equal(lathe_emit_file(g, &options, path, NULL, NULL), LATHE_OK);
    assert_int_equal(entries_in(folder), 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    mode_t mask = umask(022);
    umask(mask);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    lathe_graph_free(&g);

    /* over the old file; then into folders that are not there, are files, are names of folders */
    g = parsed(small_encoder);
    assert_int_equal(lathe_emit_file(g, &options, path, NULL, NULL), LATHE_OK);
    lathe_graph_free(&g);
    const char *const bad[] = {"%s/none/model.lathe", "%s/model.lathe/x", "%s", "%s/"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char wrong[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(wrong, sizeof wrong, bad[i], folder);
#pragma GCC diagnostic pop
        g = parsed(small_encoder);
        lathe_diag_reset(&why);
        assert_int_equal(lathe_emit_file(g, &options, wrong, NULL, &why), LATHE_IO);
        assert_non_null(strstr(why.text, wrong));
        lathe_graph_free(&g);
    }
    assert_int_equal(entries_in(folder), 1);

    /* a file system that takes no more: the old file stays as it was */
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
        g = parsed(small_encoder);
        lathe_diag_reset(&why);
        _exit(lathe_emit_file(g, &options, path, NULL, &why) == LATHE_IO && strstr(why.text, path) ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(entries_in(folder), 1);
    struct stat now;
    assert_int_equal(stat(path, &now), 0);
    assert_int_equal(now.st_size, st.st_size);
    assert_int_equal(unlink(path), 0);

    /* whatever ends the process, nothing is left but a whole artifact */
    const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    for (int round = 0; round < 30; round++) {
        pid = fork();
        if (pid == 0) {
            for (;;) {
                g = parsed(small_encoder);
                if (lathe_emit_file(g, &options, path, NULL, NULL) != LATHE_OK)
                    _exit(1);
                lathe_graph_free(&g);
            }
        }
        usleep(2000 + (useconds_t)round * 700);
        kill(pid, signals[round % 3]);
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
        struct lathe_artifact *a = NULL;
        if (access(path, F_OK) == 0)
            assert_int_equal(lathe_artifact_open(path, NULL, &a, NULL), LATHE_OK);
        lathe_artifact_close(&a);
        if (signals[round % 3] != SIGKILL) /* SIGKILL may come between the two names */
            assert_true(entries_in(folder) <= 1u);
        unlink(path);
        DIR *d = opendir(folder);
        for (struct dirent *e; (e = readdir(d));)
            if (strstr(e->d_name, ".tmp"))
                unlinkat(dirfd(d), e->d_name, 0);
        closedir(d);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void test_refused_graphs(void **state) {
    (void)state;
    static struct lathe_diag why;
    assert_int_equal(try_build("input %x : f32[2*n, 4]\n%y : f32[2*n, 4] = tanh(%x)\noutput %y as \"y\"\n", NULL, &why),
                     LATHE_UNSUPPORTED);
    assert_int_equal(why.message, LATHE_MSG_LOWER_SYMBOL);
    assert_non_null(strstr(why.text, "n"));
    assert_int_equal(try_build(small_encoder, &(struct lathe_emit_options){.max_batch = INT64_C(1) << 40}, &why),
                     LATHE_UNSUPPORTED);
    assert_int_equal(why.message, LATHE_MSG_LOWER_LIMIT);
}

/* The same shapes with other masks: the rows kept change from run to run. */
static void test_packed_rows(void **state) {
    (void)state;
    struct built b;
    build_graph(&b,
                "input %ids : i64[batch, seq]\n"
                "input %mask : i64[batch, seq]\n"
                "const %t : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
                "%x : f32[batch, seq, 2] = gather(%t, %ids) {axis=0}\n"
                "%keys : bool[batch, seq] = cast(%mask) {to=9}\n"
                "%map : i32[4*batch+2*batch*seq] = row_map(%keys) {masked_row=1}\n"
                "%r : f32[rows, 2] = pack_rows(%x, %map)\n"
                "%y : f32[rows, 2] = neg(%r)\n"
                "%u : f32[batch, seq, 2] = unpack_rows(%y, %map)\n"
                "output %u as \"u\"\n",
                &(struct lathe_emit_options){.max_batch = 4, .max_seq = 16});
    assert_int_equal(b.artifact->plan.head->prologue_steps, 2);
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct lathe_session *s = NULL;
        assert_int_equal(
            lathe_session_new(b.artifact,
                              &(struct lathe_session_options){.threads = threads, .poison = 0x7f * (threads - 1)}, &s,
                              NULL),
            LATHE_OK);
        int64_t ids[12], mask[12];
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 12; i++) {
                ids[i] = (i + round) % 5;
                mask[i] = round == 5 ? 0 : (i * 7 + round * 3) % 4 > 0;
            }
            assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){3, 4}, ids, NULL), LATHE_OK);
            assert_int_equal(lathe_session_set_input(s, 1, LATHE_I64, 2, (int64_t[]){3, 4}, mask, NULL), LATHE_OK);
            assert_int_equal(lathe_session_run(s, NULL), LATHE_OK);
            const float *y = lathe_session_output(s, 0)->data;
            for (int i = 0; i < 24; i++)
                assert_true(y[i] == (mask[i / 2] ? -(float)(ids[i / 2] * 2 + i % 2 + 1) : 0.0f));
        }
        lathe_session_close(&s);
    }
    free_built(&b);
}

/* Random lives and sizes: no two buffers alive at once overlap, and the peak is at most 1.1 x what is alive. */
static void test_memory_plan(void **state) {
    (void)state;
    uint64_t seed = 88172645463325252u;
    double worst = 0, sum = 0;
    for (int round = 0; round < 60; round++) {
        struct lathe_lowered l = {.buffers.each = sizeof(struct lathe_buffer), .steps.count = 60};
        /* like an encoder: each step makes one tensor of a few sizes that lives for a few steps, some for many */
        for (uint32_t i = 0; i < 60; i++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            uint32_t life = 1 + (uint32_t)(seed >> 8) % 3 + ((seed >> 20) % 6 == 0 ? (uint32_t)(seed >> 30) % 20 : 0);
            struct lathe_buffer b = {.bytes = (1 + (seed >> 40) % 4) * 768 * (round % 2 ? 1 : 1 + (seed >> 50) % 3),
                                     .first = i,
                                     .last = i + life > 60 ? 60 : i + life};
            lathe_table_add(&l.buffers, &b, 1);
        }
        assert_int_equal(lathe_plan_memory(&l), LATHE_OK);
        const struct lathe_buffer *b = l.buffers.data;
        for (uint32_t i = 0; i < 60; i++) {
            assert_true(b[i].offset % 64 == 0 && b[i].offset + b[i].bytes <= l.arena_bytes);
            for (uint32_t k = 0; k < i; k++)
                if (b[i].first <= b[k].last && b[k].first <= b[i].last)
                    assert_true(b[i].offset >= b[k].offset + b[k].bytes || b[k].offset >= b[i].offset + b[i].bytes);
        }
        double ratio = (double)l.arena_bytes / (double)l.alive_bytes;
        worst = ratio > worst ? ratio : worst;
        sum += ratio;
        lathe_table_free(&l.buffers);
    }
    print_message("arena over bytes alive: mean %.3f, worst %.3f\n", sum / 60, worst);
    assert_true(worst <= 1.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),     cmocka_unit_test(test_compressed_weights),
        cmocka_unit_test(test_narrow_answers), cmocka_unit_test(test_packed_weight),
        cmocka_unit_test(test_packed_bf16),    cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_refused_graphs), cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_memory_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
