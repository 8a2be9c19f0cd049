/* The YAML files of this folder, built into the library (written by embed_files.c), sorted by name. */
#ifndef LATHE_EMBEDDED_TARGETS_H
#define LATHE_EMBEDDED_TARGETS_H

#include <stddef.h>

struct lathe_embedded_target {
    const char *name; /* of the file, without .yaml */
    const char *text;
    size_t size;
};
extern const struct lathe_embedded_target lathe_embedded_targets[];
extern const unsigned lathe_embedded_target_count;
#endif
