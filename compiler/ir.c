/* The graph's storage: values, nodes, order, use lists. Questions about constants and shapes are in ir_query.c. */
#include "ir.h"

#include "ir_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names: an open-addressing index of value ids, and a counter a base name, so that suffixes are found at once */

struct name_slot {
    uint32_t hash, id_plus_1;
    uint32_t next_suffix; /* of this name as a base */
};
struct lathe_names {
    struct name_slot *slots;
    uint32_t size, used;
};

static uint32_t hash_name(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h ^ h >> 15;
}

/* The slot of that name, or the free one where it would stand. */
static struct name_slot *find_name(const struct lathe_graph *g, const char *name, uint32_t hash) {
    struct lathe_names *names = g->names;
    uint32_t at = hash & (names->size - 1);
    while (names->slots[at].id_plus_1 &&
           (names->slots[at].hash != hash || strcmp(g->values[names->slots[at].id_plus_1 - 1].name, name)))
        at = (at + 1) & (names->size - 1);
    return &names->slots[at];
}

static bool grow_names(struct lathe_names *names) {
    if (names->used * 2 < names->size)
        return true;
    uint32_t size = names->size ? names->size * 2 : 256;
    struct name_slot *slots = size ? calloc(size, sizeof *slots) : NULL;
    if (!slots)
        return false;
    for (uint32_t i = 0; i < names->size; i++) {
        if (!names->slots[i].id_plus_1)
            continue;
        uint32_t at = names->slots[i].hash & (size - 1);
        while (slots[at].id_plus_1)
            at = (at + 1) & (size - 1);
        slots[at] = names->slots[i];
    }
    free(names->slots);
    names->slots = slots;
    names->size = size;
    return true;
}

lathe_value_id lathe_value_by_name(const struct lathe_graph *g, const char *name) {
    const struct name_slot *slot = find_name(g, name, hash_name(name));
    return slot->id_plus_1 ? slot->id_plus_1 - 1 : LATHE_NONE;
}

/* A copy of the name, with a suffix when it is taken. */
static const char *unique_name(struct lathe_graph *g, const char *name) {
    struct name_slot *base = find_name(g, name, hash_name(name));
    if (!base->id_plus_1)
        return lathe_arena_string(g->arena, name);
    for (uint32_t suffix = base->next_suffix + 1;; suffix++) {
        char *candidate = lathe_arena_format(g->arena, "%s.%u", name, suffix);
        if (!candidate)
            return NULL;
        if (!find_name(g, candidate, hash_name(candidate))->id_plus_1) {
            base->next_suffix = suffix;
            return candidate;
        }
    }
}

bool lathe_graph_copy_names(struct lathe_graph *to, const struct lathe_graph *from) {
    struct name_slot *slots = malloc(from->names->size * sizeof *slots);
    if (!slots)
        return false;
    memcpy(slots, from->names->slots, from->names->size * sizeof *slots);
    free(to->names->slots);
    *to->names = *from->names;
    to->names->slots = slots;
    return true;
}

/* ---- life */

struct lathe_graph *lathe_graph_new(void) {
    struct lathe_graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->arena = lathe_arena_new();
    g->dims = lathe_dims_new();
    g->names = calloc(1, sizeof *g->names);
    g->first = g->last = LATHE_NONE;
    if (!g->arena || !g->dims || !g->names || !grow_names(g->names))
        lathe_graph_free(&g);
    return g;
}

void lathe_graph_free(struct lathe_graph **graph) {
    if (!graph || !*graph)
        return;
    struct lathe_graph *g = *graph;
    lathe_arena_free(&g->arena);
    lathe_dims_free(&g->dims);
    if (g->names)
        free(g->names->slots);
    free(g->names);
    free(g->values);
    free(g->nodes);
    free(g->inputs);
    free(g->outputs);
    free(g->output_names);
    free(g->notes);
    free(g->baked);
    free(g);
    *graph = NULL;
}

bool lathe_graph_grow(struct lathe_graph *g, void **array, uint32_t count, uint32_t *capacity, size_t element) {
    if (count < *capacity)
        return true;
    size_t wanted = *capacity ? (size_t)*capacity * 2 : 16;
    void *larger = wanted < LATHE_NONE ? realloc(*array, wanted * element) : NULL;
    if (!larger) {
        g->out_of_memory = true;
        return false;
    }
    *array = larger;
    *capacity = (uint32_t)wanted;
    return true;
}

/* ---- values */

