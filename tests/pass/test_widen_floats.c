/* widen_floats: what is read in f32, and what stays in the 16 bits it is stored in. */
#include "pass_test.h"

/* A table of more than is worth a copy. */
#define TABLE  "const %t : f16[129, 128] = {#16512}\n"
#define IDS    "input %ids : i64[batch, seq]\n"
#define LOOKUP "%e : f16[batch, seq, 128] = gather(%t, %ids) {axis=0}\n"

static const struct pass_case cases[] = {
    {"a table keeps its form", "widen_floats fold_constants drop_dead_nodes", TABLE IDS LOOKUP "output %e as \"e\"\n",
     "gather=1\ntext:gather(%t, %ids)\nno text:f32[129, 128]"},
    {"a table of look-ups and of a product", "widen_floats fold_constants drop_no_ops fuse_linear drop_dead_nodes",
     TABLE IDS LOOKUP "%w : f16[128, 129] = transpose(%t) {perm=[1, 0]}\n"
                      "%y : f16[batch, seq, 129] = matmul(%e, %w)\noutput %y as \"y\"\n",
     "linear=1 transpose=0\ntext:trans_b=1\ntext:gather(%t, %ids)\nno text:const %t.1"},
    {"casts of the source", "widen_floats fold_constants fuse_linear drop_dead_nodes",
     TABLE IDS "%tf : f32[129, 128] = cast(%t) {to=1}\n"
               "%ef : f32[batch, seq, 128] = gather(%tf, %ids) {axis=0}\n"
               "%w : f32[128, 129] = transpose(%tf) {perm=[1, 0]}\n"
               "%y : f32[batch, seq, 129] = matmul(%ef, %w)\noutput %y as \"y\"\n",
     "linear=1\ntext:gather(%t, %ids)\ntext:linear("},
    {"added to something it is widened in the run", "widen_floats fold_constants",
     TABLE "input %x : f16[129, 128]\n%y : f16[129, 128] = add(%x, %t)\noutput %y as \"y\"\n",
     "add=1\ntext:const %t : f16[129, 128]\ntext:= cast(%t)\nno text:const %t.1"},
};

int main(void) {
    return pass_cases_main("widen_floats", cases, sizeof cases / sizeof *cases);
}
