/* Shape inference: each row is a graph in text form without the shapes of its results, and what must come out. */
#include "graph_test.h"

#include <stdio.h>
#include <stdlib.h>

/* Parses `text`, in which results are written as %name : f32[?]: the types of results are inferred. */
static enum lathe_status infer(const char *inputs, enum lathe_op op, const char *operands, const char *attrs,
                               struct lathe_graph **out, struct lathe_diag *diag) {
    /* Inputs first, then one node built from the operand names. */
    struct lathe_graph *g = graph_from(inputs);
    lathe_value_id in[8], y = lathe_graph_add_value(g, "y", LATHE_NO_DTYPE, -1, NULL);
    uint32_t n_in = 0;
    char copy[256], *save = NULL;
    snprintf(copy, sizeof copy, "%s", operands);
    for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save))
        in[n_in++] = strcmp(name, "_") ? value_of(g, name) : LATHE_NONE;
    lathe_node_id n = lathe_graph_add_node(g, LATHE_NONE, op, "node_y", "Op", in, n_in, &y, 1);
    for (const char *at = attrs; *at;) {
        char key[32];
        int used = 0;
        long long a, b, c, d;
        int values = 0;
        if (sscanf(at, " %31[a-z_]=[%lld,%lld,%lld,%lld]%n", key, &a, &b, &c, &d, &used) == 5 && used)
            values = 4;
        else if (sscanf(at, " %31[a-z_]=[%lld,%lld]%n", key, &a, &b, &used) == 3 && used)
            values = 2;
        else if (sscanf(at, " %31[a-z_]=[%lld]%n", key, &a, &used) == 2 && used)
            values = 1;
        else if (sscanf(at, " %31[a-z_]=%lld%n", key, &a, &used) == 2 && used)
            values = 0;
        else
            fail_msg("attributes '%s'", at);
        enum lathe_attr_key found = LATHE_ATTR_NONE;
#define ATTR(number, name, text)                                                                                       \
    if (!strcmp(key, text))                                                                                            \
        found = LATHE_ATTR_##name;
#include "attrs.def"
#undef ATTR
        const int64_t list[4] = {a, b, c, d};
        if (values)
            lathe_node_set_ints(g, n, found, list, (uint32_t)values);
        else
            lathe_node_set_int(g, n, found, a);
        at += used;
    }
    lathe_graph_add_output(g, y, "y");
    lathe_diag_reset(diag);
    *out = g;
    return lathe_shape_infer(g, diag);
}

/* "f32[b, s]" or "i64[2] = b, 4" when the content is known. */
static void describe(struct lathe_graph *g, lathe_value_id v, char *text, int size) {
    int at = snprintf(text, (size_t)size, "%s[", lathe_dtype_name(g->values[v].dtype));
    for (int i = 0; i < g->values[v].rank; i++) {
        at += snprintf(text + at, (size_t)(size - at), i ? "," : "");
        at += lathe_dim_print(g->dims, g->values[v].dims[i], text + at, size - at);
    }
    at += snprintf(text + at, (size_t)(size - at), "]");
    for (uint32_t i = 0; i < g->values[v].content_count; i++) {
        at += snprintf(text + at, (size_t)(size - at), i ? "," : "=");
        at += lathe_dim_print(g->dims, g->values[v].content[i], text + at, size - at);
    }
}

