/* The whole compile, in order. */
#include "bucket_choice.h"
#include "bucket_graphs.h"
#include "check_operators.h"
#include "lathe_compiler.h"
#include "plan.h"
#include "quantize.h"
#include "reference.h"
#include "stages.h"
#include "write_file.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct job {
    const struct lathe_compile_options *o;
    struct lathe_report *report;
    struct lathe_diag *diag;
    struct lathe_target target;
    struct lathe_model_file *file;
    struct lathe_graph *graph;
    uint64_t weights;                                    /* bytes of constants of the source */
    const char *precision;                               /* as the options and the target's cast policy say together */
    bool cast_all;                                       /* --cast all */
    bool quantized_source;                               /* it quantizes activations */
    struct lathe_bounds bounds;                          /* of the verification */
    struct lathe_bucket sizes[LATHE_TARGET_MAX_BUCKETS]; /* static shapes: sorted by seq, then batch */
    unsigned bucket_count;
    char *unverified; /* the artifact under its temporary name, while it is there */
};

static void enter(const struct job *j, const char *stage) {
    if (j->o->stage)
        j->o->stage(j->o->user, stage);
}

/* ---- options */

static enum lathe_status check_pass_name(const char *option, const char *name, struct lathe_diag *diag) {
    if (lathe_pass_by_name(name))
        return LATHE_OK;
    return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "%s: no pass is named '%s' (lathe passes lists them)", option,
                      name);
}

static bool is_automatic(const struct job *j) {
    return !strcmp(j->precision, "auto") && j->target.precisions & LATHE_PRECISION_INT8;
}

static bool quantizes(const struct job *j) {
    return !strcmp(j->precision, "int8") || is_automatic(j);
}

static bool rounds(const struct job *j) {
    return !strcmp(j->precision, "bf16");
}

/* --cast matmul is --precision bf16 with attention in f32, so that it means the same on all targets; the target says
 * whether bf16 goes on to all tensors where --cast does not. */
static enum lathe_status choose_casts(struct job *j) {
    const char *precision = j->o->precision, *cast = j->o->cast;
    bool casts = cast && strcmp(cast, "none");
    if (cast && strcmp(cast, "none") && strcmp(cast, "matmul") && strcmp(cast, "all"))
        return lathe_fail(j->diag, LATHE_MSG_OPTION_VALUE, "--cast: '%s' is not known (known: none, matmul, all)",
                          cast);
    if (cast && precision && casts != !strcmp(precision, "bf16") && (casts || !strcmp(precision, "bf16")))
        return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS, "--precision %s and --cast %s contradict each other: %s",
                          precision, cast,
                          casts ? "casts are to bf16 (--precision bf16)" : "bf16 casts the products (--cast matmul)");
    j->precision = precision ? precision : casts ? "bf16" : "f32";
    j->cast_all = rounds(j) && (cast ? !strcmp(cast, "all") : j->target.cast == LATHE_CAST_ALL);
    lathe_report_cast_policy(j->report, j->cast_all ? "all" : rounds(j) ? "matmul" : "none");
    return LATHE_OK;
}

static enum lathe_status check_precision(const struct job *j) {
    static const struct {
        const char *name;
        unsigned bit;
    } known[] = {{"f32", LATHE_PRECISION_F32},
                 {"bf16", LATHE_PRECISION_BF16},
                 {"int8", LATHE_PRECISION_INT8},
                 {"auto", LATHE_PRECISION_F32}};
    const char *want = j->precision;
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strcmp(known[i].name, want))
        i++;
    if (i == sizeof known / sizeof *known)
        return lathe_fail(j->diag, LATHE_MSG_OPTION_VALUE,
                          "--precision: '%s' is not known (known: f32, bf16, int8, auto)", want);
    if (!(j->target.precisions & known[i].bit))
        return lathe_fail(j->diag, LATHE_MSG_TARGET_PRECISION, "target %s does not run %s (it runs:%s%s%s)",
                          j->target.name, want, j->target.precisions & LATHE_PRECISION_F32 ? " f32" : "",
                          j->target.precisions & LATHE_PRECISION_BF16 ? " bf16" : "",
                          j->target.precisions & LATHE_PRECISION_INT8 ? " int8" : "");
    if (j->o->calibrate && !quantizes(j))
        return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS, "--calibrate is for --precision int8 and auto, found %s", want);
    return LATHE_OK;
}

