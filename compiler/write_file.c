#include "write_file.h"

#include "signal_cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum lathe_status fail(const char *path, int error, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_OUTPUT_FILE, "%s: cannot be written: %s", path, strerror(error));
}

enum lathe_status lathe_temporary_beside(const char *path, char **name, int *fd, struct lathe_diag *diag) {
    const char *slash = strrchr(path, '/');
    if (slash ? !slash[1] : !*path)
        return fail(path, EISDIR, diag);
    /* The name of the file is left out: it may already be as long as a name can be. */
    if (asprintf(name, "%.*s.lathe-XXXXXX", slash ? (int)(slash + 1 - path) : 0, path) < 0) {
        *name = NULL;
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory for its name", path);
    }
    lathe_remove_on_signal(*name);
    *fd = mkostemp(*name, O_CLOEXEC);
    if (*fd >= 0)
        return LATHE_OK;
    int error = errno;
    lathe_temporary_end(name);
    return fail(path, error, diag);
}

void lathe_temporary_end(char **name) {
    lathe_keep_on_signal(*name);
    free(*name);
    *name = NULL;
}

static bool write_all(int fd, const struct lathe_file_part *parts, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        const char *p = parts[i].data;
        for (size_t left = parts[i].bytes; left;) {
            ssize_t n = write(fd, p, left);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return false;
            p += n;
            left -= (size_t)n;
        }
    }
    return true;
}

/* The mode that a file made by open(2) would have. */
static void usual_mode(int fd) {
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(fd, 0666 & ~mask))
        return; /* some file systems have no modes */
}

static enum lathe_status write_in_place(const char *path, const struct lathe_file_part *parts, unsigned count,
                                        struct lathe_diag *diag) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(path, errno, diag);
    bool done = write_all(fd, parts, count);
    int error = errno;
    if (close(fd) && done) {
        done = false;
        error = errno;
    }
    return done ? LATHE_OK : fail(path, error, diag);
}

enum lathe_status lathe_write_file(const char *path, const struct lathe_file_part *parts, unsigned count,
                                   struct lathe_diag *diag) {
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return write_in_place(path, parts, count, diag);
    char *name;
    int fd, error = 0;
    LATHE_TRY(lathe_temporary_beside(path, &name, &fd, diag));
    usual_mode(fd);
    if (!write_all(fd, parts, count) || fsync(fd))
        error = errno;
    if (close(fd) && !error)
        error = errno;
    if (!error && rename(name, path))
        error = errno;
    if (error)
        unlink(name);
    lathe_temporary_end(&name);
    return error ? fail(path, error, diag) : LATHE_OK;
}

enum lathe_status lathe_check_writable(const char *path, struct lathe_diag *diag) {
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return fail(path, S_ISDIR(st.st_mode) ? EISDIR : EEXIST, diag);
    char *name;
    int fd;
    LATHE_TRY(lathe_temporary_beside(path, &name, &fd, diag));
    close(fd);
    unlink(name);
    lathe_temporary_end(&name);
    return LATHE_OK;
}
