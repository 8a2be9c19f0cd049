/* The executable as a user meets it: exit codes, one line of message, files written or not.
 *     test_commands LATHE MODELS REFUSED      MODELS holds zoo/<name>/model.onnx with its data sets; REFUSED is a model
 *                                             whose look-ups made-up inputs leave */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *lathe, *models, *refused_trial;
static char folder[64], model[512], data[512];

/* Runs `lathe` with the words of `line` ('@m', '@d', '@t' stand for model, data set and the test's folder); returns the
 * exit code, with what it printed in `out` and `err`. */
static char out[1 << 20], err[1 << 16];

static void read_back(const char *path, char *buffer, size_t size) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(buffer, 1, size - 1, f) : 0;
    buffer[n] = 0;
    if (f)
        fclose(f);
}

static int run(const char *line) {
    char text[8192], words[64][1024], *argv[66], *save = NULL;
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    argv[argc++] = (char *)(uintptr_t)lathe;
    for (char *word = strtok_r(text, " ", &save); word && argc < 64; word = strtok_r(NULL, " ", &save)) {
        const char *at = strchr(word, '@');
        const char *stands = !at ? "" : at[1] == 'm' ? model : at[1] == 'd' ? data : folder;
        if (at)
            snprintf(words[argc], sizeof words[0], "%.*s%.700s%s", (int)(at - word), word, stands, at + 2);
        else
            snprintf(words[argc], sizeof words[0], "%s", word);
        argv[argc] = words[argc];
        argc++;
    }
    argv[argc] = NULL;
    char out_path[128], err_path[128];
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(err_path, sizeof err_path, "%s/err", folder);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid;
    assert_int_equal(posix_spawn(&pid, lathe, &files, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&files);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    read_back(out_path, out, sizeof out);
    read_back(err_path, err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static bool exists(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void put_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "lathe-cli-XXXXXX");
    snprintf(model, sizeof model, "%s/zoo/bert-base_ts17_sdpa/model.onnx", models);
    snprintf(data, sizeof data, "%s/zoo/bert-base_ts17_sdpa/test_data_set_2", models);
    return mkdtemp(folder) ? 0 : -1;
}

static int clean_up(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* The help names every command and option of its own table, on standard output. */
static void help(void **state) {
    (void)state;
    static const char *const commands[] = {"compile", "inspect", "diff",    "verify", "run", "bench",
                                           "package", "buckets", "targets", "passes", "ops"};
    assert_int_equal(run("--help"), 0);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[64];
        assert_int_equal(run("--help"), 0);
        assert_non_null(strstr(out, commands[i]));
        snprintf(line, sizeof line, "%s --help", commands[i]);
        assert_int_equal(run(line), 0);
        assert_non_null(strstr(out, "--help"));
        assert_string_equal(err, "");
    }
    assert_int_equal(run("--version"), 0);
    assert_int_equal(run("compile --help"), 0);
    assert_non_null(strstr(out, "--bucket"));
}

/* Every refusal: its exit code, nothing on standard output, one printable line with that word, no artifact. */
static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int exit;
        const char *word;
    } cases[] = {
        {"", 2, "--help"},
        {"compil", 2, "compile"},
        {"compile", 2, "MODEL.onnx"},
        {"compile @m", 2, "-o"},
        {"compile @m -o", 2, "missing"},
        {"compile @m extra -o @t/x", 2, "extra"},
        {"compile @m -o @t/x --targt a", 2, "--target"},
        {"compile @m -o @t/x --max-seq 1x", 2, "1x"},
        {"compile @m -o @t/x --max-seq 0", 2, "1 to"},
        {"compile @m -o @t/x --max-seq 99999999999999999999", 2, "whole"},
        {"compile @m -o @t/x --json=1", 2, "no value"},
        {"compile @m -o @t/x --target nosuch", 2, "cascadelake"},
        {"compile @m -o @t/x --target @t/none.yaml", 3, "none.yaml"},
        {"compile @m -o @t/x --precision f33", 2, "f33"},
        {"compile @m -o @t/x --precision bf16 --target icelake", 4, "f32 int8"},
        {"compile @m -o @t/x --precision bf16 --target znver4 --min-cosine 1", 5, "cosine"},
        {"compile @m -o @t/x --cast some", 2, "matmul"},
        {"compile @m -o @t/x --target znver4 --precision f32 --cast matmul", 2, "--precision f32"},
        {"compile @m -o @t/x --target znver4 --precision f32 --cast all", 2, "--cast all"},
        {"compile @m -o @t/x --target znver4 --precision int8 --cast all", 2, "contradict"},
        {"compile @m -o @t/x --target znver4 --precision auto --cast matmul", 2, "contradict"},
        {"compile @m -o @t/x --target znver4 --precision bf16 --cast none", 2, "contradict"},
        {"compile @m -o @t/x --target icelake --cast all", 4, "f32 int8"},
        {"compile @m -o @t/x --disable fuse_atention", 2, "fuse_attention"},
        {"compile @m -o @t/x --dump-after nosuch", 2, "nosuch"},
        {"compile @m -o @t/x --expect foo", 2, "foo"},
        {"compile @m -o @t/x --report r.pdf", 2, ".json"},
        {"compile @m -o @t/x --bucket 1y4", 2, "1y4"},
        {"compile @m -o @t/x --bucket 1x8 --bucket 2x8 --bucket 1x8", 2, "1x8 is given twice"},
        {"compile @m -o @t/x --bucket 1x8 --max-seq 8", 2, "--max-seq"},
        {"compile @m -o @t/x --bucket 1x4 --bucket 1x4000", 4, "length is 4000, the graph takes 1 to 128"},
        {"compile @m -o @t/x --expect fuse.attention>=99", 6, "fuse.attention"},
        {"compile @t/none.onnx -o @t/x", 3, "none.onnx"},
        {"compile @t -o @t/x", 3, ".onnx"},
        {"compile @m -o @t/no/such/x", 7, "No such"},
        {"compile @m -o @t", 7, "directory"},
        {"compile @m -o @t/x --report @t/no/r.json", 7, "r.json"},
        {"compile @m -o @t/x --labels @t/none.json", 3, "none.json"},
        {"inspect @t/none", 3, "none"},
        {"inspect @m", 3, "artifact"},
        {"inspect /dev/null", 3, "/dev/null"},
        {"verify @m --test-data @d", 3, "artifact"},
        {"verify @t/none", 2, "--test-data"},
        {"run @t/none", 2, "--output-dir"},
        {"bench @t/none --seq 0", 2, "--seq"},
        {"bench @t/none --placement ring", 2, "replicate, pipeline"},
        {"bench @t/none --placement pipeline --instances 2", 2, "--instances"},
        {"bench @t/none --requests 5 --steps", 2, "--steps"},
        {"bench @t/none --requests 5 --threads 2", 2, "--threads"},
        {"compile @m -o @t/x --placement ring", 2, "replicate, pipeline"},
        {"compile @m -o @t/x --cores 0", 2, "--cores"},
        {"package @t/none", 2, "-o"},
        {"package @t/none -o @t/x", 3, "none"},
        {"package @m -o @t/x", 3, "artifact"},
        {"package @t/none -o @t/x --compress 10", 2, "0 to 9"},
        {"run @t/bad.tar.gz --output-dir @t/o3", 3, "bad.tar.gz"},
        {"inspect @t/bad.tar.gz", 3, "bad.tar.gz"},
        {"verify @t/bad.tar.gz --test-data @d", 3, "bad.tar.gz"},
        {"bench @t/bad.tar.gz", 3, "bad.tar.gz"},
        {"diff @t/bad.tar.gz @t/bad.tar.gz", 3, "bad.tar.gz"},
        {"buckets --max 4", 2, "--lengths"},
        {"buckets --lengths @t/lengths", 2, "--max"},
        {"buckets --lengths @t/lengths --max 65", 2, "1 to 64"},
        {"buckets --lengths @t/none --max 4", 3, "none"},
        {"buckets --lengths @t/lengths --max 4", 3, "lengths:3:"},
        {"targets nosuch", 2, "icelake"},
        {"diff @m", 2, "missing"},
    };
    put_file("lengths", "7\n8 2\nnine\n");
    put_file("bad.tar.gz", "\x1f\x8b\x08");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = run(cases[i].line);
        size_t n = strlen(err);
        if (code != cases[i].exit || !strstr(err, cases[i].word) || out[0] || !n || strchr(err, '\n') != err + n - 1)
            fail_msg("lathe %s: exit %d, expected %d with '%s'\n%s%s", cases[i].line, code, cases[i].exit,
                     cases[i].word, err, out);
        assert_false(exists("x"));
    }
}

