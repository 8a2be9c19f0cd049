/* Shapes and movement: axes come as attributes or operands, depending on the opset; here they become one form. */
#include "onnx_import.h"

#include <string.h>

/* The axes of Squeeze, Unsqueeze and the reductions: attribute `axes`, or operand 1. True when they are given. */
static bool get_axes(struct lathe_import *c, const int64_t **axes, uint32_t *count) {
    *axes = lathe_imp_attr_ints(c, "axes", count);
    if (lathe_imp_has(c, 1)) {
        if (!lathe_imp_ints(c, c->in[1], axes, count)) {
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its axes depend on data");
            *count = 0;
        }
        return true;
    }
    return *axes != NULL;
}

/* Marks axes of a rank; an axis given twice fails. */
static bool mark_axes(struct lathe_import *c, const int64_t *axes, uint32_t count, int rank, bool marked[]) {
    for (uint32_t i = 0; i < count; i++) {
        int axis = lathe_imp_axis(c, axes[i], rank);
        if (c->status == LATHE_OK && marked[axis])
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "axis %d is given twice", axis);
        if (c->status != LATHE_OK)
            return false;
        marked[axis] = true;
    }
    return c->status == LATHE_OK;
}

LATHE_IMPORTER(reshape) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_RESHAPE, c->in, 2);
    if (lathe_imp_attr_int(c, "allowzero", 0))
        lathe_imp_int(c, n, LATHE_ATTR_ALLOW_ZERO, 1);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(squeeze) {
    const int64_t *axes;
    uint32_t count;
    bool given = get_axes(c, &axes, &count), gone[LATHE_MAX_RANK] = {false};
    int rank = lathe_imp_rank(c, c->in[0]), kept = 0;
    lathe_dim dims[LATHE_MAX_RANK];
    if (given && !mark_axes(c, axes, count, rank, gone))
        return;
    for (int i = 0; i < rank; i++) {
        int64_t size = 0;
        lathe_dim d = lathe_imp_dim(c, c->in[0], i);
        bool is_one = lathe_dim_is_const(c->g->dims, d, &size) && size == 1;
        if (given ? gone[i] : is_one) {
            if (!is_one) {
                char text[256];
                lathe_dim_print(c->g->dims, d, text, sizeof text);
                lathe_imp_node_fail(c, size ? LATHE_MSG_OPERAND : LATHE_MSG_OPERAND_UNSUPPORTED,
                                    "axis %d has size %s; only axes of size 1 can be taken out", i, text);
                return;
            }
            continue;
        }
        dims[kept++] = d;
    }
    lathe_imp_result_view(c, 0, c->in[0], kept, dims);
}

LATHE_IMPORTER(unsqueeze) {
    const int64_t *axes;
    uint32_t count;
    if (!get_axes(c, &axes, &count)) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has no axes");
        return;
    }
    int rank = lathe_imp_rank(c, c->in[0]), from = 0;
    if (count > LATHE_MAX_RANK || rank + (int)count > LATHE_MAX_RANK) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its result has rank %u; at most %d is supported",
                            (unsigned)rank + count, LATHE_MAX_RANK);
        return;
    }
    bool added[LATHE_MAX_RANK] = {false};
    lathe_dim dims[LATHE_MAX_RANK];
    rank += (int)count;
    if (!mark_axes(c, axes, count, rank, added))
        return;
    for (int i = 0; i < rank; i++)
        dims[i] = added[i] ? lathe_imp_number(c, 1) : lathe_imp_dim(c, c->in[0], from++);
    lathe_imp_result_view(c, 0, c->in[0], rank, dims);
}

static lathe_dim product(struct lathe_import *c, lathe_value_id v, int begin, int end) {
    lathe_dim d = lathe_imp_number(c, 1);
    for (int i = begin; i < end; i++)
        d = lathe_dim_mul(c->g->dims, d, lathe_imp_dim(c, v, i));
    if (d == LATHE_DIM_NONE)
        lathe_imp_node_fail(c, LATHE_MSG_SIZE_OVERFLOW, "a product of its sizes does not fit 63 bits");
    return d;
}

