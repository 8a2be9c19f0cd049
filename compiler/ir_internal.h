/* Helpers shared by the files of the graph core only. */
#ifndef LATHE_IR_INTERNAL_H
#define LATHE_IR_INTERNAL_H

#include "ir.h"

/* Doubles a malloc'ed array of `count` elements when it is full. False and out_of_memory when that fails. */
bool lathe_graph_grow(struct lathe_graph *g, void **array, uint32_t count, uint32_t *capacity, size_t element);
/* The index of names, copied; false when memory runs out. */
bool lathe_graph_copy_names(struct lathe_graph *to, const struct lathe_graph *from);
#endif