/* Those that were asked for, or the target's own; in the order of the artifact. */
static enum lathe_status take_buckets(struct job *j) {
    const struct lathe_compile_options *o = j->o;
    bool own = !o->bucket_count && j->target.shapes == LATHE_SHAPES_STATIC;
    unsigned count = own ? j->target.bucket_count : o->bucket_count;
    if (own && !count)
        return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS,
                          "target %s takes static shapes and names no buckets of its own: give --bucket BxS",
                          j->target.name);
    if (own && (o->max_batch || o->max_seq))
        return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS,
                          "target %s takes static shapes: --bucket BxS instead of --max-batch and --max-seq",
                          j->target.name);
    if (count > LATHE_MAX_BUCKETS)
        return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS, "%u buckets, an artifact holds at most %d", count,
                          LATHE_MAX_BUCKETS);
    if (count)
        memcpy(j->sizes, own ? j->target.buckets : o->buckets, count * sizeof *j->sizes);
    qsort(j->sizes, count, sizeof *j->sizes, lathe_compare_buckets);
    for (unsigned i = 1; i < count; i++)
        if (!lathe_compare_buckets(&j->sizes[i - 1], &j->sizes[i]))
            return lathe_fail(j->diag, LATHE_MSG_ARGUMENTS, "--bucket %lldx%lld is given twice",
                              (long long)j->sizes[i].batch, (long long)j->sizes[i].seq);
    j->bucket_count = count;
    return LATHE_OK;
}

static enum lathe_status check_options(struct job *j) {
    const struct lathe_compile_options *o = j->o;
    for (unsigned i = 0; i < o->expect_count; i++)
        LATHE_TRY(lathe_report_expect_syntax(o->expect[i], j->diag));
    for (unsigned i = 0; i < o->disabled_count; i++)
        LATHE_TRY(check_pass_name("--disable", o->disabled[i], j->diag));
    if (o->dump_after && strcmp(o->dump_after, "all") && strcmp(o->dump_after, "import"))
        LATHE_TRY(check_pass_name("--dump-after", o->dump_after, j->diag));
    LATHE_TRY(lathe_target_load(o->target ? o->target : "native", &j->target, j->diag));
    if (o->placement)
        j->target.placement = o->placement;
    if (o->cores)
        j->target.cores = o->cores;
    LATHE_TRY(choose_casts(j));
    LATHE_TRY(check_precision(j));
    LATHE_TRY(take_buckets(j));
    char features[512];
    lathe_target_features_text(j->target.features, features, sizeof features);
    lathe_report_target(j->report, j->target.name, quantizes(j) ? "int8" : rounds(j) ? "bf16" : "f32", features);
    return lathe_check_writable(o->output, j->diag);
}

/* ---- import */

static int is_model(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 5 && !strcmp(e->d_name + n - 5, ".onnx");
}

/* A folder stands for the one model in it. */
static enum lathe_status model_path(const char *given, char **path, struct lathe_diag *diag) {
    struct stat st;
    *path = NULL;
    if (stat(given, &st) || !S_ISDIR(st.st_mode)) {
        *path = strdup(given);
        return *path ? LATHE_OK : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", given);
    }
    struct dirent **entries;
    int n = scandir(given, &entries, is_model, alphasort);
    if (n < 0)
        return lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", given, strerror(errno));
    enum lathe_status status = LATHE_OK;
    char names[1024] = "";
    for (int i = 0; i < n; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", entries[i]->d_name);
    }
    if (n != 1)
        status = lathe_fail(
            diag, LATHE_MSG_DATA_FILE,
            n ? "%s: a folder with several models, name one: %s" : "%s: a folder without a .onnx file%s", given, names);
    else if (asprintf(path, "%s/%s", given, entries[0]->d_name) < 0)
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", given);
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    return status;
}

/* A fused operator keeps in f32 what the source rounds to 16 bits at every step. Where the source itself quantizes
 * activations, a difference in the last bit of an f32 can move a number by a whole step: the direction counts there. */
static bool quantizes_activations(struct lathe_graph *g) {
    LATHE_FOR_NODES(g, n) {
        enum lathe_op op = lathe_node_at(g, n)->op;
        if (op == LATHE_OP_QUANTIZE_LINEAR || op == LATHE_OP_DYNAMIC_QUANTIZE_LINEAR)
            return true;
    }
    return false;
}

