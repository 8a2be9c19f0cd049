/* The run: phases of steps that all threads walk together, or ranges of steps that one thread runs. Nothing here
 * allocates or calls the system; the threads wait for each other only before a step that depends on what another thread
 * may still be doing. */
#include "row_map.h"
#include "session.h"

#include <string.h>

static void copy_step(const struct lathe_step_state *st, const struct lathe_team *team) {
    const struct lathe_tensor *in = st->in[0], *out = st->out[0];
    int64_t n = lathe_shape_bytes(in->dtype, in->rank, in->dims),
            m = lathe_shape_bytes(out->dtype, out->rank, out->dims);
    int64_t begin, end;
    lathe_team_split(team, n < m ? n : m, 4096, &begin, &end);
    if (end > begin)
        memcpy((char *)out->data + begin, (const char *)in->data + begin, (size_t)(end - begin));
}

/* Rows of the batch without any key where the source would give NaN; asked before the step, while its keys are there.
 */
static void count_flagged(struct lathe_session *s, const struct lathe_step_state *st) {
    const struct lathe_tensor *keys = st->op->op == LATHE_OP_ROW_MAP ? st->in[0] : st->in[3];
    if (keys->rank != 2)
        return;
    size_t row = (size_t)keys->dims[1] * lathe_dtype_bytes(keys->dtype);
    unsigned n = 0;
    for (int64_t b = 0; b < keys->dims[0]; b++) {
        const char *p = (const char *)keys->data + (size_t)b * row;
        bool any = false;
        for (size_t k = 0; k < row && !any; k++)
            any = p[k] != 0;
        n += !any;
    }
    s->flagged = n > s->flagged ? n : s->flagged;
}

static uint8_t *thread_scratch(const struct lathe_session *s, unsigned thread) {
    return s->scratch_bytes ? s->scratch + thread * s->scratch_bytes : NULL;
}

static struct lathe_op_call call_of(struct lathe_session *s, const struct lathe_step_state *st,
                                    const struct lathe_team *team, unsigned thread, uint8_t *scratch) {
    return (struct lathe_op_call){
        .attrs = st->attrs,
        .in = st->in,
        .out = st->out,
        .n_in = st->n_in,
        .n_out = st->n_out,
        .team = *team,
        .kernels = &s->kernels,
        .heads = st->heads.heads ? &st->heads : NULL,
        .tokens = s->tokens,
        .token_places = s->token_places,
        .scratch = scratch,
        .diag = &s->diags[thread],
    };
}

/* `prepared`: the rows that the phase before has prepared for this step, or NULL. */
static enum lathe_status run_untimed(struct lathe_session *s, uint32_t index, const struct lathe_team *team,
                                     unsigned thread, uint8_t *scratch, uint8_t *prepared) {
    const struct lathe_step_state *st = &s->steps[index];
    if (st->op->op == LATHE_OP_RESHAPE) {
        copy_step(st, team);
        return LATHE_OK;
    }
    if (st->flags_rows && thread == 0)
        count_flagged(s, st);
    struct lathe_op_call call = call_of(s, st, team, thread, scratch);
    call.prepared = prepared;
    return st->op->run(&call);
}

static void add_time(struct lathe_session *s, uint32_t index, unsigned thread, uint64_t start) {
    s->step_ns[(size_t)thread * s->plan->head->step_count + index] += lathe_now_ns() - start;
}

static enum lathe_status run_step(struct lathe_session *s, uint32_t index, const struct lathe_team *team,
                                  unsigned thread, uint8_t *scratch, uint8_t *prepared) {
    if (!s->step_ns)
        return run_untimed(s, index, team, thread, scratch, prepared);
    uint64_t start = lathe_now_ns();
    enum lathe_status status = run_untimed(s, index, team, thread, scratch, prepared);
    add_time(s, index, thread, start);
    return status;
}

