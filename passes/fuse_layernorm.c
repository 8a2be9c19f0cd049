/* Layer norm and RMS norm written out in plain operators become layer_norm and rms_norm.
 *
 * The anchor is the mean of squares m of a value a over the last axes. From it the epsilon and the root are followed
 * down, then the product with what is normalised:
 *   a / sqrt(m + eps), a * (1 / sqrt(m + eps)), a * (m + eps) ^ -0.5, gamma at any place of the product, then beta.
 * If a is x - mean(x) over the same axes that is the layer norm of x, else the RMS norm of a. The variance may also be
 * mean(x^2) - mean(x)^2, and the shift may be folded as x * w + (beta - mean(x) * w) with w = gamma / sqrt(m + eps).
 * Inner values that have other uses stay computed: only the last value of the pattern changes its producer. */
#include "match.h"

#include <math.h>
#include <stdio.h>

#define MAX_STEPS 6 /* nodes between the root and the end of the product */

struct candidate {
    lathe_value_id squared; /* a: what the mean of squares is taken of */
    lathe_value_id x;       /* squared = x - mean(x), or LATHE_NONE */
    int axis;
    double epsilon;
    bool by_moments; /* variance = mean(x^2) - mean(x)^2: then squared = x */
    char why[160];   /* the condition that failed last */
};

struct walk {
    lathe_value_id value;  /* the product so far */
    bool inverse;          /* false: it is the root itself, true: it holds 1 / root */
    lathe_value_id source; /* x of the layer norm or the operand of the RMS norm; LATHE_NONE before it came */
    bool centred;
    lathe_value_id gamma, beta;
};

/* v is x - mean(x) over the axes from `axis` on (-1: any last axes, told in *axis). */
static bool is_centred(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *x, int *axis) {
    lathe_node_id sub = lathe_producer_of(g, lathe_match_skip_casts(g, v), LATHE_OP_SUB);
    if (sub == LATHE_NONE)
        return false;
    lathe_value_id from, of = g->nodes[sub].in[0];
    int found;
    if (!lathe_match_mean(g, g->nodes[sub].in[1], &from, &found) || !lathe_match_same(g, of, from) ||
        !lathe_value_same_shape(g, of, g->nodes[sub].out[0]) || (*axis >= 0 && *axis != found))
        return false;
    *x = of;
    *axis = found;
    return true;
}

/* The operand of a square; *exponent tells a power that is none. */
static bool is_power(const struct lathe_graph *g, lathe_value_id v, lathe_value_id *base, double *exponent) {
    lathe_node_id n = g->values[lathe_match_skip_casts(g, v)].producer;
    if (n == LATHE_NONE)
        return false;
    const struct lathe_node *node = &g->nodes[n];
    if (node->op == LATHE_OP_POW && lathe_match_number(g, node->in[1], exponent)) {
        *base = node->in[0];
    } else if (node->op == LATHE_OP_MUL && lathe_match_same(g, node->in[0], node->in[1])) {
        *base = node->in[0];
        *exponent = 2;
    } else {
        return false;
    }
    return lathe_value_same_shape(g, *base, node->out[0]);
}

/* Adds the factors of v: what is normalised, gamma, the number 1. */
static bool take_factors(const struct lathe_graph *g, struct candidate *c, struct walk *w, lathe_value_id v,
                         int depth) {
    lathe_value_id inner = lathe_match_skip_casts(g, v), x;
    int axis = c->axis;
    double number;
    bool shifted = is_centred(g, inner, &x, &axis);
    if (shifted && (lathe_match_same(g, inner, c->squared) || (c->x != LATHE_NONE && lathe_match_same(g, x, c->x)) ||
                    (c->by_moments && lathe_match_same(g, x, c->squared)))) {
        if (w->source != LATHE_NONE)
            return false;
        w->source = x;
        w->centred = true;
        return true;
    }
    if (!c->by_moments && lathe_match_same(g, inner, c->squared)) {
        if (w->source != LATHE_NONE)
            return false;
        w->source = v;
        w->centred = false;
        return true;
    }
    if (lathe_match_number(g, v, &number) && number == 1)
        return true;
    lathe_node_id mul = lathe_producer_of(g, inner, LATHE_OP_MUL);
    if (depth > 0 && mul != LATHE_NONE) {
        struct walk saved = *w;
        if (take_factors(g, c, w, g->nodes[mul].in[0], depth - 1) &&
            take_factors(g, c, w, g->nodes[mul].in[1], depth - 1))
            return true;
        *w = saved;
    }
    if (lathe_match_row_operand(g, v, c->squared, c->axis)) {
        if (w->gamma != LATHE_NONE)
            return false;
        w->gamma = v;
        return true;
    }
    return false;
}

