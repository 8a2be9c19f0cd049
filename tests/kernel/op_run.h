/* Runs one operator as the threads of a team do, one after the other. */
#ifndef LATHE_OP_RUN_H
#define LATHE_OP_RUN_H

#include "kernel_test.h"

static inline struct lathe_attr attr_i(enum lathe_attr_key key, int64_t value) {
    return (struct lathe_attr){.key = key, .type = LATHE_ATTR_INT, .i = value};
}

/* Scratch is full of large numbers, and guarded. */
static inline void run_op(enum lathe_status (*run)(const struct lathe_op_call *),
                          size_t (*scratch)(const struct lathe_op_call *), const struct lathe_kernels *kernels,
                          const struct lathe_attr *attrs, uint32_t attr_count, const struct lathe_tensor *const *in,
                          unsigned n_in, struct lathe_tensor *out, unsigned threads) {
    struct lathe_op_call call = {
        .attrs = {attrs, attr_count}, .in = in, .out = &out, .n_in = n_in, .n_out = 1, .kernels = kernels};
    size_t n = (scratch(&call) + sizeof(float) - 1) / sizeof(float);
    for (unsigned i = 0; i < threads; i++) {
        float *memory = guarded_floats(n);
        memset(memory, 0x7f, n * sizeof(float));
        call.scratch = memory;
        call.team = (struct lathe_team){.index = i, .count = threads};
        assert_int_equal(run(&call), LATHE_OK);
        guarded_free(memory, n);
    }
}
#endif