LATHE_IMPORTER(flatten) {
    int rank = lathe_imp_rank(c, c->in[0]);
    int64_t axis = lathe_imp_attr_int(c, "axis", 1);
    if (axis < -(int64_t)rank || axis > rank) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "axis %lld is outside -%d to %d", (long long)axis, rank, rank);
        return;
    }
    int at = (int)(axis < 0 ? axis + rank : axis);
    const lathe_dim dims[2] = {product(c, c->in[0], 0, at), product(c, c->in[0], at, rank)};
    lathe_imp_result_view(c, 0, c->in[0], 2, dims);
}

LATHE_IMPORTER(transpose) {
    uint32_t count, rank = (uint32_t)lathe_imp_rank(c, c->in[0]);
    const int64_t *perm = lathe_imp_attr_ints(c, "perm", &count);
    int64_t list[LATHE_MAX_RANK];
    bool seen[LATHE_MAX_RANK] = {false};
    if (perm && count != rank) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "perm has %u entries, but its operand has rank %u", count, rank);
        return;
    }
    for (uint32_t i = 0; i < rank; i++)
        list[i] = perm ? perm[i] : (int64_t)(rank - 1 - i);
    if (mark_axes(c, list, rank, (int)rank, seen)) {
        lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_TRANSPOSE, c->in, 1);
        lathe_imp_set_ints(c, n, LATHE_ATTR_PERM, list, rank);
        lathe_imp_end(c, n);
    }
}

LATHE_IMPORTER(concat) {
    if (!lathe_imp_has_attr(c, "axis"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has no attribute 'axis'");
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 0), lathe_imp_rank(c, c->in[0]));
    for (uint32_t i = 0; i < c->n_in; i++)
        if (!lathe_imp_has(c, i))
            lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand %u is absent", i);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_CONCAT, c->in, c->n_in);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_end(c, n);
}

/* ---- slices */
LATHE_IMPORTER(slice1) {
    uint32_t n_starts, n_ends, n_axes;
    const int64_t *starts = lathe_imp_attr_ints(c, "starts", &n_starts);
    const int64_t *ends = lathe_imp_attr_ints(c, "ends", &n_ends);
    const int64_t *axes = lathe_imp_attr_ints(c, "axes", &n_axes);
    if (!starts || !ends || n_starts != n_ends || (axes && n_axes != n_starts)) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "starts, ends and axes must be lists of one length");
        return;
    }
    lathe_value_id in[4] = {c->in[0], lathe_imp_const_ints(c, starts, n_starts), lathe_imp_const_ints(c, ends, n_ends),
                            axes ? lathe_imp_const_ints(c, axes, n_axes) : LATHE_NONE};
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_SLICE, in, axes ? 4 : 3));
}

LATHE_IMPORTER(slice10) {
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_SLICE, c->in, c->n_in));
}

static void slice_result(struct lathe_import *c, uint32_t index, int axis, lathe_dim start, lathe_dim end) {
    const int64_t axes = axis, step = 1;
    lathe_node_id n = lathe_imp_result(c, index, LATHE_OP_SLICE, c->in, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, &axes, 1);
    lathe_imp_set_dims(c, n, LATHE_ATTR_STARTS, &start, 1);
    lathe_imp_set_dims(c, n, LATHE_ATTR_ENDS, &end, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_STEPS, &step, 1);
    lathe_imp_end(c, n);
}

