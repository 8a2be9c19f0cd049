/* lathe passes: the rewrites of the compiler, by name. */
#include "cli.h"
#include "pass.h"

struct request {
    struct lathe_words args;
    bool json;
};

static enum lathe_status passes(void *request, struct lathe_diag *diag) {
    if (((struct request *)request)->json) {
        json_t *list = json_array();
        for (unsigned i = 0; i < lathe_pass_count; i++)
            json_array_append_new(list,
                                  json_pack("{ss, ss}", "name", lathe_passes[i].name, "doc", lathe_passes[i].doc));
        return lathe_cli_print_json(list, diag);
    }
    struct lathe_text out = {0};
    for (unsigned i = 0; i < lathe_pass_count; i++)
        lathe_text_append(&out, "%-22s%s\n", lathe_passes[i].name, lathe_passes[i].doc);
    return lathe_cli_print(&out, diag);
}

int lathe_cmd_passes(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "passes",
                                        .arguments = "[--json]",
                                        .summary = "the rewrites of the compiler, for --disable and --dump-after",
                                        .options = options,
                                        .option_count = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, passes, &q);
}
