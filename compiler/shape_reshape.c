/* Reshape: the target dims, and the proof that they fit for every size that the model accepts.
 *
 * A constant that holds the sizes of a trace fits one size only. Equal element counts are no proof: [2,2,8] through
 * [1,4,2,4] has as many elements, but one sequence then reads another one's tokens. */
#include "shape_internal.h"
#include "text.h"

#include <inttypes.h>

static lathe_dim product_of(const struct shape_ctx *c, const struct shape_dims *dims) {
    lathe_dim product = lathe_shape_const(c, 1);
    for (int i = 0; i < dims->rank; i++)
        product = lathe_dim_mul(c->g->dims, product, dims->d[i]);
    return product;
}

/* The batch of the model: axis 0 of its first input. */
static lathe_dim batch_of(const struct shape_ctx *c) {
    const struct lathe_graph *g = c->g;
    return g->input_count ? lathe_value_dim(g, g->inputs[0], 0) : LATHE_DIM_NONE;
}

static void print_list(const struct shape_ctx *c, const lathe_dim *list, uint32_t count, struct lathe_text *out) {
    lathe_text_append(out, "[");
    for (uint32_t i = 0; i < count; i++) {
        char text[256];
        lathe_dim_print(c->g->dims, list[i], text, sizeof text);
        lathe_text_append(out, i ? ",%s" : "%s", text);
    }
    lathe_text_append(out, "]");
}

/* What one symbol must be so that `product` times the input's other dims equals `wanted`. */
static bool solve_product(const struct shape_ctx *c, lathe_dim product, int64_t wanted, uint32_t *symbol,
                          int64_t *value) {
    struct lathe_dim_term term;
    struct lathe_dims *t = c->g->dims;
    if (lathe_dim_term_count(t, product) != 1)
        return false;
    lathe_dim_term_at(t, product, 0, &term);
    if (term.atom_count != 1 || term.atoms[0].kind != LATHE_ATOM_SYMBOL || term.factor < 1 || wanted % term.factor)
        return false;
    *symbol = term.atoms[0].symbol;
    *value = wanted / term.factor;
    lathe_dim self = lathe_dims_symbol_at(t, *symbol);
    return *value >= lathe_dim_lower(t, self) && *value <= lathe_dim_upper(t, self);
}

static bool is_batch_symbol(const struct shape_ctx *c, lathe_dim d) {
    return d == batch_of(c) && lathe_shape_plain_symbol(c->g, d) != UINT32_MAX;
}

/* The sizes for which a constant shape with the sizes of a trace works: the leading axis is the batch in both, and the
 * rest fixes the other symbol. */
struct traced {
    uint32_t symbols[2];
    int64_t values[2];
    int count;
};

static bool find_traced(const struct shape_ctx *c, const struct shape_dims *in, const int64_t *target,
                        uint32_t n_target, struct traced *out) {
    struct lathe_dims *t = c->g->dims;
    out->count = 0;
    if (in->rank < 1 || n_target < 1)
        return false;
    lathe_dim product = product_of(c, in);
    lathe_dim batch = is_batch_symbol(c, in->d[0]) ? in->d[0] : LATHE_DIM_NONE;
    int64_t rest = 1;
    uint32_t free_axis = UINT32_MAX;
    for (uint32_t i = 0; i < n_target; i++) {
        if (target[i] == -1)
            free_axis = i;
        else if (!lathe_mul_i64(rest, target[i], &rest))
            return false;
    }
    if (batch != LATHE_DIM_NONE && target[0] != -1) {
        if (target[0] < lathe_dim_lower(t, batch) || target[0] > lathe_dim_upper(t, batch) || target[0] < 1)
            return false;
        out->symbols[out->count] = lathe_shape_plain_symbol(c->g, batch);
        out->values[out->count++] = target[0];
        rest /= target[0];
    }
    if (batch != LATHE_DIM_NONE)
        product = lathe_dim_div_exact(t, product, batch);
    if (product == LATHE_DIM_NONE)
        return false;
    /* A free axis other than the batch takes what is left: no other symbol is fixed. */
    if (free_axis != UINT32_MAX && !(free_axis == 0 && batch != LATHE_DIM_NONE))
        return out->count > 0;
    int64_t known;
    if (lathe_dim_is_const(t, product, &known))
        return known == rest && out->count > 0;
    if (!solve_product(c, product, rest, &out->symbols[out->count], &out->values[out->count]))
        return false;
    out->count++;
    return true;
}

