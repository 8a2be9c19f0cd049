/* Declarations of every operator function; see op_functions.def. */
#ifndef LATHE_OPS_H
#define LATHE_OPS_H

#include "tensor.h"

#define RUN(name, text) enum lathe_status lathe_run_##text(const struct lathe_op_call *call);
#define RUN_SCRATCH(name, text)                                                                                        \
    RUN(name, text)                                                                                                    \
    size_t lathe_scratch_##text(const struct lathe_op_call *call);
#define RUN_PREPARE(name, text)                                                                                        \
    RUN_SCRATCH(name, text)                                                                                            \
    void lathe_prepare_##text(const struct lathe_op_call *call);
#include "op_functions.def"
#undef RUN
#undef RUN_SCRATCH
#undef RUN_PREPARE
#endif
