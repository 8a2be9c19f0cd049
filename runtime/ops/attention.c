/* attention, attention_rows and sdpa: who attends to what, and the split over the team. The arithmetic is that of the
 * attention_f32 row, of attention_q8 with `bits` = 8, of attention_bf16 with `bits` = 16.
 *
 * A sequence's keys are a contiguous range of rows, first to last allowed key, so that padding at either end is never
 * read and has no part in any sum; holes inside are masked by bytes. Work is cut in units of one head of one sequence
 * by a group of queries; each thread takes a contiguous stretch of equal cost.
 *
 * With one query a sequence, the heads that share keys are the rows of one call of the kernel: query i of head h is
 * then that of head h + i, so that keys are laid out once a thread. */
#include "attention_few.h"
#include "kernel.h"
#include "op_util.h"
#include "ops.h"
#include "row_map.h"

#include <math.h>
#include <string.h>

#define GROUP LATHE_ATTENTION_QUERIES
#define CHUNK LATHE_ATTENTION_CHUNK

/* A mask operand broadcast to [B, N, Sq, Sk]. */
struct plane {
    const void *data; /* NULL: none */
    bool is_bool;
    int64_t stride[4]; /* in elements; 0 where it is broadcast */
};

struct attention {
    const struct lathe_op_call *call;
    const char *op;
    int64_t heads, kv_heads, d, dv;
    const float *q, *k, *v;
    float *out;
    int64_t ldq, ldk, ldv, ldo;                 /* between rows */
    int64_t q_head, k_head, v_head, o_head;     /* between heads */
    int64_t q_batch, k_batch, v_batch, o_batch; /* between sequences; 0 in packed form */
    int64_t batch, sq, sk;                      /* of the padded form; of packed form: batch only */
    float scale, softcap;
    bool causal, few;
    int64_t bits;   /* 8: attention_q8; 16: attention_bf16; 0: attention_f32 */
    int64_t window; /* -1: none */
    enum lathe_masked_row masked_row;
    const struct lathe_tensor *keys; /* [B, Sk] or NULL */
    struct plane plane;
    const struct lathe_row_sequence *sequences; /* packed form, else NULL */
    const struct lathe_row_place *places;
    int64_t query_at; /* packed form, >= 0: q has one row a sequence, the token at this position; -1: all kept rows */
    const struct lathe_tensor *query_index; /* that position for each sequence, negative from the end; NULL: query_at */
};

/* One sequence of the batch. */
struct sequence {
    int64_t b, rows, all_keys;            /* queries; keys before masking */
    int64_t key0, keys;                   /* the range that holds all allowed keys */
    int64_t q0, k0;                       /* first query and key row in the operands */
    const uint8_t *holes;                 /* one byte a key of the range, or NULL when all are allowed */
    const struct lathe_row_place *places; /* of its rows in packed form, or NULL */
    bool consecutive;                     /* packed rows stand at consecutive positions */
    int64_t query_at;                     /* position of its one query, of each head, or -1 */
};

/* Per-thread scratch, in this order. */
struct buffers {
    void *kernel;
    int32_t *first, *last; /* [chunk] */
    float *mean;           /* [dv] */
    float *bias;           /* [GROUP][keys], only with a mask operand */
    uint8_t *allow;        /* [GROUP][keys], only with a mask operand */
    uint8_t *no_key;       /* [chunk] */
    uint8_t *key_bytes;    /* [keys] */
};

static size_t aligned(size_t n) {
    return (n + 63) / 64 * 64;
}

/* One token has all queries of a call. */
static bool is_few(const struct attention *at) {
    return at->few && at->bits == 0 && at->softcap == 0.0f && at->call->kernels->few_f32;
}

