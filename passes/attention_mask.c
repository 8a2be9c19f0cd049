/* The masks of one attention, as key mask, causal order, window and what is left. See attention_parts.h. */
#include "attention_parts.h"

#include <math.h>
#include <stdio.h>

/* A number this far below 0 swallows the scores in f32: all masked keys get the same sum. */
#define SWALLOWS 268435456.0 /* 2^28, where neighbouring f32 are 32 apart */
#define HALF_MIN 65504.0     /* fp16's finfo.min in magnitude: swallows in a source that computes in fp16 */
#define MASKING  1e4
/* Adding this much to all scores of a row keeps their differences to 1e-5. */
#define HARMLESS 128.0

enum axis { AXIS_B, AXIS_N, AXIS_Q, AXIS_K, AXES };

/* A tensor that is not 0 where attention is allowed, with the axes that it has. */
struct plane {
    lathe_value_id value;
    bool negated;
    lathe_dim dims[AXES]; /* 1 where it does not depend on the axis */
    bool has[AXES];
};

struct work {
    struct lathe_attention_match *m;
    struct lathe_mask_reader reader;
    struct lathe_mask_formula formula; /* of all sources that were understood */
    unsigned plane_count;
    struct plane planes[LATHE_MASK_MAX_FACTS];
    bool has_low, has_high; /* low <= k - q <= high */
    int64_t low, high;
    bool is_general[LATHE_ATTENTION_MAX_MASKS];
    bool infinite, uniform, softmax; /* what masked keys hold */
    bool keep_sums;                  /* small fills are added as the source adds them */
    bool adds_much;                  /* a number that other masks may not outweigh, on keys that are allowed */
    bool adds_infinity;              /* +inf or NaN where attention is allowed: the source gives NaN */
};

/* ---- facts */

static lathe_dim axis_extent(struct lathe_attention_match *m, int axis) {
    switch (axis) {
    case AXIS_B:
        return m->batch;
    case AXIS_N:
        return lathe_dim_const(m->view.graph->dims, m->heads);
    case AXIS_Q:
        return m->sq;
    default:
        return m->sk;
    }
}

static const struct lathe_index *axis_index(struct lathe_attention_match *m, int axis) {
    return axis == AXIS_B ? &m->b : axis == AXIS_N ? &m->n : axis == AXIS_Q ? &m->q : &m->k;
}

static bool is_one(struct lathe_graph *g, lathe_dim d) {
    int64_t size;
    return lathe_dim_is_const(g->dims, d, &size) && size == 1;
}

/* The first axes of an input, all of them symbols, whose product is d: the batch, or questions and choices. Their
 * number, 0 when there is no such input. */
static int batch_symbols(struct lathe_graph *g, lathe_dim d, lathe_dim *axes) {
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
        lathe_dim product = lathe_dim_const(g->dims, 1);
        for (int n = 0; n < v->rank && lathe_dim_plain_symbol(g->dims, v->dims[n]) >= 0; n++) {
            axes[n] = lathe_dim_resolve(g->dims, v->dims[n]);
            product = lathe_dim_mul(g->dims, product, axes[n]);
            if (product == LATHE_DIM_NONE)
                break;
            if (lathe_attention_same_dim(g, product, d))
                return n + 1;
        }
    }
    return 0;
}

/* A mask read at the batch index although its own first axes have other names, through flat indices say: the batch is
 * one size, so both names mean it. */
static void unify_batch(struct lathe_attention_match *m, lathe_dim d) {
    struct lathe_graph *g = m->view.graph;
    lathe_dim own[LATHE_MAX_RANK], batch[LATHE_MAX_RANK];
    int count = batch_symbols(g, d, own);
    char text[256];
    if (count == 0 || count != batch_symbols(g, m->batch, batch))
        return;
    for (int i = 0; i < count; i++) {
        int64_t from = lathe_dim_plain_symbol(g->dims, own[i]), to = lathe_dim_plain_symbol(g->dims, batch[i]);
        if (from < 0 || to < 0 || from == to)
            continue;
        snprintf(text, sizeof text, "%.100s = %.100s", lathe_dims_symbol_name(g->dims, (uint32_t)from),
                 lathe_dims_symbol_name(g->dims, (uint32_t)to));
        lathe_graph_add_note(g, NULL, lathe_node_at(g, m->anchor)->name, text);
        lathe_graph_substitute(g, (uint32_t)from, batch[i]);
    }
}

