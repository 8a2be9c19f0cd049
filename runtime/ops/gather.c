/* Operators that move elements to or from places which an operand names. Indices are i32 or i64, negative ones count
 * from the end; one outside the table is a status, never a read outside it.
 *
 * Indices are read and checked a chunk at a time, and what they name is taken in one loop over it. An element at a
 * time, with its place found by divisions, was most of a run of DeBERTa: 3 layers of 768, 384 tokens, int8, 2 threads,
 * Zen 5, 63 -> 24 ms; XLNet of that size 34.7 -> 30.6, ConvBERT f32 51.8 -> 50.3. Indices that serve all heads are read
 * and checked once for the heads of a thread: DeBERTa v2 of that size 19.2 -> 16.9. */
#include "op_util.h"
#include "ops.h"

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* out[i] = in[index[i] * stride + i * step], elements of `bytes` bytes. */
static void pick(uint8_t *out, const uint8_t *in, const int64_t *index, int64_t n, int64_t stride, int64_t step,
                 size_t bytes) {
#define PICK(T)                                                                                                        \
    do {                                                                                                               \
        const T *from = (const T *)(const void *)in;                                                                   \
        T *to = (T *)(void *)out;                                                                                      \
        if (stride == 1 && step == 0)                                                                                  \
            for (int64_t i = 0; i < n; i++)                                                                            \
                to[i] = from[index[i]];                                                                                \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                to[i] = from[index[i] * stride + i * step];                                                            \
    } while (0)
    switch (bytes) {
    case 1:
        PICK(uint8_t);
        break;
    case 2:
        PICK(uint16_t);
        break;
    case 4:
        PICK(uint32_t);
        break;
    default:
        PICK(uint64_t);
    }
#undef PICK
}

/* Rows of `inner` elements. */
static void take(uint8_t *out, const uint8_t *in, const int64_t *index, int64_t n, int64_t inner, size_t bytes) {
    size_t run = (size_t)inner * bytes;
    int64_t in_order = 1;
    while (in_order < n && index[in_order] == index[0] + in_order)
        in_order++;
    if (in_order == n)
        memcpy(out, in + (size_t)index[0] * run, (size_t)n * run);
    else if (inner == 1)
        pick(out, in, index, n, 1, 0, bytes);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(out + (size_t)i * run, in + (size_t)index[i] * run, run);
}

enum lathe_status lathe_run_gather(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *indices = call->in[1];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0);
    size_t bytes = lathe_dtype_bytes(x->dtype);
    if (axis < 0 || axis >= x->rank || bytes != lathe_dtype_bytes(y->dtype) || !lathe_dtype_is_integer(indices->dtype))
        return lathe_bad_shape(call, "gather");
    int64_t outer = lathe_count_range(x, 0, (unsigned)axis), size = x->dims[axis];
    int64_t inner = lathe_count_range(x, (unsigned)axis + 1, x->rank), count = lathe_tensor_count(indices);
    if (lathe_tensor_count(y) != outer * count * inner)
        return lathe_bad_shape(call, "gather");
    if (lathe_tensor_count(y) == 0)
        return LATHE_OK;
    size_t run = (size_t)inner * bytes;
    int64_t begin, end;
    lathe_team_split(&call->team, outer * count, 1 + LATHE_GRAIN / inner, &begin, &end);
    for (int64_t first = 0, n; first < count; first += n) {
        int64_t index[LATHE_CHUNK];
        n = smaller(count - first, LATHE_CHUNK);
        /* what this thread has of these indices, in each outer slice */
        for (int64_t o = begin / count, known = 0; o * count + first < end; o++) {
            int64_t item = larger(o * count + first, begin), past = smaller(o * count + first + n, end);
            if (item >= past)
                continue;
            if (!known && !lathe_indices_at(call, indices, first, n, size, index))
                return LATHE_INVALID;
            known = 1;
            take((uint8_t *)y->data + (size_t)item * run, (const uint8_t *)x->data + (size_t)(o * size) * run,
                 index + item % count - first, past - item, inner, bytes);
        }
    }
    return LATHE_OK;
}

/* pick of floats, added to one operand or to its element: a loop of its own over the results would meet the stores of
 * the first, since arenas place large tensors at equal offsets of a page. */
