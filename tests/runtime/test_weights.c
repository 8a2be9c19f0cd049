/* Weights read into memory of huge pages and weights left in the file's pages: the same results, the same refusals. */
#include "built_graph.h"

#include "plan.h"
#include "section_checksum.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS 700001 /* of 2 floats: more than one chunk, and no whole number of pages */

static struct built big;
static char path[] = "lathe-weights-XXXXXX";

static float cell(int64_t row, int64_t column) {
    return (float)((row * 2 + column) % 9);
}

static int set_up(void **state) {
    (void)state;
    char *text = malloc(ROWS * 4 + 1000), *p = text;
    if (!text)
        return -1;
    p += sprintf(p, "input %%ids : i64[batch, seq]\nconst %%table : f32[%d, 2] = {", ROWS);
    for (int64_t i = 0; i < ROWS * 2; i++) {
        *p++ = (char)('0' + i % 9);
        *p++ = ',';
    }
    sprintf(p - 1, "}\n%%words : f32[batch, seq, 2] = gather(%%table, %%ids) {axis=0}\noutput %%words as \"words\"\n");
    build_graph(&big, text, &(struct lathe_emit_options){.jobs = 1, .max_batch = 2, .max_seq = 8});
    free(text);
    int fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(path);
    free_built(&big);
    return 0;
}

static void write_file(const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void check_result(struct lathe_artifact *a) {
    struct lathe_session *s = NULL;
    int64_t ids[4] = {0, ROWS - 1, 524288, 350000};
    assert_int_equal(lathe_session_new(a, NULL, &s, NULL), LATHE_OK);
    assert_int_equal(lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){1, 4}, ids, NULL), LATHE_OK);
    assert_int_equal(lathe_session_run(s, NULL), LATHE_OK);
    const float *y = lathe_session_output(s, 0)->data;
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++)
            assert_float_equal(y[i * 2 + c], cell(ids[i], c), 0);
    lathe_session_close(&s);
}

static void test_both_ways(void **state) {
    (void)state;
    write_file(big.bytes, big.size);
    uint64_t bytes = big.artifact->by_kind[LATHE_SECTION_WEIGHTS]->raw_size;
    assert_true(bytes > LATHE_FORMAT_CHUNK);
    for (int i = 0; i < 4; i++) {
        struct lathe_artifact_options options = {.map_weights = i % 2, .skip_weight_checksum = i / 2};
        struct lathe_artifact *a = NULL;
        assert_int_equal(lathe_artifact_open(path, &options, &a, NULL), LATHE_OK);
        assert_int_equal(a->weight_memory != NULL, !options.map_weights && lathe_weights_worth_reading(bytes));
        assert_ptr_equal(a->weights,
                         a->weight_memory ? a->weight_memory : a->bytes + a->by_kind[LATHE_SECTION_WEIGHTS]->offset);
        assert_int_equal((uintptr_t)a->weights % 64, 0);
        assert_int_equal(a->fd, -1);
        check_result(a);
        lathe_artifact_close(&a);
    }
}

/* A process that may not have huge pages is served by the mapping. */
static void test_no_huge_pages(void **state) {
    (void)state;
    write_file(big.bytes, big.size);
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
        skip();
    struct lathe_artifact *a = NULL;
    assert_int_equal(lathe_artifact_open(path, NULL, &a, NULL), LATHE_OK);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    assert_null(a->weight_memory);
    check_result(a);
    lathe_artifact_close(&a);
}

static void test_damage(void **state) {
    (void)state;
    const struct lathe_fmt_section *s = big.artifact->by_kind[LATHE_SECTION_WEIGHTS];
    uint8_t *copy = malloc(big.size);
    assert_non_null(copy);
    memcpy(copy, big.bytes, big.size);
    const uint64_t at[] = {0, LATHE_FORMAT_CHUNK - 1, LATHE_FORMAT_CHUNK, s->raw_size - 1};
    static struct lathe_diag why;
    for (unsigned i = 0; i < 8; i++) {
        copy[s->offset + at[i / 2]] ^= 1;
        write_file(copy, big.size);
        copy[s->offset + at[i / 2]] ^= 1;
        struct lathe_artifact *a = NULL;
        struct lathe_artifact_options options = {.map_weights = i % 2};
        assert_int_equal(lathe_artifact_open(path, &options, &a, &why), LATHE_INVALID);
        assert_null(a);
        assert_non_null(strstr(why.text, "WEIGHTS"));
    }
    free(copy);
}

/* The checksum of what was read is the checksum of what is there, and a file that ends early is told. */
static void test_section_read(void **state) {
    (void)state;
    const uint64_t sizes[] = {0, 1, 4096, LATHE_FORMAT_CHUNK, LATHE_FORMAT_CHUNK + 1};
    write_file(big.bytes, big.size);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint8_t *to = malloc(big.size);
    assert_non_null(to);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned threads = 1; threads <= 3; threads++) {
            uint64_t sum = 0;
            memset(to, 0xee, big.size);
            assert_int_equal(lathe_section_read(fileno(f), 64, to, sizes[i], threads, &sum), 0);
            assert_memory_equal(to, (const uint8_t *)big.bytes + 64, sizes[i]);
            assert_int_equal(to[sizes[i]], 0xee);
            assert_true(sum == lathe_section_checksum((const uint8_t *)big.bytes + 64, sizes[i], threads));
            assert_int_equal(lathe_section_read(fileno(f), 64, to, sizes[i], threads, NULL), 0);
        }
    uint64_t sum = 7;
    assert_int_equal(lathe_section_read(fileno(f), 64, to, big.size - 63, 2, &sum), -1);
    assert_int_equal(lathe_section_read(-1, 64, to, 100, 1, &sum), EBADF);
    assert_true(sum == 7);
    free(to);
    fclose(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_no_huge_pages),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_section_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
