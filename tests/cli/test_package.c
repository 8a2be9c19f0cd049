/* Packages: the same bytes every time, opened as the artifact inside, and refused when any byte is not as written.
 *     test_package LATHE MODEL.onnx */
#include "package.h"
#include "plan.h"
#include "tar_gz.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *lathe, *source;
static char folder[64], artifact[128], package[128], other[128];
static struct lathe_diag diag;

static void in_folder(char *path, const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
}

static uint8_t *read_whole(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*size + 16);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

static void write_whole(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static const char *put(const char *name, const char *text) {
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];
    in_folder(path, name);
    write_whole(path, text, strlen(text));
    return path;
}

static int set_up(void **state) {
    (void)state;
    char command[2048];
    snprintf(folder, sizeof folder, "lathe-package-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    in_folder(artifact, "model.lathe");
    in_folder(package, "model.tar.gz");
    in_folder(other, "other.tar.gz");
    snprintf(command, sizeof command, "'%s' compile '%s' -o %s --target generic --no-verify >%s/out", lathe, source,
             artifact, folder);
    return system(command);
}

static int clean_up(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static enum lathe_status write_package(const char *path, const char *tokenizer, const char *labels, int level) {
    struct lathe_package_options options = {
        .artifact = artifact, .tokenizer = tokenizer, .labels = labels, .level = level};
    json_t *manifest;
    lathe_diag_reset(&diag);
    enum lathe_status status = lathe_package_write(path, &options, &manifest, &diag);
    assert_int_equal(status == LATHE_OK, manifest != NULL);
    json_decref(manifest);
    return status;
}

static enum lathe_status open_package(const char *path) {
    struct lathe_model m;
    lathe_diag_reset(&diag);
    enum lathe_status status = lathe_model_open(path, NULL, &m, &diag);
    if (status == LATHE_OK)
        lathe_model_close(&m);
    assert_null(m.artifact);
    return status;
}

static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}";

static void same_bytes(void **state) {
    (void)state;
    const char *tokenizer = put("tokenizer.json", tokenizer_text), *labels = put("labels.txt", "good\nbad\n");
    assert_int_equal(write_package(package, tokenizer, labels, 1), LATHE_OK);
    sleep(1); /* another second: times in it would show */
    const char *json = put("config.json", "{\"id2label\": {\"0\": \"good\", \"1\": \"bad\"}}");
    assert_int_equal(write_package(other, put("renamed.json", tokenizer_text), json, 1), LATHE_OK);
    size_t a, b;
    uint8_t *one = read_whole(package, &a), *two = read_whole(other, &b);
    assert_int_equal(a, b);
    assert_memory_equal(one, two, a);
    free(one);
    free(two);
}

static void opens(void **state) {
    (void)state;
    struct lathe_model m, plain;
    for (int level = 0; level <= 9; level += 3) {
        assert_int_equal(
            write_package(package, put("tokenizer.json", tokenizer_text), put("labels.txt", "good\nbad\n"), level),
            LATHE_OK);
        assert_int_equal(lathe_model_open(package, NULL, &m, NULL), LATHE_OK);
        assert_int_equal(lathe_model_open(artifact, NULL, &plain, NULL), LATHE_OK);
        assert_null(plain.manifest);
        assert_int_equal(m.artifact->size, plain.artifact->size);
        assert_memory_equal(m.artifact->bytes, plain.artifact->bytes, (size_t)plain.artifact->size);
        const json_t *files = json_object_get(m.manifest, "files");
        assert_int_equal(json_array_size(files), 3);
        assert_string_equal(json_string_value(json_object_get(json_array_get(files, 1), "name")), "tokenizer.json");
        assert_int_equal(json_integer_value(json_object_get(json_array_get(files, 1), "bytes")),
                         sizeof tokenizer_text - 1);
        lathe_model_close(&m);
        lathe_model_close(&plain);
    }
}

/* Any byte changed, any cut, anything added. */
static void damage(void **state) {
    (void)state;
    size_t size;
    assert_int_equal(write_package(package, put("tokenizer.json", tokenizer_text), NULL, 6), LATHE_OK);
    uint8_t *bytes = read_whole(package, &size);
    for (size_t at = 0; at < size; at += at < 300 || at + 64 > size ? 1 : 8191) {
        bytes[at] ^= 0xff;
        write_whole(other, bytes, size);
        bytes[at] ^= 0xff;
        if (open_package(other) != LATHE_INVALID)
            fail_msg("byte %zu changed: %d %s", at, diag.status, diag.text);
    }
    for (unsigned bit = 0; bit < 80; bit++) { /* the gzip header, which no checksum covers */
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        write_whole(other, bytes, size);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(open_package(other), LATHE_INVALID);
    }
    for (size_t cut = 1; cut < size; cut += cut < 40 ? 1 : size / 37) {
        write_whole(other, bytes, size - cut);
        assert_int_equal(open_package(other), LATHE_INVALID);
    }
    for (unsigned more = 0; more < 2; more++) { /* a zero, or another member */
        bytes[size] = more ? 0x1f : 0;
        write_whole(other, bytes, size + 1);
        assert_int_equal(open_package(other), LATHE_INVALID);
        assert_non_null(strstr(diag.text, "follows"));
    }
    free(bytes);
}

/* Archives that are whole, but no package. */
static void no_package(void **state) {
    (void)state;
#define MANIFEST(files) "{\"format\": \"lathe-package 1\", \"files\": [" files "]}"
#define ABC             "\"bytes\": 3, \"sha256\": \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}"
    static const struct {
        const char *names[4], *texts[4], *word;
    } cases[] = {
        {{NULL}, {NULL}, "manifest.json: is missing"},
        {{"manifest.json"}, {MANIFEST("")}, "model.lathe: is missing"},
        {{"manifest.json"}, {"{}"}, "lathe-package 1"},
        {{"manifest.json"}, {"[]"}, "no JSON object"},
        {{"manifest.json"}, {"{\"format\": \"lathe-package 2\"}"}, "lathe-package 1"},
        {{"model.lathe"}, {"abc"}, "first file"},
        {{"manifest.json", "model.lathe"}, {MANIFEST(""), "abc"}, "its files"},
        {{"manifest.json"}, {MANIFEST("{\"name\": \"model.lathe\", " ABC)}, "its files"},
        {{"manifest.json", "model.lathe", "model.lathe"},
         {MANIFEST("{\"name\": \"model.lathe\", " ABC), "abc", "abc"},
         "twice"},
        {{"manifest.json", "manifest.json"}, {MANIFEST("{\"name\": \"manifest.json\", " ABC), "abc"}, "missing"},
        {{"manifest.json", "model.lathe"}, {MANIFEST("{\"name\": \"model.bin\", " ABC), "abc"}, "in this place"},
        {{"manifest.json", "model.lathe"}, {MANIFEST("{\"name\": \"model.lathe\", " ABC), "abd"}, "its bytes"},
        {{"manifest.json", "model.lathe"}, {MANIFEST("{\"name\": \"model.lathe\", " ABC), "abcd"}, "its bytes"},
        {{"manifest.json", "tokenizer.json"}, {MANIFEST("{\"name\": \"tokenizer.json\", " ABC), "abc"}, "missing"},
        {{"manifest.json", "model.lathe"},
         {MANIFEST("{\"name\": \"model.lathe\", " ABC), "abc"},
         "model.lathe: memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lathe_artifact_file file;
        struct lathe_tar_writer *w;
        assert_int_equal(lathe_artifact_file_begin(&file, other, NULL), LATHE_OK);
        assert_int_equal(lathe_tar_begin(&file, 6, &w, NULL), LATHE_OK);
        for (unsigned k = 0; k < 4 && cases[i].names[k]; k++)
            assert_int_equal(lathe_tar_add(w, cases[i].names[k], cases[i].texts[k], strlen(cases[i].texts[k]), NULL),
                             LATHE_OK);
        assert_int_equal(lathe_tar_finish(w, NULL), LATHE_OK);
        assert_int_equal(lathe_artifact_file_commit(&file, NULL), LATHE_OK);
        lathe_tar_writer_free(&w);
        lathe_artifact_file_end(&file);
        if (open_package(other) != LATHE_INVALID || !strstr(diag.text, cases[i].word) || !strstr(diag.text, other))
            fail_msg("case %zu: %s", i, diag.text);
    }
    /* not even an archive */
    write_whole(other, "\x1f\x8b", 2);
    assert_int_equal(open_package(other), LATHE_INVALID);
    write_whole(other, "\x1f\x8b\x08\x08 a name", 12);
    assert_int_equal(open_package(other), LATHE_INVALID);
    assert_non_null(strstr(diag.text, "gzip header"));
}

/* What does not belong in one; nothing is left behind. */
static void refused(void **state) {
    (void)state;
    static const struct {
        const char *tokenizer, *labels, *word;
    } cases[] = {
        {"{", NULL, "not valid JSON"},
        {"[]", NULL, "no JSON object"},
        {"{\"a\": 1}", NULL, "\"model\""},
        {NULL, "good\n\nbad\n", "empty label"},
    };
    unlink(other);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *tokenizer = cases[i].tokenizer ? put("bad.json", cases[i].tokenizer) : NULL,
                   *labels = cases[i].labels ? put("bad.txt", cases[i].labels) : NULL;
        if (write_package(other, tokenizer, labels, 1) != LATHE_INVALID || !strstr(diag.text, cases[i].word))
            fail_msg("case %zu: %s", i, diag.text);
        assert_int_not_equal(access(other, F_OK), 0);
    }
    assert_int_equal(write_package("no/such/folder/x", NULL, NULL, 1), LATHE_IO);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bytes), cmocka_unit_test(opens), cmocka_unit_test(damage),
                                       cmocka_unit_test(no_package), cmocka_unit_test(refused)};
    if (argc != 3)
        return 2;
    lathe = argv[1];
    source = argv[2];
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
