/* fuse_activation: each formula keeps its own formula; numbers that are not those of a formula stay as they are. */
#include "pass_test.h"

#define F(out, what)   "%" out " : f32[batch, 4] = " what "\n"
#define C(name, value) "const %" name " : f32[] = {" value "}\n"
#define INPUT                                                                                                          \
    "input %x : f32[batch, 4]\n" C("half", "0.5") C("one", "1") C("rt2", "1.4142135") C("irt2", "0.70710677")          \
        C("three", "3") C("k", "0.044715") C("s2pi", "0.7978846") C("quick", "1.702")
#define OUT      "output %y as \"y\"\n"
#define CUBE     F("x3", "pow(%x, %three)") F("kx", "mul(%x3, %k)") F("i", "add(%x, %kx)") F("t", "mul(%i, %s2pi)")
#define ONLY(op) op "=1 erf=0 tanh=0 sigmoid=0 mul=0 add=0 div=0 pow=0"

static const struct pass_case cases[] = {
    {"erf, 0.5 last", "fuse_activation",
     INPUT F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("m", "mul(%x, %a)")
         F("y", "mul(%m, %half)") OUT,
     ONLY("gelu")},
    {"erf, 0.5 first", "fuse_activation",
     INPUT F("h", "mul(%x, %half)") F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%one, %e)")
         F("y", "mul(%h, %a)") OUT,
     ONLY("gelu")},
    {"erf, 0.5 on the factor", "fuse_activation",
     INPUT F("d", "mul(%irt2, %x)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("h", "mul(%half, %a)")
         F("y", "mul(%h, %x)") OUT,
     ONLY("gelu")},
    {"erf, cdf", "fuse_activation",
     INPUT F("d", "mul(%x, %irt2)") F("e", "erf(%d)") F("eh", "mul(%e, %half)") F("a", "add(%eh, %half)")
         F("y", "mul(%x, %a)") OUT,
     ONLY("gelu")},
    {"erf, multiplied out", "fuse_activation",
     INPUT F("d", "mul(%x, %irt2)") F("e", "erf(%d)") F("h", "mul(%x, %half)") F("he", "mul(%h, %e)")
         F("y", "add(%he, %h)") OUT,
     ONLY("gelu")},
    {"erf of -x", "fuse_activation",
     INPUT C("minus", "-0.70710677") F("d", "mul(%x, %minus)") F("e", "erf(%d)") F("a", "sub(%one, %e)")
         F("m", "mul(%x, %a)") F("y", "mul(%m, %half)") OUT,
     "gelu=1 erf=0"},
    {"division by 2", "fuse_activation",
     INPUT C("two", "2") F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("m", "mul(%x, %a)")
         F("y", "div(%m, %two)") OUT,
     ONLY("gelu")},
    {"tanh, pow", "fuse_activation",
     INPUT CUBE F("th", "tanh(%t)") F("a", "add(%th, %one)") F("m", "mul(%x, %a)") F("y", "mul(%m, %half)") OUT,
     ONLY("gelu_tanh")},
    {"tanh, x*x*x", "fuse_activation",
     INPUT F("x2", "mul(%x, %x)") F("x3", "mul(%x2, %x)") F("kx", "mul(%k, %x3)") F("i", "add(%kx, %x)")
         F("t", "mul(%s2pi, %i)") F("th", "tanh(%t)") F("a", "add(%one, %th)") F("h", "mul(%half, %x)")
             F("y", "mul(%h, %a)") OUT,
     ONLY("gelu_tanh")},
    {"tanh, factored", "fuse_activation",
     INPUT C("k2", "0.035677407") F("x2", "mul(%x, %x)") F("kx", "mul(%x2, %k2)") F("i", "add(%kx, %s2pi)")
         F("t", "mul(%x, %i)") F("th", "tanh(%t)") F("a", "add(%th, %one)") F("m", "mul(%x, %a)")
             F("y", "mul(%m, %half)") OUT,
     ONLY("gelu_tanh")},
    {"quick", "fuse_activation", INPUT F("i", "mul(%x, %quick)") F("s", "sigmoid(%i)") F("y", "mul(%x, %s)") OUT,
     ONLY("quick_gelu")},
    {"silu", "fuse_activation", INPUT F("s", "sigmoid(%x)") F("y", "mul(%s, %x)") OUT, ONLY("silu")},
    {"silu gate", "fuse_activation",
     INPUT "input %z : f32[batch, 4]\n" F("s", "sigmoid(%x)") F("g", "mul(%s, %x)") F("y", "mul(%g, %z)") OUT,
     "silu=1 sigmoid=0 mul=1"},
    {"f16 constants", "fuse_activation",
     "input %x : f16[batch, 4]\nconst %rt2 : f16[] = {1.4140625}\nconst %one : f16[] = {1}\nconst %half : f16[] = "
     "{0.5}\n"
     "%d : f16[batch, 4] = div(%x, %rt2)\n%e : f16[batch, 4] = erf(%d)\n%a : f16[batch, 4] = add(%e, %one)\n"
     "%m : f16[batch, 4] = mul(%x, %a)\n%y : f16[batch, 4] = mul(%m, %half)\n" OUT,
     "gelu=1 erf=0"},
    {"an inner value that is an output stays", "fuse_activation",
     INPUT F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("m", "mul(%x, %a)")
         F("y", "mul(%m, %half)") OUT "output %e as \"e\"\n",
     "gelu=1 erf=1 mul=0"},

    {"0.5 is in the weight behind it", "fuse_activation",
     INPUT F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)")
         F("m", "mul(%x, %a)") "const %w : f32[4, 4] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}\n" F(
             "y", "matmul(%m, %w)") OUT,
     "gelu=1 erf=0 mul=1 add=0"},
    {"the same with tanh", "fuse_activation",
     INPUT CUBE F("th", "tanh(%t)") F("a", "add(%th, %one)")
         F("m", "mul(%x, %a)") "const %w : f32[4, 4] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}\n" F(
             "y", "matmul(%m, %w)") OUT,
     "gelu_tanh=1 tanh=0 mul=1"},

    {"divisor 1.5", "fuse_activation",
     INPUT C("c", "1.5") F("d", "div(%x, %c)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("m", "mul(%x, %a)")
         F("y", "mul(%m, %half)") OUT,
     "gelu=0 erf=1\nmissed:expected x / sqrt 2"},
    {"factor 0.25", "fuse_activation",
     INPUT C("c", "0.25") F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)") F("m", "mul(%x, %a)")
         F("y", "mul(%m, %c)") OUT,
     "gelu=0 erf=1\nmissed:expected 0.5 s(x) + 0.5"},
    {"0.9 + erf", "fuse_activation",
     INPUT C("c", "0.9") F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %c)") F("m", "mul(%x, %a)")
         F("y", "mul(%m, %half)") OUT,
     "gelu=0 erf=1\nmissed:expected 0.5 s(x) + 0.5"},
    {"another factor", "fuse_activation",
     INPUT "input %z : f32[batch, 4]\n" F("d", "div(%x, %rt2)") F("e", "erf(%d)") F("a", "add(%e, %one)")
         F("m", "mul(%z, %a)") F("y", "mul(%m, %half)") OUT,
     "gelu=0 erf=1\nmissed:not the value that erf is taken of"},
    {"tanh with 0.05", "fuse_activation",
     INPUT C("c", "0.05") F("x3", "pow(%x, %three)") F("kx", "mul(%x3, %c)") F("i", "add(%x, %kx)")
         F("t", "mul(%i, %s2pi)") F("th", "tanh(%t)") F("a", "add(%th, %one)") F("m", "mul(%x, %a)")
             F("y", "mul(%m, %half)") OUT,
     "gelu_tanh=0 tanh=1\nmissed:tanh is taken of"},
    {"sigmoid(1.5 x)", "fuse_activation",
     INPUT C("c", "1.5") F("i", "mul(%x, %c)") F("s", "sigmoid(%i)") F("y", "mul(%x, %s)") OUT,
     "quick_gelu=0 silu=0 sigmoid=1\nmissed:sigmoid is taken of 1.5 x"},
    {"a gate of another value", "fuse_activation",
     INPUT "input %z : f32[batch, 4]\n" F("s", "sigmoid(%z)") F("y", "mul(%x, %s)") OUT, "silu=0 sigmoid=1"},
    {"the result broadcasts", "fuse_activation",
     "input %x : f32[batch, 4]\nconst %c : f32[1, 1, 1] = {1}\n" F(
         "s", "sigmoid(%x)") "%t : f32[1, batch, 4] = mul(%s, %c)\n%y : f32[1, batch, 4] = mul(%x, %t)\n" OUT,
     "silu=0 sigmoid=1"},
};

int main(void) {
    return pass_cases_main("fuse_activation", cases, sizeof cases / sizeof *cases);
}
