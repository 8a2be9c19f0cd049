#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct place {
    const char *name;
    const struct lathe_tensor_view *got;
    size_t index;
};

/* "logits[0,1]" */
static void place_text(const struct place *p, char *buffer, size_t size) {
    int64_t index[LATHE_MAX_RANK];
    size_t rest = p->index;
    for (unsigned i = p->got->rank; i-- > 0;) {
        index[i] = (int64_t)(rest % (size_t)p->got->dims[i]);
        rest /= (size_t)p->got->dims[i];
    }
    size_t n = (size_t)snprintf(buffer, size, "%.200s[", p->name);
    for (unsigned i = 0; i < p->got->rank && n < size; i++)
        n += (size_t)snprintf(buffer + n, size - n, "%s%lld", i ? "," : "", (long long)index[i]);
    if (n < size)
        snprintf(buffer + n, size - n, "]");
}

static bool same_shape(const struct lathe_tensor_view *got, const struct lathe_data_tensor *want) {
    if (got->dtype != want->dtype || got->rank != want->rank)
        return false;
    for (unsigned i = 0; i < got->rank; i++)
        if (got->dims[i] != want->dims[i])
            return false;
    return true;
}

/* Elements of one token row when the mask says which rows count, else 0. */
static size_t row_elements(const struct lathe_tensor_view *got, const struct lathe_data_tensor *mask) {
    if (!mask || !mask->data || mask->rank != 2 || got->rank < 2 || mask->dims[0] != got->dims[0] ||
        mask->dims[1] != got->dims[1])
        return 0;
    size_t n = 1;
    for (unsigned i = 2; i < got->rank; i++)
        n *= (size_t)got->dims[i];
    return n;
}

/* |got - want| without losing the low bits of wide integers. */
static double difference(enum lathe_dtype dtype, const void *got, const void *want, size_t i) {
    if (dtype == LATHE_I64 || dtype == LATHE_U64) {
        uint64_t a, b;
        memcpy(&a, (const char *)got + 8 * i, 8);
        memcpy(&b, (const char *)want + 8 * i, 8);
        bool below = dtype == LATHE_I64 ? (int64_t)a < (int64_t)b : a < b;
        return (double)(below ? b - a : a - b);
    }
    return fabs(lathe_element_f64(dtype, got, i) - lathe_element_f64(dtype, want, i));
}

struct sums {
    double gg, ww, gw;
    double worst; /* largest excess over the tolerance */
    size_t worst_at;
    bool any_worse;
};

/* One element; false when it is not finite and should be. */
static bool compare_element(const struct lathe_tensor_view *got, const struct lathe_data_tensor *want, size_t i,
                            const struct lathe_bounds *bounds, struct sums *sums, struct lathe_comparison *out) {
    double g = lathe_element_f64(got->dtype, got->data, i), w = lathe_element_f64(want->dtype, want->data, i);
    out->elements++;
    if (!isfinite(g) || !isfinite(w)) {
        if (g == w || (isnan(g) && isnan(w)))
            return true;
        out->max_error = INFINITY;
        return false;
    }
    double d = difference(got->dtype, got->data, want->data, i);
    if (d > out->max_error)
        out->max_error = d;
    sums->gg += g * g;
    sums->ww += w * w;
    sums->gw += g * w;
    double over = d - bounds->atol - bounds->rtol * fabs(w);
    if (bounds->has_tolerance && over > sums->worst) {
        sums->worst = over;
        sums->worst_at = i;
        sums->any_worse = true;
    }
    return true;
}

static void tolerance_failed(const struct place *p, const struct lathe_data_tensor *want,
                             const struct lathe_bounds *bounds, struct lathe_comparison *out) {
    char where[320];
    place_text(p, where, sizeof where);
    snprintf(out->why, sizeof out->why, "%s is %.9g, expected %.9g (off by %.3g, bound atol %.3g + rtol %.3g)", where,
             lathe_element_f64(want->dtype, p->got->data, p->index),
             lathe_element_f64(want->dtype, want->data, p->index),
             difference(want->dtype, p->got->data, want->data, p->index), bounds->atol, bounds->rtol);
    out->passed = false;
}

/* Index of the first largest of n elements. */
static size_t largest_of(enum lathe_dtype dtype, const void *data, size_t first, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (lathe_element_f64(dtype, data, first + i) > lathe_element_f64(dtype, data, first + best))
            best = i;
    return best;
}

static void count_flips(const struct lathe_tensor_view *got, const struct lathe_data_tensor *want,
                        const struct lathe_data_tensor *mask, size_t row, struct lathe_comparison *out) {
    size_t count = want->bytes / lathe_dtype_bytes(want->dtype);
    size_t n = got->rank ? (size_t)got->dims[got->rank - 1] : 0;
    if (n < 2 || !lathe_dtype_is_float(got->dtype) || (row && row % n))
        return;
    for (size_t at = 0; at < count; at += n) {
        if (row && lathe_element_f64(mask->dtype, mask->data, at / row) == 0)
            continue;
        out->rows++;
        out->flips += largest_of(got->dtype, got->data, at, n) != largest_of(want->dtype, want->data, at, n);
    }
}

void lathe_compare(const char *name, const struct lathe_tensor_view *got, const struct lathe_data_tensor *want,
                   const struct lathe_data_tensor *mask, const struct lathe_bounds *bounds,
                   struct lathe_comparison *out) {
    *out = (struct lathe_comparison){.passed = true, .cosine = 1};
    if (!same_shape(got, want)) {
        char a[160], b[160];
        lathe_shape_text(got->dtype, got->rank, got->dims, a, sizeof a);
        lathe_shape_text(want->dtype, want->rank, want->dims, b, sizeof b);
        snprintf(out->why, sizeof out->why, "%.200s is %s, expected %s", name, a, b);
        out->passed = false;
        return;
    }
    struct sums sums = {0};
    struct place place = {name, got, 0};
    size_t count = want->bytes / lathe_dtype_bytes(want->dtype), row = row_elements(got, mask);
    for (size_t i = 0; i < count; i++) {
        if (row && i % row == 0 && lathe_element_f64(mask->dtype, mask->data, i / row) == 0) {
            out->rows_left_out++;
            i += row - 1;
            continue;
        }
        if (!compare_element(got, want, i, bounds, &sums, out) && out->passed) {
            char where[320];
            place.index = i;
            place_text(&place, where, sizeof where);
            snprintf(out->why, sizeof out->why, "%s is %g, expected %g", where,
                     lathe_element_f64(got->dtype, got->data, i), lathe_element_f64(want->dtype, want->data, i));
            out->passed = false;
        }
    }
    count_flips(got, want, mask, row, out);
    double norms = sqrt(sums.gg) * sqrt(sums.ww);
    out->cosine = norms > 0 ? sums.gw / norms : sums.gg == sums.ww;
    place.index = sums.worst_at;
    if (out->passed && sums.any_worse)
        tolerance_failed(&place, want, bounds, out);
    if (out->passed && bounds->has_cosine && !(out->cosine >= bounds->min_cosine) &&
        !(out->max_error <= bounds->near && bounds->near > 0)) {
        snprintf(out->why, sizeof out->why, "%.200s: cosine %.6f, at least %.6f", name, out->cosine,
                 bounds->min_cosine);
        out->passed = false;
    }
}
