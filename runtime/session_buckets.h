/* Inside of a session over an artifact with buckets, shared by session_buckets.c (making, the run) and bucket_rows.c
 * (what goes into a chunk and comes out of it). */
#ifndef LATHE_SESSION_BUCKETS_H
#define LATHE_SESSION_BUCKETS_H

#include "session.h"

struct lathe_session_buckets {
    const struct lathe_buckets *of;
    struct lathe_session **plans;      /* one a bucket */
    struct lathe_bucket_split *splits; /* one a group of buckets */
    int64_t max_batch, max_seq;        /* of this session */
    size_t arena_bytes;
    bool truncate, poison;
    int forced;        /* the bucket of all chunks, -1: the best */
    uint8_t **inputs;  /* an input of one chunk, in the type of its port; room for the largest bucket */
    uint8_t **outputs; /* an output of max_batch rows */

    /* the run */
    int64_t rows, seq; /* of the request; seq 0: the graph has none */
    int64_t kept;      /* of seq: what reaches the plan, less only when rows are cut */
    unsigned truncated;
    int group, whole; /* of its length; the bucket that takes every chunk, -1: the best one */
    bool zeroes;      /* some token is masked, and its rows in outputs must be 0 */
};

/* One chunk: rows [first, first + rows) of the request in one bucket. */
struct lathe_chunk {
    unsigned bucket;
    int64_t first, rows;
};

/* ---- session_buckets.c: between lathe_session_begin and lathe_session_end, for each chunk: next, bind, run of the
 * plan's session (lathe_session_run, or in its parts), take; `done` counts the rows that are through. */
/* False when no row is left. */
bool lathe_chunk_next(const struct lathe_session *s, int64_t done, struct lathe_chunk *out);

/* ---- bucket_rows.c */
/* Binds the inputs of a chunk to the session of its bucket, from the caller's memory where that fits as it is. */
LATHE_NODISCARD enum lathe_status lathe_chunk_bind(struct lathe_session *s, const struct lathe_chunk *chunk,
                                                   struct lathe_diag *diag);
/* The real part of the outputs of the chunk's session to its place in the outputs of the request. */
void lathe_chunk_take(struct lathe_session *s, const struct lathe_chunk *chunk);
/* ---- helpers of the two */
/* Where the token of a row stands that is at `place` of its cut form. */
struct lathe_row_cut {
    int64_t from, last; /* places from `from` on, the last one from `last` */
    bool cut;           /* tokens with mask 1 were left out */
};
struct lathe_row_cut lathe_row_cut(const struct lathe_session *s, int64_t row);
/* The mask of the request at a place of a row, 1 where there is none. */
bool lathe_row_mask(const struct lathe_session *s, int64_t row, int64_t place);
#endif
