/* Folders of input_N.pb and output_N.pb. */
#include "tensor_pb.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILES 65536

/* The N of "<kind>_N.pb", -1 for other names. */
static long number_of(const char *name, const char *kind) {
    size_t n = strlen(kind);
    if (strncmp(name, kind, n) || name[n] != '_' || !isdigit((unsigned char)name[n + 1]))
        return -1;
    char *end;
    errno = 0;
    long number = strtol(name + n + 1, &end, 10);
    return errno || strcmp(end, ".pb") || number >= MAX_FILES ? -1 : number;
}

static int by_number(const void *a, const void *b) {
    const long x = *(const long *)a, y = *(const long *)b;
    return x < y ? -1 : x > y;
}

/* The numbers of the files of one kind, sorted; *numbers is for free(). -1: the folder cannot be read or no memory. */
static int list_numbers(const char *folder, const char *kind, long **numbers) {
    DIR *dir = opendir(folder);
    int count = 0, capacity = 0;
    *numbers = NULL;
    if (!dir)
        return -1;
    for (struct dirent *e; count >= 0 && (e = readdir(dir));) {
        long n = number_of(e->d_name, kind);
        if (n < 0)
            continue;
        if (count == capacity) {
            long *more = realloc(*numbers, (size_t)(capacity = capacity ? capacity * 2 : 16) * sizeof **numbers);
            if (!more) {
                count = -1;
                break;
            }
            *numbers = more;
        }
        (*numbers)[count++] = n;
    }
    closedir(dir);
    if (count > 1)
        qsort(*numbers, (size_t)count, sizeof **numbers, by_number);
    return count;
}

void lathe_data_set_free(struct lathe_data_set *set) {
    for (unsigned i = 0; i < set->input_count; i++)
        lathe_data_tensor_free(&set->inputs[i]);
    for (unsigned i = 0; i < set->output_count; i++)
        lathe_data_tensor_free(&set->outputs[i]);
    free(set->inputs);
    free(set->outputs);
    free(set->path);
    *set = (struct lathe_data_set){0};
}

static enum lathe_status read_kind(const char *folder, const char *kind, struct lathe_data_tensor **tensors,
                                   unsigned *count, struct lathe_diag *diag) {
    long *numbers;
    int files = list_numbers(folder, kind, &numbers);
    enum lathe_status status = LATHE_OK;
    if (files < 0)
        status = lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: %s", folder, strerror(errno));
    *tensors = calloc((size_t)(files > 0 ? files : 1), sizeof **tensors);
    if (!*tensors)
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", folder);
    for (int i = 0; status == LATHE_OK && i < files; i++) {
        char *path = NULL;
        if (i && numbers[i] == numbers[i - 1])
            status =
                lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: two files of the number %s_%ld", folder, kind, numbers[i]);
        else if (asprintf(&path, "%s/%s_%ld.pb", folder, kind, numbers[i]) < 0)
            status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", folder);
        else
            status = lathe_tensor_pb_read(path, &(*tensors)[i], diag);
        if (status == LATHE_OK)
            *count = (unsigned)i + 1;
        if (path)
            free(path);
    }
    free(numbers);
    return status;
}

enum lathe_status lathe_data_set_read(const char *folder, struct lathe_data_set *out, struct lathe_diag *diag) {
    *out = (struct lathe_data_set){.path = strdup(folder)};
    enum lathe_status status = out->path ? LATHE_OK : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", folder);
    if (status == LATHE_OK)
        status = read_kind(folder, "input", &out->inputs, &out->input_count, diag);
    if (status == LATHE_OK)
        status = read_kind(folder, "output", &out->outputs, &out->output_count, diag);
    if (status == LATHE_OK && !out->input_count && !out->output_count)
        status = lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: holds no input_N.pb and no output_N.pb", folder);
    if (status != LATHE_OK)
        lathe_data_set_free(out);
    return status;
}

static bool is_data_set(const char *folder) {
    long *numbers;
    int inputs = list_numbers(folder, "input", &numbers);
    free(numbers);
    if (inputs > 0)
        return true;
    int outputs = list_numbers(folder, "output", &numbers);
    free(numbers);
    return outputs > 0;
}

void lathe_data_set_list_free(char **paths, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        free(paths[i]);
    free(paths);
}

static enum lathe_status add_path(char ***paths, unsigned *count, char *path, struct lathe_diag *diag) {
    char **more = path ? realloc(*paths, (*count + 1) * sizeof **paths) : NULL;
    if (!more) {
        free(path);
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for a list of folders");
    }
    *paths = more;
    more[(*count)++] = path;
    return LATHE_OK;
}

enum lathe_status lathe_data_set_list(const char *folder, char ***paths, unsigned *count, struct lathe_diag *diag) {
    *paths = NULL;
    *count = 0;
    struct stat st;
    if (stat(folder, &st))
        return lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: is no folder", folder);
    if (is_data_set(folder))
        return add_path(paths, count, strdup(folder), diag);
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, versionsort);
    if (n < 0)
        return lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: %s", folder, strerror(errno));
    enum lathe_status status = LATHE_OK;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (status == LATHE_OK && entries[i]->d_name[0] != '.' &&
            asprintf(&path, "%s/%s", folder, entries[i]->d_name) >= 0) {
            if (is_data_set(path))
                status = add_path(paths, count, path, diag);
            else
                free(path);
        }
        free(entries[i]);
    }
    free(entries);
    if (status == LATHE_OK && !*count)
        status = lathe_fail(diag, LATHE_MSG_DATA_SET, "%s: holds no input_N.pb or output_N.pb, and no folder that does",
                            folder);
    if (status != LATHE_OK) {
        lathe_data_set_list_free(*paths, *count);
        *paths = NULL;
        *count = 0;
    }
    return status;
}
