/* pair_products: which layers get the sums of products of their weights, that these are right, and that the numbers
 * stay.
 */
#include "graph_run.h"
#include "ops_enums.h"
#include "pass.h"
#include "target.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 40 };

/* A layer with weights of its own: columns [K, n], of which one may be smaller by a factor. */
static struct lathe_graph *layer(int n, int k, float smallest, float size, bool transposed, const char *more) {
    size_t room = (size_t)(n * k) * 24 + 1024, at;
    char *text = malloc(room);
    at = (size_t)snprintf(text, room, "input %%x : f32[s, %d]\nconst %%w : f32[%d,%d] = {", k, transposed ? n : k,
                          transposed ? k : n);
    unsigned state = 7;
    for (int i = 0; i < n * k; i++) {
        int column = transposed ? i / k : i % n;
        state = state * 1664525u + 1013904223u;
        float w = ((float)(state >> 8) / 8388608.0f - 1.0f) * size * (column == 3 ? smallest : 1);
        at += (size_t)snprintf(text + at, room - at, "%s%.9g", i ? ", " : "", (double)w);
    }
    snprintf(text + at, room - at, "}\n%%y : f32[s, %d] = linear(%%x, %%w) {%s%s}\noutput %%y as \"y\"\n", n,
             transposed ? "trans_b=1" : "trans_b=0", more);
    struct lathe_graph *g = graph_run_parse(text, "layer");
    free(text);
    return g;
}

static void run_pass(struct lathe_graph *g, uint64_t features, bool int8) {
    static struct lathe_diag diag;
    struct lathe_target target = {.features = features};
    struct lathe_pass_options options = {.int8 = int8};
    struct lathe_pass_ctx ctx = {
        .graph = g, .target = &target, .options = &options, .scratch = lathe_arena_new(), .diag = &diag};
    if (lathe_pass_by_name("pair_products")->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s", diag.text);
    lathe_arena_free(&ctx.scratch);
}

static lathe_node_id only_layer(const struct lathe_graph *g) {
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op == LATHE_OP_LINEAR)
            return n;
    }
    fail_msg("no layer");
    return LATHE_NONE;
}

static void layers(void **unused) {
    (void)unused;
    const uint64_t fast = LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS);
    static const struct {
        const char *name;
        int n, k;
        float smallest, size;
        bool transposed, other_target, int8, gets;
        const char *more;
    } rows[] = {
        {"plain", 32, K, 1, 0.1f, false, false, false, true, ""},
        {"transposed", 32, K, 1, 0.1f, true, false, false, true, ""},
        {"large weights", 16, 3, 1, 1000, false, false, false, true, ""},
        {"a column that is somewhat smaller", 32, K, 0.2f, 0.1f, false, false, false, true, ""},
        {"a column that is much smaller", 32, K, 0.01f, 0.1f, false, false, false, false, ""},
        {"a column of zeros", 32, K, 0, 0.1f, true, false, false, false, ""},
        {"zeros", 32, K, 1, 0, true, false, false, false, ""},
        {"no whole panels", 24, K, 1, 0.1f, false, false, false, false, ""},
        {"another target", 32, K, 1, 0.1f, false, true, false, false, ""},
        {"8 bits come later", 32, K, 1, 0.1f, false, false, true, false, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g =
            layer(rows[i].n, rows[i].k, rows[i].smallest, rows[i].size, rows[i].transposed, rows[i].more);
        struct lathe_graph *before =
            layer(rows[i].n, rows[i].k, rows[i].smallest, rows[i].size, rows[i].transposed, rows[i].more);
        run_pass(g, rows[i].other_target ? 0 : fast, rows[i].int8);
        const struct lathe_node *node = &g->nodes[only_layer(g)];
        if ((node->n_in == 5) != rows[i].gets)
            fail_msg("%s: %u operands", rows[i].name, node->n_in);
        if (rows[i].gets) {
            const float *w = g->values[node->in[1]].data, *pairs = g->values[node->in[4]].data;
            struct lathe_attrs attrs = lathe_node_attrs(g, only_layer(g));
            double squares = 0;
            int n = rows[i].n, k = rows[i].k;
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int t = 0; t < k; t++) {
                    double a = (double)(rows[i].transposed ? w[j * k + t] : w[t * n + j]);
                    squares += a * a / (n * k);
                    if (t % 3 == 1 && t + 1 < k / 3 * 3)
                        sum -= a * (double)(rows[i].transposed ? w[j * k + t + 1] : w[(t + 1) * n + j]);
                }
                assert_true(pairs[j] == (float)sum);
            }
            double size = ldexp(1, 2 * (int)lathe_attr_int(&attrs, LATHE_ATTR_W_EXPONENT, 99));
            assert_true(squares >= size / 2 && squares < 2 * size);
            graph_run_same(before, g, (const int64_t[32]){13}, rows[i].name, 1e-4f * rows[i].size * (float)k);
        }
        lathe_graph_free(&before);
        lathe_graph_free(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