static struct lathe_bounds verify_bounds(struct lathe_graph *g) {
    struct lathe_bounds b = {.has_tolerance = true, .atol = LATHE_VERIFY_ATOL};
    for (uint32_t v = 0; v < g->value_count; v++) {
        enum lathe_dtype dtype = g->values[v].dtype;
        double own = dtype == LATHE_BF16 ? LATHE_VERIFY_TOL_BF16 : dtype == LATHE_F16 ? LATHE_VERIFY_TOL_F16 : 0;
        b.atol = own > b.atol ? own : b.atol;
    }
    b.rtol = b.atol;
    if (quantizes_activations(g))
        b = (struct lathe_bounds){.has_cosine = true, .min_cosine = LATHE_VERIFY_QUANTIZED_COSINE, .atol = INFINITY};
    return b;
}

/* 8-bit and bf16 products change every number a little: the direction of an output counts, as the caller or the default
 * says. */
static struct lathe_bounds bounds_of(const struct job *j) {
    struct lathe_bounds b = verify_bounds(j->graph);
    if (quantizes(j))
        b = (struct lathe_bounds){.has_cosine = true, .min_cosine = LATHE_INT8_MIN_COSINE, .atol = INFINITY};
    else if (j->cast_all)
        b = (struct lathe_bounds){
            .has_cosine = true, .min_cosine = LATHE_CAST_MIN_COSINE, .near = LATHE_CAST_NEAR, .atol = INFINITY};
    else if (rounds(j) && !(b.has_cosine && b.min_cosine < LATHE_BF16_MIN_COSINE))
        b = (struct lathe_bounds){
            .has_cosine = true, .min_cosine = LATHE_BF16_MIN_COSINE, .near = LATHE_BF16_NEAR, .atol = INFINITY};
    if (j->o->min_cosine > 0) {
        b.has_cosine = true;
        b.near = 0;
        b.min_cosine = j->o->min_cosine;
    }
    return b;
}

static uint64_t constant_bytes(struct lathe_graph *g) {
    uint64_t total = 0;
    for (uint32_t v = 0; v < g->value_count; v++) {
        int64_t bytes = lathe_value_is_constant(g, v) ? lathe_value_bytes(g, v) : 0;
        total += bytes > 0 ? (uint64_t)bytes : 0;
    }
    return total;
}

/* What the compile will need is known as soon as the model is read: said, and compared with the room on the disk. */
static enum lathe_status check_sizes(struct job *j) {
    j->weights = constant_bytes(j->graph);
    j->quantized_source = quantizes_activations(j->graph);
    j->bounds = bounds_of(j);
    if (j->o->sizes)
        j->o->sizes(j->o->user, j->weights, j->weights + j->weights * 3 / 10 + (UINT64_C(200) << 20));
    const char *slash = strrchr(j->o->output, '/');
    char *folder = slash ? strndup(j->o->output, (size_t)(slash + 1 - j->o->output)) : strdup(".");
    struct statvfs fs;
    bool known = folder && !statvfs(folder, &fs);
    free(folder);
    uint64_t room = known ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
    if (j->o->compress_level == 0 && room < j->weights)
        return lathe_fail(j->diag, LATHE_MSG_OUTPUT_FILE,
                          "%s: the artifact needs about %llu bytes, the file system has %llu left", j->o->output,
                          (unsigned long long)j->weights, (unsigned long long)room);
    return LATHE_OK;
}

static void dump_graph(void *user, const char *pass, struct lathe_graph *g) {
    const struct job *j = user;
    if (strcmp(j->o->dump_after, "all") && strcmp(j->o->dump_after, pass))
        return;
    struct lathe_text text = {0};
    if (lathe_graph_print(g, &text) == LATHE_OK && !text.failed)
        j->o->dump(j->o->user, pass, text.data ? text.data : "");
    lathe_text_free(&text);
}

static enum lathe_status import(struct job *j, const char *path) {
    struct lathe_import_options options = {.external_dir = j->o->external_dir, .report = j->report};
    enter(j, "import");
    LATHE_TRY(lathe_import_onnx(path, &options, &j->file, &j->graph, j->diag));
    if (j->o->dump_after)
        dump_graph(j, "import", j->graph);
    return check_sizes(j);
}

/* ---- passes */