/* How many of the first axes of an element make the batch together, as the questions and choices of a test do. */
static int batch_axes(struct lathe_attention_match *m, const struct lathe_element *e) {
    struct lathe_graph *g = m->view.graph;
    const struct lathe_value *v = lathe_value_at(g, e->value);
    lathe_dim product = e->rank ? v->dims[0] : LATHE_DIM_NONE;
    for (int n = 2; n < e->rank && product != LATHE_DIM_NONE; n++) {
        struct lathe_index offset;
        product = lathe_dim_mul(g->dims, product, v->dims[n - 1]);
        if (product != LATHE_DIM_NONE && lathe_attention_same_dim(g, product, m->batch) &&
            lathe_index_flatten(&m->view.space, n, v->dims, e->at, &offset) &&
            lathe_index_equal(&m->view.space, &offset, &m->b))
            return n;
    }
    return 0;
}

/* The axes of an element as a plane that broadcasts to [B, N, Sq, Sk]; in that order only. */
static bool plane_of(struct lathe_attention_match *m, const struct lathe_element *e, bool negated, struct plane *out) {
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    const struct lathe_value *v = lathe_value_at(g, e->value);
    int next = 0;
    *out = (struct plane){.value = e->value, .negated = negated};
    for (int i = 0; i < AXES; i++)
        out->dims[i] = lathe_dim_const(g->dims, 1);
    int first = batch_axes(m, e);
    if (first) {
        out->has[AXIS_B] = true;
        out->dims[AXIS_B] = m->batch;
        next = AXIS_N;
    }
    for (int i = first; i < e->rank; i++) {
        if (is_one(g, v->dims[i]))
            continue;
        int axis = next;
        if (axis == AXIS_B && lathe_index_equal(space, &e->at[i], &m->b) &&
            !lathe_attention_same_dim(g, v->dims[i], m->batch))
            unify_batch(m, v->dims[i]);
        for (; axis < AXES; axis++)
            if (lathe_attention_same_dim(g, v->dims[i], axis_extent(m, axis)) &&
                lathe_index_equal(space, &e->at[i], axis_index(m, axis)))
                break;
        if (axis < AXES) {
            out->has[axis] = true;
            out->dims[axis] = v->dims[i];
            next = axis + 1;
            continue;
        }
        /* batch and heads in one axis */
        struct lathe_index both;
        lathe_dim heads = axis_extent(m, AXIS_N), product = lathe_dim_mul(g->dims, m->batch, heads);
        if (next != 0 || !lathe_attention_same_dim(g, v->dims[i], product) ||
            !lathe_index_add_scaled(space, &m->n, heads, &m->b, &both) || !lathe_index_equal(space, &e->at[i], &both))
            return false;
        for (axis = AXIS_B; axis <= AXIS_N; axis++) {
            out->has[axis] = !is_one(g, axis_extent(m, axis));
            out->dims[axis] = axis_extent(m, axis);
        }
        next = AXIS_Q;
    }
    return true;
}

/* A fact about positions: k - q + c >= 0 or q - k + c >= 0 narrows the band. */
static bool narrow_band(struct work *w, const struct lathe_index *index) {
    struct lathe_attention_match *m = w->m;
    struct lathe_index_space *space = &m->view.space;
    struct lathe_dims *t = space->dims;
    for (int sign = -1; sign <= 1; sign += 2) {
        /* index - sign * (k - q) must be a number c: sign * (k - q) >= -c */
        struct lathe_index r;
        lathe_dim value;
        int64_t c;
        if (!lathe_index_add_scaled(space, index, lathe_dim_const(t, -sign), &m->k, &r) ||
            !lathe_index_add_scaled(space, &r, lathe_dim_const(t, sign), &m->q, &r) ||
            !lathe_index_is_const(space, &r, &value) || !lathe_dim_is_const(t, value, &c))
            continue;
        if (sign > 0 && (!w->has_low || -c > w->low)) {
            w->has_low = true;
            w->low = -c;
        } else if (sign < 0 && (!w->has_high || c < w->high)) {
            w->has_high = true;
            w->high = c;
        }
        return true;
    }
    return false;
}

