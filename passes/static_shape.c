/* Pins batch and length to the sizes of buckets. It runs behind bound_positions, so that a length beyond the position
 * table is refused here and not found by a broken shape.
 *
 * The batch is the first axis of each input, the length the second of inputs with two or three axes, and every other
 * axis of that symbol. What all buckets have in common is pinned at once; the rest stays symbolic through the passes,
 * so that one graph and one calibration serve all buckets, and is pinned in a copy of the final graph for each: then
 * the list holds that one bucket, and no symbol may be left.
 *
 * Before the first pin it notes what the interface was: which axes of inputs and outputs vary, and with what. An output
 * that has other sizes than plain ones cannot be cropped or joined: such a graph takes one bucket, and only requests
 * that fit it exactly. */
#include "match.h"
#include "pass.h"

#include <stdio.h>
#include <string.h>

#define LOG(x) ((long long)(x))

struct pinning {
    struct lathe_pass_ctx *ctx;
    struct lathe_graph *g;
    const struct lathe_bucket *buckets;
    unsigned count;
    uint8_t *role;                /* a symbol: enum lathe_port_axis */
    int64_t same_batch, same_seq; /* of all buckets; 0: they differ */
};

static bool counts_length(const struct lathe_value *v) {
    return v->rank == 2 || v->rank == 3;
}

/* ---- roles of the symbols, sizes within their limits */

/* What an axis that the graph fixes must be: the batch of each bucket, unless another input's varies. */
static enum lathe_status check_fixed(struct pinning *p, int axis, bool varies) {
    struct lathe_graph *g = p->g;
    for (uint32_t i = 0; !varies && i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        int64_t fixed;
        if (axis == 0 ? v->rank < 1 : !counts_length(v))
            continue;
        if (!lathe_dim_is_const(g->dims, v->dims[axis], &fixed))
            continue;
        bool broadcast = axis == 0 && fixed == 1; /* as position ids are; something must have the batch, though */
        bool others = false;
        for (uint32_t k = 0; broadcast && k < g->input_count; k++) {
            int64_t size;
            const struct lathe_value *other = &g->values[g->inputs[k]];
            others |= other->rank > 0 && lathe_dim_is_const(g->dims, other->dims[0], &size) && size != 1;
        }
        for (unsigned b = 0; b < p->count; b++) {
            int64_t size = axis == 0 ? p->buckets[b].batch : p->buckets[b].seq;
            if (fixed != size && !(broadcast && others))
                return lathe_fail(p->ctx->diag, LATHE_MSG_STATIC_SHAPE,
                                  "input '%s' has a fixed %s of %lld, the bucket asks for %lld", v->name,
                                  axis == 0 ? "batch" : "length", LOG(fixed), LOG(size));
        }
    }
    return LATHE_OK;
}

static enum lathe_status find_role(struct pinning *p, lathe_value_id input, int axis) {
    struct lathe_graph *g = p->g;
    const struct lathe_value *v = &g->values[input];
    enum lathe_port_axis role = axis == 0 ? LATHE_PORT_BATCH : LATHE_PORT_SEQ;
    const char *what = axis == 0 ? "batch" : "length";
    int64_t symbol = lathe_dim_plain_symbol(g->dims, v->dims[axis]);
    if (symbol < 0)
        return LATHE_OK; /* fixed, or what the other symbols make of it: checked at the end */
    if (p->role[symbol] && p->role[symbol] != role)
        return lathe_fail(p->ctx->diag, LATHE_MSG_STATIC_SHAPE,
                          "input '%s': its %s is the same size as another input's %s, which a bucket pins apart",
                          v->name, what, axis == 0 ? "length" : "batch");
    p->role[symbol] = (uint8_t)role;
    int64_t low = lathe_dim_lower(g->dims, v->dims[axis]), high = lathe_dim_upper(g->dims, v->dims[axis]);
    for (unsigned b = 0; b < p->count; b++) {
        int64_t size = axis == 0 ? p->buckets[b].batch : p->buckets[b].seq;
        if (size < low || size > high)
            return lathe_fail(p->ctx->diag, LATHE_MSG_STATIC_SHAPE,
                              "input '%s': the bucket's %s is %lld, the graph takes %lld to %lld", v->name, what,
                              LOG(size), LOG(low), LOG(high));
    }
    return LATHE_OK;
}

