/* Every check of the container: header, table, padding, checksums. In the order of FORMAT.md: nothing is read before
 * what vouches for it. Ranges are compared by subtraction, so no sum of file-given numbers can wrap. */
#include "cpu.h"
#include "plan.h"
#include "section_checksum.h"
#include "threads.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <zstd.h>

#define MIB ((uint64_t)1 << 20)

static const struct {
    const char *name;
    bool needed, raw_only;
    uint64_t limit;
} kinds[LATHE_SECTION_KINDS] = {
    [LATHE_SECTION_MANIFEST] = {"MANIFEST", true, true, 64 * MIB},
    [LATHE_SECTION_PLAN] = {"PLAN", true, true, 256 * MIB},
    [LATHE_SECTION_WEIGHTS] = {"WEIGHTS", true, false, (uint64_t)1 << 40},
    [LATHE_SECTION_REPORT] = {"REPORT", false, false, 256 * MIB},
    [LATHE_SECTION_GRAPH] = {"GRAPH", false, false, 256 * MIB},
    [LATHE_SECTION_KNOWN_ANSWER] = {"KNOWN_ANSWER", false, false, 256 * MIB},
    [LATHE_SECTION_BUCKETS] = {"BUCKETS", false, true, MIB},
};

static const char *const feature_names[64] = {
#define CPU_BIT(number, name, text, doc) [number] = text,
#include "cpu_bits.def"
#undef CPU_BIT
};

/* Features that only certain kernels have; those of f32 all have a plain C row. */
static enum lathe_status check_cpu(const struct lathe_artifact *a, const char *what, struct lathe_diag *diag) {
    uint64_t lacking = a->prefix.cpu_needed & ~lathe_cpu_bits();
    if (!lacking)
        return LATHE_OK;
    char names[512] = "";
    size_t n = 0;
    for (unsigned i = 0; i < 64 && n < sizeof names - 32; i++)
        if (lacking >> i & 1)
            n += (size_t)(feature_names[i] ? snprintf(names + n, sizeof names - n, " %s", feature_names[i])
                                           : snprintf(names + n, sizeof names - n, " bit-%u", i));
    return lathe_fail(diag, LATHE_MSG_ARTIFACT_CPU, "%s: needs CPU features that this machine does not have:%s", what,
                      names);
}

static bool is_zero(const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static enum lathe_status check_header(struct lathe_artifact *a, const char *what, struct lathe_diag *diag) {
    struct lathe_fmt_prefix *p = &a->prefix;
    if (a->size < sizeof p->magic || memcmp(a->bytes, LATHE_FORMAT_MAGIC, sizeof p->magic) != 0)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_MAGIC, "%s: not a Lathe artifact", what);
    if (a->size < 12)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: cut after %llu bytes", what,
                          (unsigned long long)a->size);
    memcpy(&p->major, a->bytes + 8, 2);
    memcpy(&p->minor, a->bytes + 10, 2);
    if (p->major != LATHE_FORMAT_MAJOR)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_VERSION, "%s: format version %u.%u, this library reads %d.x", what,
                          p->major, p->minor, LATHE_FORMAT_MAJOR);
    if (a->size < sizeof *p)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: cut after %llu bytes", what,
                          (unsigned long long)a->size);
    memcpy(p, a->bytes, sizeof *p);
    if (p->section_count < 1 || p->section_count > LATHE_FORMAT_MAX_SECTIONS ||
        p->header_size != sizeof *p + p->section_count * sizeof(struct lathe_fmt_section))
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: header of %u bytes for %u sections", what,
                          p->header_size, p->section_count);
    if (p->file_size != a->size || a->size < p->header_size)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: %llu bytes, the header says %llu", what,
                          (unsigned long long)a->size, (unsigned long long)p->file_size);
    uint8_t header[sizeof *p + sizeof a->sections];
    memcpy(header, a->bytes, p->header_size);
    memset(header + offsetof(struct lathe_fmt_prefix, checksum), 0, sizeof p->checksum);
    if (lathe_xxh3(header, p->header_size) != p->checksum)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: the checksum of the header is wrong", what);
    if (p->reserved[0] || p->reserved[1])
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: reserved bytes of the header are not zero", what);
    memcpy(a->sections, a->bytes + sizeof *p, p->header_size - sizeof *p);
    return check_cpu(a, what, diag);
}

