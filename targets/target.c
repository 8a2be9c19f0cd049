/* The registry of targets: shipped ones by name, "native", and files. */
#include "embedded_targets.h"
#include "target_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *text;
    enum lathe_cpu_bit bit;
} cpu_bits[] = {
#define CPU_BIT(number, name, text, doc) {text, LATHE_CPU_##name},
#include "cpu_bits.def"
#undef CPU_BIT
};

int lathe_target_features_text(uint64_t features, char *buffer, int size) {
    int length = 0;
    if (size > 0)
        buffer[0] = 0;
    for (size_t i = 0; i < sizeof cpu_bits / sizeof *cpu_bits; i++) {
        if (!(features & LATHE_CPU_MASK(cpu_bits[i].bit)))
            continue;
        int room = length < size ? size - length : 0;
        length += snprintf(room ? buffer + length : NULL, (size_t)room, "%s%s", length ? " " : "", cpu_bits[i].text);
    }
    return length;
}

#define BIT(name) LATHE_CPU_MASK(LATHE_CPU_##name)

uint64_t lathe_target_imply(uint64_t features) {
    static const struct {
        uint64_t has, implies;
    } rules[] = {
        {BIT(AMX_INT8) | BIT(AMX_BF16), BIT(AMX_TILE)},
        {BIT(AMX_TILE), BIT(AVX512)},
        {BIT(FAST_ADDS), BIT(AVX512_VNNI)},
        {BIT(AVX512_VNNI) | BIT(AVX512_VBMI) | BIT(AVX512_BF16) | BIT(AVX512_FP16), BIT(AVX512)},
        {BIT(AVX512), BIT(AVX2) | BIT(FMA) | BIT(F16C)},
        {BIT(AVX_VNNI) | BIT(FMA) | BIT(F16C), BIT(AVX2)},
        {BIT(AVX2), BIT(SSE42)},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (features & rules[i].has)
            features |= rules[i].implies;
    return features;
}

void lathe_target_defaults(struct lathe_target *out) {
    *out = (struct lathe_target){.precisions = LATHE_PRECISION_F32,
                                 .int8_scheme = LATHE_INT8_SUM4,
                                 .shapes = LATHE_SHAPES_BOUNDED,
                                 .placement = LATHE_PLACEMENT_REPLICATE,
                                 .cast = LATHE_CAST_NONE,
                                 .all_operators = true};
    memcpy(out->arch, "any", sizeof "any");
}

unsigned lathe_target_builtin_count(void) {
    return lathe_embedded_target_count;
}

const char *lathe_target_builtin_name(unsigned index) {
    return index < lathe_embedded_target_count ? lathe_embedded_targets[index].name : NULL;
}

void lathe_target_names(char *buffer, size_t size) {
    size_t length = 0;
    buffer[0] = 0;
    for (unsigned i = 0; i < lathe_embedded_target_count && length < size; i++)
        length += (size_t)snprintf(buffer + length, size - length, "%s, ", lathe_embedded_targets[i].name);
    if (length < size)
        snprintf(buffer + length, size - length, "native");
}

/* True for a name that means a file. */
static bool is_path(const char *name) {
    size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && !strcmp(name + n - 5, ".yaml")) || (n > 4 && !strcmp(name + n - 4, ".yml"));
}

static bool in_chain(const struct lathe_target_chain *chain, const char *id) {
    for (; chain; chain = chain->up)
        if (!strcmp(chain->id, id))
            return true;
    return false;
}

static enum lathe_status cycle(const char *name, const char *from, unsigned line,
                               const struct lathe_target_chain *chain, struct lathe_diag *diag) {
    char way[1024];
    size_t length = (size_t)snprintf(way, sizeof way, "%s", name);
    for (; chain && length < sizeof way; chain = chain->up)
        length += (size_t)snprintf(way + length, sizeof way - length, " <- %s", chain->id);
    return lathe_fail(diag, LATHE_MSG_TARGET_EXTENDS, "%s:%u: extends: '%s' comes back to itself (%s)", from, line,
                      name, way);
}