static json_t *parse(void) {
    json_t *o = json_loads(out, 0, NULL);
    assert_non_null(o);
    return o;
}

/* The precision of an artifact and of each of its layers is told, the fusions are the same. */
static void in_bf16(void **state) {
    (void)state;
    assert_int_equal(run("compile @m -o @t/b.lathe --target znver4 --precision bf16 --expect fuse.attention==2 "
                         "--expect fuse.gelu==2 --expect fuse.qkv==2 --check"),
                     0);
    assert_int_equal(run("inspect @t/b.lathe --json --check"), 0);
    json_t *o = parse(), *layers = json_object_get(o, "quantization");
    assert_string_equal(json_string_value(json_object_get(o, "precision")), "bf16");
    assert_true(json_array_size(layers) >= 8);
    assert_non_null(strstr(json_string_value(json_object_get(json_array_get(layers, 1), "scheme")), "bf16"));
    json_decref(o);
    assert_int_equal(run("verify @t/b.lathe --test-data @d --min-cosine 0.999"), 0);
    /* without bounds those of its precision, which an f32 artifact's would not let pass */
    assert_int_equal(run("verify @t/b.lathe --model @m"), 0);
    assert_int_equal(run("verify @t/b.lathe --model @m --atol 1e-7"), 5);
}

