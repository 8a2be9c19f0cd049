/* The order of the passes, with the reason for each step. */
#include "ops_enums.h"
#include "stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct step {
    const char *pass;
    bool for_execution; /* the reference execution needs it too */
};

static const struct step steps[] = {
    /* One float type inside, so that every matcher and kernel sees one form of a product or a norm. */
    {"widen_floats", true},
    /* Before scales are multiplied out: the source's quantization, where ours takes its place. */
    {"float_activations", true},
    /* Products are written in one way, before weights that they turn are folded. */
    {"lower_einsum", false},
    /* Exporters write half of a graph as constants and shape arithmetic. It goes first, so that every matcher sees data
     * flow alone. Folding makes operands uniform, which lets no-ops be seen; without them equal expressions are equal;
     * and what all that leaves unused would count as a second user in the matchers. */
    {"fold_constants", true},
    /* Weights in few bits stay stored so: one form for what widens them. */
    {"fuse_dequantize", false},
    {"drop_no_ops", false},
    {"merge_equal_nodes", false},
    {"drop_dead_nodes", true},
    /* The length that the position tables allow decides whether a slice of a table is all of it. */
    {"bound_positions", true},
    /* A static target pins its shape within those limits; what the sizes decide is folded with the rest. */
    {"static_shape", false},
    {"fold_constants", false},
    {"drop_no_ops", false},
    {"drop_dead_nodes", false},
    /* Norms and activations first: their patterns are closed, and the products around them are not part of them. */
    {"fuse_layernorm", false},
    {"fuse_activation", false},
    /* Convolutions of one position are linear layers of tokens behind a transpose; what it cancels with goes, ... */
    {"lower_conv", false},
    {"drop_no_ops", false},
    /* ... and other products with constants become linear, which tells them from the products inside attention. */
    {"fuse_linear", false},
    /* Biases move into them, where no view stands between: a linear with its bias is what fuse_qkv can join. */
    {"fuse_epilogue", false},
    /* Rotary embedding on rows of linear layers, so that attention finds no transpose behind it. */
    {"fuse_rotary", false},
    /* Attention next, from linear outputs to the linear that reads it; heads become column offsets, ... */
    {"fuse_attention", false},
    /* (what is still sliced is no projection that attention reads) */
    {"split_linear", false},
    /* ... so that biases behind a view are next to their product now, ... */
    {"fuse_epilogue", false},
    /* (what is projected anew in each run, although only its length varies, is a constant) */
    {"project_tables", false},
    /* ... and the three projections can become one product whose columns attention reads. */
    {"fuse_qkv", false},
    /* The norm behind the embedding look-ups takes their sum before it would look like a residual. */
    {"fuse_embedding", false},
    /* What it leaves, and all look-ups of the reference execution, need no table in f32. */
    {"look_up_stored", true},
    /* What is left of the residual sums goes into the norm behind them. */
    {"fuse_skip_layernorm", false},
    /* The fusions leave reshapes that cancel out, and equal masks that differed only in what was fused. */
    {"fold_constants", false},
    {"drop_no_ops", false},
    {"merge_equal_nodes", false},
    {"drop_dead_nodes", false},
    /* Packing needs to see every operator that mixes tokens in its final form. */
    {"pack_rows", false},
    /* Nothing is matched behind gathers any more: the copies around them go. */
    {"shorten_gathers", false},
    {"drop_no_ops", false},
    {"merge_equal_nodes", false},
    /* The readers of single tokens are one each now, so what only they need is seen. */
    {"trim_unused_rows", false},
    /* Where one row of the last attention is left, its keys and values can be left out too. */
    {"absorb_projections", false},
    /* A decoder tied to the embedding is one matrix with it from here on, in every precision. */
    {"share_weights", false},
    /* The layers are final: each is given its precision. (8 bits need a calibration first: below.) */
    {"choose_precision", false},
    {"round_attention", false},
    /* Tables that the source has in 8 bits are read so. */
    {"quantize_embedding", false},
    /* What stands between two steps is known now: the tensors that --cast all rounds. */
    {"cast_tensors", false},
    /* Layers that are still f32 stay so. */
    {"pair_products", false},
    {"drop_dead_nodes", true},
};

