/* Activations written out in plain operators become one operator each.
 *
 * Every form is x * (a * s(p(x)) + b) for s = erf, tanh or sigmoid, a polynomial p and numbers a and b, in any order
 * and with the factors at any place: gelu        s = erf,     p = x / sqrt 2,                              a = b = 1/2
 *   gelu_tanh   s = tanh,    p = sqrt(2 / pi) * (x + 0.044715 x^3),       a = b = 1/2
 *               s = sigmoid, p = twice that,                              a = 1, b = 0   (the same function)
 *   quick_gelu  s = sigmoid, p = 1.702 x,                                 a = 1, b = 0
 *   silu        s = sigmoid, p = x,                                       a = 1, b = 0
 * The numbers are proved within rounding of their type; another number is another function and stays as it is. */
#include "match.h"

#include <math.h>
#include <stdio.h>

#define MAX_STEPS      8
#define SQRT_HALF      0.70710678118654752440
#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC          0.044715
#define QUICK_ALPHA    1.702

struct polynomial {
    double c[4]; /* c[i] x^i */
};

struct walk {
    lathe_value_id value; /* power = 0: a * s + b; power = 1: x * (a * s + b) */
    lathe_value_id x;
    int power;
    double a, b;
};

struct candidate {
    lathe_node_id anchor;
    lathe_value_id argument;
    char why[200];
    const char *pattern; /* of the near miss */
    bool scaled;         /* twice GELU will do */
};

/* v as a polynomial of x of degree 3 at most. */
static bool parse(const struct lathe_graph *g, lathe_value_id v, lathe_value_id x, int depth, struct polynomial *out) {
    *out = (struct polynomial){{0, 0, 0, 0}};
    if (lathe_match_same(g, v, x)) {
        out->c[1] = 1;
        return true;
    }
    if (lathe_match_number(g, v, &out->c[0]))
        return true;
    v = lathe_match_skip_casts(g, v);
    lathe_node_id n = g->values[v].producer;
    if (n == LATHE_NONE || depth == 0)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    struct polynomial p, q;
    double exponent;
    switch (node->op) {
    case LATHE_OP_NEG:
        if (!parse(g, node->in[0], x, depth - 1, &p))
            return false;
        for (int i = 0; i < 4; i++)
            out->c[i] = -p.c[i];
        return true;
    case LATHE_OP_ADD:
    case LATHE_OP_SUB:
        if (!parse(g, node->in[0], x, depth - 1, &p) || !parse(g, node->in[1], x, depth - 1, &q))
            return false;
        for (int i = 0; i < 4; i++)
            out->c[i] = node->op == LATHE_OP_ADD ? p.c[i] + q.c[i] : p.c[i] - q.c[i];
        return true;
    case LATHE_OP_MUL:
        if (!parse(g, node->in[0], x, depth - 1, &p) || !parse(g, node->in[1], x, depth - 1, &q))
            return false;
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 4; k++) {
                if (i + k > 3) {
                    if (p.c[i] * q.c[k] != 0)
                        return false;
                } else {
                    out->c[i + k] += p.c[i] * q.c[k];
                }
            }
        return true;
    case LATHE_OP_DIV:
        if (!parse(g, node->in[0], x, depth - 1, &p) || !lathe_match_number(g, node->in[1], &exponent) || exponent == 0)
            return false;
        for (int i = 0; i < 4; i++)
            out->c[i] = p.c[i] / exponent;
        return true;
    case LATHE_OP_POW:
        if (!lathe_match_number(g, node->in[1], &exponent) || (exponent != 2 && exponent != 3) ||
            !parse(g, node->in[0], x, depth - 1, &p))
            return false;
        /* of c x alone; a sum to a power does not occur */
        if (p.c[0] != 0 || p.c[2] != 0 || p.c[3] != 0)
            return false;
        out->c[(int)exponent] = pow(p.c[1], exponent);
        return true;
    default:
        return false;
    }
}

/* v is k * x for the x of the walk, or for one that is not known yet. */
static bool is_multiple(const struct lathe_graph *g, lathe_value_id v, lathe_value_id x, double *k) {
    struct polynomial p;
    if (!parse(g, v, x, 3, &p) || p.c[0] != 0 || p.c[2] != 0 || p.c[3] != 0 || p.c[1] == 0)
        return false;
    *k = p.c[1];
    return true;
}

static bool only_powers(const struct polynomial *p, double c1, double c3) {
    return p->c[0] == 0 && p->c[2] == 0 && lathe_match_near(p->c[1], c1) &&
           (c3 == 0 ? p->c[3] == 0 : lathe_match_near(p->c[3], c3));
}