static enum lathe_status find_roles(struct pinning *p, bool *has_batch, bool *has_seq) {
    struct lathe_graph *g = p->g;
    *has_batch = *has_seq = false;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (v->rank > 0)
            LATHE_TRY(find_role(p, g->inputs[i], 0));
        if (counts_length(v))
            LATHE_TRY(find_role(p, g->inputs[i], 1));
    }
    for (uint32_t s = 0; s < lathe_dims_symbol_count(g->dims); s++) {
        *has_batch |= p->role[s] == LATHE_PORT_BATCH;
        *has_seq |= p->role[s] == LATHE_PORT_SEQ;
    }
    return LATHE_OK;
}

/* ---- the interface */

static enum lathe_port_axis axis_kind(const struct pinning *p, lathe_dim d) {
    int64_t symbol = lathe_dim_plain_symbol(p->g->dims, d);
    return symbol < 0 ? LATHE_PORT_FIXED : (enum lathe_port_axis)p->role[symbol];
}

/* Sizes that are fixed or plain, the batch in front. */
static bool is_plain(const struct pinning *p, lathe_value_id v) {
    const struct lathe_value *value = &p->g->values[v];
    int64_t size;
    for (int d = 0; d < value->rank; d++) {
        enum lathe_port_axis kind = axis_kind(p, value->dims[d]);
        if (kind == LATHE_PORT_FIXED ? !lathe_dim_is_const(p->g->dims, value->dims[d], &size)
                                     : kind == LATHE_PORT_BATCH && d > 0)
            return false;
    }
    return true;
}

/* v is computed from an input that has the batch, so without a batch axis it mixes rows. */
static bool mixes_rows(const struct pinning *p, lathe_value_id v) {
    const struct lathe_graph *g = p->g;
    const struct lathe_value *value = &g->values[v];
    if (value->rank > 0 && axis_kind(p, value->dims[0]) == LATHE_PORT_BATCH)
        return false;
    lathe_value_id *stack = lathe_arena_alloc_array(p->ctx->scratch, (size_t)g->value_count + 1, sizeof *stack);
    uint8_t *seen = lathe_arena_alloc(p->ctx->scratch, (size_t)g->value_count + 1);
    uint32_t depth = 0;
    if (!stack || !seen)
        return true;
    stack[depth++] = v;
    seen[v] = 1;
    while (depth > 0) {
        const struct lathe_value *at = &g->values[stack[--depth]];
        if (at->is_input && at->rank > 0 && axis_kind(p, at->dims[0]) == LATHE_PORT_BATCH)
            return true;
        if (at->producer == LATHE_NONE)
            continue;
        const struct lathe_node *n = &g->nodes[at->producer];
        for (uint32_t i = 0; i < n->n_in; i++)
            if (n->in[i] != LATHE_NONE && !seen[n->in[i]]) {
                seen[n->in[i]] = 1;
                stack[depth++] = n->in[i];
            }
    }
    return false;
}

