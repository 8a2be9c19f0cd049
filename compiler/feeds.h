/* Inputs for an artifact: made from a fixed random generator, or taken from data files, one tensor an input. */
#ifndef LATHE_FEEDS_H
#define LATHE_FEEDS_H

#include "data_tensor.h"

struct lathe_feeds {
    struct lathe_data_tensor *at; /* one an input of the artifact; data NULL: not given */
    unsigned count;
};
void lathe_feeds_free(struct lathe_feeds *feeds);

struct lathe_feed_spec {
    int64_t batch, seq;
    const int64_t *lengths; /* real tokens of each row, `batch` of them; NULL: all `seq` */
    uint64_t seed;
    /* Ids as in text: those soon after this one, which tokenizers give to frequent tokens, far more often. 0: all ids
     * alike
     */
    int64_t frequent;
    bool longer; /* a length above the largest bucket stays: the session cuts it */
    bool plain;  /* token types zero, no rows left of 0: what a server sends (bench); else all that is allowed */
};
/* Ids in their limits, masks 1 for real tokens, positions counted, floats in [-1, 1). Sizes that the artifact fixes or
 * bounds are kept inside what it allows. */
LATHE_NODISCARD enum lathe_status lathe_feeds_make(const struct lathe_artifact *a, const struct lathe_feed_spec *spec,
                                                   struct lathe_feeds *out, struct lathe_diag *diag);
/* True when the first axis of some input varies. */
bool lathe_feeds_batch_varies(const struct lathe_artifact *a);
/* Empty feeds for an artifact, to be filled by name. */
LATHE_NODISCARD enum lathe_status lathe_feeds_new(const struct lathe_artifact *a, struct lathe_feeds *out,
                                                  struct lathe_diag *diag);
/* Moves `tensor` to the input of that name, which stands in messages with `file`; LATHE_INVALID when there is none or
 * it has one already. Taken over only on success. */
LATHE_NODISCARD enum lathe_status lathe_feeds_put(const struct lathe_artifact *a, struct lathe_feeds *feeds,
                                                  const char *name, struct lathe_data_tensor *tensor, const char *file,
                                                  struct lathe_diag *diag);
/* The same for file number `index` of a data set: by its own name, or by position where the file gives none. */
LATHE_NODISCARD enum lathe_status lathe_feeds_put_nth(const struct lathe_artifact *a, struct lathe_feeds *feeds,
                                                      unsigned index, struct lathe_data_tensor *tensor,
                                                      const char *file, struct lathe_diag *diag);
/* Binds every tensor that is given; the session borrows them until the run has returned. */
LATHE_NODISCARD enum lathe_status lathe_feeds_bind(struct lathe_session *s, const struct lathe_feeds *feeds,
                                                   struct lathe_diag *diag);
/* Index of the input that says which tokens are real, -1 when there is none. */
int lathe_feeds_mask(const struct lathe_artifact *a);
#endif
