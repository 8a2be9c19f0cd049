/* Class names for --labels. */
#ifndef LATHE_LABELS_H
#define LATHE_LABELS_H

#include "lathe_status.h"

struct lathe_labels {
    char **at; /* owned */
    unsigned count;
};
void lathe_labels_free(struct lathe_labels *labels);
/* A model's config.json (its `id2label`), a JSON list of texts, or a text file with a name a line. */
LATHE_NODISCARD enum lathe_status lathe_labels_read(const char *path, struct lathe_labels *out,
                                                    struct lathe_diag *diag);
#endif
