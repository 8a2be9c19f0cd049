/* The record of one compile: adders and the --expect conditions. The forms are report_json.c, report_text.c and
 * report_html.c. */
#include "printable.h"
#include "report_data.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lathe_report *lathe_report_new(void) {
    struct lathe_report *r = calloc(1, sizeof *r);
    if (!r || !(r->arena = lathe_arena_new())) {
        free(r);
        return NULL;
    }
    r->source.name = r->source.sha256 = r->source.producer = r->source.opsets = "";
    r->target.name = r->target.precision = r->target.features = "";
    return r;
}

void lathe_report_free(struct lathe_report **report) {
    struct lathe_report *r = *report;
    *report = NULL;
    if (!r)
        return;
    free(r->passes.at);
    free(r->fusions.at);
    free(r->missed.at);
    free(r->warnings.at);
    free(r->shapes.at);
    free(r->steps.at);
    free(r->notes.at);
    free(r->quantization.at);
    free(r->casts.at);
    free(r->fallback.at_host.at);
    free(r->checks.at);
    free(r->skipped.at);
    lathe_arena_free(&r->arena);
    free(r);
}

bool lathe_report_failed(const struct lathe_report *r) {
    return r->failed;
}

static const char *keep(struct lathe_report *r, const char *text) {
    char *copy = lathe_arena_string(r->arena, text ? text : "");
    r->failed |= !copy;
    return copy ? copy : "";
}

/* A new list entry at `index`, the later ones moved up; NULL when memory runs out. */
static void *insert(struct lathe_report *r, void **at, unsigned *count, unsigned *capacity, size_t bytes,
                    unsigned index) {
    if (*count == *capacity) {
        size_t size;
        unsigned more = *capacity ? *capacity * 2 : 16;
        void *moved =
            more > *capacity && !__builtin_mul_overflow((size_t)more, bytes, &size) ? realloc(*at, size) : NULL;
        if (!moved) {
            r->failed = true;
            return NULL;
        }
        *at = moved;
        *capacity = more;
    }
    char *place = (char *)*at + index * bytes;
    memmove(place + bytes, place, (*count - index) * bytes);
    memset(place, 0, bytes);
    ++*count;
    return place;
}
#define INSERT(r, list, index)                                                                                         \
    insert(r, (void **)&(r)->list.at, &(r)->list.count, &(r)->list.capacity, sizeof *(r)->list.at, index)
#define APPEND(r, list) INSERT(r, list, (r)->list.count)

/* The first index whose entry is not before the key (binary search); *found tells whether it equals it. */
#define FIND(r, list, index, found, order)                                                                             \
    unsigned index = 0;                                                                                                \
    bool found = false;                                                                                                \
    for (unsigned high = (r)->list.count; index < high;) {                                                             \
        unsigned mid = index + (high - index) / 2;                                                                     \
        int c = (order);                                                                                               \
        if (c < 0)                                                                                                     \
            index = mid + 1;                                                                                           \
        else {                                                                                                         \
            high = mid;                                                                                                \
            found |= c == 0;                                                                                           \
        }                                                                                                              \
    }

void lathe_report_source(struct lathe_report *r, const char *name, const char *sha256, const char *producer,
                         const char *opsets, uint32_t ir_version, uint64_t bytes) {
    r->source.name = keep(r, name);
    r->source.sha256 = keep(r, sha256);
    r->source.producer = keep(r, producer);
    r->source.opsets = keep(r, opsets);
    r->source.ir_version = ir_version;
    r->source.bytes = bytes;
}

const char *lathe_report_sha256(const struct lathe_report *r) {
    return r->source.sha256;
}

void lathe_report_target(struct lathe_report *r, const char *name, const char *precision, const char *features) {
    r->target.name = keep(r, name);
    r->target.precision = keep(r, precision);
    r->target.features = keep(r, features);
}