/* Whether each fact of a formula can be told to the operator. */
static bool is_expressible(struct work *w, const struct lathe_mask_formula *f) {
    struct work trial = {.m = w->m};
    struct plane plane;
    if (f->never)
        return false;
    for (unsigned i = 0; i < f->count; i++) {
        const struct lathe_mask_fact *fact = f->facts[i];
        if (fact->kind == LATHE_MASK_INDEX ? !narrow_band(&trial, &fact->index)
                                           : !plane_of(w->m, &fact->element, fact->negated, &plane))
            return false;
    }
    return true;
}

/* The band is one that the attributes express: none, causal, window, or both. */
static bool is_known_band(const struct work *w) {
    if (!w->has_low && !w->has_high)
        return true;
    if (!w->has_low)
        return w->high == 0;
    return w->has_high && w->low <= 0 && (w->high == 0 || w->high == -w->low);
}

/* ---- sources */

/* widen_floats leaves the constants and outputs of such a source in the list of values. */
static bool computes_in_half(const struct lathe_graph *g) {
    for (lathe_value_id v = 0; v < g->value_count; v++)
        if (g->values[v].dtype == LATHE_F16)
            return true;
    return false;
}

/* All masked keys get the same score. `fill` as it is added or selected, before any scale that follows. */
static bool is_uniform(const struct work *w, double fill, bool is_select) {
    double size = fabs(fill);
    return is_select || size >= SWALLOWS || (size == HALF_MIN && computes_in_half(w->m->view.graph));
}

static void note_fill(struct work *w, double fill, bool is_select) {
    if (isinf(fill))
        w->infinite = true;
    else if (is_uniform(w, fill, is_select))
        w->uniform = true;
    else
        w->softmax = true;
}

static bool source_element(struct lathe_attention_match *m, const struct lathe_attention_source *s,
                           struct lathe_element *out) {
    struct lathe_graph *g = m->view.graph;
    const struct lathe_value *v = lathe_value_at(g, s->value);
    out->value = s->value;
    out->rank = v->rank;
    if (v->rank < 0 || v->rank > s->level.rank)
        return false;
    for (int i = 0; i < v->rank; i++) {
        int axis = s->level.rank - v->rank + i;
        if (lathe_attention_same_dim(g, v->dims[i], s->level.dims[axis]))
            out->at[i] = s->level.at[axis];
        else if (is_one(g, v->dims[i]))
            lathe_index_const(&m->view.space, lathe_dim_const(g->dims, 0), &out->at[i]);
        else
            return false;
    }
    return true;
}

/* The least finite number in magnitude that a mask selects instead of scores; infinity: there is none. */
static double least_fill(const struct lathe_attention_match *m) {
    double least = INFINITY;
    for (unsigned i = 0; i < m->source_count; i++)
        if (m->sources[i].is_select && fabs(m->sources[i].fill) < least)
            least = fabs(m->sources[i].fill);
    return least;
}

/* Is a value made, by arithmetic alone, from a number of at least that size? */
static bool holds_number(struct lathe_graph *g, lathe_value_id v, double size, int depth) {
    double number;
    if (lathe_constant_uniform(g, v, &number))
        return fabs(number) >= size;
    lathe_node_id n = lathe_value_at(g, v)->producer;
    if (n == LATHE_NONE || depth == 0 ||
        !(lathe_op_info(lathe_node_at(g, n)->op)->flags & (LATHE_OPF_ELEMENTWISE | LATHE_OPF_PAIRWISE)))
        return false;
    for (uint32_t i = 0; i < lathe_node_at(g, n)->n_in; i++)
        if (lathe_node_at(g, n)->in[i] != LATHE_NONE && holds_number(g, lathe_node_at(g, n)->in[i], size, depth - 1))
            return true;
    return false;
}

