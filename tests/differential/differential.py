#!/usr/bin/env python3
"""Random encoders: the fused artifact against the unfused graph and against ONNX's reference evaluator.

    differential.py --driver BUILD/tests/differential/run_models [--count 1000] [--seed S] [--jobs 2] [--keep DIR]
    differential.py --driver ... --seed S --count 1 --verbose              one graph again
    differential.py --driver ... --choices '{"opset": 3, ...}' --seed S    a shrunk one again

Graph number i of a run is made from seed S + i alone. The rule: for each output, the largest difference is at most 1e-5 of
the largest magnitude in the reference. Token rows at mask 0 of a per-token output that are zeros are left out in a
packed artifact; half of the graphs keep their padding, there all rows count. Where the reference is NaN (no key left, -inf) there
is nothing to compare. The bound is wider, and said so in encoder.py, only for graphs with f16 products, and where rows
without keys meet a mask that is finite and small. An output whose f32 reference itself is off its f64 evaluation is bounded
by ten times that error; such graphs are counted and must be rare.
The graphs of found.txt, which were wrong once, are run too. The last line is 'N passed, N failed'. Without the onnx package: exit 77, a skip."""
import argparse
import collections
import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, numpy_helper
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    print(f"SKIP differential test: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)
import encoder
from graph_builder import TYPES

RUNS = 2
BOUND, ROWS_WITHOUT_KEYS_BOUND = 1e-5, 2e-2
NOISE_FACTOR = 10
# what must happen often enough for the test to mean something: shares of all graphs
LEAST = {"attention": 0.30, "layernorm": 0.45, "linear": 0.60, "embedding": 0.20, "gelu": 0.15, "gelu_tanh": 0.04,
         "quick_gelu": 0.03, "silu": 0.03, "rmsnorm": 0.10, "skip_layernorm": 0.25, "qkv": 0.15}
FOUND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "found.txt")  # graphs that were wrong once
NUMPY = {v: k for k, v in {np.float32: 1, np.int32: 6, np.int64: 7, np.bool_: 9, np.float16: 10}.items()}


# ------------------------------------------------------------------------------------------------ bundles
def write_bundle(path, data):
    with open(path, "wb") as f:
        f.write(struct.pack("<I", len(data)))
        for name, v in data.items():
            text = name.encode()
            f.write(struct.pack("<I", len(text)) + text)
            f.write(struct.pack("<III", int(onnx.helper.np_dtype_to_tensor_dtype(v.dtype)), 0, v.ndim))
            f.write(struct.pack(f"<{v.ndim}q", *v.shape) + v.tobytes())


def read_bundle(f):
    """[(name, array, one row a token)]"""
    result = []
    for _ in range(struct.unpack("<I", f.read(4))[0]):
        name = f.read(struct.unpack("<I", f.read(4))[0]).decode()
        dtype, flags, rank = struct.unpack("<III", f.read(12))
        shape = struct.unpack(f"<{rank}q", f.read(8 * rank))
        dtype = np.dtype(NUMPY[dtype])
        result.append((name, np.frombuffer(f.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape), flags & 1))
    return result


# ------------------------------------------------------------------------------------------------ the driver
class Driver:
    """One run_models process; a new one after a crash."""

    def __init__(self, path, log):
        self.path, self.log, self.process = path, log, None

    def run(self, words):
        if self.process is None:
            self.process = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"))
        try:
            self.process.stdin.write((" ".join(words) + "\n").encode())
            self.process.stdin.flush()
            line = self.process.stdout.readline().decode("utf-8", "replace").strip()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            self.process = None
            with open(self.log, errors="replace") as f:
                return f"crash {words[0]} exit {code}: {f.read()[-2000:]}"
        return line

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


# ------------------------------------------------------------------------------------------------ the reference
def as_double(model):
    """The same graph in f64, to tell a wrong number from an ill-conditioned one."""
    m = onnx.ModelProto()
    m.CopyFrom(model)

    def wide(t):
        return numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name) if t.data_type == TensorProto.FLOAT else t
    for i, t in enumerate(m.graph.initializer):
        m.graph.initializer[i].CopyFrom(wide(t))
    for node in m.graph.node:
        for a in node.attribute:
            if a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = TensorProto.DOUBLE
            elif a.HasField("t"):
                a.t.CopyFrom(wide(a.t))
    for port in [*m.graph.input, *m.graph.output]:
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.DOUBLE
    return m


