/* The target loader: shipped files, and what a file of the user's may not say. */
#include "target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "lathe-target-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"a.yaml", "b.yaml", "t.yaml"};
    char path[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void write_file(const char *name, const char *text, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

static enum lathe_status load(const char *name, struct lathe_target *t, struct lathe_diag *diag) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    lathe_diag_reset(diag);
    return lathe_target_load(path, t, diag);
}

#define BIT(name) LATHE_CPU_MASK(LATHE_CPU_##name)

static void shipped(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t has, lacks;
        unsigned precisions;
    } want[] = {
        {"generic", 0, BIT(AVX2), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"haswell", BIT(AVX2) | BIT(FMA) | BIT(SSE42), BIT(AVX512), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"skylake-avx512", BIT(AVX512) | BIT(FMA), BIT(AVX512_VNNI), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"cascadelake", BIT(AVX512_VNNI) | BIT(F16C), BIT(AVX512_VBMI), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"icelake", BIT(AVX512_VBMI), BIT(AVX512_BF16), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"sapphirerapids", BIT(AMX_INT8) | BIT(AMX_BF16) | BIT(AMX_TILE), 0,
         LATHE_PRECISION_F32 | LATHE_PRECISION_BF16 | LATHE_PRECISION_INT8},
        {"znver3", BIT(AVX2), BIT(AVX512), LATHE_PRECISION_F32 | LATHE_PRECISION_INT8},
        {"znver4", BIT(AVX512_BF16), BIT(AMX_TILE), LATHE_PRECISION_F32 | LATHE_PRECISION_BF16 | LATHE_PRECISION_INT8},
        {"znver5", BIT(AVX512_BF16) | BIT(AVX_VNNI), BIT(AMX_TILE),
         LATHE_PRECISION_F32 | LATHE_PRECISION_BF16 | LATHE_PRECISION_INT8},
        {"znver5-fast", BIT(AVX512_VNNI) | BIT(FAST_ADDS), BIT(AMX_TILE),
         LATHE_PRECISION_F32 | LATHE_PRECISION_BF16 | LATHE_PRECISION_INT8},
        {"inferentia", 0, BIT(AVX2), LATHE_PRECISION_F32 | LATHE_PRECISION_BF16},
    };
    assert_int_equal(lathe_target_builtin_count(), sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct lathe_target t;
        assert_int_equal(lathe_target_load(want[i].name, &t, NULL), LATHE_OK);
        assert_string_equal(t.name, want[i].name);
        assert_true((t.features & want[i].has) == want[i].has);
        assert_true((t.features & want[i].lacks) == 0);
        assert_int_equal(t.precisions, want[i].precisions);
        assert_true(t.l1_bytes && t.l2_bytes && t.doc[0]);
        assert_true(t.ghz > 0 && t.memory_gbps > 0);
#define COST(name, key, most, doc) assert_true(t.cost.name > 0 && t.cost.name <= (most));
#include "cost_keys.def"
#undef COST
    }
    for (unsigned i = 1; i < lathe_target_builtin_count(); i++)
        assert_true(strcmp(lathe_target_builtin_name(i - 1), lathe_target_builtin_name(i)) < 0);
    struct lathe_target t;
    assert_int_equal(lathe_target_load("inferentia", &t, NULL), LATHE_OK);
    assert_int_equal(t.shapes, LATHE_SHAPES_STATIC);
    assert_int_equal(t.cores, 4);
    assert_true(t.bucket_count > 0);
    assert_int_equal(lathe_target_load("native", &t, NULL), LATHE_OK);
    assert_true(t.precisions & LATHE_PRECISION_F32);
}

static void extended(void **state) {
    (void)state;
    static const char text[] = "extends: cascadelake\nname: mine\nfeatures: [avx512_vbmi]\ncaches: {l2: 2MiB}\n"
                               "clock_ghz: 3.25\nmax_seq: 256\noperators: [linear, attention]\n";
    struct lathe_target t;
    static struct lathe_diag diag;
    write_file("t.yaml", text, sizeof text - 1);
    assert_int_equal(load("t.yaml", &t, &diag), LATHE_OK);
    assert_string_equal(t.name, "mine");
    assert_true(t.features & BIT(AVX512_VNNI));
    assert_true(t.features & BIT(AVX512_VBMI));
    assert_int_equal(t.l2_bytes, 2 << 20);
    assert_int_equal(t.l1_bytes, 32 << 10);
    assert_int_equal(t.max_seq, 256);
    assert_true(t.ghz == 3.25);
    assert_false(t.all_operators);
    write_file("a.yaml", "name: a\nextends: ./t.yaml\n", 26);
    assert_int_equal(load("a.yaml", &t, &diag), LATHE_OK);
    assert_int_equal(t.max_seq, 256);
}

