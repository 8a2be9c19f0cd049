/* Checks the tables of MANIFEST and PLAN, once: afterwards each index and string in them can be used as it is. What
 * depends on the sizes of a run (a tensor within the bytes set aside for it) is checked by the session for each shape.
 */
#include "kernel.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PORTS  4096
#define MAX_LABELS (1u << 20)
#define MAX_ARENA  ((uint64_t)1 << 46)

struct checker {
    const struct lathe_artifact *a; /* its weights */
    const struct lathe_manifest *manifest;
    struct lathe_plan *plan;
    const char *what;
    struct lathe_diag *diag;
    uint32_t next_operand, next_attr, next_int; /* tables are used in order, each entry once */
};

#define BAD(c, ...) bad((c), __VA_ARGS__)

static enum lathe_status bad(const struct checker *c, const char *table, uint64_t index, const char *rule) {
    return lathe_fail(c->diag, LATHE_MSG_ARTIFACT_PLAN, "%s: %s %llu: %s", c->what, table, (unsigned long long)index,
                      rule);
}

static bool all_zero(const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)p)[i])
            return false;
    return true;
}

static bool strings_ok(const char *strings, uint32_t bytes) {
    return bytes >= 8 && bytes % 8 == 0 && strings[0] == '\0' && strings[bytes - 1] == '\0';
}

/* ---- manifest */

