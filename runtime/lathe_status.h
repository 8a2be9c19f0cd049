/* Status codes and messages, shared by every part of Lathe.
 *
 * A function that can fail returns `enum lathe_status`; 0 is success and the numbers are the exit codes of the command
 * line. It records the reason in the caller's `struct lathe_diag`, which may be NULL. Library code never exits, aborts
 * or prints. A diag belongs to one thread at a time. */
#ifndef LATHE_STATUS_H
#define LATHE_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Frozen: process exit codes, and part of the library's interface. */
enum lathe_status {
    LATHE_OK = 0,
    LATHE_INTERNAL = 1,      /* a fault of ours */
    LATHE_USAGE = 2,         /* wrong arguments */
    LATHE_INVALID = 3,       /* input unreadable or invalid: model, artifact, target file, data */
    LATHE_UNSUPPORTED = 4,   /* operator, shape, precision or target feature that is not supported */
    LATHE_CHECK_FAILED = 5,  /* verification or an accuracy bound failed */
    LATHE_EXPECT_FAILED = 6, /* an --expect condition failed */
    LATHE_IO = 7,            /* disk full, permission */
};

/* Stable message ids, one row each in messages.def; numbers are never used again. */
enum lathe_message {
#define MESSAGE(number, name, status, doc) LATHE_MSG_##name = number,
#include "messages.def"
#undef MESSAGE
};

#define LATHE_DIAG_TEXT 8192

struct lathe_diag {
    enum lathe_status status;
    enum lathe_message message;
    char text[LATHE_DIAG_TEXT]; /* one printable line without the final newline: place, reason, what is allowed */
};

#if defined(__GNUC__)
#define LATHE_NODISCARD    __attribute__((warn_unused_result))
#define LATHE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define LATHE_NODISCARD
#define LATHE_PRINTF(f, a)
#endif

/* Records a message and returns its status. Bytes that are not printable ASCII or valid UTF-8 are escaped as \xNN and
 * line breaks as spaces, so that names from files cannot break the line; text past the buffer is cut with "...". The
 * first message recorded in a diag stays: later ones are consequences. Numbers and names go in through `format`. */
enum lathe_status lathe_fail(struct lathe_diag *diag, enum lathe_message message, const char *format, ...)
    LATHE_PRINTF(3, 4);

/* Clears a diag for a new call. */
void lathe_diag_reset(struct lathe_diag *diag);

/* The name of a status ("invalid input") and of a message ("ARTIFACT_TRUNCATED"); static, never NULL. */
const char *lathe_status_name(enum lathe_status status);
const char *lathe_message_name(enum lathe_message message);
enum lathe_status lathe_message_status(enum lathe_message message);

#define LATHE_TRY(expr)                                                                                                \
    do {                                                                                                               \
        enum lathe_status lathe_try_status_ = (expr);                                                                  \
        if (lathe_try_status_ != LATHE_OK)                                                                             \
            return lathe_try_status_;                                                                                  \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
