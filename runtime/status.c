/* Messages: one record a failure, made printable so that a name from a file cannot break the line. */
#include "lathe_status.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const struct {
    enum lathe_message message;
    enum lathe_status status;
    const char *name;
} messages[] = {
#define MESSAGE(number, name, status, doc) {LATHE_MSG_##name, status, #name},
#include "messages.def"
#undef MESSAGE
};

const char *lathe_status_name(enum lathe_status status) {
    static const char *const names[] = {
        "ok",          "internal fault", "wrong usage",        "invalid input",
        "unsupported", "check failed",   "expectation failed", "input/output error",
    };
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}

const char *lathe_message_name(enum lathe_message message) {
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        if (messages[i].message == message)
            return messages[i].name;
    return "UNKNOWN";
}

enum lathe_status lathe_message_status(enum lathe_message message) {
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        if (messages[i].message == message)
            return messages[i].status;
    return LATHE_INTERNAL;
}

void lathe_diag_reset(struct lathe_diag *diag) {
    if (diag) {
        diag->status = LATHE_OK;
        diag->message = (enum lathe_message)0;
        diag->text[0] = '\0';
    }
}

/* Length of the printable UTF-8 sequence at p, 0 when there is none. */
static unsigned utf8_length(const unsigned char *p, size_t left) {
    unsigned n = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                 : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                : 0;
    if (n == 0 || n > left)
        return 0;
    uint32_t code = p[0] & (0x7f >> n);
    for (unsigned i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    /* overlong forms, surrogates, controls, line and direction marks, non-characters and private use stay escaped */
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xf8ff) || code < 0xa1 || code == 0xad ||
        (code >= 0x2000 && code <= 0x206f) || (code >= 0xfdd0 && code <= 0xfdef) || code == 0xfeff ||
        (code >= 0xfff0 && code <= 0xfffb) || (code & 0xfffe) == 0xfffe || code >= 0xe0000)
        return 0;
    return n;
}

static void escape(char *out, size_t size, const char *raw) {
    const unsigned char *p = (const unsigned char *)raw;
    size_t left = strlen(raw), used = 0;
    while (left > 0) {
        char piece[8];
        unsigned take = 1;
        if (*p == '\n' || *p == '\t' || *p == '\r') {
            snprintf(piece, sizeof piece, " ");
        } else if (*p >= 0x20 && *p < 0x7f) {
            snprintf(piece, sizeof piece, "%c", *p);
        } else if ((take = utf8_length(p, left)) > 0) {
            memcpy(piece, p, take);
            piece[take] = '\0';
        } else {
            take = 1;
            snprintf(piece, sizeof piece, "\\x%02x", *p);
        }
        size_t n = strlen(piece);
        if (used + n + 4 > size) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(out + used, piece, n);
        used += n;
        p += take;
        left -= take;
    }
    out[used] = '\0';
}

enum lathe_status lathe_fail(struct lathe_diag *diag, enum lathe_message message, const char *format, ...) {
    enum lathe_status status = lathe_message_status(message);
    if (diag && diag->status == LATHE_OK) {
        char raw[LATHE_DIAG_TEXT];
        va_list args;
        va_start(args, format);
        vsnprintf(raw, sizeof raw, format, args);
        va_end(args);
        escape(diag->text, sizeof diag->text, raw);
        diag->message = message;
        diag->status = status;
    }
    return status;
}
