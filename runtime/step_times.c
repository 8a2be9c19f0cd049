/* How long each step of a run takes, for those who want to know where the time goes. */
#include "session_buckets.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t lathe_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct lathe_session *lathe_session_timed(struct lathe_session *s) {
    struct lathe_chunk chunk;
    if (!s->buckets)
        return s;
    return lathe_buckets_session(s, lathe_chunk_next(s, 0, &chunk) ? chunk.bucket : 0);
}

bool lathe_session_time_steps(struct lathe_session *s) {
    size_t count;
    free(s->step_ns);
    s->step_ns = NULL;
    s->run_ns = s->runs_timed = 0;
    if (lathe_mul_size(s->threads, s->plan->head->step_count, &count))
        s->step_ns = calloc(count + 1, sizeof *s->step_ns);
    return s->step_ns != NULL;
}

uint64_t lathe_session_step_ns(const struct lathe_session *s, uint32_t step) {
    uint64_t sum = 0;
    for (unsigned t = 0; s->step_ns && t < s->threads; t++)
        sum += s->step_ns[(size_t)t * s->plan->head->step_count + step];
    return s->alone ? sum : sum / s->threads;
}
