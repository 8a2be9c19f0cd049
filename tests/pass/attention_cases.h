/* Attention in many spellings, as graphs in text form: what must fuse, with the attributes and operands that it must
 * give, and look-alikes that must not. */
#ifndef LATHE_TEST_ATTENTION_CASES_H
#define LATHE_TEST_ATTENTION_CASES_H

#include "ops_enums.h"

/* ---- fragments; B, S symbols, 4 heads of 16 */
#define QKV                                                                                                            \
    "input %q : f32[B, S, 64]\n"                                                                                       \
    "input %k : f32[B, S, 64]\n"                                                                                       \
    "input %v : f32[B, S, 64]\n"
#define HEADS                                                                                                          \
    "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"                                                                           \
    "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"                                                    \
    "%k4 : f32[B, S, 4, 16] = reshape(%k)\n"                                                                           \
    "%kt : f32[B, 4, 16, S] = transpose(%k4) {perm=[0, 2, 3, 1]}\n"                                                    \
    "%v4 : f32[B, S, 4, 16] = reshape(%v)\n"                                                                           \
    "%vt : f32[B, 4, S, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n"
#define SCORES "%s : f32[B, 4, S, S] = matmul(%qt, %kt)\n"
#define SCALE                                                                                                          \
    "const %quarter : f32[] = {0.25}\n"                                                                                \
    "%ss : f32[B, 4, S, S] = mul(%s, %quarter)\n"
/* from %ss plain to %y */
#define PLAIN_TAIL(scores)                                                                                             \
    "%p : f32[B, 4, S, S] = softmax(%" scores ") {axis=3}\n"                                                           \
    "%o : f32[B, 4, S, 16] = matmul(%p, %vt)\n"                                                                        \
    "%ot : f32[B, S, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"                                                     \
    "%y : f32[B, S, 64] = reshape(%ot)\n"                                                                              \
    "output %y as \"y\"\n"
#define GUARD_TAIL(scores)                                                                                             \
    "const %nought : f32[] = {0}\n"                                                                                    \
    "%p : f32[B, 4, S, S] = softmax(%" scores ") {axis=3}\n"                                                           \
    "%nan : bool[B, 4, S, S] = isnan(%p)\n"                                                                            \
    "%pg : f32[B, 4, S, S] = where(%nan, %nought, %p)\n"                                                               \
    "%o : f32[B, 4, S, 16] = matmul(%pg, %vt)\n"                                                                       \
    "%ot : f32[B, S, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"                                                     \
    "%y : f32[B, S, 64] = reshape(%ot)\n"                                                                              \
    "output %y as \"y\"\n"
#define MASK_INPUT "input %m : i64[B, S]\n"
/* (1 - m) * c added, the legacy form */
#define LEGACY_MASK(c)                                                                                                 \
    "const %one : f32[] = {1}\n"                                                                                       \
    "const %c : f32[] = {" c "}\n"                                                                                     \
    "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"                                                                            \
    "%mf : f32[B, 1, 1, S] = cast(%m4) {to=1}\n"                                                                       \
    "%im : f32[B, 1, 1, S] = sub(%one, %mf)\n"                                                                         \
    "%am : f32[B, 1, 1, S] = mul(%im, %c)\n"                                                                           \
    "%sm : f32[B, 4, S, S] = add(%ss, %am)\n"
/* transformers 5, TorchScript: ranges, Flatten and Gather of b * S + k, Expand */
#define RANGES                                                                                                         \
    "%rb : i64[B] = range() {start=0, delta=1}\n"                                                                      \
    "%rs : i64[S] = range() {start=0, delta=1}\n"                                                                      \
    "%b4 : i64[B, 1, 1, 1] = reshape(%rb)\n"                                                                           \
    "%qi : i64[1, 1, S, 1] = reshape(%rs)\n"                                                                           \
    "%ki : i64[1, 1, 1, S] = reshape(%rs)\n"                                                                           \
    "const %zero : i64[] = {0}\n"                                                                                      \
    "const %true : bool[] = {1}\n"                                                                                     \
    "%ge : bool[1, 1, S, 1] = greater_equal(%qi, %zero)\n"                                                             \
    "%gt : bool[1, 1, S, 1] = and(%true, %ge)\n"
#define FLAT_MASK                                                                                                      \
    "%mb : bool[B, S] = cast(%m) {to=9}\n"                                                                             \
    "%fm : bool[B*S, 1] = reshape(%mb)\n"                                                                              \
    "%len : i64[1] = dims_tensor() {values=<S>}\n"                                                                     \
    "%bs : i64[B, 1, 1, 1] = mul(%b4, %len)\n"                                                                         \
    "%at : i64[B, 1, 1, S] = add(%ki, %bs)\n"                                                                          \
    "%gm : bool[B, 1, 1, S, 1] = gather(%fm, %at) {axis=0}\n"                                                          \
    "%g1 : bool[B*S] = reshape(%gm)\n"                                                                                 \
    "%g4 : bool[B, 1, 1, S] = reshape(%g1)\n"
#define HALF_INF_MASK(cond, fill)                                                                                      \
    "const %f0 : f32[1] = {0}\n"                                                                                       \
    "const %fi : f32[1] = {" fill "}\n"                                                                                \
    "%am : f32[B, 1, S, S] = where(%" cond ", %f0, %fi)\n"                                                             \
    "%sm : f32[B, 4, S, S] = add(%ss, %am)\n"

#define KEY_INF_MASK(cond)                                                                                             \
    "const %f0 : f32[1] = {0}\n"                                                                                       \
    "const %fi : f32[1] = {-inf}\n"                                                                                    \
    "%am : f32[B, 1, 1, S] = where(%" cond ", %f0, %fi)\n"                                                             \
    "%sm : f32[B, 4, S, S] = add(%ss, %am)\n"
