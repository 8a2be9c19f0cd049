/* The steps of a run as the threads walk them: which step must not overtake which, which one thread runs alone, and the
 * phases between two meetings. */
#include "gemm_q8_drive.h"
#include "gemm_split.h"
#include "partition_steps.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

/* Below this many bytes moved, or multiply-adds, sharing a step costs more than it saves. */
#define SOLO_BYTES    16384
#define SOLO_PRODUCTS 65536
/* And below this much work in all (see step_work.c), waking the others costs more than they save: 200 us of one core.
 */
#define ALONE_WORK (200e3 * LATHE_WORK_PER_NS)
/* Rows that a thread takes through the steps of a phase together, at most, and room for how many of the widest. What
 * the first feed-forward product of distilbert makes of 64 rows is 768 KiB: it stays in the second cache until the next
 * product reads it. 2 threads, EPYC with AVX-512 VNNI, int8, medians in ms at 64, 128, 512 tokens:
 *   distilbert   3.09 -> 2.99   6.36 -> 6.20   31.8 -> 31.2
 *   minilm-l6    as before, its rows fit anyway */
#define BLOCK_ROWS   ((size_t)64)
#define BLOCK_VALUES 2
/* Elements from which on quantizing the rows of a product once, by all threads, pays for a meeting of its own. With it
 * and with rows quantized where they were normalized, 2 threads, EPYC with AVX-512 VNNI, least of 8 medians in ms:
 *   distilbert int8, 16, 32, 48 tokens   0.811 -> 0.792   1.534 -> 1.513   2.470 -> 2.389
 *   minilm-l6 int8, 24 tokens            0.363 -> 0.344 */
#define PREPARE_ALONE 32768

/* Turns of a thread in a phase where it has several, and what a turn is at least: 50 us of one core, and so many rows,
 * as it reads all weights and its last tile may be small. One turn -> several, 2 threads, Xeon of the 5th generation on
 * a host that others use, medians of 11 or 13 in ms: distilbert at 512 tokens f32 228 -> 221, int8 on vectors 70.8
 * -> 65.8, on tiles 35.9 -> 34.7. With turns of 43 rows f32 at 256 tokens took 3 % longer. */
#define LEAST_TURNS 3
#define MOST_TURNS  4
#define TURN_WORK   (50e3 * LATHE_WORK_PER_NS)
#define TURN_ROWS   64

static int64_t tensor_bytes(const struct lathe_tensor *t) {
    return t ? lathe_tensor_count(t) * (int64_t)lathe_dtype_bytes(t->dtype) : 0;
}

/* Of a linear layer, whose threads share its groups when it has some. (Of a convolution it is not looked at: it has as
 * much to do for each of its x.) */
static int64_t groups_of(const struct lathe_step_state *st) {
    int64_t groups = lathe_row_operands(st->op->op).in ? lathe_attr_int(&st->attrs, LATHE_ATTR_GROUP, 1) : 1;
    return groups > 1 ? groups : 1;
}

static bool is_small(const struct lathe_step_state *st) {
    int64_t moved = 0, out = 0;
    for (unsigned i = 0; i < st->n_out; i++)
        out += tensor_bytes(st->out[i]);
    switch (st->op->op) {
    case LATHE_OP_GEMM:
        if (st->n_in > 2 && st->in[2]) /* it waits inside for the product, which parts must not */
            return true;
        /* fallthrough */
    case LATHE_OP_LINEAR:
    case LATHE_OP_LINEAR_BF16:
    case LATHE_OP_LINEAR_Q8:
    case LATHE_OP_MATMUL:
    case LATHE_OP_CONV:
    case LATHE_OP_MATMUL_INTEGER:
    case LATHE_OP_MATMUL_NBITS: {
        const struct lathe_tensor *x = st->in[0];
        int64_t k = x->rank ? x->dims[x->rank - 1] / groups_of(st) : 1, n = lathe_tensor_count(st->out[0]);
        return k == 0 || n < SOLO_PRODUCTS / (k + 1);
    }
    case LATHE_OP_ATTENTION:
    case LATHE_OP_ATTENTION_ROWS:
    case LATHE_OP_SDPA:
    case LATHE_OP_EINSUM:
        return out < 1024;
    case LATHE_OP_ROW_MAP:
        return true;
    case LATHE_OP_GATHER:
    case LATHE_OP_EMBEDDING_Q8:
    case LATHE_OP_EMBEDDING: /* the table is not read whole */
    case LATHE_OP_GATHER_BLOCK_QUANTIZED:
        return 2 * out < SOLO_BYTES;
    default:
        for (unsigned i = 0; i < st->n_in; i++)
            moved += tensor_bytes(st->in[i]);
        return moved + out < SOLO_BYTES;
    }
}

