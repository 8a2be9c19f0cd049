/* 8-bit integer products with i32 sums, numpy's rules for leading axes. Zero points: a scalar, one a row of a ([M] or
 * [.., M, 1]), one a column of b ([N] or [.., 1, N]). */
#include "kernel.h"
#include "op_util.h"
#include "ops.h"

#include <string.h>

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

/* Which matrices of a and b a matrix of the result is made of. */
static void matrices_of(const struct product *p, int64_t batch, int64_t *a, int64_t *b) {
    *a = *b = 0;
    for (unsigned i = p->axes.rank; i-- > 0;) {
        int64_t x = batch % p->axes.dims[i];
        batch /= p->axes.dims[i];
        *a += x * p->axes.strides[0][i];
        *b += x * p->axes.strides[1][i];
    }
}

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

/* ---- through the panels of the 8-bit kernels: exact as well, and as fast as they are */

#define COLUMNS 64 /* a group, of panels of 16 */
#define PANEL   16
#define ROWS    16 /* of a that pass through scratch together */
#define MOST_K  LATHE_Q8_MAX_K

struct parts {
    size_t panels, rows, sums, zeros, total; /* each a multiple of 64 bytes */
    size_t k;                                /* padded to a multiple of 4 */
};

static void parts_of(const struct product *p, struct parts *s) {
    s->k = ((size_t)p->k + 3) / 4 * 4;
    s->panels = 0;
    s->rows = COLUMNS * s->k;
    s->sums = s->rows + (ROWS * s->k + 63) / 64 * 64;
    s->zeros = s->sums + COLUMNS * sizeof(int32_t);
    s->total = s->zeros + COLUMNS * sizeof(int32_t);
}

static bool has_panels(const struct product *p) {
    return p->k >= 4 && (size_t)p->k <= MOST_K && p->n >= PANEL;
}

/* Columns [first, first + cols) of a matrix of b as signed bytes in panels, and their sums. */
static void pack_columns(const struct product *p, int64_t matrix, int64_t first, int64_t cols, const struct parts *s,
                         uint8_t *out, int32_t *sums) {
    const uint32_t flip = p->b->dtype == LATHE_U8 ? 0x80808080u : 0;
    const uint8_t *b = (const uint8_t *)p->b->data + matrix * p->k * p->n + first;
    memset(sums, 0, COLUMNS * sizeof *sums);
    for (int64_t c0 = 0; c0 < cols; c0 += PANEL, out += PANEL * s->k) {
        int64_t width = cols - c0 < PANEL ? cols - c0 : PANEL;
        int32_t total[PANEL] = {0};
        for (int64_t t = 0; t < p->k; t += 4) {
            uint32_t words[PANEL] = {0};
            int64_t deep = p->k - t < 4 ? p->k - t : 4;
            for (int64_t i = 0; i < deep; i++) {
                const uint8_t *line = b + (t + i) * p->n + c0;
                if (width == PANEL) {
                    for (int c = 0; c < PANEL; c++) {
                        uint8_t v = line[c] ^ (uint8_t)flip;
                        words[c] |= (uint32_t)v << (8 * i);
                        total[c] += (int8_t)v;
                    }
                } else {
                    for (int64_t c = 0; c < width; c++) {
                        uint8_t v = line[c] ^ (uint8_t)flip;
                        words[c] |= (uint32_t)v << (8 * i);
                        total[c] += (int8_t)v;
                    }
                }
            }
            memcpy(out + t * PANEL, words, sizeof words);
        }
        for (int64_t c = 0; c < width; c++)
            sums[c0 + c] = total[c];
    }
}

/* Row r of a as unsigned bytes; their sum. */
static uint32_t load_row(const struct product *p, int64_t matrix, int64_t r, const struct parts *s, uint8_t *out) {
    const uint8_t flip = p->a->dtype == LATHE_I8 ? 0x80 : 0;
    const uint8_t *from = (const uint8_t *)p->a->data + (matrix * p->m + r) * p->k;
    uint32_t sum = 0;
    for (int64_t t = 0; t < p->k; t++) {
        out[t] = from[t] ^ flip;
        sum += out[t];
    }
    memset(out + p->k, 0, s->k - (size_t)p->k);
    return sum;
}

