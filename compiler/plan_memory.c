/* Offsets in the arena at the maxima. Buffers are placed one after the other, each into the smallest gap between the
 * buffers alive at the same time that are placed already; several orders are tried and the best layout kept. */
#include "lower.h"

#include <stdlib.h>

static uint64_t aligned(uint64_t bytes) {
    return (bytes + LATHE_FORMAT_ALIGN - 1) / LATHE_FORMAT_ALIGN * LATHE_FORMAT_ALIGN;
}

enum order { BY_BYTES, BY_AREA, BY_LENGTH, BY_START, ORDERS };

struct item {
    uint32_t index; /* of the buffer */
    uint32_t first, last;
    uint64_t bytes;
    double key;
};

static int by_key(const void *pa, const void *pb) {
    const struct item *a = pa, *b = pb;
    if (a->key != b->key)
        return a->key > b->key ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

struct placed {
    uint64_t begin, end;
    uint32_t first, last;
};

/* Places items in their order; `placed` is kept sorted by begin. Returns the peak. */
static uint64_t place(const struct item *items, uint32_t count, struct placed *placed, uint64_t *offsets) {
    uint64_t peak = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t free_from = 0, best = UINT64_MAX, best_gap = UINT64_MAX;
        for (uint32_t k = 0; k < i; k++) {
            if (placed[k].first > items[i].last || placed[k].last < items[i].first)
                continue;
            if (placed[k].begin > free_from) {
                uint64_t gap = placed[k].begin - free_from;
                if (gap >= items[i].bytes && gap < best_gap) {
                    best_gap = gap;
                    best = free_from;
                }
            }
            if (placed[k].end > free_from)
                free_from = placed[k].end;
        }
        if (best == UINT64_MAX)
            best = free_from;
        offsets[items[i].index] = best;
        uint32_t at = i;
        for (; at > 0 && placed[at - 1].begin > best; at--)
            placed[at] = placed[at - 1];
        placed[at] = (struct placed){best, best + items[i].bytes, items[i].first, items[i].last};
        if (best + items[i].bytes > peak)
            peak = best + items[i].bytes;
    }
    return peak;
}

/* The largest sum of bytes alive at one step: no layout can be smaller. */
static uint64_t most_alive(const struct lathe_buffer *b, uint32_t count, uint32_t steps, bool *ok) {
    int64_t *change = calloc((size_t)steps + 3, sizeof *change);
    *ok = change != NULL;
    if (!change)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        change[b[i].first] += (int64_t)aligned(b[i].bytes);
        change[b[i].last + 1] -= (int64_t)aligned(b[i].bytes);
    }
    int64_t alive = 0, most = 0;
    for (uint32_t i = 0; i <= steps + 1; i++) {
        alive += change[i];
        most = alive > most ? alive : most;
    }
    free(change);
    return (uint64_t)most;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

enum lathe_status lathe_plan_memory(struct lathe_lowered *l) {
    struct lathe_buffer *b = l->buffers.data;
    uint32_t count = l->buffers.count;
    bool ok;
    l->arena_bytes = 0;
    l->alive_bytes = most_alive(b, count, l->steps.count, &ok);
    struct item *items = malloc(((size_t)count + 1) * sizeof *items);
    struct placed *placed = malloc(((size_t)count + 1) * sizeof *placed);
    uint64_t *offsets = malloc(((size_t)count + 1) * sizeof *offsets);
    ok = ok && items && placed && offsets;
    uint64_t best = UINT64_MAX;
    /* after the four plain orders, largest first with sizes shaken a little, while there is something to gain */
    unsigned rounds = count > 3000 ? ORDERS : 64;
    for (unsigned round = 0; ok && count > 0 && round < rounds; round++) {
        for (uint32_t i = 0; i < count; i++) {
            double bytes = (double)aligned(b[i].bytes), length = (double)(b[i].last - b[i].first) + 1;
            double shake = 0.6 + 0.8 * (double)(mix(i * UINT64_C(2654435761) + round) >> 11) * 0x1p-53;
            items[i] = (struct item){i, b[i].first, b[i].last, aligned(b[i].bytes),
                                     round == BY_BYTES    ? bytes
                                     : round == BY_AREA   ? bytes * length
                                     : round == BY_LENGTH ? length
                                     : round == BY_START  ? -(double)b[i].first
                                     : round % 2          ? bytes * shake
                                                          : bytes * length * shake};
        }
        qsort(items, count, sizeof *items, by_key);
        uint64_t peak = place(items, count, placed, offsets);
        if (peak < best) {
            best = peak;
            for (uint32_t i = 0; i < count; i++)
                b[i].offset = offsets[i];
        }
        if (best == l->alive_bytes)
            break;
    }
    free(items);
    free(placed);
    free(offsets);
    if (!ok)
        return lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "memory plan: out of memory");
    l->arena_bytes = count ? best : 0;
    return LATHE_OK;
}
