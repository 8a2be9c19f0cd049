/* Times of steps from sizes and a target's figures. */
#include "cost.h"

#include "attention_shape.h"
#include "lower.h"

#include <math.h>
#include <stdlib.h>

const char *lathe_cost_kind_name(enum lathe_cost_kind kind) {
    static const char *const names[LATHE_COST_KINDS] = {"linear", "attention", "norm", "embedding", "other"};
    return names[kind];
}

bool lathe_cost_known(const struct lathe_target *t) {
    return t && t->ghz > 0 && t->cost.f32 > 0 && t->cost.efficiency > 0 && t->cost.core_gbps > 0;
}

/* ---- sizes */

static int64_t within(int64_t n, const struct lathe_fmt_symbol *s) {
    return n < 1 || n > s->max ? s->max : n < s->min ? s->min : n;
}

void lathe_cost_sizes(struct lathe_cost_model *model, int64_t batch, int64_t seq, int64_t max_batch, int64_t max_seq,
                      int64_t *dims) {
    const struct lathe_plan *p = model->plan;
    uint32_t count = p->head->symbol_count;
    int64_t *symbols = calloc((size_t)count + 1, sizeof *symbols);
    bool has_batch = false, has_seq = false;
    model->dims = NULL;
    if (!symbols)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const struct lathe_fmt_symbol *s = &p->symbols[i];
        symbols[i] = s->max;
        if (s->role == LATHE_ROLE_BATCH) {
            symbols[i] = batch = within(batch, s);
            has_batch = true;
        } else if (s->role == LATHE_ROLE_SEQUENCE) {
            symbols[i] = within(seq, s);
            if (!has_seq) /* of several the first is the length */
                model->seq = symbols[i];
            has_seq = true;
        }
    }
    if (!has_seq)
        model->seq = max_seq > 0 ? max_seq : 1;
    model->batch = has_batch ? batch : max_batch > 0 ? max_batch : 1;
    for (uint32_t i = 0; i < count; i++)
        if (p->symbols[i].source == LATHE_SYMBOL_ROWS)
            symbols[i] = within(model->batch * model->seq, &p->symbols[i]);
    lathe_plan_eval(p, symbols, false, dims);
    model->dims = dims;
    free(symbols);
    double bytes = 0;
    for (uint32_t i = 0; i < p->head->step_count; i++) {
        const struct lathe_fmt_step *s = &p->steps[i];
        if (s->op == LATHE_OP_EMBEDDING || s->op == LATHE_OP_EMBEDDING_Q8 || s->op == LATHE_OP_GATHER)
            continue;
        for (uint32_t k = 0; k < s->n_in; k++) {
            uint32_t v = p->operands[s->first_operand + k];
            if (v != LATHE_FORMAT_ABSENT && p->values[v].place == LATHE_PLACE_CONSTANT)
                bytes += (double)p->values[v].bytes;
        }
    }
    model->weight_bytes = bytes;
}

/* ---- one step */

struct step {
    const struct lathe_cost_model *m;
    const struct lathe_fmt_step *s;
    const uint32_t *o;
    double cycles; /* of a nanosecond */
    double share;  /* 1 / threads */
    struct lathe_step_cost *out;
};

static const struct lathe_fmt_value *value_at(const struct step *c, uint32_t operand) {
    uint32_t v = operand < (uint32_t)c->s->n_in + c->s->n_out ? c->o[operand] : LATHE_FORMAT_ABSENT;
    return v == LATHE_FORMAT_ABSENT ? NULL : &c->m->plan->values[v];
}

static double dim_of(const struct step *c, const struct lathe_fmt_value *v, unsigned i) {
    int64_t d = v && i < v->rank ? c->m->dims[v->dims[i]] : 1;
    return d > 0 ? (double)d : 0;
}

static double last_dim(const struct step *c, const struct lathe_fmt_value *v) {
    return v && v->rank ? dim_of(c, v, v->rank - 1u) : 1;
}

static double elements(const struct step *c, const struct lathe_fmt_value *v) {
    double n = v ? 1 : 0;
    for (unsigned i = 0; v && i < v->rank; i++)
        n *= dim_of(c, v, i);
    return n;
}

static int64_t attr(const struct step *c, enum lathe_attr_key key, int64_t absent) {
    const struct lathe_plan *p = c->m->plan;
    for (uint32_t i = 0; i < c->s->n_attrs; i++) {
        const struct lathe_fmt_attr *a = &p->attrs[c->s->first_attr + i];
        if (a->key == key && a->type == LATHE_ATTR_INT)
            return a->i;
    }
    return absent;
}

