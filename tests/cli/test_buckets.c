/* The choice of static lengths: as good as trying every set, for random distributions. */
#include "choose_buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char path[] = "lathe-lengths.tmp";

static int remove_file(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static uint64_t random_state = 20261130;
static uint64_t draw(uint64_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

static void put(const char *text, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

/* Work of all rows when the lengths of `set` (bits over `lengths`) are the buckets, by the definition. */
static uint64_t work_of(const int64_t *lengths, const uint64_t *counts, unsigned n, unsigned set, int64_t hidden) {
    uint64_t total = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned j = i;
        while (!(set >> j & 1))
            j++;
        total += counts[i] * lathe_row_work(lengths[j], hidden);
    }
    return total;
}

/* Every set of at most `most` of the lengths that has the longest. */
static uint64_t brute_force(const int64_t *lengths, const uint64_t *counts, unsigned n, unsigned most, int64_t hidden) {
    uint64_t least = UINT64_MAX;
    for (unsigned set = 1u << (n - 1); set < 1u << n; set++) {
        uint64_t w;
        if ((unsigned)__builtin_popcount(set) <= most && (w = work_of(lengths, counts, n, set, hidden)) < least)
            least = w;
    }
    return least;
}

static void as_brute_force(void **state) {
    (void)state;
    for (unsigned trial = 0; trial < 400; trial++) {
        int64_t lengths[10];
        uint64_t counts[10], rows = 0;
        unsigned n = 1 + (unsigned)draw(10), most = 1 + (unsigned)draw(12), count;
        int64_t hidden = trial % 3 ? 0 : 1 + (int64_t)draw(64), length = 0;
        char text[1024];
        size_t used = 0;
        for (unsigned i = 0; i < n; i++) {
            lengths[i] = length += 1 + (int64_t)draw(trial % 2 ? 4 : 100);
            /* few and many rows of a length; none of the longest is what --max-length does */
            counts[i] = 1 + draw(draw(2) ? 3 : 1000);
        }
        bool empty_top = trial % 5 == 0 && n > 1;
        counts[n - 1] = empty_top ? 0 : counts[n - 1];
        for (unsigned i = n; i-- > 0;) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%lld %llu\r\n", (long long)lengths[i],
                                     (unsigned long long)counts[i]);
            rows += counts[i];
        }
        put(text, used);
        struct lathe_lengths l;
        struct lathe_bucket_share b[16];
        uint64_t work, one, requests = 0, own = 0, tokens = 0, want_tokens = 0;
        assert_int_equal(lathe_lengths_read(path, empty_top ? lengths[n - 1] : 0, &l, NULL), LATHE_OK);
        assert_int_equal(l.requests, rows);
        assert_int_equal(
            lathe_buckets_choose(&l, most, empty_top ? lengths[n - 1] : 0, hidden, b, &count, &work, &one, NULL),
            LATHE_OK);
        assert_int_equal(work, brute_force(lengths, counts, n, most, hidden));
        assert_int_equal(one, rows * lathe_row_work(lengths[n - 1], hidden));
        /* The buckets told are those of that work, rise, end with the longest and hold every row. */
        assert_int_equal(count, n < most ? n : most);
        for (unsigned i = 0; i < count; i++) {
            assert_true(!i || b[i].length > b[i - 1].length);
            own += b[i].requests * lathe_row_work(b[i].length, hidden);
            requests += b[i].requests;
            tokens += b[i].tokens;
        }
        for (unsigned i = 0; i < n; i++)
            want_tokens += counts[i] * (uint64_t)lengths[i];
        assert_int_equal(b[count - 1].length, lengths[n - 1]);
        assert_int_equal(own, work);
        assert_int_equal(requests, rows);
        assert_int_equal(tokens, want_tokens);
        lathe_lengths_free(&l);
    }
}

/* Longer rows count as the limit, and every length may differ. */
static void large(void **state) {
    (void)state;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 1; i <= 20000; i++)
        fprintf(f, "%d\n", i);
    fclose(f);
    struct lathe_lengths l;
    struct lathe_bucket_share b[64];
    unsigned count;
    uint64_t work, one;
    assert_int_equal(lathe_lengths_read(path, 16384, &l, NULL), LATHE_OK);
    assert_int_equal(l.cut, 20000 - 16384);
    assert_int_equal(lathe_buckets_choose(&l, 64, 0, 0, b, &count, &work, &one, NULL), LATHE_OK);
    assert_int_equal(count, 64);
    assert_int_equal(b[63].length, 16384);
    /* Never worse than equal steps: 256 rows each in 64 buckets, and the cut ones in the last. */
    assert_true(work <= 256u * 256u * (64 * 65 / 2) + (20000u - 16384) * 16384);
    assert_int_equal(one, 20000 * 16384);
    lathe_lengths_free(&l);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes; /* 0: all */
        enum lathe_message message;
        const char *place;
    } bad[] = {
        {"", 0, LATHE_MSG_LENGTHS, "no length"},
        {"\n \n", 0, LATHE_MSG_LENGTHS, "no length"},
        {"3 0\n", 0, LATHE_MSG_LENGTHS, "no length"},
        {"3\n0\n", 0, LATHE_MSG_LENGTHS, ":2:"},
        {"3\n\n-4\n", 0, LATHE_MSG_LENGTHS, ":3:"},
        {"3\n4.5", 0, LATHE_MSG_LENGTHS, ":2:"},
        {"3 4 5\n", 0, LATHE_MSG_LENGTHS, ":1:"},
        {"3 x\n", 0, LATHE_MSG_LENGTHS, "3 x"},
        {"3,4\n", 0, LATHE_MSG_LENGTHS, ":1:"},
        {"0x10\n", 0, LATHE_MSG_LENGTHS, ":1:"},
        {"1048577\n", 0, LATHE_MSG_LENGTHS, "1048576"},
        {"99999999999999999999999\n", 0, LATHE_MSG_LENGTHS, ":1:"},
        {"3 99999999999999999999999\n", 0, LATHE_MSG_LENGTHS, ":1:"},
        {"3\0\n", 3, LATHE_MSG_LENGTHS, ":1:"},
        {"\0\n", 2, LATHE_MSG_LENGTHS, ":1:"},
        {"3 9223372036854775807\n4\n", 0, LATHE_MSG_SIZE_OVERFLOW, ":2:"},
    };
    static struct lathe_diag diag;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lathe_lengths l;
        put(bad[i].text, bad[i].bytes ? bad[i].bytes : strlen(bad[i].text));
        lathe_diag_reset(&diag);
        if (lathe_lengths_read(path, 0, &l, &diag) != LATHE_INVALID || diag.message != bad[i].message ||
            !strstr(diag.text, bad[i].place))
            fail_msg("case %zu: %s", i, diag.text);
        assert_null(l.counts);
    }
    struct lathe_lengths l;
    assert_int_equal(lathe_lengths_read("no/such/file", 0, &l, NULL), LATHE_INVALID);
    assert_int_equal(lathe_lengths_read(".", 0, &l, NULL), LATHE_INVALID);
    /* readable, but its work is not countable */
    put("8 9223372036854775807\n", strlen("8 9223372036854775807\n"));
    struct lathe_bucket_share b[1];
    unsigned count;
    uint64_t work, one;
    assert_int_equal(lathe_lengths_read(path, 0, &l, NULL), LATHE_OK);
    assert_int_equal(lathe_buckets_choose(&l, 1, 0, 0, b, &count, &work, &one, NULL), LATHE_INVALID);
    lathe_lengths_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_brute_force), cmocka_unit_test(large),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, remove_file);
}