/* What a target's list of operators leaves out: refused whole, or on the host and counted everywhere. */
static void operators(void **state) {
    (void)state;
    put_file("some.yaml", "extends: haswell\nname: some\noperators: [embedding, linear, gather, skip_layer_norm]\n");
    assert_int_equal(run("compile @m -o @t/x --target @t/some.yaml"), 4);
    const char *line = strstr(err, "attention");
    assert_non_null(line);
    assert_non_null(strstr(err, "2 attention"));
    assert_non_null(strstr(err, "--allow-fallback"));
    assert_null(strstr(err, "linear"));
    assert_non_null(strstr(err, "layer.1/attention")); /* every node is named */
    assert_false(exists("x"));
    assert_int_equal(run("compile @m -o @t/h.lathe --target @t/some.yaml --allow-fallback --json"), 0);
    for (unsigned i = 0; i < 2; i++) {
        json_t *o = parse(), *f = json_object_get(o, "fallback"), *row;
        json_t *warnings = json_object_get(o, "warnings");
        size_t k;
        json_int_t steps = 0, two = 0, warned = 0;
        json_array_foreach(json_object_get(f, "operators"), k, row) {
            steps += json_integer_value(json_object_get(row, "count"));
            bool attention = !strcmp(json_string_value(json_object_get(row, "operator")), "attention_rows") ||
                             !strcmp(json_string_value(json_object_get(row, "operator")), "attention");
            two += attention ? (json_int_t)json_array_size(json_object_get(row, "nodes")) : 0;
        }
        json_array_foreach(warnings, k, row) {
            warned += !strcmp(json_string_value(json_object_get(row, "code")), "FALLBACK");
        }
        assert_true(json_is_true(json_object_get(f, "allowed")));
        assert_int_equal(steps, json_integer_value(json_object_get(f, "steps")));
        assert_int_equal(two, 2);
        assert_int_equal(warned, json_array_size(json_object_get(f, "operators")));
        json_decref(o);
        assert_int_equal(run("inspect @t/h.lathe --json --check"), 0);
    }
    assert_int_equal(run("inspect @t/h.lathe --plan"), 0);
    assert_non_null(strstr(out, "fallback"));
    assert_non_null(strstr(out, "  on the host"));
    assert_int_equal(run("verify @t/h.lathe --test-data @d --atol 1e-4"), 0);
    assert_int_equal(run("compile @m -o @t/x --target @t/some.yaml --allow-fallback --expect warnings.FALLBACK==0"), 6);
    assert_false(exists("x"));
}