static void fail_step(struct lathe_session *s, uint32_t index, enum lathe_status status, unsigned thread) {
    struct lathe_diag *diag = &s->diags[thread];
    const char *name = lathe_plan_string(s->plan, s->plan->steps[index].name);
    if (diag->status == LATHE_OK) {
        lathe_fail(diag, LATHE_MSG_RUN_STEP, "step '%s' (%s) failed: %s", name, s->steps[index].op->name,
                   lathe_status_name(status));
    } else { /* the operator knows what is wrong, not where */
        const struct lathe_diag what = *diag;
        lathe_diag_reset(diag);
        lathe_fail(diag, what.message, "node '%s': %s", name, what.text);
    }
    atomic_store(&s->failed, 1);
}

/* Steps [first, end) of the phase in one part. False when one fails. */
static bool run_part(struct lathe_session *s, const struct lathe_phase *part, const struct lathe_team *team) {
    const struct lathe_team alone = {.count = 1};
    for (uint32_t i = part->first; i < part->end; i++) {
        const struct lathe_step_state *st = &s->steps[i];
        if (st->solo && team->index != 0)
            continue;
        if (atomic_load_explicit(&s->failed, memory_order_relaxed))
            return false;
        enum lathe_status status = run_step(s, i, st->solo ? &alone : team, team->thread,
                                            thread_scratch(s, team->thread), st->prepared ? s->prepared : NULL);
        if (status != LATHE_OK) {
            fail_step(s, i, status, team->thread);
            return false;
        }
    }
    return true;
}

/* Rows [m0, m1) of a tensor; of one that stays a block, the block. */
static struct lathe_tensor rows_of(const struct lathe_session *s, const struct lathe_tensor *t, unsigned thread,
                                   int64_t m0, int64_t m1) {
    struct lathe_tensor part = *t;
    uint64_t slot = s->slots[t - s->tensors];
    size_t row = (size_t)t->dims[1] * lathe_dtype_bytes(t->dtype);
    part.dims[0] = m1 - m0;
    part.data =
        slot != LATHE_NO_SLOT ? s->blocks + thread * s->block_bytes + slot : (uint8_t *)t->data + (size_t)m0 * row;
    return part;
}

/* The same in blocks of the thread's rows, one after the other through all steps. */
static bool run_blocks(struct lathe_session *s, const struct lathe_phase *part, const struct lathe_team *team) {
    int64_t begin, end, rows = (int64_t)s->steps[part->first].rows;
    lathe_team_split(team, rows, 1, &begin, &end);
    int64_t blocks = (end - begin + part->block_rows - 1) / part->block_rows;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t m0 = begin + (end - begin) * b / blocks, m1 = begin + (end - begin) * (b + 1) / blocks;
        for (uint32_t i = part->first; i < part->end; i++) {
            const struct lathe_step_state *st = &s->steps[i];
            struct lathe_row_operands by_rows = lathe_row_operands(st->op->op);
            struct lathe_tensor views[2 * LATHE_BLOCK_OPERANDS], *out[LATHE_BLOCK_OPERANDS];
            const struct lathe_tensor *in[LATHE_BLOCK_OPERANDS];
            unsigned n = 0;
            for (unsigned k = 0; k < st->n_in; k++) {
                in[k] = st->in[k];
                if (in[k] && by_rows.in >> k & 1) {
                    views[n] = rows_of(s, in[k], team->thread, m0, m1);
                    in[k] = &views[n++];
                }
            }
            for (unsigned k = 0; k < st->n_out; k++) {
                out[k] = NULL;
                if (st->out[k]) {
                    views[n] = rows_of(s, st->out[k], team->thread, m0, m1);
                    out[k] = &views[n++];
                }
            }
            if (atomic_load_explicit(&s->failed, memory_order_relaxed))
                return false;
            struct lathe_op_call call =
                call_of(s, st, &(struct lathe_team){.count = 1}, team->thread, thread_scratch(s, team->thread));
            call.in = in;
            call.out = out;
            call.beside = *team;
            uint64_t start = s->step_ns ? lathe_now_ns() : 0;
            enum lathe_status status = st->op->run(&call);
            if (s->step_ns)
                add_time(s, i, team->thread, start);
            if (status != LATHE_OK) {
                fail_step(s, i, status, team->thread);
                return false;
            }
        }
    }
    return true;
}

