/* Resize. Each of its interpolations works axis by axis, and along an axis each result is a weighted sum of elements:
 * for sizes that are known it is a product with a constant matrix, or a gather for the nearest element. Exporters of
 * vision models write it around position tables, often to the size that is there already. */
#include "onnx_import.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum resize_mode { NEAREST, LINEAR, CUBIC };

struct resize {
    enum resize_mode mode;
    const char *transform, *nearest, *policy;
    double cubic_a;
    bool antialias, exclude_outside, first_form;
    bool by_scales;
};

struct resize_axis {
    int axis;
    int64_t in, out;
    double scale;
};

/* A larger matrix than any position table needs. */
#define MAX_WEIGHTS (1 << 22)

static double source_place(const struct resize *r, const struct resize_axis *a, int64_t i) {
    double half = ((double)i + 0.5) / a->scale - 0.5;
    if (!strcmp(r->transform, "asymmetric"))
        return (double)i / a->scale;
    if (!strcmp(r->transform, "align_corners"))
        return a->out == 1 ? 0 : (double)i * (double)(a->in - 1) / (double)(a->out - 1);
    if (!strcmp(r->transform, "pytorch_half_pixel"))
        return a->out > 1 ? half : 0;
    if (!strcmp(r->transform, "tf_half_pixel_for_nn"))
        return ((double)i + 0.5) / a->scale;
    if (!strcmp(r->transform, "half_pixel_symmetric")) {
        double adjustment = (double)a->out / (a->scale * (double)a->in);
        return (double)a->in / 2 * (1 - adjustment) + half;
    }
    return half;
}

static int64_t inside(int64_t at, int64_t size) {
    return at < 0 ? 0 : at >= size ? size - 1 : at;
}

static int64_t nearest_to(const struct resize *r, const struct resize_axis *a, double place) {
    double at;
    if (r->first_form) /* opset 10 does not say; as ONNX Runtime reads it */
        at = a->scale < 1 ? ceil(place) : floor(place);
    else if (!strcmp(r->nearest, "floor"))
        at = floor(place);
    else if (!strcmp(r->nearest, "ceil"))
        at = ceil(place);
    else if (!strcmp(r->nearest, "round_prefer_ceil"))
        at = floor(place + 0.5);
    else
        at = ceil(place - 0.5);
    return inside((int64_t)at, a->in);
}

/* The weight of an element at this distance, in steps of the source (of the result where that is coarser). */
static double weight_at(const struct resize *r, double distance) {
    double x = fabs(distance), a = r->cubic_a;
    if (r->mode == LINEAR)
        return x < 1 ? 1 - x : 0;
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* Column i of weights [in, out]. */
static void fill_column(const struct resize *r, const struct resize_axis *a, int64_t i, double *column,
                        float *weights) {
    double place = source_place(r, a, i), shrink = r->antialias && a->scale < 1 ? a->scale : 1, sum = 0;
    int64_t reach = (int64_t)ceil((r->mode == LINEAR ? 1 : 2) / shrink) + 1, middle = (int64_t)floor(place);
    memset(column, 0, (size_t)a->in * sizeof *column);
    for (int64_t k = middle - reach; k <= middle + reach; k++) {
        double w = weight_at(r, ((double)k - place) * shrink);
        if (r->exclude_outside && k != inside(k, a->in))
            continue;
        column[inside(k, a->in)] += w;
        sum += w;
    }
    bool divide = sum != 0 && (r->exclude_outside || shrink < 1);
    for (int64_t k = 0; k < a->in; k++)
        weights[k * a->out + i] = (float)(divide ? column[k] / sum : column[k]);
}

static lathe_value_id constant(struct lathe_import *c, enum lathe_dtype dtype, int rank, const int64_t *dims,
                               const void *data) {
    if (c->status != LATHE_OK)
        return LATHE_NONE;
    const char *name = lathe_arena_format(c->scratch, "%s/weights", c->node_name);
    lathe_value_id v = name ? lathe_graph_add_constant_copy(c->g, name, dtype, rank, dims, data) : LATHE_NONE;
    if (v == LATHE_NONE)
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory for the graph");
    return v;
}

static lathe_value_id take_nearest(struct lathe_import *c, const struct resize *r, const struct resize_axis *a,
                                   lathe_value_id x) {
    int64_t *index = lathe_arena_alloc_array(c->scratch, (size_t)a->out, sizeof *index);
    if (!index) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return x;
    }
    for (int64_t i = 0; i < a->out; i++)
        index[i] = nearest_to(r, a, source_place(r, a, i));
    const lathe_value_id in[2] = {x, constant(c, LATHE_I64, 1, &a->out, index)};
    lathe_node_id n = lathe_imp_node(c, LATHE_OP_GATHER, in, 2);
    lathe_imp_int(c, n, LATHE_ATTR_AXIS, a->axis);
    return lathe_imp_end(c, n);
}

