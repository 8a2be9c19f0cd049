/* fuse_linear and fuse_epilogue: products with constants, and what moves into them. */
#include "pass_test.h"

#define WEIGHTS                                                                                                        \
    "const %w : f32[2, 3] = {1, 2, 3, 4, 5, 6}\nconst %b : f32[3] = {1, 2, 3}\n"                                       \
    "input %x : f32[batch, seq, 2]\n"
#define Y(out, what) "%" out " : f32[batch, seq, 3] = " what "\n"
#define OUT          "output %y as \"y\"\n"

/* A weight of 48 columns, of which parts are read. */
#define SIXTEEN "1, -2, 3, 0.5, 2, -1, 4, 1, 0, -3, 2, 1, 0.25, 5, -1, 2"
#define WIDE(w)                                                                                                        \
    "const %" w " : f32[2, 48] = {" SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN "}\n"
#define PART(out, of, first, width, end)                                                                               \
    "%" out " : f32[batch, seq, " #width "] = slice(%" of ") {axes=[2], starts=[" #first "], ends=[" #end              \
    "], steps=[1]}\n"
#define X2              "input %x : f32[batch, seq, 2]\n"
#define S(out, n, what) "%" out " : f32[batch, seq, " #n "] = " what "\n"
#define OUT2                                                                                                           \
    "%y : f32[batch, seq, 1] = reduce_sum(%p) {axes=[2], keepdims=1}\n" OUT                                            \
    "%z : f32[batch, seq, 1] = reduce_sum(%q) {axes=[2], keepdims=1}\noutput %z as \"z\"\n"

