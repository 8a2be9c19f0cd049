#include "package.h"
#include "plan.h"
#include "sha256.h"
#include "tar_gz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_FILES    8
#define MOST_MANIFEST (16u << 20)
#define PIECE         (1u << 20) /* read and hashed at a time */

struct unpacked {
    const char *path;
    struct lathe_tar_reader *tar;
    struct {
        char name[LATHE_TAR_NAME], sha256[65];
        uint64_t bytes;
    } files[MOST_FILES];
    unsigned count;
    struct lathe_model *model;
    uint64_t artifact_bytes;
    struct lathe_diag *diag;
};

static enum lathe_status damaged(const struct unpacked *u, const char *name, const char *why) {
    return lathe_fail(u->diag, LATHE_MSG_PACKAGE, "%s: %s: %s", u->path, name, why);
}

/* Reads a file of the archive into `into`, or only hashes it (NULL), piece by piece. */
static enum lathe_status read_file(struct unpacked *u, void *into, uint64_t bytes, char hex[65]) {
    struct lathe_sha256 h;
    uint8_t *piece = into ? NULL : malloc(PIECE);
    enum lathe_status status = LATHE_OK;
    if (!into && !piece)
        return lathe_fail(u->diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", u->path);
    lathe_sha256_init(&h);
    for (uint64_t at = 0; status == LATHE_OK && at < bytes;) {
        size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        uint8_t *data = into ? (uint8_t *)into + at : piece;
        status = lathe_tar_read(u->tar, data, n, u->diag);
        if (status == LATHE_OK)
            lathe_sha256_add(&h, data, n);
        at += n;
    }
    lathe_sha256_hex(&h, hex);
    free(piece);
    return status;
}

static enum lathe_status read_manifest(struct unpacked *u, uint64_t bytes) {
    char hex[65];
    json_error_t error;
    if (bytes > MOST_MANIFEST)
        return damaged(u, "manifest.json", "is larger than a manifest can be");
    char *text = malloc((size_t)bytes + 1);
    if (!text)
        return lathe_fail(u->diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", u->path);
    enum lathe_status status = read_file(u, text, bytes, hex);
    if (status == LATHE_OK) {
        u->model->manifest = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
        const char *format = json_string_value(json_object_get(u->model->manifest, "format"));
        if (!json_is_object(u->model->manifest))
            status = damaged(u, "manifest.json", "is no JSON object");
        else if (!format || strcmp(format, "lathe-package 1"))
            status = damaged(u, "manifest.json", "is not of format \"lathe-package 1\"");
    }
    free(text);
    return status;
}

static enum lathe_status read_artifact(struct unpacked *u, uint64_t bytes, char hex[65]) {
    u->model->memory = lathe_weight_memory(bytes ? bytes : 1, &u->model->mapped);
    if (!u->model->memory)
        return lathe_fail(u->diag, LATHE_MSG_NO_MEMORY, "%s: no memory for an artifact of %llu bytes", u->path,
                          (unsigned long long)bytes);
    u->artifact_bytes = bytes;
    return read_file(u, u->model->memory, bytes, hex);
}

static enum lathe_status read_files(struct unpacked *u) {
    for (;;) {
        bool found;
        char name[LATHE_TAR_NAME];
        uint64_t bytes;
        LATHE_TRY(lathe_tar_next(u->tar, &found, name, &bytes, u->diag));
        if (!found)
            return LATHE_OK;
        if (!u->model->manifest && strcmp(name, "manifest.json"))
            return damaged(u, name, "the first file must be manifest.json");
        if (!u->model->manifest) {
            LATHE_TRY(read_manifest(u, bytes));
            continue;
        }
        for (unsigned i = 0; i < u->count; i++)
            if (!strcmp(u->files[i].name, name))
                return damaged(u, name, "is there twice");
        if (u->count == MOST_FILES)
            return damaged(u, name, "is one file too many");
        memcpy(u->files[u->count].name, name, sizeof name);
        u->files[u->count].bytes = bytes;
        char *hex = u->files[u->count++].sha256;
        bool artifact = !strcmp(name, "model.lathe");
        LATHE_TRY(artifact ? read_artifact(u, bytes, hex) : read_file(u, NULL, bytes, hex));
    }
}

static enum lathe_status check_manifest(struct unpacked *u) {
    if (!u->model->manifest)
        return damaged(u, "manifest.json", "is missing");
    const json_t *files = json_object_get(u->model->manifest, "files");
    if (json_array_size(files) != u->count)
        return damaged(u, "manifest.json", "its files are not those of the package");
    for (unsigned i = 0; i < u->count; i++) {
        const json_t *f = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(f, "name")),
                   *sha256 = json_string_value(json_object_get(f, "sha256"));
        json_int_t bytes = json_integer_value(json_object_get(f, "bytes"));
        if (!name || strcmp(name, u->files[i].name))
            return damaged(u, u->files[i].name, "the manifest does not name it in this place");
        if (bytes < 0 || (uint64_t)bytes != u->files[i].bytes || !sha256 || strcmp(sha256, u->files[i].sha256))
            return damaged(u, name, "its bytes are not those that the manifest tells");
    }
    return u->model->memory ? LATHE_OK : damaged(u, "model.lathe", "is missing");
}

static enum lathe_status open_unpacked(struct unpacked *u, const struct lathe_artifact_options *options) {
    struct lathe_diag *why = calloc(1, sizeof *why);
    if (!why)
        return lathe_fail(u->diag, LATHE_MSG_NO_MEMORY, "%s: no memory to open it", u->path);
    enum lathe_status status =
        lathe_artifact_open_memory(u->model->memory, (size_t)u->artifact_bytes, options, &u->model->artifact, why);
    if (status != LATHE_OK)
        lathe_fail(u->diag, why->message, "%s: model.lathe: %s", u->path, why->text);
    free(why);
    return status;
}

enum lathe_status lathe_model_open(const char *path, const struct lathe_artifact_options *options,
                                   struct lathe_model *out, struct lathe_diag *diag) {
    *out = (struct lathe_model){0};
    if (!lathe_is_gzip(path))
        return lathe_artifact_open(path, options, &out->artifact, diag);
    struct unpacked u = {.path = path, .model = out, .diag = diag};
    enum lathe_status status = lathe_tar_open(path, &u.tar, diag);
    if (status == LATHE_OK)
        status = read_files(&u);
    if (status == LATHE_OK)
        status = check_manifest(&u);
    lathe_tar_close(&u.tar);
    if (status == LATHE_OK)
        status = open_unpacked(&u, options);
    if (status != LATHE_OK)
        lathe_model_close(out);
    return status;
}

void lathe_model_close(struct lathe_model *model) {
    lathe_artifact_close(&model->artifact);
    if (model->memory)
        munmap(model->memory, model->mapped);
    json_decref(model->manifest);
    *model = (struct lathe_model){0};
}
