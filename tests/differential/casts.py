#!/usr/bin/env python3
"""Cast policies against an emulation in numpy: one encoder layer with a classifier, compiled with --cast none, matmul
and all, run, and compared with the same layer in f64 whose tensors are rounded where compiler/IR.md ("Casts") says.

    casts.py --lathe BUILD/lathe [--seeds 4]

With `all` the elements must be those of the emulation bit by bit, but for the few where f32 sums and f64 sums lie on
two sides of a tie, and what follows from those. The last line is 'N passed, N failed'. Without the onnx package: exit
77."""
import argparse
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save
except ImportError as error:
    print(f"SKIP cast policies: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

B, S, H, HEADS, FFN, VOCAB, CLASSES = 3, 9, 32, 2, 64, 50, 3
LENGTHS = [9, 4, 1]


def bf16(x):
    """Round to nearest, ties to even, of f64 straight to 8 significant bits."""
    m, e = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.rint(m * 256), e - 8)


def weights(seed):
    r = np.random.default_rng(seed)
    shapes = {"table": (VOCAB, H), "q": (H, H), "k": (H, H), "v": (H, H), "o": (H, H), "up": (H, FFN), "down": (FFN, H),
              "head": (H, CLASSES)}
    w = {n: r.normal(0, 1 if n == "table" else shape[0] ** -0.5, shape) for n, shape in shapes.items()}
    w |= {n + "_b": r.normal(0, 0.3, shape[1]) for n, shape in shapes.items() if n != "table"}
    for n in ("n0", "n1", "n2"):
        w[n + "_g"], w[n + "_b"] = r.normal(1, 0.2, H), r.normal(0, 0.2, H)
    return {n: v.astype(np.float32) for n, v in w.items()}


def model(w, path):
    nodes, consts = [], [numpy_helper.from_array(v, n) for n, v in w.items()]

    def const(name, value):
        consts.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(kind, *inputs, **attrs):
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attrs))
        return name

    def linear(x, n):
        return op("Add", op("MatMul", x, n), n + "_b")

    def norm(x, n):
        return op("LayerNormalization", x, n + "_g", n + "_b", axis=-1, epsilon=1e-5)

    split, merge = const("split", np.array([0, 0, HEADS, H // HEADS])), const("merge", np.array([0, 0, H]))
    x = norm(op("Gather", "table", "input_ids", axis=0), "n0")
    q, k, v = (op("Transpose", op("Reshape", linear(x, n), split), perm=[0, 2, 1, 3]) for n in "qkv")
    off = op("Mul", op("Sub", const("one", np.float32(1)),
                       op("Unsqueeze", op("Cast", "attention_mask", to=TensorProto.FLOAT),
                          const("axes", np.array([1, 2])))),
             const("least", np.float32(-3.4028235e38)))
    scores = op("Mul", op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2])), const("scale", np.float32(0.25)))
    a = op("MatMul", op("Softmax", op("Add", scores, off), axis=-1), v)
    a = op("Reshape", op("Transpose", a, perm=[0, 2, 1, 3]), merge)
    x = norm(op("Add", linear(a, "o"), x), "n1")
    up = linear(x, "up")
    erf = op("Add", op("Erf", op("Div", up, const("root", np.float32(2 ** 0.5)))), "one")
    y = linear(op("Mul", op("Mul", up, erf), const("half", np.float32(0.5))), "down")
    x = norm(op("Add", y, x), "n2")
    first = op("Gather", x, const("zero", np.int64(0)), axis=1)
    logits = op("Gemm", first, "head", "head_b")
    outputs = [("hidden", x, ["batch", "seq", H]), ("logits", logits, ["batch", CLASSES])]
    nodes += [helper.make_node("Identity", [v], [n]) for n, v, _ in outputs]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"])
           for n in ("input_ids", "attention_mask")]
    graph = helper.make_graph(nodes, "layer", ids, [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
                                                    for n, _, dims in outputs], consts)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def erf(x):
    from math import erf as one
    return np.vectorize(one)(x)


def emulate(w, ids, mask, policy):
    """`tensor` rounds what stands between two steps, `factor` what a product reads."""
    tensor = bf16 if policy == "all" else lambda x: x
    factor = bf16 if policy != "none" else lambda x: x
    w = {n: v.astype(np.float64) for n, v in w.items()}
    c = {n: tensor(v) for n, v in w.items()}

    def linear(x, n, act=lambda v: v, small=False):
        f = tensor if small else factor  # matmul leaves products of a few columns alone
        return tensor(act(f(x) @ f(w[n]) + c[n + "_b"]))

    def norm(x, n):
        d = x - x.mean(-1, keepdims=True)
        return tensor(d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * c[n + "_g"] + c[n + "_b"])

    def heads(x):
        return x.reshape(B, S, HEADS, H // HEADS).transpose(0, 2, 1, 3)

    x = norm(c["table"][ids], "n0")
    q, k, v = (heads(linear(x, n)) for n in "qkv")
    scores = q @ k.transpose(0, 1, 3, 2) * 0.25
    scores = np.where(mask[:, None, None, :] > 0, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    a = tensor((p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(B, S, H))
    x = norm(linear(a, "o") + x, "n1")
    up = linear(x, "up", lambda v: 0.5 * v * (1 + erf(v / 2 ** 0.5)))
    x = norm(linear(up, "down") + x, "n2")
    return {"hidden": x, "logits": linear(x[:, 0], "head", small=True)}


def lathe(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")


def compare(policy, want, got, mask):
    """What is wrong, or None."""
    for name in want:
        rows = mask > 0 if name == "hidden" else slice(None)
        e, g = want[name][rows], got[name][rows].astype(np.float64)
        off = np.abs(g - e)
        if policy == "all":
            wrong = np.sum(g != e)
            if not np.array_equal(bf16(g), g):
                return f"{name}: holds numbers that are not bf16"
            if wrong > max(0.03 * g.size, 3) or off.max() > 4 * 2.0 ** -8 * max(1, np.abs(e).max()):
                return f"{name}: {wrong} of {g.size} elements are not the emulation's, largest error {off.max():.3g}"
        elif off.max() > (1e-5 if policy == "none" else 5e-3):
            return f"{name}: largest error {off.max():.3g}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    passed = failed = 0
    mask = np.array([[int(i < n) for i in range(S)] for n in LENGTHS])
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        np.save(at("mask.npy"), mask)
        for seed in range(args.seeds):
            w = weights(seed)
            ids = np.random.default_rng(seed + 1000).integers(0, VOCAB, (B, S))
            np.save(at("ids.npy"), ids)
            model(w, at("m.onnx"))
            want = {p: emulate(w, ids, mask, p) for p in ("none", "matmul", "all")}
            # a policy that rounds less, or more, would be seen
            assert all(np.mean(bf16(want[p]["hidden"]) == want["all"]["hidden"]) < 0.8 for p in ("none", "matmul"))
            for policy in want:
                lathe(args.lathe, "compile", at("m.onnx"), "-o", at("m.lathe"), "--target", "znver4", "--cast", policy)
                for kernels in ([], ["--cpumask", "0", "--threads", "1"]):
                    lathe(args.lathe, "run", at("m.lathe"), "--input", "input_ids=" + at("ids.npy"), "--input",
                          "attention_mask=" + at("mask.npy"), "--output-dir", at("out"), *kernels)
                    got = {n: np.load(at(f"out/{n}.npy")) for n in ("hidden", "logits")}
                    wrong = compare(policy, want[policy], got, mask)
                    if wrong:
                        print(f"FAIL --cast {policy}, seed {seed}{', plain C' if kernels else ''}: {wrong}")
                    passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