static struct lathe_pipeline_options pipeline_options(struct job *j) {
    return (struct lathe_pipeline_options){
        .pass = {.keep_padding = j->o->keep_padding,
                 .max_batch = j->o->max_batch,
                 .max_seq = j->o->max_seq,
                 .buckets = j->sizes,
                 .bucket_count = j->bucket_count,
                 .bf16 = rounds(j),
                 .bf16_attention = rounds(j) && !j->o->cast && !j->cast_all,
                 .cast_all = j->cast_all,
                 .int8 = quantizes(j)},
        .disabled = j->o->disabled,
        .disabled_count = j->o->disabled_count,
        .check = j->o->check,
        .after_pass = j->o->dump_after ? dump_graph : NULL,
        .user = j,
    };
}

static enum lathe_status run_passes(struct job *j) {
    struct lathe_pipeline_options options = pipeline_options(j);
    enter(j, "passes");
    LATHE_TRY(lathe_pipeline_run(j->graph, &j->target, &options, j->report, j->diag));
    if (!quantizes(j))
        return LATHE_OK;
    struct lathe_quantize_request request = {.target = &j->target,
                                             .pipeline = &options,
                                             .calibrate = j->o->calibrate,
                                             .automatic = is_automatic(j),
                                             .min_cosine = j->o->min_cosine,
                                             .jobs = j->o->jobs};
    enter(j, "quantize");
    return lathe_quantize(j->graph, &request, j->report, j->diag);
}

static enum lathe_status check_expectations(const struct job *j) {
    for (unsigned i = 0; i < j->o->expect_count; i++)
        LATHE_TRY(lathe_report_expect(j->report, j->o->expect[i], j->diag));
    return LATHE_OK;
}

/* ---- artifact */

static struct lathe_emit_options emit_options(const struct job *j) {
    return (struct lathe_emit_options){
        .target = &j->target,
        .compress_level = j->o->compress_level,
        .jobs = j->o->jobs,
        .max_batch = j->o->max_batch,
        .max_seq = j->o->max_seq,
        .labels = j->o->labels,
        .label_count = j->o->label_count,
        .source_sha256 = lathe_report_sha256(j->report),
        .known_answer = true,
    };
}

/* Of buckets the largest is looked at: the others have the same operators. */
static enum lathe_status check_operators(struct job *j) {
    struct lathe_emit_options options = emit_options(j);
    struct lathe_graph *one = NULL;
    enum lathe_status status = LATHE_OK;
    unsigned count = 1;
    if (j->graph->interface && (j->graph->interface->has_batch || j->graph->interface->has_seq)) {
        struct lathe_bucket last = j->sizes[j->bucket_count - 1];
        struct lathe_pipeline_options pipeline = pipeline_options(j);
        status = lathe_bucket_graphs_make(j->graph, &j->target, &pipeline, &last, &count, &one, j->diag);
    }
    if (status == LATHE_OK)
        status = lathe_check_operators(one ? one : j->graph, &options, j->o->allow_fallback, j->report, j->diag);
    lathe_graph_free(&one);
    return status;
}

/* A mask that is there need not hide padding: a convolution over tokens reads the next one whatever its mask says. Two
 * runs that differ in nothing but their padding tell; *seen: their outputs differ. */
static enum lathe_status probe_padding(const struct job *j, bool *seen) {
    struct lathe_artifact_options quick = {.skip_weight_checksum = true, .map_weights = true};
    struct lathe_artifact *a = NULL;
    struct lathe_checker checker = {0};
    struct lathe_feeds feeds = {0};
    static struct lathe_diag why;
    *seen = false;
    LATHE_TRY(lathe_artifact_open(j->unverified, &quick, &a, j->diag));
    const struct lathe_buckets *b = a->buckets;
    unsigned k = 0;
    while (k + 1 < b->list.count && b->sizes[k].seq < 4)
        k++;
    struct lathe_trial trial = {.batch = 1, .seq = b->sizes[k].seq - 1};
    trial.batch = b->has_batch ? 1 : b->sizes[k].batch;
    trial.seq = trial.seq > 7 ? 7 : trial.seq < 1 ? 1 : trial.seq;
    for (unsigned i = 0; i < sizeof trial.lengths / sizeof *trial.lengths; i++)
        trial.lengths[i] = trial.seq;
    lathe_diag_reset(&why);
    enum lathe_status status = lathe_trial_feeds(a, &trial, &feeds, &why);
    if (status == LATHE_OK)
        status = lathe_checker_open(a, &(struct lathe_session_options){.plain_c = true}, &checker, &why);
    if (status == LATHE_OK) {
        lathe_checker_force(&checker, (int)k);
        status = lathe_checker_run(&checker, &feeds, &why);
    }
    *seen = status != LATHE_OK && why.message == LATHE_MSG_VERIFY_UNSTABLE;
    lathe_checker_close(&checker);
    lathe_feeds_free(&feeds);
    lathe_artifact_close(&a);
    /* what else goes wrong with made-up inputs is the verification's to tell */
    return status == LATHE_INTERNAL ? lathe_fail(j->diag, why.message, "%s", why.text) : LATHE_OK;
}