/* Lays the buffers out from `base`; returns their size. */
static size_t lay_out(const struct attention *at, char *base, bool plane, struct buffers *out) {
    size_t chunk = CHUNK, nq = (size_t)(at->sq < CHUNK ? at->sq : CHUNK);
    size_t nk = (size_t)at->sk, d = (size_t)at->d, dv = (size_t)at->dv, used = 0;
    size_t kernel = at->bits == 8 ? lathe_attention_q8_scratch(nq, nk, d, dv)
                    : is_few(at)  ? lathe_attention_few_scratch(nq, nk)
                                  : lathe_attention_f32_scratch(nq, nk, d, dv);
    if (kernel > SIZE_MAX / 2)
        return SIZE_MAX;
    out->kernel = base;
    used += aligned(kernel);
    out->first = (int32_t *)(base + used);
    used += chunk * sizeof(int32_t);
    out->last = (int32_t *)(base + used);
    used += chunk * sizeof(int32_t);
    out->mean = (float *)(base + used);
    used += aligned(dv * sizeof(float));
    out->bias = (float *)(base + used);
    used += plane ? aligned(GROUP * nk * sizeof(float)) : 0;
    out->allow = (uint8_t *)(base + used);
    used += plane ? aligned(GROUP * nk) : 0;
    out->no_key = (uint8_t *)(base + used);
    used += chunk;
    out->key_bytes = (uint8_t *)(base + used);
    return used + aligned(nk);
}

static void call_kernel(const struct attention *at, const struct lathe_attention_f32_args *args) {
    const struct lathe_kernels *kernels = at->call->kernels;
    if (at->bits == 8)
        kernels->attention_q8(args);
    else if (at->bits == 16)
        kernels->attention_bf16(args);
    else if (is_few(at))
        lathe_attention_few(kernels, args);
    else
        kernels->attention_f32(args);
}

/* ---- masks of a few queries */

/* Position of query i and key j of a sequence in the mask plane. */
static int64_t query_position(const struct sequence *s, int64_t i) {
    return s->query_at >= 0 ? s->query_at : s->places ? s->places[i].position : i;
}

/* How far in the mask plane one query lies from the next. */
static int64_t query_stride(const struct attention *at, const struct sequence *s) {
    return at->plane.stride[s->query_at >= 0 ? 1 : 2];
}

static int64_t key_position(const struct sequence *s, int64_t j) {
    return s->places ? s->places[s->key0 + j].position : s->key0 + j;
}