/* Takes a source as facts; what cannot be taken stays general. */
static void read_source(struct work *w, unsigned index) {
    const struct lathe_attention_source *s = &w->m->sources[index];
    struct lathe_element e;
    struct lathe_mask_formula f;
    double fill = s->fill;
    w->is_general[index] = true;
    if (!source_element(w->m, s, &e))
        return;
    if (s->is_select) {
        if (!(fill <= -MASKING) || !lathe_mask_boolean(&w->reader, &e, s->allowed, &f))
            return;
    } else {
        struct lathe_mask_number n;
        if (!lathe_mask_number(&w->reader, &e, &n)) {
            /* it may hold the number wherever it likes, beside scores that a selection does not outweigh then */
            double least = least_fill(w->m);
            w->adds_much |= isfinite(least) && holds_number(w->m->view.graph, s->value, least, 8);
            return;
        }
        if (n.yes == n.no || n.when.never || n.when.count == 0) {
            /* one number for all keys changes nothing unless it is so large that sums lose the scores */
            double value = n.when.never ? n.no : n.yes;
            w->adds_infinity |= !isfinite(value);
            w->is_general[index] = !(fabs(value) <= HARMLESS);
            w->adds_much |= w->is_general[index];
            return;
        }
        n.yes *= s->factor;
        n.no *= s->factor;
        double larger = n.yes > n.no ? n.yes : n.no;
        w->adds_infinity |= !isfinite(larger);
        w->adds_much |= !(fabs(larger) <= HARMLESS * fabs(s->factor));
        /* `yes` is to be the larger one, where attention is allowed */
        if (n.no > n.yes && !lathe_mask_turn(&w->reader, &n))
            return;
        f = n.when;
        fill = n.no - n.yes;
        if (!(fabs(n.yes) <= HARMLESS * fabs(s->factor)) || !(fill <= -MASKING))
            return;
        if (w->keep_sums && !is_uniform(w, fill / fabs(s->factor), false))
            return;
    }
    struct lathe_mask_formula both;
    if (!is_expressible(w, &f) || !lathe_mask_and(&w->reader, &w->formula, &f, &both))
        return;
    w->formula = both;
    w->is_general[index] = false;
    note_fill(w, s->is_select ? fill : fill / fabs(s->factor), s->is_select);
}

/* where(c, bias, number) that is added with a number that swallows the scores: the bias is added, and c selects. */
static bool split_select(struct work *w, struct lathe_attention_source *s) {
    struct lathe_attention_match *m = w->m;
    struct lathe_graph *g = m->view.graph;
    lathe_node_id n = lathe_producer_of(g, s->value, LATHE_OP_WHERE);
    double number;
    if (n == LATHE_NONE)
        return false;
    const lathe_value_id *in = lathe_node_at(g, n)->in;
    bool allowed = lathe_constant_uniform(g, in[2], &number);
    if (!allowed && !lathe_constant_uniform(g, in[1], &number))
        return false;
    struct lathe_attention_source select = *s;
    struct lathe_element e;
    struct lathe_mask_formula f;
    select.value = in[0];
    select.is_select = true;
    select.allowed = allowed;
    select.fill = number * s->factor;
    if (!(select.fill <= -SWALLOWS) || !source_element(m, &select, &e) ||
        !lathe_mask_boolean(&w->reader, &e, allowed, &f) || !is_expressible(w, &f))
        return false;
    s->value = in[allowed ? 1 : 2];
    m->sources[m->source_count++] = select;
    return true;
}

/* A relative bias and a mask made one before they are added: each is a source of its own. */
static void split_sources(struct work *w) {
    struct lathe_attention_match *m = w->m;
    struct lathe_graph *g = m->view.graph;
    for (unsigned i = 0; i < m->source_count;) {
        struct lathe_attention_source *s = &m->sources[i];
        lathe_node_id sum = lathe_producer_of(g, s->value, LATHE_OP_ADD);
        struct lathe_element e;
        struct lathe_mask_number n;
        bool whole = s->is_select || m->source_count == LATHE_ATTENTION_MAX_MASKS || !source_element(m, s, &e) ||
                     lathe_mask_number(&w->reader, &e, &n);
        if (whole || (sum == LATHE_NONE && !split_select(w, s))) {
            i++;
        } else if (sum != LATHE_NONE) {
            m->sources[m->source_count] = *s;
            m->sources[m->source_count++].value = lathe_node_at(g, sum)->in[1];
            s->value = lathe_node_at(g, sum)->in[0];
        }
    }
}

