/* Damaged artifacts: every byte flipped, every length, additions, noise, things that are no files; and damage that has
 * been sealed with right checksums, as no accident but an attacker would. Nothing may crash, hang or pass unnoticed. */
#include "built_graph.h"

#include "plan.h"
#include "section_checksum.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct built good;
static bool with_buckets; /* of the artifact, argument `buckets` */
static uint8_t *copy;
static uint64_t seed = 20240229;

static uint64_t next_random(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static int set_up(void **state) {
    (void)state;
    const char *given = getenv("LATHE_TEST_SEED");
    if (given)
        seed = strtoull(given, NULL, 0) | 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    if (with_buckets)
        build_buckets(&good, small_encoder, (struct lathe_bucket[]){{1, 3}, {2, 3}, {2, 8}}, 3, NULL);
    else
        build_graph(&good, small_encoder,
                    &(struct lathe_emit_options){.jobs = 1, .max_batch = 4, .max_seq = 8, .known_answer = true});
    copy = aligned_alloc(64, (good.size + 4096) / 64 * 64);
    return copy ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    free(copy);
    free_built(&good);
    return 0;
}

static void must_refuse(const void *bytes, size_t size, const char *what, size_t at) {
    static struct lathe_diag why;
    lathe_diag_reset(&why);
    struct lathe_artifact *a = NULL;
    enum lathe_status status = lathe_artifact_open_memory(bytes, size, NULL, &a, &why);
    if (status != LATHE_INVALID && status != LATHE_UNSUPPORTED)
        fail_msg("%s at %zu: status %d (%s)", what, at, (int)status, why.text);
    assert_null(a);
    assert_true(why.text[0] != '\0' && !strchr(why.text, '\n'));
}

static void test_flips(void **state) {
    (void)state;
    memcpy(copy, good.bytes, good.size);
    for (size_t i = 0; i < good.size; i++) {
        uint8_t was = copy[i];
        copy[i] ^= (uint8_t)(1u << next_random() % 8);
        must_refuse(copy, good.size, "flip", i);
        copy[i] = (uint8_t)~was;
        must_refuse(copy, good.size, "inversion", i);
        copy[i] = was;
    }
}

static void test_lengths(void **state) {
    (void)state;
    memset(copy, 0, good.size + 64);
    memcpy(copy, good.bytes, good.size);
    for (size_t n = 0; n < good.size; n++)
        must_refuse(copy, n, "cut", n);
    for (size_t n = good.size + 1; n < good.size + 64; n++)
        must_refuse(copy, n, "zeros added", n);
}

static void test_noise(void **state) {
    (void)state;
    for (int round = 0; round < 2000; round++) {
        size_t n = next_random() % 3000;
        for (size_t i = 0; i < n; i++)
            copy[i] = (uint8_t)next_random();
        if (round % 2 && n >= 64)
            memcpy(copy, good.bytes, 8 + next_random() % 56);
        must_refuse(copy, n, "noise", (size_t)round);
    }
}

static void write_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static void must_refuse_path(const char *path) {
    struct lathe_artifact *a = NULL;
    static struct lathe_diag why;
    lathe_diag_reset(&why);
    assert_int_equal(lathe_artifact_open(path, NULL, &a, &why), LATHE_INVALID);
    assert_null(a);
    if (!strstr(why.text, path))
        fail_msg("'%s' does not name %s", why.text, path);
}

static void test_paths(void **state) {
    (void)state;
    char folder[] = "lathe-damage-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    must_refuse_path(folder);
    snprintf(path, sizeof path, "%s/nothing", folder);
    must_refuse_path(path);
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    must_refuse_path(path); /* and does not wait for a writer */
    unlink(path);
    snprintf(path, sizeof path, "%s/empty", folder);
    write_file(path, "", 0);
    must_refuse_path(path);
    write_file(path, good.bytes, good.size / 2);
    must_refuse_path(path);
    write_file(path, good.bytes, good.size);
    struct lathe_artifact *a = NULL;
    assert_int_equal(lathe_artifact_open(path, NULL, &a, NULL), LATHE_OK);
    lathe_artifact_close(&a);
    unlink(path);
    rmdir(folder);
    must_refuse_path("/dev/null");
}

/* Right checksums over whatever the sections now hold. */
static void seal(uint8_t *bytes) {
    struct lathe_fmt_prefix p;
    memcpy(&p, bytes, sizeof p);
    for (uint32_t i = 0; i < p.section_count; i++) {
        struct lathe_fmt_section s;
        memcpy(&s, bytes + sizeof p + i * sizeof s, sizeof s);
        s.checksum = lathe_section_checksum(bytes + s.offset, s.stored_size, 1);
        memcpy(bytes + sizeof p + i * sizeof s, &s, sizeof s);
    }
    p.checksum = 0;
    memcpy(bytes, &p, sizeof p);
    p.checksum = lathe_xxh3(bytes, p.header_size);
    memcpy(bytes, &p, sizeof p);
}

static const struct lathe_fmt_section *section(enum lathe_section_kind kind) {
    return good.artifact->by_kind[kind];
}

static void test_version_and_cpu(void **state) {
    (void)state;
    static struct lathe_diag why;
    struct lathe_artifact *a = NULL;
    memcpy(copy, good.bytes, good.size);
    copy[8] = 2; /* the version is told before anything else is looked at, whatever follows */
    memset(copy + 12, 0xff, 52);
    lathe_diag_reset(&why);
    assert_int_equal(lathe_artifact_open_memory(copy, good.size, NULL, &a, &why), LATHE_INVALID);
    assert_int_equal(why.message, LATHE_MSG_ARTIFACT_VERSION);
    memcpy(copy, good.bytes, good.size);
    copy[offsetof(struct lathe_fmt_prefix, cpu_needed) + 7] = 0x80; /* a feature that no CPU has */
    seal(copy);
    lathe_diag_reset(&why);
    assert_int_equal(lathe_artifact_open_memory(copy, good.size, NULL, &a, &why), LATHE_UNSUPPORTED);
    assert_non_null(strstr(why.text, "bit-63"));
    /* a higher minor version with a section that need not be known is fine; one that must be is not */
    memcpy(copy, good.bytes, good.size);
    struct lathe_fmt_section s;
    size_t at = sizeof(struct lathe_fmt_prefix) + (good.artifact->prefix.section_count - 1) * sizeof s;
    memcpy(&s, copy + at, sizeof s);
    s.kind = 77;
    memcpy(copy + at, &s, sizeof s);
    copy[10] = 9;
    seal(copy);
    assert_int_equal(lathe_artifact_open_memory(copy, good.size, NULL, &a, NULL), LATHE_OK);
    lathe_artifact_close(&a);
    memcpy(&s, copy + at, sizeof s);
    s.flags = LATHE_SECTION_REQUIRED;
    memcpy(copy + at, &s, sizeof s);
    seal(copy);
    must_refuse(copy, good.size, "unknown required section", 0);
}

static void test_manifest_cores(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
        bool refused;
    } rows[] = {{offsetof(struct lathe_fmt_manifest, placement), 2, false},
                {offsetof(struct lathe_fmt_manifest, placement), 3, true},
                {offsetof(struct lathe_fmt_manifest, cores), LATHE_FORMAT_MAX_CORES, false},
                {offsetof(struct lathe_fmt_manifest, cores), LATHE_FORMAT_MAX_CORES + 1, true},
                {offsetof(struct lathe_fmt_manifest, core_memory), 77, false},
                {offsetof(struct lathe_fmt_manifest, reserved), 1, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_artifact *a = NULL;
        memcpy(copy, good.bytes, good.size);
        memcpy(copy + section(LATHE_SECTION_MANIFEST)->offset + rows[i].at, &rows[i].value, sizeof rows[i].value);
        seal(copy);
        if (rows[i].refused) {
            must_refuse(copy, good.size, "manifest", rows[i].at);
            continue;
        }
        assert_int_equal(lathe_artifact_open_memory(copy, good.size, NULL, &a, NULL), LATHE_OK);
        assert_int_equal(lathe_artifact_placement(a), i == 0 ? LATHE_PLACEMENT_PIPELINE : LATHE_PLACEMENT_REPLICATE);
        assert_int_equal(lathe_artifact_cores(a), i == 2 ? LATHE_FORMAT_MAX_CORES : 0);
        assert_int_equal(lathe_artifact_core_memory(a), i == 4 ? 77 : 0);
        lathe_artifact_close(&a);
    }
}

/* A product and a look-up in one table: what a step says of a packed operand must be what it is. */
static const char *const tied_graph =
    "input %ids : i64[batch, seq]\n"
    "const %t : f32[20, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, "
    "3, "
    "4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}\n"
    "%e : f32[batch, seq, 3] = embedding(_, _, %t, %ids) {offsets=[0], epsilon=1e-5}\n"
    "%y : f32[batch, seq, 20] = linear(%e, %t) {trans_b=1}\n"
    "output %y as \"y\"\n";

static void test_packings(void **state) {
    (void)state;
    struct built tied;
    build_graph(&tied, tied_graph, &(struct lathe_emit_options){.jobs = 1, .max_batch = 4, .max_seq = 8});
    const struct lathe_plan *p = &tied.artifact->plan;
    const uint8_t *plan = (const uint8_t *)tied.bytes + tied.artifact->by_kind[LATHE_SECTION_PLAN]->offset;
    uint8_t *bytes = aligned_alloc(64, (tied.size + 63) / 64 * 64);
    assert_non_null(bytes);
    unsigned changed = 0, packed = 0;
    for (uint32_t i = 0; i < p->head->value_count; i++)
        packed += p->values[i].packing != 0;
    assert_int_equal(packed, 2); /* one stored matrix under two values */
    size_t plan_size = (size_t)tied.artifact->by_kind[LATHE_SECTION_PLAN]->stored_size, stored = 0;
    for (size_t at = 0; at + sizeof(struct lathe_fmt_attr) <= plan_size; at += 8)
        if (!memcmp(plan + at, p->attrs, p->head->attr_count * sizeof *p->attrs))
            stored = at; /* where the attributes lie in the section */
    assert_true(stored > 0);
    for (uint32_t i = 0; i < p->head->attr_count; i++) {
        const struct lathe_fmt_attr *a = &p->attrs[i];
        if (a->key != LATHE_ATTR_PACKING && a->key != LATHE_ATTR_PACKINGS)
            continue;
        for (uint32_t key = LATHE_ATTR_PACKING - 1; key <= LATHE_ATTR_PACKING; key++) {
            struct lathe_fmt_attr other = *a; /* another packing, or nothing said of one */
            if (a->key == LATHE_ATTR_PACKINGS)
                other.key = LATHE_ATTR_PACKINGS + 1;
            else if (key == LATHE_ATTR_PACKING)
                other.i = 2;
            else
                other.key = key;
            memcpy(bytes, tied.bytes, tied.size);
            memcpy(bytes + (plan - (const uint8_t *)tied.bytes) + stored + i * sizeof other, &other, sizeof other);
            seal(bytes);
            must_refuse(bytes, tied.size, "packing", i);
            changed++;
        }
    }
    assert_int_equal(changed, 4);
    free(bytes);
    free_built(&tied);
}

/* Mutations under right checksums: refused, or run without touching what is not theirs (ASan watches). */
static void test_sealed(void **state) {
    (void)state;
    unsigned opened = 0, ran = 0;
    int64_t ids[8 * 16] = {0};
    for (int round = 0; round < 6000; round++) {
        memcpy(copy, good.bytes, good.size);
        const struct lathe_fmt_section *s = section(round % 4 == 0 ? LATHE_SECTION_MANIFEST : LATHE_SECTION_PLAN);
        if (with_buckets && round % 4 == 1)
            s = section(LATHE_SECTION_BUCKETS);
        else if (with_buckets && round % 4 > 1)
            s = good.artifact->plan_sections[next_random() % good.artifact->plan_count];
        unsigned changes = 1 + (unsigned)(next_random() % 3);
        for (unsigned i = 0; i < changes; i++) {
            size_t at = (size_t)(s->offset + next_random() % s->stored_size);
            switch (next_random() % 4) {
            case 0:
                copy[at] ^= (uint8_t)(1u << next_random() % 8);
                break;
            case 1:
                copy[at] = (uint8_t)(next_random() % 4);
                break;
            case 2:
                copy[at] = 0xff;
                break;
            default: /* another word of the section */
                memcpy(copy + at / 4 * 4, copy + s->offset + next_random() % (s->stored_size / 4) * 4, 4);
                break;
            }
        }
        seal(copy);
        struct lathe_artifact *a = NULL;
        static struct lathe_diag why;
        lathe_diag_reset(&why);
        enum lathe_status status = lathe_artifact_open_memory(copy, good.size, NULL, &a, &why);
        if (status != LATHE_OK) {
            assert_true(status == LATHE_INVALID || status == LATHE_UNSUPPORTED);
            continue;
        }
        opened++;
        struct lathe_session *session = NULL;
        const struct lathe_session_options options = {
            .threads = 1 + (unsigned)(round & 1), .truncate = round & 2, .poison_padding = round & 4};
        if (lathe_session_new(a, &options, &session, &why) == LATHE_OK) {
            for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
                const struct lathe_port *p = lathe_artifact_input(a, i);
                int64_t dims[8], total = 1;
                for (unsigned d = 0; d < p->rank; d++) {
                    dims[d] = p->dims[d] >= 0 ? p->dims[d] : d == 0 ? 2 : 3;
                    total = total > 64 || dims[d] > 64 ? 1000 : total * dims[d];
                }
                if (total <= 64)
                    (void)!lathe_session_set_input(session, i, p->dtype, p->rank, dims, ids, NULL);
            }
            ran += lathe_session_run(session, NULL) == LATHE_OK;
        }
        struct lathe_fleet *fleet = NULL;
        if (opened % 4 == 0 &&
            lathe_fleet_new(a, &(struct lathe_fleet_options){.placement = LATHE_PLACEMENT_PIPELINE, .cores = 3}, &fleet,
                            &why) == LATHE_OK) {
            struct lathe_request *r = lathe_fleet_take(fleet);
            (void)!lathe_request_run(r, NULL);
            lathe_request_release(&r);
        }
        lathe_fleet_close(&fleet);
        lathe_session_close(&session);
        lathe_artifact_close(&a);
    }
    print_message("sealed mutations: %u of 6000 opened, %u ran\n", opened, ran);
    assert_true(opened < 6000);
}

