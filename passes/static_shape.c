/* Pins batch and length to the sizes of a bucket: every dimension of the plan is a constant then.
 *
 * The batch is the first axis of each input, the length the second of inputs with two or three axes. It runs behind
 * bound_positions, so that a length beyond the position table is refused here and not found by a broken shape. */
#include "pass.h"

static enum lathe_status pin(struct lathe_pass_ctx *ctx, lathe_value_id input, int axis, int64_t size) {
    struct lathe_graph *g = ctx->graph;
    const char *what = axis == 0 ? "batch" : "length", *name = g->values[input].name;
    lathe_dim d = g->values[input].dims[axis];
    int64_t fixed, symbol = lathe_dim_plain_symbol(g->dims, d);
    if (lathe_dim_is_const(g->dims, d, &fixed)) {
        /* an axis of one is broadcast whatever the batch, as position ids are */
        if (fixed != size && !(axis == 0 && fixed == 1))
            return lathe_fail(ctx->diag, LATHE_MSG_STATIC_SHAPE,
                              "input '%s' has a fixed %s of %lld, the bucket asks for %lld", name, what,
                              (long long)fixed, (long long)size);
        return LATHE_OK;
    }
    if (symbol < 0)
        return LATHE_OK; /* what the other symbols make of it is checked at the end */
    if (size < lathe_dim_lower(g->dims, d) || size > lathe_dim_upper(g->dims, d))
        return lathe_fail(ctx->diag, LATHE_MSG_STATIC_SHAPE,
                          "input '%s': the bucket's %s is %lld, the graph takes %lld to %lld", name, what,
                          (long long)size, (long long)lathe_dim_lower(g->dims, d),
                          (long long)lathe_dim_upper(g->dims, d));
    lathe_graph_substitute(g, (uint32_t)symbol, lathe_dim_const(g->dims, size));
    ctx->changes++;
    return LATHE_OK;
}

/* The plan may hold no symbol. */
static enum lathe_status check_constant(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    for (uint32_t v = 0; v < g->value_count; v++) {
        const struct lathe_value *value = &g->values[v];
        int64_t size;
        if (value->producer == LATHE_NONE && !value->is_input)
            continue;
        for (int axis = 0; axis < value->rank; axis++)
            if (!lathe_dim_is_const(g->dims, value->dims[axis], &size)) {
                char text[160];
                lathe_dim_print(g->dims, value->dims[axis], text, sizeof text);
                return lathe_fail(ctx->diag, LATHE_MSG_STATIC_SHAPE,
                                  "axis %d of '%s' is still %s once batch and length are fixed", axis, value->name,
                                  text);
            }
    }
    return LATHE_OK;
}

enum lathe_status lathe_pass_static_shape(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_pass_options *o = ctx->options;
    if (!o->pin_batch || !o->pin_seq)
        return LATHE_OK;
    for (uint32_t i = 0; i < g->input_count; i++) {
        int rank = g->values[g->inputs[i]].rank;
        if (rank > 0)
            LATHE_TRY(pin(ctx, g->inputs[i], 0, o->pin_batch));
        if (rank == 2 || rank == 3)
            LATHE_TRY(pin(ctx, g->inputs[i], 1, o->pin_seq));
    }
    LATHE_TRY(check_constant(ctx));
    lathe_pass_note(ctx, "static_shape", "%lldx%lld", (long long)o->pin_batch, (long long)o->pin_seq);
    return LATHE_OK;
}