/* The first key of the range at a position >= `position`. */
static int64_t key_at(const struct sequence *s, int64_t position) {
    if (!s->places) {
        int64_t j = position - s->key0;
        return j < 0 ? 0 : j > s->keys ? s->keys : j;
    }
    int64_t lo = 0, hi = s->keys;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (key_position(s, mid) < position)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void ranges(const struct attention *at, const struct sequence *s, int64_t q0, int64_t nq, struct buffers *buf) {
    for (int64_t i = 0; i < nq; i++) {
        int64_t p = query_position(s, q0 + i), from = INT64_MIN, to = INT64_MAX;
        if (at->window >= 0) {
            from = p - at->window;
            to = p + at->window + 1;
        }
        if (at->causal && to > p + 1)
            to = p + 1;
        buf->first[i] = (int32_t)(from == INT64_MIN ? 0 : key_at(s, from));
        buf->last[i] = (int32_t)(to == INT64_MAX ? s->keys : key_at(s, to));
    }
}

/* Can the kernel read the plane where it lies? */
static bool plane_is_direct(const struct attention *at, const struct sequence *s) {
    if (at->plane.stride[3] != 1 && s->keys > 1)
        return false;
    if (s->places && !s->consecutive)
        return false;
    return !(at->plane.is_bool && s->holes);
}

static int64_t plane_offset(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0) {
    head += s->query_at >= 0 ? q0 : 0;
    return s->b * at->plane.stride[0] + head * at->plane.stride[1] + query_position(s, q0) * at->plane.stride[2] +
           key_position(s, 0) * at->plane.stride[3];
}

static void set_plane(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0, int64_t nq,
                      struct buffers *buf, struct lathe_attention_f32_args *args) {
    if (plane_is_direct(at, s)) {
        int64_t offset = plane_offset(at, s, head, q0);
        if (at->plane.is_bool) {
            args->allow = (const uint8_t *)at->plane.data + offset;
            args->ld_allow = (size_t)query_stride(at, s);
        } else {
            args->bias = (const float *)at->plane.data + offset;
            args->ldb = (size_t)query_stride(at, s);
        }
        return;
    }
    for (int64_t i = 0; i < nq; i++) {
        int64_t line = plane_offset(at, s, head, q0 + i);
        for (int64_t j = 0; j < s->keys; j++) {
            int64_t place = line + (key_position(s, j) - key_position(s, 0)) * at->plane.stride[3];
            if (at->plane.is_bool)
                buf->allow[i * s->keys + j] =
                    ((const uint8_t *)at->plane.data)[place] != 0 && (!s->holes || s->holes[j]);
            else
                buf->bias[i * s->keys + j] = ((const float *)at->plane.data)[place];
        }
    }
    if (at->plane.is_bool) {
        args->allow = buf->allow;
        args->ld_allow = (size_t)s->keys;
    } else {
        args->bias = buf->bias;
        args->ldb = (size_t)s->keys;
    }
}

/* ---- queries */

static struct lathe_attention_f32_args head_args(const struct attention *at, const struct sequence *s, int64_t head,
                                                 int64_t q0, int64_t nq, struct buffers *buf) {
    int64_t kv = head * at->kv_heads / at->heads;
    bool heads = s->query_at >= 0; /* are the rows */
    int64_t ldq = heads ? at->q_head : at->ldq, ldo = heads ? at->o_head : at->ldo;
    return (struct lathe_attention_f32_args){
        .nq = (size_t)nq,
        .d = (size_t)at->d,
        .dv = (size_t)at->dv,
        .q = at->q + s->b * at->q_batch + head * at->q_head + s->q0 * at->ldq + q0 * ldq,
        .k = at->k + s->b * at->k_batch + kv * at->k_head + s->k0 * at->ldk,
        .v = at->v + s->b * at->v_batch + kv * at->v_head + s->k0 * at->ldv,
        .out = at->out + s->b * at->o_batch + head * at->o_head + s->q0 * at->ldo + q0 * ldo,
        .ldq = (size_t)ldq,
        .ldk = (size_t)at->ldk,
        .ldv = (size_t)at->ldv,
        .ldo = (size_t)ldo,
        .scale = at->scale,
        .softcap = at->softcap,
        .scratch = buf->kernel,
    };
}

/* The softmax over all keys, masked or not, with what the plane adds. */
static void unmasked_queries(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0, int64_t nq,
                             struct buffers *buf) {
    struct sequence whole = *s;
    whole.key0 = 0;
    whole.keys = s->all_keys;
    whole.holes = NULL;
    bool adds = at->plane.data && !at->plane.is_bool && s->all_keys > 0;
    int64_t step = adds ? GROUP : nq; /* as many as the copy of a plane holds */
    for (int64_t i = 0; i < nq; i += step) {
        int64_t n = nq - i < step ? nq - i : step;
        struct lathe_attention_f32_args args = head_args(at, s, head, q0 + i, n, buf);
        args.nk = (size_t)s->all_keys;
        if (adds)
            set_plane(at, &whole, head, q0 + i, n, buf, &args);
        call_kernel(at, &args);
    }
}

/* Queries whose keys are all masked out, a run of them: what the source makes of them. */
static void masked_queries(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0, int64_t nq,
                           struct buffers *buf) {
    struct lathe_attention_f32_args args = head_args(at, s, head, q0, nq, buf);
    if (at->masked_row == LATHE_MASKED_SOFTMAX) {
        unmasked_queries(at, s, head, q0, nq, buf);
    } else if (at->masked_row == LATHE_MASKED_UNIFORM && s->all_keys > 0) {
        const struct lathe_kernels *kernels = at->call->kernels;
        float count = (float)s->all_keys;
        memset(buf->mean, 0, args.dv * sizeof(float));
        for (int64_t j = 0; j < s->all_keys; j++)
            kernels->binary_f32(args.dv, 0, buf->mean, args.v + j * at->ldv, 1, buf->mean);
        kernels->binary_f32(args.dv, 3, buf->mean, &count, 0, buf->mean);
        for (int64_t i = 0; i < nq; i++)
            memcpy(args.out + (size_t)i * args.ldo, buf->mean, args.dv * sizeof(float));
    }
}

static void some_queries(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0, int64_t nq,
                         struct buffers *buf) {
    struct lathe_attention_f32_args args = head_args(at, s, head, q0, nq, buf);
    args.k += s->key0 * at->ldk;
    args.v += s->key0 * at->ldv;
    args.nk = (size_t)s->keys;
    args.no_key = buf->no_key;
    args.allow = s->holes; /* the same for all queries: no stride */
    args.keys = s->holes;
    if (at->causal || at->window >= 0) {
        ranges(at, s, q0, nq, buf);
        args.first = buf->first;
        args.last = buf->last;
    }
    if (at->plane.data && s->keys > 0)
        set_plane(at, s, head, q0, nq, buf, &args);
    call_kernel(at, &args);
    if (at->masked_row != LATHE_MASKED_UNIFORM && at->masked_row != LATHE_MASKED_SOFTMAX)
        return;
    for (int64_t i = 0; i < nq;) {
        int64_t from = i;
        while (i < nq && buf->no_key[i])
            i++;
        if (i > from)
            masked_queries(at, s, head, q0 + from, i - from, buf);
        else
            i++;
    }
}

/* ---- sequences */

static void find_keys(const struct attention *at, struct sequence *s, struct buffers *buf) {
    if (!at->keys)
        return;
    int64_t first = -1, last = -1, allowed = 0;
    for (int64_t j = 0; j < at->sk; j++) {
        bool set = lathe_read_i64(at->keys, s->b * at->sk + j) != 0;
        buf->key_bytes[j] = set;
        if (set) {
            first = first < 0 ? j : first;
            last = j;
            allowed++;
        }
    }
    s->key0 = first < 0 ? 0 : first;
    s->keys = last - first + (first >= 0);
    s->holes = allowed < s->keys ? buf->key_bytes + s->key0 : NULL;
}

static struct sequence sequence_at(const struct attention *at, int64_t b) {
    struct sequence s = {.b = b, .rows = at->sq, .all_keys = at->sk, .keys = at->sk, .query_at = -1};
    /* what a sequence without any key gets must not depend on the bucket either */
    if (at->keys && at->call->tokens > 0 && at->sk == at->call->token_places)
        s.all_keys = at->call->tokens;
    if (!at->sequences)
        return s;
    const struct lathe_row_sequence *row = &at->sequences[b];
    s.rows = row->rows;
    s.keys = row->keys;
    s.all_keys = row->rows; /* a sequence without keys keeps all its rows when its rule needs them */
    s.q0 = s.k0 = row->start;
    s.places = at->places + row->start;
    s.consecutive = true;
    for (int64_t i = 1; i < s.rows && s.consecutive; i++)
        s.consecutive = s.places[i].position == s.places[0].position + i;
    if (at->query_at >= 0) {
        s.query_at = at->query_index ? lathe_read_i64(at->query_index, b) : at->query_at;
        s.query_at += s.query_at < 0 ? row->positions : 0;
        s.q0 = b;
        s.rows = 1;
    }
    return s;
}

static int64_t groups_of(const struct sequence *s) {
    return (s->rows + GROUP - 1) / GROUP;
}

/* Queries [q0, q1) of a head, as many at a time as the buffers hold. */
static void head_queries(const struct attention *at, const struct sequence *s, int64_t head, int64_t q0, int64_t q1,
                         struct buffers *buf) {
    int64_t step = at->plane.data && s->keys > 0 && !plane_is_direct(at, s) ? GROUP : CHUNK;
    for (int64_t q = q0; q < q1; q += step)
        some_queries(at, s, head, q, q1 - q < step ? q1 - q : step, buf);
}

/* Heads [from, to) of a sequence of one query. */
static void one_query(const struct attention *at, const struct sequence *s, int64_t from, int64_t to,
                      struct buffers *buf) {
    int64_t sharing = at->heads / at->kv_heads;
    while (from < to) {
        int64_t end = (from / sharing + 1) * sharing < to ? (from / sharing + 1) * sharing : to;
        head_queries(at, s, from, 0, end - from, buf);
        from = end;
    }
}

/* The heads of the thread, of all sequences. */
static void run_heads(const struct attention *at, struct buffers *buf) {
    int64_t begin, end;
    lathe_team_split(&at->call->team, at->heads, 1, &begin, &end);
    for (int64_t b = 0; b < at->batch; b++) {
        struct sequence s = sequence_at(at, b);
        find_keys(at, &s, buf);
        if (s.query_at >= 0)
            one_query(at, &s, begin, end, buf);
        for (int64_t head = begin; s.query_at < 0 && head < end; head++)
            head_queries(at, &s, head, 0, s.rows, buf);
    }
}

static void run(const struct attention *at, struct buffers *buf) {
    const struct lathe_team *team = &at->call->team;
    if (at->call->heads) {
        run_heads(at, buf);
        return;
    }
    /* A group costs its keys, and a constant for what does not depend on them. */
    int64_t total = 0;
    for (int64_t b = 0; b < at->batch; b++) {
        struct sequence s = sequence_at(at, b);
        total += at->heads * groups_of(&s) * (s.keys + 16);
    }
    int64_t begin, end, before = 0;
    lathe_team_split(team, total, 1, &begin, &end);
    for (int64_t b = 0; b < at->batch && before < end; b++) {
        struct sequence s = sequence_at(at, b);
        int64_t groups = groups_of(&s), cost = s.keys + 16, units = at->heads * groups;
        /* Units whose first item of cost lies in [begin, end). */
        int64_t from = begin > before ? (begin - before + cost - 1) / cost : 0;
        int64_t to = (end - before + cost - 1) / cost;
        before += units * cost;
        to = to < units ? to : units;
        if (from >= to)
            continue;
        find_keys(at, &s, buf);
        if (s.query_at >= 0) {
            one_query(at, &s, from, to, buf);
            continue;
        }
        while (from < to) {
            int64_t head = from / groups, g = from % groups,
                    g1 = to - head * groups < groups ? to - head * groups : groups;
            int64_t q1 = g1 * GROUP < s.rows ? g1 * GROUP : s.rows;
            head_queries(at, &s, head, g * GROUP, q1, buf);
            from = (head + 1) * groups;
        }
    }
}

/* ---- the operators */

static void common_attributes(struct attention *at, const struct lathe_op_call *call) {
    at->call = call;
    at->softcap = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_SOFTCAP, 0.0);
    at->causal = lathe_attr_int(&call->attrs, LATHE_ATTR_CAUSAL, 0) != 0;
    at->window = lathe_attr_int(&call->attrs, LATHE_ATTR_WINDOW, -1);
    /* No wider than any sequence: sums of positions and window then never overflow. */
    at->window = at->window > INT32_MAX ? INT32_MAX : at->window;
    at->scale = (float)lathe_attr_float(&call->attrs, LATHE_ATTR_SCALE, at->d > 0 ? 1.0 / sqrt((double)at->d) : 1.0);
}