/* Refuses a constant shape, or fixes the symbols to the only sizes for which it is right. */
static enum lathe_status refuse_or_bake(struct shape_ctx *c, const struct shape_dims *in, const lathe_dim *list,
                                        const int64_t *target, uint32_t n_target) {
    struct lathe_graph *g = c->g;
    struct lathe_text text = {0};
    struct traced traced;
    enum lathe_status status = LATHE_OK;
    const char *origin = g->nodes[c->n].origin[0] ? g->nodes[c->n].origin : "reshape";
    lathe_text_append(&text, "node '%s' (%s): the constant shape ", g->nodes[c->n].name, origin);
    print_list(c, list, n_target, &text);
    lathe_text_append(&text, " does not fit the input ");
    lathe_shape_describe(g, lathe_shape_in(c, 0), &text);
    if (!find_traced(c, in, target, n_target, &traced)) {
        lathe_text_append(&text, "; no size of its axes makes it right");
        status = lathe_fail(c->diag, LATHE_MSG_SHAPE_BAKED, "%s", text.data ? text.data : "");
        lathe_text_free(&text);
        return status;
    }
    lathe_text_append(&text, " for every size, only for ");
    for (int i = 0; i < traced.count; i++)
        lathe_text_append(&text, "%s%s=%" PRId64, i ? ", " : "", lathe_dims_symbol_name(g->dims, traced.symbols[i]),
                          traced.values[i]);
    lathe_text_append(&text, ": export it with that axis dynamic, or compile for a static target with this shape");
    for (int i = 0; i < traced.count && status == LATHE_OK; i++)
        status = lathe_shape_bake(c, traced.symbols[i], traced.values[i], true, text.data ? text.data : "");
    lathe_text_free(&text);
    return status;
}

/* A constant target that mixes sequences: the batch of more than one goes into axis 1 behind a leading 1. */
static bool mixes_rows(const struct shape_ctx *c, const struct shape_dims *in, const int64_t *target,
                       uint32_t n_target) {
    int64_t first;
    lathe_dim batch = batch_of(c);
    if (lathe_value_is_constant(c->g, lathe_shape_in(c, 0)) || in->rank < 2 || n_target < 3 || target[0] != 1 ||
        batch == LATHE_DIM_NONE || in->d[0] != batch)
        return false;
    if (lathe_dim_is_const(c->g->dims, batch, &first) && first == 1)
        return false;
    /* [b,...] to [1,b,...] adds an axis and mixes nothing; nor does [b,rest] to [1,-1,rest]. */
    lathe_dim row = lathe_shape_const(c, 1), kept = row;
    for (int i = 1; i < in->rank && row != LATHE_DIM_NONE; i++)
        row = lathe_dim_mul(c->g->dims, row, in->d[i]);
    for (uint32_t i = 2; i < n_target && kept != LATHE_DIM_NONE; i++)
        kept = target[i] < 1 ? LATHE_DIM_NONE : lathe_dim_mul(c->g->dims, kept, lathe_shape_const(c, target[i]));
    if (target[1] == -1 && row != LATHE_DIM_NONE && row == kept)
        return false;
    return !lathe_dim_is_const(c->g->dims, batch, &first) || target[1] != first;
}

