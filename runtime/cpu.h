/* The CPU at hand. Bits are rows of targets/cpu_bits.def. */
#ifndef LATHE_CPU_H
#define LATHE_CPU_H

#include "lathe_status.h"

#include <stdint.h>

/* The bits that CPUID reports and the operating system enables (XCR0; for tiles it is asked, which allows the process
 * to use them from then on). Cheap enough to call anywhere. */
uint64_t lathe_cpu_bits(void);
/* "0": plain C; a level name "sse4.2", "avx2", "avx512", "avx512_vnni", ...: that bit and all before it in its row's
 * group; a number 0x..: that mask; "all". LATHE_USAGE naming the known words. */
LATHE_NODISCARD enum lathe_status lathe_cpu_mask_parse(const char *text, uint64_t *mask, struct lathe_diag *diag);
struct lathe_cpu_caches {
    uint64_t l1, l2, l3; /* bytes; 0 unknown */
};
void lathe_cpu_caches(struct lathe_cpu_caches *out);
/* Brand string, "" unknown. */
void lathe_cpu_brand(char out[49]);
#endif
