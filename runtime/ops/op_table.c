/* The rows of ir_ops.def with their functions. */
#include "ops.h"

#include <string.h>

static const struct lathe_op_info rows[] = {
/* The fields of ir_ops.def first, then the functions of each row of op_functions.def beside them. */
#define OP(number, row, text, least, most, results, bits)                                                              \
    [number].op = LATHE_OP_##row, [number].name = (text), [number].min_in = (least), [number].max_in = (most),         \
    [number].n_out = (results), [number].flags = (bits),
#include "ir_ops.def"
#undef OP
#define RUN(row, text)         [LATHE_OP_##row].run = lathe_run_##text,
#define RUN_SCRATCH(row, text) RUN(row, text)[LATHE_OP_##row].scratch = lathe_scratch_##text,
#define RUN_PREPARE(row, text) RUN_SCRATCH(row, text)[LATHE_OP_##row].prepare = lathe_prepare_##text,
#include "op_functions.def"
#undef RUN
#undef RUN_SCRATCH
#undef RUN_PREPARE
};

const struct lathe_op_info *lathe_op_info(unsigned op) {
    return op < sizeof rows / sizeof *rows && rows[op].name ? &rows[op] : NULL;
}

enum lathe_op lathe_op_by_name(const char *name) {
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].name && strcmp(rows[i].name, name) == 0)
            return rows[i].op;
    return LATHE_OP_NONE;
}
