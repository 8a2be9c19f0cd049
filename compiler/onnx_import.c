/* A model file becomes a graph in internal form: reading, versions, inputs and outputs. The nodes are in onnx_scope.c,
 * the operators in onnx_ops_*.c. */
#include "onnx_import.h"

#include "onnx_wire.h"
#include "stages.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

static const char *text_of(const char *s) {
    return s ? s : "";
}

/* Domains whose versions are known; other domains are only refused when a node uses them. */
static const struct {
    const char *domain;
    int first, last;
} known_domains[] = {{"", LATHE_ONNX_MIN_OPSET, LATHE_ONNX_MAX_OPSET}, {"com.microsoft", 1, 1}};

static void check_versions(struct lathe_import *c, LatheOnnx__OperatorSetId *const *opsets, size_t count,
                           const char *where) {
    for (size_t i = 0; i < count; i++) {
        const char *domain = text_of(opsets[i]->domain);
        if (!strcmp(domain, "ai.onnx"))
            domain = "";
        for (size_t k = 0; k < sizeof known_domains / sizeof *known_domains; k++) {
            if (strcmp(domain, known_domains[k].domain))
                continue;
            int64_t found = opsets[i]->version;
            if (found < known_domains[k].first || found > known_domains[k].last)
                lathe_imp_fail(c, LATHE_MSG_OPSET, "%s imports opset %lld of domain %s; supported are %d to %d", where,
                               (long long)found, *domain ? domain : "ai.onnx", known_domains[k].first,
                               known_domains[k].last);
        }
    }
}

static void check_model(struct lathe_import *c) {
    const LatheOnnx__Model *m = c->model;
    const char *name = lathe_model_file_name(c->file);
    if (!m->graph) {
        lathe_imp_fail(c, LATHE_MSG_NOT_ONNX, "%s is not an ONNX model: it holds no graph", name);
        return;
    }
    if (!m->has_ir_version)
        lathe_imp_fail(c, LATHE_MSG_NOT_ONNX, "%s is not an ONNX model: it has no IR version", name);
    if (m->ir_version < LATHE_ONNX_MIN_IR || m->ir_version > LATHE_ONNX_MAX_IR)
        lathe_imp_fail(c, LATHE_MSG_OPSET, "the model has IR version %lld; supported are %d to %d",
                       (long long)m->ir_version, LATHE_ONNX_MIN_IR, LATHE_ONNX_MAX_IR);
    if (!m->n_opset_import)
        lathe_imp_fail(c, LATHE_MSG_NO_OPSET,
                       "the model imports no opset; ai.onnx %d to %d is supported, and a model must say which it uses",
                       LATHE_ONNX_MIN_OPSET, LATHE_ONNX_MAX_OPSET);
    check_versions(c, m->opset_import, m->n_opset_import, "the model");
    for (size_t i = 0; i < m->n_functions; i++)
        check_versions(c, m->functions[i]->opset_import, m->functions[i]->n_opset_import,
                       text_of(m->functions[i]->name));
    if (!m->graph->n_output)
        lathe_imp_fail(c, LATHE_MSG_MODEL_STRUCTURE, "the graph has no outputs");
}

/* ---- inputs */

/* A name that the text form can hold: letters, digits and "_./"; what was another name stays another symbol. */
static lathe_dim named_symbol(struct lathe_import *c, const char *name) {
    struct lathe_dims *t = c->g->dims;
    char clean[96];
    size_t n = 0;
    if (name[0] >= '0' && name[0] <= '9')
        clean[n++] = '_';
    for (const char *p = name; *p && n < 80; p++) {
        bool plain =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '.';
        clean[n++] = plain ? *p : '_';
    }
    clean[n] = 0;
    if (strcmp(clean, name)) {
        /* A changed name gets digits made from all of it, so that "a+b" and "a-b" stay apart. */
        uint32_t h = 2166136261u;
        for (const char *p = name; *p; p++)
            h = (h ^ (uint8_t)*p) * 16777619u;
        char digits[] = "_00000000";
        for (int i = 8; i; i--, h >>= 4)
            digits[i] = "0123456789abcdef"[h & 15];
        memcpy(clean + n, digits, sizeof digits);
    }
    return lathe_dim_symbol(t, clean, 1, INT64_MAX);
}

static void reject_kind(struct lathe_import *c, const char *role, const char *name, const LatheOnnx__Type *type) {
    const char *kind = type->has_sequence_type        ? "a sequence"
                       : type->has_map_type           ? "a map"
                       : type->has_sparse_tensor_type ? "a sparse tensor"
                       : type->has_optional_type      ? "an optional value"
                       : type->has_opaque_type        ? "an opaque value"
                                                      : NULL;
    if (kind)
        lathe_imp_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "%s '%s' is %s; only dense tensors are supported", role, name,
                       kind);
}

