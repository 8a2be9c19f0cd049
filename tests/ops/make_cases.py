#!/usr/bin/env python3
"""Writes cases.txt: operators in their internal form (compiler/IR.md) with results of numpy and of ONNX's reference
evaluator. Run it again after a change of this file; test_ops.c reads the text and needs no Python."""
import itertools
import sys

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

SEED = 20240607
rng = np.random.default_rng(SEED)
bf16 = ml_dtypes.bfloat16
NAMES = {np.dtype(t): n for t, n in [
    (np.float32, "f32"), (np.float64, "f64"), (np.float16, "f16"), (bf16, "bf16"), (np.int8, "i8"), (np.int16, "i16"),
    (np.int32, "i32"), (np.int64, "i64"), (np.uint8, "u8"), (np.uint16, "u16"), (np.uint32, "u32"),
    (np.uint64, "u64"), (np.bool_, "bool")]}
FLOATS = [np.float32, np.float64, np.float16, bf16]
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
lines = [f"# made by make_cases.py, seed {SEED}; do not edit"]


def number(v, dtype):
    if dtype in (np.float16, bf16):
        return "0x%x" % int(np.array(v, dtype).view(np.uint16))
    if dtype in (np.float32, np.float64):
        text = str(dtype(v)) if dtype == np.float32 else repr(float(v))  # the shortest that reads back
        return text[:-2] if text.endswith(".0") else text
    return str(int(v))


def tensor(word, t):
    if t is None:
        lines.append(f"{word} _")
        return
    t = np.asarray(t)
    shape = ",".join(map(str, t.shape)) or "-"
    lines.append(f"{word} {NAMES[t.dtype]} {shape} " + " ".join(number(v, t.dtype.type) for v in t.reshape(-1)))


def case(op, ins, outs, tol=0.0, **attrs):
    """tol: relative to max(1, |expected|); 0: the same bits (of numbers; any NaN is a NaN)."""
    lines.append(f"case {op} {tol:g}")
    for k, v in attrs.items():
        if isinstance(v, str):
            lines.append(f"ints {k} " + " ".join(str(ord(c)) for c in v))
        elif isinstance(v, (list, tuple)):
            lines.append(f"ints {k} " + " ".join(map(str, v)))
        elif isinstance(v, float):
            lines.append(f"float {k} {v.hex()}")
        else:
            lines.append(f"int {k} {int(v)}")
    for t in ins:
        tensor("in", t)
    for t in outs if isinstance(outs, (list, tuple)) else [outs]:
        tensor("out", t)
    lines.append("end")


def fails(op, ins, out, status, **attrs):
    case(op, ins, out, 0.0, **attrs)
    lines[-1] = f"fails {status}"
    lines.append("end")


def onnx(op, ins, n_out=1, opset=21, **attrs):
    types = {v: k for k, v in helper.get_all_tensor_dtypes() and
             {t: helper.tensor_dtype_to_np_dtype(t) for t in helper.get_all_tensor_dtypes()}.items()}
    names = [f"i{k}" if t is not None else "" for k, t in enumerate(ins)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(n_out)], **attrs)
    given = {n: np.asarray(t) for n, t in zip(names, ins) if t is not None}
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, types[t.dtype], t.shape)
                                            for n, t in given.items()],
                              [helper.make_tensor_value_info(f"o{k}", TensorProto.UNDEFINED, None)
                               for k in range(n_out)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, given)


def values(dtype, *shape, low=-4, high=4):
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        return rng.integers(max(low, 0) if dtype.kind == "u" else low, high, shape).astype(dtype)
    return (np.rint(rng.uniform(low, high, shape) * 64) / 64).astype(dtype)  # short to write


def tolerance(dtype):
    return {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-13, np.dtype(np.float16): 1.5e-3,
            np.dtype(bf16): 1.2e-2}.get(np.dtype(dtype), 0.0)


def wide(x):
    return np.asarray(x).astype(np.float64)


# ---- elementwise
UNARY = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "reciprocal": lambda x: 1 / x, "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "softplus": lambda x: np.log1p(np.exp(x)), "softsign": lambda x: x / (1 + abs(x)),
    "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))),
}
np.seterr(all="ignore")
import math
erf = np.vectorize(math.erf, otypes=[np.float64])
UNARY["erf"] = erf
UNARY["gelu"] = lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2)))
for name, fn in UNARY.items():
    low, high = {"log": (0.1, 4), "sqrt": (0, 4), "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 4),
                 "atanh": (-0.9, 0.9), "reciprocal": (0.5, 4)}.get(name, (-4, 4))
    for dtype in FLOATS:
        x = values(dtype, 3, 5, low=low, high=high)
        case(name, [x], fn(wide(x)).astype(dtype), tolerance(dtype))
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    expected = fn(wide(x))
    if name in ("silu", "gelu", "gelu_tanh", "mish", "softplus", "hard_swish", "softsign", "sign"):
        expected[3] = {"softplus": 0, "softsign": np.nan, "sign": -1}.get(name, np.nan)
    if name == "gelu":  # inf times 0: a kernel may take the limit
        x, expected = np.delete(x, 3), np.delete(expected, 3)
    if name in ("softsign",):
        expected[2] = np.nan
    case(name, [x], expected.astype(np.float32), 2e-6)
for dtype in SIGNED:
    x = values(dtype, 7)
    x[0] = np.iinfo(dtype).min
    case("neg", [x], -x)
    case("abs", [x], np.abs(x))
    case("sign", [x], np.sign(x))
    case("relu", [x], np.maximum(x, 0))
    case("bit_not", [x], ~x)
