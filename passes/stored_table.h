/* Tables of embeddings that the source has in 8 bits: which of them embedding_q8 can read, and their numbers as it
 * wants them. The source's numbers are kept, none is rounded again. */
#ifndef LATHE_STORED_TABLE_H
#define LATHE_STORED_TABLE_H

#include "pass.h"

/* v [V,H] is the dequantization of a constant of i8 or u8 with one scale, or one a row; zero points are all one number,
 * and with a scale a row 0 (128 for u8). */
bool lathe_table_is_stored(const struct lathe_graph *g, lathe_value_id v);

struct lathe_stored_table {
    lathe_value_id rows, scale; /* i8 [V,H], f32 [V] */
    float shift;                /* to be added to each element: what is left of a zero point */
};
/* False: it is none, or memory ran out (graph->out_of_memory). */
bool lathe_table_make_bytes(struct lathe_graph *g, lathe_value_id v, struct lathe_stored_table *out);
#endif
