#include "known_answer.h"
#include "lathe_compiler.h"

#include "ops/half.h"
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_SEQ 8
#define MAX_BYTES ((uint64_t)64 << 20)

/* ---- making */

/* Sizes of the run: one row, a short sequence, within what the graph allows. */
static int64_t small_size(const struct lathe_fmt_symbol *s) {
    int64_t want = s->role == LATHE_ROLE_BATCH ? 1 : SMALL_SEQ;
    int64_t low = s->min > 1 ? s->min : 1;
    return want < low ? low : want > s->max ? s->max : want;
}

/* Numbers that differ from element to element and are the same everywhere: ids below their limit, masks of ones. */
static void fill_input(const struct lathe_port *port, int64_t count, void *data) {
    size_t each = lathe_dtype_bytes(port->dtype);
    bool mask = strstr(port->name, "mask") != NULL;
    for (int64_t i = 0; i < count; i++) {
        int64_t integer = port->id_limit > 0 ? (i * 7 + 3) % port->id_limit : mask ? 1 : 0;
        float real = (float)((i * 37 + 11) % 64 - 32) / 32.0f;
        char *at = (char *)data + (size_t)i * each;
        if (port->dtype == LATHE_F32) {
            memcpy(at, &real, 4);
        } else if (port->dtype == LATHE_F64) {
            double wide = real;
            memcpy(at, &wide, 8);
        } else if (lathe_dtype_is_float(port->dtype)) {
            memset(at, 0, each);
        } else {
            integer = port->dtype == LATHE_BOOL ? 1 : integer;
            memcpy(at, &integer, each);
        }
    }
}

static uint64_t aligned(uint64_t n) {
    return (n + 63) / 64 * 64;
}

static void describe(struct lathe_fmt_answer_tensor *t, uint32_t port, enum lathe_dtype dtype, unsigned rank,
                     const int64_t *dims, uint64_t *at) {
    *t = (struct lathe_fmt_answer_tensor){.port = port, .dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    for (unsigned d = 0; d < rank; d++)
        t->dims[d] = dims[d];
    int64_t bytes = lathe_shape_bytes(dtype, rank, dims);
    t->bytes = bytes < 0 ? MAX_BYTES : (uint64_t)bytes;
    t->offset = aligned(*at);
    *at = t->offset + (t->bytes > MAX_BYTES ? MAX_BYTES : t->bytes);
}

static enum lathe_status make_inputs(struct lathe_artifact *a, struct lathe_session *s,
                                     struct lathe_fmt_answer_tensor *tensors, uint64_t *at, uint8_t **data,
                                     struct lathe_diag *diag) {
    const struct lathe_plan *p = &a->plan;
    const struct lathe_manifest *m = &a->manifest;
    int64_t *symbols = calloc((size_t)p->head->symbol_count + 1, sizeof *symbols);
    int64_t *dims = calloc((size_t)p->head->dim_count + 1, sizeof *dims);
    enum lathe_status status = LATHE_OK;
    if (!symbols || !dims)
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "known answer: out of memory");
    for (uint32_t i = 0; status == LATHE_OK && i < p->head->symbol_count; i++)
        symbols[i] = small_size(&p->symbols[i]);
    if (status == LATHE_OK)
        lathe_plan_eval(p, symbols, false, dims);
    for (uint32_t i = 0; status == LATHE_OK && i < m->head->input_count; i++) {
        int64_t shape[LATHE_MAX_RANK] = {0};
        for (unsigned d = 0; d < m->inputs[i].rank; d++)
            shape[d] = dims[m->inputs[i].dims[d]] > 0 ? dims[m->inputs[i].dims[d]] : 0;
        describe(&tensors[i], i, a->ports[i].dtype, a->ports[i].rank, shape, at);
        if (*at > MAX_BYTES)
            status = LATHE_UNSUPPORTED;
    }
    if (status == LATHE_OK && !(*data = calloc(1, (size_t)aligned(*at) + 64)))
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "known answer: out of memory");
    for (uint32_t i = 0; status == LATHE_OK && i < m->head->input_count; i++) {
        const struct lathe_fmt_answer_tensor *t = &tensors[i];
        fill_input(&a->ports[i], (int64_t)(t->bytes / lathe_dtype_bytes(a->ports[i].dtype)), *data + t->offset);
        status = lathe_session_set_input(s, i, a->ports[i].dtype, t->rank, t->dims, *data + t->offset, NULL);
    }
    free(symbols);
    free(dims);
    return status;
}

