#include "session_args.h"
#include "cpu.h"

#include <string.h>

#define MAX_CPU 65535

const char *const lathe_placement_choices[] = {
#define PLACEMENT(number, name, text, doc) text,
#include "placements.def"
#undef PLACEMENT
    NULL};

enum lathe_placement lathe_placement_of(const char *name) {
#define PLACEMENT(number, id, text, doc)                                                                               \
    if (name && !strcmp(name, text))                                                                                   \
        return LATHE_PLACEMENT_##id;
#include "placements.def"
#undef PLACEMENT
    return LATHE_PLACEMENT_DEFAULT;
}

/* "0,2" and "0-3,8" into CPU numbers; 0 when it is no such list. */
static unsigned parse_cpus(const char *text, int *out, unsigned capacity) {
    unsigned count = 0;
    for (;;) {
        char word[24];
        int64_t first, last;
        size_t n = strcspn(text, ",");
        if (!n || n >= sizeof word)
            return 0;
        memcpy(word, text, n);
        word[n] = 0;
        char *dash = strchr(word, '-');
        if (dash)
            *dash++ = 0;
        if (!lathe_parse_count(word, 0, MAX_CPU, &first) ||
            !lathe_parse_count(dash ? dash : word, first, MAX_CPU, &last) || last - first >= capacity - count)
            return 0;
        for (; first <= last; first++)
            out[count++] = (int)first;
        if (!text[n])
            return count;
        text += n + 1;
    }
}

enum lathe_status lathe_session_args_apply(struct lathe_session_args *args, struct lathe_session_options *out,
                                           struct lathe_diag *diag) {
    *out = (struct lathe_session_options){.threads = (unsigned)args->threads, .truncate = args->truncate};
    if (args->cpumask) {
        LATHE_TRY(lathe_cpu_mask_parse(args->cpumask, &out->cpu_mask, diag));
        out->plain_c = out->cpu_mask == 0;
    }
    if (!args->cores)
        return LATHE_OK;
    int64_t number;
    if (lathe_parse_count(args->cores, 1, LATHE_MAX_THREADS, &number)) {
        out->core_count = (unsigned)number;
    } else {
        out->core_count = strpbrk(args->cores, ",-") ? parse_cpus(args->cores, args->core_list, LATHE_MAX_THREADS) : 0;
        out->cores = args->core_list;
    }
    if (!out->core_count)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE,
                          "--cores: expected a number from 1 to %d, or CPUs such as 0,2 or 0-3 (one alone: 2-2), found "
                          "'%s'",
                          LATHE_MAX_THREADS, args->cores);
    if (!out->threads)
        out->threads = out->core_count;
    return LATHE_OK;
}
