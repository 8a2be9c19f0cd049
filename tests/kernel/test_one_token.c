/* What absorb_projections makes: linear layers in groups, bit for bit those of each group alone, and attention of one
 * query a sequence whose heads share keys, against the formula; the same bits alone, in a batch, for any threads. */
#include "op_run.h"

#include "ops.h"
#include "row_map.h"

#include <math.h>

#define AVX2   (LATHE_CPU_MASK(LATHE_CPU_AVX2) | LATHE_CPU_MASK(LATHE_CPU_FMA))
#define AVX512 (AVX2 | LATHE_CPU_MASK(LATHE_CPU_AVX512))
enum packing {
#define PACKING(number, name, text) PACKING_##name = number,
#include "packing.def"
#undef PACKING
};

static const uint64_t levels[] = {0, AVX2, AVX512, AVX512 | LATHE_CPU_MASK(LATHE_CPU_AVX512_VNNI)};
#define LEVELS (sizeof levels / sizeof *levels)

#define TENSOR(data, type, ...) ((struct lathe_tensor){data, type, sizeof((int64_t[]){__VA_ARGS__}) / 8, {__VA_ARGS__}})

/* ---- linear layers */

struct kind {
    enum lathe_status (*run)(const struct lathe_op_call *);
    size_t (*scratch)(const struct lathe_op_call *);
    unsigned packing; /* of the operator */
    size_t bytes;     /* of a weight */
};
static const struct kind kinds[] = {
    {lathe_run_linear, lathe_scratch_linear, PACKING_F32_N16, 4},
    {lathe_run_linear_bf16, lathe_scratch_linear_bf16, PACKING_BF16_N16K2, 4},
    {lathe_run_linear_q8, lathe_scratch_linear_q8, PACKING_S8_N16K4, 1},
};

struct layer {
    int64_t groups, m, k, n; /* k, n: of a group */
    bool transposed, packed, bias, residual;
    float *x, *w_scale, *b, *r, *y; /* of all groups */
    int32_t *w_sum;
    char *w;
};

static void pack(const struct kind *kind, const struct layer *l, const char *w, int64_t n, char *out) {
    size_t k = (size_t)l->k, columns = (size_t)n, ld = l->transposed ? k : columns, panels = (columns + 15) / 16;
    if (kind->packing == PACKING_F32_N16)
        lathe_pack_f32_n16((const float *)(const void *)w, k, columns, ld, l->transposed, 0, panels,
                           (float *)(void *)out);
    else if (kind->packing == PACKING_BF16_N16K2)
        lathe_pack_bf16_n16k2(w, LATHE_F32, k, columns, ld, l->transposed, 0, panels, (uint16_t *)(void *)out);
    else
        lathe_pack_s8_n16k4((const int8_t *)w, k, columns, ld, l->transposed, 0, panels, (int8_t *)out);
}