lathe_value_id lathe_graph_add_value(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                     const lathe_dim *dims) {
    lathe_dim shape[LATHE_MAX_RANK]; /* `dims` may stand in the table of values, which moves when it grows */
    for (int i = 0; i < LATHE_MAX_RANK; i++)
        shape[i] = dims && i < rank ? dims[i] : LATHE_DIM_NONE;
    void *values = g->values;
    if (!lathe_graph_grow(g, &values, g->value_count, &g->value_capacity, sizeof *g->values))
        return LATHE_NONE;
    g->values = values;
    if (!grow_names(g->names)) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    const char *copy = unique_name(g, name);
    if (!copy) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    lathe_value_id id = g->value_count;
    g->values[id] = (struct lathe_value){.name = copy, .dtype = dtype, .rank = rank, .producer = LATHE_NONE};
    for (int i = 0; i < LATHE_MAX_RANK; i++)
        g->values[id].dims[i] = shape[i];
    uint32_t hash = hash_name(copy);
    struct name_slot *slot = find_name(g, copy, hash);
    *slot = (struct name_slot){hash, id + 1, 0};
    g->names->used++;
    g->value_count++;
    return id;
}

void lathe_value_set_content(struct lathe_graph *g, lathe_value_id v, const lathe_dim *content, uint32_t count) {
    struct lathe_value *value = &g->values[v];
    value->content = NULL;
    value->content_count = 0;
    if (!content || count > LATHE_MAX_CONTENT)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (content[i] == LATHE_DIM_NONE)
            return;
    value->content = lathe_arena_copy(g->arena, content, count * sizeof *content);
    if (value->content)
        value->content_count = count;
    else
        g->out_of_memory = true;
}

/* Small integer and boolean constants have their elements as content. */
static void derive_constant_content(struct lathe_graph *g, lathe_value_id v) {
    int64_t count = lathe_value_count(g, v);
    enum lathe_dtype dtype = g->values[v].dtype;
    if (count < 0 || count > LATHE_MAX_CONTENT || (!lathe_dtype_is_integer(dtype) && dtype != LATHE_BOOL))
        return;
    lathe_dim content[LATHE_MAX_CONTENT];
    for (int64_t i = 0; i < count; i++)
        content[i] = lathe_dim_const(g->dims, lathe_constant_i64(g, v, i));
    lathe_value_set_content(g, v, content, (uint32_t)count);
}

lathe_value_id lathe_graph_add_constant(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                        const int64_t *dims, const void *data) {
    lathe_dim shape[LATHE_MAX_RANK];
    for (int i = 0; i < rank && i < LATHE_MAX_RANK; i++)
        shape[i] = lathe_dim_const(g->dims, dims[i]);
    lathe_value_id v = lathe_graph_add_value(g, name, dtype, rank, shape);
    if (v == LATHE_NONE)
        return v;
    /* A constant without elements still is one: its data pointer must not be NULL. */
    g->values[v].data = data ? data : lathe_arena_alloc(g->arena, 1);
    if (!g->values[v].data) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    derive_constant_content(g, v);
    return v;
}

lathe_value_id lathe_graph_add_constant_copy(struct lathe_graph *g, const char *name, enum lathe_dtype dtype, int rank,
                                             const int64_t *dims, const void *data) {
    size_t bytes = lathe_dtype_bytes(dtype);
    for (int i = 0; i < rank; i++)
        if (dims[i] < 0 || !lathe_mul_size(bytes, (size_t)dims[i], &bytes)) {
            g->out_of_memory = true;
            return LATHE_NONE;
        }
    void *copy = lathe_arena_copy(g->arena, data, bytes);
    if (!copy) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    return lathe_graph_add_constant(g, name, dtype, rank, dims, copy);
}

lathe_value_id lathe_graph_add_scalar_f32(struct lathe_graph *g, const char *name, float value) {
    return lathe_graph_add_constant_copy(g, name, LATHE_F32, 0, NULL, &value);
}

void lathe_graph_add_input(struct lathe_graph *g, lathe_value_id v) {
    lathe_value_id *inputs = realloc(g->inputs, (g->input_count + 1) * sizeof *inputs);
    if (!inputs || v == LATHE_NONE) {
        g->inputs = inputs ? inputs : g->inputs;
        g->out_of_memory = true;
        return;
    }
    g->inputs = inputs;
    g->inputs[g->input_count++] = v;
    g->values[v].is_input = true;
}

void lathe_graph_add_output(struct lathe_graph *g, lathe_value_id v, const char *name) {
    lathe_value_id *outputs = realloc(g->outputs, (g->output_count + 1) * sizeof *outputs);
    if (outputs)
        g->outputs = outputs;
    const char **names = realloc(g->output_names, (g->output_count + 1) * sizeof *names);
    if (names)
        g->output_names = names;
    const char *copy = lathe_arena_string(g->arena, name);
    if (!outputs || !names || !copy || v == LATHE_NONE) {
        g->out_of_memory = true;
        return;
    }
    g->output_names[g->output_count] = copy;
    g->outputs[g->output_count++] = v;
    g->values[v].is_output = true;
}

