#include "tar_gz.h"
#include "tar_gz_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define BUFFER        (256 << 10)
#define DEFLATE_RATIO 1032 /* no byte of a deflate stream stands for more (zlib's technical notes) */

struct lathe_tar_reader {
    const char *path;
    int fd;
    z_stream z;
    bool begun, ended; /* `ended`: inflate has seen its end */
    uint32_t crc;
    uint64_t total;     /* bytes of the tar so far */
    uint64_t most;      /* that the file can hold */
    uint64_t left, pad; /* of the file at hand, and behind it */
    uint8_t in[BUFFER];
};

static enum lathe_status damaged(const struct lathe_tar_reader *r, const char *why, struct lathe_diag *diag) {
    return lathe_fail(diag, LATHE_MSG_PACKAGE, "%s: %s", r->path, why);
}

bool lathe_is_gzip(const char *path) {
    struct stat st;
    uint8_t head[2] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool is = !fstat(fd, &st) && S_ISREG(st.st_mode) && read(fd, head, 2) == 2 && !memcmp(head, lathe_gzip_head, 2);
    close(fd);
    return is;
}

/* More of the file into `in`; avail_in stays 0 at its end. */
static enum lathe_status fill(struct lathe_tar_reader *r, struct lathe_diag *diag) {
    ssize_t n;
    do
        n = read(r->fd, r->in, BUFFER);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return damaged(r, strerror(errno), diag);
    r->z.next_in = r->in;
    r->z.avail_in = (uInt)n;
    return LATHE_OK;
}

/* The next bytes of the file as they are. */
static enum lathe_status raw(struct lathe_tar_reader *r, uint8_t *data, size_t bytes, struct lathe_diag *diag) {
    while (bytes) {
        if (!r->z.avail_in)
            LATHE_TRY(fill(r, diag));
        if (!r->z.avail_in)
            return damaged(r, "ends too early", diag);
        *data++ = *r->z.next_in++;
        r->z.avail_in--;
        bytes--;
    }
    return LATHE_OK;
}

/* The next bytes of the tar; *got is less only when the compressed stream has ended. */
static enum lathe_status inflate_some(struct lathe_tar_reader *r, uint8_t *data, size_t bytes, size_t *got,
                                      struct lathe_diag *diag) {
    *got = 0;
    while (*got < bytes && !r->ended) {
        uInt want = bytes - *got < (1u << 30) ? (uInt)(bytes - *got) : 1u << 30;
        if (!r->z.avail_in)
            LATHE_TRY(fill(r, diag));
        if (!r->z.avail_in)
            return damaged(r, "ends too early", diag);
        r->z.next_out = data + *got;
        r->z.avail_out = want;
        int result = inflate(&r->z, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", r->path);
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
            return damaged(r, "its compressed data are damaged", diag);
        uInt n = want - r->z.avail_out;
        if (n)
            r->crc = (uint32_t)crc32(r->crc, data + *got, n);
        *got += n;
        r->ended = result == Z_STREAM_END;
    }
    r->total += *got;
    return LATHE_OK;
}

static enum lathe_status whole(struct lathe_tar_reader *r, void *data, size_t bytes, struct lathe_diag *diag) {
    size_t got;
    LATHE_TRY(inflate_some(r, data, bytes, &got, diag));
    return got == bytes ? LATHE_OK : damaged(r, "the archive ends too early", diag);
}

enum lathe_status lathe_tar_open(const char *path, struct lathe_tar_reader **out, struct lathe_diag *diag) {
    struct lathe_tar_reader *r = calloc(1, sizeof *r);
    struct stat st;
    uint8_t head[sizeof lathe_gzip_head];
    *out = r;
    if (!r)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", path);
    r->path = path;
    r->crc = (uint32_t)crc32(0, NULL, 0);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd < 0 || fstat(r->fd, &st))
        return damaged(r, strerror(errno), diag);
    if (!S_ISREG(st.st_mode))
        return damaged(r, "is no regular file", diag);
    r->most = (uint64_t)st.st_size <= UINT64_MAX / DEFLATE_RATIO ? (uint64_t)st.st_size * DEFLATE_RATIO : UINT64_MAX;
    LATHE_TRY(raw(r, head, sizeof head, diag));
    if (memcmp(head, lathe_gzip_head, sizeof head))
        return damaged(r, "its gzip header is not one that lathe package writes", diag);
    if (inflateInit2(&r->z, -MAX_WBITS) != Z_OK)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", path);
    r->begun = true;
    return LATHE_OK;
}

