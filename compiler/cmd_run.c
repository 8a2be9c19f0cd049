/* lathe run: an artifact on inputs from .npy files or a data set; outputs become .npy files. */
#include "cli.h"
#include "feeds.h"
#include "npy.h"
#include "package.h"
#include "printable.h"
#include "session_args.h"
#include "tensor_pb.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct request {
    struct lathe_words args, inputs;
    const char *output_dir, *test_data;
    bool allow_nonfinite;
    struct lathe_session_args session;
};

/* ---- inputs */

/* The '=' of NAME=FILE; a name may hold one itself, so the model's own names decide. */
static const char *split_at(const struct lathe_artifact *a, const char *text) {
    const char *first = strchr(text, '=');
    for (const char *p = first; p; p = strchr(p + 1, '=')) {
        char *name = strndup(text, (size_t)(p - text));
        bool known = name && lathe_artifact_find_input(a, name) >= 0;
        free(name);
        if (known)
            return p;
    }
    return first;
}

static enum lathe_status read_input(const struct lathe_artifact *a, const char *text, struct lathe_feeds *feeds,
                                    struct lathe_diag *diag) {
    const char *split = split_at(a, text);
    if (!split || split == text || !split[1])
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--input: expected NAME=FILE.npy, found '%s'", text);
    struct lathe_data_tensor tensor;
    LATHE_TRY(lathe_npy_read(split + 1, &tensor, diag));
    char *name = strndup(text, (size_t)(split - text));
    enum lathe_status status = name ? lathe_feeds_put(a, feeds, name, &tensor, split + 1, diag)
                                    : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the inputs");
    free(name);
    lathe_data_tensor_free(&tensor);
    return status;
}

static enum lathe_status read_data_set(const struct lathe_artifact *a, const char *folder, struct lathe_feeds *feeds,
                                       struct lathe_diag *diag) {
    struct lathe_data_set set;
    LATHE_TRY(lathe_data_set_read(folder, &set, diag));
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < set.input_count; i++)
        status = lathe_feeds_put_nth(a, feeds, i, &set.inputs[i], folder, diag);
    lathe_data_set_free(&set);
    return status;
}

static enum lathe_status read_inputs(const struct request *q, const struct lathe_artifact *a, struct lathe_feeds *feeds,
                                     struct lathe_diag *diag) {
    LATHE_TRY(lathe_feeds_new(a, feeds, diag));
    if (q->test_data)
        LATHE_TRY(read_data_set(a, q->test_data, feeds, diag));
    for (unsigned i = 0; i < q->inputs.count; i++)
        LATHE_TRY(read_input(a, q->inputs.at[i], feeds, diag));
    return LATHE_OK;
}

/* ---- outputs */

/* DIR/<name>.npy with every character but letters, digits, '.', '_' and '-' as '_'. */
static char *output_path(const char *folder, const char *name) {
    char *path;
    if (asprintf(&path, "%s/%s.npy", folder, name) < 0)
        return NULL;
    for (char *p = path + strlen(folder) + 1; *p;) {
        /* a whole UTF-8 character is one '_' */
        unsigned n = lathe_utf8_length(p);
        if (isalnum((unsigned char)*p) || strchr("._-", *p)) {
            p++;
            continue;
        }
        *p = '_';
        if (n > 1)
            memmove(p + 1, p + n, strlen(p + n) + 1);
        p++;
    }
    return path;
}

static enum lathe_status make_folder(const char *folder, struct lathe_diag *diag) {
    struct stat st;
    if (mkdir(folder, 0777) && errno != EEXIST)
        return lathe_fail(diag, LATHE_MSG_OUTPUT_FILE, "%s: cannot be made: %s", folder, strerror(errno));
    if (stat(folder, &st) || !S_ISDIR(st.st_mode))
        return lathe_fail(diag, LATHE_MSG_OUTPUT_FILE, "%s: is no folder", folder);
    return LATHE_OK;
}

/* Outputs whose names differ only in characters that file names do not keep would fall on one file. */
static enum lathe_status check_names(const struct lathe_artifact *a, const char *folder, struct lathe_diag *diag) {
    unsigned count = lathe_artifact_output_count(a);
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < count; i++)
        for (unsigned k = 0; status == LATHE_OK && k < i; k++) {
            const char *x = lathe_artifact_output(a, i)->name, *y = lathe_artifact_output(a, k)->name;
            char *px = output_path(folder, x), *py = output_path(folder, y);
            if (px && py && !strcmp(px, py))
                status = lathe_fail(diag, LATHE_MSG_OUTPUT_FILE, "outputs '%s' and '%s' would both be written to %s", y,
                                    x, px);
            free(px);
            free(py);
        }
    return status;
}

static enum lathe_status write_output(const struct request *q, const struct lathe_port *port,
                                      const struct lathe_tensor_view *v, struct lathe_text *out,
                                      struct lathe_diag *diag) {
    char shape[160];
    char *path = output_path(q->output_dir, port->name);
    if (!path)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for a file name");
    enum lathe_status status = lathe_npy_write(path, v->dtype, v->rank, v->dims, v->data, v->bytes, diag);
    lathe_shape_text(v->dtype, v->rank, v->dims, shape, sizeof shape);
    lathe_append_printable(out, path);
    lathe_text_append(out, "  %s\n", shape);
    free(path);
    return status;
}

