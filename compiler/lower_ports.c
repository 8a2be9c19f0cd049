/* What the interface says of inputs and outputs beside their shapes: limits of ids, defaults, rows that are tokens. */
#include "lower.h"

#include <stdlib.h>
#include <string.h>

/* Number of rows that this operand position selects from, 0 when it is no index into a table of known size. */
static int64_t table_rows(struct lathe_graph *g, const struct lathe_node *node, lathe_node_id id, uint32_t position) {
    struct lathe_attrs attrs = lathe_node_attrs(g, id);
    lathe_value_id table = LATHE_NONE;
    int64_t axis = 0, rows = 0;
    switch (node->op) {
    case LATHE_OP_GATHER:
        if (position == 1) {
            table = node->in[0];
            axis = lathe_attr_int(&attrs, LATHE_ATTR_AXIS, 0);
        }
        break;
    case LATHE_OP_GATHER_BLOCK_QUANTIZED: /* gathers along axis 0, the quantize axis is another */
        if (position == 1)
            table = node->in[0];
        break;
    case LATHE_OP_EMBEDDING: /* gamma, beta, then pairs of table and index */
        if (position >= 3 && position % 2 == 1)
            table = node->in[position - 1];
        break;
    case LATHE_OP_EMBEDDING_Q8: /* gamma, beta, then triples of table, scales and index */
        if (position >= 4 && position % 3 == 1)
            table = node->in[position - 2];
        break;
    default:
        break;
    }
    if (table == LATHE_NONE || !lathe_value_is_constant(g, table) || axis < 0 ||
        axis >= lathe_value_at(g, table)->rank || !lathe_value_dim_is(g, table, (int)axis, &rows))
        return 0;
    return rows;
}

static bool passes_ids(enum lathe_op op, uint32_t position) {
    switch (op) {
    case LATHE_OP_RESHAPE:
    case LATHE_OP_CAST:
    case LATHE_OP_EXPAND:
    case LATHE_OP_TRANSPOSE:
    case LATHE_OP_SLICE:
    case LATHE_OP_PACK_ROWS:
    case LATHE_OP_TILE:
        return position == 0;
    case LATHE_OP_GATHER: /* ids that are picked by position stay ids */
        return position == 0;
    default:
        return false;
    }
}

/* The smallest table that the value's elements select from, directly or through moves and casts; 0: none. `work` is a
 * stack of values, `seen` one byte a value. */
static int64_t id_limit(struct lathe_graph *g, lathe_value_id input, lathe_value_id *work, uint8_t *seen) {
    uint32_t depth = 0;
    int64_t limit = 0;
    memset(seen, 0, g->value_count);
    work[depth++] = input;
    seen[input] = 1;
    while (depth > 0) {
        const struct lathe_value *v = lathe_value_at(g, work[--depth]);
        lathe_value_id self = work[depth];
        for (uint32_t u = 0; u < v->use_count; u++) {
            lathe_node_id id = v->uses[u];
            const struct lathe_node *node = lathe_node_at(g, id);
            for (uint32_t p = 0; p < node->n_in; p++) {
                if (node->in[p] != self)
                    continue;
                int64_t rows = table_rows(g, node, id, p);
                if (rows > 0 && (limit == 0 || rows < limit))
                    limit = rows;
                lathe_value_id out = node->out[0];
                if (passes_ids(node->op, p) && out != LATHE_NONE && !seen[out] &&
                    lathe_dtype_is_integer(lathe_value_at(g, out)->dtype)) {
                    seen[out] = 1;
                    work[depth++] = out;
                }
            }
        }
    }
    return limit;
}

static uint32_t default_of(const struct lathe_value *v) {
    if (!lathe_dtype_is_integer(v->dtype) || v->rank < 1)
        return LATHE_DEFAULT_NONE;
    if (strstr(v->name, "token_type") || strstr(v->name, "segment"))
        return LATHE_DEFAULT_ZEROS;
    if (strstr(v->name, "position_ids"))
        return LATHE_DEFAULT_POSITIONS;
    return LATHE_DEFAULT_NONE;
}

/* The input that marks real tokens; LATHE_NONE when there is none. */
static lathe_value_id token_mask(struct lathe_graph *g) {
    lathe_value_id mask = LATHE_NONE;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
        if (!strcmp(v->name, "attention_mask"))
            return g->inputs[i];
        if (mask == LATHE_NONE && v->rank == 2 && strstr(v->name, "mask"))
            mask = g->inputs[i];
    }
    return mask;
}

/* One row a token: the first two sizes are those of the mask [B,S], or of integers [B,S] where there is no mask. */
static bool is_per_token(struct lathe_graph *g, lathe_value_id out) {
    const struct lathe_value *v = lathe_value_at(g, out);
    lathe_value_id mask = token_mask(g);
    if (v->rank < 2)
        return false;
    for (uint32_t i = 0; i < g->input_count; i++) {
        const struct lathe_value *in = lathe_value_at(g, g->inputs[i]);
        bool tokens = mask == LATHE_NONE ? lathe_dtype_is_integer(in->dtype) : g->inputs[i] == mask;
        int64_t fixed;
        if (in->rank == 2 && tokens &&
            lathe_dim_resolve(g->dims, in->dims[0]) == lathe_dim_resolve(g->dims, v->dims[0]) &&
            lathe_dim_resolve(g->dims, in->dims[1]) == lathe_dim_resolve(g->dims, v->dims[1]) &&
            (v->rank > 2 || !lathe_value_dim_is(g, g->inputs[i], 1, &fixed)))
            return true;
    }
    return false;
}

enum lathe_status lathe_lower_ports(struct lathe_lowered *l) {
    struct lathe_graph *g = l->graph;
    l->inputs = lathe_arena_alloc_array(l->arena, (size_t)g->input_count + 1, sizeof *l->inputs);
    l->outputs = lathe_arena_alloc_array(l->arena, (size_t)g->output_count + 1, sizeof *l->outputs);
    lathe_value_id *work = malloc(((size_t)g->value_count + 1) * sizeof *work);
    uint8_t *seen = malloc((size_t)g->value_count + 1);
    enum lathe_status status = LATHE_OK;
    if (!l->inputs || !l->outputs || !work || !seen)
        status = lathe_fail(l->diag, LATHE_MSG_NO_MEMORY, "lowering: out of memory");
    for (uint32_t i = 0; status == LATHE_OK && i < g->input_count; i++) {
        const struct lathe_value *v = lathe_value_at(g, g->inputs[i]);
        struct lathe_port_facts *f = &l->inputs[i];
        f->default_kind = default_of(v);
        f->flags = f->default_kind ? LATHE_PORT_OPTIONAL : 0;
        f->id_limit = lathe_dtype_is_integer(v->dtype) ? id_limit(g, g->inputs[i], work, seen) : 0;
    }
    for (uint32_t i = 0; status == LATHE_OK && i < g->output_count; i++)
        l->outputs[i].flags = is_per_token(g, g->outputs[i]) ? LATHE_PORT_PER_TOKEN : 0;
    free(work);
    free(seen);
    return status;
}
