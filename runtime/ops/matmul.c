/* matmul and gemm on any element type. f32 goes through packed panels and the gemm row; other types are computed row by
 * row in their kind. */
#include "gemm_drive.h"
#include "op_util.h"
#include "ops.h"

#include <string.h>

struct matmul_shape {
    int64_t m, n, k, batch;
    unsigned batch_rank;
    int64_t batch_dims[LATHE_MAX_RANK];
    int64_t a_batch[LATHE_MAX_RANK], b_batch[LATHE_MAX_RANK]; /* strides over batch_dims, 0 where broadcast */
    int64_t a_row, a_column, b_row, b_column;
};

/* Rows, columns and strides of the last two axes; a vector is a row on the left, a column on the right. */
static void matrix_of(const struct lathe_tensor *t, bool left, bool transposed, int64_t *rows, int64_t *columns,
                      int64_t *row, int64_t *column) {
    if (t->rank == 1) {
        *rows = left ? 1 : t->dims[0];
        *columns = left ? t->dims[0] : 1;
        *row = left ? t->dims[0] : 1;
        *column = 1;
        return;
    }
    int64_t r = t->dims[t->rank - 2], c = t->dims[t->rank - 1];
    *rows = transposed ? c : r;
    *columns = transposed ? r : c;
    *row = transposed ? 1 : c;
    *column = transposed ? c : 1;
}

static bool matmul_shape(const struct lathe_op_call *call, struct matmul_shape *s) {
    const struct lathe_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    if (a->rank < 1 || b->rank < 1)
        return false;
    int64_t k_b;
    matrix_of(a, true, lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_A, 0) != 0, &s->m, &s->k, &s->a_row, &s->a_column);
    matrix_of(b, false, lathe_attr_int(&call->attrs, LATHE_ATTR_TRANS_B, 0) != 0, &k_b, &s->n, &s->b_row, &s->b_column);
    if (k_b != s->k)
        return false;
    unsigned a_rank = a->rank > 2 ? a->rank - 2 : 0, b_rank = b->rank > 2 ? b->rank - 2 : 0;
    s->batch_rank = a_rank > b_rank ? a_rank : b_rank;
    s->batch = 1;
    int64_t a_stride = s->m * s->k, b_stride = s->k * s->n;
    for (unsigned i = s->batch_rank; i-- > 0;) {
        int64_t da = i + a_rank >= s->batch_rank ? a->dims[i + a_rank - s->batch_rank] : 1;
        int64_t db = i + b_rank >= s->batch_rank ? b->dims[i + b_rank - s->batch_rank] : 1;
        if (da != db && da != 1 && db != 1)
            return false;
        s->batch_dims[i] = da == 1 ? db : da;
        s->a_batch[i] = da == 1 ? 0 : a_stride;
        s->b_batch[i] = db == 1 ? 0 : b_stride;
        a_stride *= da;
        b_stride *= db;
        s->batch *= s->batch_dims[i];
    }
    if (lathe_tensor_count(y) != s->batch * s->m * s->n)
        return false;
    /* One matrix on the right and rows of A that lie one after the other: one product of all rows. */
    bool shared = true;
    for (unsigned i = 0; i < s->batch_rank; i++)
        shared = shared && s->b_batch[i] == 0;
    if (shared && s->batch > 1 && s->a_column == 1 && (s->m == 1 || s->a_row == s->k) &&
        lathe_tensor_count(a) == s->batch * s->m * s->k) {
        s->a_row = s->k; /* a transposed column has the step of its one element */
        s->m *= s->batch;
        s->batch = 1;
        s->batch_rank = 0;
    }
    return true;
}

/* First elements of A and B for item i of the batch. */
static void batch_item(const struct matmul_shape *s, int64_t item, int64_t *a, int64_t *b) {
    *a = *b = 0;
    for (unsigned i = s->batch_rank; i-- > 0;) {
        int64_t at = item % s->batch_dims[i];
        item /= s->batch_dims[i];
        *a += at * s->a_batch[i];
        *b += at * s->b_batch[i];
    }
}