void lathe_report_pass(struct lathe_report *r, const char *name, unsigned nodes_before, unsigned nodes_after,
                       unsigned changes, double ms) {
    struct lathe_report_pass_row *p = APPEND(r, passes);
    if (p)
        *p = (struct lathe_report_pass_row){keep(r, name), nodes_before, nodes_after, changes, ms};
}

void lathe_report_fusion(struct lathe_report *r, const char *name, unsigned count) {
    FIND(r, fusions, at, found, strcmp(r->fusions.at[mid].name, name))
    struct lathe_report_count *f = found ? &r->fusions.at[at] : INSERT(r, fusions, at);
    if (f)
        *f = (struct lathe_report_count){found ? f->name : keep(r, name), count};
}

unsigned lathe_report_fusion_count(const struct lathe_report *r, const char *name) {
    FIND(r, fusions, at, found, strcmp(r->fusions.at[mid].name, name))
    return found ? r->fusions.at[at].count : 0;
}

static int pair_order(const char *a1, const char *b1, const char *a2, const char *b2) {
    int c = strcmp(a1, b1);
    return c ? c : strcmp(a2, b2);
}

void lathe_report_missed(struct lathe_report *r, const char *pattern, const char *node, const char *reason) {
    node = node ? node : "";
    FIND(r, missed, at, found, pair_order(r->missed.at[mid].pattern, pattern, r->missed.at[mid].node, node))
    struct lathe_report_miss *m = found ? &r->missed.at[at] : INSERT(r, missed, at);
    if (!m)
        return;
    if (!found)
        *m = (struct lathe_report_miss){keep(r, pattern), keep(r, node), NULL};
    m->reason = keep(r, reason);
}

void lathe_report_drop_missed(struct lathe_report *r, const char *pattern, const char *node) {
    FIND(r, missed, at, found, pair_order(r->missed.at[mid].pattern, pattern, r->missed.at[mid].node, node))
    if (!found)
        return;
    r->missed.count--;
    memmove(&r->missed.at[at], &r->missed.at[at + 1], (r->missed.count - at) * sizeof *r->missed.at);
}

void lathe_report_warning(struct lathe_report *r, const char *code, const char *node, const char *text) {
    node = node ? node : "";
    FIND(r, warnings, first, found, pair_order(r->warnings.at[mid].code, code, r->warnings.at[mid].node, node))
    unsigned at = first;
    for (; found && at < r->warnings.count; at++) {
        const struct lathe_report_alert *w = &r->warnings.at[at];
        int c = pair_order(w->code, code, w->node, node);
        c = c ? c : strcmp(w->text, text);
        if (c == 0)
            return; /* the same warning once */
        if (c > 0)
            break;
    }
    struct lathe_report_alert *w = INSERT(r, warnings, at);
    if (w)
        *w = (struct lathe_report_alert){keep(r, code), keep(r, node), keep(r, text)};
}

void lathe_report_memory(struct lathe_report *r, uint64_t weights, uint64_t arena, uint64_t alive, uint64_t artifact) {
    r->memory.weights = weights;
    r->memory.arena = arena;
    r->memory.alive = alive;
    r->memory.artifact = artifact;
}

void lathe_report_shape(struct lathe_report *r, const char *role, const char *name, const char *dtype,
                        const char *dims) {
    for (unsigned i = 0; i < r->shapes.count; i++) {
        struct lathe_report_port *p = &r->shapes.at[i];
        if (!strcmp(p->role, role) && !strcmp(p->name, name)) {
            p->dtype = keep(r, dtype);
            p->dims = keep(r, dims);
            return;
        }
    }
    struct lathe_report_port *p = APPEND(r, shapes);
    if (p)
        *p = (struct lathe_report_port){keep(r, role), keep(r, name), keep(r, dtype), keep(r, dims)};
}