/* The device that is shipped runs every encoder of the zoo in all its steps. */
static void device_runs_zoo(void **state) {
    (void)state;
    static const char *const precisions[] = {"--precision f32", "--cast all"};
    char path[512], line[1024];
    unsigned compiled = 0;
    snprintf(path, sizeof path, "%s/zoo", models);
    DIR *zoo = opendir(path);
    assert_non_null(zoo);
    for (const struct dirent *e; (e = readdir(zoo));) {
        snprintf(line, sizeof line, "%s/%s/model.onnx", path, e->d_name);
        if (e->d_name[0] == '.' || access(line, R_OK))
            continue;
        snprintf(line, sizeof line,
                 "compile %s/%s/model.onnx -o @t/z.lathe --target inferentia --bucket 1x16 "
                 "--no-verify --expect warnings.FALLBACK==0 %s",
                 path, e->d_name, precisions[compiled % 2]);
        int code = run(line);
        /* a graph of other fixed sizes takes no such bucket */
        if (code && (code != 4 || strstr(err, "--allow-fallback") || !strstr(err, "bucket")))
            fail_msg("%s: exit %d: %s", line, code, err);
        compiled += !code;
    }
    closedir(zoo);
    assert_true(compiled > 50);
}

/* A sum that another kernel adds otherwise can fall on the other side of a rounding: such a plan is replayed with the
 * bound of its format, and in plain C to the last bits. (This model was once refused for it.) */
static void replayed_rounding(void **state) {
    (void)state;
    char line[1024];
    snprintf(line, sizeof line,
             "compile %s/zoo/modernbert-base_dyn23_sdpa/model.onnx -o @t/k.lathe --target znver4 "
             "--precision bf16",
             models);
    assert_int_equal(run(line), 0);
    assert_int_equal(run("inspect @t/k.lathe --check --json"), 0);
    json_t *o = parse(), *check = json_object_get(o, "check");
    assert_true(json_is_true(json_object_get(check, "passed")));
    assert_true(json_real_value(json_object_get(check, "max_error_plain_c")) <= 1e-4);
    assert_true(json_real_value(json_object_get(check, "bound")) > 1e-4);
    json_decref(o);
    assert_int_equal(run("inspect @t/k.lathe --check --cpumask 0"), 0);
}

/* A package in the place of an artifact, in every command that takes one. */
static void packages(void **state) {
    (void)state;
    put_file("two.txt", "good\nbad\n");
    assert_int_equal(run("compile @m -o @t/p.lathe --target haswell --no-verify"), 0);
    assert_int_equal(run("package @t/p.lathe -o @t/p.tar.gz --labels @t/two.txt --json"), 0);
    json_t *o = parse();
    assert_int_equal(json_array_size(json_object_get(o, "files")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "max_length")), 128);
    assert_string_equal(json_string_value(json_object_get(o, "precision")), "f32");
    assert_null(json_object_get(o, "buckets"));
    json_decref(o);
    assert_int_equal(run("compile @m -o @t/s.lathe --target inferentia --bucket 1x8 --bucket 2x16 --no-verify"), 0);
    assert_int_equal(run("package @t/s.lathe -o @t/s.tar.gz --json"), 0);
    o = parse();
    assert_int_equal(json_array_size(json_object_get(o, "buckets")), 2);
    json_decref(o);
    assert_int_equal(run("run @t/s.tar.gz --test-data @d --output-dir @t/so"), 3); /* longer than any bucket */
    assert_int_equal(run("inspect @t/p.tar.gz --json --check"), 0);
    o = parse();
    assert_int_equal(json_array_size(json_object_get(json_object_get(o, "package"), "files")), 2);
    json_decref(o);
    assert_int_equal(run("inspect @t/p.tar.gz"), 0);
    assert_non_null(strstr(out, "labels.json"));
    assert_int_equal(run("verify @t/p.tar.gz --test-data @d --atol 1e-4"), 0);
    assert_int_equal(run("run @t/p.tar.gz --test-data @d --output-dir @t/po"), 0);
    assert_true(exists("po/pooler_output.npy"));
    assert_int_equal(run("bench @t/p.tar.gz --seq 8 --seconds 0.01 --json"), 0);
    assert_int_equal(run("diff @t/p.tar.gz @t/p.lathe"), 0);
    assert_string_equal(out, "identical\n");
    /* labels that contradict those of the artifact */
    assert_int_equal(run("compile @m -o @t/q.lathe --target haswell --no-verify --labels @t/two.txt"), 0);
    put_file("three.txt", "good\nworse\n");
    assert_int_equal(run("package @t/q.lathe -o @t/q.tar.gz --labels @t/three.txt"), 3);
    assert_non_null(strstr(err, "label 1 is 'worse'"));
    assert_false(exists("q.tar.gz"));
    assert_int_equal(run("package @t/q.lathe -o @t/q.tar.gz"), 0);
    assert_non_null(strstr(out, "labels.json"));
}