static bool head_attributes(struct attention *at, const struct lathe_op_call *call) {
    at->heads = lathe_attr_int(&call->attrs, LATHE_ATTR_HEADS, 0);
    at->kv_heads = lathe_attr_int(&call->attrs, LATHE_ATTR_KV_HEADS, at->heads);
    at->d = lathe_attr_int(&call->attrs, LATHE_ATTR_HEAD_DIM, 0);
    at->dv = lathe_attr_int(&call->attrs, LATHE_ATTR_V_HEAD_DIM, at->d);
    at->masked_row = (enum lathe_masked_row)lathe_attr_int(&call->attrs, LATHE_ATTR_MASKED_ROW, LATHE_MASKED_UNIFORM);
    at->bits = lathe_attr_int(&call->attrs, LATHE_ATTR_BITS, 0);
    int64_t limit = INT32_MAX;
    return at->heads >= 1 && at->kv_heads >= 1 && at->kv_heads <= at->heads && at->heads % at->kv_heads == 0 &&
           at->d >= 1 && at->dv >= 1 && at->heads <= limit && at->d <= limit && at->dv <= limit;
}

/* Operand `t` [.., W], heads of `d` columns beside each other from column `key`. */
static bool columns(const struct lathe_op_call *call, enum lathe_attr_key key, const struct lathe_tensor *t,
                    int64_t heads, int64_t d, const float **data, int64_t *ld) {
    int64_t offset = lathe_attr_int(&call->attrs, key, 0), width = t->rank ? t->dims[t->rank - 1] : 0;
    if (t->rank < 2 || offset < 0 || offset > width || heads * d > width - offset)
        return false;
    *data = t->data ? (const float *)t->data + offset : NULL;
    *ld = width;
    return true;
}

