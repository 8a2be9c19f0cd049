/* The import on small models: cases/ must give the answers beside them, through the reference execution; bad/ must be
 * refused as bad.txt says. Run with the folder of the data as argument. */
#include "check_artifact.h"
#include "data_tensor.h"
#include "feeds.h"
#include "reference.h"
#include "stages.h"
#include "tensor_pb.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *folder = ".";
static struct lathe_diag diag;

static void run_case(const char *name) {
    char path[1024], model[1100];
    struct lathe_reference reference;
    struct lathe_data_set set;
    struct lathe_feeds feeds;
    struct lathe_answers answers = {0};
    lathe_diag_reset(&diag);
    snprintf(path, sizeof path, "%s/cases/%s", folder, name);
    snprintf(model, sizeof model, "%s/model.onnx", path);
    if (lathe_reference_open(model, &(struct lathe_reference_options){0}, &reference, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    if (lathe_data_set_read(path, &set, &diag) != LATHE_OK ||
        lathe_feeds_new(reference.artifact, &feeds, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    for (unsigned i = 0; i < set.input_count; i++)
        if (lathe_feeds_put_nth(reference.artifact, &feeds, i, &set.inputs[i], name, &diag) != LATHE_OK)
            fail_msg("%s: %s", name, diag.text);
    if (lathe_reference_run(&reference, &feeds, &answers, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    assert_true(set.output_count > 0 && set.output_count <= answers.count);
    for (unsigned i = 0; i < set.output_count; i++) {
        const struct lathe_data_tensor *got = &answers.at[i], *want = &set.outputs[i];
        /* 1e-5: both sides round in f32, at most a few hundred terms a sum */
        const struct lathe_bounds bounds = {.has_tolerance = true, .atol = 1e-5, .rtol = 1e-5};
        struct lathe_tensor_view view = {.data = got->data, .dtype = got->dtype, .rank = got->rank};
        struct lathe_comparison result;
        memcpy(view.dims, got->dims, sizeof view.dims);
        lathe_compare(got->name, &view, want, NULL, &bounds, &result);
        if (!result.passed)
            fail_msg("%s: %s", name, result.why);
    }
    lathe_answers_free(&answers);
    lathe_feeds_free(&feeds);
    lathe_data_set_free(&set);
    lathe_reference_close(&reference);
}

static void cases_give_their_answers(void **state) {
    (void)state;
    char path[1024];
    unsigned count = 0;
    snprintf(path, sizeof path, "%s/cases", folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        run_case(entry->d_name);
        count++;
    }
    closedir(dir);
    print_message("%u models\n", count);
    assert_true(count >= 60);
}

static void bad_models_are_refused(void **state) {
    (void)state;
    char path[1024], line[1024], name[256];
    unsigned count = 0;
    snprintf(path, sizeof path, "%s/bad.txt", folder);
    FILE *list = fopen(path, "r");
    assert_non_null(list);
    while (fgets(line, sizeof line, list)) {
        int code, at;
        if (line[0] == '#' || sscanf(line, "%255s %d %n", name, &code, &at) != 2)
            continue;
        struct lathe_model_file *file = NULL;
        struct lathe_graph *graph = NULL;
        lathe_diag_reset(&diag);
        snprintf(path, sizeof path, "%s/bad/%s.onnx", folder, name);
        enum lathe_status status = lathe_import_onnx(path, NULL, &file, &graph, &diag);
        if ((int)status != code)
            fail_msg("%s: status %d, expected %d: %s", name, status, code, diag.text);
        assert_null(file);
        assert_null(graph);
        assert_null(strchr(diag.text, '\n'));
        for (char *word = strtok(line + at, "|\n"); word; word = strtok(NULL, "|\n"))
            if (!strstr(diag.text, word))
                fail_msg("%s: the message lacks \"%s\": %s", name, word, diag.text);
        count++;
    }
    fclose(list);
    print_message("%u models\n", count);
    assert_true(count >= 35);
}

/* A missing file and a folder. */
static void paths_are_checked(void **state) {
    (void)state;
    char path[1024];
    struct lathe_model_file *file;
    struct lathe_graph *graph;
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_import_onnx("no/such/model.onnx", NULL, &file, &graph, &diag), LATHE_INVALID);
    assert_non_null(strstr(diag.text, "no/such/model.onnx"));
    lathe_diag_reset(&diag);
    snprintf(path, sizeof path, "%s/bad", folder);
    assert_int_equal(lathe_import_onnx(path, NULL, &file, &graph, &diag), LATHE_INVALID);
    assert_non_null(strstr(diag.text, "attribute_type.onnx, axis_range.onnx"));
}

/* The source says where nodes stand, not what they mean: the same graph from any order of them. */
static void order_does_not_matter(void **state) {
    (void)state;
    char path[1024];
    struct lathe_model_file *file;
    struct lathe_graph *graph;
    static const enum lathe_op expected[] = {LATHE_OP_MATMUL, LATHE_OP_RELU, LATHE_OP_ADD};
    unsigned at = 0;
    lathe_diag_reset(&diag);
    snprintf(path, sizeof path, "%s/cases/scrambled/model.onnx", folder);
    assert_int_equal(lathe_import_onnx(path, NULL, &file, &graph, &diag), LATHE_OK);
    LATHE_FOR_NODES(graph, n) {
        assert_true(at < 3);
        assert_int_equal(lathe_node_at(graph, n)->op, expected[at++]);
    }
    assert_int_equal(at, 3);
    assert_int_equal(lathe_graph_check(graph, &diag), LATHE_OK);
    lathe_graph_free(&graph);
    lathe_model_file_close(&file);
}

static void unused_inputs_stay(void **state) {
    (void)state;
    char path[1024];
    struct lathe_model_file *file;
    struct lathe_graph *graph;
    lathe_diag_reset(&diag);
    snprintf(path, sizeof path, "%s/cases/unused_input/model.onnx", folder);
    assert_int_equal(lathe_import_onnx(path, NULL, &file, &graph, &diag), LATHE_OK);
    assert_int_equal(graph->input_count, 2);
    assert_string_equal(lathe_value_at(graph, graph->inputs[1])->name, "other");
    lathe_graph_free(&graph);
    lathe_model_file_close(&file);
}

int main(int argc, char **argv) {
    if (argc > 1)
        folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_give_their_answers), cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(paths_are_checked),        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(unused_inputs_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