struct lathe_row_operands lathe_row_operands(enum lathe_op op) {
    switch (op) {
    case LATHE_OP_LINEAR:
        return (struct lathe_row_operands){1u << 0 | 1u << 3, 1, LATHE_OWN_ROWS_F32};
    case LATHE_OP_LINEAR_BF16:
        return (struct lathe_row_operands){1u << 0 | 1u << 3, 1, LATHE_OWN_ROWS_BF16};
    case LATHE_OP_LINEAR_Q8:
        return (struct lathe_row_operands){1u << 0 | 1u << 5, 1, 0};
    case LATHE_OP_SKIP_LAYER_NORM:
        return (struct lathe_row_operands){1u << 0 | 1u << 1, 3, 1};
    default:
        return (struct lathe_row_operands){0, 0, 1};
    }
}

/* See struct lathe_step_state. */
static size_t rows_of_step(const struct lathe_session *s, const struct lathe_step_state *st) {
    const struct lathe_tensor *y = st->n_out ? st->out[0] : NULL;
    struct lathe_row_operands by_rows = lathe_row_operands(st->op->op);
    if (st->solo || !by_rows.out || !st->in[0] || st->in[0]->rank < 1 || !y || y->rank < 1 ||
        y->dims[y->rank - 1] < 1 || groups_of(st) > 1)
        return 0;
    size_t rows = (size_t)(lathe_tensor_count(y) / y->dims[y->rank - 1]);
    const struct lathe_tensor *x = st->in[0];
    if (!by_rows.own)
        by_rows.own =
            lathe_own_rows_q8((size_t)x->dims[x->rank - 1], (size_t)y->dims[y->rank - 1], lathe_pool_near(s->pool));
    return lathe_gemm_by_rows(rows, s->threads, by_rows.own) ? rows : 0;
}

/* ---- heads */

static bool overlap(const struct lathe_tensor *a, const struct lathe_tensor *b) {
    const uint8_t *p = a->data, *q = b->data;
    return p < q + tensor_bytes(b) && q < p + tensor_bytes(a);
}

/* Views of a value have other dims, but its bytes and, here, its last axis. */
static bool same_rows(const struct lathe_tensor *t, const struct lathe_tensor *y) {
    return t->data == y->data && t->rank > 0 && y->rank > 0 && t->dims[t->rank - 1] == y->dims[y->rank - 1] &&
           tensor_bytes(t) == tensor_bytes(y);
}

/* The columns that operand `o` of an attention step reads. */
static bool head_part(const struct lathe_step_state *st, unsigned o, int64_t *at, int64_t *width) {
    static const enum lathe_attr_key offset[] = {LATHE_ATTR_Q_OFFSET, LATHE_ATTR_K_OFFSET, LATHE_ATTR_V_OFFSET};
    int64_t d = lathe_attr_int(&st->attrs, LATHE_ATTR_HEAD_DIM, 0);
    *at = lathe_attr_int(&st->attrs, offset[o], 0);
    *width = o == 2 ? lathe_attr_int(&st->attrs, LATHE_ATTR_V_HEAD_DIM, d) : d;
    return *at >= 0 && *width > 0 && *at % 16 == 0 && *width % 16 == 0;
}

/* Can the 8-bit product `i` be cut by the heads of attention step `j`, which reads its result? Whatever else the two
 * touch must be apart. One that could be cut by rows is cut by heads when a thread has that many: see
 * LATHE_LEAST_HEAD_ROWS. */