static enum lathe_status check_section(struct lathe_artifact *a, const struct lathe_fmt_section *s, uint64_t *end,
                                       const char *what, struct lathe_diag *diag) {
    bool known = s->kind > 0 && s->kind < LATHE_SECTION_KINDS;
    const char *name = known ? kinds[s->kind].name : "unknown";
    if ((s->flags & ~LATHE_SECTION_REQUIRED) || s->reserved || s->codec > LATHE_CODEC_ZSTD)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: section %u (%s): flags 0x%x, codec %u", what, s->kind,
                          name, s->flags, s->codec);
    if (!known && (s->flags & LATHE_SECTION_REQUIRED))
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION,
                          "%s: section kind %u is needed to read it and not known to this library", what, s->kind);
    bool plan = s->kind == LATHE_SECTION_PLAN;
    if (plan ? a->plan_count == LATHE_MAX_BUCKETS : known && a->by_kind[s->kind])
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: %s sections %s", what, plan ? "too many" : "two",
                          name);
    uint64_t align =
        s->kind == LATHE_SECTION_WEIGHTS && s->codec == LATHE_CODEC_RAW ? LATHE_FORMAT_PAGE : LATHE_FORMAT_ALIGN;
    /* *end <= size <= 2^63, so rounding up cannot wrap */
    uint64_t at = (*end + align - 1) / align * align;
    if (s->offset != at || at > a->size || s->stored_size > a->size - at)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: section %s lies at %llu with %llu bytes", what, name,
                          (unsigned long long)s->offset, (unsigned long long)s->stored_size);
    if (!is_zero(a->bytes + *end, at - *end))
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: padding before section %s is not zero", what, name);
    *end = at + s->stored_size;
    if (known) {
        if (s->raw_size > kinds[s->kind].limit)
            return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: section %s has %llu bytes, at most %llu are read",
                              what, name, (unsigned long long)s->raw_size, (unsigned long long)kinds[s->kind].limit);
        if (s->codec == LATHE_CODEC_RAW ? s->raw_size != s->stored_size : kinds[s->kind].raw_only)
            return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: section %s: codec %u, %llu of %llu bytes stored",
                              what, name, s->codec, (unsigned long long)s->stored_size,
                              (unsigned long long)s->raw_size);
        if (!a->by_kind[s->kind])
            a->by_kind[s->kind] = s;
        if (plan)
            a->plan_sections[a->plan_count++] = s;
    }
    return LATHE_OK;
}

static enum lathe_status wrong_sum(const struct lathe_fmt_section *s, const char *what, struct lathe_diag *diag) {
    bool known = s->kind > 0 && s->kind < LATHE_SECTION_KINDS;
    return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: the checksum of section %s is wrong", what,
                      known ? kinds[s->kind].name : "of unknown kind");
}

static enum lathe_status check_sum(const struct lathe_artifact *a, const struct lathe_fmt_section *s, const char *what,
                                   struct lathe_diag *diag) {
    unsigned threads = s->stored_size > 8 * LATHE_FORMAT_CHUNK ? lathe_default_threads(NULL) : 1;
    const uint8_t *data = a->bytes + s->offset;
    if (threads > 1 && a->mapped) /* one call instead of thousands of page faults */
        madvise((void *)(uintptr_t)((uintptr_t)data & ~(uintptr_t)4095), s->stored_size + ((uintptr_t)data & 4095),
                MADV_WILLNEED);
    if (lathe_section_checksum(data, s->stored_size, threads) == s->checksum)
        return LATHE_OK;
    return wrong_sum(s, what, diag);
}

/* Raw weights into memory of large pages, checked on the way; the pages of the file stay untouched. Without such
 * memory nothing happens, and they are used where they are mapped. */