static const struct pass_case cases[] = {
    {"matmul", "fuse_linear", WEIGHTS Y("y", "matmul(%x, %w)") OUT, "linear=1 matmul=0"},
    {"matmul of a transposed constant", "fuse_linear",
     "const %wt : f32[3, 2] = {1, 2, 3, 4, 5, 6}\ninput %x : f32[batch, seq, 2]\n"
     "%w : f32[2, 3] = transpose(%wt) {perm=[1, 0]}\n" Y("y", "matmul(%x, %w)") OUT,
     "linear=1 transpose=0\ntext:linear(%x, %wt)\ntext:trans_b=1"},
    {"matmul of two activations stays", "fuse_linear",
     "input %x : f32[batch, seq, 2]\ninput %w : f32[2, 3]\n" Y("y", "matmul(%x, %w)") OUT, "linear=0 matmul=1"},
    {"gemm with bias", "fuse_linear", WEIGHTS "input %p : f32[batch, 2]\n%y : f32[batch, 3] = gemm(%p, %w, %b)\n" OUT,
     "linear=1 gemm=0\ntext:linear(%p, %w, %b)"},
    {"gemm with a bias row and a transposed weight", "fuse_linear",
     "const %wt : f32[3, 2] = {1, 2, 3, 4, 5, 6}\nconst %b : f32[1, 3] = {1, 2, 3}\ninput %p : f32[batch, 2]\n"
     "%y : f32[batch, 3] = gemm(%p, %wt, %b) {trans_b=1}\n" OUT,
     "linear=1 gemm=0 add=0\ntext:trans_b=1"},
    {"gemm with factors", "fuse_linear",
     WEIGHTS "input %p : f32[batch, 2]\n%y : f32[batch, 3] = gemm(%p, %w, %b) {alpha=0.5, beta=3.0}\n" OUT,
     "linear=1 gemm=0 mul=2 add=1"},
    {"gemm with trans_a stays", "fuse_linear",
     WEIGHTS "input %p : f32[2, batch]\n%y : f32[batch, 3] = gemm(%p, %w, %b) {trans_a=1}\n" OUT, "linear=0 gemm=1"},
    {"rows merged by a reshape", "fuse_linear",
     WEIGHTS "%x2 : f32[batch*seq, 2] = reshape(%x)\n%y2 : f32[batch*seq, 3] = gemm(%x2, %w, %b)\n"
             "%y : f32[batch, seq, 3] = reshape(%y2)\n%z : f32[batch, seq, 3, 1] = reshape(%y2)\n" OUT
             "output %z as \"z\"\n",
     "linear=1 gemm=0 reshape=1\ntext:linear(%x, %w, %b)"},

    {"bias on either side", "fuse_linear fuse_epilogue", WEIGHTS Y("m", "matmul(%x, %w)") Y("y", "add(%b, %m)") OUT,
     "linear=1 add=0\ntext:%w, %b)"},
    {"bias subtracted", "fuse_linear fuse_epilogue", WEIGHTS Y("m", "matmul(%x, %w)") Y("y", "sub(%m, %b)") OUT,
     "linear=1 sub=0\ntext:{-1.0, -2.0, -3.0}"},
    {"bias of one number", "fuse_linear fuse_epilogue",
     WEIGHTS "const %c : f32[] = {7}\n" Y("m", "matmul(%x, %w)") Y("y", "add(%m, %c)") OUT,
     "linear=1 add=0\ntext:{7.0, 7.0, 7.0}"},
    {"bias of heads", "fuse_linear fuse_epilogue",
     "const %w : f32[2, 4] = {1, 2, 3, 4, 5, 6, 7, 8}\nconst %b : f32[2, 2] = {1, 2, 3, 4}\ninput %x : f32[batch, seq, "
     "2]\n"
     "%m : f32[batch, seq, 4] = matmul(%x, %w)\n%h : f32[batch, seq, 2, 2] = reshape(%m)\n"
     "%y : f32[batch, seq, 2, 2] = add(%h, %b)\n" OUT,
     "linear=1 add=0 reshape=1\ntext:f32[4] = {1.0, 2.0, 3.0, 4.0}"},
    {"of each head alone it stays", "fuse_linear fuse_epilogue",
     "const %w : f32[2, 4] = {1, 2, 3, 4, 5, 6, 7, 8}\nconst %b : f32[2, 1] = {1, 2}\ninput %x : f32[batch, seq, 2]\n"
     "%m : f32[batch, seq, 4] = matmul(%x, %w)\n%h : f32[batch, seq, 2, 2] = reshape(%m)\n"
     "%y : f32[batch, seq, 2, 2] = add(%h, %b)\n" OUT,
     "linear=1 add=1"},
    {"bias in 8 bits", "fuse_linear fuse_epilogue",
     WEIGHTS "const %q : i8[3] = {2, -4, 6}\nconst %s : f32[3] = {0.5, 0.25, 2}\nconst %z : i8[3] = {0, 0, 0}\n"
             "%c : f32[3] = dequantize_linear(%q, %s, %z) {axis=0}\n" Y("m", "matmul(%x, %w)") Y("y", "add(%c, %m)")
                 OUT,
     "linear=1 add=0\ntext:{1.0, -1.0, 12.0}"},
    {"one that is computed stays", "fuse_linear fuse_epilogue",
     WEIGHTS "input %q : i8[3]\nconst %s : f32[] = {0.5}\n%c : f32[3] = dequantize_linear(%q, %s) {axis=0}\n" Y(
         "m", "matmul(%x, %w)") Y("y", "add(%c, %m)") OUT,
     "linear=1 add=1"},
    {"bias for each token stays", "fuse_linear fuse_epilogue",
     "const %w : f32[2, 3] = {1, 2, 3, 4, 5, 6}\nconst %b : f32[2, 1] = {1, 2}\ninput %x : f32[batch, 2, 2]\n"
     "%m : f32[batch, 2, 3] = matmul(%x, %w)\n%y : f32[batch, 2, 3] = add(%m, %b)\n" OUT,
     "linear=1 add=1"},
    {"bias behind a reshape", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m",
               "matmul(%x, %w)") "%r : f32[batch*seq, 3] = reshape(%m)\n%y : f32[batch*seq, 3] = add(%r, %b)\n" OUT,
     "linear=1 add=0 reshape=1"},
    {"bias, activation, residual", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("a", "add(%m, %b)") Y("g", "gelu(%a)")
         Y("y", "add(%r, %g)") OUT,
     "linear=1 add=0 gelu=0\ntext:%w, %b, %r)\ntext:activation=2"},
    {"no activation behind a residual", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("s", "add(%m, %r)") Y("y", "relu(%s)") OUT,
     "linear=1 add=0 relu=1"},
    {"no second activation", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m", "matmul(%x, %w)") Y("a", "tanh(%m)") Y("y", "tanh(%a)") OUT, "linear=1 tanh=1\ntext:activation=6"},
    {"a residual computed later", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("e", "exp(%r)") Y("y", "add(%m, %e)") OUT,
     "linear=1 add=0 exp=1"},
    {"a residual that a layer norm reads is left", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("s", "add(%m, %r)")
         Y("y", "layer_norm(%s, %b, %b) {axis=2, epsilon=1e-05}") OUT,
     "linear=1 add=1 layer_norm=1"},
    {"a product that is an output too", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m", "matmul(%x, %w)") Y("y", "add(%m, %b)") OUT "output %m as \"m\"\n", "linear=1 add=1"},
    {"bias of a block-quantized product", "fuse_epilogue",
     "input %x : f32[batch, seq, 32]\nconst %b : f32[1, 2] = {1, 2}\n"
     "const %p : u8[2, 1, 16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
     "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}\nconst %s : f32[2, 1] = {1, 2}\n"
     "%m : f32[batch, seq, 2] = matmul_nbits(%x, %p, %s) {k=32, bits=4, block_size=32}\n"
     "%y : f32[batch, seq, 2] = add(%m, %b)\n" OUT,
     "matmul_nbits=1 add=0\ntext:matmul_nbits(%x, %p, %s, _, _, %b"},
    {"a gate", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("g", "gelu(%m)") Y("e", "exp(%r)")
         Y("y", "mul(%e, %g)") OUT,
     "linear=1 mul=0 gelu=0\ntext:gate=1\ntext:activation=2"},
    {"of two layers the plain one has the gate", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m", "matmul(%x, %w)") Y("g", "gelu(%m)") Y("n", "matmul(%x, %w)") Y("y", "mul(%g, %n)") OUT,
     "linear=2 mul=0 gelu=0\ntext:{activation=2}\ntext:{gate=1}"},
    {"with biases, too", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m", "matmul(%x, %w)") Y("a", "add(%m, %b)") Y("g", "gelu(%a)") Y("n", "matmul(%x, %w)")
         Y("c", "add(%n, %b)") Y("y", "mul(%g, %c)") OUT,
     "linear=2 mul=0 add=0 gelu=0\ntext:{activation=2}\ntext:{gate=1}"},
    {"of two layers with activations one has it", "fuse_linear fuse_epilogue",
     WEIGHTS Y("m", "matmul(%x, %w)") Y("g", "gelu(%m)") Y("n", "matmul(%x, %w)") Y("t", "tanh(%n)")
         Y("y", "mul(%g, %t)") OUT,
     "linear=2 mul=0 gelu=0 tanh=0\ntext:gate=1"},
    {"a gate that a layer norm reads", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("s", "mul(%m, %r)")
         Y("y", "layer_norm(%s, %b, %b) {axis=2, epsilon=1e-05}") OUT,
     "linear=1 mul=0 layer_norm=1\ntext:gate=1"},
    {"a square is no gate", "fuse_linear fuse_epilogue", WEIGHTS Y("m", "matmul(%x, %w)") Y("y", "mul(%m, %m)") OUT,
     "linear=1 mul=1"},
    {"a constant is no gate", "fuse_linear fuse_epilogue", WEIGHTS Y("m", "matmul(%x, %w)") Y("y", "mul(%m, %b)") OUT,
     "linear=1 mul=1"},
    {"a gate that broadcasts stays", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 1]\n" Y("m", "matmul(%x, %w)") Y("y", "mul(%m, %r)") OUT, "linear=1 mul=1"},
    {"no gate behind a residual", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[batch, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("s", "add(%m, %r)") Y("y", "mul(%s, %r)") OUT,
     "linear=1 add=0 mul=1"},
    {"two parts of a product", "fuse_linear split_linear fuse_epilogue",
     WIDE("w") X2 S("m", 48, "matmul(%x, %w)") PART("p", "m", 0, 16, 16) PART("q", "m", 16, 32, 48) OUT2,
     "linear=2 slice=0"},
    {"of a transposed weight, with a bias, an activation and a gate",
     "fuse_linear fuse_epilogue split_linear fuse_epilogue",
     "const %wt : f32[32, 2] = {" SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN "}\n"
     "const %c : f32[32] = {" SIXTEEN ", " SIXTEEN "}\n" X2 "%w : f32[2, 32] = transpose(%wt) {perm=[1, 0]}\n" S(
         "l", 32, "matmul(%x, %w)") S("m", 32, "add(%l, %c)") PART("p", "m", 0, 16, 16)
         PART("q", "m", 16, 16, 32) "%g : f32[batch, seq, 16] = gelu(%p)\n%y : f32[batch, seq, 16] = mul(%g, %q)\n" OUT,
     "linear=2 slice=0 gelu=0 mul=0\ntext:trans_b=1\ntext:gate=1"},
    {"parts that overlap stay", "fuse_linear split_linear",
     WIDE("w") X2 S("m", 48, "matmul(%x, %w)") PART("p", "m", 0, 32, 32) PART("q", "m", 16, 32, 48) OUT2,
     "linear=1 slice=2"},
    {"a part of half a panel stays", "fuse_linear split_linear",
     WIDE("w") X2 S("m", 48, "matmul(%x, %w)") PART("p", "m", 0, 24, 24) PART("q", "m", 24, 24, 48) OUT2,
     "linear=1 slice=2"},
    {"a product that is read whole too stays", "fuse_linear split_linear",
     WIDE("w") X2 S("m", 48, "matmul(%x, %w)") PART("p", "m", 0, 16, 16) PART("q", "m", 16, 32, 48) OUT2
     "%e : f32[batch, seq, 48] = exp(%m)\noutput %e as \"e\"\n",
     "linear=1 slice=2"},
    {"parts of rows stay", "fuse_linear split_linear",
     WIDE("w") "input %x : f32[4, 2]\n%m : f32[4, 48] = matmul(%x, %w)\n"
               "%p : f32[2, 48] = slice(%m) {axes=[0], starts=[0], ends=[2], steps=[1]}\n"
               "%q : f32[2, 48] = slice(%m) {axes=[0], starts=[2], ends=[4], steps=[1]}\n"
               "%y : f32[2, 48] = exp(%p)\n%z : f32[2, 48] = exp(%q)\n" OUT "output %z as \"z\"\n",
     "linear=1 slice=2"},
    {"a residual that broadcasts stays", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[1, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("y", "add(%m, %r)") OUT, "linear=1 add=1"},
};

int main(void) {
    return pass_cases_main("fuse_linear", cases, sizeof cases / sizeof *cases);
}
