/* What an artifact says of itself, as JSON: `inspect --json`, and what `diff` compares. */
#ifndef LATHE_ARTIFACT_JSON_H
#define LATHE_ARTIFACT_JSON_H

#include "json_text.h"
#include "plan.h"

/* The whole record; `path` as given on the command line. The compile's own report is merged in where the artifact has
 * one. NULL and LATHE_INVALID when that report is no JSON. */
LATHE_NODISCARD enum lathe_status lathe_artifact_json(const struct lathe_artifact *a, const char *path, json_t **out,
                                                      struct lathe_diag *diag);
#endif