static enum lathe_status emit_plans(struct job *j, const struct lathe_emit_buckets *buckets) {
    int fd;
    struct lathe_emit_options options = emit_options(j);
    options.buckets = buckets;
    LATHE_TRY(lathe_temporary_beside(j->o->output, &j->unverified, &fd, j->diag));
    close(fd);
    return lathe_emit_file(j->graph, &options, j->unverified, j->report, j->diag);
}

static enum lathe_status emit(struct job *j) {
    enter(j, "emit");
    const struct lathe_interface *face = j->graph->interface;
    struct lathe_graph *graphs[LATHE_MAX_BUCKETS] = {NULL};
    struct lathe_emit_buckets buckets = {.sizes = j->sizes, .graphs = graphs};
    bool varies = face && (face->has_batch || face->has_seq); /* else it is one shape, and no bucket is chosen */
    enum lathe_status status = LATHE_OK;
    struct lathe_pipeline_options options = pipeline_options(j);
    if (varies)
        status = lathe_bucket_graphs_make(j->graph, &j->target, &options, j->sizes, &j->bucket_count, graphs, j->diag);
    buckets.count = j->bucket_count;
    buckets.zero_rows = !j->o->keep_padding && lathe_graph_hides_rows(j->graph);
    if (status == LATHE_OK)
        status = emit_plans(j, varies ? &buckets : NULL);
    bool seen = false;
    if (status == LATHE_OK && varies && face->has_seq && face->hides_padding)
        status = probe_padding(j, &seen);
    if (status == LATHE_OK && seen) { /* once more, as one that takes no padding */
        j->graph->interface->hides_padding = false;
        lathe_report_warning(
            j->report, "PADDING_DEPENDENT", "",
            "the graph looks at tokens that its mask marks as padding, so lengths cannot be padded: only "
            "requests of a bucket's own length run");
        unlink(j->unverified);
        lathe_temporary_end(&j->unverified);
        status = emit_plans(j, &buckets);
    }
    for (unsigned i = 0; i < LATHE_MAX_BUCKETS; i++)
        lathe_graph_free(&graphs[i]);
    return status;
}

static void port_dims(const struct lathe_port *p, char *buffer, size_t size) {
    size_t n = 0;
    buffer[0] = 0;
    for (unsigned i = 0; i < p->rank && n < size; i++)
        n += (size_t)(p->dims[i] >= 0 ? snprintf(buffer + n, size - n, "%s%lld", i ? ", " : "", (long long)p->dims[i])
                                      : snprintf(buffer + n, size - n, "%s%s", i ? ", " : "",
                                                 p->dim_names[i] ? p->dim_names[i] : "?"));
}

static void report_port(struct lathe_report *r, const char *role, const struct lathe_port *p) {
    char dims[512];
    port_dims(p, dims, sizeof dims);
    lathe_report_shape(r, role, p->name, lathe_dtype_name(p->dtype), dims);
}

static void report_shapes(const struct job *j, const struct lathe_artifact *a) {
    char text[32];
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++)
        report_port(j->report, "input", lathe_artifact_input(a, i));
    for (unsigned i = 0; i < lathe_artifact_output_count(a); i++)
        report_port(j->report, "output", lathe_artifact_output(a, i));
    snprintf(text, sizeof text, "%lld", (long long)lathe_artifact_max_batch(a));
    lathe_report_shape(j->report, "limit", "max_batch", "", text);
    snprintf(text, sizeof text, "%lld", (long long)lathe_artifact_max_length(a));
    lathe_report_shape(j->report, "limit", "max_length", "", text);
}

/* ---- verification: the artifact against the unfused graph */