static bool cut_by_heads(const struct lathe_session *s, uint32_t i, uint32_t j, struct lathe_head_columns *out) {
    const struct lathe_step_state *product = &s->steps[i], *st = &s->steps[j];
    const struct lathe_tensor *y = product->out[0];
    size_t own = product->rows / s->threads;
    if (product->op->op != LATHE_OP_LINEAR_Q8 || product->solo || y->rank < 1 ||
        (product->rows && (own < LATHE_LEAST_HEAD_ROWS || own > LATHE_MOST_HEAD_ROWS)))
        return false;
    int64_t columns = 0, total = y->dims[y->rank - 1];
    for (unsigned o = 0; o < st->n_in; o++) {
        if (o < 3 && same_rows(st->in[o], y)) {
            int64_t *at = &out->part[out->count].at, *width = &out->part[out->count].width;
            if (!head_part(st, o, at, width) || *at > total || *width > (total - *at) / out->heads)
                return false;
            for (unsigned k = 0; k < out->count; k++)
                if (*at < out->part[k].at + out->heads * out->part[k].width &&
                    out->part[k].at < *at + out->heads * *width)
                    return false;
            columns += out->heads * *width;
            out->count++;
        } else if (st->in[o] && overlap(st->in[o], y)) {
            return false;
        }
    }
    for (unsigned k = 0; k < product->n_in; k++)
        if (product->in[k] && overlap(st->out[0], product->in[k]))
            return false;
    return columns == total && !overlap(st->out[0], y);
}

/* A thread that has computed queries, keys and values of its heads may go on with them. */
static void find_heads(struct lathe_session *s, uint32_t j) {
    struct lathe_step_state *st = &s->steps[j];
    int64_t heads = lathe_attr_int(&st->attrs, LATHE_ATTR_HEADS, 0);
    if ((st->op->op != LATHE_OP_ATTENTION && st->op->op != LATHE_OP_ATTENTION_ROWS) || st->solo || s->threads < 2 ||
        heads < 1 || heads % s->threads != 0 || lathe_attr_int(&st->attrs, LATHE_ATTR_KV_HEADS, heads) != heads)
        return;
    for (unsigned o = 0; o < 3; o++)
        for (uint32_t i = j; i-- > s->plan->head->prologue_steps;) {
            struct lathe_step_state *product = &s->steps[i];
            struct lathe_head_columns columns = {.heads = heads};
            if (!product->n_out || !product->out[0] || !overlap(product->out[0], st->in[o]))
                continue;
            if (!product->heads.heads && same_rows(st->in[o], product->out[0]) && cut_by_heads(s, i, j, &columns)) {
                product->heads = st->heads = columns;
                product->heads_of = j;
                product->rows = 0;
            }
            break;
        }
}

/* The step whose result operand 0 of step j is; j when there is none. */
static uint32_t producer_of(const struct lathe_session *s, uint32_t j) {
    const struct lathe_tensor *x = s->steps[j].in[0];
    for (uint32_t i = j; x && i-- > s->plan->head->prologue_steps;)
        if (s->steps[i].n_out && s->steps[i].out[0] && overlap(s->steps[i].out[0], x))
            return same_rows(x, s->steps[i].out[0]) ? i : j;
    return j;
}

/* Attention of one token on keys that its heads share: the layers before and behind it have the heads as groups, and
 * the queries are cut as they are, so that a thread goes on with its heads from the queries to the values. (Of several
 * sequences each thread better takes some.) */
static __attribute__((noinline)) void find_groups(struct lathe_session *s, uint32_t j) {
    struct lathe_step_state *st = &s->steps[j];
    int64_t heads = lathe_attr_int(&st->attrs, LATHE_ATTR_HEADS, 0);
    if (st->op->op != LATHE_OP_ATTENTION_ROWS || st->solo || s->threads < 2 || heads < 2 || heads % s->threads != 0 ||
        !st->in[0] || st->in[0]->rank != 2 || st->in[0]->dims[0] != 1 ||
        lathe_attr_int(&st->attrs, LATHE_ATTR_KV_HEADS, heads) != 1)
        return;
    uint32_t i = producer_of(s, j), q = producer_of(s, i);
    if (i == j || s->steps[i].solo || groups_of(&s->steps[i]) != heads)
        return;
    st->heads = (struct lathe_head_columns){.heads = heads};
    struct lathe_step_state *queries = &s->steps[q];
    int64_t width = s->steps[i].in[0]->dims[s->steps[i].in[0]->rank - 1] / heads;
    if (q != i && queries->op->op == LATHE_OP_LINEAR_Q8 && !queries->solo && !queries->rows && !queries->heads.heads &&
        groups_of(queries) == 1 && width % 16 == 0) {
        queries->heads = (struct lathe_head_columns){.heads = heads, .count = 1, .part = {{0, width}}};
        queries->heads_of = UINT32_MAX;
    }
}

