/* Between the files of the target loader. */
#ifndef LATHE_TARGET_INTERNAL_H
#define LATHE_TARGET_INTERNAL_H

#include "target.h"

#include <stddef.h>

#define LATHE_TARGET_FILE_MAX 65536 /* bytes of a target file */

/* The chain of files being read through `extends`, innermost first; a file that is in it again is a cycle. */
struct lathe_target_chain {
    const char *id; /* a shipped name, or the resolved path of a file */
    const struct lathe_target_chain *up;
};

/* Reads one target file over *out, which holds its defaults; `shown` is the name for messages. */
enum lathe_status lathe_target_parse(const char *shown, const char *text, size_t size,
                                     const struct lathe_target_chain *chain, struct lathe_target *out,
                                     struct lathe_diag *diag);
/* What `name` (of --target or of `extends` in file `from`, which may be NULL) stands for. Where `from` is not NULL, the
 * errors of an unknown name are LATHE_MSG_TARGET_EXTENDS at from:line. */
enum lathe_status lathe_target_resolve(const char *name, const char *from, unsigned line,
                                       const struct lathe_target_chain *chain, struct lathe_target *out,
                                       struct lathe_diag *diag);
/* With every bit that the given ones imply. */
uint64_t lathe_target_imply(uint64_t features);
void lathe_target_defaults(struct lathe_target *out);
/* "cascadelake, generic, ..., native" */
void lathe_target_names(char *buffer, size_t size);
#endif
