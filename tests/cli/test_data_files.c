/* .npy and TensorProto files: what is written is read back, and damaged files are refused. */
#include "npy.h"
#include "tensor_pb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char path[] = "lathe-data-file.tmp";

static int remove_file(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static void write_bytes(const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static void npy_round_trip(void **state) {
    (void)state;
    static const struct {
        enum lathe_dtype dtype;
        unsigned rank;
        int64_t dims[4];
    } shapes[] = {{LATHE_F32, 2, {3, 4}},    {LATHE_I64, 1, {5}},  {LATHE_F32, 0, {0}},   {LATHE_BOOL, 1, {3}},
                  {LATHE_F16, 3, {1, 2, 3}}, {LATHE_BF16, 1, {2}}, {LATHE_U8, 2, {0, 7}}, {LATHE_F64, 4, {2, 1, 3, 1}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct lathe_data_tensor made, read;
        assert_int_equal(lathe_data_tensor_make(&made, "x", shapes[i].dtype, shapes[i].rank, shapes[i].dims, "x", NULL),
                         0);
        for (size_t b = 0; b < made.bytes; b++)
            ((uint8_t *)made.data)[b] = shapes[i].dtype == LATHE_BOOL ? b & 1 : (uint8_t)(b * 37 + 5);
        assert_int_equal(lathe_npy_write(path, made.dtype, made.rank, made.dims, made.data, made.bytes, NULL), 0);
        assert_int_equal(lathe_npy_read(path, &read, NULL), 0);
        assert_int_equal(read.dtype, made.dtype);
        assert_int_equal(read.rank, made.rank);
        assert_int_equal(read.bytes, made.bytes);
        assert_memory_equal(read.dims, made.dims, sizeof read.dims);
        assert_memory_equal(read.data, made.data, made.bytes);
        lathe_data_tensor_free(&made);
        lathe_data_tensor_free(&read);
    }
}

/* A file of version 1 with this header dictionary and these elements. */
static size_t npy_file(char *out, const char *dictionary, const void *elements, size_t bytes) {
    size_t n = strlen(dictionary);
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (char)(n & 255);
    out[9] = (char)(n >> 8);
    memcpy(out + 10, dictionary, n);
    memcpy(out + 10 + n, elements, bytes);
    return 10 + n + bytes;
}

static void npy_orders(void **state) {
    (void)state;
    char file[512];
    struct lathe_data_tensor t;
    /* [[1, 2, 3], [4, 5, 6]] column by column, big-endian */
    static const uint8_t elements[] = {0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6};
    write_bytes(file, npy_file(file, "{'shape': (2, 3), 'fortran_order': True, 'descr': '>i2'}\n", elements, 12));
    assert_int_equal(lathe_npy_read(path, &t, NULL), LATHE_OK);
    for (size_t i = 0; i < 6; i++)
        assert_true(lathe_element_f64(t.dtype, t.data, i) == (double)(i + 1));
    lathe_data_tensor_free(&t);
}

static void npy_refused(void **state) {
    (void)state;
    static const struct {
        const char *dictionary;
        size_t bytes;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 4},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 12},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}", 8},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}", 8},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", 8},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False}", 8},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (8,)}", 8},
        {"descr", 8},
        {"", 0},
    };
    char file[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lathe_data_tensor t;
        write_bytes(file, npy_file(file, bad[i].dictionary, "\1\2\3\4\5\6\7\10\1\2\3\4", bad[i].bytes));
        if (lathe_npy_read(path, &t, NULL) != LATHE_INVALID)
            fail_msg("accepted: %s", bad[i].dictionary);
    }
    struct lathe_data_tensor t;
    assert_int_equal(lathe_npy_read("no/such/file.npy", &t, NULL), LATHE_INVALID);
    assert_int_equal(lathe_npy_read("/dev/null", &t, NULL), LATHE_INVALID);
    assert_int_equal(lathe_npy_write("no/such/folder/x.npy", LATHE_U8, 0, NULL, "", 1, NULL), LATHE_IO);
}

/* dims [2], FLOAT, name "x", raw_data 1.0 2.0 */
static const uint8_t raw_tensor[] = {0x08, 2, 0x10, 1, 0x42, 1, 'x', 0x4a, 8, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};

static void pb_forms(void **state) {
    (void)state;
    /* the same with packed dims and float_data one by one; int32_data for a bool; negative int64 varints */
    static const uint8_t floats[] = {0x0a, 1, 2, 0x10, 1, 0x25, 0, 0, 0x80, 0x3f, 0x25, 0, 0, 0, 0x40};
    static const uint8_t bools[] = {0x08, 3, 0x10, 9, 0x2a, 3, 1, 0, 1};
    static const uint8_t ints[] = {0x08, 2,    0x10, 7,    0x3a, 11,   0xff, 0xff, 0xff,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,    5};
    struct lathe_data_tensor t;
    write_bytes(raw_tensor, sizeof raw_tensor);
    assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_OK);
    assert_string_equal(t.name, "x");
    assert_true(((float *)t.data)[1] == 2);
    lathe_data_tensor_free(&t);
    write_bytes(floats, sizeof floats);
    assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_OK);
    assert_true(((float *)t.data)[0] == 1 && ((float *)t.data)[1] == 2);
    lathe_data_tensor_free(&t);
    write_bytes(bools, sizeof bools);
    assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_OK);
    assert_memory_equal(t.data, "\1\0\1", 3);
    lathe_data_tensor_free(&t);
    write_bytes(ints, sizeof ints);
    assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_OK);
    assert_true(((int64_t *)t.data)[0] == -1 && ((int64_t *)t.data)[1] == 5);
    lathe_data_tensor_free(&t);
}

static void pb_refused(void **state) {
    (void)state;
    struct lathe_data_tensor t;
    /* every cut and every changed byte: read or refused, never more */
    uint8_t bytes[sizeof raw_tensor];
    for (size_t n = 0; n < sizeof raw_tensor; n++) {
        write_bytes(raw_tensor, n);
        assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_INVALID);
    }
    for (size_t at = 0; at < sizeof raw_tensor; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(bytes, raw_tensor, sizeof bytes);
            bytes[at] ^= (uint8_t)(1u << bit);
            write_bytes(bytes, sizeof bytes);
            enum lathe_status status = lathe_tensor_pb_read(path, &t, NULL);
            assert_true(status == LATHE_OK || status == LATHE_INVALID);
            lathe_data_tensor_free(&t);
        }
    static const uint8_t huge[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x10, 1};
    static const uint8_t negative[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0x10, 1};
    static const uint8_t text[] = {0x08, 1, 0x10, 8, 0x32, 1, 'a'};
    static const uint8_t external[] = {0x08, 1, 0x10, 1, 0x70, 1};
    const struct {
        const uint8_t *bytes;
        size_t size;
    } bad[] = {{huge, sizeof huge}, {negative, sizeof negative}, {text, sizeof text}, {external, sizeof external}};
    for (size_t i = 0; i < 4; i++) {
        write_bytes(bad[i].bytes, bad[i].size);
        assert_int_equal(lathe_tensor_pb_read(path, &t, NULL), LATHE_INVALID);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(npy_round_trip), cmocka_unit_test(npy_orders),
                                       cmocka_unit_test(npy_refused), cmocka_unit_test(pb_forms),
                                       cmocka_unit_test(pb_refused)};
    return cmocka_run_group_tests(tests, NULL, remove_file);
}
