#include "labels.h"
#include "data_tensor.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LABELS 1000000

void lathe_labels_free(struct lathe_labels *labels) {
    for (unsigned i = 0; i < labels->count; i++)
        free(labels->at[i]);
    free(labels->at);
    *labels = (struct lathe_labels){0};
}

static enum lathe_status bad(const char *path, const char *why, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path, why);
}

static enum lathe_status add(struct lathe_labels *labels, const char *text, size_t n, const char *path,
                             struct lathe_diag *diag) {
    if (labels->count == MAX_LABELS)
        return bad(path, "more than 1000000 labels", diag);
    if (memchr(text, 0, n))
        return bad(path, "a label holds a zero byte", diag);
    /* Room for a power of two. */
    if ((labels->count & (labels->count - 1)) == 0) {
        char **more = realloc(labels->at, (labels->count ? 2 * labels->count : 1) * sizeof *more);
        if (!more)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", path);
        labels->at = more;
    }
    labels->at[labels->count] = strndup(text, n);
    if (!labels->at[labels->count])
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", path);
    labels->count++;
    return LATHE_OK;
}

static enum lathe_status add_json(struct lathe_labels *labels, const json_t *value, const char *path,
                                  struct lathe_diag *diag) {
    if (!json_is_string(value))
        return bad(path, "a label is missing or no text", diag);
    return add(labels, json_string_value(value), json_string_length(value), path, diag);
}

static enum lathe_status from_json(const json_t *root, struct lathe_labels *labels, const char *path,
                                   struct lathe_diag *diag) {
    if (json_is_array(root)) {
        for (size_t i = 0; i < json_array_size(root); i++)
            LATHE_TRY(add_json(labels, json_array_get(root, i), path, diag));
        return LATHE_OK;
    }
    const json_t *map = json_object_get(root, "id2label");
    if (!json_is_object(map))
        return bad(path, "holds no \"id2label\"", diag);
    for (size_t i = 0; i < json_object_size(map); i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        const json_t *value = json_object_get(map, key);
        if (!value)
            return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: id2label has %zu names but no \"%s\"", path,
                              json_object_size(map), key);
        LATHE_TRY(add_json(labels, value, path, diag));
    }
    return LATHE_OK;
}

static enum lathe_status from_lines(const char *text, size_t size, struct lathe_labels *labels, const char *path,
                                    struct lathe_diag *diag) {
    while (size) {
        const char *end = memchr(text, '\n', size);
        size_t n = end ? (size_t)(end - text) : size, shown = n && text[n - 1] == '\r' ? n - 1 : n;
        if (!shown)
            return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s:%u: an empty label", path, labels->count + 1);
        LATHE_TRY(add(labels, text, shown, path, diag));
        n += end != NULL;
        text += n;
        size -= n;
    }
    return LATHE_OK;
}

enum lathe_status lathe_labels_read(const char *path, struct lathe_labels *out, struct lathe_diag *diag) {
    void *text;
    size_t size;
    *out = (struct lathe_labels){0};
    LATHE_TRY(lathe_read_file(path, &text, &size, diag));
    const char *first = text;
    size_t skip = 0;
    while (skip < size && strchr(" \t\r\n", first[skip]))
        skip++;
    bool json = skip < size && (first[skip] == '{' || first[skip] == '[');
    enum lathe_status status;
    if (json) {
        json_error_t error;
        json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        status = root
                     ? from_json(root, out, path, diag)
                     : lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s:%d: not valid JSON: %s", path, error.line, error.text);
        json_decref(root);
    } else {
        status = from_lines(text, size, out, path, diag);
    }
    free(text);
    if (status == LATHE_OK && !out->count)
        status = bad(path, "holds no labels", diag);
    if (status != LATHE_OK)
        lathe_labels_free(out);
    return status;
}
