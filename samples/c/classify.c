/* Sentence classification: classify MODEL.lathe SENTENCES.tsv
 * Prints for each sentence the label, its probability and the human rating, and the time a sentence. */
#include "encoder.h"

#include <math.h>
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: classify MODEL.lathe SENTENCES.tsv\n");
        return 2;
    }
    struct prepared p = prepared_read(argv[2]);
    struct encoder e = encoder_open(argv[1], p.longest);
    size_t agree = 0, rated = 0;
    printf("  %-9s %5s  %6s  sentence\n", "label", "prob.", "human");
    for (size_t i = 0; i < p.count; i++) {
        const struct sentence *s = &p.list[i];
        const struct lathe_tensor_view *y = encoder_run(&e, s);
        const float *logits = y->data;
        unsigned labels = (unsigned)y->dims[1], best = 0;
        double sum = 0;
        for (unsigned k = 1; k < labels; k++)
            best = logits[k] > logits[best] ? k : best;
        for (unsigned k = 0; k < labels; k++)
            sum += exp((double)logits[k] - (double)logits[best]);
        const char *label =
            best < lathe_artifact_label_count(e.artifact) ? lathe_artifact_label(e.artifact, best) : "?";
        bool same = s->rated && (s->rating > 0) == (best == labels - 1);
        printf("%s %-9s %4.0f%%  %+6.2f  %s\n", !s->rated || same ? " " : "!", label, 100 / sum, s->rating, s->text);
        agree += same;
        rated += s->rated;
    }
    printf("\n%zu of %zu agree with the human rating; %.0f us a sentence (median, %u thread%s)\n", agree, rated,
           1e6 * encoder_median_seconds(&e, &p, 50), lathe_session_threads(e.session),
           lathe_session_threads(e.session) == 1 ? "" : "s");
    encoder_close(&e);
    prepared_free(&p);
    return 0;
}
