/* The mapped model and its external data: where files may lie, which ranges are read, and the hash. */
#include "model_file.h"
#include "sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "lathe-model-file-XXXXXX";
static struct lathe_diag diag;

static const char *at(const char *path) {
    static char text[4][512];
    static unsigned next;
    char *out = text[next++ % 4];
    snprintf(out, sizeof text[0], "%s/%s", root, path);
    return out;
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(at(path), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* models/a/b/m.onnx beside w.data; links to one, two and three folders above. */
static int make_folders(void **state) {
    (void)state;
    if (!mkdtemp(root))
        return -1;
    static const char *const folders[] = {"x", "x/models", "x/models/a", "x/models/a/b", "x/models/a/b/deep", "other"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(at(folders[i]), 0700))
            return -1;
    write_text("x/models/a/b/m.onnx", "abc");
    write_text("x/models/a/b/w.data", "0123456789");
    write_text("x/models/a/b/deep/w.data", "deep");
    write_text("x/models/two.data", "two levels");
    write_text("x/three.data", "three levels");
    write_text("other/far.data", "far");
    return symlink("../../two.data", at("x/models/a/b/two")) ||
                   symlink("../../../three.data", at("x/models/a/b/three")) ||
                   symlink("../../../../other/far.data", at("x/models/a/b/far"))
               ? -1
               : 0;
}

static int remove_folders(void **state) {
    (void)state;
    static const char *const files[] = {"x/models/a/b/m.onnx",
                                        "x/models/a/b/w.data",
                                        "x/models/a/b/deep/w.data",
                                        "x/models/two.data",
                                        "x/three.data",
                                        "other/far.data",
                                        "x/models/a/b/two",
                                        "x/models/a/b/three",
                                        "x/models/a/b/far",
                                        "x/models/a/b/deep",
                                        "x/models/a/b/big.data",
                                        "x/models/a/b",
                                        "x/models/a",
                                        "x/models",
                                        "x",
                                        "other",
                                        ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(at(files[i]));
    return 0;
}

struct row {
    const char *location, *offset, *length;
    unsigned need;
    const char *content; /* expected bytes; NULL: refused */
    const char *word;    /* in the message */
};

static void check_rows(const char *external_dir, const struct row *rows, size_t count) {
    struct lathe_model_file *file = NULL;
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_model_file_open(at("x/models/a/b/m.onnx"), external_dir, &file, &diag), LATHE_OK);
    for (size_t i = 0; i < count; i++) {
        const struct row *r = &rows[i];
        const void *data = NULL;
        lathe_diag_reset(&diag);
        enum lathe_status status =
            lathe_model_file_external(file, "weight", r->location, r->offset, r->length, r->need, &data, &diag);
        if (r->content) {
            if (status != LATHE_OK)
                fail_msg("'%s': %s", r->location, diag.text);
            assert_memory_equal(data, r->content, r->need);
        } else {
            if (status != LATHE_INVALID)
                fail_msg("'%s' %s %s was not refused", r->location, r->offset ? r->offset : "",
                         r->length ? r->length : "");
            assert_non_null(strstr(diag.text, "'weight'"));
            if (!strstr(diag.text, r->word) || !strstr(diag.text, r->location))
                fail_msg("the message lacks \"%s\" or the location: %s", r->word, diag.text);
        }
    }
    lathe_model_file_close(&file);
    assert_null(file);
}

static void locations(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"w.data", NULL, NULL, 10, "0123456789", NULL},
        {"./w.data", NULL, NULL, 4, "0123", NULL},
        {"deep/w.data", NULL, NULL, 4, "deep", NULL},
        {"deep/../w.data", NULL, NULL, 2, "01", NULL},
        {"two", NULL, NULL, 3, "two", NULL},
        {"three", NULL, NULL, 3, NULL, "two folders above"},
        {"far", NULL, NULL, 3, NULL, "two folders above"},
        {"../two.data", NULL, NULL, 3, NULL, "leaves"},
        {"deep/../../b/w.data", NULL, NULL, 3, NULL, "leaves"},
        {"/bin/sh", NULL, NULL, 3, NULL, "absolute"},
        {"deep", NULL, NULL, 3, NULL, "regular file"},
        {"none", NULL, NULL, 3, NULL, "No such file"},
        {"", NULL, NULL, 3, NULL, "empty"},
    };
    check_rows(NULL, rows, sizeof rows / sizeof *rows);
    static const struct row allowed[] = {
        {"far", NULL, NULL, 3, "far", NULL},      /* a link into the folder */
        {"far.data", NULL, NULL, 3, "far", NULL}, /* a file of it */
        {"three", NULL, NULL, 3, NULL, "two folders above"},
    };
    char other[512];
    snprintf(other, sizeof other, "%s/other", root);
    check_rows(other, allowed, sizeof allowed / sizeof *allowed);
}