/* After the calibration, which needs the graph in its final f32 form. */
static const struct step quantize_steps[] = {
    {"quantize_linear", false},
    /* What is scaled before it is quantized can often be made so: that is known once the layers that stay are. */
    {"smooth_activations", false},
    {"quantize_attention", false},
    {"quantize_embedding", false},
    {"pair_products", false},
    {"drop_dead_nodes", false},
};

/* One bucket of several, in a copy of the final graph: what its sizes decide is folded, where that changes no bit. */
static const struct step bucket_steps[] = {
    {"static_shape", false},      {"fold_constants", false},  {"drop_no_ops", false},
    {"merge_equal_nodes", false}, {"drop_dead_nodes", false},
};

struct run {
    struct lathe_graph *g;
    const struct lathe_pipeline_options *options;
    struct lathe_report *report;
    struct lathe_diag *diag;
    struct lathe_pass_ctx ctx;
};

static bool is_disabled(const struct lathe_pipeline_options *o, const char *name) {
    for (unsigned i = 0; i < o->disabled_count; i++)
        if (!strcmp(o->disabled[i], name))
            return true;
    return false;
}

static unsigned count_nodes(const struct lathe_graph *g) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n)
    count++;
    return count;
}

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* A pass that left the graph broken is undone; with `check` it is a fault. */
static enum lathe_status check_or_undo(struct run *r, const char *name, const struct lathe_graph_snapshot *before) {
    struct lathe_diag *diag = malloc(sizeof *diag);
    if (!diag)
        return lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "pass %s", name);
    lathe_diag_reset(diag);
    enum lathe_status status = lathe_graph_check(r->g, diag);
    if (status != LATHE_OK && r->options->check) {
        status = lathe_fail(r->diag, diag->message, "after pass %s: %s", name, diag->text);
    } else if (status != LATHE_OK) {
        bool restored = lathe_graph_snapshot_restore(r->g, before);
        r->ctx.changes = 0;
        char text[1024];
        snprintf(text, sizeof text, "pass %s was undone: %.900s", name, diag->text);
        if (r->report)
            lathe_report_warning(r->report, "PASS_UNDONE", "", text);
        status = restored ? LATHE_OK : lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "undoing pass %s", name);
    }
    free(diag);
    return status;
}

static enum lathe_status run_pass(struct run *r, const struct lathe_pass *pass) {
    struct lathe_graph_snapshot *before = lathe_graph_snapshot_take(r->g);
    if (!before)
        return lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "pass %s", pass->name);
    unsigned nodes_before = count_nodes(r->g);
    double start = milliseconds();
    r->ctx.changes = 0;
    enum lathe_status status = pass->run(&r->ctx);
    /* A pass may have bounded or replaced symbols. */
    lathe_graph_resolve_dims(r->g);
    if (status == LATHE_OK && r->g->out_of_memory)
        status = lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "pass %s", pass->name);
    double spent = milliseconds() - start;
    if (status == LATHE_OK)
        status = check_or_undo(r, pass->name, before);
    if (status == LATHE_OK && r->report)
        lathe_report_pass(r->report, pass->name, nodes_before, count_nodes(r->g), r->ctx.changes, spent);
    lathe_graph_snapshot_free(&before);
    lathe_arena_reset(r->ctx.scratch);
    if (status == LATHE_OK && r->options->after_pass)
        r->options->after_pass(r->options->user, pass->name, r->g);
    return status;
}

/* ---- constants that hold the sizes of a trace */

