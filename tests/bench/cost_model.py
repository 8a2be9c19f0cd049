#!/usr/bin/env python3
"""Predicted against measured latency, for the targets' figures (targets/*.yaml, cost) of the machine at hand.

    cost_model.py --lathe build/lathe MODEL.onnx... [--precision f32,bf16,int8] [--threads 1,2] [--seconds 0.5]
                  [--target native] [--run 'PREFIX COMMAND']

Compiles each model in each precision, reads `cost` of the report, measures each length with `lathe bench` and prints a
line for each number of threads: length: predicted / measured ms and the difference. Exit 1 when a difference is more
than 25 %. By hand, on a quiet machine: no test.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

BOUND = 0.25


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--lathe", default="build/lathe")
    parser.add_argument("--precision", default="f32,bf16,int8")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", default="0.5")
    parser.add_argument("--run", default="", help="a command that runs the measurements, such as chrt -f 10")
    a = parser.parse_args()
    threads, worst = [int(t) for t in a.threads.split(",")], 0.0
    with tempfile.TemporaryDirectory() as folder:
        artifact, report = f"{folder}/m.lathe", f"{folder}/m.json"
        for model in a.models:
            for precision in a.precision.split(","):
                subprocess.run([a.lathe, "compile", model, "-o", artifact, "--precision", precision, "--target",
                                a.target, "--report", report], check=True, stdout=subprocess.DEVNULL)
                cost = json.loads(pathlib.Path(report).read_text())["cost"]
                if not cost:
                    sys.exit(f"{a.target}: no figures, no prediction")
                for count in threads:
                    line = f"{model.parent.name}/{model.name} {precision}, {count} thread{'s' * (count > 1)}:"
                    for p in cost["predictions"]:
                        if p["threads"] != count:
                            continue
                        size = ["--seq", str(p["length"])] if p["length"] else []
                        out = subprocess.run([*shlex.split(a.run), a.lathe, "bench", artifact, *size, "--threads",
                                              str(count), "--seconds", a.seconds, "--json"], check=True,
                                             capture_output=True, text=True).stdout
                        measured = json.loads(out)["p50_ms"]
                        off = p["ms"] / measured - 1
                        worst = max(worst, abs(off))
                        line += f"  {p['length']}: {p['ms']:.3g}/{measured:.3g} {100 * off:+.0f} %"
                    print(line, flush=True)
    print(f"largest difference {100 * worst:.0f} %, bound {100 * BOUND:.0f} %")
    return worst > BOUND


sys.exit(main())