for dtype in UNSIGNED:
    x = values(dtype, 7)
    x[0] = np.iinfo(dtype).max
    case("abs", [x], x)
    case("bit_not", [x], ~x)
    case("sign", [x], np.sign(x))
x = values(np.bool_, 9)
case("not", [x], ~x)
x = np.array([1, np.nan, np.inf, -np.inf, 0, -2], np.float32)
for dtype in FLOATS:
    case("isnan", [x.astype(dtype)], np.isnan(x))
    case("isinf", [x.astype(dtype)], np.isinf(x))
    case("isinf", [x.astype(dtype)], np.isposinf(x), detect_negative=0)
    case("isinf", [x.astype(dtype)], np.isneginf(x), detect_positive=0)
x = values(np.float32, 4, 6)
for op, source, attrs in [("elu", "Elu", dict(alpha=0.7)), ("selu", "Selu", dict(alpha=1.5)),
                          ("celu", "Celu", dict(alpha=0.6)), ("leaky_relu", "LeakyRelu", dict(alpha=0.2)),
                          ("thresholded_relu", "ThresholdedRelu", dict(alpha=0.9)),
                          ("hard_sigmoid", "HardSigmoid", dict(alpha=0.3, beta=0.4))]:
    case(op, [x], onnx(op=source, ins=[x], **attrs), 3e-6, **attrs)
case("selu", [x], onnx("Selu", [x], alpha=2.0, gamma=3.0), 3e-6, alpha=2.0, beta=3.0)
case("shrink", [x], onnx("Shrink", [x], lambd=1.5, bias=1.0), 1e-6, alpha=1.5, beta=1.0)
case("quick_gelu", [x], (x / (1 + np.exp(-1.702 * wide(x)))).astype(np.float32), 2e-6)
case("exp", [np.zeros((0, 3), np.float32)], np.zeros((0, 3), np.float32))

# ---- casts
source = np.array([0, 1, -1, 2.5, 3.49, -7.9, 100.2, 127, 1e-8, 65519.9, -0.0], np.float64)
for a, b in itertools.product(NAMES, NAMES):
    x = source.astype(a) if a.kind == "f" or a == np.dtype(bf16) else np.array([0, 1, 2, 3, 100, 127]).astype(a)
    if (a.kind == "f" or a == np.dtype(bf16)) and b.kind in "iu":
        x = np.array([0, 1, 2.5, 3.49, 7.9, 100.2, 127, 1e-7]).astype(a)
    case("cast", [x], x.astype(b))
case("cast", [np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 300, -300], np.float32)],
     np.array([0, 127, -128, 127, -128, 127, -128], np.int8))
case("cast", [np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float64)],
     np.array([0, 2**63 - 1, -2**63, 2**63 - 1, -2**63], np.int64))
case("cast", [np.array([np.nan, np.inf, -5, 1e30], np.float32)], np.array([0, 2**64 - 1, 0, 2**64 - 1], np.uint64))
case("cast", [np.array([300, -1, 2**40 + 5], np.int64)], np.array([44, 255, 5], np.uint8))
case("cast", [np.array([np.nan, 0.1, 0, -0.0], np.float32)], np.array([1, 1, 0, 0], np.bool_))
tiny = np.array([2**-25, 2**-25 * (1 + 2**-20), 2**-24, 65504, 65519.99, 65520, 1 + 2**-11, 1 + 2**-11 + 2**-40,
                 1 + 3 * 2**-11, -1 - 2**-11 - 2**-40, 2**-149, -2**-160], np.float64)
case("cast", [tiny], tiny.astype(np.float16))
case("cast", [tiny.astype(np.float32)], tiny.astype(np.float32).astype(np.float16))
near = np.array([1 + 2**-8, 1 + 2**-8 + 2**-30, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-40, 3.4e38], np.float64)
case("cast", [near], np.array([0x3f80, 0x3f81, 0x3f82, 0xbf81, 0x7f80], np.uint16).view(bf16))

