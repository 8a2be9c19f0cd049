/* Ranking by similarity: rank MODEL.lathe SENTENCES.tsv
 * The first sentence is the query; the others are printed in the order of the cosine of their embeddings with it. */
#include "encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hit {
    double cosine;
    const char *text;
};

static int best_first(const void *a, const void *b) {
    double x = ((const struct hit *)a)->cosine, y = ((const struct hit *)b)->cosine;
    return (x < y) - (x > y);
}

/* The sentence embedding: the float output of rank 2, [1, H], whatever else the model gives. */
static const struct lathe_tensor_view *embedding(struct encoder *e, const struct sentence *s) {
    const struct lathe_tensor_view *y = encoder_run(e, s);
    for (unsigned i = 0; i < lathe_artifact_output_count(e->artifact); i++) {
        const struct lathe_tensor_view *one = lathe_session_output(e->session, i);
        if (one->rank == 2 && one->dtype == LATHE_F32)
            y = one;
    }
    return y;
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: rank MODEL.lathe SENTENCES.tsv\n");
        return 2;
    }
    struct prepared p = prepared_read(argv[2]);
    struct encoder e = encoder_open(argv[1], p.longest);
    const struct lathe_tensor_view *y = embedding(&e, &p.list[0]);
    size_t n = (size_t)y->dims[y->rank - 1];
    float *query = calloc(n, sizeof *query);
    struct hit *hits = calloc(p.count, sizeof *hits);
    if (!query || !hits)
        return 1;
    memcpy(query, y->data, n * sizeof *query);
    for (size_t i = 1; i < p.count; i++) {
        const float *v = embedding(&e, &p.list[i])->data;
        hits[i - 1] = (struct hit){dot(query, v, n) / sqrt(dot(query, query, n) * dot(v, v, n)), p.list[i].text};
    }
    qsort(hits, p.count - 1, sizeof *hits, best_first);
    printf("query: %s\n", p.list[0].text);
    for (size_t i = 0; i + 1 < p.count; i++)
        printf("  %6.3f  %s\n", hits[i].cosine, hits[i].text);
    printf("\n%.2f ms a sentence (median, %u threads)\n", 1e3 * encoder_median_seconds(&e, &p, 20),
           lathe_session_threads(e.session));
    free(hits);
    free(query);
    encoder_close(&e);
    prepared_free(&p);
    return 0;
}