def noise(model, data, index, rows):
    """Error of the f32 reference against f64, over the same elements."""
    try:
        double = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in data.items()}
        exact = ReferenceEvaluator(as_double(model)).run(None, double)[index]
        own = ReferenceEvaluator(model).run(None, data)[index]
        return largest(own, exact, rows)[0]
    except Exception:  # an operator that has no f64 form
        return 0.0


def largest(found, expected, rows):
    """(largest difference over the largest magnitude, elements that the reference leaves open)"""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if rows is not None:
        a, b = a[rows], b[rows]
    known = ~np.isnan(b)
    open_elements = b.size - int(known.sum())
    a, b = a[known], b[known]
    if not a.size:
        return 0.0, open_elements
    finite = np.isfinite(b)
    if (a[~finite] != b[~finite]).any() or not np.isfinite(a[finite]).all():
        return float("inf"), open_elements
    if not finite.any():
        return 0.0, open_elements
    worst, scale = np.abs(a[finite] - b[finite]).max(), np.abs(b[finite]).max()
    return float(worst / max(scale, 1e-6)), open_elements


# ------------------------------------------------------------------------------------------------ one graph
class Verdict:
    def __init__(self, kind, text=""):
        self.kind, self.text = kind, text  # passed, refused, failed, crashed
        self.fusions, self.worst, self.expected = {}, 0.0, {}
        self.open = self.compared = 0
        self.ill = False


def judge(g, model, data, masks, path, line):
    word, _, rest = line.partition(" ")
    v = Verdict({"ok": "passed", "refused": "refused", "crash": "crashed"}.get(word, "failed"))
    rest = rest.replace(os.path.dirname(path) + "/", "")
    if word != "ok":
        v.text = rest
        return v
    v.fusions = {k: int(n) for k, n in (w.split("=") for w in rest.split()[1:])}
    bound = g.tolerance
    if g.has_soft_fill and "rows_without_keys" in g.notes:
        # in a graph with f16 pieces -65504 is taken for f16's own -inf
        bound = float("inf") if {"f16", "f16_min"} <= g.notes else max(bound, ROWS_WITHOUT_KEYS_BOUND)
    evaluator = ReferenceEvaluator(model)
    with open(path, "rb") as f:
        for number in range(RUNS):
            fused, unfused = read_bundle(f), read_bundle(f)
            compare(g, model, evaluator, data[number], masks[number], number, fused, unfused, bound, v)
    return v


def compare(g, model, evaluator, data, mask, number, fused, unfused, bound, v):
    expected = evaluator.run(None, data)
    names = [o.name for o in model.graph.output]
    if [n for n, _, _ in fused] != names or [n for n, _, _ in unfused] != names:
        v.kind, v.text = "failed", f"outputs {[n for n, _, _ in fused]}, expected {names}"
        return
    for i, name in enumerate(names):
        found, plain, want = fused[i][1], unfused[i][1], expected[i]
        where = f"run {number}, {name} {list(want.shape)}"
        rows = None
        if found.shape != want.shape or plain.shape != want.shape or found.dtype != want.dtype:
            v.kind, v.text = "failed", f"{where}: fused {found.dtype}{list(found.shape)}, unfused {list(plain.shape)}, expected {want.dtype}"
            return
        if fused[i][2] and mask is not None and not g.keep_padding:
            if found.shape[:2] != mask.shape:
                v.kind, v.text = "failed", f"{where}: said to have a row for each token of a mask {list(mask.shape)}"
                return
            # zeros, or as the source has them where the graph does not hide them from attention
            rows = (mask != 0) | found.reshape(*mask.shape, -1).any(-1)
        for what, other, base in (("fused against the reference", found, want), ("unfused against the reference", plain, want),
                                  ("fused against unfused", found, plain)):
            error, unknown = largest(other, base, rows)
            if what.startswith("fused against the"):
                v.open, v.compared = v.open + unknown, v.compared + base.size
            if error > bound:
                own = noise(model, data, i, rows)
                # f16 products are computed in f32 in both artifacts: their roundings may be magnified behind them
                rounded = "f16" in g.notes and largest(found, plain, rows)[0] <= BOUND
                if error <= max(bound, NOISE_FACTOR * own) or rounded:
                    v.ill = True
                    continue
                v.kind, v.text = "failed", f"{where}: {what}: {error:.2g} of the largest, bound {bound:g} (the reference's own error {own:.1g})"
                return
            v.worst = max(v.worst, error if bound <= BOUND else 0)