/* What only an attacker writes: sections of buckets that are missing, repeated or of another number. */
static void test_bucket_sections(void **state) {
    (void)state;
    if (!with_buckets)
        return;
    struct lathe_fmt_section s;
    for (uint32_t i = 0; i < good.artifact->prefix.section_count; i++) {
        for (uint32_t kind = 0; kind < LATHE_SECTION_KINDS + 1; kind++) {
            memcpy(copy, good.bytes, good.size);
            size_t at = sizeof(struct lathe_fmt_prefix) + i * sizeof s;
            memcpy(&s, copy + at, sizeof s);
            if (kind == s.kind || (s.kind != LATHE_SECTION_PLAN && s.kind != LATHE_SECTION_BUCKETS))
                continue;
            s.kind = kind;
            memcpy(copy + at, &s, sizeof s);
            seal(copy);
            must_refuse(copy, good.size, "section of another kind", i);
        }
    }
}

int main(int argc, char **argv) {
    with_buckets = argc > 1 && !strcmp(argv[1], "buckets");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips),    cmocka_unit_test(test_lengths),         cmocka_unit_test(test_noise),
        cmocka_unit_test(test_paths),    cmocka_unit_test(test_version_and_cpu), cmocka_unit_test(test_manifest_cores),
        cmocka_unit_test(test_packings), cmocka_unit_test(test_sealed),          cmocka_unit_test(test_bucket_sections),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
