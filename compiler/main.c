/* lathe: finds the subcommand. */
#include "cli.h"
#include "lathe.h"

#include <stdio.h>
#include <string.h>

static const struct lathe_command commands[] = {
#define COMMAND(name, summary) {#name, summary, lathe_cmd_##name},
#include "commands.def"
#undef COMMAND
};
#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static int help(struct lathe_diag *diag) {
    struct lathe_text out = {0};
    lathe_text_append(&out,
                      "lathe %s - compiles transformer encoders from ONNX for one machine\n\n"
                      "    lathe COMMAND [options]\n\nCommands:\n",
                      LATHE_VERSION);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        lathe_text_append(&out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    lathe_text_append(&out, "\nlathe COMMAND --help tells more. A first try:\n"
                            "    lathe compile model.onnx -o model.lathe --report report.html\n"
                            "    lathe run model.lathe --input input_ids=ids.npy --output-dir out\n\n"
                            "Exit codes: 0 ok, 1 internal fault, 2 usage, 3 invalid input, 4 unsupported,\n"
                            "  5 verification failed, 6 an --expect condition failed, 7 input/output error\n");
    return lathe_cli_end(lathe_cli_print(&out, diag), diag);
}

static int unknown(const char *name, struct lathe_diag *diag) {
    const char *names[COMMAND_COUNT + 1];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    names[COMMAND_COUNT] = NULL;
    const char *near = lathe_nearest_name(name + strspn(name, "-"), names);
    return lathe_cli_end(lathe_fail(diag, LATHE_MSG_OPTION_UNKNOWN,
                                    "unknown command '%s'%s%s%s (lathe --help lists them)", name,
                                    near ? "; did you mean " : "", near ? near : "", near ? "?" : ""),
                         diag);
}

int main(int argc, char **argv) {
    static struct lathe_diag diag;
    if (argc < 2)
        return lathe_cli_end(lathe_fail(&diag, LATHE_MSG_ARGUMENTS, "a command is missing (lathe --help lists them)"),
                             &diag);
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help"))
        return help(&diag);
    if (!strcmp(name, "--version")) {
        struct lathe_text out = {0};
        lathe_text_append(&out, "lathe %s\n", LATHE_VERSION);
        return lathe_cli_end(lathe_cli_print(&out, &diag), &diag);
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(commands[i].name, name))
            return commands[i].run(argc - 2, argv + 2);
    return unknown(name, &diag);
}