# ---- pairwise
SHAPES = [((5,), (5,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((), (2, 3)), ((2, 1, 4), (3, 1)),
          ((4, 1), (1, 5)), ((2, 3, 4, 5), (2, 1, 4, 1)), ((1, 1, 3), (2, 4, 1)), ((0, 3), (1, 3)), ((), ()),
          ((2, 1, 2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2, 1, 2)), ((3, 300), (3, 1)), ((2, 300), (300,))]
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
COMPARE = {"equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
           "greater_equal": np.greater_equal}
for dtype in FLOATS + SIGNED + UNSIGNED:
    every = {**ARITHMETIC, **COMPARE, "div": None, "min": np.minimum, "max": np.maximum}
    for i, (name, fn) in enumerate(every.items()):
        for j, (sa, sb) in enumerate(SHAPES):
            if (dtype != np.float32 and (i + j) % 5 != 0) or (max(sa + sb + (1,)) > 99 and name not in ("add", "less")):
                continue
            a, b = values(dtype, *sa), values(dtype, *sb)
            if name in COMPARE:
                b = np.where(rng.random(b.shape) < 0.5, b, a.reshape(-1)[0] if a.size else b).astype(dtype)
            if name == "div" and np.dtype(dtype).kind in "iu":
                b[b == 0] = 3
                with np.errstate(all="ignore"):
                    expected = np.trunc(np.divide(wide(a), wide(b))).astype(dtype)
            elif name == "div":
                expected = np.divide(a.astype(np.float32), b.astype(np.float32)).astype(dtype) \
                    if dtype in (np.float16, bf16) else np.divide(a, b)
            elif dtype in (np.float16, bf16):
                expected = fn(a.astype(np.float32), b.astype(np.float32))
                expected = expected if name in COMPARE else expected.astype(dtype)
            else:
                expected = fn(a, b)
            if expected.size <= 400 or dtype == np.float32:
                case(name, [a, b], expected)
for dtype in SIGNED:
    info = np.iinfo(dtype)
    a, b = np.array([info.max, info.min, info.min, 7], dtype), np.array([1, 1, -1, 2], dtype)
    case("add", [a, b], a + b)
    case("sub", [a, b], a - b)
    case("mul", [a, b], a * b)
    case("div", [a, b], np.array([info.max, info.min, info.min, 3], dtype))
    case("div", [a, np.zeros(4, dtype)], np.zeros(4, dtype))
    a, b = np.array([-7, 7, -7, 7, -4, 5], dtype), np.array([2, -2, -2, 2, 3, 8], dtype)
    case("mod", [a, b], np.mod(a, b))
    case("mod", [a, b], np.fmod(a, b), fmod=1)
for dtype in [np.float32, np.float64, np.float16]:
    a, b = values(dtype, 3, 4), values(dtype, 4)
    case("mod", [a, b], np.fmod(a, b), fmod=1)
a = np.array([1, np.nan, np.nan, -np.inf, 0.0], np.float32)
b = np.array([np.nan, 1, np.nan, 2, 1], np.float32)
for name in ("min", "max"):
    case(name, [a, b], getattr(np, name + "imum")(a, b))
for name, fn in COMPARE.items():
    case(name, [a, b], fn(a, b))
for dtype in FLOATS[:3] + SIGNED[2:]:
    t = [values(dtype, 3, 4), values(dtype, 4), values(dtype, 3, 1), values(dtype)]
    case("min", t, np.minimum(np.minimum(np.minimum(t[0], t[1]), t[2]), t[3]))
    case("max", t, np.maximum(np.maximum(np.maximum(t[0], t[1]), t[2]), t[3]))
    case("max", t[:1], t[0])
    if np.dtype(dtype).kind == "f":
        case("sum", t, sum(map(wide, t)).astype(dtype), 4 * tolerance(dtype))
        case("mean", t, (sum(map(wide, t)) / 4).astype(dtype), 4 * tolerance(dtype))
        case("mean", t[:1], t[0])
for sa, sb in SHAPES:
    a, b = values(np.bool_, *sa), values(np.bool_, *sb)
    case("and", [a, b], a & b)
    case("or", [a, b], a | b)
    case("xor", [a, b], a ^ b)
    case("equal", [a, b], a == b)
for dtype in UNSIGNED + SIGNED[2:]:
    a, b = values(dtype, 3, 4, low=0, high=99), values(dtype, 4, low=0, high=99)
    case("bit_and", [a, b], a & b)
    case("bit_or", [a, b], a | b)
    case("bit_xor", [a, b], a ^ b)
for dtype in UNSIGNED:
    a, b = values(dtype, 6, low=0, high=250), values(dtype, 6, low=0, high=7)
    case("bit_shift", [a, b], np.left_shift(a, b), mode=0)
    case("bit_shift", [a, b], np.right_shift(a, b), mode=1)
    case("bit_shift", [a, np.array(200, dtype)], np.zeros(6, dtype), mode=1)
a, b = np.array([-128, -7, 7, 100, -1, -9], np.int8), np.array([1, 2, 1, 9, -1, 100], np.int8)
case("bit_shift", [a, b], np.array([-64, -2, 3, 0, -1, -1], np.int8), mode=1)
case("bit_shift", [a, b], np.array([0, -28, 14, 0, 0, 0], np.int8), mode=0)
case("bit_shift", [a.astype(np.int64), b.astype(np.int64)], np.array([-64, -2, 3, 0, -1, -1]), mode=1)
for a, b in [(values(np.float32, 3, 4, low=0.1), np.array(2, np.int64)),
             (values(np.float32, 3, 4), np.array(2, np.float32)), (values(np.float32, 3, 4), np.array(3, np.int32)),
             (values(np.float32, 3, 4, low=0.1), values(np.float64, 4)),
             (values(np.float16, 5, low=0.1), np.array(0.5, np.float32)),
             (values(np.int64, 3, 4), values(np.int64, 4, low=0)), (values(np.int32, 4), np.array(2, np.float32)),
             (np.array([1, -1, 2, -1], np.int32), np.array([-1, -3, -1, -2], np.int64)),
             (values(np.int64, 3, low=0), np.array([2, 1, 0], np.uint64)),
             (values(np.float64, 2, 3, low=0), values(np.float64, 3))]:
    e = np.power(wide(a), wide(b))
    case("pow", [a, b], np.trunc(e).astype(a.dtype) if a.dtype.kind in "iu" else e.astype(a.dtype),
         tolerance(a.dtype))
for dtype in list(NAMES):
    for sc, sa, sb in [((3, 4), (3, 4), (3, 4)), ((3, 4), (), (3, 4)), ((3, 4), (4,), ()), ((3, 1), (1, 4), (3, 4)),
                       ((), (2, 2), (2, 1)), ((2, 1, 3), (2, 1), (1,))][:6 if dtype.itemsize == 4 else 2]:
        c, a, b = values(np.bool_, *sc), values(dtype, *sa), values(dtype, *sb)
        case("where", [c, a, b], np.where(c, a, b).astype(dtype))
for dtype in FLOATS + SIGNED + UNSIGNED:
    x, lo, hi = values(dtype, 3, 5), np.array(1, dtype), np.array(2, dtype)
    case("clip", [x, lo, hi], np.minimum(np.maximum(x, lo), hi))
    case("clip", [x, None, hi], np.minimum(x, hi))
    case("clip", [x, lo], np.maximum(x, lo))
case("clip", [np.array([np.nan, 5, -5], np.float32), np.array(2, np.float32), np.array(1, np.float32)],
     np.array([np.nan, 1, 1], np.float32))
for dtype in [np.float32, np.int32, np.int64, np.float16]:
    x, s = values(dtype, 2, 3, 4), values(dtype, 3, 1)
    case("prelu", [x, s], np.where(x < 0, x * s, x).astype(dtype))

# ---- movement
for dtype in [np.float32, np.int64, np.float16, np.uint8]:
    for shape, perm in [((2, 3), (1, 0)), ((2, 3, 4), (0, 2, 1)), ((2, 3, 4), (2, 1, 0)), ((2, 5, 3, 4), (0, 2, 1, 3)),
                        ((2, 3, 1, 4), (3, 0, 2, 1)), ((20, 33), (1, 0)), ((0, 3), (1, 0)), ((7,), (0,)), ((), ()),
                        ((2, 1, 2, 1, 2, 1, 2, 3), (7, 0, 6, 1, 5, 2, 4, 3)), ((2, 17, 5, 6), (0, 2, 3, 1)),
                        ((3, 18, 19), (1, 0, 2)), ((2, 18, 19), (2, 0, 1))]:
        if dtype != np.float32 and len(shape) > 2:
            continue
        x = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
        case("transpose", [x], x.transpose(perm), perm=perm)
    for axis in range(3):
        parts = [values(dtype, *(n if i == axis else d for i, d in enumerate((2, 3, 4)))) for n in (1, 0, 3)]
        case("concat", parts, np.concatenate(parts, axis), axis=axis)
x = values(np.float32, 3, 4, 5)
case("slice", [x], x[1:, :, 1:4:2], axes=[0, 2], starts=[1, 1], ends=[3, 4], steps=[1, 2])
case("slice", [x], x[::-1, 3:0:-2], axes=[0, 1], starts=[2, 3], ends=[-1, 0], steps=[-1, -2])
case("slice", [x], x[:, 2:2], axes=[1], starts=[2], ends=[2], steps=[1])
case("slice", [x], x[..., 4:], axes=[2], starts=[4], ends=[5])
case("slice", [x], x[:, :, ::-1], axes=[2], starts=[4], ends=[-1], steps=[-1])
for src, dst in [((3, 1), (2, 3, 4)), ((), (2, 2)), ((1, 4), (3, 4)), ((2, 3), (2, 3)), ((1,), (0,))]:
    x = values(np.float32, *src)
    case("expand", [x], np.broadcast_to(x, dst))
for shape, reps in [((2, 3), (2, 1)), ((2, 3), (1, 3)), ((1, 2, 1), (3, 2, 4)), ((2,), (0,)), ((2, 2, 2), (2, 3, 2))]:
    x = values(np.int32, *shape)
    case("tile", [x], np.tile(x, reps))
for mode, name in enumerate(["constant", "reflect", "edge", "wrap"]):
    for shape, pads in [((5,), [2, 3]), ((3, 4), [1, 0, 2, 3]), ((2, 3, 4), [1, 2, 3, 0, 1, 2])]:
        x = values(np.float32, *shape)
        n = len(shape)
        width = list(zip(pads[:n], pads[n:]))
        if name == "constant":
            case("pad", [x, np.array(1.5, np.float32)], np.pad(x, width, constant_values=1.5), pads=pads, mode=mode)
            case("pad", [x], np.pad(x, width), pads=pads)
        else:
            case("pad", [x, None], np.pad(x, width, mode=name), pads=pads, mode=mode)
x = values(np.float32, 4, 5)
case("pad", [x], x[1:, :-2], pads=[-1, 0, 0, -2], mode=0)
case("pad", [x], np.pad(x[1:], ((0, 2), (0, 0))), pads=[-1, 0, 2, 0], mode=0)
case("pad", [np.zeros((0, 2), np.float32)], np.zeros((3, 2), np.float32), pads=[1, 0, 2, 0])
x = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1)  # axes of one element past the row
for mode, name in enumerate(["constant", "reflect", "edge", "wrap"]):
    case("pad", [x], np.pad(x, ((1, 0), (2, 1), (0, 0), (0, 0)), mode=name), pads=[1, 2, 0, 0, 0, 1, 0, 0], mode=mode)
x = values(np.float32, 2, 8, 2, 3)
for mode in ("DCR", "CRD"):
    case("depth_to_space", [x], onnx("DepthToSpace", [x], blocksize=2, mode=mode), block_size=2,
         mode=int(mode == "CRD"))
x = values(np.float32, 2, 3, 4, 6)
case("space_to_depth", [x], onnx("SpaceToDepth", [x], blocksize=2), block_size=2)
x = values(np.float32, 3, 4, 5)
case("roll", [x], np.roll(x, (1, -2), (0, 2)), axes=[0, 2], starts=[1, -2])
x = values(np.float32, 4, 3, 2)
lengths = np.array([1, 4, 2], np.int64)
case("reverse_sequence", [x, lengths], onnx("ReverseSequence", [x, lengths], time_axis=0, batch_axis=1), axis=0,
     batch_dims=1)
fails("reverse_sequence", [x, np.array([1, 5, 2], np.int64)], x, 3, axis=0, batch_dims=1)

# ---- gathers and scatters
for dtype, index in [(np.float32, np.int64), (np.int64, np.int32), (np.float16, np.int64), (np.uint8, np.int32)]:
    x = values(dtype, 4, 5, 3)
    for axis in range(3):
        for shape in ((), (2,), (2, 3), (0,)):
            i = rng.integers(-x.shape[axis], x.shape[axis], shape).astype(index)
            case("gather", [x, i], np.take(x, i, axis), axis=axis)
x = values(np.float32, 4, 5)
fails("gather", [x, np.array([0, 4], np.int64)], np.zeros((2, 5), np.float32), 3, axis=0)
fails("gather", [x, np.array([-5, 3], np.int32)], np.zeros((2, 5), np.float32), 3, axis=0)
fails("gather", [np.zeros((0, 2), np.float32), np.array([0], np.int32)], np.zeros((1, 2), np.float32), 3, axis=0)
for axis in (0, 1):
    i = rng.integers(-4, 4, (3, 5) if axis == 0 else (4, 3)).astype(np.int64)
    case("gather_elements", [x, i], np.take_along_axis(x, i, axis), axis=axis)
i = rng.integers(-5, 5, (2, 3)).astype(np.int64) # fewer rows than x
case("gather_elements", [x, i], np.take_along_axis(x[:2], i, 1), axis=1)
fails("gather_elements", [x, np.array([[9]], np.int64)], np.zeros((1, 1), np.float32), 3, axis=0)
x = values(np.float32, 2, 3, 4)
for i, b in [(np.array([[0, 1], [1, -1]]), 0), (np.array([[[1, 2]], [[0, 0]]]), 0), (np.array([[1], [-2]]), 0),
             (np.array([[1], [2]]), 1), (np.array([[[1, 0]], [[2, 3]]]), 1)]:
    case("gather_nd", [x, i], onnx("GatherND", [x, i], batch_dims=b), batch_dims=b)
fails("gather_nd", [x, np.array([[0, 3]])], np.zeros((1, 4), np.float32), 3)
for r, name in enumerate(["none", "add", "mul", "max", "min"]):
    x, u = values(np.float32, 3, 4), values(np.float32, 2, 4)
    i = np.array([[0, 1, 2, -1], [2, 0, 1, 1]])
    case("scatter_elements", [x, i, u], onnx("ScatterElements", [x, i, u], axis=0, reduction=name), 1e-6, axis=0,
         reduction=r)
    i, u = np.array([[0], [2], [0]]), values(np.float32, 3, 4)
    case("scatter_nd", [x, i, u], onnx("ScatterND", [x, i, u], reduction=name), 1e-6, reduction=r)
fails("scatter_nd", [x, np.array([[3]]), values(np.float32, 1, 4)], x, 3)
x = values(np.float32, 3, 4)
case("compress", [x, np.array([0, 1, 1], bool)], x[1:], axis=0)
case("compress", [x, np.array([0, 1, 0, 1, 1], bool)], x.reshape(-1)[[1, 3, 4]])

# ---- fill
case("range", [], np.arange(3, 30, 4, dtype=np.int64), start=3, delta=4)
case("range", [np.array(10, np.int32), None, np.array(-3, np.int32)], np.arange(10, -2, -3, dtype=np.int32))
case("range", [], np.arange(0.5, 3, 0.25, dtype=np.float32), 1e-6, start=0.5, delta=0.25)
case("range", [], np.zeros(0, np.int64), start=0, delta=1)
for dtype in NAMES:
    case("fill", [None, np.array([3]).astype(dtype)], np.full((2, 3), 3).astype(dtype))
case("fill", [], np.zeros((2, 2), np.float32))
case("dims_tensor", [], np.array([2, 77, -1], np.int64), values=[2, 77, -1])
case("dims_tensor", [], np.array(5, np.int32), values=[5])
i, v = np.array([[0, -1], [2, 7]], np.int64), np.array([1, 5], np.float32)
for axis in (0, 1, 2):
    case("one_hot", [i, np.array(4, np.int64), v], onnx("OneHot", [i, np.array(4, np.int64), v], axis=axis), axis=axis)
for upper, k in itertools.product((0, 1), (-9, -1, 0, 1, 9)):
    x = values(np.float32, 2, 3, 4)
    case("trilu", [x], np.triu(x, k) if upper else np.tril(x, k), upper=upper, k=k)
x = values(np.int64, 3, 3)
case("trilu", [x, np.array(1, np.int64)], np.tril(x, 1), upper=0)
for dtype in (np.float32, np.int64, np.bool_, np.float16):
    case("eye_like", [np.zeros((3, 4), np.float32)], np.eye(3, 4, k=1).astype(dtype), k=1)
for axis, exclusive, reverse in itertools.product((0, 1), (0, 1), (0, 1)):
    x = values(np.int32 if axis else np.float32, 3, 4)
    case("cumsum", [x], onnx("CumSum", [x, np.array(axis)], exclusive=exclusive, reverse=reverse), 1e-6, axis=axis,
         exclusive=exclusive, reverse=reverse)

# ---- reductions
def log_sum_exp(x, axis, keepdims):
    m = np.max(x, axis=axis, keepdims=True)
    m = np.where(np.isfinite(m), m, 0)
    r = np.log(np.sum(np.exp(x - m), axis=axis, keepdims=True)) + m
    return r if keepdims else np.squeeze(r, axis)

REDUCE = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod,
          "l1": lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
          "l2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
          "sum_square": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
          "log_sum": lambda x, axis, keepdims: np.log(np.sum(x, axis=axis, keepdims=keepdims)),
          "log_sum_exp": log_sum_exp}