/* The heads that a step is cut by, 0: it is not. */
static int64_t heads_of_step(const struct lathe_step_state *st) {
    return st->heads.heads ? st->heads.heads : st->solo || groups_of(st) == 1 ? 0 : groups_of(st);
}

/* Each thread needs of what step `a` makes only its own heads in step `b`, and nothing else of the two meets. */
static bool goes_on(const struct lathe_step_state *a, const struct lathe_step_state *b) {
    if (!heads_of_step(a) || heads_of_step(a) != heads_of_step(b) || !b->in[0] || !same_rows(b->in[0], a->out[0]) ||
        overlap(b->out[0], a->out[0]))
        return false;
    for (unsigned k = 1; k < b->n_in; k++)
        if (b->in[k] && overlap(b->in[k], a->out[0]))
            return false;
    for (unsigned k = 0; k < a->n_in; k++)
        if (a->in[k] && overlap(b->out[0], a->in[k]))
            return false;
    return true;
}

/* ---- prepared rows */

/* The 8-bit product `i`, which begins a phase: can its rows be quantized once, each by one thread, before the threads
 * meet? Cut by rows it needs no help. The memory for it was free again when the last step that used it had ended. */
static bool prepares(const struct lathe_session *s, uint32_t i, size_t *elements) {
    const struct lathe_step_state *st = &s->steps[i];
    const struct lathe_tensor *x = st->n_in ? st->in[0] : NULL;
    if (!st->op->prepare || st->solo || groups_of(st) > 1 || st->rows || !x || x->rank < 1 || x->dims[x->rank - 1] < 1)
        return false;
    size_t k = (size_t)x->dims[x->rank - 1], m = (size_t)lathe_tensor_count(x) / k;
    *elements = m * k;
    size_t block = (size_t)lathe_attr_int(&st->attrs, LATHE_ATTR_BLOCK_SIZE, 0);
    return m >= s->threads && lathe_gemm_q8_rows_bytes(m, k, block) <= s->prepared_bytes;
}

/* Ends a phase before step i and begins the next. *used: the phase of the last product with prepared rows. */
static void meet_before(struct lathe_session *s, uint32_t i, unsigned *used) {
    struct lathe_phase *ending = &s->phases[s->phase_count - 1];
    size_t elements;
    ending->end = i;
    if (prepares(s, i, &elements)) {
        const struct lathe_step_state *before = i ? &s->steps[i - 1] : NULL;
        /* Rows that a thread has just normalized are at hand: no more is needed than that it goes on with them. */
        bool at_hand = i > ending->first && before->op->op == LATHE_OP_SKIP_LAYER_NORM && before->rows &&
                       before->out[0] == s->steps[i].in[0] && *used < s->phase_count - 1;
        if (!at_hand && (elements >= PREPARE_ALONE || s->always_share)) {
            s->phases[s->phase_count++] = (struct lathe_phase){i, i, LATHE_NOTHING_TO_PREPARE, 0};
            at_hand = true;
        }
        if (at_hand) {
            s->phases[s->phase_count - 1].prepare = i;
            s->steps[i].prepared = true;
            *used = s->phase_count;
        }
    }
    s->phases[s->phase_count++] = (struct lathe_phase){i, i, LATHE_NOTHING_TO_PREPARE, 0};
}

/* ---- blocks */

static size_t row_bytes(const struct lathe_tensor *t) {
    return t->rank ? (size_t)t->dims[t->rank - 1] * lathe_dtype_bytes(t->dtype) : 0;
}

size_t lathe_session_block_bytes(const struct lathe_session *s) {
    size_t widest = 0, bytes;
    for (uint32_t i = 0; i < s->plan->head->step_count; i++) {
        const struct lathe_step_state *st = &s->steps[i];
        if (lathe_row_operands(st->op->op).out && st->out[0] && st->out[0]->rank == 2 && row_bytes(st->out[0]) > widest)
            widest = row_bytes(st->out[0]);
    }
    return lathe_mul_size((widest + 63) / 64 * 64, BLOCK_VALUES * BLOCK_ROWS, &bytes) ? bytes : 0;
}