/* A mask broadcast to these dims, aligned at the last axis. */
static bool read_plane(struct plane *plane, const struct lathe_tensor *t, const int64_t dims[4]) {
    int64_t stride = 1;
    plane->data = t->data;
    plane->is_bool = t->dtype == LATHE_BOOL;
    if (t->rank > 4)
        return false;
    for (unsigned i = 0; i < 4; i++) {
        unsigned axis = 3 - i;
        int64_t n = i < t->rank ? t->dims[t->rank - 1 - i] : 1;
        if (n != 1 && n != dims[axis])
            return false;
        plane->stride[axis] = n == 1 ? 0 : stride;
        stride *= n;
    }
    return true;
}

static enum lathe_status f32_operands(const struct lathe_op_call *call, const char *op, unsigned mask) {
    for (unsigned i = 0; i < 3; i++)
        if (call->in[i]->dtype != LATHE_F32)
            return lathe_no_dtype(call, op, call->in[i]->dtype);
    const struct lathe_tensor *t = lathe_operand(call, mask);
    if (t && t->dtype != LATHE_F32 && t->dtype != LATHE_BOOL)
        return lathe_no_dtype(call, op, t->dtype);
    return LATHE_OK;
}

/* Kernels there are, and what attention_q8 does not do. `keys`: of one sequence, at most. */
static enum lathe_status check_bits(const struct lathe_op_call *call, const struct attention *at, int64_t keys) {
    if (at->bits != 0 && at->bits != 8 && at->bits != 16)
        return lathe_fail(call->diag, LATHE_MSG_OP_ATTRIBUTE, "%s: bits is %lld, not 8 or 16", at->op,
                          (long long)at->bits);
    if (at->bits == 8 &&
        (at->d > LATHE_Q8_MAX_HEAD || keys > LATHE_Q8_MAX_KEYS || at->softcap != 0.0f || !(at->scale > 0.0f)))
        return lathe_fail(
            call->diag, LATHE_MSG_OP_ATTRIBUTE,
            "%s: in 8 bits heads of %lld columns, %lld keys, scale %g, softcap %g: at most %d columns and "
            "%d keys, a positive scale and no softcap",
            at->op, (long long)at->d, (long long)keys, (double)at->scale, (double)at->softcap, LATHE_Q8_MAX_HEAD,
            LATHE_Q8_MAX_KEYS);
    return LATHE_OK;
}