static void pick_sum(float *to, const float *from, const int64_t *index, int64_t n, int64_t stride, int64_t step,
                     const float *added, int64_t add_step) {
    if (!add_step)
        for (int64_t i = 0; i < n; i++)
            to[i] = from[index[i] * stride + i * step] + added[0];
    else if (stride == 1 && step == 0)
        for (int64_t i = 0; i < n; i++)
            to[i] = from[index[i]] + added[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = from[index[i] * stride + i * step] + added[i];
}

/* Row-major strides of what is added, on the axes of y; 0 where it has one element for all. False: it does not fit. */
static bool added_strides(const struct lathe_tensor *added, const struct lathe_tensor *y, int64_t *strides) {
    int missing = y->rank - added->rank;
    int64_t own[LATHE_MAX_RANK];
    if (missing < 0 || added->dtype != LATHE_F32 || y->dtype != LATHE_F32)
        return false;
    lathe_strides_of(added, own);
    for (int i = 0; i < y->rank; i++) {
        int64_t size = i < missing ? 1 : added->dims[i - missing];
        if (size != y->dims[i] && size != 1)
            return false;
        strides[i] = size == 1 ? 0 : own[i - missing];
    }
    return true;
}

/* out[i][j][k] = x[i][index[i][j][k]][k] for axis 1; the other axes of the indices may be shorter than those of x. With
 * `mode` 1 those of size 1 serve all of x there. A third operand is added. */
enum lathe_status lathe_run_gather_elements(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *indices = call->in[1];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0), total = lathe_tensor_count(y);
    size_t bytes = lathe_dtype_bytes(x->dtype);
    if (axis < 0 || axis >= x->rank || x->rank != indices->rank || x->rank != y->rank ||
        bytes != lathe_dtype_bytes(y->dtype) || !lathe_dtype_is_integer(indices->dtype))
        return lathe_bad_shape(call, "gather_elements");
    bool stretched = lathe_attr_int(&call->attrs, LATHE_ATTR_MODE, 0) == 1;
    int64_t strides[LATHE_MAX_RANK], index_strides[LATHE_MAX_RANK], begin, end, last = x->rank - 1, shared = 0;
    lathe_strides_of(x, strides);
    lathe_strides_of(indices, index_strides);
    for (int64_t i = 0; i <= last; i++) {
        bool is_one = stretched && i != axis && indices->dims[i] == 1;
        if (i != axis && (is_one ? y->dims[i] != x->dims[i] : y->dims[i] > x->dims[i]))
            return lathe_bad_shape(call, "gather_elements");
        if (!is_one && y->dims[i] != indices->dims[i])
            return lathe_bad_shape(call, "gather_elements");
        index_strides[i] = is_one ? 0 : index_strides[i];
        shared += is_one && shared == i; /* axes before all others that the indices have none of */
    }
    const struct lathe_tensor *added = lathe_operand(call, 2);
    int64_t add_strides[LATHE_MAX_RANK];
    if (added && !added_strides(added, y, add_strides))
        return lathe_bad_shape(call, "gather_elements");
    if (total == 0)
        return LATHE_OK;
    /* a chunk of indices serves all slices of the first axes; without such axes there is one slice, cut by threads */
    int64_t slices = lathe_count_range(y, 0, (unsigned)shared), each = total / slices;
    int64_t x_each = lathe_count_range(x, (unsigned)shared, x->rank);
    lathe_team_split(&call->team, total, LATHE_GRAIN, &begin, &end);
    for (int64_t i = slices == 1 ? begin : 0, n; i < (slices == 1 ? end : each); i += n) {
        int64_t index[LATHE_CHUNK], at = i % y->dims[last], rest = i / y->dims[last], from = axis == last ? 0 : at;
        int64_t first = at * index_strides[last];
        n = smaller(smaller(y->dims[last] - at, each - i), LATHE_CHUNK);
        for (int64_t k = last; k-- > shared;) {
            from += k == axis ? 0 : rest % y->dims[k] * strides[k];
            first += rest % y->dims[k] * index_strides[k];
            rest /= y->dims[k];
        }
        for (int64_t o = begin / each, known = 0; o * each + i < end; o++) {
            int64_t item = larger(o * each + i, begin), past = smaller(o * each + i + n, end);
            if (item >= past)
                continue;
            if (!known && !lathe_indices_at(call, indices, first, index_strides[last] ? n : 1, x->dims[axis], index))
                return LATHE_INVALID;
            for (int64_t k = 1; !known && !index_strides[last] && k < n; k++)
                index[k] = index[0];
            known = 1;
            int64_t skip = item - o * each - i, source = o * x_each + from + (axis == last ? 0 : skip);
            if (!added) {
                pick((uint8_t *)y->data + (size_t)item * bytes, (const uint8_t *)x->data + (size_t)source * bytes,
                     index + skip, past - item, strides[axis], axis != last, bytes);
                continue;
            }
            int64_t place = 0;
            for (int64_t k = last, left = item; k >= 0; left /= y->dims[k--])
                place += left % y->dims[k] * add_strides[k];
            pick_sum((float *)y->data + item, (const float *)x->data + source, index + skip, past - item, strides[axis],
                     axis != last, (const float *)added->data + place, add_strides[last]);
        }
    }
    return LATHE_OK;
}