/* from the weights %pz to %y */
#define ZEROED_TAIL                                                                                                    \
    "%o : f32[B, 4, S, 16] = matmul(%pz, %vt)\n"                                                                       \
    "%ot : f32[B, S, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"                                                     \
    "%y : f32[B, S, 64] = reshape(%ot)\n"                                                                              \
    "output %y as \"y\"\n"

struct expected {
    const char *name, *text;
    int count; /* of attention nodes */
    /* of the first one */
    int heads, kv_heads, head_dim, v_head_dim;
    double scale;
    int masked_row;
    int causal, window;
    const char *q, *k, *v; /* operand names; NULL: any */
    int q_offset, k_offset, v_offset;
    const char *keys;    /* NULL: none */
    const char *mask;    /* "" any, NULL: none */
    const char *missed;  /* a part of the near miss; NULL: none is expected */
    const char *warning; /* NULL: none */
};

#define FOUND    .count = 1, .heads = 4, .kv_heads = 4, .head_dim = 16, .v_head_dim = 16, .window = -1
#define IN_PLACE FOUND, .scale = 0.25, .q = "q", .k = "k", .v = "v"

static const struct expected attention_cases[] = {
    {"plain", QKV HEADS SCORES SCALE PLAIN_TAIL("ss"), IN_PLACE},
    {"div", QKV HEADS SCORES "const %four : f32[] = {4}\n%ss : f32[B, 4, S, S] = div(%s, %four)\n" PLAIN_TAIL("ss"),
     IN_PLACE},
    {"no scale", QKV HEADS SCORES PLAIN_TAIL("s"), FOUND, .scale = 1, .q = "q", .k = "k", .v = "v"},
    {"scale on both sides",
     QKV HEADS "const %h : f32[] = {0.5}\n"
               "%qh : f32[B, 4, S, 16] = mul(%qt, %h)\n"
               "%kh : f32[B, 4, 16, S] = mul(%h, %kt)\n"
               "%s : f32[B, 4, S, S] = matmul(%qh, %kh)\n" PLAIN_TAIL("s"),
     IN_PLACE},
    {"transposed flags",
     QKV HEADS "%k5 : f32[B, 4, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
               "%s : f32[B, 4, S, S] = matmul(%qt, %k5) {trans_b=1}\n" SCALE PLAIN_TAIL("ss"),
     IN_PLACE},
    {"dynamo key path",
     QKV "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
         "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
         "%k4 : f32[B, S, 4, 16] = reshape(%k)\n"
         "%k5 : f32[B, 4, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
         "%k6 : f32[4*B, S, 16] = reshape(%k5)\n"
         "%k7 : f32[4*B, 16, S] = transpose(%k6) {perm=[0, 2, 1]}\n"
         "%kt : f32[B, 4, 16, S] = reshape(%k7)\n"
         "%v4 : f32[B, S, 4, 16] = reshape(%v)\n"
         "%vt : f32[B, 4, S, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n" SCORES SCALE GUARD_TAIL("ss"),
     IN_PLACE, .masked_row = LATHE_MASKED_ZERO},
    {"flat gemm rows",
     "input %q : f32[B*S, 64]\ninput %k : f32[B*S, 64]\ninput %v : f32[B*S, 64]\n" HEADS SCORES SCALE PLAIN_TAIL("ss"),
     FOUND, .scale = 0.25, .q = "q/view"},
    {"packed, split on axis 2",
     "input %x : f32[B, S, 192]\n"
     "%x5 : f32[B, S, 3, 4, 16] = reshape(%x)\n"
     "%q5 : f32[B, S, 1, 4, 16] = slice(%x5) {axes=[2], starts=[0], ends=[1], steps=[1]}\n"
     "%k5 : f32[B, S, 1, 4, 16] = slice(%x5) {axes=[2], starts=[1], ends=[2], steps=[1]}\n"
     "%v5 : f32[B, S, 1, 4, 16] = slice(%x5) {axes=[2], starts=[2], ends=[3], steps=[1]}\n"
     "%q : f32[B, S, 4, 16] = reshape(%q5)\n"
     "%k : f32[B, S, 4, 16] = reshape(%k5)\n"
     "%v : f32[B, S, 4, 16] = reshape(%v5)\n"
     "%qt : f32[B, 4, S, 16] = transpose(%q) {perm=[0, 2, 1, 3]}\n"
     "%kt : f32[B, 4, 16, S] = transpose(%k) {perm=[0, 2, 3, 1]}\n"
     "%vt : f32[B, 4, S, 16] = transpose(%v) {perm=[0, 2, 1, 3]}\n" SCORES SCALE PLAIN_TAIL("ss"),
     FOUND, .scale = 0.25, .q = "x", .k = "x", .v = "x", .q_offset = 0, .k_offset = 64, .v_offset = 128},
    {"heads folded into the batch",
     QKV "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
         "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
         "%q3 : f32[4*B, S, 16] = reshape(%qt)\n"
         "%k4 : f32[B, S, 4, 16] = reshape(%k)\n"
         "%k5 : f32[B, 4, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
         "%k3 : f32[4*B, S, 16] = reshape(%k5)\n"
         "%kt : f32[4*B, 16, S] = transpose(%k3) {perm=[0, 2, 1]}\n"
         "%v4 : f32[B, S, 4, 16] = reshape(%v)\n"
         "%vt : f32[B, 4, S, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n"
         "%v3 : f32[4*B, S, 16] = reshape(%vt)\n"
         "const %quarter : f32[] = {0.25}\n"
         "%s : f32[4*B, S, S] = matmul(%q3, %kt)\n"
         "%ss : f32[4*B, S, S] = mul(%s, %quarter)\n"
         "%p : f32[4*B, S, S] = softmax(%ss) {axis=2}\n"
         "%o3 : f32[4*B, S, 16] = matmul(%p, %v3)\n"
         "%o : f32[B, 4, S, 16] = reshape(%o3)\n"
         "%ot : f32[B, S, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"
         "%y : f32[B, S, 64] = reshape(%ot)\n"
         "output %y as \"y\"\n",
     IN_PLACE},
    {"no heads at all",
     "input %q : f32[B, S, 8]\ninput %kt : f32[B, 8, S]\ninput %v : f32[B, S, 8]\n"
     "%s : f32[B, S, S] = matmul(%q, %kt)\n"
     "%p : f32[B, S, S] = softmax(%s) {axis=2}\n"
     "%y : f32[B, S, 8] = matmul(%p, %v)\n"
     "output %y as \"y\"\noutput %p as \"p\"\n",
     .count = 1, .heads = 1, .kv_heads = 1, .head_dim = 8, .v_head_dim = 8, .window = -1, .scale = 1, .q = "q",
     .v = "v"},
    {"grouped keys",
     "input %q : f32[B, S, 64]\ninput %k : f32[B, S, 32]\ninput %v : f32[B, S, 32]\n"
     "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%k4 : f32[B, S, 2, 16] = reshape(%k)\n"
     "%k5 : f32[B, 2, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
     "%k6 : f32[B, 2, 1, S, 16] = reshape(%k5)\n"
     "%k7 : f32[B, 2, 2, S, 16] = expand(%k6)\n"
     "%k8 : f32[B, 4, S, 16] = reshape(%k7)\n"
     "%kt : f32[B, 4, 16, S] = transpose(%k8) {perm=[0, 1, 3, 2]}\n"
     "%v4 : f32[B, S, 2, 16] = reshape(%v)\n"
     "%v5 : f32[B, 2, S, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n"
     "%v6 : f32[B, 2, 1, S, 16] = reshape(%v5)\n"
     "%v7 : f32[B, 2, 2, S, 16] = expand(%v6)\n"
     "%vt : f32[B, 4, S, 16] = reshape(%v7)\n" SCORES SCALE PLAIN_TAIL("ss"),
     .count = 1, .heads = 4, .kv_heads = 2, .head_dim = 16, .v_head_dim = 16, .window = -1, .scale = 0.25, .q = "q",
     .k = "k", .v = "v"},
    {"computed queries are put in order",
     QKV "input %bias : f32[4, 1, 16]\n" HEADS "%qb : f32[B, 4, S, 16] = add(%qt, %bias)\n"
         "%s : f32[B, 4, S, S] = matmul(%qb, %kt)\n" SCALE PLAIN_TAIL("ss"),
     FOUND, .scale = 0.25, .k = "k", .v = "v"},

    /* masks */
    {"legacy mask", QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-10000") PLAIN_TAIL("sm"), IN_PLACE, .keys = "m",
     .masked_row = LATHE_MASKED_SOFTMAX},
    {"legacy mask, finfo.min",
     QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-3.4028234663852886e+38") PLAIN_TAIL("sm"), IN_PLACE, .keys = "m",
     .masked_row = LATHE_MASKED_UNIFORM},
    {"legacy mask, finfo.min of f16 in f32", QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-65504") PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_SOFTMAX},
    {"mask is added before the scale",
     QKV MASK_INPUT HEADS "const %quarter : f32[] = {0.25}\n%ss : f32[B, 4, S, S] = matmul(%qt, %kt)\n" LEGACY_MASK(
         "-1e9") "%sx : f32[B, 4, S, S] = mul(%sm, %quarter)\n" PLAIN_TAIL("sx"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"inverted mask filled where it is not 0",
     QKV MASK_INPUT HEADS SCORES SCALE "const %one : f32[] = {1}\n"
                                       "const %min : f32[] = {-3.4028234663852886e+38}\n"
                                       "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mx : i64[B, 1, S, S] = expand(%m4)\n"
                                       "%mf : f32[B, 1, S, S] = cast(%mx) {to=1}\n"
                                       "%im : f32[B, 1, S, S] = sub(%one, %mf)\n"
                                       "%ib : bool[B, 1, S, S] = cast(%im) {to=9}\n"
                                       "%am : f32[B, 1, S, S] = where(%ib, %min, %im)\n"
                                       "%sm : f32[B, 4, S, S] = add(%ss, %am)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"masked_fill of the scores",
     QKV MASK_INPUT HEADS SCORES SCALE "const %z : i64[] = {0}\n"
                                       "const %ninf : f32[] = {-inf}\n"
                                       "%e : bool[B, S] = equal(%m, %z)\n"
                                       "%e4 : bool[B, 1, 1, S] = reshape(%e)\n"
                                       "%ex : bool[B, 4, S, S] = expand(%e4)\n"
                                       "%sm : f32[B, 4, S, S] = where(%ex, %ninf, %ss)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_FLAG, .warning = "MASK_INF"},
    {"masked_fill of the scores, weights wanted too",
     QKV MASK_INPUT HEADS SCORES SCALE
     "const %z : i64[] = {0}\n"
     "const %ninf : f32[] = {-inf}\n"
     "%e : bool[B, S] = equal(%m, %z)\n"
     "%e4 : bool[B, 1, 1, S] = reshape(%e)\n"
     "%ex : bool[B, 4, S, S] = expand(%e4)\n"
     "%sm : f32[B, 4, S, S] = where(%ex, %ninf, %ss)\n" PLAIN_TAIL("sm") "output %p as \"p\"\n",
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_FLAG, .warning = "MASK_INF"},
    {"transformers 5, TorchScript, sdpa",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES FLAT_MASK
     "%all : bool[B, 1, S, S] = and(%gt, %g4)\n"
     "%ax : bool[B, 1, S, S] = expand(%all)\n" HALF_INF_MASK("ax", "-inf") GUARD_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_ZERO},
    {"transformers 5, TorchScript, eager",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES FLAT_MASK
     "%all : bool[B, 1, S, S] = and(%gt, %g4)\n" HALF_INF_MASK("all", "-3.4028234663852886e+38") PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"transformers 5, dynamo: GatherND",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES
     "%mb : bool[B, S] = cast(%m) {to=9}\n"
     "%xb : i64[B, 1, 1, S] = expand(%b4)\n"
     "%xb5 : i64[B, 1, 1, S, 1] = reshape(%xb)\n"
     "%xk : i64[B, 1, 1, S] = expand(%ki)\n"
     "%xk5 : i64[B, 1, 1, S, 1] = reshape(%xk)\n"
     "%ix : i64[B, 1, 1, S, 2] = concat(%xb5, %xk5) {axis=4}\n"
     "%gm : bool[B, 1, 1, S] = gather_nd(%mb, %ix) {batch_dims=0}\n"
     "%all : bool[B, 1, S, S] = and(%gt, %gm)\n" HALF_INF_MASK("all", "-3.4028234663852886e+38") GUARD_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"causal and key mask",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES FLAT_MASK
     "%le : bool[1, 1, S, S] = less_equal(%ki, %qi)\n"
     "%all : bool[B, 1, S, S] = and(%le, %g4)\n" HALF_INF_MASK("all", "-3.4028234663852886e+38") PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .causal = 1, .masked_row = LATHE_MASKED_UNIFORM},
    {"sliding window and key mask",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES FLAT_MASK
     "const %w : i64[] = {1}\n"
     "%d : i64[1, 1, S, S] = sub(%qi, %ki)\n"
     "%da : i64[1, 1, S, S] = abs(%d)\n"
     "%near : bool[1, 1, S, S] = less_equal(%da, %w)\n"
     "%all : bool[B, 1, S, S] = and(%near, %g4)\n" HALF_INF_MASK("all", "-inf") GUARD_TAIL("sm"),
     .count = 1, .heads = 4, .kv_heads = 4, .head_dim = 16, .v_head_dim = 16, .scale = 0.25, .q = "q", .keys = "m",
     .window = 1, .masked_row = LATHE_MASKED_ZERO},
    {"stored causal mask",
     "input %q : f32[B, 4, 64]\ninput %k : f32[B, 4, 64]\ninput %v : f32[B, 4, 64]\n"
     "%q4 : f32[B, 4, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, 4, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%k4 : f32[B, 4, 4, 16] = reshape(%k)\n"
     "%kt : f32[B, 4, 16, 4] = transpose(%k4) {perm=[0, 2, 3, 1]}\n"
     "%v4 : f32[B, 4, 4, 16] = reshape(%v)\n"
     "%vt : f32[B, 4, 4, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n"
     "%s : f32[B, 4, 4, 4] = matmul(%qt, %kt)\n"
     "const %tri : bool[1, 1, 5, 5] = {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1}\n"
     "const %min : f32[] = {-10000}\n"
     "%t : bool[1, 1, 4, 4] = slice(%tri) {axes=[2, 3], starts=[0, 0], ends=[4, 4], steps=[1, 1]}\n"
     "%sm : f32[B, 4, 4, 4] = where(%t, %s, %min)\n"
     "%p : f32[B, 4, 4, 4] = softmax(%sm) {axis=3}\n"
     "%o : f32[B, 4, 4, 16] = matmul(%p, %vt)\n"
     "%ot : f32[B, 4, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"
     "%y : f32[B, 4, 64] = reshape(%ot)\n"
     "output %y as \"y\"\n",
     FOUND, .scale = 1, .q = "q", .k = "k", .v = "v", .causal = 1, .masked_row = LATHE_MASKED_UNIFORM},
    {"triangle of -inf",
     QKV HEADS SCORES SCALE "const %ninf : f32[] = {-inf}\n"
                            "%f : f32[S, S] = fill(_, %ninf)\n"
                            "%t : f32[S, S] = trilu(%f) {upper=1, k=1}\n"
                            "%sm : f32[B, 4, S, S] = add(%ss, %t)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .causal = 1, .masked_row = LATHE_MASKED_FLAG, .warning = "MASK_INF"},
    {"queries masked too",
     QKV MASK_INPUT HEADS SCORES SCALE "const %min : f32[] = {-3.4028234663852886e+38}\n"
                                       "%mk : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mq : i64[B, 1, S, 1] = reshape(%m)\n"
                                       "%mm : i64[B, 1, S, S] = mul(%mk, %mq)\n"
                                       "%mb : bool[B, 1, S, S] = cast(%mm) {to=9}\n"
                                       "%mn : bool[B, 1, S, S] = not(%mb)\n"
                                       "%sm : f32[B, 4, S, S] = where(%mn, %min, %ss)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .mask = "", .masked_row = LATHE_MASKED_UNIFORM},
    {"relative bias beside a mask",
     QKV MASK_INPUT "input %rel : f32[1, 4, S, S]\n" HEADS SCORES SCALE "%sr : f32[B, 4, S, S] = add(%ss, %rel)\n"
                    "const %one : f32[] = {1}\n"
                    "const %c : f32[] = {-3.4028234663852886e+38}\n"
                    "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                    "%mf : f32[B, 1, 1, S] = cast(%m4) {to=1}\n"
                    "%im : f32[B, 1, 1, S] = sub(%one, %mf)\n"
                    "%am : f32[B, 1, 1, S] = mul(%im, %c)\n"
                    "%sm : f32[B, 4, S, S] = add(%am, %sr)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .mask = "rel", .masked_row = LATHE_MASKED_UNIFORM},
    {"bias and mask summed first",
     QKV MASK_INPUT "input %rel : f32[1, 4, S, S]\n" HEADS SCORES SCALE "const %one : f32[] = {1}\n"
                    "const %c : f32[] = {-3.4028234663852886e+38}\n"
                    "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                    "%mf : f32[B, 1, 1, S] = cast(%m4) {to=1}\n"
                    "%im : f32[B, 1, 1, S] = sub(%one, %mf)\n"
                    "%am : f32[B, 1, 1, S] = mul(%im, %c)\n"
                    "%rm : f32[B, 4, S, S] = add(%rel, %am)\n"
                    "%sm : f32[B, 4, S, S] = add(%ss, %rm)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .mask = "rel", .masked_row = LATHE_MASKED_UNIFORM},
    {"a mask of its own shape",
     QKV "input %any : bool[B, 1, S, S]\n" HEADS SCORES SCALE HALF_INF_MASK("any", "-inf") GUARD_TAIL("sm"), IN_PLACE,
     .mask = "any", .masked_row = LATHE_MASKED_ZERO},
    {"small fill stays a bias", QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-5") PLAIN_TAIL("sm"), IN_PLACE,
     .mask = "", .masked_row = LATHE_MASKED_FLAG},
    {"keys from ids: not(equal(ids, pad))",
     QKV MASK_INPUT HEADS SCORES SCALE "const %pad : i64[] = {1}\n"
                                       "%e : bool[B, S] = equal(%m, %pad)\n"
                                       "%ne : bool[B, S] = not(%e)\n"
                                       "%e4 : bool[B, 1, 1, S] = reshape(%ne)\n" KEY_INF_MASK("e4") GUARD_TAIL("sm"),
     IN_PLACE, .keys = "e/not", .masked_row = LATHE_MASKED_ZERO},
    {"keys by greater than 0",
     QKV MASK_INPUT HEADS SCORES SCALE "const %zero : i64[] = {0}\n"
                                       "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%e4 : bool[B, 1, 1, S] = greater(%m4, %zero)\n" KEY_INF_MASK("e4")
                                           GUARD_TAIL("sm"),
     IN_PLACE, .keys = "e4/view", .masked_row = LATHE_MASKED_ZERO},
    {"weights zeroed by the same mask",
     QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK(
         "-3.4028234663852886e+38") "%p : f32[B, 4, S, S] = softmax(%sm) {axis=3}\n"
                                    "%mb : bool[B, 1, 1, S] = cast(%m4) {to=9}\n"
                                    "%mn : bool[B, 1, 1, S] = not(%mb)\n"
                                    "const %nought : f32[] = {0}\n"
                                    "%pz : f32[B, 4, S, S] = where(%mn, %nought, %p)\n" ZEROED_TAIL,
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_ZERO},
    {"weights times the same mask",
     QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-10000") "%p : f32[B, 4, S, S] = softmax(%sm) {axis=3}\n"
                                                             "%pz : f32[B, 4, S, S] = mul(%mf, %p)\n" ZEROED_TAIL,
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_ZERO},
    {"scores less their maximum",
     QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK(
         "-3.4028234663852886e+38") "%x : f32[B, 4, S, 1] = reduce_max(%sm) {axes=[3], keepdims=1}\n"
                                    "%sd : f32[B, 4, S, S] = sub(%sm, %x)\n" PLAIN_TAIL("sd"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"sequence first, heads in the batch",
     "input %x : f32[S, B, 64]\ninput %w : f32[S, B, 64]\ninput %v : f32[S, B, 64]\n"
     "%q3 : f32[S, 4*B, 16] = reshape(%x)\n"
     "%qt : f32[4*B, S, 16] = transpose(%q3) {perm=[1, 0, 2]}\n"
     "%k3 : f32[S, 4*B, 16] = reshape(%w)\n"
     "%kt : f32[4*B, 16, S] = transpose(%k3) {perm=[1, 2, 0]}\n"
     "%v3 : f32[S, 4*B, 16] = reshape(%v)\n"
     "%vt : f32[4*B, S, 16] = transpose(%v3) {perm=[1, 0, 2]}\n"
     "const %quarter : f32[] = {0.25}\n"
     "%qs : f32[4*B, S, 16] = mul(%qt, %quarter)\n"
     "%s : f32[4*B, S, S] = matmul(%qs, %kt)\n"
     "%p : f32[4*B, S, S] = softmax(%s) {axis=2}\n"
     "%o : f32[4*B, S, 16] = matmul(%p, %vt)\n"
     "%ot : f32[S, 4*B, 16] = transpose(%o) {perm=[1, 0, 2]}\n"
     "%y : f32[B*S, 64] = reshape(%ot)\n"
     "output %y as \"y\"\n",
     FOUND, .scale = 0.25},
    {"one key head for all",
     "input %q : f32[B, S, 64]\ninput %k : f32[B, S, 16]\ninput %v : f32[B, S, 16]\n"
     "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%k4 : f32[B, 1, S, 16] = reshape(%k)\n"
     "%kt : f32[B, 1, 16, S] = transpose(%k4) {perm=[0, 1, 3, 2]}\n"
     "%vt : f32[B, 1, S, 16] = reshape(%v)\n" SCORES SCALE PLAIN_TAIL("ss"),
     .count = 1, .heads = 4, .kv_heads = 1, .head_dim = 16, .v_head_dim = 16, .window = -1, .scale = 0.25, .q = "q",
     .k = "k", .v = "v"},
    {"output with the heads apart",
     QKV HEADS SCORES SCALE "%p : f32[B, 4, S, S] = softmax(%ss) {axis=3}\n"
                            "%o : f32[B, 4, S, 16] = matmul(%p, %vt)\n"
                            "%y : f32[B, 4, S, 16] = relu(%o)\noutput %y as \"y\"\noutput %o as \"z\"\n",
     IN_PLACE},
    {"soft cap",
     QKV MASK_INPUT HEADS SCORES SCALE "const %cap : f32[] = {30}\n"
                                       "%sd : f32[B, 4, S, S] = div(%ss, %cap)\n"
                                       "%st : f32[B, 4, S, S] = tanh(%sd)\n"
                                       "%sc : f32[B, 4, S, S] = mul(%st, %cap)\n" PLAIN_TAIL("sc"),
     IN_PLACE},
    {"sdpa with a bool mask",
     QKV MASK_INPUT "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
                    "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
                    "%k4 : f32[B, S, 4, 16] = reshape(%k)\n"
                    "%kt : f32[B, 4, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
                    "%v4 : f32[B, S, 4, 16] = reshape(%v)\n"
                    "%vt : f32[B, 4, S, 16] = transpose(%v4) {perm=[0, 2, 1, 3]}\n" RANGES FLAT_MASK
                    "%all : bool[B, 1, S, S] = and(%gt, %g4)\n"
                    "%o : f32[B, 4, S, 16] = sdpa(%qt, %kt, %vt, %all) {scale=0.25}\n"
                    "%ot : f32[B, S, 4, 16] = transpose(%o) {perm=[0, 2, 1, 3]}\n"
                    "%y : f32[B, S, 64] = reshape(%ot)\n"
                    "output %y as \"y\"\n",
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_ZERO},
    {"another length of keys, another width of values",
     "input %q : f32[B, T, 64]\ninput %k : f32[B, S, 64]\ninput %v : f32[B, S, 32]\n"
     "%q4 : f32[B, T, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, T, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%k4 : f32[B, S, 4, 16] = reshape(%k)\n"
     "%kt : f32[B, 4, 16, S] = transpose(%k4) {perm=[0, 2, 3, 1]}\n"
     "%v4 : f32[B, S, 4, 8] = reshape(%v)\n"
     "%vt : f32[B, 4, S, 8] = transpose(%v4) {perm=[0, 2, 1, 3]}\n"
     "%s : f32[B, 4, T, S] = matmul(%qt, %kt)\n"
     "%p : f32[B, 4, T, S] = softmax(%s) {axis=3}\n"
     "%o : f32[B, 4, T, 8] = matmul(%p, %vt)\n"
     "%ot : f32[B, T, 4, 8] = transpose(%o) {perm=[0, 2, 1, 3]}\n"
     "%y : f32[B, T, 32] = reshape(%ot)\n"
     "output %y as \"y\"\n",
     .count = 1, .heads = 4, .kv_heads = 4, .head_dim = 16, .v_head_dim = 8, .window = -1, .scale = 1, .q = "q",
     .k = "k", .v = "v"},
    {"matrices without batch and heads",
     "input %q : f32[T, 8]\ninput %k : f32[S, 8]\ninput %v : f32[S, 6]\n"
     "%kt : f32[8, S] = transpose(%k) {perm=[1, 0]}\n"
     "%s : f32[T, S] = matmul(%q, %kt)\n"
     "%p : f32[T, S] = softmax(%s) {axis=1}\n"
     "%y : f32[T, 6] = matmul(%p, %v)\n"
     "output %y as \"y\"\n",
     .count = 1, .heads = 1, .kv_heads = 1, .head_dim = 8, .v_head_dim = 6, .window = -1, .scale = 1, .q = "q/view"},
    {"heads as the first axis of batch 1",
     "input %q : f32[1, S, 64]\ninput %k : f32[1, S, 64]\ninput %v : f32[1, S, 64]\n"
     "%q4 : f32[S, 4, 16] = reshape(%q)\n"
     "%qt : f32[4, S, 16] = transpose(%q4) {perm=[1, 0, 2]}\n"
     "%k4 : f32[S, 4, 16] = reshape(%k)\n"
     "%kt : f32[4, 16, S] = transpose(%k4) {perm=[1, 2, 0]}\n"
     "%v4 : f32[S, 4, 16] = reshape(%v)\n"
     "%vt : f32[4, S, 16] = transpose(%v4) {perm=[1, 0, 2]}\n"
     "%s : f32[4, S, S] = matmul(%qt, %kt)\n"
     "%p : f32[4, S, S] = softmax(%s) {axis=2}\n"
     "%o : f32[4, S, 16] = matmul(%p, %vt)\n"
     "%ot : f32[S, 4, 16] = transpose(%o) {perm=[1, 0, 2]}\n"
     "%y : f32[1, S, 64] = reshape(%ot)\n"
     "output %y as \"y\"\n",
     FOUND, .scale = 1, .q = "q", .k = "k", .v = "v"},
    {"keys by queries, transposed",
     QKV HEADS "%kk : f32[B, 4, S, 16] = transpose(%k4) {perm=[0, 2, 1, 3]}\n"
               "%qq : f32[B, 4, 16, S] = transpose(%q4) {perm=[0, 2, 3, 1]}\n"
               "%st : f32[B, 4, S, S] = matmul(%kk, %qq)\n"
               "%s : f32[B, 4, S, S] = transpose(%st) {perm=[0, 1, 3, 2]}\n" SCALE PLAIN_TAIL("ss"),
     IN_PLACE},
    {"one-sided window stays a mask",
     QKV MASK_INPUT HEADS SCORES SCALE RANGES FLAT_MASK
     "const %w : i64[] = {1}\n"
     "%d : i64[1, 1, S, S] = sub(%qi, %ki)\n"
     "%near : bool[1, 1, S, S] = less_equal(%d, %w)\n"
     "%all : bool[B, 1, S, S] = and(%near, %g4)\n" HALF_INF_MASK("all", "-inf") GUARD_TAIL("sm"),
     IN_PLACE, .mask = "am", .masked_row = LATHE_MASKED_ZERO},
    {"window and order in two masks",
     QKV HEADS SCORES SCALE RANGES "const %ninf : f32[] = {-inf}\n"
                                   "const %f0 : f32[] = {0}\n"
                                   "const %w : i64[] = {2}\n"
                                   "%d : i64[1, 1, S, S] = sub(%qi, %ki)\n"
                                   "%near : bool[1, 1, S, S] = less_equal(%d, %w)\n"
                                   "%le : bool[1, 1, S, S] = greater_equal(%qi, %ki)\n"
                                   "%a1 : f32[1, 1, S, S] = where(%le, %f0, %ninf)\n"
                                   "%s1 : f32[B, 4, S, S] = add(%ss, %a1)\n"
                                   "%s2 : f32[B, 4, S, S] = where(%near, %s1, %ninf)\n" PLAIN_TAIL("s2"),
     .count = 1, .heads = 4, .kv_heads = 4, .head_dim = 16, .v_head_dim = 16, .scale = 0.25, .q = "q", .causal = 1,
     .window = 2, .masked_row = LATHE_MASKED_FLAG, .warning = "MASK_INF"},
    {"a bias, a plane and keys",
     QKV MASK_INPUT "input %rel : f32[4, S, S]\ninput %pl : bool[B, S, S]\n" HEADS SCORES SCALE LEGACY_MASK(
         "-1e30") "%s1 : f32[B, 4, S, S] = add(%rel, %sm)\n"
                  "%p4 : bool[B, 1, S, S] = reshape(%pl)\n"
                  "const %min : f32[] = {-1e30}\n"
                  "%s2 : f32[B, 4, S, S] = where(%p4, %s1, %min)\n" PLAIN_TAIL("s2"),
     IN_PLACE, .keys = "m", .mask = "rel/where", .masked_row = LATHE_MASKED_UNIFORM},
    {"a bias that a mask of keys selects, and a number that swallows the scores",
     QKV MASK_INPUT "input %rel : f32[1, 4, S, S]\nconst %min : f32[] = {-3.4e38}\n"
                    "%mb : bool[B, S] = cast(%m) {to=9}\n%m4 : bool[B, 1, 1, S] = reshape(%mb)\n"
                    "%am : f32[B, 4, S, S] = where(%m4, %rel, %min)\n" HEADS SCORES SCALE
                    "%sm : f32[B, 4, S, S] = add(%ss, %am)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .mask = "rel", .masked_row = LATHE_MASKED_UNIFORM},
    {"a bias that a mask of keys selects, and a number that scores can outweigh",
     QKV MASK_INPUT "input %rel : f32[1, 4, S, S]\nconst %min : f32[] = {-10000}\n"
                    "%mb : bool[B, S] = cast(%m) {to=9}\n%m4 : bool[B, 1, 1, S] = reshape(%mb)\n"
                    "%am : f32[B, 4, S, S] = where(%m4, %rel, %min)\n" HEADS SCORES SCALE
                    "%sm : f32[B, 4, S, S] = add(%ss, %am)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .mask = "am", .masked_row = LATHE_MASKED_FLAG},
    {"soft cap and mask",
     QKV MASK_INPUT HEADS SCORES "const %cap : f32[] = {30}\n"
                                 "const %s120 : f32[] = {120}\n"
                                 "%sd : f32[B, 4, S, S] = div(%s, %s120)\n"
                                 "%st : f32[B, 4, S, S] = tanh(%sd)\n"
                                 "%ss : f32[B, 4, S, S] = mul(%st, %cap)\n" LEGACY_MASK("-1e30") PLAIN_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_UNIFORM},
    {"mask of another name for the batch",
     QKV "input %m : i64[BM, S]\n" HEADS SCORES SCALE RANGES "%mb : bool[BM, S] = cast(%m) {to=9}\n"
         "%fm : bool[BM*S, 1] = reshape(%mb)\n"
         "%len : i64[1] = dims_tensor() {values=<S>}\n"
         "%bs : i64[B, 1, 1, 1] = mul(%b4, %len)\n"
         "%at : i64[B, 1, 1, S] = add(%ki, %bs)\n"
         "%gm : bool[B, 1, 1, S, 1] = gather(%fm, %at) {axis=0}\n"
         "%g1 : bool[B*S] = reshape(%gm)\n"
         "%g4 : bool[B, 1, 1, S] = reshape(%g1)\n" KEY_INF_MASK("g4") GUARD_TAIL("sm"),
     IN_PLACE, .keys = "m", .masked_row = LATHE_MASKED_ZERO},
    {"mask from the right end of a longer one",
     QKV "input %m : i64[B, S+2]\n" HEADS SCORES SCALE
         "%ms : i64[B, S] = slice(%m) {axes=[1], starts=[2], ends=<S+2>, steps=[1]}\n"
         "%mb : bool[B, S] = cast(%ms) {to=9}\n"
         "%m4 : bool[B, 1, 1, S] = reshape(%mb)\n" KEY_INF_MASK("m4") GUARD_TAIL("sm"),
     IN_PLACE, .mask = "am", .masked_row = LATHE_MASKED_ZERO},
    {"a large number on the keys that are allowed stays a bias",
     QKV MASK_INPUT HEADS SCORES SCALE "const %one : f32[] = {1}\n"
                                       "const %c : f32[] = {-1e9}\n"
                                       "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mf : f32[B, 1, 1, S] = cast(%m4) {to=1}\n"
                                       "%im : f32[B, 1, 1, S] = sub(%mf, %one)\n"
                                       "%am : f32[B, 1, 1, S] = mul(%im, %c)\n"
                                       "%sm : f32[B, 4, S, S] = add(%ss, %am)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .mask = "am", .masked_row = LATHE_MASKED_FLAG},
    {"a bias of floats is not taken for 0 and 1",
     QKV "input %rel : f32[1, 4, S, S]\nconst %c : f32[] = {-1e30}\n" HEADS SCORES SCALE
         "%am : f32[1, 4, S, S] = mul(%rel, %c)\n"
         "%sm : f32[B, 4, S, S] = add(%ss, %am)\n" PLAIN_TAIL("sm"),
     IN_PLACE, .mask = "am", .masked_row = LATHE_MASKED_FLAG},

    /* look-alikes */
    {"masked scores that are filled with 0",
     QKV MASK_INPUT HEADS SCORES SCALE "const %f0 : f32[] = {0}\n"
                                       "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mb : bool[B, 1, 1, S] = cast(%m4) {to=9}\n"
                                       "%sm : f32[B, 4, S, S] = where(%mb, %ss, %f0)\n" PLAIN_TAIL("sm"),
     .missed = "fills above -10000"},
    {"scores less themselves", QKV HEADS SCORES SCALE "%sm : f32[B, 4, S, S] = sub(%ss, %ss)\n" PLAIN_TAIL("sm"),
     .missed = "difference of two products"},
    {"infinity on the keys that are allowed",
     QKV MASK_INPUT HEADS SCORES SCALE "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mb : bool[B, 1, 1, S] = cast(%m4) {to=9}\n" KEY_INF_MASK(
                                           "mb") "%sx : f32[B, 4, S, S] = sub(%ss, %am)\n" GUARD_TAIL("sx"),
     .missed = "adds infinity"},
    {"mask inside the soft cap",
     QKV MASK_INPUT HEADS SCORES SCALE LEGACY_MASK("-10000") "%st : f32[B, 4, S, S] = tanh(%sm)\n" PLAIN_TAIL("st"),
     .missed = "inside the soft cap"},
    {"scale for each head",
     QKV "const %c : f32[4, 1, 1] = {1, 2, 3, 4}\n" HEADS SCORES
         "%ss : f32[B, 4, S, S] = mul(%s, %c)\n" PLAIN_TAIL("ss"),
     .missed = "scaled by a tensor"},
    {"softmax over queries",
     QKV HEADS SCORES SCALE "%p : f32[B, 4, S, S] = softmax(%ss) {axis=2}\n"
                            "%o : f32[B, 4, S, 16] = matmul(%p, %vt)\noutput %o as \"y\"\n",
     .missed = "another axis"},
    {"softmax of a sum without a product",
     "input %a : f32[B, 4, S, S]\ninput %b : f32[B, 4, S, S]\ninput %vt : f32[B, 4, S, 16]\n"
     "%ss : f32[B, 4, S, S] = add(%a, %b)\n"
     "%p : f32[B, 4, S, S] = softmax(%ss) {axis=3}\n"
     "%o : f32[B, 4, S, 16] = matmul(%p, %vt)\noutput %o as \"y\"\n",
     .missed = "without a product"},
    {"scale that is a tensor",
     QKV "input %t : f32[1]\n" HEADS SCORES "%ss : f32[B, 4, S, S] = mul(%s, %t)\n" PLAIN_TAIL("ss"),
     .missed = "scaled by a tensor"},
    {"scores of relu", QKV HEADS SCORES "%ss : f32[B, 4, S, S] = relu(%s)\n" PLAIN_TAIL("ss"),
     .missed = "found relu before softmax"},
    {"weights mixed before V",
     QKV HEADS SCORES SCALE "%p : f32[B, 4, S, S] = softmax(%ss) {axis=3}\n"
                            "%pt : f32[B, 4, S, S] = transpose(%p) {perm=[0, 1, 3, 2]}\n"
                            "%o : f32[B, 4, S, 16] = matmul(%pt, %vt)\noutput %o as \"y\"\n",
     .missed = "another axis than softmax's"},
    {"weights zeroed by another mask",
     QKV MASK_INPUT HEADS SCORES SCALE "%p : f32[B, 4, S, S] = softmax(%ss) {axis=3}\n"
                                       "%m4 : i64[B, 1, 1, S] = reshape(%m)\n"
                                       "%mf : f32[B, 1, 1, S] = cast(%m4) {to=1}\n"
                                       "%pz : f32[B, 4, S, S] = mul(%p, %mf)\n" ZEROED_TAIL,
     .missed = "another mask than that of the scores"},
    {"heads cut differently in q and k",
     "input %q : f32[B, S, 64]\ninput %k : f32[B, S, 64]\ninput %vt : f32[B, 4, S, 16]\n"
     "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%k4 : f32[B, S, 16, 4] = reshape(%k)\n"
     "%kt : f32[B, 4, 16, S] = transpose(%k4) {perm=[0, 3, 2, 1]}\n" SCORES SCALE PLAIN_TAIL("ss"),
     FOUND, .scale = 0.25, .q = "q", .k = "k/view/transposed/view"},
    {"keys cut without regard to heads",
     "input %q : f32[B, S, 64]\ninput %k : f32[B, S, 64]\ninput %vt : f32[B, 4, S, 16]\n"
     "%q4 : f32[B, S, 4, 16] = reshape(%q)\n"
     "%qt : f32[B, 4, S, 16] = transpose(%q4) {perm=[0, 2, 1, 3]}\n"
     "%kt : f32[B, 4, 16, S] = reshape(%k)\n" SCORES SCALE PLAIN_TAIL("ss"),
     FOUND, .scale = 0.25, .q = "q", .k = "kt/transposed/view"},
    {"a plain classifier", "input %x : f32[B, 10]\n%p : f32[B, 10] = softmax(%x) {axis=1}\noutput %p as \"y\"\n",
     .count = 0},
};

enum { ATTENTION_CASES = sizeof attention_cases / sizeof *attention_cases };
#endif
