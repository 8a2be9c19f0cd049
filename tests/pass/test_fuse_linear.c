/* fuse_linear and fuse_epilogue: products with constants, and what moves into them. */
#include "pass_test.h"

#define WEIGHTS                                                                                                        \
    "const %w : f32[2, 3] = {1, 2, 3, 4, 5, 6}\nconst %b : f32[3] = {1, 2, 3}\n"                                       \
    "input %x : f32[batch, seq, 2]\n"
#define Y(out, what) "%" out " : f32[batch, seq, 3] = " what "\n"
#define OUT          "output %y as \"y\"\n"

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
    {"a residual that broadcasts stays", "fuse_linear fuse_epilogue",
     WEIGHTS "input %r : f32[1, seq, 3]\n" Y("m", "matmul(%x, %w)") Y("y", "add(%m, %r)") OUT, "linear=1 add=1"},
};

int main(void) {
    return pass_cases_main("fuse_linear", cases, sizeof cases / sizeof *cases);
}
