/* The map of a packed batch: which token rows of [B,S] are kept, and where.
 *
 * Sequence b keeps `rows` rows from row `start` on: first its keys (tokens with mask != 0) in order of position, then
 * the rows that some output reads although they are masked (positions listed in the attribute `values` of row_map, and
 * all rows of a sequence when its masked_row rule needs them), in order of position.
 * As a tensor: i32 [4 B + 2 B S]: B entries {start, rows, keys, S}, then {b, position} for each kept row. */
#ifndef LATHE_ROW_MAP_H
#define LATHE_ROW_MAP_H

#include <stdint.h>

struct lathe_row_sequence {
    int32_t start, rows, keys, positions; /* positions: S, the same in every entry */
};
struct lathe_row_place {
    int32_t batch, position;
};
static inline const struct lathe_row_sequence *lathe_row_map_sequences(const void *map) {
    return map;
}
static inline const struct lathe_row_place *lathe_row_map_places(const void *map, int64_t batch) {
    return (const struct lathe_row_place *)((const int32_t *)map + 4 * batch);
}
#endif
