/* Einstein sums of any number of operands: every label is an axis to walk, operands step along it or stand still. The
 * graph turns the usual forms into products before; this is the meaning of the rest. */
#include "op_util.h"
#include "ops.h"

#define LETTERS  52
#define LABELS   (LETTERS + LATHE_MAX_RANK) /* letters, then the axes of the ellipsis counted from the last */
#define OPERANDS 8

struct term {
    int labels[LATHE_MAX_RANK]; /* of the axes */
    unsigned count;
    int ellipsis; /* position of "..." among the labels, -1 none */
};

struct einsum {
    unsigned operands;
    int64_t size[LABELS]; /* 0: not used; lengths are at least 1 here */
    int64_t strides[OPERANDS][LABELS];
    int out[LATHE_MAX_RANK];
    unsigned out_count;
    int sum[LABELS];
    unsigned sum_count;
};

static int label_of(int64_t c) {
    return c >= 'a' && c <= 'z' ? (int)(c - 'a') : c >= 'A' && c <= 'Z' ? (int)(c - 'A') + 26 : -1;
}

/* Reads one term from `*at` up to a comma, an arrow or the end. */
static bool read_term(const int64_t *text, uint32_t n, uint32_t *at, struct term *t) {
    *t = (struct term){.ellipsis = -1};
    for (; *at < n && text[*at] != ',' && text[*at] != '-'; (*at)++) {
        if (text[*at] == ' ')
            continue;
        if (text[*at] == '.') {
            if (*at + 2 >= n || text[*at + 1] != '.' || text[*at + 2] != '.' || t->ellipsis >= 0)
                return false;
            t->ellipsis = (int)t->count;
            *at += 2;
            continue;
        }
        int label = label_of(text[*at]);
        if (label < 0 || t->count == LATHE_MAX_RANK)
            return false;
        t->labels[t->count++] = label;
    }
    return true;
}

/* The label of every axis of a tensor of that rank; the ellipsis takes what the letters leave. */
static bool expand_term(const struct term *t, unsigned rank, int *labels) {
    unsigned extra = rank - t->count;
    if (t->count > rank || (extra > 0 && t->ellipsis < 0))
        return false;
    unsigned at = 0;
    for (unsigned i = 0; i <= t->count; i++) {
        if ((int)i == t->ellipsis)
            for (unsigned k = 0; k < extra; k++)
                labels[at++] = LETTERS + (int)(extra - 1 - k);
        if (i < t->count)
            labels[at++] = t->labels[i];
    }
    return true;
}

static bool add_operand(struct einsum *e, const struct lathe_tensor *x, const struct term *t) {
    int labels[LATHE_MAX_RANK];
    int64_t strides[LATHE_MAX_RANK], *own = e->strides[e->operands++];
    if (!expand_term(t, x->rank, labels))
        return false;
    lathe_strides_of(x, strides);
    for (unsigned i = 0; i < x->rank; i++) {
        int64_t *size = &e->size[labels[i]];
        if (*size == 0 || *size == 1)
            *size = x->dims[i];
        else if (x->dims[i] != *size && x->dims[i] != 1)
            return false;
        if (x->dims[i] != 1)
            own[labels[i]] += strides[i]; /* a label twice in a term walks the diagonal */
    }
    return true;
}

static bool einsum_init(struct einsum *e, const struct lathe_op_call *call) {
    uint32_t n, at = 0;
    const int64_t *text = lathe_attr_ints(&call->attrs, LATHE_ATTR_EQUATION, &n);
    int seen[LETTERS] = {0};
    if (!text || call->n_in > OPERANDS)
        return false;
    *e = (struct einsum){0};
    for (unsigned i = 0; i < call->n_in; i++) {
        struct term t;
        if (!read_term(text, n, &at, &t) || !add_operand(e, call->in[i], &t))
            return false;
        for (unsigned k = 0; k < t.count; k++)
            seen[t.labels[k]]++;
        if (i + 1 < call->n_in && (at >= n || text[at++] != ','))
            return false;
    }
    const struct lathe_tensor *y = call->out[0];
    bool explicit_out = at < n, in_out[LABELS] = {false};
    struct term t = {.ellipsis = 0};
    if (explicit_out) {
        if (text[at] != '-' || at + 1 >= n || text[at + 1] != '>')
            return false;
        at += 2;
        if (!read_term(text, n, &at, &t) || at != n)
            return false;
    } else { /* the axes of the ellipsis, then letters that occur once, in the order of the alphabet, capitals first */
        for (int i = 0; i < LETTERS; i++) {
            int letter = (i + 26) % LETTERS;
            if (seen[letter] == 1) {
                if (t.count == LATHE_MAX_RANK)
                    return false;
                t.labels[t.count++] = letter;
            }
        }
    }
    int labels[LATHE_MAX_RANK];
    if (!expand_term(&t, y->rank, labels))
        return false;
    e->out_count = y->rank;
    for (unsigned i = 0; i < y->rank; i++) {
        e->out[i] = labels[i];
        if (in_out[labels[i]] || e->size[labels[i]] != y->dims[i])
            return false;
        in_out[labels[i]] = true;
    }
    for (int l = 0; l < LABELS; l++)
        if (!in_out[l] && e->size[l] > 1)
            e->sum[e->sum_count++] = l;
    return true;
}

