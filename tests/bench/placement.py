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
    short, counts = [], [int(n) for n in a.cores.split(",")]
    print("| model | cores | replicate p50 | p95 | p99 | requests/s | x | pipeline p50 | p95 | p99 | requests/s | x | "
          "slowest stage |")
    print("|" + "---|" * 13)
    for named in a.artifacts:
        name, artifact = named.split("=", 1)
        runs = [{(p, n): measure(a, artifact, p, n) for n in counts for p in LEAST if n > 1 or p == "replicate"}
                for _ in range(a.rounds)]
        for n in counts:
            line = f"| {name} | {n} |"
            for p in LEAST:
                if (p, n) not in runs[0]:
                    line += " |" * 6
                    continue
                middle = {key: statistics.median(r[p, n][key] for r in runs)
                          for key in ("p50_ms", "p95_ms", "p99_ms", "throughput", "imbalance")}
                ratio = statistics.median(r[p, n]["throughput"] / r["replicate", 1]["throughput"] for r in runs)
                line += "".join(f" {middle[key]:.3g} |" for key in ("p50_ms", "p95_ms", "p99_ms", "throughput"))
                line += f" {ratio:.2f} |"
                if p == "pipeline":
                    line += f" +{100 * middle['imbalance']:.1f} % |"
                if n == 2 and ratio < LEAST[p]:
                    short.append(f"{name}: {p} on 2 cores gives {ratio:.2f} x one core, expected {LEAST[p]}")
                if n == 2 and p == "pipeline" and middle["imbalance"] >= IMBALANCE:
                    short.append(f"{name}: the slower of 2 stages is {100 * middle['imbalance']:.1f} % above the mean")
            print(line, flush=True)
    for line in short:
        print(line, file=sys.stderr)
    return bool(short)


sys.exit(main())
