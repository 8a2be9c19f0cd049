/* The report: its three forms, its order, and the --expect conditions. */
#include "report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

static struct lathe_report *sample(bool reversed) {
    struct lathe_report *r = lathe_report_new();
    assert_non_null(r);
    lathe_report_source(r, "m<&>\n.onnx", "00", "pytorch", "ai.onnx 17, com.microsoft 1", 8, 1000);
    lathe_report_target(r, "haswell", "f32", "avx2 fma");
    lathe_report_pass(r, "fuse_attention", 20, 10, 2, 1.5);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"attention", "gelu", "layernorm"};
        int k = reversed ? 2 - i : i;
        lathe_report_fusion(r, names[k], (unsigned)k + 2);
        lathe_report_missed(r, names[k], "node", "found 1, expected 2");
        lathe_report_warning(r, k ? "BAKED_AXIS" : "MASK_INF", names[k], "text");
    }
    lathe_report_missed(r, "gelu", "node", "found 3, expected 4"); /* the last for a place stays */
    lathe_report_drop_missed(r, "layernorm", "node");
    lathe_report_warning(r, "MASK_INF", "attention", "text"); /* once */
    lathe_report_memory(r, 100, 200, 190, 1000);
    lathe_report_shape(r, "input", "input_ids", "i64", "batch, seq");
    lathe_report_shape(r, "output", "logits", "f32", "batch, 2");
    lathe_report_shape(r, "limit", "max_length", "", "512");
    lathe_report_step(r, "linear", 4, 0.9);
    lathe_report_step(r, "attention", 2, 0.1);
    const struct lathe_report_compared compared = {
        .max_error = 1e-7, .bound = 1e-4, .cosine = 0.5, .rows = 9, .flips = 2, .passed = true};
    lathe_report_verification(r, "logits", &compared);
    lathe_report_quantization(r, "fc", "s8", 0.01, true, "why");
    lathe_report_quantized(r, "fc", &(struct lathe_report_stored){-127, 126, 1000, 3, 990, -1.5, 2.5});
    lathe_report_unverified(r, "batch 3", "refused");
    assert_false(lathe_report_failed(r));
    return r;
}

static json_t *as_json(const struct lathe_report *r, bool stable) {
    struct lathe_text text = {0};
    lathe_report_json(r, stable, &text);
    assert_false(text.failed);
    json_t *o = json_loadb(text.data, text.length, 0, NULL);
    lathe_text_free(&text);
    assert_non_null(o);
    return o;
}

static void json_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"source", "target", "passes",       "fusions",  "missed", "quantization",
                                       "memory", "shapes", "verification", "warnings", "cost",   "savings"};
    struct lathe_report *r = sample(false);
    json_t *o = as_json(r, false);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(o, keys[i]));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "fusions"), "gelu")), 3);
    assert_int_equal(json_array_size(json_object_get(o, "missed")), 2);
    json_t *skip = json_array_get(json_object_get(json_object_get(o, "verification"), "skipped"), 0);
    assert_string_equal(json_string_value(json_object_get(skip, "what")), "batch 3");
    assert_string_equal(json_string_value(json_object_get(skip, "why")), "refused");
    assert_int_equal(json_array_size(json_object_get(o, "warnings")), 3);
    json_t *opset = json_object_get(json_object_get(o, "source"), "opset");
    assert_int_equal(json_integer_value(json_object_get(opset, "ai.onnx")), 17);
    json_t *check = json_array_get(json_object_get(json_object_get(o, "verification"), "checks"), 0);
    assert_int_equal(json_integer_value(json_object_get(check, "argmax_rows")), 9);
    assert_int_equal(json_integer_value(json_object_get(check, "argmax_flips")), 2);
    json_t *layer = json_array_get(json_object_get(o, "quantization"), 0);
    assert_int_equal(json_integer_value(json_object_get(layer, "stored_min")), -127);
    assert_int_equal(json_integer_value(json_object_get(layer, "stored_max")), 126);
    assert_int_equal(json_integer_value(json_object_get(layer, "saturated")), 3);
    assert_int_equal(json_integer_value(json_object_get(layer, "rounded")), 990);
    json_t *shapes = json_object_get(o, "shapes");
    assert_int_equal(json_integer_value(json_object_get(shapes, "max_length")), 512);
    json_t *dims = json_object_get(json_array_get(json_object_get(shapes, "outputs"), 0), "shape");
    assert_string_equal(json_string_value(json_array_get(dims, 0)), "batch");
    assert_int_equal(json_integer_value(json_array_get(dims, 1)), 2);
    json_decref(o);
    lathe_report_free(&r);
    assert_null(r);
}