static bool is_zero(const void *data, size_t bytes) {
    const uint8_t *p = data;
    while (bytes && !*p)
        p++, bytes--;
    return !bytes;
}

static bool octal(const char *field, unsigned digits, uint64_t *out) {
    *out = 0;
    for (unsigned i = 0; i < digits; i++) {
        if (field[i] < '0' || field[i] > '7')
            return false;
        *out = *out << 3 | (uint64_t)(field[i] - '0');
    }
    return !field[digits];
}

static bool size_of(const struct lathe_tar_header *h, uint64_t *out) {
    if ((uint8_t)h->size[0] != 0x80)
        return octal(h->size, 11, out);
    *out = 0;
    for (unsigned i = 4; i < 12; i++)
        *out = *out << 8 | (uint8_t)h->size[i];
    return true;
}

/* Behind the last file: another block of zeros, the end of the compressed data, checksum, size, and no byte more. */
static enum lathe_status check_end(struct lathe_tar_reader *r, struct lathe_diag *diag) {
    uint8_t block[LATHE_TAR_BLOCK], tail[8];
    uint32_t crc = 0, size = 0;
    size_t got;
    LATHE_TRY(whole(r, block, sizeof block, diag));
    if (!is_zero(block, sizeof block))
        return damaged(r, "its end is damaged", diag);
    LATHE_TRY(inflate_some(r, block, 1, &got, diag));
    if (got)
        return damaged(r, "something follows the end of the archive", diag);
    LATHE_TRY(raw(r, tail, sizeof tail, diag));
    for (unsigned i = 4; i-- > 0;) {
        crc = crc << 8 | tail[i];
        size = size << 8 | tail[4 + i];
    }
    if (crc != r->crc || size != (uint32_t)r->total)
        return damaged(r, "its checksum is wrong", diag);
    if (!r->z.avail_in)
        LATHE_TRY(fill(r, diag));
    return r->z.avail_in ? damaged(r, "something follows its end", diag) : LATHE_OK;
}

enum lathe_status lathe_tar_next(struct lathe_tar_reader *r, bool *found, char name[LATHE_TAR_NAME], uint64_t *bytes,
                                 struct lathe_diag *diag) {
    struct lathe_tar_header h, want;
    uint8_t padding[LATHE_TAR_BLOCK];
    if (r->left)
        return lathe_fail(diag, LATHE_MSG_BUG, "%s: %llu bytes of a file were not read", r->path,
                          (unsigned long long)r->left);
    LATHE_TRY(whole(r, padding, (size_t)r->pad, diag));
    if (!is_zero(padding, (size_t)r->pad))
        return damaged(r, "the padding of a file is not zero", diag);
    r->pad = 0;
    LATHE_TRY(whole(r, &h, sizeof h, diag));
    *found = !is_zero(&h, sizeof h);
    if (!*found)
        return check_end(r, diag);
    if (h.name[sizeof h.name - 1] || !size_of(&h, bytes))
        return damaged(r, "a header of its tar archive is damaged", diag);
    lathe_tar_header_make(&want, h.name, *bytes);
    if (memcmp(&h, &want, sizeof h))
        return damaged(r, "a header of its tar archive is not one that lathe package writes", diag);
    if (*bytes > r->most)
        return damaged(r, "a file of the archive is larger than the package can hold", diag);
    memcpy(name, h.name, LATHE_TAR_NAME);
    r->left = *bytes;
    r->pad = -*bytes % LATHE_TAR_BLOCK;
    return LATHE_OK;
}

enum lathe_status lathe_tar_read(struct lathe_tar_reader *r, void *data, size_t bytes, struct lathe_diag *diag) {
    if (bytes > r->left)
        return lathe_fail(diag, LATHE_MSG_BUG, "%s: a file of the archive is shorter than what is read", r->path);
    r->left -= bytes;
    return whole(r, data, bytes, diag);
}

void lathe_tar_close(struct lathe_tar_reader **r) {
    if (!*r)
        return;
    if ((*r)->begun)
        inflateEnd(&(*r)->z);
    if ((*r)->fd >= 0)
        close((*r)->fd);
    free(*r);
    *r = NULL;
}
