/* Layers that pass their rows from one to the next on the same thread, or quantize them before the threads meet: random
 * chains of products, norms and activations give the same bits with any number of threads, whatever buffers the memory
 * plan lets share bytes. */
#include "built_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTHS = 4, MOST = 96, LAYERS = 9, BATCH = 8, SEQ = 40 };
static const int widths[WIDTHS] = {32, 48, 64, MOST};

static uint32_t random_state;
static uint32_t next_random(uint32_t below) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

static char text[8 << 20];
static size_t used;
#define SAY(...) (used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__))

static void say_const(const char *name, const char *type, int rows, int columns, bool floats) {
    if (rows)
        SAY("const %%%s : %s[%d, %d] = {", name, type, rows, columns);
    else
        SAY("const %%%s : %s[%d] = {", name, type, columns);
    for (int i = 0; i < (rows ? rows : 1) * columns; i++)
        if (floats)
            SAY("%s%.3f", i ? ", " : "", (double)next_random(2000) / 1000 - 1);
        else
            SAY("%s%d", i ? ", " : "", (int)next_random(255) - 127);
    SAY("}\n");
}

/* Values 0 to count - 1 of the chain, [batch*seq, width_of]. */
static void say_graph(uint32_t seed) {
    random_state = seed;
    used = 0;
    int width_of[LAYERS + 1];
    SAY("input %%ids : i64[batch, seq]\n");
    say_const("table", "f32", 16, MOST, true);
    char body[1 << 14];
    size_t length = 0;
    width_of[0] = MOST;
#define ADD(...) (length += (size_t)snprintf(body + length, sizeof body - length, __VA_ARGS__))
    ADD("%%rows : f32[batch, seq, %d] = gather(%%table, %%ids) {axis=0}\n", MOST);
    ADD("%%v0 : f32[batch*seq, %d] = reshape(%%rows)\n", MOST);
    for (int i = 1; i <= LAYERS; i++) {
        char name[4][16];
        int k = width_of[i - 1], n = widths[next_random(WIDTHS)], back = -1;
        for (int j = 0; j < i; j++) /* an earlier value that could be added */
            if (width_of[j] == n && (back < 0 || next_random(2)))
                back = j;
        for (int c = 0; c < 4; c++)
            snprintf(name[c], sizeof name[c], "c%d_%d", i, c);
        char residual[16] = "_";
        if (back >= 0 && next_random(2))
            snprintf(residual, sizeof residual, "%%v%d", back);
        uint32_t kind = next_random(4);
        if (kind == 0) {
            n = k;
            back = (int)next_random((uint32_t)i);
            while (width_of[back] != n)
                back++;
            say_const(name[0], "f32", 0, n, true);
            say_const(name[1], "f32", 0, n, true);
            ADD("%%v%d : f32[batch*seq, %d] = skip_layer_norm(%%v%d, %%v%d, %%%s, %%%s)\n", i, n, i - 1, back, name[0],
                name[1]);
        } else if (kind == 1) {
            say_const(name[0], "f32", k, n, true);
            say_const(name[1], "f32", 0, n, true);
            ADD("%%v%d : f32[batch*seq, %d] = linear(%%v%d, %%%s, %%%s, %s) {activation=%u}\n", i, n, i - 1, name[0],
                name[1], residual, next_random(3));
        } else {
            say_const(name[0], "i8", k, n, false);
            say_const(name[1], "f32", 0, n, true);
            say_const(name[2], "i32", 0, n, false);
            say_const(name[3], "f32", 0, n, true);
            ADD("%%v%d : f32[batch*seq, %d] = linear_q8(%%v%d, %%%s, %%%s, %%%s, %%%s, %s) {activation=%u}\n", i, n,
                i - 1, name[0], name[1], name[2], name[3], residual, next_random(3));
        }
        width_of[i] = n;
    }
    SAY("%soutput %%v%d as \"y\"\n", body, LAYERS);
    assert_true(used < sizeof text && length < sizeof body);
}

static void run_once(struct built *b, unsigned threads, int64_t batch, int64_t seq, void *out, size_t *bytes) {
    static struct lathe_diag why;
    static int64_t ids[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++)
        ids[i] = i * 7 % 16;
    struct lathe_session_options options = {.threads = threads, .always_share = true, .poison = 0xa5};
    struct lathe_session *s = NULL;
    lathe_diag_reset(&why);
    if (lathe_session_new(b->artifact, &options, &s, &why) != LATHE_OK)
        fail_msg("%s", why.text);
    for (int again = 0; again < 6; again++) {
        if (lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){batch, seq}, ids, &why) != LATHE_OK ||
            lathe_session_run(s, &why) != LATHE_OK)
            fail_msg("%s", why.text);
        const struct lathe_tensor_view *y = lathe_session_output(s, 0);
        assert_true(y->bytes <= (size_t)BATCH * SEQ * MOST * 4 && y->bytes > 0);
        if (again == 0) {
            *bytes = y->bytes;
            memcpy(out, y->data, y->bytes);
        }
        assert_memory_equal(out, y->data, y->bytes);
    }
    lathe_session_close(&s);
}

static void test_chains(void **state) {
    (void)state;
    static float one[BATCH * SEQ * MOST], many[BATCH * SEQ * MOST];
    for (uint32_t seed = 1; seed <= 24; seed++) {
        struct built b;
        say_graph(seed);
        build_graph(&b, text, &(struct lathe_emit_options){.jobs = 1, .max_batch = BATCH, .max_seq = SEQ});
        for (int64_t seq = 9; seq <= SEQ; seq += 31) {
            size_t bytes, other;
            run_once(&b, 1, BATCH, seq, one, &bytes);
            for (unsigned threads = 2; threads <= 4; threads++) {
                run_once(&b, threads, BATCH, seq, many, &other);
                assert_int_equal(bytes, other);
                if (memcmp(one, many, bytes) != 0)
                    fail_msg("seed %u: %u threads give other bits", seed, threads);
            }
            /* and a row the bits that it has without its mates, too few rows then to be cut by rows */
            for (unsigned threads = 1; threads <= 4; threads++) {
                run_once(&b, threads, 1, seq, many, &other);
                assert_memory_equal(one, many, other);
            }
        }
        free_built(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
