/* Tensors, attributes and the call of an operator: what the executor, the compiler's constant folding and the reference
 * execution hand to the functions of runtime/ops/.
 *
 * Every tensor is contiguous and row-major. Shapes in the comments of operators: B batch, S tokens, R rows (B*S, or the
 * real tokens of a packed batch), H hidden size, N heads, D head size. */
#ifndef LATHE_TENSOR_H
#define LATHE_TENSOR_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stdint.h>

#define LATHE_MAX_RANK 8

#ifndef LATHE_DTYPE_DEFINED /* lathe.h has the same list for users without the tables */
#define LATHE_DTYPE_DEFINED
enum lathe_dtype {
    LATHE_NO_DTYPE = 0,
#define DTYPE(number, name, text, bytes, numpy) LATHE_##name = number,
#include "dtypes.def"
#undef DTYPE
};
#endif

/* Bytes of one element, 0 for an unknown number. */
size_t lathe_dtype_bytes(enum lathe_dtype dtype);
/* "f32", "i64", ...; "?" for an unknown number. */
const char *lathe_dtype_name(enum lathe_dtype dtype);
bool lathe_dtype_is_float(enum lathe_dtype dtype);
bool lathe_dtype_is_integer(enum lathe_dtype dtype); /* signed and unsigned, not bool */

struct lathe_tensor {
    void *data; /* borrowed; 64-byte aligned inside an arena */
    enum lathe_dtype dtype;
    unsigned rank;
    int64_t dims[LATHE_MAX_RANK];
};

