/* Command-line options by table: one parser, one --help and one kind of message for all subcommands. */
#ifndef LATHE_OPTIONS_H
#define LATHE_OPTIONS_H

#include "lathe_status.h"
#include "text.h"

#include <stdbool.h>
#include <stdint.h>

/* Texts given by repeated options or as arguments; borrowed from argv. */
struct lathe_words {
    const char **at;
    unsigned count, capacity;
};
void lathe_words_free(struct lathe_words *words);

enum lathe_option_kind {
    LATHE_OPTION_FLAG,  /* bool */
    LATHE_OPTION_TEXT,  /* const char *; given twice: the last counts */
    LATHE_OPTION_WORDS, /* struct lathe_words; repeatable */
    LATHE_OPTION_COUNT, /* int64_t, whole number in [min, max] */
    LATHE_OPTION_REAL,  /* double, finite, >= 0 */
};

struct lathe_option {
    const char *name; /* without "--" */
    char letter;      /* 0: no short form */
    enum lathe_option_kind kind;
    void *into;
    const char *value;          /* "FILE" in --help; NULL for flags */
    const char *help;           /* one line */
    const char *const *choices; /* allowed texts, ending with NULL; NULL: any */
    int64_t min, max;           /* of COUNT */
    bool *given;                /* set when the option is there; may be NULL */
};

struct lathe_syntax {
    const char *command;   /* "compile" */
    const char *arguments; /* "MODEL.onnx -o OUT.lathe" */
    const char *summary;   /* one line */
    const char *details;   /* more lines for --help, or NULL */
    const struct lathe_option *options;
    unsigned option_count;
    unsigned min_args, max_args;
};

/* Fills the options and `args`. *help is set, and nothing else promised, when --help or -h is among them. Errors are
 * LATHE_USAGE: an unknown option with the nearest known one, a missing or wrong value, too few or too many arguments.
 */
LATHE_NODISCARD enum lathe_status lathe_options_parse(const struct lathe_syntax *syntax, int argc, char **argv,
                                                      struct lathe_words *args, bool *help, struct lathe_diag *diag);
void lathe_options_help(const struct lathe_syntax *syntax, struct lathe_text *out);

/* The nearest of `names` (ending with NULL) within a few edits, NULL when none is near. */
const char *lathe_nearest_name(const char *name, const char *const *names);
/* Strict numbers: all of the text, no spaces. */
bool lathe_parse_count(const char *text, int64_t min, int64_t max, int64_t *out);
bool lathe_parse_real(const char *text, double *out);
/* "1,7,128" into at most `capacity` numbers in [min, max]; 0 when it is no such list. */
unsigned lathe_parse_counts(const char *text, int64_t min, int64_t max, int64_t *out, unsigned capacity);
#endif
