/* Weights and tables in few bits stay as they are stored: what folds, what is looked through, what is widened in a run.
 */
#include "pass_test.h"

#define X       "input %x : f32[batch, seq, 64]\n"
#define W8      "const %q : i8[64, 96] = {#6144}\nconst %s : f32[96] = {#96}\n"
#define DQ      "%w : f32[64, 96] = dequantize_linear(%q, %s) {axis=1}\n"
#define PRODUCT "%y : f32[batch, seq, 96] = matmul(%x, %w)\noutput %y as \"y\"\n"
#define IDS     "input %ids : i64[batch, seq]\n"
#define TABLE   "const %t : u8[100, 64] = {#6400}\nconst %s : f32[] = {0.5}\nconst %z : u8[] = {131}\n"
#define NORM    "const %g : f32[64] = {#64}\nconst %b : f32[64] = {#64}\n"

static const struct pass_case cases[] = {
    /* ---- folding */
    {"a dequantized weight does not fold", "fold_constants", W8 DQ X PRODUCT, "dequantize_linear=1 matmul=1"},
    {"nor one cast from 8 bits", "fold_constants",
     X "const %q : i8[64, 96] = {#6144}\n%w : f32[64, 96] = cast(%q) {to=1}\n" PRODUCT, "cast=1 matmul=1"},
    {"4 KiB more is the limit", "fold_constants",
     "const %q : i8[1365] = {#1365}\nconst %p : i8[1366] = {#1366}\ninput %x : f32[1365]\ninput %z : f32[1366]\n"
     "%a : f32[1365] = cast(%q) {to=1}\n%b : f32[1366] = cast(%p) {to=1}\n"
     "%y : f32[1365] = add(%x, %a)\n%v : f32[1366] = add(%z, %b)\noutput %y as \"y\"\noutput %v as \"v\"\n",
     "cast=1\ntext:cast(%p)"},
    {"nor what is repeated", "fold_constants",
     "const %q : f32[1, 8] = {#8}\ninput %x : f32[200, 8]\n%e : f32[200, 8] = expand(%q)\n"
     "%y : f32[200, 8] = add(%x, %e)\noutput %y as \"y\"\n",
     "expand=1"},
    /* ---- products read through it */
    {"a linear layer on a dequantized weight", "fold_constants fuse_linear", W8 DQ X PRODUCT,
     "linear=1 matmul=0\ntext:linear(%x, %w)"},
    {"and behind a transpose", "fold_constants fuse_linear",
     "const %q : i8[96, 64] = {#6144}\nconst %s : f32[96] = {#96}\n"
     "%r : f32[96, 64] = dequantize_linear(%q, %s) {axis=0}\n%w : f32[64, 96] = transpose(%r) {perm=[1, 0]}\n" X
         PRODUCT,
     "linear=1 transpose=0\ntext:trans_b=1"},
    {"and with leading ones", "fold_constants fuse_linear",
     "const %q : i8[1, 64, 96] = {#6144}\nconst %s : f32[96] = {#96}\n"
     "%w : f32[1, 64, 96] = dequantize_linear(%q, %s) {axis=2}\n" X PRODUCT,
     "linear=1 matmul=0"},
    /* ---- one form */
    {"scales written out", "fuse_dequantize drop_dead_nodes fuse_linear",
     "const %q : i8[64, 96] = {#6144}\nconst %s : f32[1, 96] = {#96}\n" X
     "%f : f32[64, 96] = cast(%q) {to=1}\n%w : f32[64, 96] = mul(%s, %f)\n" PRODUCT,
     "linear=1 mul=0 cast=0 dequantize_linear=1\ntext:{axis=1}"},
    {"zero points too", "fuse_dequantize drop_dead_nodes",
     "const %q : u8[64, 96] = {#6144}\nconst %s : f32[64, 1] = {#64}\nconst %z : f32[] = {128}\n" X
     "%f : f32[64, 96] = cast(%q) {to=1}\n%c : f32[64, 96] = sub(%f, %z)\n%w : f32[64, 96] = mul(%c, %s)\n" PRODUCT,
     "mul=0 sub=0 cast=0 dequantize_linear=1\ntext:{axis=0}\ntext:: u8[64]"},
    {"scales behind a transpose", "fuse_dequantize drop_dead_nodes fuse_linear",
     "const %q : i8[96, 64] = {#6144}\nconst %s : f32[96] = {#96}\n" X
     "%f : f32[96, 64] = cast(%q) {to=1}\n%t : f32[64, 96] = transpose(%f) {perm=[1, 0]}\n"
     "%w : f32[64, 96] = mul(%t, %s)\n" PRODUCT,
     "linear=1 mul=0 transpose=0\ntext:{axis=0}\ntext:trans_b=1"},
    {"a zero point that is no number of the type", "fuse_dequantize",
     "const %q : u8[64, 96] = {#6144}\nconst %s : f32[96] = {#96}\nconst %z : f32[] = {127.5}\n" X
     "%f : f32[64, 96] = cast(%q) {to=1}\n%c : f32[64, 96] = sub(%f, %z)\n%w : f32[64, 96] = mul(%c, %s)\n" PRODUCT,
     "mul=1 sub=1 dequantize_linear=0"},
    {"a scale for each element", "fuse_dequantize",
     "const %q : u8[64, 96] = {#6144}\nconst %s : f32[64, 96] = {#6144}\n" X
     "%f : f32[64, 96] = cast(%q) {to=1}\n%w : f32[64, 96] = mul(%f, %s)\n" PRODUCT,
     "mul=1 dequantize_linear=0"},
    {"a scale that makes it larger", "fuse_dequantize",
     "const %q : u8[1, 96] = {#96}\nconst %s : f32[64, 1] = {#64}\n" X
     "%f : f32[1, 96] = cast(%q) {to=1}\n%w : f32[64, 96] = mul(%f, %s)\n" PRODUCT,
     "mul=1 dequantize_linear=0"},
    /* ---- tables */
    {"rows are widened after the look-up", "look_up_stored drop_dead_nodes",
     TABLE IDS "%w : f32[100, 64] = dequantize_linear(%t, %s, %z) {axis=0}\n"
               "%e : f32[batch, seq, 64] = gather(%w, %ids) {axis=0}\noutput %e as \"e\"\n",
     "gather=1 dequantize_linear=1\ntext:gather(%t, %ids)\nno text:f32[100, 64]"},
    {"with scales of columns", "look_up_stored drop_dead_nodes",
     "const %t : i8[100, 64] = {#6400}\nconst %s : f32[64] = {#64}\n" IDS
     "%w : f32[100, 64] = dequantize_linear(%t, %s) {axis=1}\n"
     "%e : f32[batch, seq, 64] = gather(%w, %ids) {axis=0}\noutput %e as \"e\"\n",
     "gather=1\ntext:{axis=2}\nno text:f32[100, 64]"},
    {"with scales and zero points of rows", "look_up_stored drop_dead_nodes",
     "const %t : u8[100, 64] = {#6400}\nconst %s : f32[100] = {#100}\nconst %z : u8[100] = {#100}\n" IDS
     "%w : f32[100, 64] = dequantize_linear(%t, %s, %z) {axis=0}\n"
     "%e : f32[batch, seq, 64] = gather(%w, %ids) {axis=0}\noutput %e as \"e\"\n",
     "gather=3 mul=1 sub=1 dequantize_linear=0\nno text:f32[100, 64]"},
    {"a table of bytes in an embedding", "fuse_embedding look_up_stored drop_dead_nodes quantize_embedding",
     TABLE NORM IDS "%i : u8[batch, seq, 64] = gather(%t, %ids) {axis=0}\n"
                    "%e : f32[batch, seq, 64] = dequantize_linear(%i, %s, %z) {axis=0}\n"
                    "%y : f32[batch, seq, 64] = layer_norm(%e, %g, %b) {axis=2, epsilon=1e-5}\noutput %y as \"y\"\n",
     "embedding_q8=1 gather=0 layer_norm=0 dequantize_linear=0\ntext:offsets=[0, -1]\nmissed:reused"},
    {"with a scale for each row", "fuse_embedding look_up_stored drop_dead_nodes quantize_embedding",
     "const %t : i8[100, 64] = {#6400}\nconst %s : f32[100] = {#100}\n" NORM IDS
     "%w : f32[100, 64] = dequantize_linear(%t, %s) {axis=0}\n"
     "%e : f32[batch, seq, 64] = gather(%w, %ids) {axis=0}\n"
     "%y : f32[batch, seq, 64] = layer_norm(%e, %g, %b) {axis=2, epsilon=1e-5}\noutput %y as \"y\"\n",
     "embedding_q8=1 gather=0\ntext:embedding_q8(%g, %b, %t, \nno text:-1]"},
    {"with zero points that differ it is looked up in plain operators",
     "fuse_embedding look_up_stored drop_dead_nodes quantize_embedding",
     "const %t : u8[100, 64] = {#6400}\nconst %s : f32[100] = {#100}\nconst %z : u8[100] = {#100}\n" NORM IDS
     "%w : f32[100, 64] = dequantize_linear(%t, %s, %z) {axis=0}\n"
     "%e : f32[batch, seq, 64] = gather(%w, %ids) {axis=0}\n"
     "%y : f32[batch, seq, 64] = layer_norm(%e, %g, %b) {axis=2, epsilon=1e-5}\noutput %y as \"y\"\n",
     "embedding=0 embedding_q8=0 gather=3 layer_norm=1\nno text:f32[100, 64]"},
    /* ---- one matrix stored twice */
    {"a decoder tied to the table", "share_weights drop_dead_nodes",
     "const %t : f32[70, 32] = {#2240}\nconst %d : f32[32, 70] = {@70x32}\nconst %g : f32[32] = {#32}\n" IDS
     "%e : f32[batch, seq, 32] = embedding(%g, _, %t, %ids) {offsets=[0], epsilon=1e-5}\n"
     "%y : f32[batch, seq, 70] = linear(%e, %d)\noutput %y as \"y\"\n",
     "linear=1\ntext:linear(%e, %t) {trans_b=1}"},
    {"one of them is another matrix", "share_weights drop_dead_nodes",
     "const %t : f32[70, 32] = {#2240}\nconst %d : f32[32, 70] = {#2240}\nconst %g : f32[32] = {#32}\n" IDS
     "%e : f32[batch, seq, 32] = embedding(%g, _, %t, %ids) {offsets=[0], epsilon=1e-5}\n"
     "%y : f32[batch, seq, 70] = linear(%e, %d)\noutput %y as \"y\"\n",
     "linear=1\ntext:linear(%e, %d)"},
    {"two products with one matrix", "share_weights drop_dead_nodes",
     "const %t : f32[70, 32] = {#2240}\nconst %d : f32[32, 70] = {@70x32}\ninput %x : f32[batch, 32]\n"
     "%a : f32[batch, 70] = linear(%x, %t) {trans_b=1}\n%b : f32[batch, 70] = linear(%x, %d)\n"
     "output %a as \"a\"\noutput %b as \"b\"\n",
     "linear=2\ntext:linear(%x, %t) {trans_b=1}\nno text:%d"},
    {"a copy in 16 bits behind a cast", "share_weights drop_dead_nodes",
     "const %t : f16[70, 32] = {#2240}\nconst %h : f16[32, 70] = {@70x32}\nconst %g : f32[32] = {#32}\n" IDS
     "%d : f32[32, 70] = cast(%h) {to=1}\n"
     "%e : f32[batch, seq, 32] = embedding(%g, _, %t, %ids) {offsets=[0], epsilon=1e-5}\n"
     "%y : f32[batch, seq, 70] = linear(%e, %d)\noutput %y as \"y\"\n",
     "linear=1 cast=1\ntext:= cast(%t)\ntext:trans_b=1\nno text:%h"},
};

int main(void) {
    return pass_cases_main("stored_weights", cases, sizeof cases / sizeof *cases);
}