/* ---- use lists */

static void add_use(struct lathe_graph *g, lathe_value_id v, lathe_node_id n) {
    if (v == LATHE_NONE)
        return;
    struct lathe_value *value = &g->values[v];
    if (value->use_count == value->use_capacity) {
        uint32_t capacity = value->use_capacity ? value->use_capacity * 2 : 2;
        lathe_node_id *uses = lathe_arena_alloc_array(g->arena, capacity, sizeof *uses);
        if (!uses) {
            g->out_of_memory = true;
            return;
        }
        if (value->use_count)
            memcpy(uses, value->uses, value->use_count * sizeof *uses);
        value->uses = uses;
        value->use_capacity = capacity;
    }
    value->uses[value->use_count++] = n;
}

static void remove_use(struct lathe_graph *g, lathe_value_id v, lathe_node_id n) {
    if (v == LATHE_NONE)
        return;
    struct lathe_value *value = &g->values[v];
    for (uint32_t i = value->use_count; i-- > 0;)
        if (value->uses[i] == n) {
            value->uses[i] = value->uses[--value->use_count];
            return;
        }
}

/* ---- nodes */

static void link_before(struct lathe_graph *g, lathe_node_id n, lathe_node_id before) {
    struct lathe_node *node = &g->nodes[n];
    node->next = before;
    node->prev = before == LATHE_NONE ? g->last : g->nodes[before].prev;
    *(node->prev == LATHE_NONE ? &g->first : &g->nodes[node->prev].next) = n;
    *(before == LATHE_NONE ? &g->last : &g->nodes[before].prev) = n;
}

static void unlink_node(struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    *(node->prev == LATHE_NONE ? &g->first : &g->nodes[node->prev].next) = node->next;
    *(node->next == LATHE_NONE ? &g->last : &g->nodes[node->next].prev) = node->prev;
}

lathe_node_id lathe_graph_add_node(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, const char *name,
                                   const char *origin, const lathe_value_id *in, uint32_t n_in,
                                   const lathe_value_id *out, uint32_t n_out) {
    void *nodes = g->nodes;
    if (!lathe_graph_grow(g, &nodes, g->node_count, &g->node_capacity, sizeof *g->nodes))
        return LATHE_NONE;
    g->nodes = nodes;
    struct lathe_node node = {.op = op, .n_in = n_in, .n_out = n_out};
    node.name = lathe_arena_string(g->arena, name ? name : "");
    node.origin = lathe_arena_string(g->arena, origin ? origin : "");
    node.in = lathe_arena_copy(g->arena, in, n_in * sizeof *in);
    node.out = lathe_arena_copy(g->arena, out, n_out * sizeof *out);
    if (!node.name || !node.origin || !node.in || !node.out) {
        g->out_of_memory = true;
        return LATHE_NONE;
    }
    lathe_node_id n = g->node_count++;
    g->nodes[n] = node;
    link_before(g, n, before);
    for (uint32_t i = 0; i < n_in; i++)
        add_use(g, node.in[i], n);
    for (uint32_t i = 0; i < n_out; i++)
        if (node.out[i] != LATHE_NONE) {
            g->values[node.out[i]].producer = n;
            g->values[node.out[i]].producer_output = i;
        }
    return n;
}

lathe_value_id lathe_graph_emit(struct lathe_graph *g, lathe_node_id before, enum lathe_op op, const char *name,
                                const lathe_value_id *in, uint32_t n_in, enum lathe_dtype dtype, int rank,
                                const lathe_dim *dims) {
    lathe_value_id v = lathe_graph_add_value(g, name, dtype, rank, dims);
    if (v == LATHE_NONE || lathe_graph_add_node(g, before, op, name, "", in, n_in, &v, 1) == LATHE_NONE)
        return LATHE_NONE;
    return v;
}

void lathe_node_set_input(struct lathe_graph *g, lathe_node_id n, uint32_t index, lathe_value_id v) {
    struct lathe_node *node = &g->nodes[n];
    if (node->in[index] == v)
        return;
    remove_use(g, node->in[index], n);
    node->in[index] = v;
    add_use(g, v, n);
}

