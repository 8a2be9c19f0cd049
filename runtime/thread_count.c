/* How many threads a session takes when nobody says: no more than the affinity mask, the control group's quota and the
 * physical cores allow. */
#include "threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_SETS   64 /* in blocks of 1024 CPUs: tried up to 64 * 1024 */
#define PATH_BYTES 1024

/* First bytes of a small file, NUL-terminated; -1 when it cannot be opened, else the length. */
static int read_small(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    out[n] = '\0';
    return (int)n;
}

/* Digits only, at most 10^15 (about 30 years in microseconds); the rest of the text goes to *end. */
static bool parse_number(const char *text, int64_t *out, const char **end) {
    int64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = v * 10 + (*p - '0');
        if (v > INT64_C(1000000000000000))
            return false;
    }
    *end = p;
    *out = v;
    return p > text;
}

enum quota { QUOTA_ABSENT, QUOTA_NONE, QUOTA_SET, QUOTA_BAD };

static enum quota ceil_quota(int64_t quota, int64_t period, unsigned *threads) {
    if (quota < 1 || period < 1)
        return QUOTA_BAD;
    int64_t n = (quota - 1) / period + 1;
    *threads = n > 65536 ? 65536 : (unsigned)n;
    return QUOTA_SET;
}

static bool at_end(const char *p) {
    return p[strspn(p, " \t\r\n")] == '\0';
}

/* cpu.max of version 2: "QUOTA PERIOD" or "max PERIOD". */
static enum quota quota_v2(const char *folder, unsigned *threads) {
    char path[PATH_BYTES + 32], text[128];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_small(path, text, sizeof text) < 0)
        return QUOTA_ABSENT;
    int64_t quota = 0, period = 0;
    const char *p = text;
    bool unlimited = strncmp(text, "max", 3) == 0;
    if (unlimited)
        p += 3;
    else if (!parse_number(text, &quota, &p))
        return QUOTA_BAD;
    if (*p != ' ' || !parse_number(p + 1, &period, &p) || !at_end(p) || period < 1)
        return QUOTA_BAD;
    return unlimited ? QUOTA_NONE : ceil_quota(quota, period, threads);
}

/* cpu.cfs_quota_us and cpu.cfs_period_us of version 1; -1 is no limit. */
static enum quota quota_v1(const char *folder, unsigned *threads) {
    char path[PATH_BYTES + 32], text[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_small(path, text, sizeof text) < 0)
        return QUOTA_ABSENT;
    int64_t quota, period;
    const char *p = text;
    if (strncmp(text, "-1", 2) == 0 && at_end(text + 2))
        return QUOTA_NONE;
    if (!parse_number(text, &quota, &p) || !at_end(p))
        return QUOTA_BAD;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (read_small(path, text, sizeof text) < 0 || !parse_number(text, &period, &p) || !at_end(p))
        return QUOTA_BAD;
    return ceil_quota(quota, period, threads);
}

/* The smallest quota of `root`/`path` and the groups above it. A path of another namespace does not exist: only root.
 */
static void walk(struct lathe_thread_budget *b, enum quota (*read)(const char *, unsigned *), const char *root,
                 const char *path) {
    char folder[PATH_BYTES];
    if (snprintf(folder, sizeof folder, "%s%s", root, path) >= (int)sizeof folder)
        return;
    size_t root_length = strlen(root);
    for (;;) {
        unsigned threads = 0;
        enum quota q = read(folder, &threads);
        if (q == QUOTA_SET && (b->quota == 0 || threads < b->quota))
            b->quota = threads;
        if (q == QUOTA_BAD && !b->warning[0])
            snprintf(b->warning, sizeof b->warning, "the CPU quota in %.120s cannot be read; it is taken as no limit",
                     folder);
        size_t n = strlen(folder);
        if (n <= root_length)
            return;
        while (n > root_length && folder[n - 1] != '/')
            n--;
        folder[n > root_length ? n - 1 : root_length] = '\0';
    }
}

