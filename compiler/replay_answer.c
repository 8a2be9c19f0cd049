#include "replay_answer.h"
#include "lathe_compiler.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

struct answer {
    const uint8_t *bytes;
    uint64_t size;
    struct lathe_fmt_answer head;
};

static enum lathe_status bad(struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_DATA_FILE, "the known answer of the artifact is malformed");
}

/* Tensor `index` of the section: its elements are borrowed, so `out` is not for lathe_data_tensor_free. */
static enum lathe_status tensor_at(const struct answer *answer, unsigned index, struct lathe_fmt_answer_tensor *head,
                                   struct lathe_data_tensor *out, struct lathe_diag *diag) {
    memcpy(head, answer->bytes + sizeof answer->head + index * sizeof *head, sizeof *head);
    if (head->rank > LATHE_MAX_RANK || !lathe_dtype_bytes(head->dtype) || head->offset > answer->size ||
        head->bytes > answer->size - head->offset)
        return bad(diag);
    *out = (struct lathe_data_tensor){.dtype = head->dtype, .rank = head->rank, .bytes = (size_t)head->bytes};
    memcpy(out->dims, head->dims, sizeof out->dims);
    int64_t need = lathe_shape_bytes(head->dtype, head->rank, out->dims);
    if (need < 0 || (uint64_t)need != head->bytes)
        return bad(diag);
    out->data = (void *)(uintptr_t)(answer->bytes + head->offset);
    return LATHE_OK;
}

static enum lathe_status bind(const struct answer *answer, const struct lathe_artifact *a, struct lathe_session *s,
                              struct lathe_diag *diag) {
    for (unsigned i = 0; i < answer->head.input_count; i++) {
        struct lathe_fmt_answer_tensor head;
        struct lathe_data_tensor t;
        LATHE_TRY(tensor_at(answer, i, &head, &t, diag));
        if (head.port >= lathe_artifact_input_count(a))
            return bad(diag);
        LATHE_TRY(lathe_session_set_input(s, head.port, t.dtype, t.rank, t.dims, t.data, diag));
    }
    return LATHE_OK;
}

static enum lathe_status compare(const struct answer *answer, const struct lathe_artifact *a,
                                 const struct lathe_session *s, double *max_error, struct lathe_diag *diag) {
    const struct lathe_bounds bounds = {.has_tolerance = true, .atol = LATHE_VERIFY_ATOL, .rtol = LATHE_VERIFY_RTOL};
    for (unsigned i = 0; i < answer->head.output_count; i++) {
        struct lathe_fmt_answer_tensor head;
        struct lathe_data_tensor t;
        struct lathe_comparison c;
        LATHE_TRY(tensor_at(answer, answer->head.input_count + i, &head, &t, diag));
        if (head.port >= lathe_artifact_output_count(a))
            return bad(diag);
        lathe_compare(lathe_artifact_output(a, head.port)->name, lathe_session_output(s, head.port), &t, NULL, &bounds,
                      &c);
        *max_error = c.max_error > *max_error ? c.max_error : *max_error;
        if (!c.passed)
            return lathe_fail(diag, LATHE_MSG_NOT_REPLAYED, "known answer: %s", c.why);
    }
    return LATHE_OK;
}

static enum lathe_status replay(const struct answer *answer, struct lathe_artifact *a,
                                const struct lathe_session_options *options, double *max_error,
                                struct lathe_diag *diag) {
    struct lathe_session *s = NULL;
    LATHE_TRY(lathe_session_new(a, options, &s, diag));
    enum lathe_status status = bind(answer, a, s, diag);
    if (status == LATHE_OK)
        status = lathe_session_run(s, diag);
    if (status == LATHE_OK)
        status = compare(answer, a, s, max_error, diag);
    lathe_session_close(&s);
    return status;
}

enum lathe_status lathe_replay_answer(struct lathe_artifact *a, const struct lathe_session_options *options,
                                      bool *present, double *max_error, struct lathe_diag *diag) {
    void *bytes = NULL;
    struct answer answer = {.size = 0};
    *present = false;
    *max_error = 0;
    LATHE_TRY(lathe_artifact_section(a, LATHE_SECTION_KNOWN_ANSWER, &bytes, &answer.size, diag));
    if (!bytes)
        return LATHE_OK;
    answer.bytes = bytes;
    enum lathe_status status = LATHE_OK;
    uint64_t room = 0;
    if (answer.size < sizeof answer.head) {
        status = bad(diag);
    } else {
        memcpy(&answer.head, bytes, sizeof answer.head);
        room = (answer.size - sizeof answer.head) / sizeof(struct lathe_fmt_answer_tensor);
        if (answer.head.input_count > room || answer.head.output_count > room - answer.head.input_count)
            status = bad(diag);
    }
    if (status == LATHE_OK)
        status = replay(&answer, a, options, max_error, diag);
    *present = true;
    free(bytes);
    return status;
}