def run_graph(driver, folder, seed, choices=None):
    g, model = encoder.make(seed, choices)
    path = os.path.join(folder, "g.onnx")
    with open(path, "wb") as f:
        f.write(model.SerializeToString())
    data, masks, words = [], [], [path]
    for i in range(RUNS):
        d, mask = encoder.feeds(g, i)
        data.append(d)
        masks.append(mask)
        words.append(os.path.join(folder, f"in{i}"))
        write_bundle(words[-1], d)
    out = os.path.join(folder, "out")
    line = driver.run([*words, out, *(["keep"] if g.keep_padding else [])])
    v = judge(g, model, data, masks, out, line)
    v.expected = g.expected
    return v, g, model, data


# ------------------------------------------------------------------------------------------------ shrinking
def shrink(driver, folder, seed, choices, kind, budget=400):
    """The fewest decisions that differ from the plain ones and still fail in the same way."""
    def still(c):
        nonlocal budget
        budget -= 1
        try:
            return run_graph(driver, folder, seed, c)[0].kind == kind
        except Exception:  # a choice that makes no graph
            return False
    best = dict(choices)
    if not still(best):
        return best
    changed = True
    while changed and budget > 0:
        changed = False
        groups = {".".join(k.split(".")[:n]) for k in best for n in range(1, k.count(".") + 1)}
        tries = [lambda k, p=p: k.startswith(p + ".") for p in sorted(groups, key=len)] + \
                [lambda k, w=w: k == w for w in sorted(best)]
        for hit in tries:
            smaller = {k: i for k, i in best.items() if not hit(k)}
            if len(smaller) < len(best) and budget > 0 and still(smaller):
                best, changed = smaller, True
    return best


def report(driver, folder, seed, v, opt):
    """Text of a failure, with the model shrunk and written."""
    g, _ = encoder.make(seed)
    small = shrink(driver, folder, seed, g.made, v.kind) if opt.shrink else g.made
    w, g, model, data = run_graph(driver, folder, seed, small)
    lines = [f"FAIL seed {seed}: {v.text}", f"  shrunk to {len(model.graph.node)} nodes: {w.text}",
             "  " + ", ".join(f"{k}={g.asked[k]}" for k in sorted(small) if k in g.asked)]
    if opt.keep:
        os.makedirs(opt.keep, exist_ok=True)
        base = os.path.join(opt.keep, f"seed_{seed}")
        with open(base + ".onnx", "wb") as f:
            f.write(model.SerializeToString())
        np.savez(base + ".npz", **{f"run{i}.{k}": a for i, d in enumerate(data) for k, a in d.items()})
        lines.append(f"  model {base}.onnx, inputs {base}.npz")
    lines.append(f"  again: --seed {seed} --choices '{json.dumps(small)}'" + (" (padding kept)" if g.keep_padding else ""))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ the run
def found_graphs():
    """(seed, choices, title) of each line 'SEED CHOICES # TITLE'."""
    with open(FOUND) as f:
        for line in f:
            text, _, title = line.partition("#")
            if text.strip():
                seed, _, choices = text.strip().partition(" ")
                yield int(seed), json.loads(choices), title.strip()


def again(opt, results):
    folder = tempfile.mkdtemp(prefix="lathe-differential-")
    driver = Driver(opt.driver, os.path.join(folder, "log"))
    for seed, choices, title in found_graphs():
        v = run_graph(driver, folder, seed, choices)[0]
        if v.kind != "passed":
            print(f"FAIL {title}: {v.text}\n  again: --seed {seed} --choices '{json.dumps(choices)}'", flush=True)
            v.kind = "failed"
        results.append(v)
    driver.close()
    shutil.rmtree(folder, ignore_errors=True)


def work(task):
    opt, seeds, number = task
    np.seterr(all="ignore")
    folder = tempfile.mkdtemp(prefix="lathe-differential-")
    driver = Driver(opt.driver, os.path.join(folder, "log"))
    results = []
    try:
        for seed in seeds:
            try:
                v = run_graph(driver, folder, seed)[0]
            except Exception as error:
                v = Verdict("failed", f"the test could not make it: {type(error).__name__}: {error}")
            if v.kind in ("failed", "crashed") and sum(r.kind == v.kind for r in results) < opt.most_failures:
                try:
                    v.text = report(driver, folder, seed, v, opt)
                except Exception as error:
                    v.text = f"FAIL seed {seed}: {v.text} (not shrunk: {error})"
                print(v.text, flush=True)
            elif v.kind == "refused" and opt.verbose:
                print(f"refused seed {seed}: {v.text}", flush=True)
            results.append(v)
    finally:
        driver.close()
        shutil.rmtree(folder, ignore_errors=True)
    return results


