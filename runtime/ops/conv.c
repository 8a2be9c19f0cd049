/* Convolution of one to three spatial axes, in groups.
 *
 * f32, groups of few output channels (depthwise convolution): each line of the output is a sum of runs of the input,
 * one a tap, as they lie there (taps_f32). A long line is cut where taps begin or end to lie inside the input; the
 * lines of a small plane are copied with their padding first, which also brings together what a stride takes apart.
 *
 * f32, other groups: blocks of output positions become panels of 16 columns [taps x channels][16] (the positions beside
 * each other as the output has them), and the weights, row-major as they are, multiply them: no image of all windows is
 * ever stored.
 *
 * Other float types take the plain loops in double. */
#include "op_util.h"
#include "ops.h"
#include "panel_gemm.h"
#include "window.h"

#include <string.h>

#define LEAST_BLOCK 64        /* output positions of a block, a multiple of 16: at least so many, ... */
#define MOST_BLOCK  256       /* ... at most so many, ... */
#define BLOCK_SIZE  (1 << 17) /* ... and between them with windows of so many numbers: half of a second cache */
#define FEW_OUT     4         /* output channels of a group that the panels would not pay for */
#define RUN         4096      /* output positions of a line that are one piece of work */
#define LONG_LINE   1024      /* output positions of a line of which the ends count for little */

enum way { WAY_PANELS, WAY_RUNS, WAY_COPIED };

struct conv {
    const struct lathe_tensor *x, *w, *bias;
    struct lathe_tensor *y;
    struct lathe_window window;
    int64_t groups, in_channels, out_channels, k; /* channels of a group; k = in_channels * taps */
    enum way way;
    /* WAY_COPIED: an input line holds its elements by their place modulo the stride, so many each, padding included;
     * numbers of all lines of a group */
    int64_t phase, copied;
};

/* An axis along which nothing but whole lines is moved becomes part of the one before it: where the last kernel length
 * is 1, lines of H x W positions with taps along H are one line of H * W with taps W apart. The same elements meet. */
static void merge_axes(struct lathe_window *w) {
    for (int i = 0; i < 3; i++)
        if (w->out[i] == 1)
            w->stride[i] = 1; /* there is one place: no step is ever made */
    for (int merged = 0; merged < 2; merged++) {
        int64_t dilation, before, in, limit = INT64_C(1) << 31;
        if (w->kernel[2] != 1 || w->stride[2] != 1 || w->before[2] != 0 || w->in[2] != w->out[2] || w->stride[1] != 1 ||
            !lathe_mul_i64(w->dilation[1], w->in[2], &dilation) || !lathe_mul_i64(w->before[1], w->in[2], &before) ||
            !lathe_mul_i64(w->in[1] > w->out[1] ? w->in[1] : w->out[1], w->in[2], &in) || dilation >= limit / 2 ||
            before >= limit || before <= -limit || in >= limit)
            return;
        w->in[2] *= w->in[1];
        w->out[2] *= w->out[1];
        w->kernel[2] = w->kernel[1];
        w->dilation[2] = dilation;
        w->before[2] = before;
        w->in[1] = w->in[0];
        w->out[1] = w->out[0];
        w->kernel[1] = w->kernel[0];
        w->stride[1] = w->stride[0];
        w->dilation[1] = w->dilation[0];
        w->before[1] = w->before[0];
        w->in[0] = w->out[0] = w->kernel[0] = w->stride[0] = w->dilation[0] = 1;
        w->before[0] = 0;
    }
}

/* Whether one channel at a time pays, and how its input is read. */
static void choose_way(struct conv *c) {
    const struct lathe_window *w = &c->window;
    int64_t span = (w->out[2] - 1) * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2]; /* first to last tap */
    bool padded = w->before[2] > 0 || span - w->before[2] >= w->in[2];
    c->way = WAY_PANELS;
    c->phase = c->copied = 0;
    if (c->out_channels > FEW_OUT || w->out[2] < 1)
        return;
    if (w->stride[2] == 1)
        c->way = WAY_RUNS;
    if (w->stride[2] == 1 && (!padded || w->out[2] >= LONG_LINE))
        return;
    c->phase = span / w->stride[2] + 1;
    if (lathe_mul_i64(c->phase, w->stride[2], &c->copied) && lathe_mul_i64(c->copied, w->in[0], &c->copied) &&
        lathe_mul_i64(c->copied, w->in[1], &c->copied) && lathe_mul_i64(c->copied, c->in_channels, &c->copied) &&
        c->copied <= BLOCK_SIZE)
        c->way = WAY_COPIED;
}

