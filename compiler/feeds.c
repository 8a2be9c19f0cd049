#include "feeds.h"
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lathe_feeds_free(struct lathe_feeds *feeds) {
    for (unsigned i = 0; i < feeds->count; i++)
        lathe_data_tensor_free(&feeds->at[i]);
    free(feeds->at);
    *feeds = (struct lathe_feeds){0};
}

/* splitmix64: small, and the same on every machine. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

enum kind { KIND_IDS, KIND_MASK, KIND_TYPES, KIND_POSITIONS, KIND_FLOATS };

static enum kind kind_of(const struct lathe_port *p) {
    if (strstr(p->name, "mask"))
        return KIND_MASK;
    if (lathe_dtype_is_float(p->dtype))
        return KIND_FLOATS;
    if (strstr(p->name, "position"))
        return KIND_POSITIONS;
    if (strstr(p->name, "token_type") || strstr(p->name, "segment"))
        return KIND_TYPES;
    /* An integer that is no row number gets 0 and 1, which suits masks of other names. */
    return p->id_limit || p->dtype != LATHE_BOOL ? KIND_IDS : KIND_MASK;
}

int lathe_feeds_mask(const struct lathe_artifact *a) {
    int exact = lathe_artifact_find_input(a, "attention_mask");
    if (exact >= 0)
        return exact;
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        if (p->rank == 2 && strstr(p->name, "mask"))
            return (int)i;
    }
    return -1;
}

bool lathe_feeds_batch_varies(const struct lathe_artifact *a) {
    for (unsigned i = 0; i < lathe_artifact_input_count(a); i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        if (p->rank && p->dims[0] < 0)
            return true;
    }
    return false;
}

/* A size that buckets serve: at most the largest, a bucket's own where lengths cannot be padded. */
static int64_t bucketed(const struct lathe_buckets *b, uint8_t axis, const struct lathe_feed_spec *spec) {
    int64_t size = axis == LATHE_AXIS_SEQ ? spec->seq : spec->batch;
    if (b->whole && axis == LATHE_AXIS_BATCH) { /* the largest batch that is not larger, or the smallest */
        int64_t batch = b->sizes[0].batch;
        for (unsigned i = 0; i < b->list.count; i++) {
            int64_t other = b->sizes[i].batch;
            batch = (batch > size ? other < batch : other <= size && other > batch) ? other : batch;
        }
        return batch;
    }
    if (axis != LATHE_AXIS_SEQ)
        return size;
    int64_t best = b->sizes[b->list.count - 1].seq;
    for (unsigned i = b->list.count; i > 0; i--)
        best = b->sizes[i - 1].seq >= size ? b->sizes[i - 1].seq : best;
    if (size > best)
        return spec->longer ? size : best;
    return b->list.exact ? best : size;
}

/* Every size of the plan for this batch and length, kept inside the bounds of the symbols; for free(). A size that is
 * an expression (a mask over one token more than the ids) follows them. NULL when memory runs out. */
static int64_t *plan_sizes(const struct lathe_artifact *a, const struct lathe_feed_spec *spec) {
    const struct lathe_plan *plan = &a->plan;
    uint32_t symbol_count = plan->head->symbol_count;
    int64_t *symbols = calloc((size_t)symbol_count + 1, sizeof *symbols);
    int64_t *sizes = calloc((size_t)plan->head->dim_count + 1, sizeof *sizes);
    for (uint32_t i = 0; symbols && i < symbol_count; i++) {
        const struct lathe_fmt_symbol *s = &plan->symbols[i];
        int64_t size = s->axis ? spec->seq : spec->batch;
        size = size < s->min ? s->min : size;
        symbols[i] = size > s->max ? s->max : size;
    }
    if (symbols && sizes)
        lathe_plan_eval(plan, symbols, false, sizes);
    if (!symbols) {
        free(sizes);
        sizes = NULL;
    }
    free(symbols);
    return sizes;
}

static double element(enum kind kind, const struct lathe_port *p, const struct lathe_feed_spec *spec, bool real,
                      int64_t position, uint64_t *state) {
    uint64_t bits = next_random(state);
    uint64_t limit = p->id_limit > 0 ? (uint64_t)p->id_limit : 2;
    switch (kind) {
    case KIND_MASK:
        return real;
    case KIND_POSITIONS:
        return (double)(position % (int64_t)(p->id_limit > 0 ? limit : INT64_MAX));
    case KIND_TYPES:
        return spec->plain ? 0 : (double)(bits % limit);
    case KIND_IDS:
        if (spec->frequent > 0 && (uint64_t)spec->frequent < limit) {
            double u = (double)(bits >> 11) * 0x1p-53;
            return floor((double)spec->frequent + u * u * u * (double)(limit - (uint64_t)spec->frequent));
        }
        return (double)(bits % limit);
    default:
        return (double)(bits >> 11) * 0x1p-52 - 1;
    }
}

