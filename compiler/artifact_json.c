#include "artifact_json.h"
#include "plan_text.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, value);
}

static json_t *features(uint64_t bits) {
    char text[512];
    lathe_target_features_text(bits, text, sizeof text);
    return lathe_json_words(text);
}

static json_t *port(const struct lathe_port *p, bool input) {
    json_t *o = json_object(), *shape = json_array();
    put(o, "name", lathe_json_string(p->name));
    put(o, "dtype", json_string(lathe_dtype_name(p->dtype)));
    for (unsigned i = 0; i < p->rank; i++)
        json_array_append_new(shape, p->dims[i] >= 0 ? json_integer(p->dims[i])
                                                     : lathe_json_string(p->dim_names[i] ? p->dim_names[i] : "?"));
    put(o, "shape", shape);
    if (input) {
        put(o, "optional", json_boolean(p->optional));
        put(o, "id_limit", p->id_limit > 0 ? json_integer(p->id_limit) : json_null());
    } else {
        put(o, "per_token", json_boolean(p->per_token));
    }
    return o;
}

static json_t *ports(const struct lathe_artifact *a, bool input) {
    json_t *list = json_array();
    unsigned count = input ? lathe_artifact_input_count(a) : lathe_artifact_output_count(a);
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, port(input ? lathe_artifact_input(a, i) : lathe_artifact_output(a, i), input));
    return list;
}

static json_t *sections(const struct lathe_artifact *a) {
    static const char *const names[LATHE_SECTION_KINDS] = {
        [LATHE_SECTION_MANIFEST] = "manifest", [LATHE_SECTION_PLAN] = "plan",
        [LATHE_SECTION_WEIGHTS] = "weights",   [LATHE_SECTION_REPORT] = "report",
        [LATHE_SECTION_GRAPH] = "graph",       [LATHE_SECTION_KNOWN_ANSWER] = "known_answer",
        [LATHE_SECTION_BUCKETS] = "buckets"};
    json_t *list = json_array();
    for (uint32_t i = 0; i < a->prefix.section_count; i++) {
        const struct lathe_fmt_section *s = &a->sections[i];
        const char *name = s->kind < LATHE_SECTION_KINDS && names[s->kind] ? names[s->kind] : "unknown";
        json_array_append_new(list,
                              json_pack("{ss, si, ss, sI, sI, sI}", "name", name, "kind", (int)s->kind, "codec",
                                        s->codec == LATHE_CODEC_ZSTD ? "zstd" : "raw", "offset", (json_int_t)s->offset,
                                        "stored_bytes", (json_int_t)s->stored_size, "bytes", (json_int_t)s->raw_size));
    }
    return list;
}

static json_t *steps(const struct lathe_plan *plan) {
    json_t *o = json_object();
    unsigned counts[65536 / 64] = {0};
    for (uint32_t i = 0; i < plan->head->step_count; i++)
        if (plan->steps[i].op < sizeof counts / sizeof *counts)
            counts[plan->steps[i].op]++;
    for (unsigned op = 0; op < sizeof counts / sizeof *counts; op++)
        if (counts[op])
            put(o, lathe_op_info(op) ? lathe_op_info(op)->name : "?", json_integer(counts[op]));
    return o;
}

/* Static shapes: each bucket with its memory; the largest arena is what a session reserves. */
static json_t *buckets(const struct lathe_artifact *a) {
    json_t *list = json_array();
    const struct lathe_buckets *b = a->buckets;
    for (unsigned i = 0; b && i < b->list.count; i++) {
        const struct lathe_fmt_plan *p = b->plans[i].plan.head;
        json_array_append_new(list, json_pack("{sI, sI, sI, si}", "batch", (json_int_t)b->sizes[i].batch, "seq",
                                              (json_int_t)b->sizes[i].seq, "arena_bytes", (json_int_t)p->arena_bytes,
                                              "steps", (int)p->step_count));
    }
    return list;
}

/* The plan with the largest arena. */
static const struct lathe_fmt_plan *largest_plan(const struct lathe_artifact *a) {
    const struct lathe_fmt_plan *most = a->plan.head;
    for (unsigned i = 0; a->buckets && i < a->buckets->list.count; i++) {
        const struct lathe_fmt_plan *p = a->buckets->plans[i].plan.head;
        most = p->arena_bytes > most->arena_bytes ? p : most;
    }
    return most;
}

