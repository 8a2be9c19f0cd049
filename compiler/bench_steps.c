/* lathe bench --steps: where the time of a run goes. */
#include "bench.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

static int dearest_first(const void *a, const void *b) {
    const struct lathe_bench_step *x = a, *y = b;
    if (x->ms != y->ms)
        return x->ms > y->ms ? -1 : 1;
    return strcmp(x->op, y->op);
}

/* Steps are alike when operator and shape of the result are. */
enum lathe_status lathe_bench_steps(const struct lathe_session *s, struct lathe_bench_results *out,
                                    struct lathe_diag *diag) {
    uint32_t count = s->plan->head->step_count;
    out->steps = calloc((size_t)count + 1, sizeof *out->steps);
    if (!out->steps)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "no memory for the steps");
    double runs = s->runs_timed ? (double)s->runs_timed : 1;
    out->waiting_ms = (double)s->run_ns / runs * 1e-6;
    for (uint32_t i = 0; i < count; i++) {
        const struct lathe_step_state *st = &s->steps[i];
        const struct lathe_tensor *y = st->n_out ? st->out[0] : NULL;
        int64_t columns = y && y->rank ? y->dims[y->rank - 1] : 1;
        int64_t rows = y && columns > 0 ? lathe_tensor_count(y) / columns : 0;
        unsigned at = 0;
        while (at < out->step_count && (strcmp(out->steps[at].op, st->op->name) != 0 || out->steps[at].rows != rows ||
                                        out->steps[at].columns != columns))
            at++;
        out->step_count += at == out->step_count;
        struct lathe_bench_step *step = &out->steps[at];
        double ms = (double)lathe_session_step_ns(s, i) / runs * 1e-6;
        *step = (struct lathe_bench_step){st->op->name, rows, columns, step->count + 1, step->ms + ms};
        out->waiting_ms -= ms;
    }
    qsort(out->steps, out->step_count, sizeof *out->steps, dearest_first);
    return LATHE_OK;
}

json_t *lathe_bench_steps_json(const struct lathe_bench_results *r) {
    json_t *list = json_array();
    for (unsigned i = 0; i < r->step_count; i++) {
        const struct lathe_bench_step *s = &r->steps[i];
        json_array_append_new(list, json_pack("{ss, sI, sI, si, sf}", "op", s->op, "rows", (json_int_t)s->rows,
                                              "columns", (json_int_t)s->columns, "count", (int)s->count, "ms", s->ms));
    }
    return list;
}

void lathe_bench_steps_text(const struct lathe_bench_results *r, struct lathe_text *out) {
    double sum = r->waiting_ms;
    for (unsigned i = 0; i < r->step_count; i++)
        sum += r->steps[i].ms;
    double percent = sum > 0 ? 100 / sum : 0;
    lathe_text_append(out, "steps of a run (mean), results of rows x columns:\n");
    for (unsigned i = 0; i < r->step_count; i++) {
        const struct lathe_bench_step *s = &r->steps[i];
        lathe_text_append(out, "  %3u %-18s %8lld x %-6lld %9.3f ms %5.1f %%\n", s->count, s->op, (long long)s->rows,
                          (long long)s->columns, s->ms, percent * s->ms);
    }
    lathe_text_append(out, "      %-18s %17s %9.3f ms %5.1f %%\n", "waiting, all else", "", r->waiting_ms,
                      percent * r->waiting_ms);
}