/* What --cast, --precision and the target's policy mean together, and that the casts are listed. */
static void casts(void **state) {
    (void)state;
    static const struct {
        const char *options, *policy;
    } cases[] = {
        {"--target znver4", "none"},
        {"--target znver4 --cast none", "none"},
        {"--target znver4 --precision int8 --cast none", "none"},
        {"--target znver4 --precision bf16", "matmul"},
        {"--target znver4 --cast matmul", "matmul"},
        {"--target znver4 --precision bf16 --cast all", "all"},
        {"--target znver4 --cast all", "all"},
        {"--target @t/all.yaml", "none"},
        {"--target @t/all.yaml --precision bf16", "all"},
        {"--target @t/all.yaml --precision bf16 --cast matmul", "matmul"},
    };
    put_file("all.yaml", "extends: znver4\nname: all\ncast: all\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "compile @m -o @t/c.lathe %s", cases[i].options);
        assert_int_equal(run(line), 0);
        assert_int_equal(run("inspect @t/c.lathe --json --check"), 0);
        json_t *o = parse(), *c = json_object_get(o, "casts");
        const char *policy = json_string_value(json_object_get(c, "policy"));
        json_int_t products = json_integer_value(json_object_get(c, "products")),
                   tensors = json_integer_value(json_object_get(c, "tensors")),
                   constants = json_integer_value(json_object_get(c, "constants"));
        bool matmul = strcmp(cases[i].policy, "none") != 0, all = !strcmp(cases[i].policy, "all");
        json_t *rounds = json_object_get(json_object_get(o, "steps"), "round_bf16");
        if (!policy || strcmp(policy, cases[i].policy) || (products > 0) != matmul || (tensors > 0) != all ||
            (constants > 0) != all || json_integer_value(rounds) != tensors ||
            json_array_size(json_object_get(c, "list")) != (size_t)(products + tensors + constants))
            fail_msg("%s: %s", line, out);
        json_decref(o);
    }
}

/* Of bench --steps: all steps of the plan, dearest first, which with the waiting make up a run. */
static void check_steps(json_t *o) {
    json_t *steps = json_object_get(o, "steps"), *one;
    double sum = json_real_value(json_object_get(o, "waiting_ms")), last = 1e30;
    json_int_t count = 0;
    size_t i;
    json_array_foreach(steps, i, one) {
        double ms = json_real_value(json_object_get(one, "ms"));
        assert_true(ms >= 0 && ms <= last && json_integer_value(json_object_get(one, "count")) > 0);
        assert_true(json_integer_value(json_object_get(one, "rows")) > 0 && json_object_get(one, "op"));
        count += json_integer_value(json_object_get(one, "count"));
        sum += ms;
        last = ms;
    }
    double mean = json_real_value(json_object_get(o, "mean_ms"));
    assert_true(count > 3 && sum > 0 && sum <= mean * 1.0001);
}

/* Of a bench on a fleet: what was asked for, times in order, stages that follow one another. */
static void check_fleet(const char *placement, json_int_t cores, json_int_t clients, json_int_t requests) {
    json_t *o = parse(), *stages = json_object_get(o, "stages"), *one;
    static const char *const times[] = {"p50_ms", "p90_ms", "p95_ms", "p99_ms", "p100_ms"};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        assert_true(json_real_value(json_object_get(o, times[i])) >=
                    (i ? json_real_value(json_object_get(o, times[i - 1])) : 1e-9));
    assert_true(json_real_value(json_object_get(o, "throughput")) > 0);
    assert_true(json_real_value(json_object_get(o, "imbalance")) >= 0);
    if (strcmp(json_string_value(json_object_get(o, "placement")), placement) ||
        json_integer_value(json_object_get(o, "cores")) != cores ||
        json_integer_value(json_object_get(o, "clients")) != clients ||
        (requests && json_integer_value(json_object_get(o, "requests")) != requests) ||
        json_array_size(stages) != (size_t)cores)
        fail_msg("%s", out);
    size_t i;
    json_int_t end = 0, sent = 0;
    json_array_foreach(stages, i, one) {
        bool first = json_integer_value(json_object_get(one, "first_step")) == 0;
        assert_true(first || json_integer_value(json_object_get(one, "first_step")) == end);
        end = json_integer_value(json_object_get(one, "end_step"));
        sent += first ? json_integer_value(json_object_get(one, "requests")) : 0;
        assert_true(json_is_boolean(json_object_get(one, "fits")));
    }
    assert_int_equal(sent, json_integer_value(json_object_get(o, "requests")));
    json_decref(o);
}