static enum lathe_status check_ports(const struct pinning *p, bool *plain) {
    struct lathe_graph *g = p->g;
    *plain = true;
    for (uint32_t i = 0; i < g->input_count + g->output_count; i++) {
        bool in = i < g->input_count;
        lathe_value_id port = in ? g->inputs[i] : g->outputs[i - g->input_count];
        if (is_plain(p, port) && (in || !mixes_rows(p, port)))
            continue;
        const struct lathe_value *v = &g->values[port];
        const char *name = in ? v->name : g->output_names[i - g->input_count], *role = in ? "input" : "output";
        char dims[320] = "";
        for (int d = 0; d < v->rank; d++) {
            size_t n = strlen(dims);
            if (d && n < sizeof dims - 3)
                n += (size_t)snprintf(dims + n, sizeof dims - n, ", ");
            lathe_dim_print(g->dims, v->dims[d], dims + n, (int)(sizeof dims - n));
        }
        *plain = false;
        if (p->count > 1)
            return lathe_fail(p->ctx->diag, LATHE_MSG_STATIC_SHAPE,
                              "%s '%s' [%s]: only the batch in front and plain sizes behind it can be split, padded "
                              "and cropped; with one bucket, requests that fit it exactly run",
                              role, name, dims);
        lathe_pass_note(p->ctx, "exact_requests", "%s '%s' [%s] cannot be split, padded or cropped", role, name, dims);
    }
    return LATHE_OK;
}

/* The graph tells a pad id where it counts positions over ids that differ from it. */
static bool reaches_count(const struct lathe_graph *g, lathe_value_id v, int depth) {
    for (uint32_t u = 0; depth > 0 && u < g->values[v].use_count; u++) {
        const struct lathe_node *n = &g->nodes[g->values[v].uses[u]];
        if (n->op == LATHE_OP_CUMSUM)
            return true;
        if ((n->op == LATHE_OP_NOT || n->op == LATHE_OP_CAST) && n->out[0] != LATHE_NONE &&
            reaches_count(g, n->out[0], depth - 1))
            return true;
    }
    return false;
}

static void find_pad_id(const struct lathe_graph *g, struct lathe_interface *out) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        if (v->rank != 2 || !lathe_dtype_is_integer(v->dtype))
            continue;
        for (uint32_t u = 0; u < v->use_count; u++) {
            const struct lathe_node *n = &g->nodes[v->uses[u]];
            double value;
            if (n->op != LATHE_OP_EQUAL || n->n_in != 2 || n->out[0] == LATHE_NONE)
                continue;
            lathe_value_id other = n->in[n->in[0] == g->inputs[i]];
            if (!lathe_constant_uniform(g, other, &value) || value < 0 || value > 1e6 ||
                !reaches_count(g, n->out[0], 4))
                continue;
            out->ids = i;
            out->pad_id = (int64_t)value;
            return;
        }
    }
}

/* Some operator reads the numbers themselves, beside those that look rows up with them. */
static bool reads_numbers(const struct lathe_graph *g, lathe_value_id v, int depth) {
    for (uint32_t u = 0; u < g->values[v].use_count; u++) {
        const struct lathe_node *n = &g->nodes[g->values[v].uses[u]];
        switch (n->op) {
        case LATHE_OP_GATHER:
        case LATHE_OP_GATHER_BLOCK_QUANTIZED:
            if (n->in[0] == v)
                return true;
            break;
        case LATHE_OP_CAST:
        case LATHE_OP_RESHAPE:
            if (depth == 0 || reads_numbers(g, n->out[0], depth - 1))
                return true;
            break;
        default:
            if (!(lathe_op_info(n->op)->flags & LATHE_OPF_SHAPE_ONLY))
                return true;
        }
    }
    return g->values[v].is_output;
}

/* An imported DynamicQuantizeLinear takes one range over all rows and their padding. */
static bool rows_depend(const struct lathe_graph *g) {
    LATHE_FOR_NODES(g, n)
    if (g->nodes[n].op == LATHE_OP_DYNAMIC_QUANTIZE_LINEAR && !lathe_value_is_constant(g, g->nodes[n].in[0]))
        return true;
    return false;
}

static void find_mask(const struct lathe_graph *g, struct lathe_interface *out) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = &g->values[g->inputs[i]];
        bool seq = false;
        for (int d = 0; d < v->rank; d++)
            seq |= out->ports[i].kind[d] == LATHE_PORT_SEQ;
        if (!seq || !strstr(v->name, "mask") || v->use_count == 0)
            continue;
        out->hides_padding = true;
        if (v->rank == 2 && out->ports[i].kind[1] == LATHE_PORT_SEQ &&
            (out->mask == LATHE_NONE || !strcmp(v->name, "attention_mask")))
            out->mask = i;
    }
}

