/* lathe passes: the rewrites of the compiler, by name. */
#include "cli.h"
#include "pass.h"

int lathe_cmd_passes(int argc, char **argv) {
    static struct lathe_diag diag;
    bool json = false;
    struct lathe_words args = {0};
    const struct lathe_option options[] = {
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &json, .help = "JSON instead of text"},
    };
    const struct lathe_syntax syntax = {.command = "passes",
                                        .arguments = "[--json]",
                                        .summary = "the rewrites of the compiler, for --disable and --dump-after",
                                        .options = options,
                                        .option_count = 1};
    struct lathe_cli_parsed parsed = lathe_cli_parse(&syntax, argc, argv, &args, &diag);
    lathe_words_free(&args);
    if (parsed.done)
        return parsed.exit;
    struct lathe_text out = {0};
    json_t *list = json_array();
    for (unsigned i = 0; i < lathe_pass_count; i++) {
        lathe_text_append(&out, "%-22s%s\n", lathe_passes[i].name, lathe_passes[i].doc);
        json_array_append_new(list, json_pack("{ss, ss}", "name", lathe_passes[i].name, "doc", lathe_passes[i].doc));
    }
    enum lathe_status status = json ? lathe_cli_print_json(json_incref(list), &diag) : lathe_cli_print(&out, &diag);
    json_decref(list);
    lathe_text_free(&out);
    return lathe_cli_end(status, &diag);
}