void lathe_node_set_inputs(struct lathe_graph *g, lathe_node_id n, const lathe_value_id *in, uint32_t n_in) {
    lathe_value_id *copy = lathe_arena_copy(g->arena, in, n_in * sizeof *in);
    if (!copy) {
        g->out_of_memory = true;
        return;
    }
    struct lathe_node *node = &g->nodes[n];
    for (uint32_t i = 0; i < node->n_in; i++)
        remove_use(g, node->in[i], n);
    node->in = copy;
    node->n_in = n_in;
    for (uint32_t i = 0; i < n_in; i++)
        add_use(g, copy[i], n);
}

void lathe_node_set_op(struct lathe_graph *g, lathe_node_id n, enum lathe_op op) {
    g->nodes[n].op = op;
}

void lathe_graph_replace_uses(struct lathe_graph *g, lathe_value_id from, lathe_value_id to) {
    if (from == to)
        return;
    for (uint32_t i = 0; i < g->values[from].use_count; i++) {
        lathe_node_id user = g->values[from].uses[i];
        /* One entry of the use list an operand position: this entry moves the first position that still reads `from`.
         */
        for (uint32_t k = 0; k < g->nodes[user].n_in; k++)
            if (g->nodes[user].in[k] == from) {
                g->nodes[user].in[k] = to;
                add_use(g, to, user);
                break;
            }
    }
    g->values[from].use_count = 0;
    if (!g->values[from].is_output)
        return;
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] == from)
            g->outputs[i] = to;
    g->values[from].is_output = false;
    g->values[to].is_output = true;
}

void lathe_graph_remove_node(struct lathe_graph *g, lathe_node_id n) {
    struct lathe_node *node = &g->nodes[n];
    if (node->op == LATHE_OP_NONE)
        return;
    for (uint32_t i = 0; i < node->n_in; i++)
        remove_use(g, node->in[i], n);
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && g->values[node->out[i]].producer == n)
            g->values[node->out[i]].producer = LATHE_NONE;
    unlink_node(g, n);
    node->op = LATHE_OP_NONE;
    node->n_in = node->n_out = node->n_attrs = 0;
    node->prev = node->next = LATHE_NONE;
}

static bool is_dead(const struct lathe_graph *g, lathe_node_id n) {
    const struct lathe_node *node = &g->nodes[n];
    for (uint32_t i = 0; i < node->n_out; i++)
        if (node->out[i] != LATHE_NONE && lathe_value_use_total(g, node->out[i]))
            return false;
    return node->op != LATHE_OP_NONE;
}

void lathe_graph_remove_dead_from(struct lathe_graph *g, lathe_node_id n) {
    /* A work list threaded through an array instead of recursion: chains can be as long as the graph. */
    lathe_node_id *work = NULL;
    uint32_t count = 0, capacity = 0;
    void *array = NULL;
    if (!is_dead(g, n) || !lathe_graph_grow(g, &array, count, &capacity, sizeof *work))
        return;
    work = array;
    work[count++] = n;
    while (count) {
        lathe_node_id dead = work[--count];
        if (!is_dead(g, dead))
            continue;
        struct lathe_node node = g->nodes[dead]; /* its operand array stays in the arena */
        lathe_graph_remove_node(g, dead);
        for (uint32_t i = 0; i < node.n_in; i++) {
            lathe_node_id producer = node.in[i] == LATHE_NONE ? LATHE_NONE : g->values[node.in[i]].producer;
            if (producer == LATHE_NONE || !is_dead(g, producer))
                continue;
            array = work;
            if (!lathe_graph_grow(g, &array, count, &capacity, sizeof *work))
                break;
            work = array;
            work[count++] = producer;
        }
    }
    free(work);
}

void lathe_graph_move_node(struct lathe_graph *g, lathe_node_id n, lathe_node_id before) {
    if (n == before)
        return;
    unlink_node(g, n);
    link_before(g, n, before);
}

void lathe_value_make_constant(struct lathe_graph *g, lathe_value_id v, const void *data_in_arena) {
    struct lathe_value *value = &g->values[v];
    if (value->producer != LATHE_NONE)
        g->nodes[value->producer].out[value->producer_output] = LATHE_NONE;
    value->producer = LATHE_NONE;
    value->data = data_in_arena;
    value->content = NULL;
    value->content_count = 0;
    derive_constant_content(g, v);
}

/* ---- attributes */