static bool read_attention(const struct lathe_op_call *call, struct attention *at) {
    const struct lathe_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *y = call->out[0];
    const struct lathe_tensor *keys = lathe_operand(call, 3), *mask = lathe_operand(call, 4);
    *at = (struct attention){.op = "attention", .keys = keys};
    if (!head_attributes(at, call) || q->rank != 3 || k->rank != 3 || v->rank != 3 || y->rank != 3 ||
        !columns(call, LATHE_ATTR_Q_OFFSET, q, at->heads, at->d, &at->q, &at->ldq) ||
        !columns(call, LATHE_ATTR_K_OFFSET, k, at->kv_heads, at->d, &at->k, &at->ldk) ||
        !columns(call, LATHE_ATTR_V_OFFSET, v, at->kv_heads, at->dv, &at->v, &at->ldv))
        return false;
    common_attributes(at, call);
    at->batch = q->dims[0];
    at->sq = q->dims[1];
    at->sk = k->dims[1];
    if (k->dims[0] != at->batch || v->dims[0] != at->batch || v->dims[1] != at->sk || y->dims[0] != at->batch ||
        y->dims[1] != at->sq || y->dims[2] != at->heads * at->dv ||
        (keys && lathe_tensor_count(keys) != at->batch * at->sk) || at->sq > INT32_MAX || at->sk > INT32_MAX)
        return false;
    at->out = y->data;
    at->ldo = at->heads * at->dv;
    at->q_head = at->k_head = at->d;
    at->v_head = at->o_head = at->dv;
    at->q_batch = at->sq * at->ldq;
    at->k_batch = at->sk * at->ldk;
    at->v_batch = at->sk * at->ldv;
    at->o_batch = at->sq * at->ldo;
    int64_t dims[4] = {at->batch, at->heads, at->sq, at->sk};
    return !mask || read_plane(&at->plane, mask, dims);
}