/* x (s(x) + 1) with no number behind it: a tool put the 0.5 into the product that reads it. */
static bool is_twice(const struct lathe_graph *g, const struct walk *w, double a, double b) {
    const struct lathe_value *value = &g->values[w->value];
    lathe_value_id scaled;
    double k;
    for (uint32_t i = 0; i < value->use_count; i++)
        if (lathe_match_scaled(g, value->uses[i], &scaled, &k))
            return false;
    return lathe_match_near(a, 1) && lathe_match_near(b, 1) && !value->is_output;
}

/* The operator that the walk has arrived at, LATHE_OP_NONE if it is none (yet). */
static enum lathe_op decide(const struct lathe_graph *g, struct candidate *c, const struct walk *w, bool *form) {
    struct polynomial p;
    enum lathe_op s = g->nodes[c->anchor].op;
    *form = parse(g, c->argument, w->x, 6, &p);
    if (!*form) {
        if (s == LATHE_OP_ERF)
            snprintf(c->why, sizeof c->why, "the factor beside 1 + erf is not the value that erf is taken of");
        return LATHE_OP_NONE;
    }
    double sign = p.c[1] < 0 && s != LATHE_OP_SIGMOID ? -1 : 1; /* erf and tanh are odd */
    for (int i = 0; i < 4; i++)
        p.c[i] *= sign;
    double a = w->a * sign, b = w->b;
    switch (s) {
    case LATHE_OP_ERF:
        c->pattern = "gelu";
        if (!only_powers(&p, SQRT_HALF, 0)) {
            snprintf(c->why, sizeof c->why, "erf is taken of %.9g x, expected x / sqrt 2 = 0.707106781 x", p.c[1]);
            return LATHE_OP_NONE;
        }
        break;
    case LATHE_OP_TANH:
        c->pattern = "gelu_tanh";
        if (!only_powers(&p, SQRT_2_OVER_PI, SQRT_2_OVER_PI * CUBIC)) {
            snprintf(c->why, sizeof c->why,
                     "tanh is taken of %.9g x + %.9g x^3, expected 0.797884561 x + 0.0356774081 x^3", p.c[1], p.c[3]);
            return LATHE_OP_NONE;
        }
        break;
    default:
        if (!(lathe_match_near(a, 1) && b == 0)) {
            c->pattern = "silu";
            snprintf(c->why, sizeof c->why, "the gate is %.9g sigmoid + %.9g, expected sigmoid alone", a, b);
            return LATHE_OP_NONE;
        }
        if (only_powers(&p, 1, 0))
            return LATHE_OP_SILU;
        if (only_powers(&p, QUICK_ALPHA, 0))
            return LATHE_OP_QUICK_GELU;
        if (only_powers(&p, 2 * SQRT_2_OVER_PI, 2 * SQRT_2_OVER_PI * CUBIC))
            return LATHE_OP_GELU_TANH;
        c->pattern = p.c[3] != 0 ? "gelu_tanh" : "quick_gelu";
        snprintf(c->why, sizeof c->why, "sigmoid is taken of %.9g x, expected 1.702 x (quick_gelu) or x (silu)",
                 p.c[1]);
        return LATHE_OP_NONE;
    }
    if (c->scaled ? is_twice(g, w, a, b) : lathe_match_near(a, 0.5) && lathe_match_near(b, 0.5))
        return s == LATHE_OP_ERF ? LATHE_OP_GELU : LATHE_OP_GELU_TANH;
    snprintf(c->why, sizeof c->why, "x is multiplied by %.9g s(x) + %.9g, expected 0.5 s(x) + 0.5", a, b);
    return LATHE_OP_NONE;
}

static bool rewrite(struct lathe_pass_ctx *ctx, struct candidate *c, const struct walk *w, enum lathe_op op) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id x = w->x;
    if (g->values[x].dtype != g->values[w->value].dtype || !lathe_value_same_shape(g, x, w->value)) {
        snprintf(c->why, sizeof c->why, "the result has another type or shape than x");
        return false;
    }
    lathe_node_id last = g->values[w->value].producer;
    if (c->scaled) {
        if (g->values[x].dtype != LATHE_F32)
            return false;
        lathe_value_id pair[2] = {lathe_match_make_like(g, last, op, &x, 1, w->value),
                                  lathe_graph_add_scalar_f32(g, "two", 2)};
        if (pair[0] == LATHE_NONE || pair[1] == LATHE_NONE)
            return false;
        lathe_match_make_into(g, last, LATHE_OP_MUL, pair, 2);
        ctx->changes++;
        return true;
    }
    lathe_match_make_into(g, last, op, &x, 1);
    if (op == LATHE_OP_QUICK_GELU)
        lathe_node_set_float(g, last, LATHE_ATTR_ALPHA, QUICK_ALPHA);
    ctx->changes++;
    return true;
}

static bool follow(struct lathe_pass_ctx *ctx, struct candidate *c, struct walk w, int steps);

