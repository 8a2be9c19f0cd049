/* How long an artifact takes from opening to its first result, with the weights read into this process and with the
 * weights left in the file's pages, and what stays resident: bench_start MODEL.lathe [SEQ]. Each in a child process,
 * alternating, the median of nine. The file is in the page cache after the first. */
#include "lathe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 9

struct figures {
    double open, session, first, second;
    long resident_kib;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static long resident_kib(void) {
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

static void check(enum lathe_status status, const struct lathe_diag *why) {
    if (status == LATHE_OK)
        return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

static void once(const char *path, int64_t seq, bool map, struct figures *out) {
    struct lathe_diag why = {0};
    struct lathe_artifact *a;
    struct lathe_session *s;
    int64_t *ones = malloc((size_t)seq * sizeof *ones);
    for (int64_t i = 0; ones && i < seq; i++)
        ones[i] = 1;
    double t0 = now();
    check(lathe_artifact_open(path, &(struct lathe_artifact_options){.map_weights = map}, &a, &why), &why);
    double t1 = now();
    check(lathe_session_new(a, NULL, &s, &why), &why);
    double t2 = now();
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++)
        check(lathe_session_set_input(s, i, LATHE_I64, 2, (int64_t[]){1, seq}, ones, &why), &why);
    check(lathe_session_run(s, &why), &why);
    double t3 = now();
    check(lathe_session_run(s, &why), &why);
    double t4 = now();
    *out = (struct figures){t1 - t0, t2 - t1, t3 - t2, t4 - t3, resident_kib()};
    lathe_session_close(&s);
    lathe_artifact_close(&a);
    free(ones);
}

static int by_total(const void *a, const void *b) {
    const struct figures *x = a, *y = b;
    double d = x->open + x->session + x->first - (y->open + y->session + y->first);
    return d < 0 ? -1 : d > 0;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    int64_t seq = argc > 2 ? atoll(argv[2]) : 8;
    struct figures(*all)[ROUNDS] =
        mmap(NULL, sizeof *all * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    for (int i = 0; i < ROUNDS * 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            once(argv[1], seq, i % 2, &all[i % 2][i / 2]);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            return 1;
    }
    for (int map = 0; map < 2; map++) {
        qsort(all[map], ROUNDS, sizeof all[map][0], by_total);
        const struct figures *f = &all[map][ROUNDS / 2], *best = &all[map][0];
        printf("%-7s open %6.1f  session %5.1f  first run %6.1f  second %6.2f  sum %6.1f ms (least %.1f), resident %ld "
               "MiB\n",
               map ? "mapped" : "read", f->open, f->session, f->first, f->second, f->open + f->session + f->first,
               best->open + best->session + best->first, f->resident_kib / 1024);
    }
    return 0;
}
