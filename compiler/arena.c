#include "arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 16 * 1024, LARGEST_CHUNK = 1024 * 1024, ALIGNMENT = 16 };

struct chunk {
    struct chunk *next;
    size_t size, used; /* of the bytes that follow the header */
};

/* The header keeps the bytes behind it aligned. */
_Static_assert(sizeof(struct chunk) <= 32, "chunk header");
enum { HEADER = 32 };

struct lathe_arena {
    struct chunk *chunks; /* the newest first */
    size_t next_size, used;
};

struct lathe_arena *lathe_arena_new(void) {
    struct lathe_arena *arena = calloc(1, sizeof *arena);
    if (arena)
        arena->next_size = FIRST_CHUNK;
    return arena;
}

void lathe_arena_reset(struct lathe_arena *arena) {
    if (!arena)
        return;
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *arena = (struct lathe_arena){.next_size = FIRST_CHUNK};
}

void lathe_arena_free(struct lathe_arena **arena) {
    if (!arena || !*arena)
        return;
    lathe_arena_reset(*arena);
    free(*arena);
    *arena = NULL;
}

static struct chunk *add_chunk(struct lathe_arena *arena, size_t bytes) {
    size_t size = arena->next_size > bytes ? arena->next_size : bytes;
    if (size > SIZE_MAX - HEADER)
        return NULL;
    struct chunk *c = calloc(1, HEADER + size);
    if (!c)
        return NULL;
    c->size = size;
    /* A large request gets a chunk of its own behind the current one, whose rest stays in use. */
    if (arena->chunks && bytes > arena->next_size) {
        c->next = arena->chunks->next;
        arena->chunks->next = c;
    } else {
        c->next = arena->chunks;
        arena->chunks = c;
        if (arena->next_size < LARGEST_CHUNK)
            arena->next_size *= 2;
    }
    return c;
}

void *lathe_arena_alloc(struct lathe_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - ALIGNMENT)
        return NULL;
    size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    struct chunk *c = arena->chunks;
    if (!c || c->size - c->used < rounded) {
        c = add_chunk(arena, rounded);
        if (!c)
            return NULL;
    }
    void *result = (char *)c + HEADER + c->used;
    c->used += rounded;
    arena->used += rounded;
    return result;
}

void *lathe_arena_alloc_array(struct lathe_arena *arena, size_t count, size_t element_bytes) {
    size_t bytes;
    if (__builtin_mul_overflow(count, element_bytes, &bytes))
        return NULL;
    return lathe_arena_alloc(arena, bytes);
}

void *lathe_arena_copy(struct lathe_arena *arena, const void *data, size_t bytes) {
    void *result = lathe_arena_alloc(arena, bytes);
    if (result && bytes)
        memcpy(result, data, bytes);
    return result;
}

char *lathe_arena_string(struct lathe_arena *arena, const char *text) {
    return lathe_arena_copy(arena, text, strlen(text) + 1);
}

char *lathe_arena_format(struct lathe_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *result = length < 0 ? NULL : lathe_arena_alloc(arena, (size_t)length + 1);
    if (!result)
        return NULL;
    va_start(args, format);
    vsnprintf(result, (size_t)length + 1, format, args);
    va_end(args);
    return result;
}

size_t lathe_arena_used(const struct lathe_arena *arena) {
    return arena->used;
}