static enum lathe_status check_baked(const struct lathe_graph *g, const struct lathe_pass_options *o,
                                     struct lathe_diag *diag) {
    for (uint32_t i = 0; i < g->baked_count; i++) {
        const struct lathe_baked_dim *b = &g->baked[i];
        bool pinned = o->bucket_count && b->input_axis >= 0 && b->input_axis <= 1;
        for (unsigned k = 0; pinned && k < o->bucket_count; k++) {
            int64_t pin = b->input_axis == 0 ? o->buckets[k].batch : o->buckets[k].seq;
            if (pin != b->value)
                return lathe_fail(diag, LATHE_MSG_SHAPE_BAKED, "%s (asked for %s=%lld)", b->text,
                                  lathe_dims_symbol_name(g->dims, b->symbol), (long long)pin);
        }
        if (!pinned && b->refuse)
            return lathe_fail(diag, LATHE_MSG_SHAPE_BAKED, "%s", b->text);
    }
    return LATHE_OK;
}

static void report_notes(const struct lathe_graph *g, struct lathe_report *report) {
    struct lathe_text unified = {0};
    for (uint32_t i = 0; i < g->note_count; i++) {
        const struct lathe_graph_note *note = &g->notes[i];
        if (note->code)
            lathe_report_warning(report, note->code, note->node, note->text);
        else
            lathe_text_append(&unified, "%s%s", unified.length ? "; " : "", note->text);
    }
    if (unified.length)
        lathe_report_note(report, "unified_axes", unified.data);
    lathe_text_free(&unified);
}

/* An imported DynamicQuantizeLinear keeps its meaning: one range for the whole tensor, other rows and padding included.
 */
static void report_batch_dependence(const struct lathe_graph *g, struct lathe_report *report) {
    unsigned count = 0;
    lathe_node_id first = LATHE_NONE;
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op != LATHE_OP_DYNAMIC_QUANTIZE_LINEAR || lathe_value_is_constant(g, g->nodes[n].in[0]))
            continue;
        first = count++ ? first : n;
    }
    if (!count)
        return;
    char text[256];
    snprintf(text, sizeof text,
             "%u DynamicQuantizeLinear kept as written: one range for all rows of a batch and their padding, so that a "
             "row's result depends on the rows beside it",
             count);
    lathe_report_warning(report, "BATCH_DEPENDENT", g->nodes[first].name, text);
}

/* A range that was calibrated on masks of -3e38 or minus infinity leaves one number of all scores. */
static void report_coarse_scales(const struct lathe_graph *g, struct lathe_report *report) {
    const double coarse = 1e30;
    unsigned count = 0;
    lathe_node_id first = LATHE_NONE;
    double scale = 0, largest = 0;
    LATHE_FOR_NODES(g, n) {
        if (g->nodes[n].op != LATHE_OP_QUANTIZE_LINEAR || !lathe_value_is_constant(g, g->nodes[n].in[1]) ||
            !lathe_constant_uniform(g, g->nodes[n].in[1], &scale) || fabs(scale) < coarse)
            continue;
        first = count++ ? first : n;
        largest = fabs(scale) > largest ? fabs(scale) : largest;
    }
    if (!count)
        return;
    char text[320];
    snprintf(
        text, sizeof text,
        "%u QuantizeLinear of the source have steps of up to %.3g: their ranges were calibrated on a mask, and what "
        "they quantize becomes one number beside it; leave the sum of scores and mask out of the quantization",
        count, largest);
    lathe_report_warning(report, "COARSE_SCALE", g->nodes[first].name, text);
}

/* ---- what was fused */

static int64_t attr_int(const struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key) {
    struct lathe_attrs attrs = lathe_node_attrs(g, n);
    return lathe_attr_int(&attrs, key, 0);
}

struct fusion {
    const char *name;
    unsigned count;
};
enum {
    ABSORBED,
    ATTENTION,
    EMBEDDING,
    GATE,
    GELU,
    GELU_TANH,
    LAYERNORM,
    LINEAR,
    QKV,
    QUICK_GELU,
    RMSNORM,
    ROTARY,
    SILU,
    SKIP_LAYERNORM,
    FUSIONS
};

/* One product for the three projections: joined by fuse_qkv, or written so in the source. */
static bool serves_qkv(const struct lathe_graph *g, lathe_node_id n) {
    lathe_value_id y = g->nodes[n].out[0];
    if (lathe_producer_of(g, g->nodes[n].in[1], LATHE_OP_CONCAT) != LATHE_NONE)
        return true;
    for (uint32_t i = 0; i < g->values[y].use_count; i++) {
        const struct lathe_node *user = &g->nodes[g->values[y].uses[i]];
        if ((user->op == LATHE_OP_ATTENTION || user->op == LATHE_OP_ATTENTION_ROWS) && user->in[0] == y &&
            user->in[1] == y && user->in[2] == y)
            return true;
    }
    return false;
}

