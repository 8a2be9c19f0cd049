#include "options.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lathe_words_free(struct lathe_words *words) {
    free(words->at);
    *words = (struct lathe_words){0};
}

static bool add_word(struct lathe_words *words, const char *text) {
    if (words->count == words->capacity) {
        unsigned more = words->capacity ? words->capacity * 2 : 8;
        const char **at = realloc(words->at, more * sizeof *at);
        if (!at)
            return false;
        words->at = at;
        words->capacity = more;
    }
    words->at[words->count++] = text;
    return true;
}

/* ---- names */

static unsigned min3(unsigned a, unsigned b, unsigned c) {
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Edits (insert, delete, replace) between two names; a large number when one is too long to compare. */
static unsigned edits(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    unsigned row[64];
    if (na >= 64 || nb >= 64)
        return 1000;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned corner = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned here = min3(row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
            corner = row[j];
            row[j] = here;
        }
    }
    return row[nb];
}

const char *lathe_nearest_name(const char *name, const char *const *names) {
    const char *best = NULL;
    unsigned fewest = 2 + (unsigned)strlen(name) / 4;
    for (; *names; names++) {
        unsigned n = edits(name, *names);
        if (strlen(name) >= 3 && !strncmp(name, *names, strlen(name)))
            n = 1; /* the beginning of it */
        if (n < fewest) {
            fewest = n;
            best = *names;
        }
    }
    return best;
}

/* ---- values */

bool lathe_parse_count(const char *text, int64_t min, int64_t max, int64_t *out) {
    bool minus = *text == '-';
    const char *p = text + minus;
    int64_t n = 0;
    if (!*p)
        return false;
    for (; *p; p++)
        if (!isdigit((unsigned char)*p) || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (int64_t)(*p - '0'), &n))
            return false;
    n = minus ? -n : n;
    if (n < min || n > max)
        return false;
    *out = n;
    return true;
}

bool lathe_parse_real(const char *text, double *out) {
    if (!*text || strspn(text, "0123456789.eE+-") != strlen(text))
        return false;
    char *end;
    double n = strtod(text, &end);
    if (end == text || *end || !isfinite(n))
        return false;
    *out = n;
    return true;
}

unsigned lathe_parse_counts(const char *text, int64_t min, int64_t max, int64_t *out, unsigned capacity) {
    unsigned count = 0;
    for (;;) {
        char number[24];
        size_t n = strcspn(text, ",");
        if (!n || n >= sizeof number || count == capacity)
            return 0;
        memcpy(number, text, n);
        number[n] = 0;
        if (!lathe_parse_count(number, min, max, &out[count++]))
            return 0;
        if (!text[n])
            return count;
        text += n + 1;
    }
}

static enum lathe_status wrong_choice(const struct lathe_option *o, const char *value, struct lathe_diag *diag) {
    char known[512] = "";
    for (const char *const *c = o->choices; *c; c++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", *c);
    }
    const char *near = lathe_nearest_name(value, o->choices);
    return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: '%s' is not known%s%s%s (known: %s)", o->name, value,
                      near ? "; did you mean " : "", near ? near : "", near ? "?" : "", known);
}

static enum lathe_status set_value(const struct lathe_option *o, const char *value, struct lathe_diag *diag) {
    if (o->given)
        *o->given = true;
    if (o->choices) {
        const char *const *c = o->choices;
        while (*c && strcmp(*c, value))
            c++;
        if (!*c)
            return wrong_choice(o, value, diag);
    }
    switch (o->kind) {
    case LATHE_OPTION_FLAG:
        *(bool *)o->into = true;
        return LATHE_OK;
    case LATHE_OPTION_TEXT:
        if (!*value)
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: expected %s, found an empty text", o->name,
                              o->value);
        *(const char **)o->into = value;
        return LATHE_OK;
    case LATHE_OPTION_WORDS:
        if (!*value)
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: expected %s, found an empty text", o->name,
                              o->value);
        if (!add_word(o->into, value))
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "--%s: no memory", o->name);
        return LATHE_OK;
    case LATHE_OPTION_COUNT:
        if (!lathe_parse_count(value, o->min, o->max, o->into))
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE,
                              "--%s: expected a whole number from %lld to %lld, found '%s'", o->name, (long long)o->min,
                              (long long)o->max, value);
        return LATHE_OK;
    case LATHE_OPTION_REAL:
        if (!lathe_parse_real(value, o->into) || *(double *)o->into < 0)
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: expected a number of at least 0, found '%s'",
                              o->name, value);
        return LATHE_OK;
    }
    return LATHE_OK;
}

/* ---- the command line */

static const struct lathe_option *find_long(const struct lathe_syntax *s, const char *name, size_t n) {
    for (unsigned i = 0; i < s->option_count; i++)
        if (strlen(s->options[i].name) == n && !strncmp(s->options[i].name, name, n))
            return &s->options[i];
    return NULL;
}

static const struct lathe_option *find_letter(const struct lathe_syntax *s, char letter) {
    for (unsigned i = 0; i < s->option_count; i++)
        if (s->options[i].letter && s->options[i].letter == letter)
            return &s->options[i];
    return NULL;
}