static const char inputs[] =
    "input %x : f32[b, s, 8]\n"
    "input %ids : i64[b, s]\n"
    "input %m : bool[b, 1, 1, s]\n"
    "input %im : f32[b, 3, 32, 32]\n"
    "const %w : f32[8, 5] = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}\n"
    "const %v8 : f32[8] = {1,1,1,1,1,1,1,1}\n"
    "const %k : f32[4, 3, 2, 2] = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
    "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}\n"
    "const %i1 : i64[1] = {1}\nconst %im1 : i64[1] = {-1}\nconst %zero : i64[1] = {0}\nconst %two : i64[] = {2}\n"
    "const %last : i64[1] = {9223372036854775807}\n"
    "const %sh2 : i64[2] = {-1, 8}\nconst %sh4 : i64[4] = {0, -1, 2, 4}\nconst %shbad : i64[3] = {0, 0, 7}\n"
    "const %shtwice : i64[3] = {-1, -1, 8}\nconst %traced : i64[4] = {1, 4, 2, 4}\n"
    "const %pads : i64[6] = {0, 1, 0, 0, 2, 0}\nconst %ones4 : i64[4] = {1, 1, 1, 1}\nconst %minus : i64[3] = {-1, -1, "
    "-1}\n"
    "const %f : f32[] = {1}\nconst %half : f32[] = {0.5}\nconst %two_f : f32[] = {2}\n"
    "%shape : i64[3] = shape(%x)\n"
    "%bdim : i64[1] = slice(%shape) {axes=[0], starts=[0], ends=[1], steps=[1]}\n"
    "%sdim : i64[] = gather(%shape, %i0) {axis=0}\n"
    "%sf : f32[] = cast(%sdim) {to=1}\n"
    "%four : f32[] = mul(%two_f, %two_f)\n"
    "%shalf : f32[] = mul(%sf, %half)\n"
    "%s1 : i64[1] = reshape(%sdim)\n"
    "%target : i64[3] = concat(%bdim, %s1, %im1) {axis=0}\n"
    "%is_minus : bool[3] = equal(%target, %minus)\n"
    "%big : i64[] = mul(%sdim, %two)\n";

/* %i0 is defined before the rest. */
static char *all_inputs(void) {
    static char text[8192];
    snprintf(text, sizeof text, "const %%i0 : i64[] = {1}\n%s", inputs);
    return text;
}