/* Elements of a tensor whose dims were checked before (never overflows for tensors of a verified plan). */
static inline int64_t lathe_tensor_count(const struct lathe_tensor *t) {
    int64_t n = 1;
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Checked arithmetic: false when the result does not fit; *out is then unspecified. */
static inline bool lathe_mul_i64(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool lathe_add_i64(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool lathe_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool lathe_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* ---- attributes: keys are rows of targets/attrs.def */
enum lathe_attr_key {
    LATHE_ATTR_NONE = 0,
#define ATTR(number, name, text) LATHE_ATTR_##name = number,
#include "attrs.def"
#undef ATTR
};

enum lathe_attr_type {
    LATHE_ATTR_INT = 1,
    LATHE_ATTR_FLOAT = 2,
    LATHE_ATTR_INTS = 3, /* ints[0..count) */
    LATHE_ATTR_DIMS = 4, /* in the graph and plan: ints[] are ids of dimension expressions; an operator never sees this,
                            it gets INTS with the values of the run */
};

struct lathe_attr {
    enum lathe_attr_key key;
    enum lathe_attr_type type;
    int64_t i;
    double f;
    const int64_t *ints;
    uint32_t count;
};

struct lathe_attrs {
    const struct lathe_attr *list;
    uint32_t count;
};

const struct lathe_attr *lathe_attr_find(const struct lathe_attrs *attrs, enum lathe_attr_key key);
int64_t lathe_attr_int(const struct lathe_attrs *attrs, enum lathe_attr_key key, int64_t absent);
double lathe_attr_float(const struct lathe_attrs *attrs, enum lathe_attr_key key, double absent);
/* The list of an INTS attribute, NULL and *count = 0 when it is absent. */
const int64_t *lathe_attr_ints(const struct lathe_attrs *attrs, enum lathe_attr_key key, uint32_t *count);

/* ---- a team: the threads that execute one step together */
struct lathe_barrier;
/* Those who share some work, in equal parts: threads, or several parts of each thread (see lathe_pool_run_phases). */
struct lathe_team {
    unsigned index; /* of the part, 0 <= index < count */
    unsigned count;
    struct lathe_barrier *barrier; /* NULL when count is 1 */
    bool near; /* lines pass from one thread's cache to another's within LATHE_NEAR_NS, as the pool has measured */
    unsigned thread; /* who is at the part, one part at a time: whose scratch it may use */
    unsigned turns;  /* parts of a thread; 0 is 1 */
};
static inline unsigned lathe_team_threads(const struct lathe_team *team) {
    return team->turns ? team->count / team->turns : team->count;
}
/* Waits for all threads of the team; a no-op for a team of one. */
void lathe_team_wait(const struct lathe_team *team);
/* The part [*begin, *end) of `total` items that belongs to the calling thread; parts are multiples of `grain`. */
void lathe_team_split(const struct lathe_team *team, int64_t total, int64_t grain, int64_t *begin, int64_t *end);

/* ---- a call */
struct lathe_kernels; /* the chosen row of each kernel family: runtime/kernels/kernel.h */

/* Columns that belong to heads: in part i head h has those from at + h * width to at + (h + 1) * width, multiples of
 * 16. The parts are all columns there are. */
struct lathe_head_columns {
    int64_t heads; /* 0: no such split */
    unsigned count;
    struct {
        int64_t at, width;
    } part[3];
};

struct lathe_op_call {
    struct lathe_attrs attrs;
    const struct lathe_tensor *const *in; /* NULL entries are absent operands; entries past n_in do not exist */
    struct lathe_tensor *const *out;      /* dims and dtype are set by the caller; NULL entries are not wanted */
    unsigned n_in, n_out;
    struct lathe_team team;
    const struct lathe_kernels *kernels;
    struct lathe_team beside; /* count > 1: this thread among those that are at work on other rows of the same product,
                                 in calls of their own, with the same weights; team is one of one then */
    void *prepared;           /* NULL, or what the operator's prepare function has left for all threads (linear_q8) */
    /* NULL, or what attention and the products it reads are to be cut by, the part of lathe_team_split(heads, 1): then
     * no thread needs what another has computed. Attention looks at the number of heads only. */
    const struct lathe_head_columns *heads;
    /* static shapes: of keys [B, token_places] those from `tokens` on are padding that the request does not have; 0:
     * none */
    int64_t tokens, token_places;
    void *scratch;           /* of this thread, 64-byte aligned, as large as the operator's scratch function says */
    struct lathe_diag *diag; /* of this thread; may be NULL */
};

/* An operator. All threads of the team call it with the same tensors; each does its part and returns when its part is
 * done; the caller waits for the team afterwards. Inputs and outputs do not overlap unless the operator's row allows
 * `in place`. It allocates nothing and makes no system call. */
typedef enum lathe_status (*lathe_op_fn)(const struct lathe_op_call *call);

/* Scratch bytes that each thread needs for these shapes (data pointers may be NULL); NULL in the table means 0. */
typedef size_t (*lathe_op_scratch_fn)(const struct lathe_op_call *call);

/* The calling thread's part of what all threads need (linear_q8: its rows of x in 8 bits), into call->prepared; run
 * takes it from there once the threads have met. Whatever is wrong with the call, run says. */
typedef void (*lathe_op_prepare_fn)(const struct lathe_op_call *call);

enum lathe_op {
    LATHE_OP_NONE = 0,
#define OP(number, name, text, min_in, max_in, n_out, flags) LATHE_OP_##name = number,
#include "ir_ops.def"
#undef OP
};

#define LATHE_OPF_IN_PLACE    1u   /* output 0 may share the memory of input 0 (same bytes per element and count) */
#define LATHE_OPF_VIEW        2u   /* output 0 is input 0 with other dims: no step in the plan */
#define LATHE_OPF_COMMUTES    4u   /* inputs 0 and 1 may be swapped */
#define LATHE_OPF_SHAPE_ONLY  8u   /* result follows from shapes alone: gone before lowering */
#define LATHE_OPF_FUSED       16u  /* made by passes only, never by the import */
#define LATHE_OPF_SCRATCH     32u  /* has a scratch function: lathe_scratch_<text> */
#define LATHE_OPF_PAIRWISE    64u  /* elementwise with broadcasting of its inputs */
#define LATHE_OPF_ELEMENTWISE 128u /* unary, output has the shape of input 0 */

struct lathe_op_info {
    enum lathe_op op;
    const char *name;               /* as in the text form */
    unsigned min_in, max_in, n_out; /* max_in UINT32_MAX: any number; n_out: the most it can have */
    unsigned flags;
    lathe_op_fn run; /* plain C or better; NULL for VIEW and SHAPE_ONLY rows */
    lathe_op_scratch_fn scratch;
    lathe_op_prepare_fn prepare;
};

/* NULL for an unknown number. */
const struct lathe_op_info *lathe_op_info(unsigned op);
/* LATHE_OP_NONE when no row has that name. */
enum lathe_op lathe_op_by_name(const char *name);

#endif
