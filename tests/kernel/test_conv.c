/* Convolution against plain loops in double: one to three axes, groups of few and of many channels, padding (also
 * negative, and beyond the kernel), dilation, strides, axes that nothing moves along; each output has the same bits on
 * one thread and on several, and alone as among other images. */
#include "op_run.h"

#include "ops.h"

struct shape {
    unsigned axes;
    int64_t images, groups, in_channels, out_channels; /* channels of a group */
    int64_t in[3], out[3], kernel[3], strides[3], dilations[3], pads[6];
};

static int64_t count_of(const int64_t dims[3], unsigned axes) {
    int64_t n = 1;
    for (unsigned i = 0; i < axes; i++)
        n *= dims[i];
    return n;
}

/* Along axis i: length, kernel, stride and so on, with at least one place. */
static void draw_axis(struct shape *s, unsigned i, bool moves) {
    int64_t most = s->axes == 1 ? 150 : s->axes == 2 ? 24 : 9;
    do {
        s->in[i] = 1 + (int64_t)test_below((size_t)most);
        s->kernel[i] = s->strides[i] = s->dilations[i] = 1;
        s->pads[i] = s->pads[i + s->axes] = 0;
        if (moves) {
            s->kernel[i] = 1 + (int64_t)test_below(s->axes == 1 ? 12 : 5);
            s->dilations[i] = 1 + (int64_t)test_below(3);
            s->strides[i] = test_below(3) ? 1 : 1 + (int64_t)test_below(4);
            s->pads[i] = (int64_t)test_below(8) - 1;
            s->pads[i + s->axes] = (int64_t)test_below(8) - 1;
        }
        int64_t span = s->in[i] + s->pads[i] + s->pads[i + s->axes] - (s->kernel[i] - 1) * s->dilations[i] - 1;
        s->out[i] = span < 0 ? 0 : span / s->strides[i] + 1;
    } while (s->out[i] < 1);
}

/* The output element at `place`, and the sum of its terms without sign. */
static double exact(const struct shape *s, const float *x, const float *w, int64_t image, int64_t channel,
                    const int64_t place[3], double *size) {
    int64_t group = channel / s->out_channels, taps = count_of(s->kernel, s->axes), plane = count_of(s->in, s->axes);
    double sum = 0;
    for (int64_t c = 0; c < s->in_channels; c++)
        for (int64_t t = 0; t < taps; t++) {
            int64_t at = 0, rest = t, tap[3];
            bool inside = true;
            for (unsigned i = s->axes; i-- > 0; rest /= s->kernel[i])
                tap[i] = rest % s->kernel[i];
            for (unsigned i = 0; i < s->axes; i++) {
                int64_t v = place[i] * s->strides[i] + tap[i] * s->dilations[i] - s->pads[i];
                inside = inside && v >= 0 && v < s->in[i];
                at = at * s->in[i] + v;
            }
            if (!inside)
                continue;
            double product = (double)x[((image * s->groups + group) * s->in_channels + c) * plane + at] *
                             w[(channel * s->in_channels + c) * taps + t];
            sum += product;
            *size += fabs(product);
        }
    return sum;
}

static void run(const struct shape *s, const struct lathe_kernels *kernels, float *x, float *w, float *bias, float *y,
                int64_t images, unsigned threads) {
    struct lathe_tensor tx = {x, LATHE_F32, s->axes + 2, {images, s->groups * s->in_channels}};
    struct lathe_tensor tw = {w, LATHE_F32, s->axes + 2, {s->groups * s->out_channels, s->in_channels}};
    struct lathe_tensor ty = {y, LATHE_F32, s->axes + 2, {images, s->groups * s->out_channels}};
    struct lathe_tensor tb = {bias, LATHE_F32, 1, {s->groups * s->out_channels}};
    for (unsigned i = 0; i < s->axes; i++) {
        tx.dims[2 + i] = s->in[i];
        tw.dims[2 + i] = s->kernel[i];
        ty.dims[2 + i] = s->out[i];
    }
    const struct lathe_attr attrs[] = {
        attr_i(LATHE_ATTR_GROUP, s->groups),
        {.key = LATHE_ATTR_STRIDES, .type = LATHE_ATTR_INTS, .count = s->axes, .ints = s->strides},
        {.key = LATHE_ATTR_DILATIONS, .type = LATHE_ATTR_INTS, .count = s->axes, .ints = s->dilations},
        {.key = LATHE_ATTR_PADS, .type = LATHE_ATTR_INTS, .count = 2 * s->axes, .ints = s->pads},
    };
    const struct lathe_tensor *const in[3] = {&tx, &tw, bias ? &tb : NULL};
    run_op(lathe_run_conv, lathe_scratch_conv, kernels, attrs, sizeof attrs / sizeof *attrs, in, 3, &ty, threads);
}