static void results(void **state) {
    static const struct {
        enum lathe_op op;
        const char *operands, *attrs, *expect;
    } rows[] = {
        {LATHE_OP_RELU, "x", "", "f32[b,s,8]"},
        {LATHE_OP_CAST, "ids", "to=6", "i32[b,s]"},
        {LATHE_OP_CAST, "shape", "to=6", "i32[3]=b,s,8"},
        {LATHE_OP_ADD, "x v8", "", "f32[b,s,8]"},
        {LATHE_OP_ADD, "x f", "", "f32[b,s,8]"},
        {LATHE_OP_EQUAL, "ids two", "", "bool[b,s]"},
        {LATHE_OP_EQUAL, "shape minus", "", "bool[3]=0,0,0"},
        {LATHE_OP_WHERE, "is_minus i1 target", "", "i64[3]=b,s,1"},
        {LATHE_OP_WHERE, "m f f", "", "f32[b,1,1,s]"},
        {LATHE_OP_SHAPE, "x", "starts=[-1]", "i64[1]=8"},
        {LATHE_OP_SHAPE, "x", "starts=[1] ends=[-1]", "i64[1]=s"},
        {LATHE_OP_SIZE, "x", "", "i64[]=8*b*s"},
        {LATHE_OP_RESHAPE, "x sh2", "", "f32[b*s,8]"},
        {LATHE_OP_RESHAPE, "x sh4", "", "f32[b,s,2,4]"},
        {LATHE_OP_RESHAPE, "x target", "", "f32[b,s,8]"},
        {LATHE_OP_RESHAPE, "ids im1", "", "i64[b*s]"},
        {LATHE_OP_TRANSPOSE, "x", "perm=[2,0]", "?perm has 2"},
        {LATHE_OP_TRANSPOSE, "im", "perm=[0,2,3,1]", "f32[b,32,32,3]"},
        {LATHE_OP_TRANSPOSE, "x", "", "f32[8,s,b]"},
        {LATHE_OP_CONCAT, "x x", "axis=1", "f32[b,2*s,8]"},
        {LATHE_OP_CONCAT, "x x", "axis=-1", "f32[b,s,16]"},
        {LATHE_OP_CONCAT, "x ids", "axis=1", "?rank"},
        {LATHE_OP_SLICE, "x zero i1 i1", "", "f32[b,1,8]"},
        {LATHE_OP_SLICE, "x i1 last i1", "", "f32[b,s-1,8]"},
        {LATHE_OP_SLICE, "x im1 last i1", "", "f32[b,1,8]"},
        {LATHE_OP_SLICE, "x zero s1 i1", "", "f32[b,s,8]"},
        {LATHE_OP_SLICE, "x zero last i1 im1", "", "f32[b,0,8]"},
        {LATHE_OP_SLICE, "v8 im1 im1 zero im1", "", "f32[0]"},
        {LATHE_OP_GATHER, "w ids", "axis=0", "f32[b,s,5]"},
        {LATHE_OP_GATHER, "x i0", "axis=1", "f32[b,8]"},
        {LATHE_OP_GATHER, "v8 last", "axis=0", "?outside"},
        {LATHE_OP_GATHER, "v8 f", "axis=0", "?i32 or i64"},
        {LATHE_OP_GATHER, "x i0", "axis=3", "?axis is 3"},
        {LATHE_OP_EXPAND, "v8 target", "", "?negative"},
        {LATHE_OP_EXPAND, "f shape", "", "f32[b,s,8]"},
        {LATHE_OP_TILE, "x shape", "", "f32[b^2,s^2,64]"},
        {LATHE_OP_PAD, "x pads", "", "f32[b,s+3,8]"},
        {LATHE_OP_FILL, "shape f", "", "f32[b,s,8]"},
        {LATHE_OP_FILL, "i1 two", "", "i64[1]=2"},
        {LATHE_OP_RANGE, "two big i0", "", "i64[2*s-2]"},
        {LATHE_OP_RANGE, "i0 two i0", "", "i64[1]=1"},
        {LATHE_OP_RANGE, "half sf f", "", "f32[s]"},
        {LATHE_OP_RANGE, "half four f", "", "f32[4]"},
        {LATHE_OP_RANGE, "half shalf f", "", "?depends on the data"},
        {LATHE_OP_RANGE, "half sf half", "", "?depends on the data"},
        {LATHE_OP_FLOOR, "shalf", "", "f32[]=floordiv(s,2)"},
        {LATHE_OP_CAST, "shalf", "to=7", "i64[]=floordiv(s,2)"},
        {LATHE_OP_DIV, "big two", "", "i64[]=s"},
        {LATHE_OP_MOD, "big two", "", "i64[]=0"},
        {LATHE_OP_REDUCE_PROD, "shape", "keepdims=0", "i64[]=8*b*s"},
        {LATHE_OP_REDUCE_MAX, "minus", "keepdims=1", "i64[1]=-1"},
        {LATHE_OP_REDUCE_MEAN, "x im1", "keepdims=1", "f32[b,s,1]"},
        {LATHE_OP_REDUCE_SUM, "x", "axes=[-2] keepdims=0", "f32[b,8]"},
        {LATHE_OP_REDUCE_SUM, "x", "axes=[3]", "?axis 3"},
        {LATHE_OP_REDUCE_SUM, "x ids", "", "?depend on the data"},
        {LATHE_OP_ARG_MAX, "x", "axis=-1 keepdims=0", "i64[b,s]"},
        {LATHE_OP_SOFTMAX, "x", "axis=-1", "f32[b,s,8]"},
        {LATHE_OP_SOFTMAX, "ids", "axis=-1", "?float"},
        {LATHE_OP_MATMUL, "x w", "", "f32[b,s,5]"},
        {LATHE_OP_MATMUL, "x v8", "", "f32[b,s]"},
        {LATHE_OP_MATMUL, "v8 w", "", "f32[5]"},
        {LATHE_OP_MATMUL, "x x", "trans_b=1", "f32[b,s,s]"},
        {LATHE_OP_MATMUL, "w x", "", "f32[b,8,8]"},
        {LATHE_OP_MATMUL, "x ids", "", "?type"},
        {LATHE_OP_GEMM, "w w", "trans_b=1", "f32[8,8]"},
        {LATHE_OP_GEMM, "x w", "", "?rank"},
        {LATHE_OP_CONV, "im k", "strides=[2,2]", "f32[b,4,16,16]"},
        {LATHE_OP_CONV, "im k", "pads=[1,1,1,1] dilations=[2,2]", "f32[b,4,32,32]"},
        {LATHE_OP_CONV, "im k", "group=3", "?"},
        {LATHE_OP_MAX_POOL, "im", "kernel_shape=[3,3] strides=[2,2] round=1", "f32[b,3,16,16]"},
        {LATHE_OP_GLOBAL_AVERAGE_POOL, "im", "", "f32[b,3,1,1]"},
        {LATHE_OP_LAYER_NORM, "x v8 v8", "axis=-1", "f32[b,s,8]"},
        {LATHE_OP_LAYER_NORM, "x w", "axis=-1", "?outside"},
        {LATHE_OP_LINEAR, "x w", "", "f32[b,s,5]"},
        {LATHE_OP_LINEAR, "x w v8", "", "?equal"},
        {LATHE_OP_CUMSUM, "ids i0", "", "i64[b,s]"},
        {LATHE_OP_TRILU, "im two", "upper=1", "f32[b,3,32,32]"},
        {LATHE_OP_ROW_MAP, "ids", "", "i32[2*b*s+4*b]"},
        {LATHE_OP_TOP_K, "x i1", "", "f32[b,s,1]"},
        {LATHE_OP_NOT, "x", "", "?bool"},
        {LATHE_OP_AND, "x x", "", "?bool"},
        {LATHE_OP_RESHAPE, "x shtwice", "", "?-1 twice"},
        {LATHE_OP_RESHAPE, "x shbad", "", "?[0,0,7]"},
        {LATHE_OP_RESHAPE, "x ids", "", "?depends on the data"},
        {LATHE_OP_EINSUM, "x", "", "?"},
    };
    static struct lathe_diag diag;
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lathe_graph *g;
        const char *name = lathe_op_info(rows[i].op)->name;
        enum lathe_status status = infer(all_inputs(), rows[i].op, rows[i].operands, rows[i].attrs, &g, &diag);
        if (rows[i].expect[0] == '?') {
            bool named = strstr(diag.text, "node_y") && strstr(diag.text, rows[i].expect + 1);
            if (status == LATHE_OK || status == LATHE_INTERNAL || !named) {
                print_message("%s(%s) %s: status %d, %s\n", name, rows[i].operands, rows[i].attrs, status, diag.text);
                wrong++;
            }
        } else if (status != LATHE_OK) {
            print_message("%s(%s) %s: %s\n", name, rows[i].operands, rows[i].attrs, diag.text);
            wrong++;
        } else {
            char found[512], expect[512];
            describe(g, value_of(g, "y"), found, sizeof found);
            snprintf(expect, sizeof expect, "%s", rows[i].expect);
            if (!strcmp(expect, "f32[b^2,s^2,64]"))
                snprintf(expect, sizeof expect, "f32[b*b,s*s,64]");
            if (strcmp(found, expect)) {
                print_message("%s(%s) %s: %s, not %s\n", name, rows[i].operands, rows[i].attrs, found, expect);
                wrong++;
            }
            /* Shape operands are gone: inference once more, as the checker does, comes to the same. */
            status = lathe_graph_check(g, &diag);
            if (status != LATHE_OK) {
                print_message("%s(%s): again: %s\n", name, rows[i].operands, diag.text);
                wrong++;
            }
        }
        lathe_graph_free(&g);
    }
    assert_int_equal(wrong, 0);
}