/* NaN and infinity do not leave as success. */
static enum lathe_status check_finite(const struct lathe_port *port, const struct lathe_tensor_view *v,
                                      struct lathe_diag *diag) {
    size_t count = lathe_dtype_is_float(v->dtype) ? v->bytes / lathe_dtype_bytes(v->dtype) : 0;
    for (size_t i = 0; i < count; i++) {
        double x = lathe_element_f64(v->dtype, v->data, i);
        if (!isfinite(x))
            return lathe_fail(diag, LATHE_MSG_VERIFY_FAILED,
                              "output %s holds %g at element %zu (row %zu); --allow-nonfinite lets it pass", port->name,
                              x, i, v->rank && v->dims[0] ? i / (count / (size_t)v->dims[0]) : 0);
    }
    return LATHE_OK;
}

static enum lathe_status run_session(const struct request *q, struct lathe_artifact *a, struct lathe_session *s,
                                     struct lathe_diag *diag) {
    struct lathe_feeds feeds = {0};
    struct lathe_text out = {0};
    enum lathe_status status = read_inputs(q, a, &feeds, diag), finite = LATHE_OK;
    if (status == LATHE_OK)
        status = lathe_feeds_bind(s, &feeds, diag);
    if (status == LATHE_OK)
        status = lathe_session_run(s, diag);
    if (status == LATHE_OK)
        status = make_folder(q->output_dir, diag);
    for (unsigned i = 0; status == LATHE_OK && i < lathe_artifact_output_count(a); i++) {
        status = write_output(q, lathe_artifact_output(a, i), lathe_session_output(s, i), &out, diag);
        if (status == LATHE_OK && finite == LATHE_OK && !q->allow_nonfinite)
            finite = check_finite(lathe_artifact_output(a, i), lathe_session_output(s, i), diag);
    }
    unsigned flagged = status == LATHE_OK ? lathe_session_flagged_rows(s) : 0;
    unsigned cut = status == LATHE_OK ? lathe_session_truncated_rows(s) : 0;
    lathe_feeds_free(&feeds);
    if (cut)
        lathe_cli_warn("%u rows were cut to %lld tokens", cut, (long long)lathe_artifact_max_length(a));
    if (flagged)
        lathe_cli_warn("%u rows had every key masked out where the source gives NaN; they are zeros", flagged);
    if (status == LATHE_OK)
        status = lathe_cli_print(&out, diag);
    lathe_text_free(&out);
    return status == LATHE_OK ? finite : status;
}

static enum lathe_status run(void *request, struct lathe_diag *diag) {
    struct request *q = request;
    struct lathe_session_options options;
    struct lathe_model model;
    struct lathe_session *s = NULL;
    if (!q->output_dir)
        return lathe_fail(diag, LATHE_MSG_ARGUMENTS, "lathe run: --output-dir DIR is missing");
    LATHE_TRY(lathe_session_args_apply(&q->session, &options, diag));
    LATHE_TRY(lathe_model_open(q->args.at[0], NULL, &model, diag));
    struct lathe_artifact *a = model.artifact;
    enum lathe_status status = check_names(a, q->output_dir, diag);
    if (status == LATHE_OK)
        status = lathe_session_new(a, &options, &s, diag);
    if (status == LATHE_OK)
        status = run_session(q, a, s, diag);
    lathe_session_close(&s);
    lathe_model_close(&model);
    return status;
}

int lathe_cmd_run(int argc, char **argv) {
    static struct request q;
    const struct lathe_option options[] = {
        {.name = "input",
         .letter = 'i',
         .kind = LATHE_OPTION_WORDS,
         .into = &q.inputs,
         .value = "NAME=FILE.npy",
         .help = "an input; repeatable"},
        {.name = "test-data",
         .kind = LATHE_OPTION_TEXT,
         .into = &q.test_data,
         .value = "DIR",
         .help = "take the inputs from the input_N.pb of a data set"},
        {.name = "output-dir",
         .letter = 'o',
         .kind = LATHE_OPTION_TEXT,
         .into = &q.output_dir,
         .value = "DIR",
         .help = "where <output>.npy is written; made when it is missing"},
        {.name = "allow-nonfinite",
         .kind = LATHE_OPTION_FLAG,
         .into = &q.allow_nonfinite,
         .help = "NaN and infinity in an output are no error (they are exit code 5)"},
        LATHE_THREADS_OPTION(q.session),
        LATHE_CORES_OPTION(q.session),
        LATHE_CPUMASK_OPTION(q.session),
        LATHE_TRUNCATE_OPTION(q.session),
    };
    const struct lathe_syntax syntax = {.command = "run",
                                        .arguments = "MODEL.lathe --input NAME=FILE.npy... --output-dir DIR",
                                        .summary = "an artifact on inputs from .npy files",
                                        .options = options,
                                        .option_count = sizeof options / sizeof *options,
                                        .min_args = 1,
                                        .max_args = 1};
    return lathe_cli_run(&syntax, argc, argv, &q.args, run, &q);
}