static enum lathe_status read_weights(struct lathe_artifact *a, const struct lathe_fmt_section *s, bool check,
                                      const char *what, struct lathe_diag *diag) {
    a->weight_memory = lathe_weight_memory(s->raw_size, &a->weight_memory_bytes);
    if (!a->weight_memory)
        return check ? check_sum(a, s, what, diag) : LATHE_OK;
    uint64_t sum = s->checksum;
    int error = lathe_section_read(a->fd, s->offset, a->weight_memory, s->raw_size, lathe_default_threads(NULL),
                                   check ? &sum : NULL);
    if (error == ENOMEM)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", what);
    if (error)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_OPEN, "%s: cannot be read: %s", what,
                          error > 0 ? strerror(error) : "it was cut meanwhile");
    if (sum != s->checksum)
        return wrong_sum(s, what, diag);
    mprotect(a->weight_memory, a->weight_memory_bytes, PROT_READ);
    return LATHE_OK;
}

static enum lathe_status unpack_weights(struct lathe_artifact *a, const char *what, struct lathe_diag *diag) {
    const struct lathe_fmt_section *s = a->by_kind[LATHE_SECTION_WEIGHTS];
    const uint8_t *stored = a->bytes + s->offset;
    a->weight_bytes = s->raw_size;
    if (s->codec == LATHE_CODEC_RAW) {
        a->weights = a->weight_memory ? a->weight_memory : stored;
        return LATHE_OK;
    }
    if (ZSTD_getFrameContentSize(stored, s->stored_size) != s->raw_size)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: section WEIGHTS does not hold the size it claims",
                          what);
    if (s->raw_size == 0) {
        a->weights = stored;
        return LATHE_OK;
    }
    void *memory = lathe_weight_memory(s->raw_size, &a->weight_memory_bytes);
    if (!memory)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: %llu bytes for decompressed weights", what,
                          (unsigned long long)s->raw_size);
    a->weight_memory = memory;
    a->weights = memory;
    if (ZSTD_decompress(memory, s->raw_size, stored, s->stored_size) != s->raw_size)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: section WEIGHTS does not decompress", what);
    mprotect(memory, a->weight_memory_bytes, PROT_READ);
    return LATHE_OK;
}

enum lathe_status lathe_artifact_verify(struct lathe_artifact *a, const char *what,
                                        const struct lathe_artifact_options *options, struct lathe_diag *diag) {
    LATHE_TRY(check_header(a, what, diag));
    uint64_t end = a->prefix.header_size;
    for (uint32_t i = 0; i < a->prefix.section_count; i++)
        LATHE_TRY(check_section(a, &a->sections[i], &end, what, diag));
    if (end != a->size)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_DAMAGED, "%s: %llu bytes after the last section", what,
                          (unsigned long long)(a->size - end));
    for (unsigned k = 1; k < LATHE_SECTION_KINDS; k++)
        if (kinds[k].needed && !a->by_kind[k])
            return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: no section %s", what, kinds[k].name);
    for (uint32_t i = 0; i < a->prefix.section_count; i++) {
        const struct lathe_fmt_section *s = &a->sections[i];
        bool weights = s->kind == LATHE_SECTION_WEIGHTS;
        bool check = !(weights && options && options->skip_weight_checksum);
        if (weights && s->codec == LATHE_CODEC_RAW && a->fd >= 0 && !(options && options->map_weights) &&
            lathe_weights_worth_reading(s->raw_size))
            LATHE_TRY(read_weights(a, s, check, what, diag));
        else if (check)
            LATHE_TRY(check_sum(a, s, what, diag));
    }
    LATHE_TRY(unpack_weights(a, what, diag));
    const struct lathe_fmt_section *m = a->by_kind[LATHE_SECTION_MANIFEST], *p = a->by_kind[LATHE_SECTION_PLAN];
    LATHE_TRY(lathe_manifest_map(a->bytes + m->offset, m->raw_size, &a->manifest, what, diag));
    if (a->by_kind[LATHE_SECTION_BUCKETS])
        return lathe_buckets_verify(a, what, diag);
    if (a->plan_count > 1)
        return lathe_fail(diag, LATHE_MSG_ARTIFACT_SECTION, "%s: %u sections PLAN without BUCKETS", what,
                          a->plan_count);
    LATHE_TRY(lathe_plan_map(a->bytes + p->offset, p->raw_size, &a->plan, what, diag));
    return lathe_plan_check(a, &a->manifest, &a->plan, &a->ports, what, diag);
}