static enum lathe_status note_interface(struct pinning *p, bool has_batch, bool has_seq) {
    struct lathe_graph *g = p->g;
    bool plain;
    LATHE_TRY(check_ports(p, &plain));
    uint32_t ports = g->input_count + g->output_count;
    struct lathe_interface *out = lathe_arena_alloc(g->arena, sizeof *out);
    struct lathe_port_axes *axes = lathe_arena_alloc_array(g->arena, (size_t)ports + 1, sizeof *axes);
    if (!out || !axes)
        return lathe_fail(p->ctx->diag, LATHE_MSG_NO_MEMORY, "static_shape: out of memory");
    *out = (struct lathe_interface){.ports = axes, .mask = LATHE_NONE, .ids = LATHE_NONE};
    for (uint32_t i = 0; plain && i < ports; i++) {
        const struct lathe_value *v = &g->values[i < g->input_count ? g->inputs[i] : g->outputs[i - g->input_count]];
        for (int d = 0; d < v->rank; d++) {
            char text[256];
            axes[i].kind[d] = (uint8_t)axis_kind(p, v->dims[d]);
            if (axes[i].kind[d] == LATHE_PORT_FIXED)
                continue;
            lathe_dim_print(g->dims, v->dims[d], text, (int)sizeof text);
            axes[i].name[d] = lathe_arena_string(g->arena, text);
            if (!axes[i].name[d])
                return lathe_fail(p->ctx->diag, LATHE_MSG_NO_MEMORY, "static_shape: out of memory");
        }
    }
    out->has_batch = plain && has_batch;
    out->has_seq = plain && has_seq;
    find_mask(g, out);
    find_pad_id(g, out);
    for (uint32_t i = 0; i < g->input_count && i < 64; i++)
        out->read_inputs |= (uint64_t)reads_numbers(g, g->inputs[i], 4) << i;
    g->interface = out;
    if (plain && rows_depend(g)) {
        out->whole = true;
        out->hides_padding = false;
        lathe_pass_warn(
            p->ctx, "WHOLE_REQUESTS", LATHE_NONE,
            "rows depend on each other (BATCH_DEPENDENT), so requests are neither split nor padded: only those "
            "of a bucket's own sizes run");
    } else if (out->has_seq && !out->hides_padding)
        lathe_pass_warn(p->ctx, "NO_MASK", LATHE_NONE,
                        "the graph has no mask input that hides padding: only requests of a bucket's own length run");
    return LATHE_OK;
}

/* Sums over tokens must leave padding out even where all tokens are masked, and a mask only lowers them all alike. An
 * attention does so by its keys; a softmax that is not fused into one is told. */
static void mark_token_sums(const struct pinning *p) {
    struct lathe_graph *g = p->g;
    LATHE_FOR_NODES(g, n) {
        struct lathe_attrs attrs = lathe_node_attrs(g, n);
        if (g->nodes[n].op != LATHE_OP_SOFTMAX)
            continue;
        const struct lathe_value *x = &g->values[g->nodes[n].in[0]];
        int64_t axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, x->rank - 1);
        if (axis >= 0 && axis < x->rank && axis_kind(p, x->dims[axis]) == LATHE_PORT_SEQ)
            lathe_node_set_int(g, n, LATHE_ATTR_TOKENS, 1);
    }
}

/* ---- pinning */

static void pin(struct pinning *p) {
    struct lathe_graph *g = p->g;
    for (uint32_t s = 0; s < lathe_dims_symbol_count(g->dims); s++) {
        int64_t size = p->role[s] == LATHE_PORT_BATCH ? p->same_batch : p->role[s] == LATHE_PORT_SEQ ? p->same_seq : 0;
        if (size == 0)
            continue;
        lathe_dims_substitute(g->dims, s, lathe_dim_const(g->dims, size));
        p->ctx->changes++;
    }
    lathe_graph_resolve_dims(g);
}

