/* Positions of the largest or smallest elements along an axis: arg_max, arg_min, top_k, hardmax. A NaN counts as larger
 * than any number and is found first, as in numpy. */
#include "op_util.h"
#include "ops.h"

/* One line: `size` elements, `stride` apart, from `base`. Compared as double, or as integers of 64 bits. */
union key {
    double f;
    int64_t i;
    uint64_t u;
};

static union key key_at(const struct lathe_tensor *t, enum lathe_kind kind, int64_t i) {
    union key k;
    union lathe_chunk buffer;
    if (kind <= LATHE_KIND_F64)
        k.f = t->dtype == LATHE_F32 ? (double)((const float *)t->data)[i] : lathe_read_f64(t, i);
    else
        memcpy(&k, lathe_load(t, i, 1, &buffer), sizeof k);
    return k;
}

/* -1, 0, 1; NaN above all. */
static int compare(union key a, union key b, enum lathe_kind kind) {
    if (kind == LATHE_KIND_I64)
        return (a.i > b.i) - (a.i < b.i);
    if (kind == LATHE_KIND_U64)
        return (a.u > b.u) - (a.u < b.u);
    if (a.f != a.f || b.f != b.f)
        return (a.f != a.f) - (b.f != b.f);
    return (a.f > b.f) - (a.f < b.f);
}

static int64_t best_of(const struct lathe_tensor *x, int64_t base, int64_t stride, int64_t size, bool smallest,
                       bool last) {
    enum lathe_kind kind = lathe_kind_of(x->dtype);
    union key best = key_at(x, kind, base);
    int64_t at = 0;
    for (int64_t i = 1; i < size; i++) {
        union key k = key_at(x, kind, base + i * stride);
        int c = compare(k, best, kind);
        bool nan = kind <= LATHE_KIND_F64 && k.f != k.f;
        /* numpy's argmin finds a NaN too */
        if (smallest && kind <= LATHE_KIND_F64 && (nan || best.f != best.f))
            c = -c;
        if (smallest ? c < 0 : c > 0) {
            best = k;
            at = i;
        } else if (c == 0 && last)
            at = i;
    }
    return at;
}

static bool line_shape(const struct lathe_tensor *x, int64_t axis, int64_t *size, int64_t *inner, int64_t *lines) {
    if (axis < 0 || axis >= x->rank)
        return false;
    *size = x->dims[axis];
    *inner = lathe_count_range(x, (unsigned)axis + 1, x->rank);
    *lines = lathe_count_range(x, 0, (unsigned)axis) * *inner;
    return true;
}

static enum lathe_status run_arg(const struct lathe_op_call *call, const char *name, bool smallest) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t size, inner, lines, begin, end;
    bool last = lathe_attr_int(&call->attrs, LATHE_ATTR_SELECT_LAST, 0) != 0;
    if (!line_shape(x, lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, 0), &size, &inner, &lines) ||
        y->dtype != LATHE_I64 || lathe_tensor_count(y) != lines || (lines > 0 && size == 0))
        return lathe_bad_shape(call, name);
    lathe_team_split(&call->team, lines, 1, &begin, &end);
    for (int64_t l = begin; l < end; l++)
        ((int64_t *)y->data)[l] = best_of(x, l / inner * size * inner + l % inner, inner, size, smallest, last);
    return LATHE_OK;
}

enum lathe_status lathe_run_arg_max(const struct lathe_op_call *call) {
    return run_arg(call, "arg_max", false);
}
enum lathe_status lathe_run_arg_min(const struct lathe_op_call *call) {
    return run_arg(call, "arg_min", true);
}

enum lathe_status lathe_run_hardmax(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0];
    struct lathe_tensor *y = call->out[0];
    int64_t size, inner, lines, begin, end;
    if (!line_shape(x, lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)x->rank - 1), &size, &inner, &lines) ||
        y->dtype != x->dtype || lathe_tensor_count(y) != lathe_tensor_count(x) || !lathe_dtype_is_float(x->dtype))
        return lathe_bad_shape(call, "hardmax");
    lathe_team_split(&call->team, lines, 1, &begin, &end);
    for (int64_t l = begin; l < end && size > 0; l++) {
        int64_t base = l / inner * size * inner + l % inner, best = best_of(x, base, inner, size, false, false);
        for (int64_t i = 0; i < size; i++) {
            float v = i == best;
            lathe_store(y, base + i * inner, 1, LATHE_KIND_F32, &v);
        }
    }
    return LATHE_OK;
}