/* Groups [g, g + count) as an operator, its result to y. */
static void run_layer(const struct kind *kind, const struct lathe_kernels *kernels, const struct layer *l, int64_t g,
                      int64_t count, unsigned threads, float *y) {
    int64_t n = count * l->n, k = count * l->k;
    size_t all = (size_t)(l->groups * l->n);
    float *x = malloc((size_t)(l->m * k) * sizeof *x), *r = malloc((size_t)(l->m * n) * sizeof *r);
    char *w = malloc((size_t)(l->k * n) * kind->bytes);
    char *p = calloc(lathe_packed_bytes(kind->packing, (size_t)l->k, (size_t)n), 1);
    for (int64_t i = 0; i < l->m; i++) {
        memcpy(x + i * k, l->x + i * l->groups * l->k + g * l->k, (size_t)k * sizeof *x);
        memcpy(r + i * n, l->r + (size_t)i * all + g * l->n, (size_t)n * sizeof *r);
    }
    if (l->transposed)
        memcpy(w, l->w + (size_t)(g * l->n * l->k) * kind->bytes, (size_t)(n * l->k) * kind->bytes);
    else
        for (int64_t t = 0; t < l->k; t++)
            memcpy(w + (size_t)(t * n) * kind->bytes, l->w + ((size_t)t * all + (size_t)(g * l->n)) * kind->bytes,
                   (size_t)n * kind->bytes);
    pack(kind, l, w, n, p);
    enum lathe_dtype type = kind->bytes == 1                                   ? LATHE_I8
                            : l->packed && kind->packing == PACKING_BF16_N16K2 ? LATHE_BF16
                                                                               : LATHE_F32;
    struct lathe_tensor tx = TENSOR(x, LATHE_F32, l->m, k), tr = TENSOR(r, LATHE_F32, l->m, n);
    struct lathe_tensor tw = TENSOR(l->packed ? p : w, type, l->k, n), ty = TENSOR(y, LATHE_F32, l->m, n);
    if (l->transposed && !l->packed)
        tw = TENSOR(w, type, n, l->k);
    struct lathe_tensor tb = TENSOR(l->b + g * l->n, LATHE_F32, n), ts = TENSOR(l->w_scale + g * l->n, LATHE_F32, n);
    struct lathe_tensor tsum = TENSOR(l->w_sum + g * l->n, LATHE_I32, n);
    const struct lathe_tensor *bias = l->bias ? &tb : NULL, *residual = l->residual ? &tr : NULL;
    const struct lathe_tensor *q8[6] = {&tx, &tw, &ts, &tsum, bias, residual}, *f32[4] = {&tx, &tw, bias, residual};
    struct lathe_attr attrs[5] = {attr_i(LATHE_ATTR_GROUP, count), attr_i(LATHE_ATTR_TRANS_B, l->transposed),
                                  attr_i(LATHE_ATTR_ACTIVATION, LATHE_ACT_RELU),
                                  attr_i(LATHE_ATTR_PACKING, l->packed ? (int64_t)kind->packing : 0)};
    run_op(kind->run, kind->scratch, kernels, attrs, 4, kind->bytes == 1 ? q8 : f32, kind->bytes == 1 ? 6 : 4, &ty,
           threads);
    free(x);
    free(r);
    free(w);
    free(p);
}

static void one_layer(const struct kind *kind, const struct lathe_kernels *kernels) {
    struct layer l = {.groups = 1 + (int64_t)test_below(6),
                      .m = 1 + (int64_t)test_below(5),
                      .k = 1 + (int64_t)test_below(70),
                      .transposed = test_below(2),
                      .packed = test_below(2),
                      .bias = test_below(2),
                      .residual = test_below(2)};
    l.n = l.packed ? 16 * (1 + (int64_t)test_below(4)) : 1 + (int64_t)test_below(50);
    size_t n = (size_t)(l.groups * l.n), weights = n * (size_t)l.k;
    l.x = guarded_floats((size_t)(l.m * l.groups * l.k));
    l.w_scale = guarded_floats(n);
    l.b = guarded_floats(n);
    l.r = guarded_floats((size_t)l.m * n);
    l.y = guarded_floats((size_t)l.m * n);
    float *again = guarded_floats((size_t)l.m * n), *part = guarded_floats((size_t)(l.m * l.n));
    l.w_sum = calloc(n, sizeof *l.w_sum);
    float *w = guarded_floats(weights);
    l.w = (char *)w;
    for (size_t i = 0; i < weights && kind->bytes == 1; i++)
        l.w[i] = (char)((int)test_below(255) - 127);
    for (size_t i = 0; i < weights && kind->bytes == 1; i++)
        l.w_sum[l.transposed ? i / (size_t)l.k : i % n] += ((const int8_t *)l.w)[i];
    run_layer(kind, kernels, &l, 0, l.groups, 1 + (unsigned)test_below(4), l.y);
    run_layer(kind, kernels, &l, 0, l.groups, 1, again);
    assert_memory_equal(l.y, again, (size_t)l.m * n * sizeof *again);
    for (int64_t g = 0; g < l.groups; g++) {
        run_layer(kind, kernels, &l, g, 1, 1, part);
        for (int64_t i = 0; i < l.m; i++)
            assert_memory_equal(l.y + (size_t)i * n + g * l.n, part + i * l.n, (size_t)l.n * sizeof *part);
    }
    guarded_free(l.x, (size_t)(l.m * l.groups * l.k));
    guarded_free(l.w_scale, n);
    guarded_free(l.b, n);
    guarded_free(l.r, (size_t)l.m * n);
    guarded_free(l.y, (size_t)l.m * n);
    guarded_free(again, (size_t)l.m * n);
    guarded_free(part, (size_t)(l.m * l.n));
    guarded_free(w, weights);
    free(l.w_sum);
}