/* Reads a whole regular file of at most LATHE_TARGET_FILE_MAX bytes into `text`. */
static enum lathe_status read_text(const char *path, char *text, size_t *size, struct lathe_diag *diag) {
    struct stat st;
    if (stat(path, &st))
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: is no regular file", path);
    FILE *f = fopen(path, "rb");
    if (!f)
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: %s", path, strerror(errno));
    *size = fread(text, 1, LATHE_TARGET_FILE_MAX + 1, f);
    bool bad = ferror(f);
    fclose(f);
    if (bad)
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: cannot be read", path);
    if (*size > LATHE_TARGET_FILE_MAX)
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: larger than a target file can be (%d bytes)", path,
                          LATHE_TARGET_FILE_MAX);
    return LATHE_OK;
}

static enum lathe_status load_file(const char *name, const char *from, unsigned line,
                                   const struct lathe_target_chain *chain, struct lathe_target *out,
                                   struct lathe_diag *diag) {
    char path[PATH_MAX], resolved[PATH_MAX];
    const char *slash = from && name[0] != '/' ? strrchr(from, '/') : NULL;
    int n = snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - from) : 0, slash ? from : "", name);
    if (n < 0 || (size_t)n >= sizeof path)
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: the path is too long", name);
    if (!realpath(path, resolved)) {
        if (from)
            return lathe_fail(diag, LATHE_MSG_TARGET_EXTENDS, "%s:%u: extends: %s: %s", from, line, path,
                              strerror(errno));
        return lathe_fail(diag, LATHE_MSG_TARGET_FILE, "%s: %s", path, strerror(errno));
    }
    if (in_chain(chain, resolved))
        return cycle(name, from ? from : name, line, chain, diag);
    char *text = malloc(LATHE_TARGET_FILE_MAX + 1);
    if (!text)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "%s: no memory to read it", path);
    size_t size = 0;
    enum lathe_status status = read_text(path, text, &size, diag);
    struct lathe_target_chain here = {resolved, chain};
    if (status == LATHE_OK)
        status = lathe_target_parse(path, text, size, &here, out, diag);
    free(text);
    return status;
}

enum lathe_status lathe_target_resolve(const char *name, const char *from, unsigned line,
                                       const struct lathe_target_chain *chain, struct lathe_target *out,
                                       struct lathe_diag *diag) {
    if (is_path(name))
        return load_file(name, from, line, chain, out, diag);
    if (!strcmp(name, "native")) {
        lathe_target_native(out);
        return LATHE_OK;
    }
    for (unsigned i = 0; i < lathe_embedded_target_count; i++) {
        const struct lathe_embedded_target *t = &lathe_embedded_targets[i];
        if (strcmp(t->name, name))
            continue;
        if (in_chain(chain, name))
            return cycle(name, from ? from : name, line, chain, diag);
        char shown[96];
        snprintf(shown, sizeof shown, "targets/%s.yaml", name);
        struct lathe_target_chain here = {t->name, chain};
        return lathe_target_parse(shown, t->text, t->size, &here, out, diag);
    }
    char known[1024];
    lathe_target_names(known, sizeof known);
    if (from)
        return lathe_fail(diag, LATHE_MSG_TARGET_EXTENDS,
                          "%s:%u: extends: no target is named '%s' (known: %s, or a file)", from, line, name, known);
    return lathe_fail(diag, LATHE_MSG_TARGET_UNKNOWN, "no target is named '%s' (known: %s, or a .yaml file)", name,
                      known);
}

enum lathe_status lathe_target_load(const char *name, struct lathe_target *out, struct lathe_diag *diag) {
    lathe_target_defaults(out);
    return lathe_target_resolve(name, NULL, 0, NULL, out, diag);
}