/* Rows [r0, r1) and a group of columns of one product of matrices. */
static void multiply(const struct lathe_op_call *call, const struct product *p, const struct parts *s, int64_t matrix_a,
                     int64_t matrix_b, int64_t r0, int64_t r1, int64_t first, uint32_t *y) {
    const struct lathe_gemm_q8_kernel *kernel = &call->kernels->gemm_u8s8;
    char *scratch = call->scratch;
    uint8_t *panels = (uint8_t *)scratch, *a = (uint8_t *)scratch + s->rows;
    int32_t *sums = (int32_t *)(void *)(scratch + s->sums), *zeros = (int32_t *)(void *)(scratch + s->zeros);
    int64_t cols = p->n - first < COLUMNS ? p->n - first : COLUMNS, most = kernel->mr < ROWS ? kernel->mr : ROWS;
    pack_columns(p, matrix_b, first, cols, s, panels, sums);
    for (int64_t j = 0; j < cols; j++)
        zeros[j] = zero_of(p->b_zero, matrix_b, first + j, p->n) - (p->b->dtype == LATHE_U8 ? 128 : 0);
    for (int64_t r = r0; r < r1; r += most) {
        int64_t rows = r1 - r < most ? r1 - r : most;
        uint32_t row_sums[ROWS];
        for (int64_t i = 0; i < rows; i++)
            row_sums[i] = load_row(p, matrix_a, r + i, s, a + (size_t)i * s->k);
        struct lathe_gemm_q8_tile tile = {.rows = (size_t)rows,
                                          .cols = (size_t)cols,
                                          .k = s->k,
                                          .a = a,
                                          .lda = s->k,
                                          .b = (const int8_t *)panels,
                                          .panel_stride = PANEL * s->k,
                                          .sums = (int32_t *)y + r * p->n + first,
                                          .ldc = (size_t)p->n};
        kernel->fn(&tile);
        for (int64_t i = 0; i < rows; i++) {
            uint32_t *line = y + (r + i) * p->n + first;
            uint32_t za = (uint32_t)(zero_of(p->a_zero, matrix_a, r + i, p->m) + (p->a->dtype == LATHE_I8 ? 128 : 0));
            uint32_t rest = row_sums[i] - (uint32_t)p->k * za;
            for (int64_t j = 0; j < cols; j++)
                line[j] -= za * (uint32_t)sums[j] + (uint32_t)zeros[j] * rest;
        }
    }
}

size_t lathe_scratch_matmul_integer(const struct lathe_op_call *call) {
    struct product p;
    struct parts s;
    size_t bytes;
    /* the zero points of the columns, or the parts of the fast way */
    if (!product_init(&p, call) || !lathe_mul_size((size_t)p.n, sizeof(int32_t), &bytes))
        return 0;
    if (!has_panels(&p))
        return bytes;
    parts_of(&p, &s);
    return s.total;
}

/* Threads share the groups of columns, or the rows where there are too few groups. */
static void run_panels(const struct lathe_op_call *call, const struct product *p) {
    struct parts s;
    parts_of(p, &s);
    int64_t groups = (p->n + COLUMNS - 1) / COLUMNS, begin = 0, end = p->batches * groups, r0 = 0, r1 = p->m;
    if (end >= (int64_t)call->team.count)
        lathe_team_split(&call->team, end, 1, &begin, &end);
    else
        lathe_team_split(&call->team, p->m, 1, &r0, &r1);
    for (int64_t unit = begin; unit < end && r0 < r1; unit++) {
        int64_t batch = unit / groups, a, b;
        matrices_of(p, batch, &a, &b);
        multiply(call, p, &s, a, b, r0, r1, unit % groups * COLUMNS, (uint32_t *)p->y->data + batch * p->m * p->n);
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
    if (has_panels(&p)) {
        run_panels(call, &p);
        return LATHE_OK;
    }
    int32_t *zeros = call->scratch;
    int64_t begin, end, of_zeros = -1;
    lathe_team_split(&call->team, p.batches * p.m, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t a, b;
        matrices_of(&p, row / p.m, &a, &b);
        if (of_zeros != b)
            for (int64_t j = 0; j < p.n; j++)
                zeros[j] = zero_of(p.b_zero, b, j, p.n);
        of_zeros = b;
        row_of(&p, a, b, row % p.m, zeros, (uint32_t *)p.y->data + row * p.n);
    }
    return LATHE_OK;
}