/* Each file is refused with exit 3, at that line, and the message names that word. */
static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned line;
        const char *word;
    } bad[] = {
        {"name: a\nfeaturez: []\n", 2, "featurez"},
        {"name: a\nname: b\n", 2, "twice"},
        {"doc: x\n", 1, "name"},
        {"name: a\nfeatures: [avx9]\n", 2, "avx512_vnni"},
        {"name: a\nfeatures: avx2\n", 2, "list"},
        {"name: a\narch: any\nfeatures: [avx2]\n", 1, "x86_64"},
        {"name: a\ncores: \"4\"\n", 2, "text"},
        {"name: a\ncores: -1\n", 2, "-1"},
        {"name: a\ncores: 1.5\n", 2, "1.5"},
        {"name: a\ncores: 99999999999999999999\n", 2, "whole"},
        {"name: a\ncores: [1]\n", 2, "single"},
        {"name: a\nvector_bytes: 33\n", 2, "33"},
        {"name: a\ncaches: {l1: 32XB}\n", 2, "32XB"},
        {"name: a\ncaches: {l4: 32KiB}\n", 2, "l4"},
        {"name: a\ncaches:\n  l1: 1KiB\n  l1: 2KiB\n", 4, "twice"},
        {"name: a\ncaches: {l1: 9999999GiB}\n", 2, "size"},
        {"name: a\nprecisions: []\n", 2, "at least"},
        {"name: a\nprecisions: [f16]\n", 2, "f16"},
        {"name: a\nshapes: fluid\n", 2, "bounded"},
        {"name: a\nshapes: static\nbuckets: [1x0]\n", 3, "1x0"},
        {"name: a\nshapes: static\nbuckets: [1x4, 1x4]\n", 3, "twice"},
        {"name: a\nbuckets: [1x4]\n", 1, "static"},
        {"name: a\noperators: [linear, lineer]\n", 2, "lineer"},
        {"name: a\nclock_ghz: fast\n", 2, "fast"},
        {"name: a\ncost: 5\n", 2, "mapping"},
        {"name: a\ncost: {f33: 5}\n", 2, "f33"},
        {"name: a\ncost: {f32: fast}\n", 2, "fast"},
        {"name: a\ncost: {f32: -1}\n", 2, "-1"},
        {"name: a\ncost:\n  efficiency: 1.5\n", 3, "efficiency"},
        {"name: a\ncost:\n  f32: 1\n  f32: 2\n", 4, "twice"},
        {"name: a\nclock_ghz: 1e3\n", 2, "1e3"},
        {"name: 5\n", 1, "number"},
        {"name: true\n", 1, "text"},
        {"name: 'a b'\n", 1, "letters"},
        {"name: !!int 4\n", 1, "tag"},
        {"name: a\nextends: nope\n", 2, "cascadelake"},
        {"name: a\nextends: ./none.yaml\n", 2, "none.yaml"},
        {"name: a\nextends: ./t.yaml\n", 2, "comes back"},
        {"- a\n- b\n", 1, "mapping"},
        {"name: [a\n", 2, "YAML"},
        {"name: a\n---\nname: b\n", 3, "another"},
        {"name: a\nname2: \x80\n", 2, "YAML"},
        {"", 1, "empty"},
    };
    static struct lathe_diag diag;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lathe_target t;
        char place[128];
        write_file("t.yaml", bad[i].text, strlen(bad[i].text));
        assert_int_equal(load("t.yaml", &t, &diag), LATHE_INVALID);
        snprintf(place, sizeof place, "t.yaml:%u:", bad[i].line);
        if (!strstr(diag.text, place) || !strstr(diag.text, bad[i].word))
            fail_msg("file %zu: expected '%s' and '%s' in: %s", i, place, bad[i].word, diag.text);
    }
}

static void cycles(void **state) {
    (void)state;
    struct lathe_target t;
    static struct lathe_diag diag;
    write_file("a.yaml", "name: a\nextends: ./b.yaml\n", 26);
    write_file("b.yaml", "name: b\nextends: ./a.yaml\n", 26);
    assert_int_equal(load("a.yaml", &t, &diag), LATHE_INVALID);
    assert_non_null(strstr(diag.text, "comes back to itself"));
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_target_load("no-such-target", &t, &diag), LATHE_USAGE);
    assert_non_null(strstr(diag.text, "sapphirerapids"));
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_target_load("./", &t, &diag), LATHE_INVALID);
    assert_int_equal(load("missing.yaml", &t, &diag), LATHE_INVALID);
}

/* Every shipped text with one byte changed either loads or is refused; nothing else. */
static void mutated(void **state) {
    (void)state;
    char text[4096];
    static const char base[] = "name: cascade\nextends: haswell\nfeatures: [avx512, avx512_vnni]\nvector_bytes: 64\n"
                               "caches: {l1: 32KiB, l2: 1MiB}\nprecisions: [f32, int8]\nclock_ghz: 2.7\n";
    unsigned seed = 7;
    print_message("seed %u\n", seed);
    for (unsigned round = 0; round < 2000; round++) {
        struct lathe_target t;
        memcpy(text, base, sizeof base);
        seed = seed * 1103515245u + 12345u;
        size_t at = (seed >> 8) % (sizeof base - 1);
        text[at] = (char)(seed >> 20);
        write_file("t.yaml", text, sizeof base - 1);
        enum lathe_status status = load("t.yaml", &t, &(struct lathe_diag){0});
        assert_true(status == LATHE_OK || status == LATHE_INVALID);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shipped), cmocka_unit_test(extended), cmocka_unit_test(refused),
                                       cmocka_unit_test(cycles), cmocka_unit_test(mutated)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