for name, fn in REDUCE.items():
    for shape, axes in [((3, 4), (1,)), ((3, 4), (0,)), ((2, 3, 4), (0, 2)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 1, 2)),
                        ((3, 1), (1,)), ((2, 300), (1,)), ((4, 2, 130), (0,)), ((2, 2, 2, 3), (1, 3)), ((5,), (0,))]:
        for dtype in FLOATS if shape == (2, 3, 4) else [np.float32]:
            x = values(dtype, *shape, low=0.1 if name in ("log_sum", "prod") else -2, high=1.5)
            keep = int(rng.integers(2))
            expected = fn(wide(x), axis=axes, keepdims=bool(keep))
            case("reduce_" + name, [x], np.asarray(expected).astype(dtype), 2 * tolerance(dtype), axes=list(axes),
                 keepdims=keep)
    if name not in ("log_sum_exp", "log_sum", "l2"):
        for dtype in (np.int32, np.int64, np.uint8, np.uint64, np.int8):
            x = values(dtype, 3, 4, low=0)
            e = fn(x.astype(np.int64), axis=1, keepdims=True)
            case("reduce_" + name, [x], np.trunc(e).astype(dtype), axes=[1], keepdims=1)
empty = np.zeros((2, 0), np.float32)
for name, v in [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf), ("mean", np.nan), ("log_sum", -np.inf),
                ("log_sum_exp", -np.inf), ("l1", 0), ("l2", 0), ("sum_square", 0)]:
    case("reduce_" + name, [empty], np.full((2,), v, np.float32), axes=[1], keepdims=0)
    case("reduce_" + name, [empty], np.zeros((0,), np.float32), axes=[0], keepdims=0)