/* The group of this process for a controller ("" for version 2), "" when it is the root or not known. */
static void own_group(const char *controller, char *out, size_t size) {
    out[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return;
    char line[PATH_BYTES];
    while (fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        list++;
        path[strcspn(path, "\n")] = '\0';
        bool match = *controller == '\0' && *list == '\0';
        for (char *save = NULL, *word = strtok_r(list, ",", &save); word && !match; word = strtok_r(NULL, ",", &save))
            match = *controller && strcmp(word, controller) == 0;
        if (match && strcmp(path, "/") != 0 && !strstr(path, "..")) {
            snprintf(out, size, "%s", path);
            break;
        }
    }
    fclose(f);
}

static void read_quota(struct lathe_thread_budget *b) {
    const char *root = secure_getenv("LATHE_CGROUP_ROOT");
    char path[PATH_BYTES] = "", folder[PATH_BYTES];
    bool redirected = root && *root;
    if (!redirected)
        root = "/sys/fs/cgroup";
    if (strlen(root) > PATH_BYTES / 2)
        return;
    if (!redirected)
        own_group("", path, sizeof path);
    walk(b, quota_v2, root, path);
    snprintf(folder, sizeof folder, "%s/unified", root);
    walk(b, quota_v2, folder, path);
    if (!redirected)
        own_group("cpu", path, sizeof path);
    snprintf(folder, sizeof folder, "%s/cpu", root);
    unsigned before = b->quota;
    walk(b, quota_v1, folder, path);
    if (b->quota == before && !b->warning[0]) { /* the same group under its full name, where /cpu is no link to it */
        snprintf(folder, sizeof folder, "%s/cpu,cpuacct", root);
        walk(b, quota_v1, folder, path);
    }
}

/* CPUs of the affinity mask, and the physical cores among them. */
static void read_affinity(struct lathe_thread_budget *b) {
    size_t size = 0;
    cpu_set_t *set = NULL;
    unsigned blocks = 1;
    for (; blocks <= CPU_SETS; blocks *= 2) {
        CPU_FREE(set);
        set = CPU_ALLOC(1024 * blocks);
        size = CPU_ALLOC_SIZE(1024 * blocks);
        if (set && sched_getaffinity(0, size, set) == 0)
            break;
    }
    if (blocks > CPU_SETS || !set) {
        CPU_FREE(set);
        return;
    }
    b->affinity = (unsigned)CPU_COUNT_S(size, set);
    unsigned cores = 0;
    for (unsigned cpu = 0; cpu < 1024 * blocks; cpu++) {
        if (!CPU_ISSET_S(cpu, size, set))
            continue;
        /* a core counts at the first of its threads that the mask has: "0,64" or "0-1" */
        char path[128], text[256];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        bool first = true;
        if (read_small(path, text, sizeof text) > 0) {
            const char *p = text;
            while (*p && first) {
                int64_t from, to;
                if (!parse_number(p, &from, &p))
                    break;
                to = from;
                if (*p == '-' && !parse_number(p + 1, &to, &p))
                    break;
                for (int64_t other = from; other <= to && other < cpu; other++)
                    if (CPU_ISSET_S((size_t)other, size, set))
                        first = false;
                if (*p == ',')
                    p++;
                else
                    break;
            }
        }
        cores += first;
    }
    b->cores = cores;
    CPU_FREE(set);
}

void lathe_thread_budget(struct lathe_thread_budget *out) {
    *out = (struct lathe_thread_budget){.affinity = 1};
    read_affinity(out);
    read_quota(out);
    unsigned n = out->affinity;
    if (out->cores > 0 && out->cores < n)
        n = out->cores;
    if (out->quota > 0 && out->quota < n)
        n = out->quota;
    out->threads = n < 1 ? 1 : n > LATHE_MAX_THREADS ? LATHE_MAX_THREADS : n;
}

unsigned lathe_default_threads(bool *limited_by_quota) {
    struct lathe_thread_budget b;
    lathe_thread_budget(&b);
    if (limited_by_quota)
        *limited_by_quota = b.quota > 0;
    return b.threads;
}
