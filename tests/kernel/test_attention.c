/* Every attention_f32 and attention_bf16 row against the formula in double: sizes around tiles, groups and key blocks,
 * every mask form;
 * and the operators: a sequence alone, padded on either side, in a batch, packed, on several threads: the same bits. */
#include "op_run.h"

#include "attention_shape.h"
#include "ops.h"
#include "row_map.h"
#include "trap_instructions.h"

#include <math.h>

static const uint64_t levels[] = {0, LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA),
                                  LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA) |
                                      LATHE_CPU_MASK(LATHE_CPU_AVX512)};
#define LEVELS (sizeof levels / sizeof *levels)

#define AVX2   (LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA))
#define AVX512 (AVX2 | LATHE_CPU_MASK(LATHE_CPU_AVX512))
#define VNNI   (AVX512 | LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI))
#define TILES  (LATHE_CPU_MASK(LATHE_CPU_AMX_TILE) | LATHE_CPU_MASK(LATHE_CPU_AMX_BF16))
static const uint64_t q8_levels[] = {
    0,      AVX2, AVX2 | LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI),
    AVX512, VNNI, VNNI | LATHE_CPU_MASK(LATHE_CPU_AMX_TILE) | LATHE_CPU_MASK(LATHE_CPU_AMX_INT8)};
static const uint64_t bf16_levels[] = {0, AVX2, AVX512, AVX512 | LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16),
                                       AVX512 | LATHE_CPU_MASK(LATHE_CPU_AVX512_BF16) | TILES};
#define BF16_LEVELS (sizeof bf16_levels / sizeof *bf16_levels)
#define Q8_LEVELS   (sizeof q8_levels / sizeof *q8_levels)

struct masks {
    bool bias, allow, range, softcap;
};

static double as_operand(float x, bool bf16) {
    uint32_t bits = lathe_bf16_round(x);
    float rounded;
    memcpy(&rounded, &bits, sizeof rounded);
    return bf16 ? rounded : x;
}

/* A head of made-up numbers, with masks of every kind; those that `use` and `keys` leave out are not among the
 * operands.
 */
struct head {
    struct lathe_attention_f32_args args;
    size_t scratch_floats;
    float *q, *k, *v, *out, *bias, *scratch;
    uint8_t *allow, *keys, *no_key;
    int32_t *first, *last;
};

static struct head head_new(size_t nq, size_t nk, size_t d, size_t dv, struct masks use, bool keys, size_t scratch) {
    struct head h = {.scratch_floats = scratch / sizeof(float)};
    struct lathe_attention_f32_args *a = &h.args;
    *a = (struct lathe_attention_f32_args){.nq = nq, .nk = nk, .d = d, .dv = dv, .scale = 1.5f};
    a->ldq = d + test_below(9);
    a->ldk = d + test_below(9);
    a->ldv = dv + test_below(9);
    a->ldo = dv + test_below(9);
    a->ldb = nk + test_below(3);
    a->ld_allow = nk + test_below(3);
    a->q = h.q = guarded_floats(nq * a->ldq);
    a->k = h.k = guarded_floats(nk * a->ldk + 1);
    a->v = h.v = guarded_floats(nk * a->ldv + 1);
    a->out = h.out = guarded_floats(nq * a->ldo);
    h.bias = guarded_floats(nq * a->ldb + 1);
    a->scratch = h.scratch = guarded_floats(h.scratch_floats);
    memset(h.scratch, 0x7f, h.scratch_floats * sizeof(float)); /* NaN-like garbage */
    h.allow = malloc(nq * a->ld_allow + 1);
    h.keys = malloc(nk + 1);
    a->no_key = h.no_key = malloc(nq);
    h.first = malloc(nq * sizeof *h.first);
    h.last = malloc(nq * sizeof *h.last);
    for (size_t i = 0; i < nq * a->ld_allow; i++)
        h.allow[i] = test_below(3) != 0;
    size_t end = test_below(nk + 1); /* padding behind, or holes */
    bool behind = test_below(2);
    for (size_t j = 0; j < nk; j++)
        h.keys[j] = behind ? j < end : test_below(4) != 0;
    for (size_t i = 0; i < nq; i++) {
        h.first[i] = (int32_t)test_below(nk + 1);
        h.last[i] = h.first[i] + (int32_t)test_below(nk + 1 - (size_t)h.first[i]);
    }
    a->softcap = use.softcap ? 2.0f : 0;
    a->bias = use.bias ? h.bias : NULL;
    a->allow = use.allow ? h.allow : NULL;
    a->first = use.range ? h.first : NULL;
    a->last = use.range ? h.last : NULL;
    a->keys = keys ? h.keys : NULL;
    return h;
}