/* Does a step touch by rows nothing but tensors of `rows` rows? */
static bool takes_blocks(const struct lathe_step_state *st, size_t rows) {
    struct lathe_row_operands by_rows = lathe_row_operands(st->op->op);
    if (!by_rows.out || st->rows != rows || st->n_in > LATHE_BLOCK_OPERANDS || st->n_out > LATHE_BLOCK_OPERANDS)
        return false;
    for (unsigned i = 0; i < st->n_in; i++)
        if (by_rows.in >> i & 1 && st->in[i] && (st->in[i]->rank != 2 || (size_t)st->in[i]->dims[0] != rows))
            return false;
    for (unsigned i = 0; i < st->n_out; i++)
        if (st->out[i] && (st->out[i]->rank != 2 || (size_t)st->out[i]->dims[0] != rows))
            return false;
    return true;
}

/* Can what step `i` of the phase writes stay a block, as only the phase reads it, row by row and as that very value? */
static bool stays_block(const struct lathe_session *s, const struct lathe_phase *phase, uint32_t i) {
    const struct lathe_step_state *st = &s->steps[i];
    const struct lathe_tensor *y = st->out[0];
    if (st->last_reader >= phase->end || !y)
        return false;
    for (unsigned k = 1; k < st->n_out; k++)
        if (st->out[k])
            return false;
    for (uint32_t j = i + 1; j < phase->end; j++) {
        struct lathe_row_operands by_rows = lathe_row_operands(s->steps[j].op->op);
        for (unsigned k = 0; k < s->steps[j].n_in; k++) {
            const struct lathe_tensor *x = s->steps[j].in[k];
            if (x && overlap(x, y) && (x != y || !(by_rows.in >> k & 1)))
                return false;
        }
    }
    return true;
}

static void set_blocks(struct lathe_session *s, struct lathe_phase *phase) {
    size_t rows = phase->end > phase->first + 1 ? s->steps[phase->first].rows : 0, used = 0;
    for (uint32_t i = phase->first; i < phase->end; i++)
        if (!takes_blocks(&s->steps[i], rows))
            rows = 0;
    if (!rows || phase->prepare != LATHE_NOTHING_TO_PREPARE)
        return;
    for (uint32_t i = phase->first; i < phase->end; i++) {
        const struct lathe_tensor *y = s->steps[i].out[0];
        size_t need = (BLOCK_ROWS * row_bytes(y) + 63) / 64 * 64;
        if (!stays_block(s, phase, i) || need > s->block_bytes - used)
            continue;
        s->slots[y - s->tensors] = used;
        used += need;
        phase->block_rows = BLOCK_ROWS;
    }
}

/* ---- turns */

/* Can each thread do the phase in turns, `parts` in all? By rows, or by heads that are shared out evenly; attention
 * alone takes its queries as it likes. */
static bool fits_turns(const struct lathe_session *s, const struct lathe_phase *phase, unsigned parts) {
    double work = 0;
    for (uint32_t i = phase->first; i < phase->end; i++) {
        const struct lathe_step_state *st = &s->steps[i];
        int64_t heads = heads_of_step(st);
        bool attention = st->op->op == LATHE_OP_ATTENTION || st->op->op == LATHE_OP_ATTENTION_ROWS;
        bool by_rows = st->rows && (st->rows / parts >= TURN_ROWS || s->always_share);
        bool by_heads = heads && heads % parts == 0 && (st->prepared || attention);
        if (st->solo || !(by_rows || by_heads || (attention && !heads && phase->end == phase->first + 1)))
            return false;
        work += lathe_step_work(s->plan, i, s->dims);
    }
    return work >= parts * TURN_WORK || s->always_share;
}

/* Several turns for each thread in the phases that take long, so that one on a slower core, or whose core does
 * something else for a while, is helped out. Two would help only where one core is half as fast. `all`: the work of the
 * run, which short ones need not look at closer. */
static void set_turns(struct lathe_session *s, double all) {
    double most = 0;
    s->turns = 1;
    if (s->alone || (all < LEAST_TURNS * s->threads * TURN_WORK && !s->always_share))
        return;
    for (unsigned turns = MOST_TURNS; turns >= LEAST_TURNS; turns--) {
        double work = 0;
        for (unsigned i = 0; i < s->phase_count; i++)
            if (fits_turns(s, &s->phases[i], turns * s->threads))
                for (uint32_t k = s->phases[i].first; k < s->phases[i].end; k++)
                    work += lathe_step_work(s->plan, k, s->dims);
        if (work > most) {
            most = work;
            s->turns = turns;
        }
    }
    for (unsigned i = 0; i < s->phase_count; i++)
        s->phases[i].in_turns = s->turns > 1 && fits_turns(s, &s->phases[i], s->turns * s->threads);
}

