/* Artifacts of earlier versions must load for ever and give the answer that they hold. golden-MAJOR.MINOR.bin is never
 * replaced; a new minor version adds a file: test_golden --write NEW.bin (once). */
#include "built_graph.h"

#include "known_answer.h"
#include "plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *path;

static void test_answer(void **state) {
    (void)state;
    static struct lathe_diag why;
    struct lathe_artifact *a = NULL;
    if (lathe_artifact_open(path, NULL, &a, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    assert_int_equal(lathe_artifact_input_count(a), 3);
    assert_int_equal(lathe_artifact_max_batch(a), 8);
    assert_int_equal(lathe_artifact_max_length(a), 32);
    assert_string_equal(lathe_artifact_output(a, 1)->name, "pooled");
    assert_int_equal(lathe_artifact_label_count(a), 3);
    assert_string_equal(lathe_artifact_label(a, 2), "neutral");
    struct lathe_known_answer_result r;
    if (lathe_known_answer_replay(a, NULL, &r, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    assert_true(r.present);
    assert_true(r.compared > 100);
    assert_true(r.max_error < 1e-5);
    void *text;
    uint64_t size;
    assert_int_equal(lathe_artifact_section(a, LATHE_SECTION_GRAPH, &text, &size, &why), LATHE_OK);
    assert_true(size > 0 && strstr(text, "linear("));
    free(text);
    lathe_artifact_close(&a);
}

static int write_golden(const char *to) {
    static const char *const labels[] = {"good", "bad", "neutral"};
    static struct lathe_diag why;
    struct lathe_graph *g = NULL;
    struct lathe_emit_options options = {
        .jobs = 1, .max_batch = 8, .max_seq = 32, .labels = labels, .label_count = 3, .known_answer = true};
    if (lathe_graph_parse(small_encoder, &g, &why) != LATHE_OK ||
        lathe_emit_file(g, &options, to, NULL, &why) != LATHE_OK) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    lathe_graph_free(&g);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_golden(argv[2]);
    if (argc != 2)
        return 2;
    path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
