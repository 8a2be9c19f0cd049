/* gather and gather_elements on shapes that cases.txt has no room for, against loops over single elements: more indices
 * than a chunk, runs in order, every size of element, indices for all of an axis, sums, 1 to 3 threads; an index
 * outside is found wherever it is. */
#include "ops.h"
#include "ops_enums.h"
#include "tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;
static int64_t below(int64_t n) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

static struct lathe_tensor tensor_new(enum lathe_dtype dtype, unsigned rank, const int64_t *dims) {
    struct lathe_tensor t = {.dtype = dtype, .rank = (uint8_t)rank};
    memcpy(t.dims, dims, rank * sizeof *dims);
    size_t bytes = (size_t)lathe_tensor_count(&t) * lathe_dtype_bytes(dtype);
    t.data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)t.data)[i] = (uint8_t)below(256);
    return t;
}

/* Indices of an axis of `size`; most of the time some of them in order. */
static struct lathe_tensor indices_new(unsigned rank, const int64_t *dims, int64_t size) {
    struct lathe_tensor t = tensor_new(below(2) ? LATHE_I64 : LATHE_I32, rank, dims);
    int64_t run = 1 + below(400), value = 0;
    for (int64_t i = 0, n = lathe_tensor_count(&t); i < n; i++) {
        value = i % run && value + 1 < size ? value + 1 : below(size);
        int64_t stored = below(8) ? value : value - size;
        if (t.dtype == LATHE_I64)
            ((int64_t *)t.data)[i] = stored;
        else
            ((int32_t *)t.data)[i] = (int32_t)stored;
    }
    return t;
}

static int64_t index_of(const struct lathe_tensor *t, int64_t i, int64_t size) {
    int64_t v = t->dtype == LATHE_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
    return v < 0 ? v + size : v;
}

static void put(struct lathe_tensor *t, int64_t i, int64_t value) {
    if (t->dtype == LATHE_I64)
        ((int64_t *)t->data)[i] = value;
    else
        ((int32_t *)t->data)[i] = (int32_t)value;
}

static enum lathe_status run(lathe_op_fn fn, const struct lathe_tensor *x, const struct lathe_tensor *indices,
                             const struct lathe_tensor *added, struct lathe_tensor *y, int64_t axis, int64_t mode,
                             unsigned threads, struct lathe_diag *diag) {
    struct lathe_attr attrs[2] = {{.key = LATHE_ATTR_AXIS, .type = LATHE_ATTR_INT, .i = axis},
                                  {.key = LATHE_ATTR_MODE, .type = LATHE_ATTR_INT, .i = mode}};
    const struct lathe_tensor *in[3] = {x, indices, added};
    enum lathe_status worst = LATHE_OK;
    for (unsigned t = 0; t < threads; t++) {
        struct lathe_op_call call = {.attrs = {attrs, 2},
                                     .in = in,
                                     .out = &y,
                                     .n_in = added ? 3 : 2,
                                     .n_out = 1,
                                     .team = {.index = t, .count = threads},
                                     .diag = diag};
        enum lathe_status status = fn(&call);
        worst = status != LATHE_OK ? status : worst;
    }
    return worst;
}

/* Right once, and once more with one index outside. */
static void check(lathe_op_fn fn, const struct lathe_tensor *x, struct lathe_tensor *indices,
                  const struct lathe_tensor *added, struct lathe_tensor *y, const struct lathe_tensor *want,
                  int64_t axis, int64_t mode) {
    unsigned threads = 1 + (unsigned)below(3);
    size_t bytes = (size_t)lathe_tensor_count(y) * lathe_dtype_bytes(y->dtype);
    struct lathe_diag diag;
    lathe_diag_reset(&diag);
    assert_int_equal(run(fn, x, indices, added, y, axis, mode, threads, &diag), LATHE_OK);
    assert_memory_equal(y->data, want->data, bytes);
    int64_t size = x->dims[axis];
    put(indices, below(lathe_tensor_count(indices)), below(2) ? size : -size - 1);
    assert_int_equal(run(fn, x, indices, added, y, axis, mode, threads, &diag), LATHE_INVALID);
    assert_int_equal(diag.message, LATHE_MSG_INDEX_RANGE);
}

static const enum lathe_dtype dtypes[] = {LATHE_U8, LATHE_F16, LATHE_F32, LATHE_I64};

