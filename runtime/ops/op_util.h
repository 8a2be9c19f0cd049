/* What the operators share: elements of any dtype as a compute type, broadcasting, index checks.
 *
 * An operator computes in one of four kinds: f32 (for f32, f16, bf16), f64, i64 (bool and all integers but u64) and
 * u64. Integers of fewer bits wrap when they are stored, which gives the arithmetic of their own width. Elements that
 * lie in memory in their kind are used where they are; others pass through small buffers, LATHE_CHUNK elements at a
 * time. */
#ifndef LATHE_OP_UTIL_H
#define LATHE_OP_UTIL_H

#include "half.h"
#include "tensor.h"

#define LATHE_CHUNK 256

enum lathe_kind { LATHE_KIND_F32, LATHE_KIND_F64, LATHE_KIND_I64, LATHE_KIND_U64 };

union lathe_chunk {
    float f32[LATHE_CHUNK];
    double f64[LATHE_CHUNK];
    int64_t i64[LATHE_CHUNK];
    uint64_t u64[LATHE_CHUNK];
};

enum lathe_kind lathe_kind_of(enum lathe_dtype dtype);
/* Bytes of one element of a kind. */
size_t lathe_kind_bytes(enum lathe_kind kind);
/* The dtype whose elements are those of the kind: F32, F64, I64, U64. */
enum lathe_dtype lathe_kind_dtype(enum lathe_kind kind);

/* Elements [offset, offset + n) of a tensor in the kind of its dtype: a pointer into it, or `buffer` filled (n at most
 * LATHE_CHUNK then). */
const void *lathe_load(const struct lathe_tensor *t, int64_t offset, int64_t n, union lathe_chunk *buffer);
/* n elements of a kind into the tensor, rounded or wrapped to its dtype; f to integer saturates, NaN gives 0; to bool:
 * not equal to 0. `src` may be the place itself. */
void lathe_store(struct lathe_tensor *t, int64_t offset, int64_t n, enum lathe_kind kind, const void *src);
/* The same reading, converted to double, float or int64 whatever the dtype; n at most LATHE_CHUNK. */
void lathe_load_f64(const struct lathe_tensor *t, int64_t offset, int64_t n, double *out);
void lathe_load_f32(const struct lathe_tensor *t, int64_t offset, int64_t n, float *out);
void lathe_load_i64(const struct lathe_tensor *t, int64_t offset, int64_t n, int64_t *out);
double lathe_read_f64(const struct lathe_tensor *t, int64_t i);
int64_t lathe_read_i64(const struct lathe_tensor *t, int64_t i);
/* n elements converted, of any count; team-free. Pointers may not overlap unless both dtypes are equal. */
void lathe_convert(const struct lathe_tensor *from, struct lathe_tensor *to, int64_t offset, int64_t n);

/* f64 to integer with saturation; NaN gives 0. */
int64_t lathe_i64_from_f64(double x);
uint64_t lathe_u64_from_f64(double x);

/* ---- broadcasting: axes of length 1 dropped, axes merged where every operand allows it */
#define LATHE_BROADCAST_OPERANDS 3
struct lathe_broadcast {
    unsigned rank; /* at least 1 */
    unsigned operands;
    int64_t dims[LATHE_MAX_RANK];
    int64_t strides[LATHE_BROADCAST_OPERANDS][LATHE_MAX_RANK]; /* in elements; innermost 0 or 1 */
};
/* False when an operand does not broadcast to `out`. */
bool lathe_broadcast_init(struct lathe_broadcast *b, const struct lathe_tensor *out,
                          const struct lathe_tensor *const *operands, unsigned count);
/* Calls `fn` for runs of output elements [at, at + n) along the innermost axis that cover [begin, end); `offsets` are
 * the first elements of the operands; n is at most `limit`. */
typedef void (*lathe_run_fn)(void *user, int64_t at, int64_t n, const int64_t *offsets);
void lathe_broadcast_run(const struct lathe_broadcast *b, int64_t begin, int64_t end, int64_t limit, lathe_run_fn fn,
                         void *user);

/* ---- strided copies: out (contiguous) = in with these strides */
#define LATHE_STRIDED_RANK 16
struct lathe_strided {
    unsigned rank;
    int64_t dims[LATHE_STRIDED_RANK];
    int64_t strides[LATHE_STRIDED_RANK]; /* of the input, in elements; may be 0 or negative */
    size_t bytes;                        /* of an element: 1, 2, 4 or 8 */
    const uint8_t *in;                   /* the element of output position 0 */
    uint8_t *out;
};
/* Does the team's part of the copy. Merges axes first (changes *s). */
void lathe_strided_copy(struct lathe_strided *s, const struct lathe_team *team);

/* Row-major strides of a shape, in elements. */
void lathe_strides_of(const struct lathe_tensor *t, int64_t *strides);
/* Product of dims [from, to). */
int64_t lathe_count_range(const struct lathe_tensor *t, unsigned from, unsigned to);
/* Adds 1 to a multi-index, last axis fastest; false when it wrapped to zeros. */
bool lathe_next_index(unsigned rank, const int64_t *dims, int64_t *index);

/* n elements of `bytes` bytes, all equal to the one at `value`. */
void lathe_fill(void *out, int64_t n, size_t bytes, const void *value);

/* The operator's index operand: element i, counted from the end when negative. False with a message when it is outside
 * [-size, size). */
bool lathe_index_at(const struct lathe_op_call *call, const struct lathe_tensor *indices, int64_t i, int64_t size,
                    int64_t *out);

/* The same for elements [first, first + n), n at most LATHE_CHUNK. */
bool lathe_indices_at(const struct lathe_op_call *call, const struct lathe_tensor *indices, int64_t first, int64_t n,
                      int64_t size, int64_t *out);

static inline const struct lathe_tensor *lathe_operand(const struct lathe_op_call *call, unsigned i) {
    return i < call->n_in ? call->in[i] : NULL;
}
static inline struct lathe_tensor *lathe_result(const struct lathe_op_call *call, unsigned i) {
    return i < call->n_out ? call->out[i] : NULL;
}
/* `group` of a linear operator on x [.., width] with n columns: group g of the columns of w reads group g of those of
 * x. 1 where it is absent, 0 where it does not divide them (packed: into whole panels). */
int64_t lathe_linear_groups(const struct lathe_op_call *call, int64_t width, int64_t n, bool packed);
/* Which of those groups [*begin, *end) the calling thread multiplies, with the team that is returned: its own alone
 * where they can be shared out evenly, else all of them together with the others. */
struct lathe_team lathe_split_groups(const struct lathe_team *team, int64_t groups, int64_t *begin, int64_t *end);
/* The refusal of a dtype that the operator does not have. */
enum lathe_status lathe_no_dtype(const struct lathe_op_call *call, const char *op, enum lathe_dtype dtype);
/* The refusal of shapes that do not fit each other (the compiler has checked them: a fault there, or of the artifact).
 */
enum lathe_status lathe_bad_shape(const struct lathe_op_call *call, const char *op);
/* Grain of a split over elements: small tensors stay with one thread. */
#define LATHE_GRAIN 1024
#endif