static double cosine_of(const struct lathe_data_tensor *a, const struct lathe_data_tensor *b) {
    size_t count = a->bytes / lathe_dtype_bytes(a->dtype);
    double ab = 0, aa = 0, bb = 0;
    if (a->dtype != b->dtype || a->bytes != b->bytes)
        return 1;
    for (size_t i = 0; i < count; i++) {
        double x = lathe_element_f64(a->dtype, a->data, i), y = lathe_element_f64(b->dtype, b->data, i);
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0 && bb > 0 && isfinite(ab) ? ab / sqrt(aa * bb) : 1;
}

/* Where the source quantizes activations, two right executions of it can differ as much as it does from itself with
 * `floats` for them: by a number that falls to the other side of a rounding early on. (An int8 compile replaces that
 * quantization and is compared with the floats.)
 * Rounding grows with the numbers: the bound is meant for outputs of unit size, larger ones (MobileBERT's are in the
 * hundreds) get it times their root mean square. */
static struct lathe_bounds bounds_for(const struct job *j, const struct lathe_data_tensor *want,
                                      const struct lathe_data_tensor *floats) {
    struct lathe_bounds b = j->bounds;
    double noise = floats ? cosine_of(want, floats) : 1;
    if (b.has_cosine && j->o->min_cosine <= 0 && noise < b.min_cosine)
        b.min_cosine = noise;
    size_t count = want->bytes / lathe_dtype_bytes(want->dtype);
    double sum = 0;
    for (size_t i = 0; lathe_dtype_is_float(want->dtype) && i < count; i++) {
        double x = lathe_element_f64(want->dtype, want->data, i);
        sum += isfinite(x) ? x * x : 0;
    }
    if (sum > (double)count)
        b.atol *= sqrt(sum / (double)count);
    return b;
}

static enum lathe_status compare_outputs(const struct job *j, const struct lathe_checker *checker,
                                         const struct lathe_feeds *feeds, const struct lathe_answers *want,
                                         const struct lathe_answers *floats, const char *what) {
    for (unsigned i = 0; i < lathe_artifact_output_count(checker->artifact); i++) {
        const char *name = lathe_artifact_output(checker->artifact, i)->name;
        int k = 0;
        while ((unsigned)k < want->count && strcmp(want->at[k].name, name))
            k++;
        if ((unsigned)k == want->count)
            return lathe_fail(j->diag, LATHE_MSG_VERIFY_FAILED, "%s: the source has no such output", name);
        struct lathe_comparison c;
        struct lathe_bounds bounds = bounds_for(j, &want->at[k], floats->count == want->count ? &floats->at[k] : NULL);
        lathe_checker_compare(checker, feeds, i, &want->at[k], &bounds, false, &c);
        char text[448], cosine[160] = "";
        if (j->bounds.has_cosine)
            snprintf(cosine, sizeof cosine, ": cosine %.6f, at least %g", c.cosine, bounds.min_cosine);
        size_t used = strlen(cosine);
        if (j->bounds.has_cosine && j->bounds.near > 0)
            used += (size_t)snprintf(cosine + used, sizeof cosine - used, " or all within %g", j->bounds.near);
        if (j->bounds.has_cosine && c.rows > 0 && used < sizeof cosine)
            snprintf(cosine + used, sizeof cosine - used, ", arg-max differs in %lld of %lld rows", (long long)c.flips,
                     (long long)c.rows);
        snprintf(text, sizeof text, "%.200s against the unfused graph%s, %s%s", name,
                 j->quantized_source && quantizes(j) ? " with activations in f32" : "", what, cosine);
        struct lathe_report_compared compared = {.max_error = c.max_error,
                                                 .bound = bounds.atol,
                                                 .cosine = c.cosine,
                                                 .rows = c.rows,
                                                 .flips = c.flips,
                                                 .passed = c.passed};
        lathe_report_verification(j->report, text, &compared);
        if (!c.passed)
            return lathe_fail(j->diag, LATHE_MSG_VERIFY_FAILED, "verification against the unfused graph, %s: %s", what,
                              c.why);
    }
    return LATHE_OK;
}

/* In every bucket that takes it, so that each plan is compared, not only those that a session would choose. */
static enum lathe_status run_in_buckets(const struct job *j, struct lathe_checker *checker,
                                        const struct lathe_feeds *feeds, const struct lathe_answers *want,
                                        const struct lathe_answers *floats, const struct lathe_trial *trial) {
    const struct lathe_buckets *b = checker->artifact->buckets;
    for (unsigned k = 0; b && k < b->list.count; k++) {
        char what[sizeof trial->what + 32];
        if (b->whole && (b->sizes[k].batch != trial->batch || b->sizes[k].seq != (b->has_seq ? trial->seq : 0)))
            continue;
        if (b->has_seq && (b->list.exact ? b->sizes[k].seq != trial->seq : b->sizes[k].seq < trial->seq))
            continue;
        snprintf(what, sizeof what, "%s, in bucket %lldx%lld", trial->what, (long long)b->sizes[k].batch,
                 (long long)b->sizes[k].seq);
        lathe_checker_force(checker, (int)k);
        LATHE_TRY(lathe_checker_run(checker, feeds, j->diag));
        LATHE_TRY(compare_outputs(j, checker, feeds, want, floats, what));
    }
    return LATHE_OK;
}

static enum lathe_status run_trial(const struct job *j, struct lathe_artifact *a, const struct lathe_feeds *feeds,
                                   const struct lathe_answers *want, const struct lathe_answers *floats,
                                   const struct lathe_trial *trial) {
    const struct lathe_session_options options = {.max_batch = trial->batch};
    struct lathe_checker checker;
    LATHE_TRY(lathe_checker_open(a, &options, &checker, j->diag));
    enum lathe_status status = lathe_checker_run(&checker, feeds, j->diag);
    if (status == LATHE_OK)
        status = compare_outputs(j, &checker, feeds, want, floats, trial->what);
    if (status == LATHE_OK)
        status = run_in_buckets(j, &checker, feeds, want, floats, trial);
    lathe_checker_close(&checker);
    return status;
}

#define MAX_TRIALS (4 + LATHE_MAX_BUCKETS)

struct trials {
    struct lathe_trial at[MAX_TRIALS];
    struct lathe_feeds feeds[MAX_TRIALS];
    struct lathe_answers want[MAX_TRIALS], floats[MAX_TRIALS];
    bool ran[MAX_TRIALS];
    unsigned count;
};

static void free_trials(struct trials *t) {
    for (unsigned i = 0; i < t->count; i++) {
        lathe_feeds_free(&t->feeds[i]);
        lathe_answers_free(&t->want[i]);
        lathe_answers_free(&t->floats[i]);
    }
}

/* What a trial was to compare, and why it cannot. */
static void skip_trial(const struct job *j, const struct lathe_trial *trial, const char *by, const char *why) {
    char text[512];
    snprintf(text, sizeof text, "%s: not compared%s: %.400s", trial->what, by, why);
    lathe_report_unverified(j->report, trial->what, why);
    lathe_report_warning(j->report, "VERIFY_SKIPPED", "", text);
}

static enum lathe_status make_feeds(struct job *j, struct trials *t, const struct lathe_artifact *a) {
    unsigned count = lathe_trials(a, t->at, MAX_TRIALS);
    for (unsigned i = 0; i < count; i++) {
        static struct lathe_diag why;
        lathe_diag_reset(&why);
        t->at[t->count] = t->at[i];
        enum lathe_status status = lathe_trial_feeds(a, &t->at[i], &t->feeds[t->count], &why);
        if (status == LATHE_INTERNAL)
            return lathe_fail(j->diag, why.message, "verification, %s: %s", t->at[i].what, why.text);
        if (status == LATHE_OK)
            t->count++;
        else
            skip_trial(j, &t->at[i], "", why.text);
    }
    return LATHE_OK;
}

/* The reference holds a copy of the weights, so it is closed before the artifact is mapped again. */
static enum lathe_status reference_answers(struct job *j, struct trials *t, const char *path) {
    struct lathe_reference reference;
    const struct lathe_reference_options options = {.external_dir = j->o->external_dir,
                                                    .float_activations = quantizes(j)};
    LATHE_TRY(lathe_reference_open(path, &options, &reference, j->diag));
    for (unsigned i = 0; i < t->count; i++) {
        static struct lathe_diag why; /* made-up inputs that the source itself refuses say nothing of the artifact */
        lathe_diag_reset(&why);
        enum lathe_status status = lathe_reference_run(&reference, &t->feeds[i], &t->want[i], &why);
        t->ran[i] = status == LATHE_OK;
        if (status == LATHE_INTERNAL) {
            lathe_reference_close(&reference);
            return lathe_fail(j->diag, why.message, "verification, %s: %s", t->at[i].what, why.text);
        }
        if (status == LATHE_OK)
            continue;
        skip_trial(j, &t->at[i], ", as the source refuses it", why.text);
    }
    lathe_reference_close(&reference);
    return LATHE_OK;
}

/* What the source says with its activations in f32, to know how much their quantization moves. */
static enum lathe_status float_answers(struct job *j, struct trials *t, const char *path) {
    struct lathe_reference reference;
    const struct lathe_reference_options options = {.external_dir = j->o->external_dir, .float_activations = true};
    LATHE_TRY(lathe_reference_open(path, &options, &reference, j->diag));
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < t->count; i++)
        if (t->ran[i])
            status = lathe_reference_run(&reference, &t->feeds[i], &t->floats[i], j->diag);
    lathe_reference_close(&reference);
    return status;
}

