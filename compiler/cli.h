/* What the subcommands share: results to standard output, messages to standard error, one way to end. */
#ifndef LATHE_CLI_H
#define LATHE_CLI_H

#include "json_text.h"
#include "lathe_status.h"
#include "options.h"

#include <stdbool.h>

/* A subcommand: argv holds what stands behind its name; returns the exit code. */
struct lathe_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
};
#define COMMAND(name, summary) int lathe_cmd_##name(int argc, char **argv);
#include "commands.def"
#undef COMMAND

/* Prints "lathe: <message>" and returns the exit code. */
int lathe_cli_end(enum lathe_status status, const struct lathe_diag *diag);
/* A warning line on standard error. */
void lathe_cli_warn(const char *format, ...) LATHE_PRINTF(1, 2);
/* Progress on standard error, only when that is a terminal; the next call or lathe_cli_end replaces the line. */
void lathe_cli_progress(const char *format, ...) LATHE_PRINTF(1, 2);
void lathe_cli_progress_end(void);
/* Writes `text` to standard output and frees it; LATHE_IO when it cannot be written. */
LATHE_NODISCARD enum lathe_status lathe_cli_print(struct lathe_text *text, struct lathe_diag *diag);
/* The same for JSON, which it releases. */
LATHE_NODISCARD enum lathe_status lathe_cli_print_json(json_t *value, struct lathe_diag *diag);
/* A whole subcommand: options and arguments, --help, `work` on `request` (where they were put), the message of its
 * failure. Frees `args` and the words of every repeatable option; returns the exit code. */
int lathe_cli_run(const struct lathe_syntax *syntax, int argc, char **argv, struct lathe_words *args,
                  enum lathe_status (*work)(void *request, struct lathe_diag *diag), void *request);
#endif
