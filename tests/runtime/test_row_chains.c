/* Layers that pass their rows from one to the next on the same thread, or quantize them before the threads meet: random
 * chains of products, norms and activations give the same bits with any number of threads, whatever buffers the memory
 * plan lets share bytes. So do layers whose threads go on with the heads that they have computed. */
#include "built_graph.h"
#include "gemm_split.h"
#include "session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTHS = 4, MOST = 96, WIDEST = 448, LAYERS = 9, BATCH = 8, SEQ = 40 };
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

/* Heads of attention beside each other, queries, keys and values in any order, from one product or from two, with and
 * without columns that no head has, values of another width, heads that share keys; the result may take the place of
 * what was multiplied, or not. True: the product is cut by heads. */
static bool say_heads(uint32_t seed) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    random_state = seed;
    used = 0;
    SAY("input %%ids : i64[batch, seq]\n");
    say_const("table", "f32", 16, MOST, true);
    bool apart = next_random(3) == 0, gap = next_random(4) == 0, grouped = next_random(4) == 0;
    int d = next_random(2) ? 16 : 32, dv = next_random(2) ? 16 : 32, heads = 4, kv = grouped ? 2 : heads, at[3];
    int width[3] = {heads * d, kv * d, kv * dv}, total[2] = {0, 0};
    const int *order = orders[next_random(6)];
    for (int i = 0; i < 3; i++) {
        int o = order[i], product = apart && o == 0;
        at[o] = total[product];
        total[product] += width[o] + (gap && o == 1 ? 16 : 0);
    }
    char body[1 << 12];
    size_t length = 0;
    ADD("%%rows : f32[batch, seq, %d] = gather(%%table, %%ids) {axis=0}\n", MOST);
    ADD("%%x : f32[batch*seq, %d] = reshape(%%rows)\n", MOST);
    for (int i = 0; i <= apart; i++) {
        char name[4][16];
        for (int c = 0; c < 4; c++)
            snprintf(name[c], sizeof name[c], "c%d_%d", i, c);
        say_const(name[0], "i8", MOST, total[i], false);
        say_const(name[1], "f32", 0, total[i], true);
        say_const(name[2], "i32", 0, total[i], false);
        say_const(name[3], "f32", 0, total[i], true);
        ADD("%%p%d : f32[batch*seq, %d] = linear_q8(%%x, %%%s, %%%s, %%%s, %%%s, _)\n", i, total[i], name[0], name[1],
            name[2], name[3]);
        ADD("%%o%d : f32[batch, seq, %d] = reshape(%%p%d)\n", i, total[i], i);
    }
    ADD("%%a : f32[batch, seq, %d] = attention(%%o%d, %%o0, %%o0) {heads=%d, kv_heads=%d, head_dim=%d, v_head_dim=%d, "
        "q_offset=%d, k_offset=%d, v_offset=%d, scale=0.0001}\n",
        heads * dv, apart, heads, kv, d, dv, at[0], at[1], at[2]);
    bool kept = next_random(4) != 0;
    SAY("%soutput %%%s as \"y\"\n", body, gap ? "p0" : "a"); /* all columns count */
    if (gap)
        SAY("output %%a as \"a\"\n");
    if (kept)
        SAY("output %%x as \"x\"\n");
    assert_true(used < sizeof text && length < sizeof body);
    return kept && !grouped && !gap;
}

static unsigned cut_for_heads; /* products of the last session */

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
        assert_true(y->bytes <= (size_t)BATCH * SEQ * WIDEST * 4 && y->bytes > 0);
        if (again == 0) {
            *bytes = y->bytes;
            memcpy(out, y->data, y->bytes);
        }
        assert_memory_equal(out, y->data, y->bytes);
    }
    cut_for_heads = 0;
    for (uint32_t i = 0; i < s->plan->head->step_count; i++)
        cut_for_heads += s->steps[i].op->op == LATHE_OP_LINEAR_Q8 && s->steps[i].heads.heads;
    lathe_session_close(&s);
}

static void test_heads(void **state) {
    (void)state;
    static float one[BATCH * SEQ * WIDEST], many[BATCH * SEQ * WIDEST];
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct built b;
        bool fits = say_heads(seed);
        build_graph(&b, text, &(struct lathe_emit_options){.jobs = 1, .max_batch = BATCH, .max_seq = SEQ});
        /* too few rows a thread to be cut by them, few enough that heads are preferred all the same, and too many */
        static const int64_t sizes[][2] = {{1, 12}, {3, 4}, {3, 32}, {BATCH, SEQ}};
        for (unsigned size = 0; size < sizeof sizes / sizeof *sizes; size++) {
            int64_t batch = sizes[size][0], seq = sizes[size][1];
            size_t bytes, other;
            run_once(&b, 1, batch, seq, one, &bytes);
            for (unsigned threads = 2; threads <= 4; threads++) {
                run_once(&b, threads, batch, seq, many, &other);
                size_t own = (size_t)(batch * seq) / threads;
                bool few = own < 8 || (own >= LATHE_LEAST_HEAD_ROWS && own <= LATHE_MOST_HEAD_ROWS);
                if (fits)
                    assert_int_equal(cut_for_heads > 0, threads != 3 && few);
                assert_int_equal(bytes, other);
                if (memcmp(one, many, bytes) != 0)
                    fail_msg("seed %u: %u threads give other bits", seed, threads);
            }
        }
        free_built(&b);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chains), cmocka_unit_test(test_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
