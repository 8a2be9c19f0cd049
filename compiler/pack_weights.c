/* The weights section: constants one after the other, products' weights in their packing. Read from the mapped model
 * and written in blocks of a few MiB, so that a compile never holds the weights; blocks are filled by several threads,
 * and the bytes do not depend on how many. */
#include "lower.h"

#include "kernel.h"
#include "threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK ((uint64_t)4 << 20)
#define PANEL 16

void lathe_weights_place(struct lathe_lowered *l) {
    struct lathe_weight *w = l->weights.data;
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->weights.count; i++) {
        w[i].offset = at;
        at += (w[i].bytes + LATHE_FORMAT_ALIGN - 1) / LATHE_FORMAT_ALIGN * LATHE_FORMAT_ALIGN;
    }
    l->weight_bytes = at;
}

/* ---- dropping pages of the model that have been read. They count as the compile's memory although they are only the
 * page cache's. Only mappings of files that nobody can have written to are dropped: their bytes are still in the file.
 */

struct file_ranges {
    struct {
        uintptr_t begin, end;
    } * list;
    uint32_t count;
};

static void find_file_ranges(struct file_ranges *r) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t capacity = 0;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long begin, end, inode;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s %*s %*s %lu", &begin, &end, mode, &inode) != 4 || inode == 0 || mode[0] != 'r' ||
            mode[1] != '-' || mode[2] != '-' || end - begin < 65536)
            continue;
        if (r->count == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            void *more = realloc(r->list, capacity * sizeof *r->list);
            if (!more)
                break;
            r->list = more;
        }
        r->list[r->count].begin = begin;
        r->list[r->count++].end = end;
    }
    if (f)
        fclose(f);
}

