#include "artifact_file.h"
#include "artifact_json.h"
#include "data_tensor.h"
#include "labels.h"
#include "package.h"
#include "plan.h"
#include "sha256.h"
#include "tar_gz.h"

#include <stdlib.h>
#include <string.h>

struct member {
    const char *name;
    const void *data;
    uint64_t bytes;
};

struct package {
    const struct lathe_package_options *o;
    struct lathe_artifact *artifact;
    void *tokenizer;
    struct lathe_text labels, manifest;
    struct member members[4]; /* manifest first */
    unsigned count;
    json_t *record;
    struct lathe_diag *diag;
};

static void add_member(struct package *p, const char *name, const void *data, uint64_t bytes) {
    p->members[p->count++] = (struct member){name, data, bytes};
}

static enum lathe_status read_tokenizer(struct package *p) {
    size_t size;
    json_error_t error;
    LATHE_TRY(lathe_read_file(p->o->tokenizer, &p->tokenizer, &size, p->diag));
    json_t *root = json_loadb(p->tokenizer, size, JSON_ALLOW_NUL, &error);
    bool object = json_is_object(root), has_model = object && json_object_get(root, "model");
    json_decref(root);
    if (!root)
        return lathe_fail(p->diag, LATHE_MSG_DATA_FILE, "%s:%d: not valid JSON: %s", p->o->tokenizer, error.line,
                          error.text);
    if (!has_model)
        return lathe_fail(p->diag, LATHE_MSG_DATA_FILE, "%s: is no tokenizer.json: %s", p->o->tokenizer,
                          object ? "it has no \"model\"" : "it is no JSON object");
    add_member(p, "tokenizer.json", p->tokenizer, size);
    return LATHE_OK;
}

/* Labels that the artifact has are what its users see: others beside them would be a second truth. */
static enum lathe_status check_labels(const struct package *p, const struct lathe_labels *labels) {
    unsigned own = lathe_artifact_label_count(p->artifact);
    if (own && own != labels->count)
        return lathe_fail(p->diag, LATHE_MSG_DATA_FILE, "%s: has %u labels, the artifact has %u", p->o->labels,
                          labels->count, own);
    for (unsigned i = 0; i < own; i++)
        if (strcmp(labels->at[i], lathe_artifact_label(p->artifact, i)))
            return lathe_fail(p->diag, LATHE_MSG_DATA_FILE, "%s: label %u is '%s', in the artifact it is '%s'",
                              p->o->labels, i, labels->at[i], lathe_artifact_label(p->artifact, i));
    return LATHE_OK;
}

static enum lathe_status make_labels(struct package *p) {
    struct lathe_labels given = {0};
    json_t *list = json_array();
    unsigned own = lathe_artifact_label_count(p->artifact);
    enum lathe_status status = LATHE_OK;
    if (p->o->labels)
        status = lathe_labels_read(p->o->labels, &given, p->diag);
    if (status == LATHE_OK && p->o->labels)
        status = check_labels(p, &given);
    for (unsigned i = 0; status == LATHE_OK && i < (p->o->labels ? given.count : own); i++)
        json_array_append_new(list,
                              lathe_json_string(p->o->labels ? given.at[i] : lathe_artifact_label(p->artifact, i)));
    if (status == LATHE_OK && json_array_size(list)) {
        lathe_json_append(&p->labels, json_incref(list), false);
        add_member(p, "labels.json", p->labels.data, p->labels.length);
    }
    json_decref(list);
    lathe_labels_free(&given);
    return status;
}

static json_t *file_record(const struct member *m) {
    struct lathe_sha256 h;
    char hex[65];
    lathe_sha256_init(&h);
    lathe_sha256_add(&h, m->data, (size_t)m->bytes);
    lathe_sha256_hex(&h, hex);
    return json_pack("{ss, sI, ss}", "name", m->name, "bytes", (json_int_t)m->bytes, "sha256", hex);
}

static enum lathe_status make_manifest(struct package *p) {
    static const char *const keys[] = {"target",  "precision", "max_batch", "max_length",
                                       "buckets", "inputs",    "outputs"};
    json_t *facts, *files = json_array();
    LATHE_TRY(lathe_artifact_json(p->artifact, p->o->artifact, &facts, p->diag));
    p->record = json_pack("{ss, ss}", "format", "lathe-package 1", "writer", "lathe " LATHE_VERSION);
    json_object_set(p->record, "source_sha256", json_object_get(json_object_get(facts, "source"), "sha256"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(facts, keys[i])) /* "buckets" is there with static shapes alone */
            json_object_set(p->record, keys[i], json_object_get(facts, keys[i]));
    json_decref(facts);
    for (unsigned i = 1; i < p->count; i++)
        json_array_append_new(files, file_record(&p->members[i]));
    json_object_set_new(p->record, "files", files);
    lathe_json_append(&p->manifest, json_incref(p->record), false);
    if (p->manifest.failed || p->labels.failed || json_array_size(files) != p->count - 1)
        return lathe_fail(p->diag, LATHE_MSG_NO_MEMORY, "no memory for the manifest");
    p->members[0] = (struct member){"manifest.json", p->manifest.data, p->manifest.length};
    return LATHE_OK;
}

static enum lathe_status write_members(struct package *p, const char *path) {
    struct lathe_artifact_file file;
    struct lathe_tar_writer *w = NULL;
    LATHE_TRY(lathe_artifact_file_begin(&file, path, p->diag));
    enum lathe_status status = lathe_tar_begin(&file, p->o->level, &w, p->diag);
    for (unsigned i = 0; status == LATHE_OK && i < p->count; i++)
        status = lathe_tar_add(w, p->members[i].name, p->members[i].data, p->members[i].bytes, p->diag);
    if (status == LATHE_OK)
        status = lathe_tar_finish(w, p->diag);
    if (status == LATHE_OK)
        status = lathe_artifact_file_commit(&file, p->diag);
    lathe_tar_writer_free(&w);
    lathe_artifact_file_end(&file);
    return status;
}

enum lathe_status lathe_package_write(const char *path, const struct lathe_package_options *options, json_t **manifest,
                                      struct lathe_diag *diag) {
    struct package p = {.o = options, .count = 1, .diag = diag};
    struct lathe_artifact_options in_place = {.map_weights = true};
    enum lathe_status status = lathe_artifact_open(options->artifact, &in_place, &p.artifact, diag);
    *manifest = NULL;
    if (status == LATHE_OK)
        add_member(&p, "model.lathe", p.artifact->bytes, p.artifact->size);
    if (status == LATHE_OK && options->tokenizer)
        status = read_tokenizer(&p);
    if (status == LATHE_OK)
        status = make_labels(&p);
    if (status == LATHE_OK)
        status = make_manifest(&p);
    if (status == LATHE_OK)
        status = write_members(&p, path);
    if (status == LATHE_OK)
        *manifest = json_incref(p.record);
    json_decref(p.record);
    lathe_text_free(&p.labels);
    lathe_text_free(&p.manifest);
    free(p.tokenizer);
    lathe_artifact_close(&p.artifact);
    return status;
}
