/* The partition of steps: against trying every one; and the stages of a plan. */
#include "built_graph.h"
#include "partition_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 9

struct quality {
    uint64_t largest;
    double squares;
};

static bool better(struct quality a, struct quality b) {
    return a.largest < b.largest || (a.largest == b.largest && a.squares < b.squares);
}

static struct quality quality_of(const uint64_t *costs, unsigned parts, const uint32_t *cuts) {
    struct quality q = {0, 0};
    for (unsigned k = 0; k < parts; k++) {
        uint64_t sum = 0;
        for (uint32_t i = cuts[k]; i < cuts[k + 1]; i++)
            sum += costs[i];
        q.largest = sum > q.largest ? sum : q.largest;
        q.squares += (double)sum * (double)sum;
    }
    return q;
}

static struct quality best_of_all(const uint64_t *costs, uint32_t count, unsigned parts) {
    struct quality best = {UINT64_MAX, 0};
    for (uint32_t mask = 0; mask < 1u << (count - 1); mask++) { /* bit i: a cut behind item i */
        if ((unsigned)__builtin_popcount(mask) != parts - 1)
            continue;
        uint32_t cuts[MOST + 1] = {0}, n = 1;
        for (uint32_t i = 0; i + 1 < count; i++)
            if (mask >> i & 1)
                cuts[n++] = i + 1;
        cuts[n] = count;
        struct quality q = quality_of(costs, parts, cuts);
        best = better(q, best) ? q : best;
    }
    return best;
}

static void test_exact(void **state) {
    (void)state;
    uint32_t seed = 7, tried = 0;
    for (unsigned round = 0; round < 400; round++) {
        uint64_t costs[MOST];
        uint32_t count = 1 + round % MOST;
        for (uint32_t i = 0; i < count; i++) {
            seed = seed * 1664525 + 1013904223;
            costs[i] = round % 5 == 0 ? 0 : (seed >> 16) % (round % 3 ? 100 : 4);
        }
        for (unsigned parts = 1; parts <= count; parts++, tried++) {
            uint32_t cuts[MOST + 1];
            assert_true(lathe_partition(costs, count, parts, cuts));
            assert_int_equal(cuts[0], 0);
            assert_int_equal(cuts[parts], count);
            for (unsigned k = 0; k < parts; k++)
                assert_true(cuts[k] < cuts[k + 1]);
            struct quality got = quality_of(costs, parts, cuts), want = best_of_all(costs, count, parts);
            if (got.largest != want.largest || got.squares != want.squares)
                fail_msg("round %u, %u items in %u parts: largest %llu, %llu can be had", round, count, parts,
                         (unsigned long long)got.largest, (unsigned long long)want.largest);
        }
    }
    assert_true(tried > 1500);
}

/* A model of a thousand equal steps and one that is worth a hundred. */
static void test_large(void **state) {
    (void)state;
    static uint64_t costs[1001];
    uint32_t cuts[65];
    for (unsigned i = 0; i < 1001; i++)
        costs[i] = i == 500 ? 100000 : 1000;
    assert_true(lathe_partition(costs, 1001, 64, cuts));
    struct quality q = quality_of(costs, 64, cuts);
    assert_int_equal(q.largest, 100000);
    assert_true(lathe_partition(costs, 1001, 4, cuts));
    q = quality_of(costs, 4, cuts);
    assert_int_equal(q.largest, 300000); /* 275000 would cut the large one */
}

/* Stages follow one another, use up the steps and count each byte of weights in the stage that reads it. */
static void test_stages(void **state) {
    (void)state;
    struct built b;
    struct lathe_stage stages[64], all[1];
    unsigned count;
    build_graph(&b, small_encoder, &(struct lathe_emit_options){.jobs = 1, .max_batch = 8, .max_seq = 32});
    const struct lathe_plan *p = &b.artifact->plan;
    assert_int_equal(lathe_stages_make(p, NULL, 1, all, &count, NULL), LATHE_OK);
    assert_int_equal(count, 1);
    assert_int_equal(all[0].end, p->head->step_count);
    assert_true(all[0].cost > 0);
    assert_true(all[0].activation_bytes <= p->head->arena_bytes);
    for (unsigned cores = 1; cores <= 64; cores++) {
        assert_int_equal(lathe_stages_make(p, NULL, cores, stages, &count, NULL), LATHE_OK);
        assert_int_equal(count, cores < p->head->step_count ? cores : p->head->step_count);
        uint64_t weights = 0;
        for (unsigned k = 0; k < count; k++) {
            assert_int_equal(stages[k].first, k ? stages[k - 1].end : 0);
            assert_true(stages[k].end > stages[k].first);
            assert_true(stages[k].weight_bytes <= all[0].weight_bytes);
            weights += stages[k].weight_bytes;
        }
        assert_int_equal(stages[count - 1].end, p->head->step_count);
        assert_true(weights >= all[0].weight_bytes);
        assert_true(lathe_stages_imbalance(stages, count) >= 0);
    }
    /* a core with stages of two plans holds the weights of both, what they share once */
    struct lathe_plan other = *p;
    struct lathe_fmt_plan head = *p->head;
    head.step_count = p->head->step_count - 1; /* its stages end elsewhere */
    other.head = &head;
    const struct lathe_plan *const two[] = {&other, p};
    unsigned cores = p->head->step_count;
    assert_true(cores <= 32);
    assert_int_equal(lathe_stages_make_all(two, NULL, 2, 2, stages, &count, NULL), LATHE_OK);
    assert_int_equal(count, 2);
    assert_int_equal(stages[1].end, cores - 1);
    assert_int_equal(stages[3].end, cores);
    for (int k = 0; k < 2; k++) {
        struct lathe_stage alone[2];
        unsigned n;
        assert_int_equal(lathe_stages_make(p, NULL, 2, alone, &n, NULL), LATHE_OK);
        assert_true(stages[2 + k].weight_bytes >= alone[k].weight_bytes);
        assert_true(stages[2 + k].weight_bytes >= stages[k].weight_bytes);
        assert_true(stages[2 + k].weight_bytes <= all[0].weight_bytes);
    }
    assert_int_equal(lathe_stages_make_all(two, NULL, 2, cores, stages, &count, NULL), LATHE_OK);
    assert_int_equal(count, cores - 1); /* as many as the shorter one has steps */
    /* smaller maxima touch fewer bytes, of the same weights */
    int64_t small[8];
    assert_true(p->head->symbol_count <= 8);
    for (uint32_t i = 0; i < p->head->symbol_count; i++)
        small[i] = 2;
    assert_int_equal(lathe_stages_make(p, small, 1, stages, &count, NULL), LATHE_OK);
    assert_true(stages[0].activation_bytes * 4 < all[0].activation_bytes);
    assert_int_equal(stages[0].weight_bytes, all[0].weight_bytes);
    free_built(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
