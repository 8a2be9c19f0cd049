/* Opens an artifact: maps the file, has it verified, and answers what is asked about it. */
#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

const char *lathe_version(void) {
    return LATHE_VERSION;
}

static enum lathe_status verified(struct lathe_artifact *a, const char *what,
                                  const struct lathe_artifact_options *options, struct lathe_artifact **out,
                                  struct lathe_diag *diag) {
    enum lathe_status status = lathe_artifact_verify(a, what, options, diag);
    if (status != LATHE_OK)
        lathe_artifact_close(&a);
    *out = a;
    return status;
}

enum lathe_status lathe_artifact_open(const char *path, const struct lathe_artifact_options *options,
                                      struct lathe_artifact **out, struct lathe_diag *diag) {
    *out = NULL;
    /* O_NONBLOCK: opening a pipe must not wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_OPEN, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat st;
    struct lathe_artifact *a = NULL;
    enum lathe_status status;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = lathe_fail(diag, LATHE_MSG_ARTIFACT_OPEN, "%s: not a regular file", path);
        goto fail;
    }
    if (st.st_size == 0) {
        status = lathe_fail(diag, LATHE_MSG_ARTIFACT_MAGIC, "%s: empty file", path);
        goto fail;
    }
    a = calloc(1, sizeof *a);
    if (!a) {
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", path);
        goto fail;
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        status = lathe_fail(diag, LATHE_MSG_ARTIFACT_OPEN, "%s: cannot be mapped: %s", path, strerror(errno));
        goto fail;
    }
    a->bytes = map;
    a->size = (uint64_t)st.st_size;
    a->mapped = true;
    a->fd = fd;
    status = verified(a, path, options, out, diag);
    if (*out)
        a->fd = -1;
    close(fd);
    return status;
fail:
    close(fd);
    free(a);
    return status;
}

enum lathe_status lathe_artifact_open_memory(const void *bytes, size_t size,
                                             const struct lathe_artifact_options *options, struct lathe_artifact **out,
                                             struct lathe_diag *diag) {
    *out = NULL;
    if ((uintptr_t)bytes % 64)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_OPEN, "memory: the artifact must be 64-byte aligned");
    struct lathe_artifact *a = calloc(1, sizeof *a);
    if (!a)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "memory: out of memory");
    a->bytes = bytes;
    a->size = size;
    a->fd = -1;
    return verified(a, "memory", options, out, diag);
}

void lathe_artifact_close(struct lathe_artifact **pointer) {
    struct lathe_artifact *a = *pointer;
    *pointer = NULL;
    if (!a)
        return;
    if (a->weight_memory)
        munmap(a->weight_memory, a->weight_memory_bytes);
    if (a->mapped)
        munmap((void *)(uintptr_t)a->bytes, a->size);
    if (a->buckets) /* they own the plans, the first included */
        lathe_buckets_free(&a->buckets);
    else
        lathe_plan_free(&a->plan);
    free(a->ports);
    free(a);
}

enum lathe_status lathe_artifact_section(const struct lathe_artifact *a, enum lathe_section_kind kind, void **data,
                                         uint64_t *size, struct lathe_diag *diag) {
    *data = NULL;
    *size = 0;
    const struct lathe_fmt_section *s = (unsigned)kind < LATHE_SECTION_KINDS ? a->by_kind[kind] : NULL;
    if (!s)
        return LATHE_OK;
    const uint8_t *stored = a->bytes + s->offset;
    if (s->codec == LATHE_CODEC_ZSTD && ZSTD_getFrameContentSize(stored, s->stored_size) != s->raw_size)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "section %d does not hold the size it claims", (int)kind);
    char *raw = malloc(s->raw_size + 1);
    if (!raw)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "section %d: %llu bytes", (int)kind,
                          (unsigned long long)s->raw_size);
    if (s->codec == LATHE_CODEC_RAW) {
        memcpy(raw, stored, s->raw_size);
    } else if (ZSTD_decompress(raw, s->raw_size, stored, s->stored_size) != s->raw_size) {
        free(raw);
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "section %d does not decompress", (int)kind);
    }
    raw[s->raw_size] = '\0';
    *data = raw;
    *size = s->raw_size;
    return LATHE_OK;
}

unsigned lathe_artifact_input_count(const struct lathe_artifact *a) {
    return a->manifest.head->input_count;
}

unsigned lathe_artifact_output_count(const struct lathe_artifact *a) {
    return a->manifest.head->output_count;
}

const struct lathe_port *lathe_artifact_input(const struct lathe_artifact *a, unsigned index) {
    return index < a->manifest.head->input_count ? &a->ports[index] : NULL;
}

const struct lathe_port *lathe_artifact_output(const struct lathe_artifact *a, unsigned index) {
    return index < a->manifest.head->output_count ? &a->ports[a->manifest.head->input_count + index] : NULL;
}

static int find(const struct lathe_port *ports, unsigned count, const char *name) {
    for (unsigned i = 0; i < count; i++)
        if (strcmp(ports[i].name, name) == 0)
            return (int)i;
    return -1;
}

int lathe_artifact_find_input(const struct lathe_artifact *a, const char *name) {
    return find(a->ports, a->manifest.head->input_count, name);
}

int lathe_artifact_find_output(const struct lathe_artifact *a, const char *name) {
    return find(a->ports + a->manifest.head->input_count, a->manifest.head->output_count, name);
}

int64_t lathe_artifact_max_batch(const struct lathe_artifact *a) {
    return a->manifest.head->max_batch;
}

int64_t lathe_artifact_max_length(const struct lathe_artifact *a) {
    return a->manifest.head->max_seq;
}

unsigned lathe_artifact_cores(const struct lathe_artifact *a) {
    return a->manifest.head->cores;
}

enum lathe_placement lathe_artifact_placement(const struct lathe_artifact *a) {
    uint32_t placement = a->manifest.head->placement;
    return placement ? (enum lathe_placement)placement : LATHE_PLACEMENT_REPLICATE;
}

uint64_t lathe_artifact_core_memory(const struct lathe_artifact *a) {
    return a->manifest.head->core_memory;
}

unsigned lathe_artifact_bucket_count(const struct lathe_artifact *a) {
    return a->buckets ? a->buckets->list.count : 0;
}

bool lathe_artifact_bucket(const struct lathe_artifact *a, unsigned index, int64_t *batch, int64_t *seq) {
    if (index >= lathe_artifact_bucket_count(a))
        return false;
    *batch = a->buckets->sizes[index].batch;
    *seq = a->buckets->sizes[index].seq;
    return true;
}

unsigned lathe_artifact_label_count(const struct lathe_artifact *a) {
    return a->manifest.head->label_count;
}

const char *lathe_artifact_label(const struct lathe_artifact *a, unsigned index) {
    return index < a->manifest.head->label_count ? a->manifest.strings + a->manifest.labels[index] : NULL;
}
