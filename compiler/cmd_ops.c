/* lathe ops: the operators of the import with their versions, and those of the graph. Made from the tables. */
#include "cli.h"
#include "onnx_import.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned number, flags;
} graph_ops[] = {
#define OP(number, name, text, min_in, max_in, n_out, flags) {text, number, flags},
#include "ir_ops.def"
#undef OP
};
#define GRAPH_OPS (sizeof graph_ops / sizeof *graph_ops)

static const char *domain_of(const struct lathe_onnx_op *op) {
    return op->domain[0] ? op->domain : "ai.onnx";
}

/* "7-12" or "18+" (to the newest that is supported). */
static void versions(const struct lathe_onnx_op *op, char *buffer, size_t size) {
    if (op->last >= LATHE_ONNX_MAX_OPSET || op->domain[0])
        snprintf(buffer, size, "%d+", op->first);
    else if (op->first == op->last)
        snprintf(buffer, size, "%d", op->first);
    else
        snprintf(buffer, size, "%d-%d", op->first, op->last);
}

static enum lathe_status print_text(struct lathe_diag *diag) {
    struct lathe_text out = {0};
    lathe_text_append(
        &out,
        "ONNX operators (ai.onnx opset %d to %d): domain, name, versions of the domain, types of the first "
        "operand:\n",
        LATHE_ONNX_MIN_OPSET, LATHE_ONNX_MAX_OPSET);
    for (unsigned i = 0; lathe_onnx_op_at(i); i++) {
        const struct lathe_onnx_op *op = lathe_onnx_op_at(i);
        char range[32];
        versions(op, range, sizeof range);
        lathe_text_append(&out, "  %-14s %-33s %-6s ", domain_of(op), op->name, range);
        lathe_onnx_types_text(op->types, &out);
        lathe_text_append(&out, "\n");
    }
    lathe_text_append(&out, "\nOperators of the graph ('*': made by passes):\n");
    size_t column = 0;
    for (size_t i = 0; i < GRAPH_OPS; i++) {
        size_t n = strlen(graph_ops[i].name) + 1 + ((graph_ops[i].flags & LATHE_OPF_FUSED) != 0);
        if (column + n > 90) {
            lathe_text_append(&out, "\n");
            column = 0;
        }
        lathe_text_append(&out, "%s%s%s", column ? " " : "  ", graph_ops[i].name,
                          graph_ops[i].flags & LATHE_OPF_FUSED ? "*" : "");
        column += n + (column ? 0 : 1);
    }
    lathe_text_append(&out, "\n");
    return lathe_cli_print(&out, diag);
}

static enum lathe_status print_json(struct lathe_diag *diag) {
    json_t *onnx = json_array(), *graph = json_array();
    for (unsigned i = 0; lathe_onnx_op_at(i); i++) {
        const struct lathe_onnx_op *op = lathe_onnx_op_at(i);
        json_t *o = json_pack("{ss, ss, si}", "domain", domain_of(op), "name", op->name, "first", op->first);
        json_object_set_new(o, "last",
                            op->last >= LATHE_ONNX_MAX_OPSET || op->domain[0] ? json_null() : json_integer(op->last));
        json_object_set_new(o, "min_inputs", json_integer(op->min_in));
        json_object_set_new(o, "max_inputs", op->max_in == UINT32_MAX ? json_null() : json_integer(op->max_in));
        json_t *types = json_array();
        for (unsigned d = 1; d < 32; d++)
            if (op->types & 1u << d)
                json_array_append_new(types, json_string(lathe_dtype_name((enum lathe_dtype)d)));
        json_object_set_new(o, "dtypes", types);
        json_array_append_new(onnx, o);
    }
    for (size_t i = 0; i < GRAPH_OPS; i++)
        json_array_append_new(graph,
                              json_pack("{ss, si, sb}", "name", graph_ops[i].name, "number", (int)graph_ops[i].number,
                                        "fused", (graph_ops[i].flags & LATHE_OPF_FUSED) != 0));
    return lathe_cli_print_json(json_pack("{si, si, so, so}", "min_opset", LATHE_ONNX_MIN_OPSET, "max_opset",
                                          LATHE_ONNX_MAX_OPSET, "onnx", onnx, "graph", graph),
                                diag);
}

struct request {
    struct lathe_words args;
    bool json;
};

static enum lathe_status ops(void *request, struct lathe_diag *diag) {
    return ((struct request *)request)->json ? print_json(diag) : print_text(diag);
}

int lathe_cmd_ops(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "ops",
                                        .arguments = "[--json]",
                                        .summary = "the operators of the import and of the graph",
                                        .options = options,
                                        .option_count = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, ops, &q);
}