/* ---- symbols */

static void axes_are_unified(void **state) {
    struct lathe_graph *g = graph_from("input %a : f32[b, s]\ninput %m : f32[b2, s2]\n%y : f32[b, s] = add(%a, %m)\n");
    assert_true(lathe_value_same_shape(g, value_of(g, "a"), value_of(g, "m")));
    assert_int_equal(g->note_count, 2);
    assert_null(g->notes[0].code);
    lathe_graph_free(&g);
    /* Behind the same factor, and not when one broadcasts. */
    g = graph_from("input %a : f32[b, s]\ninput %m : f32[1, t]\n%f : f32[2*b, s] = concat(%a, %a) {axis=0}\n"
                   "%y : f32[2*b, s] = mul(%f, %m)\n");
    assert_int_equal(lathe_value_dim(g, value_of(g, "m"), 1), lathe_value_dim(g, value_of(g, "a"), 1));
    int64_t one;
    assert_true(lathe_value_dim_is(g, value_of(g, "m"), 0, &one) && one == 1);
    lathe_graph_free(&g);
    /* A mask in the shape of the other input's batch. */
    g = graph_from("input %a : i64[b, s]\ninput %m : i64[b2, s2]\nconst %zero : i64[] = {0}\n"
                   "const %rest : i64[1] = {-1}\n%shape : i64[2] = shape(%a)\n%b0 : i64[] = gather(%shape, %zero) "
                   "{axis=0}\n%b1 : i64[1] = reshape(%b0)\n%to : i64[2] = concat(%b1, %rest) {axis=0}\n"
                   "%y : i64[b, s2] = reshape(%m, %to)\noutput %y as \"y\"\n");
    assert_int_equal(lathe_value_dim(g, value_of(g, "m"), 0), lathe_value_dim(g, value_of(g, "a"), 0));
    assert_int_not_equal(lathe_value_dim(g, value_of(g, "m"), 1), lathe_value_dim(g, value_of(g, "a"), 1));
    assert_int_equal(g->note_count, 1);
    lathe_graph_free(&g);
}

