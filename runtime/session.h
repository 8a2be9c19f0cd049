/* Inside of a session, shared by session.c (making, binding), session_shape.c (sizes of a run), session_input.c (values
 * of a run) and exec.c (the run). */
#ifndef LATHE_SESSION_H
#define LATHE_SESSION_H

#include "kernel.h"
#include "plan.h"
#include "threads.h"

#include <stdatomic.h>

struct lathe_binding {
    bool bound;
    enum lathe_dtype dtype;
    int64_t dims[LATHE_MAX_RANK];
    const void *data;
    uint8_t *buffer; /* the session's copy when types differ, or the default; NULL: no such input */
    uint64_t buffer_bytes;
    enum lathe_buffer_state { LATHE_BUFFER_ZEROS, LATHE_BUFFER_POSITIONS, LATHE_BUFFER_COPY } state;
    int64_t filled, axis; /* elements of the buffer that hold positions, and the length of the axis they count */
};

#define LATHE_SAME_ROWS (UINT32_C(1) << 31)

/* A step as the threads see it. */
struct lathe_step_state {
    const struct lathe_op_info *op;
    struct lathe_attrs attrs;
    const struct lathe_tensor *const *in;
    struct lathe_tensor *const *out;
    uint16_t n_in, n_out;
    bool solo;                       /* thread 0 alone runs it: too little work to share */
    bool needs_rows;                 /* its sizes follow from the prologue */
    bool flags_rows;                 /* it has keys, and a row without any is to be told */
    bool prepared;                   /* the phase before has quantized its rows */
    uint32_t heads_of;               /* the attention step that a product is cut for, see struct lathe_head_columns */
    struct lathe_head_columns heads; /* of both; heads 0: cut as they like */
    size_t rows; /* not 0: part i of the team touches the i-th part of so many rows alone, see lathe_gemm_by_rows */
    /* the steps before it that touch bytes it writes, or write bytes it touches; the nearest first */
    uint32_t first_conflict, conflict_count;
    uint32_t last_reader; /* the last step that may read what it writes, UINT32_MAX when that outlives the run */
};

/* Steps [first, end), then the rows of step `prepare`: what happens between two meetings of the threads. */
struct lathe_phase {
    uint32_t first, end, prepare;
    /* 0: each thread does its part of one step after the other. Else it takes blocks of its rows, of at most so many,
     * through all steps; results that only these steps read then have just a block's room, in the thread's cache. */
    uint32_t block_rows;
    bool in_turns; /* each thread does it in `turns` parts, so that who is done may take one of another */
};
#define LATHE_NO_SLOT        UINT64_MAX
#define LATHE_BLOCK_OPERANDS 10

/* Operands that a step working by rows touches by rows: bits of ins, then of outs; both 0 for other operators. */
struct lathe_row_operands {
    unsigned in, out;
    unsigned own; /* see lathe_gemm_by_rows; 0: by the size of the weights */
};
#define LATHE_NOTHING_TO_PREPARE UINT32_MAX

/* A session either runs one plan, or, over an artifact with buckets, owns one session a bucket (session_buckets.c),
 * whose pool and memory are the owner's. */
struct lathe_session {
    struct lathe_artifact *artifact;
    const struct lathe_plan *plan;
    const struct lathe_manifest *manifest; /* the ports as the plan has them */
    const struct lathe_port *ports;        /* inputs, then outputs */
    struct lathe_session_buckets *buckets; /* of an owner; NULL: this session runs `plan` */
    bool owned;
    /* places from `tokens` on of the `token_places` of a bucket are padding; tokens 0: none */
    int64_t tokens, token_places;
    struct lathe_pool *pool;
    struct lathe_kernels kernels;
    unsigned threads;
    unsigned poison;
    bool always_share;
    int64_t *symbol_max; /* of this session */

    /* one mapping: arena, input buffers, scratch of each thread; untouched pages cost nothing */
    uint8_t *memory;
    size_t memory_bytes;
    uint8_t *arena;
    uint8_t *scratch;
    size_t scratch_bytes; /* a thread */

    struct lathe_binding *bindings;
    int64_t *symbols, *dims;
    struct lathe_tensor *tensors;
    struct lathe_step_state *steps;
    struct lathe_attr *attrs;
    int64_t *ints;
    struct lathe_tensor **operands;
    uint32_t *conflicts; /* steps; LATHE_SAME_ROWS is added where a row of one meets only the same row of the other */
    struct lathe_phase *phases;
    unsigned phase_count, turns;
    uint8_t *prepared; /* quantized rows of the product of the next phase, shared by the threads */
    size_t prepared_bytes;
    uint64_t *slots; /* of each value: where its block lies in the blocks of a thread, or LATHE_NO_SLOT */
    uint8_t *blocks; /* block_bytes for each thread */
    size_t block_bytes;
    uint32_t *input_values; /* values that lie in an input: the inputs themselves and views of them */
    uint32_t input_value_count;
    struct lathe_tensor_view *outputs;
    struct lathe_diag *diags; /* one a thread */
    void *tables;             /* the allocation behind the arrays above */

    uint64_t *step_ns;           /* [thread][step], sums over the runs timed; NULL: nobody wants to know */
    uint64_t run_ns, runs_timed; /* the whole runs */

    bool alone;       /* the caller runs all steps: too little work to wake the other threads for */
    bool shape_known; /* dims and tensors fit the bindings */
    int64_t rows_key; /* sum of all row counts that the plan was laid out for; -1: none */
    bool has_output;
    unsigned flagged;
    atomic_int failed; /* a step of the run going on has failed */
};