/* Band facts that the attributes cannot express make their sources general. */
static bool collect(struct work *w) {
    for (int pass = 0; pass < 2; pass++) {
        w->formula = (struct lathe_mask_formula){0};
        w->infinite = w->uniform = w->softmax = false;
        w->has_high = w->m->causal;
        w->has_low = false;
        w->low = w->high = 0;
        w->plane_count = 0;
        for (unsigned i = 0; i < w->m->source_count; i++) {
            struct lathe_mask_formula before = w->formula;
            read_source(w, i);
            if (pass == 0 || w->is_general[i])
                continue;
            for (unsigned k = 0; k < w->formula.count; k++)
                if (w->formula.facts[k]->kind == LATHE_MASK_INDEX) {
                    w->formula = before;
                    w->is_general[i] = true;
                    break;
                }
        }
        for (unsigned i = 0; i < w->formula.count; i++) {
            const struct lathe_mask_fact *fact = w->formula.facts[i];
            if (fact->kind == LATHE_MASK_INDEX) {
                if (!narrow_band(w, &fact->index))
                    return false;
            } else if (!plane_of(w->m, &fact->element, fact->negated, &w->planes[w->plane_count++])) {
                return false;
            }
        }
        if (is_known_band(w))
            return true;
    }
    return false;
}

/* A query without keys gets the softmax of its scores and of what is added to them. An operand that holds both the bias
 * and what is allowed cannot say what is added where nothing is allowed. */
static bool loses_the_bias(const struct work *w) {
    bool bias = false, allowed = false;
    for (unsigned i = 0; i < w->m->source_count; i++)
        bias |= w->is_general[i] && !w->m->sources[i].is_select;
    for (unsigned i = 0; i < w->plane_count; i++)
        allowed |= w->planes[i].has[AXIS_N] || w->planes[i].has[AXIS_Q];
    return w->softmax && !w->infinite && !w->uniform && bias && allowed;
}

/* ---- making */

static lathe_value_id emit(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, const char *base,
                           const lathe_value_id *in, uint32_t n_in, enum lathe_dtype dtype, int rank,
                           const lathe_dim *dims) {
    char name[256];
    for (uint32_t i = 0; i < n_in; i++)
        if (in[i] == LATHE_NONE)
            return LATHE_NONE;
    snprintf(name, sizeof name, "%.200s/%s", base, lathe_op_info(op)->name);
    return lathe_graph_emit(g, before, op, name, in, n_in, dtype, rank, dims);
}

static lathe_value_id emit_like(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, lathe_value_id x,
                                enum lathe_dtype dtype) {
    if (x == LATHE_NONE)
        return x;
    struct lathe_value v = *lathe_value_at(g, x);
    lathe_value_id out = emit(g, before, op, v.name, &x, 1, dtype, v.rank, v.dims);
    if (out != LATHE_NONE && op == LATHE_OP_CAST)
        lathe_node_set_int(g, lathe_value_at(g, out)->producer, LATHE_ATTR_TO, dtype);
    return out;
}

static lathe_value_id as_bool(struct lathe_graph *g, lathe_node_id before, lathe_value_id v) {
    if (v == LATHE_NONE || lathe_value_at(g, v)->dtype == LATHE_BOOL)
        return v;
    return emit_like(g, before, LATHE_OP_CAST, v, LATHE_BOOL);
}

/* A pairwise operator of two values of rank 4 (or less), broadcast. */
static lathe_value_id emit_pair(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, lathe_value_id a,
                                lathe_value_id b) {
    if (a == LATHE_NONE || b == LATHE_NONE)
        return LATHE_NONE;
    struct lathe_value x = *lathe_value_at(g, a), y = *lathe_value_at(g, b);
    int rank = x.rank > y.rank ? x.rank : y.rank;
    lathe_dim dims[LATHE_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int from_x = i - (rank - x.rank), from_y = i - (rank - y.rank);
        if (from_x < 0)
            dims[i] = y.dims[from_y];
        else if (from_y < 0 || !is_one(g, x.dims[from_x]))
            dims[i] = x.dims[from_x];
        else
            dims[i] = y.dims[from_y];
    }
    lathe_value_id in[2] = {a, b};
    return emit(g, before, op, x.name, in, 2, x.dtype, rank, dims);
}

static lathe_value_id make_plane(struct work *w, lathe_node_id before, const struct plane *p, int rank,
                                 const lathe_dim *dims, bool keep_type) {
    struct lathe_graph *g = w->m->view.graph;
    lathe_value_id v = p->value;
    bool is_integer = lathe_dtype_is_integer(lathe_value_at(g, v)->dtype);
    if (!keep_type || p->negated || !is_integer)
        v = as_bool(g, before, v);
    if (p->negated)
        v = emit_like(g, before, LATHE_OP_NOT, v, LATHE_BOOL);
    return v == LATHE_NONE ? v : lathe_attention_reshape(g, before, v, rank, dims);
}

