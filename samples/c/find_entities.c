/* Token classification: find_entities MODEL.lathe SENTENCES.tsv
 * Prints each sentence with what the model found in it, from labels of the B-X / I-X kind. */
#include "encoder.h"

#include <stdio.h>
#include <string.h>

static const char *label_of(const struct encoder *e, const float *row, unsigned labels) {
    unsigned best = 0;
    for (unsigned k = 1; k < labels; k++)
        best = row[k] > row[best] ? k : best;
    return best < lathe_artifact_label_count(e->artifact) ? lathe_artifact_label(e->artifact, best) : "O";
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: find_entities MODEL.lathe SENTENCES.tsv\n");
        return 2;
    }
    struct prepared p = prepared_read(argv[2]);
    struct encoder e = encoder_open(argv[1], p.longest);
    for (size_t i = 0; i < p.count; i++) {
        const struct sentence *s = &p.list[i];
        const struct lathe_tensor_view *y = encoder_run(&e, s);
        unsigned labels = (unsigned)y->dims[2];
        printf("%s\n", s->text);
        for (size_t t = 0; t < s->count && s->begin; t++) {
            const char *label = label_of(&e, (const float *)y->data + t * labels, labels);
            if (label[0] == 'O' || s->end[t] == 0)
                continue;
            /* the entity goes on while the kind stays and no new one begins inside another word */
            size_t last = t;
            while (last + 1 < s->count && s->end[last + 1] > 0) {
                const char *next = label_of(&e, (const float *)y->data + (last + 1) * labels, labels);
                bool glued = s->begin[last + 1] == s->end[last];
                if (next[0] == 'O' || strcmp(next + 1, label + 1) != 0 || (next[0] == 'B' && !glued))
                    break;
                last++;
            }
            printf("    %-18s %.*s\n", label + 2, s->end[last] - s->begin[t], s->text + s->begin[t]);
            t = last;
        }
    }
    printf("\n%.2f ms a sentence (median, %u threads)\n", 1e3 * encoder_median_seconds(&e, &p, 20),
           lathe_session_threads(e.session));
    encoder_close(&e);
    prepared_free(&p);
    return 0;
}
