/* fuse_layernorm and fuse_skip_layernorm: honest spellings fuse, look-alikes stay and say why. */
#include "pass_test.h"

#define INPUT                                                                                                          \
    "input %x : f32[batch, seq, 4]\n"                                                                                  \
    "const %two : f32[] = {2}\nconst %eps : f32[] = {1e-05}\nconst %one : f32[] = {1}\n"                               \
    "const %gamma : f32[4] = {1, 2, 3, 4}\nconst %beta : f32[4] = {0.5, 0, 0, 1}\n"
#define MEAN(out, in)   "%" out " : f32[batch, seq, 1] = reduce_mean(%" in ") {axes=[2], keepdims=1}\n"
#define FULL(out, what) "%" out " : f32[batch, seq, 4] = " what "\n"
#define ROW(out, what)  "%" out " : f32[batch, seq, 1] = " what "\n"
#define CENTRE          MEAN("mean", "x") FULL("d", "sub(%x, %mean)")
#define VARIANCE        CENTRE FULL("sq", "pow(%d, %two)") MEAN("var", "sq")
#define ROOT            VARIANCE ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)")
#define TAIL            FULL("ng", "mul(%n, %gamma)") FULL("y", "add(%ng, %beta)") "output %y as \"y\"\n"
#define FUSED           "layer_norm=1 sub=0 pow=0 reduce_mean=0 sqrt=0 div=0 mul=0 add=0 reciprocal=0"
#define KEPT            "layer_norm=0 rms_norm=0 sqrt=1"

