/* float_activations: which quantized forms of the source become float products on its quantized weights, and which keep
 * their written meaning. */
#include "pass_test.h"

#include <stddef.h>

#define X  "input %x : f32[batch, seq, 4]\n"
#define S  "const %s : f32[] = {0.5}\nconst %z : u8[] = {128}\n"
#define Q  "%q : u8[batch, seq, 4] = quantize_linear(%x, %s, %z) {axis=0, to=2}\n"
#define DQ "%d : f32[batch, seq, 4] = dequantize_linear(%q, %s, %z) {axis=0}\n"
#define W                                                                                                              \
    "const %w : i8[4, 2] = {1, 2, 3, 4, 5, 6, 7, 8}\nconst %ws : f32[2] = {0.25, 0.5}\nconst %wz : i8[2] = {0, 0}\n"
#define Y    "%y : f32[batch, seq, 4] = neg(%d)\noutput %y as \"y\"\n"
#define DYN  "%q : u8[batch, seq, 4], %a : f32[], %az : u8[] = dynamic_quantize_linear(%x)\n"
#define MMI  "%m : i32[batch, seq, 2] = matmul_integer(%q, %w, %az, %wz)\n%f : f32[batch, seq, 2] = cast(%m) {to=1}\n"
#define OUT  "output %y as \"y\"\n"
#define KEPT "quantize_linear=1 dequantize_linear=1"