void lathe_report_step(struct lathe_report *r, const char *op, unsigned count, double share_of_flops) {
    unsigned at = 0;
    for (; at < r->steps.count; at++) {
        const struct lathe_report_op *s = &r->steps.at[at];
        if (s->share < share_of_flops || (s->share == share_of_flops && strcmp(s->op, op) > 0))
            break;
    }
    struct lathe_report_op *s = INSERT(r, steps, at);
    if (s)
        *s = (struct lathe_report_op){keep(r, op), count, share_of_flops};
}

void lathe_report_note(struct lathe_report *r, const char *key, const char *value) {
    FIND(r, notes, at, found, strcmp(r->notes.at[mid].key, key))
    struct lathe_report_fact *f = found ? &r->notes.at[at] : INSERT(r, notes, at);
    if (f)
        *f = (struct lathe_report_fact){found ? f->key : keep(r, key), keep(r, value)};
}

void lathe_report_quantization(struct lathe_report *r, const char *layer, const char *scheme, double error, bool kept,
                               const char *why) {
    FIND(r, quantization, at, found, strcmp(r->quantization.at[mid].layer, layer))
    struct lathe_report_layer *q = found ? &r->quantization.at[at] : INSERT(r, quantization, at);
    if (q)
        *q = (struct lathe_report_layer){.layer = found ? q->layer : keep(r, layer),
                                         .scheme = keep(r, scheme),
                                         .why = keep(r, why),
                                         .error = error,
                                         .kept = kept};
}

void lathe_report_quantized(struct lathe_report *r, const char *layer, const struct lathe_report_stored *stored) {
    FIND(r, quantization, at, found, strcmp(r->quantization.at[mid].layer, layer))
    if (!found)
        return;
    r->quantization.at[at].has_stored = true;
    r->quantization.at[at].stored = *stored;
}

void lathe_report_fallback_of(struct lathe_report *r, unsigned steps, bool allowed) {
    r->fallback.steps = steps;
    r->fallback.allowed = allowed;
}

void lathe_report_fallback(struct lathe_report *r, const char *op, const char *node) {
    unsigned at = r->fallback.at_host.count;
    while (at && strcmp(r->fallback.at_host.at[at - 1].op, op) > 0)
        at--;
    struct lathe_report_host_step *s = INSERT(r, fallback.at_host, at);
    if (s)
        *s = (struct lathe_report_host_step){keep(r, op), keep(r, node)};
}

void lathe_report_cast_policy(struct lathe_report *r, const char *policy) {
    r->cast_policy = keep(r, policy);
}

void lathe_report_cast(struct lathe_report *r, const char *kind, const char *name, const char *op) {
    FIND(r, casts, at, found,
         strcmp(r->casts.at[mid].kind, kind) ? strcmp(r->casts.at[mid].kind, kind)
                                             : strcmp(r->casts.at[mid].name, name))
    struct lathe_report_cast *c = found ? &r->casts.at[at] : INSERT(r, casts, at);
    if (c)
        *c = (struct lathe_report_cast){keep(r, kind), keep(r, name), keep(r, op)};
}

void lathe_report_verification(struct lathe_report *r, const char *what, const struct lathe_report_compared *compared) {
    struct lathe_report_check *c = APPEND(r, checks);
    if (c)
        *c = (struct lathe_report_check){.what = keep(r, what), .c = *compared};
}

void lathe_report_cost(struct lathe_report *r, const struct lathe_target *target,
                       const struct lathe_cost_prediction *predictions, unsigned count) {
    r->cost.count = count < LATHE_COST_PREDICTIONS ? count : LATHE_COST_PREDICTIONS;
    if (!r->cost.count)
        return;
    r->cost.target = *target;
    memcpy(r->cost.at, predictions, r->cost.count * sizeof *predictions);
}

void lathe_report_trimmed(struct lathe_report *r, double row, double pair) {
    r->saved.row = row;
    r->saved.pair = pair;
}

