/* Lathe runtime: opens a compiled encoder (model.lathe) and runs it.
 *
 *     struct lathe_diag why = {0};
 *     struct lathe_artifact *a = NULL;
 *     struct lathe_session *s = NULL;
 *     if (lathe_artifact_open("model.lathe", NULL, &a, &why) || lathe_session_new(a, NULL, &s, &why)) puts(why.text);
 *     lathe_session_set_input(s, 0, LATHE_I64, 2, (int64_t[]){1, 8}, ids, &why);
 *     lathe_session_run(s, &why);
 *     const struct lathe_tensor_view *y = lathe_session_output(s, 0);
 *
 * Threads: an artifact is read-only after opening and may serve any number of sessions in any threads; a session
 * belongs to one thread at a time. Memory: a session allocates when it is made; set_input, run and output allocate
 * nothing and make no system call but waiting. Errors: every function that can fail returns enum lathe_status and
 * writes the reason into the caller's diag, which may be NULL. */
#ifndef LATHE_H
#define LATHE_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LATHE_VERSION "0.1.0"
const char *lathe_version(void);

/* Element types, numbered as in ONNX: LATHE_F32 = 1, LATHE_I32 = 6, LATHE_I64 = 7, LATHE_BOOL = 9, ... */
#ifndef LATHE_DTYPE_DEFINED
#define LATHE_DTYPE_DEFINED
enum lathe_dtype {
    LATHE_NO_DTYPE = 0,
    LATHE_F32 = 1,
    LATHE_U8 = 2,
    LATHE_I8 = 3,
    LATHE_U16 = 4,
    LATHE_I16 = 5,
    LATHE_I32 = 6,
    LATHE_I64 = 7,
    LATHE_BOOL = 9,
    LATHE_F16 = 10,
    LATHE_F64 = 11,
    LATHE_U32 = 12,
    LATHE_U64 = 13,
    LATHE_BF16 = 16
};
size_t lathe_dtype_bytes(enum lathe_dtype dtype);
const char *lathe_dtype_name(enum lathe_dtype dtype);
#endif

struct lathe_artifact;
struct lathe_session;

/* How a model lies on several cores: each runs whole requests, or each a part of every request. */
#ifndef LATHE_PLACEMENT_DEFINED
#define LATHE_PLACEMENT_DEFINED
enum lathe_placement { LATHE_PLACEMENT_DEFAULT = 0, LATHE_PLACEMENT_REPLICATE = 1, LATHE_PLACEMENT_PIPELINE = 2 };
#endif
const char *lathe_placement_name(enum lathe_placement placement); /* "replicate"; static, never NULL */

struct lathe_artifact_options {
    bool skip_weight_checksum; /* trust the weights' bytes; everything else is always verified. Default false */
    /* Leave the weights in the file's pages, which all processes share. By default weights of 4 MiB and more are read
     * into memory of this process where the system grants huge pages: short inputs run up to a sixth faster, opening
     * takes about twice as long. Sessions of one artifact share the weights in either case. */
    bool map_weights;
};

/* Opens and verifies an artifact once. LATHE_INVALID: not an artifact, damaged, truncated, of another version;
 * LATHE_UNSUPPORTED: it needs CPU features that no kernel of this library replaces; LATHE_IO: cannot be read. */
LATHE_NODISCARD enum lathe_status lathe_artifact_open(const char *path, const struct lathe_artifact_options *options,
                                                      struct lathe_artifact **out, struct lathe_diag *diag);
/* The same over memory that the caller keeps until close; `bytes` must be 64-byte aligned. */
LATHE_NODISCARD enum lathe_status lathe_artifact_open_memory(const void *bytes, size_t size,
                                                             const struct lathe_artifact_options *options,
                                                             struct lathe_artifact **out, struct lathe_diag *diag);
/* Sessions of it must be closed before. Sets the pointer to NULL; NULL is allowed. */
void lathe_artifact_close(struct lathe_artifact **artifact);

/* An input or output as declared. dims[i] >= 0 is fixed; -1 varies, dim_names[i] then tells which symbol. */
struct lathe_port {
    const char *name;
    enum lathe_dtype dtype;
    unsigned rank;
    int64_t dims[8];
    const char *dim_names[8];
    bool optional;    /* an input that has a default */
    int64_t id_limit; /* integer input used as row number: values must be in [0, id_limit); 0: no limit */
    bool per_token;   /* an output with one row a token of the mask [B,S]; rows at mask 0 are zeros, or what the
                         source computes where attention does not hide them */
};
unsigned lathe_artifact_input_count(const struct lathe_artifact *a);
unsigned lathe_artifact_output_count(const struct lathe_artifact *a);
const struct lathe_port *lathe_artifact_input(const struct lathe_artifact *a, unsigned index);
const struct lathe_port *lathe_artifact_output(const struct lathe_artifact *a, unsigned index);
/* -1 when there is none of that name. */
int lathe_artifact_find_input(const struct lathe_artifact *a, const char *name);
int lathe_artifact_find_output(const struct lathe_artifact *a, const char *name);
int64_t lathe_artifact_max_batch(const struct lathe_artifact *a);
int64_t lathe_artifact_max_length(const struct lathe_artifact *a);
/* How many cores the artifact was compiled for (0: as many as there are), how a model lies on them unless options say
 * otherwise, and the on-chip memory of one in bytes (0: no limit). */