/* Sizes by attribute (to opset 12) or operand, or equal parts; from opset 18 on the last part may be smaller. */
LATHE_IMPORTER(split) {
    struct lathe_dims *t = c->g->dims;
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 0), lathe_imp_rank(c, c->in[0]));
    lathe_dim size = lathe_imp_dim(c, c->in[0], axis), at = lathe_imp_number(c, 0);
    uint32_t count = 0;
    const int64_t *given = lathe_imp_attr_ints(c, "split", &count);
    const lathe_dim *sizes = NULL;
    if (lathe_imp_has(c, 1) && !lathe_imp_dims(c, c->in[1], &sizes, &count)) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "the sizes of its parts depend on data");
        return;
    }
    int64_t parts = lathe_imp_attr_int(c, "num_outputs", c->n_out), known, chunk = 0;
    if ((given || sizes) ? count != c->n_out : parts != c->n_out || parts < 1) {
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has %u outputs, but says %lld", c->n_out,
                            (long long)(given || sizes ? count : parts));
        return;
    }
    lathe_dim part = LATHE_DIM_NONE;
    if (!given && !sizes && c->status == LATHE_OK) {
        if (lathe_dim_is_const(t, size, &known)) {
            chunk = (known + parts - 1) / parts;
            if (known % parts && c->version < 18) {
                lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "axis %d has size %lld, which %lld outputs do not divide",
                                    axis, (long long)known, (long long)parts);
                return;
            }
        } else {
            part = lathe_dim_div_exact(t, size, lathe_imp_number(c, parts));
            if (part == LATHE_DIM_NONE) {
                char text[256];
                lathe_dim_print(t, size, text, sizeof text);
                lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED,
                                    "axis %d has size %s, which cannot be shown to be divisible by %lld", axis, text,
                                    (long long)parts);
                return;
            }
        }
    }
    for (uint32_t i = 0; i < c->n_out && c->status == LATHE_OK; i++) {
        lathe_dim step = given                    ? lathe_imp_number(c, given[i])
                         : sizes                  ? sizes[i]
                         : part != LATHE_DIM_NONE ? part
                                                  : lathe_imp_number(c, i + 1 < c->n_out ? chunk : known - chunk * i);
        int64_t value;
        if (lathe_dim_is_const(t, step, &value) && value < 0) {
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "part %u has size %lld", i, (long long)value);
            return;
        }
        lathe_dim end = lathe_dim_add(t, at, step);
        if (lathe_imp_wants(c, i))
            slice_result(c, i, axis, at, end);
        at = end;
    }
    if (c->status == LATHE_OK && lathe_dim_proved_ne(t, at, size)) {
        char have[200], want[200];
        lathe_dim_print(t, at, have, sizeof have);
        lathe_dim_print(t, size, want, sizeof want);
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "its parts sum to %s, but axis %d has size %s", have, axis, want);
    }
}

/* ---- gathering and scattering */
LATHE_IMPORTER(gather) {
    bool by_element = !strcmp(c->node->op_type, "GatherElements");
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 0), lathe_imp_rank(c, c->in[0]));
    lathe_node_id n = lathe_imp_result(c, 0, by_element ? LATHE_OP_GATHER_ELEMENTS : LATHE_OP_GATHER, c->in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(gather_nd) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_GATHER_ND, c->in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_BATCH_DIMS, lathe_imp_attr_int(c, "batch_dims", 0));
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(scatter) {
    static const char *const reductions[] = {"none", "add", "mul", "max", "min"};
    bool by_element = strcmp(c->node->op_type, "ScatterND") != 0;
    const char *name = lathe_imp_attr_string(c, "reduction", "none");
    int reduction = 0;
    while (reduction < 5 && strcmp(name, reductions[reduction]))
        reduction++;
    if (reduction == 5)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "reduction is '%s'; it may be none, add, mul, min or max", name);
    lathe_node_id n = lathe_imp_result(c, 0, by_element ? LATHE_OP_SCATTER_ELEMENTS : LATHE_OP_SCATTER_ND, c->in, 3);
    if (by_element)
        lathe_imp_int(c, n, LATHE_ATTR_AXIS,
                      lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 0), lathe_imp_rank(c, c->in[0])));
    lathe_imp_int(c, n, LATHE_ATTR_REDUCTION, reduction);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(compress) {
    lathe_value_id x = c->in[0];
    int axis = 0;
    if (lathe_imp_has_attr(c, "axis")) {
        axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", 0), lathe_imp_rank(c, x));
    } else {
        const lathe_dim all = product(c, x, 0, lathe_imp_rank(c, x));
        x = lathe_imp_view(c, x, 1, &all);
    }
    const lathe_value_id in[2] = {x, c->in[1]};
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_COMPRESS, in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(reverse_sequence) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_REVERSE_SEQUENCE, c->in, 2);
    int64_t time = lathe_imp_attr_int(c, "time_axis", 0), batch = lathe_imp_attr_int(c, "batch_axis", 1);
    if (time < 0 || time > 1 || batch != 1 - time)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "time_axis and batch_axis must be 0 and 1 or 1 and 0");
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, time);
    lathe_imp_int(c, n, LATHE_ATTR_BATCH_DIMS, batch);
    lathe_imp_end(c, n);
}

