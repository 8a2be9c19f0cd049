/* widen_floats: what is read in f32, and what stays in the 16 bits it is stored in. */
#include "pass_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS    129
#define COLUMNS 128 /* together more than what is worth a copy */

/* The text with "@" replaced by a table's elements. */
static char *with_table(const char *text) {
    size_t size = strlen(text) + (size_t)ROWS * COLUMNS * 3 + 16;
    char *out = malloc(size);
    const char *at = strchr(text, '@');
    size_t n = (size_t)(at - text);
    if (!out)
        abort();
    memcpy(out, text, n);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        n += (size_t)sprintf(out + n, "%s%d", i ? ", " : "", i % 7);
    strcpy(out + n, at + 1);
    return out;
}

#define TABLE  "const %t : f16[129, 128] = {@}\n"
#define IDS    "input %ids : i64[batch, seq]\n"
#define LOOKUP "%e : f16[batch, seq, 128] = gather(%t, %ids) {axis=0}\n"

static const struct pass_case cases[] = {
    {"a table keeps its form", "widen_floats fold_constants drop_dead_nodes", TABLE IDS LOOKUP "output %e as \"e\"\n",
     "gather=1\ntext:gather(%t, %ids)\nno text:f32[129, 128]"},
    {"a table of look-ups and of a product", "widen_floats fold_constants drop_no_ops fuse_linear drop_dead_nodes",
     TABLE IDS LOOKUP "%w : f16[128, 129] = transpose(%t) {perm=[1, 0]}\n"
                      "%y : f16[batch, seq, 129] = matmul(%e, %w)\noutput %y as \"y\"\n",
     "linear=1 transpose=0\ntext:trans_b=1\ntext:gather(%t, %ids)\nno text:const %t.1"},
    {"casts of the source", "widen_floats fold_constants fuse_linear drop_dead_nodes",
     TABLE IDS "%tf : f32[129, 128] = cast(%t) {to=1}\n"
               "%ef : f32[batch, seq, 128] = gather(%tf, %ids) {axis=0}\n"
               "%w : f32[128, 129] = transpose(%tf) {perm=[1, 0]}\n"
               "%y : f32[batch, seq, 129] = matmul(%ef, %w)\noutput %y as \"y\"\n",
     "linear=1\ntext:gather(%t, %ids)\ntext:linear("},
    {"added to something it is widened in the run", "widen_floats fold_constants",
     TABLE "input %x : f16[129, 128]\n%y : f16[129, 128] = add(%x, %t)\noutput %y as \"y\"\n",
     "add=1\ntext:const %t : f16[129, 128]\ntext:= cast(%t)\nno text:const %t.1"},
};

static void test_case(void **state) {
    const struct pass_case *c = *state;
    char *graph = with_table(c->graph);
    struct pass_case whole = *c;
    whole.graph = graph;
    pass_case_run(&whole);
    free(graph);
}

int main(void) {
    enum { COUNT = sizeof cases / sizeof *cases };
    static struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, test_case, NULL, NULL, (void *)(uintptr_t)&cases[i]};
    return _cmocka_run_group_tests("widen_floats", tests, COUNT, NULL, NULL);
}