/* Takes one query a sequence to the rows that are its keys (absorb_projections): a group a head, which share keys. */
static bool absorbs_keys(const struct lathe_graph *g, lathe_node_id n) {
    lathe_node_id user = lathe_value_only_use(g, g->nodes[n].out[0]);
    return attr_int(g, n, LATHE_ATTR_GROUP) > 0 && user != LATHE_NONE && g->nodes[user].op == LATHE_OP_ATTENTION_ROWS &&
           g->nodes[user].in[0] == g->nodes[n].out[0] && attr_int(g, user, LATHE_ATTR_KV_HEADS) == 1 &&
           attr_int(g, user, LATHE_ATTR_HEADS) == attr_int(g, n, LATHE_ATTR_GROUP);
}

/* The kinds that a node counts under, as bits. */
static unsigned kinds_of(const struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    switch (node->op) {
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
    case LATHE_OP_SDPA:
        return 1u << ATTENTION;
    case LATHE_OP_LAYER_NORM:
        return 1u << LAYERNORM;
    case LATHE_OP_SKIP_LAYER_NORM:
        return 1u << LAYERNORM | 1u << SKIP_LAYERNORM;
    case LATHE_OP_EMBEDDING:
    case LATHE_OP_EMBEDDING_Q8:
        return node->in[0] != LATHE_NONE ? 1u << EMBEDDING | 1u << LAYERNORM : 1u << EMBEDDING;
    case LATHE_OP_RMS_NORM:
        return 1u << RMSNORM;
    case LATHE_OP_GELU:
        return 1u << GELU;
    case LATHE_OP_GELU_TANH:
        return 1u << GELU_TANH;
    case LATHE_OP_QUICK_GELU:
        return 1u << QUICK_GELU;
    case LATHE_OP_ROTARY:
        return 1u << ROTARY;
    case LATHE_OP_SILU:
        return 1u << SILU;
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_LINEAR_Q8: {
        unsigned kinds = 1u << LINEAR | (attr_int(g, n, LATHE_ATTR_GATE) ? 1u << GATE : 0);
        if (absorbs_keys(g, n)) /* it stands for the projections that are left out, too */
            return kinds | 1u << ABSORBED | 1u << QKV;
        switch (attr_int(g, n, LATHE_ATTR_ACTIVATION)) {
        case LATHE_ACT_GELU:
            kinds |= 1u << GELU;
            break;
        case LATHE_ACT_GELU_TANH:
            kinds |= 1u << GELU_TANH;
            break;
        case LATHE_ACT_QUICK_GELU:
            kinds |= 1u << QUICK_GELU;
            break;
        case LATHE_ACT_SILU:
            kinds |= 1u << SILU;
            break;
        default:
            break;
        }
        return serves_qkv(g, n) ? kinds | 1u << QKV : kinds;
    }
    default:
        return 0;
    }
}

/* A near miss at a node that a fusion took after all is none. `was` marks the nodes that were there at the start. */
static void forget_fused_misses(const struct lathe_graph *g, const struct fusion *fusions, const bool *was,
                                uint32_t was_count, struct lathe_report *report) {
    for (lathe_node_id n = 0; n < was_count; n++)
        for (int kind = 0; was[n] && g->nodes[n].op == LATHE_OP_NONE && kind < FUSIONS; kind++)
            lathe_report_drop_missed(report, fusions[kind].name, g->nodes[n].name);
    LATHE_FOR_NODES(g, n) {
        unsigned kinds = kinds_of(g, n);
        for (int kind = 0; kind < FUSIONS; kind++)
            if (kinds & 1u << kind)
                lathe_report_drop_missed(report, fusions[kind].name, g->nodes[n].name);
    }
}

