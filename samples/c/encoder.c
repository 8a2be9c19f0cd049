#include "encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const struct lathe_diag *why) {
    fprintf(stderr, "%s\n", why->text);
    exit(why->status);
}

struct encoder encoder_open(const char *path, size_t longest) {
    struct lathe_diag why = {0};
    struct encoder e = {0};
    if (lathe_artifact_open(path, NULL, &e.artifact, &why) || lathe_session_new(e.artifact, NULL, &e.session, &why))
        stop(&why);
    e.ones = calloc(longest + 1, sizeof *e.ones);
    e.zeros = calloc(longest + 1, sizeof *e.zeros);
    if (!e.ones || !e.zeros) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    for (size_t i = 0; i < longest; i++)
        e.ones[i] = 1;
    return e;
}

/* Ids go into "input_ids", ones into "attention_mask", zeros into whatever else the model asks for. */
const struct lathe_tensor_view *encoder_run(struct encoder *e, const struct sentence *s) {
    struct lathe_diag why = {0};
    int64_t dims[2] = {1, (int64_t)s->count};
    for (unsigned i = 0; i < lathe_artifact_input_count(e->artifact); i++) {
        const char *name = lathe_artifact_input(e->artifact, i)->name;
        const int64_t *data = strcmp(name, "input_ids") == 0        ? s->ids
                              : strcmp(name, "attention_mask") == 0 ? e->ones
                                                                    : e->zeros;
        if (lathe_session_set_input(e->session, i, LATHE_I64, 2, dims, data, &why))
            stop(&why);
    }
    if (lathe_session_run(e->session, &why))
        stop(&why);
    return lathe_session_output(e->session, 0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double encoder_median_seconds(struct encoder *e, const struct prepared *p, int rounds) {
    size_t n = p->count * (size_t)rounds;
    double *t = calloc(n, sizeof *t);
    if (!t)
        return 0;
    for (size_t i = 0; i < n; i++) {
        double start = now();
        encoder_run(e, &p->list[i % p->count]);
        t[i] = now() - start;
    }
    qsort(t, n, sizeof *t, by_value);
    double median = t[n / 2];
    free(t);
    return median;
}

void encoder_close(struct encoder *e) {
    lathe_session_close(&e->session);
    lathe_artifact_close(&e->artifact);
    free(e->ones);
    free(e->zeros);
    *e = (struct encoder){0};
}
