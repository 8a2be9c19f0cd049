/* Text from files made safe to show: names in a model may hold anything. */
#ifndef LATHE_PRINTABLE_H
#define LATHE_PRINTABLE_H

#include "text.h"

#include <stdint.h>

/* Bytes of the valid UTF-8 character at `text` (which ends with a zero byte), 0 when there is none. */
unsigned lathe_utf8_length(const char *text);
/* Characters that `text` takes on a terminal line, one for each UTF-8 character. */
size_t lathe_text_width(const char *text);
/* Appends `text` with control characters and bytes that are not UTF-8 as \xNN, so that it stays on one line. */
void lathe_append_printable(struct lathe_text *out, const char *text);
/* The same, padded with spaces to `width` characters. */
void lathe_append_column(struct lathe_text *out, const char *text, size_t width);
/* Appends "1.2 MiB", "312 B". */
void lathe_append_bytes(struct lathe_text *out, uint64_t bytes);
#endif