/* A mask of the source as an operand of rank 4 or less. */
static lathe_value_id make_general(struct work *w, lathe_node_id before, unsigned index, bool check_only, bool *ok) {
    struct lathe_attention_match *m = w->m;
    struct lathe_graph *g = m->view.graph;
    struct lathe_index_space *space = &m->view.space;
    const struct lathe_attention_source *s = &m->sources[index];
    struct lathe_value value = *lathe_value_at(g, s->value);
    int rank = s->level.rank;
    lathe_dim heads = axis_extent(m, AXIS_N), dims[4];
    struct lathe_index both;
    *ok = false;
    /* The level must show queries and keys in order, batch and heads before them. */
    if (rank < 2 || rank > 4 || value.rank > rank || !lathe_index_equal(space, &s->level.at[rank - 1], &m->k) ||
        !lathe_index_equal(space, &s->level.at[rank - 2], &m->q))
        return LATHE_NONE;
    if (rank == 4 &&
        (!lathe_index_equal(space, &s->level.at[0], &m->b) || !lathe_index_equal(space, &s->level.at[1], &m->n)))
        return LATHE_NONE;
    if (rank == 3 && (!lathe_index_add_scaled(space, &m->n, heads, &m->b, &both) ||
                      !lathe_index_equal(space, &s->level.at[0], &both)))
        return LATHE_NONE;
    bool split = rank == 3 && value.rank == 3;
    if (split) {
        bool one = is_one(g, value.dims[0]);
        dims[0] = one ? value.dims[0] : m->batch;
        dims[1] = one ? value.dims[0] : heads;
        dims[2] = value.dims[1];
        dims[3] = value.dims[2];
    }
    if (!s->is_select && !lathe_dtype_is_float(value.dtype))
        return LATHE_NONE;
    if (s->is_select && !(s->fill <= -MASKING))
        return LATHE_NONE;
    *ok = true;
    if (check_only)
        return LATHE_NONE;
    lathe_value_id v = s->value;
    if (s->is_select) {
        v = as_bool(g, before, v);
        if (!s->allowed)
            v = emit_like(g, before, LATHE_OP_NOT, v, LATHE_BOOL);
    } else {
        v = lathe_attention_cast(g, before, v, LATHE_F32);
    }
    if (!s->is_select && s->factor != 1) {
        v = emit_pair(g, before, LATHE_OP_MUL, v, lathe_graph_add_scalar_f32(g, "mask_factor", (float)s->factor));
    }
    if (v != LATHE_NONE && split)
        v = lathe_attention_reshape(g, before, v, 4, dims);
    return v;
}

static lathe_value_id join(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, lathe_value_id a,
                           lathe_value_id b) {
    return a == LATHE_NONE ? b : emit_pair(g, before, op, a, b);
}

/* The weights are zeroed where the scores were masked, and nowhere else: then only rows without keys change. */
static bool zeroes_what_is_masked(struct work *w) {
    const struct lathe_attention_source *s = &w->m->zeroed;
    struct lathe_element e;
    struct lathe_mask_formula f;
    struct lathe_mask_number n;
    if (!source_element(w->m, s, &e))
        return false;
    if (s->is_select) {
        if (!lathe_mask_boolean(&w->reader, &e, s->allowed, &f))
            return false;
    } else {
        if (!lathe_mask_number(&w->reader, &e, &n) || n.yes != 1 || n.no != 0)
            return false;
        f = n.when;
    }
    return lathe_mask_same(&w->reader, &w->formula, &f);
}

