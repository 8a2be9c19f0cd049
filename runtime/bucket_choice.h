/* Which bucket of a static artifact serves a request, and how a batch is cut over several: pure functions, without
 * memory of their own. FORMAT.md, "BUCKETS", states the rule.
 *
 * Buckets stand in the order of (seq, batch), no two alike. `seq` is 0 in all of them when the graph has no axis for
 * it. A request of length L can use a bucket with seq >= L; where padding in length is not allowed (`exact`: no mask),
 * one with seq == L only. A batch is cut into chunks, in order; the sum of batch * max(seq, 1) over the chunks'
 * buckets, its padded work, is the least there is, with the fewest chunks among equals. Larger chunks come first, so
 * only the last one has rows of padding. Threads: any. */
#ifndef LATHE_BUCKET_CHOICE_H
#define LATHE_BUCKET_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define LATHE_MAX_BUCKETS 48

struct lathe_bucket_size {
    int64_t batch, seq;
};

struct lathe_bucket_list {
    const struct lathe_bucket_size *at;
    unsigned count; /* 1 to LATHE_MAX_BUCKETS */
    bool exact;     /* length cannot be padded */
};

/* The one bucket with the least padded work that holds `rows` rows of length `seq`, -1: none. */
int lathe_bucket_fit(const struct lathe_bucket_list *list, int64_t rows, int64_t seq);

/* Buckets of one length form a group; groups are numbered from 0 by rising length. */
unsigned lathe_bucket_groups(const struct lathe_bucket_list *list);
/* The group whose buckets are the shortest that take this length, -1: none does. */
int lathe_bucket_group(const struct lathe_bucket_list *list, int64_t seq);

/* A table of the best first chunk for each number of rows up to LATHE_SPLIT_ROWS, of one group. With more rows left,
 * the first chunk is a full one of the bucket with the least work a row. */
#define LATHE_SPLIT_ROWS 512
struct lathe_bucket_split {
    uint8_t first[LATHE_SPLIT_ROWS + 1]; /* entry 0 is not used */
    uint8_t bulk;
};
void lathe_bucket_split_make(const struct lathe_bucket_list *list, unsigned group, struct lathe_bucket_split *out);
/* The bucket of the next chunk when `rows` > 0 rows are left; it takes min(rows, its batch) of them. */
static inline unsigned lathe_bucket_next(const struct lathe_bucket_split *split, int64_t rows) {
    return rows > LATHE_SPLIT_ROWS ? split->bulk : split->first[rows];
}
#endif