static double slower(double a, double b) {
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* Nanoseconds for all threads to read these bytes, which a run as a whole comes back to after `cycle` bytes: what lies
 * in the caches by then is read from there. */
static double read_ns(const struct step *c, double bytes, double cycle) {
    const struct lathe_target *t = c->m->target;
    double threads = c->m->threads;
    double memory = slower(t->memory_gbps, t->cost.core_gbps * threads);
    double l3 = (t->cost.l3_gbps > 0 ? t->cost.l3_gbps : t->cost.core_gbps) * threads;
    double l2 = (t->cost.l2_gbps > 0 ? t->cost.l2_gbps : t->cost.core_gbps) * threads;
    double held = (double)t->l2_bytes * threads;
    if (cycle <= held)
        return bytes / l2;
    /* What does not fit drives out part of what would: twice its size and nothing is found in it. */
    double l3_bytes = (double)t->l3_bytes, in_l3 = 0;
    if (l3_bytes > 0 && cycle < 2 * l3_bytes)
        in_l3 = cycle <= l3_bytes ? 1 : 2 - cycle / l3_bytes;
    return bytes * (in_l3 / l3 + (1 - in_l3) / memory);
}

static double rate_of(const struct step *c, double rate) {
    const struct lathe_target_cost *cost = &c->m->target->cost;
    return (rate > 0 ? rate : cost->f32) * cost->efficiency * c->cycles;
}

#define FIP_ROWS 24 /* fewer gain little by it */

/* Layers with w_pairs are faster, where the target is for them. */
static double product_rate(const struct step *c, double rows) {
    const struct lathe_target_cost *cost = &c->m->target->cost;
    double fip = rows >= FIP_ROWS && c->m->target->features & LATHE_CPU_MASK(LATHE_CPU_FAST_ADDS) && cost->fip > 0
                     ? cost->fip
                     : 1;
    switch (c->s->op) {
    case LATHE_OP_LINEAR_Q8:
        return rate_of(c, cost->int8) * (c->s->n_in > 9 ? fip : 1);
    case LATHE_OP_MATMUL_INTEGER:
        return rate_of(c, cost->int8);
    case LATHE_OP_LINEAR_BF16:
        return rate_of(c, cost->bf16);
    case LATHE_OP_LINEAR:
        return rate_of(c, cost->f32) * (c->s->n_in > 4 ? fip : 1);
    default:
        return rate_of(c, cost->f32);
    }
}

static bool is_constant(const struct lathe_fmt_value *v) {
    return v && v->place == LATHE_PLACE_CONSTANT;
}

static double bytes_of(const struct step *c, const struct lathe_fmt_value *v) {
    return is_constant(v) ? (double)v->bytes : elements(c, v) * (double)lathe_dtype_bytes((enum lathe_dtype)v->dtype);
}

static void product(const struct step *c, double k) {
    const struct lathe_target_cost *cost = &c->m->target->cost;
    const struct lathe_fmt_value *x = value_at(c, 0), *w = value_at(c, 1), *y = value_at(c, c->s->n_in);
    double out = elements(c, y), n = last_dim(c, y), rows = n > 0 ? out / n : 0;
    c->out->kind = LATHE_COST_LINEAR;
    c->out->products = out * k;
    double compute = (out * k + cost->ramp_rows * n * k) / product_rate(c, rows);
    if (rows == 0)
        compute = 0;
    if (c->s->op == LATHE_OP_LINEAR_Q8)
        compute += elements(c, x) * cost->quantize / c->cycles;
    if (attr(c, LATHE_ATTR_ACTIVATION, 0))
        compute += out * cost->gelu / c->cycles;
    c->out->compute_ns = compute * c->share;
    if (rows > 0 && w)
        c->out->memory_ns = is_constant(w) ? read_ns(c, bytes_of(c, w), c->m->weight_bytes)
                                           : read_ns(c, bytes_of(c, w), bytes_of(c, w));
}

/* Attention on packed rows with one query a sequence. */
static bool one_query(const struct step *c) {
    return attr(c, LATHE_ATTR_START, -1) >= 0 || (c->s->n_in > 5 && value_at(c, 5));
}

static void attention(const struct step *c) {
    const struct lathe_target_cost *cost = &c->m->target->cost;
    const struct lathe_fmt_value *q = value_at(c, 0), *kv = value_at(c, 1), *y = value_at(c, c->s->n_in);
    bool packed = c->s->op == LATHE_OP_ATTENTION_ROWS, sdpa = c->s->op == LATHE_OP_SDPA;
    double heads = sdpa ? dim_of(c, q, 1) : (double)attr(c, LATHE_ATTR_HEADS, 1);
    double d = sdpa ? last_dim(c, q) : (double)attr(c, LATHE_ATTR_HEAD_DIM, 64);
    double dv = sdpa ? last_dim(c, y) : (double)attr(c, LATHE_ATTR_V_HEAD_DIM, (int64_t)d);
    double queries = sdpa || !packed ? dim_of(c, y, 0) * dim_of(c, y, sdpa ? 2 : 1) : dim_of(c, y, 0);
    double keys = packed ? (double)c->m->seq : dim_of(c, kv, sdpa ? 2 : 1);
    int64_t window = attr(c, LATHE_ATTR_WINDOW, -1);
    if (window >= 0 && 2.0 * (double)window + 1 < keys)
        keys = 2.0 * (double)window + 1;
    if (attr(c, LATHE_ATTR_CAUSAL, 0))
        keys = keys / 2 + 0.5;
    double scores = queries * keys * heads;
    c->out->kind = LATHE_COST_ATTENTION;
    c->out->products = scores * (d + dv);
    int64_t bits = attr(c, LATHE_ATTR_BITS, 0);
    double rate = rate_of(c, bits == 8 ? cost->int8 : bits == 16 ? cost->bf16 : cost->f32), exponential = cost->exp;
    rate *= cost->attention > 0 ? cost->attention : 1;
    if (bits == 8) {
        exponential *= 0.45; /* made in 16 bits */
        if (keys <= LATHE_Q8_FINE)
            rate *= (d + dv) / (d + 2 * dv); /* two products with the values */
    }
    /* The keys of each head are laid out for the products first. */
    double laid = keys * heads;
    if (packed && one_query(c)) { /* keys are read as they lie, each by all threads where heads share them */
        double kv_heads = (double)attr(c, LATHE_ATTR_KV_HEADS, (int64_t)heads);
        laid = keys * fmin(heads, fmax(kv_heads, c->m->threads));
    }
    double laid_out = laid * (d + dv) * (packed ? (double)c->m->batch : dim_of(c, y, 0)) * cost->element;
    c->out->compute_ns = (c->out->products / rate + (scores * exponential + laid_out) / c->cycles) * c->share;
}

/* Operators whose time is that of their elements. */
static void per_element(const struct step *c, enum lathe_cost_kind kind, double cycles) {
    double n = 0, bytes = 0;
    for (uint32_t i = 0; i < (uint32_t)c->s->n_in + c->s->n_out; i++) {
        const struct lathe_fmt_value *v = value_at(c, i);
        double e = elements(c, v);
        bool table = is_constant(v) && kind == LATHE_COST_EMBEDDING;
        if (!v || table)
            continue;
        n = e > n ? e : n;
        bytes += bytes_of(c, v);
    }
    c->out->kind = kind;
    c->out->compute_ns = n * cycles / c->cycles * c->share;
    c->out->memory_ns = read_ns(c, bytes, bytes);
}

static void embedding(const struct step *c) {
    const struct lathe_fmt_value *y = value_at(c, c->s->n_in);
    double h = last_dim(c, y), rows = h > 0 ? elements(c, y) / h : 0;
    per_element(c, LATHE_COST_EMBEDDING, c->m->target->cost.element);
    double row = 0;
    for (uint32_t i = 0; i < c->s->n_in; i++) {
        const struct lathe_fmt_value *v = value_at(c, i);
        if (is_constant(v) && v->rank >= 2)
            row += last_dim(c, v) * (double)lathe_dtype_bytes((enum lathe_dtype)v->dtype);
    }
    /* Rows of tables are read once, from memory. */
    c->out->memory_ns += read_ns(c, rows * row, INFINITY);
}

static void convolution(const struct step *c) {
    const struct lathe_fmt_value *w = value_at(c, 1);
    double channels = dim_of(c, w, 0);
    product(c, channels > 0 ? elements(c, w) / channels : 0);
}

static double inner_of(const struct step *c) {
    const struct lathe_fmt_value *x = value_at(c, 0);
    bool swapped = attr(c, LATHE_ATTR_TRANS_A, 0) != 0 && x && x->rank >= 2;
    int64_t groups = attr(c, LATHE_ATTR_GROUP, 1);
    return (swapped ? dim_of(c, x, x->rank - 2u) : last_dim(c, x)) / (double)(groups > 1 ? groups : 1);
}

static void measure(const struct step *c) {
    const struct lathe_target_cost *cost = &c->m->target->cost;
    switch (c->s->op) {
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_LINEAR_Q8:
    case LATHE_OP_MATMUL:
    case LATHE_OP_GEMM:
    case LATHE_OP_MATMUL_INTEGER:
    case LATHE_OP_MATMUL_NBITS:
    case LATHE_OP_EINSUM: /* most are one product */
        product(c, inner_of(c));
        return;
    case LATHE_OP_CONV:
        convolution(c);
        return;
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
    case LATHE_OP_SDPA:
        attention(c);
        return;
    case LATHE_OP_LAYER_NORM:
    case LATHE_OP_RMS_NORM:
    case LATHE_OP_SKIP_LAYER_NORM:
        per_element(c, LATHE_COST_NORM, cost->element);
        return;
    case LATHE_OP_EMBEDDING:
    case LATHE_OP_EMBEDDING_Q8:
        embedding(c);
        return;
    case LATHE_OP_GATHER:
    case LATHE_OP_TAKE_ROWS: { /* what is gathered from is not read whole */
        const struct lathe_fmt_value *y = value_at(c, c->s->n_in);
        c->out->kind = LATHE_COST_OTHER;
        c->out->compute_ns = elements(c, y) * cost->element / c->cycles * c->share;
        return;
    }
    case LATHE_OP_RESHAPE:
    case LATHE_OP_ROUND_BF16:
    case LATHE_OP_PACK_ROWS:
    case LATHE_OP_UNPACK_ROWS:
    case LATHE_OP_MEAN_ROWS:
    case LATHE_OP_ADD:
    case LATHE_OP_MUL:
    case LATHE_OP_SUB:
        per_element(c, LATHE_COST_OTHER, cost->element);
        return;
    case LATHE_OP_GELU:
    case LATHE_OP_GELU_TANH:
    case LATHE_OP_QUICK_GELU:
    case LATHE_OP_SILU:
    case LATHE_OP_TANH:
    case LATHE_OP_ERF:
    case LATHE_OP_SIGMOID:
        per_element(c, LATHE_COST_OTHER, cost->gelu);
        return;
    case LATHE_OP_SOFTMAX:
    case LATHE_OP_EXP:
        per_element(c, LATHE_COST_OTHER, cost->exp);
        return;
    default:
        per_element(c, LATHE_COST_OTHER, cost->other);
        return;
    }
}

/* Reading and multiplying overlap; where both take as long, neither hides behind the other quite: the 8th root of the
 * sum of 8th powers. By square roots, which every machine rounds the same way. */
static double together(double a, double b) {
    double more = a > b ? a : b, less = a > b ? b : a;
    if (more <= 0)
        return 0;
    double r = less / more, r2 = r * r, r4 = r2 * r2;
    return more * sqrt(sqrt(sqrt(1 + r4 * r4)));
}

void lathe_cost_step(const struct lathe_cost_model *m, uint32_t step, struct lathe_step_cost *out) {
    const struct lathe_fmt_step *s = &m->plan->steps[step];
    *out = (struct lathe_step_cost){.kind = LATHE_COST_OTHER};
    if (!lathe_cost_known(m->target) || !m->dims)
        return;
    struct step c = {.m = m,
                     .s = s,
                     .o = m->plan->operands + s->first_operand,
                     .cycles = m->target->ghz,
                     .share = 1.0 / (m->threads > 0 ? m->threads : 1),
                     .out = out};
    measure(&c);
    out->overhead_ns = 1e3 * m->target->cost.step_us;
    out->ns = together(out->compute_ns, out->memory_ns) + out->overhead_ns;
}

bool lathe_cost_steps(struct lathe_lowered *l) {
    struct lathe_fmt_plan head;
    struct lathe_plan plan;
    struct lathe_fmt_step *steps = l->steps.data;
    int64_t *dims = calloc((size_t)l->dims.count + 1, sizeof *dims);
    if (!dims)
        return false;
    lathe_lowered_plan(l, &head, &plan);
    struct lathe_cost_model model = {.plan = &plan, .target = l->options->target, .threads = 1};
    lathe_cost_sizes(&model, 1, 0, l->max_batch, l->max_seq, dims);
    bool known = lathe_cost_known(model.target) && model.dims;
    for (uint32_t i = 0; known && i < l->steps.count; i++) {
        struct lathe_step_cost cost;
        lathe_cost_step(&model, i, &cost);
        steps[i].cost = cost.ns < 1 ? 1 : cost.ns < (double)UINT32_MAX ? (uint32_t)cost.ns : UINT32_MAX;
    }
    free(dims);
    return true;
}
