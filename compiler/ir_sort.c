/* Topological order. */
#include "ir.h"

#include <stdlib.h>

enum { UNSEEN = 0, OPEN = 1, DONE = 2 };

struct frame {
    lathe_node_id node;
    uint32_t next_input;
};

/* Names the nodes of the cycle that ends at `closing`: the frames from there to the top. */
static enum lathe_status report_cycle(struct lathe_graph *g, const struct frame *stack, uint32_t depth,
                                      lathe_node_id closing, struct lathe_diag *diag) {
    uint32_t from = depth;
    while (from > 0 && stack[from - 1].node != closing)
        from--;
    from = from ? from - 1 : 0;
    const char *text = "";
    for (uint32_t i = from, shown = 0; i < depth; i++, shown++) {
        if (shown == 16) {
            text = lathe_arena_format(g->arena, "%s, ... (%u nodes)", text, depth - from);
            break;
        }
        text =
            lathe_arena_format(g->arena, "%s%s'%s'", text ? text : "", shown ? ", " : "", g->nodes[stack[i].node].name);
    }
    return lathe_fail(diag, LATHE_MSG_GRAPH_CYCLE, "the graph has a cycle through nodes %s; a model must be acyclic",
                      text ? text : "?");
}

enum lathe_status lathe_graph_sort(struct lathe_graph *g, struct lathe_diag *diag) {
    /* Depth first from each node in the present order: a node is placed when all that it reads is placed, so nodes that
     * are in order already keep their places. */
    unsigned char *state = calloc((size_t)g->node_count + 1, 1);
    struct frame *stack = malloc(((size_t)g->node_count + 1) * sizeof *stack);
    lathe_node_id *order = malloc(((size_t)g->node_count + 1) * sizeof *order);
    enum lathe_status status = LATHE_OK;
    uint32_t placed = 0;
    if (!state || !stack || !order) {
        status = lathe_fail(diag, LATHE_MSG_NO_MEMORY, "sorting a graph of %u nodes", g->node_count);
        goto done;
    }
    for (lathe_node_id root = g->first; root != LATHE_NONE; root = g->nodes[root].next) {
        if (state[root] != UNSEEN)
            continue;
        uint32_t depth = 0;
        stack[depth++] = (struct frame){root, 0};
        state[root] = OPEN;
        while (depth) {
            struct frame *top = &stack[depth - 1];
            const struct lathe_node *node = &g->nodes[top->node];
            if (top->next_input == node->n_in) {
                state[top->node] = DONE;
                order[placed++] = top->node;
                depth--;
                continue;
            }
            lathe_value_id in = node->in[top->next_input++];
            lathe_node_id producer = in == LATHE_NONE ? LATHE_NONE : g->values[in].producer;
            if (producer == LATHE_NONE || state[producer] == DONE)
                continue;
            if (state[producer] == OPEN) {
                status = report_cycle(g, stack, depth, producer, diag);
                goto done;
            }
            state[producer] = OPEN;
            stack[depth++] = (struct frame){producer, 0};
        }
    }
    for (uint32_t i = 0; i < placed; i++) {
        g->nodes[order[i]].prev = i ? order[i - 1] : LATHE_NONE;
        g->nodes[order[i]].next = i + 1 < placed ? order[i + 1] : LATHE_NONE;
    }
    g->first = placed ? order[0] : LATHE_NONE;
    g->last = placed ? order[placed - 1] : LATHE_NONE;
done:
    free(order);
    free(stack);
    free(state);
    return status;
}