unsigned lathe_artifact_cores(const struct lathe_artifact *a);
enum lathe_placement lathe_artifact_placement(const struct lathe_artifact *a); /* never the default */
uint64_t lathe_artifact_core_memory(const struct lathe_artifact *a);
unsigned lathe_artifact_label_count(const struct lathe_artifact *a);
const char *lathe_artifact_label(const struct lathe_artifact *a, unsigned index);

struct lathe_session_options {
    unsigned threads; /* 0: as many as cores, affinity and cgroup quota allow */
    const int *cores; /* pin thread i to cores[i]; NULL: not pinned */
    unsigned core_count;
    /* Lower maxima save memory; 0: those of the artifact. With static shapes max_batch may be higher too: batches are
     * split, so it only reserves room for outputs. */
    int64_t max_batch;
    int64_t max_seq;
    uint64_t cpu_mask;   /* CPU feature bits that may be used (targets/cpu_bits.def); 0: all */
    bool plain_c;        /* no instruction-set rows at all */
    unsigned poison;     /* not 0: fill the arena with this byte before each run (tests) */
    bool always_share;   /* all threads take part in each run, however little work it has (tests) */
    bool truncate;       /* static shapes: longer rows are cut to the largest length; their last token stays */
    bool poison_padding; /* static shapes: padding of wild ids and huge numbers (tests) */
};
LATHE_NODISCARD enum lathe_status lathe_session_new(struct lathe_artifact *artifact,
                                                    const struct lathe_session_options *options,
                                                    struct lathe_session **out, struct lathe_diag *diag);
void lathe_session_close(struct lathe_session **session);
unsigned lathe_session_threads(const struct lathe_session *s);
/* Bytes of the session's arena, reserved (touched pages only as shapes need them). */
size_t lathe_session_arena_bytes(const struct lathe_session *s);

/* Binds an input: `data` is borrowed until the run has returned, row-major, of any alignment its type allows. Integer
 * inputs may be i32 or i64 whatever the graph declares. Checks rank, fixed dims and maxima; that symbols agree between
 * inputs and that ids are in range is checked by run. */
LATHE_NODISCARD enum lathe_status lathe_session_set_input(struct lathe_session *s, unsigned index,
                                                          enum lathe_dtype dtype, unsigned rank, const int64_t *dims,
                                                          const void *data, struct lathe_diag *diag);
/* An artifact of static shapes (lathe compile --bucket) shows its batch and length as sizes that vary; run pads, splits
 * and crops, see FORMAT.md "BUCKETS". */
unsigned lathe_artifact_bucket_count(const struct lathe_artifact *a);
/* Batch and length of one; length 0: the graph has none. False when there is none of that number. */
bool lathe_artifact_bucket(const struct lathe_artifact *a, unsigned index, int64_t *batch, int64_t *seq);
/* Forgets all bindings. */
void lathe_session_clear_inputs(struct lathe_session *s);
/* LATHE_INVALID: a missing input, disagreeing dims, ids out of range ("input_ids[0][17]=6157, limit 6148"). */
LATHE_NODISCARD enum lathe_status lathe_session_run(struct lathe_session *s, struct lathe_diag *diag);

struct lathe_tensor_view {
    enum lathe_dtype dtype;
    unsigned rank;
    int64_t dims[8];
    const void *data; /* valid until the next run or close */
    size_t bytes;
};
/* NULL before the first successful run. */
const struct lathe_tensor_view *lathe_session_output(const struct lathe_session *s, unsigned index);
/* Rows of the last run that `truncate` cut: tokens with mask 1 were left out. */
unsigned lathe_session_truncated_rows(const struct lathe_session *s);
/* Rows of the last run that an unguarded -inf mask left without any key (their outputs are zeros). */
unsigned lathe_session_flagged_rows(const struct lathe_session *s);

