/* lathe targets: the machines that can be compiled for. */
#include "cli.h"
#include "printable.h"
#include "target.h"

#include "lathe.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const precision_names[] = {"f32", "bf16", "int8"};

static void precisions_text(unsigned precisions, char *buffer, size_t size) {
    buffer[0] = 0;
    for (unsigned i = 0; i < 3; i++)
        if (precisions & 1u << i) {
            size_t n = strlen(buffer);
            snprintf(buffer + n, size - n, "%s%s", n ? " " : "", precision_names[i]);
        }
}

static const char *scheme_name(enum lathe_int8_scheme scheme) {
    static const char *const names[] = {
        [LATHE_INT8_U8S8] = "u8s8",      [LATHE_INT8_U7S8] = "u7s8",      [LATHE_INT8_U7S7_PAIRS] = "u7s7_pairs",
        [LATHE_INT8_U8S7] = "u8s7",      [LATHE_INT8_SUM1] = "u8s8_sum1", [LATHE_INT8_SUM2] = "u8s8_sum2",
        [LATHE_INT8_SUM4] = "u8s8_sum4", [LATHE_INT8_FIP] = "u8s8_fip"};
    return names[scheme];
}
static const char *shapes_name(const struct lathe_target *t) {
    return t->shapes == LATHE_SHAPES_STATIC ? "static" : "bounded";
}
static const char *cast_name(const struct lathe_target *t) {
    return t->cast == LATHE_CAST_NONE ? "none" : t->cast == LATHE_CAST_MATMUL ? "matmul" : "all";
}

static const char *operator_name(unsigned number) {
    switch (number) {
#define OP(number, name, text, min_in, max_in, n_out, flags)                                                           \
    case number:                                                                                                       \
        return text;
#include "ir_ops.def"
#undef OP
    default:
        return NULL;
    }
}

static json_t *buckets_json(const struct lathe_target *t) {
    json_t *list = json_array();
    for (unsigned i = 0; i < t->bucket_count; i++)
        json_array_append_new(list,
                              json_sprintf("%lldx%lld", (long long)t->buckets[i].batch, (long long)t->buckets[i].seq));
    return list;
}

static json_t *operators_json(const struct lathe_target *t) {
    if (t->all_operators)
        return json_string("all");
    json_t *list = json_array();
    for (unsigned i = 0; i < 8 * sizeof t->operators; i++)
        if (t->operators[i / 8] & 1u << i % 8 && operator_name(i))
            json_array_append_new(list, json_string(operator_name(i)));
    return list;
}

static const struct {
    const char *key, *doc;
    size_t at;
} cost_keys[] = {
#define COST(name, key, most, doc) {key, doc, offsetof(struct lathe_target_cost, name)},
#include "cost_keys.def"
#undef COST
};

static double cost_figure(const struct lathe_target *t, size_t i) {
    return *(const double *)(const void *)((const char *)&t->cost + cost_keys[i].at);
}

static json_t *cost_json(const struct lathe_target *t) {
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof cost_keys / sizeof *cost_keys; i++)
        json_object_set_new(o, cost_keys[i].key, lathe_json_number(cost_figure(t, i)));
    if (t->cost_from[0])
        json_object_set_new(o, "from", lathe_json_string(t->cost_from));
    return o;
}

static json_t *target_json(const struct lathe_target *t) {
    char features[512], precisions[64];
    lathe_target_features_text(t->features, features, sizeof features);
    precisions_text(t->precisions, precisions, sizeof precisions);
    json_t *o = json_object();
    json_object_set_new(o, "name", lathe_json_string(t->name));
    json_object_set_new(o, "doc", lathe_json_string(t->doc));
    json_object_set_new(o, "arch", lathe_json_string(t->arch));
    json_object_set_new(o, "features", lathe_json_words(features));
    json_object_set_new(o, "vector_bytes", json_integer(t->vector_bytes));
    json_object_set_new(o, "caches",
                        json_pack("{sI, sI, sI}", "l1", (json_int_t)t->l1_bytes, "l2", (json_int_t)t->l2_bytes, "l3",
                                  (json_int_t)t->l3_bytes));
    json_object_set_new(o, "precisions", lathe_json_words(precisions));
    json_object_set_new(o, "int8_scheme", json_string(scheme_name(t->int8_scheme)));
    json_object_set_new(o, "shapes", json_string(shapes_name(t)));
    json_object_set_new(o, "buckets", buckets_json(t));
    json_object_set_new(o, "max_batch", json_integer(t->max_batch));
    json_object_set_new(o, "max_seq", json_integer(t->max_seq));
    json_object_set_new(o, "cores", json_integer(t->cores));
    json_object_set_new(o, "placement", json_string(lathe_placement_name(t->placement)));
    json_object_set_new(o, "core_memory", json_integer((json_int_t)t->core_memory_bytes));
    json_object_set_new(o, "cast", json_string(cast_name(t)));
    json_object_set_new(o, "operators", operators_json(t));
    json_object_set_new(o, "clock_ghz", lathe_json_number(t->ghz));
    json_object_set_new(o, "memory_gbps", lathe_json_number(t->memory_gbps));
    json_object_set_new(o, "cost", cost_json(t));
    return o;
}

