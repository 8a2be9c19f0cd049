/* One gzip member with a plain tar of regular files, as lathe package writes it: the same files give the same bytes
 * (with the same zlib), whoever writes them, when and where. The reader takes nothing else, so that every byte is
 * checked: the gzip header is fixed, its checksum covers the tar, and nothing follows. */
#ifndef LATHE_TAR_GZ_H
#define LATHE_TAR_GZ_H

#include "artifact_file.h"

#include <stdbool.h>

#define LATHE_TAR_NAME 100 /* bytes of a name, the final zero included */

struct lathe_tar_writer; /* tar_gz_write.c */
/* Begins in `file`, which stays the caller's and must live until the end. level: 0 (stored) to 9. */
LATHE_NODISCARD enum lathe_status lathe_tar_begin(struct lathe_artifact_file *file, int level,
                                                  struct lathe_tar_writer **out, struct lathe_diag *diag);
/* A file with mode 644, owner 0, time 0. */
LATHE_NODISCARD enum lathe_status lathe_tar_add(struct lathe_tar_writer *w, const char *name, const void *data,
                                                uint64_t bytes, struct lathe_diag *diag);
/* Writes the ends of tar and gzip. */
LATHE_NODISCARD enum lathe_status lathe_tar_finish(struct lathe_tar_writer *w, struct lathe_diag *diag);
void lathe_tar_writer_free(struct lathe_tar_writer **w);

struct lathe_tar_reader; /* tar_gz_read.c */
/* True for a regular file that starts as a gzip file does. */
bool lathe_is_gzip(const char *path);
/* All errors of the reader are LATHE_INVALID (LATHE_MSG_PACKAGE) with path and reason, but for lack of memory. */
LATHE_NODISCARD enum lathe_status lathe_tar_open(const char *path, struct lathe_tar_reader **out,
                                                 struct lathe_diag *diag);
/* The next file: *found is false at the end of the archive, which has then been checked to its last byte. *bytes is at
 * most what a gzip file of this size can hold. What the caller left unread of the file before is an error of its own.
 */
LATHE_NODISCARD enum lathe_status lathe_tar_next(struct lathe_tar_reader *r, bool *found, char name[LATHE_TAR_NAME],
                                                 uint64_t *bytes, struct lathe_diag *diag);
/* The next `bytes` bytes of the file at hand. */
LATHE_NODISCARD enum lathe_status lathe_tar_read(struct lathe_tar_reader *r, void *data, size_t bytes,
                                                 struct lathe_diag *diag);
void lathe_tar_close(struct lathe_tar_reader **r);
#endif