static void check(const struct shape *s, const struct lathe_kernels *kernels) {
    int64_t plane = count_of(s->out, s->axes), channels = s->groups * s->out_channels;
    size_t image_x = (size_t)(s->groups * s->in_channels * count_of(s->in, s->axes)),
           image_y = (size_t)(channels * plane);
    size_t nx = (size_t)s->images * image_x, ny = (size_t)s->images * image_y;
    size_t nw = (size_t)(channels * s->in_channels * count_of(s->kernel, s->axes));
    float *x = guarded_floats(nx), *w = guarded_floats(nw), *bias = guarded_floats((size_t)channels);
    float *y = guarded_floats(ny), *z = guarded_floats(ny);
    float *b = test_below(2) ? bias : NULL;
    run(s, kernels, x, w, b, y, s->images, 1);
    for (size_t i = 0; i < ny; i++) {
        int64_t rest = (int64_t)i % plane, row = (int64_t)i / plane, place[3];
        for (unsigned a = s->axes; a-- > 0; rest /= s->out[a])
            place[a] = rest % s->out[a];
        double size = 0, sum = exact(s, x, w, row / channels, row % channels, place, &size);
        size += b ? fabs(b[row % channels]) : 0;
        sum += b ? b[row % channels] : 0;
        double terms = (double)(nw / (size_t)channels + 1);
        if (!(fabs(y[i] - sum) <= 0x1p-23 * terms * size + 1e-30))
            fail_msg("%u axes, output %zu: %.9g, expected %.9g", s->axes, i, y[i], sum);
    }
    run(s, kernels, x, w, b, z, s->images, 2 + (unsigned)test_below(3));
    assert_memory_equal(y, z, ny * sizeof *y);
    run(s, kernels, x + (nx - image_x), w, b, z + (ny - image_y), 1, 1);
    assert_memory_equal(y, z, ny * sizeof *y);
    guarded_free(x, nx);
    guarded_free(w, nw);
    guarded_free(bias, (size_t)channels);
    guarded_free(y, ny);
    guarded_free(z, ny);
}

static void random_shapes(void **state) {
    (void)state;
    EACH_LEVEL(kernels) {
        for (int round = 0; round < 400; round++) {
            if (test_left_out(10))
                continue;
            struct shape s = {.axes = 1 + (unsigned)round % 3, .images = 1 + (int64_t)test_below(3)};
            bool few = test_below(2);
            s.groups = 1 + (int64_t)test_below(few ? 6 : 3);
            s.in_channels = few ? 1 : 1 + (int64_t)test_below(9);
            s.out_channels = 1 + (int64_t)test_below(few ? 2 : 40);
            unsigned moves = test_below(3) ? 7 : (unsigned)test_below(8); /* a bit an axis */
            for (unsigned i = 0; i < s.axes; i++)
                draw_axis(&s, i, moves >> i & 1);
            check(&s, &kernels);
        }
    }
}

/* Longer than what one piece of work takes. */
static void long_lines(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 2, 1, 1, {9000}, {9000}, {7}, {1}, {1}, {3, 3}},
        {2, 1, 2, 1, 1, {150, 64}, {150, 64}, {65, 1}, {1, 1}, {1, 1}, {32, 0, 32, 0}},
        {1, 2, 3, 1, 2, {20000}, {5001}, {9}, {4}, {3}, {13, 13}},
        {1, 1, 2, 1, 1, {200000}, {100000}, {2}, {2}, {1}, {0, 0}},
        {2, 2, 5, 1, 1, {56, 56}, {28, 28}, {7, 7}, {2, 2}, {1, 1}, {3, 3, 3, 3}},
        {1, 1, 1, 3, 40, {900}, {898}, {3}, {1}, {1}, {0, 0}},
        {1, 2, 2, 700, 40, {70}, {70}, {1}, {1}, {1}, {0, 0}},
        {2, 1, 1, 3, 50, {112, 112}, {7, 7}, {16, 16}, {16, 16}, {1, 1}, {0, 0, 0, 0}},
    };
    EACH_LEVEL(kernels) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (!test_left_out(sizeof shapes / sizeof *shapes))
                check(&shapes[i], &kernels);
    }
}

int main(void) {
    test_seed_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes), cmocka_unit_test(long_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