void lathe_report_absorbed(struct lathe_report *r, double token, double once) {
    r->saved.token += token;
    r->saved.once += once;
}

const struct lathe_work_saved *lathe_report_work_saved(const struct lathe_report *r) {
    return &r->saved;
}

void lathe_report_savings(struct lathe_report *r, const struct lathe_cost_savings *savings) {
    r->savings = *savings;
}

const char *lathe_report_cost_from(const struct lathe_report *r) {
    return r->cost.target.cost_from[0] ? r->cost.target.cost_from : r->cost.target.name;
}

bool lathe_report_stage_fits(const struct lathe_report *r, const struct lathe_stage *stage) {
    return !r->placement.core_memory || stage->weight_bytes + stage->activation_bytes <= r->placement.core_memory;
}

void lathe_report_placement(struct lathe_report *r, const struct lathe_target *target, const struct lathe_stage *stages,
                            unsigned count) {
    struct lathe_stage *kept = lathe_arena_alloc_array(r->arena, count, sizeof *kept);
    if (!kept) {
        r->failed = true;
        return;
    }
    memcpy(kept, stages, count * sizeof *kept);
    r->placement.placement = target->placement;
    r->placement.cores = target->cores;
    r->placement.core_memory = target->core_memory_bytes;
    r->placement.stages = kept;
    r->placement.count = count;
    for (unsigned i = 0; i < count; i++) {
        char core[32];
        struct lathe_text text = {0};
        if (lathe_report_stage_fits(r, &kept[i]))
            continue;
        snprintf(core, sizeof core, "core %u", i);
        lathe_append_bytes(&text, kept[i].weight_bytes);
        lathe_text_append(&text, " of weights and ");
        lathe_append_bytes(&text, kept[i].activation_bytes);
        lathe_text_append(&text, " of activations do not fit the ");
        lathe_append_bytes(&text, target->core_memory_bytes);
        lathe_text_append(&text, " of a core");
        lathe_report_warning(r, "core_memory", target->placement == LATHE_PLACEMENT_PIPELINE ? core : "each core",
                             text.failed ? "" : text.data);
        lathe_text_free(&text);
    }
}

void lathe_report_unverified(struct lathe_report *r, const char *what, const char *why) {
    struct lathe_report_fact *s = APPEND(r, skipped);
    if (s)
        *s = (struct lathe_report_fact){keep(r, what), keep(r, why)};
}

/* ---- --expect */

bool lathe_report_knows_fusion(const struct lathe_report *r, const char *name) {
    static const char *const known[] = {"attention", "embedding", "gate",          "gelu",       "gelu_tanh",
                                        "layernorm", "linear",    "qkv",           "quick_gelu", "rmsnorm",
                                        "rotary",    "silu",      "skip_layernorm"};
    FIND(r, fusions, at, found, strcmp(r->fusions.at[mid].name, name))
    for (size_t i = 0; !found && i < sizeof known / sizeof *known; i++)
        found = !strcmp(known[i], name);
    return found;
}

struct condition {
    char name[64];
    char op[3];
    unsigned long long want;
};

static const char *skip_spaces(const char *p) {
    while (*p == ' ' || *p == '\t')
        p++;
    return p;
}

static bool parse_condition(const char *text, struct condition *out) {
    static const char *const ops[] = {"==", "!=", ">=", "<=", ">", "<"}; /* the longer ones first */
    const char *p = skip_spaces(text);
    if (!strncmp(p, "fuse.", 5))
        p += 5;
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.')
        n++;
    if (!n || n >= sizeof out->name)
        return false;
    memcpy(out->name, p, n);
    out->name[n] = 0;
    p = skip_spaces(p + n);
    size_t i = 0;
    while (i < 6 && strncmp(p, ops[i], strlen(ops[i])))
        i++;
    if (i == 6)
        return false;
    snprintf(out->op, sizeof out->op, "%s", ops[i]);
    p = skip_spaces(p + strlen(ops[i]));
    if (!isdigit((unsigned char)*p))
        return false;
    out->want = 0;
    for (; isdigit((unsigned char)*p); p++)
        if (out->want > 1000000000 || (out->want = out->want * 10 + (unsigned)(*p - '0')) > 1000000000)
            return false;
    return !*skip_spaces(p);
}