static void row(struct lathe_text *out, const char *key, const char *value) {
    lathe_text_append(out, "%-16s", key);
    lathe_append_printable(out, value);
    lathe_text_append(out, "\n");
}

static void limit_row(struct lathe_text *out, const char *key, int64_t n, const char *none) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)n);
    row(out, key, n ? text : none);
}

static void target_text(const struct lathe_target *t, struct lathe_text *out) {
    char features[512], precisions[64];
    lathe_target_features_text(t->features, features, sizeof features);
    precisions_text(t->precisions, precisions, sizeof precisions);
    row(out, "name", t->name);
    row(out, "doc", t->doc);
    row(out, "arch", t->arch);
    row(out, "features", features[0] ? features : "none");
    lathe_text_append(out, "%-16s%u bytes\n", "vectors", t->vector_bytes);
    lathe_text_append(out, "%-16sL1 ", "caches");
    lathe_append_bytes(out, t->l1_bytes);
    lathe_text_append(out, ", L2 ");
    lathe_append_bytes(out, t->l2_bytes);
    lathe_text_append(out, ", L3 ");
    lathe_append_bytes(out, t->l3_bytes);
    lathe_text_append(out, "\n");
    row(out, "precisions", precisions);
    row(out, "int8 scheme", scheme_name(t->int8_scheme));
    row(out, "shapes", shapes_name(t));
    if (t->bucket_count) {
        lathe_text_append(out, "%-16s", "buckets");
        for (unsigned i = 0; i < t->bucket_count; i++)
            lathe_text_append(out, "%s%lldx%lld", i ? " " : "", (long long)t->buckets[i].batch,
                              (long long)t->buckets[i].seq);
        lathe_text_append(out, "\n");
    }
    limit_row(out, "largest batch", t->max_batch, "from the graph");
    limit_row(out, "largest length", t->max_seq, "from the graph");
    limit_row(out, "cores", t->cores, "as many as the machine has");
    row(out, "placement", lathe_placement_name(t->placement));
    if (t->core_memory_bytes) {
        lathe_text_append(out, "%-16s", "core memory");
        lathe_append_bytes(out, t->core_memory_bytes);
        lathe_text_append(out, "\n");
    }
    row(out, "casts", cast_name(t));
    row(out, "operators", t->all_operators ? "all" : "a list (--json shows it)");
    if (t->ghz > 0)
        lathe_text_append(out, "%-16s%.2f GHz\n", "clock", t->ghz);
    if (t->memory_gbps > 0)
        lathe_text_append(out, "%-16s%.0f GB/s\n", "memory", t->memory_gbps);
    if (t->cost_from[0])
        row(out, "cost from", t->cost_from);
    for (size_t i = 0; i < sizeof cost_keys / sizeof *cost_keys; i++)
        lathe_text_append(out, "cost %-11s%-10g%s\n", cost_keys[i].key, cost_figure(t, i), cost_keys[i].doc);
}

static void list_line(const struct lathe_target *t, struct lathe_text *out) {
    char precisions[64];
    precisions_text(t->precisions, precisions, sizeof precisions);
    lathe_append_column(out, t->name, 16);
    lathe_append_column(out, precisions, 15);
    lathe_append_printable(out, t->doc);
    lathe_text_append(out, "\n");
}

static enum lathe_status list(bool json, struct lathe_diag *diag) {
    struct lathe_text out = {0};
    json_t *all = json_array();
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i <= lathe_target_builtin_count(); i++) {
        struct lathe_target t;
        const char *name = i < lathe_target_builtin_count() ? lathe_target_builtin_name(i) : "native";
        status = lathe_target_load(name, &t, diag);
        if (status == LATHE_OK) {
            json_array_append_new(all, target_json(&t));
            list_line(&t, &out);
        }
    }
    if (status == LATHE_OK)
        status = json ? lathe_cli_print_json(json_incref(all), diag) : lathe_cli_print(&out, diag);
    json_decref(all);
    lathe_text_free(&out);
    return status;
}

static enum lathe_status show(const char *name, bool detect, bool json, struct lathe_diag *diag) {
    struct lathe_target t;
    LATHE_TRY(lathe_target_load(name, &t, diag));
    const char *near = detect ? lathe_target_nearest(&t) : NULL;
    if (json) {
        json_t *o = target_json(&t);
        if (near)
            json_object_set_new(o, "nearest", json_string(near));
        return lathe_cli_print_json(o, diag);
    }
    struct lathe_text out = {0};
    target_text(&t, &out);
    if (near)
        row(&out, "nearest", near);
    return lathe_cli_print(&out, diag);
}

struct request {
    struct lathe_words args;
    bool detect, json;
};

static enum lathe_status targets(void *request, struct lathe_diag *diag) {
    const struct request *q = request;
    const char *name = q->args.count ? q->args.at[0] : NULL;
    if (q->detect && name)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe targets: --detect stands alone, found also '%s'", name);
    return name || q->detect ? show(name ? name : "native", q->detect, q->json, diag) : list(q->json, diag);
}

int lathe_cmd_targets(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "detect",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.detect,
         .help = "this machine, and the shipped target nearest to it"},
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "targets",
                                        .arguments = "[NAME|FILE.yaml] [--detect] [--json]",
                                        .summary = "the machines that can be compiled for",
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options,
                                        .max_args = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, targets, &q);
}