static json_t *labels(const struct lathe_artifact *a) {
    json_t *list = json_array();
    for (unsigned i = 0; i < lathe_artifact_label_count(a); i++)
        json_array_append_new(list, lathe_json_string(lathe_artifact_label(a, i)));
    return list;
}

static json_t *sha256(const struct lathe_artifact *a) {
    char hex[65];
    for (unsigned i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", a->manifest.head->source_sha256[i]);
    return json_string(hex);
}

/* Where it runs: the features that no kernel row replaces, and what it was compiled for. */
static json_t *runs_on(const struct lathe_artifact *a) {
    char needed[512];
    lathe_target_features_text(a->prefix.cpu_needed, needed, sizeof needed);
    return needed[0] ? json_sprintf("x86-64 machines with %s", needed) : json_string("any machine");
}

static enum lathe_status report(const struct lathe_artifact *a, json_t **out, struct lathe_diag *diag) {
    void *text = NULL;
    uint64_t size = 0;
    *out = NULL;
    LATHE_TRY(lathe_artifact_section(a, LATHE_SECTION_REPORT, &text, &size, diag));
    if (!text)
        return LATHE_OK;
    json_error_t error;
    *out = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (*out && json_is_object(*out))
        return LATHE_OK;
    json_decref(*out);
    *out = NULL;
    return lathe_fail(diag, LATHE_MSG_DATA_FILE, "the report inside the artifact is no JSON object: %s", error.text);
}

static void merge_report(json_t *o, json_t *compiled) {
    static const char *const keys[] = {"precision", "fusions",  "missed", "warnings", "quantization",
                                       "casts",     "fallback", "cost",   "savings",  "notes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(compiled, keys[i]);
        if (value)
            put(o, keys[i], json_incref(value));
    }
    json_t *from = json_object_get(compiled, "source");
    if (json_is_object(from))
        json_object_update_missing(json_object_get(o, "source"), from);
}

enum lathe_status lathe_artifact_json(const struct lathe_artifact *a, const char *path, json_t **out,
                                      struct lathe_diag *diag) {
    const struct lathe_fmt_manifest *m = a->manifest.head;
    json_t *compiled;
    LATHE_TRY(report(a, &compiled, diag));
    json_t *o = json_object();
    put(o, "path", lathe_json_string(path));
    put(o, "format", json_sprintf("%u.%u", a->prefix.major, a->prefix.minor));
    put(o, "writer", lathe_json_string(a->manifest.strings + m->writer));
    put(o, "source", json_pack("{so}", "sha256", sha256(a)));
    put(o, "target", lathe_json_string(a->manifest.strings + m->target_name));
    put(o, "features", features(m->target_features));
    put(o, "needs", features(a->prefix.cpu_needed));
    put(o, "runs_on", runs_on(a));
    put(o, "precision", json_string("f32"));
    put(o, "max_batch", json_integer(lathe_artifact_max_batch(a)));
    put(o, "max_length", json_integer(lathe_artifact_max_length(a)));
    put(o, "placement", json_string(lathe_placement_name(lathe_artifact_placement(a))));
    put(o, "cores", lathe_artifact_cores(a) ? json_integer(lathe_artifact_cores(a)) : json_null());
    put(o, "inputs", ports(a, true));
    put(o, "outputs", ports(a, false));
    put(o, "labels", labels(a));
    put(o, "bytes", json_integer((json_int_t)a->size));
    put(o, "weights_bytes", json_integer((json_int_t)a->weight_bytes));
    put(o, "arena_bytes", json_integer((json_int_t)largest_plan(a)->arena_bytes));
    put(o, "alive_bytes", json_integer((json_int_t)largest_plan(a)->alive_bytes));
    put(o, "sections", sections(a));
    put(o, "steps", steps(&a->plan));
    if (a->buckets) {
        put(o, "buckets", buckets(a));
        put(o, "pads_length", json_boolean(!a->buckets->list.exact));
        put(o, "whole_requests", json_boolean(a->buckets->whole));
    }
    if (compiled)
        merge_report(o, compiled);
    json_decref(compiled);
    *out = o;
    return LATHE_OK;
}
