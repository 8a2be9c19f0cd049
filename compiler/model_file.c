#include "model_file.h"
#include "sha256.h"
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mapping {
    char *location; /* as written; NULL for the model itself */
    int fd;
    void *data;
    uint64_t size;
};

struct lathe_model_file {
    char *path, *dir, *external_dir; /* dir: folder of the path as given */
    char *root, *external_root;      /* resolved folders that external files may lie in; may be NULL */
    struct mapping *maps;            /* [0] is the model */
    size_t map_count;
    uint64_t bytes;
    struct lathe_sha256 hash; /* of maps[0], written by the thread */
    pthread_t hasher;
    bool hashing, hash_failed;
};

/* The hash reads through the file and not through the mapping, so it adds nothing to the resident memory. */
static bool hash_file(struct lathe_sha256 *hash, int fd, uint64_t size) {
    enum { CHUNK = 1 << 20 };
    uint8_t *buffer = malloc(CHUNK);
    bool ok = buffer != NULL;
    for (uint64_t at = 0; ok && at < size;) {
        ssize_t got = pread(fd, buffer, CHUNK, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        ok = got > 0;
        if (ok) {
            lathe_sha256_add(hash, buffer, (size_t)got);
            at += (uint64_t)got;
        }
    }
    free(buffer);
    return ok;
}

static void *hash_thread(void *argument) {
    struct lathe_model_file *file = argument;
    file->hash_failed = !hash_file(&file->hash, file->maps[0].fd, file->maps[0].size);
    return NULL;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A folder is never a guess: say which models it holds. */
static enum lathe_status refuse_folder(const char *path, struct lathe_diag *diag) {
    struct lathe_text list = {0};
    char *names[64];
    size_t count = 0, total = 0;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name);
        if (length < 6 || strcmp(entry->d_name + length - 5, ".onnx"))
            continue;
        total++;
        if (count < 64 && (names[count] = strdup(entry->d_name)))
            count++;
    }
    if (dir)
        closedir(dir);
    qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        lathe_text_append(&list, "%s%s", i ? ", " : "", names[i]);
        free(names[i]);
    }
    enum lathe_status status;
    if (total)
        status =
            lathe_fail(diag, LATHE_MSG_MODEL_IS_FOLDER, "%s is a folder with %zu .onnx file%s (%s): name one of them",
                       path, total, total == 1 ? "" : "s", list.data ? list.data : "");
    else
        status =
            lathe_fail(diag, LATHE_MSG_MODEL_IS_FOLDER, "%s is a folder without .onnx files: name a model file", path);
    lathe_text_free(&list);
    return status;
}

/* Opens a regular file and maps it; returns 0 or an errno, -1 when it is no regular file. */
static int map_file(const char *path, struct mapping *map) {
    struct stat info;
    map->fd = -1;
    if (stat(path, &info))
        return errno;
    if (!S_ISREG(info.st_mode))
        return -1;
    map->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (map->fd < 0)
        return errno;
    if (fstat(map->fd, &info) || !S_ISREG(info.st_mode)) {
        close(map->fd);
        return -1;
    }
    map->size = (uint64_t)info.st_size;
    map->data = NULL;
    if (map->size) {
        map->data =
            map->size > SIZE_MAX ? MAP_FAILED : mmap(NULL, (size_t)map->size, PROT_READ, MAP_PRIVATE, map->fd, 0);
        if (map->data == MAP_FAILED) {
            int code = errno ? errno : ENOMEM;
            close(map->fd);
            return code;
        }
    }
    return 0;
}

static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* The folder two levels above, but never the root: a link must not reach the whole file system. */
static char *root_above(const char *dir) {
    char *root = realpath(dir, NULL);
    for (int level = 0; root && level < 2; level++) {
        char *slash = strrchr(root, '/');
        if (!slash || slash == root)
            break;
        *slash = 0;
    }
    return root;
}

