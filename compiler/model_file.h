/* The model file and its external data, mapped read-only. Nothing is copied; constants of the graph borrow from here,
 * so the file outlives the graph. One thread at a time, but for the hash, which a thread of its own computes. */
#ifndef LATHE_MODEL_FILE_H
#define LATHE_MODEL_FILE_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stdint.h>

struct lathe_model_file;

/* Opens and maps `path`. LATHE_INVALID when it is missing, a folder (its .onnx files are listed), empty or no regular
 * file. `external_dir` may be NULL. */
LATHE_NODISCARD enum lathe_status lathe_model_file_open(const char *path, const char *external_dir,
                                                        struct lathe_model_file **out, struct lathe_diag *diag);
void lathe_model_file_close(struct lathe_model_file **file);
uint64_t lathe_model_file_bytes(const struct lathe_model_file *file);

const uint8_t *lathe_model_file_data(const struct lathe_model_file *file, uint64_t *size);
/* The file's name without its folder. */
const char *lathe_model_file_name(const struct lathe_model_file *file);

/* The elements of a tensor in a file of its own. `location` is as written; `offset` and `length` as written or NULL;
 * `need` are the bytes that shape and type ask for. *data stays valid until close. LATHE_INVALID names tensor, location
 * and the rule that is broken: relative, inside the model's folder as written, links at most two folders up or into
 * --external-dir, a regular file, plain numbers, range inside the file, length as needed. */
LATHE_NODISCARD enum lathe_status lathe_model_file_external(struct lathe_model_file *file, const char *tensor,
                                                            const char *location, const char *offset,
                                                            const char *length, uint64_t need, const void **data,
                                                            struct lathe_diag *diag);

/* Starts hashing the model file in a thread; without a thread it hashes at once. Call it once. */
void lathe_model_file_hash_start(struct lathe_model_file *file);
/* SHA-256 over the model file and then each external file in the order of first use, as hex. Call it when all external
 * data was asked for, after lathe_model_file_hash_start. */
LATHE_NODISCARD enum lathe_status lathe_model_file_sha256(struct lathe_model_file *file, char hex[65],
                                                          struct lathe_diag *diag);
#endif