static enum lathe_status unknown_option(const struct lathe_syntax *s, const char *given, struct lathe_diag *diag) {
    const char *names[128];
    unsigned count = 0;
    for (; count < s->option_count && count < 126; count++)
        names[count] = s->options[count].help ? s->options[count].name : "help";
    names[count++] = "help";
    names[count] = NULL;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(given + 1 + (given[1] == '-'), "="),
             given + 1 + (given[1] == '-'));
    const char *near = lathe_nearest_name(name, names);
    return lathe_fail(diag, LATHE_MSG_OPTION_UNKNOWN,
                      "lathe %s: unknown option '%s'%s%s%s (lathe %s --help lists them)", s->command, given,
                      near ? "; did you mean --" : "", near ? near : "", near ? "?" : "", s->command);
}

/* Handles argv[*i], which starts with '-'; takes the next one where it is the value. */
static enum lathe_status take_option(const struct lathe_syntax *s, int argc, char **argv, int *i,
                                     struct lathe_diag *diag) {
    const char *arg = argv[*i], *value = NULL;
    const struct lathe_option *o;
    if (arg[1] == '-') {
        size_t n = strcspn(arg + 2, "=");
        o = find_long(s, arg + 2, n);
        value = arg[2 + n] ? arg + 3 + n : NULL;
    } else {
        o = find_letter(s, arg[1]);
        value = arg[2] ? arg + 2 : NULL;
    }
    if (!o || (o->kind == LATHE_OPTION_FLAG && value && arg[1] != '-'))
        return unknown_option(s, arg, diag);
    if (o->kind == LATHE_OPTION_FLAG) {
        if (value)
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: takes no value, found '%s'", o->name, value);
        return set_value(o, "", diag);
    }
    if (!value && ++*i < argc)
        value = argv[*i];
    if (!value)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--%s: the value is missing (%s)", o->name, o->value);
    return set_value(o, value, diag);
}

enum lathe_status lathe_options_parse(const struct lathe_syntax *syntax, int argc, char **argv,
                                      struct lathe_words *args, bool *help, struct lathe_diag *diag) {
    *help = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            *help = true;
            return LATHE_OK;
        }
    bool only_args = false;
    for (int i = 0; i < argc; i++) {
        if (!only_args && !strcmp(argv[i], "--"))
            only_args = true;
        else if (!only_args && argv[i][0] == '-' && argv[i][1])
            LATHE_TRY(take_option(syntax, argc, argv, &i, diag));
        else if (!add_word(args, argv[i]))
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "lathe %s: no memory", syntax->command);
    }
    if (args->count > syntax->max_args)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe %s: unexpected argument '%s' (usage: lathe %s %s)",
                          syntax->command, args->at[syntax->max_args], syntax->command, syntax->arguments);
    if (args->count < syntax->min_args)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe %s: an argument is missing (usage: lathe %s %s)",
                          syntax->command, syntax->command, syntax->arguments);
    return LATHE_OK;
}

/* ---- --help */

static size_t left_column(const struct lathe_option *o, char *buffer, size_t size) {
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    return (size_t)snprintf(buffer, size, "  %s--%s%s%s", letter, o->name, o->value ? " " : "",
                            o->value ? o->value : "");
}

/* `text` in lines of at most 100 columns, the later ones indented. */
static void wrapped(struct lathe_text *out, const char *text, size_t indent) {
    size_t column = indent;
    for (bool first = true; *text; first = false) {
        size_t n = strcspn(text, " ");
        if (!first && column + 1 + n > 100) {
            lathe_text_append(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            lathe_text_append(out, " ");
            column++;
        }
        lathe_text_append(out, "%.*s", (int)n, text);
        column += n;
        text += n + (text[n] == ' ');
    }
    lathe_text_append(out, "\n");
}

void lathe_options_help(const struct lathe_syntax *s, struct lathe_text *out) {
    char left[128];
    size_t width = 0;
    lathe_text_append(out, "lathe %s - %s\n\n    lathe %s %s\n", s->command, s->summary, s->command, s->arguments);
    if (s->details)
        lathe_text_append(out, "\n%s", s->details);
    lathe_text_append(out, "\nOptions:\n");
    for (unsigned i = 0; i < s->option_count; i++) {
        size_t n = left_column(&s->options[i], left, sizeof left);
        width = s->options[i].help && n > width && n <= 34 ? n : width;
    }
    for (unsigned i = 0; i < s->option_count; i++) {
        if (!s->options[i].help)
            continue;
        size_t n = left_column(&s->options[i], left, sizeof left);
        if (n > width)
            lathe_text_append(out, "%s\n%*s", left, (int)width + 2, "");
        else
            lathe_text_append(out, "%-*s", (int)width + 2, left);
        wrapped(out, s->options[i].help, width + 2);
    }
    lathe_text_append(out, "  %s%*s  %s\n", "-h, --help", (int)(width > 12 ? width - 12 : 0), "", "this text");
}