static void multiply_f32(const struct lathe_op_call *call, const struct matmul_shape *s, float scale) {
    const float *a = call->in[0]->data, *b = call->in[1]->data;
    float *y = call->out[0]->data;
    struct lathe_gemm_f32 product = {.m = (size_t)s->m,
                                     .n = (size_t)s->n,
                                     .k = (size_t)s->k,
                                     .a_row = (size_t)s->a_row,
                                     .a_column = (size_t)s->a_column,
                                     .b_row = (size_t)s->b_row,
                                     .b_column = (size_t)s->b_column,
                                     .ldc = (size_t)s->n,
                                     .epilogue = {.scale = scale}};
    /* Whole items for each thread; what is left over is shared. */
    int64_t whole = s->batch / call->team.count, item = whole * call->team.index;
    int64_t end = item + whole, shared = whole * call->team.count;
    for (; item < s->batch; item++) {
        if (item == end)
            item = shared > item ? shared : item;
        if (item >= s->batch)
            break;
        int64_t at, bt;
        batch_item(s, item, &at, &bt);
        product.a = a + at;
        product.b = b + bt;
        product.c = y + item * s->m * s->n;
        if (item < end)
            lathe_gemm_f32_part(call->kernels, &product, 0, product.m, 0, product.n, call->scratch);
        else
            lathe_gemm_f32_team(call->kernels, &product, &call->team, call->scratch);
    }
}

union accumulator {
    double f64[LATHE_CHUNK];
    uint64_t u64[LATHE_CHUNK];
};

/* Elements [from, from + n) of row r of the product whose A row starts at `at` and whose B starts at `bt`. */
static void multiply_run(const struct lathe_op_call *call, const struct matmul_shape *s, int64_t at, int64_t bt,
                         int64_t from, int64_t n, bool real, union accumulator *sum) {
    const struct lathe_tensor *a = call->in[0], *b = call->in[1];
    memset(sum, 0, sizeof *sum);
    for (int64_t t = 0; t < s->k; t++) {
        int64_t place = bt + t * s->b_row + from * s->b_column;
        if (real) {
            double x = lathe_read_f64(a, at + t * s->a_column), values[LATHE_CHUNK];
            if (s->b_column == 1)
                lathe_load_f64(b, place, n, values);
            else
                for (int64_t j = 0; j < n; j++)
                    values[j] = lathe_read_f64(b, place + j * s->b_column);
            for (int64_t j = 0; j < n; j++)
                sum->f64[j] += x * values[j];
        } else {
            /* Unsigned: wraps as the element types do. */
            uint64_t x = (uint64_t)lathe_read_i64(a, at + t * s->a_column);
            int64_t values[LATHE_CHUNK];
            if (s->b_column == 1)
                lathe_load_i64(b, place, n, values);
            else
                for (int64_t j = 0; j < n; j++)
                    values[j] = lathe_read_i64(b, place + j * s->b_column);
            for (int64_t j = 0; j < n; j++)
                sum->u64[j] += x * (uint64_t)values[j];
        }
    }
}

static void multiply_any(const struct lathe_op_call *call, const struct matmul_shape *s) {
    struct lathe_tensor *y = call->out[0];
    bool real = lathe_dtype_is_float(y->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, s->batch * s->m, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t at, bt;
        batch_item(s, row / s->m, &at, &bt);
        at += row % s->m * s->a_row;
        for (int64_t from = 0; from < s->n; from += LATHE_CHUNK) {
            int64_t n = s->n - from < LATHE_CHUNK ? s->n - from : LATHE_CHUNK;
            union accumulator sum;
            multiply_run(call, s, at, bt, from, n, real, &sum);
            lathe_store(y, row * s->n + from, n, real ? LATHE_KIND_F64 : LATHE_KIND_U64, &sum);
        }
    }
}

static size_t matmul_scratch(const struct lathe_op_call *call) {
    struct matmul_shape s;
    if (call->in[0]->dtype != LATHE_F32 || !matmul_shape(call, &s))
        return 0;
    return lathe_gemm_f32_scratch((size_t)s.m, (size_t)s.n, (size_t)s.k, false);
}