static const struct pass_case cases[] = {
    {"plain", "fuse_layernorm", INPUT ROOT FULL("n", "div(%d, %sd)") TAIL,
     FUSED "\ntext:layer_norm(%x, %gamma, %beta)\ntext:axis=2"},
    {"gamma on the left, eps on the left", "fuse_layernorm",
     INPUT VARIANCE ROW("ve", "add(%eps, %var)") ROW("sd", "sqrt(%ve)") FULL("n", "div(%d, %sd)")
         FULL("ng", "mul(%gamma, %n)") FULL("y", "add(%beta, %ng)") "output %y as \"y\"\n",
     FUSED},
    {"mul(d, d)", "fuse_layernorm",
     INPUT CENTRE FULL("sq", "mul(%d, %d)") MEAN("var", "sq") ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)")
         FULL("n", "div(%d, %sd)") TAIL,
     FUSED},
    {"two subtractions", "fuse_layernorm",
     INPUT MEAN("mean", "x") MEAN("mean2", "x") FULL("d", "sub(%x, %mean)") FULL("d2", "sub(%x, %mean2)")
         FULL("sq", "mul(%d2, %d2)") MEAN("var", "sq") ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)")
             FULL("n", "div(%d, %sd)") TAIL,
     FUSED},
    {"integer exponent", "fuse_layernorm",
     INPUT "const %itwo : i64[] = {2}\n" CENTRE FULL("sq", "pow(%d, %itwo)") MEAN("var", "sq")
         ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)") FULL("n", "div(%d, %sd)") TAIL,
     FUSED},
    {"reciprocal", "fuse_layernorm", INPUT ROOT ROW("rs", "reciprocal(%sd)") FULL("n", "mul(%d, %rs)") TAIL, FUSED},
    {"1 / root", "fuse_layernorm", INPUT ROOT ROW("rs", "div(%one, %sd)") FULL("n", "mul(%rs, %d)") TAIL, FUSED},
    {"power -0.5", "fuse_layernorm",
     INPUT "const %p : f32[] = {-0.5}\n" VARIANCE ROW("ve", "add(%var, %eps)") ROW("rs", "pow(%ve, %p)")
         FULL("n", "mul(%d, %rs)") TAIL,
     FUSED},
    {"gamma on the root", "fuse_layernorm",
     INPUT ROOT ROW("rs", "reciprocal(%sd)") FULL("w", "mul(%rs, %gamma)") FULL("n", "mul(%d, %w)")
         FULL("y", "add(%n, %beta)") "output %y as \"y\"\n",
     FUSED},
    {"gamma before the division", "fuse_layernorm",
     INPUT ROOT FULL("dg", "mul(%d, %gamma)") FULL("n", "div(%dg, %sd)")
         FULL("y", "add(%n, %beta)") "output %y as \"y\"\n",
     FUSED},
    {"shift folded", "fuse_layernorm",
     INPUT ROOT ROW("rs", "reciprocal(%sd)") FULL("w", "mul(%rs, %gamma)") FULL("xw", "mul(%x, %w)") FULL(
         "mw", "mul(%mean, %w)") FULL("rest", "sub(%beta, %mw)") FULL("y", "add(%xw, %rest)") "output %y as \"y\"\n",
     FUSED "\ntext:layer_norm(%x, %gamma, %beta)"},
    {"moments", "fuse_layernorm",
     INPUT MEAN("mean", "x") FULL("d", "sub(%x, %mean)") FULL("xx", "mul(%x, %x)") MEAN("m2", "xx")
         ROW("mm", "mul(%mean, %mean)") ROW("var", "sub(%m2, %mm)") ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)")
             FULL("n", "div(%d, %sd)") TAIL,
     FUSED},
    {"sum times 1/n", "fuse_layernorm",
     INPUT "const %quarter : f32[] = {0.25}\n%s : f32[batch, seq, 1] = reduce_sum(%x) {axes=[2], keepdims=1}\n" ROW(
         "mean", "mul(%s, %quarter)") FULL("d", "sub(%x, %mean)") FULL("sq", "pow(%d, %two)") MEAN("var", "sq")
         ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)") FULL("n", "div(%d, %sd)") TAIL,
     FUSED},
    {"no gamma, no beta", "fuse_layernorm", INPUT ROOT FULL("n", "div(%d, %sd)") "output %n as \"n\"\n",
     "layer_norm=1 sub=0\ntext:layer_norm(%x, _, _)"},
    {"large epsilon", "fuse_layernorm",
     INPUT "const %half : f32[] = {0.5}\n" VARIANCE ROW("ve", "add(%var, %half)") ROW("sd", "sqrt(%ve)")
         FULL("n", "div(%d, %sd)") TAIL,
     FUSED "\ntext:epsilon=0.5"},
    {"gamma with leading ones", "fuse_layernorm",
     INPUT "const %g3 : f32[1, 1, 4] = {1, 2, 3, 4}\n" ROOT FULL("n", "div(%d, %sd)")
         FULL("y", "mul(%n, %g3)") "output %y as \"y\"\n",
     "layer_norm=1 mul=0"},
    {"gamma of higher rank stays outside", "fuse_layernorm",
     INPUT "const %g4 : f32[1, 1, 1, 4] = {1, 2, 3, 4}\n" ROOT FULL(
         "n", "div(%d, %sd)") "%y : f32[1, batch, seq, 4] = mul(%n, %g4)\noutput %y as \"y\"\n",
     "layer_norm=1 mul=1"},
    {"inner values that are outputs stay", "fuse_layernorm",
     INPUT ROOT FULL("n", "div(%d, %sd)") TAIL "output %d as \"d\"\noutput %n as \"n\"\n",
     "layer_norm=1 sub=1 mul=1 add=1 div=0\ntext:layer_norm(%x, _, _)"},
    {"rms norm", "fuse_layernorm",
     INPUT FULL("sq", "pow(%x, %two)") MEAN("ms", "sq") ROW("ve", "add(%ms, %eps)") ROW("sd", "sqrt(%ve)")
         ROW("rs", "div(%one, %sd)") FULL("n", "mul(%x, %rs)") FULL("y", "mul(%gamma, %n)") "output %y as \"y\"\n",
     "rms_norm=1 layer_norm=0 mul=0 pow=0\ntext:rms_norm(%x, %gamma)"},
    {"rms norm between casts", "fuse_layernorm",
     "input %h : f16[batch, seq, 4]\nconst %two : f32[] = {2}\nconst %eps : f32[] = {1e-05}\n"
     "const %gamma : f16[4] = {1, 2, 3, 4}\n"
     "%x : f32[batch, seq, 4] = cast(%h) {to=1}\n" FULL("sq", "pow(%x, %two)") MEAN("ms", "sq")
         ROW("ve", "add(%ms, %eps)") ROW("sd", "sqrt(%ve)") ROW("rs", "reciprocal(%sd)")
             FULL("n", "mul(%x, %rs)") "%nh : f16[batch, seq, 4] = cast(%n) {to=10}\n%y : f16[batch, seq, 4] = "
                                       "mul(%gamma, %nh)\noutput %y as \"y\"\n",
     "rms_norm=1 sqrt=0 pow=0"},
    {"exponent 3", "fuse_layernorm",
     INPUT "const %three : f32[] = {3}\n" CENTRE FULL("sq", "pow(%d, %three)") MEAN("var", "sq")
         ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)") FULL("n", "div(%d, %sd)") TAIL,
     KEPT "\nmissed:the exponent is 3, expected 2"},
    {"epsilon outside the root", "fuse_layernorm",
     INPUT VARIANCE ROW("s0", "sqrt(%var)") ROW("sd", "add(%s0, %eps)") FULL("n", "div(%d, %sd)") TAIL,
     KEPT "\nmissed:no epsilon inside the root"},
    {"epsilon for each column", "fuse_layernorm",
     INPUT "const %e4 : f32[4] = {0.1, 0.2, 0.1, 0.1}\n" VARIANCE FULL("ve", "add(%var, %e4)") FULL("sd", "sqrt(%ve)")
         FULL("n", "div(%d, %sd)") TAIL,
     KEPT "\nmissed:the epsilon is not a constant scalar"},
    {"negative epsilon", "fuse_layernorm",
     INPUT "const %minus : f32[] = {-0.001}\n" VARIANCE ROW("ve", "add(%var, %minus)") ROW("sd", "sqrt(%ve)")
         FULL("n", "div(%d, %sd)") TAIL,
     KEPT "\nmissed:expected a scalar above 0"},
    {"x over the root", "fuse_layernorm", INPUT ROOT FULL("n", "div(%x, %sd)") TAIL,
     KEPT "\nmissed:what the root divides is neither the centred value nor gamma"},
    {"root over d", "fuse_layernorm", INPUT ROOT FULL("n", "div(%sd, %d)") TAIL, KEPT},
    {"cube root", "fuse_layernorm",
     INPUT "const %third : f32[] = {0.333}\n" VARIANCE ROW("ve", "add(%var, %eps)") ROW("sd", "pow(%ve, %third)")
         FULL("n", "div(%d, %sd)") TAIL,
     "layer_norm=0\nmissed:the variance is raised to 0.333, expected 0.5 or -0.5"},
    {"mean of another axis", "fuse_layernorm",
     INPUT "%mean : f32[batch, 1, 4] = reduce_mean(%x) {axes=[1], keepdims=1}\n" FULL("d", "sub(%x, %mean)")
         FULL("sq", "pow(%d, %two)") MEAN("var", "sq") ROW("ve", "add(%var, %eps)") ROW("sd", "sqrt(%ve)")
             FULL("n", "div(%d, %sd)") TAIL,
     "layer_norm=0"},
    {"another value is normalised", "fuse_layernorm",
     INPUT "input %z : f32[batch, seq, 4]\n" ROOT FULL("dz", "sub(%z, %mean)") FULL("n", "div(%dz, %sd)") TAIL, KEPT},
    {"centring alone", "fuse_layernorm", INPUT CENTRE "output %d as \"d\"\n", "layer_norm=0 sub=1\nmissed:not squared"},

    {"residual", "fuse_skip_layernorm",
     INPUT "input %r : f32[batch, seq, 4]\n" FULL("s", "add(%x, %r)")
         FULL("y", "layer_norm(%s, %gamma, %beta) {axis=2, epsilon=1e-05}") "output %y as \"y\"\n",
     "skip_layer_norm=1 layer_norm=0 add=0"},
    {"residual whose sum is used too", "fuse_skip_layernorm",
     INPUT "input %r : f32[batch, seq, 4]\n" FULL("s", "add(%x, %r)") FULL("t", "relu(%s)")
         FULL("y", "layer_norm(%s, %gamma, %beta) {axis=2, epsilon=1e-05}") "output %y as \"y\"\noutput %t as \"t\"\n"
                                                                            "output %s as \"s\"\n",
     "skip_layer_norm=1 layer_norm=0 add=0 relu=1"},
    {"broadcast residual stays", "fuse_skip_layernorm",
     INPUT "input %r : f32[1, seq, 4]\n" FULL("s", "add(%x, %r)")
         FULL("y", "layer_norm(%s, %gamma, %beta) {axis=2, epsilon=1e-05}") "output %y as \"y\"\n",
     "skip_layer_norm=0 layer_norm=1 add=1\nmissed:different shapes"},
};

int main(void) {
    return pass_cases_main("fuse_layernorm", cases, sizeof cases / sizeof *cases);
}