/* w.value * v where v is not a number: v, or what it is a multiple of, may be x. */
static bool meet_x(struct lathe_pass_ctx *ctx, struct candidate *c, struct walk w, lathe_value_id v, int steps) {
    struct lathe_graph *g = ctx->graph;
    double k = 1, factor;
    w.power = 1;
    for (int i = 0; i < 3; i++) {
        struct walk next = w;
        bool form;
        next.x = v;
        next.a *= k;
        next.b *= k;
        /* the types of the source: x before a cast if that is the type of the result */
        lathe_value_id inner = lathe_match_skip_casts(g, v);
        if (g->values[inner].dtype == g->values[next.value].dtype)
            next.x = inner;
        enum lathe_op op = decide(g, c, &next, &form);
        if (op != LATHE_OP_NONE)
            return rewrite(ctx, c, &next, op);
        if (form && follow(ctx, c, next, steps - 1))
            return true;
        lathe_node_id n = g->values[inner].producer;
        if (n == LATHE_NONE || !lathe_match_scaled(g, n, &v, &factor))
            return false;
        k *= factor;
    }
    return false;
}

static bool follow(struct lathe_pass_ctx *ctx, struct candidate *c, struct walk w, int steps) {
    struct lathe_graph *g = ctx->graph;
    if (steps == 0)
        return false;
    const struct lathe_value *value = &g->values[w.value];
    for (uint32_t i = 0; i < value->use_count; i++) {
        lathe_node_id use = value->uses[i];
        const struct lathe_node *node = &g->nodes[use];
        struct walk next = w;
        double k;
        lathe_value_id other, scaled;
        if (node->n_out != 1 || node->out[0] == LATHE_NONE)
            continue;
        next.value = node->out[0];
        if (node->op == LATHE_OP_CAST) {
            if (!lathe_dtype_is_float(g->values[next.value].dtype))
                continue;
        } else if (lathe_match_scaled(g, use, &scaled, &k) && scaled == w.value) {
            next.a *= k;
            next.b *= k;
        } else if (!lathe_match_other(g, use, w.value, &other)) {
            continue;
        } else if (node->op == LATHE_OP_MUL && w.power == 0) {
            if (meet_x(ctx, c, next, other, steps))
                return true;
            continue;
        } else if (node->op == LATHE_OP_ADD || node->op == LATHE_OP_SUB) {
            if (!lathe_value_same_shape(g, next.value, w.value))
                continue;
            double sign = 1;
            if (node->op == LATHE_OP_SUB && node->in[1] == w.value) {
                next.a = -next.a;
                next.b = -next.b;
            } else if (node->op == LATHE_OP_SUB) {
                sign = -1;
            }
            if (w.power == 0 ? !lathe_match_number(g, other, &k) : !is_multiple(g, other, w.x, &k))
                continue;
            next.b += sign * k;
        } else {
            continue;
        }
        bool form;
        enum lathe_op op = next.power ? decide(g, c, &next, &form) : LATHE_OP_NONE;
        if (op != LATHE_OP_NONE)
            return rewrite(ctx, c, &next, op);
        if (follow(ctx, c, next, steps - 1))
            return true;
    }
    return false;
}

enum lathe_status lathe_pass_fuse_activation(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    static const enum lathe_op anchors[] = {LATHE_OP_ERF, LATHE_OP_TANH, LATHE_OP_SIGMOID};
    for (int k = 0; k < 3; k++) {
        uint32_t count;
        lathe_node_id *list = lathe_match_nodes(ctx, anchors[k], &count);
        for (uint32_t i = 0; i < count; i++)
            /* one s(p(x)) may serve several products */
            for (int round = 0; round < 16 && g->nodes[list[i]].op == anchors[k]; round++) {
                const struct lathe_node *node = &g->nodes[list[i]];
                struct candidate c = {list[i], node->in[0], "", anchors[k] == LATHE_OP_ERF ? "gelu" : NULL, false};
                struct walk w = {node->out[0], LATHE_NONE, 0, 1, 0};
                if (follow(ctx, &c, w, MAX_STEPS))
                    continue;
                /* 2 GELU(x), if there is nothing better */
                struct candidate again = c;
                again.scaled = true;
                if (anchors[k] != LATHE_OP_SIGMOID && follow(ctx, &again, w, MAX_STEPS))
                    continue;
                if (!round && anchors[k] == LATHE_OP_ERF && !c.why[0])
                    snprintf(c.why, sizeof c.why, "1 + erf is not multiplied by the value that erf is taken of");
                if (!round && c.why[0] && c.pattern)
                    lathe_pass_missed(ctx, c.pattern, list[i], "%s", c.why);
                break;
            }
    }
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_activation: out of memory") : LATHE_OK;
}