/* ---- phases */

/* Where threads meet: before a step that conflicts with one since the last meeting, unless one thread runs both or each
 * thread only its own rows or heads. */
void lathe_session_phases(struct lathe_session *s) {
    uint32_t prologue = s->plan->head->prologue_steps, count = s->plan->head->step_count;
    double work = 0;
    for (uint32_t i = prologue; i < count; i++)
        work += lathe_step_work(s->plan, i, s->dims);
    s->alone = s->threads < 2 || (work < ALONE_WORK && !s->always_share);
    /* the steps of the prologue are run by the caller before the threads start */
    s->phases[0] = (struct lathe_phase){prologue, prologue, LATHE_NOTHING_TO_PREPARE, 0};
    s->phase_count = 1;
    unsigned used = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct lathe_step_state *st = &s->steps[i];
        st->solo = s->alone || is_small(st);
        st->rows = rows_of_step(s, st);
        st->prepared = false;
        st->heads = (struct lathe_head_columns){0};
        find_heads(s, i);
        find_groups(s, i);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct lathe_step_state *st = &s->steps[i];
        for (uint32_t c = 0; i >= prologue && c < st->conflict_count; c++) {
            uint32_t conflict = s->conflicts[st->first_conflict + c], other = conflict & ~LATHE_SAME_ROWS;
            if (other < s->phases[s->phase_count - 1].first)
                break;
            bool by_rows = conflict & LATHE_SAME_ROWS && st->rows && st->rows == s->steps[other].rows;
            bool by_heads =
                (s->steps[other].heads.heads && s->steps[other].heads_of == i) || goes_on(&s->steps[other], st);
            if (!(st->solo && s->steps[other].solo) && !by_rows && !by_heads) {
                meet_before(s, i, &used);
                break;
            }
        }
    }
    s->phases[s->phase_count - 1].end = count;
    memset(s->slots, 0xff, s->plan->head->value_count * sizeof *s->slots);
    for (unsigned i = 0; i < s->phase_count; i++)
        set_blocks(s, &s->phases[i]);
    set_turns(s, work);
}

/* ---- conflicts */

struct range {
    uint64_t begin, end;
    uint64_t row; /* bytes of a row where the step may work by rows, else 0 */
};

/* Bytes of the last axis when they are the same at all sizes. */
static uint64_t fixed_row(const struct lathe_plan *p, const struct lathe_fmt_value *v) {
    if (v->rank < 1)
        return 0;
    const struct lathe_fmt_dim *d = &p->dims[v->dims[v->rank - 1]];
    return d->op == LATHE_DIM_CONST ? (uint64_t)d->constant * lathe_dtype_bytes((enum lathe_dtype)v->dtype) : 0;
}

static unsigned step_ranges(const struct lathe_session *s, uint32_t step, bool writes, struct range *out,
                            unsigned room) {
    const struct lathe_plan *p = s->plan;
    const struct lathe_fmt_step *f = &p->steps[step];
    const uint32_t *operands = p->operands + f->first_operand + (writes ? f->n_in : 0);
    unsigned count = writes ? f->n_out : f->n_in, n = 0;
    struct lathe_row_operands by_rows = lathe_row_operands((enum lathe_op)f->op);
    unsigned rows = writes ? by_rows.out : by_rows.in;
    for (unsigned i = 0; i < count; i++) {
        if (operands[i] == LATHE_FORMAT_ABSENT || p->values[operands[i]].place != LATHE_PLACE_ARENA)
            continue;
        if (n == room)
            return UINT32_MAX;
        const struct lathe_fmt_value *v = &p->values[operands[i]];
        out[n++] = (struct range){v->offset, v->offset + v->bytes, i < 32 && rows >> i & 1 ? fixed_row(p, v) : 0};
    }
    return n;
}

#define MAX_RANGES 64
struct access {
    struct range reads[MAX_RANGES], writes[MAX_RANGES];
    unsigned n_reads, n_writes; /* UINT32_MAX: too many to list; conflicts with everything */
};

