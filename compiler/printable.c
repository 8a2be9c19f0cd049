#include "printable.h"

#include <string.h>

unsigned lathe_utf8_length(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] && s[0] < 0x80)
        return 1;
    unsigned n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    for (unsigned i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates and numbers past U+10FFFF. */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

/* Bytes of the next character when it can be shown as it is: no control characters (C0, DEL, C1), no line or
 * paragraph separators, no marks that reorder the line. */
static unsigned shown_length(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned n = lathe_utf8_length(text);
    if (n == 1 && (s[0] < ' ' || s[0] == 0x7f))
        return 0;
    if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)
        return 0;
    if (n == 3 && s[0] == 0xe2 && ((s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae) || (s[1] == 0x81 && s[2] >= 0xa6)))
        return 0;
    return n;
}

void lathe_append_printable(struct lathe_text *out, const char *text) {
    while (*text) {
        unsigned n = shown_length(text);
        if (n)
            lathe_text_append_bytes(out, text, n);
        else
            lathe_text_append(out, "\\x%02x", (unsigned char)*text);
        text += n ? n : 1;
    }
}

size_t lathe_text_width(const char *text) {
    size_t width = 0;
    while (*text) {
        unsigned n = shown_length(text);
        width += n ? 1 : 4;
        text += n ? n : 1;
    }
    return width;
}

void lathe_append_column(struct lathe_text *out, const char *text, size_t width) {
    lathe_append_printable(out, text);
    size_t have = lathe_text_width(text);
    if (have < width)
        lathe_text_append(out, "%*s", (int)(width - have), "");
}

void lathe_append_bytes(struct lathe_text *out, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    unsigned i = 0;
    for (; size >= 1024 && i < 4; i++)
        size /= 1024;
    lathe_text_append(out, i && size < 100 ? "%.1f %s" : "%.0f %s", size, units[i]);
}
