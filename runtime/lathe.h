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
 * Threads: an artifact is read-only after opening and may serve any number of sessions in any threads; a session belongs
 * to one thread at a time. Memory: a session allocates when it is made; set_input, run and output allocate nothing and
 * make no system call but waiting. Errors: every function that can fail returns enum lathe_status and writes the reason
 * into the caller's diag, which may be NULL. */
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
    bool optional;         /* an input that has a default */
    int64_t id_limit;      /* integer input used as row number: values must be in [0, id_limit); 0: no limit */
    bool per_token;        /* an output with one row a token of the mask [B,S]; rows at mask 0 are zeros, or what the
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
unsigned lathe_artifact_label_count(const struct lathe_artifact *a);
const char *lathe_artifact_label(const struct lathe_artifact *a, unsigned index);

struct lathe_session_options {
    unsigned threads;       /* 0: as many as cores, affinity and cgroup quota allow */
    const int *cores;       /* pin thread i to cores[i]; NULL: not pinned */
    unsigned core_count;
    int64_t max_batch;      /* lower maxima save memory; 0: those of the artifact */
    int64_t max_seq;
    uint64_t cpu_mask;      /* CPU feature bits that may be used (targets/cpu_bits.def); 0: all */
    bool plain_c;           /* no instruction-set rows at all */
    unsigned poison;        /* not 0: fill the arena with this byte before each run (tests) */
    bool always_share;      /* all threads take part in each run, however little work it has (tests) */
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
/* Rows of the last run that an unguarded -inf mask left without any key (their outputs are zeros). */
unsigned lathe_session_flagged_rows(const struct lathe_session *s);

#ifdef __cplusplus
}
#endif
#endif
