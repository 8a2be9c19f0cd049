/* Prepared sentences: a text file with one sentence a line, its fields separated by tabs:
 *     rating <tab> ids <tab> spans <tab> text
 * rating: a human's judgement, or "-"; ids: token ids separated by spaces; spans: "begin:end" of each token as byte
 * offsets in the text ("0:0" for special tokens), or "-". samples/prepare_ids.py writes such files. */
#ifndef PREPARED_H
#define PREPARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sentence {
    double rating;
    bool rated;
    int64_t *ids;     /* `count` of them */
    int *begin, *end; /* NULL when the file gives none */
    size_t count;
    char *text;
};

struct prepared {
    struct sentence *list;
    size_t count, longest;
};

/* Reads the file; prints what is wrong and ends the program if it cannot. Free with prepared_free. */
struct prepared prepared_read(const char *path);
void prepared_free(struct prepared *p);

/* Seconds of a steady clock. */
double now(void);
#endif
