/* Memory of one graph or one pass: allocations are freed all at once. Zeroed, 16-byte aligned (64 from
 * lathe_arena_alloc_aligned). NULL when memory runs out or the size overflows. One thread at a time. */
#ifndef LATHE_ARENA_H
#define LATHE_ARENA_H

#include <stddef.h>

struct lathe_arena;

struct lathe_arena *lathe_arena_new(void);
void lathe_arena_free(struct lathe_arena **arena);
/* Frees all allocations, keeps the arena. */
void lathe_arena_reset(struct lathe_arena *arena);
void *lathe_arena_alloc(struct lathe_arena *arena, size_t bytes);
void *lathe_arena_alloc_array(struct lathe_arena *arena, size_t count, size_t element_bytes); /* checked product */
void *lathe_arena_copy(struct lathe_arena *arena, const void *data, size_t bytes);
char *lathe_arena_string(struct lathe_arena *arena, const char *text);
char *lathe_arena_format(struct lathe_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Bytes handed out since the last reset. */
size_t lathe_arena_used(const struct lathe_arena *arena);
#endif