static void add_input(struct lathe_import *c, struct lathe_scope *s, const LatheOnnx__ValueInfo *info) {
    const char *name = text_of(info->name);
    if (!*name) {
        lathe_imp_fail(c, LATHE_MSG_MODEL_STRUCTURE, "an input of the graph has no name");
        return;
    }
    if (lathe_scope_has_initializer(s, name))
        return; /* a weight with a default value: a constant */
    const LatheOnnx__Type *type = info->type;
    if (type)
        reject_kind(c, "input", name, type);
    if (c->status != LATHE_OK)
        return;
    if (!type || !type->tensor_type || !type->tensor_type->elem_type) {
        lathe_imp_fail(c, LATHE_MSG_MODEL_STRUCTURE, "input '%s' has no type", name);
        return;
    }
    enum lathe_dtype dtype = lathe_imp_element_type(c, type->tensor_type->elem_type, "input", name);
    const LatheOnnx__TensorShape *shape = type->tensor_type->shape;
    if (!shape) {
        lathe_imp_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "input '%s' declares no shape; its rank must be known", name);
        return;
    }
    if (shape->n_dim > LATHE_MAX_RANK) {
        lathe_imp_fail(c, LATHE_MSG_TYPE_UNSUPPORTED, "input '%s' has rank %zu; at most %d is supported", name,
                       shape->n_dim, LATHE_MAX_RANK);
        return;
    }
    lathe_dim dims[LATHE_MAX_RANK];
    for (size_t i = 0; i < shape->n_dim; i++) {
        const LatheOnnx__Dimension *d = shape->dim[i];
        if (d->has_dim_value && d->dim_value >= 0) {
            dims[i] = lathe_imp_number(c, d->dim_value);
        } else if (*text_of(d->dim_param)) {
            dims[i] = named_symbol(c, d->dim_param);
        } else {
            char *own = lathe_arena_format(c->scratch, "%s.%zu", name, i);
            dims[i] = own ? named_symbol(c, own) : LATHE_DIM_NONE;
        }
        if (dims[i] == LATHE_DIM_NONE) {
            lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for input '%s'", name);
            return;
        }
    }
    if (c->status != LATHE_OK)
        return;
    lathe_value_id v = lathe_graph_add_value(c->g, name, dtype, (int)shape->n_dim, dims);
    if (v == LATHE_NONE) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for input '%s'", name);
        return;
    }
    lathe_graph_add_input(c->g, v);
    lathe_scope_define(c, s, name, v);
}

static int by_pointer_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char **output_names(struct lathe_import *c) {
    const LatheOnnx__Graph *g = c->model->graph;
    const char **names = lathe_arena_alloc_array(c->scratch, g->n_output, sizeof *names);
    const char **sorted = lathe_arena_alloc_array(c->scratch, g->n_output, sizeof *sorted);
    if (!names || !sorted) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return NULL;
    }
    for (size_t i = 0; i < g->n_output; i++) {
        names[i] = sorted[i] = text_of(g->output[i]->name);
        if (!*names[i])
            lathe_imp_fail(c, LATHE_MSG_MODEL_STRUCTURE, "output %zu of the graph has no name", i);
        if (g->output[i]->type)
            reject_kind(c, "output", names[i], g->output[i]->type);
        if (g->output[i]->type && g->output[i]->type->tensor_type && g->output[i]->type->tensor_type->elem_type)
            lathe_imp_element_type(c, g->output[i]->type->tensor_type->elem_type, "output", names[i]);
    }
    qsort(sorted, g->n_output, sizeof *sorted, by_pointer_text);
    for (size_t i = 1; i < g->n_output; i++)
        if (!strcmp(sorted[i - 1], sorted[i]))
            lathe_imp_fail(c, LATHE_MSG_DUPLICATE_NAME, "output '%s' of the graph is listed twice", sorted[i]);
    return names;
}

