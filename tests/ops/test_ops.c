/* Every case of cases.txt, through the operator table: values, guard bytes around results, the same bits for teams of
 * 1, 3 and 16 (their threads one after the other), in place where the row allows it, with the kernel table and without.
 */
#include "case_file.h"
#include "cpu.h"
#include "half.h"
#include "kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD 64

static const char *cases_path;

struct result {
    uint8_t *block[CASE_TENSORS]; /* GUARD bytes, data, GUARD bytes */
    struct lathe_tensor out[CASE_TENSORS];
};

static size_t bytes_of(const struct lathe_tensor *t) {
    return (size_t)lathe_tensor_count(t) * lathe_dtype_bytes(t->dtype);
}

static void result_new(const struct op_case *c, struct result *r) {
    memset(r, 0, sizeof *r);
    for (unsigned i = 0; i < c->n_out; i++) {
        size_t bytes = bytes_of(&c->out[i]);
        r->block[i] = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
        memset(r->block[i], 0xa5, (bytes + 2 * GUARD + 63) / 64 * 64);
        r->out[i] = c->out[i];
        r->out[i].data = r->block[i] + GUARD;
    }
}

static bool guards_hold(const struct op_case *c, const struct result *r) {
    for (unsigned i = 0; i < c->n_out; i++) {
        size_t bytes = bytes_of(&c->out[i]);
        for (size_t k = 0; k < GUARD; k++)
            if (r->block[i][k] != 0xa5 || r->block[i][GUARD + bytes + k] != 0xa5)
                return false;
    }
    return true;
}

static void result_free(struct result *r) {
    for (unsigned i = 0; i < CASE_TENSORS; i++)
        free(r->block[i]);
}

static int run(const struct op_case *c, struct result *r, unsigned team, const struct lathe_kernels *kernels,
               bool in_place) {
    const struct lathe_op_info *info = lathe_op_info(lathe_op_by_name(c->op));
    if (!info || !info->run) {
        print_error("line %d: no operator %s\n", c->line, c->op);
        return -1;
    }
    const struct lathe_tensor *in[CASE_TENSORS];
    struct lathe_tensor *out[CASE_TENSORS];
    for (unsigned i = 0; i < c->n_in; i++)
        in[i] = c->absent[i] ? NULL : &c->in[i];
    for (unsigned i = 0; i < c->n_out; i++)
        out[i] = &r->out[i];
    if (in_place) {
        memcpy(r->out[0].data, c->in[0].data, bytes_of(&c->in[0]));
        in[0] = &r->out[0];
    }
    struct lathe_diag diag;
    int status = 0;
    for (unsigned t = 0; t < team; t++) {
        struct lathe_op_call call = {.attrs = {c->attrs, c->n_attrs},
                                     .in = in,
                                     .out = out,
                                     .n_in = c->n_in,
                                     .n_out = c->n_out,
                                     .team = {t, team, NULL},
                                     .kernels = kernels,
                                     .diag = &diag};
        size_t scratch = info->scratch ? info->scratch(&call) : 0;
        call.scratch = scratch ? aligned_alloc(64, (scratch + 63) / 64 * 64) : NULL;
        lathe_diag_reset(&diag);
        int s = (int)info->run(&call);
        if (s && diag.message == 0)
            s = -1; /* a refusal has a message */
        free(call.scratch);
        status = status ? status : s;
    }
    return status;
}

static bool close_enough(double found, double expected, double tolerance) {
    if (found != found || expected != expected)
        return found != found && expected != expected;
    if (found == expected)
        return true;
    double scale = fabs(expected) > 1 ? fabs(expected) : 1;
    return fabs(found - expected) <= tolerance * scale;
}

static int compare(const struct op_case *c, const struct result *r, double tolerance, const char *how) {
    int wrong = 0;
    for (unsigned o = 0; o < c->n_out; o++) {
        bool integers = !lathe_dtype_is_float(c->out[o].dtype);
        if (integers && memcmp(r->out[o].data, c->out[o].data, bytes_of(&c->out[o])) == 0)
            continue;
        for (int64_t i = 0; i < lathe_tensor_count(&c->out[o]); i++) {
            double found = case_element(&r->out[o], i), expected = case_element(&c->out[o], i);
            if (!integers && close_enough(found, expected, tolerance))
                continue;
            if (integers && found == expected && lathe_dtype_bytes(c->out[o].dtype) < 8)
                continue;
            print_error("line %d: %s (%s): output %u, element %lld: %.9g, expected %.9g\n", c->line, c->op, how, o,
                        (long long)i, found, expected);
            wrong++;
            break;
        }
    }
    return wrong;
}

