/* Reads the text that make_cases.py writes: one operator call with its expected results. */
#ifndef CASE_FILE_H
#define CASE_FILE_H

#include "tensor.h"

#include <stdio.h>

#define CASE_TENSORS 8
#define CASE_ATTRS   12

struct op_case {
    int line; /* where it starts */
    char op[64];
    double tolerance; /* relative to max(1, |expected|); 0: equal */
    int status;       /* that the call must return */
    struct lathe_tensor in[CASE_TENSORS], out[CASE_TENSORS];
    bool absent[CASE_TENSORS];
    unsigned n_in, n_out, n_attrs;
    struct lathe_attr attrs[CASE_ATTRS];
};

/* Reads the next case; false at the end of the file. Ends the process on a malformed file. */
bool case_read(FILE *file, int *line, struct op_case *out);
void case_free(struct op_case *c);
/* Element i as double, decoded here and not by the code under test. */
double case_element(const struct lathe_tensor *t, int64_t i);
#endif
