/* Times of whole runs. */
#include "cost.h"

#include <stdlib.h>

/* As in runtime/session_shape.c: runs of less than 200 us of one core stay on it; so do steps of less than this. */
#define ALONE_NS 200e3
#define SOLO_NS  500

const char *lathe_cost_bound_name(enum lathe_cost_bound bound) {
    static const char *const names[] = {"compute", "memory", "overhead"};
    return names[bound];
}

void lathe_cost_predict(const struct lathe_cost_model *model, struct lathe_cost_prediction *out) {
    const struct lathe_fmt_plan *head = model->plan->head;
    const struct lathe_target_cost *figures = &model->target->cost;
    struct lathe_cost_model one = *model;
    one.threads = 1;
    *out = (struct lathe_cost_prediction){.batch = model->batch, .length = model->seq, .threads = model->threads};
    double alone = 0;
    for (uint32_t i = 0; i < head->step_count; i++) {
        struct lathe_step_cost c;
        lathe_cost_step(&one, i, &c);
        alone += c.ns;
        out->products += c.products;
    }
    bool shared = model->threads > 1 && alone >= ALONE_NS;
    double bound[3] = {0, 0, 1e3 * figures->run_us}, kinds[LATHE_COST_KINDS] = {0}, total = bound[2];
    for (uint32_t i = 0; i < head->step_count; i++) {
        struct lathe_step_cost c;
        lathe_cost_step(&one, i, &c);
        if (shared && i >= head->prologue_steps && c.ns >= SOLO_NS) {
            lathe_cost_step(model, i, &c);
            bound[LATHE_COST_OVERHEAD] += 1e3 * figures->phase_us;
            total += 1e3 * figures->phase_us;
        }
        bound[c.compute_ns >= c.memory_ns ? LATHE_COST_COMPUTE : LATHE_COST_MEMORY] += c.ns - c.overhead_ns;
        bound[LATHE_COST_OVERHEAD] += c.overhead_ns;
        kinds[c.kind] += c.ns;
        total += c.ns;
    }
    out->ms = total / 1e6;
    for (unsigned k = 0; k < LATHE_COST_KINDS; k++)
        out->share[k] = total > 0 ? kinds[k] / total : 0;
    for (unsigned b = 1; b < 3; b++)
        if (bound[b] > bound[out->bound])
            out->bound = (enum lathe_cost_bound)b;
}

/* Multiply-adds of one sequence of `seq` tokens; a target of any figures will do. */
static double products_at(const struct lathe_plan *plan, int64_t seq, int64_t max_batch, int64_t max_seq,
                          int64_t *dims) {
    static const struct lathe_target any = {.ghz = 1, .cost = {.f32 = 1, .efficiency = 1, .core_gbps = 1}};
    struct lathe_cost_model model = {.plan = plan, .target = &any, .threads = 1};
    double sum = 0;
    lathe_cost_sizes(&model, 1, seq, max_batch, max_seq, dims);
    for (uint32_t i = 0; i < plan->head->step_count; i++) {
        struct lathe_step_cost c;
        lathe_cost_step(&model, i, &c);
        sum += c.products;
    }
    return sum;
}

/* The sizes of the sequence: its symbol, or NULL where it is fixed. */
static const struct lathe_fmt_symbol *sequence_of(const struct lathe_plan *plan) {
    for (uint32_t i = 0; i < plan->head->symbol_count; i++)
        if (plan->symbols[i].role == LATHE_ROLE_SEQUENCE)
            return &plan->symbols[i];
    return NULL;
}

unsigned lathe_cost_predict_all(const struct lathe_plan *plan, const struct lathe_target *target, int64_t max_batch,
                                int64_t max_seq, struct lathe_cost_prediction *out) {
    static const int64_t lengths[] = {8, 16, 32, 64, 128, 256, 384, 512};
    const struct lathe_fmt_symbol *s = sequence_of(plan);
    unsigned threads[] = {1, target && target->cores > 1 ? target->cores : 2}, n = 0;
    int64_t *dims = calloc((size_t)plan->head->dim_count + 1, sizeof *dims);
    if (!dims || !lathe_cost_known(target)) {
        free(dims);
        return 0;
    }
    int64_t asked[sizeof lengths / sizeof *lengths] = {s ? s->max : 0};
    unsigned count = 0;
    for (size_t i = 0; s && i < sizeof lengths / sizeof *lengths; i++)
        if (lengths[i] <= s->max && lengths[i] >= s->min)
            asked[count++] = lengths[i];
    count = count ? count : 1;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned i = 0; i < count && n < LATHE_COST_PREDICTIONS; i++) {
            struct lathe_cost_model model = {.plan = plan, .target = target, .threads = threads[t]};
            lathe_cost_sizes(&model, 1, asked[i], max_batch, max_seq, dims);
            if (!model.dims) {
                free(dims);
                return 0;
            }
            lathe_cost_predict(&model, &out[n]);
            if (!s && max_seq <= 0)
                out[n].length = 0;
            n++;
        }
    free(dims);
    return n;
}

bool lathe_cost_saved(const struct lathe_plan *plan, const struct lathe_work_saved *saved, int64_t max_batch,
                      int64_t max_seq, struct lathe_cost_savings *out) {
    const struct lathe_fmt_symbol *s = sequence_of(plan);
    *out = (struct lathe_cost_savings){.length = s ? s->max : max_seq};
    if (out->length <= 0)
        return true;
    if (s && out->length > 128)
        out->length = s->min > 128 ? s->min : 128;
    int64_t *dims = calloc((size_t)plan->head->dim_count + 1, sizeof *dims);
    if (!dims)
        return false;
    double length = (double)out->length, taken = (length - 1) * (saved->row + length * saved->pair);
    double absorbed = length * saved->token - saved->once;
    out->products = products_at(plan, out->length, max_batch, max_seq, dims);
    double all = out->products + taken + absorbed;
    out->trimmed = all > 0 ? taken / all : 0;
    out->absorbed = all > 0 ? absorbed / all : 0;
    for (uint32_t i = 0; s && i < plan->head->symbol_count; i++)
        out->packs |= plan->symbols[i].source == LATHE_SYMBOL_ROWS;
    for (int p = 0; out->packs && p < 2; p++) {
        int64_t real = out->length - out->length * (p + 1) / 4;
        out->packed[p] = out->products > 0 ? 1 - products_at(plan, real, max_batch, max_seq, dims) / out->products : 0;
    }
    free(dims);
    return true;
}