static enum lathe_status resolve_target(struct shape_ctx *c, const lathe_dim *list, uint32_t count,
                                        struct shape_dims *out) {
    struct lathe_graph *g = c->g;
    struct lathe_dims *t = g->dims;
    bool allow_zero = lathe_shape_attr_int(c, LATHE_ATTR_ALLOW_ZERO, 0) != 0;
    int64_t target[LATHE_MAX_RANK];
    bool all_const = true, copies = false;
    int free_axis = -1;
    struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
    out->rank = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        if (!lathe_dim_is_const(t, list[i], &target[i])) {
            all_const = false;
            out->d[i] = list[i];
            target[i] = 0;
            if (lathe_dim_lower(t, list[i]) < 0)
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "element %u of the shape could be negative", i);
            continue;
        }
        out->d[i] = list[i];
        if (target[i] == -1 && free_axis >= 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "the shape has -1 twice");
        if (target[i] < -1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "the shape has the size %" PRId64, target[i]);
        if (target[i] == -1) {
            free_axis = (int)i;
        } else if (target[i] == 0 && !allow_zero) {
            if ((int)i >= in.rank)
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "the shape copies axis %u, which the input lacks",
                                        i);
            out->d[i] = in.d[i];
            copies = true;
        }
    }
    bool constant_shape = all_const && !copies;
    for (int attempt = 0; attempt < 2; attempt++) {
        in = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
        for (int i = 0; i < out->rank; i++)
            if (target[i] == 0 && all_const && copies && !allow_zero)
                out->d[i] = in.d[i];
        lathe_dim have = product_of(c, &in), want = lathe_shape_const(c, 1);
        for (int i = 0; i < out->rank; i++)
            if (i != free_axis)
                want = lathe_dim_mul(t, want, out->d[i]);
        if (have == LATHE_DIM_NONE || want == LATHE_DIM_NONE)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "a size expression is too large to follow");
        if (constant_shape && mixes_rows(c, &in, target, count)) {
            if (attempt)
                break;
            LATHE_TRY(refuse_or_bake(c, &in, list, target, count));
            continue;
        }
        int64_t zero;
        if (free_axis >= 0) {
            if (lathe_dim_is_const(t, want, &zero) && zero == 0)
                return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "-1 beside a size of 0 has no value");
            out->d[free_axis] = lathe_dim_div_exact(t, have, want);
            if (out->d[free_axis] != LATHE_DIM_NONE)
                return LATHE_OK;
        } else if (have == want) {
            return LATHE_OK;
        }
        if (constant_shape && !attempt) {
            LATHE_TRY(refuse_or_bake(c, &in, list, target, count));
            continue;
        }
        if (!attempt && in.rank && out->rank && lathe_shape_same_batch(c, in.d[0], out->d[0]))
            continue;
        break;
    }
    /* A shape of expressions: the counts may still be equal for all sizes that can occur. */
    struct lathe_text text = {0};
    print_list(c, list, count, &text);
    bool known = free_axis < 0 && lathe_dim_proved_ne(t, product_of(c, &in), product_of(c, out));
    enum lathe_status status = lathe_shape_fail(c, known ? LATHE_MSG_SHAPE_BAKED : LATHE_MSG_SHAPE_UNKNOWN,
                                                "the shape %s is not proved to have as many elements as the input",
                                                text.data ? text.data : "?");
    lathe_text_free(&text);
    return status;
}

enum lathe_status lathe_shape_reshape(struct shape_ctx *c) {
    struct lathe_graph *g = c->g;
    LATHE_TRY(lathe_shape_need_rank(c, 0, 0, LATHE_MAX_RANK));
    struct shape_dims out;
    lathe_value_id shape = lathe_shape_in(c, 1);
    if (shape == LATHE_NONE) {
        /* The output's dims are the shape. They must still be as many elements. */
        lathe_value_id y = g->nodes[c->n].out[0];
        if (y == LATHE_NONE || g->values[y].rank < 0)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "it has neither a shape operand nor a known shape");
        out = lathe_shape_dims_of(c, y);
        struct shape_dims in = lathe_shape_dims_of(c, lathe_shape_in(c, 0));
        lathe_dim have = product_of(c, &in), want = product_of(c, &out);
        if (have != want || have == LATHE_DIM_NONE)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_MISMATCH, "output and input differ in the number of elements");
    } else {
        lathe_dim list[LATHE_MAX_CONTENT];
        uint32_t count;
        if (!lathe_shape_content(c, shape, list, &count))
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_UNKNOWN, "its shape operand '%s' depends on the data",
                                    g->values[shape].name);
        if (count > LATHE_MAX_RANK || g->values[shape].rank != 1)
            return lathe_shape_fail(c, LATHE_MSG_SHAPE_LIMITS, "a shape of rank %u; ranks up to %d are supported",
                                    count, LATHE_MAX_RANK);
        LATHE_TRY(resolve_target(c, list, count, &out));
        lathe_value_id x = lathe_shape_in(c, 0);
        lathe_node_set_inputs(g, c->n, &x, 1);
        lathe_node_drop_attr(g, c->n, LATHE_ATTR_ALLOW_ZERO);
    }
    lathe_shape_set(c, 0, lathe_shape_value(c, 0)->dtype, &out);
    /* A view has the elements of its operand. */
    lathe_dim content[LATHE_MAX_CONTENT];
    uint32_t count;
    if (g->nodes[c->n].out[0] != LATHE_NONE && lathe_shape_content(c, lathe_shape_in(c, 0), content, &count))
        lathe_value_set_content(g, g->nodes[c->n].out[0], content, count);
    return LATHE_OK;
}