/* ---- Many cores: a fleet runs one artifact on several CPU cores, one thread each, for any number of client threads.
 *
 *     struct lathe_fleet *f = NULL;
 *     if (lathe_fleet_new(a, &(struct lathe_fleet_options){.cores = 4}, &f, &why)) puts(why.text);
 *     struct lathe_request *r = lathe_fleet_take(f);           in each client thread, for each request
 *     if (lathe_request_set_input(r, 0, LATHE_I64, 2, dims, ids, &why) || lathe_request_run(r, &why)) puts(why.text);
 *     else use(lathe_request_output(r, 0));
 *     lathe_request_release(&r);
 *
 * Replicate: each core runs whole requests, taken in the order of submission by the core that is free. Pipeline: the
 * plan's steps are cut into consecutive stages, one a core, balanced by their cost; a request visits all cores in
 * order, and several are in flight. What a core hands over is the request alone: its tensors stay where they are.
 *
 * Threads: the functions of a fleet may be called by any thread at any time between new and close; a request belongs to
 * one thread from take to release, and to the fleet from submit until wait has returned. Memory: all of it is allocated
 * by lathe_fleet_new, one arena a slot; nothing after it allocates or makes a system call but waiting. Answers are the
 * bytes that a session gives. Waiting cores spin for at most 50 us, not at all under a CPU quota or where cores and
 * clients are more than the CPUs; an idle fleet costs nothing. */
struct lathe_fleet;
struct lathe_request;

struct lathe_fleet_options {
    enum lathe_placement placement; /* default: the artifact's, which its target or compile chose */
    unsigned cores;       /* 0: the artifact's; where that has none, as many as affinity and cgroup quota allow */
    const int *core_list; /* pin core i to this CPU, `cores` of them; NULL: not pinned */
    unsigned slots;       /* requests between take and release; 0: replicate 2 a core, pipeline one a core and 2 */
    int64_t max_batch, max_seq; /* as of a session; stages are balanced for these sizes */
    uint64_t cpu_mask;          /* as of a session */
    bool plain_c;
    unsigned poison; /* as of a session (tests) */
    bool truncate;   /* as of a session */
    bool measure;    /* keep the busy time of each core: two readings of its clock for each stage of a request */
};
/* More cores than the machine has are allowed: they share. */
LATHE_NODISCARD enum lathe_status lathe_fleet_new(struct lathe_artifact *artifact,
                                                  const struct lathe_fleet_options *options, struct lathe_fleet **out,
                                                  struct lathe_diag *diag);
/* All requests must have been released. Sets the pointer to NULL; NULL is allowed. */
void lathe_fleet_close(struct lathe_fleet **fleet);
enum lathe_placement lathe_fleet_placement(const struct lathe_fleet *f); /* never the default */
unsigned lathe_fleet_slots(const struct lathe_fleet *f);
/* Cores in use: a pipeline has no more than the plan has steps. */
unsigned lathe_fleet_cores(const struct lathe_fleet *f);
/* False: a core could not be pinned to its CPU, and runs where the system puts it. */
bool lathe_fleet_pinned(const struct lathe_fleet *f);

struct lathe_fleet_core {
    unsigned first_step, end_step;           /* of the plan: its stage, all steps for replicate */
    double share;                            /* predicted part of a request's work */
    uint64_t weight_bytes, activation_bytes; /* what its steps read and write at the maxima, each byte once,
                                                in all buckets */
    uint64_t parts;                          /* stages of requests done since new */
    uint64_t busy_ns;                        /* CPU time of its thread for them; 0 unless `measure` is set */
};
/* False when there is no such core. Counters may be read while the fleet runs. */
bool lathe_fleet_core(const struct lathe_fleet *f, unsigned core, struct lathe_fleet_core *out);

/* A request with nothing bound; waits while all slots are taken. */
struct lathe_request *lathe_fleet_take(struct lathe_fleet *f);
/* NULL when all slots are taken. */
struct lathe_request *lathe_fleet_try_take(struct lathe_fleet *f);
/* As lathe_session_set_input: `data` is borrowed until wait or run has returned. */
LATHE_NODISCARD enum lathe_status lathe_request_set_input(struct lathe_request *r, unsigned index,
                                                          enum lathe_dtype dtype, unsigned rank, const int64_t *dims,
                                                          const void *data, struct lathe_diag *diag);
/* Submit hands the request to the cores and returns at once; wait returns when it is done, with its own status, that of
 * lathe_session_run on the same inputs. A request may be submitted again after wait; waiting for one that was not
 * submitted returns its last status. */
void lathe_request_submit(struct lathe_request *r);
LATHE_NODISCARD enum lathe_status lathe_request_wait(struct lathe_request *r, struct lathe_diag *diag);
/* Both. */
LATHE_NODISCARD enum lathe_status lathe_request_run(struct lathe_request *r, struct lathe_diag *diag);
/* As of a session; the data are valid until submit, run or release. NULL unless the last run succeeded. */
const struct lathe_tensor_view *lathe_request_output(const struct lathe_request *r, unsigned index);
unsigned lathe_request_truncated_rows(const struct lathe_request *r);
unsigned lathe_request_flagged_rows(const struct lathe_request *r);
/* Gives the slot back, after waiting where that was not done. Sets the pointer to NULL; NULL is allowed. */
void lathe_request_release(struct lathe_request **request);

#ifdef __cplusplus
}
#endif
#endif
