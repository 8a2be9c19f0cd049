#include "stored_table.h"
#include "weight_reader.h"

#include <string.h>

/* The number that every zero point is, less what makes u8 signed. */
static bool common_zero(const struct lathe_weight_part *p, int64_t cells, int64_t *zero) {
    int64_t first = lathe_weight_zero_at(&p->grid, 0);
    for (int64_t i = 1; i < cells; i++)
        if (lathe_weight_zero_at(&p->grid, i) != first)
            return false;
    *zero = first - (p->dtype == LATHE_U8 ? 128 : 0);
    return true;
}

static bool find(const struct lathe_graph *g, lathe_value_id v, int64_t *rows, struct lathe_weight_part *p,
                 int64_t *zero) {
    if (v == LATHE_NONE || g->values[v].rank != 2 || !lathe_weight_stored(g, v, rows, p) || !p->scaled ||
        (p->dtype != LATHE_I8 && p->dtype != LATHE_U8) || p->grid.step[1] || p->grid.step[0] > 1 ||
        p->grid.block[0] != 1)
        return false;
    bool by_row = p->grid.step[0] == 1;
    return common_zero(p, by_row ? *rows : 1, zero) && (!by_row || *zero == 0);
}

bool lathe_table_is_stored(const struct lathe_graph *g, lathe_value_id v) {
    struct lathe_weight_part part;
    int64_t rows, zero;
    return find(g, v, &rows, &part, &zero);
}

bool lathe_table_make_bytes(struct lathe_graph *g, lathe_value_id v, struct lathe_stored_table *out) {
    struct lathe_weight_part p;
    int64_t rows, zero;
    if (!find(g, v, &rows, &p, &zero))
        return false;
    lathe_value_id q = g->nodes[g->values[v].producer].in[0];
    const char *name = g->values[q].name;
    float *scale = lathe_arena_alloc_array(g->arena, (size_t)rows, sizeof *scale);
    int8_t *bytes = NULL;
    if (p.dtype == LATHE_U8) {
        const uint8_t *from = p.data;
        size_t count = (size_t)(rows * p.columns);
        bytes = lathe_arena_alloc(g->arena, count);
        for (size_t i = 0; bytes && i < count; i++)
            bytes[i] = (int8_t)(from[i] - 128);
    }
    if (!scale || (p.dtype == LATHE_U8 && !bytes)) {
        g->out_of_memory = true;
        return false;
    }
    for (int64_t i = 0; i < rows; i++)
        scale[i] = lathe_weight_scale_at(&p.grid, lathe_weight_cell(&p.grid, i, 0));
    const int64_t dims[2] = {rows, p.columns};
    out->rows = bytes ? lathe_graph_add_constant(g, name, LATHE_I8, 2, dims, bytes) : q;
    out->scale = lathe_graph_add_constant(g, name, LATHE_F32, 1, &rows, scale);
    out->shift = -(float)zero * scale[0];
    return out->rows != LATHE_NONE && out->scale != LATHE_NONE;
}
