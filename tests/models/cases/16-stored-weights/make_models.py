#!/usr/bin/env python3
"""Writes the models and data of this case: weights as exporters and quantizers store them in few bits.

    python make_models.py DIR        needs numpy, onnx and onnxruntime; the same bytes on every machine with the same versions

Each model is two products with a ReLU between, x [batch, seq, 96] -> 192 -> 96, or looks ids up in a table. Expected
outputs are ONNX Runtime's with all optimizations off.
"""
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as oh
from onnx import numpy_helper as nh

K, N, V, H = 96, 192, 300, 64
MS = "com.microsoft"


class Graph:
    """Collects nodes and initializers; names are made from a counter."""

    def __init__(self, opset, seed):
        self.nodes, self.inits, self.opset, self.ms, self.n = [], [], opset, False, 0
        self.rng = np.random.default_rng(seed)

    def const(self, a, name="c"):
        self.n += 1
        self.inits.append(nh.from_array(np.ascontiguousarray(a), f"{name}{self.n}"))
        return self.inits[-1].name

    def op(self, kind, *inputs, outs=1, domain="", **attrs):
        self.n += 1
        names = [f"v{self.n}_{i}" for i in range(outs)]
        self.ms |= domain == MS
        self.nodes.append(oh.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if outs == 1 else names

    def weight(self, k, n):
        """Columns of different size, as layers have them."""
        return (self.rng.standard_normal((k, n)) * (0.3 + self.rng.random(n)) / np.sqrt(k)).astype(np.float32)

    def save(self, path, x, y, elem=T.FLOAT, shape=("batch", "seq", K), out=("batch", "seq", K)):
        self.nodes.append(oh.make_node("Identity", [y], ["y"]))
        g = oh.make_graph(self.nodes, "g", [oh.make_tensor_value_info(x, elem, shape)],
                          [oh.make_tensor_value_info("y", T.FLOAT, out)], self.inits)
        opsets = [oh.make_opsetid("", self.opset)] + ([oh.make_opsetid(MS, 1)] if self.ms else [])
        m = oh.make_model(g, opset_imports=opsets, ir_version=10 if self.opset >= 21 else 8)
        onnx.save(m, path + ".onnx")


def s8(w, axis, top=127):
    s = np.abs(w).max(axis=axis, keepdims=True) / top if axis is not None else np.abs(w).max() / top
    s = np.asarray(s, np.float32)
    return np.clip(np.rint(w / s), -top, top).astype(np.int8), s


def u8(w, zero):
    s = np.float32(max(w.max() / (255 - zero), -w.min() / zero))
    return np.clip(np.rint(w / s) + zero, 0, 255).astype(np.uint8), s


# ---- weight-only: w(graph, matrix) gives a value of f32 [k, n]
def dq_tensor(g, w):
    q, s = s8(w, None)
    return g.op("DequantizeLinear", g.const(q), g.const(s))


def dq_column(g, w):
    q, s = s8(w, 0)
    return g.op("DequantizeLinear", g.const(q), g.const(s[0]), axis=1)


def dq_transposed(g, w):
    q, s = s8(w.T, 1)
    return g.op("Transpose", g.op("DequantizeLinear", g.const(q), g.const(s[:, 0]), axis=0), perm=[1, 0])


def dq_middle(g, w):
    q, s = u8(w, 128)
    return g.op("DequantizeLinear", g.const(q), g.const(s), g.const(np.uint8(128)))


def dq_odd(g, w):
    q, s = u8(w, 101)
    return g.op("DequantizeLinear", g.const(q), g.const(s), g.const(np.uint8(101)))


def dq_blocks(g, w):
    k, n = w.shape
    q, s = s8(w.reshape(k // 32, 32, n), 1, 7)
    return g.op("DequantizeLinear", g.const(q.reshape(k, n)), g.const(s[:, 0]), axis=0, block_size=32)


def cast_scale(g, w):
    q, s = s8(w, 0)
    return g.op("Mul", g.op("Cast", g.const(q), to=T.FLOAT), g.const(s))


def cast_zero_scale(g, w):
    q, s = s8(w.T, 1, 100)
    f = g.op("Sub", g.op("Cast", g.const(q + np.int8(9)), to=T.FLOAT), g.const(np.float32(9)))
    return g.op("Transpose", g.op("Mul", g.const(s), f), perm=[1, 0])


def cast_f16(g, w):
    return g.op("Cast", g.const(w.astype(np.float16)), to=T.FLOAT)


def cast_bf16(g, w):
    bits = (w.view(np.uint32) >> 16).astype(np.uint16)
    g.n += 1
    t = oh.make_tensor(f"b{g.n}", T.BFLOAT16, w.shape, bits.tobytes(), raw=True)
    g.inits.append(t)
    return g.op("Cast", t.name, to=T.FLOAT)


# ---- products: p(graph, value, matrix, bias) gives x w + bias
def plain(form):
    def product(g, x, w, b):
        return g.op("Add", g.op("MatMul", x, form(g, w)), g.const(b))
    return product


def fake(g, x, low, high):
    s = np.float32((high - low) / 255)
    z = np.uint8(np.clip(np.rint(-low / s), 0, 255))
    s, z = g.const(s), g.const(z)
    return g.op("QuantizeLinear", x, s, z), s, z


def qdq(form):
    def product(g, x, w, b):
        q, s, z = fake(g, x, *g.ranges.pop(0))
        return g.op("Add", g.op("MatMul", g.op("DequantizeLinear", q, s, z), form(g, w)), g.const(b))
    return product


def dynamic(g, x, w, b):
    q, s = s8(w, 0)
    a, sa, za = g.op("DynamicQuantizeLinear", x, outs=3)
    m = g.op("Cast", g.op("MatMulInteger", a, g.const(q), za, g.const(np.zeros(w.shape[1], np.int8))), to=T.FLOAT)
    return g.op("Add", g.op("Mul", m, g.op("Mul", sa, g.const(s[0]))), g.const(b))


def qlinear(g, x, w, b):
    q, s = s8(w, None)
    a, sa, za = fake(g, x, *g.ranges.pop(0))
    low, high = g.ranges.pop(0)
    so, zo = np.float32((high - low) / 255), np.uint8(np.rint(-low / ((high - low) / 255)))
    so, zo = g.const(so), g.const(zo)
    y = g.op("QLinearMatMul", a, sa, za, g.const(q), g.const(s), g.const(np.int8(0)), so, zo)
    return g.op("Add", g.op("DequantizeLinear", y, so, zo), g.const(b))


def ms_dynamic(g, x, w, b):
    q, s = s8(w, 0)
    return g.op("DynamicQuantizeMatMul", x, g.const(q), g.const(s[0]), "", g.const(b), domain=MS)


def ms_integer(g, x, w, b):
    q, s = s8(w, None)
    a, sa, za = g.op("DynamicQuantizeLinear", x, outs=3)
    return g.op("MatMulIntegerToFloat", a, g.const(q), sa, g.const(s), za, g.const(np.int8(0)), g.const(b), domain=MS)


def nbits(bits, zeros, block=32):
    def product(g, x, w, b):
        k, n = w.shape
        blocks = -(-k // block)
        v = np.pad(w.T, ((0, 0), (0, blocks * block - k))).reshape(n, blocks, block)
        low, high = np.minimum(v.min(2), 0), np.maximum(v.max(2), 0)
        top = (1 << bits) - 1
        if zeros:
            s = (high - low) / top
            z = np.rint(-low / s)
        else:
            s = np.maximum(high, -low) / (top // 2)
            z = np.full_like(s, 1 << (bits - 1))
        s = s.astype(np.float32)
        q = np.clip(np.rint(v / s[:, :, None]) + z[:, :, None], 0, top).astype(np.uint8)
        pack = (lambda a: a[..., 0::2] | a[..., 1::2] << 4) if bits == 4 else (lambda a: a)
        zp = z.astype(np.uint8)
        if blocks % 2 and bits == 4:
            zp = np.concatenate([zp, np.zeros((n, 1), np.uint8)], 1)
        ins = [x, g.const(pack(q)), g.const(s)] + ([g.const(pack(zp))] if zeros else [])
        y = g.op("MatMulNBits", *ins, domain=MS, K=k, N=n, bits=bits, block_size=block)
        return g.op("Add", y, g.const(b))
    return product


PRODUCTS = {  # name: (opset, product)
    "dq-tensor": (13, plain(dq_tensor)), "dq-column": (13, plain(dq_column)), "dq-transposed": (17, plain(dq_transposed)),
    "dq-u8-middle": (13, plain(dq_middle)), "dq-u8-odd": (13, plain(dq_odd)), "dq-blocks": (21, plain(dq_blocks)),
    "cast-scale": (17, plain(cast_scale)), "cast-zero-scale": (17, plain(cast_zero_scale)),
    "cast-f16": (17, plain(cast_f16)), "cast-bf16": (17, plain(cast_bf16)),
    "qdq-tensor": (13, qdq(dq_tensor)), "qdq-column": (13, qdq(dq_column)), "qlinear": (13, qlinear),
    "dynamic": (13, dynamic), "ms-dynamic": (13, ms_dynamic), "ms-integer": (13, ms_integer),
    "nbits-4": (17, nbits(4, False)), "nbits-4-zeros": (17, nbits(4, True)), "nbits-8-zeros": (17, nbits(8, True)),
    "nbits-8-column": (17, nbits(8, False, 256)),
}


def two_products(path, name, seed):
    opset, product = PRODUCTS[name]
    g = Graph(opset, seed)
    g.ranges = [(-4, 4), (0, 5)] if not name.startswith("qlinear") else [(-4, 4), (-6, 6), (0, 5), (-6, 6)]
    w1, w2 = g.weight(K, N), g.weight(N, K)
    b1, b2 = (g.rng.standard_normal(n).astype(np.float32) * 0.1 for n in (N, K))
    y = product(g, g.op("Relu", product(g, "x", w1, b1)), w2, b2)
    g.save(path, "x", y)
    return {"x": np.clip(g.rng.standard_normal((2, 5, K)), -3.9, 3.9).astype(np.float32)}


# ---- tables
def table(path, form, seed):
    g = Graph(17, seed)
    t = (g.rng.standard_normal((V, H)) * 0.1).astype(np.float32)
    if form == "table-tied":
        e = g.op("Gather", g.const(t), "ids")
    elif form == "table-tied-f16":
        e = g.op("Cast", g.op("Gather", g.const(t.astype(np.float16)), "ids"), to=T.FLOAT)
    elif form == "table-row":
        q, s = s8(t, 1)
        e = g.op("Gather", g.op("DequantizeLinear", g.const(q), g.const(s[:, 0]), axis=0), "ids")
    elif form == "table-column":
        q, s = s8(t, 0)
        e = g.op("Gather", g.op("DequantizeLinear", g.const(q), g.const(s[0]), axis=1), "ids")
    else:
        q, s = u8(t, 121)
        e = g.op("DequantizeLinear", g.op("Gather", g.const(q), "ids"), g.const(s), g.const(np.uint8(121)))
    gamma = g.const((1 + 0.1 * g.rng.standard_normal(H)).astype(np.float32))
    x = g.op("LayerNormalization", e, gamma, g.const(np.zeros(H, np.float32)), axis=-1, epsilon=1e-5)
    if form == "table-tied":  # as the TorchScript exporter writes it: a transposed copy
        x = g.op("MatMul", x, g.const(t.T))
    elif form == "table-tied-f16":
        x = g.op("MatMul", x, g.op("Cast", g.const(t.T.astype(np.float16)), to=T.FLOAT))
    g.save(path, "ids", x, T.INT64, ("batch", "seq"), ("batch", "seq", V if "tied" in form else H))
    return {"ids": g.rng.integers(0, V, (2, 5))}


def summand(path, seed):
    """A constant that no product reads: it is widened in the run, and the artifact does not grow."""
    g = Graph(17, seed)
    q, s = s8(g.rng.standard_normal((1, N, K)).astype(np.float32), None)
    y = g.op("Mul", g.op("Add", "x", g.op("DequantizeLinear", g.const(q), g.const(s))),
             g.op("Cast", g.const(g.rng.standard_normal((1, N, K)).astype(np.float16)), to=T.FLOAT))
    g.save(path, "x", y, T.FLOAT, ("batch", N, K), ("batch", N, K))
    return {"x": g.rng.standard_normal((1, N, K)).astype(np.float32)}


def save_data(folder, feeds, path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path + ".onnx", options, providers=["CPUExecutionProvider"])
    os.makedirs(folder, exist_ok=True)
    for i, (name, a) in enumerate(feeds.items()):
        with open(f"{folder}/input_{i}.pb", "wb") as f:
            f.write(nh.from_array(a, name).SerializeToString())
    with open(f"{folder}/output_0.pb", "wb") as f:
        f.write(nh.from_array(session.run(None, feeds)[0], "y").SerializeToString())


def main(out):
    names = [(n, lambda p, s, n=n: two_products(p, n, s)) for n in PRODUCTS]
    names += [(n, lambda p, s, n=n: table(p, n, s)) for n in
              ("table-tied", "table-tied-f16", "table-row", "table-column", "table-u8")]
    names += [("summand", summand)]
    for seed, (name, make) in enumerate(names):
        path = os.path.join(out, name)
        save_data(os.path.join(path, "test_data_set_0"), make(path, seed), path)


if __name__ == "__main__":
    main(sys.argv[1])