static void groups(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct lathe_kernels kernels;
        if (!test_can_run(levels[l]))
            continue;
        lathe_kernels_select(levels[l], &kernels);
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
            for (int round = 0; round < 60; round++)
                if (!test_left_out(8))
                    one_layer(&kinds[kind], &kernels);
    }
}

/* Groups that do not divide the columns, or cut a panel, are refused. */
static void refused(void **state) {
    (void)state;
    static const struct {
        int64_t groups, width, k, n, packing;
    } wrong[] = {{2, 8, 8, 32, 0}, {3, 9, 3, 32, 0},  {2, 9, 4, 32, 0},
                 {0, 8, 8, 32, 0}, {-2, 8, 4, 32, 0}, {2, 8, 4, 24, 1}};
    struct lathe_kernels kernels;
    static struct lathe_diag diag;
    lathe_kernels_select(0, &kernels);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        float *x = guarded_floats(16), *w = guarded_floats(1024), *y = guarded_floats(64), *s = guarded_floats(65536);
        struct lathe_tensor tx = TENSOR(x, LATHE_F32, 1, wrong[i].width), ty = TENSOR(y, LATHE_F32, 1, wrong[i].n);
        struct lathe_tensor tw = TENSOR(w, LATHE_F32, wrong[i].k, wrong[i].n);
        const struct lathe_tensor *in[2] = {&tx, &tw};
        struct lathe_tensor *out = &ty;
        struct lathe_attr attrs[2] = {attr_i(LATHE_ATTR_GROUP, wrong[i].groups),
                                      attr_i(LATHE_ATTR_PACKING, wrong[i].packing)};
        struct lathe_op_call call = {.attrs = {attrs, 2},
                                     .in = in,
                                     .out = &out,
                                     .n_in = 2,
                                     .n_out = 1,
                                     .kernels = &kernels,
                                     .team = {0, 1, NULL},
                                     .scratch = s,
                                     .diag = &diag};
        assert_int_not_equal(lathe_run_linear(&call), LATHE_OK);
        guarded_free(x, 16);
        guarded_free(w, 1024);
        guarded_free(y, 64);
        guarded_free(s, 65536);
    }
}

/* ---- attention */

struct batch {
    int64_t count, positions, rows;
    int32_t *map;
};

/* Sequences of random keys; some have none, some a masked row that stays. */
static struct batch batch_new(void) {
    struct batch b = {.count = 1 + (int64_t)test_below(3),
                      .positions = 1 + (int64_t)test_below(test_below(4) ? 40 : 300)};
    b.map = calloc((size_t)(4 * b.count + 2 * b.count * b.positions), sizeof *b.map);
    struct lathe_row_sequence *s = (void *)b.map;
    struct lathe_row_place *places = (void *)(b.map + 4 * b.count);
    for (int32_t i = 0; i < b.count; i++) {
        int32_t start = (int32_t)b.rows;
        size_t keep = test_below(6);
        for (int32_t p = 0; p < b.positions; p++)
            if (keep && (keep > 2 || test_below(3)))
                places[b.rows++] = (struct lathe_row_place){i, p};
        s[i] = (struct lathe_row_sequence){start, 0, (int32_t)b.rows - start, (int32_t)b.positions};
        if (s[i].keys == 0) /* its rule needs a row, or all */
            for (int32_t p = 0; p < (keep ? 1 : b.positions); p++)
                places[b.rows++] = (struct lathe_row_place){i, p};
        s[i].rows = (int32_t)b.rows - start;
    }
    return b;
}

struct one {
    int64_t heads, kv_heads, d, dv, rule, query;
    bool causal, boolean;
    int64_t dims[4]; /* of the mask */
    float *q, *k, *v, *f;
    uint8_t *u;
    bool masked;
};

/* Key j of the sequence for its query, in head h: what is added to its score; -inf: it may not be seen. */
static double bias_at(const struct one *o, const struct batch *b, int64_t sequence, int64_t h, int32_t position,
                      bool *allowed) {
    int64_t at[4] = {sequence, h, o->query, position}, place = 0;
    (void)b;
    *allowed = !o->causal || position <= o->query;
    if (!o->masked)
        return 0;
    for (int i = 0; i < 4; i++)
        place = place * o->dims[i] + (o->dims[i] > 1 ? at[i] : 0);
    if (!o->boolean)
        return o->f[place];
    *allowed = *allowed && o->u[place];
    return 0;
}

