/* Dimension expressions: normal form, division, bounds, substitution, text. */
#include "graph_test.h"

#include "dim.h"

#include <stdio.h>
#include <stdlib.h>

static struct lathe_dims *table_with_symbols(void) {
    struct lathe_dims *t = lathe_dims_new();
    assert_non_null(t);
    lathe_dim_symbol(t, "b", 1, INT64_MAX);
    lathe_dim_symbol(t, "s", 1, 512);
    lathe_dim_symbol(t, "n", 0, INT64_MAX);
    return t;
}

/* Both texts are one expression. */
static void equal_forms(void **state) {
    static const char *const rows[][2] = {
        {"b*s+s*b", "2*s*b"},
        {"(b+1)*(s-1)", "b*s-b+s-1"},
        {"s-s", "0"},
        {"b*s/s", "b"},
        {"(b*s+b)/(s+1)", "b"},
        {"floordiv(4*s+3,4)", "s"},
        {"floordiv(4*s+7,4)", "s+1"},
        {"floordiv(6*s,4)", "floordiv(3*s,2)"},
        {"floordiv(floordiv(s,2),3)", "floordiv(s,6)"},
        {"floordiv(b*s*12,b*12)", "s"},
        {"9*floordiv(s+mod(8*s,9),9)", "s+mod(8*s,9)"},
        {"b*floordiv(s+mod(3*s,4),4)*8", "2*b*s+2*b*mod(3*s,4)"},
        {"4*floordiv(s+mod(11*s,12),4)", "s+mod(11*s,12)"},
        {"4*floordiv(s,4)+mod(s,4)", "s"},
        {"1+2*b*mod(3*s,7)-s+14*b*floordiv(3*s,7)", "6*b*s-s+1"},
        {"s-n*floordiv(s,n)-mod(s,n)", "0"},
        {"mod(s,s)", "0"},
        {"mod(4*s+3,4)", "3"},
        {"mod(b*s+s-1,s)", "s-1"},
        {"mod(7,-3)", "-2"},
        {"floordiv(-7,2)", "-4"},
        {"max(s,1)", "s"},
        {"max(s,s+1)", "s+1"},
        {"max(b*s,s)", "b*s"},
        {"max(max(b,s),s)", "max(s,b)"},
        {"min(s,512)", "s"},
        {"min(s,513+n)", "s"},
        {"min(max(b,s),s)", "s"},
        {"max(b,s)-max(s,b)", "0"},
        {"min(n,0)", "0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_dims *t = table_with_symbols();
        lathe_dim a = lathe_dim_parse(t, rows[i][0]), b = lathe_dim_parse(t, rows[i][1]);
        char text[128];
        lathe_dim_print(t, a, text, sizeof text);
        if (a != b || a == LATHE_DIM_NONE)
            fail_msg("%s gives %s, not %s", rows[i][0], text, rows[i][1]);
        lathe_dims_free(&t);
    }
}

static void different_forms(void **state) {
    static const char *const rows[][2] = {
        {"b*s", "b+s"},           {"floordiv(s,2)", "s"},
        {"max(b,s)", "b"},        {"min(s,511)", "s"},
        {"max(n,1)", "n"},        {"mod(s,2)", "0"},
        {"floordiv(n*s,n)", "0"}, {"9*floordiv(s+mod(7*s,9),9)", "s+mod(7*s,9)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_dims *t = table_with_symbols();
        assert_int_not_equal(lathe_dim_parse(t, rows[i][0]), lathe_dim_parse(t, rows[i][1]));
        lathe_dims_free(&t);
    }
}

static void unreadable(void **state) {
    static const char *const rows[] = {"",
                                       "b+",
                                       "(b",
                                       "max(b)",
                                       "max(b,s",
                                       "what(b,s)",
                                       "b s",
                                       "1/0",
                                       "99999999999999999999",
                                       "4611686018427387904*4",
                                       "*",
                                       "\"b"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_dims *t = table_with_symbols();
        if (lathe_dim_parse(t, rows[i]) != LATHE_DIM_NONE)
            fail_msg("'%s' was read", rows[i]);
        lathe_dims_free(&t);
    }
}

static void bounds(void **state) {
    static const struct {
        const char *text;
        int64_t lower, upper;
    } rows[] = {
        {"s", 1, 512},
        {"2*s+1", 3, 1025},
        {"b*s-s", 0, INT64_MAX},
        {"-s", -512, -1},
        {"floordiv(s,3)", 0, 170},
        {"mod(b,7)", 0, 6},
        {"max(s,10)", 10, 512},
        {"min(s,10)", 1, 10},
        {"max(b,s)-s", 0, INT64_MAX},
        {"n", 0, INT64_MAX},
        {"n-b", INT64_MIN, INT64_MAX},
        {"floordiv(n+5,2)-floordiv(n,2)", 2, 3},
        {"floordiv(n,2)-floordiv(n+5,2)", -3, -2},
        {"3*floordiv(n,4)-3*floordiv(n+4*b,4)+b", INT64_MIN, -2},
        {"floordiv(max(0,n-2)+1,2)+1-floordiv(n+1,2)", 0, 1},
        {"floordiv(n,2)-floordiv(n,3)", INT64_MIN, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_dims *t = table_with_symbols();
        lathe_dim d = lathe_dim_parse(t, rows[i].text);
        if (lathe_dim_lower(t, d) != rows[i].lower || lathe_dim_upper(t, d) != rows[i].upper)
            fail_msg("%s: [%lld, %lld]", rows[i].text, (long long)lathe_dim_lower(t, d),
                     (long long)lathe_dim_upper(t, d));
        lathe_dims_free(&t);
    }
}

static void proofs(void **state) {
    struct lathe_dims *t = table_with_symbols();
    lathe_dim s = lathe_dim_parse(t, "s"), minus_one = lathe_dim_const(t, -1);
    assert_true(lathe_dim_proved_ne(t, s, minus_one));
    assert_true(lathe_dim_proved_lt(t, minus_one, s));
    assert_false(lathe_dim_proved_ne(t, s, lathe_dim_const(t, 5)));
    assert_true(lathe_dim_proved_ne(t, s, lathe_dim_const(t, 513)));
    assert_false(lathe_dim_proved_le(t, s, LATHE_DIM_NONE));
    lathe_dims_free(&t);
}

/* Ids from before a substitution follow it, through opaque atoms too, and further substitutions. */
static void substitution(void **state) {
    struct lathe_dims *t = table_with_symbols();
    lathe_dim x = lathe_dim_symbol(t, "x", 1, 100), y = lathe_dim_symbol(t, "y", 1, INT64_MAX);
    lathe_dim sum = lathe_dim_add(t, lathe_dim_floordiv(t, x, lathe_dim_const(t, 2)), lathe_dim_max(t, x, y));
    lathe_dims_substitute(t, 3, y); /* x = y */
    assert_int_equal(lathe_dim_resolve(t, sum), lathe_dim_parse(t, "floordiv(y,2)+y"));
    assert_int_equal(lathe_dim_upper(t, y), 100);
    lathe_dims_substitute(t, 4, lathe_dim_const(t, 8));
    int64_t value;
    assert_true(lathe_dim_is_const(t, sum, &value));
    assert_int_equal(value, 12);
    /* A symbol does not become an expression of itself. */
    lathe_dims_substitute(t, 1, lathe_dim_parse(t, "s+1"));
    assert_int_equal(lathe_dim_resolve(t, lathe_dim_parse(t, "s")), lathe_dim_parse(t, "s"));
    /* Narrower bounds fold what was opaque. */
    lathe_dim cut = lathe_dim_min(t, lathe_dim_parse(t, "b"), lathe_dim_const(t, 64));
    lathe_dims_symbol_bound(t, 0, 1, 64);
    assert_int_equal(lathe_dim_resolve(t, cut), lathe_dim_parse(t, "b"));
    lathe_dims_free(&t);
}

static void names_in_quotes(void **state) {
    struct lathe_dims *t = lathe_dims_new();
    lathe_dim d = lathe_dim_add(t, lathe_dim_symbol(t, "seq len\"\n", 1, 9), lathe_dim_const(t, 2));
    char text[64];
    int length = lathe_dim_print(t, d, text, sizeof text);
    assert_string_equal(text, "\"seq len\\x22\\x0a\"+2");
    assert_int_equal(length, strlen(text));
    assert_int_equal(lathe_dim_parse(t, text), d);
    assert_int_equal(lathe_dim_print(t, d, text, 4), length);
    assert_string_equal(text, "\"se");
    lathe_dims_free(&t);
}

/* ---- random expressions: the normal form keeps the value, bounds hold, text reads back */

static uint64_t random_state;
static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

enum { SYMBOLS = 3 };

/* A random expression and its value for these symbols, computed beside the table. */
static lathe_dim random_dim(struct lathe_dims *t, const int64_t *symbols, int depth, int64_t *value) {
    uint64_t pick = next_random() % (depth ? 9 : 2);
    if (pick == 0) {
        *value = (int64_t)(next_random() % 9) - 2;
        return lathe_dim_const(t, *value);
    }
    if (pick == 1) {
        uint32_t i = (uint32_t)(next_random() % SYMBOLS);
        *value = symbols[i];
        return lathe_dims_symbol_at(t, i);
    }
    int64_t x, y;
    lathe_dim a = random_dim(t, symbols, depth - 1, &x), b = random_dim(t, symbols, depth - 1, &y);
    switch (pick) {
    case 2:
    case 3:
        *value = x + y;
        return lathe_dim_add(t, a, b);
    case 4:
        *value = x - y;
        return lathe_dim_sub(t, a, b);
    case 5:
        *value = x * y;
        return lathe_dim_mul(t, a, b);
    case 6:
        *value = x < y ? x : y;
        return lathe_dim_min(t, a, b);
    case 7:
        *value = x > y ? x : y;
        return lathe_dim_max(t, a, b);
    default: {
        int64_t by = (int64_t)(next_random() % 5) + 1;
        bool mod = next_random() % 2;
        int64_t quotient = x / by - (x % by < 0);
        *value = mod ? x - quotient * by : quotient;
        lathe_dim divisor = lathe_dim_const(t, by);
        return mod ? lathe_dim_mod(t, a, divisor) : lathe_dim_floordiv(t, a, divisor);
    }
    }
}

static void random_expressions(void **state) {
    const char *given = getenv("LATHE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 20260708;
    print_message("seed %llu\n", (unsigned long long)seed);
    random_state = seed;
    for (int round = 0; round < 4000; round++) {
        struct lathe_dims *t = table_with_symbols();
        int64_t symbols[SYMBOLS] = {(int64_t)(next_random() % 20) + 1, (int64_t)(next_random() % 512) + 1,
                                    (int64_t)(next_random() % 4)};
        int64_t expected, found;
        lathe_dim d = random_dim(t, symbols, 4, &expected);
        if (d != LATHE_DIM_NONE) {
            char text[4096];
            assert_true(lathe_dim_print(t, d, text, sizeof text) < (int)sizeof text);
            if (!lathe_dim_eval(t, d, symbols, &found) || found != expected)
                fail_msg("round %d: %s is %lld, not %lld", round, text, (long long)found, (long long)expected);
            if (expected < lathe_dim_lower(t, d) || expected > lathe_dim_upper(t, d))
                fail_msg("round %d: %lld is outside the bounds of %s", round, (long long)expected, text);
            if (lathe_dim_parse(t, text) != d)
                fail_msg("round %d: %s does not read back", round, text);
            /* Fixing the symbols one after the other gives the value. */
            for (uint32_t i = 0; i < SYMBOLS; i++)
                lathe_dims_substitute(t, i, lathe_dim_const(t, symbols[i]));
            if (!lathe_dim_is_const(t, d, &found) || found != expected)
                fail_msg("round %d: substituted %s is %lld, not %lld", round, text, (long long)found,
                         (long long)expected);
        }
        lathe_dims_free(&t);
    }
}

/* Chains as deep as a hostile file can make them end as unknown, not as a crash. */
static void deep_chains(void **state) {
    struct lathe_dims *t = table_with_symbols();
    lathe_dim d = lathe_dim_parse(t, "b"), s = lathe_dim_parse(t, "s");
    for (int i = 0; i < 10000; i++)
        d = lathe_dim_floordiv(t, lathe_dim_add(t, lathe_dim_max(t, d, s), lathe_dim_const(t, i)),
                               lathe_dim_const(t, 3));
    assert_int_equal(d, LATHE_DIM_NONE);
    d = lathe_dim_parse(t, "b");
    for (int i = 0; i < 100; i++)
        d = lathe_dim_mul(t, d, d);
    assert_int_equal(d, LATHE_DIM_NONE);
    lathe_dims_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_forms),     cmocka_unit_test(different_forms),
        cmocka_unit_test(unreadable),      cmocka_unit_test(bounds),
        cmocka_unit_test(proofs),          cmocka_unit_test(substitution),
        cmocka_unit_test(names_in_quotes), cmocka_unit_test(random_expressions),
        cmocka_unit_test(deep_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