/* ---- shapes as values, filled tensors */
LATHE_IMPORTER(shape) {
    int rank = lathe_imp_rank(c, c->in[0]);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_SHAPE, c->in, 1);
    if (lathe_imp_has_attr(c, "start") || lathe_imp_has_attr(c, "end")) {
        int64_t start = lathe_imp_attr_int(c, "start", 0), end = lathe_imp_attr_int(c, "end", rank);
        start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
        end = end < -rank ? 0 : end < 0 ? end + rank : end > rank ? rank : end;
        if (end < start)
            end = start;
        lathe_imp_set_ints(c, n, LATHE_ATTR_STARTS, &start, 1);
        lathe_imp_set_ints(c, n, LATHE_ATTR_ENDS, &end, 1);
    }
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(size) {
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_SIZE, c->in, 1));
}

LATHE_IMPORTER(expand) {
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_EXPAND, c->in, 2));
}

LATHE_IMPORTER(tile) {
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_TILE, c->in, 2));
}

LATHE_IMPORTER(range) {
    int64_t stash = lathe_imp_attr_int(c, "stash_type", 1);
    enum lathe_dtype dtype = lathe_imp_dtype(c, c->in[0]);
    if (stash != 1 || (c->version >= 27 && (dtype == LATHE_F16 || dtype == LATHE_BF16)))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE_UNSUPPORTED,
                            "16-bit floats and stash types other than 1 are not supported");
    lathe_imp_end(c, lathe_imp_result(c, 0, LATHE_OP_RANGE, c->in, 3));
}

LATHE_IMPORTER(pad) {
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    const char *name = lathe_imp_attr_string(c, "mode", "constant");
    int mode = 0;
    while (mode < 4 && strcmp(name, modes[mode]))
        mode++;
    if (mode == 4)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "mode is '%s'; it may be constant, reflect, edge or wrap", name);
    lathe_value_id in[4] = {c->in[0], lathe_imp_in(c, 1), lathe_imp_in(c, 2), lathe_imp_in(c, 3)};
    if (c->version < 11) {
        uint32_t count;
        const int64_t *pads = lathe_imp_attr_ints(c, "pads", &count);
        if (!pads)
            lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "it has no attribute 'pads'");
        in[1] = lathe_imp_const_ints(c, pads, count);
        in[2] = lathe_imp_scalar(c, lathe_imp_dtype(c, in[0]), lathe_imp_attr_float(c, "value", 0));
    } else if (in[1] == LATHE_NONE) {
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand 1 (pads) is absent");
    }
    uint32_t count = in[3] != LATHE_NONE ? 4 : in[2] != LATHE_NONE ? 3 : 2;
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_PAD, in, count);
    lathe_imp_int(c, n, LATHE_ATTR_MODE, mode);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(one_hot) {
    int rank = lathe_imp_rank(c, c->in[0]) + 1;
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", -1), rank);
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_ONE_HOT, c->in, 3);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(cumsum) {
    const int64_t *axis;
    uint32_t count;
    if (!lathe_imp_ints(c, c->in[1], &axis, &count) || count != 1) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "its axis depends on data");
        return;
    }
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_CUMSUM, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, lathe_imp_axis(c, axis[0], lathe_imp_rank(c, c->in[0])));
    lathe_imp_int(c, n, LATHE_ATTR_EXCLUSIVE, lathe_imp_attr_int(c, "exclusive", 0) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_REVERSE, lathe_imp_attr_int(c, "reverse", 0) != 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(trilu) {
    lathe_node_id n = lathe_imp_result(c, 0, LATHE_OP_TRILU, c->in, c->n_in);
    lathe_imp_int(c, n, LATHE_ATTR_UPPER, lathe_imp_attr_int(c, "upper", 1) != 0);
    lathe_imp_end(c, n);
}

static void import_depth(struct lathe_import *c, enum lathe_op op, bool crd) {
    lathe_node_id n = lathe_imp_result(c, 0, op, c->in, 1);
    lathe_imp_int(c, n, LATHE_ATTR_BLOCK_SIZE, lathe_imp_attr_int(c, "blocksize", 0));
    lathe_imp_int(c, n, LATHE_ATTR_MODE, crd);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(depth_to_space) {
    const char *mode = lathe_imp_attr_string(c, "mode", "DCR");
    if (strcmp(mode, "DCR") && strcmp(mode, "CRD"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "mode is '%s'; it may be DCR or CRD", mode);
    import_depth(c, LATHE_OP_DEPTH_TO_SPACE, !strcmp(mode, "CRD"));
}

/* Mode CRD: the channel stays outermost in the new channels. */
static void space_to_depth_crd(struct lathe_import *c, int64_t block) {
    static const int64_t perm[6] = {0, 1, 3, 5, 2, 4};
    struct lathe_dims *t = c->g->dims;
    if (lathe_imp_rank(c, c->in[0]) != 4 || block < 1) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "it needs an operand of rank 4 and a blocksize of at least 1");
        return;
    }
    lathe_dim n = lathe_imp_dim(c, c->in[0], 0), channels = lathe_imp_dim(c, c->in[0], 1),
              b = lathe_imp_number(c, block);
    lathe_dim h = lathe_dim_div_exact(t, lathe_imp_dim(c, c->in[0], 2), b);
    lathe_dim w = lathe_dim_div_exact(t, lathe_imp_dim(c, c->in[0], 3), b);
    if (h == LATHE_DIM_NONE || w == LATHE_DIM_NONE) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND, "blocksize %lld does not divide its height and width",
                            (long long)block);
        return;
    }
    const lathe_dim six[6] = {n, channels, h, b, w, b};
    const lathe_dim four[4] = {n, lathe_dim_mul(t, channels, lathe_dim_mul(t, b, b)), h, w};
    lathe_imp_result_view(c, 0, lathe_imp_transpose(c, lathe_imp_view(c, c->in[0], 6, six), perm, 6), 4, four);
}