def options(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--driver", required=True, help="the program run_models")
    ap.add_argument("--count", type=int, default=1000)
    ap.add_argument("--seed", default="1", help="a number, or 'random'")
    ap.add_argument("--jobs", type=int, default=2)
    ap.add_argument("--keep", metavar="DIR", help="write shrunk models here")
    ap.add_argument("--choices", help="decisions of one graph as JSON")
    ap.add_argument("--no-shrink", dest="shrink", action="store_false")
    ap.add_argument("--most-failures", type=int, default=5, help="failures that are shrunk, a job")
    ap.add_argument("--verbose", action="store_true")
    opt = ap.parse_args(argv)
    opt.driver = os.path.abspath(opt.driver)
    opt.seed = int.from_bytes(os.urandom(3), "little") if opt.seed == "random" else int(opt.seed)
    return opt


def one(opt):
    folder = opt.keep or tempfile.mkdtemp(prefix="lathe-differential-")
    os.makedirs(folder, exist_ok=True)
    driver = Driver(opt.driver, os.path.join(folder, "log"))
    v, g, model, _ = run_graph(driver, folder, opt.seed, json.loads(opt.choices) if opt.choices else None)
    driver.close()
    print(onnx.printer.to_text(model) if opt.verbose else f"{len(model.graph.node)} nodes")
    print(f"choices {json.dumps(g.made)}\nfusions {v.fusions} of {g.expected}\n{v.kind}: {v.text}, in {folder}")
    return v.kind in ("failed", "crashed")


def summary(results, seconds):
    n = len(results)
    kinds = collections.Counter(v.kind for v in results)
    failed = kinds["failed"] + kinds["crashed"]
    fired, graphs, expected = collections.Counter(), collections.Counter(), collections.Counter()
    for v in results:
        fired.update(v.fusions)
        graphs.update(k for k, c in v.fusions.items() if c)
        if v.kind == "passed":
            expected.update(v.expected)
    print("fusion            fired  in graphs  honest spellings")
    for k in sorted(fired):
        if fired[k] and not k.startswith("warning"):
            print(f"{k:<16} {fired[k]:>6}  {graphs[k]:>9}  {expected.get(k, ''):>6}")
    print("warnings: " + (", ".join(f"{k[8:]} in {c}" for k, c in sorted(graphs.items()) if k.startswith("warning:")) or "none"))
    for text, c in collections.Counter(v.text.split(":", 1)[-1].strip()[:110] for v in results if v.kind == "refused").most_common(8):
        print(f"refused {c}: {text}")
    few = [f"{k} fused in {graphs[k]} of {n} graphs, at least {int(share * n)} expected" for k, share in LEAST.items()
           if n >= 200 and graphs[k] < int(share * n)]
    ill, open_elements, compared = sum(v.ill for v in results), sum(v.open for v in results), sum(v.compared for v in results)
    if n >= 200 and ill > n // 50:
        few.append(f"{ill} graphs are ill-conditioned")
    if n >= 200 and open_elements > compared // 20:
        few.append(f"{open_elements} of {compared} elements are NaN in the reference")
    if n >= 200 and kinds["refused"] > n // 50:
        few.append(f"{kinds['refused']} graphs were refused")
    for text in few:
        print("FAIL " + text)
    print(f"{n} graphs in {seconds:.0f} s: {kinds['passed']} agree, largest difference {max(v.worst for v in results):.2g} of the largest "
          f"magnitude; {kinds['refused']} refused, {ill} ill-conditioned, {open_elements} of {compared} elements NaN in the reference")
    print(f"{kinds['passed']} passed, {failed + len(few)} failed")
    return failed + len(few) > 0


def main(argv=None):
    opt = options(argv)
    if opt.choices or opt.count == 1:
        return one(opt)
    start = time.time()
    print(f"seeds {opt.seed} to {opt.seed + opt.count - 1}", flush=True)
    tasks = [(opt, range(opt.seed + i, opt.seed + opt.count, opt.jobs), i) for i in range(opt.jobs)]
    with multiprocessing.Pool(opt.jobs) as pool:
        results = [v for part in pool.map(work, tasks) for v in part]
    np.seterr(all="ignore")
    again(opt, results)
    return summary(results, time.time() - start)


if __name__ == "__main__":
    sys.exit(main())