size_t lathe_scratch_attention(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    return read_attention(call, &at) ? lay_out(&at, NULL, lathe_operand(call, 4) != NULL, &buf) : 0;
}

enum lathe_status lathe_run_attention(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    LATHE_TRY(f32_operands(call, "attention", 4));
    if (!read_attention(call, &at))
        return lathe_bad_shape(call, "attention");
    LATHE_TRY(check_bits(call, &at, at.sk));
    lay_out(&at, call->scratch, at.plane.data != NULL, &buf);
    run(&at, &buf);
    return LATHE_OK;
}

static bool read_rows(const struct lathe_op_call *call, struct attention *at) {
    const struct lathe_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *map = call->in[3];
    const struct lathe_tensor *y = call->out[0], *bias = lathe_operand(call, 4);
    *at = (struct attention){.op = "attention_rows"};
    if (!head_attributes(at, call) || q->rank != 2 || k->rank != 2 || v->rank != 2 || y->rank != 2 ||
        !columns(call, LATHE_ATTR_Q_OFFSET, q, at->heads, at->d, &at->q, &at->ldq) ||
        !columns(call, LATHE_ATTR_K_OFFSET, k, at->kv_heads, at->d, &at->k, &at->ldk) ||
        !columns(call, LATHE_ATTR_V_OFFSET, v, at->kv_heads, at->dv, &at->v, &at->ldv))
        return false;
    common_attributes(at, call);
    int64_t rows = k->dims[0];
    at->query_index = lathe_operand(call, 5);
    at->query_at = at->query_index ? 0 : lathe_attr_int(&call->attrs, LATHE_ATTR_START, -1);
    if (v->dims[0] != rows || y->dims[0] != q->dims[0] || (at->query_at < 0 && q->dims[0] != rows) ||
        y->dims[1] != at->heads * at->dv || map->dtype != LATHE_I32 || rows > INT32_MAX)
        return false;
    at->sk = rows; /* no sequence has more */
    at->few = at->query_at >= 0;
    at->sq = at->few ? at->heads / at->kv_heads : rows;
    at->out = y->data;
    at->ldo = at->heads * at->dv;
    at->q_head = at->k_head = at->d;
    at->v_head = at->o_head = at->dv;
    if (!map->data)
        return true; /* only sizes are asked for */
    const struct lathe_row_sequence *sequences = lathe_row_map_sequences(map->data);
    int64_t count = lathe_tensor_count(map), positions = count >= 4 ? sequences->positions : 0;
    at->batch = positions >= 0 ? count / (4 + 2 * positions) : 0;
    if (at->batch * (4 + 2 * positions) != count || (at->query_at >= 0 && q->dims[0] != at->batch) ||
        (at->query_index && lathe_tensor_count(at->query_index) != at->batch))
        return false;
    at->sequences = sequences;
    at->places = lathe_row_map_places(map->data, at->batch);
    for (int64_t b = 0; b < at->batch; b++) {
        const struct lathe_row_sequence *s = &sequences[b];
        if (s->start < 0 || s->rows < 0 || s->keys < 0 || s->keys > s->rows || s->start > rows - s->rows)
            return false;
    }
    int64_t dims[4] = {at->batch, at->heads, positions, positions};
    return !bias || read_plane(&at->plane, bias, dims);
}

