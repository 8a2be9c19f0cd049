/* Functions are written out where they are called; of an If the branch that is taken. */
#include "onnx_import.h"

#include <string.h>

#define MAX_DEPTH 48

static const char *text_of(const char *s) {
    return s ? s : "";
}

const LatheOnnx__Function *lathe_onnx_function(const struct lathe_import *c, const char *domain, const char *name,
                                               const char *overload) {
    for (size_t i = 0; i < c->model->n_functions; i++) {
        const LatheOnnx__Function *f = c->model->functions[i];
        const char *d = text_of(f->domain);
        if (!strcmp(d, "ai.onnx"))
            d = "";
        if (!strcmp(text_of(f->name), name) && !strcmp(d, domain) && !strcmp(text_of(f->overload), overload))
            return f;
    }
    return NULL;
}

/* The attributes that the body may refer to: given by the caller, or the default of the function. */
static bool bind_attributes(struct lathe_import *c, const LatheOnnx__Function *f, struct lathe_scope_spec *spec) {
    struct lathe_binding *list =
        lathe_arena_alloc_array(c->scratch, f->n_attribute + f->n_attribute_proto + 1, sizeof *list);
    if (!list) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return false;
    }
    size_t count = 0;
    for (size_t i = 0; i < f->n_attribute; i++) {
        const LatheOnnx__Attribute *a = lathe_imp_attr(c, text_of(f->attribute[i]));
        if (a)
            list[count++] = (struct lathe_binding){f->attribute[i], a};
    }
    for (size_t i = 0; i < f->n_attribute_proto; i++) {
        const LatheOnnx__Attribute *given = lathe_imp_attr(c, text_of(f->attribute_proto[i]->name));
        list[count++] =
            (struct lathe_binding){text_of(f->attribute_proto[i]->name), given ? given : f->attribute_proto[i]};
    }
    spec->attributes = list;
    spec->attribute_count = count;
    return true;
}

void lathe_imp_call(struct lathe_import *c, const LatheOnnx__Function *f) {
    if (c->depth >= MAX_DEPTH) {
        lathe_imp_fail(c, LATHE_MSG_FUNCTION,
                       "function %s.%s calls itself, or functions are nested deeper than %d levels",
                       *text_of(f->domain) ? f->domain : "ai.onnx", text_of(f->name), MAX_DEPTH);
        return;
    }
    if (c->node->n_input > f->n_input || c->node->n_output > f->n_output) {
        lathe_imp_node_fail(c, LATHE_MSG_FUNCTION,
                            "it has %zu operands and %zu outputs, and the function has %zu and %zu", c->node->n_input,
                            c->node->n_output, f->n_input, f->n_output);
        return;
    }
    struct lathe_scope_spec spec = {
        .prefix = lathe_arena_format(c->scratch, "%s/", c->node_name),
        .opsets = f->opset_import,
        .opset_count = f->n_opset_import,
        .nodes = f->node,
        .node_count = f->n_node,
    };
    if (!spec.prefix) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return;
    }
    if (!bind_attributes(c, f, &spec))
        return;
    struct lathe_scope *body = lathe_scope_new(c, &spec);
    if (!body)
        return;
    for (size_t i = 0; i < f->n_input; i++)
        if (*text_of(f->input[i]))
            lathe_scope_define(c, body, f->input[i], i < c->n_in ? c->in[i] : LATHE_NONE);
    size_t wanted = 0;
    const char **names = lathe_arena_alloc_array(c->scratch, c->n_out + 1, sizeof *names);
    if (!names) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return;
    }
    for (uint32_t i = 0; i < c->n_out; i++)
        if (lathe_imp_wants(c, i))
            names[wanted++] = text_of(f->output[i]);
    c->depth++;
    lathe_scope_run(c, body, names, wanted);
    c->depth--;
    for (uint32_t i = 0; i < c->n_out; i++)
        if (lathe_imp_wants(c, i))
            lathe_imp_bind(c, i, lathe_scope_value(c, body, text_of(f->output[i])));
}

LATHE_IMPORTER(if_branch) {
    int64_t taken = 0;
    const LatheOnnx__Attribute *branches[2] = {lathe_imp_attr(c, "else_branch"), lathe_imp_attr(c, "then_branch")};
    if (!branches[0] || !branches[1] || !branches[0]->g || !branches[1]->g) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it needs the graphs then_branch and else_branch");
        return;
    }
    if (c->depth >= MAX_DEPTH) {
        lathe_imp_node_fail(c, LATHE_MSG_FUNCTION, "branches are nested deeper than %d levels", MAX_DEPTH);
        return;
    }
    if (!lathe_imp_scalar_known(c, c->in[0], &taken)) {
        lathe_imp_node_fail(c, LATHE_MSG_CONDITION,
                            "its condition '%s' depends on data; only conditions that follow from constants and shapes "
                            "are supported",
                            c->status == LATHE_OK ? lathe_value_at(c->g, c->in[0])->name : "");
        return;
    }
    const LatheOnnx__Graph *g = branches[taken != 0]->g;
    if (g->n_output < c->node->n_output) {
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "its branch has %zu outputs, and it has %zu", g->n_output,
                            c->node->n_output);
        return;
    }
    struct lathe_scope_spec spec = {
        .parent = c->scope,
        .prefix = lathe_arena_format(c->scratch, "%s/", c->node_name),
        .nodes = g->node,
        .node_count = g->n_node,
        .initializers = g->initializer,
        .initializer_count = g->n_initializer,
        .sparse = g->sparse_initializer,
        .sparse_count = g->n_sparse_initializer,
    };
    if (!spec.prefix) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return;
    }
    struct lathe_scope *body = lathe_scope_new(c, &spec);
    const char **names = lathe_arena_alloc_array(c->scratch, c->n_out + 1, sizeof *names);
    if (!body || !names)
        return;
    size_t wanted = 0;
    for (uint32_t i = 0; i < c->n_out; i++)
        if (lathe_imp_wants(c, i))
            names[wanted++] = text_of(g->output[i]->name);
    c->depth++;
    lathe_scope_run(c, body, names, wanted);
    c->depth--;
    for (uint32_t i = 0; i < c->n_out; i++)
        if (lathe_imp_wants(c, i))
            lathe_imp_bind(c, i, lathe_scope_value(c, body, text_of(g->output[i]->name)));
}