static void head_free(struct head *h) {
    const struct lathe_attention_f32_args *a = &h->args;
    free(h->allow);
    free(h->keys);
    free(h->no_key);
    free(h->first);
    free(h->last);
    guarded_free(h->q, a->nq * a->ldq);
    guarded_free(h->k, a->nk * a->ldk + 1);
    guarded_free(h->v, a->nk * a->ldv + 1);
    guarded_free(h->out, a->nq * a->ldo);
    guarded_free(h->bias, a->nq * a->ldb + 1);
    guarded_free(h->scratch, h->scratch_floats);
}

static void one_head(const struct lathe_kernels *kernels, size_t nq, size_t nk, size_t d, size_t dv, struct masks use,
                     bool bf16) {
    lathe_attention_f32_fn attention = bf16 ? kernels->attention_bf16 : kernels->attention_f32;
    struct head h = head_new(nq, nk, d, dv, use, false, lathe_attention_f32_scratch(nq, nk, d, dv));
    const size_t ldq = h.args.ldq, ldk = h.args.ldk, ldv = h.args.ldv, ldo = h.args.ldo, ldb = h.args.ldb,
                 lda = h.args.ld_allow;
    float *q = h.q, *k = h.k, *v = h.v, *out = h.out, *bias = h.bias;
    const uint8_t *allow = h.allow, *no_key = h.no_key;
    const int32_t *first = h.first, *last = h.last;
    const struct lathe_attention_f32_args args = h.args;
    attention(&args);
    double *s = malloc((nk + 1) * sizeof *s);
    for (size_t i = 0; i < nq; i++) {
        double max = -INFINITY, sum = 0;
        for (size_t j = 0; j < nk; j++) {
            s[j] = 0;
            for (size_t c = 0; c < d; c++)
                s[j] += as_operand(q[i * ldq + c], bf16) * as_operand(k[j * ldk + c], bf16);
            s[j] *= 1.5;
            if (use.softcap)
                s[j] = 2 * tanh(s[j] / 2);
            if (use.bias)
                s[j] += bias[i * ldb + j];
            if ((use.allow && !allow[i * lda + j]) || (use.range && ((int32_t)j < first[i] || (int32_t)j >= last[i])))
                s[j] = -INFINITY;
            max = s[j] > max ? s[j] : max;
        }
        bool any = max > -INFINITY;
        assert_int_equal(no_key[i], !any);
        for (size_t j = 0; j < nk; j++)
            sum += s[j] = any ? exp(s[j] - max) : 0;
        for (size_t c = 0; c < dv; c++) {
            double want = 0, size = 0; /* weights and their sum are off by up to 2^-8 each */
            for (size_t j = 0; j < nk && any; j++) {
                double term = s[j] / sum * as_operand(v[j * ldv + c], bf16);
                want += term;
                size += fabs(term);
            }
            /* the errors of scores grow with d */
            if (!(fabs(out[i * ldo + c] - want) <= 2e-6 + 5e-8 * (double)d + (bf16 ? size * 0x1p-7 : 0)))
                fail_msg("%s nq %zu nk %zu d %zu dv %zu masks %d%d%d%d: [%zu][%zu] is %.9g, not %.9g",
                         bf16 ? "bf16" : "f32", nq, nk, d, dv, use.bias, use.allow, use.range, use.softcap, i, c,
                         out[i * ldo + c], want);
        }
        /* alone: the same bits */
        if (i % 5 == 0) {
            float *one = guarded_floats(dv);
            struct lathe_attention_f32_args alone = args;
            alone.nq = 1;
            alone.q = q + i * ldq;
            alone.out = one;
            alone.bias = use.bias ? bias + i * ldb : NULL;
            alone.allow = use.allow ? allow + i * lda : NULL;
            alone.first = use.range ? first + i : NULL;
            alone.last = use.range ? last + i : NULL;
            attention(&alone);
            assert_memory_equal(one, out + i * ldo, dv * sizeof *one);
            guarded_free(one, dv);
        }
    }
    free(s);
    head_free(&h);
}