/* Positions cut from a table bound the length; what follows may count on it, here that 4 - s is not negative. */
static void a_cut_bounds_the_length(void **state) {
    struct lathe_graph *g = graph_from(
        "input %a : f32[b, s]\nconst %p : f32[1, 4] = {1, 2, 3, 4}\nconst %r : f32[8] = {1, 2, 3, 4, 5, 6, 7, 8}\n"
        "const %one : i64[] = {1}\nconst %four : i64[1] = {4}\nconst %at : i64[1] = {0}\n"
        "%shape : i64[2] = shape(%a)\n%c : f32[1, min(s, 4)] = slice(%p) {axes=[1], starts=[0], ends=<min(s, 4)>, "
        "steps=[1]}\n%y : f32[b, s] = add(%a, %c)\n%s0 : i64[] = gather(%shape, %one) {axis=0}\n"
        "%s1 : i64[1] = reshape(%s0)\n%low : i64[1] = sub(%four, %s1)\n%high : i64[1] = add(%four, %s1)\n"
        "%z : f32[2*s] = slice(%r, %low, %high, %at)\noutput %z as \"z\"\n");
    assert_int_equal(lathe_dim_upper(g->dims, lathe_value_dim(g, value_of(g, "a"), 1)), 4);
    assert_int_equal(lathe_value_dim(g, value_of(g, "y"), 1), lathe_value_dim(g, value_of(g, "a"), 1));
    assert_int_equal(g->note_count, 1);
    lathe_graph_free(&g);
}

