/* lathe package: artifact, tokenizer and labels in one file for a server. */
#include "cli.h"
#include "package.h"
#include "printable.h"

#include <string.h>

struct request {
    struct lathe_words args;
    const char *output, *tokenizer, *labels;
    int64_t level;
    bool json;
};

static enum lathe_status print_text(const struct request *q, const json_t *manifest, struct lathe_diag *diag) {
    struct lathe_text out = {0};
    size_t i;
    json_t *f;
    lathe_append_printable(&out, q->output);
    lathe_text_append(&out, "\n");
    json_array_foreach(json_object_get(manifest, "files"), i, f) {
        lathe_text_append(&out, "%-16s", json_string_value(json_object_get(f, "name")));
        lathe_append_bytes(&out, (uint64_t)json_integer_value(json_object_get(f, "bytes")));
        lathe_text_append(&out, ", sha256 %.16s\n", json_string_value(json_object_get(f, "sha256")));
    }
    return lathe_cli_print(&out, diag);
}

static enum lathe_status package(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    struct lathe_package_options options = {
        .artifact = q->args.at[0], .tokenizer = q->tokenizer, .labels = q->labels, .level = (int)q->level};
    json_t *manifest;
    if (!q->output)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe package: -o model.tar.gz is missing");
    LATHE_TRY(lathe_package_write(q->output, &options, &manifest, diag));
    enum lathe_status status =
        q->json ? lathe_cli_print_json(json_incref(manifest), diag) : print_text(q, manifest, diag);
    json_decref(manifest);
    return status;
}

static const char details[] =
    "The package is a tar.gz of manifest.json (format, source, target, inputs, outputs, limits; name, size and sha256 "
    "of\n"
    "each file), model.lathe, tokenizer.json and labels.json. The same files give the same bytes. run, inspect, "
    "verify,\n"
    "bench and diff take it in the place of an artifact; a byte that is not as it was written is exit code 3.\n";

int lathe_cmd_package(int argc, char **argv) {
    static struct request q = {.level = LATHE_PACKAGE_LEVEL};
    const struct lathe_option options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = LATHE_OPTION_TEXT,
         .into = &q.output,
         .value = "model.tar.gz",
         .help = "the package to write"},
        {.name = "tokenizer",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.tokenizer,
         .value = "tokenizer.json",
         .help = "the tokenizer that made the ids, stored as it is"},
        {.name = "labels",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.labels,
         .value = "FILE",
         .help = "class names as of compile --labels (default: those of the artifact)"},
        {.name = "compress",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.level,
         .value = "LEVEL",
         .min = 0,
         .max = 9,
         .help = "deflate level (default 1; 0 stores, which opens fastest)"},
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "print the manifest"},
    };
    const struct lathe_syntax syntax = {.command = "package",
                                        .arguments = "MODEL.lathe -o model.tar.gz [options]",
                                        .summary = "artifact, tokenizer and labels in one file for a server",
                                        .details = details,
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options,
                                        .min_args = 1,
                                        .max_args = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, package, &q);
}
