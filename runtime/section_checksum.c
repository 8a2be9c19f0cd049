/* Checksums of sections; the only file that sees xxhash. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lathe_format.h"
#include "section_checksum.h"
#include "threads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((uint64_t)256 << 10) /* read at once, and still in the cache when it is summed up */

uint64_t lathe_xxh3(const void *data, size_t size) {
    return XXH3_64bits(data, size);
}

struct chunks {
    const uint8_t *data;
    uint64_t size;
    uint64_t *sums;
    int64_t count;
};

static void hash_chunks(void *user, const struct lathe_team *team) {
    struct chunks *c = user;
    int64_t begin, end;
    lathe_team_split(team, c->count, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        uint64_t at = (uint64_t)i * LATHE_FORMAT_CHUNK;
        uint64_t left = c->size - at;
        c->sums[i] = XXH3_64bits(c->data + at, left < LATHE_FORMAT_CHUNK ? left : LATHE_FORMAT_CHUNK);
    }
}

uint64_t lathe_section_checksum(const void *data, uint64_t size, unsigned threads) {
    if (size <= LATHE_FORMAT_CHUNK)
        return XXH3_64bits(data, size);
    int64_t count = (int64_t)((size - 1) / LATHE_FORMAT_CHUNK + 1);
    uint64_t *sums = malloc((size_t)count * sizeof *sums);
    if (!sums) { /* one after the other, through the streaming form that needs no list */
        XXH3_state_t outer;
        XXH3_64bits_reset(&outer);
        for (int64_t i = 0; i < count; i++) {
            uint64_t sum = 0;
            struct chunks one = {(const uint8_t *)data + (uint64_t)i * LATHE_FORMAT_CHUNK,
                                 size - (uint64_t)i * LATHE_FORMAT_CHUNK, &sum, 1};
            hash_chunks(&one, &(struct lathe_team){0, 1, NULL});
            XXH3_64bits_update(&outer, &sum, sizeof sum);
        }
        return XXH3_64bits_digest(&outer);
    }
    struct chunks all = {data, size, sums, count};
    struct lathe_pool *pool = NULL;
    if (threads > count / 4)
        threads = (unsigned)(count / 4);
    if (threads > 1 && lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &pool, NULL) == LATHE_OK)
        lathe_pool_run(pool, hash_chunks, &all);
    else
        hash_chunks(&all, &(struct lathe_team){0, 1, NULL});
    lathe_pool_free(&pool);
    uint64_t sum = XXH3_64bits(sums, (size_t)count * sizeof *sums);
    free(sums);
    return sum;
}

/* ---- reading */

struct reading {
    int fd;
    uint64_t offset, size;
    uint8_t *to;
    uint64_t *sums; /* NULL: not asked for */
    int64_t count;
    atomic_int_fast64_t next;
    atomic_int error; /* an errno; -1: the file ends early */
};

static void fail_reading(struct reading *r, int error) {
    int none = 0;
    atomic_compare_exchange_strong(&r->error, &none, error);
}

static bool read_chunk(struct reading *r, uint64_t at, uint64_t size, XXH3_state_t *state) {
    for (uint64_t end = at + size; at < end;) {
        ssize_t n = pread(r->fd, r->to + at, end - at < PIECE ? end - at : PIECE, (off_t)(r->offset + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail_reading(r, n < 0 ? errno : -1);
            return false;
        }
        if (state)
            XXH3_64bits_update(state, r->to + at, (size_t)n);
        at += (uint64_t)n;
    }
    return true;
}

/* Whoever is free takes the next chunk: first touches are slow here and there. */
static void read_chunks(void *user, const struct lathe_team *team) {
    struct reading *r = user;
    XXH3_state_t state;
    (void)team;
    for (;;) {
        int64_t i = atomic_fetch_add(&r->next, 1);
        if (i >= r->count || atomic_load_explicit(&r->error, memory_order_relaxed))
            return;
        uint64_t at = (uint64_t)i * LATHE_FORMAT_CHUNK, left = r->size - at;
        if (r->sums)
            XXH3_64bits_reset(&state);
        if (!read_chunk(r, at, left < LATHE_FORMAT_CHUNK ? left : LATHE_FORMAT_CHUNK, r->sums ? &state : NULL))
            return;
        if (r->sums)
            r->sums[i] = XXH3_64bits_digest(&state);
    }
}

int lathe_section_read(int fd, uint64_t offset, void *to, uint64_t size, unsigned threads, uint64_t *checksum) {
    struct reading r = {.fd = fd, .offset = offset, .size = size, .to = to};
    r.count = size ? (int64_t)((size - 1) / LATHE_FORMAT_CHUNK + 1) : 0;
    if (checksum && r.count > 0 && !(r.sums = malloc((size_t)r.count * sizeof *r.sums)))
        return ENOMEM;
    struct lathe_pool *pool = NULL;
    if (threads > r.count)
        threads = (unsigned)r.count;
    if (threads > 1 && lathe_pool_new(&(struct lathe_pool_options){.threads = threads}, &pool, NULL) == LATHE_OK)
        lathe_pool_run(pool, read_chunks, &r);
    else
        read_chunks(&r, &(struct lathe_team){0, 1, NULL});
    lathe_pool_free(&pool);
    int error = atomic_load(&r.error);
    if (checksum && !error)
        *checksum = r.count == 0   ? XXH3_64bits(to, 0)
                    : r.count == 1 ? r.sums[0]
                                   : XXH3_64bits(r.sums, (size_t)r.count * sizeof *r.sums);
    free(r.sums);
    return error;
}

/* ---- in pieces */

struct lathe_checksum {
    XXH3_state_t chunk, outer;
    uint64_t in_chunk, chunks; /* bytes in the open chunk; chunks closed */
};

struct lathe_checksum *lathe_checksum_new(void) {
    struct lathe_checksum *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    if (!c)
        return NULL;
    XXH3_64bits_reset(&c->chunk);
    XXH3_64bits_reset(&c->outer);
    c->in_chunk = c->chunks = 0;
    return c;
}

static void close_chunk(struct lathe_checksum *c) {
    uint64_t sum = XXH3_64bits_digest(&c->chunk);
    XXH3_64bits_update(&c->outer, &sum, sizeof sum);
    XXH3_64bits_reset(&c->chunk);
    c->in_chunk = 0;
    c->chunks++;
}

void lathe_checksum_update(struct lathe_checksum *c, const void *data, size_t size) {
    const uint8_t *p = data;
    while (size > 0) {
        /* a full chunk is closed only when more follows: a section of exactly one chunk has the plain checksum */
        if (c->in_chunk == LATHE_FORMAT_CHUNK)
            close_chunk(c);
        uint64_t room = LATHE_FORMAT_CHUNK - c->in_chunk;
        size_t n = size < room ? size : (size_t)room;
        XXH3_64bits_update(&c->chunk, p, n);
        c->in_chunk += n;
        p += n;
        size -= n;
    }
}

int lathe_checksum_finish(struct lathe_checksum **pointer, uint64_t *out) {
    struct lathe_checksum *c = *pointer;
    *pointer = NULL;
    if (!c)
        return -1;
    if (c->chunks == 0) {
        *out = XXH3_64bits_digest(&c->chunk);
    } else {
        close_chunk(c);
        *out = XXH3_64bits_digest(&c->outer);
    }
    free(c);
    return 0;
}