static bool conv_init(struct conv *c, const struct lathe_op_call *call) {
    c->x = call->in[0];
    c->w = call->in[1];
    c->bias = lathe_operand(call, 2);
    c->y = call->out[0];
    c->groups = lathe_attr_int(&call->attrs, LATHE_ATTR_GROUP, 1);
    if (c->w->rank != c->x->rank || c->w->rank < 3 ||
        !lathe_window_init(&c->window, call, c->x, c->y, c->w->dims + 2) || c->groups < 1 ||
        c->w->dims[0] % c->groups != 0)
        return false;
    merge_axes(&c->window);
    c->in_channels = c->w->dims[1];
    c->out_channels = c->w->dims[0] / c->groups;
    choose_way(c);
    return c->x->dims[1] == c->in_channels * c->groups && c->y->dims[1] == c->w->dims[0] &&
           c->y->dims[0] == c->x->dims[0] && lathe_mul_i64(c->in_channels, c->window.taps, &c->k) &&
           (!c->bias || lathe_tensor_count(c->bias) == c->w->dims[0]);
}

/* Weights are packed for each block again, so it is as long as its windows allow. */
static int64_t most_positions(int64_t k) {
    int64_t fit = k > 0 ? BLOCK_SIZE / k / 16 * 16 : MOST_BLOCK;
    return fit < LEAST_BLOCK ? LEAST_BLOCK : fit > MOST_BLOCK ? MOST_BLOCK : fit;
}

/* Two places a weight, of run_direct. */
static size_t places_bytes(const struct conv *c) {
    return ((size_t)c->k * 2 * sizeof(int64_t) + 63) / 64 * 64;
}

/* Without a kernel all convolutions take the panels, which are more than those places. */
size_t lathe_scratch_conv(const struct lathe_op_call *call) {
    struct conv c;
    size_t panels, pack;
    if (!conv_init(&c, call) || c.x->dtype != LATHE_F32)
        return 0;
    pack = lathe_panel_gemm_scratch(c.k);
    if (!pack || !lathe_mul_size((size_t)c.k, (size_t)most_positions(c.k) * sizeof(float), &panels) ||
        !lathe_add_size(panels, pack, &panels))
        return 0;
    size_t copied = c.way == WAY_COPIED ? places_bytes(&c) + (size_t)c.copied * sizeof(float) : 0;
    return panels > copied ? panels : copied;
}

/* The lines of input and weights that meet in one line of the output: those taps of the axes before the last that lie
 * inside, each tap of the last alone where its stride parts them. Places in the input of a group, and in the weights of
 * an output channel. */
static size_t find_lines(const struct conv *c, const int64_t place[3], int64_t *x_at, int64_t *w_at) {
    const struct lathe_window *w = &c->window;
    int64_t stride = w->stride[2], line = c->way == WAY_COPIED ? c->phase * stride : w->in[2], weight = 0;
    size_t n = 0;
    for (int64_t channel = 0; channel < c->in_channels; channel++)
        for (int64_t a = 0; a < w->kernel[0]; a++)
            for (int64_t b = 0; b < w->kernel[1]; b++, weight += w->kernel[2]) {
                int64_t d = lathe_window_at(w, 0, place[0], a), h = lathe_window_at(w, 1, place[1], b);
                if (d < 0 || d >= w->in[0] || h < 0 || h >= w->in[1])
                    continue;
                int64_t first = ((channel * w->in[0] + d) * w->in[1] + h) * line;
                for (int64_t e = 0; e < (stride > 1 ? w->kernel[2] : 1); e++) {
                    int64_t tap = e * w->dilation[2];
                    x_at[n] = first + tap % stride * c->phase + tap / stride;
                    w_at[n++] = weight + e;
                }
            }
    return n;
}