enum lathe_status lathe_known_answer_make(struct lathe_artifact *a, void **bytes, size_t *size,
                                          struct lathe_diag *diag) {
    uint32_t inputs = a->manifest.head->input_count, outputs = a->manifest.head->output_count;
    uint64_t at =
        sizeof(struct lathe_fmt_answer) + ((uint64_t)inputs + outputs) * sizeof(struct lathe_fmt_answer_tensor);
    struct lathe_fmt_answer_tensor *tensors = calloc((size_t)inputs + outputs, sizeof *tensors);
    struct lathe_session *s = NULL;
    uint8_t *data = NULL;
    static struct lathe_diag why;
    lathe_diag_reset(&why);
    *bytes = NULL;
    *size = 0;
    if (!tensors)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "known answer: out of memory");
    /* plain C kernels round the same way on every host, whatever their number of threads */
    enum lathe_status status = lathe_session_new(a, &(struct lathe_session_options){.plain_c = true}, &s, diag);
    if (status == LATHE_OK) {
        status = make_inputs(a, s, tensors, &at, &data, diag);
        if (status == LATHE_OK)
            status = lathe_session_run(s, &why);
        bool never = why.message == LATHE_MSG_OP_SHAPE || why.message == LATHE_MSG_OP_DTYPE;
        if (status != LATHE_OK && !never && status != LATHE_INTERNAL) {
            status = LATHE_OK; /* the graph does not run on such inputs: there is no known answer */
            goto done;
        }
        /* operands that the import could not tell to be wrong: the plan runs on no input */
        if (never)
            status = lathe_fail(diag, LATHE_MSG_LOWER_OPERATOR, "%s", why.text);
        else if (status != LATHE_OK)
            status = lathe_fail(diag, LATHE_MSG_BUG, "known answer: %s", why.text);
    }
    if (status == LATHE_OK) {
        for (uint32_t i = 0; i < outputs; i++) {
            const struct lathe_tensor_view *v = lathe_session_output(s, i);
            describe(&tensors[inputs + i], i, v->dtype, v->rank, v->dims, &at);
        }
        uint8_t *section = at <= MAX_BYTES ? calloc(1, (size_t)at) : NULL;
        if (section) {
            struct lathe_fmt_answer head = {.input_count = inputs, .output_count = outputs};
            memcpy(section, &head, sizeof head);
            memcpy(section + sizeof head, tensors, ((size_t)inputs + outputs) * sizeof *tensors);
            for (uint32_t i = 0; i < inputs; i++)
                memcpy(section + tensors[i].offset, data + tensors[i].offset, (size_t)tensors[i].bytes);
            for (uint32_t i = 0; i < outputs; i++)
                if (tensors[inputs + i].bytes)
                    memcpy(section + tensors[inputs + i].offset, lathe_session_output(s, i)->data,
                           (size_t)tensors[inputs + i].bytes);
            *bytes = section;
            *size = (size_t)at;
        }
    }
done:
    lathe_session_close(&s);
    free(tensors);
    free(data);
    return status;
}

/* ---- replaying */

enum lathe_rounding lathe_artifact_rounding(const struct lathe_artifact *artifact) {
    enum lathe_rounding most = LATHE_ROUNDS_NOTHING;
    for (uint32_t s = 0; s < artifact->plan.head->step_count; s++) {
        unsigned op = artifact->plan.steps[s].op;
        enum lathe_rounding rounding = op == LATHE_OP_LINEAR_Q8     ? LATHE_ROUNDS_TO_8_BITS
                                       : op == LATHE_OP_ROUND_BF16  ? LATHE_ROUNDS_ALL_TO_BF16
                                       : op == LATHE_OP_LINEAR_BF16 ? LATHE_ROUNDS_PRODUCTS_TO_BF16
                                                                    : LATHE_ROUNDS_NOTHING;
        most = rounding > most ? rounding : most;
    }
    return most;
}

double lathe_known_answer_bound(const struct lathe_artifact *artifact) {
    static const double bounds[] = {[LATHE_ROUNDS_NOTHING] = LATHE_VERIFY_ATOL,
                                    [LATHE_ROUNDS_PRODUCTS_TO_BF16] = LATHE_BF16_REPLAY,
                                    [LATHE_ROUNDS_ALL_TO_BF16] = LATHE_CAST_REPLAY,
                                    [LATHE_ROUNDS_TO_8_BITS] = LATHE_Q8_REPLAY};
    return bounds[lathe_artifact_rounding(artifact)];
}

static double element(enum lathe_dtype dtype, const uint8_t *p) {
    switch (dtype) {
    case LATHE_F32: {
        float v;
        memcpy(&v, p, 4);
        return v;
    }
    case LATHE_F64: {
        double v;
        memcpy(&v, p, 8);
        return v;
    }
    case LATHE_I32: {
        int32_t v;
        memcpy(&v, p, 4);
        return v;
    }
    case LATHE_I64: {
        int64_t v;
        memcpy(&v, p, 8);
        return (double)v;
    }
    case LATHE_F16:
    case LATHE_BF16: {
        uint16_t v;
        memcpy(&v, p, 2);
        return (double)(dtype == LATHE_F16 ? lathe_f32_from_f16(v) : lathe_f32_from_bf16(v));
    }
    default:
        return 0;
    }
}

/* Where a sum just beside a tie is rounded up here and down there, an output of 16 bits moves by a whole step, more
 * than any bound on f32. */
static bool one_step_apart(enum lathe_dtype dtype, const uint8_t *want, const uint8_t *got) {
    int16_t w, g;
    if ((dtype != LATHE_F16 && dtype != LATHE_BF16) || isnan(element(dtype, want)) || isnan(element(dtype, got)))
        return false;
    memcpy(&w, want, 2);
    memcpy(&g, got, 2);
    return (w ^ g) >= 0 ? w - g == 1 || g - w == 1 : ((w | g) & 0x7fff) <= 1;
}

