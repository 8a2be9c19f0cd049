#include "tar_gz.h"
#include "tar_gz_format.h"

#include <stdlib.h>
#include <zlib.h>

#define BUFFER (256 << 10)

struct lathe_tar_writer {
    struct lathe_artifact_file *file;
    z_stream z;
    bool begun;
    uint32_t crc;
    uint64_t total; /* bytes of the tar */
    uint8_t out[BUFFER];
};

static enum lathe_status deflate_all(struct lathe_tar_writer *w, const void *data, uint64_t bytes, int flush,
                                     struct lathe_diag *diag) {
    const uint8_t *at = data;
    do {
        uInt now = bytes < (1u << 30) ? (uInt)bytes : 1u << 30;
        bool last = now == bytes;
        w->z.next_in = (Bytef *)(uintptr_t)at;
        w->z.avail_in = now;
        if (now)
            w->crc = (uint32_t)crc32(w->crc, at, now);
        do {
            w->z.next_out = w->out;
            w->z.avail_out = BUFFER;
            if (deflate(&w->z, last ? flush : Z_NO_FLUSH) == Z_STREAM_ERROR)
                return lathe_fail(diag, LATHE_MSG_BUG, "zlib: deflate failed");
            LATHE_TRY(lathe_artifact_file_append(w->file, w->out, BUFFER - w->z.avail_out, diag));
        } while (!w->z.avail_out);
        at += now;
        bytes -= now;
        w->total += now;
    } while (bytes);
    return LATHE_OK;
}

enum lathe_status lathe_tar_begin(struct lathe_artifact_file *file, int level, struct lathe_tar_writer **out,
                                  struct lathe_diag *diag) {
    struct lathe_tar_writer *w = calloc(1, sizeof *w);
    *out = w;
    /* raw deflate: the header is ours, so that it does not depend on level and system */
    if (!w || deflateInit2(&w->z, level, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory to compress");
    w->begun = true;
    w->file = file;
    w->crc = (uint32_t)crc32(0, NULL, 0);
    return lathe_artifact_file_append(file, lathe_gzip_head, sizeof lathe_gzip_head, diag);
}

enum lathe_status lathe_tar_add(struct lathe_tar_writer *w, const char *name, const void *data, uint64_t bytes,
                                struct lathe_diag *diag) {
    static const uint8_t zeros[LATHE_TAR_BLOCK];
    struct lathe_tar_header h;
    lathe_tar_header_make(&h, name, bytes);
    LATHE_TRY(deflate_all(w, &h, sizeof h, Z_NO_FLUSH, diag));
    LATHE_TRY(deflate_all(w, data, bytes, Z_NO_FLUSH, diag));
    return deflate_all(w, zeros, -bytes % LATHE_TAR_BLOCK, Z_NO_FLUSH, diag);
}

enum lathe_status lathe_tar_finish(struct lathe_tar_writer *w, struct lathe_diag *diag) {
    static const uint8_t zeros[2 * LATHE_TAR_BLOCK];
    uint8_t tail[8];
    LATHE_TRY(deflate_all(w, zeros, sizeof zeros, Z_FINISH, diag));
    for (unsigned i = 0; i < 4; i++) {
        tail[i] = (uint8_t)(w->crc >> 8 * i);
        tail[4 + i] = (uint8_t)(w->total >> 8 * i);
    }
    return lathe_artifact_file_append(w->file, tail, sizeof tail, diag);
}

void lathe_tar_writer_free(struct lathe_tar_writer **w) {
    if (*w && (*w)->begun)
        deflateEnd(&(*w)->z);
    free(*w);
    *w = NULL;
}
