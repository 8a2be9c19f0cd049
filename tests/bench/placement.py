#!/usr/bin/env python3
"""Latency and throughput of both placements on 1, 2 and 4 cores, as a table for the README.

    placement.py --lathe build/lathe [--cores 1,2,4] [--seconds 3] [--rounds 3] [--run 'PREFIX COMMAND'] NAME=OUT.lathe...

Rounds are interleaved; each figure is the median of the rounds, a ratio the median of the ratios within a round. Exit 1
when two cores give less than 1.9 (replicate) or 1.7 (pipeline) times the throughput of one, or the slower of two stages
is 10 % or more above the mean. By hand, on a quiet machine of at least two cores: no test.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys

LEAST = {"replicate": 1.9, "pipeline": 1.7}
IMBALANCE = 0.10


def measure(a, artifact, placement, cores):
    out = subprocess.run([*shlex.split(a.run), a.lathe, "bench", artifact, "--placement", placement, "--cores", str(cores),
                          "--seconds", a.seconds, "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("artifacts", nargs="+", metavar="NAME=OUT.lathe")
    parser.add_argument("--lathe", default="build/lathe")
    parser.add_argument("--cores", default="1,2,4")
    parser.add_argument("--seconds", default="3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", default="", help="a command that runs the measurements, such as chrt -f 10")
    a = parser.parse_args()
    short = []
    print("| model | cores | placement | mean | p50 | p90 | p95 | p99 | requests/s | x one core | slowest stage |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for named in a.artifacts:
        name, artifact = named.split("=", 1)
        runs = [{(p, n): measure(a, artifact, p, n) for n in map(int, a.cores.split(",")) for p in LEAST if n > 1 or
                 p == "replicate"} for _ in range(a.rounds)]
        for p, n in runs[0]:
            def of(key):
                return statistics.median(r[p, n][key] for r in runs)
            ratio = statistics.median(r[p, n]["throughput"] / r["replicate", 1]["throughput"] for r in runs)
            slowest = f"+{100 * of('imbalance'):.1f} %" if p == "pipeline" else ""
            times = " | ".join(f"{of(k + '_ms'):.3g}" for k in ("mean", "p50", "p90", "p95", "p99"))
            print(f"| {name} | {n} | {p if n > 1 else ''} | {times} | {of('throughput'):.4g} | {ratio:.2f} | {slowest} |",
                  flush=True)
            if n == 2 and ratio < LEAST[p]:
                short.append(f"{name}: {p} on 2 cores gives {ratio:.2f} x one core, expected {LEAST[p]}")
            if n == 2 and p == "pipeline" and of("imbalance") >= IMBALANCE:
                short.append(f"{name}: the slower of 2 stages is {100 * of('imbalance'):.1f} % above the mean")
    print("\n".join(short), file=sys.stderr)
    return bool(short)


sys.exit(main())