/* Cores and placement from the compile's options through report, artifact and bench. */
static void placement(void **state) {
    (void)state;
    put_file("cores.yaml", "extends: generic\nname: cores\ncores: 3\nplacement: pipeline\ncore_memory: 16KiB\n");
    assert_int_equal(run("compile @m -o @t/p.lathe --target @t/cores.yaml --json"), 0);
    json_t *o = parse(), *p = json_object_get(o, "placement"), *stages = json_object_get(p, "stages");
    assert_string_equal(json_string_value(json_object_get(p, "placement")), "pipeline");
    assert_int_equal(json_array_size(stages), 3);
    assert_true(json_is_false(json_object_get(json_array_get(stages, 0), "fits")));
    json_t *warning = json_array_get(json_object_get(o, "warnings"), 0);
    assert_string_equal(json_string_value(json_object_get(warning, "code")), "core_memory");
    json_decref(o);
    assert_int_equal(run("bench @t/p.lathe --requests 60 --seq 9 --json"), 0);
    check_fleet("pipeline", 3, 4, 60);
    assert_int_equal(run("bench @t/p.lathe --placement replicate --cores 2 --batch 2 --seq 5 --seconds 0.05 --json"),
                     0);
    check_fleet("replicate", 2, 2, 0);
    assert_int_equal(run("bench @t/p.lathe --placement pipeline --cores 1000 --requests 4"), 2);
    assert_int_equal(run("bench @t/p.lathe --placement pipeline --cores 0-1 --clients 5 --requests 20 --json"), 0);
    check_fleet("pipeline", 2, 5, 20);
    assert_int_equal(run("bench @t/p.lathe --requests 10"), 0);
    assert_non_null(strstr(out, "does not fit"));
    assert_int_equal(run("compile @m -o @t/p.lathe --target @t/cores.yaml --placement replicate --cores 2 --json"), 0);
    o = parse();
    p = json_object_get(o, "placement");
    assert_string_equal(json_string_value(json_object_get(p, "placement")), "replicate");
    assert_int_equal(json_integer_value(json_object_get(p, "cores")), 2);
    assert_int_equal(json_array_size(json_object_get(p, "stages")), 1);
    json_decref(o);
    assert_int_equal(run("inspect @t/p.lathe --json"), 0);
    o = parse();
    assert_string_equal(json_string_value(json_object_get(o, "placement")), "replicate");
    assert_int_equal(json_integer_value(json_object_get(o, "cores")), 2);
    json_decref(o);
    assert_int_equal(run("bench @t/p.lathe --clients 3 --requests 12 --json"), 0);
    check_fleet("replicate", 2, 3, 12);
    /* --cores of sessions: a number, a list, a range, and what is none */
    assert_int_equal(run("bench @t/p.lathe --cores 1 --seconds 0.01 --seq 4 --json"), 0);
    o = parse();
    assert_int_equal(json_integer_value(json_object_get(o, "threads")), 1);
    json_decref(o);
    static const char *const wrong[] = {"x", "0", "1,", "3-1", "1-2-3", "-1", "0,99999999", "1000"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[128];
        snprintf(line, sizeof line, "bench @t/p.lathe --cores %s --seconds 0.01", wrong[i]);
        if (run(line) != 2 || !strstr(err, "--cores"))
            fail_msg("%s: %s", line, err);
    }
}