size_t lathe_scratch_matmul(const struct lathe_op_call *call) {
    return matmul_scratch(call);
}

size_t lathe_scratch_gemm(const struct lathe_op_call *call) {
    return matmul_scratch(call);
}

static enum lathe_status check(const struct lathe_op_call *call, const char *op, struct matmul_shape *s) {
    enum lathe_dtype dtype = call->out[0]->dtype;
    if (dtype == LATHE_BOOL)
        return lathe_no_dtype(call, op, dtype);
    for (unsigned i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->dtype != dtype)
            return lathe_no_dtype(call, op, call->in[i]->dtype);
    return matmul_shape(call, s) ? LATHE_OK : lathe_bad_shape(call, op);
}

enum lathe_status lathe_run_matmul(const struct lathe_op_call *call) {
    struct matmul_shape s;
    LATHE_TRY(check(call, "matmul", &s));
    if (call->out[0]->dtype == LATHE_F32)
        multiply_f32(call, &s, 1.0f);
    else
        multiply_any(call, &s);
    return LATHE_OK;
}

/* y += beta * c, c broadcast to [m, n]; y holds alpha * product already. */
static enum lathe_status add_c(const struct lathe_op_call *call, const struct matmul_shape *s, double alpha,
                               double beta) {
    const struct lathe_tensor *c = lathe_operand(call, 2);
    struct lathe_tensor *y = call->out[0];
    int64_t c_row = 0, c_column = 0;
    if (c) {
        int64_t rows = c->rank >= 2 ? c->dims[c->rank - 2] : 1, columns = c->rank >= 1 ? c->dims[c->rank - 1] : 1;
        if ((rows != 1 && rows != s->m) || (columns != 1 && columns != s->n) || lathe_tensor_count(c) != rows * columns)
            return lathe_bad_shape(call, "gemm");
        c_row = rows == 1 ? 0 : columns;
        c_column = columns == 1 ? 0 : 1;
    }
    bool real = lathe_dtype_is_float(y->dtype);
    int64_t begin, end;
    lathe_team_split(&call->team, s->m, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        for (int64_t from = 0; from < s->n; from += LATHE_CHUNK) {
            int64_t n = s->n - from < LATHE_CHUNK ? s->n - from : LATHE_CHUNK;
            if (real) {
                double v[LATHE_CHUNK];
                lathe_load_f64(y, row * s->n + from, n, v);
                for (int64_t j = 0; j < n; j++)
                    v[j] = v[j] * alpha + (c ? beta * lathe_read_f64(c, row * c_row + (from + j) * c_column) : 0.0);
                lathe_store(y, row * s->n + from, n, LATHE_KIND_F64, v);
            } else {
                uint64_t v[LATHE_CHUNK];
                lathe_load_i64(y, row * s->n + from, n, (int64_t *)v);
                for (int64_t j = 0; j < n; j++) {
                    uint64_t x = c ? (uint64_t)lathe_read_i64(c, row * c_row + (from + j) * c_column) : 0;
                    v[j] = v[j] * (uint64_t)(int64_t)alpha + x * (uint64_t)(int64_t)beta;
                }
                lathe_store(y, row * s->n + from, n, LATHE_KIND_U64, v);
            }
        }
    return LATHE_OK;
}

enum lathe_status lathe_run_gemm(const struct lathe_op_call *call) {
    struct matmul_shape s;
    LATHE_TRY(check(call, "gemm", &s));
    double alpha = lathe_attr_float(&call->attrs, LATHE_ATTR_ALPHA, 1.0);
    double beta = lathe_attr_float(&call->attrs, LATHE_ATTR_BETA, 1.0);
    bool f32 = call->out[0]->dtype == LATHE_F32;
    if (f32)
        multiply_f32(call, &s, (float)alpha);
    else
        multiply_any(call, &s);
    bool scaled = f32 || alpha == 1.0;
    if (!lathe_operand(call, 2) && scaled)
        return LATHE_OK;
    lathe_team_wait(&call->team); /* the parts of the product are no ranges of rows */
    return add_c(call, &s, scaled ? 1.0 : alpha, beta);
}
