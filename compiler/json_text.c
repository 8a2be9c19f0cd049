#include "json_text.h"
#include "printable.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *lathe_json_string(const char *text) {
    json_t *s = json_string(text);
    if (s)
        return s;
    struct lathe_text shown = {0};
    lathe_append_printable(&shown, text);
    s = shown.failed ? NULL : json_string(shown.data ? shown.data : "");
    lathe_text_free(&shown);
    return s;
}

json_t *lathe_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *string_n(const char *text, size_t n) {
    char *copy = strndup(text, n);
    json_t *s = copy ? lathe_json_string(copy) : NULL;
    free(copy);
    return s;
}

static json_t *dim(const char *text, size_t n) {
    if (n && n < 19 && strspn(text, "0123456789") >= n)
        return json_integer(strtoll(text, NULL, 10));
    return string_n(text, n);
}

/* Takes the next entry of a list at *p: its start, and its length without spaces around it. */
static const char *next_entry(const char **p, const char *separator, size_t *n) {
    const char *start = *p + strspn(*p, " []");
    *n = strcspn(start, separator);
    *p = start + *n;
    if (**p)
        ++*p;
    while (*n && strchr(" []", start[*n - 1]))
        --*n;
    return start;
}

json_t *lathe_json_dims(const char *text) {
    json_t *list = json_array();
    for (const char *p = text; *p;) {
        size_t n;
        const char *entry = next_entry(&p, ",", &n);
        if (n)
            json_array_append_new(list, dim(entry, n));
    }
    return list;
}

json_t *lathe_json_words(const char *text) {
    json_t *list = json_array();
    for (const char *p = text; *p;) {
        size_t n;
        const char *entry = next_entry(&p, " ", &n);
        if (n)
            json_array_append_new(list, string_n(entry, n));
    }
    return list;
}

json_t *lathe_json_opsets(const char *text) {
    json_t *map = json_object();
    for (const char *p = text; *p;) {
        size_t n, name = 0;
        const char *entry = next_entry(&p, ",", &n);
        for (size_t i = 0; i < n; i++)
            if (entry[i] == ' ')
                name = i;
        json_t *key = name ? string_n(entry, name) : NULL;
        if (key)
            json_object_set_new(map, json_string_value(key), dim(entry + name + 1, n - name - 1));
        json_decref(key);
    }
    return map;
}

static int append_piece(const char *bytes, size_t count, void *user) {
    struct lathe_text *out = user;
    lathe_text_append_bytes(out, bytes, count);
    return out->failed ? -1 : 0;
}

void lathe_json_append(struct lathe_text *out, json_t *value, bool compact) {
    if (!value || json_dump_callback(value, append_piece, out,
                                     (compact ? JSON_COMPACT : JSON_INDENT(2)) | JSON_REAL_PRECISION(9)))
        out->failed = true;
    else if (!compact)
        lathe_text_append(out, "\n");
    json_decref(value);
}
