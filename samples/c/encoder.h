/* What the three samples share: an opened model and one call that runs a sentence through it. It shows the whole use of
 * lathe.h: open, session, bind, run, read. */
#ifndef ENCODER_H
#define ENCODER_H

#include "lathe.h"
#include "prepared.h"

struct encoder {
    struct lathe_artifact *artifact;
    struct lathe_session *session;
    int64_t *ones, *zeros; /* attention mask and token types of the longest sentence */
};

/* Prints the reason and ends the program with its status when something fails. */
struct encoder encoder_open(const char *artifact, size_t longest);
/* Runs one sentence; output 0 is valid until the next call. */
const struct lathe_tensor_view *encoder_run(struct encoder *e, const struct sentence *s);
/* Seconds for one run, the median of `runs` over all sentences. */
double encoder_median_seconds(struct encoder *e, const struct prepared *p, int rounds);
void encoder_close(struct encoder *e);
#endif