static void check_head(const struct one *o, const struct batch *b, int64_t sequence, int64_t h, const float *got) {
    const struct lathe_row_sequence *s = lathe_row_map_sequences(b->map) + sequence;
    const struct lathe_row_place *places = lathe_row_map_places(b->map, b->count) + s->start;
    int64_t kv = h * o->kv_heads / o->heads, ldk = o->kv_heads * o->d, ldv = o->kv_heads * o->dv;
    double p[512], raw[512], max = -INFINITY, raw_max = -INFINITY, sum = 0;
    for (int32_t j = 0; j < s->rows; j++) {
        bool allowed;
        raw[j] = 0;
        for (int64_t c = 0; c < o->d; c++)
            raw[j] += (double)o->q[(sequence * o->heads + h) * o->d + c] * o->k[(s->start + j) * ldk + kv * o->d + c];
        raw[j] = raw[j] * 0.3 + bias_at(o, b, sequence, h, places[j].position, &allowed);
        raw_max = raw[j] > raw_max ? raw[j] : raw_max;
        p[j] = allowed && j < s->keys ? raw[j] : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    for (int32_t j = 0; j < s->rows; j++) {
        if (max > -INFINITY)
            p[j] = exp(p[j] - max);
        else
            p[j] = o->rule == LATHE_MASKED_UNIFORM                          ? 1
                   : o->rule == LATHE_MASKED_SOFTMAX && raw_max > -INFINITY ? exp(raw[j] - raw_max)
                                                                            : 0;
        sum += p[j];
    }
    for (int64_t c = 0; c < o->dv; c++) {
        double want = 0;
        for (int32_t j = 0; j < s->rows; j++)
            want += sum > 0 ? p[j] / sum * o->v[(s->start + j) * ldv + kv * o->dv + c] : 0;
        if (!(fabs(got[c] - want) <= 1e-5))
            fail_msg("heads %d of %d, d %d, dv %d, rule %d, sequence %d: head %d column %d is %.9g, not %.9g",
                     (int)o->heads, (int)o->kv_heads, (int)o->d, (int)o->dv, (int)o->rule, (int)sequence, (int)h,
                     (int)c, got[c], want);
    }
}

static void one_attention(const struct lathe_kernels *kernels, int round) {
    static const int64_t sharing[] = {1, 2, 3, 5, 12, 40};
    struct batch b = batch_new();
    struct one o = {.kv_heads = 1 + (int64_t)test_below(3),
                    .d = round % 7 ? 1 + (int64_t)test_below(70) : 384,
                    .dv = round % 7 ? 1 + (int64_t)test_below(90) : 384,
                    .rule = (int64_t)test_below(4),
                    .query = (int64_t)test_below((size_t)b.positions),
                    .causal = test_below(4) == 0,
                    .boolean = test_below(2),
                    .masked = test_below(2)};
    o.heads = o.kv_heads * sharing[test_below(6)];
    const int64_t all[4] = {b.count, o.heads, b.positions, b.positions};
    for (int i = 0; i < 4; i++)
        o.dims[i] = test_below(3) ? all[i] : 1;
    size_t nq = (size_t)(b.count * o.heads * o.d), nk = (size_t)(b.rows * o.kv_heads * o.d);
    size_t nv = (size_t)(b.rows * o.kv_heads * o.dv), ny = (size_t)(b.count * o.heads * o.dv);
    size_t plane = (size_t)(o.dims[0] * o.dims[1] * o.dims[2] * o.dims[3]);
    o.q = guarded_floats(nq);
    o.k = guarded_floats(nk);
    o.v = guarded_floats(nv);
    o.f = guarded_floats(plane);
    o.u = malloc(plane);
    for (size_t i = 0; i < plane; i++) {
        o.u[i] = test_below(3) != 0;
        if (test_below(3) == 0)
            o.f[i] = -INFINITY;
    }
    float *y = guarded_floats(ny), *again = guarded_floats(ny);
    int64_t map_count = 4 * b.count + 2 * b.count * b.positions;
    struct lathe_tensor tq = TENSOR(o.q, LATHE_F32, b.count, o.heads * o.d);
    struct lathe_tensor tk = TENSOR(o.k, LATHE_F32, b.rows, o.kv_heads * o.d);
    struct lathe_tensor tv = TENSOR(o.v, LATHE_F32, b.rows, o.kv_heads * o.dv);
    struct lathe_tensor tm = TENSOR(b.map, LATHE_I32, map_count), ty = TENSOR(y, LATHE_F32, b.count, o.heads * o.dv);
    struct lathe_tensor tp = TENSOR(o.boolean ? (void *)o.u : (void *)o.f, o.boolean ? LATHE_BOOL : LATHE_F32,
                                    o.dims[0], o.dims[1], o.dims[2], o.dims[3]);
    const struct lathe_tensor *in[5] = {&tq, &tk, &tv, &tm, o.masked ? &tp : NULL};
    struct lathe_attr attrs[] = {
        attr_i(LATHE_ATTR_HEADS, o.heads),   attr_i(LATHE_ATTR_KV_HEADS, o.kv_heads),
        attr_i(LATHE_ATTR_HEAD_DIM, o.d),    attr_i(LATHE_ATTR_V_HEAD_DIM, o.dv),
        attr_i(LATHE_ATTR_CAUSAL, o.causal), attr_i(LATHE_ATTR_MASKED_ROW, o.rule),
        attr_i(LATHE_ATTR_START, o.query),   {.key = LATHE_ATTR_SCALE, .type = LATHE_ATTR_FLOAT, .f = 0.3}};
    run_op(lathe_run_attention_rows, lathe_scratch_attention_rows, kernels, attrs, 8, in, 5, &ty,
           1 + (unsigned)test_below(5));
    for (int64_t s = 0; s < b.count; s++)
        for (int64_t h = 0; h < o.heads; h++)
            check_head(&o, &b, s, h, y + (s * o.heads + h) * o.dv);
    ty.data = again;
    run_op(lathe_run_attention_rows, lathe_scratch_attention_rows, kernels, attrs, 8, in, 5, &ty, 1);
    assert_memory_equal(y, again, ny * sizeof *y);
    /* each sequence alone */
    for (int64_t i = 0; i < b.count && (!o.masked || o.dims[0] == 1); i++) {
        struct lathe_row_sequence s = lathe_row_map_sequences(b.map)[i];
        int32_t *map = calloc((size_t)(4 + 2 * b.positions), sizeof *map);
        struct lathe_row_sequence alone = {0, s.rows, s.keys, s.positions};
        memcpy(map, &alone, sizeof alone);
        for (int32_t r = 0; r < s.rows; r++)
            map[4 + 2 * r + 1] = lathe_row_map_places(b.map, b.count)[s.start + r].position;
        struct lathe_tensor q1 = TENSOR(o.q + i * o.heads * o.d, LATHE_F32, 1, o.heads * o.d);
        struct lathe_tensor k1 = TENSOR(o.k + s.start * o.kv_heads * o.d, LATHE_F32, s.rows, o.kv_heads * o.d);
        struct lathe_tensor v1 = TENSOR(o.v + s.start * o.kv_heads * o.dv, LATHE_F32, s.rows, o.kv_heads * o.dv);
        struct lathe_tensor m1 = TENSOR(map, LATHE_I32, 4 + 2 * b.positions);
        struct lathe_tensor y1 = TENSOR(again, LATHE_F32, 1, o.heads * o.dv);
        const struct lathe_tensor *one[5] = {&q1, &k1, &v1, &m1, in[4]};
        run_op(lathe_run_attention_rows, lathe_scratch_attention_rows, kernels, attrs, 8, one, 5, &y1,
               1 + (unsigned)test_below(3));
        assert_memory_equal(again, y + i * o.heads * o.dv, (size_t)(o.heads * o.dv) * sizeof *y);
        free(map);
    }
    guarded_free(o.q, nq);
    guarded_free(o.k, nk);
    guarded_free(o.v, nv);
    guarded_free(o.f, plane);
    guarded_free(y, ny);
    guarded_free(again, ny);
    free(o.u);
    free(b.map);
}

static void attention(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct lathe_kernels kernels;
        if (!test_can_run(levels[l]))
            continue;
        lathe_kernels_select(levels[l], &kernels);
        for (int round = 0; round < 120; round++)
            if (!test_left_out(10))
                one_attention(&kernels, round);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups), cmocka_unit_test(refused),
                                       cmocka_unit_test(attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