/* Takes gamma and beta behind the core when nothing else uses the value between. */
static void extend(const struct lathe_graph *g, struct candidate *c, struct walk *w) {
    for (int step = 0; step < 2; step++) {
        lathe_node_id use = lathe_value_only_use(g, w->value);
        lathe_value_id other;
        if (use == LATHE_NONE || !lathe_match_other(g, use, w->value, &other))
            return;
        enum lathe_op op = g->nodes[use].op;
        lathe_value_id *slot = op == LATHE_OP_MUL && w->gamma == LATHE_NONE && w->beta == LATHE_NONE ? &w->gamma
                               : op == LATHE_OP_ADD && w->beta == LATHE_NONE && w->centred           ? &w->beta
                                                                                                     : NULL;
        if (!slot || !lathe_value_same_shape(g, g->nodes[use].out[0], w->value) ||
            !lathe_match_row_operand(g, other, w->value, c->axis))
            return;
        *slot = other;
        w->value = g->nodes[use].out[0];
    }
}

/* x * w + (beta - mean * w) with w = gamma / root: looks for it from the product x * w at node `mul`. */
static bool folded_shift(const struct lathe_graph *g, struct candidate *c, struct walk *w, lathe_node_id mul) {
    lathe_value_id x, product = g->nodes[mul].out[0];
    if (c->x == LATHE_NONE && !c->by_moments)
        return false;
    lathe_value_id of = c->by_moments ? c->squared : c->x;
    if (!lathe_match_other(g, mul, w->value, &x) || !lathe_match_same(g, x, of))
        return false;
    lathe_node_id add = lathe_value_only_use(g, product);
    if (add == LATHE_NONE || (g->nodes[add].op != LATHE_OP_ADD && g->nodes[add].op != LATHE_OP_SUB))
        return false;
    lathe_value_id rest, beta = LATHE_NONE, shift, mean, from;
    if (!lathe_match_other(g, add, product, &rest))
        return false;
    if (g->nodes[add].op == LATHE_OP_SUB) {
        if (g->nodes[add].in[0] != product)
            return false;
        shift = rest;
    } else {
        lathe_node_id sub = lathe_producer_of(g, rest, LATHE_OP_SUB);
        if (sub == LATHE_NONE)
            return false;
        beta = g->nodes[sub].in[0];
        shift = g->nodes[sub].in[1];
        if (!lathe_match_row_operand(g, beta, of, c->axis))
            return false;
    }
    lathe_node_id scaled = lathe_producer_of(g, shift, LATHE_OP_MUL);
    int axis;
    if (scaled == LATHE_NONE || !lathe_match_other(g, scaled, w->value, &mean) ||
        !lathe_match_mean(g, mean, &from, &axis) || axis != c->axis || !lathe_match_same(g, from, of) ||
        !lathe_value_same_shape(g, g->nodes[add].out[0], of))
        return false;
    w->source = x;
    w->centred = true;
    w->beta = beta;
    w->value = g->nodes[add].out[0];
    return true;
}

/* Makes the last value of the pattern the output of one operator. */
static bool rewrite(struct lathe_pass_ctx *ctx, struct candidate *c, struct walk *w) {
    struct lathe_graph *g = ctx->graph;
    lathe_node_id last = g->values[w->value].producer;
    if (g->values[w->source].dtype != LATHE_F32) {
        snprintf(c->why, sizeof c->why, "the operand is %s, expected f32",
                 lathe_dtype_name(g->values[w->source].dtype));
        return false;
    }
    if (g->values[w->source].dtype != g->values[w->value].dtype || !lathe_value_same_shape(g, w->source, w->value)) {
        snprintf(c->why, sizeof c->why, "the result has another type or shape than the operand");
        return false;
    }
    lathe_value_id in[3] = {w->source, LATHE_NONE, LATHE_NONE};
    if (w->gamma != LATHE_NONE)
        in[1] = lathe_match_make_row_operand(ctx, last, w->gamma, w->source, c->axis);
    if (w->beta != LATHE_NONE)
        in[2] = lathe_match_make_row_operand(ctx, last, w->beta, w->source, c->axis);
    if (g->out_of_memory)
        return false;
    lathe_match_make_into(g, last, w->centred ? LATHE_OP_LAYER_NORM : LATHE_OP_RMS_NORM, in, w->centred ? 3 : 2);
    lathe_node_set_int(g, last, LATHE_ATTR_AXIS, c->axis);
    lathe_node_set_float(g, last, LATHE_ATTR_EPSILON, c->epsilon);
    ctx->changes++;
    return true;
}