/* One artifact through every command. */
static void whole_way(void **state) {
    (void)state;
    assert_int_equal(
        run("compile @m -o @t/a.lathe --target haswell --report @t/r.json --report @t/r.html --report @t/r.txt "
            "--expect fuse.attention==2 --check"),
        0);
    assert_true(exists("r.json") && exists("r.html") && exists("r.txt"));
    assert_int_equal(run("inspect @t/a.lathe --json --check --plan"), 0);
    json_t *o = parse();
    assert_int_equal(json_integer_value(json_object_get(o, "max_length")), 128);
    assert_int_equal(json_array_size(json_object_get(o, "outputs")), 2);
    assert_string_equal(json_string_value(json_object_get(o, "target")), "haswell");
    json_decref(o);
    assert_int_equal(run("inspect @t/a.lathe --graph @t/g.svg"), 0);
    assert_int_equal(run("inspect @t/a.lathe --graph @t/g.dot"), 0);
    assert_int_equal(run("verify @t/a.lathe --test-data @d --atol 1e-4"), 0);
    assert_non_null(strstr(out, "left out"));
    assert_int_equal(run("verify @t/a.lathe --test-data @d --atol 1e-4 --cpumask 0 --threads 1"), 0);
    assert_int_equal(run("verify @t/a.lathe --test-data @d --atol 1e-12 --json"), 5);
    o = parse();
    assert_true(json_is_false(json_object_get(o, "passed")));
    json_decref(o);
    assert_non_null(strstr(err, "expected"));
    assert_int_equal(run("verify @t/a.lathe --model @m"), 0);
    assert_int_equal(run("run @t/a.lathe --test-data @d --output-dir @t/o"), 0);
    assert_true(exists("o/last_hidden_state.npy") && exists("o/pooler_output.npy"));
    assert_int_equal(run("run @t/a.lathe --output-dir @t/o2"), 3);
    assert_non_null(strstr(err, "input_ids"));
    assert_int_equal(run("run @t/a.lathe --input nosuch=@t/o/pooler_output.npy --output-dir @t/o2"), 3);
    assert_int_equal(run("run @t/a.lathe --input input_ids=@t/o/pooler_output.npy --output-dir @t/o2"), 3);
    assert_int_equal(run("bench @t/a.lathe --instances 2 --threads 1 --map-weights --seconds 0.01 --json"), 0);
    o = parse();
    assert_int_equal(json_integer_value(json_object_get(o, "instances")), 2);
    assert_true(json_integer_value(json_object_get(o, "runs")) >= 2);
    assert_true(json_array_size(json_object_get(o, "kernels")) > 0);
    json_decref(o);
    assert_int_equal(run("bench @t/a.lathe --lengths 3,7 --seconds 0.01 --json"), 0);
    o = parse();
    assert_true(json_real_value(json_object_get(o, "p50_ms")) > 0);
    assert_int_equal(json_integer_value(json_object_get(o, "batch")), 2);
    json_decref(o);
    assert_int_equal(run("bench @t/a.lathe --seq 9 --threads 2 --steps --seconds 0.05 --json"), 0);
    o = parse();
    check_steps(o);
    json_decref(o);
    assert_int_equal(run("bench @t/a.lathe --seq 129"), 2);
    assert_non_null(strstr(err, "128"));
    assert_int_equal(run("diff @t/a.lathe @t/a.lathe"), 0);
    assert_string_equal(out, "identical\n");
}

/* The same bytes for another name, and a failed compile leaves what was there. */
static void same_bytes(void **state) {
    (void)state;
    assert_int_equal(run("compile @m -o @t/one --target icelake --jobs 1"), 0);
    assert_int_equal(run("compile @m -o @t/two --target icelake --jobs 2"), 0);
    assert_int_equal(run("diff @t/one @t/two --json"), 0);
    json_t *o = parse();
    assert_true(json_is_true(json_object_get(o, "identical")));
    json_decref(o);
    put_file("kept", "before");
    assert_int_equal(run("compile @m -o @t/kept --expect gelu==0"), 6);
    char path[256], text[16];
    snprintf(path, sizeof path, "%s/kept", folder);
    read_back(path, text, sizeof text);
    assert_string_equal(text, "before");
}

