/* Damaged model files: each case of cases/ cut at every length and changed at random places. Nothing may crash, and a
 * failure must come with a message. Run with the folder of the data as argument, and a seed as second. */
#include "stages.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define CHANGES 60 /* a model */

static const char *folder = ".";
static uint64_t seed = 1;
static char scratch[64]; /* path of a file in memory */
static int scratch_fd;
static struct lathe_diag diag;

static uint64_t next_random(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static enum lathe_status import_bytes(const uint8_t *bytes, size_t size) {
    struct lathe_model_file *file = NULL;
    struct lathe_graph *graph = NULL;
    assert_int_equal(ftruncate(scratch_fd, 0), 0);
    assert_int_equal(pwrite(scratch_fd, bytes, size, 0), (ssize_t)size);
    lathe_diag_reset(&diag);
    enum lathe_status status = lathe_import_onnx(scratch, NULL, &file, &graph, &diag);
    if (status == LATHE_OK) {
        assert_int_equal(lathe_graph_check(graph, &diag), LATHE_OK);
        lathe_graph_free(&graph);
        lathe_model_file_close(&file);
    } else {
        assert_true(diag.text[0] != 0 && status != LATHE_INTERNAL);
        assert_null(graph);
        assert_null(file);
    }
    return status;
}

static size_t read_model(const char *name, uint8_t **bytes) {
    char path[1024];
    snprintf(path, sizeof path, "%s/cases/%s/model.onnx", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    *bytes = malloc(size + 16);
    assert_non_null(*bytes);
    assert_int_equal(fread(*bytes, 1, size, file), size);
    fclose(file);
    return size;
}

static void change(uint8_t *bytes, size_t *size) {
    size_t place = next_random() % *size;
    if (next_random() % 2) /* near the ends, where the structure is */
        place =
            next_random() % 2 ? place % (*size < 160 ? *size : 160) : *size - 1 - place % (*size < 160 ? *size : 160);
    switch (next_random() % 4) {
    case 0:
        bytes[place] = (uint8_t)next_random();
        break;
    case 1:
        bytes[place] ^= (uint8_t)(1u << next_random() % 8);
        break;
    case 2:
        memmove(bytes + place, bytes + place + 1, *size - place - 1);
        --*size;
        break;
    default:
        memmove(bytes + place + 1, bytes + place, *size - place);
        bytes[place] = (uint8_t)next_random();
        ++*size;
        break;
    }
}

typedef void (*visit_fn)(const char *name, const uint8_t *bytes, size_t size);

static void for_models(visit_fn visit) {
    char path[1024];
    struct dirent **list;
    snprintf(path, sizeof path, "%s/cases", folder);
    int count = scandir(path, &list, NULL, alphasort);
    assert_true(count > 10);
    for (int i = 0; i < count; i++) {
        uint8_t *bytes;
        if (list[i]->d_name[0] != '.') {
            size_t size = read_model(list[i]->d_name, &bytes);
            visit(list[i]->d_name, bytes, size);
            free(bytes);
        }
        free(list[i]);
    }
    free(list);
}

static void cut_one(const char *name, const uint8_t *bytes, size_t size) {
    /* All short prefixes; of the long rest, where weights lie, some. */
    for (size_t n = 0; n < size; n += n < 400 || n + 200 > size ? 1 : 1 + size / 20)
        /* What is cut before an opset import (field 8) can be a whole model: com.microsoft needs none. */
        if (import_bytes(bytes, n) == LATHE_OK && bytes[n] != 0x42)
            fail_msg("%s cut to %zu of %zu bytes was taken", name, n, size);
}

static void change_one(const char *name, const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size + 64);
    assert_non_null(copy);
    for (int i = 0; i < CHANGES; i++) {
        size_t n = size;
        memcpy(copy, bytes, size);
        for (uint64_t k = 1 + next_random() % 8; k; k--)
            change(copy, &n);
        (void)import_bytes(copy, n);
    }
    free(copy);
    (void)name;
}

static void cut_models_are_refused(void **state) {
    (void)state;
    for_models(cut_one);
}

static void changed_models_do_no_harm(void **state) {
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for_models(change_one);
}

static int make_scratch(void **state) {
    (void)state;
    scratch_fd = memfd_create("damaged model", 0);
    snprintf(scratch, sizeof scratch, "/proc/self/fd/%d", scratch_fd);
    return scratch_fd < 0 ? -1 : 0;
}

static int close_scratch(void **state) {
    (void)state;
    return close(scratch_fd);
}

int main(int argc, char **argv) {
    if (argc > 1)
        folder = argv[1];
    if (argc > 2 && strtoull(argv[2], NULL, 10))
        seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_models_are_refused),
        cmocka_unit_test(changed_models_do_no_harm),
    };
    return cmocka_run_group_tests(tests, make_scratch, close_scratch);
}