case("reduce_max", [np.zeros((2, 0), np.int32)], np.full(2, -2**31, np.int32), axes=[1], keepdims=0)
case("reduce_min", [np.zeros((2, 0), np.uint8)], np.full(2, 255, np.uint8), axes=[1], keepdims=0)
x = np.array([[1, np.nan, 2], [np.inf, 3, -np.inf]], np.float32)
case("reduce_max", [x], np.max(x, axis=1), axes=[1], keepdims=0)
case("reduce_min", [x], np.min(x, axis=0), axes=[0], keepdims=0)
x = np.array([[-np.inf, -np.inf], [1000, 1000]], np.float32)
case("reduce_log_sum_exp", [x], np.array([-np.inf, 1000 + np.log(2)], np.float32), 1e-6, axes=[1], keepdims=0)
x = values(np.bool_, 3, 4)
case("reduce_max", [x], x.max(1), axes=[1], keepdims=0)
case("reduce_min", [x], x.min(0), axes=[0], keepdims=0)

# ---- positions
for axis in range(3):
    for dtype in (np.float32, np.int32, np.uint8, np.float16):
        x = values(dtype, 3, 4, 5)
        for op, source in (("arg_max", "ArgMax"), ("arg_min", "ArgMin")):
            for last in (0, 1):
                case(op, [x], onnx(source, [x], axis=axis, keepdims=0, select_last_index=last), axis=axis, keepdims=0,
                     select_last=last)
        for largest in (0, 1):
            v, i = onnx("TopK", [x, np.array([2])], 2, axis=axis, largest=largest)
            if dtype == np.float32:
                case("top_k", [x], [v, i], axis=axis, largest=largest)