/* The input lines of a group with their padding, see struct conv. */
static void copy_lines(const struct conv *c, const float *x, float *out) {
    const struct lathe_window *w = &c->window;
    int64_t stride = w->stride[2];
    for (int64_t l = 0; l < c->in_channels * w->in[0] * w->in[1]; l++, x += w->in[2])
        for (int64_t r = 0; r < stride; r++, out += c->phase) {
            /* places [begin, end) of the phase lie inside the line */
            int64_t at = r - w->before[2], begin = at < 0 ? (stride - 1 - at) / stride : 0;
            int64_t end = at < w->in[2] ? (w->in[2] - at + stride - 1) / stride : 0;
            begin = begin < c->phase ? begin : c->phase;
            end = end > c->phase ? c->phase : end > begin ? end : begin;
            memset(out, 0, (size_t)begin * sizeof *out);
            if (stride == 1 && end > begin)
                memcpy(out + begin, x + begin + at, (size_t)(end - begin) * sizeof *out);
            else
                for (int64_t i = begin; i < end; i++)
                    out[i] = x[i * stride + at];
            memset(out + end, 0, (size_t)(c->phase - end) * sizeof *out);
        }
}

/* Positions [from, to) of a line, in pieces for which the same taps lie inside; the last stride is 1. */
static void run_line(const struct conv *c, const struct lathe_kernels *kernels, int64_t from, int64_t to,
                     const struct lathe_taps_f32 *line) {
    const struct lathe_window *w = &c->window;
    int64_t kernel = w->kernel[2], dilation = w->dilation[2], before = w->before[2], last = w->in[2] - 1 + before;
    for (int64_t at = from, end; at < to; at = end) {
        int64_t begin = before > at ? (before - at + dilation - 1) / dilation : 0;
        int64_t stop = last >= at ? (last - at) / dilation + 1 : 0;
        begin = begin < kernel ? begin : kernel;
        stop = stop < kernel ? stop : kernel;
        end = to;
        if (begin > 0 && before - (begin - 1) * dilation < end)
            end = before - (begin - 1) * dilation;
        if (stop > 0 && last + 1 - (stop - 1) * dilation < end)
            end = last + 1 - (stop - 1) * dilation;
        struct lathe_taps_f32 run = *line;
        run.n = (size_t)(end - at);
        run.y = line->y + at;
        run.taps = stop > begin ? (size_t)(stop - begin) : 0;
        if (run.taps > 0) {
            run.x = line->x + (at + begin * dilation - before);
            run.w = line->w + begin;
        } else {
            run.lines = 0;
        }
        kernels->taps_f32(&run);
    }
}

static void run_direct(const struct lathe_op_call *call, const struct conv *c) {
    const struct lathe_window *w = &c->window;
    int64_t channels = c->y->dims[1], lines = w->out[0] * w->out[1], runs = (w->out[2] + RUN - 1) / RUN, begin, end;
    int64_t *x_at = call->scratch, *w_at = x_at + c->k, known = -1, copied = -1;
    float *copy = (float *)(void *)((char *)call->scratch + places_bytes(c));
    const float *bias = c->bias ? c->bias->data : NULL;
    size_t count = 0;
    lathe_team_split(&call->team, c->x->dims[0] * channels * lines * runs, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t from = item % runs * RUN, at = item / runs % lines, plane = item / runs / lines;
        int64_t channel = plane % channels, to = from + RUN < w->out[2] ? from + RUN : w->out[2];
        int64_t group = plane / c->out_channels; /* of all images */
        const float *x = (const float *)c->x->data + group * c->in_channels * w->in_plane;
        if (at != known) {
            const int64_t place[3] = {at / w->out[1], at % w->out[1], 0};
            count = find_lines(c, place, x_at, w_at);
            known = at;
        }
        if (c->way == WAY_COPIED && group != copied) {
            copy_lines(c, x, copy);
            copied = group;
        }
        struct lathe_taps_f32 line = {.lines = count,
                                      .x = x,
                                      .w = (const float *)c->w->data + channel * c->k,
                                      .x_at = x_at,
                                      .w_at = w_at,
                                      .step = w->dilation[2],
                                      .bias = bias ? bias[channel] : 0,
                                      .y = (float *)c->y->data + plane * w->out_plane + at * w->out[2]};
        if (c->way == WAY_RUNS) {
            run_line(c, call->kernels, from, to, &line);
            continue;
        }
        line.x = copy + from;
        line.y += from;
        line.n = (size_t)(to - from);
        line.taps = w->stride[2] > 1 ? 1 : (size_t)w->kernel[2];
        call->kernels->taps_f32(&line);
    }
}