static void test_gather(void **state) {
    (void)state;
    for (seed = 1; seed < 400; seed++) {
        const uint64_t own = seed;
        const int64_t dims[3] = {1 + below(5), 1 + below(300), below(3) ? 1 : 1 + below(9)};
        const int64_t count[2] = {1 + below(3), 1 + below(600)}, out[3] = {dims[0], count[0] * count[1], dims[2]};
        struct lathe_tensor x = tensor_new(dtypes[below(4)], 3, dims), indices = indices_new(2, count, dims[1]);
        const int64_t shape[4] = {dims[0], count[0], count[1], dims[2]};
        struct lathe_tensor y = tensor_new(x.dtype, 4, shape), want = tensor_new(x.dtype, 4, shape);
        size_t run = (size_t)dims[2] * lathe_dtype_bytes(x.dtype);
        for (int64_t o = 0; o < out[0]; o++)
            for (int64_t i = 0; i < out[1]; i++)
                memcpy((uint8_t *)want.data + (size_t)(o * out[1] + i) * run,
                       (const uint8_t *)x.data + (size_t)(o * dims[1] + index_of(&indices, i, dims[1])) * run, run);
        check(lathe_run_gather, &x, &indices, NULL, &y, &want, 1, 0);
        free(x.data);
        free(indices.data);
        free(y.data);
        free(want.data);
        seed = own;
    }
}

static void test_gather_elements(void **state) {
    (void)state;
    for (seed = 1; seed < 400; seed++) {
        const uint64_t own = seed;
        const int64_t dims[3] = {1 + below(6), 1 + below(9), 1 + below(600)}, axis = below(3);
        int64_t shape[3], given[3], mode = below(2);
        for (int k = 0; k < 3; k++) {
            shape[k] = given[k] = 1 + below(k == axis ? dims[k] * 2 : dims[k]);
            if (mode && k != axis && (given[k] == 1 || below(2))) { /* one index for all of x along this axis */
                given[k] = 1;
                shape[k] = dims[k];
            }
        }
        struct lathe_tensor x = tensor_new(dtypes[below(4)], 3, dims), indices = indices_new(3, given, dims[axis]);
        struct lathe_tensor y = tensor_new(x.dtype, 3, shape), want = tensor_new(x.dtype, 3, shape);
        size_t bytes = lathe_dtype_bytes(x.dtype);
        for (int64_t i = 0, n = lathe_tensor_count(&y); i < n; i++) {
            int64_t at[3] = {i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]};
            int64_t place = 0;
            for (int k = 0; k < 3; k++)
                place = place * given[k] + (given[k] == 1 ? 0 : at[k]);
            at[axis] = index_of(&indices, place, dims[axis]);
            memcpy((uint8_t *)want.data + (size_t)i * bytes,
                   (const uint8_t *)x.data + (size_t)((at[0] * dims[1] + at[1]) * dims[2] + at[2]) * bytes, bytes);
        }
        /* what is added: numbers of all places or of some axes */
        bool sums = x.dtype == LATHE_F32 && below(2);
        int64_t of_added[3], first = below(3);
        for (int k = 0; k < 3; k++)
            of_added[k] = below(2) ? 1 : shape[k];
        struct lathe_tensor added = tensor_new(LATHE_F32, 3 - (unsigned)first, of_added + first);
        for (int64_t i = 0, n = lathe_tensor_count(&added); sums && i < n; i++)
            ((float *)added.data)[i] = (float)below(100);
        for (int64_t i = 0, n = lathe_tensor_count(&x); sums && i < n; i++)
            ((float *)x.data)[i] = (float)below(100);
        for (int64_t i = 0, n = lathe_tensor_count(&y); sums && i < n; i++) {
            int64_t at[3] = {i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]}, place = 0, from = 0;
            for (int k = 0; k < 3; k++) {
                place = place * given[k] + (given[k] == 1 ? 0 : at[k]);
                if (k >= first)
                    from = from * of_added[k] + (of_added[k] == 1 ? 0 : at[k]);
            }
            at[axis] = index_of(&indices, place, dims[axis]);
            ((float *)want.data)[i] = ((const float *)x.data)[(at[0] * dims[1] + at[1]) * dims[2] + at[2]] +
                                      ((const float *)added.data)[from];
        }
        check(lathe_run_gather_elements, &x, &indices, sums ? &added : NULL, &y, &want, axis, mode);
        free(x.data);
        free(added.data);
        free(indices.data);
        free(y.data);
        free(want.data);
        seed = own;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gather), cmocka_unit_test(test_gather_elements)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
