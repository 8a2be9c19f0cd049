/* Weights of 2 to 8 bits as com.microsoft operators store them: element i of a run at bits [i * bits, (i + 1) * bits)
 * of its bytes, lowest bits first. */
#ifndef LATHE_NBITS_H
#define LATHE_NBITS_H

#include <stdint.h>

/* Element i; `bytes` are those of the run, of which no byte past the element is read. */
static inline unsigned lathe_nbits_at(const uint8_t *bytes, int64_t i, unsigned bits) {
    int64_t at = i * bits;
    unsigned shift = (unsigned)(at & 7), v = bytes[at >> 3];
    if (shift + bits > 8)
        v |= (unsigned)bytes[(at >> 3) + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}
/* Bytes of n elements. */
static inline int64_t lathe_nbits_bytes(int64_t n, unsigned bits) {
    return (n * bits + 7) / 8;
}
#endif
