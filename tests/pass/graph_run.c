/* See graph_run.h. */
#include "graph_run.h"

#include "kernel.h"
#include "pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool give_memory(struct lathe_tensor *t) {
    size_t bytes = (size_t)lathe_tensor_count(t) * lathe_dtype_bytes(t->dtype);
    if (posix_memalign(&t->data, 64, (bytes + 127) / 64 * 64))
        return false;
    memset(t->data, 0xa5, (bytes + 127) / 64 * 64);
    return true;
}

enum lathe_status graph_run_begin(struct graph_run *run, struct lathe_graph *g, const int64_t *symbols,
                                  struct lathe_diag *diag) {
    run->graph = g;
    uint32_t count = lathe_dims_symbol_count(g->dims);
    run->tensors = calloc(g->value_count ? g->value_count : 1, sizeof *run->tensors);
    if (count > 32 || !run->tensors)
        return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: too many symbols");
    memcpy(run->symbols, symbols, count * sizeof *symbols);
    for (uint32_t v = 0; v < g->value_count; v++) {
        const struct lathe_value *value = lathe_value_at(g, v);
        struct lathe_tensor *t = &run->tensors[v];
        t->dtype = value->dtype;
        t->rank = value->rank < 0 ? 0 : (unsigned)value->rank;
        for (unsigned i = 0; i < t->rank; i++)
            if (!lathe_dim_eval(g->dims, value->dims[i], symbols, &t->dims[i]))
                return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s has an unknown dim", value->name);
        if (!value->data && !value->is_input)
            continue;
        if (!give_memory(t))
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "graph_run: out of memory");
        if (value->data)
            memcpy(t->data, value->data, (size_t)lathe_tensor_count(t) * lathe_dtype_bytes(t->dtype));
    }
    return LATHE_OK;
}

static enum lathe_status run_node(struct graph_run *run, lathe_node_id n, const struct lathe_kernels *kernels,
                                  struct lathe_diag *diag) {
    struct lathe_graph *g = run->graph;
    const struct lathe_node *node = lathe_node_at(g, n);
    const struct lathe_op_info *info = lathe_op_info(node->op);
    const struct lathe_tensor *in[16] = {0};
    struct lathe_tensor *out[4] = {0};
    struct lathe_attr attrs[32];
    int64_t lists[32][16];
    if (node->n_in > 16 || node->n_out > 4 || node->n_attrs > 32)
        return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s is too large", node->name);
    for (uint32_t i = 0; i < node->n_in; i++)
        in[i] = node->in[i] == LATHE_NONE ? NULL : &run->tensors[node->in[i]];
    for (uint32_t i = 0; i < node->n_out; i++) {
        if (node->out[i] == LATHE_NONE)
            continue;
        out[i] = &run->tensors[node->out[i]];
        if (!give_memory(out[i]))
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "graph_run: out of memory");
    }
    for (uint32_t i = 0; i < node->n_attrs; i++) {
        attrs[i] = node->attrs[i];
        if (attrs[i].type != LATHE_ATTR_DIMS)
            continue;
        for (uint32_t k = 0; k < attrs[i].count && k < 16; k++)
            if (!lathe_dim_eval(g->dims, (lathe_dim)attrs[i].ints[k], run->symbols, &lists[i][k]))
                return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s has an unknown dim", node->name);
        attrs[i].type = LATHE_ATTR_INTS;
        attrs[i].ints = lists[i];
    }
    if (node->n_out == 1 && out[0] && lathe_value_at(g, node->out[0])->content) {
        /* shape arithmetic: known without running */
        const struct lathe_value *value = lathe_value_at(g, node->out[0]);
        for (uint32_t i = 0; i < value->content_count; i++) {
            int64_t number;
            if (!lathe_dim_eval(g->dims, value->content[i], run->symbols, &number))
                return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s has unknown content", value->name);
            if (value->dtype == LATHE_I64)
                ((int64_t *)out[0]->data)[i] = number;
            else if (value->dtype == LATHE_I32)
                ((int32_t *)out[0]->data)[i] = (int32_t)number;
            else if (value->dtype == LATHE_F32)
                ((float *)out[0]->data)[i] = (float)number;
            else if (value->dtype == LATHE_BOOL)
                ((uint8_t *)out[0]->data)[i] = number != 0;
            else
                return lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s has content of another type", value->name);
        }
        return LATHE_OK;
    }
    if (info->flags & LATHE_OPF_VIEW) {
        memcpy(out[0]->data, in[0]->data, (size_t)lathe_tensor_count(in[0]) * lathe_dtype_bytes(in[0]->dtype));
        return LATHE_OK;
    }
    struct lathe_op_call call = {.attrs = {attrs, node->n_attrs},
                                 .in = in,
                                 .out = out,
                                 .n_in = node->n_in,
                                 .n_out = node->n_out,
                                 .team = {0, 1, NULL},
                                 .kernels = kernels,
                                 .diag = diag};
    size_t scratch = info->scratch ? info->scratch(&call) : 0;
    if (posix_memalign(&call.scratch, 64, (scratch + 127) / 64 * 64))
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "graph_run: out of memory");
    enum lathe_status status =
        info->run ? info->run(&call) : lathe_fail(diag, LATHE_MSG_BUG, "graph_run: %s has no code", info->name);
    free(call.scratch);
    return status;
}