static const struct pass_case cases[] = {
    {"a pair goes", "float_activations", X S Q DQ Y, "quantize_linear=0 dequantize_linear=0\ntext:neg(%x)", true},
    {"not in f32", "float_activations", X S Q DQ Y, KEPT, false},
    {"nor with two scales", "float_activations",
     X S Q "const %t : f32[] = {0.25}\n%d : f32[batch, seq, 4] = dequantize_linear(%q, %t, %z) {axis=0}\n" Y, KEPT,
     true},
    {"nor with two zero points", "float_activations",
     X S Q "const %t : u8[] = {127}\n%d : f32[batch, seq, 4] = dequantize_linear(%q, %s, %t) {axis=0}\n" Y, KEPT, true},
    {"equal constants are one", "float_activations",
     X S Q "const %t : f32[] = {0.5}\n%d : f32[batch, seq, 4] = dequantize_linear(%q, %t, %z) {axis=0}\n" Y,
     "quantize_linear=0 dequantize_linear=0", true},
    {"an output keeps its range", "float_activations", X S Q DQ "output %d as \"y\"\n", KEPT, true},
    {"a range from zero on clips", "float_activations", X "const %s : f32[] = {0.5}\nconst %z : u8[] = {0}\n" Q DQ Y,
     "quantize_linear=0 clip=1\ntext:{0.0}\ntext:{127.5}", true},
    {"nothing is to clip behind softmax", "float_activations",
     "input %i : f32[batch, seq, 4]\n%x : f32[batch, seq, 4] = softmax(%i) {axis=2}\n"
     "const %s : f32[] = {0.5}\nconst %z : u8[] = {0}\n" Q DQ Y,
     "quantize_linear=0 clip=0\ntext:neg(%x)", true},
    {"nor behind a guard against NaN", "float_activations",
     "input %i : f32[batch, seq, 4]\n%p : f32[batch, seq, 4] = softmax(%i) {axis=2}\n"
     "%n : bool[batch, seq, 4] = isnan(%p)\nconst %o : f32[] = {0}\n%x : f32[batch, seq, 4] = where(%n, %o, %p)\n"
     "const %s : f32[] = {0.5}\nconst %z : u8[] = {0}\n" Q DQ Y,
     "quantize_linear=0 clip=0\ntext:neg(%x)", true},
    {"nor below 1 + erf, with a 1 in 8 bits", "float_activations",
     "input %i : f32[batch, seq, 4]\n%e : f32[batch, seq, 4] = erf(%i)\nconst %c : u8[] = {200}\n"
     "const %t : f32[] = {0.005}\n%o : f32[] = dequantize_linear(%c, %t) {axis=0}\n"
     "%x : f32[batch, seq, 4] = add(%e, %o)\nconst %s : f32[] = {0.5}\nconst %z : u8[] = {0}\n" Q DQ Y,
     "quantize_linear=0 clip=0\ntext:neg(%x)", true},
    {"above 1 - erf's least there is", "float_activations",
     "input %i : f32[batch, seq, 4]\n%e : f32[batch, seq, 4] = erf(%i)\nconst %o : f32[] = {0.5}\n"
     "%x : f32[batch, seq, 4] = add(%e, %o)\nconst %s : f32[] = {0.5}\nconst %z : u8[] = {0}\n" Q DQ Y,
     "quantize_linear=0 clip=1", true},
    {"a range that a mask gave rounds as it says", "float_activations",
     X "const %s : f32[] = {1.3e36}\nconst %z : u8[] = {255}\n" Q DQ Y, KEPT, true},
    {"views between", "float_activations drop_dead_nodes",
     X S Q "%r : u8[batch, seq, 2, 2] = reshape(%q)\n%t : u8[batch, 2, seq, 2] = transpose(%r) {perm=[0, 2, 1, 3]}\n"
           "%d : f32[batch, 2, seq, 2] = dequantize_linear(%t, %s, %z) {axis=0}\n"
           "%y : f32[batch, 2, seq, 2] = neg(%d)\noutput %y as \"y\"\n",
     "quantize_linear=0 reshape=1 transpose=1\ntext:reshape(%x)", true},
    {"a dynamic integer product", "float_activations drop_dead_nodes",
     X W DYN MMI "%c : f32[2] = mul(%a, %ws)\n%y : f32[batch, seq, 2] = mul(%f, %c)\n" OUT,
     "matmul=1 matmul_integer=0 dynamic_quantize_linear=0 mul=0 dequantize_linear=1\ntext:matmul(%x,", true},
    {"scales one after the other", "float_activations drop_dead_nodes",
     X W DYN MMI "%c : f32[batch, seq, 2] = mul(%ws, %f)\n%y : f32[batch, seq, 2] = mul(%c, %a)\n" OUT,
     "matmul=1 matmul_integer=0 mul=0", true},
    {"not in f32 either", "float_activations drop_dead_nodes",
     X W DYN MMI "%c : f32[2] = mul(%a, %ws)\n%y : f32[batch, seq, 2] = mul(%f, %c)\n" OUT, "matmul=0 matmul_integer=1",
     false},
    {"without the input's scale it is another product", "float_activations drop_dead_nodes",
     X W DYN MMI "%y : f32[batch, seq, 2] = mul(%f, %ws)\n" OUT, "matmul=0 matmul_integer=1", true},
    {"sums that something else reads", "float_activations drop_dead_nodes",
     X W DYN MMI
     "%c : f32[2] = mul(%a, %ws)\n%y : f32[batch, seq, 2] = mul(%f, %c)\n%v : f32[batch, seq, 2] = neg(%f)\n"
     "output %v as \"v\"\n" OUT,
     "matmul=0 matmul_integer=1", true},
    {"a static one with a bias in integers", "float_activations drop_dead_nodes",
     X W S Q "const %b : i32[2] = {8, 16}\n%m : i32[batch, seq, 2] = matmul_integer(%q, %w, %z, %wz)\n"
             "%n : i32[batch, seq, 2] = add(%m, %b)\n%f : f32[batch, seq, 2] = cast(%n) {to=1}\n"
             "%c : f32[2] = mul(%s, %ws)\n%y : f32[batch, seq, 2] = mul(%f, %c)\n" OUT,
     "matmul=1 add=1 matmul_integer=0\ntext:f32[2] = {1.0, 4.0}", true},
    {"two activations", "float_activations drop_dead_nodes",
     "input %x : f32[batch, 3, 4]\ninput %v : f32[batch, 4, 5]\n"
     "%q : u8[batch, 3, 4], %a : f32[], %az : u8[] = dynamic_quantize_linear(%x)\n"
     "%p : u8[batch, 4, 5], %b : f32[], %bz : u8[] = dynamic_quantize_linear(%v)\n"
     "%m : i32[batch, 3, 5] = matmul_integer(%q, %p, %az, %bz)\n%f : f32[batch, 3, 5] = cast(%m) {to=1}\n"
     "%c : f32[] = mul(%a, %b)\n%y : f32[batch, 3, 5] = mul(%f, %c)\n" OUT,
     "matmul=1 matmul_integer=0 dynamic_quantize_linear=0\ntext:matmul(%x, %v)", true},
    {"blocks of 4 bits", "float_activations drop_dead_nodes",
     "input %x : f32[batch, 32]\n"
     "const %w : u8[1, 2, 8] = {16, 50, 84, 118, 152, 186, 220, 254, 0, 0, 0, 0, 255, 255, 255, 255}\n"
     "const %s : f32[1, 2] = {0.5, 2}\nconst %z : u8[1, 1] = {135}\nconst %b : f32[1] = {3}\n"
     "%y : f32[batch, 1] = matmul_nbits(%x, %w, %s, %z, _, %b) {bits=4, block_size=16, k=32}\n" OUT,
     "matmul=1 add=1 matmul_nbits=0 dequantize_linear=1\ntext:{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, "
     "-8, -8, -8, -8, -8, -8, -8, -8, 7, 7, 7, 7, 7, 7, 7, 7}\ntext:: i8[1, 2] = {-1, 0}\ntext:trans_b=1",
     true},
};

int main(void) {
    return pass_cases_main("float_activations", cases, sizeof cases / sizeof *cases);
}