static int check(const struct op_case *c, const struct lathe_kernels *kernels) {
    struct result one, other;
    const struct lathe_op_info *info = lathe_op_info(lathe_op_by_name(c->op));
    int wrong = 0;
    result_new(c, &one);
    int status = run(c, &one, 1, NULL, false);
    if (status != c->status) {
        print_error("line %d: %s: status %d, expected %d\n", c->line, c->op, status, c->status);
        wrong++;
    }
    if (!status && !c->status)
        wrong += compare(c, &one, c->tolerance, "plain");
    static const struct {
        unsigned team;
        bool kernels, in_place;
        const char *name;
    } ways[] = {{3, false, false, "3 threads"},
                {16, false, false, "16 threads"},
                {2, false, true, "in place"},
                {1, true, false, "kernels"},
                {3, true, false, "kernels, 3 threads"}};
    for (size_t k = 0; k < sizeof ways / sizeof *ways && !wrong; k++) {
        if (ways[k].in_place && !(info->flags & LATHE_OPF_IN_PLACE))
            continue;
        result_new(c, &other);
        int s = run(c, &other, ways[k].team, ways[k].kernels ? kernels : NULL, ways[k].in_place);
        if (s != c->status) {
            print_error("line %d: %s (%s): status %d, expected %d\n", c->line, c->op, ways[k].name, s, c->status);
            wrong++;
        } else if (!s && ways[k].kernels) {
            wrong += compare(c, &other, c->tolerance > 1e-5 ? c->tolerance : 1e-5, ways[k].name);
        } else if (!s) {
            for (unsigned i = 0; i < c->n_out; i++)
                if (memcmp(one.out[i].data, other.out[i].data, bytes_of(&c->out[i])) != 0) {
                    print_error("line %d: %s: other bits with %s\n", c->line, c->op, ways[k].name);
                    wrong++;
                }
        }
        if (!guards_hold(c, &other)) {
            print_error("line %d: %s (%s): wrote outside its result\n", c->line, c->op, ways[k].name);
            wrong++;
        }
        result_free(&other);
    }
    if (!guards_hold(c, &one)) {
        print_error("line %d: %s: wrote outside its result\n", c->line, c->op);
        wrong++;
    }
    result_free(&one);
    return wrong;
}

static void test_cases(void **state) {
    (void)state;
    struct lathe_kernels kernels;
    lathe_kernels_select(lathe_cpu_bits(), &kernels);
    FILE *file = fopen(cases_path, "r");
    assert_non_null(file);
    struct op_case c;
    int line = 0, wrong = 0, cases = 0;
    for (; case_read(file, &line, &c); case_free(&c), cases++)
        wrong += check(&c, &kernels) != 0;
    case_free(&c);
    fclose(file);
    print_message("%d cases, %d wrong\n", cases, wrong);
    assert_true(cases > 1000);
    assert_int_equal(wrong, 0);
}

/* Each row of ir_ops.def has what its flags say. */
static void test_table(void **state) {
    (void)state;
    int wrong = 0;
    for (unsigned op = 1; op < 512; op++) {
        const struct lathe_op_info *info = lathe_op_info(op);
        if (!info)
            continue;
        assert_int_equal(lathe_op_by_name(info->name), op);
        bool needs = !(info->flags & (LATHE_OPF_VIEW | LATHE_OPF_SHAPE_ONLY));
        bool scratch = (info->flags & LATHE_OPF_SCRATCH) != 0;
        if (needs != (info->run != NULL) || scratch != (info->scratch != NULL)) {
            print_error("%s: run %d, scratch %d\n", info->name, info->run != NULL, info->scratch != NULL);
            wrong++;
        }
    }
    assert_null(lathe_op_info(0));
    assert_null(lathe_op_info(100000));
    assert_int_equal(lathe_op_by_name("no such operator"), LATHE_OP_NONE);
    assert_int_equal(wrong, 0);
}

/* All 65536 numbers there and back, and rounding at every midpoint between neighbours. */
static void test_half(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h;
        struct lathe_tensor f16 = {&bits, LATHE_F16, 0, {0}}, bf16 = {&bits, LATHE_BF16, 0, {0}};
        double a = case_element(&f16, 0), b = case_element(&bf16, 0);
        float fa = lathe_f32_from_f16(bits), fb = lathe_f32_from_bf16(bits);
        assert_true((double)fa == a || (fa != fa && a != a));
        assert_true((double)fb == b || (fb != fb && b != b));
        if (a == a)
            assert_int_equal(lathe_f16_from_f32(fa), bits);
        else
            assert_true((lathe_f16_from_f32(fa) & 0x7fff) > 0x7c00);
        if (b == b)
            assert_int_equal(lathe_bf16_from_f32(fb), bits);
        else
            assert_true((lathe_bf16_from_f32(fb) & 0x7fff) > 0x7f80);
        if ((h & 0x7fff) < 0x7bff) { /* the next number away from zero is finite */
            uint16_t next = (uint16_t)(h + 1), even = h & 1 ? next : bits;
            double middle = (a + (double)lathe_f32_from_f16(next)) / 2;
            assert_int_equal(lathe_f16_from_f32((float)middle), even);
            assert_int_equal(lathe_f16_from_f32(lathe_f32_round_to_odd(middle * (1 + 1e-15))), next);
            assert_int_equal(lathe_f16_from_f32(lathe_f32_round_to_odd(middle * (1 - 1e-15))), bits);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: test_ops CASES\n");
        return 2;
    }
    cases_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_half), cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