static lathe_value_id interpolate(struct lathe_import *c, const struct resize *r, const struct resize_axis *a,
                                  lathe_value_id x) {
    size_t count = (size_t)a->in * (size_t)a->out;
    float *weights = lathe_arena_alloc_array(c->scratch, count, sizeof *weights);
    double *column = lathe_arena_alloc_array(c->scratch, (size_t)a->in, sizeof *column);
    if (!weights || !column) {
        lathe_imp_fail(c, LATHE_MSG_NO_MEMORY, "no memory to import the model");
        return x;
    }
    for (int64_t i = 0; i < a->out; i++)
        fill_column(r, a, i, column, weights);
    int rank = lathe_imp_rank(c, x);
    int64_t perm[LATHE_MAX_RANK];
    for (int i = 0; i < rank; i++)
        perm[i] = i;
    perm[a->axis] = rank - 1;
    perm[rank - 1] = a->axis;
    const int64_t dims[2] = {a->in, a->out};
    lathe_value_id w = constant(c, LATHE_F32, 2, dims, weights);
    if (a->axis == rank - 1)
        return lathe_imp_binary(c, LATHE_OP_MATMUL, x, w);
    x = lathe_imp_transpose(c, x, perm, (uint32_t)rank);
    x = lathe_imp_binary(c, LATHE_OP_MATMUL, x, w);
    return lathe_imp_transpose(c, x, perm, (uint32_t)rank);
}

/* Scale k of `scales`; a scale that is computed counts when it is whole. */
static bool known_scale(struct lathe_import *c, lathe_value_id scales, uint32_t k, double *scale) {
    const struct lathe_value *v = lathe_value_at(c->g, scales);
    int64_t whole;
    if (lathe_value_is_constant(c->g, scales) && lathe_dtype_is_float(v->dtype)) {
        *scale = lathe_constant_f64(c->g, scales, k);
        return *scale > 0 && isfinite(*scale);
    }
    if (!v->content || k >= v->content_count || !lathe_dim_is_const(c->g->dims, v->content[k], &whole) || whole < 1)
        return false;
    *scale = (double)whole;
    return true;
}

/* With a policy the sizes are bounds, and one scale serves all axes. */
static void keep_ratio(const struct resize *r, struct resize_axis *list, uint32_t count) {
    bool smallest = !strcmp(r->policy, "not_larger");
    if (!count || (!smallest && strcmp(r->policy, "not_smaller") != 0))
        return;
    double scale = list[0].scale;
    for (uint32_t i = 1; i < count; i++)
        scale = smallest ? fmin(scale, list[i].scale) : fmax(scale, list[i].scale);
    for (uint32_t i = 0; i < count; i++) {
        list[i].scale = scale;
        list[i].out = (int64_t)floor(scale * (double)list[i].in + 0.5);
    }
}

static void read_attributes(struct lathe_import *c, struct resize *r) {
    const char *mode = lathe_imp_attr_string(c, "mode", "nearest");
    r->first_form = c->version < 11;
    r->transform =
        lathe_imp_attr_string(c, "coordinate_transformation_mode", r->first_form ? "asymmetric" : "half_pixel");
    r->nearest = lathe_imp_attr_string(c, "nearest_mode", "round_prefer_floor");
    r->policy = lathe_imp_attr_string(c, "keep_aspect_ratio_policy", "stretch");
    r->cubic_a = lathe_imp_attr_float(c, "cubic_coeff_a", -0.75);
    r->antialias = lathe_imp_attr_int(c, "antialias", 0) != 0;
    r->exclude_outside = lathe_imp_attr_int(c, "exclude_outside", 0) != 0;
    lathe_imp_ignore_attr(c, "extrapolation_value");
    r->mode = !strcmp(mode, "linear") ? LINEAR : !strcmp(mode, "cubic") ? CUBIC : NEAREST;
    if (c->status == LATHE_OK && r->mode == NEAREST && strcmp(mode, "nearest") != 0)
        lathe_imp_node_fail(c, LATHE_MSG_ATTRIBUTE, "mode '%s', it must be nearest, linear or cubic", mode);
    if (c->status == LATHE_OK && !strcmp(r->transform, "tf_crop_and_resize"))
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED,
                            "coordinate_transformation_mode tf_crop_and_resize is not supported");
}

