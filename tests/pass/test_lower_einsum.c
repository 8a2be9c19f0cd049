/* lower_einsum: which equations become a product, and that the numbers are the same (whole numbers: exactly). */
#include "graph_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *equation, *a, *b, *y; /* dims */
    bool lowered;
    unsigned transposes, reshapes;
} rows[] = {
    {"ij,jk->ik", "s, 4", "4, 5", "s, 5", true, 0, 0},
    {"ij,jk", "s, 4", "4, 5", "s, 5", true, 0, 0},
    {"ij,jk->ki", "s, 4", "4, 5", "5, s", true, 2, 0},                         /* k comes first: b^T a^T */
    {"abc,cde->abde", "b, s, 6", "6, 2, 4", "b, s, 2, 4", true, 0, 2},         /* Keras: a dense layer to heads */
    {"abcd,cde->abe", "b, s, 2, 4", "2, 4, 5", "b, s, 5", true, 0, 2},         /* and back */
    {"aecd,abcd->acbe", "b, s, 2, 4", "b, s, 2, 4", "b, 2, s, s", true, 2, 0}, /* scores of Keras: queries second */
    {"acbe,aecd->abcd", "b, 2, s, s", "b, s, 2, 4", "b, s, 2, 4", true, 2, 0}, /* its values */
    {"ibnd,jbnd->bnij", "s, b, 2, 4", "s, b, 2, 4", "b, 2, s, s", true, 2, 0}, /* XLNet */
    {"bhid,bhjd->bhij", "b, 2, s, 4", "b, 2, s, 4", "b, 2, s, s", true, 1, 0}, /* einops */
    {"BTNH,BSNH->BNTS", "b, s, 2, 4", "b, s, 2, 4", "b, 2, s, s", true, 2, 0}, /* JAX */
    {"...x,xy->...y", "b, s, 4", "4, 5", "b, s, 5", true, 0, 0},
    {"...x,hxy->...hy", "b, s, 4", "2, 4, 3", "b, s, 2, 3", true, 1, 2},
    {"b...d,b...e->b...de", "b, s, 4", "b, s, 5", "b, s, 4, 5", false, 0, 0}, /* nothing is summed */
    {"ijk,jil->kl", "b, s, 4", "s, b, 5", "4, 5", true, 2, 2},                /* two labels are summed */
    {"ii,ij->j", "3, 3", "3, 4", "4", false, 0, 0},                           /* a diagonal */
    {"ij,kj->k", "s, 4", "5, 4", "5", false, 0, 0},                           /* i is summed alone */
    {"ij,j->i", "s, 4", "4", "s", false, 0, 0},                               /* no columns */
    {"ij,jk->ik", "s, 4", "1, 5", "s, 5", false, 0, 0},                       /* sizes that broadcast */
    {"ij,jk->ik", "s, 1", "1, 5", "s, 5", true, 0, 0},
};

static struct lathe_graph *graph_of(size_t i) {
    char text[1024], equation[256] = "";
    for (const char *p = rows[i].equation; *p; p++)
        snprintf(equation + strlen(equation), sizeof equation - strlen(equation), "%s%d", *equation ? ", " : "", *p);
    snprintf(text, sizeof text,
             "input %%a : f32[%s]\ninput %%b : f32[%s]\n%%y : f32[%s] = einsum(%%a, %%b) {equation=[%s]}\n"
             "output %%y as \"y\"\n",
             rows[i].a, rows[i].b, rows[i].y, equation);
    return graph_run_parse(text, rows[i].equation);
}

static void equations(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g = graph_of(i), *source = graph_of(i);
        graph_run_pass(g, "lower_einsum", rows[i].equation);
        if (graph_run_count(g, LATHE_OP_MATMUL) != rows[i].lowered ||
            graph_run_count(g, LATHE_OP_EINSUM) == rows[i].lowered ||
            graph_run_count(g, LATHE_OP_TRANSPOSE) != rows[i].transposes ||
            graph_run_count(g, LATHE_OP_RESHAPE) != rows[i].reshapes)
            fail_msg("%s: %u products, %u transposes, %u reshapes", rows[i].equation,
                     graph_run_count(g, LATHE_OP_MATMUL), graph_run_count(g, LATHE_OP_TRANSPOSE),
                     graph_run_count(g, LATHE_OP_RESHAPE));
        static const int64_t symbols[32] = {2, 3};
        graph_run_same(source, g, symbols, rows[i].equation, 1e-5f); /* sums in another order */
        lathe_graph_free(&g);
        lathe_graph_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
