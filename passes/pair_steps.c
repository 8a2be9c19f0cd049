#include "pair_steps.h"

#include "kernel_q8.h"

#include <stdlib.h>

struct column {
    float product;
    uint8_t index;
};

static int by_product(const void *a, const void *b) {
    const struct column *x = a, *y = b;
    if (x->product != y->product)
        return x->product > y->product ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

void lathe_pair_steps(const float *reach, const float *row_max, int64_t k, uint8_t *order, bool *whole) {
    for (int64_t first = 0; first < k; first += 64) {
        struct column columns[64];
        size_t count = k - first < 64 ? (size_t)(k - first) : 64, wholes = 0;
        for (size_t i = 0; i < count; i++) {
            columns[i] = (struct column){reach[first + (int64_t)i] * row_max[first + (int64_t)i], (uint8_t)i};
            wholes += !lathe_fip_is_pair((size_t)first + i, (size_t)k);
        }
        qsort(columns, count, sizeof *columns, by_product);
        for (size_t i = 0; i < count; i++)
            whole[first + columns[i].index] = i < wholes;
        /* both kinds in the order of the source */
        size_t next[2] = {0, 0};
        for (size_t i = 0; i < count; i++) {
            bool is_whole = !lathe_fip_is_pair((size_t)first + i, (size_t)k);
            while (whole[first + (int64_t)next[is_whole]] != is_whole)
                next[is_whole]++;
            order[first + (int64_t)i] = (uint8_t)next[is_whole]++;
        }
    }
}
