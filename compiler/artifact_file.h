/* Where an artifact is written to: memory, or a file that appears under its name only when it is whole. */
#ifndef LATHE_ARTIFACT_FILE_H
#define LATHE_ARTIFACT_FILE_H

#include "lathe_status.h"

#include <stddef.h>
#include <stdint.h>

struct lathe_artifact_file {
    const char *path; /* NULL: memory */
    char *temporary;  /* a name that must be removed on failure, or NULL: the file has none yet */
    int fd;
    uint8_t *memory; /* 64-byte aligned, for free() */
    size_t capacity;
    uint64_t size;    /* bytes written so far */
    uint64_t started; /* bytes that the disk has been told to write */
};

/* path NULL: memory. LATHE_IO naming the path: no such folder, no permission, not a regular file. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_begin(struct lathe_artifact_file *f, const char *path,
                                                            struct lathe_diag *diag);
/* Makes room for that many more bytes at once; only memory needs it. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_reserve(struct lathe_artifact_file *f, uint64_t bytes,
                                                              struct lathe_diag *diag);
/* Appends. LATHE_IO naming the path and the reason, such as a full disk. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_append(struct lathe_artifact_file *f, const void *data,
                                                             size_t bytes, struct lathe_diag *diag);
/* Replaces bytes that were written before. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_patch(struct lathe_artifact_file *f, uint64_t at,
                                                            const void *data, size_t bytes, struct lathe_diag *diag);
/* What has been written, readable until lathe_artifact_file_unview. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_view(struct lathe_artifact_file *f, const void **bytes,
                                                           struct lathe_diag *diag);
void lathe_artifact_file_unview(struct lathe_artifact_file *f, const void *bytes);
/* Syncs, gives the file its name (replacing an older file at once) and syncs the folder. */
LATHE_NODISCARD enum lathe_status lathe_artifact_file_commit(struct lathe_artifact_file *f, struct lathe_diag *diag);
/* Releases everything; what was not committed is gone. Memory that the caller took over must be set to NULL before. */
void lathe_artifact_file_end(struct lathe_artifact_file *f);
#endif