case("arg_max", [np.array([1, np.nan, 3, np.nan], np.float32)], np.array(1), axis=0, keepdims=0)
case("arg_min", [np.array([1, np.nan, 3, np.nan], np.float32)], np.array(1), axis=0, keepdims=0)
case("top_k", [np.array([1, 3, 3, 2, 3], np.int64)], [np.array([3, 3, 3, 2]), np.array([1, 2, 4, 3])], axis=0)
case("top_k", [np.array([5, 1, 1, 0], np.uint64)], [np.array([0, 1, 1], np.uint64), np.array([3, 1, 2])], axis=0,
     largest=0)
case("hardmax", [np.array([[1, 3, 3], [0, -1, -2]], np.float32)], np.array([[0, 1, 0], [1, 0, 0]], np.float32), axis=1)
x = values(np.float32, 2, 3, 2)
case("hardmax", [x], onnx("Hardmax", [x], axis=1), axis=1)

# ---- windows
for shape, kernel, attrs, group in [
        ((1, 2, 7), (3, 2, 3), {}, 1), ((2, 3, 6, 5), (4, 3, 3, 3), dict(pads=[1, 1, 1, 1], strides=[2, 1]), 1),
        ((1, 4, 8, 8), (6, 2, 3, 2), dict(dilations=[2, 1], pads=[1, 0, 2, 1]), 2),
        ((2, 3, 8, 8), (5, 3, 4, 4), dict(strides=[4, 4]), 1), ((1, 3, 12, 12), (3, 1, 3, 3), {}, 3),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), dict(strides=[1, 2, 1], pads=[1, 0, 0, 0, 1, 1]), 1)]:
    for dtype in (np.float32, np.float64):
        x, w, b = values(dtype, *shape), values(dtype, *kernel), values(dtype, kernel[0])
        case("conv", [x, w, b], onnx("Conv", [x, w, b], group=group, **attrs), 1e-5, group=group, **attrs)
    case("conv", [x.astype(np.float16), w.astype(np.float16)],
         onnx("Conv", [wide(x.astype(np.float16)), wide(w.astype(np.float16))], group=group,
              **attrs)[0].astype(np.float16), 2e-3, group=group, **attrs)
x = values(np.float32, 1, 2, 7, 8)
for attrs in [dict(kernel_shape=[3, 2]), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
              dict(kernel_shape=[2, 2], dilations=[2, 3])]:
    case("average_pool", [x], onnx("AveragePool", [x], **attrs), 1e-5, **attrs)
    case("average_pool", [x], onnx("AveragePool", [x], count_include_pad=1, **attrs), 1e-5, count_include_pad=1,
         **attrs)
    case("max_pool", [x], onnx("MaxPool", [x], **attrs), **attrs)