static void heads(void **state) {
    (void)state;
    static const size_t sizes[][4] = {{1, 1, 1, 1},      {1, 7, 64, 64},   {8, 8, 64, 64},    {15, 17, 32, 32},
                                      {16, 16, 16, 48},  {17, 14, 33, 5},  {31, 255, 64, 64}, {33, 256, 64, 64},
                                      {64, 257, 32, 32}, {40, 70, 96, 16}, {70, 513, 20, 24}, {5, 600, 64, 64},
                                      {40, 0, 8, 8}};
    for (size_t l = 0; l < LEVELS + BF16_LEVELS; l++) {
        bool bf16 = l >= LEVELS;
        uint64_t bits = bf16 ? bf16_levels[l - LEVELS] : levels[l];
        if (!test_can_run(bits) && !test_traps(bits))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(bits, &kernels);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (unsigned m = 0; m < 16; m++)
                if (!test_left_out(8))
                    one_head(&kernels, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                             (struct masks){m & 1, m & 2, m & 4, m & 8}, bf16);
    }
}

/* ---- attention_q8: every row equals plain C bit for bit, and plain C is near the formula */

/* A head with masks of every kind; `strange` puts what is no number into one place. */
static void one_q8(const struct lathe_kernels *kernels, lathe_attention_f32_fn plain, size_t nq, size_t nk, size_t d,
                   size_t dv, struct masks use, bool holes, bool strange) {
    struct head h = head_new(nq, nk, d, dv, use, holes, lathe_attention_q8_scratch(nq, nk, d, dv));
    const size_t ldq = h.args.ldq, ldk = h.args.ldk, ldv = h.args.ldv, ldo = h.args.ldo, ldb = h.args.ldb,
                 lda = h.args.ld_allow;
    float *q = h.q, *k = h.k, *v = h.v, *out = h.out, *bias = h.bias;
    float *want = malloc(nq * ldo * sizeof *want);
    const uint8_t *allow = h.allow, *keys = h.keys, *no_key = h.no_key;
    const int32_t *first = h.first, *last = h.last;
    uint8_t *no_key2 = malloc(nq);
    for (size_t j = 0; holes && j < nk; j++) /* what lies in masked keys has no part in anything */
        if (!keys[j]) {
            k[j * ldk] = test_below(2) ? NAN : 1e30f;
            v[j * ldv] = INFINITY;
        }
    for (size_t j = 0; j < nk; j++)
        if (use.bias && test_below(9) == 0)
            bias[test_below(nq) * ldb + j] = -INFINITY;
    if (strange && nk) {
        float odd = test_below(2) ? NAN : -INFINITY;
        size_t kind = test_below(4);
        if (kind == 0)
            q[test_below(nq) * ldq + test_below(d)] = odd;
        else if (kind == 1)
            k[test_below(nk) * ldk + test_below(d)] = odd;
        else if (kind == 2)
            v[test_below(nk) * ldv + test_below(dv)] = odd;
        else
            bias[test_below(nq) * ldb + test_below(nk)] = test_below(2) ? NAN : INFINITY;
    }
    memcpy(want, out, nq * ldo * sizeof *want);
    struct lathe_attention_f32_args truth = h.args;
    truth.out = want;
    truth.no_key = no_key2;
    plain(&truth);
    memset(h.scratch, 0x7f, h.scratch_floats * sizeof(float));
    kernels->attention_q8(&h.args);
    for (size_t i = 0; i < nq; i++) {
        if (no_key[i] != no_key2[i])
            fail_msg("%s: nq %zu nk %zu: no_key[%zu] is %d", kernels->names[0], nq, nk, i, no_key[i]);
        for (size_t c = 0; c < ldo; c++) {
            float got = out[i * ldo + c], expected = want[i * ldo + c];
            if (memcmp(&got, &expected, sizeof got) != 0 && !(got != got && expected != expected))
                fail_msg("%s: nq %zu nk %zu d %zu dv %zu masks %d%d%d holes %d strange %d: [%zu][%zu] is %.9g, not "
                         "%.9g",
                         kernels->names[0], nq, nk, d, dv, use.bias, use.allow, use.range, holes, strange, i, c, got,
                         expected);
        }
    }
    double *s = malloc((nk + 1) * sizeof *s);
    for (size_t i = 0; i < nq && !strange && plain == kernels->attention_q8; i++) {
        double max = -INFINITY, sum = 0;
        for (size_t j = 0; j < nk; j++) {
            s[j] = 0;
            if ((holes && !keys[j]) || (use.allow && !allow[i * lda + j]) ||
                (use.range && ((int32_t)j < first[i] || (int32_t)j >= last[i]))) {
                s[j] = -INFINITY;
                continue;
            }
            for (size_t c = 0; c < d; c++)
                s[j] += (double)q[i * ldq + c] * k[j * ldk + c];
            s[j] = s[j] * 1.5 + (use.bias ? bias[i * ldb + j] : 0);
            max = s[j] > max ? s[j] : max;
        }
        assert_int_equal(no_key[i], !(max > -INFINITY));
        for (size_t j = 0; j < nk; j++)
            sum += s[j] = s[j] > -INFINITY ? exp(s[j] - max) : 0;
        /* Scores are off by up to half a step of q and of k in each column, values by half a step. */
        double off = 1.5 * sqrt((double)d) * 0.02 + 4e-3;
        for (size_t c = 0; c < dv; c++) {
            double right = 0;
            for (size_t j = 0; j < nk; j++)
                right += s[j] > 0 ? s[j] / sum * v[j * ldv + c] : 0;
            if (!(fabs(out[i * ldo + c] - right) <= off))
                fail_msg("nq %zu nk %zu d %zu dv %zu masks %d%d%d holes %d: [%zu][%zu] is %.9g, not %.9g", nq, nk, d,
                         dv, use.bias, use.allow, use.range, holes, i, c, out[i * ldo + c], right);
        }
    }
    free(s);
    free(want);
    free(no_key2);
    head_free(&h);
}

