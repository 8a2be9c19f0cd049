/* numpy's .npy files, versions 1 to 3. */
#ifndef LATHE_NPY_H
#define LATHE_NPY_H

#include "data_tensor.h"

/* Reads a file; big-endian elements are swapped, column-major ones reordered. bf16 is "<V2", as ml_dtypes writes it.
 * The tensor's name is "". */
LATHE_NODISCARD enum lathe_status lathe_npy_read(const char *path, struct lathe_data_tensor *out,
                                                 struct lathe_diag *diag);
/* Writes a file (version 1); LATHE_IO when it cannot be written, and nothing is left then. */
LATHE_NODISCARD enum lathe_status lathe_npy_write(const char *path, enum lathe_dtype dtype, unsigned rank,
                                                  const int64_t *dims, const void *data, size_t bytes,
                                                  struct lathe_diag *diag);
#endif
