#include "cli.h"
#include "printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool progress_shown;

static bool on_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

void lathe_cli_progress(const char *format, ...) {
    if (!on_terminal())
        return;
    va_list args;
    va_start(args, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, args);
    fflush(stderr);
    va_end(args);
    progress_shown = true;
}

void lathe_cli_progress_end(void) {
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

static void message(const char *kind, const char *colour, const char *text) {
    lathe_cli_progress_end();
    if (on_terminal())
        fprintf(stderr, "lathe: \033[%sm%s\033[0m%s\n", colour, kind, text);
    else
        fprintf(stderr, "lathe: %s%s\n", kind, text);
}

int lathe_cli_end(enum lathe_status status, const struct lathe_diag *diag) {
    lathe_cli_progress_end();
    if (status != LATHE_OK)
        message("error: ", "31", diag->text[0] ? diag->text : lathe_status_name(status));
    return (int)status;
}

void lathe_cli_warn(const char *format, ...) {
    char raw[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    struct lathe_text shown = {0};
    lathe_append_printable(&shown, raw);
    message("warning: ", "33", shown.failed || !shown.data ? "" : shown.data);
    lathe_text_free(&shown);
}

enum lathe_status lathe_cli_print(struct lathe_text *text, struct lathe_diag *diag) {
    enum lathe_status status = LATHE_OK;
    lathe_cli_progress_end();
    if (text->failed)
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory to write the result");
    else if (text->length && (fwrite(text->data, 1, text->length, stdout) != text->length || fflush(stdout)))
        status = lathe_fail(diag, LATHE_MSG_OUTPUT_FILE, "standard output: %s", strerror(errno));
    lathe_text_free(text);
    return status;
}

enum lathe_status lathe_cli_print_json(json_t *value, struct lathe_diag *diag) {
    struct lathe_text text = {0};
    lathe_json_append(&text, value, false);
    return lathe_cli_print(&text, diag);
}

int lathe_cli_run(const struct lathe_syntax *syntax, int argc, char **argv, struct lathe_words *args,
                  enum lathe_status (*work)(void *request, struct lathe_diag *diag), void *request) {
    static struct lathe_diag diag; /* large */
    bool help = false;
    enum lathe_status status = lathe_options_parse(syntax, argc, argv, args, &help, &diag);
    if (status == LATHE_OK && help) {
        struct lathe_text text = {0};
        lathe_options_help(syntax, &text);
        status = lathe_cli_print(&text, &diag);
    } else if (status == LATHE_OK) {
        status = work(request, &diag);
    }
    lathe_words_free(args);
    for (unsigned i = 0; i < syntax->option_count; i++)
        if (syntax->options[i].kind == LATHE_OPTION_WORDS)
            lathe_words_free(syntax->options[i].into);
    return lathe_cli_end(status, &diag);
}