static bool holds(const struct condition *c, unsigned long long found) {
    switch (c->op[0]) {
    case '=':
        return found == c->want;
    case '!':
        return found != c->want;
    case '>':
        return c->op[1] ? found >= c->want : found > c->want;
    default:
        return c->op[1] ? found <= c->want : found < c->want;
    }
}

/* `missed` and `warnings` count all, `missed.PATTERN` and `warnings.CODE` those of one kind, any other name is a
 * fusion. */
static unsigned count_of(const struct lathe_report *r, const char *name) {
    const char *kind = strchr(name, '.');
    size_t n = kind ? (size_t)(kind - name) : strlen(name);
    unsigned count = 0;
    if (n == 6 && !strncmp(name, "missed", n)) {
        for (unsigned i = 0; i < r->missed.count; i++)
            count += !kind || !strcmp(r->missed.at[i].pattern, kind + 1);
        return count;
    }
    if (n == 8 && !strncmp(name, "warnings", n)) {
        for (unsigned i = 0; i < r->warnings.count; i++)
            count += !kind || !strcmp(r->warnings.at[i].code, kind + 1);
        return count;
    }
    return lathe_report_fusion_count(r, name);
}

/* Near misses that explain a count: those of its pattern, or all for `missed`. */
static bool explains(const struct lathe_report_miss *m, const char *name) {
    if (!strncmp(name, "missed", 6) && (!name[6] || name[6] == '.'))
        return !name[6] || !strcmp(m->pattern, name + 7);
    return !strcmp(m->pattern, name);
}

static enum lathe_status expect_failed(const struct lathe_report *r, const char *text, const struct condition *c,
                                       unsigned found, struct lathe_diag *diag) {
    struct lathe_text why = {0};
    unsigned misses = 0;
    for (unsigned i = 0; i < r->missed.count; i++) {
        const struct lathe_report_miss *m = &r->missed.at[i];
        if (!explains(m, c->name))
            continue;
        lathe_text_append(&why, "%s%s: %s", misses ? "; " : "", m->node, m->reason);
        misses++;
    }
    bool plain = strncmp(c->name, "missed", 6) && strncmp(c->name, "warnings", 8);
    bool unknown = plain && !lathe_report_knows_fusion(r, c->name);
    enum lathe_status status =
        lathe_fail(diag, LATHE_MSG_EXPECT_FAILED, "--expect '%s': found %s%s = %u%s%s%s", text, plain ? "fuse." : "",
                   c->name, found, unknown ? ", a name that no pass counts" : "",
                   misses  ? "; near misses: "
                   : plain ? "; no near miss was recorded"
                           : "",
                   misses && !why.failed ? why.data : "");
    lathe_text_free(&why);
    return status;
}

enum lathe_status lathe_report_expect_syntax(const char *condition, struct lathe_diag *diag) {
    struct condition c;
    if (parse_condition(condition, &c))
        return LATHE_OK;
    return lathe_fail(diag, LATHE_MSG_EXPECT_SYNTAX,
                      "--expect '%s': expected NAME OP NUMBER such as 'fuse.attention>=12', OP one of == != >= <= > <",
                      condition);
}

enum lathe_status lathe_report_expect(const struct lathe_report *r, const char *condition, struct lathe_diag *diag) {
    struct condition c;
    LATHE_TRY(lathe_report_expect_syntax(condition, diag));
    parse_condition(condition, &c);
    unsigned found = count_of(r, c.name);
    return holds(&c, found) ? LATHE_OK : expect_failed(r, condition, &c, found, diag);
}