/* The axis when it changes: sizes that are equal expressions keep it. */
static bool read_axis(struct lathe_import *c, const struct resize *r, lathe_value_id target, uint32_t k,
                      const lathe_dim *sizes, struct resize_axis *a) {
    lathe_dim own = lathe_imp_dim(c, c->in[0], a->axis);
    double scale = 1;
    if (r->by_scales && !known_scale(c, target, k, &scale)) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "the scale of axis %d depends on data", a->axis);
        return false;
    }
    if (r->by_scales ? scale == 1 : lathe_dim_resolve(c->g->dims, sizes[k]) == own)
        return false;
    a->in = lathe_imp_dim_const(c, c->in[0], a->axis, "the size of an axis that it changes");
    a->out = a->in;
    if (r->by_scales) {
        double size = floor((double)((float)scale * (float)a->in));
        a->out = size < MAX_WEIGHTS ? (int64_t)size : MAX_WEIGHTS;
    } else if (c->status == LATHE_OK && !lathe_dim_is_const(c->g->dims, sizes[k], &a->out)) {
        char text[256];
        lathe_dim_print(c->g->dims, sizes[k], text, sizeof text);
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "the new size of axis %d is %s; it must be a constant",
                            a->axis, text);
    }
    a->scale = r->by_scales ? scale : (double)a->out / (double)a->in;
    return c->status == LATHE_OK;
}

LATHE_IMPORTER(resize) {
    struct resize r = {0};
    struct resize_axis list[LATHE_MAX_RANK];
    uint32_t n_axes, n_sizes = 0, count = 0;
    const lathe_dim *size_list = NULL;
    int rank = lathe_imp_rank(c, c->in[0]);
    lathe_value_id x = c->in[0], sizes = lathe_imp_in(c, 3), scales = lathe_imp_in(c, c->version < 11 ? 1 : 2);
    const int64_t *axes = lathe_imp_attr_ints(c, "axes", &n_axes);
    read_attributes(c, &r);
    if (c->status != LATHE_OK)
        return;
    r.by_scales = sizes == LATHE_NONE;
    uint32_t wanted = axes ? n_axes : (uint32_t)rank;
    if (r.by_scales ? scales == LATHE_NONE || lathe_value_count(c->g, scales) != wanted
                    : !lathe_imp_dims(c, sizes, &size_list, &n_sizes) || n_sizes != wanted) {
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED,
                            "its target depends on data or has not one number for each of %u axes", wanted);
        return;
    }
    for (uint32_t k = 0; k < wanted && count < LATHE_MAX_RANK; k++) {
        list[count].axis = lathe_imp_axis(c, axes ? axes[k] : (int64_t)k, rank);
        count += read_axis(c, &r, scales, k, size_list, &list[count]);
        if (c->status != LATHE_OK)
            return;
    }
    keep_ratio(&r, list, count);
    enum lathe_dtype dtype = lathe_imp_dtype(c, x);
    bool narrow = r.mode != NEAREST && dtype != LATHE_F32;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].in < 1 || list[i].out < 1 || list[i].out >= MAX_WEIGHTS || list[i].in > MAX_WEIGHTS / list[i].out) {
            lathe_imp_node_fail(c, LATHE_MSG_OPERAND_UNSUPPORTED, "axis %d from %lld to %lld elements, at most %d sums",
                                list[i].axis, (long long)list[i].in, (long long)list[i].out, MAX_WEIGHTS);
            return;
        }
        x = narrow ? lathe_imp_cast(c, x, LATHE_F32) : x;
        x = r.mode == NEAREST ? take_nearest(c, &r, &list[i], x) : interpolate(c, &r, &list[i], x);
    }
    if (count && narrow && !lathe_dtype_is_float(dtype))
        lathe_imp_node_fail(c, LATHE_MSG_OPERAND_TYPE, "%s is interpolated between elements; it must be a float type",
                            lathe_dtype_name(dtype));
    lathe_imp_bind(c, 0, narrow ? lathe_imp_cast(c, x, dtype) : x);
}