static void heads_q8(void **state) {
    (void)state;
    static const size_t sizes[][4] = {{1, 1, 1, 1},       {1, 7, 64, 64},    {8, 8, 64, 64},     {15, 17, 32, 32},
                                      {16, 16, 16, 48},   {17, 14, 33, 5},   {31, 255, 64, 64},  {33, 256, 64, 64},
                                      {64, 257, 32, 32},  {40, 70, 96, 16},  {70, 513, 20, 24},  {5, 600, 128, 128},
                                      {34, 64, 128, 128}, {33, 129, 64, 33}, {65, 113, 128, 17}, {50, 170, 80, 96},
                                      {40, 0, 8, 8}};
    struct lathe_kernels kernels;
    lathe_kernels_select(0, &kernels);
    lathe_attention_f32_fn plain = kernels.attention_q8;
    for (size_t l = 0; l < Q8_LEVELS; l++) {
        if (!test_can_run(q8_levels[l]) && !test_traps(q8_levels[l]))
            continue;
        lathe_kernels_select(q8_levels[l], &kernels);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (unsigned m = 0; m < 32; m++)
                if (!test_left_out(8))
                    one_q8(&kernels, plain, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                           (struct masks){m & 1, m & 2, m & 4, false}, m & 8, m & 16);
    }
}

/* ---- the operators */
#define N 3
#define D 16
#define W (3 * N * D)

static const struct lathe_attr *attributes(int64_t bits, int64_t causal, int64_t window, int64_t masked_row,
                                           uint32_t *count) {
    static struct lathe_attr list[12];
    uint32_t n = 0;
#define SET(k, v)                                                                                                      \
    list[n++] = (struct lathe_attr) {                                                                                  \
        .key = LATHE_ATTR_##k, .type = LATHE_ATTR_INT, .i = v                                                          \
    }
    if (bits)
        SET(BITS, bits);
    SET(HEADS, N);
    SET(HEAD_DIM, D);
    SET(K_OFFSET, N * D);
    SET(V_OFFSET, 2 * N * D);
    SET(CAUSAL, causal);
    SET(WINDOW, window);
    SET(MASKED_ROW, masked_row);
#undef SET
    *count = n;
    return list;
}