LATHE_IMPORTER(space_to_depth) {
    const char *mode = lathe_imp_attr_string(c, "mode", "DCR");
    if (strcmp(mode, "DCR") && strcmp(mode, "CRD"))
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "mode is '%s'; it may be DCR or CRD", mode);
    if (!strcmp(mode, "CRD"))
        space_to_depth_crd(c, lathe_imp_attr_int(c, "blocksize", 0));
    else
        import_depth(c, LATHE_OP_SPACE_TO_DEPTH, false);
}

/* ---- reductions */
static enum lathe_op reduction_named(const char *name) {
    static const struct {
        const char *onnx;
        enum lathe_op op;
    } names[] = {
        {"ReduceSum", LATHE_OP_REDUCE_SUM},        {"ReduceMean", LATHE_OP_REDUCE_MEAN},
        {"ReduceMax", LATHE_OP_REDUCE_MAX},        {"ReduceMin", LATHE_OP_REDUCE_MIN},
        {"ReduceProd", LATHE_OP_REDUCE_PROD},      {"ReduceL1", LATHE_OP_REDUCE_L1},
        {"ReduceL2", LATHE_OP_REDUCE_L2},          {"ReduceSumSquare", LATHE_OP_REDUCE_SUM_SQUARE},
        {"ReduceLogSum", LATHE_OP_REDUCE_LOG_SUM}, {"ReduceLogSumExp", LATHE_OP_REDUCE_LOG_SUM_EXP},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].onnx, name))
            return names[i].op;
    return LATHE_OP_REDUCE_SUM;
}