/* Row t of the panels at columns [j, j + n): elements at, at + stride, .. of a line, zeros outside of it. line NULL: it
 * lies outside itself. */
static void fill_run(const struct lathe_window *w, const float *line, int64_t at, int64_t n, int64_t k, int64_t j,
                     float *row) {
    int64_t stride = w->stride[2], size = w->in[2];
    bool inside = line && at >= 0 && at + (n - 1) * stride < size;
    for (int64_t end = j + n, some; j < end; j += some, at += some * stride) {
        float *out = row + j / 16 * k * 16 + j % 16;
        some = 16 - j % 16 < end - j ? 16 - j % 16 : end - j;
        if (inside && stride == 1 && some == 16)
            memcpy(out, line + at, 16 * sizeof *out);
        else if (inside)
            for (int64_t i = 0; i < some; i++)
                out[i] = line[at + i * stride];
        else
            for (int64_t i = 0, v = at; i < some; i++, v += stride)
                out[i] = line && v >= 0 && v < size ? line[v] : 0;
    }
}

/* The windows of positions [first, first + n) as panels; positions past n are zero. */
static void fill_panels(const struct conv *c, const float *x, int64_t first, int64_t n, float *out) {
    const struct lathe_window *w = &c->window;
    for (int64_t j = 0, some; j < n; j += some) { /* those of one line of the output */
        int64_t place[3];
        lathe_window_place(w, first + j, place);
        some = w->out[2] - place[2] < n - j ? w->out[2] - place[2] : n - j;
        float *row = out;
        for (int64_t channel = 0; channel < c->in_channels; channel++)
            for (int64_t a = 0; a < w->kernel[0]; a++) {
                int64_t d = lathe_window_at(w, 0, place[0], a);
                for (int64_t b = 0; b < w->kernel[1]; b++) {
                    int64_t h = lathe_window_at(w, 1, place[1], b);
                    bool inside = d >= 0 && d < w->in[0] && h >= 0 && h < w->in[1];
                    const float *line = inside ? x + channel * w->in_plane + (d * w->in[1] + h) * w->in[2] : NULL;
                    for (int64_t e = 0; e < w->kernel[2]; e++, row += 16)
                        fill_run(w, line, lathe_window_at(w, 2, place[2], e), some, c->k, j, row);
                }
            }
    }
    float *last = out + n / 16 * c->k * 16 + n % 16;
    for (int64_t t = 0; n % 16 && t < c->k; t++)
        memset(last + t * 16, 0, (size_t)(16 - n % 16) * sizeof *out);
}

/* A piece of work: some output channels of a group for a block of positions. */
struct pieces {
    int64_t width, blocks; /* positions of a block; blocks of a plane */
    int64_t height, parts; /* output channels of a part; parts of a group */
};

static struct pieces cut_planes(const struct lathe_op_call *call, const struct conv *c) {
    int64_t most = most_positions(c->k), planes = c->x->dims[0] * c->groups;
    int64_t tile = call->kernels && call->kernels->gemm_f32.fn ? call->kernels->gemm_f32.mr : 4;
    struct pieces p = {.blocks = (c->window.out_plane + most - 1) / most, .parts = 1};
    p.width = ((c->window.out_plane + p.blocks - 1) / p.blocks + 15) / 16 * 16;
    p.blocks = (c->window.out_plane + p.width - 1) / p.width;
    int64_t tiles = (c->out_channels + tile - 1) / tile, wanted = 2 * (int64_t)call->team.count;
    if (call->team.count > 1 && planes * p.blocks < wanted)
        p.parts = (wanted + planes * p.blocks - 1) / (planes * p.blocks);
    p.height = (tiles + p.parts - 1) / p.parts * tile;
    p.parts = (c->out_channels + p.height - 1) / p.height;
    return p;
}