static enum lathe_status verify(struct job *j, const char *path, struct trials *t) {
    enter(j, "verify");
    LATHE_TRY(reference_answers(j, t, path));
    if (j->quantized_source && !quantizes(j))
        LATHE_TRY(float_answers(j, t, path));
    struct lathe_artifact *a = NULL;
    LATHE_TRY(lathe_artifact_open(j->unverified, NULL, &a, j->diag));
    enum lathe_status status = LATHE_OK;
    for (unsigned i = 0; status == LATHE_OK && i < t->count; i++)
        if (t->ran[i])
            status = run_trial(j, a, &t->feeds[i], &t->want[i], &t->floats[i], &t->at[i]);
    lathe_artifact_close(&a);
    return status;
}

static bool wants_verification(const struct job *j) {
    if (j->o->verify == LATHE_VERIFY_NEVER)
        lathe_report_note(j->report, "verification", "not asked for (--no-verify)");
    else if (j->o->verify == LATHE_VERIFY_AUTO && j->weights > LATHE_VERIFY_AUTO_BYTES)
        lathe_report_note(j->report, "verification", "left out: the weights are over 1 GiB (--verify asks for it)");
    else
        return true;
    return false;
}

/* Opens what was written, completes the report and verifies; the graph is not needed any more. */
static enum lathe_status prove(struct job *j, const char *path) {
    struct lathe_artifact_options quick = {.skip_weight_checksum = true};
    struct lathe_artifact *a = NULL;
    struct trials trials = {.count = 0};
    lathe_graph_free(&j->graph);
    lathe_model_file_close(&j->file);
    LATHE_TRY(lathe_artifact_open(j->unverified, &quick, &a, j->diag));
    report_shapes(j, a);
    bool wanted = wants_verification(j);
    enum lathe_status status = wanted ? make_feeds(j, &trials, a) : LATHE_OK;
    lathe_artifact_close(&a);
    if (status == LATHE_OK && wanted)
        status = verify(j, path, &trials);
    free_trials(&trials);
    return status;
}