/* Over no axes: a sum of one element. The steps beside the sum (log, square, ...) stay. */
static void reduce_nothing(struct lathe_import *c, enum lathe_op op, lathe_value_id x, int rank) {
    if (op == LATHE_OP_REDUCE_SUM || op == LATHE_OP_REDUCE_MEAN || op == LATHE_OP_REDUCE_MAX ||
        op == LATHE_OP_REDUCE_MIN || op == LATHE_OP_REDUCE_PROD) {
        lathe_imp_bind(c, 0, x);
        return;
    }
    lathe_dim dims[LATHE_MAX_RANK + 1];
    for (int i = 0; i < rank; i++)
        dims[i] = lathe_imp_dim(c, x, i);
    dims[rank] = lathe_imp_number(c, 1);
    x = lathe_imp_view(c, x, rank + 1, dims);
    const int64_t axis = rank;
    lathe_node_id n = lathe_imp_result(c, 0, op, &x, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, &axis, 1);
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(reduce) {
    const int64_t *axes;
    uint32_t count, n_list = 0;
    int64_t list[LATHE_MAX_RANK];
    bool marked[LATHE_MAX_RANK] = {false};
    lathe_value_id x = c->in[0];
    int rank = lathe_imp_rank(c, x);
    bool given = get_axes(c, &axes, &count) && count;
    bool noop = lathe_imp_attr_int(c, "noop_with_empty_axes", 0) != 0;
    int64_t keep = lathe_imp_attr_int(c, "keepdims", 1) != 0;
    enum lathe_op op = reduction_named(c->node->op_type);
    if (!given && noop) {
        reduce_nothing(c, op, x, rank);
        return;
    }
    if (given && !mark_axes(c, axes, count, rank, marked))
        return;
    if (!rank) {
        /* A scalar: over one element of an axis of its own. */
        const lathe_dim one = lathe_imp_number(c, 1);
        x = lathe_imp_view(c, x, 1, &one);
        rank = 1;
        keep = 0;
    }
    for (int i = 0; i < rank; i++)
        if (!given || marked[i])
            list[n_list++] = i;
    lathe_node_id n = lathe_imp_result(c, 0, op, &x, 1);
    lathe_imp_set_ints(c, n, LATHE_ATTR_AXES, list, n_list);
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, keep);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(arg_reduce) {
    bool max = !strcmp(c->node->op_type, "ArgMax");
    lathe_value_id x = c->in[0];
    int rank = lathe_imp_rank(c, x);
    int64_t keep = lathe_imp_attr_int(c, "keepdims", 1) != 0, axis = lathe_imp_attr_int(c, "axis", 0);
    if (!rank && c->status == LATHE_OK) {
        const lathe_dim one = lathe_imp_number(c, 1);
        x = lathe_imp_view(c, x, 1, &one);
        rank = 1;
        keep = 0;
    }
    lathe_node_id n = lathe_imp_result(c, 0, max ? LATHE_OP_ARG_MAX : LATHE_OP_ARG_MIN, &x, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, lathe_imp_axis(c, axis, rank));
    lathe_imp_int(c, n, LATHE_ATTR_KEEPDIMS, keep);
    lathe_imp_int(c, n, LATHE_ATTR_SELECT_LAST, lathe_imp_attr_int(c, "select_last_index", 0) != 0);
    lathe_imp_end(c, n);
}

LATHE_IMPORTER(top_k) {
    lathe_value_id in[2] = {c->in[0], lathe_imp_in(c, 1)};
    if (c->version < 10) {
        const int64_t k = lathe_imp_attr_int(c, "k", -1);
        in[1] = lathe_imp_const_ints(c, &k, 1);
    }
    if (in[1] == LATHE_NONE)
        lathe_imp_node_fail(c, LATHE_MSG_MODEL_STRUCTURE, "operand 1 (K) is absent");
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", -1), lathe_imp_rank(c, in[0]));
    lathe_node_id n = lathe_imp_results(c, 2, LATHE_OP_TOP_K, in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
    lathe_imp_int(c, n, LATHE_ATTR_LARGEST, lathe_imp_attr_int(c, "largest", 1) != 0);
    lathe_imp_int(c, n, LATHE_ATTR_SORTED, lathe_imp_attr_int(c, "sorted", 1) != 0);
    lathe_imp_end(c, n);
}

/* Up to opset 12 all axes from `axis` on are one; from 13 on it is that axis alone. */
LATHE_IMPORTER(softmax) {
    const char *name = c->node->op_type;
    enum lathe_op op = !strcmp(name, "Softmax")      ? LATHE_OP_SOFTMAX
                       : !strcmp(name, "LogSoftmax") ? LATHE_OP_LOG_SOFTMAX
                                                     : LATHE_OP_HARDMAX;
    lathe_value_id x = c->in[0];
    int rank = lathe_imp_rank(c, x);
    bool flat = c->version < 13;
    int axis = lathe_imp_axis(c, lathe_imp_attr_int(c, "axis", flat ? 1 : -1), rank);
    if (!flat || axis == rank - 1) {
        lathe_node_id n = lathe_imp_result(c, 0, op, &x, 1);
        lathe_imp_int(c, n, LATHE_ATTR_AXIS, axis);
        lathe_imp_end(c, n);
        return;
    }
    lathe_dim dims[LATHE_MAX_RANK];
    for (int i = 0; i < rank && c->status == LATHE_OK; i++)
        dims[i] = lathe_imp_dim(c, x, i);
    const lathe_dim two[2] = {product(c, x, 0, axis), product(c, x, axis, rank)};
    lathe_value_id matrix = lathe_imp_view(c, x, 2, two);
    lathe_node_id n = lathe_imp_node(c, op, &matrix, 1);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, 1);
    lathe_imp_result_view(c, 0, lathe_imp_end(c, n), rank, dims);
}
