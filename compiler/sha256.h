/* SHA-256 (FIPS 180-4), for the identity of the source model. */
#ifndef LATHE_SHA256_H
#define LATHE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lathe_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[64];
    bool plain; /* set after init: plain C also where the CPU has instructions for it */
};

void lathe_sha256_init(struct lathe_sha256 *h);
void lathe_sha256_add(struct lathe_sha256 *h, const void *data, size_t bytes);
/* 64 hex digits and a NUL. The state is used up. */
void lathe_sha256_hex(struct lathe_sha256 *h, char text[65]);
#endif