static void run_panels(const struct lathe_op_call *call, const struct conv *c) {
    const struct lathe_window *w = &c->window;
    const struct pieces cut = cut_planes(call, c);
    int64_t begin, end, filled = -1;
    float *panels = call->scratch;
    void *pack = (uint8_t *)call->scratch + (size_t)(c->k * most_positions(c->k)) * sizeof(float);
    const float *bias = c->bias ? c->bias->data : NULL;
    lathe_team_split(&call->team, c->x->dims[0] * c->groups * cut.blocks * cut.parts, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / cut.parts, top = item % cut.parts * cut.height, first = block % cut.blocks * cut.width;
        int64_t image = block / cut.blocks; /* image and group together: both tensors have them in this order */
        int64_t n = w->out_plane - first < cut.width ? w->out_plane - first : cut.width;
        int64_t rows = c->out_channels - top < cut.height ? c->out_channels - top : cut.height;
        if (block != filled)
            fill_panels(c, (const float *)c->x->data + image * c->in_channels * w->in_plane, first, n, panels);
        filled = block;
        int64_t channel = image % c->groups * c->out_channels + top;
        float *y = (float *)c->y->data + (image * c->out_channels + top) * w->out_plane + first;
        lathe_panel_gemm(call->kernels, rows, n, c->k, (const float *)c->w->data + channel * c->k, c->k, panels, NULL,
                         y, w->out_plane, pack);
        for (int64_t m = 0; bias && m < rows; m++)
            for (int64_t j = 0; j < n; j++)
                y[m * w->out_plane + j] += bias[channel + m];
    }
}

/* One output element in double. */
static double element(const struct conv *c, int64_t image, int64_t out_channel, int64_t p) {
    const struct lathe_window *w = &c->window;
    int64_t place[3], group = out_channel / c->out_channels;
    lathe_window_place(w, p, place);
    double sum = 0;
    int64_t weight = out_channel * c->k;
    for (int64_t channel = 0; channel < c->in_channels; channel++) {
        int64_t plane = ((image * c->groups + group) * c->in_channels + channel) * w->in_plane;
        for (int64_t a = 0; a < w->kernel[0]; a++)
            for (int64_t b = 0; b < w->kernel[1]; b++)
                for (int64_t e = 0; e < w->kernel[2]; e++, weight++) {
                    int64_t d = lathe_window_at(w, 0, place[0], a), h = lathe_window_at(w, 1, place[1], b);
                    int64_t v = lathe_window_at(w, 2, place[2], e);
                    if (d < 0 || d >= w->in[0] || h < 0 || h >= w->in[1] || v < 0 || v >= w->in[2])
                        continue;
                    sum +=
                        lathe_read_f64(c->x, plane + (d * w->in[1] + h) * w->in[2] + v) * lathe_read_f64(c->w, weight);
                }
    }
    return c->bias ? sum + lathe_read_f64(c->bias, out_channel) : sum;
}

enum lathe_status lathe_run_conv(const struct lathe_op_call *call) {
    struct conv c;
    if (!conv_init(&c, call))
        return lathe_bad_shape(call, "conv");
    if (!lathe_dtype_is_float(c.x->dtype) || c.w->dtype != c.x->dtype || c.y->dtype != c.x->dtype ||
        (c.bias && c.bias->dtype != c.x->dtype))
        return lathe_no_dtype(call, "conv", c.x->dtype);
    if (lathe_tensor_count(c.y) == 0)
        return LATHE_OK;
    if (c.x->dtype == LATHE_F32) {
        if (c.way != WAY_PANELS && call->kernels && call->kernels->taps_f32)
            run_direct(call, &c);
        else
            run_panels(call, &c);
        return LATHE_OK;
    }
    int64_t begin, end, channels = c.y->dims[1];
    lathe_team_split(&call->team, lathe_tensor_count(c.y), 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t p = i % c.window.out_plane, plane = i / c.window.out_plane;
        double v = element(&c, plane / channels, plane % channels, p);
        lathe_store(c.y, i, 1, LATHE_KIND_F64, &v);
    }
    return LATHE_OK;
}