/* The sum for one output element; `at` are the operands' offsets there. */
#define ELEMENT(T, A, name, read)                                                                                      \
    static A name(const struct einsum *e, const struct lathe_op_call *call, const int64_t *at) {                       \
        int64_t index[LABELS] = {0}, offset[OPERANDS];                                                                 \
        unsigned last = e->sum_count - 1, n = e->operands;                                                             \
        int64_t size = e->sum_count ? e->size[e->sum[last]] : 1, step[OPERANDS];                                       \
        for (unsigned k = 0; k < n; k++) {                                                                             \
            offset[k] = at[k];                                                                                         \
            step[k] = e->sum_count ? e->strides[k][e->sum[last]] : 0;                                                  \
        }                                                                                                              \
        A sum = 0;                                                                                                     \
        for (;;) {                                                                                                     \
            for (int64_t i = 0; i < size; i++) {                                                                       \
                A product = 1;                                                                                         \
                for (unsigned k = 0; k < n; k++)                                                                       \
                    product *= (A)read(call->in[k], offset[k] + i * step[k]);                                          \
                sum += product;                                                                                        \
            }                                                                                                          \
            unsigned i = e->sum_count ? last : 0;                                                                      \
            for (; i > 0; i--) {                                                                                       \
                int label = e->sum[i - 1];                                                                             \
                bool wrapped = ++index[label] == e->size[label];                                                       \
                for (unsigned k = 0; k < n; k++)                                                                       \
                    offset[k] += wrapped ? -(e->size[label] - 1) * e->strides[k][label] : e->strides[k][label];        \
                if (!wrapped)                                                                                          \
                    break;                                                                                             \
                index[label] = 0;                                                                                      \
            }                                                                                                          \
            if (i == 0)                                                                                                \
                return sum;                                                                                            \
        }                                                                                                              \
    }
static inline float read_f32(const struct lathe_tensor *t, int64_t i) {
    return ((const float *)t->data)[i];
}
ELEMENT(float, double, element_f32, read_f32)
ELEMENT(double, double, element_float, lathe_read_f64)
ELEMENT(int64_t, uint64_t, element_int, lathe_read_i64)

enum lathe_status lathe_run_einsum(const struct lathe_op_call *call) {
    struct einsum e;
    struct lathe_tensor *y = call->out[0];
    if (!einsum_init(&e, call))
        return lathe_bad_shape(call, "einsum");
    for (unsigned i = 0; i < call->n_in; i++)
        if (call->in[i]->dtype != y->dtype)
            return lathe_no_dtype(call, "einsum", call->in[i]->dtype);
    bool floats = lathe_dtype_is_float(y->dtype), empty = false;
    for (unsigned i = 0; i < call->n_in; i++)
        empty |= lathe_tensor_count(call->in[i]) == 0;
    int64_t begin, end, index[LATHE_MAX_RANK];
    lathe_team_split(&call->team, lathe_tensor_count(y), 16, &begin, &end);
    for (int64_t at = begin; at < end; at++) {
        int64_t rest = at, offsets[OPERANDS] = {0};
        for (unsigned i = e.out_count; i-- > 0;) {
            index[i] = rest % y->dims[i];
            rest /= y->dims[i];
            for (unsigned k = 0; k < e.operands; k++)
                offsets[k] += index[i] * e.strides[k][e.out[i]];
        }
        double f = 0;
        uint64_t u = 0;
        if (!empty && y->dtype == LATHE_F32)
            f = element_f32(&e, call, offsets);
        else if (!empty && floats)
            f = element_float(&e, call, offsets);
        else if (!empty)
            u = element_int(&e, call, offsets);
        lathe_store(y, at, 1, floats ? LATHE_KIND_F64 : LATHE_KIND_U64, floats ? (void *)&f : (void *)&u);
    }
    return LATHE_OK;
}
