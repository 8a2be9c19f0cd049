#!/usr/bin/env python3
"""Compiles every model of a zoo for static shapes and verifies it on its data sets.

    python check_buckets.py --lathe build/lathe ZOO... [--only SUBSTRING] [--jobs N] [--target NAME:PRECISION]...

ZOO holds zoo.json (see check_cases.py). Each model is compiled for the buckets 1x8, 1x32 and 2x64, for each target and
precision (default inferentia:f32, native:f32, native:int8); `inspect --plan` must show a plan without symbols a bucket;
the artifact must hold the weights once; `verify` must pass on each data set that is no longer than 64 tokens and must
refuse a longer one with exit 3, naming length and limit, which `run --truncate` serves. A graph with fewer positions
must refuse the buckets with exit 4 and both numbers, and takes 1x8 and 2xN; one with fixed sizes must refuse them and
take its own. An axis that varies beside batch and length is refused, exit 4. One whose rows or padding depend on each other says so
(WHOLE_REQUESTS, PADDING_DEPENDENT, NO_MASK): it must refuse other sizes with exit 3 and verify in buckets that are the
sizes of its data. One line a failed check; the last line is 'N passed, N failed'; exit 1 when some failed.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import onnx
from onnx import numpy_helper

BUCKETS = [(1, 8), (1, 32), (2, 64)]
BOUNDS = {"f32": None, "bf16": 0.99, "int8": 0.98}


def shape_of(folder):
    """(batch, length) of a data set: of its first input of ids, else (batch, 0)."""
    batch = 0
    for i in range(99):
        path = os.path.join(folder, f"input_{i}.pb")
        if not os.path.exists(path):
            break
        with open(path, "rb") as f:
            t = onnx.TensorProto.FromString(f.read())
        x = numpy_helper.to_array(t)
        batch = batch or (x.shape[0] if x.ndim else 0)
        if x.ndim == 2 and x.dtype.kind in "iub":
            return int(x.shape[0]), int(x.shape[1])
    return int(batch), 0


class Check:
    def __init__(self, lathe, zoo, model, target, precision):
        self.lathe, self.model, self.target, self.precision = lathe, model, target, precision
        self.dir = os.path.join(zoo, model.get("dir", model["name"]))
        self.failures, self.note = [], ""

    def run(self, *args):
        p = subprocess.run([self.lathe, *args], capture_output=True, text=True, timeout=300)
        return p.returncode, p.stdout + p.stderr

    def fail(self, text):
        self.failures.append(text)

    def compile(self, out, buckets):
        report = out + ".json"
        code, text = self.run("compile", os.path.join(self.dir, "model.onnx"), "-o", out, "--target", self.target,
                              "--precision", self.precision, "--report", report, "--check",
                              *sum((["--bucket", f"{b}x{s}"] for b, s in buckets), []))
        codes = set()
        if code == 0:
            with open(report) as f:
                codes = {w["code"] for w in json.load(f)["warnings"]}
        return code, text, codes

    def verify(self, out, data, want=0):
        cosine = BOUNDS[self.precision] or self.model.get("min_cosine")
        bound = ["--min-cosine", str(cosine)] if cosine else ["--atol", str(self.model["atol"]), "--rtol", "1e-3"]
        code, text = self.run("verify", out, "--test-data", data, *bound)
        if code != want:
            self.fail(f"{os.path.basename(data)}: exit {code}, expected {want} ({text.strip().splitlines()[-1][:160]})")
        return text

    def check_plans(self, out, buckets):
        # 8-bit steps may fall to the other side of a half between plain C and vector kernels: no bound of 1e-4 there
        replay = ["--check"] if self.precision == "f32" else []
        code, text = self.run("inspect", out, "--plan", "--json", *replay)
        if code:
            return self.fail(f"inspect: exit {code} ({text[:160]})")
        o = json.loads(text)
        shown = [(b["batch"], b["seq"]) for b in o.get("buckets", [])]
        has_length = any(s for _, s in shown)
        wanted = sorted({(b, s if has_length else 0) for b, s in buckets}, key=lambda x: (x[1], x[0]))
        if shown != wanted:
            self.fail(f"buckets {shown}, expected {wanted}")
        heads = [s for s in o["plan"].splitlines() if s.startswith("bucket ")]
        if len(heads) != len(wanted) or any(": 0 symbols" not in s or "all constant" not in s for s in heads):
            self.fail(f"plans: {heads}")
        ops = {s.split(" = ", 1)[1].split("(")[0] for s in o["plan"].splitlines() if " = " in s}
        if ops & {"row_map", "pack_rows", "unpack_rows", "take_rows", "attention_rows"}:
            self.fail(f"a static plan with rows that depend on data: {sorted(ops)}")
        if sum(s["name"] == "weights" for s in o["sections"]) != 1:
            self.fail("more than one section of weights")

    def own_sizes(self, folder, sets):
        """In buckets that are the sizes of the data everything verifies."""
        out = os.path.join(folder, "own.lathe")
        sizes = sorted({shape_of(d) for d in sets})
        groups = [sizes] if self.dynamic else [[s] for s in sizes]
        for group in groups:
            code, text, _ = self.compile(out, group)
            if code:
                self.fail(f"buckets {group}: exit {code} ({text.strip()[:200]})")
                continue
            for d in sets:
                if shape_of(d) in group:
                    self.verify(out, d)

    def go(self):
        sets = [os.path.join(self.dir, d["dir"]) for d in self.model["data_sets"]]
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "model.lathe")
            buckets = BUCKETS
            code, text, codes = self.compile(out, buckets)
            short = re.search(r"length is (\d+), the graph takes \d+ to (\d+)", text)
            if code == 4 and short and int(short[1]) > int(short[2]):
                buckets = [(1, 8), (2, int(short[2]))]
                code, text, codes = self.compile(out, buckets)
            self.dynamic = code == 0
            if code == 4 and "only the batch in front and plain sizes" in text:
                self.note = "refused, an axis beside batch and length varies"
                return None
            if code == 4 and "fixed" in text:
                self.note = "fixed sizes"
                return self.own_sizes(folder, sets)
            if code:
                return self.fail(f"compile: exit {code} ({text.strip()[:200]})")
            longest = max(s for _, s in buckets)
            self.check_plans(out, buckets)
            self.note = ", ".join(sorted(codes & {"WHOLE_REQUESTS", "PADDING_DEPENDENT", "NO_MASK"}))
            for d in sets:
                batch, length = shape_of(d)
                if length > longest:
                    text = self.verify(out, d, 3)
                    if str(length) not in text or str(longest) not in text:
                        self.fail(f"the refusal of {length} tokens names not both numbers: {text.strip()[:160]}")
                    code, text = self.run("run", out, "--test-data", d, "-o", os.path.join(folder, "y"), "--truncate")
                    if code:
                        self.fail(f"run --truncate: exit {code} ({text.strip()[:160]})")
                elif "WHOLE_REQUESTS" in self.note and (batch, length) not in buckets:
                    self.verify(out, d, 3)
                elif self.note and length and length not in [s for _, s in buckets]:
                    self.verify(out, d, 3)
                else:
                    self.verify(out, d)
            if self.note:
                self.own_sizes(folder, sets)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoos", nargs="+")
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--target", action="append", help="NAME:PRECISION")
    args = parser.parse_args()
    checks = []
    for zoo in args.zoos:
        with open(os.path.join(zoo, "zoo.json")) as f:
            models = [m for m in json.load(f)["models"] if args.only in m["name"]]
        for t in args.target or ["inferentia:f32", "native:f32", "native:int8"]:
            checks += [Check(os.path.abspath(args.lathe), zoo, m, *t.split(":")) for m in models]

    def one(check):
        try:
            check.go()
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
            check.fail(f"{type(e).__name__}: {e}")
        return check

    failed, notes = 0, {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for c in pool.map(one, checks):
            failed += bool(c.failures)
            for f in c.failures:
                print(f"FAIL {c.model['name']} {c.target} {c.precision}: {f}", flush=True)
            if c.note:
                notes.setdefault(c.note, set()).add(c.model["name"])
    for note, names in sorted(notes.items()):
        print(f"{note}: {', '.join(sorted(names))}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