bool lathe_attention_make_masks(struct lathe_attention_match *m, lathe_node_id before,
                                struct lathe_attention_masks *out, const char **why) {
    struct lathe_graph *g = m->view.graph;
    struct work w = {.m = m, .reader = {&m->view, m->ctx->scratch}};
    bool ok;
    *why = "found positions that no causal order or window describes, expected a mask operand";
    split_sources(&w);
    if (!collect(&w))
        return false;
    w.keep_sums = loses_the_bias(&w);
    if (w.keep_sums && !collect(&w))
        return false;
    *why = "found a mask that adds infinity to scores it allows";
    if (w.adds_infinity)
        return false;
    *why = "found a large number added to scores that are allowed, beside another mask";
    if (w.adds_much && m->source_count > 1)
        return false;
    *why = "found weights set to zero by another mask than that of the scores";
    if (m->has_zeroed && !zeroes_what_is_masked(&w))
        return false;
    for (unsigned i = 0; i < m->source_count; i++) {
        *why = "found a mask whose axes are not batch, head, query and key in this order, or fills above -10000";
        if (!w.is_general[i])
            continue;
        make_general(&w, before, i, true, &ok);
        if (!ok)
            return false;
        if (m->sources[i].is_select)
            note_fill(&w, m->sources[i].fill, true);
    }

    lathe_value_id keys = LATHE_NONE, allowed = LATHE_NONE, bias = LATHE_NONE;
    lathe_dim key_dims[2] = {m->batch, m->sk};
    unsigned key_planes = 0;
    for (unsigned i = 0; i < w.plane_count; i++) {
        struct plane *p = &w.planes[i];
        p->has[AXIS_B] |= is_one(g, m->batch);
        key_planes += p->has[AXIS_B] && !p->has[AXIS_N] && !p->has[AXIS_Q] && p->has[AXIS_K];
    }
    for (unsigned i = 0; i < w.plane_count; i++) {
        const struct plane *p = &w.planes[i];
        bool is_keys = p->has[AXIS_B] && !p->has[AXIS_N] && !p->has[AXIS_Q] && p->has[AXIS_K];
        lathe_value_id v =
            make_plane(&w, before, p, is_keys ? 2 : 4, is_keys ? key_dims : p->dims, is_keys && key_planes == 1);
        if (is_keys)
            keys = join(g, before, LATHE_OP_AND, keys, v);
        else
            allowed = join(g, before, LATHE_OP_AND, allowed, v);
    }
    for (unsigned i = 0; i < m->source_count; i++) {
        if (!w.is_general[i])
            continue;
        lathe_value_id v = make_general(&w, before, i, false, &ok);
        if (m->sources[i].is_select)
            allowed = join(g, before, LATHE_OP_AND, allowed, v);
        else
            bias = join(g, before, LATHE_OP_ADD, bias, v);
    }
    if (allowed != LATHE_NONE && bias != LATHE_NONE) {
        /* one operand: the bias, with -inf where a key is not allowed */
        struct lathe_value x, y;
        lathe_dim dims[4];
        lathe_value_id minus = lathe_graph_add_scalar_f32(g, "forbidden", -INFINITY);
        lathe_value_id in[3] = {allowed, bias, minus};
        x = *lathe_value_at(g, allowed);
        y = *lathe_value_at(g, bias);
        int rank = x.rank > y.rank ? x.rank : y.rank;
        for (int i = 0; i < rank; i++) {
            int from_x = i - (rank - x.rank), from_y = i - (rank - y.rank);
            dims[i] = from_x >= 0 && (from_y < 0 || !is_one(g, x.dims[from_x])) ? x.dims[from_x] : y.dims[from_y];
        }
        bias = emit(g, before, LATHE_OP_WHERE, y.name, in, 3, LATHE_F32, rank, dims);
    }
    out->keys = keys;
    out->mask = bias != LATHE_NONE ? bias : allowed;
    out->causal = w.has_high && w.high == 0;
    out->window = w.has_low ? -w.low : -1;
    bool masks = w.infinite || w.uniform || w.softmax;
    /* A product with zero keeps NaN, a selection does not. */
    bool zeroed = m->has_zeroed && (m->zeroed.is_select || !w.infinite);
    out->warn_infinite = w.infinite && !m->guarded && !zeroed;
    if (zeroed || (m->guarded && (w.infinite || !masks)))
        out->masked_row = LATHE_MASKED_ZERO;
    else if (w.infinite)
        out->masked_row = LATHE_MASKED_FLAG;
    else if (w.uniform || !masks)
        out->masked_row = LATHE_MASKED_UNIFORM;
    else
        out->masked_row = LATHE_MASKED_SOFTMAX;
    /* a bias that may hold -inf */
    if (!masks && bias != LATHE_NONE)
        out->masked_row = m->guarded ? LATHE_MASKED_ZERO : LATHE_MASKED_FLAG;
    return true;
}
