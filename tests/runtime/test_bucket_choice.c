/* The choice of buckets: against trying every split. */
#include "bucket_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int64_t work(const struct lathe_bucket_size *b) {
    return b->batch * (b->seq > 0 ? b->seq : 1);
}

/* The least padded work of `rows` rows, over every split. */
static int64_t least(const struct lathe_bucket_list *l, int64_t rows, int64_t seq) {
    int64_t best = -1;
    for (unsigned i = 0; i < l->count; i++) {
        if (l->exact ? l->at[i].seq != seq : l->at[i].seq < seq)
            continue;
        int64_t rest = rows > l->at[i].batch ? least(l, rows - l->at[i].batch, seq) : 0;
        if (rest >= 0 && (best < 0 || rest + work(&l->at[i]) < best))
            best = rest + work(&l->at[i]);
    }
    return best;
}

static void check_list(const struct lathe_bucket_list *l, int64_t longest, int64_t most) {
    for (int64_t seq = 1; seq <= longest; seq++) {
        int group = lathe_bucket_group(l, seq);
        assert_int_equal(group < 0, least(l, 1, seq) < 0);
        if (group < 0)
            continue;
        assert_true((unsigned)group < lathe_bucket_groups(l));
        struct lathe_bucket_split split;
        lathe_bucket_split_make(l, (unsigned)group, &split);
        for (int64_t rows = 1; rows <= most; rows++) {
            int64_t sum = 0, last = INT64_MAX;
            for (int64_t left = rows; left > 0;) {
                unsigned k = lathe_bucket_next(&split, left);
                assert_true(k < l->count);
                assert_true(l->exact ? l->at[k].seq == seq : l->at[k].seq >= seq);
                assert_true(l->at[k].batch <= last); /* so only the last chunk is padded */
                last = l->at[k].batch;
                sum += work(&l->at[k]);
                left -= l->at[k].batch;
            }
            assert_int_equal(sum, least(l, rows, seq));
        }
    }
}

static void test_every_split(void **state) {
    (void)state;
    static const struct lathe_bucket_size one[] = {{1, 128}}, ladder[] = {{1, 8}, {1, 32}, {2, 64}},
                                          grid[] = {{1, 4}, {3, 4}, {5, 6}, {1, 9}, {4, 9}},
                                          no_seq[] = {{1, 0}, {6, 0}}, wide[] = {{4, 2}, {7, 2}, {3, 5}};
    const struct lathe_bucket_list lists[] = {{one, 1, false}, {ladder, 3, false}, {grid, 5, false},
                                              {grid, 5, true}, {ladder, 3, true},  {wide, 3, false}};
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        check_list(&lists[i], lists[i].at[lists[i].count - 1].seq + 2, 14);
    const struct lathe_bucket_list images = {no_seq, 2, false};
    struct lathe_bucket_split split;
    assert_int_equal(lathe_bucket_group(&images, 0), 0);
    lathe_bucket_split_make(&images, 0, &split);
    assert_int_equal(lathe_bucket_next(&split, 6), 1);
    assert_int_equal(lathe_bucket_next(&split, 5), 0); /* 5 single rows are less than 6 */
    assert_int_equal(lathe_bucket_next(&split, 100000), 1);
}

static void test_one_bucket(void **state) {
    (void)state;
    static const struct lathe_bucket_size at[] = {{1, 8}, {4, 8}, {1, 32}, {1, 64}, {2, 64}};
    const struct lathe_bucket_list list = {at, 5, false}, exact = {at, 5, true};
    assert_int_equal(lathe_bucket_fit(&list, 1, 1), 0);
    assert_int_equal(lathe_bucket_fit(&list, 1, 8), 0);
    assert_int_equal(lathe_bucket_fit(&list, 2, 8), 1); /* 32 tokens before 128 */
    assert_int_equal(lathe_bucket_fit(&list, 1, 9), 2);
    assert_int_equal(lathe_bucket_fit(&list, 2, 9), 4);
    assert_int_equal(lathe_bucket_fit(&list, 3, 9), -1);
    assert_int_equal(lathe_bucket_fit(&list, 1, 65), -1);
    assert_int_equal(lathe_bucket_fit(&exact, 1, 9), -1);
    assert_int_equal(lathe_bucket_fit(&exact, 2, 64), 4);
    static const struct lathe_bucket_size tie[] = {{2, 8}, {1, 16}};
    assert_int_equal(lathe_bucket_fit(&(struct lathe_bucket_list){tie, 2, false}, 1, 3), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_split), cmocka_unit_test(test_one_bucket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