/* ---- session.c */
/* A session of one bucket's plan without pool and memory of its own; `owner` has its pool, kernels and artifact set. */
LATHE_NODISCARD enum lathe_status lathe_session_new_plan(struct lathe_session *owner, unsigned bucket,
                                                         struct lathe_session **out, struct lathe_diag *diag);
/* Its values and scratch lie in the owner's memory, which is large enough. */
void lathe_session_share(struct lathe_session *s, const struct lathe_session *owner);

/* ---- session_buckets.c: what each public call does on an artifact with buckets */
struct lathe_session_buckets;
LATHE_NODISCARD enum lathe_status
lathe_buckets_open(struct lathe_session *s, const struct lathe_session_options *options, struct lathe_diag *diag);
void lathe_buckets_close(struct lathe_session *s);
/* The limits of a size that varies. */
LATHE_NODISCARD enum lathe_status lathe_buckets_check_dim(const struct lathe_session *s, unsigned input, unsigned axis,
                                                          int64_t size, struct lathe_diag *diag);
/* What lathe_session_begin does: sizes and values are checked, the outputs have their sizes. */
LATHE_NODISCARD enum lathe_status lathe_buckets_begin(struct lathe_session *s, bool *empty, struct lathe_diag *diag);
/* The chunks of the request one after the other; session_buckets.h has the parts. */
LATHE_NODISCARD enum lathe_status lathe_buckets_exec(struct lathe_session *s, struct lathe_diag *diag);
size_t lathe_buckets_arena_bytes(const struct lathe_session *s);
unsigned lathe_buckets_truncated(const struct lathe_session *s);
/* The session of one bucket; runs of it are its caller's business. */
struct lathe_session *lathe_buckets_session(const struct lathe_session *s, unsigned bucket);
/* All chunks of later runs go to this bucket, which must be large enough; -1: to the best ones again. */
void lathe_buckets_force(struct lathe_session *s, int bucket);

/* ---- session_shape.c */
/* Symbols from the bindings, all bindings checked against them, sizes of every tensor that does not depend on kept
 * rows. *empty: the batch is 0. Done only when a binding has changed its sizes. */
LATHE_NODISCARD enum lathe_status lathe_session_shape(struct lathe_session *s, bool *empty, struct lathe_diag *diag);
/* The rest, once the prologue has made the row maps. */
LATHE_NODISCARD enum lathe_status lathe_session_shape_rows(struct lathe_session *s, struct lathe_diag *diag);
/* Sizes at the maxima of the session, for scratch and buffers; sizes that cannot be are taken as 0. */
void lathe_session_shape_max(struct lathe_session *s);
/* The name of a dim for messages: its symbol, or "size". */
const char *lathe_session_dim_name(const struct lathe_session *s, uint32_t dim);

/* ---- session_phases.c */
/* Finds for each step the steps before it that it must not overtake. False when memory runs out. */
bool lathe_session_conflicts(struct lathe_session *s);
struct lathe_row_operands lathe_row_operands(enum lathe_op op);
/* Bytes for the blocks of one thread that are enough for any run. */
size_t lathe_session_block_bytes(const struct lathe_session *s);
/* Solo steps and phases, for the sizes of the run. */
void lathe_session_phases(struct lathe_session *s);

/* ---- session_input.c: checks ids, converts, fills defaults; sets the data of the inputs' tensors. */
LATHE_NODISCARD enum lathe_status lathe_session_inputs(struct lathe_session *s, struct lathe_diag *diag);
/* Every element of a bound input within its limit and the type of the port. */
LATHE_NODISCARD enum lathe_status lathe_session_check_values(const struct lathe_session *s, uint32_t input,
                                                             struct lathe_diag *diag);
/* Element i of an integer or bool tensor. */
int64_t lathe_read_integer(enum lathe_dtype dtype, const void *data, int64_t i);
/* Integers that are known to fit. */
void lathe_convert_integers(enum lathe_dtype from, const void *data, int64_t count, enum lathe_dtype to, void *out);

/* ---- A run in parts: begin, the steps, end. lathe_session_run is all of them; a fleet runs ranges of the steps on
 * several cores, one after the other. With buckets the steps are those of the chunks: session_buckets.h. */
/* session.c: refuses what is missing, sizes and values included, and makes all ready for step 0. *empty: the batch is
 * 0, there is nothing to run and the outputs have no rows. */
LATHE_NODISCARD enum lathe_status lathe_session_begin(struct lathe_session *s, bool *empty, struct lathe_diag *diag);
/* ---- step_times.c */
/* The session whose steps can be timed: this one, or that of the bucket that the request before began with. */
struct lathe_session *lathe_session_timed(struct lathe_session *s);
/* From now on (or anew), runs note how long their steps take, each part two readings of the clock. False: no memory. */
bool lathe_session_time_steps(struct lathe_session *s);
/* Nanoseconds of a step in all runs timed: mean over the threads, so that steps and waiting add up to run_ns. */
uint64_t lathe_session_step_ns(const struct lathe_session *s, uint32_t step);
uint64_t lathe_now_ns(void);

/* exec.c: forgets the failures of the last run, and poisons the arena where that is asked for. */
void lathe_session_restart(struct lathe_session *s);
/* exec.c: all steps, by the session's threads. */
LATHE_NODISCARD enum lathe_status lathe_session_exec(struct lathe_session *s, struct lathe_diag *diag);
/* exec.c: steps `first` to `end` - 1 by the calling thread alone; each range starts where the last one ended.
 * `scratch`: scratch_bytes of the caller's; NULL: the session's own. */
LATHE_NODISCARD enum lathe_status lathe_session_steps(struct lathe_session *s, uint32_t first, uint32_t end,
                                                      uint8_t *scratch, struct lathe_diag *diag);
/* session.c: the outputs may be read. */
void lathe_session_end(struct lathe_session *s);
#endif
