/* Files written whole or not at all. */
#ifndef LATHE_WRITE_FILE_H
#define LATHE_WRITE_FILE_H

#include "lathe_status.h"

struct lathe_file_part {
    const void *data;
    size_t bytes;
};

/* Writes the parts one after the other to a temporary name beside `path`, syncs and renames it. A path that exists and
 * is no regular file (/dev/stdout, a pipe) is written in place. LATHE_IO with path and reason. */
LATHE_NODISCARD enum lathe_status lathe_write_file(const char *path, const struct lathe_file_part *parts,
                                                   unsigned count, struct lathe_diag *diag);
/* LATHE_IO unless a regular file can be made at `path`: its folder exists and takes files, and `path` is not something
 * else. Nothing is left behind. */
LATHE_NODISCARD enum lathe_status lathe_check_writable(const char *path, struct lathe_diag *diag);
/* A name for a temporary file beside `path`; the file exists, is empty and belongs to the caller. A signal that ends
 * the process removes it, until lathe_temporary_end, which frees the name after the file was removed or renamed. */
LATHE_NODISCARD enum lathe_status lathe_temporary_beside(const char *path, char **name, int *fd,
                                                         struct lathe_diag *diag);
void lathe_temporary_end(char **name);
#endif