/* One part of a phase: the steps up to the next place where threads meet. */
static void phase(void *user, const struct lathe_team *parts, unsigned index) {
    struct lathe_session *s = user;
    const struct lathe_phase *part = &s->phases[index];
    struct lathe_team whole = *parts, *team = &whole;
    if (!part->in_turns) { /* one part a thread: its first */
        if (parts->index % s->turns)
            return;
        whole.index /= s->turns;
        whole.count /= s->turns;
        whole.turns = 1;
    }
    if (!(part->block_rows ? run_blocks(s, part, team) : run_part(s, part, team)))
        return;
    if (part->prepare != LATHE_NOTHING_TO_PREPARE) {
        struct lathe_op_call call = call_of(s, &s->steps[part->prepare], team, team->thread, NULL);
        call.prepared = s->prepared;
        uint64_t start = s->step_ns ? lathe_now_ns() : 0;
        s->steps[part->prepare].op->prepare(&call);
        if (s->step_ns)
            add_time(s, part->prepare, team->thread, start);
    }
}

/* Fills what the run will write, so that nothing of the last run shows through. */
static void poison_arena(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t v = 0; v < p->head->value_count; v++) {
        const struct lathe_fmt_value *f = &p->values[v];
        if (f->place != LATHE_PLACE_ARENA)
            continue;
        int64_t bytes = lathe_shape_bytes((enum lathe_dtype)f->dtype, f->rank, s->tensors[v].dims);
        if (bytes > 0 && (uint64_t)bytes <= f->bytes)
            memset(s->arena + f->offset, (int)(s->poison & 0xff), (size_t)bytes);
    }
}

void lathe_session_restart(struct lathe_session *s) {
    for (unsigned i = 0; i < s->threads; i++)
        lathe_diag_reset(&s->diags[i]);
    atomic_store(&s->failed, 0);
    s->flagged = 0;
    if (s->poison)
        poison_arena(s);
}

/* Why the run failed, as its threads noted it. */
static enum lathe_status failure(const struct lathe_session *s, struct lathe_diag *diag) {
    for (unsigned i = 0; i < s->threads; i++)
        if (s->diags[i].status != LATHE_OK)
            return lathe_fail(diag, s->diags[i].message, "%s", s->diags[i].text);
    return lathe_fail(diag, LATHE_MSG_RUN_STEP, "a step failed");
}

enum lathe_status lathe_session_steps(struct lathe_session *s, uint32_t first, uint32_t end, uint8_t *scratch,
                                      struct lathe_diag *diag) {
    const struct lathe_team alone = {.count = 1};
    for (uint32_t i = first; i < end; i++) {
        enum lathe_status status = run_step(s, i, &alone, 0, scratch ? scratch : thread_scratch(s, 0), NULL);
        if (status != LATHE_OK) {
            fail_step(s, i, status, 0);
            return failure(s, diag);
        }
        if (i + 1 == s->plan->head->prologue_steps)
            LATHE_TRY(lathe_session_shape_rows(s, diag));
    }
    return LATHE_OK;
}

enum lathe_status lathe_session_exec(struct lathe_session *s, struct lathe_diag *diag) {
    uint32_t prologue = s->plan->head->prologue_steps, count = s->plan->head->step_count;
    LATHE_TRY(lathe_session_steps(s, 0, prologue, NULL, diag));
    if (prologue < count) {
        if (s->alone)
            for (unsigned i = 0; i < s->phase_count; i++)
                phase(s, &(struct lathe_team){.count = 1}, i);
        else
            lathe_pool_run_phases(s->pool, phase, s, s->phase_count, s->turns);
    }
    return atomic_load(&s->failed) ? failure(s, diag) : LATHE_OK;
}
