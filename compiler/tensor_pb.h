/* input_N.pb and output_N.pb of the ONNX backend-test layout: one TensorProto a file. */
#ifndef LATHE_TENSOR_PB_H
#define LATHE_TENSOR_PB_H

#include "data_tensor.h"

/* Elements in raw_data or in the typed fields; strings and external data are refused. */
LATHE_NODISCARD enum lathe_status lathe_tensor_pb_read(const char *path, struct lathe_data_tensor *out,
                                                       struct lathe_diag *diag);

/* A data set: the inputs and outputs of a folder, in the order of their numbers. */
struct lathe_data_set {
    char *path; /* owned */
    struct lathe_data_tensor *inputs, *outputs;
    unsigned input_count, output_count;
};
void lathe_data_set_free(struct lathe_data_set *set);
/* LATHE_INVALID when there is neither an input nor an output, or a file is bad. */
LATHE_NODISCARD enum lathe_status lathe_data_set_read(const char *folder, struct lathe_data_set *out,
                                                      struct lathe_diag *diag);
/* The data sets at `folder`: itself, or its sub-folders that are one, sorted by name with numbers in order. *paths and
 * its entries are the caller's (lathe_data_set_list_free). LATHE_INVALID when there is none. */
LATHE_NODISCARD enum lathe_status lathe_data_set_list(const char *folder, char ***paths, unsigned *count,
                                                      struct lathe_diag *diag);
void lathe_data_set_list_free(char **paths, unsigned count);
#endif
