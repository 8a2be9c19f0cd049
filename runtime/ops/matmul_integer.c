/* 8-bit integer products with i32 sums, numpy's rules for leading axes. Zero points: a scalar, one a row of a ([M] or
 * [.., M, 1]), one a column of b ([N] or [.., 1, N]). */
#include "op_util.h"
#include "ops.h"

struct product {
    int64_t m, n, k, batches;
    struct lathe_broadcast axes; /* offsets of a and b in matrices */
    const struct lathe_tensor *a, *b, *a_zero, *b_zero;
    struct lathe_tensor *y;
};

static bool product_init(struct product *p, const struct lathe_op_call *call) {
    p->a = call->in[0];
    p->b = call->in[1];
    p->a_zero = lathe_operand(call, 2);
    p->b_zero = lathe_operand(call, 3);
    p->y = call->out[0];
    if (p->a->rank < 1 || p->b->rank < 1)
        return false;
    /* a vector is a matrix of one row (a) or one column (b); the result has no such axis */
    bool row = p->a->rank == 1, column = p->b->rank == 1;
    p->m = row ? 1 : p->a->dims[p->a->rank - 2];
    p->k = p->a->dims[p->a->rank - 1];
    p->n = column ? 1 : p->b->dims[p->b->rank - 1];
    if ((column ? p->b->dims[0] : p->b->dims[p->b->rank - 2]) != p->k || p->y->rank + row + column < 2)
        return false;
    struct lathe_tensor a = *p->a, b = *p->b, y = *p->y;
    a.rank = row ? 0 : a.rank - 2;
    b.rank = column ? 0 : b.rank - 2;
    y.rank = y.rank + row + column - 2;
    const struct lathe_tensor *const operands[] = {&a, &b};
    p->batches = lathe_tensor_count(&y);
    return lathe_broadcast_init(&p->axes, &y, operands, 2) && lathe_tensor_count(p->y) == p->batches * p->m * p->n;
}

size_t lathe_scratch_matmul_integer(const struct lathe_op_call *call) {
    struct product p;
    size_t bytes;
    /* a row of a less its zero point, and the zero points of the columns */
    return product_init(&p, call) && lathe_mul_size((size_t)p.n, sizeof(int32_t), &bytes) ? bytes : 0;
}

static int32_t byte_at(const struct lathe_tensor *t, int64_t i) {
    return t->dtype == LATHE_I8 ? ((const int8_t *)t->data)[i] : ((const uint8_t *)t->data)[i];
}

/* The zero point of line i of matrix `matrix`, lines of `lines`. */
static int32_t zero_of(const struct lathe_tensor *zero, int64_t matrix, int64_t i, int64_t lines) {
    if (!zero)
        return 0;
    int64_t count = lathe_tensor_count(zero);
    return byte_at(zero, count == 1 ? 0 : count == lines ? i : matrix * lines + i);
}

static bool zero_fits(const struct lathe_tensor *zero, const struct lathe_tensor *of, int64_t lines) {
    if (!zero)
        return true;
    int64_t count = lathe_tensor_count(zero);
    int64_t matrices = lathe_count_range(of, 0, of->rank < 2 ? 0 : of->rank - 2);
    return zero->dtype == of->dtype && (count == 1 || count == lines || count == lines * matrices);
}

#define ADD_ROW(T)                                                                                                     \
    do {                                                                                                               \
        const T *line = (const T *)p->b->data + (matrix_b * p->k + t) * p->n;                                          \
        for (int64_t j = 0; j < p->n; j++)                                                                             \
            y[j] += (uint32_t)(v * ((int32_t)line[j] - zeros[j]));                                                     \
    } while (0)

/* Row r of the product of two matrices: sums over t outside, columns inside; they wrap. */
static void row_of(const struct product *p, int64_t matrix_a, int64_t matrix_b, int64_t r, const int32_t *zeros,
                   uint32_t *y) {
    int32_t za = zero_of(p->a_zero, matrix_a, r, p->m);
    memset(y, 0, (size_t)p->n * sizeof *y);
    for (int64_t t = 0; t < p->k; t++) {
        int32_t v = byte_at(p->a, (matrix_a * p->m + r) * p->k + t) - za;
        if (p->b->dtype == LATHE_I8)
            ADD_ROW(int8_t);
        else
            ADD_ROW(uint8_t);
    }
}

enum lathe_status lathe_run_matmul_integer(const struct lathe_op_call *call) {
    struct product p;
    if (!product_init(&p, call) || p.y->dtype != LATHE_I32 || !zero_fits(p.a_zero, p.a, p.m) ||
        !zero_fits(p.b_zero, p.b, p.n))
        return lathe_bad_shape(call, "matmul_integer");
    if ((p.a->dtype != LATHE_I8 && p.a->dtype != LATHE_U8) || (p.b->dtype != LATHE_I8 && p.b->dtype != LATHE_U8))
        return lathe_no_dtype(call, "matmul_integer", p.a->dtype);
    if (p.batches * p.m * p.n == 0)
        return LATHE_OK;
    int32_t *zeros = call->scratch;
    int64_t begin, end, of_zeros = -1;
    lathe_team_split(&call->team, p.batches * p.m, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row / p.m, a = 0, b = 0;
        for (unsigned i = p.axes.rank; i-- > 0;) {
            int64_t x = rest % p.axes.dims[i];
            rest /= p.axes.dims[i];
            a += x * p.axes.strides[0][i];
            b += x * p.axes.strides[1][i];
        }
        if (of_zeros != b)
            for (int64_t j = 0; j < p.n; j++)
                zeros[j] = zero_of(p.b_zero, b, j, p.n);
        of_zeros = b;
        row_of(&p, a, b, row % p.m, zeros, (uint32_t *)p.y->data + row * p.n);
    }
    return LATHE_OK;
}
