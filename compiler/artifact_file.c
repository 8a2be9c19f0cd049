/* Atomic output. The file is made without a name (O_TMPFILE), so that whatever ends the process leaves nothing behind;
 * where the file system cannot do that, it has a temporary name that is removed on failure and on the signals that end
 * a process in the usual ways. */
#include "artifact_file.h"

#include "signal_cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define START_BYTES ((uint64_t)16 << 20)

static enum lathe_status io_error(const struct lathe_artifact_file *f, const char *what, int error,
                                  struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_WRITE_ARTIFACT, "%s: %s: %s", f->path, what, strerror(error));
}

/* ---- names */

/* The folder of a path, "." when it has none; for free(). */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static char *temporary_name(const char *path, unsigned attempt) {
    char *folder = folder_of(path), *name = NULL;
    if (folder && asprintf(&name, "%s/.lathe-%ld-%u.tmp", folder, (long)getpid(), attempt) < 0)
        name = NULL;
    free(folder);
    return name;
}

enum lathe_status lathe_artifact_file_begin(struct lathe_artifact_file *f, const char *path, struct lathe_diag *diag) {
    *f = (struct lathe_artifact_file){.path = path, .fd = -1};
    if (!path)
        return LATHE_OK;
    const char *slash = strrchr(path, '/');
    struct stat st;
    if (slash ? !slash[1] : !*path)
        return io_error(f, "cannot be written", *path ? EISDIR : ENOENT, diag);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return lathe_fail(diag, LATHE_MSG_WRITE_ARTIFACT, "%s: cannot be written: it exists and is not a regular file",
                          path);
    char *folder = folder_of(path);
    if (!folder)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", path);
    f->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    free(folder);
    /* a name can be given later only through /proc */
    if (f->fd >= 0 && access("/proc/self/fd", F_OK) == 0)
        return LATHE_OK;
    if (f->fd >= 0)
        close(f->fd);
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        f->temporary = temporary_name(path, attempt);
        if (!f->temporary)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", path);
        lathe_remove_on_signal(f->temporary);
        f->fd = open(f->temporary, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        if (f->fd >= 0)
            return LATHE_OK;
        int error = errno;
        lathe_keep_on_signal(f->temporary);
        free(f->temporary);
        f->temporary = NULL;
        if (error != EEXIST)
            return io_error(f, "cannot be written", error, diag);
    }
    return io_error(f, "cannot be written", EEXIST, diag);
}

/* ---- bytes */

static enum lathe_status grow_memory(struct lathe_artifact_file *f, size_t capacity, struct lathe_diag *diag) {
    capacity = (capacity + 4096) / 64 * 64;
    uint8_t *more = aligned_alloc(64, capacity);
    if (!more)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "artifact in memory: %zu bytes", capacity);
    if (f->size)
        memcpy(more, f->memory, (size_t)f->size);
    free(f->memory);
    f->memory = more;
    f->capacity = capacity;
    return LATHE_OK;
}

enum lathe_status lathe_artifact_file_reserve(struct lathe_artifact_file *f, uint64_t bytes, struct lathe_diag *diag) {
    if (f->path)
        return LATHE_OK;
    if (bytes > SIZE_MAX / 4 - f->size)
        return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW, "artifact in memory: too large");
    size_t need = (size_t)(f->size + bytes);
    return need > f->capacity ? grow_memory(f, need, diag) : LATHE_OK;
}

static enum lathe_status append_memory(struct lathe_artifact_file *f, const void *data, size_t bytes,
                                       struct lathe_diag *diag) {
    if (bytes > SIZE_MAX / 4 - f->size)
        return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW, "artifact in memory: too large");
    size_t need = (size_t)f->size + bytes;
    if (need > f->capacity)
        LATHE_TRY(grow_memory(f, need + need / 2, diag));
    if (bytes)
        memcpy(f->memory + f->size, data, bytes);
    f->size = need;
    return LATHE_OK;
}