static bool by_value(enum lathe_dtype dtype) {
    return dtype == LATHE_F32 || dtype == LATHE_F64 || dtype == LATHE_I32 || dtype == LATHE_I64 || dtype == LATHE_F16 ||
           dtype == LATHE_BF16;
}

void lathe_known_answer_compare(enum lathe_dtype dtype, const uint8_t *want, const uint8_t *got, uint64_t bytes,
                                struct lathe_known_answer_result *out) {
    size_t each = lathe_dtype_bytes(dtype);
    double apart = 0, length = 0;
    for (uint64_t at = 0; by_value(dtype) && at + each <= bytes; at += each) {
        double w = element(dtype, want + at), g = element(dtype, got + at);
        if (isfinite(w) && isfinite(g)) { /* the others are compared below */
            apart += (g - w) * (g - w);
            length += w * w;
        }
    }
    double distance = apart > 0 ? sqrt(apart / length) : 0;
    out->distance = distance > out->distance ? distance : out->distance;
    for (uint64_t at = 0; at + each <= bytes; at += each, out->compared++) {
        if (memcmp(want + at, got + at, each) == 0 || one_step_apart(dtype, want + at, got + at))
            continue;
        if (!by_value(dtype)) { /* small types are compared as bytes: any difference is a whole one */
            out->max_error = out->max_error > 1 ? out->max_error : 1;
            continue;
        }
        double w = element(dtype, want + at), g = element(dtype, got + at);
        if (isnan(w) && isnan(g))
            continue;
        double error = fabs(g - w) / (fabs(w) > 1 ? fabs(w) : 1);
        if (isnan(error) || error > out->max_error)
            out->max_error = error;
        if (isnan(out->max_error))
            return;
    }
}

static bool tensor_ok(const struct lathe_fmt_answer_tensor *t, uint64_t *at, uint64_t size, const uint8_t *data) {
    uint64_t start = aligned(*at);
    if (t->rank > LATHE_MAX_RANK || t->reserved0 || t->reserved1 || !lathe_dtype_bytes((enum lathe_dtype)t->dtype) ||
        t->offset != start || start > size || t->bytes > size - start)
        return false;
    for (unsigned d = t->rank; d < 8; d++)
        if (t->dims[d])
            return false;
    for (uint64_t i = *at; i < start; i++)
        if (data[i])
            return false;
    *at = start + t->bytes;
    return lathe_shape_bytes((enum lathe_dtype)t->dtype, t->rank, t->dims) == (int64_t)t->bytes;
}

enum lathe_status lathe_known_answer_replay(struct lathe_artifact *a, const struct lathe_session_options *options,
                                            struct lathe_known_answer_result *out, struct lathe_diag *diag) {
    *out = (struct lathe_known_answer_result){0};
    void *raw;
    uint64_t size;
    LATHE_TRY(lathe_artifact_section(a, LATHE_SECTION_KNOWN_ANSWER, &raw, &size, diag));
    if (!raw || size == 0) {
        free(raw);
        return LATHE_OK;
    }
    const uint8_t *data = raw;
    uint32_t inputs = a->manifest.head->input_count, outputs = a->manifest.head->output_count;
    uint64_t count = (uint64_t)inputs + outputs,
             at = sizeof(struct lathe_fmt_answer) + count * sizeof(struct lathe_fmt_answer_tensor);
    const struct lathe_fmt_answer *head = raw;
    const struct lathe_fmt_answer_tensor *tensors = (const void *)(data + sizeof *head);
    struct lathe_session *s = NULL;
    enum lathe_status status = LATHE_OK;
    bool ok = size >= at && head->input_count == inputs && head->output_count == outputs && head->reserved == 0;
    for (uint64_t i = 0; ok && i < count; i++)
        ok = tensor_ok(&tensors[i], &at, size, data) && tensors[i].port == (i < inputs ? i : i - inputs);
    if (!ok || at != size) {
        status = lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "section KNOWN_ANSWER is not well formed");
        goto done;
    }
    status = lathe_session_new(a, options, &s, diag);
    for (uint32_t i = 0; status == LATHE_OK && i < inputs; i++)
        status = lathe_session_set_input(s, i, (enum lathe_dtype)tensors[i].dtype, tensors[i].rank, tensors[i].dims,
                                         data + tensors[i].offset, diag);
    if (status == LATHE_OK)
        status = lathe_session_run(s, diag);
    for (uint32_t i = 0; status == LATHE_OK && i < outputs; i++) {
        const struct lathe_fmt_answer_tensor *want = &tensors[inputs + i];
        const struct lathe_tensor_view *got = lathe_session_output(s, i);
        if (got->dtype != (enum lathe_dtype)want->dtype || got->bytes != want->bytes)
            out->max_error = INFINITY;
        else
            lathe_known_answer_compare(got->dtype, data + want->offset, got->data, want->bytes, out);
    }
    out->present = status == LATHE_OK;
done:
    lathe_session_close(&s);
    free(raw);
    return status;
}
