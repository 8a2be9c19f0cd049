/* The best `k` buckets whose largest is length j: best(k, j) = min over i < j of best(k - 1, i) + rows in (i, j] *
 * work(j). Rows in a range times a growing work obey the quadrangle inequality, so the best i never falls as j grows,
 * and the halves left and right of a middle j need only look left and right of its i. */
#include "choose_buckets.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading */

static enum lathe_status bad_line(const char *path, unsigned long line, const char *text, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_LENGTHS,
                      "%s:%lu: expected a length from 1 to %d, or a length and a count, found '%.*s%s'", path, line,
                      LATHE_LENGTH_MAX, (int)strcspn(text, "\n") > 40 ? 40 : (int)strcspn(text, "\n"), text,
                      strcspn(text, "\n") > 40 ? "..." : "");
}

/* A whole number and the blanks behind it. */
static bool take_number(const char **at, uint64_t max, uint64_t *out) {
    const char *p = *at;
    uint64_t n = 0;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n) || n > max)
            return false;
    if (*p && !isspace((unsigned char)*p))
        return false;
    *at = p + strspn(p, " \t\r\n");
    *out = n;
    return true;
}

static enum lathe_status add_line(struct lathe_lengths *l, const char *path, unsigned long number, const char *text,
                                  size_t bytes, int64_t max_length, struct lathe_diag *diag) {
    const char *at = text + strspn(text, " \t\r\n");
    uint64_t length, count = 1;
    if (!*at && at == text + bytes)
        return LATHE_OK;
    if (!take_number(&at, LATHE_LENGTH_MAX, &length) || !length || (*at && !take_number(&at, INT64_MAX, &count)) ||
        at != text + bytes)
        return bad_line(path, number, text, diag);
    if (l->requests > INT64_MAX - count)
        return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW, "%s:%lu: the requests do not fit 63 bits", path, number);
    bool is_cut = max_length && (int64_t)length > max_length;
    length = is_cut ? (uint64_t)max_length : length;
    l->cut += is_cut ? count : 0;
    l->counts[length] += count;
    l->requests += count;
    l->longest = count && (int64_t)length > l->longest ? (int64_t)length : l->longest;
    return LATHE_OK;
}

static enum lathe_status read_lines(FILE *f, const char *path, int64_t max_length, struct lathe_lengths *out,
                                    struct lathe_diag *diag) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    unsigned long number = 0;
    enum lathe_status status = LATHE_OK;
    errno = 0;
    while (status == LATHE_OK && (n = getline(&text, &capacity, f)) >= 0)
        status = add_line(out, path, ++number, text, (size_t)n, max_length, diag);
    if (status == LATHE_OK && !feof(f))
        status = lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path, strerror(errno));
    free(text);
    if (status == LATHE_OK && !out->requests)
        status = lathe_fail(diag, LATHE_MSG_LENGTHS, "%s: holds no length", path);
    return status;
}

enum lathe_status lathe_lengths_read(const char *path, int64_t max_length, struct lathe_lengths *out,
                                     struct lathe_diag *diag) {
    bool standard = !strcmp(path, "-");
    const char *shown = standard ? "standard input" : path;
    *out = (struct lathe_lengths){.counts = calloc(LATHE_LENGTH_MAX + 1, sizeof *out->counts)};
    FILE *f = standard ? stdin : fopen(path, "rb");
    enum lathe_status status = !f ? lathe_fail(diag, LATHE_MSG_DATA_FILE, "%s: %s", path, strerror(errno))
                               : !out->counts
                                   ? lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory for its lengths", shown)
                                   : read_lines(f, shown, max_length, out, diag);
    if (f && !standard)
        fclose(f);
    if (status != LATHE_OK)
        lathe_lengths_free(out);
    return status;
}

void lathe_lengths_free(struct lathe_lengths *lengths) {
    free(lengths->counts);
    *lengths = (struct lathe_lengths){0};
}

/* ---- choosing */

uint64_t lathe_row_work(int64_t length, int64_t hidden) {
    return (uint64_t)length * (hidden ? 6 * (uint64_t)hidden + (uint64_t)length : 1);
}

/* Candidates are numbered from 1; 0 stands for no bucket. */
struct search {
    uint32_t count;
    int64_t *lengths;   /* [count + 1] rising */
    uint64_t *rows;     /* [count + 1] requests up to this length */
    uint64_t *work;     /* [count + 1] of a row of this length */
    uint64_t *best;     /* [count + 1] of the round before */
    uint64_t *next;     /* [count + 1] of this round */
    uint32_t *previous; /* [round][count + 1]: the bucket below */
};

