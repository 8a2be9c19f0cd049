/* lathe compile: a model into an artifact, with its reports. */
#include "bucket_choice.h"
#include "cli.h"
#include "labels.h"
#include "lathe_compiler.h"
#include "pass.h"
#include "printable.h"
#include "report_data.h"
#include "session_args.h"
#include "write_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
#define PASS(name, doc) PASS_NUMBER_##name,
#include "passes.def"
#undef PASS
    LATHE_PASS_NAMES
};

struct request {
    struct lathe_compile_options options;
    struct lathe_words args, expect, disable, reports, buckets;
    struct lathe_labels labels;
    const char *labels_file, *pooling, *tokenizer, *placement;
    int64_t compress, jobs, cores;
    bool json, explain, verbose, verify, no_verify, normalize, has_min_cosine;
    struct lathe_bucket sizes[LATHE_TARGET_MAX_BUCKETS];
};

/* ---- reports */

typedef void (*report_form)(const struct lathe_report *, struct lathe_text *);
static void form_json(const struct lathe_report *r, struct lathe_text *out) {
    lathe_report_json(r, false, out);
}

/* The form that a file name asks for, NULL when it asks for none. */
static report_form form_of(const char *path) {
    static const struct {
        const char *ending;
        report_form form;
    } forms[] = {
        {".json", form_json}, {".html", lathe_report_html}, {".htm", lathe_report_html}, {".txt", lathe_report_text}};
    if (!strcmp(path, "-"))
        return lathe_report_text;
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t e = strlen(forms[i].ending);
        if (n > e && !strcmp(path + n - e, forms[i].ending))
            return forms[i].form;
    }
    return NULL;
}

static enum lathe_status check_report(const char *path, struct lathe_diag *diag) {
    struct stat st;
    if (!form_of(path))
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE,
                          "--report '%s': the name must end in .json, .html or .txt, or be - for text", path);
    if (!strcmp(path, "-") || (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return LATHE_OK; /* a pipe or terminal */
    return lathe_check_writable(path, diag);
}

static enum lathe_status write_report(const struct lathe_report *r, const char *path, struct lathe_diag *diag) {
    struct lathe_text text = {0};
    form_of(path)(r, &text);
    if (!strcmp(path, "-"))
        return lathe_cli_print(&text, diag);
    const struct lathe_file_part part = {text.data, text.length};
    enum lathe_status status = text.failed ? lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory for the report", path)
                                           : lathe_write_file(path, &part, 1, diag);
    lathe_text_free(&text);
    return status;
}

/* ---- hooks */

static void show_stage(void *user, const char *stage) {
    const struct request *q = user;
    if (q->verbose)
        fprintf(stderr, "lathe: %s\n", stage);
    else
        lathe_cli_progress("lathe: %s ...", stage);
}

/* MemAvailable of this machine, 0 when it is not known. */
static uint64_t available_memory(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

static void show_sizes(void *user, uint64_t weights, uint64_t memory) {
    const struct request *q = user;
    struct lathe_text text = {0};
    lathe_text_append(&text, "weights ");
    lathe_append_bytes(&text, weights);
    lathe_text_append(&text, ", the compile needs up to ");
    lathe_append_bytes(&text, memory);
    uint64_t have = available_memory();
    if (have && have < memory) {
        lathe_text_append(&text, ", this machine has ");
        lathe_append_bytes(&text, have);
        lathe_text_append(&text, " left");
        lathe_cli_warn("%s", text.failed ? "little memory" : text.data);
    } else if (q->verbose && !text.failed) {
        fprintf(stderr, "lathe: %s\n", text.data);
    }
    lathe_text_free(&text);
}

static void show_graph(void *user, const char *pass, const char *text) {
    lathe_cli_progress_end();
    printf("# after %s\n%s\n", pass, text);
}

/* ---- the command */

static enum lathe_status read_buckets(struct request *q, struct lathe_diag *diag) {
    if (q->buckets.count > LATHE_TARGET_MAX_BUCKETS)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "--bucket: %u of them, an artifact holds at most %d",
                          q->buckets.count, LATHE_MAX_BUCKETS);
    for (unsigned i = 0; i < q->buckets.count; i++) {
        long long b, s;
        char extra;
        if (sscanf(q->buckets.at[i], "%lldx%lld%c", &b, &s, &extra) != 2 || b < 1 || s < 1 || b > 1 << 20 ||
            s > 1 << 24)
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--bucket: expected BATCHxSEQ such as 4x128, found '%s'",
                              q->buckets.at[i]);
        q->sizes[i] = (struct lathe_bucket){b, s};
    }
    q->options.buckets = q->sizes;
    q->options.bucket_count = q->buckets.count;
    if (q->buckets.count && (q->options.max_batch || q->options.max_seq))
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS,
                          "--bucket fixes batch and length: --max-batch and --max-seq "
                          "contradict it");
    return LATHE_OK;
}

