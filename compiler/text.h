/* A growing string. `data` is NUL-terminated and never NULL after the first append; `failed` is set when memory runs
 * out, after which appends do nothing. Start with {0}; free with lathe_text_free. */
#ifndef LATHE_TEXT_H
#define LATHE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct lathe_text {
    char *data;
    size_t length, capacity;
    bool failed;
};

void lathe_text_append(struct lathe_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lathe_text_append_bytes(struct lathe_text *text, const char *bytes, size_t count);
void lathe_text_free(struct lathe_text *text);
#endif