/* Batches of random lengths, padded left, right or both, or with holes; each sequence alone gives the bits. */
static void padded(void **state) {
    (void)state;
    for (size_t l = 0; l < Q8_LEVELS + BF16_LEVELS; l++) {
        bool only_bf16 = l >= Q8_LEVELS;
        uint64_t cpu = only_bf16 ? bf16_levels[l - Q8_LEVELS] : q8_levels[l];
        if (!test_can_run(cpu) && !test_traps(cpu))
            continue;
        struct lathe_kernels kernels;
        lathe_kernels_select(cpu, &kernels);
        for (int round = 0; round < (only_bf16 ? 60 : 120); round++) {
            if (test_left_out(10))
                continue;
            int64_t bits = only_bf16 ? 16 : round >= 60 ? 8 : 0;
            int64_t batch = 1 + (int64_t)test_below(4), s = 1 + (int64_t)test_below(round % 4 ? 90 : 400);
            bool holes = round % 5 == 4, causal = round % 3 == 1 && !holes;
            int64_t window = round % 3 == 2 && !holes ? (int64_t)test_below(20) : -1;
            float *x = guarded_floats((size_t)(batch * s * W)), *y = guarded_floats((size_t)(batch * s * N * D));
            int64_t *keys = calloc((size_t)(batch * s), sizeof *keys);
            for (int64_t b = 0; b < batch; b++) {
                int64_t from = (int64_t)test_below((size_t)s), to = from + 1 + (int64_t)test_below((size_t)(s - from));
                for (int64_t i = from; i < to; i++)
                    keys[b * s + i] = !holes || test_below(4) != 0;
                keys[b * s + from] = 1;
            }
            struct lathe_tensor tx = {x, LATHE_F32, 3, {batch, s, W}}, tk = {keys, LATHE_I64, 2, {batch, s}};
            struct lathe_tensor ty = {y, LATHE_F32, 3, {batch, s, N * D}};
            const struct lathe_tensor *in[5] = {&tx, &tx, &tx, &tk, NULL};
            uint32_t count;
            const struct lathe_attr *attrs = attributes(bits, causal, window, LATHE_MASKED_UNIFORM, &count);
            run_op(lathe_run_attention, lathe_scratch_attention, &kernels, attrs, count, in, 4, &ty,
                   1 + (unsigned)test_below(3));
            /* packed */
            int32_t *map = calloc((size_t)(4 * batch + 2 * batch * s), sizeof *map);
            struct lathe_row_sequence *sequences = (void *)map;
            struct lathe_row_place *places = (void *)(map + 4 * batch);
            int32_t next = 0;
            for (int64_t b = 0; b < batch; b++) {
                sequences[b] = (struct lathe_row_sequence){.start = next, .positions = (int32_t)s};
                for (int64_t i = 0; i < s; i++)
                    if (keys[b * s + i])
                        places[next++] = (struct lathe_row_place){(int32_t)b, (int32_t)i};
                sequences[b].rows = sequences[b].keys = next - sequences[b].start;
            }
            float *px = guarded_floats((size_t)next * W), *py = guarded_floats((size_t)next * N * D);
            struct lathe_tensor tm = {map, LATHE_I32, 1, {4 * batch + 2 * batch * s}};
            struct lathe_tensor tpx = {px, LATHE_F32, 2, {next, W}}, tpy = {py, LATHE_F32, 2, {next, N * D}};
            struct lathe_op_call pack = {.in = (const struct lathe_tensor *[]){&tx, &tm},
                                         .n_in = 2,
                                         .n_out = 1,
                                         .out = (struct lathe_tensor *[]){&tpx},
                                         .team = {0, 1, NULL}};
            assert_int_equal(lathe_run_pack_rows(&pack), LATHE_OK);
            const struct lathe_tensor *packed[6] = {&tpx, &tpx, &tpx, &tm, NULL};
            run_op(lathe_run_attention_rows, lathe_scratch_attention_rows, &kernels, attrs, count, packed, 4, &tpy,
                   1 + (unsigned)test_below(3));
            /* one query a sequence, at a position of its own, from the end for some */
            float *qx = guarded_floats((size_t)(batch * W)), *qy = guarded_floats((size_t)(batch * N * D));
            int64_t *index = calloc((size_t)batch, sizeof *index), *row = calloc((size_t)batch, sizeof *row);
            for (int64_t b = 0; b < batch; b++) {
                row[b] = sequences[b].start + (int64_t)test_below((size_t)sequences[b].rows);
                index[b] = places[row[b]].position - (test_below(2) ? s : 0);
                memcpy(qx + b * W, px + row[b] * W, W * sizeof *qx);
            }
            struct lathe_tensor tqx = {qx, LATHE_F32, 2, {batch, W}}, tqy = {qy, LATHE_F32, 2, {batch, N * D}},
                                ti = {index, LATHE_I64, 1, {batch}};
            packed[0] = &tqx;
            packed[5] = &ti;
            run_op(lathe_run_attention_rows, lathe_scratch_attention_rows, &kernels, attrs, count, packed, 6, &tqy,
                   1 + (unsigned)test_below(3));
            for (int64_t b = 0; b < batch; b++)
                if (bits || !kernels.few_f32)
                    assert_memory_equal(qy + b * N * D, py + row[b] * N * D, N * D * sizeof *qy);
                else /* in sums of another order (test_one_token.c) */
                    for (int64_t c = 0; c < N * D; c++)
                        assert_true(fabsf(qy[b * N * D + c] - py[row[b] * N * D + c]) < 2e-6f);
            guarded_free(qx, (size_t)(batch * W));
            guarded_free(qy, (size_t)(batch * N * D));
            free(index);
            free(row);
            /* alone, without padding */
            for (int64_t b = 0; b < batch; b++) {
                int64_t n = sequences[b].rows;
                float *one = guarded_floats((size_t)n * N * D);
                struct lathe_tensor t1 = {px + sequences[b].start * W, LATHE_F32, 3, {1, n, W}};
                struct lathe_tensor o1 = {one, LATHE_F32, 3, {1, n, N * D}};
                const struct lathe_tensor *in1[3] = {&t1, &t1, &t1};
                bool compare_alone = !holes || (!causal && window < 0);
                run_op(lathe_run_attention, lathe_scratch_attention, &kernels, attrs, count, in1, 3, &o1,
                       1 + (unsigned)test_below(3));
                for (int64_t i = 0; i < n && compare_alone; i++) {
                    int64_t at = b * s + places[sequences[b].start + i].position;
                    bool same_blocks = !holes || s <= LATHE_ATTENTION_KEYS;
                    if (same_blocks && holes && bits != 8) { /* sums pair keys by their place: equal but for rounding */
                        for (int64_t c = 0; c < N * D; c++)
                            assert_true(fabsf(one[i * N * D + c] - y[at * N * D + c]) < (bits ? 0x1p-8f : 2e-6f));
                    } else if (same_blocks) {
                        assert_memory_equal(one + i * N * D, y + at * N * D, N * D * sizeof *one);
                    }
                    assert_memory_equal(one + i * N * D, py + (sequences[b].start + i) * N * D, N * D * sizeof *one);
                }
                guarded_free(one, (size_t)n * N * D);
            }
            guarded_free(px, (size_t)next * W);
            guarded_free(py, (size_t)next * N * D);
            guarded_free(x, (size_t)(batch * s * W));
            guarded_free(y, (size_t)(batch * s * N * D));
            free(map);
            free(keys);
        }
    }
}

