/* quantize_attention and round_attention: which attention runs in fewer bits, what the report says of the rest, and how
 * far the numbers move when it does. */
#include "calibration.h"
#include "graph_run.h"
#include "pass.h"
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VNNI (LATHE_CPU_MASK(LATHE_CPU_AVX512) | LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI))
#define BF16 (LATHE_CPU_MASK(LATHE_CPU_AVX512) | LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16))

struct attention_case {
    const char *name, *text;
    uint64_t features;
    const char *excluded; /* from integers */
    unsigned narrowed;    /* attentions afterwards that have `bits` */
    const char *report;   /* a word of it */
};

#define X      "input %x : f32[batch, seq, 96]\n"
#define OUT    "output %y as \"y\"\n"
#define HEADS  "{heads=2, head_dim=16, k_offset=32, v_offset=64"
#define RESULT "%y : f32[batch, seq, 32] = attention"
#define PRODUCTS                                                                                                       \
    "%p : f32[batch, seq, seq] = matmul(%x, %x) {trans_b=1}\nconst %f : f32[] = {0.02}\n"                              \
    "%s : f32[batch, seq, seq] = mul(%p, %f)\n%m : f32[batch, 1, seq, seq] = reshape(%s)\n"
#define POSITION "%p : i64[seq] = range() {start=0, delta=1}\n"

static const struct attention_case in_integers[] = {
    {"plain", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, VNNI, NULL, 1, "u8 keys a column"},
    {"AVX-VNNI", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI), NULL, 1,
     "8-bit weights"},
    {"AVX2", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, LATHE_CPU_MASK(LATHE_CPU_AVX2), NULL, 1, "8-bit weights"},
    {"a target of plain C", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, 0, NULL, 0, "which the target lacks"},
    {"left out for the accuracy", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, VNNI, "too far off", 0, "too far off"},
    {"keys, causal and a window",
     X "input %keys : i64[batch, seq]\n" RESULT "(%x, %x, %x, %keys) " HEADS ", causal=1, window=5}\n" OUT, VNNI, NULL,
     1, "u8 keys a column"},
    {"a bias of positions",
     X POSITION "%f : f32[seq] = cast(%p) {to=1}\n" RESULT "(%x, %x, %x, _, %f) " HEADS "}\n" OUT, VNNI, NULL, 1,
     "u8 keys a column"},
    {"a mask that is data", X "input %m : f32[batch, 1, seq, seq]\n" RESULT "(%x, %x, %x, _, %m) " HEADS "}\n" OUT,
     VNNI, NULL, 0, "computed from the inputs"},
    {"a bias of products", X PRODUCTS RESULT "(%x, %x, %x, _, %m) " HEADS "}\n" OUT, VNNI, NULL, 1, "u8 keys a column"},
    {"with masked queries",
     X PRODUCTS
     "input %i : i64[batch, 1, seq, 1]\n%k : bool[batch, 1, seq, 1] = cast(%i) {to=9}\nconst %no : f32[] = {-1e9}\n"
     "%w : f32[batch, 1, seq, seq] = where(%k, %m, %no)\n" RESULT "(%x, %x, %x, _, %w) " HEADS "}\n" OUT,
     VNNI, NULL, 1, "u8 keys a column"},
    {"with masked keys",
     X PRODUCTS
     "input %i : i64[batch, 1, 1, seq]\n%k : bool[batch, 1, 1, seq] = cast(%i) {to=9}\nconst %no : f32[] = {-1e9}\n"
     "%w : f32[batch, 1, seq, seq] = where(%k, %m, %no)\n" RESULT "(%x, %x, %x, _, %w) " HEADS "}\n" OUT,
     VNNI, NULL, 0, "computed from the inputs"},
    {"with keys that were queries before a transpose",
     X PRODUCTS
     "input %i : i64[batch, 1, seq, 1]\n%k : bool[batch, 1, seq, 1] = cast(%i) {to=9}\nconst %no : f32[] = {-1e9}\n"
     "%w : f32[batch, 1, seq, seq] = where(%k, %m, %no)\n"
     "%u : f32[batch, 1, seq, seq] = transpose(%w) {perm=[0, 1, 3, 2]}\n" RESULT "(%x, %x, %x, _, %u) " HEADS "}\n" OUT,
     VNNI, NULL, 0, "computed from the inputs"},
    {"with masked queries in the sum of a gather",
     X PRODUCTS "input %i : i64[batch, 1, seq, seq]\ninput %k : f32[batch, 1, seq, 1]\n"
                "%w : f32[batch, 1, seq, seq] = gather_elements(%m, %i, %k) {axis=3}\n" RESULT
                "(%x, %x, %x, _, %w) " HEADS "}\n" OUT,
     VNNI, NULL, 1, "u8 keys a column"},
    {"with masked keys in it",
     X PRODUCTS "input %i : i64[batch, 1, seq, seq]\ninput %k : f32[batch, 1, 1, seq]\n"
                "%w : f32[batch, 1, seq, seq] = gather_elements(%m, %i, %k) {axis=3}\n" RESULT
                "(%x, %x, %x, _, %w) " HEADS "}\n" OUT,
     VNNI, NULL, 0, "computed from the inputs"},
    {"a mask made of a product",
     X "input %k : f32[batch, seq, 1]\n%p : f32[batch, seq, seq] = matmul(%k, %k) {trans_b=1}\n"
       "%m : f32[batch, 1, seq, seq] = reshape(%p)\n" RESULT "(%x, %x, %x, _, %m) " HEADS "}\n" OUT,
     VNNI, NULL, 0, "computed from the inputs"},
    {"a soft cap", X RESULT "(%x, %x, %x) " HEADS ", softcap=30.0}\n" OUT, VNNI, NULL, 0, "soft cap"},
    {"a negative scale", X RESULT "(%x, %x, %x) " HEADS ", scale=-1.0}\n" OUT, VNNI, NULL, 0, "no positive number"},
    {"small heads",
     "input %x : f32[batch, seq, 12]\n%y : f32[batch, seq, 4] = attention(%x, %x, %x) {heads=1, head_dim=4, "
     "k_offset=4, "
     "v_offset=8}\n" OUT,
     VNNI, NULL, 0, "heads of 4 columns"},
    {"large heads",
     "input %x : f32[batch, seq, 160]\n%y : f32[batch, seq, 160] = attention(%x, %x, %x) {heads=1, head_dim=160}\n" OUT,
     VNNI, NULL, 0, "heads of 160 columns"},
};