/* The order in which facts arrive does not show; the artifact's copy holds no time and no file. */
static void stable_form(void **state) {
    (void)state;
    struct lathe_report *a = sample(false), *b = sample(true);
    struct lathe_text ta = {0}, tb = {0};
    lathe_report_json(a, true, &ta);
    lathe_report_json(b, true, &tb);
    assert_string_equal(ta.data, tb.data);
    assert_null(strstr(ta.data, "onnx\","));
    assert_null(strstr(ta.data, "\"ms\""));
    assert_null(strstr(ta.data, "sha256"));
    lathe_text_free(&ta);
    lathe_text_free(&tb);
    lathe_report_free(&a);
    lathe_report_free(&b);
}

static void text_and_html(void **state) {
    (void)state;
    struct lathe_report *r = sample(false);
    struct lathe_text text = {0}, html = {0};
    lathe_report_text(r, &text);
    assert_non_null(strstr(text.data, "m<&>\\x0a.onnx")); /* a name cannot break the line */
    assert_non_null(strstr(text.data, "attention at node: found 1, expected 2"));
    lathe_report_html(r, &html);
    assert_non_null(strstr(html.data, "m&lt;&amp;&gt;"));
    assert_null(strstr(html.data, "<&>"));
    assert_null(strstr(html.data, "http"));
    assert_null(strstr(html.data, "<script"));
    lathe_text_free(&text);
    lathe_text_free(&html);
    lathe_report_free(&r);
}

static void expectations(void **state) {
    (void)state;
    static const struct {
        const char *condition;
        enum lathe_status want;
        const char *word;
    } cases[] = {
        {"fuse.attention>=2", LATHE_OK, ""},
        {"attention==2", LATHE_OK, ""},
        {" gelu > 2 ", LATHE_OK, ""},
        {"gelu<=3", LATHE_OK, ""},
        {"gelu!=4", LATHE_OK, ""},
        {"fuse.attention>=12", LATHE_EXPECT_FAILED, "found 1, expected 2"},
        {"fuse.attention>=12", LATHE_EXPECT_FAILED, "fuse.attention"},
        {"gelu<3", LATHE_EXPECT_FAILED, "found 3, expected 4"},
        {"missed==0", LATHE_EXPECT_FAILED, "missed = 2"},
        {"missed.gelu==1", LATHE_OK, ""},
        {"warnings.MASK_INF==0", LATHE_EXPECT_FAILED, "MASK_INF = 1"},
        {"warnings<=3", LATHE_OK, ""},
        {"fuse.nothing==0", LATHE_OK, ""},
        {"fuse.nothing>=1", LATHE_EXPECT_FAILED, "no pass counts"},
        {"gelu=3", LATHE_USAGE, "=="},
        {"gelu>=", LATHE_USAGE, ""},
        {">=3", LATHE_USAGE, ""},
        {"gelu>=3x", LATHE_USAGE, ""},
        {"gelu>=-1", LATHE_USAGE, ""},
        {"gelu>=99999999999999999999", LATHE_USAGE, ""},
        {"", LATHE_USAGE, ""},
    };
    struct lathe_report *r = sample(false);
    static struct lathe_diag diag;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lathe_diag_reset(&diag);
        enum lathe_status status = lathe_report_expect(r, cases[i].condition, &diag);
        if (status != cases[i].want || !strstr(diag.text, cases[i].word))
            fail_msg("'%s': status %d, message '%s'", cases[i].condition, status, diag.text);
    }
    lathe_report_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(json_keys), cmocka_unit_test(stable_form),
                                       cmocka_unit_test(text_and_html), cmocka_unit_test(expectations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
