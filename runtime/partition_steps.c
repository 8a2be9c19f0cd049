/* Exact partition of a sequence, and the stages of a plan. */
#include "partition_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- partition */

/* Whether pieces of at most `bound` each suffice, `parts` of them. */
static bool fits(const uint64_t *costs, uint32_t count, unsigned parts, uint64_t bound) {
    uint64_t sum = 0;
    unsigned used = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (costs[i] > bound)
            return false;
        if (sum > bound - costs[i]) {
            sum = 0;
            if (++used > parts)
                return false;
        }
        sum += costs[i];
    }
    return true;
}

/* The smallest bound that fits; pieces can then be split further, so exactly `parts` pieces have it too. */
static uint64_t smallest_bound(const uint64_t *costs, uint32_t count, unsigned parts) {
    uint64_t low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++)
        high += costs[i];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (fits(costs, count, parts, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool lathe_partition(const uint64_t *costs, uint32_t count, unsigned parts, uint32_t *cuts) {
    size_t row = (size_t)count + 1;
    uint64_t bound = smallest_bound(costs, count, parts), *before = malloc(row * sizeof *before);
    double *squares = malloc(2 * row * sizeof *squares), *last = squares, *now = squares + row;
    uint32_t *from = malloc(((size_t)parts + 1) * row * sizeof *from);
    bool ok = before && squares && from;
    if (ok) {
        before[0] = 0;
        for (uint32_t i = 0; i < count; i++)
            before[i + 1] = before[i] + costs[i];
        for (uint32_t i = 0; i <= count; i++)
            last[i] = i ? INFINITY : 0;
    }
    /* now[end]: the least sum of squares of `part` pieces, none above the bound, that end before item `end` */
    for (unsigned part = 1; ok && part <= parts; part++) {
        for (uint32_t end = 0; end <= count; end++) {
            now[end] = INFINITY;
            for (uint32_t first = end; first-- > 0 && before[end] - before[first] <= bound;) {
                double piece = (double)(before[end] - before[first]), sum = last[first] + piece * piece;
                if (sum < now[end]) {
                    now[end] = sum;
                    from[part * row + end] = first;
                }
            }
        }
        double *swap = last;
        last = now;
        now = swap;
    }
    if (ok) {
        cuts[parts] = count;
        for (unsigned part = parts; part > 0; part--)
            cuts[part - 1] = from[part * row + cuts[part]];
    }
    free(before);
    free(squares);
    free(from);
    return ok;
}

/* ---- memory of a stage */

struct range {
    uint64_t begin, end;
};

static int by_begin(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Bytes of the union; sorts. */
static uint64_t union_bytes(struct range *ranges, size_t count) {
    uint64_t total = 0, end = 0;
    qsort(ranges, count, sizeof *ranges, by_begin);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = ranges[i].begin > end ? ranges[i].begin : end;
        if (ranges[i].end > begin) {
            total += ranges[i].end - begin;
            end = ranges[i].end;
        }
    }
    return total;
}

static uint64_t value_bytes(const struct lathe_fmt_value *v, const int64_t *dims) {
    int64_t sizes[LATHE_MAX_RANK];
    for (unsigned i = 0; i < v->rank; i++)
        sizes[i] = dims[v->dims[i]];
    int64_t bytes = v->packing ? -1 : lathe_shape_bytes((enum lathe_dtype)v->dtype, v->rank, sizes);
    return bytes >= 0 && (uint64_t)bytes < v->bytes ? (uint64_t)bytes : v->bytes;
}

/* Appends what the operands of steps [first, end) of one place take up at these dims (NULL: at the plan's maxima) to
 * `ranges`; the new count. */
static size_t add_ranges(const struct lathe_plan *p, const struct lathe_stage *s, enum lathe_value_place place,
                         const int64_t *dims, struct range *ranges, size_t n) {
    for (uint32_t i = s->first; i < s->end; i++) {
        const struct lathe_fmt_step *f = &p->steps[i];
        for (uint32_t k = 0; k < (uint32_t)f->n_in + f->n_out; k++) {
            uint32_t v = p->operands[f->first_operand + k];
            if (v == LATHE_FORMAT_ABSENT || p->values[v].place != place)
                continue;
            uint64_t bytes = dims ? value_bytes(&p->values[v], dims) : p->values[v].bytes;
            ranges[n++] = (struct range){p->values[v].offset, p->values[v].offset + bytes};
        }
    }
    return n;
}

static uint64_t place_bytes(const struct lathe_plan *p, const struct lathe_stage *s, enum lathe_value_place place,
                            const int64_t *dims, struct range *room) {
    return union_bytes(room, add_ranges(p, s, place, dims, room, 0));
}

/* ---- stages */

struct workshop {
    int64_t *symbols;
    int64_t *dims, *most, *largest; /* for one sequence as asked about, for that of the steps' costs, at the maxima */
    uint64_t *costs;                /* of the pieces: the prologue, then each step */
    uint32_t *ends;                 /* the step behind each piece */
    uint32_t pieces;
    uint32_t *cuts;
    struct range *ranges;
};

/* One sequence of the largest length, all of its rows kept: the sizes that FORMAT.md gives the steps' costs. */
static void one_sequence(const struct lathe_plan *p, const int64_t *most, int64_t *symbols) {
    int64_t length = 1;
    for (uint32_t i = 0; i < p->head->symbol_count; i++) {
        int64_t size = most ? most[i] : p->symbols[i].max;
        symbols[i] = p->symbols[i].role == LATHE_ROLE_BATCH ? 1 : size;
        if (p->symbols[i].role == LATHE_ROLE_SEQUENCE)
            length = size;
    }
    for (uint32_t i = 0; i < p->head->symbol_count; i++)
        if (p->symbols[i].source == LATHE_SYMBOL_ROWS && length < symbols[i])
            symbols[i] = length;
}

static bool make_workshop(const struct lathe_plan *p, const int64_t *symbols, unsigned cores, struct workshop *w) {
    const struct lathe_fmt_plan *h = p->head;
    w->symbols = malloc((h->symbol_count + 1) * sizeof *w->symbols);
    w->dims = malloc((h->dim_count + 1) * sizeof *w->dims);
    w->most = malloc((h->dim_count + 1) * sizeof *w->most);
    w->largest = malloc((h->dim_count + 1) * sizeof *w->largest);
    w->costs = malloc(((size_t)h->step_count + 1) * sizeof *w->costs);
    w->ends = malloc(((size_t)h->step_count + 1) * sizeof *w->ends);
    w->cuts = malloc(((size_t)cores + 1) * sizeof *w->cuts);
    w->ranges = malloc(((size_t)h->operand_count + 1) * sizeof *w->ranges);
    if (!w->symbols || !w->dims || !w->most || !w->largest || !w->costs || !w->ends || !w->cuts || !w->ranges)
        return false;
    for (uint32_t i = 0; i < h->symbol_count; i++)
        w->symbols[i] = symbols ? symbols[i] : p->symbols[i].max;
    lathe_plan_eval(p, w->symbols, false, w->largest);
    one_sequence(p, NULL, w->symbols);
    lathe_plan_eval(p, w->symbols, false, w->most);
    one_sequence(p, symbols, w->symbols);
    lathe_plan_eval(p, w->symbols, false, w->dims);
    return true;
}

/* The compiler's estimate, moved to these sizes by the ratio of the rough one; that one alone where there is none. */
static double step_cost(const struct lathe_plan *p, uint32_t step, const struct workshop *w) {
    double work = lathe_step_work(p, step, w->dims), most = lathe_step_work(p, step, w->most);
    uint32_t cost = p->steps[step].cost;
    return cost && most > 0 ? cost * work / most : work / LATHE_WORK_PER_NS;
}

static void free_workshop(struct workshop *w) {
    free(w->symbols);
    free(w->dims);
    free(w->most);
    free(w->largest);
    free(w->costs);
    free(w->ends);
    free(w->cuts);
    free(w->ranges);
}

/* The time of the partition grows with the square of the pieces: larger plans, which no model has, are cut at groups.
 */
#define MOST_PIECES 4096
#define MOST_COST   1e12 /* of a step, so that no sum wraps */

static void make_pieces(const struct lathe_plan *p, struct workshop *w) {
    uint32_t steps = p->head->step_count, group = steps / MOST_PIECES + 1;
    for (uint32_t i = 0, end; i < steps; i = end) {
        end = i == 0 && p->head->prologue_steps > 0 ? p->head->prologue_steps : group < steps - i ? i + group : steps;
        uint64_t cost = 0;
        for (uint32_t k = i; k < end; k++)
            cost += (uint64_t)llround(fmin(step_cost(p, k, w), MOST_COST));
        w->costs[w->pieces] = cost;
        w->ends[w->pieces++] = end;
    }
}

enum lathe_status lathe_stages_make(const struct lathe_plan *p, const int64_t *symbols, unsigned cores,
                                    struct lathe_stage *stages, unsigned *count, struct lathe_diag *diag) {
    struct workshop w = {0};
    bool ok = make_workshop(p, symbols, cores, &w);
    if (ok)
        make_pieces(p, &w);
    *count = cores < w.pieces ? cores : w.pieces > 0 ? w.pieces : 1;
    if (ok && w.pieces)
        ok = lathe_partition(w.costs, w.pieces, *count, w.cuts);
    for (unsigned k = 0; ok && k < *count; k++) {
        struct lathe_stage *s = &stages[k];
        *s = (struct lathe_stage){0};
        for (uint32_t i = w.cuts[k]; w.pieces && i < w.cuts[k + 1]; i++) {
            s->cost += (double)w.costs[i];
            s->end = w.ends[i];
        }
        s->first = k ? stages[k - 1].end : 0;
        s->weight_bytes = place_bytes(p, s, LATHE_PLACE_CONSTANT, w.largest, w.ranges);
        s->activation_bytes = place_bytes(p, s, LATHE_PLACE_ARENA, w.largest, w.ranges);
    }
    free_workshop(&w);
    return ok ? LATHE_OK : lathe_fail(diag, LATHE_MSG_NO_MEMORY, "stages: out of memory");
}

/* Sums of the last plan's stages over all plans. */
static enum lathe_status hold_all(const struct lathe_plan *const *plans, unsigned plan_count, unsigned cores,
                                  struct lathe_stage *stages, unsigned count, struct lathe_diag *diag) {
    size_t room = 1;
    for (unsigned i = 0; i < plan_count; i++)
        room += plans[i]->head->operand_count;
    struct range *ranges = malloc(room * sizeof *ranges);
    if (!ranges)
        return lathe_fail(diag, LATHE_MSG_NO_MEMORY, "stages: out of memory");
    for (unsigned k = 0; k < count; k++) {
        struct lathe_stage *held = &stages[(size_t)(plan_count - 1) * cores + k];
        size_t n = 0;
        for (unsigned i = 0; i < plan_count; i++) {
            const struct lathe_stage *s = &stages[(size_t)i * cores + k];
            n = add_ranges(plans[i], s, LATHE_PLACE_CONSTANT, NULL, ranges, n);
            if (s->activation_bytes > held->activation_bytes)
                held->activation_bytes = s->activation_bytes;
        }
        held->weight_bytes = union_bytes(ranges, n);
    }
    free(ranges);
    return LATHE_OK;
}

enum lathe_status lathe_stages_make_all(const struct lathe_plan *const *plans, const int64_t *const *symbols,
                                        unsigned plan_count, unsigned cores, struct lathe_stage *stages,
                                        unsigned *count, struct lathe_diag *diag) {
    *count = cores;
    for (unsigned i = 0; i < plan_count;) {
        unsigned made;
        LATHE_TRY(
            lathe_stages_make(plans[i], symbols ? symbols[i] : NULL, *count, stages + (size_t)i * cores, &made, diag));
        i = made < *count ? 0 : i + 1;
        *count = made;
    }
    return plan_count > 1 ? hold_all(plans, plan_count, cores, stages, *count, diag) : LATHE_OK;
}

double lathe_stages_imbalance(const struct lathe_stage *stages, unsigned count) {
    double sum = 0, most = 0;
    for (unsigned i = 0; i < count; i++) {
        sum += stages[i].cost;
        most = stages[i].cost > most ? stages[i].cost : most;
    }
    return sum > 0 ? most * count / sum - 1 : 0;
}