/* Text and JSON tell the same proposal; its arguments are those that compile takes. */
static void buckets(void **state) {
    (void)state;
    put_file("some.txt", "3 10\n4\n\n20 5\n21 5\n100\n");
    assert_int_equal(run("buckets --lengths @t/some.txt --max 3"), 0);
    assert_non_null(strstr(out, "arguments    --bucket 1x4 --bucket 1x21 --bucket 1x100\n"));
    assert_non_null(strstr(out, "saving       83.9 %"));
    assert_int_equal(run("buckets --lengths @t/some.txt --max 3 --max-length 64 --hidden 48 --json"), 0);
    json_t *o = parse();
    assert_int_equal(json_integer_value(json_object_get(o, "cut")), 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "arguments"), 5)), "1x64");
    assert_int_equal(json_integer_value(json_object_get(o, "work")),
                     11 * 4 * (288 + 4) + 10 * 21 * (288 + 21) + 64 * (288 + 64));
    json_decref(o);
}

static void tables(void **state) {
    (void)state;
    assert_int_equal(run("targets --json"), 0);
    json_decref(parse());
    assert_int_equal(run("targets --detect"), 0);
    assert_non_null(strstr(out, "native"));
    assert_int_equal(run("passes --json"), 0);
    json_decref(parse());
    assert_int_equal(run("ops --json"), 0);
    json_t *o = parse();
    json_t *onnx = json_object_get(o, "onnx"), *row;
    assert_true(json_array_size(onnx) > 50);
    size_t i;
    json_array_foreach(onnx, i, row) {
        assert_true(json_array_size(json_object_get(row, "dtypes")) > 0);
    }
    json_decref(o);
    assert_int_equal(run("ops"), 0);
    assert_non_null(strstr(out, "Sigmoid                           6+     f32 f16 bf16 f64\n"));
    assert_int_equal(run("compile @m -o @t/dump --dump-after import"), 0);
    assert_non_null(strstr(out, "# after import"));
    assert_non_null(strstr(out, "input %input_ids"));
}

/* Made-up inputs that the source itself refuses are no comparison, and are told. */
static void trial_refused(void **state) {
    (void)state;
    char line[1024];
    snprintf(line, sizeof line, "compile %s -o @t/trial --json", refused_trial);
    assert_int_equal(run(line), 0);
    json_t *o = parse(), *v = json_object_get(o, "verification");
    assert_true(json_is_null(json_object_get(v, "passed")));
    assert_int_equal(json_array_size(json_object_get(v, "skipped")), 2);
    json_t *warning = json_array_get(json_object_get(o, "warnings"), 0);
    assert_string_equal(json_string_value(json_object_get(warning, "code")), "VERIFY_SKIPPED");
    json_decref(o);
}

static void labels(void **state) {
    (void)state;
    put_file("labels.txt", "good\nbad\n");
    put_file("config.json", "{\"id2label\": {\"0\": \"good\", \"1\": \"bad\"}}");
    put_file("gap.json", "{\"id2label\": {\"0\": \"good\", \"2\": \"bad\"}}");
    static const char *const files[] = {"labels.txt", "config.json"};
    for (size_t i = 0; i < 2; i++) {
        char line[256];
        snprintf(line, sizeof line, "compile @m -o @t/l --labels %s/%s --no-verify", folder, files[i]);
        assert_int_equal(run(line), 0);
        assert_int_equal(run("inspect @t/l --json"), 0);
        json_t *o = parse();
        assert_string_equal(json_string_value(json_array_get(json_object_get(o, "labels"), 1)), "bad");
        json_decref(o);
    }
    assert_int_equal(run("compile @m -o @t/l2 --labels @t/gap.json"), 3);
    assert_false(exists("l2"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(help),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(in_bf16),
                                       cmocka_unit_test(casts),
                                       cmocka_unit_test(replayed_rounding),
                                       cmocka_unit_test(whole_way),
                                       cmocka_unit_test(placement),
                                       cmocka_unit_test(same_bytes),
                                       cmocka_unit_test(tables),
                                       cmocka_unit_test(buckets),
                                       cmocka_unit_test(labels),
                                       cmocka_unit_test(packages),
                                       cmocka_unit_test(operators),
                                       cmocka_unit_test(device_runs_zoo),
                                       cmocka_unit_test(trial_refused)};
    if (argc != 4)
        return 2;
    lathe = argv[1];
    models = argv[2];
    refused_trial = argv[3];
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