static struct lathe_attr *attr_slot(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key) {
    struct lathe_node *node = &g->nodes[n];
    uint32_t at = 0;
    while (at < node->n_attrs && node->attrs[at].key < key)
        at++;
    if (at < node->n_attrs && node->attrs[at].key == key) {
        node->attrs[at] = (struct lathe_attr){.key = key};
        return &node->attrs[at];
    }
    struct lathe_attr *attrs = lathe_arena_alloc_array(g->arena, (size_t)node->n_attrs + 1, sizeof *attrs);
    if (!attrs) {
        g->out_of_memory = true;
        return NULL;
    }
    if (node->n_attrs) {
        memcpy(attrs, node->attrs, at * sizeof *attrs);
        memcpy(attrs + at + 1, node->attrs + at, (node->n_attrs - at) * sizeof *attrs);
    }
    attrs[at] = (struct lathe_attr){.key = key};
    node->attrs = attrs;
    node->n_attrs++;
    return &attrs[at];
}

void lathe_node_set_int(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, int64_t value) {
    struct lathe_attr *attr = attr_slot(g, n, key);
    if (attr) {
        attr->type = LATHE_ATTR_INT;
        attr->i = value;
    }
}

void lathe_node_set_float(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, double value) {
    struct lathe_attr *attr = attr_slot(g, n, key);
    if (attr) {
        attr->type = LATHE_ATTR_FLOAT;
        attr->f = value;
    }
}

static void set_list(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, enum lathe_attr_type type,
                     const int64_t *copy, uint32_t count) {
    struct lathe_attr *attr = copy ? attr_slot(g, n, key) : NULL;
    if (!attr) {
        g->out_of_memory = true;
        return;
    }
    attr->type = type;
    attr->ints = copy;
    attr->count = count;
}

void lathe_node_set_ints(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, const int64_t *values,
                         uint32_t count) {
    set_list(g, n, key, LATHE_ATTR_INTS, lathe_arena_copy(g->arena, values, count * sizeof *values), count);
}

void lathe_node_set_dims(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key, const lathe_dim *values,
                         uint32_t count) {
    int64_t *copy = lathe_arena_alloc_array(g->arena, count, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++)
        copy[i] = values[i];
    set_list(g, n, key, LATHE_ATTR_DIMS, copy, count);
}

void lathe_node_drop_attr(struct lathe_graph *g, lathe_node_id n, enum lathe_attr_key key) {
    struct lathe_node *node = &g->nodes[n];
    for (uint32_t i = 0; i < node->n_attrs; i++)
        if (node->attrs[i].key == key) {
            node->n_attrs--;
            memmove(&node->attrs[i], &node->attrs[i + 1], (node->n_attrs - i) * sizeof *node->attrs);
            return;
        }
}

/* ---- notes and dims */

void lathe_graph_add_note(struct lathe_graph *g, const char *code, const char *node, const char *text) {
    void *notes = g->notes;
    if (!lathe_graph_grow(g, &notes, g->note_count, &g->note_capacity, sizeof *g->notes))
        return;
    g->notes = notes;
    g->notes[g->note_count++] =
        (struct lathe_graph_note){code, lathe_arena_string(g->arena, node), lathe_arena_string(g->arena, text)};
}

static const lathe_dim *resolve_list(struct lathe_graph *g, const lathe_dim *list, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (lathe_dim_resolve(g->dims, list[i]) == list[i])
            continue;
        lathe_dim *copy = lathe_arena_copy(g->arena, list, count * sizeof *copy);
        for (; copy && i < count; i++)
            copy[i] = lathe_dim_resolve(g->dims, copy[i]);
        if (!copy)
            g->out_of_memory = true;
        return copy;
    }
    return list;
}

void lathe_graph_resolve_dims(struct lathe_graph *g) {
    for (lathe_value_id v = 0; v < g->value_count; v++) {
        struct lathe_value *value = &g->values[v];
        for (int i = 0; i < value->rank; i++)
            value->dims[i] = lathe_dim_resolve(g->dims, value->dims[i]);
        if (value->content)
            value->content = resolve_list(g, value->content, value->content_count);
        if (!value->content)
            value->content_count = 0;
    }
    LATHE_FOR_NODES(g, n) {
        for (uint32_t i = 0; i < g->nodes[n].n_attrs; i++) {
            struct lathe_attr *attr = &g->nodes[n].attrs[i];
            if (attr->type != LATHE_ATTR_DIMS)
                continue;
            int64_t *copy = lathe_arena_copy(g->arena, attr->ints, attr->count * sizeof *copy);
            for (uint32_t k = 0; copy && k < attr->count; k++)
                copy[k] = lathe_dim_resolve(g->dims, (lathe_dim)copy[k]);
            if (copy)
                attr->ints = copy;
            else
                g->out_of_memory = true;
        }
    }
}

void lathe_graph_substitute(struct lathe_graph *g, uint32_t symbol_index, lathe_dim with) {
    lathe_dims_substitute(g->dims, symbol_index, with);
    lathe_graph_resolve_dims(g);
}
