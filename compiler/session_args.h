/* The options that run, verify and bench share. */
#ifndef LATHE_SESSION_ARGS_H
#define LATHE_SESSION_ARGS_H

#include "options.h"
#include "threads.h"

#include "lathe.h"

struct lathe_session_args {
    int64_t threads;     /* 0: as many as the machine gives */
    const char *cpumask; /* NULL: all that the CPU has */
    const char *cores;   /* "2": that many; "0,2" or "0-3": these CPUs; NULL: not said */
    bool truncate;
    int core_list[LATHE_MAX_THREADS];
};
/* Rows for an option table. */
#define LATHE_THREADS_OPTION(args)                                                                                     \
    {                                                                                                                  \
        .name = "threads", .kind = LATHE_OPTION_COUNT, .into = &(args).threads, .value = "N", .min = 1,                \
        .max = LATHE_MAX_THREADS, .help = "threads (default: what affinity, quota and cores allow)"                    \
    }
#define LATHE_CPUMASK_OPTION(args)                                                                                     \
    {                                                                                                                  \
        .name = "cpumask", .kind = LATHE_OPTION_TEXT, .into = &(args).cpumask, .value = "LEVEL",                       \
        .help = "instruction sets that may be used: 0 (plain C), sse4.2, avx2, avx512, ..., all or 0x and a mask"      \
    }
#define LATHE_CORES_OPTION(args)                                                                                       \
    {                                                                                                                  \
        .name = "cores", .kind = LATHE_OPTION_TEXT, .into = &(args).cores, .value = "N|C1,C2-C3,...",                  \
        .help = "use N cores; or pin the threads to these CPUs, in order (one alone: 2-2)"                             \
    }
#define LATHE_TRUNCATE_OPTION(args)                                                                                    \
    {                                                                                                                  \
        .name = "truncate", .kind = LATHE_OPTION_FLAG, .into = &(args).truncate,                                       \
        .help = "static shapes: cut longer rows to the largest bucket, their last token stays (else exit 3)"           \
    }
/* The names of targets/placements.def, ending with NULL. */
extern const char *const lathe_placement_choices[];
#define LATHE_PLACEMENT_OPTION(text, words)                                                                            \
    {                                                                                                                  \
        .name = "placement", .kind = LATHE_OPTION_TEXT, .into = &(text), .value = "replicate|pipeline",                \
        .choices = lathe_placement_choices, .help = words                                                              \
    }
/* That of a name of the list, the default for NULL. */
enum lathe_placement lathe_placement_of(const char *name);
/* Fills *out, whose `cores` stay in `args`; with --cores alone it has as many threads. */
LATHE_NODISCARD enum lathe_status lathe_session_args_apply(struct lathe_session_args *args,
                                                           struct lathe_session_options *out, struct lathe_diag *diag);
#endif
