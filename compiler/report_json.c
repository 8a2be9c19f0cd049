/* The report as JSON. Keys are an interface: they are added to, never renamed. */
#include "json_text.h"
#include "lathe.h"
#include "report_data.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}
static void put_text(json_t *object, const char *key, const char *text) {
    put(object, key, lathe_json_string(text));
}
static void put_count(json_t *object, const char *key, uint64_t n) {
    put(object, key, json_integer((json_int_t)n));
}

static json_t *source(const struct lathe_report *r, bool stable) {
    json_t *o = json_object();
    /* The artifact's copy says nothing of the file: equal graphs give equal copies, and the manifest has the hash. */
    if (!stable) {
        put_text(o, "path", r->source.name);
        put_text(o, "sha256", r->source.sha256);
        put_count(o, "bytes", r->source.bytes);
    }
    put(o, "opset", lathe_json_opsets(r->source.opsets));
    put_count(o, "ir_version", r->source.ir_version);
    put_text(o, "producer", r->source.producer);
    return o;
}

static json_t *passes(const struct lathe_report *r, bool stable) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->passes.count; i++) {
        const struct lathe_report_pass_row *p = &r->passes.at[i];
        if (stable && !p->changes && p->before == p->after) /* an artifact stays as small as it is for a new pass */
            continue;
        json_t *o = json_object();
        put_text(o, "name", p->name);
        put_count(o, "nodes_before", p->before);
        put_count(o, "nodes_after", p->after);
        put_count(o, "changes", p->changes);
        if (!stable)
            put(o, "ms", lathe_json_number(p->ms));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *fusions(const struct lathe_report *r) {
    json_t *o = json_object();
    for (unsigned i = 0; i < r->fusions.count; i++)
        put_count(o, r->fusions.at[i].name, r->fusions.at[i].count);
    return o;
}

static json_t *missed(const struct lathe_report *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->missed.count; i++) {
        json_t *o = json_object();
        put_text(o, "pattern", r->missed.at[i].pattern);
        put_text(o, "node", r->missed.at[i].node);
        put_text(o, "reason", r->missed.at[i].reason);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *warnings(const struct lathe_report *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->warnings.count; i++) {
        json_t *o = json_object();
        put_text(o, "code", r->warnings.at[i].code);
        put_text(o, "node", r->warnings.at[i].node);
        put_text(o, "text", r->warnings.at[i].text);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *quantization(const struct lathe_report *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->quantization.count; i++) {
        const struct lathe_report_layer *q = &r->quantization.at[i];
        json_t *o = json_object();
        put_text(o, "layer", q->layer);
        put_text(o, "scheme", q->scheme);
        put(o, "error", isfinite(q->error) ? lathe_json_number(q->error) : json_null());
        put(o, "kept", json_boolean(q->kept));
        put_text(o, "why", q->why);
        if (q->has_stored) {
            put(o, "stored_min", json_integer(q->stored.min));
            put(o, "stored_max", json_integer(q->stored.max));
            put_count(o, "weights", (uint64_t)q->stored.count);
            put_count(o, "saturated", (uint64_t)q->stored.saturated);
            put_count(o, "rounded", (uint64_t)q->stored.rounded);
            put(o, "input_low", lathe_json_number(q->stored.input_low));
            put(o, "input_high", lathe_json_number(q->stored.input_high));
        }
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *fallback(const struct lathe_report *r) {
    json_t *o = json_object(), *operators = json_array(), *nodes = NULL;
    for (unsigned i = 0; i < r->fallback.at_host.count; i++) {
        const struct lathe_report_host_step *s = &r->fallback.at_host.at[i];
        if (!i || strcmp(s->op, s[-1].op)) {
            json_t *row = json_object();
            nodes = json_array();
            put_text(row, "operator", s->op);
            put(row, "nodes", nodes);
            json_array_append_new(operators, row);
        }
        json_array_append_new(nodes, lathe_json_string(s->node));
        put_count(json_array_get(operators, json_array_size(operators) - 1), "count", json_array_size(nodes));
    }
    put(o, "allowed", json_boolean(r->fallback.allowed));
    put_count(o, "steps", r->fallback.at_host.count);
    put_count(o, "of", r->fallback.steps);
    put(o, "operators", operators);
    return o;
}

static json_t *casts(const struct lathe_report *r) {
    unsigned products = 0, tensors = 0, constants = 0;
    json_t *list = json_array();
    for (unsigned i = 0; i < r->casts.count; i++) {
        const struct lathe_report_cast *c = &r->casts.at[i];
        unsigned *count = *c->kind == 'p' ? &products : *c->kind == 't' ? &tensors : &constants;
        json_t *o = json_object();
        ++*count;
        put_text(o, "kind", c->kind);
        put_text(o, "name", c->name);
        if (*c->op)
            put_text(o, "operator", c->op);
        json_array_append_new(list, o);
    }
    json_t *o = json_object();
    put_text(o, "policy", r->cast_policy ? r->cast_policy : "none");
    put_count(o, "products", products);
    put_count(o, "tensors", tensors);
    put_count(o, "constants", constants);
    put(o, "list", list);
    return o;
}

static json_t *memory(const struct lathe_report *r) {
    json_t *o = json_object();
    put_count(o, "weights", r->memory.weights);
    put_count(o, "arena", r->memory.arena);
    put_count(o, "alive", r->memory.alive);
    if (r->memory.artifact)
        put_count(o, "artifact", r->memory.artifact);
    return o;
}

/* Ports go into lists by role ("input" -> "inputs"), limits beside them. */
static json_t *shapes(const struct lathe_report *r) {
    json_t *o = json_object(), *inputs = json_array(), *outputs = json_array();
    put(o, "inputs", inputs);
    put(o, "outputs", outputs);
    for (unsigned i = 0; i < r->shapes.count; i++) {
        const struct lathe_report_port *p = &r->shapes.at[i];
        bool in = !strcmp(p->role, "input"), out = !strcmp(p->role, "output");
        if (!in && !out) {
            json_t *dims = lathe_json_dims(p->dims);
            json_t *value = json_array_size(dims) == 1 ? json_incref(json_array_get(dims, 0)) : json_incref(dims);
            put(o, p->name, value);
            json_decref(dims);
            continue;
        }
        json_t *port = json_object();
        put_text(port, "name", p->name);
        put_text(port, "dtype", p->dtype);
        put(port, "shape", lathe_json_dims(p->dims));
        json_array_append_new(in ? inputs : outputs, port);
    }
    return o;
}

static json_t *steps(const struct lathe_report *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->steps.count; i++) {
        json_t *o = json_object();
        put_text(o, "op", r->steps.at[i].op);
        put_count(o, "count", r->steps.at[i].count);
        put(o, "share", lathe_json_number(r->steps.at[i].share));
        json_array_append_new(list, o);
    }
    return list;
}

/* To 4 digits: a prediction is no better, and the last bits of a sum mean nothing. */
static json_t *rounded(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.3e", x);
    return lathe_json_number(strtod(text, NULL));
}

/* The copy in an artifact leaves out what `lathe targets` tells, and the shares. */
static json_t *cost_assumptions(const struct lathe_report *r, bool stable) {
    static const struct {
        const char *key;
        size_t at;
    } keys[] = {
#define COST(name, key, most, doc) {key, offsetof(struct lathe_target_cost, name)},
#include "cost_keys.def"
#undef COST
    };
    const struct lathe_target *t = &r->cost.target;
    json_t *o = json_object(), *figures = json_object();
    put_text(o, "figures_of", lathe_report_cost_from(r));
    if (stable) {
        json_decref(figures);
        return o;
    }
    put_text(o, "text",
             "estimated from the figures of the target, not measured; one run at a time, weights as warm as "
             "repeated runs leave them, every token real");
    put(o, "clock_ghz", lathe_json_number(t->ghz));
    put(o, "memory_gbps", lathe_json_number(t->memory_gbps));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        put(figures, keys[i].key,
            lathe_json_number(*(const double *)(const void *)((const char *)&t->cost + keys[i].at)));
    put(o, "cost", figures);
    return o;
}

static json_t *cost(const struct lathe_report *r, bool stable) {
    if (!r->cost.count)
        return json_null();
    json_t *o = json_object(), *list = json_array();
    for (unsigned i = 0; i < r->cost.count; i++) {
        const struct lathe_cost_prediction *p = &r->cost.at[i];
        json_t *one = json_object(), *share = json_object();
        put_count(one, "batch", (uint64_t)p->batch);
        put(one, "length", p->length > 0 ? json_integer(p->length) : json_null());
        put_count(one, "threads", p->threads);
        put(one, "ms", rounded(p->ms));
        put_text(one, "bound", lathe_cost_bound_name(p->bound));
        for (unsigned k = 0; k < LATHE_COST_KINDS; k++)
            put(share, lathe_cost_kind_name((enum lathe_cost_kind)k), rounded(p->share[k]));
        if (!stable) {
            put(one, "share", json_incref(share));
            put(one, "multiply_adds", rounded(p->products));
        }
        json_decref(share);
        json_array_append_new(list, one);
    }
    put(o, "assumptions", cost_assumptions(r, stable));
    put(o, "predictions", list);
    return o;
}

static json_t *placement(const struct lathe_report *r) {
    if (!r->placement.count)
        return json_null();
    json_t *o = json_object(), *list = json_array();
    put_text(o, "placement", lathe_placement_name(r->placement.placement));
    put(o, "cores", r->placement.cores ? json_integer(r->placement.cores) : json_null());
    put(o, "core_memory", r->placement.core_memory ? json_integer((json_int_t)r->placement.core_memory) : json_null());
    put(o, "imbalance", rounded(lathe_stages_imbalance(r->placement.stages, r->placement.count)));
    for (unsigned i = 0; i < r->placement.count; i++) {
        const struct lathe_stage *s = &r->placement.stages[i];
        json_t *one = json_object();
        put_count(one, "first_step", s->first);
        put_count(one, "end_step", s->end);
        put(one, "predicted_ms", rounded(s->cost * 1e-6));
        put_count(one, "weight_bytes", s->weight_bytes);
        put_count(one, "activation_bytes", s->activation_bytes);
        put(one, "fits", json_boolean(lathe_report_stage_fits(r, s)));
        json_array_append_new(list, one);
    }
    put(o, "stages", list);
    return o;
}

static json_t *savings(const struct lathe_report *r) {
    const struct lathe_cost_savings *s = &r->savings;
    if (!s->length)
        return json_null();
    json_t *o = json_object(), *packed = json_array();
    put_count(o, "length", (uint64_t)s->length);
    put(o, "multiply_adds", rounded(s->products));
    put(o, "trim_unused_rows", rounded(s->trimmed));
    if (s->absorbed != 0)
        put(o, "absorb_projections", rounded(s->absorbed));
    for (int p = 0; s->packs && p < 2; p++) {
        json_t *one = json_object();
        put(one, "padding", lathe_json_number(0.25 * (p + 1)));
        put(one, "share", rounded(s->packed[p]));
        json_array_append_new(packed, one);
    }
    put(o, "pack_rows", packed);
    return o;
}

static json_t *notes(const struct lathe_report *r) {
    json_t *o = json_object();
    for (unsigned i = 0; i < r->notes.count; i++)
        put_text(o, r->notes.at[i].key, r->notes.at[i].value);
    return o;
}

static json_t *verification(const struct lathe_report *r) {
    json_t *o = json_object(), *list = json_array();
    bool passed = true;
    for (unsigned i = 0; i < r->checks.count; i++) {
        const struct lathe_report_check *c = &r->checks.at[i];
        json_t *check = json_object();
        put_text(check, "what", c->what);
        put(check, "max_error", lathe_json_number(c->c.max_error));
        put(check, "bound", lathe_json_number(c->c.bound));
        put(check, "cosine", lathe_json_number(c->c.cosine));
        put_count(check, "argmax_rows", (uint64_t)c->c.rows);
        put_count(check, "argmax_flips", (uint64_t)c->c.flips);
        put(check, "passed", json_boolean(c->c.passed));
        json_array_append_new(list, check);
        passed &= c->c.passed;
    }
    put(o, "passed", r->checks.count ? json_boolean(passed) : json_null());
    put(o, "checks", list);
    json_t *skipped = json_array();
    for (unsigned i = 0; i < r->skipped.count; i++) {
        json_t *skip = json_object();
        put_text(skip, "what", r->skipped.at[i].key);
        put_text(skip, "why", r->skipped.at[i].value);
        json_array_append_new(skipped, skip);
    }
    put(o, "skipped", skipped);
    return o;
}

void lathe_report_json(const struct lathe_report *r, bool stable, struct lathe_text *out) {
    json_t *o = json_object();
    put_text(o, "lathe", LATHE_VERSION);
    put(o, "source", source(r, stable));
    put_text(o, "target", r->target.name);
    put_text(o, "precision", r->target.precision);
    put(o, "features", lathe_json_words(r->target.features));
    put(o, "shapes", shapes(r));
    put(o, "fusions", fusions(r));
    put(o, "missed", missed(r));
    put(o, "warnings", warnings(r));
    put(o, "passes", passes(r, stable));
    put(o, "steps", steps(r));
    put(o, "quantization", quantization(r));
    put(o, "casts", casts(r));
    if (r->fallback.steps)
        put(o, "fallback", fallback(r));
    put(o, "memory", memory(r));
    put(o, "cost", cost(r, stable));
    put(o, "savings", savings(r));
    put(o, "placement", placement(r));
    put(o, "verification", verification(r));
    put(o, "notes", notes(r));
    if (r->failed)
        out->failed = true;
    lathe_json_append(out, o, stable);
}