/* Follows the root through the uses of w.value until it has met what it divides. */
static bool follow_root(struct lathe_pass_ctx *ctx, struct candidate *c, struct walk w, int steps) {
    struct lathe_graph *g = ctx->graph;
    if (w.inverse && w.source != LATHE_NONE) {
        extend(g, c, &w);
        return rewrite(ctx, c, &w);
    }
    if (steps == 0)
        return false;
    const struct lathe_value *value = &g->values[w.value];
    for (uint32_t i = 0; i < value->use_count; i++) {
        lathe_node_id use = value->uses[i];
        const struct lathe_node *node = &g->nodes[use];
        struct walk next = w;
        next.value = node->out[0];
        lathe_value_id other;
        switch (node->op) {
        case LATHE_OP_CAST:
            if (!lathe_dtype_is_float(g->values[next.value].dtype))
                continue;
            break;
        case LATHE_OP_RECIPROCAL:
            if (w.inverse)
                continue;
            next.inverse = true;
            break;
        case LATHE_OP_DIV:
            if (w.inverse || node->in[1] != w.value || !take_factors(g, c, &next, node->in[0], 3)) {
                if (!w.inverse && node->in[1] == w.value)
                    snprintf(c->why, sizeof c->why, "what the root divides is neither the centred value nor gamma");
                continue;
            }
            next.inverse = true;
            break;
        case LATHE_OP_MUL:
            if (!w.inverse || !lathe_match_other(g, use, w.value, &other))
                continue;
            next = w;
            if (folded_shift(g, c, &next, use))
                return rewrite(ctx, c, &next);
            next.value = node->out[0];
            if (!take_factors(g, c, &next, other, 3)) {
                snprintf(c->why, sizeof c->why, "what 1/root multiplies is neither the centred value nor gamma");
                continue;
            }
            break;
        default:
            continue;
        }
        if (follow_root(ctx, c, next, steps - 1))
            return true;
    }
    return false;
}

/* From the variance on: epsilon, root. */
static bool follow_variance(struct lathe_pass_ctx *ctx, struct candidate *c, lathe_value_id variance) {
    struct lathe_graph *g = ctx->graph;
    bool rooted = false;
    for (uint32_t i = 0; i < g->values[variance].use_count; i++) {
        lathe_node_id use = g->values[variance].uses[i];
        lathe_value_id other, sum = g->nodes[use].out[0];
        enum lathe_op op = g->nodes[use].op;
        if (op == LATHE_OP_CAST && lathe_dtype_is_float(g->values[sum].dtype)) {
            if (follow_variance(ctx, c, sum))
                return true;
            continue;
        }
        if (op == LATHE_OP_RESHAPE && g->values[sum].rank == g->values[c->squared].rank) {
            if (follow_variance(ctx, c, sum))
                return true;
            continue;
        }
        if (op == LATHE_OP_SQRT || op == LATHE_OP_POW) {
            snprintf(c->why, sizeof c->why, "no epsilon inside the root");
            rooted = true;
            continue;
        }
        if (op != LATHE_OP_ADD || !lathe_match_other(g, use, variance, &other))
            continue;
        if (!lathe_match_number(g, other, &c->epsilon)) {
            snprintf(c->why, sizeof c->why, "the epsilon is not a constant scalar");
            continue;
        }
        if (!(c->epsilon > 0) || !isfinite(c->epsilon) || !lathe_value_same_shape(g, sum, variance)) {
            snprintf(c->why, sizeof c->why, "the epsilon is %g, expected a scalar above 0", c->epsilon);
            continue;
        }
        for (uint32_t k = 0; k < g->values[sum].use_count; k++) {
            lathe_node_id root = g->values[sum].uses[k];
            double exponent = 0.5;
            if (g->nodes[root].op != LATHE_OP_SQRT &&
                !(g->nodes[root].op == LATHE_OP_POW && g->nodes[root].in[0] == sum &&
                  lathe_match_number(g, g->nodes[root].in[1], &exponent)))
                continue;
            rooted = true;
            if (fabs(exponent) != 0.5) {
                snprintf(c->why, sizeof c->why, "the variance is raised to %g, expected 0.5 or -0.5", exponent);
                continue;
            }
            struct walk w = {g->nodes[root].out[0], exponent < 0, LATHE_NONE, false, LATHE_NONE, LATHE_NONE};
            if (follow_root(ctx, c, w, MAX_STEPS))
                return true;
        }
    }
    if (!rooted && !c->why[0])
        snprintf(c->why, sizeof c->why, "no square root of the mean of squares plus epsilon");
    return false;
}