case("lp_pool", [x], onnx("LpPool", [x], kernel_shape=[2, 2], p=3), 1e-5, kernel_shape=[2, 2], k=3)
case("max_pool", [x], onnx("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2]), kernel_shape=[2, 2], strides=[2, 2])
case("global_average_pool", [x], x.mean((2, 3), keepdims=True), 1e-6)

# ---- norms
x = values(np.float32, 2, 6, 3, 2)
s, b, m, v = values(np.float32, 6), values(np.float32, 6), values(np.float32, 6), values(np.float32, 6, low=0.1)
case("batch_norm", [x, s, b, m, v], onnx("BatchNormalization", [x, s, b, m, v], epsilon=1e-2), 1e-5, epsilon=1e-2)
case("instance_norm", [x, s, b], onnx("InstanceNormalization", [x, s, b], epsilon=1e-2), 1e-5, epsilon=1e-2)
y = wide(x).reshape(2, 3, -1)
y = ((y - y.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + 1e-2)).reshape(x.shape)
case("group_norm", [x, s, b], (y * wide(s).reshape(6, 1, 1) + wide(b).reshape(6, 1, 1)).astype(np.float32), 1e-5,
     epsilon=1e-2, group=3)
for p, axis in itertools.product((1, 2), (0, 1, 3)):
    norm = np.linalg.norm(wide(x), p, axis, True) # the evaluator forgets the absolute value for p = 1
    case("lp_normalize", [x], (x / norm).astype(np.float32), 1e-5, k=p, axis=axis)
case("lp_normalize", [np.zeros((2, 2), np.float32)], np.zeros((2, 2), np.float32), k=2, axis=1)

# ---- quantized forms
for dtype in (np.uint8, np.int8, np.int16, np.uint16):
    x = values(np.float32, 3, 4, low=-100, high=100)
    z = np.array(3, dtype)
    q = onnx("QuantizeLinear", [x, np.float32(0.7), z])[0]
    case("quantize_linear", [x, np.array(0.7, np.float32), z], q)
    case("dequantize_linear", [q, np.array(0.7, np.float32), z], onnx("DequantizeLinear", [q, np.float32(0.7), z]))
    s, z = values(np.float32, 4, low=0.1), values(dtype, 4, low=0)
    q = onnx("QuantizeLinear", [x, s, z], axis=1)[0]
    case("quantize_linear", [x, s, z], q, axis=1)
    case("dequantize_linear", [q, s, z], onnx("DequantizeLinear", [q, s, z], axis=1), axis=1)
    s, z = values(np.float32, 3, 2, low=0.1), values(dtype, 3, 2, low=0)
    q = onnx("QuantizeLinear", [x, s, z], axis=1, block_size=2)[0]
    case("quantize_linear", [x, s, z], q, axis=1, block_size=2)
    case("dequantize_linear", [q, s, z], onnx("DequantizeLinear", [q, s, z], axis=1, block_size=2), axis=1,
         block_size=2)
s = values(np.float32, 2, 4, low=0.1)
x = values(np.float32, 4, 4, low=-100, high=100)
q = onnx("QuantizeLinear", [x, s, np.zeros((2, 4), np.int8)], axis=0, block_size=2)[0]
case("quantize_linear", [x, s, np.zeros((2, 4), np.int8)], q, axis=0, block_size=2)
case("quantize_linear", [np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9], np.float32), np.array(1, np.float32)],
     np.array([0, 2, 2, 0, 255, 0], np.uint8))
case("quantize_linear", [np.array([np.nan, np.inf, -np.inf, 0], np.float32), np.array(np.inf, np.float32),
                         np.array(3, np.int8)], np.array([-128, -128, -128, 3], np.int8))  # as ONNX Runtime has it
x = values(np.int32, 5)
case("dequantize_linear", [x, np.array(0.5, np.float32)], (x * 0.5).astype(np.float32))
for x in (values(np.float32, 3, 4), np.abs(values(np.float32, 5)), -np.abs(values(np.float32, 5))):
    case("dynamic_quantize_linear", [x], onnx("DynamicQuantizeLinear", [x], 3), 0.0)
for a_type, b_type in itertools.product((np.uint8, np.int8), (np.uint8, np.int8)):
    a, b = values(a_type, 2, 3, 5, low=-128, high=127), values(b_type, 5, 4, low=-128, high=127)
    case("matmul_integer", [a, b], (a.astype(np.int32) @ b.astype(np.int32)))
    za, zb = np.array(7, a_type), values(b_type, 4, low=0)
    case("matmul_integer", [a, b, za, zb], (a.astype(np.int32) - 7) @ (b.astype(np.int32) - zb.astype(np.int32)))
    za = values(a_type, 3, low=0)
    case("matmul_integer", [a[0], b, za], (a[0].astype(np.int32) - za.astype(np.int32)[:, None]) @ b.astype(np.int32))
