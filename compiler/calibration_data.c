#include "calibration_data.h"
#include "npy.h"
#include "tensor_pb.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_npy(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 4 && e->d_name[0] != '.' && !strcmp(e->d_name + n - 4, ".npy");
}

static int is_visible(const struct dirent *e) {
    return e->d_name[0] != '.';
}

static void free_entries(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

static bool holds_npy(const char *folder) {
    struct dirent **entries;
    int n = scandir(folder, &entries, is_npy, NULL);
    if (n < 0)
        return false;
    free_entries(entries, n);
    return n > 0;
}

static enum lathe_status add(struct lathe_calibration_data *d, char *path, struct lathe_diag *diag) {
    char **more = path ? realloc(d->paths, (d->count + 1) * sizeof *more) : NULL;
    if (!more) {
        free(path);
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for a list of folders");
    }
    d->paths = more;
    more[d->count++] = path;
    return LATHE_OK;
}

/* The folder itself, or its sub-folders, that hold .npy files. */
static enum lathe_status list_npy(const char *folder, struct lathe_calibration_data *out, struct lathe_diag *diag) {
    if (holds_npy(folder))
        return add(out, strdup(folder), diag);
    struct dirent **entries;
    int n = scandir(folder, &entries, is_visible, versionsort);
    enum lathe_status status = LATHE_OK;
    for (int i = 0; i < n && status == LATHE_OK; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
            status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", folder);
        else if (holds_npy(path))
            status = add(out, path, diag);
        else
            free(path);
    }
    if (n >= 0)
        free_entries(entries, n);
    return status;
}

enum lathe_status lathe_calibration_data_open(const char *folder, struct lathe_calibration_data *out,
                                              struct lathe_diag *diag) {
    *out = (struct lathe_calibration_data){.npy = true};
    enum lathe_status status = list_npy(folder, out, diag);
    if (status == LATHE_OK && out->count == 0) {
        out->npy = false;
        status = lathe_data_set_list(folder, &out->paths, &out->count, diag);
    }
    if (status != LATHE_OK)
        lathe_calibration_data_close(out);
    return status;
}

void lathe_calibration_data_close(struct lathe_calibration_data *data) {
    lathe_data_set_list_free(data->paths, data->count);
    *data = (struct lathe_calibration_data){0};
}

static enum lathe_status read_npy(const char *folder, const struct lathe_artifact *a, struct lathe_feeds *out,
                                  struct lathe_diag *diag) {
    struct dirent **entries;
    int n = scandir(folder, &entries, is_npy, versionsort);
    enum lathe_status status =
        n < 0 ? lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", folder, strerror(errno)) : LATHE_OK;
    for (int i = 0; i < n && status == LATHE_OK; i++) {
        struct lathe_data_tensor tensor = {0};
        char *path = NULL, *name = strndup(entries[i]->d_name, strlen(entries[i]->d_name) - 4);
        if (!name || asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
            status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", folder);
        if (status == LATHE_OK)
            status = lathe_npy_read(path, &tensor, diag);
        if (status == LATHE_OK)
            status = lathe_feeds_put(a, out, name, &tensor, path, diag);
        lathe_data_tensor_free(&tensor);
        free(path);
        free(name);
    }
    if (n >= 0)
        free_entries(entries, n);
    return status;
}

enum lathe_status lathe_calibration_data_read(const struct lathe_calibration_data *data, unsigned index,
                                              const struct lathe_artifact *a, struct lathe_feeds *out,
                                              struct lathe_diag *diag) {
    const char *folder = data->paths[index];
    LATHE_TRY(lathe_feeds_new(a, out, diag));
    enum lathe_status status = LATHE_OK;
    if (data->npy) {
        status = read_npy(folder, a, out, diag);
    } else {
        struct lathe_data_set set = {0};
        status = lathe_data_set_read(folder, &set, diag);
        for (unsigned i = 0; status == LATHE_OK && i < set.input_count; i++)
            status = lathe_feeds_put_nth(a, out, i, &set.inputs[i], folder, diag);
        lathe_data_set_free(&set);
    }
    if (status != LATHE_OK)
        lathe_feeds_free(out);
    return status;
}