enum meeting { APART, IN_ROWS, ANYHOW };
static enum meeting meet(const struct range *a, unsigned n_a, const struct range *b, unsigned n_b) {
    if (n_a == UINT32_MAX || n_b == UINT32_MAX)
        return ANYHOW;
    enum meeting how = APART;
    for (unsigned i = 0; i < n_a; i++)
        for (unsigned k = 0; k < n_b; k++)
            if (a[i].begin < b[k].end && b[k].begin < a[i].end) {
                if (a[i].begin != b[k].begin || a[i].row != b[k].row || !a[i].row)
                    return ANYHOW;
                how = IN_ROWS;
            }
    return how;
}
static enum meeting worse(enum meeting a, enum meeting b) {
    return a > b ? a : b;
}

static void read_access(const struct lathe_session *s, uint32_t step, struct access *out) {
    out->n_reads = step_ranges(s, step, false, out->reads, MAX_RANGES);
    out->n_writes = step_ranges(s, step, true, out->writes, MAX_RANGES);
}

/* Who wrote bytes [begin, end) when step `reader` reads them: each step back to one that wrote them all. */
static void note_reader(struct lathe_session *s, uint64_t begin, uint64_t end, uint32_t before, uint32_t reader) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t i = before; i-- > 0;) {
        const struct lathe_fmt_step *f = &p->steps[i];
        bool all = false;
        for (unsigned k = 0; k < f->n_out; k++) {
            uint32_t v = p->operands[f->first_operand + f->n_in + k];
            if (v == LATHE_FORMAT_ABSENT || p->values[v].place != LATHE_PLACE_ARENA)
                continue;
            uint64_t from = p->values[v].offset, to = from + p->values[v].bytes;
            if (from >= end || begin >= to)
                continue;
            if (reader > s->steps[i].last_reader)
                s->steps[i].last_reader = reader;
            all = all || (from <= begin && to >= end);
        }
        if (all)
            return;
    }
}

static void find_last_readers(struct lathe_session *s) {
    const struct lathe_plan *p = s->plan;
    for (uint32_t i = 0; i < p->head->step_count; i++) {
        const struct lathe_fmt_step *f = &p->steps[i];
        s->steps[i].last_reader = i;
        for (unsigned k = 0; k < f->n_in; k++) {
            uint32_t v = p->operands[f->first_operand + k];
            if (v != LATHE_FORMAT_ABSENT && p->values[v].place == LATHE_PLACE_ARENA)
                note_reader(s, p->values[v].offset, p->values[v].offset + p->values[v].bytes, i, i);
        }
    }
    const struct lathe_manifest *m = &s->artifact->manifest;
    for (uint32_t i = 0; i < m->head->output_count; i++) {
        const struct lathe_fmt_value *v = &p->values[m->outputs[i].value];
        if (v->place == LATHE_PLACE_ARENA)
            note_reader(s, v->offset, v->offset + v->bytes, p->head->step_count, UINT32_MAX);
    }
}

/* How far back a step looks; a conflict further away has a barrier between in any real plan, and if none is found by
 * then the oldest looked at is taken as one. */
#define WINDOW 64

bool lathe_session_conflicts(struct lathe_session *s) {
    uint32_t n = s->plan->head->step_count, used = 0, room = 0;
    struct access *ring = malloc(WINDOW * sizeof *ring), *now = malloc(sizeof *now);
    bool ok = ring && now;
    for (uint32_t i = 0; ok && i < n; i++) {
        read_access(s, i, now);
        s->steps[i].first_conflict = used;
        for (uint32_t back = 1; ok && back <= i && back <= WINDOW; back++) {
            const struct access *other = &ring[(i - back) % WINDOW];
            enum meeting how = back == WINDOW ? ANYHOW : meet(now->reads, now->n_reads, other->writes, other->n_writes);
            how = worse(how, meet(now->writes, now->n_writes, other->reads, other->n_reads));
            how = worse(how, meet(now->writes, now->n_writes, other->writes, other->n_writes));
            if (how == APART)
                continue;
            if (used == room) {
                room = room ? room * 2 : 256;
                uint32_t *more = realloc(s->conflicts, room * sizeof *more);
                ok = more != NULL;
                if (ok)
                    s->conflicts = more;
            }
            if (ok)
                s->conflicts[used++] = (i - back) | (how == IN_ROWS ? LATHE_SAME_ROWS : 0);
        }
        s->steps[i].conflict_count = used - s->steps[i].first_conflict;
        ring[i % WINDOW] = *now;
    }
    free(ring);
    free(now);
    if (ok)
        find_last_readers(s);
    return ok;
}