static void report_fusions(const struct lathe_graph *g, const bool *was, uint32_t was_count,
                           struct lathe_report *report) {
    struct fusion fusions[FUSIONS] = {
        [ABSORBED] = {"absorbed", 0},
        [ATTENTION] = {"attention", 0},
        [EMBEDDING] = {"embedding", 0},
        [GATE] = {"gate", 0},
        [GELU] = {"gelu", 0},
        [GELU_TANH] = {"gelu_tanh", 0},
        [LAYERNORM] = {"layernorm", 0},
        [LINEAR] = {"linear", 0},
        [QKV] = {"qkv", 0},
        [QUICK_GELU] = {"quick_gelu", 0},
        [RMSNORM] = {"rmsnorm", 0},
        [ROTARY] = {"rotary", 0},
        [SILU] = {"silu", 0},
        [SKIP_LAYERNORM] = {"skip_layernorm", 0},
    };
    LATHE_FOR_NODES(g, n) {
        unsigned kinds = kinds_of(g, n);
        for (int kind = 0; kind < FUSIONS; kind++)
            fusions[kind].count += kinds >> kind & 1;
    }
    for (int kind = 0; kind < FUSIONS; kind++)
        lathe_report_fusion(report, fusions[kind].name, fusions[kind].count);
    forget_fused_misses(g, fusions, was, was_count, report);
}

static enum lathe_status run_steps(struct run *r, const struct step *list, size_t count) {
    const struct lathe_pipeline_options *options = r->options;
    r->ctx = (struct lathe_pass_ctx){.graph = r->g,
                                     .target = r->ctx.target,
                                     .options = &options->pass,
                                     .report = r->report,
                                     .scratch = lathe_arena_new(),
                                     .diag = r->diag};
    if (!r->ctx.scratch)
        return lathe_fail(r->diag, LATHE_MSG_NO_MEMORY, "the passes");
    enum lathe_status status = lathe_graph_check(r->g, r->diag);
    for (size_t i = 0; i < count && status == LATHE_OK; i++) {
        const struct lathe_pass *pass = lathe_pass_by_name(list[i].pass);
        if (!pass || is_disabled(options, pass->name) || (options->reference && !list[i].for_execution))
            continue;
        status = run_pass(r, pass);
    }
    lathe_arena_free(&r->ctx.scratch);
    return status;
}

enum lathe_status lathe_pipeline_run(struct lathe_graph *g, const struct lathe_target *target,
                                     const struct lathe_pipeline_options *options, struct lathe_report *report,
                                     struct lathe_diag *diag) {
    if (!options->reference) /* that runs what the graph says, in the one shape that it fits */
        LATHE_TRY(check_baked(g, &options->pass, diag));
    if (report) {
        report_notes(g, report);
    }
    uint32_t was_count = g->node_count;
    bool *was = calloc((size_t)was_count + 1, sizeof *was);
    struct run r = {g, options, report, diag, {.target = target}};
    if (!was)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "the passes");
    LATHE_FOR_NODES(g, n)
    was[n] = true;
    enum lathe_status status = run_steps(&r, steps, sizeof steps / sizeof *steps);
    if (status == LATHE_OK && report) {
        report_batch_dependence(g, report);
        report_coarse_scales(g, report);
        report_fusions(g, was, was_count, report);
    }
    free(was);
    return status;
}

enum lathe_status lathe_pipeline_quantize(struct lathe_graph *g, const struct lathe_target *target,
                                          const struct lathe_pipeline_options *options, struct lathe_report *report,
                                          struct lathe_diag *diag) {
    struct run r = {g, options, report, diag, {.target = target}};
    return run_steps(&r, quantize_steps, sizeof quantize_steps / sizeof *quantize_steps);
}

enum lathe_status lathe_pipeline_bucket(struct lathe_graph *g, const struct lathe_target *target,
                                        const struct lathe_pipeline_options *options, struct lathe_diag *diag) {
    struct run r = {g, options, NULL, diag, {.target = target}};
    return run_steps(&r, bucket_steps, sizeof bucket_steps / sizeof *bucket_steps);
}