/* A mask plane in every broadcast form, bool and float, with and without keys, against the formula; queries without
 * keys by each rule. */
static void planes(void **state) {
    (void)state;
    struct lathe_kernels kernels;
    lathe_kernels_select(lathe_cpu_bits(), &kernels);
    for (int round = 0; round < 200; round++) {
        if (test_left_out(8))
            continue;
        int64_t batch = 1 + (int64_t)test_below(3), s = 1 + (int64_t)test_below(50), rule = (int64_t)test_below(4);
        int64_t dims[4] = {test_below(2) ? batch : 1, test_below(2) ? N : 1, test_below(2) ? s : 1,
                           test_below(4) ? s : 1};
        size_t plane_count = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
        bool boolean = test_below(2), with_keys = test_below(2);
        float *x = guarded_floats((size_t)(batch * s * W)), *y = guarded_floats((size_t)(batch * s * N * D));
        float *f = guarded_floats(plane_count);
        uint8_t *u = malloc(plane_count), *keys = malloc((size_t)(batch * s));
        for (size_t i = 0; i < plane_count; i++) {
            u[i] = test_below(3) != 0;
            if (test_below(3) == 0)
                f[i] = -INFINITY;
        }
        for (int64_t i = 0; i < batch * s; i++)
            keys[i] = test_below(3) != 0;
        struct lathe_tensor tx = {x, LATHE_F32, 3, {batch, s, W}}, tk = {keys, LATHE_BOOL, 2, {batch, s}};
        struct lathe_tensor tm = {
            boolean ? (void *)u : (void *)f, boolean ? LATHE_BOOL : LATHE_F32, 4, {dims[0], dims[1], dims[2], dims[3]}};
        struct lathe_tensor ty = {y, LATHE_F32, 3, {batch, s, N * D}};
        const struct lathe_tensor *in[5] = {&tx, &tx, &tx, with_keys ? &tk : NULL, &tm};
        uint32_t count;
        const struct lathe_attr *attrs = attributes(0, 0, -1, rule, &count);
        run_op(lathe_run_attention, lathe_scratch_attention, &kernels, attrs, count, in, 5, &ty,
               1 + (unsigned)test_below(3));
        for (int64_t b = 0; b < batch; b++)
            for (int64_t h = 0; h < N; h++)
                for (int64_t i = 0; i < s; i++) {
                    double p[64], max = -INFINITY, sum = 0, raw_max = -INFINITY, raw[64];
                    for (int64_t j = 0; j < s; j++) {
                        const float *q = x + (b * s + i) * W + h * D, *k = x + (b * s + j) * W + N * D + h * D;
                        p[j] = 0;
                        for (int c = 0; c < D; c++)
                            p[j] += (double)q[c] * k[c];
                        p[j] /= sqrt((double)D);
                        int64_t at = (((dims[0] > 1 ? b : 0) * dims[1] + (dims[1] > 1 ? h : 0)) * dims[2] +
                                      (dims[2] > 1 ? i : 0)) *
                                         dims[3] +
                                     (dims[3] > 1 ? j : 0);
                        if (!boolean)
                            p[j] += f[at];
                        raw[j] = p[j]; /* what is added stays when all keys are masked */
                        raw_max = p[j] > raw_max ? p[j] : raw_max;
                        if (boolean && !u[at])
                            p[j] = -INFINITY;
                        if (with_keys && !keys[b * s + j])
                            p[j] = -INFINITY;
                        max = p[j] > max ? p[j] : max;
                    }
                    for (int64_t j = 0; j < s; j++) {
                        if (max == -INFINITY)
                            p[j] = rule == LATHE_MASKED_UNIFORM                          ? 1
                                   : rule == LATHE_MASKED_SOFTMAX && raw_max > -INFINITY ? exp(raw[j] - raw_max)
                                                                                         : 0;
                        else
                            p[j] = exp(p[j] - max);
                        sum += p[j];
                    }
                    for (int c = 0; c < D; c++) {
                        double want = 0, got = y[(b * s + i) * N * D + h * D + c];
                        for (int64_t j = 0; j < s; j++)
                            want += sum > 0 ? p[j] / sum * x[(b * s + j) * W + 2 * N * D + h * D + c] : 0;
                        if (!(fabs(got - want) <= 3e-6))
                            fail_msg("round %d rule %d b %d h %d i %d c %d: %.9g, not %.9g", round, (int)rule, (int)b,
                                     (int)h, (int)i, c, got, want);
                    }
                }
        guarded_free(x, (size_t)(batch * s * W));
        guarded_free(y, (size_t)(batch * s * N * D));
        guarded_free(f, plane_count);
        free(u);
        free(keys);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads),
        cmocka_unit_test(heads_q8),
        cmocka_unit_test(padded),
        cmocka_unit_test(planes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