static enum lathe_status check_port(const struct checker *c, const struct lathe_fmt_port *p, bool input,
                                    uint32_t index) {
    const struct lathe_manifest *m = c->manifest;
    const struct lathe_plan *plan = c->plan;
    const char *table = input ? "input" : "output";
    if (p->name >= m->head->string_bytes || m->strings[p->name] == '\0')
        return BAD(c, table, index, "name");
    if (p->value >= plan->head->value_count)
        return BAD(c, table, index, "value");
    const struct lathe_fmt_value *v = &plan->values[p->value];
    if (p->dtype != v->dtype || p->rank != v->rank || p->reserved ||
        (p->flags & ~(LATHE_PORT_OPTIONAL | LATHE_PORT_PER_TOKEN)))
        return BAD(c, table, index, "type, rank or flags");
    if (input ? v->place != LATHE_PLACE_INPUT || v->index != index : v->place == LATHE_PLACE_INPUT)
        return BAD(c, table, index, "place of its value");
    bool optional = p->flags & LATHE_PORT_OPTIONAL;
    if (optional != (p->default_kind != LATHE_DEFAULT_NONE) || p->default_kind > LATHE_DEFAULT_POSITIONS ||
        (optional && (!input || !lathe_dtype_is_integer((enum lathe_dtype)p->dtype))) || p->id_limit < 0 ||
        (p->id_limit > 0 && (!input || !lathe_dtype_is_integer((enum lathe_dtype)p->dtype))))
        return BAD(c, table, index, "default or limit");
    if (p->default_kind == LATHE_DEFAULT_POSITIONS && p->rank < 1)
        return BAD(c, table, index, "default needs an axis");
    for (unsigned i = 0; i < 8; i++)
        if (i < p->rank ? p->dims[i] != v->dims[i] || p->dim_names[i] >= m->head->string_bytes
                        : p->dims[i] || p->dim_names[i])
            return BAD(c, table, index, "dims");
    return LATHE_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum lathe_status check_unique(const struct checker *c, const struct lathe_fmt_port *ports, uint32_t count,
                                      const char *table) {
    const char **names = malloc((count + 1) * sizeof *names);
    if (!names)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    for (uint32_t i = 0; i < count; i++)
        names[i] = c->manifest->strings + ports[i].name;
    qsort(names, count, sizeof *names, compare_names);
    enum lathe_status status = LATHE_OK;
    for (uint32_t i = 1; i < count && status == LATHE_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = BAD(c, table, i, "two of one name");
    free(names);
    return status;
}

enum lathe_status lathe_manifest_map(const void *bytes, uint64_t size, struct lathe_manifest *m, const char *what,
                                     struct lathe_diag *diag) {
    const struct checker view = {.manifest = m, .what = what, .diag = diag}, *c = &view;
    const uint8_t *data = bytes;
    if (size < sizeof *m->head)
        return BAD(c, "manifest", 0, "too short");
    m->head = (const void *)data;
    const struct lathe_fmt_manifest *h = m->head;
    if (h->input_count > MAX_PORTS || h->output_count < 1 || h->output_count > MAX_PORTS ||
        h->label_count > MAX_LABELS || h->max_batch < 0 || h->max_seq < 0 || !all_zero(h->reserved, sizeof h->reserved))
        return BAD(c, "manifest", 0, "counts or reserved bytes");
    if (h->placement > LATHE_PLACEMENT_PIPELINE || h->cores > LATHE_FORMAT_MAX_CORES)
        return BAD(c, "manifest", 0, "placement or cores");
    uint64_t ports = ((uint64_t)h->input_count + h->output_count) * sizeof(struct lathe_fmt_port);
    uint64_t labels = (uint64_t)(h->label_count + (h->label_count & 1)) * 4;
    if (size - sizeof *h != ports + labels + h->string_bytes)
        return BAD(c, "manifest", 0, "size");
    m->inputs = (const void *)(data + sizeof *h);
    m->outputs = m->inputs + h->input_count;
    m->labels = (const void *)(m->outputs + h->output_count);
    m->strings = (const char *)m->labels + labels;
    if (!strings_ok(m->strings, h->string_bytes) || h->target_name >= h->string_bytes || h->writer >= h->string_bytes ||
        ((h->label_count & 1) && m->labels[h->label_count] != 0))
        return BAD(c, "manifest", 0, "strings");
    for (uint32_t i = 0; i < h->label_count; i++)
        if (m->labels[i] >= h->string_bytes)
            return BAD(c, "label", i, "string");
    return LATHE_OK;
}

/* ---- plan */

enum lathe_status lathe_plan_map(const void *bytes, uint64_t size, struct lathe_plan *p, const char *what,
                                 struct lathe_diag *diag) {
    const struct checker view = {.plan = p, .what = what, .diag = diag}, *c = &view;
    const uint8_t *data = bytes;
    if (size < sizeof *p->head)
        return BAD(c, "plan", 0, "too short");
    p->head = (const void *)data;
    const struct lathe_fmt_plan *h = p->head;
    /* each term is below 2^32 * 64, so the sum fits */
    uint64_t need = (uint64_t)h->symbol_count * sizeof *p->symbols + (uint64_t)h->dim_count * sizeof *p->dims +
                    (uint64_t)h->value_count * sizeof *p->values + (uint64_t)h->step_count * sizeof *p->steps +
                    (uint64_t)h->attr_count * sizeof *p->attrs + (uint64_t)h->int_count * sizeof *p->ints +
                    ((uint64_t)h->operand_count + (h->operand_count & 1)) * sizeof *p->operands + h->string_bytes;
    if (size - sizeof *h != need || h->reserved0 || !all_zero(h->reserved, sizeof h->reserved) ||
        h->arena_bytes > MAX_ARENA || h->prologue_steps > h->step_count)
        return BAD(c, "plan", 0, "size, arena or reserved bytes");
    p->symbols = (const void *)(data + sizeof *h);
    p->dims = (const void *)(p->symbols + h->symbol_count);
    p->values = (const void *)(p->dims + h->dim_count);
    p->steps = (const void *)(p->values + h->value_count);
    p->attrs = (const void *)(p->steps + h->step_count);
    p->ints = (const void *)(p->attrs + h->attr_count);
    p->operands = (const void *)(p->ints + h->int_count);
    p->strings = (const char *)(p->operands + h->operand_count + (h->operand_count & 1));
    if (!strings_ok(p->strings, h->string_bytes) || ((h->operand_count & 1) && p->operands[h->operand_count] != 0))
        return BAD(c, "plan", 0, "strings");
    return LATHE_OK;
}

static enum lathe_status check_dims(const struct checker *c) {
    struct lathe_plan *p = c->plan;
    p->dim_needs_rows = calloc((size_t)p->head->dim_count + 1, 1);
    if (!p->dim_needs_rows)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    for (uint32_t i = 0; i < p->head->dim_count; i++) {
        const struct lathe_fmt_dim *d = &p->dims[i];
        if (d->reserved || d->op > LATHE_DIM_MAX)
            return BAD(c, "dim", i, "op");
        if (d->op == LATHE_DIM_CONST    ? d->a || d->b
            : d->op == LATHE_DIM_SYMBOL ? d->a >= p->head->symbol_count || d->b || d->constant
                                        : d->a >= i || d->b >= i || d->constant)
            return BAD(c, "dim", i, "operands");
        p->dim_needs_rows[i] = d->op == LATHE_DIM_CONST    ? 0
                               : d->op == LATHE_DIM_SYMBOL ? p->symbols[d->a].source == LATHE_SYMBOL_ROWS
                                                           : p->dim_needs_rows[d->a] | p->dim_needs_rows[d->b];
    }
    return LATHE_OK;
}

static enum lathe_status check_symbol(const struct checker *c, uint32_t index) {
    const struct lathe_plan *p = c->plan;
    const struct lathe_manifest *m = c->manifest;
    const struct lathe_fmt_symbol *s = &p->symbols[index];
    if (s->name >= p->head->string_bytes || p->strings[s->name] == '\0' || s->min < 0 || s->max < s->min ||
        s->role > LATHE_ROLE_ROWS || s->reserved)
        return BAD(c, "symbol", index, "name, bounds or role");
    if (s->source == LATHE_SYMBOL_INPUT) {
        if (s->index >= m->head->input_count || s->axis >= m->inputs[s->index].rank)
            return BAD(c, "symbol", index, "source");
        const struct lathe_fmt_dim *d = &p->dims[m->inputs[s->index].dims[s->axis]];
        if (d->op != LATHE_DIM_SYMBOL || d->a != index)
            return BAD(c, "symbol", index, "its source is another size");
    } else if (s->source == LATHE_SYMBOL_ROWS) {
        if (s->index >= p->head->prologue_steps || s->axis || p->steps[s->index].op != LATHE_OP_ROW_MAP)
            return BAD(c, "symbol", index, "source");
    } else {
        return BAD(c, "symbol", index, "source");
    }
    return LATHE_OK;
}

static enum lathe_status check_value(const struct checker *c, uint32_t index) {
    const struct lathe_plan *p = c->plan;
    const struct lathe_fmt_value *v = &p->values[index];
    if (!lathe_dtype_bytes((enum lathe_dtype)v->dtype))
        return lathe_fail(c->diag, LATHE_MSG_ARTIFACT_OPERATOR, "%s: value %u: element type %u", c->what, index,
                          v->dtype);
    if (v->rank > LATHE_MAX_RANK || v->name >= p->head->string_bytes || v->reserved || v->offset % LATHE_FORMAT_ALIGN)
        return BAD(c, "value", index, "rank, name or offset");
    for (unsigned i = 0; i < 8; i++)
        if (i < v->rank ? v->dims[i] >= p->head->dim_count : v->dims[i])
            return BAD(c, "value", index, "dims");
    switch (v->place) {
    case LATHE_PLACE_INPUT:
        if (v->index >= c->manifest->head->input_count || v->offset || v->bytes || v->packing)
            return BAD(c, "value", index, "input");
        return LATHE_OK;
    case LATHE_PLACE_ARENA:
        if (v->index || v->packing || v->offset > p->head->arena_bytes || v->bytes > p->head->arena_bytes - v->offset)
            return BAD(c, "value", index, "range in the arena");
        return LATHE_OK;
    case LATHE_PLACE_CONSTANT: {
        int64_t dims[LATHE_MAX_RANK] = {0};
        for (unsigned i = 0; i < v->rank; i++) {
            if (p->dims[v->dims[i]].op != LATHE_DIM_CONST)
                return BAD(c, "value", index, "a constant of varying size");
            dims[i] = p->dims[v->dims[i]].constant;
        }
        int64_t bytes = lathe_shape_bytes((enum lathe_dtype)v->dtype, v->rank, dims);
        if (v->packing) {
            size_t packed = v->rank == 2 && dims[0] >= 0 && dims[1] >= 0 && v->dtype == lathe_packed_dtype(v->packing)
                                ? lathe_packed_bytes(v->packing, (size_t)dims[0], (size_t)dims[1])
                                : 0;
            if (packed == 0 && bytes != 0)
                return lathe_fail(c->diag, LATHE_MSG_ARTIFACT_OPERATOR, "%s: value %u: packing %u", c->what, index,
                                  v->packing);
            bytes = (int64_t)packed;
        }
        if (v->index || bytes < 0 || (uint64_t)bytes != v->bytes || v->offset > c->a->weight_bytes ||
            v->bytes > c->a->weight_bytes - v->offset)
            return BAD(c, "value", index, "range in the weights");
        return LATHE_OK;
    }
    default:
        return BAD(c, "value", index, "place");
    }
}

static bool attr_ok(struct checker *c, const struct lathe_fmt_attr *at) {
    const struct lathe_plan *p = c->plan;
    bool list = at->type == LATHE_ATTR_INTS || at->type == LATHE_ATTR_DIMS;
    if (at->type < LATHE_ATTR_INT || at->type > LATHE_ATTR_DIMS)
        return false;
    if (!list)
        return at->first == 0 && at->count == 0;
    if (at->i != 0 || at->first != c->next_int || at->count > p->head->int_count - at->first)
        return false;
    c->next_int += at->count;
    if (at->type == LATHE_ATTR_DIMS)
        for (uint32_t i = 0; i < at->count; i++)
            if (p->ints[at->first + i] < 0 || p->ints[at->first + i] >= p->head->dim_count)
                return false;
    return true;
}

/* The packing that the step says operand i has. */
static int64_t packing_of(const struct lathe_plan *p, const struct lathe_fmt_step *s, uint32_t i) {
    uint32_t each = s->op == LATHE_OP_EMBEDDING ? 2 : s->op == LATHE_OP_EMBEDDING_Q8 ? 3 : 0;
    for (uint32_t k = 0; k < s->n_attrs; k++) {
        const struct lathe_fmt_attr *a = &p->attrs[s->first_attr + k];
        if (a->key == LATHE_ATTR_PACKING && a->type == LATHE_ATTR_INT && !each && i == 1)
            return a->i;
        if (a->key == LATHE_ATTR_PACKINGS && a->type == LATHE_ATTR_INTS && each && i >= 2 && (i - 2) % each == 0 &&
            (i - 2) / each < a->count)
            return p->ints[a->first + (i - 2) / each];
    }
    return 0;
}

static int64_t int_attr(const struct lathe_plan *p, const struct lathe_fmt_step *s, uint32_t key, int64_t absent) {
    for (uint32_t k = 0; k < s->n_attrs; k++)
        if (p->attrs[s->first_attr + k].key == key && p->attrs[s->first_attr + k].type == LATHE_ATTR_INT)
            return p->attrs[s->first_attr + k].i;
    return absent;
}

static int64_t constant_dim(const struct lathe_plan *p, uint32_t v, unsigned axis) {
    const struct lathe_fmt_dim *d = &p->dims[p->values[v].dims[axis]];
    return d->op == LATHE_DIM_CONST ? d->constant : -1;
}

static bool is_linear(unsigned op) {
    return op == LATHE_OP_LINEAR || op == LATHE_OP_LINEAR_BF16 || op == LATHE_OP_LINEAR_Q8;
}

/* Operators read a weight in panels as far as the sizes beside it say: it must be what the step says it is. (Tables of
 * embeddings are measured when they are read.) */
static bool packings_ok(const struct lathe_plan *p, const struct lathe_fmt_step *s) {
    const uint32_t *in = p->operands + s->first_operand;
    for (uint32_t i = 0; i < s->n_in; i++) {
        int64_t said = packing_of(p, s, i);
        if (in[i] == LATHE_FORMAT_ABSENT ? said != 0 : said != p->values[in[i]].packing)
            return false;
        if (!said || !is_linear(s->op))
            continue;
        const struct lathe_fmt_value *x = &p->values[in[0]], *y = &p->values[in[s->n_in]];
        int64_t k = constant_dim(p, in[1], 0), n = constant_dim(p, in[1], 1),
                groups = int_attr(p, s, LATHE_ATTR_GROUP, 1);
        int64_t width = x->rank < 1 ? -1 : constant_dim(p, in[0], x->rank - 1u);
        if (groups < 1 || width % groups != 0 || k != width / groups || n % groups != 0 ||
            (groups > 1 && n / groups % 16 != 0) || y->rank < 1 || n != constant_dim(p, in[s->n_in], y->rank - 1u))
            return false;
    }
    return true;
}

static enum lathe_status check_step(struct checker *c, uint32_t index) {
    const struct lathe_plan *p = c->plan;
    const struct lathe_fmt_step *s = &p->steps[index];
    const struct lathe_op_info *op = lathe_op_info(s->op);
    bool copy = s->op == LATHE_OP_RESHAPE;
    if (!op || (!op->run && !copy))
        return lathe_fail(c->diag, LATHE_MSG_ARTIFACT_OPERATOR, "%s: step %u: operator %u is not known", c->what, index,
                          s->op);
    if (s->flags & ~LATHE_STEP_HOST || s->name >= p->head->string_bytes || s->origin >= p->head->string_bytes)
        return BAD(c, "step", index, "name or reserved bytes");
    uint32_t n = (uint32_t)s->n_in + s->n_out;
    if (s->n_in < op->min_in || s->n_in > op->max_in || s->n_out < 1 || s->n_out > op->n_out ||
        s->first_operand != c->next_operand || n > p->head->operand_count - s->first_operand)
        return BAD(c, "step", index, "number of operands");
    c->next_operand += n;
    const uint32_t *in = p->operands + s->first_operand, *out = in + s->n_in;
    bool prologue = index < p->head->prologue_steps;
    for (uint32_t i = 0; i < n; i++) {
        bool is_out = i >= s->n_in;
        if (in[i] == LATHE_FORMAT_ABSENT) {
            /* the first operands of all but embeddings (gamma, beta, scales) are needed, and the first result */
            bool embedding = s->op == LATHE_OP_EMBEDDING || s->op == LATHE_OP_EMBEDDING_Q8;
            if (is_out ? i == s->n_in : i < op->min_in && !(embedding && i != 2))
                return BAD(c, "step", index, "an operand is missing");
            continue;
        }
        if (in[i] >= p->head->value_count)
            return BAD(c, "step", index, "operand");
        const struct lathe_fmt_value *v = &p->values[in[i]];
        if (is_out && v->place != LATHE_PLACE_ARENA)
            return BAD(c, "step", index, "a result outside the arena");
        for (unsigned d = 0; prologue && d < v->rank; d++)
            if (p->dim_needs_rows[v->dims[d]])
                return BAD(c, "step", index, "the prologue needs a size that it makes");
    }
    if (copy && (s->n_in != 1 || in[0] == LATHE_FORMAT_ABSENT || p->values[in[0]].dtype != p->values[out[0]].dtype))
        return BAD(c, "step", index, "copy");
    if (s->first_attr != c->next_attr || s->n_attrs > p->head->attr_count - s->first_attr)
        return BAD(c, "step", index, "attributes");
    c->next_attr += s->n_attrs;
    for (uint32_t i = 0; i < s->n_attrs; i++) {
        const struct lathe_fmt_attr *at = &p->attrs[s->first_attr + i];
        if (!attr_ok(c, at) || (i > 0 && at[-1].key >= at->key))
            return BAD(c, "step", index, "attribute");
        if (prologue && at->type == LATHE_ATTR_DIMS)
            for (uint32_t k = 0; k < at->count; k++)
                if (p->dim_needs_rows[p->ints[at->first + k]])
                    return BAD(c, "step", index, "the prologue needs a size that it makes");
    }
    return packings_ok(p, s) ? LATHE_OK : BAD(c, "step", index, "packing of a weight");
}

/* ---- what the public interface shows */

static enum lathe_status make_ports(const struct checker *c, struct lathe_port **out) {
    const struct lathe_manifest *m = c->manifest;
    const struct lathe_plan *p = c->plan;
    uint32_t count = m->head->input_count + m->head->output_count;
    struct lathe_port *ports = *out = calloc(count, sizeof *ports);
    if (!ports)
        return lathe_fail(c->diag, LATHE_MSG_NO_MEMORY, "%s: out of memory", c->what);
    for (uint32_t i = 0; i < count; i++) {
        const struct lathe_fmt_port *f = &m->inputs[i]; /* outputs follow */
        struct lathe_port *port = &ports[i];
        *port = (struct lathe_port){
            .name = m->strings + f->name,
            .dtype = (enum lathe_dtype)f->dtype,
            .rank = f->rank,
            .optional = f->flags & LATHE_PORT_OPTIONAL,
            .per_token = f->flags & LATHE_PORT_PER_TOKEN,
            .id_limit = f->id_limit,
        };
        for (unsigned d = 0; d < f->rank; d++) {
            const struct lathe_fmt_dim *dim = &p->dims[f->dims[d]];
            port->dims[d] = dim->op == LATHE_DIM_CONST ? dim->constant : -1;
            port->dim_names[d] = dim->op == LATHE_DIM_CONST ? NULL : m->strings + f->dim_names[d];
        }
    }
    return LATHE_OK;
}

enum lathe_status lathe_plan_check(const struct lathe_artifact *a, const struct lathe_manifest *manifest,
                                   struct lathe_plan *plan, struct lathe_port **ports, const char *what,
                                   struct lathe_diag *diag) {
    struct checker c = {.a = a, .manifest = manifest, .plan = plan, .what = what, .diag = diag};
    const struct lathe_manifest *m = manifest;
    const struct lathe_plan *p = plan;
    /* values before ports and symbols, dims before values; the operands of dims need only the number of symbols */
    LATHE_TRY(check_dims(&c));
    for (uint32_t i = 0; i < p->head->value_count; i++)
        LATHE_TRY(check_value(&c, i));
    for (uint32_t i = 0; i < m->head->input_count; i++)
        LATHE_TRY(check_port(&c, &m->inputs[i], true, i));
    for (uint32_t i = 0; i < m->head->output_count; i++)
        LATHE_TRY(check_port(&c, &m->outputs[i], false, i));
    LATHE_TRY(check_unique(&c, m->inputs, m->head->input_count, "input"));
    LATHE_TRY(check_unique(&c, m->outputs, m->head->output_count, "output"));
    for (uint32_t i = 0; i < p->head->symbol_count; i++)
        LATHE_TRY(check_symbol(&c, i));
    for (uint32_t i = 0; i < p->head->step_count; i++)
        LATHE_TRY(check_step(&c, i));
    if (c.next_operand != p->head->operand_count || c.next_attr != p->head->attr_count ||
        c.next_int != p->head->int_count)
        return BAD(&c, "plan", 0, "entries that no step uses");
    return make_ports(&c, ports);
}

/* ---- sizes */

int64_t lathe_shape_bytes(enum lathe_dtype dtype, unsigned rank, const int64_t *dims) {
    int64_t n = (int64_t)lathe_dtype_bytes(dtype);
    bool empty = false;
    for (unsigned i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return -1;
        empty |= dims[i] == 0;
        if (dims[i] > 0 && !lathe_mul_i64(n, dims[i], &n))
            return -1;
    }
    return empty ? 0 : n;
}

void lathe_plan_eval(const struct lathe_plan *plan, const int64_t *symbols, bool only_rows, int64_t *dims) {
    for (uint32_t i = 0; i < plan->head->dim_count; i++) {
        if (only_rows && !plan->dim_needs_rows[i])
            continue;
        const struct lathe_fmt_dim *d = &plan->dims[i];
        if (d->op == LATHE_DIM_CONST || d->op == LATHE_DIM_SYMBOL) {
            dims[i] = d->op == LATHE_DIM_CONST ? d->constant : symbols[d->a];
            continue;
        }
        /* INT64_MIN marks a failed entry: expressions may pass through negative numbers */
        int64_t a = dims[d->a], b = dims[d->b], r = INT64_MIN;
        bool ok = a != INT64_MIN && b != INT64_MIN;
        switch (ok ? d->op : LATHE_DIM_CONST) {
        case LATHE_DIM_ADD:
            ok = !__builtin_add_overflow(a, b, &r);
            break;
        case LATHE_DIM_SUB:
            ok = !__builtin_sub_overflow(a, b, &r);
            break;
        case LATHE_DIM_MUL:
            ok = !__builtin_mul_overflow(a, b, &r);
            break;
        case LATHE_DIM_FLOORDIV:
        case LATHE_DIM_MOD:
            ok = b > 0;
            if (ok) {
                int64_t q = a / b - (a % b < 0);
                r = d->op == LATHE_DIM_FLOORDIV ? q : a - q * b;
            }
            break;
        case LATHE_DIM_MIN:
            r = a < b ? a : b;
            break;
        case LATHE_DIM_MAX:
            r = a > b ? a : b;
            break;
        default:
            break;
        }
        dims[i] = ok ? r : INT64_MIN;
    }
}