/* Options that later versions have: understood, so that a wrong value is told apart from a missing feature. */
static enum lathe_status refuse_later(const struct request *q, struct lathe_diag *diag) {
    const char *later = q->pooling ? "--pooling" : q->tokenizer ? "--tokenizer" : q->normalize ? "--normalize" : NULL;
    if (!later)
        return LATHE_OK;
    return lathe_fail(diag, LATHE_MSG_OPTION_UNSUPPORTED, "%s: this version does not have it yet", later);
}

static enum lathe_status check_pass_names(const struct request *q, struct lathe_diag *diag) {
    const char *names[LATHE_PASS_NAMES + 1];
    for (unsigned i = 0; i < LATHE_PASS_NAMES; i++)
        names[i] = lathe_passes[i].name;
    names[LATHE_PASS_NAMES] = NULL;
    for (unsigned i = 0; i < q->disable.count; i++) {
        const char *near = lathe_nearest_name(q->disable.at[i], names);
        if (!lathe_pass_by_name(q->disable.at[i]))
            return lathe_fail(diag, LATHE_MSG_OPTION_VALUE,
                              "--disable: no pass is named '%s'%s%s%s (lathe passes lists them)", q->disable.at[i],
                              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    return LATHE_OK;
}

static enum lathe_status prepare(struct request *q, struct lathe_diag *diag) {
    struct lathe_compile_options *o = &q->options;
    o->model = q->args.at[0];
    if (!o->output)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe compile: -o OUT.lathe is missing");
    if (q->verify && q->no_verify)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe compile: --verify and --no-verify contradict each other");
    if (q->has_min_cosine && !(o->min_cosine > 0 && o->min_cosine <= 1))
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--min-cosine: expected a number above 0 and up to 1, found %g",
                          o->min_cosine);
    LATHE_TRY(read_buckets(q, diag));
    LATHE_TRY(refuse_later(q, diag));
    LATHE_TRY(check_pass_names(q, diag));
    o->verify = q->verify ? LATHE_VERIFY_ALWAYS : q->no_verify ? LATHE_VERIFY_NEVER : LATHE_VERIFY_AUTO;
    o->expect = q->expect.at;
    o->expect_count = q->expect.count;
    o->disabled = q->disable.at;
    o->disabled_count = q->disable.count;
    o->placement = lathe_placement_of(q->placement);
    o->cores = (unsigned)q->cores;
    o->compress_level = (int)q->compress;
    o->jobs = (int)q->jobs;
    o->stage = show_stage;
    o->sizes = show_sizes;
    o->dump = show_graph;
    o->user = q;
    for (unsigned i = 0; i < q->reports.count; i++)
        LATHE_TRY(check_report(q->reports.at[i], diag));
    if (q->labels_file) {
        LATHE_TRY(lathe_labels_read(q->labels_file, &q->labels, diag));
        o->labels = (const char *const *)q->labels.at;
        o->label_count = q->labels.count;
    }
    return LATHE_OK;
}

/* What goes to standard output after a compile that succeeded. */
static enum lathe_status print_result(const struct request *q, const struct lathe_report *r, struct lathe_diag *diag) {
    struct lathe_text out = {0};
    if (q->json) {
        lathe_report_json(r, false, &out);
        return lathe_cli_print(&out, diag);
    }
    lathe_append_printable(&out, q->options.output);
    lathe_text_append(&out, "\n");
    lathe_report_summary(r, q->explain ? UINT32_MAX : 3, &out);
    if (!q->options.dump_after)
        return lathe_cli_print(&out, diag);
    lathe_cli_progress_end();
    fputs(out.failed ? "" : out.data, stderr); /* standard output holds the graphs */
    lathe_text_free(&out);
    return LATHE_OK;
}

static enum lathe_status compile(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    LATHE_TRY(prepare(q, diag));
    struct lathe_report *r = lathe_report_new();
    if (!r)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the report");
    enum lathe_status status = lathe_compile(&q->options, r, diag);
    /* A failed condition or check is when the report is wanted most. */
    bool tells = status == LATHE_OK || status == LATHE_EXPECT_FAILED || status == LATHE_CHECK_FAILED;
    for (unsigned i = 0; tells && i < q->reports.count; i++) {
        enum lathe_status written = write_report(r, q->reports.at[i], diag);
        status = status == LATHE_OK ? written : status;
    }
    if (status == LATHE_OK)
        status = print_result(q, r, diag);
    lathe_report_free(&r);
    return status;
}

static const char details[] =
    "The artifact is written only when everything succeeded. By default it is compared with the source graph, run "
    "without\n"
    "rewrites, on small made-up batches; a difference over 1e-4 is exit code 5.\n"
    "Conditions for --expect: NAME OP NUMBER, NAME a fusion (fuse.attention), missed, missed.attention, warnings or\n"
    "warnings.CODE, OP one of == != >= <= > <. One that fails is exit code 6, with the near misses of that pattern.\n"
    "Casts: none is f32, exactly. matmul: operands of products with constant matrices are rounded to bf16 (half to\n"
    "even), sums are f32; --precision bf16 alone rounds those of attention too where the target has bf16 dot "
    "products.\n"
    "all rounds each tensor that a step gives out, inputs and constants too; what a step sums or normalises inside\n"
    "stays f32, and so do epsilons, masks, and scales of quantized tensors. The report lists every cast. With another\n"
    "--precision, matmul and all are exit code 2.\n";

int lathe_cmd_compile(int argc, char **argv) {
    struct request q = {0};
    struct lathe_compile_options *o = &q.options;
    static const char *const casts[] = {"none", "matmul", "all", NULL};
    const struct lathe_option options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = LATHE_OPTION_TEXT,
         .into = &o->output,
         .value = "OUT.lathe",
         .help = "the artifact to write"},
        {.name = "target",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->target,
         .value = "NAME|FILE.yaml",
         .help = "machine to compile for (default native; lathe targets lists them)"},
        {.name = "precision",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->precision,
         .value = "f32|bf16|int8|auto",
         .help = "number format of weights and products (default f32)"},
        {.name = "cast",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->cast,
         .value = "none|matmul|all",
         .choices = casts,
         .help = "what is rounded to bf16: nothing, the products (as --precision bf16), or every tensor too (default: "
                 "with --precision bf16 what the target says, else none)"},
        {.name = "max-seq",
         .kind = LATHE_OPTION_COUNT,
         .into = &o->max_seq,
         .value = "N",
         .min = 1,
         .max = 1 << 20,
         .help = "longest sequence (default: from the graph and the target)"},
        {.name = "max-batch",
         .kind = LATHE_OPTION_COUNT,
         .into = &o->max_batch,
         .value = "N",
         .min = 1,
         .max = 1 << 16,
         .help = "largest batch (default: from the graph and the target)"},
        LATHE_PLACEMENT_OPTION(q.placement, "how the model lies on several cores (default: the target's)"),
        {.name = "cores",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.cores,
         .value = "N",
         .min = 1,
         .max = LATHE_FORMAT_MAX_CORES,
         .help = "how many cores that are (default: the target's)"},
        {.name = "expect",
         .kind = LATHE_OPTION_WORDS,
         .into = &q.expect,
         .value = "COND",
         .help = "condition on the report, such as 'fuse.attention>=12'; repeatable"},
        {.name = "report",
         .kind = LATHE_OPTION_WORDS,
         .into = &q.reports,
         .value = "FILE",
         .help = "write the report as .json, .html or .txt, or - for text here; repeatable"},
        {.name = "explain",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.explain,
         .help = "list every near miss: what was almost fused, and the condition that failed"},
        {.name = "json", .kind = LATHE_OPTION_FLAG, .into = &q.json, .help = "the report as JSON on standard output"},
        {.name = "labels",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.labels_file,
         .value = "FILE",
         .help = "class names: config.json with id2label, a JSON list, or a name a line"},
        {.name = "dump-after",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->dump_after,
         .value = "PASS|import|all",
         .help = "print the graph after a pass on standard output"},
        {.name = "disable",
         .kind = LATHE_OPTION_WORDS,
         .into = &q.disable,
         .value = "PASS",
         .help = "leave out a pass; repeatable (lathe passes lists them)"},
        {.name = "check", .kind = LATHE_OPTION_FLAG, .into = &o->check, .help = "check the graph after every pass"},
        {.name = "keep-padding",
         .kind = LATHE_OPTION_FLAG,
         .into = &o->keep_padding,
         .help = "compute rows at mask 0 as the source does, instead of leaving them zero"},
        {.name = "allow-fallback",
         .kind = LATHE_OPTION_FLAG,
         .into = &o->allow_fallback,
         .help = "steps that the target's device does not run stay on the host, counted in the report (else exit 4)"},
        {.name = "verify",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.verify,
         .help = "compare with the source graph, however large the model"},
        {.name = "no-verify", .kind = LATHE_OPTION_FLAG, .into = &q.no_verify, .help = "do not compare"},
        {.name = "compress",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.compress,
         .value = "LEVEL",
         .min = 0,
         .max = 19,
         .help = "zstd level for the weights (default 0: they stay mappable)"},
        {.name = "jobs",
         .kind = LATHE_OPTION_COUNT,
         .into = &q.jobs,
         .value = "N",
         .min = 1,
         .max = 1024,
         .help = "threads of the compile (default: all cores)"},
        {.name = "external-dir",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->external_dir,
         .value = "DIR",
         .help = "another folder that external data may lie in"},
        {.name = "verbose",
         .letter = 'v',
         .kind = LATHE_OPTION_FLAG,
         .into = &q.verbose,
         .help = "name each stage on standard error"},
        {.name = "bucket",
         .kind = LATHE_OPTION_WORDS,
         .into = &q.buckets,
         .value = "BxS",
         .help = "static shapes: a plan for this batch and length; repeatable, the runtime pads and splits"},
        {.name = "calibrate",
         .kind = LATHE_OPTION_TEXT,
         .into = &o->calibrate,
         .value = "DIR",
         .help = "int8, auto: folder of input_N.pb sets or of <input>.npy files (default: made-up inputs)"},
        {.name = "pooling", .kind = LATHE_OPTION_TEXT, .into = &q.pooling, .value = "mean|cls|last"},
        {.name = "normalize", .kind = LATHE_OPTION_FLAG, .into = &q.normalize},
        {.name = "tokenizer", .kind = LATHE_OPTION_TEXT, .into = &q.tokenizer, .value = "tokenizer.json"},
        {.name = "min-cosine",
         .kind = LATHE_OPTION_REAL,
         .into = &o->min_cosine,
         .value = "C",
         .given = &q.has_min_cosine,
         .help = "least cosine of each output with the source's (default for int8 0.99); auto keeps the layers in f32 "
                 "that it takes"},
    };
    const struct lathe_syntax syntax = {.command = "compile",
                                        .arguments = "MODEL.onnx -o OUT.lathe [options]",
                                        .summary = "an ONNX model into an artifact",
                                        .details = details,
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options,
                                        .min_args = 1,
                                        .max_args = 1};
    int exit = lathe_cli_run(&syntax, argc, argv, &q.args, compile, &q);
    lathe_labels_free(&q.labels);
    return exit;
}