static enum lathe_status write_at(struct lathe_artifact_file *f, uint64_t at, const void *data, size_t bytes,
                                  struct lathe_diag *diag) {
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = pwrite(f->fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return io_error(f, "cannot be written", n < 0 ? errno : ENOSPC, diag);
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return LATHE_OK;
}

enum lathe_status lathe_artifact_file_append(struct lathe_artifact_file *f, const void *data, size_t bytes,
                                             struct lathe_diag *diag) {
    if (!f->path)
        return append_memory(f, data, bytes, diag);
    LATHE_TRY(write_at(f, f->size, data, bytes, diag));
    f->size += bytes;
    /* the disk starts while the rest is being made, so that the final sync has less to wait for */
    if (f->size - f->started >= START_BYTES) {
        sync_file_range(f->fd, (off_t)f->started, (off_t)(f->size - f->started), SYNC_FILE_RANGE_WRITE);
        f->started = f->size;
    }
    return LATHE_OK;
}

enum lathe_status lathe_artifact_file_patch(struct lathe_artifact_file *f, uint64_t at, const void *data, size_t bytes,
                                            struct lathe_diag *diag) {
    if (at > f->size || bytes > f->size - at)
        return lathe_fail(diag, LATHE_MSG_BUG, "artifact: patch past the end");
    if (f->path)
        return write_at(f, at, data, bytes, diag);
    memcpy(f->memory + at, data, bytes);
    return LATHE_OK;
}

enum lathe_status lathe_artifact_file_view(struct lathe_artifact_file *f, const void **bytes, struct lathe_diag *diag) {
    *bytes = f->memory;
    if (!f->path)
        return LATHE_OK;
    void *map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (map == MAP_FAILED)
        return io_error(f, "cannot be mapped", errno, diag);
    *bytes = map;
    return LATHE_OK;
}

void lathe_artifact_file_unview(struct lathe_artifact_file *f, const void *bytes) {
    if (f->path && bytes)
        munmap((void *)(uintptr_t)bytes, (size_t)f->size);
}

/* ---- the end */

static enum lathe_status give_name(struct lathe_artifact_file *f, struct lathe_diag *diag) {
    char through[64];
    snprintf(through, sizeof through, "/proc/self/fd/%d", f->fd);
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        f->temporary = temporary_name(f->path, attempt);
        if (!f->temporary)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", f->path);
        lathe_remove_on_signal(f->temporary);
        if (linkat(AT_FDCWD, through, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) == 0)
            return LATHE_OK;
        int error = errno;
        lathe_keep_on_signal(f->temporary);
        free(f->temporary);
        f->temporary = NULL;
        if (error != EEXIST)
            return io_error(f, "cannot be given its name", error, diag);
    }
    return io_error(f, "cannot be given its name", EEXIST, diag);
}

enum lathe_status lathe_artifact_file_commit(struct lathe_artifact_file *f, struct lathe_diag *diag) {
    if (!f->path)
        return LATHE_OK;
    if (fsync(f->fd) != 0)
        return io_error(f, "cannot be written", errno, diag);
    if (!f->temporary)
        LATHE_TRY(give_name(f, diag));
    if (rename(f->temporary, f->path) != 0)
        return io_error(f, "cannot be given its name", errno, diag);
    lathe_keep_on_signal(f->temporary);
    free(f->temporary);
    f->temporary = NULL;
    char *folder = folder_of(f->path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd >= 0) { /* the name is there already; a folder that cannot be synced is no failure */
        (void)!fsync(fd);
        close(fd);
    }
    return LATHE_OK;
}

void lathe_artifact_file_end(struct lathe_artifact_file *f) {
    if (f->temporary)
        unlink(f->temporary);
    lathe_keep_on_signal(f->temporary);
    free(f->temporary);
    if (f->path && f->fd >= 0)
        close(f->fd);
    free(f->memory);
    *f = (struct lathe_artifact_file){.fd = -1};
}