static const struct attention_case in_bf16[] = {
    {"plain", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, BF16, NULL, 1, "bf16 queries, keys"},
    {"a target without dot products", X RESULT "(%x, %x, %x) " HEADS "}\n" OUT, LATHE_CPU_MASK(LATHE_CPU_AVX512), NULL,
     0, "which the target lacks"},
    {"keys, causal and a window",
     X "input %keys : i64[batch, seq]\n" RESULT "(%x, %x, %x, %keys) " HEADS ", causal=1, window=5}\n" OUT, BF16, NULL,
     1, "bf16 queries, keys"},
    {"a mask that is data", X "input %m : f32[batch, 1, seq, seq]\n" RESULT "(%x, %x, %x, _, %m) " HEADS "}\n" OUT,
     BF16, NULL, 1, "bf16 queries, keys"},
    {"a soft cap", X RESULT "(%x, %x, %x) " HEADS ", softcap=30.0}\n" OUT, BF16, NULL, 1, "bf16 queries, keys"},
    {"a negative scale", X RESULT "(%x, %x, %x) " HEADS ", scale=-1.0}\n" OUT, BF16, NULL, 1, "bf16 queries, keys"},
    {"small heads",
     "input %x : f32[batch, seq, 12]\n%y : f32[batch, seq, 4] = attention(%x, %x, %x) {heads=1, head_dim=4, "
     "k_offset=4, "
     "v_offset=8}\n" OUT,
     BF16, NULL, 0, "heads of 4 columns"},
    {"large heads",
     "input %x : f32[batch, seq, 160]\n%y : f32[batch, seq, 160] = attention(%x, %x, %x) {heads=1, head_dim=160}\n" OUT,
     BF16, NULL, 1, "bf16 queries, keys"},
};

static void run_case(const struct attention_case *c, bool bf16) {
    static const int64_t symbols[32] = {2, 37};
    static struct lathe_diag diag;
    const char *name = bf16 ? "round_attention" : "quantize_attention";
    struct lathe_graph *g = NULL;
    struct lathe_target target = {.features = c->features};
    struct lathe_quantize_log log = {0};
    struct lathe_quantize_options quantize = {.attention_excluded = c->excluded, .log = &log};
    struct lathe_pass_options options = {0};
    struct lathe_report *report = lathe_report_new();
    struct lathe_arena *scratch = lathe_arena_new();
    struct lathe_text json = {0};
    struct lathe_pass_ctx ctx = {.target = &target, .options = &options, .report = report, .scratch = scratch};
    int64_t count, again;
    ctx.diag = &diag;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(c->text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    ctx.graph = g;
    float *before = graph_run_output(g, symbols, c->name, &count);
    assert_int_equal(lathe_pass_by_name(name)->run(&ctx), LATHE_OK);
    assert_int_equal(ctx.changes, 0); /* only with that precision */
    options.bf16 = options.bf16_attention = bf16;
    options.quantize = bf16 ? NULL : &quantize;
    if (lathe_pass_by_name(name)->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s: %s", c->name, diag.text);
    assert_int_equal(ctx.changes, c->narrowed);
    lathe_report_json(report, true, &json);
    if (!strstr(json.data, c->report))
        fail_msg("%s: no \"%s\" in %s", c->name, c->report, json.data);
    float *after = graph_run_output(g, symbols, c->name, &again);
    assert_int_equal(count, again);
    double off = 0;
    for (int64_t i = 0; i < count; i++)
        off = fmax(off, fabs((double)before[i] - after[i]));
    /* Numbers of [-2, 2): something moves, and not far. */
    if (c->narrowed ? !(off > 0 && off < 0.03) : off != 0)
        fail_msg("%s: moved by %g", c->name, off);
    free(before);
    free(after);
    lathe_text_free(&json);
    lathe_report_free(&report);
    lathe_arena_free(&scratch);
    lathe_graph_free(&g);
}

static void integers(void **state) {
    run_case(*state, false);
}
static void bf16(void **state) {
    run_case(*state, true);
}

int main(void) {
    enum { INTEGERS = sizeof in_integers / sizeof *in_integers, ALL = INTEGERS + sizeof in_bf16 / sizeof *in_bf16 };
    struct CMUnitTest tests[ALL];
    for (unsigned i = 0; i < ALL; i++) {
        const struct attention_case *c = i < INTEGERS ? &in_integers[i] : &in_bf16[i - INTEGERS];
        tests[i] = (struct CMUnitTest){
            .name = c->name, .test_func = i < INTEGERS ? integers : bf16, .initial_state = (void *)(uintptr_t)c};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
