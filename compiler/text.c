#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `extra` more bytes and the final NUL. */
static bool reserve(struct lathe_text *text, size_t extra) {
    if (text->failed)
        return false;
    size_t need;
    if (__builtin_add_overflow(text->length, extra, &need) || need == SIZE_MAX) {
        text->failed = true;
        return false;
    }
    need++;
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity ? text->capacity : 128;
    while (capacity < need)
        capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void lathe_text_append_bytes(struct lathe_text *text, const char *bytes, size_t count) {
    if (!reserve(text, count))
        return;
    if (count)
        memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = 0;
}

void lathe_text_append(struct lathe_text *text, const char *format, ...) {
    if (!reserve(text, 64))
        return;
    va_list args;
    va_start(args, format);
    size_t room = text->capacity - text->length;
    int length = vsnprintf(text->data + text->length, room, format, args);
    va_end(args);
    if (length < 0) {
        text->data[text->length] = 0;
        text->failed = true;
        return;
    }
    if ((size_t)length >= room) {
        text->data[text->length] = 0;
        if (!reserve(text, (size_t)length))
            return;
        va_start(args, format);
        vsnprintf(text->data + text->length, text->capacity - text->length, format, args);
        va_end(args);
    }
    text->length += (size_t)length;
}

void lathe_text_free(struct lathe_text *text) {
    free(text->data);
    *text = (struct lathe_text){0};
}
