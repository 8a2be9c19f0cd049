/* What a calibration saw at the inputs of the linear layers: filled by compiler/calibrate.c, read by the passes that
 * choose number formats. Padding is no part of it. */
#ifndef LATHE_CALIBRATION_H
#define LATHE_CALIBRATION_H

#include "ir.h"

struct lathe_pass_options;

struct lathe_calibration_input {
    lathe_value_id value;
    int64_t k;       /* columns */
    int64_t seen;    /* rows that the ranges are of */
    float *absmax;   /* [k] largest magnitude in a column */
    float low, high; /* smallest and largest element */
    int64_t rows;    /* kept: every stride-th row seen */
    float *sample;   /* [rows][k] */
    int64_t stride;
    bool finite; /* false: an infinity or NaN was seen; the rest says nothing then */
};

struct lathe_calibration {
    struct lathe_calibration_input *at;
    uint32_t count;
    char source[160]; /* "512 tokens of made-up ids", "24 data sets in calib" */
};

/* The 8-bit form of a weight, kept over several runs of the pass on the same graph. */
struct lathe_quantized_weight;
/* A layer that the pass has looked at. */
struct lathe_quantized_layer {
    lathe_node_id node;
    double error;         /* relative, of its output */
    bool candidate;       /* it can be in 8 bits, as far as it alone is concerned */
    const char *excluded; /* set by the caller before the next run: why it stays in f32; NULL: it need not */
};
/* Of one graph; zeroed by the caller, filled by the pass from the graph's arena. */
struct lathe_quantize_log {
    struct lathe_quantized_weight *weights;
    uint32_t weight_count;
    struct lathe_quantized_layer *layers; /* in the order of the graph */
    uint32_t layer_count;
};

/* How --precision int8 and auto work. */
struct lathe_quantize_options {
    const struct lathe_calibration *calibration;
    double budget;                  /* largest relative error of a layer's output; 0: no limit */
    int jobs;                       /* threads, 0: as many as cores; no result depends on it */
    const char *attention_excluded; /* why all attention stays in f32; NULL: it need not */
    struct lathe_quantize_log *log;
};

/* quantize_linear.c: w, the weight of a linear_q8, has scales that must stay: the source's, or those of a table too. */
bool lathe_weight_is_reused(const struct lathe_pass_options *options, lathe_value_id w);
/* The table is the weight of a linear_q8 as well: its rows in i8 [V,H] and their scales. */
bool lathe_table_is_weight(const struct lathe_pass_options *options, lathe_value_id table, lathe_value_id *rows,
                           lathe_value_id *scale);

/* NULL when nothing is known of v. */
static inline const struct lathe_calibration_input *lathe_calibration_of(const struct lathe_calibration *c,
                                                                         lathe_value_id v) {
    for (uint32_t i = 0; c && i < c->count; i++)
        if (c->at[i].value == v)
            return &c->at[i];
    return NULL;
}
#endif