/* The same without a cut before it: rows of a table around its middle. */
static void a_middle_bounds_the_length(void **state) {
    struct lathe_graph *g =
        graph_from("input %a : f32[b, s]\nconst %r : f32[8] = {1, 2, 3, 4, 5, 6, 7, 8}\n"
                   "const %one : i64[] = {1}\nconst %four : i64[1] = {4}\nconst %at : i64[1] = {0}\n"
                   "%shape : i64[2] = shape(%a)\n%s0 : i64[] = gather(%shape, %one) {axis=0}\n"
                   "%s1 : i64[1] = reshape(%s0)\n%low : i64[1] = sub(%four, %s1)\n%high : i64[1] = add(%four, %s1)\n"
                   "%z : f32[2*s] = slice(%r, %low, %high, %at)\noutput %z as \"z\"\n");
    assert_int_equal(lathe_dim_upper(g->dims, lathe_value_dim(g, value_of(g, "a"), 1)), 4);
    assert_int_equal(g->note_count, 1);
    lathe_graph_free(&g);
}

static void symbols_beside_constants_are_baked(void **state) {
    struct lathe_graph *g = graph_from("input %a : f32[b, s]\nconst %p : f32[1, 4] = {1, 2, 3, 4}\n"
                                       "%y : f32[b, 4] = add(%a, %p) \"positions\"\n");
    assert_int_equal(g->baked_count, 1);
    assert_int_equal(g->baked[0].value, 4);
    assert_int_equal(g->baked[0].input_axis, 1);
    assert_false(g->baked[0].refuse);
    assert_string_equal(g->notes[0].code, "BAKED_AXIS");
    assert_string_equal(g->notes[0].node, "positions");
    lathe_graph_free(&g);
}

