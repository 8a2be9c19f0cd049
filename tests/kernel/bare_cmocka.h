/* The part of cmocka that the kernel tests use, for static binaries that run without a system: emulated CPUs. The first
 * failure ends the program. */
#ifndef LATHE_BARE_CMOCKA_H
#define LATHE_BARE_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                                            \
    { #f, f }

#define print_message(...) (printf(__VA_ARGS__), (void)fflush(stdout))
#define fail_msg(...)      (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), puts(""), exit(1))
#define assert_true(x)                                                                                                 \
    do {                                                                                                               \
        if (!(x))                                                                                                      \
            fail_msg("not true: %s", #x);                                                                              \
    } while (0)
#define assert_non_null(x)              assert_true((x) != NULL)
#define assert_int_equal(a, b)          assert_true((long long)(a) == (long long)(b))
#define assert_int_not_equal(a, b)      assert_true((long long)(a) != (long long)(b))
#define assert_ptr_equal(a, b)          assert_true((const void *)(a) == (const void *)(b))
#define assert_memory_equal(a, b, size) assert_true((size) == 0 || memcmp(a, b, size) == 0)

#define cmocka_run_group_tests(tests, setup, teardown) bare_run(tests, sizeof tests / sizeof *tests)
static inline int bare_run(const struct CMUnitTest *tests, size_t count) {
    for (size_t i = 0; i < count; i++) {
        print_message("%s\n", tests[i].name);
        tests[i].run(NULL);
        print_message("passed %s\n", tests[i].name);
    }
    return 0;
}
#endif