static void import_graph(struct lathe_import *c) {
    const LatheOnnx__Graph *g = c->model->graph;
    struct lathe_scope_spec spec = {
        .prefix = "",
        .opsets = c->model->opset_import,
        .opset_count = c->model->n_opset_import,
        .nodes = g->node,
        .node_count = g->n_node,
        .initializers = g->initializer,
        .initializer_count = g->n_initializer,
        .sparse = g->sparse_initializer,
        .sparse_count = g->n_sparse_initializer,
    };
    const char **outputs = output_names(c);
    struct lathe_scope *scope = lathe_scope_new(c, &spec);
    if (!scope)
        return;
    c->scope = scope;
    for (size_t i = 0; i < g->n_input && c->status == LATHE_OK; i++)
        add_input(c, scope, g->input[i]);
    lathe_scope_run(c, scope, outputs, g->n_output);
    for (size_t i = 0; i < g->n_output && c->status == LATHE_OK; i++) {
        lathe_value_id v = lathe_scope_value(c, scope, outputs[i]);
        if (v == LATHE_NONE)
            lathe_imp_fail(c, LATHE_MSG_BUG, "output '%s' was not made", outputs[i]);
        else
            lathe_graph_add_output(c->g, v, outputs[i]);
    }
    if (c->g->out_of_memory)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
}

/* ---- the record */
static int by_domain(const void *a, const void *b) {
    const LatheOnnx__OperatorSetId *x = *(LatheOnnx__OperatorSetId *const *)a;
    const LatheOnnx__OperatorSetId *y = *(LatheOnnx__OperatorSetId *const *)b;
    int order = strcmp(text_of(x->domain), text_of(y->domain));
    return order ? order : (x->version > y->version) - (x->version < y->version);
}

static void record_source(struct lathe_import *c) {
    const LatheOnnx__Model *m = c->model;
    char hex[65];
    c->status = lathe_model_file_sha256(c->file, hex, c->diag);
    if (c->status != LATHE_OK || !c->report)
        return;
    struct lathe_text opsets = {0}, producer = {0};
    qsort(m->opset_import, m->n_opset_import, sizeof *m->opset_import, by_domain);
    for (size_t i = 0; i < m->n_opset_import; i++)
        lathe_text_append(&opsets, "%s%s %lld", i ? ", " : "",
                          *text_of(m->opset_import[i]->domain) ? m->opset_import[i]->domain : "ai.onnx",
                          (long long)m->opset_import[i]->version);
    lathe_text_append(&producer, "%s%s%s", text_of(m->producer_name), *text_of(m->producer_version) ? " " : "",
                      text_of(m->producer_version));
    lathe_report_source(c->report, lathe_model_file_name(c->file), hex, producer.data ? producer.data : "",
                        opsets.data ? opsets.data : "", (uint32_t)m->ir_version, lathe_model_file_bytes(c->file));
    lathe_text_free(&opsets);
    lathe_text_free(&producer);
}

static LatheOnnx__Model *read_model(struct lathe_import *c) {
    uint64_t size;
    const uint8_t *data = lathe_model_file_data(c->file, &size);
    uint8_t *skeleton = NULL;
    size_t skeleton_size = 0;
    c->status = lathe_onnx_skeleton(data, size, lathe_model_file_name(c->file), &skeleton, &skeleton_size, c->diag);
    if (c->status != LATHE_OK)
        return NULL;
    LatheOnnx__Model *model = lathe_onnx__model__unpack(NULL, skeleton_size, skeleton);
    free(skeleton);
    if (!model)
        lathe_imp_fail(c, LATHE_MSG_NOT_ONNX, "%s is not an ONNX model, or there is no memory to read it",
                       lathe_model_file_name(c->file));
    return model;
}

enum lathe_status lathe_import_onnx(const char *path, const struct lathe_import_options *options,
                                    struct lathe_model_file **file, struct lathe_graph **graph,
                                    struct lathe_diag *diag) {
    *file = NULL;
    *graph = NULL;
    struct lathe_import c = {.diag = diag, .report = options ? options->report : NULL};
    LatheOnnx__Model *model = NULL;
    c.status = lathe_model_file_open(path, options ? options->external_dir : NULL, &c.file, diag);
    if (c.status != LATHE_OK)
        return c.status;
    model = read_model(&c);
    if (!model)
        goto fail;
    c.model = model;
    check_model(&c);
    if (c.status != LATHE_OK)
        goto fail;
    lathe_model_file_hash_start(c.file);
    c.g = lathe_graph_new();
    c.scratch = lathe_arena_new();
    if (!c.g || !c.scratch) {
        lathe_imp_fail(&c, LATHE_MSG_NO_MEMORY, "no memory to import %s", path);
        goto fail;
    }
    import_graph(&c);
    if (c.status == LATHE_OK)
        record_source(&c);
    if (c.status != LATHE_OK)
        goto fail;
    lathe_onnx__model__free_unpacked(model, NULL);
    lathe_arena_free(&c.scratch);
    *file = c.file;
    *graph = c.g;
    return LATHE_OK;
fail:
    if (model)
        lathe_onnx__model__free_unpacked(model, NULL);
    lathe_arena_free(&c.scratch);
    lathe_graph_free(&c.g);
    lathe_model_file_close(&c.file);
    return c.status;
}