/* mean(x^2) - mean(x)^2 among the uses of m = mean(x^2). */
static lathe_value_id variance_by_moments(const struct lathe_graph *g, lathe_value_id m, lathe_value_id x, int axis) {
    for (uint32_t i = 0; i < g->values[m].use_count; i++) {
        const struct lathe_node *sub = &g->nodes[g->values[m].uses[i]];
        lathe_value_id mean, from;
        double exponent;
        int found;
        if (sub->op == LATHE_OP_SUB && sub->in[0] == m && is_power(g, sub->in[1], &mean, &exponent) && exponent == 2 &&
            lathe_match_mean(g, mean, &from, &found) && found == axis && lathe_match_same(g, from, x))
            return sub->out[0];
    }
    return LATHE_NONE;
}

static bool try_mean(struct lathe_pass_ctx *ctx, lathe_value_id mean, struct candidate *c, bool *centred) {
    struct lathe_graph *g = ctx->graph;
    lathe_value_id squares;
    double exponent;
    *c = (struct candidate){LATHE_NONE, LATHE_NONE, -1, 0, false, ""};
    *centred = false;
    if (!lathe_match_mean(g, mean, &squares, &c->axis) || !is_power(g, squares, &c->squared, &exponent))
        return false;
    int axis = -1;
    *centred = is_centred(g, c->squared, &c->x, &axis);
    if (!*centred) {
        /* the square forgives a changed sign: mean(x) - x */
        lathe_node_id sub = lathe_producer_of(g, lathe_match_skip_casts(g, c->squared), LATHE_OP_SUB);
        lathe_value_id from;
        if (sub != LATHE_NONE && lathe_match_mean(g, g->nodes[sub].in[0], &from, &axis) && axis == c->axis &&
            lathe_match_same(g, from, g->nodes[sub].in[1]))
            c->x = g->nodes[sub].in[1];
    } else if (axis != c->axis) {
        snprintf(c->why, sizeof c->why, "the mean is over the axes from %d on, the variance from %d on", axis, c->axis);
        c->x = LATHE_NONE;
    }
    if (exponent != 2) {
        snprintf(c->why, sizeof c->why, "the exponent is %g, expected 2", exponent);
        return false;
    }
    if (follow_variance(ctx, c, mean))
        return true;
    lathe_value_id variance = variance_by_moments(g, mean, c->squared, c->axis);
    if (variance == LATHE_NONE)
        return false;
    c->by_moments = true;
    return follow_variance(ctx, c, variance);
}

/* Near misses: x - mean(x) over the last axes that no layer norm took. */
static void report_rest(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    LATHE_FOR_NODES(g, n) {
        lathe_value_id x;
        int axis = -1;
        if (g->nodes[n].op != LATHE_OP_SUB || !is_centred(g, g->nodes[n].out[0], &x, &axis))
            continue;
        const struct lathe_value *d = &g->values[g->nodes[n].out[0]];
        bool squared = false;
        for (uint32_t i = 0; i < d->use_count; i++)
            squared |= g->nodes[d->uses[i]].op == LATHE_OP_POW || g->nodes[d->uses[i]].op == LATHE_OP_MUL;
        if (!squared)
            lathe_pass_missed(ctx, "layernorm", n, "x - mean(x) is not squared, expected its variance");
    }
}

enum lathe_status lathe_pass_fuse_layernorm(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    static const enum lathe_op anchors[] = {LATHE_OP_REDUCE_MEAN, LATHE_OP_REDUCE_SUM};
    for (int a = 0; a < 2; a++) {
        uint32_t count;
        lathe_node_id *list = lathe_match_nodes(ctx, anchors[a], &count);
        for (uint32_t i = 0; i < count; i++) {
            lathe_node_id n = list[i];
            struct candidate c;
            bool centred;
            /* several norms may share one variance: go on until none is found */
            for (int round = 0; round < 16 && g->nodes[n].op == anchors[a]; round++) {
                lathe_value_id mean = g->nodes[n].out[0];
                if (anchors[a] == LATHE_OP_REDUCE_SUM) {
                    lathe_node_id scale = lathe_value_only_use(g, mean);
                    if (scale == LATHE_NONE || g->nodes[scale].n_out != 1)
                        break;
                    mean = g->nodes[scale].out[0];
                }
                if (!try_mean(ctx, mean, &c, &centred)) {
                    if (!round && centred && c.why[0])
                        lathe_pass_missed(ctx, "layernorm", n, "%s", c.why);
                    break;
                }
            }
        }
    }
    report_rest(ctx);
    return g->out_of_memory ? lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "fuse_layernorm: out of memory") : LATHE_OK;
}
