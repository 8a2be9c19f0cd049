/* lower_conv: which convolutions become linear layers, where the transposes go, and that the numbers are the same. */
#include "graph_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Weights are called %w0.. with so many output channels, input channels of a group, and kernel; %b is [32]. */
#define TOKENS(out, what)   "%" out " : f32[b, s, 32] = " what "\n"
#define CHANNELS(out, what) "%" out " : f32[b, 32, s] = " what "\n"
#define IN_TOKENS           "input %x : f32[b, s, 32]\n"
#define IN_CHANNELS         "input %x : f32[b, 32, s]\n"
#define LAST                "{perm=[0, 2, 1]}"
#define ONE(g)              "{group=" #g ", kernel_shape=[1], pads=[0, 0], strides=[1], dilations=[1]}"
#define OUT                 "output %y as \"y\"\n"

static const struct {
    const char *name, *weights, *graph; /* weights: dims, one tensor a blank */
    unsigned linear, conv, transposes;  /* after drop_no_ops */
} rows[] = {
    {"between transposes", "[32,32,1]",
     IN_TOKENS CHANNELS("t", "transpose(%x) " LAST) CHANNELS("c", "conv(%t, %w0, %b) " ONE(1))
         TOKENS("y", "transpose(%c) " LAST) OUT,
     1, 0, 0},
    {"groups", "[32,16,1]",
     IN_TOKENS CHANNELS("t", "transpose(%x) " LAST) CHANNELS("c", "conv(%t, %w0) " ONE(2))
         TOKENS("y", "transpose(%c) " LAST) OUT,
     1, 0, 0},
    {"channels second at both ends", "[32,16,1]", IN_CHANNELS CHANNELS("y", "conv(%x, %w0, %b) " ONE(2)) OUT, 1, 0, 2},
    {"two, an activation, a bias of channels and a residual", "[32,16,1] [32,32,1]",
     IN_TOKENS CHANNELS("t", "transpose(%x) " LAST) CHANNELS("c", "conv(%t, %w0, %b) " ONE(2)) CHANNELS("a", "relu(%c)")
         CHANNELS("d", "conv(%a, %w1) " ONE(1)) CHANNELS("e", "add(%d, %col)") CHANNELS("f", "mul(%half, %e)")
             CHANNELS("r", "add(%f, %t)") TOKENS("y", "transpose(%r) " LAST) OUT,
     2, 0, 0},
    {"an operand that is no transpose: what stands before it", "[32,32,1]",
     IN_CHANNELS CHANNELS("c", "conv(%x, %w0) " ONE(1)) CHANNELS("y", "add(%c, %x)") OUT, 1, 0, 2},
    {"two axes", "[32,16,1,1]",
     "input %x : f32[b, 32, 3, s]\n%y : f32[b, 32, 3, s] = conv(%x, %w0, %b) {group=2, kernel_shape=[1, 1]}\n" OUT, 1,
     0, 2},
    {"positions that meet", "[32,32,3]",
     IN_CHANNELS CHANNELS("y", "conv(%x, %w0) {group=1, kernel_shape=[3], pads=[1, 1]}") OUT, 0, 1, 0},
    {"padding", "[32,32,1]",
     IN_CHANNELS "%y : f32[b, 32, s+2] = conv(%x, %w0) {group=1, kernel_shape=[1], pads=[1, 1]}\n" OUT, 0, 1, 0},
    {"groups that do not fill a panel", "[32,8,1]", IN_CHANNELS CHANNELS("y", "conv(%x, %w0) " ONE(4)) OUT, 0, 1, 0},
    {"each channel alone", "[32,1,1]", IN_CHANNELS CHANNELS("y", "conv(%x, %w0) " ONE(32)) OUT, 0, 1, 0},
};

static void numbers(char *text, size_t size, const char *name, const char *dims, unsigned seed) {
    unsigned count = 1;
    for (const char *p = dims; *p; p++)
        if (*p == '[' || *p == ',')
            count *= (unsigned)atoi(p + 1);
    size_t at = strlen(text);
    at += (size_t)snprintf(text + at, size - at, "const %%%s : f32%s = {", name, dims);
    for (unsigned i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%d", i ? ", " : "",
                               (int)((i * 7 + seed) * 2654435761u >> 28) - 8);
    assert_true(at + 4 < size);
    strcat(text, "}\n");
}

static struct lathe_graph *graph_of(size_t i) {
    static char text[1 << 16], weights[128];
    text[0] = '\0';
    snprintf(weights, sizeof weights, "%s", rows[i].weights);
    unsigned n = 0;
    for (char *w = strtok(weights, " "); w; w = strtok(NULL, " "), n++) {
        char name[8];
        snprintf(name, sizeof name, "w%u", n);
        numbers(text, sizeof text, name, w, 3 + n);
    }
    numbers(text, sizeof text, "b", "[32]", 1);
    numbers(text, sizeof text, "col", "[32,1]", 2);
    strcat(text, "const %half : f32[] = {0.5}\n");
    strcat(text, rows[i].graph);
    return graph_run_parse(text, rows[i].name);
}

static void convolutions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g = graph_of(i), *source = graph_of(i);
        graph_run_pass(g, "lower_conv", rows[i].name);
        graph_run_pass(g, "drop_no_ops", rows[i].name);
        graph_run_pass(g, "drop_dead_nodes", rows[i].name);
        if (graph_run_count(g, LATHE_OP_LINEAR) != rows[i].linear ||
            graph_run_count(g, LATHE_OP_CONV) != rows[i].conv ||
            graph_run_count(g, LATHE_OP_TRANSPOSE) != rows[i].transposes)
            fail_msg("%s: %u linear, %u conv, %u transposes", rows[i].name, graph_run_count(g, LATHE_OP_LINEAR),
                     graph_run_count(g, LATHE_OP_CONV), graph_run_count(g, LATHE_OP_TRANSPOSE));
        static const int64_t symbols[32] = {2, 5};
        graph_run_same(source, g, symbols, rows[i].name,
                       1e-2f); /* sums of up to 32 * 8 * 2, of those once more: another order */
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(convolutions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