/* The offset of the slice of `t` that tuple `i` of the indices names, behind the first `batch_dims` axes. */
static bool tuple_offset(const struct lathe_op_call *call, const struct lathe_tensor *t,
                         const struct lathe_tensor *indices, int64_t i, unsigned batch_dims, unsigned width,
                         const int64_t *strides, int64_t *offset) {
    *offset = 0;
    for (unsigned k = 0; k < width; k++) {
        int64_t index;
        if (!lathe_index_at(call, indices, i * width + k, t->dims[batch_dims + k], &index))
            return false;
        *offset += index * strides[batch_dims + k];
    }
    return true;
}

enum lathe_status lathe_run_gather_nd(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *indices = call->in[1];
    struct lathe_tensor *y = call->out[0];
    int64_t batch_dims = lathe_attr_int(&call->attrs, LATHE_ATTR_BATCH_DIMS, 0);
    size_t bytes = lathe_dtype_bytes(x->dtype);
    if (indices->rank < 1 || batch_dims < 0 || batch_dims >= indices->rank || batch_dims >= x->rank + 1 ||
        bytes != lathe_dtype_bytes(y->dtype))
        return lathe_bad_shape(call, "gather_nd");
    int64_t width = indices->dims[indices->rank - 1];
    if (width < 0 || width > x->rank - batch_dims)
        return lathe_bad_shape(call, "gather_nd");
    int64_t batches = lathe_count_range(indices, 0, (unsigned)batch_dims);
    int64_t tuples = lathe_count_range(indices, 0, indices->rank - 1);
    int64_t inner = lathe_count_range(x, (unsigned)(batch_dims + width), x->rank);
    if (batches != lathe_count_range(x, 0, (unsigned)batch_dims) || tuples * inner != lathe_tensor_count(y))
        return lathe_bad_shape(call, "gather_nd");
    if (tuples * inner == 0)
        return LATHE_OK;
    int64_t strides[LATHE_MAX_RANK], begin, end;
    lathe_strides_of(x, strides);
    int64_t batch_size = lathe_count_range(x, (unsigned)batch_dims, x->rank), each = tuples / batches;
    size_t run = (size_t)inner * bytes;
    lathe_team_split(&call->team, tuples, 1 + LATHE_GRAIN / inner, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t from;
        if (!tuple_offset(call, x, indices, i, (unsigned)batch_dims, (unsigned)width, strides, &from))
            return LATHE_INVALID;
        from += i / each * batch_size;
        memcpy((uint8_t *)y->data + (size_t)i * run, (const uint8_t *)x->data + (size_t)from * bytes, run);
    }
    return LATHE_OK;
}

/* ---- scatter: a copy, then updates in order. One thread does it all, so that equal indices have one meaning. */

enum reduction { REDUCE_NONE, REDUCE_ADD, REDUCE_MUL, REDUCE_MAX, REDUCE_MIN };

static void update(struct lathe_tensor *y, int64_t at, const struct lathe_tensor *from, int64_t i,
                   enum reduction reduction) {
    size_t bytes = lathe_dtype_bytes(y->dtype);
    if (reduction == REDUCE_NONE) {
        memcpy((uint8_t *)y->data + (size_t)at * bytes, (const uint8_t *)from->data + (size_t)i * bytes, bytes);
        return;
    }
    union lathe_chunk a_buffer, b_buffer, r;
    enum lathe_kind kind = lathe_kind_of(y->dtype);
    const void *pa = lathe_load(y, at, 1, &a_buffer), *pb = lathe_load(from, i, 1, &b_buffer);
#define COMBINE(T, U, field)                                                                                           \
    do {                                                                                                               \
        T a = *(const T *)pa, b = *(const T *)pb;                                                                      \
        r.field[0] = reduction == REDUCE_ADD   ? (T)((U)a + (U)b)                                                      \
                     : reduction == REDUCE_MUL ? (T)((U)a * (U)b)                                                      \
                     : reduction == REDUCE_MAX ? (a > b || a != a ? a : b)                                             \
                                               : (a < b || a != a ? a : b);                                            \
    } while (0)
    switch (kind) {
    case LATHE_KIND_F32:
        COMBINE(float, float, f32);
        break;
    case LATHE_KIND_F64:
        COMBINE(double, double, f64);
        break;
    case LATHE_KIND_I64:
        COMBINE(int64_t, uint64_t, i64);
        break;
    case LATHE_KIND_U64:
        COMBINE(uint64_t, uint64_t, u64);
        break;
    }
#undef COMBINE
    lathe_store(y, at, 1, kind, &r);
}

static bool scatter_types(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *y = call->out[0];
    return x->dtype == y->dtype && call->in[2]->dtype == y->dtype && lathe_tensor_count(x) == lathe_tensor_count(y) &&
           x->rank == y->rank;
}

