#include "session_args.h"
#include "cpu.h"

enum lathe_status lathe_session_args_apply(struct lathe_session_args *args, struct lathe_session_options *out,
                                           struct lathe_diag *diag) {
    *out = (struct lathe_session_options){.threads = (unsigned)args->threads};
    if (args->cpumask) {
        LATHE_TRY(lathe_cpu_mask_parse(args->cpumask, &out->cpu_mask, diag));
        out->plain_c = out->cpu_mask == 0;
    }
    if (!args->cores)
        return LATHE_OK;
    int64_t cores[LATHE_MAX_THREADS];
    unsigned count = lathe_parse_counts(args->cores, 0, 65535, cores, LATHE_MAX_THREADS);
    if (!count)
        return lathe_fail(diag, LATHE_MSG_OPTION_VALUE, "--cores: expected CPU numbers such as 0,2, found '%s'",
                          args->cores);
    for (unsigned i = 0; i < count; i++)
        args->core_list[i] = (int)cores[i];
    out->cores = args->core_list;
    out->core_count = count;
    if (!out->threads)
        out->threads = count;
    return LATHE_OK;
}
