/* lathe diff: what differs between two artifacts. */
#include "artifact_json.h"
#include "cli.h"
#include "package.h"
#include "plan.h"
#include "printable.h"

#include <stdlib.h>
#include <string.h>

struct request {
    struct lathe_words args;
    bool json;
};

struct diff {
    struct lathe_text text;
    json_t *changes; /* [{"what", "a", "b"}] */
};

static void value_text(const json_t *v, struct lathe_text *out) {
    char *dumped = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (!v)
        lathe_text_append(out, "(absent)");
    else if (json_is_string(v))
        lathe_append_printable(out, json_string_value(v));
    else
        lathe_append_printable(out, dumped ? dumped : "?");
    free(dumped);
}

static void change(struct diff *d, const char *what, const json_t *a, const json_t *b) {
    lathe_append_column(&d->text, what, 32);
    lathe_text_append(&d->text, " ");
    value_text(a, &d->text);
    lathe_text_append(&d->text, " -> ");
    value_text(b, &d->text);
    lathe_text_append(&d->text, "\n");
    json_t *o = json_object();
    json_object_set_new(o, "what", lathe_json_string(what));
    json_object_set_new(o, "a", a ? json_incref((json_t *)(uintptr_t)a) : json_null());
    json_object_set_new(o, "b", b ? json_incref((json_t *)(uintptr_t)b) : json_null());
    json_array_append_new(d->changes, o);
}

/* Entries of a list stand under their name, node or label where they have one, else under their number. */
static json_t *by_name(const json_t *list) {
    json_t *map = json_object(), *entry;
    size_t i;
    json_array_foreach(list, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const char *node = json_string_value(json_object_get(entry, "node"));
        const char *kind =
            json_string_value(json_object_get(entry, json_object_get(entry, "code") ? "code" : "pattern"));
        json_t *key = name   ? json_string(name)
                      : node ? json_sprintf("%s at %s", kind ? kind : "?", node)
                             : json_sprintf("%zu", i);
        if (key)
            json_object_set(map, json_string_value(key), entry);
        json_decref(key);
    }
    return map;
}

static void compare(struct diff *d, const char *what, const json_t *a, const json_t *b);

static void compare_maps(struct diff *d, const char *what, const json_t *a, const json_t *b) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value) {
        json_t *path = what[0] ? json_sprintf("%s.%s", what, key) : json_string(key);
        compare(d, json_string_value(path), value, json_object_get(b, key));
        json_decref(path);
    }
    json_object_foreach((json_t *)(uintptr_t)b, key, value) {
        if (json_object_get(a, key))
            continue;
        json_t *path = what[0] ? json_sprintf("%s.%s", what, key) : json_string(key);
        change(d, json_string_value(path), NULL, value);
        json_decref(path);
    }
}

static bool of_objects(const json_t *list) {
    return json_is_object(json_array_get(list, 0));
}

static void compare(struct diff *d, const char *what, const json_t *a, const json_t *b) {
    if (b && json_equal(a, b))
        return;
    if (json_is_object(a) && json_is_object(b)) {
        compare_maps(d, what, a, b);
    } else if (json_is_array(a) && json_is_array(b) && (of_objects(a) || of_objects(b))) {
        json_t *ma = by_name(a), *mb = by_name(b);
        unsigned before = (unsigned)json_array_size(d->changes);
        compare_maps(d, what, ma, mb);
        if (json_array_size(d->changes) == before)
            change(d, what, a, b); /* the same entries in another order */
        json_decref(ma);
        json_decref(mb);
    } else {
        change(d, what, a, b);
    }
}

static enum lathe_status load(const char *path, struct lathe_model *m, json_t **record, struct lathe_diag *diag) {
    LATHE_TRY(lathe_model_open(path, NULL, m, diag));
    return lathe_artifact_json(m->artifact, path, record, diag);
}

/* Weights that differ though their sizes agree. */
static void compare_weights(struct diff *d, const struct lathe_artifact *a, const struct lathe_artifact *b) {
    if (a->weight_bytes != b->weight_bytes || !a->weight_bytes)
        return;
    uint64_t first = 0, differing = 0;
    for (uint64_t i = 0; i < a->weight_bytes; i++)
        if (a->weights[i] != b->weights[i] && !differing++)
            first = i;
    if (!differing)
        return;
    json_t *none = json_integer(0), *count = json_sprintf("%llu bytes, the first at %llu",
                                                          (unsigned long long)differing, (unsigned long long)first);
    change(d, "weights: differing bytes", none, count);
    json_decref(none);
    json_decref(count);
}

static enum lathe_status diff(void *request, struct lathe_diag *diag) {
    const struct request *q = request;
    const char *pa = q->args.at[0], *pb = q->args.at[1];
    struct lathe_model ma = {0}, mb = {0};
    json_t *ja = NULL, *jb = NULL;
    struct diff d = {.changes = json_array()};
    enum lathe_status status = load(pa, &ma, &ja, diag);
    if (status == LATHE_OK)
        status = load(pb, &mb, &jb, diag);
    if (status == LATHE_OK) {
        const struct lathe_artifact *a = ma.artifact, *b = mb.artifact;
        json_object_del(ja, "path");
        json_object_del(jb, "path");
        compare(&d, "", ja, jb);
        compare_weights(&d, a, b);
        bool same = a->size == b->size && !memcmp(a->bytes, b->bytes, (size_t)a->size);
        if (q->json) {
            status = lathe_cli_print_json(json_pack("{sb, sO}", "identical", same, "changes", d.changes), diag);
        } else {
            if (!json_array_size(d.changes))
                lathe_text_append(&d.text,
                                  same ? "identical\n"
                                       : "no difference in what is recorded; the files differ in other bytes\n");
            status = lathe_cli_print(&d.text, diag);
        }
    }
    json_decref(ja);
    json_decref(jb);
    json_decref(d.changes);
    lathe_text_free(&d.text);
    lathe_model_close(&ma);
    lathe_model_close(&mb);
    return status;
}

int lathe_cmd_diff(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "diff",
                                        .arguments = "A.lathe B.lathe [--json]",
                                        .summary = "what differs between two artifacts",
                                        .details = "Exit code 0 whether they differ or not; the text is \"identical\" "
                                                   "when they are, and --json has that key.\n",
                                        .options = options,
                                        .option_count = 1,
                                        .min_args = 2,
                                        .max_args = 2};
    return lathe_cli_run(&syntax, argc, argv, &q.args, diff, &q);
}