/* A Reshape to the traced shape fixes both axes and is marked; equal element counts are no proof. */
static void baked_reshapes(void **state) {
    static struct lathe_diag diag;
    struct lathe_graph *g;
    static const struct {
        const char *input, *shape;
        int baked; /* axes; -1: refused */
    } rows[] = {
        {"f32[b, s, 8]", "i64[4] = {1, 4, 2, 4}", 2},  {"f32[1, 4, 8]", "i64[4] = {1, 4, 2, 4}", 0},
        {"f32[1, 5, 8]", "i64[4] = {1, 4, 2, 4}", -1}, {"f32[2, 2, 8]", "i64[4] = {1, 4, 2, 4}", -1},
        {"f32[2, 4, 8]", "i64[4] = {1, 4, 2, 4}", -1}, {"f32[b, 4, 8]", "i64[4] = {1, 4, 2, 4}", 1},
        {"f32[b, s, 8]", "i64[4] = {-1, 4, 2, 4}", 1}, {"f32[b, s, 8]", "i64[4] = {1, -1, 2, 4}", 1},
        {"f32[b, s, 8]", "i64[4] = {0, 4, 2, 4}", -2}, {"f32[b, s, 7]", "i64[4] = {1, 4, 2, 4}", -1},
        {"f32[b, s, 8]", "i64[2] = {-1, 8}", 0},       {"f32[2, 3, 8]", "i64[4] = {1, 2, 3, 8}", 0},
        {"f32[2, 3, 8]", "i64[2] = {6, 8}", 0},        {"f32[b, 8]", "i64[3] = {1, -1, 8}", 0},
        {"f32[b, s, 8]", "i64[3] = {1, -1, 8}", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        snprintf(text, sizeof text, "input %%x : %s\nconst %%c : %s\n", rows[i].input, rows[i].shape);
        enum lathe_status status = infer(text, LATHE_OP_RESHAPE, "x c", "", &g, &diag);
        if (rows[i].baked < 0) {
            if (status != LATHE_UNSUPPORTED || !strstr(diag.text, "node_y"))
                fail_msg("%s to %s: status %d, %s", rows[i].input, rows[i].shape, status, diag.text);
            if (rows[i].baked == -1)
                assert_non_null(strstr(diag.text, "[1,4,2,4]"));
        } else {
            if (status != LATHE_OK || (int)g->baked_count != rows[i].baked)
                fail_msg("%s to %s: status %d, %u baked, %s", rows[i].input, rows[i].shape, status, g->baked_count,
                         diag.text);
            for (uint32_t k = 0; k < g->baked_count; k++)
                assert_true(g->baked[k].refuse && strstr(g->baked[k].text, "node_y"));
        }
        lathe_graph_free(&g);
    }
}

/* A window that must fit bounds the length from below, through the windows before it too; with padding it always fits,
 * and of two sizes together nothing is known. */
static void a_window_bounds_the_length(void **state) {
    static const struct {
        const char *x, *attrs, *y;
        int64_t least;
    } rows[] = {
        {"[b, 1, s, 4]", "kernel_shape=[10,1] strides=[5,1]", "f32[b,1,floordiv(s,5)-1,4]", 10},
        {"[b, 1, floordiv(s,5), 4]", "kernel_shape=[3,1] strides=[2,1]", "f32[b,1,floordiv(floordiv(s,5)+1,2)-1,4]",
         15},
        {"[b, 1, s, 4]", "kernel_shape=[3,1] dilations=[4,1]", "f32[b,1,s-8,4]", 9},
        {"[b, 1, s, 4]", "kernel_shape=[3,1] pads=[1,0,1,0]", "f32[b,1,s,4]", 1},
        {"[b, 1, mod(s,8), 4]", "kernel_shape=[4,1]", "f32[b,1,max(0,mod(s,8)-4)+1,4]", 4}, /* grows and falls */
        {"[b, 1, s + t, 4]", "kernel_shape=[9,1]", "f32[b,1,max(0,s+t-9)+1,4]", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        static struct lathe_diag diag;
        struct lathe_graph *g;
        snprintf(text, sizeof text, "input %%x : f32%s\ninput %%z : f32[s, t]\n", rows[i].x);
        enum lathe_status status = infer(text, LATHE_OP_MAX_POOL, "x", rows[i].attrs, &g, &diag);
        if (status != LATHE_OK)
            fail_msg("row %zu: %s", i, diag.text);
        describe(g, value_of(g, "y"), text, sizeof text);
        assert_string_equal(text, rows[i].y);
        assert_int_equal(lathe_dim_lower(g->dims, lathe_value_dim(g, value_of(g, "z"), 0)), rows[i].least);
        lathe_graph_free(&g);
    }
}

static void split_becomes_slices(void **state) {
    struct lathe_graph *g = graph_from("input %x : f32[b, s, 7]\n");
    lathe_value_id x = value_of(g, "x"), out[3];
    for (int i = 0; i < 3; i++)
        out[i] = lathe_graph_add_value(g, "part", LATHE_NO_DTYPE, -1, NULL);
    out[1] = LATHE_NONE;
    lathe_node_id n = lathe_graph_add_node(g, LATHE_NONE, LATHE_OP_SPLIT, "split", "Split", &x, 1, out, 3);
    lathe_node_set_int(g, n, LATHE_ATTR_AXIS, -1);
    lathe_graph_add_output(g, out[2], "last");
    static struct lathe_diag diag;
    lathe_diag_reset(&diag);
    assert_int_equal(lathe_shape_infer(g, &diag), LATHE_OK);
    assert_int_equal(g->nodes[n].op, LATHE_OP_NONE);
    int64_t size;
    assert_true(lathe_value_dim_is(g, out[0], 2, &size) && size == 3);
    assert_true(lathe_value_dim_is(g, out[2], 2, &size) && size == 1);
    assert_int_equal(lathe_graph_check(g, &diag), LATHE_OK);
    lathe_graph_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results),
        cmocka_unit_test(axes_are_unified),
        cmocka_unit_test(a_cut_bounds_the_length),
        cmocka_unit_test(symbols_beside_constants_are_baked),
        cmocka_unit_test(baked_reshapes),
        cmocka_unit_test(a_middle_bounds_the_length),
        cmocka_unit_test(a_window_bounds_the_length),
        cmocka_unit_test(split_becomes_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