static void drop_pages(const struct file_ranges *r, const void *data, uint64_t bytes) {
    uintptr_t begin = ((uintptr_t)data + 4095) / 4096 * 4096, end = ((uintptr_t)data + bytes) / 4096 * 4096;
    if (bytes < 65536 || end <= begin)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        if (begin >= r->list[i].begin && end <= r->list[i].end)
            madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Columns [first, first + 16) of w into [K][16]. */
static void pack_panel(const struct lathe_weight *w, int64_t first, float *out) {
    int64_t cols = w->n - first < PANEL ? w->n - first : PANEL;
    if (cols < PANEL)
        memset(out, 0, (size_t)w->k * PANEL * sizeof *out);
    for (uint32_t i = 0; i < w->part_count; i++) {
        const struct lathe_weight_part *p = &w->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + cols < p->at + p->columns ? first + cols : p->at + p->columns;
        if (begin >= end)
            continue;
        if (!p->transposed) {
            for (int64_t k = 0; k < w->k; k++)
                lathe_weight_part_read(p, p->columns, k, begin - p->at, end - begin, out + k * PANEL + (begin - first));
            continue;
        }
        for (int64_t k = 0; k < w->k;
             k += 64) { /* a stretch of each column, while the panel's lines are in the cache */
            int64_t n = w->k - k < 64 ? w->k - k : 64;
            for (int64_t c = begin; c < end; c++) {
                float piece[64];
                lathe_weight_part_read(p, w->k, c - p->at, k, n, piece);
                for (int64_t t = 0; t < n; t++)
                    out[(k + t) * PANEL + (c - first)] = piece[t];
            }
        }
    }
}

/* The same into [K/4][16][4] of 8 bits. */
static void pack_panel_s8(const struct lathe_weight *w, int64_t first, int8_t *out) {
    int64_t cols = w->n - first < PANEL ? w->n - first : PANEL;
    if (cols < PANEL || w->k % 4)
        memset(out, 0, (size_t)((w->k + 3) / 4) * 4 * PANEL);
    for (uint32_t i = 0; i < w->part_count; i++) {
        const struct lathe_weight_part *p = &w->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + cols < p->at + p->columns ? first + cols : p->at + p->columns;
        const int8_t *from = p->data;
        for (int64_t c = begin; c < end; c++) {
            int8_t *to = out + (c - first) * 4;
            if (p->transposed) {
                from = (const int8_t *)p->data + (c - p->at) * w->k;
                for (int64_t k = 0; k < w->k; k += 4, to += 4 * PANEL)
                    memcpy(to, from + k, (size_t)(w->k - k < 4 ? w->k - k : 4));
                continue;
            }
            for (int64_t k = 0; k < w->k; k++)
                to[k / 4 * 4 * PANEL + k % 4] = from[k * p->columns + (c - p->at)];
        }
    }
}

/* The same into [K/8][16][4] bytes of two numbers + 8 each. */
static void pack_panel_s4(const struct lathe_weight *w, int64_t first, uint8_t *out) {
    int64_t cols = w->n - first < PANEL ? w->n - first : PANEL;
    memset(out, 0, (size_t)((w->k + 7) / 8) * 4 * PANEL);
    for (uint32_t i = 0; i < w->part_count; i++) {
        const struct lathe_weight_part *p = &w->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + cols < p->at + p->columns ? first + cols : p->at + p->columns;
        for (int64_t c = begin; c < end; c++)
            for (int64_t k = 0; k < w->k; k++) {
                int64_t at = p->transposed ? (c - p->at) * w->k + k : k * p->columns + (c - p->at);
                int number = ((const int8_t *)p->data)[at] + 8;
                uint8_t *to = out + k / 8 * 4 * PANEL + (c - first) * 4 + k % 4;
                *to = (uint8_t)(*to | (number & 15) << (k % 8 / 4 * 4));
            }
    }
}

/* `count` elements of a stored row as bf16 `stride` apart; what is bf16 keeps its bits. */
static void read_bf16(const struct lathe_weight_part *p, int64_t width, int64_t row, int64_t first, int64_t count,
                      uint16_t *out, int64_t stride) {
    float piece[64];
    if (p->dtype == LATHE_BF16) {
        const char *from = (const char *)p->data + (row * width + first) * 2;
        for (int64_t i = 0; i < count; i++)
            memcpy(&out[i * stride], from + i * 2, 2);
        return;
    }
    for (int64_t done = 0; done < count; done += 64) {
        int64_t n = count - done < 64 ? count - done : 64;
        lathe_weight_part_read(p, width, row, first + done, n, piece);
        for (int64_t i = 0; i < n; i++)
            out[(done + i) * stride] = lathe_bf16_weight(piece[i]);
    }
}

/* The same into [K/2][16][2] of bf16. */
static void pack_panel_bf16(const struct lathe_weight *w, int64_t first, uint16_t *out) {
    int64_t cols = w->n - first < PANEL ? w->n - first : PANEL;
    if (cols < PANEL || w->k % 2)
        memset(out, 0, (size_t)((w->k + 1) / 2) * 2 * PANEL * sizeof *out);
    for (uint32_t i = 0; i < w->part_count; i++) {
        const struct lathe_weight_part *p = &w->parts[i];
        int64_t begin = first > p->at ? first : p->at;
        int64_t end = first + cols < p->at + p->columns ? first + cols : p->at + p->columns;
        if (begin >= end)
            continue;
        if (!p->transposed) {
            for (int64_t k = 0; k < w->k; k++)
                read_bf16(p, p->columns, k, begin - p->at, end - begin,
                          out + k / 2 * 2 * PANEL + (begin - first) * 2 + k % 2, 2);
            continue;
        }
        for (int64_t k = 0; k < w->k; k += 64)
            for (int64_t c = begin; c < end; c++) {
                uint16_t piece[64], *to = out + k * PANEL + (c - first) * 2;
                int64_t n = w->k - k < 64 ? w->k - k : 64;
                read_bf16(p, w->k, c - p->at, k, n, piece, 1);
                for (int64_t t = 0; t < n; t++)
                    to[t / 2 * 2 * PANEL + t % 2] = piece[t];
            }
    }
}

/* Bytes of one panel of a packed weight. */
static uint64_t panel_bytes_of(const struct lathe_weight *w) {
    return lathe_packed_bytes(w->packing, (size_t)w->k, PANEL);
}

struct panel_job {
    const struct lathe_weight *weight;
    int64_t first, count;
    char *out;
};

static void pack_panels(void *user, const struct lathe_team *team) {
    const struct panel_job *job = user;
    int64_t begin, end;
    lathe_team_split(team, job->count, 1, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        char *out = job->out + (uint64_t)p * panel_bytes_of(job->weight);
        int64_t first = (job->first + p) * PANEL;
        if (job->weight->packing == LATHE_PACKING_S8_N16K4)
            pack_panel_s8(job->weight, first, (int8_t *)out);
        else if (job->weight->packing == LATHE_PACKING_S4_N16K8)
            pack_panel_s4(job->weight, first, (uint8_t *)out);
        else if (job->weight->packing == LATHE_PACKING_BF16_N16K2)
            pack_panel_bf16(job->weight, first, (uint16_t *)(void *)out);
        else
            pack_panel(job->weight, first, (float *)(void *)out);
    }
}

/* ---- writing */

struct writer {
    const struct lathe_weight_sink *sink;
    struct lathe_pool *pool;
    struct file_ranges ranges;
    char *block;
    uint64_t block_bytes;
    struct lathe_diag *diag;
};

static enum lathe_status write_rows(struct writer *w, const struct lathe_weight *weight) {
    for (uint64_t at = 0; at < weight->bytes; at += BLOCK) {
        uint64_t n = weight->bytes - at < BLOCK ? weight->bytes - at : BLOCK;
        const char *from = (const char *)weight->data + at;
        LATHE_TRY(w->sink->write(w->sink->user, from, (size_t)n, w->diag));
        drop_pages(&w->ranges, from, n);
    }
    return LATHE_OK;
}

static enum lathe_status reserve(struct writer *w, uint64_t bytes) {
    if (w->block_bytes >= bytes)
        return LATHE_OK;
    free(w->block);
    w->block_bytes = (bytes + 63) / 64 * 64;
    w->block = aligned_alloc(64, (size_t)w->block_bytes);
    if (w->block)
        return LATHE_OK;
    w->block_bytes = 0;
    return lathe_fail(w->diag, LATHE_MSG_NO_MEMORY, "packing: out of memory");
}

/* Rows of f32 from a narrower form. */
static enum lathe_status write_widened(struct writer *w, const struct lathe_weight *weight) {
    const struct lathe_weight_part *p = weight->parts;
    LATHE_TRY(reserve(w, BLOCK));
    float *out = (float *)(void *)w->block;
    for (int64_t row = 0; row < weight->k; row++)
        for (int64_t at = 0; at < weight->n; at += (int64_t)(BLOCK / sizeof *out)) {
            int64_t most = (int64_t)(BLOCK / sizeof *out), n = weight->n - at < most ? weight->n - at : most;
            lathe_weight_part_read(p, weight->n, row, at, n, out);
            LATHE_TRY(w->sink->write(w->sink->user, out, (size_t)n * sizeof *out, w->diag));
        }
    drop_pages(&w->ranges, p->data, weight->bytes / 4 * lathe_dtype_bytes(p->dtype));
    return LATHE_OK;
}

static enum lathe_status write_packed(struct writer *w, const struct lathe_weight *weight) {
    uint64_t panel_bytes = panel_bytes_of(weight);
    int64_t panels = (weight->n - 1) / PANEL + 1;
    int64_t at_once = (int64_t)(BLOCK / panel_bytes);
    at_once = at_once < 1 ? 1 : at_once;
    LATHE_TRY(reserve(w, (uint64_t)at_once * panel_bytes));
    for (int64_t first = 0; first < panels; first += at_once) {
        struct panel_job job = {weight, first, panels - first < at_once ? panels - first : at_once, w->block};
        lathe_pool_run(w->pool, pack_panels, &job);
        LATHE_TRY(w->sink->write(w->sink->user, w->block, (size_t)((uint64_t)job.count * panel_bytes), w->diag));
        /* transposed parts are used up panel by panel; others are read across, and dropped at the end */
        for (uint32_t i = 0; i < weight->part_count; i++) {
            const struct lathe_weight_part *p = &weight->parts[i];
            int64_t begin = first * PANEL > p->at ? first * PANEL : p->at;
            int64_t end =
                (first + job.count) * PANEL < p->at + p->columns ? (first + job.count) * PANEL : p->at + p->columns;
            uint64_t row = (uint64_t)weight->k * lathe_dtype_bytes(p->dtype);
            if (p->transposed && begin < end)
                drop_pages(&w->ranges, (const char *)p->data + (uint64_t)(begin - p->at) * row,
                           (uint64_t)(end - begin) * row);
        }
    }
    for (uint32_t i = 0; i < weight->part_count; i++)
        drop_pages(&w->ranges, weight->parts[i].data,
                   (uint64_t)weight->k * (uint64_t)weight->parts[i].columns *
                       lathe_dtype_bytes(weight->parts[i].dtype));
    return LATHE_OK;
}

enum lathe_status lathe_weights_write(struct lathe_lowered *l, int jobs, const struct lathe_weight_sink *sink,
                                      struct lathe_diag *diag) {
    static const uint8_t zeros[LATHE_FORMAT_ALIGN];
    struct writer w = {.sink = sink, .diag = diag};
    unsigned threads = jobs < 1 ? 0 : jobs > LATHE_MAX_THREADS ? LATHE_MAX_THREADS : (unsigned)jobs;
    LATHE_TRY(lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &w.pool, diag));
    find_file_ranges(&w.ranges);
    const struct lathe_weight *weights = l->weights.data;
    enum lathe_status status = LATHE_OK;
    for (uint32_t i = 0; status == LATHE_OK && i < l->weights.count; i++) {
        const struct lathe_weight *weight = &weights[i];
        status = weight->packing      ? write_packed(&w, weight)
                 : weight->part_count ? write_widened(&w, weight)
                                      : write_rows(&w, weight);
        uint64_t tail = weight->bytes % LATHE_FORMAT_ALIGN;
        if (status == LATHE_OK && tail)
            status = sink->write(sink->user, zeros, (size_t)(LATHE_FORMAT_ALIGN - tail), diag);
    }
    lathe_pool_free(&w.pool);
    free(w.ranges.list);
    free(w.block);
    return status;
}
