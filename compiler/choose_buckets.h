/* Which static lengths serve a distribution of lengths with the least work: lathe buckets. */
#ifndef LATHE_CHOOSE_BUCKETS_H
#define LATHE_CHOOSE_BUCKETS_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stdint.h>

#define LATHE_LENGTH_MAX (1 << 20) /* tokens of a row, as of --max-seq */

/* How often each length occurs. */
struct lathe_lengths {
    uint64_t *counts;  /* [LATHE_LENGTH_MAX + 1], owned: requests of that many tokens */
    uint64_t requests; /* their sum, below 2^63 */
    uint64_t cut;      /* requests that were longer than `max_length` and count as it */
    int64_t longest;   /* largest length with a request; 0: none */
};

/* Reads a text file, or standard input for "-": a line is a length of 1 to LATHE_LENGTH_MAX tokens, or a length and a
 * count of requests; blank lines are skipped. `max_length` 0: no limit; else longer ones count as that. LATHE_INVALID
 * with file and line for any other line, and for a file without a request. */
LATHE_NODISCARD enum lathe_status lathe_lengths_read(const char *path, int64_t max_length, struct lathe_lengths *out,
                                                     struct lathe_diag *diag);
void lathe_lengths_free(struct lathe_lengths *lengths);

/* Work of one row padded to `length`: the length itself; or, with a hidden size H, length * (6 H + length), which is
 * the multiply-adds of an encoder layer with a feed-forward of 4 H (12 H^2 + 2 H length a token) divided by 2 H. */
uint64_t lathe_row_work(int64_t length, int64_t hidden);

struct lathe_bucket_share {
    int64_t length;
    uint64_t requests; /* that this is the smallest bucket for */
    uint64_t tokens;   /* of those requests, without padding */
};

/* Sets `buckets` [at most `most`] to the lengths, rising, with the least total work of all rows, each padded to the
 * smallest bucket that holds it: exact, for every distribution, in most * D * log D steps and most * D * 4 bytes over D
 * distinct lengths. `top` is the largest bucket whether a row needs it or not; 0: the longest row. Fewer than `most`
 * when there are no more lengths. *work is their total work, *one that of the largest alone. LATHE_INVALID when the
 * work does not fit 63 bits. */
LATHE_NODISCARD enum lathe_status lathe_buckets_choose(const struct lathe_lengths *lengths, unsigned most, int64_t top,
                                                       int64_t hidden, struct lathe_bucket_share *buckets,
                                                       unsigned *count, uint64_t *work, uint64_t *one,
                                                       struct lathe_diag *diag);
#endif
