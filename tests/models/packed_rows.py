#!/usr/bin/env python3
"""Batches that are computed on their real tokens: nothing else may change.

    python packed_rows.py --lathe build/lathe DIR... [--only SUBSTRING] [--jobs N]

For each model.onnx under DIR that has an attention mask: a batch with no padding, padding right and left, a hole in the
mask, one real token and none at all, random ids under the padding. The packed artifact must give what an artifact with
--keep-padding and unfused attention gives (1e-4 + 1e-3 |x|) on real tokens and on outputs without tokens; zeros at masked
tokens; the same bits for each sequence alone, cut to its tokens, and with more padding; and nearly the same by the model
with its length fixed. The report must say that the rows are packed, or why not. One line per failure; the last line is 'N
passed, N failed'.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx

# what is not packed, and the words of the reason
NOT_PACKED = {
    "_qdq_": "no attention was recognised",
    "_qdyn": "one range is that of all tokens",
    "convbert": "in part: 1 of 2 attentions",
    "qa_ts17_static": "does not show its tokens",
}
IMAGES = "no padding to leave out"
TYPES = {"i64": np.int64, "i32": np.int32, "f32": np.float32, "bool": np.bool_}
SEQ, MORE = 13, 7


def call(*args):
    r = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        raise RuntimeError(f"{args[1]} gave exit {r.returncode}: {(r.stderr or r.stdout).strip().splitlines()[-1:]}")
    return r.stdout


class Model:
    def __init__(self, lathe, path, work):
        self.lathe, self.path, self.work, self.runs = lathe, path, work, 0
        self.packed, self.plain = os.path.join(work, "packed.lathe"), os.path.join(work, "plain.lathe")
        call(lathe, "compile", path, "-o", self.packed, "--report", work + "/r.json")
        self.report = json.load(open(work + "/r.json"))
        self.inputs = self.report["shapes"]["inputs"]
        self.mask = next((i for i in self.inputs if "attention_mask" in i["name"]), None)

    def run(self, artifact, feeds):
        self.runs += 1
        folder = os.path.join(self.work, str(self.runs))
        os.makedirs(folder + "/out")
        args = []
        for name, value in feeds.items():
            file = f"{folder}/{len(args)}.npy"
            np.save(file, value)
            args += ["--input", f"{name}={file}"]
        call(self.lathe, "run", artifact, *args, "--output-dir", folder + "/out", "--allow-nonfinite")
        safe = lambda n: "".join(c if c.isalnum() and c.isascii() or c in "._-" else "_" for c in n)
        return {o["name"]: np.load(f"{folder}/out/{safe(o['name'])}.npy") for o in self.report["shapes"]["outputs"]}

    def by_token(self, output):
        tokens = self.mask["shape"]
        return output["shape"][:len(tokens)] == tokens and isinstance(tokens[-1], str)

    def size(self, dim, batch, seq):
        return dim if isinstance(dim, int) else seq if dim == self.mask["shape"][-1] else \
            batch if dim == self.mask["shape"][0] else 3


def floats(x):
    """float32 of any output; bf16 is stored as 2 raw bytes"""
    if x.dtype.kind == "V" and x.dtype.itemsize == 2:
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def masks(batch, seq, rng):
    mask = np.ones((batch, seq), np.int64)
    for b in range(batch):
        kind = b % 6
        if kind == 1:
            mask[b, seq - 5:] = 0
        elif kind == 2:
            mask[b, :4] = 0
        elif kind == 3:
            mask[b, [2, 3, seq - 2]] = 0
        elif kind == 4:
            mask[b] = 0
        elif kind == 5:
            mask[b, 1:] = 0
    return mask


def feed(m, seed):
    rng = np.random.default_rng(seed)
    batch, seq = m.size(m.mask["shape"][0], 6, SEQ), m.size(m.mask["shape"][-1], 6, SEQ)
    feeds = {}
    for i in m.inputs:
        shape = [m.size(d, batch, seq) for d in i["shape"]]
        dtype = TYPES[i["dtype"]]
        if i is m.mask:
            feeds[i["name"]] = masks(int(np.prod(shape[:-1])), seq, rng).reshape(shape).astype(dtype)
        elif dtype == np.float32:
            feeds[i["name"]] = rng.standard_normal(shape, np.float32)
        elif "type" in i["name"]:
            feeds[i["name"]] = rng.integers(0, 1, shape).astype(dtype)
        elif "bbox" in i["name"]:
            feeds[i["name"]] = np.sort(rng.integers(0, 30, shape), axis=-1).astype(dtype)
        elif "position" in i["name"]:
            feeds[i["name"]] = np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
        else:
            feeds[i["name"]] = rng.integers(2, 50, shape).astype(dtype)
    return feeds, batch, seq


def cut(m, feeds, rows, seq):
    """The same feeds for these sequences, cut to a length, or with more masked tokens."""
    out = {}
    for i in m.inputs:
        x = feeds[i["name"]]
        for axis, d in enumerate(i["shape"]):
            if d == m.mask["shape"][0] and not isinstance(d, int):
                x = x.take(rows, axis=axis)
            elif d == m.mask["shape"][1] and not isinstance(d, int):
                if seq <= x.shape[axis]:
                    x = x.take(range(seq), axis=axis)
                else:
                    more = [(0, 0)] * x.ndim
                    more[axis] = (0, seq - x.shape[axis])
                    x = np.pad(x, more, constant_values=0 if i is m.mask or "type" in i["name"] else 3)
        out[i["name"]] = np.ascontiguousarray(x)
    return out


def fix_length(m, seq, path):
    """The model for this one length, of any number of sequences."""
    model = onnx.load(m.path)
    inputs = {i["name"]: i["shape"] for i in m.inputs}
    for i in model.graph.input:
        for axis, d in enumerate(inputs.get(i.name, [])):
            if d == m.mask["shape"][-1]:
                i.type.tensor_type.shape.dim[axis].dim_value = seq
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")
    onnx.save(model, path)


def check(lathe, path, work):
    name = os.path.basename(os.path.dirname(path))
    m, bad = Model(lathe, path, work), []
    says = m.report["notes"].get("packed_rows", "")
    codes = {w["code"] for w in m.report["warnings"]}
    wanted = [v for k, v in NOT_PACKED.items() if k in name][-1:] or (["true"] if m.mask else [IMAGES])
    if wanted[0] not in says:
        bad.append(f"packed_rows is '{says}', expected '{wanted[0]}'")
    if "PASS_UNDONE" in codes:
        bad.append("a pass was undone")
    if not m.mask:
        return bad
    # in f16 a mask swallows the scores, which unfused products in f32 do not show where no key is left
    call(lathe, "compile", path, "-o", m.plain, "--keep-padding",
         *([] if "fp16" in name else ["--disable", "fuse_attention"]))
    feeds, batch, seq = feed(m, len(name))
    mask = feeds[m.mask["name"]] != 0
    got, plain = m.run(m.packed, feeds), m.run(m.plain, feeds)
    for o in m.report["shapes"]["outputs"]:
        g, p = floats(got[o["name"]]), floats(plain[o["name"]])
        tokens = m.by_token(o)
        if tokens and "no attention_mask" not in says and np.any(g[~mask] != 0):
            bad.append(f"{o['name']}: a masked token is not zero")
        finite = np.isfinite(p)
        if "-last" in name or "-gather" in name:  # an index of -1 is the last token of another sequence
            finite[~mask.reshape(batch, -1).any(axis=1)] = False
        if "BATCH_DEPENDENT" in codes:  # nothing was packed; NaN of a sequence without keys, or a step, is quantized
            finite[:] = False
        if tokens:
            finite &= mask.reshape(mask.shape + (1,) * (g.ndim - mask.ndim))
        g, p = np.where(finite, g, 0), np.where(finite, p, 0)
        error = np.abs(g - p)
        if not np.all(error <= 1e-4 + 1e-3 * np.abs(p)):
            worst = np.unravel_index(error.argmax(), error.shape)
            bad.append(f"{o['name']}: differs by {error.max():.3g} from the padded form at {[int(i) for i in worst]}")
    if codes & {"PADDING_DEPENDENT", "BATCH_DEPENDENT"} or mask.ndim != 2 or \
            any(isinstance(d, int) for d in m.mask["shape"]) or "-lastleft" in name:  # the last token of the padded length
        return bad

    def same(other, rows, length, what, masked_too=True):
        for o in m.report["shapes"]["outputs"]:
            a, b = got[o["name"]][rows], other[o["name"]]
            if m.by_token(o):
                n = min(length, seq)
                a, b = a[:, :n], b[:, :n]
            if a.tobytes() != b.tobytes():
                bad.append(f"{o['name']}: {what} gives other bits")

    for b in range(batch):
        real = np.flatnonzero(mask[b])
        length = int(real[-1]) + 1 if len(real) else seq
        if length > 4 or length == 1:
            same(m.run(m.packed, cut(m, feeds, [b], length)), [b], length, f"sequence {b} alone")
    # DeBERTa gives a masked first token the mean over all tokens, masked ones among them
    rows = [b for b in range(batch) if mask[b].any() and (mask[b, 0] or "deberta" not in name)]
    same(m.run(m.packed, cut(m, feeds, rows[::-1], seq + MORE)), rows[::-1], seq, "more padding, another order")
    fix_length(m, seq, work + "/fixed.onnx")
    call(lathe, "compile", work + "/fixed.onnx", "-o", work + "/fixed.lathe")
    fixed = m.run(work + "/fixed.lathe", feeds)
    for o in m.report["shapes"]["outputs"]:
        a, b = floats(fixed[o["name"]]), floats(got[o["name"]])
        if m.by_token(o):  # of one length, it may not be known which axis has the tokens: then masked ones are computed
            a, b = a[mask], b[mask]
        if not np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
            bad.append(f"{o['name']}: a fixed length gives other numbers")
    return bad


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lathe", required=True)
    p.add_argument("--only", default="")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("dirs", nargs="+")
    opt = p.parse_args()
    models = sorted(os.path.join(d, n, "model.onnx") for d in opt.dirs for n in os.listdir(d)
                    if opt.only in n and os.path.exists(os.path.join(d, n, "model.onnx")))
    passed = failed = 0

    def one(path):
        with tempfile.TemporaryDirectory() as work:
            try:
                return check(os.path.abspath(opt.lathe), path, work)
            except RuntimeError as e:
                return [str(e)]

    with ThreadPoolExecutor(opt.jobs) as pool:
        for path, bad in zip(models, pool.map(one, models)):
            passed, failed = passed + (not bad), failed + bool(bad)
            if bad:
                print(f"FAIL {os.path.basename(os.path.dirname(path))}: {'; '.join(bad)}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or not models


if __name__ == "__main__":
    sys.exit(main())