enum lathe_status graph_run_nodes(struct graph_run *run, struct lathe_diag *diag) {
    struct lathe_kernels kernels;
    lathe_kernels_select(0, &kernels);
    LATHE_FOR_NODES(run->graph, n)
    LATHE_TRY(run_node(run, n, &kernels, diag));
    return LATHE_OK;
}

void graph_run_end(struct graph_run *run) {
    for (uint32_t v = 0; run->tensors && v < run->graph->value_count; v++)
        free(run->tensors[v].data);
    free(run->tensors);
    run->tensors = NULL;
}

float *graph_run_output(struct lathe_graph *g, const int64_t *symbols, const char *name, int64_t *count) {
    struct graph_run run;
    static struct lathe_diag diag;
    unsigned seed = 7;
    lathe_diag_reset(&diag);
    if (graph_run_begin(&run, g, symbols, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    for (uint32_t i = 0; i < g->input_count; i++) {
        struct lathe_tensor *t = &run.tensors[g->inputs[i]];
        for (int64_t k = 0; k < lathe_tensor_count(t); k++) {
            seed = seed * 1664525u + 1013904223u;
            if (t->dtype == LATHE_F32)
                ((float *)t->data)[k] = (float)(int)seed * 0x1p-30f;
            else
                ((int64_t *)t->data)[k] = k % 37 < 30;
        }
    }
    if (graph_run_nodes(&run, &diag) != LATHE_OK)
        fail_msg("%s: %s", name, diag.text);
    const struct lathe_tensor *y = &run.tensors[g->outputs[g->output_count - 1]];
    assert_int_equal(y->dtype, LATHE_F32);
    *count = lathe_tensor_count(y);
    float *copy = malloc(((size_t)*count + 1) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, y->data, (size_t)*count * sizeof *copy);
    graph_run_end(&run);
    return copy;
}

struct lathe_graph *graph_run_parse(const char *text, const char *name) {
    static struct lathe_diag diag;
    struct lathe_graph *g = NULL;
    lathe_diag_reset(&diag);
    if (lathe_graph_parse(text, &g, &diag) != LATHE_OK)
        fail_msg("%s: %s\n%s", name, diag.text, text);
    return g;
}

void graph_run_pass(struct lathe_graph *g, const char *pass, const char *name) {
    static struct lathe_diag diag;
    struct lathe_pass_options options = {0};
    struct lathe_pass_ctx ctx = {.graph = g, .options = &options, .scratch = lathe_arena_new(), .diag = &diag};
    lathe_diag_reset(&diag);
    if (lathe_pass_by_name(pass)->run(&ctx) != LATHE_OK || lathe_graph_check(g, &diag) != LATHE_OK)
        fail_msg("%s: %s: %s", name, pass, diag.text);
    lathe_arena_free(&ctx.scratch);
}

unsigned graph_run_count(const struct lathe_graph *g, enum lathe_op op) {
    unsigned count = 0;
    LATHE_FOR_NODES(g, n)
    count += g->nodes[n].op == op;
    return count;
}

void graph_run_same(struct lathe_graph *before, struct lathe_graph *after, const int64_t *symbols, const char *name,
                    float bound) {
    int64_t count, same;
    float *want = graph_run_output(before, symbols, name, &count);
    float *got = graph_run_output(after, symbols, name, &same);
    assert_int_equal(count, same);
    for (int64_t k = 0; k < count; k++)
        if (!(want[k] == got[k] || fabsf(want[k] - got[k]) < bound))
            fail_msg("%s: %g instead of %g", name, (double)got[k], (double)want[k]);
    free(want);
    free(got);
}
