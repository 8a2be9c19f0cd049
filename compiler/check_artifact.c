#include "check_artifact.h"

#include "session.h"

#include <stdlib.h>
#include <string.h>

void lathe_answers_free(struct lathe_answers *answers) {
    for (unsigned i = 0; i < answers->count; i++)
        lathe_data_tensor_free(&answers->at[i]);
    free(answers->at);
    *answers = (struct lathe_answers){0};
}

enum lathe_status lathe_answers_copy(const struct lathe_artifact *a, const struct lathe_session *s,
                                     struct lathe_answers *out, struct lathe_diag *diag) {
    unsigned count = lathe_artifact_output_count(a);
    *out = (struct lathe_answers){calloc(count ? count : 1, sizeof *out->at), count};
    if (!out->at) {
        out->count = 0;
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the outputs");
    }
    for (unsigned i = 0; i < count; i++) {
        const struct lathe_tensor_view *v = lathe_session_output(s, i);
        const char *name = lathe_artifact_output(a, i)->name;
        enum lathe_status status = lathe_data_tensor_make(&out->at[i], name, v->dtype, v->rank, v->dims, name, diag);
        if (status != LATHE_OK) {
            lathe_answers_free(out);
            return status;
        }
        if (v->bytes)
            memcpy(out->at[i].data, v->data, v->bytes);
    }
    return LATHE_OK;
}

void lathe_checker_close(struct lathe_checker *checker) {
    lathe_session_close(&checker->sessions[0]);
    lathe_session_close(&checker->sessions[1]);
}

enum lathe_status lathe_checker_open(struct lathe_artifact *a, const struct lathe_session_options *options,
                                     struct lathe_checker *out, struct lathe_diag *diag) {
    /* All ones are NaN as floats and -1 as integers; the other pattern is a large positive number. */
    static const unsigned poisons[2] = {0xff, 0x5a};
    *out = (struct lathe_checker){.artifact = a};
    for (unsigned i = 0; i < 2; i++) {
        struct lathe_session_options o = *options;
        o.poison = poisons[i];
        o.poison_padding = i == 1;
        enum lathe_status status = lathe_session_new(a, &o, &out->sessions[i], diag);
        if (status != LATHE_OK) {
            lathe_checker_close(out);
            return status;
        }
    }
    return LATHE_OK;
}

void lathe_checker_force(struct lathe_checker *checker, int bucket) {
    for (unsigned i = 0; i < 2; i++)
        lathe_buckets_force(checker->sessions[i], bucket);
}

enum lathe_status lathe_checker_run(struct lathe_checker *checker, const struct lathe_feeds *feeds,
                                    struct lathe_diag *diag) {
    for (unsigned i = 0; i < 2; i++) {
        LATHE_TRY(lathe_feeds_bind(checker->sessions[i], feeds, diag));
        LATHE_TRY(lathe_session_run(checker->sessions[i], diag));
    }
    for (unsigned i = 0; i < lathe_artifact_output_count(checker->artifact); i++) {
        const struct lathe_tensor_view *a = lathe_session_output(checker->sessions[0], i);
        const struct lathe_tensor_view *b = lathe_session_output(checker->sessions[1], i);
        if (a->bytes != b->bytes || (a->bytes && memcmp(a->data, b->data, a->bytes)))
            return lathe_fail(diag, LATHE_MSG_VERIFY_UNSTABLE,
                              "%s: two runs on the same inputs over differently filled memory%s give different bits",
                              lathe_artifact_output(checker->artifact, i)->name,
                              checker->artifact->buckets ? " and padding" : "");
    }
    return LATHE_OK;
}

/* True when the output has one row for each place of the mask: as declared, or because its first two axes vary with the
 * same symbols. */
static bool follows_mask(const struct lathe_port *output, const struct lathe_port *mask) {
    if (output->per_token)
        return true;
    if (output->rank < 2 || mask->rank != 2)
        return false;
    for (unsigned i = 0; i < 2; i++)
        if (output->dims[i] >= 0 || mask->dims[i] >= 0 || !output->dim_names[i] || !mask->dim_names[i] ||
            strcmp(output->dim_names[i], mask->dim_names[i]))
            return false;
    return true;
}

void lathe_checker_compare(const struct lathe_checker *checker, const struct lathe_feeds *feeds, unsigned index,
                           const struct lathe_data_tensor *want, const struct lathe_bounds *bounds, bool padded_rows,
                           struct lathe_comparison *out) {
    const struct lathe_port *port = lathe_artifact_output(checker->artifact, index);
    int m = padded_rows ? -1 : lathe_feeds_mask(checker->artifact);
    const struct lathe_data_tensor *mask = NULL;
    if (m >= 0 && follows_mask(port, lathe_artifact_input(checker->artifact, (unsigned)m)))
        mask = &feeds->at[m];
    lathe_compare(port->name, lathe_session_output(checker->sessions[0], index), want, mask, bounds, out);
}