enum lathe_status lathe_model_file_open(const char *path, const char *external_dir, struct lathe_model_file **out,
                                        struct lathe_diag *diag) {
    *out = NULL;
    struct stat info;
    if (stat(path, &info))
        return lathe_fail(diag, LATHE_MSG_MODEL_UNREADABLE, "cannot read model %s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return refuse_folder(path, diag);
    struct lathe_model_file *file = calloc(1, sizeof *file);
    if (!file)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for model %s", path);
    file->maps = calloc(1, sizeof *file->maps);
    file->path = strdup(path);
    file->dir = folder_of(path);
    file->root = file->dir ? root_above(file->dir) : NULL;
    if (external_dir) {
        file->external_dir = strdup(external_dir);
        file->external_root = realpath(external_dir, NULL);
    }
    enum lathe_status status = LATHE_OK;
    if (!file->maps || !file->path || !file->dir || (external_dir && !file->external_dir)) {
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for model %s", path);
        goto fail;
    }
    int code = map_file(path, &file->maps[0]);
    if (code) {
        status = lathe_fail(diag, LATHE_MSG_MODEL_UNREADABLE, "cannot read model %s: %s", path,
                            code < 0 ? "not a regular file" : strerror(code));
        goto fail;
    }
    file->map_count = 1;
    file->bytes = file->maps[0].size;
    if (!file->bytes) {
        status = lathe_fail(diag, LATHE_MSG_NOT_ONNX, "%s is not an ONNX model: the file is empty", path);
        goto fail;
    }
    *out = file;
    return LATHE_OK;
fail:
    lathe_model_file_close(&file);
    return status;
}

void lathe_model_file_close(struct lathe_model_file **file) {
    struct lathe_model_file *f = *file;
    if (!f)
        return;
    if (f->hashing)
        pthread_join(f->hasher, NULL);
    for (size_t i = 0; i < f->map_count; i++) {
        if (f->maps[i].data)
            munmap(f->maps[i].data, (size_t)f->maps[i].size);
        close(f->maps[i].fd);
        free(f->maps[i].location);
    }
    free(f->maps);
    free(f->path);
    free(f->dir);
    free(f->external_dir);
    free(f->root);
    free(f->external_root);
    free(f);
    *file = NULL;
}

uint64_t lathe_model_file_bytes(const struct lathe_model_file *file) {
    return file->bytes;
}

const uint8_t *lathe_model_file_data(const struct lathe_model_file *file, uint64_t *size) {
    *size = file->maps[0].size;
    return file->maps[0].data;
}

const char *lathe_model_file_name(const struct lathe_model_file *file) {
    const char *slash = strrchr(file->path, '/');
    return slash ? slash + 1 : file->path;
}

/* True when the location, as written, never leaves the folder it starts from. */
static bool stays_inside(const char *location) {
    long depth = 0;
    for (const char *p = location; *p;) {
        size_t length = strcspn(p, "/");
        if (length == 2 && p[0] == '.' && p[1] == '.')
            depth--;
        else if (length && !(length == 1 && p[0] == '.'))
            depth++;
        if (depth < 0)
            return false;
        p += length;
        while (*p == '/')
            p++;
    }
    return true;
}

static bool is_under(const char *path, const char *folder) {
    if (!folder)
        return false;
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (path[length] == '/' || (length && folder[length - 1] == '/'));
}

static bool plain_number(const char *text, uint64_t *out) {
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *out = value;
    return value <= INT64_MAX;
}

static char *join(const char *folder, const char *location) {
    size_t a = strlen(folder), b = strlen(location);
    char *path = malloc(a + b + 2);
    if (path) {
        memcpy(path, folder, a);
        path[a] = '/';
        memcpy(path + a + 1, location, b + 1);
    }
    return path;
}

static enum lathe_status bad_external(struct lathe_diag *diag, const char *tensor, const char *location,
                                      const char *rule) {
    return lathe_fail(diag, LATHE_MSG_EXTERNAL_DATA, "tensor '%s': external data '%s': %s", tensor, location, rule);
}

static enum lathe_status open_external(struct lathe_model_file *file, const char *tensor, const char *location,
                                       struct mapping **out, struct lathe_diag *diag) {
    for (size_t i = 1; i < file->map_count; i++) {
        if (!strcmp(file->maps[i].location, location)) {
            *out = &file->maps[i];
            return LATHE_OK;
        }
    }
    if (!*location)
        return bad_external(diag, tensor, location, "the location is empty; a relative file name is needed");
    if (*location == '/')
        return bad_external(diag, tensor, location,
                            "an absolute path is not allowed; it must lie in the model's folder");
    if (!stays_inside(location))
        return bad_external(diag, tensor, location, "it leaves the model's folder");
    struct mapping *maps = realloc(file->maps, (file->map_count + 1) * sizeof *maps);
    if (!maps)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for external data '%s'", location);
    file->maps = maps;

    const char *folders[2] = {file->dir, file->external_dir};
    char *path = NULL, *resolved = NULL;
    for (int i = 0; i < 2 && folders[i] && !resolved; i++) {
        free(path);
        path = join(folders[i], location);
        if (!path)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for external data '%s'", location);
        errno = 0;
        resolved = realpath(path, NULL);
    }
    free(path);
    if (!resolved)
        return bad_external(diag, tensor, location, strerror(errno ? errno : ENOENT));
    enum lathe_status status = LATHE_OK;
    struct mapping map = {.location = NULL};
    if (!is_under(resolved, file->root) && !is_under(resolved, file->external_root)) {
        status =
            bad_external(diag, tensor, location,
                         "its link leads more than two folders above the model; --external-dir can allow a folder");
    } else {
        int code = map_file(resolved, &map);
        if (code)
            status = bad_external(diag, tensor, location, code < 0 ? "not a regular file" : strerror(code));
    }
    free(resolved);
    if (status != LATHE_OK)
        return status;
    map.location = strdup(location);
    if (!map.location) {
        if (map.data)
            munmap(map.data, (size_t)map.size);
        close(map.fd);
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for external data '%s'", location);
    }
    file->maps[file->map_count] = map;
    *out = &file->maps[file->map_count++];
    file->bytes += map.size;
    return LATHE_OK;
}

enum lathe_status lathe_model_file_external(struct lathe_model_file *file, const char *tensor, const char *location,
                                            const char *offset_text, const char *length_text, uint64_t need,
                                            const void **data, struct lathe_diag *diag) {
    struct mapping *map = NULL;
    uint64_t offset = 0, length = need;
    LATHE_TRY(open_external(file, tensor, location, &map, diag));
    if (offset_text && !plain_number(offset_text, &offset))
        return lathe_fail(diag, LATHE_MSG_EXTERNAL_DATA,
                          "tensor '%s': external data '%s': offset '%s' is not a plain number from 0 to 2^63-1", tensor,
                          location, offset_text);
    if (length_text && !plain_number(length_text, &length))
        return lathe_fail(diag, LATHE_MSG_EXTERNAL_DATA,
                          "tensor '%s': external data '%s': length '%s' is not a plain number from 0 to 2^63-1", tensor,
                          location, length_text);
    if (length != need)
        return lathe_fail(diag, LATHE_MSG_EXTERNAL_DATA,
                          "tensor '%s': external data '%s': length %llu, but shape and type need %llu bytes", tensor,
                          location, (unsigned long long)length, (unsigned long long)need);
    if (offset > map->size || length > map->size - offset)
        return lathe_fail(diag, LATHE_MSG_EXTERNAL_DATA,
                          "tensor '%s': external data '%s': %llu bytes at offset %llu, but the file has %llu bytes",
                          tensor, location, (unsigned long long)length, (unsigned long long)offset,
                          (unsigned long long)map->size);
    *data = map->data ? (const uint8_t *)map->data + offset : (const uint8_t *)"";
    return LATHE_OK;
}

void lathe_model_file_hash_start(struct lathe_model_file *file) {
    lathe_sha256_init(&file->hash);
    /* A thread costs more than hashing a small file. */
    file->hashing = file->bytes > 1 << 20 && !pthread_create(&file->hasher, NULL, hash_thread, file);
    if (!file->hashing)
        hash_thread(file);
}

enum lathe_status lathe_model_file_sha256(struct lathe_model_file *file, char hex[65], struct lathe_diag *diag) {
    if (file->hashing)
        pthread_join(file->hasher, NULL);
    file->hashing = false;
    bool ok = !file->hash_failed;
    for (size_t i = 1; ok && i < file->map_count; i++)
        ok = hash_file(&file->hash, file->maps[i].fd, file->maps[i].size);
    if (!ok)
        return lathe_fail(diag, LATHE_MSG_MODEL_UNREADABLE, "cannot read model %s: it changed or a read failed",
                          file->path);
    lathe_sha256_hex(&file->hash, hex);
    return LATHE_OK;
}