static enum lathe_status left(const struct pinning *p, const char *what, const char *name, lathe_dim d) {
    char text[160];
    lathe_dim_print(p->g->dims, d, text, sizeof text);
    return lathe_fail(p->ctx->diag, LATHE_MSG_STATIC_SHAPE, "%s of '%s' is still %s once batch and length are fixed",
                      what, name, text);
}

/* The plan may hold no symbol: not in a size, not in a shape value, not in an attribute. */
static enum lathe_status check_constant(const struct pinning *p) {
    const struct lathe_graph *g = p->g;
    int64_t size;
    for (uint32_t v = 0; v < g->value_count; v++) {
        const struct lathe_value *value = &g->values[v];
        char what[32];
        if (value->producer == LATHE_NONE && !value->is_input)
            continue;
        for (int axis = 0; axis < value->rank; axis++)
            if (!lathe_dim_is_const(g->dims, value->dims[axis], &size)) {
                snprintf(what, sizeof what, "axis %d", axis);
                return left(p, what, value->name, value->dims[axis]);
            }
        for (uint32_t i = 0; value->content && i < value->content_count; i++)
            if (!lathe_dim_is_const(g->dims, value->content[i], &size))
                return left(p, "an element", value->name, value->content[i]);
    }
    LATHE_FOR_NODES(g, n) {
        for (uint32_t i = 0; i < g->nodes[n].n_attrs; i++) {
            const struct lathe_attr *a = &g->nodes[n].attrs[i];
            for (uint32_t k = 0; a->type == LATHE_ATTR_DIMS && k < a->count; k++)
                if (!lathe_dim_is_const(g->dims, (lathe_dim)a->ints[k], &size))
                    return left(p, "an attribute", g->nodes[n].name, (lathe_dim)a->ints[k]);
        }
    }
    return LATHE_OK;
}

enum lathe_status lathe_pass_static_shape(struct lathe_pass_ctx *ctx) {
    struct lathe_graph *g = ctx->graph;
    const struct lathe_pass_options *o = ctx->options;
    bool has_batch, has_seq;
    if (!o->bucket_count)
        return LATHE_OK;
    struct pinning p = {.ctx = ctx,
                        .g = g,
                        .buckets = o->buckets,
                        .count = o->bucket_count,
                        .same_batch = o->buckets[0].batch,
                        .same_seq = o->buckets[0].seq};
    p.role = lathe_arena_alloc(ctx->scratch, (size_t)lathe_dims_symbol_count(g->dims) + 1);
    if (!p.role)
        return lathe_fail(ctx->diag, LATHE_MSG_NO_MEMORY, "static_shape: out of memory");
    LATHE_TRY(find_roles(&p, &has_batch, &has_seq));
    for (unsigned i = 1; i < p.count; i++) {
        p.same_batch = o->buckets[i].batch == p.same_batch ? p.same_batch : 0;
        p.same_seq = o->buckets[i].seq == p.same_seq ? p.same_seq : 0;
    }
    if (!g->interface) {
        /* without any input that has a length, all lengths are alike */
        LATHE_TRY(check_fixed(&p, 0, has_batch));
        LATHE_TRY(check_fixed(&p, 1, has_seq));
        LATHE_TRY(note_interface(&p, has_batch, has_seq));
        if (g->interface->hides_padding)
            mark_token_sums(&p);
    }
    pin(&p);
    if (p.same_batch && (p.same_seq || !has_seq))
        LATHE_TRY(check_constant(&p));
    char list[48 * 24] = "";
    for (unsigned i = 0, n = 0; i < p.count && n < sizeof list - 24; i++)
        n += (unsigned)snprintf(list + n, sizeof list - n, "%s%lldx%lld", i ? ", " : "", LOG(o->buckets[i].batch),
                                LOG(o->buckets[i].seq));
    lathe_pass_note(ctx, "static_shape", "%s", list);
    return LATHE_OK;
}
