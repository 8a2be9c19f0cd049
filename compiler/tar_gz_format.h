/* Bytes that writer and reader of tar_gz.h agree on: POSIX ustar (IEEE 1003.1), RFC 1952. */
#ifndef LATHE_TAR_GZ_FORMAT_H
#define LATHE_TAR_GZ_FORMAT_H

#include <stdint.h>
#include <string.h>

#define LATHE_TAR_BLOCK 512
/* gzip: deflate, no flags, time 0, no hint about the level, Unix */
static const uint8_t lathe_gzip_head[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3};

struct lathe_tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[8]; /* "ustar", a zero byte, "00" */
    char owner[32], group[32], major[8], minor[8], prefix[155], padding[12];
};
_Static_assert(sizeof(struct lathe_tar_header) == LATHE_TAR_BLOCK, "a tar header is one block");

/* `digits` octal digits and a zero byte. */
static inline void lathe_tar_octal(char *field, unsigned digits, uint64_t value) {
    field[digits] = 0;
    while (digits-- > 0) {
        field[digits] = (char)('0' + (value & 7));
        value >>= 3;
    }
}

/* The header of a file; sizes of 8 GiB and more as a big-endian number behind the byte 0x80, as GNU and BSD tar do. */
static inline void lathe_tar_header_make(struct lathe_tar_header *h, const char *name, uint64_t bytes) {
    memset(h, 0, sizeof *h);
    memcpy(h->name, name, strnlen(name, sizeof h->name - 1));
    lathe_tar_octal(h->mode, 7, 0644);
    lathe_tar_octal(h->uid, 7, 0);
    lathe_tar_octal(h->gid, 7, 0);
    lathe_tar_octal(h->mtime, 11, 0);
    if (bytes >> 33) {
        h->size[0] = (char)0x80;
        for (unsigned i = 0; i < 8; i++)
            h->size[11 - i] = (char)(bytes >> 8 * i & 0xff);
    } else {
        lathe_tar_octal(h->size, 11, bytes);
    }
    h->type = '0';
    memcpy(h->magic,
           "ustar\0"
           "00",
           8);
    memset(h->checksum, ' ', sizeof h->checksum);
    uint64_t sum = 0;
    for (unsigned i = 0; i < sizeof *h; i++)
        sum += ((const uint8_t *)h)[i];
    lathe_tar_octal(h->checksum, 6, sum);
    h->checksum[7] = ' ';
}
#endif
