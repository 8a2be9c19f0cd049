/* The checksum of a section (FORMAT.md): XXH3-64 over chunks of 4 MiB, so that a long one can be computed by several
 * threads. */
#ifndef LATHE_SECTION_CHECKSUM_H
#define LATHE_SECTION_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t lathe_xxh3(const void *data, size_t size);
/* Of bytes in memory, by up to `threads` threads (fewer when it is short); the result does not depend on them. */
uint64_t lathe_section_checksum(const void *data, uint64_t size, unsigned threads);

/* Reads `size` bytes at `offset` of a file into memory, by up to `threads` threads, and sums them up on the way; with
 * checksum NULL it only reads. 0, or an errno, or -1 when the file ends before. */
int lathe_section_read(int fd, uint64_t offset, void *to, uint64_t size, unsigned threads, uint64_t *checksum);

/* The same for bytes that come in pieces. new returns NULL and finish leaves *out alone, returning -1, when memory runs
 * out; finish frees. */
struct lathe_checksum;
struct lathe_checksum *lathe_checksum_new(void);
void lathe_checksum_update(struct lathe_checksum *c, const void *data, size_t size);
int lathe_checksum_finish(struct lathe_checksum **c, uint64_t *out);
#endif