static enum lathe_status publish(struct job *j) {
    if (rename(j->unverified, j->o->output))
        return lathe_fail(j->diag, LATHE_MSG_OUTPUT_FILE, "%s: cannot be written: %s", j->o->output, strerror(errno));
    lathe_temporary_end(&j->unverified);
    return LATHE_OK;
}

static enum lathe_status run(struct job *j, const char *path) {
    LATHE_TRY(import(j, path));
    LATHE_TRY(run_passes(j));
    LATHE_TRY(check_operators(j));
    LATHE_TRY(check_expectations(j));
    LATHE_TRY(emit(j));
    LATHE_TRY(prove(j, path));
    if (lathe_report_failed(j->report))
        return lathe_fail(j->diag, LATHE_MSG_NO_MEMORY, "no memory for the report");
    return publish(j);
}

enum lathe_status lathe_compile(const struct lathe_compile_options *options, struct lathe_report *report,
                                struct lathe_diag *diag) {
    struct job j = {.o = options, .report = report, .diag = diag};
    char *path = NULL;
    enum lathe_status status = check_options(&j);
    if (status == LATHE_OK)
        status = model_path(options->model, &path, diag);
    if (status == LATHE_OK)
        status = run(&j, path);
    if (j.unverified)
        unlink(j.unverified);
    lathe_temporary_end(&j.unverified);
    free(path);
    lathe_graph_free(&j.graph);
    lathe_model_file_close(&j.file);
    return status;
}
