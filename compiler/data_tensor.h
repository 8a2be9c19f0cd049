/* Tensors from data files, and files from tensors. */
#ifndef LATHE_DATA_TENSOR_H
#define LATHE_DATA_TENSOR_H

#include "tensor.h"

#include "lathe.h"

struct lathe_data_tensor {
    char *name; /* owned; "" where the file gives none; NULL in an empty one */
    enum lathe_dtype dtype;
    unsigned rank;
    int64_t dims[LATHE_MAX_RANK];
    void *data; /* owned, row-major, little-endian; not NULL even without elements */
    size_t bytes;
};
void lathe_data_tensor_free(struct lathe_data_tensor *tensor);
/* Sets name, dtype and shape and allocates zeroed elements. `what` is for messages. */
LATHE_NODISCARD enum lathe_status lathe_data_tensor_make(struct lathe_data_tensor *tensor, const char *name,
                                                         enum lathe_dtype dtype, unsigned rank, const int64_t *dims,
                                                         const char *what, struct lathe_diag *diag);
/* "f32[2,7]" into `buffer`. */
void lathe_shape_text(enum lathe_dtype dtype, unsigned rank, const int64_t *dims, char *buffer, size_t size);
/* Element i as double (i64 and u64 lose bits past 2^53). */
double lathe_element_f64(enum lathe_dtype dtype, const void *data, size_t i);
/* Sets element i from a double; integers truncate. */
void lathe_element_set(enum lathe_dtype dtype, void *data, size_t i, double value);

/* A whole regular file into memory that free() releases; LATHE_INVALID when it is missing or no regular file. */
LATHE_NODISCARD enum lathe_status lathe_read_file(const char *path, void **data, size_t *size, struct lathe_diag *diag);
#endif