static void copy_input(const struct lathe_op_call *call) {
    size_t bytes = (size_t)lathe_tensor_count(call->in[0]) * lathe_dtype_bytes(call->in[0]->dtype);
    if (bytes && call->out[0]->data != call->in[0]->data)
        memcpy(call->out[0]->data, call->in[0]->data, bytes);
}

enum lathe_status lathe_run_scatter_elements(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *indices = call->in[1], *updates = call->in[2];
    struct lathe_tensor *y = call->out[0];
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0), total = lathe_tensor_count(indices);
    enum reduction reduction = (enum reduction)lathe_attr_int(&call->attrs, LATHE_ATTR_REDUCTION, 0);
    if (!scatter_types(call) || axis < 0 || axis >= x->rank || x->rank != indices->rank || x->rank != updates->rank ||
        total != lathe_tensor_count(updates))
        return lathe_bad_shape(call, "scatter_elements");
    for (unsigned i = 0; i < x->rank; i++)
        if (i != axis && indices->dims[i] > x->dims[i])
            return lathe_bad_shape(call, "scatter_elements");
    if (call->team.index != 0)
        return LATHE_OK;
    copy_input(call);
    int64_t strides[LATHE_MAX_RANK];
    lathe_strides_of(x, strides);
    for (int64_t i = 0; i < total; i++) {
        int64_t index, rest = i, to = 0;
        if (!lathe_index_at(call, indices, i, x->dims[axis], &index))
            return LATHE_INVALID;
        for (unsigned k = x->rank; k-- > 0;) {
            to += (k == axis ? index : rest % indices->dims[k]) * strides[k];
            rest /= indices->dims[k];
        }
        update(y, to, updates, i, reduction);
    }
    return LATHE_OK;
}

enum lathe_status lathe_run_scatter_nd(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *indices = call->in[1], *updates = call->in[2];
    struct lathe_tensor *y = call->out[0];
    enum reduction reduction = (enum reduction)lathe_attr_int(&call->attrs, LATHE_ATTR_REDUCTION, 0);
    if (!scatter_types(call) || indices->rank < 1 || indices->dims[indices->rank - 1] > x->rank)
        return lathe_bad_shape(call, "scatter_nd");
    int64_t width = indices->dims[indices->rank - 1], tuples = lathe_count_range(indices, 0, indices->rank - 1);
    int64_t inner = lathe_count_range(x, (unsigned)width, x->rank);
    if (tuples * inner != lathe_tensor_count(updates))
        return lathe_bad_shape(call, "scatter_nd");
    if (call->team.index != 0)
        return LATHE_OK;
    copy_input(call);
    int64_t strides[LATHE_MAX_RANK];
    lathe_strides_of(x, strides);
    for (int64_t i = 0; i < tuples && inner > 0; i++) {
        int64_t to;
        if (!tuple_offset(call, x, indices, i, 0, (unsigned)width, strides, &to))
            return LATHE_INVALID;
        for (int64_t k = 0; k < inner; k++)
            update(y, to + k, updates, i * inner + k, reduction);
    }
    return LATHE_OK;
}

/* Slices along `axis` (without it: elements) whose condition is true. The condition is constant, so the size is known.
 */
enum lathe_status lathe_run_compress(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *condition = call->in[1];
    struct lathe_tensor *y = call->out[0];
    const struct lathe_attr *axis = lathe_attr_find(&call->attrs, LATHE_ATTR_AXIS);
    if (x->dtype != y->dtype || condition->dtype != LATHE_BOOL || (axis && (axis->i < 0 || axis->i >= x->rank)))
        return lathe_bad_shape(call, "compress");
    int64_t outer = axis ? lathe_count_range(x, 0, (unsigned)axis->i) : 1;
    int64_t size = axis ? x->dims[axis->i] : lathe_tensor_count(x);
    size_t run =
        (size_t)(axis ? lathe_count_range(x, (unsigned)axis->i + 1, x->rank) : 1) * lathe_dtype_bytes(x->dtype);
    const uint8_t *keep = condition->data;
    int64_t given = lathe_tensor_count(condition), kept = 0;
    for (int64_t i = 0; i < given && i < size; i++)
        kept += keep[i] != 0;
    if ((size_t)(kept * outer) * run != (size_t)lathe_tensor_count(y) * lathe_dtype_bytes(y->dtype))
        return lathe_bad_shape(call, "compress");
    if (call->team.index != 0)
        return LATHE_OK;
    uint8_t *out = y->data;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < given && i < size; i++)
            if (keep[i]) {
                memcpy(out, (const uint8_t *)x->data + (size_t)(o * size + i) * run, run);
                out += run;
            }
    return LATHE_OK;
}
