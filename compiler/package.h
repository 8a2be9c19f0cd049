/* Packages: what a server needs of a model, in one file that lathe package writes and the other commands open.
 *
 * A package is a tar.gz (tar_gz.h) of manifest.json first, then model.lathe, tokenizer.json and labels.json, the last
 * two where there are any. labels.json is a JSON list of texts, tokenizer.json the given file, byte for byte.
 * manifest.json is a JSON object with these keys:
 * - format: "lathe-package 1"
 * - writer: "lathe 0.1.0"
 * - source_sha256: of the source model and its external data, from the artifact
 * - target, precision, max_batch, max_length, inputs, outputs, and buckets of static shapes: as `lathe inspect --json`
 * - files: [{"name", "bytes", "sha256"}] of every other file, in their order */
#ifndef LATHE_PACKAGE_H
#define LATHE_PACKAGE_H

#include "json_text.h"
#include "lathe.h"

#define LATHE_PACKAGE_LEVEL 1 /* weights hardly get smaller with a higher one */

struct lathe_package_options {
    const char *artifact;  /* path */
    const char *tokenizer; /* path of a tokenizer.json, NULL: none */
    const char *labels;    /* path of labels as of lathe_labels_read; NULL: those of the artifact, if any */
    int level;             /* of deflate, 0 to 9 */
};
/* Verifies the artifact and writes the package whole or not at all. *manifest is the caller's. LATHE_INVALID: a file
 * that is not what it should be, or labels that contradict the artifact's. */
LATHE_NODISCARD enum lathe_status lathe_package_write(const char *path, const struct lathe_package_options *options,
                                                      json_t **manifest, struct lathe_diag *diag);

/* An artifact from its own file or from a package, which is told from the file's first bytes. */
struct lathe_model {
    struct lathe_artifact *artifact;
    json_t *manifest; /* of the package, NULL: none */
    void *memory;     /* the artifact out of the package */
    size_t mapped;
};
/* As lathe_artifact_open. A package is read to its last byte, and each file compared with its sha256 in the manifest:
 * any damage is LATHE_INVALID (LATHE_MSG_PACKAGE). The artifact is unpacked into memory of this process. */
LATHE_NODISCARD enum lathe_status lathe_model_open(const char *path, const struct lathe_artifact_options *options,
                                                   struct lathe_model *out, struct lathe_diag *diag);
void lathe_model_close(struct lathe_model *model);
#endif