size_t lathe_scratch_attention_rows(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    return read_rows(call, &at) ? lay_out(&at, NULL, lathe_operand(call, 4) != NULL, &buf) : 0;
}

enum lathe_status lathe_run_attention_rows(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    LATHE_TRY(f32_operands(call, "attention_rows", 4));
    if (!read_rows(call, &at))
        return lathe_bad_shape(call, "attention_rows");
    for (int64_t b = 0; at.query_index && b < at.batch; b++) {
        int64_t i = lathe_read_i64(at.query_index, b), positions = at.sequences[b].positions;
        if (i < -positions || i >= positions)
            return lathe_fail(call->diag, LATHE_MSG_INDEX_RANGE,
                              "token %lld of sequence %lld is outside its %lld tokens", (long long)i, (long long)b,
                              (long long)positions);
    }
    int64_t longest = 0;
    for (int64_t b = 0; b < at.batch; b++)
        longest = at.sequences[b].rows > longest ? at.sequences[b].rows : longest;
    LATHE_TRY(check_bits(call, &at, longest));
    const struct lathe_tensor *bias = lathe_operand(call, 4);
    lay_out(&at, call->scratch, bias != NULL, &buf);
    run(&at, &buf);
    return LATHE_OK;
}

static bool read_sdpa(const struct lathe_op_call *call, struct attention *at) {
    const struct lathe_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *y = call->out[0];
    const struct lathe_tensor *mask = lathe_operand(call, 3);
    *at = (struct attention){.op = "sdpa", .masked_row = LATHE_MASKED_ZERO};
    if (q->rank != 4 || k->rank != 4 || v->rank != 4 || y->rank != 4)
        return false;
    at->batch = q->dims[0];
    at->heads = q->dims[1];
    at->sq = q->dims[2];
    at->d = q->dims[3];
    at->kv_heads = k->dims[1];
    at->sk = k->dims[2];
    at->dv = v->dims[3];
    if (at->d < 1 || at->dv < 1 || at->kv_heads < 1 || at->heads % at->kv_heads != 0 || k->dims[0] != at->batch ||
        v->dims[0] != at->batch || k->dims[3] != at->d || v->dims[1] != at->kv_heads || v->dims[2] != at->sk ||
        y->dims[0] != at->batch || y->dims[1] != at->heads || y->dims[2] != at->sq || y->dims[3] != at->dv ||
        at->sq > INT32_MAX || at->sk > INT32_MAX)
        return false;
    common_attributes(at, call);
    at->q = q->data;
    at->k = k->data;
    at->v = v->data;
    at->out = y->data;
    at->ldq = at->ldk = at->d;
    at->ldv = at->ldo = at->dv;
    at->q_head = at->sq * at->d;
    at->k_head = at->sk * at->d;
    at->v_head = at->sk * at->dv;
    at->o_head = at->sq * at->dv;
    at->q_batch = at->heads * at->q_head;
    at->k_batch = at->kv_heads * at->k_head;
    at->v_batch = at->kv_heads * at->v_head;
    at->o_batch = at->heads * at->o_head;
    int64_t dims[4] = {at->batch, at->heads, at->sq, at->sk};
    return !mask || read_plane(&at->plane, mask, dims);
}

size_t lathe_scratch_sdpa(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    return read_sdpa(call, &at) ? lay_out(&at, NULL, lathe_operand(call, 3) != NULL, &buf) : 0;
}

enum lathe_status lathe_run_sdpa(const struct lathe_op_call *call) {
    struct attention at;
    struct buffers buf;
    LATHE_TRY(f32_operands(call, "sdpa", 3));
    if (!read_sdpa(call, &at))
        return lathe_bad_shape(call, "sdpa");
    lay_out(&at, call->scratch, at.plane.data != NULL, &buf);
    run(&at, &buf);
    return LATHE_OK;
}