static void fill(struct lathe_data_tensor *t, const struct lathe_port *p, const struct lathe_feed_spec *spec,
                 uint64_t *state) {
    enum kind kind = kind_of(p);
    size_t count = t->bytes / lathe_dtype_bytes(t->dtype);
    size_t last = t->rank ? (size_t)t->dims[t->rank - 1] : 1, rows = t->rank > 1 ? (size_t)t->dims[0] : 1;
    for (size_t i = 0; i < count; i++) {
        int64_t position = (int64_t)(i % last);
        size_t row = i / (count / rows);
        bool real = !spec->lengths || row >= (size_t)spec->batch || position < spec->lengths[row];
        lathe_element_set(t->dtype, t->data, i, element(kind, p, spec, real, position, state));
    }
}

enum lathe_status lathe_feeds_new(const struct lathe_artifact *a, struct lathe_feeds *out, struct lathe_diag *diag) {
    out->count = lathe_artifact_input_count(a);
    out->at = calloc(out->count ? out->count : 1, sizeof *out->at);
    if (out->at)
        return LATHE_OK;
    *out = (struct lathe_feeds){0};
    return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the inputs");
}

/* Of one input that is made up; a file declares any size. */
#define MOST_BYTES (INT64_C(256) << 20)

enum lathe_status lathe_feeds_make(const struct lathe_artifact *a, const struct lathe_feed_spec *spec,
                                   struct lathe_feeds *out, struct lathe_diag *diag) {
    uint64_t state = spec->seed;
    LATHE_TRY(lathe_feeds_new(a, out, diag));
    int64_t *sizes = plan_sizes(a, spec);
    if (!sizes) {
        lathe_feeds_free(out);
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the inputs");
    }
    for (unsigned i = 0; i < out->count; i++) {
        const struct lathe_port *p = lathe_artifact_input(a, i);
        int64_t dims[LATHE_MAX_RANK];
        for (unsigned d = 0; d < p->rank; d++)
            dims[d] = a->buckets && p->dims[d] < 0 ? bucketed(a->buckets, a->buckets->ports[i].axes[d], spec)
                                                   : sizes[a->manifest.inputs[i].dims[d]];
        int64_t bytes = lathe_shape_bytes(p->dtype, p->rank, dims);
        enum lathe_status status =
            bytes < 0 || bytes > MOST_BYTES
                ? lathe_fail(diag, LATHE_MSG_DATA_TOO_LARGE, "input '%s' of %lld bytes is too large to make up",
                             p->name, (long long)bytes)
                : lathe_data_tensor_make(&out->at[i], p->name, p->dtype, p->rank, dims, p->name, diag);
        if (status != LATHE_OK) {
            free(sizes);
            lathe_feeds_free(out);
            return status;
        }
        fill(&out->at[i], p, spec, &state);
    }
    free(sizes);
    return LATHE_OK;
}

enum lathe_status lathe_feeds_put(const struct lathe_artifact *a, struct lathe_feeds *feeds, const char *name,
                                  struct lathe_data_tensor *tensor, const char *file, struct lathe_diag *diag) {
    int index = lathe_artifact_find_input(a, name);
    if (index < 0) {
        char known[1024] = "";
        for (unsigned i = 0; i < feeds->count; i++) {
            size_t n = strlen(known);
            snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", lathe_artifact_input(a, i)->name);
        }
        return lathe_fail(diag, LATHE_MSG_DATA_NAME, "%s: the model has no input '%s' (inputs: %s)", file, name, known);
    }
    if (feeds->at[index].data)
        return lathe_fail(diag, LATHE_MSG_DATA_NAME, "%s: input '%s' is given twice", file, name);
    feeds->at[index] = *tensor;
    *tensor = (struct lathe_data_tensor){0};
    return LATHE_OK;
}

enum lathe_status lathe_feeds_put_nth(const struct lathe_artifact *a, struct lathe_feeds *feeds, unsigned index,
                                      struct lathe_data_tensor *tensor, const char *file, struct lathe_diag *diag) {
    if (!tensor->name[0] && index >= feeds->count)
        return lathe_fail(diag, LATHE_MSG_DATA_NAME, "%s: input number %u without a name, the model has %u inputs",
                          file, index, feeds->count);
    char *name = strdup(tensor->name[0] ? tensor->name : lathe_artifact_input(a, index)->name);
    enum lathe_status status = name ? lathe_feeds_put(a, feeds, name, tensor, file, diag)
                                    : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory", file);
    free(name);
    return status;
}

enum lathe_status lathe_feeds_bind(struct lathe_session *s, const struct lathe_feeds *feeds, struct lathe_diag *diag) {
    lathe_session_clear_inputs(s);
    for (unsigned i = 0; i < feeds->count; i++) {
        const struct lathe_data_tensor *t = &feeds->at[i];
        if (t->data)
            LATHE_TRY(lathe_session_set_input(s, i, t->dtype, t->rank, t->dims, t->data, diag));
    }
    return LATHE_OK;
}