/* ---- top_k: a heap of the k best so far, the worst of them on top; then sorted */

struct entry {
    union key key;
    int64_t index;
};

/* True when a comes after b in the result: equal elements keep the order of their positions. */
static bool worse(const struct entry *a, const struct entry *b, enum lathe_kind kind, bool largest) {
    int c = compare(a->key, b->key, kind);
    return c == 0 ? a->index > b->index : largest ? c < 0 : c > 0;
}

static void sift_down(struct entry *heap, int64_t n, int64_t i, enum lathe_kind kind, bool largest) {
    for (;;) {
        int64_t worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && worse(&heap[left], &heap[worst], kind, largest))
            worst = left;
        if (right < n && worse(&heap[right], &heap[worst], kind, largest))
            worst = right;
        if (worst == i)
            return;
        struct entry swap = heap[i];
        heap[i] = heap[worst];
        heap[worst] = swap;
        i = worst;
    }
}

static struct lathe_tensor *top_k_shape(const struct lathe_op_call *call) {
    return lathe_result(call, 0) ? lathe_result(call, 0) : lathe_result(call, 1);
}

size_t lathe_scratch_top_k(const struct lathe_op_call *call) {
    const struct lathe_tensor *y = top_k_shape(call);
    int64_t axis = y ? lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)y->rank - 1) : -1;
    size_t bytes;
    return axis >= 0 && axis < y->rank && lathe_mul_size((size_t)y->dims[axis], sizeof(struct entry), &bytes) ? bytes
                                                                                                              : 0;
}

enum lathe_status lathe_run_top_k(const struct lathe_op_call *call) {
    const struct lathe_tensor *x = call->in[0], *shape = top_k_shape(call);
    struct lathe_tensor *values = lathe_result(call, 0), *indices = lathe_result(call, 1);
    int64_t axis = lathe_attr_int(&call->attrs, LATHE_ATTR_AXIS, (int64_t)x->rank - 1);
    bool largest = lathe_attr_int(&call->attrs, LATHE_ATTR_LARGEST, 1) != 0;
    int64_t size, inner, lines, begin, end;
    if (!shape || shape->rank != x->rank || !line_shape(x, axis, &size, &inner, &lines) || shape->dims[axis] > size ||
        (values && values->dtype != x->dtype) || (indices && indices->dtype != LATHE_I64))
        return lathe_bad_shape(call, "top_k");
    int64_t k = shape->dims[axis];
    if (lathe_tensor_count(shape) != lines * k)
        return lathe_bad_shape(call, "top_k");
    if (k == 0)
        return LATHE_OK;
    enum lathe_kind kind = lathe_kind_of(x->dtype);
    size_t bytes = lathe_dtype_bytes(x->dtype);
    struct entry *heap = call->scratch;
    lathe_team_split(&call->team, lines, 1, &begin, &end);
    for (int64_t l = begin; l < end; l++) {
        int64_t base = l / inner * size * inner + l % inner, n = 0;
        for (int64_t i = 0; i < size; i++) {
            struct entry e = {key_at(x, kind, base + i * inner), i};
            if (n < k) {
                heap[n++] = e;
                if (n == k)
                    for (int64_t j = k / 2; j-- > 0;)
                        sift_down(heap, k, j, kind, largest);
            } else if (worse(&heap[0], &e, kind, largest)) {
                heap[0] = e;
                sift_down(heap, k, 0, kind, largest);
            }
        }
        while (n > 1) { /* the worst to the end */
            struct entry swap = heap[0];
            heap[0] = heap[--n];
            heap[n] = swap;
            sift_down(heap, n, 0, kind, largest);
        }
        int64_t out = l / inner * k * inner + l % inner;
        for (int64_t i = 0; i < k; i++) {
            if (values)
                memcpy((uint8_t *)values->data + (size_t)(out + i * inner) * bytes,
                       (const uint8_t *)x->data + (size_t)(base + heap[i].index * inner) * bytes, bytes);
            if (indices)
                ((int64_t *)indices->data)[out + i * inner] = heap[i].index;
        }
    }
    return LATHE_OK;
}
