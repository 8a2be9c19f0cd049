#!/usr/bin/env python3
"""What padding costs: batches of real lengths, padded, in static buckets and packed, in one table.

    python padding.py MODEL.onnx... --lengths FILE [--batch 32] [--batches 4] [--buckets 4] [--precision f32]

FILE has one number of tokens a line. Each batch is timed by `lathe bench --lengths`
  padded     compiled with --keep-padding: every row of the batch has the length of the longest
  1 bucket   a static shape of one sequence of --length tokens; each sequence runs in it
  N buckets  the static shapes that `lathe buckets` proposes for these lengths; each sequence in the smallest that fits
  packed     compiled as by default
Longer sequences than --length are cut to it for all. Prints milliseconds a batch (the median of each bench, the mean over
the batches), the share of the computed tokens that are padding, and the speed against padded. --with COMMAND goes before
each bench, to pin it or to have the machine alone.
"""
import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile


def call(*args):
    r = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, args))}: exit {r.returncode}: {r.stderr.strip()}")
    return r.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--lengths", required=True)
    p.add_argument("--lathe", default="build/lathe")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--batches", type=int, default=4)
    p.add_argument("--buckets", type=int, default=4)
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--precision", default="f32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--with", dest="prefix", default="")
    opt = p.parse_args()
    lengths = [min(int(x), opt.length) for x in open(opt.lengths).read().split()]
    random.Random(7).shuffle(lengths)
    batches = [lengths[i * opt.batch:(i + 1) * opt.batch] for i in range(opt.batches)]
    real = sum(map(sum, batches))

    def compiled(model, out, *args):
        call(opt.lathe, "compile", model, "-o", out, "--precision", opt.precision, *args)
        return out

    def bench(artifact, *args):
        out = call(*shlex.split(opt.prefix), opt.lathe, "bench", artifact, "--threads", opt.threads, "--seconds",
                   opt.seconds, "--json", *args)
        return json.loads(out)["p50_ms"]

    def in_buckets(model, work, sizes):
        ms = {s: bench(compiled(model, f"{work}/{s}.lathe", "--bucket", f"1x{s}")) for s in sizes}
        fit = [min(s for s in sizes if s >= n) for b in batches for n in b]
        return sum(ms[s] for s in fit) / len(batches), sum(fit)

    def in_batches(artifact):
        return sum(bench(artifact, "--lengths", ",".join(map(str, b))) for b in batches) / len(batches)

    print(f"{opt.batches} batches of {opt.batch} sequences, {real / opt.batches:.0f} tokens each, {opt.precision}, "
          f"{opt.threads} threads\n")
    print("| model | form | ms a batch | padding | against padded |\n| --- | --- | ---: | ---: | ---: |")
    for model in opt.models:
        name = os.path.basename(os.path.dirname(os.path.abspath(model)))
        with tempfile.TemporaryDirectory() as work:
            proposed = json.loads(call(opt.lathe, "buckets", "--lengths", opt.lengths, "--max", opt.buckets,
                                       "--max-length", opt.length, "--json"))
            sizes = sorted({s["length"] for s in proposed["buckets"]})
            rows = [("padded", in_batches(compiled(model, work + "/padded.lathe", "--keep-padding")),
                     sum(max(b) * len(b) for b in batches))]
            one = in_buckets(model, work, [opt.length])
            rows.append((f"1 bucket of {opt.length}", *one))
            rows.append((f"{len(sizes)} buckets ({', '.join(map(str, sizes))})", *in_buckets(model, work, sizes)))
            rows.append(("packed", in_batches(compiled(model, work + "/packed.lathe")), real))
        for form, ms, computed in rows:
            print(f"| {name} | {form} | {ms:.2f} | {1 - real / computed:.0%} | {rows[0][1] / ms:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
