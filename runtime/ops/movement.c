/* Operators that only move elements: transpose, slices, concatenation, padding. They work on element sizes; the dtype
 * does not matter. Shape operands are gone: the dims of the output say what to produce. */
#include "op_util.h"
#include "ops.h"

static struct lathe_strided strided(const struct lathe_tensor *in, struct lathe_tensor *out) {
    return (struct lathe_strided){.bytes = lathe_dtype_bytes(out->dtype), .in = in->data, .out = out->data};
}

static bool same_bytes(const struct lathe_tensor *in, const struct lathe_tensor *out) {
    return lathe_dtype_bytes(in->dtype) == lathe_dtype_bytes(out->dtype) && lathe_dtype_bytes(in->dtype) != 0;
}

enum lathe_status lathe_run_transpose(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    uint32_t count;
    const int64_t *perm = lathe_attr_ints(&call->attrs, LATHE_ATTR_PERM, &count);
    if (!same_bytes(x, y) || x->rank != y->rank || (perm && count != x->rank))
        return lathe_bad_shape(call, "transpose");
    struct lathe_strided s = strided(x, y);
    int64_t strides[LATHE_MAX_RANK];
    lathe_strides_of(x, strides);
    s.rank = y->rank;
    for (unsigned i = 0; i < y->rank; i++) {
        int64_t from = perm ? perm[i] : (int64_t)(x->rank - 1 - i);
        if (from < 0 || from >= x->rank || x->dims[from] != y->dims[i])
            return lathe_bad_shape(call, "transpose");
        s.dims[i] = y->dims[i];
        s.strides[i] = strides[from];
    }
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

enum lathe_status lathe_run_expand(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    struct lathe_broadcast axes;
    if (!same_bytes(x, y) || !lathe_broadcast_init(&axes, y, &x, 1))
        return lathe_bad_shape(call, "expand");
    struct lathe_strided s = strided(x, y);
    s.rank = axes.rank;
    for (unsigned i = 0; i < axes.rank; i++) {
        s.dims[i] = axes.dims[i];
        s.strides[i] = axes.strides[0][i];
    }
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

/* Each axis becomes two: the copies, which do not move in the input, and the axis itself. */
enum lathe_status lathe_run_tile(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    if (!same_bytes(x, y) || x->rank != y->rank)
        return lathe_bad_shape(call, "tile");
    struct lathe_strided s = strided(x, y);
    int64_t strides[LATHE_MAX_RANK];
    lathe_strides_of(x, strides);
    for (unsigned i = 0; i < y->rank; i++) {
        if (x->dims[i] == 0 ? y->dims[i] != 0 : y->dims[i] % x->dims[i] != 0)
            return lathe_bad_shape(call, "tile");
        s.dims[s.rank] = x->dims[i] ? y->dims[i] / x->dims[i] : 0;
        s.strides[s.rank++] = 0;
        s.dims[s.rank] = x->dims[i];
        s.strides[s.rank++] = strides[i];
    }
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

enum lathe_status lathe_run_slice(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    uint32_t n_axes, n_starts, n_steps;
    const int64_t *axes = lathe_attr_ints(&call->attrs, LATHE_ATTR_AXES, &n_axes);
    const int64_t *starts = lathe_attr_ints(&call->attrs, LATHE_ATTR_STARTS, &n_starts);
    const int64_t *steps = lathe_attr_ints(&call->attrs, LATHE_ATTR_STEPS, &n_steps);
    if (!same_bytes(x, y) || x->rank != y->rank || n_starts != n_axes || (steps && n_steps != n_axes))
        return lathe_bad_shape(call, "slice");
    if (lathe_tensor_count(y) == 0)
        return LATHE_OK;
    struct lathe_strided s = strided(x, y);
    int64_t strides[LATHE_MAX_RANK], offset = 0;
    lathe_strides_of(x, strides);
    s.rank = y->rank;
    for (unsigned i = 0; i < y->rank; i++) {
        int64_t start = 0, step = 1;
        for (uint32_t k = 0; k < n_axes; k++)
            if (axes[k] == i) {
                start = starts[k];
                step = steps ? steps[k] : 1;
            }
        int64_t last, span;
        if (!lathe_mul_i64(y->dims[i] - 1, step, &span) || !lathe_add_i64(start, span, &last) || start < 0 ||
            start >= x->dims[i] || last < 0 || last >= x->dims[i])
            return lathe_bad_shape(call, "slice");
        s.dims[i] = y->dims[i];
        s.strides[i] = strides[i] * step;
        offset += start * strides[i];
    }
    s.in += offset * (int64_t)s.bytes;
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

/* Rows of `row` bytes, `count` of them, `out_step` bytes apart in the output and contiguous in the input; the team
 * shares the bytes. */
static void copy_rows(const struct lathe_team *team, uint8_t *out, int64_t out_step, const uint8_t *in, int64_t row,
                      int64_t count) {
    int64_t begin, end;
    lathe_team_split(team, row * count, 4096, &begin, &end);
    while (begin < end) {
        int64_t r = begin / row, at = begin % row, n = row - at;
        if (n > end - begin)
            n = end - begin;
        memcpy(out + r * out_step + at, in + begin, (size_t)n);
        begin += n;
    }
}

enum lathe_status lathe_run_concat(const struct lathe_op_call *call) {
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0), bytes = (int64_t)lathe_dtype_bytes(y->dtype);
    if (axis < 0 || axis >= y->rank)
        return lathe_bad_shape(call, "concat");
    int64_t outer = lathe_count_range(y, 0, (unsigned)axis), at = 0, filled = 0;
    int64_t inner = lathe_count_range(y, (unsigned)axis + 1, y->rank) * bytes, step = y->dims[axis] * inner;
    for (unsigned i = 0; i < call->n_in; i++) {
        const struct lathe_tensor *x = call->in[i];
        if (!x || !same_bytes(x, y) || x->rank != y->rank)
            return lathe_bad_shape(call, "concat");
        for (unsigned k = 0; k < y->rank; k++)
            if (k != axis && x->dims[k] != y->dims[k])
                return lathe_bad_shape(call, "concat");
        filled += x->dims[axis];
        if (filled > y->dims[axis])
            return lathe_bad_shape(call, "concat");
        int64_t row = x->dims[axis] * inner;
        if (row > 0)
            copy_rows(&call->team, (uint8_t *)y->data + at, step, x->data, row, outer);
        at += row;
    }
    return filled == y->dims[axis] ? LATHE_OK : lathe_bad_shape(call, "concat");
}

/* ---- pad */

enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

/* The input position behind position i - before of the axis, -1 for the constant. */
static int64_t pad_source(enum pad_mode mode, int64_t i, int64_t size) {
    if (i >= 0 && i < size)
        return i;
    if (size == 0)
        return -1;
    switch (mode) {
    case PAD_EDGE:
        return i < 0 ? 0 : size - 1;
    case PAD_REFLECT: {
        int64_t period = 2 * (size - 1);
        if (period == 0)
            return 0;
        i = ((i % period) + period) % period;
        return i < size ? i : period - i;
    }
    case PAD_WRAP:
        return ((i % size) + size) % size;
    default:
        return -1;
    }
}

static void pad_row(uint8_t *out, const uint8_t *in, const uint8_t *value, enum pad_mode mode, int64_t before,
                    int64_t n, int64_t size, size_t bytes) {
    int64_t first = before < 0 ? 0 : before < n ? before : n;
    int64_t last = before + size < first ? first : before + size > n ? n : before + size;
    memcpy(out + (size_t)first * bytes, in + (first - before) * (int64_t)bytes, (size_t)(last - first) * bytes);
    if (mode == PAD_CONSTANT) {
        lathe_fill(out, first, bytes, value);
        lathe_fill(out + (size_t)last * bytes, n - last, bytes, value);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (i < first || i >= last)
            memcpy(out + (size_t)i * bytes, in + (size_t)pad_source(mode, i - before, size) * bytes, bytes);
}

enum lathe_status lathe_run_pad(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *fill = lathe_operand(call, 1);
    struct lathe_tensor *y = call->out[0];
    uint32_t count;
    const int64_t *pads = lathe_attr_ints(&call->attrs, LATHE_ATTR_PADS, &count);
    enum pad_mode mode = (enum pad_mode)lathe_attr_int(&call->attrs, LATHE_ATTR_MODE, 0);
    if (!same_bytes(x, y) || x->rank != y->rank || count != 2 * x->rank)
        return lathe_bad_shape(call, "pad");
    size_t bytes = lathe_dtype_bytes(y->dtype);
    uint64_t value = 0;
    if (fill && fill->dtype == y->dtype && lathe_tensor_count(fill) >= 1)
        memcpy(&value, fill->data, bytes);
    int64_t total = lathe_tensor_count(y);
    if (total == 0)
        return LATHE_OK;
    if (x->rank == 0) {
        if (call->team.index == 0)
            memcpy(y->data, x->data, bytes);
        return LATHE_OK;
    }
    unsigned last = y->rank - 1; /* past which axes have one element: rows would be of one */
    while (last > 0 && x->dims[last] == 1 && y->dims[last] == 1 && pads[last] == 0)
        last--;
    int64_t strides[LATHE_MAX_RANK], n = y->dims[last], begin, end;
    lathe_strides_of(x, strides);
    for (unsigned i = 0; i < y->rank; i++)
        if (mode != PAD_CONSTANT && x->dims[i] == 0)
            return lathe_bad_shape(call, "pad");
    lathe_team_split(&call->team, total / n, 1 + LATHE_GRAIN / n, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row, from = 0;
        bool constant = x->dims[last] == 0;
        for (unsigned i = last; i-- > 0;) {
            int64_t source = pad_source(mode, rest % y->dims[i] - pads[i], x->dims[i]);
            rest /= y->dims[i];
            if (source < 0)
                constant = true;
            else
                from += source * strides[i];
        }
        uint8_t *out = (uint8_t *)y->data + (size_t)(row * n) * bytes;
        if (constant)
            lathe_fill(out, n, bytes, &value);
        else
            pad_row(out, (const uint8_t *)x->data + (size_t)from * bytes, (const uint8_t *)&value, mode, pads[last], n,
                    x->dims[last], bytes);
    }
    return LATHE_OK;
}

/* ---- blocks of an image */

/* [N, C, H, W] seen as [N, b, b, C', H, W] (mode 0, DCR) or [N, C', b, b, H, W] (mode 1, CRD) -> [N, C', H, b, W, b].
 */
enum lathe_status lathe_run_depth_to_space(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t b = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 1);
    bool crd = lathe_attr_int(&call->attrs, LATHE_ATTR_MODE, 0) != 0;
    if (!same_bytes(x, y) || x->rank != 4 || y->rank != 4 || b < 1 || b > INT32_MAX || x->dims[1] % (b * b) != 0 ||
        lathe_tensor_count(x) != lathe_tensor_count(y))
        return lathe_bad_shape(call, "depth_to_space");
    int64_t c = x->dims[1] / (b * b), h = x->dims[2], w = x->dims[3], plane = h * w;
    struct lathe_strided s = strided(x, y);
    s.rank = 6;
    int64_t block = crd ? plane : c * plane, channel = crd ? b * b * plane : plane;
    int64_t dims[] = {x->dims[0], c, h, b, w, b};
    int64_t strides[] = {x->dims[1] * plane, channel, w, b * block, 1, block};
    memcpy(s.dims, dims, sizeof dims);
    memcpy(s.strides, strides, sizeof strides);
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

/* [N, C, H', b, W', b] -> [N, b, b, C, H', W'] */
enum lathe_status lathe_run_space_to_depth(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t b = lathe_attr_int(&call->attrs, LATHE_ATTR_BLOCK_SIZE, 1);
    if (!same_bytes(x, y) || x->rank != 4 || y->rank != 4 || b < 1 || b > INT32_MAX || x->dims[2] % b != 0 ||
        x->dims[3] % b != 0 || lathe_tensor_count(x) != lathe_tensor_count(y))
        return lathe_bad_shape(call, "space_to_depth");
    int64_t c = x->dims[1], w = x->dims[3], plane = x->dims[2] * w;
    struct lathe_strided s = strided(x, y);
    s.rank = 6;
    int64_t dims[] = {x->dims[0], b, b, c, x->dims[2] / b, w / b};
    int64_t strides[] = {c * plane, w, 1, plane, b * w, b};
    memcpy(s.dims, dims, sizeof dims);
    memcpy(s.strides, strides, sizeof strides);
    lathe_strided_copy(&s, &call->team);
    return LATHE_OK;
}

/* ---- rolls and reversals */

/* Along one axis: y[.., i, ..] = x[.., (i - shift) mod size, ..]; without an axis the elements as one list. Several
 * axes are several nodes. */
enum lathe_status lathe_run_roll(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    uint32_t count, starts_count;
    const int64_t *axes = lathe_attr_ints(&call->attrs, LATHE_ATTR_AXES, &count);
    const int64_t *shifts = lathe_attr_ints(&call->attrs, LATHE_ATTR_STARTS, &starts_count);
    if (!same_bytes(x, y) || x->rank != y->rank || starts_count != count)
        return lathe_bad_shape(call, "roll");
    int64_t shift[LATHE_MAX_RANK] = {0}, strides[LATHE_MAX_RANK];
    for (uint32_t k = 0; k < count; k++) {
        if (axes[k] < 0 || axes[k] >= x->rank)
            return lathe_bad_shape(call, "roll");
        int64_t size = x->dims[axes[k]];
        if (size > 0)
            shift[axes[k]] = (shift[axes[k]] + (shifts[k] % size + size)) % size;
    }
    lathe_strides_of(x, strides);
    int64_t total = lathe_tensor_count(y), begin, end;
    size_t bytes = lathe_dtype_bytes(y->dtype);
    if (total == 0 || x->rank == 0) {
        if (total && call->team.index == 0)
            memcpy(y->data, x->data, bytes);
        return LATHE_OK;
    }
    unsigned last = x->rank - 1;
    int64_t n = x->dims[last];
    lathe_team_split(&call->team, total / n, 1 + LATHE_GRAIN / n, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row, from = 0;
        for (unsigned i = last; i-- > 0;) {
            int64_t at = rest % x->dims[i] - shift[i];
            from += (at < 0 ? at + x->dims[i] : at) * strides[i];
            rest /= x->dims[i];
        }
        const uint8_t *in = (const uint8_t *)x->data + (size_t)from * bytes;
        uint8_t *out = (uint8_t *)y->data + (size_t)(row * n) * bytes;
        size_t head = (size_t)shift[last] * bytes, rest_bytes = (size_t)n * bytes - head;
        memcpy(out, in + rest_bytes, head);
        memcpy(out + head, in, rest_bytes);
    }
    return LATHE_OK;
}

/* axis: time, batch_dims: the batch axis (0 and 1 in either order); operand 1 the lengths. */
enum lathe_status lathe_run_reverse_sequence(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *lengths = call->in[1];
    struct lathe_tensor *y = call->out[0];
    int64_t time = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0);
    int64_t batch = lathe_attr_int(&call->attrs, LATHE_ATTR_BATCH_DIMS, 1);
    if (!same_bytes(x, y) || x->rank < 2 || x->rank != y->rank || time < 0 || time > 1 || batch != 1 - time ||
        lathe_tensor_count(lengths) != x->dims[batch])
        return lathe_bad_shape(call, "reverse_sequence");
    int64_t steps = x->dims[time], batches = x->dims[batch], begin, end;
    size_t row = (size_t)lathe_count_range(x, 2, x->rank) * lathe_dtype_bytes(x->dtype);
    lathe_team_split(&call->team, batches, 1, &begin, &end);
    for (int64_t b = begin; b < end; b++) {
        int64_t length = lathe_read_i64(lengths, b);
        if (length < 0 || length > steps)
            return lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE,
                              "sequence length %lld at position %lld is outside [0, %lld]", (long long)length,
                              (long long)b, (long long)steps);
        for (int64_t t = 0; t < steps; t++) {
            int64_t from = t < length ? length - 1 - t : t;
            size_t to_row = (size_t)(time == 0 ? t * batches + b : b * steps + t);
            size_t from_row = (size_t)(time == 0 ? from * batches + b : b * steps + from);
            memcpy((uint8_t *)y->data + to_row * row, (const uint8_t *)x->data + from_row * row, row);
        }
    }
    return LATHE_OK;
}