static void ranges(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"w.data", "3", "4", 4, "3456", NULL},
        {"w.data", "10", "0", 0, "", NULL},
        {"w.data", "7", NULL, 4, NULL, "10 bytes"},
        {"w.data", "11", "0", 0, NULL, "10 bytes"},
        {"w.data", "0", "5", 4, NULL, "length 5"},
        {"w.data", "-1", NULL, 4, NULL, "'-1'"},
        {"w.data", "+1", NULL, 4, NULL, "'+1'"},
        {"w.data", "", NULL, 4, NULL, "plain number"},
        {"w.data", "0x1", NULL, 4, NULL, "'0x1'"},
        {"w.data", "1 ", NULL, 4, NULL, "plain number"},
        {"w.data", "9223372036854775808", NULL, 4, NULL, "plain number"},
        {"w.data", "18446744073709551616", NULL, 4, NULL, "plain number"},
        {"w.data", "9223372036854775807", NULL, 4, NULL, "10 bytes"},
        {"w.data", NULL, "-4", 4, NULL, "'-4'"},
    };
    check_rows(NULL, rows, sizeof rows / sizeof *rows);
}

/* A file past 2 and 4 GiB, made of holes, is mapped and not read. */
static void large_files(void **state) {
    (void)state;
    int fd = open(at("x/models/a/b/big.data"), O_CREAT | O_RDWR | O_TRUNC, 0600);
    assert_true(fd >= 0);
    const off_t end = ((off_t)5 << 30) + 4;
    if (ftruncate(fd, end) || pwrite(fd, "last", 4, end - 4) != 4) {
        print_message("the file system holds no sparse file of 5 GiB: %s\n", strerror(errno));
        close(fd);
        skip();
    }
    close(fd);
    static const struct row rows[] = {{"big.data", "5368709120", "4", 4, "last", NULL}};
    check_rows(NULL, rows, 1);
}

static void hash_is_that_of_the_bytes(void **state) {
    (void)state;
    struct lathe_model_file *file;
    const void *data;
    char text[65], alone[65];
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_model_file_open(at("x/models/a/b/m.onnx"), NULL, &file, &diag), LATHE_OK);
    lathe_model_file_hash_start(file);
    assert_int_equal(lathe_model_file_sha256(file, alone, &diag), LATHE_OK);
    assert_string_equal(alone, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    lathe_model_file_close(&file);
    assert_int_equal(lathe_model_file_open(at("x/models/a/b/m.onnx"), NULL, &file, &diag), LATHE_OK);
    lathe_model_file_hash_start(file);
    assert_int_equal(lathe_model_file_external(file, "t", "w.data", NULL, NULL, 4, &data, &diag), LATHE_OK);
    assert_int_equal(lathe_model_file_bytes(file), 13);
    assert_int_equal(lathe_model_file_sha256(file, text, &diag), LATHE_OK);
    struct lathe_sha256 hash;
    lathe_sha256_init(&hash);
    lathe_sha256_add(&hash, "abc0123456789", 13);
    lathe_sha256_hex(&hash, alone);
    assert_string_equal(text, alone);
    lathe_model_file_close(&file);
}

/* Every length around the block size, in one piece and in two. */
static void hash_in_pieces(void **state) {
    (void)state;
    static const struct {
        unsigned length;
        const char *hex;
    } known[] = {
        {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
    };
    char bytes[200], one[65], two[65];
    memset(bytes, 'a', sizeof bytes);
    for (unsigned length = 0; length < sizeof bytes; length++)
        for (unsigned cut = 0; cut <= length; cut += 13) {
            struct lathe_sha256 a, b;
            lathe_sha256_init(&a);
            lathe_sha256_add(&a, bytes, length);
            lathe_sha256_hex(&a, one);
            lathe_sha256_init(&b);
            b.plain = cut % 2 == 0; /* both ways on CPUs with instructions for it */
            lathe_sha256_add(&b, bytes, cut);
            lathe_sha256_add(&b, bytes + cut, length - cut);
            lathe_sha256_hex(&b, two);
            assert_string_equal(one, two);
            for (size_t i = 0; i < sizeof known / sizeof *known; i++)
                if (known[i].length == length)
                    assert_string_equal(one, known[i].hex);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locations),      cmocka_unit_test(ranges),
        cmocka_unit_test(large_files),    cmocka_unit_test(hash_is_that_of_the_bytes),
        cmocka_unit_test(hash_in_pieces),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