for bits, k, block, zero_kind, x_type in itertools.product((2, 4, 8, 3), (32, 40), (16, 32), ("none", "u8", "f"),
                                                            (np.float32, np.float16)):
    if (x_type == np.float16 and (bits != 4 or zero_kind == "f")) or (k == 32) != (block == 16):
        continue
    n, blocks = 17, (k + block - 1) // block
    q = rng.integers(0, 1 << bits, (n, blocks * block))
    scales = values(np.float32, n, blocks, low=0.1, high=1)
    zeros = np.full((n, blocks), 1 << (bits - 1), np.float32)
    zero_in = None
    def pack(a):
        raw = ((a[..., None] >> np.arange(bits)) & 1).reshape(a.shape[0], -1)
        raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
        return np.packbits(raw.astype(np.uint8), axis=1, bitorder="little")
    if zero_kind == "u8":
        zi = rng.integers(0, 1 << bits, (n, blocks))
        zeros, zero_in = zi.astype(np.float32), pack(zi).reshape(-1)
    elif zero_kind == "f":
        zeros = zero_in = values(np.float32, n, blocks)
    packed = np.stack([pack(q[:, i * block:(i + 1) * block]) for i in range(blocks)], 1)
    w = (q - np.repeat(zeros, block, 1)) * np.repeat(scales, block, 1)
    x, bias = values(x_type, 1, 3, k, low=-1, high=1), values(x_type, n)
    e = wide(x) @ wide(w[:, :k].T)
    case("matmul_nbits", [x, packed, scales.reshape(-1), zero_in, None, bias], (e + wide(bias)).astype(x_type),
         5e-5 if x_type == np.float32 else 2e-3, k=k, bits=bits, block_size=block)
    if zero_kind == "none" and x_type == np.float32:
        g = rng.integers(0, blocks, k).astype(np.int32)
        w = (q[:, :k] - zeros[:, g]) * scales[:, g]
        case("matmul_nbits", [x, packed, scales.reshape(-1), None, g], (wide(x) @ wide(w.T)).astype(np.float32), 5e-5,
             k=k, bits=bits, block_size=block)
for bits, with_zero in itertools.product((4, 8), (False, True)):
    q = rng.integers(0, 1 << bits, (6, 32))
    scales = values(np.float16 if with_zero else np.float32, 6, 2, low=0.1, high=1)
    z = rng.integers(0, 1 << bits, (6, 2)) if with_zero else np.full((6, 2), 1 << (bits - 1))
    pack = (lambda a: (a[:, 0::2] | a[:, 1::2] << 4).astype(np.uint8)) if bits == 4 else (lambda a: a.astype(np.uint8))
    i = np.array([[0, 5], [-1, 2]], np.int64)
    table = ((q - np.repeat(z, 16, 1)) * np.repeat(wide(scales), 16, 1)).astype(scales.dtype)
    case("gather_block_quantized", [pack(q), i, scales, pack(z) if with_zero else None], table[i],
         tolerance(scales.dtype), axis=1, bits=bits, block_size=16)
fails("gather_block_quantized", [pack(q), np.array([6], np.int64), scales], np.zeros((1, 32), np.float16), 3, axis=1,
      bits=8, block_size=16)

# ---- rotary
def rotate(x, c, s, rotary, interleaved):  # x [B,N,S,D]; c, s [B,S,R/2]
    c, s, x = wide(c)[:, None], wide(s)[:, None], wide(x)
    y = x.copy()
    a, b = (x[..., 0:rotary:2], x[..., 1:rotary:2]) if interleaved else np.split(x[..., :rotary], 2, axis=-1)
    real, imag = c * a - s * b, s * a + c * b
    if interleaved:
        y[..., 0:rotary:2], y[..., 1:rotary:2] = real, imag
    else:
        y[..., :rotary // 2], y[..., rotary // 2:rotary] = real, imag
    return y
for interleaved, rotary, dtype in itertools.product((0, 1), (0, 4), (np.float32, np.float16)):
    x = values(dtype, 2, 2, 5, 8)
    r = rotary or 8
    cos, sin = values(dtype, 7, r // 2, low=-1, high=1), values(dtype, 7, r // 2, low=-1, high=1)
    p = rng.integers(0, 7, (2, 5))
    e = rotate(x, cos[p], sin[p], r, interleaved)
    case("rotary", [x, cos, sin, p], e.astype(dtype), tolerance(dtype), interleaved=interleaved, rotary_dim=rotary)
    flat = x.transpose(0, 2, 1, 3).reshape(2, 5, 16)
    e3 = e.transpose(0, 2, 1, 3).reshape(2, 5, 16).astype(dtype)
    case("rotary", [flat, cos, sin, p], e3, tolerance(dtype), interleaved=interleaved, rotary_dim=rotary, heads=2)
    case("rotary", [x, cos[p], sin[p]], e.astype(dtype), tolerance(dtype), interleaved=interleaved, rotary_dim=rotary)
    e = rotate(x, np.stack([cos[2:7]] * 2), np.stack([sin[2:7]] * 2), r, interleaved)
    case("rotary", [x, cos, sin, np.array([2])], e.astype(dtype), tolerance(dtype), interleaved=interleaved,
         rotary_dim=rotary)
p[0, 0] = 7
fails("rotary", [x, cos, sin, p], x, 3, interleaved=1, rotary_dim=4)

# ---- einsum
for equation, shapes in [("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 2, 3), (2, 3, 2)]), ("ii->i", [(3, 3)]),
                         ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("...ij,...jk->...ik", [(2, 1, 3, 2), (4, 2, 3)]),
                         ("ij,jk", [(2, 3), (3, 4)]), ("i,j->ij", [(2,), (3,)]),
                         ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
                         ("b i d , b j d -> b i j", [(2, 3, 4), (2, 5, 4)]), ("ij,ij->i", [(3, 4), (3, 4)]),
                         ("i,i", [(4,), (4,)]), ("ab,bc,cd->ad", [(2, 3), (3, 2), (2, 4)]), ("ba", [(2, 3)]),
                         ("ij,jk->ik", [(2, 0), (0, 4)])]:
    for dtype in (np.float32, np.float64, np.int32):
        t = [values(dtype, *s) for s in shapes]
        case("einsum", t, np.asarray(np.einsum(equation.replace(" ", ""), *t)).astype(dtype), 1e-5, equation=equation)

with open(sys.argv[1] if len(sys.argv) > 1 else "cases.txt", "w") as f:
    f.write("\n".join(lines) + "\n")