static void search_free(struct search *s) {
    free(s->lengths);
    free(s->rows);
    free(s->work);
    free(s->best);
    free(s->next);
    free(s->previous);
}

/* One round for candidates first to last, whose buckets below are among low to high. */
static void solve(struct search *s, uint32_t *previous, uint32_t first, uint32_t last, uint32_t low, uint32_t high) {
    while (first <= last) {
        uint32_t middle = first + (last - first) / 2, at = low;
        uint64_t least = UINT64_MAX;
        for (uint32_t i = low; i <= high && i < middle; i++) {
            uint64_t w = s->best[i] + (s->rows[middle] - s->rows[i]) * s->work[middle];
            if (w < least) {
                least = w;
                at = i;
            }
        }
        s->next[middle] = least;
        previous[middle] = at;
        if (middle > first)
            solve(s, previous, first, middle - 1, low, at);
        first = middle + 1;
        low = at;
    }
}

static enum lathe_status search_new(const struct lathe_lengths *l, int64_t top, unsigned most, int64_t hidden,
                                    struct search *s, struct lathe_diag *diag) {
    uint32_t n = 0;
    *s = (struct search){0};
    for (int64_t length = 1; length <= top; length++)
        n += l->counts[length] || length == top;
    s->count = n;
    s->lengths = calloc((size_t)n + 1, sizeof *s->lengths);
    s->rows = calloc((size_t)n + 1, sizeof *s->rows);
    s->work = calloc((size_t)n + 1, sizeof *s->work);
    s->best = calloc((size_t)n + 1, sizeof *s->best);
    s->next = calloc((size_t)n + 1, sizeof *s->next);
    s->previous = calloc(((size_t)n + 1) * most, sizeof *s->previous);
    if (!s->lengths || !s->rows || !s->work || !s->best || !s->next || !s->previous)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for %u lengths", n);
    uint32_t i = 0;
    for (int64_t length = 1; length <= top; length++) {
        if (!l->counts[length] && length != top)
            continue;
        i++;
        s->lengths[i] = length;
        s->rows[i] = s->rows[i - 1] + l->counts[length];
        s->work[i] = lathe_row_work(length, hidden);
    }
    return LATHE_OK;
}

/* The first bucket alone holds all rows up to it; each round allows one more below. */
static void run_rounds(struct search *s, unsigned rounds) {
    for (uint32_t j = 1; j <= s->count; j++)
        s->best[j] = s->rows[j] * s->work[j];
    for (unsigned k = 1; k < rounds; k++) {
        uint32_t *previous = s->previous + (size_t)k * (s->count + 1);
        /* Fewer candidates than buckets up to here: the round before stays best. */
        for (uint32_t j = 0; j <= k && j <= s->count; j++)
            s->next[j] = s->best[j];
        solve(s, previous, k + 1, s->count, k, s->count);
        uint64_t *swap = s->best;
        s->best = s->next;
        s->next = swap;
    }
}

static void read_choice(const struct search *s, const struct lathe_lengths *l, unsigned count,
                        struct lathe_bucket_share *buckets) {
    uint32_t j = s->count;
    for (unsigned k = count; k-- > 0;) {
        uint32_t below = k ? s->previous[(size_t)k * (s->count + 1) + j] : 0;
        buckets[k] =
            (struct lathe_bucket_share){.length = s->lengths[j], .requests = s->rows[j] - s->rows[below], .tokens = 0};
        for (uint32_t i = below + 1; i <= j; i++)
            buckets[k].tokens += l->counts[s->lengths[i]] * (uint64_t)s->lengths[i];
        j = below;
    }
}

enum lathe_status lathe_buckets_choose(const struct lathe_lengths *lengths, unsigned most, int64_t top, int64_t hidden,
                                       struct lathe_bucket_share *buckets, unsigned *count, uint64_t *work,
                                       uint64_t *one, struct lathe_diag *diag) {
    struct search s;
    top = top ? top : lengths->longest;
    if (__builtin_mul_overflow(lengths->requests, lathe_row_work(top, hidden), one) || *one > INT64_MAX)
        return lathe_fail(diag, LATHE_MSG_SIZE_OVERFLOW,
                          "%llu requests of up to %lld tokens: the work does not fit 63 bits",
                          (unsigned long long)lengths->requests, (long long)top);
    enum lathe_status status = search_new(lengths, top, most, hidden, &s, diag);
    if (status == LATHE_OK) {
        *count = s.count < most ? s.count : most;
        run_rounds(&s, *count);
        *work = s.best[s.count];
        read_choice(&s, lengths, *count, buckets);
    }
    search_free(&s);
    return status;
}
